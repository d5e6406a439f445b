package forgetest

import (
	"cmp"
	"crypto/rand"
	"maps"
	"net/http"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"
)

// GitLabFake is a GitLab with groups, their runners and their jobs. What it does is
// what GitLab's own sources say, which are named where it matters.
type GitLabFake struct {
	front

	mu       sync.Mutex
	now      func() time.Time
	version  string
	last     int64 // number that was given out
	tokens   map[string]*GitLabToken
	groups   map[int64]string // path
	runners  map[int64]*GitLabRunner
	jobs     map[int64]*GitLabJob
	projects map[string]*gitLabProject
	cancels  map[int64]int // which role may cancel jobs of a project, where that is restricted
	limit    int           // requests a minute; 0: none
	window   time.Time
	used     int
}

// A GitLabToken is an access token of somebody who owns groups.
type GitLabToken struct {
	User      string // login; empty: bot
	Level     int    // in projects: 30 is a Developer, 40 a Maintainer; 0: it sees none
	Scopes    []string
	Owns      []int64   // groups, with those below; nil: all
	ExpiresAt time.Time // zero: never
	Revoked   bool
}

// A GitLabRunner is a runner of a group.
type GitLabRunner struct {
	ID, Group                              int64
	Token                                  string // shown when it is made or reset, and never again
	Tags                                   []string
	RunUntagged, Locked, Protected, Paused bool
	MaximumTimeout                         int64 // seconds; 0: none
	Description, Note                      string
	CreatedAt                              time.Time
	Managers                               []GitLabManager // in the order of their first contact
	Status                                 string          // instead of the one that follows from contacts
}

// A GitLabManager is a process that spoke for a runner.
type GitLabManager struct {
	SystemID, Version      string
	CreatedAt, ContactedAt time.Time
}

// A GitLabJob is a job that a runner took.
type GitLabJob struct {
	ID, Project, Runner int64
	Status              string // running, success, failed, canceled
}

// NewGitLab starts a GitLab without groups. It stops with the test.
func NewGitLab(t testing.TB) *GitLabFake {
	g, stop := OpenGitLab()
	t.Cleanup(stop)
	return g
}

// OpenGitLab starts a GitLab without groups, until it is stopped.
func OpenGitLab() (g *GitLabFake, stop func()) {
	g = &GitLabFake{now: time.Now, version: "18.9.1-ee", last: 100, tokens: map[string]*GitLabToken{}, groups: map[int64]string{},
		runners: map[int64]*GitLabRunner{}, jobs: map[int64]*GitLabJob{}, projects: map[string]*gitLabProject{}, cancels: map[int64]int{}}
	return g, g.open(g.api())
}

func (t *GitLabToken) user() string { return cmp.Or(t.User, "bot") }

// Clock gives it another clock.
func (g *GitLabFake) Clock(now func() time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = now
}

// Limit has it answer so many requests a minute, and 429 to more; 0: all.
func (g *GitLabFake) Limit(perMinute int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limit, g.used, g.window = perMinute, 0, time.Time{}
}

func (g *GitLabFake) number() int64 {
	g.last++
	return g.last
}

// AddToken makes an access token.
func (g *GitLabFake) AddToken(t GitLabToken) string {
	g.mu.Lock()
	defer g.mu.Unlock()
	token := "glpat-" + rand.Text()
	g.tokens[token] = &t
	return token
}

// ChangeToken changes an access token.
func (g *GitLabFake) ChangeToken(token string, change func(*GitLabToken)) {
	g.mu.Lock()
	defer g.mu.Unlock()
	change(g.tokens[token])
}

// AddGroup makes a group; path names the groups that it is below.
func (g *GitLabFake) AddGroup(path string) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := g.number()
	g.groups[id] = path
	return id
}

// AddRunner makes a runner, as somebody else would, and returns it with number and token.
func (g *GitLabFake) AddRunner(r GitLabRunner) GitLabRunner {
	g.mu.Lock()
	defer g.mu.Unlock()
	return *g.add(r)
}

func (g *GitLabFake) add(r GitLabRunner) *GitLabRunner {
	r.ID, r.Token, r.CreatedAt = g.number(), "glrt-"+rand.Text(), g.now()
	g.runners[r.ID] = &r
	return &r
}

// Runners returns all runners, by number.
func (g *GitLabFake) Runners() []GitLabRunner {
	g.mu.Lock()
	defer g.mu.Unlock()
	var out []GitLabRunner
	for _, r := range g.sorted() {
		c := *r
		c.Tags, c.Managers = slices.Clone(r.Tags), slices.Clone(r.Managers)
		out = append(out, c)
	}
	return out
}

func (g *GitLabFake) sorted() []*GitLabRunner {
	return slices.SortedFunc(maps.Values(g.runners), func(a, b *GitLabRunner) int { return cmp.Compare(a.ID, b.ID) })
}

// ChangeRunner changes a runner, as somebody else would; false: there is none.
func (g *GitLabFake) ChangeRunner(id int64, change func(*GitLabRunner)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, ok := g.runners[id]
	if ok {
		change(r)
	}
	return ok
}

// RemoveRunner deletes a runner, as somebody else would; its jobs fail.
func (g *GitLabFake) RemoveRunner(id int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.remove(id)
}

func (g *GitLabFake) remove(id int64) {
	delete(g.runners, id)
	for _, j := range g.jobs {
		if j.Runner == id && j.Status == "running" {
			j.Status = "failed"
		}
	}
}

// Contact is a manager that speaks for the runner of a token. 0: the token opens
// nothing, or no more.
func (g *GitLabFake) Contact(token, systemID string) (runner int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, r := range g.runners {
		if r.Token != token {
			continue
		}
		i := slices.IndexFunc(r.Managers, func(m GitLabManager) bool { return m.SystemID == systemID })
		if i < 0 {
			i = len(r.Managers)
			r.Managers = append(r.Managers, GitLabManager{SystemID: systemID, Version: "18.9.0", CreatedAt: g.now()})
		}
		r.Managers[i].ContactedAt = g.now()
		return r.ID
	}
	return 0
}

// StartJob gives a job to a runner; 0: it takes none, being paused or gone.
func (g *GitLabFake) StartJob(runner, project int64) (job int64) {
	g.mu.Lock()
	defer g.mu.Unlock()
	if r, ok := g.runners[runner]; !ok || r.Paused {
		return 0
	}
	j := &GitLabJob{ID: g.number(), Project: project, Runner: runner, Status: "running"}
	g.jobs[j.ID] = j
	return j.ID
}

// Roles that may cancel the jobs of a project.
const (
	Maintainer = 40
	NoOne      = 100 // not even who owns the group
)

// RestrictCancel lets only so high a role cancel the jobs of a project: its setting
// ci_restrict_pipeline_cancellation_role.
func (g *GitLabFake) RestrictCancel(project int64, role int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.cancels[project] = role
}

// EndJob ends a job with a status.
func (g *GitLabFake) EndJob(job int64, status string) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.jobs[job].Status = status
}

// Job returns a job; false: there is none.
func (g *GitLabFake) Job(id int64) (GitLabJob, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	j, ok := g.jobs[id]
	if !ok {
		return GitLabJob{}, false
	}
	return *j, true
}

// owns says whether a token is an owner's of a group: of itself, or of one above it.
func (g *GitLabFake) owns(t *GitLabToken, group int64) bool {
	path, ok := g.groups[group]
	if !ok {
		return false
	}
	return t.Owns == nil || slices.ContainsFunc(t.Owns, func(own int64) bool { return within(path, g.groups[own]) })
}

// within says whether a path is another one, or below it.
func within(path, above string) bool { return path == above || strings.HasPrefix(path, above+"/") }

// mayAsk says whether the scopes of a token are enough for a request, and which would
// be: allow_access_with_scope in lib/api/api.rb, ci/runners.rb, user_runners.rb,
// metadata.rb and personal_access_tokens/self_information.rb. With manage_runner one
// may ask below /runners/:id only, so not for a group's runners.
func mayAsk(scopes []string, r *http.Request) (enough []string, ok bool) {
	path := strings.TrimPrefix(r.URL.Path, apiRoot)
	enough = []string{"api"}
	if r.Method == http.MethodGet {
		enough = append(enough, "read_api")
	}
	switch {
	case path == "/personal_access_tokens/self":
		return nil, true
	case path == "/metadata" && r.Method == http.MethodGet:
		enough = append(enough, "read_user")
	case path == "/user/runners" && r.Method == http.MethodPost:
		enough = append(enough, "create_runner")
	case strings.HasPrefix(path, "/runners/"):
		enough = append(enough, "manage_runner")
	}
	return enough, slices.ContainsFunc(enough, func(s string) bool { return slices.Contains(scopes, s) })
}

// statusOf is deprecated_rest_status of app/models/ci/runner.rb: a paused runner says
// neither online nor offline.
func (g *GitLabFake) statusOf(r *GitLabRunner) (status string, online bool) {
	contacted := r.contacted()
	online = !contacted.IsZero() && g.now().Sub(contacted) < 2*time.Hour
	seen := contacted
	if r.CreatedAt.After(seen) {
		seen = r.CreatedAt
	}
	switch {
	case r.Status != "":
		return r.Status, online
	case g.now().Sub(seen) > 7*24*time.Hour:
		return "stale", online
	case contacted.IsZero():
		return "never_contacted", online
	case r.Paused:
		return "paused", online
	case online:
		return "online", online
	}
	return "offline", online
}

func (r *GitLabRunner) contacted() (last time.Time) {
	for _, m := range r.Managers {
		if m.ContactedAt.After(last) {
			last = m.ContactedAt
		}
	}
	return last
}
