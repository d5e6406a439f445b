package forge

import (
	"context"
	"io"
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-github/v89/github"

	"github.com/tailplane/tailplane/testkit/forgetest"
)

// A response that a library would read as empty is an error.
func TestShapes(t *testing.T) {
	for body, want := range map[string][2]bool{ // accepted by object("a", "b"), accepted by array
		"": {}, " ": {}, "null": {}, "1": {}, `"x"`: {}, "{}": {}, `{"a":1}`: {}, `{"a":1,"b":null}`: {}, "[null]": {}, `[{},null]`: {},
		`{"a":0,"b":[]}`: {true, false}, `{"a":"","b":{},"c":null}`: {true, false}, "[]": {false, true}, "[{}]": {false, true}, " [1]": {false, true},
	} {
		if got := [2]bool{wantObject("a", "b")([]byte(body)) == "", wantArray([]byte(body)) == ""}; got != want {
			t.Errorf("%q: %v, want %v", body, got, want)
		}
	}
}

// serveAny starts a server that records the requested paths and answers each request with the same
// body.
func serveAny(t *testing.T, body string) (address string, requested func() []string) {
	t.Helper()
	var mu sync.Mutex
	var all []string
	s := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		all = append(all, r.Method+" "+r.RequestURI)
		mu.Unlock()
		w.Header().Set("Content-Type", "application/json")
		io.WriteString(w, body)
	}))
	t.Cleanup(s.Close)
	return s.URL, func() []string { mu.Lock(); defer mu.Unlock(); return all }
}

// The libraries do not escape all names, but this package does. It does not send a request whose
// path would lead elsewhere.
func TestNamesInPaths(t *testing.T) {
	address, requested := serveAny(t, `{}`)
	g, err := NewGitHub(Config{URL: address, APIURL: address + "/api/v3", ScopeURL: address + "/acme/config",
		Credential: map[string][]byte{"github_token": []byte("ghp_x")}})
	if err != nil {
		t.Fatal(err)
	}
	ctx := testContext(t)
	k := g.call(ctx, "write a file", g.scope.root(), nil)
	_, _, err = k.github().Repositories.CreateFile(ctx, "acme", "config", escaped("fleet/a?b#c%2f..:d e.yaml"), &github.RepositoryContentFileOptions{})
	if err = k.outcome(err); err != nil {
		t.Error(err)
	}
	if want := "PUT /api/v3/repos/acme/config/contents/fleet/a%3Fb%23c%252f..:d%20e.yaml"; len(requested()) != 1 || requested()[0] != want {
		t.Errorf("requested %q, want %q", requested(), want)
	}
	for _, repository := range []string{"other", "config2", "config/../other", "config?x=/", "..", ""} {
		k := g.call(ctx, "read", g.scope.root(), nil)
		_, _, err := k.github().Repositories.Get(ctx, "acme", repository)
		err = k.outcome(err)
		if repository == "config?x=/" { // the repository config with a query
			continue
		}
		if ClassOf(err) != Invalid {
			t.Errorf("%q: %v", repository, err)
		}
	}
	for _, a := range requested() {
		if !strings.HasPrefix(a[strings.Index(a, " ")+1:], "/api/v3/repos/acme/config") || strings.Contains(a, "config2") {
			t.Errorf("requested %s", a)
		}
	}
}

// A file name with characters that are special in URLs is written and read unchanged.
func TestGitLabOddFile(t *testing.T) {
	w, ctx := newGitLabChangeEnv(t), testContext(t)
	const odd = "fleet/a?b#c%2f..:d e.yaml"
	w.Push(configProject, "main", "carol", "odd", map[string]*string{odd: new("x\n")})
	if f, err := w.client.ReadFile(ctx, "main", odd); err != nil || string(f.Content) != "x\n" {
		t.Errorf("%q, %v", f.Content, err)
	}
}

// The API may have a base URL without the suffix that the library expects.
func TestGitLabAPIElsewhere(t *testing.T) {
	address, requested := serveAny(t, `{"version":"18.0.0"}`)
	for _, api := range []string{"/gitlab-api", "/gitlab/api/v4", "", "/api/v4/"} {
		c, err := NewGitLab(Config{URL: "https://gitlab.example.com", APIURL: address + api, Credential: map[string][]byte{"access_token": []byte("glpat-x")}})
		if err != nil {
			t.Fatal(err)
		}
		if version, err := c.Version(testContext(t)); err != nil || version != "18.0.0" {
			t.Errorf("%s: %q, %v", api, version, err)
		}
		all := requested()
		if want := "GET " + strings.TrimRight(api, "/") + "/metadata"; all[len(all)-1] != want {
			t.Errorf("requested %q, want %q", all[len(all)-1], want)
		}
	}
}

// If a library cannot send a request or cannot parse a response, its own error text is not used.
func TestErrorsOfLibraries(t *testing.T) {
	address, _ := serveAny(t, `{"id":"canary"}`)
	g, err := NewGitHub(Config{URL: address, APIURL: address + "/api/v3", ScopeURL: address + "/acme/config",
		Credential: map[string][]byte{"github_token": []byte("ghp_canary")}})
	if err != nil {
		t.Fatal(err)
	}
	_, err = g.repositoryInfo(testContext(t), "read")
	switch {
	case ClassOf(err) != Unavailable:
		t.Errorf("an answer that cannot be: ClassOf(err) != Unavailable; %v", err)
	case strings.Contains(err.Error(), "canary"):
		t.Errorf("an answer that cannot be: err.Error() = %q contains %q", err.Error(), "canary")
	case strings.Contains(err.Error(), address):
		t.Errorf("an answer that cannot be: err.Error() = %q contains %q", err.Error(), address)
	}
	ctx, cancel := context.WithCancel(testContext(t))
	cancel()
	if _, err := g.repositoryInfo(ctx, "read"); err == nil || err.Error() != "read: context canceled" {
		t.Errorf("cancelled: %v", err)
	}
	w := newGitLabEnv(t)
	w.Fault(func(*http.Request) *forgetest.Fault {
		return &forgetest.Fault{Status: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: `{"version":["canary"]}`}
	})
	switch _, err := w.client.Version(testContext(t)); {
	case ClassOf(err) != Unavailable:
		t.Errorf("an answer of GitLab's that cannot be: ClassOf(err) != Unavailable; %v", err)
	case strings.Contains(err.Error(), "canary"):
		t.Errorf("an answer of GitLab's that cannot be: err.Error() = %q contains %q", err.Error(), "canary")
	case strings.Contains(err.Error(), w.URL):
		t.Errorf("an answer of GitLab's that cannot be: err.Error() = %q contains %q", err.Error(), w.URL)
	}
}
