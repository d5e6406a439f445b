package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// A PathKind says how a path is compared.
type PathKind string

// Values of PathKind.
const (
	PathExact   PathKind = "Exact"   // exactly this path
	PathPrefix  PathKind = "Prefix"  // this path and everything below it, by whole segments
	PathString  PathKind = "String"  // every path that begins with these characters
	PathUnknown PathKind = "Unknown" // a regular expression, which Build does not interpret
)

// A Path is a set of request paths. The Text of a PathPrefix has no trailing slash; an empty Text
// means all paths.
type Path struct {
	Kind PathKind `json:"kind"`
	Text string   `json:"text,omitempty"`
}

// parsePath parses the path of a policy rule. /x is exactly this path. /x* is every path that
// begins with /x. /x/* is /x and everything below it. /* is all paths.
func parsePath(s string) (Path, error) {
	text, star := strings.CutSuffix(s, "*")
	switch {
	case !strings.HasPrefix(s, "/"):
		return Path{}, errors.New("a path must begin with /")
	case len(s) > 1024:
		return Path{}, errors.New("a path must have at most 1024 characters")
	case strings.ContainsAny(text, "*?#%"):
		return Path{}, errors.New("a path may have * only at its end, and must not have any of ?, # and % in it")
	case strings.Contains(text, "//"):
		return Path{}, errors.New("a path must not contain //")
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return Path{}, fmt.Errorf("a path must have only printable ASCII characters and no space: %q", s[i])
		}
	}
	for segment := range strings.SplitSeq(text, "/") {
		if segment == "." || segment == ".." {
			return Path{}, errors.New("a path must not have . or .. as a segment")
		}
	}
	switch below, slash := strings.CutSuffix(text, "/"); {
	case !star:
		return Path{PathExact, s}, nil
	case slash:
		return Path{PathPrefix, below}, nil
	}
	return Path{PathString, text}, nil
}

// RoutePath converts the type and value of a Gateway API path match. A match without a path
// matches all paths.
func RoutePath(kind, value string) Path {
	switch kind {
	case "Exact":
		return Path{PathExact, value}
	case "PathPrefix", "":
		return Path{PathPrefix, strings.TrimRight(value, "/")}
	}
	return Path{Kind: PathUnknown}
}

// String returns the form that parsePath parses.
func (p Path) String() string {
	switch p.Kind {
	case PathExact:
		return p.Text
	case PathPrefix:
		return p.Text + "/*"
	case PathString:
		return p.Text + "*"
	}
	return "(regular expression)"
}

// matches reports whether the set contains a request path. path must not contain the query.
func (p Path) matches(path string) bool {
	switch p.Kind {
	case PathExact:
		return path == p.Text
	case PathPrefix:
		return strings.HasPrefix(path, p.Text) && (len(path) == len(p.Text) || path[len(p.Text)] == '/')
	case PathString:
		return strings.HasPrefix(path, p.Text)
	}
	return false
}

// A PathRelation compares the path of a policy rule with the path of a route.
type PathRelation int

// Values of Relation.
const (
	PathUnsupported PathRelation = iota // the route's path is a regular expression: do not change the route
	PathDisjoint                        // no request matches both
	PathCovers                          // the rule matches every request of the route: change the route itself
	PathWithin                          // the rule matches some requests of the route: add a route for them before the route
)

// Relation compares the policy rule p with a route whose path is r. Two sets of these kinds are
// either disjoint, or one contains the other.
func (p Path) Relation(r Path) PathRelation {
	switch {
	case p.Kind == PathUnknown || r.Kind == PathUnknown:
		return PathUnsupported
	case p.includes(r):
		return PathCovers
	case r.includes(p):
		return PathWithin
	}
	return PathDisjoint
}

func (p Path) includes(q Path) bool {
	switch p.Kind {
	case PathExact:
		return p == q
	case PathPrefix:
		switch q.Kind {
		case PathExact, PathPrefix:
			return p.matches(q.Text) || p.Text == ""
		case PathString: // every path with this string prefix must be below p
			return strings.HasPrefix(q.Text, p.Text+"/") || p.Text == ""
		}
	case PathString:
		return strings.HasPrefix(q.Text, p.Text) || q.Kind == PathPrefix && q.Text == "" && p.Text == "/"
	}
	return false
}

// Compare sorts paths by precedence: exact paths first, then longer paths, then prefixes by
// segment before prefixes by character.
func (p Path) Compare(q Path) int {
	rank := func(k PathKind) int {
		switch k {
		case PathExact:
			return 0
		case PathUnknown:
			return 2
		}
		return 1
	}
	return cmp.Or(cmp.Compare(rank(p.Kind), rank(q.Kind)), cmp.Compare(len(q.Text), len(p.Text)),
		cmp.Compare(p.Kind, q.Kind), cmp.Compare(p.Text, q.Text))
}
