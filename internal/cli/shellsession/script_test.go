package shellsession_test

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/cli/shellsession"
)

// hostile are words with a special meaning in one of the shells.
var hostile = []string{
	"plain", "", " ", "a b", "'", "''", `"`, `\`, `\'`, `'\''`, `'"'"'`, "$(touch x)", "`touch x`", "; touch x #", "\ntouch x\n", "&& touch x", "| touch x",
	"a'b; touch x; echo 'c", `a\'; touch x; echo \'c`, "$HOME", "${IFS}", "%PATH%", "!!", "*", "~", "-n", "(touch x)", "a\tb", "\r\n", "\x1b[31m", "é\u202e",
	"\u2018; touch x; \u2019", "a\u2019b", "\u201a\u201b", "@(touch x)", "$env:PATH", "`$x", "\\\\", "\\n", "x\\", "history!", "{a,b}", "<(touch x)", "#",
	"/home/a b/.kube/it's $(touch x)/config",
}

// interpreters are the commands that run a script in each shell without a person's settings.
var interpreters = []struct {
	shell shellsession.Shell
	run   []string
}{
	{shellsession.Bash, []string{"bash", "--norc", "--noprofile"}},
	{shellsession.Bash, []string{"sh"}},
	{shellsession.Bash, []string{"dash"}},
	{shellsession.Zsh, []string{"zsh", "-f"}},
	{shellsession.Fish, []string{"fish", "--no-config"}},
	{shellsession.PowerShell, []string{"pwsh", "-NoProfile", "-NonInteractive", "-File"}},
}

// CL-05, SGN-22: every shell reads a quoted word back unchanged and runs no part of it.
func TestCL05_words(t *testing.T) {
	for _, in := range interpreters {
		t.Run(in.run[0], func(t *testing.T) {
			if _, err := exec.LookPath(in.run[0]); err != nil {
				t.Skipf("SKIP %s: it is not in PATH", in.run[0])
			}
			dir := t.TempDir()
			// Each word goes to a program and comes back in a file.
			var changes []shellsession.EnvChange
			for i, w := range hostile {
				changes = append(changes, shellsession.EnvChange{Name: fmt.Sprintf("WORD%d", i), Value: w})
			}
			text, err := in.shell.AssignEnv(changes)
			if err != nil {
				t.Fatal(err)
			}
			text += "env -0 > " + filepath.Join(dir, "env") + "\n"
			script := filepath.Join(dir, "script."+map[bool]string{true: "ps1", false: "sh"}[in.shell == shellsession.PowerShell])
			if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
				t.Fatal(err)
			}
			cmd := exec.Command(in.run[0], append(in.run[1:], script)...)
			cmd.Dir = dir
			cmd.Env = append(os.Environ(), "WORD1=was there", "HOME="+dir)
			if out, err := cmd.CombinedOutput(); err != nil {
				t.Fatalf("%v\n%s\n%s", err, out, text)
			}
			env, err := os.ReadFile(filepath.Join(dir, "env"))
			if err != nil {
				t.Fatal(err)
			}
			have := map[string]string{}
			for v := range strings.SplitSeq(string(env), "\x00") {
				name, value, _ := strings.Cut(v, "=")
				have[name] = value
			}
			for i, w := range hostile {
				name := fmt.Sprintf("WORD%d", i)
				got, there := have[name]
				if got != w || there != (w != "") {
					t.Errorf("%q came back as %q (%v)", w, got, there)
				}
			}
			checkNothingRan(t, dir)
		})
	}
}

func checkNothingRan(t *testing.T, dir string) {
	t.Helper()
	if _, err := os.Stat(filepath.Join(dir, "x")); !errors.Is(err, os.ErrNotExist) {
		t.Errorf("something ran: %v", err)
	}
}

// Quote rejects a word that no shell can hold.
func TestQuoteRejectsZeroBytes(t *testing.T) {
	for _, s := range shellsession.Shells() {
		if _, ok := shellsession.Shell(s).Quote("a\x00b"); ok {
			t.Errorf("%s quotes a zero byte", s)
		}
		if text, err := shellsession.Shell(s).AssignEnv([]shellsession.EnvChange{{Name: "A", Value: "a\x00b"}}); err == nil {
			t.Errorf("%s: %q", s, text)
		}
		if text, err := shellsession.Shell(s).IntegrationScript("a\x00b"); err == nil {
			t.Errorf("%s: %q", s, text)
		}
	}
}

// CL-05: shells expand a prompt each time they show it, so it contains nothing that they could expand.
func TestCL05_prompt(t *testing.T) {
	for _, w := range hostile {
		got := shellsession.Prompt(w)
		if rest := strings.TrimSuffix(strings.TrimPrefix(got, "(tka:"), ") "); strings.ContainsAny(rest, "$`\\'\"!%;&|<>(){}*~#\n\r\t\x1b ") || len(got) != len(rest)+7 {
			t.Errorf("the prompt of %q is %q", w, got)
		}
	}
	if got := shellsession.Prompt("prod-eu.example:1/a@b_c"); got != "(tka:prod-eu.example:1/a@b_c) " {
		t.Errorf("got %q", got)
	}
}

// SGN-22, CL-05: the function runs a program of any name with unchanged arguments and returns its exit code.
func TestSGN22_program(t *testing.T) {
	for _, in := range interpreters {
		for _, name := range []string{"tka", "it's $(touch x) \"here\"", "$(touch x)", "; touch x"} {
			t.Run(in.run[0]+" "+name, func(t *testing.T) {
				if _, err := exec.LookPath(in.run[0]); err != nil {
					t.Skipf("SKIP %s: it is not in PATH", in.run[0])
				}
				if in.run[0] == "sh" || in.run[0] == "dash" {
					t.Skipf("SKIP %s: the function is for bash and zsh", in.run[0])
				}
				dir := t.TempDir()
				program := filepath.Join(dir, name)
				text := "#!/bin/sh\nprintf '<%s>' \"$@\"\ncat\nprintf 'echo \"sourced\"\\n' > \"$TKA_EVAL_FILE\"\nexit 42\n"
				if err := os.WriteFile(program, []byte(text), 0o700); err != nil {
					t.Fatal(err)
				}
				text, err := in.shell.IntegrationScript(program)
				if err != nil {
					t.Fatal(err)
				}
				args := ""
				for _, w := range []string{"a b", "$(touch x)", "it's", "--", "-n", "*"} {
					q, _ := in.shell.Quote(w)
					args += " " + q
				}
				code := "$?"
				switch in.shell {
				case shellsession.Fish:
					code = "$status"
				case shellsession.PowerShell:
					code = "$LASTEXITCODE"
				}
				text += "echo input | tka" + args + "\necho code " + code + "\n"
				script := filepath.Join(dir, "script.ps1")
				if err := os.WriteFile(script, []byte(text), 0o600); err != nil {
					t.Fatal(err)
				}
				cmd := exec.Command(in.run[0], append(in.run[1:], script)...)
				cmd.Dir = dir
				out, err := cmd.CombinedOutput()
				if err != nil {
					t.Fatalf("%v\n%s\n%s", err, out, text)
				}
				if want := "<a b><$(touch x)><it's><--><-n><*>input\ncode 42\n"; string(out) != want {
					t.Errorf("%q, want %q", out, want)
				}
				checkNothingRan(t, dir)
			})
		}
	}
}
