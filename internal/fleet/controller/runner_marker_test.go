package controller

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// FL-03: a marker is read as it was written, whatever follows it. An incomplete marker, or one of
// another enrollment, is not valid.
func TestFL03_Mark(t *testing.T) {
	e := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{UID: "u1"}}
	note := runnerMarker(e, "docker", "omega-docker", 3)
	if pool, name, revision, ok := parseRunnerMarker(e, note+"\n"+pausedNote+": hold x"); !ok || pool != "docker" || name != "omega-docker" || revision != 3 {
		t.Errorf("%q: %s %s %d %v", note, pool, name, revision, ok)
	}
	other := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{UID: "u2"}}
	for _, x := range []string{"", "tailplane", "tailplane u1 docker omega-docker", "tailplane u1 docker omega-docker x", "ours " + note, "\n" + note} {
		if _, _, _, ok := parseRunnerMarker(e, x); ok {
			t.Errorf("%q is a mark", x)
		}
	}
	if _, _, _, ok := parseRunnerMarker(other, note); ok {
		t.Error("a marker is parsed as another enrollment's")
	}
}
