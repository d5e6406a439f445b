package tailpolicy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tailscale/hujson"
)

// maxDepth is the maximum nesting of lists and objects. It equals the limit of encoding/json, with which the nodes
// read the values of capabilities.
const maxDepth = 10_000

// tooDeep returns the offset of the bracket that exceeds most levels, or -1. It counts brackets outside of strings
// and comments, and leaves other checks to the parser. The parser is never deeper than the number of open brackets.
func tooDeep(text string, most int) int {
	depth := 0
	for i := 0; i < len(text); i++ {
		switch rest := text[i:]; {
		case rest[0] == '[' || rest[0] == '{':
			if depth++; depth > most {
				return i
			}
		case rest[0] == ']' || rest[0] == '}':
			depth--
		case rest[0] == '"':
			for i++; i < len(text) && text[i] != '"'; i++ {
				if text[i] == '\\' {
					i++ // an escaped character does not end the string
				}
			}
		case strings.HasPrefix(rest, "//"):
			i += len(before(rest, "\n"))
		case strings.HasPrefix(rest, "/*"):
			i += len("/*") + len(before(rest[len("/*"):], "*/")) + len("/") // in addition to the step of the loop
		}
	}
	return -1
}

// before returns s up to the end mark, or all of it.
func before(s, end string) string {
	s, _, _ = strings.Cut(s, end)
	return s
}

// sections are all supported sections of a file. Other sections of Tailscale are rejected by name.
var sections = []string{"groups", "hosts", "tagOwners", "grants", "acls", "nodeAttrs", "tests"}

// listFields are the supported fields of the entries of each section that is a list.
var listFields = []struct {
	path  string
	known []string
}{
	{"/grants", []string{"src", "dst", "ip", "app"}},
	{"/acls", []string{"action", "src", "proto", "dst"}},
	{"/nodeAttrs", []string{"target", "attr", "app"}},
	{"/tests", []string{"src", "proto", "accept", "deny"}},
}

// shapes rejects duplicate names and unknown fields, in the whole file.
func (c *compiler) shapes() error {
	if path, found := duplicate(c.ast); found {
		return c.fail(path, "%q occurs twice", path[strings.LastIndexByte(path, '/')+1:])
	}
	if err := c.fields("", "this testbed", sections...); err != nil {
		return err
	}
	for _, section := range listFields {
		list := c.ast.Find(section.path)
		if list == nil {
			continue
		}
		array, ok := list.Value.(*hujson.Array)
		if !ok {
			return c.fail(section.path, "must be a list")
		}
		for i := range array.Elements {
			if err := c.fields(fmt.Sprintf("%s/%d", section.path, i), "this testbed", section.known...); err != nil {
				return err
			}
		}
	}
	return nil
}

// fields rejects unknown fields of an object.
func (c *compiler) fields(path, where string, known ...string) error {
	v := c.ast.Find(path)
	if v == nil {
		return nil
	}
	object, ok := v.Value.(*hujson.Object)
	if !ok {
		return c.fail(path, "must be an object")
	}
	for _, m := range object.Members {
		if name := m.Name.Value.(hujson.Literal).String(); !slices.Contains(known, name) {
			return c.fail(path+"/"+pointer(name), "%q is not supported by %s, which supports %s", name, where, strings.Join(known, ", "))
		}
	}
	return nil
}

// duplicate finds a duplicate name in an object and returns its position. A policy must not depend on which of the
// two counts.
func duplicate(v *hujson.Value) (path string, found bool) {
	switch x := v.Value.(type) {
	case *hujson.Object:
		seen := map[string]bool{}
		for i := range x.Members {
			m := &x.Members[i]
			name := m.Name.Value.(hujson.Literal).String()
			if seen[name] {
				return "/" + pointer(name), true
			}
			seen[name] = true
			if path, found = duplicate(&m.Value); found {
				return "/" + pointer(name) + path, true
			}
		}
	case *hujson.Array:
		for i := range x.Elements {
			if path, found = duplicate(&x.Elements[i]); found {
				return fmt.Sprintf("/%d", i) + path, true
			}
		}
	}
	return "", false
}

// pointer escapes a name for a JSON pointer.
func pointer(name string) string {
	return strings.NewReplacer("~", "~0", "/", "~1").Replace(name)
}
