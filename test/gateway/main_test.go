//go:build linux

// Package gateway holds the tests of the gateway on real parts: Envoy Gateway, Envoy, an API server. Nothing in it stands in
// for a part that it is there to prove; what cannot be had is skipped, by name and with the reason.
package gateway

import (
	"fmt"
	"os"
	"testing"

	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// refused says why there are no namespaces to run in. It is package state because TestMain has no other way to tell tests.
var refused error

func TestMain(m *testing.M) {
	if os.Getenv(insideVariable) == "" {
		code, err := enter()
		if err == nil {
			os.Exit(code)
		}
		refused = err
	} else {
		refused = furnish()
	}
	tailnettest.Quiet()
	code := m.Run()
	if err := verdict(code); err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = max(code, 1)
	}
	os.Exit(code)
}

// needsNamespaces skips where the suite has none of its own.
func needsNamespaces(t *testing.T) {
	t.Helper()
	if refused != nil {
		t.Skipf("SKIP namespaces: %v", refused)
	}
}

// verdictVariable names the file that is told at the end whether a real Envoy carried traffic.
const verdictVariable = "TAILPLANE_TEST_VERDICT"

// envoyVerdict is what became of the real Envoy: "real <version>" when it carried what the tests sent.
var envoyVerdict string

// verdict writes the line that the run ends with. No test may have asked for Envoy, as with -run.
func verdict(code int) error {
	v := envoyVerdict
	switch {
	case v == "" && refused != nil:
		v = "SKIP " + refused.Error()
	case v == "" && code != 0:
		v = "FAIL"
	case v == "":
		v = "SKIP no test of this run asked for it"
	}
	path := os.Getenv(verdictVariable)
	if path == "" {
		return nil
	}
	return os.WriteFile(path, fmt.Appendf(nil, "envoy: %s\n", v), 0o644)
}
