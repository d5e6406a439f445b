package isolation

import (
	"context"
	"errors"
	"net"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"sync"
	"syscall"
	"testing"
	"testing/synctest"
	"time"
)

// fakeNetwork simulates a network: some addresses answer, some refuse, and all others are silent.
type fakeNetwork struct {
	mu      sync.Mutex
	answers map[string]error // nil: it accepts the connection
}

func (n *fakeNetwork) set(address string, err error, exists bool) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if delete(n.answers, address); exists {
		n.answers[address] = err
	}
}

func (n *fakeNetwork) dial(ctx context.Context, _, address string) (net.Conn, error) {
	n.mu.Lock()
	err, exists := n.answers[address]
	n.mu.Unlock()
	switch {
	case !exists:
		<-ctx.Done()
		return nil, os.ErrDeadlineExceeded
	case err != nil:
		return nil, &net.OpError{Op: "dial", Err: os.NewSyscallError("connect", err)}
	}
	a, b := net.Pipe()
	b.Close()
	return a, nil
}

func isEnforced(c *CanaryProbe) bool {
	w := httptest.NewRecorder()
	c.ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/", nil))
	return w.Code == http.StatusOK
}

// FL-05: a reached address is named, a refused connection is an answer, and a pod without any
// connection proves nothing.
func TestCanary(t *testing.T) {
	const metadata, tailnet, forge = "169.254.169.254:80", "100.100.100.100:80", "forge.example:443"
	run := func(t *testing.T, n *fakeNetwork, then func(c *CanaryProbe)) (err error) {
		c := &CanaryProbe{Forbidden: []string{metadata, tailnet}, Required: []string{forge}, Dial: n.dial}
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		var wg sync.WaitGroup
		wg.Go(func() { err = c.Run(ctx) })
		then(c)
		cancel()
		wg.Wait()
		return err
	}
	for _, x := range []struct {
		name    string
		answers map[string]error
		want    []string
		proved  bool
	}{
		{"nothing but the forge", map[string]error{forge: nil}, nil, true},
		{"nothing at all", map[string]error{}, nil, false},
		{"the forge refuses, which is an answer", map[string]error{forge: syscall.ECONNREFUSED}, nil, true},
		{"metadata answers", map[string]error{forge: nil, metadata: nil}, []string{metadata}, false},
		{"both refuse", map[string]error{tailnet: syscall.ECONNREFUSED, metadata: syscall.ECONNRESET}, []string{metadata, tailnet}, false},
		{"no way there", map[string]error{forge: nil, tailnet: syscall.ENETUNREACH, metadata: syscall.EHOSTUNREACH}, nil, true},
	} {
		t.Run(x.name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				err := run(t, &fakeNetwork{answers: x.answers}, func(c *CanaryProbe) {
					time.Sleep(canarySettleTime - time.Second)
					if x.want != nil && isEnforced(c) {
						t.Error("proved although a forbidden address was reached")
					}
					time.Sleep(time.Minute)
					if isEnforced(c) != x.proved {
						t.Errorf("proved: %v", !x.proved)
					}
				})
				var reached *CanaryReachedError
				if errors.As(err, &reached); (reached == nil) != (x.want == nil) || reached != nil && !slices.Equal(reached.Addresses, x.want) {
					t.Errorf("%v, want %q", err, x.want)
				}
			})
		})
	}
	t.Run("the policies come a moment later, and go", func(t *testing.T) {
		synctest.Test(t, func(t *testing.T) {
			n := &fakeNetwork{answers: map[string]error{forge: nil, metadata: nil}}
			err := run(t, n, func(c *CanaryProbe) {
				time.Sleep(10 * time.Second)
				n.set(metadata, nil, false)
				time.Sleep(10 * time.Second)
				if !isEnforced(c) {
					t.Error("not proved after the policies came")
				}
				n.set(metadata, nil, true)
				time.Sleep(3 * time.Minute)
			})
			if reached := new(CanaryReachedError); !errors.As(err, &reached) {
				t.Errorf("the removal of the policies was not noticed: %v", err)
			}
		})
	})
	if err := (&CanaryProbe{}).Run(t.Context()); err == nil {
		t.Error("a canary without anything to try")
	}
}

// With real sockets: a listener is reached, and a closed port answers.
func TestCanaryDials(t *testing.T) {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	closed, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	closed.Close()
	all := []string{l.Addr().String(), closed.Addr().String()}
	if got := new(CanaryProbe).reachable(t.Context(), all); !slices.Equal(got, all) {
		t.Errorf("%q of %q", got, all)
	}
}
