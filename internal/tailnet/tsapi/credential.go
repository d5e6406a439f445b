package tsapi

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/util/httptransport"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// redacted replaces a secret in a text from outside.
const redacted = "[secret]"

// A Credential is an OAuth client of a tailnet. It authenticates with a secret, or with a token of
// an issuer that the tailnet trusts. Exactly one of Secret and Assert must be set.
type Credential struct {
	ClientID string
	Secret   secret.Text
	// Assert returns a new JWT of the issuer for each access token.
	Assert func(context.Context) (secret.Text, error)
}

// A token is an access token.
type token struct {
	text   secret.Text
	scopes []string
	until  time.Time // not used after this time
}

// tokenFailure returns the error of a request for a token. A refusal of the API is about the
// credential, so its class is Refused or NoToken.
func tokenFailure(status int, wait time.Duration, cause error) *Error {
	class := classOf(status)
	if class == Forbidden || class == NotFound || class == Invalid {
		class = NoToken
	}
	return &Error{Op: opToken, AtToken: true, Status: status, Class: class, RetryAfter: wait, cause: cause}
}

// accessToken returns the current token or fetches a new one. Concurrent callers share one fetch.
func (c *Client) accessToken(ctx context.Context) (*token, error) {
	if t := c.token.Load(); t != nil && c.now().Before(t.until) {
		return t, nil
	}
	return c.fetching.do(ctx, c, func(ctx context.Context) (*token, error) {
		if t := c.token.Load(); t != nil && c.now().Before(t.until) {
			return t, nil // another goroutine fetched a token in the meantime
		}
		t, err := c.fetchToken(ctx)
		if err == nil {
			c.token.Store(t)
		}
		return t, err
	})
}

// fetchToken asks for a token over the strict transport. It does not use the client
// library's OAuth and IdentityFederation, because they fetch tokens with the default
// HTTP client of the process, which has no time limit and follows redirects.
func (c *Client) fetchToken(ctx context.Context) (_ *token, err error) {
	begun := c.now()
	ctx, cancel := context.WithTimeout(ctx, attemptTime)
	defer cancel()
	defer func() {
		class := OK
		if failure, ok := errors.AsType[*Error](err); ok {
			class = failure.Class
		}
		c.observe(opToken, class, c.now().Sub(begun))
	}()
	path, form := "/api/v2/oauth/token", url.Values{"client_id": {c.config.Credential.ClientID}}
	if assert := c.config.Credential.Assert; assert != nil {
		jwt, err := assert(ctx)
		if err != nil {
			failure := tokenFailure(0, 0, fmt.Errorf("create the assertion: %w", err))
			failure.Class = NoToken // no request was sent
			return nil, failure
		}
		path, form["jwt"] = "/api/v2/oauth/token-exchange", []string{jwt.Reveal()}
	} else {
		form["grant_type"], form["client_secret"] = []string{"client_credentials"}, []string{c.config.Credential.Secret.Reveal()}
	}
	req, err := http.NewRequestWithContext(ctx, http.MethodPost, c.base.JoinPath(path).String(), strings.NewReader(form.Encode()))
	if err != nil {
		return nil, tokenFailure(0, 0, err)
	}
	req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
	req.Header.Set("Accept", "application/json")
	req.Header.Set("User-Agent", c.config.UserAgent)
	if err := c.limit.Wait(ctx); err != nil {
		return nil, tokenFailure(0, 0, errors.Join(errBusy, err))
	}
	res, err := c.tokens.RoundTrip(req)
	if err != nil {
		if answer, ok := errors.AsType[*httptransport.Error](err); ok {
			return nil, tokenFailure(answer.Status, retryAfter(answer.Header, c.now()), err)
		}
		return nil, tokenFailure(0, 0, err)
	}
	defer res.Body.Close()
	if res.StatusCode != http.StatusOK {
		// Do not pass on the response text: it may repeat the client secret.
		return nil, tokenFailure(res.StatusCode, retryAfter(res.Header, c.now()), errors.New(http.StatusText(res.StatusCode)))
	}
	body, err := io.ReadAll(res.Body)
	var out struct {
		AccessToken string `json:"access_token"`
		TokenType   string `json:"token_type"`
		ExpiresIn   int64  `json:"expires_in"`
		Scope       string `json:"scope"`
	}
	if err == nil {
		if err = json.Unmarshal(body, &out); err != nil {
			err = errors.New("the response is not JSON") // the decoder's error may quote the input
		}
	}
	if err == nil && (out.AccessToken == "" || strings.ContainsFunc(out.AccessToken, func(r rune) bool { return r <= ' ' || r > '~' }) ||
		out.TokenType != "" && !strings.EqualFold(out.TokenType, "Bearer")) {
		err = errors.New("the response has no bearer token")
	}
	if err != nil {
		return nil, tokenFailure(res.StatusCode, 0, err)
	}
	life := tokenLife
	if out.ExpiresIn > 0 && out.ExpiresIn < int64(tokenLife/time.Second)*24 {
		life = time.Duration(out.ExpiresIn) * time.Second
	}
	return &token{text: secret.New(out.AccessToken), scopes: strings.Fields(out.Scope), until: begun.Add(life - min(tokenMargin, life/4))}, nil
}
