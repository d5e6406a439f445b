package plane

import (
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// Base is the path prefix of the API.
const Base = "/api/v1"

// The operations of the plane. The server, the client, the reference and the MCP tools are all derived from them.
var (
	GetMe = httpapi.Op[Empty, Envelope[Me]]{
		Pattern: "GET " + Base + "/me", Verb: access.PlaneSelf, Doc: "Show the caller's identity and permissions, and where they come from.",
		Responses: []Envelope[Me]{newExample("Me", Me{Login: "alice@example.com", DisplayName: "Alice", Node: "alice-laptop.tail1234.ts.net", Tags: []string{}, Tailnet: "example.com",
			Via: access.ViaTailnet, Roles: []Role{{"operator", []string{"*"}, "grant"}}, Verbs: map[string][]access.Verb{"*": {access.FleetRead, access.InfraRead}, "own": {access.AuditRead}},
			Warnings: []string{}})},
		Refusals: refusalsWithoutRole,
	}
	GetOverview = httpapi.Op[Empty, Envelope[Overview]]{
		Pattern: "GET " + Base + "/overview", Verb: access.FleetRead, Doc: "Show an overview of the installation: counts and states of each kind, and problems that need attention.",
		Responses: []Envelope[Overview]{newExample("Overview", Overview{Clusters: &Tally{2, map[string]int{"Alive": 1, "Dead": 1}}, Signins: &Tally{1, map[string]int{"Ready": 1}},
			Attention: []Attention{{SeverityError, KindCluster, "5e0c3f5a", "Dead", "None of its access servers responds."}}, Hidden: []Kind{}})},
		Refusals: streamRefusals,
	}
	ListSources = httpapi.Op[Empty, Envelope[[]Source]]{
		Pattern: "GET " + Base + "/sources", Verb: access.FleetRead, Doc: "List the sources of the plane's data, and the status of each.",
		Responses: []Envelope[[]Source]{newExample("SourceList", exampleSources)},
		Refusals:  streamRefusals,
	}
	ListExposures = httpapi.Op[Empty, Envelope[[]Exposure]]{
		Pattern: "GET " + Base + "/exposures", Verb: access.FleetRead, Doc: "List the Services of the cluster that are exposed on the tailnet, and the status of each.",
		Responses: []Envelope[[]Exposure]{newExample("ExposureList", []Exposure{{"grafana", new("https://grafana.tail1234.ts.net"), "observe.read", "exposure:grafana", StatusOK, ""}})}, Refusals: streamRefusals,
	}
	ListClusters = listOperation("clusters", access.InfraRead, clusters(), "List the clusters that the access servers have found.", Cluster{ID: "5e0c3f5a-6f0e-4f0c-9a63-1f4f6f6f2b11", Name: "prod-eu",
		Endpoint: "https://k8s.prod-eu.example:6443", Port: 6443, URL: "https://tka.tail1234.ts.net", Labels: map[string]string{"env": "prod"}, Health: "Alive", LastSeen: &exampleTime,
		Verified: true, Version: "v0.1.0", Skew: new(bool), Members: []ClusterMember{}, ObservedAt: exampleTime})
	ListTailnets = listOperation("tailnets", access.InfraRead, tailnets(), "List the tailnets of the gateway.", Tailnet{ID: "acme", Name: "acme", Domain: new("tail1234.ts.net"),
		Credential: Credential{Valid: new(true), Reason: "TokenIssued", CheckedAt: &exampleTime}, Devices: new(12), Conditions: []Condition{}, ObservedAt: exampleTime})
	ListGateways = listOperation("gateways", access.InfraRead, gateways(), "List the tailnets' attachments to Gateways.", Gateway{ID: "shop/public", Namespace: "shop", Name: "public", Target: "shop/eg",
		Class: new("envoy"), Listeners: []Listener{{"http", "HTTP", 80, ""}}, Tailnets: []GatewayTailnet{}, Services: []GatewayService{}, Conditions: []Condition{}, ObservedAt: exampleTime})
	ListRoutes = listOperation("routes", access.InfraRead, routes(), "List the routes to services of tailnets.", Route{ID: "TailscaleService/shop/db", Resource: "TailscaleService", Namespace: "shop",
		Name: "db", Target: "shop/public", Tailnet: new("acme"), Hostnames: []string{}, Rules: []RouteRule{}, Refused: []Refusal{}, Conditions: []Condition{}, ObservedAt: exampleTime})
	ListProxyGroups = listOperation("proxygroups", access.InfraRead, proxyGroups(), "List the groups of relays.", ProxyGroup{ID: "shop/egress", Namespace: "shop", Name: "egress", Type: "egress",
		Tailnet: new("acme"), Wanted: 2, Ready: new(2), Devices: []RelayDevice{}, Conditions: []Condition{}, ObservedAt: exampleTime})
	ListAdapters = listOperation("adapters", access.InfraRead, adapters(), "List the pods that have an adapter.", Adapter{ID: "shop/web-0", Namespace: "shop", Pod: "web-0", Node: "node-1", Ready: new(true),
		Restarts: new(0), ObservedAt: exampleTime})
	ListSignins  = listOperation("signins", access.SigninsRead, signins(), "List sign-ins: the caller's own sign-ins, or all.", exampleSignin())
	RevokeSignin = httpapi.Op[RevokeRequest, Envelope[Revocation]]{
		Pattern: "DELETE " + Base + "/signins/{namespace}/{name}", Verb: access.SigninsRevoke, Doc: "End a sign-in of the caller or, with the right role, of any person.",
		Example:   RevokeRequest{Namespace: "tailplane", Name: "alice-example-com-0f3c9a1b2d4e5f607182", Reason: "the laptop was lost", Key: "1f0c6c1e"},
		Responses: []Envelope[Revocation]{newExample("Revocation", Revocation{ID: "tailplane/alice-example-com-0f3c9a1b2d4e5f607182", Deleted: true, RefusedBy: new(exampleTime.Add(10 * time.Second))})},
		Refusals:  slices.Concat(writeRefusals, []problem.Code{problem.AuditUnavailable}),
	}
	ListAudit = httpapi.Op[HistoryRequest, History]{
		Pattern: "GET " + Base + "/audit", Verb: access.AuditRead, Doc: "List entries of the audit log, the newest first: the caller's own, those about organisations that the caller administers, or all. With Accept: application/jsonl the answer is JSON lines.",
		Example: HistoryRequest{Actor: "alice@example.com", Limit: 50}, MaxResponse: 16 << 20,
		Responses: []History{{newExample("AuditEntryList", []audit.Entry{{Time: exampleTime, RequestID: "01KAJ3D1VXB6E2N4Q8R0S5T7WY", Actor: audit.Actor{Login: "alice@example.com", Node: "alice-laptop.tail1234.ts.net",
			NodeID: "nVQ1kLDx7R11CNTRL", Via: access.ViaTailnet}, Surface: "http", Verb: access.SigninsRevoke, Object: "tailplane/alice-example-com-0f3c9a1b2d4e5f607182", Result: audit.Done}})}},
		Refusals: listRefusals,
	}
	// GetHealth is not a liveness probe: the probe port reports liveness and requires no role.
	GetHealth = httpapi.Op[Empty, Envelope[Health]]{
		Pattern: "GET /api/health", Verb: access.PlaneSelf, Doc: "Show the version and the health of the process.",
		Responses: []Envelope[Health]{newExample("Health", Health{"v0.1.0", "0123abc", true, exampleSources})},
		Refusals:  refusalsWithoutRole,
	}
	GetDocument = httpapi.Op[Empty, Document]{Pattern: "GET " + Base + "/openapi.json", Verb: access.PlaneSelf, Doc: "Get this reference as OpenAPI 3.1, without an envelope.",
		Responses: []Document{{}}, Refusals: refusalsWithoutRole}
	WatchEvents = watchOperation("GET " + Base + "/events")
	// WatchEventsLegacy is WatchEvents under the path that the existing dashboard uses.
	WatchEventsLegacy = watchOperation("GET /api/events/stream")
)

// refusalsWithoutRole are the errors for a caller without a role.
var refusalsWithoutRole = []problem.Code{problem.TaggedNode, problem.NotAuthorized, problem.BadCapability}

// The errors that operations declare. Each set adds to the errors for a caller without a sufficient role: those of a query, of a request
// for one object, and of a change.
var (
	streamRefusals = slices.Concat(refusalsWithoutRole, []problem.Code{problem.Forbidden})
	listRefusals   = slices.Concat(streamRefusals, []problem.Code{problem.Validation})
	getRefusals    = slices.Concat(streamRefusals, []problem.Code{problem.NotFound})
	searchRefusals = slices.Concat(getRefusals, []problem.Code{problem.Validation}) // a list below one object
	writeRefusals  = slices.Concat(streamRefusals, []problem.Code{problem.NotFound, problem.Validation, problem.Conflict, problem.MediaType, problem.TooLarge})
)

// listOperation returns the operation that lists a kind of objects. some is the example for the reference.
func listOperation[T Object](path string, verb access.Verb, of table[T], doc string, some T) httpapi.Op[ListRequest, Envelope[[]T]] {
	return httpapi.Op[ListRequest, Envelope[[]T]]{Pattern: "GET " + Base + "/" + path, Verb: verb, Doc: doc, MaxResponse: 16 << 20,
		Responses: []Envelope[[]T]{newExamplePage(of.Name, some)}, Refusals: listRefusals}
}

func watchOperation(pattern string) httpapi.Op[EventsRequest, EventStream] {
	return httpapi.Op[EventsRequest, EventStream]{Pattern: pattern, Verb: access.FleetRead,
		Doc:       "Stream changes as events: hello, snapshot, KIND.upsert (the whole object), KIND.delete, source.status, audit.append (topic audit: an audit entry that the caller may read), heartbeat, resync (read everything again), bye.",
		Responses: []EventStream{{}}, Refusals: streamRefusals}
}

// Routes returns the routes of the API, served by d.
func (d *Service) Routes() []httpapi.Route {
	return []httpapi.Route{
		handle(d, GetMe, d.getMe), handle(d, GetOverview, d.GetOverview), handle(d, ListSources, d.listSources), handle(d, ListExposures, d.listExposures),
		listRoute(d, ListClusters, clusters()), listRoute(d, ListTailnets, tailnets()), listRoute(d, ListGateways, gateways()), listRoute(d, ListRoutes, routes()),
		listRoute(d, ListProxyGroups, proxyGroups()), listRoute(d, ListAdapters, adapters()), listRoute(d, ListSignins, signins()),
		handle(d, RevokeSignin, d.revokeSignin), handle(d, ListAudit, d.listAudit), handle(d, GetHealth, d.getHealth), handle(d, GetDocument, getDocument), handle(d, CheckPolicy, d.checkPolicy),
		handle(d, ListConnections, d.listConnections), handle(d, CutOne, d.cutConnection),
		handle(d, ListRecordings, d.listRecordings), ReplayRecording.ServeStream(d.replayRecording),
		WatchEvents.ServeStream(d.streamEvents), WatchEventsLegacy.ServeStream(d.streamEvents),
	}
}

// exampleTime is the time in the examples of the reference.
var exampleTime = time.Date(2026, 11, 22, 11, 41, 8, 0, time.UTC)

var exampleSources = []Source{{Name: "kubernetes", Status: StatusOK, ObservedAt: exampleTime, Since: exampleTime}}

// newExample returns a response with data, for the reference.
func newExample[T any](kind string, data T) Envelope[T] {
	return Envelope[T]{APIVersion: apiVersion, Kind: kind, Data: data,
		Meta: Meta{RequestID: "01KAJ3D1VXB6E2N4Q8R0S5T7WY", GeneratedAt: exampleTime, Revision: "1795347668000000", Sources: exampleSources}}
}

// newExamplePage returns a response with a page of a list, for the reference.
func newExamplePage[T any](kind string, some T) Envelope[[]T] {
	e := newExample(kind, []T{some})
	e.Meta.Page = &Page{Limit: defaultLimit, Total: new(1)}
	return e
}

func exampleSignin() Signin {
	return Signin{ID: "tailplane/alice-example-com-0f3c9a1b2d4e5f607182", Namespace: "tailplane", Name: "alice-example-com-0f3c9a1b2d4e5f607182", Login: "alice@example.com",
		Tailnet: "example.com", Device: "alice-laptop.tail1234.ts.net", Role: "view", Namespaces: []string{}, Created: exampleTime, ValidUntil: new(exampleTime.Add(8 * time.Hour)),
		Phase: "Ready", Conditions: []Condition{}, Actions: &SigninActions{Revoke: Action{Allowed: true}}, ObservedAt: exampleTime}
}
