package tsapi

import (
	"context"
	"crypto/subtle"
	"encoding/base64"
	"encoding/json"
	"net/http"
	"net/url"
	"slices"
	"strings"
	"time"

	"tailscale.com/util/rands"
)

// tokenLife is the lifetime of an access token.
const tokenLife = time.Hour

// OAuthClient is a client credential of the tailnet. Scopes are Tailscale's: "devices:core", "auth_keys",
// "policy_file", "services", each with ":read" for read-only access, or "all". Its keys can have Tags, and tags that
// these own.
type OAuthClient struct {
	ID     string
	Secret string
	Scopes []string
	Tags   []string
}

// TrustedIssuer is a federated identity. The bearer of a token with this issuer, subject and audience gets an access
// token with the scopes and tags.
type TrustedIssuer struct {
	ClientID, Issuer, Subject, Audience string
	Scopes, Tags                        []string
	// Verify checks the token's signature. It is required, since claims alone prove nothing.
	Verify func(ctx context.Context, token string) error
}

// token is an access token.
type token struct {
	client  string
	scopes  []string
	tags    []string
	expires time.Time
}

// may reports whether the token has the scope, for reading or for all access.
func (t *token) may(scope string, read bool) bool {
	return slices.ContainsFunc(t.scopes, func(s string) bool {
		return s == scope || s == "all" || read && (s == scope+":read" || s == "all:read")
	})
}

// Client creates an OAuth client.
func (a *API) Client(scopes []string, tags ...string) OAuthClient {
	id := "k" + rands.HexString(12) + "CNTRL"
	c := OAuthClient{ID: id, Secret: "tskey-client-" + id + "-" + rands.HexString(32), Scopes: scopes, Tags: tags}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.clients[id] = &c
	return c
}

// Trust adds a federated identity.
func (a *API) Trust(t TrustedIssuer) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.trusted[t.ClientID] = &t
}

// RevokeClient removes the client and its tokens.
func (a *API) RevokeClient(id string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	delete(a.clients, id)
	for s, t := range a.tokens {
		if t.client == id {
			delete(a.tokens, s)
		}
	}
}

// RevokeTokens makes every access token invalid, as if an hour had passed.
func (a *API) RevokeTokens() {
	a.mu.Lock()
	defer a.mu.Unlock()
	clear(a.tokens)
}

func (a *API) newToken(t token) any {
	t.expires = time.Now().Add(tokenLife)
	text := "tskey-api-k" + rands.HexString(12) + "CNTRL-" + rands.HexString(32)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.tokens[text] = &t
	return map[string]any{"access_token": text, "token_type": "Bearer",
		"expires_in": int(tokenLife.Seconds()), "scope": strings.Join(t.scopes, " ")}
}

// tokenOf returns the valid token of a request: as Bearer or as Basic user.
func (a *API) tokenOf(r *http.Request) *token {
	text, ok := strings.CutPrefix(r.Header.Get("Authorization"), "Bearer ")
	if !ok {
		if text, _, ok = r.BasicAuth(); !ok {
			return nil
		}
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	t := a.tokens[text]
	if t == nil || time.Now().After(t.expires) {
		return nil
	}
	return t
}

func unauthorized() error {
	return &apiError{Status: http.StatusUnauthorized, Message: "API token invalid"}
}

// oauthToken accepts the credentials as HTTP Basic, which Go's oauth2 tries first, or in the form.
func (a *API) oauthToken(c *call) (any, error) {
	form, err := url.ParseQuery(string(c.body))
	if err != nil {
		return nil, badRequest("cannot read the form: %v", err)
	}
	if g := form.Get("grant_type"); g != "client_credentials" {
		return nil, badRequest("unsupported grant type %q", g)
	}
	id, secret, ok := c.BasicAuth()
	if ok { // RFC 6749, 2.3.1: both are form-encoded inside
		id, _ = url.QueryUnescape(id)
		secret, _ = url.QueryUnescape(secret)
	} else {
		id, secret = form.Get("client_id"), form.Get("client_secret")
	}
	a.mu.Lock()
	client := a.clients[id]
	a.mu.Unlock()
	if client == nil || subtle.ConstantTimeCompare([]byte(client.Secret), []byte(secret)) != 1 {
		return nil, unauthorized()
	}
	t := token{client: id, scopes: client.Scopes, tags: client.Tags}
	if asked := strings.Fields(form.Get("scope")); len(asked) > 0 {
		for _, s := range asked {
			if !t.may(strings.TrimSuffix(s, ":read"), strings.HasSuffix(s, ":read")) {
				return nil, &apiError{Status: http.StatusForbidden, Message: "scope " + s + " is not the client's"}
			}
		}
		t.scopes = asked
	}
	return a.newToken(t), nil
}

func (a *API) exchangeToken(c *call) (any, error) {
	form, err := url.ParseQuery(string(c.body))
	if err != nil {
		return nil, badRequest("cannot read the form: %v", err)
	}
	a.mu.Lock()
	trust := a.trusted[form.Get("client_id")]
	a.mu.Unlock()
	jwt := form.Get("jwt")
	if trust == nil || trust.Verify == nil || trust.Verify(c.Context(), jwt) != nil {
		return nil, unauthorized()
	}
	parts := strings.Split(jwt, ".")
	var claims struct {
		Iss, Sub string
		Aud      any
		Exp      int64
	}
	if len(parts) != 3 {
		return nil, unauthorized()
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	if err != nil || json.Unmarshal(b, &claims) != nil {
		return nil, unauthorized()
	}
	audience := false
	switch v := claims.Aud.(type) {
	case string:
		audience = v == trust.Audience
	case []any:
		audience = slices.Contains(v, any(trust.Audience))
	}
	if claims.Iss != trust.Issuer || claims.Sub != trust.Subject || !audience || !time.Now().Before(time.Unix(claims.Exp, 0)) {
		return nil, unauthorized()
	}
	return a.newToken(token{client: trust.ClientID, scopes: trust.Scopes, tags: trust.Tags}), nil
}
