package kubetest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// again runs one test of this binary in a process with only the given environment.
func again(t *testing.T, test string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+test+"$", "-test.v")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TB-11: a part that nobody built is a failure that names the command, never a
// skip and never a pass.
func TestTB11_AMissingBinaryFails(t *testing.T) {
	kubetest.SkipIfShort(t)
	t.Parallel()
	out, err := again(t, "TestImpersonation", "HOME="+t.TempDir(), "XDG_CACHE_HOME="+t.TempDir())
	if err == nil || !strings.Contains(out, "run: make testbed") || strings.Contains(out, "--- PASS") || strings.Contains(out, "--- SKIP") {
		t.Errorf("%v:\n%s", err, out)
	}
}

// TB-12: a test of one room needs nothing of make's environment.
func TestTB12_RunsWithoutMake(t *testing.T) {
	kubetest.SkipIfShort(t)
	t.Parallel()
	env := []string{"HOME=" + os.Getenv("HOME")}
	if dir := os.Getenv("XDG_CACHE_HOME"); dir != "" {
		env = append(env, "XDG_CACHE_HOME="+dir)
	}
	if out, err := again(t, "TestImpersonation", env...); err != nil || !strings.Contains(out, "--- PASS: TestImpersonation") {
		t.Errorf("%v:\n%s", err, out)
	}
}
