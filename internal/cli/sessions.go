package cli

import (
	"context"
	"fmt"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
)

// adminFlags adds the flags that select an administrator's cluster.
func adminFlags(cmd *cobra.Command, af *client.Kubectl) {
	f := cmd.Flags()
	f.StringVar(&af.Context, "context", "", "context of the kubeconfig (default: the current one)")
	f.StringVarP(&af.Namespace, "namespace", "n", client.SigninNamespace, "namespace of the sign-ins")
}

func (t *tka) sessions() *cobra.Command {
	var af client.Kubectl
	var login string
	cmd := &cobra.Command{
		Use:     "signins",
		Aliases: []string{"sessions"},
		Short:   "List the sign-ins of all people (for administrators)",
		Long: `List the sign-ins of all people in a cluster. The command runs kubectl with your own
kubeconfig: you need the right to list tkasignins there, and no sign-in with tka.`,
		Example: "  tka signins\n  tka signins --context admin@prod-eu --login alice@example.com -o wide",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doSessions(cmd.Context(), af, login) },
	}
	adminFlags(cmd, &af)
	cmd.Flags().StringVar(&login, "login", "", "list only the sign-ins of this login")
	return cmd
}

func (t *tka) revoke() *cobra.Command {
	var af client.Kubectl
	var yes, dryRun bool
	cmd := &cobra.Command{
		Use:   "revoke NAME|LOGIN",
		Short: "End a person's sign-ins (for administrators)",
		Long: `End one sign-in by its name, or all sign-ins of a login. The command runs kubectl with your
own kubeconfig: you need the right to list and delete tkasignins there.

The rights end immediately, and the API server refuses the token within 10 seconds. A person
who still has a grant can sign in again. To prevent that, remove the grant from the tailnet's
policy.`,
		Example: "  tka revoke alice@example.com\n  tka revoke --yes alice-example-com-0f3c9a1b2d4e5f607182",
		Args:    arguments(1, 1, "the name of a sign-in, or a login"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return t.doRevoke(cmd.Context(), af, args[0], yes, dryRun)
		},
	}
	adminFlags(cmd, &af)
	cmd.Flags().BoolVar(&yes, "yes", false, "do not prompt")
	cmd.Flags().BoolVar(&dryRun, "dry-run", false, "show the sign-ins to end, and end none")
	return cmd
}

func (t *tka) doSessions(ctx context.Context, af client.Kubectl, login string) error {
	all, err := t.kubectl(af).Sessions(ctx)
	if err != nil {
		return err
	}
	if login != "" {
		all = slices.DeleteFunc(all, func(s client.Session) bool { return s.Login != login })
	}
	return t.printResult(result{object: newList("SessionList", all), names: mapped(all, sessionName), table: func(wide bool) {
		if len(all) == 0 {
			t.hint("There are no sign-ins.")
			return
		}
		rows := mapped(all, func(s client.Session) []output.Cell {
			namespaces := describePlaces(s.Namespaces, s.Bind)
			return output.Row(s.Login, s.Device, s.Session, s.Role, namespaces, s.Phase, t.timeLeft(s.Until), s.Name, s.Until, s.Since, s.Reason)
		})
		t.writeTable(wide, []string{"USER", "DEVICE", "SESSION", "ROLE", "NAMESPACES", "PHASE", "LEFT", "NAME"}, []string{"UNTIL", "SINCE", "REASON"}, rows)
	}})
}

func sessionName(s client.Session) string { return "tkasignin/" + s.Name }

func (t *tka) doRevoke(ctx context.Context, af client.Kubectl, nameOrLogin string, yes, dryRun bool) error {
	all, err := t.kubectl(af).Sessions(ctx)
	if err != nil {
		return err
	}
	// A login contains "@" and a sign-in's name never does, so one exact match is enough.
	all = slices.DeleteFunc(all, func(s client.Session) bool { return s.Name != nameOrLogin && s.Login != nameOrLogin })
	if len(all) == 0 {
		return output.Errorf(output.ExitFailed, "No sign-in has that name or login: %s", nameOrLogin).Try("See all: tka signins")
	}
	if slices.ContainsFunc(all, func(s client.Session) bool { return !dialpolicy.IsNamespaceName(s.Name) }) {
		return output.Errorf(output.ExitFailed, "The cluster has a sign-in with an invalid name; tka ended no sign-in").Try("tka signins")
	}
	if !yes && !dryRun {
		what := mapped(all, func(s client.Session) string { return fmt.Sprintf("%s of %s on %s", s.Role, s.Login, s.Device) })
		if err := t.confirm(ctx, fmt.Sprintf("End %s: %s?", plural(int64(len(all)), "sign-in", "sign-ins"), strings.Join(what, "; ")), "--yes"); err != nil {
			return err
		}
	}
	code := output.ExitOK
	for i := range all {
		if dryRun {
			break
		}
		err := t.kubectl(af).Revoke(ctx, all[i].Name)
		if all[i].Revoked = err == nil; err != nil {
			all[i].Error, code = errorMessage(err), max(code, output.ExitCode(err))
		}
	}
	return t.printResult(result{object: newList("RevocationList", all), names: mapped(all, sessionName), code: code, table: func(bool) {
		for _, s := range all {
			line := "Ended"
			switch {
			case dryRun:
				line = "Would end"
			case !s.Revoked:
				line = "Not ended, because " + s.Error + ":"
			}
			t.printLine("%s %s: %s of %s on %s.", line, s.Name, s.Role, s.Login, s.Device)
		}
	}})
}

// kubectl completes af with the kubeconfig, time limit and environment of tka.
func (t *tka) kubectl(af client.Kubectl) client.Kubectl {
	af.Kubeconfig, af.Timeout, af.Env = t.kubeconfig, t.timeout, childEnv()
	return af
}
