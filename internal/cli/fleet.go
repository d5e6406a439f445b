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
	transport := &client.BearerTransport{Base: base, Source: token, Agent: t.userAgent(), Next: dialpolicy.Transport(base.String())}
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
