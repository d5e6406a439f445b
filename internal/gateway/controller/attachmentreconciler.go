package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

// The attachmentReconciler applies the decisions about Gateways. It makes Envoy Gateway translate
// again after a change, and it writes the status of TailscaleGateways and policies. It follows law
// 7: a status describes the actual state, not the requested one, and nothing is written unless a
// field of Tailplane differs.

// TranslationTimeout is the default time within which Envoy Gateway must request a change.
const TranslationTimeout = time.Minute

const (
	attachmentWorkers     = 4
	attachmentRequeueSoon = 200 * time.Millisecond // for a change that another process is about to make
)

// An attachmentReconciler applies the decisions of the Publisher. Fields are required unless documented
// otherwise.
type attachmentReconciler struct {
	*Runner
	TranslationTimeout time.Duration // optional: replaces the constant TranslationTimeout
	client             client.Client

	mu      sync.Mutex
	written map[types.UID]writtenPolicy // last written policy statuses
}

// Add registers the controllers with the manager's leader.
func (c *attachmentReconciler) Add(mgr manager.Manager) error {
	c.client, c.written = mgr.GetClient(), map[types.UID]writtenPolicy{}
	options := controller.Options{MaxConcurrentReconciles: attachmentWorkers, SkipNameValidation: new(true)}
	return errors.Join(
		builder.ControllerManagedBy(mgr).Named("tailscalegateway").
			For(&v1alpha1.TailscaleGateway{}).Owns(&v1alpha1.TailscaleRoutePolicy{}).Owns(&v1alpha1.TailscaleService{}).
			WatchesRawSource(c.Publisher.Changes(func(was, is *gateway.Result) []gateway.Name {
				if was == is { // a fault affects all attachments
					return slices.Collect(maps.Keys(is.Attachments))
				}
				return changedNames(was.Attachments, is.Attachments)
			})).
			WithOptions(options).Complete(reconcile.Func(c.reconcileAttachment)),
		builder.ControllerManagedBy(mgr).Named("tailscaleroutepolicy").
			For(&v1alpha1.TailscaleRoutePolicy{}).
			WatchesRawSource(c.Publisher.Changes(func(was, is *gateway.Result) []gateway.Name { return changedNames(was.Policies, is.Policies) })).
			WithOptions(options).Complete(reconcile.Func(c.reconcilePolicy)),
		builder.ControllerManagedBy(mgr).Named("gateway").
			Watches(&v1alpha1.TailscaleRoutePolicy{}, handler.EnqueueRequestsFromMapFunc(bareGatewayOf)).
			WatchesRawSource(c.Publisher.Changes(func(was, is *gateway.Result) []gateway.Name {
				before, now := was.Snapshot.Gateways, is.Snapshot.Gateways
				return append(removedNames(before, now), changedNames(before, now)...)
			})).
			WithOptions(options).Complete(reconcile.Func(c.reconcileBareGateway)),
	)
}

// requeueIfStale requeues soon if the object was stale, and otherwise returns the error.
func requeueIfStale(err error) (reconcile.Result, error) {
	if kube.IsStale(err) {
		return reconcile.Result{RequeueAfter: attachmentRequeueSoon}, nil
	}
	return reconcile.Result{}, err
}

// writtenPolicy is the last written status of a policy. Envoy Gateway erases the status when it writes
// its own part, including the transition times.
type writtenPolicy struct {
	name       types.NamespacedName
	generation int64
	conditions []metav1.Condition
	at         time.Time
}

// reconcilePolicy writes the status of a policy.
func (c *attachmentReconciler) reconcilePolicy(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var p v1alpha1.TailscaleRoutePolicy
	err := c.client.Get(ctx, req.NamespacedName, &p)
	if apierrors.IsNotFound(err) {
		c.forgetPolicy(req.NamespacedName)
	}
	if err != nil || p.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err)
	}
	result := c.Publisher.Result()
	if result == nil {
		return reconcile.Result{}, nil
	}
	report, decided := result.Policies[gateway.Name(req.NamespacedName)]
	if !decided || !c.Publisher.Includes(&p) {
		return reconcile.Result{RequeueAfter: attachmentRequeueSoon}, nil // the last decision does not include this generation
	}
	c.mu.Lock()
	last, previous := c.written[p.UID]
	c.mu.Unlock()
	now := c.Now()
	before := p.Status.Conditions
	if previous {
		before = slices.Concat(before, last.conditions) // if a type occurs twice, the first one counts
	}
	latest := conditionsOf(p.Generation, now, before, reportConditions(report.Accepted, report.ResolvedRefs, report.Programmed))
	if p.Status.ObservedGeneration == p.Generation && equalLists(p.Status.Rules, report.Rules) &&
		equalLists(ownConditions(p.Status.Conditions), latest) {
		return reconcile.Result{}, nil
	}
	if wait := attachmentRequeueSoon - now.Sub(last.at); previous && wait > 0 && wait <= attachmentRequeueSoon {
		return reconcile.Result{RequeueAfter: wait}, nil // limit the rate of rewrites if another party also writes the status
	}
	status := v1alpha1.TailscaleRoutePolicyStatus{ObservedGeneration: p.Generation, Rules: report.Rules, Conditions: latest}
	if err := applyStatus(ctx, c.client, v1alpha1.FieldManager, "TailscaleRoutePolicy", &p, &status); err != nil {
		return requeueIfStale(fmt.Errorf("write the status of the policy %s: %w", req, err))
	}
	if previous && last.generation == p.Generation && len(p.Status.Conditions) == 0 && c.OnRestore != nil {
		c.OnRestore()
	}
	c.mu.Lock()
	c.written[p.UID] = writtenPolicy{req.NamespacedName, p.Generation, latest, now}
	c.mu.Unlock()
	return reconcile.Result{}, nil
}

func (c *attachmentReconciler) forgetPolicy(at types.NamespacedName) {
	c.mu.Lock()
	defer c.mu.Unlock()
	maps.DeleteFunc(c.written, func(_ types.UID, w writtenPolicy) bool { return w.name == at })
}

func equalLists[T any](a, b []T) bool {
	return len(a) == 0 && len(b) == 0 || deepEqual(a, b)
}

// ownConditions returns the conditions of the types that Tailplane writes.
func ownConditions(all []metav1.Condition) (out []metav1.Condition) {
	for _, c := range all {
		switch c.Type {
		case v1alpha1.ConditionAccepted,
			v1alpha1.ConditionResolvedRefs,
			v1alpha1.ConditionProgrammed,
			v1alpha1.ConditionReady,
			v1alpha1.ConditionDegraded:
			out = append(out, c)
		}
	}
	slices.SortStableFunc(out, func(a, b metav1.Condition) int { return cmp.Compare(a.Type, b.Type) })
	return out
}

// reportConditions returns the conditions of a decision and the summary Ready.
func reportConditions(accepted, resolved, programmed conditions.Condition) map[string]conditions.Condition {
	all := map[string]conditions.Condition{
		v1alpha1.ConditionAccepted:     accepted,
		v1alpha1.ConditionResolvedRefs: resolved,
		v1alpha1.ConditionProgrammed:   programmed,
	}
	all[v1alpha1.ConditionReady] = firstFailing(accepted, resolved, programmed, conditions.True(v1alpha1.ReasonReady, ""))
	return all
}

// firstFailing returns the first condition that is not true, or the last one.
func firstFailing(all ...conditions.Condition) conditions.Condition {
	for _, c := range all {
		if !c.IsTrue() {
			return c
		}
	}
	return all[len(all)-1]
}

// conditionsOf returns the conditions for a status. Their transition times stay if the conditions before have the same
// status.
func conditionsOf(generation int64, now time.Time, before []metav1.Condition, decided map[string]conditions.Condition) []metav1.Condition {
	var all []metav1.Condition
	for kind, v := range decided {
		if was := meta.FindStatusCondition(before, kind); was != nil {
			all = append(all, *was)
		}
		if v.IsZero() {
			v = conditions.False(v1alpha1.ReasonPending, "")
		}
		conditions.Set(&all, kind, v, generation, now)
	}
	return ownConditions(all)
}

// attachmentConflictRequeue is the interval for checking whether a conflicting name is free.
const attachmentConflictRequeue = 10 * time.Second

// maxRoutedServices is the maximum number of services in a status.
const maxRoutedServices = 100

// reconcileAttachment applies the decision about a TailscaleGateway and writes its status.
func (c *attachmentReconciler) reconcileAttachment(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var a v1alpha1.TailscaleGateway
	if err := c.client.Get(ctx, req.NamespacedName, &a); err != nil || a.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // garbage collection deletes the objects that it owns
	}
	result := c.Publisher.Result()
	if result == nil {
		return reconcile.Result{}, nil
	}
	report, decided := result.Attachments[gateway.Name(req.NamespacedName)]
	if !decided || !c.Publisher.Includes(&a) {
		return reconcile.Result{RequeueAfter: attachmentRequeueSoon}, nil
	}
	now := c.Now()
	var wake time.Duration
	status := v1alpha1.TailscaleGatewayStatus{
		ObservedGeneration: a.Generation,
		TailnetCount:       int32(report.TailnetCount),
		ServiceCount:       int32(len(report.Routed)),
		Services:           report.Routed[:min(len(report.Routed), maxRoutedServices)],
		Revision:           a.Status.Revision,
	}
	programmed := report.Programmed
	var failed error
	g := result.Snapshot.Gateways[gateway.Name{Namespace: a.Namespace, Name: a.Spec.TargetRef.Name}]
	if report.Accepted.IsTrue() && g != nil && g.Attachment == gateway.Name(req.NamespacedName) {
		p, taken, later, err := c.ensureRevision(ctx, g, *metav1.NewControllerRef(&a, v1alpha1.GroupVersion.WithKind("TailscaleGateway")))
		failed = err
		if p != nil {
			var condition conditions.Condition
			condition, wake = c.translationCondition(p, g, now)
			if later > 0 {
				wake = later
			}
			if programmed.IsTrue() {
				programmed = condition
			}
			status.Revision = revisionStatus(a.Status.Revision, p, now)
		}
		if taken {
			programmed = conditions.False(
				v1alpha1.ReasonConflicted,
				"another owner already has a TailscaleRoutePolicy with the name "+revisionName(g),
			)
		}
	}
	conflict, err := c.ensureIngresses(ctx, &a, report)
	failed = errors.Join(failed, err)
	if conflict != "" && programmed.IsTrue() {
		programmed = conditions.False(v1alpha1.ReasonServiceNameConflict, conflict)
	}
	if programmed.Reason == v1alpha1.ReasonConflicted || programmed.Reason == v1alpha1.ReasonServiceNameConflict {
		wake = cmp.Or(wake, attachmentConflictRequeue) // deletion of another owner's object triggers no reconcile
	}
	all := reportConditions(report.Accepted, report.ResolvedRefs, programmed)
	all[v1alpha1.ConditionDegraded] = attachmentDegraded(&a, report, c.Publisher.Err())
	status.Conditions = conditionsOf(a.Generation, now, a.Status.Conditions, all)
	if !sameStatus(&a.Status, &status) {
		err := applyStatus(ctx, c.client, v1alpha1.FieldManager, "TailscaleGateway", &a, &status)
		failed = errors.Join(failed, wrapError(err, "write the status of the gateway %s", req))
	}
	if failed != nil {
		return requeueIfStale(failed)
	}
	return reconcile.Result{RequeueAfter: wake}, nil
}

// sameStatus reports whether this controller's part of the status is up to date.
func sameStatus(is, want *v1alpha1.TailscaleGatewayStatus) bool {
	return is.ObservedGeneration == want.ObservedGeneration && is.TailnetCount == want.TailnetCount &&
		is.ServiceCount == want.ServiceCount &&
		equalLists(is.Services, want.Services) &&
		deepEqual(is.Revision, want.Revision) &&
		equalLists(ownConditions(is.Conditions), want.Conditions)
}

// translationCondition reports whether Envoy Gateway has the current revision, and when to check again.
func (c *attachmentReconciler) translationCondition(
	p *v1alpha1.TailscaleRoutePolicy,
	g *gateway.Gateway,
	now time.Time,
) (conditions.Condition, time.Duration) {
	if p.Annotations[v1alpha1.TranslatedAnnotation] != g.Revision {
		limit := cmp.Or(c.TranslationTimeout, TranslationTimeout)
		last, ok := requestTime(p)
		if unreadable := last.Add(limit).Sub(now); ok && unreadable > 0 {
			return conditions.False(
					v1alpha1.ReasonPending,
					"Envoy Gateway has not requested the newest revision yet",
				), min(
					unreadable,
					limit,
				)
		}
		return conditions.False(
			v1alpha1.ReasonExtensionNotCalled,
			fmt.Sprintf(
				"Envoy Gateway has not requested the newest revision within %v: check that its extension manager is configured and reaches the extension server",
				limit,
			),
		), 0
	}
	var seen translationProblems
	if json.Unmarshal([]byte(p.Annotations[v1alpha1.TranslationAnnotation]), &seen) != nil {
		seen = translationProblems{} // the annotation is missing or not valid
	}
	switch {
	case seen.Incomplete && len(g.Routes) > 0:
		return conditions.False(
			v1alpha1.ReasonEnvoyGatewayConfigIncomplete,
			"Envoy Gateway neither calls the virtual host hook nor sends its routes: see tailplaned gateway envoy-config",
		), 0
	case len(seen.Ambiguous) > 0:
		return conditions.False(
			v1alpha1.ReasonSecurityAmbiguous,
			"the routes of a host differ in their security, so no route is added there; select one with inheritFrom: "+joinNames(
				seen.Ambiguous,
			),
		), 0
	case len(seen.Conflicted) > 0:
		return conditions.False(v1alpha1.ReasonConflicted, "clusters with these names already exist: "+joinNames(seen.Conflicted)), 0
	}
	return conditions.True(v1alpha1.ReasonProgrammed, ""), 0
}

func joinNames(names []string) string {
	var text []string
	for _, n := range names {
		text = append(text, gateway.Printable(n))
	}
	return strings.Join(text, ", ")
}

// revisionStatus returns the requested and the last rendered revision.
func revisionStatus(was *v1alpha1.GatewayRevision, p *v1alpha1.TailscaleRoutePolicy, now time.Time) *v1alpha1.GatewayRevision {
	is := &v1alpha1.GatewayRevision{Desired: revisionOf(p), Translated: p.Annotations[v1alpha1.TranslatedAnnotation]}
	switch {
	case was != nil && was.Translated == is.Translated:
		is.Time = was.Time
	case is.Translated != "":
		is.Time = new(metav1.NewTime(now.Truncate(time.Second)))
	}
	return is
}

// attachmentDegraded reports whether a TailscaleGateway works with outdated information.
func attachmentDegraded(a *v1alpha1.TailscaleGateway, report gateway.AttachmentReport, err error) conditions.Condition {
	if err != nil {
		return conditions.True(v1alpha1.ReasonFailed, "the newest state cannot be decided; the last decision stays in use")
	}
	if len(report.Unreadable) > 0 {
		return conditions.True(v1alpha1.ReasonNamespaceForbidden, forbiddenMessage(joinNames(report.Unreadable)))
	}
	var stale []string
	for _, t := range a.Status.Tailnets {
		if t.Stale {
			stale = append(stale, t.Name)
		}
	}
	if len(stale) > 0 {
		return conditions.True(v1alpha1.ReasonAPIUnavailable, "the last known services of these tailnets stay in use: "+joinNames(stale))
	}
	return conditions.False(v1alpha1.ReasonAsExpected, "")
}

// gatewayIngressName is the name of the TailscaleService that exposes a Gateway on a tailnet.
func gatewayIngressName(gatewayName, tailnet string) string {
	return gateway.Shorten(gatewayName+"-"+tailnet+"-ingress", 63)
}

// ensureIngresses maintains the TailscaleServices that expose the Gateway on tailnets. conflict is a
// message if another owner has one of the names.
func (c *attachmentReconciler) ensureIngresses(
	ctx context.Context,
	a *v1alpha1.TailscaleGateway,
	report gateway.AttachmentReport,
) (conflict string, err error) {
	desired := map[string]bool{}
	var taken []string
	if report.Accepted.IsTrue() {
		for _, t := range a.Spec.Tailnets {
			if t.RouteGeneration.Ingress == nil {
				continue
			}
			at := types.NamespacedName{Namespace: a.Namespace, Name: gatewayIngressName(a.Name, t.TailnetRef.Name)}
			desired[at.Name] = true
			owned, err := c.ensureIngress(ctx, a, t, at)
			if err != nil {
				return "", err
			}
			if !owned {
				taken = append(taken, at.Name)
			}
		}
	}
	var all v1alpha1.TailscaleServiceList
	if err := c.client.List(ctx, &all, client.InNamespace(a.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return "", err
	}
	for _, s := range pointers(all.Items) {
		if report.Accepted.IsTrue() && s.Spec.Type == v1alpha1.Ingress && metav1.IsControlledBy(s, a) && !desired[s.Name] &&
			s.DeletionTimestamp == nil {
			if err := kube.Delete(ctx, c.client, s); err != nil {
				return "", fmt.Errorf("remove the gateway %s/%s from a tailnet: %w", a.Namespace, a.Name, err)
			}
		}
	}
	if len(taken) > 0 {
		conflict = "other owners already have TailscaleServices with these names: " + joinNames(taken)
	}
	return conflict, nil
}

// ensureIngress maintains one of these TailscaleServices. owned is false if another owner has its name.
func (c *attachmentReconciler) ensureIngress(
	ctx context.Context,
	a *v1alpha1.TailscaleGateway,
	t v1alpha1.AttachedTailnet,
	at types.NamespacedName,
) (owned bool, err error) {
	i := t.RouteGeneration.Ingress
	spec := v1alpha1.TailscaleServiceSpec{
		Type: v1alpha1.Ingress, TailnetRef: &v1alpha1.TailnetReference{Name: t.TailnetRef.Name}, Ports: i.Ports, VIPService: &i.VIPService,
		BackendRef:    &v1alpha1.BackendReference{Group: gatewayapi.GroupName, Kind: v1alpha1.KindGateway, Name: a.Spec.TargetRef.Name},
		ProxyProtocol: cmp.Or(i.ProxyProtocol, v1alpha1.ProxyProtocolNone),
	}
	var is v1alpha1.TailscaleService
	err = c.client.Get(ctx, at, &is)
	switch {
	case apierrors.IsNotFound(err):
	case err != nil:
		return false, err
	case !metav1.IsControlledBy(&is, a):
		return false, nil
	case deepEqual(is.Spec, spec) || is.DeletionTimestamp != nil:
		return true, nil
	}
	part, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		return false, err
	}
	u := newObject("TailscaleService", at)
	u.SetLabels(map[string]string{v1alpha1.ManagedLabel: "true", v1alpha1.TailnetLabel: t.TailnetRef.Name})
	u.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(a, v1alpha1.GroupVersion.WithKind("TailscaleGateway"))})
	u.Object["spec"] = part
	if err := c.apply(ctx, u); err != nil {
		return false, fmt.Errorf("add the gateway %s/%s to the tailnet %s: %w", a.Namespace, a.Name, t.TailnetRef.Name, err)
	}
	return true, nil
}
