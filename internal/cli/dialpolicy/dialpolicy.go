// Package dialpolicy decides which servers tka connects to, and how. It keeps law 7: it rejects an address that is not clearly that of an
// access server or a cluster, whatever its source. It also rejects everything that a server sends beyond what tka requested.
package dialpolicy

import (
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"time"

	"github.com/tailplane/tailplane/internal/cli/tailscaled"
)

// A valid host name: labels of letters, digits, "-" and "_", separated by dots.
var hostPattern = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?$`)

var (
	tailnetRanges = tailscaled.Ranges()
	// Metadata services outside the link-local ranges. The first one is inside the tailnet's range.
	metadataAddrs = []netip.Addr{netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192")}
	metadataNames = []string{"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)

// ErrInsecure reports an http:// URL that the settings do not allow.
var ErrInsecure = errors.New("the server does not encrypt http://, which needs insecureHTTP: true for this server in the settings")

// ParseURL validates the base URL of a server and returns its canonical form: scheme and host, and the port unless it is the scheme's
// default.
func ParseURL(s string, insecure bool) (string, error) {
	if strings.Contains(s, "@") { // first, so that no later error shows a password
		return "", errors.New("it contains a user name or a password, which tka does not use")
	}
	u, err := url.Parse(s)
	if err != nil {
		if ue, ok := errors.AsType[*url.Error](err); ok {
			err = ue.Err
		}
		return "", fmt.Errorf("it is not a URL: %w", err)
	}
	host, port := strings.ToLower(strings.TrimSuffix(u.Hostname(), ".")), u.Port()
	switch {
	case u.Scheme != "https" && u.Scheme != "http":
		return "", errors.New("it does not begin with https:// or http://")
	case host == "" || u.Opaque != "":
		return "", errors.New("it has no host")
	case u.Path != "" && u.Path != "/":
		return "", errors.New("it has a path; give only the host")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#"):
		return "", errors.New("it has a query or a fragment; give only the host")
	}
	if err := CheckHost(host); err != nil {
		return "", err
	}
	if port != "" {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return "", fmt.Errorf("its port is %q", port)
		}
	}
	if u.Scheme == "http" {
		switch {
		case !insecure:
			return "", ErrInsecure
		case !mayBeTailnetHost(host):
			return "", errors.New("http:// is allowed only for hosts of the tailnet and this machine")
		}
	}
	if strings.Contains(host, ":") {
		host = "[" + host + "]"
	}
	if port != "" && !(u.Scheme == "https" && port == "443") && !(u.Scheme == "http" && port == "80") {
		host += ":" + port
	}
	return u.Scheme + "://" + host, nil
}

// RedactURL returns s for messages, without the part before an "@", which may be a password.
func RedactURL(s string) string {
	rest := s
	if _, after, ok := strings.Cut(s, "://"); ok {
		rest = after
	}
	i := strings.LastIndexByte(rest, '@')
	if i < 0 {
		return s
	}
	return s[:len(s)-len(rest)] + "[redacted]" + rest[i:]
}

// CheckHost rejects hosts that cannot be an access server.
func CheckHost(host string) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		return CheckAddr(addr)
	}
	last := host[strings.LastIndex(host, ".")+1:]
	_, notNumber := strconv.ParseUint(last, 0, 64)
	switch {
	case len(host) > 253 || !hostPattern.MatchString(host):
		return fmt.Errorf("%.80q is not a host name", host)
	case notNumber == nil: // some resolvers read it as an address
		return fmt.Errorf("%.80q is neither a host name nor an address", host)
	case slices.Contains(metadataNames, host):
		return fmt.Errorf("%s is a metadata service", host)
	}
	return nil
}

// CheckAddr rejects addresses of metadata services, link-local addresses and addresses that are not those of a host.
func CheckAddr(addr netip.Addr) error {
	plain := addr.Unmap()
	switch {
	case addr.Zone() != "" || plain.IsLinkLocalUnicast():
		return fmt.Errorf("%v is a link-local address, which metadata services use", addr)
	case slices.Contains(metadataAddrs, plain):
		return fmt.Errorf("%v is a metadata service", addr)
	case plain.IsUnspecified() || plain.IsMulticast():
		return fmt.Errorf("%v is not a host address", addr)
	}
	return nil
}

// mayBeTailnetHost reports whether a host can be in the tailnet or on this machine. A name does not show that, because tailnets have all
// kinds of suffixes. The dialer checks the address of the name.
func mayBeTailnetHost(host string) bool {
	addr, err := netip.ParseAddr(host)
	return err != nil || isTailnetOrLoopback(addr)
}

func isTailnetOrLoopback(addr netip.Addr) bool {
	return addr.Unmap().IsLoopback() || IsTailnetAddr(addr)
}

// IsTailnetAddr reports whether an address is in the address ranges of tailnets.
func IsTailnetAddr(addr netip.Addr) bool {
	addr = addr.Unmap()
	return slices.ContainsFunc(tailnetRanges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// TailnetRanges returns the address ranges of tailnets in CIDR notation.
func TailnetRanges() (ranges []string) {
	for _, p := range tailnetRanges {
		ranges = append(ranges, p.String())
	}
	return ranges
}

// dialTimeout bounds connecting to a server, within the command's time limit.
const dialTimeout = 10 * time.Second

// Transport returns the HTTP transport for a server. It checks each address when it dials, so that a name cannot lead to a forbidden
// address.
func Transport(base string, local *tailscaled.Client) *http.Transport {
	return transport(strings.HasPrefix(base, "http://"), local)
}

// TailnetTransport is [Transport] for a server that another server named. It dials only addresses in the tailnet or on this machine, where
// a proxy into the tailnet may run.
func TailnetTransport(local *tailscaled.Client) *http.Transport { return transport(true, local) }

// Proxy returns the proxy of the environment for a request. A host that this machine's Tailscale confirms to be in the tailnet has none, so
// that no name and no address of the tailnet goes to a proxy. The one exception is a proxy on this machine while Tailscale runs without a
// network device: then Tailscale's own proxy is the only way into the tailnet.
func Proxy(local *tailscaled.Client) func(*http.Request) (*url.URL, error) {
	return func(r *http.Request) (*url.URL, error) {
		via, err := http.ProxyFromEnvironment(r)
		if via == nil || err != nil || !local.InTailnet(r.Context(), r.URL.Hostname()) {
			return via, err
		}
		if s, err := local.Status(r.Context()); err == nil && s.Userspace && isThisMachine(via.Hostname()) {
			return via, nil
		}
		return nil, nil
	}
}

// isThisMachine reports whether a host is this machine by its name or address.
func isThisMachine(host string) bool {
	addr, err := netip.ParseAddr(host)
	return strings.EqualFold(host, "localhost") || err == nil && addr.Unmap().IsLoopback()
}

func transport(tailnetOnly bool, local *tailscaled.Client) *http.Transport {
	dialer := &net.Dialer{
		Timeout: dialTimeout,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("dial %q: %w", address, err)
			}
			if err := CheckAddr(to.Addr()); err != nil {
				return err
			}
			if tailnetOnly && !isTailnetOrLoopback(to.Addr()) {
				return fmt.Errorf("%v is outside the tailnet, which http:// and servers that another server listed may not use", to.Addr())
			}
			return nil
		},
	}
	return &http.Transport{
		Proxy:                  Proxy(local), // for http://, the dialer limits its address
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTimeout,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	}
}

// IsHostName reports whether name is a valid host name.
func IsHostName(name string) bool { return hostPattern.MatchString(name) }

// Names from a server appear in arguments, file names and commands that people copy. So they may contain only characters that are safe for
// shells and terminals.
var (
	clusterPattern   = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._:@/-]{0,251}[A-Za-z0-9])?$`)
	namespacePattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
)

// IsClusterName reports whether name is a valid name of a cluster.
func IsClusterName(name string) bool { return clusterPattern.MatchString(name) }

// IsNamespaceName reports whether name is a valid name of a namespace.
func IsNamespaceName(name string) bool { return namespacePattern.MatchString(name) }
