package fleet

import (
	"errors"
	"strings"
	"time"
)

// A FindingIgnore is a person's request not to report a finding, with a reason and an expiry. It applies
// to the current severity: a finding that gets worse is reported again.
type FindingIgnore struct {
	ID       string    `json:"id"` // of the finding
	Severity Severity  `json:"severity"`
	By       string    `json:"by"` // a login
	Reason   string    `json:"reason"`
	Until    time.Time `json:"until"`
}

// maxIgnore is the maximum time for which a finding can be ignored. After that, people forget it.
const maxIgnore = 90 * 24 * time.Hour

// NewFindingIgnore returns an Ignore for the finding with this id. It returns an error if the input is not
// valid.
func NewFindingIgnore(id string, s Severity, by, reason string, until, now time.Time) (FindingIgnore, error) {
	reason = strings.TrimSpace(reason)
	switch {
	case by == "":
		return FindingIgnore{}, errors.New("the name of the person who ignores it is needed")
	case reason == "":
		return FindingIgnore{}, errors.New("a reason is needed")
	case !until.After(now):
		return FindingIgnore{}, errors.New("the end of the ignore period is in the past")
	case until.After(now.Add(maxIgnore)):
		return FindingIgnore{}, errors.New("it can be ignored for 90 days at most")
	}
	return FindingIgnore{ID: id, Severity: s, By: by, Reason: reason, Until: until}, nil
}

// Hides reports whether the Ignore suppresses the finding with this id and its current severity.
func (i FindingIgnore) Hides(id string, s Severity, now time.Time) bool {
	return i.ID == id && now.Before(i.Until) && s.rank() <= i.Severity.rank()
}

// UnexplainedFindings returns the findings that are drift: they have lasted long enough, and no hold explains
// them. It does not consider ignored findings; the caller that displays the findings handles them.
func UnexplainedFindings(all []Finding, now time.Time) []Finding {
	var out []Finding
	for _, f := range all {
		if f.Settled(now) && f.ExplainedBy == "" {
			out = append(out, f)
		}
	}
	return out
}
