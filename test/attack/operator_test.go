package attack

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"log"
	"net/http"
	"net/http/httptest"
	"net/http/httputil"
	"net/url"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// releaseLease takes away the Lease of an operator that was killed. Without that
// the next one would wait for it to run out, and do the same.
func (s *system) releaseLease(t *testing.T) {
	t.Helper()
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SystemNamespace, Name: "tailplane-operator"}}
	if err := s.admin.Delete(context.WithoutCancel(t.Context()), lease); client.IgnoreNotFound(err) != nil {
		t.Fatal(err)
	}
}

// tenant is somebody who may do everything with sign-ins in their namespace, and
// with what else lies there.
func (s *system) tenant(t *testing.T, name string) client.Client {
	t.Helper()
	ctx := t.Context()
	role := &rbacv1.Role{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name}, Rules: []rbacv1.PolicyRule{
		{APIGroups: []string{"tailplane.dev"}, Resources: []string{"tkasignins", "tkasignins/status", "tkasignins/finalizers"}, Verbs: []string{"get", "list", "watch", "create", "update", "patch", "delete"}},
		{APIGroups: []string{""}, Resources: []string{"serviceaccounts", "serviceaccounts/token", "secrets", "pods"}, Verbs: []string{"get", "list", "create", "update", "patch", "delete"}},
	}}
	binding := &rbacv1.RoleBinding{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: name},
		Subjects: []rbacv1.Subject{{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: name}}}
	for _, o := range []client.Object{role, binding} {
		if err := s.admin.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.admin.Delete(context.WithoutCancel(ctx), o); err != nil {
				t.Error(err)
			}
		})
	}
	config := s.Cluster.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	return s.clientOf(t, config)
}

func (s *system) clientOf(t *testing.T, config *rest.Config) client.Client {
	t.Helper()
	c, err := client.New(config, client.Options{Scheme: s.admin.Scheme()})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// forged is a sign-in as nobody but the access server should write it.
func forged(login, device, role string) *v1alpha1.TkaSignin {
	o := signin.Owner{Login: login, DeviceID: device, DeviceName: "d", Tailnet: "example.com"}
	return &v1alpha1.TkaSignin{
		ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: o.Name(), Finalizers: []string{v1alpha1.SigninFinalizer}},
		Spec: v1alpha1.TkaSigninSpec{User: v1alpha1.SigninUser{Login: login}, Device: v1alpha1.SigninDevice{ID: device, Name: "d", Tailnet: "example.com"},
			Role: role, Period: metav1.Duration{Duration: time.Hour}, AskedAt: metav1.NewTime(time.Now())},
	}
}

// reasons are those of the events about a sign-in.
func (s *system) reasons(t *testing.T, name string) (out []string) {
	t.Helper()
	var list eventsv1.EventList
	if err := s.admin.List(t.Context(), &list, client.InNamespace(testenv.SigninNamespace)); err != nil {
		t.Fatal(err)
	}
	for _, e := range list.Items {
		if e.Regarding.Name == name && e.Regarding.Kind == "TkaSignin" {
			out = append(out, e.Reason)
		}
	}
	return out
}

// ready is the stored sign-in's Ready condition.
func ready(o *v1alpha1.TkaSignin) metav1.Condition {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// withoutPolicy takes the admission policy of sign-ins out of force until the
// test's end, as if somebody had forgotten to install it.
func (s *system) withoutPolicy(t *testing.T, probe client.Client) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	if err := s.admin.Get(ctx, client.ObjectKey{Name: "tailplane-signins"}, &binding); err != nil {
		t.Fatal(err)
	}
	if err := s.admin.Delete(ctx, &binding); err != nil {
		t.Fatal(err)
	}
	inForce := func() bool {
		o := forged("probe@example.com", "probe", "view")
		o.Finalizers = nil
		err := probe.Create(ctx, o, client.DryRunAll)
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return err != nil
	}
	t.Cleanup(func() {
		back := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}, Spec: binding.Spec}
		if err := s.admin.Create(ctx, back); err != nil {
			t.Error(err)
		}
		eventually(t, long, "the admission policy is in force again", inForce)
	})
	eventually(t, long, "the admission policy is out of force", func() bool { return !inForce() })
}

// SI-01. Who may create a sign-in in a namespace must not choose its user or role:
// the API server refuses it, and without that policy the operator does.
//
// Guard: deploy/base/policy-signins.yaml; signin.Facts.refusal (name, role, policy).
func TestSI01_ForgedSignIn(t *testing.T) {
	s := start(t)
	mallory := s.tenant(t, "mallory")
	ctx := t.Context()
	for _, o := range []*v1alpha1.TkaSignin{
		forged("ceo@example.com", "n1", "cluster-admin"), forged("ceo@example.com", "n1", "view"),
		{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: "ceo"}, Spec: forged("ceo@example.com", "n1", "cluster-admin").Spec},
	} {
		err := mallory.Create(ctx, o)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only the access server creates sign-ins") {
			t.Errorf("%s as %s: %v", o.Name, o.Spec.Role, err)
		}
		if err := s.admin.Get(ctx, client.ObjectKeyFromObject(o), new(v1alpha1.TkaSignin)); !apierrors.IsNotFound(err) {
			t.Errorf("%s is stored: %v", o.Name, err)
		}
	}
	// Not even the cluster's administrator, nor the operator, writes one.
	for who, c := range map[string]client.Client{"the administrator": s.admin, "the operator": s.clientOf(t, s.account(t, "tailplane-operator"))} {
		if err := c.Create(ctx, forged("ceo@example.com", "n1", "view")); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", who, err)
		}
	}
	// The control: the access server's account, the same object.
	access := s.clientOf(t, s.account(t, "tailplane-access"))
	good := forged("ceo@example.com", "n1", "view")
	if err := access.Create(ctx, good); err != nil {
		t.Fatalf("the access server: %v", err)
	}
	eventually(t, long, "it is provisioned", func() bool {
		return s.admin.Get(ctx, client.ObjectKeyFromObject(good), good) == nil && ready(good).Status == metav1.ConditionTrue
	})
	if err := s.admin.Delete(ctx, good); err != nil {
		t.Fatal(err)
	}
	s.settles(t, "the control")

	t.Run("without the policy", func(t *testing.T) {
		s.withoutPolicy(t, mallory)
		refused := func(what string, o *v1alpha1.TkaSignin, reason string) {
			t.Helper()
			if err := mallory.Create(ctx, o); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			eventually(t, long, what, func() bool {
				return s.admin.Get(ctx, client.ObjectKeyFromObject(o), o) == nil && o.Status.ObservedGeneration == o.Generation
			})
			if c := ready(o); c.Reason != reason || c.Status != metav1.ConditionFalse || o.Status.Role != "" || o.Status.ServiceAccount != nil {
				t.Errorf("%s: %+v, condition %+v, want %s", what, o.Status, c, reason)
			}
			if given := s.given(t, o.Name); len(given) > 0 {
				t.Errorf("%s: given %v", what, given)
			}
			eventually(t, long, what+": an event says so", func() bool { return slices.Contains(s.reasons(t, o.Name), "Refused") })
			if err := mallory.Delete(ctx, o); err != nil {
				t.Fatal(err)
			}
			eventually(t, long, what+": it is gone", func() bool { return apierrors.IsNotFound(s.admin.Get(ctx, client.ObjectKeyFromObject(o), o)) })
		}
		named := forged("ceo@example.com", "n1", "cluster-admin")
		named.Name = "ceo"
		refused("a name of one's own", named, signin.ReasonNameTaken)
		refused("a role that is not on the list", forged("ceo@example.com", "n1", "cluster-admin"), signin.ReasonRoleNotAllowed)
		refused("a group for a role", forged("ceo@example.com", "n1", "system:masters"), signin.ReasonRoleNotAllowed)
		ours := forged("ceo@example.com", "n1", "view")
		ours.Spec.Namespaces = []string{testenv.SystemNamespace}
		refused("our own namespace", ours, signin.ReasonRoleNotAllowed)
		year := forged("ceo@example.com", "n1", "view")
		year.Spec.Period = metav1.Duration{Duration: 8000 * time.Hour}
		refused("a year", year, signin.ReasonBadPeriod)
		// With the right name and a listed role: an operator that has looked refuses
		// everything while strangers may write. What it knew before lasts 30 s.
		if err := s.Operator.Stop(long); err != nil {
			t.Fatal(err)
		}
		s.restartOperator(t)
		refused("everything as the access server would write it", forged("ceo@example.com", "n1", "edit"), signin.ReasonAdmissionPolicyMissing)
	})
	// What the operator knew of the policy is as old as its last look.
	if err := s.Operator.Stop(long); err != nil {
		t.Fatal(err)
	}
	s.restartOperator(t)
	s.settles(t, "afterwards")
}

// SI-02. What was made for a sign-in is ours: whoever changes it finds it corrected
// or the sign-in ended, with an event, and access never outlives the sign-in.
//
// Guard: the immutable spec of the CRD, deploy/base/policy-signins.yaml and
// policy-tokens.yaml, signin.Next (rows 1, 5, 5b and 6), signinkube's sweep.
func TestSI02_Tampering(t *testing.T) {
	s := start(t)
	p := s.person(t, "ivan-laptop", "ivan@example.com")
	s.setPolicy(t, grant("ivan@example.com", `{"role": "view", "period": "8h"}`))
	s.waitGranted(t, p)
	mallory := s.tenant(t, "mallory")
	access := s.clientOf(t, s.account(t, "tailplane-access"))
	ctx := t.Context()
	object := func(st signin.Status) *v1alpha1.TkaSignin {
		t.Helper()
		o := new(v1alpha1.TkaSignin)
		if err := s.admin.Get(ctx, client.ObjectKey{Namespace: testenv.SigninNamespace, Name: st.Name}, o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	said := func(t *testing.T, st signin.Status, reason string) {
		t.Helper()
		eventually(t, long, "an event says "+reason, func() bool { return slices.Contains(s.reasons(t, st.Name), reason) })
	}

	t.Run("the sign-in itself", func(t *testing.T) {
		st := s.login(t, p, signin.LoginRequest{})
		before := object(st)
		for what, change := range map[string]func(*v1alpha1.TkaSignin){
			"role":       func(o *v1alpha1.TkaSignin) { o.Spec.Role = "edit" },
			"user":       func(o *v1alpha1.TkaSignin) { o.Spec.User.Login = "ceo@example.com" },
			"device":     func(o *v1alpha1.TkaSignin) { o.Spec.Device.ID = "n404" },
			"namespaces": func(o *v1alpha1.TkaSignin) { o.Spec.Namespaces = []string{"shop"} },
		} {
			for who, c := range map[string]client.Client{"a tenant": mallory, "the administrator": s.admin, "the access server": access} {
				o := before.DeepCopy()
				change(o)
				if err := c.Update(ctx, o); !apierrors.IsForbidden(err) && !apierrors.IsInvalid(err) {
					t.Errorf("%s changes %s: %v", who, what, err)
				}
			}
		}
		for what, change := range map[string]func(*v1alpha1.TkaSignin){
			"period":          func(o *v1alpha1.TkaSignin) { o.Spec.Period = metav1.Duration{Duration: 24 * time.Hour} },
			"askedAt":         func(o *v1alpha1.TkaSignin) { o.Spec.AskedAt = metav1.NewTime(time.Now().Add(50 * time.Second)) },
			"the finalizer":   func(o *v1alpha1.TkaSignin) { o.Finalizers = nil },
			"our annotations": func(o *v1alpha1.TkaSignin) { delete(o.Annotations, v1alpha1.LastAttemptAnnotation) },
			"a label of ours": func(o *v1alpha1.TkaSignin) { o.Labels["tailplane.dev/x"] = "y" },
		} {
			for who, c := range map[string]client.Client{"a tenant": mallory, "the administrator": s.admin} {
				o := before.DeepCopy()
				change(o)
				if err := c.Update(ctx, o); !apierrors.IsForbidden(err) {
					t.Errorf("%s changes %s: %v", who, what, err)
				}
			}
		}
		o := before.DeepCopy()
		o.Status.ValidUntil = new(metav1.NewTime(time.Now().Add(1000 * time.Hour)))
		o.Status.Role = "cluster-admin"
		for who, c := range map[string]client.Client{"a tenant": mallory, "the administrator": s.admin, "the access server": access} {
			if err := c.Status().Update(ctx, o.DeepCopy()); !apierrors.IsForbidden(err) {
				t.Errorf("%s changes the status: %v", who, err)
			}
		}
		// The control: what is anybody's own business.
		o = before.DeepCopy()
		o.Annotations["example.com/note"] = "hello"
		if err := mallory.Update(ctx, o); err != nil {
			t.Errorf("an annotation of one's own: %v", err)
		}
		if now := object(st); now.Generation != before.Generation || mustJSON(t, now.Status) != mustJSON(t, before.Status) {
			t.Errorf("it changed: %+v", now)
		}
		s.logout(t, p)
	})
	t.Run("a token of it", func(t *testing.T) {
		st := s.login(t, p, signin.LoginRequest{})
		_, stderr, exit := s.kubectlAs(t, "mallory", "create", "token", "-n", testenv.SigninNamespace, st.Name)
		if exit == 0 || !strings.Contains(stderr, "only the access server makes tokens") {
			t.Errorf("a tenant makes a token: exit %d, %s", exit, stderr)
		}
		// The testbed has no controller that brings a quota into force, which it does
		// by copying it into its status; the API server then enforces it by itself.
		var quota corev1.ResourceQuota
		if err := s.admin.Get(ctx, client.ObjectKey{Namespace: testenv.SigninNamespace, Name: "tailplane-signins"}, &quota); err != nil {
			t.Fatal(err)
		}
		quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{}}
		for name := range quota.Spec.Hard {
			quota.Status.Used[name] = resource.MustParse("0")
		}
		if err := s.admin.Status().Update(ctx, &quota); err != nil {
			t.Fatal(err)
		}
		eventually(t, long, "the quota is in force", func() bool {
			return apierrors.IsForbidden(s.admin.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: "probe"}}, client.DryRunAll))
		})
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: "forever", Annotations: map[string]string{corev1.ServiceAccountNameKey: st.Name}}, Type: corev1.SecretTypeServiceAccountToken}
		if err := mallory.Create(ctx, secret); !apierrors.IsForbidden(err) {
			t.Errorf("a tenant makes a token that never ends: %v", err)
			s.admin.Delete(ctx, secret)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: "puppet"}, Spec: corev1.PodSpec{ServiceAccountName: st.Name, Containers: []corev1.Container{{Name: "c", Image: "example.test/c"}}}}
		if err := mallory.Create(ctx, pod); !apierrors.IsForbidden(err) {
			t.Errorf("a tenant runs a pod as the sign-in: %v", err)
			s.admin.Delete(ctx, pod)
		}
		s.logout(t, p)
	})
	bindingOf := func(st signin.Status) *rbacv1.ClusterRoleBinding {
		t.Helper()
		b := new(rbacv1.ClusterRoleBinding)
		if err := s.admin.Get(ctx, client.ObjectKey{Name: signin.BindingName(st.Name)}, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	for what, change := range map[string]func(t *testing.T, b *rbacv1.ClusterRoleBinding){
		"subjects of the binding": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			b.Subjects = append(b.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "mallory"})
			if err := s.admin.Update(ctx, b); err != nil {
				t.Fatal(err)
			}
		},
		"another's account in the binding": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			b.Subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "default"}}
			if err := s.admin.Update(ctx, b); err != nil {
				t.Fatal(err)
			}
		},
		"labels of the binding": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			b.Labels = nil
			if err := s.admin.Update(ctx, b); err != nil {
				t.Fatal(err)
			}
		},
		"the role of the binding": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			other := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: b.Name, Labels: b.Labels, Annotations: b.Annotations}, Subjects: b.Subjects, RoleRef: b.RoleRef}
			other.RoleRef.Name = "cluster-admin"
			if err := s.admin.Delete(ctx, b); err != nil {
				t.Fatal(err)
			}
			for { // the operator may have made its own again meanwhile
				err := s.admin.Create(ctx, other.DeepCopy())
				if err == nil {
					return
				}
				if !apierrors.IsAlreadyExists(err) {
					t.Fatal(err)
				}
				if err := s.admin.Delete(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: b.Name}}); client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
			}
		},
		"the binding is deleted": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			if err := s.admin.Delete(ctx, b); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			st := s.login(t, p, signin.LoginRequest{})
			was := bindingOf(st)
			change(t, was.DeepCopy())
			took := eventually(t, long, "it is corrected", func() bool {
				b := new(rbacv1.ClusterRoleBinding)
				err := s.admin.Get(ctx, client.ObjectKeyFromObject(was), b)
				return err == nil && b.UID != was.UID && b.RoleRef == was.RoleRef && fmt.Sprint(b.Subjects) == fmt.Sprint(was.Subjects) && b.Labels[v1alpha1.SigninUIDLabel] == was.Labels[v1alpha1.SigninUIDLabel]
			})
			t.Logf("corrected after %v", took.Round(time.Millisecond))
			s.settles(t, what)
			said(t, st, "Corrected")
			s.logout(t, p)
			if given := s.given(t, st.Name); len(given) > 0 {
				t.Errorf("after logout: %v", given)
			}
		})
	}
	t.Run("one binding more", func(t *testing.T) {
		st := s.login(t, p, signin.LoginRequest{})
		was := bindingOf(st)
		more := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "helpful-" + st.Name, Labels: was.Labels}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}, Subjects: was.Subjects}
		if err := s.admin.Create(ctx, more); err != nil {
			t.Fatal(err)
		}
		eventually(t, long, "it is removed", func() bool { return apierrors.IsNotFound(s.admin.Get(ctx, client.ObjectKeyFromObject(more), more)) })
		s.settles(t, "one more")
		s.logout(t, p)
	})
	for what, change := range map[string]func(t *testing.T, st signin.Status){
		"the account is deleted": func(t *testing.T, st signin.Status) {
			if err := mallory.Delete(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: st.Name}}); err != nil {
				t.Fatal(err)
			}
		},
		"the account is made anew": func(t *testing.T, st signin.Status) {
			sa := new(corev1.ServiceAccount)
			if err := s.admin.Get(ctx, client.ObjectKey{Namespace: testenv.SigninNamespace, Name: st.Name}, sa); err != nil {
				t.Fatal(err)
			}
			if err := mallory.Delete(ctx, sa.DeepCopy()); err != nil {
				t.Fatal(err)
			}
			again := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: sa.Namespace, Name: sa.Name, Labels: sa.Labels, OwnerReferences: sa.OwnerReferences}}
			if err := mallory.Create(ctx, again); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			st := s.login(t, p, signin.LoginRequest{})
			change(t, st)
			eventually(t, long, "the sign-in has ended", func() bool {
				return apierrors.IsNotFound(s.admin.Get(ctx, client.ObjectKey{Namespace: testenv.SigninNamespace, Name: st.Name}, new(v1alpha1.TkaSignin)))
			})
			said(t, st, "Revoked")
			eventually(t, long, "nothing is left", func() bool { return len(s.given(t, st.Name)) == 0 })
			if a := s.ask(t, p, "GET", api+"/kubeconfig", ""); a.Status == http.StatusOK {
				t.Errorf("a kubeconfig nonetheless: %v", a.Status)
			}
		})
	}
	t.Run("an account was there before", func(t *testing.T) {
		id, err := s.Net.ID(p.Node)
		if err != nil {
			t.Fatal(err)
		}
		name := signin.Owner{Login: "ivan@example.com", DeviceID: string(id), Tailnet: "example.com"}.Name()
		trap := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name}}
		if err := mallory.Create(ctx, trap); err != nil {
			t.Fatal(err)
		}
		if a := s.ask(t, p, "POST", api+"/login", "{}"); a.Status != http.StatusAccepted {
			t.Fatalf("login: %v", a)
		}
		eventually(t, long, "it is refused", func() bool { return s.ask(t, p, "GET", api+"/kubeconfig", "").Status == http.StatusConflict })
		if given := s.given(t, name); len(given) != 1 || given[0].uid != string(trap.UID) {
			t.Errorf("given: %v", given)
		}
		s.logout(t, p)
		if err := s.admin.Delete(ctx, trap); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("the finalizer is gone", func(t *testing.T) {
		st := s.login(t, p, signin.LoginRequest{})
		s.withoutPolicy(t, mallory)
		if err := s.Operator.Stop(long); err != nil { // or it would be quicker
			t.Fatal(err)
		}
		o := object(st)
		o.Finalizers = nil
		if err := mallory.Update(ctx, o); err != nil {
			t.Fatal(err)
		}
		if err := mallory.Delete(ctx, o); err != nil {
			t.Fatal(err)
		}
		if given := s.given(t, st.Name); len(given) == 0 {
			t.Fatal("nothing is left over: this test shows nothing")
		}
		s.restartOperator(t)
		eventually(t, long, "nothing is left", func() bool { return len(s.given(t, st.Name)) == 0 })
	})
	// What the operator knew of the policy is as old as its last look.
	if err := s.Operator.Stop(long); err != nil {
		t.Fatal(err)
	}
	s.restartOperator(t)
	s.settles(t, "afterwards")

	t.Run("the namespace is deleted", func(t *testing.T) {
		s := own(t)
		p := s.alice(t)
		if a := s.ask(t, p, "POST", api+"/login", "{}"); a.Status != http.StatusAccepted {
			t.Fatalf("login: %v", a)
		}
		held := s.holder(t, s.kubeconfig(t, p).Token.Reveal())
		st := s.signins(t, "alice@example.com")[0]
		if err := pods(t, held, "shop"); err != nil {
			t.Fatalf("before: %v", err)
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testenv.SigninNamespace}}
		if err := s.admin.Delete(ctx, ns); err != nil {
			t.Fatal(err)
		}
		eventually(t, long, "the token gives nothing", func() bool { return pods(t, held, "shop") != nil })
		eventually(t, long, "nothing is left", func() bool { return len(s.given(t, st.Name)) == 0 })
		took := eventually(t, 2*long, "the namespace is gone", func() bool { return apierrors.IsNotFound(s.admin.Get(ctx, client.ObjectKeyFromObject(ns), ns)) })
		t.Logf("the namespace was gone after %v", took.Round(time.Millisecond))
	})
}

// A gate stands between one program and the API server, as its only way there. It
// counts what succeeds in changing something, and strikes after one of them.
type gate struct {
	*httptest.Server

	mu     sync.Mutex
	armed  bool
	after  int    // this write is the last; 0: never
	only   string // those count whose path has it
	wrote  []string
	strike func()
	struck chan struct{}
}

func (s *system) gate(t *testing.T) *gate {
	t.Helper()
	target, err := url.Parse(s.Cluster.Server)
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(s.Cluster.CA)
	g := &gate{}
	proxy := &httputil.ReverseProxy{
		Rewrite:       func(r *httputil.ProxyRequest) { r.SetURL(target) },
		Transport:     &http.Transport{TLSClientConfig: &tls.Config{RootCAs: roots}, MaxIdleConnsPerHost: 100},
		FlushInterval: -1,
		ErrorLog:      log.New(quiet{}, "", 0),
		ErrorHandler:  func(http.ResponseWriter, *http.Request, error) { panic(http.ErrAbortHandler) },
		ModifyResponse: func(res *http.Response) error {
			path := res.Request.URL.Path
			if res.Request.Method == http.MethodGet || res.StatusCode >= 300 || res.Request.URL.Query().Has("dryRun") || strings.Contains(path, "/leases") || strings.Contains(path, "/configmaps/") || strings.Contains(path, "/events") || strings.HasSuffix(path, "reviews") {
				return nil
			}
			g.mu.Lock()
			defer g.mu.Unlock()
			if !g.armed || !strings.Contains(path, g.only) {
				return nil
			}
			g.wrote = append(g.wrote, res.Request.Method+" "+path[strings.LastIndex(path[:strings.LastIndexByte(path, '/')], "/")+1:])
			if len(g.wrote) != g.after {
				return nil
			}
			g.strike() // the answer is never heard
			close(g.struck)
			return http.ErrAbortHandler
		},
	}
	g.Server = httptest.NewUnstartedServer(proxy)
	g.Config.ErrorLog = log.New(quiet{}, "", 0)
	g.StartTLS()
	t.Cleanup(g.Close)
	return g
}

type quiet struct{}

func (quiet) Write(p []byte) (int, error) { return len(p), nil }

// arm lets the gate count from now on, and strike p after so many writes.
func (g *gate) arm(after int, p *testenv.Process) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed, g.after, g.wrote, g.strike, g.struck = true, after, nil, p.Kill, make(chan struct{})
}

// about has only those writes count whose path has a text.
func (g *gate) about(text string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.only = text
}

// strikes waits for the blow. It reports false when what was begun is long over
// and nothing was written that would have brought it.
func (g *gate) strikes(begun <-chan struct{}) bool {
	select {
	case <-g.struck:
		return true
	case <-begun:
	case <-time.After(long):
		return false
	}
	select {
	case <-g.struck:
		return true
	case <-time.After(10 * time.Second):
		return false
	}
}

func (g *gate) disarm() []string {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.armed = false
	return slices.Clone(g.wrote)
}

// through is a kubeconfig by which an account reaches the API server through g only.
func (s *system) through(t *testing.T, g *gate, namespace, account string) (path string) {
	t.Helper()
	path, err := s.Cluster.ServiceAccountKubeconfig(context.WithoutCancel(t.Context()), namespace, account, t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	config, err := clientcmd.LoadFromFile(path)
	if err != nil {
		t.Fatal(err)
	}
	for _, c := range config.Clusters {
		c.Server, c.CertificateAuthorityData = g.URL, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: g.Certificate().Raw})
	}
	if err := clientcmd.WriteToFile(*config, path); err != nil {
		t.Fatal(err)
	}
	return path
}

// behind starts a role of the server that reaches the API server through g only.
// It plays the part of the environment's own, which must not run.
func (s *system) behind(t *testing.T, g *gate, role string) *testenv.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
	defer cancel()
	path := s.through(t, g, testenv.SystemNamespace, "tailplane-"+role)
	settings, err := s.Settings(role)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Try(role+"-"+fmt.Sprint(time.Now().UnixNano()), role, nil, string(settings), "--kubeconfig", path)
	if err != nil {
		t.Fatal(err)
	}
	works := `"operator is working"`
	if role == "access" {
		works = `"access is serving"`
	}
	if err := p.WaitLog(ctx, works); err != nil {
		t.Fatal(err)
	}
	return p
}

// SI-06. A program may be killed after any of its writes: when it is back, what is
// there is what there should be. And it knows by what is stored when to wake.
//
// Guard: signin.Next, which derives each step from what is stored; the finalizer
// that a sign-in is created with; signinkube's sweep.
func TestSI06_KilledAfterEachWrite(t *testing.T) {
	s := start(t)
	p := s.person(t, "kim-laptop", "kim@example.com")
	s.setPolicy(t, grant("kim@example.com", `{"role": "view", "period": "8h"}, {"role": "edit", "period": "1h"}`))
	s.waitGranted(t, p)
	const view, edit = `{"role":"view"}`, `{"role":"edit"}`
	access := s.clientOf(t, s.account(t, "tailplane-access"))
	id, err := s.Net.ID(p.Node)
	if err != nil {
		t.Fatal(err)
	}
	name := signin.Owner{Login: "kim@example.com", DeviceID: string(id), Tailnet: "example.com"}.Name()
	post := func(ctx context.Context, path, body string) { // the answer may never come
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		res, err := s.http(p).Do(s.newRequest(t, "POST", api+path, body).WithContext(ctx))
		if err == nil {
			res.Body.Close()
		}
	}
	end := func(ctx context.Context) { // as endIn does, but that nothing here may end the test
		patch := fmt.Appendf(nil, `{"spec":{"period":"10m","askedAt":%q}}`, time.Now().Add(-10*time.Minute).UTC().Format(time.RFC3339))
		o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name}}
		if err := access.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Errorf("bring the end about: %v", err)
		}
	}
	signedIn := func() { post(t.Context(), "/login", view); s.kubeconfig(t, p) }
	stories := []struct {
		name   string
		before func() // with nobody killed
		act    func(context.Context)
		// then says what the end must be like, beside the laws.
		then func(t *testing.T)
	}{
		{"login", func() { s.logout(t, p) }, func(ctx context.Context) { post(ctx, "/login", view) }, nil},
		{"extension", signedIn, func(ctx context.Context) { post(ctx, "/login", `{"role":"view","period":"2h"}`) }, func(t *testing.T) {
			if o := s.signins(t, "kim@example.com"); len(o) != 1 || !o[0].Status.ValidUntil.Time.Equal(o[0].Spec.AskedAt.Add(o[0].Spec.Period.Duration)) {
				t.Errorf("%+v", o)
			}
		}},
		{"another role", signedIn, func(ctx context.Context) { post(ctx, "/login", edit) }, nil},
		{"logout", signedIn, func(ctx context.Context) { post(ctx, "/logout", "") }, func(t *testing.T) {
			if o := s.signins(t, "kim@example.com"); len(o) != 0 {
				t.Errorf("%+v", o)
			}
		}},
		{"expiry", signedIn, end, func(t *testing.T) {
			eventually(t, long, "it is gone", func() bool { return len(s.signins(t, "kim@example.com")) == 0 })
		}},
	}
	g := s.gate(t)
	for _, role := range []string{"operator", "access"} {
		t.Run(role, func(t *testing.T) {
			mine := map[string]*testenv.Process{"operator": s.Operator, "access": s.Access}[role]
			if err := mine.Stop(long); err != nil {
				t.Fatal(err)
			}
			back := func() *testenv.Process {
				t.Helper()
				if role == "operator" {
					s.releaseLease(t)
				}
				p := s.behind(t, g, role)
				if role == "access" {
					s.reconnect(t)
				}
				return p
			}
			process := back()
			defer func() { // the environment's own again
				if err := process.Stop(long); err != nil {
					t.Error(err)
				}
				var err error
				if role == "operator" {
					s.releaseLease(t)
					err = s.StartOperator(context.WithoutCancel(t.Context()))
				} else if err = s.StartAccess(context.WithoutCancel(t.Context())); err == nil {
					s.reconnect(t)
				}
				if err != nil {
					t.Fatal(err)
				}
				s.logout(t, p)
			}()
			for _, story := range stories {
				if role == "access" && story.name == "expiry" {
					continue // it writes nothing then
				}
				t.Run(story.name, func(t *testing.T) {
					story.before()
					s.settles(t, "before")
					g.arm(0, process)
					story.act(t.Context())
					s.settles(t, "with nobody killed")
					if story.then != nil {
						story.then(t)
					}
					writes := g.disarm()
					t.Logf("writes: %s", strings.Join(writes, ", "))
					if len(writes) == 0 {
						t.Fatal("it writes nothing: this test shows nothing")
					}
					for n := range writes {
						var cancel context.CancelFunc
						var asked chan struct{}
						for try, struck := 1, false; !struck; try++ {
							story.before()
							s.settles(t, "before")
							g.arm(n+1, process)
							var ctx context.Context
							ctx, cancel = context.WithTimeout(t.Context(), long)
							asked = make(chan struct{})
							go func() { defer close(asked); story.act(ctx) }()
							struck = g.strikes(asked)
							if !struck { // what was to be written was written in the same second before
								writes := g.disarm()
								cancel()
								<-asked
								if try == 25 {
									t.Fatalf("not killed: after %v", writes)
								}
							}
						}
						cancel() // nobody waits for an answer of the dead
						<-asked
						<-process.Done()
						killed := g.disarm()
						process = back()
						what := fmt.Sprintf("killed after %s", killed[len(killed)-1])
						took := s.settles(t, what)
						t.Logf("%s: whole %v after it was back", what, took.Round(time.Millisecond))
						if story.then != nil && role == "operator" {
							story.then(t) // what the access server did not do, it was not asked again
						}
						// And it goes on from there.
						s.logout(t, p)
						signedIn()
						s.logout(t, p)
						s.settles(t, what+", then used")
					}
				})
			}
			if role == "access" {
				return
			}
			t.Run("waking without an event", func(t *testing.T) {
				signedIn()
				end := s.endIn(t, name, 20*time.Second)
				process.Kill()
				process = back()
				if time.Now().After(end) {
					t.Fatal("the end came before the operator was back: this test shows nothing")
				}
				eventually(t, long, "it has ended", func() bool { return len(s.given(t, name)) == 0 })
				if late := time.Since(end); late < 0 || late > soon {
					t.Errorf("ended %v after its end", late)
				}
				eventually(t, long, "it is gone", func() bool { return len(s.signins(t, "kim@example.com")) == 0 })
			})
		})
	}
}

// reconnect waits until everybody reaches the access server that has been started
// again.
func (s *system) reconnect(t *testing.T) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), long)
	defer cancel()
	s.mu.Lock()
	defer s.mu.Unlock()
	for p, hc := range s.speak {
		hc.CloseIdleConnections()
		if p.Node.Hostname != "kim-laptop" {
			continue
		}
		if err := s.Net.WaitPeer(ctx, p.Node, "tka"); err != nil {
			t.Fatal(err)
		}
	}
}

// SI-11. Whatever stands in a sign-in, the operator and the access server live, say
// one thing about it, and serve everybody else.
//
// Guard: the CRD's schema, above all that a time is in the one form that every
// reader takes; signin.Facts.refusal; signinkube.signinOf.
func TestSI11_HostileContent(t *testing.T) {
	s := start(t)
	p := s.person(t, "niaj-laptop", "niaj@example.com")
	s.setPolicy(t, grant("niaj@example.com", `{"role": "view", "period": "8h"}`))
	s.waitGranted(t, p)
	st := s.login(t, p, signin.LoginRequest{})
	before := s.signins(t, st.Username)[0]
	k, err := kubernetes.NewForConfig(s.account(t, "tailplane-access"))
	if err != nil {
		t.Fatal(err)
	}
	// Requests as they are: what is stored may be nothing that a client can read.
	request := func(r *rest.Request, name ...string) *rest.Request {
		return r.AbsPath(append([]string{"/apis/tailplane.dev/v1alpha1/namespaces", testenv.SigninNamespace, "tkasignins"}, name...)...)
	}
	base := func() map[string]any {
		o := forged("hostile@example.com", "n1", "view")
		return map[string]any{
			"apiVersion": "tailplane.dev/v1alpha1", "kind": "TkaSignin",
			"metadata": map[string]any{"name": o.Name, "namespace": o.Namespace, "finalizers": []any{v1alpha1.SigninFinalizer}},
			"spec": map[string]any{"user": map[string]any{"login": "hostile@example.com"}, "device": map[string]any{"id": "n1", "name": "d", "tailnet": "example.com"},
				"role": "view", "period": "1h", "askedAt": time.Now().UTC().Format(time.RFC3339)},
		}
	}
	set := func(value any, path ...string) func(map[string]any) {
		return func(o map[string]any) {
			for _, p := range path[:len(path)-1] {
				o = o[p].(map[string]any)
			}
			o[path[len(path)-1]] = value
		}
	}
	mega := strings.Repeat("a", 1<<20)
	stored := 0
	for what, change := range map[string]func(map[string]any){
		"a megabyte of login":      set(mega, "spec", "user", "login"),
		"a megabyte of role":       set(mega, "spec", "role"),
		"a megabyte of name":       set(mega, "spec", "user", "displayName"),
		"a megabyte of notes":      set(map[string]any{"example.com/x": mega[:250_000]}, "metadata", "annotations"),
		"a thousand namespaces":    set(slices.Repeat([]any{"shop"}, 1000), "spec", "namespaces"),
		"null for a role":          set(nil, "spec", "role"),
		"null for a user":          set(nil, "spec", "user"),
		"null for namespaces":      set(nil, "spec", "namespaces"),
		"null in namespaces":       set([]any{nil}, "spec", "namespaces"),
		"null for a time":          set(nil, "spec", "askedAt"),
		"null for a period":        set(nil, "spec", "period"),
		"null for everything":      set(nil, "spec"),
		"a list for everything":    set([]any{}, "spec"),
		"a number for a role":      set(7, "spec", "role"),
		"an unknown field":         set("x", "spec", "sudo"),
		"an unknown phase":         set(map[string]any{"phase": "Root"}, "status"),
		"a status of its own":      set(map[string]any{"phase": "Ready", "role": "cluster-admin", "validUntil": "2099-01-01T00:00:00Z"}, "status"),
		"the year 9999":            set("9999-12-31T23:59:59Z", "spec", "askedAt"),
		"the year 10000":           set("10000-01-01T00:00:00Z", "spec", "askedAt"),
		"the year 1":               set("0001-01-01T00:00:00Z", "spec", "askedAt"),
		"the year 0":               set("0000-01-01T00:00:00Z", "spec", "askedAt"),
		"the year -1":              set("-001-01-01T00:00:00Z", "spec", "askedAt"),
		"a time in small letters":  set("2026-01-01t00:00:00z", "spec", "askedAt"),
		"a time with a comma":      set("2026-01-01T00:00:00,5Z", "spec", "askedAt"),
		"a time with a letter":     set("2026-01-01T00:00:00x5Z", "spec", "askedAt"),
		"a leap second":            set("2026-06-30T23:59:60Z", "spec", "askedAt"),
		"a zone of 99 hours":       set("2026-01-01T00:00:00+99:99", "spec", "askedAt"),
		"a fine time":              set("2026-01-01T00:00:00.123456789123456789Z", "spec", "askedAt"),
		"a time of its own":        set("tomorrow", "spec", "askedAt"),
		"an hour that is not":      set("2026-01-01T24:00:00Z", "spec", "askedAt"),
		"a negative period":        set("-1h", "spec", "period"),
		"a period without end":     set("9999999999999999h", "spec", "period"),
		"a period of nothing":      set("0s", "spec", "period"),
		"a period in nanoseconds":  set("1ns", "spec", "period"),
		"a period in micro":        set("600000000µs", "spec", "period"),
		"a period as a quantity":   set("10Gi", "spec", "period"),
		"a year's period":          set("8760h", "spec", "period"),
		"a NUL in a login":         set("a\x00b@example.com", "spec", "user", "login"),
		"a break in a login":       set("a\nb@example.com", "spec", "user", "login"),
		"right to left":            set("\u202eecila@example.com", "spec", "user", "login"),
		"ANSI in a name":           set("\x1b[2Jhello", "spec", "user", "displayName"),
		"a template for a role":    set("{{.Role}}", "spec", "role"),
		"a path for a role":        set("../../secrets", "spec", "role"),
		"a masters' role":          set("system:masters", "spec", "role"),
		"a path for a namespace":   set([]any{"../kube-system"}, "spec", "namespaces"),
		"a foreign owner":          set([]any{map[string]any{"apiVersion": "v1", "kind": "ConfigMap", "name": "x", "uid": "y"}}, "metadata", "ownerReferences"),
		"labels that say much":     set(map[string]any{v1alpha1.SigninUIDLabel: string(before.UID)}, "metadata", "labels"),
		"another's name":           set(before.Name+"x", "metadata", "name"),
		"a name of 253 characters": set(strings.Repeat("n", 253), "metadata", "name"),
	} {
		o := base()
		change(o)
		body, err := json.Marshal(o)
		if err != nil {
			t.Fatal(err)
		}
		name, _ := o["metadata"].(map[string]any)["name"].(string)
		err = request(k.CoreV1().RESTClient().Post()).SetHeader("Content-Type", "application/json").Body(body).Do(t.Context()).Error()
		if err != nil {
			if !apierrors.IsInvalid(err) && !apierrors.IsBadRequest(err) && !apierrors.IsForbidden(err) && !apierrors.IsRequestEntityTooLargeError(err) {
				t.Errorf("%s: %.300v", what, err)
			}
			continue
		}
		stored++
		// It is there: the operator says one thing about it, or has ended it.
		state := "" // as the API server has it, whatever a client could make of it
		within(long, func() bool {
			raw, err := request(k.CoreV1().RESTClient().Get(), name).Do(t.Context()).Raw()
			if apierrors.IsNotFound(err) {
				state = "gone"
				return true
			}
			if err != nil {
				t.Fatal(err)
			}
			var got struct {
				Metadata struct{ Generation int64 }
				Status   struct {
					ObservedGeneration int64
					Phase, Role        string
					Conditions         []metav1.Condition
				}
			}
			if json.Unmarshal(raw, &got) != nil || got.Status.ObservedGeneration != got.Metadata.Generation {
				return false
			}
			c := meta.FindStatusCondition(got.Status.Conditions, v1alpha1.ConditionReady)
			if c == nil || c.Reason == "" {
				t.Errorf("%s: %s", what, raw)
				return true
			}
			state = got.Status.Phase + " " + c.Reason
			if got.Status.Phase == string(signin.PhaseReady) {
				if got.Status.Role != "view" {
					t.Errorf("%s: Ready as %s", what, got.Status.Role)
				}
			} else if given := s.given(t, name); len(given) > 0 {
				t.Errorf("%s: %s, and given %v", what, state, given)
			}
			return true
		})
		if state == "" {
			t.Errorf("%s: stored, and the operator says nothing about it", what)
		}
		t.Logf("%s: %s", what, state)
		// Others are served while it is there.
		phone := s.person(t, "niaj-phone", "niaj@example.com")
		ok := within(long, func() bool {
			a := s.ask(t, phone, "POST", api+"/login", "{}")
			b := s.ask(t, phone, "GET", api+"/kubeconfig?wait=5s", "")
			return a.Status == http.StatusAccepted && b.Status == http.StatusOK
		})
		if !ok {
			t.Errorf("%s: nobody else can sign in while it is there", what)
		}
		if err := request(k.CoreV1().RESTClient().Delete(), name).Do(t.Context()).Error(); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if !within(long, func() bool {
			return apierrors.IsNotFound(request(k.CoreV1().RESTClient().Get(), name).Do(t.Context()).Error())
		}) {
			t.Errorf("%s: it cannot be got rid of", what)
			s.freeHand(t, name)
		}
		if ok {
			s.logout(t, phone)
		}
	}
	if stored < 5 {
		t.Errorf("only %d of them are stored: the schema is all that this shows", stored)
	}
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		select {
		case <-p.Done():
			t.Errorf("%s has ended", p.Args[1])
		default:
		}
		if strings.Contains(p.Output(), "panic") {
			t.Errorf("%s panicked", p.Args[1])
		}
	}
	if now := s.signins(t, st.Username); len(now) != 1 || now[0].ResourceVersion != before.ResourceVersion {
		t.Errorf("another's sign-in was touched: %s, was %s", mustJSON(t, now), mustJSON(t, before))
	}
	if a := s.ask(t, p, "GET", api+"/kubeconfig", ""); a.Status != http.StatusOK {
		t.Errorf("another's sign-in: %v", a)
	}
}

// freeHand removes a sign-in that the operator does not let go, so that the tests
// after it have a system.
func (s *system) freeHand(t *testing.T, name string) {
	t.Helper()
	c := s.clientOf(t, s.account(t, "tailplane-operator"))
	o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	_ = c.Patch(t.Context(), o, patch) // its answer may not be readable
	if err := s.admin.Delete(t.Context(), o); client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
	if err := s.Operator.Stop(long); err != nil {
		t.Error(err)
	}
	s.restartOperator(t)
}
