package fleet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/forgetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const fleetSettings = `fleet:
  clusterCIDRs: [10.96.0.0/12]
  apiServers: ["10.96.0.1:443"]
  cacheNamespaces: [cache]
  images: {runner: registry.invalid/runner:1, manager: registry.invalid/manager:1, job: registry.invalid/job:1}
health: 127.0.0.1:0
`

// An env runs the fleet's program with exactly its rights and under its admission policies, the plane, and fakes of
// GitHub, GitLab and ARC. The fake ARC has exactly the rights of its own chart.
type env struct {
	*attacktest.PlaneEnv
	github *forgetest.GitHubFake
	gitlab *forgetest.GitLabFake
	arc    *arctest.ARC
	fleet  *testenv.Process

	denied sync.Map // places for which GitHub answers ARC that its App is not installed

	runs   int
	logs   []string // log files of all its runs
	finish []func() error
}

var shared = testenv.Shared(newEnv, (*env).close)

// start returns the environment that these tests share. Each test has its own organisations and pools.
func start(t *testing.T) *env {
	t.Helper()
	y, err := shared()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if t.Failed() {
			out := y.fleet.Output()
			t.Logf("the end of the fleet's log:\n%s", out[max(0, len(out)-6000):])
			out = y.Plane.Output()
			t.Logf("the end of the plane's log:\n%s", out[max(0, len(out)-1500):])
		}
	})
	return y
}

func newEnv(ctx context.Context) (_ *env, err error) {
	y := &env{}
	defer func() {
		if err != nil {
			err = errors.Join(err, y.close())
		}
	}()
	s, err := attacktest.Run(ctx, testenv.Options{Policy: attacktest.Policy(attacktest.PlaneGrant("alice@example.com", attacktest.EverywhereRule), attacktest.PlaneGrant("bob@example.com", `{"role": "viewer", "orgs": ["nobody"]}`)),
		ClusterName: "fleet", NoAccess: true, Settings: map[string]string{"api.limits": testenv.NoLimits, "signin.roles": "[view]", "plane.roles": "[{login: pat@platform.example, userID: '" + tailnettest.UserID("pat@platform.example") + "', role: platform-admin}]", "plane.emailDomains": "[acme.dev]"}})
	if err != nil {
		return nil, err
	}
	y.PlaneEnv = &attacktest.PlaneEnv{Env: s}
	var stop func()
	y.github, stop = forgetest.OpenGitHub()
	y.finish = append(y.finish, func() error { stop(); return nil })
	var stopLab func()
	y.gitlab, stopLab = forgetest.OpenGitLab()
	y.finish = append(y.finish, func() error { stopLab(); return nil })
	if y.arc, err = arctest.New(arctest.Options{Cluster: s.Cluster, Namespace: "arc-systems", Version: "0.14.2", GitHub: arctest.At(y.github, y.refuses), Confined: true}); err != nil {
		return nil, err
	}
	if err := y.arc.Install(ctx); err != nil {
		return nil, err
	}
	working, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- y.arc.Run(working) }()
	y.finish = append(y.finish, func() error { cancel(); return <-ended })
	// RBAC allows these users everything, so only the admission policies refuse.
	const people = "{apiVersion: rbac.authorization.k8s.io/v1, kind: ClusterRoleBinding, metadata: {name: test-people}, roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}, subjects: [{kind: Group, apiGroup: rbac.authorization.k8s.io, name: \"test:people\"}]}"
	if err := errors.Join(s.FleetManifests(ctx), s.Cluster.Apply(ctx, []byte(people))); err != nil {
		return nil, err
	}
	for name, spec := range map[string]v1alpha1.RunnerForgeSpec{"github": {Type: v1alpha1.GitHub, URL: y.github.URL}, "gitlab": {Type: v1alpha1.GitLab, URL: y.gitlab.URL}} {
		if err := s.KubeClient.Create(ctx, &v1alpha1.RunnerForge{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}); err != nil {
			return nil, err
		}
	}
	if err := y.begin(ctx, fleetSettings); err != nil {
		return nil, err
	}
	return y, s.StartPlane(ctx)
}

// refuses returns GitHub's answer to ARC for a place.
func (y *env) refuses(place string, _ map[string][]byte) error {
	if _, denied := y.denied.Load(place); denied {
		return errors.New("401: the App is not installed")
	}
	return nil
}

func (y *env) close() (err error) {
	if y.fleet != nil {
		err = y.fleet.Stop(attacktest.Long)
	}
	for _, f := range slices.Backward(y.finish) {
		err = errors.Join(err, f())
	}
	if y.PlaneEnv != nil {
		err = errors.Join(err, y.Env.Close())
	}
	return err
}

// begin starts the fleet. Each run has its own folder, and so its own log.
func (y *env) begin(ctx context.Context, settings string, args ...string) (err error) {
	y.runs++
	dir := filepath.Join(y.Dir, fmt.Sprint("fleet-", y.runs))
	if y.fleet, err = testenv.StartFleet(ctx, dir, y.Cluster, attacktest.FleetNamespace, "tailplane-fleet", settings, append([]string{"--leader-elect=false", "--log-level=debug"}, args...)...); err == nil {
		y.logs = append(y.logs, y.fleet.Log)
	}
	return err
}

// without runs f while the fleet is stopped.
func (y *env) without(t *testing.T, f func()) {
	t.Helper()
	y.fleet.Kill()
	defer func() {
		if err := y.begin(context.WithoutCancel(t.Context()), fleetSettings); err != nil {
			t.Fatal(err)
		}
	}()
	f()
}

// somebody returns a client for a user to whom RBAC allows everything.
func (y *env) somebody(t *testing.T, name string, groups ...string) client.Client {
	t.Helper()
	config := y.Cluster.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: append([]string{"test:people", "system:authenticated"}, groups...)}
	config.WarningHandler = rest.NoWarnings{}
	return y.ClientFor(t, config)
}

// writer returns a client that acts as a GitOps tool of that name, which applies reviewed manifests.
func (y *env) writer(t *testing.T, name string) client.Client {
	t.Helper()
	return y.somebody(t, name, "system:masters")
}

func inNamespace(ns string) client.ListOption { return client.InNamespace(ns) }

func (y *env) must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// pool creates a pool until the test ends.
func (y *env) pool(t *testing.T, name, forge string, most int32, change ...func(*v1alpha1.RunnerPoolSpec)) {
	t.Helper()
	p := &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RunnerPoolSpec{Forge: forge, RunsOn: []string{"self-hosted", name}, Scaling: v1alpha1.PoolScaling{Max: most, Budget: 10 * most}}}
	for _, f := range change {
		f(&p.Spec)
	}
	y.must(t, y.KubeClient.Create(t.Context(), p))
	t.Cleanup(func() { y.drop(t, p) })
}

func (y *env) drop(t *testing.T, o client.Object) {
	t.Helper()
	if err := client.IgnoreNotFound(y.KubeClient.Delete(context.WithoutCancel(t.Context()), o)); err != nil {
		t.Error(err)
	}
}

// credential stores a credential for an organisation, in a Secret with its name.
func (y *env) credential(t *testing.T, org string, data map[string]string) {
	t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: attacktest.FleetNamespace, Name: org + "-credential", Labels: map[string]string{v1alpha1.OrgLabel: org}}, StringData: data}
	y.must(t, y.KubeClient.Create(t.Context(), s))
	t.Cleanup(func() { y.drop(t, s) })
}

type enrollment = func(*v1alpha1.RunnerEnrollmentSpec)

// apart gives an organisation a separate namespace.
func apart(e *v1alpha1.RunnerEnrollmentSpec) { e.Isolation = v1alpha1.IsolationNamespace }

// atGitHub enrolls an organisation of GitHub until the test ends. atGitLab does the same for a group of GitLab.
func (y *env) atGitHub(t *testing.T, org string, pools []string, change ...enrollment) {
	t.Helper()
	y.github.AddAccount(org, "")
	y.credential(t, org, map[string]string{"github_token": y.github.AddToken("admin:org", "repo")})
	y.enroll(t, org, "github", y.github.URL+"/"+org, pools, change...)
}

func (y *env) atGitLab(t *testing.T, org string, pools []string, change ...enrollment) (group int64) {
	t.Helper()
	group = y.gitlab.AddGroup(org)
	y.credential(t, org, map[string]string{"access_token": y.gitlab.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Owns: []int64{group}})})
	y.enroll(t, org, "gitlab", y.gitlab.URL+"/"+org, pools, change...)
	return group
}

func (y *env) enroll(t *testing.T, org, forge, at string, pools []string, change ...enrollment) {
	t.Helper()
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: org}, Spec: v1alpha1.RunnerEnrollmentSpec{Forge: forge, ConfigURL: at, Isolation: v1alpha1.IsolationNone,
		Credentials: v1alpha1.EnrollmentCredentials{SecretName: org + "-credential"}}}
	for _, name := range pools {
		e.Spec.Pools = append(e.Spec.Pools, v1alpha1.EnrolledPool{Name: name, Type: v1alpha1.UseShared})
	}
	for _, f := range change {
		f(&e.Spec)
	}
	y.must(t, y.KubeClient.Create(t.Context(), e))
	t.Cleanup(func() {
		y.leave(t, org)
		if !attacktest.Within(attacktest.Long, func() bool { y.managersRun(t); return y.gone(t, org) }) {
			t.Errorf("%s does not go", org)
		}
	})
}

// leave deletes an enrollment. It confirms the deletion, so the limit on mass deletion does not apply.
func (y *env) leave(t *testing.T, org string) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: org}}
	confirm := client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"tailplane.dev/offboard":"confirm"}}}`))
	if err := client.IgnoreNotFound(errors.Join(y.KubeClient.Patch(ctx, e, confirm), y.KubeClient.Delete(ctx, e))); err != nil && !apierrors.IsNotFound(y.KubeClient.Get(ctx, client.ObjectKeyFromObject(e), e)) {
		t.Error(err)
	}
}

func (y *env) there(t *testing.T, o client.Object) bool {
	t.Helper()
	err := y.KubeClient.Get(context.WithoutCancel(t.Context()), client.ObjectKeyFromObject(o), o)
	if client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
	return err == nil
}

func (y *env) gone(t *testing.T, org string) bool {
	t.Helper()
	return !y.there(t, &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: org}})
}

func (y *env) secret(t *testing.T, namespace, name string) (s *corev1.Secret) {
	t.Helper()
	s = &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name}}
	if !y.there(t, s) {
		return nil
	}
	return s
}

// get reads an enrollment that must exist.
func (y *env) get(t *testing.T, org string) *v1alpha1.RunnerEnrollment {
	t.Helper()
	e := &v1alpha1.RunnerEnrollment{}
	y.must(t, y.KubeClient.Get(t.Context(), client.ObjectKey{Name: org}, e))
	return e
}

// comes waits until an enrollment satisfies ok, while runner managers run.
func (y *env) comes(t *testing.T, org, what string, ok func(*v1alpha1.RunnerEnrollment) bool) (e *v1alpha1.RunnerEnrollment) {
	t.Helper()
	if !attacktest.Within(attacktest.Long, func() bool {
		y.managersRun(t)
		e = y.get(t, org)
		return e.Status.ObservedGeneration == e.Generation && ok(e)
	}) {
		b, _ := json.MarshalIndent(e.Status, "", " ")
		t.Fatalf("%s: not within %v: %s: %s", org, attacktest.Long, what, b)
	}
	return e
}

// active waits until all pools of an enrollment take jobs.
func (y *env) active(t *testing.T, org string) *v1alpha1.RunnerEnrollment {
	t.Helper()
	return y.comes(t, org, "it is active", func(e *v1alpha1.RunnerEnrollment) bool {
		return e.Status.Phase == v1alpha1.PhaseActive && len(e.Status.Pools) >= len(e.Spec.Pools) && !slices.ContainsFunc(e.Status.Pools, func(p v1alpha1.EnrolledPoolStatus) bool {
			return p.EffectiveMax == nil || *p.EffectiveMax == 0
		})
	})
}

// says waits until a condition has a status and a reason.
func (y *env) says(t *testing.T, org, kind, want string) *v1alpha1.RunnerEnrollment {
	t.Helper()
	return y.comes(t, org, kind+" "+want, func(e *v1alpha1.RunnerEnrollment) bool {
		c := meta.FindStatusCondition(e.Status.Conditions, kind)
		return c != nil && strings.HasPrefix(string(c.Status)+"/"+c.Reason, want)
	})
}

// look makes the fleet reconcile an organisation at once.
func (y *env) look(t *testing.T, org string) {
	t.Helper()
	y.must(t, y.KubeClient.Patch(t.Context(), y.get(t, org), client.RawPatch("application/merge-patch+json", fmt.Appendf(nil, `{"metadata":{"annotations":{"test/look":"%d"}}}`, time.Now().UnixNano()))))
}

// managersRun acts as the kubelets and the runner managers: it marks their pods ready, and each manager connects to
// GitLab with the token in its configuration.
func (y *env) managersRun(t *testing.T) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var pods corev1.PodList
	if err := y.KubeClient.List(ctx, &pods, client.MatchingLabels{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, "app.kubernetes.io/component": "runner-manager"}); err != nil {
		t.Error(err)
	}
	for i := range pods.Items {
		pod := &pods.Items[i]
		s := y.secret(t, pod.Namespace, pod.Labels["app.kubernetes.io/instance"]+"-runner-token")
		if pod.DeletionTimestamp != nil || s == nil {
			continue
		}
		y.gitlab.Contact(string(s.Data["token"]), "s_"+pod.Name)
		if pod.Status.Phase != corev1.PodRunning {
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			if err := y.KubeClient.Status().Update(ctx, pod); err != nil && !apierrors.IsConflict(err) && !apierrors.IsNotFound(err) {
				t.Error(err)
			}
		}
	}
}

// runnerOf returns GitLab's runner for a workload, and false if there is none.
func (y *env) runnerOf(workload string) (r forgetest.GitLabRunner, ok bool) {
	all := y.gitlab.Runners()
	i := slices.IndexFunc(all, func(r forgetest.GitLabRunner) bool { return strings.Contains(r.Note, " "+workload+" ") })
	if i < 0 {
		return r, false
	}
	return all[i], true
}

// setOf returns an AutoscalingRunnerSet, or nil if it does not exist.
func (y *env) setOf(t *testing.T, namespace, name string) *unstructured.Unstructured {
	t.Helper()
	u := &unstructured.Unstructured{}
	u.SetGroupVersionKind(schema.GroupVersionKind{Group: "actions.github.com", Version: "v1alpha1", Kind: "AutoscalingRunnerSet"})
	u.SetNamespace(namespace)
	u.SetName(name)
	if !y.there(t, u) {
		return nil
	}
	return u
}

// maxOf returns the maximum number of runners of a set, or -1 if the set does not exist.
func (y *env) maxOf(t *testing.T, namespace, name string) int64 {
	t.Helper()
	u := y.setOf(t, namespace, name)
	if u == nil {
		return -1
	}
	n, _, _ := unstructured.NestedInt64(u.Object, "spec", "maxRunners")
	return n
}

// maxima returns the maximum number of runners of each set in a namespace, by name. It sends one request for any
// number of sets.
func (y *env) maxima(t *testing.T, namespace string) map[string]int64 {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(schema.GroupVersionKind{Group: "actions.github.com", Version: "v1alpha1", Kind: "AutoscalingRunnerSetList"})
	y.must(t, y.KubeClient.List(t.Context(), list, client.InNamespace(namespace)))
	out := map[string]int64{}
	for _, o := range list.Items {
		out[o.GetName()], _, _ = unstructured.NestedInt64(o.Object, "spec", "maxRunners")
	}
	return out
}

// listed returns the names of the objects of a kind with an organisation's label. It skips namespaces that are being
// deleted.
func (y *env) listed(t *testing.T, kind schema.GroupVersionKind, org string) (names []string) {
	t.Helper()
	list := &unstructured.UnstructuredList{}
	kind.Kind += "List"
	list.SetGroupVersionKind(kind)
	y.must(t, y.KubeClient.List(t.Context(), list, client.MatchingLabels{v1alpha1.OrgLabel: org}))
	for _, o := range list.Items {
		if o.GetDeletionTimestamp() == nil {
			names = append(names, o.GetKind()+" "+o.GetNamespace()+"/"+o.GetName())
		}
	}
	return names
}

// things lists the kinds that the fleet can create for an organisation.
var things = []schema.GroupVersionKind{{Version: "v1", Kind: "Namespace"}, {Version: "v1", Kind: "Secret"}, {Version: "v1", Kind: "ServiceAccount"}, {Version: "v1", Kind: "ConfigMap"}, {Version: "v1", Kind: "Pod"},
	{Group: "apps", Version: "v1", Kind: "Deployment"}, {Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicy"}, {Group: "rbac.authorization.k8s.io", Version: "v1", Kind: "RoleBinding"},
	{Group: "actions.github.com", Version: "v1alpha1", Kind: "AutoscalingRunnerSet"}}

// hold creates a hold in the name of a person until the test ends.
func (y *env) hold(t *testing.T, name, by string, spec v1alpha1.RunnerHoldSpec) *v1alpha1.RunnerHold {
	t.Helper()
	spec.Reason, spec.RequestedBy = "a test", by
	h := &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: spec}
	y.must(t, y.somebody(t, by).Create(t.Context(), h))
	t.Cleanup(func() { y.drop(t, h) })
	return h
}

// applied returns the status of a hold and whether its Applied condition is true.
func (y *env) applied(t *testing.T, name string) (s v1alpha1.RunnerHoldStatus, is bool) {
	t.Helper()
	h := &v1alpha1.RunnerHold{}
	y.must(t, y.KubeClient.Get(t.Context(), client.ObjectKey{Name: name}, h))
	return h.Status, meta.IsStatusConditionTrue(h.Status.Conditions, "Applied")
}

// shown returns a pool of an organisation as the plane shows it.
func (y *env) shown(t *testing.T, p *testenv.Person, forge, org, pool string) (shown plane.Pool, a attacktest.PlaneReply) {
	t.Helper()
	for a.Status == 0 || a.Status == http.StatusTooManyRequests {
		a = y.Request(t, p, http.MethodGet, "/api/v1/pools/"+forge+"/"+org+"/"+pool, "")
		<-time.After(50 * time.Millisecond) // the interval of a person who refreshes
	}
	if a.Status == http.StatusOK {
		if err := json.Unmarshal(a.Data, &shown); err != nil {
			t.Fatal(err)
		}
	}
	return shown, a
}

// told returns the fleet's writes to the API server since the mark, without dry runs and reviews.
func (y *env) told(t *testing.T, m attacktest.LogMark) []attacktest.KubeRequest {
	t.Helper()
	return slices.DeleteFunc(m.Writes(t, attacktest.FleetAccount), func(k attacktest.KubeRequest) bool {
		return strings.Contains(k.RequestURI, "dryRun=") || strings.HasSuffix(k.ObjectRef.Resource, "reviews")
	})
}

// output returns all output of the fleet, from all its runs.
func (y *env) output(t *testing.T) string {
	t.Helper()
	var all strings.Builder
	for _, path := range y.logs {
		b, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		all.Write(b)
	}
	return all.String()
}

// policies returns the network policies of a namespace.
func (y *env) policies(t *testing.T, namespace string) []networkingv1.NetworkPolicy {
	t.Helper()
	list, err := y.Clientset.NetworkingV1().NetworkPolicies(namespace).List(t.Context(), metav1.ListOptions{})
	y.must(t, err)
	return list.Items
}
