package planemcp

import (
	"regexp"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

const redacted = "[redacted]"

// secrets are forms that credentials have. The plane's API gives none out; they
// stand here for what somebody wrote into a name, a label or a message. What must
// be kept of a match is its first group. They are compiled when they are needed: tka
// starts for every command of kubectl.
var secrets = sync.OnceValue(func() []*regexp.Regexp {
	return []*regexp.Regexp{
		regexp.MustCompile(`(?s)()-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`),
		regexp.MustCompile(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`),       // a JWT, such as a ServiceAccount's token
		regexp.MustCompile(`()\btskey-[A-Za-z0-9-]{6,}`),                                        // Tailscale
		regexp.MustCompile(`()\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,})`),   // GitHub
		regexp.MustCompile(`()\bgl(?:pat|rt|ptt|dt|cbt|oas|ft|soat|agent)-[A-Za-z0-9_.-]{12,}`), // GitLab
		regexp.MustCompile(`()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`),                                   // AWS
		regexp.MustCompile(`()\bxox[abeoprs]-[A-Za-z0-9-]{10,}`),                                // Slack
		regexp.MustCompile(`()\bsk-[A-Za-z0-9_-]{20,}`),                                         // makers of models
		regexp.MustCompile(`((?i)\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`),                 // a header's value
		regexp.MustCompile(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@`),                   // a URL with a password
		regexp.MustCompile(`((?i)(?:token|secret|passw(?:or)?d|api[-_]?key|access[-_]?key|private[-_]?key|client[-_]?key(?:-data)?|credentials?)\\?["']?\s*[=:]\s*\\?["']?)[^\s"',;&)}\]\\]{6,}`), // name=value
	}
})

// secretNames are of members whose value is not shown, whatever it looks like.
var secretNames = regexp.MustCompile(`(?i)(?:^|[-_./])(?:token|secret|password|passwd|authorization|cookie|kubeconfig|api[-_]?key|private[-_]?key|client[-_]?secret)$|(?i:last-applied-configuration)$`)

// redact takes out of s what looks like a credential.
func redact(s string) string {
	for _, form := range secrets() {
		s = form.ReplaceAllString(s, "${1}"+redacted)
	}
	return s
}

// escapes are what terminals obey.
var escapes = regexp.MustCompile("\x1b(?:\\[[0-?]*[ -/]*[@-~]|[\\]PX^_][^\x07\x1b]*(?:\x07|\x1b\\\\)?|[ -/]*[0-~]?)|\u009b[0-?]*[ -/]*[@-~]")

// maxText is how many characters are shown of one text of others.
const maxText = 1000

// plain is a text of others in one line without anything that moves a cursor, turns
// text around, cannot be seen, or is a secret (law 10).
func plain(s string) string {
	return clip(redact(visible(s)), maxText) // after what was hidden in it is gone: it could be between two halves of a secret
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
	return strings.Split(redact(strings.Join(plain, "\n")), "\n")
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
			if s, ok := value.(string); ok && s != "" && secretNames.MatchString(name) {
				value = redacted
			}
			out[plain(name)] = clean(value)
		}
		return out
	}
	return v
}
