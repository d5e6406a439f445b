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
	StateReason string   `json:"stateReason" doc:"the reason, a sentence; empty while the state is Active"`
	Holds       []string `json:"holds" doc:"names of the active holds"`
	Counts      Counts   `json:"counts"`
	// EffectiveMax and Allocated are the values that the fleet wrote last.
	EffectiveMax *int       `json:"effectiveMax" doc:"current maximum number of runners; 0 while a hold applies"`
	Allocated    *int       `json:"allocated" doc:"maximum number of runners without holds"`
	Assigned     *int       `json:"assigned" doc:"jobs that GitHub assigned to it, including running jobs; null: the listener does not report it"`
	Stranded     *int       `json:"stranded" doc:"assigned jobs that cannot start because the maximum is 0; null: not known, or the maximum is not 0"`
	Controller   Controller `json:"controller"`
	ScaleSetID   *int64     `json:"scaleSetId" doc:"id at GitHub"`
	RunnerID     *int64     `json:"runnerId" doc:"id at GitLab"`
	Drift        []string   `json:"drift" doc:"kinds of drift, one word each"`

	Actions *PoolActions `json:"actions,omitempty" doc:"actions that the caller may take"`

	ObservedAt time.Time `json:"observedAt"`

	Settings []Setting `json:"-"` // effective settings with their origins; nil: the pool is not known
}

// Setting is an effective setting and its origin.
type Setting struct {
	Name  string   `json:"name" doc:"for example scaling.max"`
	Value string   `json:"value"`
	From  string   `json:"from" doc:"the object that sets it, such as RunnerPool gh-nix; fleet: calculated by the fleet; default: the default value"`
	Over  []Origin `json:"over" doc:"overridden values, the nearest first"`
}

// Origin is a value of a setting from one object.
type Origin struct {
	Value string `json:"value"`
	From  string `json:"from"`
}

// Scaling is the limits on the number of runners.
type Scaling struct {
	Min    int `json:"min" doc:"number of runners that wait for jobs"`
	Max    int `json:"max" doc:"maximum for this organisation"`
	Budget int `json:"budget" doc:"maximum for all organisations together"`
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
	ID                string                `json:"id" doc:"the organisation's name"`
	Name              string                `json:"name"`
	Forge             string                `json:"forge"`
	ConfigURL         string                `json:"configURL" doc:"URL of the organisation or group"`
	Isolation         string                `json:"isolation" enum:"None,Namespace,Node"`
	Phase             string                `json:"phase" enum:"Unknown,Requested,Approved,Provisioning,Active,Suspended,Draining,Offboarded,Failed"`
	Pools             []EnrolledPool        `json:"pools"`
	ExternalScaleSets []Adoption            `json:"adopted" doc:"external scale sets that take its jobs; holds of the organisation do not apply to them"`
	Owners            []string              `json:"owners"`
	Members           []string              `json:"members"`
	Quota             *Quota                `json:"quota" doc:"quota of its namespace; null: it has no own namespace"`
	Credential        *EnrollmentCredential `json:"credential" doc:"null: no credential is in use"`
	Rotation          Rotation              `json:"rotation"`
	Offboard          *Offboard             `json:"offboard" doc:"null: the enrollment is not ending"`
	Conditions        []Condition           `json:"conditions"`

	Digest      string              `json:"digest" doc:"digest of the content that an approval covers"`
	RequestedBy []string            `json:"requestedBy" doc:"logins that changed it here since the last approval; they cannot approve it"`
	Approval    *EnrollmentApproval `json:"approval" doc:"approval by the plane; null: not approved, or git approves"`
	Requested   *EnrollmentAsked    `json:"asked" doc:"open request to platform-admins; null: none"`

	Actions *EnrollmentActions `json:"actions,omitempty" doc:"actions that the caller may take"`

	ObservedAt time.Time `json:"observedAt"`
}

// EnrollmentApproval approves exactly the content with the digest.
type EnrollmentApproval struct {
	By     string    `json:"by"`
	At     time.Time `json:"at"`
	Digest string    `json:"digest" doc:"digest of the approved content; if it differs from the enrollment's digest, the approval is not valid"`
}

// EnrollmentAsked is a request for an action on an enrollment.
type EnrollmentAsked struct {
	What   EnrollmentAction `json:"what" enum:"rotate,offboard"`
	By     string           `json:"by"`
	At     time.Time        `json:"at"`
	Reason string           `json:"reason"`
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
	Max          *int     `json:"max" doc:"null: the pool's max"`
	Repositories []string `json:"repositories"`
}

// Adoption is an external scale set as the fleet saw it last.
type Adoption struct {
	Pool       string     `json:"pool" doc:"pool that adopts it; it accepts no enrollments"`
	Namespace  string     `json:"namespace"`
	Workload   string     `json:"workload" doc:"name of the workload"`
	ScaleSetID *int64     `json:"scaleSetId" doc:"id at GitHub"`
	Min        *int       `json:"min" doc:"as configured in the scale set"`
	Max        *int       `json:"max" doc:"as configured in the scale set; 2147483647: no limit"`
	Counts     Counts     `json:"counts"`
	Hold       string     `json:"hold" doc:"active hold of the pool; empty: none"`
	SeenAt     *time.Time `json:"seenAt" doc:"when a runner of it was first seen at GitHub; null: never"`
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
	Every string     `json:"every" doc:"maximum age; empty: no limit"`
	At    *time.Time `json:"at" doc:"time of the last request for a new credential; null: none"`
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
	RateLimit  *RateLimit  `json:"rateLimit" doc:"null: not known, or hidden from the caller"`
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
	ID          string    `json:"id" doc:"stable for as long as the drift exists"`
	OrgName     string    `json:"org"`
	Forge       string    `json:"forge"`
	Pool        string    `json:"pool"`
	Workload    string    `json:"object" doc:"the workload that runs the jobs, or the configuration object"`
	Subject     string    `json:"subject" doc:"the affected part, such as the id of a runner"`
	Field       string    `json:"field" doc:"the kind of drift in one word, or the field"`
	Kind        string    `json:"kind" enum:"git,forge,actual" doc:"git: the configuration repository and the cluster differ; forge: the cluster and the forge differ; actual: the desired and the actual state differ"`
	Severity    string    `json:"severity" enum:"info,warning,error"`
	Want        *string   `json:"want" doc:"null: no values are compared"`
	Have        *string   `json:"have"`
	Evidence    string    `json:"evidence" doc:"the observation, a sentence"`
	Next        string    `json:"next" doc:"the next step, a sentence"`
	FirstSeen   time.Time `json:"firstSeen"`
	ExplainedBy string    `json:"explainedBy" doc:"the hold that explains the difference; empty: none"`
	Unconfirmed bool      `json:"unconfirmed" doc:"true if the last check could not confirm it; the earlier result stays"`

	IgnoredUntil  *time.Time `json:"ignoredUntil" doc:"until this time it is listed but not counted; null: not ignored"`
	IgnoredBy     string     `json:"ignoredBy"`
	IgnoredReason string     `json:"ignoredReason"`

	Actions *DriftActions `json:"actions,omitempty" doc:"actions that the caller may take"`

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
	ID            string        `json:"id" doc:"name of the workload"`
	Name          string        `json:"name"`
	UID           string        `json:"uid" doc:"a new hold with the same name has a different uid"`
	Version       string        `json:"version" doc:"version of the spec, for If-Match; progress does not change it"`
	Scope         Scope         `json:"scope"`
	Mode          HoldMode      `json:"mode" enum:"Pause,Drain,Stop"`
	Reason        string        `json:"reason"`
	RequestedBy   string        `json:"requestedBy"`
	Created       time.Time     `json:"created"`
	ExpiresAt     *time.Time    `json:"expiresAt" doc:"null: it does not expire automatically"`
	State         string        `json:"state" enum:"Applying,Applied,Drained,Lifting,Expired"`
	Targets       *int          `json:"targets" doc:"number of held workloads; null: not known, or hidden from the caller"`
	Applied       *int          `json:"applied" doc:"number of workloads that are confirmed to take no new jobs"`
	Drained       *int          `json:"drained" doc:"number of workloads that have no jobs left"`
	RemainingJobs *int          `json:"remainingJobs"`
	Failed        []HoldFailure `json:"failed" doc:"failures of the hold that the caller may see"`

	Actions *HoldActions `json:"actions,omitempty" doc:"actions that the caller may take"`

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
