package controller

import (
	"errors"
	"maps"
	"slices"
	"sync"
	"time"

	"k8s.io/apimachinery/pkg/types"
	"sigs.k8s.io/controller-runtime/pkg/builder"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/controller"
	"sigs.k8s.io/controller-runtime/pkg/handler"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	"sigs.k8s.io/controller-runtime/pkg/reconcile"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
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
			WatchesRawSource(c.Publisher.ChangesAndErrors(func(was, is *gateway.Result) []gateway.Name {
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
