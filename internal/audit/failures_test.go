package audit_test

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

// A sink is a stream with failures that the test controls.
type sink struct {
	mu   sync.Mutex
	b    bytes.Buffer
	fail func(n int) (int, error) // returns how many of n bytes are accepted; nil: all
	hold chan struct{}            // writes wait for it; nil: they do not wait
}

func (s *sink) Write(p []byte) (int, error) {
	s.mu.Lock()
	fail, hold := s.fail, s.hold
	s.mu.Unlock()
	if hold != nil {
		<-hold
	}
	n, err := len(p), error(nil)
	if fail != nil {
		n, err = fail(n)
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.b.Write(p[:n])
	return n, err
}

func (s *sink) set(fail func(int) (int, error)) {
	s.mu.Lock()
	s.fail = fail
	s.mu.Unlock()
}

func (s *sink) source() audit.Source {
	s.mu.Lock()
	defer s.mu.Unlock()
	return audit.Source{Name: "-", Reader: bytes.NewReader(bytes.Clone(s.b.Bytes()))}
}

var errFullDisk = errors.New("no space left on device")

func full(int) (int, error) { return 0, errFullDisk }

func entry(i int) audit.Entry {
	return audit.Entry{Time: day, RequestID: fmt.Sprintf("R%06d", i), Verb: "signin.read", Result: audit.Done}
}

// AU-04: A hanging sink delays one write, and no later one. Entries that do not fit are counted,
// and a gap line records them when writing works again.
func TestAU04_ASinkThatHangs(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{hold: make(chan struct{})}
		c := config(t)
		c.Path, c.Writer, c.Delay, c.Queue = "", s, 100*time.Millisecond, 100
		l := open(t, c)
		began := time.Now()
		errs := 0
		for i := range 10_000 {
			if l.Write(entry(i)) != nil {
				errs++
			}
		}
		if took := time.Since(began); took != c.Delay {
			t.Errorf("10,000 visits waited %v in all", took)
		}
		st := l.Stats()
		switch {
		case st.Waiting != 100:
			t.Errorf("st.Waiting = %v, want 100", st.Waiting)
		case st.Dropped != 9900:
			t.Errorf("st.Dropped = %v, want 9900", st.Dropped)
		case errs != 9900:
			t.Errorf("errs = %v, want 9900", errs)
		case st.Up:
			t.Errorf("st.Up is true; %+v, errs = %d", st, errs)
		case st.Entries[audit.Done] != 100:
			t.Errorf("st.Entries[audit.Done] = %v, want 100", st.Entries[audit.Done])
		}
		if err := l.Ready(); problem.CodeOf(err) != problem.AuditUnavailable {
			t.Errorf("ready: %v", err)
		}
		close(s.hold)
		synctest.Wait()
		switch st := l.Stats(); {
		case st.Waiting != 0:
			t.Errorf("st.Waiting = %v, want 0", st.Waiting)
		case !st.Up:
			t.Errorf("st.Up is false; %+v", st)
		case st.Gaps != 1:
			t.Errorf("st.Gaps = %v, want 1", st.Gaps)
		case l.Ready() != nil:
			t.Errorf("l.Ready() is not nil; %+v", st)
		}
		if err := l.Write(entry(10_000)); err != nil {
			t.Error(err)
		}
		closeLog(t, l)
		r := verify(t, pinned(c), s.source())
		switch {
		case !r.OK():
			t.Errorf("r.OK() is false; %+v", r)
		case r.Entries != 101:
			t.Errorf("r.Entries = %v, want 101", r.Entries)
		case r.Gaps != 1:
			t.Errorf("r.Gaps = %v, want 1", r.Gaps)
		case r.Lost != 9900:
			t.Errorf("r.Lost = %v, want 9900", r.Lost)
		case !r.Closed:
			t.Errorf("r.Closed is false; %+v", r)
		}
	})
}

// AU-04: The queue has a limit in bytes too, and gaps need no space.
func TestAU04_MemoryIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{hold: make(chan struct{})}
		c := config(t)
		c.Path, c.Writer, c.Delay, c.QueueBytes = "", s, time.Millisecond, 1<<20
		l := open(t, c)
		e := entry(0)
		e.Reason = strings.Repeat("x", 10_000)
		for range 1000 {
			l.Write(e)
		}
		switch st := l.Stats(); {
		case st.Waiting < 90:
			t.Errorf("st.Waiting = %v, want at least 90", st.Waiting)
		case st.Waiting > 110:
			t.Errorf("st.Waiting = %v, want at most 110", st.Waiting)
		case st.Dropped != int64(1000-st.Waiting):
			t.Errorf("st.Dropped = %v, want %v", st.Dropped, int64(1000-st.Waiting))
		}
		close(s.hold)
		closeLog(t, l)
		if r := verify(t, pinned(c), s.source()); !r.OK() || r.Entries+r.Lost != 1000 {
			t.Errorf("%+v", r)
		}
	})
}

// AU-04: While the disk is full, requests continue without delay. When it has space again, all
// queued entries are written.
func TestAU04_AFullDisk(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		c := config(t)
		c.Path, c.Writer, c.Queue = "", s, 10
		l := open(t, c)
		write(t, l, 1)
		s.set(full)
		began := time.Now()
		for i := range 20 {
			if err := l.Write(entry(i)); (err != nil) != (i >= 10) {
				t.Errorf("visit %d: %v", i, err)
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("visits waited %v", took)
		}
		time.Sleep(time.Minute)
		switch st := l.Stats(); {
		case st.Up:
			t.Errorf("after a minute: st.Up is true; %+v", st)
		case st.Waiting != 10:
			t.Errorf("after a minute: st.Waiting = %v, want 10", st.Waiting)
		case st.Retries < 10:
			t.Errorf("after a minute: st.Retries = %v, want at least 10", st.Retries)
		case st.Retries > 30:
			t.Errorf("after a minute: st.Retries = %v, want at most 30", st.Retries)
		}
		s.set(nil)
		time.Sleep(5 * time.Second) // the writer retries without a new request
		if st := l.Stats(); !st.Up || st.Waiting != 0 {
			t.Errorf("after: %+v", st)
		}
		closeLog(t, l)
		switch r := verify(t, pinned(c), s.source()); {
		case !r.OK():
			t.Errorf("r.OK() is false; %+v", r)
		case r.Entries != 11:
			t.Errorf("r.Entries = %v, want 11", r.Entries)
		case r.Lost != 10:
			t.Errorf("r.Lost = %v, want 10", r.Lost)
		case r.Gaps != 1:
			t.Errorf("r.Gaps = %v, want 1", r.Gaps)
		}
	})
}

// AU-04: If the audit log is required, Write returns an error at once, with a message that is safe
// for callers.
func TestAU04_Required(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		c := config(t)
		c.Path, c.Writer, c.Required, c.Queue, c.Delay = "", s, true, 10, 100*time.Millisecond
		l := open(t, c)
		write(t, l, 1)
		s.set(full)
		began := time.Now()
		for i := range 20 {
			err := l.Write(entry(i))
			switch p := problem.From(err); {
			case p == nil:
				t.Errorf("visit: p is nil; %d", i)
			case p.Code != problem.AuditUnavailable:
				t.Errorf("visit: p.Code = %q, want %q; %d", p.Code, problem.AuditUnavailable, i)
			case p.RetryAfter == 0:
				t.Errorf("visit: p.RetryAfter = %v; %d", p.RetryAfter, i)
			case p.Cause() == nil:
				t.Errorf("visit: p.Cause() is nil, want an error; %d", i)
			}
			if l.Ready() == nil {
				t.Error("ready without a record")
			}
		}
		if took := time.Since(began); took != 0 {
			t.Errorf("visits waited %v", took)
		}
		s.set(nil)
		time.Sleep(5 * time.Second)
		if err := errors.Join(l.Ready(), l.Write(entry(20))); err != nil {
			t.Error(err)
		}
		// A slow sink is also an error, after the delay.
		s.mu.Lock()
		s.hold = make(chan struct{})
		s.mu.Unlock()
		began = time.Now()
		if err := l.Write(entry(21)); problem.CodeOf(err) != problem.AuditUnavailable || time.Since(began) != c.Delay {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		if err := l.Write(entry(22)); problem.CodeOf(err) != problem.AuditUnavailable || time.Since(began) != c.Delay {
			t.Errorf("%v after %v", err, time.Since(began))
		}
		close(s.hold)
		closeLog(t, l)
		if err := l.Write(entry(23)); problem.CodeOf(err) != problem.AuditUnavailable {
			t.Errorf("after the end: %v", err)
		}
		// 1 + 10 of 20 + 3: an entry whose Write failed may still be written.
		switch r := verify(t, pinned(c), s.source()); {
		case !r.OK():
			t.Errorf("r.OK() is false; %+v", r)
		case r.Entries != 14:
			t.Errorf("r.Entries = %v, want 14", r.Entries)
		case r.Lost != 10:
			t.Errorf("r.Lost = %v, want 10", r.Lost)
		}
	})
}

// Close waits at most its limit, and reports the lost entries.
func TestCloseIsBounded(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{hold: make(chan struct{})}
		c := config(t)
		c.Path, c.Writer, c.Delay, c.CloseTime = "", s, time.Millisecond, time.Second
		l := open(t, c)
		write(t, l, 5)
		began := time.Now()
		err := l.Close()
		switch {
		case err == nil:
			t.Error("no error")
		case !strings.Contains(err.Error(), "lost at the end: 5"):
			t.Errorf("err.Error() = %q does not contain %q", err.Error(), "lost at the end: 5")
		case time.Since(began) != c.CloseTime:
			t.Errorf("time.Since(began) != c.CloseTime; %v, %v, %d", err, time.Since(began), l.Stats().Dropped)
		case l.Stats().Dropped != 5:
			t.Errorf("l.Stats().Dropped = %v, want 5", l.Stats().Dropped)
		}
		close(s.hold)
	})
	s := &sink{}
	c := config(t)
	c.Path, c.Writer = "", s
	l := open(t, c)
	write(t, l, 1)
	s.set(full)
	l.Write(entry(1))
	if err := l.Close(); !errors.Is(err, errFullDisk) {
		t.Errorf("a full disk at the end: %v", err)
	}
}

// A signature is written in time, even if no further entry arrives.
func TestCheckpointsInTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		c := config(t)
		c.Path, c.Writer, c.CheckpointEvery = "", s, 10*time.Second
		l := open(t, c)
		write(t, l, 3)
		time.Sleep(11 * time.Second)
		switch r := verify(t, pinned(c), s.source()); {
		case !r.OK():
			t.Errorf("r.OK() is false; %+v", r)
		case r.Unsigned != 0:
			t.Errorf("r.Unsigned = %v, want 0", r.Unsigned)
		case r.Checkpoints != 1:
			t.Errorf("r.Checkpoints = %v, want 1", r.Checkpoints)
		}
		time.Sleep(time.Hour)
		if r := verify(t, pinned(c), s.source()); r.Checkpoints != 1 {
			t.Errorf("an idle record grows: %+v", r)
		}
		closeLog(t, l)
	})
}

// A write that is interrupted at any byte loses no entry, and the audit log accounts for the
// partial line.
func TestAU04_AWriteCutShortAtAnyByte(t *testing.T) {
	for k := 0; ; k++ {
		s := &sink{}
		done := false
		synctest.Test(t, func(t *testing.T) {
			c := config(t)
			c.Path, c.Writer = "", s
			l := open(t, c)
			write(t, l, 1)
			s.set(func(n int) (int, error) {
				done = k >= n
				s.set(nil)
				return min(k, n), errFullDisk
			})
			write(t, l, 2)
			closeLog(t, l)
			r := verify(t, pinned(c), s.source())
			switch {
			case !r.OK():
				t.Fatalf("r.OK() is false; %d, %+v, %s", k, r, s.b.String())
			case r.Entries != 3:
				t.Fatalf("r.Entries = %v, want 3; %d; %s", r.Entries, k, s.b.String())
			case r.Torn > 1:
				t.Fatalf("r.Torn = %v, want at most 1; %d; %s", r.Torn, k, s.b.String())
			case !r.Closed:
				t.Fatalf("r.Closed is false; %d, %+v, %s", k, r, s.b.String())
			}
		})
		if t.Failed() || done {
			return
		}
	}
}

// For any behaviour of the sink, the audit log is valid, and every entry is in it or counted.
func TestAU04_AnyFailure(t *testing.T) {
	for range 200 {
		seed := rand.Uint64()
		synctest.Test(t, func(t *testing.T) {
			r := rand.New(rand.NewPCG(seed, 0))
			s := &sink{}
			s.set(func(n int) (int, error) {
				switch r.IntN(4) {
				case 0:
					time.Sleep(time.Duration(r.IntN(1000)) * time.Millisecond)
					return n, nil
				case 1:
					return r.IntN(n + 1), errFullDisk
				case 2:
					return min(n, r.IntN(4)), errFullDisk
				}
				return n, nil
			})
			c := config(t)
			c.Path, c.Writer, c.Queue, c.Delay, c.CheckpointLines = "", s, 5, 50*time.Millisecond, 3
			l := open(t, c)
			var wg sync.WaitGroup
			var lost atomic.Int64
			for w := range 8 {
				wg.Go(func() {
					for i := range 10 {
						if l.Write(entry(w*10+i)) != nil {
							lost.Add(1)
						}
						time.Sleep(time.Duration(w) * 10 * time.Millisecond)
					}
				})
			}
			wg.Wait()
			s.set(nil)
			time.Sleep(10 * time.Second)
			closeLog(t, l)
			rep := verify(t, pinned(c), s.source())
			switch {
			case !rep.OK():
				t.Errorf("seed: rep.OK() is false; seed = %d, %+v, %+v, %s", seed, rep, l.Stats(), s.b.String())
			case rep.Entries+rep.Lost != 80:
				t.Errorf("seed: rep.Entries+rep.Lost = %v, want 80; seed = %d; %s", rep.Entries+rep.Lost, seed, s.b.String())
			case rep.Lost != lost.Load():
				t.Errorf("seed: rep.Lost = %v, want %v; seed = %d; %s", rep.Lost, lost.Load(), seed, s.b.String())
			case l.Stats().Dropped != rep.Lost:
				t.Errorf("seed: l.Stats().Dropped = %v, want %v; seed = %d; %s", l.Stats().Dropped, rep.Lost, seed, s.b.String())
			case l.Stats().Gaps != rep.Gaps:
				t.Errorf("seed: l.Stats().Gaps = %v, want %v; seed = %d; %s", l.Stats().Gaps, rep.Gaps, seed, s.b.String())
			case l.Stats().Torn != rep.Torn:
				t.Errorf("seed: l.Stats().Torn = %v, want %v; seed = %d; %s", l.Stats().Torn, rep.Torn, seed, s.b.String())
			}
		})
		if t.Failed() {
			return
		}
	}
}

// AU-04: Another process rotates, deletes, truncates or writes to the file.
func TestAU04_RotatedUnderUs(t *testing.T) {
	rename := func(t *testing.T, path string) {
		if err := os.Rename(path, path+".1"); err != nil {
			t.Fatal(err)
		}
	}
	for _, tt := range []struct {
		why    string
		do     func(t *testing.T, path string)
		lost   bool  // lines are lost, so the audit log cannot be valid
		faults int64 // number of findings
		torn   int64
	}{
		{why: "renamed", do: rename},
		{why: "renamed, and a new file created", do: func(t *testing.T, path string) {
			rename(t, path)
			if err := os.WriteFile(path, nil, 0o600); err != nil {
				t.Fatal(err)
			}
		}},
		{why: "copied and cut", do: func(t *testing.T, path string) {
			if err := os.WriteFile(path+".1", read(t, path), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Truncate(path, 0); err != nil {
				t.Fatal(err)
			}
		}},
		{why: "copied, and the copy put in its place", do: func(t *testing.T, path string) {
			if err := os.WriteFile(path+".new", read(t, path), 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Rename(path+".new", path); err != nil {
				t.Fatal(err)
			}
		}},
		{why: "deleted", do: func(t *testing.T, path string) {
			if err := os.Remove(path); err != nil {
				t.Fatal(err)
			}
		}, lost: true},
		{why: "cut in the middle", do: func(t *testing.T, path string) {
			if err := os.Truncate(path, int64(len(read(t, path))-100)); err != nil {
				t.Fatal(err)
			}
		}, lost: true},
		{why: "text put at its end", do: func(t *testing.T, path string) {
			f, err := os.OpenFile(path, os.O_APPEND|os.O_WRONLY, 0)
			if err != nil {
				t.Fatal(err)
			}
			if _, err := io.WriteString(f, "hello\nworld"); err != nil {
				t.Fatal(err)
			}
			f.Close()
		}, torn: 1},
	} {
		t.Run(tt.why, func(t *testing.T) {
			c := config(t)
			l := open(t, c)
			write(t, l, 3)
			tt.do(t, c.Path)
			write(t, l, 3)
			tail := l.Head()
			closeLog(t, l)
			check := pinned(c)
			check.Heads = []audit.Head{tail}
			r := verify(t, check, files(t, c)...)
			if r.OK() == tt.lost && (r.First.Seq == 1 || !tt.lost) {
				t.Errorf("%+v", r)
			}
			if !tt.lost && (r.Entries != 6 || !r.Closed || r.Torn != tt.torn) {
				t.Errorf("%+v", r)
			}
			if l.Stats().Dropped != 0 {
				t.Errorf("%d lost", l.Stats().Dropped)
			}
			// In each case, the later entries are in the file.
			if after := verify(t, pinned(c), audit.Source{Name: "x", Reader: bytes.NewReader(read(t, c.Path))}); after.Entries < 3 || !after.Closed {
				t.Errorf("after: %+v", after)
			}
		})
	}
}

// AU-04: The Log does not write to another audit log that takes the place of its file.
func TestAU04_ReplacedRecord(t *testing.T) {
	c := config(t)
	l := open(t, c)
	write(t, l, 1)
	other := read(t, otherRecord(t))
	if err := os.Rename(c.Path, c.Path+".1"); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(c.Path, other, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := l.Write(entry(1)); err != nil {
		t.Errorf("a visit does not go on: %v", err)
	}
	if l.Ready() == nil {
		t.Error("ready without a record")
	}
	if !bytes.Equal(read(t, c.Path), other) {
		t.Error("another record was written to")
	}
	if err := os.Remove(c.Path); err != nil {
		t.Fatal(err)
	}
	eventually(t, func() bool { return l.Ready() == nil })
	closeLog(t, l)
	if r := sound(t, c); r.Entries != 2 {
		t.Errorf("%+v", r)
	}
}

// eventually waits until ok returns true, with a deadline.
func eventually(t *testing.T, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(60 * time.Second); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("it does not happen")
		}
	}
}

// A crash at any byte, followed by a restart: complete lines are kept, the partial line is
// accounted for, and Verify finds nothing.
func TestACrashAtAnyByte(t *testing.T) {
	c := config(t)
	c.CheckpointLines = 2
	l := open(t, c)
	write(t, l, 2)
	closeLog(t, l)
	whole := read(t, c.Path)
	ends := []int{0}
	for _, line := range lines(whole) {
		ends = append(ends, ends[len(ends)-1]+len(line))
	}
	for k := range len(whole) + 1 {
		at := c
		at.CheckpointLines = 100
		at.Path = filepath.Join(t.TempDir(), "audit.jsonl")
		if err := os.WriteFile(at.Path, whole[:k], 0o600); err != nil {
			t.Fatal(err)
		}
		l := open(t, at)
		write(t, l, 1)
		closeLog(t, l)
		b := read(t, at.Path)
		if !bytes.HasPrefix(b, whole[:k]) {
			t.Fatalf("at byte %d: written data is missing", k)
		}
		r := sound(t, at)
		kept, torn := 0, int64(1)
		for i, end := range ends {
			if k >= end-1 {
				kept = i
			}
			if k == end || k == end-1 {
				torn = 0
			}
		}
		if r.Torn != torn || r.Lines != int64(kept)+3+torn {
			t.Fatalf("at byte %d: %+v", k, r)
		}
		if kept > 0 && kept < len(ends)-1 && r.Unclean != 1 {
			t.Fatalf("at byte %d: the crash is not counted: %+v", k, r)
		}
		// A second crash, in the lines that the restart wrote.
		if k%97 != 50 {
			continue
		}
		for cut := k; cut < len(b); cut += 29 {
			if err := os.WriteFile(at.Path, b[:cut], 0o600); err != nil {
				t.Fatal(err)
			}
			l := open(t, at)
			write(t, l, 1)
			closeLog(t, l)
			sound(t, at)
		}
	}
}

// AU-03: 1,000 concurrent writers with one entry each: each entry is written once and completely.
func TestAU03_AThousandWriters(t *testing.T) {
	c := config(t)
	c.MaxSize, c.Keep = 50_000, -1
	var exported atomic.Int64
	c.Export = func(l audit.Line) {
		if l.Kind == audit.KindEntry {
			exported.Add(1)
		}
	}
	l := open(t, c)
	var wg sync.WaitGroup
	start := make(chan struct{})
	for i := range 1000 {
		wg.Go(func() {
			<-start
			id := fmt.Sprintf("R%06d", i)
			e := audit.Entry{Time: day, RequestID: id, Actor: audit.Actor{Login: id, Tags: []string{id}}, Verb: "signin.read", Args: map[string]string{"id": id}, Result: audit.Done}
			if err := l.Write(e); err != nil {
				t.Error(err)
			}
		})
	}
	close(start)
	wg.Wait()
	closeLog(t, l)
	switch r := sound(t, c); {
	case r.Entries != 1000:
		t.Errorf("r.Entries = %v, want 1000", r.Entries)
	case r.Lost != 0:
		t.Errorf("r.Lost = %v, want 0", r.Lost)
	case exported.Load() != 1000:
		t.Errorf("exported.Load() = %v, want 1000", exported.Load())
	}
	seen := map[string]bool{}
	for _, s := range files(t, c) {
		b, err := io.ReadAll(s)
		if err != nil {
			t.Fatal(err)
		}
		for _, line := range lines(b) {
			parsed, err := audit.ParseLine(bytes.TrimSuffix(line, []byte("\n")))
			if err != nil {
				t.Fatal(err)
			}
			content, err := parsed.Content()
			if err != nil {
				t.Fatal(err)
			}
			if e, ok := content.(audit.Entry); ok {
				switch id := e.RequestID; {
				case seen[id]:
					t.Errorf("seen[id] is true; %+v", e)
				case e.Actor.Login != id:
					t.Errorf("e.Actor.Login = %q, want %q", e.Actor.Login, id)
				case e.Actor.Tags[0] != id:
					t.Errorf("e.Actor.Tags[0] = %q, want %q", e.Actor.Tags[0], id)
				case e.Args["id"] != id:
					t.Errorf(`e.Args["id"] = %q, want %q`, e.Args["id"], id)
				}
				seen[e.RequestID] = true
			}
		}
	}
	if len(seen) != 1000 {
		t.Errorf("%d entries", len(seen))
	}
}

// Export receives every written line and every lost entry.
func TestExport(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := &sink{}
		c := config(t)
		c.Path, c.Writer, c.Queue = "", s, 2
		var mu sync.Mutex
		var got []audit.Line
		c.Export = func(l audit.Line) {
			mu.Lock()
			got = append(got, l)
			mu.Unlock()
		}
		l := open(t, c)
		write(t, l, 1)
		s.set(full)
		for i := range 3 {
			l.Write(entry(i))
		}
		s.set(nil)
		time.Sleep(10 * time.Second)
		closeLog(t, l)
		var text bytes.Buffer
		lost := 0
		for _, line := range got {
			if line.Seq == 0 {
				lost++
				switch content, err := line.Content(); {
				case err != nil:
					t.Error(err)
				case content.(audit.Entry).RequestID != "R000002":
					t.Errorf("content.(audit.Entry).RequestID = %q, want %q", content.(audit.Entry).RequestID, "R000002")
				case !strings.HasPrefix(string(line.Text), `{"ts":"2026`):
					t.Errorf("string(line.Text) = %q does not start with %q", string(line.Text), `{"ts":"2026`)
				}
				continue
			}
			text.Write(line.Text)
			text.WriteByte('\n')
		}
		if lost != 1 || text.String() != s.b.String() {
			t.Errorf("%d lost, exported\n%s\nwritten\n%s", lost, text.String(), s.b.String())
		}
	})
}

// The cost of an entry, compared with a plain JSON line on the same disk.
func BenchmarkWrite(b *testing.B) {
	e := audit.Entry{Time: day, RequestID: audit.NewID(day), Actor: audit.Actor{Login: "alice@example.com", Node: "alice-laptop.example.ts.net", NodeID: "n123CNTRL", Via: "tailnet"},
		Surface: "http", Verb: "signin.login", Object: "tka-alice-1a2b3c", Args: map[string]string{"role": "view", "period": "8h0m0s"}, Result: audit.Done}
	run := func(write func(audit.Entry) error) func(*testing.B) {
		return func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				if err := write(e); err != nil {
					b.Fatal(err)
				}
			}
		}
	}
	f, err := os.OpenFile(filepath.Join(b.TempDir(), "plain.jsonl"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o600)
	if err != nil {
		b.Fatal(err)
	}
	defer f.Close()
	plain := json.NewEncoder(f)
	b.Run("plain", run(func(e audit.Entry) error { return plain.Encode(e) }))
	c := config(b)
	c.MaxSize = -1
	l := open(b, c)
	defer closeLog(b, l)
	b.Run("chained", run(l.Write))
	b.Run("chained/parallel", func(b *testing.B) {
		b.SetParallelism(50)
		b.RunParallel(func(pb *testing.PB) {
			for pb.Next() {
				if err := l.Write(e); err != nil {
					b.Error(err)
				}
			}
		})
	})
}
