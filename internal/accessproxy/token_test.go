package accessproxy_test

import (
	"context"
	"errors"
	"sync"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/proxytest"
)

func login(f *proxytest.Front, session signin.Session, period time.Duration) signin.Signin {
	return f.Signins.Login(proxytest.Person("alice@example.com", "alice-laptop"), session, period)
}

// A token is used until it is nearly over, and never longer than its sign-in by much.
func TestTokenIsRenewed(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t)
		s := login(f, "", 2*time.Hour)
		issued := func(what string, want int) {
			t.Helper()
			text, err := f.Proxy.Token(t.Context(), s)
			if err != nil || f.Signins.OwnerOfToken(text.Reveal()) != s.Name {
				t.Fatalf("%s: %v", what, err)
			}
			if got := f.Signins.Issued(s.Name); got != want {
				t.Errorf("%s: %d tokens, want %d", what, got, want)
			}
		}
		issued("first", 1)
		time.Sleep(time.Hour - accessproxy.TokenRenewal - 2*time.Second)
		issued("just before the renewal", 1)
		time.Sleep(3 * time.Second)
		issued("after the renewal", 2)
		time.Sleep(time.Hour - accessproxy.TokenRenewal)
		issued("near the end of the sign-in", 3)
		time.Sleep(8 * time.Minute)
		issued("the last token is used up", 3)
	})
}

// Many requests share one token, and one failure. None waits longer than its own context.
func TestOneTokenInFlight(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t)
		s := login(f, "", time.Hour)
		var requests atomic.Int64
		many := func(want problem.Code) (took time.Duration) {
			t.Helper()
			requests.Store(0)
			began := time.Now()
			var wg sync.WaitGroup
			for range 100 {
				wg.Go(func() {
					if _, err := f.Proxy.Token(t.Context(), s); problem.CodeOf(err) != want {
						t.Errorf("%v, want %q", err, want)
					}
				})
			}
			wg.Wait()
			if n := requests.Load(); n != 1 {
				t.Errorf("%d requests for a token, want one", n)
			}
			return time.Since(began)
		}
		f.Signins.OnIssue(func(ctx context.Context) error {
			requests.Add(1)
			<-ctx.Done()
			return ctx.Err()
		})
		if took := many(problem.Unavailable); took > 11*time.Second {
			t.Errorf("a silent API server: %v, want 10 s for all", took)
		}
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		began := time.Now()
		if _, err := f.Proxy.Token(ctx, s); problem.CodeOf(err) != problem.Unavailable || time.Since(began) > time.Second {
			t.Errorf("a client that leaves: %v after %v", err, time.Since(began))
		}
		time.Sleep(20 * time.Second)
		f.Signins.OnIssue(func(context.Context) error { requests.Add(1); time.Sleep(time.Second); return nil })
		if took := many(""); took > 2*time.Second {
			t.Errorf("a slow API server: %v, want 1 s for all", took)
		}
		f.Signins.OnIssue(func(context.Context) error { requests.Add(1); time.Sleep(time.Second); panic("x") })
		s = login(f, "", time.Hour)
		many(problem.Internal)
	})
}

// After a refusal of the API server there is one new token in 30 s, which all requests share.
func TestReplaceToken(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t)
		s := login(f, "", 2*time.Hour)
		first, err := f.Proxy.Token(t.Context(), s)
		if err != nil {
			t.Fatal(err)
		}
		var second secret.Text
		for i := range 10 {
			text, ok := f.Proxy.ReplaceToken(t.Context(), s, first)
			if i == 0 {
				second = text
			}
			if !ok || !text.Equal(second) {
				t.Fatalf("replacement %d: ok %v, the same as the first one %v", i, ok, text.Equal(second))
			}
		}
		if n := f.Signins.Issued(s.Name); n != 2 || second.Equal(first) {
			t.Errorf("%d tokens, want 2 that differ", n)
		}
		if _, ok := f.Proxy.ReplaceToken(t.Context(), s, second); ok {
			t.Error("a second new token in 30 s")
		}
		time.Sleep(accessproxy.TokenAnewLimit)
		if _, ok := f.Proxy.ReplaceToken(t.Context(), s, second); !ok {
			t.Error("no new token after 30 s")
		}
	})
}

// A token belongs to one sign-in and one account.
func TestTokensAreSeparate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newFront(t)
		all := []signin.Signin{login(f, "", time.Hour), login(f, "deploy", time.Hour), f.Signins.Login(proxytest.Person("bob@example.com", "bob-laptop"), "", time.Hour)}
		seen := map[string]bool{}
		for _, s := range all {
			text, err := f.Proxy.Token(t.Context(), s)
			if err != nil || f.Signins.OwnerOfToken(text.Reveal()) != s.Name {
				t.Errorf("%s: the token of %q, %v", s.Name, f.Signins.OwnerOfToken(text.Reveal()), err)
			}
			if seen[text.Reveal()] {
				t.Errorf("%s has the token of another sign-in", s.Name)
			}
			seen[text.Reveal()] = true
		}
		old, _ := f.Proxy.Token(t.Context(), all[0])
		again := login(f, "", time.Hour) // the same name, another UID
		text, err := f.Proxy.Token(t.Context(), again)
		if err != nil || text.Equal(old) {
			t.Errorf("a new sign-in: %v, the old token %v", err, text.Equal(old))
		}
		forged := again
		forged.ServiceAccountUID = "sa-of-another"
		if _, err := f.Proxy.Token(t.Context(), forged); problem.CodeOf(err) != problem.NotSignedIn {
			t.Errorf("another account: %v, want %s", err, problem.NotSignedIn)
		}
		f.Signins.Logout(all[1].Name)
		if _, err := f.Proxy.Token(t.Context(), login(f, "other", time.Hour)); err != nil {
			t.Fatal(err)
		}
		time.Sleep(2 * time.Hour)
		if _, err := f.Proxy.Token(t.Context(), login(f, "", time.Hour)); err != nil || f.Proxy.Tokens() != 1 {
			t.Errorf("after 2 h the proxy holds %d tokens, want one: %v", f.Proxy.Tokens(), err)
		}
	})
}

// The errors of the store, as the caller sees them.
func TestTokenErrors(t *testing.T) {
	for cause, want := range map[error]problem.Code{
		signin.ErrConflict: problem.NotSignedIn, signin.ErrNotFound: problem.NotSignedIn, signin.ErrMismatch: problem.CannotProvision,
		signin.ErrPolicyMissing: problem.CannotProvision, errors.New("refused"): problem.Unavailable,
	} {
		f := newFront(t)
		f.Signins.OnIssue(func(context.Context) error { return cause })
		if _, err := f.Proxy.Token(t.Context(), login(f, "", time.Hour)); problem.CodeOf(err) != want {
			t.Errorf("%v: %v, want %s", cause, err, want)
		}
	}
}
