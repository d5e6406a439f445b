//go:build unix

package cli_test

import (
	"bytes"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// A dialect is how tests write commands for a shell.
type dialect struct {
	name   string
	run    []string
	code   string                   // the exit code of the last command
	env    func(name string) string // a variable, or empty
	quote  func(string) string
	setvar func(name, value string) string
}

func posix(name string, run ...string) dialect {
	quote := func(s string) string { return "'" + strings.ReplaceAll(s, "'", `'\''`) + "'" }
	return dialect{name, run, "$?", func(v string) string { return "${" + v + "-}" }, quote,
		func(name, value string) string { return "export " + name + "=" + quote(value) }}
}

func dialects() []dialect {
	fish := func(s string) string { return "'" + strings.NewReplacer(`\`, `\\`, "'", `\'`).Replace(s) + "'" }
	pwsh := func(s string) string { return "'" + strings.ReplaceAll(s, "'", "''") + "'" }
	return []dialect{
		posix("bash", "bash", "--norc", "--noprofile"),
		posix("zsh", "zsh", "-f"),
		{"fish", []string{"fish", "--no-config"}, "$status", func(v string) string { return "$" + v }, fish,
			func(name, value string) string { return "set -gx " + name + " " + fish(value) }},
		{"powershell", []string{"pwsh", "-NoProfile", "-NonInteractive", "-File"}, "$LASTEXITCODE", func(v string) string { return "$env:" + v }, pwsh,
			func(name, value string) string { return "$env:" + name + " = " + pwsh(value) }},
	}
}

// A session is a script in one shell, with the function.
type session struct {
	*dialect
	t     *testing.T
	lines []string
}

func (s *session) add(line string) { s.lines = append(s.lines, line) }

// tka runs tka and shows its exit code and its changes.
func (s *session) tka(args ...string) {
	var words []string
	for _, a := range args {
		words = append(words, s.quote(a))
	}
	s.add("tka " + strings.Join(words, " ") + " > out 2>&1")
	s.add("echo \"code " + s.code + "\"")
	s.show()
}

func (s *session) show() {
	s.add("echo \"cluster [" + s.env("TKA_CLUSTER") + "] kubeconfig [" + s.env("KUBECONFIG") + "]\"")
}

// runScript runs the script on a machine and returns its output lines.
func (s *session) runScript(m *machine) []string {
	s.t.Helper()
	r := m.run("integration", s.name)
	if r.code != 0 {
		s.t.Fatal(r.err)
	}
	script := m.path("script.ps1")
	m.write(s.t, "script.ps1", r.out+strings.Join(s.lines, "\n")+"\n")
	cmd := exec.Command(s.run[0], append(s.run[1:], script)...)
	cmd.Env, cmd.Dir = m.environ(nil), m.home
	var out, stderr bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &stderr
	if err := cmd.Run(); err != nil || stderr.Len() > 0 {
		s.t.Fatalf("%v\n%s%s", err, out.String(), stderr.String())
	}
	return strings.Split(strings.TrimSuffix(out.String(), "\n"), "\n")
}

// inShells runs a test in each installed shell, on a machine whose directory names need quoting in a shell.
func inShells(t *testing.T, f func(t *testing.T, s *session, m *machine, d *accessServer)) {
	for _, d := range dialects() {
		t.Run(d.name, func(t *testing.T) {
			if _, err := exec.LookPath(d.run[0]); err != nil {
				t.Skipf("SKIP %s: it is not in PATH", d.run[0])
			}
			service, srv := newAccessServer(t, "prod-eu")
			m := newMachine(t, srv.URL)
			home := filepath.Join(m.home, "it's $(touch x) `touch x`; a home")
			if err := os.Rename(m.path("config"), m.path("config2")); err != nil {
				t.Fatal(err)
			}
			tmp := m.path("tmp")
			for _, dir := range []string{home, tmp} {
				if err := os.Mkdir(dir, 0o700); err != nil {
					t.Fatal(err)
				}
			}
			m.env["HOME"], m.env["XDG_CONFIG_HOME"], m.env["TMPDIR"] = home, m.path("config2"), tmp
			m.home = home
			f(t, &session{dialect: &d, t: t}, m, service)
			if left, err := os.ReadDir(tmp); err != nil || len(left) > 0 {
				t.Errorf("left in the directory for temporary files: %v, %v", left, err)
			}
			for _, dir := range []string{home, filepath.Dir(home)} {
				if _, err := os.Stat(filepath.Join(dir, "x")); err == nil {
					t.Error("something ran")
				}
			}
		})
	}
}

// SGN-22, CL-05: login makes the cluster the current one of the shell, and logout removes it. A failed command changes nothing and returns
// its exit code.
func TestSGN22_login_and_logout(t *testing.T) {
	inShells(t, func(t *testing.T, s *session, m *machine, d *accessServer) {
		s.tka("login", "--role", "edit") // refused
		s.tka("lgoin")
		s.tka("login", "--cluster", "$(touch x)'; touch x; '")
		s.tka("login")
		s.tka("status")
		s.tka("logout")
		s.tka("logout")                              // was not signed in
		s.tka("--timeout", "20s", "signin", "--use") // a flag first, and an alias
		s.tka("-q", "signout")
		got := s.runScript(m)
		own := m.path(".kube/config")
		none := "cluster [] kubeconfig []"
		if len(got) != 18 {
			t.Fatalf("%q", got)
		}
		in := "cluster [prod-eu] kubeconfig [" + m.path(".cache/tka/contexts/")
		for i, want := range []string{"code 3", none, "code 2", none, "code 3", none, "code 0", in, "code 0", in, "code 0", none, "code 0", none, "code 0", in, "code 0", none} {
			if got[i] != want && !(want == in && strings.HasPrefix(got[i], in) && strings.HasSuffix(got[i], ":"+own+"]")) {
				t.Errorf("line %d: %s, want %s", i, got[i], want)
			}
		}
		if left, err := filepath.Glob(m.path(".cache/tka/contexts/*")); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	})
}

// SGN-22: the person's list of kubeconfigs is restored, and tka does not change a kubeconfig that it did not write.
func TestSGN22_own_kubeconfig(t *testing.T) {
	inShells(t, func(t *testing.T, s *session, m *machine, d *accessServer) {
		list := m.path("a b") + ":" + m.path("it's")
		m.write(t, "a b", "kind: Config\n")
		s.add(s.setvar("KUBECONFIG", list))
		s.tka("login")
		s.add(s.setvar("MINE", "yes"))
		s.tka("login") // again: the list has one file of tka, not two
		s.tka("logout")
		s.tka("login")
		s.add(s.setvar("KUBECONFIG", m.path("a b"))) // a change by the person
		s.tka("logout")
		got := s.runScript(m)
		if len(got) != 10 {
			t.Fatalf("%q", got)
		}
		switch {
		case !strings.HasSuffix(got[1], ":"+list+"]"):
			t.Errorf("got[1] = %q does not end with %q", got[1], ":"+list+"]")
		case strings.Count(got[1], ":") != 2:
			t.Errorf(`strings.Count(got[1], ":") = %v, want 2`, strings.Count(got[1], ":"))
		case got[3] != got[1]:
			t.Errorf("got[3] = %q, want %q", got[3], got[1])
		case got[5] != "cluster [] kubeconfig ["+list+"]":
			t.Errorf("got[5] = %q, want %q", got[5], "cluster [] kubeconfig ["+list+"]")
		}
		if got[8] != "code 0" || got[9] != "cluster [prod-eu] kubeconfig ["+m.path("a b")+"]" {
			t.Errorf("%q", got)
		}
		if r := m.run("login"); r.code != 0 { // the contexts are in the right files
			t.Fatal(r.err)
		}
	})
}

// The function works in shells that stop at the first error, reject unset variables and do not overwrite files.
func TestSGN22_strict_shells(t *testing.T) {
	for _, options := range []string{"set -eu -o noclobber -o pipefail", "alias tka=false", "tka() { false; }"} {
		for _, d := range dialects()[:2] {
			t.Run(d.name+" "+options, func(t *testing.T) {
				if _, err := exec.LookPath(d.run[0]); err != nil {
					t.Skipf("SKIP %s: it is not in PATH", d.run[0])
				}
				_, srv := newAccessServer(t, "prod-eu")
				m := newMachine(t, srv.URL)
				m.write(t, "script", options+"\neval \"$(command tka integration "+d.name+")\"\ntka login >/dev/null 2>&1\ntka login --role edit 2>/dev/null || echo \"code $? in $TKA_CLUSTER\"\n")
				cmd := exec.Command(d.run[0], append(d.run[1:], m.path("script"))...)
				cmd.Env = m.environ(nil)
				if out, err := cmd.CombinedOutput(); err != nil || string(out) != "code 3 in prod-eu\n" {
					t.Errorf("%v: %s", err, out)
				}
			})
		}
	}
}

// The variable has an effect only with the function's own new file.
func TestSGN22_eval_file(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	m.write(t, "private/x", "")
	for name, make := range map[string]func() string{
		"a file that is there": func() string { m.write(t, "private/bash", "mine"); return m.path("private/bash") },
		"a folder of others": func() string {
			if err := os.MkdirAll(m.path("wide"), 0o755); err != nil {
				t.Fatal(err)
			}
			return m.path("wide/bash")
		},
		"no shell":       func() string { return m.path("private/passwd") },
		"a relative one": func() string { return "bash" },
		"no folder":      func() string { return m.path("nowhere/bash") },
		"a link": func() string {
			if err := os.Symlink(m.path("target"), m.path("private/zsh")); err != nil {
				t.Fatal(err)
			}
			return m.path("private/zsh")
		},
	} {
		m.env["TKA_EVAL_FILE"] = make()
		r := m.run("login")
		if r.code != 0 || !strings.Contains(r.err, "this shell is unchanged") {
			t.Errorf("%s: code %d: %s", name, r.code, r.err)
		}
	}
	switch {
	case m.read(t, "private/bash") != "mine":
		t.Error(`the command wrote a file: m.read(t, "private/bash") != "mine"`)
	case m.exists("target")():
		t.Error(`the command wrote a file: m.exists("target")() is true`)
	case m.exists("private/passwd")():
		t.Error(`the command wrote a file: m.exists("private/passwd")() is true`)
	case m.exists("wide/bash")():
		t.Error(`the command wrote a file: m.exists("wide/bash")() is true`)
	}
	if st, err := os.Stat(m.path("wide")); err != nil || st.Mode().Perm() != 0o755 {
		t.Errorf("%v, %v", st, err)
	}
	m.env["TKA_EVAL_FILE"] = m.path("private/fish")
	if r := m.run("login", "--role", "edit"); r.code != 3 || m.exists("private/fish")() {
		t.Errorf("a failed login wrote assignments: %s", r.err)
	}
	if r := m.run("login"); r.code != 0 || !strings.HasPrefix(m.read(t, "private/fish"), "set -gx KUBECONFIG '") {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	if st, err := os.Stat(m.path("private/fish")); err != nil || st.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", st, err)
	}
}

// tka removes the files of shells that have ended.
func TestSGN22_sweep(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	m.write(t, ".cache/tka/contexts/999999999-1", "")
	m.write(t, ".cache/tka/contexts/1-1", "") // another process has that number now
	m.write(t, "private/x", "")
	m.env["TKA_EVAL_FILE"] = m.path("private/bash")
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	left, err := filepath.Glob(m.path(".cache/tka/contexts/*"))
	switch {
	case err != nil:
		t.Error(err)
	case len(left) != 1:
		t.Errorf("len(left) = %v, want 1", len(left))
	case !strings.Contains(m.read(t, "private/bash"), left[0]):
		t.Errorf(`strings.Contains(m.read(t, "private/bash"), left[0]) is false; left = %v, %v`, left, err)
	}
	// CL-04: logout also removes them, without the function.
	delete(m.env, "TKA_EVAL_FILE")
	m.write(t, ".cache/tka/contexts/999999998-1", "")
	if r := m.run("logout"); r.code != 0 {
		t.Fatal(r.err)
	}
	switch now, err := filepath.Glob(m.path(".cache/tka/contexts/*")); {
	case err != nil:
		t.Errorf("after a logout: %v", err)
	case len(now) != 1:
		t.Errorf("after a logout: len(now) = %v, want 1", len(now))
	case now[0] != left[0]:
		t.Errorf("after a logout: now[0] = %q, want %q", now[0], left[0])
	}
}
