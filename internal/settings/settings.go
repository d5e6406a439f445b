// Package settings is the one file that says how a server works. It keeps law
// 7: an unknown key, a missing value or a value that makes no sense is an error
// at the start that names it, never a guess.
//
// Flags say where things are, custom resources say what is wanted, grants say
// who may; none of that is in this file.
package settings

import (
	"bytes"
	"crypto/x509"
	"encoding/pem"
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

// A File is the whole file. Its defaults are those of Default.
type File struct {
	Cluster Cluster `yaml:"cluster"`
	Tailnet Tailnet `yaml:"tailnet"`
	Signin  Signin  `yaml:"signin"`
	API     API     `yaml:"api"`
	Gossip  Gossip  `yaml:"gossip"`
	Names   Names   `yaml:"names"`
	Audit   Audit   `yaml:"audit"`
	Plane   Plane   `yaml:"plane"`
	Fleet   Fleet   `yaml:"fleet"`
	Health  string  `yaml:"health"` // address of probes and metrics, never on the tailnet; port 0: any free one
}

// Cluster is how people reach the cluster; an address inside it is of no use to them.
type Cluster struct {
	Name                  string            `yaml:"name"`             // DNS-1123 label
	ID                    string            `yaml:"id,omitempty"`     // "": the UID of kube-system where that may be read, else derived from the CA
	Server                string            `yaml:"server"`           // https URL
	CAFile                string            `yaml:"caFile,omitempty"` // PEM; this or caData
	CAData                string            `yaml:"caData,omitempty"` // PEM
	InsecureSkipTLSVerify bool              `yaml:"insecureSkipTLSVerify"`
	Labels                map[string]string `yaml:"labels,omitempty"`
}

// Tailnet is the server's own node.
type Tailnet struct {
	Hostname     string   `yaml:"hostname"`
	Tags         []string `yaml:"tags,omitempty"`
	ControlURL   string   `yaml:"controlURL,omitempty"`  // "": Tailscale's own
	AuthKeyFile  string   `yaml:"authKeyFile,omitempty"` // "": sign up by the printed link
	StateDir     string   `yaml:"stateDir"`
	StateSecret  string   `yaml:"stateSecret,omitempty"` // Secret of the pod's namespace that keeps the node's keys; "": they are in stateDir
	Port         uint16   `yaml:"port"`
	InsecureHTTP bool     `yaml:"insecureHTTP"`          // no TLS; WireGuard still encrypts
	JoinTimeout  Duration `yaml:"joinTimeout,omitempty"` // the process ends that has not joined by then; 0: a minute. Waiting for a person is not counted
}

// Signin is what may be given out.
type Signin struct {
	Capability             string   `yaml:"capability"`
	Namespace              string   `yaml:"namespace"`       // of the sign-ins, which holds nothing else
	SystemNamespace        string   `yaml:"systemNamespace"` // of this program
	Roles                  []string `yaml:"roles"`           // allow-list; required
	Period                 Bounds   `yaml:"period"`
	MaxLife                Duration `yaml:"maxLife"` // 0: none
	MaxPerLogin            int      `yaml:"maxPerLogin"`
	KeepExpired            Duration `yaml:"keepExpired"`
	GrantCheckInterval     Duration `yaml:"grantCheckInterval"` // how often the grants of live sign-ins are looked at, beside each change of the tailnet
	RequireAdmissionPolicy bool     `yaml:"requireAdmissionPolicy"`
	TokenAudiences         []string `yaml:"tokenAudiences,omitempty"` // of the API server; none: its own default
}

// Bounds are the shortest and the longest period.
type Bounds struct {
	Min Duration `yaml:"min"`
	Max Duration `yaml:"max"`
}

// API is how callers are served.
type API struct {
	RetryAfter Duration `yaml:"retryAfter"`
	MaxWait    Duration `yaml:"maxWait"`
	Limits     Limits   `yaml:"limits"`
}

// Limits are requests a minute, for each device and each login, and connections;
// 0: no limit.
type Limits struct {
	Login      Rate `yaml:"login"`
	Kubeconfig Rate `yaml:"kubeconfig"`
	Others     Rate `yaml:"others"`
	All        Rate `yaml:"all"` // all callers together

	Connections int `yaml:"connections"` // that one address of a node may hold open
}

// A Rate is a token bucket.
type Rate struct {
	PerMinute float64 `yaml:"perMinute"`
	Burst     int     `yaml:"burst"`
}

// Names are what people see in their kubeconfig.
type Names struct {
	Prefix string `yaml:"prefix"`
}

// Audit is where the record goes.
type Audit struct {
	File     string `yaml:"file"`     // "-": standard output
	Required bool   `yaml:"required"` // nobody signs in or gets a kubeconfig without an entry in the record
	// KeySecret names the Secret of signin.systemNamespace that keeps the key which
	// signs the record; "": the file audit.key in tailnet.stateDir.
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
func (d Duration) MarshalYAML() (any, error) { return time.Duration(d).String(), nil }

// Default returns the settings that a file may leave out.
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
		Gossip: defaultGossip(), Names: Names{Prefix: "tka-"}, Plane: defaultPlane(), Fleet: defaultFleet(),
		Audit: Audit{File: "-"}, Health: ":8080",
	}
}

// Load reads and checks the file at path for a role of the server.
func Load(path string, role Role) (File, error) {
	b, err := os.ReadFile(path)
	if err != nil {
		return File{}, fmt.Errorf("settings: %w; name the file with --config", err)
	}
	f, err := Parse(b)
	if err == nil {
		err = f.Validate(role)
	}
	if err != nil {
		return File{}, fmt.Errorf("settings %s: %w", path, err)
	}
	return f, nil
}

// Parse decodes a file over the defaults, strictly.
func Parse(b []byte) (File, error) {
	f := Default()
	d := yaml.NewDecoder(bytes.NewReader(b))
	d.KnownFields(true)
	if err := d.Decode(&f); err != nil && err != io.EOF {
		if te, ok := errors.AsType[*yaml.TypeError](err); ok {
			return File{}, errors.New(strictDecoder.Replace(strings.Join(te.Errors, "; ")))
		}
		return File{}, errors.New(strictDecoder.Replace(err.Error()))
	}
	if err := d.Decode(new(any)); err != io.EOF {
		return File{}, errors.New("the file holds more than one YAML document")
	}
	return f, nil
}

// strictDecoder turns the decoder's words about Go types into words about the file.
var strictDecoder = strings.NewReplacer("yaml: ", "", "not found in type settings.File", "is not a setting",
	"not found in type settings.Cluster", "is not a setting of cluster", "not found in type settings.Tailnet", "is not a setting of tailnet",
	"not found in type settings.Signin", "is not a setting of signin", "not found in type settings.API", "is not a setting of api",
	"not found in type settings.Bounds", "is not a setting of signin.period", "not found in type settings.Limits", "is not a setting of api.limits",
	"not found in type settings.Rate", "is not a setting of a limit", "not found in type settings.Names", "is not a setting of names",
	"not found in type settings.Audit", "is not a setting of audit", "not found in type settings.PlaneIdentity", "is not a setting of plane.identity",
	"not found in type settings.PlaneTLS", "is not a setting of plane.identity.tls", "not found in type settings.PlaneOIDC", "is not a setting of plane.identity.oidc",
	"not found in type settings.Exposure", "is not a setting of an entry of plane.exposures",
	"not found in type settings.PlaneHolder", "is not a setting of an entry of plane.roles", "not found in type settings.Plane", "is not a setting of plane",
	"not found in type settings.FleetImages", "is not a setting of fleet.images", "not found in type settings.FleetCanary", "is not a setting of fleet.canary", "not found in type settings.Fleet", "is not a setting of fleet",
	"not found in type settings.Gossip", "is not a setting of gossip",
	"not found in type settings.Pin", "is not a setting of a pin", "not found in type settings.ClusterProfiles", "is not a setting of gossip.clusterProfiles",
	"into uint16", "as a port", "into bool", "as true or false", "into int", "as a number")

// YAML returns f as a file would have it. There is no secret in it.
func (f File) YAML() ([]byte, error) {
	var buf bytes.Buffer
	e := yaml.NewEncoder(&buf)
	e.SetIndent(2)
	err := e.Encode(f)
	return buf.Bytes(), err
}

// A Role is a part of the server that a process plays.
type Role string

// The roles. All plays each of them.
const (
	AccessRole   Role = "access"
	OperatorRole Role = "operator"
	AllRoles     Role = "all"
)

var (
	label     = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`)
	subdomain = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)
	clusterID = regexp.MustCompile(`^[A-Za-z0-9]([A-Za-z0-9._-]{0,126}[A-Za-z0-9])?$`)
)

// Validate reports everything that is wrong for the role, all at once.
func (f File) Validate(role Role) error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }

	if host, port, err := net.SplitHostPort(f.Health); err != nil || strings.ContainsAny(host, "/ ") {
		bad("health: %q is not an address such as :8080 or 127.0.0.1:8080", f.Health)
	} else if _, err := strconv.ParseUint(port, 10, 16); err != nil {
		bad("health: %q is not a port", port)
	}
	if s := f.Audit.KeySecret; s != "" && (len(s) > 253 || !subdomain.MatchString(s)) {
		bad("audit.keySecret: %q is not the name of a Secret", s)
	}
	if role == FleetRole {
		return errors.Join(append(errs, f.Fleet.validate()...)...)
	}
	if role == PlaneRole {
		return errors.Join(append(errs, f.validatePlane()...)...)
	}
	errs = append(errs, f.validateSignin()...)
	if role != OperatorRole {
		errs = append(errs, f.validateAccess()...)
	}
	if role == AllRoles && f.Plane.Enabled {
		errs = append(errs, f.validatePlane()...)
	}
	return errors.Join(errs...)
}

func (f File) validateSignin() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	s := f.Signin
	if len(s.Roles) == 0 {
		bad("signin.roles is missing: list the ClusterRoles that may be given out, such as [view, edit]")
	}
	for _, r := range s.Roles {
		if _, err := access.ParseRole(r); err != nil {
			bad("signin.roles: %w", err)
		}
	}
	for name, ns := range map[string]string{"signin.namespace": s.Namespace, "signin.systemNamespace": s.SystemNamespace} {
		if !label.MatchString(ns) {
			bad("%s: %q is not the name of a namespace", name, ns)
		}
	}
	if s.Namespace == s.SystemNamespace {
		bad("signin.namespace and signin.systemNamespace are both %q: whoever may make tokens for sign-ins could make one for the operator; give the sign-ins a namespace of their own", s.Namespace)
	}
	lo, hi := time.Duration(s.Period.Min), time.Duration(s.Period.Max)
	if lo < access.MinPeriod {
		bad("signin.period.min: %v is below %v, the shortest token that the API server gives", lo, access.MinPeriod)
	}
	if hi < lo {
		bad("signin.period.max: %v is below signin.period.min (%v)", hi, lo)
	}
	if l := time.Duration(s.MaxLife); l != 0 && l < lo {
		bad("signin.maxLife: %v is below signin.period.min (%v); 0 means no limit", l, lo)
	}
	if s.MaxPerLogin < 1 {
		bad("signin.maxPerLogin: %d; at least 1", s.MaxPerLogin)
	}
	if !strings.Contains(s.Capability, "/") || strings.ContainsAny(s.Capability, " \t\n") {
		bad("signin.capability: %q is not the name of a capability such as tailplane.dev/cap/access", s.Capability)
	}
	return errs
}

func (f File) validateAccess() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	if !label.MatchString(f.Cluster.Name) {
		bad("cluster.name: %q is not a DNS label such as prod-eu", f.Cluster.Name)
	}
	if id := f.Cluster.ID; id != "" && !clusterID.MatchString(id) {
		bad("cluster.id: %q; letters, digits, - _ . only, at most 128", id)
	}
	u, err := url.Parse(f.Cluster.Server)
	switch {
	case f.Cluster.Server == "":
		bad("cluster.server is missing: the API server's URL as people reach it")
	case err != nil || u.Scheme != "https" || u.Host == "" || u.User != nil:
		bad("cluster.server: %q is not an https URL", f.Cluster.Server)
	}
	if _, err := f.Cluster.CA(); err != nil {
		bad("%w", err)
	}
	t := f.Tailnet
	if !label.MatchString(t.Hostname) {
		bad("tailnet.hostname: %q is not a DNS label", t.Hostname)
	}
	errs = append(errs, t.validate()...)
	if i := time.Duration(f.Signin.GrantCheckInterval); i < time.Second || i > time.Hour {
		bad("signin.grantCheckInterval: %v; between 1s and 1h", i)
	}
	for i, a := range f.Signin.TokenAudiences {
		if a == "" || strings.ContainsFunc(a, func(r rune) bool { return r <= ' ' || r > '~' }) || slices.Contains(f.Signin.TokenAudiences[:i], a) {
			bad("signin.tokenAudiences: %q is empty, holds white space or stands there twice", a)
		}
	}
	if f.API.Limits.Connections < 0 {
		bad("api.limits.connections: %d is negative; 0 means no limit", f.API.Limits.Connections)
	}
	if f.API.RetryAfter == 0 || f.API.MaxWait == 0 || time.Duration(f.API.MaxWait) > time.Minute {
		bad("api.retryAfter must be above 0 and api.maxWait between 0 and 1m")
	}
	if strings.ContainsFunc(f.Names.Prefix, func(r rune) bool { return !strings.ContainsRune("abcdefghijklmnopqrstuvwxyz0123456789-_.", r) }) {
		bad("names.prefix: %q; lower-case letters, digits, - _ . only", f.Names.Prefix)
	}
	if f.Audit.File == "" {
		bad("audit.file is empty; - is standard output")
	}
	return append(errs, f.Gossip.validate(t.Port)...)
}

// validate says what is wrong for any node.
func (t Tailnet) validate() (errs []error) {
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, tag := range t.Tags {
		if !strings.HasPrefix(tag, "tag:") {
			bad("tailnet.tags: %q does not begin with tag:", tag)
		}
	}
	if t.ControlURL != "" {
		if u, err := url.Parse(t.ControlURL); err != nil || u.Host == "" || u.Scheme != "https" && u.Scheme != "http" {
			bad("tailnet.controlURL: %q is not a URL", t.ControlURL)
		}
	}
	if !filepath.IsAbs(t.StateDir) {
		bad("tailnet.stateDir: %q is not an absolute path", t.StateDir)
	}
	if t.StateSecret != "" && (len(t.StateSecret) > 253 || !subdomain.MatchString(t.StateSecret)) {
		bad("tailnet.stateSecret: %q is not the name of a Secret", t.StateSecret)
	}
	if t.Port == 0 {
		bad("tailnet.port is 0")
	}
	if d := time.Duration(t.JoinTimeout); d != 0 && (d < time.Second || d > time.Hour) {
		bad("tailnet.joinTimeout: %v; 1s to 1h", d)
	}
	return errs
}

// CA returns the certificates by which people's kubectl knows the API server, as PEM.
func (c Cluster) CA() ([]byte, error) {
	b, from := []byte(c.CAData), "cluster.caData"
	switch {
	case c.CAFile != "" && c.CAData != "":
		return nil, errors.New("cluster.caFile and cluster.caData are both set; keep one")
	case c.CAFile != "":
		var err error
		if b, err = os.ReadFile(c.CAFile); err != nil {
			return nil, fmt.Errorf("cluster.caFile: %w", err)
		}
		from = "cluster.caFile"
	case c.CAData == "":
		return nil, errors.New("cluster.caFile is missing: the certificate authority of the API server, as PEM")
	}
	rest, n := b, 0
	for {
		var block *pem.Block
		if block, rest = pem.Decode(rest); block == nil {
			break
		}
		if block.Type != "CERTIFICATE" {
			return nil, fmt.Errorf("%s holds a %s; only certificates belong there", from, block.Type)
		}
		if _, err := x509.ParseCertificate(block.Bytes); err != nil {
			return nil, fmt.Errorf("%s: certificate %d: %w", from, n+1, err)
		}
		n++
	}
	if n == 0 || len(bytes.TrimSpace(rest)) > 0 {
		return nil, fmt.Errorf("%s is not a list of PEM certificates", from)
	}
	return b, nil
}

// Warnings are what is allowed but worth a line at the start.
func (f File) Warnings() (w []string) {
	if u, err := url.Parse(f.Cluster.Server); err == nil {
		if ip := net.ParseIP(u.Hostname()); ip != nil && ip.IsLoopback() || u.Hostname() == "localhost" {
			w = append(w, "cluster.server is a loopback address: only people on this machine can use it")
		}
	}
	if f.Cluster.InsecureSkipTLSVerify {
		w = append(w, "cluster.insecureSkipTLSVerify is set: people's kubectl will not know whom it sends its token to")
	}
	for _, r := range f.Signin.Roles {
		if strings.HasPrefix(r, "system:") || r == "cluster-admin" {
			w = append(w, fmt.Sprintf("signin.roles allows %q", r))
		}
	}
	if len(f.Signin.TokenAudiences) > 0 {
		w = append(w, "signin.tokenAudiences is set: whoever else takes one of these audiences can pose as the person, so only the API server's own belong there")
	}
	if !f.Signin.RequireAdmissionPolicy {
		w = append(w, "signin.requireAdmissionPolicy is false: whoever can create a TkaSignin chooses its role")
	}
	return w
}

// AccessPolicy returns what access.Decide needs to know of the file.
func (f File) AccessPolicy() access.Policy {
	p := access.Policy{Capability: f.Signin.Capability, Min: time.Duration(f.Signin.Period.Min), Max: time.Duration(f.Signin.Period.Max),
		Reserved: []string{f.Signin.Namespace, f.Signin.SystemNamespace}, Members: f.Gossip.members()}
	for _, r := range f.Signin.Roles {
		if !slices.Contains(p.Roles, access.Role(r)) {
			p.Roles = append(p.Roles, access.Role(r))
		}
	}
	return p
}
