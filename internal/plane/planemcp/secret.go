package planemcp

import (
	"regexp"
	"slices"
	"strings"
	"sync"
	"unicode"
	"unicode/utf8"
)

const redacted = "[redacted]"

// A form is one that credentials have. What must be kept of a match is its first group.
type form struct {
	is *regexp.Regexp
	// hints are what one of stands in every match, in lower case: a log of a megabyte is
	// looked through for words in a moment, and for all forms in a second.
	hints []string
}

// secrets are forms that credentials have. The plane's API gives none out; they
// stand here for what somebody wrote into a name, a label or a message. They are compiled
// when they are needed: tka starts for every command of kubectl.
var secrets = sync.OnceValue(func() []form {
	of := func(pattern string, hints ...string) form { return form{regexp.MustCompile(pattern), hints} }
	return []form{
		of(`(?s)()-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`, "-----begin"),
		of(`()\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`, "eyj"),                                                                                          // a JWT, such as a ServiceAccount's token
		of(`()\btskey-[A-Za-z0-9-]{6,}`, "tskey-"),                                                                                                                        // Tailscale
		of(`()\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,})`, "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),                                      // GitHub
		of(`()\bgl(?:pat|rt|ptt|dt|cbt|oas|ft|soat|agent)-[A-Za-z0-9_.-]{12,}`, "glpat-", "glrt-", "glptt-", "gldt-", "glcbt-", "gloas-", "glft-", "glsoat-", "glagent-"), // GitLab
		of(`()\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`, "akia", "asia"),                                                                                                             // AWS
		of(`()\bxox[abeoprs]-[A-Za-z0-9-]{10,}`, "xox"),                                                                                                                   // Slack
		of(`()\bsk-[A-Za-z0-9_-]{20,}`, "sk-"),                                                                                                                            // makers of models
		of(`((?i)\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`, "bearer", "basic"),                                                                                        // a header's value
		of(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@`, "://"),                                                                                                      // a URL with a password
		of(`((?i)(?:token|secret|passw(?:or)?d|api[-_]?key|access[-_]?key|private[-_]?key|client[-_]?key(?:-data)?|credentials?)\\?["']?\s*[=:]\s*\\?["']?)[^\s"',;&)}\]\\]{6,}`,
			"token", "secret", "passw", "key", "credential"), // name=value
	}
})

// folded makes letters of one kind of which patterns take several for one: those that
// are no letters of ASCII, too.
var folded = strings.NewReplacer("\u017f", "s", "\u212a", "k")

// secretNames are of members whose value is not shown, whatever it looks like.
var secretNames = regexp.MustCompile(`(?i)(?:^|[-_./])(?:token|secret|password|passwd|authorization|cookie|kubeconfig|api[-_]?key|private[-_]?key|client[-_]?secret)$|(?i:last-applied-configuration)$`)

// redact takes out of s what looks like a credential.
func redact(s string) string {
	low := folded.Replace(strings.ToLower(s))
	for _, f := range secrets() {
		if slices.ContainsFunc(f.hints, func(hint string) bool { return strings.Contains(low, hint) }) {
			s = f.is.ReplaceAllString(s, "${1}"+redacted)
		}
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
