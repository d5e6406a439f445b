package cli

import (
	"fmt"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

func (t *tka) fleetRunners(ff *fleetFlags) *cobra.Command {
	return t.listFlags(&cobra.Command{
		Use:     "runners",
		Aliases: []string{"pools"},
		Short:   "List the runners of each organisation in each pool",
		Long: `List the runners of each organisation in each pool, with their number and state. A pool is
shown as Paused or Drained only after the forge has confirmed it. An unknown value is "?".`,
		Example: "  tka fleet runners\n  tka fleet runners --org acme --state Paused -o json",
		Args:    arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := listAll[plane.Pool](cmd.Context(), t, ff, "PoolList", plane.ListPools.Pattern, pageSize)
			if err != nil {
				return err
			}
			t.warnUnhealthySources(plane.Meta{Sources: l.Sources})
			var names []string
			var rows [][]output.Cell
			for _, p := range l.Items {
				names = append(names, p.ID)
				rows = append(rows, output.Row(p.ID, p.State, formatCount(p.Counts.Idle), formatCount(p.Counts.Busy), formatCount(p.Counts.Pending), formatCount(p.Counts.Failed), formatCount(p.EffectiveMax), strings.Join(p.Holds, ",")))
			}
			return t.printResult(result{object: l, names: names, table: func(wide bool) {
				if len(rows) == 0 {
					t.explainEmpty(l.Items != nil, "runners")
					return
				}
				header := []string{"POOL", "STATE", "IDLE", "BUSY", "PENDING", "FAILED", "MAX", "HOLDS"}
				if wide {
					header = append(header, "TYPE", "ISOLATION", "WHY")
					for i, p := range l.Items {
						rows[i] = append(rows[i], output.Row(p.Type, p.Isolation, p.StateReason)...)
					}
				}
				t.writeTable(t.Out, header, rows)
			}})
		},
	}, ff, plane.PoolFailing, plane.StateUnknown, plane.PoolDegraded, plane.PoolPausing, plane.PoolDraining, plane.PoolResuming, plane.PoolProvisioning, plane.PoolDrained, plane.PoolPaused, plane.PoolActive)
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

func (t *tka) fleetEnrollments(ff *fleetFlags) *cobra.Command {
	return t.listFlags(&cobra.Command{
		Use:     "enrollments",
		Aliases: []string{"orgs"},
		Short:   "List the organisations that have runners",
		Long: `List the organisations that have runners, with the state of each enrollment. The column
ADOPTED of "-o wide" lists unmanaged scale sets that take the organisation's jobs, and the
pool that adopts each.`,
		Example: "  tka fleet enrollments\n  tka fleet enrollments --state Suspended -o wide",
		Args:    arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := listAll[plane.Enrollment](cmd.Context(), t, ff, "EnrollmentList", plane.ListEnrollments.Pattern, pageSize)
			if err != nil {
				return err
			}
			t.warnUnhealthySources(plane.Meta{Sources: l.Sources})
			var names []string
			var rows [][]output.Cell
			for _, e := range l.Items {
				var pools []string
				for _, p := range e.Pools {
					pools = append(pools, p.Name)
				}
				until := ""
				if e.Credential != nil && e.Credential.ExpiresAt != nil {
					until = e.Credential.ExpiresAt.UTC().Format(time.RFC3339)
				}
				names = append(names, e.Name)
				rows = append(rows, output.Row(e.Name, e.Forge, e.Phase, e.Isolation, strings.Join(pools, ","), until))
			}
			return t.printResult(result{object: l, names: names, table: func(wide bool) {
				if len(rows) == 0 {
					t.explainEmpty(l.Items != nil, "organisations")
					return
				}
				header := []string{"ORG", "FORGE", "PHASE", "ISOLATION", "POOLS", "CREDENTIAL UNTIL"}
				if wide {
					header = append(header, "ADOPTED")
					for i, e := range l.Items {
						rows[i] = append(rows[i], output.Row(e.DescribeExternal())...)
					}
				}
				t.writeTable(t.Out, header, rows)
			}})
		},
	}, ff, "Requested", "Approved", "Provisioning", "Active", "Suspended", "Draining", "Offboarded", "Failed")
}

func (t *tka) fleetHolds(ff *fleetFlags) *cobra.Command {
	return t.listFlags(&cobra.Command{
		Use:     "holds",
		Short:   "List the holds, which pause runners",
		Long:    `List the holds: the scope of each, its creator, reason, expiry and progress.`,
		Example: "  tka fleet holds\n  tka fleet holds -o name",
		Args:    arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := listAll[plane.Hold](cmd.Context(), t, ff, "HoldList", plane.ListHolds.Pattern, pageSize)
			if err != nil {
				return err
			}
			t.warnUnhealthySources(plane.Meta{Sources: l.Sources})
			var names []string
			var rows [][]output.Cell
			for _, h := range l.Items {
				left := ""
				if h.ExpiresAt != nil {
					left = output.HumanDuration(max(0, h.ExpiresAt.Sub(t.Now())))
				}
				names = append(names, h.Name)
				rows = append(rows, output.Row(h.Name, h.Scope.String(), string(h.Mode), h.State, formatCount(h.Applied)+"/"+formatCount(h.Targets), h.RequestedBy, left, h.Reason))
			}
			return t.printResult(result{object: l, names: names, table: func(bool) {
				if len(rows) == 0 {
					t.explainEmpty(l.Items != nil, "holds")
					return
				}
				t.writeTable(t.Out, []string{"NAME", "HOLDS", "MODE", "STATE", "APPLIED", "BY", "LEFT", "REASON"}, rows)
			}})
		},
	}, ff, plane.HoldApplying, plane.HoldApplied, plane.PoolDrained, plane.HoldLifting, plane.HoldExpired)
}

func (t *tka) fleetDrift(ff *fleetFlags) *cobra.Command {
	return t.listFlags(&cobra.Command{
		Use:   "drift",
		Short: "List the drift of the runners from their desired state",
		Long: `List the drift of the runners: differences between the cluster and the forge, and between
the desired and the actual state. The list also has differences that a hold explains, which
are not drift, and differences that a person ignores for a while, which are marked as
ignored. Drift is not corrected automatically: the column NEXT of "-o wide" shows what to do.`,
		Example: "  tka fleet drift\n  tka fleet drift --org acme --state error -o wide",
		Args:    arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := listAll[plane.Drift](cmd.Context(), t, ff, "DriftList", plane.ListDrift.Pattern, pageSize)
			if err != nil {
				return err
			}
			t.warnUnhealthySources(plane.Meta{Sources: l.Sources})
			var names []string
			var rows [][]output.Cell
			for _, d := range l.Items {
				names = append(names, d.ID)
				rows = append(rows, output.Row(d.ID, d.OrgName, d.Pool, d.Field, d.CurrentState(), output.HumanDuration(max(0, t.Now().Sub(d.FirstSeen))), d.Evidence))
			}
			return t.printResult(result{object: l, names: names, table: func(wide bool) {
				if len(rows) == 0 {
					t.explainEmpty(l.Items != nil, "findings")
					return
				}
				header := []string{"ID", "ORG", "POOL", "WHAT", "STATE", "FOR", "EVIDENCE"}
				if wide {
					header = append(header, "WANT", "HAVE", "EXPLAINED BY", "IGNORED BY", "UNTIL", "NEXT")
					for i, d := range l.Items {
						until := ""
						if d.IgnoredUntil != nil {
							until = d.IgnoredUntil.UTC().Format(time.RFC3339)
						}
						rows[i] = append(rows[i], output.Row(deref(d.Want), deref(d.Have), d.ExplainedBy, d.IgnoredBy, until, d.Next)...)
					}
				}
				t.writeTable(t.Out, header, rows)
			}})
		},
	}, ff, "error", "warning", "info", plane.DriftExplained, plane.DriftIgnored)
}

// deref returns *s, or "" for nil.
func deref(s *string) string {
	if s == nil {
		return ""
	}
	return *s
}

func (t *tka) fleetForges(ff *fleetFlags) *cobra.Command {
	return t.stateFlag(&cobra.Command{
		Use:   "forges",
		Short: "List the forges that the runners' jobs come from",
		Long: `List the forges, which are the GitHub and GitLab servers that the runners' jobs come from:
whether each answers, and its remaining API rate limit.`,
		Example: "  tka fleet forges\n  tka fleet forges --state Unreachable -o json",
		Args:    arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := listAll[plane.Forge](cmd.Context(), t, ff, "ForgeList", plane.ListForges.Pattern, pageSize)
			if err != nil {
				return err
			}
			t.warnUnhealthySources(plane.Meta{Sources: l.Sources})
			var names []string
			var rows [][]output.Cell
			for _, f := range l.Items {
				left := "?"
				if f.RateLimit != nil {
					left = fmt.Sprint(f.RateLimit.Remaining)
				}
				version := "?"
				if f.Version != nil {
					version = *f.Version
				}
				names = append(names, f.Name)
				rows = append(rows, output.Row(f.Name, f.Type, f.CurrentState(), f.URL, version, left))
			}
			return t.printResult(result{object: l, names: names, table: func(bool) {
				if len(rows) == 0 {
					t.explainEmpty(l.Items != nil, "forges")
					return
				}
				t.writeTable(t.Out, []string{"NAME", "TYPE", "STATE", "URL", "VERSION", "REQUESTS LEFT"}, rows)
			}})
		},
	}, ff, "Reachable", "Unreachable", plane.StateUnknown)
}

func (t *tka) fleetChanges(ff *fleetFlags) *cobra.Command {
	return t.orgFlag(t.stateFlag(&cobra.Command{
		Use:   "changes",
		Short: "List the changes of the configuration, which are pull requests",
		Long: `List the changes of the configuration, which are pull requests: the subject of each, its
requester, and its state. A change is applied only when the cluster has the new state. With
-o json, each change has its diff. To approve a change, review it on the dashboard.`,
		Example: "  tka fleet changes --state open\n  tka fleet changes --org acme -o wide",
		Args:    arguments(0, 0, ""),
		RunE: func(cmd *cobra.Command, _ []string) error {
			l, err := listAll[plane.Change](cmd.Context(), t, ff, "ChangeList", plane.ListChanges.Pattern, smallPageSize)
			if err != nil {
				return err
			}
			t.warnUnhealthySources(plane.Meta{Sources: l.Sources})
			var names []string
			var rows [][]output.Cell
			for _, c := range l.Items {
				names = append(names, c.ID)
				rows = append(rows, output.Row(c.ID, c.Kind+"/"+c.Name, c.OrgName, c.State, c.Risk.Level, c.Proposer, output.HumanDuration(max(0, t.Now().Sub(c.OpenedAt))), c.Title))
			}
			return t.printResult(result{object: l, names: names, table: func(wide bool) {
				if len(rows) == 0 {
					t.explainEmpty(l.Items != nil, "changes")
					return
				}
				header := []string{"ID", "OBJECT", "ORG", "STATE", "RISK", "BY", "AGE", "TITLE"}
				if wide {
					header = append(header, "APPROVED BY", "FILE", "URL", "WHY")
					for i, c := range l.Items {
						rows[i] = append(rows[i], output.Row(approvers(c), c.File, c.URL, blockReason(c))...)
					}
				}
				t.writeTable(t.Out, header, rows)
			}})
		},
	}, ff, "open", "approved", "merging", "merged", "applied", "closed"), ff)
}

// approvers returns the people who approved a change in its present state.
func approvers(c plane.Change) string {
	var who []string
	for _, a := range c.Approvals {
		if a.Head == c.Head {
			who = append(who, a.By)
		}
	}
	return strings.Join(who, ",")
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
