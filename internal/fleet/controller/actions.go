package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
)

type groupVersionKind = schema.GroupVersionKind

// denialInterval is the minimum time between two refusals of a forge that both count.
const denialInterval = 30 * time.Second

// doActions carries out the decided actions. A failed action does not prevent the others.
func (l *enrollmentState) doActions(ctx context.Context, step fleet.Step) error {
	errs := []error{l.bindFleetRoles(ctx), l.restoreCopies(ctx)}
	if l.o.groupID != 0 && l.deps.state.setGroupID(l.o.e.Name, l.o.groupID) {
		l.deps.triggers.allocation.enqueue("all")
	}
	for _, a := range step.Actions {
		err := l.doAction(ctx, a)
		if err != nil {
			err = fmt.Errorf("%s%s: %w", a.Kind, actionTarget(a), err)
		}
		switch forge.ClassOf(forgeError(err)) {
		case "":
			errs = append(errs, err)
		default: // a forge's error is a fact to report, not a failed reconcile
			l.deps.log.Warn("a forge refused a request or did not answer", "enrollment", l.o.e.Name, "err", err)
			l.failures = append(l.failures, fleet.Failure{Reason: reasonUnreachable, Message: err.Error()})
			l.wake = earliest(l.wake, l.o.now.Add(max(noAnswerRetry, retryAfter(err))))
		}
	}
	return errors.Join(errs...)
}

// forgeError returns the forge's error in err; nil if there is none.
func forgeError(err error) error {
	if e, ok := errors.AsType[*forge.Error](err); ok {
		return e
	}
	return nil
}

func retryAfter(err error) time.Duration {
	if e, ok := errors.AsType[*forge.Error](err); ok {
		return e.RetryAfter
	}
	return 0
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

func (l *enrollmentState) doAction(ctx context.Context, a fleet.Action) error {
	w := l.o.findWorkload(a.Workload)
	github := l.o.forge != nil && l.o.forge.Spec.Type == v1alpha1.GitHub
	switch a.Kind {
	case fleet.AddFinalizer:
		return l.setFinalizer(ctx, true)
	case fleet.RemoveFinalizer:
		return l.setFinalizer(ctx, false)
	case fleet.EnsureNamespace:
		return l.o.baseline.applyBase(ctx, l.deps.direct)
	case fleet.EnsureAccess:
		return l.o.baseline.applyAccess(ctx, l.deps.direct)
	case fleet.CopyCredential:
		return l.copyCredential(ctx, fleet.NamespaceOf(l.o.e, l.o.settings.Shared), l.o.credentialData)
	case fleet.CreateRunner:
		return l.createRunner(ctx, a.Create)
	case fleet.DeleteCopy:
		if s := l.o.secret(a.Copy.Namespace, a.Copy.Name); s != nil {
			return kube.Delete(ctx, l.deps.direct, s)
		}
		return nil
	case fleet.DeleteSecrets:
		return l.deleteSecrets(ctx)
	case fleet.DeleteNamespace:
		return l.deleteNamespace(ctx)
	case fleet.DeleteRunnerGroups:
		left, _ := remainingGroups(ctx, l.o)
		for _, g := range left {
			if err := l.o.session.GitHub.DeleteRunnerGroup(ctx, g.ID); err != nil {
				return err
			}
		}
		return nil
	case fleet.ApplyWorkload:
		if github {
			return l.applySet(ctx, w, a.Create)
		}
		if w != nil {
			return l.applyManager(ctx, w)
		}
		return nil
	case fleet.StopIntake:
		return nil // apply gives no capacity to workloads that are not open
	}
	if w == nil {
		return nil
	}
	switch a.Kind {
	case fleet.ResetToken:
		return l.resetToken(ctx, w)
	case fleet.DeleteRunner:
		return l.o.session.GitLab.DeleteRunner(ctx, w.RemoteID)
	case fleet.Deregister:
		if github {
			return l.deregisterSet(ctx, w)
		}
		return l.deregisterRunner(ctx, w)
	case fleet.ForceRelease:
		l.deps.log.Warn("a scale set is abandoned and stays at GitHub", "enrollment", l.o.e.Name, "scaleSet", w.Name, "id", w.RemoteID, "because", l.o.e.Annotations[v1alpha1.ForceCleanupAnnotation])
		return l.deps.arcCache.forceDelete(ctx, l.o.arcState.Sets[w.Key])
	case fleet.DeleteWorkloads:
		if github {
			return nil // it is deleted with its object
		}
		return l.deleteManager(ctx, w)
	}
	return fmt.Errorf("unknown action %q", a.Kind)
}

// applyCapacities sets the capacity of each workload. Open workloads get their allocation, as limited by
// holds. The others get nothing.
func (l *enrollmentState) applyCapacities(ctx context.Context, open []fleet.Key) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	slots := make(chan struct{}, maxConcurrentRequests)
	for _, w := range l.o.workloads {
		if slices.Contains(open, w.Key) && w.use != nil {
			w.target = w.capacity
		} else if w.capacity.Mode != "" {
			w.target = fleet.Capacity{Mode: w.capacity.Mode, Hold: w.capacity.Hold, CancelAt: w.capacity.CancelAt}
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := l.applyCapacity(ctx, w)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && forgeError(err) == nil {
				errs = append(errs, err)
			} else if err != nil {
				l.deps.log.Warn("a forge refused a request or did not answer", "enrollment", l.o.e.Name, "workload", w.Name, "err", err)
			}
		})
		if w.gitlab != nil {
			wg.Wait() // the cache of a GitLab session is not safe for concurrent use
		}
	}
	wg.Wait()
	for _, w := range l.o.workloads {
		if w.denial.Reason != "" {
			l.failures = append(l.failures, w.denial)
		}
	}
	return errors.Join(errs...)
}

func (l *enrollmentState) applyCapacity(ctx context.Context, w *workload) error {
	var err error
	cancel := w.target.Mode == v1alpha1.HoldStop && !w.target.CancelAt.IsZero() && !l.o.now.Before(w.target.CancelAt)
	switch {
	case w.set != nil:
		err = l.scale(ctx, w)
		if cancel {
			err = errors.Join(err, l.cancelRuns(ctx, w))
		}
	case w.gitlab != nil:
		err = l.applyPause(ctx, w)
		if cancel && l.o.session != nil {
			err = errors.Join(err, l.cancelJobs(ctx, w))
		}
	}
	return err
}

// patchAnnotations patches annotations of an object. The UID in the patch prevents a change of a newer object
// with the same name.
func (l *enrollmentState) patchAnnotations(ctx context.Context, o client.Object, annotations map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID(), "annotations": annotations}})
	if err != nil {
		return err
	}
	return l.deps.direct.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch))
}

// annotateEnrollment sets an annotation on the enrollment; an empty text removes it.
func (l *enrollmentState) annotateEnrollment(ctx context.Context, name, text string) error {
	if l.o.e.Annotations[name] == text {
		return nil
	}
	value := any(text)
	if text == "" {
		value = nil
	}
	status := l.o.e.Status // the response contains a status that may be older than the one that this reconcile writes
	if err := l.patchAnnotations(ctx, l.o.e, map[string]any{name: value}); err != nil {
		return fmt.Errorf("record %s: %w", name, err)
	}
	l.o.e.Status = status
	return nil
}

func (l *enrollmentState) setFinalizer(ctx context.Context, on bool) error {
	old := l.o.e.DeepCopy()
	if on {
		controllerutil.AddFinalizer(l.o.e, v1alpha1.FleetFinalizer)
	} else {
		controllerutil.RemoveFinalizer(l.o.e, v1alpha1.FleetFinalizer)
	}
	err := l.deps.direct.Patch(ctx, l.o.e, client.MergeFromWithOptions(old, client.MergeFromWithOptimisticLock{}))
	if !on {
		err = client.IgnoreNotFound(err)
	}
	return err
}

// copyCredential writes a copy of a credential to the namespace of the runners.
func (l *enrollmentState) copyCredential(ctx context.Context, namespace string, data map[string][]byte) error {
	s, err := isolation.Credential(l.o.e.Name, namespace, data)
	if err != nil {
		return err
	}
	u, err := prepareApply(s)
	if err != nil {
		return err
	}
	return applyObject(ctx, l.deps.direct, u)
}

// bindFleetRoles restores the fleet's permissions in its namespaces.
func (l *enrollmentState) bindFleetRoles(ctx context.Context) error {
	for _, namespace := range l.o.unbound {
		org := ""
		if namespace != l.o.settings.Shared {
			org = l.o.e.Name
		}
		account := types.NamespacedName{Namespace: l.o.settings.Namespace, Name: l.o.settings.Account}
		if err := bindFleetRole(ctx, l.deps.direct, account, namespace, org); err != nil {
			return err
		}
	}
	return nil
}

// restoreCopies restores copies of the credential that were deleted too early. Without them, ARC
// cannot remove a listener, a runner or a scale set.
func (l *enrollmentState) restoreCopies(ctx context.Context) error {
	if l.o.e.DeletionTimestamp.IsZero() || l.o.facts.Credential.Valid != fleet.Yes {
		return nil
	}
	for _, w := range l.o.workloads {
		for _, name := range w.Copies {
			exists := slices.Contains(l.o.facts.Copies, fleet.CredentialCopy{Namespace: w.Namespace, Name: name})
			if w.set == nil || exists || name != fleet.CredentialName(l.o.e.Name, l.o.facts.Credential.Fingerprint) {
				continue
			}
			if err := l.copyCredential(ctx, w.Namespace, l.o.credentialData); err != nil {
				return fmt.Errorf("copy the credential for %s: %w", w.Name, err)
			}
		}
	}
	return nil
}

// deregisterSet makes ARC deregister a scale set by deleting its object. ARC needs the credential
// until that is done.
func (l *enrollmentState) deregisterSet(ctx context.Context, w *workload) error {
	if !w.Ending {
		if err := l.annotateEnrollment(ctx, gateAnnotation+w.Name, ""); err != nil {
			return err
		}
		return kube.Delete(ctx, l.deps.direct, l.o.arcState.Sets[w.Key])
	}
	if l.o.facts.Credential.Valid == fleet.No && l.o.facts.Credential.InUse != fleet.Yes { // GitHub then refuses ARC too
		return l.recordDenial(ctx, w)
	}
	return nil
}

func (l *enrollmentState) deregisterRunner(ctx context.Context, w *workload) error {
	if l.o.session == nil || l.o.session.GitLab == nil {
		return l.recordDenial(ctx, w)
	}
	err := l.o.session.GitLab.DeleteRunner(ctx, w.RemoteID)
	delete(l.o.session.Runners, w.RemoteID)
	switch forge.ClassOf(err) {
	case forge.Refused, forge.Forbidden:
		return errors.Join(err, l.recordDenial(ctx, w))
	}
	return err
}

// denialCount returns the number of times that the forge refused the removal of a workload.
func (o *observed) denialCount(workload string) int {
	n, _, _ := strings.Cut(o.e.Annotations[deniedAnnotation+workload], " ")
	times, _ := strconv.Atoi(n)
	return times
}

// recordDenial counts a refusal.
func (l *enrollmentState) recordDenial(ctx context.Context, w *workload) error {
	_, last, _ := strings.Cut(l.o.e.Annotations[deniedAnnotation+w.Name], " ")
	at, _ := time.Parse(time.RFC3339, last)
	if next := at.Add(denialInterval); l.o.now.Before(next) {
		l.wake = earliest(l.wake, next)
		return nil
	}
	l.wake = earliest(l.wake, l.o.now.Add(denialInterval))
	return l.annotateEnrollment(ctx, deniedAnnotation+w.Name, fmt.Sprintf("%d %s", w.Denied+1, l.o.now.UTC().Format(time.RFC3339)))
}

// deleteSecrets deletes all Secrets of the organisation. It deletes the source Secret last, because
// the others were made from it.
func (l *enrollmentState) deleteSecrets(ctx context.Context) error {
	if l.o.facts.RunnerGroups == fleet.No { // without the credential, no later query about them is possible
		if err := l.annotateEnrollment(ctx, groupsAnnotation, ""); err != nil {
			return err
		}
	}
	for i := range l.o.secrets {
		if err := kube.Delete(ctx, l.deps.direct, &l.o.secrets[i]); err != nil {
			return err
		}
	}
	var source corev1.SecretList
	if err := l.deps.direct.List(ctx, &source, client.InNamespace(l.o.settings.Namespace), client.MatchingLabels{v1alpha1.OrgLabel: l.o.e.Name}); err != nil {
		return err
	}
	for i := range source.Items {
		if err := kube.Delete(ctx, l.deps.direct, &source.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// deleteNamespace deletes the organisation's own namespace, and its objects in the shared
// namespace.
func (l *enrollmentState) deleteNamespace(ctx context.Context) error {
	left, err := listLeftovers(ctx, l.deps.direct, l.o.settings.Shared, l.o.e.Name, true)
	if err != nil {
		return err
	}
	for _, u := range left {
		if err := kube.Delete(ctx, l.deps.direct, u); err != nil {
			return err
		}
	}
	ns := &corev1.Namespace{}
	err = l.deps.direct.Get(ctx, client.ObjectKey{Name: fleet.OrgNamespace(l.o.e.Name)}, ns)
	if err != nil || !isManagedFor(ns, l.o.e.Name) || ns.DeletionTimestamp != nil {
		return client.IgnoreNotFound(err)
	}
	return kube.Delete(ctx, l.deps.direct, ns)
}
