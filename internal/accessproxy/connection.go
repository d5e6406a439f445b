package accessproxy

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// maxIdentityAge is how long the proxy relies on the identity of a connection while the tailnet reports no change.
const maxIdentityAge = 30 * time.Second

// A connection is the connection of one client, with the identity that the tailnet gave it last. Identity is a
// property of the connection (law 1), so one query serves many requests, until the tailnet changes or the answer is
// too old.
type connection struct {
	mu      sync.Mutex
	at      time.Time       // of the last query; zero: none
	changed <-chan struct{} // closed when the tailnet has changed since
	caller  access.Caller
	unknown error // why the tailnet does not identify the caller, or nil
	permit  access.Permit
	refusal error
}

type connectionKey struct{}

// connContext is the hook of net/http for a new connection.
func (p *Proxy) connContext(ctx context.Context, c net.Conn) context.Context {
	one := &connection{}
	ctx = context.WithValue(p.Tailnet.ConnContext(ctx, c), connectionKey{}, one)
	if at := c.RemoteAddr(); at != nil { // nil: the client has reset the connection
		conn := &http.Request{RemoteAddr: at.String()}
		p.conns.add(c, one, conn.WithContext(context.WithValue(ctx, http.LocalAddrContextKey, c.LocalAddr())))
	}
	return ctx
}

// identify returns the caller of the request's connection, and the decision about it.
func (p *Proxy) identify(r *http.Request) (access.Caller, access.Permit, error) {
	c, _ := r.Context().Value(connectionKey{}).(*connection)
	if c == nil {
		return access.Caller{}, access.Permit{}, problem.New(problem.Internal, "internal error").
			WithCause(errors.New("the server does not use the proxy's hook for connections"))
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	p.renewIdentity(c, r)
	return c.caller, c.permit, c.refusal
}

// identifyOnly returns the caller of the request's connection, whatever the caller may do.
func (p *Proxy) identifyOnly(r *http.Request) (access.Caller, error) {
	if _, _, err := p.identify(r); problem.CodeOf(err) == problem.Internal {
		return access.Caller{}, err
	}
	c := r.Context().Value(connectionKey{}).(*connection)
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.caller, c.unknown
}

// renewIdentity asks the tailnet for the caller of c again, unless the last answer still counts. The caller must hold c.mu.
func (p *Proxy) renewIdentity(c *connection, r *http.Request) {
	now := p.Now()
	if c.isCurrent(now) {
		return
	}
	changed := p.Tailnet.Changed() // before the query, so that no change is missed
	caller, err := p.Tailnet.Identify(r)
	c.unknown = err
	var permit access.Permit
	if err == nil {
		permit, err = p.decide(caller, now)
	}
	c.caller, c.permit, c.refusal, c.at, c.changed = caller, permit, err, now, changed
	if problem.CodeOf(err) == problem.IdentityUnavailable {
		c.at = time.Time{} // ask again at the next request
	}
}

// decide decides for a caller. A node with routes of its own carries connections of other devices, which the tailnet
// cannot tell apart, so a person's is refused. An administrator who tags such a node and grants something to the tag knows
// that the grant is for all devices behind it.
func (p *Proxy) decide(c access.Caller, now time.Time) (access.Permit, error) {
	permit, err := p.Decide(c, access.APIRequest, now)
	if err == nil {
		err = refuseRouter(c)
	}
	if err != nil {
		return access.Permit{}, err
	}
	return permit, nil
}

// refuseRouter refuses a person's node that may carry connections of other devices.
func refuseRouter(c access.Caller) error {
	if c.Router && !c.Tagged() {
		return problem.New(problem.SubnetRouter, fmt.Sprintf("The device %s has routes besides its own addresses, so its connections may come from other devices.", c.Device.Name),
			"Connect from a device that is no subnet router and no exit node.")
	}
	return nil
}

// identifyAgain decides again before a stream begins, if the tailnet has changed while the API server answered. After
// that, watchTailnet checks the stream.
func (x *exchange) identifyAgain() error {
	caller, _, err := x.proxy.identify(x.r)
	switch {
	case err != nil:
		return err
	case !samePerson(caller, x.caller):
		return problem.New(problem.NoIdentity, "The device of this connection has another owner or another identity now.", "Send the request again.")
	}
	return nil
}

// isCurrent reports whether the last answer of the tailnet still counts. The caller must hold c.mu.
func (c *connection) isCurrent(now time.Time) bool {
	if c.at.IsZero() || now.Sub(c.at) >= maxIdentityAge {
		return false
	}
	select {
	case <-c.changed:
		return false
	default:
		return true
	}
}

// pauseBetweenChecks joins changes of the tailnet that follow each other, such as many nodes that come online.
const pauseBetweenChecks = 200 * time.Millisecond

// watchTailnet identifies the callers of open streams again after each change of the tailnet, and every
// maxIdentityAge. It cuts the streams whose caller has lost its access.
func (p *Proxy) watchTailnet(ctx context.Context) {
	tick := time.NewTicker(maxIdentityAge)
	defer tick.Stop()
	for {
		changed := p.Tailnet.Changed()
		p.checkStreams(ctx)
		select {
		case <-ctx.Done():
			return
		case <-changed:
		case <-tick.C:
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(pauseBetweenChecks):
		}
	}
}

// checkStreams identifies the callers of all open streams again, once for each client and address of the proxy.
func (p *Proxy) checkStreams(ctx context.Context) {
	type answer struct {
		caller access.Caller
		err    error
	}
	answers := map[address]answer{}
	ask := func(conn *http.Request) answer {
		a, asked := answers[addressOf(conn)]
		if !asked {
			a.caller, a.err = p.Tailnet.Identify(conn)
			answers[addressOf(conn)] = a
		}
		return a
	}
	now := p.Now()
	for _, s := range p.streams.list() {
		a := ask(s.conn)
		if a.err == nil {
			_, a.err = p.decide(a.caller, now)
		}
		switch {
		case problem.CodeOf(a.err) == problem.IdentityUnavailable, ctx.Err() != nil: // nothing is known about the caller
		case a.err != nil:
			s.cut(cut{cutIdentity, "the tailnet no longer admits this device: " + problem.From(a.err).Message})
		case !samePerson(a.caller, s.caller):
			s.cut(cut{cutIdentity, "the device of this connection has another owner or another identity now"})
		}
	}
	for _, c := range p.conns.list() {
		if problem.CodeOf(ask(c.request).err) == problem.NoIdentity && ctx.Err() == nil {
			p.conns.closeAbsent(c)
		}
	}
}

// An address is that of a client, and the one at which it reached the proxy: what a client may do can depend on both.
type address struct{ remote, local string }

func addressOf(conn *http.Request) address {
	a := address{remote: conn.RemoteAddr}
	if local, ok := conn.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
		a.local = local.String()
	}
	return a
}

// bareRequest returns a request of the same connection without anything from the client.
func bareRequest(r *http.Request) *http.Request {
	return (&http.Request{RemoteAddr: r.RemoteAddr}).WithContext(r.Context())
}

// samePerson reports whether two answers of the tailnet name the same caller on the same device.
func samePerson(a, b access.Caller) bool {
	return a.Identity() == b.Identity() && a.UserID == b.UserID && a.Device.ID == b.Device.ID && a.Tailnet == b.Tailnet && a.Tagged() == b.Tagged()
}
