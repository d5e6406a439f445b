package arc

import (
	"slices"

	"github.com/tailplane/tailplane/internal/fleet"
)

// Objects are all objects of one scale set.
type Objects struct {
	Key        fleet.Key
	Set        *Set // nil: it is gone, but parts of it may be left
	Listeners  []Listener
	Pods       []Pod // of listeners
	RunnerSets []RunnerSet
	Runners    []Runner

	// KnowsListeners and KnowsRunners say that these lists are complete: listeners with their pods,
	// and runner sets with their runners.
	KnowsListeners, KnowsRunners bool
}

// GroupBySet groups objects by scale set. It returns an entry for each set, and for each set of which
// only parts are left. The caller must set KnowsListeners and KnowsRunners; GroupBySet
// leaves them false.
func GroupBySet(sets []Set, listeners []Listener, pods []Pod, runnerSets []RunnerSet, runners []Runner) map[fleet.Key]*Objects {
	all := map[fleet.Key]*Objects{}
	of := func(k fleet.Key) *Objects {
		if all[k] == nil {
			all[k] = &Objects{Key: k}
		}
		return all[k]
	}
	for i := range sets {
		of(sets[i].Key).Set = &sets[i]
	}
	for _, l := range listeners {
		p := of(l.Set)
		p.Listeners = append(p.Listeners, l)
	}
	for _, l := range pods {
		p := of(l.Set)
		p.Pods = append(p.Pods, l)
	}
	owner := map[fleet.Key]fleet.Key{}
	for _, r := range runnerSets {
		p := of(r.Set)
		p.RunnerSets = append(p.RunnerSets, r)
		owner[r.Key] = r.Set
	}
	for _, r := range runners {
		set, ok := owner[fleet.Key{Namespace: r.Namespace, Name: r.RunnerSet}]
		if !ok {
			set = r.Set
		}
		p := of(set)
		p.Runners = append(p.Runners, r)
	}
	delete(all, fleet.Key{}) // objects without a scale set
	return all
}

// Counts are numbers of runners. They exclude runners that are being deleted.
type Counts struct {
	Desired int // last number that its listener requested
	Pending int // starting
	Busy    int
	Idle    int // waiting for a job
	Failed  int
}

// A State is the state of a scale set.
type State struct {
	// Stopped says whether the scale set is proven to take no new jobs; see [fleet.StoppedGitHub].
	// A set with a maximum above 0 is not stopped, even if it has no listener yet.
	Stopped fleet.Answer
	// Registered says that GitHub has it and that its listener runs.
	Registered fleet.Answer

	Counts *Counts // nil: not known
	Jobs   []Job   // running jobs, also on runners that are being deleted; sorted by runner
	// Running is the number of running jobs. Live is the number of runners that run a job or may
	// still take one. Nil means not known.
	Running, Live *int

	// Secrets are the names of all Secrets that its objects still need, in its namespace. If such a
	// Secret is deleted too early, the deletion of the objects hangs and the scale set stays at
	// GitHub.
	Secrets []string

	// WaitsForJobs says that its listener starts only after the current runners have ended, if the
	// controller is [Controller.Eventual].
	WaitsForJobs bool

	Failure fleet.Failure // a problem that this scale set alone shows
}

// State computes the state from the parts.
func (p Objects) State() State {
	s := State{Stopped: p.stopped(), Registered: p.registered(), Secrets: p.secrets()}
	if p.KnowsRunners {
		p.count(&s)
		if set := p.Set; set != nil && p.KnowsListeners {
			s.WaitsForJobs = !set.Ending && set.ID > 0 && set.Max > 0 && set.Phase != Outdated && len(p.Listeners) == 0 && *s.Live > 0
		}
	}
	s.Failure = p.failure()
	return s
}

// stopped prefers the safe answer in two cases. A set with a maximum above 0 gets a listener soon.
// A pod of an unknown listener belongs to an older one.
func (p Objects) stopped() fleet.Answer {
	var listeners []fleet.Listener
	for _, l := range p.Listeners {
		listeners = append(listeners, fleet.Listener{Max: &l.Max})
	}
	older := 0
	for _, pod := range p.Pods {
		if !pod.Ended && !slices.ContainsFunc(p.Listeners, func(l Listener) bool { return l.UID == pod.Listener && l.UID != "" }) {
			older++
		}
	}
	answer := fleet.StoppedGitHub(p.KnowsListeners, listeners, older)
	if set := p.Set; answer == fleet.Yes && set != nil && !set.Ending && set.Phase != Outdated && set.Max > 0 {
		return fleet.No
	}
	return answer
}

func (p Objects) registered() fleet.Answer {
	set := p.Set
	switch {
	case set == nil || set.ID == 0 || set.Ending || set.Phase != Running && !set.mayLackPhase():
		return fleet.No
	case !p.KnowsListeners:
		return fleet.Unknown
	}
	return fleet.AnswerOf(slices.ContainsFunc(p.Pods, func(pod Pod) bool {
		return pod.Ready &&
			slices.ContainsFunc(p.Listeners, func(l Listener) bool { return l.UID == pod.Listener && l.UID != "" && !l.Ending })
	}))
}

func (p Objects) count(s *State) {
	s.Counts, s.Running, s.Live = &Counts{}, new(int), new(int)
	if newest := p.newest(); newest != nil {
		s.Counts.Desired = newest.Desired
	}
	for _, r := range p.Runners {
		if r.Busy() {
			s.Jobs = append(s.Jobs, *r.Job)
			*s.Running++
		}
		if !r.Done() {
			*s.Live++
		}
		switch {
		case r.Ending:
		case r.Busy():
			s.Counts.Busy++
		case r.Phase == Failed:
			s.Counts.Failed++
		case r.Done():
		case r.Ready:
			s.Counts.Idle++
		default:
			s.Counts.Pending++
		}
	}
	slices.SortFunc(s.Jobs, func(a, b Job) int { return a.Runner.Compare(b.Runner) })
}

// newest returns the runner set that the listener scales.
func (p Objects) newest() *RunnerSet {
	var newest *RunnerSet
	for i := range p.RunnerSets {
		r := &p.RunnerSets[i]
		if newest == nil || r.Created.After(newest.Created) ||
			r.Created.Equal(newest.Created) && (newest.Ending && !r.Ending || newest.Ending == r.Ending && r.Name > newest.Name) {
			newest = r
		}
	}
	return newest
}

func (p Objects) secrets() []string {
	var names []string
	if p.Set != nil {
		names = append(names, p.Set.Secret)
	}
	for _, l := range p.Listeners {
		names = append(names, l.Secret)
	}
	for _, r := range p.RunnerSets {
		names = append(names, r.Secret)
	}
	for _, r := range p.Runners {
		names = append(names, r.Secret)
	}
	slices.Sort(names)
	names = slices.Compact(names)
	return slices.DeleteFunc(names, func(n string) bool { return n == "" })
}

// InForce returns the largest maximum that a listener may still use; limit is its upper bound.
func (p Objects) InForce(limit int) int {
	n := min(p.Set.Max, limit)
	if p.Set.Phase == Outdated || p.Set.Ending {
		n = 0
	}
	for _, l := range p.Listeners {
		n = max(n, min(l.Max, limit))
	}
	for _, pod := range p.Pods {
		if !pod.Ended && !slices.ContainsFunc(p.Listeners, func(l Listener) bool { return l.UID == pod.Listener }) {
			return limit // the maximum of this pod is not known
		}
	}
	return n
}
