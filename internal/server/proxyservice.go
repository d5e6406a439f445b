package server

import (
	"context"
	"crypto/tls"
	"fmt"
	"net"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// proxyServiceSecret is the Secret with the certificate of the proxy's service. The manifests create it empty.
const proxyServiceSecret = "tailplane-proxy-service-tls"

// A proxyNode is the node of the access proxy as clients reach it: under its own names, or as a host of a service.
type proxyNode struct {
	*tailnet.Node
	service string // such as svc:prod-eu-api; "": none
}

var _ accessproxy.Tailnet = proxyNode{}

// Names implements accessproxy.Tailnet.
func (n proxyNode) Names() []string {
	names := n.Node.Names()
	if name := n.serviceName(); name != "" {
		return append(slices.Clone(names), name, strings.TrimPrefix(n.service, "svc:"))
	}
	return names
}

// serviceName returns the full name of the service, or "" without a service or before the node has joined.
func (n proxyNode) serviceName() string {
	names := n.Node.Names()
	if n.service == "" || len(names) == 0 {
		return ""
	}
	_, domain, _ := strings.Cut(names[0], ".")
	return strings.TrimPrefix(n.service, "svc:") + "." + domain
}

// listen listens for clients. With a service, the proxy serves nothing under the name of its node. served then needs a
// certificate for the service.
func (n proxyNode) listen(ctx context.Context, served *servedCertificate, port uint16) (net.Listener, error) {
	if n.service == "" {
		return n.Node.Listen(ctx)
	}
	ln, err := n.Node.ListenService(ctx, n.service, port)
	if err != nil {
		return nil, fmt.Errorf("host the service %s: %w", n.service, err)
	}
	return tls.NewListener(ln, &tls.Config{GetCertificate: served.get, MinVersion: tls.VersionTLS12, NextProtos: []string{"h2", "http/1.1"}}), nil
}

// serviceCertificateInterval is the time between two looks at the Secret of the service's certificate.
const serviceCertificateInterval = 5 * time.Second

// followService obtains the certificate of the service from the tailnet, or loads that of another replica, and renews it until ctx
// ends. It returns when there is one.
func (s *servedCertificate) followService(ctx context.Context, parts *group, p *process, node proxyNode) error {
	shared, err := kube.NewSharedCertificate(p.config, p.set.Signin.SystemNamespace, proxyServiceSecret, p.set.ProxyHostname())
	if err != nil {
		return err
	}
	first := make(chan struct{})
	parts.parts.Go(func() {
		reported := ""
		for {
			c, err := shared.Load(ctx, node.serviceName(), time.Now(), func(ctx context.Context) (chain, key []byte, err error) {
				ctx, cancel := context.WithTimeout(ctx, time.Minute)
				defer cancel()
				return node.IssueCertificate(ctx, node.serviceName())
			})
			if text := fmt.Sprint(err); err != nil && text != reported && ctx.Err() == nil {
				reported = text
				p.log.Warn("the certificate of the proxy's service is not available; an administrator of the tailnet must approve this node as a host", "service", p.set.Proxy.Service, "err", err)
			}
			if old := s.current.Load(); c != nil && (old == nil || !old.Leaf.Equal(c.Leaf)) {
				p.log.Info("the access proxy has the certificate of its service", "names", c.Leaf.DNSNames, "until", c.Leaf.NotAfter)
				if s.current.Store(c); old == nil {
					close(first)
				}
			}
			if retry.Sleep(ctx, serviceCertificateInterval) != nil {
				return
			}
		}
	})
	select {
	case <-first:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
