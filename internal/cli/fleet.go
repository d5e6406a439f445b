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
		Args:    t.rejectArguments,
		RunE:    func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
	}
	f := cmd.PersistentFlags()
	f.StringVar(&ff.plane.url, "url", "", "URL of the operator plane, https:// unless it is on this machine (default plane.url of the settings)")
	f.StringVar(&ff.plane.tokenFile, "token-file", "", "file with a token, if the connection does not identify you")
	f.StringVar(&ff.plane.tokenCommand, "token-command", "", "program that prints a token, with its arguments; tka runs it without a shell")
	cmd.AddCommand(t.fleetRunners(&ff), t.fleetJobs(&ff), t.fleetDiagnose(&ff), t.fleetLogs(&ff), t.fleetEnrollments(&ff), t.fleetHolds(&ff), t.fleetDrift(&ff), t.fleetIgnore(&ff), t.fleetUnignore(&ff), t.fleetRefresh(&ff), t.fleetForges(&ff), t.fleetChanges(&ff), t.fleetPause(&ff), t.fleetLift(&ff), t.fleetReschedule(&ff),
		t.fleetRequest(&ff), t.fleetApprove(&ff), t.fleetDecline(&ff), t.fleetRotate(&ff), t.fleetOffboard(&ff))
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
	way := &client.BearerTransport{Base: base, Source: token, Agent: t.userAgent(), Next: dialpolicy.Transport(base.String())}
	return httpapi.Client{HTTP: way.HTTPClient(), Base: base.String(), Open: plane.ParseEnvelope}, nil
}

// planeError converts an error of a call to the plane into an *output.Error.
func planeError(err error) error {
	if err == nil {
		return nil
	}
	if p, ok := errors.AsType[*problem.Error](err); ok {
		f := output.FromProblem(p)
		if p.Needed != nil {
			f.Try("You need %s on %s; you have %s.", p.Needed.Verb, cmp.Or(p.Needed.Org, "all organisations"), cmp.Or(strings.Join(p.Have, ", "), "no role for it"))
		}
		return f
	}
	if f, ok := errors.AsType[*output.Error](err); ok {
		return f
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

// fleetList is a list of fleet objects. Null items mean that the list is unknown.
type fleetList[T any] struct {
	meta
	Items   []T            `json:"items"`
	Sources []plane.Source `json:"sources"`
}

// many is the page size of a list, and few is the page size for large objects, because a response has a size limit.
const (
	pageSize      = 500
	smallPageSize = 50
)

// listAll returns the objects of all pages of a list. Nil items mean that the list is unknown.
func listAll[T any](ctx context.Context, t *tka, ff *fleetFlags, as, pattern string, page plane.PageLimit) (fleetList[T], error) {
	return listPages[T](ctx, t, ff, as, pattern, func(p plane.ListRequest) any {
		p.State, p.Limit = plane.Text(ff.state), page
		return plane.FleetListRequest{ListRequest: p, RunnersRequest: plane.RunnersRequest{Org: plane.Text(ff.org), Forge: plane.Text(ff.forge)}}
	})
}

// listPages returns the objects of all pages of a list; req returns the request for each page.
func listPages[T any](ctx context.Context, t *tka, ff *fleetFlags, as, pattern string, req func(plane.ListRequest) any) (l fleetList[T], err error) {
	c, err := t.planeClient(ff.plane)
	if err != nil {
		return l, err
	}
	l.meta = newMeta(as)
	var at plane.ListRequest
	for {
		var answer plane.Envelope[[]T]
		if err := c.Do(ctx, pattern, plane.ListPools.MaxResponse, req(at), &answer); err != nil {
			return l, planeError(err)
		}
		l.Sources = answer.Meta.Sources
		if answer.Meta.Page == nil {
			return l, nil
		}
		l.Items = append(l.Items, answer.Data...)
		if answer.Meta.Page.Next == "" {
			if l.Items == nil {
				l.Items = []T{}
			}
			return l, nil
		}
		at.Cursor = plane.Cursor(answer.Meta.Page.Next)
	}
}

// listFlags adds the filter flags of a list.
func (t *tka) listFlags(cmd *cobra.Command, ff *fleetFlags, states ...string) *cobra.Command {
	cmd.Flags().StringVar(&ff.forge, "forge", "", "only objects of this forge")
	return t.orgFlag(t.stateFlag(cmd, ff, states...), ff)
}

func (t *tka) orgFlag(cmd *cobra.Command, ff *fleetFlags) *cobra.Command {
	cmd.Flags().StringVar(&ff.org, "org", "", "only objects of this organisation")
	return cmd
}

func (t *tka) stateFlag(cmd *cobra.Command, ff *fleetFlags, states ...string) *cobra.Command {
	f := cmd.Flags()
	f.StringVar(&ff.state, "state", "", "only objects in this state: "+strings.Join(states, ", "))
	t.complete(cmd, "state", fixedValues(states...))
	return cmd
}

// explainEmpty explains why a table is empty.
func (t *tka) explainEmpty(known bool, what string) {
	if known {
		t.hint("There are no %s that you have access to.", what)
		return
	}
	t.warn("the list of %s is unknown", what)
}
