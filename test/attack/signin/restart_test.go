package signin

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// startBehind starts a role of the server that reaches the API server only through g. It replaces the environment's
// own process for that role, which must be stopped.
func startBehind(t *testing.T, s *attacktest.Env, g *attacktest.Gate, role string) *testenv.Process {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), attacktest.Long)
	defer cancel()
	path := s.KubeconfigThrough(t, g, testenv.SystemNamespace, "tailplane-"+role)
	settings, err := s.Settings(role)
	if err != nil {
		t.Fatal(err)
	}
	p, err := s.Try(role+"-"+fmt.Sprint(time.Now().UnixNano()), role, nil, string(settings), "--kubeconfig", path)
	if err != nil {
		t.Fatal(err)
	}
	works := `"the sign-in operator is running"`
	if role == "access" {
		works = `"access is serving"`
	}
	if err := p.WaitLog(ctx, works); err != nil {
		t.Fatal(err)
	}
	return p
}

// SI-06. A program may be killed after any of its writes. After a restart it completes the work and reaches the
// correct state. It derives the time of its next step from stored objects.
//
// Guard: signin.Next, which derives each step from stored objects; the finalizer, which a sign-in has from its
// creation on; signinkube's sweep.
func TestSI06_KilledAfterEachWrite(t *testing.T) {
	s := attacktest.Start(t)
	p := s.Person(t, "kim-laptop", "kim@example.com")
	s.SetPolicy(t, attacktest.Grant("kim@example.com", `{"role": "view", "period": "8h"}, {"role": "edit", "period": "1h"}`))
	s.WaitGranted(t, p)
	const view, edit = `{"role":"view"}`, `{"role":"edit"}`
	access := s.ClientFor(t, s.AccountConfig(t, "tailplane-access"))
	id, err := s.Net.ID(p.Node)
	if err != nil {
		t.Fatal(err)
	}
	name := signin.Owner{Login: "kim@example.com", DeviceID: string(id), Tailnet: "example.com"}.Name()
	post := func(ctx context.Context, path, body string) { // the answer may never arrive
		ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
		defer cancel()
		res, err := s.HTTPClient(p).Do(s.NewRequest(t, "POST", attacktest.API+path, body).WithContext(ctx))
		if err == nil {
			res.Body.Close()
		}
	}
	end := func(ctx context.Context) { // like endIn, except that a failure does not end the test
		patch := fmt.Appendf(nil, `{"spec":{"period":"10m","askedAt":%q}}`, time.Now().Add(-10*time.Minute).UTC().Format(time.RFC3339))
		o := &v1alpha1.TkaSignin{ObjectMeta: metav1.ObjectMeta{Namespace: testenv.SigninNamespace, Name: name}}
		if err := access.Patch(ctx, o, client.RawPatch(types.MergePatchType, patch)); err != nil {
			t.Errorf("bring the end about: %v", err)
		}
	}
	signedIn := func() { post(t.Context(), "/login", view); s.Kubeconfig(t, p) }
	stories := []struct {
		name   string
		before func() // without a kill
		act    func(context.Context)
		// then checks the final state, in addition to the general invariants.
		then func(t *testing.T)
	}{
		{"login", func() { s.Logout(t, p) }, func(ctx context.Context) { post(ctx, "/login", view) }, nil},
		{"extension", signedIn, func(ctx context.Context) { post(ctx, "/login", `{"role":"view","period":"2h"}`) }, func(t *testing.T) {
			if o := s.SignIns(t, "kim@example.com"); len(o) != 1 || !o[0].Status.ValidUntil.Time.Equal(o[0].Spec.AskedAt.Add(o[0].Spec.Period.Duration)) {
				t.Errorf("%+v", o)
			}
		}},
		{"another role", signedIn, func(ctx context.Context) { post(ctx, "/login", edit) }, nil},
		{"logout", signedIn, func(ctx context.Context) { post(ctx, "/logout", "") }, func(t *testing.T) {
			if o := s.SignIns(t, "kim@example.com"); len(o) != 0 {
				t.Errorf("%+v", o)
			}
		}},
		{"expiry", signedIn, end, func(t *testing.T) {
			attacktest.Eventually(t, attacktest.Long, "it is gone", func() bool { return len(s.SignIns(t, "kim@example.com")) == 0 })
		}},
	}
	g := s.NewGate(t)
	for _, role := range []string{"operator", "access"} {
		t.Run(role, func(t *testing.T) {
			mine := map[string]*testenv.Process{"operator": s.Operator, "access": s.Access}[role]
			if err := mine.Stop(attacktest.Long); err != nil {
				t.Fatal(err)
			}
			back := func() *testenv.Process {
				t.Helper()
				if role == "operator" {
					s.ReleaseLease(t)
				}
				p := startBehind(t, s, g, role)
				if role == "access" {
					reconnect(t, s)
				}
				return p
			}
			process := back()
			defer func() { // restarts the environment's own process
				if err := process.Stop(attacktest.Long); err != nil {
					t.Error(err)
				}
				var err error
				if role == "operator" {
					s.ReleaseLease(t)
					err = s.StartOperator(context.WithoutCancel(t.Context()))
				} else if err = s.StartAccess(context.WithoutCancel(t.Context())); err == nil {
					reconnect(t, s)
				}
				if err != nil {
					t.Fatal(err)
				}
				s.Logout(t, p)
			}()
			for _, story := range stories {
				if role == "access" && story.name == "expiry" {
					continue // this program writes nothing in this case
				}
				t.Run(story.name, func(t *testing.T) {
					story.before()
					s.Settles(t, "before")
					g.Arm(0, process)
					story.act(t.Context())
					s.Settles(t, "without a kill")
					if story.then != nil {
						story.then(t)
					}
					writes := g.Disarm()
					t.Logf("writes: %s", strings.Join(writes, ", "))
					if len(writes) == 0 {
						t.Fatal("it writes nothing: this test shows nothing")
					}
					for n := range writes {
						var cancel context.CancelFunc
						var asked chan struct{}
						for try, struck := 1, false; !struck; try++ {
							story.before()
							s.Settles(t, "before")
							g.Arm(n+1, process)
							var ctx context.Context
							ctx, cancel = context.WithTimeout(t.Context(), attacktest.Long)
							asked = make(chan struct{})
							go func() { defer close(asked); story.act(ctx) }()
							struck = g.Strikes(asked)
							if !struck { // the write already happened earlier in the same second
								writes := g.Disarm()
								cancel()
								<-asked
								if try == 25 {
									t.Fatalf("not killed: after %v", writes)
								}
							}
						}
						cancel() // the process is dead, so no answer arrives
						<-asked
						<-process.Done()
						killed := g.Disarm()
						process = back()
						what := fmt.Sprintf("killed after %s", killed[len(killed)-1])
						took := s.Settles(t, what)
						t.Logf("%s: whole %v after it was back", what, took.Round(time.Millisecond))
						if story.then != nil && role == "operator" {
							story.then(t) // the request is not repeated for work that the access server did not finish
						}
						// The system keeps working afterwards.
						s.Logout(t, p)
						signedIn()
						s.Logout(t, p)
						s.Settles(t, what+", then used")
					}
				})
			}
			if role == "access" {
				return
			}
			t.Run("waking without an event", func(t *testing.T) {
				signedIn()
				end := s.EndSignInIn(t, name, 20*time.Second)
				process.Kill()
				process = back()
				if time.Now().After(end) {
					t.Fatal("the end came before the operator was back: this test shows nothing")
				}
				attacktest.Eventually(t, attacktest.Long, "it has ended", func() bool { return len(s.AccessOf(t, name)) == 0 })
				if late := time.Since(end); late < 0 || late > attacktest.Soon {
					t.Errorf("ended %v after its end", late)
				}
				attacktest.Eventually(t, attacktest.Long, "it is gone", func() bool { return len(s.SignIns(t, "kim@example.com")) == 0 })
			})
		})
	}
}

// reconnect waits until every person's node reaches the restarted access server.
func reconnect(t *testing.T, s *attacktest.Env) {
	t.Helper()
	ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), attacktest.Long)
	defer cancel()
	s.Mu.Lock()
	defer s.Mu.Unlock()
	for p, hc := range s.Clients {
		hc.CloseIdleConnections()
		if p.Node.Hostname != "kim-laptop" {
			continue
		}
		if err := s.Net.WaitPeer(ctx, p.Node, "tka"); err != nil {
			t.Fatal(err)
		}
	}
}
