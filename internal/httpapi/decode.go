package httpapi

import (
	"bytes"
	"encoding"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"iter"
	"mime"
	"net/http"
	"reflect"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// decode parses the body and the URL of r into req. It is strict: it rejects fields that the
// request type does not declare, so that a misspelt "role" cannot mean "any role".
func decode(w http.ResponseWriter, r *http.Request, req any) error {
	if err := decodeURL(r, req); err != nil {
		return err
	}
	if r.Method == http.MethodGet || r.Method == http.MethodHead {
		return nil
	}
	limit := maxBody
	wire, own := req.(BodyReader)
	if own {
		limit = wire.MaxBody()
	}
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, int64(limit)))
	if err != nil {
		if _, tooLarge := errors.AsType[*http.MaxBytesError](err); tooLarge {
			return problem.New(problem.TooLarge, fmt.Sprintf("The request has more than %d bytes.", limit), "Send only what the API reference lists.")
		}
		return problem.New(problem.BadRequest, "The connection closed before the request was complete.", "Send the request again.").WithCause(err)
	}
	if len(body) == 0 && !own {
		return nil
	}
	if mt, _, err := mime.ParseMediaType(r.Header.Get("Content-Type")); err != nil || mt != "application/json" {
		return problem.New(problem.MediaType, "The request is not application/json.", "Set Content-Type: application/json, or send no body.")
	}
	read := func() error { return decodeStrict(body, req) }
	if own {
		read = func() error { return wire.ReadBody(body) }
	}
	if err := read(); err != nil {
		return problem.New(problem.BadRequest, fmt.Sprintf("The request is malformed: %v.", err), "The API reference lists the fields.")
	}
	return nil
}

// decodeStrict decodes one JSON object. Unlike encoding/json, it is case-sensitive and rejects repeated
// names.
func decodeStrict(body []byte, req any) error {
	d := json.NewDecoder(bytes.NewReader(body))
	if t, err := d.Token(); err != nil || t != json.Delim('{') {
		return errors.New("it is not a JSON object")
	}
	known, seen := map[string]bool{}, map[string]bool{}
	for f := range Fields(reflect.TypeOf(req).Elem()) {
		name, _, _ := strings.Cut(f.Tag.Get("json"), ",")
		known[name] = name != "" && name != "-"
	}
	for d.More() {
		t, err := d.Token()
		if err != nil {
			return errors.New("it is not JSON")
		}
		name, _ := t.(string)
		if !known[name] {
			return fmt.Errorf("%.60q is not a field", name)
		}
		if seen[name] {
			return fmt.Errorf("the field %q occurs twice", name)
		}
		seen[name] = true
		var value json.RawMessage
		if err := d.Decode(&value); err != nil {
			return fmt.Errorf("%q is not JSON", name)
		}
	}
	d = json.NewDecoder(bytes.NewReader(body))
	if err := d.Decode(req); err != nil {
		if te, ok := errors.AsType[*json.UnmarshalTypeError](err); ok {
			return fmt.Errorf("%q is not of type %s", te.Field, te.Type.Kind())
		}
		return err
	}
	if _, err := d.Token(); err != io.EOF {
		return errors.New("there is text after the object")
	}
	return nil
}

// Fields returns the fields of a request type. Fields of embedded structs are included in place.
func Fields(t reflect.Type) iter.Seq[reflect.StructField] {
	return func(yield func(reflect.StructField) bool) {
		for _, f := range reflect.VisibleFields(t) {
			if (!f.Anonymous || f.Type.Kind() != reflect.Struct) && !yield(f) {
				return
			}
		}
	}
}

// A textField is a request field outside the body.
type textField interface {
	encoding.TextMarshaler
	encoding.TextUnmarshaler
}

// A stringField is a textField backed by a string.
type stringField struct{ s *string }

func (t stringField) MarshalText() ([]byte, error)     { return []byte(*t.s), nil }
func (t stringField) UnmarshalText(given []byte) error { *t.s = string(given); return nil }

// eachField calls f for each field of req with a name under tag. req is a struct or a pointer to one.
func eachField(req any, tag string, f func(name string, field textField) error) error {
	v := reflect.ValueOf(req)
	if v.Kind() != reflect.Pointer {
		addressable := reflect.New(v.Type())
		addressable.Elem().Set(v)
		v = addressable
	}
	for sf := range Fields(v.Elem().Type()) {
		name := sf.Tag.Get(tag)
		if name == "" {
			continue
		}
		at := v.Elem().FieldByIndex(sf.Index).Addr().Interface()
		field, ok := at.(textField)
		if !ok {
			field = stringField{at.(*string)} // no other types are allowed
		}
		if err := f(name, field); err != nil {
			return err
		}
	}
	return nil
}

// maxText is the maximum size in bytes of a path segment or header. A field with a method MaxText has its own.
const maxText = 512

// decodeURL parses the fields outside the body: query parameters, path segments and headers.
func decodeURL(r *http.Request, req any) error {
	bad := func(format string, args ...any) error {
		return problem.New(problem.BadRequest, fmt.Sprintf(format, args...), "The API reference lists the parameters.")
	}
	if strings.Contains(r.URL.RawQuery, ";") {
		return bad("The parameters of the request are malformed.")
	}
	q := r.URL.Query()
	err := eachField(req, "query", func(name string, field textField) error {
		values, given := q[name]
		delete(q, name)
		switch {
		case !given:
			return nil
		case len(values) != 1:
			return bad("The parameter %q occurs %d times.", name, len(values))
		}
		if err := field.UnmarshalText([]byte(values[0])); err != nil {
			return bad("The parameter %q is invalid: %v.", name, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	for name := range q {
		return bad("%.60q is not a parameter of this operation.", name)
	}
	err = eachField(req, "path", func(name string, field textField) error {
		value := r.PathValue(name)
		if len(value) > maxText || field.UnmarshalText([]byte(value)) != nil {
			return problem.New(problem.NotFound, "No operation has this path.", "The API reference lists the operations.")
		}
		return nil
	})
	if err != nil {
		return err
	}
	return eachField(req, "header", func(name string, field textField) error {
		values := r.Header.Values(name)
		if len(values) == 0 {
			return nil
		}
		limit := maxText
		if own, is := field.(interface{ MaxText() int }); is {
			limit = own.MaxText()
		}
		if len(values) > 1 || len(values[0]) > limit {
			return bad("The header %s occurs %d times, or is too long.", name, len(values))
		}
		if err := field.UnmarshalText([]byte(values[0])); err != nil {
			return bad("The header %s is invalid: %v.", name, err)
		}
		return nil
	})
}

// A Duration is a time span in an API message, written as a Go duration such as "25s". It is never
// negative. The zero Duration is omitted.
type Duration time.Duration

// MarshalText implements [encoding.TextMarshaler].
func (d Duration) MarshalText() ([]byte, error) {
	if d == 0 {
		return nil, nil
	}
	return []byte(d.String()), nil
}

// String returns d in short form, such as "8h" instead of "8h0m0s".
func (d Duration) String() string {
	s := time.Duration(d).String()
	for _, zero := range []string{"m0s", "h0m"} {
		if strings.HasSuffix(s, zero) {
			s = s[:len(s)-2]
		}
	}
	return s
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (d *Duration) UnmarshalText(text []byte) error {
	v, err := time.ParseDuration(string(text))
	switch {
	case err != nil:
		return fmt.Errorf("%.40q is not a duration such as \"30s\" or \"8h\"", text)
	case v < 0:
		return fmt.Errorf("%v is negative", v)
	}
	*d = Duration(v)
	return nil
}

// UnmarshalJSON implements [json.Unmarshaler]. It rejects an explicit zero, because the zero value
// means that the field is absent. A caller that requests "0s" must not get the maximum.
func (d *Duration) UnmarshalJSON(b []byte) error {
	var text *string
	switch err := json.Unmarshal(b, &text); {
	case err != nil:
		return fmt.Errorf("%.40s is not a duration such as \"30s\" or \"8h\"", b)
	case text == nil:
		return nil
	}
	if err := d.UnmarshalText([]byte(*text)); err != nil {
		return err
	}
	if *d == 0 {
		return fmt.Errorf("%q is a zero duration; omit it", *text)
	}
	return nil
}
