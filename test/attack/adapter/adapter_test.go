package adapter

import (
	"bufio"
	"bytes"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"
)

const (
	plainHead = "GET /api/v1/pods HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer $TOKEN\r\n"
	wsHead    = "GET /api/v1/namespaces/shop/pods/app/exec?command=id HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer $TOKEN\r\nUpgrade: websocket\r\n" +
		"Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Protocol: v5.channel.k8s.io\r\n"
	spdyHead = "POST /api/v1/namespaces/shop/pods/app/exec?command=id HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer $TOKEN\r\nUpgrade: SPDY/3.1\r\n" +
		"X-Stream-Protocol-Version: v4.channel.k8s.io\r\nContent-Length: 0\r\n"
)

// isPod fails if a request did not arrive with exactly the identity of the pod's ServiceAccount.
func isPod(t *testing.T, a receivedRequest, token string) {
	t.Helper()
	if got := a.Header["Authorization"]; len(got) != 1 || got[0] != "Bearer "+token {
		t.Errorf("%s %s: arrived with the credential %q", a.Method, a.URI, got)
	}
	for name := range a.Header {
		plain := strings.ReplaceAll(strings.ToLower(name), "_", "-")
		for _, claim := range []string{"cookie", "forwarded", "x-forwarded-", "x-remote-", "proxy-", "impersonate-", "http2-settings", "te", "trailer"} {
			if plain == claim || strings.HasSuffix(claim, "-") && strings.HasPrefix(plain, claim) {
				t.Errorf("%s %s: arrived with %s: %q", a.Method, a.URI, name, a.Header[name])
			}
		}
		if strings.Contains(strings.Join(a.Header[name], " "), "base64url.bearer") {
			t.Errorf("%s %s: arrived with a token in %s", a.Method, a.URI, name)
		}
	}
}

// talk upgrades a connection, checks the identity with which it arrived, and exchanges some data on it.
func (p *podUnderAttack) talk(token, text string) error {
	c, err := tls.Dial("tcp", p.Address, &tls.Config{RootCAs: p.roots, NextProtos: []string{"http/1.1"}})
	if err != nil {
		return err
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(2 * time.Minute))
	if _, err := io.WriteString(c, strings.NewReplacer("$HOST", p.Address, "$TOKEN", p.token).Replace(spdyHead)+"Connection: Upgrade\r\n\r\n"); err != nil {
		return err
	}
	in := bufio.NewReader(c)
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		return err
	}
	if res.StatusCode != http.StatusSwitchingProtocols || res.Header.Get("X-Token") != token {
		return fmt.Errorf("%s as %s", res.Status, res.Header.Get("X-Token"))
	}
	for range 3 {
		if _, err := fmt.Fprintln(c, text); err != nil {
			return err
		}
		if got, err := in.ReadString('\n'); strings.TrimSpace(got) != strings.ToUpper(text) {
			return fmt.Errorf("%q: %w", got, err)
		}
	}
	return nil
}

// AD-01. Whatever identity the application's headers claim, the cluster sees the pod's ServiceAccount and nothing
// else. The adapter refuses impersonation.
//
// Guard: outbound in internal/apiproxy.
func TestAD01_TheClusterSeesThePod(t *testing.T) {
	o := newOrigin(t, nil)
	p := startPod(t, o, realToken)
	pairs := []string{"X-Remote-User", "admin", "X-Remote-Group", "system:masters", "X-Remote-Extra-Scopes", "all", "Cookie", "a=b", "X-Forwarded-User", "admin", "Proxy-Authorization", "Bearer x",
		"X-Stays", "yes", "Content-Type", "application/apply-patch+yaml", "Accept", "application/vnd.kubernetes.protobuf;as=Table", "Traceparent", "00-1-2-01"}
	for _, http2 := range []bool{false, true} {
		for _, method := range []string{"GET", "PATCH", "DELETE", "POST", "PUT"} {
			n := len(o.arrived())
			res, err := p.client(t, http2).Do(p.request(t, method, "/api/v1/namespaces/shop/configmaps/a?x=%20y&fieldManager=z", strings.NewReader("{\"a\": 1}\x00"), pairs...))
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			got := o.arrived()
			if res.StatusCode != http.StatusOK || len(got) != n+1 {
				t.Fatalf("%s: %s, %d arrived", method, res.Status, len(got)-n)
			}
			a := got[n]
			isPod(t, a, realToken)
			switch {
			case a.Method != method:
				t.Errorf("a.Method = %q, want %q", a.Method, method)
			case a.URI != "/api/v1/namespaces/shop/configmaps/a?x=%20y&fieldManager=z":
				t.Errorf("a.URI = %q, want %q", a.URI, "/api/v1/namespaces/shop/configmaps/a?x=%20y&fieldManager=z")
			case a.Body != "{\"a\": 1}\x00":
				t.Errorf("a.Body = %q, want %q", a.Body, "{\"a\": 1}\x00")
			case a.Header.Get("X-Stays") != "yes":
				t.Errorf(`a.Header.Get("X-Stays") != "yes"; method = %s, %+v`, method, a)
			case a.Header.Get("Content-Type") != "application/apply-patch+yaml":
				t.Errorf(`a.Header.Get("Content-Type") != "application/apply-patch+yaml"; method = %s, %+v`, method, a)
			case a.Header.Get("Accept") != "application/vnd.kubernetes.protobuf;as=Table":
				t.Errorf(`a.Header.Get("Accept") != "application/vnd.kubernetes.protobuf;as=Table"; method = %s, %+v`, method, a)
			case a.Header.Get("Accept-Encoding") != "":
				t.Errorf(`a.Header.Get("Accept-Encoding") != ""; method = %s, %+v`, method, a)
			}
			if res.Header.Get("Mca-Cluster") != "home" {
				t.Errorf("%s: answered by %q", method, res.Header.Get("Mca-Cluster"))
			}
		}
	}
	o.quietly(t, "impersonation", func() {
		res, err := p.client(t, true).Do(p.request(t, "GET", "/api/v1/pods", nil, "Impersonate-User", "admin"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("impersonation: %s", res.Status)
		}
	})
	o.quietly(t, "a token of its own", func() {
		res, err := p.client(t, true).Do(p.request(t, "POST", "/api/v1/namespaces/shop/serviceaccounts/app/token", strings.NewReader("{}")))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if res.StatusCode != http.StatusForbidden {
			t.Errorf("token request: %s", res.Status)
		}
	})
}

// AD-02. A caller without the pod's local token gets 401, as a Status, on every path and with every kind of request.
// The cluster receives nothing of it.
//
// Guard: checkToken in internal/apiproxy, podcreds.Credentials.ValidToken.
func TestAD02_TheLocalTokenIsRequired(t *testing.T) {
	o := newOrigin(t, nil)
	p := startPod(t, o, realToken)
	heads := map[string]string{
		"list": plainHead, "discovery": strings.Replace(plainHead, "/api/v1/pods", "/apis", 1), "version": strings.Replace(plainHead, "/api/v1/pods", "/version", 1),
		"health": strings.Replace(plainHead, "/api/v1/pods", "/healthz", 1), "watch": strings.Replace(plainHead, "/api/v1/pods", "/api/v1/pods?watch=1", 1),
		"create":    strings.Replace(plainHead, "GET", "POST", 1) + "Content-Length: 0\r\n",
		"websocket": wsHead + "Connection: Upgrade\r\n", "spdy": spdyHead + "Connection: Upgrade\r\n",
	}
	right := "Authorization: Bearer $TOKEN\r\n"
	for name, credential := range map[string]string{
		"none": "", "empty": "Authorization: Bearer \r\n", "wrong": "Authorization: Bearer AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA\r\n",
		"the real one": "Authorization: Bearer " + realToken + "\r\n", "another scheme": "Authorization: Basic $TOKEN\r\n", "longer": "Authorization: Bearer $TOKENx\r\n", "two": right + right,
		"shorter": "Authorization: Bearer " + p.token[1:] + "\r\n", "a cookie": "Cookie: token=$TOKEN\r\n", "another field": "X-Authorization: Bearer $TOKEN\r\n",
		"a subprotocol": "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.$TOKEN\r\n",
	} {
		for kind, head := range heads {
			o.quietly(t, kind+", "+name, func() {
				status, body := p.rawStatus(t, strings.Replace(head, right, credential, 1)+"\r\n")
				var s struct {
					Kind, Status, Reason, Message string
					Code                          int
				}
				switch err := json.Unmarshal([]byte(body), &s); {
				case status != http.StatusUnauthorized:
					t.Errorf("%s, %s: status: status = %v, want %v; body = %s", kind, name, status, http.StatusUnauthorized, body)
				case err != nil:
					t.Errorf("%s, %s: status: %v; body = %s", kind, name, err, body)
				case s.Kind != "Status":
					t.Errorf("%s, %s: status: s.Kind = %q, want %q; body = %s", kind, name, s.Kind, "Status", body)
				case s.Code != 401:
					t.Errorf("%s, %s: status: s.Code = %v, want 401; body = %s", kind, name, s.Code, body)
				case s.Reason != "Unauthorized":
					t.Errorf("%s, %s: status: s.Reason = %q, want %q; body = %s", kind, name, s.Reason, "Unauthorized", body)
				case !strings.HasPrefix(s.Message, "mca: "):
					t.Errorf("%s, %s: status: s.Message = %q does not start with %q; body = %s", kind, name, s.Message, "mca: ", body)
				}
			})
		}
	}
	o.quietly(t, "in the query", func() {
		if status, _ := p.rawStatus(t, strings.Replace(strings.Replace(plainHead, right, "", 1), "/pods", "/pods?token=$TOKEN&access_token=$TOKEN", 1)+"\r\n"); status != http.StatusUnauthorized {
			t.Errorf("token in the query: status %d", status)
		}
	})
	// Law 4, for a caller with the token: host names and cross-site requests.
	for name, text := range map[string]string{
		"another host": strings.Replace(plainHead, "$HOST", "evil.example", 1), "another port": strings.Replace(plainHead, "$HOST", "127.0.0.1:1", 1),
		"another site": plainHead + "Origin: https://evil.example\r\n", "a page's fetch": plainHead + "Sec-Fetch-Site: cross-site\r\n", "no host": strings.Replace(plainHead, "$HOST", "", 1),
	} {
		o.quietly(t, name, func() {
			if status, body := p.rawStatus(t, text+"\r\n"); status != http.StatusMisdirectedRequest && status != http.StatusForbidden {
				t.Errorf("%s: status %d: %s", name, status, body)
			}
		})
	}
}

// AD-03. The real token is nowhere where the application can read it: its mount, the adapter's answers, errors, debug
// paths, log at the highest level, arguments and environment. Only the adapter's own user can read the adapter's
// files. (Injection refuses shareProcessNamespace; an attack of injection covers that.)
//
// Guard: the types Token and secret, which never print their value; podface's file modes.
func TestAD03_TheRealTokenIsNotToBeFound(t *testing.T) {
	var answers atomic.Int64
	o := newOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		if answers.Add(1)%3 == 0 {
			w.WriteHeader(http.StatusUnauthorized)
			return
		}
		w.WriteHeader(http.StatusInternalServerError)
	})
	p := startPod(t, o, realToken)
	var seen bytes.Buffer
	for _, text := range []string{plainHead, wsHead + "Connection: Upgrade\r\n", strings.Replace(plainHead, "/pods", "/pods?token="+"x", 1), strings.Replace(plainHead, "GET", "BREW", 1),
		strings.Replace(plainHead, "/api/v1/pods", "/debug/pprof/heap", 1), strings.Replace(plainHead, "$TOKEN", realToken, 1), plainHead} {
		c, in := p.raw(t, strings.Replace(text, "\r\n", "\r\nConnection: close\r\n", 1)+"\r\n")
		if b, err := io.ReadAll(in); len(b) == 0 {
			t.Errorf("no answer: %v", err)
		} else {
			seen.Write(b)
		}
		c.Close()
	}
	for _, path := range []string{"/healthz", "/readyz?verbose", "/debug/clusters", "/debug/pprof/", "/metrics", "/debug/config", "/../state/identity.pem"} {
		r, err := http.NewRequestWithContext(t.Context(), "GET", "http://"+p.Admin+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		if strings.HasPrefix(path, "/debug/clusters") {
			res, err := http.DefaultClient.Do(r)
			if err != nil || res.StatusCode != http.StatusUnauthorized {
				t.Errorf("%s without the token: %v, %v", path, res, err)
			} else {
				res.Body.Close()
			}
		}
		r.Header.Set("Authorization", "Bearer "+p.token)
		res, err := http.DefaultClient.Do(r)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(&seen, res.Body)
		res.Body.Close()
	}
	seen.WriteString(p.Output())
	for _, entry := range []string{"environ", "cmdline"} {
		if b, err := os.ReadFile(fmt.Sprintf("/proc/%d/%s", p.PID(), entry)); err == nil {
			seen.Write(b)
		}
	}
	err := filepath.WalkDir(p.Share, func(path string, d fs.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		b, err := os.ReadFile(path)
		seen.Write(b)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	if seen.Len() < 1000 || !bytes.Contains(seen.Bytes(), []byte(p.token)) {
		t.Fatal("this test has searched nothing")
	}
	for _, canary := range []string{realToken, "real-service-account-token-canary"} {
		if i := bytes.Index(seen.Bytes(), []byte(canary)); i >= 0 {
			t.Errorf("the real token is readable: …%s…", seen.Bytes()[max(0, i-200):min(seen.Len(), i+60)])
		}
	}
	if strings.Contains(p.Output(), p.token) {
		t.Error("the local token is in the log")
	}
	entries, err := os.ReadDir(p.State)
	if err != nil || len(entries) == 0 {
		t.Fatalf("the adapter's files: %v", err)
	}
	for _, e := range entries {
		if i, err := e.Info(); err != nil || i.Mode().Perm()&0o077 != 0 {
			t.Errorf("%s has the mode %v: %v", e.Name(), i.Mode(), err)
		}
	}
	if _, err := os.Stat(filepath.Join(p.Share, "identity.pem")); err == nil {
		t.Error("the application can read the key of the certificate authority")
	}
}

// AD-09. The token and the certificate authority change during a watch. The watch continues, and the next request
// uses the new values. Clients that read the adapter's files once keep working after its container restarts.
//
// Guard: credential in internal/apiproxy; podcreds.Open keeps its state over restarts.
func TestAD09_RotationAndRestart(t *testing.T) {
	next := make(chan string)
	serve := func(w http.ResponseWriter, r *http.Request) {
		if !r.URL.Query().Has("watch") {
			io.WriteString(w, r.Header.Get("Authorization"))
			return
		}
		http.NewResponseController(w).Flush()
		for {
			select {
			case <-r.Context().Done():
				return
			case event := <-next:
				io.WriteString(w, event+"\n")
				http.NewResponseController(w).Flush()
			}
		}
	}
	ca, key, file := authority(t)
	pair := leafOf(t, ca, key, "127.0.0.1", time.Now().Add(time.Hour))
	var mu sync.Mutex
	o := &recordingCluster{CA: file}
	o.listen(t, &tls.Config{Certificates: []tls.Certificate{pair}, GetConfigForClient: func(*tls.ClientHelloInfo) (*tls.Config, error) {
		mu.Lock()
		defer mu.Unlock()
		return &tls.Config{Certificates: []tls.Certificate{pair}, NextProtos: []string{"h2", "http/1.1"}}, nil
	}}, serve)
	p := startPod(t, o, "token-1")
	hc := p.client(t, true)
	who := func(want string) {
		t.Helper()
		res, err := hc.Do(p.request(t, "GET", "/api/v1/pods", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		if b, err := io.ReadAll(res.Body); err != nil || string(b) != "Bearer "+want {
			t.Errorf("%s: %q instead of %s: %v", res.Status, b, want, err)
		}
	}
	watch, err := p.client(t, true).Do(p.request(t, "GET", "/api/v1/pods?watch=1", nil))
	if err != nil {
		t.Fatal(err)
	}
	defer watch.Body.Close()
	in := bufio.NewReader(watch.Body)
	event := func(text string) {
		t.Helper()
		select {
		case next <- text:
		case <-time.After(time.Minute):
			t.Fatal("the watch has ended at the origin")
		}
		if got, err := in.ReadString('\n'); got != text+"\n" {
			t.Errorf("the watch: %q, %v", got, err)
		}
	}
	replace := func(name, content string) {
		t.Helper()
		tmp := filepath.Join(p.Account, "."+name)
		if err := errors.Join(os.WriteFile(tmp, []byte(content), 0o600), os.Rename(tmp, filepath.Join(p.Account, name))); err != nil {
			t.Fatal(err)
		}
	}
	who("token-1")
	event("one")
	replace("token", "token-2\n")
	who("token-2")
	event("two")
	ca2, key2, file2 := authority(t)
	mu.Lock()
	pair = leafOf(t, ca2, key2, "127.0.0.1", time.Now().Add(time.Hour))
	mu.Unlock()
	replace("ca.crt", string(file2))
	who("token-2")
	event("three")

	old := p.token
	before, err := os.ReadFile(filepath.Join(p.Share, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	p.Kill()
	if err := p.Start(t.Context()); err != nil {
		t.Fatal(err)
	}
	p.read(t)
	switch after, err := os.ReadFile(filepath.Join(p.Share, "ca.crt")); {
	case err != nil:
		t.Errorf("after a restart: another authority or token: %v", err)
	case !bytes.Equal(before, after):
		t.Errorf("after a restart: another authority or token: before = %q, want %q", before, after)
	case p.token != old:
		t.Errorf("after a restart: another authority or token: p.token = %q, want %q", p.token, old)
	}
	who("token-2") // with the client and the root certificates from before the restart
}
