package gateway

import (
	"cmp"
	"maps"
	"slices"
	"strings"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

// Build computes the Snapshot, the reports and the groups to create from the stored objects. It
// does not modify the objects.
//
// Build processes dependencies first: groups, services, attachments to Gateways, policies, route
// rules. An object that one step rejects does not exist for the next steps.
func Build(o Objects) Result {
	b := newBuilder(o)
	for _, g := range b.groups {
		b.result.Groups[nameOf(g)] = b.validateGroup(g)
	}
	b.resolveServices()
	b.processAttachments()
	b.processPolicies()
	b.processBackends()
	b.finish()
	b.markUnreadable()
	return b.result
}

// A builder holds the state of one Build call.
type builder struct {
	o      Objects
	result Result

	tailnets           map[string]*gatewayv1alpha1.TailscaleTailnet
	defaultTailnetName string
	groups             []*gatewayv1alpha1.TailscaleProxyGroup // sorted by name
	groupOf            map[Name]*gatewayv1alpha1.TailscaleProxyGroup
	services           []*gatewayv1alpha1.TailscaleService // oldest first
	grants             map[string][]GrantObject
	allowed            map[[2]string]bool // cached results of tailnetFor
	ports              map[Name]map[PortKey]uint16

	gatewayObjects  map[Name]GatewayObject // Gateways of this Envoy Gateway
	foreignGateways map[Name]bool          // Gateways of other controllers
	routes          []RouteObject          // sorted by kind and name
	virtualHosts    map[Name][]virtualHost

	groupRequests map[groupRequestKey]gatewayv1alpha1.GatewayProxyGroup // by TailscaleGateway and tailnet
	groupHolders  map[string]Name                                       // group name -> the service that has its own group of this name
	createdGroups map[[2]string]int                                     // number of groups created for a TailscaleGateway and tailnet

	resolved        map[Name]*service
	servicesByScope map[[2]string][]*service          // by namespace and tailnet, oldest first
	servicesByLabel map[[2]string]map[string]*service // cached results of byLabel
	claimedRules    map[RuleKey]Name                  // rule -> the policy that claimed it
	requiredPorts   map[Name]map[PortKey]bool
	gatewayStates   map[Name]*gatewayState
}

// A gatewayState collects what Build produces for one Gateway.
type gatewayState struct {
	gateway       *Gateway
	attachment    *gatewayv1alpha1.TailscaleGateway
	attached      []attachedTailnet // tailnets, in the order of the spec
	clusters      map[string]Cluster
	rules         map[RuleKey]*Rule
	access        map[string]listenerAccess // by listener name
	proxyProtocol map[string]bool           // listener names where connections may begin with a PROXY header
}

func newBuilder(o Objects) *builder {
	b := &builder{
		o: o,
		result: Result{
			Snapshot: &Snapshot{Gateways: map[Name]*Gateway{}},
			Groups:   map[Name]GroupReport{}, Services: map[Name]ServiceReport{}, Attachments: map[Name]AttachmentReport{}, Policies: map[Name]PolicyReport{},
			DesiredGroups: map[string]DesiredGroup{}, RequiredPorts: map[Name][]PortKey{},
		},
		tailnets: map[string]*gatewayv1alpha1.TailscaleTailnet{}, groupOf: map[Name]*gatewayv1alpha1.TailscaleProxyGroup{},
		grants: map[string][]GrantObject{}, allowed: map[[2]string]bool{}, ports: map[Name]map[PortKey]uint16{},
		gatewayObjects: map[Name]GatewayObject{}, foreignGateways: map[Name]bool{}, virtualHosts: map[Name][]virtualHost{},
		groupRequests: map[groupRequestKey]gatewayv1alpha1.GatewayProxyGroup{}, groupHolders: map[string]Name{}, createdGroups: map[[2]string]int{}, claimedRules: map[RuleKey]Name{},
		resolved: map[Name]*service{}, servicesByScope: map[[2]string][]*service{}, servicesByLabel: map[[2]string]map[string]*service{}, requiredPorts: map[Name]map[PortKey]bool{}, gatewayStates: map[Name]*gatewayState{},
	}
	for _, t := range o.Tailnets {
		b.tailnets[t.Name] = t
	}
	b.defaultTailnetName = b.defaultTailnet()
	b.groups = slices.SortedFunc(
		slices.Values(o.Groups),
		func(x, y *gatewayv1alpha1.TailscaleProxyGroup) int { return nameOf(x).Compare(nameOf(y)) },
	)
	for _, g := range b.groups {
		b.groupOf[nameOf(g)] = g
	}
	// A service that is being deleted loses its routes before its relays.
	b.services = slices.DeleteFunc(
		slices.Clone(o.Services),
		func(s *gatewayv1alpha1.TailscaleService) bool { return !s.DeletionTimestamp.IsZero() },
	)
	slices.SortFunc(b.services, func(x, y *gatewayv1alpha1.TailscaleService) int { return older(x, y) })
	for _, g := range o.Grants {
		b.grants[g.Namespace] = append(b.grants[g.Namespace], g)
	}
	for group, table := range o.Ports {
		b.ports[group] = make(map[PortKey]uint16, len(table.Ports))
		for _, p := range table.Ports {
			if p.Until.IsZero() {
				b.ports[group][p.PortKey] = p.MatchPort
			}
		}
	}
	for _, g := range o.Gateways {
		if g.Controller == o.Controller {
			b.gatewayObjects[g.Name] = g
		} else {
			b.foreignGateways[g.Name] = true
		}
	}
	b.routes = slices.SortedFunc(slices.Values(o.Routes), func(x, y RouteObject) int {
		return cmp.Or(cmp.Compare(x.Kind, y.Kind), x.Name.Compare(y.Name))
	})
	b.computeVirtualHosts()
	return b
}

func nameOf(o metav1.Object) Name { return Name{o.GetNamespace(), o.GetName()} }

// older compares by creation time, then by name. If two objects claim the same thing, the older
// one gets it.
func older(x, y metav1.Object) int {
	return cmp.Or(x.GetCreationTimestamp().Time.Compare(y.GetCreationTimestamp().Time), nameOf(x).Compare(nameOf(y)))
}

// gatewayState returns the state of a Gateway and creates it on first use.
func (b *builder) gatewayState(name Name) *gatewayState {
	r := b.gatewayStates[name]
	if r == nil {
		r = &gatewayState{
			gateway:       &Gateway{Name: name},
			clusters:      map[string]Cluster{},
			rules:         map[RuleKey]*Rule{},
			access:        map[string]listenerAccess{},
			proxyProtocol: map[string]bool{},
		}
		b.gatewayStates[name] = r
	}
	return r
}

// requirePort records that the relays of a group must have a port for key.
func (b *builder) requirePort(group Name, key PortKey) {
	if b.requiredPorts[group] == nil {
		b.requiredPorts[group] = map[PortKey]bool{}
	}
	b.requiredPorts[group][key] = true
}

// finish sorts the collected results into the Snapshot and computes the revisions.
func (b *builder) finish() {
	for _, r := range b.gatewayStates {
		g := r.gateway
		for _, rule := range r.rules {
			g.Rules = append(g.Rules, *rule)
		}
		slices.SortFunc(g.Rules, func(x, y Rule) int { return x.Key.Compare(y.Key) })
		g.Listeners = r.listeners()
		used := map[string]bool{}
		for _, route := range g.Routes {
			used[route.Cluster] = true
		}
		for _, rule := range g.Rules {
			for _, w := range slices.Concat(rule.Mixed, rule.Default) {
				used[w.Cluster] = true
			}
			for _, p := range rule.Paths {
				used[p.Cluster] = true
			}
		}
		for name := range used {
			g.Clusters = append(g.Clusters, r.clusters[name])
		}
		slices.SortFunc(g.Clusters, func(x, y Cluster) int { return strings.Compare(x.Name, y.Name) })
		slices.SortFunc(g.Routes, func(x, y Route) int {
			return cmp.Or(cmp.Compare(len(y.Prefix), len(x.Prefix)), cmp.Compare(x.Name, y.Name))
		})
		slices.SortFunc(g.Mappings, func(x, y Mapping) int {
			return cmp.Or(cmp.Compare(x.ServiceName, y.ServiceName), cmp.Compare(x.Port, y.Port))
		})
		if r.attachment == nil && len(g.Rules) == 0 && len(g.Listeners) == 0 {
			continue
		}
		g.Revision = g.revision()
		b.result.Snapshot.Gateways[g.Name] = g
		if r.attachment != nil {
			report := b.result.Attachments[nameOf(r.attachment)]
			report.Revision = g.Revision
			b.result.Attachments[nameOf(r.attachment)] = report
		}
	}
	b.result.Snapshot.rules = b.result.Snapshot.agreements()
	for group, keys := range b.requiredPorts {
		b.result.RequiredPorts[group] = slices.SortedFunc(maps.Keys(keys), PortKey.Compare)
	}
}

// markUnreadable marks the reports that depend on a namespace that the operator cannot read now.
func (b *builder) markUnreadable() {
	if len(b.o.Unreadable) == 0 {
		return
	}
	for name, report := range b.result.Groups {
		report.Unreadable = b.o.Unreadable[name.Namespace]
		b.result.Groups[name] = report
	}
	of := map[types.UID]map[string]bool{} // namespaces of groups, by the UID of the owner of the services
	for _, s := range b.services {
		report := b.result.Services[nameOf(s)]
		report.Unreadable = b.o.Unreadable[report.Group.Namespace]
		b.result.Services[nameOf(s)] = report
		if owner := metav1.GetControllerOf(s); report.Unreadable && owner != nil {
			if of[owner.UID] == nil {
				of[owner.UID] = map[string]bool{}
			}
			of[owner.UID][report.Group.Namespace] = true
		}
	}
	for _, a := range b.o.Attachments {
		if report, ok := b.result.Attachments[nameOf(a)]; ok {
			report.Unreadable = slices.Sorted(maps.Keys(of[a.UID]))
			b.result.Attachments[nameOf(a)] = report
		}
	}
}
