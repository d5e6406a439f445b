package settings

// ProxyPolicy are the rules of the access proxy. Package accessproxy/policy compiles them.
type ProxyPolicy struct {
	Rules []ProxyRule `yaml:"rules,omitempty"`
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
