// Package broadcast tells any number of goroutines that something has changed.
// It imports the standard library only.
package broadcast

import "sync"

// A Change announces changes of a value that is kept elsewhere. Readers take the
// channel first, then read the value, then wait: a change between the two closes
// the channel, so none is missed.
//
// Several changes in a row may wake a reader once. A reader never delays a writer
// or another reader. The zero Change is ready for use; it must not be copied
// after that. Its methods may be called at the same time, also while the caller
// holds a lock of its own.
type Change struct {
	mu   sync.Mutex
	next chan struct{} // nil while no reader has asked for it
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

// Notify closes the channel that Next has returned since the last Notify. It
// does not block, and costs nothing when no reader has asked.
func (c *Change) Notify() {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.next != nil {
		close(c.next)
		c.next = nil
	}
}

// Already returns a channel that is closed: for a reader that is behind, and
// must not wait for the next change.
func Already() <-chan struct{} { return closed }

var closed = func() chan struct{} {
	c := make(chan struct{})
	close(c)
	return c
}()
