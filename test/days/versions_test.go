package days

import "testing"

// One policy, and two clusters whose servers have different versions: with fields that both know, both serve the person; with a field that only
// the newer one knows, tka admin check-policy names the older one, and nothing changes on the newer one.
func TestDay_TwoVersionsOnePolicy(t *testing.T) {
	t.Run("previous release", func(t *testing.T) {
		t.Skip("SKIP a build of the previous release: there are no releases yet")
	})
}
