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

// A Kind is a kind of objects on the Board, as it stands in events and in the
// name of a list.
type Kind string

// The kinds.
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
	KindForge      Kind = "forge"      // where their jobs come from
	KindChange     Kind = "change"     // of the configuration, by pull request
	KindDrift      Kind = "drift"      // what of the fleet is not as it should be
	KindRunner     Kind = "runner"     // one runner, of one organisation in one pool
)

// An Object is something that is known. It is a value that nobody changes: who
// has put one on the Board keeps no way to write to what it refers to.
type Object interface {
	// Key is its id among those of its kind.
	Key() string
	// Org is the organisation that it belongs to, "" for one of the whole installation.
	Org() string
	// Observed is when it was read.
	Observed() time.Time
	// At is the same object, read at t.
	At(t time.Time) Object
}

// Owned is an object that is somebody's own.
type Owned interface{ Owner() Owner }

// Shared is an object that several organisations have a part in: who may see one of
// them may know of it.
type Shared interface{ Orgs() []string }

// Personal is an object that is not the same for all who may know of it.
type Personal interface {
	// For is the object as it is for one caller.
	For(v Viewer) Object
}

// An Owner is a person, or a node that is nobody's, as its tailnet knows it.
type Owner struct{ Login, Tailnet string }

// Is reports whether c is o: the whole login counts, and where somebody comes from
// another tailnet, whose login may be spelt like one of ours, that too.
func (o Owner) Is(c access.Caller) bool {
	if o.Login == "" || o.Login != c.Identity() {
		return false
	}
	if c.Shared || o.Tailnet != "" && c.Tailnet != "" {
		return o.Tailnet != "" && o.Tailnet == c.Tailnet
	}
	return true
}

// A Status is how a source answers.
type Status string

// The statuses. A source that is Degraded answers in part, or late.
const (
	OK       Status = "ok"
	Degraded Status = "degraded"
	Down     Status = "down"
)

// A Source is where objects come from, and how it answers.
type Source struct {
	Name       string    `json:"name" doc:"such as kubernetes or gossip"`
	Status     Status    `json:"status" enum:"ok,degraded,down"`
	ObservedAt time.Time `json:"observedAt,omitzero" doc:"when it answered last; absent: it never did"`
	Since      time.Time `json:"since" doc:"since when it has this status"`
	Message    string    `json:"message" doc:"what is wrong, a sentence"`
}

// A Listing is everything of one kind that is known. It is not to be changed.
type Listing struct {
	Kind     Kind
	Objects  []Object // sorted by key
	Sources  []Source // of this kind, sorted by name
	Revision uint64
	// Known is false until a source of the kind has said what there is: then
	// there are objects, or none, or nobody knows.
	Known bool
}

// A Board is what is known now and what has changed. Sources put objects on it,
// all surfaces read it, and nobody asks a source on behalf of one reader.
//
// Readers share the one ring of events, each with its own place in it: a reader
// that is slow costs nothing and delays nobody. Of several changes of one object
// it is told the last, and when the ring has gone past its place, to read anew.
//
// Methods may be called at the same time.
type Board struct {
	now func() time.Time

	mu       sync.Mutex
	revision uint64
	shelves  map[Kind]*shelf
	sources  map[string]*Source
	overlays map[Kind]func(Object) Object
	ring     []Event // by revision: the last ringSize, and up to as many before them
	first    uint64  // the revision before ring[0]
	changed  broadcast.Change
}

// shelf has the objects of one kind.
type shelf struct {
	feeds  map[string]bool // the sources of the kind; true: it has said what there is
	items  map[string]item
	sorted []Object // nil: to be made
}

type item struct {
	Object
	source string
}

// NewBoard returns a Board on which nothing is known. Revisions begin with the
// time, so that those of an earlier process are never taken for its own.
func NewBoard(now func() time.Time) *Board {
	start := uint64(now().UnixMicro())
	return &Board{now: now, revision: start, first: start, shelves: map[Kind]*shelf{}, sources: map[string]*Source{}, overlays: map[Kind]func(Object) Object{}}
}

// Expect says that source is going to feed kinds. Until it reports, it is Down:
// a list without it says so.
func (b *Board) Expect(source string, kinds ...Kind) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source(source)
	for _, k := range kinds {
		b.feed(k, source)
	}
}

// Put sets one object that source has read. One that differs from what was there
// in nothing but the time of reading is no event.
func (b *Board) Put(k Kind, source string, o Object) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.source(source)
	b.put(k, source, o)
}

// Remove takes away an object that is no longer there.
func (b *Board) Remove(k Kind, key string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.remove(k, key)
}

// Replace sets all objects of a kind that source has: what is not among them and
// came from it is no longer there.
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

// Overlay has each object of a kind shown as f makes it: what is there, and from now on
// what any source puts there. It replaces the overlay of before. F says of an object
// what does not come from its source, of what an earlier overlay has made too; it must
// not call the Board.
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

// Report says how a source answers. What it has put on the Board stays, with its
// age. A zero ObservedAt of a source that is not OK keeps the time when it
// answered last; Since is the Board's to say.
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

// List returns what is known of a kind.
func (b *Board) List(k Kind) Listing {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.list(k)
}

// Lists returns what is known of kinds at one moment, and its revision.
func (b *Board) Lists(kinds ...Kind) ([]Listing, uint64) {
	b.mu.Lock()
	defer b.mu.Unlock()
	var all []Listing
	for _, k := range kinds {
		all = append(all, b.list(k))
	}
	return all, b.revision
}

// Get returns one object.
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

// Revision is that of the last change.
func (b *Board) Revision() uint64 {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.revision
}

// What follows is called with the lock held.

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
		b.tell(Event{Change: Delete, Kind: k, Object: was.Object}) // for those who may see only what it was
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

// known reports whether a source has said what there is.
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

// same reports whether a and b differ in nothing but when they were read. Times of
// two zones may be one time, so what is sent is what counts.
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
