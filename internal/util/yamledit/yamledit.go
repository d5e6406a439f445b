// Package yamledit reads and edits YAML files, and Kubernetes objects in JSON, that people and other programs write. It keeps law 7: it
// changes only what an edit needs. Everything else keeps its place, its form and its comments.
//
// [Parse] and [Document.Rewrite] change an object to a desired value. The other functions change single nodes.
package yamledit

import (
	"bytes"
	"slices"

	"go.yaml.in/yaml/v3"
)

// Index returns the index of a key in the content of a mapping, or -1. The value follows the key.
func Index(m *yaml.Node, key string) int {
	if m == nil || m.Kind != yaml.MappingNode {
		return -1
	}
	for i := 0; i+1 < len(m.Content); i += 2 {
		if m.Content[i].Kind == yaml.ScalarNode && m.Content[i].Value == key {
			return i
		}
	}
	return -1
}

// Child returns the value of a key of a mapping, or nil.
func Child(m *yaml.Node, key string) *yaml.Node {
	if i := Index(m, key); i >= 0 {
		return m.Content[i+1]
	}
	return nil
}

// KeyNode returns the node of a key of a mapping, or nil.
func KeyNode(m *yaml.Node, key string) *yaml.Node {
	if i := Index(m, key); i >= 0 {
		return m.Content[i]
	}
	return nil
}

// Set sets the value of a key of a mapping. It keeps a comment on the old value's line.
func Set(m *yaml.Node, key string, value *yaml.Node) {
	i := Index(m, key)
	if i < 0 {
		m.Content = append(m.Content, Scalar(key), value)
		return
	}
	old := m.Content[i+1]
	value.HeadComment, value.LineComment, value.FootComment = old.HeadComment, old.LineComment, old.FootComment
	m.Content[i+1] = value
}

// Delete removes a key from a mapping.
func Delete(m *yaml.Node, key string) {
	if i := Index(m, key); i >= 0 {
		m.Content = slices.Delete(m.Content, i, i+2)
	}
}

// Scalar returns a string node.
func Scalar(s string) *yaml.Node { return &yaml.Node{Kind: yaml.ScalarNode, Tag: "!!str", Value: s} }

// Mapping returns a mapping. pairs alternates between string keys and their nodes.
func Mapping(pairs ...any) *yaml.Node {
	m := &yaml.Node{Kind: yaml.MappingNode}
	for i := 0; i < len(pairs); i += 2 {
		m.Content = append(m.Content, Scalar(pairs[i].(string)), pairs[i+1].(*yaml.Node))
	}
	return m
}

// Sequence returns a list of strings.
func Sequence(items ...string) *yaml.Node {
	s := &yaml.Node{Kind: yaml.SequenceNode}
	for _, i := range items {
		s.Content = append(s.Content, Scalar(i))
	}
	return s
}

// IsNull reports whether n is a null.
func IsNull(n *yaml.Node) bool { return n.Kind == yaml.ScalarNode && n.ShortTag() == "!!null" }

// Equal reports whether two trees have the same content, whatever their form.
func Equal(a, b *yaml.Node) bool {
	if a.Kind == yaml.AliasNode && b.Kind == yaml.AliasNode {
		return a.Value == b.Value
	}
	if a.Kind != b.Kind || a.Kind == yaml.ScalarNode && (a.ShortTag() != b.ShortTag() || a.Value != b.Value) || a.Anchor != b.Anchor {
		return false
	}
	return slices.EqualFunc(a.Content, b.Content, Equal)
}

// ShallowCopy returns a shallow copy of a mapping. For any other node it returns an empty mapping.
func ShallowCopy(n *yaml.Node) *yaml.Node {
	if n == nil || n.Kind != yaml.MappingNode {
		return &yaml.Node{Kind: yaml.MappingNode}
	}
	c := *n
	c.Content = slices.Clone(n.Content)
	c.Anchor = "" // an alias elsewhere refers to the original
	return &c
}

// Encode encodes a tree. With compact, lists are not indented, as kubectl writes them.
func Encode(doc *yaml.Node, compact bool) ([]byte, error) { return EncodeIndented(doc, 2, compact) }

// EncodeIndented is like Encode with another indentation.
func EncodeIndented(doc *yaml.Node, indent int, compact bool) ([]byte, error) {
	var buf bytes.Buffer
	enc := yaml.NewEncoder(&buf)
	enc.SetIndent(indent)
	if compact {
		enc.CompactSeqIndent()
	}
	if err := enc.Encode(doc); err != nil {
		return nil, err
	}
	err := enc.Close()
	return buf.Bytes(), err
}
