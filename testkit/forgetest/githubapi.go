package forgetest

import (
	"crypto/rand"
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"maps"
	"net/http"
	"net/http/httptest"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/tailplane/tailplane/testkit/forgetest/appjwt"
)

const githubRoot = "/api/v3"

// sender is the authenticated sender of a request.
type sender struct {
	app   int64               // authenticated by a JWT
	at    *GitHubInstallation // authenticated by an installation token
	own   *githubToken        // authenticated by a person's token
	limit string              // key of the rate limit
	only  []string            // names of the repositories that the token covers; nil: all
}

// reach checks whether the sender may act on an account. permission is the permission that an App needs. A person
// needs one of the scopes. reach returns 200, or an error status.
func (v sender) reach(account, permission string, write bool, scopes ...string) (status int) {
	switch {
	case v.at != nil && !strings.EqualFold(v.at.Account, account):
		return http.StatusNotFound // "404 instead of 403, to avoid confirming the existence", Troubleshooting the REST API
	case v.at != nil:
		if has := v.at.Permissions[permission]; has == "write" || has == "admin" || has == "read" && !write {
			return http.StatusOK
		}
		return http.StatusForbidden
	case v.own != nil:
		if v.own.fine || slices.ContainsFunc(scopes, func(s string) bool { return slices.Contains(v.own.scopes, s) }) {
			return http.StatusOK
		}
		return http.StatusForbidden
	}
	return http.StatusUnauthorized
}

// githubReply is a response before it is written, so that it can get its ETag.
type githubReply struct {
	status int
	body   any
	header http.Header
}

func said(status int, body any) githubReply { return githubReply{status: status, body: body} }

func no(status int, message string) githubReply {
	return said(status, map[string]string{"message": message, "documentation_url": "https://docs.github.com/rest", "status": strconv.Itoa(status)})
}

// refused returns GitHub's response for a status of reach.
func refused(status int) githubReply {
	switch status {
	case http.StatusForbidden:
		return no(status, "Resource not accessible by integration")
	case http.StatusUnauthorized:
		return no(status, "Bad credentials")
	}
	return no(http.StatusNotFound, "Not Found")
}

type githubHandler func(r *http.Request, v sender) githubReply

func (g *GitHubFake) api() http.Handler {
	mux := http.NewServeMux()
	handle := func(pattern string, h githubHandler) {
		method, path, _ := strings.Cut(pattern, " ")
		mux.HandleFunc(method+" "+githubRoot+path, func(w http.ResponseWriter, r *http.Request) { g.answer(w, r, h) })
	}
	handle("GET /meta", func(*http.Request, sender) githubReply {
		meta := map[string]any{"verifiable_password_authentication": true}
		if g.version != "" {
			meta["installed_version"] = g.version
		}
		return said(http.StatusOK, meta)
	})
	g.appRoutes(handle)
	g.runnerRoutes(handle)
	g.gitRoutes(handle)
	mux.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
		g.answer(w, r, func(*http.Request, sender) githubReply { return refused(http.StatusNotFound) })
	})
	return mux
}

// answer handles the common part of every request: limits, authentication, ETag.
func (g *GitHubFake) answer(w http.ResponseWriter, r *http.Request, h githubHandler) {
	g.mu.Lock()
	defer g.mu.Unlock()
	w.Header().Set("Date", g.now().UTC().Format(http.TimeFormat))
	w.Header().Set("Content-Type", "application/json; charset=utf-8")
	v, bad := g.visitor(r)
	reply := githubReply{}
	switch {
	case bad != "":
		reply = no(http.StatusUnauthorized, bad)
	case g.now().Before(g.secondary):
		// "Rate limits for the REST API": 403 or 429 with a message about the secondary limit, and perhaps
		// Retry-After.
		if g.wait > 0 {
			w.Header().Set("Retry-After", strconv.Itoa(int(g.wait/time.Second)))
		}
		reply = said(http.StatusForbidden, map[string]string{"message": "You have exceeded a secondary rate limit. Please wait a few minutes before you try again.",
			"documentation_url": "https://docs.github.com/rest/using-the-rest-api/rate-limits-for-the-rest-api#about-secondary-rate-limits"})
	case !g.within(w.Header(), v, false):
		// The same page: 403 or 429, x-ratelimit-remaining is 0.
		reply = said(http.StatusForbidden, map[string]string{"message": "API rate limit exceeded for " + v.limit + ".",
			"documentation_url": "https://docs.github.com/rest/overview/resources-in-the-rest-api#rate-limiting"})
	case v.outside(r.URL.Path):
		reply = refused(http.StatusNotFound)
	default:
		reply = h(r, v)
		if v.own != nil && !v.own.fine {
			w.Header().Set("X-OAuth-Scopes", strings.Join(v.own.scopes, ", ")) // "Scopes for OAuth apps"
		}
		if v.own != nil {
			w.Header().Set("GitHub-Authentication-Token-Expiration", v.own.until.UTC().Format("2006-01-02 15:04:05 UTC"))
		}
	}
	for name, values := range reply.header {
		w.Header()[name] = values
	}
	var body []byte
	if reply.body != nil {
		body, _ = json.Marshal(reply.body) // cannot fail: maps of strings and numbers
	}
	if r.Method == http.MethodGet && reply.status == http.StatusOK {
		// "Best practices for using the REST API", conditional requests: 304 does not count against the primary limit
		// if the request was authorized.
		sum := sha256.Sum256(body)
		tag := `W/"` + hex.EncodeToString(sum[:]) + `"`
		w.Header().Set("ETag", tag)
		if r.Header.Get("If-None-Match") == tag {
			w.WriteHeader(http.StatusNotModified)
			return
		}
	}
	g.within(w.Header(), v, true)
	w.WriteHeader(reply.status)
	w.Write(body)
}

// within applies the primary limit of a credential. All credentials share one window of an hour.
func (g *GitHubFake) within(h http.Header, v sender, count bool) bool {
	if v.limit == "" {
		return true
	}
	if now := g.now(); now.After(g.reset) {
		g.reset, g.used = now.Add(time.Hour).Truncate(time.Second), map[string]int{}
	}
	left := g.limit - g.used[v.limit]
	ok := left > 0
	if count && ok {
		g.used[v.limit]++
		left--
	}
	h.Set("X-RateLimit-Limit", strconv.Itoa(g.limit))
	h.Set("X-RateLimit-Remaining", strconv.Itoa(max(left, 0)))
	h.Set("X-RateLimit-Reset", strconv.FormatInt(g.reset.Unix(), 10))
	h.Set("X-RateLimit-Resource", "core")
	return ok
}

// visitor authenticates the sender of a request. bad is the reason of a failure.
func (g *GitHubFake) visitor(r *http.Request) (v sender, bad string) {
	shown := r.Header.Get("Authorization")
	if shown == "" {
		return sender{}, ""
	}
	text, ok := strings.CutPrefix(shown, "Bearer ")
	if !ok {
		return sender{}, "Bad credentials"
	}
	if strings.Count(text, ".") == 2 {
		app, why := appjwt.Read(text, g.apps, g.now())
		return sender{app: app, limit: "app " + strconv.FormatInt(app, 10)}, why
	}
	t, ok := g.tokens[text]
	if !ok || !g.now().Before(t.until) {
		return sender{}, "Bad credentials"
	}
	if t.installation == 0 {
		return sender{own: t, limit: "user " + text[:8]}, ""
	}
	at, ok := g.installed[t.installation]
	if !ok || at.Suspended {
		return sender{}, "Bad credentials"
	}
	// A token has the permissions that it was created with, limited to those that the installation still has.
	narrow := *at
	narrow.Permissions = map[string]string{}
	for name, has := range t.permissions {
		if now := at.Permissions[name]; now != "" {
			narrow.Permissions[name] = least(has, now)
		}
	}
	return sender{at: &narrow, limit: "installation ID " + strconv.FormatInt(at.ID, 10), only: t.repositories}, ""
}

// least returns the lower of two permissions: read, write and admin.
func least(a, b string) string {
	order := []string{"read", "write", "admin"}
	return order[min(slices.Index(order, a), slices.Index(order, b))]
}

// outside reports whether a request is about a repository that the token does not cover.
func (v sender) outside(path string) bool {
	rest, ok := strings.CutPrefix(path, githubRoot+"/repos/")
	if !ok || v.only == nil {
		return false
	}
	parts := strings.SplitN(rest, "/", 3)
	return len(parts) > 1 && !slices.ContainsFunc(v.only, func(name string) bool { return strings.EqualFold(name, parts[1]) })
}

// appRoutes adds the routes of "REST API endpoints for GitHub Apps".
func (g *GitHubFake) appRoutes(handle func(string, githubHandler)) {
	find := func(account string, v sender) githubReply {
		if v.app == 0 {
			return no(http.StatusUnauthorized, "A JSON web token could not be decoded")
		}
		for _, in := range sorted(g.installed) {
			if in.App == v.app && strings.EqualFold(in.Account, account) {
				return said(http.StatusOK, g.installationForm(in))
			}
		}
		return refused(http.StatusNotFound)
	}
	byKind := func(kind string) githubHandler {
		return func(r *http.Request, v sender) githubReply {
			if a, ok := g.accounts[strings.ToLower(r.PathValue("account"))]; !ok || a.Type != kind {
				return refused(http.StatusNotFound)
			}
			return find(r.PathValue("account"), v)
		}
	}
	handle("GET /orgs/{account}/installation", byKind("Organization"))
	handle("GET /enterprises/{account}/installation", byKind("Enterprise")) // "Get an enterprise installation for the authenticated app", in preview since 2026-05
	handle("GET /repos/{account}/{repo}/installation", func(r *http.Request, v sender) githubReply {
		if repo, _ := g.repo(repositoryName(r)); repo == nil {
			return refused(http.StatusNotFound)
		}
		return find(r.PathValue("account"), v)
	})
	ours := func(r *http.Request, v sender) (*GitHubInstallation, githubReply) {
		id, _ := strconv.ParseInt(r.PathValue("id"), 10, 64)
		in, ok := g.installed[id]
		switch {
		case v.app == 0:
			return nil, no(http.StatusUnauthorized, "A JSON web token could not be decoded")
		case !ok || in.App != v.app:
			return nil, refused(http.StatusNotFound)
		}
		return in, githubReply{}
	}
	handle("GET /app/installations/{id}", func(r *http.Request, v sender) githubReply {
		in, reply := ours(r, v)
		if in == nil {
			return reply
		}
		return said(http.StatusOK, g.installationForm(in))
	})
	handle("POST /app/installations/{id}/access_tokens", func(r *http.Request, v sender) githubReply {
		in, reply := ours(r, v)
		switch {
		case in == nil:
			return reply
		case in.Suspended:
			return no(http.StatusForbidden, "This installation has been suspended")
		}
		// "Create an installation access token for an app": permissions and repositories "that the token should have
		// access to". The default is all.
		sent, _ := body[struct {
			Permissions  map[string]string
			Repositories []string
		}](r)
		permissions := in.Permissions
		if len(sent.Permissions) > 0 {
			permissions = sent.Permissions
			for name, want := range permissions {
				if has := in.Permissions[name]; has == "" || least(want, has) != want {
					return no(http.StatusUnprocessableEntity, "The permissions requested are not granted to this installation.")
				}
			}
		}
		for _, name := range sent.Repositories {
			if repo, _ := g.repo(in.Account + "/" + name); repo == nil {
				return no(http.StatusUnprocessableEntity, "There is at least one repository that does not exist or is not accessible to the parent installation.")
			}
		}
		token := "ghs_" + rand.Text()
		until := g.now().Add(time.Hour) // "Installation access tokens expire after one hour"
		g.tokens[token] = &githubToken{installation: in.ID, until: until, permissions: maps.Clone(permissions), repositories: sent.Repositories}
		return said(http.StatusCreated, map[string]any{"token": token, "expires_at": until.UTC().Format(time.RFC3339), "permissions": permissions, "repository_selection": "all"})
	})
}

func (g *GitHubFake) installationForm(in *GitHubInstallation) map[string]any {
	a := g.accounts[strings.ToLower(in.Account)]
	form := map[string]any{"id": in.ID, "app_id": in.App, "target_type": a.Type, "permissions": in.Permissions, "repository_selection": "all", "suspended_at": nil}
	account := map[string]any{"id": 1, "login": a.Name, "type": a.Type}
	if a.Type == "Enterprise" {
		account = map[string]any{"id": 1, "slug": a.Name, "name": a.Name} // the schema "enterprise", which has no login
	}
	form["account"] = account
	if in.Suspended {
		form["suspended_at"] = g.now().UTC().Format(time.RFC3339)
	}
	return form
}

// repo finds a repository. moved reports that it has a different name now.
func (g *GitHubFake) repo(name string) (repo *GitHubRepository, moved bool) {
	for _, r := range sorted(g.repos) {
		if strings.EqualFold(r.Name, name) {
			return r, false
		}
	}
	for _, r := range sorted(g.repos) {
		if slices.ContainsFunc(r.Former, func(f string) bool { return strings.EqualFold(f, name) }) {
			return r, true
		}
	}
	return nil, false
}

// paged returns one page of a list: "Using pagination in the REST API". A page has 30 entries, or up to 100 on
// request. The Link header contains the next page.
func (g *GitHubFake) paged(r *http.Request, key string, all []any) githubReply {
	q := r.URL.Query()
	size, _ := strconv.Atoi(q.Get("per_page"))
	if size <= 0 {
		size = 30
	}
	size = min(size, 100)
	n, _ := strconv.Atoi(q.Get("page"))
	n = max(n, 1)
	from, to := min((n-1)*size, len(all)), min(n*size, len(all))
	page := append([]any{}, all[from:to]...)
	reply := said(http.StatusOK, page)
	if key != "" {
		reply.body = map[string]any{"total_count": len(all), key: page}
	}
	if to < len(all) {
		link := func(n int, rel string) string {
			return fmt.Sprintf(`<%s%s?per_page=%d&page=%d>; rel="%s"`, g.URL, r.URL.Path, size, n, rel)
		}
		reply.header = http.Header{"Link": {link(n+1, "next") + ", " + link((len(all)+size-1)/size, "last")}}
	}
	return reply
}

// body decodes the request body.
func body[T any](r *http.Request) (T, bool) {
	var out T
	d := json.NewDecoder(http.MaxBytesReader(httptest.NewRecorder(), r.Body, 1<<20))
	return out, d.Decode(&out) == nil
}
