package config

import (
	"fmt"
	"slices"
	"strings"
)

// Pattern is a literal text, or a text with one "*", which matches any number of characters.
type Pattern struct {
	prefix, suffix string
	glob           bool
}

// ParsePattern parses a pattern.
func ParsePattern(s string) (Pattern, error) {
	prefix, suffix, glob := strings.Cut(s, "*")
	if strings.Contains(suffix, "*") {
		return Pattern{}, fmt.Errorf("%.60q has more than one \"*\"", s)
	}
	return Pattern{prefix, suffix, glob}, nil
}

// String returns the pattern as it was written.
func (p Pattern) String() string {
	if p.glob {
		return p.prefix + "*" + p.suffix
	}
	return p.prefix
}

// MarshalText implements [encoding.TextMarshaler].
func (p Pattern) MarshalText() ([]byte, error) { return []byte(p.String()), nil }

// Parts returns the parts before and after the star. If glob is false there is no star, and before is the
// whole text.
func (p Pattern) Parts() (before, after string, glob bool) { return p.prefix, p.suffix, p.glob }

// Match reports whether p matches s.
func (p Pattern) Match(s string) bool {
	if !p.glob {
		return s == p.prefix
	}
	return len(s) >= len(p.prefix)+len(p.suffix) && strings.HasPrefix(s, p.prefix) && strings.HasSuffix(s, p.suffix)
}

// Covers reports whether p matches everything that q matches.
func (p Pattern) Covers(q Pattern) bool {
	if !q.glob && !p.glob {
		return p.prefix == q.prefix
	}
	if !q.glob {
		return p.Match(q.prefix)
	}
	return p.glob && strings.HasPrefix(q.prefix, p.prefix) && strings.HasSuffix(q.suffix, p.suffix)
}

// MatchAny reports whether one of the patterns matches s; nil matches all.
func MatchAny(ps []Pattern, s string) bool {
	return ps == nil || slices.ContainsFunc(ps, func(p Pattern) bool { return p.Match(s) })
}

// allCovered reports whether each of qs is covered by one of ps.
func allCovered(ps, qs []Pattern) bool {
	if ps == nil {
		return true
	}
	if qs == nil {
		return false
	}
	// Plain loops for speed, because each rule is compared with every other rule.
next:
	for i := range qs {
		for j := range ps {
			if ps[j].Covers(qs[i]) {
				continue next
			}
		}
		return false
	}
	return true
}

// MatchPrefix reports whether p matches everything that begins with s.
func (p Pattern) MatchPrefix(s string) bool {
	return p.glob && p.suffix == "" && strings.HasPrefix(s, p.prefix)
}
