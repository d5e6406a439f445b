//go:build unix

package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	clientgoscheme "k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/forgetest"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "gitlab-runner" { // see machine
		os.Exit(asRunner())
	}
	ctrllog.SetLogger(logr.Discard()) // components without their own logger
	os.Exit(m.Run())
}

// deadline is the maximum wait for a condition on a loaded machine.
const deadline = 2 * time.Minute

// An env is a test environment of the fleet: controllers, an ARC, a GitHub and a GitLab.
// Enrollments are cluster-scoped, so there is one environment at a time.
type env struct {
	t           *testing.T
	cluster     *kubetest.Cluster
	admin       client.Client
	ns          string // the fleet's namespace
	shared      string
	arcNS       string
	github      *forgetest.GitHubFake
	gitlab      *forgetest.GitLabFake
	arc         *arctest.ARC
	log         kubetest.Log
	clockOffset atomic.Int64 // offset of the clock, in nanoseconds
	change      func(*Controllers)
	config      *rest.Config // of the controllers; nil: the admin's

	fleet *Controllers
	wire  *connection // of the current controllers
	stop  func()
}

func (p *env) now() time.Time { return time.Now().Add(time.Duration(p.clockOffset.Load())) }

// newEnv returns an environment with an ARC of that version, or without ARC for "".
func newEnv(t *testing.T, version string) *env {
	t.Helper()
	p := &env{t: t, cluster: kubetest.Start(t), stop: func() {}}
	p.must(p.cluster.ApplyFiles(t.Context(), "../../../deploy/crds/tailplane.dev_*.yaml"))
	for _, name := range []string{isolation.JobPriority, isolation.ManagerPriority} { // part of the chart
		p.must(p.cluster.Apply(t.Context(), []byte("apiVersion: scheduling.k8s.io/v1\nkind: PriorityClass\nmetadata: {name: "+name+"}\nvalue: 100\n")))
	}
	scheme := runtime.NewScheme()
	p.must(errors.Join(v1alpha1.AddToScheme(scheme), clientgoscheme.AddToScheme(scheme)))
	var err error
	p.admin, err = client.New(kube.Unthrottled(p.cluster.AdminConfig()), client.Options{Scheme: scheme})
	p.must(err)
	p.ns, p.arcNS = p.cluster.Namespace(t), p.cluster.Namespace(t)
	p.shared = p.ns + "-runners"
	p.github, p.gitlab = forgetest.NewGitHub(t), forgetest.NewGitLab(t)
	p.github.Clock(p.now)
	p.gitlab.Clock(p.now)
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			p.logObjects()
		}
		p.deleteObjects()
		if t.Failed() {
			t.Logf("the fleet's log:\n%s", p.log.Tail())
		}
	})
	if version != "" {
		p.installARC(version, false)
	}
	p.must(p.admin.Create(t.Context(), &v1alpha1.RunnerForge{ObjectMeta: metav1.ObjectMeta{Name: "github"}, Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitHub, URL: p.github.URL}}))
	p.must(p.admin.Create(t.Context(), &v1alpha1.RunnerForge{ObjectMeta: metav1.ObjectMeta{Name: "gitlab"}, Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitLab, URL: p.gitlab.URL}}))
	return p
}

// newGitLabEnv returns an environment in which the GitLab group omega uses the pool docker and takes jobs.
func newGitLabEnv(t *testing.T, change ...func(*v1alpha1.RunnerEnrollment)) *env {
	t.Helper()
	p := newEnv(t, "")
	p.pool("docker", "gitlab", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.enrollGitLab("omega", []string{"docker"}, change...)
	p.start()
	p.waitActive("omega")
	p.waitFor("it takes jobs", func() bool { return !p.gitlab.Runners()[0].Paused })
	return p
}

// newGitHubEnv returns an environment in which the GitHub organisation acme uses the pool nix and is
// active.
func newGitHubEnv(t *testing.T) *env {
	t.Helper()
	p := newEnv(t, "0.14.2")
	p.pool("nix", "github", v1alpha1.PoolScaling{Max: 3, Budget: 20})
	p.enrollGitHub("acme", []string{"nix"})
	p.start()
	p.waitPhase("acme", v1alpha1.PhaseActive)
	return p
}

func (p *env) installARC(version string, eventual bool) {
	p.t.Helper()
	p.arc = arctest.Start(p.t, arctest.Options{Cluster: p.cluster, Namespace: p.arcNS, Version: version, Eventual: eventual, Metrics: true, GitHub: arctest.At(p.github, nil)})
}

// logObjects logs the state of all objects.
func (p *env) logObjects() {
	ctx := context.WithoutCancel(p.t.Context())
	var enrollments v1alpha1.RunnerEnrollmentList
	var deployments appsv1.DeploymentList
	if err := errors.Join(p.admin.List(ctx, &enrollments), p.admin.List(ctx, &deployments, client.InNamespace(p.shared))); err != nil {
		p.t.Error(err)
	}
	for _, e := range enrollments.Items {
		b, _ := json.MarshalIndent(e.Status, "", " ")
		p.t.Logf("%s: annotations %v, status %s", e.Name, e.Annotations, b)
	}
	for _, d := range deployments.Items {
		p.t.Logf("Deployment %s: %d replicas, %+v", d.Name, *d.Spec.Replicas, d.Status)
	}
	for _, r := range p.gitlab.Runners() {
		r.Token = ""
		p.t.Logf("runner at GitLab: %+v", r)
	}
}

// deleteObjects removes all objects by force, so that they do not affect the next environment.
func (p *env) deleteObjects() {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), deadline)
	defer cancel()
	drop := func(list client.ObjectList) {
		if err := p.admin.List(ctx, list); err != nil && !meta.IsNoMatchError(err) {
			p.t.Error(err)
		}
		if err := meta.EachListItem(list, func(o runtime.Object) error {
			x := o.(client.Object)
			err := client.IgnoreNotFound(p.admin.Delete(ctx, x))
			if len(x.GetFinalizers()) > 0 {
				err = errors.Join(err, client.IgnoreNotFound(p.admin.Patch(ctx, x, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`)))))
			}
			return err
		}); err != nil {
			p.t.Error(err)
		}
	}
	for _, list := range []client.ObjectList{&v1alpha1.RunnerEnrollmentList{}, &v1alpha1.RunnerHoldList{}, &v1alpha1.RunnerPoolList{}, &v1alpha1.RunnerForgeList{}} {
		drop(list)
	}
	if p.arc != nil {
		for _, kind := range []string{arc.SetKind, arc.ListenerKind, arc.RunnerSetKind, arc.RunnerKind} {
			drop(newARCList(kind))
		}
	}
	var namespaces corev1.NamespaceList
	if err := p.admin.List(ctx, &namespaces, client.MatchingLabels{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}); err != nil {
		p.t.Error(err)
	}
	for i := range namespaces.Items {
		if err := client.IgnoreNotFound(p.admin.Delete(ctx, &namespaces.Items[i])); err != nil {
			p.t.Error(err)
		}
	}
}

// start starts new controllers, without any state of earlier ones.
func (p *env) start() {
	p.t.Helper()
	p.wire = &connection{}
	config := p.config
	if config == nil {
		config = p.cluster.AdminConfig()
	}
	config = kube.Unthrottled(config)
	config.Wrap(p.wire.wrap)
	c := &Controllers{Config: config, ARCNamespace: p.arcNS, Isolation: isolation.Settings{Namespace: p.ns, Account: "fleet", Shared: p.shared,
		ClusterCIDRs: []netip.Prefix{netip.MustParsePrefix("10.96.0.0/12")}, APIServers: []netip.AddrPort{netip.MustParseAddrPort("10.96.0.1:443")},
		Images: isolation.Images{Runner: "image.invalid/runner:1", Docker: "image.invalid/docker:1", Manager: "image.invalid/manager:1", Job: "image.invalid/job:1"}},
		Log: slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{Level: slog.LevelDebug})), Now: p.now, PollInterval: 200 * time.Millisecond}
	if p.change != nil {
		p.change(c)
	}
	p.fleet = c
	p.stop = kubetest.Background(p.t, "the fleet", deadline, p.wire.dead.Load, c.Run)
}

func (p *env) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *env) waitFor(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(deadline); !ok(); time.Sleep(20 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("not within %v: %s", deadline, what)
		}
	}
}

// pool creates a pool.
func (p *env) pool(name, forge string, scaling v1alpha1.PoolScaling, change ...func(*v1alpha1.RunnerPool)) *v1alpha1.RunnerPool {
	p.t.Helper()
	o := &v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RunnerPoolSpec{Forge: forge, RunsOn: []string{"self-hosted", name}, Scaling: scaling}}
	for _, f := range change {
		f(o)
	}
	p.must(p.admin.Create(p.t.Context(), o))
	return o
}

// credential creates or changes the Secret of an organisation.
func (p *env) credential(org string, data map[string]string) {
	p.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: org + "-credential", Labels: map[string]string{v1alpha1.OrgLabel: org}}, StringData: data}
	err := p.admin.Create(p.t.Context(), s)
	if client.IgnoreAlreadyExists(err) == nil && err != nil {
		s.Data = map[string][]byte{}
		err = p.admin.Update(p.t.Context(), s)
	}
	p.must(err)
}

// enrollGitHub enrolls a GitHub organisation with a token.
func (p *env) enrollGitHub(org string, pools []string, change ...func(*v1alpha1.RunnerEnrollment)) *v1alpha1.RunnerEnrollment {
	p.t.Helper()
	p.github.AddAccount(org, "")
	p.credential(org, map[string]string{"github_token": p.github.AddToken("admin:org", "repo")})
	return p.enroll(org, "github", p.github.URL+"/"+org, pools, change...)
}

// enrollGitLab enrolls a GitLab group.
func (p *env) enrollGitLab(org string, pools []string, change ...func(*v1alpha1.RunnerEnrollment)) *v1alpha1.RunnerEnrollment {
	p.t.Helper()
	group := p.gitlab.AddGroup(org)
	p.credential(org, map[string]string{"access_token": p.gitlab.AddToken(forgetest.GitLabToken{Scopes: []string{"api"}, Owns: []int64{group}})})
	return p.enroll(org, "gitlab", p.gitlab.URL+"/"+org, pools, change...)
}

func (p *env) enroll(org, forge, at string, pools []string, change ...func(*v1alpha1.RunnerEnrollment)) *v1alpha1.RunnerEnrollment {
	p.t.Helper()
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: org}, Spec: v1alpha1.RunnerEnrollmentSpec{Forge: forge, ConfigURL: at, Isolation: v1alpha1.IsolationNone,
		Credentials: v1alpha1.EnrollmentCredentials{SecretName: org + "-credential"}}}
	for _, name := range pools {
		e.Spec.Pools = append(e.Spec.Pools, v1alpha1.EnrolledPool{Name: name, Type: v1alpha1.UseShared})
	}
	for _, f := range change {
		f(e)
	}
	p.must(p.admin.Create(p.t.Context(), e))
	return e
}

func (p *env) get(org string) *v1alpha1.RunnerEnrollment {
	p.t.Helper()
	e := &v1alpha1.RunnerEnrollment{}
	p.must(p.admin.Get(p.t.Context(), client.ObjectKey{Name: org}, e))
	return e
}

// exists reads o and reports whether it exists.
func (p *env) exists(namespace, name string, o client.Object) bool {
	p.t.Helper()
	err := p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: namespace, Name: name}, o)
	p.must(client.IgnoreNotFound(err))
	return err == nil
}

func (p *env) patch(o client.Object, patch string) {
	p.t.Helper()
	p.must(p.admin.Patch(p.t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

// waitPhase waits until an enrollment has a phase.
func (p *env) waitPhase(org string, want v1alpha1.EnrollmentPhase) *v1alpha1.RunnerEnrollment {
	p.t.Helper()
	return p.waitStatus(org, "phase "+string(want), func(e *v1alpha1.RunnerEnrollment) bool { return e.Status.Phase == want })
}

func (p *env) waitStatus(org, what string, ok func(*v1alpha1.RunnerEnrollment) bool) *v1alpha1.RunnerEnrollment {
	p.t.Helper()
	for end := time.Now().Add(deadline); ; time.Sleep(20 * time.Millisecond) {
		e := p.get(org)
		if e.Status.ObservedGeneration == e.Generation && ok(e) {
			return e
		}
		if time.Now().After(end) {
			b, _ := json.MarshalIndent(e.Status, "", " ")
			p.t.Fatalf("%s: not within %v: %s: %s", org, deadline, what, b)
		}
	}
}

// waitCondition waits until a condition has a status and a reason.
func (p *env) waitCondition(org, kind, want string) *v1alpha1.RunnerEnrollment {
	p.t.Helper()
	return p.waitStatus(org, kind+" "+want, func(e *v1alpha1.RunnerEnrollment) bool {
		c := meta.FindStatusCondition(e.Status.Conditions, kind)
		return c != nil && string(c.Status)+"/"+c.Reason == want
	})
}

// waitGone waits until an enrollment is gone, and returns the objects that are left of it.
func (p *env) waitGone(org string) (left []string) {
	p.t.Helper()
	p.waitFor(org+" is deleted", func() bool { return !p.exists("", org, &v1alpha1.RunnerEnrollment{}) })
	for _, kind := range []string{"SecretList", "PodList", "ServiceAccountList", "ConfigMapList"} {
		left = append(left, p.labelled(corev1.SchemeGroupVersion.WithKind(kind), org)...)
	}
	left = append(left, p.labelled(appsv1.SchemeGroupVersion.WithKind("DeploymentList"), org)...)
	left = append(left, p.labelled(groupVersionKind{Group: "networking.k8s.io", Version: "v1", Kind: "NetworkPolicyList"}, org)...)
	if p.arc != nil {
		left = append(left, p.labelled(arc.Kind(arc.SetKind+"List"), org)...)
	}
	return left
}

type groupVersionKind = schema.GroupVersionKind

func (p *env) labelled(kind groupVersionKind, org string) (names []string) {
	p.t.Helper()
	list := &unstructured.UnstructuredList{}
	list.SetGroupVersionKind(kind)
	p.must(p.admin.List(p.t.Context(), list, client.MatchingLabels{v1alpha1.OrgLabel: org}))
	for _, o := range list.Items {
		// Namespaces of an earlier environment may still be terminating.
		if ns := o.GetNamespace(); ns == "" && o.GetDeletionTimestamp() == nil || strings.HasPrefix(ns, p.ns) || ns == fleet.OrgNamespace(org) {
			names = append(names, o.GetKind()+" "+ns+"/"+o.GetName())
		}
	}
	return names
}

// set reads a scale set; nil if there is none.
func (p *env) set(namespace, name string) *arc.Set {
	p.t.Helper()
	u := newARCObject(arc.SetKind)
	if !p.exists(namespace, name, u) {
		return nil
	}
	s := arc.ReadSet(u)
	return &s
}

// hold creates a hold.
func (p *env) hold(name string, scope v1alpha1.HoldScope, mode v1alpha1.HoldMode) *v1alpha1.RunnerHold {
	p.t.Helper()
	h := &v1alpha1.RunnerHold{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RunnerHoldSpec{Scope: scope, Mode: mode, Reason: "a test", RequestedBy: "alice@example.com"}}
	p.must(p.admin.Create(p.t.Context(), h))
	return h
}

// waitHold waits until a condition of a hold has a status.
func (p *env) waitHold(name, kind string, want metav1.ConditionStatus) *v1alpha1.RunnerHold {
	p.t.Helper()
	h := &v1alpha1.RunnerHold{}
	for end := time.Now().Add(deadline); ; time.Sleep(20 * time.Millisecond) {
		p.must(p.admin.Get(p.t.Context(), client.ObjectKey{Name: name}, h))
		if c := meta.FindStatusCondition(h.Status.Conditions, kind); c != nil && c.Status == want {
			return h
		}
		if time.Now().After(end) {
			b, _ := json.MarshalIndent(h.Status, "", " ")
			p.t.Fatalf("hold %s: %s is not %s within %v: %s", name, kind, want, deadline, b)
		}
	}
}

// runManagers simulates kubelets and managers: it makes the pods of managers ready, and each
// manager contacts GitLab with the token of its configuration.
func (p *env) runManagers() {
	p.t.Helper()
	var pods corev1.PodList
	p.must(p.admin.List(p.t.Context(), &pods, client.MatchingLabels{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, "app.kubernetes.io/component": "runner-manager"}))
	for i := range pods.Items {
		pod := &pods.Items[i]
		s := &corev1.Secret{}
		if pod.DeletionTimestamp != nil || !p.exists(pod.Namespace, isolation.TokenName(pod.Labels["app.kubernetes.io/instance"]), s) {
			continue
		}
		p.gitlab.Contact(string(s.Data[tokenKey]), "s_"+pod.Name)
		if pod.Status.Phase != corev1.PodRunning {
			pod.Status.Phase = corev1.PodRunning
			pod.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}}
			p.must(ignoreStale(p.admin.Status().Update(p.t.Context(), pod)))
		}
	}
}

func ignoreStale(err error) error {
	if kube.IsStale(err) {
		return nil
	}
	return err
}

// waitActive waits until a GitLab group is active.
func (p *env) waitActive(org string) *v1alpha1.RunnerEnrollment {
	p.t.Helper()
	return p.waitStatus(org, "phase Active", func(e *v1alpha1.RunnerEnrollment) bool {
		p.runManagers()
		return e.Status.Phase == v1alpha1.PhaseActive
	})
}

// A connection is the connection of the controllers to the API server. It counts writes, and a test can
// cut it.
type connection struct {
	dead  atomic.Bool
	mu    sync.Mutex
	wrote []string
	read  map[string]int                // number of reads, by path
	cut   func(n int, write string) cut // nil: no cut
}

// A cut interrupts the wire before or after a write.
type cut int

const (
	notHere cut = iota
	before
	after
)

func (w *connection) wrap(next http.RoundTripper) http.RoundTripper {
	return &connectionTransport{w, next}
}

func (w *connection) writes() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.wrote)
}

// reads returns the number of reads of an object with that kind and name.
func (w *connection) reads(kind, name string) (n int) {
	w.mu.Lock()
	defer w.mu.Unlock()
	for path, times := range w.read {
		if strings.HasSuffix(path, "/"+kind+"/"+name) {
			n += times
		}
	}
	return n
}

type connectionTransport struct {
	*connection
	next http.RoundTripper
}

var errDead = errors.New("the fleet is dead")

func (w *connectionTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.dead.Load() {
		return nil, errDead
	}
	if r.Method == http.MethodGet && !r.URL.Query().Has("watch") {
		w.mu.Lock()
		if w.read == nil {
			w.read = map[string]int{}
		}
		w.read[r.URL.Path]++
		w.mu.Unlock()
	}
	if r.Method == http.MethodGet || strings.Contains(r.URL.Path, "/events") {
		return w.next.RoundTrip(r)
	}
	var body []byte
	if r.Body != nil {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			return nil, err
		}
		r.Body, body = io.NopCloser(bytes.NewReader(b)), b
	}
	w.mu.Lock()
	w.wrote = append(w.wrote, fmt.Sprintf("%s %s %.300q", r.Method, r.URL.Path, body))
	here := notHere
	if w.cut != nil {
		here = w.cut(len(w.wrote), w.wrote[len(w.wrote)-1])
	}
	w.mu.Unlock()
	switch here {
	case before:
		w.dead.Store(true)
		return nil, errDead
	case after:
		defer w.dead.Store(true)
	}
	return w.next.RoundTrip(r)
}

func deploymentOf(p *env, name string) *appsv1.Deployment {
	p.t.Helper()
	d := &appsv1.Deployment{}
	if !p.exists(p.shared, name, d) {
		p.t.Fatalf("there is no Deployment %s", name)
	}
	return d
}

func decimal(n int64) string { return strconv.FormatInt(n, 10) }

// installed accepts ARC's requests while an App is installed.
func (p *env) installed(installation int64) func(string, map[string][]byte) error {
	return func(_ string, secret map[string][]byte) error {
		ok := false
		p.github.ChangeInstallation(installation, func(i *forgetest.GitHubInstallation) { ok = i != nil })
		if !ok {
			return errors.New("401: the App is not installed")
		}
		return nil
	}
}

func keyOf(o client.Object) client.ObjectKey { return client.ObjectKeyFromObject(o) }
