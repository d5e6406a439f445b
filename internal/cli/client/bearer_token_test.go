package client_test

import (
	"encoding/base64"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/url"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/cli/client"
)

// newJWT returns a token with an expiry.
func newJWT(name string, until time.Time) string {
	part := func(s string) string { return base64.RawURLEncoding.EncodeToString([]byte(s)) }
	return part(`{"alg":"RS256"}`) + "." + part(fmt.Sprintf(`{"sub":%q,"exp":%d}`, name, until.Unix())) + "." + part("signed")
}

var now = time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC)

// A planeServer records the tokens that it gets, and accepts those for which good returns true.
type planeServer struct {
	*httptest.Server
	mu   sync.Mutex
	came []string
	good func(token string) bool
}

func newPlaneServer(t *testing.T, good func(string) bool) *planeServer {
	s := &planeServer{good: good}
	s.Server = httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		token := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		s.mu.Lock()
		s.came = append(s.came, token)
		s.mu.Unlock()
		if !s.good(token) {
			w.WriteHeader(http.StatusUnauthorized)
		}
	}))
	t.Cleanup(s.Close)
	return s
}

func (s *planeServer) tokens() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return append([]string{}, s.came...)
}

func (s *planeServer) transport(t *testing.T, source *client.TokenSource) *client.BearerTransport {
	t.Helper()
	base, err := url.Parse(s.URL)
	if err != nil {
		t.Fatal(err)
	}
	return &client.BearerTransport{Base: base, Source: source, Agent: "tka/test", Next: s.Client().Transport}
}

func newSource(s *client.TokenSource, notified *[]string) *client.TokenSource {
	s.Now = func() time.Time { return now }
	s.Notify = func(m string) { *notified = append(*notified, m) }
	s.Stderr = os.Stderr
	return s
}

// MC-06: the token goes only to the configured https host: not to the target of a redirect, not to another host, and not by http.
func TestMC06_token_goes_to_the_plane_only(t *testing.T) {
	var notified []string
	other := newPlaneServer(t, func(string) bool { return true })
	redirecting := httptest.NewTLSServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		http.Redirect(w, r, other.URL, http.StatusTemporaryRedirect)
	}))
	defer redirecting.Close()
	base, _ := url.Parse(redirecting.URL)
	w := &client.BearerTransport{Base: base, Source: newSource(&client.TokenSource{Value: "secret-token"}, &notified), Next: redirecting.Client().Transport}
	_, err := w.HTTPClient().Get(redirecting.URL)
	switch {
	case err == nil:
		t.Error("a redirect: no error")
	case !strings.Contains(err.Error(), "redirect"):
		t.Errorf("a redirect: err.Error() = %q does not contain %q", err.Error(), "redirect")
	case strings.Contains(err.Error(), "secret-token"):
		t.Errorf("a redirect: err.Error() = %q contains %q", err.Error(), "secret-token")
	}
	if _, err := w.HTTPClient().Get(other.URL); err == nil || !strings.Contains(err.Error(), "is not the configured operator plane") {
		t.Errorf("another host: %v", err)
	}
	if came := other.tokens(); len(came) != 0 {
		t.Errorf("another server received a request, with %q", came)
	}
	var seen []string
	plain := httptest.NewServer(http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) { seen = append(seen, r.Header.Get("Authorization")) }))
	base, _ = url.Parse(plain.URL)
	w = &client.BearerTransport{Base: base, Source: newSource(&client.TokenSource{Value: "secret-token"}, &notified), Next: http.DefaultTransport}
	res, err := w.HTTPClient().Get(plain.URL)
	if err != nil {
		t.Fatal(err)
	}
	res.Body.Close()
	plain.Close() // now its handler has ended
	if len(seen) != 1 || seen[0] != "" {
		t.Errorf("received over http: %q", seen)
	}
}

// A token is read again near its expiry, and once after a refusal.
func TestTokenIsReadAgain(t *testing.T) {
	path := filepath.Join(t.TempDir(), "token")
	write := func(token string) {
		t.Helper()
		if err := os.WriteFile(path, []byte(token+"\n"), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	get := func(w *client.BearerTransport) int {
		t.Helper()
		res, err := w.HTTPClient().Get(w.Base.String())
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	first, second, third := newJWT("first", now.Add(5*time.Minute)), newJWT("second", now.Add(10*time.Minute)), newJWT("third", now.Add(20*time.Second))
	s := newPlaneServer(t, func(token string) bool { return token != first })
	var notified []string
	w := s.transport(t, newSource(&client.TokenSource{File: path}, &notified))
	write(first)
	if code := get(w); code != http.StatusUnauthorized { // and there is no other token
		t.Errorf("a refused token: %d", code)
	}
	write(second)
	if code := get(w); code != http.StatusOK {
		t.Errorf("after a new token was written: %d", code)
	}
	if got, want := s.tokens(), []string{first, first, second}; strings.Join(got, " ") != strings.Join(want, " ") {
		t.Errorf("tokens were %q", got)
	}
	w = s.transport(t, newSource(&client.TokenSource{File: path}, &notified))
	write(third)
	get(w)
	write(second)
	get(w)
	if got := s.tokens(); got[len(got)-1] != second || got[len(got)-2] != third {
		t.Errorf("a token is not read again near its expiry")
	}
	switch {
	case len(notified) < 2:
		t.Errorf("told: len(notified) = %v, want at least 2", len(notified))
	case !strings.Contains(notified[0], "valid until 2026-11-22T12:05:00Z, for 5m0s"):
		t.Errorf("told: notified[0] = %q does not contain %q", notified[0], "valid until 2026-11-22T12:05:00Z, for 5m0s")
	case strings.Contains(strings.Join(notified, ""), first):
		t.Errorf(`told: strings.Join(notified, "") = %q contains %q`, strings.Join(notified, ""), first)
	}
}

func TestTokenCommand(t *testing.T) {
	var notified []string
	s := newSource(&client.TokenSource{Command: []string{"echo", "of-a-command"}}, &notified)
	if token, err := s.Token(t.Context(), ""); err != nil || token != "of-a-command" {
		t.Errorf("%q %v", token, err)
	}
	for why, command := range map[string][]string{"it fails": {"false"}, "it says nothing": {"true"}, "it says two words": {"echo", "a b"}, "there is none": {"/nonexistent/program"}} {
		if _, err := newSource(&client.TokenSource{Command: command}, &notified).Token(t.Context(), ""); err == nil {
			t.Errorf("%s: no error", why)
		}
	}
}
