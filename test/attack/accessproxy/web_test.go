package accessproxy

import (
	"net/http"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/testkit/proxytest"
)

// PX-08. The proxy upgrades only to websocket and SPDY/3.1, and only requests for streams. The target of a request is a
// path.
//
// Guard: checkForm in internal/accessproxy, apiproxy.CheckTarget and apiproxy.UpgradeOf.
func TestPX08_OddTargetsAndUpgrades(t *testing.T) {
	e := start(t, nil)
	const auth = "Authorization: Bearer session.default\r\n"
	line := func(first string) string { return first + " HTTP/1.1\r\nHost: $HOST\r\n" + auth + "\r\n" }
	exec := "GET /api/v1/namespaces/shop/pods/app/exec?command=id HTTP/1.1\r\nHost: $HOST\r\n" + auth
	upstream := e.API.URL.Host
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
		"absolute form":            line("GET https://" + upstream + "/api/v1/pods"),
		"absolute form of oneself": line("GET https://$HOST/api/v1/pods"),
		"userinfo":                 line("GET https://admin:x@$HOST/api/v1/pods"),
		"another scheme":           line("GET ftp://$HOST/api"),
		"two slashes":              line("GET //evil.example/api"),
		"two slashes in a session": line("GET /s/deploy//evil.example/api"),
		"CONNECT":                  "CONNECT " + upstream + " HTTP/1.1\r\nHost: $HOST\r\n" + auth + "\r\n",
		"CONNECT of a path":        line("CONNECT /api/v1/pods"),
		"asterisk":                 line("OPTIONS *"),
		"HTTP/2 by preface":        "PRI * HTTP/2.0\r\n\r\nXX\r\n\r\n",
	} {
		e.unparsed(t, name, text)
	}
	for name, host := range map[string]string{"userinfo in Host": "admin@$HOST", "another host": upstream, "no host": "", "a zone": "[fe80::1%25eth0]"} {
		text := strings.Replace(plainHead, "Host: $HOST", "Host: "+host, 1) + "\r\n"
		e.API.Quietly(t, name, func() {
			if status, body := e.RawStatus(t, aliceAt, text); status != http.StatusBadRequest && status != http.StatusMisdirectedRequest {
				t.Errorf("%s: status %d, want 400 or 421: %s", name, status, body)
			}
		})
	}
}

// PX-10. The proxy refuses a path that the API server could read differently, with and without a session in it. It
// forwards an accepted path unchanged and records what it read. (TestPX10 of the adapter and a differential test in the
// testbed prove that both read it the same.)
//
// Guard: readSession, parse and checkSpelling in internal/accessproxy; apiproxy.ParseRequest.
func TestPX10_PathsThatTwoReadersReadInTwoWays(t *testing.T) {
	e := start(t, nil)
	e.Signins.Login(proxytest.Person("alice@example.com", "alice-laptop"), "deploy", 2*3600e9)
	request := func(method, prefix, path string) string {
		session := "default"
		if prefix != "" {
			session = strings.TrimPrefix(prefix, "/s/")
		}
		return method + " " + prefix + path + " HTTP/1.1\r\nHost: $HOST\r\nConnection: close\r\nAuthorization: Bearer session." + session + "\r\n\r\n"
	}
	for _, prefix := range []string{"", "/s/deploy"} {
		for _, path := range []string{
			"/api/v1/namespaces/shop/pods/%2e%2e", "/api/v1/namespaces/shop/../kube-system/secrets", "/api/v1/namespaces/shop%2Fkube-system/secrets", "/api/v1/namespaces/shop/pods/a%2Fexec",
			"/api/v1//pods", "/api//v1/pods", "/api/v1/namespaces/shop/pods/app;x=y", "/api/v1/namespaces/shop/pods/app%5Cexec", "/api/v1/pods/%00", "/api/v1/pods/%252e", "/%2e/api/v1/pods",
			"/api/v1/pods?watch=1&watch=0", "/api/v1/pods?fieldSelector=metadata.name=a&fieldSelector=metadata.name=b", "/api/v1/pods?x=%zz", "/api/v1/pods?watch=1;x", "/api/v1/pods?%77atch=1&watch=0",
			"/api/v1/namespaces/shop%2f\"/pods", "/api/v1/namespaces/shop/pods/a%2fb|c",
		} {
			e.refused(t, prefix+path, e.raw(t, request("GET", prefix, path)), http.StatusBadRequest)
		}
		for _, x := range []struct {
			method, path string
			want         map[string]string
		}{
			{"GET", "/api/v1/namespaces/shop/pods/app/Exec", map[string]string{"verb": "get", "resource": "pods", "subresource": "Exec", "namespace": "shop", "name": "app"}},
			{"GET", "/api/v1/pods?watch=TRUE", map[string]string{"verb": "watch", "resource": "pods"}},
			{"GET", "/api/v1/pods?watch=0", map[string]string{"verb": "list", "resource": "pods"}},
			{"GET", "/api/v1/pods?limit=5&continue=a%2Bb%3D", map[string]string{"verb": "list", "resource": "pods"}},
			{"GET", "/api/v1/namespaces/shop/secrets?fieldSelector=metadata.name%3Da", map[string]string{"verb": "list", "resource": "secrets", "namespace": "shop", "name": "a"}},
			{"GET", "/apis/apps/v1/deployments?labelSelector=a%20in%20%28b%2Cc%29", map[string]string{"verb": "list", "group": "apps", "resource": "deployments"}},
			{"DELETE", "/api/v1/namespaces/shop/pods", map[string]string{"verb": "deletecollection", "resource": "pods", "namespace": "shop"}},
			{"POST", "/api/v1/namespaces/shop/pods/app/eviction?dryRun=All", map[string]string{"verb": "create", "resource": "pods", "subresource": "eviction", "namespace": "shop", "name": "app"}},
			{"GET", "/healthz", map[string]string{"verb": "get", "path": "/healthz"}},
			{"GET", "/openapi/v3/", map[string]string{"verb": "get", "path": "/openapi/v3/"}},
		} {
			what := x.method + " " + prefix + x.path
			n := e.API.Count()
			c, in := e.Raw(t, aliceAt, request(x.method, prefix, x.path))
			res, err := http.ReadResponse(in, nil)
			c.Close()
			got := e.API.Arrived(n)
			if err != nil || len(got) != 1 {
				t.Errorf("%s: %d arrived, %v", what, len(got), err)
				continue
			}
			if got[0].URI != x.path || got[0].Method != x.method {
				t.Errorf("%s: arrived as %s %s", what, got[0].Method, got[0].URI)
			}
			args := e.entryOf(t, res.Header.Get("Audit-Id")).Args
			read := map[string]string{}
			for _, name := range []string{"verb", "group", "resource", "subresource", "namespace", "name", "path"} {
				if v, ok := args[name]; ok {
					read[name] = v
				}
			}
			if diff := cmp.Diff(x.want, read); diff != "" {
				t.Errorf("%s: recorded (-want +got):\n%s", what, diff)
			}
		}
	}
}

// browser is a set of fields that a browser sends for the page of another site.
type browser struct {
	name   string
	fields []string
}

var pages = []browser{
	{"fetch", []string{"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"}},
	{"fetch without CORS", []string{"Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "no-cors"}},
	{"a page of the same domain", []string{"Origin", "https://other.example.ts.net", "Sec-Fetch-Site", "same-site"}},
	{"a sandboxed frame", []string{"Origin", "null"}},
	{"an old browser", []string{"Origin", "https://evil.example"}},
	{"another port of the proxy's host", []string{"Origin", "https://" + proxytest.Name + ":8443"}},
	{"two origins", []string{"Origin", "https://" + proxytest.Name, "Origin", "https://evil.example"}},
}

// PX-25. A web page in the browser of a person who is signed in reads nothing and changes nothing through the proxy: by
// fetch, by a WebSocket, or under a name that it has rebound to the proxy's address.
//
// Guard: checkForm in internal/accessproxy, on every method; readSession, because no page can set the header on a
// WebSocket.
func TestPX25_WebPages(t *testing.T) {
	e := start(t, nil)
	for _, page := range pages {
		for _, method := range []string{"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"} {
			for _, authorization := range []string{"Authorization: Bearer session.default\r\n", ""} {
				text := method + " /api/v1/namespaces/shop/secrets HTTP/1.1\r\nHost: $HOST\r\nConnection: close\r\nContent-Length: 0\r\n" + authorization + fieldsOf(page.fields) + "\r\n"
				what := page.name + ", " + method
				e.API.Quietly(t, what, func() {
					c, in := e.Raw(t, aliceAt, text)
					defer c.Close()
					res, err := http.ReadResponse(in, &http.Request{Method: method})
					if err != nil {
						t.Fatal(err)
					}
					if res.StatusCode != http.StatusForbidden {
						t.Errorf("%s: %s, want 403", what, res.Status)
					}
					for name := range res.Header {
						if strings.HasPrefix(name, "Access-Control-") {
							t.Errorf("%s: the response has %s", what, name)
						}
					}
				})
			}
		}
		for _, k := range kinds[1:] {
			e.refused(t, page.name+", "+k.name, e.raw(t, k.head+fieldsOf(page.fields)+"Connection: Upgrade\r\n\r\n"), http.StatusForbidden)
		}
	}
	t.Run("a WebSocket without the header", func(t *testing.T) { // an Origin of the proxy itself, as after a rebinding
		head := strings.Replace(wsHead, "Authorization: Bearer session.default\r\n", "", 1) + "Origin: https://$HOST\r\nConnection: Upgrade\r\n"
		for _, more := range []string{"", "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c2Vzc2lvbi5kZWZhdWx0\r\n", "Cookie: session=default\r\n"} {
			e.refused(t, more, e.raw(t, head+more+"\r\n"), http.StatusForbidden)
		}
	})
	t.Run("a rebound name", func(t *testing.T) {
		for _, host := range []string{"evil.example", "evil.example:443", "localhost", "127.0.0.1", "0.0.0.0", "[::1]", proxytest.Name + ".evil.example", "evil." + proxytest.Name, "east-api.evil.example"} {
			for _, k := range kinds {
				text := strings.Replace(k.head, "$HOST", host, 1) + "Origin: https://" + host + "\r\nSec-Fetch-Site: same-origin\r\nConnection: " + k.connection + "\r\n\r\n"
				e.refused(t, host+", "+k.name, e.raw(t, text), http.StatusMisdirectedRequest)
			}
			e.refused(t, host+", HTTP/2", e.h2(t, "GET", "/api/v1/pods", "Host", host, "Origin", "https://"+host), http.StatusMisdirectedRequest)
		}
	})
	t.Run("real", attackPages)
	for _, host := range []string{"$HOST", "$HOST:443", "EAST-API", "$HOST.", "100.64.0.9"} { // control: the proxy's own names
		text := strings.Replace(plainHead, "$HOST", host, 1) + "Origin: https://" + host + "\r\nConnection: close\r\n\r\n"
		if status, body := e.RawStatus(t, aliceAt, text); status != http.StatusOK {
			t.Errorf("%s: status %d: %s", host, status, body)
		}
	}
}
