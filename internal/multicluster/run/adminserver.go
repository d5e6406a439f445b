package run

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/prometheus/client_golang/prometheus"
	"github.com/prometheus/client_golang/prometheus/promhttp"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/util/origin"
	"github.com/tailplane/tailplane/internal/util/profile"
	"github.com/tailplane/tailplane/internal/util/sanitize"
	"github.com/tailplane/tailplane/internal/util/strictjson"
)

// AdminServer is the admin server of one adapter. It listens on a loopback address:
//
//	GET  /healthz        200 while the process responds
//	GET  /readyz         200 while the adapter is ready; ?verbose adds details
//	GET  /metrics        Prometheus and OpenMetrics text
//	GET  /debug/config   the current configuration, without secrets
//	GET  /debug/clusters the health of the clusters
//	GET  /debug/streams  the open streams
//	GET  /debug/owners   ?key=: the cluster that has an object
//	POST /debug/route    explains how a given request would be routed
//	GET  /debug/pprof/   only with Profiles
//
// Requests below /debug need the local token. Fields without a remark are required.
type AdminServer struct {
	Ready      func() error            // nil if ready, otherwise the reason
	ValidToken func(token string) bool // checks the local token
	Gatherer   prometheus.Gatherer
	Log        *slog.Logger

	ReadyDetails func() []string // lines for /readyz?verbose, in addition to those of Clusters
	Config       func() any      // encoded as JSON
	Clusters     func() []apiproxy.UpstreamStatus
	Streams      func() []apiproxy.OpenStream    // Telemetry.OpenStreams
	Owners       func(key string) any            // nil if no cluster is known to have the object
	Route        func(RouteRequest) (any, error) // an error is a *[apiproxy.Refusal], or internal
	Profiles     bool                            // optional: serve profiles of the process
}

// RouteRequest is a request whose routing is to be explained.
type RouteRequest struct {
	Method    string          `json:"method"`
	Path      string          `json:"path"` // with its query
	UserAgent string          `json:"userAgent,omitempty"`
	Body      json.RawMessage `json:"body,omitempty"` // of a create

	URL *url.URL `json:"-"` // parsed Path
}

// Limits of the admin server.
const (
	maxRouteRequest = 3 << 20
	maxScrapes      = 4
)

// Handler returns the handler of the admin server.
func (p *AdminServer) Handler() http.Handler {
	if p.Ready == nil || p.ValidToken == nil || p.Gatherer == nil || p.Log == nil || p.ReadyDetails == nil ||
		p.Config == nil || p.Clusters == nil || p.Streams == nil || p.Owners == nil || p.Route == nil {
		panic("run.AdminServer: a required field is missing")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { writeText(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", p.readyz)
	mux.Handle("GET /metrics", scrapeHandler(p.Gatherer, p.Log))
	mux.HandleFunc("GET /debug/config", func(w http.ResponseWriter, _ *http.Request) { p.writeJSON(w, p.Config()) })
	mux.HandleFunc("GET /debug/clusters", func(w http.ResponseWriter, _ *http.Request) {
		all := slices.Clone(p.Clusters())
		for i := range all {
			all[i].LastError = apiproxy.Sanitize(all[i].LastError)
		}
		p.writeJSON(w, all)
	})
	mux.HandleFunc("GET /debug/streams", func(w http.ResponseWriter, _ *http.Request) { p.writeJSON(w, p.Streams()) })
	mux.HandleFunc("GET /debug/owners", p.owners)
	mux.HandleFunc("POST /debug/route", p.route)
	if p.Profiles {
		mux.HandleFunc(profile.Path, profile.Serve)
	}
	return checkRequest(isLoopbackHost, func(w http.ResponseWriter, r *http.Request) {
		if (r.URL.Path == "/debug" || strings.HasPrefix(r.URL.Path, "/debug/")) && !apiproxy.HasBearerToken(r, p.ValidToken) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			writeText(w, http.StatusUnauthorized, "the request does not have the token of this pod\n")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// MetricsHandler returns a handler for /metrics only, for an address that is reachable from outside the pod.
func MetricsHandler(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", scrapeHandler(g, log))
	return checkRequest(origin.IsClusterHost, mux.ServeHTTP)
}

func scrapeHandler(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(
		g,
		promhttp.HandlerOpts{
			EnableOpenMetrics:   true,
			MaxRequestsInFlight: maxScrapes,
			ErrorLog:            slog.NewLogLogger(log.Handler(), slog.LevelWarn),
		},
	)
}

// checkRequest refuses requests of web pages and ambiguous paths. It is stricter than [origin.IsCrossSite]: it also refuses the own
// origin, because the server has no pages.
func checkRequest(allowed func(host string) bool, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		switch {
		case !allowed(origin.Host(r)):
			writeText(w, http.StatusMisdirectedRequest, "the request is for another host\n")
		case origin.IsCrossSite(r), len(r.Header["Origin"]) > 0:
			writeText(w, http.StatusForbidden, "requests from web pages are refused\n")
		case path.Clean(r.URL.Path) != strings.TrimSuffix(r.URL.Path, "/") && r.URL.Path != "/":
			writeText(w, http.StatusNotFound, "not here\n")
		default:
			next(w, r)
		}
	})
}

// isLoopbackHost reports whether host is a loopback address or localhost. The server listens on loopback only, so it accepts fewer
// hosts than [origin.IsClusterHost].
func isLoopbackHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback() || host == "localhost"
}

func (p *AdminServer) readyz(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	status := http.StatusOK
	if r.URL.Query().Has("verbose") {
		for _, l := range p.ReadyDetails() {
			b.WriteString(printableLine(l))
		}
		for _, c := range p.Clusters() {
			l := fmt.Sprintf("cluster %s: %s since %s", c.Name, c.State, c.Since.UTC().Format(time.RFC3339))
			if c.State != "healthy" && c.LastError != "" {
				l += ": " + c.LastError
			}
			b.WriteString(printableLine(l))
		}
	}
	if err := p.Ready(); err != nil {
		status = http.StatusServiceUnavailable
		b.WriteString(printableLine("not ready: " + err.Error()))
	} else {
		b.WriteString("ok\n")
	}
	writeText(w, status, b.String())
}

// printableLine returns a text as one printable line.
func printableLine(s string) string {
	s = apiproxy.Sanitize(s)
	if !apiproxy.IsPrintable(s) {
		s = fmt.Sprintf("%+q", s)
	}
	return s + "\n"
}

func (p *AdminServer) owners(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if len(q["key"]) != 1 || q.Get("key") == "" {
		writeText(w, http.StatusBadRequest, "the query needs ?key=\n")
		return
	}
	owner := p.Owners(q.Get("key"))
	if owner == nil {
		writeText(w, http.StatusNotFound, "no cluster is known to have it\n")
		return
	}
	p.writeJSON(w, owner)
}

func (p *AdminServer) route(w http.ResponseWriter, r *http.Request) {
	var q RouteRequest
	body, err := io.ReadAll(http.MaxBytesReader(w, r.Body, maxRouteRequest))
	if err == nil {
		err = strictjson.UnmarshalKnown(body, &q)
	}
	if err == nil {
		q.URL, err = url.ParseRequestURI(q.Path)
	}
	if err == nil && !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, q.Method) {
		err = fmt.Errorf("%.20q is not a method of the Kubernetes API", q.Method)
	}
	if err != nil {
		writeText(w, http.StatusBadRequest, printableLine(`the body is not {"method": …, "path": …}: `+err.Error()))
		return
	}
	decision, err := p.Route(q)
	if refusal, ok := errors.AsType[*apiproxy.Refusal](err); ok {
		p.writeJSON(
			w,
			map[string]any{
				"refused": map[string]any{
					"status":  refusal.Status,
					"reason":  refusal.Reason,
					"message": apiproxy.Sanitize(refusal.Message),
				},
			},
		)
		return
	}
	if err != nil {
		p.Log.Error("a routing query failed", "err", err)
		writeText(w, http.StatusInternalServerError, "internal error\n")
		return
	}
	p.writeJSON(w, decision)
}

func (p *AdminServer) writeJSON(w http.ResponseWriter, value any) {
	b, err := json.MarshalIndent(value, "", "  ")
	if err != nil {
		p.Log.Error("an answer of the admin port cannot be encoded", "err", err)
		writeText(w, http.StatusInternalServerError, "internal error\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.Write(append(sanitize.JSON(b), '\n')) // a caller that disconnected needs no response
}

func writeText(w http.ResponseWriter, status int, value string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	io.WriteString(w, value)
}
