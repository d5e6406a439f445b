package recording

import (
	"bytes"
	"context"
	"encoding/binary"
	"errors"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy/recording/frames"
)

// pipes is a listener in memory, so that servers can run in synctest.
type pipes struct {
	conns chan net.Conn
	gone  chan struct{}
	once  sync.Once

	mu  sync.Mutex
	all []net.Conn
}

func (p *pipes) Accept() (net.Conn, error) {
	select {
	case c := <-p.conns:
		return c, nil
	case <-p.gone:
		return nil, net.ErrClosed
	}
}
func (p *pipes) Close() error   { p.once.Do(func() { close(p.gone) }); return nil }
func (p *pipes) Addr() net.Addr { return &net.TCPAddr{} }

// Dial connects to the listener.
func (p *pipes) Dial(context.Context, string, string) (net.Conn, error) {
	near, far := net.Pipe()
	p.mu.Lock()
	p.all = append(p.all, far)
	p.mu.Unlock()
	select {
	case p.conns <- far:
		return near, nil
	case <-p.gone:
		return nil, errors.New("connection refused")
	}
}

// serve starts a recorder with HTTP/2 without TLS, or with HTTP/1.1, and returns the Sink that uses it, and a function that kills it.
func serve(t *testing.T, h http.Handler, http1 bool) (*Recorder, func()) {
	t.Helper()
	p := &pipes{conns: make(chan net.Conn), gone: make(chan struct{})}
	protocols := new(http.Protocols)
	protocols.SetHTTP1(http1)
	protocols.SetUnencryptedHTTP2(!http1)
	s := &http.Server{Handler: h, Protocols: protocols}
	done := make(chan struct{})
	go func() {
		defer close(done)
		s.Serve(p)
	}()
	kill := func() {
		s.Close()
		<-done
		p.mu.Lock()
		defer p.mu.Unlock()
		for _, c := range p.all {
			c.Close() // the server does not close connections of HTTP/2
		}
	}
	t.Cleanup(kill)
	return &Recorder{Addr: "recorder:80", Dial: p.Dial}, kill
}

// openDir opens a Dir in a new directory.
func openDir(t *testing.T, cfg DirConfig) *Dir {
	t.Helper()
	if cfg.Path == "" {
		cfg.Path = t.TempDir()
	}
	d, err := OpenDir(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { d.Close() })
	return d
}

// contents returns the recording's text.
func contents(t *testing.T, d *Dir, id string) (string, Info) {
	t.Helper()
	f, info, err := d.Open(id)
	if err != nil {
		t.Fatal(err)
	}
	defer f.Close()
	b, err := io.ReadAll(f)
	if err != nil {
		t.Fatal(err)
	}
	return string(b), info
}

var (
	terminal = frames.Protocol{Kind: frames.Exec, Framing: frames.WebSocket, Version: "v5.channel.k8s.io"}
	shell    = Header{SrcNode: "laptop.tail.ts.net", SrcNodeUser: "ada@example.com", Kubernetes: &Kubernetes{PodName: "web-0", Namespace: "shop"},
		Tailplane: &Details{Cluster: "prod", Kind: "exec", AuditID: "audit-1"}}
)

// stream is one recorded stream: a session, and the two sides of its connection.
type stream struct {
	*Session
	conn     *frames.Conn
	seen     bytes.Buffer // by the client
	toClient io.Writer
	toServer io.Writer
}

// open starts a recorded stream.
func open(t *testing.T, cfg Config, p frames.Protocol) *stream {
	t.Helper()
	if cfg.Header.Tailplane == nil {
		cfg.Header = shell
	}
	s, err := Start(t.Context(), cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		ended, cancel := context.WithCancel(context.Background())
		cancel()
		s.End(ended, "the test has ended")
	})
	c, err := s.Conn(p)
	if err != nil {
		t.Fatal(err)
	}
	st := &stream{Session: s, conn: c}
	st.toClient, st.toServer = c.ToClient(&st.seen), c.ToServer(io.Discard)
	return st
}

// message returns a WebSocket message on a channel. That of a client has the mask 0.
func message(from frames.Side, ch frames.Channel, text string) []byte {
	b := []byte{0x82, 127}
	size := len(text) + 1
	switch {
	case size < 126:
		b[1] = byte(size)
	case size < 1<<16:
		b[1] = 126
		b = binary.BigEndian.AppendUint16(b, uint16(size))
	default:
		b = binary.BigEndian.AppendUint64(b, uint64(size))
	}
	if from == frames.Client {
		b[1] |= 0x80
		b = append(b, 0, 0, 0, 0)
	}
	return append(append(b, byte(ch)), text...)
}

func (s *stream) output(t *testing.T, text string) {
	t.Helper()
	if _, err := s.toClient.Write(message(frames.Server, frames.Stdout, text)); err != nil {
		t.Fatal(err)
	}
}

func (s *stream) send(t *testing.T, ch frames.Channel, text string) {
	t.Helper()
	if _, err := s.toServer.Write(message(frames.Client, ch, text)); err != nil {
		t.Fatal(err)
	}
}

// output returns the joined events of a code.
func joined(events []string, code string) (s string) {
	for _, e := range events {
		if text, ok := strings.CutPrefix(e, code+" "); ok {
			s += text
		}
	}
	return s
}

// bubble runs a test in virtual time. Its directory is made outside, because the system's files do not belong to the bubble.
func bubble(t *testing.T, f func(t *testing.T, dir string)) {
	dir := t.TempDir()
	synctest.Test(t, func(t *testing.T) { f(t, dir) })
}

// files returns the names of a directory.
func files(t *testing.T, dir string) (names []string) {
	t.Helper()
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	for _, e := range entries {
		names = append(names, e.Name())
	}
	return names
}

const second = time.Second
