// Package server wires the parts of each role of tailplaned: its settings, listeners, controllers, probes and metrics.
package server

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"os"
	"runtime/debug"
	"slices"
	"sync"
	"sync/atomic"

	"github.com/go-logr/logr"
	"github.com/prometheus/client_golang/prometheus"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane/exposure"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
)

// Options are the options that all roles share.
type Options struct {
	Config      string // settings file
	Kubeconfig  string // "": the pod's ServiceAccount
	LogLevel    string // debug, info, warn or error
	Check       bool   // check the settings and do not run
	LeaderElect bool   // only one replica of the role is active at a time
}

// UsageError is a mistake in options or settings.
type UsageError struct{ Cause error }

func (e UsageError) Error() string { return e.Cause.Error() }

func (e UsageError) Unwrap() error { return e.Cause }

// start reads the settings of a role with load, whose errors are UsageErrors, and redirects the logs of libraries to standard error. It returns
// the log of the role, or nil if the role must not run.
func (o Options) start(load func(*slog.Logger) error) (*slog.Logger, error) {
	var level slog.Level
	if err := level.UnmarshalText([]byte(o.LogLevel)); err != nil {
		return nil, UsageError{fmt.Errorf("--log-level %q: debug, info, warn or error", o.LogLevel)}
	}
	to := func(level slog.Level) slog.Handler {
		return slog.NewJSONHandler(os.Stderr, &slog.HandlerOptions{Level: level})
	}
	log := slog.New(to(level))
	if err := load(log); err != nil {
		return nil, UsageError{err}
	}
	if o.Check {
		return nil, nil
	}
	quiet := logr.FromSlogHandler(to(max(level, slog.LevelWarn)))
	ctrllog.SetLogger(quiet)
	klog.SetLogger(quiet)
	return log, nil
}

// load reads and checks the settings file of a role. Packages gossip and plane check values that the settings cannot.
func load(file string, role settings.Role) (settings.File, error) {
	set, err := settings.Load(file, role)
	if err != nil {
		return set, err
	}
	if set.Runs(settings.PlaneRole, role) {
		err = checkPlane(set)
	}
	if err == nil && set.Runs(settings.ProxyRole, role) {
		_, err = proxyRules(set)
	}
	if err == nil && set.Gossip.Enabled {
		_, err = gossipSettings(set.Gossip)
	}
	if err != nil {
		return set, fmt.Errorf("%s: %w", file, err)
	}
	return set, nil
}

// PrintConfig writes the settings with all defaults to out, and their warnings to warn.
func PrintConfig(o Options, out, warn io.Writer) error {
	set, err := load(o.Config, settings.AllRoles)
	if err != nil {
		return UsageError{err}
	}
	for _, w := range set.Warnings() {
		fmt.Fprintln(warn, "warning:", w)
	}
	b, err := set.YAML()
	if err != nil {
		return err
	}
	_, err = out.Write(b)
	return err
}

// A process is the state that the parts of a role share.
type process struct {
	Options
	set     settings.File
	role    settings.Role
	log     *slog.Logger
	health  *health.Listener
	metrics *health.Metrics

	// Set by connect, before the parts begin.
	config  *rest.Config
	cluster signin.ClusterInfo
	record  *audit.Log
	witness *auditWitness
}

// roleParts are the parts that Run can run.
var roleParts = []struct {
	name settings.Role
	run  func(ctx context.Context, p *process, working func()) error
}{{settings.AccessRole, runAccess}, {settings.OperatorRole, runOperator}, {settings.PlaneRole, runPlane}, {settings.ProxyRole, runProxy}}

// Run runs the role access, operator, plane or proxy, or all of them; the plane and the proxy only if the settings enable them. When the first part ends, Run
// cancels the others. It serves probes from before the parts begin until after they have ended.
func Run(ctx context.Context, o Options, role settings.Role) error {
	var set settings.File
	log, err := o.start(func(log *slog.Logger) (err error) {
		set, err = load(o.Config, role)
		if err == nil {
			logWarnings(log, set.Warnings())
		}
		return err
	})
	if log == nil {
		return err
	}
	var operations []access.Verb
	if role != settings.PlaneRole && role != settings.ProxyRole {
		operations = append(httpapi.Verbs(new(signin.Service).Routes()...), access.ClusterMembers, access.GossipExchange)
	}
	if set.Runs(settings.PlaneRole, role) {
		operations = append(append(operations, access.PlaneVerbs()...), exposure.UpstreamUse)
	}
	metrics := health.NewMetrics(version(), commit(), operations...)
	metrics.SetRoles(set.AccessPolicy().Roles)
	p := &process{Options: o, set: set, role: role, log: log, metrics: metrics, health: &health.Listener{
		// controller-runtime's registry also has the collectors of Go and the process.
		Address: set.Health, Gatherer: prometheus.Gatherers{metrics, ctrlmetrics.Registry}, Log: log,
	}}
	metrics.AddReadiness(p.health)
	parts, ctx := newGroup(ctx)
	defer parts.cancel()
	defer context.AfterFunc(ctx, p.health.Stop)()
	probing, endProbes := context.WithCancel(context.WithoutCancel(ctx))
	probed := make(chan error, 1)
	go func() {
		defer parts.cancel()
		probed <- p.health.Run(probing)
	}()
	var begin []func() error
	for _, part := range roleParts {
		if set.Runs(part.name, role) {
			working := addPart(p.health, string(part.name))
			begin = append(begin, func() error { return part.run(ctx, p, working) })
		}
	}
	closeRecord, err := p.connect(ctx)
	if err == nil {
		for _, run := range begin {
			parts.run(run)
		}
		parts.run(func() error { return p.witness.run(ctx) })
		err = errors.Join(parts.wait(), closeRecord())
	}
	endProbes()
	return errors.Join(err, <-probed)
}

// connect waits for the API server, describes the cluster, and opens the audit log. The caller must call closeRecord after all parts have
// ended.
func (p *process) connect(ctx context.Context) (closeRecord func() error, err error) {
	if p.config, err = apiServer(ctx, p.Kubeconfig); err != nil {
		return nil, err
	}
	p.health.AddCheck("kubernetes", apiServerCheck(p.config))
	if p.set.Runs(settings.OperatorRole, p.role) {
		if err := p.checkRoles(ctx); err != nil {
			return nil, err
		}
	}
	if p.set.Runs(settings.OperatorRole, p.role) || p.set.Runs(settings.AccessRole, p.role) {
		p.warnAboutRoles(ctx)
	}
	if p.cluster, err = p.clusterInfo(ctx); err != nil {
		return nil, err
	}
	return p.openAuditLog(ctx)
}

func logWarnings(log *slog.Logger, warnings []string) {
	for _, w := range warnings {
		log.Warn(w)
	}
}

// addPart registers a part that is needed for readiness. The part calls the returned function when it works.
func addPart(probes *health.Listener, name string) (working func()) {
	var works atomic.Bool
	probes.AddCheck(name, func(context.Context) error {
		if !works.Load() {
			return errors.New("starting")
		}
		return nil
	})
	return func() { works.Store(true) }
}

// A group runs the parts of a process. When the first one ends, it cancels the others. One goroutine starts the parts and waits.
type group struct {
	cancel context.CancelFunc
	parts  sync.WaitGroup
	errs   []*error // in the order in which the parts started; wait reads them
}

// newGroup returns a group and the context of its parts. The caller must call cancel or wait for a part that ends.
func newGroup(ctx context.Context) (*group, context.Context) {
	ctx, cancel := context.WithCancel(ctx)
	return &group{cancel: cancel}, ctx
}

func (g *group) run(part func() error) {
	err := new(error)
	g.errs = append(g.errs, err)
	g.parts.Go(func() {
		defer g.cancel()
		*err = part()
	})
}

// wait returns the errors of all parts when they have ended.
func (g *group) wait() (err error) {
	g.parts.Wait()
	for _, e := range g.errs {
		err = errors.Join(err, *e)
	}
	return err
}

// stop cancels the parts and returns their errors. It also returns err, unless a part that ended before is the cause.
func (g *group) stop(ctx context.Context, err error) error {
	if ctx.Err() != nil {
		err = nil
	}
	g.cancel()
	return errors.Join(g.wait(), err)
}

// runTogether runs all parts until ctx or one of them ends. Then it calls drain, and after that ends the context of the parts.
func runTogether(ctx context.Context, drain func(context.Context), parts ...func(context.Context) error) error {
	g, ctx := newGroup(ctx)
	defer g.cancel()
	after, end := context.WithCancel(context.WithoutCancel(ctx))
	defer end()
	defer context.AfterFunc(ctx, func() {
		drain(after)
		end()
	})()
	for _, part := range parts {
		g.run(func() error { return part(after) })
	}
	return g.wait()
}

// version returns the version from the build information of the binary.
func version() string {
	if b, ok := debug.ReadBuildInfo(); ok && b.Main.Version != "" && b.Main.Version != "(devel)" {
		return b.Main.Version
	}
	return "devel" // the value that tka and mca use
}

// commit returns the commit from the build information of the binary, or "" if it is unknown.
func commit() string {
	if b, ok := debug.ReadBuildInfo(); ok {
		if i := slices.IndexFunc(b.Settings, func(s debug.BuildSetting) bool { return s.Key == "vcs.revision" }); i >= 0 {
			return b.Settings[i].Value
		}
	}
	return ""
}
