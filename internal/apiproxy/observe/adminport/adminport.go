// Package adminport is the adapter's admin server. It serves readiness and metrics, and internal state to
// callers with the pod's local token. It keeps law 4: web pages and rebound DNS names get no response.
package adminport

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
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
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
	"github.com/tailplane/tailplane/internal/apiproxy/observe/text"
	"github.com/tailplane/tailplane/internal/printable"
	"github.com/tailplane/tailplane/internal/profile"
)

// Port is the admin server of one adapter. It listens on a loopback address:
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
type Port struct {
	Ready    func() error            // nil if ready, otherwise the reason
	Opens    func(token string) bool // checks the local token
	Gatherer prometheus.Gatherer
	Log      *slog.Logger

	Verbose  func() []string // optional: lines for /readyz?verbose, in addition to those of Clusters
	Config   func() any      // encoded as JSON; this and the next ones are optional: 404 if nil
	Clusters func() []observe.ClusterState
	Streams  func() []observe.OpenStream      // Observer.Streams
	Owners   func(key string) any             // nil if no cluster is known to have the object
	Route    func(RouteQuestion) (any, error) // an error is a *[apiproxy.Refusal], or internal
	Profiles bool                             // optional: serve profiles of the process
}

// RouteQuestion is a request whose routing is to be explained.
type RouteQuestion struct {
	Method    string          `json:"method"`
	Path      string          `json:"path"` // with its query
	UserAgent string          `json:"userAgent,omitempty"`
	Body      json.RawMessage `json:"body,omitempty"` // of a create

	URL *url.URL `json:"-"` // parsed Path
}

// Limits of the admin server.
const (
	maxQuestion = 3 << 20
	maxScrapes  = 4
)

// Handler returns the handler of the admin server.
func (p *Port) Handler() http.Handler {
	if p.Ready == nil || p.Opens == nil || p.Gatherer == nil || p.Log == nil {
		panic("adminport: a required field is missing")
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /healthz", func(w http.ResponseWriter, _ *http.Request) { say(w, http.StatusOK, "ok\n") })
	mux.HandleFunc("GET /readyz", p.readyz)
	mux.Handle("GET /metrics", scrapes(p.Gatherer, p.Log))
	if p.Config != nil {
		mux.HandleFunc("GET /debug/config", func(w http.ResponseWriter, _ *http.Request) { p.show(w, p.Config()) })
	}
	if p.Clusters != nil {
		mux.HandleFunc("GET /debug/clusters", func(w http.ResponseWriter, _ *http.Request) {
			all := slices.Clone(p.Clusters())
			for i := range all {
				all[i].LastError = text.Clean(all[i].LastError)
			}
			p.show(w, all)
		})
	}
	if p.Streams != nil {
		mux.HandleFunc("GET /debug/streams", func(w http.ResponseWriter, _ *http.Request) { p.show(w, p.Streams()) })
	}
	if p.Owners != nil {
		mux.HandleFunc("GET /debug/owners", p.owners)
	}
	if p.Route != nil {
		mux.HandleFunc("POST /debug/route", p.route)
	}
	if p.Profiles {
		mux.HandleFunc(profile.Path, profile.Serve)
	}
	return guard(loopbackHost, func(w http.ResponseWriter, r *http.Request) {
		if (r.URL.Path == "/debug" || strings.HasPrefix(r.URL.Path, "/debug/")) && !p.holds(r) {
			w.Header().Set("WWW-Authenticate", "Bearer")
			say(w, http.StatusUnauthorized, "the request does not carry the token of this pod\n")
			return
		}
		mux.ServeHTTP(w, r)
	})
}

// Metrics returns a handler for /metrics only, for an address that is reachable from outside the pod.
func Metrics(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", scrapes(g, log))
	return guard(clusterHost, mux.ServeHTTP)
}

func scrapes(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: maxScrapes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)})
}

// guard refuses requests of web pages and ambiguous paths.
func guard(ours func(host string) bool, next http.HandlerFunc) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Cache-Control", "no-store")
		h.Set("X-Content-Type-Options", "nosniff")
		host, _, err := net.SplitHostPort(r.Host)
		if err != nil {
			host = r.Host
		}
		host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
		site := r.Header.Get("Sec-Fetch-Site")
		switch {
		case !ours(host):
			say(w, http.StatusMisdirectedRequest, "this is not the host that the request names\n")
		case site != "" && site != "none" && site != "same-origin", len(r.Header["Origin"]) > 0:
			say(w, http.StatusForbidden, "requests from a page of the web are refused\n")
		case path.Clean(r.URL.Path) != strings.TrimSuffix(r.URL.Path, "/") && r.URL.Path != "/":
			say(w, http.StatusNotFound, "not here\n")
		default:
			next(w, r)
		}
	})
}

func loopbackHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err == nil && addr.IsLoopback() || host == "localhost"
}

// clusterHost accepts only hosts that an outsider cannot control: an address, or a name of the cluster's DNS.
func clusterHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".svc.cluster.local")
}

// holds reports whether the request has the local token as its only bearer token.
func (p *Port) holds(r *http.Request) bool {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	return ok && strings.EqualFold(scheme, "Bearer") && p.Opens(strings.TrimSpace(token))
}

func (p *Port) readyz(w http.ResponseWriter, r *http.Request) {
	var b strings.Builder
	status := http.StatusOK
	if r.URL.Query().Has("verbose") {
		if p.Verbose != nil {
			for _, l := range p.Verbose() {
				b.WriteString(oneLine(l))
			}
		}
		if p.Clusters != nil {
			for _, c := range p.Clusters() {
				l := fmt.Sprintf("cluster %s: %s since %s", c.Name, c.State, c.Since.UTC().Format(time.RFC3339))
				if c.State != "healthy" && c.LastError != "" {
					l += ": " + c.LastError
				}
				b.WriteString(oneLine(l))
			}
		}
	}
	if err := p.Ready(); err != nil {
		status = http.StatusServiceUnavailable
		b.WriteString(oneLine("not ready: " + err.Error()))
	} else {
		b.WriteString("ok\n")
	}
	say(w, status, b.String())
}

// oneLine returns a text as one printable line.
func oneLine(s string) string {
	s = text.Clean(s)
	if !text.Printable(s) {
		s = fmt.Sprintf("%+q", s)
	}
	return s + "\n"
}

func (p *Port) owners(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	if len(q["key"]) != 1 || q.Get("key") == "" {
		say(w, http.StatusBadRequest, "ask with ?key=\n")
		return
	}
	owner := p.Owners(q.Get("key"))
	if owner == nil {
		say(w, http.StatusNotFound, "no cluster is known to have it\n")
		return
	}
	p.show(w, owner)
}

func (p *Port) route(w http.ResponseWriter, r *http.Request) {
	var q RouteQuestion
	d := json.NewDecoder(http.MaxBytesReader(w, r.Body, maxQuestion))
	d.DisallowUnknownFields()
	err := d.Decode(&q)
	if err == nil && d.Decode(new(json.RawMessage)) != io.EOF {
		err = errors.New("something follows the question")
	}
	if err == nil {
		q.URL, err = url.ParseRequestURI(q.Path)
	}
	if err == nil && !slices.Contains([]string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"}, q.Method) {
		err = fmt.Errorf("%.20q is no method that the Kubernetes API has", q.Method)
	}
	if err != nil {
		say(w, http.StatusBadRequest, oneLine(`the question is not {"method": …, "path": …}: `+err.Error()))
		return
	}
	decision, err := p.Route(q)
	if refusal, ok := errors.AsType[*apiproxy.Refusal](err); ok {
		p.write(w, http.StatusOK, map[string]any{"refused": map[string]any{"status": refusal.Status, "reason": refusal.Reason, "message": text.Clean(refusal.Message)}})
		return
	}
	if err != nil {
		p.Log.Error("a question about routing failed", "err", err)
		say(w, http.StatusInternalServerError, "internal error\n")
		return
	}
	p.show(w, decision)
}

func (p *Port) show(w http.ResponseWriter, what any) { p.write(w, http.StatusOK, what) }

func (p *Port) write(w http.ResponseWriter, status int, what any) {
	b, err := json.MarshalIndent(what, "", "  ")
	if err != nil {
		p.Log.Error("an answer of the admin port cannot be encoded", "err", err)
		say(w, http.StatusInternalServerError, "internal error\n")
		return
	}
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(status)
	w.Write(append(printable.JSON(b), '\n')) // a caller that disconnected needs no response
}

func say(w http.ResponseWriter, status int, what string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	io.WriteString(w, what)
}
