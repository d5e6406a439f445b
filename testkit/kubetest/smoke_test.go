//go:build unix

package kubetest_test

// TB-03: the cluster behaves as the product requires.

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"math/big"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admission/v1"
	admissionregistrationv1 "k8s.io/api/admissionregistration/v1"
	appsv1 "k8s.io/api/apps/v1"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

func clientset(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	cs, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return cs
}

// patience bounds every wait. On an idle machine each wait takes only a moment.
const patience = 3 * time.Minute

// eventually polls until ok returns true, and returns the number of polls.
func eventually(t *testing.T, what string, ok func() bool) (looks int) {
	t.Helper()
	start := time.Now()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for looks = 1; !ok(); looks++ {
		if time.Since(start) > patience {
			t.Fatalf("%s: not within %v", what, patience)
		}
		select {
		case <-t.Context().Done():
			t.Fatalf("%s: %v", what, t.Context().Err())
		case <-tick.C:
		}
	}
	t.Logf("%s: %v", what, time.Since(start).Round(time.Millisecond))
	return looks
}

func podSpec() corev1.PodSpec {
	return corev1.PodSpec{Containers: []corev1.Container{{Name: "c", Image: "image.invalid/none"}}}
}

const gateCRD = `
# a comment before the first document
---
apiVersion: example.test/v1alpha1
kind: Gate
metadata: {name: first, namespace: tb03-apply}
spec: {replicas: 3}
---
apiVersion: v1
kind: Namespace
metadata: {name: tb03-apply}
---
apiVersion: apiextensions.k8s.io/v1
kind: CustomResourceDefinition
metadata: {name: gates.example.test}
spec:
  group: example.test
  scope: Namespaced
  names: {plural: gates, singular: gate, kind: Gate, listKind: GateList}
  versions:
  - name: v1alpha1
    served: true
    storage: true
    subresources: {status: {}}
    schema:
      openAPIV3Schema:
        type: object
        properties:
          spec:
            type: object
            properties: {replicas: {type: integer, minimum: 1}}
            x-kubernetes-validations:
            - {rule: "!has(self.replicas) || self.replicas < 10", message: too many}
`

// TB-03: definitions, schema and CEL work, and Apply sorts objects by their dependencies.
func TestApplyCRDAndCEL(t *testing.T) {
	c := kubetest.Start(t)
	start := time.Now()
	if err := c.Apply(t.Context(), []byte(gateCRD), []byte(`{"apiVersion":"v1","kind":"List","items":[
		{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"a","namespace":"tb03-apply"}},
		{"apiVersion":"v1","kind":"ConfigMap","metadata":{"name":"b","namespace":"tb03-apply"}}]}`)); err != nil {
		t.Fatal(err)
	}
	t.Logf("definition applied and served: %v", time.Since(start).Round(time.Millisecond))
	if err := c.Apply(t.Context(), []byte(gateCRD)); err != nil {
		t.Fatal("a second time:", err)
	}
	maps, err := clientset(t, c.AdminConfig()).CoreV1().ConfigMaps("tb03-apply").List(t.Context(), metav1.ListOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if !slices.ContainsFunc(maps.Items, func(m corev1.ConfigMap) bool { return m.Name == "b" }) {
		t.Error("the list's second item was not applied")
	}
	create := func(replicas int64) error {
		return c.Apply(t.Context(), fmt.Appendf(nil,
			"{apiVersion: example.test/v1alpha1, kind: Gate, metadata: {name: g%d, namespace: tb03-apply}, spec: {replicas: %[1]d}}", replicas))
	}
	for _, tc := range []struct {
		replicas int64
		says     string // "" means accepted
		why      string
	}{
		{5, "", "within schema and rule"},
		{0, "greater than or equal to 1", "the schema's minimum"},
		{11, "too many", "the CEL rule"},
	} {
		switch err := create(tc.replicas); {
		case tc.says == "" && err != nil:
			t.Errorf("%s: %v", tc.why, err)
		case tc.says != "" && (!apierrors.IsInvalid(err) || !strings.Contains(err.Error(), tc.says)):
			t.Errorf("%s: got %v, want Invalid with %q", tc.why, err, tc.says)
		}
	}
}

func TestApplyRefuses(t *testing.T) {
	c := kubetest.Start(t)
	ns := c.Namespace(t)
	for _, tc := range []struct{ document, says, why string }{
		{"metadata: {name: x}\n", "without apiVersion or kind", "no object"},
		{"{", "document 0", "no YAML"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x, namespace: missing-namespace}\n", `namespaces "missing-namespace" not found`, "a missing namespace is not waited for"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: x}\n", "a namespace is required", "no namespace is guessed"},
		{"apiVersion: example.test/v9\nkind: Nothing\nmetadata: {name: x}\n", "no matches for kind", "an unknown kind"},
		{"apiVersion: v1\nkind: ConfigMap\nmetadata: {name: Not_A_Name, namespace: " + ns + "}\n", "apply ConfigMap", "the error names the object"},
	} {
		start := time.Now()
		err := c.Apply(t.Context(), []byte(tc.document))
		if err == nil || !strings.Contains(err.Error(), tc.says) {
			t.Errorf("%s: got %v, want %q", tc.why, err, tc.says)
		}
		if took := time.Since(start); took > 2*time.Minute { // the longest wait of Apply is longer
			t.Errorf("%s: took %v", tc.why, took)
		}
	}
}

func token(t *testing.T, cs *kubernetes.Clientset, ns, account string, bound *authenticationv1.BoundObjectReference) string {
	t.Helper()
	asked := time.Now()
	r, err := cs.CoreV1().ServiceAccounts(ns).CreateToken(t.Context(), account, &authenticationv1.TokenRequest{
		Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(600)), BoundObjectRef: bound},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	ends := r.Status.ExpirationTimestamp.Time // in whole seconds
	if ends.Before(asked.Add(599*time.Second)) || ends.After(time.Now().Add(601*time.Second)) {
		t.Errorf("the token is valid for %v, want 10 minutes", ends.Sub(asked))
	}
	return r.Status.Token
}

func whoami(t *testing.T, cs *kubernetes.Clientset) (authenticationv1.UserInfo, error) {
	t.Helper()
	r, err := cs.AuthenticationV1().SelfSubjectReviews().Create(t.Context(), &authenticationv1.SelfSubjectReview{}, metav1.CreateOptions{})
	if err != nil {
		return authenticationv1.UserInfo{}, err
	}
	return r.Status.UserInfo, nil
}

// TB-03: tokens, RBAC and the delay of a revocation. The test waits for the API server's token cache, ten seconds, on
// purpose.
func TestTokenRBACAndRevocation(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t)
	ns, cs := c.Namespace(t), clientset(t, c.AdminConfig())
	if _, err := cs.CoreV1().ServiceAccounts(ns).Create(t.Context(), &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "eph"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.RbacV1().RoleBindings(ns).Create(t.Context(), &rbacv1.RoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "eph"},
		RoleRef:    rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects:   []rbacv1.Subject{{Kind: "ServiceAccount", Name: "eph", Namespace: ns}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	secret, err := cs.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "bound"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	plain := clientset(t, c.TokenConfig(token(t, cs, ns, "eph", nil)))
	bound := clientset(t, c.TokenConfig(token(t, cs, ns, "eph", &authenticationv1.BoundObjectReference{APIVersion: "v1", Kind: "Secret", Name: "bound", UID: secret.UID})))

	eventually(t, "binding seen by the authorizer", func() bool {
		_, err := plain.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	if _, err := plain.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec()}, metav1.CreateOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("view may create pods: %v", err)
	}
	if _, err := plain.CoreV1().Secrets(ns).List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("view may read Secrets: %v", err)
	}
	if who, err := whoami(t, plain); err != nil || who.Username != "system:serviceaccount:"+ns+":eph" {
		t.Errorf("whoami: %q, %v", who.Username, err)
	}

	if err := cs.RbacV1().RoleBindings(ns).Delete(t.Context(), "eph", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if looks := eventually(t, "binding removed -> forbidden", func() bool {
		_, err := plain.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{})
		return apierrors.IsForbidden(err)
	}); looks > 500 {
		t.Errorf("a removed binding was good for %d requests more", looks-1)
	}

	// Both tokens were used a moment ago, so both are in the cache.
	for _, revoked := range []struct {
		what   string
		client *kubernetes.Clientset
		remove func() error
	}{
		{"the bound Secret deleted -> unauthorized", bound, func() error {
			return cs.CoreV1().Secrets(ns).Delete(t.Context(), "bound", metav1.DeleteOptions{})
		}},
		{"the ServiceAccount deleted -> unauthorized", plain, func() error {
			return cs.CoreV1().ServiceAccounts(ns).Delete(t.Context(), "eph", metav1.DeleteOptions{})
		}},
	} {
		used := time.Now()
		if _, err := whoami(t, revoked.client); err != nil {
			t.Fatalf("before %s: %v", revoked.what, err)
		}
		if err := revoked.remove(); err != nil {
			t.Fatal(err)
		}
		removed := time.Now()
		last := removed // start time of the last request that the server admitted
		eventually(t, revoked.what, func() bool {
			began := time.Now()
			_, err := whoami(t, revoked.client)
			if err == nil {
				last = began
			}
			return apierrors.IsUnauthorized(err)
		})
		// A cluster without the cache would make every result about revocation look better than it is.
		if took := time.Since(used); took < time.Second || last.Sub(removed) > 20*time.Second {
			t.Errorf("%s %v after its use, the last use %v after it; the API server's cache lasts 10 s", revoked.what, took, last.Sub(removed))
		}
	}
}

// TB-03: impersonation passes user, groups and extras, and no right of the impersonator.
func TestImpersonation(t *testing.T) {
	c := kubetest.Start(t)
	config := c.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{
		UserName: "alice@example.test", Groups: []string{"eng"},
		Extra: map[string][]string{"example.test/node": {"laptop"}},
	}
	alice := clientset(t, config)
	who, err := whoami(t, alice)
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case who.Username != "alice@example.test":
		t.Errorf("whoami: who.Username = %q, want %q", who.Username, "alice@example.test")
	case !slices.Contains(who.Groups, "eng"):
		t.Errorf("whoami: who.Groups = %v does not contain %q", who.Groups, "eng")
	case !slices.Equal(who.Extra["example.test/node"], []string{"laptop"}):
		t.Errorf(`whoami: who.Extra["example.test/node"] = %v, want %v`, who.Extra["example.test/node"], []string{"laptop"})
	}
	if _, err := alice.CoreV1().Pods("default").List(t.Context(), metav1.ListOptions{}); !apierrors.IsForbidden(err) {
		t.Errorf("got %v, want Forbidden", err)
	}
}

// TB-03: a program with a ServiceAccount's kubeconfig has the rights of that account. The test runs the real kubectl.
func TestServiceAccountKubeconfig(t *testing.T) {
	c := kubetest.Start(t)
	ns := c.Namespace(t)
	if err := c.Apply(t.Context(), []byte(`
apiVersion: v1
kind: ServiceAccount
metadata: {name: reader, namespace: `+ns+`}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: RoleBinding
metadata: {name: reader, namespace: `+ns+`}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: view}
subjects: [{kind: ServiceAccount, name: reader, namespace: `+ns+`}]
`)); err != nil {
		t.Fatal(err)
	}
	path, err := c.ServiceAccountKubeconfig(t.Context(), ns, "reader", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(path); err != nil || i.Mode().Perm() != 0o600 {
		t.Errorf("a file with a token in it has mode %v, %v", i.Mode(), err)
	}
	eventually(t, "kubectl get pods as the account", func() bool {
		_, _, exit := kubetest.Kubectl(t.Context(), path, "get", "pods")
		return exit == 0
	})
	if out, errs, exit := kubetest.Kubectl(t.Context(), path, "auth", "whoami", "-o", "jsonpath={.status.userInfo.username}"); exit != 0 || out != "system:serviceaccount:"+ns+":reader" {
		t.Errorf("kubectl auth whoami: %q %q %d", out, errs, exit)
	}
	if _, errs, exit := kubetest.Kubectl(t.Context(), path, "create", "configmap", "x"); exit != 1 || !strings.Contains(errs, "Forbidden") && !strings.Contains(errs, "forbidden") {
		t.Errorf("kubectl create as a reader: %q %d", errs, exit)
	}
	if out, errs, exit := kubetest.Kubectl(t.Context(), c.Kubeconfig, "version", "-o", "json"); exit != 0 || strings.Count(out, `"gitVersion": "`+c.Version+`"`) != 2 {
		t.Errorf("kubectl and server are not both stamped %s: %s %s %d", c.Version, out, errs, exit)
	}
	if _, err := c.ServiceAccountKubeconfig(t.Context(), ns, "nobody", t.TempDir()); !apierrors.IsNotFound(err) {
		t.Errorf("a missing account: %v", err)
	}
	ended, cancel := context.WithCancel(t.Context())
	cancel()
	if _, _, exit := kubetest.Kubectl(ended, path, "get", "pods"); exit != -1 {
		t.Errorf("kubectl with an ended context: exit %d, want -1", exit)
	}
}

// TB-03: the garbage collector deletes the dependents of owners.
func TestGarbageCollection(t *testing.T) {
	c := kubetest.Start(t)
	ns, cs := c.Namespace(t), clientset(t, c.AdminConfig())
	owner, err := cs.CoreV1().ConfigMaps(ns).Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "owner"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{
		Name: "dependent", OwnerReferences: []metav1.OwnerReference{{APIVersion: "v1", Kind: "ConfigMap", Name: "owner", UID: owner.UID}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cs.CoreV1().ConfigMaps(ns).Delete(t.Context(), "owner", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "dependent collected", func() bool {
		_, err := cs.CoreV1().Secrets(ns).Get(t.Context(), "dependent", metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// TB-03: a deleted namespace is removed with all its objects.
func TestNamespaceDeletion(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t)
	ns, cs := c.Namespace(t), clientset(t, c.AdminConfig())
	for _, name := range []string{"a", "b", "c"} {
		if _, err := cs.CoreV1().Secrets(ns).Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := cs.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "p"}, Spec: podSpec()}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := cs.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "namespace gone", func() bool {
		_, err := cs.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}

// TB-03: a mutating webhook by URL. The configuration is cluster-wide, but its selector matches one namespace.
func TestMutatingWebhook(t *testing.T) {
	t.Parallel()
	c := kubetest.Start(t)
	ns, cs := c.Namespace(t), clientset(t, c.AdminConfig())

	var calls atomic.Int32
	srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		var review admissionv1.AdmissionReview
		if err := json.NewDecoder(http.MaxBytesReader(w, r.Body, 1<<20)).Decode(&review); err != nil || review.Request == nil {
			http.Error(w, "not a review", http.StatusBadRequest)
			return
		}
		calls.Add(1)
		review.Response = &admissionv1.AdmissionResponse{
			UID: review.Request.UID, Allowed: true, PatchType: new(admissionv1.PatchTypeJSONPatch),
			Patch: []byte(`[{"op":"add","path":"/metadata/annotations","value":{"smoke":"mutated"}}]`),
		}
		review.Request = nil
		w.Header().Set("Content-Type", "application/json")
		_ = json.NewEncoder(w).Encode(review)
	}))
	cert := selfSigned(t)
	srv.TLS = &tls.Config{Certificates: []tls.Certificate{cert}}
	srv.StartTLS()
	defer srv.Close()

	hook, err := cs.AdmissionregistrationV1().MutatingWebhookConfigurations().Create(t.Context(), &admissionregistrationv1.MutatingWebhookConfiguration{
		ObjectMeta: metav1.ObjectMeta{GenerateName: "smoke-"},
		Webhooks: []admissionregistrationv1.MutatingWebhook{{
			Name: "smoke.example.test", AdmissionReviewVersions: []string{"v1"},
			SideEffects: new(admissionregistrationv1.SideEffectClassNone), FailurePolicy: new(admissionregistrationv1.Fail),
			ClientConfig: admissionregistrationv1.WebhookClientConfig{
				URL:      new(srv.URL + "/mutate"),
				CABundle: pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: cert.Certificate[0]}),
			},
			NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{corev1.LabelMetadataName: ns}},
			Rules: []admissionregistrationv1.RuleWithOperations{{
				Operations: []admissionregistrationv1.OperationType{admissionregistrationv1.Create},
				Rule:       admissionregistrationv1.Rule{APIGroups: []string{""}, APIVersions: []string{"v1"}, Resources: []string{"pods"}},
			}},
		}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := cs.AdmissionregistrationV1().MutatingWebhookConfigurations().Delete(t.Context(), hook.Name, metav1.DeleteOptions{}); err != nil {
			t.Error(err)
		}
	}()
	eventually(t, "webhook called for a new pod", func() bool {
		p, err := cs.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "w-"}, Spec: podSpec()}, metav1.CreateOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Annotations["smoke"] == "mutated"
	})
	before := calls.Load()
	if _, err := cs.CoreV1().Pods("default").Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "w-"}, Spec: podSpec()},
		metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); err != nil {
		t.Error(err)
	}
	if calls.Load() != before {
		t.Error("the webhook was called for a namespace that it does not select")
	}
	srv.Close()
	if _, err := cs.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{GenerateName: "w-"}, Spec: podSpec()}, metav1.CreateOptions{}); err == nil {
		t.Error("failurePolicy Fail let a pod in though the webhook was down")
	}
}

func selfSigned(t *testing.T) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	template := &x509.Certificate{
		SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "webhook"},
		NotBefore: time.Now().Add(-time.Hour), NotAfter: time.Now().Add(time.Hour),
		IPAddresses: []net.IP{net.IPv4(127, 0, 0, 1)}, IsCA: true, BasicConstraintsValid: true,
		KeyUsage: x509.KeyUsageCertSign | x509.KeyUsageDigitalSignature,
	}
	der, err := x509.CreateCertificate(rand.Reader, template, template, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// workloads creates a Deployment and a StatefulSet with two pods each, and a Service for the StatefulSet.
func workloads(t *testing.T, cs *kubernetes.Clientset, ns string) {
	t.Helper()
	template := func(app string) (*metav1.LabelSelector, corev1.PodTemplateSpec) {
		l := map[string]string{"app": app}
		spec := podSpec()
		spec.InitContainers = []corev1.Container{
			{Name: "once", Image: "image.invalid/none"},
			{Name: "sidecar", Image: "image.invalid/none", RestartPolicy: new(corev1.ContainerRestartPolicyAlways)},
		}
		return &metav1.LabelSelector{MatchLabels: l}, corev1.PodTemplateSpec{ObjectMeta: metav1.ObjectMeta{Labels: l}, Spec: spec}
	}
	d := &appsv1.Deployment{ObjectMeta: metav1.ObjectMeta{Name: "d"}, Spec: appsv1.DeploymentSpec{Replicas: new(int32(2))}}
	d.Spec.Selector, d.Spec.Template = template("d")
	if _, err := cs.AppsV1().Deployments(ns).Create(t.Context(), d, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	s := &appsv1.StatefulSet{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: appsv1.StatefulSetSpec{Replicas: new(int32(2)), ServiceName: "s"}}
	s.Spec.Selector, s.Spec.Template = template("s")
	if _, err := cs.AppsV1().StatefulSets(ns).Create(t.Context(), s, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().Services(ns).Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "s"}, Spec: corev1.ServiceSpec{
		Selector: map[string]string{"app": "s"}, Ports: []corev1.ServicePort{{Port: 80}},
	}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// TB-03: without a node, the workload controllers create pods and the pods stay pending.
func TestWorkloadsPending(t *testing.T) {
	c := kubetest.Start(t)
	ns, cs := c.Namespace(t), clientset(t, c.AdminConfig())
	workloads(t, cs, ns)
	var pods *corev1.PodList
	eventually(t, "pods made (two of the Deployment, the first of the StatefulSet)", func() bool {
		var err error
		if pods, err = cs.CoreV1().Pods(ns).List(t.Context(), metav1.ListOptions{}); err != nil {
			t.Fatal(err)
		}
		return len(pods.Items) == 3
	})
	for _, p := range pods.Items {
		if p.Status.Phase != corev1.PodPending || p.Spec.NodeName != "" {
			t.Errorf("pod %s is %s on node %q", p.Name, p.Status.Phase, p.Spec.NodeName)
		}
		if len(p.Spec.Volumes) != 1 || p.Spec.Volumes[0].Projected == nil {
			t.Errorf("pod %s has no projected token volume", p.Name)
		}
	}
}

// TB-03: with the fake node, pods become ready and the Service has endpoints. A namespace with running pods can be
// deleted.
func TestWorkloadsOnTheFakeNode(t *testing.T) {
	t.Parallel()
	c := kubetest.New(t, kubetest.Options{Name: "withnode", FakeNode: true})
	ns, cs := c.Namespace(t), clientset(t, c.AdminConfig())
	workloads(t, cs, ns)
	eventually(t, "StatefulSet and Deployment ready", func() bool {
		s, err := cs.AppsV1().StatefulSets(ns).Get(t.Context(), "s", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		d, err := cs.AppsV1().Deployments(ns).Get(t.Context(), "d", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return s.Status.ReadyReplicas == 2 && d.Status.AvailableReplicas == 2
	})
	eventually(t, "the Service has two endpoints", func() bool {
		slices, err := cs.DiscoveryV1().EndpointSlices(ns).List(t.Context(), metav1.ListOptions{LabelSelector: "kubernetes.io/service-name=s"})
		if err != nil {
			t.Fatal(err)
		}
		return len(slices.Items) == 1 && len(slices.Items[0].Endpoints) == 2
	})
	for name, spec := range map[string]corev1.PodSpec{
		"elsewhere": {NodeSelector: map[string]string{"zone": "moon"}},
		"gated":     {SchedulingGates: []corev1.PodSchedulingGate{{Name: "example.test/gate"}}},
		"other":     {SchedulerName: "podnode"},
	} {
		spec.Containers = podSpec().Containers
		if _, err := cs.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	// The node handles events in order. So when a later pod runs, the node has already skipped the earlier ones.
	if _, err := cs.CoreV1().Pods(ns).Create(t.Context(), &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "later"}, Spec: podSpec()}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "a pod of no controller runs", func() bool {
		p, err := cs.CoreV1().Pods(ns).Get(t.Context(), "later", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		return p.Status.Phase == corev1.PodRunning
	})
	for _, name := range []string{"elsewhere", "gated", "other"} {
		p, err := cs.CoreV1().Pods(ns).Get(t.Context(), name, metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if p.Spec.NodeName != "" {
			t.Errorf("pod %s, which no scheduler could put there, was bound to node %s", name, p.Spec.NodeName)
		}
	}
	if err := cs.CoreV1().Namespaces().Delete(t.Context(), ns, metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	eventually(t, "namespace with running pods gone", func() bool {
		_, err := cs.CoreV1().Namespaces().Get(t.Context(), ns, metav1.GetOptions{})
		return apierrors.IsNotFound(err)
	})
}
