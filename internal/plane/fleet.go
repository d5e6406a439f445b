package plane

import (
	"strings"
	"time"
)

// The objects as the API returns them. Unknown values are null.

// The states of a pool of one organisation, worst first.
const (
	PoolFailing      = "Error"    // needs a person
	StateUnknown     = "Unknown"  // no data yet
	PoolDegraded     = "Degraded" // works, but has a problem
	PoolPausing      = "Pausing"  // a hold exists; not confirmed yet that no new job starts
	PoolDraining     = "Draining" // no new job starts; the last jobs still run
	PoolResuming     = "Resuming" // no hold exists any longer; not confirmed yet that jobs start
	PoolProvisioning = "Provisioning"
	PoolDrained      = "Drained" // confirmed: no new job starts and none is left
	PoolPaused       = "Paused"  // confirmed: no new job starts
	PoolActive       = "Active"
)

// Pool is the runners of one organisation in one pool.
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
	// EffectiveMax and Allocated are the values that the fleet wrote last.
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

	Settings []Setting `json:"-"` // effective settings with their origins; nil: the pool is not known
}

// Setting is an effective setting and its origin.
type Setting struct {
	Name  string   `json:"name" doc:"such as scaling.max"`
	Value string   `json:"value"`
	From  string   `json:"from" doc:"the object that says so, such as RunnerPool gh-nix; fleet: what it has worked out; default: nobody says otherwise"`
	Over  []Origin `json:"over" doc:"what others say, which it overrules, the nearest first"`
}

// Origin is a value of a setting from one object.
type Origin struct {
	Value string `json:"value"`
	From  string `json:"from"`
}

// Scaling is the limits on the number of runners.
type Scaling struct {
	Min    int `json:"min" doc:"that wait for jobs"`
	Max    int `json:"max" doc:"of this organisation"`
	Budget int `json:"budget" doc:"of all organisations together"`
}

// Counts are the numbers of runners. A nil count is unknown.
type Counts struct {
	Idle    *int `json:"idle"`
	Busy    *int `json:"busy"`
	Pending *int `json:"pending"`
	Failed  *int `json:"failed"`
}

// add returns the sum. A sum with an unknown part is unknown.
func (c Counts) add(o Counts) Counts {
	sum := func(a, b *int) *int {
		if a == nil || b == nil {
			return nil
		}
		return new(*a + *b)
	}
	return Counts{sum(c.Idle, o.Idle), sum(c.Busy, o.Busy), sum(c.Pending, o.Pending), sum(c.Failed, o.Failed)}
}

// Controller is the workload that runs the jobs.
type Controller struct {
	Kind      string `json:"kind"`
	Namespace string `json:"namespace"`
	Name      string `json:"name"`
}

// PoolActions are the actions that the caller may take on a pool.
type PoolActions struct {
	Pause  Action `json:"pause"`
	Resume Action `json:"resume"`
}

// Enrollment is an organisation that has runners.
type Enrollment struct {
	ID                string                `json:"id" doc:"the org's name"`
	Name              string                `json:"name"`
	Forge             string                `json:"forge"`
	ConfigURL         string                `json:"configURL" doc:"of the organisation or group, as people see it"`
	Isolation         string                `json:"isolation" enum:"None,Namespace,Node"`
	Phase             string                `json:"phase" enum:"Unknown,Requested,Approved,Provisioning,Active,Suspended,Draining,Offboarded,Failed"`
	Pools             []EnrolledPool        `json:"pools"`
	ExternalScaleSets []Adoption            `json:"adopted" doc:"scale sets of somebody else's that take its jobs; what holds the organisation does not hold them"`
	Owners            []string              `json:"owners"`
	Members           []string              `json:"members"`
	Quota             *Quota                `json:"quota" doc:"of its namespace; null: it has none of its own"`
	Credential        *EnrollmentCredential `json:"credential" doc:"null: none is in use"`
	Rotation          Rotation              `json:"rotation"`
	Offboard          *Offboard             `json:"offboard" doc:"null: it does not end"`
	Conditions        []Condition           `json:"conditions"`

	Digest      string              `json:"digest" doc:"of what an approval is about"`
	RequestedBy []string            `json:"requestedBy" doc:"who wrote some of it here since it was last approved: none of them approves it"`
	Approval    *EnrollmentApproval `json:"approval" doc:"by the plane; null: nobody has, or git approves"`
	Requested   *EnrollmentAsked    `json:"asked" doc:"what somebody asks those for who run the platform; null: nothing"`

	Actions *EnrollmentActions `json:"actions,omitempty" doc:"what the caller may do with it"`

	ObservedAt time.Time `json:"observedAt"`
}

// EnrollmentApproval approves exactly the content with the digest.
type EnrollmentApproval struct {
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Digest string    `json:"digest" doc:"if it is not the enrollment's, the approval is void"`
}

// RequestedAction is an action that a caller may request but not make.
type RequestedAction string

// The actions to request.
const (
	ActionRotate   RequestedAction = "rotate"   // a new credential
	ActionOffboard RequestedAction = "offboard" // the end of the enrollment
)

// EnrollmentAsked is a request for an action on an enrollment.
type EnrollmentAsked struct {
	What   RequestedAction `json:"what" enum:"rotate,offboard"`
	By     string          `json:"by"`
	At     time.Time       `json:"at"`
	Reason string          `json:"reason"`
}

// EnrollmentActions are the actions that the caller may take on an enrollment, or request.
type EnrollmentActions struct {
	Edit     Action `json:"edit"`
	Approve  Action `json:"approve"`
	Decline  Action `json:"decline"`
	Rotate   Action `json:"rotate"`
	Offboard Action `json:"offboard"`
}

// EnrolledPool is a pool that an organisation uses.
type EnrolledPool struct {
	Name         string   `json:"name"`
	Type         string   `json:"type"`
	Max          *int     `json:"max" doc:"null: the pool's own"`
	Repositories []string `json:"repositories"`
}

// Adoption is an external scale set as the fleet saw it last.
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

// DescribeExternal describes the external scale sets that take the organisation's jobs: the pool, the scale set, and whether it is held.
func (o Enrollment) DescribeExternal() string {
	var all []string
	for _, a := range o.ExternalScaleSets {
		s := a.Pool + "=" + a.Namespace + "/" + a.Workload
		if a.Hold != "" {
			s += " (held)"
		}
		all = append(all, s)
	}
	return strings.Join(all, ",")
}

// Quota is the resource quota of an organisation's namespace.
type Quota struct {
	CPU    string `json:"cpu"`
	Memory string `json:"memory"`
	Pods   int    `json:"pods"`
}

// EnrollmentCredential describes the credential that the fleet presents to the forge, without its secret value.
type EnrollmentCredential struct {
	Kind           string     `json:"kind"`
	Fingerprint    string     `json:"fingerprint"`
	AppID          *int64     `json:"appId"`
	InstallationID *int64     `json:"installationId"`
	CreatedAt      *time.Time `json:"createdAt"`
	ExpiresAt      *time.Time `json:"expiresAt"`
}

// Rotation says when a credential must be replaced.
type Rotation struct {
	Every string     `json:"every" doc:"how old it may become; empty: any age"`
	At    *time.Time `json:"at" doc:"when somebody wanted another one; null: nobody has"`
}

// Offboard is the progress of ending an enrollment.
type Offboard struct {
	Step    string    `json:"step"`
	Since   time.Time `json:"since"`
	Message string    `json:"message"`
}

// Forge is the place that jobs come from.
type Forge struct {
	ID         string      `json:"id"`
	Name       string      `json:"name"`
	Type       string      `json:"type" enum:"github,gitlab"`
	URL        string      `json:"url"`
	Version    *string     `json:"version"`
	Reachable  *bool       `json:"reachable"`
	RateLimit  *RateLimit  `json:"rateLimit" doc:"null: not known, or not for the caller"`
	Conditions []Condition `json:"conditions"`

	ObservedAt time.Time `json:"observedAt"`

	EnrolledOrgs []string `json:"-"` // organisations
}

// RateLimit is the forge's remaining API rate limit, for the organisation with the least left.
type RateLimit struct {
	Remaining int64      `json:"remaining"`
	ResetAt   *time.Time `json:"resetAt"`
}

// The kinds of drift.
const (
	DriftGit    = "git"    // the configuration repository and the cluster differ
	DriftForge  = "forge"  // the cluster and the forge differ
	DriftActual = "actual" // the desired and the actual state differ
)

// The states of a drift that needs no action. The other states are its severities.
const (
	DriftExplained = "explained" // a hold is the reason for it
	DriftIgnored   = "ignored"   // a person ignores it for a while
)

// Drift is one difference between desired and actual state, of an organisation's runners or of an object in the configuration repository.
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

// DriftActions are the actions that the caller may take on a drift.
type DriftActions struct {
	Ignore   Action `json:"ignore"`
	Unignore Action `json:"unignore"`
}

// The states of a hold.
const (
	HoldApplying = "Applying" // not confirmed everywhere that no new job starts
	HoldApplied  = "Applied"  // confirmed everywhere
	// Drained, declared above, is also a state of a hold: no job is left either.
	HoldLifting = "Lifting"
	HoldExpired = "Expired"
)

// Hold is a pause of runners.
type Hold struct {
	ID            string        `json:"id" doc:"its name"`
	Name          string        `json:"name"`
	UID           string        `json:"uid" doc:"another hold of this name has another one"`
	Version       string        `json:"version" doc:"of what it says, for If-Match: how far it has come does not change it"`
	Scope         Scope         `json:"scope"`
	Mode          HoldMode      `json:"mode" enum:"Pause,Drain,Stop"`
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

	HeldOrgs []string `json:"-"` // organisations whose runners it covers
	Digest   string   `json:"-"` // hash of the request that made it; "" if no request to the plane did
}

// HoldFailure is one workload that could not be held.
type HoldFailure struct {
	Pool   string `json:"pool"`
	Org    string `json:"org"`
	Reason string `json:"reason"`
}

// HoldActions are the actions that the caller may take on a hold.
type HoldActions struct {
	Lift Action `json:"lift"`
}
