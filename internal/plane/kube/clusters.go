package kube

import (
	"cmp"
	"encoding/json"
	"fmt"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/gossip/controller"
	"github.com/tailplane/tailplane/internal/plane"
)

// maxClusterListAge is the maximum age of the member list. The access server that writes it updates its own entry once a minute.
const maxClusterListAge = 3 * time.Minute

// clusterList converts the member list that an access server publishes.
type clusterList struct {
	version string               // of this program; "": unknown
	proxies func([]gossip.Proxy) // receives the access proxies of this cluster; nil: nobody

	mu      sync.Mutex
	at      time.Time // of the list
	omitted int
}

// clusters converts the list to clusters.
func (m *clusterList) clusters(o *corev1.ConfigMap, _ time.Time) ([]plane.Object, string) {
	var list controller.Members
	text, found := o.Data[controller.MembersData]
	if !found {
		return nil, fmt.Sprintf("The ConfigMap %s/%s has no list yet: no access server has published one.", o.Namespace, o.Name)
	}
	if err := json.Unmarshal([]byte(text), &list); err != nil {
		return nil, fmt.Sprintf("The list of members in the ConfigMap %s/%s cannot be read.", o.Namespace, o.Name)
	}
	m.mu.Lock()
	m.at, m.omitted = list.ObservedAt, list.Omitted
	m.mu.Unlock()
	all := []plane.Object{}
	for _, c := range list.Clusters {
		if c.Self && m.proxies != nil {
			m.proxies(c.Proxies)
		}
		all = append(all, m.cluster(c, list.ObservedAt.UTC()))
	}
	return all, ""
}

func (m *clusterList) cluster(c gossip.Cluster, at time.Time) plane.Cluster {
	out := plane.Cluster{ID: c.ID, Name: c.Name, Endpoint: c.APIEndpoint, Port: int(c.APIPort), URL: c.URL, Labels: c.Labels, Health: healthOf(c.State), LastSeen: orNil(c.LastSeen.UTC()),
		Verified: c.Verified, Conflict: c.Conflict, Self: c.Self, Version: c.Software, Members: []plane.ClusterMember{}, ObservedAt: at}
	if c.Conflict { // a contesting server claims the same cluster id
		out.ID = c.ID + " contested by " + c.Key.String()
	}
	if m.version != "" && c.Software != "" {
		out.Skew = new(m.version != c.Software)
	}
	for _, x := range c.Members {
		out.Members = append(out.Members, plane.ClusterMember{Node: x.Node, Host: x.Host, Health: healthOf(x.State), LastSeen: orNil(x.LastSeen.UTC())})
	}
	return out
}

// stale returns what is wrong with the list as a whole, or "".
func (m *clusterList) stale(now time.Time) string {
	m.mu.Lock()
	defer m.mu.Unlock()
	switch {
	case now.Sub(m.at) > maxClusterListAge:
		return fmt.Sprintf("No access server has published the clusters since %s.", m.at.UTC().Format(time.RFC3339))
	case m.omitted > 0:
		return fmt.Sprintf("The access server's list omits %d clusters for lack of space.", m.omitted)
	}
	return ""
}

// healthOf returns a state in the plane's spelling: "Alive" for "alive".
func healthOf(s gossip.State) string {
	s = cmp.Or(s, gossip.Unknown)
	return strings.ToUpper(string(s[:1])) + string(s[1:])
}
