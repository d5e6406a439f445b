package cli

import (
	"context"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/kubeconfig"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// status returns the status command under the name use; "get" and "get login" are the same command.
func (t *tka) status(use string) *cobra.Command {
	var sf signinFlags
	return t.signinFlags(&cobra.Command{
		Use:   use,
		Short: "Show the sign-ins of this device",
		Long: `Show your sign-ins to one cluster, or to all clusters that this machine signed in to: the
session, user, role, namespaces, end, and the mode of the kubeconfig entry. The note "this terminal" marks the sign-in that other
commands are about. A sign-in that is not ready yet is a state, not an error. If you are not
signed in, the exit code is 3.`,
		Example: "  tka status\n  tka status --cluster prod-eu -o json",
		RunE: func(cmd *cobra.Command, _ []string) error {
			f := cmd.Flags()
			named := f.Changed("cluster") || f.Changed("context") || f.Changed("session")
			return t.doStatus(cmd.Context(), sf, named, f.Changed("session") || f.Changed("context"))
		},
	}, &sf, "cluster to show; this machine or its server must know it", t.knownClusterNames)
}

// statusItem is one sign-in as the server reports it, with the server.
type statusItem struct {
	meta
	signin.Status
	Server string      `json:"server"`
	Mode   signin.Mode `json:"mode,omitempty"`  // of the kubeconfig entry; absent: there is none
	Error  string      `json:"error,omitempty"` // why the state is unknown

	// Certificate is the kind of the access proxy's certificate if the mode is proxy: public, or private if an authority of the cluster issued it.
	Certificate string `json:"certificate,omitempty"`
}

// doStatus shows all clusters, unless flags name a cluster; and all sessions, unless flags name one.
func (t *tka) doStatus(ctx context.Context, sf signinFlags, oneCluster, oneSession bool) error {
	targets, err := t.signedInTargets()
	if err != nil {
		return err
	}
	if !oneCluster && t.server == "" && len(targets) > 1 {
		t.selection.source = "" // it does not select what is shown
		return t.statusAll(ctx, targets)
	}
	items, err := t.statusOf(ctx, sf, oneSession)
	if err != nil {
		return err
	}
	return t.showStatus(items, output.ExitOK)
}

// statusOf returns the sign-ins to one cluster: of one session, or of all. If there is none, the error is that of the default session.
func (t *tka) statusOf(ctx context.Context, sf signinFlags, oneSession bool) ([]statusItem, error) {
	l, err := t.connect(ctx, sf.cluster)
	if err != nil {
		return nil, err
	}
	var all signin.Sessions
	if !oneSession {
		all, err = client.Call(ctx, l, signin.ListSessions, signin.SessionsRequest{})
		sf.session = ""
	}
	if code := problem.CodeOf(err); err != nil && code != problem.NotFound { // a server of a version without sessions does not know the operation
		return nil, err
	}
	if len(all.Sessions) == 0 {
		st, err := client.Call(ctx, l, signin.Read, signin.ReadRequest{Session: signin.Session(sf.session)})
		if err != nil {
			return nil, err
		}
		all.Sessions = []signin.Status{st}
	}
	return mapped(all.Sessions, func(st signin.Status) statusItem {
		st.Namespaces, st.MissingNamespaces = nonNil(st.Namespaces), nonNil(st.MissingNamespaces)
		it := statusItem{meta: newMeta("Signin"), Status: st, Server: l.Base}
		of := kubeconfig.Signin{Cluster: l.Info.Name, Session: string(st.Session)}
		if it.Mode = t.entryMode(of); it.Mode != "" && !slices.Contains(l.Info.AccessModes(), it.Mode) {
			f := outdatedEntry(of, it.Mode)
			t.warn("%s. %s", f.Message, f.Advice[0])
		}
		if g, err := l.ProxyKubeconfig(st.Session); err == nil && it.Mode == signin.ModeProxy { // doctor reports the error
			it.Certificate = "public"
			if len(g.CA) > 0 {
				it.Certificate = "private"
			}
		}
		return it
	}), nil
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
			namespaces := ""
			if it.Name != "" {
				namespaces = describePlaces(it.Namespaces, it.Bind)
			}
			row := append(output.Row(it.Cluster, string(it.Session), it.Username, it.Role, namespaces), output.Colored(stateColor(it.State), string(it.State)))
			row = append(row, output.Cell{Text: t.timeLeft(it.Until)}, output.Cell{Text: string(it.Mode)})
			if len(items) > 1 {
				note := ""
				if it.Cluster == t.selection.cluster && it.Session == t.selection.session {
					note = "this terminal"
				}
				row = append(row, output.Cell{Text: note})
			}
			rows = append(rows, append(row, output.Row(it.Until, it.Device, it.Server, it.Name)...))
		}
		columns := []string{"CLUSTER", "SESSION", "USER", "ROLE", "NAMESPACES", "STATE", "LEFT", "MODE"}
		if len(items) > 1 {
			columns = append(columns, "NOTES")
		}
		t.writeTable(wide, columns,
			[]string{"UNTIL", "DEVICE", "SERVER", "NAME"}, rows)
		for _, it := range items {
			if it.Error != "" {
				t.warn("%s: %s", it.Cluster, it.Error)
			}
			if it.OnUse {
				t.hint("The sign-in to %s began on first use and ends after %s without use. To keep it until its end: tka login", it.Cluster, output.HumanDuration(time.Duration(it.Idle)))
			}
			if len(it.Record) > 0 {
				t.hint("%s%s.", withSession(it.Cluster, it.Session), describeRecorded(it.Record))
			}
			if len(it.MissingNamespaces) > 0 {
				t.hint("These namespaces do not exist in %s: %s.", it.Cluster, describeNamespaces(it.MissingNamespaces))
			}
		}
	}})
}

// withSession begins a sentence about a sign-in.
func withSession(cluster string, s signin.Session) string {
	if s == "" {
		return cluster + ": "
	}
	return cluster + ", session " + string(s) + ": "
}

// describeRecorded says which streams of a sign-in are recorded.
func describeRecorded(record []string) string {
	return "the access proxy records " + strings.Join(record, ", ")
}

func stateColor(s signin.State) output.Color {
	switch s {
	case signin.Ready:
		return output.Green
	case signin.Pending, signin.Ending:
		return output.Yellow
	case "none", "no grant":
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
