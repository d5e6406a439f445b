package change

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

// titleLimit is what GitHub and GitLab take for a title, in characters.
const titleLimit = 255

// ID is the name of a change: the same person's same request has the same one, so
// that asking again finds what was made.
func ID(login, key string) string {
	sum := sha256.Sum256([]byte(strings.ToLower(login) + "\x00" + key))
	return "c" + hex.EncodeToString(sum[:8])
}

// Branch is where a change's commits are.
func Branch(id string) string { return "tailplane/" + id }

// Title is one line that fits, of what somebody wrote; or of what is changed.
func Title(wanted string, r Ref) string {
	t := line(wanted)
	if t == "" {
		t = "Change " + r.String()
	}
	if utf8.RuneCountInString(t) > titleLimit {
		t = string([]rune(t)[:titleLimit-1]) + "…"
	}
	return t
}

// Message is a commit's message. The trailers at its end are ours only: what people
// wrote is quoted, so that it cannot be taken for one.
func Message(c Change) string {
	return fmt.Sprintf("%s\n\n%s\n\nTailplane-Change: %s\n", Title(c.Title, c.Ref), quote(c.Reason), c.ID)
}

// Body is what the pull or merge request says. Link is the change's page.
func Body(c Change, link string) string {
	var b strings.Builder
	fmt.Fprintf(&b, "%s\n\nProposed by `%s` for %s. Risk: **%s**", quote(c.Reason), code(c.Proposer), c.Ref, c.Risk.Level)
	if len(c.Risk.Why) > 0 {
		fmt.Fprintf(&b, " (%s)", strings.Join(c.Risk.Why, ", "))
	}
	b.WriteString(".\n")
	if link != "" {
		fmt.Fprintf(&b, "\n[Look at it](%s): checks, approvals, and whether it was applied.\n", link)
	}
	fmt.Fprintf(&b, "\nTailplane-Change: %s\n", c.ID)
	return b.String()
}

// Comment is what a pull or merge request says of its end: what was done, by whom and why.
func Comment(done, by, reason string) string {
	return fmt.Sprintf("%s by `%s`:\n\n%s\n", done, code(by), quote(reason))
}

// quote is a text as Markdown quotes it, which is also no trailer of git's.
func quote(s string) string {
	var lines []string
	for l := range strings.Lines(s) {
		lines = append(lines, strings.TrimRight("> "+strings.ReplaceAll(line(l), "@", "@\u200b"), " ")) // nobody is called by name
	}
	return strings.Join(lines, "\n")
}

// line is a text in one line, without what does not print.
func line(s string) string {
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

// code is a text between back quotes.
func code(s string) string { return strings.ReplaceAll(line(s), "`", "'") }

// A Risk is how much a change deserves a second look, and for what.
type Risk struct {
	Level string   `json:"level"` // low, medium or high
	Why   []string `json:"why,omitempty"`
}

// risks are the fields that say who is kept apart from whom, who may what, and how
// much there is.
var risks = []struct{ field, level, why string }{
	{"isolation", "high", "isolation"}, {"containerMode", "high", "container mode"}, {"template", "high", "the pod"}, {"dedicatedTo", "high", "whose pool it is"},
	{"credentials", "high", "credential"}, {"network", "high", "network"}, {"owners", "high", "owners"}, {"members", "high", "members"}, {"placement", "high", "nodes"},
	{"configURL", "high", "place at the forge"}, {"url", "high", "forge"}, {"apiURL", "high", "forge"}, {"caBundle", "high", "whom the forge's certificate is trusted from"},
	{"adopt", "high", "adoption"}, {"approval", "high", "approval"}, {"pools", "medium", "pools"}, {"scaling", "medium", "capacity"}, {"quota", "medium", "quota"},
	{"gitlab", "medium", "managers"}, {"image", "medium", "image"}, {"runsOn", "medium", "labels"},
}

// Rate says the risk of a spec that becomes another; nil is an object that comes, or
// that goes.
func Rate(was, is map[string]any) Risk {
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
	case was == nil:
		note("medium", "it is new")
	case is == nil:
		note("high", "it goes")
		return r
	}
	for _, x := range risks {
		if was != nil && !reflect.DeepEqual(was[x.field], is[x.field]) {
			note(x.level, x.why)
		}
	}
	return r
}

// own are the fields that an organisation's own people decide about, by kind: of its
// enrollment, and of a pool that is dedicated to it. Everything else touches others,
// and takes an approval of those who run the platform.
var own = map[string][]string{
	"RunnerEnrollment": {"owners", "members"},
	"RunnerPool":       {"runsOn", "image", "resources"},
}

// Owner says whose an object is that changes from one spec to another, nil where it is
// not there: the organisation, or "" for the platform; and whether those who run the
// platform have to approve.
func Owner(r Ref, was, is map[string]any) (org string, platform bool) {
	switch r.Kind {
	case "RunnerEnrollment":
		org = r.Name
	case "RunnerPool":
		before, _ := was["dedicatedTo"].(string)
		after, _ := is["dedicatedTo"].(string)
		if before == after || was == nil {
			org = after
		}
	}
	if org == "" || was == nil || is == nil {
		return org, true
	}
	for k := range maps.Keys(Merge(was, is)) {
		if !reflect.DeepEqual(was[k], is[k]) && !slices.Contains(own[r.Kind], k) {
			return org, true
		}
	}
	return org, false
}

// Held reports whether what is live says all that spec says. It may say more: defaults.
func Held(spec, live any) bool {
	switch spec := spec.(type) {
	case map[string]any:
		l, ok := live.(map[string]any)
		for k, v := range spec {
			ok = ok && Held(v, l[k])
		}
		return ok
	case []any:
		l, ok := live.([]any)
		ok = ok && len(l) == len(spec)
		for i := 0; ok && i < len(spec); i++ {
			ok = Held(spec[i], l[i])
		}
		return ok
	}
	return fmt.Sprint(spec) == fmt.Sprint(live) // numbers are read in several types
}
