package cli

import (
	"crypto/tls"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// CL-01. A server proves its identity with the cluster's key. The client requires that proof from every server, even
// one with the right name, a valid certificate or control of the network path. It sends no other data before the
// proof. The client never dials a URL that is not plain https.
//
// Guard: client.(*Client).Verify, client.Call (every answer), client.redirectError, dialpolicy.ParseURL and dialpolicy.CheckAddr;
// crypto/tls, whose errors the client never ignores.
func TestCL01_TheServerIsAnotherOne(t *testing.T) {
	t.Run("a bare name", bareNameIsAnImpostors)
	s := attacktest.Start(t)
	alice := s.Alice(t)
	pinned := s.StartServer(t, "cl01", attacktest.ServerOptions{})
	server := pinned.Name
	host, _, _ := strings.Cut(server, ".")
	s.WaitPeer(t, alice, host)
	m := s.NewMachine(t, alice)
	attacktest.Eventually(t, attacktest.Long, "the control: a login at "+server, func() bool { // the access server may not have the key yet
		r, err := m.Run(t.Context(), "tka", "login", "--server", server)
		return err == nil && r.Exit == 0
	})
	defer s.Logout(t, alice)
	before := s.SignIns(t, "alice@example.com")

	// Data of the real server that an attacker may have stored: an answer and its proof.
	nonce := httpapi.NewNonce()
	req := s.NewRequest(t, "GET", attacktest.API+"/cluster-info", "", httpapi.NonceHeader, nonce)
	req.URL.Host, req.Host = server, server
	kept := attacktest.Do(t, s.HTTPClient(alice), req)
	var info signin.ClusterInfo
	attacktest.Decode(t, kept.Body, &info)
	if err := info.Key.Check(nonce, server, []byte(kept.Body), kept.Header.Get(httpapi.ProofHeader)); err != nil {
		t.Fatalf("the true server's proof: %v", err)
	}

	if err := pinned.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	thief := takeOver(t, s, host)
	w := newWrongAt(t, s, host, info)
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
	s.WaitPeer(t, alice, host)
	home := m.Files()
	for what, answer := range map[string]http.HandlerFunc{
		"with a key of its own": w.honest,
		"without a proof": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			io.WriteString(rw, kept.Body)
		},
		"with a proof that it kept": func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.Header().Set(httpapi.ProofHeader, kept.Header.Get(httpapi.ProofHeader))
			io.WriteString(rw, kept.Body)
		},
		"by asking another server of the cluster": func(rw http.ResponseWriter, r *http.Request) {
			on := s.NewRequest(t, r.Method, r.URL.Path, "", httpapi.NonceHeader, r.Header.Get(httpapi.NonceHeader))
			res, err := s.HTTPClient(alice).Do(on)
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
			r := m.Exec(3, "tka", args...)
			if r.Stdout != "" || !strings.Contains(r.Stderr, "is not the one that this machine knows") {
				t.Errorf("%s, %v:\n%s%s", what, args, r.Stdout, r.Stderr)
			}
			if asked := w.asked(); !slices.Equal(asked, []string{"GET /cluster-info"}) {
				t.Errorf("%s, %v: the impostor received %v", what, args, asked)
			}
		}
	}
	if now := m.Files(); fmt.Sprint(now) != fmt.Sprint(home) {
		t.Errorf("files changed: %v, then %v", home, now)
	}
	switch now := s.SignIns(t, "alice@example.com"); {
	case len(now) != 1:
		t.Errorf("sign-ins changed: len(now) = %v, want 1", len(now))
	case len(before) != 1:
		t.Errorf("sign-ins changed: len(before) = %v, want 1", len(before))
	case now[0].ResourceVersion != before[0].ResourceVersion:
		t.Errorf("sign-ins changed: now[0].ResourceVersion = %q, want %q", now[0].ResourceVersion, before[0].ResourceVersion)
	}

	// On first contact with a server: the client follows no redirect away from it, and no redirect to it over an
	// unencrypted connection.
	t.Run("redirects", func(t *testing.T) {
		mk := s.Mark(t)
		for _, operation := range []string{"GET /cluster-info", "POST /login", "GET /kubeconfig"} {
			for _, to := range []string{s.Server(), "http://" + server, "https://" + server + "/elsewhere"} {
				m := s.NewMachine(t, alice)
				w.answers(w.instead(operation, func(rw http.ResponseWriter, r *http.Request) {
					rw.Header().Set("Location", to+attacktest.API+"/login")
					w.prove(rw, r, http.StatusTemporaryRedirect, []byte{})
				}))
				r := m.Exec(1, "tka", "login", "--server", server)
				asked := w.asked()
				switch {
				case !strings.Contains(r.Stderr, "redirect"):
					t.Errorf("r.Stderr = %q does not contain %q; %s", r.Stderr, "redirect", to)
				case slices.Contains(asked, "clear"):
					t.Errorf("asked = %v contains %q; %s", asked, "clear", to)
				case asked[len(asked)-1] != operation:
					t.Errorf("asked[len(asked)-1] = %q, want %q; %s", asked[len(asked)-1], operation, to)
				case attacktest.Exists(m.Kubeconfig()):
					t.Errorf("attacktest.Exists(m.Kubeconfig()) is true; operation = %s, %s, asked = %v, %s",
						operation, to, asked, r.Stderr)
				}
			}
		}
		if e := mk.Entries(t); len(e) > 0 {
			t.Errorf("the redirect target received requests: %+v", e)
		}
		m := s.NewMachine(t, alice)
		grant := signin.Kubeconfig{Cluster: "wrong", Prefix: "tka-", Server: info.ServerURL, CA: info.CAData, Token: secret.New("opaque")}
		w.answers(w.instead("GET /kubeconfig", func(rw http.ResponseWriter, r *http.Request) { w.kubeconfig(rw, r, grant) }))
		m.Exec(0, "tka", "login", "--server", server) // control
	})
	ln.Close()
	t.Run("certificates", func(t *testing.T) {
		own := httptest.NewTLSServer(nil) // for its certificate, which no trusted authority signed
		defer own.Close()
		for what, wrap := range map[string]func(net.Listener) net.Listener{
			"self-signed": func(ln net.Listener) net.Listener { return tls.NewListener(ln, own.TLS) },
			"no TLS":      func(ln net.Listener) net.Listener { return ln },
		} {
			raw, err := thief.Node.Listen("tcp", ":443")
			if err != nil {
				t.Fatal(err)
			}
			m := s.NewMachine(t, alice)
			w.answers(w.honest)
			w.listen(t, wrap(raw))
			for _, args := range [][]string{{"login", "--server", server}, {"status", "--server", server}, {"logout", "--server", server}} {
				if r := m.Exec(3, "tka", args...); !strings.Contains(r.Stderr, "did not prove its identity") {
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
		all := func(url string) testenv.Result {
			m := s.NewMachine(t, alice)
			m.Proxy = way.URL
			return m.StartProgram([]string{"NO_PROXY=", "no_proxy="}, nil, "tka", "login", "--server", url).End()
		}
		for _, url := range []string{"http://" + server, "http://" + server + ":443", "https://alice:secret@" + server, "https://alice@" + server, "https://169.254.169.254", "169.254.169.254",
			"https://[fe80::1]", "https://[::ffff:169.254.169.254]", "https://metadata.google.internal", "https://100.100.100.200", "https://2852039166", "https://0xa9fea9fe", "https://0.0.0.0",
			"https://" + server + "/x", "https://" + server + "?x", "https://" + server + "#x", "ftp://" + server, "https://", "https://a b", "--", "unix:/run/x"} {
			switch r := all(url); {
			case r.Exit != 2 && r.Exit != 1:
				t.Errorf("r.Exit != 2 && r.Exit != 1; %s, %d, %s, %s", url, r.Exit, r.Stdout, r.Stderr)
			case r.Stdout != "":
				t.Errorf("r.Stdout = %q, want none; %s", r.Stdout, url)
			case r.Stderr == "":
				t.Errorf("r.Stderr is empty; %s, %d, %s, %s", url, r.Exit, r.Stdout, r.Stderr)
			case strings.Contains(r.Stderr, "secret"):
				t.Errorf("r.Stderr = %q contains %q; %s", r.Stderr, "secret", url)
			}
		}
		r := all("https://" + server) // control: one good address
		mu.Lock()
		defer mu.Unlock()
		if r.Exit != 5 || !slices.Equal(dialled, []string{"CONNECT " + server + ":443"}) {
			t.Errorf("dialled %v; the good address: exit %d: %s", dialled, r.Exit, r.Stderr)
		}
	})
	// The name through which the machine signed in is gone. It still uses the real server by its other name.
	m.Exec(0, "tka", "status", "--server", strings.TrimPrefix(s.Server(), "https://"))
}

// CL-02. A kubeconfig of a server may contain one cluster, one user and one context, with only the fields that a
// sign-in needs. The client refuses anything else and names it. It writes nothing, runs nothing of it, and prints
// none of it unescaped.
//
// Guard: signin.(*Kubeconfig).UnmarshalJSON, client.CheckKubeconfig.
func TestCL02_HostileKubeconfig(t *testing.T) {
	s := attacktest.Start(t)
	w := newWrongServer(t, s)
	m := s.NewMachine(t, s.Alice(t))
	mine := "apiVersion: v1\nkind: Config\nusers:\n- name: mine\n  user: {token: abc}\ncontexts:\n- name: mine\n  context: {user: mine}\ncurrent-context: mine\n"
	m.Write(".kube/config", mine)
	m.Exec(0, "tka", "cluster-info", "--server", w.name) // so that the machine knows the server
	home := m.Files()
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
			u["exec"] = object{"apiVersion": "client.authentication.k8s.io/v1", "command": "touch", "args": []string{m.Path("pwned")}}
		}},
		{"an auth-provider", "auth-provider", func(_, u, _, _ object) { u["auth-provider"] = object{"name": "oidc"} }},
		{"a file for a token", "tokenFile", func(_, u, _, _ object) { u["tokenFile"] = "/etc/passwd" }},
		{"a file for a key", "client-key", func(_, u, _, _ object) { u["client-key"] = m.Path("key") }},
		{"somebody else to be", "\"as\"", func(_, u, _, _ object) { u["as"] = "system:admin" }},
		{"a proxy", "proxy-url", func(c, _, _, _ object) { c["proxy-url"] = "http://" + w.name }},
		{"a file for an authority", "certificate-authority", func(c, _, _, _ object) { c["certificate-authority"] = "/etc/passwd" }},
		{"no verification", "insecure-skip-tls-verify", func(c, _, _, _ object) { c["insecure-skip-tls-verify"] = true }},
		{"another TLS name", "tls-server-name", func(c, _, _, _ object) { c["tls-server-name"] = w.name }},
		{"extensions", "extensions", func(_, _, _, top object) { top["extensions"] = []any{object{"name": "x"}} }},
		{"two clusters", "one cluster", func(_, _, _, top object) { top["clusters"].(object)["mine"] = object{"server": "https://" + w.name} }},
		{"two users", "one user", func(_, _, _, top object) { top["users"].(object)["mine"] = object{"token": "x"} }},
		{"two contexts", "one context", func(_, _, _, top object) { top["contexts"].(object)["mine"] = object{"user": "mine"} }},
		{"another current context", "do not match", func(_, _, _, top object) { top["current-context"] = "mine" }},
		{"another API server than the server proved", "not the one that the server proved", func(c, _, _, _ object) { c["server"] = "https://" + w.name + ":6443" }},
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
		{"a token that ends a header", "the token contains", func(_, u, _, _ object) { u["token"] = token + "\r\nImpersonate-User: admin" }},
	} {
		var top object
		if err := json.Unmarshal(good, &top); err != nil {
			t.Fatal(err)
		}
		tt.edit(top["clusters"].(object)["wrong"].(object), top["users"].(object)["tka-wrong"].(object), top["contexts"].(object)["tka-wrong"].(object), top)
		w.answers(w.instead("GET /kubeconfig", func(rw http.ResponseWriter, r *http.Request) { w.kubeconfig(rw, r, top) }))
		for _, args := range [][]string{{"login", "--server", w.name, "--use"}, {"kubeconfig", "--server", w.name, "--token"}, {"shell", "--server", w.name, "--", "touch", m.Path("pwned")}} {
			r, err := m.Run(t.Context(), "tka", args...)
			m.Clean(tt.what, r)
			switch {
			case err != nil:
				t.Errorf("%s: %v; args = %v", tt.what, err, args)
			case r.Exit != 1 && r.Exit != 3:
				t.Errorf("%s: r.Exit != 1 && r.Exit != 3, args = %v, %v, %d, %q, %s, %s",
					tt.what, args, err, r.Exit, tt.word, r.Stdout, r.Stderr)
			case r.Stdout != "":
				t.Errorf("%s: r.Stdout = %q, want none; args = %v", tt.what, r.Stdout, args)
			case !strings.Contains(r.Stderr, tt.word):
				t.Errorf("%s: r.Stderr = %q does not contain %q; args = %v", tt.what, r.Stderr, tt.word, args)
			case strings.Contains(r.Stderr, token):
				t.Errorf("%s: r.Stderr = %q contains %q; args = %v", tt.what, r.Stderr, token, args)
			}
		}
		if asked := w.asked(); !slices.Contains(asked, "GET /kubeconfig") {
			t.Errorf("%s: it was never sent: %v", tt.what, asked)
		}
		if now := m.Files(); fmt.Sprint(now) != fmt.Sprint(home) {
			t.Errorf("%s: files changed: %v", tt.what, now)
		}
	}
	// Control: the same server with a correct answer. It works.
	w.answers(w.honest)
	m.Exec(0, "tka", "login", "--server", w.name)
	if now := m.Read(".kube/config"); !strings.Contains(now, "current-context: mine") || !strings.Contains(now, "{token: abc}") {
		t.Errorf("the kubeconfig is %s", now)
	}
	if r := m.Exec(0, "kubectl", "--context", "tka-wrong", "get", "pods", "-n", "shop"); !strings.Contains(r.Stderr, "No resources found") {
		t.Errorf("kubectl: %s", r.Stderr)
	}
}

// CL-07. A server cannot delay a command beyond its time limit, cannot make it read more data than its limit, and
// cannot crash it.
//
// Guard: client.CallUntilReady (the time limit, with any Retry-After), httpapi.Op.Call (the maximum size of a body), the
// context of cli.(*tka).preRun, client.checkCA.
func TestCL07_HostileServer(t *testing.T) {
	s := attacktest.Start(t)
	w := newWrongServer(t, s)
	endless := func(chunk string, every time.Duration) http.HandlerFunc {
		return func(rw http.ResponseWriter, r *http.Request) {
			rw.Header().Set("Content-Type", "application/json")
			rw.Header().Set(httpapi.ProofHeader, "x")
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
		// Exit code 4 means that the time limit passed.
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
			m := s.NewMachine(t, s.Alice(t))
			limit := 2 * time.Second
			if !slices.Contains(tt.exit, 4) {
				limit = time.Minute
			}
			var held int
			var r testenv.Result
			var took time.Duration
			most := 12
			for ; ; limit, most = 4*limit, 4*most { // a busy machine needs longer limits
				w.answers(w.instead(tt.operation, tt.answer))
				began := time.Now()
				c := m.StartProgram(nil, nil, "tka", "login", "--server", w.name, "--timeout", limit.String())
				held = c.Peak()
				r = c.End()
				took = time.Since(began)
				if slices.Contains(w.asked(), tt.operation) || limit > time.Minute {
					break
				}
			}
			switch {
			case !slices.Contains(tt.exit, r.Exit):
				t.Errorf("exit: tt.exit = %v does not contain %v", tt.exit, r.Exit)
			case r.Stdout != "":
				t.Errorf("exit: r.Stdout = %q, want none", r.Stdout)
			case !strings.Contains(r.Stderr, "error: "):
				t.Errorf("exit: r.Stderr = %q does not contain %q", r.Stderr, "error: ")
			case len(r.Stderr) > 16<<10:
				t.Errorf("exit: len(r.Stderr) = %v, want at most %v", len(r.Stderr), 16<<10)
			}
			if took > limit+attacktest.Soon { // the machine may be busy; the server itself would never stop
				t.Errorf("it took %v", took)
			}
			if asked := w.asked(); !slices.Contains(asked, tt.operation) || len(asked) > most {
				t.Errorf("asked %v", asked)
			}
			w.mu.Lock()
			sent := w.sent
			w.mu.Unlock()
			if held > 200<<10 || sent > 32<<20 { // bytes in socket buffers count as sent
				t.Errorf("%d bytes were sent, and tka used %d KiB", sent, held)
			}
			if attacktest.Exists(m.Kubeconfig()) {
				t.Error("a kubeconfig was written")
			}
		})
	}
	m := s.NewMachine(t, s.Alice(t))
	w.answers(w.honest)
	m.Exec(0, "tka", "login", "--server", w.name, "--timeout", attacktest.Long.String()) // control
}
