package accessproxy

import (
	"context"
	"maps"
	"net"
	"net/http"
	"slices"
	"strconv"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// end records how the request ended.
func (x *exchange) end() {
	p := x.proxy
	if x.release != nil {
		x.release()
	}
	out := Outcome{Status: x.status, Bytes: x.bytes, Took: p.Now().Sub(x.began)}
	if x.request != nil {
		if out.Verb = x.request.Verb; x.request.NonResource {
			out.Verb = "nonresource"
		}
		out.Stream = string(apiproxy.StreamKindOf(x.request))
	}
	if x.refused != nil {
		out.Code = string(x.refused.code)
	}
	why, _ := x.cutReason()
	out.Cut = why.cause
	if p.Measure != nil {
		p.Measure(out)
	}
	if x.isRoutine() && !p.RecordAll || x.refused != nil && p.sums.isFlood(x) {
		p.sums.add(x)
		return
	}
	write := p.Record
	if x.isRead() && p.RecordLater != nil {
		write = p.RecordLater
	}
	p.record(write, x.entry())
}

// isRead reports whether the request has read objects, and was neither refused nor a stream into a container.
func (x *exchange) isRead() bool {
	return x.refused == nil && x.request != nil && x.upgrade == "" && slices.Contains([]string{"get", "list", "watch"}, x.request.Verb)
}

// record writes an entry. A lost entry is in the log.
func (p *Proxy) record(write func(audit.Entry) error, e audit.Entry) {
	if err := write(e); err != nil {
		p.Log.Error("an audit entry is lost", "audit", e.RequestID, "err", err)
	}
}

// isRoutine reports whether the request is a successful read that programs repeat all the time: discovery, health, and
// lists and watches of anything but Secrets, without impersonation.
func (x *exchange) isRoutine() bool {
	switch _, cut := x.cutReason(); {
	case x.refused != nil, x.request == nil, x.status != http.StatusOK, x.r.Header["Impersonate-User"] != nil:
		return false
	case x.request.NonResource:
		return x.request.Verb == "get"
	case x.request.Group == "" && x.request.Resource == "secrets", cut:
		return false
	}
	return x.request.Verb == "list" || x.request.Verb == "watch"
}

// entry returns the audit entry of the request. It never has a body or a query.
func (x *exchange) entry() audit.Entry {
	e := audit.Entry{Time: x.began, RequestID: x.id, Actor: audit.ActorOf(x.caller), Surface: "proxy", Verb: access.APIRequest, Object: x.signin.Name, Args: map[string]string{}}
	set := func(name, value string) {
		if value != "" {
			e.Args[name] = apiproxy.Sanitize(value)
		}
	}
	set("method", x.r.Method)
	if x.named {
		set("session", x.session.String())
	}
	if q := x.request; q != nil {
		set("verb", q.Verb)
		set("group", q.Group)
		set("resource", q.Resource)
		set("subresource", q.Subresource)
		set("namespace", q.Namespace)
		set("name", q.Name)
		if q.NonResource {
			set("path", q.Path)
		}
	} else {
		set("path", x.r.URL.Path)
	}
	if users := x.r.Header["Impersonate-User"]; len(users) > 0 {
		set("impersonate", users[0])
	}
	if x.status != 0 {
		set("status", strconv.Itoa(x.status))
	}
	if x.recording != nil {
		set("recording", x.recording.ID())
	}
	set("bytes", strconv.FormatInt(x.bytes, 10))
	set("took", x.proxy.Now().Sub(x.began).Round(time.Millisecond).String())
	switch why, cut := x.cutReason(); {
	case x.refused != nil:
		e.Conclude(problem.New(x.refused.code, x.refused.message))
		if e.Result != audit.Failed && x.refused.status < http.StatusInternalServerError {
			e.Result = audit.Refused
		}
	case cut:
		e.Result, e.Error = audit.Done, "cut: "+why.reason
		set("cut", why.cause)
	case x.status == 0 || x.status >= http.StatusInternalServerError:
		e.Result = audit.Failed
	default:
		e.Result = audit.Done // the status says what the API server decided
	}
	return e
}

// cutReason returns why the proxy cut the stream of the request, or false.
func (x *exchange) cutReason() (cut, bool) {
	if x.stream == nil {
		return cut{}, false
	}
	return x.stream.isCut()
}

// sumInterval is the time that one entry about routine reads covers.
const sumInterval = time.Minute

// maxRefusals is how many equal refusals of a caller have an entry of their own in one interval. Informers of a caller who is
// signed out ask again for ever, and must not fill the audit log.
const maxRefusals = 600

// maxSums limits the different sums of one interval. Further reads are recorded one by one.
const maxSums = 10_000

// A sumKey identifies the reads that share an entry.
type sumKey struct {
	login, device string
	from          string // address of a caller who is not identified yet
	session       signin.Session
	signin        string
	verb          string
	group         string
	resource      string
	namespace     string
	refusal       problem.Code
}

// A readSum is the sum of equal requests.
type readSum struct {
	first    audit.Entry
	requests int
	bytes    int64
}

// readSums sum up routine reads, and refusals of a flood, for the audit log.
type readSums struct {
	proxy *Proxy
	mu    sync.Mutex
	sums  map[sumKey]*readSum

	refusals map[sumKey]int // by caller and code, in this interval
}

func (r *readSums) init(p *Proxy) {
	r.proxy, r.sums, r.refusals = p, map[sumKey]*readSum{}, map[sumKey]int{}
}

// isFlood counts a refusal, and reports whether the caller has had many equal ones in this interval.
func (r *readSums) isFlood(x *exchange) bool {
	key := sumKey{login: x.caller.Identity(), device: x.caller.Device.ID, from: x.stranger(), session: x.session, refusal: x.refused.code}
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, known := r.refusals[key]; !known && len(r.refusals) >= maxSums {
		return true
	}
	r.refusals[key]++
	return r.refusals[key] > maxRefusals
}

// stranger returns the address of a caller who is not identified, or "".
func (x *exchange) stranger() string {
	if x.caller.Device.ID != "" {
		return ""
	}
	host, _, err := net.SplitHostPort(x.r.RemoteAddr)
	if err != nil {
		return x.r.RemoteAddr
	}
	return host
}

// add adds a routine read, or records it if there are too many sums.
func (r *readSums) add(x *exchange) {
	key := sumKey{login: x.caller.Identity(), device: x.caller.Device.ID, from: x.stranger(), session: x.session, signin: x.signin.Name}
	if x.refused != nil {
		key.refusal = x.refused.code
	} else {
		q := x.request
		key.verb, key.group, key.resource, key.namespace = q.Verb, q.Group, q.Resource, q.Namespace
	}
	r.mu.Lock()
	s := r.sums[key]
	if s == nil && len(r.sums) >= maxSums {
		r.mu.Unlock()
		r.proxy.record(r.proxy.Record, x.entry())
		return
	}
	if s == nil {
		s = &readSum{first: x.entry()}
		r.sums[key] = s
	}
	s.requests, s.bytes = s.requests+1, s.bytes+x.bytes
	r.mu.Unlock()
}

// loop writes the sums of each interval, and the last ones when ctx ends.
func (r *readSums) loop(ctx context.Context) {
	tick := time.NewTicker(sumInterval)
	defer tick.Stop()
	for {
		select {
		case <-tick.C:
			r.flush()
		case <-ctx.Done():
			r.flush()
			return
		}
	}
}

func (r *readSums) flush() {
	r.mu.Lock()
	sums := r.sums
	r.sums, r.refusals = map[sumKey]*readSum{}, map[sumKey]int{}
	r.mu.Unlock()
	for _, s := range sums {
		e := s.first
		if s.requests > 1 {
			e.Args = maps.Clone(e.Args)
			for _, single := range []string{"name", "path", "took", "status"} { // those of the first request only
				delete(e.Args, single)
			}
			e.Args["requests"], e.Args["bytes"] = strconv.Itoa(s.requests), strconv.FormatInt(s.bytes, 10)
		}
		r.proxy.record(r.proxy.Record, e)
	}
}
