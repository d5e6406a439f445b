package plane

import (
	"cmp"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/connections"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// An AccessProxy is one replica of an access proxy, of this cluster or another.
type AccessProxy struct {
	Name string // host name
	List func(context.Context, connections.ListRequest) (connections.List, error)
	Cut  func(context.Context, connections.CutRequest) (connections.Cut, error)
}

const (
	// proxyWait is how long the plane waits for the answer of an access proxy.
	proxyWait = 5 * time.Second
	// maxConnections is the largest number of streams in one answer, over all proxies.
	maxConnections = 1000
	// noProxies is the name of the source that says that no access proxy is known.
	noProxies = "access-proxies"
)

// proxySource returns the name of an access proxy among the sources.
func proxySource(name string) string { return "proxy:" + name }

// Connection is an open stream through an access proxy.
type Connection struct {
	ID        string    `json:"id" doc:"PROXY/STREAM"`
	Proxy     string    `json:"proxy" doc:"host name of the access proxy"`
	Cluster   string    `json:"cluster"`
	Stream    string    `json:"stream" doc:"id of the stream; the audit id of its request"`
	Kind      string    `json:"kind" enum:"watch,log,exec,attach,portforward,proxy"`
	Login     string    `json:"login"`
	Tailnet   string    `json:"tailnet" doc:"tailnet of the login"`
	Device    string    `json:"device"`
	Session   string    `json:"session" doc:"empty: the default session"`
	Signin    string    `json:"signin" doc:"name of the sign-in"`
	Group     string    `json:"group" doc:"API group of the resource; empty: the core group"`
	Resource  string    `json:"resource" doc:"the resource, with its subresource"`
	Namespace string    `json:"namespace"`
	Name      string    `json:"name"`
	Since     time.Time `json:"since"`
	Bytes     int64     `json:"bytes" doc:"bytes in both directions so far"`
	Recording string    `json:"recording" doc:"id of its recording; empty: it is not recorded"`
	Cut       Action    `json:"cut" doc:"whether the caller may cut it"`
}

// ConnectionsRequest selects open streams.
type ConnectionsRequest struct {
	Login Text `json:"-" query:"login" doc:"only streams of this login"`
}

// CutRequest ends one open stream.
type CutRequest struct {
	Proxy  string `json:"-" path:"proxy"`
	Stream string `json:"-" path:"stream"`
	Reason Reason `json:"reason" doc:"why, 1 to 200 characters; the person whose stream it is reads it"`
}

// AuditArgs returns the request's arguments for the audit log.
func (r CutRequest) AuditArgs() map[string]string {
	return map[string]string{"stream": r.Proxy + "/" + r.Stream, "reason": string(r.Reason)}
}

// CutConnection is the result of a cut.
type CutConnection struct {
	Connection Connection `json:"connection" doc:"the stream as it was"`
}

// AuditObject returns the sign-in of the stream for the audit log.
func (c CutConnection) AuditObject() string { return c.Connection.Signin }

// AuditDetails names the person whose stream it was for the audit log.
func (c CutConnection) AuditDetails() map[string]string {
	return map[string]string{"login": c.Connection.Login, "kind": c.Connection.Kind}
}

// The operations for open streams.
var (
	ListConnections = httpapi.Op[ConnectionsRequest, Envelope[[]Connection]]{
		Pattern: "GET " + Base + "/connections", Verb: access.ConnectionsRead, MaxResponse: 4 << 20,
		Doc:       "List the open streams through all access proxies, the oldest first: the caller's own, or all. meta.page.total counts those beyond the limit of 1000, and meta.sources shows each proxy that is down.",
		Responses: []Envelope[[]Connection]{newExamplePage("ConnectionList", exampleConnection)}, Refusals: streamRefusals,
	}
	CutOne = httpapi.Op[CutRequest, Envelope[CutConnection]]{
		Pattern: "POST " + Base + "/connections/{proxy}/{stream}/cut", Verb: access.ConnectionsCut,
		Doc:       "End one open stream of the caller or, with the right role, of any person. The sign-in stays.",
		Example:   CutRequest{Proxy: "prod-eu-api.tail1234.ts.net", Stream: "9392fdf7-363b-4154-8550-6808e60c92c3", Reason: "maintenance of the node"},
		Responses: []Envelope[CutConnection]{newExample("CutConnection", CutConnection{exampleConnection})}, Refusals: writeRefusals,
	}
	exampleConnection = Connection{ID: "prod-eu-api.tail1234.ts.net/9392fdf7-363b-4154-8550-6808e60c92c3", Proxy: "prod-eu-api.tail1234.ts.net", Cluster: "prod-eu",
		Stream: "9392fdf7-363b-4154-8550-6808e60c92c3", Kind: "exec", Login: "alice@example.com", Tailnet: "example.com", Device: "alice-laptop.tail1234.ts.net",
		Signin: "alice-example-com-0f3c9a1b2d4e5f607182", Resource: "pods/exec", Namespace: "shop", Name: "web-0", Since: exampleTime, Bytes: 20480, Cut: Action{Allowed: true}}
)

// proxyAnswer is the answer of one access proxy.
type proxyAnswer struct {
	list connections.List
	err  error
}

// accessProxies returns the access proxies.
func (d *Service) accessProxies() []AccessProxy {
	if d.AccessProxies == nil {
		return nil
	}
	return d.AccessProxies()
}

// askProxies asks all access proxies at once.
func askProxies(ctx context.Context, proxies []AccessProxy, req connections.ListRequest) []proxyAnswer {
	ctx, cancel := context.WithTimeout(ctx, proxyWait)
	defer cancel()
	answers := make([]proxyAnswer, len(proxies))
	var all sync.WaitGroup
	for i, p := range proxies {
		all.Go(func() { answers[i].list, answers[i].err = p.List(ctx, req) })
	}
	all.Wait()
	return answers
}

// proxyFault says why an access proxy gave no answer.
func proxyFault(err error) string {
	if _, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return "The plane does not trust its certificate."
	}
	switch problem.CodeOf(err) {
	case "", problem.Internal:
		return "It does not answer."
	case problem.TaggedNode, problem.NoCapability, problem.NotAuthorized:
		return "It does not know this plane: add a tag of the plane's node to its setting proxy.planes."
	}
	return problem.From(err).Message
}

// listConnections lists the open streams that the caller may see.
func (d *Service) listConnections(ctx context.Context, p access.Permit, req ConnectionsRequest) (Envelope[[]Connection], error) {
	v, now := ViewerOf(p), d.Now().UTC()
	proxies := d.accessProxies()
	if len(proxies) == 0 {
		return newEnvelope[[]Connection](d, "ConnectionList", nil, d.Store.Revision(), []Source{{Name: noProxies, Status: StatusDown, Since: now,
			Message: "No access proxy is known: no access server has published one. List those of other clusters in plane.accessProxies."}}), nil
	}
	ask := connections.ListRequest{Login: connections.Text(req.Login), Limit: maxConnections}
	if own := p.Caller().Identity(); !v.Everywhere(access.ConnectionsRead) {
		if req.Login != "" && string(req.Login) != own {
			return Envelope[[]Connection]{}, problem.New(problem.Forbidden, "You may see your own open streams only.")
		}
		ask.Login = connections.Text(own)
	}
	var sources []Source
	all, total, known := []Connection{}, 0, false
	for i, a := range askProxies(ctx, proxies, ask) {
		s := Source{Name: proxySource(proxies[i].Name), Status: StatusOK, ObservedAt: now, Since: now}
		if a.err != nil {
			s.Status, s.ObservedAt, s.Message = StatusDown, time.Time{}, proxyFault(a.err)
		}
		sources = append(sources, s)
		known = known || a.err == nil
		total += a.list.LeftOff
		for _, stream := range a.list.Streams {
			if c := connectionOf(v, proxies[i].Name, a.list.Cluster, stream); c.seenBy(v, access.ConnectionsRead) {
				all, total = append(all, c), total+1
			}
		}
	}
	if !known { // an empty list would be wrong
		return newEnvelope[[]Connection](d, "ConnectionList", nil, d.Store.Revision(), sources), nil
	}
	slices.SortFunc(all, func(a, b Connection) int { return cmp.Or(a.Since.Compare(b.Since), strings.Compare(a.ID, b.ID)) })
	all = all[:min(len(all), maxConnections)]
	e := newEnvelope(d, "ConnectionList", all, d.Store.Revision(), sources)
	e.Meta.Page = &Page{Limit: maxConnections, Total: &total}
	return e, nil
}

// seenBy reports whether v may use verb on c.
func (c Connection) seenBy(v Viewer, verb access.Verb) bool {
	return v.Everywhere(verb) || v.Own(verb) && Owner{c.Login, c.Tailnet}.Is(v.Caller())
}

// connectionOf returns a stream of a proxy as v sees it.
func connectionOf(v Viewer, proxy, cluster string, s connections.Stream) Connection {
	c := Connection{ID: proxy + "/" + s.ID, Proxy: proxy, Cluster: cluster, Stream: s.ID, Kind: s.Kind, Login: s.Login, Tailnet: s.Tailnet, Device: s.Device, Session: s.Session, Signin: s.Signin,
		Group: s.Group, Resource: s.Resource, Namespace: s.Namespace, Name: s.Name, Since: s.Since, Bytes: s.Bytes, Recording: s.Recording}
	c.Cut = actionUnless(when(!c.seenBy(v, access.ConnectionsCut), "Your role may cut your own streams only."))
	return c
}

// cutConnection ends one stream. A stream that the caller may not see does not exist for the caller. The proxy writes an
// audit entry of its own, which names the caller as the person for whom the plane asked.
func (d *Service) cutConnection(ctx context.Context, p access.Permit, req CutRequest) (Envelope[CutConnection], error) {
	none, v := Envelope[CutConnection]{}, ViewerOf(p)
	ask := connections.CutRequest{ID: req.Stream, Reason: string(req.Reason), For: p.Caller().Identity()}
	if err := ask.Check(); err != nil {
		return none, invalidField("reason", problem.From(err).Message, problem.From(err).Advice...)
	}
	proxies := d.accessProxies()
	i := slices.IndexFunc(proxies, func(a AccessProxy) bool { return a.Name == req.Proxy })
	gone := problem.New(problem.NotFound, "The stream has ended, or you may not see it.", "List the open streams.")
	if i < 0 {
		return none, gone
	}
	proxy := proxies[i]
	a := askProxies(ctx, []AccessProxy{proxy}, connections.ListRequest{ID: connections.Text(req.Stream)})[0]
	if a.err != nil {
		return none, problem.New(problem.Unavailable, fmt.Sprintf("The access proxy %s gave no answer, so nothing is cut: %s", proxy.Name, proxyFault(a.err)), "Try again in a moment.").WithCause(a.err)
	}
	if len(a.list.Streams) != 1 || a.list.Streams[0].ID != req.Stream {
		return none, gone
	}
	c := connectionOf(v, proxy.Name, a.list.Cluster, a.list.Streams[0])
	switch {
	case !c.seenBy(v, access.ConnectionsRead):
		return none, gone
	case !c.Cut.Allowed:
		_, err := p.In("") // returns the error that names the missing permission
		return none, err
	}
	ctx, cancel := context.WithTimeout(ctx, proxyWait)
	defer cancel()
	if _, err := proxy.Cut(ctx, ask); problem.CodeOf(err) == problem.NotFound {
		return none, gone
	} else if err != nil {
		return none, problem.New(problem.Unavailable, fmt.Sprintf("The access proxy %s gave no answer, so the stream may continue: %s", proxy.Name, proxyFault(err)), "List the open streams.").WithCause(err)
	}
	return newEnvelope(d, "CutConnection", CutConnection{c}, d.Store.Revision(), []Source{}), nil
}
