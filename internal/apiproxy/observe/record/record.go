// Package record writes an adapter's audit record: lines of JSON in a file or a
// stream. It keeps the law that what may not go unrecorded is refused while lines
// do not reach the record, and that nothing else waits for it.
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

// A Config says where the audit record goes. Exactly one of Path and
// Writer is required, and Log and Now.
type Config struct {
	Path   string    // a regular file, which is appended to
	Writer io.Writer // such as standard output

	Queue      int           // optional: lines that may wait; 0: 1,024
	QueueBytes int           // optional: and their size; 0: 1 MiB
	Delay      time.Duration // optional: the longest that what may not go unrecorded waits for the record; 0: 1 s
	Log        *slog.Logger
	Now        func() time.Time
}

// Bounds of writing.
const (
	defaultQueue = 1024
	defaultBytes = 1 << 20
	defaultDelay = time.Second
	minPause     = 100 * time.Millisecond // between attempts
	maxPause     = 5 * time.Second
	endTime      = 5 * time.Second // for what waits when Run ends
)

// A Record is the adapter's audit record: JSON lines in a file or a stream. It
// may be used by several goroutines.
//
// Lines wait in a bounded queue that one goroutine writes from, so a sink that is
// slow or down holds up no visit. What does not fit is lost, and a line that says
// how many takes its place. A visit that may not go unrecorded waits, for a
// bounded time, until its line is written.
//
// A file may be moved away or cut under us: the next line goes to a new file of
// the name, or to what the file has become.
type Record struct {
	conf Config

	mu      sync.Mutex
	queue   []queued
	size    int   // bytes in the queue and in the writer's hands
	lines   int   // and their number
	lost    *gap  // behind the queue; nil: none
	down    error // why lines do not reach the record; nil: they do
	written int64
	allLost int64
	ended   bool

	wake chan struct{}
	file *os.File // Run alone uses it, as what follows
	torn bool     // the last write ended within a line
}

// StageGap is the stage of a line that says how many are missing.
const StageGap = "Gap"

// A gap is such a line.
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
		panic("record: " + err.Error()) // a time outside the years 0 to 9999
	}
	return append(b, '\n')
}

// queued is a line that waits.
type queued struct {
	line []byte
	told chan error // is told once; nil: nobody waits
}

// The states in which lines do not reach the record.
var (
	errSlow  = errors.New("the audit record is slow")
	errFull  = errors.New("too many lines wait for the audit record")
	errEnded = errors.New("the audit record is closed")
)

// New returns a Record, which writes while it Runs. It opens the file, so
// that one that cannot be written is known at once.
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

// open takes up the file.
func (r *Record) open() error {
	// What is there must be a file: opening a pipe that nobody reads never ends.
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
			r.torn = last[0] != '\n' // a process before us died within a line
		}
	}
	return nil
}

// Write queues a line and returns at once; what does not fit is lost and counted.
func (r *Record) Write(line []byte) { r.push(queued{line: line}) }

// Require returns nil when the line is written. Otherwise what it is about must
// not be done; the line may reach the record later, or be lost.
func (r *Record) Require(line []byte) error {
	r.mu.Lock()
	down := r.down
	r.mu.Unlock()
	if down != nil { // it waits with the others, but nobody waits for it
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
			r.down = errSlow // nobody waits again until the writer gets on
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
	default: // it is awake
	}
	return nil
}

// Stats are counts of lines since the start.
type Stats struct {
	Written int64
	Lost    int64
	Waiting int
	Up      bool // lines reach the record
}

// Stats returns the counts.
func (r *Record) Stats() Stats {
	r.mu.Lock()
	defer r.mu.Unlock()
	return Stats{Written: r.written, Lost: r.allLost, Waiting: r.lines, Up: r.down == nil && !r.ended}
}

// Run writes until ctx ends, which should be when no visit goes on any more, and then what waits, for at most five seconds. A
// writer that never returns is left behind.
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

// loop writes what is queued, one batch at a time, until stop.
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
				if n, err := r.put(batch); err == nil { // once more
					r.settle(batch[:n], nil, nil)
				}
				return
			}
		}
	}
}

// take takes all that waits, and the account of what is lost behind it.
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

// put writes lines and returns how many are whole in the record.
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
		buf = append(buf, '\n') // what was cut short is a line of its own, which does not parse
	}
	ends := make([]int, len(batch))
	for i, q := range batch {
		buf = append(buf, q.line...)
		ends[i] = len(buf)
	}
	n, err := to.Write(buf)
	for whole < len(ends) && ends[whole]-1 <= n { // without its line feed it is still a whole line
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

// follow opens the file anew if another one, or none, has its name now.
func (r *Record) follow() error {
	if r.conf.Path == "" {
		return nil
	}
	if r.file != nil {
		ours, err := r.file.Stat()
		if err == nil && ours.Size() == 0 {
			r.torn = false // it was cut
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

// settle tells what became of lines, and whether the record can be written.
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
		q.told <- err // it has room for the one word
	}
}
