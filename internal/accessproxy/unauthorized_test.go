package accessproxy_test

import (
	"io"
	"net/http"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/proxytest"
)

// What the client gets when the API server answers 401.
func TestUnauthorized(t *testing.T) {
	const service = "/api/v1/namespaces/shop/services/web/proxy/"
	for _, tt := range []struct {
		why, method, path, body string
		refusals                int64 // answers with 401 before the first other one
		ends                    bool  // the sign-in ends before the first answer
		status                  int
		retryAfter              string
		tokens, arrived         int
	}{
		{"a token that is too old", "GET", "/api/v1/pods", "", 1, false, http.StatusOK, "", 2, 2},
		{"the account is refused", "GET", "/api/v1/pods", "", 9, false, http.StatusServiceUnavailable, "", 2, 2},
		{"a delete without a body", "DELETE", "/api/v1/namespaces/shop/pods/a", "", 1, false, http.StatusOK, "", 2, 2},
		{"a body is sent once", "POST", "/api/v1/namespaces/shop/pods", "{}", 1, false, http.StatusServiceUnavailable, "1", 2, 1},
		{"the sign-in has ended", "GET", "/api/v1/pods", "", 1, true, http.StatusForbidden, "", 1, 1},
		{"the API behind a service", "GET", service, "", 1, false, http.StatusUnauthorized, "", 1, 1},
		{"a service, and the sign-in has ended", "GET", service, "", 1, true, http.StatusForbidden, "", 1, 1},
	} {
		t.Run(tt.why, func(t *testing.T) {
			var f *proxytest.Front
			var answers atomic.Int64
			name := ""
			api := proxytest.StartAPI(t, func(w http.ResponseWriter, _ *http.Request) {
				if answers.Add(1) > tt.refusals {
					io.WriteString(w, "{}")
					return
				}
				if tt.ends {
					f.Signins.Logout(name)
				}
				w.WriteHeader(http.StatusUnauthorized)
			})
			f = proxytest.Start(t, api)
			name = login(f, "", time.Hour).Name
			res, body := proxytest.Do(t, f.Client(t, "127.0.0.2", true), proxytest.Request(t, tt.method, tt.path, tt.body))
			if res.StatusCode != tt.status || res.Header.Get("Retry-After") != tt.retryAfter {
				t.Errorf("%s, Retry-After %q, want %d, %q: %s", res.Status, res.Header.Get("Retry-After"), tt.status, tt.retryAfter, body)
			}
			if n := f.Signins.Issued(name); n != tt.tokens {
				t.Errorf("%d tokens, want %d", n, tt.tokens)
			}
			if n := api.Count(); n != tt.arrived {
				t.Errorf("%d requests arrived, want %d", n, tt.arrived)
			}
		})
	}
}
