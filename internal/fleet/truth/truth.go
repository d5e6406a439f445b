// Package truth detects drift. It compares the forge's state of an organisation's runners with the
// cluster's state, and both with the desired state. It implements law 7: an unknown state is no
// finding, and does not prove that an earlier finding is gone.
//
// It only reports. It repairs nothing and deletes nothing.
package truth

import (
	"cmp"
	"crypto/sha256"
	"encoding/hex"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// A Kind is the kind of a finding. The set is closed.
type Kind string

// The kinds. The first ones compare the forge with the cluster, the last ones compare the desired
// with the actual state.
const (
	Missing         Kind = "Missing"         // the cluster has its object, but the forge does not have it
	NeverRegistered Kind = "NeverRegistered" // its listener runs and jobs wait, but the forge never had a runner of it
	NeverContacted  Kind = "NeverContacted"  // its managers run, but none ever contacted the forge
	Offline         Kind = "Offline"         // its pods run, but the forge does not see them
	PausedOutside   Kind = "PausedOutside"   // it is paused at the forge, and the fleet did not pause it
	OpenOutside     Kind = "OpenOutside"     // it takes jobs at the forge, but must have none
	LabelsDiffer    Kind = "LabelsDiffer"    // its labels or tags differ from the pool's
	OptionsDiffer   Kind = "OptionsDiffer"   // its access or timeout differs from the pool's
	GroupDiffers    Kind = "GroupDiffers"    // its runner group admits other repositories than it should
	Ghost           Kind = "Ghost"           // the forge has a runner of ours that the cluster does not have
	Stranded        Kind = "Stranded"        // jobs are assigned to it, but do not start
	IntakeMissing   Kind = "IntakeMissing"   // its listener or manager does not run
	CapacityDiffers Kind = "CapacityDiffers" // its capacity differs from the decision
	VersionSkew     Kind = "VersionSkew"     // the versions of its parts do not match
)

// A Severity is the severity of a finding.
type Severity string

// The severities.
const (
	Info    Severity = "info"    // intended, but worth knowing
	Warning Severity = "warning" // not as it should be
	Error   Severity = "error"   // jobs do not run, or jobs may run that should not
)

func (s Severity) weight() int { return slices.Index([]Severity{Info, Warning, Error}, s) }

// A Finding is one difference from the desired state.
type Finding struct {
	Kind                Kind
	Severity            Severity
	Org, Pool, Workload string
	// Subject is the affected part of the workload, if there are several: the ID of a runner, or
	// the name of an option.
	Subject    string
	Want, Have string // desired and actual value, if any
	Evidence   string // one sentence; foreign text is quoted
	Next       string // what to do, in one sentence
	FirstSeen  time.Time
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

// Shown reports whether a finding has lasted long enough to be reported. During changes, states
// differ for a while, because forge and cluster are not read at the same moment.
func (f Finding) Shown(now time.Time) bool { return !now.Before(f.FirstSeen.Add(patience[f.Kind])) }

// patience is how long a finding may come from a change in progress.
var patience = map[Kind]time.Duration{
	Missing:         5 * time.Minute,
	NeverRegistered: 10 * time.Minute,
	NeverContacted:  10 * time.Minute,
	Offline:         10 * time.Minute,
	PausedOutside:   2 * time.Minute,
	OpenOutside:     2 * time.Minute,
	LabelsDiffer:    2 * time.Minute,
	OptionsDiffer:   2 * time.Minute,
	GroupDiffers:    0, // other repositories may run jobs on the organisation's nodes
	Ghost:           10 * time.Minute,
	Stranded:        5 * time.Minute,
	IntakeMissing:   5 * time.Minute,
	CapacityDiffers: 2 * time.Minute,
	VersionSkew:     10 * time.Minute, // an upgrade may be in progress
}

// Kinds returns all kinds, sorted.
func Kinds() []Kind {
	var all []Kind
	for k := range patience {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// An Org is the known state of one organisation's runners.
type Org struct {
	Name  string
	Forge v1alpha1.ForgeType
	// ForgeVersion is the version of the forge, such as 18.9.1; empty if it is not known or there
	// is none.
	ForgeVersion string

	Workloads []Workload
	// Whole says whether Workloads is complete.
	Whole fleet.Answer

	// Registered lists runners at the forge: at GitHub all runners of the organisation, at GitLab
	// those with our mark. Listed says whether the list is complete.
	Registered []Registered
	Listed     fleet.Answer
}

// Registered is one runner in the forge's list.
type Registered struct {
	ID   int64
	Name string
	Busy bool
}

// A Workload holds the desired state, the cluster's state and the forge's state of one workload.
// Every value that may be unknown has a representation for that: an Answer, or nil.
type Workload struct {
	Pool, Name string
	Ending     bool // it is being removed and is not compared any more
	Foreign    bool // an external scale set, which the fleet does not repair

	Allocated int            // capacity without holds
	Capacity  fleet.Capacity // capacity in force, including holds
	Options   Options        // desired options
	Group     *Group         // desired runner group; nil: the fleet does not manage it

	Cluster Cluster
	Remote  Remote
}

// Options are the settings of a workload at a forge. GitHub has only labels.
type Options struct {
	Labels                         []string // in any order; nil in Remote: not known
	RunUntagged, Locked, Protected bool
	MaximumTimeout                 time.Duration // 0: none
}

// A Group is a runner group at GitHub.
type Group struct {
	Name         string
	Selected     bool     // open only to Repositories
	Repositories []string // owner/name
	AllowsPublic bool
}

// Cluster is the cluster's state of a workload.
type Cluster struct {
	Object   fleet.Answer // its AutoscalingRunnerSet or Deployment exists
	Intake   fleet.Answer // its listener or manager runs
	Min, Max *int         // from its object

	Pods     *int     // running pods: runners at GitHub, managers at GitLab
	Runners  []string // names of its EphemeralRunners, for GitHub
	Counted  fleet.Answer
	Assigned *int // jobs that the forge assigned to it
	Running  *int // running jobs among them

	Version    string // ARC version in its object; empty: not known
	Controller string // version of ARC; empty: not known
}

// Remote is the forge's state of a workload.
type Remote struct {
	Exists     fleet.Answer
	ID         int64        // ID of GitLab's runner; 0: not known
	Registered fleet.Answer // the forge has had a runner of it
	Contacted  fleet.Answer // a manager has contacted the forge for it
	Online     fleet.Answer
	Paused     fleet.Answer
	Options    *Options
	Group      *Group
	Versions   []string // of managers with recent contact
}

// Check returns the current findings of an organisation, the worst first. before holds the findings
// of the last check, including those that were not shown. An earlier finding that cannot be checked
// now stays. The order of the input does not matter.
func Check(o Org, before []Finding, now time.Time) []Finding {
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
	settle := func(kind Kind, v verdict) {
		f := v.Finding
		f.Kind, f.Org = kind, o.Name
		switch v.is {
		case fleet.Yes:
			f.FirstSeen = now
			if was, ok := seen[f.ID()]; ok {
				f.FirstSeen = was.FirstSeen
			}
			if v.worsens > 0 && now.Sub(f.FirstSeen) >= v.worsens {
				f.Severity = Error
			}
			out[f.ID()] = f
		case fleet.Unknown:
			for _, was := range seen {
				if was.Kind == kind && (was.Workload == f.Workload || f.Workload == "") && (v.all || was.Subject == f.Subject) {
					keep(was)
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
		for _, r := range rules {
			for _, v := range r.judge(o, w) {
				if v.Pool, v.Workload = w.Pool, w.Name; w.Foreign {
					v.Next = "Somebody else keeps this scale set: tell them. The fleet changes nothing of it but what a hold asks for."
				}
				settle(r.kind, v)
			}
		}
	}
	for _, v := range ghosts(o) {
		settle(Ghost, v)
	}
	if o.Whole != fleet.Yes {
		for _, was := range seen {
			if !here[was.Workload] {
				keep(was)
			}
		}
	}
	all := make([]Finding, 0, len(out))
	for _, f := range out {
		all = append(all, f)
	}
	slices.SortFunc(all, func(a, b Finding) int {
		return cmp.Or(cmp.Compare(b.Severity.weight(), a.Severity.weight()), cmp.Compare(a.Org, b.Org), cmp.Compare(a.Pool, b.Pool),
			cmp.Compare(a.Workload, b.Workload), cmp.Compare(a.Kind, b.Kind), cmp.Compare(a.Subject, b.Subject))
	})
	return all
}
