package client

import (
	"cmp"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"k8s.io/apimachinery/pkg/labels"
	"k8s.io/apimachinery/pkg/selection"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/gossip"
)

// A Directory is the list of clusters that one server reported. It is immutable.
type Directory struct {
	Server      string   // URL of the server that reported the list
	OwnCluster  string   // name of that server's cluster
	Isolated    bool     // the server hears no other server
	Unsupported bool     // the server's version knows only its own cluster
	Refused     []string // servers whose records it does not list, with the reason; an unproved hint
	Entries     []DirectoryEntry
}

// A DirectoryEntry is one cluster.
type DirectoryEntry struct {
	gossip.Cluster
	ServerURLs []string   // URLs of its servers, the first to try first
	Exclusion  *Exclusion // nil: a person may sign in to it
}

// An Exclusion is why tka does not sign in to a cluster.
type Exclusion struct {
	Code   int    // exit code
	Label  string // one or two words
	Reason string // the rest of a sentence about the cluster
	Advice []string
}

// NewDirectory judges the clusters that a server reported. address normalises a server's URL, or returns why this machine does not use it.
func NewDirectory(server, own string, clusters []gossip.Cluster, address func(string) (string, error)) Directory {
	d := Directory{Server: server, OwnCluster: own}
	tailnet := tailnetScopeOf(server)
	if i := slices.IndexFunc(clusters, func(c gossip.Cluster) bool { return c.Self }); i >= 0 && tailnet.suffix == "" {
		tailnet.suffix = suffixOf(hostOf(clusters[i].URL))
	}
	for _, c := range clusters {
		e := DirectoryEntry{Cluster: c, ServerURLs: []string{server}}
		if !c.Self { // this server's address is known
			e.ServerURLs, e.Exclusion = serverURLs(c, tailnet, address)
		}
		if exclusion := exclusionOf(c); exclusion != nil {
			e.ServerURLs, e.Exclusion = nil, exclusion
		}
		d.Entries = append(d.Entries, e)
	}
	slices.SortStableFunc(d.Entries, byName)
	return d
}

func byName(a, b DirectoryEntry) int {
	return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID))
}

// exclusionOf returns the reason against signing in to a cluster, other than its address; nil: none.
func exclusionOf(c gossip.Cluster) *Exclusion {
	switch {
	case c.Conflict:
		return &Exclusion{output.ExitRefused, "conflict", "another server is known as this cluster, with a different key", []string{
			"Ask an administrator of the clusters which key is correct. The server lists the key " + c.Key.String() + ".",
			"If the cluster lost its key and has a new one, an administrator of the server must remove the old key."}}
	case !c.Verified, c.Key.IsZero():
		return &Exclusion{output.ExitRefused, "unverified", "the server has not contacted it yet, so its key is not verified", []string{
			"Try again in a moment: the server is trying to contact it.",
			"If you know its server and its key, select the server: tka login --server NAME"}}
	case !dialpolicy.IsClusterName(c.Name):
		return &Exclusion{output.ExitRefused, "bad name", "its name is not a valid cluster name", []string{"Ask an administrator of that cluster."}}
	}
	switch c.State {
	case gossip.Alive, gossip.Suspect:
		return nil
	case gossip.Gone:
		return &Exclusion{output.ExitUnreachable, "", "its server has left", []string{"See all clusters: tka clusters --all"}}
	case gossip.Dead:
		return &Exclusion{output.ExitUnreachable, "", "its server no longer responds", []string{"See when it was last seen: tka clusters --all"}}
	}
	return &Exclusion{output.ExitUnreachable, "", "the state of its server is unknown", []string{"Try again in a moment."}}
}

// serverURLs returns the URLs of a cluster's servers. The first is the URL in the record. The others are those of live members and differ
// from it only in the host.
func serverURLs(c gossip.Cluster, t tailnetScope, address func(string) (string, error)) ([]string, *Exclusion) {
	elsewhere := func(why string) *Exclusion {
		return &Exclusion{output.ExitRefused, "elsewhere", why, []string{"If you know its server, select it: tka login --server NAME"}}
	}
	base, err := address(c.URL)
	if err != nil {
		return nil, elsewhere("its server, " + dialpolicy.RedactURL(c.URL) + ", is not usable: " + err.Error())
	}
	if !t.contains(hostOf(base)) {
		return nil, elsewhere("its server, " + base + ", is outside the tailnet of the server that listed it")
	}
	all := []string{base}
	u, err := url.Parse(base)
	if err != nil {
		return all, nil
	}
	for _, m := range c.Members[:min(len(c.Members), maxReplicas)] {
		if m.State != gossip.Alive && m.State != gossip.Suspect || !t.contains(m.Host) {
			continue
		}
		other := url.URL{Scheme: u.Scheme, Host: m.Host}
		if p := u.Port(); p != "" {
			other.Host += ":" + p
		}
		if next, err := address(other.String()); err == nil && !slices.Contains(all, next) {
			all = append(all, next)
		}
	}
	return all, nil
}

// Replicas returns the URLs of the other servers of the cluster, as the server has proved. It leaves out those outside the server's tailnet.
// The list gives addresses only: each server must prove the key of the cluster. address is as in [NewDirectory].
func (c *Client) Replicas(address func(string) (string, error)) (urls []string) {
	tailnet := tailnetScopeOf(c.Base)
	for _, s := range c.Info.Servers[:min(len(c.Info.Servers), maxReplicas+1)] {
		base, err := address(s)
		if err == nil && base != c.Base && tailnet.contains(hostOf(base)) && len(urls) < maxReplicas && !slices.Contains(urls, base) {
			urls = append(urls, base)
		}
	}
	return urls
}

// maxReplicas bounds how many servers of one cluster tka tries.
const maxReplicas = 8

// A tailnetScope is the network in which servers that another server names must be.
type tailnetScope struct {
	suffix string // suffix of names; "": unknown, so it contains no name
	local  bool   // the server that names them is on this machine, so they may be too
}

func tailnetScopeOf(base string) tailnetScope {
	host := hostOf(base)
	addr, err := netip.ParseAddr(host)
	return tailnetScope{suffixOf(host), err == nil && addr.IsLoopback()}
}

// suffixOf returns the common suffix of a tailnet's names, from one of them. It returns "" if the name does not show it. A suffix that many
// tailnets share does not count.
func suffixOf(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	_, suffix, _ := strings.Cut(host, ".")
	if !strings.Contains(suffix, ".") || suffix == "ts.net" || suffix == "beta.tailscale.net" {
		return ""
	}
	return "." + suffix
}

func (t tailnetScope) contains(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return dialpolicy.IsTailnetAddr(addr) || t.local && addr.Unmap().IsLoopback()
	}
	return t.suffix != "" && strings.HasSuffix(host, t.suffix)
}

// hostOf returns the host of a URL, in the form in which hosts are compared.
func hostOf(base string) string {
	u, err := url.Parse(base)
	if err != nil {
		return ""
	}
	return strings.ToLower(strings.TrimSuffix(u.Hostname(), "."))
}

// Resolve returns the cluster with a name or an id. The error is an *output.Error: there is no such cluster,
// there are several, or it is excluded.
func (d Directory) Resolve(name string) (DirectoryEntry, error) {
	// unreachable clusters may be meant too: another cluster of that name must not win because they are down
	var usable, excluded, unreachable []DirectoryEntry
	for _, e := range d.Entries {
		switch {
		case e.Name != name && e.ID != name:
		case e.Exclusion != nil:
			excluded = append(excluded, e)
			if e.Verified && !e.Conflict {
				unreachable = append(unreachable, e)
			}
		default:
			usable = append(usable, e)
		}
	}
	switch {
	case len(usable) > 0:
		return d.resolveUnique(name, usable, unreachable)
	case len(excluded) > 0:
		worst := slices.MaxFunc(excluded, func(a, b DirectoryEntry) int { return cmp.Compare(b.Exclusion.Code, a.Exclusion.Code) }) // refusals first
		f := output.Errorf(worst.Exclusion.Code, "tka does not sign in to %s: %s", worst.Name, worst.Exclusion.Reason)
		f.Advice = slices.Clone(worst.Exclusion.Advice)
		return DirectoryEntry{}, f
	}
	f := output.Errorf(output.ExitRefused, "The server %s serves the cluster %s, not %s, and knows no cluster with that name", d.Server, d.OwnCluster, name)
	if suggestion := output.Suggest(name, d.Names()); suggestion != "" {
		f.Try("Did you mean %s?", suggestion)
	}
	return DirectoryEntry{}, f.Try("See the clusters: tka clusters").Try("Select the access server of %s: --server NAME", name)
}

// resolveUnique returns the single cluster with a name. It is the entry in the best state among those that are not excluded. All
// candidates, including unreachable ones, must have the same id and key.
func (d Directory) resolveUnique(name string, usable, unreachable []DirectoryEntry) (DirectoryEntry, error) {
	best := slices.MinFunc(usable, func(a, b DirectoryEntry) int { return cmp.Compare(stateRank(a.State), stateRank(b.State)) })
	all := slices.Concat(usable, unreachable)
	if !slices.ContainsFunc(all, func(e DirectoryEntry) bool { return e.ID != best.ID || e.Key != best.Key }) {
		return best, nil
	}
	f := output.UsageErrorf("The server %s knows several clusters with the name %s", d.Server, name)
	slices.SortStableFunc(all, byName)
	for _, e := range all[:min(len(all), output.MaxAdvice)] {
		f.Try("--cluster %s   (%s, by %s)", output.ShellQuote(e.ID), e.Name, dialpolicy.RedactURL(e.URL))
	}
	return DirectoryEntry{}, f
}

func stateRank(s gossip.State) int { return slices.Index(gossip.States(), s) }

// HasConflict reports whether an entry in conflict has the name or the id of e.
func (d Directory) HasConflict(e DirectoryEntry) bool {
	return slices.ContainsFunc(d.Entries, func(o DirectoryEntry) bool { return o.Conflict && (o.Name == e.Name || o.ID == e.ID) })
}

// Filter returns the entries that match selector. Without all, it leaves out dead clusters and those that have left; hidden is how many it left
// out.
func (d Directory) Filter(all bool, selector labels.Selector) (shown []DirectoryEntry, hidden int) {
	for _, e := range d.Entries {
		switch {
		case !selector.Matches(labels.Set(e.Labels)):
		case !all && !e.Available():
			hidden++
		default:
			shown = append(shown, e)
		}
	}
	return shown, hidden
}

// Names returns the names of the clusters that are not excluded, each once.
func (d Directory) Names() (names []string) {
	for _, e := range d.Entries {
		if e.Exclusion == nil {
			names = append(names, e.Name)
		}
	}
	return slices.Compact(names) // the entries are sorted by name
}

// ParseSelector parses terms of the forms key=value, key==value, key!=value, key and !key, separated by commas. As in kubectl, all terms must
// match, and key!=value also matches a cluster without the label. The empty text selects every cluster.
func ParseSelector(text string) (labels.Selector, error) {
	if text == "" {
		return labels.Everything(), nil
	}
	operators := []selection.Operator{selection.Equals, selection.DoubleEquals, selection.NotEquals, selection.Exists, selection.DoesNotExist}
	selector := labels.NewSelector()
	for part := range strings.SplitSeq(text, ",") {
		terms, err := labels.ParseToRequirements(part)
		if err != nil || len(strings.Fields(part)) != 1 || !slices.Contains(operators, terms[0].Operator()) {
			return nil, fmt.Errorf("%.80q does not have the form key=value, key!=value, key or !key", part)
		}
		selector = selector.Add(terms...)
	}
	return selector, nil
}
