package controller

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// pausedNote is the line after the marker while the fleet pauses a runner.
const pausedNote = "paused by tailplane"

// runnerMarker returns the marker of a runner. The enrollment's UID distinguishes runners of different
// clusters.
func runnerMarker(e *v1alpha1.RunnerEnrollment, pool, name string, revision int) string {
	return fmt.Sprintf("tailplane %s %s %s %d", e.UID, pool, name, revision)
}

// parseRunnerMarker parses the marker of an enrollment from a note.
func parseRunnerMarker(e *v1alpha1.RunnerEnrollment, note string) (pool, name string, revision int, ok bool) {
	line, _, _ := strings.Cut(note, "\n")
	f := strings.Fields(line)
	if len(f) != 5 || f[0] != "tailplane" || f[1] != string(e.UID) {
		return "", "", 0, false
	}
	revision, err := strconv.Atoi(f[4])
	return f[2], f[3], revision, err == nil
}
