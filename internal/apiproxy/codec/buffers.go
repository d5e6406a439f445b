package codec

import "sync"

// BufferPool is a pool of buffers that streams borrow while data passes through them. Of hundreds of open
// watches, few have an event at the same time. The zero value is ready to use. A nil BufferPool also lends, but
// keeps nothing that is returned. It is safe for concurrent use.
type BufferPool struct{ pool sync.Pool }

// maxPooled is the capacity of the largest buffer that the pool keeps.
const maxPooled = 2 * batchWindow

// Get returns a buffer of at least 16 KiB; its length is its capacity.
func (b *BufferPool) Get() []byte {
	if b != nil {
		if buf, ok := b.pool.Get().(*[]byte); ok {
			return *buf
		}
	}
	return make([]byte, batchWindow)
}

// Release returns a buffer to the pool. The caller must not use it afterwards.
func (b *BufferPool) Release(buf []byte) {
	if b != nil && cap(buf) >= batchWindow && cap(buf) <= maxPooled {
		buf = buf[:cap(buf)]
		b.pool.Put(&buf)
	}
}
