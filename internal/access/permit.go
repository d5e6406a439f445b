package access

import (
	"cmp"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// A Verb names one thing a caller may ask for.
type Verb string

// The verbs of sign-in. What a verb asks of the caller is in Decide.
const (
	SigninLogin      Verb = "signin.login"
	SigninRead       Verb = "signin.read"
	SigninKubeconfig Verb = "signin.kubeconfig"
	SigninLogout     Verb = "signin.logout"
	ClusterInfo      Verb = "cluster.info"
	ClusterMembers   Verb = "cluster.members"
	Whoami           Verb = "whoami"
)

// GossipExchange is the verb of servers among themselves. A tag alone gives it:
// no grant does, and the tag gives nothing else.
const GossipExchange Verb = "gossip.exchange"

// What the servers do of themselves: when the tailnet withdraws what it granted,
// when a sign-in's time is over, when somebody in the cluster took its account
// away. Nobody can ask for it; audit records it.
const (
	SigninEnd     Verb = "signin.end"
	SigninShorten Verb = "signin.shorten"
	SigninSweep   Verb = "signin.sweep" // remove what no sign-in accounts for
)

// Gossip is the verb of something that happened among the members of gossip, such
// as "join". Nobody can ask for it; audit records it.
func Gossip(event string) Verb { return Verb("gossip." + event) }

// visitLife is how long a permit that names no role may be acted upon: longer
// than the longest wait of one request, shorter than anything worth stealing.
const visitLife = 2 * time.Minute

// A Permit is the proof that a decision was made. Only Decide makes a useful
// one: the zero Permit permits nothing. Every acting function takes one.
type Permit struct {
	caller Caller
	verb   Verb
	policy Policy
	grants []Grant // that admit this caller; duplicates collapsed
	at     time.Time
	until  time.Time

	owner error // why the caller may only end what is already theirs; nil: no such limit

	duties []Duty // of the operator plane: what the caller may do there, sorted
	faults []string
	org    string // set by In

	role       Role // set by Choose
	namespaces []string
	period     time.Duration
	clamped    bool
}

// Caller is who the permit was made for.
func (p Permit) Caller() Caller { return p.caller }

// Until is the end of the permit: streams end then.
func (p Permit) Until() time.Time { return p.until }

// Role is the role that was chosen, "" before Choose.
func (p Permit) Role() Role { return p.role }

// Namespaces are where the chosen role holds, sorted; none means the whole cluster.
func (p Permit) Namespaces() []string { return p.namespaces }

// Period is how long the chosen role is given for.
func (p Permit) Period() time.Duration { return p.period }

// Clamped reports whether the grant's period was cut to the server's maximum.
func (p Permit) Clamped() bool { return p.clamped }

// OwnerOnly returns why the caller may do nothing but end a sign-in that is
// theirs already, or nil. Ending is always allowed; knowing more is not.
func (p Permit) OwnerOnly() error { return p.owner }

// Require returns an error unless p permits v at now. Acting functions call it
// first, so that a permit for one thing never does for another.
func (p Permit) Require(v Verb, now time.Time) error {
	if p.verb == "" || p.verb != v {
		return problem.New(problem.Internal, "internal error").Because(permitMismatch{p.verb, v})
	}
	if !now.Before(p.until) {
		return problem.New(problem.GrantRemoved, "The decision about this request is too old.", "Ask again.")
	}
	return nil
}

type permitMismatch struct{ have, want Verb }

func (e permitMismatch) Error() string {
	return "a permit for " + string(e.have) + " was used for " + string(e.want)
}

// Covers reports whether the caller is granted role now, in all of namespaces
// (none: the whole cluster), and the server still allows it. It asks "is this
// still granted", not "what would be chosen now".
func (p Permit) Covers(role Role, namespaces []string) bool {
	_, covered := p.Covering(role, namespaces)
	return covered
}

// Covering is Covers, and returns how long the grant that covers gives the role
// for: of several the one of highest priority counts, then the longest. It is
// never more than the server's longest period.
func (p Permit) Covering(role Role, namespaces []string) (time.Duration, bool) {
	if p.verb == "" || p.owner != nil || !slices.Contains(p.policy.Roles, role) {
		return 0, false
	}
	covering := slices.DeleteFunc(slices.Clone(p.grants), func(g Grant) bool {
		return g.Role != role || len(g.Namespaces) > 0 && (len(namespaces) == 0 || !subset(namespaces, g.Namespaces))
	})
	if len(covering) == 0 {
		return 0, false
	}
	best := slices.MaxFunc(covering, func(a, b Grant) int {
		return cmp.Or(cmp.Compare(a.Priority, b.Priority), cmp.Compare(a.Period, b.Period))
	})
	return min(best.Period, p.policy.Max), true
}

func subset(a, of []string) bool {
	return !slices.ContainsFunc(a, func(s string) bool { return !slices.Contains(of, s) })
}
