package accessproxy

import (
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/proxytest"
)

// PX-21. Whatever a client sends as a credential, as an identity or as an audit id is removed or refused. The API server
// sees one credential, which belongs to the caller's sign-in, and one audit id, which the client gets too.
//
// Guard: readSession, checkForm, header and checkImpersonation in internal/accessproxy.
func TestPX21_ForeignCredentials(t *testing.T) {
	e := start(t, nil)
	const head = "GET /api/v1/namespaces/shop/pods HTTP/1.1\r\nHost: $HOST\r\nConnection: close\r\n"
	t.Run("refused", func(t *testing.T) {
		for name, fields := range map[string]string{
			"none":                     "",
			"twice":                    "Authorization: Bearer session.default\r\nAuthorization: Bearer session.default\r\n",
			"twice, in two cases":      "Authorization: Bearer session.default\r\nAUTHORIZATION: Bearer " + mark + "\r\n",
			"a token":                  "Authorization: Bearer " + mark + "\r\n",
			"basic":                    "Authorization: Basic c2Vzc2lvbi5kZWZhdWx0Og==\r\n",
			"no name":                  "Authorization: Bearer session.\r\n",
			"no scheme":                "Authorization: session.default\r\n",
			"with an underscore":       "X_Authorization: Bearer session.default\r\n",
			"as a subprotocol":         "Sec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.c2Vzc2lvbi5kZWZhdWx0\r\n",
			"as proxy authorization":   "Proxy-Authorization: Bearer session.default\r\n",
			"as a cookie":              "Cookie: Authorization=Bearer session.default\r\n",
			"two tokens in one":        "Authorization: Bearer session.default, Bearer " + mark + "\r\n",
			"a name with a line break": "Authorization: Bearer session.a%0ab\r\n",
		} {
			e.refused(t, name, e.raw(t, head+fields+"\r\n"), http.StatusForbidden, http.StatusBadRequest)
		}
		for _, query := range []string{"access_token=" + mark, "ACCESS_TOKEN=x", "a=b&access%5Ftoken=x", "%61ccess_token=x", "a=b;access_token=x", "access_token"} {
			for _, path := range []string{"/api/v1/pods", "/healthz", "/api/v1/namespaces/shop/services/web/proxy/"} {
				text := "GET " + path + "?" + query + " HTTP/1.1\r\nHost: $HOST\r\nConnection: close\r\nAuthorization: Bearer session.default\r\n\r\n"
				e.refused(t, path+"?"+query, e.raw(t, text), http.StatusBadRequest)
			}
		}
		e.refused(t, "in the query only", e.raw(t, "GET /api/v1/pods?access_token=session.default HTTP/1.1\r\nHost: $HOST\r\nConnection: close\r\n\r\n"),
			http.StatusForbidden, http.StatusBadRequest)
	})
	t.Run("removed", func(t *testing.T) {
		fields := ""
		for _, name := range []string{"X-Remote-User", "X_Remote_User", "x-remote-group", "X-Remote-Extra-Scopes", "Tailscale-User-Login", "Tailscale_User_Login", "tailscale-app-capabilities",
			"Forwarded", "X-Forwarded-For", "X-Forwarded-Host", "X_Forwarded_For", "X-Real-Ip", "x_real_ip", "Audit-ID", "audit-id", "Audit_ID", "Cookie", "Proxy-Authorization", "Tailplane-Pod-Token"} {
			fields += name + ": " + mark + "\r\n"
		}
		bearer := "base64url.bearer.authorization.k8s.io." + mark
		for _, k := range kinds {
			n := e.API.Count()
			head := strings.Replace(k.head, "Sec-WebSocket-Protocol: ", "Sec-WebSocket-Protocol: "+bearer+", "+strings.ToUpper(bearer)+", ", 1)
			c, in := e.Raw(t, aliceAt, head+fields+"Connection: "+k.connection+"\r\n\r\n")
			res, err := http.ReadResponse(in, nil)
			c.Close()
			if err != nil {
				t.Fatal(err)
			}
			got := e.API.Arrived(n)
			if res.StatusCode != k.status || len(got) != 1 {
				t.Errorf("%s: %s, %d arrived, want status %d", k.name, res.Status, len(got), k.status)
				continue
			}
			e.isFrom(t, k.name, got[0], e.alice)
			if id := res.Header.Get("Audit-Id"); id != got[0].Header.Get("Audit-Id") {
				t.Errorf("%s: the response has the audit id %q, the request had %q", k.name, id, got[0].Header.Get("Audit-Id"))
			}
			if p := got[0].Header.Get("Sec-Websocket-Protocol"); k.name == "websocket" && p != "v5.channel.k8s.io" {
				t.Errorf("%s: arrived with the subprotocols %q", k.name, p)
			}
		}
		for _, name := range []string{"authorization", "AUTHORIZATION"} { // control: other spellings of the one field
			text := strings.Replace(plainHead, "Authorization", name, 1) + "Connection: close\r\n\r\n"
			if status, body := e.RawStatus(t, aliceAt, text); status != http.StatusOK {
				t.Errorf("%s: status %d: %s", name, status, body)
			}
		}
	})
	t.Run("trailers", func(t *testing.T) {
		for _, name := range []string{"Impersonate-User", "X-Remote-User", "Audit-Id"} {
			for _, http2 := range []bool{true, false} {
				what := fmt.Sprintf("%s, http2 %v", name, http2)
				n := e.API.Count()
				r := proxytest.Request(t, "POST", "/api/v1/namespaces/shop/configmaps", "")
				r.Body, r.ContentLength, r.Trailer = io.NopCloser(strings.NewReader("{}")), -1, http.Header{name: {mark}}
				res, err := e.Client(t, aliceAt, http2).Do(r)
				if err == nil {
					res.Body.Close()
				}
				if err == nil && res.StatusCode != http.StatusBadRequest {
					t.Errorf("%s: %s, want 400", what, res.Status)
				}
				for _, got := range e.API.Arrived(n) {
					if e.isFrom(t, what, got, e.alice); got.Body == "{}" {
						t.Errorf("%s: a complete request arrived", what)
					}
				}
			}
		}
	})
	if strings.Contains(e.API.Bytes(), mark) || strings.Contains(e.API.Bytes(), "session.default") {
		t.Error("the API server received a text that must stay behind")
	}
}

// PX-17. A path names the session of the token or none. No spelling of a path reaches another session, and no session of
// another login.
//
// Guard: readSession and parse in internal/accessproxy.
func TestPX17_PathsAroundTheSession(t *testing.T) {
	e := start(t, nil)
	alice := proxytest.Person("alice@example.com", "alice-laptop")
	sessions := map[string]signin.Signin{"": e.alice, "deploy": e.Signins.Login(alice, "deploy", 2*3600e9), "s": e.Signins.Login(alice, "s", 2*3600e9)}
	e.Signins.Login(proxytest.Person("bob@example.com", "bob-laptop"), "bobs", 2*3600e9)
	get := func(path, session string) string {
		return "GET " + path + " HTTP/1.1\r\nHost: $HOST\r\nConnection: close\r\nAuthorization: Bearer session." + session + "\r\n\r\n"
	}
	for _, x := range []struct{ path, session, arrives string }{ // controls
		{"/api/v1/pods", "default", "/api/v1/pods"}, {"/api/v1/pods", "deploy", "/api/v1/pods"},
		{"/s/deploy/api/v1/pods", "deploy", "/api/v1/pods"}, {"/s/deploy", "deploy", "/"}, {"/s/deploy/", "deploy", "/"}, {"/s/s/s/x", "s", "/s/x"},
		{"/S/deploy/api/v1/pods", "default", "/S/deploy/api/v1/pods"}, {"/%73/deploy/api", "default", "/%73/deploy/api"}, {"/s", "default", "/s"},
		{"/s/deploy/api/v1/namespaces/shop/services/web/proxy/../../s/s/", "deploy", "/api/v1/namespaces/shop/services/web/proxy/../../s/s/"},
		{"/s/deploy/api/v1/namespaces/shop/services/web/proxy/%2fs%2Fs//;x", "deploy", "/api/v1/namespaces/shop/services/web/proxy/%2fs%2Fs//;x"},
	} {
		n := e.API.Count()
		status, body := e.RawStatus(t, aliceAt, get(x.path, x.session))
		got := e.API.Arrived(n)
		if status != http.StatusOK || len(got) != 1 {
			t.Errorf("%s as %s: status %d, %d arrived: %s", x.path, x.session, status, len(got), body)
			continue
		}
		if e.isFrom(t, x.path, got[0], sessions[strings.TrimPrefix(x.session, "default")]); got[0].URI != x.arrives {
			t.Errorf("%s as %s: arrived as %s, want %s", x.path, x.session, got[0].URI, x.arrives)
		}
	}
	for _, session := range []string{"default", "deploy"} {
		for _, path := range []string{
			"/s/s/api/v1/pods", "/s/s", "/s//api/v1/pods", "/s/", "/s/default/api/v1/pods", "/s/Deploy/api/v1/pods", "/s/deploy%2fapi/v1/pods", "/s/deploy%2Fapi/v1/pods",
			"/s/deploy/../s/api/v1/pods", "/s/%2e%2e/s/s/api", "/s/deploy/%2e%2e/s/api/v1/pods", "/s/./deploy/api", "//s/deploy/api/v1/pods", "/s/deploy//api/v1/pods", "/s//deploy/api",
			"/s/deploy;x/api/v1/pods", "/s;x/deploy/api/v1/pods", "/s/deploy%00/api/v1/pods", "/s/%64eploy/api/v1/pods", "/s/deploy%20/api/v1/pods", "/./s/s/api", "/x/../s/s/api/v1/pods",
			"/s/deploy\\..\\s/api/v1/pods", "/s%2fs/api/v1/pods", "/s%5cs/api/v1/pods", "/s/s%2f\"/api/v1/pods", "/s%2fdeploy/api/v1/pods/\"", "/s/bobs/api/v1/pods",
			"/api/v1/namespaces/shop%2fpods/\"", "/api/v1/namespaces/shop%2f..%2fkube-system/secrets/|",
		} {
			e.refused(t, path+" as "+session, e.raw(t, get(path, session)), http.StatusBadRequest, http.StatusNotFound)
		}
	}
	for _, session := range []string{"bobs", "Deploy", "deploy/", "../deploy", "deploy%2f", "req-1", "d\u00e9ploy", strings.Repeat("a", 64), "default.deploy", "session.deploy", "deploy deploy"} {
		for _, path := range []string{"/api/v1/pods", "/s/" + strings.ReplaceAll(session, " ", "%20") + "/api/v1/pods"} {
			e.refused(t, path+" as "+session, e.raw(t, get(path, session)), http.StatusBadRequest, http.StatusForbidden)
		}
	}
	for _, path := range []string{"/s/s/api/v1/pods", "/s/s%2fapi", "/s/s/../api"} { // over HTTP/2
		e.refused(t, path+" over HTTP/2", e.h2(t, "GET", path), http.StatusBadRequest, http.StatusNotFound)
	}
}

// PX-11. The client's own credentials stay with the proxy. The token of a sign-in goes only to a server that proves to be
// the API server.
//
// Guard: header and NewUpstream in internal/accessproxy. No setting disables the verification of the API server.
func TestPX11_CredentialsStayWhereTheyBelong(t *testing.T) {
	e := start(t, nil)
	for _, http2 := range []bool{false, true} {
		n := e.API.Count()
		res, body := proxytest.Do(t, e.Client(t, aliceAt, http2), proxytest.Request(t, "GET", "/api/v1/pods", "", "Proxy-Authorization", "Basic "+mark, "Cookie", "session="+mark,
			"X-Remote-User", mark, "X_Remote_Group", mark, "X-Forwarded-Client-Cert", mark, "Forwarded", "for="+mark))
		got := e.API.Arrived(n)
		if res.StatusCode != http.StatusOK || len(got) != 1 {
			t.Fatalf("%s, %d arrived: %s", res.Status, len(got), body)
		}
		e.isFrom(t, fmt.Sprintf("http2 %v", http2), got[0], e.alice)
	}
	if strings.Contains(e.API.Bytes(), mark) {
		t.Error("the API server received a text that must stay behind")
	}
	for name, api := range wrongServers(t) {
		t.Run(name, func(t *testing.T) {
			e := &env{Front: proxytest.Start(t, api)}
			e.alice = e.Signins.Login(proxytest.Person("alice@example.com", "alice-laptop"), "", 2*3600e9)
			for _, text := range []string{plainHead + "\r\n", wsHead + "Connection: Upgrade\r\n\r\n"} {
				if status, body := e.RawStatus(t, aliceAt, text); status != http.StatusServiceUnavailable {
					t.Errorf("status %d, want 503: %s", status, body)
				}
			}
			if got := api.Arrived(0); len(got) > 0 {
				t.Errorf("arrived: %+v", got)
			}
		})
	}
}

// wrongServers returns servers that do not prove to be the API server, with the pool by which the proxy judges them.
func wrongServers(t *testing.T) map[string]*proxytest.API {
	all := map[string]*proxytest.API{}
	for name, pair := range wrongCertificates(t) {
		api := proxytest.StartAPIWith(t, pair.server, nil)
		api.Roots = pair.roots
		all[name] = api
	}
	return all
}
