//go:build linux

package gateway

import (
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/buildcache"
)

// patience is the general timeout of the tests: the machine may be loaded.
const patience = 4 * time.Minute

// A process is a running program of the build cache.
type process struct {
	log  string // path of its log
	cmd  *exec.Cmd
	done chan struct{}
}

// program returns the path of a program of the build cache. It skips the test when the program is not available.
func program(t testing.TB, name string) string {
	t.Helper()
	path, err := buildcache.Lookup(name)
	if e, ok := errors.AsType[*buildcache.UnavailableError](err); ok {
		t.Skipf("SKIP %s: %s", name, e.Reason)
	}
	if err != nil {
		t.Fatal(err)
	}
	return path
}

// start starts a program that stops with the test. If the test fails, start prints the end of its log.
func start(t testing.TB, env []string, name string, args ...string) *process {
	t.Helper()
	path := program(t, name)
	log, err := os.Create(filepath.Join(t.TempDir(), name+".log"))
	if err != nil {
		t.Fatal(err)
	}
	defer log.Close()
	p := &process{log: log.Name(), cmd: exec.Command(path, args...), done: make(chan struct{})}
	p.cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + filepath.Dir(log.Name())}, env...)
	p.cmd.Stdout, p.cmd.Stderr = log, log
	p.cmd.SysProcAttr = &syscall.SysProcAttr{Pdeathsig: syscall.SIGKILL}
	started := make(chan error)
	go func() {
		runtime.LockOSThread() // the child dies with the thread that created it
		err := p.cmd.Start()
		started <- err
		if err == nil {
			_ = p.cmd.Wait()
		}
		close(p.done)
	}()
	if err := <-started; err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("the end of the output of %s:\n%s", name, p.tail(60))
		}
	})
	return p
}

// stop asks the process to end, and kills it after a while.
func (p *process) stop() {
	_ = p.cmd.Process.Signal(syscall.SIGTERM)
	select {
	case <-p.done:
	case <-time.After(30 * time.Second):
		_ = p.cmd.Process.Kill()
		<-p.done
	}
}

func (p *process) tail(lines int) string {
	b, err := os.ReadFile(p.log)
	if err != nil {
		return err.Error()
	}
	all := strings.Split(strings.TrimSpace(string(b)), "\n")
	return strings.Join(all[max(0, len(all)-lines):], "\n")
}

// run runs a program to its end.
func run(t testing.TB, env []string, name string, args ...string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), patience)
	defer cancel()
	cmd := exec.CommandContext(ctx, program(t, name), args...)
	cmd.Env = append([]string{"PATH=" + os.Getenv("PATH"), "HOME=" + t.TempDir()}, env...)
	out, err := cmd.CombinedOutput()
	if err != nil {
		t.Fatalf("%s %s: %v\n%s", name, strings.Join(args, " "), err, out)
	}
	return string(out)
}

// await polls until ok is true.
func await(t testing.TB, what string, ok func() bool) {
	t.Helper()
	tick := time.NewTicker(20 * time.Millisecond)
	defer tick.Stop()
	for end := time.After(patience); ; {
		if ok() {
			return
		}
		select {
		case <-tick.C:
		case <-end:
			t.Fatalf("not within %v: %s", patience, what)
		}
	}
}
