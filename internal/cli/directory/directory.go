// Package directory handles the list of clusters that a server reports. It decides which clusters tka shows and which tka signs in to. It
// keeps law 5: the list gives only the address of a cluster and the key that the cluster's server must prove. tka shows a doubtful entry
// with the reason and never signs in to it.
package directory

import (
	"cmp"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/reach"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/cli/spelling"
	"github.com/tailplane/tailplane/internal/gossip"
)

// A Directory is the list of clusters that one server reported. It is immutable.
type Directory struct {
	Server   string   // URL of the server that reported the list
	Own      string   // name of that server's cluster
	Isolated bool     // the server hears no other server
	Old      bool     // the server's version knows only its own cluster
	Refused  []string // servers whose records it does not list, with the reason; an unproved hint
	Entries  []Entry
}

// An Entry is one cluster.
type Entry struct {
	gossip.Cluster
	Bases []string // URLs of its servers, the first to try first
	Doubt *Doubt   // nil: a person may sign in to it
}

// A Doubt is why tka does not sign in to a cluster.
type Doubt struct {
	Code   int    // exit code
	Mark   string // one or two words
	Why    string // the rest of a sentence about the cluster
	Advice []string
}

// New judges the clusters that a server reported. address normalises a server's URL, or returns why this machine does not use it.
func New(server, own string, clusters []gossip.Cluster, address func(string) (string, error)) Directory {
	d := Directory{Server: server, Own: own}
	tailnet := tailnetOf(server)
	if i := slices.IndexFunc(clusters, func(c gossip.Cluster) bool { return c.Self }); i >= 0 && tailnet.suffix == "" {
		tailnet.suffix = suffixOf(hostOf(clusters[i].URL))
	}
	for _, c := range clusters {
		e := Entry{Cluster: c, Bases: []string{server}}
		if !c.Self { // this server's address is known
			e.Bases, e.Doubt = bases(c, tailnet, address)
		}
		if worse := doubt(c); worse != nil {
			e.Bases, e.Doubt = nil, worse
		}
		d.Entries = append(d.Entries, e)
	}
	slices.SortStableFunc(d.Entries, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	return d
}

// doubt returns the reason against signing in to a cluster, other than its address; nil: none.
func doubt(c gossip.Cluster) *Doubt {
	switch {
	case c.Conflict:
		return &Doubt{fault.Refused, "conflict", "somebody else is known as this cluster, by another key", []string{
			"Ask whoever runs the clusters which key is the right one; here it is " + c.Key.String() + ".",
			"If the cluster's key was lost and made anew, an administrator of the server has to forget the old one."}}
	case !c.Verified, c.Key.IsZero():
		return &Doubt{fault.Refused, "unverified", "the server has not met it itself, so nothing proves that its key is its own", []string{
			"Try again in a moment: the server is looking for it.",
			"If you know its server and its key, name the server yourself: tka login --server NAME"}}
	case !reach.IsCluster(c.Name):
		return &Doubt{fault.Refused, "bad name", "its name is not that of a cluster", []string{"Ask whoever runs it."}}
	}
	switch c.State {
	case gossip.Alive, gossip.Suspect:
		return nil
	case gossip.Gone:
		return &Doubt{fault.Unreachable, "", "its server has left", []string{"See all clusters: tka clusters --all"}}
	case gossip.Dead:
		return &Doubt{fault.Unreachable, "", "its server is gone without a word", []string{"See when it was last seen: tka clusters --all"}}
	}
	return &Doubt{fault.Unreachable, "", "whether its server is there is not known", []string{"Try again in a moment."}}
}

// bases returns the URLs of a cluster's servers. The first is the URL in the record. The others are those of live members and differ from
// it only in the host.
func bases(c gossip.Cluster, t tailnet, address func(string) (string, error)) ([]string, *Doubt) {
	elsewhere := func(why string) *Doubt {
		return &Doubt{fault.Refused, "elsewhere", why, []string{"If you know its server, name it yourself: tka login --server NAME"}}
	}
	base, err := address(c.URL)
	if err != nil {
		return nil, elsewhere("its server, " + reach.Redacted(c.URL) + ", is not used: " + err.Error())
	}
	if !t.holds(hostOf(base)) {
		return nil, elsewhere("its server, " + base + ", is outside the tailnet of the server that told of it")
	}
	all := []string{base}
	u, err := url.Parse(base)
	if err != nil {
		return all, nil
	}
	for _, m := range c.Members[:min(len(c.Members), maxReplicas)] {
		if m.State != gossip.Alive && m.State != gossip.Suspect || !t.holds(m.Host) {
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

// maxReplicas bounds how many servers of one cluster tka tries.
const maxReplicas = 8

// A tailnet is the network in which servers that another server names must be.
type tailnet struct {
	suffix string // suffix of names; "": unknown, so it contains no name
	here   bool   // the server that names them is on this machine, so they may be too
}

func tailnetOf(base string) tailnet {
	host := hostOf(base)
	addr, err := netip.ParseAddr(host)
	return tailnet{suffixOf(host), err == nil && addr.IsLoopback()}
}

// suffixOf returns the common suffix of a tailnet's names, from one of them. It returns "" if the name does not show it. A suffix that many
// tailnets share does not count.
func suffixOf(host string) string {
	if _, err := netip.ParseAddr(host); err == nil {
		return ""
	}
	_, suffix, _ := strings.Cut(host, ".")
	switch {
	case !strings.Contains(suffix, "."), suffix == "ts.net", suffix == "beta.tailscale.net":
		return ""
	}
	return "." + suffix
}

func (t tailnet) holds(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return reach.IsTailnet(addr) || t.here && addr.Unmap().IsLoopback()
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

// Choose returns the cluster with a name or an id. The error is a fault: there is no such cluster, there are several, or it is in doubt.
func (d Directory) Choose(name string) (Entry, error) {
	var sure, doubtful []Entry
	var away []Entry // unreachable clusters may be meant too: another cluster of that name must not win because they are down
	for _, e := range d.Entries {
		switch {
		case e.Name != name && e.ID != name:
		case e.Doubt != nil:
			doubtful = append(doubtful, e)
			if e.Verified && !e.Conflict {
				away = append(away, e)
			}
		default:
			sure = append(sure, e)
		}
	}
	switch {
	case len(sure) > 0:
		return d.one(name, sure, away)
	case len(doubtful) > 0:
		worst := slices.MaxFunc(doubtful, func(a, b Entry) int { return cmp.Compare(b.Doubt.Code, a.Doubt.Code) }) // refusals first
		f := fault.New(worst.Doubt.Code, "tka does not sign in to %s: %s", worst.Name, worst.Doubt.Why)
		f.Advice = slices.Clone(worst.Doubt.Advice)
		return Entry{}, f
	}
	var names []string
	for _, e := range d.Entries {
		if e.Doubt == nil {
			names = append(names, e.Name)
		}
	}
	f := fault.New(fault.Refused, "The server %s is of the cluster %s, not of %s, and knows no cluster of that name", d.Server, d.Own, name)
	if near := spelling.Nearest(name, names); near != "" {
		f.Try("Did you mean %s?", near)
	}
	return Entry{}, f.Try("See the clusters: tka clusters").Try("Name the access server of %s: --server NAME", name)
}

// one returns the single cluster with a name. It is the entry in the best state among those without a doubt. All candidates, including
// unreachable ones, must have the same id and key.
func (d Directory) one(name string, sure, away []Entry) (Entry, error) {
	best := slices.MinFunc(sure, func(a, b Entry) int { return cmp.Compare(rank(a.State), rank(b.State)) })
	all := slices.Concat(sure, away)
	if !slices.ContainsFunc(all, func(e Entry) bool { return e.ID != best.ID || e.Key != best.Key }) {
		return best, nil
	}
	f := fault.Usage("The server %s knows several clusters by the name %s", d.Server, name)
	slices.SortStableFunc(all, func(a, b Entry) int { return cmp.Or(cmp.Compare(a.Name, b.Name), cmp.Compare(a.ID, b.ID)) })
	for _, e := range all[:min(len(all), fault.MaxAdvice)] {
		f.Try("--cluster %s   (%s, by %s)", screen.Word(e.ID), e.Name, reach.Redacted(e.URL))
	}
	return Entry{}, f
}

func rank(s gossip.State) int { return slices.Index(gossip.States(), s) }

// Contested reports whether an entry in conflict has the name or the id of e.
func (d Directory) Contested(e Entry) bool {
	return slices.ContainsFunc(d.Entries, func(o Entry) bool { return o.Conflict && (o.Name == e.Name || o.ID == e.ID) })
}

// Shown returns the entries that match pick. Without all, it leaves out dead clusters and those that have left; hidden is how many it left
// out.
func (d Directory) Shown(all bool, pick Selector) (shown []Entry, hidden int) {
	for _, e := range d.Entries {
		switch {
		case !pick.Matches(e.Labels):
		case !all && !e.Available():
			hidden++
		default:
			shown = append(shown, e)
		}
	}
	return shown, hidden
}

// Names returns the names of the clusters without a doubt, each once.
func (d Directory) Names() (names []string) {
	for _, e := range d.Entries {
		if e.Doubt == nil {
			names = append(names, e.Name)
		}
	}
	return slices.Compact(names) // the entries are sorted by name
}
