//go:build unix

package kube

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
)

// FL-01: a proposal that uses something of another organisation shows which rule it breaks, before approval. So does a change of a pool
// that takes it from its users. A proposal within one's own organisation breaks no rule, and rules that are already broken are not listed.
func TestFL01_Breaks(t *testing.T) {
	p := newEnv(t, nil)
	api, err := Connect(p.Cluster.AdminConfig(), time.Now)
	p.Must(err)
	changes := api.Changes(p.Namespace)
	const hub = "https://rules.example"
	enrolled := func(org, pool string) v1alpha1.RunnerEnrollmentSpec {
		return v1alpha1.RunnerEnrollmentSpec{Forge: "rules-hub", ConfigURL: hub + "/" + org, Isolation: v1alpha1.IsolationNone, Credentials: v1alpha1.EnrollmentCredentials{SecretName: org},
			Pools: []v1alpha1.EnrolledPool{{Name: pool, Type: v1alpha1.UseShared}}}
	}
	pool := func(to string) v1alpha1.RunnerPoolSpec {
		return v1alpha1.RunnerPoolSpec{Forge: "rules-hub", RunsOn: []string{"x"}, Scaling: v1alpha1.PoolScaling{Max: 3, Budget: 9}, DedicatedTo: to}
	}
	own := enrolled("rules-b", "rules-own")
	own.Pools[0].Type = v1alpha1.UseDedicated
	p.Must(p.Admin.Create(t.Context(), &v1alpha1.RunnerForge{ObjectMeta: metav1.ObjectMeta{Name: "rules-hub"}, Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitHub, URL: hub}}))
	p.Must(p.Admin.Create(t.Context(), &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: "rules-nix"}, Spec: pool("")}))
	p.Must(p.Admin.Create(t.Context(), &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: "rules-own"}, Spec: pool("rules-b")}))
	p.Must(p.Admin.Create(t.Context(), &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "rules-b"}, Spec: own}))

	would := func(kind, name string, spec any) (all []string) {
		t.Helper()
		var m map[string]any
		if spec != nil {
			b, err := json.Marshal(spec)
			p.Must(err)
			p.Must(json.Unmarshal(b, &m))
		}
		r, err := gitops.ParseRef(kind, name)
		p.Must(err)
		rules, err := changes.BrokenRules(t.Context(), fleet.Rules{}, r, m)
		p.Must(err)
		for _, x := range rules {
			if strings.HasPrefix(x.Org, "rules-") { // other tests share the cluster
				all = append(all, x.Org+" "+x.Pool+" "+x.Reason)
			}
		}
		return all
	}
	for _, x := range []struct {
		what, kind, name string
		spec             any
		want             string
	}{
		{"its own pool", "RunnerEnrollment", "rules-a", enrolled("rules-a", "rules-nix"), ""},
		{"another's pool", "RunnerEnrollment", "rules-a", enrolled("rules-a", "rules-own"), "rules-a rules-own PoolDedicated"},
		{"another's place", "RunnerEnrollment", "rules-a", enrolled("rules-b", "rules-nix"), "rules-a  ConfigURLTaken"},
		{"an unknown pool", "RunnerEnrollment", "rules-a", enrolled("rules-a", "rules-none"), "rules-a rules-none PoolNotFound"},
		{"as it is", "RunnerEnrollment", "rules-b", own, ""},
		{"a pool for another organisation", "RunnerPool", "rules-own", pool("rules-a"), "rules-b rules-own PoolDedicated"},
		{"a removed pool", "RunnerPool", "rules-own", nil, "rules-b rules-own PoolNotFound"},
		{"removal of an unknown pool", "RunnerPool", "rules-none", nil, ""},
		{"a removed forge", "RunnerForge", "rules-hub", nil, "rules-b  ForgeNotFound"},
	} {
		if got := strings.Join(would(x.kind, x.name, x.spec), ", "); got != x.want {
			t.Errorf("%s: %q, want %q", x.what, got, x.want)
		}
	}
	p.Must(p.Admin.Delete(t.Context(), &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: "rules-own"}}))
	if got := would("RunnerEnrollment", "rules-b", own); len(got) > 0 {
		t.Errorf("rules that are broken already: %q", got)
	}
}
