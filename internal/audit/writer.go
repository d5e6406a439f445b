package audit

import (
	"bytes"
	"cmp"
	"errors"
	"fmt"
	"time"
)

// Limits of one write, and of the pause after a failed write.
const (
	maxBatch = 128 << 10
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// A writer moves items from the queue of a Log to its file. Only the writer's goroutine uses it,
// and Open before that goroutine starts.
//
//	        the write fails
//	up ------------------------> down: entries wait; when the queue is full they are lost and counted
//	^                             |
//	+-----------------------------+  after a pause, the writer tries again
//	        the write succeeds
type writer struct {
	*Log
	file  logFile
	chain chain

	batch        []item        // the current batch; its items come before those in the queue
	headerReason Why           // if set, the next line must be a header with this reason
	prev         LogHead       // for headers
	signed       SignedHead    // the last signed line that was written
	prevKey      Key           // if set, signs a KeyChange line that names Config.Key, before the header
	junk         junk          // invalid text that the next line after a header must account for
	unsigned     int           // lines since the last signature
	due          bool          // a signature is due by time
	pause        time.Duration // current pause after a failed write; 0 while writes succeed
	loggedSlow   time.Time

	buf   []byte
	marks []lineMark
}

// A lineMark describes one line in the buffer.
type lineMark struct {
	end   int // offset in the buffer after the line feed
	chain chain
	kind  Kind
	item  bool // the line is the first item of batch
}

// begin opens the file and writes the header. For a stream, run writes the header, because a stream
// may be slow from the start.
func (w *writer) begin() error {
	if w.conf.Writer != nil {
		w.chain.log = newLogID()
		return nil
	}
	r, found, rest, err := w.file.open()
	if err != nil {
		return err
	}
	w.file.use(r)
	if w.junk = rest; found.lines == 0 && rest.lines == 0 {
		found, err = w.file.readNewestRotated(&w.junk)
	}
	if err == nil {
		err = w.resume(found)
	}
	if err == nil {
		err = w.flush()
	}
	if err != nil {
		w.file.close()
	}
	return err
}

// resume continues the audit log that was found, or starts a new one.
func (w *writer) resume(found scanState) error {
	if found.lines == 0 {
		w.chain.log, w.prev = newLogID(), w.conf.Prev
		return nil
	}
	if h := found.header; h.Cluster != "" && (h.Cluster != w.conf.Cluster || h.Role != w.conf.Role) {
		return fmt.Errorf(
			"%s belongs to the role %q in the cluster %q, but this process has the role %q in the cluster %q: use a separate file for each",
			w.conf.Path,
			h.Role,
			h.Cluster,
			w.conf.Role,
			w.conf.Cluster,
		)
	}
	w.headerReason, w.chain, w.prev = Restarted, chain{found.log, found.head}, found.header.Prev
	switch found.key {
	case w.conf.Key.Public():
	case w.conf.OldKey.Public():
		w.prevKey = w.conf.OldKey
	default:
		w.conf.Log.Warn("the audit log continues with a key that the previous key did not sign; to verify it, pass both keys",
			"before", found.key.String(), "now", w.conf.Key.Public().String())
	}
	return nil
}

// run writes queued items until the Log is closed.
func (w *writer) run() {
	defer close(w.done)
	tick := time.NewTicker(w.conf.CheckpointEvery)
	defer tick.Stop()
	var again <-chan time.Time
	for {
		wake, sign := w.wake, w.sign
		if again != nil {
			wake, sign = nil, nil
		}
		var signed chan struct{}
		select {
		case signed = <-sign:
			w.due = w.unsigned > 0
		case <-wake:
		case <-again:
			again = nil
		case <-tick.C:
			if w.unsigned == 0 || again != nil {
				continue
			}
			w.due = true
		case <-w.stop:
			w.last = w.end()
			return
		}
		if err := w.flush(); err != nil {
			w.failed(err)
			again = time.After(w.pause)
		}
		if signed != nil {
			w.file.wait()
			close(signed)
		}
	}
}

// failed records that entries do not reach the audit log. Waiting callers get the error, and the
// first failure is logged.
func (w *writer) failed(err error) {
	w.mu.Lock()
	w.down = err
	w.mu.Unlock()
	w.retries.Add(1)
	if w.pause == 0 {
		w.conf.Log.Error("writing the audit log fails; entries wait", "err", err)
	}
	w.pause = min(max(minPause, 2*w.pause), maxPause)
	for i := range w.batch {
		w.batch[i].finish(err)
	}
}

// succeeded records that entries reach the audit log.
func (w *writer) succeeded() {
	w.mu.Lock()
	was := w.down
	w.down = nil
	w.mu.Unlock()
	w.pause = 0
	if was == nil {
		return
	}
	if now := w.conf.Now(); was != errSlow {
		w.conf.Log.Warn("writing the audit log works again", "was", was, "dropped", w.dropped.Load())
	} else if now.Sub(w.loggedSlow) >= time.Minute { // a slow disk is often slow for hours, so log it at most once a minute
		w.loggedSlow = now
		w.conf.Log.Warn("the audit log is slow; requests continued without it", "delay", w.conf.Delay.String(), "dropped", w.dropped.Load())
	}
}

// finish sends the result to the caller that waits for the item. It never blocks, because the channel
// has room for one value.
func (it *item) finish(err error) {
	if it.done != nil {
		it.done <- err
		it.done = nil
	}
}

// end writes the queued items and the final signature, and closes the file.
func (w *writer) end() error {
	err := w.flush()
	if err == nil {
		w.compose(EndOfRun)
		err = w.appendItem()
	}
	if err != nil {
		w.failed(err)
	}
	sealed := w.file.file != nil && err == nil
	err = errors.Join(err, w.file.close())
	if sealed && err == nil {
		w.Log.signed.Store(new(w.signed))
	}
	return err
}

// flush writes all queued items.
func (w *writer) flush() error {
	for {
		w.takeBatch()
		if len(w.batch) == 0 && w.headerReason == "" && !w.due {
			return nil
		}
		if err := w.appendHeader(); err != nil {
			return err
		}
		w.compose("")
		if err := w.appendItem(); err != nil {
			return err
		}
		w.succeeded()
	}
}

// takeBatch moves a batch from the queue to batch, unless a batch is already there.
func (w *writer) takeBatch() {
	if len(w.batch) > 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n, size := 0, 0
	for n < len(w.queue) && size < maxBatch {
		size += len(w.queue[n].body)
		n++
	}
	w.batch = append(w.batch, w.queue[:n]...)
	if w.queue = w.queue[n:]; len(w.queue) == 0 {
		w.queue = nil
	}
}

// appendHeader prepares the file for the next lines. It opens the path again if the file was moved, and
// rotates a full file.
func (w *writer) appendHeader() error {
	if w.conf.Writer != nil {
		return nil
	}
	state, err := w.file.compare(&w.junk)
	switch {
	case err != nil:
		return err
	case state == shrunk:
		w.headerReason = Shrunk
		w.conf.Log.Error("another process truncated the audit log file", "path", w.conf.Path)
		return nil
	case state == moved:
		return w.change(Moved)
	case state == intact && w.file.full():
		return w.change(Rotated)
	case state == absent:
		return w.change("")
	}
	return nil
}

// change switches to another file: a new one, or a copy of the old file that another
// process put in its place.
func (w *writer) change(why Why) error {
	if why == Rotated {
		if err := w.seal(); err != nil {
			return err
		}
		if err := w.file.rotate(); err != nil {
			w.conf.Log.Error("rotation failed; the audit log continues in the full file", "err", err)
			return nil
		}
		w.headerReason = why
	}
	r, found, rest, err := w.file.open()
	if err != nil {
		return err
	}
	switch {
	case rest.lines > 0, found.lines > 0 && found.head != w.chain.head:
		return errors.Join(fmt.Errorf("%s was replaced by another file; move it away", w.conf.Path), r.file.Close())
	case found.lines == 0 && why == Moved:
		err = w.seal() // if this fails, the new file accounts for the partial write
	}
	if err = errors.Join(err, w.file.close()); err != nil {
		w.conf.Log.Error("the audit log file was moved, and writing its end failed", "err", err)
	}
	if w.file.use(r); why != "" {
		w.headerReason = why
	}
	return nil
}

// seal ends a file with a signature.
func (w *writer) seal() error {
	w.compose(EndOfFile)
	return w.appendItem()
}

// compose fills the buffer with the next lines. They are the current batch, or the final checkpoint
// if end is set.
func (w *writer) compose(end End) {
	w.buf, w.marks = w.buf[:0], w.marks[:0]
	c, now, id := w.chain, w.conf.Now().UTC(), w.conf.Key.Public().ID()
	if w.file.torn {
		w.buf = append(w.buf, '\n')
	}
	add := func(kind Kind, body []byte, by Key, isItem bool) {
		w.buf = c.append(w.buf, kind, body, by)
		w.marks = append(w.marks, lineMark{len(w.buf), c, kind, isItem})
	}
	if !w.prevKey.IsZero() {
		add(KindKey, bodyOf(KeyChange{Time: now, Key: w.conf.Key.Public(), KeyID: id, By: w.prevKey.Public().ID()}), w.prevKey, false)
	}
	if w.headerReason != "" {
		add(KindHeader, bodyOf(Header{Time: now, Version: SchemaVersion, Cluster: w.conf.Cluster, ClusterID: w.conf.ClusterID,
			Role: w.conf.Role, Software: w.conf.Software, Key: w.conf.Key.Public(), KeyID: id, Why: w.headerReason, Prev: w.prev}), w.conf.Key, false)
	}
	if w.junk.lines > 0 {
		add(KindTorn, bodyOf(w.junk.torn(now)), w.conf.Key, false)
	}
	if end == "" {
		for _, it := range w.batch {
			if it.kind == KindGap {
				it.gap.Time = now
				it.body = bodyOf(it.gap)
			}
			add(it.kind, it.body, w.conf.Key, true)
		}
	}
	if end != "" || w.due || w.unsigned+len(w.marks) >= w.conf.CheckpointLines {
		add(KindCheckpoint, bodyOf(Checkpoint{Time: now, KeyID: id, End: end}), w.conf.Key, false)
	}
}

// appendItem writes the buffer. Lines that are complete in the file count as written even if the write
// returns an error. The rest of a partial line is junk.
func (w *writer) appendItem() error {
	n, err := w.file.write(w.buf)
	good := 0
	for _, m := range w.marks {
		if n < m.end-1 {
			break // a line without its line feed is still complete
		}
		w.finishItems(m, w.buf[good:m.end-1])
		good = m.end
	}
	rest := w.buf[min(good, n):n]
	if good == 0 && w.file.torn && len(rest) > 0 {
		rest = rest[1:] // skip the line feed that ended the text before
	}
	if n > 0 {
		w.file.torn = n < good || len(rest) > 0
	}
	if len(rest) > 0 {
		w.junk.add(rest)
	}
	return err
}

// finishItems updates the state after one line is in the file.
func (w *writer) finishItems(m lineMark, text []byte) {
	w.chain = m.chain
	w.head.Store(new(m.chain.head))
	w.unsigned++
	switch m.kind {
	case KindHeader:
		w.headerReason, w.unsigned = "", 0
		w.file.first = cmp.Or(w.file.first, m.chain.head.Seq)
	case KindTorn:
		w.junk = junk{}
		w.torn.Add(1)
	case KindCheckpoint:
		w.unsigned, w.due = 0, false
	case KindGap:
		w.gaps.Add(1)
	case KindKey:
		w.unsigned, w.prevKey = 0, Key{}
	}
	if m.kind.signed() {
		w.signed = SignedHead{Role: w.conf.Role, Last: LogHead{m.chain.log, m.chain.head}, Prev: w.prev}
		w.file.sync(func(h SignedHead) func() { return func() { w.Log.signed.Store(&h) } }(w.signed))
	}
	if m.item {
		it := w.batch[0]
		it.finish(nil)
		if w.batch = w.batch[1:]; len(w.batch) == 0 {
			w.batch = nil
		}
		if it.kind == KindEntry {
			w.mu.Lock()
			w.waiting--
			w.size -= len(it.body)
			w.mu.Unlock()
		}
	}
	if w.conf.Export != nil {
		if l, err := ParseLine(bytes.Clone(bytes.TrimPrefix(text, []byte{'\n'}))); err == nil {
			w.conf.Export(l)
		}
	}
}
