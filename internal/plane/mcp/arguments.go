package mcp

import (
	"encoding"
	"encoding/json"
	"fmt"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/google/jsonschema-go/jsonschema"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
)

// argument is one parameter of an operation as a tool argument.
type argument struct {
	name, doc string
	index     []int
	schema    *jsonschema.Schema
	required  bool
}

// argumentNames maps parameters to other names in tools.
var argumentNames = map[string]string{"q": "query"}

// arguments returns the arguments for an operation's request type.
func arguments(request reflect.Type) (args []argument) {
	for f := range httpapi.Fields(request) {
		name := f.Tag.Get("query")
		if name == "" {
			continue
		}
		if other, ok := argumentNames[name]; ok {
			name = other
		}
		a := argument{name: name, doc: f.Tag.Get("doc"), index: f.Index, schema: &jsonschema.Schema{Type: "string", MaxLength: new(512)}, required: f.Tag.Get("required") == "true"}
		switch f.Type {
		case reflect.TypeFor[plane.Flag]():
			a.schema = &jsonschema.Schema{Type: "boolean"}
		case reflect.TypeFor[plane.PageLimit]():
			a.schema = &jsonschema.Schema{Type: "integer", Minimum: new(1.0), Maximum: new(500.0)}
		case reflect.TypeFor[plane.Cursor]():
			a.schema.MaxLength = new(8 << 10)
		case reflect.TypeFor[object]():
			a.schema = &jsonschema.Schema{Type: "object"}
		case reflect.TypeFor[plane.QueryTime]():
			a.schema.Format = "date-time"
		}
		a.schema.Description = strings.ReplaceAll(a.doc, "meta.page.next of the previous page", "meta.page.next of the previous answer")
		args = append(args, a)
	}
	return args
}

// inputSchema returns the schema of a tool's arguments. It allows no other arguments.
func inputSchema(args []argument) *jsonschema.Schema {
	s := &jsonschema.Schema{Type: "object", AdditionalProperties: noOtherFields()}
	if len(args) > 0 {
		s.Properties = map[string]*jsonschema.Schema{}
	}
	for _, a := range args {
		s.Properties[a.name] = a.schema
		if a.required {
			s.Required = append(s.Required, a.name)
		}
	}
	return s
}

// parseArguments decodes the arguments of a call into the request req, as strictly as the HTTP server decodes a query. read has already rejected
// duplicate names.
func parseArguments(args []argument, given json.RawMessage, req any) error {
	var values map[string]json.RawMessage
	if len(given) > 0 && string(given) != "null" {
		if given[0] != '{' {
			return fmt.Errorf("the arguments are not an object")
		}
		if err := json.Unmarshal(given, &values); err != nil {
			return fmt.Errorf("the arguments are not an object")
		}
	}
	for name, value := range values {
		i := slices.IndexFunc(args, func(a argument) bool { return a.name == name })
		if i < 0 {
			return fmt.Errorf("%q is not an argument; %s", clip(sanitize(name), 40), listArguments(args))
		}
		text, err := textOf(value, args[i].schema.Type)
		if err != nil {
			return fmt.Errorf("%q %w", name, err)
		}
		field := reflect.ValueOf(req).Elem().FieldByIndex(args[i].index).Addr().Interface().(encoding.TextUnmarshaler)
		if err := field.UnmarshalText([]byte(text)); err != nil {
			return fmt.Errorf("%q: %w", name, err)
		}
	}
	for _, a := range args {
		if _, given := values[a.name]; a.required && !given {
			return fmt.Errorf("%q is required", a.name)
		}
	}
	return nil
}

func listArguments(args []argument) string {
	if len(args) == 0 {
		return "the tool has no arguments"
	}
	var names []string
	for _, a := range args {
		names = append(names, a.name)
	}
	return "use " + strings.Join(names, ", ")
}

// textOf returns a value in the form of a query parameter. It does not convert between text, numbers and booleans.
func textOf(value json.RawMessage, kind string) (string, error) {
	switch kind {
	case "integer":
		if !integer.Match(value) {
			return "", fmt.Errorf("is not a whole number")
		}
		return string(value), nil
	case "boolean":
		if s := string(value); s == "true" || s == "false" {
			return s, nil
		}
		return "", fmt.Errorf("is neither true nor false")
	case "object":
		if value[0] != '{' {
			return "", fmt.Errorf("is not an object")
		}
		return string(value), nil
	}
	var s *string
	if json.Unmarshal(value, &s) != nil || s == nil {
		return "", fmt.Errorf("is not text")
	}
	return *s, nil
}

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
