package plane

import (
	"testing"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// PL-08: even if a handler has a bug, the program's account has only the rights to read the data that it shows, to
// end sign-ins, and to create and lift holds.
func TestPL08_Rights(t *testing.T) {
	r := start(t)
	ctx := t.Context()
	path, err := r.Cluster.ServiceAccountKubeconfig(ctx, testenv.SystemNamespace, "tailplane-plane", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.BuildConfigFromFlags("", path)
	if err != nil {
		t.Fatal(err)
	}
	config.QPS = -1
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	objects, err := dynamic.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	signins := objects.Resource(schema.GroupVersionResource{Group: "tailplane.dev", Version: "v1alpha1", Resource: "tkasignins"})
	tailnets := objects.Resource(schema.GroupVersionResource{Group: "gateway.tailscale.com", Version: "v1alpha1", Resource: "tailscaletailnets"})
	enrollments := objects.Resource(schema.GroupVersionResource{Group: "tailplane.dev", Version: "v1alpha1", Resource: "runnerenrollments"})
	kind := func(resource string) dynamic.ResourceInterface {
		return objects.Resource(schema.GroupVersionResource{Group: "tailplane.dev", Version: "v1alpha1", Resource: resource})
	}
	holds, pools, forges := kind("runnerholds"), kind("runnerpools"), kind("runnerforges")
	dry := metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}
	patch := metav1.PatchOptions{DryRun: []string{metav1.DryRunAll}}
	remove := metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}}
	list := metav1.ListOptions{}
	object := func(kind, name string) *unstructured.Unstructured {
		return &unstructured.Unstructured{Object: map[string]any{"apiVersion": "tailplane.dev/v1alpha1", "kind": kind, "metadata": map[string]any{"name": name}, "spec": map[string]any{}}}
	}
	secret := func(name string) error {
		_, err := k.CoreV1().Secrets(testenv.SystemNamespace).Get(ctx, name, metav1.GetOptions{})
		return err
	}
	token := func(namespace, account string) error {
		_, err := k.CoreV1().ServiceAccounts(namespace).CreateToken(ctx, account, &authenticationv1.TokenRequest{}, dry)
		return err
	}
	as := func(user string) error { // impersonation
		c := *config
		c.Impersonate.UserName = user
		other, err := kubernetes.NewForConfig(&c)
		if err != nil {
			t.Fatal(err)
		}
		return second(other.CoreV1().Namespaces().List(ctx, list))
	}
	exec := func(subresource string) error {
		return k.CoreV1().RESTClient().Post().Namespace("default").Resource("pods").Name("x").SubResource(subresource).Param("command", "id").Do(ctx).Error()
	}
	for what, err := range map[string]error{
		"lists Secrets":                    second(k.CoreV1().Secrets(testenv.SystemNamespace).List(ctx, list)),
		"lists Secrets everywhere":         second(k.CoreV1().Secrets("").List(ctx, list)),
		"reads the cluster's key":          secret("tailplane-cluster-key"),
		"reads the access server's state":  secret("tailplane-access-0"),
		"reads the access server's record": secret("tailplane-audit-key"),
		"makes a Secret":                   second(k.CoreV1().Secrets(testenv.SystemNamespace).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, dry)),
		"lists ConfigMaps":                 second(k.CoreV1().ConfigMaps(testenv.SystemNamespace).List(ctx, list)),
		"writes the list of members":       second(k.CoreV1().ConfigMaps(testenv.SystemNamespace).Patch(ctx, "tailplane-members", types.MergePatchType, []byte(`{"data":{}}`), patch)),
		"makes a sign-in":                  second(signins.Namespace(testenv.SigninNamespace).Create(ctx, object("TkaSignin", "x"), dry)),
		"changes a sign-in":                second(signins.Namespace(testenv.SigninNamespace).Patch(ctx, "x", types.MergePatchType, []byte(`{}`), patch)),
		"writes the status of a sign-in":   second(signins.Namespace(testenv.SigninNamespace).Patch(ctx, "x", types.MergePatchType, []byte(`{}`), patch, "status")),
		"ends a sign-in of another place":  signins.Namespace("default").Delete(ctx, "x", remove),
		"lists sign-ins everywhere":        second(signins.List(ctx, list)),
		"removes all sign-ins at once":     signins.Namespace(testenv.SigninNamespace).DeleteCollection(ctx, remove, list),
		"removes a tailnet":                tailnets.Delete(ctx, "x", remove),
		"makes itself an owner":            second(enrollments.Patch(ctx, "acme", types.MergePatchType, []byte(`{"spec":{"owners":["eve@example.com"]}}`), patch)),
		"writes the status of a hold":      second(holds.Patch(ctx, "x", types.MergePatchType, []byte(`{}`), patch, "status")),
		"lifts all holds at once":          holds.DeleteCollection(ctx, remove, list),
		"changes a pool":                   second(pools.Patch(ctx, "x", types.MergePatchType, []byte(`{}`), patch)),
		"makes a forge":                    second(forges.Create(ctx, object("RunnerForge", "x"), dry)),
		"removes an organisation":          enrollments.Delete(ctx, "x", remove),
		"makes a pod":                      second(k.CoreV1().Pods("default").Create(ctx, &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, dry)),
		"removes a pod":                    k.CoreV1().Pods("default").Delete(ctx, "x", remove),
		"runs a command in a pod":          exec("exec"),
		"attaches to a pod":                exec("attach"),
		"forwards a port of a pod":         exec("portforward"),
		"reads a pod's log":                k.CoreV1().Pods("default").GetLogs("x", &corev1.PodLogOptions{}).Do(ctx).Error(),
		"makes a sign-in's token":          token(testenv.SigninNamespace, "default"),
		"makes the operator's token":       token(testenv.SystemNamespace, "tailplane-operator"),
		"makes its own token":              token(testenv.SystemNamespace, "tailplane-plane"),
		"poses as an administrator":        as("system:admin"),
		"poses as the access server":       as("system:serviceaccount:" + testenv.SystemNamespace + ":tailplane-access"),
		"makes a role":                     second(k.RbacV1().ClusterRoles().Create(ctx, &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, dry)),
		"takes the access server's Lease":  second(k.CoordinationV1().Leases(testenv.SystemNamespace).Get(ctx, "tailplane-access", metav1.GetOptions{})),
		"removes events":                   k.CoreV1().Events("default").Delete(ctx, "x", remove),
		"lists namespaces":                 second(k.CoreV1().Namespaces().List(ctx, list)),
		"lists the cluster's nodes":        second(k.CoreV1().Nodes().List(ctx, list)),
		"lists ServiceAccounts":            second(k.CoreV1().ServiceAccounts(testenv.SigninNamespace).List(ctx, list)),
		"removes the admission policy":     k.AdmissionregistrationV1().ValidatingAdmissionPolicies().Delete(ctx, "tailplane-signins", remove),
		"changes the policy":               k.AdmissionregistrationV1().ValidatingAdmissionPolicyBindings().Delete(ctx, "tailplane-signins", remove),
	} {
		if !apierrors.IsForbidden(err) {
			t.Errorf("it %s: %v, want Forbidden", what, err)
		}
	}
	// Its intended operations must be allowed, otherwise the refusals prove nothing.
	for what, err := range map[string]error{
		"reads sign-ins":       second(signins.Namespace(testenv.SigninNamespace).List(ctx, list)),
		"reads tailnets":       second(tailnets.List(ctx, list)),
		"reads organisations":  second(enrollments.List(ctx, list)),
		"reads pools":          second(pools.List(ctx, list)),
		"reads forges":         second(forges.List(ctx, list)),
		"reads holds":          second(holds.List(ctx, list)),
		"reads pods":           second(k.CoreV1().Pods("").List(ctx, list)),
		"reads events":         second(k.CoreV1().Events("").List(ctx, list)),
		"reads the members":    second(k.CoreV1().ConfigMaps(testenv.SystemNamespace).Get(ctx, "tailplane-members", metav1.GetOptions{})),
		"reads its own Secret": secret("tailplane-plane"),
	} {
		if err != nil {
			t.Errorf("it %s: %v", what, err)
		}
	}
	if err := holds.Delete(ctx, "x", remove); !apierrors.IsNotFound(err) {
		t.Errorf("it lifts a hold: %v, want NotFound", err)
	}
	if _, err := holds.Patch(ctx, "x", types.MergePatchType, []byte(`{"spec":{"expiresAt":null}}`), patch); !apierrors.IsNotFound(err) {
		t.Errorf("it changes when a hold ends: %v, want NotFound", err)
	}
	if _, err := holds.Create(ctx, object("RunnerHold", "x"), dry); !apierrors.IsInvalid(err) {
		t.Errorf("it makes a hold of nothing: %v, want Invalid", err)
	}
	if err := signins.Namespace(testenv.SigninNamespace).Delete(ctx, "x", remove); !apierrors.IsNotFound(err) {
		t.Errorf("it ends a sign-in: %v, want NotFound", err)
	}
}

func second[T any](_ T, err error) error { return err }
