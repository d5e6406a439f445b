package server

import (
	"context"
	"log/slog"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin/controller"
)

// A configured id takes precedence and causes no request.
func TestConfiguredClusterID(t *testing.T) {
	id, err := clusterID(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, "prod-eu-1", "sha256:00", slog.New(slog.DiscardHandler))
	if err != nil || id != "prod-eu-1" {
		t.Errorf("%q, %v", id, err)
	}
	// If the API server does not respond, clusterID must fail and not choose another id, because other servers have pinned the id.
	if id, err := clusterID(t.Context(), &rest.Config{Host: "https://127.0.0.1:1"}, "", "sha256:00", slog.New(slog.DiscardHandler)); err == nil {
		t.Errorf("without an answer the id is %q", id)
	}
}

// While the key cannot be loaded, the server is not ready and logs that once.
func TestKeyring(t *testing.T) {
	secret, err := controller.NewClusterKey(&rest.Config{Host: "https://127.0.0.1:1"}, "tailplane-system")
	if err != nil {
		t.Fatal(err)
	}
	k := newKeyring()
	if _, ok := k.current(); ok || k.check(t.Context()) == nil {
		t.Error("an empty keyring has a key")
	}
	var log strings.Builder
	ctx, stop := context.WithTimeout(t.Context(), 2*time.Second)
	defer stop()
	k.load(ctx, secret, slog.New(slog.NewTextHandler(&log, nil)))
	if n := strings.Count(log.String(), "\n"); n != 1 || !strings.Contains(log.String(), "tailplane-cluster-key") {
		t.Errorf("%d lines: %s", n, log.String())
	}
}

// A process becomes ready when each of its parts reports that it works, and is no longer ready once it stops.
func TestExpect(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		probes := &health.Listener{Log: slog.New(slog.DiscardHandler)}
		one, two := addPart(probes, "access"), addPart(probes, "operator")
		one()
		if probes.Ready(t.Context()) {
			t.Error("ready with one part of two")
		}
		two()
		if !probes.Ready(t.Context()) {
			t.Error("not ready with both")
		}
		probes.Stop()
		if probes.Ready(t.Context()) {
			t.Error("ready while it stops")
		}
	})
}

// The defaults of the settings reach the HTTP server.
func TestLimits(t *testing.T) {
	l := limits(settings.Default().API.Limits)
	switch {
	case l.Connections != 256:
		t.Errorf("l.Connections = %v, want 256", l.Connections)
	case l.Waiters != 1000:
		t.Errorf("l.Waiters = %v, want 1000", l.Waiters)
	case l.WaitersPerCaller != 4:
		t.Errorf("l.WaitersPerCaller = %v, want 4", l.WaitersPerCaller)
	case l.All.PerMinute != 18000:
		t.Errorf("l.All.PerMinute = %v, want 18000", l.All.PerMinute)
	case len(l.Verbs) != 4:
		t.Errorf("len(l.Verbs) = %v, want 4", len(l.Verbs))
	}
}
