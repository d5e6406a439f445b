package board

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// What a forge says of its rate limit is written when it has changed much, is nearly used
// up or begins anew, and not for each request.
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
		{"nothing was said, and is", nil, nil, true},
		{"it is said for the first time", nil, limit(5000, time.Hour), false},
		{"it is said no more", limit(5000, time.Hour), nil, false},
		{"a request later", limit(5000, time.Hour), limit(4999, time.Hour), true},
		{"of another organisation, which began earlier", limit(4900, time.Hour), limit(4890, time.Minute), true},
		{"much less", limit(5000, time.Hour), limit(4499, time.Hour), false},
		{"much more", limit(4000, time.Hour), limit(4600, time.Hour), false},
		{"little is left", limit(1001, time.Hour), limit(1000, time.Hour), false},
		{"it has begun anew", limit(5000, -time.Second), limit(5000, time.Hour), false},
		{"nobody knows when it begins anew", &v1alpha1.ForgeRateLimit{Remaining: 5000}, limit(5000, time.Hour), false},
	} {
		if got := steady(c.stands, c.is, 5000, now); got != c.want {
			t.Errorf("%s: %v", c.why, got)
		}
	}
}
