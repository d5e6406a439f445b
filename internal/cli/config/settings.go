// Package config reads and writes tka's two files: config.yaml, which a person writes, and servers.yaml, which tka writes. It keeps law 7:
// a setting that it cannot interpret is an error that names its line, and it uses nothing from a damaged file.
package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/dialpolicy"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/util/yamledit"
)

// Settings are the content of config.yaml, with defaults.
type Settings struct {
	Server          string           `json:"server"`          // name or URL of the access server
	Cluster         string           `json:"cluster"`         // used if the command names neither a cluster nor a server
	Port            int              `json:"port"`            // of servers given only by name
	Prefix          string           `json:"prefix"`          // of context names
	Output          string           `json:"output"`          // output format
	CredentialCache string           `json:"credentialCache"` // whether tka caches tokens: cacheAuto or CacheNone
	PlaneURL        string           `json:"-"`               // of the operator plane; "": none
	RecorderURL     string           `json:"-"`               // of the recorder of sessions; "": none
	Servers         []ServerSettings `json:"servers"`
}

// ServerSettings holds the settings of one server.
type ServerSettings struct {
	Name         string            `json:"name"`
	URL          string            `json:"url"`
	Key          httpapi.PublicKey `json:"key"`          // the server must prove it; zero: trusted at first contact
	InsecureHTTP bool              `json:"insecureHTTP"` // allows http://: WireGuard encrypts, but nothing proves the server's name
}

// defaults returns the settings of an empty file.
func defaults() Settings {
	return Settings{Server: "tka", Port: 443, Prefix: "tka-", Output: output.Table, CredentialCache: cacheAuto}
}

// The values of credentialCache.
const (
	cacheAuto = "auto"
	CacheNone = "none"
)

// A Setting is a setting with a single value, for the file and for the command.
type Setting struct {
	Name, Doc string
	Get       func(*Settings) string
}

// AllSettings returns the settings with a single value.
func AllSettings() []Setting {
	return []Setting{
		{"server", "access server to use: a name in the tailnet, an address or a URL", func(s *Settings) string { return s.Server }},
		{"cluster", "cluster to use if the command line selects neither a cluster nor a server", func(s *Settings) string { return s.Cluster }},
		{"port", "port of servers that have only a name", func(s *Settings) string { return strconv.Itoa(s.Port) }},
		{"prefix", "prefix of context names", func(s *Settings) string { return s.Prefix }},
		{"output", "output format: " + strings.Join(output.Formats(), ", "), func(s *Settings) string { return s.Output }},
		{"credentialCache", "where tka caches tokens for kubectl: auto (in memory if possible, else on disk) or none",
			func(s *Settings) string { return s.CredentialCache }},
		{"plane.url", "URL of the operator plane, for tka mcp", func(s *Settings) string { return s.PlaneURL }},
		{"recorder.url", "URL of the recorder of sessions, for tka recordings and tka play", func(s *Settings) string { return s.RecorderURL }},
	}
}

// SettingNames returns the names of the settings with a single value.
func SettingNames() (names []string) {
	for _, k := range AllSettings() {
		names = append(names, k.Name)
	}
	return names
}

// A ServerSetting is a setting of one server.
type ServerSetting struct{ Name, Doc string }

// AllServerSettings returns the settings of one server. The first one, its name, is required.
func AllServerSettings() []ServerSetting {
	return []ServerSetting{
		{"name", "name of the server; without a url, also its host"},
		{"url", "URL of the server with that name"},
		{"key", "key with which the server proves its identity, \"ed25519:...\"; without it, tka trusts the key at first contact"},
		{"insecureHTTP", "true: this server may use http://, inside the tailnet"},
	}
}

// serverSettingNames returns the names of the settings of one server.
func serverSettingNames() (names []string) {
	for _, s := range AllServerSettings() {
		names = append(names, s.Name)
	}
	return names
}

var prefixPattern = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,60})$`)

// set sets the setting with a single value called key. After an error, the settings must not be used.
func (s *Settings) set(key, v string) error {
	switch key {
	case "server":
		s.Server = v
		return invalidIf(v == "", "is empty")
	case "cluster":
		s.Cluster = v
		return invalidIf(v != "" && !dialpolicy.IsClusterName(v), "is %q, which is not the name of a cluster", v)
	case "port":
		n, err := strconv.ParseUint(v, 10, 16)
		s.Port = int(n)
		return invalidIf(err != nil || n == 0, "is %q, which is not a port", v)
	case "prefix":
		s.Prefix = v
		return invalidIf(!prefixPattern.MatchString(v),
			"is %q; it must begin with a lower-case letter or a digit and contain only lower-case letters, digits, \"-\" and \".\"", v)
	case "output":
		s.Output = v
		return invalidIf(!slices.Contains(output.Formats(), v), "is %q; it must be one of %s", v, strings.Join(output.Formats(), ", "))
	case "credentialCache":
		s.CredentialCache = v
		return invalidIf(v != cacheAuto && v != CacheNone, "is %q; it must be %s or %s", v, cacheAuto, CacheNone)
	case "plane.url":
		s.PlaneURL = v
		if v != "" {
			return checkURL(v)
		}
	case "recorder.url":
		s.RecorderURL = v
		if v != "" {
			return checkURL(v)
		}
	}
	return nil
}

// set sets one of serverSettingNames. After an error, the settings must not be used.
func (e *ServerSettings) set(key, v string) (err error) {
	switch key {
	case "name":
		e.Name = v
		return invalidIf(!dialpolicy.IsHostName(v), "is %q, which is not a name", v)
	case "url":
		e.URL = v
		return checkURL(v)
	case "key":
		if e.Key, err = httpapi.ParsePublicKey(v); err != nil {
			return fmt.Errorf("is not a key: %w", err)
		}
	case "insecureHTTP":
		e.InsecureHTTP = v == "true"
		return invalidIf(v != "true" && v != "false", "is %q; it must be true or false", v)
	}
	return nil
}

// invalidIf returns an error if the condition holds. The text follows the name of the setting.
func invalidIf(condition bool, format string, args ...any) error {
	if !condition {
		return nil
	}
	return fmt.Errorf(format, args...)
}

func checkURL(v string) error {
	if _, err := dialpolicy.ParseURL(v, true); err != nil {
		return fmt.Errorf("is %q: %w", dialpolicy.RedactURL(v), err)
	}
	return nil
}

// ErrUpstream reports that a settings file belongs to the tka of SpechtLabs, which has the same path.
var ErrUpstream = errors.New("belongs to the tka of SpechtLabs")

// upstreamSections are keys of the settings of upstream's tka that are no settings here: docs/reference/configuration.md of SpechtLabs/tka.
var upstreamSections = []string{"tailscale", "api", "operator", "otel", "debug", "health", "gossip"}

// isUpstream reports whether a file has a section of upstream's settings, and no setting that only this program has. "server" and "output" are
// sections there and single values here.
func isUpstream(top *yaml.Node) bool {
	if top.Kind != yaml.MappingNode {
		return false
	}
	theirs := false
	for i := 0; i+1 < len(top.Content); i += 2 {
		key, value := top.Content[i].Value, top.Content[i+1]
		switch {
		case slices.Contains(upstreamSections, key), (key == "server" || key == "output") && value.Kind == yaml.MappingNode:
			theirs = true
		case key == "servers" || slices.Contains(SettingNames(), key):
			return false
		}
	}
	return theirs
}

// Parse parses config.yaml strictly. A key that is unknown, duplicate or of the wrong form is an error that names its line.
func Parse(text []byte) (Settings, error) {
	set := defaults()
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return set, fmt.Errorf("is not YAML: %v", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 || yamledit.IsNull(doc.Content[0]) {
		return set, nil
	}
	if isUpstream(doc.Content[0]) {
		return set, ErrUpstream
	}
	err := forEachPair(doc.Content[0], append(SettingNames(), "servers"), func(key string, value *yaml.Node) error {
		if key == "servers" {
			return set.parseServers(value)
		}
		return setScalar(key, value, set.set)
	})
	return set, err
}

// setScalar calls set with a single value, and adds the line to its error.
func setScalar(key string, value *yaml.Node, set func(key, v string) error) error {
	if value.Kind != yaml.ScalarNode || yamledit.IsNull(value) {
		return fmt.Errorf("line %d: %s is not a single value", value.Line, key)
	}
	if err := set(key, value.Value); err != nil {
		return fmt.Errorf("line %d: %s %w", value.Line, key, err)
	}
	return nil
}

func (s *Settings) parseServers(list *yaml.Node) error {
	if yamledit.IsNull(list) {
		return nil
	}
	if list.Kind != yaml.SequenceNode {
		return fmt.Errorf("line %d: servers is not a list", list.Line)
	}
	for _, item := range list.Content {
		var e ServerSettings
		err := forEachPair(item, serverSettingNames(), func(key string, value *yaml.Node) error { return setScalar(key, value, e.set) })
		switch {
		case err != nil:
			return err
		case e.Name == "":
			return fmt.Errorf("line %d: this server has no name", item.Line)
		case e.InsecureHTTP && !strings.HasPrefix(e.URL, "http://"):
			return fmt.Errorf("line %d: insecureHTTP has no effect on the server %s, whose url is not http://", item.Line, e.Name)
		case s.server(e.Name) != nil:
			return fmt.Errorf("line %d: two servers have the name %s", item.Line, e.Name)
		}
		s.Servers = append(s.Servers, e)
	}
	return nil
}

// server returns the settings of the server with that name, or nil.
func (s *Settings) server(name string) *ServerSettings {
	if i := slices.IndexFunc(s.Servers, func(e ServerSettings) bool { return e.Name == name }); i >= 0 {
		return &s.Servers[i]
	}
	return nil
}

// KeyFor returns the key in the settings for the server at base.
func (s *Settings) KeyFor(base string) (key httpapi.PublicKey) {
	for _, e := range s.Servers {
		if at, err := s.Address(e.Name); err == nil && at == base && !e.Key.IsZero() {
			return e.Key
		}
	}
	return key
}

// Address returns the base URL of the server called name. The name is one of the settings, a URL, or the name or address of a host. For a
// host, Address uses https. The error is [dialpolicy.ErrInsecure] for an http:// URL that the settings do not allow.
func (s *Settings) Address(name string) (string, error) { return s.address(name, false) }

// AddressOfPinned is Address for a server whose key is known, from a verified record, an earlier contact or the person. It allows http://,
// because the server must prove its key before tka sends it anything, and the dialer stays within the tailnet.
func (s *Settings) AddressOfPinned(name string) (string, error) { return s.address(name, true) }

func (s *Settings) address(name string, pinned bool) (string, error) {
	if e := s.server(name); e != nil && e.URL != "" {
		return dialpolicy.ParseURL(e.URL, pinned || e.InsecureHTTP || !e.Key.IsZero())
	}
	if strings.Contains(name, "://") {
		base, err := dialpolicy.ParseURL(name, true)
		if err == nil && strings.HasPrefix(base, "http://") && !pinned && !s.insecureAllowed(base) {
			return "", dialpolicy.ErrInsecure
		}
		return base, err
	}
	host, port := name, strconv.Itoa(s.Port)
	if addr, err := netip.ParseAddr(name); err == nil && addr.Is6() {
		host = "[" + name + "]"
	} else if h, p, err := net.SplitHostPort(name); err == nil {
		host, port = h, p
		if strings.Contains(h, ":") {
			host = "[" + h + "]"
		}
	}
	return dialpolicy.ParseURL("https://"+host+":"+port, false)
}

// Lists reports whether the settings give the URL of a server with this name.
func (s *Settings) Lists(name string) bool { e := s.server(name); return e != nil && e.URL != "" }

// insecureAllowed reports whether the settings allow http:// for this URL.
func (s *Settings) insecureAllowed(base string) bool {
	return slices.ContainsFunc(s.Servers, func(e ServerSettings) bool {
		u, err := dialpolicy.ParseURL(e.URL, true)
		return err == nil && e.InsecureHTTP && u == base
	})
}

// forEachPair calls f for each pair of a mapping. It returns an error for an unknown or duplicate key and for an alias.
func forEachPair(m *yaml.Node, known []string, f func(key string, value *yaml.Node) error) error {
	if m.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: expected pairs of key and value", m.Line)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value):
			return fmt.Errorf("line %d: %.60q is not a setting%s", key.Line, key.Value, output.DidYouMean("%q", key.Value, known))
		case seen[key.Value]:
			return fmt.Errorf("line %d: %q occurs twice", key.Line, key.Value)
		case value.Kind == yaml.AliasNode:
			return fmt.Errorf("line %d: %q is a YAML alias, which tka does not support", value.Line, key.Value)
		}
		seen[key.Value] = true
		if err := f(key.Value, value); err != nil {
			return err
		}
	}
	return nil
}

// An UnknownSettingError reports an unknown setting.
type UnknownSettingError struct {
	Key   string
	known []string // names to suggest
}

func (e *UnknownSettingError) Error() string {
	return fmt.Sprintf("%q is not a setting%s", e.Key, output.DidYouMean("%q", e.Key, e.known))
}

// UnknownSetting returns the error for a key that is neither a setting nor one of names.
func UnknownSetting(key string, names ...string) *UnknownSettingError {
	return &UnknownSettingError{key, append(names, SettingNames()...)}
}

// Set returns the text of a settings file with one value set and the rest unchanged. The error is a *UnknownSettingError, or describes what
// is wrong with the value.
func Set(text []byte, key, value string) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); errors.Is(err, io.EOF) || err == nil && yamledit.IsNull(doc.Content[0]) {
		doc = yaml.Node{Kind: yaml.DocumentNode, HeadComment: strings.TrimSpace(string(text)), Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	} else if err != nil {
		return nil, err
	}
	m, last := doc.Content[0], key
	if rest, ok := strings.CutPrefix(key, "servers."); ok {
		dot := strings.LastIndex(rest, ".")
		if dot < 0 || !slices.Contains(serverSettingNames(), rest[dot+1:]) || rest[dot+1:] == "name" {
			return nil, UnknownSetting(key, "servers.NAME.url", "servers.NAME.key", "servers.NAME.insecureHTTP")
		}
		last = rest[dot+1:]
		if err := new(ServerSettings).set(last, value); err != nil {
			return nil, fmt.Errorf("%s %w", key, err)
		}
		m = ensureServerNode(m, rest[:dot])
	} else {
		if !slices.Contains(SettingNames(), key) {
			return nil, UnknownSetting(key)
		}
		if err := new(Settings).set(key, value); err != nil {
			return nil, fmt.Errorf("%s %w", key, err)
		}
	}
	node := &yaml.Node{Kind: yaml.ScalarNode, Value: value} // untagged: a number stays a number
	if last != "port" && last != "insecureHTTP" {
		node.Tag = "!!str"
	}
	yamledit.Set(m, last, node)
	return yamledit.Encode(&doc, true)
}

// ensureServerNode returns the mapping of one server in the settings and creates it if needed.
func ensureServerNode(top *yaml.Node, name string) *yaml.Node {
	list := yamledit.Child(top, "servers")
	if list == nil || list.Kind != yaml.SequenceNode {
		list = &yaml.Node{Kind: yaml.SequenceNode}
		yamledit.Set(top, "servers", list)
	}
	for _, item := range list.Content {
		if n := yamledit.Child(item, "name"); n != nil && n.Value == name {
			return item
		}
	}
	if len(list.Content) == 0 {
		list.Style = 0
	}
	item := yamledit.Mapping("name", yamledit.Scalar(name))
	list.Content = append(list.Content, item)
	return item
}
