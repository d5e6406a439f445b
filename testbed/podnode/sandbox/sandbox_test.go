//go:build linux

package sandbox

import (
	"context"
	"io"
	"net"
	"os"
	"strings"
	"syscall"
	"testing"
	"time"
)

func TestMain(m *testing.M) {
	if Inside() {
		return
	}
	os.Exit(m.Run())
}

// pod starts a pod for the test. If this machine does not support it, the test is skipped with the reason.
func pod(t *testing.T) *Sandbox {
	t.Helper()
	if err := Possible(t.Context()); err != nil {
		t.Skipf("SKIP namespaces: %v", err)
	}
	dir, err := os.MkdirTemp("", "pn") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	s, err := Start(t.Context(), dir, "testpod")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		s.Close()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	return s
}

// run runs a shell script with the machine's own tools and returns its output.
func run(t *testing.T, c *Container, p Process, script string) (string, Exit) {
	t.Helper()
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer r.Close()
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer null.Close()
	p.Args, p.Env, p.Dir = []string{"sh", "-c", script}, []string{"PATH=/bin:/usr/bin:/sbin:/usr/sbin"}, "/"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	running, err := c.Run(ctx, p, null, w, w)
	w.Close()
	if err != nil {
		t.Fatal(err)
	}
	b, err := io.ReadAll(r)
	if err != nil {
		t.Fatal(err)
	}
	return strings.TrimSpace(string(b)), running.Exit()
}

// A container sees its own processes, root directory, network and host name, and nothing of the machine.
func TestIsolation(t *testing.T) {
	s := pod(t)
	dir := t.TempDir()
	if err := os.WriteFile(dir+"/secret", []byte("s3cret"), 0o600); err != nil {
		t.Fatal(err)
	}
	a, err := s.Container(t.Context(), Root{Tools: true, Mounts: []Mount{{Source: dir, Target: "/var/run/secrets/x", ReadOnly: true}}})
	if err != nil {
		t.Fatal(err)
	}
	b, err := s.Container(t.Context(), Root{Tools: true, ReadOnly: true})
	if err != nil {
		t.Fatal(err)
	}
	if l, err := s.Listen(t.Context(), "10.244.0.7:8080"); err != nil {
		t.Fatal(err)
	} else {
		l.Close()
	}
	for _, tt := range []struct {
		c            *Container
		uid          int
		script, want string
		why          string
	}{
		{a, 0, "cat /var/run/secrets/x/secret", "s3cret", "a mount is where it belongs"},
		{b, 0, "ls -A /var 2>/dev/null | wc -l", "0", "and in no other container"},
		{a, 0, "touch /var/run/secrets/x/y 2>/dev/null || echo refused", "refused", "a read-only mount cannot be written"},
		{a, 0, "touch /usr/x 2>/dev/null || echo refused", "refused", "nor the machine's programs"},
		{b, 0, "touch /x 2>/dev/null || echo refused", "refused", "nor a read-only root"},
		{a, 0, "echo hello >/tmp/x && cat /tmp/x", "hello", "the root is the container's own"},
		{a, 0, "ls /proc | grep -c '^[0-9]'", "4", "processes: the first, the shell, ls and grep"},
		{a, 0, "hostname", "testpod", "the pod's name"},
		{a, 65532, "id -u", "65532", "the user that the pod asks for"},
		{a, 65532, "hostname x 2>/dev/null || echo refused", "refused", "who has no right over the pod"},
		{a, 0, "exit 7", "", "exit codes are true"},
		{a, 0, "kill -9 $$", "", "signals too"},
		{a, 0, "ls /home /root /work 2>/dev/null | wc -l", "0", "no other folder of the machine"},
	} {
		out, exit := run(t, tt.c, Process{UID: tt.uid}, tt.script)
		want := Exit{}
		switch tt.script {
		case "exit 7":
			want = Exit{Code: 7}
		case "kill -9 $$":
			want = Exit{Code: 137, Signal: 9}
		}
		if out != tt.want || exit != want {
			t.Errorf("%s: %q (%+v), want %q (%+v): %s", tt.script, out, exit, tt.want, want, tt.why)
		}
	}
}

// TCP connections cross the border of the pod only where the node forwards them. The pod has its own address.
func TestNetwork(t *testing.T) {
	s := pod(t)
	l, err := s.Listen(t.Context(), "10.96.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	addresses, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, a := range addresses {
		if strings.HasPrefix(a.String(), "10.96.0.1/") {
			t.Error("the machine has the pod's address")
		}
	}
	done := make(chan error, 1)
	go func() {
		c, err := l.Accept()
		if err == nil {
			_, err = io.WriteString(c, "from outside\n")
			c.Close()
		}
		done <- err
	}()
	c, err := s.Dial(t.Context(), "10.96.0.1:443")
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if b, err := io.ReadAll(c); err != nil || string(b) != "from outside\n" {
		t.Errorf("%q, %v", b, err)
	}
	if err := <-done; err != nil {
		t.Error(err)
	}
	if c, err := s.Dial(t.Context(), "127.0.0.1:1"); err == nil {
		c.Close()
		t.Error("no process listens there")
	}
}

// Killing a container kills all of its processes. Killing a pod kills all of its containers.
func TestKill(t *testing.T) {
	s := pod(t)
	c, err := s.Container(t.Context(), Root{Tools: true})
	if err != nil {
		t.Fatal(err)
	}
	start := func(c *Container) *Running {
		null, err := os.OpenFile(os.DevNull, os.O_RDWR, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer null.Close()
		r, err := c.Run(t.Context(), Process{Args: []string{"/bin/sleep", "1000"}, Dir: "/"}, null, null, null)
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	asked := start(c)
	asked.Signal(syscall.SIGTERM)
	if e := asked.Exit(); e.Signal != int(syscall.SIGTERM) {
		t.Errorf("ended with %+v", e)
	}
	killed := start(c)
	c.Kill()
	if e := killed.Exit(); e.Signal != int(syscall.SIGKILL) {
		t.Errorf("ended with %+v", e)
	}
	if _, err := c.Run(t.Context(), Process{Args: []string{"/bin/true"}}, os.Stdin, os.Stdin, os.Stdin); err == nil {
		t.Error("a killed container runs something")
	}
	other, err := s.Container(t.Context(), Root{Tools: true})
	if err != nil {
		t.Fatal(err)
	}
	last := start(other)
	s.Close()
	last.Exit()
}

// A shared pod runs ordinary processes, and rejects everything that needs isolation.
func TestShared(t *testing.T) {
	s := Shared(t.TempDir())
	defer s.Close()
	if _, err := s.Listen(t.Context(), "10.96.0.1:443"); err == nil {
		t.Error("it listens at an address of the pod's own")
	}
	if _, err := s.Container(t.Context(), Root{Mounts: []Mount{{Source: t.TempDir(), Target: "/etc/x"}}}); err == nil {
		t.Error("it mounts")
	}
	c, err := s.Container(t.Context(), Root{})
	if err != nil {
		t.Fatal(err)
	}
	if out, exit := run(t, c, Process{}, "echo hello; exit 3"); out != "hello" || exit.Code != 3 {
		t.Errorf("%q, %+v", out, exit)
	}
}
