package accessproxy

import (
	"context"
	"errors"
	"fmt"
	"math"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// Lives of tokens.
const (
	tokenLife       = time.Hour        // requested; the API server may shorten or, to be kind to old clients, extend it
	tokenRenewal    = 5 * time.Minute  // a token with less left is replaced; requests that it began with go on
	tokenAnewLimit  = 30 * time.Second // at most one new token in this time after the API server refused one
	tokenIssueLimit = 10 * time.Second
)

// tokens are the tokens of live sign-ins, in memory only. Each belongs to one sign-in, by its UID, and is never used for
// another one.
type tokens struct {
	proxy *Proxy
	mu    sync.Mutex
	all   map[string]*token // by UID of the sign-in
	swept time.Time
}

// A token is the current token of one sign-in.
type token struct {
	mu      sync.Mutex // held while a token is requested, so that many requests share one
	text    secret.Text
	account string // UID of the ServiceAccount
	expires time.Time
	end     time.Time // of the sign-in, for sweeps
	renewed time.Time // of the last token that replaced a refused one
}

func (t *tokens) init(p *Proxy) { t.proxy, t.all, t.swept = p, map[string]*token{}, p.Now() }

// of returns the token state of a sign-in. It forgets sign-ins that have ended.
func (t *tokens) of(s signin.Signin, now time.Time) *token {
	t.mu.Lock()
	defer t.mu.Unlock()
	if now.Sub(t.swept) > time.Minute {
		t.swept = now
		for uid, k := range t.all {
			if k.mu.TryLock() {
				if now.After(k.end) {
					delete(t.all, uid)
				}
				k.mu.Unlock()
			}
		}
	}
	k := t.all[s.UID]
	if k == nil {
		k = &token{end: s.ValidUntil}
		t.all[s.UID] = k
	}
	return k
}

// get returns a token of the account of s that the API server accepts for a while.
func (t *tokens) get(ctx context.Context, s signin.Signin) (secret.Text, error) {
	now := t.proxy.Now()
	k := t.of(s, now)
	k.mu.Lock()
	defer k.mu.Unlock()
	k.end = s.ValidUntil
	// A token cannot outlive its sign-in by much, so near the end of the sign-in the last one is used up.
	if !k.text.IsZero() && k.account == s.ServiceAccountUID && (k.expires.Sub(now) > tokenRenewal || k.expires.After(now) && !k.expires.Before(s.ValidUntil)) {
		return k.text, nil
	}
	return k.issue(ctx, t.proxy, s)
}

// replace returns another token after the API server refused the token used, or false if it may not request one now.
func (t *tokens) replace(ctx context.Context, s signin.Signin, used secret.Text) (secret.Text, bool) {
	now := t.proxy.Now()
	k := t.of(s, now)
	k.mu.Lock()
	defer k.mu.Unlock()
	if !k.text.Equal(used) && !k.text.IsZero() {
		return k.text, true // another request has replaced it
	}
	if !k.renewed.IsZero() && now.Sub(k.renewed) < tokenAnewLimit {
		return secret.Text{}, false
	}
	k.renewed = now
	text, err := k.issue(ctx, t.proxy, s)
	return text, err == nil
}

// issue requests a token. The caller must hold k.mu.
func (k *token) issue(ctx context.Context, p *Proxy, s signin.Signin) (secret.Text, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), tokenIssueLimit) // others wait for the same token
	defer cancel()
	text, expires, err := p.Signins.IssueToken(ctx, s, min(tokenLife, s.ValidUntil.Sub(p.Now())))
	switch {
	case errors.Is(err, signin.ErrConflict), errors.Is(err, signin.ErrNotFound):
		return secret.Text{}, problem.New(problem.NotSignedIn, "The ServiceAccount of the sign-in is gone.", "Run: "+loginCommand(p.Cluster, s.Owner.Session)).WithCause(err)
	case errors.Is(err, signin.ErrMismatch), errors.Is(err, signin.ErrPolicyMissing):
		return secret.Text{}, p.distrust(s, err)
	case err != nil:
		return secret.Text{}, problem.New(problem.Unavailable, "The API server gave no token for the sign-in.", "Try again in a moment.").
			WithRetryAfter(time.Second).WithCause(err)
	case text.IsZero():
		return secret.Text{}, fmt.Errorf("an empty token for %s", s.Name)
	}
	k.text, k.account, k.expires = text, s.ServiceAccountUID, expires
	return text, nil
}

// statusRules have no limit, because IssueToken applies those of the server.
var statusRules = signin.TokenRules{Max: math.MaxInt64}

// mismatch returns how the status of a sign-in differs from what the access server wrote, or nil. The writer of a status
// is not trusted (law 5), and a token from before must not serve a status that was changed since.
func mismatch(s signin.Signin, now time.Time) error {
	_, err := statusRules.Verify(s, &signin.Account{UID: s.ServiceAccountUID, Signin: s.UID}, now)
	return err
}

// distrust reports a sign-in that cannot be trusted, and returns the refusal.
func (p *Proxy) distrust(s signin.Signin, cause error) error {
	p.Log.Error("a stored sign-in cannot be trusted", "signin", s.Name, "err", cause)
	return problem.New(problem.CannotProvision, "The stored sign-in is not what the access server wrote, or its protection is not in force.",
		"Tell an administrator of the cluster.").WithCause(cause)
}
