//go:build unix

package cli_test

import (
	"bytes"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// A runningShell is a tka process that has not ended yet.
type runningShell struct {
	*exec.Cmd
	t        *testing.T
	m        *machine
	out, err bytes.Buffer
	in       io.WriteCloser
	done     chan struct{}
}

// start starts tka with an open standard input.
func (m *machine) start(t *testing.T, args ...string) *runningShell {
	t.Helper()
	r := &runningShell{Cmd: m.command(nil, args...), t: t, m: m, done: make(chan struct{})}
	r.Stdout, r.Stderr = &r.out, &r.err
	var err error
	if r.in, err = r.StdinPipe(); err == nil {
		err = r.Start()
	}
	if err != nil {
		t.Fatal(err)
	}
	go func() { r.Wait(); close(r.done) }()
	t.Cleanup(func() { r.in.Close(); r.Process.Kill(); <-r.done })
	return r
}

// waitExit waits for the end, and checks that nothing of the shell remains.
func (r *runningShell) waitExit(code int) {
	r.t.Helper()
	select {
	case <-r.done:
	case <-time.After(patience):
		r.t.Fatalf("%v is still running\n%s", r.Args, r.err.String())
	}
	if got := r.ProcessState.ExitCode(); got != code {
		r.t.Errorf("%v: code %d, want %d\n%s%s", r.Args, got, code, r.out.String(), r.err.String())
	}
	if strings.Contains(r.err.String(), "goroutine ") || strings.Contains(r.out.String()+r.err.String(), canary) {
		r.t.Errorf("stderr: %s", r.err.String())
	}
	if dirs := r.m.sessionDirs(); len(dirs) > 0 {
		r.t.Errorf("left: %v", dirs)
	}
}

// sessionDirs returns the private directories of shells.
func (m *machine) sessionDirs() []string {
	dirs, err := filepath.Glob(m.path(".cache/tka/shells/room-*"))
	if err != nil {
		panic(err)
	}
	return dirs
}

// waitUntil waits for a condition.
func waitUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for deadline := time.Now().Add(patience); !ok(); time.Sleep(5 * time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%s: not within %v", what, patience)
		}
	}
}

func (m *machine) exists(name string) func() bool {
	return func() bool { _, err := os.Stat(m.path(name)); return err == nil }
}

// SGN-21: only the child has the access. Its exit code is that of tka, and nothing remains.
func TestSGN21_shell(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	m.env["TKA_EVAL_FILE"] = "/nonexistent"
	m.env["PS1"] = "mine> "
	m.write(t, "child.sh", `
echo "cluster $TKA_CLUSTER"
echo "prompt $PS1"
echo "eval [$TKA_EVAL_FILE]"
echo "modes" $(stat -c %a "$KUBECONFIG" "$(dirname "$KUBECONFIG")")
cat "$KUBECONFIG"
tka credential --cluster prod-eu --session $TKA_SESSION > /dev/null && echo "has a token"
exit 7
`)
	r := m.start(t, "shell", "--", "sh", m.path("child.sh"))
	r.waitExit(7)
	for _, want := range []string{"cluster prod-eu\n", "prompt (tka:prod-eu) mine> \n", "eval []\n", "modes 600 700\n", "current-context: tka-prod-eu-shell-", "has a token\n"} {
		if !strings.Contains(r.out.String(), want) {
			t.Errorf("stdout lacks %q:\n%s", want, r.out.String())
		}
	}
	if !strings.Contains(r.err.String(), "Signed in to prod-eu as alice@example.com") || !strings.Contains(r.err.String(), "Signed out.") {
		t.Errorf("stderr: %s", r.err.String())
	}
	d.checkRequests(t, requestInfo, requestLogin, requestConfig, requestInfo, requestConfig, requestLogout)
	for _, f := range m.files(t) {
		switch {
		case strings.Contains(f, ".kube"):
			t.Errorf("left: f = %q contains %q", f, ".kube")
		case strings.Contains(f, "tokens"):
			t.Errorf("left: f = %q contains %q", f, "tokens")
		case strings.Contains(m.read(t, f), canary):
			t.Errorf("left: strings.Contains(m.read(t, f), canary) is true; %s", f)
		}
	}

	// flags after the command belong to the command, also without --
	m.start(t, "shell", "sh", "-c", "exit 3").waitExit(3)
	m.start(t, "login", "--shell", "--", "true").waitExit(0)
	m.start(t, "login", "--shell", "--use").waitExit(2)
}

// SGN-21: without a command, tka runs the person's own shell, with a prompt that names the cluster.
func TestSGN21_own_shell(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	for _, name := range []string{"sh", "bash", "zsh", "fish"} {
		t.Run(name, func(t *testing.T) {
			path, err := exec.LookPath(name)
			if err != nil {
				t.Skipf("SKIP %s: it is not in PATH", name)
			}
			m.env["SHELL"] = path
			r := m.start(t, "shell")
			io.WriteString(r.in, "echo cluster $TKA_CLUSTER\nexit 5\n")
			r.in.Close()
			r.waitExit(5)
			if r.out.String() != "cluster prod-eu\n" {
				t.Errorf("stdout %q, stderr %q", r.out.String(), r.err.String())
			}
		})
	}
	m.env["SHELL"] = "/nonexistent/shell"
	r := m.start(t, "shell")
	r.waitExit(2)
	if !strings.Contains(r.err.String(), "/nonexistent/shell cannot be run") {
		t.Error(r.err.String())
	}
}

// SGN-21, CL-08: signals end the child, and tka then does its cleanup.
func TestSGN21_signals(t *testing.T) {
	for _, tt := range []struct {
		name   string
		first  string // before it reports that it runs
		child  string
		signal []os.Signal
		code   int
	}{
		{"the child dies of a signal", ":", "kill -KILL $$", nil, 137},
		{"TERM", ":", "exec sleep 60", []os.Signal{syscall.SIGTERM}, 143},
		{"HUP", ":", "exec sleep 60", []os.Signal{syscall.SIGHUP}, 129},
		{"TERM after a resize", ":", "exec sleep 60", []os.Signal{syscall.SIGWINCH, syscall.SIGWINCH, syscall.SIGTERM}, 143},
		{"INT is the child's, and there is no terminal that sent it one", "trap 'exit 9' INT", "while :; do sleep 0.05; done", []os.Signal{os.Interrupt}, 9},
		{"QUIT makes no stack trace", "trap 'exit 8' QUIT", "while :; do sleep 0.05; done", []os.Signal{syscall.SIGQUIT}, 8},
		{"a broken pipe is nothing", "trap 'exit 9' TERM", "while :; do sleep 0.05; done", []os.Signal{syscall.SIGPIPE, syscall.SIGTERM}, 9},
		{"a child that ignores TERM", "trap '' TERM", "while :; do sleep 0.05; done", []os.Signal{syscall.SIGTERM}, 129},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			d, srv := newAccessServer(t, "prod-eu")
			m := newMachine(t, srv.URL)
			r := m.start(t, "shell", "--", "sh", "-c", tt.first+"; echo > "+m.path("started")+"; "+tt.child)
			waitUntil(t, "the child runs", m.exists("started"))
			for _, sig := range tt.signal {
				r.Process.Signal(sig)
				time.Sleep(50 * time.Millisecond) // otherwise the system merges them
			}
			r.waitExit(tt.code)
			d.checkRequests(t, requestInfo, requestLogin, requestConfig, requestLogout)
		})
	}
}

// SGN-21, CL-08: Ctrl-C during the sign-in ends the sign-in again.
func TestSGN21_interrupted_sign_in(t *testing.T) {
	for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM, syscall.SIGHUP} {
		t.Run(fmt.Sprint(sig), func(t *testing.T) {
			d, srv := newAccessServer(t, "prod-eu")
			d.store.ready = -1
			m := newMachine(t, srv.URL)
			r := m.start(t, "shell", "--timeout", "5m", "--", "sh", "-c", "echo > "+m.path("started"))
			waitUntil(t, "the login arrives", func() bool { return len(d.received()) >= 2 })
			r.Process.Signal(sig)
			r.waitExit(130)
			switch {
			case !strings.Contains(r.err.String(), "error: interrupted\n"):
				t.Errorf("stderr: r.err.String() = %q does not contain %q", r.err.String(), "error: interrupted\n")
			case !strings.Contains(r.err.String(), "Signed out."):
				t.Errorf("stderr: r.err.String() = %q does not contain %q", r.err.String(), "Signed out.")
			case strings.Contains(r.err.String(), "signed in nevertheless"):
				t.Errorf("stderr: r.err.String() = %q contains %q", r.err.String(), "signed in nevertheless")
			}
			if m.exists("started")() {
				t.Error("the child ran")
			}
			if seen := d.received(); !slices.Contains(seen, requestLogout) {
				t.Errorf("requests: %v", seen)
			}
			if n := len(d.store.signins); n != 0 {
				t.Errorf("%d sign-ins are left", n)
			}
		})
	}
}

// A refused sign-in gives the server's message and its exit code, and there is nothing to end.
func TestSGN21_refused(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	r := m.start(t, "shell", "--role", "edit", "--", "true")
	r.waitExit(3)
	d.checkRequests(t, requestInfo, "POST /api/v1alpha1/login 403")
	m.start(t, "shell", "--", "/nonexistent/program").waitExit(2)
	m.start(t, "shell", "--for", "-1h", "--", "true").waitExit(2)
	d.checkRequests(t)
	srv.Close()
	m.start(t, "shell", "--", "true").waitExit(5)
}

// SGN-21: a shell has a session of its own. The sign-in of other terminals is the same before, during and after it.
func TestSGN21_existing_sign_in(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	d.rules = []string{grantRule("view/8h/1"), grantRule("edit/1h")}
	d.start()
	m := newMachine(t, srv.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	d.checkRequests(t, requestInfo, requestLogin, requestConfig)
	before, config := m.run("status", "-o", "json").out, m.read(t, ".kube/config")
	for _, args := range [][]string{{"--role", "edit", "--for", "30m"}, {"--for", "15m"}, {"--revoke"}} {
		m.start(t, append(append([]string{"shell"}, args...), "--", "sh", "-c", "tka credential --cluster prod-eu > /dev/null")...).waitExit(0)
		if diff := cmp.Diff(before, m.run("status", "-o", "json").out); diff != "" {
			t.Errorf("%v: the other terminal's sign-in (-before +after):\n%s", args, diff)
		}
	}
	r := m.start(t, "shell", "--role", "edit", "--", "sh", "-c", "echo > "+m.path("started")+"; cat; tka status")
	waitUntil(t, "the child runs", m.exists("started"))
	if s := m.run("status"); !regexp.MustCompile(`(?m)^prod-eu +alice@example.com +view .*this terminal`).MatchString(s.out) ||
		!regexp.MustCompile(`(?m)^prod-eu +shell-\w+ +alice@example.com +edit +all +ready +\d+m *$`).MatchString(s.out) {
		t.Errorf("another terminal sees\n%s", s.out)
	}
	r.in.Close()
	r.waitExit(0)
	if out := r.out.String(); !regexp.MustCompile(`(?m)^prod-eu +shell-\w+ +alice@example.com +edit .*this terminal`).MatchString(out) {
		t.Errorf("the shell sees\n%s", out)
	}
	r = m.start(t, "shell", "--keep", "--", "true")
	r.waitExit(0)
	end := regexp.MustCompile(`The sign-in continues until .*; to end it: tka (logout --cluster prod-eu --session shell-\w+)\n`).FindStringSubmatch(r.err.String())
	if end == nil {
		t.Fatalf("stderr: %s", r.err.String())
	}
	if r := m.run(strings.Fields(end[1])...); r.code != 0 || !strings.Contains(r.out, "Signed out of prod-eu, session shell-") {
		t.Errorf("code %d: %s%s", r.code, r.out, r.err)
	}
	if got := m.run("status", "-o", "json").out; got != before || m.read(t, ".kube/config") != config {
		t.Errorf("in the end:\n%s", got)
	}
}

// SGN-21: two concurrent shells have separate sign-ins, with the role of each. One ends its own, and the other continues.
func TestSGN21_two_shells(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	d.rules = []string{grantRule("view/8h/1"), grantRule("edit/1h")}
	d.start()
	m := newMachine(t, srv.URL)
	shell := func(name, role string) *runningShell {
		r := m.start(t, "shell", "--role", role, "--", "sh", "-c", "echo > "+m.path(name)+"; cat; tka credential --cluster prod-eu --session $TKA_SESSION > /dev/null; tka status")
		waitUntil(t, name+" runs", m.exists(name))
		return r
	}
	a, b := shell("a", "edit"), shell("b", "view")
	if n := len(m.sessionDirs()); n != 2 {
		t.Errorf("%d rooms", n)
	}
	a.in.Close()
	<-a.done
	switch {
	case a.ProcessState.ExitCode() != 0:
		t.Errorf("code: a.ProcessState.ExitCode() = %v, want 0; %s", a.ProcessState.ExitCode(), a.err.String())
	case !strings.Contains(a.err.String(), "Signed out."):
		t.Errorf("code: a.err.String() = %q does not contain %q", a.err.String(), "Signed out.")
	case len(m.sessionDirs()) != 1:
		t.Errorf("code: len(m.sessionDirs()) = %v, want 1", len(m.sessionDirs()))
	}
	b.in.Close()
	b.waitExit(0)
	if out := b.out.String(); !regexp.MustCompile(`(?m)^prod-eu +shell-\w+ +alice@example.com +view +all +ready`).MatchString(out) || strings.Contains(out, "edit") {
		t.Errorf("after the other's end, the shell sees\n%s", out)
	}
	if n := len(d.store.signins); n != 0 {
		t.Errorf("%d sign-ins are left", n)
	}
}

// SGN-21, CL-04: the next shell removes what a killed shell left.
func TestSGN21_killed(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	r := m.start(t, "shell", "--", "sh", "-c", "echo > "+m.path("started")+"; cat")
	waitUntil(t, "the child runs", m.exists("started"))
	r.Process.Kill()
	r.in.Close()
	<-r.done
	if n := len(m.sessionDirs()); n != 1 {
		t.Errorf("%d rooms", n)
	}
	d.checkRequests(t, requestInfo, requestLogin, requestConfig)
	m.start(t, "shell", "--", "true").waitExit(0) // this shell ends its own session only
	d.checkRequests(t, requestInfo, requestLogin, requestConfig, requestLogout)
	if n := len(d.store.signins); n != 1 {
		t.Errorf("%d sign-ins, want that of the killed shell, which ends with its period", n)
	}
}

// If tka cannot end the sign-in, it reports that it continues and keeps the child's exit code.
func TestSGN21_unreachable_at_the_end(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	r := m.start(t, "shell", "--", "sh", "-c", "echo > "+m.path("started")+"; cat; exit 6")
	waitUntil(t, "the child runs", m.exists("started"))
	srv.CloseClientConnections()
	srv.Close()
	r.in.Close()
	r.waitExit(6)
	if !strings.Contains(r.err.String(), "the sign-in continues until") || !strings.Contains(r.err.String(), "tka logout") {
		t.Errorf("stderr: %s", r.err.String())
	}
}

// If the server of a shell is unreachable at its end, another server of the cluster ends the sign-in.
func TestSGN21_another_replica_at_the_end(t *testing.T) {
	one, _, first, _, m := newReplicas(t)
	r := m.start(t, "shell", "--", "sh", "-c", "echo > "+m.path("started")+"; cat; exit 6")
	waitUntil(t, "the child runs", m.exists("started"))
	first.CloseClientConnections()
	first.Close()
	r.in.Close()
	r.waitExit(6)
	if !strings.Contains(r.err.String(), "Signed out.") {
		t.Errorf("stderr: %s", r.err.String())
	}
	if n := len(one.store.signins); n != 0 {
		t.Errorf("%d sign-ins are left, want none", n)
	}
}

// CL-08: Ctrl-C ends tka at once, without a stack trace or a partial file. tka reports whether the sign-in still exists, as far as it
// knows.
func TestCL08_interrupted(t *testing.T) {
	for _, tt := range []struct {
		name, pattern string // of the request that gets no response
		says          string
	}{
		{"before the login is answered", "POST /api/v1alpha1/login", "The server may have signed you in; to check or to end the sign-in: tka status, tka logout"},
		{"while it waits for the access", "GET /api/v1alpha1/kubeconfig", "You are signed in nevertheless; to end the sign-in: tka logout"},
	} {
		for _, sig := range []os.Signal{os.Interrupt, syscall.SIGTERM} {
			t.Run(fmt.Sprint(tt.name, ", ", sig), func(t *testing.T) {
				d, _ := newAccessServer(t, "prod-eu")
				d.store.ready = -1
				reached := make(chan struct{})
				httpServer := http.NewServeMux()
				httpServer.Handle("/", d)
				httpServer.HandleFunc(tt.pattern, func(_ http.ResponseWriter, r *http.Request) {
					if r.Method == http.MethodPost { // carried out, but the response is lost
						d.ServeHTTP(httptest.NewRecorder(), r)
					}
					close(reached)
					<-r.Context().Done()
				})
				srv := httptest.NewServer(httpServer)
				t.Cleanup(srv.Close) // Close waits for its requests, until tka has ended
				m := newMachine(t, srv.URL)
				r := m.start(t, "login", "--timeout", "5m")
				select {
				case <-reached:
				case <-r.done:
				case <-time.After(patience):
				}
				r.Process.Signal(sig)
				r.waitExit(130)
				if errText := r.err.String(); !strings.Contains(errText, "error: interrupted\n") || !strings.Contains(errText, tt.says) {
					t.Errorf("stderr: %s", errText)
				}
				if signins := len(d.store.ListCached("alice@example.com")); signins != 1 {
					t.Errorf("%d sign-ins", signins)
				}
				if files := m.files(t); len(files) != 2 { // settings, known servers
					t.Errorf("files: %v", files)
				}
			})
		}
	}
}
