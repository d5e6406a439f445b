package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// denialInterval is the minimum time between two refusals of a forge that both count.
const denialInterval = 30 * time.Second

// An outcome is the result of [act].
type outcome struct {
	workloads []workloadOutcome // of the observed workloads, in their order
	failures  []fleet.Failure   // of actions, reported in addition to the decision
	wake      time.Time         // when to act again
}

// A workloadOutcome is the state of one workload after the actions.
type workloadOutcome struct {
	stopped fleet.Answer
	jobs    *int
	inForce int
	reason  string        // why a requested state is not confirmed
	denial  fleet.Failure // what the forge does not allow the credential
	drift   []string
	runner  runnerResult // at GitLab
}

// A task is one workload with the decision for it. Its actions change the outcome only.
type task struct {
	*workload
	plan *workloadPlan
	done *workloadOutcome
}

// An actor carries out one plan.
type actor struct {
	deps  deps
	o     *observed
	e     *v1alpha1.RunnerEnrollment // a copy of the observed one; the patches update it
	tasks []task
	done  outcome
}

// act carries out a plan: the actions of its step, then the capacities. A failed action does not prevent the others.
func act(ctx context.Context, d deps, o *observed, p plan) (outcome, error) {
	a := &actor{deps: d, o: o, e: o.e.DeepCopy(), done: outcome{workloads: make([]workloadOutcome, len(o.workloads))}}
	for i, w := range o.workloads {
		done := &a.done.workloads[i]
		*done = workloadOutcome{stopped: w.Stopped, jobs: w.Jobs, inForce: w.inForce, reason: w.reason}
		if w.gitlab != nil {
			done.runner = w.gitlab.runner
		}
		a.tasks = append(a.tasks, task{w, &p.workloads[i], done})
	}
	err := errors.Join(a.doActions(ctx, p.step), a.applyCapacities(ctx))
	return a.done, err
}

// doActions carries out the decided actions, after the repairs that they need.
func (a *actor) doActions(ctx context.Context, step fleet.Step) error {
	errs := []error{a.bindFleetRoles(ctx), a.restoreCopies(ctx)}
	if a.o.groupID != 0 && a.deps.state.setGroupID(a.e.Name, a.o.groupID) {
		a.deps.triggers.allocation.enqueue("all")
	}
	for _, x := range step.Actions {
		err := a.doAction(ctx, x)
		if err != nil {
			err = fmt.Errorf("%s%s: %w", x.Kind, actionTarget(x), err)
		}
		refused, ok := errors.AsType[*forge.Error](err)
		if !ok {
			errs = append(errs, err)
			continue
		}
		// A forge's error is a fact to report, not a failed reconcile.
		a.deps.log.Warn("a forge refused a request or did not answer", "enrollment", a.e.Name, "err", err)
		a.fail(reasonUnreachable, err.Error())
		a.done.wake = retry.Earliest(a.done.wake, a.o.now.Add(max(noAnswerRetry, refused.RetryAfter)))
	}
	return errors.Join(errs...)
}

// fail adds a problem to report.
func (a *actor) fail(reason, message string) {
	a.done.failures = append(a.done.failures, fleet.Failure{Reason: reason, Message: message})
}

func actionTarget(a fleet.Action) string {
	switch {
	case a.Workload.Name != "":
		return " of " + a.Workload.Name
	case a.Create.Pool != "":
		return " for pool " + a.Create.Pool
	case a.Copy.Name != "":
		return " " + a.Copy.Name
	}
	return ""
}

func (a *actor) doAction(ctx context.Context, x fleet.Action) error {
	switch x.Kind {
	case fleet.AddFinalizer:
		return a.setFinalizer(ctx, true)
	case fleet.RemoveFinalizer:
		return a.setFinalizer(ctx, false)
	case fleet.EnsureNamespace:
		return a.o.baseline.applyBase(ctx, a.deps.direct)
	case fleet.EnsureAccess:
		return a.o.baseline.applyAccess(ctx, a.deps.direct)
	case fleet.CopyCredential:
		return a.copyCredential(ctx, fleet.NamespaceOf(a.e, a.o.settings.Shared), a.o.credentialData)
	case fleet.CreateRunner:
		return a.createRunner(ctx, x.Create)
	case fleet.DeleteCopy:
		if s := a.o.secret(x.Copy.Namespace, x.Copy.Name); s != nil {
			return kube.Delete(ctx, a.deps.direct, s)
		}
		return nil
	case fleet.DeleteSecrets:
		return a.deleteSecrets(ctx)
	case fleet.DeleteNamespace:
		return a.deleteNamespace(ctx)
	case fleet.DeleteRunnerGroups:
		return a.deleteRunnerGroups(ctx)
	case fleet.StopIntake:
		return nil // applyCapacities gives no capacity to workloads that are not open
	}
	i := slices.IndexFunc(a.tasks, func(t task) bool { return t.Key == x.Workload })
	github := a.o.forge != nil && a.o.forge.Spec.Type == v1alpha1.GitHub
	switch {
	case i < 0 && x.Kind == fleet.ApplyWorkload && github:
		return a.createSet(ctx, x.Create)
	case i < 0:
		return nil
	}
	t := a.tasks[i]
	switch x.Kind {
	case fleet.ApplyWorkload:
		if github {
			return a.applySet(ctx, t)
		}
		return a.applyManager(ctx, t)
	case fleet.ResetToken:
		return a.resetToken(ctx, t)
	case fleet.DeleteRunner:
		return a.o.session.GitLab.DeleteRunner(ctx, t.RemoteID)
	case fleet.Deregister:
		if github {
			return a.deregisterSet(ctx, t)
		}
		return a.deregisterRunner(ctx, t)
	case fleet.ForceRelease:
		a.deps.log.Warn("a scale set is abandoned and stays at GitHub", "enrollment", a.e.Name, "scaleSet", t.Name, "id", t.RemoteID,
			"because", a.e.Annotations[v1alpha1.ForceCleanupAnnotation])
		return a.deps.arcCache.forceDelete(ctx, a.o.arcState.Sets[t.Key])
	case fleet.DeleteWorkloads:
		if github {
			return nil // it is deleted with its object
		}
		return a.deleteManager(ctx, t)
	}
	return fmt.Errorf("unknown action %q", x.Kind)
}

// applyCapacities sets the capacity of each workload.
func (a *actor) applyCapacities(ctx context.Context) error {
	var wg sync.WaitGroup
	errs := make([]error, len(a.tasks))
	slots := make(chan struct{}, maxConcurrentRequests)
	for i, t := range a.tasks {
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := a.applyCapacity(ctx, t)
			if _, refused := errors.AsType[*forge.Error](err); refused {
				a.deps.log.Warn("a forge refused a request or did not answer", "enrollment", a.e.Name, "workload", t.Name, "err", err)
				return
			}
			errs[i] = err
		})
		if t.gitlab != nil {
			wg.Wait() // the cache of a GitLab session is not safe for concurrent use
		}
	}
	wg.Wait()
	for _, t := range a.tasks {
		if t.done.denial.Reason != "" {
			a.done.failures = append(a.done.failures, t.done.denial)
		}
	}
	return errors.Join(errs...)
}

func (a *actor) applyCapacity(ctx context.Context, t task) error {
	var err error
	target := t.plan.target
	cancel := target.Mode == v1alpha1.HoldStop && !target.CancelAt.IsZero() && !a.o.now.Before(target.CancelAt)
	switch {
	case t.set != nil:
		err = a.scale(ctx, t)
		if cancel {
			err = errors.Join(err, a.cancelRuns(ctx, t))
		}
	case t.gitlab != nil:
		err = a.applyPause(ctx, t)
		if cancel && a.o.session != nil {
			err = errors.Join(err, a.cancelJobs(ctx, t))
		}
	}
	return err
}

// patchAnnotations patches annotations of an object. The UID in the patch prevents a change of a newer object
// with the same name.
func (a *actor) patchAnnotations(ctx context.Context, o client.Object, annotations map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID(), "annotations": annotations}})
	if err != nil {
		return err
	}
	return a.deps.direct.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch))
}

// annotateEnrollment sets an annotation on the enrollment; an empty text removes it.
func (a *actor) annotateEnrollment(ctx context.Context, name, text string) error {
	if a.e.Annotations[name] == text {
		return nil
	}
	value := any(text)
	if text == "" {
		value = nil
	}
	if err := a.patchAnnotations(ctx, a.e, map[string]any{name: value}); err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	return nil
}

func (a *actor) setFinalizer(ctx context.Context, on bool) error {
	old := a.e.DeepCopy()
	if on {
		controllerutil.AddFinalizer(a.e, v1alpha1.FleetFinalizer)
	} else {
		controllerutil.RemoveFinalizer(a.e, v1alpha1.FleetFinalizer)
	}
	err := a.deps.direct.Patch(ctx, a.e, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	if !on {
		err = client.IgnoreNotFound(err)
	}
	return err
}

// copyCredential writes a copy of a credential to the namespace of the runners.
func (a *actor) copyCredential(ctx context.Context, namespace string, data map[string][]byte) error {
	s, err := isolation.Credential(a.e.Name, namespace, data)
	if err != nil {
		return err
	}
	u, err := prepareApply(s)
	if err != nil {
		return err
	}
	return applyObject(ctx, a.deps.direct, u)
}

// bindFleetRoles restores the RoleBindings of the fleet's service account in the namespaces that the fleet
// created. Without them, the fleet cannot even read there.
func (a *actor) bindFleetRoles(ctx context.Context) error {
	for _, namespace := range a.o.unbound {
		b := &rbacv1.RoleBinding{
			ObjectMeta: metav1.ObjectMeta{
				Namespace: namespace,
				Name:      isolation.FleetRole,
				Labels:    map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy},
			},
			RoleRef:  rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "ClusterRole", Name: isolation.FleetRole},
			Subjects: []rbacv1.Subject{{Kind: rbacv1.ServiceAccountKind, Name: a.o.settings.Account, Namespace: a.o.settings.Namespace}},
		}
		if namespace != a.o.settings.Shared {
			b.Labels[v1alpha1.OrgLabel] = a.e.Name
		}
		if err := a.deps.direct.Create(ctx, b); err != nil && !apierrors.IsAlreadyExists(err) {
			return fmt.Errorf("create the fleet's RoleBinding in %s: %w", namespace, err)
		}
	}
	return nil
}

// restoreCopies restores copies of the credential that were deleted too early. Without them, ARC
// cannot remove a listener, a runner or a scale set.
func (a *actor) restoreCopies(ctx context.Context) error {
	if a.e.DeletionTimestamp.IsZero() || a.o.facts.Credential.Valid != fleet.Yes {
		return nil
	}
	for _, w := range a.o.workloads {
		for _, name := range w.Copies {
			exists := slices.Contains(a.o.facts.Copies, fleet.CredentialCopy{Namespace: w.Namespace, Name: name})
			if w.set == nil || exists || name != fleet.CredentialName(a.e.Name, a.o.facts.Credential.Fingerprint) {
				continue
			}
			if err := a.copyCredential(ctx, w.Namespace, a.o.credentialData); err != nil {
				return fmt.Errorf("copy the credential for %s: %w", w.Name, err)
			}
		}
	}
	return nil
}

// deregisterSet makes ARC deregister a scale set by deleting its object. ARC needs the credential
// until that is done.
func (a *actor) deregisterSet(ctx context.Context, t task) error {
	if !t.Ending {
		if err := a.annotateEnrollment(ctx, gateAnnotation+t.Name, ""); err != nil {
			return err
		}
		return kube.Delete(ctx, a.deps.direct, a.o.arcState.Sets[t.Key])
	}
	if a.o.facts.Credential.Valid == fleet.No && a.o.facts.Credential.InUse != fleet.Yes { // GitHub then refuses ARC too
		return a.recordDenial(ctx, t)
	}
	return nil
}

func (a *actor) deregisterRunner(ctx context.Context, t task) error {
	if a.o.session == nil || a.o.session.GitLab == nil {
		return a.recordDenial(ctx, t)
	}
	err := a.o.session.GitLab.DeleteRunner(ctx, t.RemoteID)
	delete(a.o.session.Runners, t.RemoteID)
	if isDenied(err) {
		return errors.Join(err, a.recordDenial(ctx, t))
	}
	return err
}

// recordDenial counts a refusal.
func (a *actor) recordDenial(ctx context.Context, t task) error {
	_, last, _ := strings.Cut(a.e.Annotations[deniedAnnotation+t.Name], " ")
	at, _ := time.Parse(time.RFC3339, last)
	if next := at.Add(denialInterval); a.o.now.Before(next) {
		a.done.wake = retry.Earliest(a.done.wake, next)
		return nil
	}
	a.done.wake = retry.Earliest(a.done.wake, a.o.now.Add(denialInterval))
	return a.annotateEnrollment(ctx, deniedAnnotation+t.Name, fmt.Sprintf("%d %s", t.Denied+1, a.o.now.UTC().Format(time.RFC3339)))
}

// deleteSecrets deletes all Secrets of the organisation. It deletes the source Secret last, because
// the others were made from it.
func (a *actor) deleteSecrets(ctx context.Context) error {
	if a.o.facts.RunnerGroups == fleet.No { // without the credential, no later query about them is possible
		if err := a.annotateEnrollment(ctx, groupsAnnotation, ""); err != nil {
			return err
		}
	}
	if err := deleteAll(ctx, a.deps.direct, a.o.secrets); err != nil {
		return err
	}
	var source corev1.SecretList
	where := []client.ListOption{client.InNamespace(a.o.settings.Namespace), client.MatchingLabels{v1alpha1.OrgLabel: a.e.Name}}
	if err := a.deps.direct.List(ctx, &source, where...); err != nil {
		return err
	}
	return deleteAll(ctx, a.deps.direct, source.Items)
}

// deleteAll deletes objects, and stops at the first error.
func deleteAll[T any, P interface {
	*T
	client.Object
}](ctx context.Context, c client.Client, all []T) error {
	for i := range all {
		if err := kube.Delete(ctx, c, P(&all[i])); err != nil {
			return err
		}
	}
	return nil
}

// deleteNamespace deletes the organisation's own namespace, and its objects in the shared
// namespace.
func (a *actor) deleteNamespace(ctx context.Context) error {
	left, err := listLeftovers(ctx, a.deps.direct, a.o.settings.Shared, a.e.Name, true)
	if err != nil {
		return err
	}
	if err := deleteAll(ctx, a.deps.direct, left); err != nil {
		return err
	}
	ns := &corev1.Namespace{}
	err = a.deps.direct.Get(ctx, client.ObjectKey{Name: fleet.OrgNamespace(a.e.Name)}, ns)
	if err != nil || !isManagedFor(ns, a.e.Name) || ns.DeletionTimestamp != nil {
		return client.IgnoreNotFound(err)
	}
	return kube.Delete(ctx, a.deps.direct, ns)
}
