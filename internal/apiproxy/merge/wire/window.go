package wire

import (
	"errors"
	"fmt"
	"io"
)

// Sizes of a window. It grows beyond the first for what must be kept, and when
// reads fill it; it is cut back when what was kept is gone.
const (
	listWindow  = 32 << 10
	longWindow  = 128 << 10 // of a list that is long: much is read, and written, at once
	eventWindow = 1 << 10   // of a watch between two events
	batchWindow = 16 << 10  // events are read in batches of about this many bytes when many wait
	mostKept    = 16 << 20  // of an item before its name, of an event

	writeAt  = 32 << 10 // so much of what was taken is written without waiting for more
	leastGap = 16 << 10 // room for less than this is not worth a read
)

var errKept = fmt.Errorf("an item or event of more than %d bytes", mostKept)

// A mode is what becomes of bytes that were looked at when a window needs room.
type mode uint8

const (
	hold mode = iota // they are kept
	pass             // they go to out
	drop             // they are gone
)

// A window is the part of a stream that is in memory:
//
//	   from     taken    mark      pos          end
//	----|---------|--------|--------|------------|----
//	      on its    what     looked   not looked
//	      way to    stands   at       at
//	      out       between
//
// What is between from and taken is written later, together with what comes
// behind it, as a list is mostly written as it came. Who takes nothing to write
// later has from and taken where mark is.
type window struct {
	r     io.Reader // nil: all there is, is in buf
	buf   []byte
	from  int
	taken int
	mark  int
	pos   int
	end   int
	mode  mode
	out   io.Writer
	err   error

	// idle is called before a read, which may block: what lies before mark may
	// be overwritten after it.
	idle func() error
	most int // how large reads that fill the window make it
	full bool

	// Of a watch: buf is small until something comes, and small again behind it.
	small   []byte
	buffers *Buffers

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
	if w.mode != hold || w.taken-w.from >= writeAt || len(w.buf)-(w.end-w.from) < leastGap {
		if err := w.release(); err != nil {
			return err
		}
	}
	kept := w.end - w.from
	switch {
	case w.small != nil && kept == 0 && !w.full:
		w.replace(w.small)
	case kept == len(w.buf) || w.full && len(w.buf) < w.most:
		if len(w.buf) >= mostKept {
			w.err = errKept
			return w.err
		}
		if len(w.buf) < w.most && w.small != nil {
			w.replace(w.buffers.Lend())
		} else {
			w.resize(2 * len(w.buf))
		}
	case len(w.buf) > max(w.most, 2*listWindow) && kept < listWindow/2:
		w.resize(listWindow)
	case kept == 0 || len(w.buf)-w.end < leastGap:
		w.end = copy(w.buf, w.buf[w.from:w.end])
		w.shift()
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

func (w *window) resize(n int) { w.replace(make([]byte, n)) }

// replace goes on in another buffer.
func (w *window) replace(b []byte) {
	w.end = copy(b, w.buf[w.from:w.end])
	if w.small != nil {
		w.buffers.Back(w.buf)
	}
	w.buf = b
	w.shift()
}

// shift counts from where from is now.
func (w *window) shift() {
	w.pos -= w.from
	w.mark -= w.from
	w.taken -= w.from
	w.from = 0
}

// release lets go of what was looked at, or at least of what was taken.
func (w *window) release() error {
	upTo := w.taken
	if w.mode == pass {
		upTo = w.pos
	}
	if upTo > w.from {
		if _, err := w.out.Write(w.buf[w.from:upTo]); err != nil {
			w.err = &writeError{err}
			return w.err
		}
	}
	w.from = upTo
	if w.mode != hold {
		w.from, w.taken, w.mark = w.pos, w.pos, w.pos
	}
	return nil
}

// keep begins to hold at the next byte; what was looked at before is gone.
func (w *window) keep() {
	w.from, w.taken, w.mark = w.pos, w.pos, w.pos
	w.mode = hold
}

// next begins to hold at the next byte, behind what was taken and what stands
// between them.
func (w *window) next() {
	w.mark = w.pos
	w.mode = hold
}

// to lets go of what is held, and of what comes, to out; nil drops it.
func (w *window) to(out io.Writer) {
	w.from, w.taken = w.mark, w.mark
	w.mode, w.out = pass, out
	if out == nil {
		w.mode = drop
	}
}

// splice takes what is held, and what comes, to out. With between so is what
// stands between it and what was taken before.
func (w *window) splice(out io.Writer, between bool) error {
	if !between && w.mark > w.taken {
		if err := w.release(); err != nil {
			return err
		}
		w.from, w.taken = w.mark, w.mark
	}
	w.mode, w.out = pass, out
	return nil
}

// spliced ends what was taken here. It is written when there is more of it.
func (w *window) spliced() {
	w.mode = hold
	w.taken, w.mark = w.pos, w.pos
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
