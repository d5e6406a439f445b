package plane

import (
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
)

// Base is the path prefix of the API.
const Base = "/api/v1"

// The operations of the plane. The server, the client, the reference and the MCP tools are all derived from them.
var (
	GetMe = door.Op[Empty, Envelope[Me]]{
		Pattern: "GET " + Base + "/me", Verb: access.PlaneSelf, Doc: "Show as whom the caller is seen, and what that allows, and why.",
		Answers: []Envelope[Me]{Example("Me", Me{Login: "alice@example.com", DisplayName: "Alice", Node: "alice-laptop.tail1234.ts.net", Tags: []string{}, Tailnet: "example.com",
			Via: access.ViaTailnet, Roles: []Role{{"operator", []string{"*"}, "grant"}}, Verbs: map[string][]access.Verb{"*": {access.FleetRead, access.InfraRead}, "own": {access.AuditRead}},
			Warnings: []string{}})},
		Refusals: roleless,
	}
	GetOverview = door.Op[Empty, Envelope[Overview]]{
		Pattern: "GET " + Base + "/overview", Verb: access.FleetRead, Doc: "Show the installation at a glance: how many of each there are, in which state, and what needs attention.",
		Answers: []Envelope[Overview]{Example("Overview", Overview{Clusters: &Tally{2, map[string]int{"Alive": 1, "Dead": 1}}, Signins: &Tally{1, map[string]int{"Ready": 1}},
			Attention: []Attention{{Error, KindCluster, "5e0c3f5a", "Dead", "None of its access servers answers."}}, Hidden: []Kind{}})},
		Refusals: Limited,
	}
	ListSources = door.Op[Empty, Envelope[[]Source]]{
		Pattern: "GET " + Base + "/sources", Verb: access.FleetRead, Doc: "List where the plane's knowledge comes from, and how each source answers.",
		Answers:  []Envelope[[]Source]{Example("SourceList", exampleSources)},
		Refusals: Limited,
	}
	ListExposures = door.Op[Empty, Envelope[[]Exposure]]{
		Pattern: "GET " + Base + "/exposures", Verb: access.FleetRead, Doc: "List the services of the cluster that are put on the tailnet, and how each stands.",
		Answers: []Envelope[[]Exposure]{Example("ExposureList", []Exposure{{"grafana", new("https://grafana.tail1234.ts.net"), "observe.read", "exposure:grafana", OK, ""}})}, Refusals: Limited,
	}
	ListClusters = ListOf("clusters", access.InfraRead, clusters(), "List the clusters that the access servers have found.", Cluster{ID: "5e0c3f5a-6f0e-4f0c-9a63-1f4f6f6f2b11", Name: "prod-eu",
		Endpoint: "https://k8s.prod-eu.example:6443", Port: 6443, URL: "https://tka.tail1234.ts.net", Labels: map[string]string{"env": "prod"}, Health: "Alive", LastSeen: &ExampleTime,
		Verified: true, Version: "v0.1.0", Skew: new(bool), Members: []ClusterMember{}, ObservedAt: ExampleTime})
	ListTailnets = ListOf("tailnets", access.InfraRead, tailnets(), "List the tailnets that the gateway speaks to.", Tailnet{ID: "acme", Name: "acme", Domain: new("tail1234.ts.net"),
		Credential: Credential{Valid: new(true), Reason: "TokenIssued", CheckedAt: &ExampleTime}, Devices: new(12), Conditions: []Condition{}, ObservedAt: ExampleTime})
	ListGateways = ListOf("gateways", access.InfraRead, gateways(), "List the tailnets' attachments to Gateways.", Gateway{ID: "shop/public", Namespace: "shop", Name: "public", Target: "shop/eg",
		Class: new("envoy"), Listeners: []Listener{{"http", "HTTP", 80, ""}}, Tailnets: []GatewayTailnet{}, Services: []GatewayService{}, Conditions: []Condition{}, ObservedAt: ExampleTime})
	ListRoutes = ListOf("routes", access.InfraRead, routes(), "List what routes to services of tailnets.", Route{ID: "TailscaleService/shop/db", Resource: "TailscaleService", Namespace: "shop",
		Name: "db", Target: "shop/public", Tailnet: new("acme"), Hostnames: []string{}, Rules: []RouteRule{}, Refused: []Refusal{}, Conditions: []Condition{}, ObservedAt: ExampleTime})
	ListProxyGroups = ListOf("proxygroups", access.InfraRead, proxyGroups(), "List the groups of relays.", ProxyGroup{ID: "shop/egress", Namespace: "shop", Name: "egress", Type: "egress",
		Tailnet: new("acme"), Wanted: 2, Ready: new(2), Devices: []RelayDevice{}, Conditions: []Condition{}, ObservedAt: ExampleTime})
	ListAdapters = ListOf("adapters", access.InfraRead, adapters(), "List the pods that have an adapter.", Adapter{ID: "shop/web-0", Namespace: "shop", Pod: "web-0", Node: "node-1", Ready: new(true),
		Restarts: new(0), ObservedAt: ExampleTime})
	ListSignins  = ListOf("signins", access.SigninsRead, signins(), "List sign-ins: the caller's own, or all.", exampleSignin())
	RevokeSignin = door.Op[RevokeRequest, Envelope[Revocation]]{
		Pattern: "DELETE " + Base + "/signins/{namespace}/{name}", Verb: access.SigninsRevoke, Doc: "End a sign-in: the caller's own, or anybody's.",
		Example:  RevokeRequest{Namespace: "tailplane", Name: "alice-example-com-0f3c9a1b2d4e5f607182", Reason: "the laptop was lost", Key: "1f0c6c1e"},
		Answers:  []Envelope[Revocation]{Example("Revocation", Revocation{ID: "tailplane/alice-example-com-0f3c9a1b2d4e5f607182", Deleted: true, RefusedBy: new(ExampleTime.Add(10 * time.Second))})},
		Refusals: slices.Concat(Writing, []problem.Code{problem.AuditUnavailable}),
	}
	ListAudit = door.Op[HistoryRequest, History]{
		Pattern: "GET " + Base + "/audit", Verb: access.AuditRead, Doc: "List entries of the audit record, the newest first: the caller's own, those about organisations the caller administers, or all. Accept: application/jsonl gives lines.",
		Example: HistoryRequest{Actor: "alice@example.com", Limit: 50}, MaxAnswer: 16 << 20,
		Answers: []History{{Example("AuditEntryList", []audit.Entry{{Time: ExampleTime, RequestID: "01KAJ3D1VXB6E2N4Q8R0S5T7WY", Actor: audit.Actor{Login: "alice@example.com", Node: "alice-laptop.tail1234.ts.net",
			NodeID: "nVQ1kLDx7R11CNTRL", Via: access.ViaTailnet}, Surface: "http", Verb: access.SigninsRevoke, Object: "tailplane/alice-example-com-0f3c9a1b2d4e5f607182", Result: audit.Done}})}},
		Refusals: Reading,
	}
	// GetHealth is not a liveness probe: the probe port reports liveness and requires no role.
	GetHealth = door.Op[Empty, Envelope[Health]]{
		Pattern: "GET /api/health", Verb: access.PlaneSelf, Doc: "Show the version, and whether the process does its work.",
		Answers:  []Envelope[Health]{Example("Health", Health{"v0.1.0", "0123abc", true, exampleSources})},
		Refusals: roleless,
	}
	GetDocument = door.Op[Empty, Document]{Pattern: "GET " + Base + "/openapi.json", Verb: access.PlaneSelf, Doc: "This reference, for machines: OpenAPI 3.1, without an envelope.",
		Answers: []Document{{}}, Refusals: roleless}
	WatchEvents = watching("GET " + Base + "/events")
	// WatchSeed is WatchEvents under the path that the existing dashboard uses.
	WatchSeed = watching("GET /api/events/stream")
)

// roleless are the errors for a caller without a role.
var roleless = []problem.Code{problem.TaggedNode, problem.NotAuthorized, problem.BadCapability}

// The errors that operations declare. Each set adds to the errors for a caller without a sufficient role: those of a query, of a request
// for one object, and of a change.
var (
	Limited = slices.Concat(roleless, []problem.Code{problem.Forbidden})
	Reading = slices.Concat(Limited, []problem.Code{problem.Validation})
	Finding = slices.Concat(Limited, []problem.Code{problem.NotFound})
	Seeking = slices.Concat(Finding, []problem.Code{problem.Validation}) // a list below one object
	Writing = slices.Concat(Limited, []problem.Code{problem.NotFound, problem.Validation, problem.Conflict, problem.MediaType, problem.TooLarge})
)

// ListOf returns the operation that lists a kind of objects. some is the example for the reference.
func ListOf[T Object](path string, verb access.Verb, of Table[T], doc string, some T) door.Op[ListRequest, Envelope[[]T]] {
	return door.Op[ListRequest, Envelope[[]T]]{Pattern: "GET " + Base + "/" + path, Verb: verb, Doc: doc, MaxAnswer: 16 << 20,
		Answers: []Envelope[[]T]{ExamplePage(of.Name, some)}, Refusals: Reading}
}

func watching(pattern string) door.Op[EventsRequest, EventStream] {
	return door.Op[EventsRequest, EventStream]{Pattern: pattern, Verb: access.FleetRead,
		Doc:     "Tell what changes, as an event stream: hello, snapshot, KIND.upsert (the whole object), KIND.delete, source.status, audit.append (for topic audit: an entry of the record that the caller may read), heartbeat, resync (read everything anew), bye.",
		Answers: []EventStream{{}}, Refusals: Limited}
}

// Routes returns the routes of the API, served by d.
func (d *Desk) Routes() []door.Route {
	return []door.Route{
		Behind(d, GetMe, d.me), Behind(d, GetOverview, d.Overview), Behind(d, ListSources, d.sources), Behind(d, ListExposures, d.exposures),
		Pages(d, ListClusters, clusters()), Pages(d, ListTailnets, tailnets()), Pages(d, ListGateways, gateways()), Pages(d, ListRoutes, routes()),
		Pages(d, ListProxyGroups, proxyGroups()), Pages(d, ListAdapters, adapters()), Pages(d, ListSignins, signins()),
		Behind(d, RevokeSignin, d.revoke), Behind(d, ListAudit, d.history), Behind(d, GetHealth, d.health), Behind(d, GetDocument, describe),
		WatchEvents.ServeStream(d.events), WatchSeed.ServeStream(d.events),
	}
}

// Operations describes the API.
func Operations() []door.Declaration {
	var all []door.Declaration
	for _, rt := range new(Desk).Routes() {
		all = append(all, rt.Declaration)
	}
	return all
}

// ExampleTime is the time in the examples of the reference.
var ExampleTime = time.Date(2026, 11, 22, 11, 41, 8, 0, time.UTC)

var exampleSources = []Source{{Name: "kubernetes", Status: OK, ObservedAt: ExampleTime, Since: ExampleTime}}

// Example returns a response with data, for the reference.
func Example[T any](kind string, data T) Envelope[T] {
	return Envelope[T]{APIVersion: APIVersion, Kind: kind, Data: data,
		Meta: Meta{RequestID: "01KAJ3D1VXB6E2N4Q8R0S5T7WY", GeneratedAt: ExampleTime, Revision: "1795347668000000", Sources: exampleSources}}
}

// ExamplePage returns a response with a page of a list, for the reference.
func ExamplePage[T any](kind string, some T) Envelope[[]T] {
	e := Example(kind, []T{some})
	e.Meta.Page = &Page{Limit: defaultLimit, Total: new(1)}
	return e
}

func exampleSignin() Signin {
	return Signin{ID: "tailplane/alice-example-com-0f3c9a1b2d4e5f607182", Namespace: "tailplane", Name: "alice-example-com-0f3c9a1b2d4e5f607182", Login: "alice@example.com",
		Tailnet: "example.com", Device: "alice-laptop.tail1234.ts.net", Role: "view", Namespaces: []string{}, Created: ExampleTime, ValidUntil: new(ExampleTime.Add(8 * time.Hour)),
		Phase: "Ready", Conditions: []Condition{}, Actions: &SigninActions{Revoke: Action{Allowed: true}}, ObservedAt: ExampleTime}
}
