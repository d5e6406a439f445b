//go:build unix

package controller

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"sync"
	"testing"
	"time"

	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// A requestModel is an environment in which requests, sign-ins, faults and restarts of the operator happen in any order.
// It alone writes requests, so it knows which sign-in may be bound.
type requestModel struct {
	*env
	rand  *rand.Rand
	storm *kubetest.Storm
	stop  func()
	log   []string

	asked   []*v1alpha1.TkaRequest // as created
	signins []*v1alpha1.TkaSignin  // as created

	mu      sync.Mutex
	allowed map[string]bool // UIDs of sign-ins that were the use of a request with enough approvals
	bound   []string        // UIDs of sign-ins for which a binding appeared
}

// REQ-34: in any order of asks, approvals, denials, uses, revocations, deletions, faults and restarts, a binding appears only
// for the use of a request with enough approvals by others, and only until the request is revoked or deleted or its
// period is over.
func TestREQ34_RequestModel(t *testing.T) {
	seed := *modelSeed
	if seed == 0 {
		seed = rand.Uint64()>>1 + 1
	}
	m := newRequestModel(t, seed)
	defer func() {
		if t.Failed() {
			t.Logf("again with -model.seed=%d; what happened:\n%s", seed, strings.Join(m.log, "\n"))
		}
	}()
	for until := time.Now().Add(*modelTime / 2); time.Now().Before(until) && !t.Failed(); {
		for range 30 {
			m.step()
		}
		m.settle()
	}
	t.Logf("%d requests, %d sign-ins, %d of them used; faults %v", len(m.asked), len(m.signins), len(m.allowed), m.storm.Struck())
}

func newRequestModel(t *testing.T, seed uint64) *requestModel {
	m := &requestModel{env: newEnv(t).withRequests(), rand: rand.New(rand.NewPCG(seed, 3)), storm: kubetest.NewStorm(seed), allowed: map[string]bool{}}
	m.operatorConfig = rest.CopyConfig(m.operatorConfig)
	m.operatorConfig.Wrap(m.storm.Wrap)
	w, err := m.admin.Watch(t.Context(), &rbacv1.ClusterRoleBindingList{}, client.MatchingLabels{v1alpha1.SigninNamespaceLabel: m.ns})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(w.Stop)
	go func() {
		for e := range w.ResultChan() {
			if b, ok := e.Object.(*rbacv1.ClusterRoleBinding); ok && e.Type == watch.Added {
				m.mu.Lock()
				m.bound = append(m.bound, b.Labels[v1alpha1.SigninUIDLabel])
				m.mu.Unlock()
			}
		}
	}()
	m.stop = m.operate()
	return m
}

func (m *requestModel) logf(format string, args ...any) {
	m.log = append(m.log, fmt.Sprintf(format, args...))
}

// result logs the result of a write. Others may be faster, and the schema may refuse it.
func (m *requestModel) result(err error, format string, args ...any) bool {
	m.t.Helper()
	m.logf(format+": %v", append(args, err)...)
	if err != nil && !apierrors.IsInvalid(err) && !apierrors.IsNotFound(err) && !apierrors.IsConflict(err) && !apierrors.IsAlreadyExists(err) {
		m.t.Fatal(err)
	}
	return err == nil
}

func (m *requestModel) step() {
	var o *v1alpha1.TkaRequest // a stored request
	if len(m.asked) > 0 {
		o = new(v1alpha1.TkaRequest)
		name := m.asked[max(0, len(m.asked)-1-m.rand.IntN(4))].Name
		if err := m.admin.Get(m.t.Context(), client.ObjectKey{Namespace: m.ns, Name: name}, o); err != nil {
			o = nil
		}
	}
	n := m.rand.IntN(100)
	switch {
	case o == nil || n < 12:
		m.newAsk()
	case n < 35:
		m.approveOne(o)
	case n < 40:
		m.change(o, func(o *v1alpha1.TkaRequest) {
			o.Status.Decision = &v1alpha1.RequestDecision{Is: "Denied", RequestAct: v1alpha1.RequestAct{RequestPerson: v1alpha1.RequestPerson{Login: "bob@a.example", UserID: "u2", Device: "n2"}, At: metav1.Now()}}
		}, "deny")
	case n < 58:
		m.newSignin(o)
	case n < 80:
		m.useBy(o)
	case n < 86:
		m.change(o, func(o *v1alpha1.TkaRequest) {
			o.Status.Revoked = &v1alpha1.RequestAct{RequestPerson: v1alpha1.RequestPerson{Login: "bob@a.example", UserID: "u2", Device: "n2"}, At: metav1.Now()}
		}, "revoke")
	case n < 90:
		m.result(m.admin.Delete(m.t.Context(), o), "delete %s", o.Name)
	case n < 94:
		m.stop()
		m.logf("the operator is restarted")
		m.storm.Blow(nil)
		m.stop = m.operate()
	default:
		chances := map[kubetest.Fault]float64{}
		for _, f := range []kubetest.Fault{kubetest.ServerError, kubetest.Unavailable, kubetest.Conflict, kubetest.Refused, kubetest.Lost, kubetest.WatchCut} {
			if m.rand.IntN(2) == 0 {
				chances[f] = .2
			}
		}
		m.storm.Blow(chances)
		m.logf("a storm: %v", chances)
	}
}

func (m *requestModel) owner() signin.Owner {
	by := m.env.owner("alice@a.example", "laptop")
	by.UserID = "u1"
	return by
}

func (m *requestModel) newAsk() {
	o := m.newRequest(m.owner(), func(o *v1alpha1.TkaRequest) {
		o.Spec.Approvals = int32(m.rand.IntN(3))
		o.Spec.Period.Duration = []time.Duration{4 * time.Second, time.Hour}[m.rand.IntN(2)]
	})
	if m.result(m.admin.Create(m.t.Context(), o), "ask %s with %d approvals for %v", o.Name, o.Spec.Approvals, o.Spec.Period.Duration) {
		m.asked = append(m.asked, o)
	}
}

func (m *requestModel) change(o *v1alpha1.TkaRequest, f func(*v1alpha1.TkaRequest), what string) bool {
	before := o.DeepCopy()
	f(o)
	return m.result(m.admin.Status().Patch(m.t.Context(), o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})), "%s %s", what, o.Name)
}

func (m *requestModel) approveOne(o *v1alpha1.TkaRequest) {
	who := []string{"bob", "carol", "alice"}[m.rand.IntN(3)]
	m.change(o, func(o *v1alpha1.TkaRequest) {
		a := v1alpha1.RequestApproval{RequestPerson: v1alpha1.RequestPerson{Login: who + "@a.example", UserID: who, Device: who}, Digest: v1alpha1.RequestDigest(m.clusterID(), string(o.UID), o.Spec), At: metav1.Now()}
		if m.rand.IntN(3) == 0 {
			a.Period = &metav1.Duration{Duration: 3 * time.Second}
		}
		o.Status.Approvals = append(o.Status.Approvals, a)
	}, who+" approves")
}

func (m *requestModel) newSignin(o *v1alpha1.TkaRequest) {
	x := objectOf(m.signinOfRequest(m.owner(), o), m.ns)
	if m.result(m.admin.Create(m.t.Context(), x), "sign in with %s", o.Name) {
		m.signins = append(m.signins, x)
	}
}

// useBy writes a use by the request's sign-in, or by a recent one of another request, or for another time.
func (m *requestModel) useBy(o *v1alpha1.TkaRequest) {
	if len(m.signins) == 0 {
		return
	}
	x := m.signins[max(0, len(m.signins)-1-m.rand.IntN(3))]
	at := x.CreationTimestamp
	if m.rand.IntN(8) == 0 {
		at = metav1.NewTime(at.Add(time.Hour))
	}
	isOwn := x.Spec.Request.UID == string(o.UID) && at.Equal(&x.CreationTimestamp)
	if isOwn && int32(len(o.Status.Approvals)) >= o.Spec.Approvals { // before the write, because the operator may be fast
		m.mu.Lock()
		m.allowed[string(x.UID)] = true
		m.mu.Unlock()
	}
	m.change(o, func(o *v1alpha1.TkaRequest) {
		o.Status.Use = &v1alpha1.RequestUse{At: at, Signin: x.Name, SigninUID: string(x.UID), Device: x.Spec.Device.ID, Period: o.Spec.Period}
	}, fmt.Sprintf("%s (own %v, at %v) uses", x.Name, isOwn, at))
}

// settle ends the faults, waits for rest, and compares what is bound with the requests.
func (m *requestModel) settle() {
	m.t.Helper()
	m.storm.Blow(nil)
	m.logf("rest")
	var last error
	began := time.Now()
	for last = m.compare(); last != nil && time.Since(began) < deadline; last = m.compare() {
		time.Sleep(50 * time.Millisecond)
	}
	if last != nil {
		m.t.Errorf("no rest: %v", last)
	}
	m.mu.Lock()
	defer m.mu.Unlock()
	for _, uid := range m.bound {
		if !m.allowed[uid] {
			m.t.Errorf("the sign-in %s was bound without the use of an approved request", uid)
		}
	}
}

// compare returns the difference between what is bound and what the requests allow.
func (m *requestModel) compare() error {
	var list v1alpha1.TkaSigninList
	if err := m.admin.List(m.t.Context(), &list, client.InNamespace(m.ns)); err != nil {
		return err
	}
	_, everywhere, _ := m.made()
	var errs []error
	bound := map[string]bool{}
	for _, b := range everywhere {
		bound[b.Labels[v1alpha1.SigninUIDLabel]] = true
	}
	for i := range list.Items {
		x := &list.Items[i]
		until, ok := m.mayBeBound(x)
		if left := time.Until(until); ok && left > -2*time.Second && left < 2*time.Second {
			errs = append(errs, fmt.Errorf("%s ends about now", x.Name))
		}
		if want := ok && time.Now().Before(until); bound[string(x.UID)] != want || x.DeletionTimestamp != nil {
			errs = append(errs, fmt.Errorf("%s is bound: %v, want %v (%s)", x.Name, bound[string(x.UID)], want, x.Status.Phase))
		}
		delete(bound, string(x.UID))
	}
	for uid := range bound {
		errs = append(errs, fmt.Errorf("a binding of the sign-in %s, which is gone", uid))
	}
	return errors.Join(errs...)
}

// mayBeBound returns whether the request of x allows it, and until when. It does not use the code of the operator.
func (m *requestModel) mayBeBound(x *v1alpha1.TkaSignin) (until time.Time, ok bool) {
	o := new(v1alpha1.TkaRequest)
	if err := m.admin.Get(m.t.Context(), client.ObjectKey{Namespace: m.ns, Name: x.Spec.Request.Name}, o); err != nil {
		return until, false
	}
	u, period := o.Status.Use, o.Spec.Period.Duration
	if u == nil || o.Status.Revoked != nil {
		return until, false
	}
	for _, a := range o.Status.Approvals {
		if a.Period != nil {
			period = min(period, a.Period.Duration)
		}
	}
	return u.At.Add(period), u.SigninUID == string(x.UID) && u.At.Equal(&x.CreationTimestamp) && x.Spec.Request.UID == string(o.UID)
}
