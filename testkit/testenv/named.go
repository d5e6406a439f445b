package testenv

import (
	"bytes"
	"context"
	"fmt"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"time"
)

// The testbed has no DNS, but a pod resolves names of Services. A program that needs such names gets its own
// /etc/hosts in its own mount namespace.

// CanName returns nil if this machine can give a program its own host names, and otherwise the reason why not.
func CanName(ctx context.Context) error {
	dir, err := os.MkdirTemp("", "names")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	args, err := named(dir, map[string]string{"a.b.svc": "127.0.0.1"}, []string{"grep", "-q", "a.b.svc", "/etc/hosts"})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithTimeout(ctx, 30*time.Second)
	defer cancel()
	if out, err := exec.CommandContext(ctx, args[0], args[1:]...).CombinedOutput(); err != nil {
		return fmt.Errorf("an /etc/hosts for one program: %w: %s", err, bytes.TrimSpace(out))
	}
	return nil
}

// named returns a command line that runs args with the addresses of hosts. The wrapper replaces itself by the program
// and starts no child process.
func named(dir string, hosts map[string]string, args []string) ([]string, error) {
	text, err := os.ReadFile("/etc/hosts")
	if err != nil {
		return nil, err
	}
	for _, name := range slices.Sorted(maps.Keys(hosts)) {
		text = fmt.Appendf(text, "\n%s\t%s\n", hosts[name], name)
	}
	file := filepath.Join(dir, "hosts")
	if err := os.WriteFile(file, text, 0o644); err != nil {
		return nil, err
	}
	apart := []string{"unshare", "--mount"}
	if os.Geteuid() != 0 {
		apart = append(apart, "--map-root-user")
	}
	return append(append(apart, "sh", "-c", `mount --bind "$0" /etc/hosts && exec "$@"`, file), args...), nil
}

// Know sets additional host names for the programs that start after the call. See CanName.
func (r *Env) Know(hosts map[string]string) { r.hosts = hosts }
