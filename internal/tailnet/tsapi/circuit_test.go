package tsapi

import (
	"context"
	"errors"
	"io"
	"net/http"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/util/secret"
)

// A wire is a fake transport for tests with a fake clock.
type wire struct {
	answer func(*http.Request) (int, string)
	asked  []time.Time // times of list requests
	tokens int
}

func (w *wire) RoundTrip(r *http.Request) (*http.Response, error) {
	status, body := 0, ""
	if strings.HasPrefix(r.URL.Path, "/api/v2/oauth/") {
		w.tokens++
		status, body = 200, `{"access_token":"t","token_type":"Bearer","expires_in":3600}`
	} else {
		w.asked = append(w.asked, time.Now())
		status, body = w.answer(r)
	}
	if status == 0 {
		<-r.Context().Done() // the request hangs
		return nil, r.Context().Err()
	}
	return &http.Response{StatusCode: status, Header: http.Header{"Content-Type": {"application/json"}}, Body: io.NopCloser(strings.NewReader(body)), Request: r}, nil
}

var errDone = errors.New("the caller had enough")

const noDevices = `{"devices":[],"vipServices":[]}`

func bubbleClient(t *testing.T, w *wire) *Client {
	return newClient(t, Config{BaseURL: "https://api.example.com", Tailnet: "-", Credential: Credential{ClientID: "k", Secret: secret.New("s")},
		UserAgent: "x", PerSecond: 1000, Burst: 1000, Now: time.Now, transport: w})
}

// GTW-09: Five consecutive failures open the circuit for 60 s. Then one request tests the API, and
// the others still wait.
func TestCircuit(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 500
		w := &wire{answer: func(*http.Request) (int, string) { return status, noDevices }}
		c := bubbleClient(t, w)
		var waits []time.Duration
		for c.State().Circuit == Closed {
			_, err := c.Lists(t.Context(), 0)
			f := failure(err)
			if f == nil || f.Class != Unavailable {
				t.Fatal(err)
			}
			waits = append(waits, f.RetryAfter)
			time.Sleep(f.RetryAfter)
			if len(w.asked) >= 5 {
				break
			}
		}
		// The first is repeated at once; then the waits are about 1, 2 and 4 seconds, until the
		// fifth.
		if len(w.asked) != 5 || len(waits) != 4 {
			t.Fatalf("%d requests, waits %v", len(w.asked), waits)
		}
		if gap := w.asked[1].Sub(w.asked[0]); gap != 0 {
			t.Errorf("the first retry came after %v", gap)
		}
		for i, want := range []time.Duration{time.Second, 2 * time.Second, 4 * time.Second} {
			if got := waits[i]; got < want*8/10 || got > want*12/10 {
				t.Errorf("wait %d: %v, want about %v", i, got, want)
			}
		}
		if waits[3] != time.Minute {
			t.Errorf("an open circuit rests %v", waits[3])
		}
		switch s := c.State(); {
		case s.Circuit != HalfOpen:
			t.Errorf("a minute later: s.Circuit = %q, want %q", s.Circuit, HalfOpen)
		case s.Failures != 5:
			t.Errorf("a minute later: s.Failures = %v, want 5", s.Failures)
		case s.Last.Class != Unavailable:
			t.Errorf("a minute later: s.Last.Class = %q, want %q", s.Last.Class, Unavailable)
		}

		// The test request fails: the circuit is open for another minute without requests.
		_, err := c.Lists(t.Context(), 0)
		switch f := failure(err); {
		case f == nil:
			t.Fatal("f is nil")
		case f.RetryAfter != time.Minute:
			t.Fatalf("f.RetryAfter = %v, want %v", f.RetryAfter, time.Minute)
		case c.State().Circuit != Open:
			t.Fatalf("c.State().Circuit = %q, want %q", c.State().Circuit, Open)
		}
		requested := len(w.asked)
		time.Sleep(30 * time.Second)
		_, err = c.Lists(t.Context(), 0)
		switch f := failure(err); {
		case f == nil:
			t.Fatal("in between: f is nil")
		case f.Class != CircuitOpen:
			t.Fatalf("in between: f.Class = %q, want %q", f.Class, CircuitOpen)
		case f.RetryAfter != 30*time.Second:
			t.Fatalf("in between: f.RetryAfter = %v, want %v", f.RetryAfter, 30*time.Second)
		case len(w.asked) != requested:
			t.Fatalf("in between: len(w.asked) = %v, want %v", len(w.asked), requested)
		case requested != 6:
			t.Fatalf("in between: requested = %v, want 6", requested)
		}
		_, err = c.CreateKey(t.Context(), KeyRequest{})
		if f := failure(err); f == nil || f.Class != CircuitOpen {
			t.Errorf("another operation: %v", err)
		}

		// The test request hangs, and no other request is sent meanwhile.
		time.Sleep(30 * time.Second)
		status = 0
		got := make(chan error, 1)
		go func() { _, err := c.Keys(t.Context()); got <- err }()
		synctest.Wait()
		if _, err := c.CreateKey(t.Context(), KeyRequest{}); failure(err) == nil || failure(err).Class != CircuitOpen {
			t.Errorf("during the probe: %v", err)
		}
		begun := time.Now()
		switch f := failure(<-got); {
		case f == nil:
			t.Error("the hanging probe: f is nil")
		case f.Class != Unavailable:
			t.Errorf("the hanging probe: f.Class = %q, want %q", f.Class, Unavailable)
		case time.Since(begun) != attemptTime:
			t.Errorf("the hanging probe: time.Since(begun) != attemptTime; %v, %v", f, time.Since(begun))
		}

		// The API works again.
		time.Sleep(time.Minute)
		status = 200
		if _, err := c.Lists(t.Context(), 0); err != nil {
			t.Fatal(err)
		}
		switch s := c.State(); {
		case s.Circuit != Closed:
			t.Errorf("afterwards: s.Circuit = %q, want %q", s.Circuit, Closed)
		case s.Failures != 0:
			t.Errorf("afterwards: s.Failures = %v, want 0", s.Failures)
		case s.Last == nil:
			t.Error("afterwards: s.Last is nil")
		}
		if w.tokens != 1 {
			t.Errorf("%d tokens", w.tokens)
		}
	})
}

// A refusal is an answer. A caller that gives up gives no information about the API.
func TestCircuitCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		status := 403
		w := &wire{answer: func(*http.Request) (int, string) { return status, `{"message":"no"}` }}
		c := bubbleClient(t, w)
		for range 10 {
			switch _, err := c.Keys(t.Context()); {
			case failure(err) == nil:
				t.Fatal("failure(err) is nil")
			case failure(err).Class != Forbidden:
				t.Fatalf("failure(err).Class != Forbidden; %v", err)
			case failure(err).Message != "no":
				t.Fatalf(`failure(err).Message != "no"; %v`, err)
			}
		}
		status = 0
		for range 10 {
			ctx, cancel := context.WithTimeoutCause(t.Context(), time.Second, errDone)
			_, err := c.Keys(ctx)
			cancel()
			if failure(err) != nil || !errors.Is(err, errDone) {
				t.Fatal(err)
			}
		}
		if s := c.State(); s.Circuit != Closed || s.Failures != 0 {
			t.Errorf("%+v", s)
		}
		// A request without a response may have created a key, so it is not repeated.
		requested := len(w.asked)
		if _, err := c.CreateKey(t.Context(), KeyRequest{}); failure(err) == nil || failure(err).Class != Unavailable {
			t.Error(err)
		}
		if n := len(w.asked) - requested; n != 1 {
			t.Errorf("%d requests for one key", n)
		}
	})
}

// A token is used until one minute before it expires.
func TestTokenLife(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		w := &wire{answer: func(*http.Request) (int, string) { return 200, `{"keys":[]}` }}
		c := bubbleClient(t, w)
		for _, want := range []int{1, 1, 2} {
			if _, err := c.Keys(t.Context()); err != nil {
				t.Fatal(err)
			}
			if w.tokens != want {
				t.Errorf("%d tokens, want %d", w.tokens, want)
			}
			time.Sleep(30*time.Minute - 29*time.Second)
		}
	})
}

func TestBackoff(t *testing.T) {
	for failures, want := range map[int]time.Duration{0: 0, 1: 0, 2: time.Second, 3: 2 * time.Second, 10: 256 * time.Second, 11: 5 * time.Minute, 1000: 5 * time.Minute} {
		if got := backoff(failures, 0.5); got != want {
			t.Errorf("backoff(%d) = %v, want %v", failures, got, want)
		}
		if lo, hi := backoff(failures, 0), backoff(failures, 1); lo != want*8/10 || hi != want*12/10 {
			t.Errorf("backoff(%d) lies in %v to %v", failures, lo, hi)
		}
	}
}

func TestRetryAfterHeader(t *testing.T) {
	now := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	for text, want := range map[string]time.Duration{"": 0, "7": 7 * time.Second, "-1": 0, "soon": 0, "99999999": maxWait, "9999999999999999999": 0,
		"Fri, 02 Jan 2026 03:05:05 GMT": time.Minute, "Fri, 02 Jan 2026 03:00:05 GMT": 0, "Fri, 02 Jan 2036 03:00:05 GMT": maxWait} {
		if got := retryAfter(http.Header{"Retry-After": {text}}, now); got != want {
			t.Errorf("%q: %v, want %v", text, got, want)
		}
	}
}
