package wire

import (
	"errors"
	"fmt"
	"io"
)

// Sizes of a window. It grows beyond the first for what must be kept, and is
// cut back when that is gone.
const (
	listWindow  = 32 << 10
	eventWindow = 4 << 10
	batchWindow = 16 << 10 // events are read in batches of about this many bytes when many wait
	mostKept    = 16 << 20 // of an item before its name, of an event
)

var errKept = fmt.Errorf("an item or event of more than %d bytes", mostKept)

// A mode is what becomes of bytes that were looked at when a window needs room.
type mode uint8

const (
	hold mode = iota // they are kept
	pass             // they go to out
	drop             // they are gone
)

// A window is the part of a stream that is in memory: what lies between mark
// and pos was looked at and is kept, or on its way to out; what lies between
// pos and end was read and not looked at.
type window struct {
	r    io.Reader // nil: all there is, is in buf
	buf  []byte
	mark int
	pos  int
	end  int
	mode mode
	out  io.Writer
	err  error

	// idle is called before a read, which may block: what lies before mark may
	// be overwritten after it.
	idle func() error
	// batch lets the window grow to batchWindow when reads fill it.
	batch bool
	full  bool

	depth int // of the JSON containers that are open
	kinds []uint64
}

// view is a window over bytes that are all there.
func view(b []byte) window { return window{buf: b, end: len(b)} }

// more reads on. At the end of the stream its error is io.EOF.
func (w *window) more() error {
	if w.err != nil {
		return w.err
	}
	if w.r == nil {
		return io.EOF
	}
	if w.idle != nil {
		if err := w.idle(); err != nil {
			w.err = err
			return err
		}
	}
	if w.mode != hold {
		if err := w.release(); err != nil {
			return err
		}
	}
	kept := w.end - w.mark
	switch {
	case kept == len(w.buf) || w.batch && w.full && len(w.buf) < batchWindow:
		if len(w.buf) >= mostKept {
			w.err = errKept
			return w.err
		}
		w.resize(2 * len(w.buf))
	case len(w.buf) > 2*listWindow && kept < listWindow/2:
		w.resize(listWindow)
	default:
		w.end = copy(w.buf, w.buf[w.mark:w.end])
		w.pos -= w.mark
		w.mark = 0
	}
	for {
		n, err := w.r.Read(w.buf[w.end:])
		w.full = w.end+n == len(w.buf)
		w.end += n
		if err != nil {
			w.err = err
			if n == 0 {
				return err
			}
		}
		if n > 0 {
			return nil
		}
	}
}

func (w *window) resize(n int) {
	b := make([]byte, n)
	w.end = copy(b, w.buf[w.mark:w.end])
	w.pos -= w.mark
	w.mark = 0
	w.buf = b
}

// release lets go of what was looked at.
func (w *window) release() error {
	if w.mode == pass && w.pos > w.mark {
		if _, err := w.out.Write(w.buf[w.mark:w.pos]); err != nil {
			w.err = &writeError{err}
			return w.err
		}
	}
	w.mark = w.pos
	return nil
}

// keep begins to hold at the next byte; what was looked at before is gone.
func (w *window) keep() {
	w.mark = w.pos
	w.mode = hold
}

// to lets go of what is held, and of what comes, to out; nil drops it.
func (w *window) to(out io.Writer) {
	w.mode, w.out = pass, out
	if out == nil {
		w.mode = drop
	}
}

// A writeError is not the member's fault.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// A span is a part of what is held, counted from mark, which moves.
type span struct{ from, to int }

func (w *window) at() int            { return w.pos - w.mark }
func (w *window) get(s span) []byte  { return w.buf[w.mark+s.from : w.mark+s.to] }
func (w *window) since(at int) span  { return span{at, w.at()} }
func (w *window) ahead(n int) bool   { return w.end-w.pos >= n }
func (w *window) bytes(n int) []byte { return w.buf[w.pos : w.pos+n] }

// fill makes sure that n bytes are ahead. Nothing but hold may be on.
func (w *window) fill(n int) error {
	for !w.ahead(n) {
		if err := w.more(); err != nil {
			return short(err)
		}
	}
	return nil
}

// advance moves over n bytes.
func (w *window) advance(n uint64) error {
	for {
		if have := uint64(w.end - w.pos); have >= n {
			w.pos += int(n)
			return nil
		}
		n -= uint64(w.end - w.pos)
		w.pos = w.end
		if err := w.more(); err != nil {
			return short(err)
		}
	}
}

// short is the error of a stream that ends in the middle of something.
func short(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
