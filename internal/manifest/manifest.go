// Package manifest reads and changes Kubernetes objects as people write them, in
// YAML or JSON. It keeps the law that what it does not have to change stays as it
// is, byte for byte: comments, order, and whatever it does not know.
package manifest

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// A Part is one document of a stream, with the marker that begins it.
type Part struct {
	Text []byte
	Line int // of the stream where it begins, from 1
}

// Split splits a stream before each line that begins a document. Together the
// parts are the stream.
func Split(text []byte) (all []Part) {
	line, began, at := 1, 1, 0
	for i := 0; i < len(text); {
		end := len(text)
		if n := bytes.IndexByte(text[i:], '\n'); n >= 0 {
			end = i + n + 1
		}
		l := text[i:end]
		rest, marker := bytes.CutPrefix(l, []byte("---"))
		if marker && i > at && (len(bytes.TrimSpace(rest)) == 0 || rest[0] == ' ' || rest[0] == '\t') {
			all = append(all, Part{text[at:i], began})
			at, began = i, line
		}
		i = end
		line++
		if string(bytes.TrimRight(l, "\r\n")) == "..." && i < len(text) {
			all = append(all, Part{text[at:i], began})
			at, began = i, line
		}
	}
	return append(all, Part{text[at:], began})
}

// A Document is one object, or whatever else somebody wrote.
type Document struct {
	Text []byte
	// Value is what the text means: maps, lists, strings, [json.Number], booleans and
	// nil. It is nil itself for a document that is no mapping.
	Value map[string]any

	root *yaml.Node
	json bool
}

// Parse reads one document. An error says the line, from 1. Where only what it
// means is wrong, such as a key that is there twice, it is Readable nevertheless.
func Parse(text []byte) (Document, error) {
	d := Document{Text: text}
	if bytes.HasPrefix(bytes.TrimSpace(text), []byte("{")) && json.Valid(text) {
		dec := json.NewDecoder(bytes.NewReader(text))
		dec.UseNumber()
		root, err := nodeOfJSON(dec, text, 0)
		if err != nil {
			return d, err
		}
		d.root, d.json = root, true
	} else {
		var n yaml.Node
		if err := yaml.Unmarshal(text, &n); err != nil {
			return d, errors.New(strings.TrimPrefix(err.Error(), "yaml: "))
		}
		if len(n.Content) == 0 {
			return d, nil
		}
		d.root = n.Content[0]
	}
	v, err := treeOf(d.root)
	if err != nil {
		return d, err
	}
	d.Value, _ = v.(map[string]any)
	return d, nil
}

// Readable reports whether the document's form is good, whatever it means.
func (d Document) Readable() bool { return d.root != nil }

// Kind is the word behind the document's key kind, also of one with an error in
// it elsewhere; or "".
func (d Document) Kind() string {
	if n := child(d.root, "kind"); n != nil {
		return n.Value
	}
	return ""
}

// Line is where something of the document begins, from 1: what the keys and the
// positions in lists lead to, as far as they lead somewhere.
func (d Document) Line(path ...any) int {
	n := d.root
	for _, p := range path {
		var next *yaml.Node
		switch p := p.(type) {
		case string:
			next = child(n, p)
		case int:
			if n.Kind == yaml.SequenceNode && p < len(n.Content) {
				next = n.Content[p]
			}
		}
		if next == nil {
			break
		}
		n = next
	}
	if n == nil {
		return 1
	}
	return n.Line
}

// Rewrite is the text so that it means want, which was made from Value. Keys that
// come are written in the order that keys gives, and others after them by name.
func (d Document) Rewrite(want map[string]any, keys ...string) ([]byte, error) {
	if reflect.DeepEqual(d.Value, want) {
		return slices.Clone(d.Text), nil
	}
	return d.rewrite(want, newOrder(keys))
}

// Compose is a text that means value, in YAML, with its keys in the order that keys
// gives and others after them by name.
func Compose(value map[string]any, keys ...string) ([]byte, error) {
	s := &splicer{order: newOrder(keys), indent: 2, compact: true}
	return s.encode(s.nodeOf(value))
}

// Copy is a deep copy of what a document means.
func Copy(v any) any {
	switch v := v.(type) {
	case map[string]any:
		c := make(map[string]any, len(v))
		for k, x := range v {
			c[k] = Copy(x)
		}
		return c
	case []any:
		c := make([]any, len(v))
		for i, x := range v {
			c[i] = Copy(x)
		}
		return c
	}
	return v
}
