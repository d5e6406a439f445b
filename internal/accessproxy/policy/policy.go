// Package policy decides what the access proxy's settings allow: rules in CEL (https://cel.dev) that refuse a request,
// require a reason, require a recording or warn. Every rule is compiled and bounded before the first request, and a
// request that a rule cannot judge is refused.
//
// The package has no I/O and no clock. It is separate from the proxy so that only one package depends on CEL.
// docs/access-proxy-policy.md is its reference for people.
package policy

import (
	"fmt"
	"slices"

	"cel.dev/cel-go/cel"
	"cel.dev/cel-go/common/types"
	"cel.dev/cel-go/interpreter"
)

// Limits of the rules. They bound the work of [Compile] for text of any content, and, with the limits of the variables,
// the work of [Policy.Judge] for any request.
const (
	MaxRules      = 100      // rules of a policy
	MaxExpression = 4 << 10  // bytes of one expression
	MaxPolicy     = 32 << 10 // bytes of all expressions
	MaxText       = 500      // bytes of a message or a warning
	MaxCost       = 5000     // highest cost of one evaluation, in CEL's units: about one for each step and for ten bytes of text
)

// A Rule is an entry of policy.rules in the settings file of the access proxy. It has a name, a condition and at least
// one effect. A rule with deny has no other effect.
//
// All fields have unnamed types, so a struct of the same fields with other tags converts to a Rule.
type Rule struct {
	Name          string   `yaml:"name" json:"name"`                                       // DNS label, unique; refusals and audit entries contain it
	When          string   `yaml:"when" json:"when"`                                       // CEL expression of type bool, at most MaxExpression bytes
	Deny          string   `yaml:"deny,omitempty" json:"deny,omitempty"`                   // refuses the request with this message: one line, at most MaxText bytes
	RequireReason bool     `yaml:"requireReason,omitempty" json:"requireReason,omitempty"` // refuses the request of a sign-in without a reason
	Record        []string `yaml:"record,omitempty" json:"record,omitempty"`               // streams to record: exec, attach, portForward
	Required      *bool    `yaml:"required,omitempty" json:"required,omitempty"`           // only with record; nil is true: a stream that cannot be recorded is refused
	Warn          string   `yaml:"warn,omitempty" json:"warn,omitempty"`                   // text of a Warning header: one line, at most MaxText bytes
}

// A Policy is a set of compiled rules. [Compile] makes it, and it never changes. The nil Policy has no rules. Its methods
// may be called concurrently.
type Policy struct {
	rules []compiled
}

type compiled struct {
	Rule
	program cel.Program
	record  Recording
}

// Enforces reports whether a rule refuses requests, requires a reason or records streams. Such a policy is only as strong
// as the access that passes the proxy by.
func (p *Policy) Enforces() bool {
	return p != nil && slices.ContainsFunc(p.rules, func(r compiled) bool { return r.Deny != "" || r.RequireReason || !r.record.IsZero() })
}

// RequiresRecording reports whether a rule refuses streams that cannot be recorded.
func (p *Policy) RequiresRecording() bool {
	return p != nil && slices.ContainsFunc(p.rules, func(r compiled) bool {
		return max(r.record.Exec, r.record.Attach, r.record.PortForward) == Required
	})
}

// Judge applies the rules to a request, in the order of the settings file. The first refusal ends it: a rule with deny that
// matches, a rule with requireReason that matches a sign-in without a reason, or a rule whose evaluation fails. A policy
// with rules also refuses a request with a value that exceeds the limit of its variable, because the cost of the rules is
// bounded for smaller values only.
func (p *Policy) Judge(in Input) (v Verdict) {
	if p == nil || len(p.rules) == 0 {
		return Verdict{}
	}
	if excess := in.excess(); excess != "" {
		return v.refuse(Refusal{Kind: TooLarge, Message: "The policy does not judge this request: " + excess + ".", Advice: "Send a request with smaller values."})
	}
	// One frame serves all rules: taking a frame for each one is half of the time of a simple rule.
	frame, err := interpreter.NewExecutionFrame(&activation{input: &in})
	if err != nil {
		return v.refuse(failed("", err))
	}
	defer frame.Close()
	for i := range p.rules {
		r := &p.rules[i]
		matches, err := r.matches(frame)
		switch {
		case err != nil:
			return v.refuse(failed(r.Name, err))
		case !matches:
			continue
		}
		v.Matched = append(v.Matched, r.Name)
		switch {
		case r.Deny != "":
			return v.refuse(Refusal{Rule: r.Name, Kind: Denied, Message: r.Deny})
		case r.RequireReason && in.Caller.Reason == "":
			return v.refuse(Refusal{
				Rule: r.Name, Kind: ReasonRequired,
				Message: fmt.Sprintf("The rule %q of the access proxy's policy requires a reason.", r.Name),
				Advice:  `Sign in again with a reason: tka login --reason "why"`,
			})
		}
		v.Record = v.Record.Stricter(r.record)
		if r.Warn != "" {
			v.Warnings = append(v.Warnings, Warning{r.Name, r.Warn})
		}
	}
	return v
}

func failed(rule string, err error) Refusal {
	return Refusal{
		Rule: rule, Kind: Failed, Detail: clip(err.Error()),
		Message: fmt.Sprintf("The rule %q of the access proxy's policy failed for this request.", rule),
		Advice:  "Ask an administrator of the cluster to correct the rule.",
	}
}

func (r *compiled) matches(frame *interpreter.ExecutionFrame) (bool, error) {
	out, _, err := r.program.Eval(frame)
	if err != nil {
		return false, err
	}
	b, ok := out.(types.Bool)
	if !ok {
		return false, fmt.Errorf("the result is %s, not bool", out.Type().TypeName())
	}
	return bool(b), nil
}
