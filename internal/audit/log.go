package audit

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// A Config says where a record is kept, and how. One of Path and Writer, and
// Cluster, Role, Key, Log and Now are required.
type Config struct {
	// Path is the file of the record. A record that is there already is gone on
	// with.
	Path string
	// Writer takes the record in place of a file, such as standard output. Each
	// run is then a record of its own.
	Writer io.Writer

	Cluster   string // name of the cluster
	ClusterID string
	Role      string // of the process
	Software  string // version of the program

	Key Key // signs
	// OldKey is the key that signed before, where that was another one. When it
	// is the one that the record was last signed with, it signs a line that
	// names Key.
	OldKey Key

	// Required makes Write return an error whenever the entry has not reached the
	// record, rather than only when it is lost.
	Required bool

	MaxSize int64 // bytes of a file before another is begun; 0: 100 MiB; negative: no limit
	Keep    int   // full files that are kept; 0: 10; negative: all

	CheckpointLines int           // lines between signatures; 0: 256
	CheckpointEvery time.Duration // time between signatures, when there are lines; 0: 10 s

	Queue      int           // entries that may wait; 0: 4,096
	QueueBytes int           // and their size in bytes; 0: 8 MiB
	Delay      time.Duration // the longest that Write waits; 0: 250 ms
	CloseTime  time.Duration // the longest that Close waits; 0: 5 s

	// Export, when given, is told every line that was written, and every entry
	// that was lost (a Line with no Seq, whose Text is the entry alone). It must
	// return at once and may keep the Line. It is called by several goroutines.
	Export func(Line)

	Log *slog.Logger
	Now func() time.Time
}

func (c Config) withDefaults() (Config, error) {
	switch {
	case (c.Path == "") == (c.Writer == nil):
		return c, errors.New("audit: a record has either a file or a writer")
	case c.Cluster == "", c.Role == "", c.Key.IsZero(), c.Log == nil, c.Now == nil:
		return c, errors.New("audit: a record needs the cluster's name, the process's role, a key, a logger and a clock")
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

// A Log writes a record. It may be used by several goroutines.
//
// Entries wait in a queue that one goroutine writes from, so that a slow or
// absent disk costs a visit no more than a bounded delay, and a bounded amount
// of memory. What does not fit is lost, and a line that says how many takes its
// place once the record can be written again.
type Log struct {
	plain io.Writer // of NewLog

	required bool
	delay    time.Duration
	most     int
	mostSize int
	export   func(Line)
	now      func() time.Time

	mu      sync.Mutex
	queue   []item
	waiting int   // entries in the queue and in the writer's hands
	size    int   // their bytes
	down    error // why entries do not reach the record; nil: they do
	closed  bool

	wake chan struct{}
	stop chan struct{}
	done chan struct{} // the writer has ended
	last error         // of the writer; read it after done
	wait time.Duration // of Close

	trail   Trail
	head    atomic.Pointer[Head]
	results [4]atomic.Int64
	dropped atomic.Int64
	gaps    atomic.Int64
	torn    atomic.Int64
	retries atomic.Int64
}

// An item waits to be written.
type item struct {
	kind Kind
	body []byte
	gap  Gap        // of a gap
	key  Key        // of a change of keys
	told chan error // is told once what became of it; nil: nobody waits
}

// NewLog returns a Log that writes each entry to w at once, one Write a line,
// without header, chain or signature. It is for tests; Open makes the record of
// a server.
func NewLog(w io.Writer) *Log { return &Log{plain: w, now: time.Now} }

// Open opens the record that c describes and writes its header. It fails when
// the file cannot be written, is another process's, or holds something else.
// The caller must Close the Log, or its last entries are lost.
func Open(c Config) (*Log, error) {
	c, err := c.withDefaults()
	if err != nil {
		return nil, err
	}
	l := &Log{
		required: c.Required, delay: c.Delay, most: c.Queue, mostSize: c.QueueBytes, export: c.Export, now: c.Now, wait: c.CloseTime,
		wake: make(chan struct{}, 1), stop: make(chan struct{}), done: make(chan struct{}),
	}
	w := newWriter(l, c)
	if err := w.begin(); err != nil {
		return nil, fmt.Errorf("audit record: %w", err)
	}
	go w.run()
	return l, nil
}

// errSlow is the state in which the record takes longer than Delay.
var errSlow = errors.New("the record is slow")

// errFull is the state in which no more entries may wait.
var errFull = errors.New("too many entries wait for the record")

// errClosed is the state after Close.
var errClosed = errors.New("the record is closed")

// Write writes e, and waits no longer than Config.Delay. It returns nil when e
// is in the file, or may still wait for it. It returns an error when e is lost,
// which is counted; the visit itself is not undone.
//
// Where the record is required, any doubt is an error, a [problem.Error] with
// the code audit_unavailable, and while the record is known not to be written,
// Write does not wait at all. The entry may reach the file after the error.
func (l *Log) Write(e Entry) error {
	body, err := encode(e)
	if l.plain != nil {
		return l.writePlain(e, body, err)
	}
	if err != nil {
		l.mu.Lock()
		l.miss()
		l.mu.Unlock()
		return l.lose(e, nil, fmt.Errorf("encode: %w", err))
	}
	it := item{kind: KindEntry, body: body}
	l.mu.Lock()
	switch {
	case l.closed:
		l.mu.Unlock()
		return l.lose(e, body, errClosed)
	case l.waiting >= l.most || l.size+len(body) > l.mostSize:
		l.miss()
		l.mu.Unlock()
		return l.lose(e, body, errFull)
	}
	down := l.down
	if down == nil {
		it.told = make(chan error, 1)
	}
	l.push(it)
	l.mu.Unlock()
	l.count(e.Result)
	if down == nil {
		down = l.await(it.told)
	}
	if down != nil && l.required {
		return unavailable(fmt.Errorf("audit entry %s: %w", e.RequestID, down))
	}
	l.trail.Put(e)
	return nil
}

// Trail has the latest entries that were written, for whoever follows the record.
func (l *Log) Trail() *Trail { return &l.trail }

func (l *Log) writePlain(e Entry, body []byte, err error) error {
	if err == nil {
		l.mu.Lock()
		_, err = l.plain.Write(append(append([]byte{'{'}, body...), '}', '\n'))
		l.mu.Unlock()
	}
	if err != nil {
		return l.lose(e, nil, err)
	}
	l.count(e.Result)
	l.trail.Put(e)
	return nil
}

// push queues it; the caller holds the lock.
func (l *Log) push(it item) {
	l.queue = append(l.queue, it)
	if it.kind == KindEntry {
		l.waiting++
		l.size += len(it.body)
	}
	select {
	case l.wake <- struct{}{}:
	default: // awake
	}
}

// miss notes that an entry is lost here; the caller holds the lock. Entries that
// are lost in a row are one gap, so gaps cannot fill the memory either.
func (l *Log) miss() {
	now := l.now().UTC()
	if n := len(l.queue); n > 0 && l.queue[n-1].kind == KindGap {
		g := &l.queue[n-1].gap
		g.Lost, g.To = g.Lost+1, now
		return
	}
	l.push(item{kind: KindGap, gap: Gap{Lost: 1, From: now, To: now}})
}

// await waits for the writer's word, for no longer than the delay.
func (l *Log) await(told <-chan error) error {
	t := time.NewTimer(l.delay)
	defer t.Stop()
	select {
	case err := <-told:
		return err
	case <-t.C:
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	select {
	case err := <-told:
		return err
	default:
	}
	if l.down == nil {
		l.down = errSlow // nobody waits again before the writer gets on
	}
	return l.down
}

// lose counts an entry that is lost. Exporters still get it.
func (l *Log) lose(e Entry, body []byte, why error) error {
	l.dropped.Add(1)
	if l.export != nil && body != nil {
		l.export(Line{Kind: KindEntry, Text: append(append([]byte{'{'}, body...), '}'), body: body})
	}
	err := fmt.Errorf("write audit entry %s: %w", e.RequestID, why)
	if l.required {
		return unavailable(err)
	}
	return err
}

func unavailable(cause error) error {
	return problem.New(problem.AuditUnavailable, "The audit record cannot be written, and nothing is given out unrecorded.",
		"Try again in a moment; if it stays, tell whoever runs this server.").After(time.Second).Because(cause)
}

// Ready returns nil while entries reach the record, and otherwise a
// [problem.Error] with the code audit_unavailable: what may not go unrecorded is
// refused with it before it is done.
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

// Rekey makes k the key that signs, by a line that the key so far signs.
func (l *Log) Rekey(k Key) error {
	if k.IsZero() {
		return errors.New("audit: no key")
	}
	if l.plain != nil {
		return errors.New("audit: nothing is signed here")
	}
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.closed {
		return errClosed
	}
	l.push(item{kind: KindKey, key: k})
	return nil
}

// Head names the last line that was written; its Seq is 0 before the first.
func (l *Log) Head() Head {
	if h := l.head.Load(); h != nil {
		return *h
	}
	return Head{}
}

// Stats are counts since the Log was opened, for metrics.
type Stats struct {
	Entries map[Result]int64 // taken in, by result
	Dropped int64            // lost
	Gaps    int64            // lines that say so
	Torn    int64            // accounts of bytes that are no line
	Retries int64            // writes that failed and were tried again
	Waiting int              // entries that wait to be written now
	Up      bool             // entries reach the record now
}

// Stats returns the counts.
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
	for i := range results {
		if results[i] == r {
			l.results[i].Add(1)
		}
	}
}

// Dropped is how many entries are lost.
func (l *Log) Dropped() int64 { return l.dropped.Load() }

// Close writes what waits and a last signature, and closes the file. It waits
// no longer than Config.CloseTime; its error says how many entries are lost.
func (l *Log) Close() error {
	if l.plain != nil {
		return nil
	}
	l.mu.Lock()
	first := !l.closed
	l.closed = true
	l.mu.Unlock()
	if first {
		close(l.stop)
	}
	t := time.NewTimer(l.wait)
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
		return fmt.Errorf("audit record: entries lost at the end: %d: %w", lost, err)
	case err != nil:
		return fmt.Errorf("audit record: %w", err)
	}
	return nil
}

// newLogID is the id of a new record: 80 random bits in base 32.
func newLogID() string { return rand.Text()[:logLen] }
