package policy

import (
	"fmt"
	"strings"

	"github.com/tailplane/tailplane/internal/util/sanitize"
)

// A Verdict is the result of a policy for one request, with the names of the rules that caused it. The zero Verdict allows
// the request without any condition.
type Verdict struct {
	Refusal  *Refusal  `json:"refusal,omitempty"`  // nil: the policy does not refuse the request
	Warnings []Warning `json:"warnings,omitempty"` // of the matching rules, up to the refusal
	Record   Recording `json:"record,omitzero"`    // union of the matching rules; zero for a refused request
	Matched  []string  `json:"matched,omitempty"`  // names of the matching rules, in the order of the settings file
}

// A Kind is a reason for a refusal.
type Kind string

// The kinds of refusals.
const (
	Denied         Kind = "denied"         // a rule with deny matches
	ReasonRequired Kind = "reasonRequired" // a rule with requireReason matches, and the sign-in has no reason
	Failed         Kind = "failed"         // the evaluation of a rule failed
	TooLarge       Kind = "tooLarge"       // a value of the request exceeds the limit of its variable
)

// A Refusal says which rule refuses a request, and why.
type Refusal struct {
	Rule    string `json:"rule,omitempty"` // empty for TooLarge
	Kind    Kind   `json:"kind"`
	Message string `json:"message"`          // one sentence for the caller
	Advice  string `json:"advice,omitempty"` // what the caller can do
	Detail  string `json:"detail,omitempty"` // the error of a failed rule, for the log; it can contain values of the request
}

// A Warning is a text for the caller of a request that passes.
type Warning struct {
	Rule string `json:"rule"`
	Text string `json:"text"`
}

// Allowed reports whether the policy lets the request pass. The conditions in Record still apply.
func (v Verdict) Allowed() bool { return v.Refusal == nil }

func (v Verdict) refuse(r Refusal) Verdict {
	v.Refusal, v.Record = &r, Recording{}
	return v
}

// Explain returns the verdict as sentences for people, one in each line: first whether the request passes, then the
// conditions and warnings.
func (v Verdict) Explain() []string {
	if r := v.Refusal; r != nil {
		lines := []string{"The policy refuses the request: " + r.Message}
		if r.Rule != "" {
			lines[0] = fmt.Sprintf("The rule %q refuses the request: %s", r.Rule, r.Message)
		}
		if r.Detail != "" {
			lines = append(lines, "The error is: "+r.Detail)
		}
		if r.Advice != "" {
			lines = append(lines, r.Advice)
		}
		return append(lines, v.warnings()...)
	}
	lines := []string{"No rule of the policy refuses the request."}
	if len(v.Matched) > 0 {
		lines = append(lines, "Matching rules: "+strings.Join(v.Matched, ", ")+".")
	}
	if !v.Record.IsZero() {
		lines = append(lines, "Recorded: "+v.Record.String()+".")
	}
	return append(lines, v.warnings()...)
}

func (v Verdict) warnings() (lines []string) {
	for _, w := range v.Warnings {
		lines = append(lines, fmt.Sprintf("The rule %q warns: %s", w.Rule, w.Text))
	}
	return lines
}

// String returns the sentences of Explain, one in each line.
func (v Verdict) String() string { return strings.Join(v.Explain(), "\n") }

// clip returns foreign text on one line of at most MaxText bytes.
func clip(s string) string {
	s = sanitize.Line(strings.ToValidUTF8(s, "�"))
	if len(s) <= MaxText {
		return s
	}
	return strings.ToValidUTF8(s[:MaxText], "") + "…"
}
