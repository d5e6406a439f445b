package memory

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"github.com/tailplane/tailplane/internal/cli/spelling"
	"github.com/tailplane/tailplane/internal/cli/yamltree"
)

// A NoKey reports an unknown setting.
type NoKey struct {
	Key  string
	Near string // the nearest known name; "": none is near
}

func (e *NoKey) Error() string {
	if e.Near == "" {
		return fmt.Sprintf("%q is not a setting", e.Key)
	}
	return fmt.Sprintf("%q is not a setting; did you mean %q?", e.Key, e.Near)
}

// Unknown returns the error for a key that is neither a setting nor one of names.
func Unknown(key string, names ...string) *NoKey {
	for _, k := range Keys() {
		names = append(names, k.Name)
	}
	return &NoKey{key, spelling.Nearest(key, names)}
}

// Set returns the text of a settings file with one value set and the rest unchanged. The error is a *NoKey, or describes what is wrong with
// the value.
func Set(text []byte, key, value string) ([]byte, error) {
	var doc yaml.Node
	if err := yaml.NewDecoder(bytes.NewReader(text)).Decode(&doc); errors.Is(err, io.EOF) || err == nil && yamltree.IsNull(doc.Content[0]) {
		doc = yaml.Node{Kind: yaml.DocumentNode, HeadComment: strings.TrimSpace(string(text)), Content: []*yaml.Node{{Kind: yaml.MappingNode}}}
	} else if err != nil {
		return nil, err
	}
	m, last := doc.Content[0], key
	if rest, ok := strings.CutPrefix(key, "servers."); ok {
		dot := strings.LastIndex(rest, ".")
		if dot < 0 || !slices.Contains(serverKeys(), rest[dot+1:]) || rest[dot+1:] == "name" {
			return nil, Unknown(key, "servers.NAME.url", "servers.NAME.key", "servers.NAME.insecureHTTP")
		}
		last = rest[dot+1:]
		if err := new(Server).set(last, value); err != nil {
			return nil, fmt.Errorf("%s %w", key, err)
		}
		m = serverNode(m, rest[:dot])
	} else {
		keys := Keys()
		i := slices.IndexFunc(keys, func(k Key) bool { return k.Name == key })
		if i < 0 {
			return nil, Unknown(key)
		}
		if err := keys[i].set(new(Settings), value); err != nil {
			return nil, fmt.Errorf("%s %w", key, err)
		}
	}
	node := &yaml.Node{Kind: yaml.ScalarNode, Value: value} // untagged: a number stays a number
	if last != "port" && last != "insecureHTTP" {
		node.Tag = "!!str"
	}
	yamltree.Set(m, last, node)
	return yamltree.Encode(&doc, true)
}

// serverNode returns the mapping of one server in the settings and creates it if needed.
func serverNode(top *yaml.Node, name string) *yaml.Node {
	list := yamltree.Child(top, "servers")
	if list == nil || list.Kind != yaml.SequenceNode {
		list = &yaml.Node{Kind: yaml.SequenceNode}
		yamltree.Set(top, "servers", list)
	}
	for _, item := range list.Content {
		if n := yamltree.Child(item, "name"); n != nil && n.Value == name {
			return item
		}
	}
	if len(list.Content) == 0 {
		list.Style = 0
	}
	item := yamltree.Mapping("name", yamltree.Scalar(name))
	list.Content = append(list.Content, item)
	return item
}
