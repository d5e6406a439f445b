package controller

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/events"
	"k8s.io/utils/ptr"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller/controllerutil"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/predicate"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"
	"sigs.k8s.io/controller-runtime/pkg/source"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

const (
	maxTailnetActions     = 12               // per reconcile; a complete proof needs fewer
	tailnetCleanupTimeout = 10 * time.Second // for a deletion, even if the context of the reconcile has ended
)

// A tailnetReconciler maintains the API clients of tailnets and reports their health.
type tailnetReconciler struct {
	*Runner
	client.Client
	events  events.EventRecorder
	watches *secretWatches
}

// Add registers the controller with the manager's leader.
func (r *tailnetReconciler) Add(mgr manager.Manager) error {
	usedBy, specChanged := handler.EnqueueRequestsFromMapFunc(
		r.tailnetsUsedBy,
	), builder.WithPredicates(
		predicate.GenerationChangedPredicate{},
	)
	return builder.ControllerManagedBy(mgr).
		Named("tailscaletailnet").
		For(&v1alpha1.TailscaleTailnet{}, specOrAnnotationChanged()).
		Watches(&v1alpha1.TailscaleProxyGroup{}, usedBy, specChanged).
		Watches(&v1alpha1.TailscaleService{}, usedBy, specChanged).
		Watches(&v1alpha1.TailscaleGateway{}, usedBy, specChanged).
		WatchesRawSource(source.Channel(r.watches.changed, &handler.EnqueueRequestForObject{})).
		WithOptions(reconcileOptions(tailnetWorkers)).
		Complete(r)
}

// byTailnet is the index of the objects that use a tailnet, by its name.
const byTailnet = "tailnet"

func indexTailnets(ctx context.Context, f client.FieldIndexer) error {
	return errors.Join(
		f.IndexField(ctx, &v1alpha1.TailscaleProxyGroup{}, byTailnet, tailnetsOf),
		f.IndexField(ctx, &v1alpha1.TailscaleService{}, byTailnet, tailnetsOf),
		f.IndexField(ctx, &v1alpha1.TailscaleGateway{}, byTailnet, tailnetsOf),
	)
}

// tailnetsOf returns the names of the tailnets that an object uses. The name "" means the default
// tailnet.
func tailnetsOf(o client.Object) (names []string) {
	switch o := o.(type) {
	case *v1alpha1.TailscaleProxyGroup:
		names = []string{ptr.Deref(o.Spec.TailnetRef, v1alpha1.TailnetReference{}).Name}
	case *v1alpha1.TailscaleService:
		if ref := o.Spec.TailnetRef; ref != nil {
			names = []string{ref.Name}
		}
	case *v1alpha1.TailscaleGateway:
		for _, t := range o.Spec.Tailnets {
			names = append(names, t.TailnetRef.Name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// tailnetsUsedBy returns the tailnets that an object uses.
func (r *tailnetReconciler) tailnetsUsedBy(ctx context.Context, o client.Object) (out []reconcile.Request) {
	for _, name := range tailnetsOf(o) {
		if name != "" {
			out = append(out, requests(gateway.Name{Name: name})...)
			continue
		}
		var all v1alpha1.TailscaleTailnetList
		if err := r.List(ctx, &all); err != nil {
			r.Log.Error("list tailnets in the cache", "err", err)
		}
		for _, t := range pointers(all.Items) {
			if t.Annotations[v1alpha1.DefaultAnnotation] == "true" {
				out = append(out, requests(objectName(t))...)
			}
		}
	}
	return out
}

// Reconcile reconciles one tailnet: gather facts, decide, act, report.
func (r *tailnetReconciler) Reconcile(ctx context.Context, req reconcile.Request) (reconcile.Result, error) {
	o := &v1alpha1.TailscaleTailnet{}
	if err := r.Get(ctx, req.NamespacedName, o); err != nil {
		if apierrors.IsNotFound(err) {
			r.forget(req.Name)
			return reconcile.Result{}, nil
		}
		return reconcile.Result{}, fmt.Errorf("get the tailnet %s: %w", req.Name, err)
	}
	wake, err := (&tailnetReconciliation{tailnetReconciler: r, object: o, before: o.DeepCopy()}).run(ctx)
	return r.reconciled("tailnet "+req.Name, wake, err)
}

func (r *tailnetReconciler) forget(name string) {
	r.Clients.Drop(name)
	r.watches.follow(name, types.NamespacedName{})
}

// A tailnetReconciliation is one reconcile of one tailnet.
type tailnetReconciliation struct {
	*tailnetReconciler
	object *v1alpha1.TailscaleTailnet // as last written
	before *v1alpha1.TailscaleTailnet // as read at the start
	facts  gateway.TailnetFacts
	client *tsapi.Client // nil if there is no credential
	lists  *tsapi.Lists  // of the check in this reconcile
}

func (l *tailnetReconciliation) run(ctx context.Context) (wake time.Time, err error) {
	if err := l.gather(ctx); err != nil {
		return time.Time{}, err
	}
	action := gateway.TailnetAction("")
	for range maxTailnetActions {
		if action, wake = gateway.NextTailnetAction(l.facts, l.Now()); action == gateway.TailnetWait {
			break
		}
		if err = l.act(ctx, action); err != nil || action == gateway.TailnetRemoveFinalizer {
			break
		}
	}
	if action == gateway.TailnetRemoveFinalizer && err == nil {
		return time.Time{}, nil
	}
	if kube.IsStale(err) {
		return time.Time{}, err // the facts are outdated, so they are not reported
	}
	if action != gateway.TailnetWait && wake.IsZero() {
		wake = l.Now()
	}
	return wake, errors.Join(err, l.report(context.WithoutCancel(ctx), wake))
}

func (l *tailnetReconciliation) gather(ctx context.Context) error {
	o := l.object
	has, err := l.credential(ctx, o)
	if err != nil {
		return err
	}
	l.watches.follow(o.Name, has.secret)
	l.facts = tailnetFactsOf(o)
	l.facts.Credential, l.facts.CredentialProblem = has.version, has.problem
	if l.facts.Users, err = l.users(ctx, o); err != nil {
		return err
	}
	if has.version == "" {
		l.Clients.Drop(o.Name)
		return nil
	}
	version := tsapi.Version{UID: string(o.UID), Generation: o.Generation, Credential: has.version}
	l.client, err = l.Clients.Put(o.Name, version, func() (tsapi.Config, error) {
		return tsapi.Config{BaseURL: o.Spec.APIBaseURL, Tailnet: o.Spec.Tailnet, Credential: has.credential, UserAgent: l.UserAgent,
			PerSecond: l.PerSecond, Burst: l.Burst, Now: l.Now, Observe: l.Observe}, nil
	})
	return err
}

// users returns the objects that use the tailnet, as "kind namespace/name".
func (r *tailnetReconciler) users(ctx context.Context, o *v1alpha1.TailscaleTailnet) (users []string, err error) {
	names := []string{o.Name}
	if o.Annotations[v1alpha1.DefaultAnnotation] == "true" {
		names = append(names, "")
	}
	for _, name := range names {
		for kind, list := range map[string]client.ObjectList{"TailscaleProxyGroup": &v1alpha1.TailscaleProxyGroupList{},
			"TailscaleService": &v1alpha1.TailscaleServiceList{}, "TailscaleGateway": &v1alpha1.TailscaleGatewayList{}} {
			if err := r.List(ctx, list, client.MatchingFields{byTailnet: name}, client.UnsafeDisableDeepCopy); err != nil {
				return nil, fmt.Errorf("list its users: %w", err)
			}
			if err := meta.EachListItem(list, func(o runtime.Object) error {
				users = append(users, kind+" "+objectName(o.(client.Object)).String())
				return nil
			}); err != nil {
				return nil, err
			}
		}
	}
	return users, nil
}

// act executes an action and stores the result in the facts. It returns only Kubernetes errors;
// failures of Tailscale's API become facts.
func (l *tailnetReconciliation) act(ctx context.Context, action gateway.TailnetAction) error {
	switch action {
	case gateway.TailnetAddFinalizer:
		return l.addFinalizer(ctx)
	case gateway.TailnetRemoveFinalizer:
		return l.removeFinalizer(ctx)
	case gateway.TailnetProveCredential:
		return l.proveCredential(ctx)
	case gateway.TailnetDeleteKey:
		return l.deleteLeftoverKey(ctx)
	case gateway.TailnetForgetKey:
		l.facts.KeyExpired = l.facts.Proof.Phase == v1alpha1.ValidationCleanupPending
		l.facts.Proof = gateway.CredentialProof{Phase: v1alpha1.ValidationPending}
		return nil
	case gateway.TailnetCheck:
		return l.check(ctx)
	}
	return fmt.Errorf("unknown action %q", action)
}

func (l *tailnetReconciliation) addFinalizer(ctx context.Context) error {
	err := patchMetadata(ctx, l, l.object, "add the finalizer", func() { controllerutil.AddFinalizer(l.object, v1alpha1.Finalizer) })
	l.facts.HasFinalizer = err == nil
	return err
}

func (l *tailnetReconciliation) removeFinalizer(ctx context.Context) error {
	l.forget(l.object.Name)
	return client.IgnoreNotFound(
		patchMetadata(ctx, l, l.object, "remove the finalizer", func() { controllerutil.RemoveFinalizer(l.object, v1alpha1.Finalizer) }),
	)
}

// check reads the lists of devices and services, or uses a recent result of another reader.
func (l *tailnetReconciliation) check(ctx context.Context) error {
	maxAge := l.facts.Interval / 2
	if l.facts.Previous[v1alpha1.ConditionReady].Status != "True" {
		maxAge = 0
	}
	lists, err := l.client.Lists(ctx, maxAge)
	if err != nil {
		l.recordFailure(err)
		return nil
	}
	a := &gateway.CheckResult{Devices: len(lists.Devices), Services: len(lists.Services)}
	for _, d := range lists.Devices {
		if !d.External {
			a.Names = append(a.Names, d.Name)
		}
	}
	if refused := lists.ServicesRefused; refused != nil {
		a.ServicesRefused = fmt.Sprintf(
			"The credential lacks the scope %s: the operator cannot list services of the tailnet. %v",
			refused.Op.Scope(),
			refused,
		)
	}
	l.facts.Checked, l.lists = a, lists
	return nil
}

// recordFailure stores an API error in the facts.
func (l *tailnetReconciliation) recordFailure(err error) {
	out := &gateway.APIFailure{Class: tsapi.Unavailable, Message: err.Error(), Wait: time.Second}
	if f, ok := errors.AsType[*tsapi.Error](err); ok {
		out.Class, out.Scope, out.Wait = f.Class, f.Op.Scope(), max(f.RetryAfter, 100*time.Millisecond)
		out.CreateKey = f.Op == tsapi.CreateKey
		if f.Class == tsapi.Dropped {
			out.Class = tsapi.Unavailable // a newer reconcile has replaced the client
		}
	}
	l.facts.Failure = out
}

const maxScopes = 64 // maximum length of the list in the API type

// tailnetFactsOf returns the facts that the object itself contains.
func tailnetFactsOf(o *v1alpha1.TailscaleTailnet) gateway.TailnetFacts {
	f := gateway.TailnetFacts{
		Deleting: o.DeletionTimestamp != nil, HasFinalizer: controllerutil.ContainsFinalizer(o, v1alpha1.Finalizer),
		SkipRemote: o.Annotations[v1alpha1.SkipRemoteCleanupAnnotation] == "true",
		Generation: o.Generation, Interval: o.Spec.SyncInterval.Duration, Previous: map[string]conditions.Condition{},
	}
	if v := o.Status.Validation; v != nil {
		f.Proof = gateway.CredentialProof{
			Phase:      v.Phase,
			Credential: v.SecretVersion,
			Generation: v.Generation,
			Nonce:      v.Nonce,
			KeyID:      v.KeyID,
			At:         cmp.Or(v.Time, &metav1.Time{}).Time,
		}
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
	return &v1alpha1.TailnetValidation{
		Phase:         p.Phase,
		SecretVersion: p.Credential,
		Generation:    p.Generation,
		Nonce:         p.Nonce,
		KeyID:         p.KeyID,
		Time:          statusTime(p.At),
	}
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
		api.LastError = &v1alpha1.TailnetAPIError{
			Class:      string(e.Class),
			HTTPStatus: int32(e.Status),
			Message:    conditions.Truncate(e.Error(), maxMessage),
			Time:       statusTime(state.LastAt),
		}
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
		proofWas.Credential != "" &&
		proofWas.Credential != l.facts.Proof.Credential
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
		event(
			corev1.EventTypeWarning,
			"ValidationKeyLeftBehind",
			"The validation key %s could not be deleted before it expired.",
			proofWas.KeyID,
		)
	}
}
