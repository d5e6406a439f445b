package cli

import (
	"cmp"
	"context"
	"errors"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// fleetFlags hold the address of the operator plane and the filters of a list.
type fleetFlags struct {
	plane             mcpFlags
	org, forge, state string
}

// fleet returns the command group for CI runners, which uses the operator plane.
func (t *tka) fleet() *cobra.Command {
	var ff fleetFlags
	cmd := &cobra.Command{
		Use:   "fleet",
		Short: "Show, pause and request CI runners through the operator plane",
		Long: `Show the CI runners of your organisations, pause them, resume them, and request more. The
operator plane at --url, or at plane.url of the settings, authorises you by your tailnet
identity. You do not need to sign in to a cluster.`,
		Example: "  tka fleet runners --org acme\n  tka fleet pause github/acme/gh-nix --reason flaky-image",
	}
	ff.plane.addPlaneFlags(cmd.PersistentFlags())
	for _, add := range []func(*fleetFlags) *cobra.Command{t.fleetRunners, t.fleetJobs, t.fleetDiagnose, t.fleetLogs, t.fleetEnrollments,
		t.fleetHolds, t.fleetDrift, t.fleetIgnore, t.fleetUnignore, t.fleetRefresh, t.fleetForges, t.fleetChanges, t.fleetPause,
		t.fleetLift, t.fleetReschedule, t.fleetRequest, t.fleetApprove, t.fleetDecline, t.fleetRotate, t.fleetOffboard} {
		cmd.AddCommand(add(&ff))
	}
	return cmd
}

// planeClient returns a client for the operator plane.
func (t *tka) planeClient(mf mcpFlags) (httpapi.Client, error) {
	base, err := t.planeURL(mf.url)
	if err != nil {
		return httpapi.Client{}, err
	}
	token, err := t.planeToken(mf)
	if err != nil {
		return httpapi.Client{}, err
	}
	if base.Scheme != "https" && !token.IsEmpty() {
		return httpapi.Client{}, output.UsageErrorf("tka sends a token only over https, but the operator plane is at %s", base).Try("Without a token, the plane may identify you by the connection.")
	}
	transport := &client.BearerTransport{Base: base, Source: token, Agent: t.userAgent(), Next: dialpolicy.Transport(base.String(), t.tailscale)}
	return httpapi.Client{HTTP: transport.HTTPClient(), Base: base.String(), Open: plane.ParseEnvelope}, nil
}

// callPlane sends a request to the operator plane and decodes its envelope into resp. A maxBytes of 0 is the default limit.
func (t *tka) callPlane(ctx context.Context, ff *fleetFlags, pattern string, maxBytes int64, req, resp any) error {
	c, err := t.planeClient(ff.plane)
	if err != nil {
		return err
	}
	return planeError(c.Do(ctx, pattern, maxBytes, req, resp))
}

// planeError converts an error of a call to the plane into an *output.Error.
func planeError(err error) error {
	if p, ok := errors.AsType[*problem.Error](err); ok {
		f := output.FromProblem(p)
		if p.Needed != nil {
			f.Try("You need %s on %s; you have %s.", p.Needed.Verb, cmp.Or(p.Needed.Org, "all organisations"), cmp.Or(strings.Join(p.Have, ", "), "no role for it"))
		}
		return f
	}
	if _, ok := errors.AsType[*output.Error](err); ok || err == nil {
		return err
	}
	return output.Errorf(output.ExitUnreachable, "the operator plane did not answer: %v", err).Because(err).Try("tailscale status")
}

// warnUnhealthySources warns about sources that are not healthy, because the output may then be old or incomplete.
func (t *tka) warnUnhealthySources(m plane.Meta) {
	for _, s := range m.Sources {
		if s.Status != plane.StatusOK {
			t.warn("source %s is %s since %s: %s", s.Name, s.Status, s.Since.UTC().Format(time.RFC3339), s.Message)
		}
	}
}

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
