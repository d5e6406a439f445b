package cli

import (
	"context"
	"slices"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
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

// kubectl completes af with the kubeconfig, time limit and environment of tka.
func (t *tka) kubectl(af client.Kubectl) client.Kubectl {
	af.Kubeconfig, af.Timeout, af.Env = t.kubeconfig, t.timeout, childEnv()
	return af
}
