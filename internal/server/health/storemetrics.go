package health

import (
	"context"
	"errors"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// CountingStore returns a store that counts the token requests of s.
func (m *Metrics) CountingStore(s signin.Store) signin.Store { return countingStore{s, m} }

type countingStore struct {
	signin.Store
	m *Metrics
}

func (c countingStore) IssueToken(ctx context.Context, s signin.Signin, life time.Duration) (secret.Text, time.Time, error) {
	token, expires, err := c.Store.IssueToken(ctx, s, life)
	result := tokenMade
	switch {
	case errors.Is(err, signin.ErrConflict), errors.Is(err, signin.ErrNotFound):
		result = tokenRefused
	case err != nil:
		result = tokenFailed
	}
	c.m.tokens.WithLabelValues(result).Inc()
	return token, expires, err
}
