package codec

import (
	"errors"
	"fmt"
	"io"
)

// Sizes of a window in bytes. A window grows beyond its first size if it must hold more, or if reads fill it.
// It shrinks when it no longer holds those bytes.
const (
	listWindow  = 32 << 10
	longWindow  = 128 << 10 // of a long list, for larger reads and writes
	eventWindow = 1 << 10   // of a watch between two events
	batchWindow = 16 << 10  // the batch size for events, if many wait
	maxBuffered = 16 << 20  // of an item up to its name, or of an event

	writeAt  = 32 << 10 // write taken bytes without waiting for more if there are this many
	leastGap = 16 << 10 // release or move bytes if there is less room than this for a read
)

var errTooLarge = fmt.Errorf("an item or event has more than %d bytes", maxBuffered)

// mode is how a window treats the bytes that were read when it needs room.
type mode uint8

const (
	hold mode = iota // keep them
	pass             // write them to out
	drop             // discard them
)

// window is the buffered part of a stream:
//
//	   from     taken    mark      pos          end
//	----|---------|--------|--------|------------|----
//	      pending   between  read     not read
//	      for out   items
//
// The bytes between from and taken are written later, together with the bytes after them, because a list is mostly
// written as it arrives. In a window without pending bytes, from and taken equal mark.
type window struct {
	r     io.Reader // nil: buf has all the input
	buf   []byte
	from  int
	taken int
	mark  int
	pos   int
	end   int
	mode  mode
	out   io.Writer
	err   error // of r, idle or out, which more returns again
	bad   error // the first error of a reading function; after it, they return zero values

	// idle is called before a read, which may block. The read may overwrite the bytes before mark.
	idle func() error
	most int // the size up to which full reads grow the buffer
	full bool

	// For a watch: buf is small while no data arrives, and a borrowed buffer otherwise.
	small   []byte
	buffers *BufferPool

	depth int // the number of open JSON containers
	kinds []uint64
}

// view returns a window of complete input.
func view(b []byte) window { return window{buf: b, end: len(b)} }

// more reads more input. Its error is io.EOF at the end of the stream.
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
		if w.release(); w.bad != nil {
			return w.bad
		}
	}
	unread := w.end - w.from
	switch {
	case w.small != nil && unread == 0 && !w.full:
		w.replace(w.small)
	case unread == len(w.buf) || w.full && len(w.buf) < w.most:
		if len(w.buf) >= maxBuffered {
			w.err = errTooLarge
			return w.err
		}
		if len(w.buf) < w.most && w.small != nil {
			w.replace(w.buffers.Get())
		} else {
			w.resize(2 * len(w.buf))
		}
	case len(w.buf) > max(w.most, 2*listWindow) && unread < listWindow/2:
		w.resize(listWindow)
	case unread == 0 || len(w.buf)-w.end < leastGap:
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

// replace moves the held bytes to another buffer.
func (w *window) replace(b []byte) {
	w.end = copy(b, w.buf[w.from:w.end])
	if w.small != nil {
		w.buffers.Release(w.buf)
	}
	w.buf = b
	w.shift()
}

// shift rebases the offsets so that from is 0.
func (w *window) shift() {
	w.pos -= w.from
	w.mark -= w.from
	w.taken -= w.from
	w.from = 0
}

// release writes or discards the bytes that were read. In mode hold it writes only the taken bytes.
func (w *window) release() {
	if w.bad != nil {
		return
	}
	upTo := w.taken
	if w.mode == pass {
		upTo = w.pos
	}
	if upTo > w.from {
		if w.write(w.out, w.buf[w.from:upTo]); w.bad != nil {
			return
		}
	}
	w.from = upTo
	if w.mode != hold {
		w.from, w.taken, w.mark = w.pos, w.pos, w.pos
	}
}

// write writes bytes to out.
func (w *window) write(out io.Writer, b []byte) {
	if w.bad != nil {
		return
	}
	if _, err := out.Write(b); err != nil {
		w.err = &writeError{err}
		w.fail(w.err)
	}
}

// fail records the first error; nil is none.
func (w *window) fail(err error) {
	if w.bad == nil {
		w.bad = err
	}
}

// need reads more input. The end of the stream is an error.
func (w *window) need() { w.fail(short(w.more())) }

// keep discards everything that was read and holds from the next byte.
func (w *window) keep() {
	w.from, w.taken, w.mark = w.pos, w.pos, w.pos
	w.mode = hold
}

// next holds from the next byte. The taken bytes, and the bytes between them and mark, remain pending.
func (w *window) next() {
	w.mark = w.pos
	w.mode = hold
}

// to sends the held bytes and the following ones to out. A nil out discards them.
func (w *window) to(out io.Writer) {
	w.from, w.taken = w.mark, w.mark
	w.mode, w.out = pass, out
	if out == nil {
		w.mode = drop
	}
}

// splice sends the held bytes and the following ones to out. between includes the bytes between the
// previously taken part and mark.
func (w *window) splice(out io.Writer, between bool) {
	if !between && w.mark > w.taken {
		w.release()
		w.from, w.taken = w.mark, w.mark
	}
	w.mode, w.out = pass, out
}

// spliced ends a splice. The taken bytes are written later, together with more.
func (w *window) spliced() {
	w.mode = hold
	w.taken, w.mark = w.pos, w.pos
}

// writeError is an error of the output, not of the member.
type writeError struct{ err error }

func (e *writeError) Error() string { return e.err.Error() }
func (e *writeError) Unwrap() error { return e.err }

// span is a range of held bytes, relative to mark, which moves.
type span struct{ from, to int }

func (w *window) at() int            { return w.pos - w.mark }
func (w *window) get(s span) []byte  { return w.buf[w.mark+s.from : w.mark+s.to] }
func (w *window) since(at int) span  { return span{at, w.at()} }
func (w *window) ahead(n int) bool   { return w.end-w.pos >= n }
func (w *window) bytes(n int) []byte { return w.buf[w.pos : w.pos+n] }

// fill reads until n bytes are available. It returns false after an error. The window must be in mode hold.
func (w *window) fill(n int) bool {
	for w.bad == nil && !w.ahead(n) {
		w.need()
	}
	return w.bad == nil
}

// advance skips n bytes.
func (w *window) advance(n uint64) {
	for w.bad == nil {
		have := uint64(w.end - w.pos)
		if have >= n {
			w.pos += int(n)
			return
		}
		n -= have
		w.pos = w.end
		w.need()
	}
}

// short converts io.EOF to io.ErrUnexpectedEOF, for a stream that ends within a value.
func short(err error) error {
	if errors.Is(err, io.EOF) {
		return io.ErrUnexpectedEOF
	}
	return err
}
