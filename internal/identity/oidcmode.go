package identity

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"strings"
	"time"

	"github.com/go-jose/go-jose/v4"
	"github.com/go-jose/go-jose/v4/jwt"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

const (
	maxToken = 8 << 10          // bytes; tokens of tsidp have about 1 kB
	skew     = 30 * time.Second // maximum difference from the issuer's clock
)

// OIDC is the mode of a listener outside the tailnet. Every request carries an id_token that the
// tailnet's identity provider, tsidp, issued for this server. Such a token is valid for 5 minutes.
// Access tokens of tsidp are not JWTs and are rejected.
type OIDC struct {
	Issuer   string // the issuer's URL, as in the claim iss
	Audience string // the client ID at the issuer, and the only accepted audience
	Tailnet  string // the server's tailnet, such as "tail12345.ts.net"
	// Client sends requests to the issuer for its keys. Its timeout and redirect policy have no
	// effect: requests have a short limit, and redirects are not followed.
	Client *http.Client
	Now    func() time.Time
}

// Check returns an error if a setting is missing or invalid.
func (m OIDC) Check(net.Addr) error {
	u, err := url.Parse(m.Issuer)
	switch {
	case err != nil || u.Host == "" || u.User != nil || u.RawQuery != "" || u.Fragment != "":
		return fmt.Errorf("identity oidc: the issuer %q is not a plain URL", m.Issuer)
	case u.Scheme != "https" && !(u.Scheme == "http" && isLocalHost(u.Hostname())):
		return fmt.Errorf("identity oidc: keys of the issuer %q are not protected in transit; use https", m.Issuer)
	case m.Audience == "":
		return errors.New("identity oidc: the audience is missing; without it, the server would accept tokens for other clients")
	case withoutDot(m.Tailnet) == "":
		return errors.New("identity oidc: the tailnet is missing")
	case m.Client == nil, m.Now == nil:
		return errors.New("identity oidc: a required field is missing")
	}
	return nil
}

func isLocalHost(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// Identifier returns the caller that the request's token names. It reads the token only from the
// Authorization header.
func (m OIDC) Identifier(net.Addr) (Identifier, error) {
	if err := m.Check(nil); err != nil {
		return nil, err
	}
	return withoutHeaders(m.verifier().identify), nil
}

// A verifier verifies tokens with the issuer's keys.
type verifier struct {
	OIDC
	keys *keys
}

func (m OIDC) verifier() *verifier {
	d := discovery{m.Issuer, withoutRedirects(m.Client)}
	return &verifier{m, newKeys(d.load, m.Now)}
}

// identify returns the caller that the token of r names, and removes the token from r.
func (v *verifier) identify(r *http.Request) (access.Caller, error) {
	sent := r.Header["Authorization"]
	delete(r.Header, "Authorization")
	if len(sent) == 0 {
		return access.Caller{}, problem.New(problem.NoIdentity, "This address requires a token.",
			"Send the header Authorization: Bearer with an id_token of "+v.Issuer+".")
	}
	scheme, token, _ := strings.Cut(sent[0], " ")
	switch {
	case len(sent) > 1:
		return access.Caller{}, v.refuse(errors.New("more than one header Authorization"))
	case !strings.EqualFold(scheme, "Bearer"):
		return access.Caller{}, v.refuse(errors.New("the scheme is not Bearer"))
	case len(token) > maxToken:
		return access.Caller{}, v.refuse(fmt.Errorf("a token of %d bytes", len(token)))
	}
	c, err := v.claims(r, token)
	switch {
	case problem.CodeOf(err) == problem.IdentityUnavailable: // the token may be valid
		return access.Caller{}, err
	case err != nil:
		return access.Caller{}, v.refuse(err)
	}
	caller, err := v.callerOf(c)
	if err != nil {
		return access.Caller{}, v.refuse(err)
	}
	return caller, nil
}

// refuse returns an error without details. The details go to the log.
func (v *verifier) refuse(cause error) error {
	return problem.New(problem.InvalidToken, "The token is not valid here.",
		"Get a new id_token of "+v.Issuer+"; it is valid for 5 minutes.",
		"On the tailnet, omit the token: the connection identifies you.").WithCause(cause)
}

// claims are the claims of a token. The JSON decoder of the library is case-sensitive and rejects
// repeated names.
type claims struct {
	Issuer          string           `json:"iss"`
	Audience        jwt.Audience     `json:"aud"`
	AuthorizedParty *string          `json:"azp"`
	Expiry          *jwt.NumericDate `json:"exp"`
	NotBefore       *jwt.NumericDate `json:"nbf"`
	IssuedAt        *jwt.NumericDate `json:"iat"`
	Tailnet         string           `json:"tailnet"`
	Email           string           `json:"email"`
	EmailVerified   json.RawMessage  `json:"email_verified"`
	Name            string           `json:"name"`
	Node            string           `json:"node"`
	NodeID          json.RawMessage  `json:"nid"` // tsidp sends numbers
	UserID          json.RawMessage  `json:"uid"`
}

// claims returns the claims of token after it has verified the issuer's signature.
func (v *verifier) claims(r *http.Request, token string) (c claims, err error) {
	parsed, err := jwt.ParseSigned(token, []jose.SignatureAlgorithm{jose.RS256})
	if err != nil {
		return c, fmt.Errorf("token: %w", err)
	}
	if len(parsed.Headers) != 1 {
		return c, fmt.Errorf("a token of %d signatures", len(parsed.Headers))
	}
	head := parsed.Headers[0]
	if typ, there := head.ExtraHeaders[jose.HeaderType]; there && typ != "JWT" {
		return c, fmt.Errorf("a token of the type %.40q", fmt.Sprint(typ))
	}
	key, err := v.keys.find(r.Context(), head.KeyID)
	if err != nil {
		return c, err
	}
	return c, parsed.Claims(key.public, &c)
}

// callerOf returns the caller that c names. It requires that the configured issuer issued the claims
// for this server and that they are valid now. Missing or empty claims are an error; they never
// produce a caller with less data.
func (v *verifier) callerOf(c claims) (access.Caller, error) {
	now := v.Now()
	switch {
	case c.Issuer != v.Issuer:
		return access.Caller{}, fmt.Errorf("another issuer: %.100q", c.Issuer)
	case len(c.Audience) != 1 || c.Audience[0] != v.Audience:
		return access.Caller{}, fmt.Errorf("the audience is another one: %.100q", c.Audience)
	case c.AuthorizedParty != nil && *c.AuthorizedParty != v.Audience:
		return access.Caller{}, fmt.Errorf("the authorized party is another one: %.100q", *c.AuthorizedParty)
	case c.Expiry == nil, c.NotBefore == nil, c.IssuedAt == nil:
		return access.Caller{}, errors.New("one of exp, nbf and iat is missing")
	case !now.Before(c.Expiry.Time().Add(skew)):
		return access.Caller{}, fmt.Errorf("expired at %v", c.Expiry.Time().UTC())
	case now.Add(skew).Before(c.NotBefore.Time()), now.Add(skew).Before(c.IssuedAt.Time()):
		return access.Caller{}, fmt.Errorf("not valid before %v, issued at %v", c.NotBefore.Time().UTC(), c.IssuedAt.Time().UTC())
	case withoutDot(c.Tailnet) != withoutDot(v.Tailnet):
		return access.Caller{}, fmt.Errorf("another tailnet: %.100q", c.Tailnet)
	case c.EmailVerified != nil && string(c.EmailVerified) != "true":
		return access.Caller{}, fmt.Errorf("email_verified is %.40s", c.EmailVerified)
	}
	login, err := parseLogin(c.Email)
	if err != nil {
		return access.Caller{}, fmt.Errorf("email: %w", err)
	}
	caller := access.Caller{
		Login:       login,
		DisplayName: cmp.Or(c.Name, c.Email),
		UserID:      plainID(c.UserID),
		Tailnet:     withoutDot(v.Tailnet),
		Via:         access.ViaOIDC,
		Device:      access.Device{ID: plainID(c.NodeID), Name: withoutDot(c.Node)},
	}
	return caller, nil
}

// withoutDot removes the trailing dot of a domain name; tsidp adds one.
func withoutDot(name string) string { return strings.TrimSuffix(name, ".") }

// plainID returns a JSON number or string as text.
func plainID(raw json.RawMessage) string { return strings.Trim(string(raw), `"`) }

const discoveryPath = "/.well-known/openid-configuration"

// A discovery finds the keys of an issuer through its discovery document.
type discovery struct {
	issuer string
	client *http.Client
}

// load returns the current keys of the issuer for RS256. It rejects a key URL outside the issuer's origin.
func (k discovery) load(ctx context.Context) (map[string]verificationKey, error) {
	var about struct {
		Issuer string `json:"issuer"`
		Keys   string `json:"jwks_uri"`
	}
	if err := getJSON(ctx, k.client, strings.TrimSuffix(k.issuer, "/")+discoveryPath, &about); err != nil {
		return nil, err
	}
	if about.Issuer != k.issuer {
		return nil, fmt.Errorf("the issuer has another name: %.100q", about.Issuer)
	}
	if !sameOrigin(about.Keys, k.issuer) {
		return nil, fmt.Errorf("the issuer's keys have another origin: %.100q", about.Keys)
	}
	var set keySet
	if err := getJSON(ctx, k.client, about.Keys, &set); err != nil {
		return nil, err
	}
	return set.byID(func(raw []byte) (string, *verificationKey) {
		id, key := signingKey(raw)
		if key == nil {
			return "", nil
		}
		return id, &verificationKey{key, []jose.SignatureAlgorithm{jose.RS256}}
	})
}

func sameOrigin(a, b string) bool {
	x, err := url.Parse(a)
	if err != nil {
		return false
	}
	y, err := url.Parse(b)
	return err == nil && x.Scheme == y.Scheme && x.Host == y.Host && x.User == nil
}
