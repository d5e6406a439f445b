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
	return slices.Concat(fleetTools(), runnerTools(), changeTools(), []tool{
		readTool[plane.Empty](operationTool(plane.GetMe, "whoami", "Who am I", ""), meSummary, nil),
		shrinkOverview(readTool[plane.Empty](operationTool(plane.GetOverview, "get_overview", "Overview", Fleet), overviewSummary, attentionTable)),
		readTool[plane.Empty](operationTool(plane.ListSources, "list_sources", "Sources", Fleet), func(all []plane.Source, _ plane.Meta) string { return countOf(len(all), "source") + "." },
			rowsOf([]string{"SOURCE", "STATUS", "SINCE", "MESSAGE"}, func(s plane.Source) []string {
				return []string{s.Name, string(s.Status), formatTime(s.Since), s.Message}
			})),
		readTool[plane.Empty](operationTool(plane.ListExposures, "list_exposures", "Exposed services", Fleet), func(all []plane.Exposure, _ plane.Meta) string { return countOf(len(all), "exposed service") + "." },
			rowsOf([]string{"NAME", "ADDRESS", "ACCESS", "STATE", "PROBLEM"}, func(e plane.Exposure) []string {
				return []string{e.Name, orUnknown(e.Address), e.Access, string(e.State), e.Problem}
			})),
		listTool[plane.ListRequest](operationTool(plane.ListClusters, "list_clusters", "Clusters", Infra), "cluster",
			rowsOf([]string{"NAME", "HEALTH", "ENDPOINT", "VERSION", "LAST SEEN", "ID"}, func(c plane.Cluster) []string {
				return []string{c.Name, withReason(c.Health, "", c.Conflict, "conflict"), c.Endpoint, c.Version, formatTime(orZero(c.LastSeen)), c.ID}
			})),
		listTool[plane.ListRequest](operationTool(plane.ListSignins, "list_signins", "Sign-ins", Infra), "sign-in",
			rowsOf([]string{"LOGIN", "DEVICE", "ROLE", "PHASE", "UNTIL", "ID"}, func(s plane.Signin) []string {
				return []string{s.Login, s.Device, s.Role, s.Phase, formatTime(orZero(s.ValidUntil)), s.ID}
			})),
		listTool[plane.ConnectionsRequest](operationTool(plane.ListConnections, "list_connections", "Open streams", Infra), "open stream",
			rowsOf([]string{"LOGIN", "DEVICE", "KIND", "CLUSTER", "NAMESPACE", "RESOURCE", "NAME", "SINCE", "ID"}, func(c plane.Connection) []string {
				return []string{c.Login, c.Device, c.Kind, c.Cluster, c.Namespace, c.Resource, c.Name, formatTime(c.Since), c.ID}
			})),
		listTool[plane.ListRequest](operationTool(plane.ListTailnets, "list_tailnets", "Tailnets", Infra), "tailnet",
			rowsOf([]string{"NAME", "DOMAIN", "CREDENTIAL", "DEVICES", "SERVICES", "READY"}, func(t plane.Tailnet) []string {
				return []string{t.Name, orUnknown(t.Domain), withReason(orUnknown(t.Credential.Valid), t.Credential.Reason, false, ""), orUnknown(t.Devices), orUnknown(t.Services), readiness(t.Conditions)}
			})),
		listTool[plane.ListRequest](operationTool(plane.ListGateways, "list_gateways", "Gateways", Infra), "gateway",
			rowsOf([]string{"NAMESPACE", "NAME", "TARGET", "CLASS", "TAILNETS", "SERVICES", "READY"}, func(g plane.Gateway) []string {
				return []string{g.Namespace, g.Name, g.Target, orUnknown(g.Class), strconv.Itoa(len(g.Tailnets)), strconv.Itoa(len(g.Services)), readiness(g.Conditions)}
			})),
		listTool[plane.ListRequest](operationTool(plane.ListRoutes, "list_routes", "Routes", Infra), "route",
			rowsOf([]string{"RESOURCE", "NAMESPACE", "NAME", "TARGET", "TAILNET", "REFUSED", "READY"}, func(r plane.Route) []string {
				return []string{r.Resource, r.Namespace, r.Name, r.Target, orUnknown(r.Tailnet), strconv.Itoa(len(r.Refused)), readiness(r.Conditions)}
			})),
		listTool[plane.ListRequest](operationTool(plane.ListProxyGroups, "list_proxy_groups", "Proxy groups", Infra), "proxy group",
			rowsOf([]string{"NAMESPACE", "NAME", "TYPE", "TAILNET", "READY", "WANTED"}, func(g plane.ProxyGroup) []string {
				return []string{g.Namespace, g.Name, g.Type, orUnknown(g.Tailnet), orUnknown(g.Ready), strconv.Itoa(g.Wanted)}
			})),
		listTool[plane.ListRequest](operationTool(plane.ListAdapters, "list_adapters", "Adapters", Infra), "adapter",
			rowsOf([]string{"NAMESPACE", "POD", "NODE", "READY", "RESTARTS", "VERSION", "OUTDATED"}, func(a plane.Adapter) []string {
				return []string{a.Namespace, a.Pod, a.Node, orUnknown(a.Ready), orUnknown(a.Restarts), orUnknown(a.Version), orUnknown(a.Outdated)}
			})),
		listTool[plane.HistoryRequest](operationTool(plane.ListAudit, "list_audit", "Audit log", Audit).withDoc("List entries of the audit log, the newest first: the caller's own entries, or all."), "entry",
			rowsOf([]string{"TIME", "WHO", "VERB", "OBJECT", "RESULT", "CODE"}, func(e audit.Entry) []string {
				return []string{formatTime(e.Time), cmp.Or(e.Actor.Login, e.Actor.Node), string(e.Verb), e.Object, string(e.Result), string(e.Code)}
			})),
	})
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
	return rowsOf([]string{"SEVERITY", "KIND", "ID", "REASON", "MESSAGE"}, func(a plane.Attention) []string {
		return []string{string(a.Severity), string(a.Kind), a.ID, a.Reason, a.Message}
	})(o.Attention)
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

// orZero returns *p, or the zero value for nil.
func orZero[T any](p *T) (v T) {
	if p != nil {
		v = *p
	}
	return v
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
