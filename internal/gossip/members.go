package gossip

import (
	"cmp"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
)

// Members is one node's view of all members at one moment. It is immutable.
type Members struct {
	At       time.Time
	Isolated bool     // this node hears no other node, so it declares none dead
	List     []Member // sorted by node; includes this server once it has announced itself
	Refused  []Refusal
	// OldestContact is the longest time since direct contact with any member that is not gone; 0 without members.
	OldestContact time.Duration
}

// A Member is one access server.
type Member struct {
	*Record
	State    State
	LastSeen time.Time // as this node observed it; zero: never
	Verified bool
	Conflict bool
	Self     bool
	Proxied  bool     // people reach the API server only through the proxy
	Witness  *Witness // of its audit logs; nil: none, or this server
}

// snapshot returns an immutable view that callers may read while the engine continues.
func (e *engine) snapshot(now time.Time) *Members {
	at := e.clock(now)
	s := &Members{At: now, Isolated: e.isolated, List: make([]Member, 0, len(e.list)+1)}
	if e.own != nil {
		state := Alive
		if e.own.Status == Left {
			state = Gone
		}
		s.List = append(s.List, Member{Record: e.own, State: state, LastSeen: now, Verified: true, Self: true, Proxied: e.isProxied()})
	}
	for _, m := range e.list {
		var seen time.Time
		if m.seen != never {
			seen = now.Add(m.seen - at)
		}
		if !m.gone() {
			s.OldestContact = max(s.OldestContact, at-max(m.contact, m.since))
		}
		s.List = append(s.List, Member{Record: m.entry.Record, State: m.state, LastSeen: seen, Verified: m.verified, Conflict: m.entry.Conflict, Proxied: m.entry.Proxied, Witness: m.entry.Witness})
	}
	slices.SortFunc(s.List, func(a, b Member) int { return strings.Compare(a.Node, b.Node) })
	for _, r := range e.view.refused.All() { // in the order of nodes
		s.Refused = append(s.Refused, r)
	}
	return s
}

// leave announces f and that this node leaves. It returns the calls that report this to members, those heard most recently first.
func (e *engine) leave(f Facts, now time.Time) ([]call, error) {
	if err := e.announce(f, Left, now); err != nil {
		return nil, err
	}
	var calls []call
	lately := slices.SortedFunc(slices.Values(e.list), func(a, b *member) int { return cmp.Compare(b.contact, a.contact) })
	for _, m := range lately {
		p, ok := e.netmap.Find(m.id)
		if !ok || m.gone() {
			continue
		}
		calls = append(calls, call{p, e.encodeMessage(message{Records: []Signed{e.own.Signed}}, kindDelta)})
		if len(calls) == 8*leaveTargets { // some of them may have left too
			break
		}
	}
	return calls, nil
}

// Count returns how many members are in each state.
func (s *Members) Count() map[State]int {
	n := map[State]int{}
	for _, m := range s.List {
		n[m.State]++
	}
	return n
}

// maxServers bounds how many servers of one cluster [ServersOf] returns.
const maxServers = 8

// ServersOf returns the base URLs of the sign-in API of a cluster's servers, this server's first. It returns only members that this server has
// verified, that have the given key, and that are not known to be gone.
func ServersOf(s *Members, cluster string, key httpapi.PublicKey) (urls []string) {
	for _, m := range s.List {
		switch {
		case m.ClusterID != cluster, m.Key != key, !m.Verified, m.Conflict, m.URL == "", m.State != Alive && m.State != Suspect:
		case m.Self:
			urls = append([]string{m.URL}, urls...)
		default:
			urls = append(urls, m.URL)
		}
	}
	return urls[:min(len(urls), maxServers)]
}

// A Cluster is one entry of the memberlist: all members that serve it. Existing clients read the first three fields.
type Cluster struct {
	APIEndpoint string            `json:"apiEndpoint" doc:"URL of the Kubernetes API"`
	APIPort     uint16            `json:"apiPort"`
	Labels      map[string]string `json:"labels"`
	Proxies     []Proxy           `json:"proxies,omitempty" doc:"access proxies of the publishing server's own cluster; only in the published list"`
	Proxy       string            `json:"proxy,omitempty" doc:"URL of the cluster's access proxy, if the address of the API server is private; apiEndpoint is the same then"`

	Name     string            `json:"name"`
	ID       string            `json:"id"`
	URL      string            `json:"url" doc:"base URL of the sign-in API of a live member"`
	State    State             `json:"state" enum:"alive,suspect,unknown,dead,left" doc:"the best state of the cluster's members"`
	LastSeen time.Time         `json:"lastSeen,omitzero" doc:"when the answering server last saw the cluster; absent: never"`
	Verified bool              `json:"verified" doc:"the node and the key match the pins; sign-in is possible only then"`
	Conflict bool              `json:"conflict" doc:"another node or key is already known for this cluster"`
	Self     bool              `json:"self" doc:"true for the cluster of the answering server"`
	CAHash   string            `json:"caHash"`
	Key      httpapi.PublicKey `json:"key"`
	Software string            `json:"software"`
	Members  []ClusterMember   `json:"members"`
	// AuditLogs are the cluster's audit logs as its servers stated them, with the highest line that the answering server has seen.
	AuditLogs []audit.SignedHead `json:"auditLogs,omitempty" doc:"the cluster's audit logs: the highest line of each that the answering server has witnessed"`
}

// A ClusterMember is one access server of a cluster.
type ClusterMember struct {
	Node     string    `json:"node"`
	Host     string    `json:"host"`
	State    State     `json:"state"`
	LastSeen time.Time `json:"lastSeen,omitzero"`
}

// A Proxy is an access proxy of the cluster of the server that published a list.
type Proxy struct {
	URL    string `json:"url"`
	CAData []byte `json:"caData,omitempty"` // PEM; none: its certificate is public
}

// Available reports whether a list shows the cluster by default, without "all".
func (c Cluster) Available() bool { return c.State != Dead && c.State != Gone }

// RolledBack returns the audit logs of the cluster that lack lines which they once had.
func (c Cluster) RolledBack() (logs []audit.SignedHead) {
	for _, h := range c.AuditLogs {
		if !h.RolledBack.IsZero() {
			logs = append(logs, h)
		}
	}
	return logs
}

// RolledBack returns the number of clusters with an audit log that lacks lines which it once had. It does not count what members state that
// contest a cluster, or that no pin binds to it.
func (s *Members) RolledBack() int {
	clusters, _ := s.Clusters(true)
	n := 0
	for _, c := range clusters {
		if c.Verified && !c.Conflict && len(c.RolledBack()) > 0 {
			n++
		}
	}
	return n
}

// Clusters returns one entry for each cluster, sorted by name and id. It includes dead clusters and clusters that have left only with all;
// hidden is how many it left out. A member that contests a cluster gets a separate entry, so that nothing of it enters the entry of the
// others.
func (s *Members) Clusters(all bool) (clusters []Cluster, hidden int) {
	type claim struct {
		id       string
		key      httpapi.PublicKey
		conflict bool
	}
	groups := map[claim][]Member{}
	for _, m := range s.List {
		k := claim{m.ClusterID, m.Key, m.Conflict}
		groups[k] = append(groups[k], m)
	}
	clusters = []Cluster{}
	for _, members := range groups {
		c := clusterOf(members)
		if !all && !c.Available() {
			hidden++
			continue
		}
		clusters = append(clusters, c)
	}
	slices.SortFunc(clusters, func(a, b Cluster) int {
		return cmp.Or(strings.Compare(a.Name, b.Name), strings.Compare(a.ID, b.ID), strings.Compare(a.Key.String(), b.Key.String()),
			cmp.Compare(boolOrder(a.Conflict), boolOrder(b.Conflict)))
	})
	return clusters, hidden
}

// boolOrder sorts true after false.
func boolOrder(b bool) int {
	if b {
		return 1
	}
	return 0
}

// clusterOf returns the entry for the members of one cluster. Its values come from the best member: this server first, then verified
// members, then by state.
func clusterOf(members []Member) Cluster {
	states := States()
	slices.SortFunc(members, func(a, b Member) int {
		return cmp.Or(cmp.Compare(boolOrder(!a.Self), boolOrder(!b.Self)), cmp.Compare(boolOrder(!a.Verified), boolOrder(!b.Verified)),
			cmp.Compare(slices.Index(states, a.State), slices.Index(states, b.State)), strings.Compare(a.Node, b.Node))
	})
	best := members[0]
	endpoint, port, proxy := best.publicEndpoint()
	c := Cluster{APIEndpoint: endpoint, APIPort: port, Proxy: proxy, Labels: best.Labels, Name: best.ClusterName, ID: best.ClusterID, URL: best.URL,
		State: best.State, LastSeen: displayTime(best.LastSeen), Verified: best.Verified, Conflict: best.Conflict, Self: best.Self, CAHash: best.CAHash, Key: best.Key,
		Software: best.Software, Members: make([]ClusterMember, 0, len(members)), AuditLogs: auditLogs(members)}
	if c.Labels == nil {
		c.Labels = map[string]string{}
	}
	for _, m := range members {
		c.Members = append(c.Members, ClusterMember{m.Node, m.Host, m.State, displayTime(m.LastSeen)})
	}
	return c
}

// displayTime returns a time in the form for output: UTC, in whole seconds.
func displayTime(t time.Time) time.Time {
	if t.IsZero() {
		return t
	}
	return t.UTC().Truncate(time.Second)
}

// NewStandaloneMembers returns the members of a server that does not gossip: only itself.
func NewStandaloneMembers(f Facts, now time.Time) *Members {
	r := &Record{Facts: f, Status: Up}
	return &Members{At: now, List: []Member{{Record: r, State: Alive, LastSeen: now, Verified: true, Self: true}}}
}
