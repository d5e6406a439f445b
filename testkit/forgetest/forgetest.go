// Package forgetest has a GitHub and a GitLab for tests and the demo: servers on
// loopback that do what the fleet relies on, and go wrong when they are told to. It
// keeps law 7: what a forge of the fleet's was never seen to do, these do not do
// either, they refuse it.
package forgetest

import (
	"net"
	"net/http"
	"net/http/httptest"
	"slices"
	"sync"
)

// A Call is one request that a forge was sent.
type Call struct {
	Method, Path, Query string // Path as it was sent, escaped
	Status              int    // that was answered; 0: there was no answer
}

// A Fault is what a forge does instead of answering as it should.
type Fault struct {
	// Status, if not 0, is answered instead, with Header and Body.
	Status int
	Header http.Header
	Body   string

	// After says that the request takes effect first, and only its answer is lost.
	// Without it nothing happens.
	After bool
	// Hang has the request answered never: until who asked gives up, or the test ends.
	Hang bool
	// Drop closes the connection without an answer.
	Drop bool
	// Cut, if not 0, answers as it should, but closes the connection after so many
	// bytes of the body.
	Cut int
}

// A front is what both forges have before them: it writes down what was asked, in
// order, and lets tests spoil answers.
type front struct {
	// URL is where the forge is, without a path.
	URL string

	ended chan struct{}

	mu    sync.Mutex
	calls []Call
	fault func(*http.Request) *Fault
}

// open starts the server.
func (f *front) open(forge http.Handler) (stop func()) {
	f.ended = make(chan struct{})
	server := httptest.NewServer(f.before(forge))
	f.URL = server.URL
	return func() {
		close(f.ended)
		server.CloseClientConnections()
		server.Close()
	}
}

// Calls returns what was asked so far.
func (f *front) Calls() []Call {
	f.mu.Lock()
	defer f.mu.Unlock()
	return slices.Clone(f.calls)
}

// Forget forgets what was asked so far.
func (f *front) Forget() {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = nil
}

// Fault has a function decide about each request from now on whether it goes wrong;
// nil is that it does not. It may be called by several requests at once.
func (f *front) Fault(decide func(*http.Request) *Fault) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.fault = decide
}

func (f *front) record(r *http.Request, status int) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.calls = append(f.calls, Call{Method: r.Method, Path: r.URL.EscapedPath(), Query: r.URL.RawQuery, Status: status})
}

func (f *front) before(forge http.Handler) http.Handler {
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
		tcp.SetLinger(0) // a reset, not an end
	}
	conn.Close()
}
