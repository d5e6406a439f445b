package plane

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"slices"

	"github.com/tailplane/tailplane/internal/audit"
)

// A Record is the audit record of this process, in the files where audit keeps
// it. It is read from its end, so that what has just happened costs little.
type Record struct {
	Path string // of the file that is being written
}

// Recorded is one entry of a record, and its number there.
type Recorded struct {
	audit.Entry
	Seq uint64
}

// errEnough ends a reading.
var errEnough = errors.New("enough")

// Newest calls yield for each entry, the newest first, until it returns false.
// Damaged is how many lines on the way are not what was written: they are passed
// over, and "tka audit verify" says what is wrong.
func (r Record) Newest(ctx context.Context, yield func(Recorded) bool) (damaged int, err error) {
	// The current file is opened before the others are listed: one that is put
	// away in between is read twice rather than not at all.
	current, err := os.Open(r.Path)
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return 0, err
	}
	older, err := audit.Shelf(r.Path)
	if err != nil {
		return 0, errors.Join(err, closeAll(current))
	}
	last := map[string]uint64{} // of each record, the number that was read last
	read := func(f *os.File) error {
		info, err := f.Stat()
		if err != nil {
			return err
		}
		return backwards(f, info.Size(), func(text []byte, ended bool) error {
			if err := ctx.Err(); err != nil {
				return err
			}
			line, err := audit.ParseLine(text)
			if err != nil || !line.Sound() {
				if ended { // else it is being written
					damaged++
				}
				return nil
			}
			if seq, known := last[line.Log]; known && line.Seq >= seq {
				return nil
			}
			last[line.Log] = line.Seq
			if line.Kind != audit.KindEntry {
				return nil
			}
			content, err := line.Content()
			entry, ok := content.(audit.Entry)
			if err != nil || !ok {
				damaged++
				return nil
			}
			if !yield(Recorded{entry, line.Seq}) {
				return errEnough
			}
			return nil
		})
	}
	files := slices.Backward(older)
	err = nil
	if current != nil {
		err = errors.Join(read(current), current.Close())
	}
	for _, path := range files {
		if err != nil {
			break
		}
		var f *os.File
		if f, err = os.Open(path); errors.Is(err, fs.ErrNotExist) {
			err = nil // it was the oldest, and has made room
			continue
		} else if err == nil {
			err = errors.Join(read(f), f.Close())
		}
	}
	if errors.Is(err, errEnough) {
		err = nil
	}
	return damaged, err
}

func closeAll(f *os.File) error {
	if f == nil {
		return nil
	}
	return f.Close()
}

// How a file is read from its end. The longest line of a record is shorter than
// maxLine: of what is longer, the part that is kept is no line.
const (
	chunk   = 64 << 10
	maxLine = 512 << 10
)

// backwards calls yield for each line of r, the last first. Ended says whether
// the line has its line feed.
func backwards(r io.ReaderAt, size int64, yield func(line []byte, ended bool) error) error {
	var rest []byte // the beginning of it is in an earlier chunk
	ended := false
	for end := size; end > 0; {
		n := min(chunk, end)
		end -= n
		part := make([]byte, n, n+int64(len(rest)))
		if _, err := r.ReadAt(part, end); err != nil {
			return fmt.Errorf("read: %w", err)
		}
		part = append(part, rest...)
		for {
			at := bytes.LastIndexByte(part, '\n')
			if at < 0 {
				break
			}
			if line := part[at+1:]; len(line) > 0 {
				if err := yield(line, ended); err != nil {
					return err
				}
			}
			part, ended = part[:at], true
		}
		rest = part[max(0, len(part)-maxLine):]
	}
	if len(rest) > 0 {
		return yield(rest, ended)
	}
	return nil
}
