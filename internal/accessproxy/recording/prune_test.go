package recording

import (
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// The number of recordings is bounded: old ones make room, young ones do not.
func TestMaxCount(t *testing.T) {
	c := &clock{time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	d := openDir(t, DirConfig{MaxCount: 3, Now: c.Now})
	var all []string
	for range 3 {
		id, err := store(t, d, c, 10)
		if err != nil {
			t.Fatal(err)
		}
		all = append([]string{id}, all...)
		c.now = c.now.Add(time.Hour)
	}
	if _, err := store(t, d, c, 10); !errors.Is(err, ErrFull) {
		t.Errorf("a fourth recording on the same day: %v, want ErrFull", err)
	}
	if err := d.Check(); !errors.Is(err, ErrFull) {
		t.Errorf("the check of a full directory: %v, want ErrFull", err)
	}
	c.now = c.now.Add(22 * time.Hour) // only the oldest is older than a day
	id, err := store(t, d, c, 10)
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{id, all[0], all[1]}, ids(t, d)); diff != "" {
		t.Errorf("after a day (-want +got):\n%s", diff)
	}
	if got := d.Stats(); got.Count != 3 || got.Live != 0 {
		t.Errorf("the figures are %+v, want 3 recordings, none live", got)
	}
}

// A complete recording has its hash beside it, in the form that sha256sum reads. The hash is deleted with it.
func TestHash(t *testing.T) {
	c := &clock{time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	d := openDir(t, DirConfig{MaxAge: 48 * time.Hour, Now: c.Now})
	id, err := store(t, d, c, 10)
	if err != nil {
		t.Fatal(err)
	}
	text, err := os.ReadFile(filepath.Join(d.cfg.Path, id+suffixCast))
	if err != nil {
		t.Fatal(err)
	}
	sum := sha256.Sum256(text)
	want := hex.EncodeToString(sum[:])
	list, err := d.List("", 0)
	if err != nil {
		t.Fatal(err)
	}
	if len(list) != 1 || list[0].SHA256 != want {
		t.Errorf("the list is %+v, want the hash %s", list, want)
	}
	line, err := os.ReadFile(filepath.Join(d.cfg.Path, id+suffixSum))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(want+"  "+id+suffixCast+"\n", string(line)); diff != "" {
		t.Errorf("the file of the hash (-want +got):\n%s", diff)
	}
	c.now = c.now.Add(72 * time.Hour)
	if err := d.Prune(); err != nil {
		t.Fatal(err)
	}
	if got := files(t, d.cfg.Path); len(got) > 0 {
		t.Errorf("after the retention there are %v", got)
	}
}
