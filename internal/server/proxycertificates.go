package server

import (
	"context"
	"crypto/tls"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// On a tailnet without HTTPS certificates, the access server issues the certificates of the access proxies. It announces
// their authorities in the description of the cluster, which the cluster's key proves.

// proxyCertificateSecret is the Secret of the certificates. The manifests create it empty.
const proxyCertificateSecret = "tailplane-proxy-tls"

// The times of a rotation. A kubeconfig has the authorities of its last login. The next authority is announced for
// longer than people usually go without a login, so that their kubeconfigs outlive the change.
const (
	proxyCertificateLifetime = 365 * 24 * time.Hour
	proxyAuthorityPublish    = 60 * 24 * time.Hour
	proxyAuthorityRetain     = time.Hour
	proxyCertificateInterval = 5 * time.Second // between two looks at the Secret
)

func newProxyCertificates(config *rest.Config, namespace string) (*kube.HostCertificates, error) {
	return kube.NewHostCertificates(config, namespace, proxyCertificateSecret,
		kube.Rotation{Lifetime: proxyCertificateLifetime, PublishTime: proxyAuthorityPublish, RetainTime: proxyAuthorityRetain})
}

// A proxyAuthority issues the certificates of the proxies that the access server announces by host name.
type proxyAuthority struct {
	certificates *kube.HostCertificates
	hosts        func() map[string]string // full names by label; empty: there is nothing to issue
	log          *slog.Logger

	bundles atomic.Pointer[map[string][]byte] // authorities in PEM, by label; nil: not issued yet
	failed  string                            // the last error; only step uses it
}

// newProxyAuthority returns the authority for the proxies of the settings that are nodes of the access server's tailnet.
func newProxyAuthority(p *process, node *tailnet.Node) (*proxyAuthority, error) {
	certificates, err := newProxyCertificates(p.config, p.set.Signin.SystemNamespace)
	if err != nil {
		return nil, err
	}
	return &proxyAuthority{certificates: certificates, log: p.log, hosts: func() map[string]string {
		hosts := map[string]string{}
		st := node.Status()
		for _, a := range p.set.AnnouncedProxies() {
			if name := fullName(a, st); name != "" && needsAuthority(a, st) {
				hosts[a.Hostname] = name
			}
		}
		return hosts
	}}, nil
}

// needsAuthority reports whether the access server must issue the certificate of a proxy: nothing else does.
func needsAuthority(p settings.AnnouncedProxy, node tailnet.Status) bool {
	return p.Hostname != "" && p.CAData == "" && node.Running() && node.CertDomain == ""
}

// fullName returns the name of a proxy in the tailnet of the access server, or "" while that is not known.
func fullName(p settings.AnnouncedProxy, node tailnet.Status) string {
	if len(node.Names) == 0 {
		return ""
	}
	return p.FullName(node.Names[0])
}

// bundle returns the authorities of a proxy, or none before its certificate is issued.
func (a *proxyAuthority) bundle(hostname string) []byte {
	if all := a.bundles.Load(); all != nil {
		return (*all)[hostname]
	}
	return nil
}

// check is the readiness check.
func (a *proxyAuthority) check(context.Context) error {
	for host := range a.hosts() {
		if len(a.bundle(host)) == 0 {
			return errors.New("the certificate of the access proxy " + host + " is not issued yet")
		}
	}
	return nil
}

// step performs the due steps. It returns the time until the next ones.
func (a *proxyAuthority) step(ctx context.Context) time.Duration {
	hosts := a.hosts()
	if len(hosts) == 0 {
		return proxyCertificateInterval
	}
	for ctx.Err() == nil {
		now := time.Now()
		bundles, wake, err := a.certificates.Advance(ctx, hosts, now)
		switch {
		case kube.IsStale(err): // another replica has made the step
			continue
		case err != nil:
			if text := err.Error(); text != a.failed && ctx.Err() == nil {
				a.failed = text
				a.log.Error("the certificates of the access proxies could not be issued or renewed", "err", err)
			}
			return proxyCertificateInterval
		}
		if a.failed = ""; wake.After(now) {
			a.bundles.Store(&bundles)
			return min(wake.Sub(now), proxyCertificateInterval) // an administrator may change the Secret
		}
		a.log.Info("the certificates of the access proxies changed", "secret", proxyCertificateSecret)
	}
	return 0
}

// run issues and renews until ctx ends.
func (a *proxyAuthority) run(ctx context.Context) error {
	for retry.Sleep(ctx, a.step(ctx)) == nil {
	}
	return nil
}

// A servedCertificate is the proxy's certificate from the Secret.
type servedCertificate struct {
	current atomic.Pointer[tls.Certificate]
}

// get implements the callback of [tls.Config].
func (s *servedCertificate) get(*tls.ClientHelloInfo) (*tls.Certificate, error) {
	if c := s.current.Load(); c != nil {
		return c, nil
	}
	return nil, errors.New("the access server has not issued a certificate yet")
}

// check is the readiness check.
func (s *servedCertificate) check(context.Context) error {
	c, err := s.get(nil)
	if err == nil && time.Now().After(c.Leaf.NotAfter) {
		err = errors.New("the certificate has expired; the access server renews it")
	}
	return err
}

// await returns when the proxy has a certificate, which it keeps current until ctx ends. The node itself has that of its own name.
func (s *servedCertificate) await(ctx context.Context, parts *group, p *process, node proxyNode, certificates *kube.HostCertificates) error {
	private := node.Status().CertDomain == ""
	if private || node.service != "" {
		p.health.AddCheck("certificate.proxy", s.check)
	}
	switch {
	case private:
		return s.follow(ctx, parts, p, node, certificates)
	case node.service != "":
		return s.followService(ctx, parts, p, node)
	}
	return nil
}

// follow loads each new certificate of the Secret until ctx ends. It returns when there is one.
func (s *servedCertificate) follow(ctx context.Context, parts *group, p *process, node proxyNode, certificates *kube.HostCertificates) error {
	first := make(chan struct{})
	set := func(c *tls.Certificate) {
		if names := node.Names(); node.service == "" && len(names) > 0 && c.Leaf.VerifyHostname(names[0]) != nil {
			p.log.Warn("the certificate is for another name than the node has: set proxy.hostname to a free name", "node", names[0], "certificate", c.Leaf.DNSNames)
		}
		p.log.Info("the access proxy has a certificate of the access server", "names", c.Leaf.DNSNames, "until", c.Leaf.NotAfter)
		if s.current.Swap(c) == nil {
			close(first)
		}
	}
	report := func(err error) {
		p.log.Warn("the certificate of the access proxy could not be loaded; the access server issues it", "err", err)
	}
	parts.parts.Go(func() {
		certificates.Follow(ctx, p.set.ProxyName(), proxyCertificateInterval, set, report)
	})
	select {
	case <-first:
		return nil
	case <-ctx.Done():
		return context.Cause(ctx)
	}
}
