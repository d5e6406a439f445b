// Package config defines the configuration of a relay (the ConfigMap of its group) and its
// reported status (in its state Secret). It implements law 3 for input: Parse returns only valid
// values. An invalid service is refused by name, and the other services stay.
//
// The keys egress-services and hep-pings have the format that Tailscale's proxy image reads.
// relay.json is specific to Tailplane and contains what that format cannot express.
package config

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/util/validation"
)

// Keys of the ConfigMap and of the state Secret.
const (
	EgressKey = "egress-services" // also the key of the applied status in the state Secret
	PingsKey  = "hep-pings"
	RelayKey  = "relay.json"
)

// The range of ports that a relay listens on inside the cluster.
const (
	MinMatchPort = 10000
	MaxMatchPort = 10999
)

// MaxExposed is the maximum number of exposed services in a configuration.
const MaxExposed = 100

// Limits of a configuration. The first two are part of the contract of a group.
const (
	maxServices = 1000
	maxPorts    = MaxMatchPort - MinMatchPort + 1
	maxTargets  = 256
	maxBytes    = 1 << 20 // maximum size of a ConfigMap
	maxPings    = 10_000
)

// A Protocol is the transport protocol of a mapping.
type Protocol string

// The protocols. Upper and lower case are accepted; lower case is written.
const (
	TCP Protocol = "tcp"
	UDP Protocol = "udp"
)

// UnmarshalText implements [encoding.TextUnmarshaler].
func (p *Protocol) UnmarshalText(b []byte) error {
	switch low := Protocol(strings.ToLower(string(b))); low {
	case TCP, UDP:
		*p = low
		return nil
	}
	return fmt.Errorf("the protocol %.20q is neither TCP nor UDP", b)
}

// A Port maps a port of the relay to a port of the target.
type Port struct {
	Protocol Protocol `json:"protocol"`
	Match    uint16   `json:"matchPort"`
	Target   uint16   `json:"targetPort"`
}

// A Target selects nodes or services of the tailnet. Exactly one field must be set.
type Target struct {
	IP   string   `json:"ip,omitempty"`
	FQDN string   `json:"fqdn,omitempty"`
	Tags []string `json:"tags,omitempty"` // selects every node that has all of these tags
}

// An EgressService is one value of egress-services.
type EgressService struct {
	HealthCheckEndpoint string `json:"healthCheckEndpoint,omitempty"`
	TailnetTarget       Target `json:"tailnetTarget"`
	Ports               []Port `json:"ports"`
}

// A RelayFile is the content of relay.json.
type RelayFile struct {
	Tailnet      Tailnet                   `json:"tailnet,omitzero"`
	Targets      map[string][]Target       `json:"targets,omitempty"` // by service; replaces its tailnetTarget
	Ingress      map[string]IngressService `json:"ingress,omitempty"`
	Limits       Limits                    `json:"limits,omitzero"`
	DrainTimeout string                    `json:"drainTimeout,omitempty"` // such as "1m"; "0s" does not wait for open connections
}

// A Tailnet is the identity of the relay as a tailnet node.
type Tailnet struct {
	ControlURL     string   `json:"controlURL,omitempty"`     // empty means Tailscale's control server
	HostnamePrefix string   `json:"hostnamePrefix,omitempty"` // the hostname is this prefix, "-" and the ordinal
	Tags           []string `json:"tags,omitempty"`
}

// Limits are the maximum numbers of concurrent connections and flows. 0 means the default.
type Limits struct {
	Connections int `json:"connections,omitempty"` // default 10,000
	Flows       int `json:"flows,omitempty"`       // UDP flows; default 4,096
}

// An IngressService is one value of "ingress": a Service that the relay exposes to the tailnet.
type IngressService struct {
	VIP           string        `json:"vip,omitempty"` // svc:name; empty means the relay's own node
	Ports         []IngressPort `json:"ports"`
	ProxyProtocol bool          `json:"proxyProtocol,omitempty"` // send a PROXY header of version 2 to the backend
	Ready         bool          `json:"ready"`                   // the backend has an endpoint
	Domain        string        `json:"domain,omitempty"`        // if TLS is terminated: the name of the certificate and of its Secret
	Issue         bool          `json:"issue,omitempty"`         // issue a certificate if the Secret has none
}

// Terminates reports whether relays terminate TLS on at least one port.
func (f IngressService) Terminates() bool {
	return slices.ContainsFunc(f.Ports, func(p IngressPort) bool { return p.Terminate })
}

// An IngressPort maps a port of the tailnet to a backend in the cluster.
type IngressPort struct {
	Protocol  Protocol `json:"protocol"`
	Port      uint16   `json:"port"`
	Backend   string   `json:"backend"`             // host:port
	Terminate bool     `json:"terminate,omitempty"` // the relay terminates TLS
	H2        bool     `json:"h2,omitempty"`        // with Terminate: the backend speaks HTTP/2
}

// A Config is a parsed configuration. It must not be modified.
type Config struct {
	Services     []Service        // sorted by name
	Exposed      []ExposedService // sorted by name
	Pings        int              // number of pings to each health endpoint during a drain
	DrainTimeout time.Duration
	Limits       Limits // without zeros
	Tailnet      Tailnet
	// Refused maps each invalid service to the reason. The other services are valid.
	Refused map[string]string
}

// A Service is a tailnet service that the relay provides to the cluster.
type Service struct {
	Name    string   // such as "shop.billing"
	Health  *url.URL // health endpoint; nil if there is none
	Targets []Target // at least one
	Ports   []Port
}

// ExposedService is a cluster backend that the relay provides to the tailnet.
type ExposedService struct {
	Name string
	IngressService
}

// Default values and limits.
const (
	DefaultDrain       = time.Minute
	DefaultConnections = 10_000
	DefaultFlows       = 4096
	maxDrain           = 10 * time.Minute
	maxConnections     = 1_000_000
)

// Parse parses the data of a ConfigMap. After an error the caller must keep its previous
// configuration. Empty data is a valid configuration without services.
func Parse(data map[string]string) (Config, error) {
	c := Config{DrainTimeout: DefaultDrain, Refused: map[string]string{}}
	size := 0
	for _, v := range data {
		size += len(v)
	}
	if size > maxBytes {
		return c, fmt.Errorf("the configuration has %d bytes; the limit is %d", size, maxBytes)
	}
	// Unknown fields are ignored: a newer operator may add fields before all relays of a group are updated.
	var egress map[string]EgressService
	if text, ok := data[EgressKey]; ok {
		if err := json.Unmarshal([]byte(text), &egress); err != nil {
			return c, fmt.Errorf("%s: %w", EgressKey, err)
		}
	}
	var file RelayFile
	if text, ok := data[RelayKey]; ok {
		if err := json.Unmarshal([]byte(text), &file); err != nil {
			return c, fmt.Errorf("%s: %w", RelayKey, err)
		}
	}
	if err := c.parseSettings(file, data[PingsKey]); err != nil {
		return c, err
	}
	if len(egress) > maxServices || len(file.Ingress) > MaxExposed {
		return c, fmt.Errorf(
			"%d services and %d exposed services; the limits are %d and %d",
			len(egress),
			len(file.Ingress),
			maxServices,
			MaxExposed,
		)
	}
	taken := map[Port]string{} // keys have no Target
	for _, name := range slices.Sorted(maps.Keys(egress)) {
		s, err := parseService(name, egress[name], file.Targets[name], taken)
		if err != nil {
			c.Refused[name] = err.Error()
			continue
		}
		c.Services = append(c.Services, s)
	}
	ports := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(file.Ingress)) {
		if err := validateExposed(name, file.Ingress[name], ports); err != nil {
			c.Refused[name] = err.Error()
			continue
		}
		c.Exposed = append(c.Exposed, ExposedService{name, file.Ingress[name]})
	}
	return c, nil
}

// parseSettings parses the settings that do not belong to one service.
func (c *Config) parseSettings(f RelayFile, pings string) error {
	if pings = strings.TrimSpace(pings); pings != "" {
		n, err := strconv.Atoi(pings)
		if err != nil || n < 0 || n > maxPings {
			return fmt.Errorf("%s: %.20q is not a number from 0 to %d", PingsKey, pings, maxPings)
		}
		c.Pings = n
	}
	if f.DrainTimeout != "" {
		d, err := time.ParseDuration(f.DrainTimeout)
		if err != nil || d < 0 || d > maxDrain {
			return fmt.Errorf("%s: drainTimeout %.20q is not a duration from 0s to %v", RelayKey, f.DrainTimeout, maxDrain)
		}
		c.DrainTimeout = d
	}
	c.Limits, c.Tailnet = f.Limits, f.Tailnet
	for _, l := range []*int{&c.Limits.Connections, &c.Limits.Flows} {
		if *l < 0 || *l > maxConnections {
			return fmt.Errorf("%s: the limit %d is not from 1 to %d", RelayKey, *l, maxConnections)
		}
	}
	c.Limits.Connections = cmp.Or(c.Limits.Connections, DefaultConnections)
	c.Limits.Flows = cmp.Or(c.Limits.Flows, DefaultFlows)
	return nil
}

func parseService(name string, e EgressService, several []Target, taken map[Port]string) (Service, error) {
	s := Service{Name: name, Targets: several, Ports: e.Ports}
	if err := validateName(name); err != nil {
		return s, err
	}
	if len(s.Targets) == 0 {
		s.Targets = []Target{e.TailnetTarget}
	}
	if len(s.Targets) > maxTargets {
		return s, fmt.Errorf("%d targets; the limit is %d", len(s.Targets), maxTargets)
	}
	s.Targets = slices.Clone(s.Targets)
	for i := range s.Targets {
		if err := s.Targets[i].validate(); err != nil {
			return s, err
		}
	}
	if e.HealthCheckEndpoint != "" {
		u, err := url.Parse(e.HealthCheckEndpoint)
		if err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil || u.Fragment != "" {
			return s, errors.New("its healthCheckEndpoint is not an http URL") // value not shown: it may contain a password
		}
		s.Health = u
	}
	if len(e.Ports) == 0 || len(e.Ports) > maxPorts {
		return s, fmt.Errorf("it maps %d ports; it must map 1 to %d", len(e.Ports), maxPorts)
	}
	own := map[Port]bool{}
	for _, p := range e.Ports {
		at := Port{Protocol: p.Protocol, Match: p.Match}
		switch other, is := taken[at]; {
		case p.Protocol == "":
			return s, fmt.Errorf("port %d has no protocol", p.Match)
		case p.Match < MinMatchPort || p.Match > MaxMatchPort:
			return s, fmt.Errorf("port %d is not from %d to %d", p.Match, MinMatchPort, MaxMatchPort)
		case p.Target == 0:
			return s, fmt.Errorf("port %d has the target port 0", p.Match)
		case is || own[at]:
			return s, fmt.Errorf("%s port %d belongs to %s", p.Protocol, p.Match, cmp.Or(other, name))
		}
		own[at] = true
	}
	for at := range own { // after all checks: a refused service must not occupy ports
		taken[at] = name
	}
	return s, nil
}

// validateName accepts only names that can be part of a path (/readyz/<service>) and of a log line.
func validateName(name string) error {
	if name == "" || len(name) > 253 || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_' && r != ':'
	}) || strings.Trim(name, ".") == "" {
		return errors.New("its name has characters other than lower-case letters, digits, dashes and dots")
	}
	return nil
}

// validate validates the target and rewrites it to its canonical spelling.
func (t *Target) validate() error {
	n := 0
	for _, is := range []bool{t.IP != "", t.FQDN != "", len(t.Tags) > 0} {
		if is {
			n++
		}
	}
	if n != 1 {
		return errors.New("a target must have exactly one of ip, fqdn and tags")
	}
	if t.IP != "" {
		a, err := netip.ParseAddr(t.IP)
		if err != nil || a.Zone() != "" {
			return fmt.Errorf("the target %.60q is not an address", t.IP)
		}
		if !Allowed(a) {
			return fmt.Errorf("the target %s is not the address of a tailnet node or service", a)
		}
		t.IP = a.String()
	}
	if t.FQDN != "" {
		name := strings.ToLower(strings.TrimSuffix(t.FQDN, "."))
		if err := validateHost(name); err != nil {
			return err
		}
		t.FQDN = name
	}
	for _, tag := range t.Tags {
		if len(tag) > 67 || !strings.HasPrefix(tag, "tag:") || !isLabel(strings.ToLower(tag[len("tag:"):])) {
			return fmt.Errorf("%.70q is not a tag", tag)
		}
	}
	return nil
}

// validateHost requires a DNS name with at least two labels that cannot be parsed as an address.
func validateHost(name string) error {
	labels := strings.Split(name, ".")
	if len(name) > 253 || len(labels) < 2 || slices.ContainsFunc(labels, func(l string) bool { return !isLabel(l) }) {
		return fmt.Errorf("the target %.60q is not a fully qualified name", name)
	}
	if last := labels[len(labels)-1]; last[0] >= '0' && last[0] <= '9' { // some resolvers parse names such as 0x7f.1 and 127.1 as addresses
		return fmt.Errorf("the target %.60q is a number, not a name", name)
	}
	return nil
}

func isLabel(l string) bool { return len(validation.IsDNS1123Label(l)) == 0 }

func validateExposed(name string, e IngressService, taken map[string]string) error {
	if err := validateName(name); err != nil {
		return err
	}
	if e.VIP != "" {
		label, ok := strings.CutPrefix(e.VIP, "svc:")
		if !ok || !isLabel(label) {
			return fmt.Errorf("%.70q is not the name of a service such as svc:web", e.VIP)
		}
	}
	if e.Terminates() {
		if err := validateHost(e.Domain); err != nil {
			return fmt.Errorf("TLS is terminated here, but its domain is not valid: %w", err)
		}
	}
	if len(e.Ports) == 0 || len(e.Ports) > 32 {
		return fmt.Errorf("it maps %d ports; it must map 1 to 32", len(e.Ports))
	}
	for _, p := range e.Ports {
		key := fmt.Sprintf("%s/%s/%d", e.VIP, p.Protocol, p.Port)
		host, port, ok := splitPort(p.Backend)
		switch {
		case p.Protocol == "" || p.Port == 0:
			return errors.New("a port needs a protocol and a number")
		case p.Protocol == UDP && e.VIP != "":
			return errors.New("a service of the tailnet supports only TCP; UDP works on the relay's own node")
		case p.Protocol == UDP && p.Terminate:
			return errors.New("TLS can be terminated only for TCP")
		case p.Protocol == UDP && e.ProxyProtocol:
			return errors.New("UDP does not support the PROXY header")
		case !ok || port == 0 || host == "":
			return fmt.Errorf("the backend %.60q is not host:port", p.Backend)
		case taken[key] != "":
			return fmt.Errorf("%s port %d belongs to %s", p.Protocol, p.Port, taken[key])
		}
	}
	for _, p := range e.Ports {
		taken[fmt.Sprintf("%s/%s/%d", e.VIP, p.Protocol, p.Port)] = name
	}
	return nil
}

func splitPort(s string) (host string, port uint16, ok bool) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a.Addr().String(), a.Port(), true
	}
	host, p, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(p, 10, 16)
	return host, uint16(n), ok && err == nil && validateHost(strings.ToLower(strings.TrimSuffix(host, "."))) == nil
}

// A Status is the configuration that a relay has applied, as stored in its state Secret.
type Status struct {
	PodIPv4  string                   `json:"podIPv4"`
	PodIPv6  string                   `json:"podIPv6,omitempty"`
	Services map[string]ServiceStatus `json:"services"`
	// Exposed are the services that the tailnet reaches through this relay.
	Exposed map[string]ExposedStatus `json:"exposed,omitempty"`
	// Refused maps each service that is invalid or not bound to the reason.
	Refused map[string]string `json:"refused,omitempty"`
}

// A ServiceStatus is what is bound for a service.
type ServiceStatus struct {
	Ports   []Port       `json:"ports"`
	IPs     []netip.Addr `json:"tailnetTargetIPs"`
	Target  Target       `json:"tailnetTarget"` // the first of Targets
	Targets []Target     `json:"targets,omitempty"`
}

// ExposedStatus is what is bound for an exposed service.
type ExposedStatus struct {
	VIP   string        `json:"vip,omitempty"`
	Ports []IngressPort `json:"ports"`
	// Uncertified is the reason why TLS is refused although it should be terminated. Empty means
	// that a certificate exists.
	Uncertified string `json:"uncertified,omitempty"`
}

// JSON returns the canonical encoding: equal statuses have equal bytes.
func (s Status) JSON() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("relay status: " + err.Error()) // a Status holds only strings, numbers and addresses
	}
	return b
}

// Equal reports whether two statuses are equal.
func (s Status) Equal(o Status) bool { return bytes.Equal(s.JSON(), o.JSON()) }
