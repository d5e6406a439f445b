package controller

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/signin"
)

// act executes a step on o, in the order of the step's fields. Each part is idempotent, because the
// process may have been killed after any part. An error for which kube.IsStale is true means that
// another writer changed the object.
func (r *reconciler) act(ctx context.Context, o *v1alpha1.TkaSignin, step signin.Step) error {
	for _, b := range step.DeleteBindings {
		if err := kube.Delete(ctx, r.Client, bindingObject(b, nil)); err != nil {
			return fmt.Errorf("delete the binding %s %s: %w", b.Namespace, b.Name, err)
		}
	}
	if step.DeleteAccount != nil {
		sa := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Namespace: o.Namespace, Name: o.Name, UID: types.UID(step.DeleteAccount.UID)}}
		err := kube.Delete(ctx, r.Client, sa)
		if client.IgnoreNotFound(r.ignoreForbiddenIfTerminating(ctx, err)) != nil {
			return fmt.Errorf("delete the ServiceAccount: %w", err)
		}
	}
	if step.CreateAccount {
		sa := &corev1.ServiceAccount{ObjectMeta: ownedMeta(o), AutomountServiceAccountToken: new(false)}
		sa.Namespace, sa.Name = o.Namespace, o.Name
		sa.OwnerReferences = []metav1.OwnerReference{*metav1.NewControllerRef(o, v1alpha1.GroupVersion.WithKind("TkaSignin"))}
		if err := r.Create(ctx, sa); err != nil {
			return fmt.Errorf("create the ServiceAccount: %w", err)
		}
		step.Report.ServiceAccountUID = string(sa.UID)
	}
	for _, b := range step.CreateBindings {
		if err := r.Create(ctx, bindingObject(b, o)); err != nil {
			return fmt.Errorf("bind the role %s: %w", b.Role, err)
		}
	}
	switch step.Action {
	case signin.Provision, signin.Replace, signin.Extend:
		if err := r.recordAttempt(ctx, o); err != nil {
			return err
		}
	}
	if err := r.report(ctx, o, step.Report); err != nil {
		return err
	}
	if step.TurnFirstUseOff && r.marks != nil {
		err := r.marks.TurnOff(ctx, o.Name, o.Spec.Device.ID)
		if r.ignoreForbiddenIfTerminating(ctx, err) != nil && !apierrors.IsNotFound(r.ignoreForbiddenIfTerminating(ctx, err)) {
			return fmt.Errorf("turn first use off: %w", err)
		}
	}
	if step.RemoveFinalizer && controllerutil.ContainsFinalizer(o, v1alpha1.SigninFinalizer) {
		err := r.patch(ctx, o, func() { controllerutil.RemoveFinalizer(o, v1alpha1.SigninFinalizer) })
		if o.DeletionTimestamp != nil {
			err = client.IgnoreNotFound(err)
		}
		if err != nil {
			return fmt.Errorf("release the sign-in: %w", err)
		}
	}
	if step.DeleteSignin {
		if err := r.Delete(ctx, o, client.Preconditions{UID: &o.UID, ResourceVersion: &o.ResourceVersion}); client.IgnoreNotFound(err) != nil {
			return fmt.Errorf("delete the sign-in: %w", err)
		}
	}
	return nil
}

// ownedMeta returns the metadata of the objects that the operator creates for o.
func ownedMeta(o *v1alpha1.TkaSignin) metav1.ObjectMeta {
	return metav1.ObjectMeta{
		Labels: map[string]string{
			v1alpha1.ManagedByLabel: v1alpha1.ManagedBy, v1alpha1.SigninNamespaceLabel: o.Namespace, v1alpha1.SigninUIDLabel: string(o.UID),
		},
		Annotations: map[string]string{v1alpha1.LoginAnnotation: o.Spec.User.Login},
	}
}

// bindingObject returns the binding object, for creation with o, or for deletion if o is nil. It has no
// owner reference. Garbage collection does not work across namespaces, and treats an owner in
// another namespace as deleted.
func bindingObject(b signin.Binding, o *v1alpha1.TkaSignin) client.Object {
	m := metav1.ObjectMeta{}
	var subjects []rbacv1.Subject
	if o != nil {
		m = ownedMeta(o)
		subjects = []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Namespace: o.Namespace, Name: b.Account}}
	}
	m.Namespace, m.Name, m.UID = b.Namespace, b.Name, types.UID(b.UID)
	role := rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: string(b.Role)}
	if b.Namespace == "" {
		return &rbacv1.ClusterRoleBinding{ObjectMeta: m, RoleRef: role, Subjects: subjects}
	}
	return &rbacv1.RoleBinding{ObjectMeta: m, RoleRef: role, Subjects: subjects}
}

// recordAttempt records the time of the last attempt to provision o.
func (r *reconciler) recordAttempt(ctx context.Context, o *v1alpha1.TkaSignin) error {
	at := r.Now().UTC().Format(time.RFC3339)
	if o.Annotations[v1alpha1.LastAttemptAnnotation] == at {
		return nil
	}
	err := r.patch(ctx, o, func() { metav1.SetMetaDataAnnotation(&o.ObjectMeta, v1alpha1.LastAttemptAnnotation, at) })
	if err != nil {
		return fmt.Errorf("write the time of the attempt: %w", err)
	}
	return nil
}

// patch changes o and writes the difference. It fails if another writer changed o since it was read.
func (r *reconciler) patch(ctx context.Context, o *v1alpha1.TkaSignin, change func()) error {
	before := o.DeepCopy()
	change()
	if err := r.Patch(ctx, o, client.MergeFromWithOptions(before, client.MergeFromWithOptimisticLock{})); err != nil {
		return err
	}
	r.written.record(before.ResourceVersion, o)
	return nil
}

// overwrittenVersions stores the versions of sign-ins that this process has overwritten. A cache that still
// returns one of them lags.
type overwrittenVersions struct {
	mu       sync.Mutex
	versions map[string][]string // by name
}

// record records that the version before is outdated, if o has a different version.
func (w *overwrittenVersions) record(before string, o *v1alpha1.TkaSignin) {
	if before == o.ResourceVersion {
		return
	}
	w.mu.Lock()
	defer w.mu.Unlock()
	w.versions[o.Name] = append(w.versions[o.Name], before)
}

func (w *overwrittenVersions) contains(o *v1alpha1.TkaSignin) bool {
	w.mu.Lock()
	defer w.mu.Unlock()
	if slices.Contains(w.versions[o.Name], o.ResourceVersion) {
		return true
	}
	delete(w.versions, o.Name)
	return false
}

func (w *overwrittenVersions) forget(name string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	delete(w.versions, name)
}

// report writes the status of o if it changed. Only this method writes a status, and only for the
// version that was read. If the sign-in was extended in the meantime, the write fails with a
// conflict.
func (r *reconciler) report(ctx context.Context, o *v1alpha1.TkaSignin, rep signin.Report) error {
	if rep.Phase == "" {
		return nil // nothing was decided yet
	}
	status := statusOf(rep, o.Status.Conditions, r.Now())
	if apiequality.Semantic.DeepEqual(status, o.Status) {
		return nil
	}
	o.Status = status
	before := o.ResourceVersion
	err := r.Status().Update(ctx, o)
	if o.DeletionTimestamp != nil {
		err = client.IgnoreNotFound(err)
	}
	if err != nil {
		return fmt.Errorf("write the status: %w", err)
	}
	r.written.record(before, o)
	return nil
}

// reportFailure reports that a step failed and returns the cause, so that the step is tried again. A
// sign-in that was ready before a failed read stays ready: missing knowledge is no reason to revoke
// access.
func (r *reconciler) reportFailure(ctx context.Context, o *v1alpha1.TkaSignin, f signin.Facts, step signin.Step, cause error) error {
	if ctx.Err() != nil {
		return cause
	}
	if o == nil || step.Action == "" && f.Phase == signin.PhaseReady {
		return cause
	}
	reason := signin.ReasonAPIServerError
	if apierrors.IsForbidden(cause) {
		reason = signin.ReasonForbidden
	}
	var err error
	if !f.Deleting && f.ExpiredAt.IsZero() {
		err = r.recordAttempt(ctx, o)
	}
	if err == nil {
		err = r.report(ctx, o, signin.Failed(f, step, reason, conditions.Truncate(cause.Error(), maxMessage)))
	}
	if kube.IsStale(err) {
		err = nil // another writer changed the object; the next reconcile handles it
	}
	return errors.Join(cause, err)
}

// maxMessage is the length of an error in a condition, in characters.
const maxMessage = 512

// transitionEvents are the events of actions; other actions have none.
var transitionEvents = map[signin.Action]struct{ kind, reason, action string }{
	signin.Provision: {corev1.EventTypeNormal, "Provisioned", "Provision"},
	signin.Replace:   {corev1.EventTypeNormal, "Replaced", "Provision"},
	signin.Extend:    {corev1.EventTypeNormal, "Extended", "Extend"},
	signin.Warn:      {corev1.EventTypeWarning, "", "Provision"}, // with the reason of the report
	signin.Correct:   {corev1.EventTypeWarning, "Corrected", "Provision"},
	signin.Refuse:    {corev1.EventTypeWarning, "Refused", "Provision"},
	signin.Expire:    {corev1.EventTypeNormal, "Expired", "Expire"},
	signin.End:       {corev1.EventTypeWarning, "Revoked", "End"},
	signin.Revoke:    {corev1.EventTypeNormal, "Revoked", "End"},
	signin.Withdraw:  {corev1.EventTypeWarning, "Withdrawn", "End"},
}

// readySignin returns the report about a new sign-in with these facts.
func readySignin(f signin.Facts, waited time.Duration) ReadySignin {
	ready := ReadySignin{Waited: waited}
	for _, b := range f.Binds {
		ready.Roles = append(ready.Roles, b.Role)
		if b.IsClusterWide() && f.Roles[b.Role].Reaches != "" {
			ready.Privileged = append(ready.Privileged, b.Role)
		}
	}
	return ready
}

// emitTransition emits the event, the log line and the metrics of a transition.
func (r *reconciler) emitTransition(o *v1alpha1.TkaSignin, f signin.Facts, step signin.Step) {
	if step.Report.Phase == signin.PhaseReady && r.OnReady != nil {
		if took, first := r.arrivals.waitTime(f.Signin); first {
			r.OnReady(readySignin(f, took))
		}
	}
	if end, is := endOf(f, step, o.Annotations[v1alpha1.EndRequestedAnnotation] != ""); is && r.OnEnd != nil {
		r.OnEnd(end)
	}
	e, known := transitionEvents[step.Action]
	note := step.Report.Message
	switch step.Action {
	case signin.Extend:
		note = "It ends at " + step.Report.ValidUntil.UTC().Format(time.RFC3339) + "."
	case signin.Warn:
		e.reason = step.Report.Reason
		known = e.reason != signin.ReasonProvisioned && f.Reason != e.reason
	case signin.Correct:
		note = "Another client changed a binding. " + note
	case signin.Refuse:
		known = f.Phase != signin.PhaseRefused || f.Reason != step.Report.Reason
	case signin.End:
		note = "Another client deleted or recreated its ServiceAccount, so the sign-in ends."
	case signin.Revoke:
		known = step.RemoveFinalizer && len(f.Bound) > 0
		note = fmt.Sprintf("The role %s is no longer bound.", f.Bound.Role())
	}
	if !known {
		return
	}
	r.events.Eventf(o, nil, e.kind, e.reason, e.action, "%s", note)
	r.Log.Info("sign-in", "op", string(step.Action), "signin", o.Name, "login", o.Spec.User.Login, "role", f.Binds.Role(), "reason", step.Report.Reason)
}
