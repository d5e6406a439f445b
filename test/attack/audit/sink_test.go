package audit

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// pipeline sends requests to a server on one connection, several at a time, and returns the number of answers for
// each status.
func pipeline(s *attacktest.Env, ctx context.Context, p *testenv.Person, server string, requests []string) (map[int]int, error) {
	v := &auditedRequest{p: p}
	if err := v.connect(ctx, s, server); err != nil {
		return nil, err
	}
	defer v.conn.Close()
	answers, statuses := bufio.NewReader(v.conn), map[int]int{}
	for batch := range slices.Chunk(requests, 40) {
		if err := v.conn.SetDeadline(time.Now().Add(attacktest.Long)); err != nil {
			return nil, err
		}
		sent := make(chan error, 1)
		go func() {
			_, err := io.WriteString(v.conn, strings.Join(batch, ""))
			sent <- err
		}()
		for range batch {
			res, err := http.ReadResponse(answers, nil)
			if err != nil {
				return statuses, err
			}
			if _, err := io.Copy(io.Discard, res.Body); err != nil {
				return statuses, err
			}
			statuses[res.StatusCode]++
		}
		if err := <-sent; err != nil {
			return statuses, err
		}
	}
	return statuses, nil
}

// sendVisits sends n equal requests of p to a server, some of them at once. Each answer must have the status.
func sendVisits(t *testing.T, s *attacktest.Env, p *testenv.Person, server string, n, status int, method, path, body string) {
	t.Helper()
	request := fmt.Sprintf("%s %s HTTP/1.1\r\nHost: %s\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n%s", method, path, server, len(body), body)
	var wg sync.WaitGroup
	const ways = 8
	failed := make(chan string, ways)
	for i := range ways {
		wg.Go(func() {
			k := n / ways
			if i < n%ways {
				k++
			}
			got, err := pipeline(s, t.Context(), p, server, slices.Repeat([]string{request}, k))
			if err != nil || got[status] != k {
				failed <- fmt.Sprintf("%d visits: %v, %v", k, got, err)
			}
		})
	}
	wg.Wait()
	for len(failed) > 0 {
		t.Error(<-failed)
	}
}

// visitsOf returns the entries without those of other servers: a server of the tailnet may offer an exchange while this
// one is starting, and the refusal is an entry.
func visitsOf(t *testing.T, entries []audit.Entry) []audit.Entry {
	t.Helper()
	return slices.DeleteFunc(entries, func(e audit.Entry) bool {
		if e.Verb == access.GossipExchange {
			t.Logf("an exchange of another server: %+v", e)
			return true
		}
		return false
	})
}

// longestOf sends n requests one after the other and returns the longest duration.
func longestOf(t *testing.T, x *attacktest.Server, p *testenv.Person, n int) (most time.Duration) {
	t.Helper()
	for range n {
		began := time.Now()
		if a := x.Ask(t, p, "GET", attacktest.API+"/whoami", ""); a.Status != http.StatusOK {
			t.Errorf("whoami: %v", a)
		}
		most = max(most, time.Since(began))
	}
	return most
}

// AU-04. While the audit log cannot be written, operations that require it are refused and all others continue, with
// bounded delay and bounded memory. Lost entries are counted, and the audit log marks each gap. The server continues
// when the file is rotated.
//
// Guard: audit.(*Log).Write (the delay, the bounds, the gap), audit.(*writer).appendHeader (the switch to a new file),
// httpapi.(*request).process and httpapi.(*handler).ServeHTTP (MustRecord).
func TestAU04_TheSinkFails(t *testing.T) {
	s := attacktest.Start(t)
	alice := s.Alice(t)

	t.Run("a full disk, and the record is required", func(t *testing.T) {
		prlimit, err := exec.LookPath("prlimit")
		if err != nil {
			t.Skip("SKIP a full disk: prlimit is not in PATH")
		}
		x := s.StartServer(t, "au04-full", attacktest.ServerOptions{Replace: []string{openAudit, openAudit + "  required: true\n"}})
		host, _, _ := strings.Cut(x.Name, ".")
		s.WaitPeer(t, alice, host)
		// Simulates a full disk: files of this process cannot grow beyond a size.
		full := func(size string) {
			t.Helper()
			if out, err := exec.Command(prlimit, "--pid", fmt.Sprint(x.PID()), "--fsize="+size).CombinedOutput(); err != nil {
				t.Fatalf("prlimit: %v: %s", err, out)
			}
		}
		login := func() attacktest.Answer { t.Helper(); return x.Ask(t, alice, "POST", attacktest.API+"/login", "{}") }
		if a := login(); a.Status != http.StatusAccepted { // control
			t.Fatalf("before: %v", a)
		}
		t.Cleanup(func() { s.Logout(t, alice) })
		s.Kubeconfig(t, alice) // wait at the shared server until the sign-in is ready
		visits := 1
		up := func() float64 { return s.Samples(t, x.Process)["tailplane_audit_up"] }
		if up() != 1 {
			t.Error("the record is down before the disk is full")
		}
		full("10:unlimited") // every file is larger than that by now
		attacktest.Eventually(t, attacktest.Long, "the record is down", func() bool {
			visits++
			x.Ask(t, alice, "GET", attacktest.API+"/whoami", "")
			return up() == 0
		})
		before, stored := attacktest.ResidentMemory(t, x.PID()), s.SignIns(t, "alice@example.com")
		m := s.Mark(t)
		for _, request := range []struct{ method, path string }{{"POST", "/login"}, {"GET", "/kubeconfig"}, {"GET", "/kubeconfig?wait=20s"}, {"POST", "/login"}} {
			visits++
			a := x.Ask(t, alice, request.method, attacktest.API+request.path, "")
			switch {
			case a.Code() != problem.AuditUnavailable:
				t.Errorf("a.Code() = %q, want %q; %s; %s", a.Code(), problem.AuditUnavailable, request.method, request.path)
			case a.Status != http.StatusServiceUnavailable:
				t.Errorf("a.Status = %v, want %v; %s; %s", a.Status, http.StatusServiceUnavailable, request.method, request.path)
			case a.Header.Get("Retry-After") == "":
				t.Errorf(`a.Header.Get("Retry-After") == ""; %s, %s, %v`, request.method, request.path, a)
			case strings.Contains(a.Body, "eyJ"):
				t.Errorf("a.Body = %q contains %q; %s; %s", a.Body, "eyJ", request.method, request.path)
			}
		}
		if w := m.Writes(t, attacktest.AccessAccount); len(w) > 0 {
			t.Errorf("written without a record: %v", w)
		}
		switch now := s.SignIns(t, "alice@example.com"); {
		case len(now) != 1:
			t.Errorf("stored: len(now) = %v, want 1", len(now))
		case len(stored) != 1:
			t.Errorf("stored: len(stored) = %v, want 1", len(stored))
		case now[0].ResourceVersion != stored[0].ResourceVersion:
			t.Errorf("stored: now[0].ResourceVersion = %q, want %q", now[0].ResourceVersion, stored[0].ResourceVersion)
		}
		const n, slow = 400, 20
		sendVisits(t, s, alice, x.Name, n, http.StatusNotFound, "GET", "/nothing", "") // other operations continue
		most := longestOf(t, x, alice, slow)
		visits += n + slow
		t.Logf("while the disk is full, the longest of %d visits took %v", slow, most.Round(time.Millisecond))
		if grown := attacktest.ResidentMemory(t, x.PID()) - before; most > attacktest.Soon || grown > 64<<20 {
			t.Errorf("the longest took %v; memory grew by %d bytes", most, grown)
		}
		full("unlimited:unlimited")
		attacktest.Eventually(t, attacktest.Long, "the record is written again", func() bool { return up() == 1 })
		attacktest.Eventually(t, attacktest.Long, "a login", func() bool {
			visits++
			a := login()
			return a.Status == http.StatusAccepted || a.Status == http.StatusOK
		})
		if err := x.Stop(attacktest.Long); err != nil {
			t.Fatal(err)
		}
		if entries := visitsOf(t, attacktest.EntriesOf(t, attacktest.LinesOf(t, x.Record))); len(entries) != visits {
			t.Errorf("%d visits are %d entries: what waited is lost", visits, len(entries))
		}
		s.NewMachine(t, alice).Exec(0, "tka", "audit", "verify", "--key", x.AuditKey(t), x.Record)
	})
	t.Run("rotated under us", func(t *testing.T) {
		x := s.StartServer(t, "au04-moved", attacktest.ServerOptions{})
		host, _, _ := strings.Cut(x.Name, ".")
		s.WaitPeer(t, alice, host)
		const n = 50
		moved := x.Record + ".old"
		sendVisits(t, s, alice, x.Name, n, http.StatusNotFound, "GET", "/nothing", "")
		if err := os.Rename(x.Record, moved); err != nil { // rotation as logrotate does it with create
			t.Fatal(err)
		}
		if err := os.WriteFile(x.Record, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		sendVisits(t, s, alice, x.Name, n, http.StatusNotFound, "GET", "/nothing", "")
		gone := x.Record + ".older"
		if err := os.Rename(x.Record, gone); err != nil { // rotation without create
			t.Fatal(err)
		}
		sendVisits(t, s, alice, x.Name, n, http.StatusNotFound, "GET", "/nothing", "")
		if err := x.Stop(attacktest.Long); err != nil {
			t.Fatal(err)
		}
		total, seen := 0, map[string]bool{}
		for _, path := range []string{moved, gone, x.Record} {
			got := 0
			for _, e := range attacktest.EntriesOf(t, attacktest.LinesOf(t, path)) {
				if e.Args["path"] != "/nothing" {
					t.Logf("a request of another caller: %+v", e)
					continue
				}
				if got++; seen[e.RequestID] {
					t.Errorf("%s: %s is there twice", path, e.RequestID)
				}
				seen[e.RequestID] = true
			}
			if total += got; got < n-8 { // lines written at the moment of the rotation are in either file
				t.Errorf("%s has %d entries", path, got)
			}
		}
		if total != 3*n {
			t.Errorf("%d visits are %d entries", 3*n, total)
		}
		s.NewMachine(t, alice).Exec(0, "tka", "audit", "verify", "--key", x.AuditKey(t), moved, gone, x.Record)
		// Control.
		if r := s.NewMachine(t, alice).Exec(3, "tka", "audit", "verify", "--key", x.AuditKey(t), moved, x.Record); !strings.Contains(r.Stdout, ": cut: ") {
			t.Errorf("without one entry: %s", r.Stdout)
		}
	})
	t.Run("slow, and then stuck", func(t *testing.T) {
		x := &attacktest.Server{SystemEnv: s, Dir: filepath.Join(s.Dir, "au04-slow")}
		if err := os.RemoveAll(x.Dir); err != nil {
			t.Fatal(err)
		}
		kubeconfig, text := x.WriteSettings(t, attacktest.ServerOptions{Replace: []string{"file: " + s.AuditFile(), `file: "-"`}})
		reader, process := pipeOf(t, x, kubeconfig, text)
		host, _, _ := strings.Cut(x.Name, ".")
		s.WaitPeer(t, alice, host)
		if a := x.Ask(t, alice, "POST", attacktest.API+"/login", "{}"); a.Status != http.StatusAccepted { // control
			t.Fatalf("before: %v", a)
		}
		t.Cleanup(func() { s.Logout(t, alice) })
		// The pipe has no reader: once the pipe is full, each line blocks.
		before := attacktest.ResidentMemory(t, process.Pid)
		role := strings.Repeat("\u202e", 4500) // each of these characters takes six bytes in the audit log
		const n, slow = 400, 20
		sendVisits(t, s, alice, x.Name, n, http.StatusForbidden, "POST", attacktest.API+"/login", `{"role":"`+role+`"}`)
		most := longestOf(t, x, alice, slow)
		grown := attacktest.ResidentMemory(t, process.Pid) - before
		if a := x.Ask(t, alice, "POST", attacktest.API+"/login", "{}"); a.Status != http.StatusAccepted && a.Status != http.StatusOK {
			t.Errorf("a login while the record is stuck, and not required: %v", a)
		}
		state := s.Samples(t, x.Process)
		t.Logf("while no process reads the audit log, the longest of %d requests took %v, memory grew by %d KiB, and %v entries were lost",
			slow, most.Round(time.Millisecond), grown>>10, state["tailplane_audit_dropped_total"])
		switch {
		case most > attacktest.Soon:
			t.Errorf("the longest: most = %v, want at most %v", most, attacktest.Soon)
		case grown > 128<<20:
			t.Errorf("the longest: grown = %v, want at most %v", grown, 128<<20)
		case state["tailplane_audit_up"] != 0:
			t.Errorf(`the longest: state["tailplane_audit_up"] = %v, want 0`, state["tailplane_audit_up"])
		case state["tailplane_audit_dropped_total"] < 1:
			t.Errorf(`the longest: state["tailplane_audit_dropped_total"] = %v, want at least 1`, state["tailplane_audit_dropped_total"])
		}
		// The reader starts again, slowly at first.
		path := filepath.Join(x.Dir, "collected.jsonl")
		out, err := os.Create(path)
		if err != nil {
			t.Fatal(err)
		}
		collected := make(chan error, 1)
		go func() {
			defer out.Close()
			in, n := bufio.NewReaderSize(reader, 512), 0
			for {
				line, err := in.ReadBytes('\n')
				if _, werr := out.Write(line); err != nil || werr != nil {
					collected <- werr
					return
				}
				if n++; n < 50 {
					runtime.Gosched()
				}
			}
		}()
		attacktest.Eventually(t, attacktest.Long, "the record is written again", func() bool { return s.Samples(t, x.Process)["tailplane_audit_up"] == 1 })
		dropped := int64(s.Samples(t, x.Process)["tailplane_audit_dropped_total"])
		if err := process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-collected:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(attacktest.Long):
			t.Fatal("the server does not end")
		}
		lines := attacktest.LinesOf(t, path)
		lost := int64(0)
		for _, l := range lines {
			if content, err := l.Content(); err != nil {
				t.Fatal(err)
			} else if g, ok := content.(audit.Gap); ok {
				lost += g.Lost
			}
		}
		got := int64(len(visitsOf(t, attacktest.EntriesOf(t, lines))))
		if got+lost != n+slow+2 || lost != dropped {
			t.Errorf("%d visits are %d entries and %d lost; %d were counted", n+slow+2, got, lost, dropped)
		}
		s.NewMachine(t, alice).Exec(0, "tka", "audit", "verify", path)
	})
}

// openAudit is the line of settings that starts the audit section.
const openAudit = "\naudit:\n"

// pipeOf starts the server with a pipe as standard output. It returns the unread other end. The server ends with the
// test and with this process.
func pipeOf(t *testing.T, x *attacktest.Server, kubeconfig, text string) (reader *os.File, process *os.Process) {
	t.Helper()
	program, err := buildcache.Lookup("tailplaned")
	if err != nil {
		t.Fatal(err)
	}
	config, log := filepath.Join(x.Dir, "config.yaml"), filepath.Join(x.Dir, "log")
	if err := os.WriteFile(config, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	stderr, err := os.Create(log)
	if err != nil {
		t.Fatal(err)
	}
	defer stderr.Close()
	reader, stdout, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { reader.Close() })
	defer stdout.Close()
	cmd := exec.Command(program, "access", "--config", config, "--kubeconfig", kubeconfig)
	cmd.Env = append(append(os.Environ(), tailnettest.ChildEnv()...), x.SystemEnv.Net.HTTPSEnv()...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = x.Dir, stdout, stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the kernel ends the child when the thread that created it ends
		err := cmd.Start()
		started <- err
		if err == nil {
			cmd.Wait()
		}
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cmd.Process.Kill(); <-done })
	x.Process = &testenv.Process{Args: cmd.Args, Log: log} // for reading its output
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	if err := x.WaitLog(ctx, `"access is serving"`); err != nil {
		t.Fatal(err)
	}
	x.Name = attacktest.ServingNames(t, x.Process)[0]
	return reader, cmd.Process
}
