package xds

import (
	"context"
	"errors"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/envoyproxy/gateway/proto/extension"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/tailplane/tailplane/internal/gateway"
)

// Section 8.5, rule 2, and rows 2 and 6 of the list of forbidden outcomes: if a call panics, fails
// or takes too long on the newest snapshot, the server answers from the last good one. If that
// fails too, it returns the request unchanged. It never returns an error.
func TestLastKnownGood(t *testing.T) {
	type message = *extension.PostRouteModifyResponse
	good, bad := &gateway.Snapshot{}, &gateway.Snapshot{}
	echo, fromGood := message(&extension.PostRouteModifyResponse{Route: &routev3.Route{Name: "echo"}}), message(&extension.PostRouteModifyResponse{Route: &routev3.Route{Name: "good"}})
	for why, fails := range map[string]func(context.Context) (message, error){
		"panic":   func(context.Context) (message, error) { panic("hostile object") },
		"error":   func(context.Context) (message, error) { return nil, errors.New("unsound") },
		"endless": func(ctx context.Context) (message, error) { <-ctx.Done(); return nil, ctx.Err() },
		"deaf":    func(context.Context) (message, error) { time.Sleep(time.Hour); return fromGood, nil },
		"nil news": func(context.Context) (message, error) {
			var n *gateway.Gateway
			_ = n.Name.Name
			return nil, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			s, calls := newServer(t, nil)
			s.Deadline = 2 * time.Second
			request := func() message {
				return respond(t.Context(), s, call[message]{hook: RouteHook, gateway: testGateway, request: &extension.PostRouteModifyRequest{}, echo: echo,
					work: func(ctx context.Context, n *gateway.Snapshot) (message, error) {
						if n == bad {
							return fails(ctx)
						}
						return fromGood, nil
					}})
			}
			began := time.Now()
			if got := request(); got != echo {
				t.Errorf("%s: before any snapshot: %v", why, got)
			}
			s.Publish(bad)
			if got := request(); got != echo {
				t.Errorf("%s: without a good snapshot: %v", why, got)
			}
			s.Publish(good)
			if got := request(); got != fromGood {
				t.Errorf("%s: the good snapshot: %v", why, got)
			}
			s.Publish(bad)
			if got := request(); got != fromGood {
				t.Errorf("%s: after a bad one: %v, want the last good", why, got)
			}
			if took := time.Since(began); took > 2*s.Deadline {
				t.Errorf("%s: it took %v", why, took)
			}
			want := []Result{Unchanged, Fallback, Changed, Fallback}
			for i, c := range calls() {
				if c.Result != want[i] {
					t.Errorf("%s: call %d was %s, want %s", why, i, c.Result, want[i])
				}
			}
			time.Sleep(2 * time.Hour) // the goroutine that ignores its context ends
		})
	}
}

// Section 8.5, rule 2: if the caller's deadline is earlier, it counts, minus the time for the way
// of the answer.
func TestCallersDeadline(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, _ := newServer(t, &gateway.Snapshot{})
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		echo := &extension.PostRouteModifyResponse{}
		began := time.Now()
		respond(ctx, s, call[*extension.PostRouteModifyResponse]{hook: RouteHook, request: &extension.PostRouteModifyRequest{}, echo: echo,
			work: func(ctx context.Context, _ *gateway.Snapshot) (*extension.PostRouteModifyResponse, error) {
				<-ctx.Done()
				return nil, ctx.Err()
			}})
		if took := time.Since(began); took > 900*time.Millisecond {
			t.Errorf("answered after %v of a second", took)
		}
	})
}

// Section 8.4: a Translation that requests a later revision waits a moment for it, is answered in
// any case, and is counted.
func TestLaterRevision(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s, calls := newServer(t, snapshotOf(gateway.Gateway{Revision: "0000000000000001"}))
		var reports []gateway.TranslationReport
		s.Report = func(r gateway.TranslationReport) { reports = append(reports, r) }
		in := translationOf("0000000000000002-7", example()) // the operator increments the suffix after the hash

		began := time.Now()
		translate(t, s, in)
		if took := time.Since(began); took != revisionTimeout {
			t.Errorf("it waited %v", took)
		}
		went := make(chan time.Duration)
		go func() {
			began := time.Now()
			if _, err := s.PostTranslateModify(t.Context(), in); err != nil {
				t.Error(err)
			}
			went <- time.Since(began)
		}()
		time.Sleep(100 * time.Millisecond)
		n := fullSnapshot()
		n.Gateways[testGateway].Revision = "0000000000000002"
		s.Publish(n)
		if took := <-went; took != 100*time.Millisecond {
			t.Errorf("it waited %v for a snapshot that came after 100 ms", took)
		}
		switch c := calls(); {
		case len(c) != 2:
			t.Errorf("measured: len(c) = %v, want 2", len(c))
		case c[0].Result != Stale:
			t.Errorf("measured: c[0].Result = %q, want %q", c[0].Result, Stale)
		case c[1].Result != Changed:
			t.Errorf("measured: c[1].Result = %q, want %q", c[1].Result, Changed)
		}
		switch {
		case len(reports) != 2:
			t.Errorf("reported: len(reports) = %v, want 2", len(reports))
		case reports[0].Rendered != "0000000000000001":
			t.Errorf("reported: reports[0].Rendered = %q, want %q", reports[0].Rendered, "0000000000000001")
		case reports[1].Rendered != "0000000000000002":
			t.Errorf("reported: reports[1].Rendered = %q, want %q", reports[1].Rendered, "0000000000000002")
		case reports[1].Requested != "0000000000000002":
			t.Errorf("reported: reports[1].Requested = %q, want %q", reports[1].Requested, "0000000000000002")
		case reports[1].VirtualHosts:
			t.Errorf("reported: reports[1].VirtualHosts is true; reports = %+v", reports)
		}
	})
}

// If an answer is too large for Envoy Gateway, the server returns the request unchanged, which
// Envoy Gateway could send.
func TestTooLarge(t *testing.T) {
	s, calls := newServer(t, fullSnapshot())
	in := translationOf("", example())
	s.MaxMessage = proto.Size(in) + 100
	if out := translate(t, s, in); proto.Size(out) > s.MaxMessage || len(out.Clusters) != len(in.Clusters) {
		t.Errorf("%d bytes of %d", proto.Size(out), s.MaxMessage)
	}
	if c := calls(); c[0].Result != Fallback {
		t.Errorf("measured %+v", c)
	}
}

// Snapshots may be published while calls are answered (for the race detector), and no call sees
// two of them.
func TestPublishWhileAnswering(t *testing.T) {
	a, b := snapshotOf(gateway.Gateway{}), fullSnapshot()
	s, _ := newServer(t, a)
	var end atomic.Bool
	done := make(chan struct{})
	go func() {
		defer close(done)
		for !end.Load() {
			s.Publish(b)
			s.Publish(a)
		}
	}()
	in := translationOf("", example())
	for range 50 {
		if out := translate(t, s, in); len(out.Clusters) != len(in.Clusters) && len(out.Clusters) != len(in.Clusters)+5 {
			t.Errorf("%d clusters are of neither snapshot", len(out.Clusters)-len(in.Clusters))
		}
	}
	end.Store(true)
	<-done
}
