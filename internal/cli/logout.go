package cli

import (
	"context"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
)

func (t *tka) logout() *cobra.Command {
	var sf signinFlags
	var dryRun, all bool
	var selector string
	cmd := &cobra.Command{
		Use:     "logout",
		Aliases: []string{"signout"},
		Short:   "End the sign-in of this terminal and remove its kubeconfig entries",
		Long: `End the sign-in of this terminal: of the session in $TKA_SESSION, else of the current context
if tka wrote it, else of the default session. The rights end immediately, and the API server
refuses the token within 10 seconds. logout also removes the kubeconfig entries that login
wrote, and the token that tka cached for kubectl.

If you are not signed in, logout succeeds. It names the sessions of this device that are
left. With --all, it ends all of them on all clusters. Your other devices stay signed in.`,
		Example: "  tka logout\n  tka logout --cluster prod-eu --session edit\n  tka logout --all",
		RunE: func(cmd *cobra.Command, _ []string) error {
			switch {
			case (all || selector != "") && (sf != signinFlags{} || t.context != "" || t.server != ""):
				return output.UsageErrorf("--all and --selector cannot be combined with --cluster, --session, --context or --server")
			case all || selector != "":
				return t.logoutAll(cmd.Context(), selector, dryRun)
			}
			res, err := t.logoutOf(cmd.Context(), sf, dryRun)
			if err != nil {
				return err
			}
			return t.printResult(result{object: res, names: res.Removed, table: func(bool) { t.printLogout(res) }})
		},
	}
	cmd.Flags().BoolVar(&all, "all", false, "end all sessions of this device on every cluster that this machine signed in to")
	selectorFlag(cmd, &selector, "end all sessions of this device on clusters")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the sign-ins to end and the entries to remove, and do nothing")
	return t.signinFlags(cmd, &sf, "cluster to sign out of; this machine must know it", t.knownClusterNames)
}

// logoutResult is the output of logout.
type logoutResult struct {
	meta
	Cluster     string       `json:"cluster"`
	Session     string       `json:"session,omitempty"`
	Server      string       `json:"server"`
	WasSignedIn bool         `json:"wasSignedIn"`
	State       signin.State `json:"state"`
	Removed     []string     `json:"removed"`    // names of kubeconfig entries
	Kubeconfig  []string     `json:"kubeconfig"` // files that were changed
	Left        []string     `json:"left"`       // sessions of this device at the cluster that continue; "" is the default one
	DryRun      bool         `json:"dryRun"`
}

// logoutWait is how long the server may wait until the access is removed.
const logoutWait = 2 * time.Second

// logoutOf ends one session of a cluster.
func (t *tka) logoutOf(ctx context.Context, sf signinFlags, dryRun bool) (res logoutResult, err error) {
	t.dryRun = dryRun
	session := signin.Session(sf.session)
	l, denied, err := t.connectOrDenied(ctx, sf.cluster)
	if err != nil {
		return res, err
	}
	if denied != nil { // any caller with a sign-in may end it, even without a grant
		k, err := t.state()
		if err != nil {
			return res, err
		}
		known, _ := k.Server(l.Base)
		if l.Info.Name = known.Cluster; l.Info.Name == "" || sf.cluster != "" && l.Info.Name != sf.cluster {
			return res, denied
		}
	}
	of := kubeconfig.Signin{Cluster: l.Info.Name, Session: sf.session}
	if !dryRun {
		t.forgetToken(l.Base, of.Cluster, session)
	}
	res = logoutResult{meta: newMeta("Logout"), Cluster: of.Cluster, Session: sf.session, Server: l.Base, State: signin.Ended, DryRun: dryRun}
	var st signin.Status
	if dryRun {
		st, err = client.Call(ctx, l, signin.Read, signin.ReadRequest{Session: session})
	} else {
		st, err = client.CallUntilReady(ctx, l, signin.Logout, func(time.Duration) signin.LogoutRequest {
			return signin.LogoutRequest{Session: session, Wait: httpapi.Duration(logoutWait)}
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
		res.Removed = files.Remove(of)
	} else {
		res.Kubeconfig, err = t.editKubeconfig(ctx, func(files kubeconfig.Files) error { res.Removed = files.Remove(of); return nil })
	}
	if err != nil {
		return res, err
	}
	if !dryRun {
		t.leaveShell(of)
		t.forgetSession(ctx, l.Base, sf.session)
	}
	res.Left = slices.DeleteFunc(t.otherSessions(ctx, l), func(name string) bool { return name == sf.session })
	res.Removed, res.Kubeconfig, res.Left = nonNil(res.Removed), nonNil(res.Kubeconfig), nonNil(res.Left)
	return res, nil
}

// forgetSession records that a session has ended.
func (t *tka) forgetSession(ctx context.Context, base, session string) {
	err := t.updateServer(ctx, base, func(s *config.ServerRecord) {
		last := s.Session(session)
		last.Until = time.Time{}
		s.SetSession(session, last, t.Now())
	})
	if err != nil {
		t.warn("tka could not save that the sign-in ended: %v", err)
	}
}

// otherSessions returns the sessions of this device at a server: those that the server reports, or else those that this machine stored.
func (t *tka) otherSessions(ctx context.Context, l *client.Client) (names []string) {
	all, err := client.Call(ctx, l, signin.ListSessions, signin.SessionsRequest{})
	if err == nil {
		for _, st := range all.Sessions {
			if st.State != signin.Ending {
				names = append(names, string(st.Session))
			}
		}
		return names
	}
	k, err := t.state()
	if err != nil {
		return nil
	}
	s, _ := k.Server(l.Base)
	if s.Default.Until.After(t.Now()) {
		names = append(names, "")
	}
	for _, name := range slices.Sorted(maps.Keys(s.Sessions)) {
		if s.Sessions[name].Until.After(t.Now()) {
			names = append(names, name)
		}
	}
	return names
}

// forgetToken removes a token from the cache.
func (t *tka) forgetToken(base, cluster string, session signin.Session) {
	if err := t.tokenCache().Delete(base, cluster, string(session)); err != nil {
		t.warn("the token for %s is still on this machine until it ends: %v", cluster, err)
	}
}

func (t *tka) printLogout(res logoutResult) {
	of := res.Cluster
	if res.Session != "" {
		of += ", session " + res.Session
	}
	switch {
	case res.DryRun && res.WasSignedIn:
		t.printLine("Would sign out of %s.", of)
	case !res.WasSignedIn:
		t.printLine("Was not signed in to %s.", of)
	case res.State == signin.Ending:
		t.printLine("Signed out of %s; the cluster is removing the access.", of)
	default:
		t.printLine("Signed out of %s.", of)
	}
	for _, n := range res.Removed {
		if res.DryRun {
			t.printLine("Would remove %s from the kubeconfig.", n)
		} else {
			t.printLine("Removed %s from the kubeconfig.", n)
		}
	}
	if len(res.Left) > 0 {
		names := strings.Join(mapped(res.Left, func(s string) string { return signin.Session(s).String() }), ", ")
		t.hint("Still signed in to %s; sessions: %s. To end everything on this device: tka logout --all", res.Cluster, names)
	}
}
