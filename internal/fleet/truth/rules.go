package truth

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
)

// A rule checks one workload for one kind of finding. [Ghost] has no rule: see ghosts.
type rule struct {
	kind  Kind
	judge func(Org, Workload) []verdict
}

// A verdict says that a finding holds, that it does not hold, or that this is not known.
type verdict struct {
	Finding
	is      fleet.Answer
	all     bool          // Unknown covers all findings of that kind, whatever their subjects
	worsens time.Duration // after this time the finding becomes an error; 0: never
}

var rules = []rule{
	{Missing, missing}, {NeverRegistered, neverRegistered}, {NeverContacted, neverContacted}, {Offline, offline}, {PausedOutside, pausedOutside}, {OpenOutside, openOutside},
	{LabelsDiffer, labelsDiffer}, {OptionsDiffer, optionsDiffer}, {GroupDiffers, groupDiffers}, {Stranded, stranded}, {IntakeMissing, intakeMissing},
	{CapacityDiffers, capacityDiffers}, {VersionSkew, versionSkew},
}

// all returns Yes if all answers are Yes, No if one is No, and Unknown otherwise. A No outweighs an
// Unknown.
func all(answers ...fleet.Answer) fleet.Answer {
	out := fleet.Yes
	for _, a := range answers {
		switch a {
		case fleet.No:
			return fleet.No
		case fleet.Unknown:
			out = fleet.Unknown
		}
	}
	return out
}

func not(a fleet.Answer) fleet.Answer {
	switch a {
	case fleet.Yes:
		return fleet.No
	case fleet.No:
		return fleet.Yes
	}
	return fleet.Unknown
}

// some reports whether a count is above 0.
func some(n *int) fleet.Answer {
	if n == nil {
		return fleet.Unknown
	}
	return fleet.Is(*n > 0)
}

func is(a fleet.Answer, s Severity, evidence, next string) []verdict {
	return []verdict{{is: a, Finding: Finding{Severity: s, Evidence: evidence, Next: next}}}
}

func missing(o Org, w Workload) []verdict {
	what, next := "scale set", "Delete its AutoscalingRunnerSet: it is made anew, and registered."
	if o.Forge == v1alpha1.GitLab {
		what, next = "runner", "Somebody deleted it. The fleet makes another one as soon as GitLab says so itself; see the enrollment's conditions."
	}
	return is(all(w.Cluster.Object, not(w.Remote.Exists)), Error, "The cluster has its object, and the forge has no "+what+" for it.", next)
}

// neverRegistered concerns scale sets that should have runners. A scale set with a minimum of 0 has
// none until a job comes.
func neverRegistered(o Org, w Workload) []verdict {
	if o.Forge != v1alpha1.GitHub {
		return nil
	}
	wanted := some(w.Cluster.Assigned)
	if w.Capacity.Min > 0 {
		wanted = fleet.Yes
	}
	return is(all(w.Cluster.Intake, not(w.Remote.Registered), wanted, fleet.Is(w.Capacity.Max > 0)), Error,
		"Its listener runs, runners are wanted, and none was ever seen at the forge.",
		"Look at the newest EphemeralRunner and its pod: the image, the network policy and the quota are what keeps a runner from coming up.")
}

func neverContacted(o Org, w Workload) []verdict {
	if o.Forge != v1alpha1.GitLab {
		return nil
	}
	return is(all(some(w.Cluster.Pods), not(w.Remote.Contacted)), Error,
		"Its managers run, and none ever spoke to the forge.",
		"Look at a manager's log: its token may be another one's, or it may not reach the forge.")
}

// offline concerns workloads that the forge has seen before. neverContacted covers those that it
// has never seen.
func offline(o Org, w Workload) []verdict {
	was := w.Remote.Contacted
	if o.Forge == v1alpha1.GitHub {
		was = w.Remote.Registered
	}
	return is(all(some(w.Cluster.Pods), not(w.Remote.Online), was), Error, "Its pods run, and to the forge none of them is there.",
		"Look at a pod's log: it may have lost its way to the forge, or its token was reset.")
}

func pausedOutside(o Org, w Workload) []verdict {
	if o.Forge != v1alpha1.GitLab {
		return nil
	}
	v := is(w.Remote.Paused, Warning, "It is paused at the forge, and nothing here says so.",
		"Somebody paused it there. If that is to stay, make it a hold; otherwise the fleet lets it go on.")
	v[0].Want, v[0].Have = "open", "paused"
	switch {
	case w.Capacity.Max > 0:
	case w.Capacity.Hold != "": // as the hold requires
		v[0].Severity, v[0].ExplainedBy = Info, w.Capacity.Hold
		v[0].Evidence, v[0].Next = "It is paused at the forge.", "Nothing: it goes on when the hold is lifted."
	default:
		v[0].is = fleet.No // it has no share now
	}
	return v
}

func openOutside(o Org, w Workload) []verdict {
	if o.Forge != v1alpha1.GitLab {
		return nil
	}
	why := "it has no share of the pool's budget now"
	if w.Capacity.Hold != "" {
		why = "the hold " + w.Capacity.Hold + " is in force"
	}
	v := is(all(not(w.Remote.Paused), w.Remote.Exists, fleet.Is(w.Capacity.Max <= 0)), Error, "It takes jobs at the forge, and "+why+".",
		"Somebody let it go on there. The fleet pauses it again; if it does not, see whether its access token may.")
	v[0].Want, v[0].Have = "paused", "open"
	return v
}

// sorted returns a list in sorted order without duplicates, for comparison as a set.
func sorted(list []string, fold bool) []string {
	out := slices.Clone(list)
	if fold {
		for i := range out {
			out[i] = strings.ToLower(out[i])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// quoted quotes foreign texts, so that readers do not take them for ours.
func quoted(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = strconv.Quote(s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func labelsDiffer(o Org, w Workload) []verdict {
	if w.Remote.Options == nil || w.Remote.Options.Labels == nil {
		return []verdict{{is: fleet.Unknown}}
	}
	fold := o.Forge == v1alpha1.GitHub // GitHub ignores the case of labels
	want, have := sorted(w.Options.Labels, fold), sorted(w.Remote.Options.Labels, fold)
	word, next := "labels", "Labels go to GitHub only when a scale set is made: another one is made beside it when the pool's runsOn changes."
	if o.Forge == v1alpha1.GitLab {
		word, next = "tags", "Somebody changed them there. The fleet writes them again; jobs that ask for others wait."
	}
	v := is(fleet.Is(!slices.Equal(want, have)), Warning, "Its "+word+" at the forge are not those of the pool.", next)
	v[0].Want, v[0].Have = quoted(want), quoted(have)
	return v
}

func optionsDiffer(o Org, w Workload) []verdict {
	if o.Forge != v1alpha1.GitLab {
		return nil
	}
	r := w.Remote.Options
	if r == nil {
		return []verdict{{is: fleet.Unknown, all: true}}
	}
	var out []verdict
	for _, x := range []struct {
		name       string
		want, have any
		loose      bool // the forge's value admits more jobs
	}{
		{"runUntagged", w.Options.RunUntagged, r.RunUntagged, r.RunUntagged},
		{"locked", w.Options.Locked, r.Locked, !r.Locked},
		{"protected", w.Options.Protected, r.Protected, !r.Protected},
		{"maximumTimeout", w.Options.MaximumTimeout, r.MaximumTimeout, false},
	} {
		s, more := Warning, ""
		if x.loose {
			s, more = Error, " It takes jobs that it should not."
		}
		v := is(fleet.Is(x.want != x.have), s, "At the forge "+x.name+" is not as in the pool."+more, "Somebody changed it there. The fleet writes it again.")
		v[0].Subject, v[0].Want, v[0].Have = x.name, fmt.Sprint(x.want), fmt.Sprint(x.have)
		out = append(out, v...)
	}
	return out
}

// groupDiffers concerns the repositories that may use the runners. A difference is an error if it
// admits more repositories than configured.
func groupDiffers(o Org, w Workload) []verdict {
	if o.Forge != v1alpha1.GitHub || w.Group == nil {
		return nil
	}
	r := w.Remote.Group
	if r == nil {
		return []verdict{{is: fleet.Unknown, all: true}}
	}
	next := "Somebody changed the runner group there. Set it right in the organisation's settings, or ask who did it."
	visible := map[bool]string{true: "selected repositories", false: "all repositories"}
	scope := is(fleet.Is(w.Group.Selected != r.Selected), Error, "Its runner group is for "+visible[r.Selected]+".", next)
	if r.Selected {
		scope[0].Severity = Warning
	}
	scope[0].Subject, scope[0].Want, scope[0].Have = "visibility", visible[w.Group.Selected], visible[r.Selected]

	want, have := sorted(w.Group.Repositories, true), sorted(r.Repositories, true)
	more := slices.DeleteFunc(slices.Clone(have), func(s string) bool { return slices.Contains(want, s) })
	fewer := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return slices.Contains(have, s) })
	list := is(all(fleet.Is(w.Group.Selected && r.Selected), fleet.Is(len(more)+len(fewer) > 0)), Warning,
		fmt.Sprintf("Its runner group is for other repositories: %s more, %s fewer.", quoted(more), quoted(fewer)), next)
	if len(more) > 0 {
		list[0].Severity = Error
	}
	list[0].Subject, list[0].Want, list[0].Have = "repositories", quoted(want), quoted(have)

	public := is(fleet.Is(!w.Group.AllowsPublic && r.AllowsPublic), Error, "Its runner group is for public repositories too: anybody's fork may run jobs.", next)
	public[0].Subject, public[0].Want, public[0].Have = "public repositories", "no", "yes"
	return slices.Concat(scope, list, public)
}

// OfSet reports whether a runner at GitHub belongs to a scale set, by the name pattern that ARC
// uses for runners.
func OfSet(set, runner string) bool {
	rest, ok := strings.CutPrefix(runner, set+"-")
	return ok && arcSuffix.MatchString(rest)
}

var arcSuffix = regexp.MustCompile(`^[a-z0-9]{5}-runner-[a-z0-9]{5}$`)

// ghosts lists runners that only the forge has. It takes no action on them. FLEET-17. It recognises
// GitHub's runners by the names of existing scale sets, and GitLab's runners by our mark, even if
// nothing else of their workload is left.
func ghosts(o Org) []verdict {
	unknown := verdict{is: fleet.Unknown, all: true}
	var out []verdict
	found := func(w Workload, r Registered) {
		doing := "It has no job."
		if r.Busy {
			doing = "The forge says that it runs a job."
		}
		v := is(fleet.Yes, Info, fmt.Sprintf("The forge has the runner %s (%d), and the cluster does not. %s", strconv.Quote(r.Name), r.ID, doing),
			"It can be deleted at the forge by hand, or here on request.")
		v[0].Subject, v[0].Workload, v[0].Pool = strconv.FormatInt(r.ID, 10), w.Name, w.Pool
		out = append(out, v...)
	}
	if o.Forge == v1alpha1.GitLab {
		if all(o.Listed, o.Whole) != fleet.Yes {
			return []verdict{unknown}
		}
		for _, r := range o.Registered {
			ours := Workload{Name: r.Name}
			known := false
			for _, w := range o.Workloads {
				if w.Name == r.Name {
					ours = w
				}
				known = known || w.Remote.ID == r.ID || w.Name == r.Name && w.Remote.ID == 0 // its ID is not stored yet
			}
			if !known {
				found(ours, r)
			}
		}
		return out
	}
	for _, w := range o.Workloads {
		if all(o.Listed, w.Cluster.Counted) != fleet.Yes {
			unknown.Workload = w.Name
			out = append(out, unknown)
			continue
		}
		for _, r := range o.Registered {
			if !w.Ending && OfSet(w.Name, r.Name) && !slices.Contains(w.Cluster.Runners, r.Name) {
				found(w, r)
			}
		}
	}
	return out
}

// stranded concerns jobs that GitHub assigned to a scale set that cannot run them. GitHub cancels
// them after a day.
func stranded(o Org, w Workload) []verdict {
	if o.Forge != v1alpha1.GitHub {
		return nil
	}
	if w.Cluster.Assigned == nil || w.Cluster.Running == nil {
		return []verdict{{is: fleet.Unknown}}
	}
	n := *w.Cluster.Assigned - *w.Cluster.Running
	waits := n > 0 && w.Capacity.Max <= *w.Cluster.Running // otherwise they are about to start
	v := is(fleet.Is(waits), Warning, fmt.Sprintf("%d jobs were given to it and cannot start.", n),
		"GitHub gives up on them 24 hours after they were queued. Let it have runners again, or cancel them there.")
	v[0].ExplainedBy, v[0].worsens = w.Capacity.Hold, 20*time.Hour
	return v
}

func intakeMissing(o Org, w Workload) []verdict {
	what, next := "listener", "Look at the AutoscalingListener in ARC's namespace, and at ARC's log."
	if o.Forge == v1alpha1.GitLab {
		what, next = "manager", "Look at its Deployment: the image, the quota and the nodes are what keeps a manager from coming up."
	}
	v := is(all(w.Cluster.Object, not(w.Cluster.Intake)), Error, "No "+what+" of it runs.", next)
	if ends := w.Capacity.Mode == v1alpha1.HoldDrain || w.Capacity.Mode == v1alpha1.HoldStop; o.Forge == v1alpha1.GitLab && ends {
		v[0].Severity, v[0].ExplainedBy = Info, w.Capacity.Hold
		v[0].Next = "Nothing: managers come back when the hold is lifted."
	}
	return v
}

func capacityDiffers(o Org, w Workload) []verdict {
	if o.Forge != v1alpha1.GitHub {
		return nil // the fleet applies a manager's whole configuration, including its capacity
	}
	c := w.Cluster
	if c.Min == nil || c.Max == nil {
		return []verdict{{is: fleet.Unknown}}
	}
	span := func(least, most int) string { return fmt.Sprintf("%d to %d", least, most) }
	have := span(*c.Min, *c.Max)
	v := verdict{is: fleet.Yes, Finding: Finding{Severity: Warning, Want: span(w.Capacity.Min, w.Capacity.Max), Have: have,
		Evidence: "Its object in the cluster does not say what was decided.", Next: "Somebody else writes it: see its managedFields, and have them leave minRunners and maxRunners."}}
	switch {
	case *c.Min != w.Capacity.Min || *c.Max != w.Capacity.Max:
		if w.Capacity.Hold != "" && *c.Max > w.Capacity.Max {
			v.Severity, v.Evidence = Error, "The hold "+w.Capacity.Hold+" is in force, and its object lets it have runners."
		}
	case w.Capacity.Hold != "" && w.Capacity.Max != w.Allocated:
		v.Severity, v.ExplainedBy = Info, w.Capacity.Hold
		v.Want, v.Evidence, v.Next = fmt.Sprintf("up to %d", w.Allocated), "It may have no runners.", "Nothing: it has its share again when the hold is lifted."
	default:
		v.is = fleet.No
	}
	return []verdict{v}
}

// release returns the major and minor number of a version.
func release(version string) (string, bool) {
	m := versionForm.FindStringSubmatch(version)
	if m == nil {
		return "", false
	}
	return m[1], true
}

var versionForm = regexp.MustCompile(`^v?(\d+\.\d+)(?:[.\-+~].*)?$`)

func versionSkew(o Org, w Workload) []verdict {
	if o.Forge == v1alpha1.GitHub {
		want, ok1 := release(w.Cluster.Controller)
		have, ok2 := release(w.Cluster.Version)
		if !ok1 || !ok2 {
			return []verdict{{is: fleet.Unknown}}
		}
		v := is(fleet.Is(want != have), Error, "It is made for another version of ARC, which deletes such scale sets.", "The fleet changes its label. If it stays, see whether ARC or somebody else writes it back.")
		v[0].Want, v[0].Have = want, have
		return v
	}
	forge, ok := release(o.ForgeVersion)
	var odd []string
	for _, version := range sorted(w.Remote.Versions, false) {
		r, fits := release(version)
		if !fits {
			return []verdict{{is: fleet.Unknown}}
		}
		if major(r) != major(forge) {
			odd = append(odd, version)
		}
	}
	if !ok || w.Remote.Versions == nil {
		return []verdict{{is: fleet.Unknown}}
	}
	v := is(fleet.Is(odd != nil), Warning, "Managers of it have another major version than GitLab.", "Set the manager's image to one of GitLab's version.")
	v[0].Want, v[0].Have = major(forge), quoted(odd)
	return v
}

func major(release string) string { m, _, _ := strings.Cut(release, "."); return m }
