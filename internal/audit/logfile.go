package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"iter"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
)

// maxLine is the maximum length of a line in bytes. Longer text is junk. The largest clipped entry
// is shorter.
const maxLine = 256 << 10

// A logFile is the destination of the lines: the Writer or the file at the Path of its Config. This
// process, or another process, may rotate the file.
type logFile struct {
	*Config
	segment
	limit   int64 // size in bytes at which rotation is due
	syncing atomic.Bool
	synced  atomic.Pointer[func()] // what to call after the next fsync
	syncs   sync.WaitGroup
}

// A segment is the current file, or the known state of the stream.
type segment struct {
	file  *os.File
	size  int64  // of the file after the last write of this process
	first uint64 // sequence number of the file's first line
	torn  bool   // the last write did not end its line
}

// A scanState is the state of an audit log that follow read from a file.
type scanState struct {
	lines  int // number of valid lines
	log    string
	head   Head      // of the last line
	first  uint64    // sequence number of the first line
	header Header    // the most recent header; zero if there is none
	key    PublicKey // the key that signs after the last line
}

// scanLines reads lines until r ends. It returns the state of the audit log, and adds the invalid text
// after the last line that accounts for such text to rest. torn means that the last line has no
// line feed.
func scanLines(r io.Reader, rest *junk) (t scanState, torn bool, err error) {
	for text, err := range linesOf(r) {
		if err != nil {
			return t, torn, err
		}
		torn = !text.ended
		l, err := ParseLine(text.line)
		if err != nil || !l.Sound() {
			rest.add(text.line)
			continue
		}
		if t.lines == 0 {
			t.log, t.first = l.Log, l.Seq
		}
		if l.Log != t.log {
			continue // a line of another audit log; Verify reports it
		}
		t.lines++
		t.head = l.Head()
		if l.Kind != KindHeader && l.Kind != KindKey {
			*rest = junk{} // accounted for, or too late to account for
			continue
		}
		switch c, _ := l.content(lenient); c := c.(type) {
		case Header:
			t.header, t.key = c, c.Key
		case KeyChange:
			t.key = c.Key
		}
	}
	return t, torn, nil
}

// A lineText is a line without its line feed. ended is false for a last line without a line feed.
type lineText struct {
	line  []byte
	ended bool
}

// linesOf yields the lines of r. A text is valid until the next one. A line longer than maxLine is
// yielded in parts. An error ends the sequence.
func linesOf(r io.Reader) iter.Seq2[lineText, error] {
	return func(yield func(lineText, error) bool) {
		for b := bufio.NewReaderSize(r, maxLine); ; {
			text, err := b.ReadSlice('\n')
			switch {
			case err == io.EOF && len(text) == 0:
				return
			case err != nil && err != io.EOF && err != bufio.ErrBufferFull:
				yield(lineText{}, err)
				return
			}
			if !yield(lineText{bytes.TrimSuffix(text, []byte("\n")), err != io.EOF}, nil) {
				return
			}
		}
	}
}

// open opens the file at the path, locks it and reads it. It does not switch to it.
func (t *logFile) open() (r segment, found scanState, rest junk, err error) {
	f, err := os.OpenFile(t.Path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
	if err != nil {
		return r, found, rest, err
	}
	defer func() {
		if err != nil {
			f.Close()
		}
	}()
	opened, err := f.Stat()
	if err != nil {
		return r, found, rest, err
	}
	if !opened.Mode().IsRegular() {
		return r, found, rest, fmt.Errorf("%s is not a regular file", t.Path)
	}
	if err := lock(f); err != nil {
		return r, found, rest, fmt.Errorf("%s is in use by another process, or cannot be locked: %w", t.Path, err)
	}
	if current, err := os.Stat(t.Path); err != nil || !os.SameFile(opened, current) {
		return r, found, rest, fmt.Errorf("another process moved %s", t.Path)
	}
	if opened, err = f.Stat(); err != nil { // the previous lock holder may have written
		return r, found, rest, err
	}
	r = segment{file: f, size: opened.Size()}
	if found, r.torn, err = scanLines(io.NewSectionReader(f, 0, r.size), &rest); err != nil {
		return r, found, rest, fmt.Errorf("read %s: %w", t.Path, err)
	}
	r.first = found.first
	if found.lines == 0 && rest.lines > 0 {
		if err := checkInterruptedStart(io.NewSectionReader(f, 0, r.size)); err != nil {
			return r, found, rest, fmt.Errorf("%s contains something other than an audit log; move the file away", t.Path)
		}
	}
	return r, found, rest, nil
}

// use makes r the current file. The previous file must be closed.
func (t *logFile) use(r segment) { t.segment, t.limit = r, t.MaxSize }

// checkInterruptedStart returns an error unless every line can be the beginning of the first line of an audit
// log. Such lines are left by a start that was interrupted.
func checkInterruptedStart(r io.Reader) error {
	const begin = openSeq + "1" + openLog
	for text, err := range linesOf(r) {
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(text.line, []byte(begin)) && !strings.HasPrefix(begin, string(text.line)) {
			return errors.New("something else")
		}
	}
	return nil
}

// The states of the open file.
type fileState int

const (
	absent fileState = iota // no file is open
	intact                  // no bytes that this process wrote are missing; bytes that another process added are junk
	moved                   // the path has another file or none
	shrunk                  // another process truncated the file
)

// compare compares the file with the state after the last write of this process.
func (t *logFile) compare(rest *junk) (fileState, error) {
	if t.file == nil {
		return absent, nil
	}
	opened, err := t.file.Stat()
	if err != nil {
		return absent, err
	}
	current, err := os.Stat(t.Path)
	switch {
	case errors.Is(err, fs.ErrNotExist) || err == nil && !os.SameFile(opened, current):
		return moved, nil
	case err != nil:
		return absent, err
	case opened.Size() == t.size:
		return intact, nil
	case opened.Size() > t.size:
		_, torn, err := scanLines(io.NewSectionReader(t.file, t.size, opened.Size()-t.size), rest)
		if err != nil {
			return absent, fmt.Errorf("read %s: %w", t.Path, err)
		}
		t.Log.Error("another process writes to the audit log file", "path", t.Path, "bytes", opened.Size()-t.size)
		t.size, t.torn = opened.Size(), torn
		return intact, nil
	}
	var left junk
	found, torn, err := scanLines(io.NewSectionReader(t.file, 0, opened.Size()), &left)
	if err != nil {
		return absent, fmt.Errorf("read %s: %w", t.Path, err)
	}
	*rest, t.size, t.first, t.torn = left, opened.Size(), found.first, torn
	return shrunk, nil
}

// write appends b.
func (t *logFile) write(b []byte) (n int, err error) {
	if t.Writer != nil {
		n, err = t.Writer.Write(b)
	} else if t.file == nil {
		return 0, fmt.Errorf("%s is not open", t.Path)
	} else {
		n, err = t.file.Write(b)
	}
	n = max(0, min(n, len(b)))
	if n < len(b) && err == nil {
		err = io.ErrShortWrite
	}
	t.size += int64(n)
	return n, err
}

// full reports whether rotation is due.
func (t *logFile) full() bool { return t.limit > 0 && t.size >= t.limit }

// rotate renames the file to the number of its first line, closes it, and deletes the oldest
// rotated files above the limit.
func (t *logFile) rotate() error {
	to := fmt.Sprintf("%s.%016d", t.Path, t.first)
	_, err := os.Lstat(to)
	if err == nil {
		err = fmt.Errorf("%s exists already", to)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(t.Path, to)
	}
	if err != nil {
		t.limit = t.size + t.MaxSize // do not try again at once
		return err
	}
	err = t.close()
	if old, lerr := RotatedFiles(t.Path); lerr != nil {
		err = errors.Join(err, lerr)
	} else if t.Keep > 0 && len(old) > t.Keep {
		for _, path := range old[:len(old)-t.Keep] {
			err = errors.Join(err, os.Remove(path))
		}
	}
	if err != nil {
		t.Log.Error("rotating an old file of the audit log failed", "err", err)
	}
	return nil
}

// RotatedFiles lists the rotated files of the audit log at path, the oldest first.
func RotatedFiles(path string) (paths []string, err error) {
	dir, base := filepath.Split(path)
	entries, err := os.ReadDir(filepath.Clean(dir + "."))
	if err != nil {
		return nil, err
	}
	for _, e := range entries {
		number, ok := strings.CutPrefix(e.Name(), base+".")
		if _, err := strconv.ParseUint(number, 10, 64); ok && err == nil && len(number) == 16 {
			paths = append(paths, dir+e.Name())
		}
	}
	slices.Sort(paths)
	return paths, nil
}

// readNewestRotated reads the newest rotated file. A process that ended between two files continues from
// there.
func (t *logFile) readNewestRotated(rest *junk) (found scanState, err error) {
	paths, err := RotatedFiles(t.Path)
	if err != nil || len(paths) == 0 {
		return found, err
	}
	f, err := os.Open(paths[len(paths)-1])
	if err != nil {
		return found, err
	}
	defer f.Close()
	found, _, err = scanLines(f, rest)
	return found, err
}

// sync starts an fsync of the file and does not wait for it, because a slow disk must not delay
// requests. It calls then when all that was written before is on disk, unless a later call follows.
func (t *logFile) sync(then func()) {
	if t.file == nil {
		return
	}
	t.synced.Store(&then)
	if !t.syncing.CompareAndSwap(false, true) {
		return
	}
	f := t.file
	t.syncs.Go(func() {
		for {
			then := t.synced.Swap(nil)
			if then == nil {
				t.syncing.Store(false)
				if t.synced.Load() == nil || !t.syncing.CompareAndSwap(false, true) {
					return
				}
				continue
			}
			switch err := f.Sync(); {
			case err == nil:
				(*then)()
			case !errors.Is(err, fs.ErrClosed):
				t.Log.Error("flushing the audit log to disk failed", "err", err)
			}
		}
	})
}

// wait waits until the last call of sync is done.
func (t *logFile) wait() { t.syncs.Wait() }

// close flushes the file to disk and closes it.
func (t *logFile) close() error {
	if t.file == nil {
		return nil
	}
	err := errors.Join(t.file.Sync(), t.file.Close())
	t.syncs.Wait()
	t.segment = segment{}
	return err
}
