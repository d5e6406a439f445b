package tailnet

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"time"

	"tailscale.com/client/local"
	"tailscale.com/client/tailscale/apitype"
	"tailscale.com/ipn"
	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// whoIsLimit limits one query to the backend. A healthy backend answers in 0.1 ms.
const whoIsLimit = 2 * time.Second

// funnelHeader is the header of a Funnel request that came through the HTTP proxy of serve.
const funnelHeader = "Tailscale-Funnel-Request"

// taggedDevices is the login of the profile that all tagged nodes share.
const taggedDevices = "tagged-devices"

// connKey is the context key of a connMark. net/http offers no other way to get from a request to
// its connection. The mark can cause a refusal, but it contains no identity.
type connKey struct{}

type connMark struct {
	funnel  bool
	service tailcfg.ServiceName // on whose address the connection arrived; "": the node's own
}

// ConnContext is the hook of the same name of [http.Server]. Identify requires it, because it marks
// requests from the public internet.
func (n *Node) ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, markOf(c))
}

// markOf returns the mark of c, which may wrap other connections.
func markOf(c net.Conn) (m connMark) {
	for c != nil {
		switch inner := c.(type) {
		case *ipn.FunnelConn:
			m.funnel = true
		case serviceConn:
			m.service = inner.service
		}
		wrapped, ok := c.(interface{ NetConn() net.Conn }) // for example *tls.Conn
		if !ok {
			break
		}
		c = wrapped.NetConn()
	}
	return m
}

// Identify returns the caller behind the request's connection, as the tailnet identifies it now. It
// caches nothing beyond the request and reads no identity from headers. Its errors are problems
// with the code no_identity (the tailnet does not know the peer) or identity_unavailable (the query
// failed). For a request from the public internet, it returns a Caller with Via set to Funnel and
// makes no query. WhoIs would return the Funnel node, which may have grants.
func (n *Node) Identify(r *http.Request) (access.Caller, error) {
	mark, ok := r.Context().Value(connKey{}).(connMark)
	if !ok {
		return access.Caller{}, problem.New(problem.Internal, "internal error").
			WithCause(errors.New("the server does not use the node's ConnContext, so Funnel cannot be detected"))
	}
	if _, ok := r.Header[funnelHeader]; ok || mark.funnel {
		return access.Caller{Via: access.ViaFunnel}, nil
	}
	// Query even if the client leaves before the answer, so that the audit log names the caller.
	// The time limit still applies.
	return n.whoIs(context.WithoutCancel(r.Context()), r.RemoteAddr, mark.service)
}

// whoIs queries the backend for an address, with or without a port. The capabilities are those that the caller has at a
// service, or without one at the node.
func (n *Node) whoIs(ctx context.Context, addr string, service tailcfg.ServiceName) (access.Caller, error) {
	if _, err := n.running(); err != nil {
		return access.Caller{}, err
	}
	ctx, cancel := context.WithTimeout(ctx, whoIsLimit)
	defer cancel()
	who, err := n.queryWhoIs(ctx, addr, service)
	switch {
	case errors.Is(err, local.ErrPeerNotFound):
		return access.Caller{}, errNoIdentity(fmt.Errorf("WhoIs of %s: %w", addr, err))
	case err != nil:
		return access.Caller{}, errUnavailable(fmt.Errorf("WhoIs of %s: %w", addr, err))
	}
	c, err := callerOf(who, tailcfg.PeerCapability(n.cfg.Capability), n.Status().Tailnet)
	c.RequestRules = n.requestRulesOf(who)
	if err != nil {
		return access.Caller{}, errNoIdentity(fmt.Errorf("WhoIs of %s: %w", addr, err))
	}
	if c.Ambiguous, err = n.isAmbiguous(ctx, c, who.UserProfile.ID); err != nil {
		return access.Caller{}, err
	}
	return c, nil
}

func errUnavailable(cause error) error {
	return problem.New(problem.IdentityUnavailable, "This server cannot get your identity from its tailnet.",
		"Try again in a moment.").WithRetryAfter(time.Second).WithCause(cause)
}

func errNoIdentity(cause error) error {
	return problem.New(problem.NoIdentity, "The tailnet does not identify you.",
		"Connect directly from a device of the tailnet, not through a router or a proxy.").WithCause(cause)
}

// callerOf converts a WhoIs response to a Caller. It rejects incomplete responses and never fills
// in missing data, so that no caller has an empty identity.
func callerOf(who *apitype.WhoIsResponse, capability tailcfg.PeerCapability, tailnet string) (access.Caller, error) {
	switch {
	case who == nil:
		return access.Caller{}, errors.New("an empty answer")
	case who.Node == nil:
		return access.Caller{}, errors.New("an answer without a node")
	case who.UserProfile == nil:
		return access.Caller{}, errors.New("an answer without a user profile")
	case who.Node.StableID == "":
		return access.Caller{}, errors.New("a node without a stable id")
	}
	node, user := who.Node, who.UserProfile
	c := access.Caller{
		DisplayName: user.DisplayName,
		Device:      access.Device{ID: string(node.StableID), Name: strings.TrimSuffix(node.Name, ".")},
		Tailnet:     tailnet,
		Via:         access.ViaTailnet,
		Expired:     node.Expired,
		// Sharer is set for a machine that another tailnet shared with this one.
		Shared: node.Sharer != 0 || node.Hostinfo.Valid() && node.Hostinfo.ShareeNode(),
		Router: isRouter(node),
		Rules:  rulesOf(who.CapMap[capability]),
	}
	if node.UnsignedPeerAPIOnly { // a Funnel node, or a node that tailnet lock has not signed
		c.Via = access.ViaFunnel
	}
	if len(node.Tags) > 0 {
		for _, t := range node.Tags {
			if err := tailcfg.CheckTag(t); err != nil {
				return access.Caller{}, fmt.Errorf("a node with the tag %q: %w", t, err)
			}
			c.Tags = append(c.Tags, access.Tag(t))
		}
		if c.Device.Name == "" {
			return access.Caller{}, errors.New("a tagged node without a name")
		}
		c.DisplayName = c.Device.Name
		return c, nil
	}
	if user.LoginName == taggedDevices {
		return access.Caller{}, errors.New("the profile of tagged nodes for a node without tags")
	}
	login, err := access.ParseLogin(user.LoginName)
	if err != nil {
		return access.Caller{}, err
	}
	c.Login, c.UserID = login, strconv.FormatInt(int64(user.ID), 10)
	if c.Device.Name == "" { // a shared device may have no name; use its ID
		c.Device.Name = c.Device.ID
	}
	return c, nil
}

// isRouter reports whether a node has routes besides its own addresses: a subnet router, an exit node, or a host of a
// tailnet service.
func isRouter(node *tailcfg.Node) bool {
	return slices.ContainsFunc(node.AllowedIPs, func(p netip.Prefix) bool { return !slices.Contains(node.Addresses, p) })
}

// rulesOf copies the values of a capability. It compacts them, because the backend returns indented
// JSON. The size limits of rules then apply to the text of the policy.
func rulesOf(values []tailcfg.RawMessage) []json.RawMessage {
	rules := make([]json.RawMessage, 0, len(values))
	for _, v := range values {
		var buf bytes.Buffer
		if err := json.Compact(&buf, []byte(v)); err != nil {
			buf.Reset()
			buf.WriteString(string(v)) // not JSON: the decoder of the rule reports the error
		}
		rules = append(rules, buf.Bytes())
	}
	return rules
}

// requestRulesOf returns the rules for access requests, or none if the node does not ask for them.
func (n *Node) requestRulesOf(who *apitype.WhoIsResponse) []json.RawMessage {
	if n.cfg.RequestCapability == "" || who == nil {
		return nil
	}
	return rulesOf(who.CapMap[tailcfg.PeerCapability(n.cfg.RequestCapability)])
}

// Devices returns the callers for the tailnet's devices with the given stable IDs, as Identify
// would return them now. Unknown IDs are missing in the result. An error means that nothing is
// known about any of them. It is no evidence that a caller lost its rights.
func (n *Node) Devices(ctx context.Context, ids ...string) (map[string]access.Caller, error) {
	addrs, err := n.addresses(ctx)
	if err != nil {
		return nil, err
	}
	found := map[string]access.Caller{}
	for _, id := range ids {
		addr, ok := addrs[id]
		if !ok {
			continue
		}
		c, err := n.whoIs(ctx, addr.String(), "")
		switch {
		case problem.CodeOf(err) == problem.NoIdentity, err == nil && c.Device.ID != id:
			continue // the device has left, or its address now belongs to another device
		case err != nil:
			return nil, err
		}
		found[id] = c
	}
	return found, nil
}

// addresses returns one address of each peer, by stable ID.
func (n *Node) addresses(ctx context.Context) (map[string]netip.Addr, error) {
	st, err := n.queryPeers(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(st.Peer) == 0: // an empty list is no evidence that devices are gone
		return nil, errUnavailable(fmt.Errorf("the node is %s and sees %s", st.BackendState, problem.Plural(len(st.Peer), "peer")))
	}
	addrs := make(map[string]netip.Addr, len(st.Peer))
	for _, p := range st.Peer {
		if len(p.TailscaleIPs) > 0 {
			addrs[string(p.ID)] = p.TailscaleIPs[0]
		}
	}
	return addrs, nil
}
