package httpapi_test

import (
	"bufio"
	"bytes"
	"context"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/net/http2"
	"golang.org/x/net/http2/hpack"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/problem"
)

// ID-09: Every request whose host can be read in two ways is refused before the caller is identified, in HTTP/1.1 and in HTTP/2
// without TLS. In the requests, PORT is the port of the server.
func TestID09_AmbiguousHosts(t *testing.T) {
	var mu sync.Mutex
	identified, entries := 0, []audit.Entry(nil)
	d := newTestServer(func(e audit.Entry) error { mu.Lock(); defer mu.Unlock(); entries = append(entries, e); return nil })
	d.Names = func() []string { return []string{"127.0.0.1", "tka", "::1"} }
	d.HTTP2 = true
	d.Identify = func(*http.Request) (access.Caller, error) {
		mu.Lock()
		defer mu.Unlock()
		identified++
		return alice(view), nil
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() {
		ended <- d.Run(ctx, ln, nil, read.Serve(func(context.Context, access.Permit, actionRequest) (response, error) { return response{}, nil }))
	}()
	t.Cleanup(func() {
		stop()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	_, port, _ := net.SplitHostPort(ln.Addr().String())
	const path = "/api/v1alpha1/login"
	check := func(t *testing.T, ask func(net.Conn) int, want int) {
		t.Helper()
		c, err := net.Dial("tcp", ln.Addr().String())
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		c.SetDeadline(time.Now().Add(time.Minute))
		mu.Lock()
		identified, entries = 0, nil
		mu.Unlock()
		if got := ask(c); got != want {
			t.Errorf("status %d, want %d", got, want)
		}
		mu.Lock()
		defer mu.Unlock()
		if (identified > 0) != (want == http.StatusOK) {
			t.Errorf("the caller was identified %d times", identified)
		}
		for _, e := range entries {
			if want == http.StatusMisdirectedRequest && e.Code != problem.WrongHost {
				t.Errorf("recorded %q, want %q", e.Code, problem.WrongHost)
			}
		}
		if len(entries) != 1 && want == http.StatusMisdirectedRequest {
			t.Errorf("%d entries, want 1", len(entries))
		}
	}

	const misdirected, bad = http.StatusMisdirectedRequest, http.StatusBadRequest
	for _, tt := range []struct {
		why, target string
		hosts       []string
		want        int
	}{
		{"a name", path, []string{"tka"}, http.StatusOK},
		{"a name with the port", path, []string{"tka:PORT"}, http.StatusOK},
		{"an IPv6 address", path, []string{"[::1]"}, http.StatusOK},
		{"an IPv6 address with the port", path, []string{"[::1]:PORT"}, http.StatusOK},

		{"absolute form", "http://tka" + path, []string{"tka"}, misdirected},
		{"absolute form, foreign Host", "http://tka" + path, []string{"evil.example"}, misdirected},
		{"absolute form, foreign target", "http://evil.example" + path, []string{"tka"}, misdirected},
		{"absolute form, userinfo", "http://alice@tka" + path, []string{"tka"}, misdirected},
		{"absolute form, userinfo alone", "http://alice@" + path, []string{"tka"}, misdirected},
		{"absolute form, no host", "http://" + path, []string{"tka"}, misdirected},
		{"absolute form, another scheme", "ftp://tka" + path, []string{"tka"}, misdirected},
		{"a scheme without a host", "http:" + path, []string{"tka"}, misdirected},
		{"a scheme without a path", "http:api", []string{"tka"}, misdirected},
		{"userinfo", path, []string{"alice@tka"}, bad},
		{"userinfo with a password", path, []string{"tka:PORT@tka"}, bad},
		{"userinfo after the port", path, []string{"tka:PORT@"}, bad},
		{"a name in brackets", path, []string{"[tka]"}, misdirected},
		{"a name in brackets with the port", path, []string{"[tka]:PORT"}, misdirected},
		{"an IPv4 address in brackets", path, []string{"[127.0.0.1]:PORT"}, misdirected},
		{"one bracket", path, []string{"[tka"}, misdirected},
		{"the other bracket", path, []string{"tka]"}, misdirected},
		{"two brackets", path, []string{"[[::1]]"}, misdirected},
		{"text after the bracket", path, []string{"[::1]x"}, misdirected},
		{"a zone", path, []string{"[::1%25lo]"}, misdirected},
		{"an empty port", path, []string{"tka:"}, misdirected},
		{"two Hosts", path, []string{"tka", "evil.example"}, bad},
		{"one Host twice", path, []string{"tka", "tka"}, bad},
		{"no Host", path, nil, bad},
	} {
		t.Run("HTTP/1.1 "+tt.why, func(t *testing.T) {
			check(t, func(c net.Conn) int {
				raw := "GET " + tt.target + " HTTP/1.1\r\nConnection: close\r\n"
				for _, h := range tt.hosts {
					raw += "Host: " + strings.ReplaceAll(h, "PORT", port) + "\r\n"
				}
				if _, err := io.WriteString(c, raw+"\r\n"); err != nil {
					t.Fatal(err)
				}
				res, err := http.ReadResponse(bufio.NewReader(c), nil)
				if err != nil {
					t.Fatal(err)
				}
				res.Body.Close()
				return res.StatusCode
			}, tt.want)
		})
	}

	type field = hpack.HeaderField
	authority := func(v string) field { return field{Name: ":authority", Value: strings.ReplaceAll(v, "PORT", port)} }
	host := func(v string) field { return field{Name: "host", Value: strings.ReplaceAll(v, "PORT", port)} }
	for _, tt := range []struct {
		why    string
		fields []field
		want   int
	}{
		{"a name", []field{authority("tka")}, http.StatusOK},
		{"a name and the same host", []field{authority("tka:PORT"), host("tka:PORT")}, http.StatusOK},
		{"a host alone", []field{host("tka")}, http.StatusOK},

		{"a foreign host", []field{authority("tka"), host("evil.example")}, misdirected},
		{"a foreign authority", []field{authority("evil.example"), host("tka")}, misdirected},
		{"two hosts", []field{host("tka"), host("evil.example")}, misdirected},
		{"two hosts with an authority", []field{authority("tka"), host("tka"), host("evil.example")}, misdirected},
		{"one host twice", []field{authority("tka"), host("tka"), host("tka")}, misdirected},
		{"a host with another port", []field{authority("tka"), host("tka:1")}, misdirected},
		{"an empty host", []field{authority("tka"), host("")}, misdirected},
		{"userinfo", []field{authority("alice@tka")}, bad},
		{"userinfo in the host", []field{host("alice@tka")}, bad},
		{"a name in brackets", []field{authority("[tka]:PORT")}, misdirected},
		{"no host", nil, misdirected},
	} {
		t.Run("HTTP/2 "+tt.why, func(t *testing.T) {
			check(t, func(c net.Conn) int { return askHTTP2(t, c, path, tt.fields...) }, tt.want)
		})
	}
}

// askHTTP2 sends one GET over HTTP/2 without TLS, with exactly these fields, and returns the status. A malformed request has the
// status 400, although net/http may reset its stream instead.
func askHTTP2(t *testing.T, c net.Conn, path string, fields ...hpack.HeaderField) int {
	t.Helper()
	var block bytes.Buffer
	enc := hpack.NewEncoder(&block)
	sorted := []hpack.HeaderField{{Name: ":method", Value: "GET"}, {Name: ":scheme", Value: "http"}, {Name: ":path", Value: path}}
	for _, f := range append(sorted, fields...) {
		if err := enc.WriteField(f); err != nil {
			t.Fatal(err)
		}
	}
	f := http2.NewFramer(c, c)
	f.ReadMetaHeaders = hpack.NewDecoder(4096, nil)
	if _, err := io.WriteString(c, http2.ClientPreface); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteSettings(); err != nil {
		t.Fatal(err)
	}
	if err := f.WriteHeaders(http2.HeadersFrameParam{StreamID: 1, BlockFragment: block.Bytes(), EndStream: true, EndHeaders: true}); err != nil {
		t.Fatal(err)
	}
	for {
		frame, err := f.ReadFrame()
		if err != nil {
			t.Fatal(err)
		}
		switch frame := frame.(type) {
		case *http2.MetaHeadersFrame:
			status, err := strconv.Atoi(frame.PseudoValue("status"))
			if err != nil {
				t.Fatal(err)
			}
			return status
		case *http2.RSTStreamFrame:
			return http.StatusBadRequest
		}
	}
}
