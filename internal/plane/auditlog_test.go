package plane

import (
	"bytes"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
)

func openLog(t *testing.T, path string) *audit.Log {
	t.Helper()
	l, err := audit.Open(audit.Config{Path: path, Cluster: "c", Role: "plane", Key: audit.GenerateKey(), MaxSize: 200 << 10, Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Delay: time.Minute})
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func readAll(t *testing.T, r AuditLog, limit int) (ids []string, damaged int) {
	t.Helper()
	damaged, err := r.ReadNewest(t.Context(), func(e AuditEntry) bool {
		ids = append(ids, e.RequestID)
		return len(ids) < limit
	})
	if err != nil {
		t.Fatal(err)
	}
	return ids, damaged
}

// The audit log is read from its end, across all files, each entry once.
func TestRecordIsReadFromItsEnd(t *testing.T) {
	path := filepath.Join(t.TempDir(), "audit.jsonl")
	if _, err := (AuditLog{path + "/none"}).ReadNewest(t.Context(), nil); err == nil {
		t.Error("a record that cannot be there is an empty one")
	}
	if ids, damaged := readAll(t, AuditLog{path}, 1); ids != nil || damaged != 0 {
		t.Errorf("before the first entry: %v, %d", ids, damaged)
	}
	l := openLog(t, path)
	var want []string
	for i := range 3000 {
		id := fmt.Sprintf("id%05d", i)
		e := audit.Entry{Time: time.Now(), RequestID: id, Surface: "http", Verb: "v", Result: audit.Done, Args: map[string]string{"x": strings.Repeat("x", i%500)}}
		if err := l.Write(e); err != nil {
			t.Fatal(err)
		}
		want = append(want, id)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	slices.Reverse(want)
	shelf, err := audit.RotatedFiles(path)
	if err != nil || len(shelf) < 3 {
		t.Fatalf("%v, %v", shelf, err)
	}
	ids, damaged := readAll(t, AuditLog{path}, 1<<20)
	if !slices.Equal(ids, want) || damaged != 0 {
		t.Errorf("%d entries, %d damaged lines", len(ids), damaged)
	}
	if ids, _ := readAll(t, AuditLog{path}, 10); !slices.Equal(ids, want[:10]) {
		t.Errorf("the last ten are %v", ids)
	}

	// A file that is rotated during the reading is read twice.
	text, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	twice := path + ".9999999999999999"
	if err := os.WriteFile(twice, text, 0o600); err != nil {
		t.Fatal(err)
	}
	if ids, damaged = readAll(t, AuditLog{path}, 1<<20); !slices.Equal(ids, want) || damaged != 0 {
		t.Errorf("%d entries, %d damaged lines", len(ids), damaged)
	}
	if err := os.Remove(twice); err != nil {
		t.Fatal(err)
	}

	// One line is edited, and another is being written.
	edited := bytes.Replace(text, []byte(want[3]), []byte("id99999"), 1)
	if bytes.Equal(edited, text) {
		t.Fatalf("%s is not in the last file", want[3])
	}
	if err := os.WriteFile(path, append(edited, `{"seq":99,"log":"`...), 0o600); err != nil {
		t.Fatal(err)
	}
	ids, damaged = readAll(t, AuditLog{path}, 1<<20)
	if !slices.Equal(ids, slices.Delete(slices.Clone(want), 3, 4)) || damaged != 1 {
		t.Errorf("%d entries, %d damaged lines", len(ids), damaged)
	}
}

func TestBackwards(t *testing.T) {
	for name, text := range map[string]string{
		"nothing": "", "one": "a", "ended": "a\n", "empty lines": "\n\na\n\n", "two": "a\nb\n",
		"around a chunk": strings.Repeat("x", readSize-1) + "\n" + strings.Repeat("y", readSize) + "\n" + strings.Repeat("z", 3*readSize+5) + "\nq",
	} {
		var want, got []string
		for line := range strings.SplitSeq(text, "\n") {
			if line != "" {
				want = append(want, line)
			}
		}
		slices.Reverse(want)
		err := backwards(strings.NewReader(text), int64(len(text)), func(line []byte, ended bool) error {
			if last := len(got) == 0 && !strings.HasSuffix(text, "\n"); ended == last {
				t.Errorf("%s: %.10q is ended: %t", name, line, ended)
			}
			got = append(got, string(line))
			return nil
		})
		if err != nil || !slices.Equal(got, want) {
			t.Errorf("%s: %d lines, %v", name, len(got), err)
		}
	}
	// A line that is too long is not held in memory completely.
	long := strings.Repeat("x", 3*maxLine) + "\na\n"
	var most int
	if err := backwards(strings.NewReader(long), int64(len(long)), func(line []byte, _ bool) error { most = max(most, len(line)); return nil }); err != nil || most > maxLine+readSize {
		t.Errorf("%d bytes, %v", most, err)
	}
}
