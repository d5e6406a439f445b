package controller

import (
	"cmp"
	"fmt"
	"slices"
	"strconv"
	"time"

	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/arc"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// A plan is the result of [decide]: the next step of an enrollment.
type plan struct {
	step      fleet.Step
	workloads []workloadPlan  // of the observed workloads, in their order
	failures  []fleet.Failure // reported in addition to the step
}

// A workloadPlan is the decision for one workload.
type workloadPlan struct {
	current bool           // the workload matches its desired state
	failure fleet.Failure  // why it does not work
	drift   []string       // differences to report
	target  fleet.Capacity // capacity to set

	// Only for workloads at GitLab.
	rendered    bool                         // the next fields are known
	outdated    []*unstructured.Unstructured // desired objects that the existing ones differ from
	needsBudget bool                         // it must have a PodDisruptionBudget
}

// decide decides the next step of an enrollment. It is a pure function of the observed state.
func decide(o *observed) plan {
	p := plan{workloads: make([]workloadPlan, len(o.workloads)), failures: slices.Clone(o.failures)}
	facts := o.facts
	for i, w := range o.workloads {
		var failures []fleet.Failure
		if w.set != nil {
			p.workloads[i], failures = compareSet(o, w)
		} else {
			p.workloads[i] = compareManager(o, w)
		}
		p.failures = append(p.failures, failures...)
		x := w.Workload
		x.Current, x.Failure = p.workloads[i].current, p.workloads[i].failure
		facts.Workloads = append(facts.Workloads, x)
	}
	p.failures = append(p.failures, o.baseline.failures...)
	p.step = fleet.Next(facts, o.now)
	for i, w := range o.workloads {
		p.workloads[i].target = targetOf(w, slices.Contains(p.step.Open, w.Key))
	}
	return p
}

// includes reports whether a step has an action that f selects.
func (p plan) includes(f func(fleet.ActionKind) bool) bool {
	return slices.ContainsFunc(p.step.Actions, func(a fleet.Action) bool { return f(a.Kind) })
}

// targetOf returns the capacity to set for a workload. An open workload gets its allocation, as limited by holds.
// The others get nothing.
func targetOf(w *workload, open bool) fleet.Capacity {
	switch {
	case open && w.use != nil:
		return w.capacity
	case w.capacity.Mode != "":
		return fleet.Capacity{Mode: w.capacity.Mode, Hold: w.capacity.Hold, CancelAt: w.capacity.CancelAt}
	}
	return fleet.Capacity{}
}

// compareSet compares a scale set with its desired state. It also returns the problems to report.
func compareSet(o *observed, w *workload) (p workloadPlan, failures []fleet.Failure) {
	p.failure, p.drift = w.Failure, slices.Clone(w.drift)
	if w.use == nil || w.Shape == "" {
		return p, nil
	}
	credential := w.set.Secret
	if o.facts.Credential.Valid == fleet.Yes {
		credential = fleet.CredentialName(o.e.Name, o.facts.Credential.Fingerprint)
	}
	want, err := renderSet(o, setSpec{name: w.Name, shape: w.Shape, revision: w.Revision, pool: w.pool, use: w.use}, credential)
	switch {
	case err != nil && o.arcFailure.Reason != "":
		p.current = true // without ARC it cannot be changed anyway
	case err != nil:
		p.failure = fleet.Failure{Reason: reasonUnrendered, Message: err.Error()}
	default:
		p.current = upToDate(want, o.arcState.Sets[w.Key])
	}
	if !p.current && p.failure.Reason == arc.ReasonOutdated {
		p.failure = fleet.Failure{} // the coming change repairs it
	}
	if p.failure.Reason == arc.ReasonCrashLoop {
		failures = append(failures, p.failure)
		p.drift, p.failure = append(p.drift, arc.ReasonCrashLoop), fleet.Failure{}
	}
	if labels, err := isolation.SupportsLabels(o.settings.ARC.Version); err == nil && !labels {
		p.drift = append(p.drift, reasonNoLabels)
		failures = append(failures, fleet.Failure{Reason: reasonNoLabels,
			Message: fmt.Sprintf(
				"This actions-runner-controller does not support labels: jobs select the runners with runs-on: %s.",
				w.Name,
			)})
	}
	return p, failures
}

// A setSpec describes a scale set to render.
type setSpec struct {
	name, shape string
	revision    int
	pool        *v1alpha1.RunnerPool
	use         *v1alpha1.EnrolledPool
	capacity    fleet.Capacity // until the next reconcile
}

// newSet returns the scale set to create for a desired workload; false if the enrollment does not use the pool.
func newSet(o *observed, to fleet.DesiredWorkload) (setSpec, bool) {
	s := setSpec{shape: to.Shape, pool: o.pools[to.Pool]}
	s.name, s.revision = o.nextWorkloadName(to.Pool)
	if s.use = useOf(o.e, to.Pool); s.use == nil || s.pool == nil {
		return s, false
	}
	if s.revision == 1 { // replaces no workload; a replacement must wait until the old one takes no jobs
		s.capacity = o.capacityOf(s.pool, s.use)
	}
	return s, true
}

// nextWorkloadName returns the name and the revision of the next workload of a pool.
func (o *observed) nextWorkloadName(pool string) (name string, revision int) {
	var taken []string
	last := 0
	for _, w := range o.workloads {
		taken = append(taken, w.Name)
		if w.Pool == pool {
			last = max(last, w.Revision)
		}
	}
	return fleet.NextWorkloadName(o.e.Name, pool, last, taken)
}

// renderSet renders the desired AutoscalingRunnerSet of a workload, without its capacity.
func renderSet(o *observed, s setSpec, credential string) (*unstructured.Unstructured, error) {
	unit := o.workloadSpec(s.pool, s.use, s.name, fleet.Capacity{})
	unit.Credential = credential
	set, err := isolation.ScaleSet(o.settings, unit)
	if err != nil {
		return nil, err
	}
	set.SetAnnotations(map[string]string{shapeAnnotation: s.shape, revisionAnnotation: strconv.Itoa(s.revision)})
	unstructured.RemoveNestedField(set.Object, "spec", "minRunners")
	unstructured.RemoveNestedField(set.Object, "spec", "maxRunners")
	return prepareApply(set)
}

// A gateDecision says whether a scale set may be created now.
type gateDecision struct {
	allowed bool
	failure fleet.Failure // why not
	until   time.Time     // when the failure ends
	record  string        // gate to record before the creation
}

// decideGate prevents an endless loop of creation and deletion if ARC deletes a scale set right after its creation.
// recorded is the recorded gate, and version is ARC's.
func decideGate(recorded, version string, now time.Time) gateDecision {
	g := arc.ParseCreationGate(recorded)
	if failure, until := g.Allows(version, now); failure.Reason != "" {
		return gateDecision{failure: failure, until: until, record: recorded}
	}
	if !g.CreatedAt.IsZero() {
		g = g.Removed(now)
		if failure, until := g.Allows(version, now); failure.Reason != "" {
			return gateDecision{failure: failure, until: until, record: g.String()}
		}
	}
	return gateDecision{allowed: true, record: g.Created(version, now).String()}
}

// compareManager compares a workload at GitLab with its desired state.
func compareManager(o *observed, w *workload) (p workloadPlan) {
	p.failure, p.drift = w.Failure, slices.Clone(w.drift)
	m := w.gitlab
	if w.use == nil || m.token == nil || w.Lost {
		return p
	}
	unit := o.managerSpec(w)
	objects, err := isolation.Objects(o.settings, unit)
	if err != nil {
		p.failure = fleet.Failure{Reason: reasonUnrendered, Message: err.Error()}
		return p
	}
	managers, concurrent := isolation.ManagerCount(unit)
	// Settings that GitLab did not report stay unchanged.
	p.current, p.rendered = w.Remote != fleet.Yes || w.isManual() || o.runnerMatches(w), true
	for _, x := range objects {
		u, err := prepareApply(x)
		if err != nil {
			p.failure = fleet.Failure{Reason: reasonUnrendered, Message: err.Error()}
			return p
		}
		var is *unstructured.Unstructured
		switch x := x.(type) {
		case *corev1.Secret:
			is = toUnstructured(o.secret(w.Namespace, x.Name), u.GroupVersionKind())
		case *appsv1.Deployment:
			is = toUnstructured(m.deployment, u.GroupVersionKind())
		default:
			is, p.needsBudget = m.budget, true
		}
		if !upToDate(u, is) {
			p.outdated = append(p.outdated, u)
		}
	}
	p.current = p.current && len(p.outdated) == 0 && (p.needsBudget || m.budget == nil) &&
		m.concurrent == managers*concurrent && unit.Token.Reveal() == string(m.token.Data[tokenKey])
	return p
}

// runnerSpec returns the desired settings of a runner at GitLab.
func (o *observed) runnerSpec(pool *v1alpha1.RunnerPool) forge.RunnerSpec {
	s := forge.RunnerSpec{GroupID: o.session.Group, Tags: fleet.RunsOn(pool, o.e.Name), Locked: true, MaximumTimeout: time.Hour}
	if g := pool.Spec.GitLab; g != nil {
		s.RunUntagged, s.Locked, s.Protected = g.RunUntagged, g.Locked, g.Protected
		s.MaximumTimeout = cmp.Or(g.MaximumTimeout.Duration, time.Hour)
	}
	return s
}

// runnerMatches reports whether the runner at GitLab has the desired settings.
func (o *observed) runnerMatches(w *workload) bool {
	want, is := o.runnerSpec(w.pool), w.gitlab.runner
	return slices.Equal(slices.Sorted(slices.Values(want.Tags)), slices.Sorted(slices.Values(is.Tags))) &&
		want.RunUntagged == is.RunUntagged && want.Locked == is.Locked && want.Protected == is.Protected && want.MaximumTimeout == is.MaximumTimeout
}

// requeueAfter returns the time until the next reconcile. wakes are the times of the next expected changes; zero
// times do not count.
func requeueAfter(o *observed, p plan, done outcome, pollInterval time.Duration, wakes ...time.Time) time.Duration {
	after := maxRequeueAfter
	for _, wake := range append(wakes, p.step.Wake, o.wake, done.wake) {
		if !wake.IsZero() {
			after = min(after, max(wake.Sub(o.now), 0)+time.Millisecond)
		}
	}
	moving := []v1alpha1.EnrollmentPhase{v1alpha1.PhaseApproved, v1alpha1.PhaseProvisioning, v1alpha1.PhaseDraining}
	moves := len(p.step.Actions) > 0 || slices.Contains(moving, p.step.Report.Phase) ||
		slices.ContainsFunc(
			p.step.Report.Conditions,
			func(c fleet.Condition) bool { return c.Type == "Progressing" && c.Status == fleet.Yes },
		)
	for i, w := range done.workloads {
		target := p.workloads[i].target
		moves = moves || target.Max == 0 && (w.stopped != fleet.Yes || target.Mode != v1alpha1.HoldPause && (w.jobs == nil || *w.jobs > 0))
	}
	if moves {
		after = min(after, pollInterval)
	}
	for _, a := range p.step.Actions { // actions that take effect at once and have a next step
		switch a.Kind {
		case fleet.AddFinalizer, fleet.EnsureNamespace, fleet.CopyCredential, fleet.EnsureAccess, fleet.CreateRunner,
			fleet.DeleteCopy, fleet.DeleteSecrets, fleet.DeleteRunnerGroups:
			after = debounce
		}
	}
	return after
}
