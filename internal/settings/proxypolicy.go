package settings

import "slices"

// ProxyPolicy are the rules of the access proxy. Package accessproxy/policy compiles them.
type ProxyPolicy struct {
	Rules []ProxyRule `yaml:"rules,omitempty"`
	// AllowTokenMode accepts that a caller with a token of its own goes past the rules to the API server, wherever the
	// network allows it.
	AllowTokenMode bool `yaml:"allowTokenMode,omitempty"`
}

// enforces reports whether a rule refuses requests, requires a reason or records streams.
func (p ProxyPolicy) enforces() bool {
	return slices.ContainsFunc(p.Rules, func(r ProxyRule) bool { return r.Deny != "" || r.RequireReason || len(r.Record) > 0 })
}

// A ProxyRule is a rule of the access proxy. docs/access-proxy-policy.md describes it. Its fields are those of the type Rule
// of package accessproxy/policy.
type ProxyRule struct {
	Name          string   `yaml:"name"`
	When          string   `yaml:"when"`
	Deny          string   `yaml:"deny,omitempty"`
	RequireReason bool     `yaml:"requireReason,omitempty"`
	Record        []string `yaml:"record,omitempty"`
	Required      *bool    `yaml:"required,omitempty"`
	Warn          string   `yaml:"warn,omitempty"`
}
