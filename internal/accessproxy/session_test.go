package accessproxy_test

import (
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/signin"
)

func request(target string, authorization ...string) *http.Request {
	r := httptest.NewRequest("GET", target, nil)
	if len(authorization) > 0 {
		r.Header["Authorization"] = authorization
	}
	return r
}

// The session of a request, and the path behind it.
func TestReadSession(t *testing.T) {
	for _, tt := range []struct {
		why, target   string
		authorization []string
		session, path string // path "": refused
	}{
		{"the default session", "/api", []string{"Bearer session.default"}, "", "/api"},
		{"a session in the token only, as kubectl proxy sends it", "/api", []string{"Bearer session.deploy"}, "deploy", "/api"},
		{"a session in both", "/s/deploy/api/v1/pods", []string{"Bearer session.deploy"}, "deploy", "/api/v1/pods"},
		{"the scheme has no case", "/api", []string{"bEARER  session.default"}, "", "/api"},
		{"a session without a path", "/s/deploy", []string{"Bearer session.deploy"}, "deploy", "/"},
		{"the path stays escaped", "/s/deploy/a%20b%2Fc", []string{"Bearer session.deploy"}, "deploy", "/a%20b%2Fc"},
		{"another prefix is a path", "/S/deploy/api", []string{"Bearer session.deploy"}, "deploy", "/S/deploy/api"},
		{"two names", "/s/deploy/api", []string{"Bearer session.default"}, "", ""},
		{"the default session has no name in a path", "/s/default/api", []string{"Bearer session.default"}, "", ""},
		{"an empty name in the path", "/s//api", []string{"Bearer session.default"}, "", ""},
		{"an empty name in the token", "/api", []string{"Bearer session."}, "", ""},
		{"an escaped name", "/s/%64eploy/api", []string{"Bearer session.deploy"}, "", ""},
		{"upper case", "/api", []string{"Bearer session.Deploy"}, "", ""},
		{"a reserved name", "/api", []string{"Bearer session.req-1"}, "", ""},
		{"no token", "/api", nil, "", ""},
		{"two tokens", "/api", []string{"Bearer session.default", "Bearer session.default"}, "", ""},
		{"another token", "/api", []string{"Bearer eyJ"}, "", ""},
		{"another scheme", "/api", []string{"Basic session.default"}, "", ""},
		{"no scheme", "/api", []string{"session.default"}, "", ""},
	} {
		session, path, err := accessproxy.ReadSession(request(tt.target, tt.authorization...))
		if refused := err != nil; refused != (tt.path == "") {
			t.Errorf("%s: %v", tt.why, err)
			continue
		}
		if err == nil && (string(session) != tt.session || path != tt.path) {
			t.Errorf("%s: session %q, path %q, want %q, %q", tt.why, session, path, tt.session, tt.path)
		}
	}
}

// A path and a token never give another session than the one that the token names, and the rest of the path is a suffix
// of the path.
func FuzzReadSession(f *testing.F) {
	for _, path := range []string{"/api", "/s/deploy/api", "/s/deploy", "/s//x", "/s/a%2fb", "//s/a", "/s/a/../b", "/%73/a/b", "/s/a;b/c", "/s/a%2f\""} {
		f.Add(path, "deploy")
		f.Add(path, "default")
	}
	f.Fuzz(func(t *testing.T, path, name string) {
		u, err := url.ParseRequestURI(path)
		if err != nil || !strings.HasPrefix(path, "/") || u.Host != "" {
			return
		}
		r := &http.Request{URL: u, RequestURI: path, Header: http.Header{"Authorization": {"Bearer session." + name}}}
		session, rest, err := accessproxy.ReadSession(r)
		if err != nil {
			return
		}
		want, parseErr := signin.ParseSession(strings.TrimPrefix(name, "default"))
		if name == "default" {
			want, parseErr = "", nil
		}
		if parseErr == nil && session != want {
			t.Fatalf("%q with %q: the session %q, want %q", path, name, session, want)
		}
		if !strings.HasPrefix(rest, "/") || !strings.HasSuffix(u.EscapedPath()+"/", rest) && !strings.HasSuffix(u.EscapedPath(), rest) {
			t.Fatalf("%q: the rest %q is no end of the path", path, rest)
		}
		if prefix := strings.TrimSuffix(u.EscapedPath(), rest); prefix != "" && prefix != "/s/"+string(session) {
			t.Fatalf("%q: %q was removed, want the session %q", path, prefix, session)
		}
	})
}

// A refusal of these paths is plain text, because kubectl hides the sentence of a JSON one.
func TestIsDiscovery(t *testing.T) {
	for path, want := range map[string]bool{
		"/api": true, "/api/": true, "/api/v1": true, "/apis": true, "/apis/apps": true, "/apis/apps/v1": true, "/version": true, "/version/": true, "/openapi/v3": true,
		"/openapi/v3/apis/apps/v1": true, "/openapi/v2?timeout=32s": true, "/s/deploy/api": true, "/s/deploy/apis/apps/v1": true, "/s/deploy/version": true,
		"/api/v1/pods": false, "/apis/apps/v1/deployments": false, "/healthz": false, "/": false, "/s/deploy": false, "/s/deploy/api/v1/pods": false, "/apix": false, "/s/api/v1/pods": false,
	} {
		if got := accessproxy.IsDiscovery(path); got != want {
			t.Errorf("%s: %v, want %v", path, got, want)
		}
	}
}

func TestCheckSpelling(t *testing.T) {
	for _, tt := range []struct {
		uri  string
		good bool
	}{
		{"/api/v1/pods?a=b&c=%20", true}, {"/a%2Fb", true}, {"/a%2fb", true}, {"/a|b", true}, {"/é", true}, {"/a?x={y}|", true},
		{"/a%2Fb|c", false}, {"/%2e\"", false}, {"/é%20", false}, {"/a?b c", false}, {"/a?b#c", false}, {"/a?b\tc", false}, {"/a?\x7f", false},
	} {
		u, err := url.ParseRequestURI(tt.uri)
		if err != nil {
			continue // net/http refuses it
		}
		if err := accessproxy.CheckSpelling(&http.Request{URL: u, RequestURI: tt.uri}); (err == nil) != tt.good {
			t.Errorf("%q: %v, want good %v", tt.uri, err, tt.good)
		}
	}
	if err := accessproxy.CheckSpelling(&http.Request{URL: &url.URL{Path: "/"}, RequestURI: "/", Trailer: http.Header{"X-A": nil}}); err == nil {
		t.Error("a trailer is accepted")
	}
}
