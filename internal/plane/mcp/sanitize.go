package mcp

import (
	"regexp"
	"strings"
	"unicode"
	"unicode/utf8"

	"github.com/tailplane/tailplane/internal/util/redact"
)

// escapes matches terminal escape sequences.
var escapes = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[ -/]*[0-~]?)|\u009b[0-?]*[ -/]*[@-~]")

// maxText is the maximum number of characters shown of one foreign text.
const maxText = 1000

// sanitize returns foreign text on one line, without control characters, bidirectional or invisible characters, and secrets (law 10).
func sanitize(s string) string {
	return clip(redact.Text(visible(s)), maxText) // redact last: an invisible character could split a secret
}

// visible returns foreign text on one line, without control characters, bidirectional or invisible characters.
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

// redactLines returns foreign lines with credentials removed, also credentials that span several lines.
func redactLines(lines []string) []string {
	plain := make([]string, len(lines))
	for i, l := range lines {
		plain[i] = visible(l)
	}
	if len(plain) == 0 {
		return plain
	}
	return strings.Split(redact.Text(strings.Join(plain, "\n")), "\n")
}

// clip cuts s to n characters. The last one is then an ellipsis.
func clip(s string, n int) string {
	if utf8.RuneCountInString(s) <= n {
		return s
	}
	return string([]rune(s)[:n-1]) + "…"
}

// sanitizeJSON applies plain to every text in v, including member names. v is decoded JSON.
func sanitizeJSON(v any) any {
	switch v := v.(type) {
	case string:
		return sanitize(v)
	case []any:
		for i := range v {
			v[i] = sanitizeJSON(v[i])
		}
	case map[string]any:
		out := make(map[string]any, len(v))
		for name, value := range v {
			if s, ok := value.(string); ok && s != "" && redact.Name(name) {
				value = redact.Mark
			}
			out[sanitize(name)] = sanitizeJSON(value)
		}
		return out
	}
	return v
}
