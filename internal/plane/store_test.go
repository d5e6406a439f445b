package plane_test

import (
	"fmt"
	"maps"
	"math/rand/v2"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/plane"
)

var noon = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

func clock() time.Time { return noon }

func all(plane.StoreEvent) bool { return true }

func cluster(id string, change ...func(*plane.Cluster)) plane.Cluster {
	c := plane.Cluster{ID: id, Name: id, Health: "Alive"}
	for _, f := range change {
		f(&c)
	}
	return c
}

func signinOf(login, name string) plane.Signin {
	return plane.Signin{ID: "tailplane/" + name, Namespace: "tailplane", Name: name, Login: login, Phase: "Ready", Created: noon}
}

func describeEvents(events []plane.StoreEvent) (out []string) {
	for _, e := range events {
		about := e.Source.Name
		switch {
		case e.Object != nil:
			about = e.Object.Key()
		case e.Type == plane.EventKnown:
			about = string(e.Kind)
		}
		out = append(out, fmt.Sprint(e.Type, " ", about))
	}
	return out
}

// Rule 1: a list can be unknown, empty or not empty, and these three differ (PLANE-06).
func TestNotKnownIsNotNone(t *testing.T) {
	b := plane.NewStore(clock)
	if l := b.List(plane.KindCluster); l.Known || len(l.Sources) != 0 {
		t.Errorf("no source was read: %+v", l)
	}
	b.Expect("gossip", plane.KindCluster)
	l := b.List(plane.KindCluster)
	switch {
	case l.Known:
		t.Errorf("no source has answered: l.Known is true; %+v", l)
	case len(l.Sources) != 1:
		t.Errorf("no source has answered: len(l.Sources) = %v, want 1", len(l.Sources))
	case l.Sources[0].Status != plane.StatusDown:
		t.Errorf("no source has answered: l.Sources[0].Status = %q, want %q", l.Sources[0].Status, plane.StatusDown)
	case !l.Sources[0].ObservedAt.IsZero():
		t.Errorf("no source has answered: l.Sources[0].ObservedAt.IsZero() is false; %+v", l)
	case l.Sources[0].Message == "":
		t.Errorf("no source has answered: l.Sources[0].Message is empty; %+v", l)
	}
	b.Set(plane.KindCluster, "gossip", cluster("a")) // a part of a first list
	if l = b.List(plane.KindCluster); l.Known {
		t.Errorf("one was seen: %+v", l)
	}
	b.Replace(plane.KindCluster, "gossip", nil)
	switch l = b.List(plane.KindCluster); {
	case !l.Known:
		t.Errorf("there are none: l.Known is false; %+v", l)
	case l.Objects == nil:
		t.Error("there are none: l.Objects is nil")
	case len(l.Objects) != 0:
		t.Errorf("there are none: len(l.Objects) = %v, want 0", len(l.Objects))
	}
	// The source goes down: its last data stays.
	b.Replace(plane.KindCluster, "gossip", []plane.Object{cluster("a")})
	b.Report(plane.Source{Name: "gossip", Status: plane.StatusOK})
	b.Report(plane.Source{Name: "gossip", Status: plane.StatusDown, Message: "the ConfigMap cannot be read"})
	switch l = b.List(plane.KindCluster); {
	case !l.Known:
		t.Errorf("last known: l.Known is false; %+v", l)
	case len(l.Objects) != 1:
		t.Errorf("last known: len(l.Objects) = %v, want 1", len(l.Objects))
	case l.Sources[0].Status != plane.StatusDown:
		t.Errorf("last known: l.Sources[0].Status = %q, want %q", l.Sources[0].Status, plane.StatusDown)
	case !l.Sources[0].ObservedAt.Equal(noon):
		t.Errorf("last known: l.Sources[0].ObservedAt = %v, want %v", l.Sources[0].ObservedAt, noon)
	}
}

func TestStoreEvents(t *testing.T) {
	now := noon
	b := plane.NewStore(func() time.Time { return now })
	at := b.Revision()
	next := func() []string {
		events, revision, ok := b.Since(at, all)
		if !ok {
			t.Fatal("the ring does not go back to the last revision")
		}
		at = revision
		return describeEvents(events)
	}
	want := func(what string, want ...string) {
		t.Helper()
		if got := next(); !slices.Equal(got, want) {
			t.Errorf("%s: %q, want %q", what, got, want)
		}
	}
	b.Set(plane.KindCluster, "gossip", cluster("a"))
	want("a new one", "upsert a")
	now = now.Add(time.Minute)
	b.Set(plane.KindCluster, "gossip", cluster("a"))
	want("read again")
	if o, _ := b.Get(plane.KindCluster, "a"); !o.Observed().Equal(now) {
		t.Errorf("its age is of %v", o.Observed())
	}
	local := noon.In(time.FixedZone("x", 0))
	b.Set(plane.KindCluster, "gossip", cluster("a", func(c *plane.Cluster) { c.LastSeen = &local }))
	want("another value", "upsert a")
	utc := local.UTC()
	b.Set(plane.KindCluster, "gossip", cluster("a", func(c *plane.Cluster) { c.LastSeen = &utc }))
	want("the same value, written in another way")
	b.Set(plane.KindCluster, "prometheus", cluster("b"))
	b.Replace(plane.KindCluster, "gossip", []plane.Object{cluster("c")})
	want("re-listed: what is another source's stays", "upsert b", "upsert c", "delete a", "known cluster")
	b.Delete(plane.KindCluster, "c")
	b.Delete(plane.KindCluster, "c")
	b.Delete(plane.KindTailnet, "never")
	want("gone", "delete c")
	b.Report(plane.Source{Name: "gossip", Status: plane.StatusOK})
	want("it answers", "status gossip")
	since := b.Sources()[0].Since
	now = now.Add(time.Minute)
	b.Report(plane.Source{Name: "gossip", Status: plane.StatusOK})
	want("it still does")
	if s := b.Sources()[0]; !s.Since.Equal(since) || !s.ObservedAt.Equal(now) {
		t.Errorf("%+v", s)
	}
	b.Report(plane.Source{Name: "gossip", Status: plane.StatusDegraded, Message: "slow"})
	b.Report(plane.Source{Name: "gossip", Status: plane.StatusDegraded, Message: "slower"})
	want("of two reports the last", "status gossip")
	switch s := b.Sources()[0]; {
	case !s.Since.Equal(now):
		t.Errorf("s.Since = %v, want %v", s.Since, now)
	case !s.ObservedAt.Equal(now):
		t.Errorf("s.ObservedAt = %v, want %v", s.ObservedAt, now)
	case s.Message != "slower":
		t.Errorf("s.Message = %q, want %q", s.Message, "slower")
	}
}

// When an object changes its owner, it is deleted for the previous owner.
func TestAnotherOwner(t *testing.T) {
	b := plane.NewStore(clock)
	b.Set(plane.KindSignin, "kubernetes", signinOf("alice@example.com", "s"))
	at := b.Revision()
	b.Set(plane.KindSignin, "kubernetes", signinOf("bob@example.com", "s"))
	for login, want := range map[string]string{"alice@example.com": "[delete tailplane/s]", "bob@example.com": "[upsert tailplane/s]"} {
		events, _, ok := b.Since(at, func(e plane.StoreEvent) bool { return e.Object.(plane.Signin).Login == login })
		if got := fmt.Sprint(describeEvents(events)); !ok || got != want {
			t.Errorf("%s gets %s", login, got)
		}
	}
	if events, _, _ := b.Since(at, all); fmt.Sprint(describeEvents(events)) != "[upsert tailplane/s]" {
		t.Errorf("a caller with access to both gets %v", describeEvents(events))
	}
}

// A reader that is too far behind, or comes from another process, must read everything again (PLANE-12).
func TestResync(t *testing.T) {
	b := plane.NewStore(clock)
	first := b.Revision()
	for i := range 2000 {
		b.Set(plane.KindCluster, "gossip", cluster("a", func(c *plane.Cluster) { c.Port = i }))
	}
	switch events, _, ok := b.Since(first, all); {
	case !ok:
		t.Errorf("2,000 changes of one object: ok is false; %v, %v", describeEvents(events), ok)
	case len(events) != 1:
		t.Errorf("2,000 changes of one object: len(events) = %v, want 1; %v", len(events), describeEvents(events))
	case events[0].Object.(plane.Cluster).Port != 1999:
		t.Errorf("2,000 changes of one object: got %v, want 1999; %v", events[0].Object.(plane.Cluster).Port, describeEvents(events))
	}
	for i := range 10_000 {
		b.Set(plane.KindCluster, "gossip", cluster("a", func(c *plane.Cluster) { c.Port = -i - 1 }))
		if i%89 != 0 {
			continue
		}
		if events, _, ok := b.Since(b.Revision()-1000, all); !ok || len(events) != 1 {
			t.Fatalf("after %d: the last 1,000 are not there: %v", i, ok)
		}
	}
	if _, _, ok := b.Since(first, all); ok {
		t.Error("the ring has no limit")
	}
	for _, foreign := range []uint64{0, 1, b.Revision() + 1, 1 << 63} {
		if _, _, ok := b.Since(foreign, all); ok {
			t.Errorf("revision %d was never here", foreign)
		}
	}
	earlier := plane.NewStore(clock)
	earlier.Set(plane.KindCluster, "gossip", cluster("a"))
	later := plane.NewStore(func() time.Time { return noon.Add(time.Second) })
	for i := range 10 {
		later.Set(plane.KindCluster, "gossip", cluster("a", func(c *plane.Cluster) { c.Port = i }))
	}
	if _, _, ok := later.Since(earlier.Revision(), all); ok {
		t.Error("a revision of an earlier process is accepted")
	}
}

// PLANE-12: a reader that applies all events after any snapshot, at any pace, has the same state as the store. Sources may write at the
// same time.
func TestNothingIsLost(t *testing.T) {
	b := plane.NewStore(time.Now)
	const writers, changes = 3, 3000
	stop := make(chan struct{})
	var write, read sync.WaitGroup
	for w := range writers {
		write.Go(func() {
			random := rand.New(rand.NewPCG(uint64(w), 7))
			for range changes {
				id := fmt.Sprint(w, "-", random.IntN(20))
				switch random.IntN(10) {
				case 0:
					b.Delete(plane.KindCluster, id)
				case 1:
					b.Replace(plane.KindCluster, fmt.Sprint("source", w), []plane.Object{cluster(id), cluster(fmt.Sprint(w, "-", 3))})
				default:
					b.Set(plane.KindCluster, fmt.Sprint("source", w), cluster(id, func(c *plane.Cluster) { c.Port = random.IntN(3) }))
				}
			}
		})
	}
	problems := make(chan error, 1)
	var found []error
	var collect sync.WaitGroup
	collect.Go(func() {
		for err := range problems {
			found = append(found, err)
		}
	})
	for r := range 8 {
		read.Go(func() {
			random := rand.New(rand.NewPCG(uint64(r), 8))
			known := map[string]plane.Object{}
			again := func() uint64 {
				clear(known)
				l := b.List(plane.KindCluster)
				for _, o := range l.Objects {
					known[o.Key()] = o
				}
				return l.Revision
			}
			at, last := again(), false
			for {
				events, revision, ok := b.Since(at, all)
				if !ok {
					at = again()
					continue
				}
				for _, e := range events {
					if e.Revision <= at || e.Revision > revision {
						problems <- fmt.Errorf("event %d is not between %d and %d", e.Revision, at, revision)
					}
					switch e.Type {
					case plane.EventDelete:
						delete(known, e.Object.Key())
					case plane.EventUpsert:
						known[e.Object.Key()] = e.Object
					}
				}
				at = revision
				if last {
					break
				}
				select {
				case <-stop:
					last = true
				case <-b.Changed(at):
				}
				for range random.IntN(3) * 1000 {
					_ = random.Uint64() // make some readers slower
				}
			}
			l := b.List(plane.KindCluster)
			want := map[string]plane.Object{}
			for _, o := range l.Objects {
				want[o.Key()] = o
			}
			for key, o := range want {
				if have, ok := known[key].(plane.Cluster); !ok || have.Port != o.(plane.Cluster).Port {
					problems <- fmt.Errorf("reader %d has %v for %s, not %v", r, known[key], key, o)
				}
			}
			if len(known) != len(want) {
				problems <- fmt.Errorf("reader %d knows %v, there are %v", r, slices.Sorted(maps.Keys(known)), slices.Sorted(maps.Keys(want)))
			}
		})
	}
	write.Wait()
	close(stop)
	read.Wait()
	close(problems)
	collect.Wait()
	for _, err := range found {
		t.Error(err)
	}
}

// A list that a caller holds does not change.
func TestListingIsImmutable(t *testing.T) {
	b := plane.NewStore(clock)
	b.Replace(plane.KindCluster, "gossip", []plane.Object{cluster("b"), cluster("a")})
	l := b.List(plane.KindCluster)
	b.Replace(plane.KindCluster, "gossip", []plane.Object{cluster("c")})
	switch {
	case len(l.Objects) != 2:
		t.Errorf("len(l.Objects) = %v, want 2", len(l.Objects))
	case l.Objects[0].Key() != "a":
		t.Errorf("l.Objects[0].Key() = %q, want %q", l.Objects[0].Key(), "a")
	case l.Objects[1].Key() != "b":
		t.Errorf("l.Objects[1].Key() = %q, want %q", l.Objects[1].Key(), "b")
	}
	lists, revision := b.ListAll(plane.KindCluster, plane.KindTailnet)
	switch {
	case len(lists) != 2:
		t.Errorf("len(lists) = %v, want 2", len(lists))
	case revision != b.Revision():
		t.Errorf("revision = %v, want %v", revision, b.Revision())
	case len(lists[0].Objects) != 1:
		t.Errorf("len(lists[0].Objects) = %v, want 1", len(lists[0].Objects))
	case lists[1].Known:
		t.Errorf("lists[1].Known is true; lists = %+v, revision = %d", lists, revision)
	}
}
