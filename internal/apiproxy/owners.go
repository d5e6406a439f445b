package apiproxy

import (
	"hash/maphash"
	"net/http"
	"strings"
	"sync"
	"time"
)

// Limits of Owners: the number of entries, and how long an entry that no cluster has the object stays valid.
const (
	maxOwners  = 50_000
	absentTime = time.Second
)

// Key identifies an object across all clusters.
type Key struct {
	Group, Resource, Namespace, Name string
}

// Key returns the key of the object that r names.
func (r *Request) Key() Key { return Key{r.Group, r.Resource, r.Namespace, r.Name} }

// Owners caches which member of a spread holds each object. Its sources are the responses to creates and
// gets, lists and watches. An Owners belongs to one configuration; a new configuration starts with a new one.
//
// It holds two maps. New and used entries go to the current map. When the current map is full, it becomes the
// previous one, and the entries of the old previous map are dropped. Those entries were not used while half
// of the limit was filled.
type Owners struct {
	seed maphash.Seed
	half int // the most entries in one map: half of maxOwners

	mu                sync.Mutex
	current, previous map[uint64]owner // a hash is in at most one of them
}

// owner is the cluster that holds an object.
type owner struct {
	cluster string // "": no cluster has it; valid until the time in until
	until   int64  // Unix time in nanoseconds
}

// NewOwners returns an empty Owners.
func NewOwners() *Owners {
	return &Owners{seed: maphash.MakeSeed(), half: maxOwners / 2, current: map[uint64]owner{}, previous: map[uint64]owner{}}
}

// hash returns a 64-bit hash of k. Collisions are very rare. After one, the wrong member answers "not found"
// and the adapter queries all members.
func (o *Owners) hash(k Key) uint64 {
	var h maphash.Hash
	h.SetSeed(o.seed)
	for _, s := range [...]string{k.Group, k.Resource, k.Namespace, k.Name} {
		h.WriteString(s)
		h.WriteByte(0)
	}
	return h.Sum64()
}

// Find returns the cluster that holds the object. absent reports that no cluster had it less than a second
// ago. If cluster is "" and absent is false, the caller must query all members.
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

// Learn records that cluster has the object.
func (o *Owners) Learn(k Key, cluster string) { o.note(k, owner{cluster: cluster}) }

// Absent records that no member has the object. The entry is valid for one second. Callers must call it only
// after all members answered.
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

// Forget drops the entry of the object if it names cluster, because that cluster reported the object as
// deleted or not found. An empty cluster matches any.
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

// Len returns the number of entries.
func (o *Owners) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.current) + len(o.previous)
}

// Answer is a member's response to the query whether it has an object.
type Answer struct {
	Cluster string
	Status  int   // HTTP status; 0: no response
	Err     error // why there was no response; for the log, not for the client
}

// Verdict is the result of the answers of all members.
type Verdict struct {
	Owner string // the cluster that has the object; "" if none is known to
	// Absent reports that every member answered and none has the object. A create may then proceed. For any
	// other request the first member's own "not found" is the response.
	Absent  bool
	Unasked []string // members that did not answer
	Refusal *Refusal // set if the owner is unknown and the object may still exist
	Warning string   // for the client; "" if there is none
}

// Judge combines the answers of all members, which must be in member order. If several members have the
// object, that is a conflict unless prefer is set; then the first of them wins. A member that did not answer
// may have the object, so the result is never "not found" in that case (AD-05). A found owner stands despite
// a silent member, unless prefer is set and the silent member comes before it.
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
