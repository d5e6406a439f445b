//go:build unix

package kubetest_test

// TB-03: how clusters start, stop, restart and end with their owner.

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

// TB-03: after a crash and after an orderly restart, the data, the kubeconfig and an earlier token are still valid.
func TestRestartOnKeptState(t *testing.T) {
	t.Parallel()
	c := kubetest.New(t, kubetest.Options{Name: "restart"})
	cs := clientset(t, c.AdminConfig())
	if _, err := cs.CoreV1().ConfigMaps("default").Create(t.Context(), &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Name: "kept"}}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	bearer := clientset(t, c.TokenConfig(token(t, cs, "default", "default", nil)))
	if _, err := whoami(t, bearer); err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		how string
		end func() error
	}{
		{"killed", c.Kill},
		{"stopped", c.Stop},
		{"running", func() error { return nil }},
		{"paused", c.Pause},
	} {
		before := c.PID()
		if err := tc.end(); err != nil {
			t.Fatalf("%s: %v", tc.how, err)
		}
		start := time.Now()
		if err := c.Restart(t.Context()); err != nil {
			t.Fatalf("%s: %v", tc.how, err)
		}
		t.Logf("%s: restart took %v", tc.how, time.Since(start).Round(time.Millisecond))
		if c.PID() == before || c.PID() == 0 {
			t.Errorf("%s: process %d before and %d after", tc.how, before, c.PID())
		}
		// New clients, from the file on disk and from the old token.
		if _, err := clientset(t, c.AdminConfig()).CoreV1().ConfigMaps("default").Get(t.Context(), "kept", metav1.GetOptions{}); err != nil {
			t.Errorf("%s: %v", tc.how, err)
		}
		if _, errs, exit := kubetest.Kubectl(t.Context(), c.Kubeconfig, "get", "configmap", "kept"); exit != 0 {
			t.Errorf("%s: kubectl: %s", tc.how, errs)
		}
		if who, err := whoami(t, bearer); err != nil || who.Username != "system:serviceaccount:default:default" {
			t.Errorf("%s: the old token: %q, %v", tc.how, who.Username, err)
		}
	}
}

// TB-03: a paused cluster does not respond, and Resume continues it in the same state.
func TestPauseAndResume(t *testing.T) {
	t.Parallel()
	c := kubetest.New(t, kubetest.Options{Name: "pause", NoControllers: true})
	config := c.AdminConfig()
	config.Timeout = 500 * time.Millisecond
	cs := clientset(t, config)
	if err := c.Pause(); err != nil {
		t.Fatal(err)
	}
	if _, err := cs.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{}); err == nil {
		t.Error("a paused cluster has answered")
	}
	if err := c.Resume(); err != nil {
		t.Fatal(err)
	}
	eventually(t, "answers after Resume", func() bool {
		_, err := cs.CoreV1().Namespaces().List(t.Context(), metav1.ListOptions{})
		return err == nil
	})
	if err := c.Stop(); err != nil {
		t.Fatal(err)
	}
	if err := c.Pause(); err == nil {
		t.Error("a stopped cluster was paused")
	}
	if c.PID() != 0 {
		t.Errorf("a stopped cluster has process %d", c.PID())
	}
}

// TB-03: three clusters run at the same time, each with its own CA and keys.
func TestThreeClustersAtOnce(t *testing.T) {
	kubetest.SkipIfShort(t)
	t.Parallel()
	var wg sync.WaitGroup
	clusters := make([]*kubetest.Cluster, 3)
	errs := make([]error, 3)
	start := time.Now()
	for i := range clusters {
		wg.Go(func() {
			clusters[i], errs[i] = kubetest.Run(t.Context(), kubetest.Options{Name: fmt.Sprint("three", i)})
		})
	}
	wg.Wait()
	for _, c := range clusters {
		if c != nil {
			t.Cleanup(func() {
				if err := c.Close(); err != nil {
					t.Error(err)
				}
			})
		}
	}
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	t.Logf("three ready after %v, resident %v MB", time.Since(start).Round(time.Millisecond), resident(t, clusters))
	bearer := token(t, clientset(t, clusters[0].AdminConfig()), "default", "default", nil)
	for i, c := range clusters {
		config := c.TokenConfig(bearer)
		_, err := whoami(t, clientset(t, config))
		if i == 0 && err != nil {
			t.Errorf("the issuer refuses its own token: %v", err)
		}
		if i > 0 && !apierrors.IsUnauthorized(err) {
			t.Errorf("cluster %d and a token of cluster 0: %v", i, err)
		}
		config.CAData = clusters[(i+1)%3].CA
		if _, err := whoami(t, clientset(t, config)); err == nil || apierrors.IsUnauthorized(err) {
			t.Errorf("cluster %d was taken for cluster %d: %v", i, (i+1)%3, err)
		}
	}
}

// resident returns the resident memory of each process in MB, if /proc reports it.
func resident(t *testing.T, clusters []*kubetest.Cluster) []int {
	t.Helper()
	var mb []int
	for _, c := range clusters {
		b, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.PID()))
		if err != nil {
			return nil
		}
		for l := range strings.Lines(string(b)) {
			if kb, ok := strings.CutPrefix(l, "VmRSS:"); ok {
				n, err := strconv.Atoi(strings.TrimSpace(strings.TrimSuffix(strings.TrimSpace(kb), "kB")))
				if err != nil {
					t.Fatal(err)
				}
				mb = append(mb, n>>10)
			}
		}
	}
	return mb
}

// owned is the report of the child process of TestKilledOwner about its clusters.
type owned struct {
	PIDs    []int
	Servers []string
	Dirs    []string
}

// childVariable makes this test binary start clusters and hold them until it is killed. It runs no tests.
const childVariable = "KUBETEST_TEST_OWNER"

func TestMain(m *testing.M) {
	if os.Getenv(childVariable) != "" {
		fmt.Fprintln(os.Stderr, hold())
		os.Exit(1)
	}
	os.Exit(m.Run())
}

// hold starts a running and a paused cluster, and prints them. It does not return unless it fails.
func hold() error {
	var o owned
	for _, pause := range []bool{false, true} {
		c, err := kubetest.Run(context.Background(), kubetest.Options{NoControllers: pause})
		if err != nil {
			return err
		}
		if pause {
			if err := c.Pause(); err != nil {
				return err
			}
		}
		o.PIDs = append(o.PIDs, c.PID())
		o.Servers = append(o.Servers, strings.TrimPrefix(c.Server, "https://"))
		o.Dirs = append(o.Dirs, filepath.Dir(c.Kubeconfig))
	}
	if err := json.NewEncoder(os.Stdout).Encode(o); err != nil {
		return err
	}
	select {}
}

// TB-03: after kill -9 of the test binary, no process, listener or state remains after five seconds. This includes a
// paused cluster.
func TestKilledOwner(t *testing.T) {
	kubetest.SkipIfShort(t)
	t.Parallel()
	cmd := exec.CommandContext(t.Context(), os.Args[0])
	cmd.Env = append(os.Environ(), childVariable+"=1")
	cmd.Stderr = os.Stderr
	stdout, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	var o owned
	lines := bufio.NewScanner(stdout)
	for lines.Scan() && json.Unmarshal(lines.Bytes(), &o) != nil {
		t.Log("child:", lines.Text())
	}
	if len(o.PIDs) != 2 {
		_ = cmd.Process.Kill()
		t.Fatalf("the child did not start its clusters: %v", cmd.Wait())
	}
	for _, pid := range o.PIDs {
		if !alive(pid) {
			t.Errorf("cluster %d does not run before the kill", pid)
		}
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // it was killed, so there is an error
	looks := eventually(t, "no process, no listener, no state after kill -9", func() bool {
		for i, pid := range o.PIDs {
			if alive(pid) || listening(o.Servers[i]) || exists(o.Dirs[i]) {
				return false
			}
		}
		return true
	})
	// This limit is five seconds on an idle machine, where one poll takes ten milliseconds. Counting polls extends
	// the limit on a slow machine.
	if looks > 500 {
		t.Errorf("it was still there at the look %d", looks-1)
	}
}

// alive reports whether the process exists and is not a zombie. The test does not check which process reaps it.
func alive(pid int) bool {
	if err := syscall.Kill(pid, 0); err != nil {
		return false
	}
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return !errors.Is(err, os.ErrNotExist) || !exists("/proc/self")
	}
	_, after, _ := strings.Cut(string(stat), ") ")
	return !strings.HasPrefix(after, "Z")
}

func listening(addr string) bool {
	conn, err := net.DialTimeout("tcp", addr, time.Second)
	if err != nil {
		return false
	}
	conn.Close()
	return true
}

func exists(path string) bool {
	_, err := os.Stat(path)
	return err == nil
}

// TB-03: a cluster that cannot start reports the reason in one sentence.
func TestStartFailures(t *testing.T) {
	kubetest.SkipIfShort(t)
	c, err := kubetest.Run(t.Context(), kubetest.Options{Args: []string{"--no-such-flag=1"}})
	if err == nil {
		t.Error("an unknown flag was taken:", c.Close())
	} else if !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("the error does not name the flag: %v", err)
	}

	bin, err := buildcache.Lookup("devcluster")
	if err != nil {
		t.Fatal(err)
	}
	long := filepath.Join(t.TempDir(), strings.Repeat("d", 100))
	out, err := exec.CommandContext(t.Context(), bin, "-dir", long).CombinedOutput()
	if _, exited := errors.AsType[*exec.ExitError](err); !exited || !strings.Contains(string(out), "too long for a Unix socket") {
		t.Errorf("a long path: %v, %s", err, out)
	}
	if lines := strings.Count(strings.TrimSpace(string(out)), "\n"); lines > 0 {
		t.Errorf("more than a sentence: %s", out)
	}

	busy := kubetest.Start(t)
	out, err = exec.CommandContext(t.Context(), bin, "-ephemeral", "-dir", filepath.Dir(busy.Kubeconfig)).CombinedOutput()
	if err == nil || !strings.Contains(string(out), "another devcluster is running") {
		t.Errorf("a second process in one state directory: %v, %s", err, out)
	}
	if _, err := os.Stat(busy.Kubeconfig); err != nil {
		t.Errorf("the second process, ephemeral and without an owner, removed the first one's state: %v", err)
	}
}

// A binary that was not built is a failure that names the command.
func TestMissingBinary(t *testing.T) {
	t.Setenv("XDG_CACHE_HOME", t.TempDir())
	c, err := kubetest.Run(t.Context(), kubetest.Options{})
	if err == nil {
		t.Fatal("a cluster without a binary:", c.Close())
	}
	if !strings.Contains(err.Error(), "run: make testbed") {
		t.Errorf("got %v", err)
	}
	if _, errs, exit := kubetest.Kubectl(t.Context(), "", "version"); exit != -1 || !strings.Contains(errs, "run: make testbed") {
		t.Errorf("kubectl: %q, %d", errs, exit)
	}
}

// A cluster that ends by itself is reported, and not treated as stopped.
func TestEndsByItself(t *testing.T) {
	kubetest.SkipIfShort(t)
	t.Parallel()
	c, err := kubetest.Run(t.Context(), kubetest.Options{Name: "dies", NoControllers: true})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := syscall.Kill(c.PID(), syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	if err := c.Stop(); err == nil || !strings.Contains(err.Error(), "ended unexpectedly") {
		t.Errorf("Stop of a cluster that is dying: %v", err)
	}
	if err := c.Restart(t.Context()); err != nil {
		t.Fatal(err)
	}
	pid := c.PID()
	if err := syscall.Kill(pid, syscall.SIGKILL); err != nil {
		t.Fatal(err)
	}
	eventually(t, "it has ended", func() bool { return errors.Is(syscall.Kill(pid, 0), syscall.ESRCH) })
	if err := c.Close(); err == nil || !strings.Contains(err.Error(), "ended unexpectedly") {
		t.Errorf("Close of a dead cluster: %v", err)
	}
	if exists(filepath.Dir(c.Kubeconfig)) {
		t.Error("its state is still there")
	}
}
