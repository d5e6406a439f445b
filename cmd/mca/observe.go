package main

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
	"github.com/tailplane/tailplane/internal/apiproxy/document"
	"github.com/tailplane/tailplane/internal/apiproxy/fanout"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/observe/adminport"
	"github.com/tailplane/tailplane/internal/apiproxy/observe/record"
	"github.com/tailplane/tailplane/internal/apiproxy/roster"
)

// Limits of the admin server and the metrics server.
const (
	adminTime   = 30 * time.Second // as long as a profile takes
	adminHeader = 16 << 10
)

// sight holds the telemetry of the adapter: metrics, traces and the audit log.
type sight struct {
	observer *observe.Observer
	record   *record.Record // nil: --audit is not set
	tracer   atomic.Pointer[observe.Tracer]
	recorded atomic.Bool // whether the configuration enables the audit log

	namespace string
	log       *slog.Logger
	traced    document.Tracing // the settings that tracer was built from
	endTracer context.CancelFunc
	running   sync.WaitGroup
}

// newSight opens the audit log if audit is not empty.
func newSight(audit, namespace string, known func(group, resource, subresource string) bool, log *slog.Logger) (*sight, error) {
	s := &sight{namespace: namespace, log: log, endTracer: func() {}}
	if audit != "" {
		c := record.Config{Path: audit, Log: log, Now: time.Now}
		if audit == "-" {
			c.Path, c.Writer = "", os.Stdout
		}
		var err error
		if s.record, err = record.New(c); err != nil {
			return nil, err
		}
	}
	s.observer = &observe.Observer{Metrics: observe.NewMetrics(ownVersion(), known), Tracer: s.tracer.Load, Log: log, Now: time.Now,
		Record: func() *record.Record {
			if !s.recorded.Load() {
				return nil
			}
			return s.record
		}}
	return s, nil
}

// take applies a configuration that is about to serve.
func (s *sight) take(doc *document.Document) error {
	var clusters, rules []string
	for _, c := range doc.Clusters {
		clusters = append(clusters, c.Name)
	}
	for _, r := range doc.Rules {
		rules = append(rules, r.Name)
	}
	if doc.Tracing != s.traced {
		t, err := observe.NewTracer(observe.TraceConfig{Endpoint: doc.Tracing.Endpoint, Ratio: doc.Tracing.Ratio, Version: ownVersion(), Namespace: s.namespace, Log: s.log})
		if err != nil {
			return fmt.Errorf("tracing: %w", err)
		}
		s.endTracer()
		ctx, cancel := context.WithCancel(context.Background())
		s.endTracer, s.traced = cancel, doc.Tracing
		s.running.Go(func() {
			if err := t.Run(ctx); err != nil {
				s.log.Warn("traces are not sent", "err", err)
			}
		})
		s.tracer.Store(t)
	}
	s.recorded.Store(s.record != nil && doc.Audit.Level != "none")
	s.observer.Metrics.Serving(doc.Epoch, clusters, rules)
	return nil
}

// run writes the audit log until ctx ends. It then flushes the pending audit records and traces.
func (s *sight) run(ctx context.Context) {
	if s.record != nil {
		if err := s.record.Run(ctx); err != nil {
			s.log.Error("the audit record is not whole", "err", err)
		}
	}
	<-ctx.Done()
	s.endTracer()
	s.running.Wait()
}

// states returns the health of all clusters.
func states(keeper *roster.Keeper) (all []observe.ClusterState) {
	for _, c := range keeper.Roster().Clusters() {
		h := c.Health()
		all = append(all, observe.ClusterState{Name: c.Name, State: string(h.State), Since: h.Since, LastError: h.LastError, Success: h.Success})
	}
	return all
}

// sources returns the values that each scrape of the metrics reads.
func (s *sight) sources(keeper *roster.Keeper, fan *fanout.Server, expires func() time.Time) observe.Sources {
	from := observe.Sources{Clusters: func() []observe.ClusterState { return states(keeper) }, Owners: fan.Known, Certificate: expires,
		Traces: func() observe.TraceStats { return s.tracer.Load().Stats() }}
	if s.record != nil {
		from.Record = s.record.Stats
	}
	return from
}

// adminPort returns the handler of the admin server.
func (s *sight) adminPort(keeper *roster.Keeper, fan *fanout.Server, opens func(string) bool, ready func() error, profiles bool) http.Handler {
	p := &adminport.Port{
		Ready: ready, Opens: opens, Gatherer: s.observer.Metrics, Log: s.log, Profiles: profiles,
		Verbose: func() []string {
			lines := fan.Missing()
			if err := keeper.Err(); err != nil {
				lines = append([]string{"configuration: the last good one serves: " + err.Error()}, lines...)
			}
			return lines
		},
		Config:   func() any { return keeper.Roster().Document() },
		Clusters: func() []observe.ClusterState { return states(keeper) },
		Streams:  s.observer.Streams,
		Owners: func(key string) any {
			parts := strings.Split(key, "/")
			if len(parts) != 4 {
				return nil
			}
			if cluster := fan.Owner(apiproxy.Key{Group: parts[0], Resource: parts[1], Namespace: parts[2], Name: parts[3]}); cluster != "" {
				return map[string]string{"cluster": cluster}
			}
			return nil
		},
		Route: func(q adminport.RouteQuestion) (any, error) {
			return keeper.Roster().Table.Explain(q.Method, q.URL, q.UserAgent, "application/json", q.Body), nil
		},
	}
	return p.Handler()
}

// serve serves HTTP at one of the adapter's own addresses until ctx ends.
func serve(ctx context.Context, ln net.Listener, h http.Handler, log *slog.Logger) error {
	srv := &http.Server{Handler: h, ReadTimeout: adminTime, ReadHeaderTimeout: adminTime, WriteTimeout: 2 * adminTime, IdleTimeout: adminTime,
		MaxHeaderBytes: adminHeader, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelDebug), DisableGeneralOptionsHandler: true}
	ended := context.AfterFunc(ctx, func() { srv.Close() })
	defer ended()
	if err := srv.Serve(ln); ctx.Err() == nil {
		return fmt.Errorf("at %s: %w", ln.Addr(), err)
	}
	return nil
}

// listenMetrics binds the metrics address, which is reachable from outside the pod. It returns nil if addr is
// empty.
func listenMetrics(addr string) (net.Listener, error) {
	if addr == "" {
		return nil, nil
	}
	return net.Listen("tcp", addr)
}
