package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"strconv"
	"strings"
)

func itoa(i int) string { return strconv.Itoa(i) }

// Shorten returns name if it has at most limit characters, else its first 40,
// "-" and 8 hexadecimal digits of its hash; limit is at least 49.
func Shorten(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	return name[:40] + "-" + hash8(name)
}

// hash8 is 8 hexadecimal digits of the hash of words. No word has a zero byte, so
// that different words cannot run together to equal text.
func hash8(words ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:4])
}

// IsLabel says whether s is a DNS label in lower case. Names from a tailnet are
// somebody else's text: only what passes here becomes part of a name of ours.
func IsLabel(s string) bool {
	if len(s) == 0 || len(s) > 63 || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		if c := s[i]; c != '-' && (c < 'a' || c > 'z') && (c < '0' || c > '9') {
			return false
		}
	}
	return true
}

// ServiceLabel is the name of a service without its "svc:", and false if it is
// not a name of a service.
func ServiceLabel(name string) (string, bool) {
	label := strings.TrimPrefix(name, "svc:")
	return label, IsLabel(label)
}

// Names of what is rendered for a service, of which service is the label, with
// "." and its tailnet if an earlier tailnet has a service of the same name.
func routeName(service string) string   { return "tailscale-svc-" + service }
func clusterName(service string) string { return "tailscale-cluster-" + service }

// portClusterName is for a port of the service that is not its route's.
func portClusterName(service string, port uint16) string {
	return clusterName(service) + "_" + itoa(int(port))
}

// backendClusterName is for a TailscaleService that a route names. Names of
// Kubernetes have no "_", so that it is nobody else's.
func backendClusterName(service Name, port uint16) string {
	return "tailscale-cluster-" + service.Namespace + "_" + service.Name + "_" + itoa(int(port))
}

// demandClusterName is for a port that only a policy names, by its number in the
// tailnet.
func demandClusterName(service Name, port uint16) string {
	return "tailscale-cluster-" + service.Namespace + "_" + service.Name + "_t" + itoa(int(port))
}

func ruleRouteName(policy Name, index int) string {
	return "tailscale-rule-" + policy.Namespace + "_" + policy.Name + "_" + itoa(index)
}

// ServiceKey is the name by which the relays of a group know a TailscaleService:
// in their configuration, in the table of ports and in /readyz/<key>.
func ServiceKey(service Name) string { return service.Namespace + "." + service.Name }

// DiscoveredName is the name of the TailscaleService that discovery makes for a
// service of a tailnet, in the namespace of the TailscaleGateway. Where an earlier
// tailnet has a service of the same name, it carries a hash instead.
func DiscoveredName(gateway, service, tailnet string, earlier bool) string {
	name := gateway + "-" + service
	if earlier {
		return cut(name) + "-" + hash8(gateway, service, tailnet)
	}
	return Shorten(name, 63)
}

// GroupServiceName is the name of the Service in front of the relays, in the
// namespace of the group, for a TailscaleService.
func GroupServiceName(service Name) string {
	return Shorten("ts-"+cut(service.Name)+"-"+hash8(service.Namespace, service.Name), 63)
}

// groupName is the name of the group that is made for one service; with a hash if
// the plain name is somebody else's.
func groupName(label string, service Name, taken bool) string {
	if taken {
		return cut(label) + "-" + hash8(service.Namespace, service.Name)
	}
	return Shorten(label+"-proxy-group", maxGroupName)
}

// sharedGroupName is the group of all services of one tailnet of a TailscaleGateway.
func sharedGroupName(gateway, tailnet string) string {
	return Shorten(gateway+"-"+tailnet+"-egress", maxGroupName)
}

// ingressGroupName is the group of all ingress services of a tailnet that name none.
func ingressGroupName(tailnet string) string { return Shorten(tailnet+"-ingress", maxGroupName) }

// maxGroupName leaves room in a label for the hash that a StatefulSet's controller adds.
const maxGroupName = 52

// cut leaves room for a hash.
func cut(s string) string {
	if len(s) > 40 {
		return s[:40]
	}
	return s
}

// Match says whether name matches a pattern, in which * stands for any
// characters, none included, and everything else for itself.
func Match(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	rest, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] { // the first place is as good as any
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[last])
}

// MatchAny says whether name matches one of the patterns.
func MatchAny(patterns []string, name string) bool {
	for _, p := range patterns {
		if Match(p, name) {
			return true
		}
	}
	return false
}

// ParsePort reads a decimal port above 0, as Kubernetes writes it.
func ParsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && itoa(int(n)) == s
}

// Printable is somebody else's text for a sentence of ours: bounded, and quoted
// where it holds what a terminal would act upon.
func Printable(s string) string {
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return strings.Trim(strconv.QuoteToASCII(s), `"`)
}
