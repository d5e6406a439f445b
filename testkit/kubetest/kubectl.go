//go:build unix

package kubetest

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/buildcache"
)

// Kubectl runs the real kubectl with a kubeconfig (a path, or a list of paths as in $KUBECONFIG) and returns what it
// printed and its exit code. A kubectl that could not be run, or was cut short by the context, has the code -1 and its
// reason at the end of stderr. It reads and writes no settings or caches of the user.
func Kubectl(ctx context.Context, kubeconfig string, args ...string) (stdout, stderr string, exit int) {
	bin, err := buildcache.Lookup("kubectl")
	if err != nil {
		return "", err.Error(), -1
	}
	cache, err := os.MkdirTemp("", "kubectl")
	if err != nil {
		return "", err.Error(), -1
	}
	defer os.RemoveAll(cache)
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, bin, args...)
	cmd.Stdout, cmd.Stderr = &out, &errs
	for _, e := range os.Environ() {
		if !strings.HasPrefix(e, "KUBE") {
			cmd.Env = append(cmd.Env, e)
		}
	}
	cmd.Env = append(cmd.Env, "KUBECONFIG="+kubeconfig, "KUBECACHEDIR="+cache, "KUBERC=off")
	cmd.WaitDelay = 5 * time.Second // a credential plugin may hold the pipes
	err = cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && (!exited || ctx.Err() != nil) {
		errs.WriteString(err.Error())
		return out.String(), errs.String(), -1
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
