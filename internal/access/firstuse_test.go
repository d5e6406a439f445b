package access_test

import (
	"encoding/json"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

func TestRuleOnUse(t *testing.T) {
	for rule, want := range map[string]string{
		`{"role":"view","period":"8h","onUse":true}`:                                                                   "",
		`{"role":"view","period":"8h","onUse":true,"idle":"1h"}`:                                                       "",
		`{"role":"view","period":"8h","onUse":false}`:                                                                  "",
		`{"role":"view","period":"8h","idle":"1h"}`:                                                                    "without",
		`{"role":"view","period":"8h","onUse":"yes"}`:                                                                  "not true or false",
		`{"role":"view","period":"8h","onUse":true,"idle":"1m"}`:                                                       "not between 5m0s and 24h0m0s",
		`{"role":"view","period":"8h","onUse":true,"idle":"0s"}`:                                                       "not a duration",
		`{"role":"view","period":"8h","onUse":true,"idle":30}`:                                                         "not a duration",
		`{"role":"view","period":"8h","onUse":true,"reason":"required"}`:                                               "together",
		`{"role":"view","period":"8h","onUse":true,"oidc":{"issuer":"https://issuer.example","claims":{"sub":"job"}}}`: "together",
	} {
		g, err := access.ParseGrant([]byte(rule))
		switch {
		case want == "" && err != nil, want != "" && (err == nil || !strings.Contains(err.Error(), want)):
			t.Errorf("%s: %v, want %q", rule, err, want)
		case want == "" && g.OnUse && g.Idle < access.DefaultIdle:
			t.Errorf("%s: idle %v", rule, g.Idle)
		}
	}
}

// PX-24: a first use is decided on the device's own rules, in the order of every login, and only for a proxy of the cluster.
func TestPX24_FirstUseDecision(t *testing.T) {
	pol := access.Policy{Capability: "cap", Roles: []access.Role{"view", "edit"}, Min: 10 * time.Minute, Max: 24 * time.Hour, Proxies: []access.Tag{"tag:east-proxy"}}
	now := time.Date(2026, 11, 21, 12, 0, 0, 0, time.UTC)
	device := func(change func(*access.Caller), rules ...string) access.Caller {
		c := access.Caller{Login: "alice@example.com", Device: access.Device{ID: "n1", Name: "laptop"}, Tailnet: "example.com", Via: access.ViaTailnet}
		for _, r := range rules {
			c.Rules = append(c.Rules, json.RawMessage(r))
		}
		if change != nil {
			change(&c)
		}
		return c
	}
	proxy := access.Caller{Tags: []access.Tag{"tag:east-proxy"}, Device: access.Device{ID: "p", Name: "east-api"}, Tailnet: "example.com", Via: access.ViaTailnet}
	const onUse, edit = `{"role":"view","period":"8h","onUse":true}`, `{"role":"edit","period":"1h","priority":9}`
	for _, x := range []struct {
		why   string
		proxy func(*access.Caller)
		c     access.Caller
		want  problem.Code
	}{
		{"the rule with onUse, although another has a higher priority", nil, device(nil, edit, onUse), ""},
		{"no rule with onUse", nil, device(nil, edit), problem.RoleNotGranted},
		{"no rule", nil, device(nil), problem.NoCapability},
		{"one invalid rule", nil, device(nil, onUse, `{"role":"view"}`), problem.BadCapability},
		{"two rules with onUse", nil, device(nil, onUse, `{"role":"edit","period":"1h","onUse":true}`), problem.AmbiguousRole},
		{"a role that the server does not grant", nil, device(nil, `{"role":"admin","period":"1h","onUse":true}`), problem.RoleNotAllowed},
		{"an expired device", nil, device(func(c *access.Caller) { c.Expired = true }, onUse), problem.NodeExpired},
		{"a shared device", nil, device(func(c *access.Caller) { c.Shared = true }, onUse), problem.ForeignNode},
		{"a tagged device", nil, device(func(c *access.Caller) { c.Login, c.Tags = "", []access.Tag{"tag:ci"} }, onUse), problem.TaggedNode},
		{"an ambiguous login", nil, device(func(c *access.Caller) { c.Ambiguous = true }, onUse), problem.IdentityAmbiguous},
		{"a device behind Funnel", nil, device(func(c *access.Caller) { c.Via = access.ViaFunnel }, onUse), problem.FunnelRefused},
		{"by a person", func(c *access.Caller) { *c = device(nil, onUse) }, device(nil, onUse), problem.NotAProxy},
		{"by a proxy of another cluster", func(c *access.Caller) { c.Tags = []access.Tag{"tag:west-proxy"} }, device(nil, onUse), problem.NotAProxy},
		{"by a shared node", func(c *access.Caller) { c.Shared = true }, device(nil, onUse), problem.ForeignNode},
	} {
		by := proxy
		if x.proxy != nil {
			x.proxy(&by)
		}
		p, err := access.Decide(by, access.SigninFirstUse, pol, now)
		if err == nil {
			p, err = p.FirstUse(x.c)
		}
		if got := problem.CodeOf(err); got != x.want {
			t.Errorf("%s: %q, want %q", x.why, got, x.want)
		}
		if idle, ok := p.OnUse(); x.want == "" && (!ok || idle != access.DefaultIdle || p.Binds().Role() != "view") {
			t.Errorf("%s: %v for %v", x.why, p.Binds(), idle)
		}
	}
	if _, err := access.Decide(proxy, access.SigninLogin, pol, now); problem.CodeOf(err) != problem.TaggedNode {
		t.Errorf("the proxy's tag permits a login: %v", err)
	}
}
