package server

import (
	"context"
	"fmt"
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
)

// noteEnv is the Leases of a cluster in memory, and the audit keys of its roles.
type noteEnv struct {
	t   *testing.T
	dir string

	mu     sync.Mutex
	leases map[string]map[string]string // annotations
	writes int
}

func newNoteEnv(t *testing.T) *noteEnv {
	return &noteEnv{t: t, dir: t.TempDir(), leases: map[string]map[string]string{}}
}

func (e *noteEnv) list(_ context.Context, lease string) ([]auditNote, error) {
	e.mu.Lock()
	defer e.mu.Unlock()
	return notesOf(e.leases[lease]), nil
}

func (e *noteEnv) set(_ context.Context, lease string, note auditNote) error {
	e.mu.Lock()
	defer e.mu.Unlock()
	next, changed := withNote(e.leases[lease], note)
	if e.leases[lease] = next; changed {
		e.writes++
	}
	return nil
}

// pass lets time pass. Then all goroutines of the test wait, and the test sees what they wrote.
func pass(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

// written returns how many notes were written.
func (e *noteEnv) written() int {
	e.mu.Lock()
	defer e.mu.Unlock()
	return e.writes
}

// A writerProcess is one run of a process with an audit log.
type writerProcess struct {
	*auditWitness
	env  *noteEnv
	path string
	lost []audit.LogHead // as reported
	stop func()
}

// start starts a process with a file in the directory of e. All of them run on one host.
func (e *noteEnv) start(role, file, lease string) *writerProcess {
	e.t.Helper()
	p := &writerProcess{env: e, path: filepath.Join(e.dir, file)}
	p.auditWitness = &auditWitness{log: slog.New(slog.DiscardHandler), writer: "host:" + p.path, lease: lease, notes: e, recalled: make(chan []audit.SignedHead, 16),
		found: p.lose}
	if role == "access" {
		p.others = gossipless
	}
	key, err := audit.KeyFromSeed(make([]byte, 32))
	if err != nil {
		e.t.Fatal(err)
	}
	prev, notes := p.predecessor(e.t.Context(), role)
	p.record, err = audit.Open(audit.Config{Path: p.path, Cluster: "prod-eu", Role: role, Key: key, Prev: prev, Log: p.log, Now: time.Now})
	if err != nil {
		e.t.Fatal(err)
	}
	p.begin(e.t.Context(), notes)
	ctx, cancel := context.WithCancel(e.t.Context())
	var ended sync.WaitGroup
	ended.Go(func() { p.run(ctx) })
	synctest.Wait()
	p.stop = func() {
		e.t.Helper()
		cancel()
		ended.Wait()
		p.seal(e.t.Context())
		if err := p.record.Close(); err != nil {
			e.t.Error(err)
		}
		p.end(e.t.Context())
	}
	return p
}

func (p *writerProcess) lose(lost audit.LogHead, _ string) {
	p.env.mu.Lock()
	defer p.env.mu.Unlock()
	p.lost = append(p.lost, lost)
}

func (p *writerProcess) write(n int) {
	p.env.t.Helper()
	for i := range n {
		if err := p.record.Write(audit.Entry{Time: time.Now(), RequestID: fmt.Sprint("R", i), Verb: access.SigninRead, Result: audit.Done}); err != nil {
			p.env.t.Fatal(err)
		}
	}
}

func (p *writerProcess) read() []byte {
	p.env.t.Helper()
	b, err := os.ReadFile(p.path)
	if err != nil {
		p.env.t.Fatal(err)
	}
	return b
}

// own returns what the process states about its log.
func (p *writerProcess) ownStatement() audit.SignedHead {
	if all := p.statements(); len(all) > 0 {
		return all[0]
	}
	return audit.SignedHead{}
}

func expectLost(t *testing.T, why string, p *writerProcess, want ...audit.LogHead) {
	t.Helper()
	p.env.mu.Lock()
	defer p.env.mu.Unlock()
	if diff := cmp.Diff(want, p.lost); diff != "" {
		t.Errorf("%s: lost lines (-want +got):\n%s", why, diff)
	}
}

// TestAU07_StatementsAreRare: a statement is made at the start, at the end, and in between at most every ten minutes if the log has changed.
func TestAU07_StatementsAreRare(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newNoteEnv(t)
		p := e.start("access", "audit.jsonl", "tailplane-access")
		first := p.ownStatement()
		for range 9 {
			pass(time.Minute)
			p.write(3)
		}
		if p.ownStatement() != first || e.written() != 1 {
			t.Errorf("after nine minutes: %d notes, and the statement is %v, want %v", e.written(), p.ownStatement(), first)
		}
		pass(2 * time.Minute)
		second := p.ownStatement()
		if second.Last.Head.Seq < 28 || e.written() != 2 {
			t.Errorf("after eleven minutes: %d notes, and the statement is %v", e.written(), second)
		}
		pass(24 * time.Hour)
		if p.ownStatement() != second || e.written() != 2 {
			t.Errorf("after an idle day: %d notes, and the statement is %v, want %v", e.written(), p.ownStatement(), second)
		}
		p.write(1)
		p.stop()
		notes, _ := e.list(t.Context(), "tailplane-access")
		if h := p.record.Head(); len(notes) != 1 || notes[0].Last.Head != h {
			t.Errorf("at the end: noted %+v, want the last line %v", notes, h)
		}
		expectLost(t, "an intact log", p)
	})
}

// TestAU07_OwnClusterRemembers: a process whose file is an older copy says so at the start, from the note on its Lease alone, and again at
// the next start. A new log names the lost line as the end of its predecessor, and the mark ends.
func TestAU07_OwnClusterRemembers(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newNoteEnv(t)
		start := func() *writerProcess { return e.start("operator", "audit.jsonl", operatorLease) }
		p := start()
		p.write(2)
		p.stop()
		old := p.read()
		p = start()
		p.write(20)
		p.stop()
		last := audit.LogHead{Log: p.ownStatement().Last.Log, Head: p.record.Head()}
		p = start()
		expectLost(t, "an intact log", p)
		p.stop()
		last.Head = p.record.Head()

		if err := os.WriteFile(p.path, old, 0o600); err != nil {
			t.Fatal(err)
		}
		for _, entries := range []int{1, 100, 1} { // the log grows past the lost line
			p = start()
			expectLost(t, "an older copy", p, last)
			if got := p.ownStatement().RolledBack; got != last {
				t.Errorf("the statement names the lost line %v, want %v", got, last)
			}
			p.write(entries)
			pass(time.Hour)
			p.stop()
		}
		notes, _ := e.list(t.Context(), operatorLease)
		if len(notes) != 1 || notes[0].Last != last {
			t.Errorf("noted %+v, want the lost line %v", notes, last)
		}

		if err := os.Rename(p.path, p.path+".evidence"); err != nil {
			t.Fatal(err)
		}
		p = start()
		defer p.stop()
		expectLost(t, "a new log", p)
		if got := p.ownStatement(); got.Prev != last || !got.RolledBack.IsZero() {
			t.Errorf("the new log states %+v, want the predecessor %v", got, last)
		}
	})
}

// TestAU07_TwoOfEverything: two replicas and two roles on one host, each with a log: none accuses another, whichever starts first and is
// started again. A pod has another name after each start, and its file is compared nevertheless.
func TestAU07_TwoOfEverything(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newNoteEnv(t)
		starts := map[string]func() *writerProcess{
			"a replica":       func() *writerProcess { return e.start("access", "a.jsonl", "tailplane-access") },
			"another replica": func() *writerProcess { return e.start("access", "b.jsonl", "tailplane-access") },
			"the operator":    func() *writerProcess { return e.start("operator", "o.jsonl", operatorLease) },
			"the plane":       func() *writerProcess { return e.start("plane", "p.jsonl", PlaneLease) },
		}
		logs := map[string]string{}
		for round := range 3 {
			for name, start := range starts {
				p := start()
				p.write(5)
				pass(11 * time.Minute)
				expectLost(t, name, p)
				own := p.ownStatement()
				if !own.Prev.IsZero() || own.Last.Log == "" {
					t.Errorf("%s states %+v", name, own)
				}
				if logs[name] == "" {
					logs[name] = own.Last.Log
				}
				if own.Last.Log != logs[name] {
					t.Errorf("%s continues the log %s, want %s", name, own.Last.Log, logs[name])
				}
				if strings.HasSuffix(name, "replica") && round > 0 { // an access server states the logs of the other roles
					var got []string
					for _, h := range p.statements() {
						got = append(got, h.Last.Log)
					}
					if diff := cmp.Diff([]string{logs[name], logs["the operator"], logs["the plane"]}, got); diff != "" {
						t.Errorf("%s states the logs (-want +got):\n%s", name, diff)
					}
				}
				p.stop()
			}
		}

		pod := e.start("plane", "p.jsonl", PlaneLease)
		pod.writer = "plane-7f9c4:" + pod.path
		pod.write(1)
		pod.stop()
		old := pod.read()
		pod = e.start("plane", "p.jsonl", PlaneLease)
		pod.writer = "plane-x2x2x:" + pod.path
		pod.write(9)
		pod.stop()
		last := audit.LogHead{Log: logs["the plane"], Head: pod.record.Head()}
		if err := os.WriteFile(pod.path, old, 0o600); err != nil {
			t.Fatal(err)
		}
		pod = e.start("plane", "p.jsonl", PlaneLease)
		defer pod.stop()
		expectLost(t, "a pod with another name", pod, last)
	})
}

// TestAU07_Recalled: a statement that another server returns is compared with the log. Statements of other roles and about other logs accuse
// nobody.
func TestAU07_Recalled(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		e := newNoteEnv(t)
		start := func() *writerProcess { return e.start("access", "audit.jsonl", "tailplane-access") }
		p := start()
		p.stop()
		old := p.read()
		p = start()
		p.write(20)
		p.stop()
		genuine := p.ownStatement()
		clear(e.leases) // an attacker in this cluster has removed the note
		if err := os.WriteFile(p.path, old, 0o600); err != nil {
			t.Fatal(err)
		}
		p = start()
		p.write(3)
		expectLost(t, "nobody remembers", p)
		other := genuine
		other.Last.Log = strings.Repeat("Z", 16)
		operator := genuine
		operator.Role = "operator"
		p.recall([]audit.SignedHead{other, operator})
		synctest.Wait()
		expectLost(t, "statements about other logs", p)
		for range 100 { // it does not block
			p.recall([]audit.SignedHead{genuine})
		}
		synctest.Wait()
		expectLost(t, "the other server remembers", p, genuine.Last)
		if got := p.ownStatement().RolledBack; got != genuine.Last {
			t.Errorf("the statement names the lost line %v, want %v", got, genuine.Last)
		}
		p.stop()
		notes, _ := e.list(t.Context(), "tailplane-access")
		if len(notes) != 1 || notes[0].Last != genuine.Last {
			t.Errorf("noted %+v, want the lost line %v", notes, genuine.Last)
		}
	})
}

// TestNotes: a Lease keeps a bounded number of notes and no earlier line than it has. Other annotations stay.
func TestNotes(t *testing.T) {
	at := func(i int, seq uint64) auditNote {
		id := "AAAAAAAAAAAAAA" + string(rune('A'+i/26)) + string(rune('A'+i%26))
		return auditNote{audit.SignedHead{Role: "plane", Last: audit.LogHead{Log: id, Head: audit.Head{Seq: seq}}}, "w", time.Unix(int64(i), 0).UTC()}
	}
	annotations := map[string]string{"other": "stays", noteAnnotation + "bad": "{}", noteAnnotation + at(99, 1).Last.Log: "nonsense"}
	var changed bool
	for i := range 40 {
		if annotations, changed = withNote(annotations, at(i, 7)); !changed {
			t.Fatalf("note %d is not written", i)
		}
	}
	var got, want []audit.LogHead
	for _, n := range notesOf(annotations) {
		got = append(got, n.Last)
	}
	for i := range maxNotes {
		want = append(want, at(39-i, 7).Last)
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("notes (-want +got):\n%s", diff)
	}
	if annotations["other"] != "stays" {
		t.Error("another annotation is gone")
	}
	for seq, want := range map[uint64]bool{6: false, 7: false, 8: true} {
		if _, changed := withNote(annotations, at(39, seq)); changed != want {
			t.Errorf("line %d after line 7: written %v, want %v", seq, changed, want)
		}
	}
}

func FuzzNotes(f *testing.F) {
	f.Add("AAAAAAAAAAAAAAAA", `{"role":"plane","head":"AAAAAAAAAAAAAAAA:7:`+strings.Repeat("0", 64)+`","writer":"w","at":"2026-01-02T03:04:05Z"}`)
	f.Add("AAAAAAAAAAAAAAAA", `{"head":""}`)
	f.Add("", "null")
	f.Fuzz(func(t *testing.T, id, text string) {
		for _, n := range notesOf(map[string]string{noteAnnotation + id: text}) {
			if n.Last.Log != id || n.Last.Head.Seq == 0 {
				t.Errorf("the note %q of %q is about %v", text, id, n.Last)
			}
		}
	})
}
