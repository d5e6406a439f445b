// Package kube connects the operator plane to Kubernetes. It keeps law 7: a source that cannot be read is shown as down, with the
// reason and the time. Data that was read before stays, with its age.
//
//   - [Watcher] brings what the plane shows into its store.
//   - [ChangeStore] and [DriftIgnores] store the plane's own data: changes, and which drift is ignored.
//   - [SigninRevoker], [HoldWriter] and [EnrollmentWriter] make the plane's changes. Every method checks the permit for its action and its
//     target, whatever the caller has already checked.
//   - [Election] selects the replica that is the plane's tailnet node. There are never two: a replica that cannot renew the Lease stops
//     before another one may start.
package kube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/gossip"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane"
)

// Timing of the probe of the API server. A watch reports nothing for most of a minute if the API server hangs; the probe finds that
// earlier.
const (
	probeEvery = 5 * time.Second
	probeLimit = 5 * time.Second
)

// Watcher keeps the plane's store in line with the cluster. Fields are required unless noted otherwise. It needs get, list and watch on what
// it shows, and no other right.
type Watcher struct {
	Config *rest.Config
	Store  *plane.Store

	SigninNamespace string // of the sign-ins
	SystemNamespace string // of the member list
	FleetNamespace  string // of the fleet's Lease
	Changes         bool   // read the changes in SystemNamespace

	DriftIgnores *DriftIgnores // which drift is ignored, in SystemNamespace

	Version string // of this program, to compare with other clusters; "": unknown

	// Proxies, optional, receives the access proxies of this cluster whenever the member list changes.
	Proxies func([]gossip.Proxy)

	Log *slog.Logger
	Now func() time.Time

	// ProbeEvery is the interval of the probe of the API server. It is optional.
	ProbeEvery time.Duration

	orgs  atomic.Pointer[[]access.Org] // see Orgs
	fleet *fleetJoin
}

// Run keeps the plane's store up to date until ctx ends. It returns an error only for a missing setting. Later failures appear on the
// plane's store and are retried. Run may be called once.
func (w *Watcher) Run(ctx context.Context) error {
	if w.Config == nil || w.Store == nil || w.SigninNamespace == "" || w.SystemNamespace == "" || w.FleetNamespace == "" || w.DriftIgnores == nil || w.Log == nil || w.Now == nil {
		return errors.New("the plane's watch needs a configuration, a store, namespaces, ignored drift, a log and a clock")
	}
	if w.ProbeEvery == 0 {
		w.ProbeEvery = probeEvery
	}
	config := kube.Unthrottled(w.Config)
	c, err := newClient(config)
	if err != nil {
		return fmt.Errorf("client of the plane's watch: %w", err)
	}
	probe, err := newProbe(config)
	if err != nil {
		return fmt.Errorf("client of the plane's watch: %w", err)
	}
	feeds := w.feeds(c)
	for _, f := range feeds {
		kinds := f.dependent
		if f.kind != "" {
			kinds = append(slices.Clone(kinds), f.kind)
		}
		w.Store.Expect(f.source(), kinds...)
	}
	// The plane's store and, once, this program's log report what the reflectors would log.
	ctx = klog.NewContext(ctx, logr.Discard())
	for ctx.Err() == nil {
		w.runFeeds(ctx, feeds, probe)
	}
	return nil
}

// Orgs returns the organisations with their owners and members, sorted by name. While the API server is down it returns the last known
// list, and nil before the first one. The caller must not modify it.
func (w *Watcher) Orgs() []access.Org {
	if list := w.orgs.Load(); list != nil {
		return *list
	}
	return nil
}

// runFeeds runs all feeds until the API server was down and is up again. Everything must then be read again: an older watch may be on a dead
// connection and would report nothing more.
func (w *Watcher) runFeeds(ctx context.Context, feeds []*feed, probe func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	for _, f := range feeds {
		wg.Go(func() { f.run(ctx) })
	}
	tick := time.NewTicker(w.ProbeEvery)
	defer tick.Stop()
	down := false
	for {
		err := probe(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil && !down:
			w.Log.Warn("the API server does not respond; the plane shows the last known state", "err", err)
		case err == nil && down:
			w.Log.Info("the API server responds again; the plane reads everything again")
		}
		for _, f := range feeds {
			f.recordProbe(err)
		}
		w.fleet.tick()
		w.DriftIgnores.tick()
		if err == nil && down {
			return
		}
		down = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// newProbe returns a function that requests the API server's version. Every account may do that, and it does not touch storage.
func newProbe(config *rest.Config) (func(context.Context) error, error) {
	c := rest.CopyConfig(config)
	c.GroupVersion, c.NegotiatedSerializer, c.Timeout = nil, scheme.Codecs.WithoutConversion(), probeLimit
	client, err := rest.UnversionedRESTClientFor(c)
	if err != nil {
		return nil, err
	}
	return func(ctx context.Context) error {
		ctx, cancel := context.WithTimeout(ctx, probeLimit)
		defer cancel()
		return client.Get().AbsPath("/version").MaxRetries(0).Do(ctx).Error()
	}, nil
}
