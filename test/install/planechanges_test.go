package install

import (
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane/kube"
	"github.com/tailplane/tailplane/internal/settings"
)

// PL-08, FLEET-15: with a repository, the plane's account stores changes and sends dry runs of the configuration. It
// cannot write the configuration for any caller.
func TestPL08_PlaneChangesNothing(t *testing.T) {
	c := place(t)
	values := profileValues(t, "plane")
	if _, err := try(t, values, "--set", "plane.gitops.repository=acme/fleet"); err == nil || !strings.Contains(err.Error(), "credentialSecret") {
		t.Errorf("without a credential: %v", err)
	}
	all := render(t, values, "--no-hooks", "--set", "plane.gitops.repository=acme/fleet,plane.gitops.credentialSecret=fleet-repository")
	text, _, _ := unstructured.NestedString(rendered(t, all, "ConfigMap", "tailplane-plane").Object, "data", "plane.yaml")
	f, err := settings.Parse([]byte(text))
	if err == nil {
		err = f.Validate(settings.PlaneRole)
	}
	switch {
	case err != nil:
		t.Fatal(err)
	case !f.Plane.GitOps.Set():
		t.Fatalf("f.Plane.GitOps.Set() is false; %+v, %v", f.Plane.GitOps, err)
	case f.Plane.GitOps.CredentialDir != "/run/secrets/tailplane-gitops":
		t.Fatalf("f.Plane.GitOps.CredentialDir = %q, want %q", f.Plane.GitOps.CredentialDir, "/run/secrets/tailplane-gitops")
	}
	if none := render(t, values); strings.Contains(none, "tailplane-gitops") || strings.Contains(none, "tailplane-plane-changes") {
		t.Error("there are rights for a repository, but no repository")
	}
	out := ofPart(t, all, "plane")
	if err := c.Apply(t.Context(), []byte("apiVersion: v1\nkind: Namespace\nmetadata: {name: "+signins+"}"), []byte(out)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unbind(t, c, out) })
	config := configOf(t, c, systems, "tailplane-plane")
	api, err := kube.Connect(config, time.Now)
	if err != nil {
		t.Fatal(err)
	}
	kept := api.Changes(systems)
	k, err := kept.Create(t.Context(), gitops.Change{ID: "c1", Ref: gitops.Ref{Kind: "RunnerPool", Name: "try"}})
	if err != nil {
		t.Fatal(err)
	}
	k.Title = "more"
	again, err := kept.Save(t.Context(), k)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := kept.Save(t.Context(), k); err == nil || again.StoreVersion == k.StoreVersion {
		t.Error("a concurrent change was overwritten")
	}
	spec := map[string]any{"forge": "github", "runsOn": []any{"nix"}, "scaling": map[string]any{"min": 0, "max": 1, "budget": 1}}
	until(t, "the policy is in force", func() bool { // until then the account can still write
		account, err := client.New(config, client.Options{})
		if err != nil {
			t.Fatal(err)
		}
		o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": "RunnerPool", "metadata": map[string]any{"name": "try"}, "spec": spec}}
		err = account.Create(t.Context(), o)
		if err == nil {
			_ = account.Delete(t.Context(), o)
		}
		return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "the plane may send only dry-runs of changes")
	})
	if err := kept.DryRun(t.Context(), gitops.Ref{Kind: "RunnerPool", Name: "try"}, spec); err != nil {
		t.Errorf("a dry run: %v", err)
	}
	spec["scalling"] = 1
	if err := kept.DryRun(t.Context(), gitops.Ref{Kind: "RunnerPool", Name: "try"}, spec); err == nil {
		t.Error("a key that is none was taken")
	}
	if _, known := kept.GetSpec(t.Context(), gitops.Ref{Kind: "RunnerPool", Name: "try"}); !known {
		t.Error("it cannot look")
	}
	account, err := client.New(config, client.Options{})
	if err != nil {
		t.Fatal(err)
	}
	// It also cannot write the settings of any role, including its own; they are in ConfigMaps in the same namespace.
	for _, name := range []string{"tailplane-access", "tailplane-plane", "another"} {
		until(t, "the policy of ConfigMaps is in force", func() bool {
			m := &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: systems, Name: name}}
			err := account.Get(t.Context(), client.ObjectKeyFromObject(m), m)
			m.Data = map[string]string{"plane.yaml": "roles: [{login: mallory@example.com, role: platform-admin}]"}
			if err != nil {
				err = account.Create(t.Context(), m)
			} else {
				err = account.Update(t.Context(), m)
			}
			return apierrors.IsForbidden(err) && strings.Contains(err.Error(), "only its ConfigMaps of changes and of ignored drift")
		})
	}
	if _, err := kept.Create(t.Context(), gitops.Change{ID: "c2", Ref: gitops.Ref{Kind: "RunnerPool", Name: "try"}}); err != nil {
		t.Errorf("changes can no longer be stored: %v", err)
	}
	o := &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": "RunnerPool", "metadata": map[string]any{"name": "try"}}}
	if err := account.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, []byte(`{"spec":{"forge":"evil"}}`))); err == nil {
		t.Error("it writes")
	}
}
