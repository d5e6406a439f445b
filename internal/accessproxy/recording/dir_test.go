package recording

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clock is a time that a test sets.
type clock struct{ now time.Time }

func (c *clock) Now() time.Time { return c.now }

// store writes a recording of n bytes and returns its id.
func store(t *testing.T, d *Dir, c *clock, n int) (string, error) {
	t.Helper()
	id := NewID(c.now)
	var lost error
	u, err := d.Start(t.Context(), id, func(int64) {}, func(err error) { lost = err })
	if err != nil {
		return id, err
	}
	_, err = u.Write(append([]byte(`{"version":2}`+"\n"), strings.Repeat("x", n)...))
	if (err == nil) != (lost == nil) {
		t.Errorf("the write's error is %v, but %v was reported", err, lost)
	}
	err = errors.Join(err, u.Close(t.Context()))
	if e := os.Chtimes(filepath.Join(d.cfg.Path, id+suffixCast), c.now, c.now); e != nil && err == nil {
		t.Error(e)
	}
	return id, err
}

// ids returns what the directory lists.
func ids(t *testing.T, d *Dir) (ids []string) {
	t.Helper()
	list, err := d.List("", 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, i := range list {
		ids = append(ids, i.ID)
	}
	return ids
}

// TestRetention checks what is deleted: by age, and to make room, but nothing that is young.
func TestRetention(t *testing.T) {
	c := &clock{time.Date(2026, 11, 1, 0, 0, 0, 0, time.UTC)}
	d := openDir(t, DirConfig{MaxBytes: 10_000, MaxAge: 30 * 24 * time.Hour, Keep: 48 * time.Hour, Now: c.Now})
	var all []string
	for range 6 {
		id, err := store(t, d, c, 2000)
		if err != nil {
			t.Fatalf("recording %d: %v", len(all), err)
		}
		all = append([]string{id}, all...)
		c.now = c.now.Add(24 * time.Hour)
	}
	if diff := cmp.Diff(all[:4], ids(t, d)); diff != "" {
		t.Errorf("after six days (-want +got):\n%s", diff)
	}
	c.now = c.now.Add(-23 * time.Hour)
	if _, err := store(t, d, c, 7000); !errors.Is(err, ErrFull) {
		t.Errorf("room that only young recordings could give: %v, want ErrFull", err)
	}
	c.now = c.now.Add(29 * 24 * time.Hour)
	if err := d.Prune(); err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(all[:1], ids(t, d)); diff != "" {
		t.Errorf("after a month (-want +got):\n%s", diff)
	}
	c.now = c.now.Add(30 * 24 * time.Hour)
	if err := d.Prune(); err != nil {
		t.Fatal(err)
	}
	if got := files(t, d.cfg.Path); len(got) > 0 {
		t.Errorf("after two months there are %v", got)
	}
}

// TestBounds checks the bounds of one recording and of recordings at the same time.
func TestBounds(t *testing.T) {
	c := &clock{time.Unix(1_800_000_000, 0)}
	d := openDir(t, DirConfig{MaxOne: 1000, MaxLive: 2, Now: c.Now})
	id, err := store(t, d, c, 1000)
	if !errors.Is(err, ErrTooLong) {
		t.Errorf("1,014 of 1,000 bytes: %v, want ErrTooLong", err)
	}
	if _, _, err := d.Open(id); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("an empty recording: %v, want that it does not exist", err)
	}
	start := func(id string) (Upload, error) { return d.Start(t.Context(), id, func(int64) {}, func(error) {}) }
	id = NewID(c.now)
	one, err := start(id)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := start(id); err == nil {
		t.Error("two recordings have one id")
	}
	two, err := start(NewID(c.now))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := start(NewID(c.now)); err == nil {
		t.Error("there are three recordings at the same time, want at most 2")
	}
	one.Write([]byte(`{"version":2}` + "\n"))
	if err := errors.Join(one.Close(t.Context()), two.Close(t.Context())); err != nil {
		t.Error(err)
	}
	if _, err := start(id); err == nil {
		t.Error("a recording was written over")
	}
	if _, err := one.Write([]byte("x")); err == nil {
		t.Error("a recording grew after its end")
	}
	for _, bad := range []string{"", "../../etc/passwd", id + "/x", strings.ToUpper(id), id + "\n"} {
		if _, err := start(bad); err == nil {
			t.Errorf("the id %q was accepted", bad)
		}
		if _, _, err := d.Open(bad); !errors.Is(err, fs.ErrNotExist) {
			t.Errorf("the recording %q: %v, want that it does not exist", bad, err)
		}
	}
}

// TestFiles checks the access rights, links, files of others, states, and pages of the list.
func TestFiles(t *testing.T) {
	c := &clock{time.Unix(1_800_000_000, 0)}
	var done []Info
	d := openDir(t, DirConfig{Now: c.Now, Done: func(i Info) { done = append(done, i) }})
	var all []string
	for i := range 5 {
		c.now = c.now.Add(time.Second)
		id, err := store(t, d, c, i)
		if err != nil {
			t.Fatal(err)
		}
		all = append([]string{id}, all...)
	}
	c.now = c.now.Add(time.Second)
	live := NewID(c.now)
	u, err := d.Start(t.Context(), live, func(int64) {}, func(error) {})
	if err != nil {
		t.Fatal(err)
	}
	u.Write([]byte(`{"version":2,"srcNode":"laptop"}` + "\n"))
	linked := NewID(time.Unix(0, 0))
	for _, err := range []error{
		os.Symlink("/etc/passwd", filepath.Join(d.cfg.Path, linked+suffixCast)),
		os.WriteFile(filepath.Join(d.cfg.Path, "notes.txt"), nil, 0o600),
	} {
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, _, err := d.Open(linked); err == nil {
		t.Error("a link out of the directory was opened")
	}
	if err := os.Remove(filepath.Join(d.cfg.Path, linked+suffixCast)); err != nil {
		t.Fatal(err)
	}
	for _, name := range files(t, d.cfg.Path) {
		if info, err := os.Stat(filepath.Join(d.cfg.Path, name)); err != nil || info.Mode().Perm() != 0o600 {
			t.Errorf("%s has the mode %v (%v), want 0600", name, info.Mode(), err)
		}
	}
	if diff := cmp.Diff(append([]string{live}, all...), ids(t, d)); diff != "" {
		t.Errorf("the list (-want +got):\n%s", diff)
	}
	page, err := d.List(all[1], 2)
	if err != nil {
		t.Fatal(err)
	}
	var paged []string
	for _, i := range page {
		paged = append(paged, i.ID)
	}
	if diff := cmp.Diff(all[2:4], paged); diff != "" {
		t.Errorf("the page after %s (-want +got):\n%s", all[1], diff)
	}
	state := func() string {
		_, info := contents(t, d, live)
		return fmt.Sprintf("%s from %s", info.State, info.Header.SrcNode)
	}
	if got := state(); got != "live from laptop" {
		t.Errorf("while it is written the recording is %s", got)
	}
	u.Abort()
	if got := state(); got != "incomplete from laptop" {
		t.Errorf("after Abort the recording is %s", got)
	}
	var states []State
	for _, i := range done {
		states = append(states, i.State)
		if len(i.SHA256) != 64 {
			t.Errorf("Done got the SHA-256 %q", i.SHA256)
		}
	}
	if diff := cmp.Diff([]State{Complete, Complete, Complete, Complete, Complete, Incomplete}, states); diff != "" {
		t.Errorf("Done got the states (-want +got):\n%s", diff)
	}
	again := openDir(t, DirConfig{Path: d.cfg.Path})
	if got := ids(t, again); len(got) != 6 {
		t.Errorf("after a restart there are %v, want 6", got)
	}
}

// TestWindow checks marks in virtual order: acknowledgements of recorded bytes, and of bytes that a later flush records.
func TestWindow(t *testing.T) {
	c := &clock{time.Unix(0, 0)}
	w := newWindow(c.Now)
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	pass := func(n int64, at place) bool { return w.pass(ended, 1, n, at) == nil }
	for _, step := range []struct {
		why  string
		do   func() bool
		want bool
	}{
		{"nothing is unacknowledged", func() bool { return pass(windowBytes, place{written: 100}) }, true},
		{"one byte too many", func() bool { return pass(1, place{written: 101}) }, false},
		{"half a mark is acknowledged", func() bool { w.ack(99); return pass(1, place{written: 101}) }, false},
		{"the mark is acknowledged", func() bool { w.ack(100); return pass(10, place{written: notYet}) }, true},
		{"what is not recorded yet is not acknowledged", func() bool { w.ack(1000); return pass(windowBytes, place{written: notYet}) }, false},
		{"the flush is not acknowledged", func() bool { w.flush(1010); return pass(windowBytes, place{written: notYet, flushes: 1}) }, false},
		{"the flush is acknowledged", func() bool { w.ack(1010); return pass(5, place{written: notYet}) }, true},
		{"a flush came before the bytes were passed on", func() bool { return pass(windowBytes, place{written: 1020}) }, true},
		{"five seconds later", func() bool { w.ack(1015); c.now = c.now.Add(windowAge); return pass(0, place{}) }, false},
		{"everything is acknowledged", func() bool { w.ack(1020); return pass(0, place{}) }, true},
		{"the recording is lost", func() bool { w.lose(ErrLost); return pass(0, place{}) }, false},
	} {
		if got := step.do(); got != step.want {
			t.Errorf("%s: it passes is %t, want %t", step.why, got, step.want)
		}
	}
}
