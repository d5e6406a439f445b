package ledger

import (
	"fmt"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// FLEET-20: what is decided for 500 organisations in 20 pools each, at one time.
func BenchmarkDecide(b *testing.B) {
	const orgs, pools = 500, 20
	v := fleet.View{Forges: []v1alpha1.RunnerForge{{ObjectMeta: metav1.ObjectMeta{Name: "github"}, Spec: v1alpha1.RunnerForgeSpec{Type: v1alpha1.GitHub, URL: "https://github.com"}}}, Credentials: map[string]fleet.Credential{}, PoolFaults: map[string]string{}}
	var uses []v1alpha1.EnrolledPool
	for i := range pools {
		name := fmt.Sprint("nix-", i)
		uses = append(uses, v1alpha1.EnrolledPool{Name: name, Type: v1alpha1.UseShared})
		v.Pools = append(v.Pools, v1alpha1.RunnerPool{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.RunnerPoolSpec{Forge: "github", RunsOn: []string{"self-hosted", name}, Scaling: v1alpha1.PoolScaling{Max: 3, Budget: 2 * orgs}}})
	}
	readings := map[string]map[string]Reading{}
	for i := range orgs {
		name := fmt.Sprint("org-", i)
		v.Enrollments = append(v.Enrollments, v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: name, UID: types.UID(name)},
			Spec: v1alpha1.RunnerEnrollmentSpec{Forge: "github", ConfigURL: "https://github.com/" + name, Isolation: v1alpha1.IsolationNone, Pools: uses, Credentials: v1alpha1.EnrollmentCredentials{SecretName: name}}})
		v.Credentials[name] = fleet.Credential{Org: name}
		readings[name] = map[string]Reading{}
		for _, u := range uses {
			readings[name][u.Name] = Reading{Busy: i % 3, Demand: new(i % 4), InForce: 2}
		}
	}
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	var l Ledger
	for b.Loop() {
		now = now.Add(2 * time.Minute)
		r := l.Decide(v, everybody, readings, now)
		if len(r.Shares) != orgs*pools {
			b.Fatalf("%d shares", len(r.Shares))
		}
	}
}
