// Package openapitest compares the responses of a server with its OpenAPI document, while other tests send requests.
package openapitest

import (
	"bytes"
	"encoding/json"
	"fmt"
	"maps"
	"mime"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"

	"github.com/google/jsonschema-go/jsonschema"
)

// A Checker compares responses with an OpenAPI 3.1 document, whose schemas are JSON schemas of the draft 2020-12. It
// compares JSON and the events of streams. It is safe for concurrent use.
type Checker struct {
	operations *http.ServeMux // writes the pattern of a request
	patterns   map[string]operation
	components map[string]*jsonschema.Schema

	mu       sync.Mutex
	checked  map[string]bool // by schema and value
	schemas  map[*jsonschema.Schema]*jsonschema.Resolved
	problems map[string]bool
}

type operation struct {
	Responses map[string]struct {
		Content map[string]struct{ Schema *jsonschema.Schema }
	}
}

// New returns a Checker for a document. It panics if the document is invalid.
func New(document []byte) *Checker {
	var d struct {
		Paths      map[string]map[string]operation
		Components struct{ Schemas map[string]*jsonschema.Schema }
	}
	if err := json.Unmarshal(bytes.ReplaceAll(document, []byte("#/components/schemas/"), []byte("#/$defs/")), &d); err != nil {
		panic(fmt.Sprintf("read the OpenAPI document: %v", err))
	}
	c := &Checker{operations: http.NewServeMux(), patterns: map[string]operation{}, components: d.Components.Schemas,
		checked: map[string]bool{}, schemas: map[*jsonschema.Schema]*jsonschema.Resolved{}, problems: map[string]bool{}}
	for path, methods := range d.Paths {
		for method, op := range methods {
			pattern := strings.ToUpper(method) + " " + path
			c.patterns[pattern] = op
			c.operations.HandleFunc(pattern, func(http.ResponseWriter, *http.Request) {})
		}
	}
	return c
}

// Main runs the tests of a package and exits. The exit code reports a response that differs from the document.
func (c *Checker) Main(m *testing.M) {
	code := m.Run()
	for _, p := range c.Problems() {
		fmt.Fprintln(os.Stderr, "FAIL: a response differs from the OpenAPI document:", p)
		code = 1
	}
	os.Exit(code)
}

// Problems returns the differences so far.
func (c *Checker) Problems() []string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Sorted(maps.Keys(c.problems))
}

// Handler returns a handler that checks the responses of h. It ignores requests that are not operations of the document.
func (c *Checker) Handler(h http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, pattern := c.operations.Handler(r)
		op, ok := c.patterns[pattern]
		if !ok || r.Method == http.MethodHead {
			h.ServeHTTP(w, r)
			return
		}
		checked := &response{ResponseWriter: w, status: http.StatusOK, checker: c, pattern: pattern, op: op}
		h.ServeHTTP(checked, r)
		checked.end()
	})
}

// response records a response, and passes it on.
type response struct {
	http.ResponseWriter
	checker *Checker
	pattern string
	op      operation
	status  int
	rest    []byte // the body, or the incomplete last event of a stream
}

// Unwrap lets an http.ResponseController find the methods of the inner writer.
func (w *response) Unwrap() http.ResponseWriter { return w.ResponseWriter }

// WriteHeader implements [http.ResponseWriter].
func (w *response) WriteHeader(status int) {
	w.status = status
	w.ResponseWriter.WriteHeader(status)
}

func (w *response) media() string {
	media, _, _ := mime.ParseMediaType(w.Header().Get("Content-Type"))
	return media
}

// Write implements [http.ResponseWriter].
func (w *response) Write(b []byte) (int, error) {
	switch w.media() {
	case "application/json":
		w.rest = append(w.rest, b...)
	case "text/event-stream":
		w.rest = append(w.rest, b...)
		for {
			event, rest, complete := bytes.Cut(w.rest, []byte("\n\n"))
			if !complete {
				break
			}
			w.rest = slices.Clone(rest)
			w.event(string(event))
		}
	}
	return w.ResponseWriter.Write(b)
}

func (w *response) end() {
	if schema := w.schema(); w.media() == "application/json" {
		w.check(schema, w.rest)
	}
}

// event checks one event of a stream: its name, and its data.
func (w *response) event(text string) {
	event := map[string]any{}
	for line := range strings.Lines(text) {
		field, value, _ := strings.Cut(strings.TrimSuffix(line, "\n"), ": ")
		switch field {
		case "event", "id":
			event[field] = value
		case "data":
			event[field] = json.RawMessage(value)
		}
	}
	if len(event) == 0 {
		return // a comment, or the time until a retry
	}
	b, err := json.Marshal(event)
	if err != nil {
		w.checker.report(fmt.Sprintf("%s: an event: %v: %s", w.pattern, err, text))
		return
	}
	schema := w.schema()
	if schema == nil {
		return
	}
	// The schema is one of those of all events. The one with the event's name gives a better message.
	for _, of := range w.checker.components[strings.TrimPrefix(schema.Ref, "#/$defs/")].OneOf {
		if name := of.Properties["event"].Const; name != nil && *name == event["event"] {
			w.check(of, b)
			return
		}
	}
	w.checker.report(fmt.Sprintf("%s: the event %q is not declared", w.pattern, event["event"]))
}

// schema returns the schema of the body, or nil if the document has none.
func (w *response) schema() *jsonschema.Schema {
	of, ok := w.op.Responses[strconv.Itoa(w.status)]
	if !ok && w.status == http.StatusNotFound {
		return nil // the server of the test does not have this operation
	}
	if !ok {
		w.checker.report(fmt.Sprintf("%s: the status %d is not declared", w.pattern, w.status))
		return nil
	}
	content, ok := of.Content[w.media()]
	if !ok {
		w.checker.report(fmt.Sprintf("%s: %s with the status %d is not declared", w.pattern, w.media(), w.status))
		return nil
	}
	return content.Schema
}

// check compares a value with its schema.
func (w *response) check(schema *jsonschema.Schema, value []byte) {
	if schema == nil {
		return
	}
	c := w.checker
	c.mu.Lock()
	key := fmt.Sprintf("%p %s", schema, value)
	done := c.checked[key]
	c.checked[key] = true
	c.mu.Unlock()
	if done {
		return
	}
	var instance any
	if err := json.Unmarshal(value, &instance); err != nil {
		c.report(fmt.Sprintf("%s: %v: %.200s", w.pattern, err, value))
		return
	}
	resolved, err := c.resolve(schema)
	if err == nil {
		err = resolved.Validate(instance)
	}
	if err != nil {
		c.report(fmt.Sprintf("%s with the status %d: %.600v", w.pattern, w.status, err))
	}
}

func (c *Checker) resolve(schema *jsonschema.Schema) (*jsonschema.Resolved, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if r, ok := c.schemas[schema]; ok {
		return r, nil
	}
	root := &jsonschema.Schema{Defs: map[string]*jsonschema.Schema{}, AllOf: []*jsonschema.Schema{schema.CloneSchemas()}}
	for name, of := range c.components {
		root.Defs[name] = of.CloneSchemas()
	}
	r, err := root.Resolve(nil)
	if err == nil {
		c.schemas[schema] = r
	}
	return r, err
}

func (c *Checker) report(text string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.problems[text] = true
}
