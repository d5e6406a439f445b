package cli_test

import (
	"bytes"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/cli"
)

// A machine is a computer with tka: it has a home directory and settings that name one server.
type machine struct {
	home string
	env  map[string]string
	t    *testing.T
}

// A result is the outcome of one run of tka.
type result struct {
	code     int
	out, err string
}

func newMachine(t *testing.T, server string) *machine {
	t.Helper()
	home := t.TempDir()
	m := &machine{home: home, t: t, env: map[string]string{
		"HOME": home, "XDG_CONFIG_HOME": filepath.Join(home, "config"), "XDG_STATE_HOME": filepath.Join(home, "state"), "TERM": "dumb",
		"TS_SOCKET": filepath.Join(home, "no-tailscale"), // not that of the computer that runs the tests
	}}
	text := fmt.Sprintf("server: main\nservers:\n- {name: main, url: %q, insecureHTTP: true}\n", server)
	m.write(t, "config/tka/config.yaml", text)
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.home, name) }

func (m *machine) write(t *testing.T, name, text string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(m.path(name)), 0o700); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(m.path(name), []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
}

func (m *machine) read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(m.path(name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// files returns the files in the home directory.
func (m *machine) files(t *testing.T) (files []string) {
	t.Helper()
	err := filepath.WalkDir(m.home, func(path string, d fs.DirEntry, err error) error {
		if err == nil && !d.IsDir() {
			files = append(files, strings.TrimPrefix(path, m.home+"/"))
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return files
}

// run runs tka in this process.
func (m *machine) run(args ...string) result { return m.runAs("tka", args...) }

func (m *machine) runAs(name string, args ...string) result {
	var out, err bytes.Buffer
	code := cli.Program{Args: append([]string{name}, args...), In: strings.NewReader(""), Out: &out, Err: &err,
		Getenv: func(k string) string { return m.env[k] }, Now: time.Now, Build: cli.Build{Version: "v0.0.0-test"}}.Run(m.t.Context())
	return result{code, out.String(), err.String()}
}

// tka is the path of the program.
func (m *machine) tka(t *testing.T) string {
	t.Helper()
	path, err := exec.LookPath("tka")
	if err != nil {
		t.Fatal(err)
	}
	return path
}
