package broadcast_test

import (
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"

	"github.com/tailplane/tailplane/internal/util/broadcast"
)

func isClosed(c <-chan struct{}) bool {
	select {
	case <-c:
		return true
	default:
		return false
	}
}

func TestChange(t *testing.T) {
	var c broadcast.Change
	c.Notify() // no reader has called Next yet
	first, same := c.Next(), c.Next()
	if first != same {
		t.Error("two calls of Next without a change return different channels")
	}
	if isClosed(first) {
		t.Error("the channel is closed before the change")
	}
	c.Notify()
	if !isClosed(first) {
		t.Error("the channel is open after the change")
	}
	if isClosed(c.Next()) {
		t.Error("the channel of the next change is closed before that change")
	}
}

func TestAlready(t *testing.T) {
	if !isClosed(broadcast.Closed()) {
		t.Error("Already returns a channel that is open")
	}
}

// No reader misses the last change, in any interleaving of readers and the writer.
func TestChangeIsNeverMissed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const last = 1000
		var c broadcast.Change
		var value atomic.Int64
		var readers sync.WaitGroup
		for range 8 {
			readers.Go(func() {
				for {
					changed := c.Next()
					if value.Load() == last {
						return
					}
					<-changed // a missed change is a deadlock, which synctest reports
				}
			})
		}
		for range last {
			value.Add(1)
			c.Notify()
		}
		readers.Wait()
	})
}
