package planefleet

import (
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/plane"
)

// The objects as they stand on the wire. What is not known is null.

// The states of a pool of one organisation, the worst first.
const (
	Failing      = "Error"    // it needs a person
	Unknown      = "Unknown"  // nobody has said
	Degraded     = "Degraded" // it works, and something is wrong
	Pausing      = "Pausing"  // a hold is there; that it takes no new job is not confirmed
	Draining     = "Draining" // it takes none, and the last ones run
	Resuming     = "Resuming" // no hold is there any more; that it takes jobs is not confirmed
	Provisioning = "Provisioning"
	Drained      = "Drained" // confirmed: it takes none, and none is left
	Paused       = "Paused"  // confirmed: it takes none
	Active       = "Active"
)

// A Pool is the runners of one organisation in one pool.
type Pool struct {
	ID        string   `json:"id" doc:"forge/org/pool"`
	Name      string   `json:"name"`
	Forge     string   `json:"forge"`
	OrgName   string   `json:"org"`
	Type      string   `json:"type" enum:"Shared,Dedicated,OrgPlusUser,"`
	Isolation string   `json:"isolation" enum:"None,Namespace,Node"`
	RunsOn    []string `json:"runsOn" doc:"labels or tags; null: the pool is not known"`
	Scaling   *Scaling `json:"scaling" doc:"null: the pool is not known"`

	State       string   `json:"state" enum:"Error,Unknown,Degraded,Pausing,Draining,Resuming,Provisioning,Drained,Paused,Active"`
	StateReason string   `json:"stateReason" doc:"why, a sentence; empty while it is active"`
	Holds       []string `json:"holds" doc:"names of those in force"`
	Counts      Counts   `json:"counts"`
	// EffectiveMax and Allocated are as the fleet has written them last.
	EffectiveMax *int       `json:"effectiveMax" doc:"how many there may be now; 0 under a hold"`
	Allocated    *int       `json:"allocated" doc:"how many there may be without holds"`
	Assigned     *int       `json:"assigned" doc:"jobs that GitHub gave it, those that run with them; null: its listener does not say"`
	Stranded     *int       `json:"stranded" doc:"of those, jobs that cannot start while there may be no runner; null: not known, or there may be some"`
	Controller   Controller `json:"controller"`
	ScaleSetID   *int64     `json:"scaleSetId" doc:"at GitHub"`
	RunnerID     *int64     `json:"runnerId" doc:"at GitLab"`
	Drift        []string   `json:"drift" doc:"what is not as it should be, in a word each"`

	Actions *PoolActions `json:"actions,omitempty" doc:"what the caller may do with it"`

	ObservedAt time.Time `json:"observedAt"`

	Settings []Setting `json:"-"` // in force, with where each comes from; nil: the pool is not known
}

// A Setting is what is in force, and where it comes from.
type Setting struct {
	Name  string   `json:"name" doc:"such as scaling.max"`
	Value string   `json:"value"`
	From  string   `json:"from" doc:"the object that says so, such as RunnerPool gh-nix; fleet: what it has worked out; default: nobody says otherwise"`
	Over  []Origin `json:"over" doc:"what others say, which it overrules, the nearest first"`
}

// An Origin is what somebody says of a setting.
type Origin struct {
	Value string `json:"value"`
	From  string `json:"from"`
}

// Scaling is how many runners there may be.
type Scaling struct {
	Min    int `json:"min" doc:"that wait for jobs"`
	Max    int `json:"max" doc:"of this organisation"`
	Budget int `json:"budget" doc:"of all organisations together"`
}

// Counts are how many runners there are.
type Counts struct {
	Idle    *int `json:"idle"`
	Busy    *int `json:"busy"`
	Pending *int `json:"pending"`
	Failed  *int `json:"failed"`
}

// add is the sum: not known, if one of the two is not.
func (c Counts) add(o Counts) Counts {
	sum := func(a, b *int) *int {
		if a == nil || b == nil {
			return nil
		}
		return new(*a + *b)
	}
	return Counts{sum(c.Idle, o.Idle), sum(c.Busy, o.Busy), sum(c.Pending, o.Pending), sum(c.Failed, o.Failed)}
}

// A Controller is the workload that runs the jobs.
type Controller struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// PoolActions are what a caller may do with a pool.
type PoolActions struct {
	Pause  plane.Action `json:"pause"`
	Resume plane.Action `json:"resume"`
}

// An Enrollment is an organisation that has runners.
type Enrollment struct {
	ID         string            `json:"id" doc:"the org's name"`
	Name       string            `json:"name"`
	Forge      string            `json:"forge"`
	ConfigURL  string            `json:"configURL" doc:"of the organisation or group, as people see it"`
	Isolation  string            `json:"isolation" enum:"None,Namespace,Node"`
	Phase      string            `json:"phase" enum:"Unknown,Requested,Approved,Provisioning,Active,Suspended,Draining,Offboarded,Failed"`
	Pools      []EnrolledPool    `json:"pools"`
	Adopted    []Adoption        `json:"adopted" doc:"scale sets of somebody else's that take its jobs; what holds the organisation does not hold them"`
	Owners     []string          `json:"owners"`
	Members    []string          `json:"members"`
	Quota      *Quota            `json:"quota" doc:"of its namespace; null: it has none of its own"`
	Credential *Credential       `json:"credential" doc:"null: none is in use"`
	Rotation   Rotation          `json:"rotation"`
	Offboard   *Offboard         `json:"offboard" doc:"null: it does not end"`
	Conditions []plane.Condition `json:"conditions"`

	Digest      string              `json:"digest" doc:"of what an approval is about"`
	RequestedBy []string            `json:"requestedBy" doc:"who wrote some of it here since it was last approved: none of them approves it"`
	Approval    *EnrollmentApproval `json:"approval" doc:"by the plane; null: nobody has, or git approves"`
	Asked       *EnrollmentAsked    `json:"asked" doc:"what somebody asks those for who run the platform; null: nothing"`

	Actions *EnrollmentActions `json:"actions,omitempty" doc:"what the caller may do with it"`

	ObservedAt time.Time `json:"observedAt"`
}

// An EnrollmentApproval is of exactly what has the digest.
type EnrollmentApproval struct {
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Digest string    `json:"digest" doc:"if it is not the enrollment's, the approval is void"`
}

// A Wish is what somebody may ask for whom it may not be done for.
type Wish string

// The wishes.
const (
	WishRotate   Wish = "rotate"   // another credential
	WishOffboard Wish = "offboard" // an end
)

// EnrollmentAsked is what somebody asks for.
type EnrollmentAsked struct {
	What   Wish      `json:"what" enum:"rotate,offboard"`
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason"`
}

// EnrollmentActions are what a caller may do with an enrollment, or ask for.
type EnrollmentActions struct {
	Edit     plane.Action `json:"edit"`
	Approve  plane.Action `json:"approve"`
	Decline  plane.Action `json:"decline"`
	Rotate   plane.Action `json:"rotate"`
	Offboard plane.Action `json:"offboard"`
}

// An EnrolledPool is a pool that an organisation uses.
type EnrolledPool struct {
	Name         string   `json:"name"`
	Type         string   `json:"type"`
	Max          *int     `json:"max" doc:"null: the pool's own"`
	Repositories []string `json:"repositories"`
}

// An Adoption is a scale set that somebody else keeps, as the fleet has seen it last.
type Adoption struct {
	Pool       string     `json:"pool" doc:"that adopts it; nobody can be enrolled in it"`
	Namespace  string     `json:"namespace"`
	Workload   string     `json:"workload" doc:"its name"`
	ScaleSetID *int64     `json:"scaleSetId" doc:"at GitHub"`
	Min        *int       `json:"min" doc:"as it stands there"`
	Max        *int       `json:"max" doc:"as it stands there; 2147483647: no bound"`
	Counts     Counts     `json:"counts"`
	Hold       string     `json:"hold" doc:"the hold of the pool that is in force; empty: none"`
	SeenAt     *time.Time `json:"seenAt" doc:"when GitHub was first seen to have a runner of it; null: never"`
}

// Takers are the scale sets of somebody else's that take its jobs, as people read them:
// which pool adopts what, and whether that is held.
func (o Enrollment) Takers() string {
	var all []string
	for _, a := range o.Adopted {
		s := a.Pool + "=" + a.Namespace + "/" + a.Workload
		if a.Hold != "" {
			s += " (held)"
		}
		all = append(all, s)
	}
	return strings.Join(all, ",")
}

// A Quota is what an organisation's namespace may use.
type Quota struct {
	CPU    string `json:"cpu"`
	Memory string `json:"memory"`
	Pods   int    `json:"pods"`
}

// A Credential is what the fleet shows to the forge, without its value.
type Credential struct {
	Kind           string     `json:"kind"`
	Fingerprint    string     `json:"fingerprint"`
	AppID          *int64     `json:"appId"`
	InstallationID *int64     `json:"installationId"`
	CreatedAt      *time.Time `json:"createdAt"`
	ExpiresAt      *time.Time `json:"expiresAt"`
}

// A Rotation is when a credential is to be replaced.
type Rotation struct {
	Every string     `json:"every" doc:"how old it may become; empty: any age"`
	At    *time.Time `json:"at" doc:"when somebody wanted another one; null: nobody has"`
}

// An Offboard is how far an enrollment's end has come.
type Offboard struct {
	Step    string    `json:"step"`
	Since   time.Time `json:"since"`
	Message string    `json:"message"`
}

// A Forge is where jobs come from.
type Forge struct {
	ID         string            `json:"id"`
	Name       string            `json:"name"`
	Type       string            `json:"type" enum:"github,gitlab"`
	URL        string            `json:"url"`
	Version    *string           `json:"version"`
	Reachable  *bool             `json:"reachable"`
	RateLimit  *RateLimit        `json:"rateLimit" doc:"null: not known, or not for the caller"`
	Conditions []plane.Condition `json:"conditions"`

	ObservedAt time.Time `json:"observedAt"`

	EnrolledThere []string `json:"-"` // organisations
}

// A RateLimit is how often a forge may still be asked, for the organisation for which
// that is least.
type RateLimit struct {
	Remaining int64      `json:"remaining"`
	ResetAt   *time.Time `json:"resetAt"`
}

// The kinds of drift.
const (
	DriftGit    = "git"    // the repository of the configuration and the cluster do not agree
	DriftForge  = "forge"  // the cluster and the forge do not agree
	DriftActual = "actual" // there is not what should be
)

// The states of a drift that nobody need see to; the others are its severities.
const (
	Explained = "explained" // it is by a hold
	Ignore    = "ignored"   // somebody does not want to be told of it for a while
)

// A Drift is one thing that is not as it should be: about an organisation's runners, or
// about what the repository of the configuration says.
type Drift struct {
	ID          string    `json:"id" doc:"the same for as long as it stands"`
	OrgName     string    `json:"org"`
	Forge       string    `json:"forge"`
	Pool        string    `json:"pool"`
	Workload    string    `json:"object" doc:"what runs the jobs, or the object of the configuration"`
	Subject     string    `json:"subject" doc:"what of it, such as the number of a runner"`
	Field       string    `json:"field" doc:"what is not as it should be, in a word, or the field"`
	Kind        string    `json:"kind" enum:"git,forge,actual" doc:"between the repository of the configuration and the cluster, the cluster and the forge, or between what there should be and what there is"`
	Severity    string    `json:"severity" enum:"info,warning,error"`
	Want        *string   `json:"want" doc:"null: nothing is compared"`
	Have        *string   `json:"have"`
	Evidence    string    `json:"evidence" doc:"what was seen, in a sentence"`
	Next        string    `json:"next" doc:"what to do, in a sentence"`
	FirstSeen   time.Time `json:"firstSeen"`
	ExplainedBy string    `json:"explainedBy" doc:"the hold by which it is as it is: then it is no drift"`
	Unconfirmed bool      `json:"unconfirmed" doc:"the last look could not tell, so that it stands as it was"`

	IgnoredUntil  *time.Time `json:"ignoredUntil" doc:"until then it is listed, and not counted: somebody does not want to be told of it; null: nobody ignores it"`
	IgnoredBy     string     `json:"ignoredBy"`
	IgnoredReason string     `json:"ignoredReason"`

	Actions *DriftActions `json:"actions,omitempty" doc:"what the caller may do with it"`

	ObservedAt time.Time `json:"observedAt"`
}

// DriftActions are what a caller may do with a drift.
type DriftActions struct {
	Ignore   plane.Action `json:"ignore"`
	Unignore plane.Action `json:"unignore"`
}

// The states of a hold.
const (
	Applying = "Applying" // that no new job is taken is not confirmed everywhere
	Applied  = "Applied"  // it is
	// Drained is that no job is left, too.
	Lifting = "Lifting"
	Expired = "Expired"
)

// A Hold is a pause of runners.
type Hold struct {
	ID            string        `json:"id" doc:"its name"`
	Name          string        `json:"name"`
	UID           string        `json:"uid" doc:"another hold of this name has another one"`
	Version       string        `json:"version" doc:"of what it says, for If-Match: how far it has come does not change it"`
	Scope         Scope         `json:"scope"`
	Mode          Mode          `json:"mode" enum:"Pause,Drain,Stop"`
	Reason        string        `json:"reason"`
	RequestedBy   string        `json:"requestedBy"`
	Created       time.Time     `json:"created"`
	ExpiresAt     *time.Time    `json:"expiresAt" doc:"null: it does not end by itself"`
	State         string        `json:"state" enum:"Applying,Applied,Drained,Lifting,Expired"`
	Targets       *int          `json:"targets" doc:"how many workloads it holds; null: not known, or not for the caller"`
	Applied       *int          `json:"applied" doc:"how many of them are confirmed to take no new job"`
	Drained       *int          `json:"drained" doc:"how many of them have no job left"`
	RemainingJobs *int          `json:"remainingJobs"`
	Failed        []HoldFailure `json:"failed" doc:"those of the caller's that could not be held"`

	Actions *HoldActions `json:"actions,omitempty" doc:"what the caller may do with it"`

	ObservedAt time.Time `json:"observedAt"`

	Held   []string `json:"-"` // organisations that have a part in it
	Digest string   `json:"-"` // of the request that it was made by; "": it was made otherwise
}

// A HoldFailure is one workload that could not be held.
type HoldFailure struct {
	Pool   string `json:"pool"`
	Org    string `json:"org"`
	Reason string `json:"reason"`
}

// HoldActions are what a caller may do with a hold.
type HoldActions struct {
	Lift plane.Action `json:"lift"`
}
