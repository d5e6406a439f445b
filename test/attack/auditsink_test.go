package attack

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

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// pipeline sends requests to a server on one connection, several at a time, and
// returns how often each status was answered.
func (s *system) pipeline(ctx context.Context, p *testenv.Person, server string, requests []string) (map[int]int, error) {
	v := &visitor{p: p}
	if err := v.connect(ctx, s, server); err != nil {
		return nil, err
	}
	defer v.conn.Close()
	answers, statuses := bufio.NewReader(v.conn), map[int]int{}
	for batch := range slices.Chunk(requests, 40) {
		if err := v.conn.SetDeadline(time.Now().Add(long)); err != nil {
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

// visits makes n equal visits of p to a server, some at once. Each must be
// answered with the status.
func (s *system) visits(t *testing.T, p *testenv.Person, server string, n, status int, method, path, body string) {
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
			got, err := s.pipeline(t.Context(), p, server, slices.Repeat([]string{request}, k))
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

// longest makes n visits one after the other, and returns how long the longest took.
func (x *server) longest(t *testing.T, p *testenv.Person, n int) (most time.Duration) {
	t.Helper()
	for range n {
		began := time.Now()
		if a := x.ask(t, p, "GET", api+"/whoami", ""); a.Status != http.StatusOK {
			t.Errorf("whoami: %v", a)
		}
		most = max(most, time.Since(began))
	}
	return most
}

// AU-04. While the record cannot be written, what may not go unrecorded is refused
// and the rest goes on, with a bounded delay and bounded memory; what is lost is
// counted, and the record says so where it is missing. Rotated under us, it goes on.
//
// Guard: audit.(*Log).Write (the delay, the bounds, the gap), audit.(*writer).turn
// (another file), door.(*visit).pass and door.(*hall).ServeHTTP (MustRecord).
func TestAU04_TheSinkFails(t *testing.T) {
	s := start(t)
	alice := s.alice(t)

	t.Run("a full disk, and the record is required", func(t *testing.T) {
		prlimit, err := exec.LookPath("prlimit")
		if err != nil {
			t.Skip("SKIP a full disk: prlimit is not in PATH")
		}
		x := s.server(t, "au04-full", serverOptions{replace: []string{openAudit, openAudit + "  required: true\n"}})
		host, _, _ := strings.Cut(x.name, ".")
		s.waitPeer(t, alice, host)
		// As full as it gets: files of this process cannot grow beyond a size.
		full := func(size string) {
			t.Helper()
			if out, err := exec.Command(prlimit, "--pid", fmt.Sprint(x.PID()), "--fsize="+size).CombinedOutput(); err != nil {
				t.Fatalf("prlimit: %v: %s", err, out)
			}
		}
		login := func() answer { t.Helper(); return x.ask(t, alice, "POST", api+"/login", "{}") }
		if a := login(); a.Status != http.StatusAccepted { // the control
			t.Fatalf("before: %v", a)
		}
		t.Cleanup(func() { s.logout(t, alice) })
		s.kubeconfig(t, alice) // at the shared server: it is ready
		visits := 1
		up := func() float64 { return s.series(t, x.Process)["tailplane_audit_up"] }
		if up() != 1 {
			t.Error("the record is down before the disk is full")
		}
		full("10:unlimited") // each is larger than that by now
		eventually(t, long, "the record is down", func() bool {
			visits++
			x.ask(t, alice, "GET", api+"/whoami", "")
			return up() == 0
		})
		before, stored := resident(t, x.PID()), s.signins(t, "alice@example.com")
		m := s.mark(t)
		for _, request := range []struct{ method, path string }{{"POST", "/login"}, {"GET", "/kubeconfig"}, {"GET", "/kubeconfig?wait=20s"}, {"POST", "/login"}} {
			visits++
			a := x.ask(t, alice, request.method, api+request.path, "")
			if a.code() != problem.AuditUnavailable || a.Status != http.StatusServiceUnavailable || a.Header.Get("Retry-After") == "" || strings.Contains(a.Body, "eyJ") {
				t.Errorf("%s %s without a record: %v", request.method, request.path, a)
			}
		}
		if w := m.writes(t, accessAccount); len(w) > 0 {
			t.Errorf("written without a record: %v", w)
		}
		if now := s.signins(t, "alice@example.com"); len(now) != 1 || len(stored) != 1 || now[0].ResourceVersion != stored[0].ResourceVersion {
			t.Errorf("stored %v, then %v", stored, now)
		}
		const n, slow = 400, 20
		s.visits(t, alice, x.name, n, http.StatusNotFound, "GET", "/nothing", "") // the others go on
		most := x.longest(t, alice, slow)
		visits += n + slow
		t.Logf("while the disk is full, the longest of %d visits took %v", slow, most.Round(time.Millisecond))
		if grown := resident(t, x.PID()) - before; most > soon || grown > 64<<20 {
			t.Errorf("the longest took %v; memory grew by %d bytes", most, grown)
		}
		full("unlimited:unlimited")
		eventually(t, long, "the record is written again", func() bool { return up() == 1 })
		eventually(t, long, "a login", func() bool {
			visits++
			a := login()
			return a.Status == http.StatusAccepted || a.Status == http.StatusOK
		})
		if err := x.Stop(long); err != nil {
			t.Fatal(err)
		}
		if entries := entriesOf(t, linesOf(t, x.record)); len(entries) != visits {
			t.Errorf("%d visits are %d entries: what waited is lost", visits, len(entries))
		}
		s.machine(t, alice).run(0, "tka", "audit", "verify", "--key", x.key(t), x.record)
	})
	t.Run("rotated under us", func(t *testing.T) {
		x := s.server(t, "au04-moved", serverOptions{})
		host, _, _ := strings.Cut(x.name, ".")
		s.waitPeer(t, alice, host)
		const n = 50
		moved := x.record + ".old"
		s.visits(t, alice, x.name, n, http.StatusNotFound, "GET", "/nothing", "")
		if err := os.Rename(x.record, moved); err != nil { // as logrotate does it, with create
			t.Fatal(err)
		}
		if err := os.WriteFile(x.record, nil, 0o600); err != nil {
			t.Fatal(err)
		}
		s.visits(t, alice, x.name, n, http.StatusNotFound, "GET", "/nothing", "")
		gone := x.record + ".older"
		if err := os.Rename(x.record, gone); err != nil { // and without
			t.Fatal(err)
		}
		s.visits(t, alice, x.name, n, http.StatusNotFound, "GET", "/nothing", "")
		if err := x.Stop(long); err != nil {
			t.Fatal(err)
		}
		total, seen := 0, map[string]bool{}
		for _, path := range []string{moved, gone, x.record} {
			got := 0
			for _, e := range entriesOf(t, linesOf(t, path)) {
				if e.Args["path"] != "/nothing" {
					t.Logf("somebody else's visit: %+v", e)
					continue
				}
				if got++; seen[e.RequestID] {
					t.Errorf("%s: %s is there twice", path, e.RequestID)
				}
				seen[e.RequestID] = true
			}
			if total += got; got < n-8 { // those of the moment are in one or the other
				t.Errorf("%s has %d entries", path, got)
			}
		}
		if total != 3*n {
			t.Errorf("%d visits are %d entries", 3*n, total)
		}
		s.machine(t, alice).run(0, "tka", "audit", "verify", "--key", x.key(t), moved, gone, x.record)
		if r := s.machine(t, alice).run(3, "tka", "audit", "verify", "--key", x.key(t), moved, x.record); !strings.Contains(r.Stdout, ": cut: ") { // the control
			t.Errorf("without one of them: %s", r.Stdout)
		}
	})
	t.Run("slow, and then stuck", func(t *testing.T) {
		x := &server{s: s, dir: filepath.Join(s.Dir, "au04-slow")}
		if err := os.RemoveAll(x.dir); err != nil {
			t.Fatal(err)
		}
		kubeconfig, text := x.settings(t, serverOptions{replace: []string{"file: " + s.AuditFile(), `file: "-"`}})
		reader, process := x.pipe(t, kubeconfig, text)
		host, _, _ := strings.Cut(x.name, ".")
		s.waitPeer(t, alice, host)
		if a := x.ask(t, alice, "POST", api+"/login", "{}"); a.Status != http.StatusAccepted { // the control
			t.Fatalf("before: %v", a)
		}
		t.Cleanup(func() { s.logout(t, alice) })
		// Nobody reads: after what the pipe holds, each line waits for ever.
		before := resident(t, process.Pid)
		role := strings.Repeat("\u202e", 4500) // each of them takes six bytes in the record
		const n, slow = 400, 20
		s.visits(t, alice, x.name, n, http.StatusForbidden, "POST", api+"/login", `{"role":"`+role+`"}`)
		most := x.longest(t, alice, slow)
		grown := resident(t, process.Pid) - before
		if a := x.ask(t, alice, "POST", api+"/login", "{}"); a.Status != http.StatusAccepted && a.Status != http.StatusOK {
			t.Errorf("a login while the record is stuck, and not required: %v", a)
		}
		state := s.series(t, x.Process)
		t.Logf("while nobody takes the record, the longest of %d visits took %v, memory grew by %d KiB, and %v entries were lost",
			slow, most.Round(time.Millisecond), grown>>10, state["tailplane_audit_dropped_total"])
		if most > soon || grown > 128<<20 || state["tailplane_audit_up"] != 0 || state["tailplane_audit_dropped_total"] < 1 {
			t.Errorf("the longest took %v; memory grew by %d bytes; %v lost; up %v", most, grown, state["tailplane_audit_dropped_total"], state["tailplane_audit_up"])
		}
		// Somebody reads again, slowly at first.
		path := filepath.Join(x.dir, "collected.jsonl")
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
		eventually(t, long, "the record is written again", func() bool { return s.series(t, x.Process)["tailplane_audit_up"] == 1 })
		dropped := int64(s.series(t, x.Process)["tailplane_audit_dropped_total"])
		if err := process.Signal(syscall.SIGTERM); err != nil {
			t.Fatal(err)
		}
		select {
		case err := <-collected:
			if err != nil {
				t.Fatal(err)
			}
		case <-time.After(long):
			t.Fatal("the server does not end")
		}
		lines := linesOf(t, path)
		lost := int64(0)
		for _, l := range lines {
			if content, err := l.Content(); err != nil {
				t.Fatal(err)
			} else if g, ok := content.(audit.Gap); ok {
				lost += g.Lost
			}
		}
		if got := int64(len(entriesOf(t, lines))); got+lost != n+slow+2 || lost != dropped {
			t.Errorf("%d visits are %d entries and %d lost; %d were counted", n+slow+2, got, lost, dropped)
		}
		s.machine(t, alice).run(0, "tka", "audit", "verify", path)
	})
}

// openAudit is the line of settings behind which audit's own are.
const openAudit = "\naudit:\n"

// pipe starts the server with a standard output that this process has the other
// end of, which is not read yet. The server ends with this process, and with the
// test.
func (x *server) pipe(t *testing.T, kubeconfig, text string) (reader *os.File, process *os.Process) {
	t.Helper()
	program, err := buildcache.Lookup("tailplaned")
	if err != nil {
		t.Fatal(err)
	}
	config, log := filepath.Join(x.dir, "config.yaml"), filepath.Join(x.dir, "log")
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
	cmd.Env = append(append(os.Environ(), tailnettest.ChildEnv()...), x.s.Net.HTTPSEnv()...)
	cmd.Dir, cmd.Stdout, cmd.Stderr, cmd.SysProcAttr = x.dir, stdout, stderr, &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started, done := make(chan error), make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // the kernel ends the child when the thread that made it ends
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
	x.Process = &testenv.Process{Args: cmd.Args, Log: log} // for what it says
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if err := x.WaitLog(ctx, `"access is serving"`); err != nil {
		t.Fatal(err)
	}
	x.name = servingNames(t, x.Process)[0]
	return reader, cmd.Process
}
