package accessproxy_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/proxytest"
)

// PRX-09: the API server stops to accept a token in the middle of a load. One new token replaces it, and no request fails.
func TestPRX09_TokenRefreshUnderLoad(t *testing.T) {
	const workers, each = 8, 250
	var requests atomic.Int64
	var f *proxytest.Front
	api := proxytest.StartAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if requests.Add(1) > workers*each/2 && strings.Contains(r.Header.Get("Authorization"), "-1.c2ln") {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		io.WriteString(w, "{}")
	})
	f = proxytest.Start(t, api)
	name := login(f, "", time.Hour).Name
	var all sync.WaitGroup
	for worker := range workers {
		all.Go(func() {
			client := f.Client(t, "127.0.0.2", worker%2 == 0)
			for range each {
				if res, body := proxytest.Do(t, client, proxytest.Request(t, "GET", "/api/v1/namespaces/shop/pods/web", "")); res.StatusCode != http.StatusOK {
					t.Errorf("%s: %s", res.Status, body)
				}
			}
		})
	}
	all.Wait()
	if n := f.Signins.Issued(name); n != 2 {
		t.Errorf("%d tokens, want 2", n)
	}
}

// PRX-09: what the API server answers when it is busy reaches the client as it is, also to a request with a body. The proxy does
// not repeat it.
func TestPRX09_BusyAnswersPass(t *testing.T) {
	for _, status := range []int{http.StatusTooManyRequests, http.StatusServiceUnavailable, http.StatusGatewayTimeout, http.StatusInternalServerError} {
		const busy = `{"kind":"Status","apiVersion":"v1","status":"Failure","message":"the server is busy"}`
		api := proxytest.StartAPI(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Retry-After", "7")
			w.WriteHeader(status)
			io.WriteString(w, busy)
		})
		f := proxytest.Start(t, api)
		login(f, "", time.Hour)
		for i, method := range []string{"GET", "POST"} {
			body := strings.Repeat("{}", i)
			res, got := proxytest.Do(t, f.Client(t, "127.0.0.2", true), proxytest.Request(t, method, "/api/v1/namespaces/shop/pods", body))
			if res.StatusCode != status || res.Header.Get("Retry-After") != "7" {
				t.Errorf("%s: %s, Retry-After %q, want %d, 7", method, res.Status, res.Header.Get("Retry-After"), status)
			}
			if got != busy {
				t.Errorf("%s, %d: %s", method, status, got)
			}
		}
		if n := api.Count(); n != 2 {
			t.Errorf("%d: %d requests arrived, want 2", status, n)
		}
	}
}

// PRX-01: a response without a body is complete. kubectl asks for the discovery documents that it has with If-None-Match.
func TestPRX01_NoBody(t *testing.T) {
	for _, status := range []int{http.StatusNoContent, http.StatusNotModified} {
		api := proxytest.StartAPI(t, func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("ETag", `"1"`)
			w.WriteHeader(status)
		})
		f := proxytest.Start(t, api)
		login(f, "", time.Hour)
		for name, http2 := range map[string]bool{"HTTP/1.1": false, "HTTP/2": true} {
			res, _ := proxytest.Do(t, f.Client(t, "127.0.0.2", http2), proxytest.Request(t, "GET", "/apis", "", "If-None-Match", `"1"`))
			if res.StatusCode != status || res.Header.Get("ETag") != `"1"` {
				t.Errorf("%s: %s, ETag %q, want %d", name, res.Status, res.Header.Get("ETag"), status)
			}
		}
	}
}
