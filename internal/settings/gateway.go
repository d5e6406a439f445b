package settings

import (
	"errors"
	"fmt"
	"math"
	"net/netip"
	"net/url"
	"regexp"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
)

// Gateway is the content of the settings file of the gateway role.
type Gateway struct {
	// OperatorID identifies this operator among the operators that share services of a
	// tailnet. Empty: derived from the cluster and the installation.
	OperatorID string `yaml:"operatorID,omitempty"`

	// ClusterDomain is the DNS suffix of Services. Empty: the one in resolv.conf, otherwise
	// cluster.local.
	ClusterDomain string `yaml:"clusterDomain,omitempty"`

	// CredentialNamespaces are the namespaces whose Secrets the operator may read for the
	// credentials of tailnets, in addition to its own namespace. In ProxyNamespaces it may run
	// relays. In ConsumerNamespaces it may write Services that lead to relays.
	CredentialNamespaces []string `yaml:"credentialNamespaces,omitempty"`
	ProxyNamespaces      []string `yaml:"proxyNamespaces,omitempty"`
	ConsumerNamespaces   []string `yaml:"consumerNamespaces,omitempty"`

	Tailnet   GatewayTailnet   `yaml:"tailnet"`
	Proxy     GatewayProxy     `yaml:"proxy,omitempty"`
	Extension GatewayExtension `yaml:"extension"`
	Envoy     GatewayEnvoy     `yaml:"envoy"`
}

// GatewayTailnet configures the requests to the API of each tailnet.
type GatewayTailnet struct {
	APIBaseURLs       []string `yaml:"apiBaseURLs"` // the API servers that may receive a credential
	RequestsPerSecond float64  `yaml:"requestsPerSecond"`
	Burst             int      `yaml:"burst"`
}

// GatewayProxy configures the pods of relays.
type GatewayProxy struct {
	Image             string                       `yaml:"image,omitempty"` // empty: groups cannot be created
	AllowCustomImages bool                         `yaml:"allowCustomImages,omitempty"`
	PullPolicy        string                       `yaml:"pullPolicy,omitempty"`  // Always, IfNotPresent or Never
	PullSecrets       []string                     `yaml:"pullSecrets,omitempty"` // in each group's namespace
	Resources         map[string]map[string]string `yaml:"resources,omitempty"`   // requests and limits, as in a container

	// MonitoringNamespaces are the namespaces whose pods may read the relays' metrics.
	MonitoringNamespaces []string `yaml:"monitoringNamespaces,omitempty"`

	// AllowContainerboot and ContainerbootImage have no effect. Files of the previous release
	// may have them, and Warnings lists them. The next release refuses them.
	AllowContainerboot *bool   `yaml:"allowContainerboot,omitempty"`
	ContainerbootImage *string `yaml:"containerbootImage,omitempty"`
}

// Warnings lists the settings that are accepted but need the administrator's attention.
func (g Gateway) Warnings() (w []string) {
	const why = " has no effect, because the runtime Containerboot is no longer supported; remove it: the next release refuses it"
	if g.Proxy.AllowContainerboot != nil {
		w = append(w, "proxy.allowContainerboot"+why)
	}
	if g.Proxy.ContainerbootImage != nil {
		w = append(w, "proxy.containerbootImage"+why)
	}
	return w
}

// GatewayExtension configures the extension server for Envoy Gateway.
type GatewayExtension struct {
	MaxMessageSize Size     `yaml:"maxMessageSize"` // same as Envoy Gateway's limit
	Deadline       Duration `yaml:"deadline"`       // of one response
}

// GatewayEnvoy configures where Envoy runs and how it finds relays.
type GatewayEnvoy struct {
	Namespace  string `yaml:"namespace"`
	Controller string `yaml:"controller"` // controllerName of Envoy Gateway's classes
	Discovery  string `yaml:"discovery"`
}

// Values of GatewayEnvoy.Discovery.
const (
	DiscoveryDNS       = "DNS"
	DiscoveryEndpoints = "Endpoints"
)

// DefaultGateway returns the default settings.
func DefaultGateway() Gateway {
	return Gateway{
		Tailnet:   GatewayTailnet{APIBaseURLs: []string{"https://api.tailscale.com"}, RequestsPerSecond: 5, Burst: 10},
		Extension: GatewayExtension{MaxMessageSize: 64 << 20, Deadline: Duration(2 * time.Second)},
		Envoy:     GatewayEnvoy{Namespace: "envoy-gateway-system", Controller: "gateway.envoyproxy.io/gatewayclass-controller", Discovery: DiscoveryDNS},
	}
}

// SearchedDomain returns the cluster's domain from the search list in the text of a resolv.conf
// file. It returns cluster.local if the text has none.
func SearchedDomain(resolv string) string {
	for line := range strings.Lines(resolv) {
		words := strings.Fields(line)
		if len(words) == 0 || words[0] != "search" {
			continue
		}
		for _, w := range words[1:] {
			if domain, ok := strings.CutPrefix(strings.TrimSuffix(w, "."), "svc."); ok && domain != "" {
				return domain
			}
		}
	}
	return "cluster.local"
}

// LoadGateway reads and validates the file at path.
func LoadGateway(path string) (Gateway, error) { return load(path, ParseGateway) }

// A Size is an amount of bytes, written as 4194304 or 4Mi.
type Size int

// UnmarshalYAML implements [yaml.Unmarshaler].
func (s *Size) UnmarshalYAML(n *yaml.Node) error {
	text, shift := n.Value, 0
	for unit, by := range map[string]int{"Ki": 10, "Mi": 20, "Gi": 30} {
		if rest, ok := strings.CutSuffix(n.Value, unit); ok {
			text, shift = rest, by
		}
	}
	v, err := strconv.ParseUint(text, 10, 31)
	if err != nil || n.Kind != yaml.ScalarNode || v<<shift > math.MaxInt32 {
		return fmt.Errorf("line %d: %.40q is not a size such as 64Mi", n.Line, n.Value)
	}
	*s = Size(v << shift)
	return nil
}

var quantity = regexp.MustCompile(`^[0-9]+(\.[0-9]+)?(m|[kMGT]|[KMGT]i)?$`)

// ParseGateway decodes a file strictly, with the defaults for absent keys, and validates it.
func ParseGateway(b []byte) (Gateway, error) {
	g := DefaultGateway()
	if err := decode(b, &g); err != nil {
		return Gateway{}, err
	}
	return g, g.validate()
}

func (g Gateway) validate() error {
	var v validation
	for _, list := range []struct {
		name       string
		namespaces []string
	}{{"credentialNamespaces", g.CredentialNamespaces}, {"proxyNamespaces", g.ProxyNamespaces}, {"consumerNamespaces", g.ConsumerNamespaces}, {"envoy.namespace", []string{g.Envoy.Namespace}}, {"proxy.monitoringNamespaces", g.Proxy.MonitoringNamespaces}} {
		for _, ns := range list.namespaces {
			v.failIf(!label.MatchString(ns), "%s: %q is not the name of a namespace", list.name, ns)
		}
	}
	v.failIf(g.OperatorID != "" && (!label.MatchString(g.OperatorID) || len(g.OperatorID) < 4),
		"operatorID: %q is not 4 to 63 characters of a-z, 0-9 and -", g.OperatorID)
	if d := g.ClusterDomain; d != "" {
		for part := range strings.SplitSeq(d, ".") {
			if !label.MatchString(part) {
				v.fail("clusterDomain: %q is not a domain such as cluster.local", d)
				break
			}
		}
	}
	for kind, list := range g.Proxy.Resources {
		v.failIf(kind != "requests" && kind != "limits", "proxy.resources: %q is neither requests nor limits", kind)
		for name, amount := range list {
			v.failIf(!quantity.MatchString(amount), "proxy.resources.%s.%s: %q is not an amount such as 100m or 64Mi", kind, name, amount)
		}
	}
	p := g.Proxy.PullPolicy
	v.failIf(p != "" && p != "Always" && p != "IfNotPresent" && p != "Never",
		"proxy.pullPolicy: %q is not Always, IfNotPresent or Never", p)
	v.failIf(strings.ContainsAny(g.Proxy.Image, " \t\n"), "proxy.image: %q is not the name of an image", g.Proxy.Image)
	s := g.Extension.MaxMessageSize
	v.failIf(s < 4<<20 || s > 1<<30, "extension.maxMessageSize: %v is not between 4Mi and 1Gi", s)
	d := g.Extension.Deadline
	v.failIf(!d.isBetween(200*time.Millisecond, 30*time.Second), "extension.deadline: %v is not between 200ms and 30s", d)
	v.failIf(g.Envoy.Controller == "", "envoy.controller is empty: no Gateway would belong to Envoy Gateway")
	v.failIf(g.Envoy.Discovery != DiscoveryDNS && g.Envoy.Discovery != DiscoveryEndpoints,
		"envoy.discovery: %q is neither DNS nor Endpoints", g.Envoy.Discovery)
	t := g.Tailnet
	v.failIf(len(t.APIBaseURLs) == 0, "tailnet.apiBaseURLs is empty: the operator could not call the API of any tailnet")
	for _, text := range t.APIBaseURLs {
		u, err := url.Parse(text)
		if err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
			v.fail("tailnet.apiBaseURLs: %q is not a scheme and a host, such as https://api.tailscale.com", text)
			continue
		}
		ip, err := netip.ParseAddr(u.Hostname())
		loopback := u.Hostname() == "localhost" || err == nil && ip.IsLoopback()
		v.failIf(u.Scheme != "https" && (u.Scheme != "http" || !loopback),
			"tailnet.apiBaseURLs: %q would send credentials without TLS; use https, or http to a loopback address", text)
	}
	v.failIf(t.RequestsPerSecond <= 0 || t.RequestsPerSecond > 1000,
		"tailnet.requestsPerSecond: %v must be above 0 and at most 1000", t.RequestsPerSecond)
	v.failIf(t.Burst < 1 || t.Burst > 10000, "tailnet.burst: %d is not between 1 and 10000", t.Burst)
	return errors.Join(v...)
}
