package kubetest_test

import (
	"os"
	"os/exec"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// again runs one test of this binary in a process that has only the given environment variables.
func again(t *testing.T, test string, env ...string) (string, error) {
	t.Helper()
	cmd := exec.CommandContext(t.Context(), os.Args[0], "-test.run", "^"+test+"$", "-test.v")
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH")}, env...)
	out, err := cmd.CombinedOutput()
	return string(out), err
}

// TB-11: a program that was not built is a failure that names the command. The test does not skip or pass.
func TestTB11_AMissingBinaryFails(t *testing.T) {
	kubetest.SkipIfShort(t)
	t.Parallel()
	out, err := again(t, "TestImpersonation", "HOME="+t.TempDir(), "XDG_CACHE_HOME="+t.TempDir())
	switch {
	case err == nil:
		t.Error("no error")
	case !strings.Contains(out, "run: make testbed"):
		t.Errorf("out = %q does not contain %q", out, "run: make testbed")
	case strings.Contains(out, "--- PASS"):
		t.Errorf("out = %q contains %q", out, "--- PASS")
	case strings.Contains(out, "--- SKIP"):
		t.Errorf("out = %q contains %q", out, "--- SKIP")
	}
}

// TB-12: a test of one package needs nothing from make's environment.
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
