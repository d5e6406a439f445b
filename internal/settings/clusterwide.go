package settings

import (
	"fmt"
	"slices"

	"go.yaml.in/yaml/v3"
)

// ClusterWide is a list of roles. An empty list allows none; nil means that the setting is absent.
type ClusterWide []ClusterWideRole

// IsZero implements [yaml.IsZeroer]: an empty list is a setting.
func (c ClusterWide) IsZero() bool { return c == nil }

// A ClusterWideRole is the name of a role, or {role: NAME, by: request}: only for approved access
// requests.
type ClusterWideRole struct {
	Role string `yaml:"role"`
	By   string `yaml:"by,omitempty"`
}

// UnmarshalYAML implements [yaml.Unmarshaler].
func (r *ClusterWideRole) UnmarshalYAML(n *yaml.Node) error {
	if n.Kind == yaml.ScalarNode {
		return n.Decode(&r.Role)
	}
	for i := 0; n.Kind == yaml.MappingNode && i+1 < len(n.Content); i += 2 {
		if key := n.Content[i].Value; key != "role" && key != "by" {
			return fmt.Errorf("line %d: %.40q is not a setting of an entry of signin.clusterWide", n.Content[i].Line, key)
		}
	}
	type plain ClusterWideRole
	return n.Decode((*plain)(r))
}

// MarshalYAML implements [yaml.Marshaler].
func (r ClusterWideRole) MarshalYAML() (any, error) {
	if r.By == "" {
		return r.Role, nil
	}
	type plain ClusterWideRole
	return plain(r), nil
}

func (c ClusterWide) validate(v *validation, roles []string) {
	for i, r := range c {
		v.failIf(!slices.Contains(roles, r.Role), "signin.clusterWide: signin.roles does not list %q", r.Role)
		v.failIf(r.By != "" && r.By != "request", "signin.clusterWide: by: %q is not request", r.By)
		v.failIf(slices.ContainsFunc(c[:i], func(o ClusterWideRole) bool { return o.Role == r.Role }), "signin.clusterWide lists %q twice", r.Role)
	}
}
