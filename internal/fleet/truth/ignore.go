package truth

import (
	"errors"
	"strings"
	"time"
)

// An Ignore is that somebody does not want to be told of a finding, why, and until
// when. It is of the finding as it was: if that gets worse, it is told.
type Ignore struct {
	ID         string // of the finding
	Severity   Severity
	By, Reason string // By is a login
	Until      time.Time
}

// mostIgnored is how long a finding may be ignored: nobody remembers for longer.
const mostIgnored = 90 * 24 * time.Hour

// Ignored makes an Ignore of a finding, or says what it lacks.
func Ignored(f Finding, by, reason string, until, now time.Time) (Ignore, error) {
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
	return Ignore{ID: f.ID(), Severity: f.Severity, By: by, Reason: reason, Until: until}, nil
}

// hides says whether a finding is not told for this.
func (i Ignore) hides(f Finding, now time.Time) bool {
	return i.ID == f.ID() && now.Before(i.Until) && f.Severity.weight() <= i.Severity.weight()
}

// Drift are the findings that are to be told: those that stood long enough, that no
// hold explains and that nobody ignores.
func Drift(all []Finding, ignores []Ignore, now time.Time) []Finding {
	var out []Finding
	for _, f := range all {
		hidden := false
		for _, i := range ignores {
			hidden = hidden || i.hides(f, now)
		}
		if f.Shown(now) && f.ExplainedBy == "" && !hidden {
			out = append(out, f)
		}
	}
	return out
}
