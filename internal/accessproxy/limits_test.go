package accessproxy_test

import (
	"io"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/testkit/proxytest"
)

// Law 4: a device that uses all that it may use is refused, and another device is not. An end gives the place free again.
func TestLimits(t *testing.T) {
	release, arrived := make(chan struct{}), make(chan struct{}, 5)
	api := proxytest.StartAPI(t, func(w http.ResponseWriter, r *http.Request) {
		if r.URL.Path == "/version" {
			io.WriteString(w, "{}")
			return
		}
		arrived <- struct{}{}
		select {
		case <-release:
		case <-r.Context().Done():
		}
	})
	f := proxytest.Start(t, api, func(p *accessproxy.Proxy) { p.Limits = accessproxy.Limits{Requests: 2, Streams: 3} })
	login(f, "", time.Hour)
	f.Signins.Login(proxytest.Person("bob@example.com", "bob-laptop", proxytest.ViewRule), "", time.Hour)
	alice, bob := f.Client(t, "127.0.0.2", true), f.Client(t, "127.0.0.3", true)
	const list, watch = "/api/v1/pods", "/api/v1/pods?watch=1"
	var open sync.WaitGroup
	for _, path := range []string{list, list, watch, watch, watch} {
		open.Go(func() { proxytest.Do(t, alice, proxytest.Request(t, "GET", path, "")) })
		<-arrived
	}
	for _, tt := range []struct {
		why, path  string
		client     *http.Client
		status     int
		retryAfter string
		sentence   string
	}{
		{"a third request", "/version", alice, http.StatusTooManyRequests, "1", "2 requests at the same time"},
		{"a fourth stream", watch, alice, http.StatusTooManyRequests, "", "3 open streams"},
		{"another device", "/version", bob, http.StatusOK, "", ""},
	} {
		res, body := proxytest.Do(t, tt.client, proxytest.Request(t, "GET", tt.path, ""))
		if res.StatusCode != tt.status || res.Header.Get("Retry-After") != tt.retryAfter {
			t.Errorf("%s: %s, Retry-After %q, want %d, %q", tt.why, res.Status, res.Header.Get("Retry-After"), tt.status, tt.retryAfter)
		}
		if !strings.Contains(body, tt.sentence) {
			t.Errorf("%s: %s", tt.why, body)
		}
	}
	close(release)
	open.Wait()
	if res, body := proxytest.Do(t, alice, proxytest.Request(t, "GET", "/version", "")); res.StatusCode != http.StatusOK {
		t.Errorf("after the end: %s: %s", res.Status, body)
	}
}

// A device has a limited number of connections. Those of another device are not affected.
func TestConnectionLimit(t *testing.T) {
	api := proxytest.StartAPI(t, nil)
	f := proxytest.Start(t, api, func(p *accessproxy.Proxy) { p.Limits = accessproxy.Limits{Connections: 2} })
	login(f, "", time.Hour)
	f.Signins.Login(proxytest.Person("bob@example.com", "bob-laptop", proxytest.ViewRule), "", time.Hour)
	get := func(from string) error {
		res, err := f.Client(t, from, false).Do(proxytest.Request(t, "GET", "/version", "")) // each client has its own connection
		if err != nil {
			return err
		}
		defer res.Body.Close()
		_, err = io.Copy(io.Discard, res.Body)
		return err
	}
	for i, from := range []string{"127.0.0.2", "127.0.0.2", "127.0.0.3"} {
		if err := get(from); err != nil {
			t.Errorf("connection %d, from %s: %v", i, from, err)
		}
	}
	if err := get("127.0.0.2"); err == nil {
		t.Error("a third connection of a device was served")
	}
}
