package forgetest

import (
	"cmp"
	"crypto/rand"
	"crypto/rsa"
	"crypto/x509"
	"encoding/pem"
	"maps"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"
)

// GitHubFake is a GitHub Enterprise Server: its API is below /api/v3. It has Apps
// and where they are installed, organisations with repositories, runner groups,
// runners, workflow runs and scale sets. What it does is what GitHub's REST
// documentation says (version 2022-11-28), page by page named where it is done.
type GitHubFake struct {
	front

	mu        sync.Mutex
	now       func() time.Time
	version   string
	last      int64 // number that was given out
	apps      map[int64]*rsa.PublicKey
	installed map[int64]*GitHubInstallation
	tokens    map[string]*githubToken
	accounts  map[string]*GitHubAccount // by name, folded
	repos     map[int64]*GitHubRepository
	groups    map[int64]*GitHubGroup
	runners   map[int64]*GitHubRunner
	runs      map[int64]*GitHubRun
	scaleSets map[int64]GitHubScaleSet

	limit     int // requests an hour of one credential
	used      map[string]int
	reset     time.Time
	secondary time.Time     // until when nobody may ask
	wait      time.Duration // that it then says; 0: it says none
}

// A GitHubAccount has repositories and runners.
type GitHubAccount struct {
	Name, Type string // Organization, User or Enterprise
	NoGroups   bool   // its plan has none but the default one
}

// A GitHubInstallation is an App at an account.
type GitHubInstallation struct {
	ID, App     int64
	Account     string
	Permissions map[string]string // such as organization_self_hosted_runners: write
	Suspended   bool
}

// A GitHubRepository has a number that stays when its name changes.
type GitHubRepository struct {
	ID     int64
	Name   string // owner/name
	Public bool
	Former []string // what it was called
	// Squash only: a pull request is merged as one commit, or not at all.
	Squash bool

	git *repositoryGit
}

// A GitHubGroup says who may use the runners in it.
type GitHubGroup struct {
	ID                        int64
	Account, Name, Visibility string
	Default, Inherited        bool
	AllowsPublic              bool
	Repositories              []int64
}

// A GitHubRunner is registered for an account, or a repository: owner/name.
type GitHubRunner struct {
	ID                      int64
	Place, Name, Status, OS string
	Busy                    bool
	Labels                  []string
	Group                   int64
}

// A GitHubRun is a run of a workflow.
type GitHubRun struct {
	ID         int64
	Repository string
	Status     string // queued, in_progress, completed
	Conclusion string
	Stubborn   bool // it does not heed a cancel, only a forced one
}

// A GitHubScaleSet is what ARC makes; runners of it come by jobs.
type GitHubScaleSet struct {
	ID               int64
	Org, Group, Name string
}

type githubToken struct {
	installation int64 // 0: a person's
	until        time.Time
	scopes       []string // of a person's
	fine         bool     // fine-grained: it has no scopes
	permissions  map[string]string
	repositories []string // names that it is for; nil: all
}

// NewGitHub starts a GitHub without accounts. It stops with the test.
func NewGitHub(t testing.TB) *GitHubFake {
	g, stop := OpenGitHub()
	t.Cleanup(stop)
	return g
}

// OpenGitHub starts a GitHub without accounts, until it is stopped.
func OpenGitHub() (g *GitHubFake, stop func()) {
	g = &GitHubFake{now: time.Now, version: "3.17.2", last: 1000, limit: 5000, apps: map[int64]*rsa.PublicKey{}, installed: map[int64]*GitHubInstallation{},
		tokens: map[string]*githubToken{}, accounts: map[string]*GitHubAccount{}, repos: map[int64]*GitHubRepository{}, groups: map[int64]*GitHubGroup{},
		runners: map[int64]*GitHubRunner{}, runs: map[int64]*GitHubRun{}, scaleSets: map[int64]GitHubScaleSet{}, used: map[string]int{}}
	return g, g.open(g.api())
}

// change runs f on the state.
func (g *GitHubFake) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

func (g *GitHubFake) number() int64 {
	g.last++
	return g.last
}

// Clock gives it another clock, which is also what its answers say.
func (g *GitHubFake) Clock(now func() time.Time) { g.change(func() { g.now = now }) }

// Version has it say another version; empty: none, as github.com.
func (g *GitHubFake) Version(v string) { g.change(func() { g.version = v }) }

// Limit lets each credential ask so many times an hour from now on.
func (g *GitHubFake) Limit(perHour int) {
	g.change(func() { g.limit, g.reset = perHour, time.Time{} })
}

// Slow has it refuse everything by the secondary limit for a while, and say in its
// header for how long; not, if say is false.
func (g *GitHubFake) Slow(d time.Duration, say bool) {
	g.change(func() {
		g.secondary, g.wait = g.now().Add(d), 0
		if say {
			g.wait = d
		}
	})
}

// AddApp makes an App, and returns its number and its key in PEM form. Making a key
// takes a moment.
func (g *GitHubFake) AddApp(t testing.TB) (app int64, key []byte) {
	t.Helper()
	k, err := rsa.GenerateKey(rand.Reader, 2048)
	if err != nil {
		t.Fatal(err)
	}
	g.change(func() {
		app = g.number()
		g.apps[app] = &k.PublicKey
	})
	return app, pem.EncodeToMemory(&pem.Block{Type: "RSA PRIVATE KEY", Bytes: x509.MarshalPKCS1PrivateKey(k)})
}

// Enough are the permissions that the fleet needs at an organisation.
func Enough() map[string]string {
	return map[string]string{"organization_self_hosted_runners": "write", "metadata": "read", "actions": "write"}
}

// Install installs an App at an account.
func (g *GitHubFake) Install(app int64, account string, permissions map[string]string) (installation int64) {
	g.change(func() {
		installation = g.number()
		g.installed[installation] = &GitHubInstallation{ID: installation, App: app, Account: account, Permissions: maps.Clone(permissions)}
	})
	return installation
}

// Uninstall takes an App away from an account: its tokens end with it.
func (g *GitHubFake) Uninstall(installation int64) {
	g.change(func() { delete(g.installed, installation) })
}

// ChangeInstallation changes an installation.
func (g *GitHubFake) ChangeInstallation(id int64, change func(*GitHubInstallation)) {
	g.change(func() { change(g.installed[id]) })
}

// EndTokens ends all tokens of installations, as an owner can.
func (g *GitHubFake) EndTokens() {
	g.change(func() { maps.DeleteFunc(g.tokens, func(_ string, t *githubToken) bool { return t.installation != 0 }) })
}

// AddToken makes a token of somebody who owns all accounts; without scopes it is a
// fine-grained one.
func (g *GitHubFake) AddToken(scopes ...string) (token string) {
	g.change(func() {
		token = "ghp_" + rand.Text()
		g.tokens[token] = &githubToken{scopes: scopes, fine: len(scopes) == 0, until: g.now().Add(90 * 24 * time.Hour)}
	})
	return token
}

// AddAccount makes an organisation, or what kind says. Each has its default group.
func (g *GitHubFake) AddAccount(name, kind string) {
	g.change(func() {
		g.accounts[strings.ToLower(name)] = &GitHubAccount{Name: name, Type: cmp.Or(kind, "Organization")}
		id := g.number()
		g.groups[id] = &GitHubGroup{ID: id, Account: name, Name: "Default", Visibility: "all", Default: true}
	})
}

// ChangeAccount changes an account.
func (g *GitHubFake) ChangeAccount(name string, change func(*GitHubAccount)) {
	g.change(func() { change(g.accounts[strings.ToLower(name)]) })
}

// AddRepository makes a repository, named owner/name.
func (g *GitHubFake) AddRepository(name string, public bool) (id int64) {
	g.change(func() {
		id = g.number()
		g.repos[id] = &GitHubRepository{ID: id, Name: name, Public: public, git: newRepositoryGit()}
	})
	return id
}

// ChangeRepository changes the settings of a repository.
func (g *GitHubFake) ChangeRepository(id int64, change func(*GitHubRepository)) {
	g.change(func() { change(g.repos[id]) })
}

// RenameRepository gives a repository another name, perhaps of another owner.
func (g *GitHubFake) RenameRepository(id int64, name string) {
	g.change(func() { g.repos[id].Former, g.repos[id].Name = append(g.repos[id].Former, g.repos[id].Name), name })
}

// AddGroup makes a runner group, as somebody else would.
func (g *GitHubFake) AddGroup(group GitHubGroup) int64 {
	g.change(func() {
		group.ID = g.number()
		g.groups[group.ID] = &group
	})
	return group.ID
}

// ChangeGroup changes a runner group, as somebody in the settings would; false: there is none.
func (g *GitHubFake) ChangeGroup(account, name string, change func(*GitHubGroup)) (ok bool) {
	g.change(func() {
		for _, group := range g.groups {
			if strings.EqualFold(group.Account, account) && group.Name == name {
				ok = true
				change(group)
			}
		}
	})
	return ok
}

// Groups returns the runner groups of an account, by number.
func (g *GitHubFake) Groups(account string) (out []GitHubGroup) {
	g.change(func() {
		for _, group := range sorted(g.groups) {
			if strings.EqualFold(group.Account, account) {
				c := *group
				c.Repositories = slices.Clone(group.Repositories)
				out = append(out, c)
			}
		}
	})
	return out
}

// AddRunner registers a runner.
func (g *GitHubFake) AddRunner(r GitHubRunner) int64 {
	g.change(func() {
		r.ID, r.Status, r.OS = g.number(), cmp.Or(r.Status, "online"), cmp.Or(r.OS, "Linux")
		for _, group := range g.groups {
			if r.Group == 0 && group.Default && strings.EqualFold(group.Account, r.Place) {
				r.Group = group.ID
			}
		}
		g.runners[r.ID] = &r
	})
	return r.ID
}

// ChangeRunner changes a runner; false: there is none.
func (g *GitHubFake) ChangeRunner(id int64, change func(*GitHubRunner)) (ok bool) {
	g.change(func() {
		var r *GitHubRunner
		if r, ok = g.runners[id]; ok {
			change(r)
		}
	})
	return ok
}

// RemoveRunner takes a runner away, as it ends by itself after its job.
func (g *GitHubFake) RemoveRunner(id int64) { g.change(func() { delete(g.runners, id) }) }

// Runners returns all runners, by number.
func (g *GitHubFake) Runners() (out []GitHubRunner) {
	g.change(func() {
		for _, r := range sorted(g.runners) {
			c := *r
			c.Labels = slices.Clone(r.Labels)
			out = append(out, c)
		}
	})
	return out
}

// AddRun starts a run of a workflow.
func (g *GitHubFake) AddRun(r GitHubRun) int64 {
	g.change(func() {
		r.ID, r.Status = g.number(), cmp.Or(r.Status, "in_progress")
		g.runs[r.ID] = &r
	})
	return r.ID
}

// Run returns a run.
func (g *GitHubFake) Run(id int64) (r GitHubRun) {
	g.change(func() { r = *g.runs[id] })
	return r
}

// EnsureScaleSet makes a scale set, or returns the one that has its name in its
// group: ARC's controller asks for it by name first (CreateOrReuse,
// controllers/actions.github.com/autoscalingrunnerset_controller.go).
func (g *GitHubFake) EnsureScaleSet(org, group, name string) (id int64) {
	g.change(func() {
		for _, s := range sorted(g.scaleSets) {
			if strings.EqualFold(s.Org, org) && s.Group == group && s.Name == name {
				id = s.ID
				return
			}
		}
		id = g.number()
		g.scaleSets[id] = GitHubScaleSet{ID: id, Org: org, Group: group, Name: name}
	})
	return id
}

// DeleteScaleSet deletes a scale set, for whoever uses it; false: there is none.
func (g *GitHubFake) DeleteScaleSet(id int64) (ok bool) {
	g.change(func() {
		_, ok = g.scaleSets[id]
		delete(g.scaleSets, id)
	})
	return ok
}

// ScaleSets returns all scale sets, by number.
func (g *GitHubFake) ScaleSets() (out []GitHubScaleSet) {
	g.change(func() { out = sorted(g.scaleSets) })
	return out
}

// sorted are the values of a map by their keys.
func sorted[T any](m map[int64]T) []T {
	out := make([]T, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

func text(n int64) string { return strconv.FormatInt(n, 10) }
