package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"os"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/uuid"
	coordinationclient "k8s.io/client-go/kubernetes/typed/coordination/v1"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/leaderelection"
	"k8s.io/client-go/tools/leaderelection/resourcelock"
	"k8s.io/klog/v2"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/kube"
)

// LeaseName is the Lease that names the replica that is the plane's node.
const LeaseName = "tailplane-plane"

// Timing of the election. A replica that cannot renew stops before another one may start: two nodes with one key would take the tailnet
// connection from each other.
const (
	leaseDuration = 15 * time.Second
	renewDeadline = 8 * time.Second
	retryPeriod   = 2 * time.Second

	// maxTermEnd is how long a term may take to end after the Lease was lost. The last renewal was a retry period and a renew deadline
	// earlier, and one second is left for clock differences.
	maxTermEnd = leaseDuration - renewDeadline - retryPeriod - time.Second
	// releaseTimeout bounds the release of the Lease.
	releaseTimeout = 1500 * time.Millisecond
)

// ErrLeaseLost means that a term ended because the Lease could not be renewed or another replica took it.
var ErrLeaseLost = errors.New("this replica has lost the Lease " + LeaseName + ", so it is no longer the plane's node")

// Election runs a function on one replica at a time. All exported fields are required.
type Election struct {
	Config    *rest.Config
	Namespace string // of the Lease, which must exist: RBAC cannot limit create to one name
	Log       *slog.Logger

	// Overdue is called when a term has not ended in time after the Lease was lost. It must end the process, because another replica starts
	// now.
	Overdue func()

	err atomic.Pointer[error]
}

// Run waits until this replica holds the Lease, and then runs term once. The context of term ends when ctx ends, or when the Lease is lost;
// Run then returns ErrLeaseLost. It releases the Lease only after term has returned.
func (e *Election) Run(ctx context.Context, term func(context.Context) error) error {
	if e.Config == nil || e.Namespace == "" || e.Log == nil || e.Overdue == nil {
		return errors.New("the plane's election needs a configuration, a namespace, a log and a function for overdue terms")
	}
	host, err := os.Hostname()
	if err != nil {
		return fmt.Errorf("name of this replica in the election: %w", err)
	}
	c, err := coordinationclient.NewForConfig(kube.Unthrottled(e.Config))
	if err != nil {
		return err
	}
	lock := &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: e.Namespace, Name: LeaseName},
		Client:     c,
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}
	began := make(chan context.Context, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: existingLease{lock, e}, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Name: LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(lead context.Context) { began <- lead }, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("election of the plane's node: %w", err)
	}
	// The election continues until the term has ended for any reason.
	elect, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	var election sync.WaitGroup
	lost := make(chan struct{})
	election.Go(func() {
		defer close(lost)
		elector.Run(klog.NewContext(elect, logr.Discard()))
	})
	e.Log.Info("waiting to become the plane's node", "lease", e.Namespace+"/"+LeaseName)
	select {
	case <-began:
	case <-lost: // the Lease was won and lost at once, or ctx has ended
	case <-ctx.Done():
	}
	if ctx.Err() != nil {
		stop()
		election.Wait()
		e.release(context.WithoutCancel(ctx), lock)
		return nil
	}
	e.Log.Info("this replica is the plane's node")
	running, end := context.WithCancel(ctx)
	defer end()
	ended := make(chan struct{})
	var watching sync.WaitGroup
	watching.Go(func() {
		select {
		case <-ended:
			return
		case <-lost:
		}
		end()
		late := time.NewTimer(maxTermEnd)
		defer late.Stop()
		select {
		case <-ended:
		case <-late.C:
			e.Overdue()
		}
	})
	err = term(running)
	close(ended)
	watching.Wait()
	select {
	case <-lost:
		return errors.Join(ErrLeaseLost, err)
	default:
	}
	stop()
	election.Wait()
	e.release(context.WithoutCancel(ctx), lock)
	return err
}

// Err returns why the election cannot continue, for example because the Lease is missing or not readable. It returns nil while it can.
func (e *Election) Err() error {
	if err := e.err.Load(); err != nil {
		return *err
	}
	return nil
}

// report stores the result of reading the Lease, and logs a new error.
func (e *Election) report(err error) {
	switch was := e.err.Load(); {
	case err == nil:
		e.err.Store(nil)
	case was == nil || (*was).Error() != err.Error():
		e.err.Store(&err)
		e.Log.Warn("the election of the plane's node failed; it is tried again", "err", err)
	}
}

// existingLease is the lock of a Lease that the manifests create. It adds an explanation to errors.
type existingLease struct {
	resourcelock.Interface
	election *Election
}

// Get reads the Lease.
func (g existingLease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	r, b, err := g.Interface.Get(ctx)
	switch {
	case apierrors.IsForbidden(err):
		g.election.report(kube.ExplainManifestObject("read", "Lease", g.election.lease(), err))
	case err == nil:
		g.election.report(nil)
	}
	return r, b, err
}

// Create is called when the Lease does not exist. It always returns an error, because the manifests must create the Lease.
func (g existingLease) Create(context.Context, resourcelock.LeaderElectionRecord) error {
	err := kube.ExplainManifestObject("read", "Lease", g.election.lease(), apierrors.NewNotFound(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, LeaseName))
	g.election.report(err)
	return err
}

func (e *Election) lease() client.ObjectKey {
	return client.ObjectKey{Namespace: e.Namespace, Name: LeaseName}
}

// release gives up the Lease if this replica holds it, so that another replica need not wait until it expires. A failure is harmless.
func (e *Election) release(ctx context.Context, lock *resourcelock.LeaseLock) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	for {
		r, _, err := lock.Get(ctx)
		if err != nil || r.HolderIdentity != lock.Identity() {
			return
		}
		now := metav1.Now()
		err = lock.Update(ctx, resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: r.LeaderTransitions})
		if !apierrors.IsConflict(err) { // the conflict is with this replica's own last renewal, which was still in flight
			return
		}
	}
}
