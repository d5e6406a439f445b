package openapi

import (
	"bytes"
	"encoding"
	"encoding/json"
	"fmt"
	"html"
	"maps"
	"net/http"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// Markdown returns the reference page for people.
func (r Reference) Markdown() ([]byte, error) {
	var b bytes.Buffer
	fmt.Fprintf(&b, "# %s\n\n<!-- Generated from the declared operations; do not edit. -->\n\n%s\n\n", r.Title, r.About)
	b.WriteString("| operation | |\n|---|---|\n")
	for _, op := range r.Operations {
		fmt.Fprintf(&b, "| [`%s`](#%s) | %s |\n", op.Pattern, r.anchor(op), op.Doc)
	}
	for _, op := range r.Operations {
		if err := r.page(&b, op); err != nil {
			return nil, fmt.Errorf("%s: %w", op.Pattern, err)
		}
	}
	r.codes(&b)
	return b.Bytes(), nil
}

// anchor returns the name of an operation's section.
func (r Reference) anchor(op httpapi.Declaration) string {
	return strings.ReplaceAll(r.id(op), ".", "-")
}

func (r Reference) page(b *bytes.Buffer, op httpapi.Declaration) error {
	method, _, _ := strings.Cut(op.Pattern, " ")
	fmt.Fprintf(b, "\n<a id=%q></a>\n## %s\n\n%s\n", r.anchor(op), op.Pattern, op.Doc)
	address, err := r.parameters(b, op)
	if err != nil {
		return err
	}
	if fields := Fields(op.Request); len(fields) > 0 {
		table(b, "the body", fields)
	}

	curl := "curl " + address
	if method != http.MethodGet {
		curl = "curl -X " + method + " " + address
	}
	if hasBody(op.Request) {
		body, err := json.Marshal(op.Example)
		if err != nil {
			return err
		}
		curl += " -H 'Content-Type: application/json' -d '" + string(body) + "'"
	}
	fmt.Fprintf(b, "\n```sh\n%s\n```\n", curl)
	for _, a := range op.Responses {
		shape, err := responseOf(a)
		if err != nil {
			return err
		}
		if text, ok := shape.Body.(string); ok {
			fmt.Fprintf(b, "\nAnswer %d, %s:\n\n```\n%s```\n", shape.Status, shape.ContentType, text)
			if events, ok := responseForms(a)[shape.ContentType].(httpapi.EventForms); ok {
				b.WriteString("\n| event | data |\n|---|---|\n")
				for _, name := range slices.Sorted(maps.Keys(events.Data)) {
					fmt.Fprintf(b, "| `%s` | %s |\n", name, typeName(reflect.TypeOf(events.Data[name])))
				}
			}
			continue
		}
		if _, bytes := shape.Body.([]byte); bytes {
			fmt.Fprintf(b, "\nAnswer %d, %s.\n", shape.Status, shape.ContentType)
			continue
		}
		var body bytes.Buffer
		e := json.NewEncoder(&body)
		e.SetEscapeHTML(false)
		e.SetIndent("", "  ")
		if err := e.Encode(shape.Body); err != nil {
			return err
		}
		fmt.Fprintf(b, "\nAnswer %d:\n\n```json\n%s```\n", shape.Status, body.String())
	}
	if _, ownForm := reflect.Zero(op.Response).Interface().(json.Marshaler); !ownForm && len(Fields(op.Response)) > 0 {
		tables(b, "the answer", op.Response)
	}
	var codes []string
	for _, c := range Codes(op) {
		codes = append(codes, fmt.Sprintf("[`%s`](#%s)", c, c))
	}
	fmt.Fprintf(b, "\nRefused with %s.\n", strings.Join(codes, ", "))
	return nil
}

// parameters writes the table of parameters in the URL and in headers. It returns the example URL
// with the example headers.
func (r Reference) parameters(b *bytes.Buffer, op httpapi.Declaration) (address string, err error) {
	_, path, _ := strings.Cut(op.Pattern, " ")
	outside, err := ParametersOf(op)
	if err != nil {
		return "", err
	}
	query, headers := "", ""
	for i, p := range outside {
		if i == 0 {
			b.WriteString("\n| in the URL | type | |\n|---|---|---|\n")
		}
		where := map[string]string{"header": "a header; "}[p.In]
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", p.Name, typeName(p.Type), strings.TrimSuffix(where+p.Doc, "; "))
		switch {
		case p.In == "path":
			path = strings.ReplaceAll(path, "{"+p.Name+"}", p.Example)
		case p.In == "query" && p.Example != "":
			query += map[bool]string{true: "?", false: "&"}[query == ""] + p.Name + "=" + p.Example
		case p.In == "header" && p.Example != "":
			headers += " -H '" + p.Name + ": " + p.Example + "'"
		}
	}
	return r.Server + path + query + headers, nil
}

// tables writes the fields of a struct and of the structs that it contains.
func tables(b *bytes.Buffer, place string, t reflect.Type) {
	table(b, place, Fields(t))
	for _, nested := range nestedTypes(t) {
		table(b, typeName(nested), Fields(nested))
	}
}

func table(b *bytes.Buffer, place string, fields []Field) {
	fmt.Fprintf(b, "\n| in %s | type | |\n|---|---|---|\n", place)
	for _, f := range fields {
		t := f.Type
		if t.Kind() == reflect.Pointer {
			t = t.Elem()
		}
		doc, form := f.Doc, typeName(t)
		if f.Enum != nil {
			doc = strings.TrimPrefix(doc+"; one of `"+strings.Join(f.Enum, "`, `")+"`", "; ")
		}
		if !f.Required {
			doc = strings.TrimSuffix("may be absent; "+doc, "; ")
		}
		if f.Null() {
			form += " or null"
		}
		fmt.Fprintf(b, "| `%s` | %s | %s |\n", f.Name, form, html.EscapeString(doc))
	}
}

// nestedTypes returns the struct types that a struct contains, without duplicates, depth first.
func nestedTypes(t reflect.Type) (types []reflect.Type) {
	var visit func(reflect.Type)
	visit = func(t reflect.Type) {
		for _, f := range Fields(t) {
			ft := f.Type
			for ft.Kind() == reflect.Slice || ft.Kind() == reflect.Pointer || ft.Kind() == reflect.Map {
				ft = ft.Elem()
			}
			if ft.Kind() == reflect.Struct && ft != reflect.TypeFor[time.Time]() && !slices.Contains(types, ft) {
				types = append(types, ft)
				visit(ft)
			}
		}
	}
	visit(t)
	return types
}

// typeName returns the name of a type for people.
func typeName(t reflect.Type) string {
	switch {
	case t.Kind() == reflect.Pointer:
		return typeName(t.Elem()) + " or null"
	case t == reflect.TypeFor[httpapi.Duration]():
		return "duration"
	case t == reflect.TypeFor[time.Time]():
		return "time"
	case t == reflect.TypeFor[json.RawMessage]():
		return "object"
	case t == reflect.TypeFor[[]byte]():
		return "base64"
	case t.Implements(reflect.TypeFor[encoding.TextMarshaler]()):
		return "string"
	}
	switch t.Kind() {
	case reflect.Bool:
		return "true or false"
	case reflect.Int, reflect.Float64:
		return "number"
	case reflect.Slice:
		return "list of " + typeName(t.Elem())
	case reflect.Map:
		return "map of " + typeName(t.Elem())
	case reflect.Struct:
		return "`" + TypeName(t) + "`"
	}
	return "string"
}

// codes writes a table of all codes. Other pages and messages link to its anchors.
func (r Reference) codes(b *bytes.Buffer) {
	b.WriteString("\n## Refusals\n\nEvery refusal is an object of this form. `message` and `advice` are for people; branch on `code`.\n")
	tables(b, "a refusal", r.refusal())
	b.WriteString("\n| code | status | operations |\n|---|---|---|\n")
	for _, c := range problem.Codes() {
		var by []string
		for _, op := range r.Operations {
			if slices.Contains(Codes(op), c) {
				by = append(by, fmt.Sprintf("[`%s`](#%s)", r.id(op), r.anchor(op)))
			}
		}
		operations := strings.Join(by, ", ")
		switch len(by) {
		case len(r.Operations):
			operations = "all"
		case 0:
			operations = "any other path or method"
		}
		fmt.Fprintf(b, "| <a id=\"%s\"></a>`%s` | %d | %s |\n", c, c, c.Status(), operations)
	}
}
