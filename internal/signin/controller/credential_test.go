//go:build unix

package controller

import (
	"bytes"
	"encoding/json"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// The credential ID of our audit entry finds the requests with that token in the audit log of a real API server, and no others.
func TestCredentialIDJoinsKubernetesAuditLog(t *testing.T) {
	kubetest.SkipIfShort(t)
	dir := t.TempDir()
	policy, log := filepath.Join(dir, "policy.yaml"), filepath.Join(dir, "audit.jsonl")
	if err := os.WriteFile(policy, []byte("apiVersion: audit.k8s.io/v1\nkind: Policy\nrules: [{level: Metadata}]\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	c := kubetest.New(t, kubetest.Options{Name: "audited", Args: []string{"--audit-policy-file=" + policy, "--audit-log-path=" + log, "--audit-log-mode=blocking-strict"}})
	if err := c.Apply(t.Context(), files(t, "../../../deploy/crds/tailplane.dev_*.yaml")...); err != nil {
		t.Fatal(err)
	}
	p := newEnvOn(t, c, c.Namespace(t))
	p.operate()
	s, _ := p.open()
	ready := p.login(s, newSignin(p.owner("alice@a.example", "laptop"), "view", time.Hour))
	first, second := p.token(s, ready), p.token(s, ready)
	id := signin.Kubeconfig{Token: first}.AuditCredentialID()
	if other := (signin.Kubeconfig{Token: second}).AuditCredentialID(); id == "" || id == other {
		t.Fatalf("two tokens have the credential IDs %q and %q, want two different ones", id, other)
	}
	if err := p.mayList(first, "default"); err != nil {
		t.Fatal(err)
	}
	if err := p.mayList(second, "kube-system"); err != nil {
		t.Fatal(err)
	}

	text, err := os.ReadFile(log)
	if err != nil {
		t.Fatal(err)
	}
	const key, issuedKey = "authentication.kubernetes.io/credential-id", "authentication.kubernetes.io/issued-credential-id"
	used, issued := map[string]bool{}, 0
	for line := range bytes.Lines(text) {
		var e struct {
			ObjectRef struct{ Resource, Namespace string }
			User      struct {
				Username string
				Extra    map[string][]string
			}
			Annotations map[string]string
		}
		if err := json.Unmarshal(line, &e); err != nil {
			t.Fatalf("%v: %s", err, line)
		}
		if ids := e.User.Extra[key]; len(ids) == 1 && ids[0] == id {
			used[e.ObjectRef.Resource+" in "+e.ObjectRef.Namespace] = true
			if want := "system:serviceaccount:" + p.ns + ":" + ready.ServiceAccount; e.User.Username != want {
				t.Errorf("the credential belongs to %q, want %q", e.User.Username, want)
			}
		}
		if e.Annotations[issuedKey] == id {
			issued++
		}
	}
	if len(used) != 1 || !used["pods in default"] {
		t.Errorf("the requests with the credential %s are %v, want those for pods in default", id, used)
	}
	if issued == 0 {
		t.Errorf("no request issued the credential %s", id)
	}
}
