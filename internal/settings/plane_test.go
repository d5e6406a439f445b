package settings_test

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/settings"
)

func TestPlane(t *testing.T) {
	for _, x := range []struct{ why, file, says string }{
		{"all defaults", "", ""},
		{"everything", "plane: {identity: {mode: whois, hostname: board, insecureHTTP: true}, capability: example.com/cap/plane, contact: \"#platform\", emailDomains: [Acme.dev], " +
			"roles: [{login: pat@platform.dev, role: platform-admin}, {login: vic@example.com, role: viewer, orgs: [acme]}]}", ""},
		{"unknown", "plane: {exposures: []}", "field exposures is not a setting of plane"},
		{"unknown in identity", "plane: {identity: {trustedProxies: []}}", "field trustedProxies is not a setting of plane.identity"},
		{"unknown in a role", "plane: {roles: [{login: a@b.example, role: viewer, org: acme}]}", "field org is not a setting of an entry of plane.roles"},
		{"a mode that there is not", "plane: {identity: {mode: proxy}}", "plane.identity.mode"},
		{"host name", "plane: {identity: {hostname: a.b}}", "plane.identity.hostname"},
		{"capability", "plane: {capability: plane}", "plane.capability"},
		{"sign-in's capability", "plane: {capability: tailplane.dev/cap/access}", "both"},
		{"contact", "plane: {contact: \"a\\nb\"}", "plane.contact"},
		{"everybody's domain", "plane: {emailDomains: [gmail.com]}", "anybody can have a login"},
		{"no domain", "plane: {emailDomains: [\"*\"]}", "not a domain"},
		{"no login", "plane: {roles: [{role: viewer, orgs: [acme]}]}", "entry 1: login is empty"},
		{"everybody", "plane: {roles: [{login: \"*@acme.dev\", role: viewer, orgs: [acme]}]}", "name each login"},
		{"no such role", "plane: {roles: [{login: a@b.example, role: admin, orgs: [acme]}]}", "none of viewer"},
		{"a role nowhere", "plane: {roles: [{login: a@b.example, role: operator}]}", "0 organisations"},
		{"port", "tailnet: {port: 0}", "tailnet.port"},
		{"tags", "tailnet: {tags: [plane]}", "does not begin with tag:"},
		{"one namespace for both", "signin: {namespace: x, systemNamespace: x}", "not the names of two namespaces"},
		{"probes", "health: nowhere", "health"},
	} {
		f, err := settings.Parse([]byte(x.file))
		if err == nil {
			err = f.Validate(settings.PlaneRole)
		}
		if x.says == "" && err != nil || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v, want %q", x.why, err, x.says)
		}
		if x.why == "everything" {
			p := f.PlanePolicy()
			if p.Capability != "example.com/cap/plane" || len(p.EmailDomains) != 1 || p.EmailDomains[0] != "acme.dev" || len(p.Settings) != 2 ||
				p.Settings[0].Duty.Name != access.PlatformAdmin || p.Settings[1].Duty.Orgs[0] != "acme" {
				t.Errorf("%+v", p)
			}
		}
	}
}
