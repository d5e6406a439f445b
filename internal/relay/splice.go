package relay

import (
	"errors"
	"io"
	"net"
	"sync"
	"time"
)

// Each direction of an idle connection has a small buffer. A direction with much data borrows a
// large buffer and returns it when the connection becomes idle.
const (
	smallBuffer  = 2 << 10
	largeBuffer  = 64 << 10
	bulkIdleTime = time.Second
)

// bufferPool is a pool of large buffers.
type bufferPool struct{ pool sync.Pool }

func (l *bufferPool) get() *[largeBuffer]byte {
	if b, ok := l.pool.Get().(*[largeBuffer]byte); ok {
		return b
	}
	return new([largeBuffer]byte)
}

// halfCloser is a connection that can close its write side and continue to read.
type halfCloser interface{ CloseWrite() error }

// splice copies bytes in both directions until both sides have ended or one has failed, and then
// closes both. It forwards the end of one side as a half-close. It returns the number of bytes
// copied from a to b and from b to a.
func (l *bufferPool) splice(a, b net.Conn) (there, back int64) {
	var wg sync.WaitGroup
	var once sync.Once
	both := func() { once.Do(func() { a.Close(); b.Close() }) }
	defer both()
	carry := func(to, from net.Conn, n *int64) {
		var err error
		if *n, err = l.copy(to, from); err != nil {
			both() // end the other direction too: half a stream is worse than none
			return
		}
		if h, ok := to.(halfCloser); !ok || h.CloseWrite() != nil {
			both()
		}
	}
	wg.Go(func() { carry(a, b, &back) })
	carry(b, a, &there)
	wg.Wait()
	return there, back
}

// copy is like io.Copy, with a small buffer and large buffers on demand.
func (l *bufferPool) copy(to io.Writer, from net.Conn) (n int64, err error) {
	small := make([]byte, smallBuffer)
	for {
		m, err := from.Read(small)
		if m > 0 {
			n += int64(m)
			if _, err := to.Write(small[:m]); err != nil {
				return n, err
			}
		}
		if err == nil && m == len(small) {
			var k int64
			k, err = l.copyBulk(to, from)
			n += k
		}
		if errors.Is(err, io.EOF) {
			return n, nil
		}
		if err != nil {
			return n, err
		}
	}
}

// copyBulk copies with a large buffer until no data arrives for bulkIdleTime.
func (l *bufferPool) copyBulk(to io.Writer, from net.Conn) (n int64, err error) {
	buf := l.get()
	defer l.pool.Put(buf)
	defer func() {
		if cerr := from.SetReadDeadline(time.Time{}); err == nil {
			err = cerr
		}
	}()
	for came := true; came; {
		came = false
		// Set one deadline for many reads, because each call costs a lock and a timer.
		if err := from.SetReadDeadline(time.Now().Add(bulkIdleTime)); err != nil {
			return n, err
		}
		for {
			m, err := from.Read(buf[:])
			if m > 0 {
				came = true
				n += int64(m)
				if _, err := to.Write(buf[:m]); err != nil {
					return n, err
				}
			}
			if timeout, is := errors.AsType[net.Error](err); is && timeout.Timeout() {
				break
			}
			if err != nil {
				return n, err
			}
		}
	}
	return n, nil
}
