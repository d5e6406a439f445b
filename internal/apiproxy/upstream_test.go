package apiproxy

import (
	"context"
	"encoding/pem"
	"errors"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"
)

// serveTLS starts a cluster and returns its client. The credential files are in dir.
func serveTLS(t *testing.T, h http.HandlerFunc, limits Limits) (c *Upstream, dir string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	dir = t.TempDir()
	writeFile(t, dir, "ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})))
	writeFile(t, dir, "token", "one")
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return newTestUpstream(t, dir, limits, u.Host), dir
}

func newTestUpstream(t *testing.T, dir string, limits Limits, servers ...string) *Upstream {
	c := NewUpstream(UpstreamConfig{Name: "east", Servers: servers, CAFile: filepath.Join(dir, "ca.crt"), TokenFile: filepath.Join(dir, "token"), Limits: limits, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	t.Cleanup(c.Close)
	return c
}

func writeFile(t *testing.T, dir, name, content string) {
	t.Helper()
	tmp := filepath.Join(dir, "."+name)
	if err := errors.Join(os.WriteFile(tmp, []byte(content), 0o600), os.Rename(tmp, filepath.Join(dir, name))); err != nil {
		t.Fatal(err)
	}
}

func newTestRequest(t *testing.T, method, body string) UpstreamRequest {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "/api/v1/pods?x=%20", nil)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	return UpstreamRequest{Request: r, ReadOnly: method == "GET"}
}

func readBody(t *testing.T, a *UpstreamResponse) string {
	t.Helper()
	defer a.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func errorReason(err error) (CallFailure, bool) {
	f, ok := errors.AsType[*UpstreamError](err)
	if !ok {
		return "", false
	}
	return f.Reason, f.Sent
}

// TestRefusedCredentialIsReloaded checks that the files are read again after a 401. The request is sent
// once more if they hold another credential and the body is still available.
func TestRefusedCredentialIsReloaded(t *testing.T) {
	var got atomic.Int64
	var dir string
	c, dir := serveTLS(t, func(w http.ResponseWriter, r *http.Request) {
		got.Add(1)
		if r.Header.Get("Authorization") != "Bearer two" {
			writeFile(t, dir, "token", "two\n") // as the kubelet does, after the adapter read the file
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
	}, Limits{})
	a, err := c.Do(newTestRequest(t, "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	if a.StatusCode != http.StatusOK || got.Load() != 2 {
		t.Errorf("%s after %d", a.Status, got.Load())
	}
	a.Close()

	writeFile(t, dir, "token", "one")
	small := newTestRequest(t, "POST", "hello")
	if err := bufferBody(small.Request); err != nil {
		t.Fatal(err)
	}
	if a, err = c.Do(small); err != nil {
		t.Fatal(err)
	} else if b := readBody(t, a); b != "hello" {
		t.Errorf("the second time: %q", b)
	}

	writeFile(t, dir, "token", "one")
	large := newTestRequest(t, "POST", strings.Repeat("x", maxReplayedBody+1))
	if err := bufferBody(large.Request); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(large); err == nil {
		t.Error("a consumed body was sent again")
	} else if why, sent := errorReason(err); why != FailedCredential || sent {
		t.Errorf("%v, sent %v: %v", why, sent, err)
	}
}

// TestCredentialStaysRefused checks that a refused credential is a failure, except for the 401 of a
// proxied service.
func TestCredentialStaysRefused(t *testing.T) {
	var got atomic.Int64
	c, _ := serveTLS(t, func(w http.ResponseWriter, _ *http.Request) {
		got.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	}, Limits{})
	_, err := c.Do(newTestRequest(t, "GET", ""))
	switch why, sent := errorReason(err); {
	case why != FailedCredential:
		t.Errorf("why = %q, want %q", why, FailedCredential)
	case sent:
		t.Errorf("sent is true; %v, sent = %v, %d, %v", why, sent, got.Load(), err)
	case got.Load() != 1:
		t.Errorf("got.Load() = %v, want 1", got.Load())
	}
	others := newTestRequest(t, "GET", "")
	others.Proxied = true
	a, err := c.Do(others)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.StatusCode != http.StatusUnauthorized {
		t.Errorf("a service's own answer: %s", a.Status)
	}
}

// TestReplay checks the retries: the next address if there was no connection, and after a lost
// connection only if the request is read-only.
func TestReplay(t *testing.T) {
	var got atomic.Int64
	c, dir := serveTLS(t, func(http.ResponseWriter, *http.Request) {
		got.Add(1)
		panic(http.ErrAbortHandler)
	}, Limits{})
	for method, want := range map[string]int64{"GET": 2, "POST": 1, "DELETE": 1} {
		got.Store(0)
		_, err := c.Do(newTestRequest(t, method, ""))
		switch why, sent := errorReason(err); {
		case why != FailedReset:
			t.Errorf("why = %q, want %q; method = %s", why, FailedReset, method)
		case !sent:
			t.Errorf("sent is false; method = %s, %v, sent = %v, %d, %v", method, why, sent, got.Load(), err)
		case got.Load() != want:
			t.Errorf("got.Load() = %v, want %v; method = %s", got.Load(), want, method)
		}
	}
	good, goodDir := serveTLS(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }, Limits{})
	closedAddress := "127.0.0.1:1"
	several := newTestUpstream(t, goodDir, Limits{}, closedAddress, good.Servers[0])
	for range 4 {
		a, err := several.Do(newTestRequest(t, "POST", "body"))
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
	none := newTestUpstream(t, dir, Limits{}, closedAddress)
	_, err := none.Do(newTestRequest(t, "POST", "body"))
	if why, sent := errorReason(err); why != FailedConnect || sent {
		t.Errorf("%v, sent %v: %v", why, sent, err)
	}
}

// TestDeadline checks that the deadline of a request is a failure with its own reason, and reports whether
// the cluster may have received the request.
func TestDeadline(t *testing.T) {
	c, _ := serveTLS(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Limits{})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	a := newTestRequest(t, "POST", "")
	a.Request = a.Request.WithContext(ctx)
	_, err := c.Do(a)
	switch why, sent := errorReason(err); {
	case why != FailedTimeout:
		t.Errorf("why = %q, want %q", why, FailedTimeout)
	case !sent:
		t.Errorf("sent is false; %v, sent = %v, %v", why, sent, err)
	case !errors.Is(err, context.DeadlineExceeded):
		t.Errorf("%v, want %v", err, context.DeadlineExceeded)
	}
}

// TestLimits checks that a request beyond a limit is refused before it is sent, and that closing a response
// frees its slot.
func TestLimits(t *testing.T) {
	c, _ := serveTLS(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }, Limits{InFlight: 2})
	var open []*UpstreamResponse
	for range 2 {
		a, err := c.Do(newTestRequest(t, "GET", ""))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, a)
	}
	_, err := c.Do(newTestRequest(t, "GET", ""))
	if why, sent := errorReason(err); why != FailedLimit || sent {
		t.Errorf("%v: %v", why, err)
	}
	open[0].Close()
	open[0].Close() // closing twice frees only one slot
	a, err := c.Do(newTestRequest(t, "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(newTestRequest(t, "GET", "")); err == nil {
		t.Error("a third")
	}
	a.Close()
	open[1].Close()
	if n := c.inFlight.Load(); n != 0 {
		t.Errorf("%d in flight", n)
	}

	slow, _ := serveTLS(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }, Limits{QPS: 0.001, Burst: 3})
	for i := range 5 {
		a, err := slow.Do(newTestRequest(t, "GET", ""))
		if i < 3 && err != nil || i >= 3 && err == nil {
			t.Errorf("request %d: %v", i, err)
		}
		if err == nil {
			a.Close()
		}
	}
}

// TestHealth checks the states, and that an unhealthy cluster gets one trial at a time, after a growing
// pause.
func TestHealth(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		h := &health{since: time.Now()}
		try := func(o attempt) bool {
			done, ok := h.admit(time.Now())
			if ok {
				h.record(time.Now(), o, errors.New("connection refused"))
				done()
			}
			return ok
		}
		for range 2 {
			try(attemptUnreachable)
		}
		if h.state == StateUnhealthy {
			t.Error("unhealthy after two failures")
		}
		try(attemptSucceeded)
		for range defaultFailures {
			if !try(attemptUnreachable) {
				t.Fatal("not asked")
			}
		}
		if h.state != StateUnhealthy || try(attemptUnreachable) {
			t.Errorf("after %d strikes: %s", defaultFailures, h.state)
		}
		pauses := []time.Duration{}
		for range 7 {
			began := time.Now()
			for !try(attemptUnreachable) {
				time.Sleep(100 * time.Millisecond)
			}
			pauses = append(pauses, time.Since(began))
		}
		switch {
		case pauses[0] > 2*time.Second:
			t.Errorf("pauses: pauses[0] = %v, want at most %v", pauses[0], 2*time.Second)
		case pauses[6] < 29*time.Second:
			t.Errorf("pauses: pauses[6] = %v, want at least %v", pauses[6], 29*time.Second)
		case pauses[6] > 40*time.Second:
			t.Errorf("pauses: pauses[6] = %v, want at most %v", pauses[6], 40*time.Second)
		}
		time.Sleep(time.Minute)
		first, ok := h.admit(time.Now())
		if !ok {
			t.Fatal("no trial after a minute")
		}
		if _, ok := h.admit(time.Now()); ok {
			t.Error("two trials at a time")
		}
		h.record(time.Now(), attemptSucceeded, nil)
		first()
		if h.state != StateHealthy || !try(attemptSucceeded) {
			t.Errorf("after an answer: %s", h.state)
		}
		for range 20 {
			try(attemptServerError)
		}
		if rate, _ := h.successRate(); h.state != StateDegraded || rate > 0.5 {
			t.Errorf("after complaints: %s, %v", h.state, rate)
		}
		time.Sleep(2 * time.Minute)
		try(attemptSucceeded)
		switch rate, n := h.successRate(); {
		case h.state != StateHealthy:
			t.Errorf("two minutes later: h.state = %q, want %q", h.state, StateHealthy)
		case rate != 1:
			t.Errorf("two minutes later: rate = %v, want 1", rate)
		case n != 1:
			t.Errorf("two minutes later: n = %v, want 1", n)
		}
		since := h.since
		try(attemptCanceled)
		if h.since != since {
			t.Error("a disconnected client counts as a failure of the cluster")
		}
	})
}

// Law 8: a value that holds a token does not print it.
func TestSecretsDoNotPrint(t *testing.T) {
	c, dir := serveTLS(t, func(w http.ResponseWriter, _ *http.Request) {}, Limits{})
	writeFile(t, dir, "token", "canary-token")
	a, err := c.Do(newTestRequest(t, "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	var out strings.Builder
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "token", c.current.Load().token)
	if strings.Contains(out.String(), "canary-token") {
		t.Error(out.String())
	}
}
