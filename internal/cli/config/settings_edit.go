package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/util/yamledit"
)

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
