package tailnettest

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// list returns the nodes by ID, as their peers see them.
func (c *control) list() []*tailcfg.Node {
	var out []*tailcfg.Node
	for _, d := range c.Devices() {
		out = append(out, d.Node)
	}
	return out
}

// Devices, Delete, Retag, Rename and SetKeyExpiry implement [tsapi.Tailnet] for nodes.
func (c *control) Devices() []tsapi.Device {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []tsapi.Device
	for _, n := range c.sortedLocked() {
		out = append(out, tsapi.Device{Node: c.nodeLocked(n), Login: c.profileLocked(n).LoginName, Ephemeral: n.ephemeral})
	}
	return out
}

// update changes the node through f, under the lock.
func (c *control) update(id tailcfg.StableNodeID, f func(*node)) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, n := range c.nodes {
		if n.stable == id {
			f(n)
			c.bumpLocked()
			return true
		}
	}
	return false
}

func (c *control) Delete(id tailcfg.StableNodeID) bool { return c.update(id, c.dropLocked) }

func (c *control) Retag(id tailcfg.StableNodeID, tags []string) bool {
	return c.update(id, func(n *node) { n.tags, n.user, n.expiry = slices.Clone(tags), nil, time.Time{} })
}

func (c *control) Rename(id tailcfg.StableNodeID, name string) bool {
	ok := false
	c.update(id, func(n *node) {
		label := cmp.Or(strings.TrimSuffix(name, "."+c.suffix), n.hi.Hostname)
		unique := c.uniqueNameLocked(n, label)
		if ok = name == "" || unique == strings.ToLower(label); ok {
			n.name = unique
		}
	})
	return ok
}

func (c *control) SetKeyExpiry(id tailcfg.StableNodeID, on bool) bool {
	return c.update(id, func(n *node) {
		switch {
		case !on:
			n.expiry = time.Time{}
		case n.expiry.IsZero():
			n.expiry = time.Now().Add(personKeyLife)
		}
	})
}

func (c *control) uniqueNameLocked(me *node, host string) string {
	base := strings.Trim(strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= '0' && r <= '9':
			return r
		}
		return '-'
	}, strings.ToLower(host)), "-")
	base = cmp.Or(base, "node")
	name := base
	for i := 1; ; i++ {
		taken := false
		for _, n := range c.nodes {
			taken = taken || n != me && n.name == name
		}
		if !taken {
			return name
		}
		name = fmt.Sprintf("%s-%d", base, i)
	}
}
