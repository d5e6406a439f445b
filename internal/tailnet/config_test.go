package tailnet

import (
	"log/slog"
	"strings"
	"testing"
	"time"
)

func goodConfig(t testing.TB) Config {
	return Config{
		Hostname: "tka", ControlURL: "http://127.0.0.1:1/", StateDir: t.TempDir(), Port: 443,
		Capability: "tailplane.dev/cap/access", Log: slog.New(slog.DiscardHandler),
	}
}

func TestConfig(t *testing.T) {
	for _, tt := range []struct {
		why    string
		change func(*Config)
		want   string // part of the error; "": no error
	}{
		{"complete", func(c *Config) {}, ""},
		{"Tailscale's own control server", func(c *Config) { c.ControlURL = "" }, ""},
		{"tags", func(c *Config) { c.Tags = []string{"tag:a", "tag:b-2"} }, ""},
		{"a capability of another project", func(c *Config) { c.Capability = "specht-labs.de/cap/tka" }, ""},
		{"no host name", func(c *Config) { c.Hostname = "" }, `tailnet.hostname: "" is not a host name`},
		{"a full name", func(c *Config) { c.Hostname = "tka.example.ts.net" }, "tailnet.hostname"},
		{"too long", func(c *Config) { c.Hostname = strings.Repeat("a", 64) }, "tailnet.hostname"},
		{"not a tag", func(c *Config) { c.Tags = []string{"tag:ok", "ci"} }, `tailnet.tags: "ci" is not a tag`},
		{"no scheme", func(c *Config) { c.ControlURL = "control.example.com" }, "tailnet.controlURL"},
		{"another scheme", func(c *Config) { c.ControlURL = "ftp://control.example.com" }, "tailnet.controlURL"},
		{"a path", func(c *Config) { c.ControlURL = "https://control.example.com/key" }, "tailnet.controlURL"},
		{"a password", func(c *Config) { c.ControlURL = "https://u:hunter2@control.example.com" }, "tailnet.controlURL"},
		{"no state", func(c *Config) { c.StateDir = "" }, "tailnet.stateDir: it is missing"},
		{"a state Secret", func(c *Config) { c.StateSecret = "tailplane-access.0" }, ""},
		{"a path for a Secret", func(c *Config) { c.StateSecret = "../pods" }, "tailnet.stateSecret"},
		{"no port", func(c *Config) { c.Port = 0 }, "tailnet.port: it is missing"},
		{"no capability", func(c *Config) { c.Capability = "" }, "tailnet.capability"},
		{"half a capability", func(c *Config) { c.Capability = "tailplane.dev" }, "tailnet.capability"},
		{"white space", func(c *Config) { c.Capability = "tailplane.dev/cap/access " }, "tailnet.capability"},
		{"negative", func(c *Config) { c.JoinTimeout = -time.Second }, "tailnet.joinTimeout"},
		{"no logger", func(c *Config) { c.Log = nil }, "tailnet.log"},
	} {
		cfg := goodConfig(t)
		tt.change(&cfg)
		n, err := New(cfg)
		switch {
		case tt.want == "" && err != nil:
			t.Errorf("%s: %v", tt.why, err)
		case tt.want == "" && (n.cfg.JoinTimeout != time.Minute || strings.HasSuffix(n.cfg.ControlURL, "/")):
			t.Errorf("%s: defaults: %+v", tt.why, n.cfg)
		case tt.want != "" && (err == nil || !strings.Contains(err.Error(), tt.want)):
			t.Errorf("%s: error %v, want %q", tt.why, err, tt.want)
		case err != nil && strings.Contains(err.Error(), "hunter2"):
			t.Errorf("%s: the error shows a password: %v", tt.why, err)
		}
	}
	_, err := New(Config{})
	for _, field := range []string{"hostname", "stateDir", "port", "capability", "log"} {
		if err == nil || !strings.Contains(err.Error(), "tailnet."+field+":") {
			t.Errorf("all mistakes at once: %s is missing in %v", field, err)
		}
	}
}

// Law 9.7: New does not start anything.
func TestNewTouchesNothing(t *testing.T) {
	cfg := goodConfig(t)
	cfg.StateDir += "/not-made"
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	switch st := n.Status(); {
	case st.Running():
		t.Errorf("a node that was not started: st.Running() is true; %+v", st)
	case len(n.Names()) != 0:
		t.Errorf("a node that was not started: len(n.Names()) = %v, want 0", len(n.Names()))
	case n.backend.Load() != nil:
		t.Errorf("a node that was not started: n.backend.Load() = %v, want nil", n.backend.Load())
	}
	if release, err := claimState(cfg.StateDir); err != nil {
		t.Error(err)
	} else {
		release()
	}
}
