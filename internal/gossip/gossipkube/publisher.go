package gossipkube

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

	// Heard, optional, reports whether another server was heard since this one began. Until then the publisher removes no cluster from the
	// list, because silence says nothing about the others.
	Heard func() bool

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
		return errors.New("the publisher of members lacks a setting: configuration, namespace, clusters, log and clock are required")
	}
	if f := p.Profiles; f != nil && (f.Namespace == "" || f.ForgetAfter <= 0 || f.CA == nil) {
		return errors.New("ClusterProfiles lack a setting: namespace, time to forget and authority are required")
	}
	config := kube.Unthrottled(p.Config)
	w := &work{Publisher: p, said: &reports{log: p.Log, texts: map[string]string{}}, leads: make(chan context.Context, 1)}
	var err error
	if w.board, err = newBoard(config, p.Namespace); err != nil {
		return err
	}
	if p.Profiles != nil {
		if w.profiler, err = newProfiler(config, p.Profiles, w.said, p.Now()); err != nil {
			return err
		}
	}

	// Work under the Lease must end before the Lease is released, so the election outlives ctx. The elector must not release the Lease
	// itself: it would release it before it stops a leader that cannot renew.
	elect, stop := context.WithCancel(context.WithoutCancel(ctx))
	defer stop()
	lock, err := newLock(config, p.Namespace, w.said)
	if err != nil {
		return err
	}
	elections := leaderelection.LeaderElectionConfig{
		Lock: lock, LeaseDuration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod, Name: LeaseName,
		Callbacks: leaderelection.LeaderCallbacks{OnStartedLeading: w.elected, OnStoppedLeading: func() {}},
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
	w.until(ctx)
	stop()
	election.Wait()
	lock.release(context.WithoutCancel(ctx))
	return nil
}

// work is what the leader does.
type work struct {
	*Publisher
	board    *board
	profiler *profiler // nil: none
	said     *reports
	leads    chan context.Context // one context per term
}

// elected begins a term. The elector calls it in its own goroutine.
func (w *work) elected(lead context.Context) {
	select {
	case w.leads <- lead:
	case <-lead.Done():
	}
}

// until runs the terms until ctx ends.
func (w *work) until(ctx context.Context) {
	for {
		select {
		case <-ctx.Done():
			return
		case lead := <-w.leads:
			lead, end := context.WithCancel(lead)
			stop := context.AfterFunc(ctx, end)
			w.term(lead)
			stop()
			end()
		}
	}
}

// term publishes while this server leads. Another server may have led before, so term first drops all cached state.
func (w *work) term(lead context.Context) {
	w.board.there = nil
	if w.profiler != nil {
		w.profiler.forget()
		defer w.profiler.authorities.wait()
	}
	w.leading.Store(true)
	defer w.leading.Store(false)
	w.Log.Info("this server publishes the members")
	for lead.Err() == nil {
		w.look(lead)
		// A ticker would start the next pass too early after a slow one.
		next := time.NewTimer(publishEvery)
		select {
		case <-next.C:
		case <-lead.Done():
			next.Stop()
		}
	}
}

// look publishes the current list, if that is due.
func (w *work) look(lead context.Context) {
	clusters := ordered(w.Clusters())
	if len(clusters) == 0 {
		return
	}
	if w.Heard != nil && !w.Heard() {
		if loses, err := w.board.loses(lead, clusters); loses || err != nil {
			w.said.outcome(lead, "members", err)
			return
		}
	}
	w.said.outcome(lead, "members", w.board.pass(lead, w.Now(), clusters))
	if w.profiler != nil {
		w.said.outcome(lead, "ClusterProfiles", w.profiler.pass(lead, w.Now(), clusters))
	}
}

// A lock is the election's Lease. It never creates the Lease, and it logs errors in Tailplane's wording. It writes no events, because they
// would need another right.
type lock struct {
	resourcelock.Interface
	key  client.ObjectKey
	said *reports
}

func newLock(config *rest.Config, namespace string, said *reports) (*lock, error) {
	host, err := os.Hostname()
	if err != nil {
		return nil, fmt.Errorf("name of this server in the election: %w", err)
	}
	c, err := coordinationclient.NewForConfig(config)
	if err != nil {
		return nil, err
	}
	return &lock{key: client.ObjectKey{Namespace: namespace, Name: LeaseName}, said: said, Interface: &resourcelock.LeaseLock{
		LeaseMeta:  metav1.ObjectMeta{Namespace: namespace, Name: LeaseName},
		Client:     c,
		LockConfig: resourcelock.ResourceLockConfig{Identity: host + "_" + string(uuid.NewUUID())},
	}}, nil
}

func (l *lock) Get(ctx context.Context) (*resourcelock.LeaderElectionRecord, []byte, error) {
	bounded, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	r, b, err := l.Interface.Get(bounded)
	if !apierrors.IsNotFound(err) { // Create reports this error
		l.outcome(ctx, "read", err)
	}
	return r, b, err
}

func (l *lock) Update(ctx context.Context, r resourcelock.LeaderElectionRecord) error {
	bounded, cancel := context.WithTimeout(ctx, callLimit)
	defer cancel()
	err := l.Interface.Update(bounded, r)
	if !apierrors.IsConflict(err) { // another server was faster
		l.outcome(ctx, "write", err)
	}
	return err
}

func (l *lock) Create(ctx context.Context, _ resourcelock.LeaderElectionRecord) error {
	err := apierrors.NewNotFound(schema.GroupResource{Group: "coordination.k8s.io", Resource: "leases"}, l.key.Name)
	l.outcome(ctx, "read", err)
	return err
}

func (l *lock) outcome(ctx context.Context, doing string, err error) {
	if err != nil {
		err = kube.ExplainGiven(doing, "Lease", l.key, err)
	}
	l.said.outcome(ctx, "election, "+doing, err)
}

// release gives up the Lease if this server holds it, so that another server need not wait for it to expire. A failure has no other
// consequence.
func (l *lock) release(ctx context.Context) {
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

// reports logs a failure once instead of every two seconds, and logs when it is over.
type reports struct {
	log   *slog.Logger
	mu    sync.Mutex
	texts map[string]string // last logged text, by what failed
}

// outcome logs the result of an attempt, unless ctx ended it.
func (r *reports) outcome(ctx context.Context, what string, err error) {
	text := ""
	if err != nil {
		if ctx.Err() != nil {
			return
		}
		text = err.Error()
	}
	r.mu.Lock()
	was := r.texts[what]
	if text == "" {
		delete(r.texts, what)
	} else {
		r.texts[what] = text
	}
	r.mu.Unlock()
	switch {
	case text == was:
	case text == "":
		r.log.Info("publishing works again", "what", what)
	default:
		r.log.Warn("publishing fails; it is tried again", "what", what, "err", text)
	}
}

// drop forgets a failure that will not be retried.
func (r *reports) drop(what string) {
	r.mu.Lock()
	defer r.mu.Unlock()
	delete(r.texts, what)
}
