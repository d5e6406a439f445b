package attacktest

import (
	"bufio"
	"crypto/tls"
	"errors"
	"io"
	"net"
	"net/http"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

const API = signin.Base

// ServingNames returns the names under which an access server serves, from its log.
func ServingNames(t *testing.T, p *testenv.Process) (names []string) {
	t.Helper()
	for _, line := range strings.Split(p.Output(), "\n") {
		if strings.Contains(line, `"access is serving"`) {
			var said struct{ Names []string }
			Decode(t, line, &said)
			names = said.Names
		}
	}
	if len(names) < 4 {
		t.Fatalf("the server has the names %v; want a full name, a short name and two addresses", names)
	}
	return names
}

// Conn is a connection on which a test writes bytes that no ordinary client would send.
type Conn struct {
	t       *testing.T
	NetConn net.Conn
	r       *bufio.Reader
}

// Dial connects to the access server as p, with TLS only.
func (s *Env) Dial(t *testing.T, p *testenv.Person, protocols ...string) *Conn {
	t.Helper()
	raw, err := p.Node.Dial(t.Context(), "tcp", "tka."+s.Net.Suffix()+":443")
	if err != nil {
		t.Fatal(err)
	}
	conn := tls.Client(raw, &tls.Config{RootCAs: s.Roots, ServerName: "tka." + s.Net.Suffix(), NextProtos: protocols})
	if err := conn.HandshakeContext(t.Context()); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { conn.Close() })
	return NewConn(t, conn)
}

// NewConn returns a Conn on a connection.
func NewConn(t *testing.T, conn net.Conn) *Conn { return &Conn{t, conn, bufio.NewReader(conn)} }

func (w *Conn) Send(raw string) {
	w.t.Helper()
	if err := w.NetConn.SetDeadline(time.Now().Add(Long)); err != nil {
		w.t.Fatal(err)
	}
	if _, err := io.WriteString(w.NetConn, raw); err != nil && !errors.Is(err, net.ErrClosed) {
		w.t.Logf("write: %v", err) // the server may have closed the connection already; its response counts
	}
}

// Receive reads one response.
func (w *Conn) Receive() (Answer, error) {
	w.t.Helper()
	res, err := http.ReadResponse(w.r, nil)
	if err != nil {
		return Answer{}, err
	}
	return ReadAnswer(w.t, res), nil
}

// Rest reads all further responses until the server closes the connection, or sends nothing for a while.
func (w *Conn) Rest(while time.Duration) (answers []Answer, closed bool) {
	w.t.Helper()
	for {
		w.NetConn.SetReadDeadline(time.Now().Add(while))
		a, err := w.Receive()
		if err != nil {
			var late net.Error
			return answers, !(errors.As(err, &late) && late.Timeout())
		}
		answers = append(answers, a)
	}
}
