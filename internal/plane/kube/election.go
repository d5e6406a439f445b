package kube

import (
	"context"
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"k8s.io/client-go/rest"
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
)

// Election runs a function on the replica that is the plane's node. All exported fields are required.
type Election struct {
	Config    *rest.Config
	Namespace string // of the Lease
	Log       *slog.Logger

	// Overdue is called when a term has not ended in time after the Lease was lost. It must end the process, because another replica starts
	// now.
	Overdue func()

	err atomic.Pointer[error]
}

// Run waits until this replica holds the Lease, and then runs term once. The context of term ends when ctx ends, or when the Lease is lost;
// Run then returns kube.ErrLeaseLost. It releases the Lease only after term has returned.
func (e *Election) Run(ctx context.Context, term func(context.Context) error) error {
	if e.Config == nil || e.Namespace == "" || e.Log == nil || e.Overdue == nil {
		return errors.New("the plane's election needs a configuration, a namespace, a log and a function for overdue terms")
	}
	election := kube.Election{
		Config: e.Config, Namespace: e.Namespace, Lease: LeaseName, Duration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Report: e.report, Overdue: e.Overdue, MaxTermEnd: maxTermEnd,
	}
	e.Log.Info("waiting to become the plane's node", "lease", e.Namespace+"/"+LeaseName)
	return election.Run(ctx, func(ctx context.Context) error {
		e.Log.Info("this replica is the plane's node")
		return term(ctx)
	})
}

// Err returns why the election cannot continue, for example because the Lease is missing or not readable. It returns nil while it can.
func (e *Election) Err() error {
	if err := e.err.Load(); err != nil {
		return *err
	}
	return nil
}

// report stores why the Lease cannot be read, and logs a new reason. Other failures end without a change of the cluster.
func (e *Election) report(_ context.Context, doing string, err error) {
	switch {
	case doing != "read":
	case err == nil:
		e.err.Store(nil)
	case apierrors.IsForbidden(err) || apierrors.IsNotFound(err):
		err = kube.ExplainManifestObject(doing, "Lease", client.ObjectKey{Namespace: e.Namespace, Name: LeaseName}, err)
		if was := e.Err(); was == nil || was.Error() != err.Error() {
			e.err.Store(&err)
			e.Log.Warn("the election of the plane's node failed; it is tried again", "err", err)
		}
	}
}
