package expose

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

// maxBody bounds what is sent to an upstream that only shows things.
const maxBody = 10 << 20

// NewTransport returns how upstreams are reached: directly, by no proxy that the
// environment names.
func NewTransport() *http.Transport {
	return &http.Transport{
		TLSHandshakeTimeout: 5 * time.Second, ResponseHeaderTimeout: 2 * time.Minute, // the longest that Prometheus lets a query take
		IdleConnTimeout: time.Minute, MaxIdleConnsPerHost: 16,
		DisableCompression: true, // bytes go as they come
	}
}

// proxy carries requests to one upstream.
type proxy struct {
	Upstream
	target *url.URL
	log    *log.Logger
}

func newProxy(u Upstream) *proxy {
	if err := u.Check(); err != nil {
		panic(err)
	}
	target, _ := u.target()                                                       // which Check has seen
	return &proxy{u, target, slog.NewLogLogger(u.Log.Handler(), slog.LevelDebug)} // of clients that leave, mostly
}

// serve carries one request that the door has let in for the verb v.
func (p *proxy) serve(w http.ResponseWriter, r *http.Request, permit access.Permit, v access.Verb) {
	if p.Access == Observe {
		if err := permit.Require(v, p.Now()); err != nil {
			refuse(w, problem.From(err))
			return
		}
	}
	switch {
	case !slices.Contains([]string{http.MethodGet, http.MethodHead, http.MethodPost, http.MethodPut, http.MethodPatch, http.MethodDelete}, r.Method):
		refuse(w, problem.New(problem.MethodNotAllowed, "This address does not take that method.", "Use GET, HEAD, POST, PUT, PATCH or DELETE."))
		return
	case v == access.ObserveRead && administers(r.URL.Path):
		refuse(w, problem.New(problem.NotFound, "There is nothing at this path.", "Use the upstream's own paths."))
		return
	case p.Access != Identified && r.ContentLength > maxBody:
		refuse(w, tooLarge())
		return
	case p.Access != Identified && r.Body != nil:
		r.Body = http.MaxBytesReader(w, r.Body, maxBody)
	}
	if !strings.EqualFold(r.Header.Get("Upgrade"), "websocket") || len(r.Header["Upgrade"]) != 1 {
		delete(r.Header, "Upgrade") // to another protocol, in which nobody would look into requests
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
	reverse := httputil.ReverseProxy{Rewrite: func(pr *httputil.ProxyRequest) { p.rewrite(pr, permit) }, ModifyResponse: p.answer, ErrorHandler: p.failed,
		Transport: p.Transport, ErrorLog: p.log}
	reverse.ServeHTTP(w, r)
}

// administers reports whether a path has the form of what changes Prometheus, at
// any depth. Those that Routes lists have a verb of their own; there may be more.
func administers(name string) bool {
	name = path.Clean("/"+strings.ToLower(name)) + "/"
	for _, p := range []string{"/-/reload/", "/-/quit/", "/api/v1/admin/"} {
		if strings.Contains(name, p) {
			return true
		}
	}
	return false
}

// rewrite makes the request that the upstream gets. Headers that the client's
// Connection lists are gone by now, so that it cannot take away what is set here.
func (p *proxy) rewrite(pr *httputil.ProxyRequest, permit access.Permit) {
	out := pr.Out
	identity.Strip(out.Header)
	for name := range out.Header {
		if !headerForm.MatchString(name) { // X_WEBAUTH_USER, which many read as X-WEBAUTH-USER
			delete(out.Header, name)
		}
	}
	out.Trailer = nil
	pr.SetURL(p.target) // and the Host
	if out.Header.Get("Origin") != "" {
		// The door has seen that it is ours. The upstream knows its own name only.
		out.Header.Set("Origin", p.target.Scheme+"://"+p.target.Host)
	}
	if p.Access == Identified {
		return
	}
	out.Header.Del("Authorization") // the upstream would believe it rather than us
	if p.UserHeader != "" {
		out.Header.Set(p.UserHeader, string(permit.Caller().Login))
	}
	if p.RoleHeader != "" {
		out.Header.Set(p.RoleHeader, role(permit))
	}
}

// answer mends what the upstream answers: it does not know under which name it
// is asked, nor who may read its answers.
func (p *proxy) answer(res *http.Response) error {
	for name := range res.Header {
		if strings.HasPrefix(name, "Access-Control-") {
			delete(res.Header, name) // Prometheus lets every page read it
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
			// A path that begins with two slashes would name another host by itself.
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
	return problem.New(problem.TooLarge, "The request is larger than 10 MiB.", "Send less at once.")
}

// failed answers for an upstream that does not.
func (p *proxy) failed(w http.ResponseWriter, r *http.Request, err error) {
	if _, over := errors.AsType[*http.MaxBytesError](err); over {
		refuse(w, tooLarge())
		return
	}
	if r.Context().Err() == nil { // else the client has left, or lost its role
		p.Log.Warn("an exposed service does not answer", "exposure", p.Name, "err", err)
	}
	refuse(w, problem.New(problem.Unavailable, p.Name+" does not answer.", "Try again in a moment."))
}

// refuse answers with a problem, in the sign-in API's form.
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
	w.Write(body.Bytes()) // the client may have left
}

// abort ends the connection of an answer that broke off, so that nobody takes
// what there is of it for all. The door would end it in good order.
func abort(w http.ResponseWriter) {
	if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
		c.Close()
	}
}
