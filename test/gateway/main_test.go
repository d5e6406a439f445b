//go:build linux

// Package gateway tests the gateway with real Envoy Gateway, Envoy and API server processes. No test replaces a
// component that it must prove. When a component is not available, the test is skipped with its name and the reason.
package gateway

import (
	"fmt"
	"os"
	"testing"

	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// refused is the reason why the suite has no namespaces. It is package state because TestMain has no other way to
// pass it to tests.
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

// needsNamespaces skips the test when the suite does not run in its own namespaces.
func needsNamespaces(t *testing.T) {
	t.Helper()
	if refused != nil {
		t.Skipf("SKIP namespaces: %v", refused)
	}
}

// verdictVariable names the file to which the suite writes whether a real Envoy carried traffic.
const verdictVariable = "TAILPLANE_TEST_VERDICT"

// envoyVerdict is the result for the real Envoy: "real <version>" after it carried the tests' requests.
var envoyVerdict string

// verdict writes the final line of the run. A run that selects other tests, for example with -run, has no result for
// Envoy.
func verdict(code int) error {
	v := envoyVerdict
	switch {
	case v == "" && refused != nil:
		v = "SKIP " + refused.Error()
	case v == "" && code != 0:
		v = "FAIL"
	case v == "":
		v = "SKIP no test of this run required it"
	}
	path := os.Getenv(verdictVariable)
	if path == "" {
		return nil
	}
	return os.WriteFile(path, fmt.Appendf(nil, "envoy: %s\n", v), 0o644)
}
