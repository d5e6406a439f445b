package forge

import (
	"regexp"
	"strconv"
	"strings"

	"github.com/tailplane/tailplane/internal/util/secret"
)

const (
	redacted    = "[secret]" // replaces a secret in a text from outside
	maxMessage  = 200        // runes of a text from outside
	maxRedacted = 64 << 10   // bytes of a text from outside that are inspected
)

// secretForms matches credentials of the forges in texts that a forge or a proxy may repeat: tokens of
// GitHub and GitLab, keys, JWTs, and passwords in URLs.
var secretForms = regexp.MustCompile(`gh[a-z]_[A-Za-z0-9_]+|github_pat_[A-Za-z0-9_]+|gl(?:pat|rtr?|dt|cbt|ptt|ft|imt|agent|oas|soat|ffct)-[A-Za-z0-9_.\-]+|GR1348941[A-Za-z0-9_\-]+|` +
	`(?s:-----BEGIN.*?(?:-----END[^-]*-----|$))|eyJ[A-Za-z0-9_\-]*\.[A-Za-z0-9_\-.]*|//[^/@\s]*@`)

// redact makes a text from outside safe for a condition or a log line: one line, printable, short,
// and without the given secrets and texts that look like secrets.
func redact(text string, secrets ...secret.Text) string {
	text = text[:min(len(text), maxRedacted)]
	for _, s := range secrets {
		if !s.IsZero() {
			text = strings.ReplaceAll(text, s.Reveal(), redacted)
		}
	}
	text = secretForms.ReplaceAllString(text, redacted)
	text = strings.Join(strings.Fields(strings.Map(func(r rune) rune {
		if !strconv.IsPrint(r) {
			return ' '
		}
		return r
	}, strings.ToValidUTF8(text, "?"))), " ")
	if runes := []rune(text); len(runes) > maxMessage {
		text = string(runes[:maxMessage]) + "…"
	}
	return text
}
