package cli

import (
	"context"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/signin"
)

// status is the command under the name use; "get" and "get login" are the same.
func (t *tka) status(use string) *cobra.Command {
	var cluster string
	cmd := &cobra.Command{
		Use:   use,
		Short: "Show the sign-in of this device",
		Long: `Show who you are signed in as, with which role, where and until when. A sign-in that is
still being made is a state, not an error; not being signed in is exit 3.`,
		Example: "  tka status\n  tka status -o json",
		Args:    arguments(0, 0, ""),
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doStatus(cmd.Context(), cluster) },
	}
	cmd.Flags().StringVar(&cluster, "cluster", "", "cluster to look at, among those that this machine knows")
	t.complete(cmd, "cluster", t.clusterNames)
	return cmd
}

// statusItem is one sign-in: what the server says, and which server that is.
type statusItem struct {
	meta
	signin.Status
	Server string `json:"server"`
}

type statusList struct {
	meta
	Items []statusItem `json:"items"`
}

func (t *tka) doStatus(ctx context.Context, cluster string) error {
	l, err := t.connect(ctx, cluster)
	if err != nil {
		return err
	}
	st, err := call(ctx, l, signin.Read, signin.ReadRequest{})
	if err != nil {
		return err
	}
	st.Namespaces, st.MissingNamespaces = list(st.Namespaces), list(st.MissingNamespaces)
	return t.showStatus(statusList{kind("SigninList"), []statusItem{{kind("Signin"), st, l.base}}})
}

func (t *tka) showStatus(l statusList) error {
	var names []string
	for _, it := range l.Items {
		names = append(names, "signin/"+it.Name)
	}
	return t.show(answer{object: l, names: names, table: func(wide bool) {
		header := []string{"CLUSTER", "USER", "ROLE", "NAMESPACES", "STATE", "LEFT"}
		if wide {
			header = append(header, "UNTIL", "DEVICE", "SERVER", "NAME")
		}
		var rows [][]cell
		for _, it := range l.Items {
			left := "unknown"
			if at, err := time.Parse(time.RFC3339, it.Until); err == nil {
				left = short(max(0, at.Sub(t.Now())))
			}
			namespaces := whole(it.Namespaces)
			if len(it.Namespaces) == 0 {
				namespaces = "all"
			}
			row := append(plain(it.Cluster, it.Username, it.Role, namespaces), cell{string(it.State), stateColor(it.State)}, cell{text: left})
			if wide {
				row = append(row, plain(it.Until, it.Device, it.Server, it.Name)...)
			}
			rows = append(rows, row)
		}
		t.writeTable(t.Out, header, rows)
		for _, it := range l.Items {
			if len(it.MissingNamespaces) > 0 {
				t.hint("Not there in %s: %s.", it.Cluster, whole(it.MissingNamespaces))
			}
		}
	}})
}

func stateColor(s signin.State) color {
	switch s {
	case signin.Ready:
		return green
	case signin.Pending, signin.Ending:
		return yellow
	}
	return red
}
