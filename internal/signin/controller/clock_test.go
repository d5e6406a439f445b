//go:build unix

package controller

import (
	"encoding/json"
	"net/http"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// SGN-17: A clock that is wrong by ten minutes moves the end by ten minutes at most. The operator
// refuses a sign-in from its future with a specific reason, grants nothing, and provisions it when
// that time has come.
func TestSGN17_ClocksApart(t *testing.T) {
	const skew, period = 10 * time.Minute, time.Hour
	for _, tt := range []struct {
		why              string
		access, operator time.Duration // how far each clock is ahead
		refused          bool          // refused until the operator's clock has come near
		off              time.Duration // expected error of the end
	}{
		{"both right", 0, 0, false, 0},
		{"access ahead", skew, 0, true, skew},
		{"access behind", -skew, 0, false, -skew},
		{"operator ahead", 0, skew, false, -skew},
		{"operator behind", 0, -skew, true, skew},
		{"both ahead", skew, skew, false, 0},
		{"access just within what is borne", 55 * time.Second, 0, false, 55 * time.Second},
		{"access just beyond", 70 * time.Second, 0, true, 70 * time.Second},
	} {
		t.Run(tt.why, func(t *testing.T) {
			w := newModelEnv(t, 1)
			alice := w.people[0]
			w.access.skew.Store(int64(tt.access))
			w.operator.skew.Store(int64(tt.operator))
			w.restart(w.operator)
			requested := w.now()
			if r := w.request(alice, signin.Login.Declare(), "", signin.LoginRequest{Period: httpapi.Duration(period)}); r.status != http.StatusAccepted {
				t.Fatal(r)
			}
			end := requested.Add(period + tt.off) // by the correct clock
			if tt.refused {
				r := w.request(alice, signin.GetKubeconfig.Declare(), "?wait=10s", nil)
				var p problem.Error
				switch err := json.Unmarshal(r.body, &p); {
				case err != nil:
					t.Fatal(err)
				case r.code != problem.CannotProvision:
					t.Fatalf("r.code = %q, want %q", r.code, problem.CannotProvision)
				case p.Message == "":
					t.Fatalf("p.Message is empty; %v, %v", r, err)
				}
				no, err := w.readState(alice.owner.Name())
				if err != nil || no.Reason != signin.ReasonClockSkew {
					t.Fatalf("%+v, %v", no, err)
				}
				if accounts, everywhere, somewhere := w.made(); len(accounts)+len(everywhere)+len(somewhere) > 0 {
					t.Error("an object was created for a sign-in from the future")
				}
				if err := w.invariantsAt(w.clock(w.operator)); err != nil {
					t.Error(err)
				}
				w.leapTo(requested.Add(tt.access - tt.operator - 55*time.Second)) // the operator tolerates one minute
				w.until("ready, when the time has come", func() bool {
					s, err := w.readState(alice.owner.Name())
					return err == nil && s.State(w.clock(w.operator)) == signin.Ready
				})
			}
			r := w.request(alice, signin.GetKubeconfig.Declare(), "?wait=10s", nil)
			var k signin.Kubeconfig
			if err := json.Unmarshal(r.body, &k); r.status != http.StatusOK || err != nil {
				t.Fatalf("%v, %v", r, err)
			}
			w.leapTo(end.Add(-time.Minute))
			if s, err := w.readState(alice.owner.Name()); err != nil || s.State(w.clock(w.operator)) != signin.Ready {
				t.Errorf("a minute before the end: %+v, %v", s, err)
			}
			if status, err := w.holders.use(t.Context(), k.Token); status != http.StatusOK || err != nil {
				t.Errorf("a minute before the end the token is answered with %d, %v", status, err)
			}
			w.leapTo(end.Add(2 * time.Second))
			w.until("everything is gone after the end", func() bool {
				accounts, everywhere, somewhere := w.made()
				return len(accounts)+len(everywhere)+len(somewhere) == 0
			})
			if status, err := w.holders.use(t.Context(), k.Token); status == http.StatusOK || err != nil {
				t.Errorf("after the end the token is answered with %d, %v", status, err)
			}
			if r := w.request(alice, signin.GetKubeconfig.Declare(), "", nil); r.code != problem.NotSignedIn {
				t.Errorf("after the end: %v", r)
			}
			if end.Sub(requested.Add(period)).Abs() > max(tt.access.Abs(), tt.operator.Abs()) {
				t.Error("the end is off by more than the clocks")
			}
		})
	}
}

// now returns the correct time of the environment.
func (w *modelEnv) now() time.Time { return time.Now().Add(time.Duration(w.ahead.Load())) }

// leapTo moves the clock of the environment forward to a time, as if both programs had slept.
func (w *modelEnv) leapTo(at time.Time) {
	w.t.Helper()
	d := at.Sub(w.now())
	if d < 0 {
		w.t.Fatalf("the time %v has passed %v ago: the machine is too slow for this test", at, -d)
	}
	w.ahead.Add(int64(d))
	w.restart(w.operator) // restart, because the operator's timers use the machine's clock
	w.until("the operator is at work", w.operator.ready)
	w.until("rest", func() bool { return w.invariantsAt(w.clock(w.operator)) == nil })
}
