package settings

import (
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
)

// PlaneIdentity configures how the plane identifies callers. A setting that the mode does not use
// is an error, because an administrator might rely on it.
type PlaneIdentity struct {
	Mode IdentityMode `yaml:"mode"`

	// For the mode whois, in which the plane is a separate node.
	Hostname     string `yaml:"hostname"`     // host name of that node
	InsecureHTTP bool   `yaml:"insecureHTTP"` // as in tailnet, for the plane's node and the nodes of exposures

	// For every other mode, in which the plane listens on this machine.
	Listen string   `yaml:"listen,omitempty"` // unix:/path/of/a.sock, or an address such as 127.0.0.1:8443
	Names  []string `yaml:"names,omitempty"`  // host names and addresses that browsers use for it
	TLS    PlaneTLS `yaml:"tls,omitempty"`

	Users []uint32 `yaml:"users,omitempty"` // for serve on a loopback port: the allowed user IDs of tailscaled

	// For the mode proxy.
	TrustedProxies []string `yaml:"trustedProxies,omitempty"` // address ranges of the proxy
	SecretFile     string   `yaml:"secretFile,omitempty"`     // file with the value that the proxy sends in X-Tailplane-Proxy-Secret
	Certificates   []string `yaml:"certificates,omitempty"`   // the proxy's certificate must have one of these names
	Tailnet        string   `yaml:"tailnet,omitempty"`        // the server's tailnet, as the proxy names it

	OIDC  PlaneOIDC `yaml:"oidc,omitempty"`  // for oidc; with whois, the issuer of optional tokens
	Login string    `yaml:"login,omitempty"` // for dev: the login of every caller
}

// PlaneTLS configures TLS for a listener on this machine, and the client certificate of a proxy.
type PlaneTLS struct {
	CertFile     string `yaml:"certFile,omitempty"`     // PEM
	KeyFile      string `yaml:"keyFile,omitempty"`      // PEM
	ClientCAFile string `yaml:"clientCAFile,omitempty"` // PEM: the CA of the proxy's certificate
}

// PlaneOIDC configures the issuer of tokens.
type PlaneOIDC struct {
	Issuer   string `yaml:"issuer"`   // URL
	Audience string `yaml:"audience"` // the plane's client ID at the issuer
	Tailnet  string `yaml:"tailnet"`  // such as tail12345.ts.net
}

// An IdentityMode is a source of the caller's identity.
type IdentityMode string

// The modes.
const (
	Whois IdentityMode = "whois" // the tailnet identifies the connection at each request, and no header is read
	Serve IdentityMode = "serve" // tailscaled serve in front
	Proxy IdentityMode = "proxy" // a named reverse proxy in front
	OIDC  IdentityMode = "oidc"  // a token from the tailnet's identity provider
	Dev   IdentityMode = "dev"   // a fixed login, on a developer's machine
)

// Modes returns all modes.
func Modes() []IdentityMode { return []IdentityMode{Whois, Serve, Proxy, OIDC, Dev} }

func (i PlaneIdentity) validate(v *validation) {
	if !slices.Contains(Modes(), i.Mode) {
		v.fail("plane.identity.mode: %q is not one of %v", i.Mode, Modes())
		return
	}
	for _, g := range []struct {
		set   bool
		name  string
		modes []IdentityMode // the modes that use it
	}{
		{i.Listen != "", "listen", []IdentityMode{Serve, Proxy, OIDC, Dev}},
		{len(i.Names) > 0, "names", []IdentityMode{Serve, Proxy, OIDC, Dev}},
		{i.TLS != (PlaneTLS{}), "tls", []IdentityMode{Proxy, OIDC}},
		{i.TLS.ClientCAFile != "", "tls.clientCAFile", []IdentityMode{Proxy}},
		{len(i.Users) > 0, "users", []IdentityMode{Serve}},
		{len(i.TrustedProxies) > 0, "trustedProxies", []IdentityMode{Proxy}},
		{i.SecretFile != "", "secretFile", []IdentityMode{Proxy}},
		{len(i.Certificates) > 0, "certificates", []IdentityMode{Proxy}},
		{i.Tailnet != "", "tailnet", []IdentityMode{Proxy}},
		{i.OIDC != (PlaneOIDC{}), "oidc", []IdentityMode{Whois, OIDC}},
		{i.Login != "", "login", []IdentityMode{Dev}},
	} {
		v.failIf(g.set && !slices.Contains(g.modes, i.Mode),
			"plane.identity.%s is set, but the mode %s does not use it: only %v", g.name, i.Mode, g.modes)
	}
	v.failIf(i.OIDC != (PlaneOIDC{}) && (i.OIDC.Issuer == "" || i.OIDC.Audience == "" || i.OIDC.Tailnet == ""),
		"plane.identity.oidc: issuer, audience and tailnet must be set together")
	if i.Mode == Whois {
		v.failIf(!label.MatchString(i.Hostname), "plane.identity.hostname: %q is not a DNS label", i.Hostname)
		return
	}
	v.failIf(i.Mode == OIDC && i.OIDC == (PlaneOIDC{}), "plane.identity.oidc is missing: set the issuer of accepted tokens")
	at, err := i.Address()
	if err != nil {
		v.fail("plane.identity.listen: %w", err)
		return
	}
	v.failIf(len(i.Names) == 0,
		"plane.identity.names is missing: list the host names that browsers use, such as dashboard.tail12345.ts.net; the plane refuses every other name")
	for _, n := range i.Names {
		_, err := netip.ParseAddr(n)
		v.failIf(err != nil && !subdomain.MatchString(n), "plane.identity.names: %q is neither a host name in lower case nor an address", n)
	}
	v.failIf((i.TLS.CertFile == "") != (i.TLS.KeyFile == "") || i.TLS.ClientCAFile != "" && i.TLS.CertFile == "",
		"plane.identity.tls: certFile and keyFile must be set together, and clientCAFile requires both")
	v.failIf(len(i.Certificates) > 0 && i.TLS.ClientCAFile == "",
		"plane.identity.certificates: set tls.clientCAFile, or the plane requests no client certificate")
	if tcp, ok := at.(*net.TCPAddr); ok && i.Mode == OIDC && i.TLS.CertFile == "" && !tcp.IP.IsLoopback() {
		v.fail("plane.identity.tls is missing: on %s, clients would send tokens without encryption", i.Listen)
	}
	if i.Mode == Proxy {
		_, err := i.Proxies()
		v.failIf(err != nil, "plane.identity.trustedProxies: %w", err)
	}
	if i.Mode == Dev {
		_, err := access.ParseLogin(i.Login)
		v.failIf(err != nil, "plane.identity.login: %w", err)
	}
}

// Address returns the plane's listen address on this machine: a *[net.UnixAddr] or a *[net.TCPAddr].
func (i PlaneIdentity) Address() (net.Addr, error) {
	if path, ok := strings.CutPrefix(i.Listen, "unix:"); ok {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("%q is not unix: with an absolute path", i.Listen)
		}
		return &net.UnixAddr{Name: path, Net: "unix"}, nil
	}
	at, err := netip.ParseAddrPort(i.Listen)
	if err != nil {
		return nil, fmt.Errorf("%q is neither unix:/path/of/a.sock nor an address and a port such as 127.0.0.1:8443", i.Listen)
	}
	return net.TCPAddrFromAddrPort(at), nil
}

// Proxies returns the parsed TrustedProxies.
func (i PlaneIdentity) Proxies() (out []netip.Prefix, err error) {
	for _, s := range i.TrustedProxies {
		p, err := netip.ParsePrefix(s)
		if err != nil {
			return nil, fmt.Errorf("%q is not an address range such as 10.0.0.7/32", s)
		}
		out = append(out, p)
	}
	return out, nil
}

// An Exposure is a service of the cluster that the plane makes available on the tailnet, as a
// separate node with the tags in tailnet.tags.
type Exposure struct {
	Name       string `yaml:"name"`                 // requested host name of the node
	Upstream   string `yaml:"upstream"`             // http://name.namespace.svc:port
	Access     string `yaml:"access"`               // observe.read, or identified if the upstream authorizes callers itself
	UserHeader string `yaml:"userHeader,omitempty"` // header with the caller's login for the upstream
	RoleHeader string `yaml:"roleHeader,omitempty"` // header with the caller's role
}

// validateExposures validates the names. Package exposure checks which upstreams may be exposed.
func (p Plane) validateExposures(v *validation) {
	taken := []string{}
	if p.Identity.Mode == Whois {
		taken = append(taken, p.Identity.Hostname)
	}
	for i, e := range p.Exposures {
		if !label.MatchString(e.Name) {
			v.fail("plane.exposures: entry %d: name %q is not a DNS label", i+1, e.Name)
		} else {
			v.failIf(slices.Contains(taken, e.Name), "plane.exposures: entry %d: %q is the name of two nodes", i+1, e.Name)
		}
		taken = append(taken, e.Name)
		u, err := url.Parse(e.Upstream)
		v.failIf(err != nil || u.Host == "", "plane.exposures: entry %d: upstream is not a URL such as http://prometheus.monitoring.svc:9090", i+1)
	}
}
