// Package openapi generates the API reference: an OpenAPI 3.1 document and a page for people. Both
// are generated only from the declarations of the operations, so they cannot differ from the code.
package openapi

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// A Reference describes the operations of one API. The fields of the first group are required.
type Reference struct {
	Title, Version string
	About          string // some sentences in Markdown
	Server         string // an example of the server's URL
	Operations     []httpapi.Declaration

	// Refusal is an example of a refusal as sent; nil: a problem.Error.
	Refusal any
	// Unproved means that the API's server has no key for proofs.
	Unproved bool
}

func (r Reference) refusal() reflect.Type {
	if r.Refusal == nil {
		return reflect.TypeFor[problem.Error]()
	}
	return reflect.TypeOf(r.Refusal)
}

// id returns the operation ID: the verb, if no other operation has it.
func (r Reference) id(op httpapi.Declaration) string {
	method, path, _ := strings.Cut(op.Pattern, " ")
	same, there := 0, 0
	for _, o := range r.Operations {
		if o.Verb == op.Verb {
			same++
			if _, at, _ := strings.Cut(o.Pattern, " "); at == path {
				there++
			}
		}
	}
	if same == 1 {
		return string(op.Verb)
	}
	if there > 1 { // two methods on one path
		path += "/" + strings.ToLower(method)
	}
	return string(op.Verb) + "." + strings.Trim(strings.NewReplacer("/", "-", "{", "", "}", "", ".", "-").Replace(path), "-")
}

type object = map[string]any

// JSON returns the OpenAPI document.
func (r Reference) JSON() ([]byte, error) {
	w := writer{Reference: r, schemas: object{}, types: map[string]reflect.Type{}}
	paths := object{}
	for _, op := range r.Operations {
		method, path, ok := strings.Cut(op.Pattern, " ")
		if !ok {
			return nil, fmt.Errorf("%q has no method", op.Pattern)
		}
		described, err := w.operation(op, method)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", op.Pattern, err)
		}
		item, _ := paths[path].(object)
		if item == nil {
			item = object{}
			paths[path] = item
		}
		item[strings.ToLower(method)] = described
	}
	w.schema(r.refusal())
	var out bytes.Buffer
	e := json.NewEncoder(&out)
	e.SetEscapeHTML(false)
	e.SetIndent("", "  ")
	err := e.Encode(object{
		"openapi":    "3.1.0",
		"info":       object{"title": r.Title, "version": r.Version, "description": r.About},
		"servers":    []object{{"url": r.Server}},
		"paths":      paths,
		"components": object{"schemas": w.schemas},
	})
	return out.Bytes(), err
}

type writer struct {
	Reference
	schemas object
	types   map[string]reflect.Type // of the schemas
	noNil   bool                    // the lists and maps in the described value are never nil
}

func (w writer) operation(op httpapi.Declaration, method string) (object, error) {
	described := object{"operationId": w.id(op), "summary": op.Doc}
	parameters := []object{}
	if !w.Unproved {
		parameters = append(parameters, object{"name": httpapi.NonceHeader, "in": "header", "required": false,
			"description": "16 to 64 bytes, base64url without padding; the response then has the header " + httpapi.ProofHeader + ".", "schema": object{"type": "string"}})
	}
	outside, err := ParametersOf(op)
	if err != nil {
		return nil, err
	}
	for _, o := range outside {
		p := object{"name": o.Name, "in": o.In, "required": o.In == "path", "schema": w.parameter(o.Type)}
		if o.Doc != "" {
			p["description"] = o.Doc
		}
		if o.Example != "" {
			p["example"] = o.Example
		}
		parameters = append(parameters, p)
	}
	described["parameters"] = parameters
	if method != http.MethodGet {
		content := object{"schema": w.schema(op.Request)}
		if hasBody(op.Request) {
			content["example"] = op.Example
		}
		described["requestBody"] = object{"required": false, "content": object{"application/json": content}}
	}
	responses, err := w.responses(op)
	described["responses"] = responses
	return described, err
}

func (w writer) responses(op httpapi.Declaration) (object, error) {
	headers := func(retry bool) object {
		h := object{"X-Request-Id": object{"description": "The audit id of the request.", "schema": object{"type": "string"}}}
		if !w.Unproved {
			h[httpapi.ProofHeader] = object{"description": "Ed25519 signature by the cluster's key, if the request has a nonce.", "schema": object{"type": "string"}}
		}
		if retry {
			h["Retry-After"] = object{"description": "Seconds.", "schema": object{"type": "integer"}}
		}
		return h
	}
	responses := object{}
	for _, a := range op.Responses {
		shape, err := responseOf(a)
		if err != nil {
			return nil, err
		}
		content := object{}
		for media, form := range responseForms(a) {
			c := object{"schema": w.body(form)}
			if _, raw := shape.Body.([]byte); media == "application/json" && !raw {
				c["example"] = shape.Body
			}
			content[media] = c
		}
		responses[strconv.Itoa(shape.Status)] = object{"description": http.StatusText(shape.Status), "headers": headers(shape.RetryAfter > 0), "content": content}
	}
	byStatus := map[int][]problem.Code{}
	for _, c := range Codes(op) {
		byStatus[c.Status()] = append(byStatus[c.Status()], c)
	}
	for status, codes := range byStatus {
		var names []string
		for _, c := range codes {
			names = append(names, "`"+string(c)+"`")
		}
		key := strconv.Itoa(status)
		refused := object{"description": strings.Join(names, ", "), "headers": headers(status == http.StatusAccepted || status == http.StatusTooManyRequests || status == http.StatusServiceUnavailable),
			"content": object{"application/json": object{"schema": w.schema(w.refusal())}}}
		if have, ok := responses[key].(object); ok { // one status with two forms
			media := have["content"].(object)["application/json"].(object)
			media["schema"] = object{"oneOf": []any{media["schema"], w.schema(w.refusal())}}
			have["description"] = have["description"].(string) + ", or " + refused["description"].(string)
			continue
		}
		responses[key] = refused
	}
	return responses, nil
}

// A Parameter is a part of a request outside the body.
type Parameter struct {
	In, Name, Doc string // In: query, path or header
	Type          reflect.Type
	Example       string
}

// ParametersOf returns the parameters of an operation, in the order of their declaration.
func ParametersOf(op httpapi.Declaration) (all []Parameter, err error) {
	for f := range httpapi.Fields(op.Request) {
		for _, in := range []string{"path", "query", "header"} {
			name := f.Tag.Get(in)
			if name == "" {
				continue
			}
			p := Parameter{In: in, Name: name, Doc: f.Tag.Get("doc"), Type: f.Type}
			value := reflect.ValueOf(op.Example).FieldByIndex(f.Index).Interface()
			if text, ok := value.(encoding.TextMarshaler); ok {
				example, err := text.MarshalText()
				if err != nil {
					return nil, err
				}
				p.Example = string(example)
			} else {
				p.Example = fmt.Sprint(value) // the value is a string
			}
			all = append(all, p)
		}
	}
	return all, nil
}

// parameter returns the schema of a type that is parsed from text.
func (w writer) parameter(t reflect.Type) object {
	if t != reflect.TypeFor[httpapi.Duration]() {
		switch t.Kind() {
		case reflect.Int:
			return object{"type": "integer"}
		case reflect.Bool:
			return object{"type": "boolean"}
		}
	}
	return w.schema(t)
}

// responseForms returns the forms of a response by media type.
func responseForms(answer any) map[string]any {
	if f, ok := answer.(interface{ Forms() map[string]any }); ok {
		return f.Forms()
	}
	return map[string]any{"application/json": answer}
}

// Codes returns every code that can refuse the operation, in the order of the checks.
func Codes(op httpapi.Declaration) []problem.Code {
	all := slices.Concat(httpapi.CommonRefusals(), op.Refusals)
	return slices.DeleteFunc(problem.Codes(), func(c problem.Code) bool { return !slices.Contains(all, c) })
}

func responseOf(answer any) (httpapi.Response, error) {
	if s, ok := answer.(httpapi.Responder); ok {
		return s.EncodeResponse("application/json")
	}
	return httpapi.Response{Status: http.StatusOK, Body: answer}, nil
}

func hasBody(t reflect.Type) bool {
	for f := range httpapi.Fields(t) {
		if name, _, _ := strings.Cut(f.Tag.Get("json"), ","); name != "" && name != "-" {
			return true
		}
	}
	return false
}

// body returns the schema of a response body.
func (w writer) body(form any) object {
	if events, ok := form.(httpapi.EventForms); ok {
		return w.events(events)
	}
	return w.schema(reflect.TypeOf(form))
}

// events returns the schema of an event stream. OpenAPI 3.1 cannot describe the items of a stream. By convention, the schema of the body is
// therefore that of one event.
func (w writer) events(forms httpapi.EventForms) object {
	all := []any{}
	for _, name := range slices.Sorted(maps.Keys(forms.Data)) {
		all = append(all, object{"type": "object", "additionalProperties": false, "required": []string{"data", "event"}, "properties": object{
			"id":    object{"type": "string", "description": "the revision to continue from; absent: the stream cannot continue from this event"},
			"event": object{"type": "string", "const": name},
			"data":  w.schema(reflect.TypeOf(forms.Data[name])),
		}})
	}
	w.schemas[forms.Name] = object{"description": "One event of the stream. Its data is JSON.", "oneOf": all}
	return object{"$ref": "#/components/schemas/" + forms.Name}
}

// nilable reports whether encoding/json writes null for the zero value of a type.
func nilable(t reflect.Type) bool {
	switch t.Kind() {
	case reflect.Pointer:
		return true
	case reflect.Slice, reflect.Map:
		return !t.Implements(reflect.TypeFor[encoding.TextMarshaler]())
	}
	return false
}

// element returns the schema of an element of a list or map. It permits null if the element can be nil.
func (w writer) element(t reflect.Type) object {
	s := w.schema(t)
	if nilable(t) && (t.Kind() == reflect.Pointer || !w.noNil) {
		s = orNull(s)
	}
	return s
}

// orNull returns a schema that permits null and the values of s.
func orNull(s object) object {
	kind, ok := s["type"]
	if !ok {
		return object{"oneOf": []any{s, object{"type": "null"}}}
	}
	s["type"] = []any{kind, "null"}
	if values, ok := s["enum"].([]string); ok {
		all := []any{}
		for _, v := range values {
			all = append(all, v)
		}
		s["enum"] = append(all, nil)
	}
	return s
}

// schema returns the schema of the values of a type that are not null. Named structs are described once and referenced.
func (w writer) schema(t reflect.Type) object {
	switch {
	case t.Kind() == reflect.Pointer:
		return w.schema(t.Elem())
	case t == reflect.TypeFor[httpapi.Duration]():
		return object{"type": "string", "description": "a Go duration such as 30m or 8h", "examples": []string{"8h"}}
	case t == reflect.TypeFor[time.Time]():
		return object{"type": "string", "format": "date-time"}
	case t == reflect.TypeFor[problem.Code]():
		return object{"type": "string"} // an open set, because codes may be added
	case t == reflect.TypeFor[json.RawMessage]():
		return object{"type": "object"}
	case t == reflect.TypeFor[[]byte]():
		return object{"type": "string", "contentEncoding": "base64"}
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return object{"type": "string"}
	case t.Implements(reflect.TypeFor[optionalMembers]()):
		w.noNil = false
		properties := object{}
		for name, example := range reflect.Zero(t).Interface().(optionalMembers).Members() {
			properties[name] = w.element(reflect.TypeOf(example))
		}
		return object{"type": "object", "properties": properties, "additionalProperties": false}
	}
	switch t.Kind() {
	case reflect.String:
		return object{"type": "string"}
	case reflect.Bool:
		return object{"type": "boolean"}
	case reflect.Int, reflect.Int32, reflect.Int64:
		return object{"type": "integer"}
	case reflect.Float64:
		return object{"type": "number"}
	case reflect.Interface:
		return object{} // any value
	case reflect.Slice:
		return object{"type": "array", "items": w.element(t.Elem())}
	case reflect.Map:
		return object{"type": "object", "additionalProperties": w.element(t.Elem())}
	case reflect.Struct:
		name := TypeName(t)
		if of, ok := w.types[name]; ok && of != t {
			panic(fmt.Sprintf("openapi: %v and %v have the same name", of, t))
		}
		w.types[name] = t
		ref := object{"$ref": "#/components/schemas/" + name}
		if _, done := w.schemas[name]; done {
			return ref
		}
		described := object{}
		w.schemas[name] = described // set before its fields, because a type may contain itself
		maps.Copy(described, w.properties(t))
		return ref
	}
	panic(fmt.Sprintf("openapi: no schema is defined for a field of type %v", t))
}

func (w writer) properties(t reflect.Type) object {
	properties, required := object{}, []string{}
	for _, f := range Fields(t) {
		w.noNil = f.noNil
		s := w.schema(f.Type)
		if f.Enum != nil {
			values, _ := s["items"].(object)
			if values == nil {
				values = s
			}
			values["enum"] = f.Enum
		}
		if f.Null() {
			s = orNull(s)
		}
		if f.Doc != "" {
			if _, isRef := s["$ref"]; isRef {
				s = object{"allOf": []any{s}}
			}
			s["description"] = f.Doc
		}
		properties[f.Name] = s
		if f.Required {
			required = append(required, f.Name)
		}
	}
	described := object{"type": "object", "properties": properties, "additionalProperties": false}
	if len(required) > 0 {
		described["required"] = required
	}
	return described
}

// TypeName returns the name of a type. A generic type includes its argument: Envelope[[]Cluster] is
// EnvelopeOfClusterList.
func TypeName(t reflect.Type) string {
	name, arg, generic := strings.Cut(t.Name(), "[")
	if !generic {
		return name
	}
	arg, list := strings.CutPrefix(strings.TrimSuffix(arg, "]"), "[]")
	name += "Of" + arg[strings.LastIndexAny(arg, "./*")+1:]
	if list {
		name += "List"
	}
	return name
}

// optionalMembers is a map with a fixed set of members, each of which may be absent.
type optionalMembers interface {
	Members() map[string]any // a value for each member; only its type is used
}

// A Field is one member of a JSON object.
type Field struct {
	Name, Doc string
	Enum      []string
	Type      reflect.Type
	Required  bool // the member is always present
	noNil     bool // the lists and maps in its value are never nil
}

// Null reports whether the member can be present with the value null. The tag null:"never" declares that the lists
// and maps of a field are never nil; tests compare the responses of the server with it.
func (f Field) Null() bool {
	return f.Required && nilable(f.Type) && (f.Type.Kind() == reflect.Pointer || !f.noNil)
}

// Fields returns the members of the JSON object for a struct type.
func Fields(t reflect.Type) (fields []Field) {
	for f := range t.Fields() {
		name, options, _ := strings.Cut(f.Tag.Get("json"), ",")
		switch {
		case f.Anonymous && name == "":
			of := f.Type
			if of.Kind() == reflect.Pointer {
				of = of.Elem()
			}
			fields = append(fields, Fields(of)...)
			continue
		case name == "" || name == "-":
			continue
		}
		field := Field{Name: name, Doc: f.Tag.Get("doc"), Type: f.Type, Required: !strings.Contains(options, "omit"), noNil: f.Tag.Get("null") == "never"}
		if e := f.Tag.Get("enum"); e != "" {
			field.Enum = strings.Split(e, ",")
		}
		fields = append(fields, field)
	}
	return fields
}
