package origin_test

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"testing"

	"github.com/tailplane/tailplane/internal/util/origin"
)

func TestHost(t *testing.T) {
	for host, want := range map[string]string{
		"tka.tiny.ts.net": "tka.tiny.ts.net", "TKA.Tiny.ts.net.:443": "tka.tiny.ts.net", "127.0.0.1:9006": "127.0.0.1", "[::1]:80": "::1", "[::1]": "::1",
		"[0:0::1]:80": "::1", "::1": "::1", "evil.example": "evil.example", "": "", ":80": "",
		"[tka]": "", "[tka]:443": "", "[127.0.0.1]": "", "[::1": "", "::1]": "", "[[::1]]": "", "[::1]x": "", "[fe80::1%lo]": "", "alice@tka": "", "tka:1@": "",
	} {
		if got := origin.Host(&http.Request{Host: host}); got != want {
			t.Errorf("%q: %q, want %q", host, got, want)
		}
	}
	for target, want := range map[string]string{"/x": "tka", "//evil.example/x": "tka", "*": "tka", "http://tka/x": "", "http:///x": "", "http://a@tka/x": ""} {
		u, err := url.ParseRequestURI(target)
		if err != nil {
			t.Fatal(err)
		}
		if got := origin.Host(&http.Request{Host: "tka", URL: u}); got != want {
			t.Errorf("target %q: %q, want %q", target, got, want)
		}
	}
	for _, tt := range []struct {
		also []string
		want string
	}{{nil, "tka"}, {[]string{"tka"}, "tka"}, {[]string{"evil.example"}, ""}, {[]string{""}, ""}, {[]string{"tka", "tka"}, ""}} {
		if got := origin.Host(&http.Request{Host: "tka", Header: http.Header{"Host": tt.also}}); got != tt.want {
			t.Errorf("Host of HTTP/2 %q: %q, want %q", tt.also, got, tt.want)
		}
	}
}

func TestIsOwnPort(t *testing.T) {
	for _, tt := range []struct {
		why, host string
		others    []string
		want      bool
	}{
		{"no port", "tka", nil, true},
		{"the listener's port", "tka:6443", nil, true},
		{"another port", "tka:1", nil, false},
		{"a port that the server allows", "tka:443", []string{"443"}, true},
		{"a port that the server does not allow", "tka:444", []string{"443"}, false},
		{"an address", "[::1]:1", nil, false},
	} {
		r := httptest.NewRequest("GET", "/", nil)
		r.Host = tt.host
		if !origin.IsOwnPort(r, tt.others...) {
			t.Errorf("%s: refused although the listener is unknown", tt.why)
		}
		r = r.WithContext(context.WithValue(r.Context(), http.LocalAddrContextKey, &net.TCPAddr{IP: net.IPv4(127, 0, 0, 1), Port: 6443}))
		if got := origin.IsOwnPort(r, tt.others...); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.why, got, tt.want)
		}
	}
}

func TestIsClusterHost(t *testing.T) {
	for host, want := range map[string]bool{
		"10.0.0.1": true, "::1": true, "localhost": true, "tailplane.tailplane.svc": true, "a.b.svc.cluster.local": true,
		"": false, "evil.example": false, "svc": false, "localhost.evil.example": false, "a.svc.evil.example": false,
	} {
		if got := origin.IsClusterHost(host); got != want {
			t.Errorf("%q: %v, want %v", host, got, want)
		}
	}
}

func TestIsCrossSite(t *testing.T) {
	for _, tt := range []struct {
		why, method string
		header      http.Header
		want        bool
	}{
		{"no browser", "POST", nil, false},
		{"the server's own page", "POST", http.Header{"Sec-Fetch-Site": {"same-origin"}, "Origin": {"https://tka.example"}}, false},
		{"an address that a person typed", "GET", http.Header{"Sec-Fetch-Site": {"none"}}, false},
		{"an older browser on the own page", "POST", http.Header{"Origin": {"https://tka.example"}}, false},
		{"another site reads", "GET", http.Header{"Sec-Fetch-Site": {"cross-site"}}, true},
		{"another host of the site reads", "GET", http.Header{"Sec-Fetch-Site": {"same-site"}}, true},
		{"another site writes", "POST", http.Header{"Origin": {"https://evil.example"}}, true},
		{"another site reads, in an older browser", "GET", http.Header{"Origin": {"https://evil.example"}}, true},
		{"a sandboxed page", "GET", http.Header{"Origin": {"null"}}, true},
		{"two origins", "GET", http.Header{"Origin": {"https://tka.example", "https://evil.example"}}, true},
		{"another port", "POST", http.Header{"Origin": {"https://tka.example:8443"}}, true},
	} {
		r := httptest.NewRequest(tt.method, "/", nil)
		r.Host, r.Header = "tka.example", tt.header
		if got := origin.IsCrossSite(r); got != tt.want {
			t.Errorf("%s: %v, want %v", tt.why, got, tt.want)
		}
	}
}
