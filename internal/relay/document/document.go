// Package document is what a relay is told and what it tells: the ConfigMap of
// its group and the applied status in its state Secret. It keeps law 3 of how we
// read: what comes out of Parse cannot be wrong, and one bad service is refused
// by name while the others stay.
//
// The keys egress-services and hep-pings have the shape that Tailscale's own
// proxy image reads; relay.json is ours and adds what it has no place for.
package document

import (
	"bytes"
	"cmp"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Keys of the ConfigMap, and of the state Secret.
const (
	EgressKey = "egress-services" // also where the applied status stands in the state Secret
	PingsKey  = "hep-pings"
	RelayKey  = "relay.json"
)

// The range of ports that a relay listens on in the cluster.
const (
	MinMatchPort = 10000
	MaxMatchPort = 10999
)

// Bounds of a document. The first two are the contract of a group.
const (
	maxServices = 1000
	maxPorts    = MaxMatchPort - MinMatchPort + 1
	maxTargets  = 256
	maxBytes    = 1 << 20 // what a ConfigMap can hold
	maxPings    = 10_000
	maxExposed  = 100
)

// A Protocol is how a mapping's bytes travel.
type Protocol string

// The protocols. Documents may spell them in either case, and are written in lower.
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

// A Port leads a port of the relay to one of the target.
type Port struct {
	Protocol Protocol `json:"protocol"`
	Match    uint16   `json:"matchPort"`
	Target   uint16   `json:"targetPort"`
}

// A Target names nodes or services of the tailnet in exactly one way.
type Target struct {
	IP   string   `json:"ip,omitempty"`
	FQDN string   `json:"fqdn,omitempty"`
	Tags []string `json:"tags,omitempty"` // every node that has all of them
}

// An EgressService is one value of egress-services.
type EgressService struct {
	HealthCheckEndpoint string `json:"healthCheckEndpoint,omitempty"`
	TailnetTarget       Target `json:"tailnetTarget"`
	Ports               []Port `json:"ports"`
}

// A File is relay.json as it stands.
type File struct {
	Tailnet      Tailnet                `json:"tailnet,omitzero"`
	Targets      map[string][]Target    `json:"targets,omitempty"` // by service: instead of its tailnetTarget
	Ingress      map[string]IngressFile `json:"ingress,omitempty"`
	Limits       Limits                 `json:"limits,omitzero"`
	DrainTimeout string                 `json:"drainTimeout,omitempty"` // such as "1m"; "0s": wait for nobody
}

// A Tailnet says which node the relay is to be.
type Tailnet struct {
	ControlURL     string   `json:"controlURL,omitempty"`     // Tailscale's own when empty
	HostnamePrefix string   `json:"hostnamePrefix,omitempty"` // "-" and the ordinal follow
	Tags           []string `json:"tags,omitempty"`
}

// Limits are what a relay holds at a time. 0 is the default of the field.
type Limits struct {
	Connections int `json:"connections,omitempty"` // 10,000
	Flows       int `json:"flows,omitempty"`       // of UDP: 4,096
}

// An IngressFile is one value of "ingress": what the tailnet sees of a Service.
type IngressFile struct {
	VIP           string        `json:"vip,omitempty"` // svc:name; empty: the relay's own node
	Ports         []IngressPort `json:"ports"`
	ProxyProtocol bool          `json:"proxyProtocol,omitempty"` // the backend gets a header of version 2
	Ready         bool          `json:"ready"`                   // the backend has an endpoint
	Domain        string        `json:"domain,omitempty"`        // the name of the certificate, where TLS is ended, and of its Secret
	Issue         bool          `json:"issue,omitempty"`         // have one issued, if the Secret has none
}

// Terminates says whether relays end TLS at a port of it.
func (f IngressFile) Terminates() bool {
	return slices.ContainsFunc(f.Ports, func(p IngressPort) bool { return p.Terminate })
}

// An IngressPort leads a port of the tailnet to one in the cluster.
type IngressPort struct {
	Protocol  Protocol `json:"protocol"`
	Port      uint16   `json:"port"`
	Backend   string   `json:"backend"`             // host:port
	Terminate bool     `json:"terminate,omitempty"` // the relay ends TLS
	H2        bool     `json:"h2,omitempty"`        // where it does: the backend speaks HTTP/2
}

// A Config is a document that was read. It is not to be changed.
type Config struct {
	Services     []Service // by name
	Exposed      []Exposed // by name
	Pings        int       // of each health endpoint when the relay drains
	DrainTimeout time.Duration
	Limits       Limits // no zeros
	Tailnet      Tailnet
	// Refused are the services that are wrong, each with why. The others hold.
	Refused map[string]string
}

// A Service of the tailnet, as the cluster reaches it.
type Service struct {
	Name    string   // such as "shop.billing"
	Health  *url.URL // of its health endpoint; nil: none
	Targets []Target // at least one
	Ports   []Port
}

// Exposed is something of the cluster, as the tailnet reaches it.
type Exposed struct {
	Name string
	IngressFile
}

// Defaults of what a document leaves out.
const (
	DefaultDrain       = time.Minute
	DefaultConnections = 10_000
	DefaultFlows       = 4096
	maxDrain           = 10 * time.Minute
	maxConnections     = 1_000_000
)

// Parse reads the data of a ConfigMap. An error means that nothing of it can be
// used, and the caller keeps what it had; an empty document is none.
func Parse(data map[string]string) (Config, error) {
	c := Config{DrainTimeout: DefaultDrain, Refused: map[string]string{}}
	size := 0
	for _, v := range data {
		size += len(v)
	}
	if size > maxBytes {
		return c, fmt.Errorf("the document has %d bytes; at most %d are read", size, maxBytes)
	}
	var egress map[string]EgressService
	if text, ok := data[EgressKey]; ok {
		if err := decode(text, &egress); err != nil {
			return c, fmt.Errorf("%s: %w", EgressKey, err)
		}
	}
	var file File
	if text, ok := data[RelayKey]; ok {
		if err := decode(text, &file); err != nil {
			return c, fmt.Errorf("%s: %w", RelayKey, err)
		}
	}
	if err := c.settle(file, data[PingsKey]); err != nil {
		return c, err
	}
	if len(egress) > maxServices || len(file.Ingress) > maxExposed {
		return c, fmt.Errorf("%d services and %d exposed ones; at most %d and %d are carried", len(egress), len(file.Ingress), maxServices, maxExposed)
	}
	taken := map[Port]string{} // without its target
	for _, name := range slices.Sorted(maps.Keys(egress)) {
		s, err := service(name, egress[name], file.Targets[name], taken)
		if err != nil {
			c.Refused[name] = err.Error()
			continue
		}
		c.Services = append(c.Services, s)
	}
	ports := map[string]string{}
	for _, name := range slices.Sorted(maps.Keys(file.Ingress)) {
		if err := exposed(name, file.Ingress[name], ports); err != nil {
			c.Refused[name] = err.Error()
			continue
		}
		c.Exposed = append(c.Exposed, Exposed{name, file.Ingress[name]})
	}
	return c, nil
}

// decode reads one JSON value. Fields that a newer operator adds are for newer
// relays: a group is rolled one pod after the other.
func decode(text string, into any) error {
	d := json.NewDecoder(strings.NewReader(text))
	if err := d.Decode(into); err != nil {
		return err
	}
	if _, err := d.Token(); !errors.Is(err, io.EOF) {
		return errors.New("more follows the document")
	}
	return nil
}

// settle takes what is not about one service.
func (c *Config) settle(f File, pings string) error {
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
			return fmt.Errorf("%s: drainTimeout %.20q is not a time from 0s to %v", RelayKey, f.DrainTimeout, maxDrain)
		}
		c.DrainTimeout = d
	}
	c.Limits, c.Tailnet = f.Limits, f.Tailnet
	for _, l := range []*int{&c.Limits.Connections, &c.Limits.Flows} {
		if *l < 0 || *l > maxConnections {
			return fmt.Errorf("%s: a limit of %d is not one from 1 to %d", RelayKey, *l, maxConnections)
		}
	}
	c.Limits.Connections = cmp.Or(c.Limits.Connections, DefaultConnections)
	c.Limits.Flows = cmp.Or(c.Limits.Flows, DefaultFlows)
	return nil
}

func service(name string, e EgressService, several []Target, taken map[Port]string) (Service, error) {
	s := Service{Name: name, Targets: several, Ports: e.Ports}
	if err := checkName(name); err != nil {
		return s, err
	}
	if len(s.Targets) == 0 {
		s.Targets = []Target{e.TailnetTarget}
	}
	if len(s.Targets) > maxTargets {
		return s, fmt.Errorf("%d targets; at most %d are tried", len(s.Targets), maxTargets)
	}
	s.Targets = slices.Clone(s.Targets)
	for i := range s.Targets {
		if err := s.Targets[i].check(); err != nil {
			return s, err
		}
	}
	if e.HealthCheckEndpoint != "" {
		u, err := url.Parse(e.HealthCheckEndpoint)
		if err != nil || u.Scheme != "http" || u.Host == "" || u.User != nil || u.Fragment != "" {
			return s, errors.New("its healthCheckEndpoint is not an http address") // not shown: it may hold a password
		}
		s.Health = u
	}
	if len(e.Ports) == 0 || len(e.Ports) > maxPorts {
		return s, fmt.Errorf("it maps %d ports; 1 to %d can be", len(e.Ports), maxPorts)
	}
	own := map[Port]bool{}
	for _, p := range e.Ports {
		at := Port{Protocol: p.Protocol, Match: p.Match}
		switch other, is := taken[at]; {
		case p.Protocol == "":
			return s, fmt.Errorf("port %d has no protocol", p.Match)
		case p.Match < MinMatchPort || p.Match > MaxMatchPort:
			return s, fmt.Errorf("port %d is not one of %d to %d", p.Match, MinMatchPort, MaxMatchPort)
		case p.Target == 0:
			return s, fmt.Errorf("port %d leads to port 0", p.Match)
		case is || own[at]:
			return s, fmt.Errorf("%s port %d belongs to %s", p.Protocol, p.Match, cmp.Or(other, name))
		}
		own[at] = true
	}
	for at := range own { // only now: a service that is refused holds no port
		taken[at] = name
	}
	return s, nil
}

// checkName wants what can stand in a path and in a log: /readyz/<service>.
func checkName(name string) error {
	if name == "" || len(name) > 253 || strings.ContainsFunc(name, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-' && r != '.' && r != '_' && r != ':'
	}) || strings.Trim(name, ".") == "" {
		return errors.New("its name is not one of small letters, digits, dashes and dots")
	}
	return nil
}

// check makes the target one that is spelt in one way only.
func (t *Target) check() error {
	n := 0
	for _, is := range []bool{t.IP != "", t.FQDN != "", len(t.Tags) > 0} {
		if is {
			n++
		}
	}
	if n != 1 {
		return errors.New("a target has exactly one of ip, fqdn and tags")
	}
	if t.IP != "" {
		a, err := netip.ParseAddr(t.IP)
		if err != nil || a.Zone() != "" {
			return fmt.Errorf("the target %.60q is not an address", t.IP)
		}
		if !Allowed(a) {
			return fmt.Errorf("the target %s is not an address of a tailnet's node or service", a)
		}
		t.IP = a.String()
	}
	if t.FQDN != "" {
		name := strings.ToLower(strings.TrimSuffix(t.FQDN, "."))
		if err := checkHost(name); err != nil {
			return err
		}
		t.FQDN = name
	}
	for _, tag := range t.Tags {
		if len(tag) > 67 || !strings.HasPrefix(tag, "tag:") || checkLabel(strings.ToLower(tag[len("tag:"):])) != nil {
			return fmt.Errorf("%.70q is not a tag", tag)
		}
	}
	return nil
}

// checkHost wants a DNS name of at least two labels that is no address in disguise.
func checkHost(name string) error {
	labels := strings.Split(name, ".")
	if len(name) > 253 || len(labels) < 2 {
		return fmt.Errorf("the target %.60q is not a full name", name)
	}
	for _, l := range labels {
		if checkLabel(l) != nil {
			return fmt.Errorf("the target %.60q is not a full name", name)
		}
	}
	if last := labels[len(labels)-1]; last[0] >= '0' && last[0] <= '9' { // such as 0x7f.1 and 127.1, which some resolvers read
		return fmt.Errorf("the target %.60q is a number, not a name", name)
	}
	return nil
}

func checkLabel(l string) error {
	if l == "" || len(l) > 63 || l[0] == '-' || l[len(l)-1] == '-' || strings.ContainsFunc(l, func(r rune) bool {
		return (r < 'a' || r > 'z') && (r < '0' || r > '9') && r != '-'
	}) {
		return fmt.Errorf("%.64q is not a label", l)
	}
	return nil
}

func exposed(name string, e IngressFile, taken map[string]string) error {
	if err := checkName(name); err != nil {
		return err
	}
	if e.VIP != "" {
		label, ok := strings.CutPrefix(e.VIP, "svc:")
		if !ok || checkLabel(label) != nil {
			return fmt.Errorf("%.70q is not the name of a service such as svc:web", e.VIP)
		}
	}
	if e.Terminates() {
		if err := checkHost(e.Domain); err != nil {
			return fmt.Errorf("TLS ends here, and its name is none: %w", err)
		}
	}
	if len(e.Ports) == 0 || len(e.Ports) > 32 {
		return fmt.Errorf("it maps %d ports; 1 to 32 can be", len(e.Ports))
	}
	for _, p := range e.Ports {
		key := fmt.Sprintf("%s/%s/%d", e.VIP, p.Protocol, p.Port)
		host, port, ok := cutPort(p.Backend)
		switch {
		case p.Protocol == "" || p.Port == 0:
			return errors.New("a port needs a protocol and a number")
		case p.Protocol == UDP && e.VIP != "":
			return errors.New("a service of the tailnet takes TCP only; UDP works on the relay's own node")
		case p.Protocol == UDP && p.Terminate:
			return errors.New("TLS is ended of TCP only")
		case p.Protocol == UDP && e.ProxyProtocol:
			return errors.New("there is no PROXY header for UDP")
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

func cutPort(s string) (host string, port uint16, ok bool) {
	if a, err := netip.ParseAddrPort(s); err == nil {
		return a.Addr().String(), a.Port(), true
	}
	host, p, ok := strings.Cut(s, ":")
	n, err := strconv.ParseUint(p, 10, 16)
	return host, uint16(n), ok && err == nil && checkHost(strings.ToLower(strings.TrimSuffix(host, "."))) == nil
}

// A Status is what a relay has applied, as it stands in its state Secret.
type Status struct {
	PodIPv4  string                   `json:"podIPv4"`
	PodIPv6  string                   `json:"podIPv6,omitempty"`
	Services map[string]ServiceStatus `json:"services"`
	// Exposed are those that the tailnet reaches through this relay.
	Exposed map[string]ExposedStatus `json:"exposed,omitempty"`
	// Refused are services that could not be read or bound, each with why.
	Refused map[string]string `json:"refused,omitempty"`
}

// A ServiceStatus is what is bound of a service.
type ServiceStatus struct {
	Ports   []Port       `json:"ports"`
	IPs     []netip.Addr `json:"tailnetTargetIPs"`
	Target  Target       `json:"tailnetTarget"` // the first one
	Targets []Target     `json:"targets,omitempty"`
}

// ExposedStatus is what is bound of an exposed service.
type ExposedStatus struct {
	VIP   string        `json:"vip,omitempty"`
	Ports []IngressPort `json:"ports"`
	// Uncertified is why TLS is refused where it is to be ended; empty: it is not.
	Uncertified string `json:"uncertified,omitempty"`
}

// JSON is the status in one form only, so that equal ones are equal bytes.
func (s Status) JSON() []byte {
	b, err := json.Marshal(s)
	if err != nil {
		panic("relay status: " + err.Error()) // strings, numbers and addresses only
	}
	return b
}

// Equal reports whether two documents say the same.
func (s Status) Equal(o Status) bool { return bytes.Equal(s.JSON(), o.JSON()) }
