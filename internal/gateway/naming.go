package gateway

import (
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Shorten returns name if it has at most limit characters. Otherwise it returns the first 40
// characters, "-" and 8 hexadecimal digits of the hash of name. limit must be at least 49.
func Shorten(name string, limit int) string {
	if len(name) <= limit {
		return name
	}
	return name[:40] + "-" + hash8(name)
}

// hash8 returns 8 hexadecimal digits of the hash of words. It joins the words with a zero byte,
// which no word contains, so that different lists of words never hash the same text.
func hash8(words ...string) string {
	sum := sha256.Sum256([]byte(strings.Join(words, "\x00")))
	return hex.EncodeToString(sum[:4])
}

// IsLabel reports whether s is a lower-case DNS label. Names from a tailnet are untrusted text:
// only names that pass this check become part of generated names.
func IsLabel(s string) bool { return len(validation.IsDNS1123Label(s)) == 0 }

// ServiceLabel returns the name of a tailnet service without "svc:". ok is false if name is not a
// valid service name.
func ServiceLabel(name string) (string, bool) {
	label := strings.TrimPrefix(name, "svc:")
	return label, IsLabel(label)
}

// The functions below return the names of rendered objects. The argument is the service label,
// with "." and the tailnet appended if an earlier tailnet has a service with the same label.
func routeName(service string) string   { return "tailscale-svc-" + service }
func clusterName(service string) string { return "tailscale-cluster-" + service }

// portClusterName is the cluster name for a port of the service other than the port of its route.
func portClusterName(service string, port uint16) string {
	return clusterName(service) + "_" + strconv.Itoa(int(port))
}

// backendClusterName is the cluster name for a TailscaleService that a route names as backend.
// Kubernetes names contain no "_", so the name is unique.
func backendClusterName(service Name, port uint16) string {
	return "tailscale-cluster-" + service.Namespace + "_" + service.Name + "_" + strconv.Itoa(int(port))
}

// policyClusterName is the cluster name for a port that only a policy names. port is the number in
// the tailnet.
func policyClusterName(service Name, port uint16) string {
	return "tailscale-cluster-" + service.Namespace + "_" + service.Name + "_t" + strconv.Itoa(int(port))
}

func ruleRouteName(policy Name, index int) string {
	return "tailscale-rule-" + policy.Namespace + "_" + policy.Name + "_" + strconv.Itoa(index)
}

// ServiceKey is the name of a TailscaleService for the relays of its group. It appears in their
// configuration, in the port table and in /readyz/<key>.
func ServiceKey(service Name) string { return service.Namespace + "." + service.Name }

// DiscoveredName is the name of the TailscaleService that discovery creates for a tailnet service,
// in the namespace of the TailscaleGateway. If an earlier tailnet has a service with the same
// name, the name ends with a hash.
func DiscoveredName(gateway, service, tailnet string, earlier bool) string {
	name := gateway + "-" + service
	if earlier {
		return truncate(name) + "-" + hash8(gateway, service, tailnet)
	}
	return Shorten(name, 63)
}

// GroupServiceName is the name of the Kubernetes Service in front of the relays for a
// TailscaleService. The Service is in the namespace of the group.
func GroupServiceName(service Name) string {
	return Shorten("ts-"+truncate(service.Name)+"-"+hash8(service.Namespace, service.Name), 63)
}

// groupName is the name of the group that the operator creates for one service. If another group
// has the plain name (taken), the name ends with a hash.
func groupName(label string, service Name, taken bool) string {
	if taken {
		return truncate(label) + "-" + hash8(service.Namespace, service.Name)
	}
	return Shorten(label+"-proxy-group", maxGroupName)
}

// sharedGroupName is the name of the group for all services of one tailnet of a TailscaleGateway.
func sharedGroupName(gateway, tailnet string) string {
	return Shorten(gateway+"-"+tailnet+"-egress", maxGroupName)
}

// ingressGroupName is the name of the group for all ingress services of a tailnet without a
// proxyGroupRef.
func ingressGroupName(tailnet string) string { return Shorten(tailnet+"-ingress", maxGroupName) }

// maxGroupName is below 63 because the StatefulSet controller appends a hash to the name in a
// label.
const maxGroupName = 52

// truncate returns at most the first 40 characters of s, so that a hash can follow.
func truncate(s string) string { return s[:min(len(s), 40)] }

// matchPattern reports whether name matches pattern. A * matches any sequence of characters, also the
// empty one. All other characters match themselves.
func matchPattern(pattern, name string) bool {
	parts := strings.Split(pattern, "*")
	if len(parts) == 1 {
		return pattern == name
	}
	rest, ok := strings.CutPrefix(name, parts[0])
	if !ok {
		return false
	}
	last := len(parts) - 1
	for _, part := range parts[1:last] { // the leftmost match of each part is sufficient
		_, after, found := strings.Cut(rest, part)
		if !found {
			return false
		}
		rest = after
	}
	return strings.HasSuffix(rest, parts[last])
}

// MatchAny reports whether name matches one of the patterns.
func MatchAny(patterns []string, name string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matchPattern(p, name) })
}

// ParsePort parses a decimal port above 0 without leading zeros, as Kubernetes writes it.
func ParsePort(s string) (uint16, bool) {
	n, err := strconv.ParseUint(s, 10, 16)
	return uint16(n), err == nil && n > 0 && strconv.Itoa(int(n)) == s
}

// Printable makes untrusted text safe to include in a message. It limits the length and escapes
// characters that a terminal would interpret.
func Printable(s string) string {
	if len(s) > 80 {
		s = s[:80] + "..."
	}
	return strings.Trim(strconv.QuoteToASCII(s), `"`)
}
