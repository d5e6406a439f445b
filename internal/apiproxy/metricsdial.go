package apiproxy

import (
	"context"
	"net"
)

// Dial wraps dial to count the connections to a cluster, for [net/http.Transport.DialContext].
func (m *Metrics) Dial(
	cluster string,
	dial func(ctx context.Context, network, addr string) (net.Conn, error),
) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		connected := m.Connecting(cluster)
		c, err := dial(ctx, network, addr)
		closed := connected(err)
		if err != nil {
			return nil, err
		}
		return countedConn{c, closed}, nil
	}
}

// countedConn is a connection that is counted until it is closed.
type countedConn struct {
	net.Conn
	closed func()
}

// Close implements [net.Conn].
func (c countedConn) Close() error {
	c.closed()
	return c.Conn.Close()
}
