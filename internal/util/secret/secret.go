// Package secret defines the type of texts that must not be printed: tokens, passwords and private keys.
//
// Two other types of the code base redact themselves and are another concept: a private key that signs and is never sent
// (httpapi.Key, audit.Key), and the shared secret of a trusted proxy, of which only a hash is stored (identity.Secret).
package secret

import (
	"crypto/sha256"
	"crypto/subtle"
	"fmt"
	"io"
	"log/slog"
)

// Redacted replaces a secret wherever it is printed, logged or encoded.
const Redacted = "[redacted]"

// A Text is a secret text. All ways to print, log or encode it give [Redacted]. Only Reveal returns the text. The zero
// Text holds no secret and prints as "".
//
// A Text cannot be decoded from a document: the package that reads the document reads a string and calls [New]. Two Texts
// cannot be compared with ==, whose duration would depend on the texts. Use Equal.
type Text struct {
	_ [0]func() // not comparable
	// A pointer, because fmt calls no methods of unexported fields. It prints the address and not the text.
	text *string
}

// New returns text as a Text. The empty text is the zero Text.
func New(text string) Text {
	if text == "" {
		return Text{}
	}
	return Text{text: &text}
}

// Reveal returns the text, or "" for the zero Text. Call it only where the secret is sent, written to its file or verified.
func (t Text) Reveal() string {
	if t.text == nil {
		return ""
	}
	return *t.text
}

// IsZero reports whether t holds no secret. The json option omitzero uses it.
func (t Text) IsZero() bool { return t.text == nil }

// Equal reports whether t and other hold the same text. Its duration does not depend on the texts, so a caller that guesses
// learns nothing from it. Two zero Texts are equal: callers must check IsZero before they accept a secret.
func (t Text) Equal(other Text) bool {
	a, b := sha256.Sum256([]byte(t.Reveal())), sha256.Sum256([]byte(other.Reveal()))
	return subtle.ConstantTimeCompare(a[:], b[:]) == 1
}

// String returns [Redacted], or "" for the zero Text.
func (t Text) String() string {
	if t.IsZero() {
		return ""
	}
	return Redacted
}

// GoString implements [fmt.GoStringer].
func (t Text) GoString() string { return t.String() }

// Format implements [fmt.Formatter]. Every verb gives the result of String, including verbs that do not call it.
func (t Text) Format(f fmt.State, _ rune) { io.WriteString(f, t.String()) }

// LogValue implements [slog.LogValuer].
func (t Text) LogValue() slog.Value { return slog.StringValue(t.String()) }

// MarshalText implements [encoding.TextMarshaler], which JSON and XML also use.
func (t Text) MarshalText() ([]byte, error) { return []byte(t.String()), nil }

// MarshalYAML implements the interface of go.yaml.in/yaml, which this package does not import.
func (t Text) MarshalYAML() (any, error) { return t.String(), nil }
