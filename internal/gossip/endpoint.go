package gossip

import (
	"fmt"
	"net/netip"
	"net/url"
	"regexp"
	"slices"
	"strconv"
	"strings"
)

// AllowedEndpoints lists private addresses and names that records may announce nevertheless: networks, names, and suffixes such as "*.corp.example".
type AllowedEndpoints struct {
	Nets  []netip.Prefix
	Names []string
}

// ParseAllowedEndpoints reads gossip.allowEndpoints.
func ParseAllowedEndpoints(entries []string) (AllowedEndpoints, error) {
	var a AllowedEndpoints
	for _, e := range entries {
		if p, err := netip.ParsePrefix(e); err == nil {
			a.Nets = append(a.Nets, p.Masked())
			continue
		}
		if addr, err := netip.ParseAddr(e); err == nil && addr.Zone() == "" {
			a.Nets = append(a.Nets, netip.PrefixFrom(addr, addr.BitLen()))
			continue
		}
		name := strings.ToLower(e)
		if !isDNSName(strings.TrimPrefix(name, "*.")) {
			return a, fmt.Errorf("allowEndpoints: %q is not a network, a name or a suffix such as \"*.corp.example\"", e)
		}
		a.Names = append(a.Names, name)
	}
	return a, nil
}

func (a AllowedEndpoints) allowsAddr(ip netip.Addr) bool {
	return slices.ContainsFunc(a.Nets, func(p netip.Prefix) bool { return p.Contains(ip) })
}

func (a AllowedEndpoints) allowsName(host string) bool {
	return slices.ContainsFunc(a.Names, func(name string) bool {
		suffix, ok := strings.CutPrefix(name, "*")
		return ok && strings.HasSuffix(host, suffix) || name == host
	})
}

var (
	cgnatNet     = netip.MustParsePrefix("100.64.0.0/10") // used by the tailnet
	nat64Net     = netip.MustParsePrefix("64:ff9b::/96")
	reservedNets = []netip.Prefix{
		cgnatNet,
		netip.MustParsePrefix("0.0.0.0/8"), netip.MustParsePrefix("192.0.0.0/24"), netip.MustParsePrefix("198.18.0.0/15"), netip.MustParsePrefix("240.0.0.0/4"),
		netip.MustParsePrefix("64:ff9b:1::/48"), netip.MustParsePrefix("2002::/16"), netip.MustParsePrefix("fec0::/10"),
		// Forms of IPv4 addresses that no public host has: compatible, translated, Teredo.
		netip.MustParsePrefix("::/96"), netip.MustParsePrefix("::ffff:0:0:0/96"), netip.MustParsePrefix("2001::/32"),
		netip.MustParsePrefix("168.63.129.16/32"), // internal services of a cloud provider
	}
)

// isPrivateAddr reports whether ip is in a private or special network. A client that followed it would connect to its own network or to another
// tailnet node.
func isPrivateAddr(ip netip.Addr) bool {
	ip = ip.Unmap()
	if ip.Is6() {
		b := ip.As16()
		isatap := b[8]&^2 == 0 && [3]byte(b[9:]) == [3]byte{0, 0x5e, 0xfe}
		if (nat64Net.Contains(ip) || isatap) && isPrivateAddr(netip.AddrFrom4([4]byte(b[12:]))) {
			return true
		}
	}
	reserved := slices.ContainsFunc(reservedNets, func(p netip.Prefix) bool { return p.Contains(ip) })
	return reserved || !ip.IsGlobalUnicast() || ip.IsPrivate()
}

// IsPrivateEndpoint reports whether other servers accept this API endpoint only if their allowEndpoints lists it.
func IsPrivateEndpoint(endpoint string) bool {
	host, _, err := splitEndpointURL(endpoint, "https")
	if err != nil {
		return true
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		return isPrivateAddr(ip)
	}
	return checkEndpointName(host, Peer{}) != nil
}

// Check returns an error if node p may not announce the addresses in f (GO-07), apart from its proxy. It does not resolve names, because their addresses may change a moment
// later.
func (a AllowedEndpoints) Check(f Facts, p Peer) error {
	if f.Host != p.Name {
		return fmt.Errorf("host %s is not the name of the node", f.Host)
	}
	for _, ip := range f.IPs {
		if !slices.Contains(p.Addrs, ip) {
			return fmt.Errorf("address %s is not an address of the node", ip)
		}
	}
	host, _, err := splitEndpointURL(f.URL, "https", "http")
	if err != nil {
		return fmt.Errorf("url: %w", err)
	}
	if ip, err := netip.ParseAddr(host); host != p.Name && (err != nil || !slices.Contains(p.Addrs, ip)) {
		return fmt.Errorf("url: the host %s is not the node", host)
	}
	host, port, err := splitEndpointURL(f.APIEndpoint, "https")
	if err != nil {
		return fmt.Errorf("apiEndpoint: %w", err)
	}
	if port != f.APIPort {
		return fmt.Errorf("apiEndpoint: the port is not %d", f.APIPort)
	}
	if ip, err := netip.ParseAddr(host); err == nil {
		if !slices.Contains(p.Addrs, ip) && isPrivateAddr(ip) && !a.allowsAddr(ip.Unmap()) {
			return privateError(fmt.Sprintf("apiEndpoint: %s is a private address, and allowEndpoints does not list it", ip))
		}
		return nil
	}
	if host != p.Name && !a.allowsName(host) {
		return checkEndpointName(host, p)
	}
	return nil
}

func checkEndpointName(host string, p Peer) error {
	_, tailnet, _ := strings.Cut(p.Name, ".")
	last := host[strings.LastIndexByte(host, '.')+1:]
	_, number := strconv.ParseUint(last, 0, 64) // resolvers read 127.1 and 0x7f.1 as addresses
	switch {
	case !strings.Contains(host, "."), last == "localhost", last == "local", last == "internal":
		return privateError(fmt.Sprintf("apiEndpoint: %s is a private name, and allowEndpoints does not list it", host))
	case number == nil:
		return fmt.Errorf("apiEndpoint: %s is neither a name nor an address", host)
	case tailnet != "" && (host == tailnet || strings.HasSuffix(host, "."+tailnet)):
		return fmt.Errorf("apiEndpoint: %s is another node of the tailnet", host)
	}
	return nil
}

// splitEndpointURL returns the host in lower case and the port of a URL. The URL must consist of scheme, host and port only.
func splitEndpointURL(text string, schemes ...string) (host string, port uint16, err error) {
	u, err := url.Parse(text)
	if err != nil || len(text) > 512 {
		return "", 0, fmt.Errorf("it is not a URL")
	}
	ports := map[string]uint16{"https": 443, "http": 80}
	if !slices.Contains(schemes, u.Scheme) || u.User != nil || u.RawQuery != "" || u.ForceQuery || u.Fragment != "" || u.Opaque != "" || u.Path != "" && u.Path != "/" || strings.HasSuffix(text, "#") {
		return "", 0, fmt.Errorf("it must have a scheme, a host and a port only")
	}
	host = strings.ToLower(u.Hostname())
	if _, err := netip.ParseAddr(host); err != nil && !isDNSName(host) || strings.Contains(host, "%") {
		return "", 0, fmt.Errorf("its host is neither a name nor an address")
	}
	port = ports[u.Scheme]
	if p := u.Port(); p != "" || strings.HasSuffix(u.Host, ":") {
		n, err := strconv.ParseUint(p, 10, 16)
		if err != nil || n == 0 {
			return "", 0, fmt.Errorf("its port is malformed")
		}
		port = uint16(n)
	}
	return host, port, nil
}

var dnsLabel = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)

// isDNSLabel reports whether s is a DNS-1123 label.
func isDNSLabel(s string) bool { return dnsLabel.MatchString(s) }

// isDNSName reports whether s is a DNS-1123 subdomain.
func isDNSName(s string) bool {
	return len(s) <= 253 && !slices.ContainsFunc(strings.Split(s, "."), func(part string) bool { return !isDNSLabel(part) })
}
