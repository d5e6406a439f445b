package planemcp

import (
	"fmt"
	"reflect"
	"strings"
	"time"
)

// A schema is as much of JSON Schema (2020-12) as our types need.
type schema struct {
	Type        any                `json:"type,omitempty"` // a name, or two of which the first is null
	Format      string             `json:"format,omitempty"`
	Description string             `json:"description,omitempty"`
	Properties  map[string]*schema `json:"properties,omitempty"`
	Required    []string           `json:"required,omitempty"`
	Additional  any                `json:"additionalProperties,omitempty"` // false, or a schema
	Items       *schema            `json:"items,omitempty"`
	MaxLength   int                `json:"maxLength,omitempty"`
	Minimum     int                `json:"minimum,omitempty"`
	Maximum     int                `json:"maximum,omitempty"`
}

// schemaOf describes what encoding/json makes of a type of ours. It panics over one
// that it does not know: a mistake of the program.
func schemaOf(t reflect.Type) *schema {
	if t == reflect.TypeFor[time.Time]() {
		return &schema{Type: "string", Format: "date-time"}
	}
	switch t.Kind() {
	case reflect.String:
		return &schema{Type: "string"}
	case reflect.Bool:
		return &schema{Type: "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64, reflect.Uint64:
		return &schema{Type: "integer"}
	case reflect.Float64:
		return &schema{Type: "number"}
	case reflect.Pointer:
		s := schemaOf(t.Elem())
		if name, ok := s.Type.(string); ok {
			s.Type = []string{"null", name}
		}
		return s
	case reflect.Slice:
		return &schema{Type: []string{"null", "array"}, Items: schemaOf(t.Elem())}
	case reflect.Map:
		return &schema{Type: []string{"null", "object"}, Additional: schemaOf(t.Elem())}
	case reflect.Struct:
		s := &schema{Type: "object", Properties: map[string]*schema{}, Additional: false}
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
