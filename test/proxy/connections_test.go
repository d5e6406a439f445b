package proxy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// openStream is a stream as tka prints it.
type openStream struct {
	ID, Login, Kind, Resource, Name, Session string
}

// connectionsOf returns the streams that tka lists for p.
func connectionsOf(t *testing.T, p *testenv.Person, args ...string) []openStream {
	t.Helper()
	var out struct{ Items []openStream }
	r := run(t, p, 0, "tka", append([]string{"connections", "-o", "json"}, args...)...)
	if err := json.Unmarshal([]byte(r.Stdout), &out); err != nil {
		t.Fatalf("%v: %s", err, r.Stdout)
	}
	return out.Items
}

// execOf waits for an open exec of a login and returns it.
func execOf(t *testing.T, p *testenv.Person, login string, args ...string) (found openStream) {
	t.Helper()
	until(t, func() string { return "an exec of " + login }, func() bool {
		for _, s := range connectionsOf(t, p, args...) {
			if s.Login == login && s.Kind == "exec" {
				found = s
				return true
			}
		}
		return false
	})
	return found
}

// ends waits until kubectl ends, and checks its code and its reason.
func ends(t *testing.T, c *command, reason string) {
	t.Helper()
	select {
	case <-c.ended:
	case <-time.After(limit):
		t.Fatalf("the exec continues: %s", c)
	}
	if c.err == nil {
		t.Error("kubectl exec ended with 0")
	}
	if !strings.Contains(c.String(), reason) {
		t.Errorf("kubectl printed %q, want %q", c, reason)
	}
}

// PRX-18: an exec in one terminal is listed from another one, and cut there with a reason. Another person neither sees nor
// cuts it. Through the plane, roles that may revoke may cut.
func TestPRX18_Connections(t *testing.T) {
	r := start(t)
	runApp(t, r)
	alice, bob, carol := person(t, r, "alice-cut", "alice@example.com", "edit"), person(t, r, "bob-cut", "bob@example.com"), person(t, r, "carol-cut", "carol@example.com")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	run(t, bob, 0, "tka", "login")
	run(t, alice, 0, "kubectl", "--kubeconfig", filepath.Join(alice.Home, "edit.kubeconfig"), "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	for protocol, env := range protocols {
		c := begin(t, alice, "edit", env, "exec", "-i", "app", "--", "cat")
		s := execOf(t, alice, "alice@example.com")
		if got := fmt.Sprint(s.Resource, " ", s.Name, " ", s.Session); got != "pods/exec app edit" {
			t.Errorf("%s: the exec is %s", protocol, got)
		}
		if got := connectionsOf(t, bob); len(got) != 0 {
			t.Errorf("%s: bob sees %v", protocol, got)
		}
		run(t, bob, 1, "tka", "connections", "cut", s.ID, "--reason", "not mine")
		run(t, alice, 0, "tka", "connections", "cut", s.ID, "--reason", "the wrong pod")
		ends(t, c, "the stream was cut by alice@example.com: the wrong pod")
	}
	run(t, alice, 0, "kubectl", "--kubeconfig", filepath.Join(alice.Home, "edit.kubeconfig"), "get", "pods") // the sign-in continues

	if err := r.StartPlane(t.Context()); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*testenv.Person{bob, carol} {
		if err := r.Net.WaitPeer(t.Context(), p.Node, "dashboard"); err != nil {
			t.Fatal(err)
		}
	}
	c := begin(t, alice, "edit", nil, "exec", "-i", "app", "--", "cat")
	t.Cleanup(func() {
		if t.Failed() {
			t.Log(r.Plane.Output())
		}
	})
	all := []string{"--all", "--url", r.Dashboard()}
	s := execOf(t, carol, "alice@example.com", all...)
	run(t, bob, 3, "tka", "connections", "cut", s.ID, "--reason", "not mine", "--url", r.Dashboard())
	run(t, carol, 0, "tka", "connections", "cut", s.ID, "--reason", "maintenance", "--url", r.Dashboard())
	ends(t, c, "the stream was cut by carol@example.com: maintenance")
	for file, want := range map[string]string{r.ProxyAuditFile(): `"via":"plane"`, r.PlaneAuditFile(): `"login":"carol@example.com"`} {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for line := range strings.Lines(string(b)) {
			if strings.Contains(line, `"connections.cut"`) && strings.Contains(line, "maintenance") && strings.Contains(line, want) {
				n++
			}
		}
		if n != 1 {
			t.Errorf("%s has %d entries of the cut with %s, want 1", filepath.Base(filepath.Dir(file)), n, want)
		}
	}
	begin(t, alice, "edit", nil, "exec", "-i", "app", "--", "cat")
	s = execOf(t, alice, "alice@example.com")
	run(t, alice, 0, "tka", "connections", "cut", "--end", s.ID, "--reason", "done for today")
	if got := run(t, alice, 1, "kubectl", "--kubeconfig", filepath.Join(alice.Home, "edit.kubeconfig"), "get", "pods"); !strings.Contains(got.Stderr, "not signed in") {
		t.Errorf("after the end of the sign-in: %s", got.Stderr)
	}
}
