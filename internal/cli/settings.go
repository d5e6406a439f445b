package cli

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/fault"
	"github.com/tailplane/tailplane/internal/cli/ownfile"
	"github.com/tailplane/tailplane/internal/cli/screen"
	"github.com/tailplane/tailplane/internal/cli/yamltree"
	"github.com/tailplane/tailplane/internal/door"
)

// settings are what config.yaml says, over the defaults.
type settings struct {
	Server          string // name or URL of the access server
	Cluster         string // the one that is meant when neither it nor a server is named
	Port            int    // of servers that are given by name only
	Prefix          string // of context names
	Output          string // form of answers
	CredentialCache string // where tokens are kept: cacheAuto or cacheNone
	Servers         []serverSetting
}

// A serverSetting says more about one server than its name.
type serverSetting struct {
	Name         string
	URL          string
	Key          door.PublicKey // by which it proves itself; none: taken on trust at first contact
	InsecureHTTP bool           // http:// is accepted: WireGuard encrypts, but nothing proves the server's name
}

func defaults() settings {
	return settings{Server: "tka", Port: 443, Prefix: "tka-", Output: screen.Table, CredentialCache: cacheAuto}
}

// What credentialCache can be.
const (
	cacheAuto = "auto"
	cacheNone = "none"
)

// A settingKey is one setting of a single value, for the file and for the command.
type settingKey struct {
	name, doc string
	get       func(*settings) string
	set       func(*settings, string) error
}

var prefixForm = regexp.MustCompile(`^[a-z0-9]([a-z0-9.-]{0,60})$`)

func settingKeys() []settingKey {
	return []settingKey{
		{"server", "access server to use: a name in the tailnet, an address or a URL",
			func(s *settings) string { return s.Server },
			func(s *settings, v string) error {
				if v == "" {
					return errors.New("is empty")
				}
				s.Server = v
				return nil
			}},
		{"cluster", "cluster to use when neither it nor a server is named",
			func(s *settings) string { return s.Cluster },
			func(s *settings, v string) error {
				if v != "" && !clusterForm.MatchString(v) {
					return fmt.Errorf("is %q, which is not the name of a cluster", v)
				}
				s.Cluster = v
				return nil
			}},
		{"port", "port of servers that are given by name only",
			func(s *settings) string { return strconv.Itoa(s.Port) },
			func(s *settings, v string) error {
				n, err := strconv.ParseUint(v, 10, 16)
				if err != nil || n == 0 {
					return fmt.Errorf("is %q, which is not a port", v)
				}
				s.Port = int(n)
				return nil
			}},
		{"prefix", "what the names of contexts begin with",
			func(s *settings) string { return s.Prefix },
			func(s *settings, v string) error {
				if !prefixForm.MatchString(v) {
					return fmt.Errorf("is %q; it needs to begin with a small letter or a digit and have no others than these, \"-\" and \".\"", v)
				}
				s.Prefix = v
				return nil
			}},
		{"output", "form of answers: " + strings.Join(screen.Forms(), ", "),
			func(s *settings) string { return s.Output },
			func(s *settings, v string) error {
				if !slices.Contains(screen.Forms(), v) {
					return fmt.Errorf("is %q; it can be %s", v, strings.Join(screen.Forms(), ", "))
				}
				s.Output = v
				return nil
			}},
		{"credentialCache", "where tokens are kept for kubectl: auto (memory where there is a place, else disk) or none",
			func(s *settings) string { return s.CredentialCache },
			func(s *settings, v string) error {
				if v != cacheAuto && v != cacheNone {
					return fmt.Errorf("is %q; it can be %s or %s", v, cacheAuto, cacheNone)
				}
				s.CredentialCache = v
				return nil
			}},
	}
}

// serverKeys are the settings of one server.
func serverKeys() []string { return []string{"name", "url", "key", "insecureHTTP"} }

func (e *serverSetting) set(key, v string) error {
	switch key {
	case "name":
		if !hostForm.MatchString(v) {
			return fmt.Errorf("is %q, which is not a name", v)
		}
		e.Name = v
	case "url":
		if _, err := parseURL(v, true); err != nil {
			return fmt.Errorf("is %q: %w", v, err)
		}
		e.URL = v
	case "key":
		key, err := door.ParsePublicKey(v)
		if err != nil {
			return fmt.Errorf("is no key: %w", err)
		}
		e.Key = key
	case "insecureHTTP":
		if v != "true" && v != "false" {
			return fmt.Errorf("is %q; it can be true or false", v)
		}
		e.InsecureHTTP = v == "true"
	}
	return nil
}

// settings reads the settings file once. Mistakes in it are the user's: exit 2.
func (t *tka) settings() (*settings, error) {
	if t.loaded != nil {
		return t.loaded, nil
	}
	path, err := t.configFile()
	if err != nil {
		return nil, err
	}
	text, err := readSettings(path)
	if errors.Is(err, fs.ErrNotExist) && t.config != "" {
		return nil, fault.Usage("there is no settings file %s", path).Because(err)
	}
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return nil, fault.Usage("the settings cannot be read: %v", err).Because(err)
	}
	set, err := parseSettings(text)
	if err != nil {
		return nil, fault.Usage("%s %v", path, err).Try("See the keys: tka config --help").Because(err)
	}
	t.loaded = &set
	return t.loaded, nil
}

func readSettings(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return ownfile.ReadAll(f, path)
}

// parseSettings reads config.yaml strictly: a key that is not known, given
// twice or of the wrong form is an error that names its line.
func parseSettings(text []byte) (settings, error) {
	set := defaults()
	var doc yaml.Node
	if err := yaml.Unmarshal(text, &doc); err != nil {
		return set, fmt.Errorf("is not YAML: %v", strings.TrimPrefix(err.Error(), "yaml: "))
	}
	if len(doc.Content) == 0 || yamltree.IsNull(doc.Content[0]) {
		return set, nil
	}
	keys := settingKeys()
	var names []string
	for _, k := range keys {
		names = append(names, k.name)
	}
	names = append(names, "servers")
	err := eachPair(doc.Content[0], names, func(key string, value *yaml.Node) error {
		if key == "servers" {
			return set.parseServers(value)
		}
		k := keys[slices.IndexFunc(keys, func(k settingKey) bool { return k.name == key })]
		if value.Kind != yaml.ScalarNode || yamltree.IsNull(value) {
			return fmt.Errorf("line %d: %s is not a single value", value.Line, key)
		}
		if err := k.set(&set, value.Value); err != nil {
			return fmt.Errorf("line %d: %s %w", value.Line, key, err)
		}
		return nil
	})
	return set, err
}

func (s *settings) parseServers(list *yaml.Node) error {
	if yamltree.IsNull(list) {
		return nil
	}
	if list.Kind != yaml.SequenceNode {
		return fmt.Errorf("line %d: servers is not a list", list.Line)
	}
	for _, item := range list.Content {
		var e serverSetting
		err := eachPair(item, serverKeys(), func(key string, value *yaml.Node) error {
			if value.Kind != yaml.ScalarNode || yamltree.IsNull(value) {
				return fmt.Errorf("line %d: %s is not a single value", value.Line, key)
			}
			if err := e.set(key, value.Value); err != nil {
				return fmt.Errorf("line %d: %s %w", value.Line, key, err)
			}
			return nil
		})
		switch {
		case err != nil:
			return err
		case e.Name == "":
			return fmt.Errorf("line %d: this server has no name", item.Line)
		case e.InsecureHTTP && !strings.HasPrefix(e.URL, "http://"):
			return fmt.Errorf("line %d: insecureHTTP says nothing about the server %s, whose url is not http://", item.Line, e.Name)
		case s.named(e.Name) != nil:
			return fmt.Errorf("line %d: there are two servers called %s", item.Line, e.Name)
		}
		s.Servers = append(s.Servers, e)
	}
	return nil
}

// named is what is said about a server of that name, or nil.
func (s *settings) named(name string) *serverSetting {
	for i := range s.Servers {
		if s.Servers[i].Name == name {
			return &s.Servers[i]
		}
	}
	return nil
}

// keyOf is the key that the settings give for the server at base.
func (s *settings) keyOf(base string) (key door.PublicKey) {
	for _, e := range s.Servers {
		if at, err := s.address(e.Name); err == nil && at == base && !e.Key.IsZero() {
			return e.Key
		}
	}
	return key
}

// insecureAllowed reports whether the settings allow http:// for this URL.
func (s *settings) insecureAllowed(base string) bool {
	return slices.ContainsFunc(s.Servers, func(e serverSetting) bool {
		u, err := parseURL(e.URL, true)
		return err == nil && e.InsecureHTTP && u == base
	})
}

// eachPair calls f for each pair of a mapping whose keys are all known, given
// once and no aliases.
func eachPair(m *yaml.Node, known []string, f func(key string, value *yaml.Node) error) error {
	if m.Kind != yaml.MappingNode {
		return fmt.Errorf("line %d: there should be pairs of key and value", m.Line)
	}
	seen := map[string]bool{}
	for i := 0; i+1 < len(m.Content); i += 2 {
		key, value := m.Content[i], m.Content[i+1]
		switch {
		case key.Kind != yaml.ScalarNode || !slices.Contains(known, key.Value):
			err := fmt.Errorf("line %d: %.60q is not a setting", key.Line, key.Value)
			if near := nearest(key.Value, known); near != "" {
				err = fmt.Errorf("%w; did you mean %q?", err, near)
			}
			return err
		case seen[key.Value]:
			return fmt.Errorf("line %d: %q is given twice", key.Line, key.Value)
		case value.Kind == yaml.AliasNode:
			return fmt.Errorf("line %d: %q is an alias, which is not followed", value.Line, key.Value)
		}
		seen[key.Value] = true
		if err := f(key.Value, value); err != nil {
			return err
		}
	}
	return nil
}
