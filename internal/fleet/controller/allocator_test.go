package controller

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

var now = time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)

func testView(orgs ...string) fleet.View {
	v := fleet.View{
		Forges: []v1alpha1.RunnerForge{{ObjectMeta: metav1.ObjectMeta{Name: "github"}, Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitHub, URL: "https://github.com"}}},
		Pools: []v1alpha1.RunnerPool{{ObjectMeta: metav1.ObjectMeta{Name: "nix"}, Spec: v1alpha1.RunnerPoolSpec{Forge: "github", RunsOn: []string{"nix"},
			Scaling: v1alpha1.PoolScaling{Max: 8, Budget: 10}}}},
	}
	for i, org := range orgs {
		v.Enrollments = append(v.Enrollments, v1alpha1.RunnerEnrollment{
			ObjectMeta: metav1.ObjectMeta{Name: org, UID: types.UID("uid-" + org), CreationTimestamp: metav1.NewTime(now.Add(time.Duration(i) * time.Second))},
			Spec: v1alpha1.RunnerEnrollmentSpec{Forge: "github", ConfigURL: "https://github.com/" + org, Isolation: v1alpha1.IsolationNone,
				Pools: []v1alpha1.EnrolledPool{{Name: "nix", Type: v1alpha1.UseShared}}}})
	}
	return v
}

func approveAll(*v1alpha1.RunnerEnrollment) bool { return true }

// FLEET-09: an allocation that is not stored in an object yet is not given to another organisation.
func TestAllocatedOnce(t *testing.T) {
	var l allocator
	v := testView("acme", "zeta")
	idle := poolUsage{Demand: new(0)}
	readings := map[string]map[string]poolUsage{"acme": {"nix": {Demand: new(8)}}, "zeta": {"nix": idle}}
	first := l.allocate(v, approveAll, readings, now)
	a, z := first.Shares[orgPool{"acme", "nix"}], first.Shares[orgPool{"zeta", "nix"}]
	switch {
	case a.Allocated < 8:
		t.Fatalf("acme: a.Allocated = %v, want at least 8", a.Allocated)
	case a.Allocated+z.Allocated > 10:
		t.Fatalf("acme: a.Allocated+z.Allocated = %v, want at most 10", a.Allocated+z.Allocated)
	case !a.ChangedAt.Equal(now):
		t.Fatalf("acme: a.ChangedAt = %v, want %v", a.ChangedAt, now)
	}
	// Another organisation needs as much now, and neither status contains the allocation.
	readings["zeta"]["nix"] = poolUsage{Demand: new(8)}
	readings["acme"]["nix"] = poolUsage{Demand: new(8), Busy: 8, InForce: 8}
	second := l.allocate(v, approveAll, readings, now.Add(2*fleet.ChangePause))
	if sum := max(second.Shares[orgPool{"acme", "nix"}].Allocated, 8) + second.Shares[orgPool{"zeta", "nix"}].Allocated; sum > 10 {
		t.Errorf("%d runners of a budget of 10: %+v", sum, second.Shares)
	}
	if p := second.Pools["nix"]; p.Orgs != 2 {
		t.Errorf("pool %+v", p)
	}
}

// After a start, no organisation gets more until all organisations were observed.
func TestNotObserved(t *testing.T) {
	var l allocator
	v := testView("acme", "zeta")
	v.Enrollments[0].Status.Pools = []v1alpha1.EnrolledPoolStatus{{Name: "nix", Allocated: new(int32(2)), AllocatedAt: new(metav1.NewTime(now.Add(-time.Hour)))}}
	readings := map[string]map[string]poolUsage{"zeta": {"nix": {Demand: new(8)}}}
	r := l.allocate(v, approveAll, readings, now)
	if z := r.Shares[orgPool{"zeta", "nix"}].Allocated; z > 2 {
		t.Errorf("zeta has %d while acme may still have 8 of 10", z)
	}
	readings["acme"] = map[string]poolUsage{"nix": {Demand: new(0), InForce: 2}}
	if z := l.allocate(v, approveAll, readings, now.Add(2*fleet.ChangePause)).Shares[orgPool{"zeta", "nix"}].Allocated; z != 8 {
		t.Errorf("zeta has %d now, want 8", z)
	}
}

func TestWithoutShare(t *testing.T) {
	for _, c := range []struct {
		why    string
		change func(*v1alpha1.RunnerEnrollment, *fleet.View)
		admit  func(*v1alpha1.RunnerEnrollment) bool
		want   int
	}{
		{"it ends", func(e *v1alpha1.RunnerEnrollment, _ *fleet.View) { e.DeletionTimestamp = new(metav1.NewTime(now)) }, approveAll, 0},
		{"it has no approval", func(*v1alpha1.RunnerEnrollment, *fleet.View) {}, func(*v1alpha1.RunnerEnrollment) bool { return false }, 0},
		{"it breaks a rule about trust", func(e *v1alpha1.RunnerEnrollment, v *fleet.View) {
			v.Credentials = map[string]fleet.Credential{"acme": {Org: "other"}}
		}, approveAll, 0},
		{"it breaks another rule, and keeps what it has", func(e *v1alpha1.RunnerEnrollment, v *fleet.View) {
			v.PoolFaults = map[string]string{"nix": "no image"}
		}, approveAll, 3},
		{"nothing is wrong", func(*v1alpha1.RunnerEnrollment, *fleet.View) {}, approveAll, 8},
	} {
		v := testView("acme")
		v.Enrollments[0].Status.Pools = []v1alpha1.EnrolledPoolStatus{{Name: "nix", Allocated: new(int32(3))}}
		c.change(&v.Enrollments[0], &v)
		var l allocator
		r := l.allocate(v, c.admit, map[string]map[string]poolUsage{"acme": {"nix": {Demand: new(8), InForce: 3}}}, now)
		if got := r.Shares[orgPool{"acme", "nix"}].Allocated; got != c.want {
			t.Errorf("%s: %d, want %d", c.why, got, c.want)
		}
	}
}

// FLEET-20: one decision for 500 organisations in 20 pools each.
func BenchmarkDecide(b *testing.B) {
	const orgs, pools = 500, 20
	v := fleet.View{Forges: []v1alpha1.RunnerForge{{ObjectMeta: metav1.ObjectMeta{Name: "github"}, Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitHub, URL: "https://github.com"}}}, Credentials: map[string]fleet.Credential{}, PoolFaults: map[string]string{}}
	var uses []v1alpha1.EnrolledPool
	for i := range pools {
		name := fmt.Sprint("nix-", i)
		uses = append(uses, v1alpha1.EnrolledPool{Name: name, Type: v1alpha1.UseShared})
		v.Pools = append(v.Pools, v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RunnerPoolSpec{Forge: "github", RunsOn: []string{"self-hosted", name}, Scaling: v1alpha1.PoolScaling{Max: 3, Budget: 2 * orgs}}})
	}
	readings := map[string]map[string]poolUsage{}
	for i := range orgs {
		name := fmt.Sprint("org-", i)
		v.Enrollments = append(v.Enrollments, v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec: v1alpha1.RunnerEnrollmentSpec{Forge: "github", ConfigURL: "https://github.com/" + name, Isolation: v1alpha1.IsolationNone, Pools: uses, Credentials: v1alpha1.EnrollmentCredentials{SecretName: name}}})
		v.Credentials[name] = fleet.Credential{Org: name}
		readings[name] = map[string]poolUsage{}
		for _, u := range uses {
			readings[name][u.Name] = poolUsage{Busy: i % 3, Demand: new(i % 4), InForce: 2}
		}
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var l allocator
	for b.Loop() {
		now = now.Add(2 * time.Minute)
		r := l.allocate(v, approveAll, readings, now)
		if len(r.Shares) != orgs*pools {
			b.Fatalf("%d shares", len(r.Shares))
		}
	}
}
