package controller

import (
	"fmt"
	"reflect"
	"strings"
	"testing"
	"time"
	"unicode/utf8"

	appsv1 "k8s.io/api/apps/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/forge"
)

var noon = time.Date(2026, 5, 4, 12, 0, 0, 0, time.UTC)

// Findings survive a restart in the status. Reading them back gives the same findings, and writing
// them again changes nothing, however long their texts are.
func TestFindingsSurviveInStatus(t *testing.T) {
	list := []fleet.Finding{
		{Kind: fleet.DriftGhost, Severity: fleet.SeverityInfo, Org: "acme", Pool: "nix", Workload: "acme-nix", Subject: "17", Evidence: strings.Repeat("ä", 2000), Advice: "Nothing.", FirstSeen: noon},
		{Kind: fleet.DriftLabels, Severity: fleet.SeverityWarning, Org: "acme", Pool: "nix", Workload: "acme-nix", Desired: strings.Repeat("w", 600), Actual: "[\"\xff\"]", FirstSeen: noon, Unconfirmed: true},
		{Kind: fleet.DriftCapacity, Severity: fleet.SeverityInfo, Org: "acme", Pool: "nix", Workload: "acme-nix", ExplainedBy: "freeze", FirstSeen: noon},
	}
	now := noon.Add(5 * time.Minute)
	once := findingsToStatus(list, now)
	back := findingsFromStatus("acme", once)
	if again := findingsToStatus(back, now); !reflect.DeepEqual(again, once) {
		t.Errorf("written again it is\n%+v\nwas\n%+v", again, once)
	}
	for i, f := range once {
		switch {
		case back[i].ID() != list[i].ID():
			t.Errorf("back[i].ID() = %q, want %q", back[i].ID(), list[i].ID())
		case f.ID != list[i].ID():
			t.Errorf("f.ID = %q, want %q", f.ID, list[i].ID())
		case !back[i].FirstSeen.Equal(noon):
			t.Errorf("back[i].FirstSeen = %v, want %v", back[i].FirstSeen, noon)
		}
		for _, x := range []struct {
			text string
			most int
		}{{f.Want, 512}, {f.Have, 512}, {f.Evidence, 1024}, {f.Next, 512}} {
			if len(x.text) > x.most || !utf8.ValidString(x.text) {
				t.Errorf("%s: %d bytes, %q", f.Kind, len(x.text), x.text)
			}
		}
	}
	switch {
	case once[0].Settled:
		t.Errorf("settled: once[0].Settled is true; once = %+v", once)
	case !once[1].Settled:
		t.Errorf("settled: once[1].Settled is false; once = %+v", once)
	case !once[2].Settled:
		t.Errorf("settled: once[2].Settled is false; once = %+v", once)
	}
	for i := range 100 {
		list = append(list, fleet.Finding{Kind: fleet.DriftGhost, Severity: fleet.SeverityInfo, Org: "acme", Subject: fmt.Sprint(i), FirstSeen: noon})
	}
	if n := len(findingsToStatus(list, now)); n != maxFindings {
		t.Errorf("%d findings in a status", n)
	}
}

// A finding is drift if it has lasted long enough, is more severe than info, and no hold explains
// it. It is reported once as long as it lasts.
func TestReportableFindings(t *testing.T) {
	of := func(kind fleet.FindingKind, s fleet.Severity, since time.Duration, hold string) fleet.Finding {
		return fleet.Finding{Kind: kind, Severity: s, Org: "acme", Workload: "acme-nix", FirstSeen: noon.Add(-since), ExplainedBy: hold, Evidence: "It is so.", Advice: "See to it."}
	}
	for _, x := range []struct {
		why   string
		f     fleet.Finding
		drift bool
	}{
		{"it stood for a while", of(fleet.DriftPausedOutside, fleet.SeverityWarning, 5*time.Minute, ""), true},
		{"it is new", of(fleet.DriftPausedOutside, fleet.SeverityWarning, time.Minute, ""), false},
		{"a hold explains it", of(fleet.DriftPausedOutside, fleet.SeverityWarning, 5*time.Minute, "freeze"), false},
		{"a ghost", of(fleet.DriftGhost, fleet.SeverityInfo, time.Hour, ""), false},
		{"a finding about who may run jobs is reported immediately", of(fleet.DriftGroup, fleet.SeverityError, 0, ""), true},
	} {
		list := []fleet.Finding{x.f}
		reported, c := reportableFindings(list, noon), driftCondition(list, noon)
		switch {
		case (len(reported) == 1) != x.drift:
			t.Errorf("%s: reported: (len(reported) == 1) != x.drift, reported = %+v, %+v", x.why, reported, c)
		case (c.Status == fleet.Yes) != x.drift:
			t.Errorf("%s: reported: (c.Status == fleet.Yes) != x.drift, reported = %+v, %+v", x.why, reported, c)
		case c.Status == fleet.Unknown:
			t.Errorf("%s: reported: c.Status = %v", x.why, c.Status)
		case x.drift && (c.Reason != string(x.f.Kind) || !strings.Contains(c.Message, "acme-nix: It is so. See to it.")):
			t.Errorf(`%s: reported: x.drift && (c.Reason != string(x.f.Kind) || !strings.Contains(c.Message, "acme-nix: It is so. See to it.")), reported = %+v, %+v`,
				x.why, reported, c)
		}
		if fresh := newFindings(reported, nil); len(fresh) != len(reported) {
			t.Errorf("%s: not new: %+v", x.why, fresh)
		}
		if fresh := newFindings(reported, findingsToStatus(list, noon)); len(fresh) != 0 {
			t.Errorf("%s: reported twice: %+v", x.why, fresh)
		}
		if fresh := newFindings(reported, findingsToStatus(list, x.f.FirstSeen)); x.drift && x.f.Kind != fleet.DriftGroup && len(fresh) != 1 {
			t.Errorf("%s: an unsettled finding counts as reported", x.why)
		}
	}
	var many []fleet.Finding
	for i := range 9 {
		f := of(fleet.DriftOffline, fleet.SeverityError, time.Hour, "")
		f.Subject = fmt.Sprint(i)
		many = append(many, f)
	}
	if c := driftCondition(many, noon); !strings.Contains(c.Message, "And 6 more") {
		t.Errorf("message %q", c.Message)
	}
}

// Law 7: without an answer, a state is not known, whatever it was before.
func TestUnknown(t *testing.T) {
	switch r := scaleSetAtGitHub("acme-nix", nil, nil, fleet.Unknown, false); {
	case r.Registered != fleet.Unknown:
		t.Errorf("no list: r.Registered = %v, want %v", r.Registered, fleet.Unknown)
	case r.Online != fleet.Unknown:
		t.Errorf("no list: r.Online = %v, want %v", r.Online, fleet.Unknown)
	case r.Exists != fleet.Unknown:
		t.Errorf("no list: r.Exists = %v, want %v", r.Exists, fleet.Unknown)
	}
	if r := scaleSetAtGitHub("acme-nix", nil, nil, fleet.Unknown, true); r.Registered != fleet.Yes || r.Online != fleet.Unknown {
		t.Errorf("no list, and it had one once: %+v", r)
	}
	list := []fleet.RegisteredRunner{{ID: 1, Name: "acme-nix-abc12-runner-x1y2z"}, {ID: 2, Name: "acme-nix-2-abc12-runner-x1y2z"}}
	if r := scaleSetAtGitHub("acme-nix", list, map[int64]bool{2: true}, fleet.Yes, false); r.Registered != fleet.Yes || r.Online != fleet.No {
		t.Errorf("another scale set's is online: %+v", r)
	}
	down := &forge.Error{Class: forge.Unavailable}
	for why, read := range map[string]runnerResult{"never read": {}, "not answered": {GitLabRunner: forge.GitLabRunner{ID: 7, Paused: true}, Err: down}, "of another": {GitLabRunner: forge.GitLabRunner{ID: 8, Paused: true}}} {
		switch r := runnerAtGitLab(read, fleet.Yes, 7); {
		case r.Paused != fleet.Unknown:
			t.Errorf("%s: r.Paused = %v, want %v", why, r.Paused, fleet.Unknown)
		case r.Online != fleet.Unknown:
			t.Errorf("%s: r.Online = %v, want %v", why, r.Online, fleet.Unknown)
		case r.Contacted != fleet.Unknown:
			t.Errorf("%s: r.Contacted = %v, want %v", why, r.Contacted, fleet.Unknown)
		case r.Options != nil:
			t.Errorf("%s: r.Options = %v, want nil", why, r.Options)
		case r.Versions != nil:
			t.Errorf("%s: r.Versions = %v, want nil", why, r.Versions)
		}
	}
	switch r := runnerAtGitLab(runnerResult{GitLabRunner: forge.GitLabRunner{ID: 7, Status: "new word"}}, fleet.Yes, 7); {
	case r.Online != fleet.Unknown:
		t.Errorf("an unknown status: r.Online = %v, want %v", r.Online, fleet.Unknown)
	case r.Paused != fleet.No:
		t.Errorf("an unknown status: r.Paused = %v, want %v", r.Paused, fleet.No)
	case r.Contacted != fleet.No:
		t.Errorf("an unknown status: r.Contacted = %v, want %v", r.Contacted, fleet.No)
	}
	if g := groupAccess("tailplane-acme", nil); g != nil {
		t.Errorf("a group that is not listed: %+v", g)
	}
}

// A runner without capacity needs no manager. If a hold of mode Drain or Stop ended the managers,
// the finding is listed and explained.
func TestManager(t *testing.T) {
	for _, x := range []struct {
		why  string
		now  fleet.Capacity
		want fleet.Answer
	}{
		{"it may run jobs", fleet.Capacity{Max: 2}, fleet.No},
		{"it has no share", fleet.Capacity{}, fleet.Unknown},
		{"it is paused", fleet.Capacity{Mode: v1alpha1.HoldPause, Hold: "h"}, fleet.Unknown},
		{"it is drained", fleet.Capacity{Mode: v1alpha1.HoldDrain, Hold: "h"}, fleet.No},
	} {
		if c := managerInCluster(&appsv1.Deployment{}, 0, x.now); c.Intake != x.want || c.Object != fleet.Yes {
			t.Errorf("%s: %+v", x.why, c)
		}
	}
	if c := managerInCluster(nil, 0, fleet.Capacity{Max: 1}); c.Object != fleet.No {
		t.Errorf("no object: %+v", c)
	}
}

// After a start, all organisations are checked within one period, and then once per period.
func TestDriftSchedule(t *testing.T) {
	r := newDriftSchedule(noon, 5*time.Minute)
	for i := range 50 {
		org := fmt.Sprint("org-", i)
		first := r.next(org)
		if first.Before(noon) || !first.Before(noon.Add(5*time.Minute)) {
			t.Errorf("%s first at %v", org, first)
		}
		next := r.done(org, first)
		switch d := next.Sub(first); {
		case d < 4*time.Minute:
			t.Errorf("d = %v, want at least %v", d, 4*time.Minute)
		case d > 6*time.Minute:
			t.Errorf("d = %v, want at most %v", d, 6*time.Minute)
		case !r.next(org).Equal(next):
			t.Errorf("r.next(org).Equal(next) is false; %s, %v, %v", org, d, r.next(org))
		}
		r.delete(org)
		if !r.next(org).Equal(first) {
			t.Errorf("%s is not forgotten", org)
		}
	}
}
