package e2e

import (
	"context"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// replica starts a second access server with its own node, name, state and audit log.
func replica(t *testing.T, r *testenv.Env, name string) *testenv.Process {
	t.Helper()
	return replicaBy(t, r, name, "")
}

// replicaBy starts a replica with the given kubeconfig file.
func replicaBy(t *testing.T, r *testenv.Env, name, kubeconfig string) *testenv.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	p, err := r.Replica(ctx, name, kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(30 * time.Second); err != nil {
			t.Error(err)
		}
	})
	return p
}

// Two access servers of one cluster act as one: either serves and ends a sign-in that the other created, both prove
// the same cluster, and either continues alone.
func TestTwoReplicas(t *testing.T) {
	r := start(t)
	second := replica(t, r, "tka-two")
	alice := person(t, r, "rep-alice", "alice@example.com")
	if err := r.Net.WaitPeer(t.Context(), alice.Node, "tka-two"); err != nil {
		t.Fatal(err)
	}
	one := alice.Client()
	two := httpapi.Client{HTTP: alice.HTTP(), Base: "https://tka-two." + r.Net.Suffix()}
	wait := signin.KubeconfigRequest{Wait: httpapi.Duration(20 * time.Second)}

	a, err := signin.GetClusterInfo.Call(t.Context(), one, signin.ClusterInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	var b signin.ClusterInfo
	eventually(t, 20*time.Second, "the second has the key", func() bool {
		b, err = signin.GetClusterInfo.Call(t.Context(), two, signin.ClusterInfoRequest{})
		return err == nil && !b.Key.IsZero()
	})
	switch {
	case a.Key != b.Key:
		t.Errorf("they are two clusters: a.Key = %v, want %v", a.Key, b.Key)
	case a.ID != b.ID:
		t.Errorf("they are two clusters: a.ID = %q, want %q", a.ID, b.ID)
	case a.CAHash != b.CAHash:
		t.Errorf("they are two clusters: a.CAHash = %q, want %q", a.CAHash, b.CAHash)
	}
	// Neither answers to the other's name.
	if got := ask(t, alice, "GET", two.Base+signin.Base+"/cluster-info", "", "Host: tka."+r.Net.Suffix(), httpapi.NonceHeader+": "+httpapi.NewNonce()); got.code() != problem.WrongHost || got.header.Get(httpapi.ProofHeader) != "" {
		t.Errorf("the second by the first's name: %d %s", got.status, got.body)
	}

	st, err := signin.Login.Call(t.Context(), one, signin.LoginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	k, err := signin.GetKubeconfig.Call(t.Context(), two, wait)
	switch {
	case err != nil:
		t.Fatalf("signed in at the first, the second reports: %v", err)
	case k.Token.Reveal() == "":
		t.Fatalf("signed in at the first, the second reports: k.Token.Reveal() is empty; %v", err)
	case k.Cluster != "east":
		t.Fatalf("signed in at the first, the second reports: k.Cluster = %q, want %q", k.Cluster, "east")
	}
	ended, err := signin.Logout.Call(t.Context(), two, signin.LogoutRequest{})
	switch {
	case err != nil:
		t.Error(err)
	case ended.Name != st.Name:
		t.Errorf("ended.Name = %q, want %q", ended.Name, st.Name)
	case ended.State != signin.Ended:
		t.Errorf("ended.State = %q, want %q", ended.State, signin.Ended)
	}
	if _, err := signin.Read.Call(t.Context(), one, signin.ReadRequest{}); problem.CodeOf(err) != problem.NotSignedIn {
		t.Errorf("signed out at the second, the first reports %v", err)
	}

	// A machine that knows the first server learns the second from the proved cluster information.
	eventually(t, 60*time.Second, "the first lists both servers", func() bool {
		a, err = signin.GetClusterInfo.Call(t.Context(), one, signin.ClusterInfoRequest{})
		return err == nil && slices.Equal(a.Servers, []string{one.Base, two.Base})
	})
	run(t, alice, 0, "tka login")

	// The first server dies; the second continues with the sign-ins that the first created.
	if st, err = signin.Login.Call(t.Context(), one, signin.LoginRequest{}); err != nil {
		t.Fatal(err)
	}
	r.Access.Kill()
	if k, err = signin.GetKubeconfig.Call(t.Context(), two, wait); err != nil || k.Token.Reveal() == "" {
		t.Errorf("the first is dead, the second reports %v", err)
	}
	if got := run(t, alice, 0, "tka status"); !strings.Contains(got.Stderr, "tka-two."+r.Net.Suffix()+" serves the same cluster") {
		t.Errorf("the first is dead: %s%s", got.Stdout, got.Stderr)
	}
	run(t, alice, 0, "tka credential --cluster east")
	if again, err := signin.Login.Call(t.Context(), two, signin.LoginRequest{}); err != nil || again.Name != st.Name {
		t.Errorf("extended at the second: %+v, %v", again, err)
	}
	if err := r.StartAccess(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 30*time.Second, "the first is back", func() bool {
		got, err := signin.Read.Call(t.Context(), one, signin.ReadRequest{})
		return err == nil && got.Name == st.Name
	})
	// And in the other direction.
	second.Kill()
	if _, err := signin.GetKubeconfig.Call(t.Context(), one, wait); err != nil {
		t.Errorf("the second is dead, the first reports %v", err)
	}
	logout(t, alice)
}
