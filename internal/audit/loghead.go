package audit

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
)

// A LogHead is a Head and the ID of its audit log. Its text is the ID, a colon and the text of the head. The zero LogHead is none; its text
// is empty.
type LogHead struct {
	Log  string
	Head Head
}

// ParseLogHead parses the text of a LogHead. The empty text is the zero LogHead.
func ParseLogHead(s string) (h LogHead, err error) {
	if s == "" {
		return LogHead{}, nil
	}
	id, rest, _ := strings.Cut(s, ":")
	if !isLogID([]byte(id)) {
		return LogHead{}, fmt.Errorf("%.120q does not begin with the ID of an audit log", s)
	}
	if h.Head, err = ParseHead(rest); err != nil {
		return LogHead{}, err
	}
	h.Log = id
	return h, nil
}

// IsZero reports whether h is none.
func (h LogHead) IsZero() bool { return h.Log == "" }

// String returns the text of h.
func (h LogHead) String() string {
	if h.IsZero() {
		return ""
	}
	return h.Log + ":" + h.Head.String()
}

// MarshalText implements [encoding.TextMarshaler].
func (h LogHead) MarshalText() ([]byte, error) { return []byte(h.String()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (h *LogHead) UnmarshalText(b []byte) (err error) {
	*h, err = ParseLogHead(string(b))
	return err
}

// A SignedHead is the statement of a process about its audit log. It is kept elsewhere, and later shows that lines are missing
// from the log.
type SignedHead struct {
	Role string  `json:"role" doc:"the role of the process that writes the audit log"`
	Last LogHead `json:"head" doc:"the log's id, and the number and hash of its last signed line"`
	// Prev is the last known line of the log that the same process wrote before this one.
	Prev LogHead `json:"prev,omitzero" doc:"the last known line of the log that the process wrote before this one"`
	// RolledBack is a line that was noted elsewhere and that the log no longer has.
	RolledBack LogHead `json:"rolledBack,omitzero" doc:"a line that was noted elsewhere and that the log no longer has"`
}

// Contradicts reports whether h and an earlier statement cannot both be about intact logs: the same log has become shorter, its
// last line has changed, or its predecessor ended before a line that was known. The IDs of logs are random, so statements about
// unrelated logs never contradict each other. Without the log itself, two statements with different numbers of lines can be
// compared no further.
func (h SignedHead) Contradicts(earlier SignedHead) bool {
	return h.Last.contradicts(earlier.Last) || h.Prev.contradicts(earlier.Last) || !h.Last.IsZero() && h.Last.Log == earlier.Prev.Log
}

// contradicts reports whether h is not the end of a log that once had the line earlier.
func (h LogHead) contradicts(earlier LogHead) bool {
	return !h.IsZero() && h.Log == earlier.Log &&
		(h.Head.Seq < earlier.Head.Seq || h.Head.Seq == earlier.Head.Seq && h.Head.Hash != earlier.Head.Hash)
}

// Signed returns the statement about the last signed line that is on disk. It returns false before the first one, and for a log that is
// not a file: each run writes a separate log there, and the process cannot tell what became of it.
func (l *Log) Signed() (SignedHead, bool) {
	h := l.signed.Load()
	if h == nil {
		return SignedHead{}, false
	}
	return *h, true
}

// Check compares the audit log with an earlier statement about it, which another process kept. It returns the line that the
// statement proves and the log no longer has, or the zero LogHead. It reads the files, so its duration depends on their size.
func (l *Log) Check(earlier SignedHead) (LogHead, error) {
	now, ok := l.Signed()
	if !ok || earlier.Role != now.Role {
		return LogHead{}, nil
	}
	if now.Last.Log == earlier.Prev.Log || now.Prev.contradicts(earlier.Last) {
		return earlier.Last, nil
	}
	if now.Last.Log != earlier.Last.Log {
		return LogHead{}, nil
	}
	if l.Head().Seq < earlier.Last.Head.Seq {
		return earlier.Last, nil
	}
	has, known, err := findLine(l.conf.Path, earlier.Last)
	if err != nil || has || !known {
		return LogHead{}, err
	}
	return earlier.Last, nil
}

// findLine searches the files of the audit log at path for a line. known is false if no file has lines around it: an older file
// was removed.
func findLine(path string, h LogHead) (has, known bool, err error) {
	paths, err := RotatedFiles(path)
	if err != nil {
		return false, false, err
	}
	paths = append(paths, path)
	for _, p := range slices.Backward(paths) { // the newest first, because the line is usually there
		if known {
			break
		}
		f, err := os.Open(p)
		if errors.Is(err, fs.ErrNotExist) {
			continue // rotated or removed meanwhile
		} else if err != nil {
			return false, false, err
		}
		first, last := uint64(maxSeq), uint64(0)
		for text, err := range linesOf(f) {
			if err != nil {
				return false, false, errors.Join(err, f.Close())
			}
			l, err := ParseLine(text.line)
			if err != nil || l.Log != h.Log {
				continue
			}
			first, last = min(first, l.Seq), max(last, l.Seq)
			has = has || l.Head() == h.Head && l.Sound()
		}
		f.Close()
		known = first <= h.Head.Seq && h.Head.Seq <= last
	}
	return has, known, nil
}
