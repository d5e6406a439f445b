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

// Kubectl runs the real kubectl with a kubeconfig, and returns its output and exit code. kubeconfig is a path, or a
// list of paths as in $KUBECONFIG. If kubectl did not start or ctx ended it, the exit code is -1 and stderr ends with
// the reason. It uses no settings or caches of the user.
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
	cmd.WaitDelay = 5 * time.Second // a credential plugin may keep the pipes open
	err = cmd.Run()
	if _, exited := errors.AsType[*exec.ExitError](err); err != nil && (!exited || ctx.Err() != nil) {
		errs.WriteString(err.Error())
		return out.String(), errs.String(), -1
	}
	return out.String(), errs.String(), cmd.ProcessState.ExitCode()
}
