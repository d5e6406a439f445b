package settings

import (
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// Gossip configures how this server finds the servers of other clusters.
type Gossip struct {
	Enabled         bool            `yaml:"enabled"` // false: no listener and no requests; the list has only this cluster
	Network         string          `yaml:"network"` // messages of servers with another name are refused
	Port            uint16          `yaml:"port"`
	Interval        Duration        `yaml:"interval"`                 // between rounds
	Fanout          int             `yaml:"fanout"`                   // servers contacted in each round
	Tags            []string        `yaml:"tags,omitempty,flow"`      // a node with one of these tags is a server
	Peers           []string        `yaml:"peers,omitempty"`          // servers to contact first; empty: all nodes with a tag
	Trust           Trust           `yaml:"trust"`                    // which keys are trusted
	Pins            []Pin           `yaml:"pins,omitempty"`           // keys of clusters; they have priority over keys from a first contact
	AllowEndpoints  []string        `yaml:"allowEndpoints,omitempty"` // private networks and names that servers may announce
	MaxMembers      int             `yaml:"maxMembers"`
	MaxMessageBytes int             `yaml:"maxMessageBytes"`
	ForgetAfter     Duration        `yaml:"forgetAfter"` // how long a dead server stays in the list
	ClusterProfiles ClusterProfiles `yaml:"clusterProfiles"`
}

// Trust sets which keys of clusters are trusted.
type Trust string

// The values: trust on first use, or only the keys in Pins.
const (
	OnFirstUse Trust = "tofu"
	PinnedOnly Trust = "pinned"
)

// A Pin is the trusted key of a cluster.
type Pin struct {
	Cluster string `yaml:"cluster,omitempty"` // name, for readers of the file
	ID      string `yaml:"id"`
	Key     string `yaml:"key"` // "ed25519:…", as tka cluster-info shows it
}

// ClusterProfiles are objects of the Cluster Inventory API, one for each cluster.
type ClusterProfiles struct {
	Enabled   bool   `yaml:"enabled"`
	Namespace string `yaml:"namespace"`
}

func defaultGossip() Gossip {
	return Gossip{
		Enabled: true, Network: "default", Port: 7946, Interval: Duration(300 * time.Millisecond), Fanout: 3, Tags: []string{"tag:tailplane"}, Trust: OnFirstUse,
		MaxMembers: 2048, MaxMessageBytes: 16 << 10, ForgetAfter: Duration(24 * time.Hour), ClusterProfiles: ClusterProfiles{Namespace: "tailplane-system"},
	}
}

// validate reports the errors that this package can detect. The caller that loads the file must
// also validate keys, addresses and message sizes with package gossip.
func (g Gossip) validate(v *validation, apiPort uint16) {
	if !g.Enabled {
		return
	}
	v.failIf(!label.MatchString(g.Network), "gossip.network: %q is not a DNS label", g.Network)
	v.failIf(g.Port == 0 || g.Port == apiPort, "gossip.port: %d must not be 0 or tailnet.port", g.Port)
	v.failIf(!g.Interval.isBetween(100*time.Millisecond, 10*time.Second), "gossip.interval: %v is not between 100ms and 10s", g.Interval)
	v.failIf(g.Fanout < 1 || g.Fanout > 10, "gossip.fanout: %d is not between 1 and 10", g.Fanout)
	v.failIf(len(g.Tags) == 0, "gossip.tags is empty: without a tag, every node of the tailnet would count as a server")
	for _, t := range g.Tags {
		v.failIf(!strings.HasPrefix(t, "tag:"), "gossip.tags: %q does not begin with tag:", t)
	}
	for _, p := range g.Peers {
		v.failIf(!subdomain.MatchString(strings.TrimSuffix(p, ".")), "gossip.peers: %q is not the name of a node", p)
	}
	v.failIf(!slices.Contains([]Trust{OnFirstUse, PinnedOnly}, g.Trust), "gossip.trust: %q is neither tofu nor pinned", g.Trust)
	v.failIf(g.Trust == PinnedOnly && len(g.Pins) == 0, "gossip.pins is empty and gossip.trust is pinned: the server would list no other cluster")
	v.failIf(g.MaxMembers < 1 || g.MaxMembers > 16384, "gossip.maxMembers: %d is not between 1 and 16384", g.MaxMembers)
	v.failIf(time.Duration(g.ForgetAfter) < time.Minute, "gossip.forgetAfter: %v is less than 1m", g.ForgetAfter)
	v.failIf(g.ClusterProfiles.Enabled && !label.MatchString(g.ClusterProfiles.Namespace),
		"gossip.clusterProfiles.namespace: %q is not the name of a namespace", g.ClusterProfiles.Namespace)
}

// members returns the tags that identify a node as a server.
func (g Gossip) members() (tags []access.Tag) {
	if !g.Enabled {
		return nil
	}
	for _, t := range g.Tags {
		tags = append(tags, access.Tag(t))
	}
	return tags
}
