package history

import (
	"maps"
	"testing"
)

// The result of a merge of two branches, and the last commit of a file.
func TestHistory(t *testing.T) {
	r := New()
	base := r.Add("main", Commit{Files: map[string]string{"a": "1", "b": "1"}})
	mine := r.Add("mine", Commit{Parent: base, Files: map[string]string{"a": "2", "b": "1", "c": "1"}})
	theirs := r.Add("main", Commit{Parent: base, Files: map[string]string{"a": "1"}})
	switch own, at := r.Own(mine, "main"); {
	case len(own) != 1:
		t.Errorf("own: len(own) = %v, want 1", len(own))
	case own[0].ID != mine:
		t.Errorf("own: own[0].ID = %q, want %q", own[0].ID, mine)
	case at != base:
		t.Errorf("own: at = %q, want %q", at, base)
	}
	if got, ok := r.Merged(mine, "main"); !ok || !maps.Equal(got, map[string]string{"a": "2", "c": "1"}) {
		t.Errorf("merged %v, %v", got, ok)
	}
	for path, want := range map[string]string{"a": mine, "b": base, "c": mine} {
		if got := r.LastFor(mine, path); got != want {
			t.Errorf("%s is of %s, want %s", path, got, want)
		}
	}
	r.Add("main", Commit{Parent: theirs, Files: map[string]string{"a": "3"}})
	if got, ok := r.Merged(mine, "main"); ok {
		t.Errorf("both changed a, and it is merged: %v", got)
	}
	switch {
	case r.Delete("nowhere"):
		t.Error(`a branch that went takes its commits with it, or did not go: r.Delete("nowhere") is true`)
	case !r.Delete("mine"):
		t.Error(`a branch that went takes its commits with it, or did not go: r.Delete("mine") is false`)
	case r.Head("mine") != "":
		t.Error(`a branch that went takes its commits with it, or did not go: r.Head("mine") != ""`)
	case len(r.Log(mine)) != 2:
		t.Error("a branch that went takes its commits with it, or did not go: len(r.Log(mine)) != 2")
	}
}
