package accessproxy

import (
	"bytes"
	"crypto/tls"
	"crypto/x509"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/tailplane/tailplane/testkit/proxytest"
)

// A wrongPair is the certificate of a server and the pool by which the proxy judges it.
type wrongPair struct {
	server tls.Certificate
	roots  *x509.CertPool
}

func wrongCertificates(t *testing.T) map[string]wrongPair {
	hour := time.Now().Add(time.Hour)
	good, _ := proxytest.Certificate(t, hour, "127.0.0.1")
	_, others := proxytest.Certificate(t, hour, "127.0.0.1")
	expired, expiredRoots := proxytest.Certificate(t, time.Now().Add(-time.Minute), "127.0.0.1")
	named, namedRoots := proxytest.Certificate(t, hour, "127.0.0.2")
	return map[string]wrongPair{"another authority": {good, others}, "expired": {expired, expiredRoots}, "another name": {named, namedRoots}}
}

// hidden is a request that no parser may find.
const hidden = "DELETE /api/v1/namespaces/" + mark + " HTTP/1.1\r\nHost: $HOST\r\nAuthorization: Bearer session.default\r\n\r\n"

// frames sends a request over HTTP/2 frame by frame, and returns its status. 0 means that the proxy reset the stream or
// closed the connection.
func (e *env) frames(t *testing.T, body string, trailers []hpack.HeaderField, fields ...hpack.HeaderField) int {
	t.Helper()
	c := e.Dial(t, aliceAt, "h2")
	defer c.Close()
	io.WriteString(c, http2.ClientPreface)
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	f.WriteSettings()
	encode := func(all []hpack.HeaderField) []byte {
		var b bytes.Buffer
		enc := hpack.NewEncoder(&b)
		for _, field := range all {
			enc.WriteField(field)
		}
		return b.Bytes()
	}
	f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encode(fields), EndHeaders: true, EndStream: body == "" && trailers == nil})
	if body != "" {
		f.WriteData(1, trailers == nil, []byte(body))
	}
	if trailers != nil {
		f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: encode(trailers), EndHeaders: true, EndStream: true})
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			return 0
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			var status int
			fmt.Sscan(frame.PseudoValue("status"), &status)
			return status
		case *http2.RSTStreamFrame, *http2.GoAwayFrame:
			return 0
		}
	}
}

func pseudo(method, path, authority string, more ...string) []hpack.HeaderField {
	all := []hpack.HeaderField{{Name: ":method", Value: method}, {Name: ":scheme", Value: "https"}, {Name: ":authority", Value: authority}, {Name: ":path", Value: path}}
	for i := 0; i+1 < len(more); i += 2 {
		all = append(all, hpack.HeaderField{Name: more[i], Value: more[i+1]})
	}
	return all
}

// PX-22. No bytes of a request become a second request at the API server: neither by an ambiguous length, nor by line
// breaks in HTTP/2, nor behind an upgrade that the API server did not accept.
//
// Guard: framing.Listener before net/http, checkSpelling, and relay in internal/accessproxy, which closes a connection after
// a refused upgrade.
func TestPX22_Smuggling(t *testing.T) {
	e := start(t, nil)
	post := strings.Replace(plainHead, "GET", "POST", 1)
	t.Run("HTTP/1", func(t *testing.T) {
		chunks := "2\r\n{}\r\n0\r\n\r\n"
		for name, text := range map[string]string{
			"length and chunks":    post + "Content-Length: 12\r\nTransfer-Encoding: chunked\r\n\r\n" + chunks,
			"chunks and length":    post + "Transfer-Encoding: chunked\r\nContent-Length: 5\r\n\r\n0\r\n\r\n",
			"two lengths":          post + "Content-Length: 0\r\nContent-Length: 99\r\n\r\n",
			"a list of lengths":    post + "Content-Length: 0, 99\r\n\r\n",
			"a signed length":      post + "Content-Length: +0\r\n\r\n",
			"an odd encoding":      post + "Transfer-Encoding: xchunked\r\n\r\n" + chunks,
			"an encoding twice":    post + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + chunks,
			"a bare LF":            post + "X-A: b\nContent-Length: 2\r\n\r\n{}",
			"a bare CR":            post + "X-A: b\rContent-Length: 0\r\nContent-Length: 2\r\n\r\n{}",
			"a folded encoding":    post + "Transfer-Encoding:\r\n chunked\r\n\r\n" + chunks,
			"a space in the name":  post + "Content-Length : 2\r\n\r\n{}",
			"a NUL":                post + "X-A: \x00\r\nContent-Length: 2\r\n\r\n{}",
			"a space in the query": strings.Replace(post, "/pods ", "/pods?a= b ", 1) + "Content-Length: 2\r\n\r\n{}",
			"two hosts":            strings.Replace(post, "Host: $HOST", "Host: evil.example\r\nHost: $HOST", 1) + "Content-Length: 2\r\n\r\n{}",
			"HTTP/1.0 and chunks":  strings.Replace(post, "HTTP/1.1", "HTTP/1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n" + chunks,
		} {
			e.unparsed(t, name, text+hidden)
		}
		for name, text := range map[string]string{ // a complete head has arrived before the error
			"a chunk extension":  post + "Transfer-Encoding: chunked\r\n\r\n2;a=b\r\n{}\r\n0\r\n\r\n",
			"a chunk's bare LF":  post + "Transfer-Encoding: chunked\r\n\r\n2\n{}\n0\n\n",
			"a chunk of no end":  post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}0\r\n\r\n",
			"a trailer":          post + "Transfer-Encoding: chunked\r\n\r\n2\r\n{}\r\n0\r\nAuthorization: Bearer x\r\n\r\n",
			"a declared trailer": post + "Transfer-Encoding: chunked\r\nTrailer: X-A\r\n\r\n2\r\n{}\r\n0\r\nX-A: x\r\n\r\n",
		} {
			n := e.API.Count()
			if status, body := e.RawStatus(t, aliceAt, text+hidden); status != 0 && status/100 != 4 {
				t.Errorf("%s: status %d: %s", name, status, body)
			}
			for _, got := range e.API.Arrived(n) {
				if got.Method != "POST" || got.Body == "{}" {
					t.Errorf("%s: arrived: %+v", name, got)
				}
			}
		}
	})
	t.Run("HTTP/2", func(t *testing.T) {
		auth := []string{"authorization", "Bearer session.default"}
		if status := e.frames(t, "", nil, pseudo("GET", "/api/v1/pods", proxytest.Name, auth...)...); status != http.StatusOK {
			t.Fatalf("control: status %d", status)
		}
		const inject = " HTTP/1.1\r\nHost: x\r\n\r\nDELETE /" + mark
		for name, fields := range map[string][]hpack.HeaderField{
			"a line break in the path":      pseudo("GET", "/api/v1/pods"+inject, proxytest.Name, auth...),
			"a line break in the query":     pseudo("GET", "/api/v1/pods?x="+inject, proxytest.Name, auth...),
			"a space in the query":          pseudo("GET", "/api/v1/pods?x= HTTP/1.1", proxytest.Name, auth...),
			"a fragment in the query":       pseudo("GET", "/api/v1/pods?x#y", proxytest.Name, auth...),
			"a line break in the method":    pseudo("GET"+inject, "/api/v1/pods", proxytest.Name, auth...),
			"a space in the method":         pseudo("GET /x", "/api/v1/pods", proxytest.Name, auth...),
			"a line break in the authority": pseudo("GET", "/api/v1/pods", proxytest.Name+"\r\nX-A: b", auth...),
			"a line break in a value":       pseudo("GET", "/api/v1/pods", proxytest.Name, append(auth, "x-a", "b\r\nImpersonate-User: admin")...),
			"a line break in a name":        pseudo("GET", "/api/v1/pods", proxytest.Name, append(auth, "x-a: b\r\nx-b", "c")...),
			"a colon in a name":             pseudo("GET", "/api/v1/pods", proxytest.Name, append(auth, "impersonate-user: admin", "c")...),
			"upper case in a name":          pseudo("GET", "/api/v1/pods", proxytest.Name, append(auth, "Impersonate-User", "admin")...),
			"a hop header":                  pseudo("GET", "/api/v1/pods", proxytest.Name, append(auth, "connection", "authorization")...),
			"an encoding":                   pseudo("POST", "/api/v1/pods", proxytest.Name, append(auth, "transfer-encoding", "chunked")...),
			"an upgrade":                    pseudo("GET", "/api/v1/pods", proxytest.Name, append(auth, "upgrade", "websocket")...),
			"another host":                  pseudo("GET", "/api/v1/pods", proxytest.Name, append(auth, "host", "evil.example")...),
			"two paths":                     append(pseudo("GET", "/api/v1/pods", proxytest.Name, auth...), hpack.HeaderField{Name: ":path", Value: "/x"}),
			"no path":                       pseudo("GET", "", proxytest.Name, auth...),
			"another authority":             pseudo("GET", "/api/v1/pods", "evil.example", auth...),
			"userinfo":                      pseudo("GET", "/api/v1/pods", "admin@"+proxytest.Name, auth...),
			"an absolute path":              pseudo("GET", "https://evil.example/api", proxytest.Name, auth...),
			"CONNECT":                       {{Name: ":method", Value: "CONNECT"}, {Name: ":authority", Value: "evil.example:443"}, {Name: "authorization", Value: "Bearer session.default"}},
			"CONNECT of a protocol":         append(pseudo("CONNECT", "/api/v1/pods", proxytest.Name, auth...), hpack.HeaderField{Name: ":protocol", Value: "websocket"}),
		} {
			e.API.Quietly(t, name, func() {
				if status := e.frames(t, "", nil, fields...); status != 0 && status/100 != 4 {
					t.Errorf("%s: status %d, want a refusal", name, status)
				}
			})
		}
		n := e.API.Count() // a length that is not that of the body
		for _, length := range []string{"1", "100"} {
			if status := e.frames(t, "{}", nil, pseudo("POST", "/api/v1/namespaces", proxytest.Name, append(auth, "content-length", length)...)...); status == http.StatusOK {
				t.Errorf("content-length %s: status %d", length, status)
			}
		}
		e.frames(t, "{}", []hpack.HeaderField{{Name: "authorization", Value: "Bearer " + mark}, {Name: "impersonate-user", Value: mark}}, pseudo("POST", "/api/v1/namespaces", proxytest.Name, auth...)...)
		for _, got := range e.API.Arrived(n) {
			e.isFrom(t, "a body of another length, or undeclared trailers", got, e.alice)
		}
	})
	if strings.Contains(e.API.Bytes(), mark) {
		t.Error("a part of a hidden request arrived")
	}
	t.Run("behind a refused upgrade", func(t *testing.T) {
		e := start(t, func(w http.ResponseWriter, r *http.Request) { io.WriteString(w, "{}") })
		e.secondRequestStays(t, "answered by 200", spdyHead+"Connection: Upgrade\r\n\r\n", http.StatusOK)
		e.secondRequestStays(t, "refused by the proxy", strings.Replace(wsHead, "websocket", "h2c", 1)+"Connection: Upgrade\r\n\r\n", http.StatusBadRequest)
	})
}

// secondRequestStays sends a request for an upgrade that is not granted, and another one behind it.
func (e *env) secondRequestStays(t *testing.T, what, head string, want int) (body string) {
	t.Helper()
	n := e.API.Count()
	c, in := e.Raw(t, aliceAt, head+hidden)
	defer c.Close()
	res, err := http.ReadResponse(in, nil)
	if err != nil {
		t.Fatalf("%s: %v", what, err)
	}
	b, err := io.ReadAll(res.Body)
	if err != nil || res.StatusCode != want {
		t.Errorf("%s: %s, want %d: %v", what, res.Status, want, err)
	}
	io.WriteString(c, strings.ReplaceAll(hidden, "$HOST", proxytest.Name)) // fails if the connection is closed already
	if rest, err := io.ReadAll(in); len(rest) > 0 {
		t.Errorf("%s: and then: %q, %v", what, rest, err)
	}
	for _, got := range e.API.Arrived(n) {
		if got.Method == "DELETE" {
			t.Errorf("%s: the second request arrived: %+v", what, got)
		}
	}
	return string(b)
}

// PX-06. When the API server does not switch protocols, the proxy relays its answer and closes the connection. Bytes that
// the client sent after its request never go upstream.
//
// Guard: switchProtocols, relay and refuse in internal/accessproxy.
func TestPX06_RefusedUpgradeEndsTheConnection(t *testing.T) {
	for _, status := range []int{200, 400, 403, 500} {
		e := start(t, func(w http.ResponseWriter, r *http.Request) {
			w.WriteHeader(status)
			io.WriteString(w, "not today")
		})
		for _, k := range kinds[1:] {
			what := fmt.Sprintf("%s %d", k.name, status)
			if body := e.secondRequestStays(t, what, k.head+"Connection: Upgrade\r\n\r\n", status); body != "not today" {
				t.Errorf("%s: the body is %q", what, body)
			}
		}
	}
	// The API server must not choose another protocol than the requested one.
	e := start(t, func(w http.ResponseWriter, r *http.Request) {
		c, _, err := http.NewResponseController(w).Hijack()
		if err != nil {
			panic(err)
		}
		io.WriteString(c, "HTTP/1.1 101 Switching Protocols\r\nConnection: Upgrade\r\nUpgrade: h2c\r\n\r\n")
		c.Close()
	})
	for _, k := range kinds[1:] {
		e.secondRequestStays(t, "another protocol", k.head+"Connection: Upgrade\r\n\r\n", http.StatusInternalServerError)
	}
}

// PX-07. The proxy passes a redirect on and never follows it. Nothing connects to its target.
//
// Guard: send in internal/accessproxy calls RoundTrip, which follows no redirect.
func TestPX07_RedirectsAreNotFollowed(t *testing.T) {
	elsewhere := proxytest.StartAPI(t, nil)
	e := start(t, nil)
	e.API.Serve(func(w http.ResponseWriter, r *http.Request) {
		code, to := http.StatusFound, elsewhere.URL.String()+"/steal"
		fmt.Sscan(r.URL.Query().Get("code"), &code)
		if r.URL.Query().Has("own") {
			to = e.API.URL.String() + "/api/v1/nodes?limit=1"
		}
		w.Header().Set("Location", to)
		w.WriteHeader(code)
	})
	elsewhere.Quietly(t, "redirects", func() {
		for _, code := range []int{301, 302, 307, 308} {
			path := fmt.Sprintf("/api/v1/namespaces/shop/configmaps?code=%d", code)
			for _, http2 := range []bool{false, true} {
				for _, method := range []string{"GET", "POST"} {
					n := e.API.Count()
					res, _ := proxytest.Do(t, e.Client(t, aliceAt, http2), proxytest.Request(t, method, path, "{}"))
					if res.StatusCode != code || res.Header.Get("Location") != elsewhere.URL.String()+"/steal" {
						t.Errorf("%s %d: %s to %s", method, code, res.Status, res.Header.Get("Location"))
					}
					if got := e.API.Arrived(n); len(got) != 1 {
						t.Errorf("%s %d: %d requests arrived, want one", method, code, len(got))
					}
				}
			}
			for _, k := range kinds[1:] {
				head := strings.Replace(k.head, "command=id", fmt.Sprintf("command=id&code=%d", code), 1)
				if status, _ := e.RawStatus(t, aliceAt, head+"Connection: Upgrade\r\n\r\n"); status != code {
					t.Errorf("%s: status %d, want %d", k.name, status, code)
				}
			}
		}
	})
	res, _ := proxytest.Do(t, e.Client(t, aliceAt, true), proxytest.Request(t, "GET", "/api/v1/pods?own=1", ""))
	if got := res.Header.Get("Location"); got != "/api/v1/nodes?limit=1" {
		t.Errorf("a redirect to the API server itself: %s, want a path", got)
	}
}
