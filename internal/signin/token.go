package signin

import (
	"context"
	"errors"
	"fmt"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// TokenHeader carries the OIDC token of a request. The token says which job or which person uses the
// device; the connection alone says which device it is.
const TokenHeader = "Tailplane-OIDC-Token"

// maxIDToken is the maximum size of a token in bytes.
const maxIDToken = 8 << 10

// An IDToken is an OIDC token of a request, not verified. It prints as redacted.
type IDToken struct{ secret.Text }

// NewIDToken returns text as an IDToken.
func NewIDToken(text string) IDToken { return IDToken{secret.New(text)} }

// MarshalText returns the token for the header of a request. Nothing else encodes a request's headers.
func (t IDToken) MarshalText() ([]byte, error) { return []byte(t.Reveal()), nil }

// UnmarshalText implements [encoding.TextUnmarshaler]. The token is verified later.
func (t *IDToken) UnmarshalText(text []byte) error {
	*t = NewIDToken(string(text))
	return nil
}

// MaxText returns the maximum size of the header.
func (IDToken) MaxText() int { return maxIDToken }

// A RequestToken is the part of a request that carries an OIDC token.
type RequestToken struct {
	Token IDToken `json:"-" header:"Tailplane-OIDC-Token" doc:"an OIDC token of an issuer in the oidc of cluster-info, for rules that require one; a sign-in that began with a token needs one of the same issuer and subject in each request"`
}

// SetToken sets the token of the request.
func (r *RequestToken) SetToken(t IDToken) { r.Token = t }

// A TokenIdentity is what a token says about the job or the person that uses the device.
type TokenIdentity struct {
	Issuer  string            `json:"issuer"`
	Subject string            `json:"subject"`
	Claims  map[string]string `json:"claims,omitempty" doc:"those that rules of the tailnet policy require"`
}

// An AcceptedIssuer is an issuer whose tokens a server accepts.
type AcceptedIssuer struct {
	Issuer   string `json:"issuer" doc:"as in the claim iss"`
	Audience string `json:"audience" doc:"the audience to request a token for, unless a rule names another"`
}

// A TokenVerifier verifies the signature, the issuer and the times of tokens.
type TokenVerifier interface {
	// Verify returns the token that raw is. A refusal is a problem.
	Verify(ctx context.Context, raw string) (access.Token, error)
}

// UsedTokens remember which device used which token.
type UsedTokens interface {
	// Use records that the device used the token. Error: ErrTokenUsed if another device has used it. After
	// any other error it is unknown whether one has.
	Use(ctx context.Context, t access.Token, device string) error
}

// ErrTokenUsed means that another device has used the token.
var ErrTokenUsed = errors.New("another device has used the token")

// withToken returns the permit for a request that carries the token. Without one it returns p.
func (d *Service) withToken(ctx context.Context, p access.Permit, raw IDToken) (access.Permit, error) {
	if raw.IsZero() {
		return p, nil
	}
	if p.OwnerOnly() != nil && len(d.Store.ListCached(p.Caller().Identity())) == 0 {
		return p, nil // no grant and no sign-in: do not verify anything for this caller
	}
	if d.Tokens == nil || d.UsedTokens == nil {
		return p, problem.New(problem.TokenRefused, "This server accepts no OIDC tokens.", "Send the request without a token.")
	}
	t, err := d.Tokens.Verify(ctx, raw.Reveal())
	if err != nil {
		return p, err
	}
	return p.WithToken(t), nil
}

// useToken records the use of the caller's token. It must succeed before a sign-in is written.
func (d *Service) useToken(ctx context.Context, p access.Permit) error {
	t := p.Token()
	if t == nil {
		return nil
	}
	err := d.UsedTokens.Use(ctx, *t, p.Caller().Device.ID)
	switch {
	case errors.Is(err, ErrTokenUsed):
		return problem.New(problem.TokenRefused, "Another device has used this OIDC token.",
			"Get a new token for each device. If no job of yours has used it, somebody else has: tell an administrator.")
	case err != nil:
		return problem.New(problem.Unavailable, "The server cannot record that this OIDC token was used, so it does not accept the token.", "Try again in a moment.").
			WithCause(err).WithRetryAfter(time.Second)
	}
	return nil
}

// ownerOf returns the Owner for a session of the caller, with its token.
func ownerOf(p access.Permit, session Session) Owner {
	o := OwnerOf(p.Caller(), session)
	if t := p.Token(); t != nil {
		o.Issuer, o.Subject = t.Issuer, t.Subject
	}
	return o
}

// token returns the token with which s began, as far as it is stored, or nil.
func (s Signin) token() *access.Token {
	if s.Owner.Issuer == "" {
		return nil
	}
	return &access.Token{Issuer: s.Owner.Issuer, Subject: s.Owner.Subject, Audience: s.Audience, Claims: s.Claims}
}

// tokenIdentity returns the token of s for its owner and for records, or nil.
func (s Signin) tokenIdentity() *TokenIdentity {
	if s.Owner.Issuer == "" {
		return nil
	}
	return &TokenIdentity{Issuer: s.Owner.Issuer, Subject: s.Owner.Subject, Claims: s.Claims}
}

// auditDetails returns the token for an audit entry.
func (t *TokenIdentity) auditDetails() map[string]string {
	if t == nil {
		return nil
	}
	return map[string]string{"issuer": t.Issuer, "subject": t.Subject}
}

// hasToken reports whether s was stored with the audience and the claims that want has.
func (s Signin) hasToken(want Signin) bool {
	for name, value := range want.Claims {
		if have, there := s.Claims[name]; !there || have != value {
			return false
		}
	}
	return s.Audience == want.Audience
}

// requireAudience refuses a token for another audience than that of the sign-in.
func requireAudience(p access.Permit, s Signin) error {
	if t := p.Token(); t != nil && t.Audience != s.Audience {
		return problem.New(problem.TokenRefused, fmt.Sprintf("The sign-in began with a token for the audience %q, and this token is for another one.", s.Audience),
			"Use the same audience as at the login.")
	}
	return nil
}

// requireFit refuses a token that gives none of the roles of the sign-in, although it has the subject of the sign-in.
func requireFit(p access.Permit, s Signin) error {
	if t := p.Token(); t != nil && !p.Covers(s.Binds, t) {
		return problem.New(problem.TokenRefused, fmt.Sprintf("The token does not fit a rule for the role %q, although the sign-in has it.", s.Binds.Role()),
			"Another job with the same subject began this sign-in. Sign in with this token: tka login")
	}
	return nil
}
