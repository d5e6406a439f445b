package web

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"
	"text/tabwriter"
	"time"
	"unicode"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/plane"
)

// textPage serves the overview for a terminal or a browser without scripts.
func (s Site) textPage(ctx context.Context, p access.Permit, _ plane.Empty) (File, error) {
	if err := p.Require(access.FleetRead, s.Now()); err != nil {
		return File{}, err
	}
	e, err := s.Overview(ctx, p, plane.Empty{})
	if err != nil {
		return File{}, err
	}
	f := File{contentType: "text/plain; charset=utf-8", header: securityHeaders("default-src 'none'; frame-ancestors 'none'; base-uri 'none'"), plain: renderText(e, p.Caller(), s.Now())}
	return f, nil
}

// renderText formats an overview. It states which values are unknown.
func renderText(e plane.Envelope[plane.Overview], c access.Caller, now time.Time) []byte {
	var out strings.Builder
	o := e.Data
	fmt.Fprintf(&out, "Tailplane, %s\nYou are %s.\n\n", now.UTC().Format(time.RFC3339), oneLine(c.Identity()))
	w := tabwriter.NewWriter(&out, 0, 0, 3, ' ', 0)
	for _, of := range []struct {
		kind  plane.Kind
		name  string
		tally *plane.Tally
	}{
		{plane.KindCluster, "Clusters", o.Clusters}, {plane.KindSignin, "Sign-ins", o.Signins}, {plane.KindTailnet, "Tailnets", o.Tailnets}, {plane.KindGateway, "Gateways", o.Gateways},
		{plane.KindRoute, "Routes", o.Routes}, {plane.KindProxyGroup, "Proxy groups", o.ProxyGroups}, {plane.KindAdapter, "Adapters", o.Adapters},
		{plane.KindPool, "Runners", o.Pools}, {plane.KindEnrollment, "Organisations", o.Enrollments}, {plane.KindHold, "Holds", o.Holds}, {plane.KindForge, "Forges", o.Forges}, {plane.KindChange, "Open changes", o.Changes}, {plane.KindDrift, "Drift", o.Drift},
	} {
		switch {
		case slices.Contains(o.Hidden, of.kind):
			fmt.Fprintf(w, "%s\t\tno access\n", of.name)
		case of.tally == nil && of.kind == plane.KindChange: // most installations have no repository
		case of.tally == nil:
			fmt.Fprintf(w, "%s\t\tnot known\n", of.name)
		default:
			var states []string
			for _, state := range slices.Sorted(maps.Keys(of.tally.States)) {
				states = append(states, fmt.Sprintf("%d %s", of.tally.States[state], oneLine(state)))
			}
			fmt.Fprintf(w, "%s\t%d\t%s\n", of.name, of.tally.Total, strings.Join(states, ", "))
		}
	}
	w.Flush()
	out.WriteString("\nNeeds attention\n")
	for _, a := range o.Attention {
		fmt.Fprintf(w, "  %s\t%s %s\t%s\t%s\n", a.Severity, a.Kind, oneLine(a.ID), oneLine(a.Reason), oneLine(a.Message))
	}
	w.Flush()
	switch {
	case o.More > 0:
		fmt.Fprintf(&out, "  and %d more\n", o.More)
	case len(o.Attention) == 0:
		out.WriteString("  nothing that you may see\n")
	}
	out.WriteString("\nSources\n")
	for _, src := range e.Meta.Sources {
		answered := "has never responded"
		if !src.ObservedAt.IsZero() {
			answered = "answered " + src.ObservedAt.UTC().Format(time.RFC3339)
		}
		fmt.Fprintf(w, "  %s\t%s\t%s\t%s\n", oneLine(src.Name), src.Status, answered, oneLine(src.Message))
	}
	w.Flush()
	if len(e.Meta.Sources) == 0 {
		out.WriteString("  none\n")
	}
	return []byte(out.String())
}

// oneLine returns foreign text on one line, without characters that move a terminal's cursor, change the reading direction or have no width.
func oneLine(s string) string {
	return strings.Map(func(r rune) rune {
		if r == ' ' || unicode.IsPrint(r) {
			return r
		}
		return unicode.ReplacementChar
	}, s)
}
