package plane

import (
	"bytes"
	"maps"
	"reflect"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/util/broadcast"
)

// Kind is the kind of an object in the store. Event names and list names use it.
type Kind string

// The kinds of objects.
const (
	KindCluster    Kind = "cluster"
	KindSignin     Kind = "signin"
	KindTailnet    Kind = "tailnet"
	KindGateway    Kind = "gateway"
	KindRoute      Kind = "route"
	KindProxyGroup Kind = "proxygroup"
	KindAdapter    Kind = "adapter"
	KindPool       Kind = "pool"       // the runners of one organisation in one pool
	KindEnrollment Kind = "enrollment" // an organisation that has runners
	KindHold       Kind = "hold"       // a pause of runners
	KindForge      Kind = "forge"      // where jobs come from
	KindChange     Kind = "change"     // a pull request that changes the configuration
	KindDrift      Kind = "drift"      // a difference between the desired and the actual fleet
	KindRunner     Kind = "runner"     // one runner of one organisation in one pool
)

// Object is something that the plane knows. Objects are immutable: the caller that put an object into the store must not modify anything
// that the object refers to.
type Object interface {
	// Key returns the object's id, which is unique within its kind.
	Key() string
	// Org returns the organisation that owns the object, or "" if the object belongs to the whole installation.
	Org() string
	// Observed returns the time at which a source read the object.
	Observed() time.Time
	// At returns a copy of the object with t as its observation time.
	At(t time.Time) Object
}

// Owned is an object that belongs to one person or node.
type Owned interface{ Owner() Owner }

// Shared is an object that several organisations take part in. A caller that may see one of them may see the object.
type Shared interface{ Orgs() []string }

// Personal is an object that different callers see differently.
type Personal interface {
	// For returns the object as v sees it.
	For(v Viewer) Object
}

// Owner identifies a person, or a node without a user, together with the tailnet that vouches for it.
type Owner struct{ Login, Tailnet string }

// Is reports whether c is o. The whole login must match. The tailnet must match too for a caller from another tailnet, because that tailnet
// may have a login that is spelt the same.
func (o Owner) Is(c access.Caller) bool {
	if o.Login == "" || o.Login != c.Identity() {
		return false
	}
	if c.Shared || o.Tailnet != "" && c.Tailnet != "" {
		return o.Tailnet != "" && o.Tailnet == c.Tailnet
	}
	return true
}

// EventSourceStatus is the health of a source.
type SourceStatus string

// The statuses. A Degraded source returns partial or late answers.
const (
	StatusOK       SourceStatus = "ok"
	StatusDegraded SourceStatus = "degraded"
	StatusDown     SourceStatus = "down"
)

// Source is the health of one provider of objects.
type Source struct {
	Name       string       `json:"name" doc:"for example kubernetes or gossip"`
	Status     SourceStatus `json:"status" enum:"ok,degraded,down"`
	ObservedAt time.Time    `json:"observedAt,omitzero" doc:"time of its last answer; absent: never"`
	Since      time.Time    `json:"since" doc:"start of this status"`
	Message    string       `json:"message" doc:"the problem, a sentence"`
}

// Listing holds all known objects of one kind. Callers must not modify it.
type Listing struct {
	Kind     Kind
	Objects  []Object // sorted by key
	Sources  []Source // the sources of this kind, sorted by name
	Revision uint64
	// Known becomes true when one source of the kind has reported its full list, which may be empty. Until then an empty Objects does not
	// mean that there are none.
	Known bool
}

// Store stores what the plane knows now and the recent changes. Sources write to it and all surfaces read from it. No request makes the
// plane query a source.
//
// All readers share one ring of events, and each reader keeps its own position. A slow reader costs nothing and delays no other reader. A
// reader that has missed several changes of one object receives only the last one. A reader whose position is no longer in the ring must
// read everything again.
//
// Store is safe for concurrent use.
type Store struct {
	now func() time.Time

	mu       sync.Mutex
	revision uint64
	kinds    map[Kind]*kindObjects
	sources  map[string]*Source
	overlays map[Kind]func(Object) Object
	events   []StoreEvent // by revision: the last maxStoreEvents events, and up to maxStoreEvents before them
	first    uint64       // the revision before events[0]
	changed  broadcast.Change
}

// kindObjects holds the objects of one kind.
type kindObjects struct {
	sources map[string]bool // the sources of the kind; true: the source has reported its full list
	items   map[string]storedObject
	sorted  []Object // nil: list must build it
}

type storedObject struct {
	Object
	source string
}

// NewStore returns an empty store. Its first revision is the current time in microseconds, so revisions of an earlier process are never
// mistaken for its own.
func NewStore(now func() time.Time) *Store {
	start := uint64(now().UnixMicro())
	return &Store{now: now, revision: start, first: start, kinds: map[Kind]*kindObjects{}, sources: map[string]*Source{}, overlays: map[Kind]func(Object) Object{}}
}

// Expect declares that source will provide kinds. The source is Down until it reports, and lists of these kinds show that.
func (b *Store) Expect(source string, kinds ...Kind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source(source)
	for _, k := range kinds {
		b.objects(k, source)
	}
}

// Set stores one object that source has read. It adds an event only if the object changed in more than its observation time.
func (b *Store) Set(k Kind, source string, o Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source(source)
	b.setObject(k, source, o)
}

// Delete deletes an object that no longer exists.
func (b *Store) Delete(k Kind, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.deleteObject(k, key)
}

// Replace stores all objects of a kind that source has. It removes the objects from the same source that are missing in all.
func (b *Store) Replace(k Kind, source string, all []Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source(source)
	s := b.objects(k, source)
	known := s.known()
	has := map[string]bool{}
	for _, o := range all {
		has[o.Key()] = true
		b.setObject(k, source, o)
	}
	for _, key := range slices.Sorted(maps.Keys(s.items)) {
		if s.items[key].source == source && !has[key] {
			b.deleteObject(k, key)
		}
	}
	s.sources[source] = true
	if !known {
		b.publish(StoreEvent{Type: EventKnown, Kind: k})
	}
}

// Overlay applies f to every object of a kind: to the stored objects now, and to each object that a source puts later. It replaces the
// previous overlay of the kind.
//
// f adds information that does not come from the object's source. It must overwrite what an earlier overlay added, and it must not call the
// store .
func (b *Store) Overlay(k Kind, f func(Object) Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.overlays[k] = f
	if s := b.kinds[k]; s != nil {
		for _, key := range slices.Sorted(maps.Keys(s.items)) {
			b.setObject(k, s.items[key].source, s.items[key].Object)
		}
	}
}

// Report records the health of a source. Objects of the source stay in the store and keep their age. If ObservedAt is zero and the status
// is not OK, the time of the last answer stays. Report ignores Since; the store sets it.
func (b *Store) Report(r Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.source(r.Name)
	was := *s
	now := b.now().UTC()
	switch {
	case !r.ObservedAt.IsZero():
		s.ObservedAt = r.ObservedAt.UTC()
	case r.Status == StatusOK:
		s.ObservedAt = now
	}
	if s.Status != r.Status {
		s.Status, s.Since = r.Status, now
	}
	s.Message = r.Message
	if was.Status != s.Status || was.Message != s.Message {
		b.publish(StoreEvent{Type: EventSourceStatus, Source: *s})
	}
}

// List returns the known objects of a kind.
func (b *Store) List(k Kind) Listing {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.listing(k)
}

// ListAll returns the known objects of several kinds at one revision, and that revision.
func (b *Store) ListAll(kinds ...Kind) ([]Listing, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Listing
	for _, k := range kinds {
		all = append(all, b.listing(k))
	}
	return all, b.revision
}

// Get returns one object, and false if the store does not have it.
func (b *Store) Get(k Kind, key string) (Object, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.kinds[k]; s != nil {
		if it, ok := s.items[key]; ok {
			return it.Object, true
		}
	}
	return nil, false
}

// Sources returns all sources, sorted by name.
func (b *Store) Sources() []Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.sourcesNamed(maps.Keys(b.sources))
}

// Revision returns the revision of the last change.
func (b *Store) Revision() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.revision
}

// Callers of the methods below must hold mu.

func (b *Store) source(name string) *Source {
	s := b.sources[name]
	if s == nil {
		s = &Source{Name: name, Status: StatusDown, Since: b.now().UTC(), Message: "The source has not responded yet."}
		b.sources[name] = s
	}
	return s
}

func (b *Store) objects(k Kind, source string) *kindObjects {
	s := b.kinds[k]
	if s == nil {
		s = &kindObjects{sources: map[string]bool{}, items: map[string]storedObject{}}
		b.kinds[k] = s
	}
	if _, expected := s.sources[source]; !expected {
		s.sources[source] = false
	}
	return s
}

func (b *Store) setObject(k Kind, source string, o Object) {
	s := b.objects(k, source)
	if o.Observed().IsZero() {
		o = o.At(b.now().UTC())
	}
	if f := b.overlays[k]; f != nil {
		o = f(o)
	}
	was, had := s.items[o.Key()]
	s.items[o.Key()] = storedObject{o, source}
	s.sorted = nil
	moved := had && (was.Org() != o.Org() || ownerOf(was.Object) != ownerOf(o) || !slices.Equal(orgsOf(was.Object), orgsOf(o)))
	if had && !moved && sameObject(was.Object, o) {
		return
	}
	if moved {
		b.publish(StoreEvent{Type: EventDelete, Kind: k, Object: was.Object}) // for readers that may see the old object but not the new one
	}
	b.publish(StoreEvent{Type: EventUpsert, Kind: k, Object: o})
}

func (b *Store) deleteObject(k Kind, key string) {
	s := b.kinds[k]
	if s == nil {
		return
	}
	if was, had := s.items[key]; had {
		delete(s.items, key)
		s.sorted = nil
		b.publish(StoreEvent{Type: EventDelete, Kind: k, Object: was.Object})
	}
}

func (b *Store) listing(k Kind) Listing {
	l := Listing{Kind: k, Revision: b.revision}
	s := b.kinds[k]
	if s == nil {
		return l
	}
	if s.sorted == nil {
		s.sorted = make([]Object, 0, len(s.items))
		for _, it := range s.items {
			s.sorted = append(s.sorted, it.Object)
		}
		slices.SortFunc(s.sorted, func(a, b Object) int { return strings.Compare(a.Key(), b.Key()) })
	}
	l.Objects, l.Sources, l.Known = s.sorted, b.sourcesNamed(maps.Keys(s.sources)), s.known()
	return l
}

// known reports whether a source has reported its full list.
func (s *kindObjects) known() bool {
	for _, listed := range s.sources {
		if listed {
			return true
		}
	}
	return false
}

func (b *Store) sourcesNamed(names func(func(string) bool)) []Source {
	all := []Source{}
	for _, name := range slices.Sorted(names) {
		all = append(all, *b.sources[name])
	}
	return all
}

// sameObject reports whether a and b differ only in their observation time. It also compares the JSON, because one time in two zones is unequal
// for DeepEqual.
func sameObject(a, b Object) bool {
	a, b = a.At(time.Time{}), b.At(time.Time{})
	return reflect.DeepEqual(a, b) || bytes.Equal(encode(a), encode(b))
}

func orgsOf(o Object) []string {
	if shared, ok := o.(Shared); ok {
		return shared.Orgs()
	}
	return nil
}

func ownerOf(o Object) Owner {
	if owned, ok := o.(Owned); ok {
		return owned.Owner()
	}
	return Owner{}
}
