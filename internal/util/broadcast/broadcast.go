// Package broadcast notifies any number of goroutines about a change. It imports the standard
// library only.
package broadcast

import "sync"

// A Change announces changes of a value that is stored elsewhere. Readers must get the channel
// first, then read the value, then wait. A change between these steps closes the channel, so no
// change is missed.
//
// Several changes in a row may wake a reader once. A reader never delays a writer or another
// reader. The zero Change is ready for use and must not be copied after first use. Its methods are
// safe for concurrent use, also while the caller holds a lock.
type Change struct {
	mu   sync.Mutex
	next chan struct{} // nil until a reader calls Next
}

// Next returns a channel that the next call of Notify closes.
func (c *Change) Next() <-chan struct{} {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next == nil {
		c.next = make(chan struct{})
	}
	return c.next
}

// Notify closes the channel that Next returned since the last Notify. It does not block, and it is
// cheap if no reader waits.
func (c *Change) Notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}

// Closed returns a closed channel, for a reader that is behind and must not wait for the next
// change.
func Closed() <-chan struct{} { return closed }

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
