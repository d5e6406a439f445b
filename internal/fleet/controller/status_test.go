package controller

import (
	"slices"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// A forge's rate limit is written if it has changed much, is nearly used up or starts again, but
// not after each request.
func TestRateLimitIsSteady(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	limit := func(remaining int64, resets time.Duration) *v1alpha1.ForgeRateLimit {
		return &v1alpha1.ForgeRateLimit{Remaining: remaining, ResetAt: new(metav1.NewTime(now.Add(resets)))}
	}
	for _, c := range []struct {
		why        string
		stands, is *v1alpha1.ForgeRateLimit
		want       bool
	}{
		{"there is no response, as before", nil, nil, true},
		{"it is reported for the first time", nil, limit(5000, time.Hour), false},
		{"it is no longer reported", limit(5000, time.Hour), nil, false},
		{"a request later", limit(5000, time.Hour), limit(4999, time.Hour), true},
		{"of another organisation, which began earlier", limit(4900, time.Hour), limit(4890, time.Minute), true},
		{"much less", limit(5000, time.Hour), limit(4499, time.Hour), false},
		{"much more", limit(4000, time.Hour), limit(4600, time.Hour), false},
		{"little is left", limit(1001, time.Hour), limit(1000, time.Hour), false},
		{"a new period has begun", limit(5000, -time.Second), limit(5000, time.Hour), false},
		{"the start of the next period is unknown", &v1alpha1.ForgeRateLimit{Remaining: 5000}, limit(5000, time.Hour), false},
	} {
		if got := rateSteady(c.stands, c.is, 5000, now); got != c.want {
			t.Errorf("%s: %v", c.why, got)
		}
	}
}

// The pools whose status must be written again after an observation.
func TestObserveUnhealthy(t *testing.T) {
	b := newSharedState()
	well, drifts, fails := poolObservation{Counts: RunnerCounts{Failed: new(0)}}, poolObservation{Drift: 1}, poolObservation{Counts: RunnerCounts{Failed: new(2)}}
	for _, c := range []struct {
		why  string
		uses map[string]poolObservation
		want []string
	}{
		{"all is well", map[string]poolObservation{"nix": well, "docker": well}, nil},
		{"and stays so", map[string]poolObservation{"nix": well, "docker": {}}, nil},
		{"runners fail in one", map[string]poolObservation{"nix": fails, "docker": well}, []string{"nix"}},
		{"for another reason, and in the other too", map[string]poolObservation{"nix": drifts, "docker": drifts}, []string{"docker"}},
		{"one is not used any more", map[string]poolObservation{"docker": drifts}, []string{"nix"}},
		{"the other is well again", map[string]poolObservation{"docker": well}, []string{"docker"}},
		{"a new one is ill", map[string]poolObservation{"docker": well, "gpu": fails}, []string{"gpu"}},
	} {
		_, pools := b.observe("acme", observation{Pools: c.uses})
		if slices.Sort(pools); !slices.Equal(pools, c.want) {
			t.Errorf("%s: %q, want %q", c.why, pools, c.want)
		}
	}
}
