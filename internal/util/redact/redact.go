// Package redact recognises credentials by their format and removes them, so that a credential in a
// name, a message or a log is not passed on (law 10).
package redact

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Mark replaces a credential.
const Mark = "[redacted]"

// A credentialPattern is one format of credentials. The first group of a match is kept.
type credentialPattern struct {
	pattern *regexp.Regexp
	// hints are lower-case substrings; every match contains at least one. The search for hints in a
	// log of one megabyte is fast, while all patterns together take a second.
	hints []string
	// certain means that only credentials have this format.
	certain bool
}

// credentialPatterns returns the known formats. It compiles them on first use, because tka starts for every
// kubectl command.
var credentialPatterns = sync.OnceValue(func() []credentialPattern {
	sure := func(pattern string, hints ...string) credentialPattern {
		return credentialPattern{regexp.MustCompile("()" + pattern), hints, true}
	}
	may := func(pattern string, hints ...string) credentialPattern {
		return credentialPattern{regexp.MustCompile(pattern), hints, false}
	}
	return []credentialPattern{
		sure(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`, "-----begin"),
		sure(
			`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`,
			"eyj",
		), // a JWT, such as a ServiceAccount token
		sure(
			`\btskey-[A-Za-z0-9-]{6,}`,
			"tskey-",
		), // Tailscale
		sure(
			`\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,})`,
			"ghp_",
			"gho_",
			"ghu_",
			"ghs_",
			"ghr_",
			"github_pat_",
		), // GitHub
		sure(
			`\bgl(?:pat|rt|ptt|dt|cbt|oas|ft|soat|agent)-[A-Za-z0-9_.-]{12,}`,
			"glpat-",
			"glrt-",
			"glptt-",
			"gldt-",
			"glcbt-",
			"gloas-",
			"glft-",
			"glsoat-",
			"glagent-",
		), // GitLab
		sure(
			`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`,
			"akia",
			"asia",
		), // AWS
		sure(
			`\bxox[abeoprs]-[A-Za-z0-9-]{10,}`,
			"xox",
		), // Slack
		may(
			`()\bsk-[A-Za-z0-9_-]{20,}`,
			"sk-",
		), // providers of AI models
		may(
			`((?i)\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`,
			"bearer",
			"basic",
		), // the value of a header
		may(
			`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@`,
			"://",
		), // a URL with a password
		may(
			`((?i)(?:token|secret|passw(?:or)?d|api[-_]?key|access[-_]?key|private[-_]?key|client[-_]?key(?:-data)?|credentials?)\\?["']?\s*[=:]\s*\\?["']?)[^\s"',;&)}\]\\]{6,}`,
			"token",
			"secret",
			"passw",
			"key",
			"credential",
		), // name=value
	}
})

// foldASCII replaces the non-ASCII letters that case-insensitive patterns treat as an ASCII letter.
var foldASCII = strings.NewReplacer("\u017f", "s", "\u212a", "k")

// credentialNames matches names of members whose value is always a credential.
var credentialNames = regexp.MustCompile(
	`(?i)(?:^|[-_./])(?:token|secret|password|passwd|authorization|cookie|kubeconfig|api[-_]?key|private[-_]?key|client[-_]?secret)$|(?i:last-applied-configuration)$`,
)

// Name reports whether a member of that name holds a credential, whatever its value looks like.
func Name(s string) bool { return credentialNames.MatchString(s) }

// Text returns s without text that looks like a credential.
func Text(s string) string { return replace(s, func(credentialPattern) bool { return true }) }

// Certain returns s without text that can only be a credential, in any context.
func Certain(s string) string { return replace(s, func(f credentialPattern) bool { return f.certain }) }

func replace(s string, these func(credentialPattern) bool) string {
	low := foldASCII.Replace(strings.ToLower(s))
	for _, f := range credentialPatterns() {
		if these(f) && f.mayMatch(low) {
			s = f.pattern.ReplaceAllString(s, "${1}"+Mark)
		}
	}
	return s
}

func (f credentialPattern) mayMatch(low string) bool {
	return slices.ContainsFunc(f.hints, func(hint string) bool { return strings.Contains(low, hint) })
}
