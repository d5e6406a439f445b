package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/kube"
)

// An enrollmentState is the state of one reconcile of an enrollment: the collected input and the result.
type enrollmentState struct {
	deps  deps
	e     *v1alpha1.RunnerEnrollment
	forge *v1alpha1.RunnerForge // nil: there is none of that name
	pools map[string]*v1alpha1.RunnerPool
	holds []v1alpha1.RunnerHold
	now   time.Time
	live  bool // no data came from a cache

	allocation *allocation
	conflicts  map[fleet.Key]fleet.Key
	settings   isolation.Settings
	arcState   arcOrgState
	arcFailure fleet.Failure // why ARC cannot create workloads

	namespaces     []string // existing namespaces with runners
	secrets        []corev1.Secret
	session        *forgeSession     // nil: there is no usable credential
	credentialData map[string][]byte // data of the credential; nil: not usable
	baseline       baselineState
	workloads      []*workload
	facts          fleet.Facts
	unscanned      bool            // lost runners at GitLab were not searched; they have no managers
	failures       []fleet.Failure // reported in addition to the decision
	wake           time.Time

	externals []externalSet
	findings  []fleet.Finding // differences between forge, cluster and decisions
	compared  bool            // in this reconcile
}

// A workload is one workload with its observed state.
type workload struct {
	fleet.Workload
	use      *v1alpha1.EnrolledPool // nil: the enrollment does not use the pool any more
	pool     *v1alpha1.RunnerPool
	capacity fleet.Capacity // capacity if it is open
	target   fleet.Capacity // capacity to set
	inForce  int
	managers int
	demand   *int
	assigned *int // jobs that GitHub assigned to it, including running ones; nil: not known

	idle, busy, pending, failed *int
	drift                       []string
	reason                      string        // why a requested state is not confirmed
	denial                      fleet.Failure // what the forge does not allow the credential

	set    *arc.Set // GitHub
	state  arc.State
	seenAt *metav1.Time  // first time that GitHub was seen to have a runner of it; nil: never
	gitlab *gitlabRunner // GitLab
}

// reconcileEnrollment reconciles one enrollment: gather, decide, act, report.
func (w *reconciler) reconcileEnrollment(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	e := &v1alpha1.RunnerEnrollment{}
	// The forge of an enrollment never changes, so the cached value is right. Nothing is queried
	// before there is a decision, and before it is this enrollment's turn at the forge.
	if w.deps.cached.Get(ctx, req.NamespacedName, e, client.UnsafeDisableDeepCopy) == nil {
		if _, _, ok := w.deps.state.allocationFor(e); !ok {
			return w.requestAllocation()
		}
		changed := e.Status.ObservedGeneration != 0 && e.Status.ObservedGeneration != e.Generation
		leave, err := w.deps.sessions.acquire(ctx, e.Spec.Forge, changed)
		switch {
		case errors.Is(err, errForgeBusy) && changed:
			return requeueIn(debounce)
		case errors.Is(err, errForgeBusy):
			return requeueIn(w.deps.settings.pollInterval / 4)
		case err != nil:
			return reconcile.Result{}, err
		}
		defer leave()
	}
	e = &v1alpha1.RunnerEnrollment{}
	err := w.deps.direct.Get(ctx, req.NamespacedName, e)
	if apierrors.IsNotFound(err) {
		w.deps.state.deleteOrg(req.Name)
		w.deps.sessions.delete(req.Name)
		w.deps.driftSchedule.delete(req.Name)
		w.deps.baselines.delete(req.Name)
		w.deps.triggers.allocation.enqueue("all")
		w.deps.enqueueHolds(ctx)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("read the enrollment %s: %w", req.Name, err)
	}
	decided, conflicts, ok := w.deps.state.allocationFor(e)
	if !ok {
		return w.requestAllocation()
	}
	var l *enrollmentState
	var step fleet.Step
	for _, live := range []bool{false, true} {
		l = &enrollmentState{deps: w.deps, e: e, now: w.deps.now(), live: live, allocation: decided, conflicts: conflicts}
		if err := l.gather(ctx); err != nil {
			return reconcile.Result{}, fmt.Errorf("read the enrollment %s: %w", e.Name, err)
		}
		step = fleet.Next(l.facts, l.now)
		// Law 7: cached data never justifies a removal. Before an irreversible action, gather the
		// state again without caches.
		if !slices.ContainsFunc(step.Actions, func(a fleet.Action) bool { return a.Kind.Irreversible() }) {
			break
		}
	}
	err = errors.Join(l.doActions(ctx, step), l.applyCapacities(ctx, step.Open))
	l.externals = externalSetsOf(e, l.pools, l.deps.state, func(name string) bool {
		return slices.ContainsFunc(l.workloads, func(x *workload) bool { return x.Name == name })
	})
	l.checkDrift(ctx)
	released := slices.ContainsFunc(step.Actions, func(a fleet.Action) bool { return a.Kind == fleet.RemoveFinalizer })
	if !released || err != nil {
		err = errors.Join(err, l.report(context.WithoutCancel(ctx), step))
	}
	switch {
	case kube.IsStale(err):
		return requeueIn(debounce)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("enrollment %s: %w", e.Name, err)
	}
	return requeueIn(l.requeueAfter(step))
}

// requestAllocation triggers a new decision from the cache and requeues the enrollment. The decision
// triggers the enrollments that it concerns.
func (w *reconciler) requestAllocation() (reconcile.Result, error) {
	w.deps.triggers.allocation.enqueue("all")
	return requeueIn(2 * debounce)
}

// requeueAfter returns the time until the next reconcile.
func (l *enrollmentState) requeueAfter(step fleet.Step) time.Duration {
	after := maxRequeueAfter
	for _, wake := range []time.Time{step.Wake, l.wake} {
		if !wake.IsZero() {
			after = min(after, max(wake.Sub(l.now), 0)+time.Millisecond)
		}
	}
	moves := len(step.Actions) > 0 || slices.Contains([]v1alpha1.EnrollmentPhase{v1alpha1.PhaseApproved, v1alpha1.PhaseProvisioning, v1alpha1.PhaseDraining}, step.Report.Phase) ||
		slices.ContainsFunc(step.Report.Conditions, func(c fleet.Condition) bool { return c.Type == "Progressing" && c.Status == fleet.Yes })
	for _, w := range l.workloads {
		moves = moves || w.target.Max == 0 && (w.Stopped != fleet.Yes || w.target.Mode != v1alpha1.HoldPause && (w.Jobs == nil || *w.Jobs > 0))
	}
	if moves {
		after = min(after, l.deps.settings.pollInterval)
	}
	for _, a := range step.Actions { // actions that take effect at once and have a next step
		switch a.Kind {
		case fleet.AddFinalizer, fleet.EnsureNamespace, fleet.CopyCredential, fleet.EnsureAccess, fleet.CreateRunner, fleet.DeleteCopy, fleet.DeleteSecrets, fleet.DeleteRunnerGroups:
			after = debounce
		}
	}
	return after
}

// gather collects the input for the decision.
func (l *enrollmentState) gather(ctx context.Context) error {
	l.facts = fleet.Facts{Enrollment: l.e, Approved: l.deps.settings.approval(l.e), Violations: slices.Clone(l.allocation.Violations[l.e.Name]), Pruned: l.allocation.Pruned[l.e.Name],
		HasFinalizer: controllerutil.ContainsFinalizer(l.e, v1alpha1.FleetFinalizer), Listed: true}
	if err := l.readFleetObjects(ctx); err != nil {
		return err
	}
	if l.forge == nil { // a violation reports that
		l.facts.Listed = !hasFinalizer(l.e) || l.e.DeletionTimestamp.IsZero()
		l.failures = append(l.failures, fleet.Failure{Reason: fleet.ReasonForgeNotFound, Message: fmt.Sprintf("There is no RunnerForge %q.", l.e.Spec.Forge)})
		return nil
	}
	l.facts.Forge = l.forge.Spec.Type
	l.facts.Desired = fleet.DesiredWorkloads(l.e, l.forge.Spec.Type, l.pools, l.deps.settings.isolation.Shared)
	github := l.forge.Spec.Type == v1alpha1.GitHub
	if github {
		if err := l.scaleSets(ctx); err != nil {
			return err
		}
	}
	// Read independent data concurrently.
	var source *corev1.Secret
	var requested, observed error
	var exists []fleet.Failure
	var wg sync.WaitGroup
	wg.Go(func() { source, requested = l.sourceSecret(ctx) })
	wg.Go(func() { exists, observed = l.checkBaseline(ctx) })
	err := l.readNamespaces(ctx)
	wg.Wait()
	if err := errors.Join(err, requested, observed); err != nil {
		return err
	}
	l.checkCredential(ctx, source)
	if !github {
		if err := l.managers(ctx); err != nil {
			return err
		}
	}
	for _, w := range l.workloads {
		if github {
			l.compareSet(w)
		} else {
			l.compareManager(ctx, w)
		}
		l.facts.Workloads = append(l.facts.Workloads, w.Workload)
	}
	l.failures = append(l.failures, exists...)
	return l.readLeftovers(ctx)
}

// readFleetObjects reads the fleet's own kinds.
func (l *enrollmentState) readFleetObjects(ctx context.Context) error {
	var forges v1alpha1.RunnerForgeList
	var pools v1alpha1.RunnerPoolList
	var holds v1alpha1.RunnerHoldList
	for _, list := range []client.ObjectList{&forges, &pools, &holds} {
		if err := l.deps.cached.List(ctx, list); err != nil {
			return err
		}
	}
	for i := range forges.Items {
		if forges.Items[i].Name == l.e.Spec.Forge {
			l.forge = &forges.Items[i]
		}
	}
	l.pools, l.holds, l.settings = map[string]*v1alpha1.RunnerPool{}, holds.Items, l.deps.settings.isolation
	for i := range pools.Items {
		l.pools[pools.Items[i].Name] = &pools.Items[i]
	}
	return nil
}

// A namespaceState is the state of one namespace.
type namespaceState struct {
	name       string
	secrets    []corev1.Secret
	listed     bool // the list of Secrets is complete
	unreadable bool // the fleet owns the namespace but may not read it
	ending     bool
}

// readNamespaces finds the namespaces that may contain objects of the enrollment, and the Secrets there.
func (l *enrollmentState) readNamespaces(ctx context.Context) error {
	own := fleet.OrgNamespace(l.e.Name)
	names := []string{l.deps.settings.isolation.Shared, own}
	found, errs := make([]namespaceState, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { found[i], errs[i] = l.inspectNamespace(ctx, name) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, p := range found {
		switch {
		case p.listed:
			l.namespaces = append(l.namespaces, p.name)
			l.secrets = append(l.secrets, p.secrets...)
		case p.unreadable && p.ending:
			// The fleet's RoleBinding there was deleted first; only the namespace itself is left.
			if o := l.e.Status.Offboard; l.e.DeletionTimestamp.IsZero() || o == nil || o.Step != v1alpha1.StepDeleteNamespace {
				l.facts.Listed = false
			}
		case p.unreadable:
			org := ""
			if p.name == own {
				org = l.e.Name
			}
			if err := bindFleetRole(ctx, l.deps.direct, types.NamespacedName{Namespace: l.deps.settings.isolation.Namespace, Name: l.deps.settings.isolation.Account}, p.name, org); err != nil {
				return err
			}
			l.facts.Listed = false
			l.wake = earliest(l.wake, l.now.Add(l.deps.settings.pollInterval))
		}
	}
	for i := range l.secrets {
		if s := &l.secrets[i]; isCopy(s) {
			l.facts.Copies = append(l.facts.Copies, fleet.CredentialCopy{Namespace: s.Namespace, Name: s.Name})
		}
	}
	return nil
}

// inspectNamespace reads one namespace. It skips namespaces of others. It need not know the owner of the shared
// namespace first.
func (l *enrollmentState) inspectNamespace(ctx context.Context, name string) (p namespaceState, err error) {
	p.name = name
	ns := &corev1.Namespace{}
	var secrets corev1.SecretList
	list := func() error {
		return l.deps.direct.List(ctx, &secrets, client.InNamespace(name), client.MatchingLabels{v1alpha1.OrgLabel: l.e.Name})
	}
	var listed error
	var wg sync.WaitGroup
	if name == l.deps.settings.isolation.Shared {
		wg.Go(func() { listed = list() })
	}
	err = l.deps.direct.Get(ctx, client.ObjectKey{Name: name}, ns)
	wg.Wait()
	if apierrors.IsNotFound(err) || err == nil && name != l.deps.settings.isolation.Shared && !isManagedFor(ns, l.e.Name) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("get namespace %s: %w", name, err)
	}
	if name != l.deps.settings.isolation.Shared {
		listed = list()
	}
	switch err = listed; {
	case apierrors.IsForbidden(err):
		p.unreadable, p.ending = true, ns.DeletionTimestamp != nil
	case err != nil:
		return p, fmt.Errorf("list Secrets in %s: %w", name, err)
	default:
		p.listed, p.secrets = true, secrets.Items
	}
	return p, nil
}

// capacityOf returns the capacity of a workload if it is open: the allocation, as limited by holds.
func (l *enrollmentState) capacityOf(pool *v1alpha1.RunnerPool, use *v1alpha1.EnrolledPool) fleet.Capacity {
	s := pool.Spec.Scaling
	s.Max = fleet.MaxRunners(pool, *use)
	c := fleet.Effective(fleet.Target{Forge: l.e.Spec.Forge, Org: l.e.Name, Pool: pool.Name}, s, l.share(pool.Name).Allocated, l.holds, l.now)
	l.wake = earliest(l.wake, c.Wake)
	return c
}

// share returns the allocation from a pool.
func (l *enrollmentState) share(pool string) orgShare {
	return l.allocation.Shares[orgPool{Org: l.e.Name, Pool: pool}]
}

// resolvePool sets the pool, the use and the capacity of a workload.
func (l *enrollmentState) resolvePool(w *workload) {
	w.pool = l.pools[w.Pool]
	for i := range l.e.Spec.Pools {
		if l.e.Spec.Pools[i].Name == w.Pool && w.pool != nil {
			w.use = &l.e.Spec.Pools[i]
			w.capacity = l.capacityOf(w.pool, w.use)
		}
	}
}

// isDesired reports whether a workload matches the desired state and does not end.
func (l *enrollmentState) isDesired(w *workload) bool {
	return w.use != nil && l.e.DeletionTimestamp.IsZero() && slices.ContainsFunc(l.facts.Desired, func(x fleet.DesiredWorkload) bool {
		return x.Pool == w.Pool && x.Namespace == w.Namespace && x.Shape == w.Shape
	})
}

// workloadSpec returns the input for rendering a workload.
func (l *enrollmentState) workloadSpec(pool *v1alpha1.RunnerPool, use *v1alpha1.EnrolledPool, name string, capacity fleet.Capacity) isolation.WorkloadSpec {
	return isolation.WorkloadSpec{Enrollment: l.e, Forge: l.forge, Pool: pool, Use: *use, Name: name, Capacity: capacity}
}

// poolMax returns the maximum that any organisation may have of the pool.
func (w *workload) poolMax() int {
	if w.pool == nil {
		return 0
	}
	return int(w.pool.Spec.Scaling.Max)
}

func earliest(a, b time.Time) time.Time {
	if a.IsZero() || !b.IsZero() && b.Before(a) {
		return b
	}
	return a
}

// broken reports whether a rule prevents the creation or change of a pool.
func (l *enrollmentState) broken(org, pool string) bool {
	return slices.ContainsFunc(l.allocation.Violations[org], func(v fleet.Violation) bool {
		return v.Effect >= fleet.EffectBlock && (v.Pool == "" || v.Pool == pool)
	})
}

// sortWorkloads sorts the workloads by pool, revision, namespace and name.
func (l *enrollmentState) sortWorkloads() {
	slices.SortFunc(l.workloads, func(a, b *workload) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (l *enrollmentState) findWorkload(k fleet.Key) *workload {
	i := slices.IndexFunc(l.workloads, func(w *workload) bool { return w.Key == k })
	if i < 0 {
		return nil
	}
	return l.workloads[i]
}
