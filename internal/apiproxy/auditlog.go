package apiproxy

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
	"os"
	"sync"
	"time"
)

// AuditLogConfig configures an audit log. Exactly one of Path and Writer is required. Log and Now are required.
type AuditLogConfig struct {
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
	defaultAuditQueue = 1024
	defaultAuditBytes = 1 << 20
	defaultAuditDelay = time.Second
	minAuditPause     = 100 * time.Millisecond // between attempts
	maxAuditPause     = 5 * time.Second
	auditFlushTime    = 5 * time.Second // for pending lines after the end of Run's ctx
)

// AuditLog is the adapter's audit log. It is safe for concurrent use.
//
// Lines wait in a bounded queue. One goroutine writes them, so a slow or failing sink does not delay
// requests. Lines that do not fit are lost, and a line with their number takes their place. A request that
// must be recorded waits, for a limited time, until its line is written.
//
// The file may be moved or truncated while it is open. The next line goes to a new file with that name, or to
// the truncated file.
type AuditLog struct {
	conf AuditLogConfig

	mu      sync.Mutex
	queue   []queuedLine
	size    int       // bytes in the queue and in the batch being written
	lines   int       // their number
	lost    *auditGap // lines lost after the queued ones; nil: none
	down    error     // why lines cannot be written; nil: they can
	written int64
	allLost int64
	ended   bool

	wake chan struct{}
	file *os.File // only Run uses this and the next field
	torn bool     // the last write ended within a line
}

// StageGap is the stage of a line that reports lost lines.
const StageGap = "Gap"

// auditGap is the line that reports lost lines.
type auditGap struct {
	Stage string    `json:"stage"`
	At    time.Time `json:"stageTimestamp"`
	Lost  int64     `json:"lost"`
	From  time.Time `json:"from"`
	To    time.Time `json:"to"`
}

// queuedLine is a waiting line.
type queuedLine struct {
	line   []byte
	result chan error // receives the result once; nil: no caller waits
}

// The reasons why lines cannot be written.
var (
	errAuditSlow   = errors.New("the audit log is slow")
	errAuditFull   = errors.New("too many lines wait for the audit log")
	errAuditClosed = errors.New("the audit log is closed")
)

// NewAuditLog returns an AuditLog, which writes while Run runs. It opens the file, so that it reports an unusable file
// at once.
func NewAuditLog(c AuditLogConfig) (*AuditLog, error) {
	if (c.Path == "") == (c.Writer == nil) || c.Log == nil || c.Now == nil {
		return nil, errors.New("audit log: a path or a writer, a logger and a clock are required")
	}
	c.Queue, c.QueueBytes, c.Delay = cmp.Or(
		c.Queue,
		defaultAuditQueue,
	), cmp.Or(
		c.QueueBytes,
		defaultAuditBytes,
	), cmp.Or(
		c.Delay,
		defaultAuditDelay,
	)
	r := &AuditLog{conf: c, wake: make(chan struct{}, 1)}
	if c.Path != "" {
		if err := r.open(); err != nil {
			return nil, fmt.Errorf("audit log: %w", err)
		}
	}
	return r, nil
}

// open opens the file.
func (r *AuditLog) open() error {
	// It must be a regular file, because opening a pipe without a reader blocks forever.
	if info, err := os.Stat(r.conf.Path); err == nil && !info.Mode().IsRegular() {
		return fmt.Errorf("%s is not a regular file", r.conf.Path)
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
func (r *AuditLog) Write(line []byte) { r.enqueue(queuedLine{line: line}) }

// Require writes a line and returns nil once it is written. After an error the caller must not execute the
// request. The line may still be written later, or be lost.
func (r *AuditLog) Require(line []byte) error {
	r.mu.Lock()
	down := r.down
	r.mu.Unlock()
	if down != nil { // queue the line, but do not wait for it
		r.Write(line)
		return down
	}
	written := make(chan error, 1)
	if err := r.enqueue(queuedLine{line, written}); err != nil {
		return err
	}
	late := time.NewTimer(r.conf.Delay)
	defer late.Stop()
	select {
	case err := <-written:
		return err
	case <-late.C:
		r.mu.Lock()
		defer r.mu.Unlock()
		select {
		case err := <-written:
			return err
		default:
		}
		if r.down == nil {
			r.down = errAuditSlow // later callers do not wait until the writer makes progress
		}
		return errAuditSlow
	}
}

func (r *AuditLog) enqueue(q queuedLine) error {
	r.mu.Lock()
	defer r.mu.Unlock()
	switch {
	case r.ended:
		r.allLost++
		return errAuditClosed
	case r.lines >= r.conf.Queue || r.size+len(q.line) > r.conf.QueueBytes:
		now := r.conf.Now().UTC()
		if r.lost == nil {
			r.lost = &auditGap{Stage: StageGap, From: now}
		}
		r.lost.Lost, r.lost.To = r.lost.Lost+1, now
		r.allLost++
		return errAuditFull
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

// AuditLogStats are counters of lines since the start.
type AuditLogStats struct {
	Written int64
	Lost    int64
	Waiting int
	Up      bool // lines can be written
}

// Stats returns the counters.
func (r *AuditLog) Stats() AuditLogStats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return AuditLogStats{Written: r.written, Lost: r.allLost, Waiting: r.lines, Up: r.down == nil && !r.ended}
}

// Run writes lines until ctx ends, which must be after the last request. It then writes the pending lines for
// at most five seconds. It does not wait longer for a blocked writer.
func (r *AuditLog) Run(ctx context.Context) error {
	done := make(chan struct{})
	stop := make(chan struct{})
	go func() { defer close(done); r.writeLoop(stop) }()
	<-ctx.Done()
	close(stop)
	late := time.NewTimer(auditFlushTime)
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
		return fmt.Errorf("audit log: %d lines are lost: %w", n, cmp.Or(r.down, errAuditSlow))
	}
	return nil
}

// writeLoop writes queued lines in batches until stop is closed.
func (r *AuditLog) writeLoop(stop <-chan struct{}) {
	defer func() {
		if r.file != nil {
			r.file.Close()
		}
	}()
	var pause time.Duration
	for {
		batch := r.dequeue()
		if len(batch) == 0 {
			select {
			case <-r.wake:
				continue
			case <-stop:
				if batch = r.dequeue(); len(batch) == 0 {
					return
				}
			}
		}
		for len(batch) > 0 {
			n, err := r.writeBatch(batch)
			r.reportResults(batch[:n], batch[n:], err)
			if batch = batch[n:]; err == nil {
				pause = 0
				continue
			}
			pause = min(max(minAuditPause, 2*pause), maxAuditPause)
			select {
			case <-time.After(pause):
			case <-stop:
				if n, err := r.writeBatch(batch); err == nil { // a last attempt
					r.reportResults(batch[:n], nil, nil)
				}
				return
			}
		}
	}
}

// dequeue returns all queued lines, and a line for lost ones.
func (r *AuditLog) dequeue() []queuedLine {
	r.mu.Lock()
	defer r.mu.Unlock()
	batch := r.queue
	r.queue = nil
	if r.lost != nil {
		r.lost.At = r.conf.Now().UTC()
		q := queuedLine{line: encodeLine(r.lost)}
		batch = append(batch, q)
		r.lines, r.size, r.lost = r.lines+1, r.size+len(q.line), nil
	}
	return batch
}

// writeBatch writes lines and returns how many were written completely.
func (r *AuditLog) writeBatch(batch []queuedLine) (whole int, err error) {
	if err := r.reopenIfMoved(); err != nil {
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

// reopenIfMoved reopens the file if its name now belongs to another file or to none.
func (r *AuditLog) reopenIfMoved() error {
	if r.conf.Path == "" {
		return nil
	}
	if r.file != nil {
		opened, err := r.file.Stat()
		if err == nil && opened.Size() == 0 {
			r.torn = false // it was truncated
		}
		atPath, serr := os.Stat(r.conf.Path)
		if err == nil && serr == nil && os.SameFile(opened, atPath) {
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

// reportResults reports the results of lines to their callers and updates the status of the log.
func (r *AuditLog) reportResults(good, bad []queuedLine, err error) {
	r.mu.Lock()
	was := r.down
	r.down = err
	r.lines -= len(good)
	r.written += int64(len(good))
	for _, q := range good {
		r.size -= len(q.line)
		q.notify(nil)
	}
	for i := range bad {
		bad[i].notify(err)
		bad[i].result = nil
	}
	r.mu.Unlock()
	switch {
	case err != nil && (was == nil || was == errAuditSlow):
		r.conf.Log.Error("the audit log cannot be written; lines wait, and requests that must be recorded are refused", "err", err)
	case err == nil && was != nil:
		r.conf.Log.Warn("the audit log can be written again", "was", was, "lost", r.Stats().Lost)
	}
}

func (q queuedLine) notify(err error) {
	if q.result != nil {
		q.result <- err // the channel has room for one value
	}
}
