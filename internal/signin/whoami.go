package signin

import (
	"context"
	"errors"
	"fmt"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
)

// A WhoamiRequest has no parameters.
type WhoamiRequest struct{}

// Whoami shows how the server sees a caller and how it decides. It contains only the caller's data.
type Whoami struct {
	Caller   CallerIdentity `json:"caller"`
	Rules    []Rule         `json:"rules" null:"never" doc:"the matching rules of the tailnet policy, in its order"`
	Decision Decision       `json:"decision" doc:"the result of a login without parameters"`
	Signin   *Status        `json:"signin" doc:"the sign-in of this device; null: there is none"`
	AuditID  string         `json:"auditId"`
}

// CallerIdentity is the caller's identity as the tailnet reports it.
type CallerIdentity struct {
	Login   string     `json:"login" doc:"the full login; empty for a tagged node"`
	Node    string     `json:"node"`
	NodeID  string     `json:"nodeId" doc:"does not change when the device is renamed"`
	Tags    []string   `json:"tags" null:"never"`
	Tailnet string     `json:"tailnet"`
	Via     access.Via `json:"via" enum:"tailnet"`
}

// A Rule is one matching rule, as far as it could be parsed.
type Rule struct {
	Role       string           `json:"role"`
	Period     httpapi.Duration `json:"period,omitzero"`
	Priority   int              `json:"priority"`
	Namespaces []string         `json:"namespaces" null:"never" doc:"where the rule applies; none: the whole cluster"`
	Chosen     bool             `json:"chosen" doc:"a login without parameters uses this rule"`
	Problem    string           `json:"problem" doc:"why the rule cannot be used; empty if it can"`
}

// A Decision is the result of a login without parameters.
type Decision struct {
	Allowed bool             `json:"allowed"`
	Code    problem.Code     `json:"code" doc:"code of the refusal; empty if allowed"`
	Message string           `json:"message"`
	Advice  []string         `json:"advice" null:"never"`
	Choices []problem.Choice `json:"choices,omitempty" doc:"if several rules match and the server cannot choose one"`
}

// AuditObject returns the name of the sign-in for the audit log.
func (w Whoami) AuditObject() string {
	if w.Signin == nil {
		return ""
	}
	return w.Signin.Name
}

// WithAuditID returns w with the audit ID of the request.
func (w Whoami) WithAuditID(id string) any {
	w.AuditID = id
	return w
}

func (d *Service) whoami(ctx context.Context, p access.Permit, _ WhoamiRequest) (Whoami, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.Require(access.Whoami, d.Now()); err != nil {
		return Whoami{}, err
	}
	c := p.Caller()
	w := Whoami{
		Caller: CallerIdentity{Login: string(c.Login), Node: c.Device.Name, NodeID: c.Device.ID, Tags: []string{}, Tailnet: c.Tailnet, Via: c.Via},
		Rules:  []Rule{},
	}
	for _, t := range c.Tags {
		w.Caller.Tags = append(w.Caller.Tags, string(t))
	}
	e := p.Explain()
	for _, r := range e.Rules {
		w.Rules = append(w.Rules, Rule{Role: string(r.Role), Period: httpapi.Duration(r.Period), Priority: r.Priority,
			Namespaces: append([]string{}, r.Namespaces...), Chosen: r.Chosen, Problem: r.Problem})
	}
	w.Decision = decisionOf(e)
	switch s, there, err := d.findSignin(ctx, p); {
	case err != nil:
		return Whoami{}, err
	case there:
		w.Signin = new(d.status(s))
	}
	return w, nil
}

func decisionOf(e access.Explanation) Decision {
	if refused := problem.From(e.Refused); refused != nil {
		return Decision{Code: refused.Code, Message: refused.Message, Advice: append([]string{}, refused.Advice...), Choices: refused.Choices}
	}
	where := "in the whole cluster"
	if ns := e.Permit.Namespaces(); len(ns) > 0 {
		where = "in " + strings.Join(ns, ", ")
	}
	return Decision{Allowed: true, Advice: []string{}, Message: fmt.Sprintf("A login gives the role %q for %v %s.", e.Permit.Role(), httpapi.Duration(e.Permit.Period()), where)}
}

// findSignin returns the caller's sign-in from the cache. For a caller with a grant it also queries the
// API server, because the cache may lag behind a login. A caller without a grant causes no call to
// the API server.
func (d *Service) findSignin(ctx context.Context, p access.Permit) (Signin, bool, error) {
	name := OwnerOf(p.Caller()).Name()
	if s, there := d.Store.GetCached(name); there || p.OwnerOnly() != nil {
		return s, there, nil
	}
	s, err := d.Store.Get(ctx, name)
	if err != nil && !errors.Is(err, ErrNotFound) {
		return Signin{}, false, unavailable(err)
	}
	return s, err == nil, nil
}
