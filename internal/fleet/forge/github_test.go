package forge_test

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/testkit/forgetest"
)

// gitHubEnv is a GitHub with an organisation in which an App is installed.
type gitHubEnv struct {
	*forgetest.GitHubFake
	app, installation int64
	key               []byte
}

func newGitHubEnv(t *testing.T) *gitHubEnv {
	a := &gitHubEnv{GitHubFake: forgetest.NewGitHub(t)}
	a.AddAccount("acme", "")
	a.AddAccount("other", "")
	a.app, a.key = a.AddApp(t)
	a.installation = a.Install(a.app, "Acme", forgetest.Enough())
	return a
}

func (a *gitHubEnv) secret() map[string][]byte {
	return map[string][]byte{"github_app_id": []byte(strconv.FormatInt(a.app, 10) + "\n"), "github_app_private_key": a.key}
}

func (a *gitHubEnv) config(scope string) forge.Config {
	return forge.Config{URL: a.URL, ScopeURL: a.URL + "/" + scope, Credential: a.secret()}
}

// client returns a client for acme, modified for the test.
func (a *gitHubEnv) client(t *testing.T, change ...func(*forge.Config)) *forge.GitHub {
	t.Helper()
	c := a.config("acme")
	for _, f := range change {
		f(&c)
	}
	g, err := forge.NewGitHub(c)
	if err != nil {
		t.Fatal(err)
	}
	return g
}

func testContext(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// failure returns err as an *Error. It fails the test if the error has another class.
func failure(t *testing.T, err error, want forge.Class) *forge.Error {
	t.Helper()
	e, ok := errors.AsType[*forge.Error](err)
	switch {
	case !ok:
		t.Fatalf("ok is false; %v, want = %s", err, want)
	case e.Class != want:
		t.Fatalf("e.Class = %q, want %q", e.Class, want)
	case forge.ClassOf(err) != want:
		t.Fatalf("forge.ClassOf(err) != want; %v, want = %s", err, want)
	}
	return e
}

// count returns the number of calls with this method and path prefix.
func count(calls []forgetest.Call, method, path string) (n int) {
	for _, c := range calls {
		if c.Method == method && strings.HasPrefix(c.Path, path) {
			n++
		}
	}
	return n
}

const api = "/api/v3"

func TestGitHubCheck(t *testing.T) {
	a := newGitHubEnv(t)
	a.AddAccount("big", "Enterprise")
	a.AddRepository("acme/app", false)
	ctx := testContext(t)
	foreign := a.Install(a.app, "other", forgetest.Enough())
	numbered := func(id int64) func(*forge.Config) {
		return func(c *forge.Config) {
			c.Credential["github_app_installation_id"] = []byte(strconv.FormatInt(id, 10))
		}
	}
	with := func(at int64, permissions map[string]string) func() {
		return func() {
			a.ChangeInstallation(at, func(in *forgetest.GitHubInstallation) { in.Permissions = permissions })
		}
	}
	for _, c := range []struct {
		why     string
		before  func()
		change  func(*forge.Config)
		class   forge.Class
		missing []string
	}{
		{why: "found by its organisation"},
		{why: "found by its number", change: numbered(a.installation)},
		{why: "another organisation's number", change: numbered(foreign), class: forge.Forbidden},
		{why: "an ID without an installation", change: numbered(7), class: forge.Refused},
		{why: "an organisation where it is not installed", change: func(c *forge.Config) { c.ScopeURL = a.URL + "/nowhere" }, class: forge.Refused},
		{why: "another App's key", change: func(c *forge.Config) { _, c.Credential["github_app_private_key"] = a.AddApp(t) }, class: forge.Refused},
		{why: "it may read only", before: with(a.installation, map[string]string{"organization_self_hosted_runners": "read", "metadata": "read"}), class: forge.Forbidden,
			missing: []string{"organization_self_hosted_runners: write", "actions: read"}},
		{why: "for a repository, which needs another", before: with(a.installation, forgetest.Enough()), change: func(c *forge.Config) { c.ScopeURL = a.URL + "/acme/app" },
			class: forge.Forbidden, missing: []string{"administration: write"}},
		{why: "suspended", before: func() {
			a.ChangeInstallation(a.installation, func(in *forgetest.GitHubInstallation) { in.Suspended = true })
		}, class: forge.Forbidden},
	} {
		if c.before != nil {
			c.before()
		}
		change := c.change
		if change == nil {
			change = func(*forge.Config) {}
		}
		id, err := a.client(t, change).Check(ctx)
		if forge.ClassOf(err) != c.class || !slices.Equal(id.Missing, c.missing) {
			t.Errorf("%s: %+v, %v", c.why, id, err)
		}
		if c.class == "" && (id.Kind != forge.GitHubAppKind || id.AppID != a.app || id.InstallationID != a.installation) {
			t.Errorf("%s: %+v", c.why, id)
		}
	}
	big := a.Install(a.app, "big", map[string]string{"enterprise_self_hosted_runners": "write"})
	enterprise := func(c *forge.Config) { c.ScopeURL = a.URL + "/enterprises/big" }
	if id, err := a.client(t, enterprise).Check(ctx); err != nil || id.InstallationID != big {
		t.Errorf("an enterprise: %+v, %v", id, err)
	}
	// An older GitHub does not find an App's installation at an enterprise, but it finds the
	// installation by ID.
	a.Fault(func(r *http.Request) *forgetest.Fault {
		if strings.HasSuffix(r.URL.Path, "/enterprises/big/installation") {
			return &forgetest.Fault{Status: 404, Body: `{"message":"Not Found"}`}
		}
		return nil
	})
	_, err := a.client(t, enterprise).Check(ctx)
	if e := failure(t, err, forge.Refused); !strings.Contains(e.Message, "github_app_installation_id") {
		t.Error(err)
	}
	if _, err := a.client(t, enterprise, numbered(big)).Check(ctx); err != nil {
		t.Errorf("an enterprise by its number: %v", err)
	}
}

func TestGitHubToken(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	for _, c := range []struct {
		why   string
		token string
		class forge.Class
	}{
		{"may manage an organisation", a.AddToken("repo", "admin:org"), ""},
		{"fine-grained", a.AddToken(), ""},
		{"may not", a.AddToken("repo"), forge.Forbidden},
		{"is none", "ghp_nobodysnobodysnobodysnobodys", forge.Refused},
	} {
		g := a.client(t, func(x *forge.Config) { x.Credential = map[string][]byte{"github_token": []byte(c.token)} })
		id, err := g.Check(ctx)
		switch {
		case forge.ClassOf(err) != c.class:
			t.Errorf("%s: forge.ClassOf(err) != c.class, %+v, %v", c.why, id, err)
		case id.Kind != forge.GitHubTokenKind:
			t.Errorf("%s: id.Kind = %q, want %q", c.why, id.Kind, forge.GitHubTokenKind)
		case (c.class == forge.Forbidden) != (len(id.Missing) > 0):
			t.Errorf("%s: (c.class == forge.Forbidden) != (len(id.Missing) > 0), %+v, %v", c.why, id, err)
		}
		if c.class == "" && id.ExpiresAt.Before(time.Now().Add(80*24*time.Hour)) {
			t.Errorf("%s: it expires at %v", c.why, id.ExpiresAt)
		}
		if c.why == "may manage an organisation" && !slices.Equal(id.Scopes, []string{"repo", "admin:org"}) {
			t.Errorf("scopes %v", id.Scopes)
		}
	}
}

// FLEET-11: the input of an organisation's administrator cannot lead elsewhere.
func TestGitHubConfig(t *testing.T) {
	a := newGitHubEnv(t)
	for _, scope := range []string{"", "/", "/acme/app/x", "/../orgs/other", "/acme/..", "/acme%2Fother", "/enterprises", "/enterprises/", "/acme?x=y", "/acme#x", "/a b", "/acme/a\nb", "/-x", "//acme"} {
		if _, err := forge.NewGitHub(forge.Config{URL: a.URL, ScopeURL: a.URL + scope, Credential: a.secret()}); err == nil {
			t.Errorf("place %q is taken", scope)
		}
	}
	for _, scope := range []string{"https://github.com/acme", "http://127.0.0.1/acme", "https://user:pw@github.com/acme", "acme"} {
		if _, err := forge.NewGitHub(forge.Config{URL: a.URL, ScopeURL: scope, Credential: a.secret()}); err == nil || strings.Contains(err.Error(), "pw") {
			t.Errorf("place %q: %v", scope, err)
		}
	}
	for _, u := range []string{"http://github.example.com", "ftp://github.com", "github.com", "https://u:p@github.com", "https://github.com?x"} {
		if _, err := forge.NewGitHub(forge.Config{URL: u, ScopeURL: u + "/acme", Credential: a.secret()}); err == nil {
			t.Errorf("URL %q is taken", u)
		}
	}
	good := func() map[string][]byte { return a.secret() }
	for why, change := range map[string]func(map[string][]byte){
		"nothing":         func(m map[string][]byte) { clear(m) },
		"no key":          func(m map[string][]byte) { delete(m, "github_app_private_key") },
		"both forms":      func(m map[string][]byte) { m["github_token"] = []byte("ghp_x") },
		"a key of no use": func(m map[string][]byte) { m["github_app_private_key"] = []byte("canary") },
		"half a key":      func(m map[string][]byte) { m["github_app_private_key"] = a.key[:len(a.key)/2] },
		"an id of no App": func(m map[string][]byte) { m["github_app_id"] = []byte("a/b") },
		"no installation": func(m map[string][]byte) { m["github_app_installation_id"] = []byte("-1") },
		"a key that is read": func(m map[string][]byte) {
			m["github_app_pem"] = m["github_app_private_key"]
			delete(m, "github_app_private_key")
		},
	} {
		m := good()
		change(m)
		if _, err := forge.NewGitHub(forge.Config{URL: a.URL, ScopeURL: a.URL + "/acme", Credential: m}); err == nil || strings.Contains(err.Error(), "canary") {
			t.Errorf("%s: %v", why, err)
		}
	}
	for web, scope := range map[string]string{"https://github.com": "https://github.com/acme", "https://tenant.ghe.com/": "https://tenant.ghe.com/enterprises/big", "https://ghes.example.com": "https://ghes.example.com/acme/app.x"} {
		if _, err := forge.NewGitHub(forge.Config{URL: web, ScopeURL: scope, Credential: a.secret()}); err != nil {
			t.Errorf("%s: %v", scope, err)
		}
	}
	if len(a.Calls()) > 0 {
		t.Error("creating a client sent a request")
	}
}

// A token is used for an hour, a revoked one is replaced, and no token is used until its very end.
func TestGitHubTokenLife(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	var ahead atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	a.Clock(clock)
	g := a.client(t, func(c *forge.Config) { c.Now = clock })
	issued := func() int { return count(a.Calls(), "POST", api+"/app/installations/") }
	step := func(want int) {
		t.Helper()
		if _, err := g.Runners(ctx); err != nil {
			t.Fatal(err)
		}
		if got := issued(); got != want {
			t.Errorf("%d tokens were requested, want %d", got, want)
		}
	}
	step(1)
	ahead.Store(int64(54 * time.Minute))
	step(1)
	ahead.Store(int64(56 * time.Minute))
	step(2)
	a.EndTokens()
	step(3)
	// The App is removed and installed again. The client uses the new installation ID without a
	// restart.
	a.Uninstall(a.installation)
	if _, err := g.Runners(ctx); err == nil {
		t.Error("without an installation")
	} else {
		failure(t, err, forge.Refused)
	}
	a.Install(a.app, "acme", forgetest.Enough())
	if _, err := g.Runners(ctx); err != nil {
		t.Error(err)
	}
	// Concurrent callers share one token.
	fresh := a.client(t, func(c *forge.Config) { c.Now = clock })
	before := issued()
	errs := make([]error, 12)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = fresh.Runners(ctx) })
	}
	wg.Wait()
	if err := errors.Join(errs...); err != nil || issued() != before+1 {
		t.Errorf("%v, %d tokens for one", err, issued()-before)
	}
}

// Clocks may differ by minutes or hours in either direction.
func TestGitHubClockSkew(t *testing.T) {
	a := newGitHubEnv(t)
	for _, skew := range []time.Duration{-5 * time.Minute, 5 * time.Minute, -time.Hour, 26 * time.Hour} {
		managed := func() time.Time { return time.Now().Add(skew) }
		g := a.client(t, func(c *forge.Config) { c.Now = managed })
		ctx := testContext(t)
		if _, err := g.Check(ctx); err != nil {
			t.Errorf("%v: %v", skew, err)
		}
		a.Forget()
		for range 3 { // the token stays valid for its hour, by GitHub's clock
			if _, err := g.Runners(ctx); err != nil {
				t.Errorf("%v: %v", skew, err)
			}
		}
		if n := count(a.Calls(), "POST", api+"/app/"); n != 0 {
			t.Errorf("%v: %d more tokens", skew, n)
		}
	}
}

// FLEET-17: an incomplete list and an empty response are never a list.
func TestGitHubPartialList(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	for i := range 250 {
		a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: fmt.Sprintf("r%03d", i), Labels: []string{"self-hosted", "nix"}, Busy: i == 7})
	}
	a.AddRunner(forgetest.GitHubRunner{Place: "other", Name: "theirs"})
	g := a.client(t)
	all, err := g.Runners(ctx)
	switch {
	case err != nil:
		t.Fatal(err)
	case len(all) != 250:
		t.Fatalf("len(all) = %v, want 250", len(all))
	case all[7].Name != "r007":
		t.Fatalf("all[7].Name = %q, want %q", all[7].Name, "r007")
	case !all[7].Busy:
		t.Fatalf("all[7].Busy is false; %d, %v", len(all), err)
	case all[249].Status != "online":
		t.Fatalf("all[249].Status = %q, want %q", all[249].Status, "online")
	case !slices.Equal(all[0].Labels, []string{"self-hosted", "nix"}):
		t.Fatalf("all[0].Labels (-want +got):\n%s", cmp.Diff([]string{"self-hosted", "nix"}, all[0].Labels))
	case all[0].Group == 0:
		t.Fatalf("all[0].Group = %v", all[0].Group)
	}
	page := func(n int) func(*http.Request) bool {
		return func(r *http.Request) bool {
			return strings.HasSuffix(r.URL.Path, "/actions/runners") && r.URL.Query().Get("page") == strconv.Itoa(n)
		}
	}
	answer := func(status int, body string, header ...string) *forgetest.Fault {
		h := http.Header{"Content-Type": {"application/json"}}
		for i := 0; i+1 < len(header); i += 2 {
			h.Set(header[i], header[i+1])
		}
		return &forgetest.Fault{Status: status, Body: body, Header: h}
	}
	for why, c := range map[string]struct {
		which func(*http.Request) bool
		fault *forgetest.Fault
		class forge.Class
	}{
		"the second page fails":            {page(2), answer(502, "bad gateway"), forge.Unavailable},
		"the last page is cut":             {page(3), &forgetest.Fault{Cut: 40}, forge.Unavailable},
		"the first page is cut":            {page(1), &forgetest.Fault{Cut: 1}, forge.Unavailable},
		"no body at all":                   {page(1), answer(200, ""), forge.Unavailable},
		"another thing":                    {page(1), answer(200, "{}"), forge.Unavailable},
		"no list in it":                    {page(1), answer(200, `{"total_count":0,"runners":null}`), forge.Unavailable},
		"no number":                        {page(1), answer(200, `{"runners":[]}`), forge.Unavailable},
		"things without a number":          {page(1), answer(200, `{"total_count":1,"runners":[{"name":"x"}]}`), forge.Unavailable},
		"a list instead":                   {page(1), answer(200, `[]`), forge.Unavailable},
		"a portal":                         {page(1), answer(200, "<html>", "Content-Type", "text/html"), forge.Unavailable},
		"the end comes early":              {page(2), answer(200, `{"total_count":250,"runners":[]}`), forge.Unavailable},
		"fewer than reported":              {page(1), answer(200, `{"total_count":3,"runners":[{"id":1}]}`), forge.Unavailable},
		"not found, by a proxy":            {page(2), answer(404, "no such page"), forge.Unavailable},
		"not found":                        {page(2), answer(404, `{"message":"Not Found"}`), forge.NotFound},
		"forbidden":                        {page(2), answer(403, `{"message":"no"}`), forge.Forbidden},
		"gone":                             {page(2), answer(410, `{"message":"Gone"}`), forge.NotFound},
		"conflict":                         {page(2), answer(409, `{"message":"no"}`), forge.Conflict},
		"unprocessable":                    {page(2), answer(422, `{"message":"no"}`), forge.Invalid},
		"a bad request":                    {page(2), answer(400, `{"message":"no"}`), forge.Invalid},
		"the connection is lost":           {page(2), &forgetest.Fault{Drop: true}, forge.Unavailable},
		"not modified without a condition": {page(2), answer(304, ""), forge.Unavailable},
		"a redirect to nowhere":            {page(2), answer(302, ""), forge.Unavailable},
		"a redirect elsewhere":             {page(2), answer(302, "", "Location", "http://localhost:1/x"), forge.Unavailable},
	} {
		a.Fault(func(r *http.Request) *forgetest.Fault {
			if c.which(r) {
				return c.fault
			}
			return nil
		})
		got, err := a.client(t).Runners(ctx)
		if forge.ClassOf(err) != c.class || got != nil {
			t.Errorf("%s: %d runners, %v", why, len(got), err)
		}
	}
	a.Fault(nil)
	empty := a.client(t, func(c *forge.Config) { c.ScopeURL = a.URL + "/other" })
	a.Install(a.app, "other", forgetest.Enough())
	switch got, err := empty.Runners(ctx); {
	case err != nil:
		t.Errorf("another organisation: %v", err)
	case len(got) != 1:
		t.Errorf("another organisation: len(got) = %v, want 1", len(got))
	case got[0].Name != "theirs":
		t.Errorf("another organisation: got[0].Name = %q, want %q", got[0].Name, "theirs")
	}
}

// A list that changes during the reads is read again.
func TestGitHubListThatMoves(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	var first int64
	for i := range 150 {
		id := a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: fmt.Sprint(i)})
		if i == 0 {
			first = id
		}
	}
	var once sync.Once
	a.Fault(func(r *http.Request) *forgetest.Fault {
		if r.URL.Query().Get("page") == "2" {
			once.Do(func() { a.RemoveRunner(first) }) // the 101st moves to the first page, which was read already
		}
		return nil
	})
	got, err := a.client(t).Runners(ctx)
	if err != nil || len(got) != 149 {
		t.Errorf("%d runners, %v", len(got), err)
	}
}

// An unchanged page is not sent again, and does not count against the rate limit.
func TestGitHubETag(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	for i := range 120 {
		a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: fmt.Sprint(i)})
	}
	g := a.client(t)
	if _, err := g.Runners(ctx); err != nil {
		t.Fatal(err)
	}
	rate := g.Rate()
	switch {
	case rate.Limit != 5000:
		t.Fatalf("rate: rate.Limit = %v, want 5000", rate.Limit)
	case rate.Remaining <= 0:
		t.Fatalf("rate: rate.Remaining = %v, want more than 0", rate.Remaining)
	case rate.Remaining > 4998:
		t.Fatalf("rate: rate.Remaining = %v, want at most 4998", rate.Remaining)
	case time.Until(rate.Reset) > 61*time.Minute:
		t.Fatalf("rate: time.Until(rate.Reset) > 61*time.Minute; rate = %+v", rate)
	}
	a.Forget()
	for range 5 {
		if got, err := g.Runners(ctx); err != nil || len(got) != 120 {
			t.Fatalf("%d, %v", len(got), err)
		}
	}
	for _, c := range a.Calls() {
		if c.Status != http.StatusNotModified {
			t.Errorf("%+v", c)
		}
	}
	if got := g.Rate(); got.Remaining != rate.Remaining {
		t.Errorf("they cost %d", rate.Remaining-got.Remaining)
	}
	a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: "new"})
	if got, err := g.Runners(ctx); err != nil || len(got) != 121 {
		t.Errorf("after a change: %d, %v", len(got), err)
	}
}

// FL-04: every form of a rate limit is recognised as a limit, not as a refusal. Then the client
// sends no request until the limit ends.
func TestGitHubLimits(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	var ahead atomic.Int64
	clock := func() time.Time { return time.Now().Add(time.Duration(ahead.Load())) }
	a.Clock(clock)
	g := a.client(t, func(c *forge.Config) { c.Now = clock })
	if _, err := g.Runners(ctx); err != nil {
		t.Fatal(err)
	}
	limited := func(why string, least, limit time.Duration) {
		t.Helper()
		_, err := g.Runners(ctx)
		e := failure(t, err, forge.RateLimited)
		if e.RetryAfter < least || e.RetryAfter > limit {
			t.Errorf("%s: wait %v", why, e.RetryAfter)
		}
		requested := len(a.Calls())
		err = g.DeleteRunner(ctx, 1)
		switch e := failure(t, err, forge.RateLimited); {
		case e.Status != 0:
			t.Errorf("%s: e.Status = %v, want 0; %d", why, e.Status, len(a.Calls())-requested)
		case e.RetryAfter > limit:
			t.Errorf("%s: e.RetryAfter = %v, want at most %v; %d", why, e.RetryAfter, limit, len(a.Calls())-requested)
		case len(a.Calls()) != requested:
			t.Errorf("%s: len(a.Calls()) = %v, want %v; %d", why, len(a.Calls()), requested, len(a.Calls())-requested)
		}
		ahead.Add(int64(e.RetryAfter + time.Second))
	}
	a.Slow(40*time.Second, true)
	limited("the secondary limit", 39*time.Second, 40*time.Second)
	a.Slow(30*time.Second, false)
	limited("the secondary limit without a time", time.Minute, time.Minute)
	fault := func(f forgetest.Fault) {
		var once sync.Once
		a.Fault(func(*http.Request) (out *forgetest.Fault) {
			once.Do(func() { out = &f })
			return out
		})
	}
	fault(forgetest.Fault{Status: 429, Header: http.Header{"Retry-After": {"70"}}, Body: `{"message":"slow down"}`})
	limited("429", 70*time.Second, 70*time.Second)
	fault(forgetest.Fault{Status: 429})
	limited("429 without a time", time.Minute, time.Minute)
	fault(forgetest.Fault{Status: 429, Header: http.Header{"Retry-After": {"99999999"}}})
	limited("429 with a time that is too long", time.Hour, time.Hour)
	a.Fault(nil)

	// The primary limit: the remaining number is 0, and the reset header says when it ends.
	a.Limit(2)
	fresh := a.client(t, func(c *forge.Config) { c.Now = clock })
	var err error
	for range 4 {
		a.AddRunner(forgetest.GitHubRunner{Place: "acme", Name: "x"}) // so that the response is not a 304
		if _, err = fresh.Runners(ctx); err != nil {
			break
		}
	}
	switch e := failure(t, err, forge.RateLimited); {
	case e.Status != http.StatusForbidden:
		t.Errorf("e.Status = %v, want %v", e.Status, http.StatusForbidden)
	case e.RetryAfter < 58*time.Minute:
		t.Errorf("e.RetryAfter = %v, want at least %v", e.RetryAfter, 58*time.Minute)
	case e.RetryAfter > time.Hour:
		t.Errorf("e.RetryAfter = %v, want at most %v", e.RetryAfter, time.Hour)
	case fresh.Rate().Remaining != 0:
		t.Errorf("fresh.Rate().Remaining = %v, want 0", fresh.Rate().Remaining)
	}
	ahead.Add(int64(time.Hour + 2*time.Second))
	if _, err := fresh.Runners(ctx); err != nil {
		t.Errorf("an hour later: %v", err)
	}
}

// The credential goes to one host only. A renamed object is found on that host.
func TestGitHubRedirects(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	stranger := forgetest.NewGitHub(t)
	g := a.client(t)
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, to := range []string{stranger.URL + api + "/orgs/acme/actions/runners", strings.Replace(a.URL, "127.0.0.1", "localhost", 1) + "/x", "//" + strings.TrimPrefix(stranger.URL, "http://") + "/x", "http://u:p@" + strings.TrimPrefix(a.URL, "http://") + "/x", "::"} {
			a.Fault(func(r *http.Request) *forgetest.Fault {
				if strings.Contains(r.URL.Path, "/actions/") || strings.Contains(r.URL.Path, "access_tokens") {
					return &forgetest.Fault{Status: status, Header: http.Header{"Location": {to}}}
				}
				return nil
			})
			if _, err := g.Runners(ctx); forge.ClassOf(err) != forge.Unavailable {
				t.Errorf("%d to %s: %v", status, to, err)
			}
			if err := g.DeleteRunner(ctx, 5); forge.ClassOf(err) != forge.Unavailable {
				t.Errorf("a deletion, %d to %s: %v", status, to, err)
			}
		}
	}
	// A redirect loop on the same host ends.
	a.Fault(func(r *http.Request) *forgetest.Fault {
		if strings.Contains(r.URL.Path, "/actions/") {
			return &forgetest.Fault{Status: 302, Header: http.Header{"Location": {r.URL.String()}}}
		}
		return nil
	})
	if _, err := g.Runners(ctx); forge.ClassOf(err) != forge.Unavailable {
		t.Errorf("a loop: %v", err)
	}
	if n := len(stranger.Calls()); n > 0 {
		t.Errorf("the other host got %d requests", n)
	}
}

func TestGitHubVersion(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	g := a.client(t)
	if v, err := g.Version(ctx); v != "3.17.2" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	for _, c := range a.Calls() {
		if c.Path != api+"/meta" {
			t.Errorf("the version needs %+v", c)
		}
	}
	a.Version("")
	if v, err := g.Version(ctx); v != "" || err != nil {
		t.Errorf("%q, %v", v, err)
	}
	a.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Status: 503} })
	if _, err := g.Version(ctx); forge.ClassOf(err) != forge.Unavailable {
		t.Error(err)
	}
	// Private mode: GitHub answers only with a credential.
	a.Fault(func(r *http.Request) *forgetest.Fault {
		if r.Header.Get("Authorization") == "" {
			return &forgetest.Fault{Status: 401, Body: `{"message":"Must authenticate to access this API."}`}
		}
		return nil
	})
	if _, err := g.Version(ctx); err != nil {
		t.Error(err)
	}
}

// At most four requests of a client run concurrently. A waiting caller may give up.
func TestGitHubAtOnce(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	g := a.client(t)
	if _, err := g.Runners(ctx); err != nil {
		t.Fatal(err)
	}
	var now, limit atomic.Int64
	entered, release := make(chan struct{}, 20), make(chan struct{})
	a.Fault(func(r *http.Request) *forgetest.Fault {
		n := now.Add(1)
		for m := limit.Load(); n > m && !limit.CompareAndSwap(m, n); m = limit.Load() {
		}
		entered <- struct{}{}
		<-release
		now.Add(-1)
		return nil
	})
	errs := make([]error, 10)
	var wg sync.WaitGroup
	for i := range errs {
		wg.Go(func() { _, errs[i] = g.Runners(ctx) })
	}
	for range 4 {
		<-entered
	}
	gone, cancel := context.WithCancelCause(ctx)
	cancel(errors.New("had enough"))
	switch _, err := g.Runners(gone); {
	case err == nil:
		t.Error("a cancelled caller: no error")
	case !strings.Contains(err.Error(), "had enough"):
		t.Errorf("a cancelled caller: err.Error() = %q does not contain %q", err.Error(), "had enough")
	case forge.ClassOf(err) != forge.Unavailable:
		t.Errorf("a cancelled caller: forge.ClassOf(err) != forge.Unavailable; %v", err)
	}
	close(release)
	wg.Wait()
	if err := errors.Join(errs...); err != nil || limit.Load() != 4 {
		t.Errorf("%v, %d at once", err, limit.Load())
	}
}

// Each request is counted by its operation and its status, with a small set of labels. A request
// without a response is counted too.
func TestGitHubObserve(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	var mu sync.Mutex
	seen := map[string]int{}
	g := a.client(t, func(c *forge.Config) {
		c.Observe = func(op string, status int) {
			mu.Lock()
			defer mu.Unlock()
			seen[fmt.Sprint(op, " ", status)]++
		}
	})
	for range 2 {
		if _, err := g.Runners(ctx); err != nil {
			t.Fatal(err)
		}
	}
	a.Fault(func(*http.Request) *forgetest.Fault { return &forgetest.Fault{Drop: true} })
	if _, err := g.Runners(ctx); forge.ClassOf(err) != forge.Unavailable {
		t.Error(err)
	}
	mu.Lock()
	defer mu.Unlock()
	want := map[string]int{"find the App's installation 200": 1, "get an installation's token 201": 1, "list runners 200": 1, "list runners 304": 1, "list runners 0": 1}
	if len(seen) != len(want) {
		t.Errorf("%v", seen)
	}
	for k, n := range want {
		if seen[k] != n {
			t.Errorf("%s: %d, want %d", k, seen[k], n)
		}
	}
	if _, err := forge.NewGitHub(forge.Config{URL: a.URL, ScopeURL: a.URL + "/acme", Credential: a.secret(), CABundle: []byte("none")}); err == nil {
		t.Error("a CA bundle without a certificate is taken")
	}
}

// A token has the permissions that the client needs, and no others of the App.
func TestGitHubNarrowTokens(t *testing.T) {
	a := newGitHubEnv(t)
	ctx := testContext(t)
	wide := forgetest.Enough()
	for _, p := range []string{"contents", "pull_requests", "administration", "secrets"} {
		wide[p] = "write"
	}
	a.ChangeInstallation(a.installation, func(in *forgetest.GitHubInstallation) { in.Permissions = wide })
	for _, name := range []string{"acme/config", "acme/other"} {
		a.Push(a.AddRepository(name, false), "main", forgetest.GitHubCommit{}, map[string]*string{"x": new("y")})
	}
	var mu sync.Mutex
	shown := ""
	a.Fault(func(r *http.Request) *forgetest.Fault {
		mu.Lock()
		defer mu.Unlock()
		if h := r.Header.Get("Authorization"); strings.HasPrefix(h, "Bearer ghs_") {
			shown = h
		}
		return nil
	})
	status := func(path string) int {
		t.Helper()
		req, err := http.NewRequestWithContext(ctx, http.MethodGet, a.URL+api+path, nil)
		if err != nil {
			t.Fatal(err)
		}
		mu.Lock()
		req.Header.Set("Authorization", shown)
		mu.Unlock()
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	org := a.client(t)
	if _, err := org.Runners(ctx); err != nil {
		t.Fatal(err)
	}
	if got := [2]int{status("/orgs/acme/actions/runners"), status("/repos/acme/config/contents/x")}; got != [2]int{200, 403} {
		t.Errorf("a token for runners: %v", got)
	}
	config := a.client(t, func(c *forge.Config) { c.ScopeURL = a.URL + "/acme/config" })
	if _, err := config.ReadFile(ctx, "main", "x"); err != nil {
		t.Fatal(err)
	}
	if got := [3]int{status("/repos/acme/config/contents/x"), status("/repos/acme/other/contents/x"), status("/orgs/acme/actions/runners")}; got != [3]int{200, 404, 403} {
		t.Errorf("a token for a repository: %v", got)
	}
	// The App has fewer permissions now: the next token has only these.
	a.ChangeInstallation(a.installation, func(in *forgetest.GitHubInstallation) {
		in.Permissions = map[string]string{"organization_self_hosted_runners": "read", "metadata": "read"}
	})
	a.EndTokens()
	if _, err := org.Runners(ctx); err != nil {
		t.Errorf("it may still read: %v", err)
	}
	failure(t, org.DeleteRunner(ctx, 1), forge.Forbidden)
	// A later check finds the additional permissions again.
	a.ChangeInstallation(a.installation, func(in *forgetest.GitHubInstallation) { in.Permissions = wide })
	if _, err := org.Check(ctx); err != nil {
		t.Error(err)
	}
	if err := org.DeleteRunner(ctx, 1); err != nil {
		t.Error(err)
	}
}
