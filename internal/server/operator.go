package server

import (
	"context"
	"fmt"
	"slices"
	"time"

	authorizationv1 "k8s.io/api/authorization/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"github.com/tailplane/tailplane/internal/settings"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/signin/controller"
)

// policyRecheck is the maximum age of cached roles and admission policies: the operator may read them but not watch them.
const policyRecheck = 30 * time.Second

// runOperator wires and runs the operator of sign-ins. It has no tailnet node.
func runOperator(ctx context.Context, p *process, working func()) error {
	s, policy := p.set.Signin, p.set.AccessPolicy()
	operator := &controller.Controller{
		Config: p.config, Namespace: s.Namespace, LeaseNamespace: s.SystemNamespace, Log: p.log, Now: time.Now,
		Rules: signin.Rules{
			Roles: policy.Roles, Min: time.Duration(s.Period.Min), Max: time.Duration(s.Period.Max), MaxLife: time.Duration(s.MaxLife),
			KeepExpired: time.Duration(s.KeepExpired), Recheck: policyRecheck, RequireAdmissionPolicy: s.RequireAdmissionPolicy, Reserved: policy.Reserved,
			ClusterWide: clusterWide(s), Requests: signin.RequestRules{RequestPolicy: policy.Requests, Keep: time.Duration(p.set.Requests.Keep)},
		},
		OnReady: p.countReadySignin,
		OnEnd:   p.recordEndedSignin,
		OnSweep: p.recordSweep,
	}
	if p.role == settings.OperatorRole { // otherwise the access server shows the same
		p.metrics.AddSignins(operator.All)
	}
	working() // a replica that waits for the election is ready
	return operator.Run(ctx)
}

// countReadySignin counts a new sign-in that is ready.
func (p *process) countReadySignin(ready controller.ReadySignin) {
	p.metrics.ObserveReady(ready.Waited)
	for _, r := range ready.Roles {
		p.metrics.CountStarted(r, slices.Contains(ready.Privileged, r))
	}
}

// checkRoles checks for each configured role whether it exists and whether this account may bind it, so that a mistake shows at the start
// and not at the first sign-in. It returns an error when the account may bind none of them.
func (p *process) checkRoles(ctx context.Context) error {
	k, err := kubernetes.NewForConfig(p.config)
	if err != nil {
		return err
	}
	roles, bindable := p.set.AccessPolicy().Roles, 0
	for _, r := range roles {
		review := &authorizationv1.SelfSubjectAccessReview{Spec: authorizationv1.SelfSubjectAccessReviewSpec{
			ResourceAttributes: &authorizationv1.ResourceAttributes{Group: "rbac.authorization.k8s.io", Resource: "clusterroles", Verb: "bind", Name: string(r)},
		}}
		review, err := k.AuthorizationV1().SelfSubjectAccessReviews().Create(ctx, review, metav1.CreateOptions{})
		if err != nil {
			return fmt.Errorf("check whether this account may bind the role %s: %w", r, err)
		}
		if !review.Status.Allowed {
			p.log.Error("a role of signin.roles cannot be granted: this account lacks the right to bind it", "role", r)
			continue
		}
		bindable++
		if _, err := k.RbacV1().ClusterRoles().Get(ctx, string(r), metav1.GetOptions{}); apierrors.IsNotFound(err) {
			p.log.Warn("a role of signin.roles does not exist in the cluster", "role", r)
		} else if err != nil {
			p.log.Warn("reading a role of signin.roles failed", "role", r, "err", err)
		}
	}
	if bindable == 0 {
		return fmt.Errorf("this account may bind none of the roles of signin.roles (%v): grant it the verb bind on those ClusterRoles, by name", roles)
	}
	return nil
}

// warnAboutRoles logs the configured roles that reach every ServiceAccount when they are bound in the whole cluster.
func (p *process) warnAboutRoles(ctx context.Context) {
	k, err := kubernetes.NewForConfig(p.config)
	if err != nil {
		p.log.Warn("checking the rules of signin.roles failed", "err", err)
		return
	}
	allowed := clusterWide(p.set.Signin)
	for _, r := range p.set.AccessPolicy().Roles {
		role, err := k.RbacV1().ClusterRoles().Get(ctx, string(r), metav1.GetOptions{})
		if apierrors.IsNotFound(err) { // checkRoles logs it
			continue
		}
		if err != nil {
			p.log.Warn("checking the rules of a role of signin.roles failed", "role", r, "err", err)
			continue
		}
		reaches := signin.ReachesAccounts(controller.RoleRules(role))
		if warning := allowed.Warning(r, reaches); warning != "" {
			p.log.Warn(warning, "role", r)
		}
		if refusal := allowed.Refusal(r, reaches, false); refusal != "" {
			p.log.Info("a role of signin.roles is bound only in namespaces", "role", r, "reason", refusal)
		}
	}
}
