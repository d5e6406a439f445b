package forge_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

func TestGitHubRunnerGroup(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	app, web := a.AddRepository("acme/app", false), a.AddRepository("acme/web", false)
	a.AddRepository("acme/site", true)
	a.AddRepository("other/app", false)
	moved := a.AddRepository("acme/old", false)
	a.RenameRepository(moved, "other/new")
	renamed := a.AddRepository("acme/before", false)
	a.RenameRepository(renamed, "acme/after")
	g := a.client(t)

	// FLEET-11: foreign or public repositories are refused, and nothing is written.
	for name, class := range map[string]forge.Class{"other/app": forge.Invalid, "acme/../other/app": forge.Invalid, "acme": forge.Invalid, "acme/": forge.Invalid, "acme/..": forge.Invalid,
		"acme/a?b": forge.Invalid, "acme/site": forge.Invalid, "acme/none": forge.NotFound, "acme/old": forge.NotFound, "acme/before": forge.Conflict} {
		_, created, err := g.EnsureRunnerGroup(ctx, "tailplane-acme", []string{"acme/app", name}, false)
		if forge.ClassOf(err) != class || created {
			t.Errorf("%s: %v", name, err)
		}
	}
	if n := count(a.Calls(), "POST", api+"/orgs/") + count(a.Calls(), "PUT", api) + count(a.Calls(), "PATCH", api); n != 0 {
		t.Errorf("%d writes for what was refused", n)
	}

	group, created, err := g.EnsureRunnerGroup(ctx, "tailplane-acme", []string{"acme/web", "Acme/App", "acme/web"}, false)
	switch {
	case err != nil:
		t.Fatal(err)
	case !created:
		t.Fatalf("created is false; group = %+v, created = %v, %v", group, created, err)
	case group.Visibility != "selected":
		t.Fatalf("group.Visibility = %q, want %q", group.Visibility, "selected")
	case group.AllowsPublic:
		t.Fatalf("group.AllowsPublic is true; group = %+v, created = %v, %v", group, created, err)
	case !slices.Equal(group.Repositories, []string{"acme/app", "acme/web"}):
		t.Fatalf("group.Repositories (-want +got):\n%s", cmp.Diff([]string{"acme/app", "acme/web"}, group.Repositories))
	}
	managed := func() forgetest.GitHubGroup {
		all := a.Groups("acme")
		return all[len(all)-1]
	}
	switch got := managed(); {
	case got.ID != group.ID:
		t.Errorf("at GitHub: got.ID = %v, want %v", got.ID, group.ID)
	case got.Visibility != "selected":
		t.Errorf("at GitHub: got.Visibility = %q, want %q", got.Visibility, "selected")
	case !slices.Equal(slices.Sorted(slices.Values(got.Repositories)), []int64{app, web}):
		t.Errorf("at GitHub: difference (-want +got):\n%s", cmp.Diff([]int64{app, web}, slices.Sorted(slices.Values(got.Repositories))))
	}
	a.Forget()
	if _, created, err := g.EnsureRunnerGroup(ctx, "tailplane-acme", []string{"acme/app", "acme/web"}, false); created || err != nil {
		t.Error(created, err)
	}
	for _, c := range a.Calls() {
		if c.Method != http.MethodGet {
			t.Errorf("nothing was to be done, but %+v", c)
		}
	}
	// A person opened the group to all repositories. It is restricted first, and then gets its
	// repositories.
	all := a.AddGroup(forgetest.GitHubGroup{Account: "acme", Name: "wide", Visibility: "all", AllowsPublic: true})
	group, created, err = g.EnsureRunnerGroup(ctx, "wide", []string{"acme/app"}, false)
	switch got := managed(); {
	case err != nil:
		t.Error(err)
	case created:
		t.Errorf("created is true; group = %+v, got = %+v, created = %v, %v", group, got, created, err)
	case group.ID != all:
		t.Errorf("group.ID = %v, want %v", group.ID, all)
	case got.Visibility != "selected":
		t.Errorf("got.Visibility = %q, want %q", got.Visibility, "selected")
	case got.AllowsPublic:
		t.Errorf("got.AllowsPublic is true; group = %+v, got = %+v, created = %v, %v", group, got, created, err)
	case !slices.Equal(got.Repositories, []int64{app}):
		t.Errorf("got.Repositories (-want +got):\n%s", cmp.Diff([]int64{app}, got.Repositories))
	}
	if _, _, err := g.EnsureRunnerGroup(ctx, "wide", []string{"acme/site"}, true); err != nil || !managed().AllowsPublic {
		t.Errorf("a public one that is allowed: %v", err)
	}
	// Groups that the organisation may not change.
	a.AddGroup(forgetest.GitHubGroup{Account: "acme", Name: "shared", Visibility: "all", Inherited: true})
	for _, name := range []string{"Default", "shared"} {
		if _, _, err := g.EnsureRunnerGroup(ctx, name, []string{"acme/app"}, false); forge.ClassOf(err) != forge.Conflict {
			t.Errorf("%s: %v", name, err)
		}
	}
	groups, err := g.RunnerGroups(ctx)
	switch {
	case err != nil:
		t.Error(err)
	case len(groups) != 4:
		t.Errorf("len(groups) = %v, want 4", len(groups))
	case !groups[0].Default:
		t.Errorf("groups[0].Default is false; groups = %+v, %v", groups, err)
	case groups[0].Visibility != "all":
		t.Errorf("groups[0].Visibility = %q, want %q", groups[0].Visibility, "all")
	case !slices.Equal(groups[2].Repositories, []string{"acme/site"}):
		t.Errorf("groups[2].Repositories (-want +got):\n%s", cmp.Diff([]string{"acme/site"}, groups[2].Repositories))
	}

	// The response to the creation is lost. The group is found, and known to be ours.
	var once sync.Once
	a.Fault(func(r *http.Request) (f *forgetest.Fault) {
		if r.Method == http.MethodPost && strings.HasSuffix(r.URL.Path, "/runner-groups") {
			once.Do(func() { f = &forgetest.Fault{Drop: true, After: true} })
		}
		return f
	})
	switch group, created, err = g.EnsureRunnerGroup(ctx, "lost", []string{"acme/app"}, false); {
	case err != nil:
		t.Error(err)
	case !created:
		t.Errorf("created is false; group = %+v, created = %v, %v", group, created, err)
	case group.Name != "lost":
		t.Errorf("group.Name = %q, want %q", group.Name, "lost")
	}

	// A plan without groups: nothing is created, and the error says so.
	a.ChangeAccount("acme", func(x *forgetest.GitHubAccount) { x.NoGroups = true })
	if _, _, err := g.EnsureRunnerGroup(ctx, "tailplane-acme", []string{"acme/app"}, false); forge.ClassOf(err) != forge.Forbidden {
		t.Error(err)
	}
	repository := a.client(t, func(c *forge.Config) { c.ScopeURL = a.URL + "/acme/app" })
	if _, err := repository.RunnerGroups(ctx); forge.ClassOf(err) != forge.Invalid {
		t.Error(err)
	}
}

// A deletion succeeds only after a read has confirmed it.
func TestGitHubDelete(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	g := a.client(t)
	ghost := a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: "ghost", Status: "offline"})
	busy := a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: "busy", Busy: true})
	others := a.AddRunner(forgetest.GitHubRunner{Place: "other", Name: "theirs"})
	for range 2 { // the second call finds it gone
		if err := g.DeleteRunner(ctx, ghost); err != nil {
			t.Error(err)
		}
	}
	failure(t, g.DeleteRunner(ctx, busy), forge.Invalid)
	if err := g.DeleteRunner(ctx, others); err != nil || len(a.Runners()) != 2 {
		t.Errorf("another organisation's ID must not be found: %v, %v", err, a.Runners())
	}

	app := a.AddRepository("acme/app", false)
	id := a.AddGroup(forgetest.GitHubGroup{Account: "acme", Name: "tailplane-acme", Visibility: "selected", Repositories: []int64{app}})
	last := a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: "last", Group: id})
	// A group with runners stays: otherwise every repository could use them.
	failure(t, g.DeleteRunnerGroup(ctx, id), forge.Conflict)
	failure(t, g.DeleteRunnerGroup(ctx, a.Groups("acme")[0].ID), forge.Conflict) // the default group
	if err := g.DeleteRunner(ctx, last); err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := g.DeleteRunnerGroup(ctx, id); err != nil {
			t.Error(err)
		}
	}
	if len(a.Groups("acme")) != 1 {
		t.Errorf("%+v", a.Groups("acme"))
	}
}

// FL-02, FL-04: a missing answer or an uninstalled App never counts as "gone".
func TestGitHubNeverGoneForWantOfAnAnswer(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	for why, c := range map[string]struct {
		fault forgetest.Fault
		class forge.Class
	}{
		"401":                    {forgetest.Fault{Status: 401, Body: `{"message":"Bad credentials"}`}, forge.Refused},
		"403":                    {forgetest.Fault{Status: 403, Body: `{"message":"no"}`}, forge.Forbidden},
		"409":                    {forgetest.Fault{Status: 409, Body: `{"message":"no"}`}, forge.Conflict},
		"429":                    {forgetest.Fault{Status: 429}, forge.RateLimited},
		"429 with a wait":        {forgetest.Fault{Status: 429, Header: http.Header{"Retry-After": {"5"}}}, forge.RateLimited},
		"500":                    {forgetest.Fault{Status: 500}, forge.Unavailable},
		"a proxy's 404":          {forgetest.Fault{Status: 404, Body: "<html>", Header: http.Header{"Content-Type": {"text/html"}}}, forge.Unavailable},
		"a portal's 200":         {forgetest.Fault{Status: 200, Body: "<html>", Header: http.Header{"Content-Type": {"text/html"}}}, forge.Unavailable},
		"lost before":            {forgetest.Fault{Drop: true}, forge.Unavailable},
		"lost after":             {forgetest.Fault{Drop: true, After: true}, forge.Unavailable},
		"a 204 that did nothing": {forgetest.Fault{Status: 204}, forge.Unavailable},
		"a 404 that did nothing": {forgetest.Fault{Status: 404, Body: `{"message":"Not Found"}`}, forge.Unavailable},
	} {
		g := a.client(t) // a pause belongs to one client
		id := a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: why})
		a.Fault(func(r *http.Request) *forgetest.Fault {
			if r.Method == http.MethodDelete {
				return new(c.fault)
			}
			return nil
		})
		if err := g.DeleteRunner(ctx, id); forge.ClassOf(err) != c.class {
			t.Errorf("%s: %v", why, err)
		}
		a.Fault(nil)
		if err := a.client(t).DeleteRunner(ctx, id); err != nil { // a later call deletes it, or finds it deleted
			t.Errorf("%s, again: %v", why, err)
		}
		if a.ChangeRunner(id, func(*forgetest.GitHubRunner) {}) {
			t.Errorf("%s: it still exists", why)
		}
	}
	g := a.client(t)
	id := a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: "left"})
	group := a.AddGroup(forgetest.GitHubGroup{Account: "acme", Name: "left", Visibility: "selected"})
	// The organisation is hidden from a token that may not see it any more.
	a.Fault(func(r *http.Request) *forgetest.Fault {
		if strings.Contains(r.URL.Path, "/orgs/acme/actions") {
			return &forgetest.Fault{Status: 404, Body: `{"message":"Not Found"}`}
		}
		return nil
	})
	failure(t, g.DeleteRunner(ctx, id), forge.Forbidden)
	failure(t, g.DeleteRunnerGroup(ctx, group), forge.Forbidden)
	a.Fault(nil)
	a.Uninstall(a.installation)
	failure(t, g.DeleteRunner(ctx, id), forge.Refused)
	failure(t, g.DeleteRunnerGroup(ctx, group), forge.Refused)
	failure(t, g.DeleteRunner(ctx, 4711), forge.Refused)
	// A request that hangs ends with the caller's context, and says nothing about GitHub.
	a.Install(a.app, "acme", forgetest.Enough())
	short, cancel := context.WithCancelCause(ctx)
	a.Fault(func(r *http.Request) *forgetest.Fault {
		if r.Method == http.MethodDelete {
			cancel(errors.New("had enough"))
			return &forgetest.Fault{Hang: true}
		}
		return nil
	})
	if err := g.DeleteRunner(short, id); err == nil || forge.ClassOf(err) != forge.Unavailable {
		t.Errorf("a hang: %v", err)
	}
	if _, ok := errors.AsType[*forge.Error](g.DeleteRunner(short, id)); ok {
		t.Error("a cancelled caller must not count as a failure of GitHub")
	}
}

func TestGitHubCancelRun(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	g := a.client(t)
	run, stubborn := a.AddRun(forgetest.GitHubRun{Repository: "acme/app"}), a.AddRun(forgetest.GitHubRun{Repository: "acme/app", Stubborn: true})
	others := a.AddRun(forgetest.GitHubRun{Repository: "other/app"})
	for range 2 { // the second call finds it ended
		if err := g.CancelRun(ctx, "acme/app", run, false); err != nil || a.Run(run).Conclusion != "cancelled" {
			t.Errorf("%v, %+v", err, a.Run(run))
		}
	}
	if err := g.CancelRun(ctx, "acme/app", stubborn, false); err != nil || a.Run(stubborn).Status == "completed" {
		t.Errorf("%v, %+v", err, a.Run(stubborn))
	}
	if err := g.CancelRun(ctx, "acme/app", stubborn, true); err != nil || a.Run(stubborn).Status != "completed" {
		t.Errorf("%v, %+v", err, a.Run(stubborn))
	}
	// FLEET-11: a run of another organisation.
	for _, c := range []struct {
		repository string
		run        int64
		class      forge.Class
	}{{"other/app", others, forge.Invalid}, {"acme/../../orgs/x", run, forge.Invalid}, {"acme/app", 0, forge.Invalid}, {"acme/app", others, forge.NotFound}} {
		if err := g.CancelRun(ctx, c.repository, c.run, true); forge.ClassOf(err) != c.class {
			t.Errorf("%+v: %v", c, err)
		}
	}
	if a.Run(others).Status == "completed" {
		t.Error("another's run was ended")
	}
	a.ChangeInstallation(a.installation, func(in *forgetest.GitHubInstallation) { in.Permissions["actions"] = "read" })
	failure(t, g.CancelRun(ctx, "acme/app", a.AddRun(forgetest.GitHubRun{Repository: "acme/app"}), false), forge.Forbidden)
}

// FL-03, FLEET-12: whatever GitHub repeats, the output contains no key, no JWT and no token,
// neither whole nor in part.
func TestGitHubCanary(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	var mu sync.Mutex
	var shown []string
	var turn atomic.Int64
	a.Fault(func(r *http.Request) *forgetest.Fault {
		secret := strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer ")
		mode := turn.Load()
		mu.Lock()
		defer mu.Unlock()
		if secret != "" && !slices.Contains(shown, secret) {
			shown = append(shown, secret)
		}
		echo, _ := json.Marshal(map[string]any{"message": "not " + secret + " nor " + string(a.key) + " nor https://x:" + secret + "@github.com/", "token": secret})
		switch {
		case mode%2 == 0 && !strings.HasSuffix(r.URL.Path, "/access_tokens"), mode%2 == 1 && strings.Contains(r.URL.Path, "installation"):
			return nil
		case mode < 2:
			return &forgetest.Fault{Status: 422, Body: string(echo)}
		case mode < 4:
			return &forgetest.Fault{Status: 200, Body: "{" + string(echo)}
		case mode < 6:
			return &forgetest.Fault{Status: 302, Header: http.Header{"Location": {"https://x/" + secret}}, Body: string(echo)}
		}
		return &forgetest.Fault{Status: 403, Body: string(echo), Header: http.Header{"Retry-After": {secret}}}
	})
	var out bytes.Buffer
	log := slog.New(slog.NewJSONHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	plain := slog.New(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug}))
	notify := func(x any) {
		fmt.Fprintf(&out, "%v %+v %#v %s %q\n", x, x, x, x, x)
		log.Info("x", "x", x)
		plain.Info("x", "x", x)
		b, _ := json.Marshal(x)
		out.Write(b)
	}
	own := a.AddToken("admin:org")
	a.AddRepository("acme/config", false)
	for ; turn.Load() < 8; turn.Add(1) {
		byToken := func(c *forge.Config) { c.Credential = map[string][]byte{"github_token": []byte(own)} }
		for _, change := range []func(*forge.Config){func(*forge.Config) {}, byToken} {
			config := a.config("acme")
			change(&config)
			g, err := forge.NewGitHub(config)
			if err != nil {
				t.Fatal(err)
			}
			id, err := g.Check(ctx)
			_, _, groupErr := g.EnsureRunnerGroup(ctx, "x", []string{"acme/app"}, false)
			_, listErr := g.Runners(ctx)
			for _, x := range []any{config, &config, g, *g, id, err, groupErr, listErr, g.DeleteRunner(ctx, 1), g.CancelRun(ctx, "acme/app", 1, false), g.Rate()} {
				notify(x)
			}
			if e, ok := errors.AsType[*forge.Error](err); ok {
				notify(*e)
			}
			config.ScopeURL = a.URL + "/acme/config"
			if g, err = forge.NewGitHub(config); err != nil {
				t.Fatal(err)
			}
			_, checked := g.CheckChanges(ctx)
			_, read := g.ReadFile(ctx, "main", "x.yaml")
			_, proposed := g.Propose(ctx, forge.Proposal{Base: "main", Branch: "tailplane/x", Path: "x.yaml", Content: []byte("x"), Message: "m", Title: "t", Author: forge.Person{Name: "amy", Email: "amy@acme.dev"}})
			_, requested := g.Request(ctx, 1)
			for _, err := range []error{checked, read, proposed, requested, g.Merge(ctx, 1, strings.Repeat("a", 40)), g.Withdraw(ctx, 1, "")} {
				if err == nil {
					t.Errorf("mode %d: something was done", turn.Load())
				}
				notify(err)
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(shown) < 4 {
		t.Fatalf("%d secrets were shown to GitHub", len(shown))
	}
	for _, line := range strings.Split(string(a.key), "\n") {
		if len(line) > 20 && !strings.HasPrefix(line, "-----") {
			shown = append(shown, line)
		}
	}
	text := out.String()
	for _, s := range append(shown, own) {
		for part := s; len(part) >= 12; part = part[min(12, len(part)):] {
			if strings.Contains(text, part[:12]) && part[:12] != "eyJhbGciOiJS" {
				t.Errorf("%q of a secret is printed", part[:12])
				break
			}
		}
	}
	for _, s := range []string{"ghs_", "ghp_", "eyJhbGci"} {
		if i := strings.Index(text, s); i >= 0 {
			t.Errorf("%q is printed: %s", s, text[max(0, i-80):min(len(text), i+40)])
		}
	}
}
