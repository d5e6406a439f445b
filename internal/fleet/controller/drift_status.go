package controller

import (
	"fmt"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// conditionDrifted is the type of the condition that reports drift.
const conditionDrifted = "Drifted"

// maxFindings is the maximum number of findings in a status. The worst ones come first.
const maxFindings = 64

// findingsFromStatus reads the findings of an organisation from its status.
func findingsFromStatus(org string, list []v1alpha1.EnrollmentFinding) []fleet.Finding {
	out := make([]fleet.Finding, 0, len(list))
	for _, f := range list {
		out = append(out, fleet.Finding{Kind: fleet.FindingKind(f.Kind), Severity: fleet.Severity(f.Severity), Org: org, Pool: f.Pool, Workload: f.Workload, Subject: f.Subject,
			Desired: f.Want, Actual: f.Have, Evidence: f.Evidence, Advice: f.Next, FirstSeen: f.FirstSeen.Time, ExplainedBy: f.ExplainedBy, Unconfirmed: f.Unconfirmed})
	}
	return out
}

// findingsToStatus converts findings for a status. It omits the mildest if there are too many.
func findingsToStatus(list []fleet.Finding, now time.Time) (out []v1alpha1.EnrollmentFinding) {
	for _, f := range list[:min(len(list), maxFindings)] {
		out = append(out, v1alpha1.EnrollmentFinding{ID: f.ID(), Kind: string(f.Kind), Severity: string(f.Severity), Pool: f.Pool, Workload: f.Workload, Subject: f.Subject,
			Want: truncate(f.Desired, 512), Have: truncate(f.Actual, 512), Evidence: truncate(f.Evidence, 1024), Next: truncate(f.Advice, 512),
			FirstSeen: metav1.NewTime(f.FirstSeen.Truncate(time.Second)), Settled: f.Settled(now), ExplainedBy: f.ExplainedBy, Unconfirmed: f.Unconfirmed})
	}
	return out
}

// truncate shortens a text to at most n bytes, including an ellipsis.
func truncate(text string, n int) string {
	const ellipsis = "…"
	if text = strings.ToValidUTF8(text, ""); len(text) > n {
		text = strings.ToValidUTF8(text[:n-len(ellipsis)], "") + ellipsis
	}
	return text
}

// reportableFindings returns the findings that need a person's attention. Ghosts, and findings that a hold
// explains, stay in the list but are not drift.
func reportableFindings(list []fleet.Finding, now time.Time) (out []fleet.Finding) {
	for _, f := range fleet.UnexplainedFindings(list, now) {
		if f.Severity != fleet.SeverityInfo {
			out = append(out, f)
		}
	}
	return out
}

// newFindings returns the findings in reported that were not reported in was.
func newFindings(reported []fleet.Finding, was []v1alpha1.EnrollmentFinding) (out []fleet.Finding) {
	old := map[string]bool{}
	for _, f := range was {
		if f.Settled && f.ExplainedBy == "" && f.Severity != string(fleet.SeverityInfo) {
			old[f.ID] = true
		}
	}
	for _, f := range reported {
		if !old[f.ID()] {
			out = append(out, f)
		}
	}
	return out
}

// driftCondition returns the condition that reports drift, with the worst findings first.
func driftCondition(list []fleet.Finding, now time.Time) fleet.Condition {
	reported := reportableFindings(list, now)
	if len(reported) == 0 {
		c := fleet.Condition{Type: conditionDrifted, Status: fleet.No, Reason: fleet.ReasonNone, Message: "Forge and cluster match the desired state."}
		if n := len(list); n > 0 {
			c.Message += fmt.Sprintf(" Findings that need no action or may resolve: %d, see status.findings.", n)
		}
		return c
	}
	const shown = 3
	var texts []string
	for _, f := range reported[:min(len(reported), shown)] {
		texts = append(texts, findingMessage(f))
	}
	if n := len(reported) - shown; n > 0 {
		texts = append(texts, fmt.Sprintf("And %d more, see status.findings.", n))
	}
	return fleet.Condition{Type: conditionDrifted, Status: fleet.Yes, Reason: string(reported[0].Kind), Message: strings.Join(texts, " ")}
}

// findingMessage describes a finding in one or two sentences. It quotes text of others.
func findingMessage(f fleet.Finding) string {
	text := f.Evidence
	if f.Workload != "" {
		text = f.Workload + ": " + text
	}
	if f.Desired != "" || f.Actual != "" {
		text += fmt.Sprintf(" Desired: %s; actual: %s.", f.Desired, f.Actual)
	}
	if f.Unconfirmed {
		text += " The last check could not confirm it."
	}
	return truncate(text+" "+f.Advice, 512)
}
