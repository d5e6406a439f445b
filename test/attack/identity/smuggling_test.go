package identity

import (
	"fmt"
	"net"
	"net/http"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// A smuggledRequest is a byte sequence in which a careless parser finds one more request than a strict one.
type smuggledRequest struct{ name, raw string }

// smuggled returns such byte sequences. start is a request line, host a valid Host value, and hidden the request to
// smuggle.
func smuggled(start, host, hidden string) []smuggledRequest {
	head := start + "Host: " + host + "\r\nContent-Type: application/json\r\n"
	chunk := func(ext string) string { return "2" + ext + "\r\n{}\r\n0\r\n\r\n" }
	n := fmt.Sprint(len(hidden))
	return []smuggledRequest{
		{"length and chunks", head + "Content-Length: " + fmt.Sprint(len(chunk(""))) + "\r\nTransfer-Encoding: chunked\r\n\r\n" + chunk("") + hidden},
		{"chunks and length", head + "Transfer-Encoding: chunked\r\nContent-Length: 6\r\n\r\n" + "0\r\n\r\n" + hidden},
		{"two lengths", head + "Content-Length: 0\r\nContent-Length: " + n + "\r\n\r\n" + hidden},
		{"two lengths in one", head + "Content-Length: 0, " + n + "\r\n\r\n" + hidden},
		{"a signed length", head + "Content-Length: +0\r\n\r\n" + hidden},
		{"a negative length", head + "Content-Length: -1\r\n\r\n" + hidden},
		{"a length in hex", head + "Content-Length: 0x0\r\n\r\n" + hidden},
		{"an empty length", head + "Content-Length: \r\n\r\n" + hidden},
		{"an odd encoding", head + "Transfer-Encoding: xchunked\r\n\r\n" + chunk("") + hidden},
		{"two encodings", head + "Transfer-Encoding: identity, chunked\r\n\r\n" + chunk("") + hidden},
		{"an encoding twice", head + "Transfer-Encoding: chunked\r\nTransfer-Encoding: identity\r\n\r\n" + chunk("") + hidden},
		{"an encoding after a tab", head + "Transfer-Encoding:\x0bchunked\r\n\r\n" + chunk("") + hidden},
		{"a bare LF after the request line", strings.Replace(head, "\r\n", "\n", 1) + "Content-Length: 2\r\n\r\n{}" + hidden},
		{"a bare LF after a header", head + "X-A: b\nContent-Length: 2\r\n\r\n{}" + hidden},
		{"a bare LF at the end of the headers", head + "Content-Length: 2\r\n\n{}" + hidden},
		{"a bare CR in a header", head + "X-A: b\rContent-Length: 0\r\nContent-Length: 2\r\n\r\n{}" + hidden},
		{"a space before the colon", head + "Content-Length : 2\r\n\r\n{}" + hidden},
		{"a tab before the colon", head + "Transfer-Encoding\t: chunked\r\n\r\n" + chunk("") + hidden},
		{"a space before the name", head + " Content-Length: 2\r\n\r\n{}" + hidden},
		{"a folded header", head + "X-A: b\r\n Content-Length: 100\r\nContent-Length: 2\r\n\r\n{}" + hidden},
		{"a folded encoding", head + "Transfer-Encoding:\r\n chunked\r\n\r\n" + chunk("") + hidden},
		{"a chunk extension", head + "Transfer-Encoding: chunked\r\n\r\n" + chunk(";a=b") + hidden},
		{"a chunk extension with a bare LF", head + "Transfer-Encoding: chunked\r\n\r\n" + "2;\nxx\r\n{}\r\n0\r\n\r\n" + hidden},
		{"a chunk of a signed size", head + "Transfer-Encoding: chunked\r\n\r\n" + "+2\r\n{}\r\n0\r\n\r\n" + hidden},
		{"a chunk without its end", head + "Transfer-Encoding: chunked\r\n\r\n" + "2\r\n{}0\r\n\r\n" + hidden},
		{"a chunk with a bare LF", head + "Transfer-Encoding: chunked\r\n\r\n" + "2\n{}\n0\n\n" + hidden},
		{"a NUL in a header", head + "X-A: \x00\r\nContent-Length: 2\r\n\r\n{}" + hidden},
		{"two hosts", strings.Replace(head, start, start+"Host: evil.example\r\n", 1) + "Content-Length: 2\r\n\r\n{}" + hidden},
		{"no version", strings.Replace(start, " HTTP/1.1", "", 1) + "Host: " + host + "\r\n\r\n" + hidden},
		{"a version of its own", strings.Replace(head, "HTTP/1.1", "HTTP/1.10", 1) + "Content-Length: 2\r\n\r\n{}" + hidden},
		{"a space in the target", strings.Replace(head, " HTTP", " x HTTP", 1) + "Content-Length: 2\r\n\r\n{}" + hidden},
		{"an old version with chunks", strings.Replace(head, "HTTP/1.1", "HTTP/1.0", 1) + "Transfer-Encoding: chunked\r\n\r\n" + chunk("") + hidden},
	}
}

// ID-15. When two parsers could disagree about the end of a request, the server refuses it and closes the connection.
// It never processes the bytes that follow.
//
// Guard: internal/httpapi/framing, which checks a request before net/http parses it.
func TestID15_Smuggling(t *testing.T) {
	s := attacktest.Start(t)
	alice := s.Alice(t)
	host := "tka." + s.Net.Suffix()
	st := s.Login(t, alice, signin.LoginRequest{})
	uid := s.SignIns(t, st.Username)[0].UID
	// The hidden request would end alice's sign-in.
	hidden := "POST /api/v1alpha1/logout HTTP/1.1\r\nHost: " + host + "\r\nContent-Length: 0\r\n\r\n"
	const login = "POST /api/v1alpha1/login HTTP/1.1\r\n"
	for _, tt := range smuggled(login, host, hidden) {
		t.Run(tt.name, func(t *testing.T) {
			m := s.Mark(t)
			w := s.Dial(t, alice)
			w.Send(tt.raw)
			answers, closed := w.Rest(attacktest.Long)
			switch {
			case len(answers) != 1:
				t.Errorf("answered: len(answers) = %v, want 1", len(answers))
			case answers[0].Status != http.StatusBadRequest:
				t.Errorf("answered: answers[0].Status = %v, want %v", answers[0].Status, http.StatusBadRequest)
			case !closed:
				t.Errorf("answered: closed is false; answers = %v, closed = %v", answers, closed)
			}
			for _, e := range m.Entries(t) {
				if e.Verb == access.SigninLogout || e.Result == audit.Done {
					t.Errorf("a handler was reached: %+v", e)
				}
			}
			if asked := m.Requests(t, attacktest.AccessAccount); len(asked) > 0 {
				t.Errorf("requests to the API server: %v", asked)
			}
		})
	}
	if now := s.SignIns(t, st.Username); len(now) != 1 || now[0].UID != uid {
		t.Fatalf("the hidden request was processed: %+v", now)
	}
	// Probes accept no body, so a request hidden in a body is more likely to be processed there.
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		at := s.ProbeAddress(t, p)
		for _, tt := range smuggled("GET /livez HTTP/1.1\r\n", "localhost", "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n") {
			t.Run("probes of "+p.Args[1]+"/"+tt.name, func(t *testing.T) {
				conn, err := net.Dial("tcp", at)
				if err != nil {
					t.Fatal(err)
				}
				defer conn.Close()
				w := attacktest.NewConn(t, conn)
				w.Send(tt.raw)
				switch answers, closed := w.Rest(attacktest.Long); {
				case len(answers) != 1:
					t.Errorf("answered: len(answers) = %v, want 1", len(answers))
				case answers[0].Status != http.StatusBadRequest:
					t.Errorf("answered: answers[0].Status = %v, want %v", answers[0].Status, http.StatusBadRequest)
				case !closed:
					t.Errorf("answered: closed is false; answers = %.300v, closed = %v", answers, closed)
				}
			})
		}
		conn, err := net.Dial("tcp", at)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		w := attacktest.NewConn(t, conn)
		w.Send("GET /livez HTTP/1.1\r\nHost: localhost\r\n\r\nGET /readyz HTTP/1.1\r\nHost: localhost\r\n\r\n")
		for range 2 {
			if a, err := w.Receive(); err != nil || a.Status != http.StatusOK {
				t.Errorf("probes: %v %v", a, err)
			}
		}
	}
	// Control: two valid requests on one connection count as two requests, and the second one has its normal effect.
	m := s.Mark(t)
	w := s.Dial(t, alice)
	w.Send(login + "Host: " + host + "\r\nContent-Type: application/json\r\nContent-Length: 2\r\n\r\n{}" + hidden)
	for i, want := range []int{http.StatusAccepted, http.StatusOK} {
		if a, err := w.Receive(); err != nil || a.Status != want {
			t.Errorf("answer %d: %v %v, want %d", i, a, err, want)
		}
	}
	if e := m.Entries(t); len(e) != 2 || e[1].Verb != access.SigninLogout {
		t.Errorf("recorded %+v", e)
	}
}
