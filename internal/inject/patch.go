package inject

import (
	"encoding/json"
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// Patch is a JSON patch (RFC 6902).
type Patch []Op

// Op is one operation of a patch: add, replace or remove.
type Op struct {
	Op    string          `json:"op"`
	Path  string          `json:"path"`
	Value json.RawMessage `json:"value,omitempty"`
}

// pointer returns the JSON pointer of keys and indexes.
func pointer(parts ...any) string {
	var b strings.Builder
	for _, p := range parts {
		b.WriteByte('/')
		b.WriteString(escaped.Replace(fmt.Sprint(p)))
	}
	return b.String()
}

var (
	escaped   = strings.NewReplacer("~", "~0", "/", "~1")
	unescaped = strings.NewReplacer("~1", "/", "~0", "~")
)

// split returns the parts of a JSON pointer.
func split(path string) []string {
	parts := strings.Split(path, "/")[1:]
	for i, p := range parts {
		parts[i] = unescaped.Replace(p)
	}
	return parts
}

// editor modifies a decoded object and records the operations.
type editor struct {
	root  map[string]any
	patch Patch
}

func (e *editor) add(path string, v any)     { e.do("add", path, v) }
func (e *editor) replace(path string, v any) { e.do("replace", path, v) }
func (e *editor) remove(path string)         { e.do("remove", path, nil) }

func (e *editor) do(op, path string, v any) {
	o := Op{Op: op, Path: path}
	if op != "remove" {
		b, err := json.Marshal(v)
		if err != nil {
			panic(err) // the adapter's parts contain only strings, numbers and lists
		}
		o.Value = b
	}
	if err := apply(e.root, o); err != nil {
		panic(err) // the path comes from this object
	}
	e.patch = append(e.patch, o)
}

// apply applies o to a decoded object.
func apply(root map[string]any, o Op) error {
	var v any
	if o.Op != "remove" {
		v = toTree(o.Value)
	}
	_, err := change(root, split(o.Path), o.Op, v)
	if err != nil {
		return fmt.Errorf("%s %s: %w", o.Op, o.Path, err)
	}
	return nil
}

// change applies an operation to the path below node and returns the new node.
func change(node any, path []string, op string, v any) (any, error) {
	switch n := node.(type) {
	case map[string]any:
		old, there := n[path[0]]
		if len(path) > 1 {
			child, err := change(old, path[1:], op, v)
			if err == nil {
				n[path[0]] = child
			}
			return n, err
		}
		if !there && op != "add" {
			return nil, fmt.Errorf("no member %.60q", path[0])
		}
		if op == "remove" {
			delete(n, path[0])
		} else {
			n[path[0]] = v
		}
		return n, nil
	case []any:
		i, err := strconv.Atoi(path[0])
		if path[0] == "-" && len(path) == 1 && op == "add" {
			i, err = len(n), nil
		}
		if err != nil || i < 0 || i > len(n) || i == len(n) && (len(path) > 1 || op != "add") {
			return nil, fmt.Errorf("no item %.20q of %d", path[0], len(n))
		}
		switch {
		case len(path) > 1:
			n[i], err = change(n[i], path[1:], op, v)
		case op == "add":
			n = slices.Insert(n, i, v)
		case op == "remove":
			n = slices.Delete(n, i, i+1)
		default:
			n[i] = v
		}
		return n, err
	}
	return nil, fmt.Errorf("no object or list for the member %.60q", path[0])
}
