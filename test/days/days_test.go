// Package days walks whole days of people through the real programs: several terminals, devices, people, clusters and
// replicas. Each step checks what every other of them sees.
package days

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const policy = `{
  "groups": {"group:platform": ["alice@example.com", "bob@example.com"]},
  "tagOwners": {"tag:tailplane": ["group:platform"], "tag:ci": ["group:platform"]},
  "grants": [
    {"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:443"]},
    {"src": ["tag:tailplane"], "dst": ["tag:tailplane"], "ip": ["tcp:7946"]},
    {"src": ["group:platform"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [
      {"role": "view", "period": "8h", "priority": 1},
      {"role": "edit", "period": "1h", "namespaces": ["shop"]}]}},
  ],
}`

const noLimits = "{login: {perMinute: 0}, kubeconfig: {perMinute: 0}, others: {perMinute: 0}, all: {perMinute: 0}}"

// patience bounds each wait. The time is no assertion.
const patience = 2 * time.Minute

// clusters are the two clusters of all days: east is the one of the people's settings, and west is found through it.
var clusters struct {
	once       sync.Once
	east, west *testenv.Env
	dir        string
	err        error
}

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	code := m.Run()
	for _, env := range []*testenv.Env{clusters.west, clusters.east} { // east owns the tailnet
		if env == nil {
			continue
		}
		if err := env.Close(); err != nil {
			fmt.Fprintln(os.Stderr, err)
			code = 1
		}
	}
	os.RemoveAll(clusters.dir)
	os.Exit(code)
}

func start(t *testing.T) (east, west *testenv.Env) {
	t.Helper()
	if testing.Short() {
		t.Skip("SKIP -short: this test needs two clusters")
	}
	clusters.once.Do(func() { clusters.err = startClusters() })
	if clusters.err != nil {
		t.Fatal(clusters.err)
	}
	return clusters.east, clusters.west
}

func startClusters() (err error) {
	if clusters.dir, err = os.MkdirTemp("", "days"); err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(context.Background(), 4*time.Minute)
	defer cancel()
	for _, name := range []string{"east", "west"} {
		o := testenv.Options{Policy: policy, ClusterName: name, Hostname: "tka-" + name, Beside: clusters.east, Settings: map[string]string{"api.limits": noLimits}}
		env, err := testenv.Start(ctx, filepath.Join(clusters.dir, name), o)
		if err != nil {
			return fmt.Errorf("%s: %w", name, err)
		}
		if name == "east" {
			clusters.east = env
		} else {
			clusters.west = env
		}
		if err := env.Cluster.Apply(ctx, []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: shop}\n")); err != nil {
			return err
		}
	}
	return nil
}

// device adds a device of a person.
func device(t *testing.T, host, login string, tags ...string) *testenv.Person {
	t.Helper()
	east, west := start(t)
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	p, err := east.Person(ctx, host, login, tags...)
	if err == nil {
		err = west.Net.WaitPeer(ctx, p.Node, "tka-west")
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { east.Leave(p) })
	return p
}

// run runs a command line in a terminal of p and fails the test unless it exits with want. It returns both streams.
func run(t *testing.T, p *testenv.Person, want int, command string) string {
	t.Helper()
	words := strings.Fields(command)
	r, err := p.Run(t.Context(), words[0], words[1:]...)
	if err != nil {
		t.Fatal(err)
	}
	if r.Exit != want {
		t.Fatalf("%s: exit %d, want %d\n%s", command, r.Exit, want, r.Both)
	}
	return r.Both
}

// shows runs a command line that succeeds, and fails the test unless a line of its output matches each pattern.
func shows(t *testing.T, p *testenv.Person, command string, patterns ...string) {
	t.Helper()
	matches(t, command, run(t, p, 0, command), patterns...)
}

func matches(t *testing.T, what, out string, patterns ...string) {
	t.Helper()
	for _, pattern := range patterns {
		if !regexp.MustCompile("(?m)" + pattern).MatchString(out) {
			t.Errorf("%s: no line matches %s\n%s", what, pattern, out)
		}
	}
}

// A terminal is a shell of a person that stays open.
type terminal struct {
	t   *testing.T
	cmd *exec.Cmd
	in  io.WriteCloser
	out *bufio.Reader
}

// open opens a terminal of p that runs a program, which must read commands as a POSIX shell does.
func open(t *testing.T, p *testenv.Person, program ...string) *terminal {
	t.Helper()
	term := &terminal{t: t, cmd: exec.CommandContext(t.Context(), filepath.Join(p.Bin(), program[0]), program[1:]...)}
	term.cmd.Env, term.cmd.Dir = p.Env(), p.Home
	var err error
	if term.in, err = term.cmd.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	out, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	term.cmd.Stdout, term.cmd.Stderr, term.out = w, w, bufio.NewReader(out)
	if err := term.cmd.Start(); err != nil {
		t.Fatal(err)
	}
	w.Close()
	t.Cleanup(func() { term.in.Close(); term.cmd.Process.Kill(); term.cmd.Wait(); out.Close() })
	return term
}

// do runs a command line in the terminal, fails the test unless it exits with want, and returns what the terminal showed since the
// command before.
func (term *terminal) do(want int, command string) string {
	term.t.Helper()
	const done = "=== done "
	fmt.Fprintf(term.in, "%s </dev/null; echo '%s'$?\n", command, done)
	var shown strings.Builder
	for {
		line, err := term.out.ReadString('\n')
		if err != nil {
			term.t.Fatalf("%s: the terminal ended: %v\n%s%s", command, err, shown.String(), line)
		}
		before, code, found := strings.Cut(line, done)
		shown.WriteString(before)
		if !found {
			continue
		}
		if strings.TrimSpace(code) != fmt.Sprint(want) {
			term.t.Fatalf("%s: exit %s, want %d\n%s", command, strings.TrimSpace(code), want, shown.String())
		}
		return shown.String()
	}
}

// exit closes the terminal and returns what it showed at the end.
func (term *terminal) exit() string {
	term.t.Helper()
	term.in.Close()
	rest, err := io.ReadAll(term.out)
	if err == nil {
		err = term.cmd.Wait()
	}
	if err != nil {
		term.t.Fatalf("the terminal ended with %v\n%s", err, rest)
	}
	return string(rest)
}

// signins returns the sign-ins of a cluster as "LOGIN DEVICE SESSION ROLE", sorted.
func signins(t *testing.T, env *testenv.Env) (out []string) {
	t.Helper()
	scheme := runtime.NewScheme()
	if err := v1alpha1.AddToScheme(scheme); err != nil {
		t.Fatal(err)
	}
	c, err := client.New(env.Cluster.AdminConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	var list v1alpha1.TkaSigninList
	if err := c.List(t.Context(), &list, client.InNamespace(testenv.SigninNamespace)); err != nil {
		t.Fatal(err)
	}
	for _, s := range list.Items {
		host, _, _ := strings.Cut(s.Spec.Device.Name, ".")
		session := s.Spec.Session
		if strings.HasPrefix(session, "shell-") {
			session = "shell"
		}
		out = append(out, strings.Join([]string{s.Spec.User.Login, host, session, s.Status.Role}, " "))
	}
	slices.Sort(out)
	return out
}
