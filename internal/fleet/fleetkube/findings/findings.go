// Package findings says what forge, cluster and decisions do not agree about: in the
// status of an enrollment, which is where it outlasts a restart, in a condition and in
// events. It keeps law 7: what could not be told stands as it was, and says so.
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

// Drifted is the type of the condition that says whether anything is to be told.
const Drifted = "Drifted"

// most is how many findings a status has: the worst ones.
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

// Status is findings as a status has them. Those that do not fit are the least.
func Status(list []truth.Finding, now time.Time) (out []v1alpha1.EnrollmentFinding) {
	for _, f := range list[:min(len(list), most)] {
		out = append(out, v1alpha1.EnrollmentFinding{ID: f.ID(), Kind: string(f.Kind), Severity: string(f.Severity), Pool: f.Pool, Workload: f.Workload, Subject: f.Subject,
			Want: Cut(f.Want, 512), Have: Cut(f.Have, 512), Evidence: Cut(f.Evidence, 1024), Next: Cut(f.Next, 512),
			FirstSeen: metav1.NewTime(f.FirstSeen.Truncate(time.Second)), Settled: f.Shown(now), ExplainedBy: f.ExplainedBy, Unconfirmed: f.Unconfirmed})
	}
	return out
}

// Cut is a text of at most so many bytes, the last of which say that it was cut.
func Cut(text string, n int) string {
	const ellipsis = "…"
	if text = strings.ToValidUTF8(text, ""); len(text) > n {
		text = strings.ToValidUTF8(text[:n-len(ellipsis)], "") + ellipsis
	}
	return text
}

// Told are the findings that somebody is to see to. Ghosts and what a hold explains are
// listed, and are no drift.
func Told(list []truth.Finding, now time.Time) (out []truth.Finding) {
	for _, f := range truth.Drift(list, now) {
		if f.Severity != truth.Info {
			out = append(out, f)
		}
	}
	return out
}

// New are those of told of which was has none that was told.
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

// Condition says whether anything is to be told, the worst of it first.
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

// Sentence is a finding in a sentence or two. What others wrote is quoted in it.
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
