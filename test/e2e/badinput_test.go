package e2e

import (
	"context"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// Bad input to the server gives one sentence that says what to do, and the exit code of the contract: 2 for wrong
// settings, 1 for problems of the environment. No file is left incomplete.
func TestBadInput(t *testing.T) {
	r := start(t)
	text, err := r.Settings("access")
	if err != nil {
		t.Fatal(err)
	}
	good := strings.ReplaceAll(string(text), filepath.Join(r.Dir, "access", "state"), "STATE")
	good = strings.ReplaceAll(good, filepath.Join(r.Dir, "authkey"), "AUTHKEY")
	kubeconfig := filepath.Join(r.Dir, "access", "tailplane-access.kubeconfig")
	if found, err := filepath.Glob(filepath.Join(r.Dir, "access", "*kubeconfig*")); err == nil && len(found) == 1 {
		kubeconfig = found[0]
	}
	expired := r.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}, Expires: time.Now().Add(-time.Minute)})
	for _, tt := range []struct {
		name     string
		old, new string
		authKey  string
		fullDisk bool
		args     []string
		exit     int
		says     []string
	}{
		{name: "malformed file", old: "cluster:", new: "cluster: [", exit: 2, says: []string{"config.yaml", "line"}},
		{name: "unknown key", old: "signin:", new: "signin:\n  rolez: [x]", exit: 2, says: []string{"config.yaml", "rolez is not a setting of signin"}},
		{name: "no such file", args: []string{"--config", "/nowhere/config.yaml"}, exit: 2, says: []string{"/nowhere/config.yaml", "--config"}},
		{name: "unknown flag", args: []string{"--nonsense"}, exit: 2, says: []string{"nonsense"}},
		{name: "no kubeconfig", args: []string{"--kubeconfig", "/nowhere/kubeconfig"}, exit: 1, says: []string{"/nowhere/kubeconfig"}},
		{name: "API server does not answer", args: []string{"--kubeconfig", "UNREACHABLE"}, exit: 1, says: []string{"API server", "did not answer", "--kubeconfig"}},
		{name: "expired auth key", authKey: expired, exit: 1, says: []string{"key"}},
		{name: "an unknown auth key", authKey: "tskey-auth-wrong", exit: 1, says: []string{"key"}},
		{name: "full disk", fullDisk: true, exit: 1, says: []string{"space"}},
		{name: "state is a file", old: "stateDir: STATE", new: "stateDir: /etc/hostname", exit: 1, says: []string{"/etc/hostname"}},
	} {
		t.Run(tt.name, func(t *testing.T) {
			t.Parallel()
			dir := t.TempDir()
			key := tt.authKey
			if key == "" {
				key = r.Net.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})
			}
			write(t, filepath.Join(dir, "key"), key)
			state := filepath.Join(dir, "state")
			if err := os.Mkdir(state, 0o700); err != nil {
				t.Fatal(err)
			}
			if tt.fullDisk {
				fill(t, state)
			}
			settings := strings.Replace(good, tt.old, tt.new, 1)
			settings = strings.NewReplacer("STATE", state, "AUTHKEY", filepath.Join(dir, "key"), "hostname: tka", "hostname: other", r.AuditFile(), filepath.Join(dir, "audit.jsonl")).Replace(settings)
			args := tt.args
			if len(args) == 0 || args[0] != "--kubeconfig" {
				args = append([]string{"--kubeconfig", kubeconfig}, args...)
			}
			if args[1] == "UNREACHABLE" {
				b, err := os.ReadFile(kubeconfig)
				if err != nil {
					t.Fatal(err)
				}
				args[1] = filepath.Join(dir, "kubeconfig")
				write(t, args[1], strings.Replace(string(b), r.Cluster.Server, "https://127.0.0.1:1", 1))
			}
			p, err := r.Try(strings.ReplaceAll("bad "+tt.name, " ", "-"), "access", nil, settings, args...)
			if err != nil {
				t.Fatal(err)
			}
			defer p.Stop(10 * time.Second)
			ctx, cancel := context.WithTimeout(t.Context(), 90*time.Second)
			defer cancel()
			select {
			case <-p.Done():
			case <-ctx.Done():
				t.Fatalf("it continues: %s", p.Output())
			}
			lines := strings.Split(strings.TrimSpace(p.Output()), "\n")
			last := lines[len(lines)-1]
			if p.ExitCode() != tt.exit || !strings.HasPrefix(last, "tailplaned: ") {
				t.Errorf("exit %d, want %d:\n%s", p.ExitCode(), tt.exit, p.Output())
			}
			for _, s := range tt.says {
				if !strings.Contains(last, s) {
					t.Errorf("the last line does not contain %q: %s", s, last)
				}
			}
			if strings.Contains(p.Output(), "goroutine ") || strings.Contains(p.Output(), key) {
				t.Errorf("a stack trace or the key:\n%s", p.Output())
			}
		})
	}
}

// A capability value that is not an object gives the caller a 400. It does not stop the server.
func TestCapabilityOfAnotherType(t *testing.T) {
	r := start(t)
	p := person(t, r, "henry", "henry@example.com")
	original := r.Net.Policy()
	defer func() {
		if err := r.Net.SetPolicy(original); err != nil {
			t.Fatal(err)
		}
	}()
	for _, value := range []string{`"view"`, `7`, `true`, `[["view"]]`, `{"role": {"name": "view"}, "period": "1h"}`} {
		grant := `{"src": ["henry@example.com"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [` + value + `]}}, `
		if err := r.Net.SetPolicy(strings.Replace(original, `"grants": [`, `"grants": [`+grant, 1)); err != nil {
			t.Fatalf("%s: %v", value, err)
		}
		var got testenv.Result
		eventually(t, 3*time.Second, "the rule arrives", func() bool {
			var err error
			if got, err = p.Run(t.Context(), "tka", "login"); err != nil {
				t.Fatal(err)
			}
			return !strings.Contains(got.Stderr, "has no tailplane.dev/cap/access grant")
		})
		if got.Exit == 0 || !strings.Contains(got.Stderr, "Rule 1 of tailplane.dev/cap/access") {
			t.Errorf("%s: exit %d %s", value, got.Exit, got.Stderr)
		}
	}
}

func write(t *testing.T, path, text string) {
	t.Helper()
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

// fill mounts a file system without a free block at dir.
func fill(t *testing.T, dir string) {
	t.Helper()
	if err := syscall.Mount("tmpfs", dir, "tmpfs", 0, "size=4k,mode=700"); err != nil {
		t.Skipf("SKIP full disk: no file system can be mounted here: %v", err)
	}
	t.Cleanup(func() { syscall.Unmount(dir, 0) })
	if err := os.WriteFile(filepath.Join(dir, "full"), make([]byte, 4096), 0o600); err != nil {
		t.Fatal(err)
	}
}
