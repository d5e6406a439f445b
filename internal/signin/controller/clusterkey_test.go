//go:build unix

package controller

import (
	"fmt"
	"strings"
	"sync"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/kube"
)

// newKeyEnv creates a namespace with the Secret from the manifests, and an account that may only get
// and update that Secret by name.
func newKeyEnv(t *testing.T) (p *env, config *rest.Config, k *kubernetes.Clientset) {
	t.Helper()
	p = newEnv(t)
	manifests := fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: tailplane-cluster-key, namespace: %[1]s}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: access, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: access, namespace: %[1]s}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [tailplane-cluster-key], verbs: [get, update, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: access, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: access}
subjects: [{kind: ServiceAccount, name: access, namespace: %[1]s}]
`, p.ns)
	if err := p.cluster.Apply(t.Context(), []byte(manifests)); err != nil {
		t.Fatal(err)
	}
	path, err := p.cluster.ServiceAccountKubeconfig(t.Context(), p.ns, "access", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if config, err = kube.Config(path); err != nil {
		t.Fatal(err)
	}
	if k, err = kubernetes.NewForConfig(p.cluster.AdminConfig()); err != nil {
		t.Fatal(err)
	}
	return p, config, k
}

func load(t *testing.T, config *rest.Config, ns string) (httpapi.Key, error) {
	t.Helper()
	k, err := NewClusterKey(config, ns)
	if err != nil {
		t.Fatal(err)
	}
	return k.Load(t.Context())
}

// Many access servers start at once with an empty Secret. They all get the same key with only their
// account's rights, and get it again after a restart.
func TestClusterKeyIsMadeOnce(t *testing.T) {
	p, config, k := newKeyEnv(t)
	var mu sync.Mutex
	keys := map[string]int{}
	var wg sync.WaitGroup
	for range 12 {
		wg.Go(func() {
			key, err := load(t, config, p.ns)
			mu.Lock()
			defer mu.Unlock()
			if err != nil {
				t.Error(err)
			}
			keys[key.Public().String()]++
		})
	}
	wg.Wait()
	if len(keys) != 1 || keys[""] != 0 {
		t.Fatalf("the keys are %v", keys)
	}
	again, err := load(t, config, p.ns)
	if err != nil || keys[again.Public().String()] == 0 {
		t.Errorf("after a restart %v, %v", again.Public(), err)
	}
	s, err := k.CoreV1().Secrets(p.ns).Get(t.Context(), ClusterKeySecret, metav1.GetOptions{})
	switch {
	case err != nil:
		t.Errorf("the Secret: %v", err)
	case len(s.Data) != 1:
		t.Errorf("the Secret: len(s.Data) = %v, want 1", len(s.Data))
	case len(s.Data["ed25519"]) != 32:
		t.Errorf(`the Secret: len(s.Data["ed25519"]) = %v, want 32`, len(s.Data["ed25519"]))
	}
}

// Load keeps Secret data that is not a key, and its errors show none of the data.
func TestClusterKeyRefusals(t *testing.T) {
	p, config, k := newKeyEnv(t)
	secrets := k.CoreV1().Secrets(p.ns)
	put := func(data map[string][]byte) {
		t.Helper()
		if _, err := secrets.Update(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: ClusterKeySecret}, Data: data}, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	put(map[string][]byte{"ed25519": []byte("canary, and too short")})
	_, err := load(t, config, p.ns)
	switch {
	case err == nil:
		t.Error("a key that is none: no error")
	case strings.Contains(err.Error(), "canary"):
		t.Errorf("a key that is none: err.Error() = %q contains %q", err.Error(), "canary")
	case !strings.Contains(err.Error(), "has 32 bytes, not 21"):
		t.Errorf("a key that is none: err.Error() = %q does not contain %q", err.Error(), "has 32 bytes, not 21")
	}
	put(map[string][]byte{"note": []byte("kept")})
	if _, err := load(t, config, p.ns); err != nil {
		t.Error(err)
	}
	switch s, err := secrets.Get(t.Context(), ClusterKeySecret, metav1.GetOptions{}); {
	case err != nil:
		t.Errorf("the rest of the Secret was changed: %v", err)
	case string(s.Data["note"]) != "kept":
		t.Errorf(`the rest of the Secret was changed: string(s.Data["note"]) = %q, want %q`, string(s.Data["note"]), "kept")
	case len(s.Data["ed25519"]) != 32:
		t.Errorf(`the rest of the Secret was changed: len(s.Data["ed25519"]) = %v, want 32`, len(s.Data["ed25519"]))
	}
	if err := secrets.Delete(t.Context(), ClusterKeySecret, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := load(t, config, p.ns); err == nil || !strings.Contains(err.Error(), "does not exist") {
		t.Errorf("no Secret: %v", err)
	}
	other := newEnv(t)
	if _, err := load(t, config, other.ns); err == nil || !strings.Contains(err.Error(), "may not read") {
		t.Errorf("another namespace: %v", err)
	}
}

// DSC-10: Previous reads the previous key where an administrator left it, and nothing else.
func TestPreviousClusterKey(t *testing.T) {
	p, config, k := newKeyEnv(t)
	first, err := load(t, config, p.ns)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := NewClusterKey(config, p.ns)
	if err != nil {
		t.Fatal(err)
	}
	if _, ok, err := secret.Previous(t.Context()); ok || err != nil {
		t.Errorf("before any change: %v %v", ok, err)
	}
	s, err := k.CoreV1().Secrets(p.ns).Get(t.Context(), ClusterKeySecret, metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	s.Data["previous"] = s.Data["ed25519"]
	delete(s.Data, "ed25519")
	if _, err = k.CoreV1().Secrets(p.ns).Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	next, err := load(t, config, p.ns)
	if err != nil || next.Public() == first.Public() {
		t.Fatalf("the key is still %v (%v)", next.Public(), err)
	}
	switch before, ok, err := secret.Previous(t.Context()); {
	case err != nil:
		t.Errorf("the key before: %v", err)
	case !ok:
		t.Errorf("the key before: ok is false; %v, %v, %v", before.Public(), ok, err)
	case before.Public() != first.Public():
		t.Errorf("the key before: before.Public() = %v, want %v", before.Public(), first.Public())
	}
	if s, err = k.CoreV1().Secrets(p.ns).Get(t.Context(), ClusterKeySecret, metav1.GetOptions{}); err != nil {
		t.Fatal(err)
	}
	s.Data["previous"] = []byte("short and secret")
	if _, err = k.CoreV1().Secrets(p.ns).Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	switch _, ok, err := secret.Previous(t.Context()); {
	case ok:
		t.Errorf("what is no key: ok is true; %v, %v", ok, err)
	case err == nil:
		t.Error("what is no key: no error")
	case strings.Contains(err.Error(), "secret\""):
		t.Errorf("what is no key: err.Error() = %q contains %q", err.Error(), "secret\"")
	case strings.Contains(err.Error(), "short and"):
		t.Errorf("what is no key: err.Error() = %q contains %q", err.Error(), "short and")
	}
}
