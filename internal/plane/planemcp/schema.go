package planemcp

import (
	"fmt"
	"reflect"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"
)

// schemaOf describes what encoding/json makes of a type of ours. It panics for a type
// that it does not know, which is a mistake of the program. jsonschema.For does not
// fit: it reads descriptions from another tag, gives times no format and has no null
// for maps, and clients know the schemas as they are.
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
		s := &jsonschema.Schema{Type: "object", Properties: map[string]*jsonschema.Schema{}, AdditionalProperties: nothing()}
		for _, f := range reflect.VisibleFields(t) {
			name, rest, _ := strings.Cut(f.Tag.Get("json"), ",")
			if name == "" || name == "-" {
				continue // of what is embedded, the fields come too
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
	panic(fmt.Sprintf("planemcp: there is no schema of %v", t))
}

// nothing is the schema that no value fits: false.
func nothing() *jsonschema.Schema { return &jsonschema.Schema{Not: &jsonschema.Schema{}} }
