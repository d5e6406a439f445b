package fleetkube

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
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/account"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/furnish"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
)

type schemaKind = schema.GroupVersionKind

// deniedEvery is the minimum time between two refusals of a forge that both count.
const deniedEvery = 30 * time.Second

// act carries out the decided actions. A failed action does not prevent the others.
func (l *look) act(ctx context.Context, step fleet.Step) error {
	errs := []error{l.keepCopies(ctx)}
	for _, a := range step.Acts {
		err := l.deed(ctx, a)
		if err != nil {
			err = fmt.Errorf("%s%s: %w", a.Deed, about(a), err)
		}
		switch forge.ClassOf(forgeError(err)) {
		case "":
			errs = append(errs, err)
		default: // a forge's error is a fact to report, not a failed reconcile
			l.Log.Warn("a forge refused, or did not answer", "enrollment", l.e.Name, "err", err)
			l.troubles = append(l.troubles, fleet.Trouble{Reason: reasonUnreachable, Message: err.Error()})
			l.wake = earliest(l.wake, l.now.Add(max(account.UnknownFor, retryAfter(err))))
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

func about(a fleet.Act) string {
	switch {
	case a.Workload.Name != "":
		return " of " + a.Workload.Name
	case a.Make.Pool != "":
		return " for pool " + a.Make.Pool
	case a.Copy.Name != "":
		return " " + a.Copy.Name
	}
	return ""
}

func (l *look) deed(ctx context.Context, a fleet.Act) error {
	w := l.find(a.Workload)
	github := l.forge != nil && l.forge.Spec.Type == v1alpha1.GitHub
	switch a.Deed {
	case fleet.Hold:
		return l.finalizer(ctx, true)
	case fleet.Release:
		return l.finalizer(ctx, false)
	case fleet.MakeNamespace:
		return l.ground.Make(ctx, l.direct)
	case fleet.MakeAccess:
		return l.ground.Admit(ctx, l.direct)
	case fleet.CopyCredential:
		return l.copyCredential(ctx, fleet.NamespaceOf(l.e, l.Isolation.Shared), l.source)
	case fleet.MakeRunner:
		return l.makeRunner(ctx, a.Make)
	case fleet.DropCopy:
		if s := l.secret(a.Copy.Namespace, a.Copy.Name); s != nil {
			return kube.Delete(ctx, l.direct, s)
		}
		return nil
	case fleet.DeleteSecrets:
		return l.deleteSecrets(ctx)
	case fleet.DeleteNamespace:
		return l.deleteNamespace(ctx)
	case fleet.DropRunnerGroups:
		left, _ := l.groupsLeft(ctx)
		for _, g := range left {
			if err := l.account.GitHub.DeleteRunnerGroup(ctx, g.ID); err != nil {
				return err
			}
		}
		return nil
	case fleet.Apply:
		if github {
			return l.applySet(ctx, w, a.Make)
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
	switch a.Deed {
	case fleet.ResetToken:
		return l.resetToken(ctx, w)
	case fleet.DropRunner:
		return l.account.GitLab.DeleteRunner(ctx, w.RemoteID)
	case fleet.Deregister:
		if github {
			return l.deregisterSet(ctx, w)
		}
		return l.deregisterRunner(ctx, w)
	case fleet.ForceRelease:
		l.Log.Warn("a scale set is given up, and stays at GitHub", "enrollment", l.e.Name, "scaleSet", w.Name, "id", w.RemoteID, "because", l.e.Annotations[v1alpha1.ForceCleanupAnnotation])
		return l.crew.arc.Free(ctx, l.arc.Sets[w.Key])
	case fleet.DeleteWorkloads:
		if github {
			return nil // it is deleted with its object
		}
		return l.deleteManager(ctx, w)
	}
	return fmt.Errorf("the deed %q is not known", a.Deed)
}

// apply sets the capacity of each workload. Open workloads get their allocation, as limited by
// holds. The others get nothing.
func (l *look) apply(ctx context.Context, open []fleet.Key) error {
	var mu sync.Mutex
	var wg sync.WaitGroup
	var errs []error
	slots := make(chan struct{}, atOnce)
	for _, w := range l.works {
		if slices.Contains(open, w.Key) && w.use != nil {
			w.now = w.capacity
		} else if w.capacity.Mode != "" {
			w.now = fleet.Capacity{Mode: w.capacity.Mode, Hold: w.capacity.Hold, CancelAt: w.capacity.CancelAt}
		}
		slots <- struct{}{}
		wg.Go(func() {
			defer func() { <-slots }()
			err := l.give(ctx, w)
			mu.Lock()
			defer mu.Unlock()
			if err != nil && forgeError(err) == nil {
				errs = append(errs, err)
			} else if err != nil {
				l.Log.Warn("a forge refused, or did not answer", "enrollment", l.e.Name, "workload", w.Name, "err", err)
			}
		})
		if w.gitlab != nil {
			wg.Wait() // the cache of a GitLab session is not safe for concurrent use
		}
	}
	wg.Wait()
	for _, w := range l.works {
		if w.denial.Reason != "" {
			l.troubles = append(l.troubles, w.denial)
		}
	}
	return errors.Join(errs...)
}

func (l *look) give(ctx context.Context, w *work) error {
	var err error
	cancel := w.now.Mode == v1alpha1.HoldStop && !w.now.CancelAt.IsZero() && !l.now.Before(w.now.CancelAt)
	switch {
	case w.set != nil:
		err = l.scale(ctx, w)
		if cancel {
			err = errors.Join(err, l.cancelRuns(ctx, w))
		}
	case w.gitlab != nil:
		err = l.pause(ctx, w)
		if cancel && l.account != nil {
			err = errors.Join(err, l.cancelJobs(ctx, w))
		}
	}
	return err
}

// note patches annotations of an object. The UID in the patch prevents a change of a newer object
// with the same name.
func (l *look) note(ctx context.Context, o client.Object, annotations map[string]any) error {
	patch, err := json.Marshal(map[string]any{"metadata": map[string]any{"uid": o.GetUID(), "annotations": annotations}})
	if err != nil {
		return err
	}
	return l.direct.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch))
}

// annotate sets an annotation on the enrollment; an empty text removes it.
func (l *look) annotate(ctx context.Context, name, text string) error {
	if l.e.Annotations[name] == text {
		return nil
	}
	value := any(text)
	if text == "" {
		value = nil
	}
	status := l.e.Status // the response contains a status that may be older than the one that this reconcile writes
	if err := l.note(ctx, l.e, map[string]any{name: value}); err != nil {
		return fmt.Errorf("write down %s: %w", name, err)
	}
	l.e.Status = status
	return nil
}

func (l *look) finalizer(ctx context.Context, on bool) error {
	was := l.e.DeepCopy()
	if on {
		controllerutil.AddFinalizer(l.e, v1alpha1.FleetFinalizer)
	} else {
		controllerutil.RemoveFinalizer(l.e, v1alpha1.FleetFinalizer)
	}
	err := l.direct.Patch(ctx, l.e, client.MergeFromWithOptions(was, client.MergeFromWithOptimisticLock{}))
	if !on {
		err = client.IgnoreNotFound(err)
	}
	return err
}

// copyCredential writes a copy of a credential to the namespace of the runners.
func (l *look) copyCredential(ctx context.Context, namespace string, data map[string][]byte) error {
	s, err := isolation.Credential(l.e.Name, namespace, data)
	if err != nil {
		return err
	}
	u, err := furnish.Wanted(s)
	if err != nil {
		return err
	}
	return furnish.Apply(ctx, l.direct, u)
}

// keepCopies restores copies of the credential that were deleted too early. Without them, ARC
// cannot remove a listener, a runner or a scale set.
func (l *look) keepCopies(ctx context.Context) error {
	if l.e.DeletionTimestamp.IsZero() || l.facts.Credential.Valid != fleet.Yes {
		return nil
	}
	for _, w := range l.works {
		for _, name := range w.Copies {
			there := slices.Contains(l.facts.Copies, fleet.Copy{Namespace: w.Namespace, Name: name})
			if w.set == nil || there || name != fleet.CredentialName(l.e.Name, l.facts.Credential.Fingerprint) {
				continue
			}
			if err := l.copyCredential(ctx, w.Namespace, l.source); err != nil {
				return fmt.Errorf("copy the credential for %s: %w", w.Name, err)
			}
		}
	}
	return nil
}

// deregisterSet makes ARC deregister a scale set by deleting its object. ARC needs the credential
// until that is done.
func (l *look) deregisterSet(ctx context.Context, w *work) error {
	if !w.Ending {
		if err := l.annotate(ctx, gateAnnotation+w.Name, ""); err != nil {
			return err
		}
		return kube.Delete(ctx, l.direct, l.arc.Sets[w.Key])
	}
	if l.facts.Credential.Valid == fleet.No && l.facts.Credential.InUse != fleet.Yes { // GitHub then refuses ARC too
		return l.refused(ctx, w)
	}
	return nil
}

func (l *look) deregisterRunner(ctx context.Context, w *work) error {
	if l.account == nil || l.account.GitLab == nil {
		return l.refused(ctx, w)
	}
	err := l.account.GitLab.DeleteRunner(ctx, w.RemoteID)
	delete(l.account.Runners, w.RemoteID)
	switch forge.ClassOf(err) {
	case forge.Refused, forge.Forbidden:
		return errors.Join(err, l.refused(ctx, w))
	}
	return err
}

// denied returns the number of times that the forge refused the removal of a workload.
func (l *look) denied(workload string) int {
	n, _, _ := strings.Cut(l.e.Annotations[deniedAnnotation+workload], " ")
	times, _ := strconv.Atoi(n)
	return times
}

// refused counts a refusal.
func (l *look) refused(ctx context.Context, w *work) error {
	_, last, _ := strings.Cut(l.e.Annotations[deniedAnnotation+w.Name], " ")
	at, _ := time.Parse(time.RFC3339, last)
	if next := at.Add(deniedEvery); l.now.Before(next) {
		l.wake = earliest(l.wake, next)
		return nil
	}
	l.wake = earliest(l.wake, l.now.Add(deniedEvery))
	return l.annotate(ctx, deniedAnnotation+w.Name, fmt.Sprintf("%d %s", w.Denied+1, l.now.UTC().Format(time.RFC3339)))
}

// deleteSecrets deletes all Secrets of the organisation. It deletes the source Secret last, because
// the others were made from it.
func (l *look) deleteSecrets(ctx context.Context) error {
	if l.facts.RunnerGroups == fleet.No { // without the credential, no later query about them is possible
		if err := l.annotate(ctx, groupsAnnotation, ""); err != nil {
			return err
		}
	}
	for i := range l.secrets {
		if err := kube.Delete(ctx, l.direct, &l.secrets[i]); err != nil {
			return err
		}
	}
	var source corev1.SecretList
	if err := l.direct.List(ctx, &source, client.InNamespace(l.Isolation.Namespace), client.MatchingLabels{v1alpha1.OrgLabel: l.e.Name}); err != nil {
		return err
	}
	for i := range source.Items {
		if err := kube.Delete(ctx, l.direct, &source.Items[i]); err != nil {
			return err
		}
	}
	return nil
}

// deleteNamespace deletes the organisation's own namespace, and its objects in the shared
// namespace.
func (l *look) deleteNamespace(ctx context.Context) error {
	left, err := furnish.Left(ctx, l.direct, l.Isolation.Shared, l.e.Name, true)
	if err != nil {
		return err
	}
	for _, u := range left {
		if err := kube.Delete(ctx, l.direct, u); err != nil {
			return err
		}
	}
	ns := &corev1.Namespace{}
	err = l.direct.Get(ctx, client.ObjectKey{Name: fleet.OrgNamespace(l.e.Name)}, ns)
	if err != nil || !furnish.Ours(ns, l.e.Name) || ns.DeletionTimestamp != nil {
		return client.IgnoreNotFound(err)
	}
	return kube.Delete(ctx, l.direct, ns)
}
