// Package text makes what strangers chose fit to be shown: bounded, in one line,
// turned around by nothing, and without what looks like a credential. It keeps
// laws 8 and 10 for all that an adapter writes down.
package text

import (
	"encoding/json"
	"log/slog"
	"strings"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/printable"
)

// Bounds of one text that somebody else chose.
const (
	maxText  = 256     // bytes of it that are kept
	maxRead  = 8 << 10 // bytes of it that are looked at
	redacted = "[redacted]"
)

// Clean returns what is kept of a text that a stranger may have chosen: no more
// than maxText bytes of UTF-8, and nothing that looks like a credential. How it
// is escaped is for who writes it.
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
	// shortestSecret is the shortest run that is taken for a credential when it
	// begins with a mark that tokens of a known kind have.
	shortestSecret = 20
	// randomSecret is the shortest that is taken for one because it mixes capital
	// and small letters with digits. Names in Kubernetes have no capital letters;
	// the local token of a pod is 43 characters long, and a JSON Web Token longer.
	randomSecret = 40
)

var marks = [...]string{"eyJ", "tskey-", "glrt-", "glpat-", "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_", "sha256~"}

// redact takes out what looks like a credential: nobody here puts one in, but a
// client may, into a name or a User-Agent.
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

// secretIn returns where a credential begins in a run of token characters, or -1.
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

// Printable says whether s is ASCII that no terminal obeys.
func Printable(s string) bool {
	for _, c := range []byte(s) {
		if c < 0x20 || c >= 0x7f {
			return false
		}
	}
	return true
}

// Attr returns an attribute of a log line: plain where that is enough, for slog's
// own JSON leaves in place what turns the direction of text or moves a cursor.
func Attr(key, s string) slog.Attr {
	if s = Clean(s); Printable(s) {
		return slog.String(key, s)
	}
	return slog.Any(key, escaped(s))
}

// escaped is a string that prints in JSON as ASCII where it would not print.
type escaped string

// MarshalJSON implements [json.Marshaler].
func (t escaped) MarshalJSON() ([]byte, error) {
	b, err := json.Marshal(string(t))
	return printable.JSON(b), err
}
