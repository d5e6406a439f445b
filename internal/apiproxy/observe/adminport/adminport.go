// Package adminport answers who runs an adapter: whether it is ready, its metrics,
// and to who holds the local token of the pod how it works inside. It keeps law 4:
// no page of the web and no name that was rebound gets an answer.
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

// A Port is the admin port of one adapter, on a loopback address:
//
//	GET  /healthz        200 while it can answer at all
//	GET  /readyz         200 while it is ready; ?verbose says what it knows
//	GET  /metrics        Prometheus and OpenMetrics text
//	GET  /debug/config   the document that is served, without secrets
//	GET  /debug/clusters how they do
//	GET  /debug/streams  what is open
//	GET  /debug/owners   ?key=: which cluster has an object
//	POST /debug/route    a request in, what would become of it and why out
//	GET  /debug/pprof/   with Profiles only
//
// What is below /debug needs the local token. Fields without a remark are required.
type Port struct {
	Ready    func() error            // why not
	Opens    func(token string) bool // is it the local token
	Gatherer prometheus.Gatherer
	Log      *slog.Logger

	Verbose  func() []string // optional: lines for /readyz?verbose, beside those of Clusters
	Config   func() any      // encoded as JSON; optional, as the next ones: 404 where it is nil
	Clusters func() []observe.ClusterState
	Streams  func() []observe.OpenStream      // Observer.Streams
	Owners   func(key string) any             // nil if nobody is known to have it
	Route    func(RouteQuestion) (any, error) // an error is a *[apiproxy.Refusal], or internal
	Profiles bool                             // optional: serve profiles of the process
}

// A RouteQuestion asks what would become of a request.
type RouteQuestion struct {
	Method    string          `json:"method"`
	Path      string          `json:"path"` // with its query
	UserAgent string          `json:"userAgent,omitempty"`
	Body      json.RawMessage `json:"body,omitempty"` // of a create

	URL *url.URL `json:"-"` // Path, parsed
}

// Bounds of the admin port.
const (
	maxQuestion = 3 << 20
	maxScrapes  = 4
)

// Handler returns the routes of the admin port.
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

// Metrics serves /metrics alone, for an address that others reach.
func Metrics(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	mux := http.NewServeMux()
	mux.Handle("GET /metrics", scrapes(g, log))
	return guard(clusterHost, mux.ServeHTTP)
}

func scrapes(g prometheus.Gatherer, log *slog.Logger) http.Handler {
	return promhttp.HandlerFor(g, promhttp.HandlerOpts{EnableOpenMetrics: true, MaxRequestsInFlight: maxScrapes, ErrorLog: slog.NewLogLogger(log.Handler(), slog.LevelWarn)})
}

// guard keeps web pages out, and paths that could be read in two ways.
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

// clusterHost allows what nobody outside can have a name resolve to: an address,
// or a name of the cluster's own DNS.
func clusterHost(host string) bool {
	_, err := netip.ParseAddr(host)
	return err == nil || host == "localhost" || strings.HasSuffix(host, ".svc") || strings.HasSuffix(host, ".svc.cluster.local")
}

// holds says whether the request carries the local token, as one bearer token.
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

// oneLine is a text that may have parts of others' as a line for a terminal.
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
	w.Write(append(printable.JSON(b), '\n')) // who does not read it does not want it
}

func say(w http.ResponseWriter, status int, what string) {
	w.Header().Set("Content-Type", "text/plain; charset=utf-8")
	w.WriteHeader(status)
	io.WriteString(w, what)
}
