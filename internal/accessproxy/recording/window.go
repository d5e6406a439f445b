package recording

import (
	"context"
	"math"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/recording/frames"
)

// Marks are made this far apart, so there are few of them.
const (
	markBytes = 16 << 10
	markAge   = 50 * time.Millisecond
)

// A window bounds what the client has seen and the sink has not acknowledged. It counts bytes of the stream, and converts
// acknowledgements, which count bytes of the recording.
type window struct {
	now func() time.Time

	mu      sync.Mutex
	shown   int64         // bytes of the stream that were passed on
	acked   int64         // of them, those whose recording is acknowledged
	marks   []mark        // what was passed on after acked, oldest first
	last    int64         // the last acknowledgement
	flushes int           // how often flush was called
	flushed int64         // bytes of the recording at the last flush
	settled int           // how often marks were acknowledged
	holding bool          // output waits
	lost    error         // the recording is lost
	changed chan struct{} // closed when acked, holding or lost changes
}

// A place is where the recording contains bytes of the stream: in its first written bytes, or, if those are notYet, in what the next flush
// after the given number of flushes writes.
type place struct {
	written int64
	flushes int
}

const notYet = math.MaxInt64

// A mark says that the first shown bytes of the stream are in the first written bytes of the recording.
type mark struct {
	written, from, shown int64
	since                time.Time // when the first byte after the previous mark was passed on
}

func newWindow(now func() time.Time) *window {
	return &window{now: now, changed: make(chan struct{})}
}

// pass waits until n more bytes of the stream, which the recording contains at the given place, may be passed on. Input also waits while
// output waits, but only for the next acknowledgement: a program that prints without end must hear Ctrl-C. It fails if the recording is
// lost, or if ctx ends while it waits.
func (w *window) pass(ctx context.Context, from frames.Side, n int64, at place) error {
	if from == frames.Server {
		defer w.hold(false)
	}
	for began := -1; ; {
		w.mu.Lock()
		if began < 0 {
			began = w.settled
		}
		now := w.now()
		full := w.shown-w.acked+n > windowBytes || len(w.marks) > 0 && now.Sub(w.marks[0].since) >= windowAge
		full = full || from == frames.Client && w.holding && w.settled == began
		if w.lost != nil || !full {
			if w.lost == nil && n > 0 {
				w.mark(n, at, now)
			}
			lost := w.lost
			w.mu.Unlock()
			return lost
		}
		changed := w.changed
		w.holding = w.holding || from == frames.Server // input that waits need not know
		w.mu.Unlock()
		select {
		case <-changed:
		case <-ctx.Done():
			return ctx.Err()
		}
	}
}

// hold sets whether output waits.
func (w *window) hold(waits bool) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.holding != waits {
		w.holding = waits
		w.notify()
	}
}

// mark notes that n bytes are passed on. The caller must hold w.mu.
func (w *window) mark(n int64, at place, now time.Time) {
	w.shown += n
	written := at.written
	if written == notYet && w.flushes > at.flushes {
		written = w.flushed
	}
	if written <= w.last { // acknowledged already
		w.acked, w.marks = w.shown, nil
		return
	}
	if k := len(w.marks); k > 0 && w.shown-w.marks[k-1].from <= markBytes && now.Sub(w.marks[k-1].since) < markAge {
		w.marks[k-1].written, w.marks[k-1].shown = written, w.shown
		return
	}
	w.marks = append(w.marks, mark{written: written, from: w.shown - n, shown: w.shown, since: now})
}

// flush notes that all bytes so far that were not recorded yet are in the first written bytes of the recording.
func (w *window) flush(written int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.flushed = written
	w.flushes++
	for i := range w.marks {
		if w.marks[i].written == notYet {
			w.marks[i].written = written
		}
	}
	w.settle()
}

// ack notes that the sink has received the first n bytes of the recording.
func (w *window) ack(n int64) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.last = max(w.last, n)
	w.settle()
}

// settle removes the marks that are acknowledged. The caller must hold w.mu.
func (w *window) settle() {
	done := 0
	for done < len(w.marks) && w.marks[done].written <= w.last {
		w.acked = w.marks[done].shown
		done++
	}
	if done > 0 {
		w.settled++
		w.marks = append(w.marks[:0], w.marks[done:]...)
		w.notify()
	}
}

// lose notes that the recording is lost. The first error stays.
func (w *window) lose(err error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	if w.lost == nil {
		w.lost = err
		w.notify()
	}
}

func (w *window) err() error {
	w.mu.Lock()
	defer w.mu.Unlock()
	return w.lost
}

func (w *window) notify() {
	close(w.changed)
	w.changed = make(chan struct{})
}
