package controller

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

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
	status := v1alpha1.TailscaleGatewayStatus{ObservedGeneration: a.Generation, TailnetCount: int32(report.TailnetCount), ServiceCount: int32(len(report.Routed)),
		Services: report.Routed[:min(len(report.Routed), maxRoutedServices)], Revision: a.Status.Revision}
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
			programmed = conditions.False(v1alpha1.ReasonConflicted, "another owner already has a TailscaleRoutePolicy with the name "+revisionName(g))
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
	return is.ObservedGeneration == want.ObservedGeneration && is.TailnetCount == want.TailnetCount && is.ServiceCount == want.ServiceCount &&
		equalLists(is.Services, want.Services) && deepEqual(is.Revision, want.Revision) && equalLists(ownConditions(is.Conditions), want.Conditions)
}

// translationCondition reports whether Envoy Gateway has the current revision, and when to check again.
func (c *attachmentReconciler) translationCondition(p *v1alpha1.TailscaleRoutePolicy, g *gateway.Gateway, now time.Time) (conditions.Condition, time.Duration) {
	if p.Annotations[v1alpha1.TranslatedAnnotation] != g.Revision {
		limit := cmp.Or(c.TranslationTimeout, TranslationTimeout)
		last, ok := requestTime(p)
		if unreadable := last.Add(limit).Sub(now); ok && unreadable > 0 {
			return conditions.False(v1alpha1.ReasonPending, "Envoy Gateway has not requested the newest revision yet"), min(unreadable, limit)
		}
		return conditions.False(v1alpha1.ReasonExtensionNotCalled, fmt.Sprintf("Envoy Gateway has not requested the newest revision within %v: check that its extension manager is configured and reaches the extension server", limit)), 0
	}
	var seen translationProblems
	if json.Unmarshal([]byte(p.Annotations[v1alpha1.TranslationAnnotation]), &seen) != nil {
		seen = translationProblems{} // the annotation is missing or not valid
	}
	switch {
	case seen.Incomplete && len(g.Routes) > 0:
		return conditions.False(v1alpha1.ReasonEnvoyGatewayConfigIncomplete, "Envoy Gateway neither calls the virtual host hook nor sends its routes: see tailplaned gateway envoy-config"), 0
	case len(seen.Ambiguous) > 0:
		return conditions.False(v1alpha1.ReasonSecurityAmbiguous, "the routes of a host differ in their security, so no route is added there; select one with inheritFrom: "+joinNames(seen.Ambiguous)), 0
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
func (c *attachmentReconciler) ensureIngresses(ctx context.Context, a *v1alpha1.TailscaleGateway, report gateway.AttachmentReport) (conflict string, err error) {
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
		if report.Accepted.IsTrue() && s.Spec.Type == v1alpha1.Ingress && metav1.IsControlledBy(s, a) && !desired[s.Name] && s.DeletionTimestamp == nil {
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
func (c *attachmentReconciler) ensureIngress(ctx context.Context, a *v1alpha1.TailscaleGateway, t v1alpha1.AttachedTailnet, at types.NamespacedName) (owned bool, err error) {
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
