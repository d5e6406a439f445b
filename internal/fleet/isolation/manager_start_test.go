//go:build unix

package isolation_test

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// TestMain also acts as the program gitlab-runner, if it runs under that name.
func TestMain(m *testing.M) {
	if filepath.Base(os.Args[0]) == "gitlab-runner" {
		os.Exit(gitlabRunner(os.Getenv("DIR")))
	}
	os.Exit(m.Run())
}

// gitlabRunner behaves like GitLab's runner, which is a Go program too: SIGTERM aborts, and SIGQUIT
// waits for the job. Here the job ends when the file "done" exists.
func gitlabRunner(dir string) int {
	log, err := os.OpenFile(filepath.Join(dir, "log"), os.O_APPEND|os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return 1
	}
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGTERM, syscall.SIGQUIT)
	fmt.Fprintln(log, "args", strings.Join(os.Args[1:], " "))
	if <-signals == syscall.SIGTERM {
		fmt.Fprintln(log, "aborted")
		return 9
	}
	fmt.Fprintln(log, "draining")
	for deadline := time.Now().Add(5 * time.Minute); time.Now().Before(deadline); time.Sleep(20 * time.Millisecond) {
		if _, err := os.Stat(filepath.Join(dir, "done")); err == nil {
			fmt.Fprintln(log, "finished")
			return 0
		}
	}
	return 1
}

// FLEET-18, the script of a manager's pod: SIGTERM lets the job end, a changed Secret reloads the
// configuration, and a runner that cannot start ends the pod.
func TestFLEET18_Start(t *testing.T) {
	sh, err := exec.LookPath("sh")
	if err != nil {
		t.Skip("SKIP manager's start: no sh in PATH")
	}
	dir := t.TempDir()
	for _, sub := range []string{"etc", "var", "bin"} {
		if err := os.Mkdir(filepath.Join(dir, sub), 0o700); err != nil {
			t.Fatal(err)
		}
	}
	write := func(name, text string, mode os.FileMode) {
		t.Helper()
		next := filepath.Join(dir, name+".next") // like a kubelet
		if err := errors.Join(os.WriteFile(next, []byte(text), mode), os.Rename(next, filepath.Join(dir, name))); err != nil {
			t.Fatal(err)
		}
	}
	read := func(name string) string {
		b, _ := os.ReadFile(filepath.Join(dir, name))
		return string(b)
	}
	until := func(what string, done func() bool) {
		t.Helper()
		for deadline := time.Now().Add(90 * time.Second); !done(); time.Sleep(20 * time.Millisecond) {
			if time.Now().After(deadline) {
				t.Fatalf("not %s: log %q", what, read("log"))
			}
		}
	}
	objects, err := isolation.Objects(testSettings(), testWorkload(v1alpha1.GitLab, v1alpha1.UseShared, v1alpha1.IsolationNone))
	if err != nil {
		t.Fatal(err)
	}
	command := objects[1].(*appsv1.Deployment).Spec.Template.Spec.Containers[0].Command
	script := strings.NewReplacer("/etc/gitlab-runner", filepath.Join(dir, "etc"), "/var/lib/gitlab-runner", filepath.Join(dir, "var")).Replace(command[2])
	start := func() *exec.Cmd {
		t.Helper()
		cmd := exec.CommandContext(context.WithoutCancel(t.Context()), sh, "-c", script)
		cmd.Env = []string{"PATH=" + filepath.Join(dir, "bin") + ":" + os.Getenv("PATH"), "DIR=" + dir}
		cmd.SysProcAttr = &syscall.SysProcAttr{Setpgid: true}
		if err := cmd.Start(); err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = syscall.Kill(-cmd.Process.Pid, syscall.SIGKILL) }) // the process group, which may be gone already
		return cmd
	}

	// Without a configuration, the runner does not start.
	if err := start().Wait(); err == nil {
		t.Error("it runs without a configuration")
	}

	write("etc/config.toml", "one", 0o600)
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink(self, filepath.Join(dir, "bin", "gitlab-runner")); err != nil {
		t.Fatal(err)
	}
	cmd := start()
	until("started", func() bool {
		return strings.Contains(read("log"), "args run --config "+filepath.Join(dir, "var", "config.toml"))
	})
	if got := read("var/config.toml"); got != "one" {
		t.Errorf("it starts with the configuration %q", got)
	}
	write("etc/config.toml", "two", 0o600)
	until("read again", func() bool { return read("var/config.toml") == "two" })
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	until("draining", func() bool { return strings.Contains(read("log"), "draining") })
	if strings.Contains(read("log"), "aborted") || strings.Contains(read("log"), "finished") {
		t.Errorf("after SIGTERM: %q", read("log"))
	}
	write("done", "", 0o600)
	switch err := cmd.Wait(); {
	case err != nil:
		t.Errorf("it ends: %v", err)
	case !strings.Contains(read("log"), "finished"):
		t.Errorf(`it ends: strings.Contains(read("log"), "finished") is false; %v, %q`, err, read("log"))
	case strings.Contains(read("log"), "aborted"):
		t.Errorf(`it ends: strings.Contains(read("log"), "aborted") is true; %v, %q`, err, read("log"))
	}

	// The pod's exit code is that of the runner.
	write("bin/gitlab-runner", "#!/bin/sh\nexit 7\n", 0o700)
	var exit *exec.ExitError
	if err := start().Wait(); !errors.As(err, &exit) || exit.ExitCode() != 7 {
		t.Errorf("a runner that ends with 7: %v", err)
	}
}
