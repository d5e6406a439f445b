package link

import (
	"context"
	"errors"
	"fmt"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/reach"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// proves returns an error unless key proves the last response.
func (l *Link) proves(key door.PublicKey) error {
	return key.Check(l.Last.nonce, l.Last.host, l.Last.body.Bytes(), l.Last.Header.Get(door.ProofHeader))
}

// unproved reports whether a refusal with code c carries no proof. The server sends these refusals before it has identified the caller or
// while it has no key.
func unproved(c problem.Code) bool {
	switch c {
	case problem.WrongHost, problem.CrossOrigin, problem.FunnelRefused, problem.NoIdentity, problem.IdentityUnavailable,
		problem.NodeExpired, problem.RateLimited, problem.Unavailable:
		return true
	}
	return false
}

// impostor returns the fault for a server that is not the one that this machine knows, or that does not prove it. shown is the key in its
// response, if any.
func (l *Link) impostor(shown door.PublicKey) *fault.Fault {
	shows := "it shows no key that it could prove"
	if !shown.IsZero() && l.proves(shown) == nil {
		shows = "it has the key " + shown.String()
	}
	who := "this machine"
	if l.Source != "" {
		who = "the server " + l.Source
	}
	f := fault.New(fault.Refused, "The server %s is not the one that %s knows, which has the key %v: %s", l.Base, who, l.Key, shows).
		Try("If nobody told you of a new key, ask an administrator: another machine may have taken the name.")
	switch {
	case l.Listed:
		return f.Try("If the key is known to have changed, change it in the settings, under servers.")
	case l.Source != "":
		return f.Try("If the key is known to have changed, %s learns of it in a moment: tka clusters", l.Source)
	}
	return f.Try("If the key is known to have changed: tka config --forget-server %s", screen.Word(l.Base))
}

// Prove fetches the information on the server's cluster and requires a proof with the known key. Callers must call it before any other
// request. Prove trusts the key of a new server at first contact, and then sets First. If cluster is not "", the server must serve that
// cluster.
func (l *Link) Prove(ctx context.Context, cluster string) error {
	known := l.Key
	l.Key = door.PublicKey{}
	info, err := Call(ctx, l, signin.GetClusterInfo, signin.ClusterInfoRequest{})
	p, refused := errors.AsType[*problem.Error](err)
	l.Key = known
	switch {
	case refused && !known.IsZero() && l.proves(known) != nil:
		if !unproved(p.Code) {
			return l.impostor(door.PublicKey{})
		}
		f := fault.New(fault.CodeOfRefusal(p.Code), "The server %s refuses, and without proof that it is the one that this machine knows: %s", l.Base, p.Message).Because(err)
		f.AuditID = p.AuditID
		return f.Try("Try again in a moment; if it stays, ask whoever runs the server.")
	case refused && !unproved(p.Code):
		l.Denied = l.Explain(ctx, err)
		return l.Denied
	case err != nil:
		return err
	case !known.IsZero() && l.proves(known) != nil:
		return l.impostor(info.Key)
	case known.IsZero() && (info.Key.IsZero() || l.proves(info.Key) != nil):
		return fault.New(fault.Refused, "The server %s does not prove which cluster it serves", l.Base).
			Try("It may be an older server, which tka does not use, or none at all: ask whoever runs it.").
			Try("Name another one: --server NAME")
	}
	if !reach.IsCluster(info.Name) {
		return l.BadAnswer("cluster-info", fmt.Errorf("%.60q is not the name of a cluster", info.Name))
	}
	if cluster != "" && info.Name != cluster {
		return l.WrongCluster(info.Name, cluster)
	}
	l.Info = info
	if known.IsZero() {
		l.Key, l.First = info.Key, true
	}
	return nil
}

// WrongCluster returns the fault for a server that serves another cluster than the requested one.
func (l *Link) WrongCluster(have, want string) *fault.Fault {
	return fault.New(fault.Refused, "The server %s is of the cluster %s, not of %s", l.Base, have, want).
		Try("Name the access server of %s: --server NAME", want)
}
