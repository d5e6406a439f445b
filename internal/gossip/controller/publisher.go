package controller

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

// LeaseName is the Lease by which the access servers of a cluster elect the one that publishes.
const LeaseName = "tailplane-access"

const (
	// publishEvery is the least time between two passes, and so between two writes of one object.
	publishEvery = 2 * time.Second

	// Times of the election. A leader that cannot renew stops before another server can become leader.
	leaseDuration = 15 * time.Second
	renewDeadline = 10 * time.Second
	retryPeriod   = 2 * time.Second

	// callLimit bounds one request to the API server.
	callLimit = 10 * time.Second
	// releaseLimit bounds the release of the Lease when the publisher ends.
	releaseLimit = 1500 * time.Millisecond
)

// A Publisher publishes in the cluster what its access servers know of other clusters. Each server runs one; only the leader writes. Fields
// without a remark are required.
type Publisher struct {
	Config    *rest.Config
	Namespace string // of the Lease and the ConfigMap

	// Clusters returns the list of members as ?state=all returns it. The publisher calls it every two seconds; it must not block. While the
	// list is empty the publisher writes and removes nothing: a server that does not know even its own cluster has nothing to publish.
	Clusters func() []Cluster

	// Ready, optional, reports whether another server was heard since this one began. Until then the publisher removes no cluster from the
	// list, because silence says nothing about the others.
	Ready func() bool

	Log *slog.Logger
	Now func() time.Time

	// Profiles, optional, are written in addition to the list.
	Profiles *Profiles

	leading atomic.Bool
}

// Leads reports whether this server is the one that publishes.
func (p *Publisher) Leads() bool { return p.leading.Load() }

// Run publishes until ctx ends. It then releases the Lease and returns within two seconds. It returns an error only for a missing setting;
// it logs later failures and retries. Run must not be called twice.
func (p *Publisher) Run(ctx context.Context) error {
	if p.Config == nil || p.Namespace == "" || p.Clusters == nil || p.Log == nil || p.Now == nil {
		return errors.New("the publisher of members needs configuration, namespace, clusters, log and clock")
	}
	if f := p.Profiles; f != nil && (f.Namespace == "" || f.ForgetAfter <= 0 || f.CA == nil) {
		return errors.New("ClusterProfiles need a namespace, a time to forget and an authority")
	}
	config := kube.Unthrottled(p.Config)
	w := &leaderWork{Publisher: p, errorLog: &errorLog{log: p.Log, byWhat: map[string]string{}}, leads: make(chan context.Context, 1)}
	var err error
	if w.members, err = newMembersWriter(config, p.Namespace); err != nil {
		return err
	}
	if p.Profiles != nil {
		if w.profiles, err = newProfileWriter(config, p.Profiles, w.errorLog, p.Now()); err != nil {
			return err
		}
	}

	// Work under the Lease must end before the Lease is released, so the election outlives ctx. The elector must not release the Lease
	// itself: it would release it before it stops a leader that cannot renew.
	elect, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	lock, err := newLeaseLock(config, p.Namespace, w.errorLog)
	if err != nil {
		return err
	}
	elections := leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Name: LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: w.beginTerm, OnStoppedLeading: func() {}},
	}
	elector, err := leaderelection.NewLeaderElector(elections)
	if err != nil {
		return fmt.Errorf("election of a publisher: %w", err)
	}
	var election sync.WaitGroup
	election.Go(func() {
		for elect.Err() == nil {
			elector.Run(klog.NewContext(elect, logr.Discard())) // the lock logs each failure once
		}
	})
	w.run(ctx)
	stop()
	election.Wait()
	lock.release(context.WithoutCancel(ctx))
	return nil
}

// leaderWork is what the leader does.
type leaderWork struct {
	*Publisher
	members  *membersWriter
	profiles *profileWriter // nil: none
	errorLog *errorLog
	leads    chan context.Context // one context per term
}

// beginTerm begins a term. The elector calls it in its own goroutine.
func (w *leaderWork) beginTerm(lead context.Context) {
	select {
	case w.leads <- lead:
	case <-lead.Done():
	}
}

// run runs the terms until ctx ends.
func (w *leaderWork) run(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case lead := <-w.leads:
			lead, end := context.WithCancel(lead)
			stop := context.AfterFunc(ctx, end)
			w.runTerm(lead)
			stop()
			end()
		}
	}
}

// runTerm publishes while this server leads. Another server may have led before, so term first drops all cached state.
func (w *leaderWork) runTerm(lead context.Context) {
	w.members.there = nil
	if w.profiles != nil {
		w.profiles.reset()
		defer w.profiles.cas.wait()
	}
	w.leading.Store(true)
	defer w.leading.Store(false)
	w.Log.Info("this server is the publisher of the member list")
	for lead.Err() == nil {
		w.publish(lead)
		// A ticker would start the next pass too early after a slow one.
		next := time.NewTimer(publishEvery)
		select {
		case <-next.C:
		case <-lead.Done():
			next.Stop()
		}
	}
}

// publish publishes the current list, if that is due.
func (w *leaderWork) publish(lead context.Context) {
	clusters := sortedClusters(w.Clusters())
	if len(clusters) == 0 {
		return
	}
	if w.Ready != nil && !w.Ready() {
		if loses, err := w.members.removesClusters(lead, clusters); loses || err != nil {
			w.errorLog.outcome(lead, "members", err)
			return
		}
	}
	w.errorLog.outcome(lead, "members", w.members.write(lead, w.Now(), clusters))
	if w.profiles != nil {
		w.errorLog.outcome(lead, "ClusterProfiles", w.profiles.writeAll(lead, w.Now(), clusters))
	}
}

// A leaseLock is the election's Lease. It never creates the Lease, and it logs errors in Tailplane's wording. It writes no events, because they
// would need another right.
type leaseLock struct {
	resourcelock.Interface
	key      client.ObjectKey
	errorLog *errorLog
}

func newLeaseLock(config *rest.Config, namespace string, errorLog *errorLog) (*leaseLock, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this server in the election: %w", err)
	}
	c, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &leaseLock{key: client.ObjectKey{Namespace: namespace, Name: LeaseName}, errorLog: errorLog, Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: LeaseName},
		Client:     c,
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}}, nil
}

func (l *leaseLock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	bounded, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, b, err := l.Interface.Get(bounded)
	if !apierrors.IsNotFound(err) { // Create reports this error
		l.outcome(ctx, "read", err)
	}
	return r, b, err
}

func (l *leaseLock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	bounded, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := l.Interface.Update(bounded, r)
	if !apierrors.IsConflict(err) { // another server was faster
		l.outcome(ctx, "write", err)
	}
	return err
}

func (l *leaseLock) Create(ctx context.Context, _ resourcelock.LeaderElectionRecord) error {
	err := apierrors.NewNotFound(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, l.key.Name)
	l.outcome(ctx, "read", err)
	return err
}

func (l *leaseLock) outcome(ctx context.Context, doing string, err error) {
	if err != nil {
		err = kube.ExplainManifestObject(doing, "Lease", l.key, err)
	}
	l.errorLog.outcome(ctx, "election, "+doing, err)
}

// release gives up the Lease if this server holds it, so that another server need not wait for it to expire. A failure has no other
// consequence.
func (l *leaseLock) release(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, releaseLimit)
	defer cancel()
	for {
		r, _, err := l.Interface.Get(ctx)
		if err != nil || r.HolderIdentity != l.Identity() {
			return
		}
		now := metav1.Now()
		err = l.Interface.Update(ctx, resourcelock.LeaderElectionRecord{LeaseDurationSeconds: 1, AcquireTime: now, RenewTime: now, LeaderTransitions: r.LeaderTransitions})
		if !apierrors.IsConflict(err) { // a last renewal of this server was still under way
			return
		}
	}
}

// errorLog logs a failure once instead of every two seconds, and logs when it is over.
type errorLog struct {
	log    *slog.Logger
	mu     sync.Mutex
	byWhat map[string]string // last logged text, by what failed
}

// outcome logs the result of an attempt, unless ctx ended it.
func (r *errorLog) outcome(ctx context.Context, what string, err error) {
	text := ""
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		text = err.Error()
	}
	r.mu.Lock()
	was := r.byWhat[what]
	if text == "" {
		delete(r.byWhat, what)
	} else {
		r.byWhat[what] = text
	}
	r.mu.Unlock()
	switch {
	case text == was:
	case text == "":
		r.log.Info("publishing the member list works again", "what", what)
	default:
		r.log.Warn("publishing the member list fails; trying again", "what", what, "err", text)
	}
}

// drop forgets a failure that will not be retried.
func (r *errorLog) drop(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.byWhat, what)
}
