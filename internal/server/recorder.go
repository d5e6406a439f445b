package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	ctrlmetrics "sigs.k8s.io/controller-runtime/pkg/metrics"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/server/health"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/origin"
)

// RunRecorder runs a recorder: a node of the tailnet that stores what access proxies send, and shows it to people. It calls no API server.
func RunRecorder(ctx context.Context, o Options) error {
	var set settings.File
	log, err := o.start(func(*slog.Logger) (err error) {
		set, err = load(o.Config, settings.RecorderRole)
		return err
	})
	if log == nil {
		return err
	}
	metrics := health.NewMetrics(version(), commit(), access.RecordingsList, access.RecordingsRead)
	p := &process{Options: o, set: set, role: settings.RecorderRole, log: log, metrics: metrics,
		health: &health.Listener{Address: set.Health, Gatherer: prometheus.Gatherers{metrics, ctrlmetrics.Registry}, Log: log}}
	metrics.AddReadiness(p.health)
	if err := p.openRecorderLog(ctx); err != nil {
		return err
	}
	return errors.Join(runTogether(ctx, func(context.Context) {}, p.health.Run, p.runRecorder), p.record.Close())
}

// openRecorderLog opens the audit log. The key is in the node's state directory.
func (p *process) openRecorderLog(ctx context.Context) error {
	key, err := p.signingKey(ctx, settings.RecorderRole)
	if err != nil {
		return err
	}
	name := cmp.Or(p.set.Cluster.Name, p.set.RecorderHostname())
	c := audit.Config{Path: p.set.Audit.File, Cluster: name, Role: string(settings.RecorderRole), Software: version(),
		Key: key, Required: p.set.Audit.Required, Log: p.log, Now: time.Now}
	if c.Path == "-" {
		c.Path, c.Writer = "", os.Stdout
	}
	if p.record, err = audit.Open(c); err != nil {
		return fmt.Errorf("audit.file: %w", err)
	}
	p.log.Info("the audit log is open", "key", key.Public().String())
	p.metrics.AddAudit(p.record.Stats, func() int { return 0 })
	return nil
}

// runRecorder wires and runs the recorder: tailnet -> directory.
func (p *process) runRecorder(ctx context.Context) error {
	r := p.set.Recorder
	if err := os.MkdirAll(r.Dir, 0o700); err != nil {
		return fmt.Errorf("recorder.dir: %w", err)
	}
	var measure *health.RecorderMetrics
	dir, err := recording.OpenDir(recording.DirConfig{Path: r.Dir, MaxBytes: int64(r.MaxMiB) << 20, MaxOne: int64(r.MaxOneMiB) << 20, MaxCount: r.MaxRecordings,
		MaxLive: r.MaxLive, MaxAge: time.Duration(r.MaxAge), Keep: time.Duration(r.Keep), Now: time.Now, Done: func(i recording.Info) {
			measure.CountEnded(i)
			p.log.Info("a recording has ended", "id", i.ID, "state", string(i.State), "bytes", i.Bytes, "sha256", i.SHA256)
		}})
	if err != nil {
		return fmt.Errorf("recorder.dir: %w", err)
	}
	measure = p.metrics.AddRecorder(dir.Stats)
	defer dir.Close()
	t := p.set.Tailnet
	node, err := newNode(p, tailnet.Config{Hostname: p.set.RecorderHostname(), StateDir: t.StateDir, InsecureHTTP: t.InsecureHTTP, Capability: p.set.Plane.Capability, Log: p.log})
	if err != nil {
		return err
	}
	p.metrics.AddNode(node.Status)
	working := addPart(p.health, "recorder")
	p.health.AddCheck("tailnet", nodeCheck(node))
	p.health.AddCheck("directory", func(context.Context) error { return dir.Check() })
	people := recorderServer(p.set.RecorderPolicy(), &httpapi.Server{Names: node.Names, Record: p.record.Write, Limits: planeLimits(), Log: p.log, Now: time.Now,
		Measure: p.metrics.MeasureServer("recorder"), Identify: p.measureIdentifier(node.Identify)})
	gate := &recorderGate{names: node.Names, identify: node.Identify, changed: node.Changed, tags: r.ProxyTags, next: dir.Handler(), refused: measure.CountRefused, process: p}
	return runNode(ctx, node, func(ctx context.Context) error {
		parts, ctx := newGroup(ctx)
		forProxies, err := node.ListenPlain(ctx, r.Port)
		if err != nil {
			return parts.stop(ctx, err)
		}
		forPeople, err := node.Listen(ctx)
		if err != nil {
			forProxies.Close()
			return parts.stop(ctx, err)
		}
		p.log.Info("the recorder is serving", "names", node.Names(), "port", r.Port, "dir", r.Dir)
		working()
		parts.run(func() error { return gate.run(ctx, forProxies, node.ConnContext) })
		parts.run(func() error { return people.Run(ctx, forPeople, node.ConnContext, dir.Routes()...) })
		parts.run(func() error { return dir.Run(ctx) })
		return parts.wait()
	})
}

// recorderServer returns s with the decisions of a recorder. Nothing is read that is not in the audit log.
func recorderServer(policy access.PlanePolicy, s *httpapi.Server) *httpapi.Server {
	s.MustRecord = []access.Verb{access.RecordingsRead}
	s.Decide = func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
		return access.DecidePlane(c, v, policy, now)
	}
	return s
}

// A recorderGate admits the nodes that may send recordings.
type recorderGate struct {
	names    func() []string
	identify func(*http.Request) (access.Caller, error)
	changed  func() <-chan struct{} // closed at the next change of the tailnet
	tags     []string
	next     http.Handler
	refused  func()
	process  *process
}

// run serves on ln until ctx ends. Recordings that are open then stay incomplete.
func (g *recorderGate) run(ctx context.Context, ln net.Listener, connContext func(context.Context, net.Conn) context.Context) error {
	srv := apiproxy.NewHTTPServer(g, g.process.log)
	srv.ConnContext = connContext
	srv.HTTP2.SendPingTimeout, srv.HTTP2.PingTimeout = 30*time.Second, 15*time.Second
	served := make(chan error, 1)
	go func() { served <- srv.Serve(apiproxy.FramedListener(ln)) }()
	select {
	case err := <-served:
		return fmt.Errorf("serve proxies: %w", err)
	case <-ctx.Done():
	}
	srv.Close()
	<-served
	return nil
}

// admit returns why the sender of a request may not send recordings, or nil.
func (g *recorderGate) admit(r *http.Request) (access.Caller, error) {
	c, err := g.identify(r)
	if err == nil {
		err = access.Admit(c)
	}
	if err == nil && !slices.ContainsFunc(c.TagNames(), func(tag string) bool { return slices.Contains(g.tags, tag) }) {
		err = problem.New(problem.Forbidden, "Only access proxies may send recordings.", "Tag the node of the access proxy as the recorder's setting recorder.proxyTags says.")
	}
	return c, err
}

// ServeHTTP implements [http.Handler]. It checks the sender again at each change of the tailnet, and ends the upload of a node that may
// send no longer.
func (g *recorderGate) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	host := r.Host
	if h, _, err := net.SplitHostPort(host); err == nil {
		host = h
	}
	if !slices.ContainsFunc(g.names(), func(n string) bool { return strings.EqualFold(n, strings.Trim(host, "[]")) }) || origin.IsCrossSite(r) {
		http.Error(w, "this is no name of the recorder, or the request comes from another site", http.StatusMisdirectedRequest)
		return
	}
	changed := g.changed()
	c, err := g.admit(r)
	if err != nil {
		g.refused()
		g.process.log.Warn("a node may not send recordings", "node", c.Device.Name, "from", r.RemoteAddr, "err", err)
		http.Error(w, err.Error(), http.StatusForbidden)
		return
	}
	done := make(chan struct{})
	defer close(done)
	go func() {
		for {
			select {
			case <-done:
				return
			case <-changed:
			}
			changed = g.changed()
			if c, err := g.admit(r); err != nil {
				g.process.log.Warn("a node may send recordings no longer; its recording ends", "node", c.Device.Name, "err", err)
				http.NewResponseController(w).SetReadDeadline(time.Now())
				return
			}
		}
	}()
	g.next.ServeHTTP(w, r)
}
