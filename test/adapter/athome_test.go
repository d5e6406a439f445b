package adapter

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/kubernetes/scheme"
	typedcore "k8s.io/client-go/kubernetes/typed/core/v1"
	"k8s.io/client-go/tools/events"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/client-go/tools/record"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// ADP-14: two client-go candidates elect one leader with a Lease of the home cluster, even in a namespace that
// belongs to another cluster. When the first candidate releases the Lease, the other takes over.
func TestSeveral_LeaderElection(t *testing.T) {
	s := three(t)
	for _, namespace := range []string{"shop", "production"} {
		t.Run(namespace, func(t *testing.T) {
			var mu sync.Mutex
			var leaders []string
			led := func() []string {
				mu.Lock()
				defer mu.Unlock()
				return slices.Clone(leaders)
			}
			// stand starts a candidate. leave makes it release the Lease and waits until it has done so.
			stand := func(name string) (leave func()) {
				ctx, cancel := context.WithCancel(t.Context())
				e, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
					Lock: &resourcelock.LeaseLock{LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: "elected"},
						Client: s.client(t).CoordinationV1(), LockConfig: resourcelock.ResourceLockConfig{Identity: name}},
					LeaseDuration: time.Minute, RenewDeadline: 50 * time.Second, RetryPeriod: 100 * time.Millisecond, ReleaseOnCancel: true,
					Callbacks: leaderelection.LeaderCallbacks{
						OnStartedLeading: func(context.Context) {
							mu.Lock()
							defer mu.Unlock()
							leaders = append(leaders, name)
						},
						OnStoppedLeading: func() {},
					},
				})
				if err != nil {
					t.Fatal(err)
				}
				done := make(chan struct{})
				go func() { defer close(done); e.Run(ctx) }()
				return func() { cancel(); <-done }
			}
			first := stand("first")
			defer first()
			eventually(t, "the first leads", func() bool { return len(led()) == 1 })
			second := stand("second")
			defer second()
			lease := func() *coordinationv1.Lease {
				t.Helper()
				l, err := s.admin["here"].CoordinationV1().Leases(namespace).Get(t.Context(), "elected", metav1.GetOptions{})
				if err != nil {
					t.Fatal(err)
				}
				return l
			}
			at := lease()
			eventually(t, "the lease is renewed", func() bool { return lease().ResourceVersion != at.ResourceVersion })
			if l := lease(); *l.Spec.HolderIdentity != "first" || len(led()) != 1 {
				t.Errorf("%s holds the lease, and %v were leaders", *l.Spec.HolderIdentity, led())
			}
			first()
			eventually(t, "the second leads", func() bool { return slices.Equal(led(), []string{"first", "second"}) })
			for _, cluster := range []string{"east", "west"} {
				if _, err := s.admin[cluster].CoordinationV1().Leases(namespace).Get(t.Context(), "elected", metav1.GetOptions{}); !apierrors.IsNotFound(err) {
					t.Errorf("in %s: %v", cluster, err)
				}
			}
		})
	}
}

// ADP-14: where events are spread, an Event is created in the cluster of its object. It is also found and counted up
// there.
func TestSeveral_EventsFollow(t *testing.T) {
	three := three(t)
	three.clean(t)
	s := three.beside(t, severalConfig+`- name: events
  match: {apiGroups: ["", events.k8s.io], resources: [events], namespaces: [shop]}
  target: {spread: {members: [east, west], strategy: hash}}
`)
	k := s.client(t)
	objects := map[string]*corev1.ConfigMap{}
	for cluster, tier := range map[string]string{"west": "gold", "east": "iron"} {
		var err error
		labels := map[string]string{"tier": tier, "mca.tailplane.dev/cluster": cluster}
		if objects[cluster], err = k.CoreV1().ConfigMaps("shop").Create(t.Context(), configMap("shop", "told-of-"+cluster, labels), metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	old := record.NewBroadcaster(record.WithContext(t.Context()))
	old.StartRecordingToSink(&typedcore.EventSinkImpl{Interface: k.CoreV1().Events("")})
	defer old.Shutdown()
	recorder := old.NewRecorder(scheme.Scheme, corev1.EventSource{Component: "old"})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	current := events.NewEventBroadcasterAdapterWithContext(ctx, k)
	current.StartRecordingToSink(ctx.Done())
	defer current.Shutdown()
	regarding := current.NewRecorder("new")
	for _, cm := range objects {
		for range 2 { // the second one increases the count
			recorder.Event(cm, corev1.EventTypeNormal, "Old", "told in the old way")
		}
		regarding.Eventf(cm, nil, corev1.EventTypeNormal, "New", "Telling", "told in the new way")
	}
	in := func(cluster string) string {
		l, err := s.admin[cluster].CoreV1().Events("shop").List(t.Context(), metav1.ListOptions{FieldSelector: "involvedObject.kind=ConfigMap"})
		if err != nil {
			t.Fatal(err)
		}
		var all []string
		for _, e := range l.Items {
			all = append(all, fmt.Sprintf("%s %s %d", e.Reason, e.InvolvedObject.Name, e.Count))
		}
		slices.Sort(all)
		return strings.Join(all, ", ")
	}
	for cluster := range objects {
		want := fmt.Sprintf("New told-of-%s 0, Old told-of-%s 2", cluster, cluster)
		last := ""
		for end := time.Now().Add(limit); ; time.Sleep(20 * time.Millisecond) {
			if last = in(cluster); last == want {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%s has the events %q, want %q", cluster, last, want)
			}
		}
		if out := kubectl(t, s.adapter, "-n", "shop", "describe", "cm", "told-of-"+cluster); !strings.Contains(out, "told in the old way") {
			t.Errorf("kubectl describe shows no event:\n%s", out)
		}
	}
	if in("here") != "" {
		t.Errorf("here has %q", in("here"))
	}
}

// rights are the rights of an account in one cluster: verbs on ConfigMaps, by namespace.
type rights map[string][]string

// reviewed creates an account with these rights and returns its token.
func reviewed(t *testing.T, c *kubetest.Cluster, admin *kubernetes.Clientset, name string, may rights) string {
	t.Helper()
	token, err := account(t.Context(), c, "default", name, "")
	if err != nil {
		t.Fatal(err)
	}
	for namespace, verbs := range may {
		if _, err := admin.RbacV1().Roles(namespace).Create(t.Context(), &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Name: name},
			Rules: []rbacv1.PolicyRule{{APIGroups: []string{""}, Resources: []string{"configmaps"}, Verbs: verbs}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		if _, err := admin.RbacV1().RoleBindings(namespace).Create(t.Context(), &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: name}}}, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
	}
	return token
}

// ADP-14: an access review through the adapter predicts the result of the request. It is the answer of the cluster
// that would serve the request, or of all clusters if several would.
func TestSeveral_Reviews(t *testing.T) {
	three := three(t)
	may := map[string]rights{
		"here": {"default": {"get", "list"}, "shop": {"*"}, "production": {"*"}},
		"east": {"shop": {"get", "list", "create", "delete"}, "production": {"get"}},
		"west": {"shop": {"get", "list"}, "production": {"*"}, "default": {"*"}},
	}
	own := *three
	own.options.Secrets = maps.Clone(three.options.Secrets)
	itself := map[string]*kubernetes.Clientset{} // the account at each cluster, without the adapter
	for cluster, rights := range may {
		token := reviewed(t, three.clusters[cluster], three.admin[cluster], "reviewed", rights)
		k, err := kubernetes.NewForConfig(three.clusters[cluster].TokenConfig(token))
		if err != nil {
			t.Fatal(err)
		}
		itself[cluster] = k
		if cluster == "here" {
			own.options.Token = token
			continue
		}
		own.options.Secrets[cluster] = maps.Clone(three.options.Secrets[cluster])
		own.options.Secrets[cluster]["token"] = token
	}
	s := own.beside(t, severalConfig)
	k := s.client(t)
	review := func(k *kubernetes.Clientset, verb, namespace string) bool {
		t.Helper()
		r, err := k.AuthorizationV1().SelfSubjectAccessReviews().Create(t.Context(), &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Verb: verb, Resource: "configmaps", Namespace: namespace}}}, metav1.CreateOptions{})
		if err != nil {
			t.Fatalf("review of %s in %s: %v", verb, namespace, err)
		}
		return r.Status.Allowed
	}
	served := map[string][]string{"default": {"here"}, "production": {"east"}, "shop": {"east", "west"}}
	// The API server's RBAC cache needs a moment.
	for cluster, rights := range may {
		for namespace, verbs := range rights {
			eventually(t, "the rights are known", func() bool { return review(itself[cluster], strings.Replace(verbs[0], "*", "get", 1), namespace) })
		}
	}
	attempts := map[string]func(namespace string) error{
		"get": func(ns string) error {
			_, err := k.CoreV1().ConfigMaps(ns).Get(t.Context(), "not-there", metav1.GetOptions{})
			return err
		},
		"list": func(ns string) error {
			_, err := k.CoreV1().ConfigMaps(ns).List(t.Context(), metav1.ListOptions{Limit: 1})
			return err
		},
		"delete": func(ns string) error {
			return k.CoreV1().ConfigMaps(ns).Delete(t.Context(), "kube-root-ca.crt", metav1.DeleteOptions{DryRun: []string{metav1.DryRunAll}})
		},
		"create": func(ns string) error {
			var err error
			for i := range 16 { // their names decide the cluster
				if _, each := k.CoreV1().ConfigMaps(ns).Create(t.Context(), configMap(ns, fmt.Sprint("dry-", i), nil), metav1.CreateOptions{DryRun: []string{metav1.DryRunAll}}); each != nil {
					err = each
				}
			}
			return err
		},
	}
	differ := 0
	for namespace, clusters := range served {
		for verb, do := range attempts {
			says, truth := review(k, verb, namespace), true
			for _, cluster := range clusters {
				truth = truth && review(itself[cluster], verb, namespace)
			}
			if home := review(itself["here"], verb, namespace); home != truth {
				differ++
			}
			if says != truth {
				t.Errorf("%s in %s: the adapter answers %v, want %v", verb, namespace, says, truth)
			}
			if namespace == "shop" && verb == "delete" {
				continue // the cluster of the object decides; with several copies no cluster does
			}
			if err := do(namespace); apierrors.IsForbidden(err) == says {
				t.Errorf("%s in %s: allowed %v, and then: %v", verb, namespace, says, err)
			}
		}
	}
	if differ < 4 {
		t.Errorf("home would answer differently in only %d cases, so this proves nothing", differ)
	}
	// kubectl sends the same reviews.
	for namespace, want := range map[string]string{"default": "no", "production": "no", "shop": "no"} {
		if out, errs, _ := try(t, s.adapter, "auth", "can-i", "create", "configmaps", "-n", namespace); strings.TrimSpace(out) != want {
			t.Errorf("kubectl auth can-i create in %s: %s%s", namespace, out, errs)
		}
	}
	rules, err := k.AuthorizationV1().SelfSubjectRulesReviews().Create(t.Context(), &authorizationv1.SelfSubjectRulesReview{
		Spec: authorizationv1.SelfSubjectRulesReviewSpec{Namespace: "production"}}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
	verbs := ""
	for _, r := range rules.Status.ResourceRules {
		if slices.Equal(r.Resources, []string{"configmaps"}) {
			verbs += strings.Join(r.Verbs, " ")
		}
	}
	if verbs != "get" {
		t.Errorf("the rules of production are %q, want those of east", verbs)
	}
}
