package openapitest

import (
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"
)

const document = `{"paths": {
  "/things/{name}": {"get": {"responses": {"200": {"content": {"application/json": {"schema": {"$ref": "#/components/schemas/Thing"}}}}}}},
  "/events": {"get": {"responses": {"200": {"content": {"text/event-stream": {"schema": {"$ref": "#/components/schemas/Event"}}}}}}}},
  "components": {"schemas": {
    "Thing": {"type": "object", "properties": {"name": {"type": "string"}, "tags": {"type": ["array", "null"], "items": {"type": "string"}}}, "required": ["name", "tags"], "additionalProperties": false},
    "Event": {"oneOf": [{"type": "object", "properties": {"event": {"type": "string", "const": "thing"}, "data": {"$ref": "#/components/schemas/Thing"}, "id": {"type": "string"}}, "required": ["event", "data"]}]}}}}`

// The checker finds each difference between a response and the document.
func TestChecker(t *testing.T) {
	for _, c := range []struct {
		name, path, media string
		status            int
		body, want        string
	}{
		{"right", "/things/a", "application/json", 200, `{"name":"a","tags":null}`, ""},
		{"right list", "/things/a", "application/json; charset=utf-8", 200, `{"name":"a","tags":["x"]}`, ""},
		{"another path", "/other", "application/json", 200, `null`, ""},
		{"no such operation in the server", "/things/a", "text/plain", 404, `no`, ""},
		{"null", "/things/a", "application/json", 200, `{"name":null,"tags":null}`, "/properties/name"},
		{"missing", "/things/a", "application/json", 200, `{"name":"a"}`, "tags"},
		{"unknown member", "/things/a", "application/json", 200, `{"name":"a","tags":[],"more":1}`, "more"},
		{"null in a list", "/things/a", "application/json", 200, `{"name":"a","tags":[null]}`, "/properties/tags/items"},
		{"not JSON", "/things/a", "application/json", 200, `{`, "unexpected end"},
		{"another status", "/things/a", "application/json", 201, `{}`, "status 201"},
		{"another form", "/things/a", "text/html", 200, ``, "text/html"},
		{"right event", "/events", "text/event-stream", 200, "retry: 1\n\nid: 7\nevent: thing\ndata: {\"name\":\"a\",\"tags\":[]}\n\n: comment\n\n", ""},
		{"wrong event", "/events", "text/event-stream", 200, "event: thing\ndata: {\"name\":\"a\"}\n\n", "tags"},
		{"unknown event", "/events", "text/event-stream", 200, "event: other\ndata: {}\n\n", `"other"`},
		{"event that is not JSON", "/events", "text/event-stream", 200, "event: thing\ndata: {\n\n", "an event"},
	} {
		t.Run(c.name, func(t *testing.T) {
			checker := New([]byte(document))
			h := checker.Handler(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
				w.Header().Set("Content-Type", c.media)
				w.WriteHeader(c.status)
				for b := range strings.SplitSeq(c.body, " ") { // in pieces
					_, _ = io.WriteString(w, b+" ")
				}
			}))
			w := httptest.NewRecorder()
			h.ServeHTTP(w, httptest.NewRequest(http.MethodGet, c.path, nil))
			if w.Code != c.status || strings.TrimSpace(w.Body.String()) != strings.TrimSpace(c.body) {
				t.Errorf("the response changed: %d %q", w.Code, w.Body)
			}
			found := strings.Join(checker.Problems(), "\n")
			if c.want == "" && found != "" || !strings.Contains(found, c.want) {
				t.Errorf("found %q, want %q", found, c.want)
			}
		})
	}
}
