package kube

import (
	"context"
	"errors"
	"fmt"
	"os"
	"sync"
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
)

// releaseTimeout bounds the release of a Lease.
const releaseTimeout = 1500 * time.Millisecond

// ErrLeaseLost means that a term ended because the Lease could not be renewed or another replica took it.
var ErrLeaseLost = errors.New("this replica has lost the Lease")

// An Election runs a function on one replica at a time, the holder of a Lease. It releases the Lease only after the
// function has returned. Fields without a remark are required.
type Election struct {
	Config    *rest.Config
	Namespace string
	Lease     string // it must exist: RBAC cannot limit create to one name
	Identity  string // optional, of this replica: by default the host's name and a random part

	// A replica that cannot renew the Lease for RenewDeadline ends its term. Another one may begin Duration after the
	// last renewal. RetryPeriod is the time between two requests.
	Duration, RenewDeadline, RetryPeriod time.Duration

	// Report, optional, is called with the result of each request for the Lease, unless the request failed because
	// another replica was faster. doing is "read" or "write".
	Report func(ctx context.Context, doing string, err error)

	// Overdue, optional, is called when a term has not ended within MaxTermEnd after the Lease was lost. It must end the
	// process, because another replica begins now.
	Overdue    func()
	MaxTermEnd time.Duration

	lock *resourcelock.LeaseLock // the same replica in every term
}

// NewLeaseLock returns one replica's lock of a Lease. The lock creates the Lease if it does not exist. It emits no
// events, because they would need another right. If identity is "", it is the host's name and a random part.
func NewLeaseLock(config *rest.Config, namespace, lease, identity string) (*resourcelock.LeaseLock, error) {
	if identity == "" {
		host, err := os.Hostname()
		if err != nil {
			return nil, fmt.Errorf("name of this replica in the election: %w", err)
		}
		identity = host + "_" + string(uuid.NewUUID())
	}
	c, err := coordinationclient.NewForConfig(Unthrottled(config))
	if err != nil {
		return nil, err
	}
	return &resourcelock.LeaseLock{
		LeaseMeta: metav1.ObjectMeta{Namespace: namespace, Name: lease}, Client: c, LockConfig: resourcelock.ResourceLockConfig{Identity: identity},
	}, nil
}

// Run waits until this replica holds the Lease, and then runs term once. The context of term ends when ctx ends, or when
// the Lease is lost; Run then returns ErrLeaseLost. Run must not be called twice at the same time.
func (e *Election) Run(ctx context.Context, term func(context.Context) error) (err error) {
	if e.lock == nil {
		if e.lock, err = NewLeaseLock(e.Config, e.Namespace, e.Lease, e.Identity); err != nil {
			return err
		}
	}
	began := make(chan struct{}, 1)
	elector, err := leaderelection.NewLeaderElector(leaderelection.LeaderElectionConfig{
		Lock: existingLease{e.lock, e}, LeaseDuration: e.Duration, RenewDeadline: e.RenewDeadline, RetryPeriod: e.RetryPeriod, Name: e.Lease,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: func(context.Context) { began <- struct{}{} }, OnStoppedLeading: func() {}},
	})
	if err != nil {
		return fmt.Errorf("election by the Lease %s: %w", e.Lease, err)
	}
	// The election continues until the term has ended for any reason. The elector must not release the Lease itself: it
	// would release it before the term has ended.
	elect, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	lost := make(chan struct{})
	go func() {
		defer close(lost)
		elector.Run(klog.NewContext(elect, logr.Discard())) // Report has the errors
	}()
	select {
	case <-began:
		if ctx.Err() == nil {
			err = e.runTerm(ctx, lost, term)
		}
	case <-lost: // the Lease was won and lost at once
	case <-ctx.Done():
	}
	select {
	case <-lost:
		err = errors.Join(fmt.Errorf("%w %s", ErrLeaseLost, e.Lease), err)
	default:
	}
	stop()
	<-lost
	e.release(context.WithoutCancel(ctx))
	return err
}

// RunTerms runs term each time this replica holds the Lease, until ctx ends.
func (e *Election) RunTerms(ctx context.Context, term func(context.Context)) error {
	for {
		err := e.Run(ctx, func(ctx context.Context) error { term(ctx); return nil })
		if ctx.Err() != nil {
			return nil
		}
		if !errors.Is(err, ErrLeaseLost) {
			return err
		}
	}
}

// runTerm runs one term. Its context ends when ctx ends or the Lease is lost.
func (e *Election) runTerm(ctx context.Context, lost <-chan struct{}, term func(context.Context) error) error {
	running, end := context.WithCancel(ctx)
	defer end()
	ended := make(chan struct{})
	var watching sync.WaitGroup
	defer watching.Wait()
	defer close(ended)
	watching.Go(func() {
		select {
		case <-ended:
			return
		case <-lost:
		}
		end()
		if e.Overdue == nil {
			return
		}
		late := time.NewTimer(e.MaxTermEnd)
		defer late.Stop()
		select {
		case <-ended:
		case <-late.C:
			e.Overdue()
		}
	})
	return term(running)
}

// release gives up the Lease if this replica holds it, so that another replica need not wait until it expires. A failure
// is harmless.
func (e *Election) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, releaseTimeout)
	defer cancel()
	for {
		r, _, err := e.lock.Get(ctx)
		if err != nil || r.HolderIdentity != e.lock.Identity() {
			return
		}
		now := metav1.Now()
		err = e.lock.Update(ctx, resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: r.LeaderTransitions})
		if !apierrors.IsConflict(err) { // the conflict is with this replica's own last renewal, which was still in flight
			return
		}
	}
}

// An existingLease is the elector's lock. It never creates the Lease. It bounds each request and reports its result.
type existingLease struct {
	*resourcelock.LeaseLock
	election *Election
}

// Get reads the Lease.
func (l existingLease) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	bounded, cancel := context.WithTimeout(ctx, l.election.RenewDeadline)
	defer cancel()
	r, b, err := l.LeaseLock.Get(bounded)
	if !apierrors.IsNotFound(err) { // Create reports this error
		l.report(ctx, "read", err)
	}
	return r, b, err
}

// Update writes the Lease.
func (l existingLease) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	bounded, cancel := context.WithTimeout(ctx, l.election.RenewDeadline)
	defer cancel()
	err := l.LeaseLock.Update(bounded, r)
	if !apierrors.IsConflict(err) { // another replica was faster
		l.report(ctx, "write", err)
	}
	return err
}

// Create is called when the Lease does not exist. It always returns an error, because the manifests must create the Lease.
func (l existingLease) Create(ctx context.Context, _ resourcelock.LeaderElectionRecord) error {
	err := apierrors.NewNotFound(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, l.election.Lease)
	l.report(ctx, "read", err)
	return err
}

func (l existingLease) report(ctx context.Context, doing string, err error) {
	if l.election.Report != nil {
		l.election.Report(ctx, doing, err)
	}
}
