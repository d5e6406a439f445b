package httptransport_test

import (
	"bytes"
	"compress/gzip"
	"context"
	"encoding/pem"
	"errors"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/util/httptransport"
)

const canary = "s3cr3t-canary"

type handler = func(w http.ResponseWriter, r *http.Request)

func answerJSON(body string) handler {
	return func(w http.ResponseWriter, _ *http.Request) {
		w.Header().Set("Content-Type", "application/json; charset=utf-8")
		io.WriteString(w, body)
	}
}

// serve starts a server and returns a client of its path /api that sends the canary.
func serve(t *testing.T, h handler, change ...func(*httptransport.Config)) (base string, client *http.Client) {
	t.Helper()
	s := httptest.NewServer(http.HandlerFunc(h))
	t.Cleanup(s.Close)
	u, err := httptransport.ParseBase(s.URL + "/api/")
	if err != nil {
		t.Fatal(err)
	}
	c := httptransport.Config{Base: u, Authorize: func(r *http.Request) error { r.Header.Set("Authorization", "Bearer "+canary); return nil }}
	for _, f := range change {
		f(&c)
	}
	transport, err := httptransport.New(c)
	if err != nil {
		t.Fatal(err)
	}
	return u.String(), transport.Client()
}

// do sends a request and returns the answer, or the scrubbed error.
func do(t *testing.T, client *http.Client, method, address, body string) (status int, text string, err error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var reader io.Reader
	if body != "" {
		reader = strings.NewReader(body)
	}
	r, err := http.NewRequestWithContext(ctx, method, address, reader)
	if err != nil {
		t.Fatal(err)
	}
	response, err := client.Do(r)
	if err != nil {
		err = httptransport.Scrub(err)
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q"} {
			if printed := fmt.Sprintf(verb, err); strings.Contains(printed, canary) {
				t.Errorf("%s %s: the error prints the secret: %s", method, address, printed)
			}
		}
		return 0, "", err
	}
	defer response.Body.Close()
	all, err := io.ReadAll(response.Body)
	if err != nil {
		t.Fatal(err)
	}
	return response.StatusCode, string(all), nil
}

func TestAnswers(t *testing.T) {
	var zipped bytes.Buffer
	z := gzip.NewWriter(&zipped)
	z.Write(bytes.Repeat([]byte(" "), 4<<20))
	z.Write([]byte("[1]"))
	if err := z.Close(); err != nil {
		t.Fatal(err)
	}
	header := func(status int, kind, body string) handler {
		return func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", kind)
			w.WriteHeader(status)
			io.WriteString(w, body)
		}
	}
	for _, x := range []struct {
		why    string
		method string
		answer handler
		want   string // part of the error; empty: no error
	}{
		{"JSON", "GET", answerJSON(`[{"id":1}]`), ""},
		{"JSON of a named form", "GET", header(200, "application/vnd.github+json", `{}`), ""},
		{"a list without a body", "GET", answerJSON(""), "empty"},
		{"a list of white space", "GET", answerJSON(" \n"), "empty"},
		{"204 for a read", "GET", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, "empty"},
		{"204 for a deletion", "DELETE", func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(204) }, ""},
		{"two values", "GET", answerJSON("[][]"), "not JSON"},
		{"half a value", "GET", answerJSON(`[{"id":1},`), "not JSON"},
		{"a web page", "GET", header(200, "text/html; charset=utf-8", "<html>"), "web page"},
		{"a web page for a deletion", "DELETE", header(200, "text/html", "<html>"), "web page"},
		{"JSON with the type of text", "GET", header(200, "text/plain", "[]"), "not of a JSON type"},
		{"no type", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header()["Content-Type"] = nil
			io.WriteString(w, "[]")
		}, "not of a JSON type"},
		{"a part", "GET", header(206, "application/json", "[]"), "a part"},
		{"a refusal keeps its page", "GET", header(502, "text/html", "<html>"), ""},
		{"an answer that ends early", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Length", "100")
			io.WriteString(w, "[]")
		}, "ended early"},
		{"too long", "GET", answerJSON(`"` + strings.Repeat("x", 1<<20) + `"`), "longer than"},
		{"too long once it is unpacked", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "gzip")
			w.Write(zipped.Bytes())
		}, "longer than"},
		{"too long a refusal", "GET", header(500, "text/plain", strings.Repeat("x", 1<<20+1)), "longer than"},
		{"an encoding that was not asked for", "GET", func(w http.ResponseWriter, _ *http.Request) {
			w.Header().Set("Content-Type", "application/json")
			w.Header().Set("Content-Encoding", "br")
			io.WriteString(w, "[]")
		}, "encoding"},
	} {
		base, client := serve(t, x.answer, func(c *httptransport.Config) { c.MaxBody = 1 << 20 })
		_, _, err := do(t, client, x.method, base+"/things", "")
		if x.want == "" && err != nil || x.want != "" && (err == nil || !strings.Contains(err.Error(), x.want)) {
			t.Errorf("%s: %v, want %q", x.why, err, x.want)
		}
	}
}

func TestText(t *testing.T) {
	up := func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, "up 1\n") }
	base, client := serve(t, up, func(c *httptransport.Config) { c.AllowText = true })
	if _, text, err := do(t, client, "GET", base+"/metrics", ""); err != nil || text != "up 1\n" {
		t.Errorf("%q, %v", text, err)
	}
}

// If a library uses another address, no request and no credential is sent.
func TestPinned(t *testing.T) {
	var asked atomic.Int32
	base, client := serve(t, func(w http.ResponseWriter, r *http.Request) { asked.Add(1); answerJSON("[]")(w, r) })
	root := strings.TrimSuffix(base, "/api")
	port := root[strings.LastIndex(root, ":"):]
	for why, address := range map[string]string{
		"another host":          "http://localhost" + port + "/api/x",
		"another port":          "http://127.0.0.1:1/api/x",
		"another scheme":        "https://127.0.0.1" + port + "/api/x",
		"a user":                "http://u:" + canary + "@127.0.0.1" + port + "/api/x",
		"outside the base path": root + "/x",
		"a longer base path":    base + "x",
		"up":                    base + "/../x?token=" + canary,
		"up, escaped":           base + "/projects/%2e%2e/x",
		"up behind a slash":     base + "/projects/acme%2F..%2Fother",
		"on the spot":           base + "/./x",
	} {
		_, _, err := do(t, client, "GET", address, "")
		if err == nil || !strings.Contains(err.Error(), "not sent") {
			t.Errorf("%s: %v", why, err)
		}
	}
	r, err := http.NewRequestWithContext(t.Context(), "GET", base+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	r.Host = "evil.example.com"
	if _, err := client.Do(r); err == nil {
		t.Error("another Host header is sent")
	}
	if asked.Load() != 0 {
		t.Fatalf("%d requests were sent", asked.Load())
	}
	for _, address := range []string{base, base + "/x", base + "/projects/acme%2Fconfig", base + "/a..b/...?q=../x"} {
		if _, _, err := do(t, client, "GET", address, ""); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
}

func TestDefaultPort(t *testing.T) {
	var sent []string
	rt := roundTripper(func(r *http.Request) (*http.Response, error) {
		sent = append(sent, r.URL.String())
		return &http.Response{StatusCode: 204, Body: http.NoBody, Header: http.Header{}}, nil
	})
	transport, err := httptransport.New(httptransport.Config{Base: &url.URL{Scheme: "https", Host: "api.example.com:443"}, RoundTripper: rt})
	if err != nil {
		t.Fatal(err)
	}
	for _, address := range []string{"https://api.example.com/x", "https://API.example.com:443/x"} {
		if _, _, err := do(t, transport.Client(), "DELETE", address, ""); err != nil {
			t.Errorf("%s: %v", address, err)
		}
	}
	if _, _, err := do(t, transport.Client(), "DELETE", "https://api.example.com:80/x", ""); err == nil || len(sent) != 2 {
		t.Errorf("another port: %v, sent %v", err, sent)
	}
}

func TestRedirects(t *testing.T) {
	var elsewhere atomic.Int32
	other := httptest.NewServer(http.HandlerFunc(func(http.ResponseWriter, *http.Request) { elsewhere.Add(1) }))
	t.Cleanup(other.Close)
	otherName := strings.Replace(other.URL, "127.0.0.1", "localhost", 1)
	var mu sync.Mutex
	var shown []string
	answer := func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		shown = append(shown, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
		mu.Unlock()
		to := map[string]string{
			"/api/renamed": "/api/here", "/api/relative": "here", "/api/loop": "/api/loop", "/api/nowhere": "", "/api/aside": "/admin",
			"/api/up": "/api/../admin", "/api/other": other.URL + "/api/here", "/api/other-name": otherName + "/api/here",
			"/api/user": "http://u:p@" + r.Host + "/api/here", "/api/scheme": "https://" + r.Host + "/api/here", "/api/odd": "http://[",
		}
		location, ok := to[r.URL.Path]
		if !ok {
			answerJSON(`{}`)(w, r)
			return
		}
		w.Header().Set("Location", location)
		w.WriteHeader(http.StatusTemporaryRedirect)
	}
	base, strict := serve(t, answer)
	followed, follows := serve(t, answer, func(c *httptransport.Config) { c.FollowReads = true })
	for path := range strings.FieldsSeq("/renamed /relative /loop /nowhere /aside /up /other /other-name /user /scheme /odd") {
		_, _, err := do(t, strict, "GET", base+path, "")
		if e, ok := errors.AsType[*httptransport.Error](err); !ok || e.Status != http.StatusTemporaryRedirect {
			t.Errorf("%s is not refused: %v", path, err)
		}
		_, text, err := do(t, follows, "GET", followed+path, "")
		if may := path == "/renamed" || path == "/relative"; may != (err == nil) || may && text != "{}" {
			t.Errorf("%s, with reads followed: %q, %v", path, text, err)
		}
		for _, method := range []string{"POST", "PUT", "PATCH", "DELETE"} {
			if _, _, err := do(t, follows, method, followed+path, "{}"); err == nil {
				t.Errorf("%s %s is followed", method, path)
			}
		}
	}
	if elsewhere.Load() != 0 {
		t.Errorf("another host got %d requests", elsewhere.Load())
	}
	mu.Lock()
	defer mu.Unlock()
	loops := 0
	for _, s := range shown {
		if !strings.HasSuffix(s, " Bearer "+canary) {
			t.Errorf("without the credential: %s", s)
		}
		if strings.HasPrefix(s, "GET /api/loop") {
			loops++
		}
		if strings.Contains(s, "/admin") {
			t.Errorf("below another path: %s", s)
		}
	}
	if loops != 5 { // one request, and one with three redirects
		t.Errorf("a loop was walked %d times", loops)
	}
}

// No error contains the query, a header, a body, or data of the peer.
func TestScrubbed(t *testing.T) {
	listener, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { listener.Close() })
	replies := []string{
		canary + " is no HTTP\r\n\r\n",
		"HTTP/1.1 " + canary + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\n" + canary + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Length: " + canary + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: " + canary + "\r\n\r\n",
		"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n" + canary + "\r\n",
		"HTTP/1.1 302 Found\r\nLocation: https://" + canary + "@example.com/" + canary + "\r\nContent-Length: 0\r\n\r\n",
		"HTTP/1.1 200 OK\r\nContent-Type: " + canary + "\r\nContent-Length: 2\r\n\r\n{}",
		"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: " + fmt.Sprint(len(canary)) + "\r\n\r\n" + canary,
		"HTTP/1.1 200 OK\r\nX: " + strings.Repeat(canary, 30_000) + "\r\n\r\n",
		"",
	}
	var n atomic.Int32
	go func() {
		for {
			c, err := listener.Accept()
			if err != nil {
				return
			}
			c.Read(make([]byte, 4096))
			io.WriteString(c, replies[n.Load()])
			c.Close()
		}
	}()
	transport, err := httptransport.New(httptransport.Config{Base: &url.URL{Scheme: "http", Host: listener.Addr().String()},
		Authorize: func(r *http.Request) error { r.Header.Set("Private-Token", canary); return nil }})
	if err != nil {
		t.Fatal(err)
	}
	host := "http://" + listener.Addr().String()
	for i := range replies {
		n.Store(int32(i))
		if _, _, err := do(t, transport.Client(), "POST", host+"/x?token="+canary, canary); err == nil || err.Error() == "" {
			t.Errorf("answer %d: %v", i, err)
		}
	}
	refused, err := httptransport.New(httptransport.Config{Base: &url.URL{Scheme: "http", Host: listener.Addr().String()},
		Authorize: func(*http.Request) error { return errors.New("no token but " + canary) }})
	if err != nil {
		t.Fatal(err)
	}
	if _, _, err := do(t, refused.Client(), "GET", host+"/x?token="+canary, ""); err == nil {
		t.Error("sent without the credential")
	}
	listener.Close()
	_, _, err = do(t, transport.Client(), "GET", host+"/"+canary+"?token="+canary, "")
	if err == nil || !strings.Contains(err.Error(), "connection refused") {
		t.Errorf("without a listener: %v", err)
	}
	library := fmt.Errorf("GET http://x/?token=%s: 403 {%s}", canary, canary)
	if err := httptransport.Scrub(library); err == nil || strings.Contains(fmt.Sprintf("%v %+v %#v", err, err, err), canary) {
		t.Errorf("a library's error: %#v", err)
	}
	if httptransport.Scrub(nil) != nil {
		t.Error("no error became one")
	}
}

// No request is sent twice, for any answer and any kind of loss.
func TestNoRetries(t *testing.T) {
	var asked atomic.Int32
	base, client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		asked.Add(1)
		switch r.URL.Path {
		case "/api/drop":
			panic(http.ErrAbortHandler)
		case "/api/503":
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(503)
		case "/api/429":
			w.Header().Set("Retry-After", "0")
			w.WriteHeader(429)
		}
	})
	for _, method := range []string{"GET", "POST", "PUT", "PATCH", "DELETE"} {
		for _, path := range []string{"/drop", "/503", "/429"} {
			asked.Store(0)
			_, _, err := do(t, client, method, base+path, "{}")
			if (err != nil) != (path == "/drop") || asked.Load() != 1 {
				t.Errorf("%s %s was sent %d times: %v", method, path, asked.Load(), err)
			}
		}
	}
}

func TestConcurrency(t *testing.T) {
	var now, most atomic.Int32
	hold := make(chan struct{})
	base, client := serve(t, func(w http.ResponseWriter, r *http.Request) {
		for n := now.Add(1); ; {
			if old := most.Load(); n <= old || most.CompareAndSwap(old, n) {
				break
			}
		}
		<-hold
		now.Add(-1)
		answerJSON("{}")(w, r)
	}, func(c *httptransport.Config) { c.MaxConcurrent = 2 })
	var wg sync.WaitGroup
	for range 6 {
		wg.Go(func() {
			if _, _, err := do(t, client, "GET", base+"/x", ""); err != nil {
				t.Error(err)
			}
		})
	}
	for now.Load() < 2 {
		time.Sleep(time.Millisecond)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 20*time.Millisecond)
	defer cancel()
	r, err := http.NewRequestWithContext(ctx, "GET", base+"/x", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := client.Do(r); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("a request that waits for a slot: %v", err)
	}
	close(hold)
	wg.Wait()
	if most.Load() != 2 {
		t.Errorf("%d requests at the same time", most.Load())
	}
}

// Trust is configured; an untrusted server receives no request.
func TestTrust(t *testing.T) {
	var asked atomic.Int32
	start := func() *httptest.Server {
		s := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { asked.Add(1); answerJSON("{}")(w, r) }))
		s.Config.ErrorLog = log.New(io.Discard, "", 0) // the failed handshake is expected
		s.StartTLS()
		t.Cleanup(s.Close)
		return s
	}
	client := func(s *httptest.Server, bundle []byte) *http.Client {
		u, err := url.Parse(s.URL)
		if err != nil {
			t.Fatal(err)
		}
		transport, err := httptransport.New(httptransport.Config{Base: u, CABundle: bundle})
		if err != nil {
			t.Fatal(err)
		}
		return transport.Client()
	}
	trusted := start()
	bundle := pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: trusted.Certificate().Raw})
	if _, _, err := do(t, client(trusted, bundle), "GET", trusted.URL+"/", ""); err != nil || asked.Load() != 1 {
		t.Errorf("trusted: %v", err)
	}
	stranger := start()
	_, _, err := do(t, client(stranger, nil), "GET", stranger.URL+"/", "")
	switch {
	case err == nil:
		t.Error("untrusted: no error")
	case asked.Load() != 1:
		t.Errorf("untrusted: asked.Load() = %v, want 1", asked.Load())
	case !strings.Contains(err.Error(), "not trusted"):
		t.Errorf("untrusted: err.Error() = %q does not contain %q", err.Error(), "not trusted")
	}
	for why, c := range map[string]httptransport.Config{
		"a bundle without a certificate": {Base: &url.URL{Scheme: "https", Host: "x"}, CABundle: []byte("none")},
		"no base":                        {},
		"no host":                        {Base: &url.URL{Scheme: "https"}},
		"a relative path":                {Base: &url.URL{Scheme: "https", Host: "x", Path: "api"}},
		"another scheme":                 {Base: &url.URL{Scheme: "ftp", Host: "x"}},
	} {
		if _, err := httptransport.New(c); err == nil {
			t.Errorf("%s is accepted", why)
		}
	}
}

func TestParseBase(t *testing.T) {
	for text, want := range map[string]string{
		"https://api.github.com":           "https://api.github.com",
		"https://gitlab.example.com:8443/": "https://gitlab.example.com:8443",
		"https://x/gitlab/":                "https://x/gitlab",
		"http://127.0.0.1:80/x":            "http://127.0.0.1:80/x",
		"http://[::1]:80":                  "http://[::1]:80",
		"http://localhost":                 "http://localhost",
		"http://gitlab.example.com":        "",
		"http://127.0.0.1.example.com":     "",
		"ftp://x":                          "",
		"https:x":                          "",
		"x":                                "",
		"":                                 "",
		"https://u:" + canary + "@x":       "",
		"https://x?token=" + canary:        "",
		"https://x#" + canary:              "",
		"https://x/a%2fb":                  "",
		"https://" + canary + " x":         "",
	} {
		u, err := httptransport.ParseBase(text)
		switch {
		case want == "" && err == nil:
			t.Errorf("%q is accepted", text)
		case want == "" && strings.Contains(err.Error(), canary):
			t.Errorf("the secret is repeated: %v", err)
		case want != "" && (err != nil || u.String() != want):
			t.Errorf("%q is %v, %v", text, u, err)
		}
	}
}

type roundTripper func(*http.Request) (*http.Response, error)

func (f roundTripper) RoundTrip(r *http.Request) (*http.Response, error) { return f(r) }

// slow is a body that never ends.
type slow struct{ ctx context.Context }

func (s slow) Read([]byte) (int, error) { <-s.ctx.Done(); return 0, s.ctx.Err() }
func (slow) Close() error               { return nil }

// FL-04: A request without an answer ends, even if the caller has no deadline.
func TestHang(t *testing.T) {
	for why, rt := range map[string]roundTripper{
		"no answer": func(r *http.Request) (*http.Response, error) { <-r.Context().Done(); return nil, r.Context().Err() },
		"an endless body": func(r *http.Request) (*http.Response, error) {
			return &http.Response{StatusCode: 200, Header: http.Header{"Content-Type": {"application/json"}}, Body: slow{r.Context()}}, nil
		},
	} {
		synctest.Test(t, func(t *testing.T) {
			transport, err := httptransport.New(httptransport.Config{Base: &url.URL{Scheme: "https", Host: "example.com"}, RoundTripper: rt})
			if err != nil {
				t.Fatal(err)
			}
			r, err := http.NewRequestWithContext(t.Context(), "GET", "https://example.com/x", nil)
			if err != nil {
				t.Fatal(err)
			}
			begun := time.Now()
			if _, err := transport.RoundTrip(r); err == nil || time.Since(begun) != httptransport.DefaultTimeout {
				t.Errorf("%s: %v after %v", why, err, time.Since(begun))
			}
			ctx, cancel := context.WithCancel(t.Context())
			cancel()
			if _, err := transport.RoundTrip(r.WithContext(ctx)); !errors.Is(err, context.Canceled) {
				t.Errorf("%s, cancelled: %v", why, err)
			}
		})
	}
}

func TestObserveAndWith(t *testing.T) {
	var told []string
	tell := func(name string) func(int, http.Header) {
		return func(status int, h http.Header) {
			told = append(told, fmt.Sprint(name, " ", status, " ", h.Get("X-Who")))
		}
	}
	rt := roundTripper(func(r *http.Request) (*http.Response, error) {
		if r.URL.Path == "/lost" {
			return nil, io.EOF
		}
		return &http.Response{StatusCode: 500, Header: http.Header{"X-Who": {r.Header.Get("Authorization")}}, Body: http.NoBody}, nil
	})
	c := httptransport.Config{Base: &url.URL{Scheme: "https", Host: "x"}, RoundTripper: rt, Observe: tell("first")}
	transport, err := httptransport.New(c)
	if err != nil {
		t.Fatal(err)
	}
	view := transport.With(func(r *http.Request) error { r.Header.Set("Authorization", "second"); return nil }, tell("second"))
	r, err := http.NewRequestWithContext(t.Context(), "GET", "https://x/y", nil)
	if err != nil {
		t.Fatal(err)
	}
	for _, x := range []http.RoundTripper{transport, view} {
		if _, err := x.RoundTrip(r); err != nil {
			t.Error(err)
		}
	}
	r.URL.Path = "/lost"
	if _, err := view.RoundTrip(r); err == nil {
		t.Error("a lost answer gives no error")
	}
	if got := strings.Join(told, ", "); got != "first 500 , second 500 second, second 0 " || r.Header.Get("Authorization") != "" {
		t.Errorf("observed %q; the caller's request has %v", got, r.Header)
	}
}
