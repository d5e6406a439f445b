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

// whoIsLimit bounds one question to the backend, which answers in 0.1 ms when it is well.
const whoIsLimit = 2 * time.Second

// funnelHeader is set by a Funnel request that came through serve's HTTP proxy.
const funnelHeader = "Tailscale-Funnel-Request"

// taggedDevices is the login of the one profile that all tagged nodes share.
const taggedDevices = "tagged-devices"

// connKey is the context key of a connMark. net/http offers no other way from a
// connection to its requests; the mark can refuse a request but never names anyone.
type connKey struct{}

type connMark struct{ funnel bool }

// ConnContext is the hook of that name of [http.Server]. Identify needs it: it
// is how a request is known to have come from the public internet.
func (n *Node) ConnContext(ctx context.Context, c net.Conn) context.Context {
	return context.WithValue(ctx, connKey{}, connMark{funnel: isFunnel(c)})
}

// isFunnel reports whether a Funnel connection is anywhere inside c.
func isFunnel(c net.Conn) bool {
	for c != nil {
		if _, ok := c.(*ipn.FunnelConn); ok {
			return true
		}
		wrapped, ok := c.(interface{ NetConn() net.Conn }) // such as *tls.Conn
		if !ok {
			return false
		}
		c = wrapped.NetConn()
	}
	return false
}

// Identify says who is at the other end of the request's connection, as the
// tailnet vouches for it at this moment: nothing is remembered past the request,
// and no header names anybody. Its errors are problems with the codes
// no_identity (the tailnet knows nobody there) and identity_unavailable (it
// could not be asked). A request from the public internet is a Caller whose Via
// says so, without anyone being asked: WhoIs would name the Funnel node, which
// may hold grants.
func (n *Node) Identify(r *http.Request) (access.Caller, error) {
	mark, ok := r.Context().Value(connKey{}).(connMark)
	if !ok {
		return access.Caller{}, problem.New(problem.Internal, "internal error").
			Because(errors.New("the server does not use the node's ConnContext, so Funnel cannot be told apart"))
	}
	if _, ok := r.Header[funnelHeader]; ok || mark.funnel {
		return access.Caller{Via: access.ViaFunnel}, nil
	}
	// Whoever goes away before the answer is asked about all the same, within the
	// limit: the record says who it was.
	return n.whoIs(context.WithoutCancel(r.Context()), r.RemoteAddr)
}

// whoIs asks the backend about an address, with or without a port.
func (n *Node) whoIs(ctx context.Context, addr string) (access.Caller, error) {
	st := n.Status()
	if !st.Running() {
		return access.Caller{}, unavailable(fmt.Errorf("the node is %s", st.State))
	}
	ctx, cancel := context.WithTimeout(ctx, whoIsLimit)
	defer cancel()
	who, err := n.askWhoIs(ctx, addr)
	switch {
	case errors.Is(err, local.ErrPeerNotFound):
		return access.Caller{}, nobody(fmt.Errorf("WhoIs of %s: %w", addr, err))
	case err != nil:
		return access.Caller{}, unavailable(fmt.Errorf("WhoIs of %s: %w", addr, err))
	}
	c, err := callerOf(who, tailcfg.PeerCapability(n.cfg.Capability), st.Tailnet)
	if err != nil {
		return access.Caller{}, nobody(fmt.Errorf("WhoIs of %s: %w", addr, err))
	}
	return c, nil
}

func unavailable(cause error) error {
	return problem.New(problem.IdentityUnavailable, "This server cannot ask its tailnet who you are.",
		"Try again in a moment.").After(time.Second).Because(cause)
}

func nobody(cause error) error {
	return problem.New(problem.NoIdentity, "The tailnet does not say who you are.",
		"Connect directly from a device of the tailnet, not through a router or a proxy.").Because(cause)
}

// callerOf is who a WhoIs answer names. It refuses hollow answers: what is
// missing is never filled in, so that no caller has an empty identity.
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
		// Sharer is set for a machine that another tailnet shared with ours.
		Shared: node.Sharer != 0 || node.Hostinfo.Valid() && node.Hostinfo.ShareeNode(),
		Rules:  rulesOf(who.CapMap[capability]),
	}
	if node.UnsignedPeerAPIOnly { // a Funnel node, or one that tailnet lock has not signed
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
	if c.Device.Name == "" { // shared-in devices may have none; the id is the device
		c.Device.Name = c.Device.ID
	}
	return c, nil
}

// rulesOf copies the values of a capability word for word. The backend's JSON
// arrives indented; undoing that makes the limits on a rule's size count what
// stands in the policy.
func rulesOf(values []tailcfg.RawMessage) []json.RawMessage {
	rules := make([]json.RawMessage, 0, len(values))
	for _, v := range values {
		var buf bytes.Buffer
		if err := json.Compact(&buf, []byte(v)); err != nil {
			buf.Reset()
			buf.WriteString(string(v)) // not JSON: whoever decodes it says so
		}
		rules = append(rules, buf.Bytes())
	}
	return rules
}

// Devices says who owns each of the tailnet's devices with the given stable ids,
// as Identify would if it called now. Ids that the tailnet does not know are
// missing from the answer. An error means that nothing is known about any of
// them: it is no evidence that somebody's authority ended.
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
		c, err := n.whoIs(ctx, addr.String())
		switch {
		case problem.CodeOf(err) == problem.NoIdentity, err == nil && c.Device.ID != id:
			continue // gone since, or its address is another's by now
		case err != nil:
			return nil, err
		}
		found[id] = c
	}
	return found, nil
}

// addresses returns an address of each peer by its stable id.
func (n *Node) addresses(ctx context.Context) (map[string]netip.Addr, error) {
	st, err := n.ask(ctx)
	switch {
	case err != nil:
		return nil, err
	case len(st.Peer) == 0: // an empty list ends nothing
		return nil, unavailable(fmt.Errorf("the node is %s and sees %s", st.BackendState, problem.Plural(len(st.Peer), "peer")))
	}
	addrs := make(map[string]netip.Addr, len(st.Peer))
	for _, p := range st.Peer {
		if len(p.TailscaleIPs) > 0 {
			addrs[string(p.ID)] = p.TailscaleIPs[0]
		}
	}
	return addrs, nil
}
