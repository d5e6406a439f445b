package openapi_test

import (
	"bytes"
	"encoding/json"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/httpapi/openapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/requests"
	"github.com/tailplane/tailplane/internal/signin"
)

//go:generate go test -run TestReference -update .

var update = flag.Bool("update", false, "write the reference of the sign-in API into docs/reference/api")

func signinAPI() openapi.Reference {
	return openapi.Reference{
		Title: "Sign-in API", Version: "v1alpha1", Server: "https://tka.tail1234.ts.net",
		About: "`tailplaned access` serves this API on the tailnet. The connection identifies the caller: there is no login, key or header for it. A rule may require an OIDC token beside it. " +
			"Bodies are JSON, at most 16 KiB, and strict; an empty body means `{}`. " +
			"If a request has the header `Tailplane-Nonce`, the response has the header `Tailplane-Proof`. It proves which cluster the server serves. " +
			"[openapi.json](openapi.json) is the same reference for programs.",
		Operations: slices.Concat(signin.Operations(), requests.Operations()),
	}
}

func recorderAPI() openapi.Reference {
	return openapi.Reference{
		Title: "Recorder", Version: "v1", Server: "https://recorder.tail1234.ts.net",
		About: "`tailplaned recorder` serves this API on the tailnet. The connection identifies the caller, and the roles of the operator plane say what it may see. " +
			"Access proxies send recordings to another port with the protocol of Tailscale's recorder, which is not part of this API. " +
			"[openapi.json](openapi.json) is the same reference for programs.",
		Operations: recording.Operations(), Unproved: true,
	}
}

func planeAPI() openapi.Reference {
	d := new(plane.Service)
	var operations []httpapi.Declaration
	for _, r := range slices.Concat(d.Routes(), (&plane.FleetService{Plane: d}).Routes(), (&plane.RunnerService{Plane: d}).Routes(), (&plane.MetricsService{Plane: d}).Routes(),
		(&plane.ChangeService{Plane: d}).Routes(), (&plane.EnrollmentService{Plane: d}).Routes()) {
		operations = append(operations, r.Declaration)
	}
	return openapi.Reference{
		Title: "Operator plane", Version: "v1", Server: "https://dashboard.tail1234.ts.net",
		About: "`tailplaned plane` serves this API on the tailnet only. The connection identifies the caller. " +
			"Every JSON response is an envelope: `data` is null for unknown values, and `meta.sources` gives the reason. " +
			"Every operation that changes something takes a `reason`. [openapi.json](openapi.json) is the same reference for programs.",
		Operations: operations, Refusal: plane.Envelope[*plane.Empty]{}, Unproved: true,
	}
}

// The references in docs, and the reference that the plane serves, match the declared operations.
func TestReference(t *testing.T) {
	docs := filepath.Join("..", "..", "..", "docs", "reference")
	same(t, signinAPI(), filepath.Join(docs, "api", "openapi.json"), filepath.Join(docs, "api", "README.md"))
	same(t, recorderAPI(), filepath.Join(docs, "recorder", "openapi.json"), filepath.Join(docs, "recorder", "README.md"))
	same(t, planeAPI(), filepath.Join(docs, "plane", "openapi.json"), filepath.Join(docs, "plane", "README.md"), filepath.Join("..", "..", "plane", "openapi.json"))
}

// same compares the output of r with its files: the document, the page, and the compact documents
// that a server serves.
func same(t *testing.T, r openapi.Reference, documentAt, pageAt string, served ...string) {
	t.Helper()
	document, err := r.JSON()
	if err != nil {
		t.Fatal(err)
	}
	page, err := r.Markdown()
	if err != nil {
		t.Fatal(err)
	}
	files := map[string][]byte{documentAt: document, pageAt: page}
	for _, at := range served {
		var short bytes.Buffer
		if err := json.Compact(&short, document); err != nil {
			t.Fatal(err)
		}
		files[at] = short.Bytes()
	}
	for path, want := range files {
		if *update {
			if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
				t.Fatal(err)
			}
			if err := os.WriteFile(path, want, 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if have, err := os.ReadFile(path); err != nil || !bytes.Equal(have, want) {
			t.Errorf("%s is not what the operations declare (%v); write it with: go generate ./internal/httpapi/openapi", path, err)
		}
	}
}

// The document is consistent. Every reference has a target. Every operation has a unique ID, a
// response and its refusals. Every schema is used.
func TestDocumentHoldsTogether(t *testing.T) {
	t.Run("signin", func(t *testing.T) { holds(t, signinAPI()) })
	t.Run("plane", func(t *testing.T) { holds(t, planeAPI()) })
	t.Run("recorder", func(t *testing.T) { holds(t, recorderAPI()) })
}

func holds(t *testing.T, r openapi.Reference) {
	b, err := r.JSON()
	if err != nil {
		t.Fatal(err)
	}
	var d struct {
		OpenAPI string
		Paths   map[string]map[string]struct {
			OperationID string
			Summary     string
			Responses   map[string]struct{ Description string }
		}
		Components struct{ Schemas map[string]any }
	}
	if err := json.Unmarshal(b, &d); err != nil {
		t.Fatal(err)
	}
	if d.OpenAPI != "3.1.0" || len(d.Components.Schemas) == 0 {
		t.Errorf("%q with %d schemas", d.OpenAPI, len(d.Components.Schemas))
	}
	ids := map[string]bool{}
	n := 0
	for path, item := range d.Paths {
		for method, op := range item {
			n++
			switch {
			case ids[op.OperationID]:
				t.Errorf("ids[op.OperationID] is true; method = %s, path = %s, %q, %q", method, path, op.OperationID, op.Summary)
			case op.OperationID == "":
				t.Errorf("op.OperationID is empty; method = %s, path = %s, %q, %q", method, path, op.OperationID, op.Summary)
			case op.Summary == "":
				t.Errorf("op.Summary is empty; method = %s, path = %s, %q, %q", method, path, op.OperationID, op.Summary)
			}
			ids[op.OperationID] = true
			if op.Responses["200"].Description == "" && op.Responses["202"].Description == "" {
				t.Errorf("%s %s succeeds with nothing", method, path)
			}
			for _, status := range []string{"421", "403", "401", "429", "500"} {
				if op.Responses[status].Description == "" {
					t.Errorf("%s %s has no answer %s", method, path, status)
				}
			}
		}
	}
	if n != len(r.Operations) {
		t.Errorf("%d operations are described, %d declared", n, len(r.Operations))
	}
	referred := map[string]bool{}
	for rest := string(b); ; {
		_, after, ok := strings.Cut(rest, `"#/components/schemas/`)
		if !ok {
			break
		}
		name, _, _ := strings.Cut(after, `"`)
		referred[name] = true
		if d.Components.Schemas[name] == nil {
			t.Errorf("nothing is called %s", name)
		}
		rest = after
	}
	for name := range d.Components.Schemas {
		if !referred[name] {
			t.Errorf("%s is described and used by nothing", name)
		}
	}
}

// Every code has an anchor that messages can link to.
func TestEveryCodeHasItsAnchor(t *testing.T) {
	page, err := signinAPI().Markdown()
	if err != nil {
		t.Fatal(err)
	}
	for _, op := range planeAPI().Operations {
		if strings.ContainsAny(openapi.TypeName(op.Response), "[]/*.,") {
			t.Errorf("%s is called %s", op.Response, openapi.TypeName(op.Response))
		}
	}
	for _, c := range problem.Codes() {
		if n := strings.Count(string(page), `<a id="`+string(c)+`">`); n != 1 {
			t.Errorf("%s has %d anchors", c, n)
		}
	}
}
