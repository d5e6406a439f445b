package apiproxy

import (
	"container/list"
	"hash/maphash"
	"net/http"
	"strings"
	"sync"
	"time"
)

// How much is learned, and for how long it is believed that nobody has an object.
const (
	maxOwners  = 50_000
	absentTime = time.Second
)

// A Key is what an object is known by over all clusters.
type Key struct {
	Group, Resource, Namespace, Name string
}

// Key returns the key of the object that r is about.
func (r *Request) Key() Key { return Key{r.Group, r.Resource, r.Namespace, r.Name} }

// Owners is what is known about which member of a spread has an object: from
// answers to creates, from gets, from lists and watches. It forgets what was not
// asked for longest, and is for one document: another one begins with a new
// Owners.
type Owners struct {
	seed maphash.Seed

	mu     sync.Mutex
	known  map[uint64]*list.Element // of owner
	recent list.List                // the last one used first
}

// An owner is who has the object of a key, as it was told at a time.
type owner struct {
	key     uint64
	cluster string // "": nobody, until the time
	until   time.Time
}

// NewOwners returns an Owners that knows nothing.
func NewOwners() *Owners {
	return &Owners{seed: maphash.MakeSeed(), known: map[uint64]*list.Element{}}
}

// hash is of 64 bits. Two keys of one hash are so rare that the wrong member's
// "not found", upon which all are asked, is the answer to them.
func (o *Owners) hash(k Key) uint64 {
	var h maphash.Hash
	h.SetSeed(o.seed)
	for _, s := range [...]string{k.Group, k.Resource, k.Namespace, k.Name} {
		h.WriteString(s)
		h.WriteByte(0)
	}
	return h.Sum64()
}

// Find returns the cluster that has the object. absent says that nobody had it
// less than a second ago. If neither is known, all members are to be asked. It
// allocates nothing.
func (o *Owners) Find(k Key, now time.Time) (cluster string, absent bool) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	e := o.known[h]
	if e == nil {
		return "", false
	}
	found := e.Value.(*owner)
	if found.cluster == "" && !now.Before(found.until) {
		o.drop(e)
		return "", false
	}
	o.recent.MoveToFront(e)
	return found.cluster, found.cluster == ""
}

// Learn notes that a cluster has the object.
func (o *Owners) Learn(k Key, cluster string) { o.note(k, cluster, time.Time{}) }

// Absent notes that no member has the object. It is believed for a second, and
// only if all were asked.
func (o *Owners) Absent(k Key, now time.Time) { o.note(k, "", now.Add(absentTime)) }

func (o *Owners) note(k Key, cluster string, until time.Time) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	if e := o.known[h]; e != nil {
		e.Value = &owner{h, cluster, until}
		o.recent.MoveToFront(e)
		return
	}
	o.known[h] = o.recent.PushFront(&owner{h, cluster, until})
	if o.recent.Len() > maxOwners {
		o.drop(o.recent.Back())
	}
}

// Forget drops what is known of the object, if it is that the cluster has it:
// the cluster said that it was deleted, or not found. "" is any cluster.
func (o *Owners) Forget(k Key, cluster string) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	if e := o.known[h]; e != nil && (cluster == "" || e.Value.(*owner).cluster == cluster) {
		o.drop(e)
	}
}

func (o *Owners) drop(e *list.Element) {
	delete(o.known, e.Value.(*owner).key)
	o.recent.Remove(e)
}

// Len returns how many objects something is known of.
func (o *Owners) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return o.recent.Len()
}

// An Answer is what a member said when it was asked whether it has an object.
type Answer struct {
	Cluster string
	Status  int   // of HTTP; 0: none came
	Err     error // why none came; it goes to the log and not to the client
}

// A Verdict is what the answers of all members say together.
type Verdict struct {
	Owner string // who has the object; "" if nobody is known to
	// Absent says that every member was asked and none has it: a create may go on,
	// and anything else gets the first member's own "not found".
	Absent  bool
	Unasked []string // the members that could not be asked
	Refusal *Refusal // if there is neither an owner nor certainty that there is none
	Warning string   // for the client; "": none
}

// Judge says who has an object. The answers are of all members, in their order.
// prefer lets the first of several have it, where else that is a conflict. A
// member that could not be asked may have it, so that it is never "not found"
// then (AD-05); one that was found is not doubted for that, unless prefer would
// have taken the silent one.
func Judge(answers []Answer, prefer bool) Verdict {
	var v Verdict
	var have []string
	forbidden, doubt := "", false
	for _, a := range answers {
		switch {
		case a.Status >= 200 && a.Status < 300:
			have = append(have, a.Cluster)
		case a.Status == http.StatusNotFound:
		case a.Status == http.StatusForbidden:
			if forbidden == "" {
				forbidden = a.Cluster
			}
		default:
			v.Unasked = append(v.Unasked, a.Cluster)
			doubt = doubt || prefer && len(have) == 0
		}
	}
	switch {
	case len(have) > 1 && !prefer:
		v.Refusal = refuse(http.StatusConflict, "the object is in several clusters: %s", strings.Join(have, ", "))
		v.Refusal.Reason = "Conflict"
	case doubt, len(have) == 0 && len(v.Unasked) > 0:
		v.Refusal = refuse(http.StatusServiceUnavailable, "who has the object is not known: cluster %s could not be asked", strings.Join(v.Unasked, ", "))
		v.Refusal.RetryAfter = time.Second
	case len(have) > 0:
		v.Owner = have[0]
		if len(have) > 1 {
			v.Warning = "the object is also in " + strings.Join(have[1:], ", ")
		}
	case forbidden != "":
		v.Refusal = refuse(http.StatusForbidden, "cluster %s does not let this pod look whether it has the object", forbidden)
	default:
		v.Absent = true
	}
	return v
}
