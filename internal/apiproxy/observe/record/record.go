// Package record writes the adapter's audit log as JSON lines to a file or a stream. Requests that must be
// recorded are refused while the log cannot be written. Nothing else waits for it.
package record

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// Config configures an audit log. Exactly one of Path and Writer is required. Log and Now are required.
type Config struct {
	Path   string    // a regular file; lines are appended
	Writer io.Writer // such as standard output

	Queue      int           // optional: number of lines that may wait; 0: 1,024
	QueueBytes int           // optional: their size in bytes; 0: 1 MiB
	Delay      time.Duration // optional: how long Require waits at most; 0: 1 s
	Log        *slog.Logger
	Now        func() time.Time
}

// Limits of writing.
const (
	defaultQueue = 1024
	defaultBytes = 1 << 20
	defaultDelay = time.Second
	minPause     = 100 * time.Millisecond // between attempts
	maxPause     = 5 * time.Second
	endTime      = 5 * time.Second // for pending lines after the end of Run's ctx
)

// Record is the adapter's audit log. It is safe for concurrent use.
//
// Lines wait in a bounded queue. One goroutine writes them, so a slow or failing sink does not delay
// requests. Lines that do not fit are lost, and a line with their number takes their place. A request that
// must be recorded waits, for a limited time, until its line is written.
//
// The file may be moved or truncated while it is open. The next line goes to a new file with that name, or to
// the truncated file.
type Record struct {
	conf Config

	mu      sync.Mutex
	queue   []queued
	size    int   // bytes in the queue and in the batch being written
	lines   int   // their number
	lost    *gap  // lines lost after the queued ones; nil: none
	down    error // why lines cannot be written; nil: they can
	written int64
	allLost int64
	ended   bool

	wake chan struct{}
	file *os.File // only Run uses this and the next field
	torn bool     // the last write ended within a line
}

// StageGap is the stage of a line that reports lost lines.
const StageGap = "Gap"

// gap is the line that reports lost lines.
type gap struct {
	Stage string    `json:"stage"`
	At    time.Time `json:"stageTimestamp"`
	Lost  int64     `json:"lost"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
}

func (g *gap) line() []byte {
	b, err := json.Marshal(g)
	if err != nil {
		panic("record: " + err.Error()) // only for a time outside the years 0 to 9999
	}
	return append(b, '\n')
}

// queued is a waiting line.
type queued struct {
	line []byte
	told chan error // receives the result once; nil: no caller waits
}

// The reasons why lines cannot be written.
var (
	errSlow  = errors.New("the audit record is slow")
	errFull  = errors.New("too many lines wait for the audit record")
	errEnded = errors.New("the audit record is closed")
)

// New returns a Record, which writes while Run runs. It opens the file, so that it reports an unusable file
// at once.
func New(c Config) (*Record, error) {
	if (c.Path == "") == (c.Writer == nil) || c.Log == nil || c.Now == nil {
		return nil, errors.New("record: a record has a path or a writer, a logger and a clock")
	}
	c.Queue, c.QueueBytes, c.Delay = cmp.Or(c.Queue, defaultQueue), cmp.Or(c.QueueBytes, defaultBytes), cmp.Or(c.Delay, defaultDelay)
	r := &Record{conf: c, wake: make(chan struct{}, 1)}
	if c.Path != "" {
		if err := r.open(); err != nil {
			return nil, fmt.Errorf("audit record: %w", err)
		}
	}
	return r, nil
}

// open opens the file.
func (r *Record) open() error {
	// It must be a regular file, because opening a pipe without a reader blocks forever.
	if info, err := os.Stat(r.conf.Path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is no regular file", r.conf.Path)
	}
	f, err := os.OpenFile(r.conf.Path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return err
	}
	r.file, r.torn = f, false
	var last [1]byte
	if info, err := f.Stat(); err == nil && info.Size() > 0 {
		if _, err := f.ReadAt(last[:], info.Size()-1); err == nil {
			r.torn = last[0] != '\n' // an earlier process stopped within a line
		}
	}
	return nil
}

// Write queues a line and returns at once. A line that does not fit is lost and counted.
func (r *Record) Write(line []byte) { r.push(queued{line: line}) }

// Require writes a line and returns nil once it is written. After an error the caller must not execute the
// request. The line may still be written later, or be lost.
func (r *Record) Require(line []byte) error {
	r.mu.Lock()
	down := r.down
	r.mu.Unlock()
	if down != nil { // queue the line, but do not wait for it
		r.Write(line)
		return down
	}
	told := make(chan error, 1)
	if err := r.push(queued{line, told}); err != nil {
		return err
	}
	late := time.NewTimer(r.conf.Delay)
	defer late.Stop()
	select {
	case err := <-told:
		return err
	case <-late.C:
		r.mu.Lock()
		defer r.mu.Unlock()
		select {
		case err := <-told:
			return err
		default:
		}
		if r.down == nil {
			r.down = errSlow // later callers do not wait until the writer makes progress
		}
		return errSlow
	}
}

func (r *Record) push(q queued) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ended:
		r.allLost++
		return errEnded
	case r.lines >= r.conf.Queue || r.size+len(q.line) > r.conf.QueueBytes:
		now := r.conf.Now().UTC()
		if r.lost == nil {
			r.lost = &gap{Stage: StageGap, From: now}
		}
		r.lost.Lost, r.lost.To = r.lost.Lost+1, now
		r.allLost++
		return errFull
	}
	r.queue = append(r.queue, q)
	r.lines++
	r.size += len(q.line)
	select {
	case r.wake <- struct{}{}:
	default: // the writer is already awake
	}
	return nil
}

// Stats are counters of lines since the start.
type Stats struct {
	Written int64
	Lost    int64
	Waiting int
	Up      bool // lines can be written
}

// Stats returns the counters.
func (r *Record) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{Written: r.written, Lost: r.allLost, Waiting: r.lines, Up: r.down == nil && !r.ended}
}

// Run writes lines until ctx ends, which must be after the last request. It then writes the pending lines for
// at most five seconds. It does not wait longer for a blocked writer.
func (r *Record) Run(ctx context.Context) error {
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() { defer close(done); r.loop(stop) }()
	<-ctx.Done()
	close(stop)
	late := time.NewTimer(endTime)
	defer late.Stop()
	select {
	case <-done:
	case <-late.C:
	}
	r.mu.Lock()
	defer r.mu.Unlock()
	r.ended = true
	if n := int64(r.lines); n > 0 {
		r.allLost += n
		return fmt.Errorf("audit record: %d lines are lost: %w", n, cmp.Or(r.down, errSlow))
	}
	return nil
}

// loop writes queued lines in batches until stop is closed.
func (r *Record) loop(stop <-chan struct{}) {
	defer func() {
		if r.file != nil {
			r.file.Close()
		}
	}()
	var pause time.Duration
	for {
		batch := r.take()
		if len(batch) == 0 {
			select {
			case <-r.wake:
				continue
			case <-stop:
				if batch = r.take(); len(batch) == 0 {
					return
				}
			}
		}
		for len(batch) > 0 {
			n, err := r.put(batch)
			r.settle(batch[:n], batch[n:], err)
			if batch = batch[n:]; err == nil {
				pause = 0
				continue
			}
			pause = min(max(minPause, 2*pause), maxPause)
			select {
			case <-time.After(pause):
			case <-stop:
				if n, err := r.put(batch); err == nil { // a last attempt
					r.settle(batch[:n], nil, nil)
				}
				return
			}
		}
	}
}

// take returns all queued lines, and a line for lost ones.
func (r *Record) take() []queued {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := r.queue
	r.queue = nil
	if r.lost != nil {
		r.lost.At = r.conf.Now().UTC()
		q := queued{line: r.lost.line()}
		batch = append(batch, q)
		r.lines, r.size, r.lost = r.lines+1, r.size+len(q.line), nil
	}
	return batch
}

// put writes lines and returns how many were written completely.
func (r *Record) put(batch []queued) (whole int, err error) {
	if err := r.follow(); err != nil {
		return 0, err
	}
	to := r.conf.Writer
	if r.file != nil {
		to = r.file
	}
	var buf []byte
	if r.torn {
		buf = append(buf, '\n') // ends the truncated line, which does not parse
	}
	ends := make([]int, len(batch))
	for i, q := range batch {
		buf = append(buf, q.line...)
		ends[i] = len(buf)
	}
	n, err := to.Write(buf)
	for whole < len(ends) && ends[whole]-1 <= n { // a line without its line feed is complete
		whole++
	}
	if n > 0 {
		r.torn = buf[n-1] != '\n'
	}
	if err == nil && n < len(buf) {
		err = io.ErrShortWrite
	}
	return whole, err
}

// follow reopens the file if its name now belongs to another file or to none.
func (r *Record) follow() error {
	if r.conf.Path == "" {
		return nil
	}
	if r.file != nil {
		ours, err := r.file.Stat()
		if err == nil && ours.Size() == 0 {
			r.torn = false // it was truncated
		}
		there, serr := os.Stat(r.conf.Path)
		if err == nil && serr == nil && os.SameFile(ours, there) {
			return nil
		}
		if serr != nil && !errors.Is(serr, fs.ErrNotExist) {
			return serr
		}
		r.file.Close()
		r.file = nil
	}
	return r.open()
}

// settle reports the results of lines to their callers and updates the status of the log.
func (r *Record) settle(good, bad []queued, err error) {
	r.mu.Lock()
	was := r.down
	r.down = err
	r.lines -= len(good)
	r.written += int64(len(good))
	for _, q := range good {
		r.size -= len(q.line)
		q.tell(nil)
	}
	for i := range bad {
		bad[i].tell(err)
		bad[i].told = nil
	}
	r.mu.Unlock()
	switch {
	case err != nil && (was == nil || was == errSlow):
		r.conf.Log.Error("the audit record cannot be written; lines wait, and what may not go unrecorded is refused", "err", err)
	case err == nil && was != nil:
		r.conf.Log.Warn("the audit record is written again", "was", was, "lost", r.Stats().Lost)
	}
}

func (q queued) tell(err error) {
	if q.told != nil {
		q.told <- err // the channel has room for one value
	}
}
