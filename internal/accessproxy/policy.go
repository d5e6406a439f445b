package accessproxy

import (
	"fmt"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/policy"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// SetPolicy replaces the rules of the settings; nil: none. Open streams that the new rules refuse are cut.
func (p *Proxy) SetPolicy(rules *policy.Policy) {
	p.prepare()
	p.rules.Store(rules)
	for _, s := range p.streams.list() {
		s.judge(rules)
	}
}

// judge cuts a stream that other rules than those at its start refuse (PX-18).
func (s *stream) judge(rules *policy.Policy) {
	switch v := rules.Judge(s.input); {
	case v.Allowed() && levelOf(v.Record, s.kind()) == policy.Required && s.level != policy.Required:
		s.cut(cut{cutPolicy, "the policy of the access proxy has changed: this session must be recorded now"})
	case !v.Allowed():
		s.cut(cut{cutPolicy, "the policy of the access proxy has changed: " + strings.TrimSuffix(v.Refusal.Message, ".")})
	}
}

// judgeSignin cuts a stream of a kind that the sign-in requires to be recorded now, but did not when the stream began (PX-18).
func (s *stream) judgeSignin(now signin.Signin) {
	if levelOf(recordOf(now.Record), s.kind()) == policy.Required && s.level != policy.Required {
		s.cut(cut{cutPolicy, "the rule of the tailnet policy has changed: this session must be recorded now"})
	}
}

// recordOf returns the recording that a sign-in or a rule of the tailnet policy requires. It is always required.
func recordOf(streams []string) policy.Recording {
	r, err := policy.ParseRecording(streams, true)
	if err != nil { // a newer access server knows another kind of stream: record all of those that this proxy knows
		return policy.Recording{Exec: policy.Required, Attach: policy.Required, PortForward: policy.Required}
	}
	return r
}

// judge applies the rules of the settings (PRX-14).
func (x *exchange) judge() error {
	rules := x.proxy.rules.Load()
	x.rules = rules
	// The stricter of the sign-in, of the rule at this destination, and of the settings counts.
	granted := recordOf(access.MergeRecord(x.signin.Record, x.permit.RecordFor(x.signin.Binds, nil)))
	if rules == nil {
		x.verdict.Record = granted
		return nil
	}
	x.verdict = rules.Judge(x.input())
	x.verdict.Record = x.verdict.Record.Stricter(granted)
	if r := x.verdict.Refusal; r != nil {
		if r.Detail != "" {
			x.proxy.Log.Warn("a rule of the policy failed", "audit", x.id, "rule", r.Rule, "err", r.Detail)
		}
		if r.Kind == policy.ReasonRequired {
			return problem.New(problem.ReasonRequired, r.Message, r.Advice)
		}
		return problem.New(problem.Forbidden, r.Message, slices.DeleteFunc([]string{r.Advice}, func(s string) bool { return s == "" })...)
	}
	for _, w := range x.verdict.Warnings {
		// 299 is the code of warnings that stay (RFC 7234, section 5.5), and the one that Kubernetes uses.
		x.w.Header().Add("Warning", fmt.Sprintf("299 - %q", w.Text))
	}
	return nil
}

// input returns the request as rules see it.
func (x *exchange) input() policy.Input {
	q, s := x.request, x.signin
	in := policy.Input{Caller: policy.Caller{Login: string(x.caller.Login), Device: x.caller.Device.Name, Tags: x.caller.TagNames(),
		Roles: rolesOf(s), Session: x.session.String(), Reason: s.Why}}
	if q.NonResource {
		in.NonResource = policy.NonResource{Path: q.Path, Verb: q.Verb}
	} else {
		in.Resource = policy.Resource{Verb: q.Verb, Group: q.Group, Version: q.Version, Resource: q.Resource, Subresource: q.Subresource, Namespace: q.Namespace, Name: q.Name}
	}
	if users := x.r.Header["Impersonate-User"]; len(users) > 0 {
		in.Impersonate = policy.Impersonate{User: users[0], Groups: x.r.Header["Impersonate-Group"]}
	}
	return in
}

// rolesOf returns the names of the bound roles of a sign-in.
func rolesOf(s signin.Signin) (names []string) {
	for _, b := range s.Bound {
		if !slices.Contains(names, string(b.Role)) {
			names = append(names, string(b.Role))
		}
	}
	return names
}
