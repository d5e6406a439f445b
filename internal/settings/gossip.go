package settings

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// Gossip is how this server and those of other clusters find each other.
type Gossip struct {
	Enabled         bool            `yaml:"enabled"` // false: no port and no work; the list holds this cluster alone
	Network         string          `yaml:"network"` // servers of another name are not listened to
	Port            uint16          `yaml:"port"`
	Interval        Duration        `yaml:"interval"`                 // between rounds
	Fanout          int             `yaml:"fanout"`                   // servers asked in each round
	Tags            []string        `yaml:"tags,omitempty,flow"`      // a node with one of these is a server
	Peers           []string        `yaml:"peers,omitempty"`          // names to ask first; none: all nodes with a tag
	Trust           Trust           `yaml:"trust"`                    // whose key counts
	Pins            []Pin           `yaml:"pins,omitempty"`           // keys of clusters, before any that was met
	AllowEndpoints  []string        `yaml:"allowEndpoints,omitempty"` // networks and names that servers may announce though they are private
	MaxMembers      int             `yaml:"maxMembers"`
	MaxMessageBytes int             `yaml:"maxMessageBytes"`
	ForgetAfter     Duration        `yaml:"forgetAfter"` // how long one that is dead stays in the list
	ClusterProfiles ClusterProfiles `yaml:"clusterProfiles"`
}

// Trust says which keys of clusters count.
type Trust string

// The ways: on first use, or those of Pins only.
const (
	OnFirstUse Trust = "tofu"
	PinnedOnly Trust = "pinned"
)

// A Pin says by which key a cluster is known.
type Pin struct {
	Cluster string `yaml:"cluster,omitempty"` // name, for the reader
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

// validate says what makes no sense. What a key, an address or a message is, only
// the room of gossip knows: whoever loads the file asks it too.
func (g Gossip) validate(apiPort uint16) (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf("gossip."+format, args...)) }
	if !g.Enabled {
		return nil
	}
	if !label.MatchString(g.Network) {
		bad("network: %q is not a DNS label", g.Network)
	}
	if g.Port == 0 || g.Port == apiPort {
		bad("port: %d; a port of its own, beside tailnet.port", g.Port)
	}
	if i := time.Duration(g.Interval); i < 100*time.Millisecond || i > 10*time.Second {
		bad("interval: %v; between 100ms and 10s", i)
	}
	if g.Fanout < 1 || g.Fanout > 10 {
		bad("fanout: %d; between 1 and 10", g.Fanout)
	}
	if len(g.Tags) == 0 {
		bad("tags is empty: without a tag every node of the tailnet would be a server")
	}
	for _, t := range g.Tags {
		if !strings.HasPrefix(t, "tag:") {
			bad("tags: %q does not begin with tag:", t)
		}
	}
	for _, p := range g.Peers {
		if !subdomain.MatchString(strings.TrimSuffix(p, ".")) {
			bad("peers: %q is not the name of a node", p)
		}
	}
	if !slices.Contains([]Trust{OnFirstUse, PinnedOnly}, g.Trust) {
		bad("trust: %q; tofu or pinned", g.Trust)
	}
	if g.Trust == PinnedOnly && len(g.Pins) == 0 {
		bad("pins is empty, and gossip.trust is pinned: no other cluster would be listed")
	}
	if g.MaxMembers < 1 || g.MaxMembers > 16384 {
		bad("maxMembers: %d; between 1 and 16384", g.MaxMembers)
	}
	if time.Duration(g.ForgetAfter) < time.Minute {
		bad("forgetAfter: %v; at least 1m", time.Duration(g.ForgetAfter))
	}
	if g.ClusterProfiles.Enabled && !label.MatchString(g.ClusterProfiles.Namespace) {
		bad("clusterProfiles.namespace: %q is not the name of a namespace", g.ClusterProfiles.Namespace)
	}
	return errs
}

// members are the tags that make a node one of the servers.
func (g Gossip) members() (tags []access.Tag) {
	if !g.Enabled {
		return nil
	}
	for _, t := range g.Tags {
		tags = append(tags, access.Tag(t))
	}
	return tags
}
