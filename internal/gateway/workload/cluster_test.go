//go:build unix

package workload_test

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// A clusterEnv is a real API server with the controllers that create pods of StatefulSets and collect
// garbage.
type clusterEnv struct {
	*testing.T
	cluster *kubetest.Cluster
	admin   *kubernetes.Clientset
	objects *dynamic.DynamicClient
	ns      string
}

var groups = v1alpha1.GroupVersion.WithResource("tailscaleproxygroups")

func newClusterEnv(t *testing.T) *clusterEnv {
	t.Helper()
	s := &clusterEnv{T: t, cluster: kubetest.Start(t)}
	crd, err := os.ReadFile("../../../deploy/crds/gateway.tailscale.com_tailscaleproxygroups.yaml")
	s.must(err)
	s.must(s.cluster.Apply(t.Context(), crd))
	config := s.cluster.AdminConfig()
	config.WarningHandler = rest.NoWarnings{} // about certificates that are still empty
	s.admin, err = kubernetes.NewForConfig(config)
	s.must(err)
	s.objects, err = dynamic.NewForConfig(config)
	s.must(err)
	s.ns = s.cluster.Namespace(t)
	return s
}

func (s *clusterEnv) must(err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

// within returns a context with the deadline of one test.
func within(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// until waits for a condition that other controllers bring about.
func (s *clusterEnv) until(ctx context.Context, what string, done func() (bool, string)) {
	s.Helper()
	for {
		ok, is := done()
		if ok {
			return
		}
		select {
		case <-time.After(50 * time.Millisecond):
		case <-ctx.Done():
			s.Fatalf("%s: %s", what, is)
		}
	}
}

// group creates a group and returns the stored object.
func (s *clusterEnv) group(ctx context.Context, doc string) *v1alpha1.TailscaleProxyGroup {
	s.Helper()
	doc = fmt.Sprintf(doc, s.ns)
	s.must(s.cluster.Apply(ctx, []byte(doc)))
	name, _, _ := strings.Cut(doc[strings.Index(doc, "name: ")+len("name: "):], ",")
	u, err := s.objects.Resource(groups).Namespace(s.ns).Get(ctx, name, metav1.GetOptions{})
	s.must(err)
	g := new(v1alpha1.TailscaleProxyGroup)
	s.must(runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, g))
	return g
}

// apply applies objects and returns their resourceVersions afterwards.
func (s *clusterEnv) apply(ctx context.Context, objects []workload.Object) map[string]string {
	s.Helper()
	versions := map[string]string{}
	for _, o := range objects {
		m, err := runtime.DefaultUnstructuredConverter.ToUnstructured(o)
		s.must(err)
		u := &unstructured.Unstructured{Object: m}
		r := strings.ToLower(u.GetKind()) + "s"
		if r == "networkpolicys" {
			r = "networkpolicies"
		}
		gv, err := schema.ParseGroupVersion(u.GetAPIVersion())
		s.must(err)
		is, err := s.objects.Resource(gv.WithResource(r)).Namespace(s.ns).Apply(ctx, u.GetName(), u, metav1.ApplyOptions{FieldManager: v1alpha1.FieldManager})
		if err != nil {
			s.Fatalf("%s %s: %v", u.GetKind(), u.GetName(), err)
		}
		versions[u.GetKind()+" "+u.GetName()] = is.GetResourceVersion()
	}
	return versions
}

// restrict sets the pod security level of the namespace.
func (s *clusterEnv) restrict(ctx context.Context, level string) {
	s.Helper()
	patch := fmt.Sprintf(`{"metadata":{"labels":{"pod-security.kubernetes.io/enforce":%q}}}`, level)
	_, err := s.admin.CoreV1().Namespaces().Patch(ctx, s.ns, types.MergePatchType, []byte(patch), metav1.PatchOptions{})
	s.must(err)
}

// The API server accepts every shape of a group without changes. A second apply changes nothing.
// Its controllers create pods from it, without privileges. All objects are deleted with the group.
func TestServer(t *testing.T) {
	s := newClusterEnv(t)
	ctx := within(t)
	s.restrict(ctx, "restricted")
	settings := workload.Settings{Image: "registry.example/tailplaned:1", PullSecrets: []string{"pull"},
		EnvoyNamespaces: []string{"envoy-gateway-system"}, MonitoringNamespaces: []string{"monitoring"}, Version: "v1+dirty"}
	docs := map[string]string{
		"egress":  `{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleProxyGroup, metadata: {name: ` + strings.Repeat("e", 52) + `, namespace: %s}, spec: {type: egress, replicas: 3, drainTimeout: 10m, podLabels: {team: shop}}}`,
		"ingress": `{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleProxyGroup, metadata: {name: front, namespace: %s}, spec: {type: ingress}}`,
		"none":    `{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleProxyGroup, metadata: {name: none, namespace: %s}, spec: {type: egress, replicas: 0}}`,
	}
	for _, shape := range []string{"egress", "ingress", "none"} {
		g := s.group(ctx, docs[shape])
		plan := workload.Plan{Tailnet: "corp", CertDomains: []string{shape + ".tail8eff9.ts.net"}}
		for i := range 60 { // no two ports are adjacent, so each is a separate range: the maximum in a policy
			plan.Ports = append(plan.Ports, v1alpha1.MappedPort{Service: "shop.billing", Protocol: v1alpha1.TCP, MatchPort: int32(10000 + 2*i), TargetPort: 80})
		}
		o, err := workload.Render(g, settings, plan)
		s.must(err)
		all := allObjects(o)
		first := s.apply(ctx, all)
		s.until(ctx, "applied again, "+shape+" changes", func() (bool, string) { // a controller may write a status in between
			again := s.apply(ctx, all)
			for what, version := range again {
				if first[what] != version {
					was := first[what]
					first = again
					return false, what + " " + was + " " + version
				}
			}
			return true, ""
		})
		s.until(ctx, "pods of "+shape, func() (bool, string) {
			pods, err := s.admin.CoreV1().Pods(s.ns).List(ctx, metav1.ListOptions{LabelSelector: "app=" + string(g.UID)})
			s.must(err)
			return len(pods.Items) == int(workload.Replicas(g)), fmt.Sprint(len(pods.Items), " ", s.warnings(ctx))
		})
	}
	s.must(s.objects.Resource(groups).Namespace(s.ns).DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}))
	s.until(ctx, "objects without an owner", func() (bool, string) {
		left := []string{}
		for _, r := range []schema.GroupVersionResource{{Version: "v1", Resource: "secrets"}, {Version: "v1", Resource: "services"}, {Version: "v1", Resource: "configmaps"},
			{Group: "apps", Version: "v1", Resource: "statefulsets"}, {Group: "policy", Version: "v1", Resource: "poddisruptionbudgets"},
			{Group: "networking.k8s.io", Version: "v1", Resource: "networkpolicies"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "roles"},
			{Group: "rbac.authorization.k8s.io", Version: "v1", Resource: "rolebindings"}, {Version: "v1", Resource: "serviceaccounts"}} {
			list, err := s.objects.Resource(r).Namespace(s.ns).List(ctx, metav1.ListOptions{LabelSelector: v1alpha1.ManagedLabel + "=true"})
			s.must(err)
			for _, u := range list.Items {
				left = append(left, u.GetKind()+" "+u.GetName())
			}
		}
		return len(left) == 0, fmt.Sprint(left)
	})
}

// warnings returns the warnings of controllers about the namespace.
func (s *clusterEnv) warnings(ctx context.Context) (all []string) {
	events, err := s.admin.CoreV1().Events(s.ns).List(ctx, metav1.ListOptions{})
	if err != nil {
		return []string{err.Error()}
	}
	for _, e := range events.Items {
		if e.Type == corev1.EventTypeWarning {
			all = append(all, e.Message)
		}
	}
	return all
}

// clientFor returns a client with the ServiceAccount of a pod.
func (s *clusterEnv) clientFor(ctx context.Context, account string) *kubernetes.Clientset {
	s.Helper()
	kubeconfig, err := s.cluster.ServiceAccountKubeconfig(ctx, s.ns, account, s.TempDir())
	s.must(err)
	config, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	s.must(err)
	c, err := kubernetes.NewForConfig(config)
	s.must(err)
	return c
}

// rules returns the rights of a ServiceAccount in the namespace, according to the API server.
func (s *clusterEnv) rules(ctx context.Context, account string) (all []string) {
	s.Helper()
	review := &authorizationv1.SelfSubjectRulesReview{Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: s.ns}}
	review, err := s.clientFor(ctx, account).AuthorizationV1().SelfSubjectRulesReviews().Create(ctx, review, metav1.CreateOptions{})
	s.must(err)
	if review.Status.Incomplete {
		s.Fatalf("the rules of %s are not all: %s", account, review.Status.EvaluationError)
	}
	for _, r := range review.Status.ResourceRules {
		all = append(all, fmt.Sprint(strings.Join(r.Resources, ","), " ", strings.Join(r.ResourceNames, ","), ": ", strings.Join(r.Verbs, ",")))
	}
	slices.Sort(all)
	return all
}

// GTW-22: the API server allows a relay exactly the rights in section 6.3 of the contract. The
// relay's data in its state Secret remains when the group is applied again.
func TestRights(t *testing.T) {
	s := newClusterEnv(t)
	ctx := within(t)
	settings := workload.Settings{Image: "registry.example/tailplaned:1"}
	groupDoc := `{apiVersion: gateway.tailscale.com/v1alpha1, kind: TailscaleProxyGroup, metadata: {name: %s, namespace: %%s}, spec: {type: egress, replicas: 2}}`
	var rendered *workload.Objects
	for _, name := range []string{"theirs", "mine"} {
		o, err := workload.Render(s.group(ctx, fmt.Sprintf(groupDoc, name)), settings, workload.Plan{Tailnet: "corp"})
		s.must(err)
		s.apply(ctx, allObjects(o))
		rendered = o
	}
	everybody := s.rules(ctx, "default") // a ServiceAccount without any binding
	may := slices.DeleteFunc(s.rules(ctx, "mine"), func(r string) bool { return slices.Contains(everybody, r) })
	want := []string{"configmaps mine-egress-config: get,watch", "events : create,patch", "secrets mine-0,mine-0-config,mine-1,mine-1-config: get,update,patch"}
	if !slices.Equal(may, want) {
		t.Errorf("a relay may\n%s\nwant\n%s", strings.Join(may, "\n"), strings.Join(want, "\n"))
	}

	core := s.clientFor(ctx, "mine").CoreV1()
	patch := []byte(`{"data":{"device_id":"bjEyMw=="}}`)
	if _, err := core.Secrets(s.ns).Patch(ctx, "mine-0", types.MergePatchType, patch, metav1.PatchOptions{}); err != nil {
		t.Error(err)
	}
	w, err := core.ConfigMaps(s.ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=mine-egress-config"})
	s.must(err)
	w.Stop()
	for what, do := range map[string]func() error{
		"read another group's state": func() error { _, err := core.Secrets(s.ns).Get(ctx, "theirs-0", metav1.GetOptions{}); return err },
		"write another group's key": func() error {
			_, err := core.Secrets(s.ns).Patch(ctx, "theirs-0-config", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
		"list Secrets": func() error { _, err := core.Secrets(s.ns).List(ctx, metav1.ListOptions{}); return err },
		"watch another's ConfigMap": func() error {
			_, err := core.ConfigMaps(s.ns).Watch(ctx, metav1.ListOptions{FieldSelector: "metadata.name=theirs-egress-config"})
			return err
		},
		"make a Secret": func() error {
			_, err := core.Secrets(s.ns).Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{})
			return err
		},
		"delete its Secret": func() error { return core.Secrets(s.ns).Delete(ctx, "mine-0", metav1.DeleteOptions{}) },
		"write its ConfigMap": func() error {
			_, err := core.ConfigMaps(s.ns).Patch(ctx, "mine-egress-config", types.MergePatchType, patch, metav1.PatchOptions{})
			return err
		},
	} {
		if err := do(); !apierrors.IsForbidden(err) {
			t.Errorf("a relay may %s: %v", what, err)
		}
	}

	s.apply(ctx, rendered.Unchanged())
	state, err := s.admin.CoreV1().Secrets(s.ns).Get(ctx, "mine-0", metav1.GetOptions{})
	s.must(err)
	if string(state.Data["device_id"]) != "n123" {
		b, _ := json.Marshal(state.Data)
		t.Errorf("its group applied again, the state is %s", b)
	}
}
