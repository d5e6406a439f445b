//go:build unix

package controller

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/arc"
)

// hostile lists texts that lead elsewhere, resemble other names, or are too long.
var hostile = map[string]string{
	"a path": "../acme", "a name of somebody's": "tailplane-org-acme", "a Secret of somebody's": "acme-credential", "look-alike": "\u0430cme", "turned around": "acme\u202eemca",
	"nothing seen": "ac\u200bme", "another line": "acme\n---\nkind: Secret", "NUL": "acme\x00", "escape": "acme\x1b[2J", "a template": "{{ .Values }}${HOME}$(id)", "64 kB": strings.Repeat("a", 64<<10), "blank": " ",
}

// spoiled returns copies of an object. In each copy, one of its texts is replaced; the key is the
// path of that text. The kind stays unchanged.
func spoiled(o map[string]any, with string) map[string]map[string]any {
	all := map[string]map[string]any{}
	var walk func(at string, v any, put func(any) map[string]any)
	walk = func(at string, v any, put func(any) map[string]any) {
		switch v := v.(type) {
		case string:
			all[at] = put(with)
		case map[string]any:
			for k, x := range v {
				walk(at+"."+k, x, func(n any) map[string]any {
					c := maps.Clone(v)
					c[k] = n
					return put(c)
				})
			}
		case []any:
			for i, x := range v {
				walk(fmt.Sprintf("%s[%d]", at, i), x, func(n any) map[string]any {
					c := slices.Clone(v)
					c[i] = n
					return put(c)
				})
			}
		}
	}
	walk("spec", o, func(n any) map[string]any { return n.(map[string]any) })
	return all
}

// leadsNowhere reports whether a hostile text is harmless in this field. It is, if it identifies a
// person. It also is, if it is a valid name that is only compared with labels of nodes and pods, or
// names the organisation's own runner group. The tests of isolation cover how these are rendered.
func leadsNowhere(at, what string) bool {
	for _, field := range []string{"spec.owners", "spec.members"} {
		if strings.HasPrefix(at, field) {
			return true
		}
	}
	for _, field := range []string{"spec.placement.", "spec.network.caches[0].podSelector", "spec.pools[0].runnerGroup"} {
		if strings.HasPrefix(at, field) {
			return strings.HasSuffix(what, "of somebody's")
		}
	}
	return false
}

// isMessagePath reports whether a text is only displayed. These are the reason of a hold and its requester,
// which the admission policies compare with the writer, and a label of jobs, for which GitHub
// accepts any text.
func isMessagePath(at string) bool {
	return at == "spec.reason" || at == "spec.requestedBy" || at == "spec.runsOn[0]"
}

// FLEET-11, FL-01: the API server or a condition refuses a hostile text in any field of a live
// object. The fleet creates nothing from it, and acme, whose objects most of the texts name, keeps
// what it had.
func TestFLEET11_HostileObjects(t *testing.T) {
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 2, Budget: 40})
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	list := func(kind string) []string { return p.labelled(corev1.SchemeGroupVersion.WithKind(kind), "acme") }
	had := list("SecretList")

	enrollment := map[string]any{"forge": "github", "configURL": p.github.URL + "/hostile", "isolation": "Namespace", "credentials": map[string]any{"secretName": "hostile-credential", "rotateEvery": "2160h"},
		"pools":     []any{map[string]any{"name": "nix", "type": "OrgPlusUser", "runnerGroup": "hostile", "repositories": []any{"hostile/app"}}},
		"quota":     map[string]any{"cpu": "4", "memory": "8Gi"},
		"placement": map[string]any{"nodeSelector": map[string]any{"a": "b"}, "runtimeClassName": "gvisor", "tolerations": []any{map[string]any{"key": "a", "operator": "Equal", "value": "b", "effect": "NoSchedule"}}},
		"network":   map[string]any{"egress": []any{map[string]any{"cidr": "0.0.0.0/0", "ports": []any{int64(443)}}}, "caches": []any{map[string]any{"namespace": "cache", "podSelector": map[string]any{"app": "attic"}, "port": int64(8080)}}},
		"owners":    []any{"amy@acme.dev"}, "members": []any{"*@acme.dev"}}
	pool := map[string]any{"forge": "github", "runsOn": []any{"nix"}, "scaling": map[string]any{"max": int64(1), "budget": int64(1)}, "containerMode": "default", "image": "runner:1", "dedicatedTo": "hostile",
		"adopt": map[string]any{"namespace": "others", "name": "old"}}
	hold := map[string]any{"scope": map[string]any{"org": "hostile", "pool": "nix"}, "mode": "Pause", "reason": "a test", "requestedBy": "alice@example.com"}
	forge := map[string]any{"type": "github", "url": p.github.URL, "apiURL": p.github.URL, "caBundle": "-----BEGIN CERTIFICATE-----"}
	p.github.AddAccount("hostile", "")

	refused := func(err error) bool {
		return apierrors.IsInvalid(err) || apierrors.IsBadRequest(err) || apierrors.IsRequestEntityTooLargeError(err)
	}
	create := func(kind, name string, spec map[string]any) error {
		o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}, "spec": spec}}
		o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind(kind))
		return p.admin.Create(t.Context(), o, client.DryRunAll)
	}
	for kind, spec := range map[string]map[string]any{"RunnerEnrollment": enrollment, "RunnerPool": pool, "RunnerHold": hold, "RunnerForge": forge} {
		if err := create(kind, "good", spec); err != nil && kind != "RunnerPool" {
			t.Fatalf("the %s without any of it: %v", kind, err)
		}
		for what, text := range hostile {
			if err := create(kind, text, spec); what != "a name of somebody's" && what != "a Secret of somebody's" && !refused(err) {
				t.Errorf("a %s whose name is %s: %v", kind, what, err)
			}
		}
	}

	tried, taken := 0, map[string]string{} // by name: the hostile field
	for what, text := range hostile {
		for at, spec := range spoiled(enrollment, text) {
			spec = (&unstructured.Unstructured{Object: spec}).DeepCopy().Object
			tried++
			name := fmt.Sprintf("h-%d", tried)
			if err := create("RunnerEnrollment", name, spec); refused(err) {
				continue
			} else if err != nil {
				t.Fatalf("%s in %s: %v", what, at, err)
			}
			if leadsNowhere(at, what) {
				continue
			}
			taken[name] = what + " in " + at
			p.github.AddAccount(name, "")
			p.github.AddRepository(name+"/app", false)
			if at != "spec.configURL" {
				spec["configURL"] = p.github.URL + "/" + name
			}
			if use := spec["pools"].([]any)[0].(map[string]any); !strings.Contains(at, "repositories") {
				use["repositories"] = []any{name + "/app"}
			}
			if !strings.Contains(at, "secretName") {
				spec["credentials"].(map[string]any)["secretName"] = name + "-credential"
			}
			o := &unstructured.Unstructured{Object: map[string]any{"metadata": map[string]any{"name": name}, "spec": spec}}
			o.SetGroupVersionKind(v1alpha1.GroupVersion.WithKind("RunnerEnrollment"))
			p.credential(name, map[string]string{"github_token": p.github.AddToken("admin:org", "repo")})
			p.must(p.admin.Create(t.Context(), o))
		}
	}
	t.Logf("%d objects were sent, the API server accepted %d", tried, len(taken))
	for name, what := range taken {
		e := p.waitStatus(name, what, func(e *v1alpha1.RunnerEnrollment) bool {
			return e.Status.Phase == v1alpha1.PhaseFailed || e.Status.Phase == v1alpha1.PhaseSuspended
		})
		if !meta.IsStatusConditionTrue(e.Status.Conditions, "PolicyViolation") && !meta.IsStatusConditionFalse(e.Status.Conditions, "CredentialsValid") {
			t.Errorf("%s: no condition explains it: %+v", what, e.Status.Conditions)
		}
		for _, c := range e.Status.Conditions {
			if strings.ContainsAny(c.Message, "\x00\x1b\u202e\u200b") || len(c.Message) > 2048 {
				t.Errorf("%s: the condition is %.200q", what, c.Message)
			}
		}
		for _, kind := range []groupVersionKind{arc.Kind(arc.SetKind + "List"), corev1.SchemeGroupVersion.WithKind("NamespaceList"), rbacv1.SchemeGroupVersion.WithKind("RoleBindingList")} {
			if created := p.labelled(kind, name); len(created) > 0 {
				t.Errorf("%s: created %q", what, created)
			}
		}
	}
	if tried < 200 || len(taken) == tried {
		t.Errorf("%d were sent, %d accepted", tried, len(taken))
	}

	for kind, spec := range map[string]map[string]any{"RunnerPool": pool, "RunnerHold": hold, "RunnerForge": forge} {
		for what, text := range hostile {
			for at, spec := range spoiled(spec, text) {
				if err := create(kind, "h", spec); err != nil && !refused(err) {
					t.Errorf("%s: %s in %s: %v", kind, what, at, err)
				} else if err == nil && !strings.HasSuffix(what, "of somebody's") && !isMessagePath(at) {
					t.Errorf("%s: %s in %s is accepted", kind, what, at)
				}
			}
		}
	}
	if now := list("SecretList"); !slices.Equal(now, had) {
		t.Errorf("acme has %q, and had %q", now, had)
	}
	switch s := p.set(p.shared, "acme-nix"); {
	case s == nil:
		t.Error("acme: s is nil")
	case s.Ending:
		t.Errorf("acme: s.Ending is true; %+v", s)
	case s.Secret == "":
		t.Errorf("acme: s.Secret is empty; %+v", s)
	}
	var all metav1.PartialObjectMetadataList
	all.SetGroupVersionKind(corev1.SchemeGroupVersion.WithKind("NamespaceList"))
	p.must(p.admin.List(t.Context(), &all, client.HasLabels{v1alpha1.OrgLabel}))
	for _, ns := range all.Items {
		if _, managed := taken[ns.Labels[v1alpha1.OrgLabel]]; managed {
			t.Errorf("a namespace was created: %s", ns.Name)
		}
	}
}
