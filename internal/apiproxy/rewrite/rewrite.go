// Package rewrite changes JSON objects in a stream: single objects, lists, Tables and watches. It keeps law
// 7: interrupted input is an error and never a shorter list. Objects without changes keep their bytes.
package rewrite

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/jsonscan"
)

// Change returns a changed object, or the same bytes. Its input is valid JSON.
type Change func(object []byte) []byte

// Field is one member of a JSON object, with its raw value.
type Field struct {
	Key   string
	Value []byte
}

// Fields are the members of a JSON object in order.
type Fields []Field

// Take reads the members of an object, which must be valid JSON; null has none. A duplicate key is an error.
func Take(what string, object []byte) (all Fields, err error) {
	if object == nil {
		return nil, nil
	}
	err = jsonscan.Members(what, object, func(key string, value []byte) error {
		all = append(all, Field{key, value})
		return nil
	})
	return all, err
}

// Get returns the value of a key, or nil if it is missing.
func (f Fields) Get(key string) []byte {
	for _, m := range f {
		if m.Key == key {
			return m.Value
		}
	}
	return nil
}

// With sets or adds a field and returns the result. A nil value removes the field. Callers must not use f
// afterwards.
func (f Fields) With(key string, value []byte) Fields {
	i := slices.IndexFunc(f, func(m Field) bool { return m.Key == key })
	switch {
	case i < 0 && value == nil:
		return f
	case i < 0:
		return append(f, Field{key, value})
	case value == nil:
		return slices.Delete(f, i, i+1)
	}
	f[i].Value = value
	return f
}

// JSON returns the object.
func (f Fields) JSON() []byte {
	b := []byte{'{'}
	for i, m := range f {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, Text(m.Key)...), ':'), m.Value...)
	}
	return append(b, '}')
}

// Array returns a JSON array of raw values.
func Array(values [][]byte) []byte {
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}

// Text returns a string as JSON.
func Text(s string) []byte {
	b, _ := json.Marshal(s) // marshalling a string cannot fail
	return b
}

// Annotate returns a Change that sets an annotation.
func Annotate(key, value string) Change {
	text := Text(value)
	return func(object []byte) []byte {
		top, err := Take("the object", object)
		if err != nil {
			return object
		}
		meta, err := Take("metadata", top.Get("metadata"))
		if err != nil || meta == nil {
			return object
		}
		notes, err := Take("annotations", meta.Get("annotations"))
		if err != nil {
			return object
		}
		return top.With("metadata", meta.With("annotations", notes.With(key, text).JSON()).JSON()).JSON()
	}
}

// Answer applies a change to a cluster's response: to a single object, to the rows of a Table, or to the
// items of a list. It returns any other body unchanged.
func Answer(body []byte, change Change) []byte {
	if !json.Valid(body) {
		return body
	}
	top, err := Take("the answer", body)
	if err != nil {
		return body
	}
	var kind string
	if said := top.Get("kind"); said != nil && jsonscan.Text("kind", said, &kind) != nil || kind == "Status" {
		return body
	}
	of := "items"
	switch {
	case kind == "Table":
		of, change = "rows", inside("object", change)
	case strings.HasSuffix(kind, "List") && top.Get("items") != nil && !named(top):
	default:
		return change(body)
	}
	var out [][]byte
	changed := false
	if err := jsonscan.Items(of, top.Get(of), func(item []byte) error {
		now := change(item)
		changed = changed || !same(now, item)
		out = append(out, now)
		return nil
	}); err != nil || !changed {
		return body
	}
	return top.With(of, Array(out)).JSON()
}

// named reports whether an object has a name, which lists do not have.
func named(object Fields) bool {
	meta, err := Take("metadata", object.Get("metadata"))
	return err != nil || meta.Get("name") != nil
}

// inside returns a change of the object under key within an item.
func inside(key string, change Change) Change {
	return func(item []byte) []byte {
		fields, err := Take("an item", item)
		if err != nil {
			return item
		}
		object := fields.Get(key)
		if len(object) == 0 || object[0] != '{' {
			return item
		}
		now := change(object)
		if same(now, object) {
			return item
		}
		return fields.With(key, now).JSON()
	}
}

// same reports whether two slices are the same bytes in memory.
func same(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
