package tailnettest

import (
	"cmp"
	"crypto/subtle"
	"maps"
	"slices"
	"strings"
	"time"

	"tailscale.com/util/rands"

	"github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// AuthKey defines the identity of a node that registers with the key. With a Login and no Tags it is a node of that
// person. With Tags it is a tagged node: the policy's tagOwners must declare every tag. If Login is set too, the
// login must own every tag; otherwise an administrator created the key. The policy is checked when the key is used.
type AuthKey struct {
	Login     string
	Tags      []string
	Ephemeral bool
	Reusable  bool
	Expires   time.Time // zero: never
}

// mintedKey is an auth key as control stores it, also after it was used or revoked.
type mintedKey struct {
	AuthKey
	id, secret  string
	created     time.Time
	description string
	used        bool
	revoked     time.Time
}

func (k *mintedKey) valid(now time.Time) bool {
	return k.revoked.IsZero() && (k.Reusable || !k.used) && (k.Expires.IsZero() || now.Before(k.Expires))
}

func (k *mintedKey) text() string { return "tskey-auth-" + k.id + "-" + k.secret }

// AuthKey creates an auth key for tsnet.Server.AuthKey, TS_AUTHKEY or `tailscale up`.
func (n *Net) AuthKey(k AuthKey) string { return n.control.mint(k, "").text() }

func (c *control) mint(k AuthKey, description string) *mintedKey {
	c.mu.Lock()
	defer c.mu.Unlock()
	m := &mintedKey{AuthKey: k, description: description, created: time.Now(),
		id: "k" + rands.HexString(12) + "CNTRL", secret: rands.HexString(32)}
	m.Tags = slices.Clone(k.Tags)
	c.keys[m.id] = m
	return m
}

// keyLocked returns the key that a node registers with, or nil if it is no longer valid.
func (c *control) keyLocked(text string, now time.Time) *mintedKey {
	rest, _ := strings.CutPrefix(text, "tskey-auth-")
	id, secret, _ := strings.Cut(rest, "-")
	k := c.keys[id]
	if k == nil || subtle.ConstantTimeCompare([]byte(k.secret), []byte(secret)) != 1 || !k.valid(now) {
		return nil
	}
	return k
}

// shown returns the key in the form of the API.
func (k *mintedKey) shown(now time.Time) tsapi.Key {
	return tsapi.Key{ID: k.id, Description: k.description, Tags: k.Tags, Ephemeral: k.Ephemeral, Reusable: k.Reusable,
		Valid: k.valid(now), Created: k.created, Expires: k.Expires, Revoked: k.revoked}
}

// Keys, Mint and Revoke implement [tsapi.Tailnet] for keys.
func (c *control) Keys() []tsapi.Key {
	c.mu.Lock()
	defer c.mu.Unlock()
	var out []tsapi.Key
	for _, id := range slices.Sorted(maps.Keys(c.keys)) {
		out = append(out, c.keys[id].shown(time.Now()))
	}
	return out
}

func (c *control) Mint(k tsapi.Key) (tsapi.Key, string) {
	m := c.mint(AuthKey{Tags: k.Tags, Ephemeral: k.Ephemeral, Reusable: k.Reusable, Expires: k.Expires}, k.Description)
	c.mu.Lock()
	defer c.mu.Unlock()
	return m.shown(time.Now()), m.text()
}

func (c *control) Revoke(id string) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	k := c.keys[id]
	if k == nil {
		return false
	}
	k.revoked = cmp.Or(k.revoked, time.Now())
	return true
}
