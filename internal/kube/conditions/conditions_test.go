package conditions_test

import (
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// The transition time changes only with the status. The rest follows each decision.
func TestSet(t *testing.T) {
	noon := time.Date(2026, 5, 4, 12, 0, 0, 500, time.UTC)
	var all []metav1.Condition
	for i, x := range []struct {
		c    conditions.Condition
		want time.Duration // of the transition, after noon
	}{
		{conditions.Unknown("Pending", "It is not tested."), 0},
		{conditions.False("Failed", "It is wrong."), time.Minute},
		{conditions.False("Refused", "It is refused."), time.Minute},
		{conditions.Of(false, "Refused", ""), time.Minute},
		{conditions.Of(true, "Ready", ""), 4 * time.Minute},
	} {
		conditions.Set(&all, "Ready", x.c, int64(i), noon.Add(time.Duration(i)*time.Minute))
		if got := conditions.Get(all, "Ready"); got != x.c {
			t.Errorf("%+v is stored as %+v", x.c, got)
		}
		switch c := all[0]; {
		case len(all) != 1:
			t.Errorf("len(all) = %v, want 1", len(all))
		case c.ObservedGeneration != int64(i):
			t.Errorf("c.ObservedGeneration = %v, want %v", c.ObservedGeneration, int64(i))
		case !c.LastTransitionTime.Equal(new(metav1.NewTime(noon.Truncate(time.Second).Add(x.want)))):
			t.Errorf("c.LastTransitionTime = %v, want new(metav1.NewTime(noon.Truncate(time.Second).Add(x.want)))", c.LastTransitionTime)
		}
	}
	if c := conditions.Get(all, "Degraded"); !c.IsZero() || c.IsTrue() {
		t.Errorf("a condition that was never set: %+v", c)
	}
}

// A text is cut between two characters, and an invalid byte does not stay.
func TestTruncate(t *testing.T) {
	for _, x := range []struct {
		text string
		most int
		want string
	}{
		{"", 3, ""}, {"abc", 3, "abc"}, {"abcd", 3, "abc…"}, {"äöü", 3, "äöü"}, {"äöüß", 3, "äöü…"}, {"a\xffbc", 3, "abc"}, {"abc\xe2\x82", 3, "abc"}, {"日本語", 2, "日本…"},
	} {
		if got := conditions.Truncate(x.text, x.most); got != x.want {
			t.Errorf("%q to %d characters: %q, want %q", x.text, x.most, got, x.want)
		}
	}
}
