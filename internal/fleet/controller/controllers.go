// Package controller runs the fleet's controllers. They read objects of the cluster and answers of
// forges, let package fleet decide, act and report. They implement law 7: if a list or a query
// fails, the state is unknown. An unknown state never causes a deletion or a deregistration, and
// never counts as paused.
//
// A reconcile of an enrollment gathers, decides, acts and reports, with a plain struct between two
// steps: [gather] returns observed, [decide] a plan, [act] an outcome, and [status] the status to
// write. The functions decide and status are pure, except that status reads the forge session's limits.
//
// Everything that must survive a restart is stored in objects. The status of a RunnerEnrollment
// holds the allocations. Annotations of an AutoscalingRunnerSet, or of the Secret with a runner's
// token, describe the workload.
package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"

	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// fieldManager is the field manager of the controllers' writes.
const fieldManager = "tailplane-fleet"

// Controllers reconcile the runners of all enrollments. Fields are required unless their comment
// says otherwise.
//
// The service account of Config needs these permissions in the cluster. For runnerforges,
// runnerpools, runnerenrollments and runnerholds: get, list, watch. For runnerenrollments also:
// update and patch (finalizers, annotations). For the status of all four: update and patch. For
// runnerholds: delete (old expired holds). For all of actions.github.com/v1alpha1: get, list,
// watch, create, patch, delete. For namespaces: get, list, watch, create, patch, delete. For
// rolebindings: create, and bind on the ClusterRoles that isolation names.
//
// In its own namespace: secrets get, list, watch, delete, and leases. In the namespace default:
// events create and patch. In ARCNamespace: deployments and pods get, list, watch.
//
// In each namespace of runners, by the ClusterRole isolation.FleetRole: get, list, watch, create,
// patch and delete for secrets, serviceaccounts, configmaps, resourcequotas, limitranges,
// networkpolicies, rolebindings, deployments and poddisruptionbudgets. For pods: get, list, watch,
// delete.
type Controllers struct {
	Config *rest.Config

	// Isolation holds the settings for all organisations. Its Namespace contains the credentials.
	// Its ARC must be empty: the controllers discover it in ARCNamespace.
	Isolation    isolation.Settings
	ARCNamespace string // namespace of ARC's controller and listeners, such as arc-systems

	// Rules are the settings for the cross-object rules. Their ClusterCIDRs are taken from
	// Isolation.
	Rules fleet.Rules

	// ByPlane says that the plane approves enrollments. Otherwise a stored enrollment is approved.
	// IsAdmin, required with ByPlane, reports whether a login is a platform-admin.
	ByPlane bool
	IsAdmin func(login string) bool

	// LeaseNamespace holds the Lease for leader election. If it is empty, there is no leader
	// election.
	LeaseNamespace string

	Log *slog.Logger
	Now func() time.Time

	// PollInterval, optional, is the poll interval for objects that are changing. The default is 2 seconds.
	// All other objects are reconciled on change and every minute.
	PollInterval time.Duration

	// DriftCheckInterval, optional, is the interval between two drift checks of an organisation, which
	// compare the forge, the cluster and the decisions. The default is 5 minutes.
	DriftCheckInterval time.Duration

	// UserAgent, optional, is the user agent for requests to the API server.
	UserAgent string

	// OnForgeRequest, optional, is called after each request to a forge, with its HTTP status, or 0 if there
	// was no response. Forge and org are names of objects.
	OnForgeRequest func(forge, org, op string, status int)
	// OnAllocation, optional, is called with the time that the allocation of all pools' budgets took.
	OnAllocation func(took time.Duration)

	synced   atomic.Bool
	statuses atomic.Pointer[statusReconciler] // nil: the controllers are not running
}

// Synced reports whether the controllers have filled their caches and are running. It is false
// while they wait for leader election.
func (c *Controllers) Synced() bool { return c.synced.Load() }

// Run runs the controllers until ctx ends. It returns an error if a setting is missing or if
// leadership is lost.
func (c *Controllers) Run(ctx context.Context) error {
	s := c.Isolation
	if c.Config == nil || s.Namespace == "" || s.Account == "" || s.Shared == "" || c.ARCNamespace == "" || c.Log == nil || c.Now == nil ||
		c.ByPlane && c.IsAdmin == nil {
		return errors.New(
			"the fleet's controllers lack a setting: configuration, own namespace and account, the shared namespace, ARC's namespace, log and clock are required, and IsAdmin if the plane approves",
		)
	}
	if err := c.run(ctx); err != nil {
		return fmt.Errorf("fleet controllers: %w", err)
	}
	return nil
}

// Metrics returns the current metrics of the fleet; false while the controllers are not running.
func (c *Controllers) Metrics() (Metrics, bool) {
	w := c.statuses.Load()
	if w == nil || !c.Synced() {
		return Metrics{}, false
	}
	return w.metrics(context.Background())
}
