package apiproxy

// The functions of this file sanitise text that clients choose, before it is shown. The result is short, stays on one
// line, cannot change the direction of text, and has nothing that looks like a credential.

import (
	"encoding/json"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/util/sanitize"
)

// Limits of one sanitised text.
const (
	maxSanitized = 256     // bytes that are kept
	maxInspected = 8 << 10 // bytes that are inspected
	redactedText = "[redacted]"
)

// Sanitize returns the sanitised form of a text: at most maxSanitized bytes of UTF-8, without anything that looks
// like a credential. The caller must escape it for its output.
func Sanitize(s string) string {
	if len(s) <= minSecret && IsPrintable(s) {
		return s
	}
	if len(s) > maxInspected {
		s = s[:maxInspected]
	}
	s = redact(strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= maxSanitized {
		return s
	}
	n := maxSanitized
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

const (
	// minSecret is the minimal length of a credential that begins with the prefix of a known kind of
	// token.
	minSecret = 20
	// minRandomSecret is the minimal length of a credential that is recognised because it mixes upper case,
	// lower case and digits. Kubernetes names have no upper case. A pod's local token has 43 characters, and
	// a JSON Web Token has more.
	minRandomSecret = 40
)

var secretPrefixes = [...]string{"eyJ", "tskey-", "glrt-", "glpat-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "sha256~"}

// redact replaces everything that looks like a credential. The adapter itself never writes one, but a client
// may put one into a name or a User-Agent.
func redact(s string) string {
	if i := strings.Index(s, "-----BEGIN "); i >= 0 {
		s = s[:i] + redactedText
	}
	for from := 0; from < len(s); {
		for from < len(s) && !isTokenByte(s[from]) {
			from++
		}
		end := from
		for end < len(s) && isTokenByte(s[end]) {
			end++
		}
		if start := secretIndex(s[from:end]); start >= 0 {
			s = s[:from+start] + redactedText + s[end:]
			end = from + start + len(redactedText)
		}
		from = end
	}
	return s
}

// secretIndex returns the index of a credential in a run of token characters, or -1.
func secretIndex(run string) int {
	if len(run) < minSecret {
		return -1
	}
	if len(run) >= minRandomSecret && hasMixedClasses(run) {
		return 0
	}
	for _, m := range secretPrefixes {
		if i := strings.Index(run, m); i >= 0 && len(run)-i >= minSecret {
			return i
		}
	}
	return -1
}

func hasMixedClasses(run string) bool {
	var small, capital, digit bool
	for _, c := range []byte(run) {
		small = small || c >= 'a' && c <= 'z'
		capital = capital || c >= 'A' && c <= 'Z'
		digit = digit || c >= '0' && c <= '9'
	}
	return small && capital && digit
}

func isTokenByte(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~' ||
		c == '+' ||
		c == '='
}

// IsPrintable reports whether s is ASCII without control characters.
func IsPrintable(s string) bool {
	for _, c := range []byte(s) {
		if c < 0x20 || c >= 0x7f {
			return false
		}
	}
	return true
}

// SanitizedAttr returns a sanitised log attribute. If necessary it escapes the value, because the JSON of slog keeps
// characters that change the direction of text or move a cursor.
func SanitizedAttr(key, s string) slog.Attr {
	if s = Sanitize(s); IsPrintable(s) {
		return slog.String(key, s)
	}
	return slog.Any(key, escapedText(s))
}

// escapedText is a string whose JSON is printable ASCII.
type escapedText string

// MarshalJSON implements [json.Marshaler].
func (t escapedText) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(string(t))
	return sanitize.JSON(b), err
}
