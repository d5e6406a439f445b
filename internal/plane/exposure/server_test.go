package exposure

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// shortNode is a node on loopback that stops on request.
type shortNode struct {
	ln   net.Listener
	gone chan error
}

func (n shortNode) Listen(context.Context) (net.Listener, error) { return n.ln, nil }
func (n shortNode) Names() []string                              { return []string{"prometheus"} }
func (n shortNode) ConnContext(ctx context.Context, _ net.Conn) context.Context {
	return ctx
}

func (n shortNode) Run(ctx context.Context) error {
	select {
	case err := <-n.gone:
		return err
	case <-ctx.Done():
		return nil
	}
}

// A node that cannot start, or stops, is reported and started again, and the next one serves the service. The end of ctx stops everything.
func TestServer(t *testing.T) {
	up := newUpstream(t)
	deleted, reported := make(chan error), make(chan string, 100)
	var mu sync.Mutex
	opened, at := 0, ""
	k := Server{Upstream: prometheus(t, up), RetryAfter: time.Millisecond,
		Common: httpapi.Server{Record: func(audit.Entry) error { return nil }, Log: slog.New(slog.DiscardHandler), Now: time.Now,
			Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
				return access.DecidePlane(c, v, policy, now)
			}},
		OpenNode: func(ctx context.Context) (Node, func(*http.Request) (access.Caller, error), error) {
			mu.Lock()
			defer mu.Unlock()
			if opened++; opened == 1 {
				return nil, nil, errors.New("no key")
			}
			ln, err := new(net.ListenConfig).Listen(ctx, "tcp", "127.0.0.1:0")
			if err != nil {
				return nil, nil, err
			}
			at = ln.Addr().String()
			return shortNode{ln, deleted}, func(*http.Request) (access.Caller, error) { return viewer, nil }, nil
		},
		Report: func(names []string, err error) {
			if err != nil {
				reported <- err.Error()
				return
			}
			reported <- "serving " + names[0]
		}}
	ctx, stop := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); k.Run(ctx) }()
	next := func() string {
		select {
		case s := <-reported:
			return s
		case <-time.After(long):
			t.Fatal("no status is reported")
			return ""
		}
	}
	received := []string{next(), next()}
	ask := func() answer {
		mu.Lock()
		h := &env{addr: at}
		mu.Unlock()
		return h.do(t, "GET", "/graph", "prometheus", nil)
	}
	if a := ask(); a.Status != http.StatusOK {
		t.Errorf("%+v", a)
	}
	deleted <- errors.New("the key has expired")
	received = append(received, next(), next())
	if a := ask(); a.Status != http.StatusOK || len(up.takeRequests()) != 2 {
		t.Errorf("by the next node: %+v", a)
	}
	stop()
	select {
	case <-done:
	case <-time.After(long):
		t.Fatal("it goes on")
	}
	if want := []string{"no key", "serving prometheus", "the key has expired", "serving prometheus"}; !slices.Equal(received, want) || len(reported) > 0 {
		t.Errorf("reported %q, want %q", received, want)
	}
	if _, err := net.Dial("tcp", at); err == nil {
		t.Error("it listens on")
	}
}
