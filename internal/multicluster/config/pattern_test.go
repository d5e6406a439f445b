package config

import (
	"encoding/json"
	"testing"
)

func pattern(t *testing.T, s string) Pattern {
	t.Helper()
	p, err := ParsePattern(s)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

func TestPatterns(t *testing.T) {
	texts := []string{"", "a", "b", "ab", "ba", "aba", "abc", "aa", "x", "a-b"}
	patterns := []string{"a", "ab", "*", "a*", "*b", "a*b", "ab*", "*ba", "aba", "a*a"}
	matches := map[string]map[string]bool{
		"a*b": {"ab": true, "a-b": true}, "a*a": {"aba": true, "aa": true}, "*ba": {"ba": true, "aba": true}, "a": {"a": true},
	}
	for p, want := range matches {
		for _, s := range texts {
			if got := pattern(t, p).Match(s); got != want[s] {
				t.Errorf("%q matches %q: %v", p, s, got)
			}
		}
	}
	for _, a := range patterns {
		p := pattern(t, a)
		if p.String() != a {
			t.Errorf("%q is written as %q", a, p)
		}
		for _, b := range patterns {
			q := pattern(t, b)
			for _, s := range texts {
				if p.Covers(q) && q.Match(s) && !p.Match(s) {
					t.Errorf("%q covers %q, but does not match %q", a, b, s)
				}
			}
			if p.MatchPrefix(b) && !p.Match(b+"anything") {
				t.Errorf("%q does not match a name that begins with %q", a, b)
			}
		}
	}
	switch {
	case !pattern(t, "a*").Covers(pattern(t, "ab*")):
		t.Error(`wrong result of covers: pattern(t, "a*").Covers(pattern(t, "ab*")) is false`)
	case pattern(t, "ab*").Covers(pattern(t, "a*")):
		t.Error(`wrong result of covers: pattern(t, "ab*").Covers(pattern(t, "a*")) is true`)
	case pattern(t, "a").Covers(pattern(t, "a*")):
		t.Error(`wrong result of covers: pattern(t, "a").Covers(pattern(t, "a*")) is true`)
	}
	switch {
	case !pattern(t, "job-*").MatchPrefix("job-x"):
		t.Error(`wrong result of the prefix check: pattern(t, "job-*").MatchPrefix("job-x") is false`)
	case pattern(t, "job-*").MatchPrefix("job"):
		t.Error(`wrong result of the prefix check: pattern(t, "job-*").MatchPrefix("job") is true`)
	case pattern(t, "job-*x").MatchPrefix("job-"):
		t.Error(`wrong result of the prefix check: pattern(t, "job-*x").MatchPrefix("job-") is true`)
	}
	b, err := json.Marshal([]Pattern{pattern(t, "a*b")})
	if err != nil || string(b) != `["a*b"]` {
		t.Errorf("%s, %v", b, err)
	}
	if !MatchAny(nil, "x") || MatchAny([]Pattern{}, "x") {
		t.Error("no pattern list must match all names, and an empty one must match none")
	}
}

func TestBuiltinScope(t *testing.T) {
	for _, tt := range []struct {
		group, resource string
		want            Scope
	}{
		{"", "pods", ScopeNamespaced}, {"", "nodes", ScopeCluster}, {"", "namespaces", ScopeCluster}, {"apps", "deployments", ScopeNamespaced},
		{"rbac.authorization.k8s.io", "clusterroles", ScopeCluster}, {"rbac.authorization.k8s.io", "roles", ScopeNamespaced},
		{"example.com", "pods", ScopeUnknown}, {"", "", ScopeNamespaced},
	} {
		if got := BuiltinScope(tt.group, tt.resource); got != tt.want {
			t.Errorf("%s.%s: %v, want %v", tt.resource, tt.group, got, tt.want)
		}
	}
}
