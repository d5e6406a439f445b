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
// answers to creates, from gets, from lists and watches. It forgets what was not
// asked for longest, and is for one document: another one begins with a new
// Owners.
//
// A list may tell of tens of thousands of objects at once, so what is known lies
// in blocks, and nothing in it points to anything but a cluster's name.
type Owners struct {
	seed maphash.Seed

	mu     sync.Mutex
	known  map[uint64]int32 // places
	blocks [][]owner
	recent int32 // the one that was used last; -1: there is none
	oldest int32
	unused int32 // the first of those that were dropped; -1: there is none
}

// An owner is who has the object of a key, as it was told at a time.
type owner struct {
	key     uint64
	cluster string // "": nobody, until the time
	until   int64  // in ns since 1970
	// The places of those that were used just after it and just before it; -1: there
	// is none. Of a place that is free, older is another free one.
	newer, older int32
}

// ownerBlock is how many owners lie together.
const ownerBlock = 512

// NewOwners returns an Owners that knows nothing.
func NewOwners() *Owners {
	return &Owners{seed: maphash.MakeSeed(), known: map[uint64]int32{}, recent: -1, oldest: -1, unused: -1}
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

func (o *Owners) at(place int32) *owner { return &o.blocks[place/ownerBlock][place%ownerBlock] }

// Find returns the cluster that has the object. absent says that nobody had it
// less than a second ago. If neither is known, all members are to be asked. It
// allocates nothing.
func (o *Owners) Find(k Key, now time.Time) (cluster string, absent bool) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	place, ok := o.known[h]
	if !ok {
		return "", false
	}
	found := o.at(place)
	if found.cluster == "" && now.UnixNano() >= found.until {
		o.drop(place)
		return "", false
	}
	o.use(place)
	return found.cluster, found.cluster == ""
}

// Learn notes that a cluster has the object.
func (o *Owners) Learn(k Key, cluster string) { o.note(k, cluster, 0) }

// Absent notes that no member has the object. It is believed for a second, and
// only if all were asked.
func (o *Owners) Absent(k Key, now time.Time) { o.note(k, "", now.Add(absentTime).UnixNano()) }

func (o *Owners) note(k Key, cluster string, until int64) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	place, ok := o.known[h]
	if !ok {
		if len(o.known) == maxOwners {
			o.drop(o.oldest)
		}
		place = o.room()
		o.known[h] = place
		o.at(place).key = h
		o.push(place)
	} else {
		o.use(place)
	}
	at := o.at(place)
	at.cluster, at.until = cluster, until
}

// room is a place for one more.
func (o *Owners) room() int32 {
	if o.unused < 0 {
		first := int32(len(o.blocks) * ownerBlock)
		o.blocks = append(o.blocks, make([]owner, ownerBlock))
		for place := first + ownerBlock - 1; place >= first; place-- {
			o.at(place).older, o.unused = o.unused, place
		}
	}
	place := o.unused
	o.unused = o.at(place).older
	return place
}

// use makes one the last that was used.
func (o *Owners) use(place int32) {
	if place != o.recent {
		o.take(place)
		o.push(place)
	}
}

func (o *Owners) push(place int32) {
	at := o.at(place)
	at.newer, at.older = -1, o.recent
	if o.recent < 0 {
		o.oldest = place
	} else {
		o.at(o.recent).newer = place
	}
	o.recent = place
}

func (o *Owners) take(place int32) {
	at := o.at(place)
	if at.newer < 0 {
		o.recent = at.older
	} else {
		o.at(at.newer).older = at.older
	}
	if at.older < 0 {
		o.oldest = at.newer
	} else {
		o.at(at.older).newer = at.newer
	}
}

// Forget drops what is known of the object, if it is that the cluster has it:
// the cluster said that it was deleted, or not found. "" is any cluster.
func (o *Owners) Forget(k Key, cluster string) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	if place, ok := o.known[h]; ok && (cluster == "" || o.at(place).cluster == cluster) {
		o.drop(place)
	}
}

func (o *Owners) drop(place int32) {
	o.take(place)
	delete(o.known, o.at(place).key)
	*o.at(place) = owner{older: o.unused}
	o.unused = place
}

// Len returns how many objects something is known of.
func (o *Owners) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.known)
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
