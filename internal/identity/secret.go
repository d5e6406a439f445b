package identity

import (
	"crypto/sha256"
	"crypto/subtle"
	"errors"
	"fmt"
	"log/slog"
	"strings"
)

// A Secret is the shared secret of a proxy. It stores only a hash and cannot be printed.
type Secret struct{ sum *[sha256.Size]byte }

const (
	redacted  = "[redacted]"
	minSecret = 32 // characters
)

// ParseSecret parses a secret, such as the content of a file, and removes surrounding white space.
// It must have at least 32 printable ASCII characters and no spaces.
func ParseSecret(s string) (Secret, error) {
	s = strings.TrimSpace(s)
	if len(s) < minSecret {
		return Secret{}, fmt.Errorf("a proxy's secret has at least %d characters; this one has %d", minSecret, len(s))
	}
	if strings.ContainsFunc(s, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Secret{}, errors.New("a proxy's secret has printable ASCII characters only, and no space")
	}
	return Secret{new(sha256.Sum256([]byte(s)))}, nil
}

// matches reports whether s is the secret, in constant time.
func (k Secret) matches(s string) bool {
	sum := sha256.Sum256([]byte(s))
	return k.sum != nil && subtle.ConstantTimeCompare(sum[:], k.sum[:]) == 1
}

// IsZero reports whether k holds no secret.
func (k Secret) IsZero() bool { return k.sum == nil }

// String returns "[redacted]".
func (k Secret) String() string { return redacted }

// Format implements [fmt.Formatter], for the verbs that do not call String.
func (k Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, redacted) }

// LogValue implements [slog.LogValuer]: "[redacted]".
func (k Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText implements [encoding.TextMarshaler]: "[redacted]".
func (k Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }
