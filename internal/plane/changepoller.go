package plane

import (
	"context"
	"log/slog"
	"reflect"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// ChangePoller updates unfinished changes: their state at the forge, and whether the cluster has the merged version. It must run on one replica
// only.
type ChangePoller struct {
	Changes *ChangeService
	// Live returns the spec of an object in the cluster, or nil if there is none. known is false while the state is unknown.
	Live     func(ctx context.Context, r gitops.Ref) (spec map[string]any, known bool)
	Interval time.Duration // time between two checks
	Log      *slog.Logger
}

// repositorySource is the name of the source for the repository.
const repositorySource = "gitops"

// Run checks the changes every w.Interval until ctx ends.
func (w *ChangePoller) Run(ctx context.Context) {
	if w.Changes.Repository == nil {
		return
	}
	for ctx.Err() == nil {
		w.poll(ctx)
		_ = retry.Sleep(ctx, w.Interval) // the loop checks ctx itself
	}
}

// poll checks each unfinished change once. If the forge does not respond, nothing changes and the source becomes Degraded.
func (w *ChangePoller) poll(ctx context.Context) {
	d := w.Changes
	l := d.Plane.Store.List(KindChange)
	var failed error
	for _, o := range l.Objects {
		c, ok := o.(Change)
		if !ok || c.stored.State.Final() {
			continue
		}
		if err := w.pollChange(ctx, c.ID); err != nil && ctx.Err() == nil {
			failed = err
		}
	}
	report := Source{Name: repositorySource, Status: StatusOK, ObservedAt: d.Plane.Now().UTC()}
	if failed != nil {
		report = Source{Name: repositorySource, Status: StatusDegraded, Message: "The configuration repository does not respond: " + failed.Error()}
		w.Log.Warn("update of the changes failed", "error", failed)
	}
	if ctx.Err() == nil {
		d.Plane.Store.Report(report)
	}
}

func (w *ChangePoller) pollChange(ctx context.Context, id string) error {
	d := w.Changes
	k, err := d.Store.Get(ctx, id)
	if problem.CodeOf(err) == problem.NotFound {
		return nil
	}
	if err != nil {
		return err
	}
	was := k.Change
	if k.State != gitops.StateMerged {
		r, err := d.Repository.PullRequest(ctx, k.Number)
		if err != nil {
			return err
		}
		if k.Change = k.Observe(r); k.State == gitops.StateMerging && r.Open { // the response to the merge was lost
			k.Change = k.MergeRefused("")
		}
	}
	if k.State.Final() {
		return w.saveIfChanged(ctx, was, k)
	}
	f, err := d.Repository.ReadFile(ctx, "", k.File)
	if err != nil {
		return err
	}
	k.Stale = k.State != gitops.StateMerged && f.Version != k.Version
	if k.State == gitops.StateMerged {
		want, found, err := d.Layout.Spec(f.Content, k.Ref)
		if err != nil {
			return w.saveIfChanged(ctx, was, k) // a person must repair the file; in this state it cannot be applied
		}
		live, known := w.Live(ctx, k.Ref)
		if known && (found && live != nil && gitops.ContainsSpec(want, live) || !found && live == nil) {
			k.State = gitops.StateApplied
		}
	}
	return w.saveIfChanged(ctx, was, k)
}

// saveIfChanged stores a change if it differs from was.
func (w *ChangePoller) saveIfChanged(ctx context.Context, was gitops.Change, k StoredChange) error {
	if reflect.DeepEqual(was, k.Change) {
		return nil
	}
	d := w.Changes
	k, err := d.save(ctx, k)
	if problem.CodeOf(err) == problem.Conflict {
		return nil // a person changed it meanwhile; the next check updates it
	}
	if err != nil {
		return err
	}
	d.Plane.Store.Set(KindChange, ChangesSource, NewChange(k, d.Plane.Now().UTC()))
	return nil
}
