package fleet

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
)

// Reasons of the condition PolicyViolation. The set is closed; the docs list it.
const (
	ReasonForgeNotFound         = "ForgeNotFound"        // the RunnerForge does not exist
	ReasonPoolNotFound          = "PoolNotFound"         // the RunnerPool does not exist
	ReasonForgeMismatch         = "ForgeMismatch"        // pool and enrollment use different forges
	ReasonConfigURL             = "ConfigURLInvalid"     // not the URL of a place at the forge
	ReasonConfigURLTaken        = "ConfigURLTaken"       // an older enrollment has it
	ReasonGroupTaken            = "GroupTaken"           // an older enrollment has the GitLab group
	ReasonPoolDedicated         = "PoolDedicated"        // dedicated to another organisation, or not used as Dedicated
	ReasonPoolNotDedicated      = "PoolNotDedicated"     // used as Dedicated, but open to all organisations
	ReasonPoolAdopted           = "PoolAdopted"          // another controller manages its scale set
	ReasonPoolInvalid           = "PoolInvalid"          // its template or settings are invalid
	ReasonContainerMode         = "ContainerModeRefused" // its jobs could reach other organisations
	ReasonGuarantees            = "GuaranteesOverBudget" // older enrollments already have the guarantees
	ReasonOrgPlusUserGitLab     = "OrgPlusUserOnGitLab"  // group runners do not support this scope
	ReasonOrgPlusUserPlace      = "OrgPlusUserNeedsOrg"  // only an organisation has runner groups for repositories
	ReasonRepositoryOfAnother   = "RepositoryOfAnother"  // the repository does not belong to the organisation
	ReasonSecretOfAnother       = "SecretOfAnother"      // the Secret lacks the organisation's label
	ReasonCacheNamespace        = "CacheNamespace"       // the settings do not allow it
	ReasonEgressPrivate         = "EgressPrivate"        // addresses that jobs may not connect to
	ReasonPlacementOfAnother    = "PlacementOfAnother"   // nodes of another organisation
	ReasonNameTaken             = "NameTaken"            // an older workload has that name
	ReasonSharedApp             = "SharedApp"            // another organisation has the same App
	ReasonRunnerGroupUnsuitable = "RunnerGroupOnGitLab"  // GitLab has no runner groups
	ReasonTypeUnknown           = "TypeUnknown"          // from a later version
)

// An Effect says how a violation limits an enrollment.
type Effect int

// The effects, the mildest first.
const (
	EffectWarn  Effect = iota // report the violation only
	EffectBlock               // create and change nothing
	EffectStop                // also stop existing workloads from taking jobs
)

// A Violation is a cross-object rule that an enrollment breaks.
type Violation struct {
	Pool    string // the affected pool; empty: the whole enrollment
	Reason  string
	Message string
	Effect  Effect
}

// A Credential holds the known facts about the Secret that an enrollment names.
type Credential struct {
	Org   string // value of its label tailplane.dev/org
	AppID int64  // ID of the GitHub App; 0: the credential is not an App
}

// Rules are the fleet settings that the cross-object rules use.
type Rules struct {
	CacheNamespaces []string // namespaces that network.caches may name
	ClusterCIDRs    []netip.Prefix
	RequireOwnApp   bool // for isolation Namespace and Node
}

// A View is the complete input of [Check] at one moment.
type View struct {
	Forges      []v1alpha1.RunnerForge
	Pools       []v1alpha1.RunnerPool
	Enrollments []v1alpha1.RunnerEnrollment
	// Credentials holds the facts about Secrets, by enrollment. An enrollment without an entry has
	// no Secret, or its Secret is not known.
	Credentials map[string]Credential
	// PoolFaults describes errors in a pool's own template or settings, by pool.
	PoolFaults map[string]string
	// GroupIDs holds the known GitLab group IDs, by enrollment.
	GroupIDs map[string]int64
	Rules    Rules
}

// Check returns the cross-object rules that each enrollment breaks. If two enrollments claim the
// same exclusive thing, the older one keeps it, so a new enrollment never takes anything away from
// an existing one. Enrollments that are being deleted count until they are gone.
func Check(v View) map[string][]Violation {
	c := &checker{View: v, forges: ByName(v.Forges), pools: ByName(v.Pools),
		places: map[string]string{}, groups: map[string]string{}, names: map[string]string{}, guaranteed: map[string]int{}, docker: map[string]string{},
		found: map[string][]Violation{}}
	byAge := slices.SortedFunc(maps.Values(ByName(v.Enrollments)), func(a, b *v1alpha1.RunnerEnrollment) int { return CompareAge(a, b) })
	for _, e := range byAge {
		c.enrollment(e)
	}
	c.apps(byAge)
	return c.found
}

// checker visits the enrollments, the oldest first, and records their claims.
type checker struct {
	View
	forges     map[string]*v1alpha1.RunnerForge
	pools      map[string]*v1alpha1.RunnerPool
	places     map[string]string // URL to enrollment
	groups     map[string]string // forge and group ID to enrollment
	names      map[string]string // workload name to enrollment
	guaranteed map[string]int    // guaranteed runners by pool
	docker     map[string]string // pool with Docker in the shared namespace to enrollment
	shared     string            // first enrollment in the shared namespace
	reader     string            // enrollment whose jobs can read the Secrets of the shared namespace
	found      map[string][]Violation
}

func (c *checker) report(e *v1alpha1.RunnerEnrollment, pool string, effect Effect, reason, format string, args ...any) {
	c.found[e.Name] = append(c.found[e.Name], Violation{pool, reason, fmt.Sprintf(format, args...), effect})
}

// claimOnce assigns what to e if no other enrollment has it. Otherwise it returns the name of that
// enrollment and false.
func claimOnce(m map[string]string, what string, e *v1alpha1.RunnerEnrollment) (other string, ok bool) {
	if have, is := m[what]; is && have != e.Name {
		return have, false
	}
	m[what] = e.Name
	return "", true
}

func (c *checker) enrollment(e *v1alpha1.RunnerEnrollment) {
	forge := c.forges[e.Spec.Forge]
	if forge == nil {
		c.report(e, "", EffectBlock, ReasonForgeNotFound, "There is no RunnerForge %q.", e.Spec.Forge)
		return
	}
	parts := c.configURL(e, forge)
	if cred, known := c.Credentials[e.Name]; known && cred.Org != e.Name {
		c.report(
			e,
			"",
			EffectStop,
			ReasonSecretOfAnother,
			"The Secret %q does not carry the label %s: %s.",
			e.Spec.Credentials.SecretName,
			v1alpha1.OrgLabel,
			e.Name,
		)
	}
	c.network(e)
	c.placement(e)
	for _, use := range e.Spec.Pools {
		c.enrolledPool(e, forge, parts, use)
	}
}

// configURL checks the URL of the organisation and returns its path below the forge.
func (c *checker) configURL(e *v1alpha1.RunnerEnrollment, forge *v1alpha1.RunnerForge) []string {
	at, ok := ParseConfigURL(forge.Spec.URL)
	scope, fine := ParseConfigURL(e.Spec.ConfigURL)
	parts, within := scope.Within(at)
	switch {
	case !ok || !fine || !within:
		c.report(
			e,
			"",
			EffectStop,
			ReasonConfigURL,
			"%q is not below the forge %q, which is at %q.",
			e.Spec.ConfigURL,
			forge.Name,
			forge.Spec.URL,
		)
		return nil
	case forge.Spec.Type == v1alpha1.GitHub && len(parts) > 2:
		c.report(e, "", EffectStop, ReasonConfigURL, "%q is not an organisation, enterprise or repository.", e.Spec.ConfigURL)
		return nil
	}
	if other, ok := claimOnce(c.places, scope.String(), e); !ok {
		c.report(e, "", EffectStop, ReasonConfigURLTaken, "The older enrollment %q already uses %q.", other, e.Spec.ConfigURL)
	}
	group := cmp.Or(e.Spec.GroupID, c.GroupIDs[e.Name])
	if forge.Spec.Type == v1alpha1.GitLab && group != 0 {
		if other, ok := claimOnce(c.groups, fmt.Sprint(forge.Name, " ", group), e); !ok {
			c.report(e, "", EffectStop, ReasonGroupTaken, "The older enrollment %q already uses the group %d.", other, group)
		}
	}
	return parts
}

// enrolledPool checks one pool of an enrollment.
func (c *checker) enrolledPool(e *v1alpha1.RunnerEnrollment, forge *v1alpha1.RunnerForge, parts []string, use v1alpha1.EnrolledPool) {
	say := func(effect Effect, reason, format string, args ...any) {
		c.report(e, use.Name, effect, reason, format, args...)
	}
	pool := c.pools[use.Name]
	if pool == nil {
		say(EffectBlock, ReasonPoolNotFound, "There is no RunnerPool %q.", use.Name)
		return
	}
	if pool.Spec.Forge != e.Spec.Forge {
		say(EffectStop, ReasonForgeMismatch, "The pool %q belongs to the forge %q.", pool.Name, pool.Spec.Forge)
		return
	}
	gitlab := forge.Spec.Type == v1alpha1.GitLab
	if to := pool.Spec.DedicatedTo; to != "" && to != e.Name {
		say(EffectStop, ReasonPoolDedicated, "The pool %q is dedicated to another organisation.", pool.Name)
	} else if to != "" && use.Type == v1alpha1.UseShared {
		say(EffectBlock, ReasonPoolDedicated, "The pool %q is dedicated: use it with type Dedicated.", pool.Name)
	} else if to == "" && use.Type == v1alpha1.UseDedicated {
		say(EffectBlock, ReasonPoolNotDedicated, "The pool %q is not dedicated to %s.", pool.Name, e.Name)
	}
	switch use.Type {
	case v1alpha1.UseShared, v1alpha1.UseDedicated:
	case v1alpha1.UseOrgPlusUser:
		c.repositories(e, gitlab, parts, use)
	default:
		say(EffectBlock, ReasonTypeUnknown, "The type %q is unknown.", use.Type)
	}
	if gitlab && use.RunnerGroup != "" {
		say(EffectBlock, ReasonRunnerGroupUnsuitable, "GitLab has no runner groups.")
	}
	if pool.Spec.Adopt != nil {
		say(EffectBlock, ReasonPoolAdopted, "The pool %q adopts a scale set that the fleet does not manage.", pool.Name)
	}
	if fault := c.PoolFaults[pool.Name]; fault != "" {
		say(EffectBlock, ReasonPoolInvalid, "The pool %q cannot be used: %s.", pool.Name, fault)
	}
	c.containers(e, gitlab, pool)

	if other, ok := claimOnce(c.names, WorkloadName(e.Name, pool.Name, 1), e); !ok {
		say(
			EffectBlock,
			ReasonNameTaken,
			"The older enrollment %q already has a workload with the name %q.",
			other,
			WorkloadName(e.Name, pool.Name, 1),
		)
	}
	guarantee := int(min(pool.Spec.Scaling.Guarantee, MaxRunners(pool, use)))
	if sum := c.guaranteed[pool.Name] + guarantee; sum > int(pool.Spec.Scaling.Budget) {
		say(
			EffectBlock,
			ReasonGuarantees,
			"The pool %q guarantees %d runners to older enrollments and would guarantee %d to this one; its budget is %d.",
			pool.Name,
			c.guaranteed[pool.Name],
			guarantee,
			pool.Spec.Scaling.Budget,
		)
	} else {
		c.guaranteed[pool.Name] = sum
	}
}

// MaxRunners returns the maximum number of runners of a pool that an organisation can have.
func MaxRunners(pool *v1alpha1.RunnerPool, use v1alpha1.EnrolledPool) int32 {
	if use.Max != nil {
		return min(*use.Max, pool.Spec.Scaling.Max)
	}
	return pool.Spec.Scaling.Max
}

// repositories checks the scope of type OrgPlusUser: all repositories must belong to the
// organisation.
func (c *checker) repositories(e *v1alpha1.RunnerEnrollment, gitlab bool, parts []string, use v1alpha1.EnrolledPool) {
	switch {
	case gitlab:
		c.report(
			e,
			use.Name,
			EffectBlock,
			ReasonOrgPlusUserGitLab,
			"A GitLab group runner cannot be limited to some projects: use a project runner or a dedicated pool.",
		)
	case parts == nil: // already reported
	case len(parts) != 1:
		c.report(
			e,
			use.Name,
			EffectStop,
			ReasonOrgPlusUserPlace,
			"Type OrgPlusUser needs the URL of an organisation, but %q is not one.",
			e.Spec.ConfigURL,
		)
	default:
		for _, r := range use.Repositories {
			if owner, _, _ := strings.Cut(r, "/"); !strings.EqualFold(owner, parts[0]) {
				c.report(e, use.Name, EffectStop, ReasonRepositoryOfAnother, "The repository %q does not belong to %q.", r, parts[0])
			}
		}
	}
}

// network checks that the network settings of e do not let jobs connect to the cluster or to
// private networks around it.
func (c *checker) network(e *v1alpha1.RunnerEnrollment) {
	n := e.Spec.Network
	if n == nil {
		return
	}
	for _, cache := range n.Caches {
		if !slices.Contains(c.Rules.CacheNamespaces, cache.Namespace) {
			c.report(e, "", EffectStop, ReasonCacheNamespace, "The settings allow no caches in namespace %q.", cache.Namespace)
		}
	}
	for _, egress := range n.Egress {
		cidr, err := netip.ParsePrefix(egress.CIDR)
		within := func(p netip.Prefix) bool { return p.Bits() <= cidr.Bits() && p.Overlaps(cidr) }
		if err != nil || slices.ContainsFunc(slices.Concat(PrivatePrefixes(), c.Rules.ClusterCIDRs), within) {
			c.report(
				e,
				"",
				EffectBlock,
				ReasonEgressPrivate,
				"Jobs may not connect to %q: it is a private range or a range of the cluster.",
				egress.CIDR,
			)
		}
	}
}

// PrivatePrefixes returns the address ranges that no job may connect to, regardless of its enrollment:
// private networks, the tailnet's range and link-local addresses. Cloud providers serve node
// credentials on link-local addresses.
func PrivatePrefixes() []netip.Prefix {
	return []netip.Prefix{
		netip.MustParsePrefix("10.0.0.0/8"),
		netip.MustParsePrefix("172.16.0.0/12"),
		netip.MustParsePrefix("192.168.0.0/16"),
		netip.MustParsePrefix(
			"100.64.0.0/10",
		),
		netip.MustParsePrefix("169.254.0.0/16"),
		netip.MustParsePrefix("fc00::/7"),
		netip.MustParsePrefix("fe80::/10"),
	}
}

// placement checks that e selects or tolerates no nodes of other organisations.
func (c *checker) placement(e *v1alpha1.RunnerEnrollment) {
	p := e.Spec.Placement
	if p == nil {
		return
	}
	if org, named := p.NodeSelector[v1alpha1.OrgLabel]; named && org != e.Name {
		c.report(
			e,
			"",
			EffectStop,
			ReasonPlacementOfAnother,
			"The nodes with the label %s: %s belong to another organisation.",
			v1alpha1.OrgLabel,
			org,
		)
	}
	for _, t := range p.Tolerations {
		own := t.Key == v1alpha1.OrgLabel && t.Operator != corev1.TolerationOpExists && t.Value == e.Name
		if (t.Key == "" || t.Key == v1alpha1.OrgLabel) && !own {
			c.report(
				e,
				"",
				EffectStop,
				ReasonPlacementOfAnother,
				"A toleration with the key %q would let its pods run on another organisation's nodes.",
				t.Key,
			)
		}
	}
}

// containers checks that organisations in a shared namespace cannot reach each other's jobs and
// Secrets. A job with its own Docker daemon controls its node. A job in a kubernetes mode can read
// every Secret of its namespace, including the keys of all organisations there.
func (c *checker) containers(e *v1alpha1.RunnerEnrollment, gitlab bool, pool *v1alpha1.RunnerPool) {
	mode := pool.Spec.ContainerMode
	reads := mode == v1alpha1.ModeKubernetes || mode == v1alpha1.ModeKubernetesNoVolume
	if gitlab && reads {
		c.report(e, pool.Name, EffectBlock, ReasonContainerMode, "Only GitHub runners have the container mode %s.", mode)
		return
	}
	if e.Spec.Isolation == v1alpha1.IsolationNamespace || e.Spec.Isolation == v1alpha1.IsolationNode {
		return
	}
	refuse := func(format, other string) {
		c.report(e, pool.Name, EffectStop, ReasonContainerMode, "With isolation None, "+format+".", mode, other)
	}
	if c.reader != "" && c.reader != e.Name {
		c.report(
			e,
			pool.Name,
			EffectStop,
			ReasonContainerMode,
			"With isolation None, jobs of %q could read the credential of %s.",
			c.reader,
			e.Name,
		)
		return
	}
	if c.shared == "" {
		c.shared = e.Name
	}
	if reads && c.shared != e.Name {
		refuse("jobs in container mode %s could read the credential of %q", c.shared)
		return
	}
	if reads {
		c.reader = e.Name
	}
	if mode == v1alpha1.ModeDind {
		if other, ok := claimOnce(c.docker, pool.Name, e); !ok {
			refuse("container mode %s allows only one organisation per pool, and the older enrollment %q uses the pool", other)
		}
	}
}

// apps finds isolated organisations that share one GitHub App. The holder of the App's key can act
// for all of them.
func (c *checker) apps(byAge []*v1alpha1.RunnerEnrollment) {
	first := map[string]string{}
	for _, e := range byAge {
		app := c.Credentials[e.Name].AppID
		if app == 0 {
			continue
		}
		other, ok := claimOnce(first, fmt.Sprint(e.Spec.Forge, " ", app), e)
		if ok || e.Spec.Isolation != v1alpha1.IsolationNamespace && e.Spec.Isolation != v1alpha1.IsolationNode {
			continue
		}
		effect := EffectWarn
		if c.Rules.RequireOwnApp {
			effect = EffectBlock
		}
		c.report(e, "", effect, ReasonSharedApp, "Its GitHub App %d is also used by %q: one key gives access to both.", app, other)
	}
}
