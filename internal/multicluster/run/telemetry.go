package run

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/multicluster"
	"github.com/tailplane/tailplane/internal/multicluster/config"
)

// Limits of the admin server and the metrics server.
const (
	adminTimeout = 30 * time.Second // as long as a profile takes
	adminHeader  = 16 << 10
)

// telemetry holds the telemetry of the adapter: metrics, traces and the audit log.
type telemetry struct {
	requests     *apiproxy.Telemetry
	auditLog     *apiproxy.AuditLog // nil: --audit is not set
	tracer       atomic.Pointer[apiproxy.Tracer]
	auditEnabled atomic.Bool // whether the configuration enables the audit log

	namespace string
	log       *slog.Logger
	tracing   config.Tracing // the settings that tracer was built from
	endTracer context.CancelFunc
	running   sync.WaitGroup
}

// newTelemetry opens the audit log if audit is not empty.
func newTelemetry(audit, namespace string, known func(group, resource, subresource string) bool, log *slog.Logger) (*telemetry, error) {
	s := &telemetry{namespace: namespace, log: log, endTracer: func() {}}
	if audit != "" {
		c := apiproxy.AuditLogConfig{Path: audit, Log: log, Now: time.Now}
		if audit == "-" {
			c.Path, c.Writer = "", os.Stdout
		}
		var err error
		if s.auditLog, err = apiproxy.NewAuditLog(c); err != nil {
			return nil, err
		}
	}
	s.requests = &apiproxy.Telemetry{Metrics: apiproxy.NewMetrics(programVersion(), known), Tracer: s.tracer.Load, Log: log, Now: time.Now,
		AuditLog: func() *apiproxy.AuditLog {
			if !s.auditEnabled.Load() {
				return nil
			}
			return s.auditLog
		}}
	return s, nil
}

// setConfig applies a configuration that is about to serve.
func (s *telemetry) setConfig(doc *config.Config) error {
	var clusters, rules []string
	for _, c := range doc.Clusters {
		clusters = append(clusters, c.Name)
	}
	for _, r := range doc.Rules {
		rules = append(rules, r.Name)
	}
	if doc.Tracing != s.tracing {
		t, err := apiproxy.NewTracer(
			apiproxy.TraceConfig{
				Endpoint:  doc.Tracing.Endpoint,
				Ratio:     doc.Tracing.Ratio,
				Version:   programVersion(),
				Namespace: s.namespace,
				Log:       s.log,
			},
		)
		if err != nil {
			return fmt.Errorf("tracing: %w", err)
		}
		s.endTracer()
		ctx, cancel := context.WithCancel(context.Background())
		s.endTracer, s.tracing = cancel, doc.Tracing
		s.running.Go(func() {
			if err := t.Run(ctx); err != nil {
				s.log.Warn("traces are not sent", "err", err)
			}
		})
		s.tracer.Store(t)
	}
	s.auditEnabled.Store(s.auditLog != nil && doc.Audit.Level != "none")
	s.requests.Metrics.SetConfig(doc.Epoch, clusters, rules)
	return nil
}

// run writes the audit log until ctx ends. It then flushes the pending audit records and traces.
func (s *telemetry) run(ctx context.Context) error {
	if s.auditLog != nil {
		if err := s.auditLog.Run(ctx); err != nil {
			s.log.Error("the audit log is incomplete", "err", err)
		}
	}
	<-ctx.Done()
	s.endTracer()
	s.running.Wait()
	return nil
}

// clusterStatuses returns the health of all clusters.
func clusterStatuses(loader *multicluster.ConfigLoader) (all []apiproxy.UpstreamStatus) {
	for _, c := range loader.Current().Upstreams() {
		all = append(all, apiproxy.UpstreamStatus{Name: c.Name, Health: c.Health()})
	}
	return all
}

// metricSources returns the values that each scrape of the metrics reads.
func (s *telemetry) metricSources(
	loader *multicluster.ConfigLoader,
	router *multicluster.Router,
	expires func() time.Time,
) apiproxy.MetricSources {
	from := apiproxy.MetricSources{
		Clusters:    func() []apiproxy.UpstreamStatus { return clusterStatuses(loader) },
		Owners:      router.KnownOwners,
		Certificate: expires,
		Traces:      func() apiproxy.TraceExporterStats { return s.tracer.Load().Stats() },
	}
	if s.auditLog != nil {
		from.AuditLog = s.auditLog.Stats
	}
	return from
}

// adminHandler returns the handler of the admin server.
func (s *telemetry) adminHandler(
	loader *multicluster.ConfigLoader,
	router *multicluster.Router,
	validToken func(string) bool,
	ready func() error,
	profiles bool,
) http.Handler {
	p := &AdminServer{
		Ready: ready, ValidToken: validToken, Gatherer: s.requests.Metrics, Log: s.log, Profiles: profiles,
		ReadyDetails: func() []string {
			lines := router.MissingResources()
			if err := loader.Err(); err != nil {
				lines = append([]string{"configuration: the last good one stays active: " + err.Error()}, lines...)
			}
			return lines
		},
		Config:   func() any { return loader.Current().Config() },
		Clusters: func() []apiproxy.UpstreamStatus { return clusterStatuses(loader) },
		Streams:  s.requests.OpenStreams,
		Owners: func(key string) any {
			parts := strings.Split(key, "/")
			if len(parts) != 4 {
				return nil
			}
			if cluster := router.Owner(multicluster.ObjectKey{Group: parts[0], Resource: parts[1], Namespace: parts[2], Name: parts[3]}); cluster != "" {
				return map[string]string{"cluster": cluster}
			}
			return nil
		},
		Route: func(q RouteRequest) (any, error) {
			return loader.Current().Table.Explain(q.Method, q.URL, q.UserAgent, "application/json", q.Body), nil
		},
	}
	return p.Handler()
}

// serveHTTP serves HTTP at one of the adapter's own addresses until ctx ends.
func serveHTTP(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{
		Handler:                      h,
		ReadTimeout:                  adminTimeout,
		ReadHeaderTimeout:            adminTimeout,
		WriteTimeout:                 2 * adminTimeout,
		IdleTimeout:                  adminTimeout,
		MaxHeaderBytes:               adminHeader,
		ErrorLog:                     slog.NewLogLogger(log.Handler(), slog.LevelDebug),
		DisableGeneralOptionsHandler: true,
	}
	ended := context.AfterFunc(ctx, func() { srv.Close() })
	defer ended()
	if err := srv.Serve(ln); ctx.Err() == nil {
		return fmt.Errorf("at %s: %w", ln.Addr(), err)
	}
	return nil
}
