package forgetest

import (
	"cmp"
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"
)

const apiRoot = "/api/v4"

type object = map[string]any

// api returns GitLab's REST API, as far as the fleet uses it. Other paths return GitLab's response for unknown paths.
func (g *GitLabFake) api() http.Handler {
	mux := http.NewServeMux()
	routes := map[string]func(*GitLabToken, *http.Request) reply{
		"GET /personal_access_tokens/self":              g.self,
		"GET /metadata":                                 g.metadata,
		"GET /groups/{group}":                           g.group,
		"GET /groups/{group}/runners":                   g.groupRunners,
		"POST /user/runners":                            g.create,
		"GET /runners/{id}":                             g.runner,
		"PUT /runners/{id}":                             g.update,
		"DELETE /runners/{id}":                          g.delete,
		"POST /runners/{id}/reset_authentication_token": g.reset,
		"GET /runners/{id}/managers":                    g.managers,
		"GET /runners/{id}/jobs":                        g.runnerJobs,
		"GET /projects/{project}/jobs/{job}":            g.job,
		"POST /projects/{project}/jobs/{job}/cancel":    g.cancel,
	}
	for pattern, do := range g.projectRoutes() {
		routes[pattern] = g.inProject(do)
	}
	for pattern, do := range routes {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" "+apiRoot+path, func(w http.ResponseWriter, r *http.Request) {
			g.mu.Lock()
			defer g.mu.Unlock()
			g.answer(w, r, func() reply {
				token, no := g.authenticate(r)
				if no != nil {
					return *no
				}
				return do(token, r)
			})
		})
	}
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		g.mu.Lock()
		defer g.mu.Unlock()
		g.answer(w, r, func() reply { return reply{status: http.StatusNotFound, body: object{"error": "404 Not Found"}} })
	})
	return mux
}

// reply is a response. A nil body means no body, which differs from an empty body.
type reply struct {
	status int
	header http.Header
	body   any
}

func message(status int, text string) reply {
	return reply{status: status, body: object{"message": strings.TrimSpace(strconv.Itoa(status) + " " + text)}}
}

func invalid(field, text string) reply {
	return reply{status: http.StatusBadRequest, body: object{"message": object{field: []string{text}}}}
}

// answer adds rate limit and ETag to a response. The limit comes first (lib/gitlab/rack_attack.rb: headers on each
// response, and the rejection is plain text). The ETag covers only the body (Rack::ETag).
func (g *GitLabFake) answer(w http.ResponseWriter, r *http.Request, do func() reply) {
	h := w.Header()
	h.Set("Date", g.now().UTC().Format(http.TimeFormat))
	if g.limit > 0 {
		if g.now().Sub(g.window) >= time.Minute {
			g.window, g.used = g.now().Truncate(time.Minute), 0
		}
		g.used++
		reset := g.window.Add(time.Minute)
		h.Set("RateLimit-Name", "throttle_authenticated_api")
		h.Set("RateLimit-Limit", strconv.Itoa(g.limit))
		h.Set("RateLimit-Observed", strconv.Itoa(g.used))
		h.Set("RateLimit-Remaining", strconv.Itoa(max(g.limit-g.used, 0)))
		h.Set("RateLimit-Reset", strconv.FormatInt(reset.Unix(), 10))
		if g.used > g.limit {
			h.Set("Retry-After", strconv.Itoa(int(reset.Sub(g.now()).Seconds())))
			h.Set("Content-Type", "text/plain")
			w.WriteHeader(http.StatusTooManyRequests)
			w.Write([]byte("Retry later\n"))
			return
		}
	}
	out := do()
	maps.Copy(h, out.header)
	if out.body == nil {
		w.WriteHeader(out.status)
		return
	}
	body, err := json.Marshal(out.body)
	if err != nil {
		panic(err)
	}
	if r.Method == http.MethodGet && out.status == http.StatusOK {
		sum := sha256.Sum256(body)
		tag := `W/"` + hex.EncodeToString(sum[:16]) + `"`
		h.Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	h.Set("Content-Type", "application/json")
	w.WriteHeader(out.status)
	w.Write(body)
}

// authenticate is lib/api/api_guard.rb: each reason why a token is invalid has its own message.
func (g *GitLabFake) authenticate(r *http.Request) (*GitLabToken, *reply) {
	text := cmp.Or(r.Header.Get("Private-Token"), strings.TrimPrefix(r.Header.Get("Authorization"), "Bearer "))
	token, ok := g.tokens[text]
	no := func(status int, kind, text string, more ...string) *reply {
		body := object{"error": kind, "error_description": text}
		if more != nil {
			body["scope"] = strings.Join(more, " ")
		}
		return &reply{status: status, body: body}
	}
	switch {
	case !ok:
		return nil, new(message(http.StatusUnauthorized, "Unauthorized"))
	case token.Revoked:
		return nil, no(http.StatusUnauthorized, "invalid_token", "Token was revoked. You have to re-authorize from the user.")
	case !token.ExpiresAt.IsZero() && !g.now().Before(token.ExpiresAt):
		return nil, no(http.StatusUnauthorized, "invalid_token", "Token is expired. You can either do re-authorization or token refresh.")
	}
	if scopes, ok := mayAsk(token.Scopes, r); !ok {
		return nil, no(http.StatusForbidden, "insufficient_scope", "The request requires higher privileges than provided by the access token.", scopes...)
	}
	return token, nil
}

// self is lib/api/personal_access_tokens/self_information.rb. The expiry is a date.
func (g *GitLabFake) self(t *GitLabToken, _ *http.Request) reply {
	var expires any
	if !t.ExpiresAt.IsZero() {
		expires = t.ExpiresAt.UTC().Format(time.DateOnly)
	}
	return reply{status: http.StatusOK, body: object{"id": 42, "name": "runners", "revoked": t.Revoked, "active": true, "scopes": t.Scopes, "user_id": 7, "expires_at": expires}}
}

func (g *GitLabFake) metadata(*GitLabToken, *http.Request) reply {
	return reply{status: http.StatusOK, body: object{"version": g.version, "revision": "0123abc", "enterprise": true, "kas": object{"enabled": false}}}
}

// find finds a group by ID or path: find_group of lib/api/helpers.rb, where digits are an ID. A group that the token
// may not see returns 404.
func (g *GitLabFake) find(t *GitLabToken, name string) (int64, *reply) {
	id, err := strconv.ParseInt(name, 10, 64)
	if err != nil {
		for n, path := range g.groups {
			if strings.EqualFold(path, name) {
				id = n
			}
		}
	}
	if _, ok := g.groups[id]; !ok || !g.owns(t, id) {
		return 0, new(message(http.StatusNotFound, "Group Not Found"))
	}
	return id, nil
}

func (g *GitLabFake) group(t *GitLabToken, r *http.Request) reply {
	id, no := g.find(t, r.PathValue("group"))
	if no != nil {
		return *no
	}
	path := g.groups[id]
	return reply{status: http.StatusOK, body: object{"id": id, "name": path, "path": path[strings.LastIndex(path, "/")+1:], "full_path": path, "web_url": g.URL + "/groups/" + path, "visibility": "private"}}
}

// page is lib/gitlab/pagination/offset_pagination.rb: 20 entries per page, 100 at most. On the last page, the header
// for the next page is empty.
func page[T any](r *http.Request, all []T, form func(T) object) reply {
	size, n := 20, 1
	if v, err := strconv.Atoi(r.FormValue("per_page")); err == nil && v > 0 {
		size = min(v, 100)
	}
	if v, err := strconv.Atoi(r.FormValue("page")); err == nil && v > 0 {
		n = v
	}
	pages := max((len(all)+size-1)/size, 1)
	next := ""
	if n < pages {
		next = strconv.Itoa(n + 1)
	}
	items := []object{}
	for _, x := range all[min((n-1)*size, len(all)):min(n*size, len(all))] {
		items = append(items, form(x))
	}
	return reply{status: http.StatusOK, body: items, header: http.Header{"X-Next-Page": {next}, "X-Page": {strconv.Itoa(n)}, "X-Per-Page": {strconv.Itoa(size)},
		"X-Total": {strconv.Itoa(len(all))}, "X-Total-Pages": {strconv.Itoa(pages)}}}
}

// groupRunners returns the runners of the group and of its parent groups: group_or_instance_wide in
// lib/api/ci/runners.rb. This GitLab has no instance runners.
func (g *GitLabFake) groupRunners(t *GitLabToken, r *http.Request) reply {
	id, no := g.find(t, r.PathValue("group"))
	if no != nil {
		return *no
	}
	var all []*GitLabRunner
	for _, x := range g.sorted() {
		if within(g.groups[id], g.groups[x.Group]) {
			all = append(all, x)
		}
	}
	return page(r, all, g.item)
}

// item is entities/ci/runner.rb: no tags, no contact time, no token.
func (g *GitLabFake) item(x *GitLabRunner) object {
	status, online := g.statusOf(x)
	busy := "idle"
	for _, j := range g.jobs {
		if j.Runner == x.ID && j.Status == "running" {
			busy = "active"
		}
	}
	return object{"id": x.ID, "description": x.Description, "ip_address": nil, "active": !x.Paused, "paused": x.Paused, "is_shared": false, "runner_type": "group_type",
		"name": nil, "online": online, "created_at": x.CreatedAt.UTC(), "status": status, "job_execution_status": busy}
}

// details are entities/ci/runner_details.rb.
func (g *GitLabFake) details(x *GitLabRunner) object {
	out := g.item(x)
	out["tag_list"] = slices.Concat([]string{}, x.Tags)
	out["run_untagged"], out["locked"], out["maintenance_note"] = x.RunUntagged, x.Locked, x.Note
	out["access_level"] = "not_protected"
	if x.Protected {
		out["access_level"] = "ref_protected"
	}
	out["maximum_timeout"], out["contacted_at"], out["version"] = nil, nil, nil
	if x.MaximumTimeout > 0 {
		out["maximum_timeout"] = x.MaximumTimeout
	}
	if at := x.contacted(); !at.IsZero() {
		out["contacted_at"], out["version"] = at.UTC(), x.Managers[len(x.Managers)-1].Version
	}
	out["groups"] = []object{{"id": x.Group, "name": g.groups[x.Group], "web_url": g.URL + "/groups/" + g.groups[x.Group]}}
	return out
}

// runnerParameters are the parameters of a runner. All are optional.
type runnerParameters struct {
	RunnerType     string          `json:"runner_type"`
	GroupID        int64           `json:"group_id"`
	Description    *string         `json:"description"`
	Note           *string         `json:"maintenance_note"`
	Tags           *[]string       `json:"tag_list"`
	Paused         *bool           `json:"paused"`
	Locked         *bool           `json:"locked"`
	RunUntagged    *bool           `json:"run_untagged"`
	AccessLevel    *string         `json:"access_level"`
	MaximumTimeout json.RawMessage `json:"maximum_timeout"`
}

// apply changes a runner by the rules of app/models/ci/runner.rb. If it returns an error response, it has changed
// nothing.
func (wanted runnerParameters) apply(x *GitLabRunner) *reply {
	next := *x
	set(&next.Description, wanted.Description)
	set(&next.Note, wanted.Note)
	set(&next.Paused, wanted.Paused)
	set(&next.Locked, wanted.Locked)
	set(&next.RunUntagged, wanted.RunUntagged)
	if wanted.Tags != nil {
		next.Tags = nil
		for _, tag := range *wanted.Tags {
			for part := range strings.SplitSeq(tag, ",") { // CommaSeparatedToArray, of each
				next.Tags = append(next.Tags, strings.TrimSpace(part))
			}
		}
	}
	if wanted.AccessLevel != nil {
		if *wanted.AccessLevel != "ref_protected" && *wanted.AccessLevel != "not_protected" {
			return &reply{status: http.StatusBadRequest, body: object{"error": "access_level does not have a valid value"}}
		}
		next.Protected = *wanted.AccessLevel == "ref_protected"
	}
	switch text := string(wanted.MaximumTimeout); text {
	case "":
	case "null":
		next.MaximumTimeout = 0
	default:
		n, err := strconv.ParseInt(text, 10, 64)
		if err != nil {
			return &reply{status: http.StatusBadRequest, body: object{"error": "maximum_timeout is invalid"}}
		}
		if n < 600 {
			return new(invalid("maximum_timeout", "needs to be at least 10 minutes"))
		}
		next.MaximumTimeout = n
	}
	if len([]rune(next.Note)) > 1024 {
		return new(invalid("maintenance_note", "is too long (maximum is 1024 characters)"))
	}
	if len(next.Tags) == 0 && !next.RunUntagged {
		return new(invalid("tags_list", "can not be empty when runner is not allowed to pick untagged jobs"))
	}
	*x = next
	return nil
}

func set[T any](to *T, from *T) {
	if from != nil {
		*to = *from
	}
}

func read(r *http.Request) (runnerParameters, *reply) {
	var w runnerParameters
	if err := json.NewDecoder(r.Body).Decode(&w); err != nil {
		return w, &reply{status: http.StatusBadRequest, body: object{"error": "The provided request body is invalid"}}
	}
	return w, nil
}

// create is lib/api/user_runners.rb. A missing group returns 403, like a group that the user does not own.
func (g *GitLabFake) create(t *GitLabToken, r *http.Request) reply {
	w, no := read(r)
	if no != nil {
		return *no
	}
	switch {
	case w.RunnerType != "group_type":
		return reply{status: http.StatusBadRequest, body: object{"error": "runner_type does not have a valid value"}}
	case !g.owns(t, w.GroupID):
		return message(http.StatusForbidden, "Forbidden - Insufficient permissions")
	}
	x := GitLabRunner{Group: w.GroupID, RunUntagged: true}
	if no := w.apply(&x); no != nil {
		return *no
	}
	made := g.add(x)
	return reply{status: http.StatusCreated, body: object{"id": made.ID, "token": made.Token, "token_expires_at": nil}}
}

// known finds the runner of a request: get_runner and authenticate_… of lib/api/ci/runners.rb.
func (g *GitLabFake) known(t *GitLabToken, r *http.Request) (*GitLabRunner, *reply) {
	id, err := strconv.ParseInt(r.PathValue("id"), 10, 64)
	if err != nil {
		return nil, &reply{status: http.StatusBadRequest, body: object{"error": "id is invalid"}}
	}
	x, ok := g.runners[id]
	switch {
	case !ok:
		return nil, new(message(http.StatusNotFound, "Not found"))
	case !g.owns(t, x.Group):
		return nil, new(message(http.StatusForbidden, "Forbidden - No access granted"))
	}
	return x, nil
}

func (g *GitLabFake) runner(t *GitLabToken, r *http.Request) reply {
	x, no := g.known(t, r)
	if no != nil {
		return *no
	}
	return reply{status: http.StatusOK, body: g.details(x)}
}

func (g *GitLabFake) update(t *GitLabToken, r *http.Request) reply {
	x, no := g.known(t, r)
	if no != nil {
		return *no
	}
	w, no := read(r)
	if no == nil {
		no = w.apply(x)
	}
	if no != nil {
		return *no
	}
	return reply{status: http.StatusOK, body: g.details(x)}
}

func (g *GitLabFake) delete(t *GitLabToken, r *http.Request) reply {
	x, no := g.known(t, r)
	if no != nil {
		return *no
	}
	g.remove(x.ID)
	return reply{status: http.StatusNoContent}
}

// reset assigns a new token. The old one is invalid at once.
func (g *GitLabFake) reset(t *GitLabToken, r *http.Request) reply {
	x, no := g.known(t, r)
	if no != nil {
		return *no
	}
	x.Token = "glrt-" + rand.Text()
	return reply{status: http.StatusCreated, body: object{"token": x.Token, "token_expires_at": nil}}
}

// managers returns all managers without pages: `get ':id/managers'` of lib/api/ci/runners.rb.
func (g *GitLabFake) managers(t *GitLabToken, r *http.Request) reply {
	x, no := g.known(t, r)
	if no != nil {
		return *no
	}
	out := []object{}
	for i, m := range x.Managers {
		status := "offline"
		if g.now().Sub(m.ContactedAt) < 2*time.Hour {
			status = "online"
		}
		out = append(out, object{"id": i + 1, "system_id": m.SystemID, "version": m.Version, "revision": "abc", "platform": "linux", "architecture": "amd64",
			"created_at": m.CreatedAt.UTC(), "contacted_at": m.ContactedAt.UTC(), "ip_address": "127.0.0.1", "status": status, "job_execution_status": "idle"})
	}
	return reply{status: http.StatusOK, body: out}
}

func (g *GitLabFake) runnerJobs(t *GitLabToken, r *http.Request) reply {
	x, no := g.known(t, r)
	if no != nil {
		return *no
	}
	status := r.FormValue("status")
	var all []*GitLabJob
	for _, j := range slices.SortedFunc(maps.Values(g.jobs), func(a, b *GitLabJob) int { return cmp.Compare(b.ID, a.ID) }) {
		if j.Runner == x.ID && (status == "" || status == j.Status) {
			all = append(all, j)
		}
	}
	return page(r, all, jobForm)
}

func jobForm(j *GitLabJob) object {
	return object{"id": j.ID, "status": j.Status, "name": "test", "stage": "test", "ref": "main", "project": object{"id": j.Project, "path_with_namespace": fmt.Sprintf("acme/p%d", j.Project)}}
}

func (g *GitLabFake) knownJob(r *http.Request) (*GitLabJob, *reply) {
	project, err1 := strconv.ParseInt(r.PathValue("project"), 10, 64)
	id, err2 := strconv.ParseInt(r.PathValue("job"), 10, 64)
	j, ok := g.jobs[id]
	if err1 != nil || err2 != nil || !ok || j.Project != project {
		return nil, new(message(http.StatusNotFound, "Not found"))
	}
	return j, nil
}

func (g *GitLabFake) job(_ *GitLabToken, r *http.Request) reply {
	j, no := g.knownJob(r)
	if no != nil {
		return *no
	}
	return reply{status: http.StatusOK, body: jobForm(j)}
}

// cancel is `post ':id/jobs/:job_id/cancel'` of lib/api/ci/jobs.rb. An ended job keeps its status. A Developer may
// cancel unless the project requires a higher role. The owner of a runner's group has the owner role in the runner's
// projects.
func (g *GitLabFake) cancel(t *GitLabToken, r *http.Request) reply {
	j, no := g.knownJob(r)
	if no != nil {
		return *no
	}
	role := t.Level
	if x := g.runners[j.Runner]; x != nil && g.owns(t, x.Group) {
		role = 50
	}
	switch {
	case role == 0:
		return message(http.StatusNotFound, "Project Not Found")
	case role < max(30, g.cancels[j.Project]):
		return message(http.StatusForbidden, "Forbidden")
	}
	if j.Status == "running" {
		j.Status = "canceled"
	}
	return reply{status: http.StatusCreated, body: jobForm(j)}
}
