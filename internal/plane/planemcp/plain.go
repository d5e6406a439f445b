package planemcp

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/redact"
)

// escapes are what terminals obey.
var escapes = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[ -/]*[0-~]?)|\u009b[0-?]*[ -/]*[@-~]")

// maxText is how many characters are shown of one text of others.
const maxText = 1000

// plain is a text of others in one line without anything that moves a cursor, turns
// text around, cannot be seen, or is a secret (law 10).
func plain(s string) string {
	return clip(redact.Text(visible(s)), maxText) // after what was hidden in it is gone: it could be between two halves of a secret
}

// visible is a text of others in one line without anything that moves a cursor, turns
// text around or cannot be seen.
func visible(s string) string {
	s = escapes.ReplaceAllString(strings.ToValidUTF8(s, "\uFFFD"), "")
	return strings.Map(func(r rune) rune {
		switch {
		case r == '\n', r == '\r', r == '\t', r == '\u2028', r == '\u2029':
			return ' '
		case !unicode.IsPrint(r) && !unicode.Is(unicode.Zs, r):
			return -1
		}
		return r
	}, s)
}

// masked are lines of others without what looks like a credential, also one of several
// lines.
func masked(lines []string) []string {
	plain := make([]string, len(lines))
	for i, l := range lines {
		plain[i] = visible(l)
	}
	if len(plain) == 0 {
		return plain
	}
	return strings.Split(redact.Text(strings.Join(plain, "\n")), "\n")
}

// clip cuts s after n characters, and shows that it did.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// clean makes every text within v plain, names of members too. v is what JSON is
// decoded into.
func clean(v any) any {
	switch v := v.(type) {
	case string:
		return plain(v)
	case []any:
		for i := range v {
			v[i] = clean(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, value := range v {
			if s, ok := value.(string); ok && s != "" && redact.Name(name) {
				value = redact.Mark
			}
			out[plain(name)] = clean(value)
		}
		return out
	}
	return v
}
