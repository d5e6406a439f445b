package merge

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// eventLog is a sink that records events and their times.
type eventLog struct {
	mu    sync.Mutex
	began time.Time
	proto bool
	lines []string
	times []time.Duration
	marks []string // positions
}

func (l *eventLog) Event(b []byte) error {
	typ, o, status, err := decodeEvent(b, l.proto)
	if err != nil {
		return err
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	line := typ
	switch {
	case status != nil:
		line += fmt.Sprint(" ", status.Code, " ", status.Reason)
	case typ == "BOOKMARK":
		l.marks = append(l.marks, o.ResourceVersion)
		rv, bad := ParseResourceVersion(o.ResourceVersion)
		if bad != nil || rv.Vector == nil {
			return fmt.Errorf("a bookmark at %q", o.ResourceVersion)
		}
		line += fmt.Sprint(" ", rv.Vector.Fields)
		if o.Annotations["k8s.io/initial-events-end"] == "true" {
			line += " end"
		}
	default:
		line += " " + o.Name + "@" + o.Data["member"]
	}
	l.lines = append(l.lines, line)
	l.times = append(l.times, time.Since(l.began))
	return nil
}

func (l *eventLog) Flush() error { return nil }

// since returns the events since the last call.
func (l *eventLog) since() string {
	synctest.Wait()
	l.mu.Lock()
	defer l.mu.Unlock()
	s := strings.Join(l.lines, ", ")
	l.lines, l.times = nil, nil
	return s
}

// startWatch runs a watch in a synctest bubble until the test ends.
func startWatch(t *testing.T, c *clusters, q Query, set func(*Collection, *Watch)) (*eventLog, func() error) {
	t.Helper()
	q.Watch = true
	col := c.collection(&instance{})
	ctx, cancel := context.WithCancel(t.Context())
	if set != nil {
		set(col, nil)
	}
	w, err := col.Watch(ctx, q, c.format)
	if err != nil {
		t.Fatal(err)
	}
	if set != nil {
		set(col, w)
	}
	l := &eventLog{began: time.Now(), proto: c.format.Proto}
	done := make(chan error, 1)
	go func() { done <- w.Run(ctx, l) }()
	return l, func() error {
		cancel()
		return <-done
	}
}

func positionOf(t *testing.T, c *clusters) string {
	t.Helper()
	l, _, err := readList(t, c, Query{})
	if err != nil {
		t.Fatal(err)
	}
	return l.ResourceVersion
}

func expect(t *testing.T, l *eventLog, want string) {
	t.Helper()
	if got := l.since(); got != want {
		t.Errorf("got  %s\nwant %s", got, want)
	}
}

// TestBookmarks checks the times of bookmarks: 100 ms after a burst, every second during continuous events,
// every minute, and before the end. Only clients that request bookmarks get them.
func TestBookmarks(t *testing.T) {
	for _, f := range []codec.Format{{}, {Proto: true}} {
		synctest.Test(t, func(t *testing.T) {
			c := threeStores(false, f, 1, 1)
			l, stop := startWatch(t, c, Query{RV: positionOf(t, c), Bookmarks: true}, func(_ *Collection, w *Watch) {
				if w != nil {
					w.Timeout = 5 * time.Minute
				}
			})
			expect(t, l, "")
			c.stores[0].set("ns", "x", "1", 3)
			expect(t, l, "ADDED x@a")
			time.Sleep(99 * time.Millisecond)
			expect(t, l, "")
			time.Sleep(time.Millisecond)
			expect(t, l, "BOOKMARK [105 202]")
			for range 30 { // one event every 50 ms
				c.stores[1].set("ns", "y", "1", 1)
				time.Sleep(50 * time.Millisecond)
			}
			time.Sleep(100 * time.Millisecond)
			if got := strings.Count(l.since(), "BOOKMARK"); got != 2 {
				t.Errorf("%d bookmarks in 1.5 s of events", got)
			}
			time.Sleep(61 * time.Second)
			expect(t, l, "BOOKMARK [105 232]")
			time.Sleep(4 * time.Minute)
			if got := l.since(); !strings.HasSuffix(got, "BOOKMARK [105 232]") {
				t.Errorf("before the end: %s", got)
			}
			if err := stop(); err != nil {
				t.Errorf("the stream ended with %v", err)
			}
			if !slices.IsSorted(l.marks) {
				t.Errorf("%v", l.marks)
			}

			l, stop = startWatch(t, c, Query{RV: positionOf(t, c)}, nil)
			c.stores[0].set("ns", "x", "2", 3)
			time.Sleep(3 * time.Minute)
			expect(t, l, "MODIFIED x@a")
			if err := stop(); !errors.Is(err, context.Canceled) {
				t.Errorf("%v", err)
			}
		})
	}
}

// AD-06: the end of the initial events is sent when all members have sent theirs, however long one is silent.
func TestInitialEventsEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := threeStores(false, codec.Format{}, 1, 1)
		gate := make(chan struct{})
		l, stop := startWatch(t, c, Query{Initial: new(true), Match: "NotOlderThan", Bookmarks: true}, func(col *Collection, w *Watch) {
			if w != nil {
				return
			}
			req := col.Fetch
			col.Fetch = func(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
				b, err := req(ctx, m, a)
				if err == nil && m.Slot == 1 {
					b.ReadCloser = &gatedReader{b.ReadCloser, ctx, gate}
				}
				return b, err
			}
		})
		time.Sleep(time.Hour)
		expect(t, l, "ADDED a0@a")
		c.stores[0].set("ns", "x", "1", 3)
		time.Sleep(time.Minute)
		expect(t, l, "ADDED x@a")
		close(gate)
		expect(t, l, "ADDED b0@b, BOOKMARK [105 202] end")
		time.Sleep(3 * time.Minute)
		if strings.Contains(l.since(), "end") {
			t.Error("the end was reported twice")
		}
		stop()

		// A client that did not request bookmarks gets none.
		l, stop = startWatch(t, c, Query{Initial: new(true), Match: "NotOlderThan"}, nil)
		time.Sleep(time.Hour)
		if got := l.since(); strings.Contains(got, "BOOKMARK") || strings.Count(got, "ADDED") != 3 {
			t.Error(got)
		}
		stop()
	})
}

// gatedReader is a reader that blocks until the gate is open.
type gatedReader struct {
	io.ReadCloser
	ctx  context.Context
	gate chan struct{}
}

func (g *gatedReader) Read(b []byte) (int, error) {
	select {
	case <-g.gate:
		return g.ReadCloser.Read(b)
	case <-g.ctx.Done():
		return 0, g.ctx.Err()
	}
}

// AD-06: if one member's position expires, the stream ends with a single 410. This holds at the start, in the
// middle, and for an HTTP status.
func TestExpiry(t *testing.T) {
	const told = "ERROR 410 Expired"
	for _, f := range []codec.Format{{}, {Proto: true}} {
		synctest.Test(t, func(t *testing.T) {
			c := threeStores(false, f, 1, 1)
			rv := positionOf(t, c)
			c.stores[0].set("ns", "x", "1", 3)
			c.stores[0].compact()
			l, stop := startWatch(t, c, Query{RV: rv}, nil)
			expect(t, l, told)
			if err := stop(); code(err) != 410 {
				t.Errorf("%v", err)
			}
			// In the middle: a member's stream ends, and its position has expired.
			l, stop = startWatch(t, c, Query{RV: positionOf(t, c)}, nil)
			c.stores[1].set("ns", "y", "1", 3)
			expect(t, l, "ADDED y@b")
			c.stores[1].configure(true)
			c.stores[1].set("ns", "y", "2", 3)
			c.stores[1].compact()
			c.stores[1].configure(false)
			time.Sleep(time.Minute)
			expect(t, l, told)
			stop()
			// As an HTTP status: for the client's own position, and for a position that is not a vector.
			c.stores[1].refuse = errGone
			l, stop = startWatch(t, c, Query{RV: "1" + strings.Repeat("0", 9) + "1" + strings.Repeat("0", 19) + "5"}, nil)
			expect(t, l, told)
			stop()
			l, stop = startWatch(t, c, Query{RV: "77"}, nil)
			expect(t, l, told)
			stop()
			// A newer configuration, in which clusters may be missing.
			c.stores[1].refuse = nil
			rv = positionOf(t, c)
			c.epoch = 2
			l, stop = startWatch(t, c, Query{RV: rv}, nil)
			expect(t, l, told)
			stop()
			// A collection that another cluster served before is merged from one member. The resourceVersions
			// of the other cluster have no meaning here.
			c = threeStores(false, f, 1)
			l, stop = startWatch(t, c, Query{RV: "102"}, nil)
			expect(t, l, told)
			stop()
			if rv, bad := ParseResourceVersion(positionOf(t, c)); bad != nil || rv.Vector == nil {
				t.Errorf("it is at %v", rv)
			}
		})
	}
}

// AD-06: a member's stream is reopened at its position. The client sees nothing but the events. The order of
// each member's events is preserved.
func TestMemberComesBack(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := threeStores(false, codec.Format{}, 1, 1)
		var reports []string
		l, stop := startWatch(t, c, Query{RV: positionOf(t, c), Bookmarks: true}, func(_ *Collection, w *Watch) {
			if w != nil {
				w.OnMemberState = func(m Member, err error) { reports = append(reports, fmt.Sprint(m.Name, " ", err != nil)) }
			}
		})
		c.stores[1].configure(true)
		c.stores[1].set("ns", "x", "1", 3)
		c.stores[1].remove("ns", "b0", 3)
		c.stores[0].set("ns", "y", "1", 3)
		time.Sleep(time.Hour)
		if got := l.since(); strings.Contains(got, "@b") || !strings.Contains(got, "ADDED y@a") {
			t.Error(got)
		}
		c.stores[1].configure(false)
		time.Sleep(46 * time.Second)
		if got := l.since(); !strings.Contains(got, "ADDED x@b, DELETED b0@b, BOOKMARK [105 208]") {
			t.Error(got)
		}
		stop()
		if reports[0] != "b true" || reports[len(reports)-1] != "b false" {
			t.Errorf("%v", reports)
		}
		if n := len(reports); n < 100 || n > 400 {
			t.Errorf("%d attempts in an hour", n) // every 15 to 45 s
		}
	})
}

// TestMemberJoins checks that a member with a zero field starts with its existing objects. Before the first
// of them the client's position changes, so that a client that disconnects in the middle lists again.
func TestMemberJoins(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := threeStores(false, codec.Format{}, 1, 2)
		rv := Vector{Epoch: 1, Fields: []uint64{102, 0}}.String()
		l, stop := startWatch(t, c, Query{RV: rv, Bookmarks: true}, nil)
		expect(t, l, "BOOKMARK [102 1], ADDED b0@b, ADDED b1@b")
		time.Sleep(100 * time.Millisecond)
		expect(t, l, "BOOKMARK [102 204]")
		stop()
		// The stream breaks in the middle, so it is unknown what the client lacks.
		l, stop = startWatch(t, c, Query{RV: rv, Bookmarks: true}, func(col *Collection, w *Watch) {
			if w != nil {
				return
			}
			req := col.Fetch
			col.Fetch = func(ctx context.Context, m Member, a MemberRequest) (*Body, error) {
				b, err := req(ctx, m, a)
				if err == nil && m.Slot == 1 {
					b.ReadCloser = &truncatedReader{b.ReadCloser, len(encodeEvent("ADDED", c.stores[1].now["ns/b0"], false)) + 10}
				}
				return b, err
			}
		})
		expect(t, l, "BOOKMARK [102 1], ADDED b0@b, ERROR 410 Expired")
		stop()
		// A member that was left out at the start joins when it is back.
		c.skip = true
		c.stores[1].configure(true)
		l, stop = startWatch(t, c, Query{RV: rv, Bookmarks: true}, nil)
		time.Sleep(time.Hour)
		c.stores[1].configure(false)
		time.Sleep(time.Minute)
		if got := l.since(); !strings.Contains(got, "BOOKMARK [102 1], ADDED b0@b, ADDED b1@b, BOOKMARK [102 204]") {
			t.Error(got)
		}
		stop()
	})
}

// truncatedReader is a reader that fails after left bytes.
type truncatedReader struct {
	io.ReadCloser
	left int
}

func (c *truncatedReader) Read(b []byte) (int, error) {
	if c.left == 0 {
		return 0, io.ErrUnexpectedEOF
	}
	n, err := c.ReadCloser.Read(b[:min(len(b), c.left)])
	c.left -= n
	return n, err
}

// TestMemberWithoutWatchList checks that a server without initial events gets a list and a watch request. A
// client that requests initial events gets the error and falls back.
func TestMemberWithoutWatchList(t *testing.T) {
	for _, f := range []codec.Format{{}, {Proto: true}} {
		synctest.Test(t, func(t *testing.T) {
			c := threeStores(true, f, 1, 2)
			c.stores[1].old = true
			l, stop := startWatch(t, c, Query{RV: Vector{Epoch: 1, Fields: []uint64{102, 0}}.String(), Bookmarks: true}, nil)
			expect(t, l, "BOOKMARK [102 1], ADDED b0@b, ADDED b1@b")
			c.stores[1].set("ns", "a0", "shadow", 1)
			c.stores[1].set("ns", "b1", "2", 1)
			expect(t, l, "MODIFIED b1@b")
			c.stores[0].remove("ns", "a0", 1)
			expect(t, l, "DELETED a0@a, ADDED a0@b")
			time.Sleep(time.Second)
			expect(t, l, "BOOKMARK [103 206]")
			stop()
			_, err := c.collection(&instance{}).Watch(t.Context(), Query{Watch: true, Initial: new(true), Match: "NotOlderThan"}, f)
			if code(err) != 422 {
				t.Errorf("%v", err)
			}
		})
	}
}

// ADP-12: AD-07: the client sees the earliest member's copy. A hidden copy causes no events, and replaces the
// shown one when that is deleted.
func TestCopiesInAWatch(t *testing.T) {
	for _, f := range []codec.Format{{}, {Proto: true}} {
		synctest.Test(t, func(t *testing.T) {
			c := threeStores(true, f, 1, 1, 1)
			c.stores[1].set("ns", "a0", "shadow", 1)
			c.stores[2].set("ns", "a0", "shadow", 1)
			l, stop := startWatch(t, c, Query{RV: positionOf(t, c)}, nil)
			c.stores[1].set("ns", "a0", "shadow, changed", 1)
			expect(t, l, "")
			c.stores[2].remove("ns", "a0", 1)
			expect(t, l, "") // the shown copy stays
			c.stores[0].remove("ns", "a0", 1)
			expect(t, l, "DELETED a0@a, ADDED a0@b")
			c.stores[1].set("ns", "a0", "again", 1)
			expect(t, l, "MODIFIED a0@b")
			c.stores[0].set("ns", "a0", "back", 1)
			expect(t, l, "ADDED a0@a")
			// The next member is down when the shown copy is deleted. Its copy is shown when it is back.
			c.stores[1].configure(true)
			c.stores[0].remove("ns", "a0", 1)
			time.Sleep(time.Minute)
			expect(t, l, "DELETED a0@a")
			c.stores[1].set("ns", "a0", "while it was away", 1)
			c.stores[1].configure(false)
			time.Sleep(2 * time.Minute)
			if got := l.since(); !strings.HasSuffix(got, "a0@b") {
				t.Error(got)
			}
			c.stores[1].remove("ns", "a0", 1)
			expect(t, l, "DELETED a0@b")
			stop()
		})
	}
}

// TestNoPositionBetweenCopies checks that a client has no valid position between the DELETED of one copy and
// the ADDED of the next. No bookmark is sent, not even the last one, and a client cannot resume at the
// resourceVersion of the DELETED.
func TestNoPositionBetweenCopies(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := threeStores(true, codec.Format{}, 1, 1)
		c.stores[1].set("ns", "a0", "shadow", 1)
		rv := positionOf(t, c)
		l, stop := startWatch(t, c, Query{RV: rv, Bookmarks: true}, func(_ *Collection, w *Watch) {
			if w != nil {
				w.Timeout = time.Hour
			}
		})
		synctest.Wait()
		c.stores[1].configure(true)
		c.stores[0].set("ns", "x", "1", 10_000_000_000)
		c.stores[0].remove("ns", "a0", 1)
		time.Sleep(time.Hour)
		expect(t, l, "ADDED x@a, DELETED a0@a")
		if err := stop(); err != nil {
			t.Error(err)
		}
		if _, refusal := c.collection(&instance{}).planner().Plan(Query{Watch: true, RV: "10000000103"}); refusal == nil || refusal.Code != 410 {
			t.Errorf("the DELETED event is a valid position: %v", refusal)
		}
		// A client that resumes at its last position gets the copy.
		c.stores[1].configure(false)
		l, stop = startWatch(t, c, Query{RV: rv, Bookmarks: true}, nil)
		time.Sleep(time.Second)
		if got := l.since(); !strings.Contains(got, "ADDED a0@b, BOOKMARK") {
			t.Error(got)
		}
		stop()
	})
}

// TestDrain checks that a stream ends cleanly when the adapter stops.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := threeStores(false, codec.Format{}, 1, 1)
		drain := make(chan struct{})
		l, stop := startWatch(t, c, Query{Bookmarks: true}, func(_ *Collection, w *Watch) {
			if w != nil {
				w.Drain = drain
			}
		})
		synctest.Wait()
		close(drain)
		synctest.Wait()
		if got := l.since(); !strings.HasSuffix(got, "BOOKMARK [102 202]") {
			t.Error(got)
		}
		if err := stop(); err != nil {
			t.Error(err)
		}
	})
}

// TestWatchAhead checks that a watch at a position of a newer configuration is an HTTP error, after which
// clients retry.
func TestWatchAhead(t *testing.T) {
	c := threeStores(false, codec.Format{}, 1)
	_, err := c.collection(&instance{}).Watch(t.Context(), Query{Watch: true, RV: Vector{Epoch: 9, Fields: []uint64{5}}.String()}, codec.Format{})
	switch s, ok := errors.AsType[*codec.Status](err); {
	case !ok:
		t.Errorf("ok is false; %v", err)
	case s.Code != 504:
		t.Errorf("s.Code = %v, want 504", s.Code)
	case s.Cause != codec.CauseTooLarge:
		t.Errorf("s.Cause = %q, want %q", s.Cause, codec.CauseTooLarge)
	case s.RetryAfter != 1:
		t.Errorf("s.RetryAfter = %v, want 1", s.RetryAfter)
	}
}

// DS-04: a cancelled stream leaves no goroutine behind: a bubble ends only when all its goroutines have
// ended.
func TestCancelledWatches(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := threeStores(true, codec.Format{}, 3, 3, 3)
		rv := positionOf(t, c)
		for i := range 100 {
			_, stop := startWatch(t, c, Query{RV: []string{"", rv}[i%2]}, nil)
			if i%3 == 0 {
				synctest.Wait()
			}
			stop()
		}
		w, err := c.collection(&instance{}).Watch(t.Context(), Query{Watch: true}, codec.Format{})
		if err != nil {
			t.Fatal(err)
		}
		w.Close()
	})
}
