package settings

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"net/url"
	"path/filepath"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
)

// PlaneIdentity is how a caller is known. What a mode does not read may not be set:
// a setting without effect is a mistake of whoever relies on it.
type PlaneIdentity struct {
	Mode IdentityMode `yaml:"mode"`

	// Of whois: the plane is a node of its own.
	Hostname     string `yaml:"hostname"`     // of that node
	InsecureHTTP bool   `yaml:"insecureHTTP"` // as of tailnet, for the plane's node and those of exposures

	// Of every other mode: the plane listens on this machine.
	Listen string   `yaml:"listen,omitempty"` // unix:/path/of/a.sock, or an address such as 127.0.0.1:8443
	Names  []string `yaml:"names,omitempty"`  // host names and addresses by which browsers come to it
	TLS    PlaneTLS `yaml:"tls,omitempty"`

	Users []uint32 `yaml:"users,omitempty"` // serve, on a loopback port: the user ids as which tailscaled may run

	// Of proxy.
	TrustedProxies []string `yaml:"trustedProxies,omitempty"` // address ranges that it comes from
	SecretFile     string   `yaml:"secretFile,omitempty"`     // what it sends in X-Tailplane-Proxy-Secret
	Certificates   []string `yaml:"certificates,omitempty"`   // names of which its certificate has one
	Tailnet        string   `yaml:"tailnet,omitempty"`        // ours, as it names it

	OIDC  PlaneOIDC `yaml:"oidc,omitempty"`  // of oidc; with whois, whose tokens may come beside the connection
	Login string    `yaml:"login,omitempty"` // dev: who everybody is
}

// PlaneTLS is what a listener of this machine shows, and asks of a proxy.
type PlaneTLS struct {
	CertFile     string `yaml:"certFile,omitempty"`     // PEM
	KeyFile      string `yaml:"keyFile,omitempty"`      // PEM
	ClientCAFile string `yaml:"clientCAFile,omitempty"` // PEM: who signs the proxy's certificate
}

// PlaneOIDC is who signs tokens.
type PlaneOIDC struct {
	Issuer   string `yaml:"issuer"`   // URL
	Audience string `yaml:"audience"` // our client id there
	Tailnet  string `yaml:"tailnet"`  // such as tail12345.ts.net
}

// An IdentityMode says what is trusted about who is calling.
type IdentityMode string

// The modes.
const (
	Whois IdentityMode = "whois" // the connection alone: the tailnet is asked at each request, and no header is read
	Serve IdentityMode = "serve" // tailscaled serve in front
	Proxy IdentityMode = "proxy" // a named reverse proxy in front
	OIDC  IdentityMode = "oidc"  // a token of the tailnet's identity provider
	Dev   IdentityMode = "dev"   // nothing, on a developer's own machine
)

// Modes are all modes.
func Modes() []IdentityMode { return []IdentityMode{Whois, Serve, Proxy, OIDC, Dev} }

// given lists the settings of i that are of some modes only, and of which.
func (i PlaneIdentity) given() (out []struct {
	name string
	of   []IdentityMode
}) {
	add := func(set bool, name string, of ...IdentityMode) {
		if set {
			out = append(out, struct {
				name string
				of   []IdentityMode
			}{name, of})
		}
	}
	add(i.Listen != "", "listen", Serve, Proxy, OIDC, Dev)
	add(len(i.Names) > 0, "names", Serve, Proxy, OIDC, Dev)
	add(i.TLS != PlaneTLS{}, "tls", Proxy, OIDC)
	add(i.TLS.ClientCAFile != "", "tls.clientCAFile", Proxy)
	add(len(i.Users) > 0, "users", Serve)
	add(len(i.TrustedProxies) > 0, "trustedProxies", Proxy)
	add(i.SecretFile != "", "secretFile", Proxy)
	add(len(i.Certificates) > 0, "certificates", Proxy)
	add(i.Tailnet != "", "tailnet", Proxy)
	add(i.OIDC != PlaneOIDC{}, "oidc", Whois, OIDC)
	add(i.Login != "", "login", Dev)
	return out
}

func (i PlaneIdentity) validate() (errs []error) {
	bad := func(format string, args ...any) {
		errs = append(errs, fmt.Errorf("plane.identity."+format, args...))
	}
	if !slices.Contains(Modes(), i.Mode) {
		bad("mode: %q is none of %v", i.Mode, Modes())
		return errs
	}
	for _, g := range i.given() {
		if !slices.Contains(g.of, i.Mode) {
			bad("%s is set, and the mode %s does not read it: only %v", g.name, i.Mode, g.of)
		}
	}
	if i.OIDC != (PlaneOIDC{}) && (i.OIDC.Issuer == "" || i.OIDC.Audience == "" || i.OIDC.Tailnet == "") {
		bad("oidc: issuer, audience and tailnet belong together")
	}
	if i.Mode == Whois {
		if !label.MatchString(i.Hostname) {
			bad("hostname: %q is not a DNS label", i.Hostname)
		}
		return errs
	}
	if i.Mode == OIDC && i.OIDC == (PlaneOIDC{}) {
		bad("oidc is missing: whose tokens count")
	}
	at, err := i.Address()
	if err != nil {
		bad("listen: %w", err)
		return errs
	}
	if len(i.Names) == 0 {
		bad("names is missing: the names by which browsers come, such as dashboard.tail12345.ts.net; every other name is refused")
	}
	for _, n := range i.Names {
		if _, err := netip.ParseAddr(n); err != nil && !subdomain.MatchString(n) {
			bad("names: %q is neither a host name in small letters nor an address", n)
		}
	}
	if (i.TLS.CertFile == "") != (i.TLS.KeyFile == "") || i.TLS.ClientCAFile != "" && i.TLS.CertFile == "" {
		bad("tls: certFile and keyFile belong together, and clientCAFile to them")
	}
	if len(i.Certificates) > 0 && i.TLS.ClientCAFile == "" {
		bad("certificates: without tls.clientCAFile nobody's certificate is asked for")
	}
	if tcp, ok := at.(*net.TCPAddr); ok && i.Mode == OIDC && i.TLS.CertFile == "" && !tcp.IP.IsLoopback() {
		bad("tls is missing: on %s tokens would pass the network in the clear", i.Listen)
	}
	if i.Mode == Proxy {
		if _, err := i.Proxies(); err != nil {
			bad("trustedProxies: %w", err)
		}
	}
	if i.Mode == Dev {
		if _, err := access.ParseLogin(i.Login); err != nil {
			bad("login: %w", err)
		}
	}
	return errs
}

// Address is where the plane listens on this machine: a *[net.UnixAddr] or a *[net.TCPAddr].
func (i PlaneIdentity) Address() (net.Addr, error) {
	if path, ok := strings.CutPrefix(i.Listen, "unix:"); ok {
		if !filepath.IsAbs(path) {
			return nil, fmt.Errorf("%q is not unix: and an absolute path", i.Listen)
		}
		return &net.UnixAddr{Name: path, Net: "unix"}, nil
	}
	at, err := netip.ParseAddrPort(i.Listen)
	if err != nil {
		return nil, fmt.Errorf("%q is neither unix:/path/of/a.sock nor an address and a port such as 127.0.0.1:8443", i.Listen)
	}
	return net.TCPAddrFromAddrPort(at), nil
}

// Proxies are the ranges of TrustedProxies.
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

// An Exposure is a service of the cluster that the plane puts on the tailnet, as a
// node of its own with the tags of tailnet.tags.
type Exposure struct {
	Name       string `yaml:"name"`                 // of the node to ask for
	Upstream   string `yaml:"upstream"`             // http://name.namespace.svc:port
	Access     string `yaml:"access"`               // observe.read, or identified: the upstream asks for more itself
	UserHeader string `yaml:"userHeader,omitempty"` // tells the upstream who is calling
	RoleHeader string `yaml:"roleHeader,omitempty"` // and as what
}

// validateExposures says what can be told from the names. Which upstreams are never
// exposed, the room itself knows.
func (p Plane) validateExposures() (errs []error) {
	taken := []string{}
	if p.Identity.Mode == Whois {
		taken = append(taken, p.Identity.Hostname)
	}
	for i, e := range p.Exposures {
		bad := func(err error) { errs = append(errs, fmt.Errorf("plane.exposures: entry %d: %w", i+1, err)) }
		if !label.MatchString(e.Name) {
			bad(fmt.Errorf("name %q is not a DNS label", e.Name))
		} else if slices.Contains(taken, e.Name) {
			bad(fmt.Errorf("%q is the name of two nodes", e.Name))
		}
		taken = append(taken, e.Name)
		if u, err := url.Parse(e.Upstream); err != nil || u.Host == "" {
			bad(errors.New("upstream is not a URL such as http://prometheus.monitoring.svc:9090"))
		}
	}
	return errs
}
