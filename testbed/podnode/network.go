//go:build linux

package podnode

import (
	"context"
	"errors"
	"io"
	"net"
	"strconv"

	"github.com/tailplane/tailplane/testbed/podnode/sandbox"
)

// start starts the pod's network, with its address and its outbound connections.
func (p *pod) start(ctx context.Context) (*sandbox.Sandbox, error) {
	if p.n.o.Shared != "" {
		return sandbox.Shared(p.dir), nil
	}
	s, err := sandbox.Start(ctx, p.dir, p.obj.Name)
	if err != nil {
		return nil, err
	}
	own, err := s.Listen(ctx, net.JoinHostPort(p.ip, "0"))
	if err == nil {
		own.Close() // only the address is needed
		err = p.carry(ctx, s, net.JoinHostPort(serviceAddress, "443"), p.n.o.Server)
	}
	for from, to := range p.n.o.Carry {
		if err == nil {
			err = p.carry(ctx, s, from, to)
		}
	}
	if err != nil {
		s.Close()
		return nil, err
	}
	return s, nil
}

// carry forwards connections from an address in the pod to an address outside.
func (p *pod) carry(ctx context.Context, s *sandbox.Sandbox, from, to string) error {
	l, err := s.Listen(ctx, from)
	if err != nil {
		return err
	}
	go func() {
		for {
			a, err := l.Accept()
			if err != nil {
				return // the pod has ended
			}
			go func() {
				defer a.Close()
				stop := context.AfterFunc(ctx, func() { a.Close() })
				defer stop()
				b, err := new(net.Dialer).DialContext(ctx, "tcp", to)
				if err != nil {
					p.n.o.Log.Debug("carry", "pod", p.key, "to", to, "err", err)
					return
				}
				join(a, b)
			}()
		}
	}()
	return nil
}

// join copies in both directions until each ends, and closes b.
func join(a io.ReadWriteCloser, b net.Conn) {
	defer b.Close()
	back := make(chan struct{})
	go func() {
		defer close(back)
		_, _ = io.Copy(a, b)
		if half, ok := a.(interface{ CloseWrite() error }); ok {
			_ = half.CloseWrite()
		} else {
			a.Close()
		}
	}()
	_, _ = io.Copy(b, a)
	if half, ok := b.(interface{ CloseWrite() error }); ok {
		_ = half.CloseWrite()
	}
	<-back
}

// dial connects to a port of the pod, from inside an isolated pod.
func (p *pod) dial(ctx context.Context, host string, port int) (net.Conn, error) {
	p.mu.Lock()
	s := p.sandbox
	p.mu.Unlock()
	if s == nil {
		return nil, errors.New("the pod has not started")
	}
	if host == "" {
		if host = p.ip; p.n.o.Shared != "" {
			host = "127.0.0.1"
		}
	}
	return s.Dial(ctx, net.JoinHostPort(host, strconv.Itoa(port)))
}
