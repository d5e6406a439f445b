package gateway

import (
	"slices"
	"strings"
	"testing"
)

func mustPath(t *testing.T, s string) Path {
	t.Helper()
	p, err := parsePath(s)
	if err != nil {
		t.Fatalf("%q: %v", s, err)
	}
	return p
}

func TestParsePath(t *testing.T) {
	for s, want := range map[string]Path{
		"/": {PathExact, "/"}, "/*": {PathPrefix, ""}, "/api": {PathExact, "/api"}, "/api/*": {PathPrefix, "/api"}, "/api*": {PathString, "/api"}, "/api/": {PathExact, "/api/"},
	} {
		if got := mustPath(t, s); got != want || got.String() != s {
			t.Errorf("%q is %v, written %q; want %v", s, got, got, want)
		}
	}
	for _, s := range []string{"", "api", "*", "//", "/a//b", "/a*b", "/**", "/a?b", "/a#b", "/a%2fb", "/a/../b", "/..", "/.", "/./a", "/a/..*", "/a b", "/\x00", "/é", "/" + strings.Repeat("a", 1024)} {
		if p, err := parsePath(s); err == nil {
			t.Errorf("%q is read as %v", s, p)
		}
	}
}

// GTW-28: the table of overlaps: rule, route, and their relation.
func TestRelation(t *testing.T) {
	for _, c := range []struct {
		rule, kind, value string
		want              PathRelation
	}{
		{"/api/*", "PathPrefix", "/", PathWithin},
		{"/api/*", "", "", PathWithin}, // a match without a path
		{"/api/*", "PathPrefix", "/api", PathCovers},
		{"/api/*", "PathPrefix", "/api/", PathCovers},
		{"/api/*", "PathPrefix", "/api/v1", PathCovers},
		{"/api/*", "PathPrefix", "/apis", PathDisjoint},
		{"/api/*", "Exact", "/api", PathCovers},
		{"/api/*", "Exact", "/apix", PathDisjoint},
		{"/api/*", "RegularExpression", "/api/.*", PathUnsupported},
		{"/api*", "PathPrefix", "/api", PathCovers},
		{"/api*", "PathPrefix", "/apis", PathCovers},
		{"/api/v*", "PathPrefix", "/api", PathWithin},
		{"/api/v*", "PathPrefix", "/api/w", PathDisjoint},
		{"/api", "PathPrefix", "/api", PathWithin},
		{"/api", "Exact", "/api", PathCovers},
		{"/api", "Exact", "/api/", PathDisjoint},
		{"/*", "PathPrefix", "/", PathCovers},
		{"/*", "Exact", "/x", PathCovers},
	} {
		if got := mustPath(t, c.rule).Relation(RoutePath(c.kind, c.value)); got != c.want {
			t.Errorf("%s to %s %q: %v, want %v", c.rule, c.kind, c.value, got, c.want)
		}
	}
}

// Relation of two sets agrees with the membership of their elements.
func TestRelationIsOfSets(t *testing.T) {
	texts := []string{"/", "/a", "/a/", "/ab", "/a/b", "/a/bc", "/a/b/c", "/b"}
	var paths []Path
	for _, s := range texts {
		paths = append(paths, RoutePath("Exact", s), RoutePath("PathPrefix", s), Path{PathString, s})
	}
	requests := append(slices.Clone(texts), "/abc", "/a/b/", "/a/b/cd", "/a//", "/c", "/b/a", "/a/bcd/e", "/b-")
	for _, p := range paths {
		for _, q := range paths {
			both, inP, inQ := false, true, true // every request of q is in p; every request of p is in q
			for _, r := range requests {
				both = both || p.matches(r) && q.matches(r)
				inP = inP && (!q.matches(r) || p.matches(r))
				inQ = inQ && (!p.matches(r) || q.matches(r))
			}
			switch got := p.Relation(q); {
			case got == PathDisjoint && both, got == PathCovers && !inP, got == PathWithin && !inQ, got == PathUnsupported, got != PathDisjoint && !both:
				t.Errorf("%v to %v: %v", p, q, got)
			}
		}
	}
}

func FuzzParsePath(f *testing.F) {
	for _, s := range []string{"/", "/*", "/a*", "/a/*", "/a/../b", "/%2e"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		p, err := parsePath(s)
		if err != nil {
			return
		}
		if p.String() != s {
			t.Fatalf("%q is written as %q", s, p)
		}
		if !p.matches(strings.TrimSuffix(strings.TrimSuffix(s, "*"), "/")) && p.Kind != PathExact && p.Kind != PathString {
			t.Fatalf("%q does not hold its own path", s)
		}
		if p.Relation(p) != PathCovers {
			t.Fatalf("%q does not cover itself", s)
		}
	})
}
