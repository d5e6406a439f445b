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

// Status is the health of a source.
type Status string

// The statuses. A Degraded source returns partial or late answers.
const (
	OK       Status = "ok"
	Degraded Status = "degraded"
	Down     Status = "down"
)

// Source is the health of one provider of objects.
type Source struct {
	Name       string    `json:"name" doc:"such as kubernetes or gossip"`
	Status     Status    `json:"status" enum:"ok,degraded,down"`
	ObservedAt time.Time `json:"observedAt,omitzero" doc:"when it answered last; absent: it never did"`
	Since      time.Time `json:"since" doc:"since when it has this status"`
	Message    string    `json:"message" doc:"what is wrong, a sentence"`
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

// Board stores what the plane knows now and the recent changes. Sources write to it and all surfaces read from it. No request makes the
// plane query a source.
//
// All readers share one ring of events, and each reader keeps its own position. A slow reader costs nothing and delays no other reader. A
// reader that has missed several changes of one object receives only the last one. A reader whose position is no longer in the ring must
// read everything again.
//
// Board is safe for concurrent use.
type Board struct {
	now func() time.Time

	mu       sync.Mutex
	revision uint64
	shelves  map[Kind]*shelf
	sources  map[string]*Source
	overlays map[Kind]func(Object) Object
	ring     []Event // by revision: the last ringSize events, and up to ringSize before them
	first    uint64  // the revision before ring[0]
	changed  broadcast.Change
}

// shelf holds the objects of one kind.
type shelf struct {
	feeds  map[string]bool // the sources of the kind; true: the source has reported its full list
	items  map[string]item
	sorted []Object // nil: list must build it
}

type item struct {
	Object
	source string
}

// NewBoard returns an empty store. Its first revision is the current time in microseconds, so revisions of an earlier process are never
// mistaken for its own.
func NewBoard(now func() time.Time) *Board {
	start := uint64(now().UnixMicro())
	return &Board{now: now, revision: start, first: start, shelves: map[Kind]*shelf{}, sources: map[string]*Source{}, overlays: map[Kind]func(Object) Object{}}
}

// Expect declares that source will provide kinds. The source is Down until it reports, and lists of these kinds show that.
func (b *Board) Expect(source string, kinds ...Kind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source(source)
	for _, k := range kinds {
		b.feed(k, source)
	}
}

// Put stores one object that source has read. It adds an event only if the object changed in more than its observation time.
func (b *Board) Put(k Kind, source string, o Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source(source)
	b.put(k, source, o)
}

// Remove deletes an object that no longer exists.
func (b *Board) Remove(k Kind, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remove(k, key)
}

// Replace stores all objects of a kind that source has. It removes the objects from the same source that are missing in all.
func (b *Board) Replace(k Kind, source string, all []Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source(source)
	s := b.feed(k, source)
	known := s.known()
	has := map[string]bool{}
	for _, o := range all {
		has[o.Key()] = true
		b.put(k, source, o)
	}
	for _, key := range slices.Sorted(maps.Keys(s.items)) {
		if s.items[key].source == source && !has[key] {
			b.remove(k, key)
		}
	}
	s.feeds[source] = true
	if !known {
		b.tell(Event{Change: Known, Kind: k})
	}
}

// Overlay applies f to every object of a kind: to the stored objects now, and to each object that a source puts later. It replaces the
// previous overlay of the kind.
//
// f adds information that does not come from the object's source. It must overwrite what an earlier overlay added, and it must not call the
// store .
func (b *Board) Overlay(k Kind, f func(Object) Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.overlays[k] = f
	if s := b.shelves[k]; s != nil {
		for _, key := range slices.Sorted(maps.Keys(s.items)) {
			b.put(k, s.items[key].source, s.items[key].Object)
		}
	}
}

// Report records the health of a source. Objects of the source stay in the store and keep their age. If ObservedAt is zero and the status
// is not OK, the time of the last answer stays. Report ignores Since; the store sets it.
func (b *Board) Report(r Source) {
	b.mu.Lock()
	defer b.mu.Unlock()
	s := b.source(r.Name)
	was := *s
	now := b.now().UTC()
	switch {
	case !r.ObservedAt.IsZero():
		s.ObservedAt = r.ObservedAt.UTC()
	case r.Status == OK:
		s.ObservedAt = now
	}
	if s.Status != r.Status {
		s.Status, s.Since = r.Status, now
	}
	s.Message = r.Message
	if was.Status != s.Status || was.Message != s.Message {
		b.tell(Event{Change: SourceStatus, Source: *s})
	}
}

// List returns the known objects of a kind.
func (b *Board) List(k Kind) Listing {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.list(k)
}

// Lists returns the known objects of several kinds at one revision, and that revision.
func (b *Board) Lists(kinds ...Kind) ([]Listing, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Listing
	for _, k := range kinds {
		all = append(all, b.list(k))
	}
	return all, b.revision
}

// Get returns one object, and false if the store does not have it.
func (b *Board) Get(k Kind, key string) (Object, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if s := b.shelves[k]; s != nil {
		if it, ok := s.items[key]; ok {
			return it.Object, true
		}
	}
	return nil, false
}

// Sources returns all sources, sorted by name.
func (b *Board) Sources() []Source {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.named(maps.Keys(b.sources))
}

// Revision returns the revision of the last change.
func (b *Board) Revision() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.revision
}

// Callers of the methods below must hold mu.

func (b *Board) source(name string) *Source {
	s := b.sources[name]
	if s == nil {
		s = &Source{Name: name, Status: Down, Since: b.now().UTC(), Message: "It has not answered yet."}
		b.sources[name] = s
	}
	return s
}

func (b *Board) feed(k Kind, source string) *shelf {
	s := b.shelves[k]
	if s == nil {
		s = &shelf{feeds: map[string]bool{}, items: map[string]item{}}
		b.shelves[k] = s
	}
	if _, expected := s.feeds[source]; !expected {
		s.feeds[source] = false
	}
	return s
}

func (b *Board) put(k Kind, source string, o Object) {
	s := b.feed(k, source)
	if o.Observed().IsZero() {
		o = o.At(b.now().UTC())
	}
	if f := b.overlays[k]; f != nil {
		o = f(o)
	}
	was, had := s.items[o.Key()]
	s.items[o.Key()] = item{o, source}
	s.sorted = nil
	moved := had && (was.Org() != o.Org() || ownerOf(was.Object) != ownerOf(o) || !slices.Equal(orgsOf(was.Object), orgsOf(o)))
	if had && !moved && same(was.Object, o) {
		return
	}
	if moved {
		b.tell(Event{Change: Delete, Kind: k, Object: was.Object}) // for readers that may see the old object but not the new one
	}
	b.tell(Event{Change: Upsert, Kind: k, Object: o})
}

func (b *Board) remove(k Kind, key string) {
	s := b.shelves[k]
	if s == nil {
		return
	}
	if was, had := s.items[key]; had {
		delete(s.items, key)
		s.sorted = nil
		b.tell(Event{Change: Delete, Kind: k, Object: was.Object})
	}
}

func (b *Board) list(k Kind) Listing {
	l := Listing{Kind: k, Revision: b.revision}
	s := b.shelves[k]
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
	l.Objects, l.Sources = s.sorted, b.named(maps.Keys(s.feeds))
	l.Known = s.known()
	return l
}

// known reports whether a source has reported its full list.
func (s *shelf) known() bool {
	for _, listed := range s.feeds {
		if listed {
			return true
		}
	}
	return false
}

func (b *Board) named(names func(func(string) bool)) []Source {
	all := []Source{}
	for _, name := range slices.Sorted(names) {
		all = append(all, *b.sources[name])
	}
	return all
}

// same reports whether a and b differ only in their observation time. It also compares the JSON, because one time in two zones is unequal
// for DeepEqual.
func same(a, b Object) bool {
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
