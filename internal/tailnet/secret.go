package tailnet

import (
	"fmt"
	"log/slog"
	"strings"
)

// A Secret is text that cannot be printed: every way of formatting, logging or
// encoding it gives "[redacted]". The zero Secret is empty.
type Secret struct {
	// A pointer, so that printing a struct with a Secret in an unexported field,
	// where fmt calls no methods, shows an address and not the text.
	text *string
}

const redacted = "[redacted]"

// NewSecret returns s as a Secret, without the white space around it that
// reading a file leaves.
func NewSecret(s string) Secret {
	if s = strings.TrimSpace(s); s == "" {
		return Secret{}
	}
	return Secret{&s}
}

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsZero reports whether s is empty.
func (s Secret) IsZero() bool { return s.text == nil }

// String returns "[redacted]", or "" for an empty Secret.
func (s Secret) String() string {
	if s.IsZero() {
		return ""
	}
	return redacted
}

// Format implements [fmt.Formatter], for the verbs that would pass String by.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// LogValue implements [slog.LogValuer].
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements [encoding.TextMarshaler].
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
