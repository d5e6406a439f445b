// Package podlog stores the output of containers. Each run of a container has a file of lines with timestamps, which
// can be read while it grows. Readers see only complete lines, and a follower sees every line.
package podlog

import (
	"bufio"
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"sync"
	"time"

	"github.com/tailplane/tailplane/testbed/podnode/kubelet"
)

// lineLimit is the size at which a long line is cut.
const lineLimit = 16 << 10

// Log is the log of one run of a container.
type Log struct {
	path string
	now  func() time.Time

	mu      sync.Mutex
	file    *os.File
	changed chan struct{} // closed at the next line, or at the end
	ended   bool
	taps    map[*tapped]bool
}

// Stream is one of the two output streams of a container.
type Stream int

// A container with a terminal has only the first.
const (
	Stdout Stream = iota
	Stderr
)

type tapped struct {
	stream Stream
	w      io.Writer
}

// Open creates the log's file.
func Open(path string, now func() time.Time) (*Log, error) {
	f, err := os.OpenFile(path, os.O_CREATE|os.O_WRONLY|os.O_APPEND, 0o600)
	if err != nil {
		return nil, err
	}
	return &Log{path: path, now: now, file: f, changed: make(chan struct{}), taps: map[*tapped]bool{}}, nil
}

// Copy logs the data from r as the container's output until r ends.
func (l *Log) Copy(stream Stream, r io.Reader) {
	b := bufio.NewReaderSize(io.TeeReader(r, tap{l, stream}), lineLimit)
	for {
		line, err := b.ReadSlice('\n')
		if len(line) > 0 {
			l.add(bytes.TrimSuffix(line, []byte("\n")))
		}
		if err != nil && !errors.Is(err, bufio.ErrBufferFull) {
			return
		}
	}
}

func (l *Log) add(line []byte) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	fmt.Fprintf(l.file, "%s %s\n", l.now().UTC().Format(time.RFC3339Nano), line)
	close(l.changed)
	l.changed = make(chan struct{})
}

// End marks the end of the container's output.
func (l *Log) End() {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.ended {
		return
	}
	l.ended = true
	l.file.Close()
	close(l.changed)
}

// Tap copies new output to w as it arrives, until the caller calls end.
func (l *Log) Tap(stream Stream, w io.Writer) (end func()) {
	l.mu.Lock()
	defer l.mu.Unlock()
	t := &tapped{stream, w}
	l.taps[t] = true
	return func() {
		l.mu.Lock()
		defer l.mu.Unlock()
		delete(l.taps, t)
	}
}

// tap sends the raw bytes to all taps. It removes a tap after a write error.
type tap struct {
	l      *Log
	stream Stream
}

func (t tap) Write(b []byte) (int, error) {
	t.l.mu.Lock()
	var all []*tapped
	for x := range t.l.taps {
		if x.stream == t.stream {
			all = append(all, x)
		}
	}
	t.l.mu.Unlock()
	for _, x := range all {
		if _, err := x.w.Write(b); err != nil {
			t.l.mu.Lock()
			delete(t.l.taps, x)
			t.l.mu.Unlock()
		}
	}
	return len(b), nil
}

// Read writes the requested part of the log.
func (l *Log) Read(ctx context.Context, o kubelet.LogOptions, w io.Writer) error {
	f, err := os.Open(l.path)
	if err != nil {
		return err
	}
	defer f.Close()
	r := bufio.NewReader(f)
	skip := 0
	if o.Tail >= 0 {
		lines, err := os.ReadFile(l.path)
		if err != nil {
			return err
		}
		skip = max(0, bytes.Count(lines, []byte("\n"))-o.Tail)
	}
	left := o.Bytes
	var rest []byte
	for {
		l.mu.Lock()
		changed, ended := l.changed, l.ended
		l.mu.Unlock()
		for {
			line, err := r.ReadBytes('\n')
			line = append(rest, line...)
			rest = nil
			if err != nil { // an incomplete line that is still being written
				rest = line
				break
			}
			stamp, text, _ := bytes.Cut(line, []byte(" "))
			if skip > 0 {
				skip--
				continue
			}
			if at, err := time.Parse(time.RFC3339Nano, string(stamp)); err == nil && at.Before(o.Since) {
				continue
			}
			if o.Timestamps {
				text = line
			}
			if o.Bytes > 0 {
				text = text[:min(int64(len(text)), left)]
				left -= int64(len(text))
			}
			if _, err := w.Write(text); err != nil {
				return err
			}
			if o.Bytes > 0 && left == 0 {
				return nil
			}
		}
		if !o.Follow || ended {
			return nil
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-changed:
		}
	}
}
