package controller

import (
	"cmp"
	"context"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube/conditions"
)

const maxScopes = 64 // maximum length of the list in the API type

// tailnetFactsOf returns the facts that the object itself contains.
func tailnetFactsOf(o *v1alpha1.TailscaleTailnet) gateway.TailnetFacts {
	f := gateway.TailnetFacts{
		Deleting: o.DeletionTimestamp != nil, HasFinalizer: controllerutil.ContainsFinalizer(o, v1alpha1.Finalizer),
		SkipRemote: o.Annotations[v1alpha1.SkipRemoteCleanupAnnotation] == "true",
		Generation: o.Generation, Interval: o.Spec.SyncInterval.Duration, Previous: map[string]conditions.Condition{},
	}
	if v := o.Status.Validation; v != nil {
		f.Proof = gateway.CredentialProof{Phase: v.Phase, Credential: v.SecretVersion, Generation: v.Generation, Nonce: v.Nonce, KeyID: v.KeyID, At: cmp.Or(v.Time, &metav1.Time{}).Time}
	}
	f.NextCheck = cmp.Or(o.Status.NextSyncTime, &metav1.Time{}).Time
	for _, c := range o.Status.Conditions {
		f.Previous[c.Type] = conditions.Condition{Status: c.Status, Reason: c.Reason, Message: c.Message}
	}
	return f
}

// statusTime converts a time to the precision of the API server: whole seconds, rounded up.
func statusTime(t time.Time) *metav1.Time {
	if t.IsZero() {
		return nil
	}
	return new(metav1.NewTime(t.Add(time.Second - time.Nanosecond).Truncate(time.Second)))
}

// writeProof writes only the progress of the proof to the status.
func (l *tailnetReconciliation) writeProof(ctx context.Context, lock ...client.MergeFromOption) error {
	was := l.object.DeepCopy()
	l.object.Status.Validation = validationStatus(l.facts.Proof)
	return wrapError(l.Status().Patch(ctx, l.object, client.MergeFromWithOptions(was, lock...)), "record the state of the validation")
}

func validationStatus(p gateway.CredentialProof) *v1alpha1.TailnetValidation {
	if p == (gateway.CredentialProof{}) {
		return nil
	}
	return &v1alpha1.TailnetValidation{Phase: p.Phase, SecretVersion: p.Credential, Generation: p.Generation, Nonce: p.Nonce, KeyID: p.KeyID, Time: statusTime(p.At)}
}

// report writes the status if it changed, and emits events for the changes. It is called at the
// end of every reconcile, and no other function writes the complete status.
func (l *tailnetReconciliation) report(ctx context.Context, wake time.Time) error {
	was := l.object.DeepCopy()
	s := &l.object.Status
	s.ObservedGeneration = l.object.Generation
	s.Validation = validationStatus(l.facts.Proof)
	if l.facts.Failure != nil || l.facts.Checked != nil {
		s.NextSyncTime = statusTime(wake)
	}
	if a := l.facts.Checked; a != nil {
		s.LastSyncTime = statusTime(l.lists.At)
		s.DeviceCount, s.ServiceCount = int32(min(a.Devices, 1<<30)), int32(min(a.Services, 1<<30))
		if domain := gateway.TailnetDomain(a.Names); domain != "" {
			s.TailnetInfo = &v1alpha1.TailnetInfo{Name: domain, Organization: gateway.TailnetOrganization(domain)}
		}
	}
	if l.client != nil {
		l.reportAPI(s)
	}
	decided := gateway.TailnetConditions(l.facts)
	for _, kind := range slices.Sorted(maps.Keys(decided)) {
		conditions.Set(&s.Conditions, kind, decided[kind], l.object.Generation, l.Now())
	}
	if err := client.IgnoreNotFound(patchStatus(ctx, l, l.object, was, client.MergeFrom(was), "write the status")); err != nil {
		return err
	}
	l.emitEvents(decided)
	return nil
}

func (l *tailnetReconciliation) reportAPI(s *v1alpha1.TailscaleTailnetStatus) {
	state := l.client.State()
	api := &v1alpha1.TailnetAPI{State: v1alpha1.CircuitState(state.Circuit), ConsecutiveFailures: int32(state.Failures)}
	if s.API != nil {
		api.LastError = s.API.LastError
	}
	if e := state.Last; e != nil {
		api.LastError = &v1alpha1.TailnetAPIError{Class: string(e.Class), HTTPStatus: int32(e.Status), Message: conditions.Truncate(e.Error(), maxMessage), Time: statusTime(state.LastAt)}
	}
	s.API = api
	if scopes := l.client.Scopes(); len(scopes) > 0 {
		scopes = slices.Compact(slices.Sorted(slices.Values(scopes)))
		s.Scopes = scopes[:min(len(scopes), maxScopes)]
	}
}

// emitEvents emits events for condition changes.
func (l *tailnetReconciliation) emitEvents(is map[string]conditions.Condition) {
	o, before := l.object, l.before
	factsBefore := tailnetFactsOf(before)
	was, proofWas := factsBefore.Previous, factsBefore.Proof
	event := func(kind, reason, format string, args ...any) {
		l.events.Eventf(o, nil, kind, reason, "Validate", "%s", conditions.Truncate(fmt.Sprintf(format, args...), maxMessage))
		l.Log.Info("tailnet", "tailnet", o.Name, "reason", reason)
	}
	const auth, deg = v1alpha1.ConditionAuthenticated, v1alpha1.ConditionDegraded
	rotated := l.facts.Proof.Phase == v1alpha1.ValidationDone && (proofWas.Phase != v1alpha1.ValidationDone || proofWas.Credential != l.facts.Proof.Credential) &&
		proofWas.Credential != "" && proofWas.Credential != l.facts.Proof.Credential
	switch {
	case is[auth].IsTrue() && (!was[auth].IsTrue() || rotated):
		event(corev1.EventTypeNormal, "AuthenticationSucceeded", "The API issued an access token.")
	case is[auth].Status == metav1.ConditionFalse && (was[auth].Status != metav1.ConditionFalse || was[auth].Reason != is[auth].Reason):
		event(corev1.EventTypeWarning, "AuthenticationFailed", "%s: %s", is[auth].Reason, is[auth].Message)
	}
	if i := o.Status.TailnetInfo; i != nil && (before.Status.TailnetInfo == nil || before.Status.TailnetInfo.Name != i.Name) {
		event(corev1.EventTypeNormal, "MetadataDiscovered", "The tailnet is %s (%s).", i.Name, i.Organization)
	}
	down := func(v conditions.Condition) bool {
		return v.IsTrue() && v.Reason != v1alpha1.ReasonPartialScopes
	}
	switch {
	case down(is[deg]) && !down(was[deg]):
		event(corev1.EventTypeWarning, "APIUnavailable", "%s: %s", is[deg].Reason, is[deg].Message)
	case down(was[deg]) && !down(is[deg]):
		event(corev1.EventTypeNormal, "APIRecovered", "The API answers again.")
	}
	if l.facts.KeyExpired {
		event(corev1.EventTypeWarning, "ValidationKeyLeftBehind", "The validation key %s could not be deleted before it expired.", proofWas.KeyID)
	}
}
