package main

import (
	"context"
	"log/slog"
	"time"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/signinkube"
)

// policyRecheck is how old an answer about roles and admission policies may be:
// the operator may read them, not watch them.
const policyRecheck = 30 * time.Second

// runOperator wires the operator of sign-ins. It has no tailnet.
func runOperator(ctx context.Context, f flags, set settings.File, log *slog.Logger) error {
	config, err := kube.Config(f.kubeconfig)
	if err != nil {
		return err
	}
	if err := kube.Reach(ctx, config, startLimit); err != nil {
		return err
	}
	s := set.Signin
	operator := &signinkube.Operator{
		Config: config, Namespace: s.Namespace, LeaseNamespace: s.SystemNamespace, Log: log, Now: time.Now,
		Rules: signin.Rules{
			Roles: set.AccessPolicy().Roles, Min: time.Duration(s.Period.Min), Max: time.Duration(s.Period.Max), MaxLife: time.Duration(s.MaxLife),
			KeepExpired: time.Duration(s.KeepExpired), Recheck: policyRecheck, RequireAdmissionPolicy: s.RequireAdmissionPolicy, Reserved: set.AccessPolicy().Reserved,
		},
	}
	return operator.Run(ctx)
}
