package server

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/url"
	"time"

	"github.com/tailplane/tailplane/internal/settings"
)

// serverCheckTime limits the look at the API server's certificate.
const serverCheckTime = 5 * time.Second

// checkServer connects to the address of the API server that people get, and fails if its certificate does not verify with the CA that
// they get, or without one with the roots of the system: every kubeconfig would fail. An address that cannot be reached from here may be right for people, so that is
// a warning.
func checkServer(ctx context.Context, c settings.Cluster, ca []byte, log *slog.Logger) error {
	u, err := url.Parse(c.Server)
	if err != nil || c.InsecureSkipTLSVerify {
		return nil // the settings' own check reports the former
	}
	var roots *x509.CertPool // nil: those of the system
	from := "the roots of the system, which cluster.caData names"
	if len(ca) > 0 {
		roots, from = x509.NewCertPool(), "cluster.caData or cluster.caFile"
		roots.AppendCertsFromPEM(ca) // checked by the settings
	}
	port := u.Port()
	if port == "" {
		port = "443"
	}
	ctx, cancel := context.WithTimeout(ctx, serverCheckTime)
	defer cancel()
	dialer := tls.Dialer{Config: &tls.Config{RootCAs: roots, ServerName: u.Hostname(), MinVersion: tls.VersionTLS12}}
	conn, err := dialer.DialContext(ctx, "tcp", net.JoinHostPort(u.Hostname(), port))
	if err == nil {
		return conn.Close()
	}
	if bad, ok := errors.AsType[*tls.CertificateVerificationError](err); ok {
		return fmt.Errorf("cluster.server %s has a certificate that does not verify with %s, so kubectl would refuse it: %w", c.Server, from, bad.Err)
	}
	log.Warn("cluster.server cannot be reached from here, so its certificate was not compared with the CA of the settings", "server", c.Server, "err", err)
	return nil
}
