package tailnet

import (
	"fmt"
	"log/slog"
	"strings"
)

// A Secret is text that cannot be printed. Formatting, logging and encoding return "[redacted]".
// The zero Secret is empty.
type Secret struct {
	// This is a pointer because fmt does not call methods on unexported fields. Printing such a
	// field then shows an address and not the text.
	text *string
}

const redacted = "[redacted]"

// NewSecret returns s as a Secret, without the surrounding white space of a file.
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

// Format implements [fmt.Formatter], for the verbs that do not call String.
func (s Secret) Format(f fmt.State, _ rune) { fmt.Fprint(f, s.String()) }

// LogValue implements [slog.LogValuer].
func (s Secret) LogValue() slog.Value { return slog.StringValue(s.String()) }

// MarshalText implements [encoding.TextMarshaler].
func (s Secret) MarshalText() ([]byte, error) { return []byte(s.String()), nil }
