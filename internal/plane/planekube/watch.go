// Package planekube reads out of Kubernetes what the plane shows, and keeps there what is
// the plane's own: changes, and which drift is ignored. What people ask for of others'
// objects is done by its room act, and which replica is the node is for its room election.
// It keeps law 7: a source that
// cannot be read is shown as down, with what is wrong and since when, and what was
// read last stays, with its age.
package planekube

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"slices"
	"sync"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
	"k8s.io/klog/v2"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/plane"
)

// Times of looking whether the API server is there. A watch of an API server that
// hangs says nothing for most of a minute; people see it much earlier.
const (
	probeEvery = 5 * time.Second
	probeLimit = 5 * time.Second
)

// A Watch keeps a Board as the cluster is. Fields without a remark are required.
// It needs get, list and watch on what it shows, and nothing else.
type Watch struct {
	Config *rest.Config
	Board  *plane.Board

	SigninNamespace string // of the sign-ins
	SystemNamespace string // of the list of members
	FleetNamespace  string // of the fleet's Lease
	Changes         bool   // there are changes, in SystemNamespace

	Ignores *Ignores // which drift is ignored, in SystemNamespace

	Version string // of this program, to compare other clusters with; "": it is not known

	Log *slog.Logger
	Now func() time.Time

	// ProbeEvery, optional, is how often the API server is asked whether it is there.
	ProbeEvery time.Duration

	orgs    orgs
	runners *runners
}

// Run keeps the Board until ctx ends. Its error is a missing setting: what fails
// later is shown on the Board, and tried again. It may be called once.
func (w *Watch) Run(ctx context.Context) error {
	if w.Config == nil || w.Board == nil || w.SigninNamespace == "" || w.SystemNamespace == "" || w.FleetNamespace == "" || w.Ignores == nil || w.Log == nil || w.Now == nil {
		return errors.New("the plane's watch lacks a setting: configuration, board, namespaces, ignored drift, log and clock are required")
	}
	if w.ProbeEvery == 0 {
		w.ProbeEvery = probeEvery
	}
	config := kube.Unthrottled(w.Config)
	c, err := NewClient(config)
	if err != nil {
		return fmt.Errorf("client of the plane's watch: %w", err)
	}
	probe, err := newProbe(config)
	if err != nil {
		return fmt.Errorf("client of the plane's watch: %w", err)
	}
	w.orgs.replace(nil)
	feeds := w.feeds(c)
	for _, f := range feeds {
		kinds := f.also
		if f.kind != "" {
			kinds = append(slices.Clone(kinds), f.kind)
		}
		w.Board.Expect(f.source(), kinds...)
	}
	// What a reflector logs is said on the Board and, once, in our own log.
	ctx = klog.NewContext(ctx, logr.Discard())
	for ctx.Err() == nil {
		w.life(ctx, feeds, probe)
	}
	return nil
}

// life reads all feeds until the API server was away and is back. Then everything
// is read anew: a watch that began before may be on a connection that is dead, and
// would go on to say nothing.
func (w *Watch) life(ctx context.Context, feeds []*feed, probe func(context.Context) error) {
	ctx, cancel := context.WithCancel(ctx)
	var wg sync.WaitGroup
	defer func() { cancel(); wg.Wait() }()
	for _, f := range feeds {
		wg.Go(func() { f.run(ctx) })
	}
	tick := time.NewTicker(w.ProbeEvery)
	defer tick.Stop()
	away := false
	for {
		err := probe(ctx)
		if ctx.Err() != nil {
			return
		}
		switch {
		case err != nil && !away:
			w.Log.Warn("the API server does not answer; what is shown is what was read last", "err", err)
		case err == nil && away:
			w.Log.Info("the API server answers again; everything is read anew")
		}
		for _, f := range feeds {
			f.probed(err)
		}
		w.runners.tick()
		w.Ignores.tick()
		if err == nil && away {
			return
		}
		away = err != nil
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// newProbe returns what asks the API server for its version: everybody may, and
// it looks at nothing that is stored.
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
