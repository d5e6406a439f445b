package fleet

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

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
	c := &checker{View: v, forges: map[string]*v1alpha1.RunnerForge{}, pools: map[string]*v1alpha1.RunnerPool{},
		places: map[string]string{}, groups: map[string]string{}, names: map[string]string{}, guaranteed: map[string]int{}, docker: map[string]string{},
		found: map[string][]Violation{}}
	for i := range v.Forges {
		c.forges[v.Forges[i].Name] = &v.Forges[i]
	}
	for i := range v.Pools {
		c.pools[v.Pools[i].Name] = &v.Pools[i]
	}
	byAge := make([]*v1alpha1.RunnerEnrollment, len(v.Enrollments))
	for i := range v.Enrollments {
		byAge[i] = &v.Enrollments[i]
	}
	slices.SortFunc(byAge, func(a, b *v1alpha1.RunnerEnrollment) int {
		if older(a.CreationTimestamp.Time, a.Name, b.CreationTimestamp.Time, b.Name) {
			return -1
		}
		return 1
	})
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
		c.report(e, "", EffectStop, ReasonSecretOfAnother, "The Secret %q does not carry the label %s: %s.", e.Spec.Credentials.SecretName, v1alpha1.OrgLabel, e.Name)
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
		c.report(e, "", EffectStop, ReasonConfigURL, "%q is not below the forge %q, which is at %q.", e.Spec.ConfigURL, forge.Name, forge.Spec.URL)
		return nil
	case forge.Spec.Type == v1alpha1.GitHub && len(parts) > 2:
		c.report(e, "", EffectStop, ReasonConfigURL, "%q is not an organisation, enterprise or repository.", e.Spec.ConfigURL)
		return nil
	}
	if other, ok := claimOnce(c.places, scope.String(), e); !ok {
		c.report(e, "", EffectStop, ReasonConfigURLTaken, "The older enrollment %q already uses %q.", other, e.Spec.ConfigURL)
	}
	group := e.Spec.GroupID
	if group == 0 {
		group = c.GroupIDs[e.Name]
	}
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
		say(EffectBlock, ReasonNameTaken, "The older enrollment %q already has a workload with the name %q.", other, WorkloadName(e.Name, pool.Name, 1))
	}
	guarantee := int(min(pool.Spec.Scaling.Guarantee, MaxRunners(pool, use)))
	if sum := c.guaranteed[pool.Name] + guarantee; sum > int(pool.Spec.Scaling.Budget) {
		say(EffectBlock, ReasonGuarantees, "The pool %q guarantees %d runners to older enrollments and would guarantee %d to this one; its budget is %d.", pool.Name, c.guaranteed[pool.Name], guarantee, pool.Spec.Scaling.Budget)
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
		c.report(e, use.Name, EffectBlock, ReasonOrgPlusUserGitLab, "A GitLab group runner cannot be limited to some projects: use a project runner or a dedicated pool.")
	case parts == nil: // already reported
	case len(parts) != 1:
		c.report(e, use.Name, EffectStop, ReasonOrgPlusUserPlace, "Type OrgPlusUser needs the URL of an organisation, but %q is not one.", e.Spec.ConfigURL)
	default:
		for _, r := range use.Repositories {
			if owner, _, _ := strings.Cut(r, "/"); !strings.EqualFold(owner, parts[0]) {
				c.report(e, use.Name, EffectStop, ReasonRepositoryOfAnother, "The repository %q does not belong to %q.", r, parts[0])
			}
		}
	}
}
