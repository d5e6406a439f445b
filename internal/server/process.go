package server

import (
	"context"
	"errors"
	"log/slog"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane/exposure"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
)

// A part is what a process runs until ctx ends: one role of the server.
type part struct {
	name string
	run  func(ctx context.Context, p *process, working func()) error
	when func(settings.File) bool // nil: always
}

// A process is the state that its parts share.
type process struct {
	flags
	set      settings.File
	role     settings.Role
	auditLog auditLog
	log      *slog.Logger
	health   *health.Listener
	metrics  *health.Metrics
}

// run runs all parts; when the first one ends, run cancels the others. It serves probes from before the parts begin until after they have
// ended.
func run(ctx context.Context, f flags, role settings.Role, parts ...part) error {
	log, quieten, err := newLogger(f)
	if err != nil {
		return err
	}
	set, err := load(f.config, role)
	if err != nil {
		return usageError{err}
	}
	for _, w := range set.Warnings() {
		log.Warn(w)
	}
	if f.check {
		return nil
	}
	quieten()

	parts = slices.DeleteFunc(slices.Clone(parts), func(pt part) bool { return pt.when != nil && !pt.when(set) })
	var operations []access.Verb
	if role != settings.PlaneRole {
		operations = append(httpapi.Verbs(new(signin.Service).Routes()...), access.ClusterMembers, access.GossipExchange)
	}
	if role == settings.PlaneRole || role == settings.AllRoles && set.Plane.Enabled {
		operations = append(append(operations, access.PlaneVerbs()...), exposure.UpstreamUse)
	}
	metrics := health.NewMetrics(version(), commit(), operations...)
	p := &process{flags: f, set: set, role: role, log: log, metrics: metrics, health: &health.Listener{
		// controller-runtime's registry also has the collectors of Go and the process.
		Address: set.Health, Gatherer: prometheus.Gatherers{metrics, ctrlmetrics.Registry}, Log: log,
	}}
	metrics.AddReadiness(p.health)
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	defer context.AfterFunc(ctx, p.health.Stop)()

	probes, endProbes := context.WithCancel(context.WithoutCancel(ctx))
	probed := make(chan error, 1)
	go func() {
		defer cancel()
		probed <- p.health.Run(probes)
	}()
	errs := make([]error, len(parts))
	var wg sync.WaitGroup
	for i, pt := range parts {
		working := p.addPart(pt.name)
		wg.Go(func() {
			defer cancel()
			errs[i] = pt.run(ctx, p, working)
		})
	}
	wg.Wait()
	endProbes()
	return errors.Join(append(errs, <-probed)...)
}

// addPart makes the process not ready until the part calls working.
func (p *process) addPart(name string) (working func()) {
	var works atomic.Bool
	p.health.AddCheck(name, func(context.Context) error {
		if !works.Load() {
			return errors.New("starting")
		}
		return nil
	})
	return func() { works.Store(true) }
}

// version returns the module's version from the build information.
func version() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "devel" // the value that tka and mca use
}

// commit returns the built commit, or "" if the build information lacks it.
func commit() string {
	b, _ := debug.ReadBuildInfo()
	if b != nil {
		for _, s := range b.Settings {
			if s.Key == "vcs.revision" {
				return s.Value
			}
		}
	}
	return ""
}
