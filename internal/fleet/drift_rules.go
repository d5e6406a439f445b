package fleet

import (
	"fmt"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// A driftRule checks one workload for one kind of finding. [DriftGhost] has no rule: see ghosts.
type driftRule struct {
	kind  FindingKind
	forge v1alpha1.ForgeType // empty: both
	judge func(DriftInput, DriftWorkload) []driftResult
}

// A driftResult says that a finding holds, that it does not hold, or that this is not known.
type driftResult struct {
	Finding
	drifted Answer
	all     bool          // Unknown covers all findings of that kind, whatever their subjects
	worsens time.Duration // after this time the finding becomes an error; 0: never
}

var driftRules = []driftRule{
	{DriftMissing, "", checkMissing},
	{DriftNeverRegistered, v1alpha1.GitHub, checkNeverRegistered},
	{DriftNeverContacted, v1alpha1.GitLab, checkNeverContacted},
	{DriftOffline, "", checkOffline},
	{DriftPausedOutside, v1alpha1.GitLab, checkPausedOutside},
	{DriftOpenOutside, v1alpha1.GitLab, checkOpenOutside},
	{DriftLabels, "", checkLabels},
	{DriftOptions, v1alpha1.GitLab, checkOptions},
	{DriftGroup, v1alpha1.GitHub, checkGroup},
	{DriftStranded, v1alpha1.GitHub, checkStranded},
	{DriftIntakeMissing, "", checkIntake},
	// At GitLab the fleet applies a manager's whole configuration, including its capacity.
	{DriftCapacity, v1alpha1.GitHub, checkCapacity},
	{DriftVersionSkew, "", checkVersions},
}

// allOf returns Yes if all answers are Yes, No if one is No, and Unknown otherwise. A No outweighs an
// Unknown.
func allOf(answers ...Answer) Answer {
	out := Yes
	for _, a := range answers {
		switch a {
		case No:
			return No
		case Unknown:
			out = Unknown
		}
	}
	return out
}

func negate(a Answer) Answer { return map[Answer]Answer{Yes: No, No: Yes, Unknown: Unknown}[a] }

// isPositive reports whether a count is above 0.
func isPositive(n *int) Answer {
	if n == nil {
		return Unknown
	}
	return AnswerOf(*n > 0)
}

func findingIf(a Answer, s Severity, evidence, next string) []driftResult {
	return []driftResult{{drifted: a, Finding: Finding{Severity: s, Evidence: evidence, Advice: next}}}
}

func checkMissing(o DriftInput, w DriftWorkload) []driftResult {
	what, next := "scale set", "Delete its AutoscalingRunnerSet: the fleet creates it again and registers it."
	if o.Forge == v1alpha1.GitLab {
		what, next = "runner", "It was deleted at the forge. The fleet creates another one as soon as GitLab confirms the deletion; see the enrollment's conditions."
	}
	return findingIf(
		allOf(w.Cluster.Object, negate(w.Remote.Exists)),
		SeverityError,
		"The cluster has its object, but the forge has no "+what+" for it.",
		next,
	)
}

// checkNeverRegistered concerns scale sets that should have runners. A scale set with a minimum of 0 has
// none until a job comes.
func checkNeverRegistered(_ DriftInput, w DriftWorkload) []driftResult {
	desired := isPositive(w.Cluster.Assigned)
	if w.Capacity.Min > 0 {
		desired = Yes
	}
	return findingIf(allOf(w.Cluster.Intake, negate(w.Remote.Registered), desired, AnswerOf(w.Capacity.Max > 0)), SeverityError,
		"Its listener runs and runners are desired, but no runner ever registered at the forge.",
		"Check the newest EphemeralRunner and its pod: the image, the network policy or the quota can prevent a runner from starting.")
}

func checkNeverContacted(_ DriftInput, w DriftWorkload) []driftResult {
	return findingIf(allOf(isPositive(w.Cluster.Pods), negate(w.Remote.Contacted)), SeverityError,
		"Its managers run, but none ever contacted the forge.",
		"Check a manager's log: its token may belong to another runner, or it cannot reach the forge.")
}

// checkOffline concerns workloads that the forge has seen before. checkNeverContacted covers those that it
// has never seen.
func checkOffline(o DriftInput, w DriftWorkload) []driftResult {
	old := w.Remote.Contacted
	if o.Forge == v1alpha1.GitHub {
		old = w.Remote.Registered
	}
	return findingIf(
		allOf(isPositive(w.Cluster.Pods), negate(w.Remote.Online), old),
		SeverityError,
		"Its pods run, but the forge reports none of them as online.",
		"Check a pod's log: it may have lost the connection to the forge, or its token was reset.",
	)
}

func checkPausedOutside(_ DriftInput, w DriftWorkload) []driftResult {
	v := findingIf(w.Remote.Paused, SeverityWarning, "It is paused at the forge, but no hold or allocation requires it.",
		"It was paused at the forge. To keep the pause, create a hold; otherwise the fleet resumes it.")
	v[0].Desired, v[0].Actual = "open", "paused"
	switch {
	case w.Capacity.Max > 0:
	case w.Capacity.Hold != "": // as the hold requires
		v[0].Severity, v[0].ExplainedBy = SeverityInfo, w.Capacity.Hold
		v[0].Evidence, v[0].Advice = "It is paused at the forge.", "No action: it resumes when the hold is lifted."
	default:
		v[0].drifted = No // it has no share now
	}
	return v
}

func checkOpenOutside(_ DriftInput, w DriftWorkload) []driftResult {
	why := "its share of the pool's budget is zero now"
	if w.Capacity.Hold != "" {
		why = "the hold " + w.Capacity.Hold + " is in force"
	}
	v := findingIf(
		allOf(negate(w.Remote.Paused), w.Remote.Exists, AnswerOf(w.Capacity.Max <= 0)),
		SeverityError,
		"It takes jobs at the forge, but "+why+".",
		"It was resumed at the forge. The fleet pauses it again; if it does not, check whether its access token may pause runners.",
	)
	v[0].Desired, v[0].Actual = "paused", "open"
	return v
}

// sortedSet returns a list in sorted order without duplicates, for comparison as a set.
func sortedSet(list []string, fold bool) []string {
	out := slices.Clone(list)
	if fold {
		for i := range out {
			out[i] = strings.ToLower(out[i])
		}
	}
	slices.Sort(out)
	return slices.Compact(out)
}

// quoteAll quotes foreign texts, so that readers do not take them for the fleet's own texts.
func quoteAll(list []string) string {
	out := make([]string, len(list))
	for i, s := range list {
		out[i] = strconv.Quote(s)
	}
	return "[" + strings.Join(out, ", ") + "]"
}

func checkLabels(o DriftInput, w DriftWorkload) []driftResult {
	if w.Remote.Options == nil || w.Remote.Options.Labels == nil {
		return []driftResult{{drifted: Unknown}}
	}
	fold := o.Forge == v1alpha1.GitHub // GitHub ignores the case of labels
	want, have := sortedSet(w.Options.Labels, fold), sortedSet(w.Remote.Options.Labels, fold)
	word, next := "labels", "GitHub receives labels only when a scale set is created: the fleet creates another one when the pool's runsOn changes."
	if o.Forge == v1alpha1.GitLab {
		word, next = "tags", "They were changed at the forge. The fleet writes them again; jobs with other tags wait."
	}
	v := findingIf(AnswerOf(!slices.Equal(want, have)), SeverityWarning, "Its "+word+" at the forge are not those of the pool.", next)
	v[0].Desired, v[0].Actual = quoteAll(want), quoteAll(have)
	return v
}

func checkOptions(_ DriftInput, w DriftWorkload) []driftResult {
	r := w.Remote.Options
	if r == nil {
		return []driftResult{{drifted: Unknown, all: true}}
	}
	var out []driftResult
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
		s, more := SeverityWarning, ""
		if x.loose {
			s, more = SeverityError, " It accepts jobs that it must not run."
		}
		v := findingIf(
			AnswerOf(x.want != x.have),
			s,
			"At the forge "+x.name+" differs from the pool."+more,
			"It was changed at the forge. The fleet writes it again.",
		)
		v[0].Subject, v[0].Desired, v[0].Actual = x.name, fmt.Sprint(x.want), fmt.Sprint(x.have)
		out = append(out, v...)
	}
	return out
}

// checkGroup concerns the repositories that may use the runners. A difference is an error if it
// admits more repositories than configured.
func checkGroup(_ DriftInput, w DriftWorkload) []driftResult {
	if w.Group == nil {
		return nil
	}
	r := w.Remote.Group
	if r == nil {
		return []driftResult{{drifted: Unknown, all: true}}
	}
	next := "The runner group was changed at the forge. Correct it in the organisation's settings, or find out who changed it."
	visible := map[bool]string{true: "selected repositories", false: "all repositories"}
	scope := findingIf(AnswerOf(w.Group.Selected != r.Selected), SeverityError, "Its runner group is for "+visible[r.Selected]+".", next)
	if r.Selected {
		scope[0].Severity = SeverityWarning
	}
	scope[0].Subject, scope[0].Desired, scope[0].Actual = "visibility", visible[w.Group.Selected], visible[r.Selected]

	want, have := sortedSet(w.Group.Repositories, true), sortedSet(r.Repositories, true)
	more := slices.DeleteFunc(slices.Clone(have), func(s string) bool { return slices.Contains(want, s) })
	fewer := slices.DeleteFunc(slices.Clone(want), func(s string) bool { return slices.Contains(have, s) })
	list := findingIf(allOf(AnswerOf(w.Group.Selected && r.Selected), AnswerOf(len(more)+len(fewer) > 0)), SeverityWarning,
		fmt.Sprintf("Its runner group is for other repositories: %s more, %s fewer.", quoteAll(more), quoteAll(fewer)), next)
	if len(more) > 0 {
		list[0].Severity = SeverityError
	}
	list[0].Subject, list[0].Desired, list[0].Actual = "repositories", quoteAll(want), quoteAll(have)

	public := findingIf(
		AnswerOf(!w.Group.AllowsPublic && r.AllowsPublic),
		SeverityError,
		"Its runner group allows public repositories too: any fork may run jobs.",
		next,
	)
	public[0].Subject, public[0].Desired, public[0].Actual = "public repositories", "no", "yes"
	return slices.Concat(scope, list, public)
}

// IsRunnerOfSet reports whether a runner at GitHub belongs to a scale set, by the name pattern that ARC
// uses for runners.
func IsRunnerOfSet(set, runner string) bool {
	rest, ok := strings.CutPrefix(runner, set+"-")
	return ok && arcSuffix.MatchString(rest)
}

var arcSuffix = regexp.MustCompile(`^[a-z0-9]{5}-runner-[a-z0-9]{5}$`)

// findGhosts lists runners that only the forge has. It takes no action on them. FLEET-17. It recognises
// GitHub's runners by the names of existing scale sets, and GitLab's runners by our mark, even if
// nothing else of their workload is left.
func findGhosts(o DriftInput) []driftResult {
	unknown := driftResult{drifted: Unknown, all: true}
	var out []driftResult
	found := func(w DriftWorkload, r RegisteredRunner) {
		doing := "It has no job."
		if r.Busy {
			doing = "The forge reports that it runs a job."
		}
		v := findingIf(
			Yes,
			SeverityInfo,
			fmt.Sprintf("The forge has the runner %s (%d), but the cluster does not. %s", strconv.Quote(r.Name), r.ID, doing),
			"It can be deleted at the forge by hand, or here on request.",
		)
		v[0].Subject, v[0].Workload, v[0].Pool = strconv.FormatInt(r.ID, 10), w.Name, w.Pool
		out = append(out, v...)
	}
	if o.Forge == v1alpha1.GitLab {
		if allOf(o.Listed, o.Complete) != Yes {
			return []driftResult{unknown}
		}
		for _, r := range o.Registered {
			managed := DriftWorkload{Name: r.Name}
			known := false
			for _, w := range o.Workloads {
				if w.Name == r.Name {
					managed = w
				}
				known = known || w.Remote.ID == r.ID || w.Name == r.Name && w.Remote.ID == 0 // its ID is not stored yet
			}
			if !known {
				found(managed, r)
			}
		}
		return out
	}
	for _, w := range o.Workloads {
		if allOf(o.Listed, w.Cluster.Counted) != Yes {
			unknown.Workload = w.Name
			out = append(out, unknown)
			continue
		}
		for _, r := range o.Registered {
			if !w.Ending && IsRunnerOfSet(w.Name, r.Name) && !slices.Contains(w.Cluster.Runners, r.Name) {
				found(w, r)
			}
		}
	}
	return out
}

// checkStranded concerns jobs that GitHub assigned to a scale set that cannot run them. GitHub cancels
// them after a day.
func checkStranded(_ DriftInput, w DriftWorkload) []driftResult {
	if w.Cluster.Assigned == nil || w.Cluster.Running == nil {
		return []driftResult{{drifted: Unknown}}
	}
	n := *w.Cluster.Assigned - *w.Cluster.Running
	waits := n > 0 && w.Capacity.Max <= *w.Cluster.Running // otherwise they are about to start
	v := findingIf(AnswerOf(waits), SeverityWarning, fmt.Sprintf("%d jobs are assigned to it and cannot start.", n),
		"GitHub cancels them 24 hours after they were queued. Give it runners again, or cancel the jobs at GitHub.")
	v[0].ExplainedBy, v[0].worsens = w.Capacity.Hold, 20*time.Hour
	return v
}

func checkIntake(o DriftInput, w DriftWorkload) []driftResult {
	what, next := "listener", "Check the AutoscalingListener in ARC's namespace and ARC's log."
	if o.Forge == v1alpha1.GitLab {
		what, next = "manager", "Check its Deployment: the image, the quota or the nodes can prevent a manager from starting."
	}
	v := findingIf(allOf(w.Cluster.Object, negate(w.Cluster.Intake)), SeverityError, "No "+what+" of it runs.", next)
	if ends := w.Capacity.Mode == v1alpha1.HoldDrain || w.Capacity.Mode == v1alpha1.HoldStop; o.Forge == v1alpha1.GitLab && ends {
		v[0].Severity, v[0].ExplainedBy = SeverityInfo, w.Capacity.Hold
		v[0].Advice = "No action: managers start again when the hold is lifted."
	}
	return v
}

func checkCapacity(_ DriftInput, w DriftWorkload) []driftResult {
	c := w.Cluster
	if c.Min == nil || c.Max == nil {
		return []driftResult{{drifted: Unknown}}
	}
	span := func(least, limit int) string { return fmt.Sprintf("%d to %d", least, limit) }
	have := span(*c.Min, *c.Max)
	v := driftResult{drifted: Yes, Finding: Finding{Severity: SeverityWarning, Desired: span(w.Capacity.Min, w.Capacity.Max), Actual: have,
		Evidence: "Its object in the cluster does not have the decided numbers.", Advice: "Another client writes it: find it in managedFields, and make it ignore minRunners and maxRunners."}}
	switch {
	case *c.Min != w.Capacity.Min || *c.Max != w.Capacity.Max:
		if w.Capacity.Hold != "" && *c.Max > w.Capacity.Max {
			v.Severity, v.Evidence = SeverityError, "The hold "+w.Capacity.Hold+" is in force, but its object allows runners."
		}
	case w.Capacity.Hold != "" && w.Capacity.Max != w.Allocated:
		v.Severity, v.ExplainedBy = SeverityInfo, w.Capacity.Hold
		v.Desired, v.Evidence, v.Advice = fmt.Sprintf(
			"up to %d",
			w.Allocated,
		), "It may have no runners.", "No action: it gets its share again when the hold is lifted."
	default:
		v.drifted = No
	}
	return []driftResult{v}
}

// minorVersion returns the major and minor number of a version.
func minorVersion(version string) (string, bool) {
	m := versionForm.FindStringSubmatch(version)
	if m == nil {
		return "", false
	}
	return m[1], true
}

var versionForm = regexp.MustCompile(`^v?(\d+\.\d+)(?:[.\-+~].*)?$`)

func checkVersions(o DriftInput, w DriftWorkload) []driftResult {
	if o.Forge == v1alpha1.GitHub {
		want, ok1 := minorVersion(w.Cluster.Controller)
		have, ok2 := minorVersion(w.Cluster.Version)
		if !ok1 || !ok2 {
			return []driftResult{{drifted: Unknown}}
		}
		v := findingIf(
			AnswerOf(want != have),
			SeverityError,
			"It was created for another version of ARC. ARC deletes such scale sets.",
			"The fleet changes its label. If the finding stays, check whether ARC or another client writes the old label back.",
		)
		v[0].Desired, v[0].Actual = want, have
		return v
	}
	forge, ok := minorVersion(o.ForgeVersion)
	var odd []string
	for _, version := range sortedSet(w.Remote.Versions, false) {
		r, fits := minorVersion(version)
		if !fits {
			return []driftResult{{drifted: Unknown}}
		}
		if majorVersion(r) != majorVersion(forge) {
			odd = append(odd, version)
		}
	}
	if !ok || w.Remote.Versions == nil {
		return []driftResult{{drifted: Unknown}}
	}
	v := findingIf(
		AnswerOf(odd != nil),
		SeverityWarning,
		"Its managers have another major version than GitLab.",
		"Set the manager's image to GitLab's version.",
	)
	v[0].Desired, v[0].Actual = majorVersion(forge), quoteAll(odd)
	return v
}

func majorVersion(release string) string { m, _, _ := strings.Cut(release, "."); return m }
