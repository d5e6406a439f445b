package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/signin"
)

func (t *tka) refresh() *cobra.Command {
	lf := loginFlags{refresh: true}
	cmd := &cobra.Command{
		Use:     "refresh",
		Aliases: []string{"reauthenticate", "reauth"},
		Short:   "Extend the sign-in of this device, or sign in again",
		Long: `Extend the sign-in of this device: same role, same namespaces, a later end. If it has ended,
sign in again with the role and the namespaces that this machine used last.`,
		Example: "  tka refresh\n  tka refresh --for 1h --cluster prod-eu",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doLogin(cmd.Context(), lf) },
	}
	cmd.Flags().DurationVar(&lf.period, "for", 0, "duration from now, such as 30m or 8h (default: the granted period of the role)")
	return t.clusterFlag(cmd, &lf.cluster, "cluster; this machine or its server must know it", t.knownClusterNames)
}

// repeatLogin returns the flags that repeat the present sign-in, or else the last one.
func (t *tka) repeatLogin(ctx context.Context, l *client.Client, lf loginFlags, set *config.Settings) (loginFlags, error) {
	st, err := client.Call(ctx, l, signin.Read, signin.ReadRequest{})
	switch {
	case err == nil && st.State != signin.Ended && st.State != signin.Ending:
		lf.role, lf.namespaces = st.Role, st.Namespaces
	case err == nil, notSignedIn(err):
		k, kerr := t.state()
		if kerr != nil {
			return lf, kerr
		}
		last, _ := k.Server(l.Base)
		lf.role, lf.namespaces = last.Role, last.Namespaces
	default:
		return lf, err
	}
	view, err := t.loadKubeconfig()
	if err != nil {
		return lf, err
	}
	entry, _ := view.Entry(set.Prefix + l.Info.Name)
	lf.auto = slices.Contains(entry.Args, signInFlag)
	return lf, nil
}
