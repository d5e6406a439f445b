package cli

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
)

// What may be called a host: labels of letters, digits, "-" and "_" between dots.
var hostForm = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?(\.[A-Za-z0-9]([A-Za-z0-9_-]*[A-Za-z0-9])?)*\.?$`)

var (
	tailnetRanges = []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd7a:115c:a1e0::/48")}
	// Metadata services outside the link-local ranges. The first lies inside the tailnet's.
	metadataAddrs = []netip.Addr{netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192")}
	metadataNames = []string{"metadata", "metadata.google.internal", "metadata.goog", "instance-data", "instance-data.ec2.internal"}
)

// address is the base URL of the server called name: a name of the settings, a
// URL, or the name or address of a host, which is reached by https.
func (s *settings) address(name string) (string, error) {
	if e := s.named(name); e != nil && e.URL != "" {
		return parseURL(e.URL, e.InsecureHTTP)
	}
	if strings.Contains(name, "://") {
		base, err := parseURL(name, true)
		if err == nil && strings.HasPrefix(base, "http://") && !s.insecureAllowed(base) {
			return "", errInsecure
		}
		return base, err
	}
	host, port := name, strconv.Itoa(s.Port)
	if addr, err := netip.ParseAddr(name); err == nil && addr.Is6() {
		host = "[" + name + "]"
	} else if h, p, err := net.SplitHostPort(name); err == nil {
		host, port = h, p
		if strings.Contains(h, ":") {
			host = "[" + h + "]"
		}
	}
	return parseURL("https://"+host+":"+port, false)
}

var errInsecure = errors.New("http:// is not encrypted by the server; it needs insecureHTTP: true for this server in the settings")

// parseURL checks the base URL of a server and returns it in its one form:
// scheme and host, and the port unless it is the scheme's own.
func parseURL(s string, insecure bool) (string, error) {
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
		return "", errors.New("it begins with neither https:// nor http://")
	case u.User != nil:
		return "", errors.New("it holds a user name or a password, and tka needs none")
	case host == "" || u.Opaque != "":
		return "", errors.New("it names no host")
	case u.Path != "" && u.Path != "/":
		return "", errors.New("it has a path, and only the host is wanted")
	case u.RawQuery != "" || u.ForceQuery || strings.Contains(s, "#"):
		return "", errors.New("it has more behind the host, and only the host is wanted")
	}
	if err := checkHost(host); err != nil {
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
			return "", errInsecure
		case !inTailnet(host):
			return "", errors.New("http:// is for hosts of the tailnet and of this machine only")
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

// checkHost refuses hosts that are no access server whatever they answer.
func checkHost(host string) error {
	if addr, err := netip.ParseAddr(host); err == nil {
		return checkAddr(addr)
	}
	last := host[strings.LastIndex(host, ".")+1:]
	_, notNumber := strconv.ParseUint(last, 0, 64)
	switch {
	case len(host) > 253 || !hostForm.MatchString(host):
		return fmt.Errorf("%.80q is not the name of a host", host)
	case notNumber == nil: // another way of writing an address, for some resolvers
		return fmt.Errorf("%.80q is neither a name nor an address", host)
	case slices.Contains(metadataNames, host):
		return fmt.Errorf("%s is a metadata service", host)
	}
	return nil
}

// checkAddr refuses addresses by which one reaches something else than meant.
func checkAddr(addr netip.Addr) error {
	plain := addr.Unmap()
	switch {
	case addr.Zone() != "" || plain.IsLinkLocalUnicast():
		return fmt.Errorf("%v is a link-local address, where metadata services are", addr)
	case slices.Contains(metadataAddrs, plain):
		return fmt.Errorf("%v is a metadata service", addr)
	case plain.IsUnspecified() || plain.IsMulticast():
		return fmt.Errorf("%v is not the address of a host", addr)
	}
	return nil
}

// inTailnet reports whether a host is one of the tailnet or of this machine,
// as far as its name tells. The address is looked at when it is dialled.
func inTailnet(host string) bool {
	if addr, err := netip.ParseAddr(host); err == nil {
		return tailnetAddr(addr)
	}
	return !strings.Contains(host, ".") || strings.HasSuffix(host, ".ts.net")
}

func tailnetAddr(addr netip.Addr) bool {
	addr = addr.Unmap()
	return addr.IsLoopback() || slices.ContainsFunc(tailnetRanges, func(p netip.Prefix) bool { return p.Contains(addr) })
}

// dialTime bounds the way to a server, within the command's own limit.
const dialTime = 10 * time.Second

// transport is how a server is reached. Each address is checked when it is
// dialled, so that a name cannot lead to where an address may not.
func transport(base string) *http.Transport {
	insecure := strings.HasPrefix(base, "http://")
	dialer := &net.Dialer{
		Timeout: dialTime,
		ControlContext: func(_ context.Context, _, address string, _ syscall.RawConn) error {
			to, err := netip.ParseAddrPort(address)
			if err != nil {
				return fmt.Errorf("dial %q: %w", address, err)
			}
			if err := checkAddr(to.Addr()); err != nil {
				return err
			}
			if insecure && !tailnetAddr(to.Addr()) {
				return fmt.Errorf("%v is outside the tailnet, and http:// is for hosts of the tailnet only", to.Addr())
			}
			return nil
		},
	}
	return &http.Transport{
		Proxy:                  http.ProxyFromEnvironment, // for http:// the dialler lets it be in the tailnet or on this machine only
		DialContext:            dialer.DialContext,
		TLSClientConfig:        &tls.Config{MinVersion: tls.VersionTLS12},
		TLSHandshakeTimeout:    dialTime,
		MaxResponseHeaderBytes: 64 << 10,
		ForceAttemptHTTP2:      true,
	}
}
