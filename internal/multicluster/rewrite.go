package multicluster

import (
	"encoding/json"
	"slices"
	"strings"
)

// objectChange returns a changed object, or the same bytes. Its input is valid JSON.
type objectChange func(object []byte) []byte

// jsonField is one member of a JSON object, with its raw value.
type jsonField struct {
	Key   string
	Value []byte
}

// jsonFields are the members of a JSON object in order.
type jsonFields []jsonField

// parseFields reads the members of an object, which must be valid JSON; null has none. A duplicate key is an error.
func parseFields(what string, object []byte) (all jsonFields, err error) {
	if object == nil {
		return nil, nil
	}
	err = jsonMembers(what, object, func(key string, value []byte) error {
		all = append(all, jsonField{key, value})
		return nil
	})
	return all, err
}

// Get returns the value of a key, or nil if it is missing.
func (f jsonFields) Get(key string) []byte {
	for _, m := range f {
		if m.Key == key {
			return m.Value
		}
	}
	return nil
}

// With sets or adds a field and returns the result. A nil value removes the field. Callers must not use f
// afterwards.
func (f jsonFields) With(key string, value []byte) jsonFields {
	i := slices.IndexFunc(f, func(m jsonField) bool { return m.Key == key })
	switch {
	case i < 0 && value == nil:
		return f
	case i < 0:
		return append(f, jsonField{key, value})
	case value == nil:
		return slices.Delete(f, i, i+1)
	}
	f[i].Value = value
	return f
}

// JSON returns the object.
func (f jsonFields) JSON() []byte {
	b := []byte{'{'}
	for i, m := range f {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(append(append(b, jsonString(m.Key)...), ':'), m.Value...)
	}
	return append(b, '}')
}

// jsonArray returns a JSON array of raw values.
func jsonArray(values [][]byte) []byte {
	b := []byte{'['}
	for i, v := range values {
		if i > 0 {
			b = append(b, ',')
		}
		b = append(b, v...)
	}
	return append(b, ']')
}

// jsonString returns a string as JSON.
func jsonString(s string) []byte {
	b, _ := json.Marshal(s) // marshalling a string cannot fail
	return b
}

// objectFields are the fields of an object, of its metadata and of its annotations.
type objectFields struct{ top, meta, annotations jsonFields }

func parseObjectFields(object []byte) (o objectFields, err error) {
	if o.top, err = parseFields("the object", object); err == nil {
		o.meta, err = parseFields("metadata", o.top.Get("metadata"))
	}
	if err == nil {
		o.annotations, err = parseFields("annotations", o.meta.Get("annotations"))
	}
	return o, err
}

// JSON returns the object with its metadata.
func (o *objectFields) JSON() []byte { return o.top.With("metadata", o.meta.JSON()).JSON() }

// annotateObject returns an objectChange that sets an annotation.
func annotateObject(key, value string) objectChange {
	text := jsonString(value)
	return func(object []byte) []byte {
		o, err := parseObjectFields(object)
		if err != nil || o.meta == nil {
			return object
		}
		o.meta = o.meta.With("annotations", o.annotations.With(key, text).JSON())
		return o.JSON()
	}
}

// rewriteResponse applies a change to a cluster's response: to a single object, to the rows of a Table, or to the
// items of a list. It returns any other body unchanged.
func rewriteResponse(body []byte, change objectChange) []byte {
	if !json.Valid(body) {
		return body
	}
	top, err := parseFields("the answer", body)
	if err != nil {
		return body
	}
	var kind string
	if value := top.Get("kind"); value != nil && jsonText("kind", value, &kind) != nil || kind == "Status" {
		return body
	}
	of := "items"
	switch {
	case kind == "Table":
		of, change = "rows", changeInside("object", change)
	case strings.HasSuffix(kind, "List") && top.Get("items") != nil && !hasName(top):
	default:
		return change(body)
	}
	var out [][]byte
	changed := false
	if err := jsonItems(of, top.Get(of), func(item []byte) error {
		now := change(item)
		changed = changed || !sameBytes(now, item)
		out = append(out, now)
		return nil
	}); err != nil || !changed {
		return body
	}
	return top.With(of, jsonArray(out)).JSON()
}

// hasName reports whether an object has a name, which lists do not have.
func hasName(object jsonFields) bool {
	meta, err := parseFields("metadata", object.Get("metadata"))
	return err != nil || meta.Get("name") != nil
}

// changeInside returns a change of the object under key within an item.
func changeInside(key string, change objectChange) objectChange {
	return func(item []byte) []byte {
		fields, err := parseFields("an item", item)
		if err != nil {
			return item
		}
		object := fields.Get(key)
		if len(object) == 0 || object[0] != '{' {
			return item
		}
		now := change(object)
		if sameBytes(now, object) {
			return item
		}
		return fields.With(key, now).JSON()
	}
}

// sameBytes reports whether two slices are the same bytes in memory.
func sameBytes(a, b []byte) bool { return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0]) }
