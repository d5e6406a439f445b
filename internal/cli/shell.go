package cli

import (
	"cmp"
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/cli/shellsession"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
)

func (t *tka) shell() *cobra.Command {
	var lf loginFlags
	var keep bool
	cmd := &cobra.Command{
		Use:   "shell [-- COMMAND ARG...]",
		Short: "Run a shell or a command with the access, and sign out after it",
		Long: `Sign in with a session of its own, and run $SHELL or a command with a separate kubeconfig that
contains only this cluster. Only this shell has the role. Other terminals, their sign-ins and
the kubeconfig that other programs use do not change.

When the shell ends, its sign-in ends too. The exit code is that of the shell or command.

With --request, use an approved access request: its role is only in this shell. A used request
cannot be used again, so tka asks at the end of the shell whether to end it.`,
		Example: "  tka shell\n  tka shell --request req-7f3a9c0b1d2e4f566778\n  tka shell --role edit --for 30m -- kubectl -n shop rollout restart deployment/web",
		Args:    cobra.ArbitraryArgs,
		RunE:    func(cmd *cobra.Command, args []string) error { return t.doShell(cmd.Context(), lf, keep, args) },
	}
	t.roleFlags(cmd, &lf)
	t.clusterFlag(cmd, &lf.cluster, loginClusterUsage, t.clusterNames)
	cmd.Flags().StringVar(&lf.request, "request", "", "id of your approved access request to use, instead of a role")
	if err := cmd.RegisterFlagCompletionFunc("request", func(cmd *cobra.Command, _ []string, part string) ([]cobra.Completion, cobra.ShellCompDirective) {
		return t.completeRequests(&lf.cluster)(cmd, nil, part)
	}); err != nil {
		panic(err) // the flag does not exist: a bug in the program
	}
	cmd.Flags().BoolVar(&keep, "keep", false, "keep the session until it expires")
	cmd.Flags().Bool("revoke", true, "end the session with the shell, which it always does")
	_ = cmd.Flags().MarkHidden("revoke") // earlier versions kept a sign-in that existed before the shell
	cmd.Flags().SetInterspersed(false)   // flags after the command belong to the command
	return cmd
}

// Time limits at the end of a shell, which has none itself.
const (
	cleanupTimeout = 15 * time.Second
	revokeTimeout  = 10 * time.Second // at one server
	askTimeout     = time.Minute      // for the person's answer whether to end the access
)

// A shellRun is one shell from its sign-in to its end.
type shellRun struct {
	*tka
	keep      bool
	byRequest bool // the sign-in uses an access request
	client    *client.Client
	session   signin.Session
	dir       *shellsession.Session
	signals   chan os.Signal
	signedIn  bool   // there is a sign-in to end or keep
	uncertain bool   // a sign-in may still appear: the login was interrupted
	until     string // the end of the sign-in, for people
	child     *exec.Cmd
}

// doShell signs in, runs the shell and signs out. It handles all signals of the program, so that every exit takes the same path.
func (t *tka) doShell(ctx context.Context, lf loginFlags, keep bool, command []string) error {
	if err := lf.check(); err != nil {
		return err
	}
	set, err := t.settings()
	if err != nil {
		return err
	}
	program, args, err := t.shellProgram(command)
	if err != nil {
		return err
	}
	l, session, err := t.shellSession(ctx, &lf)
	if err != nil {
		return err
	}
	s := &shellRun{tka: t, keep: keep, client: l, session: session, byRequest: lf.request != "", signals: make(chan os.Signal, 8)}
	lf.session = string(s.session)
	signal.Notify(s.signals, shellsession.Signals()...)
	defer signal.Stop(s.signals)
	if s.dir, err = t.openSession(ctx); err != nil {
		return err
	}
	began, quiet := s.interruptible(ctx, shellsession.EndsOperation)
	entry, err := s.signIn(began, lf, set)
	if err == nil {
		err = s.prepareChild(entry, program, args, len(command) == 0)
	}
	quiet()
	if err == nil {
		err = childError(shellsession.Run(s.child, s.signals, isTerminal(s.In)))
	}
	if !s.finish(ctx) && s.signedIn && s.child == nil {
		return stillSignedIn(err)
	}
	return err
}

// shellSession returns the client and the session of a shell: a new one, or that of the access request.
func (t *tka) shellSession(ctx context.Context, lf *loginFlags) (*client.Client, signin.Session, error) {
	if lf.request == "" {
		l, err := t.connect(ctx, lf.cluster)
		return l, newShellSession(), err
	}
	if lf.role != "" || lf.period != 0 || len(lf.namespaces) > 0 || lf.reason != "" {
		return nil, "", output.UsageErrorf("--request cannot be combined with --role, --for, --namespace or --reason: the request has them")
	}
	l, v, err := t.findRequest(ctx, lf.cluster, lf.request, 1)
	lf.request = v.ID
	return l, signin.Session(v.ID), err
}

// newShellSession returns a session that no other shell of this device has.
func newShellSession() signin.Session {
	return signin.Session("shell-" + strings.ToLower(rand.Text()[:8]))
}

// shellProgram returns what to run: the command, or the person's shell.
func (t *tka) shellProgram(command []string) (path string, args []string, err error) {
	name := cmp.Or(t.Getenv("SHELL"), "/bin/sh")
	if runtime.GOOS == "windows" {
		name = cmp.Or(t.Getenv("SHELL"), t.Getenv("COMSPEC"), "powershell.exe")
	}
	if len(command) > 0 {
		name, args = command[0], command[1:]
	}
	path, err = exec.LookPath(name)
	if err == nil {
		return path, args, nil
	}
	why := err
	if e, ok := errors.AsType[*exec.Error](err); ok {
		why = e.Err
	} else if e, ok := errors.AsType[*fs.PathError](err); ok {
		why = e.Err
	}
	f := output.UsageErrorf("%s cannot be run: %v", name, why).Because(err)
	if len(command) == 0 {
		return "", nil, f.Try("Select a shell: tka shell -- SHELL")
	}
	return "", nil, f.Try("tka shell --help")
}

// openSession creates the private directory in the first of the run directories that can hold it.
func (t *tka) openSession(ctx context.Context) (*shellsession.Session, error) {
	err := errors.New("neither $XDG_RUNTIME_DIR nor your home directory is known")
	for _, dir := range t.runtimeDirs() {
		var session *shellsession.Session
		if session, err = shellsession.Open(ctx, filepath.Join(dir, "shells")); err == nil {
			return session, nil
		}
	}
	return nil, output.Errorf(output.ExitFailed, "no directory for the shell's files: %v", err).Because(err).
		Try("Set $XDG_RUNTIME_DIR to a directory that you own.")
}

// interruptible returns a context that ends at a signal for which ends returns true, at the time limit, or when the returned function is
// called. It ignores the cancellation of ctx by the same signal: otherwise one signal would count twice, and the second time would interrupt
// the cleanup after the first.
func (s *shellRun) interruptible(ctx context.Context, ends func(os.Signal) bool) (context.Context, func()) {
	deadline, limited := ctx.Deadline()
	if !limited {
		deadline = time.Now().Add(defaultTimeout)
	}
	ctx, cancel := context.WithDeadline(context.WithoutCancel(ctx), deadline)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		for {
			select {
			case sig := <-s.signals:
				if ends(sig) {
					cancel()
				}
			case <-stop:
				return
			}
		}
	}()
	return ctx, func() { close(stop); <-stopped; cancel() }
}

// dropSignals discards the signals that Run has not read.
func (s *shellRun) dropSignals() {
	for {
		select {
		case <-s.signals:
		default:
			return
		}
	}
}

// signIn signs in, records what must be ended later, and returns the entry of the shell's kubeconfig.
func (s *shellRun) signIn(ctx context.Context, lf loginFlags, set *config.Settings) (entry kubeconfig.Entry, err error) {
	st, access, err := s.tka.signIn(ctx, s.client, lf)
	s.uncertain = ctx.Err() != nil && st.Name == ""
	s.signedIn = st.Name != "" || output.ExitCode(err) != output.ExitRefused // after a refusal, there is no sign-in
	if err != nil {
		return entry, err
	}
	if _, err := s.readKubeconfigFiles(); err != nil { // report a broken kubeconfig now and not at a later login
		return entry, err
	}
	entry = s.kubeconfigEntry(set, access, st.Namespaces)
	if err := s.checkSameCluster(entry, s.client); err != nil {
		return entry, err
	}
	s.recordSignIn(ctx, s.client, st, access)
	s.until = s.formatTime(accessEnd(st, access))
	s.hint("Signed in to %s as %s with %s until %s.", access.Cluster, st.Username, describeAccess(st.Role, st.Namespaces, st.Bind), s.until)
	return entry, nil
}

// prepareChild fills the private directory and prepares the child process, without starting it.
func (s *shellRun) prepareChild(entry kubeconfig.Entry, program string, args []string, interactive bool) error {
	files := map[string]string{}
	prompt := shellsession.Prompt(entry.Cluster)
	env := []string{"PS1=" + prompt + cmp.Or(s.Getenv("PS1"), "$ ")}
	if interactive {
		home, err := s.homeDir()
		if err != nil {
			return err
		}
		start := shellsession.InteractiveStartup(program, prompt, s.dir.Dir, home, s.Getenv("ZDOTDIR"))
		args, env, files = start.Args, append(env, start.Env...), start.Files
	}
	doc, err := kubeconfig.Document(entry)
	if err != nil {
		return err
	}
	path := filepath.Join(s.dir.Dir, "kubeconfig")
	err = os.WriteFile(path, doc, 0o600)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.dir.Dir, name), []byte(text), 0o600))
	}
	if err != nil {
		return output.Errorf(output.ExitFailed, "the shell's files cannot be written: %v", err).Because(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(append(childEnv(), "KUBECONFIG="+path, clusterEnv+"="+entry.Cluster, sessionEnv+"="+entry.Session), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.Err
	s.child = cmd
	return nil
}

// childError converts the end of the child process into tka's error.
func childError(code int, err error) error {
	if err != nil {
		return output.Errorf(output.ExitFailed, "The shell cannot be run: %v", err).Because(err).Try("tka shell --help")
	}
	return exitError(code)
}

// childEnv returns the environment for child processes, without the variables that a shell's function set for tka alone and that select
// another sign-in.
func childEnv() (env []string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); !slices.Contains([]string{shellsession.EvalFileEnv, serverEnv, clusterEnv, sessionEnv}, name) {
			env = append(env, v)
		}
	}
	return env
}

// finish removes the private directory and ends the sign-in, or explains why the sign-in continues. It reports whether all steps succeeded. It
// prints messages last, because the terminal may be gone.
func (s *shellRun) finish(ctx context.Context) bool {
	if s.byRequest && s.child == nil { // nothing has run yet, and a request is used once: it can be joined again
		s.keep = true
	}
	if s.byRequest && s.signedIn && !s.keep && isTerminal(s.In) {
		asking, cancel := context.WithTimeout(context.WithoutCancel(ctx), askTimeout)
		s.keep = s.confirm(asking, "End the access now? The approval is used up.", "--keep") != nil
		cancel()
	}
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), cleanupTimeout) // the command's time limit was for signing in
	defer cancel()
	s.dropSignals() // the child has ended, and these were for it
	ctx, quiet := s.interruptible(ctx, shellsession.EndsCleanup)
	defer quiet()
	err := s.dir.Close()
	until := cmp.Or(s.until, "it expires")
	toEnd := "tka logout " + signinFlags{s.client.Info.Name, string(s.session)}.String()
	show, message := s.hint, ""
	switch {
	case !s.signedIn:
	case s.keep:
		message = "The sign-in continues until " + until + "; to end it: " + toEnd
	default:
		message = "Signed out."
		if revokeErr := s.endSignin(ctx); revokeErr != nil {
			err = errors.Join(err, revokeErr)
			show, message = s.warn, fmt.Sprintf("the sign-in continues until %s: %v; to end it: %s", until, revokeErr, toEnd)
		}
	}
	if _, serr := os.Lstat(s.dir.Dir); serr == nil {
		s.warn("%s could not be removed", s.dir.Dir)
	}
	if message != "" {
		show("%s", message)
	}
	return err == nil
}

// An interrupted login may reach the cluster after the logout that follows it.
const (
	maxLateLogouts  = 4
	lateLogoutDelay = 400 * time.Millisecond
)

// endSignin revokes the sign-in. If its server does not answer, another server of the cluster revokes it. The first one that it tries is the
// one that this machine last signed in to.
func (s *shellRun) endSignin(ctx context.Context) error {
	servers := append([]replica{{base: s.client.Base}}, s.replicas(s.client)...)
	if k, err := s.state(); err == nil {
		if last, ok := k.ServerOf(s.client.Info.Name); ok {
			if i := slices.IndexFunc(servers, func(r replica) bool { return r.base == last.URL }); i > 0 {
				servers[0], servers[i] = servers[i], servers[0]
			}
		}
	}
	var err error
	for _, r := range servers {
		if err = s.endSigninAt(ctx, r); output.ExitCode(err) != output.ExitUnreachable && output.ExitCode(err) != output.ExitNotReady {
			break
		}
	}
	return err
}

// endSigninAt revokes the sign-in at one server.
func (s *shellRun) endSigninAt(ctx context.Context, r replica) (err error) {
	ctx, cancel := context.WithTimeout(ctx, revokeTimeout)
	defer cancel()
	l := s.client
	if r.base != l.Base {
		l = s.replicaClient(r, s.client)
		if err := s.verify(ctx, l, s.client.Info.Name); err != nil && l.Denied == nil { // any caller may end their sign-in, even without a grant
			return err
		}
	}
	l.Timeout = revokeTimeout
	for attempt := 1; ; attempt++ {
		_, err = client.Call(ctx, l, signin.Logout, signin.LogoutRequest{Session: s.session, Wait: httpapi.Duration(logoutWait)})
		if !notSignedIn(err) {
			break
		}
		err = nil // another program ended it, or it does not exist yet
		if !s.uncertain || attempt == maxLateLogouts {
			break
		}
		select {
		case <-time.After(lateLogoutDelay):
		case <-ctx.Done():
		}
	}
	for _, base := range slices.Compact([]string{s.client.Base, l.Base}) {
		s.forgetToken(base, s.client.Info.Name, s.session)
		if err == nil {
			s.forgetSession(ctx, base, string(s.session))
		}
	}
	return err
}
