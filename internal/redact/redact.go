// Package redact knows the forms that credentials have, so that what somebody wrote into a
// name, a message or a log goes no further (law 10).
package redact

import (
	"regexp"
	"slices"
	"strings"
	"sync"
)

// Mark stands where a credential was.
const Mark = "[redacted]"

// A form is one that credentials have. What must be kept of a match is its first group.
type form struct {
	is *regexp.Regexp
	// hints are what one of stands in every match, in lower case: a log of a megabyte is
	// looked through for words in a moment, and for all forms in a second.
	hints []string
	// sure says that nothing else looks like this.
	sure bool
}

// forms are those that are known. They are compiled when they are needed: tka starts for
// every command of kubectl.
var forms = sync.OnceValue(func() []form {
	sure := func(pattern string, hints ...string) form {
		return form{regexp.MustCompile("()" + pattern), hints, true}
	}
	may := func(pattern string, hints ...string) form { return form{regexp.MustCompile(pattern), hints, false} }
	return []form{
		sure(`(?s)-----BEGIN [A-Z0-9 ]*PRIVATE KEY-----.*?(?:-----END [A-Z0-9 ]*PRIVATE KEY-----|$)`, "-----begin"),
		sure(`\beyJ[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]{8,}\.[A-Za-z0-9_-]*`, "eyj"),                                                                                          // a JWT, such as a ServiceAccount's token
		sure(`\btskey-[A-Za-z0-9-]{6,}`, "tskey-"),                                                                                                                        // Tailscale
		sure(`\b(?:gh[pousr]_[A-Za-z0-9]{16,}|github_pat_[A-Za-z0-9_]{16,})`, "ghp_", "gho_", "ghu_", "ghs_", "ghr_", "github_pat_"),                                      // GitHub
		sure(`\bgl(?:pat|rt|ptt|dt|cbt|oas|ft|soat|agent)-[A-Za-z0-9_.-]{12,}`, "glpat-", "glrt-", "glptt-", "gldt-", "glcbt-", "gloas-", "glft-", "glsoat-", "glagent-"), // GitLab
		sure(`\b(?:AKIA|ASIA)[A-Z0-9]{16}\b`, "akia", "asia"),                                                                                                             // AWS
		sure(`\bxox[abeoprs]-[A-Za-z0-9-]{10,}`, "xox"),                                                                                                                   // Slack
		may(`()\bsk-[A-Za-z0-9_-]{20,}`, "sk-"),                                                                                                                           // makers of models
		may(`((?i)\b(?:bearer|basic)\s+)[A-Za-z0-9._~+/=-]{8,}`, "bearer", "basic"),                                                                                       // a header's value
		may(`([a-zA-Z][a-zA-Z0-9+.-]*://[^\s/:@]*:)[^\s/@]+@`, "://"),                                                                                                     // a URL with a password
		may(`((?i)(?:token|secret|passw(?:or)?d|api[-_]?key|access[-_]?key|private[-_]?key|client[-_]?key(?:-data)?|credentials?)\\?["']?\s*[=:]\s*\\?["']?)[^\s"',;&)}\]\\]{6,}`,
			"token", "secret", "passw", "key", "credential"), // name=value
	}
})

// folded makes letters of one kind of which patterns take several for one: those that
// are no letters of ASCII, too.
var folded = strings.NewReplacer("\u017f", "s", "\u212a", "k")

// names are of members whose value is a credential, whatever it looks like.
var names = regexp.MustCompile(`(?i)(?:^|[-_./])(?:token|secret|password|passwd|authorization|cookie|kubeconfig|api[-_]?key|private[-_]?key|client[-_]?secret)$|(?i:last-applied-configuration)$`)

// Name says whether what a member of that name holds is a credential, whatever it looks like.
func Name(s string) bool { return names.MatchString(s) }

// Text is s without what looks like a credential.
func Text(s string) string { return without(s, func(form) bool { return true }) }

// Known is s without what can only be a credential, whatever stands around it.
func Known(s string) string { return without(s, func(f form) bool { return f.sure }) }

func without(s string, these func(form) bool) string {
	low := folded.Replace(strings.ToLower(s))
	for _, f := range forms() {
		if these(f) && f.hinted(low) {
			s = f.is.ReplaceAllString(s, "${1}"+Mark)
		}
	}
	return s
}

func (f form) hinted(low string) bool {
	return slices.ContainsFunc(f.hints, func(hint string) bool { return strings.Contains(low, hint) })
}
