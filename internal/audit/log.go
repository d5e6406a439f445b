package audit

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// A Config configures a Log. Exactly one of Path and Writer is required, and so are Cluster, Role,
// Key, Log and Now.
type Config struct {
	// Path is the file of the audit log. If the file exists, Open continues it.
	Path string
	// Writer receives the audit log instead of a file, for example standard output. Each run then
	// writes a separate audit log.
	Writer io.Writer

	Cluster   string // name of the cluster
	ClusterID string
	Role      string // of the process
	Software  string // version of the program

	Key Key // signs the audit log
	// Prev is the last known line of the log that this process wrote before. A new log names it in its headers; a continued log keeps the
	// one that it has.
	Prev LogHead

	// OldKey is the previous signing key, if it differs from Key. If OldKey signed the last line of
	// the existing log, it signs a KeyChange line that names Key.
	OldKey Key

	// Required makes Write return an error whenever the entry has not reached the audit log, and
	// not only when the entry is lost.
	Required bool

	MaxSize int64 // bytes of a file before rotation; 0: 100 MiB; negative: no limit
	Keep    int   // number of full files to keep; 0: 10; negative: all

	CheckpointLines int           // lines between signatures; 0: 256
	CheckpointEvery time.Duration // time between signatures if there are new lines; 0: 10 s

	Queue      int           // maximum number of queued entries; 0: 4,096
	QueueBytes int           // maximum size of the queued entries in bytes; 0: 8 MiB
	Delay      time.Duration // maximum time that Write waits; 0: 250 ms
	CloseTime  time.Duration // maximum time that Close waits; 0: 5 s

	// Export, if set, receives every written line and every lost entry. The Line of a lost entry
	// has no Seq, and its Text is the entry alone. Export must return at once and may keep the
	// Line. Several goroutines call it.
	Export func(Line)

	Log *slog.Logger
	Now func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case (c.Path == "") == (c.Writer == nil):
		return c, errors.New("audit: a log has either a file or a writer")
	case c.Cluster == "", c.Role == "", c.Key.IsZero(), c.Log == nil, c.Now == nil:
		return c, errors.New("audit: a log needs the name of the cluster, the role of the process, a key, a logger and a clock")
	}
	c.MaxSize = cmp.Or(c.MaxSize, 100<<20)
	c.Keep = cmp.Or(c.Keep, 10)
	c.CheckpointLines = cmp.Or(c.CheckpointLines, 256)
	c.CheckpointEvery = cmp.Or(c.CheckpointEvery, 10*time.Second)
	c.Queue = cmp.Or(c.Queue, 4096)
	c.QueueBytes = cmp.Or(c.QueueBytes, 8<<20)
	c.Delay = cmp.Or(c.Delay, 250*time.Millisecond)
	c.CloseTime = cmp.Or(c.CloseTime, 5*time.Second)
	return c, nil
}

// A Log writes an audit log. It is safe for concurrent use.
//
// Entries wait in a queue, and one goroutine writes them. A slow or missing disk therefore delays a
// request only for a bounded time and uses bounded memory. Entries that do not fit are lost. When
// the audit log is writable again, a Gap line records their number.
type Log struct {
	conf Config

	mu       sync.Mutex
	queue    []item
	notifies bool  // the writer will be notified within queueDelay
	waiting  int   // entries in the queue and in the current batch of the writer
	size     int   // size of the waiting entries in bytes
	down     error // why entries do not reach the audit log; nil if they do
	closed   bool

	wake chan struct{}
	sign chan chan struct{} // requests for a signature; the writer closes the received channel
	stop chan struct{}
	done chan struct{} // closed when the writer has ended
	last error         // error of the writer; read it only after done is closed

	recent  Recent
	head    atomic.Pointer[Head]
	signed  atomic.Pointer[SignedHead] // the last signed line that is on disk; nil: none yet
	results [4]atomic.Int64
	dropped atomic.Int64
	gaps    atomic.Int64
	torn    atomic.Int64
	retries atomic.Int64
}

// An item is a queued line.
type item struct {
	kind Kind
	body []byte
	gap  Gap        // for KindGap
	done chan error // receives the result once; nil if no caller waits
}

// Open opens the audit log that c describes and writes its header. It fails if the file cannot be
// written, if another process holds it, or if it contains something else. The caller must call
// Close, or the last entries are lost.
func Open(c Config) (*Log, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Log{conf: c, wake: make(chan struct{}, 1), sign: make(chan chan struct{}), stop: make(chan struct{}), done: make(chan struct{})}
	w := &writer{Log: l, headerReason: Started, file: logFile{Config: &l.conf}}
	if err := w.begin(); err != nil {
		return nil, fmt.Errorf("audit log: %w", err)
	}
	go w.run()
	return l, nil
}

// errSlow means that writing takes longer than Delay.
var errSlow = errors.New("the audit log is slow")

// errFull means that the queue is full.
var errFull = errors.New("too many entries wait for the audit log")

// errClosed means that the Log is closed.
var errClosed = errors.New("the audit log is closed")

// Write writes e and waits at most Config.Delay. It returns nil if e is in the file or is still
// queued. It returns an error if e is lost, and counts the loss; the request itself is not undone.
//
// If Config.Required is set, any doubt is an error: a [problem.Error] with the code
// audit_unavailable. While the audit log is known to be down, Write then does not wait. The entry
// may still reach the file after the error.
func (l *Log) Write(e Entry) error { return l.write(e, true) }

// Queue is Write without the wait for the file, which receives the entries of queueDelay at once. An error of the file is in a
// later result. While half of the queue is in use, Queue waits like Write: then entries are late and not lost.
func (l *Log) Queue(e Entry) error { return l.write(e, false) }

func (l *Log) write(e Entry, wait bool) error {
	body, err := encode(e)
	if err != nil {
		l.mu.Lock()
		l.recordMissed()
		l.mu.Unlock()
		return l.recordLost(e, nil, fmt.Errorf("encode: %w", err))
	}
	it := item{kind: KindEntry, body: body}
	l.mu.Lock()
	switch {
	case l.closed:
		l.mu.Unlock()
		return l.recordLost(e, body, errClosed)
	case l.waiting >= l.conf.Queue || l.size+len(body) > l.conf.QueueBytes:
		l.recordMissed()
		l.mu.Unlock()
		return l.recordLost(e, body, errFull)
	}
	down := l.down
	wait = down == nil && (wait || l.waiting >= l.conf.Queue/2 || l.size > l.conf.QueueBytes/2)
	if wait {
		it.done = make(chan error, 1)
	}
	l.push(it)
	if wait {
		l.notify()
	} else {
		l.notifyLater()
	}
	l.mu.Unlock()
	l.count(e.Result)
	if wait {
		down = l.await(it.done)
	}
	if down != nil && l.conf.Required {
		return unavailable(fmt.Errorf("audit entry %s: %w", e.RequestID, down))
	}
	l.recent.Add(e)
	return nil
}

// Recent returns the most recent written entries, for readers that follow the log.
func (l *Log) Recent() *Recent { return &l.recent }

// push queues it. The caller must hold mu, and must notify the writer.
func (l *Log) push(it item) {
	l.queue = append(l.queue, it)
	if it.kind == KindEntry {
		l.waiting++
		l.size += len(it.body)
	}
}

// notify notifies the writer of queued items.
func (l *Log) notify() {
	select {
	case l.wake <- struct{}{}:
	default: // the writer is already notified
	}
}

// queueDelay is how long the entries of Queue wait for others.
const queueDelay = 10 * time.Millisecond

// notifyLater notifies the writer after queueDelay. The caller must hold mu.
func (l *Log) notifyLater() {
	if l.notifies {
		return
	}
	l.notifies = true
	time.AfterFunc(queueDelay, func() {
		l.mu.Lock()
		l.notifies = false
		l.mu.Unlock()
		l.notify()
	})
}

// recordMissed records that an entry is lost. The caller must hold mu. Consecutive losses share one gap
// item, so gaps cannot fill the memory either.
func (l *Log) recordMissed() {
	now := l.conf.Now().UTC()
	if n := len(l.queue); n > 0 && l.queue[n-1].kind == KindGap {
		g := &l.queue[n-1].gap
		g.Lost, g.To = g.Lost+1, now
		return
	}
	l.push(item{kind: KindGap, gap: Gap{Lost: 1, From: now, To: now}})
	l.notify()
}

// await waits for the result from the writer, at most for Config.Delay.
func (l *Log) await(done <-chan error) error {
	t := time.NewTimer(l.conf.Delay)
	defer t.Stop()
	select {
	case err := <-done:
		return err
	case <-t.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case err := <-done:
		return err
	default:
	}
	if l.down == nil {
		l.down = errSlow // later calls do not wait until the writer makes progress
	}
	return l.down
}

// recordLost counts a lost entry. Export still receives it.
func (l *Log) recordLost(e Entry, body []byte, why error) error {
	l.dropped.Add(1)
	if l.conf.Export != nil && body != nil {
		l.conf.Export(Line{Kind: KindEntry, Text: append(append([]byte{'{'}, body...), '}'), body: body})
	}
	err := fmt.Errorf("write audit entry %s: %w", e.RequestID, why)
	if l.conf.Required {
		return unavailable(err)
	}
	return err
}

func unavailable(cause error) error {
	return problem.New(
		problem.AuditUnavailable,
		"The server cannot write its audit log and grants nothing without an audit entry.",
		"Try again in a moment. If the problem persists, contact the administrator of this server.",
	).WithRetryAfter(time.Second).WithCause(cause)
}

// Ready returns nil while entries reach the audit log. Otherwise it returns a [problem.Error] with
// the code audit_unavailable. Callers must use it to refuse actions that must not happen unaudited.
func (l *Log) Ready() error {
	l.mu.Lock()
	defer l.mu.Unlock()
	switch {
	case l.closed:
		return unavailable(errClosed)
	case l.down != nil:
		return unavailable(l.down)
	}
	return nil
}

// Head returns the Head of the last written line. Its Seq is 0 before the first line.
func (l *Log) Head() Head {
	if h := l.head.Load(); h != nil {
		return *h
	}
	return Head{}
}

// Sign writes a signature if there are lines without one, and waits until it is on disk. It returns the error of ctx if that
// ends before, and nil if the audit log cannot be written.
func (l *Log) Sign(ctx context.Context) error {
	signed := make(chan struct{})
	select {
	case l.sign <- signed:
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
	select {
	case <-signed:
		return nil
	case <-l.done:
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// Stats are counters since Open, for metrics.
type Stats struct {
	Entries map[Result]int64 // accepted, by result
	Dropped int64            // lost entries
	Gaps    int64            // written Gap lines
	Torn    int64            // written Torn lines
	Retries int64            // failed writes that were tried again
	Waiting int              // entries in the queue now
	Up      bool             // entries reach the audit log now
}

// Stats returns the current counters.
func (l *Log) Stats() Stats {
	s := Stats{Entries: map[Result]int64{}, Dropped: l.dropped.Load(), Gaps: l.gaps.Load(), Torn: l.torn.Load(), Retries: l.retries.Load()}
	for i, r := range results {
		s.Entries[r] = l.results[i].Load()
	}
	l.mu.Lock()
	s.Waiting, s.Up = l.waiting, l.down == nil && !l.closed
	l.mu.Unlock()
	return s
}

var results = [...]Result{Done, NotYet, Refused, Failed}

func (l *Log) count(r Result) {
	if i := slices.Index(results[:], r); i >= 0 {
		l.results[i].Add(1)
	}
}

// Close writes the queued entries and a final signature, and closes the file. It waits at most
// Config.CloseTime. Its error includes the number of lost entries.
func (l *Log) Close() error {
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	if first {
		close(l.stop)
	}
	t := time.NewTimer(l.conf.CloseTime)
	defer t.Stop()
	var err error
	select {
	case <-l.done:
		err = l.last
	case <-t.C:
		err = errSlow
	}
	l.mu.Lock()
	lost := l.waiting
	l.mu.Unlock()
	if first {
		l.dropped.Add(int64(lost))
	}
	switch {
	case lost > 0:
		return fmt.Errorf("audit log: entries lost at the end: %d: %w", lost, err)
	case err != nil:
		return fmt.Errorf("audit log: %w", err)
	}
	return nil
}

// newLogID returns the ID of a new audit log: 80 random bits in base 32.
func newLogID() string { return rand.Text()[:logLen] }
