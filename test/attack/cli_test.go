package attack

import (
	"bytes"
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/door"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/test/rig"
)

// A machine is a person's device with a home folder of its own, on which the
// built programs run. Several machines may share a device: the tailnet sees one.
type machine struct {
	*rig.Person
	s *system
	t *testing.T
}

// machine returns a fresh home for p, which knows the server's name and no more.
func (s *system) machine(t *testing.T, p *rig.Person) *machine {
	t.Helper()
	return s.machineAt(t, p, t.TempDir())
}

func (s *system) machineAt(t *testing.T, p *rig.Person, home string) *machine {
	t.Helper()
	own := *p
	own.Home = home
	m := &machine{&own, s, t}
	m.write(".config/tka/config.yaml", "server: tka."+s.Net.Suffix()+"\n")
	m.run(0, "tka", "exit-codes") // and the programs are in PATH
	return m
}

func (m *machine) path(name string) string { return filepath.Join(m.Home, name) }

func (m *machine) write(name, text string) {
	m.t.Helper()
	err := os.MkdirAll(filepath.Dir(m.path(name)), 0o700)
	if err == nil {
		err = os.WriteFile(m.path(name), []byte(text), 0o600)
	}
	if err != nil {
		m.t.Fatal(err)
	}
}

// read returns a file's text, "" when it is not there.
func (m *machine) read(name string) string {
	m.t.Helper()
	b, err := os.ReadFile(m.path(name))
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		m.t.Fatal(err)
	}
	return string(b)
}

// files are all files in the home, with their contents.
func (m *machine) files() map[string]string {
	m.t.Helper()
	all := map[string]string{}
	err := filepath.WalkDir(m.Home, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		name, err := filepath.Rel(m.Home, path)
		if strings.HasPrefix(name, ".run/") && strings.HasSuffix(name, ".lock") {
			return err // an empty file by which programs take turns
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

// clean checks what every run of a program must keep to, however it ends.
func (m *machine) clean(what string, r rig.Result) {
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

// run runs a program to its end, which must be with that code.
func (m *machine) run(want int, program string, args ...string) rig.Result {
	m.t.Helper()
	r, err := m.Run(m.t.Context(), program, args...)
	if err != nil {
		m.t.Fatal(err)
	}
	what := program + " " + strings.Join(args, " ")
	if r.Exit != want {
		m.t.Errorf("%s: exit %d, want %d\n%.2000s%.4000s", what, r.Exit, want, r.Stdout, r.Stderr)
	}
	m.clean(what, r)
	return r
}

// A child is a program that runs until the test or the program ends it.
type child struct {
	*exec.Cmd
	m        *machine
	out, err bytes.Buffer // read them after done
	done     chan struct{}
}

// start starts a program of PATH, with further environment and standard input.
func (m *machine) start(env []string, in io.Reader, program string, args ...string) *child {
	m.t.Helper()
	if !filepath.IsAbs(program) {
		if ours := filepath.Join(m.s.Dir, "bin", program); exists(ours) {
			program = ours
		}
	}
	c := &child{Cmd: exec.Command(program, args...), m: m, done: make(chan struct{})}
	c.Env, c.Dir, c.Stdin, c.Stdout, c.Stderr, c.WaitDelay = append(m.Env(), env...), m.Home, in, &c.out, &c.err, 5*time.Second
	if err := c.Start(); err != nil {
		m.t.Fatal(err)
	}
	go func() { c.Wait(); close(c.done) }()
	m.t.Cleanup(func() { c.Process.Kill(); <-c.done })
	return c
}

func exists(path string) bool { _, err := os.Lstat(path); return err == nil }

// ends waits for the program's end and returns what it did.
func (c *child) ends() rig.Result {
	c.m.t.Helper()
	select {
	case <-c.done:
	case <-time.After(long):
		c.m.t.Fatalf("%v has not ended", c.Args)
	}
	code := c.ProcessState.ExitCode()
	if ws, ok := c.ProcessState.Sys().(syscall.WaitStatus); ok && ws.Signaled() {
		code = 128 + int(ws.Signal())
	}
	r := rig.Result{Stdout: c.out.String(), Stderr: c.err.String(), Exit: code}
	c.m.clean(strings.Join(c.Args[1:], " "), r)
	return r
}

// A wrong server is a node of the tailnet that answers as it likes. It proves what
// it says with a key of its own, so whoever meets it first takes it for a server.
type wrong struct {
	name  string // in full
	key   door.Key
	info  signin.ClusterInfo // what it says of the cluster, which is the real one
	grant signin.Kubeconfig  // a real one, which works

	mu     sync.Mutex
	seen   []string // what it was asked, and "clear" for a connection on port 80
	sent   int64    // bytes of bodies
	answer http.HandlerFunc
}

// wrongServer makes the node called "wrong" a server until the test's end.
func (s *system) wrongServer(t *testing.T) *wrong {
	t.Helper()
	alice, node := s.alice(t), s.person(t, "wrong", "", "tag:other").Node
	info, err := signin.GetClusterInfo.Call(t.Context(), s.client(alice), signin.ClusterInfoRequest{})
	if err != nil {
		t.Fatal(err)
	}
	w := s.wrongAt(t, node.Hostname, info)
	s.login(t, alice, signin.LoginRequest{})
	w.grant = s.kubeconfig(t, alice)
	w.grant.Cluster, w.grant.Prefix = "wrong", "tka-"
	ln, err := node.ListenTLS("tcp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	w.listen(t, ln)
	clear, err := node.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	w.inTheClear(t, clear)
	s.waitPeer(t, alice, node.Hostname)
	return w
}

// waitPeer waits until p reaches a host of the tailnet.
func (s *system) waitPeer(t *testing.T, p *rig.Person, host string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), long)
	defer cancel()
	if err := s.Net.WaitPeer(ctx, p.Node, host); err != nil {
		t.Fatal(err)
	}
}

func (s *system) wrongAt(t *testing.T, host string, info signin.ClusterInfo) *wrong {
	t.Helper()
	key, err := door.NewKey(bytes.Repeat([]byte{7}, 32))
	if err != nil {
		t.Fatal(err)
	}
	info.Name, info.Key = "wrong", key.Public()
	w := &wrong{name: host + "." + s.Net.Suffix(), key: key, info: info}
	w.answer = w.honest
	return w
}

func (w *wrong) listen(t *testing.T, ln net.Listener) {
	srv := &http.Server{Handler: w, BaseContext: func(net.Listener) context.Context { return t.Context() }}
	ended := make(chan struct{})
	go func() { srv.Serve(ln); close(ended) }()
	t.Cleanup(func() { srv.Close(); ln.Close(); <-ended })
}

// inTheClear notes who connects to port 80.
func (w *wrong) inTheClear(t *testing.T, ln net.Listener) {
	ended := make(chan struct{})
	go func() {
		defer close(ended)
		for {
			conn, err := ln.Accept()
			if err != nil {
				return
			}
			w.note("clear")
			conn.Close()
		}
	}()
	t.Cleanup(func() { ln.Close(); <-ended })
}

func (w *wrong) note(what string) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.seen = append(w.seen, what)
}

// answers replaces what it answers, and forgets what it was asked.
func (w *wrong) answers(h http.HandlerFunc) {
	w.mu.Lock()
	defer w.mu.Unlock()
	w.answer, w.seen, w.sent = h, nil, 0
}

// asked is what it was asked since.
func (w *wrong) asked() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.seen)
}

func (w *wrong) ServeHTTP(rw http.ResponseWriter, r *http.Request) {
	w.note(r.Method + " " + strings.TrimPrefix(r.URL.Path, api))
	w.mu.Lock()
	answer := w.answer
	w.mu.Unlock()
	answer(rw, r)
}

// prove answers with a body, and the proof that it is of this server.
func (w *wrong) prove(rw http.ResponseWriter, r *http.Request, status int, body any) {
	text, ok := body.([]byte)
	if !ok {
		var err error
		if text, err = json.Marshal(body); err != nil {
			text = []byte(err.Error())
		}
	}
	rw.Header().Set("Content-Type", "application/json")
	rw.Header().Set(door.ProofHeader, w.key.Prove(r.Header.Get(door.NonceHeader), r.Host, text))
	rw.WriteHeader(status)
	rw.Write(text)
}

// honest is how a server should answer.
func (w *wrong) honest(rw http.ResponseWriter, r *http.Request) {
	st := signin.Status{Username: "alice@example.com", Role: "view", Until: time.Now().Add(time.Hour).UTC().Format(time.RFC3339), State: signin.Pending,
		Name: "alice-0", Namespaces: []string{}, MissingNamespaces: []string{}, Cluster: "wrong"}
	switch r.Method + " " + strings.TrimPrefix(r.URL.Path, api) {
	case "GET /cluster-info":
		w.prove(rw, r, http.StatusOK, w.info)
	case "POST /login":
		w.prove(rw, r, http.StatusAccepted, st)
	case "GET /login":
		w.prove(rw, r, http.StatusNotFound, []byte(`{"code":"not_signed_in","message":"You are not signed in.","advice":["Sign in."],"auditId":"A"}`))
	case "GET /kubeconfig":
		w.kubeconfig(rw, r, w.grant)
	default:
		st.State = signin.Ended
		w.prove(rw, r, http.StatusOK, st)
	}
}

func (w *wrong) kubeconfig(rw http.ResponseWriter, r *http.Request, body any) {
	rw.Header().Set(signin.ExpiresHeader, time.Now().Add(time.Hour).UTC().Format(time.RFC3339))
	w.prove(rw, r, http.StatusOK, body)
}

// instead is honest but for one operation.
func (w *wrong) instead(operation string, h http.HandlerFunc) http.HandlerFunc {
	return func(rw http.ResponseWriter, r *http.Request) {
		if r.Method+" "+strings.TrimPrefix(r.URL.Path, api) == operation {
			h(rw, r)
			return
		}
		w.honest(rw, r)
	}
}

// takeOver makes a new node of the tailnet the one that has a server's name.
func (s *system) takeOver(t *testing.T, host string) *rig.Person {
	t.Helper()
	for _, n := range s.Net.Nodes() {
		if n.Name == host+"."+s.Net.Suffix()+"." && !s.Net.Delete(n.StableID) {
			t.Fatalf("the node %s cannot be removed", n.Name)
		}
	}
	s.mu.Lock()
	delete(s.people, host)
	s.mu.Unlock()
	return s.person(t, host, "", "tag:other")
}

// CL-01. A server is who proves it with the cluster's key. Whoever has only its
// name, a certificate for it or the way to it is asked for that proof and never
// told anything; what is no plain https address is not dialled at all.
//
// Guard: link.(*Link).Prove, link.Call (every answer), link.redirected,
// reach.ParseURL and reach.CheckAddr; crypto/tls, whose errors are final.
func TestCL01_TheServerIsAnotherOne(t *testing.T) {
	s := start(t)
	alice := s.alice(t)
	server := s.replica(t, "pinned")
	host, _, _ := strings.Cut(server, ".")
	s.waitPeer(t, alice, host)
	m := s.machine(t, alice)
	eventually(t, long, "the control: a login at "+server, func() bool { // it may not have the key yet
		r, err := m.Run(t.Context(), "tka", "login", "--server", server)
		return err == nil && r.Exit == 0
	})
	defer s.logout(t, alice)
	before := s.signins(t, "alice@example.com")

	// What a thief may have kept of the true server: an answer, and its proof.
	nonce := door.NewNonce()
	req := s.newRequest(t, "GET", api+"/cluster-info", "", door.NonceHeader, nonce)
	req.URL.Host, req.Host = server, server
	kept := do(t, s.http(alice), req)
	var info signin.ClusterInfo
	decode(t, kept.Body, &info)
	if err := info.Key.Check(nonce, server, []byte(kept.Body), kept.Header.Get(door.ProofHeader)); err != nil {
		t.Fatalf("the true server's proof: %v", err)
	}

	thief := s.takeOver(t, host)
	w := s.wrongAt(t, host, info)
	ln, err := thief.Node.ListenTLS("tcp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	w.listen(t, ln)
	clear, err := thief.Node.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	w.inTheClear(t, clear)
	s.waitPeer(t, alice, host)
	home := m.files()
	for what, answer := range map[string]http.HandlerFunc{
		"with a key of its own": w.honest,
		"without a proof": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			io.WriteString(rw, kept.Body)
		},
		"with a proof that it kept": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.Header().Set(door.ProofHeader, kept.Header.Get(door.ProofHeader))
			io.WriteString(rw, kept.Body)
		},
		"by asking another server of the cluster": func(rw http.ResponseWriter, r *http.Request) {
			on := s.newRequest(t, r.Method, r.URL.Path, "", door.NonceHeader, r.Header.Get(door.NonceHeader))
			res, err := s.http(alice).Do(on)
			if err != nil {
				http.Error(rw, err.Error(), http.StatusBadGateway)
				return
			}
			defer res.Body.Close()
			for name, v := range res.Header {
				rw.Header()[name] = v
			}
			io.Copy(rw, res.Body)
		},
	} {
		for _, args := range [][]string{{"login", "--server", server}, {"credential", "--cluster", "east"}, {"logout", "--cluster", "east"}, {"shell", "--server", server, "--", "true"}} {
			w.answers(answer)
			r := m.run(3, "tka", args...)
			if r.Stdout != "" || !strings.Contains(r.Stderr, "is not the one that this machine knows") {
				t.Errorf("%s, %v:\n%s%s", what, args, r.Stdout, r.Stderr)
			}
			if asked := w.asked(); !slices.Equal(asked, []string{"GET /cluster-info"}) {
				t.Errorf("%s, %v: the thief was asked %v", what, args, asked)
			}
		}
	}
	if now := m.files(); fmt.Sprint(now) != fmt.Sprint(home) {
		t.Errorf("files changed: %v, then %v", home, now)
	}
	if now := s.signins(t, "alice@example.com"); len(now) != 1 || len(before) != 1 || now[0].ResourceVersion != before[0].ResourceVersion {
		t.Errorf("sign-ins changed: %v, then %v", before, now)
	}

	// Where it is the first that a machine meets: nothing leads away from it, and
	// nothing to it in the clear.
	t.Run("redirects", func(t *testing.T) {
		mk := s.mark(t)
		for _, operation := range []string{"GET /cluster-info", "POST /login", "GET /kubeconfig"} {
			for _, to := range []string{s.Server(), "http://" + server, "https://" + server + "/elsewhere"} {
				m := s.machine(t, alice)
				w.answers(w.instead(operation, func(rw http.ResponseWriter, r *http.Request) {
					rw.Header().Set("Location", to+api+"/login")
					w.prove(rw, r, http.StatusTemporaryRedirect, []byte{})
				}))
				r := m.run(1, "tka", "login", "--server", server)
				asked := w.asked()
				if !strings.Contains(r.Stderr, "redirect") || slices.Contains(asked, "clear") || asked[len(asked)-1] != operation || exists(m.Kubeconfig()) {
					t.Errorf("%s to %s: asked %v: %s", operation, to, asked, r.Stderr)
				}
			}
		}
		if e := mk.entries(t); len(e) > 0 {
			t.Errorf("the server that the redirects name was visited: %+v", e)
		}
		m := s.machine(t, alice)
		w.answers(w.honest)
		w.grant = signin.Kubeconfig{Cluster: "wrong", Prefix: "tka-", Server: info.ServerURL, CA: info.CAData, Token: signin.NewToken("opaque")}
		m.run(0, "tka", "login", "--server", server) // the control
	})
	ln.Close()
	t.Run("certificates", func(t *testing.T) {
		own := httptest.NewTLSServer(nil) // for its certificate, which nobody vouches for
		defer own.Close()
		for what, wrap := range map[string]func(net.Listener) net.Listener{
			"self-signed": func(ln net.Listener) net.Listener { return tls.NewListener(ln, own.TLS) },
			"no TLS":      func(ln net.Listener) net.Listener { return ln },
		} {
			raw, err := thief.Node.Listen("tcp", ":443")
			if err != nil {
				t.Fatal(err)
			}
			m := s.machine(t, alice)
			w.answers(w.honest)
			w.listen(t, wrap(raw))
			for _, args := range [][]string{{"login", "--server", server}, {"status", "--server", server}, {"logout", "--server", server}} {
				if r := m.run(3, "tka", args...); !strings.Contains(r.Stderr, "does not prove that it is the one") {
					t.Errorf("%s, %v: %s", what, args, r.Stderr)
				}
			}
			if asked := w.asked(); len(asked) > 0 {
				t.Errorf("%s: asked %v", what, asked)
			}
			raw.Close()
		}
	})
	t.Run("addresses", func(t *testing.T) {
		var mu sync.Mutex
		var dialled []string
		way := httptest.NewServer(http.HandlerFunc(func(rw http.ResponseWriter, r *http.Request) {
			mu.Lock()
			dialled = append(dialled, r.Method+" "+r.Host)
			mu.Unlock()
			http.Error(rw, "no", http.StatusBadGateway)
		}))
		defer way.Close()
		all := func(url string) rig.Result {
			m := s.machine(t, alice)
			m.Proxy = way.URL
			return m.start([]string{"NO_PROXY=", "no_proxy="}, nil, "tka", "login", "--server", url).ends()
		}
		for _, url := range []string{"http://" + server, "http://" + server + ":443", "https://alice:secret@" + server, "https://alice@" + server, "https://169.254.169.254", "169.254.169.254",
			"https://[fe80::1]", "https://[::ffff:169.254.169.254]", "https://metadata.google.internal", "https://100.100.100.200", "https://2852039166", "https://0xa9fea9fe", "https://0.0.0.0",
			"https://" + server + "/x", "https://" + server + "?x", "https://" + server + "#x", "ftp://" + server, "https://", "https://a b", "--", "unix:/run/x"} {
			if r := all(url); r.Exit != 2 && r.Exit != 1 || r.Stdout != "" || r.Stderr == "" || strings.Contains(r.Stderr, "secret") {
				t.Errorf("%s: exit %d: %s%s", url, r.Exit, r.Stdout, r.Stderr)
			}
		}
		if len(dialled) > 0 {
			t.Errorf("dialled %v", dialled)
		}
		if r := all("https://" + server); r.Exit != 5 || !slices.Equal(dialled, []string{"CONNECT " + server + ":443"}) { // the control
			t.Errorf("a good address: exit %d, dialled %v: %s", r.Exit, dialled, r.Stderr)
		}
	})
	// The machine that knows the true servers goes on with them.
	m.run(0, "tka", "status")
}

// CL-02. Whatever a server sends for a kubeconfig beyond one cluster, one user and
// one context of the fields that a sign-in needs is refused by name; nothing is
// written, nothing of it is run and nothing of it reaches a terminal as it is.
//
// Guard: signin.(*Kubeconfig).UnmarshalJSON, reach.CheckKubeconfig.
func TestCL02_HostileKubeconfig(t *testing.T) {
	s := start(t)
	w := s.wrongServer(t)
	m := s.machine(t, s.alice(t))
	mine := "apiVersion: v1\nkind: Config\nusers:\n- name: mine\n  user: {token: abc}\ncontexts:\n- name: mine\n  context: {user: mine}\ncurrent-context: mine\n"
	m.write(".kube/config", mine)
	m.run(0, "tka", "status", "--server", w.name) // and the machine knows it
	home := m.files()
	good, err := json.Marshal(w.grant)
	if err != nil {
		t.Fatal(err)
	}
	token := w.grant.Token.Reveal()
	type object = map[string]any
	for _, tt := range []struct {
		what, word string
		edit       func(cluster, user, context, top object)
	}{
		{"a program to run", "exec", func(_, u, _, _ object) {
			u["exec"] = object{"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": []string{m.path("pwned")}}
		}},
		{"an auth-provider", "auth-provider", func(_, u, _, _ object) { u["auth-provider"] = object{"name": "oidc"} }},
		{"a file for a token", "tokenFile", func(_, u, _, _ object) { u["tokenFile"] = "/etc/passwd" }},
		{"a file for a key", "client-key", func(_, u, _, _ object) { u["client-key"] = m.path("key") }},
		{"somebody else to be", "\"as\"", func(_, u, _, _ object) { u["as"] = "system:admin" }},
		{"a proxy", "proxy-url", func(c, _, _, _ object) { c["proxy-url"] = "http://" + w.name }},
		{"a file for an authority", "certificate-authority", func(c, _, _, _ object) { c["certificate-authority"] = "/etc/passwd" }},
		{"no verification", "insecure-skip-tls-verify", func(c, _, _, _ object) { c["insecure-skip-tls-verify"] = true }},
		{"another TLS name", "tls-server-name", func(c, _, _, _ object) { c["tls-server-name"] = w.name }},
		{"extensions", "extensions", func(_, _, _, top object) { top["extensions"] = []any{object{"name": "x"}} }},
		{"two clusters", "one cluster", func(_, _, _, top object) { top["clusters"].(object)["mine"] = object{"server": "https://" + w.name} }},
		{"two users", "one user", func(_, _, _, top object) { top["users"].(object)["mine"] = object{"token": "x"} }},
		{"two contexts", "one context", func(_, _, _, top object) { top["contexts"].(object)["mine"] = object{"user": "mine"} }},
		{"another current context", "fit together", func(_, _, _, top object) { top["current-context"] = "mine" }},
		{"another place than was proved", "another place", func(c, _, _, _ object) { c["server"] = "https://" + w.name + ":6443" }},
		{"an address without TLS", "not https", func(c, _, _, _ object) { c["server"] = "http://" + w.name }},
		{"a metadata service", "metadata", func(c, _, _, _ object) { c["server"] = "https://169.254.169.254" }},
		{"no authority", "empty", func(c, _, _, _ object) { c["certificate-authority-data"] = "" }},
		{"a key for an authority", "PRIVATE KEY", func(c, _, _, _ object) {
			c["certificate-authority-data"] = []byte("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n")
		}},
		{"an address that moves the cursor", "characters", func(c, _, _, _ object) { c["server"] = "https://k8s/\x1b[2J\u202e" }},
		{"a namespace that rings", "namespace", func(_, _, x, _ object) { x["namespace"] = "\x1b]0;x\x07" }},
		{"a name that runs", "name of a cluster", func(_, _, _, top object) {
			const name = "$(touch pwned)"
			top["clusters"] = object{name: top["clusters"].(object)["wrong"]}
			top["contexts"] = object{"tka-" + name: object{"cluster": name, "user": "tka-" + name}}
			top["users"] = object{"tka-" + name: object{"token": token}}
			top["current-context"] = "tka-" + name
		}},
		{"a token that ends a header", "the token holds", func(_, u, _, _ object) { u["token"] = token + "\r\nImpersonate-User: admin" }},
	} {
		var top object
		if err := json.Unmarshal(good, &top); err != nil {
			t.Fatal(err)
		}
		tt.edit(top["clusters"].(object)["wrong"].(object), top["users"].(object)["tka-wrong"].(object), top["contexts"].(object)["tka-wrong"].(object), top)
		w.answers(w.instead("GET /kubeconfig", func(rw http.ResponseWriter, r *http.Request) { w.kubeconfig(rw, r, top) }))
		for _, args := range [][]string{{"login", "--server", w.name, "--use"}, {"kubeconfig", "--server", w.name, "--token"}, {"shell", "--server", w.name, "--", "touch", m.path("pwned")}} {
			r, err := m.Run(t.Context(), "tka", args...)
			m.clean(tt.what, r)
			if err != nil || r.Exit != 1 && r.Exit != 3 || r.Stdout != "" || !strings.Contains(r.Stderr, tt.word) || strings.Contains(r.Stderr, token) {
				t.Errorf("%s, %v: %v, exit %d, %q wanted:\n%s%s", tt.what, args, err, r.Exit, tt.word, r.Stdout, r.Stderr)
			}
		}
		if asked := w.asked(); !slices.Contains(asked, "GET /kubeconfig") {
			t.Errorf("%s: it was never sent: %v", tt.what, asked)
		}
		if now := m.files(); fmt.Sprint(now) != fmt.Sprint(home) {
			t.Errorf("%s: files changed: %v", tt.what, now)
		}
	}
	// The control: the same server, and what it should send. It works.
	w.answers(w.honest)
	m.run(0, "tka", "login", "--server", w.name)
	if now := m.read(".kube/config"); !strings.Contains(now, "current-context: mine") || !strings.Contains(now, "{token: abc}") {
		t.Errorf("the kubeconfig is %s", now)
	}
	if r := m.run(0, "kubectl", "--context", "tka-wrong", "get", "pods", "-n", "shop"); !strings.Contains(r.Stderr, "No resources found") {
		t.Errorf("kubectl: %s", r.Stderr)
	}
}

// CL-07. A server cannot hold a command for longer than its time limit, nor make
// it take in more than is wanted, nor break it.
//
// Guard: link.Patiently (the limit, whatever Retry-After says), door.Op.Call (the
// bound of a body), the context of cli.(*tka).begin, reach.CheckCA.
func TestCL07_HostileServer(t *testing.T) {
	s := start(t)
	w := s.wrongServer(t)
	const limit = 2 * time.Second
	endless := func(chunk string, every time.Duration) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.Header().Set(door.ProofHeader, "x")
			tick := time.NewTicker(max(every, time.Microsecond))
			defer tick.Stop()
			for {
				n, err := io.WriteString(rw, chunk)
				w.mu.Lock()
				w.sent += int64(n)
				w.mu.Unlock()
				if err != nil || http.NewResponseController(rw).Flush() != nil {
					return
				}
				select {
				case <-tick.C:
				case <-r.Context().Done():
					return
				}
			}
		}
	}
	wait := func(value string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Retry-After", value)
			w.prove(rw, r, http.StatusAccepted, []byte(`{"code":"not_ready","message":"Not yet.","advice":["Wait."],"auditId":"A"}`))
		}
	}
	says := func(body string) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) { w.prove(rw, r, http.StatusOK, []byte(body)) }
	}
	info := func(edit func(*signin.ClusterInfo)) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			info := w.info
			edit(&info)
			w.prove(rw, r, http.StatusOK, info)
		}
	}
	for _, tt := range []struct {
		what, operation string
		answer          http.HandlerFunc
		exit            []int
	}{
		{"not yet, for ever", "GET /kubeconfig", wait("1"), []int{4}},
		{"not yet, for 30 years", "GET /kubeconfig", wait("1000000000"), []int{4}},
		{"not yet, for ever, at the login", "POST /login", wait("1000000000"), []int{4}},
		{"not yet, until before", "GET /kubeconfig", wait("-1"), []int{4}},
		{"silence", "GET /kubeconfig", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, []int{4}},
		{"silence at once", "GET /cluster-info", func(_ http.ResponseWriter, r *http.Request) { <-r.Context().Done() }, []int{4}},
		{"a body without end", "GET /kubeconfig", endless(strings.Repeat(" ", 64<<10), 0), []int{1}},
		{"a body without end, at once", "GET /cluster-info", endless(strings.Repeat(" ", 64<<10), 0), []int{1}},
		{"a slow body", "GET /kubeconfig", endless(" ", 20*time.Millisecond), []int{4}},
		{"a slow body at the login", "POST /login", endless(" ", 20*time.Millisecond), []int{4}},
		{"wrong types", "GET /kubeconfig", says(`{"kind": 1, "clusters": "x", "users": null}`), []int{1}},
		{"wrong types at the login", "POST /login", says(`{"until": {}, "namespaces": "x"}`), []int{1}},
		{"wrong types at once", "GET /cluster-info", says(`{"name": [], "ca_data": 7}`), []int{1}},
		{"null", "GET /kubeconfig", says("null"), []int{1}},
		{"nothing", "GET /kubeconfig", says(""), []int{1}},
		{"10,000 deep", "GET /kubeconfig", says(strings.Repeat("[", 10_000)), []int{1}},
		{"a million keys", "GET /kubeconfig", says(`{"kind":"Config","users":{` + strings.Repeat(`"a":{},`, 100_000) + `"b":{}}}`), []int{1}},
		{"an empty authority", "GET /cluster-info", info(func(i *signin.ClusterInfo) { i.CAData = nil }), []int{1, 3}},
		{"a short authority", "GET /cluster-info", info(func(i *signin.ClusterInfo) { i.CAData = []byte("x") }), []int{1, 3}},
		{"a year that is none", "POST /login", says(`{"username":"a","until":"99999-01-01T00:00:00Z","state":"ready","name":"n","startedAt":"tomorrow"}`), []int{1}},
	} {
		t.Run(tt.what, func(t *testing.T) {
			m := s.machine(t, s.alice(t))
			w.answers(w.instead(tt.operation, tt.answer))
			began := time.Now()
			c := m.start(nil, nil, "tka", "login", "--server", w.name, "--timeout", limit.String())
			r := c.ends()
			took := time.Since(began)
			if !slices.Contains(tt.exit, r.Exit) || r.Stdout != "" || !strings.HasPrefix(r.Stderr[strings.Index(r.Stderr, "error: "):], "error: ") || len(r.Stderr) > 16<<10 {
				t.Errorf("exit %d, want %v\n%.500s%.2000s", r.Exit, tt.exit, r.Stdout, r.Stderr)
			}
			if took > limit+30*time.Second { // the machine may be busy; the server would go on for ever
				t.Errorf("it took %v", took)
			}
			if asked := w.asked(); !slices.Contains(asked, tt.operation) || len(asked) > 12 {
				t.Errorf("asked %v", asked)
			}
			w.mu.Lock()
			sent := w.sent
			w.mu.Unlock()
			usage, ok := c.ProcessState.SysUsage().(*syscall.Rusage)
			if !ok || usage.Maxrss > 200<<10 || sent > 32<<20 { // what is on its way in sockets counts as sent
				t.Errorf("%d bytes were sent, and it held %d KiB", sent, usage.Maxrss)
			}
			if exists(m.Kubeconfig()) {
				t.Error("a kubeconfig was written")
			}
		})
	}
	m := s.machine(t, s.alice(t))
	w.answers(w.honest)
	m.run(0, "tka", "login", "--server", w.name, "--timeout", limit.String()) // the control
}
