package apiproxy

import (
	"bufio"
	"context"
	"crypto/tls"
	"fmt"
	"io"
	"net/http"
	"strings"
	"testing"
	"time"
)

const webSocketHandshake = "GET %s HTTP/1.1\r\nHost: %s\r\nAuthorization: Bearer " + localToken + "\r\nConnection: keep-alive, Upgrade\r\nUpgrade: %s\r\n%s\r\n"

const webSocketHeader = "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\nSec-WebSocket-Protocol: base64url.bearer.authorization.k8s.io.Y2FuYXJ5\r\n"

// switchTo requests an upgrade, and returns the response and the connection.
func (p *env) switchTo(t *testing.T, path, protocol, header string) (*http.Response, *bufio.Reader, io.WriteCloser) {
	t.Helper()
	c, err := tls.Dial("tcp", p.addr, &tls.Config{RootCAs: p.roots, NextProtos: []string{"http/1.1"}})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	if err := c.SetDeadline(time.Now().Add(time.Minute)); err != nil {
		t.Fatal(err)
	}
	fmt.Fprintf(c, webSocketHandshake, path, p.addr, protocol, header)
	r := bufio.NewReader(c)
	res, err := http.ReadResponse(r, nil)
	if err != nil {
		t.Fatal(err)
	}
	return res, r, c
}

// TestMessagesOfAWatch checks that a watch of the server itself reaches a WebSocket as messages, until the
// client disconnects or the server stops.
func TestMessagesOfAWatch(t *testing.T) {
	ended := make(chan error, 2)
	stopping := make(chan struct{})
	p := startServer(t, func(http.ResponseWriter, *http.Request) { t.Error("a cluster received a request") }, func(s *Server) {
		s.Handle = func(x *Exchange) error {
			if err := x.Routed("", "east", "west"); err != nil {
				return err
			}
			if err := x.Answer(); err != nil {
				return err
			}
			for name := range x.Out.Header {
				if strings.HasPrefix(name, "Sec-Websocket") {
					t.Errorf("a cluster would receive %s", name)
				}
			}
			if x.Request.Namespace == "forbidden" {
				x.W.Header().Set("Content-Type", "application/json")
				x.W.WriteHeader(http.StatusForbidden)
				io.WriteString(x.W, "{}")
				return nil
			}
			x.W.Header().Set("Mca-Cluster", "merged")
			x.W.Header().Set("Content-Type", "application/json")
			to, ctx, err := x.Watch()
			if err != nil {
				return err
			}
			if err := to.Send([]byte(`{"type":"ADDED"}`), true); err != nil {
				return err
			}
			if err := to.Flush(); err != nil {
				return err
			}
			select {
			case <-ctx.Done():
			case <-stopping:
			}
			ended <- ctx.Err()
			return nil
		}
	})
	first := func(r io.Reader) {
		t.Helper()
		b := make([]byte, 18)
		if _, err := io.ReadFull(r, b); err != nil || string(b) != "\x81\x10"+`{"type":"ADDED"}` {
			t.Errorf("the first message: %q, %v", b, err)
		}
	}
	const path = "/api/v1/namespaces/shop/configmaps?watch=1"
	res, r, c := p.switchTo(t, path, "websocket", webSocketHeader)
	switch {
	case res.StatusCode != http.StatusSwitchingProtocols:
		t.Errorf("res.StatusCode = %v, want %v", res.StatusCode, http.StatusSwitchingProtocols)
	case res.Header.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo=":
		t.Errorf(`res.Header.Get("Sec-Websocket-Accept") != "s3pPLMBiTxaQ9kYGzzhZRbK+xOo="; %s, %v`, res.Status, res.Header)
	case res.Header.Get("Mca-Cluster") != "merged":
		t.Errorf(`res.Header.Get("Mca-Cluster") != "merged"; %s, %v`, res.Status, res.Header)
	case res.Header.Get("Upgrade") != "websocket":
		t.Errorf(`res.Header.Get("Upgrade") != "websocket"; %s, %v`, res.Status, res.Header)
	case res.Header.Get("Content-Type") != "":
		t.Errorf(`res.Header.Get("Content-Type") != ""; %s, %v`, res.Status, res.Header)
	case res.Header.Get("Sec-Websocket-Protocol") != "":
		t.Errorf(`res.Header.Get("Sec-Websocket-Protocol") != ""; %s, %v`, res.Status, res.Header)
	}
	first(r)
	c.Write([]byte("\x88\x80\x01\x02\x03\x04")) // a close frame without a code
	if b, err := io.ReadAll(r); err != nil || string(b) != "\x88\x02\x03\xe8" {
		t.Errorf("a close is answered with %q, %v", b, err)
	}
	if err := <-ended; err != context.Canceled {
		t.Errorf("the client left: %v", err)
	}

	for _, tt := range []struct {
		why, path, protocol, header, want string
		status                            int
	}{
		{"by SPDY", path, "SPDY/3.1", "", "to websocket", 400},
		{"no key", path, "websocket", "Sec-WebSocket-Version: 13\r\n", "Sec-WebSocket-Key", 400},
		{"of the past", path, "websocket", "Sec-WebSocket-Version: 8\r\n", "Sec-WebSocket-Version", 400},
		{"an answer that is no stream", "/api/v1/namespaces/forbidden/configmaps?watch=1", "websocket", webSocketHeader, "{}", 403},
	} {
		res, r, _ := p.switchTo(t, tt.path, tt.protocol, tt.header)
		b, err := io.ReadAll(res.Body)
		switch {
		case err != nil:
			t.Errorf("%s: %v", tt.why, err)
		case res.StatusCode != tt.status:
			t.Errorf("%s: res.StatusCode = %v, want %v", tt.why, res.StatusCode, tt.status)
		case !strings.Contains(string(b), tt.want):
			t.Errorf("%s: string(b) = %q does not contain %q", tt.why, string(b), tt.want)
		case !res.Close:
			t.Errorf("%s: res.Close is false, %s, %q, %v, %v", tt.why, res.Status, b, res.Close, err)
		}
		if _, err := r.ReadByte(); err != io.EOF {
			t.Errorf("%s: the connection is open: %v", tt.why, err)
		}
	}

	_, r, _ = p.switchTo(t, path, "websocket", webSocketHeader)
	first(r)
	p.stop()
	close(stopping) // as merged watches do
	if b, err := io.ReadAll(r); err != nil || string(b) != "\x88\x02\x03\xe8" {
		t.Errorf("the server's end: %q, %v", b, err)
	}
	if err := <-ended; err != nil {
		t.Errorf("the server closed first, not the client: %v", err)
	}
	if !strings.Contains(p.log.String(), `"stream":"watch","upgrade":"websocket","code":101`) {
		t.Errorf("the log has no line for it: %s", p.log)
	}
}
