// Package settings reads and validates the settings file of a server. It enforces law 7: an
// unknown key, a missing value or an invalid value is an error at startup that names the key.
//
// Flags set locations, custom resources set the desired state, and grants set access. None of
// these is in the settings file.
package settings

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/url"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/access"
)

// A File is the content of the settings file. Default returns its defaults.
type File struct {
	Cluster  Cluster     `yaml:"cluster"`
	Tailnet  Tailnet     `yaml:"tailnet"`
	Signin   Signin      `yaml:"signin"`
	API      API         `yaml:"api"`
	Access   Access      `yaml:"access"`
	Requests Requests    `yaml:"requests"`
	Gossip   Gossip      `yaml:"gossip"`
	Names    Names       `yaml:"names"`
	Audit    Audit       `yaml:"audit"`
	Plane    Plane       `yaml:"plane"`
	Proxy    AccessProxy `yaml:"proxy"`
	Policy   ProxyPolicy `yaml:"policy,omitempty"`
	Recorder Recorder    `yaml:"recorder"`
	Fleet    Fleet       `yaml:"fleet"`
	Health   string      `yaml:"health"` // address of probes and metrics, never on the tailnet; port 0: any free one
}

// Cluster describes how people reach the cluster. An address that only works inside the cluster
// does not help them.
type Cluster struct {
	Name                  string            `yaml:"name"`             // DNS-1123 label
	ID                    string            `yaml:"id,omitempty"`     // "": the UID of kube-system if it can be read, otherwise derived from the CA
	Server                string            `yaml:"server"`           // https URL
	CAFile                string            `yaml:"caFile,omitempty"` // PEM file; this or caData is required
	CAData                string            `yaml:"caData,omitempty"` // PEM, or "system" for a public certificate; this or caFile is required
	InsecureSkipTLSVerify bool              `yaml:"insecureSkipTLSVerify"`
	Labels                map[string]string `yaml:"labels,omitempty"`
}

// Tailnet configures the server's node in its tailnet.
type Tailnet struct {
	Hostname     string   `yaml:"hostname"`
	Tags         []string `yaml:"tags,omitempty"`
	ControlURL   string   `yaml:"controlURL,omitempty"`  // "": Tailscale's control server
	AuthKeyFile  string   `yaml:"authKeyFile,omitempty"` // "": a person signs the node in with the logged URL
	StateDir     string   `yaml:"stateDir"`
	StateSecret  string   `yaml:"stateSecret,omitempty"` // Secret in the pod's namespace that stores the node's keys; "": stateDir stores them
	Port         uint16   `yaml:"port"`
	InsecureHTTP bool     `yaml:"insecureHTTP"`          // no TLS; WireGuard still encrypts
	JoinTimeout  Duration `yaml:"joinTimeout,omitempty"` // the process exits if the node has not joined by then; 0: one minute. Waiting for a person does not count
}

// Signin sets which access the servers may grant.
type Signin struct {
	Capability             string      `yaml:"capability"`
	Namespace              string      `yaml:"namespace"`             // namespace of the sign-ins only
	SystemNamespace        string      `yaml:"systemNamespace"`       // namespace of the servers
	Roles                  []string    `yaml:"roles"`                 // allow-list of ClusterRoles; required
	ClusterWide            ClusterWide `yaml:"clusterWide,omitempty"` // roles that may be bound in the whole cluster although they reach every ServiceAccount; absent: all, with a warning
	Period                 Bounds      `yaml:"period"`
	MaxLife                Duration    `yaml:"maxLife"` // of a sign-in that logins extend; a late login begins a new one. 0: no limit
	MaxPerLogin            int         `yaml:"maxPerLogin"`
	KeepExpired            Duration    `yaml:"keepExpired"`
	GrantCheckInterval     Duration    `yaml:"grantCheckInterval"` // how often to check the grants of live sign-ins, in addition to each change of the tailnet
	RequireAdmissionPolicy bool        `yaml:"requireAdmissionPolicy"`
	TokenAudiences         []string    `yaml:"tokenAudiences,omitempty"` // of the API server; empty: the API server's default
	OIDC                   OIDCTokens  `yaml:"oidc,omitempty"`           // tokens that rules may require beside the tailnet's identity
}

// Bounds are the shortest and the longest period.
type Bounds struct {
	Min Duration `yaml:"min"`
	Max Duration `yaml:"max"`
}

// API configures the sign-in API.
type API struct {
	RetryAfter Duration `yaml:"retryAfter"`
	MaxWait    Duration `yaml:"maxWait"`
	Limits     Limits   `yaml:"limits"`
}

// Limits are the request rates for each device and each login, and the number of connections.
// 0 means no limit.
type Limits struct {
	Login      Rate `yaml:"login"`
	Kubeconfig Rate `yaml:"kubeconfig"`
	Others     Rate `yaml:"others"`
	All        Rate `yaml:"all"` // all callers together

	Connections int `yaml:"connections"` // open connections from one address of a node
}

// A Rate is a token bucket.
type Rate struct {
	PerMinute float64 `yaml:"perMinute"`
	Burst     int     `yaml:"burst"`
}

// Names configures the names in people's kubeconfig files.
type Names struct {
	Prefix string `yaml:"prefix"`
}

// Audit configures the audit log.
type Audit struct {
	File     string `yaml:"file"`     // "-": standard output
	Required bool   `yaml:"required"` // refuse sign-ins and kubeconfigs that cannot be recorded
	// KeySecret is the name of the Secret in signin.systemNamespace with the key that signs
	// the audit log; "": the file audit.key in tailnet.stateDir.
	KeySecret string `yaml:"keySecret,omitempty"`
}

// A Duration is a Go duration in YAML, such as "8h".
type Duration time.Duration

// UnmarshalYAML implements [yaml.Unmarshaler].
func (d *Duration) UnmarshalYAML(n *yaml.Node) error {
	v, err := time.ParseDuration(n.Value)
	if err != nil || n.Kind != yaml.ScalarNode {
		return fmt.Errorf("line %d: %.40q is not a duration such as \"10m\" or \"8h\"", n.Line, n.Value)
	}
	if v < 0 {
		return fmt.Errorf("line %d: %v is negative", n.Line, v)
	}
	*d = Duration(v)
	return nil
}

// MarshalYAML implements [yaml.Marshaler].
func (d Duration) MarshalYAML() (any, error) { return d.String(), nil }

// String returns the text of a [time.Duration].
func (d Duration) String() string { return time.Duration(d).String() }

func (d Duration) isBetween(low, high time.Duration) bool {
	return time.Duration(d) >= low && time.Duration(d) <= high
}

// Default returns the default settings.
func Default() File {
	return File{
		Tailnet: Tailnet{Hostname: "tka", StateDir: "/var/lib/tailplane", Port: 443},
		Signin: Signin{
			Capability: "tailplane.dev/cap/access", Namespace: "tailplane-signins", SystemNamespace: "tailplane-system",
			Period:  Bounds{Duration(access.MinPeriod), Duration(24 * time.Hour)},
			MaxLife: Duration(24 * time.Hour), MaxPerLogin: 10, KeepExpired: Duration(10 * time.Minute),
			GrantCheckInterval: Duration(30 * time.Second), RequireAdmissionPolicy: true,
		},
		API: API{RetryAfter: Duration(time.Second), MaxWait: Duration(30 * time.Second), Limits: Limits{
			Login: Rate{10, 5}, Kubeconfig: Rate{60, 20}, Others: Rate{120, 20}, All: Rate{300 * 60, 300},
			Connections: 256,
		}},
		Access: Access{Modes: []AccessMode{TokenMode}}, Requests: defaultRequests(), Gossip: defaultGossip(), Names: Names{Prefix: "tka-"}, Plane: defaultPlane(), Proxy: defaultProxy(), Recorder: defaultRecorder(), Fleet: defaultFleet(),
		Audit: Audit{File: "-"}, Health: ":8080",
	}
}

// Load reads the file at path and validates it for role.
func Load(path string, role Role) (File, error) {
	return load(path, func(b []byte) (File, error) {
		f, err := Parse(b)
		if err == nil {
			err = f.Validate(role)
		}
		return f, err
	})
}

func load[T any](path string, parse func([]byte) (T, error)) (settings T, err error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return settings, fmt.Errorf("settings: %w; set the file with --config", err)
	}
	if settings, err = parse(b); err != nil {
		err = fmt.Errorf("settings %s: %w", path, err)
	}
	return settings, err
}

// Parse decodes a file strictly, with the defaults for absent keys.
func Parse(b []byte) (File, error) {
	f := Default()
	err := decode(b, &f)
	return f, err
}

// decode decodes one YAML document strictly.
func decode(b []byte, into any) error {
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(into); err != nil && err != io.EOF {
		if te, ok := errors.AsType[*yaml.TypeError](err); ok {
			return explain(strings.Join(te.Errors, "; "))
		}
		return explain(err.Error())
	}
	if err := d.Decode(new(any)); err != io.EOF {
		return errors.New("the file contains more than one YAML document")
	}
	return nil
}

// sections names the settings of each Go type, for the decoder's errors.
var sections = map[string]string{
	"File": "", "Gateway": "", "Cluster": " of cluster", "Signin": " of signin", "Bounds": " of signin.period", "OIDCTokens": " of signin.oidc", "OIDCIssuer": " of an entry of signin.oidc.issuers", "API": " of api", "Access": " of access", "AnnouncedProxy": " of an entry of access.proxies", "Requests": " of requests", "RequestPerson": " of an entry of requests.samePerson",
	"Tailnet": " of tailnet", "GatewayTailnet": " of tailnet", "Limits": " of api.limits", "Rate": " of a limit", "Names": " of names",
	"Audit": " of audit", "Plane": " of plane", "AccessProxy": " of proxy", "Recorder": " of recorder", "ProxyPolicy": " of policy", "Recording": " of proxy.recording", "ProxyLimits": " of proxy.limits", "ProxyAccess": " of proxy.access", "ProxyRule": " of an entry of policy.rules", "PlaneIdentity": " of plane.identity", "PlaneTLS": " of plane.identity.tls", "PlaneOIDC": " of plane.identity.oidc",
	"Exposure": " of an entry of plane.exposures", "PlaneHolder": " of an entry of plane.roles", "Gossip": " of gossip", "Pin": " of a pin",
	"ClusterProfiles": " of gossip.clusterProfiles", "Fleet": " of fleet", "FleetImages": " of fleet.images", "FleetCanary": " of fleet.canary",
	"GatewayProxy": " of proxy", "GatewayExtension": " of extension", "GatewayEnvoy": " of envoy",
}

var (
	unknownKey = regexp.MustCompile(`not found in type settings\.(\w+)`)
	wrongType  = strings.NewReplacer("yaml: ", "", "into uint16", "as a port", "into bool", "as true or false", "into int", "as a number",
		"into float64", "as a number")
)

// explain replaces Go type names in the decoder's errors by the keys of the file.
func explain(text string) error {
	text = unknownKey.ReplaceAllStringFunc(text, func(found string) string {
		if section, ok := sections[unknownKey.FindStringSubmatch(found)[1]]; ok {
			return "is not a setting" + section
		}
		return found
	})
	return errors.New(wrongType.Replace(text))
}

// YAML returns f in the form of a settings file. It contains no secret.
func (f File) YAML() ([]byte, error) {
	var buf bytes.Buffer
	e := yaml.NewEncoder(&buf)
	e.SetIndent(2)
	err := e.Encode(f)
	return buf.Bytes(), err
}

// A Role is a part of the server that a process runs.
type Role string

// The roles. AllRoles runs access and operator, and plane and proxy if they are enabled.
const (
	AccessRole   Role = "access"
	OperatorRole Role = "operator"
	AllRoles     Role = "all"
)

// Runs reports whether a process of role runs part.
func (f File) Runs(part, role Role) bool {
	return role == part || role == AllRoles && (part != PlaneRole || f.Plane.Enabled) && (part != ProxyRole || f.Proxy.Enabled)
}

var (
	label     = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	clusterID = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$`)
)

// A validation collects the errors of settings.
type validation []error

func (v *validation) fail(format string, args ...any) { *v = append(*v, fmt.Errorf(format, args...)) }

// failIf adds an error if wrong is true.
func (v *validation) failIf(wrong bool, format string, args ...any) {
	if wrong {
		v.fail(format, args...)
	}
}

// Validate returns all errors for role, joined.
func (f File) Validate(role Role) error {
	var v validation
	if host, port, err := net.SplitHostPort(f.Health); err != nil || strings.ContainsAny(host, "/ ") {
		v.fail("health: %q is not an address such as :8080 or 127.0.0.1:8080", f.Health)
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		v.fail("health: %q is not a port", port)
	}
	s := f.Audit.KeySecret
	v.failIf(s != "" && !isSecretName(s), "audit.keySecret: %q is not the name of a Secret", s)
	switch role {
	case FleetRole:
		f.Fleet.validate(&v)
	case PlaneRole:
	case RecorderRole:
		f.validateRecorder(&v)
	default:
		f.validateSignin(&v)
		f.validateRequests(&v)
		if role != OperatorRole {
			f.validateAccess(&v)
		}
	}
	if f.Runs(PlaneRole, role) {
		f.validatePlane(&v)
	}
	if f.Runs(ProxyRole, role) {
		f.validateProxy(&v)
	}
	v.failIf(f.Runs(AccessRole, role) && slices.Contains(f.Access.Modes, TokenMode) && f.Policy.enforces() && !f.Policy.AllowTokenMode,
		"access.modes has token, with which callers go past the rules of policy: remove token, or set policy.allowTokenMode to accept that")
	return errors.Join(v...)
}

func isSecretName(s string) bool { return len(s) <= 253 && subdomain.MatchString(s) }

func (f File) validateSignin(v *validation) {
	s := f.Signin
	v.failIf(len(s.Roles) == 0, "signin.roles is missing: list the ClusterRoles that may be granted, such as [view, edit]")
	for _, r := range s.Roles {
		_, err := access.ParseRole(r)
		v.failIf(err != nil, "signin.roles: %w", err)
	}
	s.ClusterWide.validate(v, s.Roles)
	for name, ns := range map[string]string{"signin.namespace": s.Namespace, "signin.systemNamespace": s.SystemNamespace} {
		v.failIf(!label.MatchString(ns), "%s: %q is not the name of a namespace", name, ns)
	}
	v.failIf(s.Namespace == s.SystemNamespace,
		"signin.namespace and signin.systemNamespace are both %q: an account that may create tokens for sign-ins could create one for the operator; use a separate namespace for the sign-ins", s.Namespace)
	lo, hi := s.Period.Min, s.Period.Max
	v.failIf(time.Duration(lo) < access.MinPeriod,
		"signin.period.min: %v is below %v, the shortest token lifetime of the API server", lo, access.MinPeriod)
	v.failIf(hi < lo, "signin.period.max: %v is below signin.period.min (%v)", hi, lo)
	v.failIf(s.MaxLife != 0 && s.MaxLife < lo, "signin.maxLife: %v is below signin.period.min (%v); 0 means no limit", s.MaxLife, lo)
	v.failIf(s.MaxPerLogin < 1, "signin.maxPerLogin: %d is less than 1", s.MaxPerLogin)
	v.failIf(!strings.Contains(s.Capability, "/") || strings.ContainsAny(s.Capability, " \t\n"),
		"signin.capability: %q is not the name of a capability such as tailplane.dev/cap/access", s.Capability)
}

func (f File) validateAccess(v *validation) {
	v.failIf(!label.MatchString(f.Cluster.Name), "cluster.name: %q is not a DNS label such as prod-eu", f.Cluster.Name)
	id := f.Cluster.ID
	v.failIf(id != "" && !clusterID.MatchString(id), "cluster.id: %q is not at most 128 of letters, digits, - _ and .", id)
	u, err := url.Parse(f.Cluster.Server)
	switch {
	case f.Cluster.Server == "":
		v.fail("cluster.server is missing: set the URL at which people reach the API server")
	case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil:
		v.fail("cluster.server: %q is not an https URL", f.Cluster.Server)
	}
	if _, err := f.Cluster.CA(); err != nil {
		v.fail("%w", err)
	}
	t := f.Tailnet
	v.failIf(!label.MatchString(t.Hostname), "tailnet.hostname: %q is not a DNS label", t.Hostname)
	t.validate(v)
	i := f.Signin.GrantCheckInterval
	v.failIf(!i.isBetween(time.Second, time.Hour), "signin.grantCheckInterval: %v is not between 1s and 1h", i)
	for i, a := range f.Signin.TokenAudiences {
		v.failIf(a == "" || strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r > '~' }) || slices.Contains(f.Signin.TokenAudiences[:i], a),
			"signin.tokenAudiences: %q is empty, contains white space or occurs twice", a)
	}
	f.Signin.OIDC.validate(v)
	f.validateModes(v)
	v.failIf(f.API.Limits.Connections < 0, "api.limits.connections: %d is negative; 0 means no limit", f.API.Limits.Connections)
	v.failIf(f.API.RetryAfter == 0 || !f.API.MaxWait.isBetween(1, time.Minute),
		"api.retryAfter must be above 0 and api.maxWait between 0 and 1m")
	v.failIf(strings.ContainsFunc(f.Names.Prefix, func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.", r) }),
		"names.prefix: %q may have lower-case letters, digits, - _ and . only", f.Names.Prefix)
	v.failIf(f.Audit.File == "", "audit.file is empty; use - for standard output")
	f.Gossip.validate(v, t.Port)
}

// validate reports the errors that apply to the node of every role.
func (t Tailnet) validate(v *validation) {
	for _, tag := range t.Tags {
		v.failIf(!strings.HasPrefix(tag, "tag:"), "tailnet.tags: %q does not begin with tag:", tag)
	}
	if t.ControlURL != "" {
		u, err := url.Parse(t.ControlURL)
		v.failIf(err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http",
			"tailnet.controlURL: %q is not a URL", t.ControlURL)
	}
	v.failIf(!filepath.IsAbs(t.StateDir), "tailnet.stateDir: %q is not an absolute path", t.StateDir)
	v.failIf(t.StateSecret != "" && !isSecretName(t.StateSecret), "tailnet.stateSecret: %q is not the name of a Secret", t.StateSecret)
	v.failIf(t.Port == 0, "tailnet.port is 0")
	d := t.JoinTimeout
	v.failIf(d != 0 && !d.isBetween(time.Second, time.Hour), "tailnet.joinTimeout: %v is not between 1s and 1h", d)
}

// SystemCA is the value of cluster.caData for an API server whose certificate is public: kubectl and the servers verify it with the roots of their
// own systems.
const SystemCA = "system"

// CA returns the PEM certificates that kubectl uses to verify the API server, or none for SystemCA.
func (c Cluster) CA() ([]byte, error) {
	b, from := []byte(c.CAData), "cluster.caData"
	switch {
	case c.CAFile != "" && c.CAData != "":
		return nil, errors.New("cluster.caFile and cluster.caData are both set; set only one")
	case c.CAFile != "":
		var err error
		if b, err = os.ReadFile(c.CAFile); err != nil {
			return nil, fmt.Errorf("cluster.caFile: %w", err)
		}
		from = "cluster.caFile"
	case c.CAData == SystemCA:
		return nil, nil
	case c.CAData == "":
		return nil, errors.New("cluster.caFile is missing: set the CA certificates of the API server, as PEM, or cluster.caData to system if its certificate is public")
	}
	return b, checkCertificates(from, b)
}

// Warnings returns a warning for each setting that is valid but risky.
func (f File) Warnings() (w []string) {
	if u, err := url.Parse(f.Cluster.Server); err == nil {
		if ip := net.ParseIP(u.Hostname()); ip != nil && ip.IsLoopback() || u.Hostname() == "localhost" {
			w = append(w, "cluster.server is a loopback address: only users of this machine can reach it")
		}
	}
	if f.Cluster.InsecureSkipTLSVerify {
		w = append(w, "cluster.insecureSkipTLSVerify is set: kubectl sends its token without verifying the server")
	}
	for _, r := range f.Signin.Roles {
		if strings.HasPrefix(r, "system:") || r == "cluster-admin" {
			w = append(w, fmt.Sprintf("signin.roles allows %q", r))
		}
	}
	if len(f.Signin.TokenAudiences) > 0 {
		w = append(w, "signin.tokenAudiences is set: any other server that accepts one of these audiences can impersonate the person, so list only audiences of the API server")
	}
	if !f.Signin.RequireAdmissionPolicy {
		w = append(w, "signin.requireAdmissionPolicy is false: every client that can create a TkaSignin can choose its role")
	}
	return w
}

// AccessPolicy returns the policy for access.Decide.
func (f File) AccessPolicy() access.Policy {
	p := access.Policy{Capability: f.Signin.Capability, Min: time.Duration(f.Signin.Period.Min), Max: time.Duration(f.Signin.Period.Max),
		Reserved: []string{f.Signin.Namespace, f.Signin.SystemNamespace}, Members: f.Gossip.members(), Proxies: f.Access.proxyTags(), Issuers: f.Signin.OIDC.audiences(f.Cluster.Name), Requests: f.Requests.policy()}
	for _, t := range f.Proxy.Planes {
		p.Planes = append(p.Planes, access.Tag(t))
	}
	for _, r := range f.Signin.Roles {
		if !slices.Contains(p.Roles, access.Role(r)) {
			p.Roles = append(p.Roles, access.Role(r))
		}
	}
	return p
}
