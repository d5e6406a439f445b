package cli_test

import (
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"fmt"
	"io"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/rogpeppe/go-internal/testscript"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/signin"
)

// Servers that respond unlike any real server. Each accepts a login, so that the next step meets its misbehaviour.
var accepted = `{"username":"alice@example.com","role":"view","until":"2099-01-01T00:00:00Z","state":"pending","name":"alice-0","cluster":"prod-eu","namespaces":[],"missingNamespaces":[]}`

// kubeconfigBody returns a kubeconfig as a server sends it, after edit.
func kubeconfigBody(edit func(cluster, user, context, top map[string]any)) string {
	cluster := map[string]any{"server": "https://k8s.example:6443", "certificate-authority-data": base64.StdEncoding.EncodeToString(testCA())}
	user := map[string]any{"token": canary}
	context := map[string]any{"cluster": "prod-eu", "user": "tka-prod-eu"}
	top := map[string]any{"kind": "Config", "apiVersion": "v1", "current-context": "tka-prod-eu", "clusters": map[string]any{"prod-eu": cluster},
		"users": map[string]any{"tka-prod-eu": user}, "contexts": map[string]any{"tka-prod-eu": context}}
	edit(cluster, user, context, top)
	b, err := json.Marshal(top)
	if err != nil {
		panic(err)
	}
	return string(b)
}

// badKubeconfigs returns the kubeconfigs of CL-02, each with a word from the refusal.
func badKubeconfigs() map[string]struct{ body, word string } {
	type m = map[string]any
	bad := map[string]struct{ body, word string }{}
	add := func(name, word string, edit func(cluster, user, context, top m)) {
		bad[name] = struct{ body, word string }{kubeconfigBody(edit), word}
	}
	add("exec", "exec", func(_, u, _, _ m) { u["exec"] = m{"command": "sh"} })
	add("auth-provider", "auth-provider", func(_, u, _, _ m) { u["auth-provider"] = m{"name": "x"} })
	add("tokenFile", "tokenFile", func(_, u, _, _ m) { u["tokenFile"] = "/etc/shadow" })
	add("client-key", "client-key", func(_, u, _, _ m) { u["client-key"] = "/home/alice/.ssh/id" })
	add("impersonate", "as", func(_, u, _, _ m) { u["as"] = "root" })
	add("proxy-url", "proxy-url", func(c, _, _, _ m) { c["proxy-url"] = "http://evil.example" })
	add("ca-file", "certificate-authority", func(c, _, _, _ m) { c["certificate-authority"] = "/etc/passwd" })
	add("insecure", "insecure-skip-tls-verify", func(c, _, _, _ m) { c["insecure-skip-tls-verify"] = true })
	add("tls-name", "tls-server-name", func(c, _, _, _ m) { c["tls-server-name"] = "evil" })
	add("extensions", "extensions", func(_, _, _, top m) { top["extensions"] = []any{} })
	add("two-clusters", "one cluster", func(_, _, _, top m) { top["clusters"].(m)["b"] = m{"server": "https://b"} })
	add("two-users", "one user", func(_, _, _, top m) { top["users"].(m)["b"] = m{"token": "b"} })
	add("two-contexts", "one context", func(_, _, _, top m) { top["contexts"].(m)["b"] = m{"cluster": "prod-eu"} })
	add("misfit", "do not match", func(_, _, x, _ m) { x["user"] = "somebody" })
	add("no-ca", "empty", func(c, _, _, _ m) { delete(c, "certificate-authority-data") })
	add("short-ca", "not PEM", func(c, _, _, _ m) {
		c["certificate-authority-data"] = base64.StdEncoding.EncodeToString([]byte("short"))
	})
	add("key-ca", "PRIVATE KEY", func(c, _, _, _ m) {
		c["certificate-authority-data"] = base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: []byte("x")}))
	})
	add("junk-ca", "not PEM", func(c, _, _, _ m) {
		c["certificate-authority-data"] = base64.StdEncoding.EncodeToString(append([]byte("junk\n"), testCA()...))
	})
	add("bad-ca", "certificate 1", func(c, _, _, _ m) {
		c["certificate-authority-data"] = base64.StdEncoding.EncodeToString(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: []byte("x")}))
	})
	add("ca-not-base64", "expected form", func(c, _, _, _ m) { c["certificate-authority-data"] = "%%%" })
	add("http", "not https", func(c, _, _, _ m) { c["server"] = "http://k8s.example" })
	add("no-host", "has no host", func(c, _, _, _ m) { c["server"] = "https://" })
	add("userinfo", "more than a host", func(c, _, _, _ m) { c["server"] = "https://a:b@k8s.example" })
	add("metadata", "metadata", func(c, _, _, _ m) { c["server"] = "https://169.254.169.254" })
	add("escape-server", "characters", func(c, _, _, _ m) { c["server"] = "https://k8s.example/\x1b[2J" })
	add("newline-server", "characters", func(c, _, _, _ m) { c["server"] = "https://k8s.example\nexec: x" })
	add("escape-namespace", "namespace", func(_, _, x, _ m) { x["namespace"] = "\x1b]0;x\x07" })
	add("no-token", "token is missing", func(_, u, _, _ m) { u["token"] = "" })
	add("token-newline", "token contains", func(_, u, _, _ m) { u["token"] = "a\r\nHost: evil" })
	add("token-number", "expected form", func(_, u, _, _ m) { u["token"] = 7 })
	for what, name := range map[string]string{"escape": "\x1b[31mred", "shell": "$(touch x)", "newline": "a\nb", "bidi": "a\u202eb", "space": "a b", "quote": "a'b", "dash": "-rf"} {
		add(what+"-name", "name of a cluster", func(_, _, _, top m) {
			top["clusters"] = m{name: top["clusters"].(m)["prod-eu"]}
			top["contexts"] = m{"tka-" + name: m{"cluster": name, "user": "tka-" + name}}
			top["users"] = m{"tka-" + name: m{"token": canary}}
			top["current-context"] = "tka-" + name
		})
	}
	return bad
}

// hostileHandler returns a handler that misbehaves in the way of kind for every request but the login. If proven, it first proves that it
// serves prod-eu.
func hostileHandler(kind string, proven bool, stop <-chan struct{}) http.HandlerFunc {
	misbehave := misbehavingHandler(kind, stop)
	if !proven {
		return misbehave
	}
	key := keyFor("prod-eu")
	info := kubeInfo(key)
	return func(w http.ResponseWriter, r *http.Request) {
		if strings.HasSuffix(r.URL.Path, "/cluster-info") {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set(httpapi.ProofHeader, key.Prove(r.Header.Get(httpapi.NonceHeader), r.Host, info))
			w.Write(info)
			return
		}
		if slices.Contains([]string{"huge", "slow", "slow-login", "silent", "hangup"}, kind) && !(r.Method == http.MethodPost && kind != "slow-login") {
			misbehave(w, r)
			return
		}
		rec := httptest.NewRecorder() // it proves each response with its key
		misbehave(rec, r)
		maps.Copy(w.Header(), rec.Header())
		w.Header().Set(httpapi.ProofHeader, key.Prove(r.Header.Get(httpapi.NonceHeader), r.Host, rec.Body.Bytes()))
		w.WriteHeader(rec.Code)
		w.Write(rec.Body.Bytes())
	}
}

// kubeInfo returns the cluster info for the cluster in kubeconfigBody.
func kubeInfo(key httpapi.Key) []byte {
	b, err := json.Marshal(signin.ClusterInfo{Name: "prod-eu", ServerURL: "https://k8s.example:6443", CAData: testCA(), Key: key.Public(), Version: "v0.1.0"})
	if err != nil {
		panic(err)
	}
	return b
}

func misbehavingHandler(kind string, stop <-chan struct{}) http.HandlerFunc {
	var answered atomic.Bool // since the last login
	return func(w http.ResponseWriter, r *http.Request) {
		h := w.Header()
		h.Set("Content-Type", "application/json")
		if r.Method == http.MethodPost && kind != "slow-login" && !strings.HasPrefix(kind, "redirect") && kind != "html" && kind != "escapes" {
			answered.Store(false)
			h.Set("Content-Length", fmt.Sprint(len(accepted)))
			w.WriteHeader(http.StatusAccepted)
			io.WriteString(w, accepted)
			return
		}
		endless := func(chunk string, every time.Duration) {
			for {
				if _, err := io.WriteString(w, chunk); err != nil {
					return
				}
				http.NewResponseController(w).Flush()
				select {
				case <-stop:
					return
				case <-r.Context().Done():
					return
				case <-time.After(every):
				}
			}
		}
		switch kind {
		case "pending-once": // and then nothing
			if answered.Swap(true) {
				select {
				case <-stop:
				case <-r.Context().Done():
				}
				return
			}
			w.WriteHeader(http.StatusAccepted)
		case "pending": // always 202 without codes: a server that does not support waiting
			h.Set("Retry-After", "1")
			w.WriteHeader(http.StatusAccepted)
		case "pending-silent":
			w.WriteHeader(http.StatusAccepted)
			io.WriteString(w, "{}")
		case "retry-huge":
			h.Set("Retry-After", "1000000000")
			w.WriteHeader(http.StatusAccepted)
			io.WriteString(w, `{"code":"not_ready","message":"not yet"}`)
		case "retry-junk":
			h.Set("Retry-After", "-1e9 soon")
			w.WriteHeader(http.StatusAccepted)
		case "huge":
			endless(strings.Repeat(" ", 64<<10), 0)
		case "slow", "slow-login":
			endless(" ", 50*time.Millisecond)
		case "silent":
			select {
			case <-stop:
			case <-r.Context().Done():
			}
		case "html":
			h.Set("Content-Type", "text/html")
			io.WriteString(w, "<html><body>Welcome to the captive portal</body></html>")
		case "junk":
			io.WriteString(w, `{"kind": "Config", `)
		case "wrong-types":
			io.WriteString(w, `{"kind": 1, "apiVersion": [], "clusters": "x", "users": null, "contexts": 4}`)
		case "null":
			io.WriteString(w, `null`)
		case "list":
			io.WriteString(w, `[]`)
		case "empty":
		case "redirect-http":
			http.Redirect(w, r, "http://evil.example/api/v1alpha1/login", http.StatusTemporaryRedirect)
		case "redirect-self":
			http.Redirect(w, r, r.URL.Path, http.StatusFound)
		case "hangup":
			if c, _, err := http.NewResponseController(w).Hijack(); err == nil {
				c.Close()
			}
		case "escapes":
			w.WriteHeader(http.StatusForbidden)
			json.NewEncoder(w).Encode(map[string]any{"code": "no_capability", "message": "\x1b]0;owned\x07no\u202egrant\r\n", "advice": []string{"run \x1b[31mthis", strings.Repeat("long ", 5000)}, "auditId": "\x9b2J"})
		case "bad-expiry":
			h.Set("Tailplane-Expires-At", "tomorrow")
			io.WriteString(w, kubeconfigBody(func(_, _, _, _ map[string]any) {}))
		case "no-expiry":
			io.WriteString(w, kubeconfigBody(func(_, _, _, _ map[string]any) {}))
		case "other-cluster":
			io.WriteString(w, strings.ReplaceAll(kubeconfigBody(func(_, _, _, _ map[string]any) {}), "prod-eu", "prod-us"))
		case "forbidden-plain":
			http.Error(w, "go away", http.StatusForbidden)
		case "gateway":
			http.Error(w, "bad gateway", http.StatusBadGateway)
		default:
			if bad, ok := badKubeconfigs()[kind]; ok {
				io.WriteString(w, bad.body)
				return
			}
			panic("no such kind: " + kind)
		}
	}
}

// hostile NAME KIND starts a server that misbehaves, at $NAME, and makes it the server of the settings.
func cmdHostile(ts *testscript.TestScript, neg bool, args []string) {
	srv, stop := newHostile(args[1], true)
	ts.Defer(stop)
	useServer(ts, args[0], srv.URL)
}

func newHostile(kind string, proven bool) (*httptest.Server, func()) {
	ended := make(chan struct{})
	srv := httptest.NewServer(hostileHandler(kind, proven, ended))
	return srv, func() { close(ended); srv.CloseClientConnections(); srv.Close() }
}

// CL-02: tka refuses a kubeconfig that holds more than one cluster, one user and one context. It names the extra part and writes nothing.
func TestCL02_kubeconfigs_are_taken_strictly(t *testing.T) {
	bad := badKubeconfigs()
	for _, name := range slices.Sorted(maps.Keys(bad)) {
		t.Run(name, func(t *testing.T) {
			srv, stop := newHostile(name, true)
			defer stop()
			m := newMachine(t, srv.URL)
			for _, args := range [][]string{{"login"}, {"kubeconfig"}, {"kubeconfig", "--token"}, {"credential", "--cluster", "prod-eu"}} {
				r := m.run(args...)
				switch {
				case r.code != 1:
					t.Errorf("tka: r.code = %v, want 1; args = %v", r.code, args)
				case r.out != "":
					t.Errorf("tka: r.out = %q, want none; args = %v", r.out, args)
				case !strings.Contains(r.err, bad[name].word):
					t.Errorf("tka: r.err = %q does not contain %q; args = %v", r.err, bad[name].word, args)
				}
				if strings.Contains(r.err, canary) {
					t.Errorf("tka %v shows the token: %s", args, r.err)
				}
				for _, c := range r.err {
					if c != '\n' && (c < ' ' || c == 0x7f || c >= 0x80 && c < 0xa0 || c == 0x202e) {
						t.Errorf("tka %v writes %U to the terminal", args, c)
					}
				}
			}
			if files := m.files(t); len(files) != 2 { // settings, known servers
				t.Errorf("files after refusals: %v", files)
			}
		})
	}
}
