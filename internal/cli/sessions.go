package cli

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os/exec"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/cli/shellscript"
)

// What administrators see and end is in the cluster, and they reach it as
// themselves: by kubectl, with their own kubeconfig.
const (
	signinsResource  = "tkasignins.tailplane.dev"
	signinsNamespace = "tailplane-signins" // where an installation keeps them
	mostSignins      = 256 << 20           // bytes of a list
)

// adminFlags say which cluster an administrator means.
type adminFlags struct {
	context   string
	namespace string
}

func (af *adminFlags) flags(t *tka, cmd *cobra.Command) {
	f := cmd.Flags()
	f.StringVar(&af.context, "context", "", "context of the kubeconfig (default: the current one)")
	f.StringVarP(&af.namespace, "namespace", "n", signinsNamespace, "namespace of the sign-ins")
}

func (t *tka) sessions() *cobra.Command {
	var af adminFlags
	var login string
	cmd := &cobra.Command{
		Use:   "sessions",
		Short: "List everybody's sign-ins (for administrators)",
		Long: `List the sign-ins of everybody in a cluster. It runs kubectl with your own kubeconfig: you
need the right to list tkasignins there, and no sign-in by tka.`,
		Example: "  tka sessions\n  tka sessions --context admin@prod-eu --login alice@example.com -o wide",
		Args:    arguments(0, 0, ""),
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doSessions(cmd.Context(), af, login) },
	}
	af.flags(t, cmd)
	cmd.Flags().StringVar(&login, "login", "", "only the sign-ins of this login")
	return cmd
}

func (t *tka) revoke() *cobra.Command {
	var af adminFlags
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "revoke NAME|LOGIN",
		Short: "End somebody's sign-ins (for administrators)",
		Long: `End one sign-in by its name, or all sign-ins of a login. It runs kubectl with your own
kubeconfig: you need the right to list and delete tkasignins there.

The rights are gone at once and the token is refused within 10 seconds. Whoever still has
a grant can sign in again: to prevent that, take the grant out of the tailnet's policy.`,
		Example: "  tka revoke alice@example.com\n  tka revoke --yes alice-example-com-0f3c9a1b2d4e5f607182",
		Args:    arguments(1, 1, "the name of a sign-in, or a login"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.doRevoke(cmd.Context(), af, args[0], yes, dryRun)
		},
	}
	af.flags(t, cmd)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not ask")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "say which would be ended, and end none")
	return cmd
}

// A session is a sign-in as the cluster has it.
type session struct {
	Name       string   `json:"name"`
	Login      string   `json:"login"`
	Device     string   `json:"device"`
	Role       string   `json:"role"`
	Namespaces []string `json:"namespaces"` // none: the whole cluster
	Phase      string   `json:"phase"`
	Until      string   `json:"until"` // RFC 3339; "": not provisioned
	Since      string   `json:"since"`
	Revoked    bool     `json:"revoked,omitempty"`
	Error      string   `json:"error,omitempty"`
}

type sessionList struct {
	meta
	Items []session `json:"items"`
}

// listSessions asks kubectl for all sign-ins.
func (t *tka) listSessions(ctx context.Context, af adminFlags) ([]session, error) {
	text, err := t.kubectl(ctx, af, "get", signinsResource, "--output", "json")
	if err != nil {
		return nil, err
	}
	var list struct {
		Items []struct {
			Metadata struct {
				Name              string
				CreationTimestamp string
			}
			Spec struct {
				User       struct{ Login string }
				Device     struct{ Name string }
				Role       string
				Namespaces []string
			}
			Status struct {
				Phase      string
				Role       string
				Namespaces []string
				ValidUntil string
			}
		}
	}
	if err := json.Unmarshal(text, &list); err != nil {
		return nil, fault.New(fault.Failed, "kubectl did not list sign-ins: %v", err).Because(err).Try("kubectl get %s -n %s -o json", signinsResource, screen.Word(cmp.Or(af.namespace, signinsNamespace)))
	}
	all := []session{}
	for _, i := range list.Items {
		s := session{Name: i.Metadata.Name, Login: i.Spec.User.Login, Device: i.Spec.Device.Name, Role: i.Status.Role, Namespaces: i.Status.Namespaces,
			Phase: cmp.Or(i.Status.Phase, "Pending"), Until: i.Status.ValidUntil, Since: i.Metadata.CreationTimestamp}
		if s.Role == "" { // nothing is bound yet: what was asked for
			s.Role, s.Namespaces = i.Spec.Role, i.Spec.Namespaces
		}
		s.Namespaces = append([]string{}, s.Namespaces...)
		all = append(all, s)
	}
	slices.SortFunc(all, func(a, b session) int { return cmp.Or(cmp.Compare(a.Login, b.Login), cmp.Compare(a.Name, b.Name)) })
	return all, nil
}

func (t *tka) doSessions(ctx context.Context, af adminFlags, login string) error {
	all, err := t.listSessions(ctx, af)
	if err != nil {
		return err
	}
	if login != "" {
		all = slices.DeleteFunc(all, func(s session) bool { return s.Login != login })
	}
	return t.showSessions(sessionList{kind("SessionList"), all})
}

func (t *tka) showSessions(l sessionList) error {
	var names []string
	for _, s := range l.Items {
		names = append(names, "tkasignin/"+s.Name)
	}
	return t.show(answer{object: l, names: names, table: func(wide bool) {
		header := []string{"USER", "DEVICE", "ROLE", "NAMESPACES", "PHASE", "LEFT", "NAME"}
		if wide {
			header = append(header, "UNTIL", "SINCE")
		}
		var rows [][]screen.Cell
		for _, s := range l.Items {
			namespaces := "all"
			if len(s.Namespaces) > 0 {
				namespaces = strings.Join(s.Namespaces, ",")
			}
			left := ""
			if at, err := time.Parse(time.RFC3339, s.Until); err == nil {
				left = screen.Short(max(0, at.Sub(t.Now())))
			}
			row := screen.Row(s.Login, s.Device, s.Role, namespaces, s.Phase, left, s.Name)
			if wide {
				row = append(row, screen.Row(s.Until, s.Since)...)
			}
			rows = append(rows, row)
		}
		if len(rows) == 0 {
			t.hint("Nobody is signed in.")
			return
		}
		t.writeTable(t.Out, header, rows)
	}})
}

func (t *tka) doRevoke(ctx context.Context, af adminFlags, who string, yes, dryRun bool) error {
	all, err := t.listSessions(ctx, af)
	if err != nil {
		return err
	}
	// A login is never cut at "@", and no name of a sign-in has one.
	all = slices.DeleteFunc(all, func(s session) bool { return s.Name != who && s.Login != who })
	if len(all) == 0 {
		return fault.New(fault.Failed, "There is no sign-in of that name or login: %s", who).Try("See all: tka sessions")
	}
	if slices.ContainsFunc(all, func(s session) bool { return !namespaceForm.MatchString(s.Name) }) {
		return fault.New(fault.Failed, "The cluster has a sign-in whose name is none; nothing was ended").Try("tka sessions")
	}
	if !yes && !dryRun {
		var what []string
		for _, s := range all {
			what = append(what, fmt.Sprintf("%s of %s on %s", s.Role, s.Login, s.Device))
		}
		if err := t.ask(ctx, fmt.Sprintf("End %s: %s?", plural(int64(len(all)), "sign-in", "sign-ins"), strings.Join(what, "; ")), "--yes"); err != nil {
			return err
		}
	}
	code := fault.Done
	for i := range all {
		if dryRun {
			continue
		}
		if _, err := t.kubectl(ctx, af, "delete", signinsResource, all[i].Name, "--ignore-not-found", "--wait=true"); err != nil {
			all[i].Error, code = sentence(err), max(code, fault.CodeOf(err))
			continue
		}
		all[i].Revoked = true
	}
	res := sessionList{kind("RevocationList"), all}
	var names []string
	for _, s := range all {
		names = append(names, "tkasignin/"+s.Name)
	}
	err = t.show(answer{object: res, names: names, table: func(bool) {
		for _, s := range all {
			line := "Ended"
			switch {
			case dryRun:
				line = "Would end"
			case !s.Revoked:
				line = "Not ended, as " + s.Error + ":"
			}
			fmt.Fprintln(t.Out, screen.Safe(fmt.Sprintf("%s %s: %s of %s on %s.", line, s.Name, s.Role, s.Login, s.Device)))
		}
	}})
	if err != nil {
		return err
	}
	return ended(code)
}

// kubectl runs kubectl as the person that runs us.
func (t *tka) kubectl(ctx context.Context, af adminFlags, args ...string) ([]byte, error) {
	path, err := exec.LookPath("kubectl")
	if err != nil {
		return nil, fault.New(fault.Failed, "This needs kubectl, and there is none in $PATH").Because(err).
			Try("Install kubectl, with a kubeconfig of an administrator.")
	}
	args = append(args, "--namespace", cmp.Or(af.namespace, signinsNamespace))
	if af.context != "" {
		args = append(args, "--context", af.context)
	}
	if t.kubeconfig != "" {
		args = append(args, "--kubeconfig", t.kubeconfig)
	}
	cmd := exec.CommandContext(ctx, path, args...)
	for _, v := range cmd.Environ() {
		if name, _, _ := strings.Cut(v, "="); name != shellscript.EvalFile {
			cmd.Env = append(cmd.Env, v)
		}
	}
	cmd.WaitDelay = time.Second
	var stderr bytes.Buffer
	cmd.Stderr = &limitedWriter{w: &stderr, left: 64 << 10}
	out, err := cmd.StdoutPipe()
	if err == nil {
		err = cmd.Start()
	}
	if err != nil {
		return nil, fault.New(fault.Failed, "kubectl cannot be run: %v", err).Because(err).Try("kubectl version")
	}
	text, rerr := io.ReadAll(io.LimitReader(out, mostSignins+1))
	if rerr == nil && len(text) > mostSignins {
		rerr = errors.New("there is no end of the list")
	}
	if rerr != nil {
		cmd.Process.Kill()
	}
	err = cmd.Wait()
	switch said := strings.TrimSpace(stderr.String()); {
	case ctx.Err() != nil && errors.Is(context.Cause(ctx), context.DeadlineExceeded):
		return nil, fault.New(fault.NotReady, "kubectl did not finish within %v", t.timeout).Try("Give it longer: --timeout 2m")
	case ctx.Err() != nil:
		return nil, fault.New(fault.Interrupted, "interrupted")
	case rerr != nil:
		return nil, fault.New(fault.Failed, "kubectl: %v", rerr).Because(rerr)
	case err != nil:
		line, _, _ := strings.Cut(said, "\n")
		return nil, fault.New(kubectlCode(said), "kubectl: %s", cmp.Or(line, err.Error())).Because(err).Try("Name a context with the rights of an administrator: --context NAME")
	}
	return text, nil
}

// kubectlCode is what kubectl's words mean; its own code is always 1.
func kubectlCode(said string) int {
	switch {
	case strings.Contains(said, "(Forbidden)"), strings.Contains(said, "Unauthorized"), strings.Contains(said, "must be logged in"):
		return fault.Refused
	case strings.Contains(said, "Unable to connect"), strings.Contains(said, "was refused"), strings.Contains(said, "i/o timeout"), strings.Contains(said, "no such host"):
		return fault.Unreachable
	}
	return fault.Failed
}

// A limitedWriter drops what is more than somebody would read.
type limitedWriter struct {
	w    io.Writer
	left int
}

func (l *limitedWriter) Write(b []byte) (int, error) {
	n := min(len(b), l.left)
	l.left -= n
	if _, err := l.w.Write(b[:n]); err != nil {
		return 0, err
	}
	return len(b), nil
}
