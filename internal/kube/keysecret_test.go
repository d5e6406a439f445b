//go:build unix

package kube_test

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// newKeyEnv creates a namespace with an empty Secret, and the configuration of an account that may only get and update
// that Secret by name.
func newKeyEnv(t *testing.T) (cluster *kubetest.Cluster, ns string, config *rest.Config, k *kubernetes.Clientset) {
	t.Helper()
	cluster = kubetest.Start(t)
	ns = cluster.Namespace(t)
	manifests := fmt.Sprintf(`
apiVersion: v1
kind: Secret
metadata: {name: key, namespace: %[1]s}
---
apiVersion: v1
kind: ServiceAccount
metadata: {name: access, namespace: %[1]s}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: Role
metadata: {name: access, namespace: %[1]s}
rules: [{apiGroups: [""], resources: [secrets], resourceNames: [key], verbs: [get, update, patch]}]
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: access, namespace: %[1]s}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: Role, name: access}
subjects: [{kind: ServiceAccount, name: access, namespace: %[1]s}]
`, ns)
	if err := cluster.Apply(t.Context(), []byte(manifests)); err != nil {
		t.Fatal(err)
	}
	path, err := cluster.ServiceAccountKubeconfig(t.Context(), ns, "access", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if config, err = kube.Config(path); err != nil {
		t.Fatal(err)
	}
	if k, err = kubernetes.NewForConfig(cluster.AdminConfig()); err != nil {
		t.Fatal(err)
	}
	return cluster, ns, config, k
}

// Another key of the same kind is in a separate Secret, with its public key in an annotation. It is
// not readable without rights on that Secret.
func TestKeySecret(t *testing.T) {
	cluster, ns, config, k := newKeyEnv(t)
	parse := func(seed []byte) (audit.Key, error) { return audit.KeyFromSeed(seed) }
	public := func(k audit.Key) string { return k.Public().String() }
	try := func(name string) (audit.Key, error) {
		t.Helper()
		s, err := kube.NewKeySecret(config, ns, name, "tell everybody", parse, public)
		if err != nil {
			t.Fatal(err)
		}
		return s.Load(t.Context())
	}
	if err := cluster.Apply(t.Context(), []byte("apiVersion: v1\nkind: Secret\nmetadata: {name: other, namespace: "+ns+"}\n")); err != nil {
		t.Fatal(err)
	}
	if _, err := try("other"); err == nil || !strings.Contains(err.Error(), "may not read") {
		t.Errorf("a Secret without a right to it: %v", err)
	}
	first, err := try("key")
	if err != nil {
		t.Fatal(err)
	}
	again, err := try("key")
	if err != nil || again.Public() != first.Public() {
		t.Errorf("%v and then %v, %v", first.Public(), again.Public(), err)
	}
	s, err := k.CoreV1().Secrets(ns).Get(t.Context(), "key", metav1.GetOptions{})
	if err != nil || s.Annotations[kube.PublicKeyAnnotation] != first.Public().String() {
		t.Errorf("the Secret has %v, %v", s.Annotations, err)
	}
	s.Data["ed25519"] = []byte("canary, and too short")
	if _, err := k.CoreV1().Secrets(ns).Update(t.Context(), s, metav1.UpdateOptions{}); err != nil {
		t.Fatal(err)
	}
	switch _, err := try("key"); {
	case err == nil:
		t.Error("a key that is none: no error")
	case strings.Contains(err.Error(), "canary"):
		t.Errorf("a key that is none: err.Error() = %q contains %q", err.Error(), "canary")
	case !strings.Contains(err.Error(), "tell everybody"):
		t.Errorf("a key that is none: err.Error() = %q does not contain %q", err.Error(), "tell everybody")
	}
}

func TestClusterUID(t *testing.T) {
	cluster, _, config, k := newKeyEnv(t)
	n, err := k.CoreV1().Namespaces().Get(t.Context(), "kube-system", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	switch uid, err := kube.ClusterUID(t.Context(), cluster.AdminConfig()); {
	case err != nil:
		t.Error(err)
	case uid != string(n.UID):
		t.Errorf("uid = %q, want %q", uid, string(n.UID))
	case uid == "":
		t.Errorf("uid is empty; %q, %v, %q", uid, err, n.UID)
	}
	if uid, err := kube.ClusterUID(t.Context(), config); !errors.Is(err, kube.ErrForbidden) || uid != "" {
		t.Errorf("without the right: %q, %v", uid, err)
	}
}
