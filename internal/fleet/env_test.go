package fleet_test

import (
	"encoding/json"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// An env simulates a cluster and a forge for one enrollment. Requested changes take effect one
// reconcile later, and jobs end by themselves. It fails the test if an action would do harm.
type env struct {
	t             *testing.T
	e             v1alpha1.RunnerEnrollment
	forge         v1alpha1.ForgeType
	now           time.Time
	namespaceName string // wanted namespace

	held, gone        bool
	namespace, access bool
	copies            []fleet.CredentialCopy
	source            bool // the credential's own Secret
	fingerprint       string
	approved          fleet.Answer
	valid, inUse      fleet.Answer
	violations        []fleet.Violation
	pruned, group     bool
	listed            bool
	shapes            map[string]string // wanted shapes, by pool
	runners           []*runner
	jobsEnd           time.Time // when the running jobs end
	denies            bool      // the forge removes nothing
	silent            bool      // nor does it answer
	ids               int64
	log               []string // actions, in order
	crashIn           int      // number of writes until the crash; negative: never
	last              fleet.Step
	leaks             int
	fails             fleet.ActionKind // action that fails
}

type runner struct {
	fleet.Workload
	openNow, openBefore bool
	age                 int // reconciles since the creation of its object
	wantEnd             bool
	copy                string
}

type crash struct{}

func newEnv(t *testing.T, forge v1alpha1.ForgeType) *env {
	w := &env{t: t, forge: forge, now: start, namespaceName: "tailplane-org-acme", source: true, fingerprint: "11111111", approved: fleet.Yes, valid: fleet.Yes, listed: true,
		shapes: map[string]string{"nix": "one", "docker": "one"}, crashIn: -1, ids: 100}
	w.e = v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "acme", CreationTimestamp: metav1.NewTime(start)},
		Spec: v1alpha1.RunnerEnrollmentSpec{Isolation: v1alpha1.IsolationNamespace, OffboardTimeout: metav1.Duration{Duration: 24 * time.Hour}}}
	return w
}

// recordWrite counts a write, and crashes after the chosen one.
func (w *env) recordWrite(format string, args ...any) {
	w.log = append(w.log, fmt.Sprintf(format, args...))
	if w.crashIn--; w.crashIn == 0 {
		panic(crash{})
	}
}

func (w *env) facts() fleet.Facts {
	f := fleet.Facts{Enrollment: w.e.DeepCopy(), Forge: w.forge, Approved: fleet.Condition{Type: "Approved", Status: w.approved, Reason: "Said", Message: "said"},
		Violations: w.violations, HasFinalizer: w.held, Pruned: w.pruned, Listed: w.listed, Copies: slices.Clone(w.copies),
		Namespace: fleet.AnswerOf(w.namespace), Policies: fleet.AnswerOf(w.namespace), Access: fleet.AnswerOf(w.access),
		Credential: fleet.CredentialState{Valid: w.valid, InUse: w.inUse, Fingerprint: w.fingerprint, Reason: "Told", Message: "told"},
		Secrets:    fleet.AnswerOf(w.source || len(w.copies) > 0), OwnNamespace: fleet.AnswerOf(w.namespace), OtherObjects: fleet.No, RunnerGroups: fleet.AnswerOf(w.group)}
	if w.silent {
		f.Secrets, f.OwnNamespace, f.OtherObjects, f.RunnerGroups, f.Credential.Valid = 0, 0, 0, 0, 0
	}
	for _, pool := range []string{"docker", "nix"} {
		if shape := w.shapes[pool]; shape != "" {
			f.Desired = append(f.Desired, fleet.DesiredWorkload{Pool: pool, Namespace: w.namespaceName, Shape: shape})
		}
	}
	for _, r := range w.runners {
		x := r.Workload
		x.Stopped = fleet.AnswerOf(!r.openNow && !r.openBefore || x.Object != fleet.Yes)
		x.Jobs = new(0)
		if w.now.Before(w.jobsEnd) && x.Object == fleet.Yes {
			x.Jobs = new(1)
		}
		x.Ready = fleet.AnswerOf(x.Object == fleet.Yes && r.age >= 2 && !x.Ending)
		x.Contacted = fleet.AnswerOf(x.Contacted == fleet.Yes)
		x.Current = r.Current && (w.forge == v1alpha1.GitLab || r.copy == fleet.CredentialName("acme", w.fingerprint))
		if w.forge == v1alpha1.GitHub && x.Object == fleet.Yes {
			x.Copies = []string{r.copy}
		}
		if w.silent {
			x.Stopped, x.Jobs, x.Ready, x.Remote = 0, nil, 0, 0
		}
		f.Workloads = append(f.Workloads, x)
	}
	return f
}

// advance lets requested changes take effect.
func (w *env) advance() {
	w.now = w.now.Add(time.Minute)
	w.runners = slices.DeleteFunc(w.runners, func(r *runner) bool {
		r.age++
		r.openBefore = r.openNow
		if r.Object == fleet.Yes && r.age >= 2 {
			r.Contacted = fleet.Yes
		}
		if r.Ending && w.forge == v1alpha1.GitHub && !w.denies {
			if !slices.Contains(w.copies, fleet.CredentialCopy{Namespace: r.Namespace, Name: r.copy}) {
				w.t.Errorf("%v: the credential of %s was deleted before it: %q", w.now, r.Name, w.log)
			}
			return true
		}
		return r.Object == fleet.No && r.Remote == fleet.No
	})
	if w.denies {
		for _, r := range w.runners {
			if r.wantEnd {
				r.Denied++
			}
		}
	}
}

// reconcile runs one reconcile and its actions. It returns false if the enrollment is gone, and panics
// with crash at the chosen write.
func (w *env) reconcile() bool {
	f := w.facts()
	before, err := json.Marshal(f)
	if err != nil {
		w.t.Fatal(err)
	}
	s := fleet.Next(f, w.now)
	if after, err := json.Marshal(f); err != nil || string(after) != string(before) {
		w.t.Fatalf("Next changed what it was given")
	}
	w.checkInvariants(f, s)
	w.last = s
	w.e.Status.Phase, w.e.Status.Offboard = s.Report.Phase, s.Report.Offboard
	w.e.Status.Conditions = nil
	for _, c := range s.Report.Conditions {
		w.e.Status.Conditions = append(w.e.Status.Conditions, metav1.Condition{Type: c.Type, Status: metav1.ConditionStatus(c.Status.String()), Reason: c.Reason, Message: c.Message})
	}
	for _, r := range w.runners {
		r.openNow = slices.Contains(s.Open, r.Key)
	}
	for _, a := range s.Actions {
		if a.Kind != w.fails { // the other actions still run
			w.act(a)
		}
	}
	return !w.gone
}

// checkInvariants checks the invariants of every step.
func (w *env) checkInvariants(f fleet.Facts, s fleet.Step) {
	w.t.Helper()
	seen := map[string]bool{}
	for _, c := range s.Report.Conditions {
		if seen[c.Type] || c.Reason == "" {
			w.t.Errorf("condition %+v, in %+v", c, s.Report)
		}
		seen[c.Type] = true
	}
	for _, kind := range []string{"Ready", "Approved", "CredentialsValid", "NamespaceReady", "PolicyReady", "Registered", "Progressing", "Degraded", "PolicyViolation", "DecisionNeeded"} {
		if !seen[kind] {
			w.t.Errorf("no report about %s: %+v", kind, s.Report)
		}
	}
	if s.Report.Phase == "" || !s.Wake.IsZero() && !s.Wake.After(w.now) {
		w.t.Errorf("phase %q, wakes at %v, now %v", s.Report.Phase, s.Wake, w.now)
	}
	// The objects of a leaked runner may go only after the leak is recorded.
	var leaked []int64
	if o := f.Enrollment.Status.Offboard; o != nil {
		leaked = o.Leaked
	}
	for _, a := range s.Actions {
		for _, x := range f.Workloads {
			if x.Denied >= fleet.MaxDenied && x.Remote != fleet.No && x.RemoteID != 0 && slices.Contains([]fleet.ActionKind{fleet.ForceRelease, fleet.DeleteWorkloads, fleet.DeleteSecrets, fleet.RemoveFinalizer}, a.Kind) &&
				!f.Enrollment.DeletionTimestamp.IsZero() && f.Enrollment.Annotations[v1alpha1.OffboardAnnotation] != v1alpha1.OffboardKeep && !slices.Contains(leaked, x.RemoteID) {
				w.t.Errorf("%s, but no status records that %d stays at the forge", a.Kind, x.RemoteID)
			}
		}
	}
	pools := map[string]int{}
	for _, x := range f.Workloads {
		if slices.Contains(s.Open, x.Key) {
			pools[x.Pool]++
		}
	}
	for pool, n := range pools {
		if n > 1 {
			w.t.Errorf("%d workloads of the pool %s are open: together they could have too much", n, pool)
		}
	}
	for _, x := range f.Workloads {
		for _, y := range f.Workloads {
			if x.Key != y.Key && x.Pool == y.Pool && slices.Contains(s.Open, x.Key) && y.Stopped == fleet.No {
				w.t.Errorf("%s is open while %s may still take jobs", x.Name, y.Name)
			}
		}
	}
	for _, a := range s.Actions {
		if a.Kind.Irreversible() && (!w.listed || w.silent && a.Kind != fleet.RemoveFinalizer) {
			w.t.Errorf("FL-04: %v without an answer", a)
		}
		if a.Kind.Irreversible() && w.pruned && w.e.Annotations[v1alpha1.OffboardAnnotation] == "" {
			w.t.Errorf("FLEET-19: %v while many were deleted at once", a)
		}
	}
}

func (w *env) find(k fleet.Key) *runner {
	for _, r := range w.runners {
		if r.Key == k {
			return r
		}
	}
	w.t.Fatalf("there is no %v", k)
	return nil
}

func (w *env) add(want fleet.DesiredWorkload) *runner {
	var taken []string
	last := 0
	for _, r := range w.runners {
		taken = append(taken, r.Name)
		if r.Pool == want.Pool {
			last = max(last, r.Revision)
		}
	}
	name, revision := fleet.NextWorkloadName("acme", want.Pool, last, taken)
	w.ids++
	r := &runner{Workload: fleet.Workload{Key: fleet.Key{Namespace: want.Namespace, Name: name}, Pool: want.Pool, Revision: revision, Shape: want.Shape, Since: w.now,
		Object: fleet.No, Remote: fleet.Yes, RemoteID: w.ids}}
	w.runners = append(w.runners, r)
	return r
}

// act performs one action, write by write.
func (w *env) act(a fleet.Action) {
	if !w.held && a.Kind != fleet.AddFinalizer {
		w.t.Errorf("%s without the finalizer", a.Kind)
	}
	switch a.Kind {
	case fleet.AddFinalizer:
		w.held = true
		w.recordWrite("hold")
	case fleet.EnsureNamespace:
		w.namespace = true
		w.recordWrite("namespace")
	case fleet.CopyCredential:
		if c := (fleet.CredentialCopy{Namespace: w.namespaceName, Name: fleet.CredentialName("acme", w.fingerprint)}); !slices.Contains(w.copies, c) {
			w.copies = append(w.copies, c)
		}
		w.recordWrite("copy %s", w.fingerprint)
	case fleet.EnsureAccess:
		w.access = true
		w.recordWrite("access")
	case fleet.CreateRunner:
		r := w.add(a.Create)
		r.Lost = true
		w.recordWrite("create runner %s", r.Name)
		r.Lost = false
		w.recordWrite("secret of %s", r.Name)
	case fleet.ResetToken:
		w.find(a.Workload).Lost = false
		w.recordWrite("reset %s", a.Workload.Name)
	case fleet.DeleteRunner:
		w.find(a.Workload).Remote = fleet.No
		w.recordWrite("drop %s", a.Workload.Name)
	case fleet.ApplyWorkload:
		var r *runner
		if a.Create.Pool != "" {
			r = w.add(a.Create)
		} else {
			r = w.find(a.Workload)
		}
		if r.Lost {
			w.t.Errorf("%s is deployed without a token", r.Name)
		}
		if w.forge == v1alpha1.GitHub && r.copy != "" {
			r.age = 0 // a new listener
		}
		r.Object, r.Current, r.copy = fleet.Yes, true, fleet.CredentialName("acme", w.fingerprint)
		if w.forge == v1alpha1.GitHub && !slices.Contains(w.copies, fleet.CredentialCopy{Namespace: r.Namespace, Name: r.copy}) {
			w.t.Errorf("FLEET-08: %s names the credential %s, which is not there: %q", r.Name, r.copy, w.log)
		}
		w.recordWrite("apply %s", r.Name)
	case fleet.StopIntake:
		w.find(a.Workload).openNow = false
		w.recordWrite("stop %s", a.Workload.Name)
	case fleet.Deregister:
		r := w.find(a.Workload)
		switch {
		case r.openNow:
			w.t.Errorf("r.openNow is true; %s, %q", r.Name, w.log)
		case r.openBefore:
			w.t.Errorf("r.openBefore is true; %s, %q", r.Name, w.log)
		case w.now.Before(w.jobsEnd):
			w.t.Errorf("w.now.Before(w.jobsEnd) is true; %s, %q", r.Name, w.log)
		}
		r.wantEnd = true
		if w.forge == v1alpha1.GitHub {
			r.Ending = true
		} else if !w.denies {
			r.Remote = fleet.No
		}
		w.recordWrite("deregister %s", r.Name)
	case fleet.ForceRelease:
		r := w.find(a.Workload)
		w.leaks++
		r.Object, r.Remote = fleet.No, fleet.No
		w.recordWrite("force %s", r.Name)
	case fleet.DeleteRunnerGroups:
		if slices.ContainsFunc(w.runners, func(r *runner) bool { return r.Remote != fleet.No }) {
			w.t.Errorf("the runner group goes before the runners")
		}
		w.group = false
		w.recordWrite("group")
	case fleet.DeleteWorkloads:
		r := w.find(a.Workload)
		if r.Remote == fleet.Yes {
			if r.Denied < fleet.MaxDenied {
				w.t.Errorf("%s is deleted before it is deregistered", r.Name)
			}
			w.leaks++
			r.Remote = fleet.No
		}
		r.Object = fleet.No
		w.recordWrite("delete %s", r.Name)
	case fleet.DeleteCopy:
		for _, r := range w.runners {
			if r.copy == a.Copy.Name && r.Namespace == a.Copy.Namespace && r.Object == fleet.Yes {
				w.t.Errorf("FLEET-08: the credential of %s is dropped while it is used", r.Name)
			}
		}
		w.copies = slices.DeleteFunc(w.copies, func(c fleet.CredentialCopy) bool { return c == a.Copy })
		w.recordWrite("drop copy %s", a.Copy.Name)
	case fleet.DeleteSecrets:
		if slices.ContainsFunc(w.runners, func(r *runner) bool { return r.Remote == fleet.Yes }) {
			w.t.Errorf("FL-02: the Secret goes before the runners: %q", w.log)
		}
		w.copies, w.source = nil, false
		w.recordWrite("secrets")
	case fleet.DeleteNamespace:
		if w.source || len(w.runners) > 0 {
			w.t.Errorf("the namespace goes first: %q", w.log)
		}
		w.namespace, w.access = false, false
		w.recordWrite("delete namespace")
	case fleet.RemoveFinalizer:
		w.held, w.gone = false, true
		w.recordWrite("release")
	default:
		w.t.Fatalf("unknown action %q", a.Kind)
	}
}

// until reconciles repeatedly, with a restart after each crash, until done returns true.
func (w *env) until(why string, done func() bool) {
	w.t.Helper()
	for range 4000 {
		if done() {
			return
		}
		func() {
			defer func() {
				if r := recover(); r != nil {
					if _, killed := r.(crash); !killed {
						panic(r)
					}
				}
			}()
			w.reconcile()
		}()
		w.advance()
	}
	w.t.Fatalf("never %s; last %+v; did %q", why, w.last, w.log)
}

func (w *env) active() {
	w.t.Helper()
	w.until("active", func() bool {
		return w.e.Status.Phase == v1alpha1.PhaseActive && len(w.last.Actions) == 0 && len(w.last.Open) == len(w.shapes)
	})
}

func (w *env) delete() { w.e.DeletionTimestamp = new(metav1.NewTime(w.now)) }

func (w *env) condition(kind string) metav1.Condition {
	for _, c := range w.e.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return metav1.Condition{}
}

// hasLogged reports whether the log contains these actions, in this order.
func (w *env) hasLogged(in ...string) bool {
	i := 0
	for _, l := range w.log {
		if i < len(in) && strings.HasPrefix(l, in[i]) {
			i++
		}
	}
	return i == len(in)
}
