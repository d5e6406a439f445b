package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// An enrollmentInput says which enrollment to reconcile, and how.
type enrollmentInput struct {
	e          *v1alpha1.RunnerEnrollment
	allocation *allocation
	conflicts  map[fleet.Key]fleet.Key
	now        time.Time
	live       bool // use no data from a cache
}

// observed is the result of [gather]: the state of one enrollment in the cluster and at its forge.
type observed struct {
	enrollmentInput
	forge *v1alpha1.RunnerForge // nil: there is none of that name
	pools map[string]*v1alpha1.RunnerPool
	holds []v1alpha1.RunnerHold

	settings   isolation.Settings // with the ARC that the runners use
	arcState   arcOrgState
	arcFailure fleet.Failure // why ARC cannot create workloads

	namespaces []string // existing namespaces with runners
	unbound    []string // namespaces of the fleet that it may not read, because its RoleBinding is missing
	secrets    []corev1.Secret
	baseline   baselineResult

	session        *forgeSession     // nil: there is no usable credential
	credentialData map[string][]byte // data of the credential; nil: not usable
	groupID        int64             // of the GitLab group, if GitLab resolved it; otherwise 0

	workloads []*workload
	unscanned bool // lost runners at GitLab were not searched; they have no managers
	facts     fleet.Facts
	failures  []fleet.Failure // reported in addition to the decision
	wake      time.Time       // when to gather again
}

// A workload is one workload with its observed state. A GitHub workload has set and state, a GitLab workload has gitlab.
type workload struct {
	fleet.Workload
	use      *v1alpha1.EnrolledPool // nil: the enrollment does not use the pool any more
	pool     *v1alpha1.RunnerPool
	capacity fleet.Capacity // capacity if it is open
	inForce  int
	managers int
	demand   *int
	assigned *int // jobs that GitHub assigned to it, including running ones; nil: not known

	idle, busy, pending, failed *int
	drift                       []string
	reason                      string // why a requested state is not confirmed

	set    *arc.Set // GitHub
	state  arc.State
	seenAt *metav1.Time  // first time that GitHub was seen to have a runner of it; nil: never
	gitlab *gitlabRunner // GitLab
}

// gather reads the state of an enrollment. It changes nothing in the cluster and at the forge.
func gather(ctx context.Context, d deps, in enrollmentInput) (*observed, error) {
	e := in.e
	o := &observed{enrollmentInput: in, settings: d.settings.isolation}
	o.facts = fleet.Facts{Enrollment: e, Approved: d.settings.approval(e), Violations: slices.Clone(in.allocation.Violations[e.Name]),
		Pruned: in.allocation.Pruned[e.Name], HasFinalizer: hasFinalizer(e), Listed: true}
	if err := readFleetObjects(ctx, d, o); err != nil {
		return nil, err
	}
	if o.forge == nil { // a violation reports that
		o.facts.Listed = !hasFinalizer(e) || e.DeletionTimestamp.IsZero()
		missing := fleet.Failure{Reason: fleet.ReasonForgeNotFound, Message: fmt.Sprintf("There is no RunnerForge %q.", e.Spec.Forge)}
		o.failures = append(o.failures, missing)
		return o, nil
	}
	o.facts.Forge = o.forge.Spec.Type
	o.facts.Desired = fleet.DesiredWorkloads(e, o.forge.Spec.Type, o.pools, o.settings.Shared)
	github := o.forge.Spec.Type == v1alpha1.GitHub
	if github {
		if err := readScaleSets(ctx, d, o); err != nil {
			return nil, err
		}
	} else {
		o.settings.ARC = arcOfNamespace(ctx, d, o)
	}
	// Read independent data concurrently.
	var source *corev1.Secret
	var requested, compared error
	var wg sync.WaitGroup
	wg.Go(func() { source, requested = sourceSecret(ctx, d, e) })
	wg.Go(func() { o.baseline, compared = checkBaseline(ctx, d, o) })
	found, err := readNamespaces(ctx, d, e)
	wg.Wait()
	if err := errors.Join(err, requested, compared); err != nil {
		return nil, err
	}
	o.addNamespaces(found, d.settings.pollInterval)
	o.facts.Namespace, o.facts.Policies, o.facts.Access = o.baseline.Namespace, o.baseline.Policies, o.baseline.Access
	o.facts.Unbounded = o.baseline.unbounded
	checkCredential(ctx, d, o, source)
	if !github {
		if err := readManagers(ctx, d, o); err != nil {
			return nil, err
		}
	}
	for _, w := range o.workloads {
		o.wake = retry.Earliest(o.wake, w.capacity.Wake)
	}
	if len(o.unbound) > 0 { // nothing is deleted before the fleet may read there
		return o, nil
	}
	return o, readLeftovers(ctx, d, o)
}

// readFleetObjects reads the fleet's own kinds.
func readFleetObjects(ctx context.Context, d deps, o *observed) error {
	var forges v1alpha1.RunnerForgeList
	var pools v1alpha1.RunnerPoolList
	var holds v1alpha1.RunnerHoldList
	for _, list := range []client.ObjectList{&forges, &pools, &holds} {
		if err := d.cached.List(ctx, list); err != nil {
			return err
		}
	}
	o.forge = fleet.ByName(forges.Items)[o.e.Spec.Forge]
	o.pools, o.holds = fleet.ByName(pools.Items), holds.Items
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
func readNamespaces(ctx context.Context, d deps, e *v1alpha1.RunnerEnrollment) ([]namespaceState, error) {
	names := []string{d.settings.isolation.Shared, fleet.OrgNamespace(e.Name)}
	found, errs := make([]namespaceState, len(names)), make([]error, len(names))
	var wg sync.WaitGroup
	for i, name := range names {
		wg.Go(func() { found[i], errs[i] = inspectNamespace(ctx, d, e.Name, name) })
	}
	wg.Wait()
	return found, errors.Join(errs...)
}

// addNamespaces adds the state of the namespaces. If the fleet may not read one of them, the lists are incomplete.
func (o *observed) addNamespaces(found []namespaceState, again time.Duration) {
	for _, p := range found {
		switch {
		case p.listed:
			o.namespaces = append(o.namespaces, p.name)
			o.secrets = append(o.secrets, p.secrets...)
		case p.unreadable && p.ending:
			// The fleet's RoleBinding there was deleted first; only the namespace itself is left.
			if s := o.e.Status.Offboard; o.e.DeletionTimestamp.IsZero() || s == nil || s.Step != v1alpha1.StepDeleteNamespace {
				o.facts.Listed = false
			}
		case p.unreadable:
			o.unbound = append(o.unbound, p.name)
			o.facts.Listed = false
			o.wake = retry.Earliest(o.wake, o.now.Add(again))
		}
	}
	for i := range o.secrets {
		if s := &o.secrets[i]; isCopy(s) {
			o.facts.Copies = append(o.facts.Copies, fleet.CredentialCopy{Namespace: s.Namespace, Name: s.Name})
		}
	}
}

// inspectNamespace reads one namespace. It skips namespaces of others. It need not know the owner of the shared
// namespace first.
func inspectNamespace(ctx context.Context, d deps, org, name string) (p namespaceState, err error) {
	p.name = name
	shared := d.settings.isolation.Shared
	ns := &corev1.Namespace{}
	var secrets corev1.SecretList
	list := func() error {
		return d.direct.List(ctx, &secrets, client.InNamespace(name), client.MatchingLabels{v1alpha1.OrgLabel: org})
	}
	var listed error
	var wg sync.WaitGroup
	if name == shared {
		wg.Go(func() { listed = list() })
	}
	err = d.direct.Get(ctx, client.ObjectKey{Name: name}, ns)
	wg.Wait()
	if apierrors.IsNotFound(err) || err == nil && name != shared && !isManagedFor(ns, org) {
		return p, nil
	}
	if err != nil {
		return p, fmt.Errorf("get namespace %s: %w", name, err)
	}
	if name != shared {
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

// resolvePool sets the pool, the use and the capacity of a workload.
func (o *observed) resolvePool(w *workload) {
	if w.pool = o.pools[w.Pool]; w.pool != nil {
		w.use = useOf(o.e, w.Pool)
	}
	if w.use != nil {
		w.capacity = o.capacityOf(w.pool, w.use)
	}
}

// useOf returns an enrollment's use of a pool; nil if it does not use the pool.
func useOf(e *v1alpha1.RunnerEnrollment, pool string) *v1alpha1.EnrolledPool {
	i := slices.IndexFunc(e.Spec.Pools, func(u v1alpha1.EnrolledPool) bool { return u.Name == pool })
	if i < 0 {
		return nil
	}
	return &e.Spec.Pools[i]
}

// capacityOf returns the capacity of a workload if it is open: the allocation, as limited by holds.
func (o *observed) capacityOf(pool *v1alpha1.RunnerPool, use *v1alpha1.EnrolledPool) fleet.Capacity {
	s := pool.Spec.Scaling
	s.Max = fleet.MaxRunners(pool, *use)
	t := fleet.Target{Forge: o.e.Spec.Forge, Org: o.e.Name, Pool: pool.Name}
	return fleet.Effective(t, s, o.share(pool.Name).Allocated, o.holds, o.now)
}

// share returns the allocation from a pool.
func (o *observed) share(pool string) orgShare {
	return o.allocation.Shares[orgPool{Org: o.e.Name, Pool: pool}]
}

// isDesired reports whether a workload matches the desired state and does not end.
func (o *observed) isDesired(w *workload) bool {
	return w.use != nil && o.e.DeletionTimestamp.IsZero() && slices.ContainsFunc(o.facts.Desired, func(x fleet.DesiredWorkload) bool {
		return x.Pool == w.Pool && x.Namespace == w.Namespace && x.Shape == w.Shape
	})
}

// workloadSpec returns the input for rendering a workload.
func (o *observed) workloadSpec(
	pool *v1alpha1.RunnerPool, use *v1alpha1.EnrolledPool, name string, capacity fleet.Capacity,
) isolation.WorkloadSpec {
	return isolation.WorkloadSpec{Enrollment: o.e, Forge: o.forge, Pool: pool, Use: *use, Name: name, Capacity: capacity}
}

// poolMax returns the maximum that any organisation may have of the pool.
func (w *workload) poolMax() int {
	if w.pool == nil {
		return 0
	}
	return int(w.pool.Spec.Scaling.Max)
}

// broken reports whether a rule prevents the creation or change of a pool.
func (o *observed) broken(org, pool string) bool {
	return slices.ContainsFunc(o.allocation.Violations[org], func(v fleet.Violation) bool {
		return v.Effect >= fleet.EffectBlock && (v.Pool == "" || v.Pool == pool)
	})
}

// sortWorkloads sorts the workloads by pool, revision, namespace and name.
func (o *observed) sortWorkloads() {
	slices.SortFunc(o.workloads, func(a, b *workload) int {
		return cmp.Or(cmp.Compare(a.Pool, b.Pool), cmp.Compare(a.Revision, b.Revision), a.Key.Compare(b.Key))
	})
}

// denialCount returns the number of times that the forge refused the removal of a workload.
func (o *observed) denialCount(workload string) int {
	n, _, _ := strings.Cut(o.e.Annotations[deniedAnnotation+workload], " ")
	times, _ := strconv.Atoi(n)
	return times
}
