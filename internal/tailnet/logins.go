package tailnet

import (
	"context"
	"slices"

	"golang.org/x/text/cases"
	"golang.org/x/text/unicode/norm"
	"tailscale.com/ipn/ipnstate"
	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/internal/access"
)

// loginOwners lists the IDs of the users that own nodes under one login (ID-16). A control server may show one login for two users: on
// Headscale, a user without an e-mail address has their name as login, and that name may be another user's address.
//
// Nodes that other tailnets share are compared among themselves. Otherwise a person of another tailnet could lock a member out.
type loginOwners map[loginKey][]tailcfg.UserID

type loginKey struct {
	shared bool
	login  string // normalized
}

// normalizeLogin returns one text for all logins that differ in letter case or in the form of Unicode only. Letters of different
// scripts that look alike stay different.
func normalizeLogin(login string) string {
	return norm.NFKC.String(cases.Fold().String(norm.NFKC.String(login)))
}

// loginOwnersOf returns the owners of all logins in a status with peers. Tagged nodes belong to no user.
func loginOwnersOf(st *ipnstate.Status) loginOwners {
	owners := loginOwners{}
	add := func(p *ipnstate.PeerStatus) {
		if p == nil || p.Tags != nil && p.Tags.Len() > 0 {
			return
		}
		if u, ok := st.User[p.UserID]; ok {
			key := loginKey{isShared(p), normalizeLogin(u.LoginName)}
			if !slices.Contains(owners[key], u.ID) {
				owners[key] = append(owners[key], u.ID)
			}
		}
	}
	add(st.Self)
	for _, p := range st.Peer {
		add(p)
	}
	return owners
}

// isShared reports whether a peer is shared from another tailnet.
func isShared(p *ipnstate.PeerStatus) bool { return p.ShareeNode || p.AltSharerUserID != 0 }

// isAmbiguous reports whether another user ID owns nodes under the login of c, whose own ID is id. WhoIs can be ahead of the snapshot:
// an owner that the snapshot does not have causes a new query.
func (n *Node) isAmbiguous(ctx context.Context, c access.Caller, id tailcfg.UserID) (bool, error) {
	if c.Tagged() {
		return false, nil
	}
	known, err := n.snapshot(ctx)
	if err != nil {
		return false, err
	}
	key := loginKey{c.Shared, normalizeLogin(string(c.Login))}
	if !slices.Contains(known.logins[key], id) {
		if known, err = n.querySnapshot(ctx); err != nil {
			return false, err
		}
	}
	return slices.ContainsFunc(known.logins[key], func(other tailcfg.UserID) bool { return other != id }), nil
}
