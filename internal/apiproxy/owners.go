package apiproxy

import (
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
// answers to creates, from gets, from lists and watches. An Owners is for one
// document: another document begins with a new Owners.
//
// It holds two maps. New and used entries go to the current one. When that is full
// it becomes the previous one, and the entries of the old previous map are dropped:
// they were not used while half of the bound was learned.
type Owners struct {
	seed maphash.Seed
	half int // of the bound, the most that one map holds

	mu                sync.Mutex
	current, previous map[uint64]owner // a hash is in one of them
}

// An owner is the cluster that has an object.
type owner struct {
	cluster string // "": no cluster has it, until the time
	until   int64  // in ns since 1970
}

// NewOwners returns an Owners that knows nothing.
func NewOwners() *Owners {
	return &Owners{seed: maphash.MakeSeed(), half: maxOwners / 2, current: map[uint64]owner{}, previous: map[uint64]owner{}}
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

// Find returns the cluster that has the object. absent says that no cluster had it
// less than a second ago. If neither is known, all members are to be asked.
func (o *Owners) Find(k Key, now time.Time) (cluster string, absent bool) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	found, ok := o.current[h]
	if !ok {
		if found, ok = o.previous[h]; !ok {
			return "", false
		}
		o.set(h, found)
	}
	if found.cluster == "" && now.UnixNano() >= found.until {
		delete(o.current, h)
		return "", false
	}
	return found.cluster, found.cluster == ""
}

// Learn notes that a cluster has the object.
func (o *Owners) Learn(k Key, cluster string) { o.note(k, owner{cluster: cluster}) }

// Absent notes that no member has the object. It is believed for a second, and
// only if all were asked.
func (o *Owners) Absent(k Key, now time.Time) {
	o.note(k, owner{until: now.Add(absentTime).UnixNano()})
}

func (o *Owners) note(k Key, is owner) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.set(h, is)
}

// set puts an entry into the current map. The caller must hold mu.
func (o *Owners) set(h uint64, is owner) {
	if _, ok := o.current[h]; !ok {
		if len(o.current) >= o.half {
			o.current, o.previous = o.previous, o.current
			clear(o.current)
		}
		delete(o.previous, h)
	}
	o.current[h] = is
}

// Forget drops what is known of the object, if it is that the cluster has it:
// the cluster said that it was deleted, or not found. "" is any cluster.
func (o *Owners) Forget(k Key, cluster string) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range [...]map[uint64]owner{o.current, o.previous} {
		if is, ok := m[h]; ok && (cluster == "" || is.cluster == cluster) {
			delete(m, h)
		}
	}
}

// Len returns how many objects something is known of.
func (o *Owners) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.current) + len(o.previous)
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
