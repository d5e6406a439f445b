package main

import (
	"context"
	"time"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/signinkube"
)

// policyRecheck is how old an answer about roles and admission policies may be:
// the operator may read them, not watch them.
const policyRecheck = 30 * time.Second

// runOperator wires the operator of sign-ins. It has no tailnet.
func runOperator(ctx context.Context, p *process, working func()) error {
	config, err := kube.Config(p.kubeconfig)
	if err != nil {
		return err
	}
	if err := kube.Reach(ctx, config, startLimit); err != nil {
		return err
	}
	s, policy := p.set.Signin, p.set.AccessPolicy()
	if err := checkRoles(ctx, config, policy.Roles, p.log); err != nil {
		return err
	}
	p.health.Check("kubernetes", reachable(config))
	operator := &signinkube.Operator{
		Config: config, Namespace: s.Namespace, LeaseNamespace: s.SystemNamespace, Log: p.log, Now: time.Now,
		Rules: signin.Rules{
			Roles: policy.Roles, Min: time.Duration(s.Period.Min), Max: time.Duration(s.Period.Max), MaxLife: time.Duration(s.MaxLife),
			KeepExpired: time.Duration(s.KeepExpired), Recheck: policyRecheck, RequireAdmissionPolicy: s.RequireAdmissionPolicy, Reserved: policy.Reserved,
		},
	}
	working() // one that waits to be elected is as ready as it can be
	return operator.Run(ctx)
}
