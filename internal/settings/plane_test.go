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
		{"unknown", "plane: {thanos: {}}", "field thanos is not a setting of plane"},
		{"unknown in identity", "plane: {identity: {proxies: []}}", "field proxies is not a setting of plane.identity"},
		{"unknown in a role", "plane: {roles: [{login: a@b.example, role: viewer, org: acme}]}", "field org is not a setting of an entry of plane.roles"},
		{"an unknown mode", "plane: {identity: {mode: header}}", "plane.identity.mode"},
		{"host name", "plane: {identity: {hostname: a.b}}", "plane.identity.hostname"},
		{"capability", "plane: {capability: plane}", "plane.capability"},
		{"sign-in's capability", "plane: {capability: tailplane.dev/cap/access}", "both"},
		{"contact", "plane: {contact: \"a\\nb\"}", "plane.contact"},
		{"a public domain", "plane: {emailDomains: [gmail.com]}", "anyone can have a login"},
		{"no domain", "plane: {emailDomains: [\"*\"]}", "not a domain"},
		{"no login", "plane: {roles: [{role: viewer, orgs: [acme]}]}", "entry 1: login is empty"},
		{"everybody", "plane: {roles: [{login: \"*@acme.dev\", role: viewer, orgs: [acme]}]}", "list each login"},
		{"no such role", "plane: {roles: [{login: a@b.example, role: admin, orgs: [acme]}]}", "not one of viewer"},
		{"a role nowhere", "plane: {roles: [{login: a@b.example, role: operator}]}", "0 organisations"},
		{"ID-16: a user id", "plane: {roles: [{login: a@b.example, userID: \"7\", role: viewer, orgs: [acme]}]}", ""},
		{"ID-16: a user id that is a number", "plane: {roles: [{login: a@b.example, userID: 7, role: viewer, orgs: [acme]}]}", ""},
		{"ID-16: a user id that is none", "plane: {roles: [{login: a@b.example, userID: a7, role: viewer, orgs: [acme]}]}", "userID \"a7\" is not a number"},
		{"ID-16: a user id alone", "plane: {roles: [{userID: \"7\", role: viewer, orgs: [acme]}]}", "login is empty"},
		{"ID-16: another control server", "tailnet: {controlURL: \"https://headscale.example\"}\nplane: {roles: [{login: a@b.example, userID: \"7\", role: viewer, orgs: [acme]}]}", ""},
		{"ID-16: another control server without a user id", "tailnet: {controlURL: \"https://headscale.example\"}\nplane: {roles: [{login: a@b.example, role: viewer, orgs: [acme]}]}",
			"entry 1: with tailnet.controlURL, set the userID of \"a@b.example\" beside the login"},
		{"ID-16: a user id in a mode without ids", "plane: {identity: {mode: serve, listen: \"unix:/a\", names: [a]}, roles: [{login: a@b.example, userID: \"7\", role: viewer, orgs: [acme]}]}",
			"in the mode serve the plane does not learn user IDs"},
		{"a Prometheus and logs", "plane: {prometheus: {url: \"http://prometheus.monitoring.svc:9090\"}, logs: {enabled: true}}", ""},
		{"a Prometheus that is nowhere", "plane: {prometheus: {url: prometheus}}", "plane.prometheus.url"},
		{"a Prometheus with a password", "plane: {prometheus: {url: \"http://a:b@prometheus.monitoring.svc:9090\"}}", "plane.prometheus.url"},
		{"a question of one's own", "plane: {prometheus: {url: \"http://prometheus.monitoring.svc:9090?query=up\"}}", "plane.prometheus.url"},
		{"port", "tailnet: {port: 0}", "tailnet.port"},
		{"tags", "tailnet: {tags: [plane]}", "does not begin with tag:"},
		{"one namespace for both", "signin: {namespace: x, systemNamespace: x}", "must be the names of two namespaces"},
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
			switch {
			case p.Capability != "example.com/cap/plane":
				t.Errorf("p.Capability = %q, want %q", p.Capability, "example.com/cap/plane")
			case len(p.EmailDomains) != 1:
				t.Errorf("len(p.EmailDomains) = %v, want 1", len(p.EmailDomains))
			case p.EmailDomains[0] != "acme.dev":
				t.Errorf("p.EmailDomains[0] = %q, want %q", p.EmailDomains[0], "acme.dev")
			case len(p.Settings) != 2:
				t.Errorf("len(p.Settings) = %v, want 2", len(p.Settings))
			case p.Settings[0].Role.Name != access.PlatformAdmin:
				t.Errorf("p.Settings[0].Role.Name = %q, want %q", p.Settings[0].Role.Name, access.PlatformAdmin)
			case p.Settings[1].Role.Orgs[0] != "acme":
				t.Errorf("p.Settings[1].Role.Orgs[0] = %q, want %q", p.Settings[1].Role.Orgs[0], "acme")
			}
		}
	}
}

// Every mode is taken as it is meant, and no mode takes what another one is proved by.
func TestPlaneIdentity(t *testing.T) {
	const oidc = "oidc: {issuer: \"https://idp.example.ts.net\", audience: tailplane, tailnet: example.ts.net}"
	for _, x := range []struct{ why, identity, says string }{
		{"whois with tokens", "mode: whois, hostname: board, " + oidc, ""},
		{"serve, by a socket", "mode: serve, listen: \"unix:/run/plane.sock\", names: [dashboard.example.ts.net]", ""},
		{"serve, by a port", "mode: serve, listen: \"127.0.0.1:8443\", names: [dashboard.example.ts.net], users: [0]", ""},
		{"proxy, by a socket", "mode: proxy, listen: \"unix:/run/plane.sock\", names: [dashboard.example.ts.net], tailnet: example.ts.net", ""},
		{"proxy, by the network", "mode: proxy, listen: \"0.0.0.0:8443\", names: [dashboard.example.ts.net, 10.0.0.9], tailnet: example.ts.net, trustedProxies: [10.0.0.7/32], secretFile: /run/secret", ""},
		{"proxy, by its certificate", "mode: proxy, listen: \"[::]:8443\", names: [a.example], tailnet: example.ts.net, trustedProxies: [10.0.0.7/32], certificates: [caddy], tls: {certFile: /a, keyFile: /b, clientCAFile: /c}", ""},
		{"oidc", "mode: oidc, listen: \"127.0.0.1:8443\", names: [localhost], " + oidc, ""},
		{"oidc, by the network", "mode: oidc, listen: \"0.0.0.0:8443\", names: [a.example], tls: {certFile: /a, keyFile: /b}, " + oidc, ""},
		{"dev", "mode: dev, listen: \"127.0.0.1:8080\", names: [localhost, 127.0.0.1], login: alice@example.com", ""},

		{"whois that listens", "mode: whois, listen: \"127.0.0.1:8443\"", "listen is set, but the mode whois does not use it"},
		{"whois that trusts a proxy", "mode: whois, trustedProxies: [10.0.0.7/32]", "trustedProxies is set, but the mode whois"},
		{"serve with a secret", "mode: serve, listen: \"unix:/a\", names: [a], secretFile: /a", "secretFile is set, but the mode serve"},
		{"serve with a login", "mode: serve, listen: \"unix:/a\", names: [a], login: a@b.example", "login is set, but the mode serve"},
		{"no listener", "mode: serve, names: [a]", "listen: \"\" is neither"},
		{"any port", "mode: serve, listen: \":8443\", names: [a]", "is neither"},
		{"a name to listen on", "mode: serve, listen: \"localhost:8443\", names: [a]", "is neither"},
		{"a socket somewhere", "mode: serve, listen: \"unix:plane.sock\", names: [a]", "an absolute path"},
		{"no name", "mode: serve, listen: \"unix:/a\"", "names is missing"},
		{"a wildcard for a name", "mode: serve, listen: \"unix:/a\", names: [\"*\"]", "neither a host name"},
		{"half a certificate", "mode: proxy, listen: \"0.0.0.0:1\", names: [a], tls: {certFile: /a}", "must be set together"},
		{"names of certificates without a client CA", "mode: proxy, listen: \"0.0.0.0:1\", names: [a], certificates: [a]", "set tls.clientCAFile"},
		{"no range", "mode: proxy, listen: \"0.0.0.0:1\", names: [a], trustedProxies: [caddy]", "not an address range"},
		{"no issuer of tokens", "mode: oidc, listen: \"127.0.0.1:1\", names: [a]", "set the issuer of accepted tokens"},
		{"half an issuer", "mode: whois, oidc: {issuer: \"https://idp.example\"}", "must be set together"},
		{"tokens in the clear", "mode: oidc, listen: \"10.0.0.9:80\", names: [a], " + oidc, "without encryption"},
		{"dev without a login", "mode: dev, listen: \"127.0.0.1:1\", names: [a]", "plane.identity.login"},
		{"a setting of tls", "mode: proxy, listen: \"0.0.0.0:1\", names: [a], tls: {cert: /a}", "is not a setting of plane.identity.tls"},
	} {
		f, err := settings.Parse([]byte("plane: {identity: {" + x.identity + "}}"))
		if err == nil {
			err = f.Validate(settings.PlaneRole)
		}
		if x.says == "" && err != nil || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v, want %q", x.why, err, x.says)
		}
	}
}

func TestExposures(t *testing.T) {
	for _, x := range []struct{ why, entries, says string }{
		{"three", "{name: prometheus, upstream: \"http://prometheus.monitoring.svc:9090\", access: observe.read}, " +
			"{name: grafana, upstream: \"http://grafana.monitoring.svc:3000\", access: observe.read, userHeader: X-WEBAUTH-USER, roleHeader: X-WEBAUTH-ROLE}, " +
			"{name: attic, upstream: \"http://attic.cache.svc:8080\", access: identified}", ""},
		{"no name", "{upstream: \"http://a.b.svc\", access: identified}", "entry 1: name \"\""},
		{"one name twice", "{name: a, upstream: \"http://a.b.svc\"}, {name: a, upstream: \"http://b.b.svc\"}", "entry 2: \"a\" is the name of two nodes"},
		{"the plane's own name", "{name: dashboard, upstream: \"http://a.b.svc\"}", "two nodes"},
		{"no upstream", "{name: a, access: identified}", "upstream is not a URL"},
		{"unknown", "{name: a, url: \"http://a.b.svc\"}", "url is not a setting of an entry of plane.exposures"},
	} {
		f, err := settings.Parse([]byte("plane: {exposures: [" + x.entries + "]}"))
		if err == nil {
			err = f.Validate(settings.PlaneRole)
		}
		if x.says == "" && err != nil || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v, want %q", x.why, err, x.says)
		}
	}
}
