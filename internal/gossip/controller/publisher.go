package controller

import (
	"context"
	"errors"
	"log/slog"
	"sync"
	"sync/atomic"
	"time"

	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/util/retry"
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

	leading atomic.Bool // this server is the one that publishes
}

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
	w := &leaderWork{Publisher: p, errorLog: &errorLog{log: p.Log, byWhat: map[string]string{}}}
	var err error
	if w.members.configMap, err = newConfigMap(config, p.Namespace, MembersConfigMap); err != nil {
		return err
	}
	if p.Profiles != nil {
		if w.profiles, err = newProfileWriter(config, p.Profiles, w.errorLog, p.Now()); err != nil {
			return err
		}
	}

	election := kube.Election{
		Config: config, Namespace: p.Namespace, Lease: LeaseName, Duration: leaseDuration, RenewDeadline: renewDeadline, RetryPeriod: retryPeriod,
		Report: w.reportElection,
	}
	return election.RunTerms(ctx, w.runTerm)
}

// leaderWork is what the leader does.
type leaderWork struct {
	*Publisher
	members  membersWriter
	profiles *profileWriter // nil: none
	errorLog *errorLog
}

// reportElection logs the result of a request for the Lease.
func (w *leaderWork) reportElection(ctx context.Context, doing string, err error) {
	if err != nil {
		err = kube.ExplainManifestObject(doing, "Lease", client.ObjectKey{Namespace: w.Namespace, Name: LeaseName}, err)
	}
	w.errorLog.outcome(ctx, "election, "+doing, err)
}

// runTerm publishes while this server leads. Another server may have led before, so term first drops all cached state.
func (w *leaderWork) runTerm(lead context.Context) {
	w.members.stored = nil
	if w.profiles != nil {
		w.profiles.reset()
		defer w.profiles.cas.fetching.Wait()
	}
	w.leading.Store(true)
	defer w.leading.Store(false)
	w.Log.Info("this server is the publisher of the member list")
	for ok := lead.Err() == nil; ok; ok = retry.Sleep(lead, publishEvery) == nil { // a ticker would start the next pass too early after a slow one
		w.publish(lead)
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
