//go:build unix

package cli_test

import (
	"encoding/json"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// fakeKubectl puts a kubectl into PATH that records its arguments and runs script. End-to-end tests cover the real kubectl.
func (m *machine) fakeKubectl(t *testing.T, script string) []string {
	t.Helper()
	m.write(t, "bin/kubectl", "#!/bin/sh\necho \"$@\" >> "+m.path("asked")+"\n"+script+"\n")
	if err := os.Chmod(m.path("bin/kubectl"), 0o700); err != nil {
		t.Fatal(err)
	}
	os.Remove(m.path("asked"))
	return []string{"PATH=" + m.path("bin") + ":" + os.Getenv("PATH")}
}

const twoSignins = `{"items":[
{"metadata":{"name":"bob-0","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"user":{"login":"bob@example.com"},"device":{"name":"bob-pc"},"role":"edit","namespaces":["shop"]}},
{"metadata":{"name":"alice-1","creationTimestamp":"2026-01-01T00:00:00Z"},"spec":{"user":{"login":"alice@example.com"},"device":{"name":"laptop"},"role":"edit"},
 "status":{"phase":"Ready","role":"view","validUntil":"2099-01-01T00:00:00Z"}},
{"metadata":{"name":"alice-2"},"spec":{"user":{"login":"alice@example.com"},"device":{"name":"\u001b[31mphone"},"role":"view"},"status":{"phase":"Expired"}}]}`

// sessions lists the sign-ins that the administrator's kubectl sees.
func TestSessions(t *testing.T) {
	m := newMachine(t, "http://127.0.0.1:1")
	env := m.fakeKubectl(t, "cat <<'END'\n"+twoSignins+"\nEND")
	r := m.spawn(t, env, "sessions", "--context", "admin@prod", "--kubeconfig", "k.yaml")
	lines := strings.Split(r.out, "\n")
	switch {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0; %s; %s", r.code, r.out, r.err)
	case len(lines) != 5:
		t.Errorf("code: len(lines) = %v, want 5; %s; %s", len(lines), r.out, r.err)
	case !strings.HasPrefix(lines[1], "alice@example.com   laptop"):
		t.Errorf("code: lines[1] = %q does not start with %q; %s; %s", lines[1], "alice@example.com   laptop", r.out, r.err)
	case !strings.Contains(lines[1], "   view   all          Ready     "):
		t.Errorf("code: lines[1] = %q does not contain %q; %s; %s", lines[1], "   view   all          Ready     ", r.out, r.err)
	case !strings.Contains(lines[2], `\x1b[31mphone`):
		t.Errorf("code: lines[2] = %q does not contain %q; %s; %s", lines[2], `\x1b[31mphone`, r.out, r.err)
	case !strings.Contains(lines[3], "bob-pc"):
		t.Errorf("code: lines[3] = %q does not contain %q; %s; %s", lines[3], "bob-pc", r.out, r.err)
	case !strings.Contains(lines[3], "edit   shop         Pending"):
		t.Errorf("code: lines[3] = %q does not contain %q; %s; %s", lines[3], "edit   shop         Pending", r.out, r.err)
	}
	if got, want := m.read(t, "asked"), "get tkasignins.tailplane.dev --output json --namespace tailplane-signins --context admin@prod --kubeconfig k.yaml\n"; got != want {
		t.Errorf("asked %q", got)
	}
	r = m.spawn(t, env, "sessions", "--login", "bob@example.com", "-o", "json", "-n", "elsewhere")
	var l struct {
		Kind  string
		Items []struct {
			Name       string
			Namespaces []string
		}
	}
	switch err := json.Unmarshal([]byte(r.out), &l); {
	case err != nil:
		t.Errorf("%v; %s; %s", err, r.out, r.err)
	case l.Kind != "SessionList":
		t.Errorf("l.Kind = %q, want %q; %s; %s", l.Kind, "SessionList", r.out, r.err)
	case len(l.Items) != 1:
		t.Errorf("len(l.Items) = %v, want 1; %s; %s", len(l.Items), r.out, r.err)
	case l.Items[0].Name != "bob-0":
		t.Errorf("l.Items[0].Name = %q, want %q; %s; %s", l.Items[0].Name, "bob-0", r.out, r.err)
	case len(l.Items[0].Namespaces) != 1:
		t.Errorf("len(l.Items[0].Namespaces) = %v, want 1; %s; %s", len(l.Items[0].Namespaces), r.out, r.err)
	}
	if r := m.spawn(t, env, "sessions", "-o", "name"); r.out != "tkasignin/alice-1\ntkasignin/alice-2\ntkasignin/bob-0\n" {
		t.Error(r.out)
	}
	for script, want := range map[string]struct {
		code int
		word string
	}{
		"echo 'Error from server (Forbidden): no' >&2; exit 1":                  {3, "kubectl: Error from server (Forbidden): no"},
		"echo 'Unable to connect to the server: dial tcp' >&2; exit 1":          {5, "Unable to connect"},
		"echo 'error: context \"x\" does not exist' >&2; exit 1":                {1, "does not exist"},
		"printf '\\033[2Jx' >&2; exit 1":                                        {1, `\x1b[2Jx`},
		"exit 7":                                                                {1, "exit status 7"},
		"echo junk":                                                             {1, "could not list"},
		"while :; do echo xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx >&2; done": {4, "did not finish within 1s"},
		"echo '{}'": {0, "There are no sign-ins."},
	} {
		r := m.spawn(t, m.fakeKubectl(t, script), "sessions", "--timeout", "1s")
		if strings.Contains(script, "done") == false {
			r = m.spawn(t, m.fakeKubectl(t, script), "sessions")
		}
		switch {
		case r.code != want.code:
			t.Errorf("r.code = %v, want %v; script = %s", r.code, want.code, script)
		case r.out != "":
			t.Errorf("r.out = %q, want none; script = %s", r.out, script)
		case !strings.Contains(r.err, want.word):
			t.Errorf("r.err = %q does not contain %q; script = %s", r.err, want.word, script)
		}
	}
	if r := m.spawn(t, []string{"PATH=" + filepath.Dir(m.tka(t))}, "sessions"); r.code != 1 || !strings.Contains(r.err, "needs kubectl, and kubectl is not in $PATH") {
		t.Errorf("without kubectl: code %d\n%s%s", r.code, r.out, r.err)
	}
}

// revoke ends exactly the named sign-ins, after a confirmation.
func TestRevoke(t *testing.T) {
	m := newMachine(t, "http://127.0.0.1:1")
	list := "case $1 in get) cat <<'END'\n" + twoSignins + "\nEND\n;; esac"
	deleted := func() (names []string) {
		for line := range strings.Lines(m.read(t, "asked")) {
			if f := strings.Fields(line); f[0] == "delete" {
				names = append(names, f[2])
			}
		}
		return names
	}
	for _, tt := range []struct {
		args []string
		code int
		want string // names that were deleted
		word string
	}{
		{[]string{"alice@example.com", "--yes"}, 0, "alice-1 alice-2", "Ended alice-1: view of alice@example.com on laptop."},
		{[]string{"bob-0", "--yes"}, 0, "bob-0", "Ended bob-0: edit of bob@example.com on bob-pc."},
		{[]string{"alice@example.com", "--dry-run"}, 0, "", "Would end alice-1"},
		{[]string{"alice", "--yes"}, 1, "", "No sign-in has that name or login: alice"},
		{[]string{"alice@", "--yes"}, 1, "", "No sign-in"},
		{[]string{"example.com", "--yes"}, 1, "", "No sign-in"},
		{[]string{"ALICE@example.com", "--yes"}, 1, "", "No sign-in"},
		{[]string{"--yes", "--", "--all"}, 1, "", "No sign-in"},
		{[]string{"alice@example.com"}, 2, "", "Confirm with --yes"}, // there is no terminal for the question
		{[]string{}, 2, "", "needs the name"},
		{[]string{"a", "b"}, 2, "", "one argument too many"},
	} {
		env := m.fakeKubectl(t, list)
		m.write(t, "asked", "")
		r := m.spawn(t, env, append([]string{"revoke"}, tt.args...)...)
		switch got := strings.Join(deleted(), " "); {
		case r.code != tt.code:
			t.Errorf("revoke: r.code = %v, want %v", r.code, tt.code)
		case got != tt.want:
			t.Errorf("revoke: got = %q, want %q", got, tt.want)
		case !strings.Contains(r.out+r.err, tt.word):
			t.Errorf("revoke: r.out+r.err = %q does not contain %q", r.out+r.err, tt.word)
		}
	}
	env := m.fakeKubectl(t, strings.Replace(list, "esac", "delete) echo 'Error from server (Forbidden): no' >&2; exit 1;; esac", 1))
	if r := m.spawn(t, env, "revoke", "bob-0", "--yes"); r.code != 3 || !strings.Contains(r.out, "Not ended, because kubectl: Error from server (Forbidden)") {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	env = m.fakeKubectl(t, strings.Replace(list, "bob-0", "--all", 1))
	if r := m.spawn(t, env, "revoke", "bob@example.com", "--yes"); r.code != 1 || strings.Contains(m.read(t, "asked"), "delete") {
		t.Errorf("a hostile name: code %d\n%s%s\n%s", r.code, r.out, r.err, m.read(t, "asked"))
	}
}

// AU-05: tka checks an audit log offline, names each fault and exits with 3.
func TestAU05_audit_verify(t *testing.T) {
	sample, err := os.ReadFile("../audit/testdata/version1.jsonl")
	if err != nil {
		t.Fatal(err)
	}
	m := newMachine(t, "http://127.0.0.1:1")
	m.write(t, "good.jsonl", string(sample))
	m.env["TKA_CLUSTER"] = "prod-eu" // a shell of tka sets it; it is about sign-ins
	r := m.run("audit", "verify", m.path("good.jsonl"), "-o", "json")
	var report struct {
		Kind   string
		OK     bool
		Last   string
		Keys   []string
		Pinned bool
		Lines  int
	}
	switch err := json.Unmarshal([]byte(r.out), &report); {
	case err != nil:
		t.Fatalf("code: %v; %s; %s", err, r.out, r.err)
	case r.code != 0:
		t.Fatalf("code: r.code = %v, want 0; %s; %s", r.code, r.out, r.err)
	case !report.OK:
		t.Fatalf("code: report.OK is false; %d, %v, %s, %s", r.code, err, r.out, r.err)
	case report.Pinned:
		t.Fatalf("code: report.Pinned is true; %d, %v, %s, %s", r.code, err, r.out, r.err)
	case len(report.Keys) == 0:
		t.Fatalf("code: len(report.Keys) = %v; %s; %s", len(report.Keys), r.out, r.err)
	case report.Kind != "AuditReport":
		t.Fatalf("code: report.Kind = %q, want %q; %s; %s", report.Kind, "AuditReport", r.out, r.err)
	}
	good := []string{"audit", "verify", m.path("good.jsonl"), "--key", report.Keys[0], "--head", report.Last}
	switch r := m.run(good...); {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0; %s", r.code, r.err)
	case !strings.Contains(r.out, "The audit log is intact."):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "The audit log is intact.", r.err)
	case strings.Contains(r.out, "not verified"):
		t.Errorf("code: r.out = %q contains %q; %s", r.out, "not verified", r.err)
	case !strings.Contains(r.out, "--head "+report.Last):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "--head "+report.Last, r.err)
	}
	if r := m.run("audit", "verify", m.path("good.jsonl"), "-o", "name"); r.out != report.Last+"\n" {
		t.Error(r.out)
	}
	m.write(t, "edited.jsonl", strings.Replace(string(sample), "alice@example.com", "mallory@example.com", 1))
	m.write(t, "cut.jsonl", strings.Join(strings.SplitAfter(string(sample), "\n")[:report.Lines-2], ""))
	m.write(t, "empty.jsonl", "")
	other := keyFor("another").Public().String() // of the same form
	for _, tt := range []struct {
		args []string
		code int
		word string
	}{
		{[]string{m.path("edited.jsonl")}, 3, "edited.jsonl:2: edited"},
		{[]string{m.path("cut.jsonl"), "--head", report.Last}, 3, "truncated"},
		{[]string{m.path("good.jsonl"), "--key", other}, 3, "unknownKey"},
		{[]string{m.path("empty.jsonl")}, 3, "The audit log is empty."},
		{[]string{m.path("nowhere.jsonl")}, 1, "no such file"},
		{[]string{m.path("good.jsonl"), "--key", "x"}, 2, "--key"},
		{[]string{m.path("good.jsonl"), "--head", "x"}, 2, "--head"},
		{nil, 2, "needs a file"},
	} {
		r := m.run(append([]string{"audit", "verify"}, tt.args...)...)
		if r.code != tt.code || !strings.Contains(r.out+r.err, tt.word) {
			t.Errorf("%v: code %d\n%s%s", tt.args, r.code, r.out, r.err)
		}
		if r := m.run(append([]string{"audit", "verify", "-o", "json"}, tt.args...)...); tt.code == 3 && (r.code != 3 || !json.Valid([]byte(r.out))) {
			t.Errorf("%v: code %d\n%s%s", tt.args, r.code, r.out, r.err)
		}
	}
}

// version shows the server's version if a server is known, and never fails because of it.
func TestVersionOfTheServer(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	switch r := m.run("version"); {
	case r.code != 0:
		t.Errorf("before first contact: code: r.code = %v, want 0; %s", r.code, r.err)
	case r.out != "tka v0.0.0-test\n":
		t.Errorf("before first contact: code: r.out = %q, want %q; %s", r.out, "tka v0.0.0-test\n", r.err)
	case len(d.received()) > 0:
		t.Errorf("before first contact: code: len(d.received()) > 0; %d, %v, %s, %s", r.code, d.received(), r.out, r.err)
	}
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	if r := m.run("version"); r.code != 0 || r.out != "tka v0.0.0-test\nserver v0.1.0\n" {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	var v struct{ Version, Server string }
	if r := m.run("version", "-o", "json"); json.Unmarshal([]byte(r.out), &v) != nil || v.Server != "v0.1.0" {
		t.Errorf("%s", r.out)
	}
	before := len(d.received())
	switch r := m.run("version", "--client"); {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0; %s", r.code, r.err)
	case r.out != "tka v0.0.0-test\n":
		t.Errorf("code: r.out = %q, want %q; %s", r.out, "tka v0.0.0-test\n", r.err)
	case len(d.received()) != before:
		t.Errorf("code: len(d.received()) != before; %d, %s, %s", r.code, r.out, r.err)
	}
	srv.Close()
	switch r := m.run("version"); {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0", r.code)
	case r.out != "tka v0.0.0-test\n":
		t.Errorf("code: r.out = %q, want %q", r.out, "tka v0.0.0-test\n")
	case !strings.Contains(r.err, "The server's version is unknown: The server"):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "The server's version is unknown: The server")
	}
}
