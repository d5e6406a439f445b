// Package attachments applies the decisions about Gateways. It makes Envoy Gateway translate again
// after a change, and it writes the status of TailscaleGateways and policies. It follows law 7: a
// status describes the actual state, not the requested one, and nothing is written unless a field
// of Tailplane differs.
package attachments

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
	"github.com/tailplane/tailplane/internal/gateway/gatewaykube/gather"
	"github.com/tailplane/tailplane/internal/kube"
)

// Called is the default time within which Envoy Gateway must request a change.
const Called = time.Minute

const (
	workers = 4
	soon    = 200 * time.Millisecond // for a change that another process is about to make
)

// A Controller applies the decisions of the Board. Fields are required unless documented
// otherwise.
type Controller struct {
	Log      *slog.Logger
	Now      func() time.Time
	Restored func()        // optional: called when an erased policy status is written again
	Called   time.Duration // optional: replaces the constant Called

	client client.Client
	board  *gather.Board

	mu      sync.Mutex
	written map[types.UID]written // last written policy statuses
}

// Add registers the controllers with the manager's leader.
func (c *Controller) Add(mgr manager.Manager, board *gather.Board) error {
	if c.Log == nil || c.Now == nil || board == nil {
		return errors.New("the controller of attachments lacks a setting: log, clock and board are required")
	}
	c.client, c.board, c.written = mgr.GetClient(), board, map[types.UID]written{}
	options := controller.Options{MaxConcurrentReconciles: workers, SkipNameValidation: new(true)}
	return errors.Join(
		builder.ControllerManagedBy(mgr).Named("tailscalegateway").
			For(&v1alpha1.TailscaleGateway{}).Owns(&v1alpha1.TailscaleRoutePolicy{}).Owns(&v1alpha1.TailscaleService{}).
			WatchesRawSource(board.ChangesAndFaults(changedAttachments)).
			WithOptions(options).Complete(reconcile.Func(c.attachment)),
		builder.ControllerManagedBy(mgr).Named("tailscaleroutepolicy").
			For(&v1alpha1.TailscaleRoutePolicy{}).
			WatchesRawSource(board.Changes(changedPolicies)).
			WithOptions(options).Complete(reconcile.Func(c.policy)),
		builder.ControllerManagedBy(mgr).Named("gateway").
			Watches(&v1alpha1.TailscaleRoutePolicy{}, handler.EnqueueRequestsFromMapFunc(bareOf)).
			WatchesRawSource(board.Changes(changedGateways)).
			WithOptions(options).Complete(reconcile.Func(c.bare)),
	)
}

func key(n gateway.Name) types.NamespacedName {
	return types.NamespacedName{Namespace: n.Namespace, Name: n.Name}
}

func name(n types.NamespacedName) gateway.Name {
	return gateway.Name{Namespace: n.Namespace, Name: n.Name}
}

// different returns the names whose values differ between two maps.
func different[V any](was, is map[gateway.Name]V) (names []types.NamespacedName) {
	for n, v := range is {
		if w, ok := was[n]; !ok || !reflect.DeepEqual(w, v) {
			names = append(names, key(n))
		}
	}
	return names
}

func changedAttachments(was, is *gateway.Result) []types.NamespacedName {
	if was == nil || was == is { // a fault affects all attachments
		return different(nil, is.Attachments)
	}
	return different(was.Attachments, is.Attachments)
}

func changedPolicies(was, is *gateway.Result) []types.NamespacedName {
	if was == nil {
		return different(nil, is.Policies)
	}
	return different(was.Policies, is.Policies)
}

func changedGateways(was, is *gateway.Result) (names []types.NamespacedName) {
	if was != nil {
		for n := range was.Snapshot.Gateways {
			if is.Snapshot.Gateways[n] == nil {
				names = append(names, key(n))
			}
		}
	}
	for n, g := range is.Snapshot.Gateways {
		var before *gateway.Gateway
		if was != nil {
			before = was.Snapshot.Gateways[n]
		}
		if before == nil || before.Revision != g.Revision || before.Attachment != g.Attachment {
			names = append(names, key(n))
		}
	}
	return names
}

// again requeues soon if the object was stale, and otherwise returns the error.
func again(err error) (reconcile.Result, error) {
	if kube.Stale(err) {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	return reconcile.Result{}, err
}

func sortedBy[T any](list []T, less func(a, b T) int) []T {
	return slices.SortedFunc(slices.Values(list), less)
}
