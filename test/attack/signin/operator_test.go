package signin

import (
	"context"
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	admissionv1 "k8s.io/api/admissionregistration/v1"
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
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// newTenant is somebody who may do everything with sign-ins in their namespace, and
// with what else lies there.
func newTenant(t *testing.T, s *attacktest.Env, name string) client.Client {
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
		if err := s.KubeClient.Create(ctx, o); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := s.KubeClient.Delete(context.WithoutCancel(ctx), o); err != nil {
				t.Error(err)
			}
		})
	}
	config := s.Cluster.AdminConfig()
	config.Impersonate = rest.ImpersonationConfig{UserName: name, Groups: []string{"system:authenticated"}}
	return s.ClientFor(t, config)
}

// reasonsOf are those of the events about a sign-in.
func reasonsOf(t *testing.T, s *attacktest.Env, name string) (out []string) {
	t.Helper()
	var list eventsv1.EventList
	if err := s.KubeClient.List(t.Context(), &list, client.InNamespace(testenv.SigninNamespace)); err != nil {
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
func withoutPolicy(t *testing.T, s *attacktest.Env, probe client.Client) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	var binding admissionv1.ValidatingAdmissionPolicyBinding
	if err := s.KubeClient.Get(ctx, client.ObjectKey{Name: "tailplane-signins"}, &binding); err != nil {
		t.Fatal(err)
	}
	if err := s.KubeClient.Delete(ctx, &binding); err != nil {
		t.Fatal(err)
	}
	inForce := func() bool {
		o := attacktest.ForgedSignIn("probe@example.com", "probe", "view")
		o.Finalizers = nil
		err := probe.Create(ctx, o, client.DryRunAll)
		if err != nil && !apierrors.IsForbidden(err) {
			t.Fatal(err)
		}
		return err != nil
	}
	t.Cleanup(func() {
		back := &admissionv1.ValidatingAdmissionPolicyBinding{ObjectMeta: metav1.ObjectMeta{Name: binding.Name, Labels: binding.Labels}, Spec: binding.Spec}
		if err := s.KubeClient.Create(ctx, back); err != nil {
			t.Error(err)
		}
		attacktest.Eventually(t, attacktest.Long, "the admission policy is in force again", inForce)
	})
	attacktest.Eventually(t, attacktest.Long, "the admission policy is out of force", func() bool { return !inForce() })
}

// SI-01. Who may create a sign-in in a namespace must not choose its user or role:
// the API server refuses it, and without that policy the operator does.
//
// Guard: deploy/base/policy-signins.yaml; signin.Facts.refusal (name, role, policy).
func TestSI01_ForgedSignIn(t *testing.T) {
	s := attacktest.Start(t)
	mallory := newTenant(t, s, "mallory")
	ctx := t.Context()
	for _, o := range []*v1alpha1.TkaSignin{
		attacktest.ForgedSignIn("ceo@example.com", "n1", "cluster-admin"), attacktest.ForgedSignIn("ceo@example.com", "n1", "view"),
		{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: "ceo"}, Spec: attacktest.ForgedSignIn("ceo@example.com", "n1", "cluster-admin").Spec},
	} {
		err := mallory.Create(ctx, o)
		if !apierrors.IsForbidden(err) || !strings.Contains(err.Error(), "only the access server creates sign-ins") {
			t.Errorf("%s as %s: %v", o.Name, o.Spec.Role, err)
		}
		if err := s.KubeClient.Get(ctx, client.ObjectKeyFromObject(o), new(v1alpha1.TkaSignin)); !apierrors.IsNotFound(err) {
			t.Errorf("%s is stored: %v", o.Name, err)
		}
	}
	// Not even the cluster's administrator, nor the operator, writes one.
	for who, c := range map[string]client.Client{"the administrator": s.KubeClient, "the operator": s.ClientFor(t, s.AccountConfig(t, "tailplane-operator"))} {
		if err := c.Create(ctx, attacktest.ForgedSignIn("ceo@example.com", "n1", "view")); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", who, err)
		}
	}
	// The control: the access server's account, the same object.
	access := s.ClientFor(t, s.AccountConfig(t, "tailplane-access"))
	good := attacktest.ForgedSignIn("ceo@example.com", "n1", "view")
	if err := access.Create(ctx, good); err != nil {
		t.Fatalf("the access server: %v", err)
	}
	attacktest.Eventually(t, attacktest.Long, "it is provisioned", func() bool {
		return s.KubeClient.Get(ctx, client.ObjectKeyFromObject(good), good) == nil && ready(good).Status == metav1.ConditionTrue
	})
	if err := s.KubeClient.Delete(ctx, good); err != nil {
		t.Fatal(err)
	}
	s.Settles(t, "the control")

	t.Run("without the policy", func(t *testing.T) {
		withoutPolicy(t, s, mallory)
		refused := func(what string, o *v1alpha1.TkaSignin, reason string) {
			t.Helper()
			if err := mallory.Create(ctx, o); err != nil {
				t.Fatalf("%s: %v", what, err)
			}
			attacktest.Eventually(t, attacktest.Long, what, func() bool {
				return s.KubeClient.Get(ctx, client.ObjectKeyFromObject(o), o) == nil && o.Status.ObservedGeneration == o.Generation
			})
			if c := ready(o); c.Reason != reason || c.Status != metav1.ConditionFalse || o.Status.Role != "" || o.Status.ServiceAccount != nil {
				t.Errorf("%s: %+v, condition %+v, want %s", what, o.Status, c, reason)
			}
			if given := s.AccessOf(t, o.Name); len(given) > 0 {
				t.Errorf("%s: given %v", what, given)
			}
			attacktest.Eventually(t, attacktest.Long, what+": an event says so", func() bool { return slices.Contains(reasonsOf(t, s, o.Name), "Refused") })
			if err := mallory.Delete(ctx, o); err != nil {
				t.Fatal(err)
			}
			attacktest.Eventually(t, attacktest.Long, what+": it is gone", func() bool { return apierrors.IsNotFound(s.KubeClient.Get(ctx, client.ObjectKeyFromObject(o), o)) })
		}
		named := attacktest.ForgedSignIn("ceo@example.com", "n1", "cluster-admin")
		named.Name = "ceo"
		refused("a name of one's own", named, signin.ReasonNameTaken)
		refused("a role that is not on the list", attacktest.ForgedSignIn("ceo@example.com", "n1", "cluster-admin"), signin.ReasonRoleNotAllowed)
		refused("a group for a role", attacktest.ForgedSignIn("ceo@example.com", "n1", "system:masters"), signin.ReasonRoleNotAllowed)
		ours := attacktest.ForgedSignIn("ceo@example.com", "n1", "view")
		ours.Spec.Namespaces = []string{testenv.SystemNamespace}
		refused("our own namespace", ours, signin.ReasonRoleNotAllowed)
		year := attacktest.ForgedSignIn("ceo@example.com", "n1", "view")
		year.Spec.Period = metav1.Duration{Duration: 8000 * time.Hour}
		refused("a year", year, signin.ReasonBadPeriod)
		// With the right name and a listed role: an operator that has looked refuses
		// everything while strangers may write. What it knew before lasts 30 s.
		if err := s.Operator.Stop(attacktest.Long); err != nil {
			t.Fatal(err)
		}
		s.RestartOperator(t)
		refused("everything as the access server would write it", attacktest.ForgedSignIn("ceo@example.com", "n1", "edit"), signin.ReasonAdmissionPolicyMissing)
	})
	// What the operator knew of the policy is as old as its last look.
	if err := s.Operator.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	s.RestartOperator(t)
	s.Settles(t, "afterwards")
}

// SI-02. What was made for a sign-in is ours: whoever changes it finds it corrected
// or the sign-in ended, with an event, and access never outlives the sign-in.
//
// Guard: the immutable spec of the CRD, deploy/base/policy-signins.yaml and
// policy-tokens.yaml, signin.Next (rows 1, 5, 5b and 6), signinkube's sweep.
func TestSI02_Tampering(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "ivan-laptop", "ivan@example.com")
	s.SetPolicy(t, attacktest.Grant("ivan@example.com", `{"role": "view", "period": "8h"}`))
	s.WaitGranted(t, p)
	mallory := newTenant(t, s, "mallory")
	access := s.ClientFor(t, s.AccountConfig(t, "tailplane-access"))
	ctx := t.Context()
	object := func(st signin.Status) *v1alpha1.TkaSignin {
		t.Helper()
		o := new(v1alpha1.TkaSignin)
		if err := s.KubeClient.Get(ctx, client.ObjectKey{Namespace: testenv.SigninNamespace, Name: st.Name}, o); err != nil {
			t.Fatal(err)
		}
		return o
	}
	said := func(t *testing.T, st signin.Status, reason string) {
		t.Helper()
		attacktest.Eventually(t, attacktest.Long, "an event says "+reason, func() bool { return slices.Contains(reasonsOf(t, s, st.Name), reason) })
	}

	t.Run("the sign-in itself", func(t *testing.T) {
		st := s.Login(t, p, signin.LoginRequest{})
		before := object(st)
		for what, change := range map[string]func(*v1alpha1.TkaSignin){
			"role":       func(o *v1alpha1.TkaSignin) { o.Spec.Role = "edit" },
			"user":       func(o *v1alpha1.TkaSignin) { o.Spec.User.Login = "ceo@example.com" },
			"device":     func(o *v1alpha1.TkaSignin) { o.Spec.Device.ID = "n404" },
			"namespaces": func(o *v1alpha1.TkaSignin) { o.Spec.Namespaces = []string{"shop"} },
		} {
			for who, c := range map[string]client.Client{"a tenant": mallory, "the administrator": s.KubeClient, "the access server": access} {
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
			for who, c := range map[string]client.Client{"a tenant": mallory, "the administrator": s.KubeClient} {
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
		for who, c := range map[string]client.Client{"a tenant": mallory, "the administrator": s.KubeClient, "the access server": access} {
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
		s.Logout(t, p)
	})
	t.Run("a token of it", func(t *testing.T) {
		st := s.Login(t, p, signin.LoginRequest{})
		_, stderr, exit := s.KubectlAs(t, "mallory", "create", "token", "-n", testenv.SigninNamespace, st.Name)
		if exit == 0 || !strings.Contains(stderr, "only the access server makes tokens") {
			t.Errorf("a tenant makes a token: exit %d, %s", exit, stderr)
		}
		// The testbed has no controller that brings a quota into force, which it does
		// by copying it into its status; the API server then enforces it by itself.
		var quota corev1.ResourceQuota
		if err := s.KubeClient.Get(ctx, client.ObjectKey{Namespace: testenv.SigninNamespace, Name: "tailplane-signins"}, &quota); err != nil {
			t.Fatal(err)
		}
		quota.Status = corev1.ResourceQuotaStatus{Hard: quota.Spec.Hard, Used: corev1.ResourceList{}}
		for name := range quota.Spec.Hard {
			quota.Status.Used[name] = resource.MustParse("0")
		}
		if err := s.KubeClient.Status().Update(ctx, &quota); err != nil {
			t.Fatal(err)
		}
		attacktest.Eventually(t, attacktest.Long, "the quota is in force", func() bool {
			return apierrors.IsForbidden(s.KubeClient.Create(ctx, &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: "probe"}}, client.DryRunAll))
		})
		secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: "forever", Annotations: map[string]string{corev1.ServiceAccountNameKey: st.Name}}, Type: corev1.SecretTypeServiceAccountToken}
		if err := mallory.Create(ctx, secret); !apierrors.IsForbidden(err) {
			t.Errorf("a tenant makes a token that never ends: %v", err)
			s.KubeClient.Delete(ctx, secret)
		}
		pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: "puppet"}, Spec: corev1.PodSpec{ServiceAccountName: st.Name, Containers: []corev1.Container{{Name: "c", Image: "example.test/c"}}}}
		if err := mallory.Create(ctx, pod); !apierrors.IsForbidden(err) {
			t.Errorf("a tenant runs a pod as the sign-in: %v", err)
			s.KubeClient.Delete(ctx, pod)
		}
		s.Logout(t, p)
	})
	bindingOf := func(st signin.Status) *rbacv1.ClusterRoleBinding {
		t.Helper()
		b := new(rbacv1.ClusterRoleBinding)
		if err := s.KubeClient.Get(ctx, client.ObjectKey{Name: signin.BindingName(st.Name)}, b); err != nil {
			t.Fatal(err)
		}
		return b
	}
	for what, change := range map[string]func(t *testing.T, b *rbacv1.ClusterRoleBinding){
		"subjects of the binding": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			b.Subjects = append(b.Subjects, rbacv1.Subject{APIGroup: rbacv1.GroupName, Kind: rbacv1.UserKind, Name: "mallory"})
			if err := s.KubeClient.Update(ctx, b); err != nil {
				t.Fatal(err)
			}
		},
		"another's account in the binding": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			b.Subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: "default", Name: "default"}}
			if err := s.KubeClient.Update(ctx, b); err != nil {
				t.Fatal(err)
			}
		},
		"labels of the binding": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			b.Labels = nil
			if err := s.KubeClient.Update(ctx, b); err != nil {
				t.Fatal(err)
			}
		},
		"the role of the binding": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			other := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: b.Name, Labels: b.Labels, Annotations: b.Annotations}, Subjects: b.Subjects, RoleRef: b.RoleRef}
			other.RoleRef.Name = "cluster-admin"
			if err := s.KubeClient.Delete(ctx, b); err != nil {
				t.Fatal(err)
			}
			for { // the operator may have made its own again meanwhile
				err := s.KubeClient.Create(ctx, other.DeepCopy())
				if err == nil {
					return
				}
				if !apierrors.IsAlreadyExists(err) {
					t.Fatal(err)
				}
				if err := s.KubeClient.Delete(ctx, &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: b.Name}}); client.IgnoreNotFound(err) != nil {
					t.Fatal(err)
				}
			}
		},
		"the binding is deleted": func(t *testing.T, b *rbacv1.ClusterRoleBinding) {
			if err := s.KubeClient.Delete(ctx, b); err != nil {
				t.Fatal(err)
			}
		},
	} {
		t.Run(what, func(t *testing.T) {
			st := s.Login(t, p, signin.LoginRequest{})
			was := bindingOf(st)
			change(t, was.DeepCopy())
			took := attacktest.Eventually(t, attacktest.Long, "it is corrected", func() bool {
				b := new(rbacv1.ClusterRoleBinding)
				err := s.KubeClient.Get(ctx, client.ObjectKeyFromObject(was), b)
				return err == nil && b.UID != was.UID && b.RoleRef == was.RoleRef && fmt.Sprint(b.Subjects) == fmt.Sprint(was.Subjects) && b.Labels[v1alpha1.SigninUIDLabel] == was.Labels[v1alpha1.SigninUIDLabel]
			})
			t.Logf("corrected after %v", took.Round(time.Millisecond))
			s.Settles(t, what)
			said(t, st, "Corrected")
			s.Logout(t, p)
			if given := s.AccessOf(t, st.Name); len(given) > 0 {
				t.Errorf("after logout: %v", given)
			}
		})
	}
	t.Run("one binding more", func(t *testing.T) {
		st := s.Login(t, p, signin.LoginRequest{})
		was := bindingOf(st)
		more := &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: "helpful-" + st.Name, Labels: was.Labels}, RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "cluster-admin"}, Subjects: was.Subjects}
		if err := s.KubeClient.Create(ctx, more); err != nil {
			t.Fatal(err)
		}
		attacktest.Eventually(t, attacktest.Long, "it is removed", func() bool {
			return apierrors.IsNotFound(s.KubeClient.Get(ctx, client.ObjectKeyFromObject(more), more))
		})
		s.Settles(t, "one more")
		s.Logout(t, p)
	})
	for what, change := range map[string]func(t *testing.T, st signin.Status){
		"the account is deleted": func(t *testing.T, st signin.Status) {
			if err := mallory.Delete(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: st.Name}}); err != nil {
				t.Fatal(err)
			}
		},
		"the account is made anew": func(t *testing.T, st signin.Status) {
			sa := new(corev1.ServiceAccount)
			if err := s.KubeClient.Get(ctx, client.ObjectKey{Namespace: testenv.SigninNamespace, Name: st.Name}, sa); err != nil {
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
			st := s.Login(t, p, signin.LoginRequest{})
			change(t, st)
			attacktest.Eventually(t, attacktest.Long, "the sign-in has ended", func() bool {
				return apierrors.IsNotFound(s.KubeClient.Get(ctx, client.ObjectKey{Namespace: testenv.SigninNamespace, Name: st.Name}, new(v1alpha1.TkaSignin)))
			})
			said(t, st, "Revoked")
			attacktest.Eventually(t, attacktest.Long, "nothing is left", func() bool { return len(s.AccessOf(t, st.Name)) == 0 })
			if a := s.Ask(t, p, "GET", attacktest.API+"/kubeconfig", ""); a.Status == http.StatusOK {
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
		if a := s.Ask(t, p, "POST", attacktest.API+"/login", "{}"); a.Status != http.StatusAccepted {
			t.Fatalf("login: %v", a)
		}
		attacktest.Eventually(t, attacktest.Long, "it is refused", func() bool { return s.Ask(t, p, "GET", attacktest.API+"/kubeconfig", "").Status == http.StatusConflict })
		if given := s.AccessOf(t, name); len(given) != 1 || given[0].UID != string(trap.UID) {
			t.Errorf("given: %v", given)
		}
		s.Logout(t, p)
		if err := s.KubeClient.Delete(ctx, trap); err != nil {
			t.Fatal(err)
		}
	})
	t.Run("the finalizer is gone", func(t *testing.T) {
		st := s.Login(t, p, signin.LoginRequest{})
		withoutPolicy(t, s, mallory)
		if err := s.Operator.Stop(attacktest.Long); err != nil { // or it would be quicker
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
		if given := s.AccessOf(t, st.Name); len(given) == 0 {
			t.Fatal("nothing is left over: this test shows nothing")
		}
		s.RestartOperator(t)
		attacktest.Eventually(t, attacktest.Long, "nothing is left", func() bool { return len(s.AccessOf(t, st.Name)) == 0 })
	})
	// What the operator knew of the policy is as old as its last look.
	if err := s.Operator.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	s.RestartOperator(t)
	s.Settles(t, "afterwards")

	t.Run("the namespace is deleted", func(t *testing.T) {
		s := attacktest.New(t)
		p := s.Alice(t)
		if a := s.Ask(t, p, "POST", attacktest.API+"/login", "{}"); a.Status != http.StatusAccepted {
			t.Fatalf("login: %v", a)
		}
		held := s.TokenClient(t, s.Kubeconfig(t, p).Token.Reveal())
		st := s.SignIns(t, "alice@example.com")[0]
		if err := attacktest.ListPods(t, held, "shop"); err != nil {
			t.Fatalf("before: %v", err)
		}
		ns := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: testenv.SigninNamespace}}
		if err := s.KubeClient.Delete(ctx, ns); err != nil {
			t.Fatal(err)
		}
		attacktest.Eventually(t, attacktest.Long, "the token gives nothing", func() bool { return attacktest.ListPods(t, held, "shop") != nil })
		attacktest.Eventually(t, attacktest.Long, "nothing is left", func() bool { return len(s.AccessOf(t, st.Name)) == 0 })
		took := attacktest.Eventually(t, 2*attacktest.Long, "the namespace is gone", func() bool { return apierrors.IsNotFound(s.KubeClient.Get(ctx, client.ObjectKeyFromObject(ns), ns)) })
		t.Logf("the namespace was gone after %v", took.Round(time.Millisecond))
	})
}

// startBehind starts a role of the server that reaches the API server through g only.
// It plays the part of the environment's own, which must not run.
func startBehind(t *testing.T, s *attacktest.Env, g *attacktest.Gate, role string) *testenv.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), attacktest.Long)
	defer cancel()
	path := s.KubeconfigThrough(t, g, testenv.SystemNamespace, "tailplane-"+role)
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
	s := attacktest.Start(t)
	p := s.Person(t, "kim-laptop", "kim@example.com")
	s.SetPolicy(t, attacktest.Grant("kim@example.com", `{"role": "view", "period": "8h"}, {"role": "edit", "period": "1h"}`))
	s.WaitGranted(t, p)
	const view, edit = `{"role":"view"}`, `{"role":"edit"}`
	access := s.ClientFor(t, s.AccountConfig(t, "tailplane-access"))
	id, err := s.Net.ID(p.Node)
	if err != nil {
		t.Fatal(err)
	}
	name := signin.Owner{Login: "kim@example.com", DeviceID: string(id), Tailnet: "example.com"}.Name()
	post := func(ctx context.Context, path, body string) { // the answer may never come
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		res, err := s.HTTPClient(p).Do(s.NewRequest(t, "POST", attacktest.API+path, body).WithContext(ctx))
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
	signedIn := func() { post(t.Context(), "/login", view); s.Kubeconfig(t, p) }
	stories := []struct {
		name   string
		before func() // with nobody killed
		act    func(context.Context)
		// then says what the end must be like, beside the laws.
		then func(t *testing.T)
	}{
		{"login", func() { s.Logout(t, p) }, func(ctx context.Context) { post(ctx, "/login", view) }, nil},
		{"extension", signedIn, func(ctx context.Context) { post(ctx, "/login", `{"role":"view","period":"2h"}`) }, func(t *testing.T) {
			if o := s.SignIns(t, "kim@example.com"); len(o) != 1 || !o[0].Status.ValidUntil.Time.Equal(o[0].Spec.AskedAt.Add(o[0].Spec.Period.Duration)) {
				t.Errorf("%+v", o)
			}
		}},
		{"another role", signedIn, func(ctx context.Context) { post(ctx, "/login", edit) }, nil},
		{"logout", signedIn, func(ctx context.Context) { post(ctx, "/logout", "") }, func(t *testing.T) {
			if o := s.SignIns(t, "kim@example.com"); len(o) != 0 {
				t.Errorf("%+v", o)
			}
		}},
		{"expiry", signedIn, end, func(t *testing.T) {
			attacktest.Eventually(t, attacktest.Long, "it is gone", func() bool { return len(s.SignIns(t, "kim@example.com")) == 0 })
		}},
	}
	g := s.NewGate(t)
	for _, role := range []string{"operator", "access"} {
		t.Run(role, func(t *testing.T) {
			mine := map[string]*testenv.Process{"operator": s.Operator, "access": s.Access}[role]
			if err := mine.Stop(attacktest.Long); err != nil {
				t.Fatal(err)
			}
			back := func() *testenv.Process {
				t.Helper()
				if role == "operator" {
					s.ReleaseLease(t)
				}
				p := startBehind(t, s, g, role)
				if role == "access" {
					reconnect(t, s)
				}
				return p
			}
			process := back()
			defer func() { // the environment's own again
				if err := process.Stop(attacktest.Long); err != nil {
					t.Error(err)
				}
				var err error
				if role == "operator" {
					s.ReleaseLease(t)
					err = s.StartOperator(context.WithoutCancel(t.Context()))
				} else if err = s.StartAccess(context.WithoutCancel(t.Context())); err == nil {
					reconnect(t, s)
				}
				if err != nil {
					t.Fatal(err)
				}
				s.Logout(t, p)
			}()
			for _, story := range stories {
				if role == "access" && story.name == "expiry" {
					continue // it writes nothing then
				}
				t.Run(story.name, func(t *testing.T) {
					story.before()
					s.Settles(t, "before")
					g.Arm(0, process)
					story.act(t.Context())
					s.Settles(t, "with nobody killed")
					if story.then != nil {
						story.then(t)
					}
					writes := g.Disarm()
					t.Logf("writes: %s", strings.Join(writes, ", "))
					if len(writes) == 0 {
						t.Fatal("it writes nothing: this test shows nothing")
					}
					for n := range writes {
						var cancel context.CancelFunc
						var asked chan struct{}
						for try, struck := 1, false; !struck; try++ {
							story.before()
							s.Settles(t, "before")
							g.Arm(n+1, process)
							var ctx context.Context
							ctx, cancel = context.WithTimeout(t.Context(), attacktest.Long)
							asked = make(chan struct{})
							go func() { defer close(asked); story.act(ctx) }()
							struck = g.Strikes(asked)
							if !struck { // what was to be written was written in the same second before
								writes := g.Disarm()
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
						killed := g.Disarm()
						process = back()
						what := fmt.Sprintf("killed after %s", killed[len(killed)-1])
						took := s.Settles(t, what)
						t.Logf("%s: whole %v after it was back", what, took.Round(time.Millisecond))
						if story.then != nil && role == "operator" {
							story.then(t) // what the access server did not do, it was not asked again
						}
						// And it goes on from there.
						s.Logout(t, p)
						signedIn()
						s.Logout(t, p)
						s.Settles(t, what+", then used")
					}
				})
			}
			if role == "access" {
				return
			}
			t.Run("waking without an event", func(t *testing.T) {
				signedIn()
				end := s.EndSignInIn(t, name, 20*time.Second)
				process.Kill()
				process = back()
				if time.Now().After(end) {
					t.Fatal("the end came before the operator was back: this test shows nothing")
				}
				attacktest.Eventually(t, attacktest.Long, "it has ended", func() bool { return len(s.AccessOf(t, name)) == 0 })
				if late := time.Since(end); late < 0 || late > attacktest.Soon {
					t.Errorf("ended %v after its end", late)
				}
				attacktest.Eventually(t, attacktest.Long, "it is gone", func() bool { return len(s.SignIns(t, "kim@example.com")) == 0 })
			})
		})
	}
}

// reconnect waits until everybody reaches the access server that has been started
// again.
func reconnect(t *testing.T, s *attacktest.Env) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), attacktest.Long)
	defer cancel()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for p, hc := range s.Clients {
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
	s := attacktest.Start(t)
	p := s.Person(t, "niaj-laptop", "niaj@example.com")
	s.SetPolicy(t, attacktest.Grant("niaj@example.com", `{"role": "view", "period": "8h"}`))
	s.WaitGranted(t, p)
	st := s.Login(t, p, signin.LoginRequest{})
	before := s.SignIns(t, st.Username)[0]
	k, err := kubernetes.NewForConfig(s.AccountConfig(t, "tailplane-access"))
	if err != nil {
		t.Fatal(err)
	}
	// Requests as they are: what is stored may be nothing that a client can read.
	request := func(r *rest.Request, name ...string) *rest.Request {
		return r.AbsPath(append([]string{"/apis/tailplane.dev/v1alpha1/namespaces", testenv.SigninNamespace, "tkasignins"}, name...)...)
	}
	base := func() map[string]any {
		o := attacktest.ForgedSignIn("hostile@example.com", "n1", "view")
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
		attacktest.Within(attacktest.Long, func() bool {
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
			} else if given := s.AccessOf(t, name); len(given) > 0 {
				t.Errorf("%s: %s, and given %v", what, state, given)
			}
			return true
		})
		if state == "" {
			t.Errorf("%s: stored, and the operator says nothing about it", what)
		}
		t.Logf("%s: %s", what, state)
		// Others are served while it is there.
		phone := s.Person(t, "niaj-phone", "niaj@example.com")
		ok := attacktest.Within(attacktest.Long, func() bool {
			a := s.Ask(t, phone, "POST", attacktest.API+"/login", "{}")
			b := s.Ask(t, phone, "GET", attacktest.API+"/kubeconfig?wait=5s", "")
			return a.Status == http.StatusAccepted && b.Status == http.StatusOK
		})
		if !ok {
			t.Errorf("%s: nobody else can sign in while it is there", what)
		}
		if err := request(k.CoreV1().RESTClient().Delete(), name).Do(t.Context()).Error(); client.IgnoreNotFound(err) != nil {
			t.Fatal(err)
		}
		if !attacktest.Within(attacktest.Long, func() bool {
			return apierrors.IsNotFound(request(k.CoreV1().RESTClient().Get(), name).Do(t.Context()).Error())
		}) {
			t.Errorf("%s: it cannot be got rid of", what)
			freeHand(t, s, name)
		}
		if ok {
			s.Logout(t, phone)
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
	if now := s.SignIns(t, st.Username); len(now) != 1 || now[0].ResourceVersion != before.ResourceVersion {
		t.Errorf("another's sign-in was touched: %s, was %s", mustJSON(t, now), mustJSON(t, before))
	}
	if a := s.Ask(t, p, "GET", attacktest.API+"/kubeconfig", ""); a.Status != http.StatusOK {
		t.Errorf("another's sign-in: %v", a)
	}
}

// freeHand removes a sign-in that the operator does not let go, so that the tests
// after it have a system.
func freeHand(t *testing.T, s *attacktest.Env, name string) {
	t.Helper()
	c := s.ClientFor(t, s.AccountConfig(t, "tailplane-operator"))
	o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name}}
	patch := client.RawPatch(types.MergePatchType, []byte(`{"metadata":{"finalizers":null}}`))
	_ = c.Patch(t.Context(), o, patch) // its answer may not be readable
	if err := s.KubeClient.Delete(t.Context(), o); client.IgnoreNotFound(err) != nil {
		t.Error(err)
	}
	if err := s.Operator.Stop(attacktest.Long); err != nil {
		t.Error(err)
	}
	s.RestartOperator(t)
}
