package client_test

import (
	"encoding/json"
	"encoding/pem"
	"errors"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// A kubeServer is a test API server. It records the requests and sends the configured responses. End-to-end tests cover a real API server.
type kubeServer struct {
	*httptest.Server
	path, auth, accept string
	body               map[string]any
	status             int
	answer             string
}

func newKubeServer(t *testing.T) (*kubeServer, *client.KubeAPI) {
	r := &kubeServer{status: 200}
	r.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, q *http.Request) {
		r.path, r.auth, r.accept, r.body = q.URL.Path, q.Header.Get("Authorization"), q.Header.Get("Accept"), nil
		if b, _ := io.ReadAll(q.Body); len(b) > 0 {
			if err := json.Unmarshal(b, &r.body); err != nil {
				t.Errorf("%s: %v", b, err)
			}
		}
		if strings.HasPrefix(r.answer, "https://") {
			http.Redirect(w, q, r.answer, r.status)
			return
		}
		w.WriteHeader(r.status)
		io.WriteString(w, r.answer)
	}))
	t.Cleanup(r.Close)
	s, err := client.NewKubeAPI(r.URL, r.ca(), secret.New("SECRET"), nil)
	if err != nil {
		t.Fatal(err)
	}
	return r, s
}

func (r *kubeServer) ca() []byte {
	return pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: r.Certificate().Raw})
}

func TestCheckAccess(t *testing.T) {
	r, s := newKubeServer(t)
	r.answer = `{"kind":"SelfSubjectAccessReview","status":{"allowed":true,"reason":"RBAC: allowed by x"}}`
	got, err := s.CheckAccess(t.Context(), client.AccessQuestion{Verb: "get", Group: "apps", Resource: "deployments", Subresource: "scale", Name: "web", Namespace: "shop"})
	switch {
	case err != nil:
		t.Error(err)
	case !got.Allowed:
		t.Errorf("got.Allowed is false; got = %+v, %v", got, err)
	case got.Reason != "RBAC: allowed by x":
		t.Errorf("got.Reason = %q, want %q", got.Reason, "RBAC: allowed by x")
	}
	want := map[string]any{"verb": "get", "group": "apps", "resource": "deployments", "subresource": "scale", "name": "web", "namespace": "shop"}
	spec, _ := r.body["spec"].(map[string]any)
	attrs, _ := spec["resourceAttributes"].(map[string]any)
	for k, v := range want {
		if attrs[k] != v {
			t.Errorf("%s is %v, want %v", k, attrs[k], v)
		}
	}
	if r.path != "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews" || r.auth != "Bearer SECRET" {
		t.Errorf("asked %s with %s", r.path, r.auth)
	}
	if _, err := s.CheckAccess(t.Context(), client.AccessQuestion{Verb: "get", Resource: "/metrics"}); err != nil {
		t.Error(err)
	}
	if spec, _ = r.body["spec"].(map[string]any); spec["resourceAttributes"] != nil || spec["nonResourceAttributes"].(map[string]any)["path"] != "/metrics" {
		t.Errorf("%v", spec)
	}
}

func TestFindResource(t *testing.T) {
	r, s := newKubeServer(t)
	r.answer = `{"items":[{"metadata":{"name":"apps"},"versions":[{"resources":[
		{"resource":"deployments","singularResource":"deployment","shortNames":["deploy"],"scope":"Namespaced"}]}]},
		{"metadata":{"name":"x.example"},"versions":[{"resources":[{"resource":"deployments","scope":"Cluster"}]}]}]}`
	for word, want := range map[string]client.KubeResource{
		"deployments": {"apps", "deployments", true}, "deployment": {"apps", "deployments", true}, "Deploy": {"apps", "deployments", true},
		"deployments.apps": {"apps", "deployments", true}, "deployments.x.example": {"x.example", "deployments", false},
	} {
		if got, err := s.FindResource(t.Context(), word); err != nil || got != want {
			t.Errorf("%s: %+v, %v", word, got, err)
		}
	}
	for _, word := range []string{"pods", "deployments.y", "", "deploy.x.example"} {
		if got, err := s.FindResource(t.Context(), word); !errors.Is(err, client.ErrNoResource) {
			t.Errorf("%s: %+v, %v", word, got, err)
		}
	}
	if !strings.Contains(r.accept, "apidiscovery.k8s.io") {
		t.Errorf("asked for %s", r.accept)
	}
}

func TestCountRules(t *testing.T) {
	r, s := newKubeServer(t)
	r.answer = `{"status":{"resourceRules":[{"verbs":["create"],"apiGroups":["authorization.k8s.io"],"resources":["selfsubjectaccessreviews"]},{"verbs":["get"],"apiGroups":["","apps"],"resources":["pods"]}]}}`
	if n, err := s.CountRules(t.Context(), "shop"); err != nil || n != 1 {
		t.Errorf("%d, %v", n, err)
	}
}

// Invalid responses: each gives one sentence, and none shows the token.
func TestKubeAPIErrors(t *testing.T) {
	r, s := newKubeServer(t)
	var elsewhere int
	other := httptest.NewTLSServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere++ }))
	defer other.Close()
	for _, tt := range []struct {
		status       int
		answer, word string
	}{
		{401, `{"kind":"Status","message":"Unauthorized"}`, "401: Unauthorized"},
		{403, "<html>", "403 Forbidden"},
		{200, "<html>", "decode the answer"},
		{200, strings.Repeat(" ", 9<<20), "larger than"},
		{302, other.URL, "302 Found"},
	} {
		r.status, r.answer = tt.status, tt.answer
		_, err := s.Version(t.Context())
		switch {
		case err == nil:
			t.Errorf("no error; %.20s", tt.answer)
		case !strings.Contains(err.Error(), tt.word):
			t.Errorf("err.Error() = %q does not contain %q; %.20s", err.Error(), tt.word, tt.answer)
		case strings.Contains(err.Error(), "SECRET"):
			t.Errorf("err.Error() = %q contains %q; %.20s", err.Error(), "SECRET", tt.answer)
		}
	}
	if elsewhere > 0 {
		t.Error("a redirect was followed")
	}
	stranger, err := client.NewKubeAPI(other.URL, r.ca(), secret.New("SECRET"), nil)
	if err != nil {
		t.Fatal(err)
	}
	if r.Certificate().Equal(other.Certificate()) { // httptest has one certificate for all servers
		stranger, err = client.NewKubeAPI(strings.Replace(other.URL, "127.0.0.1", "localhost", 1), r.ca(), secret.New("SECRET"), nil)
		if err != nil {
			t.Fatal(err)
		}
	}
	if _, err := stranger.Version(t.Context()); err == nil || elsewhere > 0 {
		t.Errorf("a server with another name received a request: %v", err)
	}
	for _, base := range []string{"http://127.0.0.1", "", "k8s.example"} {
		if _, err := client.NewKubeAPI(base, r.ca(), secret.Text{}, nil); err == nil {
			t.Errorf("%q is taken", base)
		}
	}
	if _, err := client.NewKubeAPI("https://k8s.example", []byte("none"), secret.Text{}, nil); err == nil {
		t.Error("a missing certificate authority is accepted")
	}
}

func TestAccessQuestionString(t *testing.T) {
	for want, q := range map[string]client.AccessQuestion{
		"get pods in shop":                       {Verb: "get", Resource: "pods", Namespace: "shop"},
		"get deployments.apps/scale/web in shop": {Verb: "get", Group: "apps", Resource: "deployments", Subresource: "scale", Name: "web", Namespace: "shop"},
		"list nodes in the whole cluster":        {Verb: "list", Resource: "nodes"},
		"get /metrics":                           {Verb: "get", Resource: "/metrics"},
	} {
		if got := q.String(); got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
}
