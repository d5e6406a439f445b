// Package gossiphttp carries the messages of members over HTTP inside the tailnet,
// both ends of it. It keeps law 1: who is at the other end is what the tailnet says
// of the connection, and nobody else gets a byte.
package gossiphttp

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptrace"
	"net/netip"
	"slices"
	"strconv"
	"time"

	"github.com/tailplane/tailplane/internal/gossip"
)

// A Transport carries messages to peers over HTTP inside the tailnet, whose
// WireGuard encrypts and authenticates. All fields are required.
type Transport struct {
	// Dial connects through the tailnet, and through nothing else.
	Dial func(context.Context, netip.AddrPort) (net.Conn, error)
	// WhoIs returns the stable id of the node that has the address now. It is an
	// error when the node lacks a required tag.
	WhoIs  func(context.Context, netip.AddrPort) (string, error)
	Netmap func() *gossip.Netmap
	Port   uint16
	Meter  *Meter // counts the bytes of connections
}

const (
	idleConnection = time.Minute
	silentPeer     = 2 * time.Second
)

// A Carrier is a Transport at work.
type Carrier struct {
	transport Transport
	http      *http.Transport
}

// NewCarrier returns a carrier without a connection.
func NewCarrier(t Transport) *Carrier {
	c := &Carrier{transport: t}
	prior := new(http.Protocols) // we know what members speak
	prior.SetUnencryptedHTTP2(true)
	c.http = &http.Transport{
		DialContext:            c.dial,
		Protocols:              prior,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: silentPeer, PingTimeout: silentPeer}, // or one that is gone would keep its connection
		DisableCompression:     true,                                                                    // no bombs
		MaxConnsPerHost:        gossip.ConnectionsPerPeer,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        idleConnection,
		MaxResponseHeaderBytes: 16 << 10,
	}
	return c
}

// Close closes the connections that nothing is under way on.
func (c *Carrier) Close() { c.http.CloseIdleConnections() }

var errNotThePeer = errors.New("the address belongs to another node")

// dial connects to the node whose id stands in the place of a host name. Before
// a byte is sent, the tailnet must say that it is that node: an address may have
// moved since our netmap was made.
func (c *Carrier) dial(ctx context.Context, _, target string) (net.Conn, error) {
	id, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	p, ok := c.transport.Netmap().Find(id)
	if !ok || len(p.Addrs) == 0 {
		return nil, fmt.Errorf("dial %s: it is not in the tailnet", id)
	}
	var errs []error
	ctx = untraced{ctx}
	for _, addr := range p.Addrs {
		at := netip.AddrPortFrom(addr, c.transport.Port)
		conn, err := c.transport.Dial(ctx, at)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		who, err := c.transport.WhoIs(ctx, at)
		if err == nil && who == id {
			return c.transport.Meter.conn(conn), nil
		}
		conn.Close()
		errs = append(errs, errNotThePeer, err)
	}
	return nil, fmt.Errorf("dial %s: %w", id, errors.Join(errs...))
}

// untraced hides what the context of a request carries from what is done for it,
// such as asking the tailnet over HTTP: those connections are not ours to judge.
type untraced struct{ context.Context }

// Value implements [context.Context].
func (untraced) Value(any) any { return nil }

// Exchange sends a message to p and returns the answer.
func (c *Carrier) Exchange(ctx context.Context, p gossip.Peer, body []byte) ([]byte, error) {
	answer, err := c.ask(ctx, p, http.MethodPost, ExchangePath, body)
	if err != nil {
		return nil, fmt.Errorf("exchange with %s: %w", p.Name, err)
	}
	return answer, nil // too long a one is refused where it is read
}

// Authority returns the PEM certificates of the API server of p's cluster, as p
// says: the caller holds them against the hash in p's record.
func (c *Carrier) Authority(ctx context.Context, p gossip.Peer) ([]byte, error) {
	pem, err := c.ask(ctx, p, http.MethodGet, authorityPath, nil)
	if err != nil {
		return nil, fmt.Errorf("authority of %s: %w", p.Name, err)
	}
	return pem, nil
}

func (c *Carrier) ask(ctx context.Context, p gossip.Peer, method, path string, body []byte) ([]byte, error) {
	moved := func(info httptrace.GotConnInfo) { // since the connection was made
		at, err := netip.ParseAddrPort(info.Conn.RemoteAddr().String())
		now, ok := c.transport.Netmap().Find(p.ID)
		if err != nil || !ok || !slices.Contains(now.Addrs, at.Addr().Unmap()) {
			info.Conn.Close()
		}
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: moved})
	port := strconv.Itoa(int(c.transport.Port))
	req, err := http.NewRequestWithContext(ctx, method, "http://"+net.JoinHostPort(p.ID, port)+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = net.JoinHostPort(p.Name, port) // what the other end goes by
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "") // bytes that say nothing
	res, err := c.http.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, gossip.MaxMessage+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("the answer broke off: %w", err)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("it answered %s", res.Status)
	}
	return answer, nil
}
