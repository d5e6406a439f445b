package forge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"time"

	gitlab "gitlab.com/gitlab-org/api/client-go/v2"

	"github.com/tailplane/tailplane/internal/util/httptransport"
)

// GitLabConfig is what a client of GitLab needs.
type GitLabConfig struct {
	URL      string // where people find it, such as https://gitlab.com
	APIURL   string // empty: found from URL
	CABundle []byte // PEM, besides the system's; may be empty
	Place    string // the URL of a project, for changes; empty: there are none
	// Credential is the Secret's data: access_token, or a runner_token, which was made
	// by hand, or both. A runner_token alone cannot be asked anything with.
	Credential map[string][]byte
	Now        func() time.Time            // nil: the machine's clock
	Observe    func(op string, status int) // optional; of each request, 0 where no answer came
}

// The scopes that an access token needs, or api. With manage_runner one may do
// everything to a runner whose number is known; groups, and the runners of a group,
// are read with read_api; jobs are cancelled with api only.
const (
	scopeAPI    = "api"
	scopeRead   = "read_api"
	scopeCreate = "create_runner"
	scopeManage = "manage_runner"
)

// GitLab is a client for the runners of one group, or for changes of one project, at
// one GitLab. Its methods may be
// called at the same time. None of them asks twice for what is no read.
type GitLab struct {
	wire    *wire
	token   Secret // zero: there is only a runner's own
	own     Secret // of a runner that was made by hand
	project string // path; empty: it is for no changes
}

// NewGitLab returns a client, or what of the configuration cannot be. It asks nothing.
func NewGitLab(c GitLabConfig) (*GitLab, error) {
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
	if c.Place != "" {
		if g.project, err = projectIn(web, c.Place); err != nil {
			return nil, err
		}
	}
	if g.token, err = tokenIn(c.Credential, "access_token"); err != nil {
		return nil, err
	}
	own, err := tokenIn(c.Credential, "runner_token")
	switch {
	case err != nil:
		return nil, err
	case g.token.IsZero() && own.IsZero():
		return nil, errors.New("the credential for GitLab has neither access_token nor runner_token")
	}
	g.own = own
	if g.wire, err = newWire(base, c.CABundle, c.Now, c.Observe); err != nil {
		return nil, fmt.Errorf("GitLab: %w", err)
	}
	g.wire.prefix, g.wire.refusal = "RateLimit-", gitLabRefusal
	return g, nil
}

// tokenIn reads a token of a Secret, where a line often ends with what does not
// belong to it. What cannot be in a header cannot be a token.
func tokenIn(data map[string][]byte, key string) (Secret, error) {
	text := strings.TrimSpace(string(data[key]))
	if strings.ContainsFunc(text, func(r rune) bool { return r <= ' ' || r > '~' }) {
		return Secret{}, fmt.Errorf("the credential's %s is no token of GitLab's", key)
	}
	return NewSecret(text), nil
}

// gitLabRefusal finds out what a refusal means. That something is gone is believed of
// GitLab itself only: what stands before it answers 404 as well, while it is away.
// GitLab says with each limit when it ends.
func gitLabRefusal(k *call, now time.Time) (Class, time.Duration, bool) {
	switch k.status {
	case http.StatusNotFound, http.StatusGone:
		if said(k.body) == "" {
			return Unavailable, 0, true
		}
	case http.StatusTooManyRequests:
		if at, err := strconv.ParseInt(k.answered.Get("RateLimit-Reset"), 10, 64); err == nil && k.answered.Get("Retry-After") == "" {
			return RateLimited, min(max(time.Unix(at, 0).Sub(now), 0), longestWait), true
		}
	}
	return "", 0, false
}

// Rate is GitLab's limit, as it said last.
func (g *GitLab) Rate() Rate { return g.wire.lastRate() }

// gitLabSuffix is what the library adds to an address that does not end with it.
const gitLabSuffix = "/api/v4"

// call returns a call as the credential.
func (g *GitLab) call(op, below string, want func([]byte) string) *call {
	k := &call{wire: g.wire, op: op, below: below, want: want}
	if !strings.HasSuffix(g.wire.base.Path, gitLabSuffix) {
		k.strip = gitLabSuffix
	}
	k.show = func(context.Context) (Secret, error) {
		if g.token.IsZero() {
			return Secret{}, &Error{Op: op, Class: Forbidden, Message: "the credential has no access_token"}
		}
		return g.token, nil
	}
	return k
}

// unlimited keeps the library from a limit of its own, which it finds from the first
// answer: the wire obeys what GitLab says.
type unlimited struct{}

func (unlimited) Wait(context.Context) error { return nil }

// with calls a method of the library. The option carries the context.
func with[T any](ctx context.Context, k *call, do func(*gitlab.Client, gitlab.RequestOptionFunc) (T, *gitlab.Response, error)) (T, error) {
	var out T
	lib, err := gitlab.NewAuthSourceClient(gitlab.Unauthenticated{}, gitlab.WithBaseURL(k.wire.base.String()), gitlab.WithHTTPClient(httptransport.ClientOf(k)),
		gitlab.WithoutRetries(), gitlab.WithCustomLimiter(unlimited{}), gitlab.WithUserAgent(userAgent))
	if err == nil {
		out, _, err = do(lib, gitlab.WithContext(ctx))
	}
	if err = k.finish(ctx, err); err != nil {
		var none T
		return none, err
	}
	return out, nil
}

// withNone calls a method of the library that returns nothing but the answer.
func withNone(ctx context.Context, k *call, do func(*gitlab.Client, gitlab.RequestOptionFunc) (*gitlab.Response, error)) error {
	_, err := with(ctx, k, func(c *gitlab.Client, o gitlab.RequestOptionFunc) (struct{}, *gitlab.Response, error) {
		response, err := do(c, o)
		return struct{}{}, response, err
	})
	return err
}

// Own is the token of a runner that was made by hand, where there is nothing else to ask
// GitLab with; else it is zero.
func (g *GitLab) Own() Secret {
	if g.token.IsZero() {
		return g.own
	}
	return Secret{}
}

// Check finds out what the credential is. A runner_token alone is not asked about:
// it would count as a manager's first contact.
func (g *GitLab) Check(ctx context.Context) (Identity, error) {
	id := Identity{Kind: "gitlabToken"}
	if g.token.IsZero() {
		id.Missing = []string{scopeCreate, scopeManage, scopeRead}
		return id, nil
	}
	k := g.call("check the access token", "/personal_access_tokens/self", object("scopes", "active"))
	token, err := with(ctx, k, func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.PersonalAccessToken, *gitlab.Response, error) {
		return c.PersonalAccessTokens.GetSinglePersonalAccessToken(o)
	})
	switch {
	case err != nil:
		return Identity{}, err
	case token.Revoked || !token.Active:
		return Identity{}, &Error{Op: k.op, Class: Refused, Status: k.status, Message: "GitLab says that it is not active"}
	}
	id.Scopes = token.Scopes
	if token.ExpiresAt != nil {
		id.ExpiresAt = time.Time(*token.ExpiresAt).UTC() // a date: it ends as that day begins
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

// Group returns the number of the group of that path, such as "acme/ci".
func (g *GitLab) Group(ctx context.Context, path string) (int64, error) {
	k := g.call("find a group", "/groups/"+gitlab.PathEscape(path), object("id", "full_path"))
	if strings.Trim(path, "/") != path || path == "" {
		return 0, &Error{Op: k.op, Class: Invalid, Message: "it has no path"}
	}
	group, err := with(ctx, k, func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.Group, *gitlab.Response, error) {
		return c.Groups.GetGroup(path, &gitlab.GetGroupOptions{WithProjects: new(false)}, o)
	})
	switch {
	case err != nil:
		return 0, err
	case group.ID <= 0 || group.FullPath == "":
		return 0, k.useless("the answer has no group")
	case !strings.EqualFold(group.FullPath, path): // a path of digits is taken for a number
		return 0, &Error{Op: k.op, Class: NotFound, Message: "there is another one by that path: " + clean(group.FullPath)}
	}
	return group.ID, nil
}

// Version is GitLab's; empty if it answers and does not tell us.
func (g *GitLab) Version(ctx context.Context) (string, error) {
	k := g.call("ask for the version", "/metadata", object("version"))
	k.show = func(context.Context) (Secret, error) { return g.token, nil } // zero too
	meta, err := with(ctx, k, func(c *gitlab.Client, o gitlab.RequestOptionFunc) (*gitlab.Metadata, *gitlab.Response, error) {
		return c.Metadata.GetMetadata(o)
	})
	if class := ClassOf(err); class == Forbidden || class == Refused && g.token.IsZero() {
		return "", nil
	}
	switch {
	case err != nil:
		return "", err
	case meta.Version == "":
		return "", k.useless("the answer has no version")
	}
	return clean(meta.Version), nil
}

const (
	perPage  = 100 // GitLab's most
	mostRead = 3   // times that a list is begun, if it changes while it is read
)

// readGitLab reads one page of a list by a method of the library.
type readGitLab[T any] func(c *gitlab.Client, page gitlab.ListOptions, o gitlab.RequestOptionFunc) ([]*T, *gitlab.Response, error)

// gitLabList reads a list to its end. A page that goes, or comes, while it is read moves
// what is behind it, so that something would be missed: then it is begun anew. key
// tells one from another: what moved to a later page is there twice.
func gitLabList[T any](ctx context.Context, k *call, key func(*T) int64, read readGitLab[T]) ([]*T, error) {
	var last error
	for range mostRead {
		all, err := gitLabListOnce(ctx, k, 0, func(x *T) int64 { return max(key(x), 0) }, read)
		if err == nil {
			return all, nil
		}
		last = err
		if !errors.Is(err, errMoved) {
			return nil, err
		}
	}
	return nil, &Error{Op: k.op, Class: Unavailable, Message: last.Error()}
}

var errMoved = errors.New("the list changed while it was read")

// gitLabListOnce is [gitLabList] of what does not change. Of more than most, if that is
// not 0, nothing is read to its end.
func gitLabListOnce[T any, K comparable](ctx context.Context, k *call, most int, key func(*T) K, read readGitLab[T]) ([]*T, error) {
	all, seen := []*T{}, map[K]bool{}
	var none K
	k.want = array
	total := ""
	for page := 1; ; page++ {
		items, err := with(ctx, k, func(c *gitlab.Client, o gitlab.RequestOptionFunc) ([]*T, *gitlab.Response, error) {
			return read(c, gitlab.ListOptions{Page: int64(page), PerPage: perPage}, o)
		})
		if err != nil {
			return nil, err
		}
		next, paged := k.answered["X-Next-Page"]
		switch {
		case !paged && len(items) >= perPage:
			return nil, k.useless("the answer does not say whether it is the last page")
		case page > 1 && k.answered.Get("X-Total") != total:
			return nil, errMoved
		}
		total = k.answered.Get("X-Total") // not there above 10,000
		for _, item := range items {
			if item == nil || key(item) == none {
				return nil, k.useless("the list has something without a name in it")
			}
			if name := key(item); !seen[name] {
				seen[name] = true
				all = append(all, item)
			}
		}
		switch {
		case most > 0 && (len(all) > most || len(all) == most && paged && next[0] != ""):
			return nil, tooManyFiles()
		case !paged || next[0] == "":
			if total != "" && total != strconv.Itoa(len(all)) {
				return nil, errMoved
			}
			return all, nil
		case next[0] != strconv.Itoa(page+1) || len(items) == 0:
			return nil, k.useless("the pages are not in order")
		}
	}
}
