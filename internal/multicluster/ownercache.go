package multicluster

import (
	"hash/maphash"
	"net/http"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// Limits of an OwnerCache: the number of entries, and how long an entry that no cluster has the object stays valid.
const (
	maxOwners = 50_000
	absentTTL = time.Second
)

// ObjectKey identifies an object across all clusters.
type ObjectKey struct {
	Group, Resource, Namespace, Name string
}

// keyOf returns the key of the object that r names.
func keyOf(r *apiproxy.Request) ObjectKey {
	return ObjectKey{r.Group, r.Resource, r.Namespace, r.Name}
}

// OwnerCache caches which member of a spread holds each object. Its sources are the responses to creates and
// gets, lists and watches. An OwnerCache belongs to one configuration; a new configuration starts with a new one.
//
// It holds two maps. New and used entries go to the current map. When the current map is full, it becomes the
// previous one, and the entries of the old previous map are dropped. Those entries were not used while half
// of the limit was filled.
type OwnerCache struct {
	seed maphash.Seed
	half int // the most entries in one map: half of maxOwners

	mu                sync.Mutex
	current, previous map[uint64]cachedOwner // a hash is in at most one of them
}

// cachedOwner is the cluster that holds an object.
type cachedOwner struct {
	cluster string // "": no cluster has it; valid until the time in until
	until   int64  // Unix time in nanoseconds
}

// NewOwnerCache returns an empty OwnerCache.
func NewOwnerCache() *OwnerCache {
	return &OwnerCache{seed: maphash.MakeSeed(), half: maxOwners / 2, current: map[uint64]cachedOwner{}, previous: map[uint64]cachedOwner{}}
}

// hash returns a 64-bit hash of k. Collisions are very rare. After one, the wrong member answers "not found"
// and the adapter queries all members.
func (o *OwnerCache) hash(k ObjectKey) uint64 {
	var h maphash.Hash
	h.SetSeed(o.seed)
	for _, s := range [...]string{k.Group, k.Resource, k.Namespace, k.Name} {
		h.WriteString(s)
		h.WriteByte(0)
	}
	return h.Sum64()
}

// Get returns the cluster that holds the object. absent reports that no cluster had it less than a second
// ago. If cluster is "" and absent is false, the caller must query all members.
func (o *OwnerCache) Get(k ObjectKey, now time.Time) (cluster string, absent bool) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	found, ok := o.current[h]
	if !ok {
		if found, ok = o.previous[h]; !ok {
			return "", false
		}
		o.insert(h, found)
	}
	if found.cluster == "" && now.UnixNano() >= found.until {
		delete(o.current, h)
		return "", false
	}
	return found.cluster, found.cluster == ""
}

// Set records that cluster has the object.
func (o *OwnerCache) Set(k ObjectKey, cluster string) { o.store(k, cachedOwner{cluster: cluster}) }

// SetAbsent records that no member has the object. The entry is valid for one second. Callers must call it only
// after all members answered.
func (o *OwnerCache) SetAbsent(k ObjectKey, now time.Time) {
	o.store(k, cachedOwner{until: now.Add(absentTTL).UnixNano()})
}

func (o *OwnerCache) store(k ObjectKey, is cachedOwner) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	o.insert(h, is)
}

// insert puts an entry into the current map. The caller must hold mu.
func (o *OwnerCache) insert(h uint64, is cachedOwner) {
	if _, ok := o.current[h]; !ok {
		if len(o.current) >= o.half {
			o.current, o.previous = o.previous, o.current
			clear(o.current)
		}
		delete(o.previous, h)
	}
	o.current[h] = is
}

// Delete drops the entry of the object if it names cluster, because that cluster reported the object as
// deleted or not found. An empty cluster matches any.
func (o *OwnerCache) Delete(k ObjectKey, cluster string) {
	h := o.hash(k)
	o.mu.Lock()
	defer o.mu.Unlock()
	for _, m := range [...]map[uint64]cachedOwner{o.current, o.previous} {
		if is, ok := m[h]; ok && (cluster == "" || is.cluster == cluster) {
			delete(m, h)
		}
	}
}

// Len returns the number of entries.
func (o *OwnerCache) Len() int {
	o.mu.Lock()
	defer o.mu.Unlock()
	return len(o.current) + len(o.previous)
}

// ownerAnswer is a member's response to the query whether it has an object.
type ownerAnswer struct {
	Cluster string
	Status  int   // HTTP status; 0: no response
	Err     error // why there was no response; for the log, not for the client
}

// ownerResult is the result of the answers of all members.
type ownerResult struct {
	Owner string // the cluster that has the object; "" if none is known to
	// Absent reports that every member answered and none has the object. A create may then proceed. For any
	// other request the first member's own "not found" is the response.
	Absent      bool
	Unreachable []string          // members that did not answer
	Refusal     *apiproxy.Refusal // set if the owner is unknown and the object may still exist
	Warning     string            // for the client; "" if there is none
}

// combineAnswers combines the answers of all members, which must be in member order. If several members have the
// object, that is a conflict unless prefer is set; then the first of them wins. A member that did not answer
// may have the object, so the result is never "not found" in that case (AD-05). A found owner stands despite
// a silent member, unless prefer is set and the silent member comes before it.
func combineAnswers(answers []ownerAnswer, prefer bool) ownerResult {
	var v ownerResult
	var have []string
	forbidden, uncertain := "", false
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
			v.Unreachable = append(v.Unreachable, a.Cluster)
			uncertain = uncertain || prefer && len(have) == 0
		}
	}
	switch {
	case len(have) > 1 && !prefer:
		v.Refusal = apiproxy.NewRefusal(http.StatusConflict, "the object is in several clusters: %s", strings.Join(have, ", "))
	case uncertain, len(have) == 0 && len(v.Unreachable) > 0:
		v.Refusal = unavailable("the cluster of the object is unknown: cluster %s did not answer", strings.Join(v.Unreachable, ", "))
	case len(have) > 0:
		v.Owner = have[0]
		if len(have) > 1 {
			v.Warning = "the object is also in " + strings.Join(have[1:], ", ")
		}
	case forbidden != "":
		v.Refusal = apiproxy.NewRefusal(
			http.StatusForbidden,
			"cluster %s does not allow this pod to check whether it has the object",
			forbidden,
		)
	default:
		v.Absent = true
	}
	return v
}
