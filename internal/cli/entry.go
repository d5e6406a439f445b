package cli

import (
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// modeFlag adds the flag that selects how kubectl reaches the API server.
func (t *tka) modeFlag(cmd *cobra.Command, mode *string) {
	cmd.Flags().StringVar(mode, "mode", "", "how kubectl reaches the API server: proxy (through the access proxy, without a credential) or token (directly, with a token) (default: the first that the cluster offers)")
	t.complete(cmd, "mode", fixedValues(modeNames()...))
}

func modeNames() []string {
	return mapped(signin.Modes(), func(m signin.Mode) string { return string(m) })
}

// checkMode rejects a value of --mode that is no mode.
func checkMode(mode string) error {
	if mode == "" {
		return nil
	}
	return checkOneOf("--mode", mode, modeNames())
}

// modeFor returns the mode for entries of the server's cluster: the requested one, which the server must offer, or else the first that it
// offers.
func modeFor(l *client.Client, requested string) (signin.Mode, error) {
	mode := signin.Mode(requested)
	if offered := l.Info.AccessModes(); requested == "" && len(offered) > 0 {
		mode = offered[0]
	}
	return mode, l.CheckMode(mode)
}

// modeOf returns the mode of a kubeconfig entry of tka.
func modeOf(e kubeconfig.Entry) signin.Mode {
	if e.Proxy {
		return signin.ModeProxy
	}
	return signin.ModeToken
}

// entryMode returns the mode of the kubeconfig entry for a sign-in. It returns "" if there is none, or if the kubeconfig cannot be read, which
// commands that need it report.
func (t *tka) entryMode(of kubeconfig.Signin) signin.Mode {
	view, err := t.loadKubeconfig()
	if err != nil {
		return ""
	}
	switch context, found := view.ContextOf(of); {
	case !found:
		return ""
	case view.UsesProxy(context):
		return signin.ModeProxy
	}
	return signin.ModeToken
}

// usedMode returns the mode in which kubectl uses a session: that of its kubeconfig entry, or else the first that the server offers. It
// returns an error if the server does not offer it.
func (t *tka) usedMode(l *client.Client, session signin.Session) (signin.Mode, error) {
	of := kubeconfig.Signin{Cluster: l.Info.Name, Session: string(session)}
	mode := t.entryMode(of)
	if mode != "" && !slices.Contains(l.Info.AccessModes(), mode) {
		return mode, outdatedEntry(of, mode)
	}
	return modeFor(l, string(mode))
}

// outdatedEntry returns the error for a kubeconfig entry in a mode that the server no longer offers.
func outdatedEntry(of kubeconfig.Signin, mode signin.Mode) *output.Error {
	return output.Errorf(output.ExitRefused, "The kubeconfig entry for %s uses the mode %s, which the cluster no longer offers", of.Cluster, mode).
		Try("Rewrite it: tka login %s", signinFlags{of.Cluster, of.Session})
}

// reportModeChange tells the person that a login changed the mode of a context.
func (t *tka) reportModeChange(l *client.Client, entry kubeconfig.Entry, before signin.Mode) {
	switch now := modeOf(entry); {
	case before == "" || before == now:
	case !slices.Contains(l.Info.AccessModes(), before):
		t.warn("the context %s changed from the mode %s to %s, because %s no longer offers the mode %s", entry.Name, before, now, entry.Cluster, before)
	default:
		t.hint("The context %s changed from the mode %s to %s. To change it back: tka login --mode %s", entry.Name, before, now, before)
	}
}

// checkSameCluster refuses a server whose cluster has the name of one that this machine knows from another server with another key or
// authority. Otherwise commands meant for one cluster would go to the other.
func (t *tka) checkSameCluster(entry kubeconfig.Entry, l *client.Client) error {
	state, err := t.state()
	if err != nil {
		return err
	}
	other, ok := state.ServerOf(entry.Cluster)
	if !ok || !other.Chosen || other.URL == l.Base {
		return nil
	}
	what := "key"
	if other.Key.IsZero() || other.Key == l.Key {
		what = "certificate authority"
		view, err := t.loadKubeconfig()
		if err != nil {
			return err
		}
		same := view.SameCA(entry.Name, entry.CA)
		if have, _ := view.Entry(entry.Name); entry.Proxy || have.Proxy { // one of them has no authority of the cluster
			same = other.CASHA256 == "" || other.CASHA256 == fingerprint(l.Info.CAData)
		}
		if same {
			return nil
		}
	}
	return output.Errorf(output.ExitRefused, "The server %s claims to serve the cluster %s, and so does %s, with a different %s", l.Base, entry.Cluster, other.URL, what).
		Try("If the server moved, sign out there and forget it: tka logout --server %s; tka config --forget-server %s", output.ShellQuote(other.URL), output.ShellQuote(other.URL)).
		Try("To keep both: --kubeconfig FILE, or another prefix: tka config prefix NAME-")
}

// entryWithoutSignin returns the kubeconfig entry in a mode for a session of the server's cluster, from what the server proved about the
// cluster.
func (t *tka) entryWithoutSignin(l *client.Client, set *config.Settings, lf loginFlags) (kubeconfig.Entry, error) {
	mode, err := modeFor(l, lf.mode)
	if err != nil {
		return kubeconfig.Entry{}, err
	}
	session := signin.Session(lf.session)
	g := client.IssuedKubeconfig{Mode: mode, Kubeconfig: signin.Kubeconfig{Cluster: l.Info.Name, Session: session, Server: l.Info.ServerURL, CA: l.Info.CAData,
		InsecureSkipTLSVerify: l.Info.InsecureSkipTLSVerify, Token: secret.New("none")}}
	if mode == signin.ModeProxy {
		g, err = l.ProxyKubeconfig(session)
	} else if err = client.CheckKubeconfig(g.Kubeconfig); err != nil {
		err = l.InvalidResponse("cluster-info", err)
	}
	if err != nil {
		return kubeconfig.Entry{}, err
	}
	return t.kubeconfigEntry(set, g, lf.namespaces), nil
}

// kubeconfigEntry returns the kubeconfig entry for g.
func (t *tka) kubeconfigEntry(set *config.Settings, g client.IssuedKubeconfig, namespaces []string) kubeconfig.Entry {
	s := kubeconfig.Signin{Cluster: g.Cluster, Session: string(g.Session)}
	e := kubeconfig.Entry{Signin: s, Name: signin.ContextName(set.Prefix, g.Cluster, g.Session), Server: g.Server, CA: g.CA}
	if g.Namespace != "" {
		e.Namespaces = append([]string{g.Namespace}, namespaces...)
	}
	if e.Proxy = g.Mode == signin.ModeProxy; e.Proxy {
		return e
	}
	e.Command, e.Args = t.pluginCommand(), kubeconfig.PluginArgs(s)
	if t.config != "" {
		if path, err := filepath.Abs(t.config); err == nil {
			e.Args = append(e.Args, "--config", path)
		}
	}
	e.Args = append(e.Args, t.idTokens.Args()...)
	return e
}

// pluginCommand returns the command with which kubectl runs tka: its name if it is in PATH, and otherwise its full path.
func (t *tka) pluginCommand() string {
	for _, name := range []string{"tka", "kubectl-tka"} {
		if _, err := exec.LookPath(name); err == nil {
			return name
		}
	}
	self, err := os.Executable()
	if err != nil || strings.HasPrefix(kubeconfig.ProgramName(self), "kubectl_complete") {
		return "tka"
	}
	t.hint("tka is not in PATH, so the kubeconfig contains its full path, %s.", self)
	return self
}
