package yamledit

import (
	"cmp"
	"encoding/json"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// maxDepth is several times what an object needs.
const maxDepth = 100

// maxNodes is the maximum number of nodes of one document after expanding aliases. Nested aliases can multiply quickly.
const maxNodes = 5_000_000

// treeOf returns the value of a node: maps, lists, strings, [json.Number], booleans and nil.
func treeOf(n *yaml.Node) (any, error) { return treeAt(n, 0, new(int)) }

func treeAt(n *yaml.Node, depth int, nodes *int) (any, error) {
	if *nodes++; depth > maxDepth || *nodes > maxNodes {
		return nil, fmt.Errorf(
			"line %d: the document is nested deeper than %d levels, or has more than %d values",
			n.Line,
			maxDepth,
			maxNodes,
		)
	}
	switch n.Kind {
	case yaml.AliasNode:
		return treeAt(n.Alias, depth+1, nodes)
	case yaml.SequenceNode:
		l := make([]any, len(n.Content))
		for i, c := range n.Content {
			var err error
			if l[i], err = treeAt(c, depth+1, nodes); err != nil {
				return nil, err
			}
		}
		return l, nil
	case yaml.MappingNode:
		m, merged := map[string]any{}, map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			k := n.Content[i]
			if k.Kind != yaml.ScalarNode {
				return nil, fmt.Errorf("line %d: a key is not a string", k.Line)
			}
			v, err := treeAt(n.Content[i+1], depth+1, nodes)
			if err != nil {
				return nil, err
			}
			if k.ShortTag() == "!!merge" {
				list, ok := v.([]any)
				if !ok {
					list = []any{v}
				}
				for _, from := range slices.Backward(list) {
					f, _ := from.(map[string]any)
					maps.Copy(merged, f)
				}
				continue
			}
			if _, twice := m[k.Value]; twice {
				return nil, fmt.Errorf("line %d: the key %.60q occurs twice", k.Line, k.Value)
			}
			m[k.Value] = v
		}
		maps.Copy(merged, m)
		return merged, nil
	}
	return scalar(n)
}

func scalar(n *yaml.Node) (any, error) {
	bad := func(err error) error {
		return fmt.Errorf("line %d: %s", n.Line, strings.TrimPrefix(err.Error(), "yaml: "))
	}
	switch n.ShortTag() {
	case "!!null":
		return nil, nil
	case "!!bool":
		var b bool
		if err := n.Decode(&b); err != nil {
			return nil, bad(err)
		}
		return b, nil
	case "!!int":
		var i int64
		if err := n.Decode(&i); err == nil {
			return json.Number(strconv.FormatInt(i, 10)), nil
		}
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value), nil
		}
	case "!!float":
		if json.Valid([]byte(n.Value)) {
			return json.Number(n.Value), nil
		}
		var f float64
		if err := n.Decode(&f); err != nil {
			return nil, bad(err)
		}
		b, err := json.Marshal(f)
		if err != nil {
			return nil, fmt.Errorf("line %d: %s is not a JSON number", n.Line, n.Value)
		}
		return json.Number(b), nil
	}
	return n.Value, nil
}

// order is the usual order of keys. Other keys follow by name.
type order map[string]int

func newOrder(keys []string) order {
	o := order{}
	for i, k := range keys {
		o[k] = i + 1
	}
	return o
}

// nodeOf returns a decoded value as a node.
func (o order) nodeOf(v any) *yaml.Node {
	switch v := v.(type) {
	case map[string]any:
		n := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map"}
		keys := slices.SortedFunc(maps.Keys(v), func(a, b string) int {
			last := len(o) + 1
			return cmp.Or(cmp.Compare(cmp.Or(o[a], last), cmp.Or(o[b], last)), cmp.Compare(a, b))
		})
		for _, k := range keys {
			n.Content = append(n.Content, o.nodeOf(k), o.nodeOf(v[k]))
		}
		return n
	case []any:
		n := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq"}
		for _, x := range v {
			n.Content = append(n.Content, o.nodeOf(x))
		}
		if len(v) == 0 {
			n.Style = yaml.FlowStyle
		}
		return n
	case string:
		return Scalar(v)
	case json.Number:
		return numberNode(v)
	case bool:
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!bool", Value: strconv.FormatBool(v)}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!null", Value: "null"}
}

func numberNode(n json.Number) *yaml.Node {
	if strings.ContainsAny(n.String(), ".eE") {
		return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!float", Value: n.String()}
	}
	return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!int", Value: n.String()}
}

// reshape returns n changed so that its value is want instead of was. Unchanged parts keep their form, and changed parts are in block
// style.
func (o order) reshape(n *yaml.Node, was, want any) *yaml.Node {
	if reflect.DeepEqual(was, want) {
		return n
	}
	if n.Kind == yaml.AliasNode {
		c := *n.Alias
		c.Anchor = ""
		n = &c
	}
	c := *n
	c.Style &^= yaml.FlowStyle
	switch want := want.(type) {
	case map[string]any:
		old, ok := was.(map[string]any)
		if !ok || n.Kind != yaml.MappingNode {
			break
		}
		c.Content = nil
		for i := 0; i+1 < len(n.Content); i += 2 {
			k, v := n.Content[i], n.Content[i+1]
			if k.ShortTag() == "!!merge" {
				c.Content = append(c.Content, k, v)
			} else if next, kept := want[k.Value]; kept {
				c.Content = append(c.Content, k, o.reshape(v, old[k.Value], next))
			}
		}
		c.Content = append(c.Content, o.added(n, old, want)...)
		return &c
	case []any:
		old, ok := was.([]any)
		if !ok || n.Kind != yaml.SequenceNode {
			break
		}
		c.Content = nil
		for _, p := range Align(old, want) {
			switch {
			case p.Want < 0:
			case p.Was < 0:
				c.Content = append(c.Content, o.nodeOf(want[p.Want]))
			default:
				c.Content = append(c.Content, o.reshape(n.Content[p.Was], old[p.Was], want[p.Want]))
			}
		}
		return &c
	}
	next := o.nodeOf(want)
	next.HeadComment, next.LineComment, next.FootComment = n.HeadComment, n.LineComment, n.FootComment
	return next
}

// added returns the keys and values that must be added to the mapping n, so that its value is want instead of was. Keys that come from an
// alias are in was, but not in n.
func (o order) added(n *yaml.Node, was, want map[string]any) (more []*yaml.Node) {
	all := o.nodeOf(want).Content
	for i := 0; i < len(all); i += 2 {
		k := all[i].Value
		if old, there := was[k]; !there || Index(n, k) < 0 && !reflect.DeepEqual(old, want[k]) {
			more = append(more, all[i], all[i+1])
		}
	}
	return more
}

// Pair pairs an item of the old list with one of the new list. -1 means none.
type Pair struct{ Was, Want int }

// Align pairs the equal items of two lists of JSON values. Objects with a name match by name. The result keeps the order of both lists.
func Align(was, want []any) (all []Pair) {
	nameless := func(v any) bool {
		m, ok := v.(map[string]any)
		return ok && m["name"] == nil
	}
	if len(was) == len(want) && slices.ContainsFunc(was, nameless) { // objects of a List: same number, so pair by position
		for i := range was {
			all = append(all, Pair{i, i})
		}
		return all
	}
	key := func(v any) string {
		if m, ok := v.(map[string]any); ok {
			if name, _ := m["name"].(string); name != "" {
				return "name " + name
			}
		}
		b, _ := json.Marshal(v) // v was decoded from JSON
		return string(b)
	}
	keys := func(list []any) (all []string) {
		for _, v := range list {
			all = append(all, key(v))
		}
		return all
	}
	a, b := keys(was), keys(want)
	// Compute the longest common subsequence. Lists in objects are short.
	length := make([][]int, len(a)+1)
	for i := range length {
		length[i] = make([]int, len(b)+1)
	}
	for i := len(a) - 1; i >= 0; i-- {
		for j := len(b) - 1; j >= 0; j-- {
			if length[i][j] = max(length[i+1][j], length[i][j+1]); a[i] == b[j] {
				length[i][j] = length[i+1][j+1] + 1
			}
		}
	}
	for i, j := 0, 0; i < len(a) || j < len(b); {
		switch {
		case i < len(a) && j < len(b) && a[i] == b[j]:
			all = append(all, Pair{i, j})
			i, j = i+1, j+1
		case j == len(b) || i < len(a) && length[i+1][j] > length[i][j+1]:
			all = append(all, Pair{i, -1})
			i++
		default:
			all = append(all, Pair{-1, j})
			j++
		}
	}
	return all
}
