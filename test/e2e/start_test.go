package e2e

import (
	"context"
	"io"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// Section 6: the checks of the operator at its start.
func TestRolesAreCheckedAtTheStart(t *testing.T) {
	r := start(t)
	text, err := r.Settings("operator")
	if err != nil {
		t.Fatal(err)
	}
	account, err := r.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, "tailplane-operator", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	try := func(name, roles string) *testenv.Process {
		t.Helper()
		p, err := r.Try(name, "operator", nil, strings.Replace(string(text), "roles: [view, edit]", "roles: "+roles, 1), "--kubeconfig", account)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := p.Stop(20 * time.Second); err != nil {
				t.Error(err)
			}
		})
		return p
	}
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	none := try("roles-none", "[ghost, cluster-admin]")
	select {
	case <-none.Done():
	case <-ctx.Done():
		t.Fatalf("it continues: %s", none.Output())
	}
	if none.ExitCode() != 1 || !strings.Contains(none.Output(), "may bind none of the roles") {
		t.Errorf("exit %d: %s", none.ExitCode(), none.Output())
	}
	some := try("roles-some", "[view, cluster-admin]")
	if err := some.WaitLog(ctx, `"health is served"`); err != nil {
		t.Fatal(err)
	}
	eventually(t, time.Minute, "it is ready", func() bool { status, _ := probe(t, healthOf(t, some)+"/readyz"); return status == 200 })
	if out := some.Output(); !strings.Contains(out, `lacks the right to bind it","role":"cluster-admin"`) || strings.Contains(out, `bind it","role":"view"`) {
		t.Errorf("the output is %s", out)
	}
}

// A node that has lost its place in the tailnet is alive and not ready, and ends no sign-in (law 7).
func TestReadinessFollowsTheTailnet(t *testing.T) {
	r := start(t)
	p := replica(t, r, "tka-lost")
	alice := person(t, r, "lost-alice", "alice@example.com")
	st := login(t, alice)
	defer logout(t, alice)
	health := healthOf(t, p)
	eventually(t, time.Minute, "it is ready", func() bool { status, _ := probe(t, health+"/readyz"); return status == 200 })
	found := false
	for _, n := range r.Net.Nodes() {
		if strings.HasPrefix(n.Name, "tka-lost.") {
			found = r.Net.Expire(n.StableID)
		}
	}
	if !found {
		t.Fatal("the node is not in the tailnet")
	}
	took := eventually(t, 20*time.Second, "not ready", func() bool { status, _ := probe(t, health+"/readyz"); return status == 503 })
	t.Logf("not ready %v after the node's key expired", took.Round(time.Millisecond))
	if took > 5*time.Second {
		t.Errorf("not ready after %v", took)
	}
	if _, text := probe(t, health+"/readyz?verbose"); !strings.Contains(text, "[-]tailnet failed: the node is ") || !strings.Contains(text, "[+]kubernetes ok") {
		t.Errorf("the output is %s", text)
	}
	if status, _ := probe(t, health+"/livez"); status != 200 {
		t.Errorf("/livez: %d", status)
	}
	if up, there := series(t, p)["tailplane_tailnet_up"]; !there || up != 0 {
		t.Errorf("tailplane_tailnet_up %v %v", up, there)
	}
	if got, err := signin.Read.Call(t.Context(), alice.Client(), signin.ReadRequest{}); err != nil || got.Name != st.Name {
		t.Errorf("the sign-in: %+v %v", got, err)
	}
}

// DS-02: one node can hold at most 256 connections; other nodes are not affected.
func TestConnectionsOfOneNode(t *testing.T) {
	r := start(t)
	bob, alice := person(t, r, "many-bob", "bob@example.com"), person(t, r, "many-alice", "alice@example.com")
	addr := "tka." + r.Net.Suffix() + ":443"
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	var held []net.Conn
	defer func() {
		for _, c := range held {
			c.Close()
		}
	}()
	for i := range 256 {
		c, err := bob.Node.Dial(ctx, "tcp", addr)
		if err != nil {
			t.Fatalf("connection %d: %v", i+1, err)
		}
		held = append(held, c)
	}
	over, err := bob.Node.Dial(ctx, "tcp", addr)
	if err == nil {
		defer over.Close()
		// Well before the time at which the server closes an idle connection anyway.
		over.SetReadDeadline(time.Now().Add(3 * time.Second))
		if _, err = over.Read(make([]byte, 1)); err == nil {
			t.Fatal("it was answered")
		}
		if ne, ok := err.(net.Error); ok && ne.Timeout() {
			t.Error("connection 257 is held open")
		}
	}
	t.Logf("connection 257: %v", err)
	if err != nil && err != io.EOF && ctx.Err() != nil {
		t.Error(err)
	}
	if _, err := signin.GetClusterInfo.Call(t.Context(), alice.Client(), signin.ClusterInfoRequest{}); err != nil {
		t.Errorf("another node: %v", err)
	}
}
