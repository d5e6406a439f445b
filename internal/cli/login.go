package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// loginFlags are the flags of login.
type loginFlags struct {
	role       string
	period     time.Duration
	namespaces []string
	signinFlags
	use      bool
	dryRun   bool
	shell    bool
	auto     bool // the plugin may sign in without the person
	refresh  bool // repeat the present or last sign-in
	all      bool // every known cluster
	selector string
	reason   string
	mode     string // "": the first that the server offers
	request  string // access request to use; "": none
}

func (t *tka) login() *cobra.Command {
	var lf loginFlags
	cmd := &cobra.Command{
		Use:     "login",
		Aliases: []string{"signin", "auth"},
		Short:   "Sign in to a cluster and configure kubectl for it",
		Long: `Sign in to a cluster with your tailnet identity, wait until the access is ready, and write
a cluster, a user and a context into the kubeconfig.

login writes no token. The cluster offers one or both of two modes. In the mode proxy,
kubectl sends its requests to the access proxy, which adds the token. In the mode token,
kubectl runs "tka credential" whenever it needs one. Run login again to extend a sign-in.

A role other than the usual one gets a session of its own, with its own context: other
terminals keep theirs. A device may have several sessions, which are separate sign-ins.
They keep terminals apart, and are no boundary between programs of this device.

If this machine does not know the cluster, tka looks for it among the clusters that the
server knows ("tka clusters"). The cluster's server must then prove that it has the listed
key. With --all, the exit code is 0 if all sign-ins succeeded, the common code if all failed
in the same way, and else 1.`,
		Example: `  tka login
  tka login --role edit --for 1h --namespace shop
  tka login --cluster prod-us
  tka login --server tka-staging --use`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case (lf.all || lf.selector != "") && (lf.use || lf.dryRun || lf.shell || lf.signinFlags != signinFlags{} || t.context != "" || t.server != ""):
				return output.UsageErrorf("--all and --selector cannot be combined with --use, --dry-run, --shell, --cluster, --session, --context or --server")
			case lf.shell && lf.session != "":
				return output.UsageErrorf("--shell and --session cannot be combined: a shell has a session of its own")
			case lf.shell && (lf.use || lf.dryRun || lf.auto):
				return output.UsageErrorf("--shell cannot be combined with --use, --auto or --dry-run: a shell has a separate kubeconfig")
			case lf.shell:
				return nil
			}
			return arguments(0, 0, "")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if lf.shell {
				return t.doShell(cmd.Context(), lf, false, args)
			}
			return t.doLogin(cmd.Context(), lf)
		},
	}
	t.roleFlags(cmd, &lf)
	t.signinFlags(cmd, &lf.signinFlags, loginClusterUsage, t.clusterNames)
	f := cmd.Flags()
	f.BoolVar(&lf.use, "use", false, "make this the current context")
	f.BoolVar(&lf.auto, "auto", false, "let kubectl sign in again automatically when the sign-in has ended")
	f.BoolVar(&lf.all, "all", false, "sign in to every cluster that this machine or its server knows")
	selectorFlag(cmd, &lf.selector, "sign in to all clusters")
	f.BoolVar(&lf.shell, "shell", false, `run a shell with the access, as "tka shell" does`)
	f.BoolVar(&lf.dryRun, "dry-run", false, "show the request and the changes, and do nothing")
	return cmd
}

const loginClusterUsage = "cluster to sign in to: a name that this machine or its server knows, or an id that the server knows"

// roleFlags adds the flags that say which access to ask for.
func (t *tka) roleFlags(cmd *cobra.Command, lf *loginFlags) {
	f := cmd.Flags()
	f.StringVar(&lf.role, "role", "", "granted role to sign in with (default: the one that the grants prefer)")
	f.StringVar(&lf.reason, "reason", "", "why you need the access; recorded, and shown to people who may see sign-ins")
	t.modeFlag(cmd, &lf.mode)
	f.DurationVar(&lf.period, "for", 0, "duration of the sign-in, such as 30m or 8h (default: the granted period of the role)")
	f.StringSliceVarP(&lf.namespaces, "namespace", "n", nil, "limit the role to this namespace; may be given several times")
}

// loginResult is the output of login.
type loginResult struct {
	meta
	Cluster           string   `json:"cluster"`
	Session           string   `json:"session,omitempty"`
	Server            string   `json:"server"` // the access server's URL
	Username          string   `json:"username"`
	Role              string   `json:"role"`
	Namespaces        []string `json:"namespaces"` // empty: the whole cluster, or as in Bind
	MissingNamespaces []string `json:"missingNamespaces"`

	Mode       signin.Mode   `json:"mode"`
	Bind       []signin.Role `json:"bind,omitempty"` // each role and where it applies, if there are several or a selector
	Until      string        `json:"until"`          // RFC 3339, UTC
	Clamped    bool          `json:"clamped"`
	Context    string        `json:"context"`
	Kubeconfig []string      `json:"kubeconfig"` // files that were changed
	Took       string        `json:"took"`       // Go duration
}

func (t *tka) doLogin(ctx context.Context, lf loginFlags) error {
	if err := lf.check(); err != nil {
		return err
	}
	set, err := t.settings()
	if err != nil {
		return err
	}
	if lf.all || lf.selector != "" {
		return t.loginAll(ctx, lf, set)
	}
	res, entry, err := t.loginTo(ctx, lf, set)
	if err != nil || lf.dryRun {
		return err
	}
	if !lf.refresh {
		t.enterShell(entry)
	}
	return t.showLogin(res)
}

// loginTo signs in to one cluster and writes the kubeconfig.
func (t *tka) loginTo(ctx context.Context, lf loginFlags, set *config.Settings) (res loginResult, entry kubeconfig.Entry, err error) {
	if _, err := t.readKubeconfigFiles(); err != nil { // before the first request
		return res, entry, err
	}
	t.dryRun = lf.dryRun
	l, err := t.connect(ctx, lf.cluster)
	if err != nil {
		return res, entry, err
	}
	if err := t.chooseSession(ctx, l, &lf); err != nil {
		return res, entry, err
	}
	if lf.dryRun {
		return res, entry, t.planLogin(l, lf, set)
	}
	if lf.refresh {
		if lf, err = t.repeatLogin(ctx, l, lf, set); err != nil {
			return res, entry, err
		}
	}
	began := t.Now()
	st, g, err := t.signIn(ctx, l, lf)
	if err != nil && st.Name != "" {
		err = stillSignedIn(err)
	}
	if err != nil {
		return res, entry, err
	}
	entry = t.kubeconfigEntry(set, g, st.Namespaces)
	if lf.auto && !entry.Proxy {
		entry.Args = append(entry.Args, signInFlag)
	}
	before := t.entryMode(entry.Signin)
	changed, err := t.editKubeconfig(ctx, func(k kubeconfig.Files) error { return t.mergeLogin(k, entry, l, lf.use) })
	if err != nil {
		return res, entry, stillSignedIn(err)
	}
	t.reportModeChange(l, entry, before)
	t.recordSignIn(ctx, l, st, g)
	res = loginResult{meta: newMeta("Login"), Cluster: g.Cluster, Session: string(g.Session), Server: l.Base, Username: st.Username, Role: st.Role, Namespaces: nonNil(st.Namespaces), Mode: g.Mode, Bind: st.Bind,
		MissingNamespaces: nonNil(st.MissingNamespaces), Until: accessEnd(st, g), Clamped: st.Clamped, Context: entry.Name, Kubeconfig: nonNil(changed),
		Took: t.Now().Sub(began).Round(time.Millisecond).String()}
	return res, entry, nil
}

// accessEnd returns the end of the access if the server reports it, and otherwise that of the sign-in.
func accessEnd(st signin.Status, g client.IssuedKubeconfig) string {
	if g.Until.IsZero() {
		return st.Until
	}
	return g.Until.UTC().Format(time.RFC3339)
}

// checkFor returns an error if the value of --for is negative; 0 is its default.
func checkFor(period time.Duration) error {
	if period < 0 {
		return output.UsageErrorf("--for must be greater than zero (got %v)", period)
	}
	return nil
}

func (lf loginFlags) check() error {
	if err := new(signin.Reason).UnmarshalText([]byte(lf.reason)); err != nil {
		return output.UsageErrorf("--reason: %v", err)
	}
	if err := checkFor(lf.period); err != nil {
		return err
	}
	if lf.auto && lf.mode == string(signin.ModeProxy) {
		return output.UsageErrorf("--auto needs --mode token: in the mode proxy, kubectl does not run tka")
	}
	return checkMode(lf.mode)
}

// signIn signs in and waits until the access is ready. On an error, the status has a name if the server created a sign-in nevertheless.
func (t *tka) signIn(ctx context.Context, l *client.Client, lf loginFlags) (signin.Status, client.IssuedKubeconfig, error) {
	session := signin.Session(lf.session)
	mode, err := modeFor(l, lf.mode)
	if err == nil && lf.auto && !lf.refresh && mode == signin.ModeProxy {
		err = output.UsageErrorf("--auto needs the mode token, and %s prefers the mode proxy, in which kubectl does not run tka", l.Info.Name).Try("Add --mode token, if the cluster offers it.")
	}
	if err != nil {
		return signin.Status{}, client.IssuedKubeconfig{}, err
	}
	accepted, err := client.CallUntilReady(ctx, l, signin.Login, func(time.Duration) signin.LoginRequest {
		if lf.request != "" {
			return signin.LoginRequest{Request: lf.request}
		}
		return signin.LoginRequest{Role: lf.role, Period: httpapi.Duration(lf.period), Namespaces: lf.namespaces, Session: session, Reason: signin.Reason(lf.reason)}
	})
	if problem.CodeOf(err) == problem.BadRequest && session != "" {
		err = t.explainNoSessions(ctx, l, err)
	}
	if err != nil && ctx.Err() != nil { // tka stopped waiting for the response
		err = output.AsError(err).Try("The server may have signed you in; to check or to end the sign-in: tka status, tka logout")
	}
	if err != nil {
		return signin.Status{}, client.IssuedKubeconfig{}, err
	}
	if accepted.Token != nil && mode == signin.ModeProxy {
		if mode, err = t.modeForToken(l, lf.mode); err != nil {
			return accepted.Status, client.IssuedKubeconfig{}, stillSignedIn(err)
		}
	}
	g, err := l.Access(ctx, session, mode)
	return accepted.Status, g, err
}

// modeForToken returns the mode for a sign-in that began with an OIDC token. The access proxy knows only the device of a connection, so it
// does not serve such sign-ins.
func (t *tka) modeForToken(l *client.Client, requested string) (signin.Mode, error) {
	if requested != "" || l.CheckMode(signin.ModeToken) != nil {
		return "", output.Errorf(output.ExitRefused, "The sign-in to %s began with an OIDC token, and the access proxy does not serve such sign-ins", l.Info.Name).
			Try("Use the mode token, if the cluster offers it: --mode token")
	}
	t.hint("The sign-in began with an OIDC token, which the access proxy does not serve, so the kubeconfig has the mode token.")
	return signin.ModeToken, nil
}

// explainNoSessions returns the error for a server that refused the name of a session, if it is of a version without sessions. tka never
// uses the default session instead, because that would elevate every terminal.
func (t *tka) explainNoSessions(ctx context.Context, l *client.Client, refused error) error {
	if _, err := client.Call(ctx, l, signin.ListSessions, signin.SessionsRequest{}); problem.CodeOf(err) != problem.NotFound {
		return refused
	}
	return output.Errorf(output.ExitRefused, "The server %s has the version %s, which has no sessions, so this role would reach every terminal of this device; tka did not sign in",
		l.Base, cmp.Or(l.Info.Version, "unknown")).Because(refused).
		Try("Ask an administrator to update the server to the version of this program, %s.", t.Build.Version).
		Try("To use the role in every terminal nevertheless: tka login --role ROLE, without a session")
}

// chooseSession gives a login with --role a session of its own if the role differs from the one that a login without it gives, so that
// other terminals keep their role. The session has the name of the role.
func (t *tka) chooseSession(ctx context.Context, l *client.Client, lf *loginFlags) error {
	if lf.role == "" || lf.session != "" || lf.refresh {
		return nil
	}
	who, err := client.Call(ctx, l, signin.GetWhoami, signin.WhoamiRequest{})
	if err != nil {
		return err
	}
	usual := ""
	if i := slices.IndexFunc(who.Rules, func(r signin.Rule) bool { return r.Chosen }); i >= 0 {
		usual = who.Rules[i].Role
	} else if s := who.Signin; s != nil && s.State != signin.Ended && s.State != signin.Ending {
		usual = s.Role // the grants prefer none, so the sign-in that other terminals use stays
	}
	if usual != "" && usual != lf.role {
		lf.session = sessionOfRole(lf.role)
	}
	return nil
}

// sessionOfRole returns the name of the session for a role: the role with each run of characters that a session cannot contain as one "-".
func sessionOfRole(role string) string {
	name := strings.Join(strings.FieldsFunc(strings.ToLower(role), func(r rune) bool { return (r < 'a' || r > 'z') && (r < '0' || r > '9') }), "-")
	if name = strings.Trim(name[:min(len(name), maxSessionName)], "-"); name == "" || name == "default" {
		return "role"
	}
	if _, err := signin.ParseSession(name); err != nil {
		return "role-" + name
	}
	return name
}

// maxSessionName is the length of a session that is named after a role, which leaves room for a prefix.
const maxSessionName = 58

// recordSignIn stores a sign-in, so that kubectl's plugin finds its server.
func (t *tka) recordSignIn(ctx context.Context, l *client.Client, st signin.Status, g client.IssuedKubeconfig) {
	t.forgetToken(l.Base, g.Cluster, g.Session) // it may have another role
	err := t.updateServer(ctx, l.Base, func(k *config.ServerRecord) {
		k.Cluster, k.Chosen = g.Cluster, true
		k.CASHA256, k.Login = fingerprint(l.Info.CAData), st.Username
		until, _ := time.Parse(time.RFC3339, accessEnd(st, g))
		k.SetSession(string(g.Session), config.SessionRecord{Role: cmp.Or(st.Rule, st.Role), Namespaces: st.Namespaces, Until: until}, t.Now())
	})
	if err != nil {
		t.warn("kubectl will look for %s at the server of the settings, because %v", g.Cluster, err)
	}
}

func (t *tka) showLogin(res loginResult) error {
	err := t.printResult(result{object: res, names: []string{res.Context}, table: func(bool) {
		session := ""
		if res.Session != "" {
			session = " in the session " + res.Session
		}
		t.printLine("Signed in to %s as %s with %s until %s%s, in %s.",
			res.Cluster, res.Username, describeAccess(res.Role, res.Namespaces, res.Bind), t.formatTime(res.Until), session, res.Took)
	}})
	if res.Session != "" {
		t.hint("Other terminals keep their sign-in. To end this one: tka logout --cluster %s --session %s", res.Cluster, res.Session)
	}
	if res.Clamped {
		t.hint("The server shortened the period to its maximum.")
	}
	if len(res.MissingNamespaces) > 0 {
		t.hint("These namespaces do not exist in this cluster: %s. The role applies to them as soon as they exist.", describeNamespaces(res.MissingNamespaces))
	}
	t.hint("Use it: kubectl --context %s get pods", res.Context)
	return err
}

// formatTime formats an RFC 3339 time for people.
func (t *tka) formatTime(rfc3339 string) string {
	at, err := time.Parse(time.RFC3339, rfc3339)
	if err != nil {
		return rfc3339
	}
	return fmt.Sprintf("%s (%s)", formatMinute(at), output.HumanDuration(at.Sub(t.Now())))
}

// formatMinute formats a time in the local zone for people.
func formatMinute(at time.Time) string { return at.Local().Format("2006-01-02 15:04") }

// mergeLogin writes the entries of a sign-in from a server.
func (t *tka) mergeLogin(k kubeconfig.Files, entry kubeconfig.Entry, l *client.Client, use bool) error {
	if err := t.checkSameCluster(entry, l); err != nil {
		return err
	}
	err := k.Merge(entry, use)
	other, ok := errors.AsType[*kubeconfig.ForeignEntryError](err)
	if !ok {
		return err
	}
	if other.Other.Cluster != "" {
		return output.Errorf(output.ExitFailed, "the kubeconfig is unchanged: %v", err).Because(err).
			Try("Use another session: --session NAME, or another file: --kubeconfig FILE")
	}
	return output.Errorf(output.ExitFailed, "the kubeconfig is unchanged: %v", err).Because(err).
		Try("Use another file: --kubeconfig FILE, or another prefix: tka config prefix NAME-").
		Try("If it is no longer needed: kubectl config delete-%s %s", other.Kind, other.Name)
}

// planLogin shows what login would do.
func (t *tka) planLogin(l *client.Client, lf loginFlags, set *config.Settings) error {
	info := l.Info
	entry, err := t.entryWithoutSignin(l, set, lf)
	if err != nil {
		return err
	}
	files, err := t.readKubeconfigFiles()
	if err != nil {
		return err
	}
	if err := t.mergeLogin(files, entry, l, lf.use); err != nil {
		return err
	}
	plan := struct {
		meta
		Cluster    string   `json:"cluster"`
		Server     string   `json:"server"`
		Role       string   `json:"role,omitempty"`
		Namespaces []string `json:"namespaces"`
		Context    string   `json:"context"`
		Kubeconfig []string `json:"kubeconfig"`
	}{newMeta("LoginPlan"), info.Name, l.Base, lf.role, nonNil(lf.namespaces), entry.Name, nonNil(files.Changed())}
	return t.printResult(result{object: plan, names: []string{entry.Name}, table: func(bool) {
		role := "the role that the grants prefer"
		if lf.role != "" {
			role = "the role " + lf.role
		}
		t.printLine("Would sign in to %s at %s with %s.", info.Name, l.Base, role)
		for _, f := range plan.Kubeconfig {
			t.printLine("Would write the context %s into %s.", entry.Name, f)
		}
	}})
}

// stillSignedIn adds to the error of a login that the person is signed in now.
func stillSignedIn(err error) error {
	f := output.AsError(err)
	if _, other := errors.AsType[*problem.Error](err); other || f.Code == output.ExitNotReady {
		return f // the server's response already describes the state
	}
	return f.Try("You are signed in nevertheless; to end the sign-in: tka logout")
}

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
	selectorFlag(cmd, &lf.selector, "extend the default session on all clusters that this machine signed in to")
	cmd.Flags().StringVar(&lf.reason, "reason", "", "why you still need the access (default: the reason of the sign-in)")
	cmd.Flags().DurationVar(&lf.period, "for", 0, "duration from now, such as 30m or 8h (default: the granted period of the role)")
	return t.signinFlags(cmd, &lf.signinFlags, "cluster; this machine or its server must know it", t.knownClusterNames)
}

// repeatLogin returns the flags that repeat the present sign-in, or else the last one.
func (t *tka) repeatLogin(ctx context.Context, l *client.Client, lf loginFlags, set *config.Settings) (loginFlags, error) {
	st, err := client.Call(ctx, l, signin.Read, signin.ReadRequest{Session: signin.Session(lf.session)})
	switch {
	case err == nil && st.State != signin.Ended && st.State != signin.Ending:
		lf.role, lf.namespaces, lf.reason = cmp.Or(st.Rule, st.Role), st.Namespaces, cmp.Or(lf.reason, st.RequestReason)
	case err == nil, notSignedIn(err):
		k, kerr := t.state()
		if kerr != nil {
			return lf, kerr
		}
		server, _ := k.Server(l.Base)
		last := server.Session(lf.session)
		lf.role, lf.namespaces = last.Role, last.Namespaces
	default:
		return lf, err
	}
	view, err := t.loadKubeconfig()
	if err != nil {
		return lf, err
	}
	entry, byTka := view.Entry(signin.ContextName(set.Prefix, l.Info.Name, signin.Session(lf.session)))
	lf.auto = slices.Contains(entry.Args, signInFlag)
	if mode := modeOf(entry); byTka && slices.Contains(l.Info.AccessModes(), mode) {
		lf.mode = string(mode)
	}
	return lf, nil
}
