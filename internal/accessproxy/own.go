package accessproxy

import (
	"context"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// ownReadTime is how long a client may take to send a request for the proxy itself.
const ownReadTime = 10 * time.Second

// ownLimits are the limits of requests for the proxy itself.
var ownLimits = httpapi.Limits{Other: httpapi.Rate{PerMinute: 600, Burst: 60}, All: httpapi.Rate{PerMinute: 6000, Burst: 600}}

// ownHandler returns the handler of the proxy's own operations. It passes all the steps of package httpapi; nothing of
// these requests reaches the API server.
func (p *Proxy) ownHandler() http.Handler {
	api := &httpapi.Server{Names: p.Tailnet.Names, Identify: p.identifyOnly, Log: p.Log, Now: p.Now, Limits: ownLimits,
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			permit, err := p.Decide(c, v, now)
			if err == nil && !permit.IsPlane() {
				err = refuseRouter(c)
			}
			return permit, err
		},
		Record: func(e audit.Entry) error {
			e.Surface = "proxy"
			return p.Record(e)
		}}
	h := api.Handler(connections.ListStreams.Serve(p.listStreams), connections.CutStream.Serve(p.cutStream))
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_ = http.NewResponseController(w).SetReadDeadline(time.Now().Add(ownReadTime)) // a writer of a test has none
		h.ServeHTTP(w, r)
	})
}

// describe returns what others may know of the stream of x.
func (x *exchange) describe() connections.Stream {
	q := x.request
	s := connections.Stream{ID: x.id, Kind: string(apiproxy.StreamKindOf(q)), Login: x.caller.Identity(), Tailnet: x.caller.Tailnet, Device: x.caller.Device.Name,
		Session: string(x.session), Signin: x.signin.Name, Group: apiproxy.Sanitize(q.Group), Resource: q.Resource, Namespace: apiproxy.Sanitize(q.Namespace),
		Name: apiproxy.Sanitize(q.Name), Since: x.proxy.Now().UTC()}
	if q.Subresource != "" {
		s.Resource += "/" + q.Subresource
	}
	s.Resource = apiproxy.Sanitize(s.Resource)
	if x.recording != nil {
		s.Recording = x.recording.ID()
	}
	return s
}

// seenBy reports whether the caller of a permit may see and cut the streams of another caller: its own, from any of its
// devices; of a tagged device that device's only.
func seenBy(p access.Permit, of access.Caller) bool {
	c := p.Caller()
	same := c.Identity() == of.Identity() && c.UserID == of.UserID && c.Tailnet == of.Tailnet && c.Tagged() == of.Tagged()
	return p.IsPlane() || same && (!c.Tagged() || c.Device.ID == of.Device.ID)
}

// view returns the stream as it is now.
func (s *stream) view() connections.Stream {
	v := s.Stream
	v.Bytes = s.bytes.Load()
	return v
}

// listStreams lists the open streams that the caller may see, the oldest first.
func (p *Proxy) listStreams(_ context.Context, permit access.Permit, req connections.ListRequest) (connections.List, error) {
	if err := permit.Require(access.ConnectionsRead, p.Now()); err != nil {
		return connections.List{}, err
	}
	out := connections.List{Cluster: p.Cluster, Streams: []connections.Stream{}}
	for _, s := range p.streams.list() {
		if seenBy(permit, s.caller) && (req.Login == "" || string(req.Login) == s.Login) && (req.ID == "" || string(req.ID) == s.ID) {
			out.Streams = append(out.Streams, s.view())
		}
	}
	slices.SortFunc(out.Streams, func(a, b connections.Stream) int {
		if n := a.Since.Compare(b.Since); n != 0 {
			return n
		}
		return strings.Compare(a.ID, b.ID)
	})
	limit := int(req.Limit)
	if limit == 0 {
		limit = connections.DefaultLimit
	}
	if n := len(out.Streams); n > limit {
		out.Streams, out.LeftOff = out.Streams[:limit], n-limit
	}
	for _, c := range p.conns.idle() {
		c.mu.Lock()
		if c.caller.Device.ID != "" && seenBy(permit, c.caller) && (req.Login == "" || string(req.Login) == c.caller.Identity()) {
			out.Idle++
		}
		c.mu.Unlock()
	}
	return out, nil
}

// cutStream ends one stream that the caller may see. The stream of somebody else does not exist for the caller.
func (p *Proxy) cutStream(_ context.Context, permit access.Permit, req connections.CutRequest) (connections.Cut, error) {
	if err := permit.Require(access.ConnectionsCut, p.Now()); err != nil {
		return connections.Cut{}, err
	}
	if err := req.Check(); err != nil {
		return connections.Cut{}, err
	}
	if permit.IsPlane() != (req.For != "") {
		return connections.Cut{}, problem.New(problem.BadRequest, "Only the plane names the person who asked, and it must do so.")
	}
	out := connections.Cut{}
	who := permit.Caller().Identity()
	if permit.IsPlane() {
		who, out.Via, out.For = req.For, "plane", req.For
	}
	for _, s := range p.streams.list() {
		if s.ID != req.ID || !seenBy(permit, s.caller) {
			continue
		}
		s.cut(cut{cutAsked, "the stream was cut by " + apiproxy.Sanitize(who) + ": " + apiproxy.Sanitize(strings.TrimSuffix(strings.TrimSpace(req.Reason), "."))})
		out.Stream = s.view()
		return out, nil
	}
	return out, problem.New(problem.NotFound, "The stream has ended, or you may not see it.", "List the open streams: tka connections")
}
