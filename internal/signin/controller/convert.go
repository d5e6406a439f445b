// Package controller stores sign-ins in a Kubernetes cluster. It contains the store of the access
// server, and the operator that executes the steps of signin.Next. It enforces law 9: everything is
// derived from stored objects, so the process may be killed between any two writes.
package controller

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/sanitize"
)

// signinOf converts o to a signin.Signin.
func signinOf(o *v1alpha1.TkaSignin) signin.Signin {
	s := signin.Signin{
		Name: o.Name, UID: string(o.UID), Version: o.ResourceVersion, Generation: o.Generation,
		Owner: signin.Owner{Login: o.Spec.User.Login, UserID: o.Spec.User.ID, DisplayName: o.Spec.User.DisplayName,
			DeviceID: o.Spec.Device.ID, DeviceName: o.Spec.Device.Name, Tailnet: o.Spec.Device.Tailnet,
			Session: signin.Session(o.Spec.Session)},
		Binds:  bindsOf(o),
		Rule:   o.Spec.Rule,
		Record: access.MergeRecord(o.Spec.Record, nil),
		Why:    o.Spec.Reason,
		Period: o.Spec.Period.Duration, AskedAt: o.Spec.AskedAt.Time,
		Created: o.CreationTimestamp.Time, Deleting: o.DeletionTimestamp != nil,
		Report: signin.Report{Phase: signin.Phase(o.Status.Phase), Bound: boundOf(o.Status),
			MissingNamespaces: slices.Clone(o.Status.MissingNamespaces), ObservedGeneration: o.Status.ObservedGeneration},
	}
	if ref := o.Spec.Request; ref != nil {
		s.ByRequest = signin.RequestRef(*ref)
	}
	if s.OnUse = o.Spec.OnUse; o.Spec.Idle != nil {
		s.Idle = o.Spec.Idle.Duration
	}
	if o.Spec.UsedAt != nil {
		s.UsedAt = o.Spec.UsedAt.Time
	}
	if s.EndAsked = o.Annotations[v1alpha1.EndRequestedAnnotation]; s.Deleting {
		s.DeletedAt = o.DeletionTimestamp.Time
	}
	if t := o.Spec.OIDC; t != nil {
		s.Owner.Issuer, s.Owner.Subject, s.Audience, s.Claims = t.Issuer, t.Subject, t.Audience, map[string]string{}
		for name, value := range t.Claims {
			s.Claims[name] = string(value)
		}
	}
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); c != nil {
		s.Reason, s.Message = c.Reason, c.Message
	}
	if o.Status.ValidUntil != nil {
		s.ValidUntil = o.Status.ValidUntil.Time
	}
	if sa := o.Status.ServiceAccount; sa != nil {
		s.ServiceAccount, s.ServiceAccountUID = sa.Name, string(sa.UID)
	}
	return s
}

// bindsOf returns the requested roles of o.
func bindsOf(o *v1alpha1.TkaSignin) (binds access.Binds) {
	if len(o.Spec.Bind) == 0 {
		return access.Binds{{Role: access.Role(o.Spec.Role), Namespaces: slices.Sorted(slices.Values(o.Spec.Namespaces))}}
	}
	return bindsOfList(o.Spec.Bind)
}

func bindsOfList(list []v1alpha1.SigninBind) (binds access.Binds) {
	for _, b := range list {
		binds = append(binds, access.Bind{Role: access.Role(b.Role), Namespaces: slices.Sorted(slices.Values(b.Namespaces)), Selector: access.Selector(b.NamespaceSelector)})
	}
	return binds
}

// boundOf returns the bound roles in a status.
func boundOf(st v1alpha1.TkaSigninStatus) (bound access.Binds) {
	if len(st.Bind) == 0 && st.Role != "" {
		return access.Binds{{Role: access.Role(st.Role), Namespaces: slices.Clone(st.Namespaces)}}
	}
	for _, b := range st.Bind {
		bound = append(bound, access.Bind{Role: access.Role(b.Role), Namespaces: slices.Clone(b.Namespaces)})
	}
	return bound
}

// roleSummary returns spec.role of a sign-in with spec.bind. It is for people. It is never the name
// of a role, so that an operator that does not know spec.bind refuses the sign-in.
func roleSummary(binds access.Binds) string {
	names := make([]string, len(binds))
	for i, b := range binds {
		if names[i] = string(b.Role); !b.IsClusterWide() {
			names[i] += " (in namespaces)"
		}
	}
	text := strings.Join(names, ", ")
	if len(text) > maxRoleSummary {
		text = fmt.Sprintf("%s and %d further roles", binds[0].Role, len(binds)-1)
	}
	return text
}

// maxRoleSummary is the maximum length of spec.role in bytes.
const maxRoleSummary = 253

// expiredAt returns when the expiry of o was recorded, or the zero time.
func expiredAt(o *v1alpha1.TkaSignin) time.Time {
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionExpired); c != nil && c.Status == metav1.ConditionTrue {
		return c.LastTransitionTime.Time
	}
	return time.Time{}
}

// objectOf returns the new object for a sign-in. It has the finalizer from the start.
func objectOf(s signin.Signin, namespace string) *v1alpha1.TkaSignin {
	o := &v1alpha1.TkaSignin{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: s.Name,
			Labels:     map[string]string{v1alpha1.ManagedByLabel: v1alpha1.ManagedBy},
			Finalizers: []string{v1alpha1.SigninFinalizer},
		},
		Spec: v1alpha1.TkaSigninSpec{
			User:    v1alpha1.SigninUser{Login: s.Owner.Login, ID: s.Owner.UserID, DisplayName: sanitize.DisplayName(s.Owner.DisplayName)},
			Device:  v1alpha1.SigninDevice{ID: s.Owner.DeviceID, Name: sanitize.DisplayName(s.Owner.DeviceName), Tailnet: s.Owner.Tailnet},
			Session: string(s.Owner.Session),
			Rule:    s.Rule,
			Record:  s.Record,
			Reason:  s.Why,
			Period:  metav1.Duration{Duration: s.Period},
			AskedAt: metav1.NewTime(s.AskedAt),
		},
	}
	if s.OnUse {
		o.Spec.OnUse, o.Spec.Idle, o.Spec.UsedAt = true, &metav1.Duration{Duration: s.Idle}, new(metav1.NewTime(s.UsedAt))
	}
	if s.ByRequest.Name != "" {
		o.Spec.Request = new(v1alpha1.SigninRequest(s.ByRequest))
	}
	o.Spec.OIDC = tokenOf(s)
	if s.Binds.IsSimple() {
		o.Spec.Role, o.Spec.Namespaces = string(s.Binds[0].Role), s.Binds[0].Namespaces
		return o
	}
	o.Spec.Role = roleSummary(s.Binds)
	for _, b := range s.Binds {
		o.Spec.Bind = append(o.Spec.Bind, v1alpha1.SigninBind{Role: string(b.Role), Namespaces: b.Namespaces, NamespaceSelector: string(b.Selector)})
	}
	return o
}

// tokenOf returns the token of s, or nil.
func tokenOf(s signin.Signin) *v1alpha1.SigninToken {
	if s.Owner.Issuer == "" {
		return nil
	}
	t := &v1alpha1.SigninToken{Issuer: s.Owner.Issuer, Subject: s.Owner.Subject, Audience: s.Audience, Claims: map[string]v1alpha1.SigninClaim{}}
	for name, value := range s.Claims {
		t.Claims[name] = v1alpha1.SigninClaim(value)
	}
	return t
}

// statusOf converts r to a status. Conditions that do not change keep their transition times from
// old.
func statusOf(r signin.Report, old []metav1.Condition, now time.Time) v1alpha1.TkaSigninStatus {
	st := v1alpha1.TkaSigninStatus{
		ObservedGeneration: r.ObservedGeneration, Phase: v1alpha1.SigninPhase(r.Phase), Role: string(r.Bound.Role()),
		Namespaces: r.Bound.Namespaces(), MissingNamespaces: r.MissingNamespaces,
		Conditions: slices.Clone(old),
	}
	if len(r.Bound) > 1 {
		for _, b := range r.Bound {
			st.Bind = append(st.Bind, v1alpha1.SigninBound{Role: string(b.Role), Namespaces: b.Namespaces})
		}
	}
	if !r.ValidUntil.IsZero() {
		st.ValidUntil = new(metav1.NewTime(r.ValidUntil))
	}
	if r.ServiceAccountUID != "" {
		st.ServiceAccount = &v1alpha1.SigninAccount{Name: r.ServiceAccount, UID: types.UID(r.ServiceAccountUID)}
	}
	set := func(kind string, is bool, reason string) {
		conditions.Set(&st.Conditions, kind, conditions.Of(is, reason, r.Message), r.ObservedGeneration, now)
	}
	bound := r.Reason
	if len(r.Bound) > 0 {
		bound = signin.ReasonProvisioned
	}
	set(v1alpha1.ConditionReady, r.Phase == signin.PhaseReady, r.Reason)
	set(v1alpha1.ConditionProvisioned, len(r.Bound) > 0, bound)
	set(v1alpha1.ConditionExpired, r.Phase == signin.PhaseExpired, r.Reason)
	return st
}
