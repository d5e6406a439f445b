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
	switch pool, name, revision, ok := parseRunnerMarker(e, note+"\n"+pausedNote+": hold x"); {
	case !ok:
		t.Errorf("ok is false; note = %q, pool = %s, name = %s, revision = %d, %v", note, pool, name, revision, ok)
	case pool != "docker":
		t.Errorf("pool = %q, want %q; note = %q", pool, "docker", note)
	case name != "omega-docker":
		t.Errorf("name = %q, want %q; note = %q", name, "omega-docker", note)
	case revision != 3:
		t.Errorf("revision = %v, want 3; note = %q", revision, note)
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
