package forge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"
	"time"

	gitlab "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/tailplane/tailplane/internal/util/httptransport"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// The scopes that an access token needs, unless it has api. With manage_runner a token may do
// everything to a runner with a known ID. It needs read_api to read groups and the runners of a
// group. Only api allows it to cancel jobs.
const (
	scopeAPI    = "api"
	scopeRead   = "read_api"
	scopeCreate = "create_runner"
	scopeManage = "manage_runner"
)

// GitLab is a client for the runners of one group, or for changes of one project, at one GitLab
// server. Its methods are safe for concurrent use. None of them sends a write request twice.
type GitLab struct {
	*transport
	token   secret.Text // zero: there is only a runner's own token
	own     secret.Text // token of a runner that a person created
	project string      // path; empty: the client makes no changes
}

// NewGitLab returns a client. It returns an error if the configuration is not valid. It sends no
// request.
func NewGitLab(c Config) (*GitLab, error) {
	web, err := httptransport.ParseBase(c.URL)
	if err != nil {
		return nil, fmt.Errorf("GitLab: %w", err)
	}
	base := new(*web)
	base.Path += gitLabSuffix
	if c.APIURL != "" {
		if base, err = httptransport.ParseBase(c.APIURL); err != nil {
			return nil, fmt.Errorf("API of GitLab: %w", err)
		}
	}
	g := &GitLab{}
	if c.ScopeURL != "" {
		if g.project, err = projectIn(web, c.ScopeURL); err != nil {
			return nil, err
		}
	}
	if g.token, err = tokenFrom(c.Credential, "access_token"); err != nil {
		return nil, err
	}
	if g.own, err = tokenFrom(c.Credential, "runner_token"); err != nil {
		return nil, err
	}
	if g.token.IsZero() && g.own.IsZero() {
		return nil, errors.New("the credential for GitLab has neither access_token nor runner_token")
	}
	if g.transport, err = newTransport(base, c); err != nil {
		return nil, fmt.Errorf("GitLab: %w", err)
	}
	if _, err = newGitLabLibrary(base, g.http); err != nil {
		return nil, fmt.Errorf("GitLab: %w", err)
	}
	g.prefix, g.refusal = "RateLimit-", gitLabRefusal
	return g, nil
}

// tokenFrom reads a token from a Secret without surrounding white space. It refuses text that cannot
// be in a header.
func tokenFrom(data map[string][]byte, key string) (secret.Text, error) {
	text := strings.TrimSpace(string(data[key]))
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return secret.Text{}, fmt.Errorf("the credential's %s is not a GitLab token", key)
	}
	return secret.New(text), nil
}

// gitLabRefusal classifies a failure response. A 404 counts only if GitLab itself sent it, because
// a proxy in front of GitLab also sends 404 while GitLab is away. GitLab reports with each rate
// limit when the limit ends.
func gitLabRefusal(k *call, now time.Time) (Class, time.Duration, bool) {
	switch k.status {
	case http.StatusNotFound, http.StatusGone:
		if errorMessage(k.body) == "" {
			return Unavailable, 0, true
		}
	case http.StatusTooManyRequests:
		if at, err := strconv.ParseInt(k.responseHeader.Get("RateLimit-Reset"), 10, 64); err == nil &&
			k.responseHeader.Get("Retry-After") == "" {
			return RateLimited, min(max(time.Unix(at, 0).Sub(now), 0), maxRetryAfter), true
		}
	}
	return "", 0, false
}

// gitLabSuffix is the suffix that the library adds to a base URL without it.
const gitLabSuffix = "/api/v4"

// call returns a call with the access token.
func (g *GitLab) call(ctx context.Context, op, below string, want func([]byte) string) *call {
	k := &call{ctx: ctx, transport: g.transport, op: op, below: below, want: want}
	if !strings.HasSuffix(g.base.Path, gitLabSuffix) {
		k.strip = gitLabSuffix
	}
	k.credential = func(context.Context) (secret.Text, error) {
		if g.token.IsZero() {
			return secret.Text{}, &Error{Op: op, Class: Forbidden, Message: "the credential has no access_token"}
		}
		return g.token, nil
	}
	return k
}

// unlimited disables the library's own rate limiter, which it configures from the first response.
// The wire obeys GitLab's limits instead.
type unlimited struct{}

func (unlimited) Wait(context.Context) error { return nil }

// gitlab returns a client of the library that sends its requests with the call.
func (k *call) gitlab() *gitlab.Client {
	c, err := newGitLabLibrary(k.transport.base, k)
	if err != nil {
		panic(err) // NewGitLab returns this error
	}
	return c
}

func newGitLabLibrary(base *url.URL, rt http.RoundTripper) (*gitlab.Client, error) {
	return gitlab.NewAuthSourceClient(
		gitlab.Unauthenticated{},
		gitlab.WithBaseURL(base.String()),
		gitlab.WithHTTPClient(httptransport.ClientOf(rt)),
		gitlab.WithoutRetries(),
		gitlab.WithCustomLimiter(unlimited{}),
		gitlab.WithUserAgent(userAgent),
	)
}

// RunnerToken returns the token of a runner that a person created, if the client has no access token.
// Otherwise it returns the zero Text.
func (g *GitLab) RunnerToken() secret.Text {
	if g.token.IsZero() {
		return g.own
	}
	return secret.Text{}
}

// Check returns the identity of the credential. It sends no request for a runner_token alone,
// because GitLab would count the request as a manager's first contact.
func (g *GitLab) Check(ctx context.Context) (Identity, error) {
	id := Identity{Kind: "gitlabToken"}
	if g.token.IsZero() {
		id.Missing = []string{scopeCreate, scopeManage, scopeRead}
		return id, nil
	}
	k := g.call(ctx, "check the access token", "/personal_access_tokens/self", wantObject("scopes", "active"))
	token, _, err := k.gitlab().PersonalAccessTokens.GetSinglePersonalAccessToken(gitlab.WithContext(ctx))
	switch err = k.outcome(err); {
	case err != nil:
		return Identity{}, err
	case token.Revoked || !token.Active:
		return Identity{}, &Error{Op: k.op, Class: Refused, Status: k.status, Message: "GitLab reports that it is not active"}
	}
	id.Scopes = token.Scopes
	if token.ExpiresAt != nil {
		id.ExpiresAt = time.Time(*token.ExpiresAt).UTC() // a date: the token ends when that day begins
	}
	if !slices.Contains(id.Scopes, scopeAPI) {
		for _, scope := range []string{scopeCreate, scopeManage, scopeRead} {
			if !slices.Contains(id.Scopes, scope) {
				id.Missing = append(id.Missing, scope)
			}
		}
	}
	return id, nil
}

// Group returns the ID of the group with that path, such as "acme/ci".
func (g *GitLab) Group(ctx context.Context, path string) (int64, error) {
	k := g.call(ctx, "find a group", "/groups/"+gitlab.PathEscape(path), wantObject("id", "full_path"))
	if strings.Trim(path, "/") != path || path == "" {
		return 0, &Error{Op: k.op, Class: Invalid, Message: "its path is not valid"}
	}
	//lint:ignore SA1019 without this parameter GitLab lists up to a hundred projects of the group in the answer
	group, _, err := k.gitlab().Groups.GetGroup(path, &gitlab.GetGroupOptions{WithProjects: new(false)}, gitlab.WithContext(ctx))
	switch err = k.outcome(err); {
	case err != nil:
		return 0, err
	case group.ID <= 0 || group.FullPath == "":
		return 0, k.unusable("the response has no group")
	case !strings.EqualFold(group.FullPath, path): // GitLab takes a path of digits for an ID
		return 0, &Error{Op: k.op, Class: NotFound, Message: "GitLab returned a group with another path: " + redact(group.FullPath)}
	}
	return group.ID, nil
}

// Version returns GitLab's version. It is empty if GitLab does not report it for this credential.
func (g *GitLab) Version(ctx context.Context) (string, error) {
	k := g.call(ctx, "get the version", "/metadata", wantObject("version"))
	k.credential = func(context.Context) (secret.Text, error) { return g.token, nil } // also if it is zero
	meta, _, err := k.gitlab().Metadata.GetMetadata(gitlab.WithContext(ctx))
	err = k.outcome(err)
	if class := ClassOf(err); class == Forbidden || class == Refused && g.token.IsZero() {
		return "", nil
	}
	switch {
	case err != nil:
		return "", err
	case meta.Version == "":
		return "", k.unusable("the response has no version")
	}
	return redact(meta.Version), nil
}

const (
	perPage      = 100 // GitLab's maximum
	maxPagesRead = 3   // tries for a list that changes while it is read
)

// gitLabPage reads one page of a list.
type gitLabPage[T any] func(gitlab.ListOptions) ([]*T, *gitlab.Response, error)

// gitLabList reads a list to its end. If items are added or removed during the reads, later items
// move and could be missed; gitLabList then starts again. key identifies an item, because an item
// that moves to a later page occurs twice.
func gitLabList[T any](k *call, key func(*T) int64, read gitLabPage[T]) ([]*T, error) {
	for range maxPagesRead {
		all, err := gitLabListOnce(k, 0, func(x *T) int64 { return max(key(x), 0) }, read)
		if !errors.Is(err, errListChanged) {
			return all, err
		}
	}
	return nil, &Error{Op: k.op, Class: Unavailable, Message: errListChanged.Error()}
}

var errListChanged = errors.New("the list changed while it was read")

// gitLabListOnce is [gitLabList] for a list that does not change. If most is not 0 and the list is
// longer, it returns an error.
func gitLabListOnce[T any, K comparable](k *call, limit int, key func(*T) K, read gitLabPage[T]) ([]*T, error) {
	all, seen := []*T{}, map[K]bool{}
	var none K
	total := ""
	for page := 1; ; page++ {
		items, _, err := read(gitlab.ListOptions{Page: int64(page), PerPage: perPage})
		if err = k.outcome(err); err != nil {
			return nil, err
		}
		next, paged := k.responseHeader["X-Next-Page"]
		switch {
		case !paged && len(items) >= perPage:
			return nil, k.unusable("the response does not show whether it is the last page")
		case page > 1 && k.responseHeader.Get("X-Total") != total:
			return nil, errListChanged
		}
		total = k.responseHeader.Get("X-Total") // GitLab omits it above 10,000 items
		for _, item := range items {
			if item == nil || key(item) == none {
				return nil, k.unusable("the list has an entry without an identifier")
			}
			if name := key(item); !seen[name] {
				seen[name] = true
				all = append(all, item)
			}
		}
		switch {
		case limit > 0 && (len(all) > limit || len(all) == limit && paged && next[0] != ""):
			return nil, tooManyFiles()
		case !paged || next[0] == "":
			if total != "" && total != strconv.Itoa(len(all)) {
				return nil, errListChanged
			}
			return all, nil
		case next[0] != strconv.Itoa(page+1) || len(items) == 0:
			return nil, k.unusable("the pages are not in order")
		}
	}
}
