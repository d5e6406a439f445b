// Package rewrite changes objects in JSON while they go by: alone, in a list, in
// a Table and in a watch. It keeps law 7: what breaks off is an error and never a
// shorter list, and what nothing is changed in stays as it came.
package rewrite

import (
	"encoding/json"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy/jsonscan"
)

// A Change returns an object changed, or the same bytes. What it gets is valid JSON.
type Change func(object []byte) []byte

// A Field is one member of a JSON object, as it stands there.
type Field struct {
	Key   string
	Value []byte
}

// Fields are the members of a JSON object, in their order.
type Fields []Field

// Take reads the members of an object, which is valid JSON; null has none. A key
// that is there twice is an error.
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

// Get returns the value of a key; nil if it is not there.
func (f Fields) Get(key string) []byte {
	for _, m := range f {
		if m.Key == key {
			return m.Value
		}
	}
	return nil
}

// With returns the fields with one more, or with another value of one; nil takes
// it out. f is not to be used after.
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

// Array returns a list of values.
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
	b, _ := json.Marshal(s) // a string always has a form
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

// Answer changes what a cluster answered with: an object, the rows of a Table, or
// the items of a list. What is none of these, or no JSON, is returned as it came.
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

// named says whether it is an object that has a name, as lists have not.
func named(object Fields) bool {
	meta, err := Take("metadata", object.Get("metadata"))
	return err != nil || meta.Get("name") != nil
}

// inside changes the object that an item has under a key.
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

// same says whether two are the same bytes in memory.
func same(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
