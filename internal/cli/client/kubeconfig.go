package client

import (
	"bytes"
	"context"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// An IssuedKubeconfig is a validated kubeconfig from the server.
type IssuedKubeconfig struct {
	signin.Kubeconfig
	Mode  signin.Mode
	Until time.Time // actual end of the access; zero if the server does not report it
}

// Kubeconfig waits for the sign-in of a session and fetches its kubeconfig.
func (c *Client) Kubeconfig(ctx context.Context, session signin.Session) (IssuedKubeconfig, error) {
	k, err := CallUntilReady(ctx, c, signin.GetKubeconfig, func(wait time.Duration) signin.KubeconfigRequest {
		return signin.KubeconfigRequest{Session: session, Wait: httpapi.Duration(wait)}
	})
	if err != nil {
		return IssuedKubeconfig{}, err
	}
	// The names of a cluster and a session can be joined in two ways, so the text decides, and not how it was decoded.
	context := k.Context()
	prefix, ok := strings.CutSuffix(context, signin.ContextName("", k.Cluster, session))
	k.Prefix, k.Session = prefix, session
	g := IssuedKubeconfig{Kubeconfig: k, Mode: signin.ModeToken}
	if s := c.Last.Header.Get(signin.ExpiresHeader); s != "" {
		if g.Until, err = time.Parse(time.RFC3339, s); err != nil {
			err = fmt.Errorf("the expiry of the token, %.60q, is not a time", s)
		}
	}
	if err == nil {
		err = CheckKubeconfig(k)
	}
	if err == nil && len(k.CA) == 0 && len(c.Info.CAData) > 0 {
		err = errors.New("certificate-authority-data: it is empty")
	}
	if err != nil {
		return IssuedKubeconfig{}, c.InvalidResponse("kubeconfig", err)
	}
	if k.Cluster != c.Info.Name || k.Server != c.Info.ServerURL || !bytes.Equal(k.CA, c.Info.CAData) {
		return IssuedKubeconfig{}, output.Errorf(output.ExitRefused, "tka does not use the kubeconfig from %s: its API server is not the one that the server proved", c.Base).
			Try("Ask an administrator of the server. tka changed nothing on this machine.")
	}
	if !ok {
		return IssuedKubeconfig{}, c.InvalidResponse("kubeconfig", fmt.Errorf("the context %.80q is not that of the session", context))
	}
	return g, nil
}

// CheckKubeconfig rejects a kubeconfig that could make kubectl trust or run more than a sign-in needs. Decoding has already rejected
// unknown fields.
func CheckKubeconfig(k signin.Kubeconfig) error {
	switch {
	case k.InsecureSkipTLSVerify:
		return errors.New("insecure-skip-tls-verify is set, so another machine could impersonate the cluster")
	}
	if err := checkEntry(k); err != nil {
		return err
	}
	if len(k.CA) > 0 { // otherwise the certificate is public
		if err := checkCA(k.CA); err != nil {
			return fmt.Errorf("certificate-authority-data: %w", err)
		}
	}
	return CheckToken(k.Token)
}

// checkEntry rejects the names and the address of a kubeconfig that tka would not write.
func checkEntry(k signin.Kubeconfig) error {
	switch {
	case !dialpolicy.IsClusterName(k.Cluster):
		return fmt.Errorf("%.60q is not the name of a cluster", k.Cluster)
	case k.Namespace != "" && !dialpolicy.IsNamespaceName(k.Namespace):
		return fmt.Errorf("%.60q is not the name of a namespace", k.Namespace)
	}
	if err := checkAPIServer(k.Server); err != nil {
		return fmt.Errorf("server: %w", err)
	}
	return nil
}

// checkAPIServer rejects an address of a cluster that is not https or that has parts other than host, port and path.
func checkAPIServer(s string) error {
	if i := strings.IndexFunc(s, output.Unsafe); i >= 0 || strings.ContainsRune(s, ' ') {
		return fmt.Errorf("%.80q contains characters that are not valid in a URL", s)
	}
	u, err := url.Parse(s)
	switch {
	case err != nil:
		return fmt.Errorf("%.80q is not a URL", s)
	case u.Scheme != "https" || u.Opaque != "":
		return fmt.Errorf("%.80q is not https", s)
	case u.Host == "" || u.Hostname() == "":
		return fmt.Errorf("%.80q has no host", s)
	case u.User != nil || u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#"):
		return fmt.Errorf("%.80q has more than a host and a path", s)
	}
	if addr, err := netip.ParseAddr(u.Hostname()); err == nil {
		return dialpolicy.CheckAddr(addr)
	}
	return dialpolicy.CheckHost(strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")))
}

// checkCA requires one or more PEM certificates and nothing else.
func checkCA(ca []byte) error {
	n := 0
	for rest := ca; len(strings.TrimSpace(string(rest))) > 0; n++ {
		var block *pem.Block
		lead, _, _ := strings.Cut(string(rest), "-----BEGIN")
		if block, rest = pem.Decode(rest); block == nil || strings.TrimSpace(lead) != "" {
			return errors.New("it contains data that is not PEM")
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("it holds a %.40q", block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("certificate %d: %w", n+1, err)
		}
	}
	if n == 0 {
		return errors.New("it is empty")
	}
	return nil
}

// CheckToken returns an error if the token is not valid in an Authorization header. The error does not show the token.
func CheckToken(token secret.Text) error {
	s := token.Reveal()
	switch {
	case s == "":
		return errors.New("the token is missing")
	case len(s) > 64<<10:
		return errors.New("the token is too long")
	case strings.IndexFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) >= 0:
		return errors.New("the token contains characters that are not valid in a token")
	}
	return nil
}
