package cli

import (
	"encoding/json"
	"fmt"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/testkit/attacktest"
)

// visitsSince counts the audit log entries of one device since the mark, by verb.
func visitsSince(t *testing.T, m attacktest.LogMark, host string) map[access.Verb]int {
	t.Helper()
	n := map[access.Verb]int{}
	for _, e := range m.Entries(t) {
		if name, _, _ := strings.Cut(e.Actor.Node, "."); name == host {
			n[e.Verb]++
		}
	}
	return n
}

// CL-06. Any number of kubectl processes, with the cache in any state, cause one token request to the server. None of
// them signs a person in. Standard output is either the credential or empty.
//
// Guard: client.(TokenCache).Get (one process fetches), client.tokenFile.load (ignores a damaged entry),
// cli.(*tka).doCredential.
func TestCL06_ThePluginUnderStress(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "cl06-laptop", "alice@example.com")
	t.Cleanup(func() { s.Logout(t, p) })
	m := s.NewMachine(t, p)
	m.Exec(0, "tka", "login", "--use")
	mk := s.Mark(t)
	const n = 50
	var crowd []*attacktest.Child
	for range n {
		crowd = append(crowd, m.StartProgram(nil, nil, "kubectl", "get", "--raw", "/api/v1/namespaces/shop/pods"))
	}
	for i, c := range crowd {
		if r := c.End(); r.Exit != 0 || !strings.Contains(r.Stdout, `"PodList"`) {
			t.Errorf("%d: exit %d: %s%s", i, r.Exit, r.Stdout, r.Stderr)
		}
	}
	if v := visitsSince(t, mk, "cl06-laptop"); v[access.SigninKubeconfig] != 1 || v[access.SigninLogin] != 0 {
		t.Errorf("%d kubectl processes sent the server %v, want one token and no login", n, v)
	}

	credential := func(what string, env ...string) {
		t.Helper()
		r := m.StartProgram(env, nil, "tka", "credential", "--cluster", "east").End()
		var c struct {
			APIVersion, Kind string
			Status           struct{ Token, ExpirationTimestamp string }
		}
		d := json.NewDecoder(strings.NewReader(r.Stdout))
		d.DisallowUnknownFields()
		err := d.Decode(&c)
		switch end, terr := time.Parse(time.RFC3339, c.Status.ExpirationTimestamp); {
		case r.Exit != 0:
			t.Errorf("%s: exit: r.Exit = %v, want 0", what, r.Exit)
		case err != nil:
			t.Errorf("%s: exit: %v", what, err)
		case d.More():
			t.Errorf("%s: exit: d.More() is true, %d, %v, terr = %v, %s", what, r.Exit, err, terr, r.Stderr)
		case terr != nil:
			t.Errorf("%s: exit: terr: %v", what, terr)
		case time.Until(end) < 10*time.Minute:
			t.Errorf("%s: exit: time.Until(end) < 10*time.Minute, %d, %v, terr = %v, %s", what, r.Exit, err, terr, r.Stderr)
		case c.Kind != "ExecCredential":
			t.Errorf("%s: exit: c.Kind = %q, want %q", what, c.Kind, "ExecCredential")
		case !attacktest.TokenForm.MatchString(c.Status.Token):
			t.Errorf("%s: exit: attacktest.TokenForm.MatchString(c.Status.Token) is false, %d, %v, terr = %v, %s",
				what, r.Exit, err, terr, r.Stderr)
		case r.Stderr != "":
			t.Errorf("%s: exit: r.Stderr = %q, want none", what, r.Stderr)
		}
		want := "client.authentication.k8s.io/v1"
		if strings.Contains(strings.Join(env, ""), "v1beta1") {
			want += "beta1"
		}
		if c.APIVersion != want {
			t.Errorf("%s: it belongs to %s, want %s", what, c.APIVersion, want)
		}
	}
	caches, err := filepath.Glob(m.Path(".run/tka/tokens/*.json"))
	if err != nil || len(caches) != 1 {
		t.Fatalf("the cache is %v, %v", caches, err)
	}
	whole, err := os.ReadFile(caches[0])
	if err != nil {
		t.Fatal(err)
	}
	for what, text := range map[string]string{
		"nothing": "", "half of it": string(whole[:len(whole)/2]), "bytes": "\x00\xff\x1b[2J", "null": "null", "a list": "[]", "wrong types": `{"key":1,"token":{}}`,
		"another key": strings.Replace(string(whole), `"key":"`, `"key":"0`, 1), "a token of many lines": strings.Replace(string(whole), `"token":"`, `"token":"x\r\nx`, 1),
		"no end": strings.Replace(string(whole), `"expires":"2`, `"expires":"0`, 1), "9 MB": strings.Repeat(" ", 9<<20),
	} {
		if err := os.WriteFile(caches[0], []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		credential("a cache of " + what)
	}
	if err := os.Remove(caches[0]); err != nil {
		t.Fatal(err)
	}
	m.Write("elsewhere", string(whole))
	if err := os.Symlink(m.Path("elsewhere"), caches[0]); err != nil {
		t.Fatal(err)
	}
	credential("a cache that is a symbolic link")
	if m.Read("elsewhere") != string(whole) {
		t.Error("the link was followed")
	}
	credential("v1", `KUBERNETES_EXEC_INFO={"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1","spec":{"interactive":false}}`)
	credential("v1beta1", `KUBERNETES_EXEC_INFO={"kind":"ExecCredential","apiVersion":"client.authentication.k8s.io/v1beta1","spec":{"interactive":false}}`)
	for _, env := range []string{"{", "[]", `{"apiVersion":"client.authentication.k8s.io/v1alpha1"}`} {
		switch r := m.StartProgram([]string{"KUBERNETES_EXEC_INFO=" + env}, nil, "tka", "credential", "--cluster", "east").End(); {
		case r.Exit != 1:
			t.Errorf("r.Exit = %v, want 1; %s", r.Exit, env)
		case r.Stdout != "":
			t.Errorf("r.Stdout = %q, want none; %s", r.Stdout, env)
		case !strings.HasPrefix(r.Stderr, "error: "):
			t.Errorf("r.Stderr = %q does not start with %q; %s", r.Stderr, "error: ", env)
		}
	}
	text := m.Read(".kube/config")
	m.Write("older", strings.Replace(text, "client.authentication.k8s.io/v1", "client.authentication.k8s.io/v1beta1", 1))
	m.Exec(0, "kubectl", "--kubeconfig", m.Path("older"), "get", "pods", "-n", "shop")

	// A home directory that cannot be written to. Files replace its directories, because root ignores file modes.
	for _, dir := range []string{".run", ".cache"} {
		if err := os.RemoveAll(m.Path(dir)); err != nil {
			t.Fatal(err)
		}
		m.Write(dir, "")
	}
	credential("nowhere to keep it")
	m.Exec(0, "kubectl", "get", "pods", "-n", "shop")

	// The plugin signs no person in.
	s.Logout(t, p)
	mk = s.Mark(t)
	switch r := m.Exec(3, "tka", "credential", "--cluster", "east"); {
	case r.Stdout != "":
		t.Errorf("signed out: r.Stdout = %q, want none", r.Stdout)
	case !strings.HasPrefix(r.Stderr, "error: "):
		t.Errorf("signed out: r.Stderr = %q does not start with %q", r.Stderr, "error: ")
	case !strings.Contains(r.Stderr, "tka login --cluster east"):
		t.Errorf("signed out: r.Stderr = %q does not contain %q", r.Stderr, "tka login --cluster east")
	}
	if r := m.Exec(1, "kubectl", "get", "pods", "-n", "shop"); !strings.Contains(r.Stderr, "tka login --cluster east") {
		t.Errorf("kubectl, signed out: %s", r.Stderr)
	}
	if v := visitsSince(t, mk, "cl06-laptop"); v[access.SigninLogin] != 0 || v[access.SigninKubeconfig] == 0 {
		t.Errorf("signed out, the server received %v", v)
	}
	if left := s.SignIns(t, "alice@example.com"); slices.ContainsFunc(left, func(o v1alpha1.TkaSignin) bool { return strings.HasPrefix(o.Spec.Device.Name, "cl06") }) {
		t.Errorf("sign-ins: %v", left)
	}
}

// CL-08. However a command ends, its exit code gives the reason, it prints no stack trace, and files are complete. A
// sign-in that the command started is ended, or the command reports that it still exists.
//
// Guard: cli.Program.Run (exit codes), shellsession.Run (the child's exit code), cli.(*shellRun).finish and
// cli.(*shellRun).interruptible (one way out), cli.stillSignedIn, cli.(*tka).repeatLogin.
func TestCL08_FailuresAndSignals(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "cl08-laptop", "alice@example.com")
	t.Cleanup(func() { s.Logout(t, p) })
	ours := func() (out []v1alpha1.TkaSignin) {
		return slices.DeleteFunc(s.SignIns(t, "alice@example.com"), func(o v1alpha1.TkaSignin) bool {
			name, _, _ := strings.Cut(o.Spec.Device.Name, ".")
			return name != "cl08-laptop"
		})
	}
	nothing := func(t *testing.T, m *attacktest.Machine) {
		t.Helper()
		attacktest.Eventually(t, attacktest.Long, "no sign-in is left", func() bool { return len(ours()) == 0 })
		if rooms, err := filepath.Glob(m.Path(".run/tka/shells/room-*")); err != nil || len(rooms) > 0 {
			t.Errorf("left: %v, %v", rooms, err)
		}
	}

	t.Run("codes", func(t *testing.T) {
		bash, err := exec.LookPath("bash")
		if err != nil {
			t.Skip("SKIP the shell's function: bash is not in PATH")
		}
		b, m := s.NewMachine(t, s.Bob(t)), s.NewMachine(t, p)
		in := func(m *attacktest.Machine, line string) string {
			script := m.Exec(0, "tka", "integration", "bash").Stdout + line + "\necho code $?\n"
			return m.StartProgram(nil, strings.NewReader(script), bash, "--norc", "--noprofile").End().Stdout
		}
		for _, tt := range []struct {
			m    *attacktest.Machine
			args string
			code int
		}{
			{b, "login", 3}, {b, "login --shell -- true", 3}, {b, "shell -- true", 3}, {b, "status", 3}, {b, "credential --cluster east", 3},
			{m, "login --nonsense", 2}, {m, "--nonsense login", 2}, {m, "nonsense", 2}, {m, "login x", 2}, {m, "shell --nonsense", 2}, {m, "config nonsense", 2}, {m, "integration nonsense", 2},
			{m, "shell -- sh -c 'exit 7'", 7}, {m, "shell -- sh -c 'kill -9 $$'", 137}, {m, "shell -- nonsense-that-is-not-there", 2}, {m, "login --role cluster-admin", 3},
			{m, "login --server nobody." + s.Net.Suffix(), 5}, {m, "login", 0}, {m, "shell -- sh -c 'exit 8'", 8}, {m, "logout", 0}, {m, "logout", 0},
		} {
			if got := in(tt.m, "tka "+tt.args); !strings.HasSuffix(got, fmt.Sprintf("code %d\n", tt.code)) {
				t.Errorf("tka %s in a shell with the function: want code %d: %s", tt.args, tt.code, got)
			}
			if r := tt.m.StartProgram(nil, nil, "sh", "-c", "tka "+tt.args).End(); r.Exit != tt.code || strings.Contains(r.Stderr, "goroutine ") {
				t.Errorf("tka %s: exit %d, want %d: %s", tt.args, r.Exit, tt.code, r.Stderr)
			}
		}
		nothing(t, m)
	})
	t.Run("signals to a shell", func(t *testing.T) {
		for what, tt := range map[string]struct {
			signals []syscall.Signal
			code    int
		}{
			"TERM after a resize": {[]syscall.Signal{syscall.SIGWINCH, syscall.SIGTERM}, 143}, "HUP": {[]syscall.Signal{syscall.SIGHUP}, 129}, "TERM": {[]syscall.Signal{syscall.SIGTERM}, 143},
		} {
			m := s.NewMachine(t, p)
			c := m.StartProgram(nil, nil, "tka", "shell", "--", "sh", "-c", "kubectl get pods -n shop && echo > started && exec sleep 100")
			attacktest.Eventually(t, attacktest.Long, "the child works", func() bool { return attacktest.Exists(m.Path("started")) })
			if len(ours()) != 1 {
				t.Errorf("%s: sign-ins while it runs: %v", what, ours())
			}
			for _, sig := range tt.signals {
				c.Process.Signal(sig)
			}
			if r := c.End(); r.Exit != tt.code || !strings.Contains(r.Stderr, "Signed out.") {
				t.Errorf("%s: exit %d, want %d: %s", what, r.Exit, tt.code, r.Stderr)
			}
			nothing(t, m)
		}
	})
	t.Run("Ctrl-C at each step", func(t *testing.T) {
		w := newWrongServer(t, s)
		for command, steps := range map[string][]string{
			"login": {"GET /cluster-info", "POST /login", "GET /kubeconfig"},
			"shell": {"GET /cluster-info", "POST /login", "GET /kubeconfig", "POST /logout"},
		} {
			for i, step := range steps {
				for _, sig := range []syscall.Signal{syscall.SIGINT, syscall.SIGTERM} {
					what := fmt.Sprintf("%s, %v at %s", command, sig, step)
					m := s.NewMachine(t, p)
					m.Write(".kube/config", "apiVersion: v1\nkind: Config\nusers:\n- name: mine\n  user: {token: abc}\n")
					before := m.Read(".kube/config")
					reached := make(chan struct{}, 8)
					w.answers(w.instead(step, func(_ http.ResponseWriter, r *http.Request) {
						reached <- struct{}{}
						select { // the answer never arrives, or only after the client has gone
						case <-r.Context().Done():
						case <-time.After(attacktest.Long):
						}
					}))
					args := []string{command, "--server", w.name, "--timeout", attacktest.Long.String()}
					if command == "shell" {
						args = append(args, "--", "true")
					}
					c := m.StartProgram(nil, nil, "tka", args...)
					select {
					case <-reached:
					case <-time.After(attacktest.Long):
						t.Fatalf("%s: the step was never reached: %v", what, w.asked())
					}
					c.Process.Signal(sig)
					r := c.End()
					asked := w.asked()
					begun := slices.Contains(asked, "POST /login")
					ended := slices.Contains(asked, "POST /logout")
					switch {
					case step == "POST /logout":
						if r.Exit != 0 || !strings.Contains(r.Stderr, "continues") {
							t.Errorf("%s: exit %d: %s", what, r.Exit, r.Stderr) // exit code of the child, which had finished
						}
					case r.Exit != 130 || !strings.Contains(r.Stderr, "error: interrupted"):
						t.Errorf("%s: exit %d: %s", what, r.Exit, r.Stderr)
					case command == "login" && i >= 1 && !strings.Contains(r.Stderr, "tka logout"), begun && command == "shell" && !ended && !strings.Contains(r.Stderr, "tka logout"):
						t.Errorf("%s: the sign-in neither ended nor was reported as continuing: requests %v: %s", what, asked, r.Stderr)
					}
					if now := m.Read(".kube/config"); now != before {
						t.Errorf("%s: the kubeconfig is now %s", what, now)
					}
					for name := range m.Files() {
						switch {
						case strings.Contains(name, ".tka-"):
							t.Errorf("%s: left: name = %q contains %q", what, name, ".tka-")
						case strings.HasSuffix(name, "config.lock"):
							t.Errorf("%s: left: name = %q ends with %q", what, name, "config.lock")
						case strings.Contains(name, "room-"):
							t.Errorf("%s: left: name = %q contains %q", what, name, "room-")
						}
					}
				}
			}
		}
	})
	t.Run("Ctrl-C at any time", func(t *testing.T) { // with the real server, because the stored objects matter
		m := s.NewMachine(t, p)
		m.Write(".kube/config", "apiVersion: v1\nkind: Config\nusers:\n- name: mine\n  user: {token: abc}\n")
		took := m.Exec(0, "tka", "shell", "--", "true").Took
		codes := map[int]int{}
		for i := range 12 {
			command := []string{"shell", "--", "true"}
			if i%2 == 1 {
				command = []string{"login"}
			}
			c := m.StartProgram(nil, nil, "tka", command...)
			timer := time.AfterFunc(took*time.Duration(i)/10, func() { c.Process.Signal(syscall.SIGINT) })
			r := c.End()
			timer.Stop()
			codes[r.Exit]++
			if r.Exit != 0 && r.Exit != 130 || r.Exit == 130 && command[0] == "login" && len(ours()) > 0 && !strings.Contains(r.Stderr, "tka logout") {
				t.Errorf("%v: exit %d, sign-ins %d: %s", command, r.Exit, len(ours()), r.Stderr)
			}
			if r := m.Exec(0, "kubectl", "config", "view", "-o", "jsonpath={.users[0].name}"); r.Stdout != "mine" {
				t.Errorf("the kubeconfig is %s", m.Read(".kube/config"))
			}
			// A cancelled login may reach the cluster after the logout that followed it, so the test logs out once
			// more.
			late := 0
			attacktest.Eventually(t, attacktest.Long, "no sign-in is left", func() bool {
				if len(ours()) == 0 {
					return true
				}
				late++
				m.Exec(0, "tka", "logout", "--all")
				return false
			})
			if command[0] == "shell" && late > 0 {
				t.Logf("a shell that was interrupted left its sign-in: %s", r.Stderr)
			}
			nothing(t, m)
		}
		t.Logf("exit codes: %v", codes)
	})
	t.Run("renewal after the end", func(t *testing.T) {
		m := s.NewMachine(t, p)
		m.Exec(0, "tka", "login", "--use")
		m.Exec(0, "kubectl", "get", "pods", "-n", "shop")
		name := ours()[0].Name
		end := s.EndSignInIn(t, name, 6*time.Second)
		attacktest.Eventually(t, attacktest.Long, "the end", func() bool { return time.Now().After(end) && len(s.AccessOf(t, name)) == 0 })
		if err := os.RemoveAll(m.Path(".run")); err != nil { // the old token now expires later than the sign-in
			t.Fatal(err)
		}
		m.Exec(3, "tka", "credential", "--cluster", "east")
		m.Exec(0, "tka", "refresh")
		m.Exec(0, "kubectl", "get", "pods", "-n", "shop")
		m.Exec(0, "tka", "logout")
		nothing(t, m)
	})
}
