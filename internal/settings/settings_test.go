package settings_test

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/settings"
)

func caPEM(t *testing.T) string {
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	return string(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}))
}

const good = `
cluster: {name: prod-eu, server: "https://k8s.prod-eu.example:6443", caFile: CA}
tailnet: {stateDir: /var/lib/tailplane}
signin: {roles: [view, edit]}
`

func TestFile(t *testing.T) {
	dir := t.TempDir()
	ca := filepath.Join(dir, "ca.crt")
	if err := os.WriteFile(ca, []byte(caPEM(t)), 0o600); err != nil {
		t.Fatal(err)
	}
	junk := filepath.Join(dir, "junk")
	if err := os.WriteFile(junk, []byte("not a certificate"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, tt := range []struct {
		name, old, new string
		says           string // part of the error; "": the file is good
	}{
		{"good", "", "", ""},
		{"unknown key", "signin:", "sigin: {}\nsignin:", "line 4: field sigin is not a setting"},
		{"unknown key inside", "roles: [view, edit]", "roles: [view], rolez: []", "field rolez is not a setting of signin"},
		{"wrong type", "roles: [view, edit]", "roles: view", "line 4"},
		{"no YAML", "signin:", "\tsignin:", "line"},
		{"two documents", "signin:", "---\nsignin:", "more than one YAML document"},
		{"no roles", "roles: [view, edit]", "", "signin.roles is missing"},
		{"wildcard role", "roles: [view, edit]", `roles: ["*"]`, "not the name of a ClusterRole"},
		{"no server", `"https://k8s.prod-eu.example:6443"`, `""`, "cluster.server is missing"},
		{"plain http", "https://k8s", "http://k8s", "not an https URL"},
		{"CA is not there", "caFile: CA", "caFile: /nowhere/ca.crt", "no such file"},
		{"CA is junk", "caFile: CA", "caFile: " + junk, "not a list of PEM certificates"},
		{"no CA", ", caFile: CA", "", "cluster.caFile is missing"},
		{"bad duration", "roles: [view, edit]", "roles: [view], maxLife: 1d", `"1d" is not a duration`},
		{"negative duration", "roles: [view, edit]", "roles: [view], maxLife: -1h", "negative"},
		{"short minimum", "roles: [view, edit]", "roles: [view], period: {min: 1m, max: 1h}", "signin.period.min"},
		{"bounds the wrong way round", "roles: [view, edit]", "roles: [view], period: {min: 2h, max: 1h}", "signin.period.max"},
		{"one namespace for both", "roles: [view, edit]", "roles: [view], namespace: tailplane-system", "a separate namespace"},
		{"relative state", "/var/lib/tailplane", "state", "not an absolute path"},
		{"tag", "stateDir:", "tags: [k8s], stateDir:", "does not begin with tag:"},
		{"gossip: off, other settings do not matter", "signin:", "gossip: {enabled: false, fanout: 0, port: 0}\nsignin:", ``},
		{"gossip: unknown key", "signin:", "gossip: {fan: 3}\nsignin:", `field fan is not a setting of gossip`},
		{"gossip: network", "signin:", "gossip: {network: My Net}\nsignin:", `gossip.network`},
		{"gossip: port of the API", "signin:", "gossip: {port: 443}\nsignin:", `gossip.port: 443`},
		{"gossip: interval", "signin:", "gossip: {interval: 10ms}\nsignin:", `gossip.interval: 10ms`},
		{"gossip: fanout", "signin:", "gossip: {fanout: 11}\nsignin:", `gossip.fanout: 11`},
		{"gossip: no tags", "signin:", "gossip: {tags: []}\nsignin:", `gossip.tags is empty`},
		{"gossip: tag", "signin:", "gossip: {tags: [tailplane]}\nsignin:", `does not begin with tag:`},
		{"gossip: peer", "signin:", "gossip: {peers: [\"https://tka\"]}\nsignin:", `gossip.peers`},
		{"gossip: trust", "signin:", "gossip: {trust: everybody}\nsignin:", `gossip.trust`},
		{"gossip: pinned to nothing", "signin:", "gossip: {trust: pinned}\nsignin:", `gossip.pins is empty`},
		{"gossip: members", "signin:", "gossip: {maxMembers: 0}\nsignin:", `gossip.maxMembers`},
		{"gossip: forget", "signin:", "gossip: {forgetAfter: 1s}\nsignin:", `gossip.forgetAfter`},
		{"gossip: profiles", "signin:", "gossip: {clusterProfiles: {enabled: true, namespace: A}}\nsignin:", `gossip.clusterProfiles.namespace`},
		{"port", "stateDir:", "port: 70000, stateDir:", "as a port"},
		{"cluster id", "name: prod-eu", `name: prod-eu, id: "a b"`, "cluster.id"},
		{"state Secret", "stateDir:", "stateSecret: Tailplane_Access, stateDir:", "tailnet.stateSecret"},
		{"audit key Secret", "signin:", "audit: {keySecret: Audit_Key}\nsignin:", "audit.keySecret"},
		{"good audit key Secret", "signin:", "audit: {keySecret: tailplane-audit-key}\nsignin:", ""},
		{"no time to join", "stateDir:", "joinTimeout: 10ms, stateDir:", "tailnet.joinTimeout"},
		{"some time to join", "stateDir:", "joinTimeout: 5m, stateDir:", ""},
		{"good state Secret", "stateDir:", "stateSecret: tailplane-access, stateDir:", ""},
		{"interval", "roles: [view, edit]", "roles: [view], grantCheckInterval: 0s", "signin.grantCheckInterval"},
		{"audiences", "roles: [view, edit]", `roles: [view], tokenAudiences: [""]`, "signin.tokenAudiences"},
		{"audience twice", "roles: [view, edit]", `roles: [view], tokenAudiences: [a, a]`, "signin.tokenAudiences"},
		{"connections", "signin:", "api: {limits: {connections: -1}}\nsignin:", "api.limits.connections"},
		{"health", "signin:", "health: localhost\nsignin:", "health:"},
		{"health port", "signin:", "health: \":http\"\nsignin:", "is not a port"},
		{"good health", "signin:", "health: 127.0.0.1:0\nsignin:", ""},
		{"audit", "signin:", "audit: {require: true}\nsignin:", "not a setting of audit"},
		{"name", "name: prod-eu", "name: Prod_EU", "not a DNS label"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			path := filepath.Join(t.TempDir(), "config.yaml")
			text := strings.ReplaceAll(strings.Replace(good, tt.old, tt.new, 1), "caFile: CA", "caFile: "+ca)
			if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			_, err := settings.Load(path, settings.AccessRole)
			switch {
			case tt.says == "" && err != nil:
				t.Error(err)
			case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), path)):
				t.Errorf("error %v; want the file name and %q", err, tt.says)
			}
			if err != nil && strings.Contains(err.Error(), "settings.") {
				t.Errorf("the error contains Go types: %v", err)
			}
		})
	}
}

func TestOperatorNeedsNoTailnet(t *testing.T) {
	f, err := settings.Parse([]byte("signin: {roles: [view]}"))
	if err != nil {
		t.Fatal(err)
	}
	if err := f.Validate(settings.OperatorRole); err != nil {
		t.Error(err)
	}
	if f.Validate(settings.AccessRole) == nil {
		t.Error("access runs without a cluster")
	}
}

// What `tailplaned config` prints is a file that says the same.
func TestPrintedSettingsReadBack(t *testing.T) {
	f, err := settings.Parse([]byte(good))
	if err != nil {
		t.Fatal(err)
	}
	b, err := f.YAML()
	if err != nil {
		t.Fatal(err)
	}
	g, err := settings.Parse(b)
	if err != nil {
		t.Fatalf("%v in\n%s", err, b)
	}
	b2, _ := g.YAML()
	if string(b) != string(b2) {
		t.Errorf("printed\n%s\nread back\n%s", b, b2)
	}
}

func FuzzParse(f *testing.F) {
	f.Add([]byte(good))
	f.Fuzz(func(t *testing.T, b []byte) {
		if file, err := settings.Parse(b); err == nil {
			_ = file.Validate(settings.AllRoles)
		}
	})
}
