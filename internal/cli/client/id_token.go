package client

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"
	"sync"
	"time"

	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// IDTokenEnv is the environment variable in which a job on GitLab has its OIDC token, by id_tokens of its definition.
const IDTokenEnv = "TKA_OIDC_TOKEN"

// Environment variables of a job on GitHub that may request OIDC tokens. GitHub sets them.
const (
	githubURLEnv   = "ACTIONS_ID_TOKEN_REQUEST_URL"
	githubTokenEnv = "ACTIONS_ID_TOKEN_REQUEST_TOKEN"

	githubIssuer = "https://token.actions.githubusercontent.com" // that of github.com
)

// Limits of the request for a token.
const (
	idTokenTimeout   = 10 * time.Second
	maxIDTokenAnswer = 64 << 10
)

// IDTokens finds the OIDC token of the job or the person that runs tka. It keeps tokens in memory only. Getenv, HTTP and Now are required.
type IDTokens struct {
	Getenv   func(string) string
	HTTP     *http.Client // for GitHub's issuer
	Now      func() time.Time
	Env      string // name of the variable that has the token; "": IDTokenEnv, or else GitHub's issuer
	Audience string // "": the one that the server names

	mu     sync.Mutex
	github map[string]idToken // by audience
}

// Available reports whether this process may have a token.
func (s *IDTokens) Available() bool {
	return s != nil && (s.Env != "" || s.Getenv(IDTokenEnv) != "" || s.Getenv(githubURLEnv) != "" && s.Getenv(githubTokenEnv) != "")
}

// Args returns the flags with which another tka finds the same token.
func (s *IDTokens) Args() (args []string) {
	if s.Env != "" {
		args = append(args, "--oidc-token-env", s.Env)
	}
	if s.Audience != "" {
		args = append(args, "--oidc-audience", s.Audience)
	}
	return args
}

// An idToken is a token with those of its claims that say for whom it is. Nobody has verified them.
type idToken struct {
	text     signin.IDToken
	issuer   string
	audience string
	expires  time.Time
}

// Find returns a token for a server that accepts tokens of these issuers, or the zero IDToken if there is none for it. It returns no token of
// another issuer or for another audience: such a token would be of use to the server elsewhere.
func (s *IDTokens) Find(ctx context.Context, accepted []signin.AcceptedIssuer) (signin.IDToken, error) {
	if !s.Available() || len(accepted) == 0 {
		return signin.IDToken{}, nil
	}
	name := cmp.Or(s.Env, IDTokenEnv)
	text := s.Getenv(name)
	if text == "" && s.Env != "" {
		return signin.IDToken{}, output.UsageErrorf("--oidc-token-env: the environment variable %s is not set", s.Env)
	}
	if text == "" {
		return s.fromGitHub(ctx, accepted)
	}
	t, err := parseIDToken(text)
	if err == nil && !s.Now().Before(t.expires) {
		err = fmt.Errorf("it expired at %s", t.expires.UTC().Format(time.RFC3339))
	}
	if err == nil {
		err = s.isFor(t, accepted)
	}
	if err != nil {
		return signin.IDToken{}, output.Errorf(output.ExitRefused, "The OIDC token in $%s is of no use here: %v", name, err).Because(err).
			Try("Set the audience of the token, or name it: --oidc-audience. In a job on GitLab it is in id_tokens.").
			Try("To sign in without a token: unset %s", name)
	}
	return t.text, nil
}

// isFor returns an error unless the token is of an accepted issuer, and for the audience of the server.
func (s *IDTokens) isFor(t idToken, accepted []signin.AcceptedIssuer) error {
	i := slices.IndexFunc(accepted, func(a signin.AcceptedIssuer) bool { return a.Issuer == t.issuer })
	if i < 0 {
		return fmt.Errorf("the server does not accept the issuer %.100q", t.issuer)
	}
	if want := cmp.Or(s.Audience, accepted[i].Audience); t.audience != want {
		return fmt.Errorf("its audience is %.100q, and the server's is %q", t.audience, want)
	}
	return nil
}

// fromGitHub returns a token of GitHub's issuer for this job. The issuer of a token is known only after it was issued, so a server with
// several audiences may need two requests.
func (s *IDTokens) fromGitHub(ctx context.Context, accepted []signin.AcceptedIssuer) (signin.IDToken, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	issuer := githubIssuer
	for range 2 {
		i := max(0, slices.IndexFunc(accepted, func(a signin.AcceptedIssuer) bool { return a.Issuer == issuer }))
		audience := cmp.Or(s.Audience, accepted[i].Audience)
		t, have := s.github[audience]
		if !have || s.Now().Add(tokenRenewBefore).After(t.expires) {
			var err error
			if t, err = s.requestGitHub(ctx, audience); err != nil {
				return signin.IDToken{}, output.Errorf(output.ExitFailed, "GitHub issued no OIDC token for this job: %v", err).Because(err).Try("Try again in a moment.")
			}
			if s.github == nil {
				s.github = map[string]idToken{}
			}
			s.github[audience] = t
		}
		if s.isFor(t, accepted) == nil {
			return t.text, nil
		}
		issuer = t.issuer
	}
	return signin.IDToken{}, nil // the server accepts no tokens of this GitHub, so its rules require none
}

// requestGitHub requests a token. Its errors contain no secret.
func (s *IDTokens) requestGitHub(ctx context.Context, audience string) (idToken, error) {
	ctx, cancel := context.WithTimeout(ctx, idTokenTimeout)
	defer cancel()
	u, err := url.Parse(s.Getenv(githubURLEnv))
	if err != nil || u.Host == "" || u.User != nil || u.Scheme != "https" && !(u.Scheme == "http" && isLoopback(u.Hostname())) {
		return idToken{}, fmt.Errorf("%s is not an https URL", githubURLEnv)
	}
	query := u.Query()
	query.Set("audience", audience)
	u.RawQuery = query.Encode()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, u.String(), nil)
	if err != nil {
		return idToken{}, fmt.Errorf("%s is not a URL", githubURLEnv)
	}
	req.Header.Set("Authorization", "Bearer "+s.Getenv(githubTokenEnv))
	req.Header.Set("Accept", "application/json")
	own := *s.HTTP
	own.CheckRedirect = func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	res, err := own.Do(req)
	if err != nil {
		if ue, is := errors.AsType[*url.Error](err); is { // its URL names the job
			err = ue.Err
		}
		return idToken{}, err
	}
	defer res.Body.Close()
	body, err := io.ReadAll(io.LimitReader(res.Body, maxIDTokenAnswer+1))
	switch {
	case err != nil:
		return idToken{}, errors.New("the connection closed early")
	case res.StatusCode != http.StatusOK || len(body) > maxIDTokenAnswer:
		return idToken{}, fmt.Errorf("the answer is %q", res.Status)
	}
	var answer struct {
		Value string `json:"value"`
	}
	if json.Unmarshal(body, &answer) != nil {
		return idToken{}, errors.New("the answer is not JSON")
	}
	return parseIDToken(answer.Value)
}

func isLoopback(host string) bool {
	a, err := netip.ParseAddr(host)
	return err == nil && a.IsLoopback()
}

// parseIDToken reads for whom a token is. It does not verify it; the server does. Its errors contain no part of the token.
func parseIDToken(text string) (t idToken, err error) {
	text = strings.TrimSpace(text)
	payload, err := secret.JWTPayload(text)
	if err != nil || strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return t, errors.New("it is not a JSON Web Token")
	}
	var claims struct {
		Issuer   string          `json:"iss"`
		Audience json.RawMessage `json:"aud"` // a string or a list
		Expires  float64         `json:"exp"`
	}
	if err := json.Unmarshal(payload, &claims); err != nil || claims.Expires <= 0 || claims.Expires > 1<<40 {
		return t, errors.New("it is not a JSON Web Token with an end")
	}
	var audiences []string
	if json.Unmarshal(claims.Audience, &t.audience) != nil && json.Unmarshal(claims.Audience, &audiences) == nil && len(audiences) == 1 {
		t.audience = audiences[0]
	}
	t.text, t.issuer, t.expires = signin.NewIDToken(text), claims.Issuer, time.Unix(int64(claims.Expires), 0)
	return t, nil
}

// idTokenFor returns the token for requests to the server. Only a server that has proved a key that was known before gets one: otherwise a
// machine that has taken the server's name could use it elsewhere.
func (c *Client) idTokenFor(ctx context.Context) (signin.IDToken, error) {
	if c.Info.Name == "" { // it has not proved its key
		return signin.IDToken{}, nil
	}
	t, err := c.options.IDTokens.Find(ctx, c.Info.OIDC)
	if err != nil || t.IsZero() || !c.FirstContact {
		return t, err
	}
	return signin.IDToken{}, output.Errorf(output.ExitRefused, "tka sends no OIDC token to %s at first contact: this machine does not know the key of the server yet", c.Base).
		Try("Give the key: --server-key %v, or the environment variable TKA_SERVER_KEY. Take it from a machine that knows the cluster: tka cluster-info -o yaml", "ed25519:...")
}
