package forge

import (
	"fmt"
	"io"
	"log/slog"
	"regexp"
	"strconv"
	"strings"
)

const (
	redacted    = "[secret]"
	maxMessage  = 200      // runes of a text from outside
	maxRedacted = 64 << 10 // bytes of a text from outside that are inspected
)

// A Secret is a credential. It never prints its text, wherever it occurs. It holds a pointer,
// because fmt does not call methods of unexported fields and then prints only the pointer.
type Secret struct{ text *string }

// newSecret returns a Secret with this text. An empty text gives the zero Secret.
func newSecret(text string) Secret {
	if text == "" {
		return Secret{}
	}
	return Secret{&text}
}

// Reveal returns the text.
func (s Secret) Reveal() string {
	if s.text == nil {
		return ""
	}
	return *s.text
}

// IsZero reports whether there is no secret.
func (s Secret) IsZero() bool { return s.text == nil }

func (Secret) String() string { return redacted }

// Format implements [fmt.Formatter], for the verbs that do not use String.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue implements [slog.LogValuer].
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText returns a placeholder, so that no encoder writes the secret.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// secretForms matches credentials of the forges in texts that a forge or a proxy may repeat: tokens of
// GitHub and GitLab, keys, JWTs, and passwords in URLs.
var secretForms = regexp.MustCompile(`gh[a-z]_[A-Za-z0-9_]+|github_pat_[A-Za-z0-9_]+|gl(?:pat|rtr?|dt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[A-Za-z0-9_.\-]+|GR1348941[A-Za-z0-9_\-]+|` +
	`(?s:-----BEGIN.*?(?:-----END[^-]*-----|$))|eyJ[A-Za-z0-9_\-]*\.[A-Za-z0-9_\-.]*|//[^/@\s]*@`)

// redact makes a text from outside safe for a condition or a log line: one line, printable, short,
// and without the given secrets and texts that look like secrets.
func redact(text string, secrets ...Secret) string {
	text = text[:min(len(text), maxRedacted)]
	for _, s := range secrets {
		if !s.IsZero() {
			text = strings.ReplaceAll(text, s.Reveal(), redacted)
		}
	}
	text = secretForms.ReplaceAllString(text, redacted)
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))), " ")
	if runes := []rune(text); len(runes) > maxMessage {
		text = string(runes[:maxMessage]) + "…"
	}
	return text
}
