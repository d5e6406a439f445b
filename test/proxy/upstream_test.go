package proxy

import (
	"context"
	"path/filepath"
	"strings"
	"testing"
)

// PRX-09: the API server restarts. kubectl waits or fails with a sentence meanwhile, and afterwards the same sign-in and the same
// kubeconfig work: no one signs in again. It is the last test of the package, because the cluster that all share needs a while to recover.
func TestPRX09_Restart(t *testing.T) {
	r := start(t)
	alice := person(t, r, "alice-restart", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	edit := []string{"--kubeconfig", filepath.Join(alice.Home, "edit.kubeconfig")}
	before := run(t, alice, 0, "kubectl", append(edit, "get", "namespace", "default", "-o", "name")...).Stdout
	watching := begin(t, alice, "edit", nil, "get", "namespaces", "-w")
	until(t, watching.String, func() bool { return strings.Contains(watching.String(), "kube-system") })
	if err := r.Cluster.Kill(); err != nil {
		t.Fatal(err)
	}
	<-watching.ended // the stream ends with its server, not later
	down := run(t, alice, 1, "kubectl", append(edit, "get", "--raw", "/api/v1/namespaces/default", "--request-timeout=2s")...)
	if !strings.Contains(down.Both, "tailplane: ") && !strings.Contains(down.Both, "imeout") {
		t.Errorf("while the API server is down: %s", down.Both)
	}
	if err := r.Cluster.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { // a pod of it would be started again: it ends when it cannot hold its Lease
		select {
		case <-r.Operator.Done():
			if err := r.StartOperator(context.Background()); err != nil {
				t.Error(err)
			}
		default:
		}
	})
	last := ""
	until(t, func() string { return last }, func() bool {
		got, err := alice.Run(t.Context(), "kubectl", append(edit, "get", "namespace", "default", "-o", "name", "--request-timeout=5s")...)
		last = got.Both
		return err == nil && got.Exit == 0 && got.Stdout == before
	})
}
