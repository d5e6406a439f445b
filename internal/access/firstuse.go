package access

import (
	"fmt"
	"slices"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
)

// The verbs of the access proxy's requests to the access server. Only the tags of the proxies permit them. No grant does,
// and the tags permit nothing else.
const (
	SigninFirstUse Verb = "signin.firstUse" // begin a sign-in for the device that uses the proxy
	SigninUsage    Verb = "signin.usage"    // report which of those sign-ins are in use
)

// Limits of the field idle of a rule.
const (
	DefaultIdle = 30 * time.Minute
	minIdle     = 5 * time.Minute // the proxies report once a minute
	maxIdle     = 24 * time.Hour
)

// checkOnUse returns why the rule cannot begin sign-ins on first use, or nil.
func (g *Grant) checkOnUse() error {
	switch {
	case !g.OnUse && g.Idle != 0:
		return fmt.Errorf(`"idle" is not possible without "onUse": true`)
	case !g.OnUse:
		return nil
	case g.ReasonRequired:
		return fmt.Errorf(`"onUse" is not possible together with "reason": a first use gives none`)
	case g.Token != nil:
		return fmt.Errorf(`"onUse" is not possible together with "oidc": a first use brings no token`)
	case g.Idle == 0:
		g.Idle = DefaultIdle
	case g.Idle < minIdle || g.Idle > maxIdle:
		return fmt.Errorf(`"idle": %v is not between %v and %v`, g.Idle, minIdle, maxIdle)
	}
	return nil
}

// admitProxy rejects every caller except the access proxies of this cluster.
func (pol Policy) admitProxy(c Caller) error {
	switch {
	case c.Shared:
		return problem.New(problem.ForeignNode, fmt.Sprintf("%s is shared from another tailnet, so it is no access proxy of this cluster.", c.Device.Name),
			"Run the access proxy in the tailnet of the access server.")
	case !c.hasOneOf(pol.Proxies):
		return problem.New(problem.NotAProxy, fmt.Sprintf("%s is not an access proxy of this cluster.", c.Device.Name),
			"Only nodes with a tag in access.proxyTags may send this request.")
	}
	return nil
}

// FirstUse returns the permit of a sign-in that begins because the device c uses the access proxy whose permit p is. The
// decision is that of a login of the device itself, but only rules with onUse count.
func (p Permit) FirstUse(c Caller) (Permit, error) {
	if err := p.Require(SigninFirstUse, p.at); err != nil {
		return Permit{}, err
	}
	login, err := Decide(c, SigninLogin, p.policy, p.at)
	if err != nil {
		return Permit{}, err
	}
	if login.standing != nil {
		return Permit{}, login.standing
	}
	login.grants = slices.DeleteFunc(slices.Clone(login.grants), func(g Grant) bool { return !g.OnUse })
	if len(login.grants) == 0 {
		return Permit{}, problem.New(problem.RoleNotGranted, fmt.Sprintf("No rule of %s lets %s sign in on first use.", p.policy.Capability, c.Identity()), "Run: tka login")
	}
	return login.Choose(Request{})
}

// OnUse reports whether the chosen rule begins sign-ins on first use, and how long such a sign-in lasts without use.
func (p Permit) OnUse() (idle time.Duration, ok bool) { return p.idle, p.idle > 0 }
