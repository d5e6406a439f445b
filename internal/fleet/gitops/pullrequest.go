package gitops

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"maps"
	"reflect"
	"slices"
	"strings"
	"unicode"
	"unicode/utf8"
)

// titleLimit is the maximum length of a title at GitHub and GitLab, in characters.
const titleLimit = 255

// NewID returns the name of a change. The same request of the same person gets the same ID, so a
// repeated request finds the existing change.
func NewID(login, key string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(login) + "\x00" + key))
	return "c" + hex.EncodeToString(sum[:8])
}

// Branch returns the branch of a change's commits.
func Branch(id string) string { return "tailplane/" + id }

// Title returns a title on one line within the limit: the wanted one, or one that names the changed
// object.
func Title(desired string, r Ref) string {
	t := singleLine(desired)
	if t == "" {
		t = "Change " + r.String()
	}
	if utf8.RuneCountInString(t) > titleLimit {
		t = string([]rune(t)[:titleLimit-1]) + "…"
	}
	return t
}

// CommitMessage returns the commit message. It quotes people's text, so that only our trailers count as
// trailers.
func CommitMessage(c Change) string {
	return fmt.Sprintf("%s\n\n%s\n\nTailplane-Change: %s\n", Title(c.Title, c.Ref), blockQuote(c.Reason), c.ID)
}

// RequestBody returns the description of the pull or merge request. link is the URL of the change's page.
func RequestBody(c Change, link string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nProposed by `%s` for %s. Risk: **%s**", blockQuote(c.Reason), inlineCode(c.Proposer), c.Ref, c.Risk.Level)
	if len(c.Risk.Why) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(c.Risk.Why, ", "))
	}
	b.WriteString(".\n")
	if link != "" {
		fmt.Fprintf(&b, "\n[Details](%s): checks, approvals, and whether it is applied.\n", link)
	}
	fmt.Fprintf(&b, "\nTailplane-Change: %s\n", c.ID)
	return b.String()
}

// ClosingComment returns the closing comment of a pull or merge request: what was done, by whom and why.
func ClosingComment(done, by, reason string) string {
	return fmt.Sprintf("%s by `%s`:\n\n%s\n", done, inlineCode(by), blockQuote(reason))
}

// blockQuote quotes a text in Markdown. Git does not read a quoted line as a trailer.
func blockQuote(s string) string {
	var lines []string
	for l := range strings.Lines(s) {
		lines = append(lines, strings.TrimRight("> "+strings.ReplaceAll(singleLine(l), "@", "@\u200b"), " ")) // avoid mentions
	}
	return strings.Join(lines, "\n")
}

// singleLine returns a text on one line, without characters that cannot be printed.
func singleLine(s string) string {
	s = strings.Map(func(r rune) rune {
		switch {
		case unicode.IsSpace(r):
			return ' '
		case !unicode.IsPrint(r):
			return -1
		}
		return r
	}, s)
	return strings.Join(strings.Fields(s), " ")
}

// inlineCode prepares a text for use between back quotes.
func inlineCode(s string) string { return strings.ReplaceAll(singleLine(s), "`", "'") }

// A Risk says how carefully a change needs to be reviewed, and why.
type Risk struct {
	Level string   `json:"level"` // low, medium or high
	Why   []string `json:"why,omitempty"`
}

// riskFields lists the fields that affect isolation, permissions or capacity.
var riskFields = []struct{ field, level, why string }{
	{"isolation", "high", "isolation"}, {"containerMode", "high", "container mode"}, {"template", "high", "pod template"}, {"dedicatedTo", "high", "owner of the pool"},
	{"credentials", "high", "credential"}, {"network", "high", "network"}, {"owners", "high", "owners"}, {"members", "high", "members"}, {"placement", "high", "nodes"},
	{"configURL", "high", "URL at the forge"}, {"url", "high", "forge"}, {"apiURL", "high", "forge"}, {"caBundle", "high", "CA bundle of the forge"},
	{"adopt", "high", "adoption"}, {"approval", "high", "approval"}, {"pools", "medium", "pools"}, {"scaling", "medium", "capacity"}, {"quota", "medium", "quota"},
	{"gitlab", "medium", "managers"}, {"image", "medium", "image"}, {"runsOn", "medium", "labels"},
}

// AssessRisk returns the risk of a change from spec was to spec is. Nil means that the object is created
// or deleted.
func AssessRisk(old, is map[string]any) Risk {
	r := Risk{Level: "low"}
	note := func(level, why string) {
		if !slices.Contains(r.Why, why) {
			r.Why = append(r.Why, why)
		}
		if level == "high" || r.Level == "low" {
			r.Level = level
		}
	}
	switch {
	case old == nil:
		note("medium", "new object")
	case is == nil:
		note("high", "deletion")
		return r
	}
	for _, x := range riskFields {
		if old != nil && !reflect.DeepEqual(old[x.field], is[x.field]) {
			note(x.level, x.why)
		}
	}
	return r
}

// ownerFields lists the fields that an organisation may change itself, by kind: in its enrollment, and in a
// pool that is dedicated to it. All other fields affect others, so a platform-admin must approve.
var ownerFields = map[string][]string{
	"RunnerEnrollment": {"owners", "members"},
	"RunnerPool":       {"runsOn", "image", "resources"},
}

// Owner returns the owner of an object whose spec changes from was to is: the organisation, or ""
// for the platform. Nil means that the object does not exist. platform reports whether a
// platform-admin must approve.
func Owner(r Ref, old, is map[string]any) (org string, platform bool) {
	switch r.Kind {
	case "RunnerEnrollment":
		org = r.Name
	case "RunnerPool":
		before, _ := old["dedicatedTo"].(string)
		after, _ := is["dedicatedTo"].(string)
		if before == after || old == nil {
			org = after
		}
	}
	if org == "" || old == nil || is == nil {
		return org, true
	}
	for k := range maps.Keys(MergePatch(old, is)) {
		if !reflect.DeepEqual(old[k], is[k]) && !slices.Contains(ownerFields[r.Kind], k) {
			return org, true
		}
	}
	return org, false
}

// ContainsSpec reports whether the live object contains all values of spec. It may contain more, such as
// defaults.
func ContainsSpec(spec, live any) bool {
	switch spec := spec.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		for k, v := range spec {
			ok = ok && ContainsSpec(v, l[k])
		}
		return ok
	case []any:
		l, ok := live.([]any)
		ok = ok && len(l) == len(spec)
		for i := 0; ok && i < len(spec); i++ {
			ok = ContainsSpec(spec[i], l[i])
		}
		return ok
	}
	return fmt.Sprint(spec) == fmt.Sprint(live) // the two sides may use different number types
}
