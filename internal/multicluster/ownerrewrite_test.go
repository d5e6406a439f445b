package multicluster

import (
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// fakeOwnerAPI is a cluster that answers by path with a body, or with a status of three digits.
type fakeOwnerAPI struct {
	mu        sync.Mutex
	responses map[string]string
	requests  []string
}

func (o *fakeOwnerAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	o.mu.Lock()
	defer o.mu.Unlock()
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Path == "/api" || r.URL.Path == "/apis" {
		w.Header().Set("Content-Type", "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList")
	}
	o.requests = append(o.requests, r.URL.Path)
	switch body := o.responses[r.URL.Path]; {
	case body == "":
		w.WriteHeader(http.StatusNotFound)
	case body == "403":
		w.WriteHeader(http.StatusForbidden)
	case body == "500":
		w.WriteHeader(http.StatusInternalServerError)
	default:
		io.WriteString(w, body)
	}
}

// newOwnerEnv returns a fan-out whose Secrets in the namespace shop are in east and have owners that may be
// elsewhere.
func newOwnerEnv(t *testing.T) (*Router, *fakeOwnerAPI) {
	t.Helper()
	dir := t.TempDir()
	east := &fakeOwnerAPI{responses: map[string]string{
		"/api": `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[{"metadata":{},"versions":[{"version":"v1","freshness":"Current","resources":[
			{"resource":"configmaps","responseKind":{"group":"","version":"v1","kind":"ConfigMap"},"scope":"Namespaced","singularResource":"configmap","verbs":["get"]},
			{"resource":"nodes","responseKind":{"group":"","version":"v1","kind":"Node"},"scope":"Cluster","singularResource":"node","verbs":["get"]}]}]}]}`,
		"/apis":                                  `{"kind":"APIGroupDiscoveryList","apiVersion":"apidiscovery.k8s.io/v2","metadata":{},"items":[]}`,
		"/api/v1/namespaces/shop/configmaps/own": `{"metadata":{"uid":"near"}}`,
		"/api/v1/namespaces/shop/configmaps/namesake": `{"metadata":{"uid":"another"}}`,
		"/api/v1/namespaces/shop/configmaps/hidden":   "403",
		"/api/v1/namespaces/shop/configmaps/broken":   "500",
		"/api/v1/nodes/n":                       `{"metadata":{"uid":"node"}}`,
		"/api/v1/namespaces/shop/secrets/child": `{"metadata":{"ownerReferences":[{"uid":"deleted"}]}}`,
		"/api/v1/namespaces/far/secrets/child":  `{"metadata":{"ownerReferences":[{"uid":"already"}]}}`,
	}}
	srv := httptest.NewTLSServer(east)
	t.Cleanup(srv.Close)
	ca := string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
	for name, content := range map[string]string{
		"credentials/east/server": srv.URL, "credentials/east/ca.crt": ca, "credentials/east/token": "token",
		"credentials/west/server": "https://127.0.0.1:1", "credentials/west/ca.crt": ca, "credentials/west/token": "token",
		"config.yaml": `apiVersion: mca.tailplane.dev/v1alpha1
kind: Config
epoch: 1
home: east
clusters:
- {name: east, slot: 0, allowLoopback: true, credentials: {secret: east}}
- {name: west, slot: 1, allowLoopback: true, credentials: {secret: west}}
rules:
- {name: shop, match: {apiGroups: [""], resources: [secrets], namespaces: [shop]}, target: {cluster: east, ownerReferences: shelter}}
- {name: owners, match: {apiGroups: [""], resources: [configmaps], namespaces: [far]}, target: {cluster: west}}
- {name: far, match: {namespaces: [far]}, target: {cluster: east}}
`,
	} {
		if err := os.MkdirAll(filepath.Dir(filepath.Join(dir, name)), 0o700); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(filepath.Join(dir, name), []byte(content), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	log := slog.New(slog.DiscardHandler)
	s := &Router{Log: log, Now: time.Now, Metrics: apiproxy.NewMetrics("test", apiproxy.BuiltinResources())}
	keep := &ConfigLoader{File: filepath.Join(dir, "config.yaml"), Credentials: filepath.Join(dir, "credentials"), Home: apiproxy.UpstreamConfig{Servers: []string{"127.0.0.1:1"}},
		CheckUpdate: func(_, _ *config.Config) error { return nil }, Interval: time.Hour, Log: log, Now: time.Now}
	if err := keep.Load(); err != nil {
		t.Fatal(err)
	}
	history, err := OpenConfigHistory(filepath.Join(dir, "past"), nil)
	if err != nil {
		t.Fatal(err)
	}
	s.SetConfig(keep.Current(), history)
	return s, east
}

// AD-11, ADP-13: an owner is foreign if the cluster does not have its UID and never had it for this object.
// Uncertain cases are refused.
func TestForeignOwners(t *testing.T) {
	s, east := newOwnerEnv(t)
	owned := func(name, uid string) string {
		return `{"apiVersion":"v1","kind":"ConfigMap","name":"` + name + `","uid":"` + uid + `"}`
	}
	for _, tt := range []struct {
		why, method, path, owner string
		code                     int // of a refusal; 0: none
		moved                    bool
	}{
		{"in the cluster", "POST", "", owned("own", "near"), 0, false},
		{"elsewhere", "POST", "", owned("far", "far"), 0, true},
		{"elsewhere, with a namesake here", "POST", "", owned("namesake", "far2"), 0, true},
		{"of a kind that nobody has", "POST", "", `{"apiVersion":"x.io/v1","kind":"Thing","name":"a","uid":"thing"}`, 0, true},
		{"in no namespace", "POST", "", `{"apiVersion":"v1","kind":"Node","name":"n","uid":"node"}`, 0, false},
		{"without a UID", "POST", "", owned("far", ""), 0, false},
		{"deleted here, of a new object", "POST", "", owned("gone", "gone"), 0, true},
		{"deleted here, of an object that has it", "PUT", "/child", owned("gone", "deleted"), 0, false},
		{"its status too", "PUT", "/child/status", owned("far", "far3"), 0, true},
		{"nobody may look", "POST", "", owned("hidden", "hidden"), 403, false},
		{"no answer to it", "POST", "", owned("broken", "broken"), 503, false},
	} {
		t.Run(tt.why, func(t *testing.T) {
			body := `{"apiVersion":"v1","kind":"Secret","metadata":{"name":"child","ownerReferences":[` + tt.owner + `]}}`
			for range 2 { // the second time it is cached
				out, warnings, err := sendRequest(t, s, tt.method, "/api/v1/namespaces/shop/secrets"+tt.path, body, "Content-Type", "application/json")
				if code := refusalStatus(err); code != tt.code {
					t.Fatalf("%v, want %d", err, tt.code)
				}
				if tt.code != 0 {
					return
				}
				sent, err := io.ReadAll(out.Body)
				if err != nil {
					t.Fatal(err)
				}
				if moved := strings.Contains(string(sent), "mca.tailplane.dev/owner-references"); moved != tt.moved || !moved && string(sent) != body {
					t.Errorf("sent %s", sent)
				}
				if tt.moved != slices.ContainsFunc(warnings, func(w string) bool { return strings.Contains(w, "no garbage collector") }) {
					t.Errorf("warned of %q", warnings)
				}
				if out.ContentLength != int64(len(sent)) {
					t.Errorf("Content-Length of %d bytes is %d", len(sent), out.ContentLength)
				}
			}
		})
	}
	n := 0
	for _, path := range east.requests {
		if path == "/api/v1/namespaces/shop/configmaps/far" {
			n++
		}
	}
	if n != 2 { // far, and far3 with the same name
		t.Errorf("the cluster received %d requests for the owner far", n)
	}
}

// AD-11: if owners are followed, an existing object cannot get an owner in another cluster.
func TestCheckAdoption(t *testing.T) {
	s, _ := newOwnerEnv(t)
	const owner = `"ownerReferences":[{"apiVersion":"v1","kind":"ConfigMap","name":"a","uid":`
	for _, tt := range []struct {
		why, method, path, contentType, body string
		code                                 int
	}{
		{"a new one", "PUT", "", asJSON, `{"metadata":{` + owner + `"new"}]}}`, 422},
		{"a new one, to its status", "PUT", "/status", asJSON, `{"metadata":{` + owner + `"new"}]}}`, 422},
		{"a new one, by a patch", "PATCH", "", "application/strategic-merge-patch+json", `{"metadata":{` + owner + `"new"}]}}`, 422},
		{"one that it has", "PUT", "", asJSON, `{"metadata":{` + owner + `"already"}]}}`, 0},
		{"none", "PUT", "", asJSON, `{"metadata":{"labels":{}}}`, 0},
		{"a kind that nobody has", "PUT", "", asJSON, `{"metadata":{"ownerReferences":[{"apiVersion":"x.io/v1","kind":"Thing","name":"a","uid":"thing"}]}}`, 0},
		{"one of home", "PUT", "", asJSON, `{"metadata":{"ownerReferences":[{"apiVersion":"v1","kind":"Node","name":"n","uid":"node"}]}}`, 0},
		{"what a service is sent", "PUT", "/proxy/x", asJSON, `{"metadata":{` + owner + `"new"}]}}`, 0},
		{"in another language", "PATCH", "", "application/json-patch+json", `[{"op":"test","path":"/ownerReferences"}]`, 0},
	} {
		out, _, err := sendRequest(t, s, tt.method, "/api/v1/namespaces/far/secrets/child"+tt.path, tt.body, "Content-Type", tt.contentType)
		if refusalStatus(err) != tt.code {
			t.Errorf("%s: %v, want %d", tt.why, err, tt.code)
		}
		if sent, rerr := io.ReadAll(out.Body); err == nil && (rerr != nil || string(sent) != tt.body) {
			t.Errorf("%s: sent %s (%v)", tt.why, sent, rerr)
		}
	}
}

// TestHideOwners checks that rewritten objects are requested as JSON, and that the request is refused
// if the client does not accept JSON.
func TestHideOwners(t *testing.T) {
	s, _ := newOwnerEnv(t)
	const at = "/api/v1/namespaces/shop/secrets/child"
	for _, tt := range []struct {
		why, method, path, accept string
		code                      int
		asked                     string // the Accept header that the cluster receives
	}{
		{"client-go", "GET", at, asProto + "," + asJSON, 0, asJSON},
		{"anything", "GET", at, "*/*", 0, asJSON},
		{"protobuf alone", "GET", at, asProto, 406, ""},
		{"an old watch of one object", "GET", "/api/v1/watch/namespaces/shop/secrets/child", asJSON, 400, ""},
		{"another namespace", "GET", "/api/v1/namespaces/other/secrets/child", asProto, 0, asProto},
		{"another kind", "GET", "/api/v1/namespaces/shop/pods/child", asProto, 0, asProto},
	} {
		out, _, err := sendRequest(t, s, tt.method, tt.path, "", "Accept", tt.accept)
		if code := refusalStatus(err); code != tt.code || tt.code == 0 && strings.Join(out.Header["Accept"], ",") != tt.asked {
			t.Errorf("%s: %v, asked for %q", tt.why, err, out.Header["Accept"])
		}
	}
	if _, _, err := sendRequest(t, s, "PUT", at, "{}", "Content-Encoding", "gzip"); refusalStatus(err) != 415 {
		t.Errorf("a compressed body: %v", err)
	}
	if _, _, err := sendRequest(t, s, "PATCH", at, `[{"op":"remove","path":"/metadata/ownerReferences"}]`, "Content-Type", "application/json-patch+json"); refusalStatus(err) != 422 {
		t.Errorf("a patch of owners: %v", err)
	}
}

// TestRestoreOwners checks that restoreOwners does not change other bodies and never returns a truncated one.
func TestRestoreOwners(t *testing.T) {
	const kept = `{"kind":"Secret","metadata":{"name":"a","annotations":{"mca.tailplane.dev/owner-references":"[{\"at\":0,\"reference\":{\"uid\":\"far\"}}]"}}}`
	const is = `{"kind":"Secret","metadata":{"name":"a","ownerReferences":[{"uid":"far"}]}}`
	for _, tt := range []struct{ why, method, contentType, encoding, body, want string }{
		{"an object", "GET", asJSON, "", kept, is},
		{"text", "GET", "text/plain", "", kept, kept},
		{"compressed all the same", "GET", asJSON, "gzip", kept, "error"},
		{"its head", "HEAD", asJSON, "", "", ""},
		{"too long", "GET", asJSON, "", strings.Repeat(" ", maxRewritten+1), "error"},
	} {
		res := &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {tt.contentType}}, ContentLength: int64(len(tt.body)),
			Body: io.NopCloser(strings.NewReader(tt.body)), Request: &http.Request{Method: tt.method}}
		if tt.encoding != "" {
			res.Header.Set("Content-Encoding", tt.encoding)
		}
		restoreOwners(res)
		got, err := io.ReadAll(res.Body)
		if err != nil {
			got = []byte("error")
		} else if tt.method == "GET" && res.ContentLength != int64(len(got)) {
			t.Errorf("%s: Content-Length of %d bytes is %d", tt.why, len(got), res.ContentLength)
		}
		if string(got) != tt.want {
			t.Errorf("%s: %.200s", tt.why, got)
		}
	}
}

// sendRequest sends a request and returns it as the cluster receives it, with the warnings of the response.
func sendRequest(t *testing.T, s *Router, method, path, body string, header ...string) (*http.Request, []string, error) {
	t.Helper()
	r := httptest.NewRequestWithContext(t.Context(), method, path, strings.NewReader(body))
	r.Header.Set("Accept", asJSON)
	for i := 0; i+1 < len(header); i += 2 {
		r.Header.Set(header[i], header[i+1])
	}
	res, out, err := serveRequest(s, r)
	if out.GetBody != nil { // the cluster has read the body
		var bodyErr error
		if out.Body, bodyErr = out.GetBody(); bodyErr != nil {
			t.Fatal(bodyErr)
		}
	}
	return out, res.Header["Warning"], err
}

// refusalStatus returns the status of a refusal; 0: none; -1: another error.
func refusalStatus(err error) int {
	if r, ok := errors.AsType[*apiproxy.Refusal](err); ok {
		return r.Status
	}
	if err != nil {
		return -1
	}
	return 0
}
