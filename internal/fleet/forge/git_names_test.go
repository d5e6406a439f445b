package forge

import (
	"path"
	"slices"
	"strings"
	"testing"
)

func TestNames(t *testing.T) {
	for s, want := range map[string]bool{"main": true, "tailplane/c1": true, "release-1.2": true, "": false, "-x": false, "a..b": false, "a/../b": false, "a.lock": false, "a.": false, "a b": false,
		"a?b": false, "/a": false, "a/": false, "a//b": false, strings.Repeat("a", 201): false, "refs@{1}": false, "a\nb": false} {
		if isBranch(s) != want {
			t.Errorf("branch %q: %v", s, !want)
		}
	}
	for s, want := range map[string]bool{"fleet/pools.yaml": true, "a b/ü.yaml": true, "docs/.github/x": true, "": false, "../x": false, "a/../x": false, "/x": false, "./x": false, "x/": false,
		".git/config": false, "a/.GIT/x": false, ".github/workflows/x.yaml": false, ".GitHub/x": false, ".gitlab-ci.yml": false, `a\b`: false, "a\x00": false, "a\n": false, strings.Repeat("a", 1001): false} {
		if isPath(s) != want {
			t.Errorf("path %q: %v", s, !want)
		}
	}
	for s, want := range map[string]bool{strings.Repeat("0a", 20): true, strings.Repeat("f", 64): true, strings.Repeat("a", 39): false, strings.Repeat("A", 40): false, strings.Repeat("g", 40): false, "main": false, "": false} {
		if isCommit(s) != want {
			t.Errorf("commit %q: %v", s, !want)
		}
	}
	got := coAuthors("More\n\nCo-authored-by: Eve E <eve@example.com>\nco-authored-by : bob <b@x>\r\nCO-AUTHORED-BY: only\nSigned-off-by: Pat <p@x>\nCo-authored-by:\n")
	if !slices.Equal(got, []string{"Eve E", "eve@example.com", "bob", "b@x", "only"}) {
		t.Errorf("%q", got)
	}
}

// FuzzNames checks that a valid path stays below the repository's root.
func FuzzNames(f *testing.F) {
	for _, s := range []string{"a/b.yaml", "../x", "..0", ".git", "a/./b", "a\\..\\b"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		if isPath(s) && (path.Clean(s) != s || path.IsAbs(s) || s == ".." || strings.HasPrefix(s, "../") || strings.Contains(strings.ToLower("/"+s+"/"), "/.git/")) {
			t.Errorf("%q is a path", s)
		}
		if isBranch(s) && !isPath(s) {
			t.Errorf("%q is a branch", s)
		}
		coAuthors(s)
	})
}
