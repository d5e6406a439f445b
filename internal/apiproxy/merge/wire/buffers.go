package wire

import "sync"

// Buffers lends memory to streams while something is on its way through them: of
// hundreds of watches that are open, few have an event at the same time. The zero
// value lends; nil does, too, but nothing comes back. It may be used by several
// goroutines.
type Buffers struct{ pool sync.Pool }

// mostLent is the largest that is kept for others.
const mostLent = 2 * batchWindow

// Lend returns a buffer of at least 16 KiB, which is its capacity.
func (b *Buffers) Lend() []byte {
	if b != nil {
		if lent, ok := b.pool.Get().(*[]byte); ok {
			return *lent
		}
	}
	return make([]byte, batchWindow)
}

// Back takes a buffer that nobody uses any more.
func (b *Buffers) Back(lent []byte) {
	if b != nil && cap(lent) >= batchWindow && cap(lent) <= mostLent {
		lent = lent[:cap(lent)]
		b.pool.Put(&lent)
	}
}
