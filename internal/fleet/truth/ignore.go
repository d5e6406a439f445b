package truth

import (
	"errors"
	"strings"
	"time"
)

// An Ignore is that somebody does not want to be told of a finding, why, and until
// when. It is of the finding as it was: if that gets worse, it is told.
type Ignore struct {
	ID       string    `json:"id"` // of the finding
	Severity Severity  `json:"severity"`
	By       string    `json:"by"` // a login
	Reason   string    `json:"reason"`
	Until    time.Time `json:"until"`
}

// mostIgnored is how long a finding may be ignored: nobody remembers for longer.
const mostIgnored = 90 * 24 * time.Hour

// Ignored makes an Ignore of the finding that has the id, or says what it lacks.
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

// Hides says whether the finding that has the id is not told for this, with the
// severity that it has now.
func (i Ignore) Hides(id string, s Severity, now time.Time) bool {
	return i.ID == id && now.Before(i.Until) && s.weight() <= i.Severity.weight()
}

// Drift are the findings that are drift: those that stood long enough, and that no hold
// explains. That somebody ignores one is kept by who shows it, and changes nothing here.
func Drift(all []Finding, now time.Time) []Finding {
	var out []Finding
	for _, f := range all {
		if f.Shown(now) && f.ExplainedBy == "" {
			out = append(out, f)
		}
	}
	return out
}
