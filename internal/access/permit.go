package access

import (
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// A Verb names one action that a caller may request.
type Verb string

// The verbs of sign-in. Decide defines the conditions of each verb.
const (
	SigninLogin      Verb = "signin.login"
	SigninRead       Verb = "signin.read"
	SigninList       Verb = "signin.list"
	SigninRoles      Verb = "signin.roles"
	PolicyCheck      Verb = "policy.check"
	SigninKubeconfig Verb = "signin.kubeconfig"
	SigninLogout     Verb = "signin.logout"
	ClusterInfo      Verb = "cluster.info"
	ClusterMembers   Verb = "cluster.members"
	Whoami           Verb = "whoami"
)

// APIRequest is the verb of each request to the Kubernetes API through the access proxy.
const APIRequest Verb = "api.request"

// The verbs of open streams through the access proxy, at the proxy and at the operator plane: the caller's, or all.
const (
	ConnectionsRead Verb = "connections.read"
	ConnectionsCut  Verb = "connections.cut"
)

// GossipExchange is the verb of gossip between servers. Only a tag permits it. No grant does, and
// the tag permits nothing else.
const GossipExchange Verb = "gossip.exchange"

// Actions that the servers start on their own. They happen when the tailnet revokes a grant, when a
// sign-in expires, and when a user of the cluster deletes its account. No caller can request them;
// they appear in the audit log.
const (
	SigninEnd     Verb = "signin.end"
	SigninShorten Verb = "signin.shorten"
	SigninRecord  Verb = "signin.record" // more of its streams must be recorded
	SigninSweep   Verb = "signin.sweep"  // remove objects that belong to no sign-in

	APIRecording Verb = "api.recording" // the state of the recording of a stream through the access proxy; no request

	AuditRolledBack Verb = "audit.rolledBack" // the audit log lacks lines that it once had; no request
)

// Gossip returns the verb of an event among gossip members, such as "join". No caller can request
// it; it appears in the audit log.
func Gossip(event string) Verb { return Verb("gossip." + event) }

// permitLife is the lifetime of a permit that names no role. It is longer than the longest wait of
// one request, and too short to be worth stealing.
const permitLife = 2 * time.Minute

// A Permit is the proof of a positive decision. Only Decide and DecidePlane create a useful one;
// the zero Permit permits nothing. Every function that acts for a caller requires a Permit.
type Permit struct {
	caller Caller
	verb   Verb
	policy Policy
	grants []Grant // the grants that admit this caller, without duplicates
	at     time.Time
	until  time.Time

	plane bool // the caller is an operator plane, whose callers' roles it has checked

	owner    error         // if not nil, the caller may only end an existing sign-in, for this reason
	asking   *requestRules // the rules for access requests, if Decide has read them
	standing error         // if not nil, no standing rule admits the caller, for this reason, but a rule for access requests does

	planeRoles []PlaneRole // roles of the caller on the operator plane, sorted
	faults     []string
	org        string // set by In

	token *Token // set by WithToken

	rule    string // name of the chosen rule; this and the following are set by Choose
	claims  map[string]string
	record  []string
	binds   Binds
	period  time.Duration
	clamped bool
	idle    time.Duration // of a rule with onUse
}

// Caller returns the caller that the permit is for.
func (p Permit) Caller() Caller { return p.caller }

// Until returns the end of the permit. Streams must end then.
func (p Permit) Until() time.Time { return p.until }

// Binds returns the chosen roles, or nil before Choose.
func (p Permit) Binds() Binds { return p.binds }

// Rule returns the name of the chosen rule, or "" if it has none.
func (p Permit) Rule() string { return p.rule }

// Period returns the duration of the chosen roles.
func (p Permit) Period() time.Duration { return p.period }

// Clamped reports whether the server's maximum shortened the granted period.
func (p Permit) Clamped() bool { return p.clamped }

// OwnerOnly returns an error if the caller may only end a sign-in that already exists, and nil
// otherwise. A caller may always end its sign-in, but it must not learn more.
func (p Permit) OwnerOnly() error { return p.owner }

// IsPlane reports whether the caller is an operator plane, which acts for people whose roles it has checked.
func (p Permit) IsPlane() bool { return p.plane }

// Require returns an error unless p permits v at now. Functions that act must call it first, so
// that a permit for one action is never used for another.
func (p Permit) Require(v Verb, now time.Time) error {
	if p.verb == "" || p.verb != v {
		return problem.New(problem.Internal, "internal error").WithCause(permitMismatch{p.verb, v})
	}
	if !now.Before(p.until) {
		return problem.New(problem.GrantRemoved, "The decision for this request has expired.", "Send the request again.")
	}
	return nil
}

type permitMismatch struct{ have, want Verb }

func (e permitMismatch) Error() string {
	return "a permit for " + string(e.have) + " was used for " + string(e.want)
}

// Covers reports whether the caller is granted all of binds now, with the token t, and the server still
// allows their roles. It does not consider which rule Choose would select now.
func (p Permit) Covers(binds Binds, t *Token) bool {
	_, covered := p.Covering(binds, t)
	return covered
}

// Covering is like Covers and also returns the period of the covering rule. One rule must cover all
// of binds: rules are never merged. Of several rules it uses the one with the highest priority, then
// the longest period. The period is at most the server's maximum. t is the token of a sign-in or of a
// request; nil: it has none, and no rule that requires a token covers it.
func (p Permit) Covering(binds Binds, t *Token) (time.Duration, bool) {
	covering := p.coveringRules(binds, t)
	if len(covering) == 0 {
		return 0, false
	}
	return min(slices.MaxFunc(covering, compareCoverage).Period, p.policy.Max), true
}

// coveringRules returns the rules that cover all of binds.
func (p Permit) coveringRules(binds Binds, t *Token) []Grant {
	if p.verb == "" || p.owner != nil || len(binds) == 0 {
		return nil
	}
	if slices.ContainsFunc(binds, func(b Bind) bool { return !slices.Contains(p.policy.Roles, b.Role) }) {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(p.grants), func(g Grant) bool { return !g.Binds.cover(binds) || !p.policy.fits(g, t) })
}
