package gateway

import (
	"cmp"
	"errors"
	"fmt"
	"strings"
)

// A PathKind is how a path is compared.
type PathKind string

// Values of PathKind.
const (
	PathExact   PathKind = "Exact"   // exactly this path
	PathPrefix  PathKind = "Prefix"  // this path and everything below it, by whole segments
	PathString  PathKind = "String"  // every path that begins with these characters
	PathUnknown PathKind = "Unknown" // a regular expression: nothing is known of it
)

// A Path is a set of paths of requests. The Text of a Prefix has no slash at its
// end, so that of all paths is empty.
type Path struct {
	Kind PathKind `json:"kind"`
	Text string   `json:"text,omitempty"`
}

// ParsePath reads the path of a policy's rule: /x is exactly that path, /x* all
// that begin so, and /x/* is /x and everything below it. /* is all paths.
func ParsePath(s string) (Path, error) {
	text, star := strings.CutSuffix(s, "*")
	switch {
	case !strings.HasPrefix(s, "/"):
		return Path{}, errors.New("a path begins with /")
	case len(s) > 1024:
		return Path{}, errors.New("a path has at most 1024 characters")
	case strings.ContainsAny(text, "*?#%"):
		return Path{}, errors.New("a path has * only at its end, and none of ?, # and % in it")
	case strings.Contains(text, "//"):
		return Path{}, errors.New("a path has no // in it")
	}
	for i := range len(s) {
		if s[i] <= ' ' || s[i] > '~' {
			return Path{}, fmt.Errorf("a path has printable ASCII characters only, and no space: %q", s[i])
		}
	}
	for segment := range strings.SplitSeq(text, "/") {
		if segment == "." || segment == ".." {
			return Path{}, errors.New("a path has no . or .. for a segment")
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

// RoutePath makes the Path of a match of the Gateway API: its type and value. A
// match without a path is all paths.
func RoutePath(kind, value string) Path {
	switch kind {
	case "Exact":
		return Path{PathExact, value}
	case "PathPrefix", "":
		return Path{PathPrefix, strings.TrimRight(value, "/")}
	}
	return Path{Kind: PathUnknown}
}

// String is the form that ParsePath reads.
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

// Holds says whether a request for that path, without its query, is meant.
func (p Path) Holds(path string) bool {
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

// A Relation is what a policy's rule is to a route.
type Relation int

// Values of Relation.
const (
	Unsupported Relation = iota // the route's path is a regular expression: leave the route alone
	Disjoint                    // no request is meant by both
	Covers                      // the rule means every request of the route: change the route itself
	Within                      // the rule means some of the route's: cut them out, before the route
)

// Relation says what the rule p is to a route with path r. Two sets of paths of
// these kinds are either disjoint or one holds the other.
func (p Path) Relation(r Path) Relation {
	switch {
	case p.Kind == PathUnknown || r.Kind == PathUnknown:
		return Unsupported
	case p.contains(r):
		return Covers
	case r.contains(p):
		return Within
	}
	return Disjoint
}

func (p Path) contains(q Path) bool {
	switch p.Kind {
	case PathExact:
		return p == q
	case PathPrefix:
		switch q.Kind {
		case PathExact, PathPrefix:
			return p.Holds(q.Text) || p.Text == ""
		case PathString: // every path that begins so must be below p
			return strings.HasPrefix(q.Text, p.Text+"/") || p.Text == ""
		}
	case PathString:
		return strings.HasPrefix(q.Text, p.Text) || q.Kind == PathPrefix && q.Text == "" && p.Text == "/"
	}
	return false
}

// Compare orders paths as they are to be tried: exact ones first, then longer
// ones first, by whole segments before by characters.
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
