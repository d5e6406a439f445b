package server

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/accessproxy/policy"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
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
	certificates, err := newProxyCertificates(p.config, p.set.Signin.SystemNamespace)
	if err != nil {
		return err
	}
	t, served := p.set.Tailnet, new(servedCertificate)
	conf := tailnet.Config{Hostname: p.set.ProxyHostname(), StateDir: t.StateDir, StateSecret: t.StateSecret,
		Certificate: served.get, Services: p.set.Proxy.Service != "", HTTP2: true, Capability: p.set.Signin.Capability, RequestCapability: p.set.RequestCapability(), Log: p.log}
	if p.role == settings.AllRoles { // the access server's node has the other state
		conf.StateDir = filepath.Join(t.StateDir, "proxy")
		if t.StateSecret != "" {
			conf.StateSecret = t.StateSecret + "-proxy"
		}
	}
	joined, err := newNode(p, conf, p.set.Proxy.Tags...)
	if err != nil {
		return err
	}
	node := proxyNode{joined, p.set.Proxy.Service}
	upstream, err := proxyUpstream(p.config)
	if err != nil {
		return err
	}
	policy := p.set.AccessPolicy()
	accessServers, err := newAccessClient(p.set, joined)
	if err != nil {
		return err
	}
	var proxy *accessproxy.Proxy
	metrics := p.metrics.AddProxy(func() []string { return proxy.Kinds() })
	proxy = &accessproxy.Proxy{
		Cluster: p.cluster.Name, Tailnet: node, Signins: proxySignins{store}, Upstream: upstream, Access: accessServers,
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.Decide(c, v, policy, now)
		},
		Protected: []string{p.set.Signin.SystemNamespace, p.set.Signin.Namespace, "kube-system"},
		Record:    p.record.Write, RecordLater: p.record.Queue, RecordAll: p.set.Proxy.Requests == settings.RecordAll, Drain: time.Duration(p.set.Proxy.Drain),
		Limits:  accessproxy.Limits(p.set.Proxy.Limits),
		Measure: metrics.Measure, Log: p.log, Now: time.Now,
	}
	rules, err := proxyRules(p.set)
	if err != nil {
		return err
	}
	keep, err := p.recordings(node.Node, proxy)
	if err != nil {
		return err
	}
	proxy.SetPolicy(rules)
	p.health.AddCheck("tailnet.proxy", nodeCheck(node.Node))
	p.health.AddCheck("signins.proxy", func(context.Context) error {
		if !store.Synced() {
			return errors.New("the cache of sign-ins is not synchronized yet")
		}
		return proxy.Ready()
	})
	return runNode(ctx, node.Node, func(ctx context.Context) error {
		parts, ctx := newGroup(ctx)
		parts.run(func() error { return store.Run(ctx) })
		ln, err := node.listen(ctx, served, t.Port)
		if err != nil {
			return parts.stop(ctx, err)
		}
		if err := served.await(ctx, parts, p, node, certificates); err != nil {
			return parts.stop(ctx, err)
		}
		p.log.Info("the access proxy is serving", "names", node.Names(), "cluster", p.cluster.Name, "apiServer", p.config.Host)
		working()
		parts.run(func() error { return proxy.Run(ctx, ln) })
		parts.run(func() error { return keep(ctx) })
		parts.parts.Go(func() { p.watchProxyPolicy(ctx, proxy.SetPolicy) })
		return parts.wait()
	})
}

// recordings gives the proxy the place of its recordings. keep deletes old ones until ctx ends.
func (p *process) recordings(node *tailnet.Node, proxy *accessproxy.Proxy) (keep func(ctx context.Context) error, err error) {
	wait := func(ctx context.Context) error { <-ctx.Done(); return nil }
	set := p.set.Proxy.Recording
	proxy.RecordInput = set.Input
	switch {
	case set.Dir != "":
		dir, err := recording.OpenDir(recording.DirConfig{Path: set.Dir, Now: time.Now})
		if err != nil {
			return nil, fmt.Errorf("proxy.recording.dir: %w", err)
		}
		proxy.Recorder = dir
		return func(ctx context.Context) error { return errors.Join(dir.Run(ctx), dir.Close()) }, nil
	case set.Recorder != "":
		proxy.Recorder = &recording.Recorder{Addr: set.Recorder, Dial: dialTagged(node, access.Tag(set.Tag))}
	}
	return wait, nil
}

// dialTagged returns a dialler that connects only to nodes of the tailnet with a tag: a name alone proves nothing.
func dialTagged(node *tailnet.Node, tag access.Tag) func(ctx context.Context, network, addr string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		c, err := node.DialHost(ctx, network, addr)
		if err != nil {
			return nil, err
		}
		at, err := netip.ParseAddrPort(c.RemoteAddr().String())
		if err == nil {
			var peer access.Caller
			if peer, err = node.WhoIs(ctx, at); err == nil && !slices.Contains(peer.Tags, tag) {
				err = fmt.Errorf("the node %s does not have %s", peer.Device.Name, tag)
			}
		}
		if err != nil {
			c.Close()
			return nil, fmt.Errorf("recorder %s: %w", addr, err)
		}
		return c, nil
	}
}

// proxyRules compiles the rules of the settings.
func proxyRules(set settings.File) (*policy.Policy, error) {
	var rules []policy.Rule
	for _, r := range set.Policy.Rules {
		rules = append(rules, policy.Rule(r))
	}
	compiled, err := policy.Compile(rules)
	if err != nil {
		return nil, fmt.Errorf("policy: %w", err)
	}
	return compiled, nil
}

// policyInterval is the time between two looks at the settings file. A mounted ConfigMap takes up to a minute to change.
const policyInterval = 5 * time.Second

// watchProxyPolicy calls set for each new version of the policy in the settings file. A file that is not valid changes
// nothing: the last good policy stays. All other settings are read at the start only.
func (p *process) watchProxyPolicy(ctx context.Context, set func(*policy.Policy)) {
	tick := time.NewTicker(policyInterval)
	defer tick.Stop()
	var read []byte // of the file; nil: it must be loaded again
	last, lastErr := p.set.Policy, ""
	for {
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
		text, err := os.ReadFile(p.Config)
		if err == nil && read != nil && bytes.Equal(text, read) {
			continue
		}
		read = text
		now, err := load(p.Config, p.role)
		if err == nil && reflect.DeepEqual(now.Policy, last) {
			lastErr = ""
			continue
		}
		var rules *policy.Policy
		if err == nil {
			rules, err = proxyRules(now)
		}
		if err != nil {
			if text := err.Error(); text != lastErr {
				lastErr = text
				p.log.Error("the settings file is not valid now, so the last good policy of the access proxy stays in force", "err", err)
			}
			continue
		}
		last, lastErr = now.Policy, ""
		set(rules)
		p.log.Info("the policy of the access proxy has changed", "rules", len(last.Rules))
	}
}

// proxyUpstream returns the API server at the address of config. It uses nothing but the CA of config, or the roots of the
// system: requests of callers
// must never carry the proxy's own credential.
func proxyUpstream(config *rest.Config) (*accessproxy.Upstream, error) {
	address, _, err := rest.DefaultServerUrlFor(config)
	if err != nil {
		return nil, fmt.Errorf("the address of the API server: %w", err)
	}
	if err := rest.LoadTLSFiles(config); err != nil {
		return nil, fmt.Errorf("the CA of the API server: %w", err)
	}
	var roots *x509.CertPool // nil: those of the system, if the certificate is public
	switch {
	case config.Insecure:
		return nil, errors.New("the client configuration of the API server does not verify its certificate")
	case len(config.CAData) > 0:
		if roots = x509.NewCertPool(); !roots.AppendCertsFromPEM(config.CAData) {
			return nil, errors.New("the CA in the client configuration of the API server has no certificate")
		}
	}
	return accessproxy.NewUpstream(&url.URL{Scheme: address.Scheme, Host: address.Host},
		&tls.Config{MinVersion: tls.VersionTLS12, RootCAs: roots, ServerName: config.ServerName})
}
