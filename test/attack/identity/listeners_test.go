package identity

import (
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/testkit/attacktest"
)

// onlyTheseListeners fails when the settings that the program prints contain a listener that these tests do not
// cover.
func onlyTheseListeners(t *testing.T, s *attacktest.Env) {
	t.Helper()
	res, err := s.Alice(t).Run(t.Context(), "tailplaned", "config", "--config", filepath.Join(s.Dir, "access", "config.yaml"))
	if err != nil || res.Exit != 0 {
		t.Fatalf("tailplaned config: %v %d %s", err, res.Exit, res.Stderr)
	}
	var settings map[string]any
	if err := yaml.Unmarshal([]byte(res.Stdout), &settings); err != nil {
		t.Fatal(err)
	}
	var found []string
	var walk func(at string, v any)
	walk = func(at string, v any) {
		sub, ok := v.(map[string]any)
		for name, v := range sub {
			walk(strings.TrimPrefix(at+"."+name, "."), v)
		}
		last := strings.ToLower(at[strings.LastIndexByte(at, '.')+1:])
		if !ok && slices.ContainsFunc([]string{"port", "listen", "addr", "bind", "health", "probe", "metrics", "socket"}, func(s string) bool { return strings.Contains(last, s) }) {
			found = append(found, at)
		}
	}
	walk("", settings)
	slices.Sort(found)
	// The recorder's port is that of another program's role, with tests of its own (PRX-12, PX-19).
	if !slices.Equal(found, []string{"gossip.port", "health", "recorder.port", "tailnet.port"}) {
		t.Errorf("the program listens by the settings %v; these tests drive the tailnet's two ports and probes", found)
	}
}
