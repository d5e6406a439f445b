package client

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"github.com/tailplane/tailplane/internal/util/secret"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// A TokenSource provides the token from one of Value, File and Command. Tokens of tsidp live for five minutes, so it reads a file or
// runs a command again when needed.
type TokenSource struct {
	Value   string // from the environment, which cannot be read again
	File    string
	Command []string // a program with its arguments, without a shell
	Now     func() time.Time
	Notify  func(message string) // receives a sentence about the expiry of each new token, without the token
	Stderr  io.Writer            // standard error of the command

	mu      sync.Mutex
	token   string
	expires time.Time // zero: unknown
}

// Limits of a token.
const (
	maxToken            = 16 << 10
	tokenRenewBefore    = 30 * time.Second
	tokenCommandTimeout = 30 * time.Second
)

// IsEmpty reports whether the source is empty.
func (s *TokenSource) IsEmpty() bool { return s.Value == "" && s.File == "" && len(s.Command) == 0 }

// Token returns the current token. It reads the token again when the current one is about to expire or equals refused.
func (s *TokenSource) Token(ctx context.Context, refused string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.token != "" && s.token != refused && (s.expires.IsZero() || s.Now().Before(s.expires.Add(-tokenRenewBefore)))
	if fresh || s.token != "" && s.Value != "" {
		return s.token, nil
	}
	text, err := s.read(ctx)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(text)
	if token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("the token is empty, too long or more than one word")
	}
	if token != s.token {
		s.token, s.expires = token, jwtExpiry(token)
		switch left := s.expires.Sub(s.Now()).Round(time.Second); {
		case s.expires.IsZero():
		case left <= 0:
			s.Notify(fmt.Sprintf("The token has been invalid since %s.", s.expires.UTC().Format(time.RFC3339)))
		default:
			s.Notify(fmt.Sprintf("The token is valid until %s, for %v.", s.expires.UTC().Format(time.RFC3339), left))
		}
	}
	return token, nil
}

func (s *TokenSource) read(ctx context.Context) (string, error) {
	switch {
	case s.Value != "":
		return s.Value, nil
	case s.File != "":
		f, err := os.Open(s.File)
		var b []byte
		if err == nil {
			defer f.Close()
			b, err = io.ReadAll(io.LimitReader(f, maxToken+2))
		}
		if err != nil {
			return "", fmt.Errorf("read the token file: %w", err)
		}
		return string(b), nil
	}
	ctx, cancel := context.WithTimeout(ctx, tokenCommandTimeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	var out bytes.Buffer
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = &limitedWriter{w: &out, left: maxToken + 2}, s.Stderr, time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("run the token command %s: %w", s.Command[0], err)
	}
	return out.String(), nil
}

// jwtExpiry returns the expiry in a JWT, without verifying the token; zero if it has none. It only decides when to read another token.
func jwtExpiry(token string) time.Time {
	var claims struct {
		Exp float64 `json:"exp"`
	}
	b, err := secret.JWTPayload(token)
	if err != nil || json.Unmarshal(b, &claims) != nil || claims.Exp <= 0 || claims.Exp > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Exp), 0)
}

// A BearerTransport is an HTTP transport that sends the token to one host by https and refuses requests to any other host.
type BearerTransport struct {
	Base   *url.URL // scheme and host
	Source *TokenSource
	Agent  string
	Next   http.RoundTripper
}

// HTTPClient returns an HTTP client over t. It fails on a redirect.
func (t *BearerTransport) HTTPClient() *http.Client {
	return &http.Client{Transport: t, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("the server answered with a redirect, which tka does not follow: is it an operator plane of Tailplane?")
	}}
}

// RoundTrip implements [http.RoundTripper]. If the server refuses the token, RoundTrip reads it again and retries once.
func (t *BearerTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != t.Base.Scheme || r.URL.Host != t.Base.Host {
		return nil, fmt.Errorf("%s is not the configured operator plane", r.URL.Host)
	}
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", t.Agent)
	r.Header.Del("Authorization")
	if t.Source.IsEmpty() || r.URL.Scheme != "https" {
		return t.Next.RoundTrip(r)
	}
	token, err := t.Source.Token(r.Context(), "")
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := t.Next.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusUnauthorized || r.Body != nil && r.Body != http.NoBody {
		return res, err
	}
	another, err := t.Source.Token(r.Context(), token)
	if err != nil || another == token {
		return res, nil // the refusal says more than err
	}
	_ = res.Body.Close()
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+another)
	return t.Next.RoundTrip(r)
}
