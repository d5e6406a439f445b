package server

import (
	"encoding/pem"
	"net/http/httptest"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/settings"
)

// Loading the settings runs the checks of package gossip. The error names the file and comes before the server joins its tailnet.
func TestGossipSettings(t *testing.T) {
	srv := httptest.NewTLSServer(nil)
	defer srv.Close()
	ca := filepath.Join(t.TempDir(), "ca.crt")
	if err := os.WriteFile(ca, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: srv.Certificate().Raw}), 0o600); err != nil {
		t.Fatal(err)
	}
	key := httpapi.PublicKey{1}.String()
	for _, tt := range []struct{ gossip, says string }{
		{"{}", ""},
		{"{pins: [{id: a, key: \"" + key + "\"}], allowEndpoints: [10.0.0.0/8, \"*.corp.example\"], maxMessageBytes: 12288}", ""},
		{"{pins: [{id: a, key: \"" + key + "\"}, {id: a, key: b}]}", "gossip.pins: entry 2 needs the id and the key"},
		{"{pins: [{id: \"a b\", key: \"" + key + "\"}]}", "gossip.pins"},
		{"{allowEndpoints: [10.0.0.0/99]}", "gossip.allowEndpoints: \"10.0.0.0/99\""},
		{"{allowEndpoints: [\"k8s_*.example\"]}", "gossip.allowEndpoints"},
		{"{maxMessageBytes: 8192}", "gossip.maxMessageBytes: 8192"},
		{"{maxMessageBytes: 100000}", "gossip.maxMessageBytes: 100000"},
		{"{fanout: 11}", "gossip.fanout: 11"},
		{"{enabled: false, allowEndpoints: [nonsense/8]}", ""},
	} {
		dir := t.TempDir()
		file := filepath.Join(dir, "config.yaml")
		text := "cluster: {name: prod-eu, server: \"https://k8s.prod-eu.example:6443\", caFile: " + ca + "}\nsignin: {roles: [view]}\ngossip: " + tt.gossip + "\n"
		if err := os.WriteFile(file, []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		_, err := load(file, settings.AccessRole)
		if tt.says == "" && err != nil || tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says) || !strings.Contains(err.Error(), file)) {
			t.Errorf("%s: %v, want %q", tt.gossip, err, tt.says)
		}
	}
}

// Only a refusal of a caller that is no member counts as one of a stranger (GO-06).
func TestIsNonMember(t *testing.T) {
	n := 0
	for _, c := range problem.Codes() {
		if isNonMember(c) {
			n++
		}
	}
	switch {
	case n != 7:
		t.Errorf("n = %v, want 7", n)
	case !isNonMember(problem.NotAMember):
		t.Errorf("isNonMember(problem.NotAMember) is false; %d", n)
	case isNonMember(problem.RateLimited):
		t.Errorf("isNonMember(problem.RateLimited) is true; %d", n)
	case isNonMember(""):
		t.Errorf(`isNonMember("") is true; %d`, n)
	}
}
