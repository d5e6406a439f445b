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

// The testbed has no DNS, and a pod has: Services have names there. A program that
// is to know some gets an /etc/hosts of its own, in a mount namespace of its own.

// CanName says why this machine does not let a program have names of its own, nil
// where it does.
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

// named is args in a place where hosts have their addresses. It becomes the program
// and starts none.
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

// Know gives names to the programs that start from now on, beside those of the
// machine: see CanName.
func (r *Env) Know(hosts map[string]string) { r.hosts = hosts }
