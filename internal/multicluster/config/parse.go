package config

import (
	"net/url"
	"path"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"time"

	"go.yaml.in/yaml/v3"
	"k8s.io/apimachinery/pkg/labels"
)

// The forms of names. The readers also limit the lengths.
var (
	dnsLabel  = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?$`)
	dnsName   = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)
	groupForm = regexp.MustCompile(`^(\*|[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*)?$`)
	plainText = regexp.MustCompile(`^[\x20-\x7e]+$`)
	uidForm   = regexp.MustCompile(`^[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}$`)
)

// maxRules limits the number of rules; a ConfigMap hardly has room for more.
const maxRules = 5000

// Parse parses a configuration. The error is an *[InvalidError] with all errors. The findings are warnings about
// settings that are allowed but rarely intended.
func Parse(b []byte) (*Config, []Diagnostic, error) {
	p := &parser{config: newConfig(), at: map[elementKey]*yaml.Node{}}
	if root := p.root(b); root != nil {
		p.parseRoot(root)
		p.check(root)
	}
	if err := p.result(); err != nil {
		return nil, nil, err
	}
	p.checkAdvice()
	return p.config, p.warnings, nil
}

// parser builds a configuration. It records the positions of nodes for checks of the whole file.
type parser struct {
	yamlReader
	config *Config
	home   *yaml.Node
	at     map[elementKey]*yaml.Node
}

// elementKey identifies a node for later checks.
type elementKey struct {
	list  string
	index int
	field string
}

func (p *parser) parseRoot(root *yaml.Node) {
	var version, kind string
	keys := p.mapping(root, "the configuration", map[string]fieldFunc{
		"apiVersion":        enum(&p.yamlReader, "apiVersion", &version, APIVersion),
		"kind":              enum(&p.yamlReader, "kind", &kind, Kind),
		"epoch":             p.number("epoch", 1, MaxEpoch, func(v int64) { p.config.Epoch = v }),
		"home":              func(n *yaml.Node) { p.home = n; p.text("home", &p.config.Home)(n) },
		"unmatched":         enum(&p.yamlReader, "unmatched", &p.config.Unmatched, UnmatchedHome, UnmatchedRefuse),
		"clusters":          p.list("clusters", p.cluster),
		"rules":             p.list("rules", p.rule),
		"allNamespaces":     enum(&p.yamlReader, "allNamespaces", &p.config.AllNamespaces, AllNamespacesUnion, AllNamespacesHome),
		"impersonation":     p.permission("impersonation", "allow", &p.config.Impersonation),
		"allowTokenRequest": p.boolean("allowTokenRequest", &p.config.AllowTokenRequest),
		"annotate":          p.boolean("annotate", &p.config.Annotate),
		"audit": func(n *yaml.Node) {
			p.mapping(
				n,
				"audit",
				map[string]fieldFunc{"level": enum(&p.yamlReader, "audit.level", &p.config.Audit.Level, "none", "metadata")},
			)
		},
		"tracing": func(n *yaml.Node) {
			p.mapping(n, "tracing", map[string]fieldFunc{
				"endpoint": p.endpoint(&p.config.Tracing.Endpoint),
				"ratio":    p.fraction("tracing.ratio", 1, &p.config.Tracing.Ratio),
			})
		},
	})
	for _, required := range []string{"apiVersion", "kind", "home", "clusters"} {
		if keys != nil && keys[required] == nil {
			p.fail(root, "the configuration has no %s", required)
		}
	}
}

// permission reads "refuse" or a word that allows it.
func (p *parser) permission(what, allow string, to *bool) fieldFunc {
	return func(n *yaml.Node) {
		s := "refuse"
		enum(&p.yamlReader, what, &s, "refuse", allow)(n)
		*to = s == allow
	}
}

func (p *parser) endpoint(to *string) fieldFunc {
	return func(n *yaml.Node) {
		var s string
		p.text("tracing.endpoint", &s)(n)
		if s == "" {
			return
		}
		u, err := url.Parse(s)
		if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" || u.User != nil || u.RawQuery != "" {
			p.fail(n, "tracing.endpoint is not an http or https URL without a password or a query")
			return
		}
		*to = s
	}
}

func (p *parser) cluster(n *yaml.Node) {
	c := Cluster{Slot: -1, Health: defaultProbe(), Line: n.Line}
	audience := false
	i := len(p.config.Clusters)
	p.at[elementKey{"clusters", i, ""}] = n
	keys := p.mapping(n, "the cluster", map[string]fieldFunc{
		"name":      p.name("the name of the cluster", dnsLabel, 63, "a DNS label", &c.Name),
		"slot":      p.number("slot", 0, Slots-1, func(v int64) { c.Slot = int(v) }),
		"inCluster": p.boolean("inCluster", &c.InCluster),
		"servers": p.list("servers", func(n *yaml.Node) {
			var s string
			p.text("the server", &s)(n)
			p.at[elementKey{"servers", i, s}] = n
			if slices.Contains(c.Servers, s) {
				p.fail(n, "the server is listed twice")
			}
			c.Servers = append(c.Servers, s)
		}),
		"caFile": p.localFile("caFile", &c.CAFile),
		"credentials": func(n *yaml.Node) {
			p.mapping(n, "credentials", map[string]fieldFunc{
				"secret":        p.name("the name of the Secret", dnsName, 253, "the name of a Secret", &c.Secret),
				"audienceToken": p.boolean("audienceToken", &audience),
			})
		},
		"access": func(n *yaml.Node) {
			p.fail(n, "access is not supported yet: the adapter cannot use the credential of a Tailplane access server")
		},
		"uid":           p.name("uid", uidForm, 36, "the UID of a namespace", &c.UID),
		"allowLoopback": p.boolean("allowLoopback", &c.AllowLoopback),
		"limits": func(n *yaml.Node) {
			p.mapping(n, "limits", map[string]fieldFunc{
				"qps":      p.fraction("limits.qps", 1e6, &c.Limits.QPS),
				"burst":    p.number("limits.burst", 1, 1e6, func(v int64) { c.Limits.Burst = int(v) }),
				"inFlight": p.number("limits.inFlight", 1, 1e6, func(v int64) { c.Limits.InFlight = int(v) }),
			})
			if c.Limits.Burst > 0 && c.Limits.QPS == 0 {
				p.fail(n, "limits.burst has no effect without limits.qps")
			}
		},
		"health": func(n *yaml.Node) {
			p.mapping(n, "health", map[string]fieldFunc{
				"path":      p.healthPath(&c.Health.Path),
				"interval":  p.duration("health.interval", time.Second, time.Hour, &c.Health.Interval),
				"timeout":   p.duration("health.timeout", 100*time.Millisecond, time.Minute, &c.Health.Timeout),
				"failures":  p.number("health.failures", 1, 100, func(v int64) { c.Health.Failures = int(v) }),
				"successes": p.number("health.successes", 1, 100, func(v int64) { c.Health.Successes = int(v) }),
			})
		},
	})
	if keys == nil {
		return
	}
	if keys["name"] == nil {
		p.fail(n, "the cluster has no name")
	}
	if keys["slot"] == nil {
		p.fail(n, "the cluster has no slot")
	}
	if c.Name == "merged" {
		p.fail(keys["name"], "the name merged is reserved for the joint answers of several clusters")
	}
	if keys["access"] == nil {
		p.source(n, &c, audience)
	}
	p.config.Clusters = append(p.config.Clusters, c)
}

// source checks that exactly one setting locates the cluster and provides its credential.
func (p *parser) source(n *yaml.Node, c *Cluster, audience bool) {
	switch {
	case c.InCluster && (c.Secret != "" || len(c.Servers) > 0 || c.CAFile != "" || audience || c.AllowLoopback):
		p.fail(n, "the cluster is inCluster, so it uses the address, CA and token of the pod and must not have others")
	case c.InCluster:
	case c.Secret != "" && (len(c.Servers) > 0 || c.CAFile != "" || audience):
		p.fail(
			n,
			"address and CA of the cluster come from the Secret of its credential: this file must not send the credential to another address",
		)
	case c.Secret != "":
	case len(c.Servers) > 0 && !audience:
		p.fail(n, "servers must receive only a token with a separate audience: add credentials: {audienceToken: true}")
	case len(c.Servers) > 0 && c.CAFile == "":
		p.fail(n, "servers need a caFile to verify them")
	case len(c.Servers) > 0:
	case audience:
		p.fail(n, "an audienceToken needs servers that receive it")
	default:
		p.fail(
			n,
			"the cluster needs one of inCluster: true, credentials: {secret: NAME}, or servers with credentials: {audienceToken: true}",
		)
	}
	for _, s := range c.Servers {
		if _, err := CheckServer(s, c.AllowLoopback); err != nil {
			p.fail(p.at[elementKey{"servers", len(p.config.Clusters), s}], "the server is refused: %v", err)
		}
	}
}

func (p *parser) localFile(what string, to *string) fieldFunc {
	return func(n *yaml.Node) {
		var s string
		if p.text(what, &s)(n); s == "" {
			return
		}
		if !filepath.IsLocal(s) || path.Clean(s) != s || strings.ContainsAny(s, "\\\x00") {
			p.fail(n, "%s %.60q is not a plain path below the credentials directory", what, s)
			return
		}
		*to = s
	}
}

func (p *parser) healthPath(to *string) fieldFunc {
	return func(n *yaml.Node) {
		var s string
		p.text("health.path", &s)(n)
		if !strings.HasPrefix(s, "/") || path.Clean(s) != s || strings.ContainsAny(s, "?#%\\") || !plainText.MatchString(s) {
			p.fail(n, "health.path %.60q is not a plain path such as /readyz", s)
			return
		}
		*to = s
	}
}

func (p *parser) rule(n *yaml.Node) {
	if len(p.config.Rules) == maxRules {
		p.fail(n, "there are more than %d rules", maxRules)
	}
	r := Rule{Line: n.Line}
	i := len(p.config.Rules)
	p.at[elementKey{"rules", i, ""}] = n
	keys := p.mapping(n, "the rule", map[string]fieldFunc{
		"name": p.name("the name of the rule", dnsLabel, 63, "a DNS label", &r.Name),
		"match": func(n *yaml.Node) {
			m := p.mapping(n, "match", map[string]fieldFunc{
				"apiGroups": p.list("apiGroups", func(n *yaml.Node) {
					var s string
					p.name("the group", groupForm, 253, `an API group, "" or "*"`, &s)(n)
					r.Match.APIGroups = append(r.Match.APIGroups, s)
				}),
				"resources":  p.list("resources", func(n *yaml.Node) { p.resource(n, &r.Match) }),
				"namespaces": p.patterns("namespaces", &r.Match.Namespaces),
				"names":      p.patterns("names", &r.Match.Names),
				"verbs":      p.list("verbs", func(n *yaml.Node) { p.verb(n, &r.Match) }),
				"userAgents": p.patterns("userAgents", &r.Match.UserAgents),
			})
			for f, n := range m {
				p.at[elementKey{"rules", i, f}] = n
			}
		},
		"target":         func(n *yaml.Node) { p.at[elementKey{"rules", i, "target"}] = n; p.target(n, i, &r.Target) },
		"allowVerbSplit": p.boolean("allowVerbSplit", &r.AllowVerbSplit),
	})
	for _, required := range []string{"name", "target"} {
		if keys != nil && keys[required] == nil {
			p.fail(n, "the rule has no %s", required)
		}
	}
	if slices.Contains(r.Match.APIGroups, "*") {
		r.Match.APIGroups = nil
	}
	if slices.Contains(r.Match.Resources, Resource{Name: "*"}) {
		if len(r.Match.Resources) > 1 {
			p.fail(p.at[elementKey{"rules", i, "resources"}], `resources has "*" and other entries`)
		}
		r.Match.Resources = nil
	}
	p.config.Rules = append(p.config.Rules, r)
}

func (p *parser) resource(n *yaml.Node, m *Match) {
	var s string
	if p.text("the resource", &s)(n); s == "" {
		p.fail(n, "a resource is empty")
		return
	}
	name, sub, nested := strings.Cut(s, "/")
	if s != "*" && (!plainName(name) || nested && !plainName(sub)) {
		p.fail(n, `the resource %.60q is neither "*" nor a plural such as pods, nor a subresource such as pods/log`, s)
		return
	}
	m.Resources = append(m.Resources, Resource{name, sub})
}

// plainName reports whether s can be a resource. Resources of metrics APIs may have other names, but stored
// kinds have names of this form.
func plainName(s string) bool { return len(s) <= 253 && dnsName.MatchString(s) }

// verbs are the Kubernetes verbs for stored objects and reviews.
var verbs = []string{"get", "list", "watch", "create", "update", "patch", "delete", "deletecollection"}

func (p *parser) verb(n *yaml.Node, m *Match) {
	var s string
	p.text("the verb", &s)(n)
	if !slices.Contains(verbs, s) {
		hint := ""
		switch strings.ToUpper(s) {
		case "GET", "HEAD", "POST", "PUT", "OPTIONS":
			hint = ": these are Kubernetes verbs, not HTTP methods"
		}
		p.fail(n, "the verb is %.40q, want one of %v%s", s, verbs, hint)
		return
	}
	m.Verbs = append(m.Verbs, s)
}

func (p *parser) patterns(what string, to *[]Pattern) fieldFunc {
	return p.list(what, func(n *yaml.Node) {
		var s string
		if p.text(what, &s)(n); s == "" {
			p.fail(n, "%s has an empty entry", what)
			return
		}
		pattern, err := ParsePattern(s)
		if err != nil {
			p.fail(n, "%s: %v", what, err)
			return
		}
		*to = append(*to, pattern)
	})
}

func (p *parser) target(n *yaml.Node, i int, t *Target) {
	keys := p.mapping(n, "target", map[string]fieldFunc{
		"cluster":         p.text("target.cluster", &t.Cluster),
		"ownerReferences": enum(&p.yamlReader, "target.ownerReferences", &t.OwnerReferences, FollowOwners, HideOwners, KeepOwners),
		"deny":            p.name("target.deny", plainText, 300, "a sentence of printable characters", &t.Deny),
		"spread":          func(n *yaml.Node) { t.Spread = &Spread{}; p.spread(n, i, t.Spread) },
	})
	if keys == nil {
		return
	}
	ways := 0
	for _, way := range []string{"cluster", "deny", "spread"} {
		if keys[way] != nil {
			ways++
		}
	}
	if ways != 1 {
		p.fail(n, "the target has %d of cluster, spread and deny, want exactly one", ways)
	}
	switch {
	case t.OwnerReferences != "" && t.Cluster == "":
		p.fail(keys["ownerReferences"], "ownerReferences of a target requires cluster")
	case t.Cluster != "" && t.OwnerReferences == "":
		t.OwnerReferences = FollowOwners
	}
}

// readWithout reads onUnavailable.read. Earlier releases also had "stale". It is accepted for one release,
// with a warning, so that an adapter starts with its existing file.
func (p *parser) readWithout(to *string) fieldFunc {
	want := enum(&p.yamlReader, "onUnavailable.read", to, "fail", "skip")
	return func(n *yaml.Node) {
		if n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Value == "stale" {
			*to = "fail"
			p.warn(n.Line, "onUnavailable.read: stale was removed and behaves like fail: a list returns 503 while a member is down. "+
				"The next release rejects it: use fail or skip")
			return
		}
		want(n)
	}
}

func (p *parser) spread(n *yaml.Node, i int, s *Spread) {
	*s = Spread{Strategy: StrategyHash, OwnerReferences: FollowOwners, OnConflict: "reject", Read: "fail", Create: "fail"}
	keys := p.mapping(n, "spread", map[string]fieldFunc{
		"members": p.list("members", func(n *yaml.Node) {
			var m string
			p.text("the member", &m)(n)
			if slices.Contains(s.Members, m) {
				p.fail(n, "the member %.60q is listed twice", m)
			}
			s.Members = append(s.Members, m)
		}),
		"place": p.list("place", func(n *yaml.Node) {
			var at PlaceRule
			keys := p.mapping(
				n,
				"place",
				map[string]fieldFunc{"labels": p.text("labels", &at.Labels), "cluster": p.text("cluster", &at.Cluster)},
			)
			if keys == nil {
				return
			}
			var err error
			if at.Selector, err = labels.Parse(at.Labels); err != nil {
				p.fail(n, "labels is not a selector: %.200v", err)
			} else if at.Selector.Empty() {
				p.fail(n, "place has no labels; it would match all objects")
			}
			p.at[elementKey{"place", i, at.Cluster}] = n
			s.Place = append(s.Place, at)
		}),
		"strategy": enum(&p.yamlReader, "strategy", &s.Strategy, StrategyHash, StrategyWeighted, StrategyRoundRobin, StrategyNone),
		"weights": func(n *yaml.Node) {
			s.Weights = map[string]int{}
			fields := map[string]fieldFunc{}
			for j := 0; n.Kind == yaml.MappingNode && j+1 < len(n.Content); j += 2 {
				name := n.Content[j].Value
				fields[name] = p.number("the weight of "+name, 0, 1e6, func(v int64) { s.Weights[name] = int(v) })
			}
			p.mapping(n, "weights", fields)
		},
		"ownerReferences": enum(&p.yamlReader, "ownerReferences", &s.OwnerReferences, FollowOwners, HideOwners, KeepOwners),
		"onConflict":      enum(&p.yamlReader, "onConflict", &s.OnConflict, "reject", "prefer"),
		"onUnavailable": func(n *yaml.Node) {
			p.mapping(n, "onUnavailable", map[string]fieldFunc{
				"read":   p.readWithout(&s.Read),
				"create": enum(&p.yamlReader, "onUnavailable.create", &s.Create, "fail", "spill"),
			})
		},
		"deleteCollection": p.permission("deleteCollection", "all", &s.DeleteAllCollection),
	})
	for f, n := range keys {
		p.at[elementKey{"spread", i, f}] = n
	}
}
