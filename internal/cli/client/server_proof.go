package client

import (
	"context"
	"errors"
	"fmt"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// verifyResponse returns an error unless key proves the last response.
func (c *Client) verifyResponse(key httpapi.PublicKey) error {
	return key.Check(c.Last.nonce, c.Last.host, c.Last.body.Bytes(), c.Last.Header.Get(httpapi.ProofHeader))
}

// mayBeUnproved reports whether a refusal with code c carries no proof. The server sends these refusals before it has identified the caller
// or while it has no key.
func mayBeUnproved(c problem.Code) bool {
	switch c {
	case problem.WrongHost, problem.CrossOrigin, problem.FunnelRefused, problem.NoIdentity, problem.IdentityUnavailable,
		problem.NodeExpired, problem.RateLimited, problem.Unavailable:
		return true
	}
	return false
}

// wrongKeyError returns the error for a server that is not the one that this machine knows, or that does not prove it. shown is the key in
// its response, if any.
func (c *Client) wrongKeyError(shown httpapi.PublicKey) *output.Error {
	shownKey := "it proves no key"
	if !shown.IsZero() && c.verifyResponse(shown) == nil {
		shownKey = "it has the key " + shown.String()
	}
	knownBy := "this machine"
	if c.Source != "" {
		knownBy = "the server " + c.Source
	}
	f := output.Errorf(output.ExitRefused, "The server %s is not the one that %s knows, which has the key %v: %s", c.Base, knownBy, c.Key, shownKey).
		Try("If you do not expect a new key, ask an administrator: another machine may have taken the name.")
	switch {
	case c.Pinned:
		return f.Try("If you know that the key changed, change it in the settings, under servers.")
	case c.Source != "":
		return f.Try("If you know that the key changed, wait until %s has the new key: tka clusters", c.Source)
	}
	return f.Try("If you know that the key changed: tka config --forget-server %s", output.ShellQuote(c.Base))
}

// Verify fetches the information on the server's cluster and requires a proof with the known key. Callers must call it before any other
// request. Verify trusts the key of a new server at first contact, and then sets FirstContact. If cluster is not "", the server must serve
// that cluster.
func (c *Client) Verify(ctx context.Context, cluster string) error {
	known := c.Key
	c.Key = httpapi.PublicKey{}
	info, err := Call(ctx, c, signin.GetClusterInfo, signin.ClusterInfoRequest{})
	p, refused := errors.AsType[*problem.Error](err)
	c.Key = known
	switch {
	case refused && !known.IsZero() && c.verifyResponse(known) != nil:
		if !mayBeUnproved(p.Code) {
			return c.wrongKeyError(httpapi.PublicKey{})
		}
		f := output.Errorf(output.ProblemExitCode(p.Code), "The server %s refused the request and did not prove that it is the one that this machine knows: %s", c.Base, p.Message).Because(err)
		f.AuditID = p.AuditID
		return f.Try("Try again in a moment. If the error stays, ask an administrator of the server.")
	case refused && !mayBeUnproved(p.Code):
		c.Denied = c.Explain(ctx, err)
		return c.Denied
	case err != nil:
		return err
	case !known.IsZero() && c.verifyResponse(known) != nil:
		return c.wrongKeyError(info.Key)
	case known.IsZero() && (info.Key.IsZero() || c.verifyResponse(info.Key) != nil):
		return output.Errorf(output.ExitRefused, "The server %s did not prove which cluster it serves", c.Base).
			Try("It may be an older server, which tka does not support, or not an access server. Ask its administrator.").
			Try("Select another server: --server NAME")
	}
	if !dialpolicy.IsClusterName(info.Name) {
		return c.InvalidResponse("cluster-info", fmt.Errorf("%.60q is not the name of a cluster", info.Name))
	}
	if cluster != "" && info.Name != cluster {
		return output.Errorf(output.ExitRefused, "The server %s serves the cluster %s, not %s", c.Base, info.Name, cluster).
			Try("Select the access server of %s: --server NAME", cluster)
	}
	c.Info = info
	if known.IsZero() {
		c.Key, c.FirstContact = info.Key, true
	}
	return nil
}
