package config

import (
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
)

// CheckServer parses the address of a Kubernetes API. It refuses an address that must not receive a
// credential (AD-08). Callers must also check each resolved address of a host name with [CheckAddress].
func CheckServer(server string, allowLoopback bool) (*url.URL, error) {
	u, err := url.Parse(server)
	if err != nil {
		return nil, errors.New("it is not a URL") // the parser's error could contain a password
	}
	switch {
	case u.Scheme != "https":
		return nil, fmt.Errorf("it begins with %.20q, want https://", u.Scheme)
	case u.User != nil:
		return nil, errors.New("it contains a user name or password")
	case u.Opaque != "" || u.Host == "" || u.Hostname() == "":
		return nil, errors.New("it has no host")
	case u.RawQuery != "" || u.ForceQuery || u.Fragment != "":
		return nil, errors.New("it has a query or a fragment")
	case u.RawPath != "" || strings.Contains(u.Path, "//") || strings.Contains(u.Path+"/", "/./") || strings.Contains(u.Path+"/", "/../"):
		return nil, errors.New("its path is not plain")
	}
	if port := u.Port(); port != "" || strings.HasSuffix(u.Host, ":") {
		if n, err := strconv.ParseUint(port, 10, 16); err != nil || n == 0 {
			return nil, fmt.Errorf("%.20q is not a port", port)
		}
	}
	host := strings.TrimSuffix(u.Hostname(), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		return u, CheckAddress(addr, allowLoopback)
	}
	return u, checkName(strings.ToLower(host), allowLoopback)
}

// checkName refuses host names of forbidden addresses, and names that some resolvers parse as an address.
func checkName(name string, allowLoopback bool) error {
	last := name[strings.LastIndexByte(name, '.')+1:]
	switch {
	case len(name) > 253 || !dnsName.MatchString(name):
		return errors.New("its host is neither a DNS name nor an IP address")
	case strings.Trim(last, "0123456789") == "" || strings.HasPrefix(last, "0x"):
		return errors.New("its host is an ambiguous form of an IP address")
	case name == "localhost" || last == "localhost" || strings.HasPrefix(name, "localhost."):
		if !allowLoopback {
			return errors.New("its host is this machine; to allow that, set allowLoopback: true")
		}
	case name == "metadata" || name == "instance-data" || strings.HasPrefix(name, "metadata.") || strings.HasPrefix(name, "instance-data."):
		return errors.New("its host is a cloud metadata service")
	}
	return nil
}

// metadataAddresses lists the addresses of cloud metadata services that are not link-local.
var metadataAddresses = []netip.Addr{
	netip.MustParseAddr("100.100.100.200"), netip.MustParseAddr("168.63.129.16"), netip.MustParseAddr("192.0.0.192"),
	netip.MustParseAddr("fd00:ec2::254"), netip.MustParseAddr("fd20:ce::254"),
}

var (
	localNAT64 = netip.MustParsePrefix("64:ff9b:1::/48")
	teredo     = netip.MustParsePrefix("2001::/32")
)

// CheckAddress refuses an address that no Kubernetes API has or that must not receive a credential. These are
// loopback addresses (unless allowed), link-local addresses (which include cloud metadata services),
// multicast addresses and unspecified ones. It also checks an IPv4 address embedded in an IPv6 address.
func CheckAddress(a netip.Addr, allowLoopback bool) error {
	if a.Zone() != "" {
		return errors.New("its host is an IP address with a zone")
	}
	if localNAT64.Contains(a) || teredo.Contains(a) {
		return fmt.Errorf("its host %v is an ambiguous form of an IPv4 address", a)
	}
	for _, a := range append(embeddedAddresses(a), a.Unmap()) {
		switch {
		case !a.IsValid() || a.IsUnspecified() || a.Is4() && a.As4()[0] == 0:
			return fmt.Errorf("its host %v is not a host address", a)
		case a.IsLoopback():
			if !allowLoopback {
				return fmt.Errorf("its host %v is this machine; to allow that, set allowLoopback: true", a)
			}
		case a.IsLinkLocalUnicast():
			return fmt.Errorf("its host %v is link-local, like cloud metadata services", a)
		case a.IsMulticast() || a.Is4() && a.As4()[0] >= 240:
			return fmt.Errorf("its host %v is not the address of a single machine", a)
		}
		if slices.Contains(metadataAddresses, a) {
			return fmt.Errorf("its host %v is a cloud metadata service", a)
		}
	}
	return nil
}

// embeddedAddresses returns the IPv4 addresses that are embedded in an IPv6 address.
func embeddedAddresses(a netip.Addr) (in []netip.Addr) {
	if !a.Is6() || a.IsLoopback() || a.IsUnspecified() {
		return nil
	}
	b := a.As16()
	at := func(i int) { in = append(in, netip.AddrFrom4([4]byte(b[i:i+4]))) }
	has := func(prefix string) bool { return netip.MustParsePrefix(prefix).Contains(a) }
	switch {
	case a.Is4In6(), has("::/96"), has("::ffff:0:0:0/96"), has("64:ff9b::/96"): // mapped, compatible, translated, NAT64
		at(12)
	case has("2002::/16"): // 6to4
		at(2)
	}
	if (b[8]&^2 == 0) && b[9] == 0 && b[10] == 0x5e && b[11] == 0xfe { // ISATAP
		at(12)
	}
	return in
}
