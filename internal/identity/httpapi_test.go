package identity_test

import (
	"bufio"
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"math/big"
	"net"
	"net/http"
	"net/netip"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/problem"
)

const (
	long   = 60 * time.Second
	secret = "0123456789abcdef0123456789abcdef"
)

// seenCaller is the response of the test operation.
type seenCaller struct {
	Login  string   `json:"login"`
	Via    string   `json:"via"`
	Header []string `json:"header"` // the headers that the operation received
}

// An env is a test environment: the operation behind a real server.
type env struct {
	ln net.Listener

	mu      sync.Mutex
	entries []audit.Entry
}

func (o *env) takeEntries() []audit.Entry {
	o.mu.Lock()
	defer o.mu.Unlock()
	entries := o.entries
	o.entries = nil
	return entries
}

type mode interface {
	Identifier(net.Addr) (identity.Identifier, error)
}

// open serves the operation on ln with mode m. alice and bob have permission.
func open(t *testing.T, ln net.Listener, m mode) *env {
	t.Helper()
	identify, err := m.Identifier(ln.Addr())
	if err != nil {
		t.Fatal(err)
	}
	var policy access.PlanePolicy
	for _, login := range []access.Login{"alice@example.com", "bob@example.com"} {
		policy.Settings = append(policy.Settings, access.Holder{Login: login, Role: access.PlaneRole{Name: access.Viewer, Orgs: []string{access.AllOrgs}}})
	}
	o := &env{ln: ln}
	d := &httpapi.Server{Names: func() []string { return []string{"plane"} }, Identify: identify, Now: time.Now, Log: slog.New(slog.DiscardHandler),
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, policy, now)
		},
		Record: func(e audit.Entry) error {
			o.mu.Lock()
			defer o.mu.Unlock()
			o.entries = append(o.entries, e)
			return nil
		}}
	op := httpapi.Op[struct{}, seenCaller]{Pattern: "GET /look", Verb: access.FleetRead}
	ctx, stop := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- d.Run(ctx, ln, identity.ConnContext, op.ServeHandler(func(w http.ResponseWriter, r *http.Request, p access.Permit) {
			it := seenCaller{Login: string(p.Caller().Login), Via: string(p.Caller().Via)}
			for name := range r.Header {
				it.Header = append(it.Header, name)
			}
			json.NewEncoder(w).Encode(it)
		}))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
	return o
}

func (o *env) dial(t *testing.T) net.Conn {
	t.Helper()
	c, err := net.Dial(o.ln.Addr().Network(), o.ln.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// ask sends a request on c with these exact header lines.
func ask(t *testing.T, c net.Conn, lines ...string) (status int, it seenCaller, code problem.Code, err error) {
	t.Helper()
	c.SetDeadline(time.Now().Add(long))
	if _, err := io.WriteString(c, "GET /look HTTP/1.1\r\nHost: plane\r\n"+strings.Join(append(lines, "", ""), "\r\n")); err != nil {
		return 0, it, "", err
	}
	res, err := http.ReadResponse(bufio.NewReader(c), nil)
	if err != nil {
		return 0, it, "", err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		return 0, it, "", err
	}
	var refused problem.Error
	if res.StatusCode == http.StatusOK {
		return res.StatusCode, it, "", json.Unmarshal(b, &it)
	}
	_ = json.Unmarshal(b, &refused) // refusals of net/http itself are text
	return res.StatusCode, it, refused.Code, nil
}

func socket(t *testing.T) net.Listener {
	t.Helper()
	ln, err := identity.ListenUnix(t.Context(), filepath.Join(t.TempDir(), "s"))
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

func loopback(t *testing.T) net.Listener {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// PLANE-05, ID-07, ID-08: The modes with a real server, from the request bytes to the audit log.
// Each request has one entry with the caller and the reason of a refusal.
func TestPLANE05_ModesBehindTheServer(t *testing.T) {
	t.Parallel()
	key, err := identity.ParseSecret(secret)
	if err != nil {
		t.Fatal(err)
	}
	proxy := identity.Proxy{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Secret: key, Tailnet: "example.com"}
	bob := func(*http.Request) (access.Caller, error) {
		return access.Caller{Login: "bob@example.com", Device: access.Device{ID: "n1", Name: "bob-laptop"}, Via: access.ViaTailnet}, nil
	}
	proof := []string{identity.TailnetHeader + ": example.com", identity.SecretHeader + ": " + secret}
	user := func(names ...string) (lines []string) {
		for _, n := range names {
			lines = append(lines, identity.UserHeader+": "+n)
		}
		return append(lines, proof...)
	}
	for _, tt := range []struct {
		why    string
		ln     func(*testing.T) net.Listener
		mode   mode
		lines  []string
		status int
		code   problem.Code
		login  string // in the response, or in the entry of a refusal
		silent bool   // net/http rejects the request before the handler runs
	}{
		{"proxy: alice", loopback, proxy, user("alice@example.com"), 200, "", "alice@example.com", false},
		{"proxy: alice over a socket", socket, proxy, user("alice@example.com"), 200, "", "alice@example.com", false},
		{"proxy: a caller without a role", loopback, proxy, user("mallory@example.com"), 403, problem.NotAuthorized, "mallory@example.com", false},
		{"proxy: a caller of another tailnet", loopback, proxy, []string{identity.UserHeader + ": alice@example.com", identity.TailnetHeader + ": evil.com", proof[1]}, 403, problem.NotAuthorized, "alice@example.com", false},
		{"proxy: no secret", loopback, proxy, user("alice@example.com")[:2], 401, problem.NoIdentity, "", false},
		{"proxy: two users", loopback, proxy, user("alice@example.com", "bob@example.com"), 400, problem.BadRequest, "", false},
		{"proxy: an underscore", loopback, proxy, append(user("alice@example.com"), "X_Tailscale_User: bob@example.com"), 400, problem.BadRequest, "", false},
		{"proxy: to be removed", loopback, proxy, append(user("alice@example.com"), "Connection: X-Tailscale-User"), 400, problem.BadRequest, "", false},
		{"proxy: a folded user", loopback, proxy, append(proof, identity.UserHeader+": bob@example.com,", " alice@example.com"), 400, "", "", true},
		{"proxy: a space before the colon", loopback, proxy, append(proof, identity.UserHeader+" : alice@example.com"), 400, "", "", true},
		{"proxy: Funnel", loopback, proxy, append(user("alice@example.com"), "Tailscale-Funnel-Request: ?1"), 403, problem.FunnelRefused, "", false},
		{"proxy: serve's headers", loopback, proxy, append(proof, "Tailscale-User-Login: alice@example.com"), 401, problem.NoIdentity, "", false},
		{"serve: the proxy's headers", socket, identity.Serve{Capability: "tailplane.dev/cap/plane"}, user("alice@example.com"), 401, problem.NoIdentity, "", false},
		{"serve: alice, without a tailnet", socket, identity.Serve{Capability: "tailplane.dev/cap/plane"}, []string{"Tailscale-User-Login: alice@example.com"}, 403, problem.NotAuthorized, "alice@example.com", false},
		{"serve: a stranger with a grant", socket, identity.Serve{Capability: "tailplane.dev/cap/plane"},
			[]string{"Tailscale-User-Login: eve@example.com", `Tailscale-App-Capabilities: {"tailplane.dev/cap/plane":[{"role":"viewer","orgs":["*"]}]}`}, 200, "", "eve@example.com", false},
		{"whois: the headers of all modes", loopback, identity.Whois{WhoIs: bob}, append(user("alice@example.com"), "Tailscale-User-Login: alice@example.com", "Authorization: Bearer x.y.z"), 200, "", "bob@example.com", false},
		{"dev: the headers of all modes", loopback, identity.Dev{Login: "bob@example.com", LookupEnv: func(string) (string, bool) { return "", false }}, user("alice@example.com"), 200, "", "bob@example.com", false},
	} {
		t.Run(tt.why, func(t *testing.T) {
			t.Parallel()
			o := open(t, tt.ln(t), tt.mode)
			status, it, code, err := ask(t, o.dial(t), tt.lines...)
			switch {
			case err != nil:
				t.Error(err)
			case status != tt.status:
				t.Errorf("status = %v, want %v", status, tt.status)
			case code != tt.code:
				t.Errorf("code = %q, want %q", code, tt.code)
			case status == http.StatusOK && it.Login != tt.login:
				t.Errorf("status == http.StatusOK && it.Login != tt.login; status = %d, code = %q, %+v, %v", status, code, it, err)
			}
			for _, name := range it.Header {
				if identity.IsIdentityHeader(name) {
					t.Errorf("the operation sees %s", name)
				}
			}
			var entries []audit.Entry
			for end := time.Now().Add(long); len(entries) == 0 && !tt.silent; time.Sleep(time.Millisecond) { // written after the response
				if entries = o.takeEntries(); time.Now().After(end) {
					t.Fatal("the visit was not recorded")
				}
			}
			switch {
			case tt.silent:
				if e := o.takeEntries(); len(e) > 0 {
					t.Errorf("recorded %+v", e)
				}
			case len(entries) != 1 || entries[0].Code != tt.code || entries[0].Actor.Login != tt.login || status == http.StatusOK && entries[0].Actor.Via != access.Via(it.Via):
				t.Errorf("recorded %+v", entries)
			}
		})
	}
}

// ID-08: The client certificate of the proxy is verified even though the server wraps its
// connections, which hides TLS from net/http.
func TestCertificateBehindServer(t *testing.T) {
	t.Parallel()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	issue := func(names ...string) (tls.Certificate, *x509.Certificate) { // each is a separate authority
		form := &x509.Certificate{SerialNumber: big.NewInt(1), DNSNames: names, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true}
		der, err := x509.CreateCertificate(rand.Reader, form, form, key.Public(), key)
		if err != nil {
			t.Fatal(err)
		}
		cert, err := x509.ParseCertificate(der)
		if err != nil {
			t.Fatal(err)
		}
		return tls.Certificate{Certificate: [][]byte{der}, PrivateKey: key}, cert
	}
	server, serverCert := issue("plane")
	caddy, caddyCert := issue("caddy.example.com")
	other, otherCert := issue("prometheus.example.com")
	known, servers := x509.NewCertPool(), x509.NewCertPool()
	known.AddCert(caddyCert)
	known.AddCert(otherCert)
	servers.AddCert(serverCert)
	ln := tls.NewListener(loopback(t), &tls.Config{Certificates: []tls.Certificate{server}, ClientCAs: known, ClientAuth: tls.VerifyClientCertIfGiven})
	open(t, ln, identity.Proxy{Trusted: []netip.Prefix{netip.MustParsePrefix("127.0.0.0/8")}, Certificates: []string{"caddy.example.com"}, Tailnet: "example.com"})
	for who, tt := range map[string]struct {
		certs  []tls.Certificate
		status int
	}{"the proxy": {[]tls.Certificate{caddy}, 200}, "another client": {[]tls.Certificate{other}, 401}, "nobody": {nil, 401}} {
		c, err := tls.Dial("tcp", ln.Addr().String(), &tls.Config{RootCAs: servers, ServerName: "plane", Certificates: tt.certs})
		if err != nil {
			t.Fatal(err)
		}
		status, it, code, err := ask(t, c, identity.UserHeader+": alice@example.com", identity.TailnetHeader+": example.com")
		switch {
		case err != nil:
			t.Errorf("%s: %v", who, err)
		case status != tt.status:
			t.Errorf("%s: status = %v, want %v", who, status, tt.status)
		case (status == 200) != (it.Login == "alice@example.com"):
			t.Errorf(`%s: (status == 200) != (it.Login == "alice@example.com"), status = %d, code = %q, %+v, %v`,
				who, status, code, it, err)
		case status != 200 && code != problem.NoIdentity:
			t.Errorf("%s: status != 200 && code != problem.NoIdentity, status = %d, code = %q, %+v, %v", who, status, code, it, err)
		}
		if err := c.Close(); err != nil && !errors.Is(err, net.ErrClosed) {
			t.Logf("%s: %v", who, err)
		}
	}
}
