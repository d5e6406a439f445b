package cli

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/pem"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"github.com/tailplane/tailplane/internal/cli/client"
	"github.com/tailplane/tailplane/internal/cli/config"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/problem"
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
		Short: "List the clusters that the server knows, and what you may do there",
		Long: `List the clusters that the access server knows, including its own: the state of each, when
the server last saw it, whether this device is signed in, and as what. For a cluster that it
is not signed in to, ROLE shows the roles that your grants give, the usual one first. "no
grant" is a state and no error. Clusters that are dead or have left are shown only with --all.

A cluster is unverified until the server has contacted it. It is in conflict if another
server is known as the same cluster with a different key. tka shows such a cluster, but never
signs in to it. "audit log rolled back" means that an audit log of the cluster lacks lines
which a server witnessed: see tka audit verify --witness.`,
		Example: "  tka clusters\n  tka clusters -l env=prod -o wide\n  tka login --cluster prod-us",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doClusters(cmd.Context(), cf) },
	}
	f := cmd.Flags()
	f.BoolVarP(&cf.all, "all", "A", false, "also list clusters that are dead or have left")
	selectorFlag(cmd, &cf.selector, "list only clusters")
	return cmd
}

// clusterEntry is one cluster of the list.
type clusterEntry struct {
	meta
	gossip.Cluster
	SignIn          clusterSignIn `json:"signIn"`
	Usable          bool          `json:"usable"`          // a person may sign in
	ExclusionReason string        `json:"doubt,omitempty"` // why a person may not sign in
	label           string
}

// clusterSignIn is the sign-in of this device, as the cluster's own server reports it.
type clusterSignIn struct {
	State   signin.State `json:"state"` // "none"; "no grant"; or "unknown" if the server does not report it
	Role    string       `json:"role,omitempty"`
	Until   string       `json:"until,omitempty"`   // RFC 3339, UTC
	Granted []string     `json:"granted,omitempty"` // roles to sign in with, the usual one first
	Error   string       `json:"error,omitempty"`   // why the state is unknown, or there is no grant
}

// clusterList is the output of clusters.
type clusterList struct {
	meta
	Server   string         `json:"server"`   // the server that reported the list
	Isolated bool           `json:"isolated"` // it hears no other server
	Hidden   int            `json:"hidden"`   // how many clusters were left out because they are dead or have left
	Items    []clusterEntry `json:"items"`
}

func (t *tka) doClusters(ctx context.Context, cf clusterFlags) error {
	labelSelector, err := parseSelector(cf.selector)
	if err != nil {
		return err
	}
	l, d, err := t.askDirectory(ctx)
	if err != nil {
		return err
	}
	now := t.Now() // uses the clock of the server that saw them, if it reports its time
	if at, err := http.ParseTime(l.Last.Header.Get("Date")); err == nil {
		now = at
	}
	shown, hidden := d.Filter(cf.all, labelSelector)
	k, err := t.state()
	if err != nil {
		return err
	}
	for i := range shown {
		excludeOtherKey(k, &shown[i])
	}
	list := clusterList{newMeta("ClusterList"), d.Server, d.Isolated, hidden, make([]clusterEntry, 0, len(shown))}
	signIns := t.signIns(ctx, d.Server, shown)
	for i, e := range shown {
		it := clusterEntry{meta: newMeta("Cluster"), Cluster: e.Cluster, SignIn: signIns[i], Usable: e.Exclusion == nil}
		if e.Exclusion != nil {
			it.ExclusionReason, it.label = e.Exclusion.Reason, e.Exclusion.Label
		}
		if it.Labels == nil {
			it.Labels = map[string]string{}
		}
		it.Members = nonNil(it.Members)
		list.Items = append(list.Items, it)
	}
	names := mapped(list.Items, func(it clusterEntry) string { return "cluster/" + it.Name })
	err = t.printResult(result{object: list, names: names, table: func(wide bool) { t.printClusters(list, now, wide) }})
	if err != nil {
		return err
	}
	if list.Isolated {
		t.warn("the server %s receives nothing from the other servers, so their state is unknown", d.Server)
	}
	t.printExclusions(shown)
	t.warnRolledBack(list)
	if hidden > 0 {
		t.hint("Not shown: %s, dead or left. See all: tka clusters --all", plural(int64(hidden), "cluster", "clusters"))
	}
	return nil
}

func (t *tka) printClusters(list clusterList, now time.Time, wide bool) {
	if len(list.Items) == 0 {
		t.hint("No cluster matches.")
		return
	}
	var rows [][]output.Cell
	for _, it := range list.Items {
		seen := "never"
		if !it.LastSeen.IsZero() {
			seen = output.HumanDuration(max(0, now.Sub(it.LastSeen)))
		}
		var notes []string
		if it.Self {
			seen, notes = "", []string{"this one"}
		}
		color := output.Color("")
		if it.label != "" {
			notes, color = append(notes, it.label), output.Yellow
		}
		if len(it.RolledBack()) > 0 {
			notes, color = append(notes, "audit log rolled back"), output.Red
		}
		row := []output.Cell{{Text: it.Name}, output.Colored(memberColor(it.State), string(it.State)), {Text: seen},
			output.Colored(stateColor(it.SignIn.State), string(it.SignIn.State)), {Text: cmp.Or(it.SignIn.Role, strings.Join(it.SignIn.Granted, ","))},
			{Text: t.timeLeft(it.SignIn.Until)}, output.Colored(color, strings.Join(notes, ", "))}
		rows = append(rows, append(row, output.Row(formatLabels(it.Labels), it.URL, it.APIEndpoint, strconv.Itoa(len(it.Members)), it.Software,
			it.ID, it.Key.String())...))
	}
	t.writeTable(wide, []string{"CLUSTER", "STATE", "SEEN", "SIGN-IN", "ROLE", "LEFT", "NOTES"},
		[]string{"LABELS", "SERVER", "API SERVER", "SERVERS", "VERSION", "ID", "KEY"}, rows)
}

// maxExclusions bounds how many clusters tka explains individually.
const maxExclusions = 5

// askDirectory returns the list of clusters from the server of the settings. If that server grants this caller nothing, it returns the list
// from the first server that does, among those that this machine signed in to.
func (t *tka) askDirectory(ctx context.Context) (l *client.Client, d client.Directory, err error) {
	if l, d, err = t.directoryOf(ctx, ""); problem.CodeOf(err) != problem.NoCapability || l == nil || t.server != "" {
		return l, d, err
	}
	known, kerr := t.signedInTargets()
	if kerr != nil {
		return l, d, err
	}
	for _, at := range known {
		if at.server == l.Base {
			continue
		}
		other, list, oerr := t.directoryOf(ctx, at.cluster)
		if oerr == nil {
			t.hint("%s grants you nothing. The list is from %s.", l.Base, other.Base)
			return other, list, nil
		}
	}
	return l, d, err
}

// directoryOf returns the list of clusters from the server of a cluster; "": the server of the settings.
func (t *tka) directoryOf(ctx context.Context, cluster string) (*client.Client, client.Directory, error) {
	l, err := t.connect(ctx, cluster)
	if err != nil {
		return l, client.Directory{}, err
	}
	d, err := t.fetchDirectory(ctx, l)
	return l, d, err
}

// printExclusions explains for each shown cluster that is excluded why tka does not sign in to it.
func (t *tka) printExclusions(shown []client.DirectoryEntry) {
	n := 0
	for _, e := range shown {
		if e.Exclusion == nil || e.Exclusion.Label == "" {
			continue
		}
		if n++; n > maxExclusions {
			continue
		}
		t.hint("tka does not sign in to %s: %s.", e.Name, e.Exclusion.Reason)
		for _, line := range e.Exclusion.Advice {
			t.hint("  try: %s", line)
		}
	}
	if n > maxExclusions {
		t.hint("The same applies to %d more.", n-maxExclusions)
	}
}

// warnRolledBack names the audit logs that lack lines which they once had.
func (t *tka) warnRolledBack(list clusterList) {
	for _, it := range list.Items {
		for _, h := range it.RolledBack() {
			t.warn("the audit log %s (%s) of %s was rolled back: it lacks the line %v", h.Last.Log, h.Role, it.Name, h.RolledBack.Head)
			t.hint("  try: tka audit verify --witness --cluster %s FILE", output.ShellQuote(it.Name))
		}
	}
}

// signInTimeout bounds the requests to one cluster's server, if tka asks the servers of many clusters.
const signInTimeout = 5 * time.Second

// excludeOtherKey excludes an entry if this machine knows its name with another key. A list does not override what this machine knows.
func excludeOtherKey(k config.State, e *client.DirectoryEntry) {
	s, ok := k.ServerOf(e.Name)
	if !ok || e.Exclusion != nil || s.Key.IsZero() || s.Key == e.Key {
		return
	}
	e.Exclusion = &client.Exclusion{Code: output.ExitRefused, Label: "other key", Reason: "this machine knows another key for the cluster, " + s.Key.String(), Advice: []string{
		"Ask an administrator which key is correct. The server lists the key " + e.Key.String() + ".",
		"If you know that the key changed: tka config --forget-server " + output.ShellQuote(s.URL)}}
}

// signIns returns what this device is and may be in the shown clusters, in their order.
func (t *tka) signIns(ctx context.Context, source string, shown []client.DirectoryEntry) []clusterSignIn {
	all := make([]clusterSignIn, len(shown))
	for i := range all {
		all[i].State = "none"
	}
	outcomes, at := t.whoamiAt(ctx, source, shown)
	for i, o := range outcomes {
		s := &all[at[i]]
		switch who := o.value; {
		case o.err != nil:
			s.State, s.Error = "unknown", errorMessage(o.err)
		case who.Signin != nil && who.Signin.State != signin.Ended && who.Signin.State != signin.Ending:
			s.State, s.Role, s.Until = who.Signin.State, who.Signin.Role, who.Signin.Until
		case !who.Decision.Allowed && who.Decision.Code != problem.AmbiguousRole:
			s.State, s.Error = "no grant", who.Decision.Message
		default:
			s.Granted = rolesOf(who)
		}
	}
	return all
}

// whoamiAt asks the servers of all clusters that are not excluded who this device is. at has the index of each outcome in shown.
func (t *tka) whoamiAt(ctx context.Context, source string, shown []client.DirectoryEntry) (outcomes []outcome[signin.Whoami], at []int) {
	var usable []client.DirectoryEntry
	for i, e := range shown {
		if e.Exclusion == nil {
			usable, at = append(usable, e), append(at, i)
		}
	}
	return forEntries(ctx, t, source, usable, func(ctx context.Context, l *client.Client) (signin.Whoami, error) {
		return client.Call(ctx, l, signin.GetWhoami, signin.WhoamiRequest{}) // every caller may ask who it is
	}), at
}

// forEntries calls do for the server of each entry, in parallel, after the server has proved the key of the list. source is the server
// that reported the list. It stores nothing. do also runs for a server that only denies this caller what people without a grant may not
// see.
func forEntries[T any](ctx context.Context, t *tka, source string, entries []client.DirectoryEntry, do func(context.Context, *client.Client) (T, error)) []outcome[T] {
	targets := mapped(entries, func(e client.DirectoryEntry) target { return target{e.Name, e.URL} })
	return forEach(ctx, t, targets, func(ctx context.Context, one *tka, p target) (none T, err error) {
		ctx, cancel := context.WithTimeout(ctx, signInTimeout)
		defer cancel()
		one.quiet, one.dryRun = true, true
		e := entries[slices.Index(targets, p)]
		l, err := one.connectEntry(ctx, source, e)
		if err != nil && (l == nil || l.Denied == nil) {
			return none, err
		}
		return do(ctx, l)
	})
}

// rolesOf returns the roles that a caller may sign in with, the one that a login gives first.
func rolesOf(who signin.Whoami) (roles []string) {
	for _, r := range who.Rules {
		switch {
		case r.Problem != "" || slices.Contains(roles, r.Role):
		case r.Chosen:
			roles = append([]string{r.Role}, roles...)
		default:
			roles = append(roles, r.Role)
		}
	}
	return roles
}

func memberColor(s gossip.State) output.Color {
	switch s {
	case gossip.Alive:
		return output.Green
	case gossip.Suspect, gossip.Unknown:
		return output.Yellow
	}
	return output.Red
}

func (t *tka) clusterInfo() *cobra.Command {
	var cluster string
	return t.clusterFlag(&cobra.Command{
		Use:   "cluster-info",
		Short: "Show how to reach the server's cluster",
		Long: `Show the name, address, certificate authority and labels of the access server's cluster.
With -o wide, also show the key with which the server proves its identity.`,
		Example: "  tka cluster-info\n  tka cluster-info --server tka-staging -o yaml",
		RunE:    func(cmd *cobra.Command, _ []string) error { return t.doClusterInfo(cmd.Context(), cluster) },
	}, &cluster, "cluster to show; this machine or its server must know it", t.clusterNames)
}

// clusterItem is what a server reports about its cluster.
type clusterItem struct {
	meta
	Name      string            `json:"name"`
	Server    string            `json:"server"` // the access server's URL
	APIServer string            `json:"apiServer"`
	CASHA256  string            `json:"caSHA256"` // of the first certificate, in hexadecimal
	CAData    []byte            `json:"caData"`   // PEM, base64
	Labels    map[string]string `json:"labels"`
	Version   string            `json:"version"` // of the access server
	Insecure  bool              `json:"insecureSkipTLSVerify"`
	ID        string            `json:"id"`
	Key       string            `json:"key"` // with which the server proved its identity
	Modes     []signin.Mode     `json:"modes"`
	Proxies   []string          `json:"proxies"` // URLs of the access proxies
}

func (t *tka) doClusterInfo(ctx context.Context, cluster string) error {
	l, err := t.connect(ctx, cluster)
	if err != nil {
		return err
	}
	info := l.Info
	item := clusterItem{newMeta("ClusterInfo"), info.Name, l.Base, info.ServerURL, fingerprint(info.CAData), info.CAData, info.Labels, info.Version, info.InsecureSkipTLSVerify,
		info.ID, l.Key.String(), info.AccessModes(), mapped(info.Proxies, func(p signin.ProxyServer) string { return p.URL })}
	item.Proxies = nonNil(item.Proxies)
	if item.Labels == nil {
		item.Labels = map[string]string{}
	}
	return t.printResult(result{object: item, names: []string{"cluster/" + item.Name}, table: func(wide bool) {
		t.writeTable(wide, []string{"CLUSTER", "API SERVER", "VERSION", "LABELS"}, []string{"SERVER", "KEY", "CA SHA-256"}, [][]output.Cell{
			output.Row(item.Name, item.APIServer, item.Version, formatLabels(item.Labels), item.Server, item.Key, item.CASHA256)})
		if item.Insecure {
			t.warn("connections to this cluster do not verify its certificate; tka does not write such an entry")
		}
	}})
}

// formatLabels formats labels for people, sorted by key.
func formatLabels(labels map[string]string) string {
	var pairs []string
	for _, k := range slices.Sorted(maps.Keys(labels)) {
		pairs = append(pairs, k+"="+labels[k])
	}
	return strings.Join(pairs, ",")
}

// fingerprint returns the SHA-256 of the first PEM certificate in hexadecimal, or "" without one.
func fingerprint(ca []byte) string {
	block, _ := pem.Decode(ca)
	if block == nil {
		return ""
	}
	sum := sha256.Sum256(block.Bytes)
	return hex.EncodeToString(sum[:])
}
