package yamledit

import (
	"bytes"
	"encoding/json"
	"errors"
	"reflect"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"
)

// Part is one document of a stream, with the marker that begins it.
type Part struct {
	Text []byte
	Line int // the first line in the stream, from 1
}

// Split splits a stream before each line that begins a document. The concatenated parts are the stream.
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

// Document is one object, or any other document.
type Document struct {
	Text []byte
	// Value is the decoded document: maps, lists, strings, [json.Number], booleans and nil. It is nil if the document is not a mapping.
	Value map[string]any

	root *yaml.Node
	json bool
}

// Parse reads one document. Errors name the line, from 1. If the syntax is good but the content is not, such as a duplicate key, the
// returned document is still Readable.
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

// Readable reports whether the syntax of the document is good.
func (d Document) Readable() bool { return d.root != nil }

// Kind returns the value of the key kind, or "". It also works if the document has an error elsewhere.
func (d Document) Kind() string {
	if n := Child(d.root, "kind"); n != nil {
		return n.Value
	}
	return ""
}

// Line returns the line, from 1, of the value at a path of keys and list indexes. If the path leads nowhere, it returns the line of the
// last value found.
func (d Document) Line(path ...any) int {
	n := d.root
	for _, p := range path {
		var next *yaml.Node
		switch p := p.(type) {
		case string:
			next = Child(n, p)
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

// Rewrite returns the text changed so that its value is want. The caller must derive want from Value. New keys are written in the order of
// keys, and then by name.
func (d Document) Rewrite(want map[string]any, keys ...string) ([]byte, error) {
	if reflect.DeepEqual(d.Value, want) {
		return slices.Clone(d.Text), nil
	}
	return d.rewrite(want, newOrder(keys))
}

// Compose returns a YAML text of value. Keys are in the order of keys, and then by name.
func Compose(value map[string]any, keys ...string) ([]byte, error) {
	return Encode(newOrder(keys).nodeOf(value), true)
}

// Copy returns a deep copy of a decoded value.
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
