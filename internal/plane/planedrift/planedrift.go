// Package planedrift compares what the repository of the configuration says with what
// the cluster has. It keeps the law that what is not known is no drift: while the
// repository or the API server does not answer, what was found last stays, with its age.
//
// It finds and says; it mends nothing.
package planedrift

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"log/slog"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/change"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/internal/plane/planechange"
	"github.com/tailplane/tailplane/internal/plane/planefleet"
	"github.com/tailplane/tailplane/internal/problem"
)

// Source is the name of what is compared, among the plane's sources.
const Source = "gitops:drift"

// patience is how long something may be the trace of a change that is being applied.
const patience = 5 * time.Minute

// most bounds how many fields of one object are told of.
const most = 20

// A Check compares the repository with the cluster. All fields are required. One replica
// does it.
type Check struct {
	Board *plane.Board
	Now   func() time.Time
	// Read reads a file as it is at the head of the branch that is applied.
	Read func(ctx context.Context, path string) (planechange.File, error)
	// Pattern says where objects are, as [change.File] has it.
	Pattern string
	// Live lists the fleet's objects in the cluster, with their specs.
	Live func(ctx context.Context) (map[change.Ref]map[string]any, error)
	// Would asks the API server in a dry run what a spec would make of an object.
	Would func(ctx context.Context, r change.Ref, spec map[string]any) (map[string]any, error)
	Every time.Duration // between two looks
	// Again has what asks for a look before the next one; of several at once one is enough.
	Again chan struct{}
	Log   *slog.Logger

	since map[string]time.Time // when a finding was seen first, by id
	last  texts                // of the last look that came to an end
}

// texts are what files say of objects, as they were at one head of the branch.
type texts struct {
	head  string // a commit; empty: not known
	files map[string]map[change.Ref]map[string]any
}

// Run looks until ctx ends.
func (c *Check) Run(ctx context.Context) {
	c.Board.Expect(Source, plane.KindDrift)
	tick := time.NewTicker(c.Every)
	defer tick.Stop()
	for {
		if err := c.Look(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("a look at the repository failed", "error", err)
		}
		if !c.rest(ctx, tick.C) {
			return
		}
	}
}

// leastRest is how long nobody can have the repository looked at again.
const leastRest = 10 * time.Second

// rest waits for the next look. It is false when ctx has ended.
func (c *Check) rest(ctx context.Context, tick <-chan time.Time) bool {
	awake := time.NewTimer(leastRest)
	defer awake.Stop()
	var again <-chan struct{}
	for {
		select {
		case <-awake.C:
			again = c.Again
		case <-again:
			return true
		case <-tick:
			return true
		case <-ctx.Done():
			return false
		}
	}
}

// LookAgain asks for a look: at once, or shortly after the last one.
func (c *Check) LookAgain() {
	select {
	case c.Again <- struct{}{}:
	default: // somebody has asked already
	}
}

// Look compares once, and puts what differs onto the Board. After an error that is what
// it was.
func (c *Check) Look(ctx context.Context) error {
	found, err := c.compare(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		c.Board.Report(plane.Source{Name: Source, Status: plane.Degraded, Message: "What the repository says cannot be compared with the cluster: " + err.Error()})
		return err
	}
	now := c.Now().UTC()
	since := map[string]time.Time{}
	var told []plane.Object
	for _, d := range found {
		at, known := c.since[d.ID]
		if !known {
			at = now
		}
		since[d.ID] = at
		if d.FirstSeen, d.ObservedAt = at, now; !now.Before(at.Add(patience)) {
			told = append(told, d)
		}
	}
	c.since = since
	c.Board.Replace(plane.KindDrift, Source, told)
	c.Board.Report(plane.Source{Name: Source, Status: plane.OK, ObservedAt: now})
	return nil
}

// compare finds what differs.
func (c *Check) compare(ctx context.Context) (found []planefleet.Drift, err error) {
	live, err := c.Live(ctx)
	if err != nil {
		return nil, err
	}
	now := texts{files: map[string]map[change.Ref]map[string]any{}}
	refs := map[change.Ref]bool{}
	for r := range live {
		refs[r] = true
	}
	if path := c.Pattern; !strings.Contains(path, "{") { // one file has all
		specs, err := c.file(ctx, &now, path)
		if err != nil {
			return nil, err
		}
		for r := range specs {
			refs[r] = true
		}
	}
	for r := range refs {
		path, err := change.File(c.Pattern, r)
		if err != nil {
			return nil, err
		}
		specs, err := c.file(ctx, &now, path)
		if err != nil {
			return nil, err
		}
		want, there := specs[r]
		some, err := c.object(ctx, r, path, want, there, live[r])
		if err != nil {
			return nil, err
		}
		found = append(found, some...)
	}
	c.last = now
	return found, nil
}

// file is what a file says of objects. It is read once in a look, and not again as long
// as nobody has committed anything since the last one.
func (c *Check) file(ctx context.Context, now *texts, path string) (map[change.Ref]map[string]any, error) {
	if specs, there := now.files[path]; there {
		return specs, nil
	}
	if specs, there := c.last.files[path]; there && now.head != "" && now.head == c.last.head {
		now.files[path] = specs
		return specs, nil
	}
	f, err := c.Read(ctx, path)
	if err != nil {
		return nil, err
	}
	specs, err := change.Specs(f.Text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", path, err)
	}
	if len(now.files) == 0 {
		now.head = f.Commit
	}
	now.files[path] = specs
	return specs, nil
}

// object is what differs of one object; spec nil: it is not in the cluster.
func (c *Check) object(ctx context.Context, r change.Ref, path string, want map[string]any, there bool, spec map[string]any) ([]planefleet.Drift, error) {
	switch {
	case !there:
		return []planefleet.Drift{finding(r, "Unwritten", nil, nil, fmt.Sprintf("The cluster has it, and %s has not.", path), "Put it into the repository, or have it removed.")}, nil
	case spec == nil:
		return []planefleet.Drift{finding(r, "Missing", nil, nil, fmt.Sprintf("%s has it, and the cluster has not.", path), "Have the repository applied.")}, nil
	}
	would, err := c.Would(ctx, r, want)
	if problem.CodeOf(err) == problem.Validation {
		return []planefleet.Drift{finding(r, "Refused", nil, nil, fmt.Sprintf("The API server does not take what %s says: %s", path, problem.From(err).Message), "Mend the file.")}, nil
	}
	if err != nil {
		return nil, err
	}
	var found []planefleet.Drift
	for _, d := range differences("spec", would, spec, nil) {
		if len(found) == most {
			break
		}
		found = append(found, finding(r, d.path, &d.want, &d.have, fmt.Sprintf("%s is %s in the cluster, and %s says %s.", d.path, d.have, path, d.want), "Have the repository applied, or propose what is live as a change."))
	}
	return found, nil
}

// finding is a drift between the repository and the cluster.
func finding(r change.Ref, field string, want, have *string, evidence, next string) planefleet.Drift {
	sum := sha256.Sum256([]byte("git\x00" + r.String() + "\x00" + field))
	d := planefleet.Drift{ID: hex.EncodeToString(sum[:8]), Workload: r.Kind + "/" + r.Name, Field: field, Kind: planefleet.DriftGit, Severity: "warning", Want: want, Have: have, Evidence: evidence, Next: next}
	switch r.Kind {
	case "RunnerEnrollment":
		d.OrgName = r.Name
	case "RunnerPool":
		d.Pool = r.Name
	case "RunnerForge":
		d.Forge = r.Name
	}
	return d
}
