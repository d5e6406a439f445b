// Package forgetest contains a GitHub and a GitLab for tests and the demo: servers on loopback that implement the
// parts that the fleet uses, and can inject faults. They reject every request whose behaviour at the real forge is
// not known (law 7).
package forgetest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
)

// Call is one request that a forge received.
type Call struct {
	Method, Path, Query string // Path is escaped, as sent
	Status              int    // of the response; 0: no response
}

// Fault is a wrong behaviour of a forge, instead of its normal response.
type Fault struct {
	// Status, if not 0, replaces the response, with Header and Body.
	Status int
	Header http.Header
	Body   string

	// After lets the request take effect, and only its response is lost. Otherwise the request has no effect.
	After bool
	// Hang never responds, until the client gives up or the test ends.
	Hang bool
	// Drop closes the connection without a response.
	Drop bool
	// Cut, if not 0, sends the normal response, but closes the connection after so many bytes of the body.
	Cut int
}

// forgeFake is the common part of both forges: it records the calls in order, and lets tests inject faults.
type forgeFake struct {
	// URL is the base URL of the forge, without a path.
	URL string

	ended chan struct{}

	mu    sync.Mutex
	calls []Call
	fault func(*http.Request) *Fault
}

// open starts the server.
func (f *forgeFake) open(forge http.Handler) (stop func()) {
	f.ended = make(chan struct{})
	server := httptest.NewServer(f.before(forge))
	f.URL = server.URL
	return func() {
		close(f.ended)
		server.CloseClientConnections()
		server.Close()
	}
}

// Calls returns the calls so far.
func (f *forgeFake) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Forget removes the recorded calls.
func (f *forgeFake) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

// Fault sets a function that returns the fault for each request from now on, or nil. The function must be safe for
// concurrent calls.
func (f *forgeFake) Fault(decide func(*http.Request) *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = decide
}

func (f *forgeFake) record(r *http.Request, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, Call{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Status: status})
}

func (f *forgeFake) before(forge http.Handler) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		f.mu.Lock()
		decide := f.fault
		f.mu.Unlock()
		fault := &Fault{}
		if decide != nil {
			if x := decide(r); x != nil {
				fault = x
			}
		}
		spoiled := fault.Status != 0 || fault.Hang || fault.Drop
		answer := httptest.NewRecorder()
		if !spoiled || fault.After {
			forge.ServeHTTP(answer, r)
		}
		switch {
		case fault.Hang:
			f.record(r, 0)
			select {
			case <-r.Context().Done():
			case <-f.ended:
			}
			panic(http.ErrAbortHandler)
		case fault.Drop:
			f.record(r, 0)
			hangUp(w)
			return
		case fault.Status != 0:
			answer = httptest.NewRecorder()
			for name, values := range fault.Header {
				answer.Header()[name] = values
			}
			answer.WriteHeader(fault.Status)
			answer.Body.WriteString(fault.Body)
		}
		f.record(r, answer.Code)
		for name, values := range answer.Header() {
			w.Header()[name] = values
		}
		body := answer.Body.Bytes()
		if fault.Cut > 0 && fault.Cut < len(body) {
			w.WriteHeader(answer.Code)
			w.Write(body[:fault.Cut])
			http.NewResponseController(w).Flush()
			panic(http.ErrAbortHandler)
		}
		w.WriteHeader(answer.Code)
		w.Write(body)
	})
}

// hangUp closes the connection of a request.
func hangUp(w http.ResponseWriter) {
	conn, _, err := http.NewResponseController(w).Hijack()
	if err != nil {
		panic(http.ErrAbortHandler)
	}
	if tcp, ok := conn.(*net.TCPConn); ok {
		tcp.SetLinger(0) // reset the connection instead of closing it normally
	}
	conn.Close()
}
