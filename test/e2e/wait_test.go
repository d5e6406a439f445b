package e2e

import (
	"context"
	"net/http"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// kubeconfig requests a kubeconfig with the given query, as p.
func kubeconfig(t *testing.T, p *testenv.Person, r *testenv.Env, query string) (answer, time.Duration) {
	t.Helper()
	began := time.Now()
	a := ask(t, p, "GET", r.Server()+signin.Base+"/kubeconfig"+query, "")
	return a, time.Since(began)
}

func login(t *testing.T, p *testenv.Person) signin.Accepted {
	t.Helper()
	a, err := signin.Login.Call(t.Context(), p.Client(), signin.LoginRequest{})
	if err != nil {
		t.Fatal(err)
	}
	return a
}

// logout ends p's sign-in, if there is one.
func logout(t *testing.T, p *testenv.Person) {
	t.Helper()
	_, err := signin.Logout.Call(t.Context(), p.Client(), signin.LogoutRequest{})
	if code := problem.CodeOf(err); code != "" && code != problem.NotSignedIn && code != problem.NoCapability {
		t.Error(err)
	}
}

// SGN-06: requests wait while the operator is stopped and nothing becomes ready.
func TestSGN06_NothingGetsReady(t *testing.T) {
	r := start(t)
	a, b, c := person(t, r, "wait-a", "alice@example.com"), person(t, r, "wait-b", "dave@example.com"), person(t, r, "wait-c", "frank@example.com")
	policy := r.Net.Policy()
	if err := r.Net.SetPolicy(strings.Replace(policy, `"dave@example.com"]`, `"dave@example.com", "frank@example.com"]`, 1)); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.Net.SetPolicy(policy); err != nil {
			t.Fatal(err)
		}
	}()
	if err := r.Operator.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.StartOperator(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		for _, p := range []*testenv.Person{a, b, c} {
			logout(t, p)
		}
	}()
	eventually(t, 5*time.Second, "frank is let in", func() bool {
		_, err := signin.Login.Call(t.Context(), c.Client(), signin.LoginRequest{})
		return err == nil
	})
	login(t, a)
	login(t, b)

	for query, want := range map[string]int{"": 202, "?wait=0s": 202, "?wait=0": 202, "?wait=1ms": 202, "?wait=-1s": 400, "?wait=soon": 400, "?wait=": 400, "?wait=1d": 400, "?wait=1s&wait=2s": 400} {
		got, took := kubeconfig(t, a, r, query)
		if got.status != want || took > 5*time.Second {
			t.Errorf("%q: %d after %v: %s", query, got.status, took, got.body)
		}
		if want == 202 && (got.header.Get("Retry-After") != "1" || !strings.Contains(string(got.body), `"state":"pending"`)) {
			t.Errorf("%q: %v %s", query, got.header, got.body)
		}
	}

	// Four requests of a may wait, and the fifth is refused with a time to retry. A client that disconnects frees a
	// slot. Meanwhile b requests an hour and gets the longest allowed wait.
	var wg sync.WaitGroup
	wg.Go(func() {
		began := time.Now()
		got, err := tryAsk(t.Context(), b, "GET", r.Server()+signin.Base+"/kubeconfig?wait=1h", "")
		took := time.Since(began)
		if err != nil {
			t.Error(err)
		}
		switch {
		case got.status != 202:
			t.Errorf("an hour: got.status = %v, want 202", got.status)
		case took < 29*time.Second:
			t.Errorf("an hour: took = %v, want at least %v", took, 29*time.Second)
		case took > 45*time.Second:
			t.Errorf("an hour: took = %v, want at most %v", took, 45*time.Second)
		}
		t.Logf("?wait=1h was answered %d after %v", got.status, took.Round(time.Millisecond))
	})
	ctx, leave := context.WithCancel(t.Context())
	var waiting sync.WaitGroup
	for range 4 {
		waiting.Go(func() {
			_, err := signin.GetKubeconfig.Call(ctx, a.Client(), signin.KubeconfigRequest{Wait: httpapi.Duration(25 * time.Second)})
			if ctx.Err() == nil {
				t.Errorf("a waiter was answered %v", err)
			}
		})
	}
	eventually(t, 20*time.Second, "all wait", func() bool { return inFlight(t, r) == 5 })
	got, took := kubeconfig(t, a, r, "?wait=20s")
	switch {
	case got.status != http.StatusTooManyRequests:
		t.Errorf("the fifth: got.status = %v, want %v", got.status, http.StatusTooManyRequests)
	case got.code() != problem.RateLimited:
		t.Errorf("the fifth: got.code() = %q, want %q", got.code(), problem.RateLimited)
	case got.header.Get("Retry-After") == "":
		t.Errorf(`the fifth: got.header.Get("Retry-After") == ""; %d, %v, took = %v, %s`, got.status, got.header, took, got.body)
	case took > 5*time.Second:
		t.Errorf("the fifth: took = %v, want at most %v", took, 5*time.Second)
	}
	leave()
	waiting.Wait()
	eventually(t, 20*time.Second, "there is free capacity again", func() bool { got, _ := kubeconfig(t, a, r, "?wait=10ms"); return got.status == 202 })

	// The grant is removed while c waits: c gets no token, also not at the end of the wait.
	wg.Go(func() {
		began := time.Now()
		got, err := tryAsk(t.Context(), c, "GET", r.Server()+signin.Base+"/kubeconfig?wait=28s", "")
		took := time.Since(began)
		if err != nil {
			t.Error(err)
		}
		switch {
		case got.status != http.StatusForbidden:
			t.Errorf("grant removed while waiting: got.status = %v, want %v", got.status, http.StatusForbidden)
		case took > 20*time.Second:
			t.Errorf("grant removed while waiting: took = %v, want at most %v", took, 20*time.Second)
		case strings.Contains(string(got.body), "token"):
			t.Errorf("grant removed while waiting: string(got.body) = %q contains %q", string(got.body), "token")
		}
		t.Logf("grant removed while waiting: %d %s after %v", got.status, got.code(), time.Since(began).Round(time.Millisecond))
	})
	eventually(t, 20*time.Second, "c waits", func() bool { return inFlight(t, r) >= 2 })
	if err := r.Net.SetPolicy(policy); err != nil {
		t.Fatal(err)
	}
	// The guard ends the sign-in. The operator, which would remove the finalizer, is stopped. The waiting client
	// still learns of the end.
	wg.Wait()
}

// SGN-06: a server that stops tells waiting clients to use another server.
func TestSGN06_ServerStopping(t *testing.T) {
	r := start(t)
	p := person(t, r, "wait-stop", "alice@example.com")
	if err := r.Operator.Stop(20 * time.Second); err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := r.StartOperator(context.WithoutCancel(t.Context())); err != nil {
			t.Fatal(err)
		}
		logout(t, p)
	}()
	login(t, p)
	// A request is counted for a moment longer than its answer takes.
	eventually(t, 20*time.Second, "no caller is signed in", func() bool { return inFlight(t, r) == 0 })
	type reply struct {
		answer
		err error
	}
	answered := make(chan reply, 1)
	go func() {
		got, err := tryAsk(t.Context(), p, "GET", r.Server()+signin.Base+"/kubeconfig?wait=25s", "")
		answered <- reply{got, err}
	}()
	eventually(t, 20*time.Second, "it waits", func() bool { return inFlight(t, r) >= 1 })
	began := time.Now()
	if err := r.Access.Stop(30 * time.Second); err != nil {
		t.Error(err)
	}
	stopped := time.Since(began)
	got := <-answered
	if got.err != nil {
		t.Fatal(got.err)
	}
	switch {
	case got.status != http.StatusServiceUnavailable:
		t.Errorf("got.status = %v, want %v", got.status, http.StatusServiceUnavailable)
	case got.code() != problem.Unavailable:
		t.Errorf("got.code() = %q, want %q", got.code(), problem.Unavailable)
	case got.header.Get("Retry-After") == "":
		t.Errorf(`got.header.Get("Retry-After") == ""; %d, %v, %s`, got.status, got.header, got.body)
	}
	t.Logf("stopped in %v with a waiter", stopped.Round(time.Millisecond))
	if code := r.Access.ExitCode(); code != 0 {
		t.Errorf("exit %d: %s", code, r.Access.Output())
	}
	if err := r.StartAccess(t.Context()); err != nil {
		t.Fatal(err)
	}
	eventually(t, 20*time.Second, "the server is back", func() bool {
		_, err := signin.GetClusterInfo.Call(t.Context(), p.Client(), signin.ClusterInfoRequest{})
		return err == nil
	})
}
