package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/plane"
)

func (t *tka) fleetIgnore(ff *fleetFlags) *cobra.Command {
	var req plane.IgnoreRequest
	cmd := &cobra.Command{
		Use:   "ignore DRIFT --expires-in DURATION",
		Short: "Ignore a drift for a while",
		Long: `Ignore a drift for a while; "tka fleet drift" shows its ID. The list still contains it, marked
as ignored, but counts do not include it. After that time, or if it gets worse, the plane
reports it again.`,
		Example: "  tka fleet ignore 5f0c2b1a9d3e4f60 --expires-in 72h --reason trial",
		Args:    arguments(1, 1, "the ID of a drift"),
		RunE: func(cmd *cobra.Command, args []string) error {
			if req.ExpiresIn == 0 {
				return output.UsageErrorf("%s needs --expires-in", cmd.CommandPath()).Try("%s %s --expires-in 72h --reason \"why\"", cmd.CommandPath(), args[0])
			}
			req.ID = args[0]
			return t.doIgnore(cmd.Context(), ff, plane.IgnoreDrift.Pattern, req)
		},
	}
	cmd.Flags().DurationVar((*time.Duration)(&req.ExpiresIn), "expires-in", 0, "time until the plane reports it again, 1m to 2160h (required)")
	return addWrite(cmd, &req.Reason, &req.DryRun, showResult)
}

func (t *tka) fleetUnignore(ff *fleetFlags) *cobra.Command {
	var req plane.UnignoreRequest
	return addWrite(&cobra.Command{
		Use:   "unignore DRIFT",
		Short: "Stop ignoring a drift",
		Long: `Stop ignoring a drift, so that the plane reports and counts it again. "tka fleet drift" shows
its ID.`,
		Example: "  tka fleet unignore 5f0c2b1a9d3e4f60 --reason over",
		Args:    arguments(1, 1, "the ID of a drift"),
		RunE: func(cmd *cobra.Command, args []string) error {
			req.ID = args[0]
			return t.doIgnore(cmd.Context(), ff, plane.UnignoreDrift.Pattern, req)
		},
	}, &req.Reason, &req.DryRun, showResult)
}

func (t *tka) doIgnore(ctx context.Context, ff *fleetFlags, pattern string, req any) error {
	var e plane.Envelope[plane.Ignoring]
	if err := t.callPlane(ctx, ff, pattern, 0, req, &e); err != nil {
		return err
	}
	d := e.Data.Drift
	return t.printResult(result{object: fleetChange[plane.Ignoring]{newMeta("DriftIgnored"), e.Data}, names: []string{d.ID}, table: func(bool) {
		state := "is reported again"
		if d.IgnoredUntil != nil {
			state = "is ignored until " + formatMinute(*d.IgnoredUntil)
		}
		t.printLine("%s (%s) %s.%s", d.ID, d.Field, state, dryRunSuffix(e.Data.DryRun))
	}})
}

func (t *tka) fleetRefresh(ff *fleetFlags) *cobra.Command {
	return &cobra.Command{
		Use:   "refresh",
		Short: "Compare the configuration with the cluster now",
		Long: `Request a new comparison of the configuration repository with the cluster. The fleet
compares forge and cluster by itself; this command does not affect that. "tka fleet drift"
lists the results.`,
		Example: "  tka fleet refresh",
		RunE: func(cmd *cobra.Command, _ []string) error {
			var e plane.Envelope[plane.Refreshed]
			if err := t.callPlane(cmd.Context(), ff, plane.RefreshDrift.Pattern, 0, plane.RefreshRequest{}, &e); err != nil {
				return err
			}
			var names []string
			var rows [][]output.Cell
			for _, s := range e.Data.Sources {
				requested := "no"
				if s.Triggered {
					requested = "yes"
				}
				names, rows = append(names, s.Source), append(rows, output.Row(s.Source, requested, s.Message))
			}
			return t.printResult(result{object: fleetChange[plane.Refreshed]{newMeta("DriftRefreshed"), e.Data}, names: names, table: func(bool) {
				t.writeTable(false, []string{"SOURCE", "ASKED", "WHAT"}, nil, rows)
			}})
		},
	}
}
