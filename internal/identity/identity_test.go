package identity

import (
	"bufio"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// long limits every wait on a busy machine.
const long = 60 * time.Second

// seen is the result of a request on the server.
type seen struct {
	Login  access.Login
	Name   string
	Via    access.Via
	Shared bool
	Rules  []json.RawMessage
	Code   problem.Code
	Left   http.Header // the headers that a handler sees
}

// serve serves identify on ln; every response is a seen.
func serve(t testing.TB, ln net.Listener, identify Identifier) {
	t.Helper()
	srv := &http.Server{ReadHeaderTimeout: long, ConnContext: ConnContext, Protocols: new(http.Protocols), Handler: http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := identify(r)
		io.Copy(io.Discard, r.Body) // trailers are available after the body
		for name, values := range r.Trailer {
			r.Header[name] = append(r.Header[name], values...)
		}
		json.NewEncoder(w).Encode(seen{c.Login, c.DisplayName, c.Via, c.Shared, c.Rules, problem.CodeOf(err), r.Header})
	})}
	srv.Protocols.SetHTTP1(true)
	srv.Protocols.SetUnencryptedHTTP2(true)
	done := make(chan struct{})
	go func() { defer close(done); srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close(); <-done })
}

// A mode is any of the mode structs.
type mode interface {
	Check(net.Addr) error
	Identifier(net.Addr) (Identifier, error)
}

// start serves m on ln.
func start(t testing.TB, ln net.Listener, m mode) {
	t.Helper()
	identify, err := m.Identifier(ln.Addr())
	if err != nil {
		t.Fatal(err)
	}
	serve(t, ln, identify)
}

func tcp(t testing.TB) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

func socket(t testing.TB) net.Listener {
	t.Helper()
	ln, err := ListenUnix(t.Context(), filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	return ln
}

// ask sends one request with these exact header lines.
func ask(t testing.TB, at net.Addr, lines ...string) seen {
	t.Helper()
	c, err := net.Dial(at.Network(), at.String())
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	return askOn(t, c, lines...)
}

func askOn(t testing.TB, c net.Conn, lines ...string) seen {
	t.Helper()
	c.SetDeadline(time.Now().Add(long))
	text := "GET / HTTP/1.1\r\nHost: plane\r\n"
	for _, l := range lines {
		text += l + "\r\n"
	}
	if _, err := io.WriteString(c, text+"\r\n"); err != nil {
		t.Fatal(err)
	}
	s, err := readSeen(c)
	if err != nil {
		t.Fatalf("%q: %v", lines, err)
	}
	return s
}

// readSeen reads one response.
func readSeen(c net.Conn) (s seen, err error) {
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return s, err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return s, errors.New(res.Status)
	}
	return s, json.NewDecoder(res.Body).Decode(&s)
}

// forged returns header lines in which a client claims an identity, in every form that a mode or
// another proxy uses.
func forged(login string) []string {
	return []string{
		UserHeader + ": " + login, NameHeader + ": " + login, TailnetHeader + ": example.com",
		"X-Tailscale-Login: " + login, serveLogin + ": " + login, serveName + ": " + login, "Tailscale-User-Profile-Pic: https://example.com/p",
		serveCapabilities + `: {"tailplane.dev/cap/plane":[{"role":"platform-admin"}]}`,
		"X-Webauth-User: " + login, "X-Webauth-Role: Admin", "Impersonate-User: " + login, "Impersonate-Group: system:masters", "Impersonate-Extra-a: b",
		"X-Remote-User: " + login, "X-Remote-Group: system:masters", "X-Remote-Extra-A: b", "Remote-User: " + login, "X-Auth-Request-Email: " + login,
		"X-Forwarded-For: 100.64.0.1", "X-Forwarded-User: " + login, "X-Forwarded-Email: " + login, "X-Forwarded-Host: plane", "X-Forwarded-Proto: https",
		"Forwarded: for=100.64.0.1", "X-Real-Ip: 100.64.0.1", "X-Client-Ip: 100.64.0.1", "True-Client-Ip: 100.64.0.1",
	}
}

// respell changes the names of header lines.
func respell(lines []string, as func(string) string) (out []string) {
	for _, l := range lines {
		name, value, _ := strings.Cut(l, ":")
		out = append(out, as(name)+":"+value)
	}
	return out
}

// spellings returns the spellings of ID-07 for the same headers.
func spellings(lines []string) map[string][]string {
	return map[string][]string{
		"as they are":   lines,
		"small letters": respell(lines, strings.ToLower),
		"with _":        respell(lines, func(s string) string { return strings.ReplaceAll(s, "-", "_") }),
		"one _":         respell(lines, func(s string) string { return strings.Replace(s, "-", "_", 1) }),
		"with .":        respell(lines, func(s string) string { return strings.ReplaceAll(s, "-", ".") }),
		"twice":         append(slices.Clone(lines), lines...),
		"empty second":  append(slices.Clone(lines), respell(lines, func(s string) string { return s + ": " })...),
	}
}

const capability = "tailplane.dev/cap/plane"

// secret returns the proxy secret of the tests.
const secretText = "0123456789abcdef0123456789abcdef"

func secret(t testing.TB) Secret {
	t.Helper()
	s, err := ParseSecret(secretText + "\n")
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// asBob is a tailnet on which every caller is bob.
func asBob(*http.Request) (access.Caller, error) {
	return access.Caller{Login: "bob@example.com", Device: access.Device{ID: "n1", Name: "bob-laptop.example.ts.net"}, Via: access.ViaTailnet}, nil
}

func noEnv(string) (string, bool) { return "", false }

// proxied returns the mode behind a proxy on the local machine.
func proxied(t testing.TB) Proxy {
	return Proxy{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Secret: secret(t), Tailnet: "example.com"}
}

// ID-07: In no mode does a header from a client identify a caller, and no such header reaches a
// handler, in any spelling. The control is the same request from a trusted peer.
func TestID07_ForgedHeadersAreIgnored(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t)
	for _, m := range []struct {
		name  string
		mode  mode
		login access.Login // the login of a request if its headers are ignored
		code  problem.Code
	}{
		{"whois", Whois{WhoIs: asBob}, "bob@example.com", ""},
		{"whois with tokens", Whois{WhoIs: asBob, Bearer: new(issuer.mode())}, "bob@example.com", ""},
		{"serve for another user", Serve{Capability: capability, Users: []uint32{4_000_000_000}}, "", problem.NoIdentity},
		{"proxy", proxied(t), "", problem.NoIdentity},
		{"oidc", issuer.mode(), "", problem.NoIdentity},
		{"dev", Dev{Login: "bob@example.com", LookupEnv: noEnv}, "bob@example.com", ""},
	} {
		t.Run(m.name, func(t *testing.T) {
			t.Parallel()
			ln := tcp(t)
			if _, serving := m.mode.(Serve); serving && checkUserLookup() != nil {
				t.Skip("SKIP serve on a port: this system does not tell users of connections")
			}
			start(t, ln, m.mode)
			for how, lines := range spellings(forged("alice@example.com")) {
				got := ask(t, ln.Addr(), append(lines, "X-Kept: yes", "Cookie: a=b")...)
				if got.Login != m.login || got.Code != m.code {
					t.Errorf("%s: %+v", how, got)
				}
				checkLeft(t, how, got.Left)
			}
			checkLeft(t, "HTTP/2", askHTTP2(t, ln.Addr(), m.login).Left)
		})
	}
}

// checkLeft compares the headers that a handler sees with those that were sent.
func checkLeft(t testing.TB, how string, left http.Header) {
	t.Helper()
	for name, values := range left {
		switch s := strings.ToLower(fmt.Sprint(name, values)); {
		case strings.Contains(s, "alice"):
			t.Errorf("%s: a handler: s = %q contains %q; values = %q", how, s, "alice", values)
		case strings.Contains(s, "100.64"):
			t.Errorf("%s: a handler: s = %q contains %q; values = %q", how, s, "100.64", values)
		case strings.Contains(s, "masters"):
			t.Errorf("%s: a handler: s = %q contains %q; values = %q", how, s, "masters", values)
		case strings.Contains(s, "admin"):
			t.Errorf("%s: a handler: s = %q contains %q; values = %q", how, s, "admin", values)
		case IsIdentityHeader(name):
			t.Errorf("%s: a handler: IsIdentityHeader(name) is true, name = %s, values = %q", how, name, values)
		}
	}
	if left.Get("X-Kept") != "yes" {
		t.Errorf("%s: a header that names no person is gone: %v", how, left)
	}
}

// askHTTP2 sends the forged headers, and a trailer, over HTTP/2.
func askHTTP2(t testing.TB, at net.Addr, login access.Login) (s seen) {
	t.Helper()
	protocols := new(http.Protocols)
	protocols.SetUnencryptedHTTP2(true)
	tr := &http.Transport{Protocols: protocols}
	defer tr.CloseIdleConnections()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, "http://"+at.String(), io.MultiReader(strings.NewReader("body")))
	if err != nil {
		t.Fatal(err)
	}
	for _, l := range append(forged("alice@example.com"), "X-Kept: yes") {
		name, value, _ := strings.Cut(l, ":")
		req.Header.Add(name, strings.TrimSpace(value))
	}
	req.Trailer = http.Header{UserHeader: {"alice@example.com"}, "X_Webauth_User": {"alice@example.com"}}
	res, err := (&http.Client{Transport: tr, Timeout: long}).Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	switch err := json.NewDecoder(res.Body).Decode(&s); {
	case err != nil:
		t.Errorf("over HTTP/2: %v", err)
	case res.ProtoMajor != 2:
		t.Errorf("over HTTP/2: res.ProtoMajor = %v, want 2", res.ProtoMajor)
	case s.Login != login:
		t.Errorf("over HTTP/2: s.Login = %q, want %q", s.Login, login)
	}
	return s
}

// ID-01 in the modes of this package: A request with a Funnel header is rejected without further
// checks, in any spelling.
func TestFunnelIsDetectedInEveryMode(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t)
	for name, m := range map[string]mode{
		"whois": Whois{WhoIs: func(*http.Request) (access.Caller, error) { return access.Caller{}, errors.New("WhoIs was called") }},
		"serve": Serve{Capability: capability}, "proxy": proxied(t), "oidc": issuer.mode(),
	} {
		ln := socket(t)
		start(t, ln, m)
		for _, line := range []string{funnelHeader + ": ?1", strings.ToLower(funnelHeader) + ":", "Tailscale_Funnel_Request: 0"} {
			got := ask(t, ln.Addr(), append(forged("alice@example.com"), line)...)
			switch {
			case got.Via != access.ViaFunnel:
				t.Errorf("%s: got.Via = %q, want %q; line = %q", name, got.Via, access.ViaFunnel, line)
			case got.Login != "":
				t.Errorf("%s: got.Login = %q, want none; line = %q", name, got.Login, line)
			case got.Code != "":
				t.Errorf("%s: got.Code = %q, want none; line = %q", name, got.Code, line)
			}
		}
	}
}

func TestWhoisKeepsTheTailnetsAnswer(t *testing.T) {
	t.Parallel()
	away := problem.New(problem.IdentityUnavailable, "away")
	ln := tcp(t)
	start(t, ln, Whois{WhoIs: func(*http.Request) (access.Caller, error) { return access.Caller{}, away }})
	if got := ask(t, ln.Addr(), forged("alice@example.com")...); got.Code != problem.IdentityUnavailable || got.Login != "" {
		t.Errorf("without the tailnet: %+v", got)
	}
	// If no verifier is configured, a token is neither read nor removed, because it may be for the
	// backend.
	other := tcp(t)
	start(t, other, Whois{WhoIs: asBob})
	if got := ask(t, other.Addr(), "Authorization: Bearer of.an.upstream"); got.Login != "bob@example.com" || got.Left.Get("Authorization") != "Bearer of.an.upstream" {
		t.Errorf("a token for others: %+v", got)
	}
}

// Invalid settings are detected before the server listens (ID-08).
func TestCheck(t *testing.T) {
	t.Parallel()
	issuer := newIssuer(t)
	inside, outside := tcp(t).Addr(), &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 443}
	all := &net.TCPAddr{IP: net.IPv4zero, Port: 443}
	unix := &net.UnixAddr{Name: "/run/s", Net: "unix"}
	good := proxied(t)
	change := func(f func(*Proxy)) Proxy { p := good; f(&p); return p }
	oidc := func(f func(*OIDC)) OIDC { m := issuer.mode(); f(&m); return m }
	prefixes := func(s ...string) (out []netip.Prefix) {
		for _, p := range s {
			out = append(out, netip.MustParsePrefix(p))
		}
		return out
	}
	for _, tt := range []struct {
		why  string
		mode mode
		at   net.Addr
		ok   bool
	}{
		{"whois", Whois{WhoIs: asBob}, all, true},
		{"whois without a tailnet", Whois{}, all, false},
		{"whois with a bad issuer", Whois{WhoIs: asBob, Bearer: &OIDC{}}, all, false},

		{"serve on a socket", Serve{Capability: capability}, unix, true},
		{"serve on loopback, of whom", Serve{Capability: capability}, inside, false},
		{"serve on loopback", Serve{Capability: capability, Users: []uint32{0}}, inside, checkUserLookup() == nil},
		{"serve for the network", Serve{Capability: capability, Users: []uint32{0}}, outside, false},
		{"serve for all", Serve{Capability: capability, Users: []uint32{0}}, all, false},
		{"serve nowhere", Serve{Capability: capability}, nil, false},
		{"serve without a capability", Serve{}, unix, false},

		{"proxy", good, outside, true},
		{"proxy on a socket needs nothing else", Proxy{Tailnet: "example.com"}, unix, true},
		{"proxy without a tailnet", change(func(p *Proxy) { p.Tailnet = "" }), unix, false},
		{"proxy of no address", change(func(p *Proxy) { p.Trusted = nil }), outside, false},
		{"proxy without a proof", change(func(p *Proxy) { p.Secret = Secret{} }), outside, false},
		{"proxy without a proof on loopback", change(func(p *Proxy) { p.Secret = Secret{} }), inside, false},
		{"proxy with a certificate", change(func(p *Proxy) { p.Secret, p.Certificates = Secret{}, []string{"caddy"} }), outside, true},
		{"proxy with a nameless certificate", change(func(p *Proxy) { p.Certificates = []string{""} }), outside, false},
		{"proxy at any address", change(func(p *Proxy) { p.Trusted = prefixes("0.0.0.0/0") }), outside, false},
		{"proxy at any address of IPv6", change(func(p *Proxy) { p.Trusted = prefixes("10.0.0.0/24", "::/0") }), outside, false},
		{"proxy at no range", change(func(p *Proxy) { p.Trusted = prefixes("10.0.0.7/24") }), outside, false},
		{"proxy at nothing", change(func(p *Proxy) { p.Trusted = []netip.Prefix{{}} }), outside, false},
		{"proxy nowhere", good, nil, false},

		{"oidc", issuer.mode(), all, true},
		{"oidc over plain HTTP", oidc(func(m *OIDC) { m.Issuer = "http://idp.example.ts.net" }), all, false},
		{"oidc over TLS", oidc(func(m *OIDC) { m.Issuer = "https://idp.example.ts.net" }), all, true},
		{"oidc without an issuer", oidc(func(m *OIDC) { m.Issuer = "" }), all, false},
		{"oidc with a query", oidc(func(m *OIDC) { m.Issuer += "?a=b" }), all, false},
		{"oidc with a password", oidc(func(m *OIDC) { m.Issuer = "https://a:b@idp" }), all, false},
		{"oidc without an audience", oidc(func(m *OIDC) { m.Audience = "" }), all, false},
		{"oidc of any tailnet", oidc(func(m *OIDC) { m.Tailnet = "" }), all, false},
		{"oidc without a client", oidc(func(m *OIDC) { m.Client = nil }), all, false},
		{"oidc without a clock", oidc(func(m *OIDC) { m.Now = nil }), all, false},

		{"dev", Dev{"bob@example.com", noEnv}, inside, true},
		{"dev for all", Dev{"bob@example.com", noEnv}, all, false},
		{"dev for the network", Dev{"bob@example.com", noEnv}, outside, false},
		{"dev nowhere", Dev{"bob@example.com", noEnv}, nil, false},
		{"dev in a cluster", Dev{"bob@example.com", func(string) (string, bool) { return "10.96.0.1", true }}, inside, false},
		{"dev in a cluster of an empty name", Dev{"bob@example.com", func(string) (string, bool) { return "", true }}, inside, false},
		{"dev without a login", Dev{"", noEnv}, inside, false},
		{"dev of all tagged nodes", Dev{taggedDevices, noEnv}, inside, false},
		{"dev without an environment", Dev{Login: "bob@example.com"}, inside, false},
	} {
		if err := tt.mode.Check(tt.at); (err == nil) != tt.ok {
			t.Errorf("%s: %v", tt.why, err)
		} else if _, ierr := tt.mode.Identifier(tt.at); err != nil && ierr == nil {
			t.Errorf("%s: it is refused, and serves", tt.why)
		}
	}
}

// Dev admits only the local machine, even if its listener is reachable from others.
func TestDevOfAnotherMachine(t *testing.T) {
	t.Parallel()
	ln := tcp(t)
	identify, err := Dev{"bob@example.com", noEnv}.Identifier(ln.Addr())
	if err != nil {
		t.Fatal(err)
	}
	serve(t, elsewhere{ln}, identify)
	if got := ask(t, ln.Addr()); got.Code != problem.NoIdentity || got.Login != "" {
		t.Errorf("from 10.0.0.1: %+v", got)
	}
}

// elsewhere is a listener whose connections appear to come from another machine.
type elsewhere struct{ net.Listener }

func (e elsewhere) Accept() (net.Conn, error) {
	c, err := e.Listener.Accept()
	if err != nil {
		return nil, err
	}
	return farConn{c}, nil
}

type farConn struct{ net.Conn }

func (farConn) RemoteAddr() net.Addr { return &net.TCPAddr{IP: net.IPv4(10, 0, 0, 1), Port: 4242} }
