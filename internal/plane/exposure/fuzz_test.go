package exposure

import (
	"bufio"
	"context"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/identity"
)

// recordingTransport is an upstream that stores the last request.
type recordingTransport struct{ last *http.Request }

func (k *recordingTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	k.last = r
	return &http.Response{StatusCode: http.StatusOK, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Header: http.Header{}, Body: io.NopCloser(strings.NewReader("shown")), Request: r}, nil
}

// FuzzRequest sends raw request heads to the proxy behind the server. Whatever they contain, only the configured upstream receives
// requests. It receives the identity that the server knows, once, and no other. A read never reaches its administration.
func FuzzRequest(f *testing.F) {
	for _, s := range [][2]string{
		{"GET /", "X-WEBAUTH-USER: root"}, {"GET /a", "Connection: X-WEBAUTH-USER\r\nX-Webauth-Role: Admin"}, {"POST /-/quit", "x_webauth_user: root"},
		{"PUT /prometheus/-/reload", "Forwarded: for=1.2.3.4"}, {"POST /api/v1/admin/tsdb/snapshot", "Host: evil"}, {"GET http://evil.example/x", "Upgrade: h2c\r\nConnection: Upgrade"},
		{"GET //evil.example/x", "Authorization: Basic eDp4"}, {"GET /%2e%2e/-/quit", "Trailer: X-Webauth-User\r\nTransfer-Encoding: chunked"}, {"OPTIONS *", "Origin: null"},
	} {
		f.Add(s[0], s[1])
	}
	up := &recordingTransport{}
	u := Upstream{Name: "grafana", URL: "http://grafana.monitoring.svc:3000/below", Access: AccessObserve, UserHeader: "X-WEBAUTH-USER", RoleHeader: "X-WEBAUTH-ROLE",
		Transport: up, Log: slog.New(slog.DiscardHandler), Now: time.Now}
	p := newProxy(u)
	permit, err := access.DecidePlane(viewer, access.ObserveRead, policy, time.Now())
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, line, head string) {
		if len(head) > 16<<10 || len(line) > 4<<10 {
			return
		}
		r, err := http.ReadRequest(bufio.NewReader(strings.NewReader(line + " HTTP/1.1\r\nHost: grafana\r\n" + head + "\r\n\r\n")))
		if err != nil || r.URL.RawPath != "" || !strings.HasPrefix(r.URL.Path, "/") { // the server refuses these
			return
		}
		up.last = nil
		p.serve(httptest.NewRecorder(), r.WithContext(context.WithoutCancel(t.Context())), permit, access.ObserveRead)
		out := up.last
		if out == nil {
			return
		}
		switch {
		case out.URL.Scheme != "http":
			t.Errorf("out.URL.Scheme = %q, want %q; line = %q", out.URL.Scheme, "http", line)
		case out.URL.Host != "grafana.monitoring.svc:3000":
			t.Errorf("out.URL.Host = %q, want %q; line = %q", out.URL.Host, "grafana.monitoring.svc:3000", line)
		case out.Host != "":
			t.Errorf("out.Host = %q, want none; line = %q", out.Host, line)
		case !strings.HasPrefix(out.URL.Path, "/below/"):
			t.Errorf("out.URL.Path = %q does not start with %q; line = %q", out.URL.Path, "/below/", line)
		}
		switch path := strings.ToLower(out.URL.Path); {
		case strings.HasSuffix(path, "/-/quit"):
			t.Errorf("path = %q ends with %q; line = %q", path, "/-/quit", line)
		case strings.HasSuffix(path, "/-/reload"):
			t.Errorf("path = %q ends with %q; line = %q", path, "/-/reload", line)
		case strings.Contains(path, "/api/v1/admin/"):
			t.Errorf("path = %q contains %q; line = %q", path, "/api/v1/admin/", line)
		}
		for name, values := range out.Header {
			switch {
			case name == "X-Webauth-User":
				if !slices.Equal(values, []string{"vic@example.com"}) {
					t.Errorf("%q: the user is %q", head, values)
				}
			case name == "X-Webauth-Role":
				if !slices.Equal(values, []string{"Viewer"}) {
					t.Errorf("%q: the role is %q", head, values)
				}
			case identity.IsIdentityHeader(name), name == "Authorization", name == "Upgrade" && !strings.EqualFold(values[0], "websocket"), !headerPattern.MatchString(name):
				t.Errorf("%q: the upstream gets %s: %q", head, name, values)
			case name == "Origin" && !slices.Equal(values, []string{"http://grafana.monitoring.svc:3000"}):
				t.Errorf("%q: the origin is %q", head, values)
			}
		}
		switch {
		case len(out.Header["X-Webauth-User"]) != 1:
			t.Errorf(`len(out.Header["X-Webauth-User"]) = %v, want 1; head = %q`, len(out.Header["X-Webauth-User"]), head)
		case len(out.Header["X-Webauth-Role"]) != 1:
			t.Errorf(`len(out.Header["X-Webauth-Role"]) = %v, want 1; head = %q`, len(out.Header["X-Webauth-Role"]), head)
		case out.Trailer != nil:
			t.Errorf("out.Trailer = %v, want nil; head = %q", out.Trailer, head)
		}
	})
}
