// Package findings reports drift between the forge, the cluster and the decisions. It uses the
// status of an enrollment, where findings survive a restart, a condition and events. It implements
// law 7: a finding that could not be checked stays, and is marked as unconfirmed.
package findings

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/truth"
)

// Drifted is the type of the condition that reports drift.
const Drifted = "Drifted"

// most is the maximum number of findings in a status. The worst ones come first.
const most = 64

// Read reads the findings of an organisation from its status.
func Read(org string, list []v1alpha1.EnrollmentFinding) []truth.Finding {
	out := make([]truth.Finding, 0, len(list))
	for _, f := range list {
		out = append(out, truth.Finding{Kind: truth.Kind(f.Kind), Severity: truth.Severity(f.Severity), Org: org, Pool: f.Pool, Workload: f.Workload, Subject: f.Subject,
			Want: f.Want, Have: f.Have, Evidence: f.Evidence, Next: f.Next, FirstSeen: f.FirstSeen.Time, ExplainedBy: f.ExplainedBy, Unconfirmed: f.Unconfirmed})
	}
	return out
}

// Status converts findings for a status. It omits the mildest if there are too many.
func Status(list []truth.Finding, now time.Time) (out []v1alpha1.EnrollmentFinding) {
	for _, f := range list[:min(len(list), most)] {
		out = append(out, v1alpha1.EnrollmentFinding{ID: f.ID(), Kind: string(f.Kind), Severity: string(f.Severity), Pool: f.Pool, Workload: f.Workload, Subject: f.Subject,
			Want: Cut(f.Want, 512), Have: Cut(f.Have, 512), Evidence: Cut(f.Evidence, 1024), Next: Cut(f.Next, 512),
			FirstSeen: metav1.NewTime(f.FirstSeen.Truncate(time.Second)), Settled: f.Shown(now), ExplainedBy: f.ExplainedBy, Unconfirmed: f.Unconfirmed})
	}
	return out
}

// Cut shortens a text to at most n bytes, including an ellipsis.
func Cut(text string, n int) string {
	const ellipsis = "…"
	if text = strings.ToValidUTF8(text, ""); len(text) > n {
		text = strings.ToValidUTF8(text[:n-len(ellipsis)], "") + ellipsis
	}
	return text
}

// Told returns the findings that need a person's attention. Ghosts, and findings that a hold
// explains, stay in the list but are not drift.
func Told(list []truth.Finding, now time.Time) (out []truth.Finding) {
	for _, f := range truth.Drift(list, now) {
		if f.Severity != truth.Info {
			out = append(out, f)
		}
	}
	return out
}

// New returns the findings of told that were not reported in was.
func New(told []truth.Finding, was []v1alpha1.EnrollmentFinding) (out []truth.Finding) {
	old := map[string]bool{}
	for _, f := range was {
		if f.Settled && f.ExplainedBy == "" && f.Severity != string(truth.Info) {
			old[f.ID] = true
		}
	}
	for _, f := range told {
		if !old[f.ID()] {
			out = append(out, f)
		}
	}
	return out
}

// Condition returns the condition that reports drift, with the worst findings first.
func Condition(list []truth.Finding, now time.Time) fleet.Condition {
	told := Told(list, now)
	if len(told) == 0 {
		c := fleet.Condition{Type: Drifted, Status: fleet.No, Reason: fleet.ReasonNone, Message: "Forge and cluster have what they should."}
		if n := len(list); n > 0 {
			c.Message += fmt.Sprintf(" Findings that need nobody, or may pass: %d, see status.findings.", n)
		}
		return c
	}
	const shown = 3
	var texts []string
	for _, f := range told[:min(len(told), shown)] {
		texts = append(texts, Sentence(f))
	}
	if n := len(told) - shown; n > 0 {
		texts = append(texts, fmt.Sprintf("And %d more, see status.findings.", n))
	}
	return fleet.Condition{Type: Drifted, Status: fleet.Yes, Reason: string(told[0].Kind), Message: strings.Join(texts, " ")}
}

// Sentence describes a finding in one or two sentences. It quotes text of others.
func Sentence(f truth.Finding) string {
	text := f.Evidence
	if f.Workload != "" {
		text = f.Workload + ": " + text
	}
	if f.Want != "" || f.Have != "" {
		text += fmt.Sprintf(" Wanted: %s; there is: %s.", f.Want, f.Have)
	}
	if f.Unconfirmed {
		text += " The last look could not tell whether it still is so."
	}
	return Cut(text+" "+f.Next, 512)
}
