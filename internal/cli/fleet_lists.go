package cli

import (
	"cmp"
	"context"
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// A fleetTable is how a list of fleet objects is fetched, filtered and printed.
type fleetTable[T any] struct {
	kind, pattern string
	plural        string          // name of the objects in messages
	page          plane.PageLimit // 0: pageSize
	states        []string        // values of --state
	byOrg         bool            // the list has the flag --org
	byForge       bool            // the list has the flag --forge
	header        []string
	wide          []string                                // additional columns of -o wide
	row           func(T) (name string, columns []string) // all columns
}

// command completes a command that prints the list.
func (l fleetTable[T]) command(t *tka, ff *fleetFlags, cmd *cobra.Command) *cobra.Command {
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		return l.print(cmd.Context(), t, ff, func(p plane.ListRequest) any {
			return plane.FleetListRequest{ListRequest: p, Org: plane.Text(ff.org), Forge: plane.Text(ff.forge)}
		})
	}
	return l.addFlags(t, ff, cmd)
}

// addFlags adds the filter flags of the list.
func (l fleetTable[T]) addFlags(t *tka, ff *fleetFlags, cmd *cobra.Command) *cobra.Command {
	f := cmd.Flags()
	f.StringVar(&ff.state, "state", "", "only objects in this state: "+strings.Join(l.states, ", "))
	t.complete(cmd, "state", fixedValues(l.states...))
	if l.byOrg {
		f.StringVar(&ff.org, "org", "", "only objects of this organisation")
	}
	if l.byForge {
		f.StringVar(&ff.forge, "forge", "", "only objects of this forge")
	}
	return cmd
}

// print fetches and prints the list; request returns the request for each page.
func (l fleetTable[T]) print(ctx context.Context, t *tka, ff *fleetFlags, request func(plane.ListRequest) any) error {
	list, err := l.fetch(ctx, t, ff, request)
	if err != nil {
		return err
	}
	t.warnUnhealthySources(plane.Meta{Sources: list.Sources})
	var names []string
	var rows [][]output.Cell
	for _, item := range list.Items {
		name, columns := l.row(item)
		names, rows = append(names, name), append(rows, output.Row(columns...))
	}
	return t.printResult(result{object: list, names: names, table: func(wide bool) {
		switch {
		case len(rows) > 0:
			t.writeTable(wide, l.header, l.wide, rows)
		case list.Items != nil:
			t.hint("There are no %s that you have access to.", l.plural)
		default:
			t.warn("the list of %s is unknown", l.plural)
		}
	}})
}

// fetch returns the objects of all pages. Nil items mean that the list is unknown.
func (l fleetTable[T]) fetch(ctx context.Context, t *tka, ff *fleetFlags,
	request func(plane.ListRequest) any) (list fleetList[T], err error) {
	c, err := t.planeClient(ff.plane)
	if err != nil {
		return list, err
	}
	list.meta = newMeta(l.kind)
	at := plane.ListRequest{State: plane.Text(ff.state), Limit: cmp.Or(l.page, pageSize)}
	for {
		var answer plane.Envelope[[]T]
		if err := c.Do(ctx, l.pattern, plane.ListPools.MaxResponse, request(at), &answer); err != nil {
			return list, planeError(err)
		}
		list.Sources = answer.Meta.Sources
		if answer.Meta.Page == nil {
			return list, nil
		}
		list.Items = append(list.Items, answer.Data...)
		if answer.Meta.Page.Next == "" {
			list.Items = nonNil(list.Items)
			return list, nil
		}
		at.Cursor = plane.Cursor(answer.Meta.Page.Next)
	}
}

// fleetList is a list of fleet objects. Null items mean that the list is unknown.
type fleetList[T any] struct {
	list[T]
	Sources []plane.Source `json:"sources"`
}

// pageSize is the page size of a list. smallPageSize is the page size for large objects, because a response has a size limit.
const (
	pageSize      = 500
	smallPageSize = 50
)

func (t *tka) fleetRunners(ff *fleetFlags) *cobra.Command {
	return fleetTable[plane.Pool]{
		kind: "PoolList", pattern: plane.ListPools.Pattern, plural: "runners", byOrg: true, byForge: true,
		states: []string{plane.PoolFailing, plane.StateUnknown, plane.PoolDegraded, plane.PoolPausing, plane.PoolDraining,
			plane.PoolResuming, plane.PoolProvisioning, plane.PoolDrained, plane.PoolPaused, plane.PoolActive},
		header: []string{"POOL", "STATE", "IDLE", "BUSY", "PENDING", "FAILED", "MAX", "HOLDS"},
		wide:   []string{"TYPE", "ISOLATION", "WHY"},
		row: func(p plane.Pool) (string, []string) {
			n := p.Counts
			return p.ID, []string{p.ID, p.State, formatCount(n.Idle), formatCount(n.Busy), formatCount(n.Pending), formatCount(n.Failed),
				formatCount(p.EffectiveMax), strings.Join(p.Holds, ","), p.Type, p.Isolation, p.StateReason}
		},
	}.command(t, ff, &cobra.Command{
		Use:     "runners",
		Aliases: []string{"pools"},
		Short:   "List the runners of each organisation in each pool",
		Long: `List the runners of each organisation in each pool, with their number and state. A pool is
shown as Paused or Drained only after the forge has confirmed it. An unknown value is "?".`,
		Example: "  tka fleet runners\n  tka fleet runners --org acme --state Paused -o json",
	})
}

// formatCount returns a number for a table, or "?" if it is unknown.
func formatCount(n *int) string {
	if n == nil {
		return "?"
	}
	return fmt.Sprint(*n)
}

// describeWorkloads returns a count of workloads in words.
func describeWorkloads(n *int) string {
	if n == nil {
		return "an unknown number of workloads"
	}
	return problem.Plural(*n, "workload")
}

// formatUTC returns a time in RFC 3339, or "" for nil.
func formatUTC(at *time.Time) string {
	if at == nil {
		return ""
	}
	return at.UTC().Format(time.RFC3339)
}

func (t *tka) fleetEnrollments(ff *fleetFlags) *cobra.Command {
	return fleetTable[plane.Enrollment]{
		kind: "EnrollmentList", pattern: plane.ListEnrollments.Pattern, plural: "organisations", byOrg: true, byForge: true,
		states: []string{"Requested", "Approved", "Provisioning", "Active", "Suspended", "Draining", "Offboarded", "Failed"},
		header: []string{"ORG", "FORGE", "PHASE", "ISOLATION", "POOLS", "CREDENTIAL UNTIL"},
		wide:   []string{"ADOPTED"},
		row: func(e plane.Enrollment) (string, []string) {
			pools := mapped(e.Pools, poolName)
			until := ""
			if e.Credential != nil {
				until = formatUTC(e.Credential.ExpiresAt)
			}
			return e.Name, []string{e.Name, e.Forge, e.Phase, e.Isolation, strings.Join(pools, ","), until, e.DescribeExternal()}
		},
	}.command(t, ff, &cobra.Command{
		Use:     "enrollments",
		Aliases: []string{"orgs"},
		Short:   "List the organisations that have runners",
		Long: `List the organisations that have runners, with the state of each enrollment. The column
ADOPTED of "-o wide" lists unmanaged scale sets that take the organisation's jobs, and the
pool that adopts each.`,
		Example: "  tka fleet enrollments\n  tka fleet enrollments --state Suspended -o wide",
	})
}

func poolName(p plane.EnrolledPool) string { return p.Name }

func (t *tka) fleetHolds(ff *fleetFlags) *cobra.Command {
	return fleetTable[plane.Hold]{
		kind: "HoldList", pattern: plane.ListHolds.Pattern, plural: "holds", byOrg: true, byForge: true,
		states: []string{plane.HoldApplying, plane.HoldApplied, plane.PoolDrained, plane.HoldLifting, plane.HoldExpired},
		header: []string{"NAME", "HOLDS", "MODE", "STATE", "APPLIED", "BY", "LEFT", "REASON"},
		row: func(h plane.Hold) (string, []string) {
			left := ""
			if h.ExpiresAt != nil {
				left = output.HumanDuration(max(0, h.ExpiresAt.Sub(t.Now())))
			}
			return h.Name, []string{h.Name, h.Scope.String(), string(h.Mode), h.State, formatCount(h.Applied) + "/" + formatCount(h.Targets),
				h.RequestedBy, left, h.Reason}
		},
	}.command(t, ff, &cobra.Command{
		Use:     "holds",
		Short:   "List the holds, which pause runners",
		Long:    `List the holds: the scope of each, its creator, reason, expiry and progress.`,
		Example: "  tka fleet holds\n  tka fleet holds -o name",
	})
}

func (t *tka) fleetDrift(ff *fleetFlags) *cobra.Command {
	return fleetTable[plane.Drift]{
		kind: "DriftList", pattern: plane.ListDrift.Pattern, plural: "findings", byOrg: true, byForge: true,
		states: []string{"error", "warning", "info", plane.DriftExplained, plane.DriftIgnored},
		header: []string{"ID", "ORG", "POOL", "WHAT", "STATE", "FOR", "EVIDENCE"},
		wide:   []string{"WANT", "HAVE", "EXPLAINED BY", "IGNORED BY", "UNTIL", "NEXT"},
		row: func(d plane.Drift) (string, []string) {
			return d.ID, []string{d.ID, d.OrgName, d.Pool, d.Field, d.CurrentState(), output.HumanDuration(max(0, t.Now().Sub(d.FirstSeen))),
				d.Evidence, deref(d.Want, ""), deref(d.Have, ""), d.ExplainedBy, d.IgnoredBy, formatUTC(d.IgnoredUntil), d.Next}
		},
	}.command(t, ff, &cobra.Command{
		Use:   "drift",
		Short: "List the drift of the runners from their desired state",
		Long: `List the drift of the runners: differences between the cluster and the forge, and between
the desired and the actual state. The list also has differences that a hold explains, which
are not drift, and differences that a person ignores for a while, which are marked as
ignored. Drift is not corrected automatically: the column NEXT of "-o wide" shows what to do.`,
		Example: "  tka fleet drift\n  tka fleet drift --org acme --state error -o wide",
	})
}

// deref returns *s, or unknown for nil.
func deref(s *string, unknown string) string {
	if s == nil {
		return unknown
	}
	return *s
}

func (t *tka) fleetForges(ff *fleetFlags) *cobra.Command {
	return fleetTable[plane.Forge]{
		kind: "ForgeList", pattern: plane.ListForges.Pattern, plural: "forges",
		states: []string{"Reachable", "Unreachable", plane.StateUnknown},
		header: []string{"NAME", "TYPE", "STATE", "URL", "VERSION", "REQUESTS LEFT"},
		row: func(f plane.Forge) (string, []string) {
			left := "?"
			if f.RateLimit != nil {
				left = fmt.Sprint(f.RateLimit.Remaining)
			}
			return f.Name, []string{f.Name, f.Type, f.CurrentState(), f.URL, deref(f.Version, "?"), left}
		},
	}.command(t, ff, &cobra.Command{
		Use:   "forges",
		Short: "List the forges that the runners' jobs come from",
		Long: `List the forges, which are the GitHub and GitLab servers that the runners' jobs come from:
whether each answers, and its remaining API rate limit.`,
		Example: "  tka fleet forges\n  tka fleet forges --state Unreachable -o json",
	})
}

func (t *tka) fleetChanges(ff *fleetFlags) *cobra.Command {
	return fleetTable[plane.Change]{
		kind: "ChangeList", pattern: plane.ListChanges.Pattern, plural: "changes", page: smallPageSize, byOrg: true,
		states: []string{"open", "approved", "merging", "merged", "applied", "closed"},
		header: []string{"ID", "OBJECT", "ORG", "STATE", "RISK", "BY", "AGE", "TITLE"},
		wide:   []string{"APPROVED BY", "FILE", "URL", "WHY"},
		row: func(c plane.Change) (string, []string) {
			return c.ID, []string{c.ID, c.Kind + "/" + c.Name, c.OrgName, c.State, c.Risk.Level, c.Proposer,
				output.HumanDuration(max(0, t.Now().Sub(c.OpenedAt))), c.Title, approvers(c), c.File, c.URL, blockReason(c)}
		},
	}.command(t, ff, &cobra.Command{
		Use:   "changes",
		Short: "List the changes of the configuration, which are pull requests",
		Long: `List the changes of the configuration, which are pull requests: the subject of each, its
requester, and its state. A change is applied only when the cluster has the new state. With
-o json, each change has its diff. To approve a change, review it on the dashboard.`,
		Example: "  tka fleet changes --state open\n  tka fleet changes --org acme -o wide",
	})
}

// approvers returns the people who approved a change in its present state.
func approvers(c plane.Change) string {
	var people []string
	for _, a := range c.Approvals {
		if a.Head == c.Head {
			people = append(people, a.By)
		}
	}
	return strings.Join(people, ",")
}

// blockReason returns why a change cannot proceed, if that is known.
func blockReason(c plane.Change) string {
	switch {
	case c.State != "open" && c.State != "approved":
		return ""
	case c.Blocked != "":
		return c.Blocked
	case c.Stale:
		return "the file has changed since"
	case c.Head != c.DiffOf:
		return "a commit was pushed at the forge"
	}
	return ""
}
