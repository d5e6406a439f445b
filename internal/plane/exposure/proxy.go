package exposure

import (
	"bytes"
	"encoding/json"
	"errors"
	"log"
	"log/slog"
	"net/http"
	"net/http/httputil"
	"net/url"
	"path"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/problem"
)

// maxBody is the maximum size of a request body to an Observe upstream, in bytes.
const maxBody = 10 << 20

// NewTransport returns the transport to upstreams. It connects directly and ignores proxy settings of the environment.
func NewTransport() *http.Transport {
	return &http.Transport{
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 2 * time.Minute, // Prometheus' maximum query time
		IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 16,
		DisableCompression: true, // pass bytes through unchanged
	}
}

// proxy forwards requests to one upstream.
type proxy struct {
	Upstream
	target *url.URL
	log    *log.Logger
}

func newProxy(u Upstream) *proxy {
	if err := u.Check(); err != nil {
		panic(err)
	}
	target, _ := u.target()                                                       // Check has validated it
	return &proxy{u, target, slog.NewLogLogger(u.Log.Handler(), slog.LevelDebug)} // mostly about clients that disconnect
}

// serve forwards one request that the server has admitted for the verb v.
func (p *proxy) serve(w http.ResponseWriter, r *http.Request, permit access.Permit, v access.Verb) {
	if p.Access == AccessObserve {
		if err := permit.Require(v, p.Now()); err != nil {
			refuse(w, problem.From(err))
			return
		}
	}
	switch {
	case !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, r.Method):
		refuse(w, problem.New(problem.MethodNotAllowed, "This address does not support this method.", "Use GET, HEAD, POST, PUT, PATCH or DELETE."))
		return
	case v == access.ObserveRead && isAdminPath(r.URL.Path):
		refuse(w, problem.New(problem.NotFound, "This path does not exist.", "Use the upstream's own paths."))
		return
	case p.Access != AccessIdentified && r.ContentLength > maxBody:
		refuse(w, tooLarge())
		return
	case p.Access != AccessIdentified && r.Body != nil:
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || len(r.Header["Upgrade"]) != 1 {
		delete(r.Header, "Upgrade") // another protocol could not be inspected
	}
	defer func() {
		switch broken := recover(); broken {
		case nil:
		case http.ErrAbortHandler:
			abort(w)
		default:
			panic(broken)
		}
	}()
	reverse := httputil.ReverseProxy{Rewrite: func(pr *httputil.ProxyRequest) { p.rewrite(pr, permit) }, ModifyResponse: p.modifyResponse, ErrorHandler: p.handleError,
		Transport: p.Transport, ErrorLog: p.log}
	reverse.ServeHTTP(w, r)
}

// isAdminPath reports whether a path looks like one that changes Prometheus, at any depth. The paths in Routes need their own verb; this
// catches any others.
func isAdminPath(name string) bool {
	name = path.Clean("/"+strings.ToLower(name)) + "/"
	for _, p := range []string{"/-/reload/", "/-/quit/", "/api/v1/admin/"} {
		if strings.Contains(name, p) {
			return true
		}
	}
	return false
}

// rewrite makes the request to the upstream. The headers that the client's Connection header lists are already removed, so the client
// cannot remove the headers set here.
func (p *proxy) rewrite(pr *httputil.ProxyRequest, permit access.Permit) {
	out := pr.Out
	identity.Strip(out.Header)
	for name := range out.Header {
		if !headerPattern.MatchString(name) { // such as X_WEBAUTH_USER, which many servers read as X-WEBAUTH-USER
			delete(out.Header, name)
		}
	}
	out.Trailer = nil
	pr.SetURL(p.target) // and the Host
	if out.Header.Get("Origin") != "" {
		// The server has checked that Origin is its own. The upstream knows only its own name.
		out.Header.Set("Origin", p.target.Scheme+"://"+p.target.Host)
	}
	if p.Access == AccessIdentified {
		return
	}
	out.Header.Del("Authorization") // the upstream would prefer it to the headers set here
	if p.UserHeader != "" {
		out.Header.Set(p.UserHeader, string(permit.Caller().Login))
	}
	if p.RoleHeader != "" {
		out.Header.Set(p.RoleHeader, grafanaRole(permit))
	}
}

// modifyResponse corrects the response: the upstream does not know its name on the tailnet, nor who may read its responses.
func (p *proxy) modifyResponse(res *http.Response) error {
	for name := range res.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(res.Header, name) // Prometheus lets every page read its responses
		}
	}
	res.Header.Del("Alt-Svc")
	if at := res.Header.Get("Location"); at != "" {
		if to, err := url.Parse(at); err == nil && (to.Host == "" || to.Host == p.target.Host) && to.User == nil && strings.HasPrefix(to.Path, "/") {
			to.Scheme, to.Host = "", ""
			if base := strings.TrimSuffix(p.target.Path, "/"); base != "" {
				if rest, below := strings.CutPrefix(to.Path, base+"/"); below {
					to.Path, to.RawPath = "/"+rest, ""
				}
			}
			// A path that begins with two slashes would name another host.
			to.Path = "/" + strings.TrimLeft(to.Path, "/")
			if to.RawPath != "" {
				to.RawPath = "/" + strings.TrimLeft(to.RawPath, "/")
			}
			res.Header.Set("Location", to.String())
		}
	}
	return nil
}

func tooLarge() *problem.Error {
	return problem.New(problem.TooLarge, "The request is larger than 10 MiB.", "Send a smaller request.")
}

// handleError responds when the upstream does not.
func (p *proxy) handleError(w http.ResponseWriter, r *http.Request, err error) {
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		refuse(w, tooLarge())
		return
	}
	if r.Context().Err() == nil { // otherwise the client has disconnected or lost its role
		p.Log.Warn("an exposed service does not respond", "exposure", p.Name, "err", err)
	}
	refuse(w, problem.New(problem.Unavailable, p.Name+" does not respond.", "Try again in a moment."))
}

// refuse responds with a problem, in the format of the sign-in API.
func refuse(w http.ResponseWriter, e *problem.Error) {
	var body bytes.Buffer
	enc := json.NewEncoder(&body)
	enc.SetEscapeHTML(false)
	_ = enc.Encode(e) // strings only
	h := w.Header()
	h.Set("Content-Type", "application/json")
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	if e.Code.Status() == http.StatusServiceUnavailable {
		h.Set("Retry-After", "1")
	}
	w.WriteHeader(e.Code.Status())
	w.Write(body.Bytes()) // the client may have disconnected
}

// abort closes the connection of an incomplete response, so that the client does not take it for a complete one. The server would end it
// normally.
func abort(w http.ResponseWriter) {
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		c.Close()
	}
}
