// Package fleetkube is the fleet's hands: it gathers objects of the cluster and
// answers of forges, lets the fleet decide, acts and reports. It keeps law 7: what
// cannot be listed or asked is not known, and for want of an answer nothing is
// deleted, deregistered or called paused.
//
// Everything that has to outlast a restart stands in objects: what was given to whom
// in the status of a RunnerEnrollment, what a workload is in annotations of its
// AutoscalingRunnerSet or of the Secret with its runner's token.
package fleetkube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/fleetkube/board"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// FieldManager is the field manager of what the controllers write.
const FieldManager = "tailplane-fleet"

// Controllers keep the runners of all enrollments as they should be. Fields without a
// remark are required.
//
// The account of Config needs, in the cluster: runnerforges, runnerpools,
// runnerenrollments and runnerholds get, list, watch; of runnerenrollments also
// update and patch (finalizers, annotations); update and patch of the status of all
// four; delete of runnerholds (those that expired long ago); all of
// actions.github.com/v1alpha1 get, list, watch, create, patch, delete; namespaces get,
// list, watch, create, patch, delete; rolebindings create, and bind on the ClusterRoles
// that isolation names. In its own namespace: secrets get, list, watch, delete, and
// leases. In the namespace default: events create and patch. In ARCNamespace:
// deployments and pods get, list, watch. In each namespace of runners, by the
// ClusterRole isolation.FleetRole: secrets, serviceaccounts, configmaps,
// resourcequotas, limitranges, networkpolicies, rolebindings, deployments and
// poddisruptionbudgets get, list, watch, create, patch, delete; pods get, list, watch,
// delete.
type Controllers struct {
	Config *rest.Config

	// Isolation is what is the same for all organisations. Its Namespace is where
	// credentials are, and its ARC is left empty: it is found in ARCNamespace.
	Isolation    isolation.Settings
	ARCNamespace string // where ARC's controller and its listeners are, such as arc-systems

	// Rules are the settings that rules between objects depend on; ClusterCIDRs are
	// those of Isolation.
	Rules fleet.Rules

	// ByPlane says that the plane approves enrollments; otherwise being stored is
	// enough. IsAdmin, required with it, says who is a platform-admin.
	ByPlane bool
	IsAdmin func(login string) bool

	// LeaseNamespace holds the Lease that elects one of several. Empty: this one does
	// not ask.
	LeaseNamespace string

	Log *slog.Logger
	Now func() time.Time

	// Pace, optional, is the time between two looks at what moves: 2 seconds.
	// Everything else is looked at when it changes, and every minute.
	Pace time.Duration

	// TruthCheckEvery, optional, is the time between two comparisons of what the forge,
	// the cluster and the decisions for an organisation say: 5 minutes.
	TruthCheckEvery time.Duration

	// UserAgent, optional, is what forges are told of who asks.
	UserAgent string

	// Asked, optional, hears of each request to a forge: its status, 0 if it had
	// none. Forge and org are names of objects.
	Asked func(forge, org, op string, status int)
	// Allocated, optional, hears how long it took to share the budgets of all pools.
	Allocated func(took time.Duration)

	synced atomic.Bool
	crew   atomic.Pointer[crew]
}

// Synced reports whether the controllers have filled their caches and are at work.
// Those that wait to be elected are not.
func (c *Controllers) Synced() bool { return c.synced.Load() }

// Run works until ctx ends. It returns an error when a setting is missing or when
// another one took over.
func (c *Controllers) Run(ctx context.Context) error {
	s := c.Isolation
	if c.Config == nil || s.Namespace == "" || s.Account == "" || s.Shared == "" || c.ARCNamespace == "" || c.Log == nil || c.Now == nil || c.ByPlane && c.IsAdmin == nil {
		return errors.New("the fleet's controllers lack a setting: configuration, own namespace and account, the shared namespace, ARC's namespace, log and clock are required, and who is an admin if the plane approves")
	}
	if err := c.run(ctx); err != nil {
		return fmt.Errorf("fleet controllers: %w", err)
	}
	return nil
}

// Figures returns what is counted of the fleet now; false while the controllers are not
// at work.
func (c *Controllers) Figures() (board.Figures, bool) {
	w := c.crew.Load()
	if w == nil || !c.Synced() {
		return board.Figures{}, false
	}
	return w.standing.Figures(context.Background())
}
