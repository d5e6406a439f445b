package cli

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"
	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/cli/shellsession"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/safefile"
)

// kubeconfigFlags are the flags of the kubeconfig command.
type kubeconfigFlags struct {
	signinFlags
	all   bool
	token bool
	out   string
	yes   bool
	mode  string
}

func (t *tka) kubeconfigCommand(use string) *cobra.Command {
	var kf kubeconfigFlags
	cmd := &cobra.Command{
		Use:   use,
		Short: "Print a kubeconfig for the sign-in of this device",
		Long: `Print a separate kubeconfig file for the sign-in of this device. It contains no token:
kubectl runs "tka credential" to get one. With --token, it contains a token, for programs
that cannot run a plugin. Any program that can read such a file has your access until the
token ends. In the mode proxy, the file names the access proxy and a session, and no program
needs a plugin or a token.

With --all, it has an entry for each cluster that you may sign in to, and needs no sign-in:
kubectl signs in when it first uses an entry in the mode token. The entries run tka by its full path, so that
programs find it that do not have your shell's $PATH, such as editors.`,
		Example: "  tka kubeconfig --all --out clusters.yaml\n  tka kubeconfig --out prod.yaml\n  tka kubeconfig --token --out /run/user/1000/kubeconfig",
		Args: func(cmd *cobra.Command, args []string) error {
			if kf.all && (kf.token || kf.signinFlags != signinFlags{} || t.context != "") {
				return output.UsageErrorf("--all cannot be combined with --token, --cluster, --session or --context")
			}
			if kf.token && kf.mode == string(signin.ModeProxy) {
				return output.UsageErrorf("--token and --mode proxy cannot be combined: the access proxy takes no token")
			}
			if err := checkMode(kf.mode); err != nil {
				return err
			}
			return arguments(0, 0, "")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, _ []string) error { return t.doKubeconfig(cmd.Context(), kf) },
	}
	f := cmd.Flags()
	f.BoolVar(&kf.all, "all", false, "an entry for each cluster that you may sign in to, which signs in at first use")
	f.BoolVar(&kf.token, "token", false, "include the token in the kubeconfig, in the mode token")
	t.modeFlag(cmd, &kf.mode)
	f.StringVar(&kf.out, "out", "", "write to this file instead of printing; only you can read it")
	f.BoolVar(&kf.yes, "yes", false, "replace the file if it exists")
	return t.signinFlags(cmd, &kf.signinFlags, "cluster; this machine or its server must know it", t.clusterNames)
}

func (t *tka) doKubeconfig(ctx context.Context, kf kubeconfigFlags) error {
	set, err := t.settings()
	if err != nil {
		return err
	}
	format, err := t.outputFormat()
	if err != nil {
		return err
	}
	if kf.out != "" {
		if err := t.confirmReplace(ctx, kf.out, kf.yes); err != nil {
			return err
		}
	}
	if kf.all {
		return t.kubeconfigAll(ctx, kf, set, format)
	}
	l, err := t.connect(ctx, kf.cluster)
	if err != nil {
		return err
	}
	if kf.token {
		kf.mode = string(signin.ModeToken)
	}
	mode, err := modeFor(l, kf.mode)
	if err != nil {
		return err
	}
	g, err := l.Access(ctx, signin.Session(kf.session), mode)
	if err != nil {
		return err
	}
	entry := t.kubeconfigEntry(set, g, nil)
	var text []byte
	if kf.token {
		g.Prefix = set.Prefix
		text, err = g.YAML()
		t.warn("this kubeconfig contains a token: any program that can read it has your access to %s until the token ends", g.Cluster)
	} else {
		text, err = kubeconfig.Document(entry)
		if revokeErr := t.updateServer(ctx, l.Base, func(k *config.ServerRecord) { k.Chosen, k.CASHA256 = true, fingerprint(l.Info.CAData) }); revokeErr != nil {
			t.warn("kubectl will look for %s at the server of the settings, because %v", g.Cluster, revokeErr)
		}
	}
	if err != nil {
		return err
	}
	return t.writeKubeconfig(kf, format, text, entry.Name)
}

// kubeconfigAll prints the entries of all clusters that grant this person a role.
func (t *tka) kubeconfigAll(ctx context.Context, kf kubeconfigFlags, set *config.Settings, format string) error {
	targets, err := t.allTargets(ctx)
	if err != nil {
		return err
	}
	self, err := os.Executable()
	if err != nil {
		return output.Errorf(output.ExitFailed, "the path of tka is unknown: %v", err).Because(err)
	}
	all := forEach(ctx, t, targets, func(ctx context.Context, one *tka, at target) (kubeconfig.Entry, error) {
		l, err := one.connect(ctx, at.cluster)
		if err != nil {
			return kubeconfig.Entry{}, err
		}
		entry, err := one.entryWithoutSignin(l, set, loginFlags{mode: kf.mode})
		if err != nil {
			return entry, err
		}
		if entry.Proxy {
			one.hint("%s is reached through the access proxy, which serves this device while it is signed in: tka login --cluster %s", entry.Cluster, entry.Cluster)
		} else {
			entry.Command, entry.Args = self, append(entry.Args, signInFlag)
		}
		return entry, one.updateServer(ctx, l.Base, func(s *config.ServerRecord) { s.Chosen, s.CASHA256 = true, fingerprint(l.Info.CAData) })
	})
	var entries []kubeconfig.Entry
	for _, o := range all {
		switch {
		case o.err == nil:
			entries = append(entries, o.value)
		case problem.CodeOf(o.err) != problem.NoCapability:
			t.warn("%s has no entry: %s", o.cluster, errorMessage(o.err))
		}
	}
	if len(entries) == 0 {
		return output.Errorf(output.ExitRefused, "no cluster grants you a role").Try("tka clusters")
	}
	slices.SortFunc(entries, func(a, b kubeconfig.Entry) int { return cmp.Compare(a.Name, b.Name) })
	text, err := kubeconfig.Document(entries...)
	if err != nil {
		return err
	}
	return t.writeKubeconfig(kf, format, text, mapped(entries, func(e kubeconfig.Entry) string { return e.Name })...)
}

// writeKubeconfig writes a kubeconfig to standard output or to a file.
func (t *tka) writeKubeconfig(kf kubeconfigFlags, format string, text []byte, names ...string) (err error) {
	switch format {
	case output.JSON:
		if text, err = yamlToJSON(text); err != nil {
			return err
		}
	case output.Name:
		text = []byte(strings.Join(names, "\n") + "\n")
	}
	if kf.out == "" {
		_, err = t.Out.Write(text)
		return err
	}
	if err := safefile.Write(kf.out, text); err != nil {
		return outFileError(kf.out, err)
	}
	t.hint("Use it: kubectl --kubeconfig %s get pods", output.ShellQuote(kf.out))
	return nil
}

// confirmReplace asks the person before a file is replaced, and refuses files of other users.
func (t *tka) confirmReplace(ctx context.Context, path string, yes bool) error {
	if err := safefile.Check(path); err != nil {
		return outFileError(path, err)
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) || yes {
		return nil
	}
	return t.confirm(ctx, fmt.Sprintf("%s exists; replace it?", path), "--yes")
}

func outFileError(path string, err error) error {
	return output.Errorf(output.ExitFailed, "%s was not written: %v", path, err).Because(err).Try("Write another file: --out FILE")
}

// yamlToJSON converts YAML to JSON.
func yamlToJSON(text []byte) ([]byte, error) {
	var v any
	if err := yaml.Unmarshal(text, &v); err != nil {
		return nil, err
	}
	out, err := json.MarshalIndent(v, "", "  ")
	return append(out, '\n'), err
}

// signInFlag lets the plugin sign in without the person.
const signInFlag = "--sign-in"

func (t *tka) credential() *cobra.Command {
	var sf signinFlags
	var signIn bool
	cmd := &cobra.Command{
		Use:   "credential --cluster NAME",
		Short: "Print a token for kubectl (run by kubectl itself)",
		Long: `Print the token of this device's sign-in in the format of a kubectl credential plugin.
login writes this command into the kubeconfig; you do not need to run it yourself. If you
are not signed in, the exit code is 3. The command signs in automatically only after
"tka login --auto", which adds --sign-in to it.

kubectl caches nothing between its runs. The command therefore caches the token until
shortly before it expires, in the directory tka of $XDG_RUNTIME_DIR, else of
$XDG_CACHE_HOME. Only you can read it, and logout removes it. "tka config credentialCache
none" turns the cache off. Nothing is cached for a sign-in with an OIDC token: other jobs
of the same machine could read it.`,
		Example: "  tka credential --cluster prod-eu",
		RunE: func(cmd *cobra.Command, _ []string) error {
			if !cmd.Flags().Changed("cluster") || sf.cluster == "" {
				return output.UsageErrorf("tka credential needs --cluster NAME")
			}
			if !cmd.Flags().Changed("session") {
				sf.session = "" // the kubeconfig decides, and not the terminal
			}
			return t.doCredential(cmd.Context(), sf, signIn)
		},
	}
	cmd.Flags().BoolVar(&signIn, strings.TrimPrefix(signInFlag, "--"), false, "sign in with the last role and namespaces if the sign-in has ended")
	return t.signinFlags(cmd, &sf, "cluster to print a token for", t.knownClusterNames)
}

// execCredential is the ExecCredential that kubectl reads.
type execCredential struct {
	APIVersion string     `json:"apiVersion"`
	Kind       string     `json:"kind"`
	Status     execStatus `json:"status"`
}

type execStatus struct {
	ExpirationTimestamp *time.Time `json:"expirationTimestamp,omitempty"`
	Token               string     `json:"token"`
}

func (t *tka) doCredential(ctx context.Context, sf signinFlags, signIn bool) error {
	version, err := execCredentialVersion(t.Getenv("KUBERNETES_EXEC_INFO"))
	if err != nil {
		return err
	}
	c, err := t.cachedToken(ctx, sf, signIn)
	if err != nil {
		return err
	}
	out := execCredential{APIVersion: version, Kind: "ExecCredential", Status: execStatus{Token: c.Token.Reveal()}}
	if !c.Expires.IsZero() {
		out.Status.ExpirationTimestamp = new(c.Expires.UTC())
	}
	return json.NewEncoder(t.Out).Encode(out)
}

// execCredentialVersion returns the API version of ExecCredential that kubectl requests.
func execCredentialVersion(env string) (string, error) {
	if env == "" {
		return kubeconfig.ExecVersion, nil
	}
	var info struct {
		APIVersion string `json:"apiVersion"`
		Kind       string `json:"kind"`
	}
	if err := json.Unmarshal([]byte(env), &info); err != nil {
		return "", output.Errorf(output.ExitFailed, "KUBERNETES_EXEC_INFO does not have the value that kubectl sets: %v", err).Because(err).Try("Run kubectl, which sets it. If you run this command yourself, leave it unset.")
	}
	switch info.APIVersion {
	case kubeconfig.ExecVersion, "client.authentication.k8s.io/v1beta1":
		return info.APIVersion, nil
	}
	return "", output.Errorf(output.ExitFailed, "kubectl requests a credential of version %.60q; tka supports client.authentication.k8s.io/v1 and v1beta1", info.APIVersion).
		Try("Use another version of kubectl.")
}

// cachedToken returns a token for a cluster, from the cache or a fresh one.
func (t *tka) cachedToken(ctx context.Context, sf signinFlags, signIn bool) (client.CachedToken, error) {
	l, err := t.locate(ctx, sf.cluster)
	if err != nil {
		return client.CachedToken{}, err
	}
	fetch := func(ctx context.Context) (client.CachedToken, error) { return t.freshToken(ctx, l, sf, signIn) }
	set, state, err := t.settingsAndState()
	if err != nil {
		return client.CachedToken{}, err
	}
	have, ok := state.Server(l.Base)
	if have.OIDC && t.idTokens.Available() { // other jobs of this user could read the cache
		return fetch(ctx)
	}
	if set.CredentialCache == config.CacheNone || !ok || !have.Chosen || have.Cluster != sf.cluster {
		return fetch(ctx)
	}
	last := have.Session(sf.session)
	key := client.TokenKey{Server: have.URL, Cluster: sf.cluster, ClusterKey: l.Key.String(), CASHA256: have.CASHA256, Login: have.Login, Node: t.tailscale.Node(ctx),
		Session: sf.session, Role: last.Role, Namespaces: last.Namespaces}
	c, err := t.tokenCache().Get(ctx, key, shellsession.ProcessID(os.Getppid()), fetch)
	if err != nil && errors.Is(err, ctx.Err()) {
		err = l.Explain(ctx, err)
	}
	return c, err
}

// tokenCache returns the token cache.
func (t *tka) tokenCache() client.TokenCache {
	return client.TokenCache{Dirs: t.runtimeDirs(), Now: t.Now}
}

// freshToken fetches a fresh token for a sign-in.
func (t *tka) freshToken(ctx context.Context, l *client.Client, sf signinFlags, signIn bool) (client.CachedToken, error) {
	l, err := t.verifyAny(ctx, l, sf.cluster)
	if err != nil {
		return client.CachedToken{}, err
	}
	if err := l.CheckMode(signin.ModeToken); err != nil {
		return client.CachedToken{}, output.Errorf(output.ExitRefused, "The cluster %s no longer gives out tokens, and this kubeconfig entry asks for one", sf.cluster).Because(err).
			Try("run: tka login %s", sf)
	}
	g, err := l.Kubeconfig(ctx, signin.Session(sf.session))
	if notSignedIn(err) && signIn {
		k, kerr := t.state()
		if kerr != nil {
			return client.CachedToken{}, kerr
		}
		server, _ := k.Server(l.Base)
		last := server.Session(sf.session) // keeps the role, so the key of the cache stays the same
		_, g, err = t.signIn(ctx, l, loginFlags{role: last.Role, namespaces: last.Namespaces, signinFlags: sf, mode: string(signin.ModeToken)})
	}
	if p, ok := errors.AsType[*problem.Error](err); ok && p.Code == problem.NotSignedIn {
		return client.CachedToken{}, output.Errorf(output.ExitRefused, "Not signed in to %s: %s", sf.cluster, p.Message).Because(err).Try("run: tka login %s", sf)
	}
	if err != nil {
		return client.CachedToken{}, err
	}
	return client.CachedToken{Token: g.Token, Expires: g.Until}, nil
}
