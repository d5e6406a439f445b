package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/signin"
)

// Environment variables that select a cluster. "tka shell" and the shell's function set the cluster and the session; CI jobs and direnv
// may set the server and the cluster.
const (
	serverEnv    = "TKA_SERVER"
	serverKeyEnv = "TKA_SERVER_KEY" // the key that the server must prove; $TKA_SERVER alone trusts it at first contact
	clusterEnv   = "TKA_CLUSTER"
	sessionEnv   = "TKA_SESSION"
)

// A selection is the cluster and the session that a command is about.
type selection struct {
	cluster string // "": the cluster of the server
	session signin.Session
	source  string // why this cluster, as the end of a sentence; "" if the command line or the settings name it, or nothing does
}

// listFlag is the type of a flag that names several clusters.
const listFlag = "stringSlice"

// signinFlags are the flags that select a sign-in.
type signinFlags struct {
	cluster string
	session string
}

// String returns the flags as a person would type them.
func (sf signinFlags) String() string {
	text := "--cluster " + output.ShellQuote(sf.cluster)
	if sf.session != "" {
		text += " --session " + output.ShellQuote(sf.session)
	}
	return text
}

// signinFlags adds the flags that select a sign-in.
func (t *tka) signinFlags(cmd *cobra.Command, sf *signinFlags, usage string, values func(context.Context) []string) *cobra.Command {
	cmd.Flags().StringVar(&sf.session, "session", "", "session of this device (default: $TKA_SESSION or that of the context, else the default session)")
	t.complete(cmd, "session", t.sessionNames)
	return t.clusterFlag(cmd, &sf.cluster, usage, values)
}

// sessionNames returns the completions of --session.
func (t *tka) sessionNames(context.Context) (names []string) {
	k, err := t.state()
	if err != nil {
		return nil
	}
	for _, s := range k.Servers {
		names = append(names, s.Live(t.Now())...)
	}
	return slices.DeleteFunc(names, func(name string) bool { return name == "" })
}

// selectSignin decides which cluster and session the command cmd is about, and sets its flags. All commands use this one rule. The first
// of these that names a cluster decides: --cluster, --server, --context, $TKA_CLUSTER and $TKA_SERVER, the current context of the
// kubeconfig if tka wrote it, the settings, and the only cluster that this machine is signed in to. Otherwise it is the cluster of the
// server.
func (t *tka) selectSignin(cmd *cobra.Command) error {
	flags := cmd.Flags()
	cluster := flags.Lookup("cluster")
	if cluster != nil && cluster.Annotations[selectsCluster] == nil {
		cluster = nil
	}
	given := func(name, none string) bool {
		f := flags.Lookup(name)
		return f != nil && f.Value.String() != none
	}
	if cluster != nil && (given("all", "false") || given("selector", "") || cluster.Value.Type() == listFlag) {
		return nil // several clusters
	}
	if cluster == nil {
		if t.server == "" {
			t.server = t.Getenv(serverEnv)
		}
		return nil
	}
	sel, err := t.selected(cluster)
	if err != nil {
		return err
	}
	t.selection = sel
	if err := cluster.Value.Set(sel.cluster); err != nil {
		return err
	}
	session := flags.Lookup("session")
	if session == nil {
		return nil
	}
	if !session.Changed {
		return session.Value.Set(string(sel.session))
	}
	if t.selection.session, err = signin.FindSession(session.Value.String()); err != nil {
		return output.UsageErrorf("--session: %v", err).Because(err)
	}
	return nil
}

// selected applies the rule of selectSignin.
func (t *tka) selected(cluster *pflag.Flag) (sel selection, err error) {
	env := t.Getenv(clusterEnv)
	session, err := signin.FindSession(t.Getenv(sessionEnv))
	if err != nil {
		return sel, output.UsageErrorf("$%s: %v", sessionEnv, err).Because(err)
	}
	switch {
	case cluster.Changed:
		if sel.cluster = cluster.Value.String(); sel.cluster == env && env != "" {
			sel.session = session
		}
		return sel, nil
	case t.server != "":
		return sel, nil
	case t.context != "":
		s, err := t.signinOfContext()
		return selection{s.Cluster, signin.Session(s.Session), ""}, err
	case env != "" || t.Getenv(serverEnv) != "":
		if env != "" && !dialpolicy.IsClusterName(env) {
			return sel, output.UsageErrorf("$%s is %.60q, which is not the name of a cluster", clusterEnv, env)
		}
		name := clusterEnv
		if t.server = t.Getenv(serverEnv); env == "" {
			name = serverEnv
		}
		return selection{env, session, "$" + name}, nil
	}
	if view, err := t.loadKubeconfig(); err == nil { // a command that needs the kubeconfig reports the error
		if s, own := view.SigninOf(view.Current()); own {
			return selection{s.Cluster, signin.Session(s.Session), "the current context of the kubeconfig"}, nil
		}
	}
	set, state, err := t.settingsAndState()
	if err != nil {
		return sel, nil //nolint:nilerr // the command itself reports invalid settings
	}
	if set.Cluster != "" {
		return selection{cluster: set.Cluster}, nil
	}
	var live []config.ServerRecord
	for _, s := range state.Servers {
		if s.Chosen && len(s.Live(t.Now())) > 0 {
			live = append(live, s)
		}
	}
	if len(live) == 1 {
		return selection{cluster: live[0].Cluster, source: "the only cluster that this machine is signed in to"}, nil
	}
	return sel, nil
}

// explainSelection tells the person which cluster the command is about, if this machine knows several, and neither the command line nor the
// settings say so.
func (t *tka) explainSelection(ctx context.Context) {
	if s := t.selection; s.source != "" && s.cluster != "" && len(t.knownClusterNames(ctx)) > 1 {
		t.hint("The cluster is %s (%s).", s.cluster, s.source)
		t.selection.source = ""
	}
}
