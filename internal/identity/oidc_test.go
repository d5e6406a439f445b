package identity

import (
	"crypto"
	"crypto/hmac"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	_ "crypto/sha512" // RS512 in a row
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"maps"
	"math/big"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// rsaKeys are generated once, because generation is slow. They are never modified.
var rsaKeys = sync.OnceValue(func() (keys [2]*rsa.PrivateKey) {
	for i := range keys {
		key, err := rsa.GenerateKey(rand.Reader, 2048)
		if err != nil {
			panic(err)
		}
		keys[i] = key
	}
	return keys
})

// An issuer is a fake tsidp with real keys, real HTTP and the claims of tsidp.
type issuer struct {
	url    string
	client *http.Client

	mu      sync.Mutex
	now     time.Time
	keys    map[string]*rsa.PrivateKey
	asked   int // number of key requests
	askedAt []time.Time
	about   func(map[string]any)
	wrap    func(http.ResponseWriter, *http.Request) bool // called first; returns whether it wrote the response
}

const audience = "plane"

func newIssuer(t testing.TB) *issuer {
	t.Helper()
	i := &issuer{now: time.Date(2026, 11, 22, 9, 0, 0, 0, time.UTC), keys: map[string]*rsa.PrivateKey{"1": rsaKeys()[0]}}
	srv := httptest.NewServer(i)
	t.Cleanup(srv.Close)
	i.url, i.client = srv.URL, srv.Client()
	return i
}

// mode returns the OIDC mode with this issuer.
func (i *issuer) mode() OIDC {
	return OIDC{Issuer: i.url, Audience: audience, Tailnet: "example.ts.net", Client: i.client, Now: i.clock}
}

func (i *issuer) clock() time.Time { i.mu.Lock(); defer i.mu.Unlock(); return i.now }

// change modifies the issuer under its lock.
func (i *issuer) change(f func()) { i.mu.Lock(); defer i.mu.Unlock(); f() }

func badGateway(w http.ResponseWriter, _ *http.Request) bool {
	w.WriteHeader(http.StatusBadGateway)
	return true
}

func (i *issuer) countFetch() {
	i.asked++
	i.askedAt = append(i.askedAt, i.now)
}

const jwksPath = "/.well-known/jwks.json"

func (i *issuer) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	i.mu.Lock()
	defer i.mu.Unlock()
	if i.wrap != nil && i.wrap(w, r) {
		i.countFetch()
		return
	}
	switch r.URL.Path {
	case discoveryPath:
		about := map[string]any{"issuer": i.url, "jwks_uri": i.url + jwksPath, "id_token_signing_alg_values_supported": []string{"RS256"}}
		if i.about != nil {
			i.about(about)
		}
		json.NewEncoder(w).Encode(about)
	case jwksPath:
		i.countFetch()
		set := []any{map[string]string{"kty": "EC", "crv": "nobody", "kid": "other"}, map[string]string{"kty": "oct", "k": "c2VjcmV0", "kid": "hmac"}}
		for id, key := range i.keys {
			set = append(set, map[string]string{"kty": "RSA", "alg": "RS256", "use": "sig", "kid": id,
				"n": base64.RawURLEncoding.EncodeToString(key.N.Bytes()), "e": base64.RawURLEncoding.EncodeToString(big.NewInt(int64(key.E)).Bytes())})
		}
		json.NewEncoder(w).Encode(map[string]any{"keys": set})
	default:
		http.NotFound(w, r)
	}
}

// claims returns the claims of a token that tsidp issues for alice now, with changes. A nil value
// removes a claim.
func (i *issuer) claims(changes map[string]any) map[string]any {
	now := i.clock().Unix()
	c := map[string]any{"iss": i.url, "aud": audience, "sub": "userid:7", "exp": now + 300, "nbf": now, "iat": now, "jti": "a", "key": "nodekey:00",
		"addresses": []string{"100.64.0.1/32"}, "nid": 42, "node": "alice-laptop.example.ts.net.", "tailnet": "example.ts.net.", "email": "alice@example.com", "uid": 7, "username": "alice"}
	maps.Copy(c, changes)
	maps.DeleteFunc(c, func(_ string, v any) bool { return v == nil })
	return c
}

// sign returns a signed token.
func sign(t testing.TB, key *rsa.PrivateKey, head map[string]any, body []byte) string {
	t.Helper()
	text := part(t, head) + "." + base64.RawURLEncoding.EncodeToString(body)
	hash := crypto.SHA256
	if head["alg"] == "RS512" {
		hash = crypto.SHA512
	}
	sum := hash.New()
	sum.Write([]byte(text))
	sig, err := rsa.SignPKCS1v15(nil, key, hash, sum.Sum(nil))
	if head["alg"] == "PS256" {
		sig, err = rsa.SignPSS(rand.Reader, key, hash, sum.Sum(nil), nil)
	}
	if err != nil {
		t.Fatal(err)
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig)
}

func part(t testing.TB, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return base64.RawURLEncoding.EncodeToString(b)
}

func head(kid string) map[string]any { return map[string]any{"alg": "RS256", "typ": "JWT", "kid": kid} }

// token returns a valid token with changed claims.
func (i *issuer) token(t testing.TB, changes map[string]any) string {
	t.Helper()
	b, err := json.Marshal(i.claims(changes))
	if err != nil {
		t.Fatal(err)
	}
	return sign(t, rsaKeys()[0], head("1"), b)
}

func bearer(token string) string { return "Authorization: Bearer " + token }

// PL-02: Tokens that are rejected, one row each; PL-01: logins that belong to no person. The
// control is the same token as tsidp issues it.
func TestPL02_BearerTokens(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	ln := tcp(t)
	start(t, ln, i.mode())
	now := i.clock().Unix()
	key, other := rsaKeys()[0], rsaKeys()[1]
	good, err := json.Marshal(i.claims(nil))
	if err != nil {
		t.Fatal(err)
	}
	public, err := x509.MarshalPKIXPublicKey(&key.PublicKey)
	if err != nil {
		t.Fatal(err)
	}
	hs256 := func(with []byte, kid string) string {
		text := part(t, map[string]any{"alg": "HS256", "typ": "JWT", "kid": kid}) + "." + base64.RawURLEncoding.EncodeToString(good)
		mac := hmac.New(sha256.New, with)
		mac.Write([]byte(text))
		return text + "." + base64.RawURLEncoding.EncodeToString(mac.Sum(nil))
	}
	unsigned := base64.RawURLEncoding.EncodeToString(good) + "."
	claim := func(name string, v any) string { return bearer(i.token(t, map[string]any{name: v})) }
	whole := i.token(t, nil)
	one, _, _ := strings.Cut(whole, ".")

	for _, tt := range []struct {
		why   string
		lines []string
		code  problem.Code
	}{
		{"as tsidp makes it", []string{bearer(whole)}, ""},
		{"bearer in small letters", []string{"authorization: bearer " + whole}, ""},
		{"verified", []string{claim("email_verified", true)}, ""},
		{"an audience in a list", []string{claim("aud", []string{audience})}, ""},
		{"over for 29 s", []string{claim("exp", now-29)}, ""},
		{"not yet, by 30 s", []string{claim("nbf", now+30)}, ""},
		{"without a dot", []string{claim("tailnet", "example.ts.net")}, ""},
		{"given to us", []string{claim("azp", audience)}, ""},

		{"none", nil, problem.NoIdentity},
		{"no token", []string{"Authorization: Bearer"}, problem.InvalidToken},
		{"an empty token", []string{"Authorization: Bearer "}, problem.InvalidToken},
		{"an empty header", []string{"Authorization:"}, problem.InvalidToken},
		{"an opaque token", []string{bearer("5f3a9c1e7b2d4860a1b2c3d4e5f60718")}, problem.InvalidToken},
		{"two tokens", []string{bearer(whole), bearer(whole)}, problem.InvalidToken},
		{"two in one", []string{bearer(whole + ", " + whole)}, problem.InvalidToken},
		{"with a tail", []string{bearer(whole + ".e30")}, problem.InvalidToken},
		{"another scheme", []string{"Authorization: Basic " + whole}, problem.InvalidToken},
		{"another header", []string{"X-Authorization: Bearer " + whole}, problem.NoIdentity},
		{"too long", []string{bearer(whole + strings.Repeat("a", maxToken))}, problem.InvalidToken},

		{"alg none", []string{bearer(part(t, map[string]any{"alg": "none", "kid": "1"}) + "." + unsigned)}, problem.InvalidToken},
		{"alg None", []string{bearer(part(t, map[string]any{"alg": "None", "kid": "1"}) + "." + unsigned)}, problem.InvalidToken},
		{"no alg", []string{bearer(part(t, map[string]any{"kid": "1"}) + "." + unsigned)}, problem.InvalidToken},
		{"no signature", []string{bearer(one + "." + unsigned)}, problem.InvalidToken},
		{"HS256 with the public key", []string{bearer(hs256(public, "1"))}, problem.InvalidToken},
		{"HS256 with the modulus", []string{bearer(hs256(key.N.Bytes(), "1"))}, problem.InvalidToken},
		{"HS256 with a key of the set", []string{bearer(hs256([]byte("secret"), "hmac"))}, problem.InvalidToken},
		{"RS512", []string{bearer(sign(t, key, map[string]any{"alg": "RS512", "kid": "1"}, good))}, problem.InvalidToken},
		{"PS256", []string{bearer(sign(t, key, map[string]any{"alg": "PS256", "kid": "1"}, good))}, problem.InvalidToken},
		{"of another key", []string{bearer(sign(t, other, head("1"), good))}, problem.InvalidToken},
		{"of a key it brings along", []string{bearer(sign(t, other, map[string]any{"alg": "RS256", "kid": "1", "jwk": map[string]string{
			"kty": "RSA", "n": base64.RawURLEncoding.EncodeToString(other.N.Bytes()), "e": "AQAB"}}, good))}, problem.InvalidToken},
		{"of a key elsewhere", []string{bearer(sign(t, other, map[string]any{"alg": "RS256", "kid": "1", "jku": "http://127.0.0.1:1/"}, good))}, problem.InvalidToken},
		{"of an unknown key", []string{bearer(sign(t, key, head("2"), good))}, problem.InvalidToken},
		{"of no named key", []string{bearer(sign(t, key, map[string]any{"alg": "RS256"}, good))}, problem.InvalidToken},
		{"an access token", []string{bearer(sign(t, key, map[string]any{"alg": "RS256", "kid": "1", "typ": "at+jwt"}, good))}, problem.InvalidToken},
		{"a critical header", []string{bearer(sign(t, key, map[string]any{"alg": "RS256", "kid": "1", "crit": []string{"x"}, "x": 1}, good))}, problem.InvalidToken},
		{"no claims", []string{bearer(sign(t, key, head("1"), []byte(`{}`)))}, problem.InvalidToken},
		{"claims that are no object", []string{bearer(sign(t, key, head("1"), []byte(`"alice@example.com"`)))}, problem.InvalidToken},
		{"null", []string{bearer(sign(t, key, head("1"), []byte(`null`)))}, problem.InvalidToken},
		{"a claim twice", []string{bearer(sign(t, key, head("1"), []byte(strings.Replace(string(good), `"email"`, `"email":"root@example.com","email"`, 1))))}, problem.InvalidToken},
		{"a claim in other letters", []string{bearer(sign(t, key, head("1"), []byte(strings.Replace(string(good), `"email"`, `"Email"`, 1))))}, problem.InvalidToken},

		{"another issuer", []string{claim("iss", "https://idp.evil.example")}, problem.InvalidToken},
		{"the issuer with a slash", []string{claim("iss", i.url+"/")}, problem.InvalidToken},
		{"no issuer", []string{claim("iss", nil)}, problem.InvalidToken},
		{"another client's", []string{claim("aud", "grafana")}, problem.InvalidToken},
		{"another client's as well", []string{claim("aud", []string{audience, "grafana"})}, problem.InvalidToken},
		{"without an audience", []string{claim("aud", []string{})}, problem.InvalidToken},
		{"no audience", []string{claim("aud", nil)}, problem.InvalidToken},
		{"given to another client", []string{claim("azp", "grafana")}, problem.InvalidToken},
		{"with an empty authorized party", []string{claim("azp", "")}, problem.InvalidToken},
		{"over for 30 s", []string{claim("exp", now-30)}, problem.InvalidToken},
		{"over for a year", []string{claim("exp", now-31536000)}, problem.InvalidToken},
		{"without an end", []string{claim("exp", nil)}, problem.InvalidToken},
		{"an end in words", []string{claim("exp", "never")}, problem.InvalidToken},
		{"an end beyond time", []string{claim("exp", 1e300)}, problem.InvalidToken},
		{"not yet, by 31 s", []string{claim("nbf", now+31)}, problem.InvalidToken},
		{"no nbf", []string{claim("nbf", nil)}, problem.InvalidToken},
		{"issued in the future", []string{claim("iat", now+31)}, problem.InvalidToken},
		{"no iat", []string{claim("iat", nil)}, problem.InvalidToken},
		{"another tailnet", []string{claim("tailnet", "evil.ts.net")}, problem.InvalidToken},
		{"a tailnet that begins alike", []string{claim("tailnet", "example.ts.net.evil")}, problem.InvalidToken},
		{"no tailnet", []string{claim("tailnet", nil)}, problem.InvalidToken},
		{"an empty tailnet", []string{claim("tailnet", "")}, problem.InvalidToken},
		{"a dot", []string{claim("tailnet", ".")}, problem.InvalidToken},
		{"unverified", []string{claim("email_verified", false)}, problem.InvalidToken},
		{"verified in words", []string{claim("email_verified", "true")}, problem.InvalidToken},
		{"verified by number", []string{claim("email_verified", 1)}, problem.InvalidToken},
		{"verified by null", []string{bearer(sign(t, key, head("1"), []byte(strings.Replace(string(good), `"email"`, `"email_verified":null,"email"`, 1))))}, problem.InvalidToken},
		{"nobody", []string{claim("email", nil)}, problem.InvalidToken},
		{"an empty name", []string{claim("email", "")}, problem.InvalidToken},
		{"a list of names", []string{claim("email", []string{"alice@example.com"})}, problem.InvalidToken},
		{"two @ (PL-01)", []string{claim("email", "alice@example.com@evil.com")}, problem.InvalidToken},
		{"white space", []string{claim("email", "alice@example.com ")}, problem.InvalidToken},
		{"an invisible letter", []string{claim("email", "al\u200bice@example.com")}, problem.InvalidToken},
		{"all tagged nodes", []string{claim("email", taggedDevices)}, problem.InvalidToken},
	} {
		got := ask(t, ln.Addr(), tt.lines...)
		if got.Code != tt.code || (tt.code == "") != (got.Login == "alice@example.com" && got.Via == access.ViaOIDC) {
			t.Errorf("%s: %+v", tt.why, got)
		}
		if got.Left.Get("Authorization") != "" {
			t.Errorf("%s: a handler sees the token", tt.why)
		}
	}

	// A token in the query is not read.
	r := httptest.NewRequest(http.MethodGet, "/?"+url.Values{"access_token": {whole}, "id_token": {whole}, "token": {whole}}.Encode(), nil)
	identify, err := i.mode().Identifier(nil)
	if err != nil {
		t.Fatal(err)
	}
	if c, err := identify(r); problem.CodeOf(err) != problem.NoIdentity || c.Login != "" {
		t.Errorf("in the query: %+v, %v", c, err)
	}
	// Further claims of tsidp.
	r.Header.Set("Authorization", "Bearer "+whole)
	switch c, err := identify(r); {
	case err != nil:
		t.Errorf("alice: %v", err)
	case c.Device != (access.Device{ID: "42", Name: "alice-laptop.example.ts.net"}):
		t.Errorf("alice: c.Device = %v, want %v", c.Device, (access.Device{ID: "42", Name: "alice-laptop.example.ts.net"}))
	case c.UserID != "7":
		t.Errorf("alice: c.UserID = %q, want %q", c.UserID, "7")
	case c.Tailnet != "example.ts.net":
		t.Errorf("alice: c.Tailnet = %q, want %q", c.Tailnet, "example.ts.net")
	case c.DisplayName != "alice@example.com":
		t.Errorf("alice: c.DisplayName = %q, want %q", c.DisplayName, "alice@example.com")
	}
}

// On the tailnet a client may send a token, which must be valid and name the same login. It never
// adds rights and never changes the caller.
func TestPL02_TokenOnTheTailnet(t *testing.T) {
	t.Parallel()
	i := newIssuer(t)
	bob, _ := asBob(nil)
	tagged := access.Caller{Tags: []access.Tag{"tag:ci"}, Device: access.Device{ID: "n2", Name: "ci"}, Via: access.ViaTailnet}
	expired := bob
	expired.Expired = true
	for _, tt := range []struct {
		why   string
		is    access.Caller
		lines []string
		login access.Login
		code  problem.Code
	}{
		{"no token is the normal case", bob, nil, "bob@example.com", ""},
		{"bob's token", bob, []string{bearer(i.token(t, map[string]any{"email": "bob@example.com"}))}, "bob@example.com", ""},
		{"alice's token", bob, []string{bearer(i.token(t, nil))}, "bob@example.com", problem.IdentityMismatch},
		{"bob in other letters", bob, []string{bearer(i.token(t, map[string]any{"email": "Bob@example.com"}))}, "bob@example.com", problem.IdentityMismatch},
		{"bob's old token", bob, []string{bearer(i.token(t, map[string]any{"email": "bob@example.com", "exp": 1}))}, "bob@example.com", problem.InvalidToken},
		{"an opaque token", bob, []string{bearer("abc")}, "bob@example.com", problem.InvalidToken},
		{"an empty header", bob, []string{"Authorization:"}, "bob@example.com", problem.InvalidToken},
		{"bob's token twice", bob, []string{bearer(i.token(t, map[string]any{"email": "bob@example.com"})), bearer("x")}, "bob@example.com", problem.InvalidToken},
		{"a tagged node with a person's token", tagged, []string{bearer(i.token(t, nil))}, "", problem.IdentityMismatch},
		{"a caller that is not admitted anyway", expired, []string{bearer("abc")}, "bob@example.com", ""}, // the server refuses the caller later
	} {
		ln := tcp(t)
		start(t, ln, Whois{Bearer: new(i.mode()), WhoIs: func(*http.Request) (access.Caller, error) { return tt.is, nil }})
		got := ask(t, ln.Addr(), tt.lines...)
		switch {
		case got.Login != tt.login:
			t.Errorf("%s: got.Login = %q, want %q", tt.why, got.Login, tt.login)
		case got.Code != tt.code:
			t.Errorf("%s: got.Code = %q, want %q", tt.why, got.Code, tt.code)
		case got.Via != access.ViaTailnet:
			t.Errorf("%s: got.Via = %q, want %q", tt.why, got.Via, access.ViaTailnet)
		}
		if got.Code == "" && !tt.is.Expired && got.Left.Get("Authorization") != "" {
			t.Errorf("%s: a handler sees the token", tt.why)
		}
	}
}

// The issuer's keys are fetched when needed, at limited intervals. They are kept while the issuer
// is down, and accepted only from the issuer's origin.
func TestKeys(t *testing.T) {
	t.Parallel()
	verify := func(t *testing.T, m OIDC) func(token string) problem.Code {
		identify, err := m.Identifier(nil)
		if err != nil {
			t.Fatal(err)
		}
		return func(token string) problem.Code {
			r := httptest.NewRequest(http.MethodGet, "/", nil)
			r.Header.Set("Authorization", "Bearer "+token)
			c, err := identify(r)
			if (err == nil) != (c.Login != "") {
				t.Errorf("%+v and %v", c, err)
			}
			return problem.CodeOf(err)
		}
	}
	want := func(t *testing.T, why string, got, want problem.Code) {
		t.Helper()
		if got != want {
			t.Errorf("%s: %q, want %q", why, got, want)
		}
	}
	second := func(t *testing.T, i *issuer) string {
		b, err := json.Marshal(i.claims(nil))
		if err != nil {
			t.Fatal(err)
		}
		return sign(t, rsaKeys()[1], head("2"), b)
	}

	t.Run("rotation", func(t *testing.T) {
		t.Parallel()
		i := newIssuer(t)
		check := verify(t, i.mode())
		want(t, "first", check(i.token(t, nil)), "")
		i.change(func() { i.keys = map[string]*rsa.PrivateKey{"2": rsaKeys()[1]} })
		want(t, "a new key, at once", check(second(t, i)), problem.InvalidToken)
		i.change(func() { i.now = i.now.Add(keysPause) })
		want(t, "a new key", check(second(t, i)), "")
		want(t, "the old key", check(i.token(t, nil)), problem.InvalidToken)
	})
	t.Run("an old key is forgotten in time", func(t *testing.T) {
		t.Parallel()
		i := newIssuer(t)
		check := verify(t, i.mode())
		want(t, "first", check(i.token(t, nil)), "")
		i.change(func() { i.keys = map[string]*rsa.PrivateKey{"2": rsaKeys()[1]} })
		i.change(func() { i.now = i.now.Add(keysFresh) })
		want(t, "later", check(i.token(t, nil)), problem.InvalidToken)
	})
	t.Run("unknown keys do not make us ask", func(t *testing.T) {
		t.Parallel()
		for _, tt := range []struct {
			why   string
			known bool // whether a valid token comes first
			down  bool // whether the issuer is down afterwards
		}{
			{"after a valid token", true, false},
			{"from the start", false, false},
			{"while the issuer is down", true, true},
		} {
			i := newIssuer(t)
			identify := verify(t, i.mode())
			if tt.known {
				want(t, "first", identify(i.token(t, nil)), "")
			}
			if tt.down {
				i.change(func() { i.wrap = badGateway })
			}
			for n := range 10 * 60 { // ten minutes of tokens with changing key IDs, of two attackers at once
				b, err := json.Marshal(i.claims(nil))
				if err != nil {
					t.Fatal(err)
				}
				var attackers sync.WaitGroup
				for a := range 2 {
					attackers.Go(func() {
						want(t, tt.why, identify(sign(t, rsaKeys()[1], head(fmt.Sprint("k", n, "-", a)), b)), problem.InvalidToken)
					})
				}
				attackers.Wait()
				i.change(func() { i.now = i.now.Add(time.Second) })
			}
			i.change(func() {
				if i.asked > 10 {
					t.Errorf("%s: %d fetches in ten minutes, want at most one a minute", tt.why, i.asked)
				}
				for n, at := range i.askedAt[1:] {
					if since := at.Sub(i.askedAt[n]); since < time.Minute {
						t.Errorf("%s: fetch %d comes %s after the one before, want at least a minute", tt.why, n+1, since)
					}
				}
				i.wrap = nil
			})
			if !tt.down {
				want(t, "a good one", identify(i.token(t, nil)), "")
			}
		}
	})
	t.Run("away", func(t *testing.T) {
		t.Parallel()
		i := newIssuer(t)
		check := verify(t, i.mode())
		i.change(func() { i.wrap = badGateway })
		want(t, "from the start", check(i.token(t, nil)), problem.IdentityUnavailable)
		want(t, "again", check(i.token(t, nil)), problem.IdentityUnavailable)
		i.change(func() {
			if i.asked != 1 {
				t.Errorf("%d requests", i.asked)
			}
			i.wrap, i.now = nil, i.now.Add(firstPause)
		})
		want(t, "back", check(i.token(t, nil)), "")
		i.change(func() {
			i.wrap = badGateway
			i.now = i.now.Add(keysGood - time.Second)
		})
		want(t, "last valid keys", check(i.token(t, nil)), "")
		want(t, "an unknown key", check(second(t, i)), problem.InvalidToken)
		i.change(func() { i.now = i.now.Add(2 * time.Second) })
		want(t, "too old to be good", check(i.token(t, nil)), problem.IdentityUnavailable)
	})
	t.Run("one question for a crowd", func(t *testing.T) {
		t.Parallel()
		i := newIssuer(t)
		identify, err := i.mode().Identifier(nil)
		if err != nil {
			t.Fatal(err)
		}
		token := i.token(t, nil)
		errs := make(chan error, 50)
		for range cap(errs) {
			go func() {
				r := httptest.NewRequest(http.MethodGet, "/", nil)
				r.Header.Set("Authorization", "Bearer "+token)
				_, err := identify(r)
				errs <- err
			}()
		}
		for range cap(errs) {
			if err := <-errs; err != nil {
				t.Error(err)
			}
		}
		i.change(func() {
			if i.asked != 1 {
				t.Errorf("%d requests", i.asked)
			}
		})
	})
	elsewhere := newIssuer(t) // with the same keys
	for why, change := range map[string]func(*issuer){
		"of another name": func(i *issuer) { i.about = func(m map[string]any) { m["issuer"] = "https://idp.evil.example" } },
		"with a slash":    func(i *issuer) { i.about = func(m map[string]any) { m["issuer"] = i.url + "/" } },
		"keys elsewhere":  func(i *issuer) { i.about = func(m map[string]any) { m["jwks_uri"] = elsewhere.url + jwksPath } },
		"keys of another scheme": func(i *issuer) {
			i.about = func(m map[string]any) { m["jwks_uri"] = strings.Replace(i.url, "http:", "HTTP+x:", 1) + jwksPath }
		},
		"keys with a login": func(i *issuer) {
			i.about = func(m map[string]any) { m["jwks_uri"] = strings.Replace(i.url, "//", "//a@", 1) + jwksPath }
		},
		"no keys named":      func(i *issuer) { i.about = func(m map[string]any) { delete(m, "jwks_uri") } },
		"no keys":            func(i *issuer) { i.keys = nil },
		"keys without names": func(i *issuer) { i.keys = map[string]*rsa.PrivateKey{"": rsaKeys()[0]} },
		"a redirect": func(i *issuer) {
			i.wrap = func(w http.ResponseWriter, r *http.Request) bool {
				if r.URL.Path == discoveryPath {
					http.Redirect(w, r, "/moved", http.StatusFound)
					return true
				}
				r.URL.Path = strings.Replace(r.URL.Path, "/moved", discoveryPath, 1)
				return false
			}
		},
		"no JSON": func(i *issuer) {
			i.wrap = func(w http.ResponseWriter, _ *http.Request) bool { fmt.Fprint(w, "<html>"); return true }
		},
		"a flood": func(i *issuer) { i.about = func(m map[string]any) { m["more"] = strings.Repeat("a", maxAnswer) } },
		"many keys": func(i *issuer) {
			for n := range maxKeys {
				i.keys[fmt.Sprint("k", n)] = rsaKeys()[0]
			}
		},
	} {
		t.Run("an issuer "+why, func(t *testing.T) {
			t.Parallel()
			i := newIssuer(t)
			token := i.token(t, nil)
			i.change(func() { change(i) })
			want(t, why, verify(t, i.mode())(token), problem.IdentityUnavailable)
		})
	}
}

// A key that is short, for encryption or of another type is not used.
func TestSigningKey(t *testing.T) {
	t.Parallel()
	n := base64.RawURLEncoding.EncodeToString(rsaKeys()[0].N.Bytes())
	short := base64.RawURLEncoding.EncodeToString(new(big.Int).Lsh(big.NewInt(3), 1022).Bytes())
	for raw, ok := range map[string]bool{
		`{"kty":"RSA","kid":"1","e":"AQAB","n":"` + n + `"}`:                           true,
		`{"kty":"RSA","kid":"1","e":"AQAB","alg":"RS256","use":"sig","n":"` + n + `"}`: true,
		`{"kty":"RSA","kid":"1","e":"AQAB","use":"enc","n":"` + n + `"}`:               false,
		`{"kty":"RSA","kid":"1","e":"AQAB","alg":"RS512","n":"` + n + `"}`:             false,
		`{"kty":"RSA","e":"AQAB","n":"` + n + `"}`:                                     false,
		`{"kty":"RSA","kid":"1","e":"AQ","n":"` + n + `"}`:                             false,
		`{"kty":"RSA","kid":"1","e":"AQAB","n":"` + short + `"}`:                       false,
		`{"kty":"oct","kid":"1","k":"c2VjcmV0"}`:                                       false,
		`{"kty":"RSA","kid":"1","e":"AQAB","n":"` + strings.Repeat(n, 5) + `"}`:        false,
		`[]`: false, ``: false,
	} {
		if _, key := signingKey([]byte(raw)); (key != nil) != ok {
			t.Errorf("%.80s: %v", raw, key != nil)
		}
	}
}
