package signin

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
)

// in returns the role view in namespaces, or in the whole cluster.
func in(namespaces ...string) access.Binds {
	return access.Binds{{Role: "view", Namespaces: namespaces}}
}

// SI-14: TokenRules.Verify accepts only a status that fits the stored request, and derives the end of the token from
// stored times.
func TestSI14_Verify(t *testing.T) {
	now := time.Date(2026, 11, 28, 12, 0, 0, 0, time.UTC)
	rules := TokenRules{Max: 24 * time.Hour, MaxLife: 24 * time.Hour}
	other := Owner{Login: "dave@example.com", DeviceID: "n2", Tailnet: "example.com"}.Name()
	for _, tt := range []struct {
		why    string
		change func(*Signin, *Account)
		gone   bool // the account does not exist
		life   time.Duration
		err    error
		says   string
	}{
		{why: "intact", change: func(*Signin, *Account) {}, life: 7 * time.Hour},
		{why: "the status may shorten it", change: func(s *Signin, _ *Account) { s.ValidUntil = now.Add(time.Hour) }, life: time.Hour},
		{why: "no owner reference", change: func(_ *Signin, a *Account) { a.Owner = "" }, life: 7 * time.Hour},
		{why: "a clock that is behind the writer's", change: func(s *Signin, _ *Account) {
			s.Period, s.AskedAt, s.Created = rules.Max, now.Add(30*time.Second), now.Add(30*time.Second)
			s.ValidUntil = s.End(rules.MaxLife)
		}, life: rules.Max},
		{why: "some of the namespaces", change: func(s *Signin, _ *Account) {
			s.Binds, s.Bound = in("jobs", "shop"), in("shop")
		}, life: 7 * time.Hour},

		{why: "several roles", change: func(s *Signin, _ *Account) {
			s.Binds = access.Binds{{Role: "view"}, {Role: "edit", Selector: "team=shop"}}
			s.Bound = access.Binds{{Role: "view"}, {Role: "edit", Namespaces: []string{"shop"}}}
		}, life: 7 * time.Hour},
		{why: "some of the roles", change: func(s *Signin, _ *Account) {
			s.Binds = access.Binds{{Role: "edit", Selector: "team=shop"}, {Role: "view"}}
		}, life: 7 * time.Hour},
		{why: "one more role", change: func(s *Signin, _ *Account) { s.Bound = access.Binds{{Role: "view"}, {Role: "edit"}} }, err: ErrMismatch, says: `the role "view,edit", not "view"`},
		{why: "no role", change: func(s *Signin, _ *Account) { s.Bound = nil }, err: ErrMismatch, says: `the role ""`},
		{why: "the whole cluster instead of a selector", change: func(s *Signin, _ *Account) { s.Binds = access.Binds{{Role: "view", Selector: "team=shop"}} }, err: ErrMismatch, says: "with the labels team=shop"},
		{why: "the namespaces of another role", change: func(s *Signin, _ *Account) {
			s.Binds = access.Binds{{Role: "view", Namespaces: []string{"jobs"}}, {Role: "edit", Namespaces: []string{"shop"}}}
			s.Bound = access.Binds{{Role: "view", Namespaces: []string{"jobs"}}, {Role: "edit", Namespaces: []string{"jobs"}}}
		}, err: ErrMismatch, says: "edit in jobs"},

		{why: "no account", gone: true, change: func(*Signin, *Account) {}, err: ErrConflict},
		{why: "a recreated account", change: func(_ *Signin, a *Account) { a.UID = "sa2" }, err: ErrConflict},
		{why: "an account that is being deleted", change: func(_ *Signin, a *Account) { a.Deleting = true }, err: ErrConflict},

		{why: "another person's account", change: func(s *Signin, a *Account) {
			s.ServiceAccount, s.ServiceAccountUID, a.UID, a.Signin = other, "sa2", "sa2", "uid2"
		},
			err: ErrMismatch, says: "names the ServiceAccount dave"},
		{why: "an account of an earlier sign-in", change: func(_ *Signin, a *Account) { a.Signin = "uid0" }, err: ErrMismatch, says: "labels"},
		{why: "an account without labels", change: func(_ *Signin, a *Account) { a.Signin = "" }, err: ErrMismatch, says: "labels"},
		{why: "an account of another owner", change: func(_ *Signin, a *Account) { a.Owner = "uid2" }, err: ErrMismatch, says: "belongs"},
		{why: "the name of another device", change: func(s *Signin, _ *Account) { s.Owner.DeviceID = "n2" }, err: ErrMismatch, says: "is not the name"},
		{why: "a session that has no name", change: func(s *Signin, _ *Account) {
			s.Owner.Session = "../x"
			s.Name, s.ServiceAccount = s.Owner.Name(), s.Owner.Name()
		}, err: ErrMismatch, says: "is not the name"},
		{why: "another role", change: func(s *Signin, _ *Account) { s.Bound = access.Binds{{Role: "edit"}} }, err: ErrMismatch, says: `the role "edit"`},
		{why: "a namespace that was not requested", change: func(s *Signin, _ *Account) {
			s.Binds, s.Bound = in("shop"), in("kube-system")
		}, err: ErrMismatch, says: `"view in kube-system", not "view in shop"`},
		{why: "the whole cluster instead of a namespace", change: func(s *Signin, _ *Account) { s.Binds = in("shop") }, err: ErrMismatch, says: `"view in the whole cluster", not "view in shop"`},
		{why: "a later end", change: func(s *Signin, _ *Account) { s.ValidUntil = s.ValidUntil.Add(time.Second) }, err: ErrMismatch, says: "the end"},
		{why: "an end after the maximum life", change: func(s *Signin, _ *Account) { s.Created = now.Add(-23 * time.Hour) }, err: ErrMismatch, says: "the end"},
		{why: "a period above the maximum", change: func(s *Signin, _ *Account) { s.Period = 25 * time.Hour }, err: ErrMismatch, says: "the period"},
		{why: "a request in the future", change: func(s *Signin, _ *Account) { s.AskedAt = now.Add(2 * time.Minute) }, err: ErrMismatch, says: "in the future"},
	} {
		owner := Owner{Login: "carol@example.com", DeviceID: "n1", Tailnet: "example.com"}
		s := Signin{Name: owner.Name(), UID: "uid1", Owner: owner, Binds: in(), Period: 8 * time.Hour, AskedAt: now.Add(-time.Hour), Created: now.Add(-time.Hour),
			Report: Report{Phase: PhaseReady, Bound: in(), ServiceAccount: owner.Name(), ServiceAccountUID: "sa1", ValidUntil: now.Add(7 * time.Hour)}}
		account := &Account{UID: "sa1", Owner: "uid1", Signin: "uid1"}
		tt.change(&s, account)
		if tt.gone {
			account = nil
		}
		life, err := rules.Verify(s, account, now)
		if life != tt.life || !errors.Is(err, tt.err) {
			t.Errorf("%s: got %v, %v; want %v, %v", tt.why, life, err, tt.life, tt.err)
		}
		if err != nil && !strings.Contains(err.Error(), tt.says) {
			t.Errorf("%s: the error %v does not contain %q", tt.why, err, tt.says)
		}
	}
}
