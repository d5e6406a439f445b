package fleet

import (
	"cmp"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// A FindingKind is the kind of a finding. The set is closed.
type FindingKind string

// The kinds. The first ones compare the forge with the cluster, the last ones compare the desired
// with the actual state.
const (
	DriftMissing         FindingKind = "Missing"         // the cluster has its object, but the forge does not have it
	DriftNeverRegistered FindingKind = "NeverRegistered" // its listener runs and jobs wait, but the forge never had a runner of it
	DriftNeverContacted  FindingKind = "NeverContacted"  // its managers run, but none ever contacted the forge
	DriftOffline         FindingKind = "Offline"         // its pods run, but the forge does not see them
	DriftPausedOutside   FindingKind = "PausedOutside"   // it is paused at the forge, and the fleet did not pause it
	DriftOpenOutside     FindingKind = "OpenOutside"     // it takes jobs at the forge, but must have none
	DriftLabels          FindingKind = "LabelsDiffer"    // its labels or tags differ from the pool's
	DriftOptions         FindingKind = "OptionsDiffer"   // its access or timeout differs from the pool's
	DriftGroup           FindingKind = "GroupDiffers"    // its runner group admits other repositories than it should
	DriftGhost           FindingKind = "Ghost"           // the forge has a runner of ours that the cluster does not have
	DriftStranded        FindingKind = "Stranded"        // jobs are assigned to it, but do not start
	DriftIntakeMissing   FindingKind = "IntakeMissing"   // its listener or manager does not run
	DriftCapacity        FindingKind = "CapacityDiffers" // its capacity differs from the decision
	DriftVersionSkew     FindingKind = "VersionSkew"     // the versions of its parts do not match
)

// A Severity is the severity of a finding.
type Severity string

// The severities.
const (
	SeverityInfo    Severity = "info"    // intended, but worth knowing
	SeverityWarning Severity = "warning" // not as it should be
	SeverityError   Severity = "error"   // jobs do not run, or jobs may run that should not
)

func (s Severity) rank() int {
	return slices.Index([]Severity{SeverityInfo, SeverityWarning, SeverityError}, s)
}

// A Finding is one difference from the desired state.
type Finding struct {
	Kind                FindingKind
	Severity            Severity
	Org, Pool, Workload string
	// Subject is the affected part of the workload, if there are several: the ID of a runner, or
	// the name of an option.
	Subject         string
	Desired, Actual string // desired and actual value, if any
	Evidence        string // one sentence; foreign text is quoted
	Advice          string // what to do, in one sentence
	FirstSeen       time.Time
	// ExplainedBy is the hold that causes the difference. Then the finding is not drift.
	ExplainedBy string
	// Unconfirmed says that the last check could not decide, so the earlier finding stays.
	Unconfirmed bool
}

// ID returns the identifier of a finding. It does not change as long as the finding lasts.
func (f Finding) ID() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{string(f.Kind), f.Org, f.Pool, f.Workload, f.Subject}, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// Settled reports whether a finding has lasted long enough to be reported. During changes, states
// differ for a while, because forge and cluster are not read at the same moment.
func (f Finding) Settled(now time.Time) bool { return !now.Before(f.FirstSeen.Add(settleTime[f.Kind])) }

// settleTime is how long a finding may come from a change in progress.
var settleTime = map[FindingKind]time.Duration{
	DriftMissing:         5 * time.Minute,
	DriftNeverRegistered: 10 * time.Minute,
	DriftNeverContacted:  10 * time.Minute,
	DriftOffline:         10 * time.Minute,
	DriftPausedOutside:   2 * time.Minute,
	DriftOpenOutside:     2 * time.Minute,
	DriftLabels:          2 * time.Minute,
	DriftOptions:         2 * time.Minute,
	DriftGroup:           0, // other repositories may run jobs on the organisation's nodes
	DriftGhost:           10 * time.Minute,
	DriftStranded:        5 * time.Minute,
	DriftIntakeMissing:   5 * time.Minute,
	DriftCapacity:        2 * time.Minute,
	DriftVersionSkew:     10 * time.Minute, // an upgrade may be in progress
}

// FindingKinds returns all kinds, sorted.
func FindingKinds() []FindingKind {
	return slices.Sorted(maps.Keys(settleTime))
}

// A DriftInput is the known state of one organisation's runners.
type DriftInput struct {
	Name  string
	Forge v1alpha1.ForgeType
	// ForgeVersion is the version of the forge, such as 18.9.1; empty if it is not known or there
	// is none.
	ForgeVersion string

	Workloads []DriftWorkload
	// Complete says whether Workloads is complete.
	Complete Answer

	// Registered lists runners at the forge: at GitHub all runners of the organisation, at GitLab
	// those with our mark. Listed says whether the list is complete.
	Registered []RegisteredRunner
	Listed     Answer
}

// RegisteredRunner is one runner in the forge's list.
type RegisteredRunner struct {
	ID   int64
	Name string
	Busy bool
}

// A DriftWorkload holds the desired state, the cluster's state and the forge's state of one workload.
// Every value that may be unknown has a representation for that: an Answer, or nil.
type DriftWorkload struct {
	Pool, Name string
	Ending     bool // it is being removed and is not compared any more
	External   bool // an external scale set, which the fleet does not repair

	Allocated int           // capacity without holds
	Capacity  Capacity      // capacity in force, including holds
	Options   RunnerOptions // desired options
	Group     *GroupAccess  // desired runner group; nil: the fleet does not manage it

	Cluster ClusterState
	Remote  ForgeState
}

// RunnerOptions are the settings of a workload at a forge. GitHub has only labels.
type RunnerOptions struct {
	Labels                         []string // in any order; nil in Remote: not known
	RunUntagged, Locked, Protected bool
	MaximumTimeout                 time.Duration // 0: none
}

// A GroupAccess is a runner group at GitHub.
type GroupAccess struct {
	Name         string
	Selected     bool     // open only to Repositories
	Repositories []string // owner/name
	AllowsPublic bool
}

// ClusterState is the cluster's state of a workload.
type ClusterState struct {
	Object   Answer // its AutoscalingRunnerSet or Deployment exists
	Intake   Answer // its listener or manager runs
	Min, Max *int   // from its object

	Pods     *int     // running pods: runners at GitHub, managers at GitLab
	Runners  []string // names of its EphemeralRunners, for GitHub
	Counted  Answer
	Assigned *int // jobs that the forge assigned to it
	Running  *int // running jobs among them

	Version    string // ARC version in its object; empty: not known
	Controller string // version of ARC; empty: not known
}

// ForgeState is the forge's state of a workload.
type ForgeState struct {
	Exists     Answer
	ID         int64  // ID of GitLab's runner; 0: not known
	Registered Answer // the forge has had a runner of it
	Contacted  Answer // a manager has contacted the forge for it
	Online     Answer
	Paused     Answer
	Options    *RunnerOptions
	Group      *GroupAccess
	Versions   []string // of managers with recent contact
}

// CheckDrift returns the current findings of an organisation, the worst first. before holds the findings
// of the last check, including those that were not shown. An earlier finding that cannot be checked
// now stays. The order of the input does not matter.
func CheckDrift(o DriftInput, before []Finding, now time.Time) []Finding {
	seen := map[string]Finding{}
	for _, f := range before {
		if f.Org == o.Name {
			seen[f.ID()] = f
		}
	}
	out := map[string]Finding{}
	keep := func(f Finding) {
		f.Unconfirmed = true
		out[f.ID()] = f
	}
	settle := func(kind FindingKind, v driftResult) {
		f := v.Finding
		f.Kind, f.Org = kind, o.Name
		switch v.drifted {
		case Yes:
			f.FirstSeen = now
			if old, ok := seen[f.ID()]; ok {
				f.FirstSeen = old.FirstSeen
			}
			if v.worsens > 0 && now.Sub(f.FirstSeen) >= v.worsens {
				f.Severity = SeverityError
			}
			out[f.ID()] = f
		case Unknown:
			for _, old := range seen {
				if old.Kind == kind && (old.Workload == f.Workload || f.Workload == "") && (v.all || old.Subject == f.Subject) {
					keep(old)
				}
			}
		}
	}
	here := map[string]bool{}
	for _, w := range o.Workloads {
		here[w.Name] = true
		if w.Ending {
			continue
		}
		for _, r := range driftRules {
			if r.forge != "" && r.forge != o.Forge {
				continue
			}
			for _, v := range r.judge(o, w) {
				if v.Pool, v.Workload = w.Pool, w.Name; w.External {
					v.Advice = "The fleet does not manage this scale set: inform its owner. The fleet changes only the fields that a hold requires."
				}
				settle(r.kind, v)
			}
		}
	}
	for _, v := range findGhosts(o) {
		settle(DriftGhost, v)
	}
	if o.Complete != Yes {
		for _, old := range seen {
			if !here[old.Workload] {
				keep(old)
			}
		}
	}
	all := slices.AppendSeq(make([]Finding, 0, len(out)), maps.Values(out))
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity.rank(), a.Severity.rank()), cmp.Compare(a.Org, b.Org), cmp.Compare(a.Pool, b.Pool),
			cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject))
	})
	return all
}

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

// FirstDriftCheck returns the time of an organisation's first check after a start. The first checks are
// spread over one period, so that a restart does not cause a burst of requests.
func FirstDriftCheck(org string, start time.Time, every time.Duration) time.Time {
	return start.Add(time.Duration(spread(org, 0) * float64(every)))
}

// NextDriftCheck returns the time of the next check, up to a tenth of the period earlier or later. The
// variation separates organisations whose checks coincide. The result depends only on the
// arguments.
func NextDriftCheck(org string, last time.Time, every time.Duration) time.Time {
	return last.Add(every + time.Duration((spread(org, last.UnixNano())-0.5)*0.2*float64(every)))
}

// spread returns a number in [0, 1) that depends only on its arguments.
func spread(text string, n int64) float64 {
	sum := sha256.Sum256(binary.BigEndian.AppendUint64([]byte(text+"\x00"), uint64(n)))
	return float64(binary.BigEndian.Uint64(sum[:8])>>11) / (1 << 53)
}
