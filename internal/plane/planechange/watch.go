package planechange

import (
	"context"
	"errors"
	"log/slog"
	"reflect"
	"time"

	fleetgitops "github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/problem"
)

// Watch updates unfinished changes: their state at the forge, and whether the cluster has the merged version. It must run on one replica
// only.
type Watch struct {
	Desk *Desk
	// Live returns the spec of an object in the cluster, or nil if there is none. known is false while the state is unknown.
	Live  func(ctx context.Context, r fleetgitops.Ref) (spec map[string]any, known bool)
	Every time.Duration // time between two checks
	Log   *slog.Logger
}

// gitops is the name of the source for the repository.
const gitops = "gitops"

// Run checks the changes every w.Every until ctx ends.
func (w *Watch) Run(ctx context.Context) {
	if w.Desk.Repository == nil {
		return
	}
	tick := time.NewTicker(w.Every)
	defer tick.Stop()
	for {
		w.look(ctx)
		select {
		case <-tick.C:
		case <-ctx.Done():
			return
		}
	}
}

// look checks each unfinished change once. If the forge does not respond, nothing changes and the source becomes Degraded.
func (w *Watch) look(ctx context.Context) {
	d := w.Desk
	l := d.Plane.Board.List(plane.KindChange)
	var failed error
	for _, o := range l.Objects {
		c, ok := o.(Change)
		if !ok || c.kept.State.Final() {
			continue
		}
		if err := w.one(ctx, c.ID); err != nil && ctx.Err() == nil {
			failed = err
		}
	}
	report := plane.Source{Name: gitops, Status: plane.OK, ObservedAt: d.Plane.Now().UTC()}
	if failed != nil {
		report = plane.Source{Name: gitops, Status: plane.Degraded, Message: "The repository of the configuration does not answer: " + failed.Error()}
		w.Log.Warn("a look at changes failed", "error", failed)
	}
	if ctx.Err() == nil {
		d.Plane.Board.Report(report)
	}
}

func (w *Watch) one(ctx context.Context, id string) error {
	d := w.Desk
	k, err := d.Store.Get(ctx, id)
	if pr, ok := errors.AsType[*problem.Error](err); ok && pr.Code == problem.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	was := k.Change
	if k.State != fleetgitops.StateMerged {
		r, err := d.Repository.Request(ctx, k.Number)
		if err != nil {
			return err
		}
		if k.Change = k.Observe(r.Request); k.State == fleetgitops.StateMerging && r.Open { // the response to the merge was lost
			k.Change = k.MergeRefused("")
		}
	}
	if k.State.Final() {
		return w.keep(ctx, was, k)
	}
	f, err := d.Repository.ReadFile(ctx, "", k.File)
	if err != nil {
		return err
	}
	k.Stale = k.State != fleetgitops.StateMerged && f.Version != k.Version
	if k.State == fleetgitops.StateMerged {
		want, there, err := d.Book.Spec(f.Text, k.Ref)
		if err != nil {
			return w.keep(ctx, was, k) // a person must repair the file; in this state it cannot be applied
		}
		live, known := w.Live(ctx, k.Ref)
		if known && (there && live != nil && fleetgitops.ContainsSpec(want, live) || !there && live == nil) {
			k.State = fleetgitops.StateApplied
		}
	}
	return w.keep(ctx, was, k)
}

// keep stores a change if it differs from was.
func (w *Watch) keep(ctx context.Context, was fleetgitops.Change, k Kept) error {
	if reflect.DeepEqual(was, k.Change) {
		return nil
	}
	d := w.Desk
	k, err := d.save(ctx, k)
	if err != nil {
		if pr, ok := errors.AsType[*problem.Error](err); ok && pr.Code == problem.Conflict {
			return nil // a person changed it meanwhile; the next check updates it
		}
		return err
	}
	d.Plane.Board.Put(plane.KindChange, Source, Of(k, d.Plane.Now().UTC()))
	return nil
}
