package cli

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/kubefile"
	"github.com/tailplane/tailplane/internal/cli/link"
	"github.com/tailplane/tailplane/internal/cli/memory"
	"github.com/tailplane/tailplane/internal/cli/reach"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// loginFlags are the flags of login.
type loginFlags struct {
	role       string
	period     time.Duration
	namespaces []string
	cluster    string
	use        bool
	dryRun     bool
	shell      bool
	auto       bool // the plugin may sign in without the person
	refresh    bool // repeat the present or last sign-in
	all        bool // every known cluster
}

func (t *tka) login() *cobra.Command {
	var lf loginFlags
	cmd := &cobra.Command{
		Use:     "login",
		Aliases: []string{"signin", "auth"},
		Short:   "Sign in to a cluster and make kubectl use it",
		Long: `Sign in to a cluster with the identity that the tailnet vouches for, wait until the
access is there, and write a cluster, a user and a context into the kubeconfig.

No token is written: kubectl runs "tka credential" whenever it needs one. Run login
again to extend a sign-in, or with --role to change the role.

A cluster that this machine does not know is looked for among those that its server knows
("tka clusters"); its server must prove that it has the key that it was met with. With --all
the exit code is 0 if all succeeded, the common one if all failed alike, and else 1.`,
		Example: `  tka login
  tka login --role edit --for 1h --namespace shop
  tka login --cluster prod-us
  tka login --server tka-staging --use`,
		Args: func(cmd *cobra.Command, args []string) error {
			switch {
			case lf.all && (lf.use || lf.dryRun || lf.shell || lf.cluster != "" || t.server != ""):
				return fault.Usage("--all goes with none of --use, --dry-run, --shell, --cluster and --server")
			case lf.shell && (lf.use || lf.dryRun || lf.auto):
				return fault.Usage("--shell goes with none of --use, --auto and --dry-run: a shell has a kubeconfig of its own")
			case lf.shell:
				return nil
			}
			return arguments(0, 0, "")(cmd, args)
		},
		RunE: func(cmd *cobra.Command, args []string) error {
			if lf.shell {
				return t.doShell(cmd.Context(), lf, keeping{}, args)
			}
			return t.doLogin(cmd.Context(), lf)
		},
	}
	lf.flags(t, cmd)
	f := cmd.Flags()
	f.BoolVar(&lf.use, "use", false, "make this the current context")
	f.BoolVar(&lf.auto, "auto", false, "let kubectl sign in again by itself when the sign-in has ended")
	f.BoolVar(&lf.all, "all", false, "sign in to every cluster that this machine or its server knows")
	f.BoolVar(&lf.shell, "shell", false, `run a shell that has the access, as "tka shell" does`)
	f.BoolVar(&lf.dryRun, "dry-run", false, "say what would be asked for and written, and do neither")
	return cmd
}

// flags adds the flags of a sign-in request.
func (lf *loginFlags) flags(t *tka, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&lf.role, "role", "", "role to sign in with, among those that are granted (default: the one that the grants prefer)")
	f.DurationVar(&lf.period, "for", 0, "how long, such as 30m or 8h (default: as long as the role is granted for)")
	f.StringSliceVarP(&lf.namespaces, "namespace", "n", nil, "namespace to narrow the role to; may be given several times")
	f.StringVar(&lf.cluster, "cluster", "", "cluster to sign in to: a name that this machine or its server knows, or an id that its server knows")
	t.complete(cmd, "cluster", t.clusterNames)
}

// loginResult is the output of login.
type loginResult struct {
	meta
	Cluster           string   `json:"cluster"`
	Server            string   `json:"server"` // the access server's URL
	Username          string   `json:"username"`
	Role              string   `json:"role"`
	Namespaces        []string `json:"namespaces"` // empty: the whole cluster
	MissingNamespaces []string `json:"missingNamespaces"`
	Until             string   `json:"until"` // RFC 3339, UTC
	Clamped           bool     `json:"clamped"`
	Context           string   `json:"context"`
	Kubeconfig        []string `json:"kubeconfig"` // files that were changed
	Took              string   `json:"took"`       // Go duration
}

func (t *tka) doLogin(ctx context.Context, lf loginFlags) error {
	if err := lf.check(); err != nil {
		return err
	}
	set, err := t.settings()
	if err != nil {
		return err
	}
	if lf.all {
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
func (t *tka) loginTo(ctx context.Context, lf loginFlags, set *memory.Settings) (res loginResult, entry kubefile.Entry, err error) {
	if _, err := t.editableKube(); err != nil { // before the first request
		return res, entry, err
	}
	t.dry = lf.dryRun
	l, err := t.connect(ctx, lf.cluster)
	if err != nil {
		return res, entry, err
	}
	if lf.dryRun {
		return res, entry, t.planLogin(l, lf, set)
	}
	if lf.refresh {
		if lf, err = t.again(ctx, l, lf, set); err != nil {
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
	entry = t.entry(set, g.Kubeconfig, st.Namespaces)
	if lf.auto {
		entry.Args = append(entry.Args, signInFlag)
	}
	changed, err := t.editKube(ctx, func(k kubefile.Files) error { return t.mergeLogin(k, entry, l, lf.use) })
	if err != nil {
		return res, entry, stillSignedIn(err)
	}
	t.noteSignIn(ctx, l.Base, st, g)
	if !lf.refresh {
		t.keepSignin(l.Base)
	}
	res = loginResult{meta: kind("Login"), Cluster: g.Cluster, Server: l.Base, Username: st.Username, Role: st.Role, Namespaces: list(st.Namespaces),
		MissingNamespaces: list(st.MissingNamespaces), Until: st.Until, Clamped: st.Clamped, Context: entry.Name, Kubeconfig: list(changed),
		Took: t.Now().Sub(began).Round(time.Millisecond).String()}
	if !g.Until.IsZero() {
		res.Until = g.Until.UTC().Format(time.RFC3339)
	}
	return res, entry, nil
}

func (lf loginFlags) check() error {
	if lf.period < 0 {
		return fault.Usage("--for is %v; it must be more than nothing", lf.period)
	}
	return nil
}

// signIn signs in and waits until the access is ready. On an error, the status has a name if the server created a sign-in nevertheless.
func (t *tka) signIn(ctx context.Context, l *link.Link, lf loginFlags) (signin.Status, link.Granted, error) {
	accepted, err := link.Patiently(ctx, l, signin.Login, func(time.Duration) signin.LoginRequest {
		return signin.LoginRequest{Role: lf.role, Period: door.Duration(lf.period), Namespaces: lf.namespaces}
	})
	if err != nil && ctx.Err() != nil { // tka stopped waiting for the response
		err = perhapsSignedIn(err)
	}
	if err != nil {
		return signin.Status{}, link.Granted{}, err
	}
	g, err := l.Kubeconfig(ctx)
	if err != nil {
		return accepted.Status, link.Granted{}, err
	}
	return accepted.Status, g, nil
}

// noteSignIn stores a sign-in, so that kubectl's plugin finds its server.
func (t *tka) noteSignIn(ctx context.Context, base string, st signin.Status, g link.Granted) {
	t.forgetToken(base, g.Cluster) // it may have another role
	err := t.remember(ctx, base, func(k *memory.Known) {
		k.Cluster, k.Chosen = g.Cluster, true
		k.CASHA256, k.Login, k.Role, k.Namespaces = fingerprint(g.CA), st.Username, st.Role, st.Namespaces
	})
	if err != nil {
		t.warn("kubectl will look for %s at the server of the settings, as %v", g.Cluster, err)
	}
}

func (t *tka) showLogin(res loginResult) error {
	err := t.show(answer{object: res, names: []string{res.Context}, table: func(bool) {
		fmt.Fprintln(t.Out, screen.Safe(fmt.Sprintf("Signed in to %s as %s with the role %s in %s until %s, in %s.",
			res.Cluster, res.Username, res.Role, whole(res.Namespaces), t.moment(res.Until), res.Took)))
	}})
	if res.Clamped {
		t.hint("The period was cut to the longest that the server gives.")
	}
	if len(res.MissingNamespaces) > 0 {
		t.hint("Not there in this cluster: %s. The role holds in them as soon as they are made.", whole(res.MissingNamespaces))
	}
	t.hint("Use it: kubectl --context %s get pods", res.Context)
	return err
}

// moment formats an RFC 3339 time for people.
func (t *tka) moment(rfc3339 string) string {
	at, err := time.Parse(time.RFC3339, rfc3339)
	if err != nil {
		return rfc3339
	}
	return fmt.Sprintf("%s (%s)", minute(at), screen.Short(at.Sub(t.Now())))
}

// minute formats a time in the local zone for people.
func minute(at time.Time) string { return at.Local().Format("2006-01-02 15:04") }

// mergeLogin writes the entries of a sign-in from a server.
func (t *tka) mergeLogin(k kubefile.Files, entry kubefile.Entry, l *link.Link, use bool) error {
	if err := t.sameCluster(entry, l); err != nil {
		return err
	}
	err := k.Merge(entry, use)
	other, ok := errors.AsType[*kubefile.NotOurs](err)
	if !ok {
		return err
	}
	return fault.New(fault.Failed, "the kubeconfig is left alone: %v", err).Because(err).
		Try("Use another file: --kubeconfig FILE, or another prefix: tka config prefix NAME-").
		Try("If it is a remainder: kubectl config delete-%s %s", other.What, other.Name)
}

// sameCluster refuses a server whose cluster has the name of one that this machine knows from another server with another key or authority.
// Otherwise commands meant for one cluster would go to the other.
func (t *tka) sameCluster(entry kubefile.Entry, l *link.Link) error {
	machine, err := t.known()
	if err != nil {
		return err
	}
	other, ok := machine.Serving(entry.Cluster)
	if !ok || !other.Chosen || other.URL == l.Base {
		return nil
	}
	what := "key"
	if other.Key.IsZero() || other.Key == l.Key {
		what = "certificate authority"
		view, err := t.readKube()
		if err != nil || view.SameCA(entry.Name, entry.CA) {
			return err
		}
	}
	return fault.New(fault.Refused, "The server %s says that its cluster is %s, and so does %s, with another %s", l.Base, entry.Cluster, other.URL, what).
		Try("If it moved, sign out there and forget it: tka logout --server %s; tka config --forget-server %s", screen.Word(other.URL), screen.Word(other.URL)).
		Try("To have both: --kubeconfig FILE, or another prefix: tka config prefix NAME-")
}

// planLogin shows what login would do.
func (t *tka) planLogin(l *link.Link, lf loginFlags, set *memory.Settings) error {
	info := l.Info
	k := signin.Kubeconfig{Cluster: info.Name, Server: info.ServerURL, CA: info.CAData, InsecureSkipTLSVerify: info.InsecureSkipTLSVerify, Token: signin.NewToken("none")}
	if err := reach.CheckKubeconfig(k); err != nil {
		return l.BadAnswer("cluster-info", err)
	}
	files, err := t.editableKube()
	if err != nil {
		return err
	}
	entry := t.entry(set, k, lf.namespaces)
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
	}{kind("LoginPlan"), info.Name, l.Base, lf.role, list(lf.namespaces), entry.Name, list(files.Changed())}
	return t.show(answer{object: plan, names: []string{entry.Name}, table: func(bool) {
		role := "the role that the grants prefer"
		if lf.role != "" {
			role = "the role " + lf.role
		}
		fmt.Fprintln(t.Out, screen.Safe(fmt.Sprintf("Would sign in to %s at %s with %s.", info.Name, l.Base, role)))
		for _, f := range plan.Kubeconfig {
			fmt.Fprintln(t.Out, screen.Safe(fmt.Sprintf("Would write the context %s into %s.", entry.Name, f)))
		}
	}})
}

// stillSignedIn adds to the fault of a login that the person is signed in now.
func stillSignedIn(err error) error {
	f := fault.As(err)
	if _, theirs := errors.AsType[*problem.Error](err); theirs || f.Code == fault.NotReady {
		return f // the server's response already describes the state
	}
	return f.Try("You are signed in all the same; to end it: tka logout")
}

// perhapsSignedIn adds to the fault of a login without a response that the server may have created a sign-in.
func perhapsSignedIn(err error) error {
	return fault.As(err).Try("The server may have signed you in; to see, or to end it: tka status, tka logout")
}

// entry returns the kubeconfig entry for k.
func (t *tka) entry(set *memory.Settings, k signin.Kubeconfig, namespaces []string) kubefile.Entry {
	e := kubefile.Entry{Cluster: k.Cluster, Name: set.Prefix + k.Cluster, Server: k.Server, CA: k.CA, Command: t.plugin(), Args: kubefile.PluginArgs(k.Cluster)}
	switch {
	case k.Namespace == "":
	case len(namespaces) > 0:
		e.Namespaces = append([]string{k.Namespace}, namespaces...)
	default:
		e.Namespaces = []string{k.Namespace}
	}
	if t.config != "" {
		if path, err := filepath.Abs(t.config); err == nil {
			e.Args = append(e.Args, "--config", path)
		}
	}
	return e
}

// plugin returns the command with which kubectl runs tka: its name if it is in PATH, and otherwise its full path.
func (t *tka) plugin() string {
	for _, name := range []string{"tka", "kubectl-tka"} {
		if _, err := exec.LookPath(name); err == nil {
			return name
		}
	}
	self, err := os.Executable()
	if err != nil || strings.HasPrefix(kubefile.ProgramName(self), "kubectl_complete") {
		return "tka"
	}
	t.hint("tka is not in PATH, so the kubeconfig names it as %s.", self)
	return self
}

// list returns s; never null in JSON.
func list(s []string) []string { return append([]string{}, s...) }
