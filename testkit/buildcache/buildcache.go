// Package buildcache stores the binaries that the testbed runs, one file per program and cache key. The key covers
// every input of the build. A binary with the right key exists, or the lookup fails with the command to run.
//
// Go's own build cache is not sufficient: for the cluster alone it grows by 2.9 GB, and a cold build takes eight
// minutes.
package buildcache

import (
	"bufio"
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"maps"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/util/retry"
	"github.com/tailplane/tailplane/internal/util/safefile"
)

// kept is the number of keys per program that stay after a build: this tree's, and two for other branches.
const kept = 3

// Cache is a directory of binaries for one source tree.
type Cache struct {
	Dir      string             // contains <name>-<key>, and temporarily locks and temporary files
	Root     string             // root of the product's source tree; Program.Module is relative to it
	Programs map[string]Program // all programs, by name
	Log      io.Writer          // log of builds; required by Build
	Terminal bool               // Log is a terminal: progress is one line that is overwritten
}

// Open returns the cache of the source tree around the working directory, with every program of the testbed.
func Open() (*Cache, error) {
	base := os.Getenv("XDG_CACHE_HOME")
	if base == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, fmt.Errorf("cache folder: %w", err)
		}
		base = filepath.Join(home, ".cache")
	}
	root, err := findRoot()
	if err != nil {
		return nil, err
	}
	return &Cache{Dir: filepath.Join(base, "tailplane", "bin"), Root: root, Programs: programs(), Log: io.Discard}, nil
}

// Lookup returns the path of the program's binary for the source tree around the working directory. If the binary was
// not built, the error is a MissingError, which names the command to run.
func Lookup(name string) (string, error) {
	c, err := Open()
	if err != nil {
		return "", err
	}
	return c.Lookup(name)
}

// MissingError is the error for a program that was not built for this source tree.
type MissingError struct {
	Name string // name of the program
	Path string // expected path of the binary
}

func (e *MissingError) Error() string {
	return fmt.Sprintf("%s is not built for this source tree (no %s); run: make testbed", e.Name, e.Path)
}

// Names returns the names of all programs, sorted.
func (c *Cache) Names() []string { return slices.Sorted(maps.Keys(c.Programs)) }

// Present reports whether this tree has the program's sources. The sources of a foreign program come with its module.
func (c *Cache) Present(name string) bool {
	p, ok := c.Programs[name]
	if !ok || !p.Sources {
		return ok
	}
	files, err := filepath.Glob(filepath.Join(c.Root, p.Module, p.Package, "*.go"))
	return err == nil && len(files) > 0
}

// Lookup returns the path of the program's binary. It builds nothing. If an earlier attempt to get the program
// failed, the error is an UnavailableError.
func (c *Cache) Lookup(name string) (string, error) {
	if o := c.Programs[name].Override; o != "" && os.Getenv(o) != "" {
		return os.Getenv(o), nil
	}
	path, err := c.path(name)
	if err != nil {
		return "", err
	}
	switch _, err := os.Stat(path); {
	case errors.Is(err, os.ErrNotExist):
		if why, err := os.ReadFile(c.note(name)); err == nil {
			return "", &UnavailableError{Name: name, Reason: string(why)}
		}
		return "", &MissingError{Name: name, Path: path}
	case err != nil:
		return "", err
	}
	// prune keeps the newest files by modification time, so this marks the binary as used now.
	now := time.Now()
	_ = os.Chtimes(path, now, now)
	return path, nil
}

func (c *Cache) path(name string) (string, error) {
	p, ok := c.Programs[name]
	if !ok {
		return "", fmt.Errorf("no program %q: there are %s", name, strings.Join(c.Names(), ", "))
	}
	key, err := c.key(p)
	if err != nil {
		return "", fmt.Errorf("key of %s: %w", name, err)
	}
	return filepath.Join(c.Dir, name+"-"+key), nil
}

// Build returns the path of the program's binary. If the binary is missing, Build builds it first. Concurrent
// callers, also in other processes, wait for one build and use its result.
func (c *Cache) Build(ctx context.Context, name string) (string, error) {
	path, err := c.Lookup(name)
	if !absent(err) {
		return path, err
	}
	if err := os.MkdirAll(c.Dir, 0o755); err != nil {
		return "", err
	}
	unlock, err := c.lock(ctx, name)
	if err != nil {
		return "", err
	}
	defer unlock()
	path, err = c.Lookup(name) // look again: another process may have built it in the meantime
	if !absent(err) {
		return path, err
	}
	if path, err = c.path(name); err != nil {
		return "", err
	}
	build := c.build
	if c.Programs[name].Wheel != nil {
		build = c.install
	}
	if err := build(ctx, name, path); err != nil {
		return "", fmt.Errorf("build %s: %w", name, err)
	}
	return path, c.prune(name, path)
}

// absent reports whether a build can fix an error of Lookup.
func absent(err error) bool {
	_, missing := errors.AsType[*MissingError](err)
	_, unavailable := errors.AsType[*UnavailableError](err)
	return missing || unavailable
}

// Clean removes every binary. A concurrent build completes and keeps its own.
func (c *Cache) Clean() error {
	entries, err := os.ReadDir(c.Dir)
	if errors.Is(err, os.ErrNotExist) {
		return nil
	}
	for _, e := range entries {
		// Lock files must stay: another process may hold the lock, and a new file of that name would be a second
		// lock.
		if !strings.HasSuffix(e.Name(), ".lock") && !strings.HasPrefix(e.Name(), ".") {
			err = errors.Join(err, os.Remove(filepath.Join(c.Dir, e.Name())))
		}
	}
	return err
}

// lock takes the program's lock, and logs a line if it must wait. The kernel releases the lock when its holder ends.
func (c *Cache) lock(ctx context.Context, name string) (unlock func(), err error) {
	for said := false; ; {
		held, err := safefile.TryFlock(filepath.Join(c.Dir, name+".lock"))
		if err != nil {
			return nil, fmt.Errorf("lock the build of %s: %w", name, err)
		}
		if held != nil {
			return held.Release, nil
		}
		if !said {
			said = true
			fmt.Fprintf(c.Log, "%s: another process is building it; waiting\n", name)
		}
		if retry.Sleep(ctx, 100*time.Millisecond) != nil {
			return nil, fmt.Errorf("waiting for another build of %s: %w", name, context.Cause(ctx))
		}
	}
}

// build compiles to a temporary name and renames the file, so a binary with its final name is always complete.
func (c *Cache) build(ctx context.Context, name, path string) error {
	p := c.Programs[name]
	start := time.Now()
	pr := &progress{name: name, log: c.Log, terminal: c.Terminal, start: start}
	why := "it was never built"
	if old, _ := c.binaries(name); len(old) > 0 {
		why = "its sources, modules or the Go version changed"
	}
	fmt.Fprintf(c.Log, "%s: building %s, because %s; %s\n", name, p.Package, why, p.Takes)

	total, err := c.count(ctx, p)
	if err != nil {
		return err
	}
	pr.total = total

	tmp := filepath.Join(c.Dir, fmt.Sprintf(".%s.%d", filepath.Base(path), os.Getpid()))
	defer os.Remove(tmp)
	cmd := c.goCommand(ctx, p, append(append([]string{"build", "-v"}, p.flags()...), "-o", tmp, p.Package)...)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		return err
	}
	if err := cmd.Start(); err != nil {
		return err
	}
	stop := pr.tick()
	var other bytes.Buffer
	for lines := bufio.NewScanner(stderr); lines.Scan(); {
		// With -v the go command prints each compiled package on a line. All other lines are messages.
		if l := lines.Text(); l == "" || strings.ContainsAny(l, " \t:") {
			fmt.Fprintln(&other, l)
		} else {
			pr.done.Add(1)
		}
	}
	err = cmd.Wait()
	stop()
	if err != nil {
		return fmt.Errorf("go build %s in %s: %w\n%s", p.Package, p.Module, err, bytes.TrimSpace(other.Bytes()))
	}
	if err := os.Rename(tmp, path); err != nil {
		return err
	}
	size := int64(0)
	if i, err := os.Stat(path); err == nil {
		size = i.Size()
	}
	fmt.Fprintf(c.Log, "%s: built in %v, %d MB\n", name, time.Since(start).Round(time.Second), size>>20)
	return nil
}

// count returns the number of the program's packages, which is the maximum that a build compiles.
func (c *Cache) count(ctx context.Context, p Program) (int, error) {
	var out, errs bytes.Buffer
	cmd := c.goCommand(ctx, p, "list", "-deps", "-tags", p.Tags, "-f", "{{.ImportPath}}", p.Package)
	cmd.Stdout, cmd.Stderr = &out, &errs
	if err := cmd.Run(); err != nil {
		return 0, fmt.Errorf("go list %s in %s: %w\n%s", p.Package, p.Module, err, bytes.TrimSpace(errs.Bytes()))
	}
	return bytes.Count(out.Bytes(), []byte("\n")), nil
}

// goCommand returns the go command in the program's module, with exactly the settings that the key covers.
func (c *Cache) goCommand(ctx context.Context, p Program, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir = filepath.Join(c.Root, p.Module)
	cmd.Env = append(os.Environ(), "CGO_ENABLED=0", "GOFLAGS=", "GOWORK=off", "GOOS="+runtime.GOOS, "GOARCH="+runtime.GOARCH)
	if v, _, _ := strings.Cut(runtime.Version(), " "); strings.HasPrefix(v, "go1.") {
		cmd.Env = append(cmd.Env, "GOTOOLCHAIN="+v)
	}
	cmd.Env = append(cmd.Env, "PWD="+cmd.Dir)
	// On an interrupt, the go command removes its work directory. When it is killed, it leaves gigabytes.
	cmd.Cancel = func() error { return cmd.Process.Signal(os.Interrupt) }
	cmd.WaitDelay = 20 * time.Second
	return cmd
}

// binaries returns the paths of all binaries of a program.
func (c *Cache) binaries(name string) ([]string, error) {
	all, err := filepath.Glob(filepath.Join(c.Dir, name+"-*"))
	if err != nil {
		return nil, err
	}
	return slices.DeleteFunc(all, func(p string) bool {
		return len(filepath.Base(p)) != len(name)+1+keyLength
	}), nil
}

// prune removes all but the newest keys of a program. It never removes the binary that was just built.
func (c *Cache) prune(name, built string) error {
	all, err := c.binaries(name)
	if err != nil {
		return err
	}
	type binary struct {
		path string
		used time.Time
	}
	var bs []binary
	for _, p := range all {
		if i, err := os.Stat(p); err == nil && p != built {
			bs = append(bs, binary{p, i.ModTime()})
		}
	}
	slices.SortFunc(bs, func(a, b binary) int { return cmp.Or(b.used.Compare(a.used), cmp.Compare(a.path, b.path)) })
	for _, b := range bs[min(len(bs), kept-1):] {
		err = errors.Join(err, os.Remove(b.path)) // a running program keeps its file
	}
	return err
}
