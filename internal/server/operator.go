package server

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/controller"
)

// policyRecheck is the maximum age of cached roles and admission policies: the operator may read them but not watch them.
const policyRecheck = 30 * time.Second

// runOperator wires and runs the operator of sign-ins. It has no tailnet node.
func runOperator(ctx context.Context, p *process, working func()) error {
	config, err := apiServer(ctx, p.Kubeconfig)
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

// checkRoles checks for each configured role whether it exists and whether this account may bind it, so that a mistake shows at the start
// and not at the first sign-in. It returns an error when the account may bind none of them.
func checkRoles(ctx context.Context, config *rest.Config, roles []access.Role, log *slog.Logger) error {
	k, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	bindable := 0
	for _, r := range roles {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Verb: "bind", Name: string(r)},
		}}
		review, err := k.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("check whether this account may bind the role %s: %w", r, err)
		}
		if !review.Status.Allowed {
			log.Error("a role of signin.roles cannot be granted: this account lacks the right to bind it", "role", r)
			continue
		}
		bindable++
		if _, err := k.RbacV1().ClusterRoles().Get(ctx, string(r), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			log.Warn("a role of signin.roles does not exist in the cluster", "role", r)
		} else if err != nil {
			log.Warn("reading a role of signin.roles failed", "role", r, "err", err)
		}
	}
	if bindable == 0 {
		return fmt.Errorf("this account may bind none of the roles of signin.roles (%v): grant it the verb bind on those ClusterRoles, by name", roles)
	}
	return nil
}
