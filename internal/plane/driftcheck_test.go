package plane

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"reflect"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/problem"
)

// fakeRepository is a fake repository that counts its calls.
type fakeRepository struct {
	commit string
	files  map[string]string // path to content
	err    error             // of listing
	broken map[string]error  // of reading
	reads  []string
	lists  int
}

func (r *fakeRepository) read(_ context.Context, path string) (gitops.File, error) {
	r.reads = append(r.reads, path)
	text, found := r.files[path]
	if !found {
		return gitops.File{Commit: r.commit}, r.broken[path]
	}
	return gitops.File{Commit: r.commit, Version: text, Content: []byte(text)}, r.broken[path]
}

func (r *fakeRepository) names(context.Context) (RepositoryFiles, error) {
	r.lists++
	all := RepositoryFiles{Commit: r.commit, Blobs: map[string]string{}}
	for path, text := range r.files {
		all.Blobs[path] = text
	}
	return all, r.err
}

func manifest(kind, name string) string {
	return "apiVersion: tailplane.dev/v1alpha1\nkind: " + kind + "\nmetadata: {name: " + name + "}\nspec: {forge: github}\n"
}

// driftEnv is a Check with a repository and live objects.
type driftEnv struct {
	*DriftCheck
	fakeRepository
	live map[gitops.Ref]map[string]any
	now  time.Time
}

func newDriftEnv(pattern string) *driftEnv {
	w := &driftEnv{now: time.Date(2026, 11, 22, 12, 0, 0, 0, time.UTC), live: map[gitops.Ref]map[string]any{}}
	w.commit, w.files, w.broken = "c1", map[string]string{}, map[string]error{}
	w.DriftCheck = &DriftCheck{Store: NewStore(func() time.Time { return w.now }), Now: func() time.Time { return w.now }, Pattern: pattern, Interval: time.Minute, Log: slog.New(slog.DiscardHandler), Read: w.read, Files: w.names,
		Live:       func(context.Context) (map[gitops.Ref]map[string]any, error) { return w.live, nil },
		DryRunSpec: func(_ context.Context, _ gitops.Ref, spec map[string]any) (map[string]any, error) { return spec, nil }}
	return w
}

// reconcile compares twice, further apart than driftReportDelay, and returns the reported drift.
func (w *driftEnv) reconcile(t *testing.T) (found []string, source Source) {
	t.Helper()
	for range 2 {
		if err := w.Reconcile(t.Context()); err != nil {
			t.Fatal(err)
		}
		w.now = w.now.Add(driftReportDelay)
	}
	l := w.Store.List(KindDrift)
	for _, o := range l.Objects {
		d := o.(Drift)
		found = append(found, d.Org()+" "+d.Workload+" "+d.Field+": "+d.Evidence)
	}
	slices.Sort(found)
	return found, l.Sources[0]
}

// Without a new commit a comparison reads no file, however many there are. After a commit it reads the changed files.
func TestFilesAreReadOnce(t *testing.T) {
	w := newDriftEnv("fleet/{name}.yaml")
	for i := range 5 {
		name := fmt.Sprintf("p%d", i)
		w.live[gitops.Ref{Kind: "RunnerPool", Name: name}] = map[string]any{"forge": "github"}
		w.files["fleet/"+name+".yaml"] = manifest("RunnerPool", name)
	}
	w.files["fleet/other.yaml"] = "a: {" // an unreadable file is not read again either
	for i, want := range []int{6, 0, 0} {
		w.reads = nil
		switch err := w.Reconcile(t.Context()); {
		case err != nil:
			t.Error(err)
		case len(w.reads) != want:
			t.Errorf("len(w.reads) = %v, want %v", len(w.reads), want)
		case w.lists != i+1:
			t.Errorf("w.lists = %v, want %v", w.lists, i+1)
		}
	}
	w.reads, w.commit, w.files["fleet/p3.yaml"] = nil, "c2", manifest("RunnerPool", "p3")+"# more\n"
	if err := w.Reconcile(t.Context()); err != nil || !slices.Equal(w.reads, []string{"fleet/p3.yaml"}) {
		t.Errorf("after a commit %v are read: %v", w.reads, err)
	}
	// The file is of a later commit than the list, so it is read again.
	list := w.names
	w.DriftCheck.Files = func(ctx context.Context) (RepositoryFiles, error) {
		all, err := list(ctx)
		w.commit = "c4"
		return all, err
	}
	w.reads, w.commit, w.files["fleet/p3.yaml"] = nil, "c3", manifest("RunnerPool", "p3")
	for _, commit := range []string{"c3", "c4", "c4"} {
		w.commit = commit
		if err := w.Reconcile(t.Context()); err != nil {
			t.Error(err)
		}
	}
	if !slices.Equal(w.reads, []string{"fleet/p3.yaml", "fleet/p3.yaml"}) {
		t.Errorf("during a commit the files %v are read", w.reads)
	}
	w.DriftCheck.Live = func(context.Context) (map[gitops.Ref]map[string]any, error) { return nil, errors.New("away") }
	if err := w.Reconcile(t.Context()); err == nil {
		t.Error("the live objects are unknown, but there is no error")
	}
	if l := w.Store.List(KindDrift); len(l.Objects) != 0 || l.Sources[0].Status != StatusDegraded {
		t.Errorf("%+v", l)
	}
}

// An object that is in git but was never applied is reported, with its organisation. Other content, and an object in the wrong file, is
// not.
func TestMissing(t *testing.T) {
	pool, acme := manifest("RunnerPool", "a"), manifest("RunnerEnrollment", "acme")
	for why, x := range map[string]struct {
		pattern string
		files   map[string]string
		broken  map[string]error
		want    []string
		gap     string
	}{
		"a file for each": {pattern: "fleet/{kind}/{name}.yaml", files: map[string]string{"fleet/runnerpool/a.yaml": pool, "fleet/runnerenrollment/acme.yaml": acme, "fleet/runnerforge/gh.yaml": manifest("RunnerForge", "gh")},
			want: []string{" RunnerForge/gh Missing: The object is in fleet/runnerforge/gh.yaml, but not in the cluster.", " RunnerPool/a Missing: The object is in fleet/runnerpool/a.yaml, but not in the cluster.",
				"acme RunnerEnrollment/acme Missing: The object is in fleet/runnerenrollment/acme.yaml, but not in the cluster."}},
		"a file for each name": {pattern: "{name}.yaml", files: map[string]string{"a.yaml": pool + "---\n" + manifest("RunnerForge", "a"), "live.yaml": manifest("RunnerPool", "live") + "---\n" + manifest("RunnerForge", "live")},
			want: []string{" RunnerForge/a Missing: The object is in a.yaml, but not in the cluster.", " RunnerForge/live Missing: The object is in live.yaml, but not in the cluster.", " RunnerPool/a Missing: The object is in a.yaml, but not in the cluster."}},
		"a file for each kind": {pattern: "{kind}.yaml", files: map[string]string{"runnerpool.yaml": pool + "---\n" + manifest("RunnerPool", "live"), "runnerenrollment.yaml": acme},
			want: []string{" RunnerPool/a Missing: The object is in runnerpool.yaml, but not in the cluster.", "acme RunnerEnrollment/acme Missing: The object is in runnerenrollment.yaml, but not in the cluster."}},
		"one for all":         {pattern: "fleet.yaml", files: map[string]string{"fleet.yaml": pool}, want: []string{" RunnerPool/a Missing: The object is in fleet.yaml, but not in the cluster."}},
		"not in its place":    {pattern: "fleet/{name}.yaml", files: map[string]string{"fleet/b.yaml": pool}},
		"of another kind":     {pattern: "fleet/{name}.yaml", files: map[string]string{"fleet/a.yaml": "apiVersion: v1\nkind: ConfigMap\nmetadata: {name: a}\n", "fleet/h.yaml": manifest("RunnerHold", "h"), "fleet/e.yaml": ""}},
		"it cannot be parsed": {pattern: "fleet/{name}.yaml", files: map[string]string{"fleet/a.yaml": "a: {"}, gap: "1 file "},
		"it occurs twice":     {pattern: "fleet/{name}.yaml", files: map[string]string{"fleet/a.yaml": pool + "---\n" + pool}, gap: "1 file "},
		"it is far too large": {pattern: "fleet/{name}.yaml", files: map[string]string{"fleet/a.yaml": pool}, broken: map[string]error{"fleet/a.yaml": problem.New(problem.Conflict, "more than 1 MB")}, gap: "1 file "},
		"the cluster has it, and it cannot be parsed": {pattern: "fleet/{name}.yaml", files: map[string]string{"fleet/a.yaml": pool, "fleet/live.yaml": "live: {"}, want: []string{" RunnerPool/a Missing: The object is in fleet/a.yaml, but not in the cluster."}, gap: "1 file "},
		"next to existing objects":                    {pattern: "fleet/{name}.yaml", files: map[string]string{"fleet/a.yaml": pool, "fleet/x.yaml": "a: {"}, want: []string{" RunnerPool/a Missing: The object is in fleet/a.yaml, but not in the cluster."}, gap: "1 file "},
	} {
		w := newDriftEnv(x.pattern)
		w.files, w.broken = x.files, x.broken
		r := gitops.Ref{Kind: "RunnerPool", Name: "live"}
		path, err := gitops.ManifestPath(x.pattern, r)
		if err != nil {
			t.Fatal(err)
		}
		w.live[r] = map[string]any{"forge": "github"}
		if _, found := w.files[path]; !found {
			w.files[path] = manifest("RunnerPool", "live")
		} else if !strings.Contains(w.files[path], "live") {
			w.files[path] += "---\n" + manifest("RunnerPool", "live")
		}
		got, source := w.reconcile(t)
		if !slices.Equal(got, x.want) {
			t.Errorf("%s: %q, want %q", why, got, x.want)
		}
		switch {
		case (source.Status == StatusOK) != (x.gap == ""):
			t.Errorf(`%s: (source.Status == StatusOK) != (x.gap == ""), source = %+v`, why, source)
		case !strings.Contains(source.Message, x.gap):
			t.Errorf("%s: source.Message = %q does not contain %q", why, source.Message, x.gap)
		case strings.Contains(source.Message, ".yaml"):
			t.Errorf("%s: source.Message = %q contains %q", why, source.Message, ".yaml")
		}
	}
}

// If the one file with all objects is unreadable, nothing is compared.
func TestOneFileCannotBeRead(t *testing.T) {
	w := newDriftEnv("fleet.yaml")
	w.files["fleet.yaml"] = manifest("RunnerPool", "a")
	if got, _ := w.reconcile(t); len(got) != 1 {
		t.Errorf("%q", got)
	}
	w.commit, w.files["fleet.yaml"] = "c2", "a: {"
	if err := w.Reconcile(t.Context()); err == nil {
		t.Error("the file is unreadable, but there is no error")
	}
	switch l := w.Store.List(KindDrift); {
	case len(l.Objects) != 1:
		t.Errorf("len(l.Objects) = %v, want 1", len(l.Objects))
	case l.Sources[0].Status != StatusDegraded:
		t.Errorf("l.Sources[0].Status = %q, want %q", l.Sources[0].Status, StatusDegraded)
	case w.lists != 0:
		t.Errorf("w.lists = %v, want 0", w.lists)
	}
}

// Law 7: if the files cannot be listed, no new drift is reported. Known drift stays as long as it holds, and the source says what is
// missing.
func TestNothingIsListed(t *testing.T) {
	w := newDriftEnv("fleet/{name}.yaml")
	w.live[gitops.Ref{Kind: "RunnerPool", Name: "live"}] = map[string]any{"forge": "github"}
	w.files = map[string]string{"fleet/a.yaml": manifest("RunnerPool", "a"), "fleet/b.yaml": manifest("RunnerPool", "b"), "fleet/live.yaml": manifest("RunnerPool", "live")}
	both := []string{" RunnerPool/a Missing: The object is in fleet/a.yaml, but not in the cluster.", " RunnerPool/b Missing: The object is in fleet/b.yaml, but not in the cluster."}
	if got, source := w.reconcile(t); !slices.Equal(got, both) || source.Status != StatusOK {
		t.Errorf("%q, %+v", got, source)
	}
	// The forge is down: nothing changes.
	w.err = problem.New(problem.Unavailable, "away")
	if err := w.Reconcile(t.Context()); err == nil {
		t.Error("the forge is down, but there is no error")
	}
	if l := w.Store.List(KindDrift); len(l.Objects) != 2 || l.Sources[0].Status != StatusDegraded {
		t.Errorf("%+v", l)
	}
	// There are too many files: the known ones are still compared.
	w.err, w.commit = problem.New(problem.TooLarge, "too many files", "Use a folder."), "c2"
	w.files["fleet/new.yaml"] = manifest("RunnerPool", "new")
	delete(w.files, "fleet/b.yaml")
	switch got, source := w.reconcile(t); {
	case !slices.Equal(got, both[:1]):
		t.Errorf("got (-want +got):\n%s", cmp.Diff(both[:1], got))
	case source.Status != StatusDegraded:
		t.Errorf("source.Status = %q, want %q", source.Status, StatusDegraded)
	case !strings.HasSuffix(source.Message, ": too many files Use a folder."):
		t.Errorf("source.Message = %q does not end with %q", source.Message, ": too many files Use a folder.")
	}
	// The list is complete but too long: no new file is read.
	w.err, w.commit, w.reads = nil, "c3", nil
	for i := range maxOtherFiles + 1 {
		w.files[fmt.Sprintf("fleet/x%d.yaml", i)] = manifest("RunnerPool", fmt.Sprintf("x%d", i))
	}
	switch got, source := w.reconcile(t); {
	case !slices.Equal(got, both[:1]):
		t.Errorf("got (-want +got):\n%s", cmp.Diff(both[:1], got))
	case source.Status != StatusDegraded:
		t.Errorf("source.Status = %q, want %q", source.Status, StatusDegraded)
	case !strings.Contains(source.Message, "503 files"):
		t.Errorf("source.Message = %q does not contain %q", source.Message, "503 files")
	case len(w.reads) > 4:
		t.Errorf("len(w.reads) = %v, want at most 4", len(w.reads))
	}
	w.commit = "c4"
	for i := range maxOtherFiles + 1 {
		delete(w.files, fmt.Sprintf("fleet/x%d.yaml", i))
	}
	switch got, source := w.reconcile(t); {
	case !slices.Equal(got, []string{both[0], " RunnerPool/new Missing: The object is in fleet/new.yaml, but not in the cluster."}):
		t.Errorf("got (-want +got):\n%s",
			cmp.Diff([]string{both[0], " RunnerPool/new Missing: The object is in fleet/new.yaml, but not in the cluster."}, got))
	case source.Status != StatusOK:
		t.Errorf("source.Status = %q, want %q", source.Status, StatusOK)
	case source.Message != "":
		t.Errorf("source.Message = %q, want none", source.Message)
	}
}

// A comparison can be triggered at any time and runs soon. Several triggers cause one run.
func TestDriftTrigger(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var looks atomic.Int64
		c := &DriftCheck{Store: NewStore(time.Now), Now: time.Now, Pattern: "fleet/{name}.yaml", Interval: time.Hour, Triggers: make(chan struct{}, 1), Log: slog.New(slog.DiscardHandler),
			Files: func(context.Context) (RepositoryFiles, error) { return RepositoryFiles{Commit: "c1"}, nil },
			Live:  func(context.Context) (map[gitops.Ref]map[string]any, error) { looks.Add(1); return nil, nil }}
		go c.Run(t.Context())
		at := func(want int64, why string) {
			t.Helper()
			if synctest.Wait(); looks.Load() != want {
				t.Errorf("%s: %d comparisons, want %d", why, looks.Load(), want)
			}
		}
		at(1, "at the start")
		c.Trigger()
		c.Trigger()
		at(1, "immediately after a comparison")
		time.Sleep(minDriftInterval)
		at(2, "a rest later")
		time.Sleep(time.Minute)
		at(2, "without a trigger")
		c.Trigger()
		at(3, "after a rest")
		time.Sleep(time.Hour)
		at(4, "an hour later")
	})
}

func TestDifferences(t *testing.T) {
	want := map[string]any{"a": 1.0, "b": map[string]any{"c": "x", "d": []any{"1", "2"}}, "gone": true}
	have := map[string]any{"a": 1.0, "b": map[string]any{"c": "y", "d": []any{"2", "1"}}, "more": map[string]any{"e": 1.0}}
	got := differences("spec", want, have, nil)
	if !reflect.DeepEqual(got, []difference{{"spec.b.c", `"x"`, `"y"`}, {"spec.b.d", `["1","2"]`, `["2","1"]`}, {"spec.gone", "true", "null"}, {"spec.more", "null", `{"e":1}`}}) {
		t.Errorf("%q", got)
	}
	if got := differences("spec", want, want, nil); len(got) != 0 {
		t.Errorf("%q", got)
	}
	if s := driftValue(strings.Repeat("x", 1000)); len(s) > maxDriftValue+4 {
		t.Errorf("%d bytes", len(s))
	}
	switch d := repositoryDrift(gitops.Ref{Kind: "RunnerEnrollment", Name: "acme"}, "spec.quota", nil, nil, "", ""); {
	case d.Org() != "acme":
		t.Errorf("d.Org() = %q, want %q", d.Org(), "acme")
	case d.Kind != DriftGit:
		t.Errorf("d.Kind = %q, want %q", d.Kind, DriftGit)
	case d.ID == repositoryDrift(gitops.Ref{Kind: "RunnerEnrollment", Name: "acme"}, "spec.pools", nil, nil, "", "").ID:
		t.Errorf(`d.ID = %q, the same as repositoryDrift(gitops.Ref{Kind: "RunnerEnrollment", Name: "acme"}, "spec.pools", nil, nil, "", "").ID`,
			d.ID)
	}
}
