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

// GitLabFake is a GitLab with groups, their runners and their jobs. It behaves as GitLab's source code. Comments name
// the source file where it matters.
type GitLabFake struct {
	forgeFake

	mu       sync.Mutex
	now      func() time.Time
	version  string
	last     int64 // last id that was assigned
	tokens   map[string]*GitLabToken
	groups   map[int64]string // path
	runners  map[int64]*GitLabRunner
	jobs     map[int64]*GitLabJob
	projects map[string]*gitLabProject
	cancels  map[int64]int // minimum role to cancel jobs of a project, if that is restricted
	limit    int           // requests per minute; 0: unlimited
	window   time.Time
	used     int
}

// GitLabToken is an access token of a user who owns groups.
type GitLabToken struct {
	User      string // login; empty: bot
	Level     int    // role in projects: 30 is Developer, 40 is Maintainer; 0: no access
	Scopes    []string
	Owns      []int64   // groups, including their subgroups; nil: all
	ExpiresAt time.Time // zero: never
	Revoked   bool
}

// GitLabRunner is a runner of a group.
type GitLabRunner struct {
	ID, Group                              int64
	Token                                  string // shown only when it is created or reset
	Tags                                   []string
	RunUntagged, Locked, Protected, Paused bool
	MaximumTimeout                         int64 // seconds; 0: none
	Description, Note                      string
	CreatedAt                              time.Time
	Managers                               []GitLabManager // in the order of their first contact
	Status                                 string          // overrides the status that follows from contacts
}

// GitLabManager is a process that contacts GitLab for a runner.
type GitLabManager struct {
	SystemID, Version      string
	CreatedAt, ContactedAt time.Time
}

// GitLabJob is a job that a runner has taken.
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

// OpenGitLab starts a GitLab without groups. The caller must call stop.
func OpenGitLab() (g *GitLabFake, stop func()) {
	g = &GitLabFake{now: time.Now, version: "18.9.1-ee", last: 100, tokens: map[string]*GitLabToken{}, groups: map[int64]string{},
		runners: map[int64]*GitLabRunner{}, jobs: map[int64]*GitLabJob{}, projects: map[string]*gitLabProject{}, cancels: map[int64]int{}}
	return g, g.open(g.api())
}

func (t *GitLabToken) user() string { return cmp.Or(t.User, "bot") }

// Clock sets another clock.
func (g *GitLabFake) Clock(now func() time.Time) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.now = now
}

// Limit sets the number of requests per minute. GitLab rejects further ones with 429. 0: unlimited.
func (g *GitLabFake) Limit(perMinute int) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.limit, g.used, g.window = perMinute, 0, time.Time{}
}

func (g *GitLabFake) number() int64 {
	g.last++
	return g.last
}

// AddToken creates an access token.
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

// AddGroup creates a group. path contains the parent groups.
func (g *GitLabFake) AddGroup(path string) int64 {
	g.mu.Lock()
	defer g.mu.Unlock()
	id := g.number()
	g.groups[id] = path
	return id
}

// AddRunner creates a runner, as another user would, and returns it with ID and token.
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

// Runners returns all runners, by ID.
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

// ChangeRunner changes a runner, as another user would. It returns false if the runner does not exist.
func (g *GitLabFake) ChangeRunner(id int64, change func(*GitLabRunner)) bool {
	g.mu.Lock()
	defer g.mu.Unlock()
	r, ok := g.runners[id]
	if ok {
		change(r)
	}
	return ok
}

// RemoveRunner deletes a runner, as another user would. Its jobs fail.
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

// Contact simulates a contact of a manager for the runner of a token. It returns 0 if the token is not valid, or not
// any longer.
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

// StartJob assigns a job to a runner. It returns 0 if the runner takes no jobs: it is paused or deleted.
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
	NoOne      = 100 // not even an owner of the group
)

// RestrictCancel sets the minimum role to cancel the jobs of a project: its setting
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

// Job returns a job. It returns false if the job does not exist.
func (g *GitLabFake) Job(id int64) (GitLabJob, bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	j, ok := g.jobs[id]
	if !ok {
		return GitLabJob{}, false
	}
	return *j, true
}

// owns reports whether a token has the owner role in a group, directly or through a parent group.
func (g *GitLabFake) owns(t *GitLabToken, group int64) bool {
	path, ok := g.groups[group]
	if !ok {
		return false
	}
	return t.Owns == nil || slices.ContainsFunc(t.Owns, func(own int64) bool { return within(path, g.groups[own]) })
}

// within reports whether path equals above or is below it.
func within(path, above string) bool { return path == above || strings.HasPrefix(path, above+"/") }

// mayAsk reports whether the scopes of a token are sufficient for a request, and which scopes would be:
// allow_access_with_scope in lib/api/api.rb, ci/runners.rb, user_runners.rb, metadata.rb and
// personal_access_tokens/self_information.rb. manage_runner covers only paths below /runners/:id, and not the list of
// a group's runners.
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

// statusOf is deprecated_rest_status of app/models/ci/runner.rb: a paused runner has neither the status online nor
// offline.
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
