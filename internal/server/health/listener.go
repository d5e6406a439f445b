// Package health exposes a process's liveness, readiness and metrics to its operator. It keeps law 7: each request reports a failed
// dependency as failed at that moment. Labels use only closed sets of values, so a remote party cannot create a series.
package health

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"path"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tailplane/tailplane/internal/httpapi/framing"
	"github.com/tailplane/tailplane/internal/util/origin"
)

// Listener serves probes and scrapes on its own address, which is never on the tailnet. Fields are required unless noted otherwise.
//
//	/livez            200 while the process can answer at all
//	/readyz           200 while every check passes; ?verbose lists them
//	/metrics          Prometheus and OpenMetrics text
type Listener struct {
	Address  string // "host:port"; port 0 selects a free port
	Gatherer prometheus.Gatherer
	Log      *slog.Logger

	// Handlers holds further handlers, by pattern. It is optional.
	Handlers map[string]http.Handler

	mu       sync.Mutex
	checks   []check
	stopping bool
}

type check struct {
	name string
	pass func(context.Context) error
}

// Limits of one request and of one check.
const (
	headerTime   = 5 * time.Second
	writeTime    = 15 * time.Second
	idleTime     = 60 * time.Second
	maxHeader    = 8 << 10
	checkTime    = 2 * time.Second
	gatherTime   = 10 * time.Second
	maxScrapes   = 4
	shutdownTime = time.Second
)

// AddCheck makes readiness depend on pass. The error of pass is a sentence that must not contain a secret. A check of the same name is
// replaced.
func (l *Listener) AddCheck(name string, pass func(context.Context) error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.checks = slices.DeleteFunc(l.checks, func(c check) bool { return c.name == name })
	l.checks = append(l.checks, check{name, pass})
}

// Stop makes the process permanently not ready, because it is about to end.
func (l *Listener) Stop() {
	l.mu.Lock()
	defer l.mu.Unlock()
	l.stopping = true
}

// Result is the result of one check.
type Result struct {
	Name string
	Err  error // nil: the check passes
}

// Results runs all checks concurrently, for at most two seconds.
func (l *Listener) Results(ctx context.Context) []Result {
	l.mu.Lock()
	checks, stopping := slices.Clone(l.checks), l.stopping
	l.mu.Unlock()
	if stopping {
		checks = append(checks, check{"shutdown", func(context.Context) error { return errors.New("the process is stopping") }})
	}
	results := make([]Result, len(checks))
	ctx, cancel := context.WithTimeout(ctx, checkTime)
	defer cancel()
	var wg sync.WaitGroup
	for i, c := range checks {
		wg.Go(func() { results[i] = Result{c.name, c.pass(ctx)} })
	}
	wg.Wait()
	return results
}

// Ready reports whether all checks pass.
func (l *Listener) Ready(ctx context.Context) bool {
	return !slices.ContainsFunc(l.Results(ctx), func(r Result) bool { return r.Err != nil })
}

// Run listens until ctx ends. It logs the actual address.
func (l *Listener) Run(ctx context.Context) error {
	ln, err := new(net.ListenConfig).Listen(ctx, "tcp", l.Address)
	if err != nil {
		return fmt.Errorf("health: %w", err)
	}
	l.Log.Info("health is served", "address", ln.Addr().String())
	srv := &http.Server{
		Handler: l.Handler(), ReadHeaderTimeout: headerTime, ReadTimeout: headerTime, WriteTimeout: writeTime, IdleTimeout: idleTime, MaxHeaderBytes: maxHeader,
		ErrorLog: slog.NewLogLogger(l.Log.Handler(), slog.LevelDebug),
	}
	served := make(chan error, 1)
	go func() { served <- srv.Serve(framing.Listener{Listener: ln}) }()
	select {
	case err := <-served:
		return fmt.Errorf("health: %w", err)
	case <-ctx.Done():
	}
	grace, cancel := context.WithTimeout(context.WithoutCancel(ctx), shutdownTime)
	defer cancel()
	if srv.Shutdown(grace) != nil {
		srv.Close()
	}
	<-served
	return nil
}

// Handler returns the handler of the listener.
func (l *Listener) Handler() http.Handler {
	mux := http.NewServeMux()
	mux.HandleFunc("GET /livez", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", l.readyz)
	mux.Handle("GET /metrics", promhttp.HandlerFor(l.Gatherer, promhttp.HandlerOpts{
		EnableOpenMetrics: true, MaxRequestsInFlight: maxScrapes, Timeout: gatherTime, ErrorLog: slog.NewLogLogger(l.Log.Handler(), slog.LevelWarn),
	}))
	for pattern, h := range l.Handlers {
		mux.Handle(pattern, h)
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		w.Header().Set("Cache-Control", "no-store")
		w.Header().Set("X-Content-Type-Options", "nosniff")
		// This listener does not know its names and ports: probes and scrapers come through addresses and Services. Thus it accepts all
		// hosts that no web page can own.
		if !origin.IsClusterHost(origin.Host(r)) {
			writeText(w, http.StatusMisdirectedRequest, "use an address, localhost or the name of a Service as the host\n")
			return
		}
		if origin.IsCrossSite(r) {
			writeText(w, http.StatusForbidden, "requests from pages of other sites are refused\n")
			return
		}
		if r.ContentLength != 0 { // a body could also hide another request
			w.Header().Set("Connection", "close")
			writeText(w, http.StatusBadRequest, "a probe must not have a body\n")
			return
		}
		if path.Clean(r.URL.Path) != r.URL.Path { // the mux would redirect other spellings
			writeText(w, http.StatusNotFound, "not here\n")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

func (l *Listener) readyz(w http.ResponseWriter, r *http.Request) {
	var text strings.Builder
	failed := 0
	for _, c := range l.Results(r.Context()) {
		if c.Err != nil {
			failed++
			fmt.Fprintf(&text, "[-]%s failed: %v\n", c.Name, c.Err)
		} else {
			fmt.Fprintf(&text, "[+]%s ok\n", c.Name)
		}
	}
	status, last := http.StatusOK, "ok\n"
	if failed > 0 {
		status, last = http.StatusServiceUnavailable, "not ready\n"
	}
	if !r.URL.Query().Has("verbose") && failed == 0 {
		text.Reset()
	}
	writeText(w, status, text.String()+last)
}

func writeText(w http.ResponseWriter, status int, text string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	fmt.Fprint(w, text) // the client may have disconnected
}
