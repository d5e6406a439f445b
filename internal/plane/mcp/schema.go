package mcp

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// schemaOf returns the schema of a Go type's JSON encoding. It panics for an unsupported type, which is a programming error. jsonschema.For
// does not fit: it reads descriptions from another tag, gives times no format and has no null for maps. Clients know the schemas in this
// form.
func schemaOf(t reflect.Type) *jsonschema.Schema {
	if t == reflect.TypeFor[time.Time]() {
		return &jsonschema.Schema{Type: "string", Format: "date-time"}
	}
	switch t.Kind() {
	case reflect.String:
		return &jsonschema.Schema{Type: "string"}
	case reflect.Bool:
		return &jsonschema.Schema{Type: "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return &jsonschema.Schema{Type: "integer"}
	case reflect.Float64:
		return &jsonschema.Schema{Type: "number"}
	case reflect.Pointer:
		s := schemaOf(t.Elem())
		if s.Type != "" {
			s.Types, s.Type = []string{"null", s.Type}, ""
		}
		return s
	case reflect.Slice:
		return &jsonschema.Schema{Types: []string{"null", "array"}, Items: schemaOf(t.Elem())}
	case reflect.Map:
		return &jsonschema.Schema{Types: []string{"null", "object"}, AdditionalProperties: schemaOf(t.Elem())}
	case reflect.Struct:
		s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}, AdditionalProperties: noOtherFields()}
		for _, f := range reflect.VisibleFields(t) {
			name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue // VisibleFields also returns the fields of embedded structs
			}
			of := schemaOf(f.Type)
			of.Description = f.Tag.Get("doc")
			s.Properties[name] = of
			if rest == "" {
				s.Required = append(s.Required, name)
			}
		}
		return s
	}
	panic(fmt.Sprintf("mcp: no schema for the type %v", t))
}

// noOtherFields returns the schema that matches no value: false.
func noOtherFields() *jsonschema.Schema { return &jsonschema.Schema{Not: &jsonschema.Schema{}} }
