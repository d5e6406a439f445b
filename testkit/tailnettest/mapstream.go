package tailnettest

import (
	"encoding/binary"
	"encoding/json"
	"net/http"
	"net/netip"
	"slices"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
	"tailscale.com/util/zstdframe"

	"github.com/tailplane/tailplane/testkit/tailnettest/tailpolicy"
)

const (
	keepAlive = 50 * time.Second
	// gather is the time that a stream waits after a map before it sends the next. So a burst of changes becomes one
	// map.
	gather = 5 * time.Millisecond
)

// serveMap accepts a node's update about itself (Stream false) or streams the netmap. It sends a whole map at every
// change, which is sufficient for some dozens of nodes.
func (c *control) serveMap(w http.ResponseWriter, r *http.Request, mk key.MachinePublic) {
	var req tailcfg.MapRequest
	if err := readJSON(r, &req); err != nil {
		http.Error(w, "bad map request", http.StatusBadRequest)
		return
	}
	c.mu.Lock()
	n := c.nodes[req.NodeKey]
	if n == nil || n.machine != mk {
		c.mu.Unlock()
		http.Error(w, "node not found", http.StatusNotFound)
		return
	}
	n.capVer = req.Version
	if !req.Stream {
		c.updateLocked(n, req)
		c.mu.Unlock()
		if !req.OmitPeers {
			http.Error(w, "only streaming polls return peers", http.StatusBadRequest)
		}
		return
	}
	n.streams++
	c.backLocked(n)
	c.bumpLocked()
	c.mu.Unlock()
	defer c.endStream(n)
	c.streamMap(w, r, n, req.Compress == "zstd")
}

// updateLocked records what a node reports about itself.
func (c *control) updateLocked(n *node, req tailcfg.MapRequest) {
	n.disco = req.DiscoKey
	n.eps = slices.DeleteFunc(req.Endpoints, func(e netip.AddrPort) bool { return e.Addr().IsLinkLocalUnicast() })
	if req.Hostinfo != nil {
		n.hi = req.Hostinfo
		if ni := req.Hostinfo.NetInfo; ni != nil && ni.PreferredDERP != 0 {
			n.homeDERP = ni.PreferredDERP
		}
	}
	c.bumpLocked()
}

// endStream records the end of a node's stream. A node without streams is offline.
func (c *control) endStream(n *node) {
	c.mu.Lock()
	defer c.mu.Unlock()
	n.streams--
	n.lastSeen = time.Now()
	if n.streams == 0 {
		c.awayLocked(n)
	}
	c.bumpLocked()
}

// streamMap sends the netmap to a node at each change, until the request ends or the node is removed.
func (c *control) streamMap(w http.ResponseWriter, r *http.Request, n *node, compress bool) {
	tick := time.NewTicker(keepAlive)
	defer tick.Stop()
	for {
		c.mu.Lock()
		changed, gone := c.changed, n.gone
		res := c.mapLocked(n)
		c.mu.Unlock()
		if gone { // report the removal to the node, then close the stream
			res = &tailcfg.MapResponse{Node: res.Node}
			res.Node.KeyExpiry = time.Now().Add(-time.Minute)
		}
		if err := sendMap(w, res, compress); err != nil || gone {
			return
		}
		select {
		case <-r.Context().Done():
			return
		case <-time.After(gather):
		}
		for waiting := true; waiting; {
			select {
			case <-r.Context().Done():
				return
			case <-changed:
				waiting = false
			case <-tick.C:
				if err := sendMap(w, &tailcfg.MapResponse{KeepAlive: true}, compress); err != nil {
					return
				}
			}
		}
	}
}

// sendMap frames a response: uint32 little-endian length, then JSON.
func sendMap(w http.ResponseWriter, m *tailcfg.MapResponse, compress bool) error {
	b, err := json.Marshal(m)
	if err != nil {
		return err
	}
	if compress {
		b = zstdframe.AppendEncode(nil, b, zstdframe.FastestCompression)
	}
	out := binary.LittleEndian.AppendUint32(nil, uint32(len(b)))
	if _, err := w.Write(append(out, b...)); err != nil {
		return err
	}
	return http.NewResponseController(w).Flush()
}

// mapLocked returns the whole netmap as n sees it.
func (c *control) mapLocked(n *node) *tailcfg.MapResponse {
	all := c.sortedLocked()
	var sources []tailpolicy.Node
	for _, p := range all {
		if !p.ingress { // an unsigned peer must not be a source of any packet rule
			sources = append(sources, c.inRulesLocked(p))
		}
	}
	rules := c.policy.Filter(c.inRulesLocked(n), sources)
	res := &tailcfg.MapResponse{
		Node: c.selfLocked(n), DERPMap: c.derpMap, Domain: c.domain, ControlTime: new(time.Now()),
		CollectServices: "false",
		Debug:           &tailcfg.Debug{DisableLogTail: true},
		DNSConfig:       &tailcfg.DNSConfig{Proxied: true, Domains: []string{c.suffix}, ExtraRecords: c.recordsLocked()},
		Peers:           []*tailcfg.Node{},
	}
	if c.acme != nil {
		res.DNSConfig.CertDomains = c.certNamesLocked(n)
	}
	// There must be a profile for every peer's user. Otherwise WhoIs fails with "no userprofile".
	profiles := map[tailcfg.UserID]bool{}
	for _, p := range all {
		if up := c.profileLocked(p); !profiles[up.ID] {
			profiles[up.ID] = true
			res.UserProfiles = append(res.UserProfiles, up)
		}
		if p == n {
			continue
		}
		res.Peers = append(res.Peers, c.nodeLocked(p))
		if p.ingress {
			rules = append(rules, tailcfg.FilterRule{SrcIPs: addrStrings(p.addrs), CapGrant: []tailcfg.CapGrant{{
				Dsts: n.addrs, CapMap: tailcfg.PeerCapMap{tailcfg.PeerCapabilityIngress: nil}}}})
		}
	}
	if len(res.Peers) == 0 { // in the protocol, an empty list means no change
		res.PeersRemoved = c.gone
	}
	res.PacketFilters = map[string][]tailcfg.FilterRule{"base": rules}
	return res
}

// nodeLocked returns n as its peers see it.
func (c *control) nodeLocked(n *node) *tailcfg.Node {
	hi := n.hi
	if n.sharee {
		hi = n.hi.Clone()
		hi.ShareeNode = true
	}
	routes := c.routesLocked(n)
	t := &tailcfg.Node{
		ID: n.id, StableID: n.stable, Name: c.fqdn(n) + ".",
		User: c.profileLocked(n).ID, Key: n.key, KeyExpiry: n.expiry, Machine: n.machine, DiscoKey: n.disco,
		Addresses: n.addrs, AllowedIPs: slices.Concat(n.addrs, routes), PrimaryRoutes: routes,
		Endpoints: n.eps, HomeDERP: n.homeDERP,
		Hostinfo: hi.View(), Created: n.created, Cap: n.capVer, Tags: n.tags,
		MachineAuthorized: true, UnsignedPeerAPIOnly: n.ingress,
		Online: new(n.streams > 0),
	}
	if n.streams == 0 && !n.lastSeen.IsZero() {
		t.LastSeen = new(n.lastSeen)
	}
	return t
}

// selfLocked returns n as it sees itself: with its attributes.
func (c *control) selfLocked(n *node) *tailcfg.Node {
	t := c.nodeLocked(n)
	t.CapMap = tailcfg.NodeCapMap{
		tailcfg.NodeAttrDisableUPnP:                   nil,
		tailcfg.NodeAttrDisableCaptivePortalDetection: nil,
	}
	if c.derpOnly {
		t.CapMap[tailcfg.NodeAttrOnlyTCP443] = nil // otherwise netcheck waits 3 s for STUN
	}
	if c.acme != nil {
		t.CapMap[tailcfg.CapabilityHTTPS] = nil
	}
	for attr, values := range c.policy.Attrs(c.inRulesLocked(n)) {
		t.CapMap[attr] = values
		if attr == tailcfg.NodeAttrFunnel {
			t.CapMap[tailcfg.CapabilityFunnelPorts+"?ports=443,8443,10000"] = nil
		}
	}
	if vips := c.vipsLocked(n); vips != nil {
		if j, err := json.Marshal(vips); err == nil {
			t.CapMap[tailcfg.NodeAttrServiceHost] = []tailcfg.RawMessage{tailcfg.RawMessage(j)}
		}
	}
	return t
}

func addrStrings(ps []netip.Prefix) []string {
	out := make([]string, len(ps))
	for i, p := range ps {
		out[i] = p.Addr().String()
	}
	return out
}

// inRulesLocked returns n as the policy sees it.
func (c *control) inRulesLocked(n *node) tailpolicy.Node {
	out := tailpolicy.Node{Tags: n.tags, Addrs: n.addrs, Foreign: n.sharee, Services: c.vipsLocked(n)}
	if n.user != nil {
		out.Login = n.user.login
	}
	return out
}
