package planemcp

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/plane"
)

// tools returns all tools, in the order in which clients see them. There is deliberately no tool to revoke another person's sign-in. There
// is also none that returns a credential, a file or the content of a URL.
func tools() []tool {
	return slices.Concat(fleetTools(), jobTools(), changeTools(), enrollTools(), []tool{
		one(tool{name: "whoami", title: "Who am I", set: "", verb: plane.GetMe.Verb, doc: plane.GetMe.Doc, pattern: plane.GetMe.Pattern, most: plane.GetMe.MaxAnswer}, whoami, nil),
		shrinking(one(tool{name: "get_overview", title: "Overview", set: Fleet, verb: plane.GetOverview.Verb, doc: plane.GetOverview.Doc, pattern: plane.GetOverview.Pattern, most: plane.GetOverview.MaxAnswer}, overview, attention)),
		one(tool{name: "list_sources", title: "Sources", set: Fleet, verb: plane.ListSources.Verb, doc: plane.ListSources.Doc, pattern: plane.ListSources.Pattern, most: plane.ListSources.MaxAnswer}, func(all []plane.Source, _ plane.Meta) string { return counted(len(all), "source") + "." },
			func(all []plane.Source) table {
				return grid([]string{"SOURCE", "STATUS", "SINCE", "MESSAGE"}, all, func(s plane.Source) []string { return []string{s.Name, string(s.Status), moment(s.Since), s.Message} })
			}),
		one(tool{name: "list_exposures", title: "Exposed services", set: Fleet, verb: plane.ListExposures.Verb, doc: plane.ListExposures.Doc, pattern: plane.ListExposures.Pattern, most: plane.ListExposures.MaxAnswer}, func(all []plane.Exposure, _ plane.Meta) string { return counted(len(all), "exposed service") + "." },
			func(all []plane.Exposure) table {
				return grid([]string{"NAME", "ADDRESS", "ACCESS", "STATE", "PROBLEM"}, all, func(e plane.Exposure) []string {
					return []string{e.Name, maybe(e.Address), e.Access, string(e.State), e.Problem}
				})
			}),
		list(tool{name: "list_clusters", title: "Clusters", set: Infra, verb: plane.ListClusters.Verb, doc: plane.ListClusters.Doc, pattern: plane.ListClusters.Pattern, most: plane.ListClusters.MaxAnswer}, "cluster", []string{"NAME", "HEALTH", "ENDPOINT", "VERSION", "LAST SEEN", "ID"}, func(c plane.Cluster) []string {
			return []string{c.Name, word(c.Health, "", c.Conflict, "conflict"), c.Endpoint, c.Version, maybeMoment(c.LastSeen), c.ID}
		}),
		list(tool{name: "list_signins", title: "Sign-ins", set: Infra, verb: plane.ListSignins.Verb, doc: plane.ListSignins.Doc, pattern: plane.ListSignins.Pattern, most: plane.ListSignins.MaxAnswer}, "sign-in", []string{"LOGIN", "DEVICE", "ROLE", "PHASE", "UNTIL", "ID"}, func(s plane.Signin) []string {
			return []string{s.Login, s.Device, s.Role, s.Phase, maybeMoment(s.ValidUntil), s.ID}
		}),
		list(tool{name: "list_tailnets", title: "Tailnets", set: Infra, verb: plane.ListTailnets.Verb, doc: plane.ListTailnets.Doc, pattern: plane.ListTailnets.Pattern, most: plane.ListTailnets.MaxAnswer}, "tailnet", []string{"NAME", "DOMAIN", "CREDENTIAL", "DEVICES", "SERVICES", "READY"}, func(t plane.Tailnet) []string {
			return []string{t.Name, maybe(t.Domain), word(maybe(t.Credential.Valid), t.Credential.Reason, false, ""), maybe(t.Devices), maybe(t.Services), readiness(t.Conditions)}
		}),
		list(tool{name: "list_gateways", title: "Gateways", set: Infra, verb: plane.ListGateways.Verb, doc: plane.ListGateways.Doc, pattern: plane.ListGateways.Pattern, most: plane.ListGateways.MaxAnswer}, "gateway", []string{"NAMESPACE", "NAME", "TARGET", "CLASS", "TAILNETS", "SERVICES", "READY"}, func(g plane.Gateway) []string {
			return []string{g.Namespace, g.Name, g.Target, maybe(g.Class), strconv.Itoa(len(g.Tailnets)), strconv.Itoa(len(g.Services)), readiness(g.Conditions)}
		}),
		list(tool{name: "list_routes", title: "Routes", set: Infra, verb: plane.ListRoutes.Verb, doc: plane.ListRoutes.Doc, pattern: plane.ListRoutes.Pattern, most: plane.ListRoutes.MaxAnswer}, "route", []string{"RESOURCE", "NAMESPACE", "NAME", "TARGET", "TAILNET", "REFUSED", "READY"}, func(r plane.Route) []string {
			return []string{r.Resource, r.Namespace, r.Name, r.Target, maybe(r.Tailnet), strconv.Itoa(len(r.Refused)), readiness(r.Conditions)}
		}),
		list(tool{name: "list_proxy_groups", title: "Proxy groups", set: Infra, verb: plane.ListProxyGroups.Verb, doc: plane.ListProxyGroups.Doc, pattern: plane.ListProxyGroups.Pattern, most: plane.ListProxyGroups.MaxAnswer}, "proxy group", []string{"NAMESPACE", "NAME", "TYPE", "TAILNET", "READY", "WANTED"}, func(g plane.ProxyGroup) []string {
			return []string{g.Namespace, g.Name, g.Type, maybe(g.Tailnet), maybe(g.Ready), strconv.Itoa(g.Wanted)}
		}),
		list(tool{name: "list_adapters", title: "Adapters", set: Infra, verb: plane.ListAdapters.Verb, doc: plane.ListAdapters.Doc, pattern: plane.ListAdapters.Pattern, most: plane.ListAdapters.MaxAnswer}, "adapter", []string{"NAMESPACE", "POD", "NODE", "READY", "RESTARTS", "VERSION", "OUTDATED"}, func(a plane.Adapter) []string {
			return []string{a.Namespace, a.Pod, a.Node, maybe(a.Ready), maybe(a.Restarts), maybe(a.Version), maybe(a.Outdated)}
		}),
		history(),
	})
}

// history returns the tool for the audit log.
func history() tool {
	t := reading[plane.HistoryRequest](tool{name: "list_audit", title: "Audit record", doc: "List entries of the audit record, the newest first: the caller's own, or all.", set: Audit,
		verb: plane.ListAudit.Verb, pattern: plane.ListAudit.Pattern, most: plane.ListAudit.MaxAnswer},
		func(h *plane.History) plane.Envelope[[]audit.Entry] { return h.Envelope },
		func(all []audit.Entry, m plane.Meta) string { return pageOf(len(all), "entry", m) },
		func(all []audit.Entry) table {
			return grid([]string{"TIME", "WHO", "VERB", "OBJECT", "RESULT", "CODE"}, all, func(e audit.Entry) []string {
				return []string{moment(e.Time), cmp.Or(e.Actor.Login, e.Actor.Node), string(e.Verb), e.Object, string(e.Result), string(e.Code)}
			})
		})
	t.view.fewer = func(r any, n int) { r.(*plane.HistoryRequest).Limit = plane.Count(n) }
	t.view.length = func(all any) int { return len(*all.(*[]audit.Entry)) }
	return t
}

// one returns a tool for an operation that returns one object.
func one[T any](t tool, summary func(T, plane.Meta) string, rows func(T) table) tool {
	return reading[plane.Empty](t, func(e *plane.Envelope[T]) plane.Envelope[T] { return *e }, summary, rows)
}

// list returns a tool for a paged list.
func list[T any](t tool, noun string, head []string, row func(T) []string) tool {
	t = reading[plane.ListRequest](t, func(e *plane.Envelope[[]T]) plane.Envelope[[]T] { return *e },
		func(all []T, m plane.Meta) string { return pageOf(len(all), noun, m) },
		func(all []T) table { return grid(head, all, row) })
	t.view.fewer = func(r any, n int) { r.(*plane.ListRequest).Limit = plane.Count(n) }
	t.view.length = func(all any) int { return len(*all.(*[]T)) }
	return t
}

func whoami(me plane.Me, _ plane.Meta) string {
	var roles []string
	for _, r := range me.Roles {
		roles = append(roles, fmt.Sprintf("%s@%s (%s)", r.Role, strings.Join(r.Orgs, ","), r.Source))
	}
	s := fmt.Sprintf("You are %s on %s, via %s: %s.", cmp.Or(me.Login, strings.Join(me.Tags, ",")), me.Node, me.Via, cmp.Or(strings.Join(roles, ", "), "no role"))
	for _, w := range me.Warnings {
		s += " Warning: " + w + "."
	}
	return s
}

func overview(o plane.Overview, _ plane.Meta) string {
	var parts []string
	for _, of := range []struct {
		kind  plane.Kind
		noun  string
		tally *plane.Tally
	}{{plane.KindCluster, "cluster", o.Clusters}, {plane.KindSignin, "sign-in", o.Signins}, {plane.KindTailnet, "tailnet", o.Tailnets}, {plane.KindGateway, "gateway", o.Gateways},
		{plane.KindRoute, "route", o.Routes}, {plane.KindProxyGroup, "proxy group", o.ProxyGroups}, {plane.KindAdapter, "adapter", o.Adapters},
		{plane.KindPool, "pool", o.Pools}, {plane.KindEnrollment, "organisation", o.Enrollments}, {plane.KindHold, "hold", o.Holds}, {plane.KindForge, "forge", o.Forges},
		{plane.KindChange, "open change", o.Changes}, {plane.KindDrift, "drift", o.Drift}} {
		switch {
		case slices.Contains(o.Hidden, of.kind):
		case of.tally == nil && of.kind == plane.KindChange: // most installations have no repository
		case of.tally == nil:
			parts = append(parts, of.noun+"s not known")
		default:
			var states []string
			for _, state := range slices.Sorted(maps.Keys(of.tally.States)) {
				states = append(states, fmt.Sprintf("%d %s", of.tally.States[state], state))
			}
			part := counted(of.tally.Total, of.noun)
			if len(states) > 0 {
				part += " (" + strings.Join(states, ", ") + ")"
			}
			parts = append(parts, part)
		}
	}
	if len(o.Hidden) > 0 {
		parts = append(parts, counted(len(o.Hidden), "kind")+" not for you to see")
	}
	needs := "Nothing needs attention."
	if n := len(o.Attention) + o.More; n == 1 {
		needs = "1 thing needs attention."
	} else if n > 1 {
		needs = fmt.Sprintf("%d things need attention.", n)
	}
	return strings.Join(parts, "; ") + ". " + needs
}

func attention(o plane.Overview) table {
	return grid([]string{"SEVERITY", "KIND", "ID", "REASON", "MESSAGE"}, o.Attention, func(a plane.Attention) []string {
		return []string{string(a.Severity), string(a.Kind), a.ID, a.Reason, a.Message}
	})
}

// shrinking lets the overview drop the less severe half of its attention list, repeatedly, until the result fits. More counts what was
// dropped.
func shrinking(t tool) tool {
	t.view.shrink = func(data any) bool {
		o := data.(*plane.Overview)
		half := len(o.Attention) / 2
		o.More += len(o.Attention) - half
		o.Attention = o.Attention[:half]
		return true
	}
	return t
}

// pageOf describes how much of a list a page holds.
func pageOf(n int, noun string, m plane.Meta) string {
	if m.Page == nil {
		return "It is not known which " + plural(noun) + " there are."
	}
	s := counted(n, noun)
	if m.Page.Total != nil && *m.Page.Total != n {
		s = fmt.Sprintf("%d of %s", n, counted(*m.Page.Total, noun))
	}
	if m.Page.Next != "" {
		return s + "; more with the cursor in meta.page.next."
	}
	return s + "."
}

func plural(noun string) string {
	if stem, ok := strings.CutSuffix(noun, "y"); ok && !strings.HasSuffix(noun, "ay") {
		return stem + "ies"
	}
	return noun + "s"
}

func counted(n int, noun string) string {
	if n != 1 {
		noun = plural(noun)
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// unknown stands for an unknown value in a table, where zero would be wrong.
const unknown = "?"

func maybe[T any](v *T) string {
	if v == nil {
		return unknown
	}
	return fmt.Sprint(*v)
}

func moment(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func maybeMoment(t *time.Time) string {
	if t == nil {
		return ""
	}
	return moment(*t)
}

// word returns a state with its reason and a remark.
func word(state, reason string, also bool, what string) string {
	if reason != "" {
		state += " (" + reason + ")"
	}
	if also {
		state += ", " + what
	}
	return state
}

func readiness(conditions []plane.Condition) string {
	for _, c := range conditions {
		if c.Type == "Ready" {
			return word(c.Status, c.Reason, false, "")
		}
	}
	return unknown
}
