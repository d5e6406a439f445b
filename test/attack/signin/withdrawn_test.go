package signin

import (
	"context"
	"encoding/json"
	"net/http"
	"slices"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
)

// SI-09. One person sends a hundred logins and logouts at the same time, through two servers. They lead to one state,
// which the answers report. A write conflict makes no request fail.
//
// Guard: signin.(*Service).login (retries), controller.(*Store).Extend and Delete (preconditions).
func TestSI09_AtOnce(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "yves-laptop", "yves@example.com")
	s.SetPolicy(t, attacktest.Grant("yves@example.com", `{"role": "view", "period": "8h"}, {"role": "edit", "period": "1h"}`))
	s.WaitGranted(t, p)
	second := s.AddReplica(t, "access-2")
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	if err := s.Net.WaitPeer(ctx, p.Node, second); err != nil {
		t.Fatal(err)
	}
	servers := []httpapi.Client{s.APIClient(p), {HTTP: s.HTTPClient(p), Base: "https://" + second}}
	for i, c := range servers {
		if _, err := signin.GetClusterInfo.Call(t.Context(), c, signin.ClusterInfoRequest{}); err != nil {
			t.Fatalf("server %d: %v", i, err)
		}
	}
	type reply struct {
		op, role string
		st       signin.Status
		err      error
		began    time.Time
		took     time.Duration
	}
	replies := make([]reply, 100)
	var wg sync.WaitGroup
	for i := range replies {
		wg.Go(func() {
			r := reply{op: "login", role: []string{"view", "edit"}[i/2%2], began: time.Now()}
			c := servers[i%2]
			if i%5 == 4 {
				r.op = "logout"
				r.st, r.err = signin.Logout.Call(ctx, c, signin.LogoutRequest{})
			} else {
				var a signin.Accepted
				a, r.err = signin.Login.Call(ctx, c, signin.LoginRequest{Role: r.role})
				r.st = a.Status
			}
			r.took = time.Since(r.began)
			replies[i] = r
		})
	}
	wg.Wait()
	t.Cleanup(func() { s.Logout(t, p) })
	outcomes := map[string]int{}
	for _, r := range replies {
		code := problem.CodeOf(r.err)
		outcomes[r.op+" "+string(code)]++
		switch {
		case r.err == nil && r.op == "login" && (r.st.Role != r.role || r.st.Username != "yves@example.com"):
			t.Errorf("login as %s: %+v", r.role, r.st)
		case r.err == nil:
		case r.op == "login" && !slices.Contains([]problem.Code{problem.Conflict, problem.Ending}, code),
			r.op == "logout" && code != problem.NotSignedIn:
			t.Errorf("%s: %v (%s) after %v", r.op, r.err, code, r.took)
		}
	}
	t.Logf("%v", outcomes)
	s.Settles(t, "after a hundred at once")
	stored := s.SignIns(t, "yves@example.com")
	if len(stored) > 1 {
		t.Fatalf("%d sign-ins of one device", len(stored))
	}
	for _, o := range stored {
		ok := slices.ContainsFunc(replies, func(r reply) bool {
			return r.op == "login" && r.err == nil && r.st.Name == o.Name && r.role == o.Spec.Role && !r.st.StartedAt.After(o.CreationTimestamp.Time)
		})
		if !ok {
			t.Errorf("no response reported the stored %s", o.Spec.Role)
		}
		for i, c := range servers { // both servers report the same state
			switch st, err := signin.Read.Call(t.Context(), c, signin.ReadRequest{}); {
			case err != nil:
				t.Errorf("server: %v; %d", err, i)
			case st.Role != o.Spec.Role:
				t.Errorf("server: st.Role = %q, want %q; %d", st.Role, o.Spec.Role, i)
			case st.State != signin.Ready:
				t.Errorf("server: st.State = %q, want %q; %d", st.State, signin.Ready, i)
			}
		}
	}
	if outcomes["login "] == 0 {
		t.Error("no request succeeded")
	}
}

// SI-10. A removed or reduced grant gives no further access. The server issues no kubeconfig from that moment on, and
// the sign-in ends at the next re-check.
//
// Guard: access.Permit.Covers in signin.(*Service).kubeconfig; signin.Recheck.
func TestSI10_GrantWithdrawn(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "sybil-laptop", "sybil@example.com")
	const edit, view = `{"role": "edit", "period": "1h"}`, `{"role": "view", "period": "1h"}`
	for _, tt := range []struct {
		name          string
		before, after string // policy rules
		login         signin.LoginRequest
	}{
		{"withdrawn", edit, "", signin.LoginRequest{}},
		{"lowered", edit, view, signin.LoginRequest{}},
		{"narrowed", edit, `{"role": "edit", "period": "1h", "namespaces": ["shop"]}`, signin.LoginRequest{}},
		{"moved to another namespace", `{"role": "edit", "period": "1h", "namespaces": ["shop"]}`, `{"role": "edit", "period": "1h", "namespaces": ["default"]}`, signin.LoginRequest{}},
		{"one of two", edit + "," + view, view, signin.LoginRequest{Role: "edit"}},
	} {
		for _, next := range []string{"then the kubeconfig", "then nothing"} {
			t.Run(tt.name+", "+next, func(t *testing.T) {
				s.SetPolicy(t, attacktest.Grant("sybil@example.com", tt.before))
				s.WaitGranted(t, p)
				var st signin.Status
				attacktest.Eventually(t, attacktest.Long, "signed in", func() bool { // the previous sign-in may still be ending
					a := s.Ask(t, p, "POST", attacktest.API+"/login", mustJSON(t, tt.login))
					return a.Status == http.StatusAccepted
				})
				defer s.Logout(t, p)
				held := s.TokenClient(t, s.Kubeconfig(t, p).Token.Reveal())
				st, err := signin.Read.Call(t.Context(), s.APIClient(p), signin.ReadRequest{})
				if err != nil {
					t.Fatal(err)
				}
				if err := attacktest.ListPods(t, held, "shop"); err != nil {
					t.Fatalf("before: %v", err)
				}
				rules := []string{}
				if tt.after != "" {
					rules = append(rules, attacktest.Grant("sybil@example.com", tt.after))
				}
				began := time.Now()
				s.SetPolicy(t, rules...)
				if next == "then the kubeconfig" {
					var a attacktest.Answer
					attacktest.Eventually(t, attacktest.Soon, "the kubeconfig is refused", func() bool {
						a = s.Ask(t, p, "GET", attacktest.API+"/kubeconfig", "")
						return a.Status != http.StatusOK
					})
					t.Logf("%s after %v", a.Code(), time.Since(began).Round(time.Millisecond))
					// The re-check may have ended the sign-in first.
					if a.Code() != problem.GrantRemoved && a.Code() != problem.NotSignedIn && a.Code() != problem.NoCapability {
						t.Errorf("%v", a)
					}
					m := s.Mark(t)
					if a := s.Ask(t, p, "GET", attacktest.API+"/kubeconfig", ""); a.Status == http.StatusOK {
						t.Errorf("again: %v", a.Status)
					}
					for _, w := range m.Writes(t, attacktest.AccessAccount) {
						if w.ObjectRef.Subresource == "token" {
							t.Errorf("again: %v", w)
						}
					}
				}
				// A change of the tailnet takes effect at once; a re-check runs every 30 s.
				attacktest.Eventually(t, attacktest.Soon, "the sign-in is gone", func() bool { return len(s.AccessOf(t, st.Name)) == 0 })
				if err := attacktest.ListPods(t, held, "shop"); err == nil {
					t.Error("the token still gives access")
				}
				t.Logf("gone after %v", time.Since(began).Round(time.Millisecond))
			})
		}
	}
	t.Run("while a request waits", func(t *testing.T) {
		s.SetPolicy(t, attacktest.Grant("sybil@example.com", edit))
		s.WaitGranted(t, p)
		if err := s.Operator.Stop(attacktest.Long); err != nil { // so that the sign-in is not ended before the test waits for it
			t.Fatal(err)
		}
		defer s.Logout(t, p)
		if a := s.Ask(t, p, "POST", attacktest.API+"/login", "{}"); a.Status != http.StatusAccepted {
			t.Fatalf("login: %v", a)
		}
		m := s.Mark(t)
		got := make(chan attacktest.Answer, 1)
		req := s.NewRequest(t, "GET", attacktest.API+"/kubeconfig?wait=20s", "")
		go func() {
			res, err := s.HTTPClient(p).Do(req)
			if err != nil {
				got <- attacktest.Answer{Body: err.Error()}
				return
			}
			defer res.Body.Close()
			a := attacktest.Answer{Status: res.StatusCode}
			_ = json.NewDecoder(res.Body).Decode(&a.Problem)
			got <- a
		}()
		attacktest.Eventually(t, attacktest.Long, "it waits", func() bool { return len(m.Requests(t, attacktest.AccessAccount)) > 0 })
		s.SetPolicy(t)
		attacktest.Eventually(t, attacktest.Soon, "the grant is gone", func() bool { return s.Ask(t, p, "GET", attacktest.API+"/login", "").Code() == problem.NoCapability })
		s.RestartOperator(t)
		if a := <-got; a.Status == http.StatusOK || a.Status == 0 {
			t.Errorf("the waiting caller got %v", a)
		}
		for _, w := range m.Writes(t, attacktest.AccessAccount) {
			if w.ObjectRef.Subresource == "token" {
				t.Errorf("for who waited: %v", w)
			}
		}
	})
}

func mustJSON(t *testing.T, v any) string {
	t.Helper()
	b, err := json.Marshal(v)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}
