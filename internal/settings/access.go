package settings

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
	"errors"
	"fmt"
	"net"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// Access configures how kubectl reaches the API server, as the access server announces it.
type Access struct {
	Modes   []AccessMode     `yaml:"modes"`             // the first is the one that tka uses by default
	Proxies []AnnouncedProxy `yaml:"proxies,omitempty"` // any of them serves; empty: the node proxy.hostname
	// ProxyTags are tags that only the nodes of this cluster's access proxies have. These nodes may begin sign-ins on first
	// use. Empty: no sign-in begins on first use.
	ProxyTags []string `yaml:"proxyTags,omitempty,flow"`
}

// An AccessMode is a way from kubectl to the API server.
type AccessMode string

// The values of AccessMode.
const (
	TokenMode AccessMode = "token" // kubectl sends a token of the sign-in to the API server
	ProxyMode AccessMode = "proxy" // kubectl sends requests to the access proxy
)

// An AnnouncedProxy is an access proxy that people reach under a URL, or under the name of a node in the access server's tailnet.
type AnnouncedProxy struct {
	Hostname string `yaml:"hostname,omitempty"` // of its node or its service, with tailnet.port; this or url is required
	URL      string `yaml:"url,omitempty"`      // https://HOST or https://HOST:PORT
	CAData   string `yaml:"caData,omitempty"`   // PEM; "": its certificate is public
}

// AnnouncedProxies returns the proxies that the access server announces.
func (f File) AnnouncedProxies() []AnnouncedProxy {
	switch {
	case !slices.Contains(f.Access.Modes, ProxyMode):
		return nil
	case len(f.Access.Proxies) == 0:
		return []AnnouncedProxy{{Hostname: f.ProxyName()}}
	}
	return f.Access.Proxies
}

// At returns the URL of p for an access server whose node has the full name node. It returns "" if p has a hostname and node has no domain.
func (p AnnouncedProxy) At(node string, port uint16) string {
	if p.URL != "" {
		return p.URL
	}
	host := p.FullName(node)
	if host == "" {
		return ""
	}
	if port != 443 {
		host = net.JoinHostPort(host, strconv.Itoa(int(port)))
	}
	return "https://" + host
}

// FullName returns the full name of a proxy with a hostname, for an access server whose node has the full name node. It returns "" if node
// has no domain.
func (p AnnouncedProxy) FullName(node string) string {
	_, domain, ok := strings.Cut(node, ".")
	if !ok || p.Hostname == "" {
		return ""
	}
	return p.Hostname + "." + domain
}

func (f File) validateModes(v *validation) {
	f.validateProxyTags(v)
	modes := f.Access.Modes
	v.failIf(len(modes) == 0, "access.modes is empty: list token, proxy or both")
	for i, m := range modes {
		v.failIf(m != TokenMode && m != ProxyMode, "access.modes: %q is neither token nor proxy", m)
		v.failIf(slices.Contains(modes[:i], m), "access.modes: %q occurs twice", m)
	}
	for i, p := range f.Access.Proxies {
		if err := p.check(); err != nil {
			v.fail("access.proxies: entry %d: %w", i+1, err)
		}
	}
}

// check reports what is wrong with p.
func (p AnnouncedProxy) check() error {
	u, err := url.Parse(p.URL)
	switch {
	case (p.Hostname == "") == (p.URL == ""):
		return errors.New("set either hostname or url")
	case p.Hostname != "" && !label.MatchString(p.Hostname):
		return fmt.Errorf("hostname: %q is not a DNS label", p.Hostname)
	case p.URL != "" && (err != nil || *u != url.URL{Scheme: "https", Host: u.Host} || u.Hostname() == ""):
		return fmt.Errorf("url: %q is not https://HOST or https://HOST:PORT", p.URL)
	case p.CAData == "":
		return nil
	}
	return checkCertificates("caData", []byte(p.CAData))
}

// checkCertificates requires that b, the content of a setting, consists of PEM certificates.
func checkCertificates(setting string, b []byte) error {
	rest, n := b, 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return fmt.Errorf("%s contains a %s; only certificates are allowed", setting, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return fmt.Errorf("%s: certificate %d: %w", setting, n+1, err)
		}
		n++
	}
	if n == 0 || len(bytes.TrimSpace(rest)) > 0 {
		return fmt.Errorf("%s is not a list of PEM certificates", setting)
	}
	return nil
}
