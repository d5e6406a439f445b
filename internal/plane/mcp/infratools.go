package mcp

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

// allTools returns all tools, in the order in which clients see them. There is deliberately no tool to revoke another person's sign-in. There
// is also none that returns a credential, a file or the content of a URL.
func allTools() []tool {
	return slices.Concat(fleetTools(), runnerTools(), changeTools(), enrollmentTools(), []tool{
		objectTool(tool{name: "whoami", title: "Who am I", set: "", verb: plane.GetMe.Verb, doc: plane.GetMe.Doc, pattern: plane.GetMe.Pattern, maxResponse: plane.GetMe.MaxResponse}, meSummary, nil),
		shrinkOverview(objectTool(tool{name: "get_overview", title: "Overview", set: Fleet, verb: plane.GetOverview.Verb, doc: plane.GetOverview.Doc, pattern: plane.GetOverview.Pattern, maxResponse: plane.GetOverview.MaxResponse}, overviewSummary, attentionTable)),
		objectTool(tool{name: "list_sources", title: "Sources", set: Fleet, verb: plane.ListSources.Verb, doc: plane.ListSources.Doc, pattern: plane.ListSources.Pattern, maxResponse: plane.ListSources.MaxResponse}, func(all []plane.Source, _ plane.Meta) string { return countOf(len(all), "source") + "." },
			func(all []plane.Source) table {
				return newTable([]string{"SOURCE", "STATUS", "SINCE", "MESSAGE"}, all, func(s plane.Source) []string {
					return []string{s.Name, string(s.Status), formatTime(s.Since), s.Message}
				})
			}),
		objectTool(tool{name: "list_exposures", title: "Exposed services", set: Fleet, verb: plane.ListExposures.Verb, doc: plane.ListExposures.Doc, pattern: plane.ListExposures.Pattern, maxResponse: plane.ListExposures.MaxResponse}, func(all []plane.Exposure, _ plane.Meta) string { return countOf(len(all), "exposed service") + "." },
			func(all []plane.Exposure) table {
				return newTable([]string{"NAME", "ADDRESS", "ACCESS", "STATE", "PROBLEM"}, all, func(e plane.Exposure) []string {
					return []string{e.Name, orUnknown(e.Address), e.Access, string(e.State), e.Problem}
				})
			}),
		listTool(tool{name: "list_clusters", title: "Clusters", set: Infra, verb: plane.ListClusters.Verb, doc: plane.ListClusters.Doc, pattern: plane.ListClusters.Pattern, maxResponse: plane.ListClusters.MaxResponse}, "cluster", []string{"NAME", "HEALTH", "ENDPOINT", "VERSION", "LAST SEEN", "ID"}, func(c plane.Cluster) []string {
			return []string{c.Name, withReason(c.Health, "", c.Conflict, "conflict"), c.Endpoint, c.Version, formatTimeOrEmpty(c.LastSeen), c.ID}
		}),
		listTool(tool{name: "list_signins", title: "Sign-ins", set: Infra, verb: plane.ListSignins.Verb, doc: plane.ListSignins.Doc, pattern: plane.ListSignins.Pattern, maxResponse: plane.ListSignins.MaxResponse}, "sign-in", []string{"LOGIN", "DEVICE", "ROLE", "PHASE", "UNTIL", "ID"}, func(s plane.Signin) []string {
			return []string{s.Login, s.Device, s.Role, s.Phase, formatTimeOrEmpty(s.ValidUntil), s.ID}
		}),
		listTool(tool{name: "list_tailnets", title: "Tailnets", set: Infra, verb: plane.ListTailnets.Verb, doc: plane.ListTailnets.Doc, pattern: plane.ListTailnets.Pattern, maxResponse: plane.ListTailnets.MaxResponse}, "tailnet", []string{"NAME", "DOMAIN", "CREDENTIAL", "DEVICES", "SERVICES", "READY"}, func(t plane.Tailnet) []string {
			return []string{t.Name, orUnknown(t.Domain), withReason(orUnknown(t.Credential.Valid), t.Credential.Reason, false, ""), orUnknown(t.Devices), orUnknown(t.Services), readiness(t.Conditions)}
		}),
		listTool(tool{name: "list_gateways", title: "Gateways", set: Infra, verb: plane.ListGateways.Verb, doc: plane.ListGateways.Doc, pattern: plane.ListGateways.Pattern, maxResponse: plane.ListGateways.MaxResponse}, "gateway", []string{"NAMESPACE", "NAME", "TARGET", "CLASS", "TAILNETS", "SERVICES", "READY"}, func(g plane.Gateway) []string {
			return []string{g.Namespace, g.Name, g.Target, orUnknown(g.Class), strconv.Itoa(len(g.Tailnets)), strconv.Itoa(len(g.Services)), readiness(g.Conditions)}
		}),
		listTool(tool{name: "list_routes", title: "Routes", set: Infra, verb: plane.ListRoutes.Verb, doc: plane.ListRoutes.Doc, pattern: plane.ListRoutes.Pattern, maxResponse: plane.ListRoutes.MaxResponse}, "route", []string{"RESOURCE", "NAMESPACE", "NAME", "TARGET", "TAILNET", "REFUSED", "READY"}, func(r plane.Route) []string {
			return []string{r.Resource, r.Namespace, r.Name, r.Target, orUnknown(r.Tailnet), strconv.Itoa(len(r.Refused)), readiness(r.Conditions)}
		}),
		listTool(tool{name: "list_proxy_groups", title: "Proxy groups", set: Infra, verb: plane.ListProxyGroups.Verb, doc: plane.ListProxyGroups.Doc, pattern: plane.ListProxyGroups.Pattern, maxResponse: plane.ListProxyGroups.MaxResponse}, "proxy group", []string{"NAMESPACE", "NAME", "TYPE", "TAILNET", "READY", "WANTED"}, func(g plane.ProxyGroup) []string {
			return []string{g.Namespace, g.Name, g.Type, orUnknown(g.Tailnet), orUnknown(g.Ready), strconv.Itoa(g.Wanted)}
		}),
		listTool(tool{name: "list_adapters", title: "Adapters", set: Infra, verb: plane.ListAdapters.Verb, doc: plane.ListAdapters.Doc, pattern: plane.ListAdapters.Pattern, maxResponse: plane.ListAdapters.MaxResponse}, "adapter", []string{"NAMESPACE", "POD", "NODE", "READY", "RESTARTS", "VERSION", "OUTDATED"}, func(a plane.Adapter) []string {
			return []string{a.Namespace, a.Pod, a.Node, orUnknown(a.Ready), orUnknown(a.Restarts), orUnknown(a.Version), orUnknown(a.Outdated)}
		}),
		auditTool(),
	})
}

// auditTool returns the tool for the audit log.
func auditTool() tool {
	t := readTool[plane.HistoryRequest](tool{name: "list_audit", title: "Audit log", doc: "List entries of the audit log, the newest first: the caller's own entries, or all.", set: Audit,
		verb: plane.ListAudit.Verb, pattern: plane.ListAudit.Pattern, maxResponse: plane.ListAudit.MaxResponse},
		func(h *plane.History) plane.Envelope[[]audit.Entry] { return h.Envelope },
		func(all []audit.Entry, m plane.Meta) string { return pageSummary(len(all), "entry", m) },
		func(all []audit.Entry) table {
			return newTable([]string{"TIME", "WHO", "VERB", "OBJECT", "RESULT", "CODE"}, all, func(e audit.Entry) []string {
				return []string{formatTime(e.Time), cmp.Or(e.Actor.Login, e.Actor.Node), string(e.Verb), e.Object, string(e.Result), string(e.Code)}
			})
		})
	t.view.fewer = func(r any, n int) { r.(*plane.HistoryRequest).Limit = plane.PageLimit(n) }
	t.view.length = func(all any) int { return len(*all.(*[]audit.Entry)) }
	return t
}

// objectTool returns a tool for an operation that returns one object.
func objectTool[T any](t tool, summary func(T, plane.Meta) string, rows func(T) table) tool {
	return readTool[plane.Empty](t, func(e *plane.Envelope[T]) plane.Envelope[T] { return *e }, summary, rows)
}

// listTool returns a tool for a paged list.
func listTool[T any](t tool, noun string, head []string, row func(T) []string) tool {
	t = readTool[plane.ListRequest](t, func(e *plane.Envelope[[]T]) plane.Envelope[[]T] { return *e },
		func(all []T, m plane.Meta) string { return pageSummary(len(all), noun, m) },
		func(all []T) table { return newTable(head, all, row) })
	t.view.fewer = func(r any, n int) { r.(*plane.ListRequest).Limit = plane.PageLimit(n) }
	t.view.length = func(all any) int { return len(*all.(*[]T)) }
	return t
}

func meSummary(me plane.Me, _ plane.Meta) string {
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

func overviewSummary(o plane.Overview, _ plane.Meta) string {
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
			part := countOf(of.tally.Total, of.noun)
			if len(states) > 0 {
				part += " (" + strings.Join(states, ", ") + ")"
			}
			parts = append(parts, part)
		}
	}
	if len(o.Hidden) > 0 {
		parts = append(parts, countOf(len(o.Hidden), "kind")+" not visible to you")
	}
	needs := "Nothing needs attention."
	if n := len(o.Attention) + o.More; n == 1 {
		needs = "1 problem needs attention."
	} else if n > 1 {
		needs = fmt.Sprintf("%d problems need attention.", n)
	}
	return strings.Join(parts, "; ") + ". " + needs
}

func attentionTable(o plane.Overview) table {
	return newTable([]string{"SEVERITY", "KIND", "ID", "REASON", "MESSAGE"}, o.Attention, func(a plane.Attention) []string {
		return []string{string(a.Severity), string(a.Kind), a.ID, a.Reason, a.Message}
	})
}

// shrinkOverview lets the overview drop the less severe half of its attention list, repeatedly, until the result fits. More counts what was
// dropped.
func shrinkOverview(t tool) tool {
	t.view.shrink = func(data any) bool {
		o := data.(*plane.Overview)
		half := len(o.Attention) / 2
		o.More += len(o.Attention) - half
		o.Attention = o.Attention[:half]
		return true
	}
	return t
}

// pageSummary describes how much of a list a page holds.
func pageSummary(n int, noun string, m plane.Meta) string {
	if m.Page == nil {
		return "The " + plural(noun) + " are not known."
	}
	s := countOf(n, noun)
	if m.Page.Total != nil && *m.Page.Total != n {
		s = fmt.Sprintf("%d of %s", n, countOf(*m.Page.Total, noun))
	}
	if m.Page.Next != "" {
		return s + "; the cursor for more is in meta.page.next."
	}
	return s + "."
}

func plural(noun string) string {
	if stem, ok := strings.CutSuffix(noun, "y"); ok && !strings.HasSuffix(noun, "ay") {
		return stem + "ies"
	}
	return noun + "s"
}

func countOf(n int, noun string) string {
	if n != 1 {
		noun = plural(noun)
	}
	return fmt.Sprintf("%d %s", n, noun)
}

// unknown stands for an unknown value in a table, where zero would be wrong.
const unknown = "?"

func orUnknown[T any](v *T) string {
	if v == nil {
		return unknown
	}
	return fmt.Sprint(*v)
}

func formatTime(t time.Time) string {
	if t.IsZero() {
		return ""
	}
	return t.UTC().Format(time.RFC3339)
}

func formatTimeOrEmpty(t *time.Time) string {
	if t == nil {
		return ""
	}
	return formatTime(*t)
}

// withReason returns a state with its reason and a remark.
func withReason(state, reason string, also bool, what string) string {
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
			return withReason(c.Status, c.Reason, false, "")
		}
	}
	return unknown
}
