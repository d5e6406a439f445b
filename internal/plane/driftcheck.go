package plane

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"reflect"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// DriftSource is the name of the comparison among the plane's sources.
const DriftSource = "gitops:drift"

// driftReportDelay is how long a difference may last before it is reported, because a change may be in the middle of being applied.
const driftReportDelay = 5 * time.Minute

// maxDriftFields is the maximum number of reported fields per object.
const maxDriftFields = 20

// DriftCheck compares the repository with the cluster. All fields are required. It must run on one replica only.
type DriftCheck struct {
	Store *Store
	Now   func() time.Time
	// Read reads a file at the head of the applied branch.
	Read func(ctx context.Context, path string) (gitops.File, error)
	// Files lists the files that may hold objects, at that head. It is not called if one file holds all objects. It returns
	// problem.TooLarge if the list is incomplete.
	Files func(ctx context.Context) (RepositoryFiles, error)
	// Pattern says where objects are, in the syntax of [gitops.ManifestPath].
	Pattern string
	// Live lists the fleet's objects in the cluster with their specs.
	Live func(ctx context.Context) (map[gitops.Ref]map[string]any, error)
	// DryRunSpec returns, from a dry run, the spec that the API server would store for an object.
	DryRunSpec func(ctx context.Context, r gitops.Ref, spec map[string]any) (map[string]any, error)
	Interval   time.Duration // time between two comparisons
	// Triggers triggers a comparison before the next interval. A buffer of one is enough.
	Triggers chan struct{}
	Log      *slog.Logger

	since map[string]time.Time // first time of each finding, by id
	last  parsedFiles          // of the last complete comparison
	// otherFiles holds the files, from the last list, that may have objects missing in the cluster.
	otherFiles []string
}

// maxOtherFiles is the maximum number of files read that hold no object of the cluster.
const maxOtherFiles = 500

// otherFilesUnknown begins the message about files that could not be listed.
const otherFilesUnknown = "The check for files in git that were never applied is incomplete"

// parsedFiles holds the content of files at one head of the branch.
type parsedFiles struct {
	head  string                // commit; empty: unknown
	blobs map[string]string     // blob ids of the listed files, by path
	files map[string]parsedFile // by path
}

// parsedFile is the content of a file.
type parsedFile struct {
	blob  string // git blob id; empty: unknown
	specs map[gitops.Ref]map[string]any
	err   error // why the file is unreadable
}

// Run compares every c.Interval, and when triggered, until ctx ends.
func (c *DriftCheck) Run(ctx context.Context) {
	c.Store.Expect(DriftSource, KindDrift)
	for ctx.Err() == nil {
		if err := c.Reconcile(ctx); err != nil && ctx.Err() == nil {
			c.Log.Warn("comparison with the repository failed", "error", err)
		}
		if retry.Sleep(ctx, minDriftInterval) == nil {
			_ = retry.SleepOrWake(ctx, c.Interval-minDriftInterval, c.Triggers) // the loop checks ctx itself
		}
	}
}

// minDriftInterval is the minimum time between two comparisons.
const minDriftInterval = 10 * time.Second

// Trigger triggers a comparison: at once, or shortly after the last one.
func (c *DriftCheck) Trigger() {
	select {
	case c.Triggers <- struct{}{}:
	default: // already triggered
	}
}

// Reconcile compares once and updates the plane's store. After an error the drift in the plane's store stays as it was.
func (c *DriftCheck) Reconcile(ctx context.Context) error {
	found, gap, err := c.compare(ctx)
	if ctx.Err() != nil {
		return ctx.Err()
	}
	if err != nil {
		c.Store.Report(Source{Name: DriftSource, Status: StatusDegraded, Message: "The repository and the cluster cannot be compared: " + err.Error()})
		return err
	}
	now := c.Now().UTC()
	since := map[string]time.Time{}
	var reported []Object
	for _, d := range found {
		at, known := c.since[d.ID]
		if !known {
			at = now
		}
		since[d.ID] = at
		if d.FirstSeen, d.ObservedAt = at, now; !now.Before(at.Add(driftReportDelay)) {
			reported = append(reported, d)
		}
	}
	c.since = since
	c.Store.Replace(KindDrift, DriftSource, reported)
	status := StatusOK
	if gap != "" {
		status = StatusDegraded
	}
	c.Store.Report(Source{Name: DriftSource, Status: status, ObservedAt: now, Message: gap})
	return nil
}

// compare returns the differences. gap is a sentence about what it could not compare, or "".
func (c *DriftCheck) compare(ctx context.Context) (found []Drift, gap string, err error) {
	live, err := c.Live(ctx)
	if err != nil {
		return nil, "", err
	}
	now := parsedFiles{files: map[string]parsedFile{}}
	at := map[string][]gitops.Ref{} // objects of the cluster, by the file that must hold them
	for r := range live {
		path, err := gitops.ManifestPath(c.Pattern, r)
		if err != nil {
			return nil, "", err
		}
		at[path] = append(at[path], r)
	}
	gap, err = c.addOtherFiles(ctx, &now, at)
	if err != nil {
		return nil, "", err
	}
	var unread []error
	for _, path := range slices.Sorted(maps.Keys(at)) {
		specs, err := c.readFile(ctx, &now, path)
		if err != nil && path != c.Pattern && unreadable(err) {
			unread = append(unread, err) // continue with the other files
			continue
		}
		if err != nil {
			return nil, "", err
		}
		for _, r := range c.addDefined(path, at[path], specs) {
			want, there := specs[r]
			some, err := c.compareObject(ctx, r, path, want, there, live[r])
			if err != nil {
				return nil, "", err
			}
			found = append(found, some...)
		}
	}
	if len(unread) > 0 {
		c.Log.Warn("cannot read files of the repository", "files", len(unread), "first", unread[0])
		// The message must not name the files: a name may identify another organisation.
		gap = strings.TrimSpace(gap + " The comparison omits " + problem.Plural(len(unread), "file") + " that cannot be read.")
	}
	c.last = now
	return found, gap, nil
}

// unreadable reports whether the error is about the file itself, and not about a missing response.
func unreadable(err error) bool {
	return errors.Is(err, gitops.ErrUnreadableFile) || errors.Is(err, gitops.ErrDuplicateObject) || problem.CodeOf(err) == problem.Conflict
}

// addDefined returns refs and the further objects that the file defines.
func (c *DriftCheck) addDefined(path string, refs []gitops.Ref, specs map[gitops.Ref]map[string]any) []gitops.Ref {
	for r := range specs {
		if its, err := gitops.ManifestPath(c.Pattern, r); err == nil && its == path && !slices.Contains(refs, r) {
			refs = append(refs, r)
		}
	}
	return refs
}

// addOtherFiles adds the files that may hold objects missing in the cluster. If they cannot be listed, it uses the last list and returns the gap.
func (c *DriftCheck) addOtherFiles(ctx context.Context, now *parsedFiles, at map[string][]gitops.Ref) (gap string, err error) {
	if !strings.Contains(c.Pattern, "{") { // one file holds all objects
		c.otherFiles = []string{c.Pattern}
	} else if gap, err = c.listOtherFiles(ctx, now, at); err != nil {
		return "", err
	}
	for _, path := range c.otherFiles {
		if _, known := at[path]; !known {
			at[path] = nil
		}
	}
	return gap, nil
}

// listOtherFiles lists the files that hold no object of the cluster.
func (c *DriftCheck) listOtherFiles(ctx context.Context, now *parsedFiles, at map[string][]gitops.Ref) (gap string, err error) {
	all, err := c.Files(ctx)
	switch {
	case problem.CodeOf(err) == problem.TooLarge:
		p := problem.From(err)
		return strings.Join(append([]string{otherFilesUnknown + ": " + p.Message}, p.Advice...), " "), nil
	case err != nil:
		return "", err
	}
	now.head, now.blobs = all.Commit, all.Blobs
	var others []string
	for path := range all.Blobs {
		if at[path] == nil {
			others = append(others, path)
		}
	}
	if len(others) > maxOtherFiles {
		return fmt.Sprintf("%s: %d files match, and the limit is %d. Keep the objects in a separate folder.", otherFilesUnknown, len(others), maxOtherFiles), nil
	}
	c.otherFiles = others
	return "", nil
}

// readFile returns the specs in a file. A file that was read before is read again only after a new commit, and then only if its blob has
// changed or is unknown.
func (c *DriftCheck) readFile(ctx context.Context, now *parsedFiles, path string) (map[gitops.Ref]map[string]any, error) {
	t, known := c.last.files[path]
	if !known || now.head == "" || now.head != c.last.head && (t.blob == "" || t.blob != now.blobs[path]) {
		f, err := c.Read(ctx, path)
		if err != nil {
			return nil, err
		}
		t = parsedFile{}
		if t.specs, err = gitops.ReadSpecs(f.Content); err != nil {
			t.err = fmt.Errorf("%s: %w", path, err)
		}
		if now.head == "" {
			now.head = f.Commit
		}
		if f.Commit != now.head { // the branch has moved: do not cache
			return t.specs, t.err
		}
	}
	t.blob = now.blobs[path]
	now.files[path] = t
	return t.specs, t.err
}

// compareObject returns the differences of one object. A nil spec means that it is not in the cluster.
func (c *DriftCheck) compareObject(ctx context.Context, r gitops.Ref, path string, want map[string]any, there bool, spec map[string]any) ([]Drift, error) {
	switch {
	case !there:
		return []Drift{repositoryDrift(r, "Unwritten", nil, nil, fmt.Sprintf("The object is in the cluster, but not in %s.", path), "Add it to the repository, or remove it from the cluster.")}, nil
	case spec == nil:
		return []Drift{repositoryDrift(r, "Missing", nil, nil, fmt.Sprintf("The object is in %s, but not in the cluster.", path), "Apply the repository to the cluster.")}, nil
	}
	would, err := c.DryRunSpec(ctx, r, want)
	if problem.CodeOf(err) == problem.Validation {
		return []Drift{repositoryDrift(r, "Refused", nil, nil, fmt.Sprintf("The API server rejects the object in %s: %s", path, problem.From(err).Message), "Correct the file.")}, nil
	}
	if err != nil {
		return nil, err
	}
	var found []Drift
	for _, d := range differences("spec", would, spec, nil) {
		if len(found) == maxDriftFields {
			break
		}
		found = append(found, repositoryDrift(r, d.path, &d.want, &d.have, fmt.Sprintf("%s is %s in the cluster, but %s has %s.", d.path, d.have, path, d.want), "Apply the repository to the cluster, or propose the live value as a change."))
	}
	return found, nil
}

// repositoryDrift returns a drift between the repository and the cluster.
func repositoryDrift(r gitops.Ref, field string, want, have *string, evidence, next string) Drift {
	sum := sha256.Sum256([]byte("git\x00" + r.String() + "\x00" + field))
	d := Drift{ID: hex.EncodeToString(sum[:8]), Workload: r.Kind + "/" + r.Name, Field: field, Kind: DriftGit, Severity: "warning", Want: want, Have: have, Evidence: evidence, Next: next}
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

// maxDriftValue is the maximum length of a shown value, in bytes.
const maxDriftValue = 200

// difference is one field that differs.
type difference struct{ path, want, have string }

// differences appends the differences of the value at path, in path order. A value missing on one side is shown as null. Lists are compared
// as a whole.
func differences(path string, want, have any, all []difference) []difference {
	w, isMap := want.(map[string]any)
	h, both := have.(map[string]any)
	if isMap && both {
		keys := maps.Clone(w)
		maps.Copy(keys, h)
		for _, k := range slices.Sorted(maps.Keys(keys)) {
			all = differences(path+"."+k, w[k], h[k], all)
		}
		return all
	}
	if reflect.DeepEqual(want, have) {
		return all
	}
	return append(all, difference{path, driftValue(want), driftValue(have)})
}

func driftValue(v any) string {
	text, err := json.Marshal(v)
	if err != nil {
		return "?"
	}
	if len(text) > maxDriftValue {
		return string(text[:maxDriftValue]) + "…"
	}
	return string(text)
}
