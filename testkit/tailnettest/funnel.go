package tailnettest

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"strconv"

	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"
)

// SetIngress makes the node a Funnel ingress: an unsigned peer that may only use the peer API, to pass on connections
// from the internet. It reports whether the node exists.
func (n *Net) SetIngress(id tailcfg.StableNodeID) bool {
	return n.control.update(id, func(nd *node) { nd.ingress = true })
}

// FunnelDial connects to a node's Funnel port as a client on the internet would. It connects through the ingress
// node, which reports the client address to the target. target is host:port (a MagicDNS label or full name). srcAddr
// is the reported ip:port. The target must listen with ListenFunnel. The caller must do TLS itself.
func (n *Net) FunnelDial(ctx context.Context, ingress *tsnet.Server, target, srcAddr string) (net.Conn, error) {
	host, port, err := net.SplitHostPort(target)
	if err != nil {
		return nil, err
	}
	api, fqdn, err := n.peerAPI(host)
	if err != nil {
		return nil, err
	}
	c, err := ingress.Dial(ctx, "tcp", api)
	if err != nil {
		return nil, fmt.Errorf("peer API of %s: %w", host, err)
	}
	stop := context.AfterFunc(ctx, func() { c.Close() })
	br, err := handIn(c, api, net.JoinHostPort(fqdn, port), srcAddr)
	if err != nil || !stop() {
		c.Close()
		if err == nil {
			err = ctx.Err()
		}
		return nil, fmt.Errorf("connecting to %s over Funnel: %w", target, err)
	}
	return &bufferedConn{Conn: c, r: br}, nil
}

// handIn does the work of an ingress node: POST to the peer API, then raw TCP.
func handIn(c net.Conn, api, target, src string) (*bufio.Reader, error) {
	req, err := http.NewRequest(http.MethodPost, "http://"+api+"/v0/ingress", nil)
	if err != nil {
		return nil, err
	}
	req.Header.Set("Tailscale-Ingress-Src", src)
	req.Header.Set("Tailscale-Ingress-Target", target)
	if err := req.Write(c); err != nil {
		return nil, err
	}
	br := bufio.NewReader(c)
	res, err := http.ReadResponse(br, req)
	if err != nil {
		return nil, err
	}
	if res.StatusCode != http.StatusSwitchingProtocols {
		return nil, fmt.Errorf("the node answered %s", res.Status)
	}
	return br, nil
}

// bufferedConn first reads the bytes that arrived with the HTTP response.
type bufferedConn struct {
	net.Conn
	r *bufio.Reader
}

func (c *bufferedConn) Read(p []byte) (int, error) { return c.r.Read(p) }

// peerAPI returns the address of a node's peer API, and its full name.
func (n *Net) peerAPI(host string) (addr, fqdn string, err error) {
	c := n.control
	c.mu.Lock()
	defer c.mu.Unlock()
	nd := c.findLocked(host)
	if nd == nil {
		return "", "", fmt.Errorf("no node %s", host)
	}
	for _, s := range nd.hi.Services {
		var ip netip.Addr
		switch s.Proto {
		case tailcfg.PeerAPI4:
			ip = nd.addrs[0].Addr()
		case tailcfg.PeerAPI6:
			ip = nd.addrs[1].Addr()
		default:
			continue
		}
		addr = net.JoinHostPort(ip.String(), strconv.Itoa(int(s.Port)))
		if ip.Is6() { // the address that the client can distinguish from the host's own
			break
		}
	}
	if addr == "" {
		return "", "", fmt.Errorf("node %s has no peer API", host)
	}
	return addr, c.fqdn(nd), nil
}
