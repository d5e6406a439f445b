package tailnettest

import (
	"fmt"
	"net/http"
	"net/netip"
	"time"

	"tailscale.com/net/tsaddr"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// personKeyLife is the lifetime of a node key of a person, Tailscale's default. Tagged nodes do not expire.
const personKeyLife = 180 * 24 * time.Hour

func (c *control) serveRegister(w http.ResponseWriter, r *http.Request, mk key.MachinePublic) {
	var req tailcfg.RegisterRequest
	if err := readJSON(r, &req); err != nil || req.NodeKey.IsZero() || req.Hostinfo == nil {
		http.Error(w, "bad register request", http.StatusBadRequest)
		return
	}
	if req.Followup != "" && !c.waitLogin(r.Context(), req.Followup) {
		http.Error(w, "login was not completed", http.StatusRequestTimeout)
		return
	}
	writeJSON(w, http.StatusOK, c.register(&req, mk))
}

func (c *control) register(req *tailcfg.RegisterRequest, mk key.MachinePublic) *tailcfg.RegisterResponse {
	c.mu.Lock()
	defer c.mu.Unlock()
	now := time.Now()
	n := c.nodes[req.NodeKey]
	if n != nil && n.machine != mk {
		return &tailcfg.RegisterResponse{Error: "node key belongs to another machine"}
	}
	if n != nil && !req.Expiry.IsZero() && req.Expiry.Before(now) { // log out
		if n.ephemeral {
			c.dropLocked(n)
		} else {
			n.expiry = req.Expiry
		}
		c.bumpLocked()
		return &tailcfg.RegisterResponse{NodeKeyExpired: true, MachineAuthorized: true}
	}
	if n != nil && !n.expired(now) { // a restart, or the end of an interactive login
		return c.welcomeLocked(n)
	}
	if req.Auth == nil || req.Auth.AuthKey == "" {
		if n != nil { // the old key of an expired node: it must register with a new one
			return &tailcfg.RegisterResponse{NodeKeyExpired: true, MachineAuthorized: true}
		}
		if why := c.refusedLocked(req.Followup); why != "" {
			return &tailcfg.RegisterResponse{Error: why}
		}
		return &tailcfg.RegisterResponse{MachineAuthorized: true, AuthURL: c.askLocked(req, mk)}
	}
	k := c.keyLocked(req.Auth.AuthKey, now)
	if k == nil {
		return &tailcfg.RegisterResponse{Error: "invalid key: unable to validate API key"}
	}
	tags, err := c.policy.TagsFor(k.Login, k.Tags, req.Hostinfo.RequestTags)
	if err != nil {
		return &tailcfg.RegisterResponse{Error: err.Error()}
	}
	k.used = true
	return c.welcomeLocked(c.admitLocked(req, mk, k.Login, tags, k.Ephemeral))
}

// admitLocked admits a node as a person's (no tags) or as a tagged one. A machine that returns for the same owner
// keeps its identity, name and addresses. For another owner it becomes another node.
func (c *control) admitLocked(req *tailcfg.RegisterRequest, mk key.MachinePublic, login string, tags []string, ephemeral bool) *node {
	now := time.Now()
	n := c.nodes[req.NodeKey]
	if n == nil {
		if old := c.nodes[req.OldNodeKey]; old != nil && old.machine == mk {
			n = old
		}
	}
	if n != nil {
		same := len(tags) > 0 && n.user == nil || len(tags) == 0 && n.user != nil && n.user.name == login
		c.backLocked(n)
		delete(c.nodes, n.key)
		if !same {
			n.gone = true
			n = nil
		}
	}
	if n == nil {
		c.seq++
		v4 := netip.AddrFrom4([4]byte{100, 64 + byte(c.seq>>16)&0x3f, byte(c.seq >> 8), byte(c.seq)})
		n = &node{
			id: c.idBase + tailcfg.NodeID(c.seq), stable: tailcfg.StableNodeID(fmt.Sprintf("n%d%sCNTRL", c.seq, c.idTail)),
			created: now, addrs: []netip.Prefix{
				netip.PrefixFrom(v4, 32), netip.PrefixFrom(tsaddr.Tailscale4To6(v4), 128)},
		}
	}
	n.key, n.machine, n.hi = req.NodeKey, mk, req.Hostinfo
	n.tags, n.user, n.expiry = tags, nil, time.Time{}
	if len(tags) == 0 {
		n.user, n.expiry = c.userLocked(login), now.Add(personKeyLife)
	}
	n.ephemeral = ephemeral || req.Ephemeral
	n.name = c.uniqueNameLocked(n, req.Hostinfo.Hostname)
	c.nodes[n.key] = n
	c.bumpLocked()
	return n
}

func (c *control) welcomeLocked(n *node) *tailcfg.RegisterResponse {
	u := c.profileLocked(n)
	return &tailcfg.RegisterResponse{
		User:              tailcfg.User{ID: u.ID, DisplayName: u.DisplayName},
		Login:             tailcfg.Login{ID: tailcfg.LoginID(u.ID), Provider: "tailnettest", LoginName: u.LoginName, DisplayName: u.DisplayName},
		MachineAuthorized: true,
	}
}
