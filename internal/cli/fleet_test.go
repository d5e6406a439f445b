package cli_test

import (
	"bytes"
	"context"
	"encoding/json"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/cli"
	"github.com/tailplane/tailplane/internal/cli/output"
	"github.com/tailplane/tailplane/internal/fleet/gitops"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/plane"
)

// A planeEnv is the operator plane's API for runners on loopback. Every caller is alice, and the env stores the holds in memory in place of
// the API server.
type planeEnv struct {
	*httptest.Server
	store  *plane.Store
	enroll *plane.EnrollmentService
	role   string // of alice, everywhere

	mu    sync.Mutex
	holds map[string]plane.Hold
}

func newPlaneEnv(t *testing.T) *planeEnv {
	env := &planeEnv{role: "operator", store: plane.NewStore(time.Now), holds: map[string]plane.Hold{}}
	row := func(org, pool string) plane.Pool {
		return plane.Pool{ID: "github/" + org + "/" + pool, Forge: "github", OrgName: org, Name: pool, State: plane.PoolActive, Counts: plane.Counts{Busy: new(2)}, Holds: []string{}}
	}
	env.store.Replace(plane.KindPool, "kubernetes", []plane.Object{row("acme", "nix"), row("globex", "nix\x1b[31m")})
	env.store.Replace(plane.KindEnrollment, "kubernetes", []plane.Object{plane.Enrollment{ID: "acme", Name: "acme", Forge: "github", Phase: "Active", Pools: []plane.EnrolledPool{{Name: "nix"}}, ExternalScaleSets: []plane.Adoption{{Pool: "dind", Namespace: "arc", Workload: "old-\x1b[31mset", Hold: "h"}}}})
	env.store.Replace(plane.KindHold, "kubernetes", nil)
	env.store.Replace(plane.KindRunner, "kubernetes", []plane.Object{
		plane.Runner{ID: "runners/acme-nix-a", Namespace: "runners", Name: "acme-nix-a", Pool: "github/acme/nix", OrgName: "acme", State: plane.RunnerBusy, Job: &plane.Job{Name: "build\x1b[31m", Repository: "acme/shop", Started: new(time.Now().Add(-2 * time.Hour))}},
		plane.Runner{ID: "runners/acme-nix-b", Namespace: "runners", Name: "acme-nix-b", Pool: "github/acme/nix", OrgName: "acme", State: plane.RunnerFailed, Reason: "TooManyPodFailures"}})
	env.store.Replace(plane.KindForge, "kubernetes", []plane.Object{plane.Forge{ID: "github", Name: "github", Type: "github", URL: "https://github.com", Reachable: new(true), RateLimit: &plane.RateLimit{Remaining: 4321}, EnrolledOrgs: []string{"acme"}},
		plane.Forge{ID: "gitlab", Name: "gitlab", Type: "gitlab", URL: "https://gitlab.com", EnrolledOrgs: []string{"globex"}}})
	proposed := func(id, org, title string, c gitops.Change) plane.Object {
		c.ID, c.Org, c.Title, c.Ref, c.State, c.Proposer, c.OpenedAt, c.DiffOf, c.Risk.Level = id, org, title, gitops.Ref{Kind: "RunnerEnrollment", Name: org}, gitops.StateOpen, "amy@acme.dev", time.Now().Add(-2*time.Hour), "0f3c", "low"
		return plane.NewChange(plane.StoredChange{Change: c}, time.Now())
	}
	env.store.Replace(plane.KindChange, plane.ChangesSource, []plane.Object{proposed("c1", "acme", "Ann too\x1b[31m", gitops.Change{Head: "0f3c", Diff: "-a\n+b\n", Approvals: []gitops.Approval{{By: "pat@acme.dev", Head: "0f3c"}}}),
		proposed("c2", "globex", "More", gitops.Change{Head: "ffff", Approvals: []gitops.Approval{{By: "pat@acme.dev", Head: "0f3c"}}}), proposed("c3", "globex", "Less", gitops.Change{Head: "0f3c", Stale: true})})
	env.store.Report(plane.Source{Name: plane.ChangesSource, Status: plane.StatusOK})
	env.store.Report(plane.Source{Name: "kubernetes", Status: plane.StatusOK})
	env.store.Replace(plane.KindDrift, "kubernetes", []plane.Object{plane.Drift{ID: "d1", OrgName: "acme", Forge: "github", Pool: "nix", Field: "LabelsDiffer", Severity: "warning", Want: new("nix"), Have: new("\x1b[31mx"),
		Evidence: "other labels", Next: "put them back", FirstSeen: time.Now().Add(-time.Hour)}})
	service := &plane.FleetService{Plane: &plane.Service{Store: env.store, Now: time.Now, Capability: "tailplane.dev/cap/plane", Tags: []string{"tag:tailplane"}},
		CreateHold: func(_ context.Context, p access.Permit, d plane.HoldDraft, dryRun bool) (plane.Hold, bool, error) {
			h := plane.Hold{ID: d.Name, Name: d.Name, UID: d.Name, Scope: d.Scope, Mode: d.Mode, Reason: d.Reason, RequestedBy: p.Caller().Identity(), ExpiresAt: d.ExpiresAt, State: plane.HoldApplying, Digest: d.Digest}
			env.change(func() { env.holds[d.Name] = h }, dryRun)
			return h, true, nil
		},
		LiftHold: func(_ context.Context, _ access.Permit, h plane.Hold, dryRun bool) error {
			env.change(func() { delete(env.holds, h.Name) }, dryRun)
			return nil
		},
		RescheduleHold: func(_ context.Context, _ access.Permit, h plane.Hold, end *time.Time, dryRun bool) (plane.Hold, error) {
			h.ExpiresAt = end
			env.change(func() { env.holds[h.Name] = h }, dryRun)
			return h, nil
		},
		IgnoreDrift: func(_ context.Context, _ access.Permit, o plane.Drift, i plane.DriftIgnore, dryRun bool) error {
			if !dryRun {
				env.store.Set(plane.KindDrift, "kubernetes", o.WithIgnore(i))
			}
			return nil
		},
		RefreshDrift: func() []plane.Look {
			return []plane.Look{{Source: "gitops:drift", Triggered: true, Message: "soon\x1b[31m"}}
		}}
	jobs := &plane.RunnerService{Plane: service.Plane, ReadEvents: func(context.Context, string) ([]plane.Event, error) { return nil, nil },
		OpenLog: func(context.Context, access.Permit, plane.LogOptions) (io.ReadCloser, error) {
			return io.NopCloser(strings.NewReader("first\n\x1b[2Jlast")), nil
		}}
	way := &httpapi.Server{Names: func() []string { return []string{"127.0.0.1"} }, Encoder: plane.EnvelopeForm(), Log: slog.New(slog.DiscardHandler), Now: time.Now,
		Identify: func(*http.Request) (access.Caller, error) {
			return access.Caller{Login: "alice@example.com", UserID: "1", Device: access.Device{ID: "n1", Name: "laptop"}, Via: access.ViaTailnet,
				Rules: []json.RawMessage{json.RawMessage(`{"role":"` + env.role + `","orgs":["*"]}`)}}, nil
		},
		Decide: func(c access.Caller, v access.Verb, now time.Time) (access.Permit, error) {
			return access.DecidePlane(c, v, access.PlanePolicy{Capability: "tailplane.dev/cap/plane"}, now)
		},
		Record: func(audit.Entry) error { return nil }}
	changes := &plane.ChangeService{Plane: service.Plane}
	env.enroll = &plane.EnrollmentService{Plane: service.Plane, Changes: changes}
	env.Server = httptest.NewServer(way.Handler(slices.Concat(service.Plane.Routes(), service.Routes(), jobs.Routes(), changes.Routes(), env.enroll.Routes())...))
	t.Cleanup(env.Close)
	return env
}

func (env *planeEnv) change(f func(), dryRun bool) {
	if dryRun {
		return
	}
	env.mu.Lock()
	f()
	var all []plane.Object
	for _, h := range env.holds {
		all = append(all, h)
	}
	env.mu.Unlock()
	env.store.Replace(plane.KindHold, "kubernetes", all)
}

func (env *planeEnv) names() (names []string) {
	env.mu.Lock()
	defer env.mu.Unlock()
	for n, h := range env.holds {
		names = append(names, n+" "+h.Scope.String()+" "+h.Reason)
	}
	slices.Sort(names)
	return names
}

func (env *planeEnv) tka(t *testing.T, args ...string) (code int, out, errs string) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 60*time.Second)
	defer cancel()
	var stdout, stderr bytes.Buffer
	code = cli.Program{Args: append([]string{"tka", "fleet", "--config", settingsFile(t, "plane.url: "+env.URL)}, args...), In: strings.NewReader(""), Out: &stdout, Err: &stderr,
		Getenv: func(string) string { return "" }, Now: time.Now, Build: cli.Build{Version: "v0.0.0-test"}}.Run(ctx)
	return code, stdout.String(), stderr.String()
}

// PLANE-10: the command line lists, pauses and resumes runners. A change with large effects requires its phrase, and no unknown value is
// shown as a number.
func TestFleet(t *testing.T) {
	env := newPlaneEnv(t)
	ok := func(want string, args ...string) string {
		t.Helper()
		code, out, errs := env.tka(t, args...)
		if code != output.ExitOK || !strings.Contains(out+errs, want) {
			t.Errorf("%q: exit %d, %s%s, want %q", args, code, out, errs, want)
		}
		return out
	}
	no := func(exit int, want string, args ...string) {
		t.Helper()
		switch code, out, errs := env.tka(t, args...); {
		case code != exit:
			t.Errorf("code = %v, want %v; args = %q", code, exit, args)
		case !strings.Contains(errs, want):
			t.Errorf("errs = %q does not contain %q; args = %q", errs, want, args)
		case out != "":
			t.Errorf("out = %q, want none; args = %q", out, args)
		}
	}
	if out := ok("github/acme/nix", "runners"); !strings.Contains(out, "?      2      ?") || strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
	var l struct {
		APIVersion, Kind string
		Items            []plane.Pool
	}
	switch out := ok("", "runners", "--org", "acme", "-o", "json"); {
	case json.Unmarshal([]byte(out), &l) != nil:
		t.Errorf("json.Unmarshal([]byte(out), &l) is not nil; out = %s", out)
	case l.APIVersion != "cli.tailplane.dev/v1alpha1":
		t.Errorf("l.APIVersion = %q, want %q", l.APIVersion, "cli.tailplane.dev/v1alpha1")
	case l.Kind != "PoolList":
		t.Errorf("l.Kind = %q, want %q", l.Kind, "PoolList")
	case len(l.Items) != 1:
		t.Errorf("len(l.Items) = %v, want 1", len(l.Items))
	case *l.Items[0].Counts.Busy != 2:
		t.Errorf("*l.Items[0].Counts.Busy = %v, want 2", *l.Items[0].Counts.Busy)
	case l.Items[0].Counts.Idle != nil:
		t.Errorf("l.Items[0].Counts.Idle = %v, want nil", l.Items[0].Counts.Idle)
	}
	ok("github/acme/nix\n", "runners", "--org", "acme", "-o", "name")
	ok("ISOLATION", "runners", "-o", "wide")
	if out := ok("acme/shop    2h", "jobs", "github/acme/nix"); strings.Contains(out, "\x1b") || !strings.Contains(out, "Failed") {
		t.Errorf("%q", out)
	}
	ok("runners/acme-nix-b\n", "jobs", "github/acme/nix", "--state", "Failed", "-o", "name")
	ok("There are no runners of this pool", "jobs", "github/globex/nix\x1b[31m")
	no(output.ExitFailed, "There is no such pool", "jobs", "github/acme/docker")
	no(output.ExitUsage, "does not have the form forge/org/pool", "jobs", "nix")
	ok("1 runner is Failed.", "diagnose", "github/acme/nix")
	if out := ok("first\n", "logs", "runners/acme-nix-a", "--tail", "50", "--follow"); strings.Contains(out, "\x1b") || !strings.Contains(out, "last\n") {
		t.Errorf("%q", out)
	}
	no(output.ExitFailed, "There is no such runner", "logs", "runners/nothing")
	no(output.ExitUsage, "does not have the form namespace/name", "logs", "acme-nix-a")
	no(output.ExitUsage, "--tail must be 1 to 5000", "logs", "runners/acme-nix-a", "--tail", "5001")
	ok("Active", "enrollments")
	ok("ADOPTED", "enrollments", "-o", "wide")
	ok("dind=arc/old-", "enrollments", "-o", "wide")
	ok(`"workload": "old-`, "enrollments", "-o", "json")
	ok("There are no holds", "holds")
	no(output.ExitRefused, "is not a state of this list", "holds", "--state", "Gone")
	for _, want := range []string{"github   github   Reachable   https://github.com   ?         4321", "gitlab   gitlab   Unknown     https://gitlab.com   ?         ?"} {
		ok(want, "forges")
	}
	ok("github\n", "forges", "--state", "Reachable", "-o", "name")
	no(output.ExitUsage, "has no flag --org", "forges", "--org", "acme")

	// FLEET-15: the list of changes contains nothing that controls a terminal.
	if out := ok("c1   RunnerEnrollment/acme     acme     open    low    amy@acme.dev   2h", "changes"); strings.Contains(out, "\x1b") || !strings.Contains(out, "2h") {
		t.Errorf("%q", out)
	}
	ok("c2\nc3\n", "changes", "--org", "globex", "-o", "name")
	var c struct{ Items []plane.Change }
	switch out := ok("", "changes", "--org", "acme", "-o", "json"); {
	case json.Unmarshal([]byte(out), &c) != nil:
		t.Errorf("json.Unmarshal([]byte(out), &c) is not nil; out = %s", out)
	case len(c.Items) != 1:
		t.Errorf("len(c.Items) = %v, want 1", len(c.Items))
	case c.Items[0].Diff != "-a\n+b\n":
		t.Errorf("c.Items[0].Diff = %q, want %q", c.Items[0].Diff, "-a\n+b\n")
	case c.Items[0].Actions == nil:
		t.Error("c.Items[0].Actions is nil")
	case c.Items[0].Actions.Approve.Allowed:
		t.Errorf("c.Items[0].Actions.Approve.Allowed is true; out = %s", out)
	}
	wide := ok("a commit was pushed at the forge", "changes", "-o", "wide")
	if !strings.Contains(wide, "the file has changed since") || strings.Count(wide, "pat@acme.dev") != 1 {
		t.Errorf("an approval of another commit is shown as an approval of this one: %s", wide)
	}
	no(output.ExitRefused, "is not a state of this list", "changes", "--state", "Open")
	var offered bytes.Buffer
	cli.Program{Args: []string{"tka", "__complete", "fleet", "changes", "--state", ""}, In: strings.NewReader(""), Out: &offered, Err: new(bytes.Buffer), Getenv: func(string) string { return "" }, Now: time.Now}.Run(t.Context())
	if !strings.HasPrefix(offered.String(), "open\napproved\nmerging\n") {
		t.Errorf("offered is %q", offered.String())
	}

	ok("LabelsDiffer", "drift")
	ok("put them back", "drift", "-o", "wide")
	ok("There are no findings", "drift", "--state", "error")
	no(output.ExitUsage, "needs --reason", "ignore", "d1", "--expires-in", "2h")
	no(output.ExitUsage, "needs --expires-in", "ignore", "d1", "--reason", "trial")
	no(output.ExitFailed, "There is no such drift", "ignore", "d9", "--expires-in", "2h", "--reason", "trial")
	ok("nothing was changed", "ignore", "d1", "--expires-in", "2h", "--reason", "trial", "--dry-run")
	ok("There are no findings", "drift", "--state", "ignored")
	ok("d1 (LabelsDiffer) is ignored until 2", "ignore", "d1", "--expires-in", "2h", "--reason", "trial")
	ok("alice@example.com", "drift", "--state", "ignored", "-o", "wide")
	ok("d1 (LabelsDiffer) is reported again.", "unignore", "d1", "--reason", "over")
	no(output.ExitNotReady, "The drift is not ignored", "unignore", "d1", "--reason", "over")
	if out := ok("gitops:drift", "refresh"); strings.Contains(out, "\x1b") {
		t.Errorf("%q", out)
	}
	no(output.ExitUsage, "needs --reason", "pause", "github/acme/nix")
	no(output.ExitUsage, "specify what to pause", "pause", "--reason", "x")
	no(output.ExitUsage, "specify what to pause", "pause", "github/acme/nix", "--all", "--reason", "x")
	no(output.ExitUsage, "does not have the form forge/org/pool", "pause", "nix", "--reason", "x")
	no(output.ExitRefused, "is not the name of a org", "pause", "--org", "*", "--reason", "x")
	no(output.ExitFailed, "There is no such pool", "pause", "gitlab/acme/nix", "--reason", "x")
	ok("Nothing was changed", "pause", "github/acme/nix", "--reason", "x", "--dry-run")
	ok("is created: it pauses pool nix of acme, 1 workload.", "pause", "github/acme/nix", "--reason", "a flaky image", "--expires-in", "2h")
	ok("exists already", "pause", "--org", "acme", "--pool", "nix", "--reason", "a flaky image", "--expires-in", "2h")
	ok("a flaky image", "holds")
	ok("lifted.", "lift", "github/acme/nix", "--reason", "mended")
	no(output.ExitNotReady, "No hold applies to it", "resume", "github/acme/nix", "--reason", "mended")
	if len(env.names()) > 0 {
		t.Errorf("%q", env.names())
	}

	for command, phrase := range map[string]string{"pause": "PAUSE ALL", "lift": "LIFT ALL", "reschedule": "END ALL"} {
		ok(`such as "`+phrase+`"`, command, "--help")
	}
	no(output.ExitUsage, `--confirm "PAUSE ALL"`, "pause", "--all", "--reason", "node upgrade")
	no(output.ExitUsage, `--confirm "PAUSE ALL"`, "pause", "--all", "--reason", "node upgrade", "--confirm", "pause all")
	name := strings.TrimSpace(ok("all-", "pause", "--all", "--reason", "node upgrade", "--confirm", "PAUSE ALL", "-o", "name"))
	no(output.ExitUsage, "specify when the hold expires", "reschedule", name, "--reason", "longer")
	no(output.ExitUsage, "specify when the hold expires", "reschedule", name, "--reason", "longer", "--never", "--expires-in", "2h")
	ok("does not expire automatically", "reschedule", name, "--reason", "longer", "--never")
	no(output.ExitUsage, `This brings forward the end of all-`, "reschedule", name, "--reason", "done soon", "--expires-in", "2h")
	ok("nothing was changed", "reschedule", name, "--reason", "done soon", "--expires-in", "2h", "--dry-run")
	ok(name+" ends at 2", "reschedule", name, "--reason", "done soon", "--expires-in", "2h", "--confirm", "END ALL")
	no(output.ExitUsage, `--confirm "LIFT ALL"`, "lift", name, "--reason", "done")
	no(output.ExitRefused, "A person must confirm this first", "lift", name, "--reason", "done", "--code", "AAAA-AAAA-AA")
	ok(name+": the plane would lift the hold", "lift", name, "--reason", "done", "--dry-run")
	ok(name+": lifted.", "lift", name, "--reason", "done", "--confirm", "LIFT ALL")
	if len(env.names()) > 0 {
		t.Errorf("%q", env.names())
	}
	env.store.Report(plane.Source{Name: "kubernetes", Status: plane.StatusDown, Message: "It does not answer."})
	ok("warning: source kubernetes is down", "runners")
	env.Close()
	no(output.ExitUnreachable, "the operator plane did not answer", "runners")
}
