package proxytest

import (
	"context"
	"fmt"
	"maps"
	"strconv"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/broadcast"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// Signins are stored sign-ins, their accounts, and a cache of them that can lag. Tokens follow the rules of the real
// store: [signin.TokenRules].
type Signins struct {
	now func() time.Time

	mu       sync.Mutex
	version  int
	stored   map[string]signin.Signin
	cached   map[string]signin.Signin
	accounts map[string]*signin.Account
	frozen   bool
	listErr  error
	issue    func(context.Context) error
	issued   map[string]int    // tokens by the name of their sign-in
	tokens   map[string]string // the name of the sign-in by its token
	changed  broadcast.Change
}

// Rules are the rules of the tokens.
var Rules = signin.TokenRules{Max: 24 * time.Hour}

// NewSignins returns an empty store.
func NewSignins(now func() time.Time) *Signins {
	return &Signins{now: now, version: 100, stored: map[string]signin.Signin{}, cached: map[string]signin.Signin{}, accounts: map[string]*signin.Account{},
		issued: map[string]int{}, tokens: map[string]string{}}
}

// Login stores a sign-in that is ready, with its account. It ends after period.
func (s *Signins) Login(c access.Caller, session signin.Session, period time.Duration) signin.Signin {
	owner, now := signin.OwnerOf(c, session), s.now()
	name := owner.Name()
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	uid := "uid-" + strconv.Itoa(s.version)
	binds := access.Binds{{Role: "view"}}
	o := signin.Signin{Name: name, UID: uid, Version: strconv.Itoa(s.version), Generation: 1, Owner: owner, Binds: binds, Period: period, AskedAt: now, Created: now}
	o.Report = signin.Report{Phase: signin.PhaseReady, Reason: signin.ReasonProvisioned, ValidUntil: o.End(0), Bound: binds, ServiceAccount: name,
		ServiceAccountUID: "sa-" + uid, ObservedGeneration: 1}
	s.stored[name], s.accounts[name] = o, &signin.Account{UID: "sa-" + uid, Owner: uid, Signin: uid}
	s.publish()
	return o
}

// Logout deletes a sign-in with its account.
func (s *Signins) Logout(name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	delete(s.stored, name)
	delete(s.accounts, name)
	s.publish()
}

// Edit changes a stored sign-in, as an account with that right could.
func (s *Signins) Edit(name string, change func(*signin.Signin)) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.version++
	o := s.stored[name]
	change(&o)
	o.Version = strconv.Itoa(s.version)
	s.stored[name] = o
	s.publish()
}

// publish copies the stored sign-ins to the cache. The caller must hold mu.
func (s *Signins) publish() {
	if !s.frozen {
		s.cached = maps.Clone(s.stored)
		s.changed.Notify()
	}
}

// Freeze stops the watch that fills the cache, as a dead connection does. Thawing fills the cache again.
func (s *Signins) Freeze(frozen bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.frozen = frozen
	s.publish()
}

// FailLists makes Live fail; nil makes it work again.
func (s *Signins) FailLists(err error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.listErr = err
}

// OnIssue sets a function that each request for a token calls first; its error is the answer. nil removes it.
func (s *Signins) OnIssue(f func(context.Context) error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.issue = f
}

// Issued returns the number of tokens of a sign-in.
func (s *Signins) Issued(name string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.issued[name]
}

// OwnerOfToken returns the name of the sign-in for which a token was issued, or "".
func (s *Signins) OwnerOfToken(token string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens[token]
}

// Get implements accessproxy.Signins.
func (s *Signins) Get(_ context.Context, name string) (signin.Signin, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.stored[name]
	switch {
	case s.listErr != nil:
		return signin.Signin{}, s.listErr
	case !ok:
		return signin.Signin{}, fmt.Errorf("read the sign-in %s: %w", name, signin.ErrNotFound)
	}
	return o, nil
}

// GetCached implements accessproxy.Signins.
func (s *Signins) GetCached(name string) (signin.Signin, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	o, ok := s.cached[name]
	return o, ok
}

// ListCached implements accessproxy.Signins.
func (s *Signins) ListCached(login string) (all []signin.Signin) {
	s.mu.Lock()
	defer s.mu.Unlock()
	for _, o := range s.cached {
		if o.Owner.Login == login {
			all = append(all, o)
		}
	}
	return all
}

// Await implements accessproxy.Signins. A positive check is repeated with the stored sign-in.
func (s *Signins) Await(ctx context.Context, name string, done func(signin.Signin, bool) bool) error {
	for {
		woken := s.changed.Next()
		if done(s.GetCached(name)) {
			s.mu.Lock()
			o, ok := s.stored[name]
			s.mu.Unlock()
			if done(o, ok) {
				return nil
			}
		}
		select {
		case <-woken:
		case <-ctx.Done():
			return context.Cause(ctx)
		}
	}
}

// IssueToken implements accessproxy.Signins.
func (s *Signins) IssueToken(ctx context.Context, which signin.Signin, life time.Duration) (secret.Text, time.Time, error) {
	s.mu.Lock()
	issue := s.issue
	s.mu.Unlock()
	if issue != nil {
		if err := issue(ctx); err != nil {
			return secret.Text{}, time.Time{}, err
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	account := s.accounts[which.Name]
	switch {
	case which.ServiceAccountUID == "":
		return secret.Text{}, time.Time{}, fmt.Errorf("token for %s: no ServiceAccount is known: %w", which.Name, signin.ErrConflict)
	case account == nil:
		return secret.Text{}, time.Time{}, fmt.Errorf("read the ServiceAccount of the sign-in %s: %w", which.Name, signin.ErrNotFound)
	}
	allowed, err := Rules.Verify(which, account, s.now())
	if err != nil {
		return secret.Text{}, time.Time{}, fmt.Errorf("token for %s: %w", which.Name, err)
	}
	life = max(min(life, allowed), signin.MinTokenLife)
	s.issued[which.Name]++
	token := fmt.Sprintf("eyJhbGciOiJSUzI1NiJ9.%s-%d.c2ln", which.Name, s.issued[which.Name])
	s.tokens[token] = which.Name
	return secret.New(token), s.now().Add(life).Truncate(time.Second), nil
}

// Live implements accessproxy.Signins.
func (s *Signins) Live(ctx context.Context) (accessproxy.LiveSignins, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.listErr != nil {
		return accessproxy.LiveSignins{}, s.listErr
	}
	live := accessproxy.LiveSignins{Version: strconv.Itoa(s.version), UIDs: map[string]string{}}
	for name, o := range s.stored {
		if !o.Deleting {
			live.UIDs[name] = o.UID
		}
	}
	return live, ctx.Err()
}
