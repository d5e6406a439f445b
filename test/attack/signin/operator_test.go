package signin

import (
	"context"
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
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// newTenant returns a client of a tenant with every right on sign-ins, service accounts, secrets and pods in the
// namespace of the sign-ins.
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

// reasonsOf returns the reasons of the events about a sign-in.
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

// ready returns the Ready condition of a stored sign-in.
func ready(o *v1alpha1.TkaSignin) metav1.Condition {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		return *c
	}
	return metav1.Condition{}
}

// withoutPolicy disables the admission policy for sign-ins until the test ends, as if the administrator had not
// installed it.
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

// SI-01. A tenant who can create a sign-in in a namespace must not be able to choose its user or role. The API
// server's admission policy refuses such an object. Without that policy the operator refuses it.
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
	// Neither the cluster administrator nor the operator can create a sign-in.
	for who, c := range map[string]client.Client{"the administrator": s.KubeClient, "the operator": s.ClientFor(t, s.AccountConfig(t, "tailplane-operator"))} {
		if err := c.Create(ctx, attacktest.ForgedSignIn("ceo@example.com", "n1", "view")); !apierrors.IsForbidden(err) {
			t.Errorf("%s: %v", who, err)
		}
	}
	// Control: the access server's account can create the same object.
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
			switch c := ready(o); {
			case c.Reason != reason:
				t.Errorf("%s: c.Reason = %q, want %q", what, c.Reason, reason)
			case c.Status != metav1.ConditionFalse:
				t.Errorf("%s: c.Status = %q, want %q", what, c.Status, metav1.ConditionFalse)
			case o.Status.Role != "":
				t.Errorf("%s: o.Status.Role = %q, want none", what, o.Status.Role)
			case o.Status.ServiceAccount != nil:
				t.Errorf("%s: o.Status.ServiceAccount = %v, want nil", what, o.Status.ServiceAccount)
			}
			if given := s.AccessOf(t, o.Name); len(given) > 0 {
				t.Errorf("%s: given %v", what, given)
			}
			attacktest.Eventually(t, attacktest.Long, what+": an event reports it", func() bool { return slices.Contains(reasonsOf(t, s, o.Name), "Refused") })
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
		// The sign-in has the right name and a listed role. An operator that reads the policy state now refuses every
		// sign-in, because others can write them. The previous result is cached for 30 s.
		if err := s.Operator.Stop(attacktest.Long); err != nil {
			t.Fatal(err)
		}
		s.RestartOperator(t)
		refused("everything as the access server would write it", attacktest.ForgedSignIn("ceo@example.com", "n1", "edit"), signin.ReasonAdmissionPolicyMissing)
	})
	// The operator caches the state of the policy, so the test restarts it.
	if err := s.Operator.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	s.RestartOperator(t)
	s.Settles(t, "afterwards")
}

// SI-02. Objects that the operator creates for a sign-in are under its control. When another client changes one, the
// operator restores it or ends the sign-in, with an event. Access never outlives the sign-in.
//
// Guard: the immutable spec of the CRD, deploy/base/policy-signins.yaml and policy-tokens.yaml, signin.Next (rows 1,
// 5, 5b and 6), signinkube's sweep.
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
			"period":               func(o *v1alpha1.TkaSignin) { o.Spec.Period = metav1.Duration{Duration: 24 * time.Hour} },
			"askedAt":              func(o *v1alpha1.TkaSignin) { o.Spec.AskedAt = metav1.NewTime(time.Now().Add(50 * time.Second)) },
			"the finalizer":        func(o *v1alpha1.TkaSignin) { o.Finalizers = nil },
			"our annotations":      func(o *v1alpha1.TkaSignin) { delete(o.Annotations, v1alpha1.LastAttemptAnnotation) },
			"a label of Tailplane": func(o *v1alpha1.TkaSignin) { o.Labels["tailplane.dev/x"] = "y" },
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
		// Control: the operator ignores fields that it does not manage.
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
		if exit == 0 || !strings.Contains(stderr, "only the access server and the access proxy may create tokens") {
			t.Errorf("a tenant makes a token: exit %d, %s", exit, stderr)
		}
		// The testbed has no quota controller. A quota takes effect when its limits are copied into its status; the
		// test does that here, and the API server then enforces the quota.
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
			for { // the operator may have restored the object in the meantime
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
		"the account is recreated": func(t *testing.T, st signin.Status) {
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
		if err := s.Operator.Stop(attacktest.Long); err != nil { // a running operator would repair the object first
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
	// The operator caches the state of the policy, so the test restarts it.
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
		attacktest.Eventually(t, attacktest.Long, "the token gives no access", func() bool { return attacktest.ListPods(t, held, "shop") != nil })
		attacktest.Eventually(t, attacktest.Long, "nothing is left", func() bool { return len(s.AccessOf(t, st.Name)) == 0 })
		took := attacktest.Eventually(t, 2*attacktest.Long, "the namespace is gone", func() bool { return apierrors.IsNotFound(s.KubeClient.Get(ctx, client.ObjectKeyFromObject(ns), ns)) })
		t.Logf("the namespace was gone after %v", took.Round(time.Millisecond))
	})
}
