// Package text sanitises text that clients choose, before it is shown. The result is short, stays on one
// line, cannot change the direction of text, and has nothing that looks like a credential. It keeps laws 8
// and 10 for everything that an adapter writes.
package text

import (
	"encoding/json"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/printable"
)

// Limits of one sanitised text.
const (
	maxText  = 256     // bytes that are kept
	maxRead  = 8 << 10 // bytes that are inspected
	redacted = "[redacted]"
)

// Clean returns the sanitised form of a text: at most maxText bytes of UTF-8, without anything that looks
// like a credential. The caller must escape it for its output.
func Clean(s string) string {
	if len(s) <= shortestSecret && Printable(s) {
		return s
	}
	if len(s) > maxRead {
		s = s[:maxRead]
	}
	s = redact(strings.ToValidUTF8(s, "\uFFFD"))
	if len(s) <= maxText {
		return s
	}
	n := maxText
	for n > 0 && !utf8.RuneStart(s[n]) {
		n--
	}
	return s[:n] + "…"
}

const (
	// shortestSecret is the minimal length of a credential that begins with the prefix of a known kind of
	// token.
	shortestSecret = 20
	// randomSecret is the minimal length of a credential that is recognised because it mixes upper case,
	// lower case and digits. Kubernetes names have no upper case. A pod's local token has 43 characters, and
	// a JSON Web Token has more.
	randomSecret = 40
)

var marks = [...]string{"eyJ", "tskey-", "glrt-", "glpat-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "sha256~"}

// redact replaces everything that looks like a credential. The adapter itself never writes one, but a client
// may put one into a name or a User-Agent.
func redact(s string) string {
	if i := strings.Index(s, "-----BEGIN "); i >= 0 {
		s = s[:i] + redacted
	}
	for from := 0; from < len(s); {
		for from < len(s) && !ofToken(s[from]) {
			from++
		}
		end := from
		for end < len(s) && ofToken(s[end]) {
			end++
		}
		if start := secretIn(s[from:end]); start >= 0 {
			s = s[:from+start] + redacted + s[end:]
			end = from + start + len(redacted)
		}
		from = end
	}
	return s
}

// secretIn returns the index of a credential in a run of token characters, or -1.
func secretIn(run string) int {
	if len(run) < shortestSecret {
		return -1
	}
	if len(run) >= randomSecret && mixed(run) {
		return 0
	}
	for _, m := range marks {
		if i := strings.Index(run, m); i >= 0 && len(run)-i >= shortestSecret {
			return i
		}
	}
	return -1
}

func mixed(run string) bool {
	var small, capital, digit bool
	for _, c := range []byte(run) {
		small = small || c >= 'a' && c <= 'z'
		capital = capital || c >= 'A' && c <= 'Z'
		digit = digit || c >= '0' && c <= '9'
	}
	return small && capital && digit
}

func ofToken(c byte) bool {
	return c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || c == '-' || c == '_' || c == '.' || c == '~' || c == '+' || c == '='
}

// Printable reports whether s is ASCII without control characters.
func Printable(s string) bool {
	for _, c := range []byte(s) {
		if c < 0x20 || c >= 0x7f {
			return false
		}
	}
	return true
}

// Attr returns a sanitised log attribute. If necessary it escapes the value, because the JSON of slog keeps
// characters that change the direction of text or move a cursor.
func Attr(key, s string) slog.Attr {
	if s = Clean(s); Printable(s) {
		return slog.String(key, s)
	}
	return slog.Any(key, escaped(s))
}

// escaped is a string whose JSON is printable ASCII.
type escaped string

// MarshalJSON implements [json.Marshaler].
func (t escaped) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(string(t))
	return printable.JSON(b), err
}
