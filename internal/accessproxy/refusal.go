package accessproxy

import (
	"errors"
	"net/http"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/codec"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// A refusal is a response of the proxy itself.
type refusal struct {
	status     int
	code       problem.Code
	message    string // for people, with advice
	retryAfter time.Duration
}

// refusalStatus maps problems to statuses. Every other one is 403: never 401, because clients replace the sentence of a
// 401 by one of their own, and no status that makes a client ask again by itself.
var refusalStatus = map[problem.Code]int{
	problem.BadRequest: http.StatusBadRequest, problem.WrongHost: http.StatusMisdirectedRequest, problem.NotFound: http.StatusNotFound,
	problem.MethodNotAllowed: http.StatusMethodNotAllowed, problem.RateLimited: http.StatusTooManyRequests, problem.Internal: http.StatusInternalServerError,
	problem.IdentityUnavailable: http.StatusServiceUnavailable, problem.Unavailable: http.StatusServiceUnavailable, problem.AuditUnavailable: http.StatusServiceUnavailable,
}

// refusalOf converts an error to a refusal. An unknown error is an internal one, whose text is only in the log.
func (x *exchange) refusalOf(err error) *refusal {
	if r, ok := errors.AsType[*apiproxy.Refusal](err); ok {
		code := problem.BadRequest
		if r.Status == http.StatusMethodNotAllowed {
			code = problem.MethodNotAllowed
		}
		return &refusal{status: r.Status, code: code, message: r.Message, retryAfter: r.RetryAfter}
	}
	p := problem.From(err)
	r := &refusal{status: http.StatusForbidden, code: p.Code, message: strings.Join(append([]string{p.Message}, p.Advice...), " "), retryAfter: p.RetryAfter}
	if status, ok := refusalStatus[p.Code]; ok {
		r.status = status
	}
	if p.Cause() != nil {
		x.proxy.Log.Warn("a request was refused", "audit", x.id, "code", p.Code, "err", p.Cause())
	}
	return r
}

// refuse answers with a refusal. The body is a Status in the encoding that the client prefers. For discovery, OpenAPI and
// the version it is plain text, because kubectl prints a JSON 403 of those as "unknown".
func (x *exchange) refuse(err error) {
	r := x.refusalOf(err)
	x.refused, x.status = r, r.status
	message := "tailplane: " + r.message + " (audit id " + x.id + ")"
	h := x.w.Header()
	var body []byte
	if x.isDiscovery() && r.status == http.StatusForbidden {
		h.Set("Content-Type", "text/plain; charset=utf-8")
		body = append(body, message+"\n"...)
	} else {
		form := codec.Format{Proto: apiproxy.PrefersProtobuf(x.r.Header["Accept"])}
		s := codec.Status{Message: message, Reason: apiproxy.ReasonOf(r.status), Code: r.status, RetryAfter: seconds(r.retryAfter)}
		if x.request != nil && !x.request.NonResource {
			s.Name, s.Group, s.Resource = x.request.Name, x.request.Group, x.request.Resource
		}
		h.Set("Content-Type", form.MediaType(false))
		body = s.Append(nil, form.Proto)
	}
	if r.retryAfter > 0 {
		h.Set("Retry-After", strconv.Itoa(seconds(r.retryAfter)))
	}
	h.Set("Content-Length", strconv.Itoa(len(body)))
	h.Set("Cache-Control", "no-store")
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Audit-Id", x.id)
	if x.r.Header["Upgrade"] != nil {
		h.Set("Connection", "close") // bytes that the client sends after the request are not read (PX-06)
	}
	x.w.WriteHeader(r.status)
	n, _ := x.w.Write(body) // a client that has left needs no response
	x.bytes += int64(n)
}

// seconds returns d in whole seconds, rounded up.
func seconds(d time.Duration) int { return int((d + time.Second - 1) / time.Second) }

// isDiscovery reports whether the path is one that kubectl reads before it sends a request for a resource.
func (x *exchange) isDiscovery() bool {
	path := x.path
	if !x.named { // an early refusal, before the session was read
		path = x.r.URL.EscapedPath()
		if rest, ok := strings.CutPrefix(path, signin.SessionPrefix); ok {
			_, path, _ = strings.Cut(rest, "/")
			path = "/" + path
		}
	}
	path = strings.TrimSuffix(path, "/")
	parts := strings.Split(path, "/") // "", "apis", group, version
	switch {
	case path == "/version", path == "/openapi", strings.HasPrefix(path, "/openapi/"):
		return true
	case len(parts) > 1 && parts[1] == "api":
		return len(parts) <= 3
	case len(parts) > 1 && parts[1] == "apis":
		return len(parts) <= 4
	}
	return false
}
