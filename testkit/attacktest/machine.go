package attacktest

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// Machine is a person's device with its own home directory, on which the built programs run. Several machines may
// share a device: the tailnet sees only one.
type Machine struct {
	*testenv.Person
	s *Env
	t *testing.T
}

// NewMachine returns a machine with a new home for p, which contains only the server's name.
func (s *Env) NewMachine(t *testing.T, p *testenv.Person) *Machine {
	t.Helper()
	return s.NewMachineAt(t, p, t.TempDir())
}

func (s *Env) NewMachineAt(t *testing.T, p *testenv.Person, home string) *Machine {
	t.Helper()
	own := *p
	own.Home = home
	m := &Machine{&own, s, t}
	m.Write(".config/tka/config.yaml", "server: tka."+s.Net.Suffix()+"\n")
	m.Exec(0, "tka", "exit-codes") // this also checks that the programs are in PATH
	return m
}

func (m *Machine) Path(name string) string { return filepath.Join(m.Home, name) }

func (m *Machine) Write(name, text string) {
	m.t.Helper()
	err := os.MkdirAll(filepath.Dir(m.Path(name)), 0o700)
	if err == nil {
		err = os.WriteFile(m.Path(name), []byte(text), 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// Read returns the content of a file, or "" if it does not exist.
func (m *Machine) Read(name string) string {
	m.t.Helper()
	b, err := os.ReadFile(m.Path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	return string(b)
}

// Files returns all files in the home with their contents.
func (m *Machine) Files() map[string]string {
	m.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(m.Home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(m.Home, path)
		if st, serr := d.Info(); serr == nil && strings.HasPrefix(name, ".run/") && st.Size() == 0 {
			return err // a lock file of the programs
		}
		if err == nil && d.Type().IsRegular() {
			var b []byte
			b, err = os.ReadFile(path)
			all[name] = string(b)
		} else {
			all[name] = d.Type().String()
		}
		return err
	})
	if err != nil {
		m.t.Fatal(err)
	}
	return all
}

// Clean checks the rules that every run of a program must follow, regardless of its exit code.
func (m *Machine) Clean(what string, r testenv.Result) {
	m.t.Helper()
	for _, text := range []string{r.Stdout, r.Stderr} {
		if strings.Contains(text, "goroutine ") || strings.Contains(text, "panic:") {
			m.t.Errorf("%s: a stack trace:\n%s", what, text)
		}
	}
	if i := strings.IndexAny(r.Stderr, "\x1b\x07\r\u202e\u009b"); i >= 0 {
		m.t.Errorf("%s writes %q to the terminal", what, r.Stderr[i:min(len(r.Stderr), i+40)])
	}
}

// Exec runs a program to its end. The exit code must be want.
func (m *Machine) Exec(want int, program string, args ...string) testenv.Result {
	m.t.Helper()
	r, err := m.Run(m.t.Context(), program, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	what := program + " " + strings.Join(args, " ")
	if r.Exit != want {
		m.t.Errorf("%s: exit %d, want %d\n%.2000s%.4000s", what, r.Exit, want, r.Stdout, r.Stderr)
	}
	m.Clean(what, r)
	return r
}

// Child is a program that runs until it ends or the test ends.
type Child struct {
	*exec.Cmd
	m        *Machine
	out, err bytes.Buffer // read them after done
	done     chan struct{}
}

// StartProgram starts a program in PATH with additional environment variables and standard input.
func (m *Machine) StartProgram(env []string, in io.Reader, program string, args ...string) *Child {
	m.t.Helper()
	if !filepath.IsAbs(program) {
		if ours := filepath.Join(m.s.Dir, "bin", program); Exists(ours) {
			program = ours
		}
	}
	c := &Child{Cmd: exec.Command(program, args...), m: m, done: make(chan struct{})}
	c.Env, c.Dir, c.Stdin, c.Stdout, c.Stderr, c.WaitDelay = append(m.Env(), env...), m.Home, in, &c.out, &c.err, 5*time.Second
	if err := c.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() { c.Wait(); close(c.done) }()
	m.t.Cleanup(func() { c.Process.Kill(); <-c.done })
	return c
}

func Exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// End waits for the program's end and returns the result.
func (c *Child) End() testenv.Result {
	c.m.t.Helper()
	select {
	case <-c.done:
	case <-time.After(Long):
		c.m.t.Fatalf("%v has not ended", c.Args)
	}
	code := c.ProcessState.ExitCode()
	if ws, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	r := testenv.Result{Stdout: c.out.String(), Stderr: c.err.String(), Exit: code}
	if filepath.Base(c.Args[0]) == "tka" {
		c.m.Clean(strings.Join(c.Args[1:], " "), r)
	}
	return r
}

// Peak polls the memory of the program until its end and returns the highest value, in KiB. The kernel's own count is
// not usable, because it starts with the memory of the parent.
func (c *Child) Peak() (most int) {
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for late := time.After(Long); ; {
		text, _ := os.ReadFile(fmt.Sprintf("/proc/%d/status", c.Process.Pid)) // the process may be gone
		if _, after, ok := strings.Cut(string(text), "VmHWM:"); ok {
			var kib int
			if _, err := fmt.Sscan(after, &kib); err == nil && strings.HasPrefix(string(text), "Name:\ttka\n") {
				most = max(most, kib)
			}
		}
		select {
		case <-c.done:
			return most
		case <-late:
			return most
		case <-tick.C:
		}
	}
}
