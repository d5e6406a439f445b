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

// GitHubFake is a GitHub Enterprise Server with its API below /api/v3. It has Apps and their installations,
// organisations with repositories, runner groups, runners, workflow runs and scale sets. It behaves as GitHub's REST
// documentation says (version 2022-11-28). The code names the page at each behaviour.
type GitHubFake struct {
	forgeFake

	mu        sync.Mutex
	now       func() time.Time
	version   string
	last      int64 // last id that was assigned
	apps      map[int64]*rsa.PublicKey
	installed map[int64]*GitHubInstallation
	tokens    map[string]*githubToken
	accounts  map[string]*GitHubAccount // by name, case-folded
	repos     map[int64]*GitHubRepository
	groups    map[int64]*GitHubGroup
	runners   map[int64]*GitHubRunner
	runs      map[int64]*GitHubRun
	scaleSets map[int64]GitHubScaleSet

	limit     int // requests per hour and credential
	used      map[string]int
	reset     time.Time
	secondary time.Time     // end of the secondary rate limit
	wait      time.Duration // Retry-After of the secondary limit; 0: no header
}

// GitHubAccount owns repositories and runners.
type GitHubAccount struct {
	Name, Type string // Organization, User or Enterprise
	NoGroups   bool   // its plan has only the default group
}

// GitHubInstallation is the installation of an App at an account.
type GitHubInstallation struct {
	ID, App     int64
	Account     string
	Permissions map[string]string // such as organization_self_hosted_runners: write
	Suspended   bool
}

// GitHubRepository has an ID that stays the same when its name changes.
type GitHubRepository struct {
	ID     int64
	Name   string // owner/name
	Public bool
	Former []string // earlier names
	// Squash only: a pull request can only be merged as one commit.
	Squash bool

	git *repositoryGit
}

// GitHubGroup defines which repositories can use its runners.
type GitHubGroup struct {
	ID                        int64
	Account, Name, Visibility string
	Default, Inherited        bool
	AllowsPublic              bool
	Repositories              []int64
}

// GitHubRunner is registered for an account, or for a repository: owner/name.
type GitHubRunner struct {
	ID                      int64
	Place, Name, Status, OS string
	Busy                    bool
	Labels                  []string
	Group                   int64
}

// GitHubRun is a run of a workflow.
type GitHubRun struct {
	ID         int64
	Repository string
	Status     string // queued, in_progress, completed
	Conclusion string
	Stubborn   bool // it ignores a cancel and obeys only a forced one
}

// GitHubScaleSet is a scale set that ARC creates. Its runners are created for jobs.
type GitHubScaleSet struct {
	ID               int64
	Org, Group, Name string
}

type githubToken struct {
	installation int64 // 0: a person's token
	until        time.Time
	scopes       []string // of a person's token
	fine         bool     // fine-grained: it has no scopes
	permissions  map[string]string
	repositories []string // names of the repositories that the token covers; nil: all
}

// NewGitHub starts a GitHub without accounts. It stops with the test.
func NewGitHub(t testing.TB) *GitHubFake {
	g, stop := OpenGitHub()
	t.Cleanup(stop)
	return g
}

// OpenGitHub starts a GitHub without accounts. The caller must call stop.
func OpenGitHub() (g *GitHubFake, stop func()) {
	g = &GitHubFake{now: time.Now, version: "3.17.2", last: 1000, limit: 5000, apps: map[int64]*rsa.PublicKey{}, installed: map[int64]*GitHubInstallation{},
		tokens: map[string]*githubToken{}, accounts: map[string]*GitHubAccount{}, repos: map[int64]*GitHubRepository{}, groups: map[int64]*GitHubGroup{},
		runners: map[int64]*GitHubRunner{}, runs: map[int64]*GitHubRun{}, scaleSets: map[int64]GitHubScaleSet{}, used: map[string]int{}}
	return g, g.open(g.api())
}

// change runs f on the state under the lock.
func (g *GitHubFake) change(f func()) {
	g.mu.Lock()
	defer g.mu.Unlock()
	f()
}

func (g *GitHubFake) number() int64 {
	g.last++
	return g.last
}

// Clock sets another clock, which also sets the Date header of responses.
func (g *GitHubFake) Clock(now func() time.Time) { g.change(func() { g.now = now }) }

// Version sets the reported server version. Empty: no version, as github.com.
func (g *GitHubFake) Version(v string) { g.change(func() { g.version = v }) }

// Limit sets the number of requests per hour that each credential may send from now on.
func (g *GitHubFake) Limit(perHour int) {
	g.change(func() { g.limit, g.reset = perHour, time.Time{} })
}

// Slow lets GitHub reject all requests with the secondary rate limit for d. If say is true, the responses have a
// Retry-After header.
func (g *GitHubFake) Slow(d time.Duration, say bool) {
	g.change(func() {
		g.secondary, g.wait = g.now().Add(d), 0
		if say {
			g.wait = d
		}
	})
}

// AddApp creates an App, and returns its ID and its private key in PEM form. Creating a key takes a moment.
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

// Enough returns the permissions that the fleet needs at an organisation.
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

// Uninstall removes an App from an account. Its tokens become invalid.
func (g *GitHubFake) Uninstall(installation int64) {
	g.change(func() { delete(g.installed, installation) })
}

// ChangeInstallation changes an installation.
func (g *GitHubFake) ChangeInstallation(id int64, change func(*GitHubInstallation)) {
	g.change(func() { change(g.installed[id]) })
}

// EndTokens revokes all tokens of installations, as an owner can.
func (g *GitHubFake) EndTokens() {
	g.change(func() { maps.DeleteFunc(g.tokens, func(_ string, t *githubToken) bool { return t.installation != 0 }) })
}

// AddToken creates a token of a person who owns all accounts. Without scopes it is a fine-grained token.
func (g *GitHubFake) AddToken(scopes ...string) (token string) {
	g.change(func() {
		token = "ghp_" + rand.Text()
		g.tokens[token] = &githubToken{scopes: scopes, fine: len(scopes) == 0, until: g.now().Add(90 * 24 * time.Hour)}
	})
	return token
}

// AddAccount creates an account of a kind, such as an organisation, with its default group.
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

// AddRepository creates a repository. name is owner/name.
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

// RenameRepository renames a repository. The new name can have another owner.
func (g *GitHubFake) RenameRepository(id int64, name string) {
	g.change(func() { g.repos[id].Former, g.repos[id].Name = append(g.repos[id].Former, g.repos[id].Name), name })
}

// AddGroup creates a runner group, as another user would.
func (g *GitHubFake) AddGroup(group GitHubGroup) int64 {
	g.change(func() {
		group.ID = g.number()
		g.groups[group.ID] = &group
	})
	return group.ID
}

// ChangeGroup changes a runner group, as a user in the settings would. It returns false if the group does not exist.
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

// Groups returns the runner groups of an account, by ID.
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

// ChangeRunner changes a runner. It returns false if the runner does not exist.
func (g *GitHubFake) ChangeRunner(id int64, change func(*GitHubRunner)) (ok bool) {
	g.change(func() {
		var r *GitHubRunner
		if r, ok = g.runners[id]; ok {
			change(r)
		}
	})
	return ok
}

// RemoveRunner removes a runner, as when it ends after its job.
func (g *GitHubFake) RemoveRunner(id int64) { g.change(func() { delete(g.runners, id) }) }

// Runners returns all runners, by ID.
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

// EnsureScaleSet creates a scale set, or returns the existing one with its name in its group. ARC's controller
// queries the name first (CreateOrReuse, controllers/actions.github.com/autoscalingrunnerset_controller.go).
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

// DeleteScaleSet deletes a scale set, also one that is in use. It returns false if the scale set does not exist.
func (g *GitHubFake) DeleteScaleSet(id int64) (ok bool) {
	g.change(func() {
		_, ok = g.scaleSets[id]
		delete(g.scaleSets, id)
	})
	return ok
}

// ScaleSets returns all scale sets, by ID.
func (g *GitHubFake) ScaleSets() (out []GitHubScaleSet) {
	g.change(func() { out = sorted(g.scaleSets) })
	return out
}

// sorted returns the values of a map in the order of their keys.
func sorted[T any](m map[int64]T) []T {
	out := make([]T, 0, len(m))
	for _, k := range slices.Sorted(maps.Keys(m)) {
		out = append(out, m[k])
	}
	return out
}

func text(n int64) string { return strconv.FormatInt(n, 10) }
