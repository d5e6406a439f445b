package adapter

import (
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// PX-01. Header fields that Connection nominates cannot remove the identity that the adapter sets, and are not
// forwarded. This applies to plain requests and to both kinds of upgrade. The adapter refuses a request with two
// lengths.
//
// Guard: outbound in internal/apiproxy, one function for all three kinds of request; upstream's send sets the
// credential after it.
func TestPX01_NominatedHeadersRemoveNoIdentity(t *testing.T) {
	o := newOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			switching(w, r)
			return
		}
		io.WriteString(w, "{}")
	})
	p := startPod(t, o, realToken)
	for _, name := range []string{"Authorization", "authorization", "Impersonate-User", "Impersonate-Group", "X-Forwarded-For", "Content-Length", "Transfer-Encoding", "X-Mine", "Host"} {
		for kind, head := range map[string]string{"plain": plainHead, "websocket": wsHead, "spdy": spdyHead} {
			connection, want := name, http.StatusOK
			if kind != "plain" {
				connection, want = "Upgrade, "+name, http.StatusSwitchingProtocols
			}
			before := len(o.arrived())
			status, _ := func() (int, string) {
				c, in := p.raw(t, head+"X-Mine: secret\r\nX-Forwarded-For: 10.0.0.1\r\nConnection: "+connection+"\r\n\r\n")
				defer c.Close()
				res, err := http.ReadResponse(in, nil)
				if err != nil {
					return 0, err.Error()
				}
				return res.StatusCode, ""
			}()
			got := o.arrived()
			if status != want || len(got) != before+1 {
				t.Errorf("%s, Connection: %s: status %d, %d arrived", kind, connection, status, len(got)-before)
				continue
			}
			a := got[before]
			isPod(t, a, realToken)
			if name == "X-Mine" && a.Header.Get("X-Mine") != "" || name != "X-Mine" && a.Header.Get("X-Mine") != "secret" {
				t.Errorf("%s, Connection: %s: X-Mine arrived as %q", kind, connection, a.Header.Get("X-Mine"))
			}
			if c := a.Header["Connection"]; kind == "plain" && len(c) > 0 || kind != "plain" && strings.Join(c, ",") != "Upgrade" {
				t.Errorf("%s, Connection: %s: arrived with Connection: %q", kind, connection, c)
			}
			if a.Host != o.host() {
				t.Errorf("%s, Connection: %s: arrived for %q", kind, connection, a.Host)
			}
		}
	}
	post := strings.Replace(plainHead, "GET", "POST", 1)
	for name, text := range map[string]string{
		"two lengths":           post + "Content-Length: 2\r\nContent-Length: 3\r\n\r\n{}",
		"length and chunks":     post + "Content-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"nominated, and both":   post + "Connection: Content-Length\r\nContent-Length: 2\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
		"another encoding":      post + "Transfer-Encoding: gzip, chunked\r\n\r\n0\r\n\r\n",
		"upgrade with a body":   strings.Replace(spdyHead, "Content-Length: 0", "Content-Length: 2", 1) + "Connection: Upgrade\r\n\r\n{}",
		"upgrade with chunks":   strings.Replace(spdyHead, "Content-Length: 0", "Transfer-Encoding: chunked", 1) + "Connection: Upgrade\r\n\r\n0\r\n\r\n",
		"folded header":         plainHead + "X-A: b\r\n Authorization: Bearer x\r\n\r\n",
		"space before a colon":  plainHead + "Impersonate-User : admin\r\n\r\n",
		"bare line feed":        plainHead + "X-A: b\nImpersonate-User: admin\r\n\r\n",
		"authorization, twice":  plainHead + "Authorization: Bearer x\r\n\r\n",
		"the request line's LF": "GET /api/v1/pods HTTP/1.1\nHost: $HOST\r\n\r\n",
	} {
		o.quietly(t, name, func() {
			if status, body := p.rawStatus(t, text); status != http.StatusBadRequest && !(name == "authorization, twice" && status == http.StatusUnauthorized) {
				t.Errorf("%s: status %d: %s", name, status, body)
			}
		})
	}
	// A trailer arrives after the body, too late to refuse the request before the body. The adapter then aborts the
	// request, and the cluster receives no complete one.
	n := len(o.arrived())
	if status, body := p.rawStatus(t, post+"Transfer-Encoding: chunked\r\nTrailer: Authorization\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\n\r\n"); status != 0 && status != http.StatusBadRequest {
		t.Errorf("a trailer: status %d: %s", status, body)
	}
	for _, a := range o.arrived()[n:] {
		if isPod(t, a, realToken); len(a.Trailer) > 0 || a.Body == "{}" {
			t.Errorf("a trailer: arrived whole: %+v", a)
		}
	}
}

// PX-02. The adapter refuses an impersonation request before the first byte goes upstream, in every spelling of the
// header. The request never runs with the pod's own identity.
//
// Guard: checkImpersonation in internal/apiproxy.
func TestPX02_ImpersonationIsRefusedNotDropped(t *testing.T) {
	o := newOrigin(t, nil)
	p := startPod(t, o, realToken)
	for _, pairs := range [][]string{
		{"Impersonate-User", "admin"}, {"impersonate-user", "admin"}, {"Impersonate-User", "admin", "Impersonate-User", "other"}, {"Impersonate-User", ""},
		{"Impersonate-Group", "system:masters"}, {"Impersonate-Uid", "0"}, {"Impersonate-Extra-Scopes", "all"}, {"Impersonate_User", "admin"}, {"IMPERSONATE_GROUP", "x"},
		{"Impersonate-Extra-%2F", "x"}, {"Connection", "Impersonate-User", "Impersonate-User", "admin"},
	} {
		var fields strings.Builder
		for i := 0; i < len(pairs); i += 2 {
			fmt.Fprintf(&fields, "%s: %s\r\n", pairs[i], pairs[i+1])
		}
		for kind, head := range map[string]string{"plain": plainHead, "websocket": wsHead + "Connection: Upgrade\r\n", "spdy": spdyHead + "Connection: Upgrade\r\n"} {
			o.quietly(t, kind+" "+fields.String(), func() {
				if status, body := p.rawStatus(t, head+fields.String()+"\r\n"); status != http.StatusForbidden && status != http.StatusBadRequest {
					t.Errorf("%s with %q: status %d: %s", kind, fields.String(), status, body)
				}
			})
		}
		if pairs[0] == "Connection" {
			continue // not a valid HTTP/2 field
		}
		o.quietly(t, "HTTP/2 "+fields.String(), func() {
			res, err := p.client(t, true).Do(p.request(t, "GET", "/api/v1/pods", nil, pairs...))
			if err != nil {
				t.Errorf("HTTP/2 with %q: %v", fields.String(), err)
				return
			}
			defer res.Body.Close()
			if res.StatusCode != http.StatusForbidden {
				t.Errorf("HTTP/2 with %q: %s", fields.String(), res.Status)
			}
		})
	}
}

// PX-03. While the adapter has no valid credential, nothing goes upstream: not anonymously, not with the previous
// credential, and not with the application's. After the credential is restored, the next request goes upstream.
//
// Guard: credential in internal/apiproxy does not fall back to an earlier credential, and is read before a
// connection is chosen.
func TestPX03_NoCredentialNoRequest(t *testing.T) {
	o := newOrigin(t, nil)
	p := startPod(t, o, realToken)
	hc := p.client(t, true)
	get := func() (int, string) {
		res, err := hc.Do(p.request(t, "GET", "/api/v1/pods", nil))
		if err != nil {
			t.Fatal(err)
		}
		defer res.Body.Close()
		b, err := io.ReadAll(res.Body)
		if err != nil {
			t.Fatal(err)
		}
		return res.StatusCode, string(b)
	}
	if status, body := get(); status != http.StatusOK {
		t.Fatalf("status %d: %s", status, body)
	}
	token, ca := filepath.Join(p.Account, "token"), filepath.Join(p.Account, "ca.crt")
	for name, harm := range map[string]func() error{
		"token empty":    func() error { return os.WriteFile(token, nil, 0o600) },
		"token a blank":  func() error { return os.WriteFile(token, []byte(" \n"), 0o600) },
		"token two":      func() error { return os.WriteFile(token, []byte("one\r\nX-Remote-User: admin"), 0o600) },
		"token gone":     func() error { return os.Remove(token) },
		"token a folder": func() error { return errors.Join(os.Remove(token), os.Mkdir(token, 0o700)) },
		"ca empty":       func() error { return os.WriteFile(ca, nil, 0o600) },
		"ca gone":        func() error { return os.Remove(ca) },
	} {
		if err := harm(); err != nil {
			t.Fatal(err)
		}
		n := len(o.arrived())
		for _, head := range []string{plainHead + "\r\n", wsHead + "Connection: Upgrade\r\n\r\n"} {
			status, body := p.rawStatus(t, head)
			if status != http.StatusServiceUnavailable || !strings.Contains(body, `"message":"mca: credential for cluster`) {
				t.Errorf("%s: status %d: %s", name, status, body)
			}
		}
		if got := o.arrived(); len(got) != n {
			t.Errorf("%s: it went upstream: %+v", name, got[n:])
		}
		os.RemoveAll(token)
		if err := errors.Join(os.WriteFile(token, []byte(realToken), 0o600), os.WriteFile(ca, o.CA, 0o600)); err != nil {
			t.Fatal(err)
		}
		if status, body := get(); status != http.StatusOK {
			t.Errorf("after %s: status %d: %s", name, status, body)
		}
	}
}

// PX-06. When the cluster does not switch protocols, the adapter closes the connection after its answer. Bytes that
// the client sent after its request never go upstream.
//
// Guard: switchProtocols and relay in internal/apiproxy: they take over the connection only after a 101, and
// close it after any other answer.
func TestPX06_RefusedUpgradeEndsTheConnection(t *testing.T) {
	for _, status := range []int{200, 400, 403, 500} {
		for kind, head := range map[string]string{"websocket": wsHead, "spdy": spdyHead} {
			t.Run(fmt.Sprintf("%s %d", kind, status), func(t *testing.T) {
				o := newOrigin(t, func(w http.ResponseWriter, r *http.Request) {
					w.WriteHeader(status)
					io.WriteString(w, "not today")
				})
				p := startPod(t, o, realToken)
				second := "DELETE /api/v1/namespaces/shop HTTP/1.1\r\nHost: " + o.host() + "\r\nAuthorization: Bearer $TOKEN\r\n\r\n"
				c, in := p.raw(t, head+"Connection: Upgrade\r\n\r\n"+second)
				res, err := http.ReadResponse(in, nil)
				if err != nil {
					t.Fatal(err)
				}
				body, err := io.ReadAll(res.Body)
				switch {
				case err != nil:
					t.Error(err)
				case res.StatusCode != status:
					t.Errorf("res.StatusCode = %v, want %v", res.StatusCode, status)
				case string(body) != "not today":
					t.Errorf("string(body) = %q, want %q", string(body), "not today")
				}
				io.WriteString(c, strings.ReplaceAll(second, "$TOKEN", p.token)) // may fail, because the connection is closed
				if rest, err := io.ReadAll(in); len(rest) > 0 {
					t.Errorf("and then: %q, %v", rest, err)
				}
				if got := o.arrived(); len(got) != 1 || got[0].Method == "DELETE" {
					t.Errorf("arrived: %+v", got)
				}
			})
		}
	}
}

// PX-07. A redirect is passed on as an answer. The adapter never follows a redirect of a cluster, with any method or
// upgrade.
//
// Guard: upstream's send calls RoundTrip, which follows no redirect.
func TestPX07_RedirectsAreNotFollowed(t *testing.T) {
	elsewhere := newOrigin(t, nil)
	var o *recordingCluster
	o = newOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		code, to := http.StatusFound, elsewhere.URL+"/steal"
		fmt.Sscan(r.URL.Query().Get("code"), &code)
		if r.URL.Query().Has("own") {
			to = o.URL + "/api/v1/nodes?limit=1"
		}
		w.Header().Set("Location", to)
		w.WriteHeader(code)
	})
	p := startPod(t, o, realToken)
	elsewhere.quietly(t, "redirects", func() {
		for _, code := range []int{301, 302, 307, 308} {
			for _, http2 := range []bool{false, true} {
				for _, method := range []string{"GET", "POST"} {
					res, err := p.client(t, http2).Do(p.request(t, method, fmt.Sprintf("/api/v1/namespaces/shop/configmaps?code=%d", code), strings.NewReader("{}")))
					if err != nil {
						t.Fatal(err)
					}
					res.Body.Close()
					if res.StatusCode != code || res.Header.Get("Location") != elsewhere.URL+"/steal" {
						t.Errorf("%s %d: %s to %s", method, code, res.Status, res.Header.Get("Location"))
					}
				}
			}
			for _, head := range []string{wsHead, spdyHead} {
				head = strings.Replace(head, "command=id", fmt.Sprintf("command=id&code=%d", code), 1)
				if status, _ := p.rawStatus(t, head+"Connection: Upgrade\r\n\r\n"); status != code {
					t.Errorf("upgrade, %d: status %d", code, status)
				}
			}
		}
		// A redirect within the cluster: the client can follow it only through the adapter.
		res, err := p.client(t, true).Do(p.request(t, "GET", "/api/v1/pods?own=1", nil))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		if got := res.Header.Get("Location"); got != "/api/v1/nodes?limit=1" {
			t.Errorf("with its own host: %s", got)
		}
	})
}

// PX-08. The adapter upgrades only to websocket and SPDY/3.1, and only for streaming requests. A request target must
// be a path.
//
// Guard: checkForm and upgradeOf in internal/apiproxy, apiproxy.ParseRequest.
func TestPX08_OddTargetsAndUpgrades(t *testing.T) {
	o := newOrigin(t, nil)
	p := startPod(t, o, realToken)
	const auth = "Authorization: Bearer $TOKEN\r\n"
	line := func(first string) string { return first + " HTTP/1.1\r\nHost: $HOST\r\n" + auth + "\r\n" }
	exec := "GET /api/v1/namespaces/shop/pods/app/exec?command=id HTTP/1.1\r\nHost: $HOST\r\n" + auth
	for name, text := range map[string]string{
		"h2c":                      exec + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
		"h2c on a list":            plainHead + "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
		"settings alone":           plainHead + "HTTP2-Settings: AAMAAABkAARAAAAAAAIAAAAA\r\n\r\n",
		"two protocols":            exec + "Connection: Upgrade\r\nUpgrade: websocket, h2c\r\n\r\n",
		"two fields":               exec + "Connection: Upgrade\r\nUpgrade: websocket\r\nUpgrade: h2c\r\n\r\n",
		"unknown protocol":         exec + "Connection: Upgrade\r\nUpgrade: tailscale-control-protocol\r\n\r\n",
		"SPDY/2":                   exec + "Connection: Upgrade\r\nUpgrade: SPDY/2\r\n\r\n",
		"upgrade without word":     exec + "Upgrade: websocket\r\n\r\n",
		"websocket by POST":        strings.Replace(wsHead, "GET", "POST", 1) + "Connection: Upgrade\r\n\r\n",
		"upgrade of a list":        plainHead + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"upgrade of /version":      "GET /version HTTP/1.1\r\nHost: $HOST\r\n" + auth + "Connection: Upgrade\r\nUpgrade: websocket\r\n\r\n",
		"absolute form":            line("GET https://" + o.host() + "/api/v1/pods"),
		"absolute form of oneself": line("GET https://$HOST/api/v1/pods"),
		"userinfo":                 line("GET https://admin:x@$HOST/api/v1/pods"),
		"another scheme":           line("GET ftp://$HOST/api"),
		"two slashes":              line("GET //evil.example/api"),
		"CONNECT":                  "CONNECT " + o.host() + " HTTP/1.1\r\nHost: $HOST\r\n" + auth + "\r\n",
		"CONNECT of a path":        line("CONNECT /api/v1/pods"),
		"asterisk":                 line("OPTIONS *"),
		"HTTP/2 by preface":        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
	} {
		o.quietly(t, name, func() {
			if status, body := p.rawStatus(t, text); status != http.StatusBadRequest {
				t.Errorf("%s: status %d: %s", name, status, body)
			}
		})
	}
}

// PX-09. The API server resolves the path after /proxy: it arrives exactly as sent, and the adapter connects only to
// its cluster. The cluster's RBAC decides whether the pod may use it. (The proxy for people on the tailnet, which has
// separate verbs for these requests, does not exist yet.)
//
// Guard: apiproxy.ParseRequest keeps the rest of the path unchanged; upstream's send connects only to the cluster's host.
func TestPX09_ProxySubresources(t *testing.T) {
	o, bystander := newOrigin(t, nil), newOrigin(t, nil)
	p := startPod(t, o, realToken)
	bystander.quietly(t, "proxied", func() {
		for _, path := range []string{
			"/api/v1/namespaces/shop/services/https:web:443/proxy/a/%2e%2e/b?x=%3b;y&token=z",
			"/api/v1/namespaces/shop/services/web:80/proxy//double//slash/",
			"/api/v1/namespaces/shop/pods/app:8080/proxy/",
			"/api/v1/nodes/" + strings.ReplaceAll(bystander.host(), ":", "%3A") + "/proxy/metrics",
			"/api/v1/nodes/169.254.169.254/proxy/latest/meta-data",
		} {
			n := len(o.arrived())
			res, err := p.client(t, true).Do(p.request(t, "GET", path, nil))
			if err != nil {
				t.Fatal(err)
			}
			res.Body.Close()
			got := o.arrived()
			if len(got) != n+1 || got[n].URI != path {
				t.Errorf("%s: %s; arrived as %+v", path, res.Status, got[n:])
				continue
			}
			isPod(t, got[n], realToken)
		}
	})
	if log := p.Output(); !strings.Contains(log, `"subresource":"proxy"`) || strings.Contains(log, "token=z") {
		t.Error("the log must have the class and not the query")
	}
}

// PX-10. The adapter refuses a path that the API server could parse differently, and forwards an accepted path
// unchanged. (A differential test in the testbed, which links Kubernetes' own parser, proves that both parse it the
// same.)
//
// Guard: apiproxy.ParseRequest.
func TestPX10_PathsThatTwoReadersReadInTwoWays(t *testing.T) {
	o := newOrigin(t, nil)
	p := startPod(t, o, realToken)
	for _, path := range []string{
		"/api/v1/namespaces/shop/pods/%2e%2e", "/api/v1/namespaces/shop/../kube-system/secrets", "/api/v1/namespaces/shop%2Fkube-system/secrets", "/api/v1/namespaces/shop/pods/a%2Fexec",
		"/api/v1//pods", "/api//v1/pods", "/api/v1/namespaces/shop/pods/app;x=y", "/api/v1/namespaces/shop/pods/app%5Cexec", "/api/v1/pods/%00", "/api/v1/pods/%252e", "/%2e/api/v1/pods",
		"/api/v1/pods?watch=1&watch=0", "/api/v1/pods?fieldSelector=metadata.name=a&fieldSelector=metadata.name=b", "/api/v1/pods?x=%zz",
	} {
		o.quietly(t, path, func() {
			if status, body := p.rawStatus(t, "GET "+path+" HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer $TOKEN\r\n\r\n"); status != http.StatusBadRequest {
				t.Errorf("%s: status %d: %s", path, status, body)
			}
		})
	}
	for _, path := range []string{"/api/v1/namespaces/shop/pods/app/Exec", "/api/v1/pods?watch=TRUE", "/api/v1/pods?limit=5&continue=a%2Bb%3D", "/apis/apps/v1/deployments?labelSelector=a%20in%20%28b%2Cc%29",
		"/api/v1/namespaces/shop/pods/app/eviction?dryRun=All", "/healthz", "/openapi/v3"} {
		n := len(o.arrived())
		if status, body := p.rawStatus(t, "GET "+path+" HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer $TOKEN\r\nConnection: close\r\n\r\n"); status != http.StatusOK {
			t.Errorf("%s: status %d: %s", path, status, body)
		}
		if got := o.arrived(); len(got) != n+1 || got[n].URI != path {
			t.Errorf("%s: arrived as %+v", path, got[n:])
		}
	}
}

// PX-11. No credential of the application goes upstream. The pod's credential goes only to a server that proves to be
// the cluster.
//
// Guard: outbound and checkToken in internal/apiproxy; upstream verifies servers only with the mounted
// authority, and no setting disables that.
func TestPX11_CredentialsStayWhereTheyBelong(t *testing.T) {
	t.Run("the application's", func(t *testing.T) {
		o := newOrigin(t, nil)
		p := startPod(t, o, realToken)
		ca, key, _ := authority(t)
		pair := leafOf(t, ca, key, "127.0.0.1", time.Now().Add(time.Hour))
		hc := p.client(t, false)
		hc.Transport.(*http.Transport).TLSClientConfig.Certificates = []tls.Certificate{pair}
		res, err := hc.Do(p.request(t, "GET", "/api/v1/pods", nil, "Proxy-Authorization", "Basic eDp5", "Cookie", "session=1", "X-Remote-User", "admin", "X_Remote_Group", "system:masters",
			"X-Forwarded-Client-Cert", "x", "Forwarded", "for=1.1.1.1", "Sec-Websocket-Protocol", "base64url.bearer.authorization.k8s.io.eA, v5.channel.k8s.io"))
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		got := o.arrived()
		if len(got) != 1 {
			t.Fatalf("%s: %+v", res.Status, got)
		}
		isPod(t, got[0], realToken)
	})
	ca, key, file := authority(t)
	other, otherKey, _ := authority(t)
	soon := time.Now().Add(time.Hour)
	for name, pair := range map[string]tls.Certificate{
		"another authority": leafOf(t, other, otherKey, "127.0.0.1", soon),
		"expired":           leafOf(t, ca, key, "127.0.0.1", time.Now().Add(-time.Minute)),
		"another name":      leafOf(t, ca, key, "127.0.0.2", soon),
	} {
		t.Run(name, func(t *testing.T) {
			o := &recordingCluster{CA: file}
			o.listen(t, &tls.Config{Certificates: []tls.Certificate{pair}}, switching)
			p := startPod(t, o, realToken)
			for _, text := range []string{plainHead + "\r\n", wsHead + "Connection: Upgrade\r\n\r\n"} {
				if status, body := p.rawStatus(t, text); status != http.StatusServiceUnavailable {
					t.Errorf("status %d: %s", status, body)
				}
			}
			if got := o.arrived(); len(got) > 0 {
				t.Errorf("arrived: %+v", got)
			}
		})
	}
}

// PX-13. Two pods send requests and upgrades over pooled connections to one cluster. Each gets its own answer, and
// each request carries the identity of its pod.
//
// Guard: each apiproxy.Upstream has its own credential and connections; requests share no state.
func TestPX13_NothingCrossesOver(t *testing.T) {
	o := newOrigin(t, func(w http.ResponseWriter, r *http.Request) {
		if r.Header.Get("Upgrade") != "" {
			switching(w, r)
			return
		}
		fmt.Fprintf(w, "%s %s", strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "), r.URL.Path)
	})
	const callers, each, upgrades = 8, 625, 50
	var wg sync.WaitGroup
	problems := make(chan error, 1000)
	say := func(format string, args ...any) {
		select {
		case problems <- fmt.Errorf(format, args...):
		default:
		}
	}
	for _, token := range []string{"token-of-one", "token-of-another"} {
		p := startPod(t, o, token)
		hc := p.client(t, true)
		for caller := range callers {
			wg.Go(func() {
				for i := range each {
					path := fmt.Sprintf("/api/v1/namespaces/%s/pods/p-%d-%d", token, caller, i)
					res, err := hc.Do(p.request(t, "GET", path, nil))
					if err != nil {
						say("%s: %v", path, err)
						return
					}
					b, err := io.ReadAll(res.Body)
					res.Body.Close()
					if err != nil || string(b) != token+" "+path {
						say("%s: %q, %v", path, b, err)
					}
				}
			})
		}
		for i := range upgrades {
			wg.Go(func() {
				if err := p.talk(token, fmt.Sprintf("hello %s %d", token, i)); err != nil {
					say("upgrade %d of %s: %v", i, token, err)
				}
			})
		}
	}
	wg.Wait()
	close(problems)
	for err := range problems {
		t.Error(err)
	}
	if n := len(o.arrived()); n != 2*(callers*each+upgrades) {
		t.Errorf("%d requests arrived of %d", n, 2*(callers*each+upgrades))
	}
}
