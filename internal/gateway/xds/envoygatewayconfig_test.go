package xds

import (
	"strings"
	"testing"

	"go.yaml.in/yaml/v3"
)

// GTW-30: the configuration is one YAML document. It turns on exactly the hooks of the server,
// contains no secret, and contains the server's address. A test in test/gateway proves with Envoy
// Gateway itself that it accepts the configuration.
func TestConfig(t *testing.T) {
	file := ConfigOptions{Provider: File, MaxMessage: 64 << 20, Resources: "/etc/re\"sources", Home: "/home/eg", Server: Address{"unix", "/run/x.sock"}}
	cluster := ConfigOptions{Provider: Kubernetes, MaxMessage: 64 << 20, Namespace: "ts", Server: Address{"tcp", "x.ts.svc:5005"}}
	with := func(o ConfigOptions, set func(*ConfigOptions)) ConfigOptions { set(&o); return o }
	for _, tc := range []struct {
		why     string
		o       ConfigOptions
		service string // the keys below service
		bad     string
	}{
		{"a cluster", cluster, "fqdn tls", ""},
		{"a sidecar", with(cluster, func(o *ConfigOptions) { o.Server = Address{"unix", "/run/x.sock"} }), "unix", ""},
		{"an address", with(cluster, func(o *ConfigOptions) { o.Server = Address{"tcp", "127.0.0.1:5005"}; o.Plain = true }), "ip", ""},
		{"files", file, "unix", ""},
		{"files have no Secrets", with(file, func(o *ConfigOptions) { o.Server = Address{"tcp", "127.0.0.1:5005"} }), "ip", ""},
		{"no folder", with(file, func(o *ConfigOptions) { o.Home = "" }), "", "needs a folder"},
		{"no host", with(cluster, func(o *ConfigOptions) { o.Server = Address{"tcp", ":5005"} }), "", "host:port"},
		{"a named port", with(cluster, func(o *ConfigOptions) { o.Server = Address{"tcp", "x:http"} }), "", "a number"},
		{"no size", with(cluster, func(o *ConfigOptions) { o.MaxMessage = 0 }), "", "size"},
		{"another provider", with(cluster, func(o *ConfigOptions) { o.Provider = "consul" }), "", "kubernetes or file"},
	} {
		b, err := Config(tc.o)
		if tc.bad != "" {
			if err == nil || !strings.Contains(err.Error(), tc.bad) {
				t.Errorf("%s: %v", tc.why, err)
			}
			continue
		}
		if err != nil {
			t.Errorf("%s: %v", tc.why, err)
			continue
		}
		var d struct {
			ExtensionManager struct {
				MaxMessageSize string         `yaml:"maxMessageSize"`
				FailOpen       bool           `yaml:"failOpen"`
				Service        map[string]any `yaml:"service"`
				Hooks          struct {
					XdsTranslator struct {
						Post        []string
						Translation map[string]struct {
							IncludeAll bool `yaml:"includeAll"`
						}
					} `yaml:"xdsTranslator"`
				}
			} `yaml:"extensionManager"`
		}
		if err := yaml.Unmarshal(b, &d); err != nil {
			t.Errorf("%s: %v\n%s", tc.why, err, b)
			continue
		}
		m := d.ExtensionManager
		var keys []string
		for _, k := range []string{"fqdn", "ip", "unix", "tls"} {
			if m.Service[k] != nil {
				keys = append(keys, k)
			}
		}
		switch {
		case strings.Join(keys, " ") != tc.service:
			t.Errorf(`%s: strings.Join(keys, " ") = %q, want %q`, tc.why, strings.Join(keys, " "), tc.service)
		case len(keys) != len(m.Service):
			t.Errorf("%s: len(keys) = %v, want %v", tc.why, len(keys), len(m.Service))
		case m.MaxMessageSize != "64Mi":
			t.Errorf("%s: m.MaxMessageSize = %q, want %q", tc.why, m.MaxMessageSize, "64Mi")
		case m.FailOpen:
			t.Errorf("%s: m.FailOpen is true, %+v", tc.why, m)
		case len(m.Hooks.XdsTranslator.Post) != 5:
			t.Errorf("%s: len(m.Hooks.XdsTranslator.Post) = %v, want 5", tc.why, len(m.Hooks.XdsTranslator.Post))
		}
		switch x := m.Hooks.XdsTranslator.Translation; {
		case x["secret"].IncludeAll:
			t.Errorf(`%s: sent resources: x["secret"].IncludeAll is true, %v`, tc.why, x)
		case !x["route"].IncludeAll:
			t.Errorf(`%s: sent resources: x["route"].IncludeAll is false, %v`, tc.why, x)
		case !x["cluster"].IncludeAll:
			t.Errorf(`%s: sent resources: x["cluster"].IncludeAll is false, %v`, tc.why, x)
		}
	}
	lean, err := Config(with(cluster, func(o *ConfigOptions) { o.Lean = true }))
	if err != nil || strings.Contains(string(lean), "VirtualHost") {
		t.Errorf("lean: %v\n%s", err, lean)
	}
}
