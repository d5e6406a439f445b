package identity

import (
	"bufio"
	"context"
	"encoding/base64"
	"encoding/json"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// FuzzHeaders sends arbitrary headers to each mode. No handler sees a header that names a caller.
// An untrusted peer has no identity. From the trusted peer, a login counts only if it occurs once,
// in one spelling.
func FuzzHeaders(f *testing.F) {
	for _, lines := range spellings(forged("alice@example.com")) {
		f.Add(strings.Join(lines, "\r\n"))
	}
	for _, s := range []string{
		UserHeader + ": alice@example.com\r\n" + TailnetHeader + ": example.com\r\n" + SecretHeader + ": " + secretText,
		UserHeader + ": a\r\n b@example.com", "Connection: " + UserHeader + "\r\n" + UserHeader + ": a@b.c",
		serveLogin + ": =?utf-8?q?zo=C3=AB=40example.com?=\r\n" + serveCapabilities + `: {"` + capability + `":[{"role":"viewer"}]}`,
		serveCapabilities + ": {\"" + capability + "\":[" + strings.Repeat("[", 3000), "Trailer: " + UserHeader, funnelHeader + ": ?1",
	} {
		f.Add(s)
	}
	unix, inside := socket(f).Addr(), tcp(f).Addr()
	identifier := func(m mode, at net.Addr) Identifier {
		identify, err := m.Identifier(at)
		if err != nil {
			f.Fatal(err)
		}
		return identify
	}
	far := proxied(f)
	far.Trusted = []netip.Prefix{netip.MustParsePrefix("10.0.0.0/24")}
	overUnix := Proxy{Tailnet: "example.com"}
	type try struct {
		name     string
		identify Identifier
		at       net.Addr
		remote   string
		read     []string     // headers that this mode reads the caller from; empty: none
		always   access.Login // the caller in every case
	}
	tries := []try{
		{"whois", identifier(Whois{WhoIs: asBob}, nil), inside, "100.64.0.1:4242", nil, "bob@example.com"},
		{"serve", identifier(Serve{Capability: capability}, unix), unix, "@", []string{serveLogin, serveName, serveCapabilities}, ""},
		{"serve, a stranger", identifier(Serve{Capability: capability}, unix), inside, "127.0.0.1:1", nil, ""},
		{"proxy", identifier(overUnix, unix), unix, "@", []string{UserHeader, NameHeader, TailnetHeader}, ""},
		{"proxy, a stranger", identifier(far, inside), inside, "10.0.1.0:4242", nil, ""},
	}
	f.Fuzz(func(t *testing.T, head string) {
		if len(head) > 16<<10 { // the limit of net/http
			return
		}
		for _, tt := range tries {
			r, err := http.ReadRequest(bufio.NewReader(strings.NewReader("GET / HTTP/1.1\r\nHost: plane\r\n" + head + "\r\n\r\n")))
			if err != nil {
				return
			}
			r = r.WithContext(context.WithValue(t.Context(), http.LocalAddrContextKey, tt.at))
			r.RemoteAddr = tt.remote
			sent := r.Header.Clone()
			c, err := tt.identify(r)
			for name := range r.Header {
				if IsIdentityHeader(name) {
					t.Errorf("%s: %q is left", tt.name, name)
				}
			}
			for name := range sent {
				if !IsIdentityHeader(name) && !slices.Equal(r.Header[name], sent[name]) {
					t.Errorf("%s: %q was changed", tt.name, name)
				}
			}
			switch {
			case c.Via == access.ViaFunnel:
				if c.Login != "" {
					t.Errorf("%s: Funnel is %q", tt.name, c.Login)
				}
			case tt.always != "":
				if err != nil || c.Login != tt.always {
					t.Errorf("%s: %q, %v", tt.name, c.Login, err)
				}
			case tt.read == nil:
				switch {
				case problem.CodeOf(err) != problem.NoIdentity:
					t.Errorf("%s: problem.CodeOf(err) != problem.NoIdentity, %+v, %v", tt.name, c, err)
				case c.Login != "":
					t.Errorf("%s: c.Login = %q, want none", tt.name, c.Login)
				case c.Rules != nil:
					t.Errorf("%s: c.Rules = %v, want nil", tt.name, c.Rules)
				}
			case err == nil:
				checkNamed(t, tt.name, c, sent, tt.read)
			}
		}
	})
}

// checkNamed compares a caller with the headers that were sent.
func checkNamed(t *testing.T, mode string, c access.Caller, sent http.Header, read []string) {
	t.Helper()
	switch values := sent[read[0]]; {
	case len(values) != 1:
		t.Errorf("%s: len(values) = %v, want 1", mode, len(values))
	case decodeQ(values[0]) != string(c.Login):
		t.Errorf("%s: decodeQ(values[0]) != string(c.Login), %q, values = %q", mode, c.Login, values)
	case c.Login == taggedDevices:
		t.Errorf("%s: c.Login = %q", mode, c.Login)
	}
	if _, err := access.ParseLogin(string(c.Login)); err != nil {
		t.Errorf("%s: %v", mode, err)
	}
	seen := map[string]int{}
	for name, values := range sent {
		if slices.ContainsFunc(read, func(r string) bool { return normalizeHeader(r) == normalizeHeader(name) }) {
			seen[normalizeHeader(name)] += len(values)
		}
	}
	for name, n := range seen {
		if n != 1 {
			t.Errorf("%s: %s came %d times, and %q counts", mode, name, n, c.Login)
		}
	}
}

// FuzzBearer sends arbitrary Authorization headers. A token counts only if its two signed parts are
// identical to those of a token that the issuer signed.
func FuzzBearer(f *testing.F) {
	i := newIssuer(f)
	identify, err := i.mode().Identifier(nil)
	if err != nil {
		f.Fatal(err)
	}
	good := i.token(f, nil)
	body, err := json.Marshal(i.claims(nil))
	if err != nil {
		f.Fatal(err)
	}
	signed, signature := good[:strings.LastIndex(good, ".")], good[strings.LastIndex(good, ".")+1:]
	f.Add("Bearer " + good)
	f.Add("bearer " + good + "=")
	f.Add("Bearer " + part(f, map[string]any{"alg": "none"}) + "." + base64.RawURLEncoding.EncodeToString(body) + ".")
	f.Add("Bearer " + part(f, map[string]any{"alg": "HS256", "kid": "1"}) + "." + base64.RawURLEncoding.EncodeToString(body) + "." + signature)
	f.Add("Bearer " + sign(f, rsaKeys()[1], head("1"), body))
	f.Add(`Bearer {"payload":"e30","signatures":[{"protected":"e30","signature":""}]}`)
	f.Add("Basic YWxpY2U6eA==")
	f.Add("Bearer a.b.c.d.e")
	f.Fuzz(func(t *testing.T, sent string) {
		r := httptest.NewRequest(http.MethodGet, "/", nil)
		r.Header.Set("Authorization", sent)
		c, err := identify(r)
		if len(r.Header["Authorization"]) != 0 {
			t.Error("the token is left")
		}
		if err == nil {
			_, token, _ := strings.Cut(sent, " ")
			if !strings.HasPrefix(token, signed+".") || c.Login != "alice@example.com" {
				t.Errorf("%q is %+v", sent, c)
			}
			return
		}
		if code := problem.CodeOf(err); code != problem.InvalidToken || c.Login != "" {
			t.Errorf("%q: %v, %+v", sent, err, c)
		}
		if strings.Contains(problem.From(err).Error(), sent) && len(sent) > 20 {
			t.Errorf("the refusal repeats %q", sent)
		}
	})
}
