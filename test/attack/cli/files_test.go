package cli

import (
	"bytes"
	"fmt"
	"io/fs"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
)

// CL-03. A kubeconfig belongs to the person. The client keeps entries that it did not write, even when other programs
// write at the same time. It does not follow links that another user put in the file's place. No other user can read
// the file, whatever the umask.
//
// Guard: safefile.Check, safefile.LockAll, safefile.Stage, kubeconfig.(Files).Merge.
func TestCL03_ForeignFiles(t *testing.T) {
	s := attacktest.Start(t)
	alice := s.Alice(t)
	t.Cleanup(func() { s.Logout(t, alice) })
	const mine = "apiVersion: v1\nkind: Config\n# mine\nusers:\n- name: mine\n  user: {token: abc}\nclusters:\n- name: mine\n  cluster: {server: \"https://mine\"}\n" +
		"contexts:\n- name: mine\n  context: {user: mine, cluster: mine}\ncurrent-context: mine\n"

	t.Run("a symbolic link", func(t *testing.T) {
		m := s.NewMachine(t, alice)
		m.Write("elsewhere", mine)
		m.Write(".kube/x", "")
		if err := os.Symlink(m.Path("elsewhere"), m.Kubeconfig()); err != nil {
			t.Fatal(err)
		}
		mk := s.Mark(t)
		if r := m.Exec(1, "tka", "login"); !strings.Contains(r.Stderr, "is a symbolic link") || !strings.Contains(r.Stderr, "--kubeconfig") {
			t.Errorf("%s", r.Stderr)
		}
		switch to, err := os.Readlink(m.Kubeconfig()); {
		case err != nil:
			t.Error(err)
		case to != m.Path("elsewhere"):
			t.Errorf(`to = %q, want m.Path("elsewhere")`, to)
		case m.Read("elsewhere") != mine:
			t.Errorf(`m.Read("elsewhere") != mine; %q, %v, %s`, to, err, m.Read("elsewhere"))
		}
		if e := mk.Entries(t); len(e) > 0 {
			t.Errorf("the server received a request before: %+v", e)
		}
		m.Exec(0, "tka", "login", "--kubeconfig", m.Path("elsewhere")) // control: the file by its own name
	})
	t.Run("another user's file", func(t *testing.T) {
		m := s.NewMachine(t, alice)
		m.Write(".kube/config", mine)
		if err := os.Chown(m.Kubeconfig(), 65534, 65534); err != nil {
			t.Skipf("SKIP another user's file: %v", err)
		}
		if r := m.Exec(1, "tka", "login"); !strings.Contains(r.Stderr, "belongs to another user") {
			t.Errorf("%s", r.Stderr)
		}
		if m.Read(".kube/config") != mine {
			t.Errorf("it is now %s", m.Read(".kube/config"))
		}
	})
	t.Run("an umask of nothing", func(t *testing.T) {
		m := s.NewMachine(t, alice)
		r := m.StartProgram(nil, nil, "sh", "-c", "umask 000 && tka login && kubectl get pods -n shop && tka kubeconfig --out own --token && tka shell -- sh -c 'stat -c \"%a %n\" \"$KUBECONFIG\" \"$(dirname \"$KUBECONFIG\")\"'").End()
		switch {
		case r.Exit != 0:
			t.Fatalf("exit: r.Exit = %v, want 0; %s", r.Exit, r.Stderr)
		case !strings.Contains(r.Stdout, "600 "):
			t.Fatalf("exit: r.Stdout = %q does not contain %q; %s", r.Stdout, "600 ", r.Stderr)
		case !strings.Contains(r.Stdout, "700 "):
			t.Fatalf("exit: r.Stdout = %q does not contain %q; %s", r.Stdout, "700 ", r.Stderr)
		}
		seen := 0
		err := filepath.WalkDir(m.Home, func(path string, d fs.DirEntry, err error) error {
			if err != nil || path == m.Home || strings.HasPrefix(path, m.Path(".config")) {
				return err // files that the test created
			}
			name, _ := filepath.Rel(m.Home, path)
			st, err := d.Info()
			switch {
			case err != nil:
				return err
			case strings.HasPrefix(name, ".kube/cache") || name == ".kube" || name == ".local" || name == ".run" || name == ".local/state":
			case st.Mode().Perm()&0o077 != 0 && (d.IsDir() && (name == ".run/tka" || strings.HasPrefix(name, ".run/tka/")) || !d.IsDir()):
				t.Errorf("%s has the mode %v", name, st.Mode())
			default:
				seen++
			}
			return nil
		})
		if err != nil || seen < 5 {
			t.Errorf("%d files and folders, %v", seen, err)
		}
	})
	t.Run("a list of files", func(t *testing.T) {
		m := s.NewMachine(t, alice)
		m.Write("one", mine)
		m.Write("two", strings.ReplaceAll(mine, "mine", "other"))
		list := []string{"KUBECONFIG=" + m.Path("none") + ":" + m.Path("one") + ":" + m.Path("two")}
		for range 2 {
			if r := m.StartProgram(list, nil, "tka", "login").End(); r.Exit != 0 {
				t.Fatal(r.Stderr)
			}
			switch {
			case attacktest.Exists(m.Path("none")):
				t.Errorf(`one: attacktest.Exists(m.Path("none")) is true; %s, %s`, m.Read("one"), m.Read("two"))
			case m.Read("two") != strings.ReplaceAll(mine, "mine", "other"):
				t.Errorf(`one: m.Read("two") != strings.ReplaceAll(mine, "mine", "other"); %s, %s`, m.Read("one"), m.Read("two"))
			case !strings.HasPrefix(m.Read("one"), "apiVersion: v1\nkind: Config\n# mine\n"):
				t.Errorf(`one: strings.HasPrefix(m.Read("one"), "apiVersion: v1\nkind: Config\n# mine\n") is false; %s, %s`,
					m.Read("one"), m.Read("two"))
			case strings.Count(m.Read("one"), "name: tka-east\n") != 3:
				t.Errorf(`one: strings.Count(m.Read("one"), "name: tka-east\n") != 3; %s, %s`, m.Read("one"), m.Read("two"))
			}
		}
		if r := m.StartProgram(list, nil, "kubectl", "config", "current-context").End(); r.Stdout != "mine\n" {
			t.Errorf("the current context is %s%s", r.Stdout, r.Stderr)
		}
		switch r := m.StartProgram(list, nil, "tka", "logout").End(); {
		case r.Exit != 0:
			t.Errorf("after logout: r.Exit = %v, want 0; %s", r.Exit, r.Stderr)
		case strings.Contains(m.Read("one"), "tka-east"):
			t.Errorf(`after logout: strings.Contains(m.Read("one"), "tka-east") is true; %s, %s`, r.Stderr, m.Read("one"))
		case !strings.Contains(m.Read("one"), "{token: abc}"):
			t.Errorf(`after logout: strings.Contains(m.Read("one"), "{token: abc}") is false; %s, %s`, r.Stderr, m.Read("one"))
		}
	})
	t.Run("twenty at once", func(t *testing.T) {
		m := s.NewMachine(t, alice)
		m.Write(".kube/config", mine)
		before := m.Files()
		const n = 20
		var children []*attacktest.Child
		for i := range n {
			config := fmt.Sprintf("config-%d.yaml", i)
			m.Write(config, fmt.Sprintf("server: tka.%s\nprefix: p%d-\n", s.Net.Suffix(), i))
			children = append(children, m.StartProgram(nil, nil, "tka", "login", "--config", m.Path(config), "--timeout", attacktest.Long.String()))
		}
		for i, c := range children {
			if r := c.End(); r.Exit != 0 {
				t.Errorf("%d: exit %d: %s", i, r.Exit, r.Stderr)
			}
		}
		text := m.Read(".kube/config")
		for i := range n {
			if got := strings.Count(text, fmt.Sprintf("name: p%d-east\n", i)); got != 3 {
				t.Errorf("p%d-east occurs %d times, want a cluster, a user and a context", i, got)
			}
		}
		for _, want := range []string{"# mine\n", "{token: abc}", "current-context: mine\n"} {
			if !strings.Contains(text, want) {
				t.Errorf("%q is gone", want)
			}
		}
		for _, name := range []string{"p0-east", "p19-east"} {
			m.Exec(0, "kubectl", "--context", name, "get", "pods", "-n", "shop")
		}
		for name := range m.Files() {
			if _, was := before[name]; !was && strings.HasPrefix(name, ".kube/") && !strings.HasPrefix(name, ".kube/cache/") {
				t.Errorf("left: %s", name)
			}
		}
		if got := s.SignIns(t, "alice@example.com"); len(got) != 1 {
			t.Errorf("twenty logins of one device are %d sign-ins", len(got))
		}
	})
}

// writeToStdout is how /proc shows a call of write(2) on file descriptor 1.
const writeToStdout = "1 0x1 "

// CL-04. A token exists in the credential that kubectl requests and in one cache file that only its owner can read.
// It appears nowhere else: not in arguments, environments or shell histories, and not in the output of any program at
// its highest log level or at a crash. After logout, and after a shell ends, nothing of it remains.
//
// Guard: cli.(*tka).kubeconfigEntry (a plugin, never a token), cli.(*shellRun).prepareChild, client.(TokenCache).Delete,
// shellsession.(*Session).Close, secret.Text.
func TestCL04_TokensAreNowhere(t *testing.T) {
	s := attacktest.Start(t)
	alice := s.Alice(t)
	t.Cleanup(func() { s.Logout(t, alice) })
	m := s.NewMachine(t, alice)
	if _, err := exec.LookPath("bash"); err != nil {
		t.Skip("SKIP the history of a shell: bash is not in PATH")
	}
	w := attacktest.WatchProcesses("HOME=" + m.Home)
	said := map[string]string{}
	say := func(what string, c *attacktest.Child, want ...int) {
		t.Helper()
		r := c.End()
		said[what] = r.Stdout + r.Stderr
		if !slices.Contains(append(want, 0), r.Exit) {
			t.Errorf("%s: exit %d\n%s%s", what, r.Exit, r.Stdout, r.Stderr)
		}
	}
	for _, line := range []string{"tka login", "tka login -o json", "tka login --dry-run", "tka status -o yaml", "tka kubeconfig", "tka kubeconfig --out own", "tka cluster-info -o json", "tka config -o json", "tka why get pods -n shop",
		"tka doctor", "kubectl get pods -n shop -v=10", "kubectl config view --raw", "tka refresh", "tka version"} {
		say(line, m.StartProgram(nil, nil, "sh", "-c", "exec "+line))
	}
	// A shell of the person with every history option, in the mode that prints each command.
	session := "set -x -o history\neval \"$(tka integration bash)\"\ntka login\nkubectl get pods -n shop\ntka shell -- sh -c 'env; kubectl get pods -n shop; cat /proc/$$/cmdline /proc/$PPID/cmdline \"$KUBECONFIG\"'\nset\nhistory -a\ntka status\n"
	say("a session", m.StartProgram([]string{"HISTFILE=" + m.Path("history")}, strings.NewReader(session), "bash", "--norc", "--noprofile", "-i"))
	if !strings.Contains(m.Read("history"), "tka login") || !strings.Contains(said["a session"], "TKA_CLUSTER=east") {
		t.Errorf("the session kept no history, or ran no shell: %q\n%s", m.Read("history"), said["a session"])
	}
	// The test kills a process that holds the token. Its crash output goes to a terminal or a log.
	reader, writer, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer reader.Close()
	for filled := []byte(strings.Repeat(" ", 4096)); ; { // fills the pipe until the next writer blocks
		writer.SetWriteDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := writer.Write(filled); err != nil {
			break
		}
	}
	cmd := exec.Command(filepath.Join(s.Dir, "bin", "tka"), "credential", "--cluster", "east")
	var dump bytes.Buffer
	cmd.Env, cmd.Stdout, cmd.Stderr = append(m.Env(), "GOTRACEBACK=all"), writer, &dump
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	writer.Close()
	attacktest.Eventually(t, attacktest.Long, "the plugin waits for a reader", func() bool {
		// One of its threads is in a write(2) call to standard output: system call 1, file descriptor 1.
		calls, err := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/syscall", cmd.Process.Pid))
		return err == nil && slices.ContainsFunc(calls, func(path string) bool {
			text, _ := os.ReadFile(path)
			return strings.HasPrefix(string(text), writeToStdout)
		})
	})
	if err := cmd.Process.Signal(syscall.SIGQUIT); err != nil {
		t.Fatal(err)
	}
	cmd.Wait()
	said["a plugin that was killed"] = dump.String()
	if !strings.Contains(dump.String(), "goroutine ") {
		t.Errorf("the plugin left no stack trace: %s", dump.String())
	}

	if found := w.End(t, "tka", "kubectl", "bash"); len(found) > 0 {
		t.Errorf("tokens that every process can read: %v", found)
	}
	for what, text := range said {
		if at := attacktest.TokenForm.FindStringIndex(text); at != nil {
			t.Errorf("%s shows a token: …%q", what, text[max(0, at[0]-60):at[0]+12])
		}
	}
	holds := func() (names []string) {
		for name, text := range m.Files() {
			if attacktest.TokenForm.MatchString(text) {
				names = append(names, name)
			}
		}
		return names
	}
	if got := holds(); len(got) != 1 || !strings.HasPrefix(got[0], ".run/tka/tokens/") {
		t.Errorf("tokens are in %v; want one in the cache", got) // also the control for the scan of files
	}
	if r := m.Exec(0, "tka", "credential", "--cluster", "east"); !attacktest.TokenForm.MatchString(r.Stdout) {
		t.Error("the control: the expected token is missing")
	}
	m.Exec(0, "tka", "logout")
	for name, text := range m.Files() {
		switch {
		case attacktest.TokenForm.MatchString(text):
			t.Errorf("still present after logout: attacktest.TokenForm.MatchString(text) is true; name = %s", name)
		case strings.HasPrefix(name, ".run/"):
			t.Errorf("still present after logout: name = %q starts with %q", name, ".run/")
		case strings.Contains(text, "tka-east") && name != "history" && name != "own":
			t.Errorf(`still present after logout: strings.Contains(text, "tka-east") && name != "history" && name != "own"; name = %s`,
				name)
		}
	}
	if rooms, err := filepath.Glob(m.Path(".run/tka/shells/room-*")); err != nil || len(rooms) > 0 {
		t.Errorf("left of shells: %v, %v", rooms, err)
	}
	// Control: the watcher finds a token in an argument.
	w = attacktest.WatchProcesses("HOME=" + m.Home)
	token := "eyJ" + strings.Repeat("a", 30) + ".eyJ" + strings.Repeat("b", 30) + "." + strings.Repeat("c", 30)
	in, held, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer in.Close()
	defer held.Close()
	m.StartProgram(nil, in, "cat", "-", token)
	attacktest.Eventually(t, attacktest.Long, "the lookout sees a token", func() bool { w.Mu.Lock(); defer w.Mu.Unlock(); return len(w.Found) > 0 })
	w.End(t)
}

// CL-05. Names are treated as data, whatever characters they contain. A shell never executes a name that it
// evaluates, completes or shows in its prompt.
//
// Guard: shellsession.(Shell).Quote, shellsession.Prompt, dialpolicy.IsClusterName, and cli.(*tka).clusterNames for completion.
func TestCL05_NamesThatAShellWouldRun(t *testing.T) {
	s := attacktest.Start(t)
	alice := s.Alice(t)
	t.Cleanup(func() { s.Logout(t, alice) })
	shells := map[string][]string{"bash": {"bash", "--norc", "--noprofile"}, "zsh": {"zsh", "-f"}, "fish": {"fish", "--no-config"}, "powershell": {"pwsh", "-NoProfile", "-NonInteractive", "-File", "/dev/stdin"}}
	ran := func(t *testing.T, m *attacktest.Machine) {
		t.Helper()
		err := filepath.WalkDir(filepath.Dir(m.Home), func(path string, d fs.DirEntry, err error) error {
			if err == nil && d.Name() == "pwned" {
				t.Errorf("something ran: %s", path)
			}
			return err
		})
		if err != nil {
			t.Error(err)
		}
	}
	for name, run := range shells {
		t.Run(name, func(t *testing.T) {
			if _, err := exec.LookPath(run[0]); err != nil {
				t.Skipf("SKIP %s: it is not in PATH", run[0])
			}
			m := s.NewMachineAt(t, alice, filepath.Join(t.TempDir(), "it's $(touch pwned) `touch pwned`; touch pwned \"a\" & home"))
			code, context := "$?", "kubectl config current-context"
			switch name {
			case "fish":
				code = "$status"
			case "powershell":
				code = "$LASTEXITCODE"
			}
			script := m.Exec(0, "tka", "integration", name).Stdout + strings.Join([]string{
				"tka login", "echo login " + code, context, "kubectl get pods -n shop", "echo pods " + code, "tka --server '$(touch pwned)' status", "echo bad " + code,
				"tka logout", "echo logout " + code, ""}, "\n")
			// The shell's own commands use the person's file, so only the text that tka adds names a context.
			m.Write(".kube/config", "apiVersion: v1\nkind: Config\n")
			r := m.StartProgram(nil, strings.NewReader(script), run[0], run[1:]...).End()
			for _, want := range []string{"login 0\n", "tka-east\n", "pods 0\n", "bad 2\n", "logout 0\n"} {
				if !strings.Contains(r.Stdout, want) {
					t.Errorf("stdout lacks %q:\n%s%s", want, r.Stdout, r.Stderr)
				}
			}
			ran(t, m)
			if len(s.SignIns(t, "alice@example.com")) != 0 {
				t.Error("the server received no logout")
			}
		})
	}
	// tka runs from a path with all of these characters, and is not in PATH.
	t.Run("the program", func(t *testing.T) {
		m := s.NewMachineAt(t, alice, filepath.Join(t.TempDir(), "b in; $(touch pwned)'"))
		text, err := os.ReadFile(filepath.Join(s.Dir, "bin", "tka"))
		if err == nil {
			err = os.WriteFile(m.Path("tka's"), text, 0o700)
		}
		if err != nil {
			t.Fatal(err)
		}
		bare := []string{"PATH=/usr/bin:/bin"}
		r := m.StartProgram(bare, nil, m.Path("tka's"), "integration", "bash").End()
		r = m.StartProgram(bare, strings.NewReader(r.Stdout+"tka login\necho login $?\n"), "bash", "--norc", "--noprofile").End()
		if !strings.Contains(r.Stdout, "login 0\n") {
			t.Errorf("%s%s", r.Stdout, r.Stderr)
		}
		if r := m.StartProgram(bare, nil, "/usr/bin/env", filepath.Join(s.Dir, "bin", "kubectl"), "get", "pods", "-n", "shop").End(); r.Exit != 0 { // runs the plugin by its path
			t.Errorf("kubectl: %s", r.Stderr)
		}
		ran(t, m)
		s.Logout(t, alice)
	})
	// A server that gives its cluster such a name.
	t.Run("clusters", func(t *testing.T) {
		w := newWrongServer(t, s)
		for _, name := range []string{"$(touch pwned)", "`touch pwned`", "a'b", "a\"b", "a\nb", "a;touch pwned", "a b", "-rf", "a\\b", "%s", "a\x1b[31m", "a\u202eb", "${IFS}", "!!", "a|b", "a&b", "~", "*"} {
			m := s.NewMachine(t, alice)
			info := w.info
			info.Name = name
			w.answers(w.instead("GET /cluster-info", func(rw http.ResponseWriter, r *http.Request) { w.prove(rw, r, 200, info) }))
			for _, args := range [][]string{{"login", "--server", w.name}, {"shell", "--server", w.name, "--", "true"}, {"cluster-info", "--server", w.name}} {
				if r := m.Exec(1, "tka", args...); r.Stdout != "" || !strings.Contains(r.Stderr, "is not the name of a cluster") {
					t.Errorf("%q, %v: %s%s", name, args, r.Stdout, r.Stderr)
				}
			}
			if attacktest.Exists(m.Kubeconfig()) || strings.Contains(m.Read(".local/state/tka/servers.yaml"), "wrong") {
				t.Errorf("%q is remembered: %s", name, m.Read(".local/state/tka/servers.yaml"))
			}
			ran(t, m)
		}
		// The most permissive valid name, in a prompt and in completion.
		m := s.NewMachine(t, alice)
		info, grant := w.info, w.grant
		info.Name, grant.Cluster = "arn:aws:eks:eu/prod_1@x.y", "arn:aws:eks:eu/prod_1@x.y"
		w.answers(func(rw http.ResponseWriter, r *http.Request) {
			switch {
			case strings.HasSuffix(r.URL.Path, "/cluster-info"):
				w.prove(rw, r, 200, info)
			case strings.HasSuffix(r.URL.Path, "/kubeconfig"):
				grant := grant
				grant.Session = signin.Session(r.URL.Query().Get("session"))
				w.kubeconfig(rw, r, grant)
			default:
				w.honest(rw, r)
			}
		})
		r := m.StartProgram([]string{"SHELL=/bin/bash", "PS1=mine> "}, strings.NewReader("echo \"prompt [$PS1] cluster [$TKA_CLUSTER]\"\n"), "tka", "shell", "--server", w.name).End()
		if r.Exit != 0 || !strings.Contains(r.Stdout, "cluster [arn:aws:eks:eu/prod_1@x.y]") {
			t.Errorf("exit %d: %s%s", r.Exit, r.Stdout, r.Stderr)
		}
		m.Exec(0, "tka", "login", "--server", w.name)
		if r := m.Exec(0, "tka", "__complete", "login", "--cluster", ""); !strings.HasPrefix(r.Stdout, "arn:aws:eks:eu/prod_1@x.y") {
			t.Errorf("completed: %s", r.Stdout)
		}
		m.Write(".local/state/tka/servers.yaml", strings.ReplaceAll(m.Read(".local/state/tka/servers.yaml"), "arn:aws:eks:eu/prod_1@x.y", "$(touch pwned)"))
		if r := m.Exec(0, "tka", "__complete", "login", "--cluster", ""); strings.Contains(r.Stdout, "pwned") {
			t.Errorf("completed: %s", r.Stdout)
		}
		ran(t, m)
	})
}
