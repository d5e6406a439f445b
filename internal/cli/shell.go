package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/cli/shellsession"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// keepFlags is whether the sign-in stays when a shell ends.
type keepFlags struct{ keep, revoke bool }

func (t *tka) shell() *cobra.Command {
	var lf loginFlags
	var k keepFlags
	cmd := &cobra.Command{
		Use:   "shell [-- COMMAND ARG...]",
		Short: "Run a shell or a command with the access, and sign out after it",
		Long: `Sign in, and run $SHELL or a command with a separate kubeconfig that contains only this
cluster. The kubeconfig that other programs use does not change.

When the shell ends, the sign-in ends too, if the shell started it. An earlier sign-in
continues. If several shells of this device use a sign-in, the last one ends it.
The exit code is that of the shell or command.`,
		Example: "  tka shell\n  tka shell --role edit --for 30m -- kubectl -n shop rollout restart deployment/web",
		Args: func(*cobra.Command, []string) error {
			if k.keep && k.revoke {
				return output.UsageErrorf("--keep and --revoke cannot be combined")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return t.doShell(cmd.Context(), lf, k, args) },
	}
	lf.flags(t, cmd)
	cmd.Flags().BoolVar(&k.keep, "keep", false, "keep the sign-in when the shell ends")
	cmd.Flags().BoolVar(&k.revoke, "revoke", false, "end the sign-in with the shell, even if it started earlier")
	cmd.Flags().SetInterspersed(false) // flags after the command belong to the command
	return cmd
}

// Time limits around a shell, which has none itself.
const (
	sessionLockWait = 15 * time.Second // for another shell that signs in or out
	revokeTimeout   = 10 * time.Second
)

// A shellRun is one shell from its sign-in to its end.
type shellRun struct {
	*tka
	keepFlags
	client    *client.Client
	session   *shellsession.Session
	signals   chan os.Signal
	signedIn  bool   // there is a sign-in to end or keep
	uncertain bool   // a sign-in may still appear: the login was interrupted
	until     string // the end of the sign-in, for people
	child     *exec.Cmd
}

// doShell signs in, runs the shell and signs out. It handles all signals of the program, so that every exit takes the same path.
func (t *tka) doShell(ctx context.Context, lf loginFlags, k keepFlags, command []string) error {
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
	l, err := t.connect(ctx, lf.cluster)
	if err != nil {
		return err
	}
	s := &shellRun{tka: t, keepFlags: k, client: l, signals: make(chan os.Signal, 8)}
	signal.Notify(s.signals, shellsession.Signals()...)
	defer signal.Stop(s.signals)
	if s.session, err = t.openSession(ctx, l.Base); err != nil {
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
func (t *tka) openSession(ctx context.Context, base string) (*shellsession.Session, error) {
	err := errors.New("neither $XDG_RUNTIME_DIR nor your home directory is known")
	for _, dir := range t.runtimeDirs() {
		var session *shellsession.Session
		if session, err = shellsession.Open(ctx, shellsDir(dir), base); err == nil {
			return session, nil
		}
	}
	return nil, output.Errorf(output.ExitFailed, "no directory for the shell's files: %v", err).Because(err).
		Try("Set $XDG_RUNTIME_DIR to a directory that you own.")
}

func shellsDir(run string) string { return filepath.Join(run, "shells") }

// keepSignin records that the person wants to keep the sign-in at a server. From then on, shells do not end it.
func (t *tka) keepSignin(base string) {
	for _, dir := range t.runtimeDirs() {
		if err := shellsession.KeepSignin(shellsDir(dir), base); err != nil {
			t.warn("a running shell may end this sign-in: %v", err)
		}
	}
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
	done, err := s.session.Lock(ctx, sessionLockWait)
	if err != nil {
		return entry, output.Errorf(output.ExitNotReady, "another shell is signing in or out: %v", err).Because(err).Try("Try again in a moment.")
	}
	defer done()
	have, err := client.Call(ctx, s.client, signin.Read, signin.ReadRequest{})
	existed := err == nil && have.State != signin.Ended && have.State != signin.Ending
	if code := problem.CodeOf(err); err != nil && code != problem.NotSignedIn && code != problem.CannotProvision {
		return entry, err
	}
	if !existed { // before the request, so that this shell ends the sign-in whatever happens
		if err := s.session.MarkSignin(); err != nil {
			return entry, output.Errorf(output.ExitFailed, "the shell's files cannot be written: %v", err).Because(err)
		}
	}
	st, access, err := s.tka.signIn(ctx, s.client, lf)
	s.uncertain = ctx.Err() != nil && st.Name == ""
	if p, ok := errors.AsType[*problem.Error](err); ok && st.Name == "" && output.ProblemExitCode(p.Code) == output.ExitRefused && !existed {
		s.keepSignin(s.client.Base) // no sign-in was created
	} else {
		s.signedIn = true
	}
	if err != nil {
		return entry, err
	}
	if _, err := s.readKubeconfigFiles(); err != nil { // report a broken kubeconfig now and not at a later login
		return entry, err
	}
	entry = s.kubeconfigEntry(set, access.Kubeconfig, st.Namespaces)
	if err := s.checkSameCluster(entry, s.client); err != nil {
		return entry, err
	}
	s.recordSignIn(ctx, s.client.Base, st, access)
	s.until = s.formatTime(tokenEnd(st, access))
	s.hint("Signed in to %s as %s with the role %s in %s until %s.", access.Cluster, st.Username, st.Role, describeNamespaces(st.Namespaces), s.until)
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
		start := shellsession.InteractiveStartup(program, prompt, s.session.Dir, home, s.Getenv("ZDOTDIR"))
		args, env, files = start.Args, append(env, start.Env...), start.Files
	}
	doc, err := entry.Document()
	if err != nil {
		return err
	}
	path := filepath.Join(s.session.Dir, "kubeconfig")
	err = os.WriteFile(path, doc, 0o600)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.session.Dir, name), []byte(text), 0o600))
	}
	if err != nil {
		return output.Errorf(output.ExitFailed, "the shell's files cannot be written: %v", err).Because(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(append(childEnv(), "KUBECONFIG="+path, "TKA_CLUSTER="+entry.Cluster), env...)
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

// childEnv returns the environment for child processes, without the variable that a shell's function set for tka alone.
func childEnv() (env []string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != shellsession.EvalFileEnv {
			env = append(env, v)
		}
	}
	return env
}

// finish removes the private directory and ends the sign-in, or explains why the sign-in continues. It reports whether all steps succeeded. It
// prints messages last, because the terminal may be gone.
func (s *shellRun) finish(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), sessionLockWait+revokeTimeout) // the command's time limit was for signing in
	defer cancel()
	s.dropSignals() // the child has ended, and these were for it
	ctx, quiet := s.interruptible(ctx, shellsession.EndsCleanup)
	defer quiet()
	done, lockErr := s.session.Lock(ctx, sessionLockWait)
	if lockErr == nil {
		defer done()
	}
	others, began, err := s.session.Close(ctx)
	until := cmp.Or(s.until, "it expires")
	show, message := s.hint, ""
	switch {
	case !s.signedIn:
	case s.keepFlags.keep:
		if others {
			s.keepSignin(s.client.Base)
		}
		message = "The sign-in continues until " + until + "."
	case s.keepFlags.revoke, began && !others:
		message = "Signed out."
		if revokeErr := s.endSignin(ctx); revokeErr != nil {
			err = errors.Join(err, revokeErr)
			show, message = s.warn, fmt.Sprintf("the sign-in continues until %s: %v; to end it: tka logout", until, revokeErr)
		}
	case others && began:
		message = "The sign-in continues: another shell uses it. The last shell ends it."
	default:
		message = "The sign-in continues until " + until + ", because it existed before the shell; to end it: tka logout"
	}
	if _, serr := os.Lstat(s.session.Dir); serr == nil {
		s.warn("%s could not be removed", s.session.Dir)
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

// endSignin revokes the sign-in.
func (s *shellRun) endSignin(ctx context.Context) error {
	s.client.Timeout = revokeTimeout
	var err error
	for attempt := 1; ; attempt++ {
		_, err = client.Call(ctx, s.client, signin.Logout, signin.LogoutRequest{Wait: httpapi.Duration(logoutWait)})
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
	s.forgetToken(s.client.Base, s.client.Info.Name)
	return err
}
