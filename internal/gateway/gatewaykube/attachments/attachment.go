package attachments

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"strings"
	"time"

	apiequality "k8s.io/apimachinery/pkg/api/equality"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/gateway/gatewaykube/gather"
	"github.com/tailplane/tailplane/internal/kube"
)

// conflictTime is the interval for checking whether a conflicting name is free.
const conflictTime = 10 * time.Second

// mostServices is the maximum number of services in a status.
const mostServices = 100

// attachment applies the decision about a TailscaleGateway and writes its status.
func (c *Controller) attachment(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	var a v1alpha1.TailscaleGateway
	if err := c.client.Get(ctx, req.NamespacedName, &a); err != nil || a.DeletionTimestamp != nil {
		return reconcile.Result{}, client.IgnoreNotFound(err) // garbage collection deletes the objects that it owns
	}
	result := c.board.Result()
	if result == nil {
		return reconcile.Result{}, nil
	}
	report, decided := result.Attachments[name(req.NamespacedName)]
	if !decided || !c.board.Saw(&a) {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	now := c.Now()
	var wake time.Duration
	status := v1alpha1.TailscaleGatewayStatus{ObservedGeneration: a.Generation, TailnetCount: int32(report.TailnetCount), ServiceCount: int32(len(report.Routed)),
		Services: report.Routed[:min(len(report.Routed), mostServices)], Revision: a.Status.Revision}
	programmed := report.Programmed
	var failed error
	g := result.Snapshot.Gateways[gateway.Name{Namespace: a.Namespace, Name: a.Spec.TargetRef.Name}]
	if report.Accepted.OK && g != nil && g.Attachment == name(req.NamespacedName) {
		p, taken, later, err := c.request(ctx, g, *metav1.NewControllerRef(&a, v1alpha1.GroupVersion.WithKind("TailscaleGateway")))
		failed = err
		if p != nil {
			var verdict gateway.Verdict
			verdict, wake = c.called(p, g, now)
			if later > 0 {
				wake = later
			}
			if programmed.OK {
				programmed = verdict
			}
			status.Revision = revisionStatus(a.Status.Revision, p, now)
		}
		if taken {
			programmed = gateway.Verdict{Reason: v1alpha1.ReasonConflicted, Message: "somebody else has a TailscaleRoutePolicy of the name " + RevisionName(g)}
		}
	}
	conflict, err := c.ingress(ctx, &a, report)
	failed = errors.Join(failed, err)
	if conflict != "" && programmed.OK {
		programmed = gateway.Verdict{Reason: v1alpha1.ReasonServiceNameConflict, Message: conflict}
	}
	if programmed.Reason == v1alpha1.ReasonConflicted || programmed.Reason == v1alpha1.ReasonServiceNameConflict {
		wake = cmp.Or(wake, conflictTime) // deletion of another owner's object triggers no reconcile
	}
	all := verdicts(report.Accepted, report.ResolvedRefs, programmed)
	all[v1alpha1.ConditionDegraded] = degraded(&a, report, c.board.Fault())
	status.Conditions = conditionsOf(a.Generation, now, a.Status.Conditions, all)
	if !sameStatus(&a.Status, &status) {
		err := c.applyStatus(ctx, "TailscaleGateway", req.NamespacedName, a.UID, &status)
		if err != nil {
			err = fmt.Errorf("write the status of the gateway %s: %w", req, err)
		}
		failed = errors.Join(failed, err)
	}
	if failed != nil {
		return again(failed)
	}
	return reconcile.Result{RequeueAfter: wake}, nil
}

// sameStatus reports whether this controller's part of the status is up to date.
func sameStatus(is, want *v1alpha1.TailscaleGatewayStatus) bool {
	return is.ObservedGeneration == want.ObservedGeneration && is.TailnetCount == want.TailnetCount && is.ServiceCount == want.ServiceCount &&
		equal(is.Services, want.Services) && apiequality.Semantic.DeepEqual(is.Revision, want.Revision) && equal(ours(is.Conditions), want.Conditions)
}

// called reports whether Envoy Gateway has the current revision, and when to check again.
func (c *Controller) called(p *v1alpha1.TailscaleRoutePolicy, g *gateway.Gateway, now time.Time) (gateway.Verdict, time.Duration) {
	if p.Annotations[v1alpha1.TranslatedAnnotation] != g.Revision {
		limit := cmp.Or(c.Called, Called)
		last, ok := requested(p)
		if left := last.Add(limit).Sub(now); ok && left > 0 {
			return gateway.Verdict{Reason: v1alpha1.ReasonPending, Message: "Envoy Gateway has not asked for the newest revision yet"}, min(left, limit)
		}
		return gateway.Verdict{Reason: v1alpha1.ReasonExtensionNotCalled, Message: fmt.Sprintf("Envoy Gateway has not asked for the newest revision within %v: is its extension manager configured, and does it reach the extension server?", limit)}, 0
	}
	var seen Seen
	if text := p.Annotations[v1alpha1.TranslationAnnotation]; text != "" {
		if err := json.Unmarshal([]byte(text), &seen); err != nil {
			seen = Seen{}
		}
	}
	switch {
	case seen.Incomplete && len(g.Routes) > 0:
		return gateway.Verdict{Reason: v1alpha1.ReasonEnvoyGatewayConfigIncomplete, Message: "Envoy Gateway neither asks about virtual hosts nor shows its routes: see tailplaned gateway envoy-config"}, 0
	case len(seen.Ambiguous) > 0:
		return gateway.Verdict{Reason: v1alpha1.ReasonSecurityAmbiguous, Message: "the routes of a host differ in their security, so none is added there; name one with inheritFrom: " + shown(seen.Ambiguous)}, 0
	case len(seen.Conflicted) > 0:
		return gateway.Verdict{Reason: v1alpha1.ReasonConflicted, Message: "somebody else has clusters of these names: " + shown(seen.Conflicted)}, 0
	}
	return gateway.Verdict{OK: true, Reason: v1alpha1.ReasonProgrammed}, 0
}

func shown(names []string) string {
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

// degraded reports whether a TailscaleGateway works with outdated information.
func degraded(a *v1alpha1.TailscaleGateway, report gateway.AttachmentReport, fault error) gateway.Verdict {
	if fault != nil {
		return gateway.Verdict{OK: true, Reason: v1alpha1.ReasonFailed, Message: "nothing newer can be decided; what was decided last stays"}
	}
	if len(report.LeftOut) > 0 {
		return gateway.Verdict{OK: true, Reason: v1alpha1.ReasonNamespaceForbidden, Message: gather.Forbidden(shown(report.LeftOut))}
	}
	var stale []string
	for _, t := range a.Status.Tailnets {
		if t.Stale {
			stale = append(stale, t.Name)
		}
	}
	if len(stale) > 0 {
		return gateway.Verdict{OK: true, Reason: v1alpha1.ReasonAPIUnavailable, Message: "the services of these tailnets are those that were known last: " + shown(stale)}
	}
	return gateway.Verdict{Reason: v1alpha1.ReasonAsExpected}
}

// ingressName is the name of the TailscaleService that exposes a Gateway on a tailnet.
func ingressName(gatewayName, tailnet string) string {
	return gateway.Shorten(gatewayName+"-"+tailnet+"-ingress", 63)
}

// ingress maintains the TailscaleServices that expose the Gateway on tailnets. conflict is a
// message if another owner has one of the names.
func (c *Controller) ingress(ctx context.Context, a *v1alpha1.TailscaleGateway, report gateway.AttachmentReport) (conflict string, err error) {
	wanted := map[string]bool{}
	var taken []string
	if report.Accepted.OK {
		for _, t := range a.Spec.Tailnets {
			if t.RouteGeneration.Ingress == nil {
				continue
			}
			at := types.NamespacedName{Namespace: a.Namespace, Name: ingressName(a.Name, t.TailnetRef.Name)}
			wanted[at.Name] = true
			mine, err := c.publish(ctx, a, t, at)
			if err != nil {
				return "", err
			}
			if !mine {
				taken = append(taken, at.Name)
			}
		}
	}
	var all v1alpha1.TailscaleServiceList
	if err := c.client.List(ctx, &all, client.InNamespace(a.Namespace), client.UnsafeDisableDeepCopy); err != nil {
		return "", err
	}
	for i := range all.Items {
		s := &all.Items[i]
		if report.Accepted.OK && s.Spec.Type == v1alpha1.Ingress && metav1.IsControlledBy(s, a) && !wanted[s.Name] && s.DeletionTimestamp == nil {
			if err := kube.Delete(ctx, c.client, s); err != nil {
				return "", fmt.Errorf("take the gateway %s/%s off a tailnet: %w", a.Namespace, a.Name, err)
			}
		}
	}
	if len(taken) > 0 {
		conflict = "somebody else has TailscaleServices of these names: " + shown(taken)
	}
	return conflict, nil
}

// publish maintains one of these TailscaleServices. mine is false if another owner has its name.
func (c *Controller) publish(ctx context.Context, a *v1alpha1.TailscaleGateway, t v1alpha1.AttachedTailnet, at types.NamespacedName) (mine bool, err error) {
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
	case apiequality.Semantic.DeepEqual(is.Spec, spec) || is.DeletionTimestamp != nil:
		return true, nil
	}
	part, err := runtime.DefaultUnstructuredConverter.ToUnstructured(&spec)
	if err != nil {
		return false, err
	}
	u := object("TailscaleService", at)
	u.SetLabels(map[string]string{v1alpha1.ManagedLabel: "true", v1alpha1.TailnetLabel: t.TailnetRef.Name})
	u.SetOwnerReferences([]metav1.OwnerReference{*metav1.NewControllerRef(a, v1alpha1.GroupVersion.WithKind("TailscaleGateway"))})
	u.Object["spec"] = part
	if err := c.apply(ctx, u); err != nil {
		return false, fmt.Errorf("put the gateway %s/%s on the tailnet %s: %w", a.Namespace, a.Name, t.TailnetRef.Name, err)
	}
	return true, nil
}
