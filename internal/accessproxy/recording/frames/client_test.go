package frames

// Ends as Kubernetes' own client library sees them: each test runs client-go against a server through a proxy that copies through a Conn.

import (
	"bufio"
	"bytes"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/url"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/coder/websocket"
	"k8s.io/apimachinery/pkg/util/httpstream"      //lint:ignore SA1019 k8s.io/streaming would be one more direct dependency
	"k8s.io/apimachinery/pkg/util/httpstream/spdy" //lint:ignore SA1019 k8s.io/streaming would be one more direct dependency
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/portforward"
	"k8s.io/client-go/tools/remotecommand"
	transport "k8s.io/client-go/transport/spdy"
)

const sentence = "your sign-in has ended; run: tka login"

// proxyEnv is a proxy in front of a server, for one connection.
type proxyEnv struct {
	*httptest.Server
	conn chan *Conn // the connection, once it is switched
	mu   sync.Mutex
	seen []Event
}

func (p *proxyEnv) record(e Event) {
	e.Data = bytes.Clone(e.Data)
	p.mu.Lock()
	defer p.mu.Unlock()
	p.seen = append(p.seen, e)
}

// bytesOf returns what a channel has carried from a side.
func (p *proxyEnv) bytesOf(from Side, ch Channel) string {
	p.mu.Lock()
	defer p.mu.Unlock()
	var b strings.Builder
	for _, e := range p.seen {
		if e.Type == Bytes && e.From == from && e.Channel == ch {
			b.Write(e.Data)
		}
	}
	return b.String()
}

// newProxy starts a proxy before a server.
func newProxy(t *testing.T, kind Kind, server http.Handler) *proxyEnv {
	t.Helper()
	upstream := httptest.NewServer(server)
	t.Cleanup(upstream.Close)
	p := &proxyEnv{conn: make(chan *Conn, 1)}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		up, err := net.Dial("tcp", upstream.Listener.Addr().String())
		if err != nil {
			t.Error(err)
			return
		}
		defer up.Close()
		if err := r.Write(up); err != nil {
			t.Error(err)
			return
		}
		fromServer := bufio.NewReader(up)
		answer, err := http.ReadResponse(fromServer, r)
		if err != nil {
			t.Error(err)
			return
		}
		protocol, err := Negotiated(kind, answer.Header)
		if err != nil {
			t.Error(err)
			return
		}
		down, fromClient, err := http.NewResponseController(w).Hijack()
		if err != nil {
			t.Error(err)
			return
		}
		defer down.Close()
		if err := answer.Write(down); err != nil {
			t.Error(err)
			return
		}
		c := New(Config{Protocol: protocol, Event: p.record})
		toServer, toClient := c.ToServer(up), c.ToClient(down)
		gone := make(chan struct{})
		go func() {
			defer close(gone)
			io.Copy(toServer, fromClient)
		}()
		p.conn <- c
		io.Copy(toClient, fromServer)
		<-gone
	}))
	t.Cleanup(p.Close)
	return p
}

// execServer serves exec as a kubelet (SPDY) or an API server (WebSocket) does: it prints a prompt, echoes its input and never ends.
func execServer(t *testing.T) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"v5.channel.k8s.io"}})
			if err != nil {
				t.Error(err)
				return
			}
			ctx := context.Background()
			c.Write(ctx, websocket.MessageBinary, []byte("\x01$ "))
			for {
				_, b, err := c.Read(ctx)
				if err != nil {
					return
				}
				if len(b) > 0 && b[0] == 0 {
					c.Write(ctx, websocket.MessageBinary, append([]byte{1}, b[1:]...))
				}
			}
		}
		httpstream.Handshake(r, w, []string{"v4.channel.k8s.io"})
		streams := make(chan httpstream.Stream, 10)
		conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, func(s httpstream.Stream, replied <-chan struct{}) error {
			go func() {
				<-replied
				streams <- s
			}()
			return nil
		})
		if conn == nil {
			t.Error("the server cannot upgrade to SPDY")
			return
		}
		defer conn.Close()
		byType := map[string]httpstream.Stream{}
		for len(byType) < 4 { // error, stdin, stdout, resize
			s := <-streams
			byType[s.Headers().Get("streamType")] = s
		}
		fmt.Fprint(byType["stdout"], "$ ")
		io.Copy(byType["stdout"], byType["stdin"])
		<-conn.CloseChan()
	})
}

// waiter is a writer that tells when a text has arrived.
type waiter struct {
	mu   sync.Mutex
	text string
	want string
	done chan struct{}
}

func newWaiter(want string) *waiter { return &waiter{want: want, done: make(chan struct{})} }

func (w *waiter) Write(p []byte) (int, error) {
	w.mu.Lock()
	defer w.mu.Unlock()
	before := strings.Contains(w.text, w.want)
	if w.text += string(p); !before && strings.Contains(w.text, w.want) {
		close(w.done)
	}
	return len(p), nil
}

func (w *waiter) wait(t *testing.T) {
	t.Helper()
	select {
	case <-w.done:
	case <-time.After(20 * time.Second):
		w.mu.Lock()
		defer w.mu.Unlock()
		t.Fatalf("the output is %q, want %q in it", w.text, w.want)
	}
}

// PRX-06: kubectl's library returns our sentence as an error when a command is cut, over WebSocket and over SPDY.
func TestPRX06_CommandIsCut(t *testing.T) {
	for name, dial := range map[string]func(*rest.Config, *url.URL) (remotecommand.Executor, error){
		"WebSocket": func(c *rest.Config, u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewWebSocketExecutor(c, "GET", u.String())
		},
		"SPDY": func(c *rest.Config, u *url.URL) (remotecommand.Executor, error) {
			return remotecommand.NewSPDYExecutor(c, "POST", u)
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := newProxy(t, Exec, execServer(t))
			u, err := url.Parse(env.URL)
			if err != nil {
				t.Fatal(err)
			}
			exec, err := dial(&rest.Config{Host: env.URL}, u)
			if err != nil {
				t.Fatal(err)
			}
			stdin, typed := io.Pipe()
			defer typed.Close()
			stdout := newWaiter("$ hello")
			result := make(chan error, 1)
			go func() {
				result <- exec.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: stdin, Stdout: stdout, Tty: true})
			}()
			fmt.Fprint(typed, "hello")
			stdout.wait(t)
			if err := (<-env.conn).End(t.Context(), Reason{Message: sentence}); err != nil {
				t.Fatal(err)
			}
			if err := <-result; err == nil || err.Error() != sentence {
				t.Errorf("the client's error is %v, want %q", err, sentence)
			}
			if got := env.bytesOf(Server, Stdout); got != "$ hello" {
				t.Errorf("the output was recorded as %q, want %q", got, "$ hello")
			}
			if got := env.bytesOf(Client, Stdin); got != "hello" {
				t.Errorf("the input was recorded as %q, want %q", got, "hello")
			}
		})
	}
}

// PRX-06: kubectl's library does not wait for the answers to streams that it opens after the end of their SPDY connection.
func TestPRX06_CommandIsCutWhileItBegins(t *testing.T) {
	env := newProxy(t, Exec, execServer(t))
	u, err := url.Parse(env.URL)
	if err != nil {
		t.Fatal(err)
	}
	for range 20 {
		exec, err := remotecommand.NewSPDYExecutor(&rest.Config{Host: env.URL}, "POST", u)
		if err != nil {
			t.Fatal(err)
		}
		result := make(chan error, 1)
		go func() {
			result <- exec.StreamWithContext(t.Context(), remotecommand.StreamOptions{Stdin: strings.NewReader("hello"), Stdout: io.Discard, Tty: true})
		}()
		if err := (<-env.conn).End(t.Context(), Reason{Message: sentence}); err != nil {
			t.Fatal(err)
		}
		if err := <-result; err == nil || strings.Contains(err.Error(), "Timeout") {
			t.Fatalf("the client's error is %v, want one that comes at once", err)
		}
	}
}

// forwardServer serves port-forward: each data stream echoes.
func forwardServer(t *testing.T) http.Handler {
	handle := func(s httpstream.Stream, replied <-chan struct{}) error {
		go func() {
			<-replied
			if s.Headers().Get("streamType") == "data" {
				io.Copy(s, s)
			}
		}()
		return nil
	}
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if strings.EqualFold(r.Header.Get("Upgrade"), "websocket") {
			c, err := websocket.Accept(w, r, &websocket.AcceptOptions{Subprotocols: []string{"SPDY/3.1+portforward.k8s.io"}})
			if err != nil {
				t.Error(err)
				return
			}
			conn, err := spdy.NewServerConnection(websocket.NetConn(context.Background(), c, websocket.MessageBinary), handle)
			if err != nil {
				t.Error(err)
				return
			}
			<-conn.CloseChan()
			return
		}
		httpstream.Handshake(r, w, []string{"portforward.k8s.io"})
		if conn := spdy.NewResponseUpgrader().UpgradeResponse(w, r, handle); conn != nil {
			<-conn.CloseChan()
		}
	})
}

// PRX-06: a port-forward prints our sentence for each open connection and ends, over SPDY and over SPDY in WebSocket.
func TestPRX06_PortForwardIsCut(t *testing.T) {
	for name, dialer := range map[string]func(*rest.Config, *url.URL) (httpstream.Dialer, error){
		"WebSocket": func(c *rest.Config, u *url.URL) (httpstream.Dialer, error) {
			return portforward.NewSPDYOverWebsocketDialer(u, c)
		},
		"SPDY": func(c *rest.Config, u *url.URL) (httpstream.Dialer, error) {
			rt, upgrader, err := transport.RoundTripperFor(c)
			return transport.NewDialer(upgrader, &http.Client{Transport: rt}, "POST", u), err
		},
	} {
		t.Run(name, func(t *testing.T) {
			env := newProxy(t, PortForward, forwardServer(t))
			u, err := url.Parse(env.URL)
			if err != nil {
				t.Fatal(err)
			}
			d, err := dialer(&rest.Config{Host: env.URL}, u)
			if err != nil {
				t.Fatal(err)
			}
			ready, stderr := make(chan struct{}), newWaiter(sentence)
			fw, err := portforward.New(d, []string{"0:80"}, nil, ready, io.Discard, stderr)
			if err != nil {
				t.Fatal(err)
			}
			result := make(chan error, 1)
			go func() { result <- fw.ForwardPorts() }()
			<-ready
			ports, err := fw.GetPorts()
			if err != nil {
				t.Fatal(err)
			}
			local, err := net.Dial("tcp", fmt.Sprintf("127.0.0.1:%d", ports[0].Local))
			if err != nil {
				t.Fatal(err)
			}
			defer local.Close()
			fmt.Fprint(local, "ping")
			if _, err := io.ReadFull(local, make([]byte, 4)); err != nil {
				t.Fatal(err)
			}
			if err := (<-env.conn).End(t.Context(), Reason{Message: sentence}); err != nil {
				t.Fatal(err)
			}
			if err := <-result; err == nil || !strings.Contains(err.Error(), "lost connection") {
				t.Errorf("the client's error is %v, want a lost connection", err)
			}
			if rest, err := io.ReadAll(local); len(rest) > 0 {
				t.Errorf("after the end the forwarded connection had %q (%v)", rest, err)
			}
			if got := env.bytesOf(Server, Data); got != "ping" {
				t.Errorf("the forwarded bytes were seen as %q, want ping", got)
			}
			env.mu.Lock()
			defer env.mu.Unlock()
			var opened []string
			for _, e := range env.seen {
				if e.Type == Opened {
					opened = append(opened, fmt.Sprintf("%s %s %s", e.Channel, e.Port, e.RequestID))
				}
			}
			if got, want := strings.Join(opened, ", "), "error 80 0, data 80 0"; got != want {
				t.Errorf("the streams are %q, want %q", got, want)
			}
		})
	}
}
