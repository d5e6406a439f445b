package audit

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"log/slog"
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

// A logFile is the destination of the lines: a stream or a file. This process, or another process, may
// rotate the file.
type logFile struct {
	stream  io.Writer
	path    string
	maxSize int64
	keep    int
	log     *slog.Logger

	segment
	limit   int64 // size in bytes at which rotation is due
	syncing atomic.Bool
	syncs   sync.WaitGroup
}

// A segment is the current file of the tape, or the known state of the stream.
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
	lines := newLineReader(r)
	for {
		text, ended, err := lines.next()
		if err != nil {
			if err == io.EOF {
				err = nil
			}
			return t, torn, err
		}
		torn = !ended
		l, err := ParseLine(text)
		if err != nil || !l.Sound() {
			rest.add(text)
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
		switch l.Kind {
		case KindHeader:
			if h, err := contentOf[Header](l, lenient); err == nil {
				t.header, t.key = h, h.Key
			}
		case KindKey:
			if c, err := contentOf[KeyChange](l, lenient); err == nil {
				t.key = c.Key
			}
		default:
			*rest = junk{} // accounted for, or too late to account for
		}
	}
}

// A lineReader splits its input into lines.
type lineReader struct{ r *bufio.Reader }

func newLineReader(r io.Reader) lineReader { return lineReader{bufio.NewReaderSize(r, maxLine)} }

// next returns the next line without its line feed. The text is valid until the following call.
// ended is false for a last line without a line feed. A line longer than maxLine is returned in
// parts. At the end the error is io.EOF.
func (r lineReader) next() (text []byte, ended bool, err error) {
	text, err = r.r.ReadSlice('\n')
	switch {
	case err == nil:
		return text[:len(text)-1], true, nil
	case errors.Is(err, bufio.ErrBufferFull):
		return text, true, nil
	case err == io.EOF && len(text) > 0:
		return text, false, nil
	}
	return nil, false, err
}

// open opens the file at the path, locks it and reads it. It does not switch the tape to it.
func (t *logFile) open() (r segment, found scanState, rest junk, err error) {
	f, err := os.OpenFile(t.path, os.O_RDWR|os.O_APPEND|os.O_CREATE, 0o600)
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
		return r, found, rest, fmt.Errorf("%s is not a regular file", t.path)
	}
	if err := lock(f); err != nil {
		return r, found, rest, fmt.Errorf("%s is in use by another process, or cannot be locked: %w", t.path, err)
	}
	if current, err := os.Stat(t.path); err != nil || !os.SameFile(opened, current) {
		return r, found, rest, fmt.Errorf("another process moved %s", t.path)
	}
	if opened, err = f.Stat(); err != nil { // the previous lock holder may have written
		return r, found, rest, err
	}
	r = segment{file: f, size: opened.Size()}
	if found, r.torn, err = scanLines(io.NewSectionReader(f, 0, r.size), &rest); err != nil {
		return r, found, rest, fmt.Errorf("read %s: %w", t.path, err)
	}
	r.first = found.first
	if found.lines == 0 && rest.lines > 0 {
		if err := checkInterruptedStart(io.NewSectionReader(f, 0, r.size)); err != nil {
			return r, found, rest, fmt.Errorf("%s contains something other than an audit log; move the file away", t.path)
		}
	}
	return r, found, rest, nil
}

// use makes r the current file of the tape. The previous file must be closed.
func (t *logFile) use(r segment) { t.segment, t.limit = r, t.maxSize }

// checkInterruptedStart returns an error unless every line can be the beginning of the first line of an audit
// log. Such lines are left by a start that was interrupted.
func checkInterruptedStart(r io.Reader) error {
	const begin = openSeq + "1" + openLog
	for lines := newLineReader(r); ; {
		text, _, err := lines.next()
		if err == io.EOF {
			return nil
		}
		if err != nil {
			return err
		}
		if !bytes.HasPrefix(text, []byte(begin)) && !strings.HasPrefix(begin, string(text)) {
			return errors.New("something else")
		}
	}
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
	current, err := os.Stat(t.path)
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
			return absent, fmt.Errorf("read %s: %w", t.path, err)
		}
		t.log.Error("another process writes to the audit log file", "path", t.path, "bytes", opened.Size()-t.size)
		t.size, t.torn = opened.Size(), torn
		return intact, nil
	}
	var left junk
	found, torn, err := scanLines(io.NewSectionReader(t.file, 0, opened.Size()), &left)
	if err != nil {
		return absent, fmt.Errorf("read %s: %w", t.path, err)
	}
	*rest, t.size, t.first, t.torn = left, opened.Size(), found.first, torn
	return shrunk, nil
}

// setFirst records the sequence number of a header if it is the first line of the file.
func (t *logFile) setFirst(seq uint64) {
	if t.first == 0 {
		t.first = seq
	}
}

// write appends b.
func (t *logFile) write(b []byte) (n int, err error) {
	if t.stream != nil {
		n, err = t.stream.Write(b)
	} else if t.file == nil {
		return 0, fmt.Errorf("%s is not open", t.path)
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
	to := fmt.Sprintf("%s.%016d", t.path, t.first)
	_, err := os.Lstat(to)
	if err == nil {
		err = fmt.Errorf("%s exists already", to)
	} else if errors.Is(err, fs.ErrNotExist) {
		err = os.Rename(t.path, to)
	}
	if err != nil {
		t.limit = t.size + t.maxSize // do not try again at once
		return err
	}
	err = t.close()
	if old, lerr := RotatedFiles(t.path); lerr != nil {
		err = errors.Join(err, lerr)
	} else if t.keep > 0 && len(old) > t.keep {
		for _, path := range old[:len(old)-t.keep] {
			err = errors.Join(err, os.Remove(path))
		}
	}
	if err != nil {
		t.log.Error("rotating an old file of the audit log failed", "err", err)
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
	paths, err := RotatedFiles(t.path)
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
// requests.
func (t *logFile) sync() {
	if t.file == nil || !t.syncing.CompareAndSwap(false, true) {
		return
	}
	f := t.file
	t.syncs.Go(func() {
		defer t.syncing.Store(false)
		if err := f.Sync(); err != nil && !errors.Is(err, fs.ErrClosed) {
			t.log.Error("flushing the audit log to disk failed", "err", err)
		}
	})
}

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
