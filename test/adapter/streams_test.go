package adapter

import (
	"bufio"
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

const pod = `apiVersion: v1
kind: Pod
metadata: {name: app}
spec: {containers: [{name: app, image: example.com/app:1}]}
`

// runPod creates a running pod and returns its namespace.
func runPod(t *testing.T) (string, *testenv.Adapter) {
	t.Helper()
	c, a := shared(t)
	ns := c.Namespace(t)
	kubectl(t, a, "-n", ns, "apply", "-f", manifest(t, pod))
	kubectl(t, a, "-n", ns, "wait", "pod/app", "--for=condition=Ready", "--timeout=2m")
	return ns, a
}

// protocols are the two protocols of kubectl for streams.
var protocols = map[string][]string{
	"WebSocket": nil,
	"SPDY":      {"KUBECTL_REMOTE_COMMAND_WEBSOCKETS=false", "KUBECTL_PORT_FORWARD_WEBSOCKETS=false"},
}

// upgraded counts the adapter's log lines about upgrades to a protocol.
func upgraded(a *testenv.Adapter, ns, subresource, protocol string) (n int) {
	for line := range strings.Lines(a.Output()) {
		if strings.Contains(line, `"namespace":"`+ns+`"`) && strings.Contains(line, `"subresource":"`+subresource+`"`) &&
			strings.Contains(strings.ToLower(line), `"upgrade":"`+strings.ToLower(protocol)) && strings.Contains(line, `"code":101`) {
			n++
		}
	}
	return n
}

// ADP-02: exec and attach carry input, output, errors and exit codes, by
// WebSocket and by SPDY.
func TestExec(t *testing.T) {
	for name, env := range protocols {
		t.Run(name, func(t *testing.T) {
			ns, a := runPod(t)
			run := func(in io.Reader, args ...string) (stdout, stderr string, exit int) {
				t.Helper()
				var out, errs bytes.Buffer
				c := command(t, a, env, append([]string{"-n", ns}, args...)...)
				c.Stdin, c.Stdout, c.Stderr = in, &out, &errs
				c.Run()
				return out.String(), errs.String(), c.ProcessState.ExitCode()
			}
			if out, errs, exit := run(nil, "exec", "app", "--", "echo", "hello", "there"); exit != 0 || out != "hello there\n" {
				t.Errorf("echo: exit %d: %q %q", exit, out, errs)
			}
			switch out, errs, exit := run(nil, "exec", "app", "--", "warn", "careful"); {
			case exit != 0:
				t.Errorf("warn: exit: exit = %v, want 0", exit)
			case out != "":
				t.Errorf("warn: exit: out = %q, want none", out)
			case !strings.Contains(errs, "careful"):
				t.Errorf("warn: exit: errs = %q does not contain %q", errs, "careful")
			}
			if _, errs, exit := run(nil, "exec", "app", "--", "exit", "42"); exit != 42 {
				t.Errorf("exit 42: exit %d: %q", exit, errs)
			}
			long := strings.Repeat("0123456789abcdef", 64<<10) // 1 MiB in both directions
			if out, errs, exit := run(strings.NewReader(long), "exec", "-i", "app", "--", "cat"); exit != 0 || out != long {
				t.Errorf("cat: exit %d: %d bytes of %d: %q", exit, len(out), len(long), errs)
			}
			switch out, errs, exit := run(strings.NewReader("said\n"), "attach", "-i", "app"); {
			case exit != 0:
				t.Errorf("attach: exit: exit = %v, want 0; errs = %q", exit, errs)
			case !strings.Contains(out, "attached"):
				t.Errorf("attach: exit: out = %q does not contain %q; errs = %q", out, "attached", errs)
			case !strings.Contains(out, "said"):
				t.Errorf("attach: exit: out = %q does not contain %q; errs = %q", out, "said", errs)
			}
			protocol := map[string]string{"WebSocket": "websocket", "SPDY": "SPDY/3.1"}[name]
			eventually(t, "four execs and one attach in the log", func() bool {
				return upgraded(a, ns, "exec", protocol) == 4 && upgraded(a, ns, "attach", protocol) == 1
			})
		})
	}
}

// ADP-02: kubectl cp in both directions.
func TestCopy(t *testing.T) {
	ns, a := runPod(t)
	here, back := filepath.Join(t.TempDir(), "here"), filepath.Join(t.TempDir(), "back")
	content := bytes.Repeat([]byte("data\x00\xff"), 100<<10)
	if err := os.WriteFile(here, content, 0o600); err != nil {
		t.Fatal(err)
	}
	kubectl(t, a, "-n", ns, "cp", here, "app:/tmp/copy")
	kubectl(t, a, "-n", ns, "cp", "app:/tmp/copy", back)
	if got, err := os.ReadFile(back); err != nil || !bytes.Equal(got, content) {
		t.Errorf("%d bytes of %d came back: %v", len(got), len(content), err)
	}
}

// ADP-02: kubectl port-forward, several connections, both protocols.
func TestPortForward(t *testing.T) {
	for name, env := range protocols {
		t.Run(name, func(t *testing.T) {
			ns, a := runPod(t)
			p := begin(t, a, env, "-n", ns, "port-forward", "pod/app", ":8080")
			from := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)
			eventually(t, "port-forward: "+p.String(), func() bool { return from.MatchString(p.String()) })
			addr := from.FindStringSubmatch(p.String())[1]
			for i := range 5 {
				if err := echo(addr, "8080", fmt.Sprintf("hello %d", i)); err != nil {
					t.Errorf("%v: %s", err, p)
				}
			}
		})
	}
}

// echo sends text to a forwarded port and expects it back.
func echo(addr, port, text string) error {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(limit))
	if _, err := fmt.Fprintln(c, text); err != nil {
		return err
	}
	in := bufio.NewReader(c)
	for _, want := range []string{"port " + port, text} {
		if got, err := in.ReadString('\n'); strings.TrimSpace(got) != want {
			return fmt.Errorf("%q instead of %q: %w", got, want, err)
		}
	}
	return nil
}

// ADP-02: logs, and following logs line by line.
func TestLogs(t *testing.T) {
	ns, a := runPod(t)
	if out := kubectl(t, a, "-n", ns, "logs", "app"); out != "app line 0\napp line 1\napp line 2\n" {
		t.Errorf("logs: %q", out)
	}
	l := begin(t, a, nil, "-n", ns, "logs", "-f", "app")
	eventually(t, "a line that was not there at first", func() bool { return strings.Contains(l.String(), "line 5\n") })
}

// idle is longer than any timeout of a plain request.
const idle = 65 * time.Second

// ADP-02: exec and port-forward stay open when they are silent for more than a minute, and when they are busy for as
// long.
func TestLongStreams(t *testing.T) {
	if testing.Short() {
		t.Skip("SKIP long streams: they take more than a minute, and -short was given")
	}
	for name, env := range protocols {
		t.Run(name, func(t *testing.T) {
			t.Parallel()
			ns, a := runPod(t)
			forward := func() string {
				p := begin(t, a, env, "-n", ns, "port-forward", "pod/app", ":8080")
				from := regexp.MustCompile(`Forwarding from (127\.0\.0\.1:\d+)`)
				eventually(t, "port-forward: "+p.String(), func() bool { return from.MatchString(p.String()) })
				return from.FindStringSubmatch(p.String())[1]
			}
			quiet, busy := forward(), forward()
			exec := command(t, a, env, "-n", ns, "exec", "-i", "app", "--", "cat")
			in, err := exec.StdinPipe()
			if err != nil {
				t.Fatal(err)
			}
			out, err := exec.StdoutPipe()
			if err != nil {
				t.Fatal(err)
			}
			if err := exec.Start(); err != nil {
				t.Fatal(err)
			}
			heard := bufio.NewReader(out)
			say := func(text string) {
				t.Helper()
				fmt.Fprintln(in, text)
				if got, err := heard.ReadString('\n'); strings.TrimSpace(got) != text {
					t.Errorf("exec: %q instead of %q: %v", got, text, err)
				}
			}
			say("before")
			slept := command(t, a, env, "-n", ns, "exec", "app", "--", "sleep", fmt.Sprint(idle.Seconds()))
			if err := slept.Start(); err != nil {
				t.Fatal(err)
			}
			rounds := 0
			pace := time.NewTicker(100 * time.Millisecond) // busy for the streams, light for the machine
			defer pace.Stop()
			for end := time.Now().Add(idle); time.Now().Before(end); rounds++ {
				<-pace.C
				if err := echo(busy, "8080", fmt.Sprintf("round %d", rounds)); err != nil {
					t.Fatalf("busy, round %d: %v", rounds, err)
				}
			}
			say("after")
			in.Close()
			if err := errors.Join(exec.Wait(), slept.Wait()); err != nil {
				t.Errorf("exec: %v", err)
			}
			if err := echo(quiet, "8080", "awake"); err != nil {
				t.Errorf("quiet: %v", err)
			}
			t.Logf("%d connections during the busy stream", rounds)
		})
	}
}
