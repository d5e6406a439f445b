package identity

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/json"
	"fmt"
	"math/big"
	"mime"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// The headers of tailscaled on its socket, and which of them count.
func TestServe(t *testing.T) {
	t.Parallel()
	ln := socket(t)
	start(t, ln, Serve{Capability: capability})
	login := func(s string) string { return serveLogin + ": " + s }
	q := func(s string) string { return mime.QEncoding.Encode("utf-8", s) } // as tailscaled encodes it
	alice := login("alice@example.com")
	rules := func(s string) string { return serveCapabilities + ": " + s }
	for _, tt := range []struct {
		why   string
		lines []string
		login access.Login
		name  string
		rules string
		code  problem.Code
	}{
		{why: "a person", lines: []string{alice, serveName + ": Alice", "Tailscale-User-Profile-Pic: https://example.com/a", "Tailscale-Headers-Info: https://tailscale.com/s/serve-headers"}, login: "alice@example.com", name: "Alice"},
		{why: "a name that is not ASCII", lines: []string{alice, serveName + ": " + q("Zoë Ünal")}, login: "alice@example.com", name: "Zoë Ünal"},
		{why: "a long name that is not ASCII", lines: []string{alice, serveName + ": " + q(strings.Repeat("ü", 60))}, login: "alice@example.com", name: strings.Repeat("ü", 60)},
		{why: "a login that is not ASCII", lines: []string{login(q("zoë@example.com"))}, login: "zoë@example.com"},
		{why: "a login that only looks encoded", lines: []string{login("=?utf-8?q?alice=40example.com?=")}, login: "=?utf-8?q?alice=40example.com?="},
		{why: "a login encoded otherwise", lines: []string{login("=?utf-8?b?YWxpY2VAZXhhbXBsZS5jb20=?=")}, login: "=?utf-8?b?YWxpY2VAZXhhbXBsZS5jb20=?="},
		{why: "capabilities", lines: []string{alice, rules(`{"` + capability + `":[{"role":"viewer","orgs":["*"]},{"role":"operator","orgs":["acme"]}],"other":[{}]}`)},
			login: "alice@example.com", rules: `[{"role":"viewer","orgs":["*"]},{"role":"operator","orgs":["acme"]}]`},
		{why: "capabilities that are not ASCII", lines: []string{alice, rules(q(`{"` + capability + `":[{"role":"viewér"}]}`))}, login: "alice@example.com", rules: `[{"role":"viewér"}]`},
		{why: "capabilities of others", lines: []string{alice, rules(`{"` + capability + `/":[{"role":"viewer"}],"Tailplane.dev/cap/plane":[{}]}`)}, login: "alice@example.com"},
		{why: "capabilities that are none", lines: []string{alice, rules(`[{"role":"viewer"}]`)}, login: "alice@example.com", code: problem.BadRequest},
		{why: "capabilities cut off", lines: []string{alice, rules(`{"` + capability + `":[{"role":"viewer"}`)}, login: "alice@example.com", code: problem.BadRequest},

		{why: "nobody", code: problem.NoIdentity},
		{why: "an empty login", lines: []string{login("")}, code: problem.NoIdentity},
		{why: "a tagged node, which may have capabilities", lines: []string{rules(`{"` + capability + `":[{"role":"viewer","orgs":["*"]}]}`)}, code: problem.NoIdentity},
		{why: "the profile of tagged nodes", lines: []string{login(taggedDevices)}, code: problem.NoIdentity},
		{why: "two @", lines: []string{login("alice@example.com@evil.com")}, code: problem.NoIdentity},
		{why: "a name alone", lines: []string{serveName + ": alice@example.com"}, code: problem.NoIdentity},
		{why: "the proxy's header", lines: []string{UserHeader + ": alice@example.com"}, code: problem.NoIdentity},

		{why: "two logins", lines: []string{alice, login("bob@example.com")}, code: problem.BadRequest},
		{why: "one login twice", lines: []string{alice, alice}, code: problem.BadRequest},
		{why: "and an empty one", lines: []string{alice, login("")}, code: problem.BadRequest},
		{why: "with _", lines: []string{alice, "Tailscale_User_Login: bob@example.com"}, code: problem.BadRequest},
		{why: "with _ alone", lines: []string{"Tailscale-User_Login: bob@example.com"}, code: problem.BadRequest},
		{why: "capabilities with _", lines: []string{alice, "Tailscale_App_Capabilities: {}"}, code: problem.BadRequest},
		{why: "to be removed", lines: []string{alice, "Connection: keep-alive, tailscale-user-login"}, code: problem.BadRequest},
		{why: "capabilities to be removed", lines: []string{alice, "Connection: Tailscale_App-Capabilities"}, code: problem.BadRequest},
		{why: "a harmless option", lines: []string{alice, "Connection: keep-alive, X-Other"}, login: "alice@example.com"},
	} {
		got := ask(t, ln.Addr(), tt.lines...)
		var have string
		if got.Rules != nil {
			b, err := json.Marshal(got.Rules)
			if err != nil {
				t.Fatal(err)
			}
			have = string(b)
		}
		switch {
		case got.Login != tt.login:
			t.Errorf("%s: got.Login = %q, want %q", tt.why, got.Login, tt.login)
		case got.Name != tt.name:
			t.Errorf("%s: got.Name = %q, want %q", tt.why, got.Name, tt.name)
		case have != tt.rules:
			t.Errorf("%s: have = %q, want %q", tt.why, have, tt.rules)
		case got.Code != tt.code:
			t.Errorf("%s: got.Code = %q, want %q", tt.why, got.Code, tt.code)
		case tt.login != "" && (got.Via != access.ViaServe || !got.Shared):
			t.Errorf(`%s: tt.login != "" && (got.Via != access.ViaServe || !got.Shared), got = %+v, have = %s`, tt.why, got, have)
		}
		for name := range got.Left {
			if IsIdentityHeader(name) {
				t.Errorf("%s: a handler sees %s", tt.why, name)
			}
		}
	}
}

// The headers of Caddy, and which of them count (PLANE-05).
func TestProxy(t *testing.T) {
	t.Parallel()
	ln := tcp(t)
	start(t, ln, proxied(t))
	user := func(s string) string { return UserHeader + ": " + s }
	alice, tailnet, proof := user("alice@example.com"), TailnetHeader+": example.com", SecretHeader+": "+secretText
	for _, tt := range []struct {
		why    string
		lines  []string
		login  access.Login
		shared bool
		code   problem.Code
	}{
		{why: "a person", lines: []string{alice, tailnet, NameHeader + ": Alice", proof}, login: "alice@example.com"},
		{why: "in small letters", lines: []string{strings.ToLower(UserHeader) + ":alice@example.com", tailnet, proof}, login: "alice@example.com"},
		{why: "not ASCII", lines: []string{user("zoë@example.com"), tailnet, proof}, login: "zoë@example.com"},
		{why: "without a tailnet", lines: []string{alice, proof}, login: "alice@example.com", shared: true},
		{why: "of no tailnet", lines: []string{alice, TailnetHeader + ":", proof}, login: "alice@example.com", shared: true},
		{why: "of another tailnet", lines: []string{alice, TailnetHeader + ": evil.com", proof}, login: "alice@example.com", shared: true},
		{why: "with an invalid encoding", lines: []string{user("=?utf-8?q?alice=40example.com?="), tailnet, proof}, login: "=?utf-8?q?alice=40example.com?="},

		{why: "nobody", lines: []string{tailnet, proof}, code: problem.NoIdentity},
		{why: "an empty user, as Caddy sends a placeholder that is not set", lines: []string{user(""), tailnet, proof}, code: problem.NoIdentity},
		{why: "a placeholder", lines: []string{user("{http.auth.user.tailscale_user}"), tailnet, proof}, login: "{http.auth.user.tailscale_user}"},
		{why: "two @", lines: []string{user("alice@example.com@evil.com"), tailnet, proof}, code: problem.NoIdentity},
		{why: "the profile of tagged nodes", lines: []string{user(taggedDevices), tailnet, proof}, code: problem.NoIdentity},
		{why: "serve's header", lines: []string{serveLogin + ": alice@example.com", tailnet, proof}, code: problem.NoIdentity},

		// ID-08: The correct address without the secret. The other headers are not read.
		{why: "no secret", lines: []string{alice, tailnet}, code: problem.NoIdentity},
		{why: "an empty secret", lines: []string{alice, tailnet, SecretHeader + ":"}, code: problem.NoIdentity},
		{why: "another secret", lines: []string{alice, tailnet, proof + "0"}, code: problem.NoIdentity},
		{why: "the redacted secret", lines: []string{alice, tailnet, SecretHeader + ": " + redacted}, code: problem.NoIdentity},
		{why: "two secrets", lines: []string{alice, tailnet, proof, SecretHeader + ": other"}, code: problem.NoIdentity},
		{why: "the secret with _", lines: []string{alice, tailnet, strings.ReplaceAll(SecretHeader, "-", "_") + ": " + secretText}, code: problem.NoIdentity},
		{why: "the secret as a token", lines: []string{alice, tailnet, bearer(secretText)}, code: problem.NoIdentity},

		{why: "two users", lines: []string{alice, user("bob@example.com"), tailnet, proof}, code: problem.BadRequest},
		{why: "one user twice", lines: []string{alice, alice, tailnet, proof}, code: problem.BadRequest},
		{why: "and an empty one", lines: []string{user(""), alice, tailnet, proof}, code: problem.BadRequest},
		{why: "two in one", lines: []string{user("alice,bob"), tailnet, proof}, code: problem.BadRequest},
		{why: "two tailnets", lines: []string{alice, tailnet, TailnetHeader + ": evil.com", proof}, code: problem.BadRequest},
		{why: "with _", lines: []string{alice, "X_Tailscale_User: bob@example.com", tailnet, proof}, code: problem.BadRequest},
		{why: "with one _", lines: []string{alice, "x-tailscale_user: bob@example.com", tailnet, proof}, code: problem.BadRequest},
		{why: "with _ alone", lines: []string{"X_Tailscale_User: bob@example.com", tailnet, proof}, code: problem.BadRequest},
		{why: "a tailnet with _", lines: []string{alice, "X_Tailscale_Tailnet: example.com", proof}, code: problem.BadRequest},
		{why: "to be removed", lines: []string{alice, tailnet, proof, "Connection: X-Tailscale-User"}, code: problem.BadRequest},
		{why: "to be removed, by the second", lines: []string{alice, tailnet, proof, "Connection: keep-alive", "Connection: a,\tx_tailscale-user ,b"}, code: problem.BadRequest},
		{why: "its tailnet to be removed", lines: []string{alice, tailnet, proof, "Connection: X-Tailscale-Tailnet"}, code: problem.BadRequest},
	} {
		got := ask(t, ln.Addr(), tt.lines...)
		switch {
		case got.Login != tt.login:
			t.Errorf("%s: got.Login = %q, want %q", tt.why, got.Login, tt.login)
		case got.Shared != tt.shared:
			t.Errorf("%s: got.Shared = %v, want %v", tt.why, got.Shared, tt.shared)
		case got.Code != tt.code:
			t.Errorf("%s: got.Code = %q, want %q", tt.why, got.Code, tt.code)
		case tt.login != "" && got.Via != access.ViaProxy:
			t.Errorf(`%s: tt.login != "" && got.Via != access.ViaProxy, got = %+v`, tt.why, got)
		}
		for name := range got.Left {
			if IsIdentityHeader(name) {
				t.Errorf("%s: a handler sees %s", tt.why, name)
			}
		}
	}
}

// ID-08: The correct headers and secret, from another address.
func TestID08_ProxyAtAnotherAddress(t *testing.T) {
	t.Parallel()
	right := []string{UserHeader + ": alice@example.com", TailnetHeader + ": example.com", SecretHeader + ": " + secretText, "X-Forwarded-For: 10.9.0.1", "Forwarded: for=10.9.0.1"}
	m := proxied(t)
	m.Trusted = []netip.Prefix{netip.MustParsePrefix("10.9.0.0/24")}
	ln := tcp(t)
	start(t, ln, m)
	if got := ask(t, ln.Addr(), right...); got.Code != problem.NoIdentity || got.Login != "" {
		t.Errorf("from 127.0.0.1: %+v", got)
	}
	m.Trusted = append(m.Trusted, netip.MustParsePrefix("127.0.0.1/32"))
	other := tcp(t)
	start(t, other, m)
	if got := ask(t, other.Addr(), right...); got.Login != "alice@example.com" {
		t.Errorf("the control: %+v", got)
	}
	// Over a socket, whose mode excludes other users, a configured secret is still required.
	s := socket(t)
	start(t, s, m)
	if got := ask(t, s.Addr(), right[:2]...); got.Code != problem.NoIdentity {
		t.Errorf("a socket, no secret: %+v", got)
	}
	if got := ask(t, s.Addr(), right...); got.Login != "alice@example.com" {
		t.Errorf("a socket: %+v", got)
	}
}

// A request that did not come over a connection of the listener has no caller.
func TestNoConnection(t *testing.T) {
	t.Parallel()
	unix := socket(t).Addr()
	for name, m := range map[string]mode{"serve": Serve{Capability: capability}, "proxy": Proxy{Tailnet: "example.com"},
		"proxy with addresses": Proxy{Tailnet: "example.com", Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}}} {
		identify, err := m.Identifier(unix)
		if err != nil {
			t.Fatal(err)
		}
		ln := tcp(t) // although the mode was created for the socket
		serve(t, ln, identify)
		got := ask(t, ln.Addr(), UserHeader+": alice@example.com", serveLogin+": alice@example.com", TailnetHeader+": example.com")
		if got.Code != problem.NoIdentity || got.Login != "" {
			t.Errorf("%s: %+v", name, got)
		}
	}
}

// ID-08, mTLS: The certificate must be present, verified, and have the configured name.
func TestProxyCertificate(t *testing.T) {
	t.Parallel()
	ours, remote := newAuthority(t), newAuthority(t)
	m := proxied(t)
	m.Secret, m.Certificates = Secret{}, []string{"caddy.example.com"}
	for _, clientAuth := range []tls.ClientAuthType{tls.RequireAndVerifyClientCert, tls.VerifyClientCertIfGiven, tls.RequestClientCert} {
		inner := tcp(t)
		ln := wrapped{tls.NewListener(inner, &tls.Config{Certificates: []tls.Certificate{ours.issue(t, "plane")}, ClientCAs: ours.pool, ClientAuth: clientAuth})}
		start(t, ln, m)
		for _, tt := range []struct {
			why  string
			cert []tls.Certificate
			ok   bool
		}{
			// RequestClientCert does not verify certificates.
			{"the proxy's", []tls.Certificate{ours.issue(t, "other.example.com", "caddy.example.com")}, clientAuth != tls.RequestClientCert},
			{"somebody else's", []tls.Certificate{ours.issue(t, "prometheus.example.com")}, false},
			{"of a name that ends alike", []tls.Certificate{ours.issue(t, "evil-caddy.example.com", "*.example.com")}, false},
			{"of another authority", []tls.Certificate{remote.issue(t, "caddy.example.com")}, false},
			{"none", nil, false},
		} {
			got, err := askTLS(t, ln.Addr(), &tls.Config{RootCAs: ours.pool, ServerName: "plane", Certificates: tt.cert})
			if ok := err == nil && got.Login == "alice@example.com"; ok != tt.ok || err == nil && !ok && got.Code != problem.NoIdentity {
				t.Errorf("%v, %s: %+v, %v", clientAuth, tt.why, got, err)
			}
		}
	}
	plain := tcp(t)
	start(t, plain, m)
	if got := ask(t, plain.Addr(), UserHeader+": alice@example.com", TailnetHeader+": example.com"); got.Code != problem.NoIdentity {
		t.Errorf("without TLS: %+v", got)
	}
}

// askTLS sends a request as alice. A rejected handshake is an error.
func askTLS(t *testing.T, at net.Addr, cfg *tls.Config) (s seen, err error) {
	t.Helper()
	c, err := tls.Dial("tcp", at.String(), cfg)
	if err != nil {
		return s, err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(long))
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: plane\r\nConnection: close\r\n%s: alice@example.com\r\n%s: example.com\r\n\r\n", UserHeader, TailnetHeader); err != nil {
		return s, err
	}
	return readSeen(c)
}

// wrapped is a listener whose connections hide TLS from net/http, like those of the real server.
type wrapped struct{ net.Listener }

func (w wrapped) Accept() (net.Conn, error) {
	c, err := w.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return wrappedConn{c}, nil
}

type wrappedConn struct{ net.Conn }

func (c wrappedConn) NetConn() net.Conn { return c.Conn }

// A testAuthority signs certificates for tests.
type testAuthority struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pool *x509.CertPool
}

func newAuthority(t *testing.T) testAuthority {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "authority"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
	if err != nil {
		t.Fatal(err)
	}
	cert, err := x509.ParseCertificate(der)
	if err != nil {
		t.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AddCert(cert)
	return testAuthority{cert, key, pool}
}

func (a testAuthority) issue(t *testing.T, names ...string) tls.Certificate {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	form := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: names, Subject: pkix.Name{CommonName: "caddy.example.com"}, NotAfter: time.Now().Add(time.Hour)}
	der, err := x509.CreateCertificate(rand.Reader, form, a.cert, key.Public(), a.key)
	if err != nil {
		t.Fatal(err)
	}
	return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}
}

// A socket admits no other user, and replaces only a socket that no process serves.
func TestListenUnix(t *testing.T) {
	t.Parallel()
	dir := t.TempDir()
	path := filepath.Join(dir, "s")
	ln, err := ListenUnix(t.Context(), path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Lstat(path)
	if err != nil || info.Mode().Perm() != socketMode {
		t.Fatalf("%v, %v", info.Mode(), err)
	}
	if second, err := ListenUnix(t.Context(), path); err == nil {
		second.Close()
		t.Error("a socket that is served was taken over")
	}
	ln.(*net.UnixListener).SetUnlinkOnClose(false) // as if the process was killed
	ln.Close()
	ln, err = ListenUnix(t.Context(), path)
	if err != nil {
		t.Fatalf("in the place of a dead one: %v", err)
	}
	defer ln.Close()

	file := filepath.Join(dir, "file")
	if err := os.WriteFile(file, []byte("mine"), 0o600); err != nil {
		t.Fatal(err)
	}
	if other, err := ListenUnix(t.Context(), file); err == nil {
		other.Close()
		t.Error("a file was taken for a socket")
	}
	if b, err := os.ReadFile(file); err != nil || string(b) != "mine" {
		t.Errorf("the file: %q, %v", b, err)
	}

	// The modes reject a socket that other users may connect to, and a missing socket.
	for name, m := range map[string]mode{"serve": Serve{Capability: capability}, "proxy": Proxy{Tailnet: "example.com"}} {
		for _, perm := range []os.FileMode{0o660, 0o606, 0o755} {
			if err := os.Chmod(path, perm); err != nil {
				t.Fatal(err)
			}
			if _, err := m.Identifier(ln.Addr()); err == nil {
				t.Errorf("%s: a socket of mode %v is good enough", name, perm)
			}
		}
		if _, err := m.Identifier(&net.UnixAddr{Net: "unix", Name: filepath.Join(dir, "none")}); err == nil {
			t.Errorf("%s: a missing socket is accepted", name)
		}
		if _, err := m.Identifier(&net.UnixAddr{Net: "unix", Name: file}); err == nil {
			t.Errorf("%s: a file is good enough", name)
		}
	}
}

func TestSecret(t *testing.T) {
	t.Parallel()
	for s, ok := range map[string]bool{
		secretText: true, " " + secretText + "\n": true, secretText[:31]: false, "": false,
		strings.Repeat("a ", 20): false, strings.Repeat("é", 20): false, strings.Repeat("a", 20) + "\n" + strings.Repeat("b", 20): false,
	} {
		k, err := ParseSecret(s)
		if (err == nil) != ok || k.IsZero() == ok {
			t.Errorf("%q: %v", s, err)
		}
		if ok && (!k.matches(secretText) || k.matches(secretText[1:]) || k.matches("")) {
			t.Errorf("%q is not itself alone", s)
		}
		if err != nil && len(s) > 8 && strings.Contains(err.Error(), s[:8]) {
			t.Errorf("the error tells the secret: %v", err)
		}
	}
	if (Secret{}).matches("") {
		t.Error("no secret is the empty one")
	}
	m := proxied(t)
	j, err := json.Marshal(m)
	if err != nil {
		t.Fatal(err)
	}
	for _, printed := range []string{fmt.Sprint(m), fmt.Sprintf("%+v %#v %x %q %d", m, m.Secret, m.Secret, m.Secret, m.Secret), string(j)} {
		switch {
		case strings.Contains(printed, secretText):
			t.Errorf("printed: printed = %q contains %q", printed, secretText)
		case strings.Contains(printed, "30313233"):
			t.Errorf("printed: printed = %q contains %q", printed, "30313233")
		case !strings.Contains(printed, redacted):
			t.Errorf("printed: printed = %q does not contain %q", printed, redacted)
		}
	}
}
