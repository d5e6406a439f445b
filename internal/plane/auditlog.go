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

// AuditLog reads the audit log of this process from the files that package audit writes. It reads backwards, so recent entries cost little.
type AuditLog struct {
	Path string // the file that audit is writing
}

// AuditEntry is one audit entry with its sequence number.
type AuditEntry struct {
	audit.Entry
	Seq uint64
}

// errStop stops a reading.
var errStop = errors.New("enough")

// ReadNewest calls yield for each entry, newest first, until yield returns false. It skips damaged lines and returns their number; "tka audit
// verify" explains them.
func (r AuditLog) ReadNewest(ctx context.Context, yield func(AuditEntry) bool) (damaged int, err error) {
	last := map[string]uint64{} // by log, the sequence number that was read last
	read := func(path string) error {
		f, err := os.Open(path)
		if errors.Is(err, fs.ErrNotExist) {
			return nil // a new log, or the oldest file was deleted to make room
		}
		if err != nil {
			return err
		}
		defer f.Close()
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
				if ended { // a line without its line feed is still being written
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
			if !yield(AuditEntry{entry, line.Seq}) {
				return errStop
			}
			return nil
		})
	}
	// Read the current file before listing the older ones. If audit rotates it in between, the file is read twice, not missed.
	err = read(r.Path)
	if err == nil {
		var older []string
		older, err = audit.RotatedFiles(r.Path)
		for _, path := range slices.Backward(older) {
			if err == nil {
				err = read(path)
			}
		}
	}
	if errors.Is(err, errStop) {
		err = nil
	}
	return damaged, err
}

// Parameters of backward reading. Every line of the log is shorter than maxLine; the rest of a longer line is counted as damaged.
const (
	readSize = 64 << 10
	maxLine  = 512 << 10
)

// backwards calls yield for each line of r, last first. ended reports whether the line has its line feed.
func backwards(r io.ReaderAt, size int64, yield func(line []byte, ended bool) error) error {
	var rest []byte // the line begins in an earlier chunk
	ended := false
	for end := size; end > 0; {
		n := min(readSize, end)
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
