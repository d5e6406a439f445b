package kubetest

import (
	"bytes"
	"sync"
)

// A Log takes what a part of a test writes while others read it. The zero Log is
// empty.
type Log struct {
	mu sync.Mutex
	b  bytes.Buffer
}

// Write implements [io.Writer].
func (l *Log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.Write(p)
}

// String is all that was written.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Tail is the end of it, as much as a failed test shows.
func (l *Log) Tail() string {
	s := l.String()
	return s[max(0, len(s)-6000):]
}
