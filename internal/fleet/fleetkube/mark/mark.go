// Package mark tells runners of ours at GitLab from those of others: by a line in their
// maintenance note. It keeps the law that what carries no mark of that enrollment's is
// nobody's of ours to touch.
package mark

import (
	"fmt"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// PausedBy is the line after the mark while a runner is paused by us.
const PausedBy = "paused by tailplane"

// Of is what tells a runner of ours. The enrollment's UID tells those of another cluster.
func Of(e *v1alpha1.RunnerEnrollment, pool, name string, revision int) string {
	return fmt.Sprintf("tailplane %s %s %s %d", e.UID, pool, name, revision)
}

// Read reads a mark of that enrollment's from a note.
func Read(e *v1alpha1.RunnerEnrollment, note string) (pool, name string, revision int, ok bool) {
	line, _, _ := strings.Cut(note, "\n")
	f := strings.Fields(line)
	if len(f) != 5 || f[0] != "tailplane" || f[1] != string(e.UID) {
		return "", "", 0, false
	}
	revision, err := strconv.Atoi(f[4])
	return f[2], f[3], revision, err == nil
}
