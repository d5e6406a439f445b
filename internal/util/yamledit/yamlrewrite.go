package yamledit

import (
	"bytes"
	"errors"
	"fmt"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// rewrite returns the document's text changed so that its value is want. It edits lines where it can and parses the result to check it.
// YAML has many forms, so the check can fail. Then rewrite writes the whole document again from its nodes, with comments and order.
func (d Document) rewrite(want map[string]any, o order) ([]byte, error) {
	text, root, was := d.Text, d.root, d.Value
	means := func(text []byte) bool {
		again, err := Parse(text)
		return err == nil && reflect.DeepEqual(again.Value, want)
	}
	if d.json {
		if out, err := rewriteJSON(text, o.reshape(root, was, want)); err != nil || means(out) {
			return out, err
		}
		return nil, errors.New("it could not be written as JSON")
	}
	s := newSplicer(text, root, o)
	s.node(root, was, want)
	if s.failed == nil {
		if out := s.text(); means(out) {
			return out, nil
		}
	}
	out, err := s.encode(o.reshape(root, was, want))
	if err != nil {
		return nil, err
	}
	if bytes.HasPrefix(text, []byte("---")) {
		out = append([]byte("---\n"), out...)
	}
	if !means(out) {
		return nil, errors.New("a YAML anchor shares the value to change; write the value out")
	}
	return out, nil
}

// splicer edits lines of a document.
type splicer struct {
	order
	lines   []string // without line ends
	end     string   // the line end
	indent  int
	compact bool // lists are not indented below their key
	edits   []splice
	failed  error
}

// splice replaces the lines from index from up to, but not including, index to.
type splice struct {
	from, to int
	lines    []string
}

func newSplicer(text []byte, root *yaml.Node, o order) *splicer {
	s := &splicer{order: o, end: "\n", indent: 2, compact: true}
	t := string(text)
	if strings.Contains(t, "\r\n") {
		s.end = "\r\n"
		t = strings.ReplaceAll(t, "\r\n", "\n")
	}
	s.lines = strings.Split(strings.TrimSuffix(t, "\n"), "\n")
	s.detectStyle(root)
	return s
}

// detectStyle sets the indentation style from its first use in the document.
func (s *splicer) detectStyle(n *yaml.Node) {
	knowIndent, knowLists := false, false
	var walk func(n *yaml.Node)
	walk = func(n *yaml.Node) {
		if n.Kind == yaml.MappingNode && n.Style&yaml.FlowStyle == 0 {
			for i := 0; i+1 < len(n.Content); i += 2 {
				k, v := n.Content[i], n.Content[i+1]
				if v.Style&yaml.FlowStyle != 0 || v.Line == k.Line {
					continue
				}
				if v.Kind == yaml.MappingNode && !knowIndent && v.Column > k.Column {
					s.indent, knowIndent = v.Column-k.Column, true
				}
				if v.Kind == yaml.SequenceNode && !knowLists {
					s.compact, knowLists = v.Column == k.Column, true
				}
			}
		}
		for _, c := range n.Content {
			walk(c)
		}
	}
	walk(n)
}

func (s *splicer) fail(n *yaml.Node, why string) {
	if s.failed == nil {
		s.failed = fmt.Errorf("line %d: %s", n.Line, why)
	}
}

// encode writes a node in the document's style.
func (s *splicer) encode(n *yaml.Node) ([]byte, error) {
	return EncodeIndented(n, s.indent, s.compact)
}

// render returns a node as lines. The first follows prefix, and the others have the same indentation.
func (s *splicer) render(n *yaml.Node, prefix string) []string {
	b, err := s.encode(n)
	if err != nil {
		s.fail(n, err.Error())
		return nil
	}
	lines := strings.Split(strings.TrimSuffix(string(b), "\n"), "\n")
	for i := range lines {
		if i == 0 {
			lines[i] = prefix + lines[i]
		} else if lines[i] != "" {
			lines[i] = strings.Repeat(" ", len(prefix)) + lines[i]
		}
	}
	return lines
}

// node changes the block-style node n from was to want.
func (s *splicer) node(n *yaml.Node, was, want any) {
	switch want := want.(type) {
	case map[string]any:
		if old, ok := was.(map[string]any); ok && n.Kind == yaml.MappingNode {
			s.mapping(n, old, want)
			return
		}
	case []any:
		if old, ok := was.([]any); ok && n.Kind == yaml.SequenceNode {
			s.sequence(n, old, want)
			return
		}
	}
	s.fail(n, "it has a different kind")
}

// block reports whether n can be edited line by line.
func block(n *yaml.Node, want any) bool {
	m, _ := want.(map[string]any)
	l, _ := want.([]any)
	return (n.Kind == yaml.MappingNode || n.Kind == yaml.SequenceNode) && n.Style&yaml.FlowStyle == 0 && n.Anchor == "" &&
		len(m)+len(l) > 0 &&
		len(n.Content) > 0
}

func (s *splicer) mapping(n *yaml.Node, was, want map[string]any) {
	last := 0 // the line after the last entry
	for i := 0; i+1 < len(n.Content); i += 2 {
		k, v := n.Content[i], n.Content[i+1]
		from, to := k.Line-1, s.entryEnd(k, v)
		last = max(last, to)
		next, kept := want[k.Value]
		switch {
		case k.ShortTag() == "!!merge" || kept && reflect.DeepEqual(was[k.Value], next):
		case !kept:
			if strings.TrimSpace(s.lines[from][:k.Column-1]) != "" {
				s.fail(k, "it shares its line")
				return
			}
			s.edits = append(s.edits, splice{from, to, nil})
		case block(v, next) && v.Line > k.Line:
			s.node(v, was[k.Value], next)
		default:
			pair := &yaml.Node{
				Kind:    yaml.MappingNode,
				Tag:     "!!map",
				Content: []*yaml.Node{withoutComment(k), s.reshape(v, was[k.Value], next)},
			}
			s.replace(from, to, s.render(pair, s.lines[from][:k.Column-1]))
		}
	}
	more := &yaml.Node{Kind: yaml.MappingNode, Tag: "!!map", Content: s.added(n, was, want)}
	if len(more.Content) > 0 {
		s.edits = append(s.edits, splice{last, last, s.render(more, strings.Repeat(" ", n.Content[0].Column-1))})
	}
}

// withoutComment returns a key without the comment above it, which stays in its place.
func withoutComment(k *yaml.Node) *yaml.Node {
	c := *k
	c.HeadComment, c.FootComment = "", ""
	return &c
}

func (s *splicer) sequence(n *yaml.Node, was, want []any) {
	in := strings.Repeat(" ", n.Column-1)
	at := n.Line - 1 // where the next item would begin: above the comment of the present one
	for at > 0 && strings.HasPrefix(strings.TrimSpace(s.lines[at-1]), "#") {
		at--
	}
	for _, p := range Align(was, want) {
		if p.Was < 0 {
			item := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{s.nodeOf(want[p.Want])}}
			s.edits = append(s.edits, splice{at, at, s.render(item, in)})
			continue
		}
		c := n.Content[p.Was]
		from := c.Line - 1
		if !strings.HasPrefix(s.lines[from], in+"-") {
			s.fail(c, "it does not begin with a dash")
			return
		}
		to := s.extent(from, n.Column-1, false)
		at = to
		switch {
		case p.Want < 0:
			s.edits = append(s.edits, splice{from, to, nil})
		case reflect.DeepEqual(was[p.Was], want[p.Want]):
		case block(c, want[p.Want]):
			s.node(c, was[p.Was], want[p.Want])
		default:
			plain := s.reshape(c, was[p.Was], want[p.Want])
			plain.HeadComment, plain.FootComment = "", ""
			item := &yaml.Node{Kind: yaml.SequenceNode, Tag: "!!seq", Content: []*yaml.Node{plain}}
			s.replace(from, to, s.render(item, in))
		}
	}
}

// replace replaces lines. Comments that would be lost move above the new lines.
func (s *splicer) replace(from, to int, lines []string) {
	all := strings.Join(lines, "\n")
	var kept []string
	for _, l := range s.lines[from:to] {
		comment := ""
		if i := strings.Index(l, " #"); i >= 0 {
			comment = l[i+1:] // or text that looks like a comment; then the new lines contain it too
		} else if t := strings.TrimSpace(l); strings.HasPrefix(t, "#") {
			comment = t
		}
		if comment != "" && !strings.Contains(all, strings.TrimSpace(comment)) && !strings.ContainsAny(comment, `"'}]`) {
			kept = append(kept, l[:len(l)-len(strings.TrimLeft(l, " "))]+strings.TrimSpace(comment))
		}
	}
	s.edits = append(s.edits, splice{from, to, append(kept, lines...)})
}

// entryEnd returns the line after an entry of a mapping.
func (s *splicer) entryEnd(k, v *yaml.Node) int {
	return s.extent(k.Line-1, k.Column-1, v.Kind == yaml.SequenceNode && v.Style&yaml.FlowStyle == 0)
}

// extent returns the line after the value that begins at line from and column col. The value includes all lines with more indentation, and
// list items with the same. Comments and empty lines at its end belong to the next value.
func (s *splicer) extent(from, col int, list bool) int {
	end := from + 1
	for i := from + 1; i < len(s.lines); i++ {
		l := strings.TrimRight(s.lines[i], " \t")
		in := len(l) - len(strings.TrimLeft(l, " "))
		switch text := l[in:]; {
		case text == "" || strings.HasPrefix(text, "#") && in <= col:
			continue
		case in > col, in == col && list && (text == "-" || strings.HasPrefix(text, "- ")):
			if !strings.HasPrefix(text, "#") {
				end = i + 1
			}
		default:
			return end
		}
	}
	return end
}

// text returns the document with the edits applied, or nil if edits overlap.
func (s *splicer) text() []byte {
	slices.SortStableFunc(s.edits, func(a, b splice) int { return a.from - b.from })
	for i := 1; i < len(s.edits); i++ {
		if s.edits[i].from < s.edits[i-1].to {
			return nil // overlapping edits are not supported
		}
	}
	var out []string
	at := 0
	for _, e := range s.edits {
		out = append(append(out, s.lines[at:e.from]...), e.lines...)
		at = e.to
	}
	out = append(out, s.lines[at:]...)
	return []byte(strings.Join(out, s.end) + s.end)
}
