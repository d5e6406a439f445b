package cli

import (
	"github.com/spf13/cobra"
)

// get groups the commands that read, as kubectl does.
func (t *tka) get() *cobra.Command {
	cmd := t.status("get")
	cmd.Short = "Show the sign-in of this device, or another object by name"
	cmd.Long = `Without a name, get shows the sign-in of this device, as "tka status" does.`
	cmd.Example = "  tka get login\n  tka get kubeconfig\n  tka get clusters\n  tka get cluster-info\n  tka get config"
	cmd.AddCommand(t.status("login"), t.kubeconfigCommand("kubeconfig"), t.clusters(), t.clusterInfo(), t.configCommand("config"))
	return cmd
}

// set groups the command that writes settings.
func (t *tka) set() *cobra.Command {
	cmd := &cobra.Command{
		Use:     "set",
		Short:   "Change a setting",
		Long:    `Change a setting, as "tka config KEY VALUE" does.`,
		Example: "  tka set config server tka-prod",
	}
	cmd.AddCommand(t.configCommand("config"))
	return cmd
}
