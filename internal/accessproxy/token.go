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
	mu      sync.Mutex
	text    secret.Text
	account string // UID of the ServiceAccount
	expires time.Time
	end     time.Time // of the sign-in, for sweeps
	renewed time.Time // of the last token that replaced a refused one
	pending *pendingToken
}

// A pendingToken is a request for a token. All requests that need the token wait for it and share its result.
type pendingToken struct {
	account string // UID of the ServiceAccount
	done    chan struct{}
	text    secret.Text // this and err are read after done is closed
	err     error
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
	k.end = s.ValidUntil
	if k.isUsable(s, now) {
		defer k.mu.Unlock()
		return k.text, nil
	}
	pending := k.request(t.proxy, s)
	k.mu.Unlock()
	return pending.wait(ctx)
}

// isUsable reports whether the token can serve new requests. The caller must hold k.mu.
func (k *token) isUsable(s signin.Signin, now time.Time) bool {
	if k.text.IsZero() || k.account != s.ServiceAccountUID {
		return false
	}
	// A token cannot outlive its sign-in by much, so near the end of the sign-in the last one is used up.
	return k.expires.Sub(now) > tokenRenewal || k.expires.After(now) && !k.expires.Before(s.ValidUntil)
}

// replace returns another token after the API server refused the token used, or false if it may not request one now.
func (t *tokens) replace(ctx context.Context, s signin.Signin, used secret.Text) (secret.Text, bool) {
	now := t.proxy.Now()
	k := t.of(s, now)
	k.mu.Lock()
	switch {
	case !k.text.Equal(used) && !k.text.IsZero():
		defer k.mu.Unlock()
		return k.text, true // another request has replaced it
	case k.pending == nil && !k.renewed.IsZero() && now.Sub(k.renewed) < tokenAnewLimit:
		k.mu.Unlock()
		return secret.Text{}, false
	case k.pending == nil:
		k.renewed = now
	}
	pending := k.request(t.proxy, s)
	k.mu.Unlock()
	text, err := pending.wait(ctx)
	return text, err == nil
}

// request returns the pending request for a token of the account of s, and begins one if there is none. The caller must
// hold k.mu.
func (k *token) request(p *Proxy, s signin.Signin) *pendingToken {
	if k.pending == nil || k.pending.account != s.ServiceAccountUID {
		k.pending = &pendingToken{account: s.ServiceAccountUID, done: make(chan struct{})}
		go k.issue(p, s, k.pending)
	}
	return k.pending
}

// issue requests a token for all that wait for it. It does not end with any of their requests.
func (k *token) issue(p *Proxy, s signin.Signin, pending *pendingToken) {
	ctx, cancel := context.WithTimeout(context.Background(), tokenIssueLimit)
	defer cancel()
	var expires time.Time
	pending.text, expires, pending.err = p.issueToken(ctx, s)
	k.mu.Lock()
	defer k.mu.Unlock()
	if k.pending == pending {
		k.pending = nil
		if pending.err == nil {
			k.text, k.account, k.expires = pending.text, pending.account, expires
		}
	}
	close(pending.done)
}

// wait waits for the result, or until ctx ends.
func (w *pendingToken) wait(ctx context.Context) (secret.Text, error) {
	select {
	case <-w.done:
		return w.text, w.err
	case <-ctx.Done():
		return secret.Text{}, errNoToken(context.Cause(ctx))
	}
}

func errNoToken(cause error) error {
	return problem.New(problem.Unavailable, "The API server gave no token for the sign-in.", "Try again in a moment.").WithRetryAfter(time.Second).WithCause(cause)
}

// issueToken requests a token. Its errors are for the caller.
func (p *Proxy) issueToken(ctx context.Context, s signin.Signin) (text secret.Text, expires time.Time, err error) {
	defer func() {
		if cause := recover(); cause != nil {
			p.Log.Error("a request for a token panicked", "signin", s.Name, "panic", cause)
			text, err = secret.Text{}, errors.New("a panic")
		}
	}()
	text, expires, err = p.Signins.IssueToken(ctx, s, min(tokenLife, s.ValidUntil.Sub(p.Now())))
	switch {
	case errors.Is(err, signin.ErrConflict), errors.Is(err, signin.ErrNotFound):
		err = problem.New(problem.NotSignedIn, "The ServiceAccount of the sign-in is gone.", "Run: "+loginCommand(p.Cluster, s.Owner.Session)).WithCause(err)
	case errors.Is(err, signin.ErrMismatch), errors.Is(err, signin.ErrPolicyMissing):
		err = p.distrust(s, err)
	case err != nil:
		err = errNoToken(err)
	case text.IsZero():
		err = fmt.Errorf("an empty token for %s", s.Name)
	}
	return text, expires, err
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
