package proxy

import (
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

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

// A kubeEvent is who sent a request, in the API server's audit log.
type kubeEvent struct{ user, impersonated string }

// kubeEvents returns the requests in the API server's audit log, by audit id.
func kubeEvents(t *testing.T) map[string]kubeEvent {
	t.Helper()
	b, err := os.ReadFile(filepath.Join(system.dir, "kube-audit.jsonl"))
	if err != nil {
		t.Fatal(err)
	}
	events := map[string]kubeEvent{}
	for line := range strings.Lines(string(b)) {
		var e struct {
			AuditID string `json:"auditID"`
			User    struct {
				Username string `json:"username"`
			} `json:"user"`
			ImpersonatedUser struct {
				Username string `json:"username"`
			} `json:"impersonatedUser"`
		}
		if err := json.Unmarshal([]byte(line), &e); err != nil {
			continue // the API server is writing the line
		}
		events[e.AuditID] = kubeEvent{e.User.Username, e.ImpersonatedUser.Username}
	}
	return events
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
	kube := kubeEvents(t)
	seen, named := map[string]bool{}, 0
	for _, e := range ours {
		if seen[e.RequestID] {
			t.Errorf("%s has two entries", e.RequestID)
		}
		seen[e.RequestID] = true
		event, there := kube[e.RequestID]
		if there != (e.Code == "") {
			t.Errorf("%+v: in the API server's audit log: %v", e, there)
		}
		if want := "system:serviceaccount:" + testenv.SigninNamespace + ":" + e.Object; there && event.user != want {
			t.Errorf("%s: Kubernetes saw %s, and we recorded %s", e.RequestID, event.user, want)
		}
		if e.Args["resource"] == "configmaps" && e.Args["name"] == "kube-root-ca.crt" && there {
			named++
		}
	}
	if named != 2 {
		t.Errorf("%d gets of the ConfigMap are recorded, want 2: %+v", named, ours)
	}
	run(t, alice, 0, "tka", "audit", "verify", r.ProxyAuditFile())
	if out := r.Proxy.Output(); strings.Contains(out, "line of the audit log failed") {
		t.Errorf("the proxy cannot note the last line of its audit log on its Lease: %s", out)
	}
}

// PRX-13, PX-05: Kubernetes decides who may impersonate, by the rights of the caller's own account. Its audit log shows the account
// and the impersonated user, and our entry of the same id has both. A refused one has both in ours.
func TestPRX13_Impersonation(t *testing.T) {
	r := start(t)
	alice := person(t, r, "alice-impersonates", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	edit := []string{"--kubeconfig", filepath.Join(alice.Home, "edit.kubeconfig")}
	account := run(t, alice, 0, "kubectl", append(edit, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}")...).Stdout
	if err := r.Cluster.Apply(t.Context(), fmt.Appendf(nil, `apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: act-as-carol}
rules:
- {apiGroups: [""], resources: [users], resourceNames: [carol@example.com], verbs: [impersonate]}
- {apiGroups: [""], resources: [configmaps], verbs: [list]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: act-as-carol}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: act-as-carol}
subjects: [{kind: User, apiGroup: rbac.authorization.k8s.io, name: "%s"}, {kind: User, apiGroup: rbac.authorization.k8s.io, name: carol@example.com}]
`, account)); err != nil {
		t.Fatal(err)
	}
	for _, x := range []struct {
		user string
		want int
	}{
		{"carol@example.com", 0}, // first, because kubectl then knows the resources, which dave may not ask for
		{"dave@example.com", 1},
	} {
		run(t, alice, x.want, "kubectl", append(edit, "get", "configmaps", "-n", "default", "--as", x.user)...)
	}
	entries := map[string]audit.Entry{} // by impersonated user
	until(t, func() string { return fmt.Sprintf("the entries: %+v", entries) }, func() bool {
		for _, e := range audittest.Entries(t, r.ProxyAuditFile(), "eyJhbGciOi") {
			if e.Args["resource"] == "configmaps" && e.Args["impersonate"] != "" {
				entries[e.Args["impersonate"]] = e
			}
		}
		return len(entries) == 2
	})
	var want, got []kubeEvent
	for _, user := range []string{"carol@example.com", "dave@example.com"} {
		e := entries[user]
		got = append(got, kubeEvents(t)[e.RequestID], kubeEvent{"system:serviceaccount:" + testenv.SigninNamespace + ":" + e.Object, e.Args["status"]})
	}
	// Kubernetes records an impersonated user only where it allows one.
	want = []kubeEvent{{account, "carol@example.com"}, {account, "200"}, {account, ""}, {account, "403"}}
	if diff := cmp.Diff(want, got, cmp.AllowUnexported(kubeEvent{})); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
