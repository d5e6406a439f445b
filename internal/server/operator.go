package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/controller"
)

// policyRecheck is the maximum age of cached roles and admission policies: the operator may read them but not watch them.
const policyRecheck = 30 * time.Second

// runOperator wires and runs the operator of sign-ins. It has no tailnet node.
func runOperator(ctx context.Context, p *process, working func()) error {
	config, err := apiServer(ctx, p.kubeconfig)
	if err != nil {
		return err
	}
	s, policy := p.set.Signin, p.set.AccessPolicy()
	if err := checkRoles(ctx, config, policy.Roles, p.log); err != nil {
		return err
	}
	info, err := operatorInfo(ctx, config, p)
	if err != nil {
		return err
	}
	record, closeRecord, err := p.auditLog.get(ctx, config, p, info)
	if err != nil {
		return err
	}
	p.health.AddCheck("kubernetes", apiServerCheck(config))
	operator := &controller.Controller{
		Config: config, Namespace: s.Namespace, LeaseNamespace: s.SystemNamespace, Log: p.log, Now: time.Now,
		Rules: signin.Rules{
			Roles: policy.Roles, Min: time.Duration(s.Period.Min), Max: time.Duration(s.Period.Max), MaxLife: time.Duration(s.MaxLife),
			KeepExpired: time.Duration(s.KeepExpired), Recheck: policyRecheck, RequireAdmissionPolicy: s.RequireAdmissionPolicy, Reserved: policy.Reserved,
		},
		OnReady: p.metrics.ObserveReady,
		OnEnd:   func(end controller.EndedSignin) { recordEndedSignin(p, record.Write, end) },
		OnSweep: func(kind, namespace, name string) { recordSweep(p, record.Write, kind, namespace, name) },
	}
	if p.role == settings.OperatorRole { // otherwise the access server shows the same
		p.metrics.AddSignins(operator.All)
	}
	working() // a replica that waits for the election is ready
	return errors.Join(operator.Run(ctx), closeRecord())
}

// operatorInfo returns the identity of the cluster for the audit logs of the operator and the plane. Their settings need not name the
// cluster; then its id is its name.
func operatorInfo(ctx context.Context, config *rest.Config, p *process) (signin.ClusterInfo, error) {
	if p.role != settings.OperatorRole && p.role != settings.PlaneRole {
		return clusterInfo(ctx, config, p)
	}
	id := p.set.Cluster.ID
	if id == "" {
		var err error
		if id, err = kube.ClusterUID(ctx, config); err != nil {
			return signin.ClusterInfo{}, fmt.Errorf("find the cluster's id for the audit log: %w; alternatively set cluster.id", err)
		}
	}
	return signin.ClusterInfo{Name: cmp.Or(p.set.Cluster.Name, id), ID: id, Version: version()}, nil
}
