package config

import (
	"net/netip"
	"strings"
	"testing"
	"time"
)

const web = `{"tailnetTarget":{"fqdn":"Web.Tail1.ts.net."},"ports":[{"protocol":"TCP","matchPort":10000,"targetPort":80}]}`

func parse(t *testing.T, egress, relay string) Config {
	t.Helper()
	data := map[string]string{}
	if egress != "" {
		data[EgressKey] = egress
	}
	if relay != "" {
		data[RelayKey] = relay
	}
	c, err := Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestParse(t *testing.T) {
	c, err := Parse(map[string]string{
		EgressKey: `{"b":` + web + `,"a":{"healthCheckEndpoint":"http://ts-a.ns.svc.cluster.local:9002/healthz","tailnetTarget":{"ip":"100.64.0.7"},
			"ports":[{"protocol":"udp","matchPort":10000,"targetPort":53},{"protocol":"tcp","matchPort":10001,"targetPort":53}],"of tomorrow":1}}`,
		PingsKey: " 6\n",
		RelayKey: `{"tailnet":{"controlURL":"https://c.example","hostnamePrefix":"x","tags":["tag:k8s"]},"targets":{"b":[{"tags":["tag:svc-web","tag:blue"]},{"ip":"fd7a:115c:a1e0::7"}]},
			"ingress":{"in":{"vip":"svc:grafana","ports":[{"protocol":"TCP","port":80,"backend":"grafana.monitoring.svc.cluster.local:3000"}],"proxyProtocol":true,"ready":true}},
			"limits":{"flows":7},"drainTimeout":"90s","of tomorrow":{}}`,
	})
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case len(c.Services) != 2:
		t.Errorf("services: len(c.Services) = %v, want 2", len(c.Services))
	case c.Services[0].Name != "a":
		t.Errorf("services: c.Services[0].Name = %q, want %q", c.Services[0].Name, "a")
	case c.Services[0].Health.Port() != "9002":
		t.Errorf("services: c.Services[0].Health.Port() = %q, want %q", c.Services[0].Health.Port(), "9002")
	case c.Services[0].Targets[0].IP != "100.64.0.7":
		t.Errorf("services: c.Services[0].Targets[0].IP = %q, want %q", c.Services[0].Targets[0].IP, "100.64.0.7")
	case c.Services[0].Ports[0].Protocol != UDP:
		t.Errorf("services: c.Services[0].Ports[0].Protocol = %q, want %q", c.Services[0].Ports[0].Protocol, UDP)
	}
	if b := c.Services[1]; len(b.Targets) != 2 || b.Targets[0].Tags[1] != "tag:blue" { // relay.json can contain more than egress-services
		t.Errorf("targets %+v", b.Targets)
	}
	switch {
	case c.Pings != 6:
		t.Errorf("c.Pings = %v, want 6", c.Pings)
	case c.DrainTimeout != 90*time.Second:
		t.Errorf("c.DrainTimeout = %v, want %v", c.DrainTimeout, 90*time.Second)
	case c.Limits != (Limits{DefaultConnections, 7}):
		t.Errorf("c.Limits = %v, want %v", c.Limits, (Limits{DefaultConnections, 7}))
	case c.Tailnet.HostnamePrefix != "x":
		t.Errorf("c.Tailnet.HostnamePrefix = %q, want %q", c.Tailnet.HostnamePrefix, "x")
	case len(c.Refused) != 0:
		t.Errorf("len(c.Refused) = %v, want 0", len(c.Refused))
	}
	switch {
	case len(c.Exposed) != 1:
		t.Errorf("exposed: len(c.Exposed) = %v, want 1", len(c.Exposed))
	case c.Exposed[0].VIP != "svc:grafana":
		t.Errorf("exposed: c.Exposed[0].VIP = %q, want %q", c.Exposed[0].VIP, "svc:grafana")
	case c.Exposed[0].Ports[0].Protocol != TCP:
		t.Errorf("exposed: c.Exposed[0].Ports[0].Protocol = %q, want %q", c.Exposed[0].Ports[0].Protocol, TCP)
	case !c.Exposed[0].ProxyProtocol:
		t.Errorf("exposed: c.Exposed[0].ProxyProtocol is false; %+v", c.Exposed)
	}
	switch c := parse(t, "{\"w\":"+web+"}", ""); {
	case c.Services[0].Targets[0].FQDN != "web.tail1.ts.net":
		t.Errorf("one spelling and the defaults: got %q, want %q", c.Services[0].Targets[0].FQDN, "web.tail1.ts.net")
	case c.DrainTimeout != DefaultDrain:
		t.Errorf("one spelling and the defaults: c.DrainTimeout = %v, want %v", c.DrainTimeout, DefaultDrain)
	case c.Limits.Flows != DefaultFlows:
		t.Errorf("one spelling and the defaults: c.Limits.Flows = %v, want %v", c.Limits.Flows, DefaultFlows)
	}
	if c := parse(t, "", ""); len(c.Services) != 0 {
		t.Errorf("an empty document: %+v", c)
	}
}

// If nothing can be parsed, Parse returns an error, so that the relay keeps its configuration.
func TestParseNothing(t *testing.T) {
	for _, tt := range []struct {
		why  string
		data map[string]string
	}{
		{"no JSON", map[string]string{EgressKey: "hello"}},
		{"cut off", map[string]string{EgressKey: `{"w":` + web}},
		{"more behind it", map[string]string{EgressKey: `{}{}`}},
		{"a list", map[string]string{EgressKey: `[]`}},
		{"a port of 70000", map[string]string{EgressKey: strings.Replace(`{"w":`+web+`}`, "10000", "70000", 1)}},
		{"another protocol", map[string]string{EgressKey: strings.Replace(`{"w":`+web+`}`, "TCP", "SCTP", 1)}},
		{"pings in words", map[string]string{PingsKey: "six"}},
		{"pings below 0", map[string]string{PingsKey: "-1"}},
		{"too many pings", map[string]string{PingsKey: "1000000"}},
		{"a negative limit", map[string]string{RelayKey: `{"limits":{"connections":-1}}`}},
		{"no time", map[string]string{RelayKey: `{"drainTimeout":"soon"}`}},
		{"too long", map[string]string{RelayKey: `{"drainTimeout":"11m"}`}},
		{"too large", map[string]string{RelayKey: strings.Repeat(" ", maxBytes+1)}},
	} {
		if c, err := Parse(tt.data); err == nil {
			t.Errorf("%s: accepted as %+v", tt.why, c)
		}
	}
}

// An invalid service is refused by name, and the others are valid.
func TestParseRefused(t *testing.T) {
	good := `"good":` + strings.Replace(web, "10000", "10999", 1)
	ports := func(p string) string { return `{"tailnetTarget":{"ip":"100.64.0.7"},"ports":[` + p + `]}` }
	target := func(to string) string {
		return `{"tailnetTarget":{` + to + `},"ports":[{"protocol":"tcp","matchPort":10000,"targetPort":80}]}`
	}
	for _, tt := range []struct{ why, service, want string }{
		{"below the range", ports(`{"protocol":"tcp","matchPort":9002,"targetPort":80}`), "not from 10000 to 10999"},
		{"above the range", ports(`{"protocol":"tcp","matchPort":11000,"targetPort":80}`), "not from"},
		{"to port 0", ports(`{"protocol":"tcp","matchPort":10000}`), "port 0"},
		{"no protocol", ports(`{"matchPort":10000,"targetPort":80}`), "no protocol"},
		{"no ports", ports(``), "maps 0 ports"},
		{"twice", ports(`{"protocol":"tcp","matchPort":10000,"targetPort":80},{"protocol":"TCP","matchPort":10000,"targetPort":81}`), "belongs to"},
		{"another service's", ports(`{"protocol":"tcp","matchPort":10999,"targetPort":80}`), "belongs to good"},
		{"no target", target(``), "exactly one"},
		{"two targets", target(`"ip":"100.64.0.7","fqdn":"a.ts.net"`), "exactly one"},
		{"loopback", target(`"ip":"127.0.0.1"`), "not the address of a tailnet node"},
		{"a short name", target(`"fqdn":"web"`), "not a fully qualified name"},
		{"an address as a name", target(`"fqdn":"169.254.169.254"`), "a number"},
		{"a name with a path", target(`"fqdn":"a.ts.net/x"`), "not a fully qualified name"},
		{"no tag", target(`"tags":["web"]`), "not a tag"},
		{"an endpoint on https", `{"healthCheckEndpoint":"https://a/","tailnetTarget":{"ip":"100.64.0.7"},"ports":[{"protocol":"tcp","matchPort":10000,"targetPort":80}]}`, "not an http URL"},
		{"an endpoint with a password", `{"healthCheckEndpoint":"http://u:hunter2@a/","tailnetTarget":{"ip":"100.64.0.7"},"ports":[{"protocol":"tcp","matchPort":10000,"targetPort":80}]}`, "not an http URL"},
	} {
		c := parse(t, "{"+good+`,"worse":`+tt.service+"}", "")
		switch {
		case len(c.Services) != 1:
			t.Errorf("%s: len(c.Services) = %v, want 1", tt.why, len(c.Services))
		case c.Services[0].Name != "good":
			t.Errorf("%s: c.Services[0].Name = %q, want %q", tt.why, c.Services[0].Name, "good")
		case !strings.Contains(c.Refused["worse"], tt.want):
			t.Errorf(`%s: c.Refused["worse"] = %q does not contain %q`, tt.why, c.Refused["worse"], tt.want)
		case strings.Contains(c.Refused["worse"], "hunter2"):
			t.Errorf(`%s: c.Refused["worse"] = %q contains %q`, tt.why, c.Refused["worse"], "hunter2")
		}
	}
	for _, name := range []string{"", ".", "..", "a/b", "A", "a b", "\x1b[2J", strings.Repeat("a", 254)} {
		c, err := Parse(map[string]string{EgressKey: `{` + quote(name) + `:` + web + `}`})
		if err == nil && len(c.Refused) != 1 {
			t.Errorf("the name %q was accepted", name)
		}
	}
	for _, tt := range []struct{ why, exposed, want string }{
		{"no service", `{"vip":"grafana","ports":[{"protocol":"tcp","port":80,"backend":"10.0.0.1:80"}]}`, "not the name of a service"},
		{"UDP of a service", `{"vip":"svc:a","ports":[{"protocol":"udp","port":80,"backend":"10.0.0.1:80"}]}`, "only TCP"},
		{"a header for UDP", `{"proxyProtocol":true,"ports":[{"protocol":"udp","port":80,"backend":"10.0.0.1:80"}]}`, "PROXY"},
		{"no backend", `{"ports":[{"protocol":"tcp","port":80}]}`, "not host:port"},
		{"a backend without a port", `{"ports":[{"protocol":"tcp","port":80,"backend":"a.b.svc"}]}`, "not host:port"},
		{"another service's port", `{"vip":"svc:a","ports":[{"protocol":"tcp","port":443,"backend":"10.0.0.1:80"}]}`, "belongs to a"},
	} {
		c := parse(t, "", `{"ingress":{"a":{"vip":"svc:a","ports":[{"protocol":"tcp","port":443,"backend":"[fd00::1]:80"}]},"b":`+tt.exposed+`}}`)
		if len(c.Exposed) != 1 || !strings.Contains(c.Refused["b"], tt.want) {
			t.Errorf("%s: %+v", tt.why, c)
		}
	}
}

func quote(s string) string {
	return `"` + strings.NewReplacer("\x1b", `\u001b`, `"`, `\"`).Replace(s) + `"`
}

// GTW-21: only addresses that nodes and services can have.
func TestAllowed(t *testing.T) {
	for s, want := range map[string]bool{
		"100.64.0.1": true, "100.127.255.254": true, "fd7a:115c:a1e0::1": true, "fd7a:115c:a1e0:ab12:4843:cd96:6264:4a5b": true,
		"100.63.255.255": false, "100.128.0.0": false, "127.0.0.1": false, "0.0.0.0": false, "169.254.169.254": false, "10.96.0.1": false, "192.168.1.1": false, "8.8.8.8": false,
		"100.100.100.100": false, "100.100.0.1": false, "100.115.92.1": false, "::1": false, "::": false, "fe80::1": false, "fd00:ec2::254": false,
		"::ffff:100.64.0.1": false, "::ffff:127.0.0.1": false, "fd7a:115c:a1e0::53": false, "64:ff9b::7f00:1": false, "2002:7f00:1::": false,
		"fd7a:115c:a1e0:b1a:0:1:7f00:1":        false, // 127.0.0.1 behind a subnet router of site 1
		"fd7a:115c:a1e0:b1a:0:1:a9fe:a9fe":     false, // the metadata address
		"fd7a:115c:a1e1::1":                    false,
		"fd7a:115c:a1e0::1%eth0":               false,
		"fd7a:115c:a1e0:0:ffff:ffff:a9fe:a9fe": true, // a node address in the only remaining form
	} {
		if got := Allowed(netip.MustParseAddr(s)); got != want {
			t.Errorf("%s: %v", s, got)
		}
	}
}

// FuzzParse: for any input, the result is valid.
func FuzzParse(f *testing.F) {
	f.Add(`{"w":`+web+`}`, "6", `{"targets":{"w":[{"tags":["tag:a"]}]},"ingress":{"x":{"vip":"svc:a","ports":[{"protocol":"tcp","port":1,"backend":"a.b:1"}],"ready":true}}}`)
	f.Add(`{"w":{"tailnetTarget":{"ip":"fd7a:115c:a1e0:b1a:0:1:7f00:1"},"ports":[]}}`, "", `{"drainTimeout":"0s"}`)
	f.Fuzz(func(t *testing.T, egress, pings, relay string) {
		c, err := Parse(map[string]string{EgressKey: egress, PingsKey: pings, RelayKey: relay})
		if err != nil {
			return
		}
		taken := map[Port]bool{}
		for _, s := range c.Services {
			for _, target := range s.Targets {
				if target.IP != "" {
					if a, err := netip.ParseAddr(target.IP); err != nil || !Allowed(a) {
						t.Errorf("target %q", target.IP)
					}
				}
				if _, err := netip.ParseAddr(target.FQDN); err == nil {
					t.Errorf("the name %q is an address", target.FQDN)
				}
			}
			for _, p := range s.Ports {
				at := Port{Protocol: p.Protocol, Match: p.Match}
				switch {
				case p.Match < MinMatchPort:
					t.Errorf("port: p.Match = %v, want at least %v", p.Match, MinMatchPort)
				case p.Match > MaxMatchPort:
					t.Errorf("port: p.Match = %v, want at most %v", p.Match, MaxMatchPort)
				case p.Target == 0:
					t.Errorf("port: p.Target = %v", p.Target)
				case taken[at]:
					t.Errorf("port: taken[at] is true; %+v", p)
				case p.Protocol != TCP && p.Protocol != UDP:
					t.Errorf("port: p.Protocol != TCP && p.Protocol != UDP; %+v", p)
				}
				taken[at] = true
			}
			if len(s.Targets) == 0 || len(s.Ports) == 0 {
				t.Errorf("service %+v", s)
			}
		}
		switch {
		case c.Limits.Connections <= 0:
			t.Errorf("c.Limits.Connections = %v, want more than 0", c.Limits.Connections)
		case c.Limits.Flows <= 0:
			t.Errorf("c.Limits.Flows = %v, want more than 0", c.Limits.Flows)
		case c.DrainTimeout < 0:
			t.Errorf("c.DrainTimeout = %v, want at least 0", c.DrainTimeout)
		case c.DrainTimeout > maxDrain:
			t.Errorf("c.DrainTimeout = %v, want at most %v", c.DrainTimeout, maxDrain)
		case c.Pings < 0:
			t.Errorf("c.Pings = %v, want at least 0", c.Pings)
		case c.Pings > maxPings:
			t.Errorf("c.Pings = %v, want at most %v", c.Pings, maxPings)
		}
	})
}
