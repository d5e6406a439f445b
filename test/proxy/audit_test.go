package proxy

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/testkit/audittest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// kubeAuditPolicy makes the API server log every request of sign-ins.
const kubeAuditPolicy = `apiVersion: audit.k8s.io/v1
kind: Policy
omitStages: [RequestReceived, ResponseStarted]
rules:
- level: Metadata
  userGroups: ["system:serviceaccounts:` + testenv.SigninNamespace + `"]
- level: None
`

// kubeEvents returns the users of the requests in the API server's audit log, by audit id.
func kubeEvents(t *testing.T, r *testenv.Env) map[string]string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(system.dir, "kube-audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	users := map[string]string{}
	for line := range strings.Lines(string(b)) {
		var e struct {
			AuditID string `json:"auditID"`
			User    struct {
				Username string `json:"username"`
			} `json:"user"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			continue // the API server is writing the line
		}
		users[e.AuditID] = e.User.Username
	}
	return users
}

// PRX-13: each request has one entry, whose id is the one in the API server's audit log, and whose sign-in is the account
// there. A refused request is in ours only.
func TestPRX13_JoinedWithKubernetes(t *testing.T) {
	r := start(t)
	alice, bob := person(t, r, "alice-audit", "alice@example.com", "edit"), person(t, r, "bob-audit", "bob@example.com")
	run(t, alice, 0, "tka", "login")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	run(t, bob, 0, "tka", "login")
	for _, step := range []struct {
		p    *testenv.Person
		name string
		want int
		args string
	}{
		{alice, "default", 0, "get configmap kube-root-ca.crt"},
		{alice, "edit", 0, "create configmap audited"},
		{alice, "default", 1, "create configmap refused-by-kubernetes"},
		{bob, "default", 0, "get configmap kube-root-ca.crt"},
		{bob, "default", 1, "get secrets"},
	} {
		run(t, step.p, step.want, "kubectl", append([]string{"--kubeconfig", filepath.Join(step.p.Home, step.name+".kubeconfig")}, strings.Fields(step.args)...)...)
	}
	run(t, bob, 0, "tka", "logout")
	kubectl(t, bob, 1, "get", "configmap", "kube-root-ca.crt")

	var ours []audit.Entry
	until(t, func() string { return "the entry about the refused request" }, func() bool {
		ours = nil
		for _, e := range audittest.Entries(t, r.ProxyAuditFile(), "eyJhbGciOi") {
			if e.Verb == access.APIRequest && (e.Actor.Node == alice.Node.Hostname+"."+r.Net.Suffix() || e.Actor.Node == bob.Node.Hostname+"."+r.Net.Suffix()) {
				ours = append(ours, e)
			}
		}
		return len(ours) > 0 && ours[len(ours)-1].Code == "not_signed_in"
	})
	kube := kubeEvents(t, r)
	seen, named := map[string]bool{}, 0
	for _, e := range ours {
		if seen[e.RequestID] {
			t.Errorf("%s has two entries", e.RequestID)
		}
		seen[e.RequestID] = true
		user, there := kube[e.RequestID]
		if there != (e.Code == "") {
			t.Errorf("%+v: in the API server's audit log: %v", e, there)
		}
		if want := "system:serviceaccount:" + testenv.SigninNamespace + ":" + e.Object; there && user != want {
			t.Errorf("%s: Kubernetes saw %s, and we recorded %s", e.RequestID, user, want)
		}
		if e.Args["resource"] == "configmaps" && e.Args["name"] == "kube-root-ca.crt" && there {
			named++
		}
	}
	if named != 2 {
		t.Errorf("%d gets of the ConfigMap are recorded, want 2: %+v", named, ours)
	}
	run(t, alice, 0, "tka", "audit", "verify", r.ProxyAuditFile())
}
