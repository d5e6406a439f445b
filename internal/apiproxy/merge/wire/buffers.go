package wire

import "sync"

// Buffers is a pool of buffers that streams borrow while data passes through them. Of hundreds of open
// watches, few have an event at the same time. The zero value is ready to use. A nil Buffers also lends, but
// keeps nothing that is returned. It is safe for concurrent use.
type Buffers struct{ pool sync.Pool }

// mostLent is the capacity of the largest buffer that the pool keeps.
const mostLent = 2 * batchWindow

// Lend returns a buffer of at least 16 KiB; its length is its capacity.
func (b *Buffers) Lend() []byte {
	if b != nil {
		if lent, ok := b.pool.Get().(*[]byte); ok {
			return *lent
		}
	}
	return make([]byte, batchWindow)
}

// Back returns a buffer to the pool. The caller must not use it afterwards.
func (b *Buffers) Back(lent []byte) {
	if b != nil && cap(lent) >= batchWindow && cap(lent) <= mostLent {
		lent = lent[:cap(lent)]
		b.pool.Put(&lent)
	}
}
