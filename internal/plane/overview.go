package plane

import (
	"cmp"
	"context"
	"fmt"
	"slices"

	"github.com/tailplane/tailplane/internal/access"
)

// Overview summarises the installation.
type Overview struct {
	Clusters    *Tally      `json:"clusters" doc:"null: not known, or hidden from the caller (see hidden)"`
	Signins     *Tally      `json:"signins"`
	Tailnets    *Tally      `json:"tailnets"`
	Gateways    *Tally      `json:"gateways"`
	Routes      *Tally      `json:"routes"`
	ProxyGroups *Tally      `json:"proxygroups"`
	Adapters    *Tally      `json:"adapters"`
	Pools       *Tally      `json:"pools"`
	Enrollments *Tally      `json:"enrollments"`
	Holds       *Tally      `json:"holds"`
	Forges      *Tally      `json:"forges"`
	Changes     *Tally      `json:"changes" doc:"open changes"`
	Drift       *Tally      `json:"drift" doc:"drift, without explained and ignored drift"`
	Attention   []Attention `json:"attention" null:"never" doc:"problems that need attention, the worst first; at most 100"`
	More        int         `json:"more" doc:"number of problems that are not listed"`
	Hidden      []Kind      `json:"hidden" null:"never" enum:"cluster,signin,tailnet,gateway,route,proxygroup,adapter,pool,enrollment,hold,forge,change,drift" doc:"kinds that the caller may not see"`
}

// Tally counts the objects of a kind that the caller may see.
type Tally struct {
	Total  int            `json:"total"`
	States map[string]int `json:"states" null:"never"`
}

// Attention is a problem with one object.
type Attention struct {
	Severity Severity `json:"severity" enum:"error,warning"`
	Kind     Kind     `json:"kind" enum:"cluster,signin,tailnet,gateway,route,proxygroup,adapter,pool,enrollment,hold,forge,change,drift"`
	ID       string   `json:"id"`
	Reason   string   `json:"reason" doc:"a word"`
	Message  string   `json:"message" doc:"a sentence"`
}

// Severity is how bad a problem is.
type Severity string

// The severities.
const (
	SeverityError   Severity = "error"
	SeverityWarning Severity = "warning"
)

const maxAttention = 100

// GetOverview summarises what the caller may see of the installation.
func (d *Service) GetOverview(_ context.Context, p access.Permit, _ Empty) (Envelope[Overview], error) {
	v := ViewerOf(p)
	lists, revision := d.Store.ListAll(KindCluster, KindSignin, KindTailnet, KindGateway, KindRoute, KindProxyGroup, KindAdapter, KindPool, KindEnrollment, KindHold, KindForge, KindChange, KindDrift)
	o := Overview{Attention: []Attention{}, Hidden: []Kind{}}
	o.Clusters = tallyObjects(&o, v, lists[0], clusters().State, clusterTrouble)
	o.Signins = tallyObjects(&o, v, lists[1], signins().State, signinTrouble)
	o.Tailnets = tallyObjects(&o, v, lists[2], tailnets().State, func(t Tailnet) (Severity, string, string) { return conditionTrouble(t.Conditions) })
	o.Gateways = tallyObjects(&o, v, lists[3], gateways().State, gatewayTrouble)
	o.Routes = tallyObjects(&o, v, lists[4], routes().State, routeTrouble)
	o.ProxyGroups = tallyObjects(&o, v, lists[5], proxyGroups().State, proxyGroupTrouble)
	o.Adapters = tallyObjects(&o, v, lists[6], adapters().State, adapterTrouble)
	o.Pools, o.Enrollments = tallyStateful(&o, v, lists[7]), tallyStateful(&o, v, lists[8])
	o.Holds, o.Forges = tallyStateful(&o, v, lists[9]), tallyStateful(&o, v, lists[10])
	o.Changes, o.Drift = tallyStateful(&o, v, lists[11]), tallyStateful(&o, v, lists[12])
	slices.SortStableFunc(o.Attention, func(a, b Attention) int { return cmp.Compare(a.Severity, b.Severity) }) // error before warning
	if len(o.Attention) > maxAttention {
		o.More = len(o.Attention) - maxAttention
		o.Attention = o.Attention[:maxAttention]
	}
	return newEnvelope(d, "Overview", o, revision, d.Store.Sources()), nil
}

// Stateful is an object that reports its own state and its problem. Trouble returns an empty severity if there is no problem.
type Stateful interface {
	Object
	CurrentState() string
	Trouble() (severity Severity, reason, message string)
}

// Settled is an object that may be finished. The overview does not count an object whose Settled returns true.
type Settled interface{ Settled() bool }

// tallyStateful is like tallyObjects, for objects that report their own state.
func tallyStateful(o *Overview, v Viewer, l Listing) *Tally {
	return tallyObjects(o, v, l, Stateful.CurrentState, Stateful.Trouble)
}

// tallyObjects counts the objects of one kind that the caller sees, and adds their problems to o.
func tallyObjects[T Object](o *Overview, v Viewer, l Listing, state func(T) string, trouble func(T) (Severity, string, string)) *Tally {
	if !v.seesAny(l.Kind) {
		o.Hidden = append(o.Hidden, l.Kind)
		return nil
	}
	if !l.Known {
		return nil
	}
	t := &Tally{States: map[string]int{}}
	for _, object := range visibleObjects[T](v, l.Kind, l.Objects) {
		if s, ok := any(object).(Settled); ok && s.Settled() {
			continue
		}
		t.Total++
		t.States[state(object)]++
		if severity, reason, message := trouble(object); severity != "" {
			o.Attention = append(o.Attention, Attention{severity, l.Kind, object.Key(), reason, message})
		}
	}
	return t
}

func clusterTrouble(c Cluster) (Severity, string, string) {
	switch {
	case c.Conflict:
		return SeverityError, "Conflict", "Another server is known as this cluster."
	case c.Health == "Dead":
		return SeverityError, "Dead", "None of its access servers responds."
	case c.Health == "Suspect":
		return SeverityWarning, "Suspect", "Its access servers have not responded recently."
	case c.Skew != nil && *c.Skew:
		return SeverityWarning, "VersionSkew", "It runs " + c.Version + ", which differs from the version of this server."
	}
	return "", "", ""
}

func signinTrouble(s Signin) (Severity, string, string) {
	if s.Phase != "Refused" {
		return "", "", ""
	}
	severity, reason, message := conditionTrouble(s.Conditions)
	if severity == "" {
		reason, message = "Refused", "The operator does not provision it."
	}
	return SeverityWarning, reason, message
}

func gatewayTrouble(g Gateway) (Severity, string, string) {
	if severity, reason, message := conditionTrouble(g.Conditions); severity != "" {
		return severity, reason, message
	}
	for _, t := range g.Tailnets {
		if t.Stale {
			return SeverityWarning, "Stale", fmt.Sprintf("The last read of the tailnet %s failed; the last known services are in use.", t.Name)
		}
	}
	if g.Extension.Fresh != nil && !*g.Extension.Fresh {
		return SeverityWarning, "NotTranslated", "Envoy Gateway has not rendered the latest routes yet."
	}
	return "", "", ""
}

func routeTrouble(r Route) (Severity, string, string) {
	if len(r.Refused) > 0 {
		return SeverityError, r.Refused[0].Reason, r.Refused[0].Message
	}
	return conditionTrouble(r.Conditions)
}

func proxyGroupTrouble(g ProxyGroup) (Severity, string, string) {
	if g.Ready != nil && *g.Ready < g.Wanted {
		severity := SeverityWarning
		if *g.Ready == 0 {
			severity = SeverityError
		}
		return severity, "PodsNotReady", fmt.Sprintf("%d of %d relays are ready.", *g.Ready, g.Wanted)
	}
	return conditionTrouble(g.Conditions)
}

func adapterTrouble(a Adapter) (Severity, string, string) {
	switch {
	case a.Ready != nil && !*a.Ready:
		return SeverityError, "NotReady", "The adapter in this pod is not ready."
	case a.Outdated != nil && *a.Outdated:
		return SeverityWarning, "Outdated", "It was injected with settings that have changed since. A new pod gets the current settings."
	}
	return "", "", ""
}

// conditionTrouble returns the problem in the conditions: Ready that is False, or Degraded that is True.
func conditionTrouble(conditions []Condition) (Severity, string, string) {
	if c := findCondition(conditions, "Ready"); c.Status == "False" {
		return SeverityError, c.Reason, c.Message
	}
	if c := findCondition(conditions, "Degraded"); c.Status == "True" {
		return SeverityWarning, c.Reason, c.Message
	}
	return "", "", ""
}
