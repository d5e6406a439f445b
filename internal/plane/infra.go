package plane

import (
	"cmp"
	"time"
)

// The objects as the API returns them. Unknown values are null: a nil pointer or a nil list. All times are UTC and ids are opaque. Every
// text comes from other systems and is untrusted data.

// Condition is what a controller reports about one aspect of an object.
type Condition struct {
	Type    string    `json:"type"`
	Status  string    `json:"status" enum:"True,False,Unknown"`
	Reason  string    `json:"reason"`
	Message string    `json:"message"`
	Since   time.Time `json:"since,omitzero"`
}

// Cluster is a cluster that the access servers have discovered.
type Cluster struct {
	ID       string            `json:"id"`
	Name     string            `json:"name"`
	Endpoint string            `json:"endpoint" doc:"URL of its Kubernetes API"`
	Port     int               `json:"port"`
	URL      string            `json:"url" doc:"base of its sign-in API"`
	Labels   map[string]string `json:"labels"`
	Health   string            `json:"health" enum:"Alive,Suspect,Unknown,Dead,Left"`
	LastSeen *time.Time        `json:"lastSeen" doc:"when it was last seen; null: never"`
	Verified bool              `json:"verified" doc:"true if its key is the one that was pinned first"`
	Conflict bool              `json:"conflict" doc:"true if another server is known as this cluster"`
	Self     bool              `json:"self" doc:"true for the cluster of this installation"`
	Version  string            `json:"version" doc:"Tailplane version of the cluster"`
	Skew     *bool             `json:"skew" doc:"true if that version differs from this server's version; null: one of them is not known"`
	Members  []ClusterMember   `json:"members" doc:"its access servers"`

	ObservedAt time.Time `json:"observedAt"`
}

// ClusterMember is one access server of a cluster.
type ClusterMember struct {
	Node     string     `json:"node"`
	Host     string     `json:"host"`
	Health   string     `json:"health"`
	LastSeen *time.Time `json:"lastSeen"`
}

// Signin is the temporary access of one login on one device.
type Signin struct {
	ID         string      `json:"id"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Login      string      `json:"login"`
	Tailnet    string      `json:"tailnet" doc:"tailnet of the login"`
	Device     string      `json:"device"`
	Session    string      `json:"session" doc:"one of several sign-ins of the device; empty: the default session"`
	Reason     string      `json:"reason" doc:"why the person asked for the access; empty: no reason given"`
	Role       string      `json:"role" doc:"the bound role; before the binding, the requested role; several roles are separated by commas"`
	Namespaces []string    `json:"namespaces" doc:"namespaces of the role; empty: the whole cluster, or as in bind"`
	Bind       []Bind      `json:"bind,omitempty" doc:"each role and where it applies, if there are several"`
	Created    time.Time   `json:"created"`
	ValidUntil *time.Time  `json:"validUntil" doc:"null: the role is not bound yet"`
	Phase      string      `json:"phase" enum:"Pending,Ready,Refused,Ending,Expired"`
	Conditions []Condition `json:"conditions"`

	OIDC *SigninToken `json:"oidc,omitempty" doc:"the OIDC token with which the sign-in began; absent: it began without one"`

	Actions *SigninActions `json:"actions,omitempty" doc:"actions that the caller may take"`

	ObservedAt time.Time `json:"observedAt"`
}

// Bind is one of several roles of a sign-in.
type Bind struct {
	Role       string   `json:"role"`
	Namespaces []string `json:"namespaces,omitempty" doc:"absent: the whole cluster, or the namespaces of namespaceSelector"`
	Selector   string   `json:"namespaceSelector,omitempty" doc:"labels of the namespaces; only before the binding"`
}

// SigninToken is what an OIDC token says about the job or the person that uses the device of a sign-in.
type SigninToken struct {
	Issuer  string            `json:"issuer"`
	Subject string            `json:"subject" doc:"the job or the person, as its issuer names it"`
	Claims  map[string]string `json:"claims,omitempty" doc:"those that rules of the tailnet policy require"`
}

// SigninActions are the actions that a caller may take on a sign-in.
type SigninActions struct {
	Revoke Action `json:"revoke"`
}

// Action says whether the caller may take an action on an object, and if not, why.
type Action struct {
	Allowed bool   `json:"allowed"`
	Why     string `json:"why" doc:"the reason why not, a sentence"`
}

// actionUnless returns an action that is allowed unless there is a reason against it. "" is no reason. The first reason counts.
func actionUnless(reasons ...string) Action {
	why := cmp.Or(reasons...)
	return Action{Allowed: why == "", Why: why}
}

// when returns the reason if the condition holds, and "" otherwise.
func when(holds bool, reason string) string {
	if holds {
		return reason
	}
	return ""
}

// Tailnet is a tailnet that the gateway connects to.
type Tailnet struct {
	ID           string      `json:"id"`
	Name         string      `json:"name" doc:"name of the TailscaleTailnet"`
	Domain       *string     `json:"domain" doc:"its MagicDNS domain"`
	Organisation *string     `json:"organisation" enum:"Personal,Organization" doc:"derived from the form of the domain"`
	Credential   Credential  `json:"credential"`
	Devices      *int        `json:"devices"`
	Services     *int        `json:"services"`
	LastSync     *time.Time  `json:"lastSync" doc:"when devices and services were last read"`
	Conditions   []Condition `json:"conditions"`

	ObservedAt time.Time `json:"observedAt"`
}

// Credential is the state of the operator's credential at the tailnet's API.
type Credential struct {
	Valid     *bool      `json:"valid" doc:"null: not tried, or the result is unknown"`
	Reason    string     `json:"reason"`
	CheckedAt *time.Time `json:"checkedAt"`
}

// Gateway is a TailscaleGateway: tailnets attached to a Gateway.
type Gateway struct {
	ID         string            `json:"id"`
	Namespace  string            `json:"namespace"`
	Name       string            `json:"name"`
	Target     string            `json:"target" doc:"the Gateway, namespace/name"`
	Class      *string           `json:"class" doc:"class of the Gateway"`
	Listeners  []Listener        `json:"listeners" doc:"null: the Gateway is not known"`
	Tailnets   []GatewayTailnet  `json:"tailnets"`
	Services   []GatewayService  `json:"services" doc:"the backend services"`
	Extension  ExtensionRevision `json:"extension"`
	Conditions []Condition       `json:"conditions"`

	ObservedAt time.Time `json:"observedAt"`
}

// Listener is a listener of a Gateway.
type Listener struct {
	Name     string `json:"name"`
	Protocol string `json:"protocol"`
	Port     int    `json:"port"`
	Hostname string `json:"hostname"`
}

// GatewayTailnet is a tailnet attached to a gateway.
type GatewayTailnet struct {
	Name     string     `json:"name"`
	Services int        `json:"services" doc:"services found there"`
	LastSync *time.Time `json:"lastSync"`
	Stale    bool       `json:"stale" doc:"true if the last read failed and the last known services are in use"`
	Message  string     `json:"message"`
}

// GatewayService is a tailnet service that a gateway routes to.
type GatewayService struct {
	Name    string `json:"name"`
	Tailnet string `json:"tailnet"`
	Route   string `json:"route"`
	Path    string `json:"path"`
	Cluster string `json:"cluster"`
	State   string `json:"state"`
}

// ExtensionRevision compares the desired revision with the one that Envoy Gateway has translated.
type ExtensionRevision struct {
	Desired    *string    `json:"desired"`
	Translated *string    `json:"translated"`
	At         *time.Time `json:"at"`
	Fresh      *bool      `json:"fresh" doc:"true if both are equal; null: one of them is not known"`
}

// Route is a TailscaleRoutePolicy, a TailscaleService, or an HTTPRoute that refers to one.
type Route struct {
	ID         string      `json:"id"`
	Resource   string      `json:"resource" enum:"TailscaleRoutePolicy,TailscaleService,HTTPRoute"`
	Namespace  string      `json:"namespace"`
	Name       string      `json:"name"`
	Target     string      `json:"target" doc:"the Gateway or route that it is attached to"`
	Tailnet    *string     `json:"tailnet"`
	Hostnames  []string    `json:"hostnames"`
	Rules      []RouteRule `json:"rules"`
	Refused    []Refusal   `json:"refused" doc:"references that no ReferenceGrant permits"`
	Conditions []Condition `json:"conditions"`

	ObservedAt time.Time `json:"observedAt"`
}

// RouteRule is one rule of a route.
type RouteRule struct {
	Path    string `json:"path"`
	Backend string `json:"backend"`
	State   string `json:"state"`
}

// Refusal is a reference that the controller does not follow.
type Refusal struct {
	Ref     string `json:"ref"`
	Reason  string `json:"reason"`
	Message string `json:"message"`
}

// ProxyGroup is a group of relays of one tailnet.
type ProxyGroup struct {
	ID         string        `json:"id"`
	Namespace  string        `json:"namespace"`
	Name       string        `json:"name"`
	Type       string        `json:"type" enum:"egress,ingress"`
	Tailnet    *string       `json:"tailnet"`
	Wanted     int           `json:"wanted" doc:"replicas"`
	Ready      *int          `json:"ready" doc:"ready replicas; null: the operator has not reported them"`
	Devices    []RelayDevice `json:"devices"`
	Conditions []Condition   `json:"conditions"`

	ObservedAt time.Time `json:"observedAt"`
}

// RelayDevice is the node of one relay.
type RelayDevice struct {
	Ordinal   int      `json:"ordinal"`
	Hostname  string   `json:"hostname"`
	FQDN      string   `json:"fqdn"`
	Addresses []string `json:"addresses"`
	Ready     bool     `json:"ready"`
	Reason    string   `json:"reason"`
}

// Adapter is a pod that runs the adapter.
type Adapter struct {
	ID         string         `json:"id"`
	Namespace  string         `json:"namespace"`
	Pod        string         `json:"pod"`
	Node       string         `json:"node"`
	Ready      *bool          `json:"ready" doc:"readiness of the adapter's container; null: the pod has no such container, or it has not started"`
	Restarts   *int           `json:"restarts"`
	Version    *string        `json:"version"`
	Outdated   *bool          `json:"outdated" doc:"true if it was injected with settings that have changed since"`
	Message    string         `json:"message"`
	Clusters   []AdapterReach `json:"clusters" doc:"null: no metrics source reports it"`
	ObservedAt time.Time      `json:"observedAt"`
}

// AdapterReach says whether an adapter can reach one cluster.
type AdapterReach struct {
	Cluster string `json:"cluster"`
	Healthy bool   `json:"healthy"`
}

// Key returns the cluster's id.
func (o Cluster) Key() string { return o.ID }

// Org returns "": clusters belong to the whole installation.
func (o Cluster) Org() string { return "" }

// Observed implements [Object].
func (o Cluster) Observed() time.Time { return o.ObservedAt }

// At implements [Object].
func (o Cluster) At(t time.Time) Object { o.ObservedAt = t; return o }

// Key returns "namespace/name".
func (o Signin) Key() string { return o.ID }

// Org returns "": sign-ins belong to the whole installation and to their owners.
func (o Signin) Org() string { return "" }

// Owner returns the owner of the sign-in.
func (o Signin) Owner() Owner { return Owner{o.Login, o.Tailnet} }

// Observed implements [Object].
func (o Signin) Observed() time.Time { return o.ObservedAt }

// At implements [Object].
func (o Signin) At(t time.Time) Object { o.ObservedAt = t; return o }

// Key returns the name.
func (o Tailnet) Key() string { return o.ID }

// Org returns "": tailnets belong to the whole installation.
func (o Tailnet) Org() string { return "" }

// Observed implements [Object].
func (o Tailnet) Observed() time.Time { return o.ObservedAt }

// At implements [Object].
func (o Tailnet) At(t time.Time) Object { o.ObservedAt = t; return o }

// Key returns "namespace/name".
func (o Gateway) Key() string { return o.ID }

// Org returns "": gateways belong to the whole installation.
func (o Gateway) Org() string { return "" }

// Observed implements [Object].
func (o Gateway) Observed() time.Time { return o.ObservedAt }

// At implements [Object].
func (o Gateway) At(t time.Time) Object { o.ObservedAt = t; return o }

// Key returns "resource/namespace/name".
func (o Route) Key() string { return o.ID }

// Org returns "": routes belong to the whole installation.
func (o Route) Org() string { return "" }

// Observed implements [Object].
func (o Route) Observed() time.Time { return o.ObservedAt }

// At implements [Object].
func (o Route) At(t time.Time) Object { o.ObservedAt = t; return o }

// Key returns "namespace/name".
func (o ProxyGroup) Key() string { return o.ID }

// Org returns "": proxy groups belong to the whole installation.
func (o ProxyGroup) Org() string { return "" }

// Observed implements [Object].
func (o ProxyGroup) Observed() time.Time { return o.ObservedAt }

// At implements [Object].
func (o ProxyGroup) At(t time.Time) Object { o.ObservedAt = t; return o }

// Key returns "namespace/pod".
func (o Adapter) Key() string { return o.ID }

// Org returns "": adapters belong to the whole installation.
func (o Adapter) Org() string { return "" }

// Observed implements [Object].
func (o Adapter) Observed() time.Time { return o.ObservedAt }

// At implements [Object].
func (o Adapter) At(t time.Time) Object { o.ObservedAt = t; return o }

// The tables of the lists: the columns for search and sort, and the states. An unknown value is "".

// The states of objects with a Ready condition.
const (
	ready    = "Ready"
	notReady = "NotReady"
	unknown  = "Unknown"
)

var readiness = []string{ready, notReady, unknown}

func readyState(conditions []Condition) string {
	switch findCondition(conditions, "Ready").Status {
	case "True":
		return ready
	case "False":
		return notReady
	}
	return unknown
}

// findCondition returns the condition of a type, or the zero Condition if it is missing.
func findCondition(all []Condition, kind string) Condition {
	for _, c := range all {
		if c.Type == kind {
			return c
		}
	}
	return Condition{}
}

func clusters() table[Cluster] {
	return table[Cluster]{KindCluster, "ClusterList", func(o Cluster) map[string]string {
		return map[string]string{"name": o.Name, "endpoint": o.Endpoint, "health": o.Health, "lastSeen": sortableTime(o.LastSeen),
			"version": o.Version}
	}, func(o Cluster) string { return o.Health }, []string{"Alive", "Suspect", "Unknown", "Dead", "Left"}}
}

func signins() table[Signin] {
	return table[Signin]{KindSignin, "SigninList", func(o Signin) map[string]string {
		return map[string]string{"login": o.Login, "device": o.Device, "role": o.Role, "phase": o.Phase,
			"created": sortableTime(&o.Created), "validUntil": sortableTime(o.ValidUntil)}
	}, func(o Signin) string { return o.Phase }, []string{"Pending", "Ready", "Refused", "Ending", "Expired"}}
}

func tailnets() table[Tailnet] {
	return table[Tailnet]{KindTailnet, "TailnetList", func(o Tailnet) map[string]string {
		return map[string]string{"name": o.Name, "domain": orZero(o.Domain), "organisation": orZero(o.Organisation),
			"devices": sortableNumber(o.Devices), "lastSync": sortableTime(o.LastSync)}
	}, func(o Tailnet) string { return readyState(o.Conditions) }, readiness}
}

func gateways() table[Gateway] {
	return table[Gateway]{KindGateway, "GatewayList", func(o Gateway) map[string]string {
		return map[string]string{"name": o.Name, "namespace": o.Namespace, "target": o.Target, "class": orZero(o.Class)}
	}, func(o Gateway) string { return readyState(o.Conditions) }, readiness}
}

func routes() table[Route] {
	return table[Route]{KindRoute, "RouteList", func(o Route) map[string]string {
		return map[string]string{"name": o.Name, "namespace": o.Namespace, "resource": o.Resource, "target": o.Target,
			"tailnet": orZero(o.Tailnet)}
	}, func(o Route) string { return readyState(o.Conditions) }, readiness}
}

func proxyGroups() table[ProxyGroup] {
	return table[ProxyGroup]{KindProxyGroup, "ProxyGroupList", func(o ProxyGroup) map[string]string {
		return map[string]string{"name": o.Name, "namespace": o.Namespace, "type": o.Type, "tailnet": orZero(o.Tailnet),
			"ready": sortableNumber(o.Ready), "wanted": sortableNumber(&o.Wanted)}
	}, func(o ProxyGroup) string { return readyState(o.Conditions) }, readiness}
}

func adapters() table[Adapter] {
	return table[Adapter]{KindAdapter, "AdapterList", func(o Adapter) map[string]string {
		return map[string]string{"pod": o.Pod, "namespace": o.Namespace, "node": o.Node, "restarts": sortableNumber(o.Restarts),
			"version": orZero(o.Version)}
	}, func(o Adapter) string { return describe(o.Ready, ready, notReady, unknown) }, readiness}
}

// describe returns yes or no for a known value, and otherwise unknown.
func describe(known *bool, yes, no, unknown string) string {
	switch {
	case known == nil:
		return unknown
	case *known:
		return yes
	}
	return no
}
