package merge

import (
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
)

// TestExpiredStatus checks the callbacks for metrics: the events of each member, each bookmark and its reason,
// and the member whose 410 ends a stream.
func TestExpiredStatus(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := threeStores(false, codec.Format{}, 1, 1)
		events, marks, expired := map[string]int{}, []string{}, ""
		watched := func(q Query) (*eventLog, func() error) {
			clear(events)
			marks, expired = nil, ""
			return startWatch(t, c, q, func(_ *Collection, w *Watch) {
				if w == nil {
					return
				}
				w.Timeout = 10 * time.Minute
				w.OnEvents = func(m Member, n int) { events[m.Name] += n }
				w.OnBookmark = func(why apiproxy.BookmarkReason) { marks = append(marks, string(why)) }
				w.OnExpired = func(m Member) { expired += m.Name }
			})
		}
		l, stop := watched(Query{Initial: new(true), Match: "NotOlderThan", Bookmarks: true})
		if got := l.since(); !strings.HasSuffix(got, "BOOKMARK [102 202] end") {
			t.Error(got)
		}
		time.Sleep(time.Second)
		for range 30 { // one event every 50 ms
			c.stores[1].set("ns", "y", "1", 1)
			time.Sleep(50 * time.Millisecond)
		}
		time.Sleep(20 * time.Minute)
		stop()
		marks = slices.Compact(marks)
		if got := strings.Join(marks, " "); got != "initial busy burst idle end" && got != "initial burst busy burst idle end" {
			t.Errorf("bookmarks: %s", got)
		}
		// The member's bookmarks count too, at least the one that ends its initial events.
		switch {
		case events["b"] < 32:
			t.Errorf(`events: events["b"] = %v, want at least 32`, events["b"])
		case events["a"] < 2:
			t.Errorf(`events: events["a"] = %v, want at least 2`, events["a"])
		case expired != "":
			t.Errorf("events: expired = %q, want none", expired)
		}

		rv := positionOf(t, c)
		c.stores[0].set("ns", "x", "1", 3)
		c.stores[0].compact()
		l, stop = watched(Query{RV: rv})
		expect(t, l, "ERROR 410 Expired")
		if stop(); expired != "a" {
			t.Errorf("expiry by an event: %q", expired)
		}
		rv = positionOf(t, c)
		c.stores[1].refuse = errGone
		_, stop = watched(Query{RV: rv})
		synctest.Wait()
		if stop(); expired != "b" {
			t.Errorf("by a status, %q", expired)
		}
		c.stores[1].refuse = nil
		_, stop = watched(Query{RV: "77"})
		synctest.Wait()
		if stop(); expired != "" {
			t.Errorf("expiry by an unknown position: %q", expired)
		}
	})
}
