// Package truth compares what a forge has of an organisation's runners with what the
// cluster has, and both with what there should be. It keeps law 7: what is not known
// is no finding, and it is no proof either that one has gone.
//
// It finds and says; it mends nothing and deletes nothing.
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

// A Kind is what a finding says. There are no others than these.
type Kind string

// The kinds. The first are between the forge and the cluster, the last between what
// there should be and what there is.
const (
	Missing         Kind = "Missing"         // the cluster has its object, and the forge has it not
	NeverRegistered Kind = "NeverRegistered" // what takes its jobs runs, jobs wait, and no runner of it was ever seen at the forge
	NeverContacted  Kind = "NeverContacted"  // its managers run, and none ever spoke to the forge
	Offline         Kind = "Offline"         // its pods run, and to the forge they are not there
	PausedOutside   Kind = "PausedOutside"   // the forge gives it no jobs, and it was not us who said so
	OpenOutside     Kind = "OpenOutside"     // the forge gives it jobs, and it is to have none
	LabelsDiffer    Kind = "LabelsDiffer"    // its labels or tags are not those of the pool
	OptionsDiffer   Kind = "OptionsDiffer"   // whom it is for, or how long, is not as in the pool
	GroupDiffers    Kind = "GroupDiffers"    // its runner group is for others than it should be
	Ghost           Kind = "Ghost"           // the forge has a runner of ours, and the cluster has none of that name
	Stranded        Kind = "Stranded"        // jobs were given to it, and do not start
	IntakeMissing   Kind = "IntakeMissing"   // what takes its jobs does not run
	CapacityDiffers Kind = "CapacityDiffers" // it may have more or fewer runners than was decided
	VersionSkew     Kind = "VersionSkew"     // its parts have versions that do not go together
)

// A Severity says how bad a finding is.
type Severity string

// The severities.
const (
	Info    Severity = "info"    // it is as it is meant to be, and still worth knowing
	Warning Severity = "warning" // something is not as it should be
	Error   Severity = "error"   // jobs do not run, or somebody may run them who should not
)

func (s Severity) weight() int { return slices.Index([]Severity{Info, Warning, Error}, s) }

// A Finding is one thing that is not as it should be.
type Finding struct {
	Kind                Kind
	Severity            Severity
	Org, Pool, Workload string
	// Subject is what of the workload it is about, if it has several: the name of a
	// runner, or of an option.
	Subject    string
	Want, Have string // what is compared, if something is
	Evidence   string // in a sentence; what others wrote is quoted
	Next       string // what to do, in a sentence
	FirstSeen  time.Time
	// ExplainedBy is the hold by which it is as it is: then it is no drift.
	ExplainedBy string
	// Unconfirmed says that the last look could not tell, so that it stands as it was.
	Unconfirmed bool
}

// ID names a finding. It is the same for as long as the finding stands.
func (f Finding) ID() string {
	sum := sha256.Sum256([]byte(strings.Join([]string{string(f.Kind), f.Org, f.Pool, f.Workload, f.Subject}, "\x00")))
	return hex.EncodeToString(sum[:8])
}

// Shown says whether a finding has stood long enough to be told. What is being made,
// or changed, looks wrong for a while: forge and cluster are not read at one moment.
func (f Finding) Shown(now time.Time) bool { return !now.Before(f.FirstSeen.Add(patience[f.Kind])) }

// patience is how long a finding may be the trace of something that goes on.
var patience = map[Kind]time.Duration{
	Missing:         5 * time.Minute,
	NeverRegistered: 10 * time.Minute,
	NeverContacted:  10 * time.Minute,
	Offline:         10 * time.Minute,
	PausedOutside:   2 * time.Minute,
	OpenOutside:     2 * time.Minute,
	LabelsDiffer:    2 * time.Minute,
	OptionsDiffer:   2 * time.Minute,
	GroupDiffers:    0, // it is about who may run jobs on somebody's nodes
	Ghost:           10 * time.Minute,
	Stranded:        5 * time.Minute,
	IntakeMissing:   5 * time.Minute,
	CapacityDiffers: 2 * time.Minute,
	VersionSkew:     10 * time.Minute, // an upgrade goes on
}

// Kinds are all kinds, in order.
func Kinds() []Kind {
	var all []Kind
	for k := range patience {
		all = append(all, k)
	}
	slices.Sort(all)
	return all
}

// An Org is what is known of one organisation's runners.
type Org struct {
	Name  string
	Forge v1alpha1.ForgeType
	// ForgeVersion is the forge's, such as 18.9.1; empty: not known, or none.
	ForgeVersion string

	Workloads []Workload
	// Whole says whether all of its workloads are in Workloads.
	Whole fleet.Answer

	// Registered are runners at the forge: of GitHub all that it lists for the
	// organisation, of GitLab those that carry our mark. Listed says whether all are.
	Registered []Registered
	Listed     fleet.Answer
}

// Registered is one runner that the forge lists.
type Registered struct {
	ID   int64
	Name string
	Busy bool
}

// A Workload is what there should be of one workload, what there is, and what the
// forge says. Everything that may not be known has a value for that: an Answer, nil.
type Workload struct {
	Pool, Name string
	Ending     bool // it is being taken down: nothing of it is compared any more
	Foreign    bool // somebody else keeps it: what is to be done is theirs

	Allocated int            // runners that it may have if nothing holds it
	Capacity  fleet.Capacity // that is in force, holds and all
	Options   Options        // that it should have
	Group     *Group         // that it should be in; nil: one that is not ours to keep

	Cluster Cluster
	Remote  Remote
}

// Options are what a forge lets one say of a workload. GitHub knows labels only.
type Options struct {
	Labels                         []string // order says nothing; nil in Remote: not known
	RunUntagged, Locked, Protected bool
	MaximumTimeout                 time.Duration // 0: none
}

// A Group is a runner group at GitHub.
type Group struct {
	Name         string
	Selected     bool     // it is for the repositories only
	Repositories []string // owner/name
	AllowsPublic bool
}

// Cluster is what the cluster has of a workload.
type Cluster struct {
	Object   fleet.Answer // its AutoscalingRunnerSet or Deployment is there
	Intake   fleet.Answer // what takes its jobs runs: a listener, a manager
	Min, Max *int         // as its object says

	Pods     *int     // that run: runners at GitHub, managers at GitLab
	Runners  []string // names of its EphemeralRunners, for GitHub
	Counted  fleet.Answer
	Assigned *int // jobs that the forge gave it
	Running  *int // of those, the ones that run

	Version    string // that its object is made for; empty: not known
	Controller string // ARC's; empty: not known
}

// Remote is what the forge says of a workload.
type Remote struct {
	Exists     fleet.Answer
	ID         int64        // GitLab's runner; 0: not known
	Registered fleet.Answer // a runner of it was ever seen
	Contacted  fleet.Answer // a manager ever spoke for it
	Online     fleet.Answer
	Paused     fleet.Answer
	Options    *Options
	Group      *Group
	Versions   []string // of managers that spoke lately
}

// Check compares, and says what stands. before is what stood of the same organisation
// the last time, those that were not shown included; what is in it and cannot be told
// now stays. The order of what is handed in says nothing; the worst come first.
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
