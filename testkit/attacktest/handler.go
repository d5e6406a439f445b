package attacktest

import (
	"context"
	"errors"
	"log/slog"
	"net"
	"net/http"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// IdentityServer is the product's HTTP API with a single operation. It serves tests of identities that the programs
// cannot produce. It records the audit entries and the callers that passed the decision.
type IdentityServer struct {
	httpapi.Server
	Op    httpapi.Op[struct{}, Whoami]
	Route httpapi.Route

	mu      sync.Mutex
	record  []audit.Entry   // as the audit log stores them
	through []access.Caller // callers that received a permit
}

type Whoami struct {
	Identity string `json:"identity"`
}

// NewIdentityServer returns a server that identifies callers by identify.
func NewIdentityServer(names []string, identify func(*http.Request) (access.Caller, error)) *IdentityServer {
	s := &IdentityServer{Op: httpapi.Op[struct{}, Whoami]{Pattern: "GET /who", Verb: access.SigninRead}}
	policy := access.Policy{Capability: "tailplane.dev/cap/access", Roles: []access.Role{"view", "edit"}, Min: access.MinPeriod, Max: 24 * time.Hour}
	s.Server = httpapi.Server{
		Names: func() []string { return names }, Identify: identify, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Record: func(e audit.Entry) error {
			stored, ok := e.Stored()
			if !ok {
				return errors.New("the entry cannot be encoded")
			}
			s.mu.Lock()
			defer s.mu.Unlock()
			s.record = append(s.record, stored)
			return nil
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
	}
	s.Route = s.Op.Serve(func(_ context.Context, p access.Permit, _ struct{}) (Whoami, error) {
		if err := p.Require(access.SigninRead, time.Now()); err != nil {
			return Whoami{}, err
		}
		s.mu.Lock()
		defer s.mu.Unlock()
		s.through = append(s.through, p.Caller())
		return Whoami{p.Caller().Identity()}, nil
	})
	return s
}

// Entries returns the audit entries since the last call, and the callers that passed the decision.
func (s *IdentityServer) Entries() (out []audit.Entry, through []access.Caller) {
	s.mu.Lock()
	defer s.mu.Unlock()
	out, s.record = s.record, nil
	through, s.through = s.through, nil
	return out, through
}

// Serve serves on ln until the test ends, through httpapi.Server.Run as the programs do.
func (s *IdentityServer) Serve(t *testing.T, ln net.Listener, connContext func(context.Context, net.Conn) context.Context) {
	t.Helper()
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	served := make(chan error, 1)
	go func() { served <- s.Run(ctx, ln, connContext, s.Route) }()
	t.Cleanup(func() {
		stop()
		if err := <-served; err != nil {
			t.Errorf("the server: %v", err)
		}
	})
}
