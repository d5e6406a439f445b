package audit_test

import (
	"testing"
	"testing/synctest"
	"time"
)

// Queue does not wait for the sink, which receives the entries of some milliseconds in order. While half of the queue is in
// use, Queue waits like Write, so that no entry is lost.
func TestQueue(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{hold: make(chan struct{})}
		c := config(t)
		c.Path, c.Writer, c.Delay, c.Queue = "", s, 100*time.Millisecond, 100
		l := open(t, c)
		began := time.Now()
		for i, want := range []struct{ entries, waited int }{{50, 0}, {1, 100}, {10, 100}} {
			for range want.entries {
				if err := l.Queue(entry(i)); err != nil {
					t.Fatal(err)
				}
			}
			if waited := time.Since(began); waited != time.Duration(want.waited)*time.Millisecond {
				t.Errorf("after step %d the callers have waited %v, want %d ms", i, waited, want.waited)
			}
		}
		close(s.hold)
		time.Sleep(time.Second)
		if st := l.Stats(); st.Waiting != 0 {
			t.Errorf("%d entries wait", st.Waiting)
		}
		if err := l.Queue(entry(100)); err != nil {
			t.Error(err)
		}
		if st := l.Stats(); st.Waiting != 1 {
			t.Errorf("%d entries wait, want the last one", st.Waiting)
		}
		time.Sleep(20 * time.Millisecond)
		if st := l.Stats(); st.Waiting != 0 {
			t.Errorf("%d entries still wait", st.Waiting)
		}
		closeLog(t, l)
		if r := verify(t, pinned(c), s.source()); !r.OK() || r.Entries != 62 {
			t.Errorf("%d entries, want 62: %+v", r.Entries, r)
		}
	})
}
