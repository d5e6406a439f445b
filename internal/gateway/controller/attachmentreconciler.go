package controller

import (
	"errors"
	"log/slog"
	"reflect"
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
	Log                *slog.Logger
	Now                func() time.Time
	OnRestore          func()        // optional: called when an erased policy status is written again
	TranslationTimeout time.Duration // optional: replaces the constant Called

	client    client.Client
	publisher *Publisher

	mu      sync.Mutex
	written map[types.UID]writtenPolicy // last written policy statuses
}

// Add registers the controllers with the manager's leader.
func (c *attachmentReconciler) Add(mgr manager.Manager, publisher *Publisher) error {
	if c.Log == nil || c.Now == nil || publisher == nil {
		return errors.New("the attachment controller lacks a setting: log, clock and publisher are required")
	}
	c.client, c.publisher, c.written = mgr.GetClient(), publisher, map[types.UID]writtenPolicy{}
	options := controller.Options{MaxConcurrentReconciles: attachmentWorkers, SkipNameValidation: new(true)}
	return errors.Join(
		builder.ControllerManagedBy(mgr).Named("tailscalegateway").
			For(&v1alpha1.TailscaleGateway{}).Owns(&v1alpha1.TailscaleRoutePolicy{}).Owns(&v1alpha1.TailscaleService{}).
			WatchesRawSource(publisher.ChangesAndErrors(changedAttachments)).
			WithOptions(options).Complete(reconcile.Func(c.reconcileAttachment)),
		builder.ControllerManagedBy(mgr).Named("tailscaleroutepolicy").
			For(&v1alpha1.TailscaleRoutePolicy{}).
			WatchesRawSource(publisher.Changes(changedPolicies)).
			WithOptions(options).Complete(reconcile.Func(c.reconcilePolicy)),
		builder.ControllerManagedBy(mgr).Named("gateway").
			Watches(&v1alpha1.TailscaleRoutePolicy{}, handler.EnqueueRequestsFromMapFunc(bareGatewayOf)).
			WatchesRawSource(publisher.Changes(changedGateways)).
			WithOptions(options).Complete(reconcile.Func(c.reconcileBareGateway)),
	)
}

func namespacedName(n gateway.Name) types.NamespacedName {
	return types.NamespacedName{Namespace: n.Namespace, Name: n.Name}
}

func gatewayName(n types.NamespacedName) gateway.Name {
	return gateway.Name{Namespace: n.Namespace, Name: n.Name}
}

// changedNames returns the names whose values differ between two maps.
func changedNames[V any](was, is map[gateway.Name]V) (names []types.NamespacedName) {
	for n, v := range is {
		if w, ok := was[n]; !ok || !reflect.DeepEqual(w, v) {
			names = append(names, namespacedName(n))
		}
	}
	return names
}

func changedAttachments(was, is *gateway.Result) []types.NamespacedName {
	if was == nil || was == is { // a fault affects all attachments
		return changedNames(nil, is.Attachments)
	}
	return changedNames(was.Attachments, is.Attachments)
}

func changedPolicies(was, is *gateway.Result) []types.NamespacedName {
	if was == nil {
		return changedNames(nil, is.Policies)
	}
	return changedNames(was.Policies, is.Policies)
}

func changedGateways(was, is *gateway.Result) (names []types.NamespacedName) {
	if was != nil {
		for n := range was.Snapshot.Gateways {
			if is.Snapshot.Gateways[n] == nil {
				names = append(names, namespacedName(n))
			}
		}
	}
	for n, g := range is.Snapshot.Gateways {
		var before *gateway.Gateway
		if was != nil {
			before = was.Snapshot.Gateways[n]
		}
		if before == nil || before.Revision != g.Revision || before.Attachment != g.Attachment {
			names = append(names, namespacedName(n))
		}
	}
	return names
}

// requeueIfStale requeues soon if the object was stale, and otherwise returns the error.
func requeueIfStale(err error) (reconcile.Result, error) {
	if kube.IsStale(err) {
		return reconcile.Result{RequeueAfter: attachmentRequeueSoon}, nil
	}
	return reconcile.Result{}, err
}

func sortedBy[T any](list []T, less func(a, b T) int) []T {
	return slices.SortedFunc(slices.Values(list), less)
}
