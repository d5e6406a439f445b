package apiproxy

import (
	"context"
	"crypto/tls"
	"io"
	"log/slog"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"
)

// TestSendRequiresAudit checks that no cluster receives a request that must be recorded and cannot be, even if the
// handler does not call Routed.
func TestSendRequiresAudit(t *testing.T) {
	var got atomic.Int64
	var p *env
	p = startServer(t, func(http.ResponseWriter, *http.Request) { got.Add(1) }, func(s *Server) {
		// It does not run, so it writes nothing.
		down, err := NewAuditLog(AuditLogConfig{Writer: io.Discard, Delay: time.Millisecond, Log: slog.New(slog.DiscardHandler), Now: time.Now})
		if err != nil {
			t.Fatal(err)
		}
		s.Telemetry.AuditLog = func() *AuditLog { return down }
		s.Handle = func(x *Exchange) error { return forward(x, p.cluster) }
	})
	res := p.do(t, "GET", "/api/v1/namespaces/shop/pods/app/exec", false)
	switch b, err := io.ReadAll(res.Body); {
	case err != nil:
		t.Error(err)
	case res.StatusCode != http.StatusServiceUnavailable:
		t.Errorf("res.StatusCode = %v, want %v", res.StatusCode, http.StatusServiceUnavailable)
	case !strings.Contains(string(b), "the audit log cannot be written"):
		t.Errorf("string(b) = %q does not contain %q", string(b), "the audit log cannot be written")
	}
	if res := p.do(t, "GET", "/api/v1/pods", false); res.StatusCode != http.StatusOK {
		t.Errorf("a list needs no record: %s", res.Status)
	}
	if n := got.Load(); n != 1 {
		t.Errorf("the cluster received %d requests", n)
	}
}

// TestHandlerEndsWatch checks that a stream ends without an error if the handler cancels the context of Out.
func TestHandlerEndsWatch(t *testing.T) {
	end := make(chan struct{})
	var p *env
	p = startServer(t, func(w http.ResponseWriter, r *http.Request) {
		io.WriteString(w, "event\n")
		http.NewResponseController(w).Flush()
		<-r.Context().Done()
	}, func(s *Server) {
		s.Handle = func(x *Exchange) error {
			ctx, cancel := context.WithCancel(x.Out.Context())
			defer cancel()
			x.Out = x.Out.WithContext(ctx)
			go func() { <-end; cancel() }()
			return forward(x, p.cluster)
		}
	})
	res := p.do(t, "GET", "/api/v1/pods?watch=1", true)
	event := make([]byte, len("event\n"))
	if _, err := io.ReadFull(res.Body, event); err != nil {
		t.Fatal(err)
	}
	close(end)
	if b, err := io.ReadAll(res.Body); len(b) > 0 || err != nil {
		t.Errorf("after %q: %q, %v", event, b, err)
	}
}

// TestSendAgain checks that a handler can send a request with a small body twice, and that it cannot for a large body.
func TestSendAgain(t *testing.T) {
	var bodies atomic.Pointer[[]string]
	var p *env
	p = startServer(t, func(w http.ResponseWriter, r *http.Request) {
		b, err := io.ReadAll(r.Body)
		if err != nil {
			t.Error(err)
		}
		all := []string{string(b)}
		if old := bodies.Load(); old != nil {
			all = append(*old, all...)
		}
		bodies.Store(&all)
		w.WriteHeader(http.StatusNotFound)
	}, func(s *Server) {
		s.Handle = func(x *Exchange) error {
			res, err := x.Send(p.cluster)
			if err != nil {
				return err
			}
			res.Close()
			if !x.CanResend() {
				return NewBadRequest("once only")
			}
			return forward(x, p.cluster)
		}
	})
	tr := &http.Transport{TLSClientConfig: &tls.Config{RootCAs: p.roots}}
	t.Cleanup(tr.CloseIdleConnections)
	for _, tt := range []struct {
		size, status, sent int
	}{{0, 404, 2}, {100, 404, 2}, {maxReplayedBody + 1, 400, 1}} {
		bodies.Store(nil)
		body := strings.Repeat("x", tt.size)
		r, err := http.NewRequestWithContext(t.Context(), "PUT", "https://"+p.addr+"/api/v1/namespaces/shop/configmaps/a", strings.NewReader(body))
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+localToken)
		res, err := tr.RoundTrip(r)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		sent := *bodies.Load()
		if res.StatusCode != tt.status || len(sent) != tt.sent {
			t.Errorf("%d bytes: %s after %d requests", tt.size, res.Status, len(sent))
		}
		for _, b := range sent {
			if b != body {
				t.Errorf("%d bytes: the cluster received %d", tt.size, len(b))
			}
		}
	}
}
