// Package bearer is the token that tka may show to the operator plane, and the way
// on which it shows it. It keeps law 8: a token goes to the one https host that was
// named, in no redirect, and into no message.
package bearer

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"
)

// A Source is where the token comes from: one of Value, File and Command. What
// tsidp gives out lives for five minutes, so a file and a command are read again.
type Source struct {
	Value   string // of the environment, which cannot be read again
	File    string
	Command []string // a program with its arguments, without a shell
	Now     func() time.Time
	Told    func(message string) // hears, in a sentence without the token, until when a new one is valid
	Errors  io.Writer            // of the command

	mu      sync.Mutex
	token   string
	expires time.Time // zero: it does not say
}

// Bounds of a token.
const (
	maxToken    = 16 << 10
	renewBefore = 30 * time.Second
	commandTime = 30 * time.Second
)

// None reports whether there is no token.
func (s *Source) None() bool { return s.Value == "" && s.File == "" && len(s.Command) == 0 }

// Token returns the token of now. After a refused one, it is read anew.
func (s *Source) Token(ctx context.Context, refused string) (string, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	fresh := s.token != "" && s.token != refused && (s.expires.IsZero() || s.Now().Before(s.expires.Add(-renewBefore)))
	if fresh || s.token != "" && s.Value != "" {
		return s.token, nil
	}
	text, err := s.read(ctx)
	if err != nil {
		return "", err
	}
	token := strings.TrimSpace(text)
	if token == "" || len(token) > maxToken || strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return "", errors.New("what should be a token is empty, too long or of more than one word")
	}
	if token != s.token {
		s.token, s.expires = token, expiry(token)
		switch left := s.expires.Sub(s.Now()).Round(time.Second); {
		case s.expires.IsZero():
		case left <= 0:
			s.Told(fmt.Sprintf("The token has been invalid since %s.", s.expires.UTC().Format(time.RFC3339)))
		default:
			s.Told(fmt.Sprintf("The token is valid until %s, for %v.", s.expires.UTC().Format(time.RFC3339), left))
		}
	}
	return token, nil
}

func (s *Source) read(ctx context.Context) (string, error) {
	switch {
	case s.Value != "":
		return s.Value, nil
	case s.File != "":
		f, err := os.Open(s.File)
		if err != nil {
			return "", fmt.Errorf("the token's file cannot be read: %w", err)
		}
		defer f.Close()
		b, err := io.ReadAll(io.LimitReader(f, maxToken+2))
		if err != nil {
			return "", fmt.Errorf("the token's file cannot be read: %w", err)
		}
		return string(b), nil
	}
	ctx, cancel := context.WithTimeout(ctx, commandTime)
	defer cancel()
	cmd := exec.CommandContext(ctx, s.Command[0], s.Command[1:]...)
	out := &bounded{}
	cmd.Stdout, cmd.Stderr, cmd.WaitDelay = out, s.Errors, time.Second
	if err := cmd.Run(); err != nil {
		return "", fmt.Errorf("the token's command %s: %w", s.Command[0], err)
	}
	return out.b.String(), nil
}

// bounded keeps a little more than a token may have.
type bounded struct{ b bytes.Buffer }

func (w *bounded) Write(p []byte) (int, error) {
	w.b.Write(p[:min(len(p), max(0, maxToken+2-w.b.Len()))])
	return len(p), nil
}

// expiry is until when a JWT says that it is valid. Nobody here believes it: it is
// for knowing when to ask for another.
func expiry(token string) time.Time {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return time.Time{}
	}
	b, err := base64.RawURLEncoding.DecodeString(parts[1])
	var claims struct {
		Exp float64 `json:"exp"`
	}
	if err != nil || json.Unmarshal(b, &claims) != nil || claims.Exp <= 0 || claims.Exp > 1<<40 {
		return time.Time{}
	}
	return time.Unix(int64(claims.Exp), 0)
}

// A Way is an HTTP transport that shows the token to one host by https, and asks
// nobody else.
type Way struct {
	Base   *url.URL // scheme and host
	Source *Source
	Agent  string
	Next   http.RoundTripper
}

// Client is an HTTP client over w. A redirect ends a request.
func (w *Way) Client() *http.Client {
	return &http.Client{Transport: w, CheckRedirect: func(*http.Request, []*http.Request) error {
		return errors.New("the server answers with a redirect, which is not followed: is it an operator plane of Tailplane?")
	}}
}

// RoundTrip implements [http.RoundTripper]. A token that the server does not take is
// read once more.
func (w *Way) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.URL.Scheme != w.Base.Scheme || r.URL.Host != w.Base.Host {
		return nil, fmt.Errorf("%s is not the operator plane that was named", r.URL.Host)
	}
	r = r.Clone(r.Context())
	r.Header.Set("User-Agent", w.Agent)
	r.Header.Del("Authorization")
	if w.Source.None() || r.URL.Scheme != "https" {
		return w.Next.RoundTrip(r)
	}
	token, err := w.Source.Token(r.Context(), "")
	if err != nil {
		return nil, err
	}
	r.Header.Set("Authorization", "Bearer "+token)
	res, err := w.Next.RoundTrip(r)
	if err != nil || res.StatusCode != http.StatusUnauthorized || r.Body != nil && r.Body != http.NoBody {
		return res, err
	}
	another, err := w.Source.Token(r.Context(), token)
	if err != nil || another == token {
		return res, nil // whose refusal says more
	}
	_ = res.Body.Close()
	r = r.Clone(r.Context())
	r.Header.Set("Authorization", "Bearer "+another)
	return w.Next.RoundTrip(r)
}
