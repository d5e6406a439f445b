package upstream

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

// serve starts a cluster and returns its client. The credential files are in dir.
func serve(t *testing.T, h http.HandlerFunc, limits Limits) (c *Cluster, dir string) {
	t.Helper()
	srv := httptest.NewUnstartedServer(h)
	srv.EnableHTTP2 = true
	srv.StartTLS()
	t.Cleanup(srv.Close)
	dir = t.TempDir()
	put(t, dir, "ca.crt", string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw})))
	put(t, dir, "token", "one")
	u, err := url.Parse(srv.URL)
	if err != nil {
		t.Fatal(err)
	}
	return see(t, dir, limits, u.Host), dir
}

func see(t *testing.T, dir string, limits Limits, servers ...string) *Cluster {
	c := New(Config{Name: "east", Servers: servers, CAFile: filepath.Join(dir, "ca.crt"), TokenFile: filepath.Join(dir, "token"), Limits: limits, Log: slog.New(slog.DiscardHandler), Now: time.Now})
	t.Cleanup(c.Close)
	return c
}

func put(t *testing.T, dir, name, content string) {
	t.Helper()
	tmp := filepath.Join(dir, "."+name)
	if err := errors.Join(os.WriteFile(tmp, []byte(content), 0o600), os.Rename(tmp, filepath.Join(dir, name))); err != nil {
		t.Fatal(err)
	}
}

func ask(t *testing.T, method, body string) Ask {
	t.Helper()
	r, err := http.NewRequestWithContext(t.Context(), method, "/api/v1/pods?x=%20", nil)
	if err != nil {
		t.Fatal(err)
	}
	if body != "" {
		r.Body, r.ContentLength = io.NopCloser(strings.NewReader(body)), int64(len(body))
	}
	return Ask{Request: r, Read: method == "GET"}
}

func read(t *testing.T, a *Answer) string {
	t.Helper()
	defer a.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		t.Error(err)
	}
	return string(b)
}

func reason(err error) (Reason, bool) {
	f, ok := errors.AsType[*Failure](err)
	if !ok {
		return "", false
	}
	return f.Reason, f.Sent
}

// TestARefusedCredentialIsReadAgain checks that the files are read again after a 401. The request is sent
// once more if they hold another credential and the body is still available.
func TestARefusedCredentialIsReadAgain(t *testing.T) {
	var got atomic.Int64
	var dir string
	c, dir := serve(t, func(w http.ResponseWriter, r *http.Request) {
		got.Add(1)
		if r.Header.Get("Authorization") != "Bearer two" {
			put(t, dir, "token", "two\n") // as the kubelet does, after the adapter read the file
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		b, _ := io.ReadAll(r.Body)
		w.Write(b)
	}, Limits{})
	a, err := c.Do(ask(t, "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	if a.StatusCode != http.StatusOK || got.Load() != 2 {
		t.Errorf("%s after %d", a.Status, got.Load())
	}
	a.Close()

	put(t, dir, "token", "one")
	small := ask(t, "POST", "hello")
	if err := Replayable(small.Request); err != nil {
		t.Fatal(err)
	}
	if a, err = c.Do(small); err != nil {
		t.Fatal(err)
	} else if b := read(t, a); b != "hello" {
		t.Errorf("the second time: %q", b)
	}

	put(t, dir, "token", "one")
	large := ask(t, "POST", strings.Repeat("x", replayed+1))
	if err := Replayable(large.Request); err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(large); err == nil {
		t.Error("a body that is gone was sent again")
	} else if why, sent := reason(err); why != Credential || sent {
		t.Errorf("%v, sent %v: %v", why, sent, err)
	}
}

// TestACredentialThatStaysRefused checks that a refused credential is a failure, except for the 401 of a
// proxied service.
func TestACredentialThatStaysRefused(t *testing.T) {
	var got atomic.Int64
	c, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) {
		got.Add(1)
		w.WriteHeader(http.StatusUnauthorized)
	}, Limits{})
	_, err := c.Do(ask(t, "GET", ""))
	if why, sent := reason(err); why != Credential || sent || got.Load() != 1 {
		t.Errorf("%v, sent %v, %d requests: %v", why, sent, got.Load(), err)
	}
	others := ask(t, "GET", "")
	others.Others = true
	a, err := c.Do(others)
	if err != nil {
		t.Fatal(err)
	}
	defer a.Close()
	if a.StatusCode != http.StatusUnauthorized {
		t.Errorf("a service's own answer: %s", a.Status)
	}
}

// TestWhatIsSentAgain checks the retries: the next address if there was no connection, and after a lost
// connection only if the request is read-only.
func TestWhatIsSentAgain(t *testing.T) {
	var got atomic.Int64
	c, dir := serve(t, func(http.ResponseWriter, *http.Request) {
		got.Add(1)
		panic(http.ErrAbortHandler)
	}, Limits{})
	for method, want := range map[string]int64{"GET": 2, "POST": 1, "DELETE": 1} {
		got.Store(0)
		_, err := c.Do(ask(t, method, ""))
		if why, sent := reason(err); why != Reset || !sent || got.Load() != want {
			t.Errorf("%s: %v, sent %v, %d times: %v", method, why, sent, got.Load(), err)
		}
	}
	good, goodDir := serve(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }, Limits{})
	nobody := "127.0.0.1:1"
	several := see(t, goodDir, Limits{}, nobody, good.Servers[0])
	for range 4 {
		a, err := several.Do(ask(t, "POST", "body"))
		if err != nil {
			t.Fatal(err)
		}
		a.Close()
	}
	none := see(t, dir, Limits{}, nobody)
	_, err := none.Do(ask(t, "POST", "body"))
	if why, sent := reason(err); why != Connect || sent {
		t.Errorf("%v, sent %v: %v", why, sent, err)
	}
}

// TestADeadline checks that the deadline of a request is a failure with its own reason, and reports whether
// the cluster may have received the request.
func TestADeadline(t *testing.T) {
	c, _ := serve(t, func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, Limits{})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	a := ask(t, "POST", "")
	a.Request = a.Request.WithContext(ctx)
	_, err := c.Do(a)
	if why, sent := reason(err); why != Timeout || !sent || !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("%v, sent %v: %v", why, sent, err)
	}
}

// TestLimits checks that a request beyond a limit is refused before it is sent, and that closing a response
// frees its slot.
func TestLimits(t *testing.T) {
	c, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }, Limits{InFlight: 2})
	var open []*Answer
	for range 2 {
		a, err := c.Do(ask(t, "GET", ""))
		if err != nil {
			t.Fatal(err)
		}
		open = append(open, a)
	}
	_, err := c.Do(ask(t, "GET", ""))
	if why, sent := reason(err); why != Limited || sent {
		t.Errorf("%v: %v", why, err)
	}
	open[0].Close()
	open[0].Close() // closing twice frees only one slot
	a, err := c.Do(ask(t, "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	if _, err := c.Do(ask(t, "GET", "")); err == nil {
		t.Error("a third")
	}
	a.Close()
	open[1].Close()
	if n := c.inFlight.Load(); n != 0 {
		t.Errorf("%d in flight", n)
	}

	slow, _ := serve(t, func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "ok") }, Limits{QPS: 0.001, Burst: 3})
	for i := range 5 {
		a, err := slow.Do(ask(t, "GET", ""))
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
		try := func(o outcome) bool {
			done, ok := h.ask(time.Now())
			if ok {
				h.hear(time.Now(), o, errors.New("connection refused"))
				done()
			}
			return ok
		}
		for range 2 {
			try(unreached)
		}
		if h.state == StateUnhealthy {
			t.Error("unhealthy after two strikes")
		}
		try(answered)
		for range strikes {
			if !try(unreached) {
				t.Fatal("not asked")
			}
		}
		if h.state != StateUnhealthy || try(unreached) {
			t.Errorf("after %d strikes: %s", strikes, h.state)
		}
		pauses := []time.Duration{}
		for range 7 {
			began := time.Now()
			for !try(unreached) {
				time.Sleep(100 * time.Millisecond)
			}
			pauses = append(pauses, time.Since(began))
		}
		if pauses[0] > 2*time.Second || pauses[6] < 29*time.Second || pauses[6] > 40*time.Second {
			t.Errorf("pauses %v", pauses)
		}
		time.Sleep(time.Minute)
		first, ok := h.ask(time.Now())
		if !ok {
			t.Fatal("no trial after a minute")
		}
		if _, ok := h.ask(time.Now()); ok {
			t.Error("two trials at a time")
		}
		h.hear(time.Now(), answered, nil)
		first()
		if h.state != StateHealthy || !try(answered) {
			t.Errorf("after an answer: %s", h.state)
		}
		for range 20 {
			try(complained)
		}
		if rate, _ := h.rate(); h.state != StateDegraded || rate > 0.5 {
			t.Errorf("after complaints: %s, %v", h.state, rate)
		}
		time.Sleep(2 * time.Minute)
		try(answered)
		if rate, n := h.rate(); h.state != StateHealthy || rate != 1 || n != 1 {
			t.Errorf("two minutes later: %s, %v of %d", h.state, rate, n)
		}
		since := h.since
		try(noOutcome)
		if h.since != since {
			t.Error("a client that left says nothing of the cluster")
		}
	})
}

// Law 8: a value that holds a token does not print it.
func TestSecretsDoNotPrint(t *testing.T) {
	c, dir := serve(t, func(w http.ResponseWriter, _ *http.Request) {}, Limits{})
	put(t, dir, "token", "canary-token")
	a, err := c.Do(ask(t, "GET", ""))
	if err != nil {
		t.Fatal(err)
	}
	a.Close()
	var out strings.Builder
	slog.New(slog.NewJSONHandler(&out, nil)).Info("x", "token", c.sealed.Load().token)
	if strings.Contains(out.String(), "canary-token") {
		t.Error(out.String())
	}
}
