package install

import (
	"path"
	"testing"

	"github.com/google/go-cmp/cmp"
	appsv1 "k8s.io/api/apps/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"

	"github.com/tailplane/tailplane/internal/settings"
)

// The keys of an issuer may come from a ConfigMap. Each pod that serves sign-ins mounts it where its settings say, and as a directory, so
// that new keys arrive without a restart. The operator verifies no tokens, and has neither.
func TestIssuerKeysFromConfigMap(t *testing.T) {
	const issuers = `signin.oidc={"issuers": [{"url": "https://a.example", "keysURL": "https://a.example/keys"}, {"url": "https://b.example", "keysConfigMap": {"name": "b-keys"}},
		{"url": "https://c.example", "keysConfigMap": {"name": "c-keys", "key": "set"}}]}`
	for profile, name := range map[string]string{"split": "tailplane-access", "all": "tailplane"} {
		out := render(t, profileValues(t, profile), "--set-json", issuers)
		text, _, err := unstructured.NestedString(rendered(t, out, "ConfigMap", name).Object, "data", name+"-0.yaml")
		if err != nil {
			t.Fatal(err)
		}
		f, err := settings.Parse([]byte(text))
		if err != nil {
			t.Fatalf("%s: %v\n%s", profile, err, text)
		}
		var set appsv1.StatefulSet
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(rendered(t, out, "StatefulSet", name).Object, &set); err != nil {
			t.Fatal(err)
		}
		want := map[string]string{"https://b.example": "b-keys/keys.json", "https://c.example": "c-keys/set"}
		if diff := cmp.Diff(want, mountedKeys(set, f.Signin.OIDC.Issuers)); diff != "" {
			t.Errorf("%s: ConfigMap of each issuer (-want +got):\n%s", profile, diff)
		}
	}
	operator := rendered(t, render(t, profileValues(t, "split"), "--set-json", issuers), "ConfigMap", "tailplane-operator")
	text, _, err := unstructured.NestedString(operator.Object, "data", "config.yaml")
	if err != nil {
		t.Fatal(err)
	}
	f, err := settings.Parse([]byte(text))
	if err != nil {
		t.Fatal(err)
	}
	if n := len(f.Signin.OIDC.Issuers); n > 0 {
		t.Errorf("the operator's settings have %d issuers", n)
	}
}

// mountedKeys returns the ConfigMap and the key of each issuer whose keys are in a file that the pod mounts.
func mountedKeys(set appsv1.StatefulSet, issuers []settings.OIDCIssuer) map[string]string {
	files := map[string]string{}
	pod := set.Spec.Template.Spec
	for _, m := range pod.Containers[0].VolumeMounts {
		for _, v := range pod.Volumes {
			if v.Name != m.Name || v.Projected == nil || m.SubPath != "" || !m.ReadOnly {
				continue
			}
			for _, s := range v.Projected.Sources {
				for _, item := range s.ConfigMap.Items {
					files[path.Join(m.MountPath, item.Path)] = s.ConfigMap.Name + "/" + item.Key
				}
			}
		}
	}
	keys := map[string]string{}
	for _, i := range issuers {
		if i.KeysFile != "" {
			keys[i.URL] = files[i.KeysFile]
		}
	}
	return keys
}
