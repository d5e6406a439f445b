package tailpolicy

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"tailscale.com/tailcfg"
)

// ports are the ports of some protocols. No protocols means TCP, UDP and ICMP.
type ports struct {
	protos []int
	ranges []tailcfg.PortRange
}

// defaultProtos are the default protocols: TCP, UDP, ICMP.
var defaultProtos = []int{1, 6, 17, 58}

func (p ports) has(protos []int, port uint16) bool {
	mine := p.protos
	if len(mine) == 0 {
		mine = defaultProtos
	}
	for _, r := range p.ranges {
		if !r.Contains(port) && r != tailcfg.PortRangeAny {
			continue
		}
		for _, a := range mine {
			if slices.Contains(protos, a) {
				return true
			}
		}
	}
	return false
}

// protocols are the protocol names that a policy can use. Other protocols must be numbers.
var protocols = map[string][]int{
	"icmp": {1, 58}, "igmp": {2}, "ipv4": {4}, "ip-in-ip": {4}, "tcp": {6}, "egp": {8}, "igp": {9},
	"udp": {17}, "gre": {47}, "esp": {50}, "ah": {51}, "ipv6-icmp": {58}, "sctp": {132},
}

// parseProto returns a protocol's numbers, or none for the default protocols.
func parseProto(s string) (nums []int, portless bool, err error) {
	if s == "" || s == "*" {
		return nil, false, nil
	}
	nums, ok := protocols[s]
	if !ok {
		n, err := strconv.ParseUint(s, 10, 8)
		if err != nil {
			return nil, false, fmt.Errorf("%q is not a protocol", s)
		}
		nums = []int{int(n)}
	}
	return nums, !slices.ContainsFunc(nums, func(n int) bool { return n == 6 || n == 17 || n == 132 }), nil
}

// parseIP parses an entry of a grant's ip: "*", "443", "8000-8999", "tcp:443", "icmp:*".
func parseIP(s string) (ports, error) {
	proto, port, ok := strings.Cut(s, ":")
	if !ok {
		proto, port = "", s
	}
	protos, portless, err := parseProto(proto)
	if err != nil {
		return ports{}, err
	}
	r, err := parseRange(port)
	if err != nil {
		return ports{}, fmt.Errorf("%q: %w", s, err)
	}
	if portless && r != tailcfg.PortRangeAny {
		return ports{}, fmt.Errorf("%q: protocol %s has no ports, write %s:*", s, proto, proto)
	}
	return ports{protos, []tailcfg.PortRange{r}}, nil
}

func parseRange(s string) (tailcfg.PortRange, error) {
	if s == "*" {
		return tailcfg.PortRangeAny, nil
	}
	lo, hi, ok := strings.Cut(s, "-")
	if !ok {
		hi = lo
	}
	a, errA := strconv.ParseUint(lo, 10, 16)
	b, errB := strconv.ParseUint(hi, 10, 16)
	if errA != nil || errB != nil || a > b {
		return tailcfg.PortRange{}, fmt.Errorf("%q is not a port or a range of ports", s)
	}
	return tailcfg.PortRange{First: uint16(a), Last: uint16(b)}, nil
}

// splitPorts parses a destination of acls and tests, such as "tag:web:80,443" or "[fd7a::1]:22".
func splitPorts(s string) (host string, ranges []tailcfg.PortRange, err error) {
	i := strings.LastIndexByte(s, ':')
	if i < 0 {
		return "", nil, fmt.Errorf("%q has no ports: write %s:443 or %s:*", s, s, s)
	}
	host = s[:i]
	if h, ok := strings.CutPrefix(host, "["); ok {
		if host, ok = strings.CutSuffix(h, "]"); !ok {
			return "", nil, fmt.Errorf("%q: the closing bracket is missing", s)
		}
	}
	for r := range strings.SplitSeq(s[i+1:], ",") {
		p, err := parseRange(r)
		if err != nil {
			return "", nil, fmt.Errorf("%q: %w", s, err)
		}
		ranges = append(ranges, p)
	}
	return host, ranges, nil
}
