package fleetkube

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
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/account"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/adopted"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/arcworld"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/board"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/furnish"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/ledger"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/fleet/truth"
	"github.com/tailplane/tailplane/internal/kube"
)

// A look is the state of one reconcile of an enrollment: the collected input and the result.
type look struct {
	*crew
	e     *v1alpha1.RunnerEnrollment
	forge *v1alpha1.RunnerForge // nil: there is none of that name
	pools map[string]*v1alpha1.RunnerPool
	holds []v1alpha1.RunnerHold
	now   time.Time
	live  bool // no data came from a cache

	decided   *ledger.Result
	conflicts map[fleet.Key]fleet.Key
	settings  isolation.Settings
	arc       arcworld.View
	lacksARC  fleet.Trouble // why ARC cannot create workloads

	namespaces []string // existing namespaces with runners
	secrets    []corev1.Secret
	account    *account.Account  // nil: there is no usable credential
	source     map[string][]byte // data of the credential; nil: not usable
	ground     furnish.Ground
	works      []*work
	facts      fleet.Facts
	unscanned  bool            // lost runners at GitLab were not searched; they have no managers
	troubles   []fleet.Trouble // reported in addition to the decision
	wake       time.Time

	adopted  []adopted.Set
	stands   []truth.Finding // differences between forge, cluster and decisions
	compared bool            // in this reconcile
}

// A work is one workload with its observed state.
type work struct {
	fleet.Workload
	use      *v1alpha1.EnrolledPool // nil: the enrollment does not use the pool any more
	pool     *v1alpha1.RunnerPool
	capacity fleet.Capacity // capacity if it is open
	now      fleet.Capacity // capacity to set
	inForce  int
	managers int
	demand   *int
	assigned *int // jobs that GitHub assigned to it, including running ones; nil: not known

	idle, busy, pending, failed *int
	drift                       []string
	reason                      string        // why a requested state is not confirmed
	denial                      fleet.Trouble // what the forge does not allow the credential

	set    *arc.Set // GitHub
	state  arc.State
	seenAt *metav1.Time // first time that GitHub was seen to have a runner of it; nil: never
	gitlab *managed     // GitLab
}

// enrollment reconciles one enrollment: gather, decide, act, report.
func (w *crew) enrollment(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	e := &v1alpha1.RunnerEnrollment{}
	// The forge of an enrollment never changes, so the cached value is right. Nothing is queried
	// before there is a decision, and before it is this enrollment's turn at the forge.
	if w.known.Get(ctx, req.NamespacedName, e, client.UnsafeDisableDeepCopy) == nil {
		if _, _, ok := w.board.Decided(e); !ok {
			return w.undecided()
		}
		changed := e.Status.ObservedGeneration != 0 && e.Status.ObservedGeneration != e.Generation
		leave, err := w.accounts.Enter(ctx, e.Spec.Forge, changed)
		switch {
		case errors.Is(err, account.ErrBusy) && changed:
			return board.Soon(board.Quiet)
		case errors.Is(err, account.ErrBusy):
			return board.Soon(w.pace / 4)
		case err != nil:
			return reconcile.Result{}, err
		}
		defer leave()
	}
	e = &v1alpha1.RunnerEnrollment{}
	err := w.direct.Get(ctx, req.NamespacedName, e)
	if apierrors.IsNotFound(err) {
		w.board.Forget(req.Name)
		w.accounts.Drop(req.Name)
		w.rounds.Drop(req.Name)
		w.grounds.Drop(req.Name)
		w.decisions.ring("all")
		w.ringHolds(ctx)
		return reconcile.Result{}, nil
	}
	if err != nil {
		return reconcile.Result{}, fmt.Errorf("look at the enrollment %s: %w", req.Name, err)
	}
	decided, conflicts, ok := w.board.Decided(e)
	if !ok {
		return w.undecided()
	}
	var l *look
	var step fleet.Step
	for _, live := range []bool{false, true} {
		l = &look{crew: w, e: e, now: w.Now(), live: live, decided: decided, conflicts: conflicts}
		if err := l.gather(ctx); err != nil {
			return reconcile.Result{}, fmt.Errorf("look at the enrollment %s: %w", e.Name, err)
		}
		step = fleet.Next(l.facts, l.now)
		// Law 7: cached data never justifies a removal. Before an irreversible action, gather the
		// state again without caches.
		if !slices.ContainsFunc(step.Acts, func(a fleet.Act) bool { return a.Deed.Irreversible() }) {
			break
		}
	}
	err = errors.Join(l.act(ctx, step), l.apply(ctx, step.Open))
	l.adopted = adopted.Of(e, l.pools, l.board, func(name string) bool {
		return slices.ContainsFunc(l.works, func(x *work) bool { return x.Name == name })
	})
	l.compare(ctx)
	released := slices.ContainsFunc(step.Acts, func(a fleet.Act) bool { return a.Deed == fleet.Release })
	if !released || err != nil {
		err = errors.Join(err, l.report(context.WithoutCancel(ctx), step))
	}
	switch {
	case kube.Stale(err):
		return board.Soon(board.Quiet)
	case err != nil:
		return reconcile.Result{}, fmt.Errorf("enrollment %s: %w", e.Name, err)
	}
	return board.Soon(l.nap(step))
}

// undecided triggers a new decision from the cache and requeues the enrollment. The decision
// triggers the enrollments that it concerns.
func (w *crew) undecided() (reconcile.Result, error) {
	w.decisions.ring("all")
	return board.Soon(2 * board.Quiet)
}

// nap returns the time until the next reconcile.
func (l *look) nap(step fleet.Step) time.Duration {
	nap := board.LongestNap
	for _, wake := range []time.Time{step.Wake, l.wake} {
		if !wake.IsZero() {
			nap = min(nap, max(wake.Sub(l.now), 0)+time.Millisecond)
		}
	}
	moves := len(step.Acts) > 0 || slices.Contains([]v1alpha1.EnrollmentPhase{v1alpha1.PhaseApproved, v1alpha1.PhaseProvisioning, v1alpha1.PhaseDraining}, step.Report.Phase) ||
		slices.ContainsFunc(step.Report.Conditions, func(c fleet.Condition) bool { return c.Type == "Progressing" && c.Status == fleet.Yes })
	for _, w := range l.works {
		moves = moves || w.now.Max == 0 && (w.Stopped != fleet.Yes || w.now.Mode != v1alpha1.HoldPause && (w.Jobs == nil || *w.Jobs > 0))
	}
	if moves {
		nap = min(nap, l.pace)
	}
	for _, a := range step.Acts { // actions that take effect at once and have a next step
		switch a.Deed {
		case fleet.Hold, fleet.MakeNamespace, fleet.CopyCredential, fleet.MakeAccess, fleet.MakeRunner, fleet.DropCopy, fleet.DeleteSecrets, fleet.DropRunnerGroups:
			nap = board.Quiet
		}
	}
	return nap
}

// gather collects the input for the decision.
func (l *look) gather(ctx context.Context) error {
	l.facts = fleet.Facts{Enrollment: l.e, Approved: l.approved(l.e), Violations: slices.Clone(l.decided.Violations[l.e.Name]), Pruned: l.decided.Pruned[l.e.Name],
		Held: controllerutil.ContainsFinalizer(l.e, v1alpha1.FleetFinalizer), Listed: true}
	if err := l.objects(ctx); err != nil {
		return err
	}
	if l.forge == nil { // a violation reports that
		l.facts.Listed = !holds(l.e) || l.e.DeletionTimestamp.IsZero()
		l.troubles = append(l.troubles, fleet.Trouble{Reason: fleet.ReasonForgeNotFound, Message: fmt.Sprintf("There is no RunnerForge %q.", l.e.Spec.Forge)})
		return nil
	}
	l.facts.Forge = l.forge.Spec.Type
	l.facts.Wanted = fleet.Want(l.e, l.forge.Spec.Type, l.pools, l.Isolation.Shared)
	github := l.forge.Spec.Type == v1alpha1.GitHub
	if github {
		if err := l.scaleSets(ctx); err != nil {
			return err
		}
	}
	// Read independent data concurrently.
	var source *corev1.Secret
	var asked, looked error
	var there []fleet.Trouble
	var wg sync.WaitGroup
	wg.Go(func() { source, asked = l.sourceSecret(ctx) })
	wg.Go(func() { there, looked = l.lookAtGround(ctx) })
	err := l.places(ctx)
	wg.Wait()
	if err := errors.Join(err, asked, looked); err != nil {
		return err
	}
	l.credential(ctx, source)
	if !github {
		if err := l.managers(ctx); err != nil {
			return err
		}
	}
	for _, w := range l.works {
		if github {
			l.currentSet(w)
		} else {
			l.currentManager(ctx, w)
		}
		l.facts.Workloads = append(l.facts.Workloads, w.Workload)
	}
	l.troubles = append(l.troubles, there...)
	return l.ends(ctx)
}

// objects reads the fleet's own kinds.
func (l *look) objects(ctx context.Context) error {
	var forges v1alpha1.RunnerForgeList
	var pools v1alpha1.RunnerPoolList
	var holds v1alpha1.RunnerHoldList
	for _, list := range []client.ObjectList{&forges, &pools, &holds} {
		if err := l.known.List(ctx, list); err != nil {
			return err
		}
	}
	for i := range forges.Items {
		if forges.Items[i].Name == l.e.Spec.Forge {
			l.forge = &forges.Items[i]
		}
	}
	l.pools, l.holds, l.settings = map[string]*v1alpha1.RunnerPool{}, holds.Items, l.Isolation
	for i := range pools.Items {
		l.pools[pools.Items[i].Name] = &pools.Items[i]
	}
	return nil
}

// A yard is the state of one namespace.
type yard struct {
	name    string
	secrets []corev1.Secret
	looked  bool // the list of Secrets is complete
	bare    bool // the fleet owns the namespace but may not read it
	ending  bool
}

// places finds the namespaces that may contain objects of the enrollment, and the Secrets there.
func (l *look) places(ctx context.Context) error {
	own := fleet.OrgNamespace(l.e.Name)
	names := []string{l.Isolation.Shared, own}
	found, errs := make([]yard, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { found[i], errs[i] = l.yard(ctx, name) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil {
		return err
	}
	for _, p := range found {
		switch {
		case p.looked:
			l.namespaces = append(l.namespaces, p.name)
			l.secrets = append(l.secrets, p.secrets...)
		case p.bare && p.ending:
			// The fleet's RoleBinding there was deleted first; only the namespace itself is left.
			if o := l.e.Status.Offboard; l.e.DeletionTimestamp.IsZero() || o == nil || o.Step != v1alpha1.StepDeleteNamespace {
				l.facts.Listed = false
			}
		case p.bare:
			org := ""
			if p.name == own {
				org = l.e.Name
			}
			if err := furnish.Bind(ctx, l.direct, types.NamespacedName{Namespace: l.Isolation.Namespace, Name: l.Isolation.Account}, p.name, org); err != nil {
				return err
			}
			l.facts.Listed = false
			l.wake = earliest(l.wake, l.now.Add(l.pace))
		}
	}
	for i := range l.secrets {
		if s := &l.secrets[i]; isCopy(s) {
			l.facts.Copies = append(l.facts.Copies, fleet.Copy{Namespace: s.Namespace, Name: s.Name})
		}
	}
	return nil
}

// yard reads one namespace. It skips namespaces of others. It need not know the owner of the shared
// namespace first.
func (l *look) yard(ctx context.Context, name string) (p yard, err error) {
	p.name = name
	ns := &corev1.Namespace{}
	var secrets corev1.SecretList
	list := func() error {
		return l.direct.List(ctx, &secrets, client.InNamespace(name), client.MatchingLabels{v1alpha1.OrgLabel: l.e.Name})
	}
	var listed error
	var wg sync.WaitGroup
	if name == l.Isolation.Shared {
		wg.Go(func() { listed = list() })
	}
	err = l.direct.Get(ctx, client.ObjectKey{Name: name}, ns)
	wg.Wait()
	if apierrors.IsNotFound(err) || err == nil && name != l.Isolation.Shared && !furnish.Ours(ns, l.e.Name) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("look at namespace %s: %w", name, err)
	}
	if name != l.Isolation.Shared {
		listed = list()
	}
	switch err = listed; {
	case apierrors.IsForbidden(err):
		p.bare, p.ending = true, ns.DeletionTimestamp != nil
	case err != nil:
		return p, fmt.Errorf("list Secrets in %s: %w", name, err)
	default:
		p.looked, p.secrets = true, secrets.Items
	}
	return p, nil
}

// capacityOf returns the capacity of a workload if it is open: the allocation, as limited by holds.
func (l *look) capacityOf(pool *v1alpha1.RunnerPool, use *v1alpha1.EnrolledPool) fleet.Capacity {
	s := pool.Spec.Scaling
	s.Max = fleet.MaxOf(pool, *use)
	c := fleet.Effective(fleet.Target{Forge: l.e.Spec.Forge, Org: l.e.Name, Pool: pool.Name}, s, l.share(pool.Name).Allocated, l.holds, l.now)
	l.wake = earliest(l.wake, c.Wake)
	return c
}

// share returns the allocation from a pool.
func (l *look) share(pool string) ledger.Share {
	return l.decided.Shares[ledger.Use{Org: l.e.Name, Pool: pool}]
}

// of sets the pool, the use and the capacity of a workload.
func (l *look) of(w *work) {
	w.pool = l.pools[w.Pool]
	for i := range l.e.Spec.Pools {
		if l.e.Spec.Pools[i].Name == w.Pool && w.pool != nil {
			w.use = &l.e.Spec.Pools[i]
			w.capacity = l.capacityOf(w.pool, w.use)
		}
	}
}

// wanted reports whether a workload matches the desired state and does not end.
func (l *look) wanted(w *work) bool {
	return w.use != nil && l.e.DeletionTimestamp.IsZero() && slices.ContainsFunc(l.facts.Wanted, func(x fleet.Wanted) bool {
		return x.Pool == w.Pool && x.Namespace == w.Namespace && x.Shape == w.Shape
	})
}

// unit returns the input for rendering a workload.
func (l *look) unit(pool *v1alpha1.RunnerPool, use *v1alpha1.EnrolledPool, name string, capacity fleet.Capacity) isolation.Unit {
	return isolation.Unit{Enrollment: l.e, Forge: l.forge, Pool: pool, Use: *use, Name: name, Capacity: capacity}
}

// most returns the maximum that any organisation may have of the pool.
func (w *work) most() int {
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
func (l *look) broken(org, pool string) bool {
	return slices.ContainsFunc(l.decided.Violations[org], func(v fleet.Violation) bool {
		return v.Effect >= fleet.Bars && (v.Pool == "" || v.Pool == pool)
	})
}

// order sorts the workloads by pool, revision, namespace and name.
func (l *look) order() {
	slices.SortFunc(l.works, func(a, b *work) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Revision, b.Revision), cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name))
	})
}

func (l *look) find(k fleet.Key) *work {
	i := slices.IndexFunc(l.works, func(w *work) bool { return w.Key == k })
	if i < 0 {
		return nil
	}
	return l.works[i]
}
