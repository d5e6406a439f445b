package kubetest

import (
	"bytes"
	"sync"
)

// Log collects the output of a part of a test. It is safe for concurrent use. The zero value is an empty log.
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

// String returns the whole log.
func (l *Log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.b.String()
}

// Tail returns the end of the log, as much as a failed test prints.
func (l *Log) Tail() string {
	s := l.String()
	return s[max(0, len(s)-6000):]
}
