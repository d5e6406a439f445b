package tailnet_test

import (
	"bytes"
	"context"
	"crypto"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"math/big"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/identity"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"tailscale.com/tsnet"
)

// build compiles a program or tool of this module for one test.
func build(t testing.TB, pkg string) string {
	t.Helper()
	bin := filepath.Join(t.TempDir(), filepath.Base(pkg))
	cmd := exec.CommandContext(t.Context(), "go", "build", "-o", bin, pkg)
	if out, err := cmd.CombinedOutput(); err != nil {
		t.Fatalf("go build %s: %v\n%s", pkg, err, out)
	}
	return bin
}

// TB-07: the official identity provider, unmodified, as a separate process. Alice signs in by her tailnet identity,
// and gets a token with it.
func TestTsidp(t *testing.T) {
	t.Parallel()
	bin := build(t, "tailscale.com/cmd/tsidp")
	n := tailnettest.Start(t, policy)
	roots := n.EnableHTTPS()
	app, alice := n.Node("app", "", "tag:k8s"), n.Node("alice", "alice@example.com")
	ctx := deadline(t)
	if err := n.Ready(ctx, app, alice); err != nil {
		t.Fatal(err)
	}
	dir := t.TempDir()
	rootFile := filepath.Join(dir, "root.pem")
	if err := os.WriteFile(rootFile, roots, 0o600); err != nil {
		t.Fatal(err)
	}

	var out bytes.Buffer
	cmd := exec.CommandContext(ctx, bin, "-hostname", "idp", "-dir", dir, "-port", "443")
	cmd.Env = append(append([]string{"HOME=" + dir, "PATH=" + os.Getenv("PATH"), "TAILSCALE_USE_WIP_CODE=1", "TS_CONTROL_URL=" + n.ControlURL(),
		"TS_AUTHKEY=" + n.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:idp"}}), "SSL_CERT_FILE=" + rootFile},
		tailnettest.ChildEnv()...), n.HTTPSEnv()...)
	cmd.Stdout, cmd.Stderr = &out, &out
	cmd.Cancel = func() error { return cmd.Process.Signal(syscall.SIGTERM) }
	cmd.WaitDelay = 10 * time.Second
	start := time.Now()
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		cmd.Process.Kill()
		cmd.Wait()
		if t.Failed() {
			t.Logf("output of tsidp:\n%s", &out)
		}
	})
	for _, s := range []*tsnet.Server{app, alice} {
		if err := n.WaitPeer(ctx, s, "idp"); err != nil {
			t.Fatal(err)
		}
	}

	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(roots)
	as := func(s *tsnet.Server) *http.Client {
		tr := &http.Transport{DialContext: s.Dial, TLSClientConfig: &tls.Config{RootCAs: pool}}
		t.Cleanup(tr.CloseIdleConnections)
		return &http.Client{Timeout: 30 * time.Second, Transport: tr,
			CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }}
	}
	var meta struct {
		Authorization string `json:"authorization_endpoint"`
		Token         string `json:"token_endpoint"`
		Keys          string `json:"jwks_uri"`
		Issuer        string `json:"issuer"`
	}
	// The node is on the tailnet before the program listens.
	for {
		err := getJSON(ctx, as(app), "https://idp.tiny.ts.net/.well-known/openid-configuration", &meta)
		if err == nil {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(20 * time.Millisecond):
		}
	}
	q := url.Values{"client_id": {"app"}, "redirect_uri": {"https://app.tiny.ts.net/cb"}, "response_type": {"code"},
		"scope": {"openid email"}, "state": {"some state"}, "nonce": {"a nonce"}}
	res, err := as(alice).Get(meta.Authorization + "?" + q.Encode())
	if err != nil {
		t.Fatal(err)
	}
	io.Copy(io.Discard, res.Body)
	res.Body.Close()
	back, err := res.Location()
	switch {
	case err != nil:
		t.Fatalf("authorize as alice: %v; %s", err, res.Status)
	case back.Host != "app.tiny.ts.net":
		t.Fatalf("authorize as alice: back.Host = %q, want %q; %s", back.Host, "app.tiny.ts.net", res.Status)
	case back.Query().Get("state") != "some state":
		t.Fatalf(`authorize as alice: back.Query().Get("state") != "some state"; %s, back = %v, %v`, res.Status, back, err)
	case back.Query().Get("code") == "":
		t.Fatalf(`authorize as alice: back.Query().Get("code") == ""; %s, back = %v, %v`, res.Status, back, err)
	}
	res, err = as(app).PostForm(meta.Token, url.Values{"grant_type": {"authorization_code"}, "code": {back.Query().Get("code")},
		"redirect_uri": q["redirect_uri"], "client_id": {"app"}})
	if err != nil {
		t.Fatal(err)
	}
	var tok struct {
		ID string `json:"id_token"`
	}
	err = json.NewDecoder(res.Body).Decode(&tok)
	res.Body.Close()
	if err != nil || tok.ID == "" {
		t.Fatalf("token: %s %v", res.Status, err)
	}
	var keys jwks
	if err := getJSON(ctx, as(app), meta.Keys, &keys); err != nil {
		t.Fatal(err)
	}
	claims, err := keys.verify(tok.ID)
	if err != nil {
		t.Fatal(err)
	}
	for name, want := range map[string]string{"email": "alice@example.com", "nonce": "a nonce", "iss": meta.Issuer} {
		if claims[name] != want {
			t.Errorf("claim %s is %v, want %v", name, claims[name], want)
		}
	}
	t.Logf("from tsidp's start to alice's verified token: %v", time.Since(start).Round(time.Millisecond))

	// PL-02: the identity mode oidc accepts the same token, and rejects that of another client.
	for audience, login := range map[string]access.Login{"app": "alice@example.com", "plane": ""} {
		identify, err := identity.OIDC{Issuer: meta.Issuer, Audience: audience, Tailnet: "tiny.ts.net", Client: as(app), Now: time.Now}.Identifier(nil)
		if err != nil {
			t.Fatal(err)
		}
		r, err := http.NewRequestWithContext(ctx, http.MethodGet, "https://app.tiny.ts.net/", nil)
		if err != nil {
			t.Fatal(err)
		}
		r.Header.Set("Authorization", "Bearer "+tok.ID)
		c, err := identify(r)
		switch {
		case c.Login != login:
			t.Errorf("for the client %s: login %q, want %q: %v", audience, c.Login, login, errors.Unwrap(err))
		case login == "" && problem.CodeOf(err) != problem.InvalidToken:
			t.Errorf("for the client %s: %v, want %s", audience, err, problem.InvalidToken)
		case login != "" && err != nil:
			t.Errorf("for the client %s: %v", audience, errors.Unwrap(err))
		case login != "" && c.Device.Name != "alice.tiny.ts.net":
			t.Errorf("alice's device is %q", c.Device.Name)
		case login != "" && c.Device.ID == "":
			t.Error("alice's device has no id")
		case login != "" && c.Tailnet != "tiny.ts.net":
			t.Errorf("alice's tailnet is %q", c.Tailnet)
		}
	}
}

func getJSON(ctx context.Context, c *http.Client, url string, v any) error {
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, url, nil)
	if err != nil {
		return err
	}
	res, err := c.Do(req)
	if err != nil {
		return err
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		return fmt.Errorf("%s: %s", url, res.Status)
	}
	return json.NewDecoder(res.Body).Decode(v)
}

type jwks struct {
	Keys []struct{ Kid, Kty, N, E string }
}

// verify checks an RS256 token against the keys and returns its claims.
func (k jwks) verify(token string) (map[string]any, error) {
	part := strings.Split(token, ".")
	if len(part) != 3 {
		return nil, fmt.Errorf("a token of %d parts", len(part))
	}
	var raw [3][]byte
	for i, p := range part {
		var err error
		if raw[i], err = base64.RawURLEncoding.DecodeString(p); err != nil {
			return nil, err
		}
	}
	var head struct{ Alg, Kid string }
	if err := json.Unmarshal(raw[0], &head); err != nil || head.Alg != "RS256" {
		return nil, fmt.Errorf("head %s: %v", raw[0], err)
	}
	for _, key := range k.Keys {
		if key.Kid != head.Kid || key.Kty != "RSA" {
			continue
		}
		n, err1 := base64.RawURLEncoding.DecodeString(key.N)
		e, err2 := base64.RawURLEncoding.DecodeString(key.E)
		if err1 != nil || err2 != nil {
			return nil, fmt.Errorf("key %s: %v %v", key.Kid, err1, err2)
		}
		pub := &rsa.PublicKey{N: new(big.Int).SetBytes(n), E: int(new(big.Int).SetBytes(e).Int64())}
		sum := sha256.Sum256([]byte(part[0] + "." + part[1]))
		if err := rsa.VerifyPKCS1v15(pub, crypto.SHA256, sum[:], raw[2]); err != nil {
			return nil, err
		}
		var claims map[string]any
		return claims, json.Unmarshal(raw[1], &claims)
	}
	return nil, fmt.Errorf("no key %q", head.Kid)
}
