package server

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/plane/exposure"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/tailnet"
)

// An identityMode decides how a listener authenticates callers.
type identityMode interface {
	Check(net.Addr) error
	Identifier(net.Addr) (identity.Identifier, error)
}

// planeMode returns the mode of a plane that listens on this machine.
func planeMode(set settings.File) (identityMode, error) {
	i := set.Plane.Identity
	switch i.Mode {
	case settings.Serve:
		return identity.Serve{Capability: set.Plane.Capability, Users: i.Users}, nil
	case settings.OIDC:
		return issuer(i.OIDC, nil), nil
	case settings.Dev:
		login, err := access.ParseLogin(i.Login)
		return identity.Dev{Login: login, LookupEnv: os.LookupEnv}, err
	case settings.Proxy:
		m := identity.Proxy{Certificates: i.Certificates, Tailnet: i.Tailnet}
		var err error
		if m.Trusted, err = i.Proxies(); err != nil {
			return nil, err
		}
		if i.SecretFile != "" {
			b, err := os.ReadFile(i.SecretFile)
			if err != nil {
				return nil, fmt.Errorf("plane.identity.secretFile: %w", err)
			}
			if m.Secret, err = identity.ParseSecret(string(b)); err != nil {
				return nil, fmt.Errorf("plane.identity.secretFile: %w", err)
			}
		}
		return m, nil
	}
	return nil, fmt.Errorf("plane.identity.mode: %q has no listener on this machine", i.Mode)
}

// issuer returns the OIDC issuer whose tokens are valid. With a node, the issuer may be a service of the tailnet, such as tsidp.
func issuer(o settings.PlaneOIDC, by *tailnet.Node) identity.OIDC {
	tr := &http.Transport{TLSHandshakeTimeout: 5 * time.Second, IdleConnTimeout: time.Minute}
	if by != nil {
		tr.DialContext = by.DialHost
	}
	return identity.OIDC{Issuer: o.Issuer, Audience: o.Audience, Tailnet: o.Tailnet, Client: &http.Client{Transport: tr}, Now: time.Now}
}

// checkPlane rejects settings that would trust any caller, or expose a service that must stay inside the cluster. It runs before the plane
// listens.
func checkPlane(set settings.File) error {
	var errs []error
	i := set.Plane.Identity
	if i.Mode == settings.Whois {
		if i.OIDC != (settings.PlaneOIDC{}) {
			errs = append(errs, issuer(i.OIDC, nil).Check(nil))
		}
	} else if m, err := planeMode(set); err != nil {
		errs = append(errs, err)
	} else if at, err := i.Address(); err != nil {
		errs = append(errs, err)
	} else {
		errs = append(errs, m.Check(at))
	}
	if set.Plane.GitOps.Set() {
		_, err := openFormat(set.Plane.GitOps)
		errs = append(errs, err)
	}
	for n, u := range planeUpstreams(set, slog.New(slog.DiscardHandler)) {
		if err := u.Check(); err != nil {
			errs = append(errs, fmt.Errorf("plane.exposures: entry %d: %w", n+1, err))
		}
	}
	return errors.Join(errs...)
}

// planeUpstreams converts the configured exposures. Services in Tailplane's own namespaces cannot be exposed.
func planeUpstreams(set settings.File, log *slog.Logger) (out []exposure.Upstream) {
	for _, e := range set.Plane.Exposures {
		out = append(out, exposure.Upstream{Name: e.Name, URL: e.Upstream, Access: exposure.Access(e.Access), UserHeader: e.UserHeader, RoleHeader: e.RoleHeader,
			Never: []string{set.Signin.Namespace, set.Signin.SystemNamespace}, Transport: exposure.NewTransport(), Log: log, Now: time.Now})
	}
	return out
}

// listenLocal opens the listener of a plane that has no tailnet node.
func listenLocal(ctx context.Context, i settings.PlaneIdentity) (net.Listener, error) {
	at, err := i.Address()
	if err != nil {
		return nil, err
	}
	var ln net.Listener
	if at.Network() == "unix" {
		ln, err = identity.ListenUnix(ctx, at.String())
	} else {
		ln, err = new(net.ListenConfig).Listen(ctx, at.Network(), at.String())
	}
	if err != nil || i.TLS.CertFile == "" {
		return ln, err
	}
	conf, err := serverTLS(i)
	if err != nil {
		return nil, errors.Join(fmt.Errorf("plane.identity.tls: %w", err), ln.Close())
	}
	return tls.NewListener(ln, conf), nil
}

// serverTLS returns a configuration with the server's certificate. It requires client certificates if the settings name a CA for them.
func serverTLS(i settings.PlaneIdentity) (*tls.Config, error) {
	own, err := tls.LoadX509KeyPair(i.TLS.CertFile, i.TLS.KeyFile)
	if err != nil {
		return nil, err
	}
	conf := &tls.Config{Certificates: []tls.Certificate{own}, MinVersion: tls.VersionTLS12}
	if i.TLS.ClientCAFile == "" {
		return conf, nil
	}
	return conf, requireClientCertificates(conf, i.TLS.ClientCAFile)
}

// hostNames returns the names of a plane without a tailnet node, in the form that the HTTP server compares.
func hostNames(i settings.PlaneIdentity) func() []string {
	var names []string
	for _, n := range i.Names {
		if a, err := netip.ParseAddr(n); err == nil {
			n = a.String()
		}
		names = append(names, n)
	}
	return func() []string { return names }
}
