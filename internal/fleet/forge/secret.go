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
	mostMessage = 200      // runes of somebody else's text
	mostCleaned = 64 << 10 // bytes of it that are looked at
)

// A Secret opens something. It does not print, wherever it stands: fmt asks unexported
// fields for no method, and so finds a pointer.
type Secret struct{ text *string }

// NewSecret returns the secret of a text; the empty text is the zero Secret.
func NewSecret(text string) Secret {
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

// IsZero reports whether there is none.
func (s Secret) IsZero() bool { return s.text == nil }

func (Secret) String() string { return redacted }

// Format implements [fmt.Formatter], for the verbs that would pass String by.
func (Secret) Format(f fmt.State, _ rune) { io.WriteString(f, redacted) }

// LogValue implements [slog.LogValuer].
func (Secret) LogValue() slog.Value { return slog.StringValue(redacted) }

// MarshalText keeps it out of every document.
func (Secret) MarshalText() ([]byte, error) { return []byte(redacted), nil }

// forms are what credentials of the forges look like, wherever a forge or a proxy may
// repeat them: GitHub's and GitLab's tokens, keys, JWTs, and passwords in a URL.
var forms = regexp.MustCompile(`gh[a-z]_[A-Za-z0-9_]+|github_pat_[A-Za-z0-9_]+|gl(?:pat|rtr?|dt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[A-Za-z0-9_.\-]+|GR1348941[A-Za-z0-9_\-]+|` +
	`(?s:-----BEGIN.*?(?:-----END[^-]*-----|$))|eyJ[A-Za-z0-9_\-]*\.[A-Za-z0-9_\-.]*|//[^/@\s]*@`)

// clean makes a text of somebody else's into what a condition or a log line may
// hold: on one line, printable, short, and without the secrets that are known here
// or look like one.
func clean(text string, secrets ...Secret) string {
	text = text[:min(len(text), mostCleaned)]
	for _, s := range secrets {
		if !s.IsZero() {
			text = strings.ReplaceAll(text, s.Reveal(), redacted)
		}
	}
	text = forms.ReplaceAllString(text, redacted)
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))), " ")
	if runes := []rune(text); len(runes) > mostMessage {
		text = string(runes[:mostMessage]) + "…"
	}
	return text
}
