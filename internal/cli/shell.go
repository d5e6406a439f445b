package cli

import (
	"cmp"
	"context"
	"errors"
	"io/fs"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"runtime"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/kubefile"
	"github.com/tailplane/tailplane/internal/cli/link"
	"github.com/tailplane/tailplane/internal/cli/memory"
	"github.com/tailplane/tailplane/internal/cli/shellscript"
	"github.com/tailplane/tailplane/internal/cli/subshell"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// keeping is whether the sign-in stays when a shell ends.
type keeping struct{ keep, revoke bool }

func (t *tka) shell() *cobra.Command {
	var lf loginFlags
	var k keeping
	cmd := &cobra.Command{
		Use:   "shell [-- COMMAND ARG...]",
		Short: "Run a shell or a command that has the access, and sign out after it",
		Long: `Sign in, and run $SHELL or a command with a kubeconfig of its own, in which this cluster
is the only one. The kubeconfig that other programs use stays as it is.

When it ends, so does the sign-in, if the shell began it. A sign-in that was there before
goes on, and so does one that another shell of this device uses: the last one ends it.
The exit code is that of the shell or command.`,
		Example: "  tka shell\n  tka shell --role edit --for 30m -- kubectl -n shop rollout restart deployment/web",
		Args: func(*cobra.Command, []string) error {
			if k.keep && k.revoke {
				return fault.Usage("--keep and --revoke are opposites")
			}
			return nil
		},
		RunE: func(cmd *cobra.Command, args []string) error { return t.doShell(cmd.Context(), lf, k, args) },
	}
	lf.flags(t, cmd)
	cmd.Flags().BoolVar(&k.keep, "keep", false, "leave the sign-in as it is when the shell ends")
	cmd.Flags().BoolVar(&k.revoke, "revoke", false, "end the sign-in with the shell, even if it was there before")
	cmd.Flags().SetInterspersed(false) // flags after the command belong to the command
	return cmd
}

// Time limits around a shell, which has none itself.
const (
	turnWait   = 15 * time.Second // for another shell that signs in or out
	revokeTime = 10 * time.Second
)

// A shellRun is one shell from its sign-in to its end.
type shellRun struct {
	*tka
	keeping
	link    *link.Link
	room    *subshell.Room
	signals chan os.Signal
	signin  bool   // there is a sign-in to end or keep
	unsure  bool   // a sign-in may still appear: the login was interrupted
	until   string // the end of the sign-in, for people
	child   *exec.Cmd
}

// doShell signs in, runs the shell and signs out. It handles all signals of the program, so that every exit takes the same path.
func (t *tka) doShell(ctx context.Context, lf loginFlags, k keeping, command []string) error {
	if err := lf.check(); err != nil {
		return err
	}
	set, err := t.settings()
	if err != nil {
		return err
	}
	program, args, err := t.program(command)
	if err != nil {
		return err
	}
	l, err := t.connect(ctx, lf.cluster)
	if err != nil {
		return err
	}
	s := &shellRun{tka: t, keeping: k, link: l, signals: make(chan os.Signal, 8)}
	signal.Notify(s.signals, subshell.Signals()...)
	defer signal.Stop(s.signals)
	if s.room, err = t.openRoom(ctx, l.Base); err != nil {
		return err
	}
	began, quiet := s.interruptible(ctx)
	g, err := s.signIn(began, lf, set)
	if err == nil {
		err = s.furnish(t.entry(set, g.Kubeconfig, g.namespaces), program, args, len(command) == 0)
	}
	quiet()
	if err == nil {
		err = childFault(subshell.Run(s.child, s.signals, isTerminal(s.In)))
	}
	if !s.leave(ctx) && s.signin && s.child == nil {
		return stillSignedIn(err)
	}
	return err
}

// program returns what to run: the command, or the person's shell.
func (t *tka) program(command []string) (path string, args []string, err error) {
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
	f := fault.Usage("%s cannot be run: %v", name, why).Because(err)
	if len(command) == 0 {
		return "", nil, f.Try("Name the shell: tka shell -- SHELL")
	}
	return "", nil, f.Try("tka shell --help")
}

// openRoom creates the private folder in the first of the run folders that can hold it.
func (t *tka) openRoom(ctx context.Context, base string) (*subshell.Room, error) {
	err := errors.New("neither $XDG_RUNTIME_DIR nor your home folder is known")
	for _, dir := range t.runFolders() {
		var room *subshell.Room
		if room, err = subshell.Open(ctx, shellsFolder(dir), base); err == nil {
			return room, nil
		}
	}
	return nil, fault.New(fault.Failed, "there is no place for the shell's own files: %v", err).Because(err).
		Try("Set $XDG_RUNTIME_DIR to a folder of your own.")
}

func shellsFolder(run string) string { return filepath.Join(run, "shells") }

// keepSignin records that the person wants to keep the sign-in at a server. From then on, shells do not end it.
func (t *tka) keepSignin(base string) {
	for _, dir := range t.runFolders() {
		if err := subshell.Kept(shellsFolder(dir), base); err != nil {
			t.warn("a shell that is running may end this sign-in: %v", err)
		}
	}
}

// interruptible returns a context that ends at a signal, at the time limit, or when the returned function is called. It ignores the
// cancellation of ctx by the same signal: otherwise one signal would count twice, and the second time would interrupt the cleanup after the
// first.
func (s *shellRun) interruptible(ctx context.Context) (context.Context, func()) {
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
				if subshell.Ends(sig) {
					cancel()
				}
			case <-stop:
				return
			}
		}
	}()
	return ctx, func() { close(stop); <-stopped; cancel() }
}

// signIn signs in and records what must be ended later.
func (s *shellRun) signIn(ctx context.Context, lf loginFlags, set *memory.Settings) (g shellAccess, err error) {
	done, err := s.room.Turn(ctx, turnWait)
	if err != nil {
		return g, fault.New(fault.NotReady, "another shell is signing in or out: %v", err).Because(err).Try("Try again in a moment.")
	}
	defer done()
	have, err := link.Call(ctx, s.link, signin.Read, signin.ReadRequest{})
	existed := err == nil && have.State != signin.Ended && have.State != signin.Ending
	if p, ok := errors.AsType[*problem.Error](err); err != nil && !(ok && (p.Code == problem.NotSignedIn || p.Code == problem.CannotProvision)) {
		return g, err
	}
	if !existed { // before the request, so that this shell ends the sign-in whatever happens
		if err := s.room.Began(); err != nil {
			return g, fault.New(fault.Failed, "the shell's own files cannot be written: %v", err).Because(err)
		}
	}
	st, access, err := s.tka.signIn(ctx, s.link, lf)
	s.unsure = ctx.Err() != nil && st.Name == ""
	if p, ok := errors.AsType[*problem.Error](err); ok && st.Name == "" && fault.CodeOfRefusal(p.Code) == fault.Refused && !existed {
		s.keepSignin(s.link.Base) // no sign-in was created
	} else {
		s.signin = true
	}
	if err != nil {
		return g, err
	}
	_, err = s.editableKube() // report a broken kubeconfig now and not at a later login
	if err == nil {
		err = s.sameCluster(s.entry(set, access.Kubeconfig, nil), s.link)
	}
	if err != nil {
		return g, err
	}
	s.noteSignIn(ctx, s.link.Base, st, access)
	until := st.Until
	if !access.Until.IsZero() {
		until = access.Until.UTC().Format(time.RFC3339)
	}
	s.until = s.moment(until)
	s.hint("Signed in to %s as %s with the role %s in %s until %s.", access.Cluster, st.Username, st.Role, whole(st.Namespaces), s.until)
	return shellAccess{access, st.Namespaces}, nil
}

// shellAccess is the access that a shell runs with.
type shellAccess struct {
	link.Granted
	namespaces []string
}

// furnish fills the private folder and prepares the child process, without starting it.
func (s *shellRun) furnish(entry kubefile.Entry, program string, args []string, interactive bool) error {
	files := map[string]string{}
	prompt := shellscript.Prompt(entry.Cluster)
	env := []string{"PS1=" + prompt + cmp.Or(s.Getenv("PS1"), "$ ")}
	if interactive {
		home, err := s.home()
		if err != nil {
			return err
		}
		start := shellscript.Interactive(program, prompt, s.room.Folder, home, s.Getenv("ZDOTDIR"))
		args, env, files = start.Args, append(env, start.Env...), start.Files
	}
	doc, err := entry.Document()
	if err != nil {
		return err
	}
	path := filepath.Join(s.room.Folder, "kubeconfig")
	err = os.WriteFile(path, doc, 0o600)
	for name, text := range files {
		err = errors.Join(err, os.WriteFile(filepath.Join(s.room.Folder, name), []byte(text), 0o600))
	}
	if err != nil {
		return fault.New(fault.Failed, "the shell's own files cannot be written: %v", err).Because(err)
	}
	cmd := exec.Command(program, args...)
	cmd.Env = append(append(childEnviron(), "KUBECONFIG="+path, "TKA_CLUSTER="+entry.Cluster), env...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = s.In, s.Out, s.Err
	s.child = cmd
	return nil
}

// childFault converts the end of the child process into tka's error.
func childFault(code int, err error) error {
	if err != nil {
		return fault.New(fault.Failed, "The shell cannot be run: %v", err).Because(err).Try("tka shell --help")
	}
	return ended(code)
}

// childEnviron returns the environment for child processes, without the variable that a shell's function set for tka alone.
func childEnviron() (env []string) {
	for _, v := range os.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != shellscript.EvalFile {
			env = append(env, v)
		}
	}
	return env
}

// leave removes the private folder and ends the sign-in, or explains why the sign-in continues. It reports whether all steps succeeded. It
// prints messages last, because the terminal may be gone.
func (s *shellRun) leave(ctx context.Context) bool {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), turnWait+revokeTime) // the command's time limit was for signing in
	defer cancel()
	ctx, quiet := s.interruptible(ctx)
	defer quiet()
	done, terr := s.room.Turn(ctx, turnWait)
	if terr == nil {
		defer done()
	}
	others, began, err := s.room.Leave(ctx)
	until := cmp.Or(s.until, "it expires")
	var say func()
	switch {
	case !s.signin:
	case s.keeping.keep:
		if others {
			s.keepSignin(s.link.Base)
		}
		say = func() { s.hint("The sign-in goes on until %s.", until) }
	case s.keeping.revoke, began && !others:
		rerr := s.end(ctx)
		say = func() { s.hint("Signed out.") }
		if rerr != nil {
			err = errors.Join(err, rerr)
			say = func() { s.warn("the sign-in goes on until %s: %v; to end it: tka logout", until, rerr) }
		}
	case others && began:
		say = func() { s.hint("The sign-in goes on: another shell uses it. The last one ends it.") }
	default:
		say = func() { s.hint("The sign-in goes on until %s, as it was there before; to end it: tka logout", until) }
	}
	if _, serr := os.Lstat(s.room.Folder); serr == nil {
		s.warn("%s could not be removed", s.room.Folder)
	}
	if say != nil {
		say()
	}
	return err == nil
}

// An interrupted login may reach the cluster after the logout that follows it.
const (
	lateLooks = 4
	lateAfter = 400 * time.Millisecond
)

// end revokes the sign-in.
func (s *shellRun) end(ctx context.Context) error {
	s.link.Limit = revokeTime
	var err error
	for look := 1; ; look++ {
		_, err = link.Call(ctx, s.link, signin.Logout, signin.LogoutRequest{Wait: door.Duration(logoutWait)})
		p, ok := errors.AsType[*problem.Error](err)
		if !ok || p.Code != problem.NotSignedIn {
			break
		}
		err = nil // another program ended it, or it does not exist yet
		if !s.unsure || look == lateLooks {
			break
		}
		select {
		case <-time.After(lateAfter):
		case <-ctx.Done():
		}
	}
	s.forgetToken(s.link.Base, s.link.Info.Name)
	return err
}
