//go:build unix

package kubetest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net/http"
	"slices"
	"strings"
	"sync"
	"time"
)

// Fault is one way in which a request to the API server fails, in the server or on the path to it.
type Fault string

// The faults. Requests for Events and Leases never fail: tests do not examine them, and a lost leader election ends a
// program.
const (
	TooManyRequests Fault = "429"          // with Retry-After: 1; client-go retries up to ten times
	ServerError     Fault = "500"          // InternalError
	Unavailable     Fault = "503"          // without Retry-After
	Conflict        Fault = "409"          // for a write to an existing object, as after a concurrent update
	Refused         Fault = "refused"      // the connection breaks before the server handles the request
	Lost            Fault = "lost"         // the server handles the request, and the connection breaks before the response
	Silent          Fault = "silent"       // no response and no end, until the client gives up
	WatchExpired    Fault = "410"          // a watch cannot start at the requested resourceVersion
	WatchCut        Fault = "watch is cut" // a running watch ends within a second
)

// errBroken is the error that a client sees when the storm breaks its connection.
var errBroken = fmt.Errorf("the storm broke the connection: %w", io.ErrUnexpectedEOF)

// Storm is a round tripper between a client and the API server that lets requests fail at random. The real API server
// handles all other requests. A new Storm is calm: no request fails.
type Storm struct {
	mu      sync.Mutex
	rand    *rand.Rand
	chances map[Fault]float64
	due     map[Fault]bool // faults that have not occurred since Blow
	watches map[*watchBody]bool
	struck  map[Fault]int
}

// NewStorm returns a calm storm. seed initialises its random numbers.
func NewStorm(seed uint64) *Storm {
	return &Storm{rand: rand.New(rand.NewPCG(seed, 0x5708)), watches: map[*watchBody]bool{}, struck: map[Fault]int{}}
}

// Blow sets the probability of each fault, from 0 to 1. It replaces earlier values; an empty map makes the storm
// calm. Each fault with a probability occurs at the first request that it can affect, so that a test need not wait for luck.
func (s *Storm) Blow(chances map[Fault]float64) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.chances, s.due = chances, map[Fault]bool{}
	for f, chance := range chances {
		s.due[f] = chance > 0
	}
}

// Struck returns the number of times that each fault occurred.
func (s *Storm) Struck() map[Fault]int {
	s.mu.Lock()
	defer s.mu.Unlock()
	out := map[Fault]int{}
	for f, n := range s.struck {
		out[f] = n
	}
	return out
}

// CutWatches ends all running watches, as a restart of a load balancer does, and returns their number.
func (s *Storm) CutWatches() int {
	s.mu.Lock()
	cut := s.watches
	s.watches = map[*watchBody]bool{}
	s.struck[WatchCut] += len(cut)
	s.mu.Unlock()
	for w := range cut {
		_ = w.ReadCloser.Close() // the next read of the watch returns an error or EOF
	}
	return len(cut)
}

// Wrap is for rest.Config.Wrap, or wraps the transport of a proxy.
func (s *Storm) Wrap(next http.RoundTripper) http.RoundTripper { return stormTransport{s, next} }

type stormTransport struct {
	*Storm
	next http.RoundTripper
}

// RoundTrip forwards req, or fails with a random fault.
func (t stormTransport) RoundTrip(req *http.Request) (*http.Response, error) {
	if strings.Contains(req.URL.Path, "/events") || strings.Contains(req.URL.Path, "/leases") {
		return t.next.RoundTrip(req)
	}
	watch := slices.Contains([]string{"true", "1"}, req.URL.Query().Get("watch"))
	fault := t.strikes(req.Method, watch)
	switch fault {
	case "", Lost, WatchCut:
	case Silent:
		<-req.Context().Done()
		return nil, context.Cause(req.Context())
	default:
		if req.Body != nil {
			_ = req.Body.Close()
		}
		if fault == Refused {
			return nil, errBroken
		}
		return fault.response(req), nil
	}
	resp, err := t.next.RoundTrip(req)
	switch {
	case err != nil:
		return nil, err
	case fault == Lost:
		_ = resp.Body.Close()
		return nil, errBroken
	case watch:
		w := &watchBody{resp.Body, t.Storm}
		resp.Body = w
		t.mu.Lock()
		t.watches[w] = true
		t.mu.Unlock()
		if fault == WatchCut {
			time.AfterFunc(time.Second, func() { _ = resp.Body.Close() })
		}
	}
	return resp, nil
}

// strikes chooses the fault for one request, or "".
func (s *Storm) strikes(method string, watch bool) Fault {
	s.mu.Lock()
	defer s.mu.Unlock()
	at, random := s.rand.Float64(), Fault("")
	for _, f := range []Fault{TooManyRequests, ServerError, Unavailable, Conflict, Refused, Lost, Silent, WatchExpired, WatchCut} {
		if of := f == WatchExpired || f == WatchCut; of && !watch ||
			f == Conflict && (method == http.MethodGet || method == http.MethodPost) ||
			f == Lost && (watch || method == http.MethodGet) {
			continue
		}
		if s.due[f] {
			delete(s.due, f)
			s.struck[f]++
			return f
		}
		if at -= s.chances[f]; at < 0 && random == "" {
			random = f
		}
	}
	if random != "" {
		s.struck[random]++
	}
	return random
}

// response returns the API server's response for the fault.
func (f Fault) response(req *http.Request) *http.Response {
	reason := map[Fault]string{TooManyRequests: "TooManyRequests", ServerError: "InternalError", Unavailable: "ServiceUnavailable", Conflict: "Conflict", WatchExpired: "Expired"}[f]
	body := fmt.Sprintf(`{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure","message":"a storm: %s","reason":%q,"code":%s}`, f, reason, f)
	var code int
	_, _ = fmt.Sscan(string(f), &code)
	h := http.Header{"Content-Type": {"application/json"}}
	if f == TooManyRequests {
		h.Set("Retry-After", "1")
	}
	return &http.Response{Status: fmt.Sprintf("%d %s", code, http.StatusText(code)), StatusCode: code, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1,
		Header: h, Body: io.NopCloser(strings.NewReader(body)), ContentLength: int64(len(body)), Request: req}
}

// watchBody is the body of a watch response.
type watchBody struct {
	io.ReadCloser
	storm *Storm
}

func (w *watchBody) Read(p []byte) (int, error) {
	n, err := w.ReadCloser.Read(p)
	if err != nil && !errors.Is(err, io.EOF) {
		err = errBroken
	}
	return n, err
}

func (w *watchBody) Close() error {
	w.storm.mu.Lock()
	delete(w.storm.watches, w)
	w.storm.mu.Unlock()
	return w.ReadCloser.Close()
}
