package cli

import (
	"context"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/signin"
)

// status returns the status command under the name use; "get" and "get login" are the same command.
func (t *tka) status(use string) *cobra.Command {
	var cluster string
	return t.clusterFlag(&cobra.Command{
		Use:   use,
		Short: "Show the sign-in of this device",
		Long: `Show your sign-in to one cluster, or to all clusters that this machine signed in to: the
user, role, namespaces and end. A sign-in that is not ready yet is a state, not an error. If
you are not signed in, the exit code is 3.`,
		Example: "  tka status\n  tka status -o json",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doStatus(cmd.Context(), cluster) },
	}, &cluster, "cluster to show; this machine or its server must know it", t.knownClusterNames)
}

// statusItem is one sign-in as the server reports it, with the server.
type statusItem struct {
	meta
	signin.Status
	Server string `json:"server"`
	Error  string `json:"error,omitempty"` // why the state is unknown
}

func (t *tka) doStatus(ctx context.Context, cluster string) error {
	targets, err := t.signedInTargets()
	if err != nil {
		return err
	}
	if cluster == "" && t.server == "" && len(targets) > 1 {
		return t.statusAll(ctx, targets)
	}
	it, err := t.statusOf(ctx, cluster)
	if err != nil {
		return err
	}
	return t.showStatus([]statusItem{it}, output.ExitOK)
}

// statusOf returns the sign-in to one cluster.
func (t *tka) statusOf(ctx context.Context, cluster string) (statusItem, error) {
	l, err := t.connect(ctx, cluster)
	if err != nil {
		return statusItem{}, err
	}
	st, err := client.Call(ctx, l, signin.Read, signin.ReadRequest{})
	if err != nil {
		return statusItem{}, err
	}
	st.Namespaces, st.MissingNamespaces = nonNil(st.Namespaces), nonNil(st.MissingNamespaces)
	return statusItem{meta: newMeta("Signin"), Status: st, Server: l.Base}, nil
}

func (t *tka) showStatus(items []statusItem, code int) error {
	var names []string
	for _, it := range items {
		if it.Name != "" {
			names = append(names, "signin/"+it.Name)
		}
	}
	return t.printResult(result{object: newList("SigninList", items), names: names, code: code, table: func(wide bool) {
		var rows [][]output.Cell
		for _, it := range items {
			namespaces := describeNamespaces(it.Namespaces)
			switch {
			case it.Name == "":
				namespaces = ""
			case len(it.Namespaces) == 0:
				namespaces = "all"
			}
			row := append(output.Row(it.Cluster, it.Username, it.Role, namespaces), output.Colored(stateColor(it.State), string(it.State)))
			rows = append(rows, append(row, output.Row(t.timeLeft(it.Until), it.Until, it.Device, it.Server, it.Name)...))
		}
		t.writeTable(wide, []string{"CLUSTER", "USER", "ROLE", "NAMESPACES", "STATE", "LEFT"},
			[]string{"UNTIL", "DEVICE", "SERVER", "NAME"}, rows)
		for _, it := range items {
			if it.Error != "" {
				t.warn("%s: %s", it.Cluster, it.Error)
			}
			if len(it.MissingNamespaces) > 0 {
				t.hint("These namespaces do not exist in %s: %s.", it.Cluster, describeNamespaces(it.MissingNamespaces))
			}
		}
	}})
}

func stateColor(s signin.State) output.Color {
	switch s {
	case signin.Ready:
		return output.Green
	case signin.Pending, signin.Ending:
		return output.Yellow
	case "none":
		return ""
	}
	return output.Red
}

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
