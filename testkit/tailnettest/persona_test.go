package tailnettest

import (
	"bufio"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"testing"
	"time"

	"tailscale.com/tsnet"
)

// TB-04: an ordinary program acts as alice through her node's SOCKS5 proxy, which has a password, or through Persona,
// which has none.
func TestProxies(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	roots := n.EnableHTTPS()
	tka, alice := n.Node("tka", "", "tag:tka"), n.Node("alice", "alice@example.com")
	ready(t, n, tka, alice)
	serveWhoIs(t, tka, ":80")
	ln, err := tka.ListenTLS("tcp", ":443")
	if err != nil {
		t.Fatal(err)
	}
	serve(t, ln, tka)
	addr, cred, _, err := alice.Loopback()
	if err != nil {
		t.Fatal(err)
	}
	persona, err := n.Persona(alice)
	if err != nil {
		t.Fatal(err)
	}
	if host, _, err := net.SplitHostPort(strings.TrimPrefix(persona, "http://")); err != nil || host != "127.0.0.1" {
		t.Errorf("the persona's proxy listens on %q", persona)
	}
	for _, p := range []string{"socks5://tsnet:" + cred + "@" + addr, "socks5h://tsnet:" + cred + "@" + addr, persona} {
		u, err := url.Parse(p)
		if err != nil {
			t.Fatal(err)
		}
		hc := clientOf(t, roots, nil)
		hc.Transport.(*http.Transport).Proxy = http.ProxyURL(u)
		for _, target := range []string{"http://tka.tiny.ts.net/", "http://tka/", "https://tka.tiny.ts.net/"} {
			if got, err := body(t, hc, target); err != nil || !strings.Contains(got, `"Login":"alice@example.com"`) {
				t.Errorf("%s through %s: %q %v", target, u.Scheme, got, err)
			}
		}
	}
	if res, err := http.Get(persona); err != nil || res.StatusCode != http.StatusBadRequest {
		t.Errorf("a page request to the proxy: %v %v", res, err)
	}
	hc := clientOf(t, roots, nil)
	u, err := url.Parse(persona)
	if err != nil {
		t.Fatal(err)
	}
	hc.Transport.(*http.Transport).Proxy = http.ProxyURL(u)
	if res, err := hc.Get("http://nobody.tiny.ts.net/"); err != nil || res.StatusCode != http.StatusBadGateway {
		t.Errorf("a name that does not exist: %v %v", res, err)
	}
	halfClosed(t, tka, persona)

	t.Run("curl", func(t *testing.T) {
		curl, err := exec.LookPath("curl")
		if err != nil {
			t.Skip("SKIP curl: not found")
		}
		for _, env := range []string{"ALL_PROXY=socks5h://tsnet:" + cred + "@" + addr, "http_proxy=" + persona} {
			cmd := exec.CommandContext(within(t, time.Minute), curl, "-sS", "--max-time", "30", "http://tka.tiny.ts.net/")
			cmd.Env = []string{env, "PATH=" + os.Getenv("PATH")}
			if out, err := cmd.CombinedOutput(); err != nil || !strings.Contains(string(out), `"Login":"alice@example.com"`) {
				t.Errorf("%s: %v %s", env, err, out)
			}
		}
	})
}

// halfClosed connects through CONNECT to a server that responds only after the client has half-closed.
func halfClosed(t *testing.T, tka *tsnet.Server, persona string) {
	t.Helper()
	ln, err := tka.Listen("tcp", ":7")
	if err != nil {
		t.Fatal(err)
	}
	go func() {
		c, err := ln.Accept()
		if err != nil {
			return
		}
		defer c.Close()
		b, _ := io.ReadAll(c)
		fmt.Fprintf(c, "received %s", b)
	}()
	c, err := net.Dial("tcp", strings.TrimPrefix(persona, "http://"))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	c.SetDeadline(time.Now().Add(time.Minute))
	fmt.Fprint(c, "CONNECT tka:7 HTTP/1.1\r\nHost: tka:7\r\n\r\n")
	br := bufio.NewReader(c)
	if res, err := http.ReadResponse(br, &http.Request{Method: http.MethodConnect}); err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("CONNECT: %v %v", res, err)
	}
	fmt.Fprint(c, "all")
	c.(*net.TCPConn).CloseWrite()
	if b, err := io.ReadAll(br); err != nil || string(b) != "received all" {
		t.Errorf("a half-closed connection: %q %v", b, err)
	}
}
