package accessproxy_test

import (
	"errors"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// The proxy sends nothing when the last proof is older than 15 s.
func TestProofAge(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t)
		ready := func(what string, want problem.Code) {
			t.Helper()
			if got := problem.CodeOf(f.Proxy.Ready()); got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		ready("before the first proof", problem.Unavailable)
		f.Proxy.RenewProof(t.Context())
		ready("after it", "")
		f.Signins.FailLists(errors.New("the API server is silent"))
		for range 3 {
			time.Sleep(accessproxy.ProofInterval)
			f.Proxy.RenewProof(t.Context())
		}
		ready("after 15 s", "")
		time.Sleep(time.Second)
		ready("after 16 s", problem.Unavailable)
		f.Signins.FailLists(nil)
		f.Proxy.RenewProof(t.Context())
		ready("with a new proof", "")
	})
}

// A proof shows that a sign-in is gone, although the cache has it. It says nothing about a sign-in that is newer.
func TestProofOfAnEnd(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t)
		s := login(f, "", time.Hour)
		step := func(what string, s signin.Signin, want problem.Code) {
			t.Helper()
			if got := problem.CodeOf(f.Proxy.RefusalOf(s)); got != want {
				t.Errorf("%s: %q, want %q", what, got, want)
			}
		}
		f.Proxy.RenewProof(t.Context())
		step("live", s, "")
		f.Signins.Freeze(true)
		f.Signins.Logout(s.Name)
		step("before the next proof", s, "")
		f.Proxy.RenewProof(t.Context())
		step("after the proof", s, problem.NotSignedIn)
		again := login(f, "", time.Hour)
		step("a sign-in that is newer than the proof", again, "")
		f.Proxy.RenewProof(t.Context())
		step("which is in the next proof", again, "")
		step("the old one", s, problem.NotSignedIn)
		f.Signins.Edit(again.Name, func(s *signin.Signin) { s.Deleting = true })
		f.Proxy.RenewProof(t.Context())
		step("which is being deleted", again, problem.NotSignedIn)
		f.Signins.FailLists(errors.New("silent"))
		f.Proxy.RenewProof(t.Context())
		step("a failed proof keeps the last one", again, problem.NotSignedIn)
	})
}

func TestIsLater(t *testing.T) {
	for _, tt := range []struct {
		a, b string
		want bool
	}{{"10", "9", true}, {"9", "10", false}, {"10", "10", false}, {"11", "10", true}, {"100", "99", true}, {"18446744073709551616", "18446744073709551615", true}} {
		if got := accessproxy.IsLater(tt.a, tt.b); got != tt.want {
			t.Errorf("%s later than %s: %v, want %v", tt.a, tt.b, got, tt.want)
		}
	}
}
