package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
)

func (t *tka) logout() *cobra.Command {
	var cluster string
	var dryRun, all bool
	cmd := &cobra.Command{
		Use:     "logout",
		Aliases: []string{"signout"},
		Short:   "End the sign-in of this device and remove its kubeconfig entries",
		Long: `End the sign-in of this device. The rights end immediately, and the API server refuses the
token within 10 seconds. logout also removes the kubeconfig entries that login wrote, and
the token that tka cached for kubectl.

If you are not signed in, logout succeeds. Sign-ins of your other devices continue.`,
		Example: "  tka logout\n  tka logout --cluster prod-eu",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case all && (cluster != "" || t.server != ""):
				return output.UsageErrorf("--all cannot be combined with --cluster or --server")
			case all:
				return t.logoutAll(cmd.Context(), dryRun)
			}
			res, err := t.logoutOf(cmd.Context(), cluster, dryRun)
			if err != nil {
				return err
			}
			return t.printResult(result{object: res, names: res.Removed, table: func(bool) { t.printLogout(res) }})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "sign out of every cluster that this machine signed in to")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the sign-ins to end and the entries to remove, and do nothing")
	return t.clusterFlag(cmd, &cluster, "cluster to sign out of; this machine must know it", t.knownClusterNames)
}

// logoutResult is the output of logout.
type logoutResult struct {
	meta
	Cluster     string       `json:"cluster"`
	Server      string       `json:"server"`
	WasSignedIn bool         `json:"wasSignedIn"`
	State       signin.State `json:"state"`
	Removed     []string     `json:"removed"`    // names of kubeconfig entries
	Kubeconfig  []string     `json:"kubeconfig"` // files that were changed
	DryRun      bool         `json:"dryRun"`
}

// logoutWait is how long the server may wait until the access is removed.
const logoutWait = 2 * time.Second

// logoutOf signs out of one cluster.
func (t *tka) logoutOf(ctx context.Context, cluster string, dryRun bool) (res logoutResult, err error) {
	t.dryRun = dryRun
	l, denied, err := t.connectOrDenied(ctx, cluster)
	if err != nil {
		return res, err
	}
	if denied != nil { // any caller with a sign-in may end it, even without a grant
		k, err := t.state()
		if err != nil {
			return res, err
		}
		known, _ := k.Server(l.Base)
		if l.Info.Name = known.Cluster; l.Info.Name == "" || cluster != "" && l.Info.Name != cluster {
			return res, denied
		}
	}
	cluster = l.Info.Name
	if !dryRun {
		t.forgetToken(l.Base, cluster)
	}
	res = logoutResult{meta: newMeta("Logout"), Cluster: cluster, Server: l.Base, State: signin.Ended, DryRun: dryRun}
	var st signin.Status
	if dryRun {
		st, err = client.Call(ctx, l, signin.Read, signin.ReadRequest{})
	} else {
		st, err = client.CallUntilReady(ctx, l, signin.Logout, func(time.Duration) signin.LogoutRequest {
			return signin.LogoutRequest{Wait: httpapi.Duration(logoutWait)}
		})
	}
	switch {
	case err == nil:
		res.WasSignedIn, res.State = true, st.State
	case !notSignedIn(err):
		return res, err
	}
	if dryRun {
		var files kubeconfig.Files
		files, err = t.readKubeconfigFiles()
		res.Removed = files.Remove(cluster)
	} else {
		res.Kubeconfig, err = t.editKubeconfig(ctx, func(files kubeconfig.Files) error { res.Removed = files.Remove(cluster); return nil })
	}
	if err != nil {
		return res, err
	}
	if !dryRun {
		t.leaveShell(cluster)
	}
	res.Removed, res.Kubeconfig = nonNil(res.Removed), nonNil(res.Kubeconfig)
	return res, nil
}

// forgetToken removes a token from the cache.
func (t *tka) forgetToken(base, cluster string) {
	if err := t.tokenCache().Delete(base, cluster); err != nil {
		t.warn("the token for %s is still on this machine until it ends: %v", cluster, err)
	}
}

func (t *tka) printLogout(res logoutResult) {
	switch {
	case res.DryRun && res.WasSignedIn:
		t.printLine("Would sign out of %s.", res.Cluster)
	case !res.WasSignedIn:
		t.printLine("Was not signed in to %s.", res.Cluster)
	case res.State == signin.Ending:
		t.printLine("Signed out of %s; the cluster is removing the access.", res.Cluster)
	default:
		t.printLine("Signed out of %s.", res.Cluster)
	}
	for _, n := range res.Removed {
		if res.DryRun {
			t.printLine("Would remove %s from the kubeconfig.", n)
		} else {
			t.printLine("Removed %s from the kubeconfig.", n)
		}
	}
}
