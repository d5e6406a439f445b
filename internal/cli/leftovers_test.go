package cli_test

import (
	"bufio"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// killWhileWriting starts a process that writes a file as tka does, kills it before the file is in its place, and returns the path of the
// temporary file.
func (m *machine) killWhileWriting(t *testing.T, path, text string) string {
	t.Helper()
	before := m.temporaryFiles(t)
	cmd := exec.Command("stage-and-wait", path)
	cmd.Stdin = strings.NewReader(text)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	line, err := bufio.NewReader(out).ReadString('\n')
	if err != nil || strings.TrimSpace(line) != "<nil>" {
		t.Fatalf("%q, %v", line, err)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	for file := range m.temporaryFiles(t) {
		if !before[file] {
			return m.path(file)
		}
	}
	t.Fatal("the killed process left no temporary file")
	return ""
}

// temporaryFiles returns the temporary files in the home directory.
func (m *machine) temporaryFiles(t *testing.T) map[string]bool {
	t.Helper()
	found := map[string]bool{}
	for _, file := range m.files(t) {
		if strings.Contains(filepath.Base(file), ".tka-") {
			found[file] = true
		}
	}
	return found
}

// ageBy makes a file older.
func ageBy(t *testing.T, path string, age time.Duration) {
	t.Helper()
	at := time.Now().Add(-age)
	if err := os.Chtimes(path, at, at); err != nil {
		t.Fatal(err)
	}
}

// tokenFile returns the path of the only cached token.
func (m *machine) tokenFile(t *testing.T) string {
	t.Helper()
	for _, file := range m.files(t) {
		if filepath.Base(filepath.Dir(file)) == "tokens" && filepath.Ext(file) == ".json" {
			return m.path(file)
		}
	}
	t.Fatalf("no token is cached: %v", m.files(t))
	return ""
}

// CL-06: a temporary file with a token survives neither logout nor the next run of tka. What another tka may be writing, and files that are not
// tka's, stay.
func TestCL06_a_killed_program_leaves_no_token(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	m.issuedTokens(t, plugin)
	token := m.tokenFile(t)
	text, err := os.ReadFile(token)
	if err != nil {
		t.Fatal(err)
	}
	young := m.killWhileWriting(t, token, string(text))
	elsewhere := m.killWhileWriting(t, filepath.Join(filepath.Dir(token), strings.Repeat("0", 32)+".json"), string(text)) // of another session
	foreign := filepath.Join(filepath.Dir(token), ".mine.tka-x")
	if err := os.WriteFile(foreign, []byte("x"), 0o600); err != nil {
		t.Fatal(err)
	}
	ageBy(t, foreign, time.Hour)
	ageBy(t, elsewhere, 2*time.Minute)
	m.issuedTokens(t, plugin)
	for path, want := range map[string]bool{young: true, elsewhere: false, foreign: true, token: true} {
		if _, err := os.Lstat(path); (err == nil) != want {
			t.Errorf("after the next run, %s exists: %v, want %v", filepath.Base(path), err == nil, want)
		}
	}
	out := m.path("out.yaml")
	left := m.killWhileWriting(t, out, string(text))
	ageBy(t, left, 2*time.Minute)
	if r := m.run("kubeconfig", "--token", "--out", out); r.code != 0 {
		t.Fatal(r.err)
	}
	if _, err := os.Lstat(left); err == nil {
		t.Errorf("%s is still there", left)
	}
	if err := os.Remove(out); err != nil {
		t.Fatal(err)
	}
	if r := m.run("logout"); r.code != 0 {
		t.Fatal(r.err)
	}
	for _, file := range m.files(t) {
		if strings.Contains(m.read(t, file), canary) {
			t.Errorf("after logout, %s has a token", file)
		}
	}
}
