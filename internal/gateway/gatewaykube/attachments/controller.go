// Package attachments acts upon what was decided about Gateways: it has Envoy
// Gateway ask again when something changed, and says in TailscaleGateways and
// policies what came of them. It keeps law 7: a status says what is, not what was
// asked for, and nothing is written where nothing of ours is missing.
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

// Called is how long Envoy Gateway may take to ask for what has changed.
const Called = time.Minute

const (
	workers = 4
	soon    = 200 * time.Millisecond // for what somebody else is just about to do
)

// A Controller acts upon what the board shows. Fields without a remark are required.
type Controller struct {
	Log      *slog.Logger
	Now      func() time.Time
	Restored func()        // optional: hears of each status of a policy that was erased and is written again
	Called   time.Duration // optional: Called

	client client.Client
	board  *gather.Board

	mu      sync.Mutex
	written map[types.UID]written // statuses of policies
}

// Add has the manager's leader act.
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

// different are the names whose values differ between two maps.
func different[V any](was, is map[gateway.Name]V) (names []types.NamespacedName) {
	for n, v := range is {
		if w, ok := was[n]; !ok || !reflect.DeepEqual(w, v) {
			names = append(names, key(n))
		}
	}
	return names
}

func changedAttachments(was, is *gateway.Result) []types.NamespacedName {
	if was == nil || was == is { // a fault is everybody's
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

// again is the answer to an object that was not what it was looked at as.
func again(err error) (reconcile.Result, error) {
	if kube.Stale(err) {
		return reconcile.Result{RequeueAfter: soon}, nil
	}
	return reconcile.Result{}, err
}

func sortedBy[T any](list []T, less func(a, b T) int) []T {
	return slices.SortedFunc(slices.Values(list), less)
}
