package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net/url"
	"path/filepath"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin/controller"
	"github.com/tailplane/tailplane/internal/tailnet"
)

// proxySignins are the stored sign-ins as the access proxy needs them.
type proxySignins struct{ *controller.Store }

// Live implements accessproxy.Signins.
func (s proxySignins) Live(ctx context.Context) (accessproxy.LiveSignins, error) {
	version, uids, err := s.Store.Live(ctx)
	return accessproxy.LiveSignins{Version: version, UIDs: uids}, err
}

// runProxy wires and runs the access proxy: tailnet -> proxy -> API server.
func runProxy(ctx context.Context, p *process, working func()) error {
	store, err := controller.NewStore(p.config, p.set.Signin.Namespace, tokenRules(p.set.Signin), time.Now)
	if err != nil {
		return err
	}
	t := p.set.Tailnet
	conf := tailnet.Config{Hostname: p.set.ProxyHostname(), StateDir: t.StateDir, StateSecret: t.StateSecret,
		InsecureHTTP: t.InsecureHTTP, HTTP2: true, Capability: p.set.Signin.Capability, Log: p.log}
	if p.role == settings.AllRoles { // the access server's node has the other state
		conf.StateDir = filepath.Join(t.StateDir, "proxy")
		if t.StateSecret != "" {
			conf.StateSecret = t.StateSecret + "-proxy"
		}
	}
	node, err := newNode(p, conf)
	if err != nil {
		return err
	}
	upstream, err := proxyUpstream(p.config)
	if err != nil {
		return err
	}
	policy := p.set.AccessPolicy()
	var proxy *accessproxy.Proxy
	metrics := p.metrics.AddProxy(func() (kinds []string) {
		for _, s := range proxy.Streams() {
			kinds = append(kinds, string(s.Kind))
		}
		return kinds
	})
	proxy = &accessproxy.Proxy{
		Cluster: p.cluster.Name, Tailnet: node, Signins: proxySignins{store}, Upstream: upstream,
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
		Protected: []string{p.set.Signin.SystemNamespace, p.set.Signin.Namespace, "kube-system"},
		Record:    p.record.Write, RecordLater: p.record.Queue, RecordAll: p.set.Proxy.Requests == settings.RecordAll, Drain: time.Duration(p.set.Proxy.Drain),
		Measure: metrics.Measure, Log: p.log, Now: time.Now,
	}
	p.health.AddCheck("tailnet.proxy", nodeCheck(node))
	p.health.AddCheck("signins.proxy", func(context.Context) error {
		if !store.Synced() {
			return errors.New("the cache of sign-ins is not synchronized yet")
		}
		return proxy.Ready()
	})
	return runNode(ctx, node, func(ctx context.Context) error {
		parts, ctx := newGroup(ctx)
		parts.run(func() error { return store.Run(ctx) })
		ln, err := node.Listen(ctx)
		if err != nil {
			return parts.stop(ctx, err)
		}
		p.log.Info("the access proxy is serving", "names", node.Names(), "cluster", p.cluster.Name, "apiServer", p.config.Host)
		working()
		parts.run(func() error { return proxy.Run(ctx, ln) })
		return parts.wait()
	})
}

// proxyUpstream returns the API server at the address of config. It uses nothing but the CA of config: requests of callers
// must never carry the proxy's own credential.
func proxyUpstream(config *rest.Config) (*accessproxy.Upstream, error) {
	address, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("the address of the API server: %w", err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("the CA of the API server: %w", err)
	}
	roots := x509.NewCertPool()
	if !roots.AppendCertsFromPEM(config.CAData) {
		return nil, errors.New("the client configuration of the API server names no CA")
	}
	return accessproxy.NewUpstream(&url.URL{Scheme: address.Scheme, Host: address.Host},
		&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: config.ServerName})
}
