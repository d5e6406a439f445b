// Package gossiphttp carries the messages of members over HTTP inside the tailnet. It contains the client and the server. It keeps law 1:
// the tailnet connection identifies the peer, and this package sends no byte to any other node.
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

// A ClientConfig carries messages to peers over HTTP inside the tailnet. WireGuard encrypts and authenticates the connections. All fields are
// required.
type ClientConfig struct {
	// Dial connects through the tailnet only.
	Dial func(context.Context, netip.AddrPort) (net.Conn, error)
	// WhoIs returns the stable id of the node that has the address now. It returns an error when the node lacks a required tag.
	WhoIs  func(context.Context, netip.AddrPort) (string, error)
	Netmap func() *gossip.Netmap
	Port   uint16
	Meter  *Meter // counts the bytes of connections
}

const (
	idleTimeout = time.Minute
	peerTimeout = 2 * time.Second
)

// A Client is a Transport with its HTTP client.
type Client struct {
	config ClientConfig
	http   *http.Transport
}

// NewClient returns a carrier without open connections.
func NewClient(t ClientConfig) *Client {
	c := &Client{config: t}
	prior := new(http.Protocols) // members always speak HTTP/2 without TLS
	prior.SetUnencryptedHTTP2(true)
	c.http = &http.Transport{
		DialContext:            c.dial,
		Protocols:              prior,
		HTTP2:                  &http.HTTP2Config{SendPingTimeout: peerTimeout, PingTimeout: peerTimeout}, // detects dead peers
		DisableCompression:     true,                                                                      // prevents decompression bombs
		MaxConnsPerHost:        gossip.ConnectionsPerPeer,
		MaxIdleConnsPerHost:    1,
		IdleConnTimeout:        idleTimeout,
		MaxResponseHeaderBytes: 16 << 10,
	}
	return c
}

// Close closes the idle connections.
func (c *Client) Close() { c.http.CloseIdleConnections() }

var errWrongPeer = errors.New("the address belongs to another node")

// dial connects to the node whose id is in the place of the host name. Before dial returns a connection, the tailnet must confirm that the
// address belongs to that node: the address may have moved since the netmap was made.
func (c *Client) dial(ctx context.Context, _, target string) (net.Conn, error) {
	id, _, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	p, ok := c.config.Netmap().Find(id)
	if !ok || len(p.Addrs) == 0 {
		return nil, fmt.Errorf("dial %s: the node is not in the tailnet", id)
	}
	var errs []error
	ctx = untraced{ctx}
	for _, addr := range p.Addrs {
		at := netip.AddrPortFrom(addr, c.config.Port)
		conn, err := c.config.Dial(ctx, at)
		if err != nil {
			errs = append(errs, err)
			continue
		}
		who, err := c.config.WhoIs(ctx, at)
		if err == nil && who == id {
			return c.config.Meter.conn(conn), nil
		}
		conn.Close()
		errs = append(errs, errWrongPeer, err)
	}
	return nil, fmt.Errorf("dial %s: %w", id, errors.Join(errs...))
}

// untraced hides the values of a request's context from nested calls, such as a WhoIs call over HTTP. The trace of the request must not see
// the connections of those calls.
type untraced struct{ context.Context }

// Value implements [context.Context].
func (untraced) Value(any) any { return nil }

// Exchange sends a message to p and returns the response.
func (c *Client) Exchange(ctx context.Context, p gossip.Peer, body []byte) ([]byte, error) {
	answer, err := c.do(ctx, p, http.MethodPost, ExchangePath, body)
	if err != nil {
		return nil, fmt.Errorf("exchange with %s: %w", p.Name, err)
	}
	return answer, nil // the decoder rejects a response that is too long
}

// FetchCA returns the PEM certificates of the API server of p's cluster, as p reports them. The caller must verify them against the hash
// in p's record.
func (c *Client) FetchCA(ctx context.Context, p gossip.Peer) ([]byte, error) {
	pem, err := c.do(ctx, p, http.MethodGet, caPath, nil)
	if err != nil {
		return nil, fmt.Errorf("CA certificates of %s: %w", p.Name, err)
	}
	return pem, nil
}

func (c *Client) do(ctx context.Context, p gossip.Peer, method, path string, body []byte) ([]byte, error) {
	moved := func(info httptrace.GotConnInfo) { // since the connection was made
		at, err := netip.ParseAddrPort(info.Conn.RemoteAddr().String())
		now, ok := c.config.Netmap().Find(p.ID)
		if err != nil || !ok || !slices.Contains(now.Addrs, at.Addr().Unmap()) {
			info.Conn.Close()
		}
	}
	ctx = httptrace.WithClientTrace(ctx, &httptrace.ClientTrace{GotConn: moved})
	port := strconv.Itoa(int(c.config.Port))
	req, err := http.NewRequestWithContext(ctx, method, "http://"+net.JoinHostPort(p.ID, port)+path, bytes.NewReader(body))
	if err != nil {
		return nil, err
	}
	req.Host = net.JoinHostPort(p.Name, port) // the name that the peer expects
	if body != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	req.Header.Set("User-Agent", "") // saves bytes
	res, err := c.http.RoundTrip(req)
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	answer, err := io.ReadAll(io.LimitReader(res.Body, gossip.MaxMessage+1))
	switch {
	case err != nil:
		return nil, fmt.Errorf("read the response: %w", err)
	case res.StatusCode != http.StatusOK:
		return nil, fmt.Errorf("the response is %s", res.Status)
	}
	return answer, nil
}
