package attacktest

import (
	"context"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// HTTPClient returns p's client. A person has only one, because the server limits the connections of a device.
func (s *Env) HTTPClient(p *testenv.Person) *http.Client {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.Clients[p] == nil {
		s.Clients[p] = p.HTTP()
	}
	return s.Clients[p]
}

// APIClient returns p's client of the HTTP API.
func (s *Env) APIClient(p *testenv.Person) httpapi.Client {
	return httpapi.Client{HTTP: s.HTTPClient(p), Base: s.Server()}
}

// watchman is a login to which each policy grants a different period. waitPolicy uses it.
const watchman = "watchman@example.com"

// waitPolicy waits until the server applies the policy that SetPolicy has set last.
func (s *Env) waitPolicy(t *testing.T) {
	t.Helper()
	p := s.Person(t, "watchman-laptop", watchman)
	Eventually(t, Long, "the policy is in force", func() bool {
		w, err := signin.GetWhoami.Call(t.Context(), s.APIClient(p), signin.WhoamiRequest{})
		switch {
		case err != nil:
			return false
		case len(w.Rules) == 0: // the first policy has no rule
			return !strings.Contains(s.Net.Policy(), watchman)
		}
		return slices.ContainsFunc(w.Rules, func(r signin.Rule) bool { // there are also rules for all logins
			return strings.Contains(s.Net.Policy(), fmt.Sprintf(`"period": "%ds"`, int(time.Duration(r.Period).Seconds())))
		})
	})
}

// stayers are devices that many tests use. They stay until the end.
var stayers = []string{"alice-laptop", "bob-laptop", "watchman-laptop"}

// Person returns a person on a device. The same host name returns the same person. The device leaves when no test
// uses it any more, because each device takes about 100 MB of memory here.
func (s *Env) Person(t *testing.T, host, login string, tags ...string) *testenv.Person {
	t.Helper()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if !slices.Contains(stayers, host) {
		s.uses[host]++
		t.Cleanup(func() { s.leave(host) })
	}
	if p := s.People[host]; p != nil {
		return p
	}
	ctx, cancel := context.WithTimeout(t.Context(), Long)
	defer cancel()
	p, err := s.Env.Person(ctx, host, login, tags...)
	if err != nil {
		t.Fatal(err)
	}
	s.People[host] = p
	return p
}

func (s *Env) leave(host string) {
	s.Mu.Lock()
	defer s.Mu.Unlock()
	if s.uses[host]--; s.uses[host] > 0 {
		return
	}
	if p := s.People[host]; p != nil {
		if hc := s.Clients[p]; hc != nil {
			hc.CloseIdleConnections()
		}
		delete(s.Clients, p)
		delete(s.People, host)
		s.Leave(p)
	}
}

func (s *Env) Alice(t *testing.T) *testenv.Person {
	return s.Person(t, "alice-laptop", "alice@example.com")
}

func (s *Env) Bob(t *testing.T) *testenv.Person {
	return s.Person(t, "bob-laptop", "bob@example.com")
}

// Login signs p in and waits until the sign-in is ready. The end of the test signs p out.
func (s *Env) Login(t *testing.T, p *testenv.Person, req signin.LoginRequest) signin.Status {
	t.Helper()
	if _, err := signin.Login.Call(t.Context(), s.APIClient(p), req); err != nil {
		t.Fatalf("login: %v", err)
	}
	t.Cleanup(func() { s.Logout(t, p) })
	s.Kubeconfig(t, p)
	st, err := signin.Read.Call(t.Context(), s.APIClient(p), signin.ReadRequest{})
	if err != nil {
		t.Fatalf("read: %v", err)
	}
	return st
}

// Kubeconfig waits for p's sign-in and returns a kubeconfig with one of its tokens.
func (s *Env) Kubeconfig(t *testing.T, p *testenv.Person) signin.Kubeconfig {
	t.Helper()
	var k signin.Kubeconfig
	Eventually(t, Long, "the kubeconfig", func() bool {
		var err error
		k, err = signin.GetKubeconfig.Call(t.Context(), s.APIClient(p), signin.KubeconfigRequest{Wait: httpapi.Duration(20 * time.Second)})
		if err != nil && problem.CodeOf(err) != problem.NotReady {
			t.Fatalf("kubeconfig: %v", err)
		}
		return err == nil
	})
	return k
}

// Logout signs p out, if p is signed in, and waits until nothing of the sign-in is left. It also works in a test's
// cleanup.
func (s *Env) Logout(t *testing.T, p *testenv.Person) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), Long)
	defer cancel()
	for {
		st, err := signin.Logout.Call(ctx, s.APIClient(p), signin.LogoutRequest{Wait: httpapi.Duration(20 * time.Second)})
		switch code := problem.CodeOf(err); {
		case err == nil && st.State == signin.Ended, err != nil && code != problem.Internal && code != problem.Unavailable:
			return
		case ctx.Err() != nil:
			t.Errorf("logout: %v %v", st.State, err)
			return
		}
	}
}

// WaitPeer waits until p reaches a host of the tailnet.
func (s *Env) WaitPeer(t *testing.T, p *testenv.Person, host string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), Long)
	defer cancel()
	if err := s.Net.WaitPeer(ctx, p.Node, host); err != nil {
		t.Fatal(err)
	}
}
