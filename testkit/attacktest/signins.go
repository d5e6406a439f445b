package attacktest

import (
	"context"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

func ErrorOf[T any](_ T, err error) error { return err }

// EndSignInIn lets a sign-in end in d. It changes the two fields that the access server's account may write. It
// returns the end when the operator has observed it. If that takes more than half of d, which the test needs, the end
// is later.
func (s *Env) EndSignInIn(t *testing.T, name string, d time.Duration) time.Time {
	t.Helper()
	c, err := client.New(s.AccountConfig(t, "tailplane-access"), client.Options{Scheme: s.KubeClient.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	const period = 10 * time.Minute
	for ; ; d *= 4 {
		asked := time.Now().Add(d - period)
		patch, err := json.Marshal(map[string]any{"spec": map[string]any{"period": metav1.Duration{Duration: period}, "askedAt": metav1.NewTime(asked)}})
		if err != nil {
			t.Fatal(err)
		}
		o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name}}
		if err := c.Patch(t.Context(), o, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Fatal(err)
		}
		end := o.Spec.AskedAt.Add(period)
		if d <= 0 {
			return end
		}
		if Within(d/2, func() bool {
			err := s.KubeClient.Get(t.Context(), client.ObjectKeyFromObject(o), o)
			return err == nil && o.Status.ObservedGeneration == o.Generation
		}) {
			if !o.Status.ValidUntil.Time.Equal(end) {
				t.Fatalf("the sign-in ends at %v, want %v", o.Status.ValidUntil, end)
			}
			return end
		}
		if d > Long {
			t.Fatalf("the operator has not stored the end at %v", end)
		}
	}
}

// RestartOperator starts the operator again after it was killed. It deletes the Lease of the dead operator, so that
// the new one does not wait for it.
func (s *Env) RestartOperator(t *testing.T) {
	t.Helper()
	s.ReleaseLease(t)
	if err := s.StartOperator(context.WithoutCancel(t.Context())); err != nil {
		t.Fatal(err)
	}
}

// AddReplica starts another access server: a second node with its own name, state and audit log. edit contains pairs
// of texts to replace in the settings. AddReplica returns the name that the control server assigned.
func (s *Env) AddReplica(t *testing.T, name string, edit ...string) string {
	t.Helper()
	dir := filepath.Join(s.Dir, name)
	if err := os.MkdirAll(filepath.Join(dir, "state"), 0o700); err != nil {
		t.Fatal(err)
	}
	key := filepath.Join(dir, "authkey")
	if err := os.WriteFile(key, []byte(s.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})), 0o600); err != nil {
		t.Fatal(err)
	}
	settings, err := s.Settings("access")
	if err != nil {
		t.Fatal(err)
	}
	text := strings.NewReplacer(append(edit, filepath.Join(s.Dir, "access")+"/", dir+"/", s.AuthKeyFile(), key)...).Replace(string(settings))
	kubeconfig, err := s.Cluster.ServiceAccountKubeconfig(t.Context(), testenv.SystemNamespace, "tailplane-access", dir)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Try(name, "access", nil, text, "--kubeconfig", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Stop(Long); err != nil {
			t.Error(err)
		}
	})
	ctx, cancel := context.WithTimeout(t.Context(), Long)
	defer cancel()
	if err := p.WaitLog(ctx, `"access is serving"`); err != nil {
		t.Fatal(err)
	}
	return ServingNames(t, p)[0]
}

// SignIns returns the stored sign-ins of a login on all devices, or of all logins for "".
func (s *Env) SignIns(t *testing.T, login string) []v1alpha1.TkaSignin {
	t.Helper()
	var list v1alpha1.TkaSigninList
	if err := s.KubeClient.List(context.WithoutCancel(t.Context()), &list, client.InNamespace(testenv.SigninNamespace)); err != nil {
		t.Fatal(err)
	}
	return slices.DeleteFunc(list.Items, func(o v1alpha1.TkaSignin) bool { return login != "" && o.Spec.User.Login != login })
}

// bound is an object that gives access in the cluster.
type bound struct{ Kind, Namespace, name, Role, UID string }

// listAccess returns all accounts and bindings of the cluster.
func (s *Env) listAccess(t *testing.T) (accounts corev1.ServiceAccountList, wide rbacv1.ClusterRoleBindingList, narrow rbacv1.RoleBindingList) {
	t.Helper()
	for _, list := range []client.ObjectList{&accounts, &wide, &narrow} {
		if err := s.KubeClient.List(context.WithoutCancel(t.Context()), list); err != nil {
			t.Fatal(err)
		}
	}
	return accounts, wide, narrow
}

// AccessOf returns a sign-in's account and all objects that give it access. It finds them by the account's name and
// not by the product's labels, because an attacker could have removed the labels.
func (s *Env) AccessOf(t *testing.T, name string) (out []bound) {
	t.Helper()
	accounts, wide, narrow := s.listAccess(t)
	for _, a := range accounts.Items {
		if a.Namespace == testenv.SigninNamespace && a.Name == name {
			out = append(out, bound{"ServiceAccount", a.Namespace, a.Name, "", string(a.UID)})
		}
	}
	ours := func(subjects []rbacv1.Subject) bool {
		return slices.ContainsFunc(subjects, func(x rbacv1.Subject) bool { return x.Namespace == testenv.SigninNamespace && x.Name == name })
	}
	for _, b := range wide.Items {
		if ours(b.Subjects) {
			out = append(out, bound{"ClusterRoleBinding", "", b.Name, b.RoleRef.Name, string(b.UID)})
		}
	}
	for _, b := range narrow.Items {
		if ours(b.Subjects) {
			out = append(out, bound{"RoleBinding", b.Namespace, b.Name, b.RoleRef.Name, string(b.UID)})
		}
	}
	return out
}

// inconsistent returns violations of the invariants that hold when no operation is in progress. Every account and
// every binding of a sign-in belongs to a live sign-in. Each live sign-in has its account and one role. No live
// sign-in is past its end.
func (s *Env) inconsistent(t *testing.T) (wrong []string) {
	t.Helper()
	bad := func(format string, args ...any) { wrong = append(wrong, fmt.Sprintf(format, args...)) }
	live := map[string]v1alpha1.TkaSignin{}
	for _, o := range s.SignIns(t, "") {
		over := o.Status.Phase == v1alpha1.SigninPhase(signin.PhaseExpired) || o.Status.Phase == v1alpha1.SigninPhase(signin.PhaseRefused)
		given := s.AccessOf(t, o.Name)
		switch {
		case over && len(given) > 0:
			bad("%s is %s and has %v", o.Name, o.Status.Phase, given)
		case over:
		case o.DeletionTimestamp != nil, o.Status.Phase != v1alpha1.SigninPhase(signin.PhaseReady), o.Status.ObservedGeneration != o.Generation:
			bad("%s is in progress: %s, generation %d of %d", o.Name, o.Status.Phase, o.Status.ObservedGeneration, o.Generation)
		default:
			live[o.Name] = o
			bindings := slices.DeleteFunc(slices.Clone(given), func(b bound) bool { return b.Kind == "ServiceAccount" })
			if len(given)-len(bindings) != 1 || len(bindings) != max(1, len(o.Spec.Namespaces)) {
				bad("%s has %v", o.Name, given)
			}
			for _, b := range bindings {
				if b.Role != o.Spec.Role || o.Status.Role != o.Spec.Role {
					bad("%s has %s of %s, but shows %s", o.Name, b.Role, o.Spec.Role, o.Status.Role)
				}
			}
			if o.Status.ValidUntil == nil || time.Now().After(o.Status.ValidUntil.Time.Add(time.Minute)) {
				bad("%s should have ended at %v", o.Name, o.Status.ValidUntil)
			}
		}
	}
	accounts, wide, narrow := s.listAccess(t)
	check := func(kind string, o client.Object, uid, name string) {
		if x, ok := live[name]; !ok || string(x.UID) != uid {
			bad("%s %s/%s has no live sign-in", kind, o.GetNamespace(), o.GetName())
		}
	}
	for i := range accounts.Items {
		if a := &accounts.Items[i]; a.Namespace == testenv.SigninNamespace && a.Name != "default" {
			check("ServiceAccount", a, a.Labels[v1alpha1.SigninUIDLabel], a.Name)
		}
	}
	for i := range wide.Items {
		if b := &wide.Items[i]; b.Labels[v1alpha1.SigninUIDLabel] != "" || strings.HasPrefix(b.Name, "tailplane-") && !slices.Contains([]string{"tailplane-operator", "tailplane-access", "tailplane-plane", "tailplane-proxy"}, b.Name) {
			check("ClusterRoleBinding", b, b.Labels[v1alpha1.SigninUIDLabel], strings.TrimPrefix(b.Name, "tailplane-"))
		}
	}
	for i := range narrow.Items {
		if b := &narrow.Items[i]; b.Labels[v1alpha1.SigninUIDLabel] != "" {
			check("RoleBinding", b, b.Labels[v1alpha1.SigninUIDLabel], strings.TrimPrefix(b.Name, "tailplane-"))
		}
	}
	return wrong
}

// Settles waits until the invariants of inconsistent hold.
func (s *Env) Settles(t *testing.T, what string) time.Duration {
	t.Helper()
	var wrong []string
	began := time.Now()
	if !Within(Long, func() bool { wrong = s.inconsistent(t); return len(wrong) == 0 }) {
		t.Fatalf("%s: not within %v: %s", what, Long, strings.Join(wrong, "; "))
	}
	return time.Since(began)
}
