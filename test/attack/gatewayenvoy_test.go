package attack

import (
	"context"
	"os/exec"
	"regexp"
	"strings"
	"testing"
)

// GW-13. Policies of a whole Gateway, one that asks for a token and one that lets nobody
// in, guard an injected route too, however its path is spelled; what only begins like it
// is another route; and headers that name a caller of the tailnet reach nobody.
//
// It runs where a real Envoy Gateway and a real Envoy do, in namespaces of their own
// (test/gateway, with relays and a tailnet); what goes in and comes out is in guarded there.
//
// Guard: gatewayxds, which gives an injected route the filters of its host's, and the
// listener the removal of those headers; gateway.Route.Prefix, which ends at a separator.
func TestGW13_GatewayWidePolicies(t *testing.T) {
	ctx, cancel := context.WithTimeout(t.Context(), 3*long)
	defer cancel()
	cmd := exec.CommandContext(ctx, "go", "test", "-count=1", "-v", "-timeout=14m", "-run=^TestGTW35_Whole$", ".")
	cmd.Dir = "../gateway"
	b, err := cmd.CombinedOutput()
	out := string(b)
	if reason := regexp.MustCompile(`SKIP (envoy|envoy-gateway|namespaces): .*`).FindString(out); err == nil && reason != "" {
		t.Skip(reason)
	}
	if err != nil || !strings.Contains(out, "--- PASS: TestGTW35_Whole/GW13 ") {
		lines := strings.Split(out, "\n")
		t.Fatalf("%v\n%s", err, strings.Join(lines[max(0, len(lines)-150):], "\n"))
	}
}
