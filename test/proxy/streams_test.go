package proxy

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

const limit = 30 * time.Second

// A command is a program that runs beside the test.
type command struct {
	*exec.Cmd
	in    io.WriteCloser
	mu    sync.Mutex
	out   bytes.Buffer
	ended chan struct{}
	err   error
	at    time.Time // of the end
}

func (c *command) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.Write(b)
}

// String returns the output so far.
func (c *command) String() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.out.String()
}

// begin starts kubectl as p through the proxy, in a session. Its standard input stays open.
func begin(t *testing.T, p *testenv.Person, session string, env []string, args ...string) *command {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	c := &command{ended: make(chan struct{})}
	c.Cmd = exec.CommandContext(ctx, filepath.Join(p.Bin(), "kubectl"), append([]string{"--kubeconfig", filepath.Join(p.Home, session+".kubeconfig")}, args...)...)
	c.Env, c.Dir, c.Stdout, c.Stderr, c.WaitDelay = append(p.Env(), env...), p.Home, c, c, time.Second
	in, err := c.StdinPipe()
	if err != nil {
		t.Fatal(err)
	}
	c.in = in
	if err := c.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		c.err = c.Wait()
		c.at = time.Now()
		close(c.ended)
	}()
	t.Cleanup(func() {
		in.Close()
		cancel()
		<-c.ended
	})
	return c
}

// until waits until ok returns true.
func until(t *testing.T, what func() string, ok func() bool) {
	t.Helper()
	for began := time.Now(); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Since(began) > limit {
			t.Fatalf("not within %v: %s", limit, what())
		}
	}
}

const app = `apiVersion: v1
kind: Pod
metadata: {name: app, namespace: default}
spec: {containers: [{name: app, image: example.com/app:1}]}
`

// protocols are the two protocols of kubectl for streams.
var protocols = map[string][]string{
	"WebSocket": nil,
	"SPDY":      {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"},
}

// runApp creates a pod that runs.
func runApp(t *testing.T, r *testenv.Env) {
	t.Helper()
	if err := r.Cluster.Apply(t.Context(), []byte(app)); err != nil {
		t.Fatal(err)
	}
}

// PRX-05, PRX-06: exec, attach, logs and port-forward work with both protocols, and a logout ends every kind of open stream within
// two seconds, with a reason and a code that is not 0.
func TestPRX06_LogoutCutsStreams(t *testing.T) {
	r := start(t)
	runApp(t, r)
	alice := person(t, r, "alice-streams", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	kubectl(t, alice, 1, "get", "pods") // the default session has no sign-in
	run(t, alice, 0, "kubectl", "--kubeconfig", filepath.Join(alice.Home, "edit.kubeconfig"), "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	type stream struct {
		name   string
		env    []string
		args   []string
		in     string
		open   *regexp.Regexp // of the output, when the stream is open
		reason bool           // the program prints why it ended
		watch  bool
		c      *command
	}
	streams := []*stream{
		{name: "watch", watch: true, args: []string{"get", "namespaces", "-w"}, open: regexp.MustCompile("kube-system"), reason: true},
		{name: "watch only", watch: true, args: []string{"get", "--raw", "/api/v1/namespaces?watch=1"}, open: regexp.MustCompile("kube-system"), reason: true},
		{name: "logs", args: []string{"logs", "-f", "app"}, open: regexp.MustCompile("."), reason: true},
	}
	for protocol, env := range protocols {
		streams = append(streams,
			&stream{name: "exec " + protocol, env: env, args: []string{"exec", "-i", "app", "--", "cat"}, in: "begun", open: regexp.MustCompile("begun"), reason: true},
			&stream{name: "attach " + protocol, env: env, args: []string{"attach", "-i", "app"}, open: regexp.MustCompile("attached"), reason: true},
			&stream{name: "port-forward " + protocol, env: env, args: []string{"port-forward", "pod/app", ":8080"}, open: regexp.MustCompile(`Forwarding from 127\.0\.0\.1:(\d+)`)})
	}
	for _, s := range streams {
		s.c = begin(t, alice, "edit", s.env, s.args...)
		fmt.Fprintln(s.c.in, s.in)
	}
	for _, s := range streams {
		until(t, func() string { return s.name + ": " + s.c.String() }, func() bool { return s.open.MatchString(s.c.String()) })
	}
	for _, s := range streams { // a forwarded port has streams while a connection is open
		if strings.HasPrefix(s.name, "port-forward") {
			c, err := net.Dial("tcp", "127.0.0.1:"+s.open.FindStringSubmatch(s.c.String())[1])
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			fmt.Fprintln(c, "hello")
			b := make([]byte, 100)
			if n, err := c.Read(b); err != nil || !strings.HasPrefix(string(b[:n]), "port 8080") {
				t.Errorf("%s: %q, %v", s.name, b[:n], err)
			}
		}
	}
	until(t, func() string { return r.Proxy.Output() }, func() bool { return r.ProxyStreams() >= len(streams) })
	began := time.Now()
	run(t, alice, 0, "tka", "logout", "--session", "edit")
	for _, s := range streams {
		select {
		case <-s.c.ended:
		case <-time.After(limit):
			t.Errorf("%s continues: %s", s.name, s.c)
			continue
		}
		took := s.c.at.Sub(began)
		t.Logf("%-22s ended %v after the logout began: %v", s.name, took.Round(time.Millisecond), s.c.err)
		if _, failed := errors.AsType[*exec.ExitError](s.c.err); failed == s.watch {
			t.Errorf("%s: %v; kubectl get ends with 0, and all others must not", s.name, s.c.err)
		}
		if s.reason && !strings.Contains(s.c.String(), "the sign-in was ended") {
			t.Errorf("%s does not say why it ended: %q", s.name, s.c.String())
		}
	}
}
