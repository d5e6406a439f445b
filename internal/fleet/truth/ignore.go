package truth

import (
	"errors"
	"strings"
	"time"
)

// An Ignore is a person's request not to report a finding, with a reason and an expiry. It applies
// to the current severity: a finding that gets worse is reported again.
type Ignore struct {
	ID       string    `json:"id"` // of the finding
	Severity Severity  `json:"severity"`
	By       string    `json:"by"` // a login
	Reason   string    `json:"reason"`
	Until    time.Time `json:"until"`
}

// mostIgnored is the maximum time for which a finding can be ignored. After that, people forget it.
const mostIgnored = 90 * 24 * time.Hour

// Ignored returns an Ignore for the finding with this id. It returns an error if the input is not
// valid.
func Ignored(id string, s Severity, by, reason string, until, now time.Time) (Ignore, error) {
	reason = strings.TrimSpace(reason)
	switch {
	case by == "":
		return Ignore{}, errors.New("somebody must ignore it")
	case reason == "":
		return Ignore{}, errors.New("a reason is needed")
	case !until.After(now):
		return Ignore{}, errors.New("the time until which it is ignored is over")
	case until.After(now.Add(mostIgnored)):
		return Ignore{}, errors.New("it can be ignored for 90 days at most")
	}
	return Ignore{ID: id, Severity: s, By: by, Reason: reason, Until: until}, nil
}

// Hides reports whether the Ignore suppresses the finding with this id and its current severity.
func (i Ignore) Hides(id string, s Severity, now time.Time) bool {
	return i.ID == id && now.Before(i.Until) && s.weight() <= i.Severity.weight()
}

// Drift returns the findings that are drift: they have lasted long enough, and no hold explains
// them. It does not consider ignored findings; the caller that displays the findings handles them.
func Drift(all []Finding, now time.Time) []Finding {
	var out []Finding
	for _, f := range all {
		if f.Shown(now) && f.ExplainedBy == "" {
			out = append(out, f)
		}
	}
	return out
}
