package audit

import (
	"bytes"
	"errors"
	"fmt"
	"time"
)

// Bounds of one write, and of the pause after one that failed.
const (
	maxBatch = 128 << 10
	minPause = 100 * time.Millisecond
	maxPause = 5 * time.Second
)

// A writer moves items from a Log's queue to its tape. Only its own goroutine
// uses it, and Open before that.
//
//	        the write fails
//	up ------------------------> down: entries wait, then are lost and counted
//	^                             |
//	+-----------------------------+  after a pause, what waits is tried again
//	        the write succeeds
type writer struct {
	*Log
	conf  Config
	tape  tape
	chain chain
	key   Key // signs

	taken    []item        // in hand; the first ones of what waits
	why      Why           // the next line must be a header, for this reason
	prevKey  Key           // signs a line that names key, before the header; usually none
	junk     junk          // to be accounted for by the next line but a header
	unsigned int           // lines since the last signature
	due      bool          // for a signature by time
	pause    time.Duration // after a failed write
	saidSlow time.Time

	buf   []byte
	marks []mark
}

// A mark is a line in the buffer.
type mark struct {
	end   int // of the line, after its line feed
	chain chain
	kind  Kind
	item  bool // it is the first of taken
	key   Key  // of a change of keys
}

func newWriter(l *Log, c Config) *writer {
	w := &writer{Log: l, conf: c, key: c.Key, why: Started}
	w.tape = tape{path: c.Path, stream: c.Writer, maxSize: c.MaxSize, keep: c.Keep, log: c.Log}
	return w
}

// begin opens the file and writes the header. A stream gets its header from
// run: it may be slow from the start.
func (w *writer) begin() error {
	if w.tape.stream != nil {
		w.chain.log = newLogID()
		return nil
	}
	r, found, rest, err := w.tape.open()
	if err != nil {
		return err
	}
	w.tape.put(r)
	if w.junk = rest; found.lines == 0 && rest.lines == 0 {
		found, err = w.tape.shelved(&w.junk)
	}
	if err == nil {
		err = w.goOn(found)
	}
	if err == nil {
		err = w.flush()
	}
	if err != nil {
		w.tape.close()
	}
	return err
}

// goOn takes up the record that was found, or begins a new one.
func (w *writer) goOn(found trail) error {
	if found.lines == 0 {
		w.chain.log = newLogID()
		return nil
	}
	if h := found.header; h.Cluster != "" && (h.Cluster != w.conf.Cluster || h.Role != w.conf.Role) {
		return fmt.Errorf("%s is of the role %q in the cluster %q, and this is the role %q in the cluster %q: give each its own file",
			w.tape.path, h.Role, h.Cluster, w.conf.Role, w.conf.Cluster)
	}
	w.why, w.chain = Restarted, chain{found.log, found.head}
	switch found.key {
	case w.key.Public():
	case w.conf.OldKey.Public():
		w.prevKey = w.conf.OldKey
	default:
		w.conf.Log.Warn("the audit record goes on under a key that the one before did not sign; to verify it, name both",
			"before", found.key.String(), "now", w.key.Public().String())
	}
	return nil
}

// run writes until the Log is closed.
func (w *writer) run() {
	defer close(w.done)
	tick := time.NewTicker(w.conf.CheckpointEvery)
	defer tick.Stop()
	var again <-chan time.Time
	for {
		wake := w.wake
		if again != nil {
			wake = nil
		}
		select {
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
	}
}

// failed makes it known that entries do not reach the record: to visits, and
// once to the log.
func (w *writer) failed(err error) {
	w.mu.Lock()
	w.down = err
	w.mu.Unlock()
	w.retries.Add(1)
	if w.pause == 0 {
		w.conf.Log.Error("the audit record cannot be written; entries wait", "err", err)
	}
	w.pause = min(max(minPause, 2*w.pause), maxPause)
	for i := range w.taken {
		w.taken[i].tell(err)
	}
}

// worked makes it known that entries reach the record.
func (w *writer) worked() {
	w.mu.Lock()
	was := w.down
	w.down = nil
	w.mu.Unlock()
	w.pause = 0
	if was == nil {
		return
	}
	if now := w.now(); was != errSlow {
		w.conf.Log.Warn("the audit record is written again", "was", was, "dropped", w.dropped.Load())
	} else if now.Sub(w.saidSlow) >= time.Minute { // a slow disk is slow all day
		w.saidSlow = now
		w.conf.Log.Warn("the audit record is slow; visits went on without it", "delay", w.delay.String(), "dropped", w.dropped.Load())
	}
}

// tell tells whoever waits what became of the entry. It never blocks: each told
// has room for the one word.
func (it *item) tell(err error) {
	if it.told != nil {
		it.told <- err
		it.told = nil
	}
}

// end writes what waits and the last signature.
func (w *writer) end() error {
	err := w.flush()
	if err == nil {
		w.compose(EndOfRun)
		err = w.put()
	}
	if err != nil {
		w.failed(err)
	}
	return errors.Join(err, w.tape.close())
}

// flush writes all that waits.
func (w *writer) flush() error {
	for {
		w.take()
		if len(w.taken) == 0 && w.why == "" && !w.due {
			return nil
		}
		if err := w.turn(); err != nil {
			return err
		}
		w.compose("")
		if err := w.put(); err != nil {
			return err
		}
		w.worked()
	}
}

// take takes a batch from the queue, unless one is in hand.
func (w *writer) take() {
	if len(w.taken) > 0 {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	n, size := 0, 0
	for n < len(w.queue) && size < maxBatch {
		size += len(w.queue[n].body)
		n++
	}
	w.taken = append(w.taken, w.queue[:n]...)
	if w.queue = w.queue[n:]; len(w.queue) == 0 {
		w.queue = nil
	}
}

// turn makes the tape ready for the next lines: it follows a file that was
// moved, and begins another one when this one is full.
func (w *writer) turn() error {
	if w.tape.stream != nil {
		return nil
	}
	state, err := w.tape.look(&w.junk)
	switch {
	case err != nil:
		return err
	case state == shrunk:
		w.why = Shrunk
		w.conf.Log.Error("the file of the audit record was made shorter by somebody", "path", w.tape.path)
		return nil
	case state == moved:
		return w.change(Moved)
	case state == intact && w.tape.full():
		return w.change(Rotated)
	case state == absent:
		return w.change("")
	}
	return nil
}

// change puts another file on the tape: a new one, or a copy of the one that is
// there, which somebody put in its place.
func (w *writer) change(why Why) error {
	if why == Rotated {
		if err := w.seal(); err != nil {
			return err
		}
		if err := w.tape.shelve(); err != nil {
			w.conf.Log.Error("the audit record goes on in a file that is full", "err", err)
			return nil
		}
		w.why = why
	}
	r, found, rest, err := w.tape.open()
	if err != nil {
		return err
	}
	switch {
	case rest.lines > 0, found.lines > 0 && found.head != w.chain.head:
		return errors.Join(fmt.Errorf("%s is another file than it was; move it away", w.tape.path), r.file.Close())
	case found.lines == 0 && why == Moved:
		err = w.seal() // what fails here is junk, which the new file accounts for
	}
	if err = errors.Join(err, w.tape.close()); err != nil {
		w.conf.Log.Error("the audit record's file was moved, and its end is not written", "err", err)
	}
	if w.tape.put(r); why != "" {
		w.why = why
	}
	return nil
}

// seal ends a file with a signature.
func (w *writer) seal() error {
	w.compose(EndOfFile)
	return w.put()
}

// compose fills the buffer with the next lines: what is in hand, or the end.
func (w *writer) compose(end End) {
	w.buf, w.marks = w.buf[:0], w.marks[:0]
	c, key, now := w.chain, w.key, w.now().UTC()
	if w.tape.torn {
		w.buf = append(w.buf, '\n')
	}
	add := func(kind Kind, body []byte, m mark) {
		w.buf = c.append(w.buf, kind, body, key)
		m.end, m.chain, m.kind = len(w.buf), c, kind
		w.marks = append(w.marks, m)
	}
	change := func(from, to Key, m mark) {
		key, m.key = from, to
		add(KindKey, bodyOf(KeyChange{Time: now, Key: to.Public(), KeyID: to.Public().ID(), By: from.Public().ID()}), m)
		key = to
	}
	if !w.prevKey.IsZero() {
		change(w.prevKey, w.key, mark{})
	}
	if w.why != "" {
		add(KindHeader, bodyOf(Header{Time: now, Version: SchemaVersion, Cluster: w.conf.Cluster, ClusterID: w.conf.ClusterID,
			Role: w.conf.Role, Software: w.conf.Software, Key: key.Public(), KeyID: key.Public().ID(), Why: w.why}), mark{})
	}
	if w.junk.lines > 0 {
		add(KindTorn, bodyOf(w.junk.torn(now)), mark{})
	}
	if end == "" {
		for _, it := range w.taken {
			m := mark{item: true}
			switch it.kind {
			case KindGap:
				it.gap.Time = now
				add(KindGap, bodyOf(it.gap), m)
			case KindKey:
				change(key, it.key, m)
			default:
				add(it.kind, it.body, m)
			}
		}
	}
	if end != "" || w.due || w.unsigned+len(w.marks) >= w.conf.CheckpointLines {
		add(KindCheckpoint, bodyOf(Checkpoint{Time: now, KeyID: key.Public().ID(), End: end}), mark{})
	}
}

// put writes the buffer. Lines that are whole in the file count as written,
// whatever the error; what is left of a line is junk.
func (w *writer) put() error {
	n, err := w.tape.write(w.buf)
	good := 0
	for _, m := range w.marks {
		if n < m.end-1 {
			break // without its line feed it is still a whole line
		}
		w.settle(m, w.buf[good:m.end-1])
		good = m.end
	}
	rest := w.buf[min(good, n):n]
	if good == 0 && w.tape.torn && len(rest) > 0 {
		rest = rest[1:] // the line feed that ends what was there
	}
	if n > 0 {
		w.tape.torn = n < good || len(rest) > 0
	}
	if len(rest) > 0 {
		w.junk.add(rest)
	}
	return err
}

// settle takes note of a line that is in the file.
func (w *writer) settle(m mark, text []byte) {
	w.chain = m.chain
	w.head.Store(new(m.chain.head))
	w.unsigned++
	switch m.kind {
	case KindHeader:
		w.why, w.unsigned = "", 0
		w.tape.begun(m.chain.head.Seq)
	case KindTorn:
		w.junk = junk{}
		w.torn.Add(1)
	case KindCheckpoint:
		w.unsigned, w.due = 0, false
		w.tape.sync()
	case KindGap:
		w.gaps.Add(1)
	case KindKey:
		w.unsigned = 0
		if w.prevKey = (Key{}); m.item {
			w.key = m.key
		}
	}
	if m.item {
		it := w.taken[0]
		it.tell(nil)
		if w.taken = w.taken[1:]; len(w.taken) == 0 {
			w.taken = nil
		}
		if it.kind == KindEntry {
			w.mu.Lock()
			w.waiting--
			w.size -= len(it.body)
			w.mu.Unlock()
		}
	}
	if w.export != nil {
		if l, err := ParseLine(bytes.Clone(bytes.TrimPrefix(text, []byte{'\n'}))); err == nil {
			w.export(l)
		}
	}
}
