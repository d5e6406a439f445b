package gossip

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
)

// An API server with a private address is of no use to people of other clusters, but its cluster's access proxy may be. A record announces
// that proxy. Only the cluster's own key vouches for it, and no two clusters share one (law 6): the first that announced it keeps it. The
// proxy beside a public API server is no claim to a name and is not listed, so no other member can spoil the record of such a cluster.

// errPrivate reports an address of an API server to which only allowEndpoints or a proxy leads people.
var errPrivate = errors.New("a private address")

// A privateError is an error about a private address, which names the address.
type privateError string

// Error implements error.
func (e privateError) Error() string { return string(e) }

// Is implements the interface of [errors.Is].
func (e privateError) Is(target error) bool { return target == errPrivate }

// checkEndpoints returns an error if node p may not announce the addresses in e. It marks an entry whose API server people reach only
// through the proxy.
func (v *View) checkEndpoints(e *Entry, p Peer, m *Netmap, by pinDecision) error {
	err := v.rules.AllowedEndpoints.Check(e.Facts, p)
	if !errors.Is(err, errPrivate) || e.Proxy == "" {
		return err
	}
	if err := v.checkProxy(e.Record, p, m, by); err != nil {
		return fmt.Errorf("proxy: %w", err)
	}
	e.Proxied = true
	return nil
}

// checkProxy returns an error if node p may not announce the proxy of r.
func (v *View) checkProxy(r *Record, p Peer, m *Netmap, by pinDecision) error {
	host, err := proxyHost(r.Proxy)
	if err != nil {
		return err
	}
	if by.conflict {
		return fmt.Errorf("the key of the cluster %s does not vouch for %s", r.ClusterID, host)
	}
	for cluster, taken := range v.proxies.All() {
		if taken == host && cluster != r.ClusterID {
			return fmt.Errorf("%s is the proxy of the cluster %s", host, cluster)
		}
	}
	for _, other := range m.peers {
		if cluster, server := v.nodes.Get(other.ID); server && other.Name == host && other.ID != p.ID {
			return fmt.Errorf("%s is an access server of the cluster %s", host, cluster)
		}
	}
	label, domain, _ := strings.Cut(host, ".")
	_, tailnet, _ := strings.Cut(p.Name, ".")
	if tailnet != "" && domain == tailnet && isDNSLabel(label) || v.rules.AllowedEndpoints.allowsName(host) {
		return nil
	}
	return checkEndpointName(host, p)
}

// proxyHost returns the host name of a proxy's URL. An address would be no name that a certificate proves.
func proxyHost(text string) (string, error) {
	host, _, err := splitEndpointURL(text, "https")
	if err != nil {
		return "", err
	}
	if _, err := netip.ParseAddr(host); err == nil {
		return "", fmt.Errorf("%s is an address, and a proxy has a name", host)
	}
	return host, nil
}

// pinProxy pins the proxy of a cluster to the cluster, if there is room. It reports whether the pin is new.
func (v *View) pinProxy(f Facts) bool {
	host, err := proxyHost(f.Proxy)
	before, had := v.proxies.Get(f.ClusterID)
	grows := proxyPin(f.ClusterID, host)
	if had {
		grows -= proxyPin(f.ClusterID, before)
	}
	if err != nil || before == host || v.pinned+grows > maxPinned {
		return false
	}
	v.pinned += grows
	v.proxies = v.proxies.With(f.ClusterID, host)
	v.moved = true
	return true
}

// hasProxy reports whether the proxy of f is recorded.
func (v *View) hasProxy(f Facts) bool {
	host, err := proxyHost(f.Proxy)
	before, _ := v.proxies.Get(f.ClusterID)
	return err != nil || before == host
}

// isProxied reports whether people of other clusters reach our own API server only through the proxy.
func (e *engine) isProxied() bool {
	f := e.own.Facts
	return f.Proxy != "" && errors.Is(e.set.AllowedEndpoints.Check(f, Peer{ID: f.Node, Name: f.Host, Addrs: f.IPs}), errPrivate)
}

// proxyPin returns the stored size of a pin.
func proxyPin(cluster, host string) int { return len(cluster) + len(host) + 8 }

// withoutProxies forgets the proxies of clusters.
func (v *View) withoutProxies(clusters []string) {
	for _, cluster := range clusters {
		if host, ok := v.proxies.Get(cluster); ok {
			v.pinned -= proxyPin(cluster, host)
		}
	}
	v.proxies = v.proxies.Without(clusters...)
}

// publicEndpoint returns the URL and port under which people of other clusters reach the Kubernetes API, and the same URL as proxy if it is
// that of the access proxy.
func (m Member) publicEndpoint() (endpoint string, port uint16, proxy string) {
	if !m.Proxied {
		return m.APIEndpoint, m.APIPort, ""
	}
	_, port, _ = splitEndpointURL(m.Proxy, "https") // checkProxy has parsed it
	return m.Proxy, port, m.Proxy
}
