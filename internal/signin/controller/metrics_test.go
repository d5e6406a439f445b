//go:build unix

package controller

import (
	"context"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
)

// The operator reports each end that no request caused once, with its cause. It does not report
// ends that the access server caused. A restart reports nothing again and counts the stored
// sign-ins.
func TestEndsAreReportedOnce(t *testing.T) {
	p := newEnv(t)
	var mu sync.Mutex
	ends, swept, readied := map[string][]EndedSignin{}, map[string]int{}, 0
	run := func() (*Controller, func()) {
		o := p.operator(p.operatorConfig)
		o.OnReady = func(ready ReadySignin) {
			mu.Lock()
			defer mu.Unlock()
			readied++
			if ready.Waited < 0 || len(ready.Roles) != 1 {
				t.Errorf("ready: %+v", ready)
			}
		}
		o.OnEnd = func(e EndedSignin) {
			mu.Lock()
			defer mu.Unlock()
			ends[e.Signin.Owner.Login] = append(ends[e.Signin.Owner.Login], e)
		}
		o.OnSweep = func(kind, _, name string) {
			mu.Lock()
			defer mu.Unlock()
			swept[kind+" "+name]++
		}
		return o, p.run("operator", o.Run, o.Synced)
	}
	_, stop := run()
	s, _ := p.open()
	owner := func(who string) signin.Owner { return p.owner(who+"@a.example", "laptop") }
	live := p.login(s, newSignin(owner("live"), "view", time.Hour))
	p.shorten(s, p.login(s, newSignin(owner("late"), "view", time.Hour)))
	out := p.login(s, newSignin(owner("out"), "view", time.Hour))
	deleted := p.login(s, newSignin(owner("deleted"), "view", time.Hour))
	robbed := p.login(s, newSignin(owner("robbed"), "view", time.Hour))
	unlisted := newSignin(owner("unlisted"), "cluster-admin", time.Hour)
	if _, err := s.Create(t.Context(), unlisted); err != nil {
		t.Fatal(err)
	}
	p.await(s, unlisted.Name, in(signin.Refused))
	if err := s.Delete(t.Context(), out); err != nil {
		t.Fatal(err)
	}
	for _, o := range []client.Object{
		&v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: deleted.Name}},
		&corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: robbed.Name}},
	} {
		if err := p.admin.Delete(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}
	orphan := &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "orphan-" + p.ns, Labels: map[string]string{
			v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.SigninNamespaceLabel: p.ns, v1alpha1.SigninUIDLabel: "0"}},
		RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
	}
	if err := p.admin.Create(t.Context(), orphan); err != nil {
		t.Fatal(err)
	}
	for _, name := range []string{out.Name, deleted.Name, robbed.Name} {
		p.await(s, name, gone)
	}
	p.until("the four ends", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(ends) >= 4
	})

	stop()
	again, stop := run() // it sweeps at the start
	p.until("the sweep", func() bool {
		mu.Lock()
		defer mu.Unlock()
		return len(swept) > 0
	})
	var phases []string
	all, ok := again.All()
	for _, x := range all {
		phases = append(phases, string(x.Phase))
	}
	slices.Sort(phases)
	if want := []string{"Expired", "Ready", "Refused"}; !ok || !slices.Equal(phases, want) {
		t.Errorf("after the restart there are %v (%v), want %v", phases, ok, want)
	}
	if err := s.Delete(t.Context(), live); err != nil {
		t.Fatal(err)
	}
	p.await(s, live.Name, gone)
	stop()

	want := map[string]signin.Cause{"late@a.example": signin.CauseExpired, "deleted@a.example": signin.CauseAdmin,
		"robbed@a.example": signin.CauseAdmin, "unlisted@a.example": signin.CauseRefused}
	for login, cause := range want {
		switch got := ends[login]; {
		case len(got) != 1:
			t.Errorf("len(got) = %v, want 1; login = %s", len(got), login)
		case got[0].Cause != cause:
			t.Errorf("got[0].Cause = %q, want %q; login = %s", got[0].Cause, cause, login)
		case got[0].Reason == "":
			t.Errorf("got[0].Reason is empty; login = %s, got = %+v, cause = %s", login, got, cause)
		}
		delete(ends, login)
	}
	if len(ends) > 0 {
		t.Errorf("the access server ended these, and counted them: %v", slices.Collect(maps.Keys(ends)))
	}
	if readied != 5 {
		t.Errorf("%d became ready, want 5", readied)
	}
	if n := swept["ClusterRoleBinding "+orphan.Name]; n != 1 || len(swept) != 1 {
		t.Errorf("swept %v", swept)
	}
}

// SGN-16: A starting operator reconciles every existing sign-in in any state and writes nothing.
func TestSGN16_RelistWritesNothing(t *testing.T) {
	const people = 200
	p := newEnv(t)
	there := p.cluster.Namespace(t)
	work := isWorking(t)
	stop := p.operate()
	s, _ := p.open()
	var names []string
	create := func(want signin.Signin) string {
		t.Helper()
		if _, err := s.Create(t.Context(), want); err != nil {
			t.Fatal(err)
		}
		names = append(names, want.Name)
		return want.Name
	}
	owner := func(who string) signin.Owner { return p.owner(who+"@a.example", "laptop") }
	for i := range people {
		var namespaces []string
		if i%2 == 1 {
			namespaces = []string{"not-there-" + p.ns, there}
		}
		create(newSignin(owner(fmt.Sprint("user-", i)), "view", time.Hour, namespaces...))
	}
	for _, name := range names {
		p.await(s, name, in(signin.Ready))
	}
	expired := create(newSignin(owner("expired"), "view", time.Second))
	refused := create(newSignin(owner("refused"), "cluster-admin", time.Hour))
	nowhere := create(newSignin(owner("nowhere"), "view", time.Hour, "not-there-"+p.ns))
	p.await(s, refused, in(signin.Refused))
	p.await(s, nowhere, in(signin.Refused))
	p.until("the expired one is taken down", func() bool {
		o := p.object(expired)
		return o.Status.Phase == v1alpha1.SigninPhase(signin.PhaseExpired) && len(o.Finalizers) == 0
	})
	held := p.object(create(newSignin(owner("held"), "view", time.Hour))) // by the finalizer of another controller
	p.await(s, held.Name, in(signin.Ready))
	patch := client.MergeFrom(held.DeepCopy())
	held = p.object(held.Name)
	held.Finalizers = append(held.Finalizers, "example.com/hold")
	if err := p.admin.Patch(t.Context(), held, patch); err != nil {
		t.Fatal(err)
	}
	if err := s.Delete(t.Context(), signin.Signin{Name: held.Name, UID: string(held.UID)}); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		let := client.RawPatch(types.MergePatchType, []byte(`{"metadata": {"finalizers": null}}`))
		if err := p.admin.Patch(context.WithoutCancel(t.Context()), held, let); err != nil {
			t.Error(err)
		}
	})
	p.until("the held one is ending", func() bool {
		return p.object(held.Name).Status.Phase == v1alpha1.SigninPhase(signin.PhaseEnding)
	})
	idle(p, work)
	stop()

	before := p.versions()
	if len(before) != len(names) {
		t.Fatalf("%d sign-ins, want %d", len(before), len(names))
	}
	var writes atomic.Int64 // including Events
	p.operatorConfig = rest.CopyConfig(p.operatorConfig)
	p.operatorConfig.Wrap(func(next http.RoundTripper) http.RoundTripper {
		return roundTripper(func(req *http.Request) (*http.Response, error) {
			if req.Method != http.MethodGet {
				writes.Add(1)
				t.Log(req.Method, req.URL.Path)
			}
			return next.RoundTrip(req)
		})
	})
	looked, work := reconcileCount(t), isWorking(t)
	stop = p.operate()
	p.until("all have been looked at", func() bool { return reconcileCount(t)-looked >= float64(len(names)) })
	idle(p, work)
	stop()
	if n := writes.Load(); n != 0 {
		t.Errorf("%d writes", n)
	}
	if after := p.versions(); !maps.Equal(before, after) {
		t.Error("stored versions differ")
	}
}

// reconcileCount returns how often operators of this process have reconciled a sign-in.
func reconcileCount(t *testing.T) float64 { return sum(t, "controller_runtime_reconcile_total") }

// isWorking returns how many sign-ins the operators of this process are reconciling or have queued.
// The queue of a stopped operator still counts.
func isWorking(t testing.TB) float64 {
	return sum(t, "workqueue_depth") + sum(t, "controller_runtime_active_workers")
}

// idle waits until the operator has at most the work that it had before the start.
func idle(p *env, before float64) {
	p.t.Helper()
	p.until("the operator is idle", func() bool {
		return isWorking(p.t) <= before
	})
}

// sum returns the sum of the samples of a metric in controller-runtime's registry.
func sum(t testing.TB, name string) (n float64) {
	t.Helper()
	families, err := ctrlmetrics.Registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			for _, m := range f.Metric {
				n += m.GetCounter().GetValue() + m.GetGauge().GetValue()
			}
		}
	}
	return n
}
