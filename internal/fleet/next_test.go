package fleet_test

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

var forges = []v1alpha1.ForgeType{v1alpha1.GitHub, v1alpha1.GitLab}

// An enrollment becomes active and then stable.
func TestEnroll(t *testing.T) {
	for _, forge := range forges {
		w := newEnv(t, forge)
		w.active()
		want := []string{"hold", "namespace", "copy 11111111", "access", "apply acme-docker", "apply acme-nix"}
		if forge == v1alpha1.GitLab {
			want = []string{"hold", "namespace", "access", "create runner acme-docker", "secret of acme-docker", "create runner acme-nix", "secret of acme-nix", "apply acme-docker", "apply acme-nix"}
		}
		if !slices.Equal(w.log, want) {
			t.Errorf("%s: %q, want %q", forge, w.log, want)
		}
		if c := w.condition("Registered"); c.Status != metav1.ConditionTrue {
			t.Errorf("%s: %+v", forge, w.e.Status)
		}
	}
}

// An active enrollment stays active for two minutes while its listeners restart, and reports the
// restart. Its phase does not flap with every change of the number of runners.
func TestRestarts(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	since := func(status metav1.ConditionStatus, ago time.Duration) []metav1.Condition {
		return []metav1.Condition{{Type: "Ready", Status: status, LastTransitionTime: metav1.NewTime(now.Add(-ago))}}
	}
	for _, c := range []struct {
		why    string
		was    v1alpha1.EnrollmentPhase
		ready  []metav1.Condition
		change func(*fleet.Workload)
		phase  v1alpha1.EnrollmentPhase
		wake   time.Duration
	}{
		{"it was ready a moment ago", v1alpha1.PhaseActive, since("True", time.Hour), nil, v1alpha1.PhaseActive, 2 * time.Minute},
		{"it starts for a minute", v1alpha1.PhaseActive, since("False", time.Minute), nil, v1alpha1.PhaseActive, time.Minute},
		{"it should have started by now", v1alpha1.PhaseActive, since("False", 2*time.Minute), nil, v1alpha1.PhaseProvisioning, 0},
		{"it never was", v1alpha1.PhaseProvisioning, since("False", time.Minute), nil, v1alpha1.PhaseProvisioning, 0},
		{"the forge does not have it any more", v1alpha1.PhaseActive, since("True", time.Hour), func(w *fleet.Workload) { w.Remote = fleet.No }, v1alpha1.PhaseProvisioning, 0},
		{"the forge never had it", v1alpha1.PhaseActive, since("True", time.Hour), func(w *fleet.Workload) { w.RemoteID = 0 }, v1alpha1.PhaseProvisioning, 0},
		{"it ends", v1alpha1.PhaseActive, since("True", time.Hour), func(w *fleet.Workload) { w.Ending = true }, v1alpha1.PhaseProvisioning, 0},
		{"a person must act", v1alpha1.PhaseActive, since("True", time.Hour), func(w *fleet.Workload) { w.Failure = fleet.Failure{Reason: "Outdated"} }, v1alpha1.PhaseFailed, 0},
		{"it is ready", v1alpha1.PhaseActive, since("True", time.Hour), func(w *fleet.Workload) { w.Ready = fleet.Yes }, v1alpha1.PhaseActive, 0},
	} {
		w := fleet.Workload{Key: fleet.Key{Namespace: "runners", Name: "acme-nix"}, Pool: "nix", Shape: "s", Object: fleet.Yes, Current: true, Ready: fleet.No, Stopped: fleet.No, Remote: fleet.Yes, RemoteID: 7}
		if c.change != nil {
			c.change(&w)
		}
		e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "acme"}, Status: v1alpha1.RunnerEnrollmentStatus{Phase: c.was, Conditions: c.ready}}
		step := fleet.Next(fleet.Facts{Enrollment: e, Forge: v1alpha1.GitHub, Approved: fleet.Condition{Type: "Approved", Status: fleet.Yes}, Listed: true, HasFinalizer: true,
			Credential: fleet.CredentialState{Valid: fleet.Yes, Fingerprint: "11111111"}, Namespace: fleet.Yes, Policies: fleet.Yes, Access: fleet.Yes,
			Copies:  []fleet.CredentialCopy{{Namespace: "runners", Name: fleet.CredentialName("acme", "11111111")}},
			Desired: []fleet.DesiredWorkload{{Pool: "nix", Namespace: "runners", Shape: "s"}}, Workloads: []fleet.Workload{w}}, now)
		if step.Report.Phase != c.phase || (c.wake != 0) != step.Wake.Equal(now.Add(c.wake)) {
			t.Errorf("%s: it is %s, next check %v: %+v", c.why, step.Report.Phase, step.Wake, step.Report)
		}
		for _, cond := range step.Report.Conditions {
			if cond.Type == "Ready" && (cond.Status == fleet.Yes) != (w.Ready == fleet.Yes) {
				t.Errorf("%s: %+v", c.why, cond)
			}
		}
	}
}

// crashEverywhere runs a life to its end, and then once more for each write, with a crash right after that
// write. The end state is always the same.
func crashEverywhere(t *testing.T, forge v1alpha1.ForgeType, life func(*env)) {
	t.Helper()
	whole := newEnv(t, forge)
	life(whole)
	end := func(w *env) string {
		var retained []string
		for _, r := range w.runners {
			retained = append(retained, fmt.Sprint(r.Pool, r.Shape, r.copy))
		}
		slices.Sort(retained)
		return fmt.Sprint(w.gone, w.held, w.namespace, w.source, w.group, len(w.copies), retained)
	}
	for n := range len(whole.log) {
		w := newEnv(t, forge)
		w.crashIn = n + 1
		life(w)
		if end(w) != end(whole) {
			t.Errorf("%s, killed after %q: %s, want %s; did %q", forge, whole.log[n], end(w), end(whole), w.log)
		}
	}
}

// FLEET-07, the decision (FL-02): an enrollment ends, with a crash after each write. The end state
// is the same, and the order does no harm; the environment checks that at each step.
func TestFLEET07_KilledOffboarding(t *testing.T) {
	for _, forge := range forges {
		crashEverywhere(t, forge, func(w *env) {
			w.group = forge == v1alpha1.GitHub
			w.active()
			w.jobsEnd = w.now.Add(10 * time.Minute)
			w.delete()
			w.until("gone", func() bool { return w.gone })
			switch {
			case w.crashIn < 0 && !w.hasLogged("stop", "deregister", "secrets", "delete namespace", "release"):
				t.Errorf(`w.crashIn < 0 && !w.hasLogged("stop", "deregister", "secrets", "delete namespace", "release"); forge = %s, %q, %d, %v`,
					forge, w.log, len(w.runners), w.copies)
			case len(w.runners)+len(w.copies) > 0:
				t.Errorf("len(w.runners)+len(w.copies) = %v, want at most 0; forge = %s", len(w.runners)+len(w.copies), forge)
			case w.source:
				t.Errorf("w.source is true; forge = %s, %q, %d, %v", forge, w.log, len(w.runners), w.copies)
			case w.namespace:
				t.Errorf("w.namespace is true; forge = %s, %q, %d, %v", forge, w.log, len(w.runners), w.copies)
			case w.leaks > 0:
				t.Errorf("w.leaks = %v, want at most 0; forge = %s", w.leaks, forge)
			}
		})
	}
}

// FL-04: missing answers cause no deletion, and stop no working workload.
func TestFL04_Silence(t *testing.T) {
	for _, forge := range forges {
		w := newEnv(t, forge)
		w.active()
		open := slices.Clone(w.last.Open)
		w.silent = true
		for range 30 {
			w.reconcile()
			w.advance()
		}
		if !slices.Equal(w.last.Open, open) {
			t.Errorf("%s: %v are open, %v were", forge, w.last.Open, open)
		}
		w.silent, w.listed = false, false
		for range 30 {
			w.reconcile()
			w.advance()
		}
		if !slices.Equal(w.last.Open, open) || len(w.last.Actions) > 0 {
			t.Errorf("%s: without complete lists %+v", forge, w.last)
		}
		w.silent, w.listed = true, true
		w.delete()
		for range 30 {
			w.reconcile()
			w.advance()
		}
		switch {
		case w.gone:
			t.Errorf("w.gone is true; forge = %s, %d, %+v", forge, len(w.runners), w.last)
		case len(w.runners) != 2:
			t.Errorf("len(w.runners) = %v, want 2; forge = %s", len(w.runners), forge)
		case w.last.Report.Phase != v1alpha1.PhaseDraining:
			t.Errorf("w.last.Report.Phase = %q, want %q; forge = %s", w.last.Report.Phase, v1alpha1.PhaseDraining, forge)
		}
		w.silent = false
		w.until("gone", func() bool { return w.gone })
	}
}

// A drain past its deadline requires a person's decision, and continues by itself when the jobs
// have ended.
func TestDrainTimeout(t *testing.T) {
	w := newEnv(t, v1alpha1.GitHub)
	w.active()
	w.jobsEnd = w.now.Add(30 * time.Hour)
	w.delete()
	deadline := w.now.Add(24 * time.Hour)
	w.until("draining", func() bool { return w.e.Status.Offboard != nil && w.e.Status.Offboard.Step == v1alpha1.StepDrain })
	if !w.last.Wake.Equal(deadline) {
		t.Errorf("wakes at %v, want %v", w.last.Wake, deadline)
	}
	w.until("asking", func() bool { return w.condition("DecisionNeeded").Status == metav1.ConditionTrue })
	switch c := w.condition("DecisionNeeded"); {
	case c.Reason != fleet.ReasonDrainTimeout:
		t.Errorf("c.Reason = %q, want %q", c.Reason, fleet.ReasonDrainTimeout)
	case w.now.Before(deadline):
		t.Errorf("w.now.Before(deadline) is true; %v, %+v", w.now, w.e.Status)
	case w.e.Status.Phase != v1alpha1.PhaseDraining:
		t.Errorf("w.e.Status.Phase = %q, want %q", w.e.Status.Phase, v1alpha1.PhaseDraining)
	}
	w.until("gone", func() bool { return w.gone })
}

// FL-02: a forge refuses the deregistration. GitHub's scale sets wait until a person decides to
// give them up. GitLab's runners are recorded.
func TestFL02_Denied(t *testing.T) {
	for _, forge := range forges {
		w := newEnv(t, forge)
		w.active()
		w.denies = true
		w.delete()
		if forge == v1alpha1.GitHub {
			w.until("failed", func() bool { return w.e.Status.Phase == v1alpha1.PhaseFailed })
			for range 30 {
				w.reconcile()
				w.advance()
			}
			switch c := w.condition("DecisionNeeded"); {
			case c.Reason != fleet.ReasonCleanupSkipped:
				t.Fatalf("c.Reason = %q, want %q", c.Reason, fleet.ReasonCleanupSkipped)
			case !w.source:
				t.Fatalf("w.source is false; %+v, %d", c, len(w.runners))
			case len(w.copies) != 1:
				t.Fatalf("len(w.copies) = %v, want 1", len(w.copies))
			case len(w.runners) != 2:
				t.Fatalf("len(w.runners) = %v, want 2", len(w.runners))
			}
			w.e.Annotations = map[string]string{v1alpha1.ForceCleanupAnnotation: "the App is gone"}
		}
		w.until("gone", func() bool { return w.gone })
		switch o := w.e.Status.Offboard; {
		case w.leaks != 2:
			t.Errorf("w.leaks = %v, want 2; forge = %s", w.leaks, forge)
		case !slices.Equal(o.Leaked, []int64{101, 102}):
			t.Errorf("o.Leaked (-want +got):\n%s", cmp.Diff([]int64{101, 102}, o.Leaked))
		case w.condition("Degraded").Reason != fleet.ReasonCleanupSkipped:
			t.Errorf(`w.condition("Degraded").Reason != fleet.ReasonCleanupSkipped; forge = %s, %d, %+v`, forge, w.leaks, o)
		}
	}
}

// FLEET-07: after it has stopped, a runner that a person created waits until a person confirms its
// deletion at the forge. Then the offboarding continues in the usual order.
func TestFLEET07_ByHand(t *testing.T) {
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "omega", DeletionTimestamp: new(metav1.NewTime(start))}, Spec: v1alpha1.RunnerEnrollmentSpec{OffboardTimeout: metav1.Duration{Duration: time.Hour}}}
	w := fleet.Workload{Key: fleet.Key{Name: "omega-docker"}, Pool: "docker", Object: fleet.Yes, Remote: fleet.Yes, Stopped: fleet.Yes, Jobs: new(1), Manual: true}
	next := func() fleet.Step {
		return fleet.Next(fleet.Facts{Enrollment: e, Forge: v1alpha1.GitLab, HasFinalizer: true, Listed: true, Workloads: []fleet.Workload{w}, RunnerGroups: fleet.No, Secrets: fleet.Yes}, start)
	}
	asks := func(s fleet.Step) bool {
		return slices.ContainsFunc(s.Report.Conditions, func(c fleet.Condition) bool {
			return c.Type == "DecisionNeeded" && c.Status == fleet.Yes && c.Reason == fleet.ReasonByHand
		})
	}
	if s := next(); asks(s) || s.Report.Offboard.Step != v1alpha1.StepDrain {
		t.Errorf("its last job runs: %+v", s)
	}
	w.Jobs = new(0)
	switch s := next(); {
	case !asks(s):
		t.Errorf("it has stopped: asks(s) is false; %+v", s)
	case len(s.Actions) > 0:
		t.Errorf("it has stopped: len(s.Actions) = %v, want at most 0", len(s.Actions))
	case s.Report.Phase != v1alpha1.PhaseFailed:
		t.Errorf("it has stopped: s.Report.Phase = %q, want %q", s.Report.Phase, v1alpha1.PhaseFailed)
	}
	w.Remote = fleet.No
	switch s := next(); {
	case asks(s):
		t.Errorf("a person confirms the deletion: asks(s) is true; %+v", s)
	case len(s.Actions) != 1:
		t.Errorf("a person confirms the deletion: len(s.Actions) = %v, want 1", len(s.Actions))
	case s.Actions[0].Kind != fleet.DeleteWorkloads:
		t.Errorf("a person confirms the deletion: s.Actions[0].Kind = %q, want %q", s.Actions[0].Kind, fleet.DeleteWorkloads)
	}
}

// FLEET-19: many enrollments are deleted at once. Intake stops, and nothing else happens until a
// person confirms. The value keep leaves the runners to an enrollment of the same name.
func TestFLEET19_Guard(t *testing.T) {
	for _, forge := range forges {
		w := newEnv(t, forge)
		w.active()
		w.pruned = true
		w.delete()
		w.until("asking", func() bool { return w.condition("DecisionNeeded").Status == metav1.ConditionTrue })
		switch {
		case w.last.Report.Phase != v1alpha1.PhaseDraining:
			t.Errorf("w.last.Report.Phase = %q, want %q", w.last.Report.Phase, v1alpha1.PhaseDraining)
		case len(w.last.Open) > 0:
			t.Errorf("len(w.last.Open) = %v, want at most 0", len(w.last.Open))
		case w.condition("DecisionNeeded").Reason != fleet.ReasonMassDeletion:
			t.Errorf(`w.condition("DecisionNeeded").Reason != fleet.ReasonMassDeletion; %+v`, w.last)
		}
		w.pruned = false // for example because new enrollments were added
		for range 30 {
			w.reconcile()
			w.advance()
		}
		if w.gone || len(w.runners) != 2 {
			t.Errorf("it continued by itself: %q", w.log)
		}
		retained := *w
		w.e.Annotations = map[string]string{v1alpha1.OffboardAnnotation: v1alpha1.OffboardConfirm}
		ids := []int64{w.runners[0].RemoteID, w.runners[1].RemoteID}
		before := len(w.log)
		retained.e.Annotations = map[string]string{v1alpha1.OffboardAnnotation: v1alpha1.OffboardKeep}
		retained.until("released", func() bool { return retained.gone })
		if did := retained.log[before:]; !slices.Equal(did, []string{"release"}) {
			t.Errorf("to keep: %q", did)
		}
		// An enrollment of the same name adopts the existing runners.
		retained.e = newEnv(t, forge).e
		retained.gone = false
		retained.active()
		switch {
		case len(retained.runners) != 2:
			t.Errorf("taken over: len(retained.runners) = %v, want 2", len(retained.runners))
		case retained.runners[0].RemoteID != ids[0]:
			t.Errorf("taken over: retained.runners[0].RemoteID = %v, want %v", retained.runners[0].RemoteID, ids[0])
		case retained.runners[1].RemoteID != ids[1]:
			t.Errorf("taken over: retained.runners[1].RemoteID = %v, want %v", retained.runners[1].RemoteID, ids[1])
		}
		if did := retained.log[before+1:]; !slices.Equal(did, []string{"hold"}) {
			t.Errorf("to take over: %q", did)
		}
		retained.delete()
		retained.until("gone", func() bool { return retained.gone })
	}
}

// FLEET-19: the threshold for "many at once".
func TestFLEET19_Pruned(t *testing.T) {
	for _, c := range []struct {
		why     string
		all     int
		deleted []int // minutes
		want    int
	}{
		{"five of eight", 8, []int{0, 0, 0, 0, 0}, 5},
		{"two of two", 2, []int{0, 0}, 0},
		{"three of twelve is a quarter", 12, []int{0, 1, 2}, 0},
		{"three of eleven", 11, []int{0, 1, 2}, 3},
		{"within ten minutes", 4, []int{0, 5, 10}, 3},
		{"one after another", 4, []int{0, 6, 12}, 0},
		{"the first deletion was confirmed", 8, []int{0, 60, 60, 60}, 3},
		{"nothing is deleted", 8, nil, 0},
	} {
		var all []v1alpha1.RunnerEnrollment
		for i := range c.all {
			e := v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprint("org-", i)}}
			if i < len(c.deleted) {
				e.DeletionTimestamp = new(metav1.NewTime(start.Add(time.Duration(c.deleted[i]) * time.Minute)))
			}
			all = append(all, e)
		}
		if got := fleet.Pruned(all); len(got) != c.want {
			t.Errorf("%s: %v, want %d", c.why, got, c.want)
		}
	}
}

// FLEET-08, the decision: a new credential, with a crash after each write. The workloads always
// reference an existing copy, and the old copy goes last.
func TestFLEET08_Rotation(t *testing.T) {
	crashEverywhere(t, v1alpha1.GitHub, func(w *env) {
		w.active()
		w.fingerprint = "22222222"
		w.until("rotated", func() bool { return len(w.copies) == 1 && w.copies[0].Name == "acme-22222222" })
		w.active()
		if w.crashIn < 0 && !w.hasLogged("copy 22222222", "apply acme-docker", "drop copy acme-11111111") {
			t.Errorf("%q", w.log)
		}
	})
	// GitLab: a second runner replaces the old one, which goes when the new one works.
	crashEverywhere(t, v1alpha1.GitLab, func(w *env) {
		w.e.Spec.Credentials.RotateEvery = &metav1.Duration{Duration: 24 * time.Hour}
		w.active()
		old := w.runners[0].RemoteID
		w.now = w.now.Add(24 * time.Hour)
		w.until("rotated", func() bool {
			return len(w.runners) == 2 && !slices.ContainsFunc(w.runners, func(r *runner) bool { return r.RemoteID <= old || r.Revision == 1 })
		})
		w.active()
	})
	// One more rotation, requested by a person, runs exactly once.
	crashEverywhere(t, v1alpha1.GitLab, func(w *env) {
		w.active()
		old := w.runners[0].RemoteID
		w.now = w.now.Add(time.Hour)
		w.e.Spec.Credentials.RotateAt = new(metav1.NewTime(w.now.Add(time.Minute)))
		w.reconcile()
		if !w.last.Wake.Equal(w.e.Spec.Credentials.RotateAt.Time) {
			t.Fatalf("wakes at %v", w.last.Wake)
		}
		w.now = w.last.Wake
		w.until("rotated", func() bool {
			return len(w.runners) == 2 && !slices.ContainsFunc(w.runners, func(r *runner) bool { return r.RemoteID <= old || r.Revision == 1 })
		})
		w.active()
		before := len(w.log)
		w.now = w.now.Add(time.Hour)
		w.active()
		if len(w.log) != before {
			t.Errorf("again: %q", w.log[before:])
		}
	})
}

// FLEET-08: an invalid new credential leaves the old one in use and is reported. Without any
// working credential, intake stops and nothing is deleted.
func TestFLEET08_Invalid(t *testing.T) {
	w := newEnv(t, v1alpha1.GitHub)
	w.active()
	before := len(w.log)
	w.fingerprint, w.valid, w.inUse = "22222222", fleet.No, fleet.Yes
	for range 10 {
		w.reconcile()
		w.advance()
	}
	switch {
	case w.e.Status.Phase != v1alpha1.PhaseActive:
		t.Errorf("w.e.Status.Phase = %q, want %q", w.e.Status.Phase, v1alpha1.PhaseActive)
	case w.condition("Degraded").Reason != fleet.ReasonRotationFailed:
		t.Errorf(`w.condition("Degraded").Reason != fleet.ReasonRotationFailed; %+v, %q`, w.last, w.log[before:])
	case len(w.last.Open) != 2:
		t.Errorf("len(w.last.Open) = %v, want 2", len(w.last.Open))
	case len(w.log) != before:
		t.Errorf("len(w.log) = %v, want %v", len(w.log), before)
	}
	w.inUse = fleet.No
	w.until("suspended", func() bool { return w.e.Status.Phase == v1alpha1.PhaseSuspended && len(w.last.Actions) == 0 })
	if len(w.last.Open) != 0 || len(w.runners) != 2 {
		t.Errorf("%+v", w.last)
	}
	w.valid = fleet.Yes
	w.active()

	// The status reports that a new key is due.
	w.e.Spec.Credentials.RotateEvery = &metav1.Duration{Duration: 24 * time.Hour}
	w.e.Status.Credential = &v1alpha1.CredentialStatus{Kind: v1alpha1.CredentialGitHubApp, CreatedAt: new(metav1.NewTime(w.now))}
	w.reconcile()
	if want := w.now.Add(24 * time.Hour); !w.last.Wake.Equal(want) || w.condition("Degraded").Status != metav1.ConditionFalse {
		t.Errorf("wakes at %v, want %v; %+v", w.last.Wake, want, w.condition("Degraded"))
	}
	w.now = w.last.Wake
	w.reconcile()
	if w.condition("Degraded").Reason != fleet.ReasonRotationDue || w.e.Status.Phase != v1alpha1.PhaseActive {
		t.Errorf("%+v", w.e.Status)
	}
	// It also does so for a person's request, until the new key is there.
	w.e.Spec.Credentials.RotateEvery, w.e.Spec.Credentials.RotateAt = nil, new(metav1.NewTime(w.now))
	w.reconcile()
	if w.condition("Degraded").Reason != fleet.ReasonRotationDue {
		t.Errorf("%+v", w.e.Status)
	}
	w.e.Status.Credential.CreatedAt = new(metav1.NewTime(w.now))
	w.reconcile()
	if w.condition("Degraded").Status != metav1.ConditionFalse {
		t.Errorf("%+v", w.e.Status)
	}
}

// FL-03: a GitLab runner with a lost token is deleted if no manager ever contacted GitLab for it.
// Otherwise it gets a new token.
func TestFL03_LostToken(t *testing.T) {
	w := newEnv(t, v1alpha1.GitLab)
	w.crashIn = 4 // right after the creation of the first runner
	w.active()
	if !w.hasLogged("create runner acme-docker", "drop acme-docker", "create runner acme-docker") || len(w.runners) != 2 {
		t.Errorf("%q", w.log)
	}
	w.runners[0].Lost = true // its Secret was deleted
	w.until("reset", func() bool { return w.hasLogged("reset " + w.runners[0].Name) })
	if len(w.runners) != 2 {
		t.Errorf("%q", w.log)
	}
}

// FLEET-13, the decision: new labels create a new scale set. It takes the jobs when it is ready and
// the old one has stopped. The old one drains and goes. The test crashes after each write.
func TestFLEET13_AnotherShape(t *testing.T) {
	for _, forge := range forges {
		crashEverywhere(t, forge, func(w *env) {
			w.active()
			w.shapes["nix"] = "two"
			w.jobsEnd = w.now.Add(10 * time.Minute)
			w.until("another one is created", func() bool { return len(w.runners) == 3 })
			w.until("it is alone", func() bool { return len(w.runners) == 2 })
			w.active()
			if !slices.Contains(w.last.Open, fleet.Key{Namespace: "tailplane-org-acme", Name: "acme-nix-r2"}) {
				t.Errorf("%s: open %v", forge, w.last.Open)
			}
			// Then back, and forth again before the first one is ready.
			w.shapes["nix"] = "one"
			w.until("another one is created", func() bool { return len(w.runners) == 3 })
			w.shapes["nix"] = "two"
			w.until("it is alone", func() bool { return len(w.runners) == 2 })
			w.active()
			// A pool that is no longer wanted goes, and nothing else.
			delete(w.shapes, "nix")
			w.until("it is deleted", func() bool { return len(w.runners) == 1 })
			w.active()
			if len(w.copies) == 0 == (forge == v1alpha1.GitHub) || !w.source {
				t.Errorf("%s: the credential went with a pool: %q", forge, w.log)
			}
		})
	}
}

// An action that fails repeatedly does no harm: dependent actions wait, and continue when the
// action succeeds.
func TestFailures(t *testing.T) {
	actions := []fleet.ActionKind{fleet.AddFinalizer, fleet.EnsureNamespace, fleet.CopyCredential, fleet.EnsureAccess, fleet.CreateRunner, fleet.ApplyWorkload, fleet.StopIntake, fleet.Deregister,
		fleet.DeleteRunnerGroups, fleet.DeleteWorkloads, fleet.DeleteCopy, fleet.DeleteSecrets, fleet.DeleteNamespace, fleet.RemoveFinalizer}
	for _, forge := range forges {
		for _, kind := range actions {
			w := newEnv(t, forge)
			w.group = forge == v1alpha1.GitHub
			stuck := func() {
				w.fails = kind
				for range 20 {
					w.reconcile()
					w.advance()
				}
				w.fails = ""
			}
			stuck()
			w.active()
			w.fingerprint, w.shapes["nix"] = "22222222", "two"
			stuck()
			w.active()
			w.delete()
			stuck()
			w.until("gone", func() bool { return w.gone })
			switch {
			case len(w.runners)+len(w.copies) > 0:
				t.Errorf("got %v, want at most 0; forge = %s; kind = %s", len(w.runners)+len(w.copies), forge, kind)
			case w.source:
				t.Errorf("w.source is true; forge = %s, kind = %s, %q, %d", forge, kind, w.log, len(w.runners))
			case w.namespace:
				t.Errorf("w.namespace is true; forge = %s, kind = %s, %q, %d", forge, kind, w.log, len(w.runners))
			case w.group:
				t.Errorf("w.group is true; forge = %s, kind = %s, %q, %d", forge, kind, w.log, len(w.runners))
			}
		}
	}
}

// Another isolation creates workloads in another namespace. The old ones go, together with the
// credential copy there.
func TestAnotherNamespace(t *testing.T) {
	for _, forge := range forges {
		crashEverywhere(t, forge, func(w *env) {
			w.active()
			w.namespaceName = fleet.SharedNamespace
			w.until("it has moved", func() bool {
				return len(w.runners) == 2 && w.runners[0].Namespace == w.namespaceName && w.runners[1].Namespace == w.namespaceName && (forge == v1alpha1.GitLab || len(w.copies) == 1)
			})
			w.active()
			if forge == v1alpha1.GitHub && w.copies[0].Namespace != w.namespaceName || w.runners[0].Revision != 2 {
				t.Errorf("%s: %v, %+v", forge, w.copies, w.runners[0].Workload)
			}
		})
	}
}

// Changes that require another workload, and changes that do not.
func TestDesiredWorkloads(t *testing.T) {
	v := validView()
	e := &v.Enrollments[0]
	pools := map[string]*v1alpha1.RunnerPool{}
	for i := range v.Pools {
		pools[v.Pools[i].Name] = &v.Pools[i]
	}
	before := fleet.DesiredWorkloads(e, v1alpha1.GitHub, pools, "shared")
	switch {
	case len(before) != 3:
		t.Fatalf("len(before) = %v, want 3", len(before))
	case before[0].Pool != "gh-nix":
		t.Fatalf("before[0].Pool = %q, want %q", before[0].Pool, "gh-nix")
	case before[0].Namespace != "shared":
		t.Fatalf("before[0].Namespace = %q, want %q", before[0].Namespace, "shared")
	case before[2].Shape == before[0].Shape:
		t.Fatalf("before[2].Shape = %q, the same as before[0].Shape", before[2].Shape)
	}
	changed := func() int {
		n := 0
		for i, w := range fleet.DesiredWorkloads(e, v1alpha1.GitHub, pools, "shared") {
			if w != before[i] {
				n++
			}
		}
		return n
	}
	pools["gh-nix"].Spec.RunsOn = []string{"nix", "nix-{org}"}
	if n := changed(); n != 1 {
		t.Errorf("%d change with the labels of one", n)
	}
	pools["gh-nix"].Spec.RunsOn = []string{"nix"}
	pools["gh-nix"].Spec.Scaling.Max, pools["gh-nix"].Spec.Image, e.Spec.Pools[2].Repositories = 3, "another", []string{"acme/other"}
	if n := changed(); n != 0 {
		t.Errorf("%d change with what can be changed in place", n)
	}
	e.Spec.Pools[1].RunnerGroup = "gold"
	if n := changed(); n != 1 {
		t.Errorf("%d change with a runner group", n)
	}
	e.Spec.Isolation = v1alpha1.IsolationNode
	if n := changed(); n != 3 {
		t.Errorf("%d change with the isolation", n)
	}
	delete(pools, "gpu")
	if w := fleet.DesiredWorkloads(e, v1alpha1.GitHub, pools, "shared"); len(w) != 2 {
		t.Errorf("without a pool: %+v", w)
	}
}

// A workload that is being deleted does not count as the wanted one. A referenced credential copy
// is kept, even if everything else is ready (trap 12: old runner sets need it until the end).
func TestFLEET08_WhatContinues(t *testing.T) {
	w := newEnv(t, v1alpha1.GitHub)
	w.active()
	f := w.facts()
	f.Workloads[0].Ending, f.Workloads[0].Ready = true, fleet.No
	s := fleet.Next(f, w.now)
	if want := (fleet.Action{Kind: fleet.ApplyWorkload, Create: f.Desired[0]}); !slices.Contains(s.Actions, want) || slices.Contains(s.Open, f.Workloads[0].Key) {
		t.Errorf("while %s is being deleted: %+v, want %+v", f.Workloads[0].Name, s, want)
	}
	f = w.facts()
	old := fleet.CredentialCopy{Namespace: "tailplane-org-acme", Name: "acme-00000000"}
	f.Copies = append(f.Copies, old)
	f.Workloads[1].Copies = append(f.Workloads[1].Copies, old.Name)
	if s = fleet.Next(f, w.now); len(s.Actions) > 0 {
		t.Errorf("while a runner set names it: %+v", s.Actions)
	}
	f.Workloads[1].Copies = f.Workloads[1].Copies[:1]
	if s = fleet.Next(f, w.now); !slices.Equal(s.Actions, []fleet.Action{{Kind: fleet.DeleteCopy, Copy: old}}) {
		t.Errorf("when nothing names it: %+v", s.Actions)
	}
}

// Violations that suspend, and violations that only bar. Without approval, or against a rule,
// nothing is created. Existing workloads stop taking jobs only if the rule is about trust.
func TestSuspension(t *testing.T) {
	for _, c := range []struct {
		why    string
		do     func(*env)
		phase  v1alpha1.EnrollmentPhase
		reason string
		open   int
	}{
		{"approval voided", func(w *env) { w.approved = fleet.No }, v1alpha1.PhaseSuspended, "Said", 0},
		{"approval unknown", func(w *env) { w.approved = fleet.Unknown }, v1alpha1.PhaseActive, "Said", 2},
		{"a rule about trust", func(w *env) {
			w.violations = []fleet.Violation{{Reason: fleet.ReasonSecretOfAnother, Message: "m", Effect: fleet.EffectStop}}
		}, v1alpha1.PhaseSuspended, fleet.ReasonSecretOfAnother, 0},
		{"a rule about trust, of a pool", func(w *env) {
			w.violations = []fleet.Violation{{Pool: "nix", Reason: fleet.ReasonPoolDedicated, Message: "m", Effect: fleet.EffectStop}}
		}, v1alpha1.PhaseFailed, fleet.ReasonPoolDedicated, 1},
		{"a rule", func(w *env) {
			w.violations = []fleet.Violation{{Reason: fleet.ReasonForgeNotFound, Message: "m", Effect: fleet.EffectBlock}}
		}, v1alpha1.PhaseFailed, fleet.ReasonForgeNotFound, 2},
		{"a rule of a pool", func(w *env) {
			w.violations = []fleet.Violation{{Pool: "nix", Reason: fleet.ReasonGuarantees, Message: "m", Effect: fleet.EffectBlock}}
		}, v1alpha1.PhaseFailed, fleet.ReasonGuarantees, 2},
		{"a warning", func(w *env) {
			w.violations = []fleet.Violation{{Reason: fleet.ReasonSharedApp, Message: "m", Effect: fleet.EffectWarn}}
		}, v1alpha1.PhaseActive, fleet.ReasonActive, 2},
		{"trouble", func(w *env) { w.runners[0].Failure = fleet.Failure{Reason: "ScaleSetConflict", Message: "m"} }, v1alpha1.PhaseFailed, "ScaleSetConflict", 2},
	} {
		t.Run(c.why, func(t *testing.T) {
			for _, forge := range forges {
				w := newEnv(t, forge)
				w.active()
				c.do(w)
				for range 10 {
					w.reconcile()
					w.advance()
				}
				switch {
				case w.e.Status.Phase != c.phase:
					t.Errorf("w.e.Status.Phase = %q, want %q; forge = %s", w.e.Status.Phase, c.phase, forge)
				case w.condition("Ready").Reason != c.reason:
					t.Errorf(`w.condition("Ready").Reason != c.reason; forge = %s, %+v, %q`, forge, w.last, w.log)
				case len(w.last.Open) != c.open:
					t.Errorf("len(w.last.Open) = %v, want %v; forge = %s", len(w.last.Open), c.open, forge)
				case len(w.runners) != 2:
					t.Errorf("len(w.runners) = %v, want 2; forge = %s", len(w.runners), forge)
				case len(w.last.Actions) > 0:
					t.Errorf("len(w.last.Actions) = %v, want at most 0; forge = %s", len(w.last.Actions), forge)
				}
				if broken := len(w.violations) > 0 && w.violations[0].Effect >= fleet.EffectBlock; (w.condition("PolicyViolation").Status == metav1.ConditionTrue) != broken {
					t.Errorf("%+v", w.condition("PolicyViolation"))
				}
				// From the start: nothing is created.
				if c.why == "trouble" || c.why == "a warning" {
					continue
				}
				w = newEnv(t, forge)
				c.do(w)
				for range 10 {
					w.reconcile()
					w.advance()
				}
				for _, r := range w.runners {
					switch {
					case len(w.violations) == 0:
						t.Errorf("len(w.violations) = %v; forge = %s", len(w.violations), forge)
					case w.violations[0].Pool != "nix":
						t.Errorf("w.violations[0].Pool = %q, want %q; forge = %s", w.violations[0].Pool, "nix", forge)
					case r.Pool == "nix":
						t.Errorf("r.Pool = %q; forge = %s", r.Pool, forge)
					}
				}
			}
		})
	}
}

// If the network cannot be restricted, no workload is created.
func TestUnbounded(t *testing.T) {
	w := newEnv(t, v1alpha1.GitHub)
	w.held, w.namespace, w.access = true, true, true
	f := w.facts()
	f.Policies, f.Unbounded = fleet.No, fleet.Failure{Reason: fleet.ReasonUnbounded, Message: "fleet.clusterCIDRs is not set"}
	s := fleet.Next(f, w.now)
	if len(s.Actions) > 0 || s.Report.Phase != v1alpha1.PhaseFailed {
		t.Errorf("%+v", s)
	}
	for _, c := range s.Report.Conditions {
		if c.Type == "PolicyReady" && (c.Status != fleet.No || c.Reason != fleet.ReasonUnbounded || !strings.Contains(c.Message, "clusterCIDRs")) {
			t.Errorf("%+v", c)
		}
	}
}

// FL-02: the record of leaked runners stays as long as the object exists.
func TestFL02_LeaksStayRecorded(t *testing.T) {
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "acme", DeletionTimestamp: new(metav1.NewTime(time.Unix(1_000, 0)))}}
	e.Status.Offboard = &v1alpha1.OffboardStatus{Step: v1alpha1.StepDeleteNamespace, Leaked: []int64{112}}
	step := fleet.Next(fleet.Facts{Enrollment: e, Forge: v1alpha1.GitLab, Listed: true}, time.Unix(2_000, 0))
	switch o := step.Report.Offboard; {
	case len(step.Actions) > 0:
		t.Errorf("len(step.Actions) = %v, want at most 0", len(step.Actions))
	case o == nil:
		t.Error("o is nil")
	case !slices.Equal(o.Leaked, []int64{112}):
		t.Errorf("o.Leaked (-want +got):\n%s", cmp.Diff([]int64{112}, o.Leaked))
	}
}
