package load

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// pairs creates n ServiceAccounts with one ClusterRoleBinding each, as an administrator would by hand, and removes
// them. It returns the number of pairs created per second.
func pairs(b *testing.B, ctx context.Context, k *kubernetes.Clientset, n int) float64 {
	b.Helper()
	const ns = "default"
	began := time.Now()
	err := inParallel(n, atOnce, func(i int) error {
		name := fmt.Sprintf("bare-%d", i)
		if _, err := k.CoreV1().ServiceAccounts(ns).Create(ctx, &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{}); err != nil {
			return err
		}
		_, err := k.RbacV1().ClusterRoleBindings().Create(ctx, bindingOf(name, ns), metav1.CreateOptions{})
		return err
	})
	rate := float64(n) / time.Since(began).Seconds()
	err = errors.Join(err, inParallel(n, atOnce, func(i int) error {
		name := fmt.Sprintf("bare-%d", i)
		return errors.Join(k.RbacV1().ClusterRoleBindings().Delete(ctx, name, metav1.DeleteOptions{}), k.CoreV1().ServiceAccounts(ns).Delete(ctx, name, metav1.DeleteOptions{}))
	}))
	if err != nil {
		b.Fatal(err)
	}
	return rate
}

func bindingOf(name, ns string) *rbacv1.ClusterRoleBinding {
	return &rbacv1.ClusterRoleBinding{ObjectMeta: metav1.ObjectMeta{Name: name},
		RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: "view"},
		Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: ns, Name: name}}}
}

// A directWriter makes exactly the writes that the contract requires for one sign-in, with the rights of the two accounts.
// It does not watch, decide, wait or read. Its rate is therefore the maximum that the API server accepts. The
// operator must not run.
type directWriter struct{ access, operator client.Client }

func newScribe(b *testing.B, r *testenv.Env) directWriter {
	b.Helper()
	scheme := runtime.NewScheme()
	for _, add := range []func(*runtime.Scheme) error{v1alpha1.AddToScheme, corev1.AddToScheme, rbacv1.AddToScheme, eventsv1.AddToScheme, authenticationv1.AddToScheme} {
		if err := add(scheme); err != nil {
			b.Fatal(err)
		}
	}
	as := func(account string) client.Client {
		path, err := r.Cluster.ServiceAccountKubeconfig(b.Context(), testenv.SystemNamespace, account, b.TempDir())
		if err != nil {
			b.Fatal(err)
		}
		config, err := kube.Config(path)
		if err != nil {
			b.Fatal(err)
		}
		c, err := client.New(config, client.Options{Scheme: scheme})
		if err != nil {
			b.Fatal(err)
		}
		return c
	}
	return directWriter{as("tailplane-access"), as("tailplane-operator")}
}

// write makes the seven writes of one sign-in in the product's order.
func (s directWriter) write(ctx context.Context, person string) error {
	o, sa := new(v1alpha1.TkaSignin), new(corev1.ServiceAccount)
	if err := s.bind(ctx, person, o, sa); err != nil {
		return err
	}
	event := &eventsv1.Event{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name + ".bare"}, EventTime: metav1.NowMicro(), ReportingController: "tailplane-operator",
		ReportingInstance: "bare", Action: "Provision", Reason: "Provisioned", Type: "Normal", Note: bound,
		Regarding: corev1.ObjectReference{APIVersion: v1alpha1.GroupVersion.String(), Kind: "TkaSignin", Namespace: o.Namespace, Name: o.Name, UID: o.UID}}
	if err := s.operator.Create(ctx, event); err != nil {
		return err
	}
	return s.access.SubResource("token").Create(ctx, sa, &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: new(int64(8 * 60 * 60))}})
}

const bound = "The role view is bound in the whole cluster."

// bind makes the five of these writes that create a sign-in which the operator accepts as complete. It fills in the
// objects.
func (s directWriter) bind(ctx context.Context, person string, o *v1alpha1.TkaSignin, sa *corev1.ServiceAccount) error {
	id := sha256.Sum256([]byte(person))
	owner := signin.Owner{Login: person + "@" + crowdTailnet, UserID: person, DisplayName: person, DeviceID: "n" + hex.EncodeToString(id[:8]) + "CNTRL",
		DeviceName: person + "-laptop." + crowdTailnet, Tailnet: crowdTailnet}
	const ns = testenv.SigninNamespace
	now := metav1.Now().Rfc3339Copy()
	*o = v1alpha1.TkaSignin{
		ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: owner.Name(), Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy}, Finalizers: []string{v1alpha1.SigninFinalizer}},
		Spec: v1alpha1.TkaSigninSpec{User: v1alpha1.SigninUser{Login: owner.Login, ID: owner.UserID, DisplayName: owner.DisplayName},
			Device: v1alpha1.SigninDevice{ID: owner.DeviceID, Name: owner.DeviceName, Tailnet: owner.Tailnet},
			Role:   "view", Period: metav1.Duration{Duration: 8 * time.Hour}, AskedAt: now},
	}
	if err := s.access.Create(ctx, o); err != nil {
		return err
	}
	ours := metav1.ObjectMeta{Labels: map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.SigninNamespaceLabel: ns, v1alpha1.SigninUIDLabel: string(o.UID)},
		Annotations: map[string]string{v1alpha1.LoginAnnotation: owner.Login}}
	*sa = corev1.ServiceAccount{ObjectMeta: ours, AutomountServiceAccountToken: new(false)}
	sa.Namespace, sa.Name = ns, o.Name
	sa.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(o, v1alpha1.GroupVersion.WithKind("TkaSignin"))}
	crb := bindingOf(o.Name, ns)
	crb.ObjectMeta = ours
	crb.Name = signin.BindingName(o.Name)
	if err := errors.Join(s.operator.Create(ctx, sa), s.operator.Create(ctx, crb)); err != nil {
		return err
	}
	before := o.DeepCopy()
	metav1.SetMetaDataAnnotation(&o.ObjectMeta, v1alpha1.LastAttemptAnnotation, now.UTC().Format(time.RFC3339))
	if err := s.operator.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	until := metav1.NewTime(now.Add(8 * time.Hour))
	o.Status = v1alpha1.TkaSigninStatus{ObservedGeneration: o.Generation, Phase: "Ready", ValidUntil: &until, Role: "view", ServiceAccount: &v1alpha1.SigninAccount{Name: o.Name, UID: sa.UID}}
	for kind, is := range map[string]metav1.ConditionStatus{v1alpha1.ConditionReady: metav1.ConditionTrue, v1alpha1.ConditionProvisioned: metav1.ConditionTrue, v1alpha1.ConditionExpired: metav1.ConditionFalse} {
		o.Status.Conditions = append(o.Status.Conditions, metav1.Condition{Type: kind, Status: is, Reason: signin.ReasonProvisioned, Message: bound,
			ObservedGeneration: o.Generation, LastTransitionTime: now})
	}
	return s.operator.Status().Update(ctx, o)
}

// bare returns the sign-ins per second that the scribe writes, and the API server's cost of each.
func (s directWriter) bare(b *testing.B, ctx context.Context, r *testenv.Env, prefix string, n int) (rate float64, each time.Duration) {
	b.Helper()
	before := processorTime(b, r.Cluster.PID())
	defer func() { each = (processorTime(b, r.Cluster.PID()) - before) / time.Duration(n) }()
	began := time.Now()
	if err := inParallel(n, atOnce, func(i int) error { return s.write(ctx, fmt.Sprint(prefix, i)) }); err != nil {
		b.Fatal(err)
	}
	return float64(n) / time.Since(began).Seconds(), 0
}
