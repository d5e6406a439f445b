package cli

import (
	"context"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/directory"
	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/memory"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/signin"
)

// clusterFlags are the flags of the command clusters.
type clusterFlags struct {
	all      bool
	selector string
}

func (t *tka) clusters() *cobra.Command {
	var cf clusterFlags
	cmd := &cobra.Command{
		Use:   "clusters",
		Short: "List the clusters that the server knows, and where you are signed in",
		Long: `List the clusters that the access server knows, its own included: how each is, when the
server last saw it, and whether this machine is signed in there. Those that are dead or have
left are shown with --all only.

A cluster is unverified while the server has not met it itself, and in conflict when somebody
else is known as it: such a cluster is shown, and never signed in to.`,
		Example: "  tka clusters\n  tka clusters -l env=prod -o wide\n  tka login --cluster prod-us",
		Args:    arguments(0, 0, ""),
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doClusters(cmd.Context(), cf) },
	}
	f := cmd.Flags()
	f.BoolVarP(&cf.all, "all", "A", false, "those that are dead or have left, too")
	f.StringVarP(&cf.selector, "selector", "l", "", "only clusters with these labels: key=value, key!=value, key or !key, with commas between")
	return cmd
}

// clusterEntry is one cluster of the list.
type clusterEntry struct {
	meta
	gossip.Cluster
	SignIn clusterSignIn `json:"signIn"`
	Usable bool          `json:"usable"`          // a person may sign in
	Doubt  string        `json:"doubt,omitempty"` // why a person may not sign in
	mark   string
}

// clusterSignIn is the sign-in of this device, as the cluster's own server reports it.
type clusterSignIn struct {
	State signin.State `json:"state"` // "none", or "unknown" if the server does not report it
	Role  string       `json:"role,omitempty"`
	Until string       `json:"until,omitempty"` // RFC 3339, UTC
	Error string       `json:"error,omitempty"` // why the state is unknown
}

type clusterList struct {
	meta
	Server   string         `json:"server"`   // the server that reported the list
	Isolated bool           `json:"isolated"` // it hears no other server
	Hidden   int            `json:"hidden"`   // how many clusters were left out because they are dead or have left
	Items    []clusterEntry `json:"items"`
}

func (t *tka) doClusters(ctx context.Context, cf clusterFlags) error {
	pick, err := directory.ParseSelector(cf.selector)
	if err != nil {
		return fault.Usage("--selector: %v", err)
	}
	l, err := t.connect(ctx, "")
	if err != nil {
		return err
	}
	d, err := t.directory(ctx, l)
	if err != nil {
		return err
	}
	now := t.Now() // uses the clock of the server that saw them, if it reports its time
	if at, err := http.ParseTime(l.Last.Header.Get("Date")); err == nil {
		now = at
	}
	shown, hidden := d.Shown(cf.all, pick)
	k, err := t.known()
	if err != nil {
		return err
	}
	for i := range shown {
		otherKey(k, &shown[i])
	}
	list := clusterList{kind("ClusterList"), d.Server, d.Isolated, hidden, make([]clusterEntry, 0, len(shown))}
	signIns := t.signIns(ctx, k, shown)
	var names []string
	for i, e := range shown {
		it := clusterEntry{meta: kind("Cluster"), Cluster: e.Cluster, SignIn: signIns[i], Usable: e.Doubt == nil}
		if e.Doubt != nil {
			it.Doubt, it.mark = e.Doubt.Why, e.Doubt.Mark
		}
		if it.Labels == nil {
			it.Labels = map[string]string{}
		}
		if it.Members == nil {
			it.Members = []gossip.ClusterMember{}
		}
		list.Items = append(list.Items, it)
		names = append(names, "cluster/"+e.Name)
	}
	err = t.show(answer{object: list, names: names, table: func(wide bool) { t.tellClusters(list, now, wide) }})
	if err != nil {
		return err
	}
	if list.Isolated {
		t.warn("the server %s hears none of the others, so it cannot say how they are", d.Server)
	}
	t.tellDoubts(shown)
	if hidden > 0 {
		t.hint("Not shown: %s, dead or left. See all: tka clusters --all", plural(int64(hidden), "cluster", "clusters"))
	}
	return nil
}

func (t *tka) tellClusters(list clusterList, now time.Time, wide bool) {
	if len(list.Items) == 0 {
		t.hint("No cluster is as asked for.")
		return
	}
	header := []string{"CLUSTER", "STATE", "SEEN", "SIGN-IN", "NOTES"}
	if wide {
		header = append(header, "LABELS", "SERVER", "API SERVER", "SERVERS", "VERSION", "ID", "KEY")
	}
	var rows [][]screen.Cell
	for _, it := range list.Items {
		seen := "never"
		if !it.LastSeen.IsZero() {
			seen = screen.Short(max(0, now.Sub(it.LastSeen)))
		}
		if it.Self {
			seen = ""
		}
		var notes []string
		if it.Self {
			notes = append(notes, "this one")
		}
		if it.mark != "" {
			notes = append(notes, it.mark)
		}
		color := screen.Color("")
		if it.mark != "" {
			color = screen.Yellow
		}
		row := []screen.Cell{{Text: it.Name}, screen.Colored(memberColor(it.State), string(it.State)), {Text: seen},
			screen.Colored(stateColor(it.SignIn.State), string(it.SignIn.State)), screen.Colored(color, strings.Join(notes, ", "))}
		if wide {
			var labels []string
			for _, k := range slices.Sorted(maps.Keys(it.Labels)) {
				labels = append(labels, k+"="+it.Labels[k])
			}
			row = append(row, screen.Row(strings.Join(labels, ","), it.URL, it.APIEndpoint, strconv.Itoa(len(it.Members)), it.Software, it.ID, it.Key.String())...)
		}
		rows = append(rows, row)
	}
	t.writeTable(t.Out, header, rows)
}

// maxDoubts bounds how many clusters tka explains individually.
const maxDoubts = 5

// tellDoubts explains for each shown cluster in doubt why tka does not sign in to it.
func (t *tka) tellDoubts(shown []directory.Entry) {
	n := 0
	for _, e := range shown {
		if e.Doubt == nil || e.Doubt.Mark == "" {
			continue
		}
		if n++; n > maxDoubts {
			continue
		}
		t.hint("tka does not sign in to %s: %s.", e.Name, e.Doubt.Why)
		for _, line := range e.Doubt.Advice {
			t.hint("  try: %s", line)
		}
	}
	if n > maxDoubts {
		t.hint("And neither to %d more.", n-maxDoubts)
	}
}

// signInTime bounds the request for a sign-in to one cluster's server.
const signInTime = 5 * time.Second

// otherKey marks an entry as doubtful if this machine knows its name with another key. A list does not override what this machine knows.
func otherKey(k memory.Servers, e *directory.Entry) {
	s, ok := k.Serving(e.Name)
	if !ok || e.Doubt != nil || s.Key.IsZero() || s.Key == e.Key {
		return
	}
	e.Doubt = &directory.Doubt{Code: fault.Refused, Mark: "other key", Why: "this machine knows the cluster of that name by another key, " + s.Key.String(), Advice: []string{
		"Ask an administrator which key is the right one; here it is " + e.Key.String() + ".",
		"If the key is known to have changed: tka config --forget-server " + screen.Word(s.URL)}}
}

// signIns returns the sign-ins of this device to the shown clusters, in their order. It queries only the servers of clusters that this
// machine signed in to.
func (t *tka) signIns(ctx context.Context, k memory.Servers, shown []directory.Entry) []clusterSignIn {
	all := make([]clusterSignIn, len(shown))
	var places []place
	var at []int
	for i, e := range shown {
		all[i].State = "none"
		s, ok := k.Serving(e.Name)
		if ok && s.Chosen && s.Key == e.Key && !e.Conflict {
			places, at = append(places, place{e.Name, s.URL}), append(at, i)
		}
	}
	outcomes := each(ctx, t, places, func(ctx context.Context, one *tka, p place) (statusItem, error) {
		ctx, cancel := context.WithTimeout(ctx, signInTime)
		defer cancel()
		one.server = "" // use the server through which the cluster was signed in to
		return one.statusOf(ctx, p.cluster)
	})
	for i, o := range outcomes {
		switch s := &all[at[i]]; {
		case notSignedIn(o.err):
		case o.err != nil:
			s.State, s.Error = "unknown", sentence(o.err)
		default:
			s.State, s.Role, s.Until = o.value.State, o.value.Role, o.value.Until
		}
	}
	return all
}

func memberColor(s gossip.State) screen.Color {
	switch s {
	case gossip.Alive:
		return screen.Green
	case gossip.Suspect, gossip.Unknown:
		return screen.Yellow
	}
	return screen.Red
}
