package forge

import (
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/google/go-github/v89/github"

	"github.com/tailplane/tailplane/internal/util/httptransport"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// Config is the configuration of a client.
type Config struct {
	URL      string // web address, such as https://github.com
	APIURL   string // empty: derived from URL
	CABundle []byte // PEM, in addition to the system's CAs; may be empty
	// ScopeURL is the scope of the credential at GitHub: the URL of an organisation, of an enterprise
	// (/enterprises/name) or of a repository. At GitLab it is the URL of a project, for changes; empty:
	// no changes.
	ScopeURL string
	// Credential is the data of the Secret. For GitHub: github_app_id and github_app_private_key,
	// optionally github_app_installation_id; or github_token. For GitLab: access_token, or the
	// runner_token of a runner that a person created, or both. A runner_token alone allows no API
	// requests.
	Credential map[string][]byte           `json:"-"`
	Now        func() time.Time            `json:"-"` // nil: the machine's clock
	Observe    func(op string, status int) `json:"-"` // optional; called for each request, with status 0 if there was no response
}

// Format implements [fmt.Formatter]. It prints no credential.
func (c Config) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "forge %s for %s", c.URL, c.ScopeURL) }

// LogValue implements [slog.LogValuer]. It contains no credential.
func (c Config) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// An Identity is the forge's description of a credential.
type Identity struct {
	Kind                  string // githubApp, githubToken or gitlabToken
	AppID, InstallationID int64
	Scopes                []string  // of a token, as far as the forge reports them
	ExpiresAt             time.Time // zero: no expiry, or not reported
	Missing               []string  // permissions that it lacks
}

// The kinds of credential.
const (
	GitHubAppKind   = "githubApp"
	GitHubTokenKind = "githubToken"
)

// GitHub is a client for one place at one GitHub server. Its methods are safe for concurrent use.
type GitHub struct {
	*transport
	scope scope
	app   *app        // nil: authenticate with token
	token secret.Text // used without an app
}

// NewGitHub returns a client. It returns an error if a URL or the credential is not valid. It sends
// no request.
func NewGitHub(c Config) (*GitHub, error) {
	web, err := httptransport.ParseBase(c.URL)
	if err != nil {
		return nil, fmt.Errorf("the URL of GitHub: %w", err)
	}
	api, err := httptransport.ParseBase(cmp.Or(c.APIURL, githubAPI(web)))
	if err != nil {
		return nil, fmt.Errorf("the API of GitHub: %w", err)
	}
	g := &GitHub{}
	at, err := httptransport.ParseBase(c.ScopeURL)
	if err != nil {
		return nil, err
	}
	if g.scope, err = parseScope(web, at); err != nil {
		return nil, err
	}
	token, id, key := trimmedValue(
		c.Credential,
		"github_token",
	), trimmedValue(
		c.Credential,
		"github_app_id",
	), trimmedValue(
		c.Credential,
		"github_app_private_key",
	)
	switch {
	case token != "" && (id != "" || key != ""):
		return nil, errors.New("a GitHub credential is an App's key or a token, not both")
	case token != "":
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, errors.New("github_token has characters that are not valid in a token")
		}
		g.token = secret.New(token)
	case id == "" || key == "":
		return nil, errors.New("a GitHub credential needs github_app_id and github_app_private_key, or github_token")
	default:
		if g.app, err = newApp(id, key, trimmedValue(c.Credential, "github_app_installation_id")); err != nil {
			return nil, err
		}
	}
	if g.transport, err = newTransport(api, c); err != nil {
		return nil, err
	}
	g.prefix, g.refusal = "X-RateLimit-", githubRefusal
	if _, err = newGitHubLibrary(api, g.http); err != nil {
		return nil, err
	}
	return g, nil
}

func trimmedValue(data map[string][]byte, key string) string {
	return strings.TrimSpace(string(data[key]))
}

// githubRefusal classifies responses whose status is ambiguous. GitHub answers 403 for rate limits
// and for missing permissions. A 404 counts only if GitHub itself sent it, because a proxy in front
// of GitHub also sends 404 while GitHub is away.
func githubRefusal(k *call, now time.Time) (Class, time.Duration, bool) {
	switch k.status {
	case http.StatusNotFound, http.StatusGone:
		return Unavailable, 0, errorMessage(k.body) == ""
	case http.StatusForbidden, http.StatusTooManyRequests:
	default:
		return "", 0, false
	}
	if k.responseHeader.Get("X-RateLimit-Remaining") == "0" {
		r, _ := parseRate(k.responseHeader, "X-RateLimit-")
		return RateLimited, min(max(r.Reset.Sub(now), 0), maxRetryAfter), true
	}
	if k.responseHeader.Get("Retry-After") != "" {
		return RateLimited, 0, true
	}
	// The secondary limit may come without any header. Its sign is the documentation page that the
	// response links to, not its message.
	var about struct {
		URL string `json:"documentation_url"`
	}
	err := json.Unmarshal(k.body, &about)
	return RateLimited, 0, err == nil &&
		(strings.HasSuffix(about.URL, "secondary-rate-limits") || strings.HasSuffix(about.URL, "#abuse-rate-limits"))
}

// githubHeaders select the response format and the API version that this package reads.
var githubHeaders = http.Header{"Accept": {"application/vnd.github+json"}, "X-Github-Api-Version": {"2022-11-28"}}

// call returns a call with the credential of the place.
func (g *GitHub) call(ctx context.Context, op, below string, want func([]byte) string) *call {
	k := &call{ctx: ctx, transport: g.transport, op: op, below: below, header: githubHeaders, want: want}
	k.credential = func(ctx context.Context) (secret.Text, error) {
		if g.app == nil {
			return g.token, nil
		}
		return g.installationToken(ctx)
	}
	// A token may be revoked within its hour. So a refusal counts only if GitHub refuses a fresh
	// token too.
	k.renew = func(used secret.Text, err error) bool {
		if g.app == nil || ClassOf(err) != Refused || used.IsZero() {
			return false
		}
		g.app.forgetToken(used)
		return true
	}
	return k
}

// github returns a client of the library that sends its requests with the call.
func (k *call) github() *github.Client {
	c, err := newGitHubLibrary(k.transport.base, k)
	if err != nil {
		panic(err) // NewGitHub returns this error
	}
	return c
}

func newGitHubLibrary(base *url.URL, rt http.RoundTripper) (*github.Client, error) {
	return github.NewClient(github.WithTransport(rt), github.WithURLs(new(base.String()+"/"), nil),
		github.WithUserAgent(userAgent), github.WithDisableRateLimitCheck())
}

// Check verifies that the credential belongs to the place and has the required permissions. If a
// permission is missing, the error has class Forbidden and the identity lists what is missing.
func (g *GitHub) Check(ctx context.Context) (Identity, error) {
	if g.app != nil {
		return g.checkApp(ctx)
	}
	return g.checkToken(ctx)
}

// checkToken reads data that GitHub shows only to a token that may manage runners.
func (g *GitHub) checkToken(ctx context.Context) (Identity, error) {
	id := Identity{Kind: GitHubTokenKind}
	k := g.runnersCall(ctx, "check a token")
	err := k.readPage("", github.ListOptions{PerPage: 1}, new(github.Runners))
	enough := map[scopeKind][]string{orgScope: {"admin:org"}, repositoryScope: {"repo"}, enterpriseScope: {"manage_runners:enterprise", "admin:enterprise"}}[g.scope.kind]
	if c := ClassOf(err); c == Forbidden || c == NotFound {
		// GitHub hides objects that the token may not see. So it is not known whether the place
		// exists, but the token is not sufficient.
		id.Missing = enough[:1]
		e, _ := errors.AsType[*Error](err)
		return id, &Error{Op: k.op, Class: Forbidden, Status: e.Status, Message: "it may not manage the runners of " + g.scope.String()}
	}
	if err != nil {
		return id, err
	}
	if until := k.responseHeader.Get("GitHub-Authentication-Token-Expiration"); until != "" {
		for _, form := range []string{"2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700"} {
			if at, err := time.Parse(form, until); err == nil {
				id.ExpiresAt = at.UTC()
				break
			}
		}
	}
	scopes, classic := k.responseHeader["X-Oauth-Scopes"] // GitHub reports no scopes for a fine-grained token
	for _, s := range strings.Split(strings.Join(scopes, ","), ",") {
		if s = redact(s); s != "" {
			id.Scopes = append(id.Scopes, s)
		}
	}
	if classic && !slices.ContainsFunc(enough, func(s string) bool { return slices.Contains(id.Scopes, s) }) {
		id.Missing = enough[:1]
		return id, &Error{Op: k.op, Class: Forbidden, Status: k.status, Message: "it lacks the scope " + enough[0]}
	}
	return id, nil
}

// Version returns the version of a GitHub Enterprise Server, and an empty text for github.com. It
// sends the request without the credential if possible, so that it shows whether GitHub is
// reachable.
func (g *GitHub) Version(ctx context.Context) (string, error) {
	k := g.call(ctx, "get the version", "/meta", wantObject())
	withCredential := *k
	k.credential, k.renew = func(context.Context) (secret.Text, error) { return secret.Text{}, nil }, nil
	_, _, err := k.github().Meta.Get(ctx)
	switch ClassOf(k.outcome(err)) {
	case Refused, Forbidden, RateLimited: // a server in private mode, or too many requests from our address
		k = &withCredential
		_, _, err = k.github().Meta.Get(ctx)
	}
	if err = k.outcome(err); err != nil {
		return "", err
	}
	var meta struct {
		Version string `json:"installed_version"` // missing in the library
	}
	if json.Unmarshal(k.body, &meta) != nil {
		return "", k.unusable("the response cannot be read")
	}
	return redact(meta.Version), nil
}

// A scopeKind is the kind of a place.
type scopeKind int

// The kinds.
const (
	orgScope scopeKind = iota
	repositoryScope
	enterpriseScope
)

// A scope is an organisation, a repository or an enterprise at GitHub.
type scope struct {
	kind  scopeKind
	Owner string // the organisation, the enterprise, or the owner of the repository
	Name  string // of a repository
}

// Names that GitHub permits. They need no escaping in paths.
var (
	ownerForm      = regexp.MustCompile(`^[A-Za-z0-9][A-Za-z0-9_-]{0,99}$`)
	repositoryForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,100}$`)
)

func isOwner(s string) bool      { return ownerForm.MatchString(s) }
func isRepository(s string) bool { return repositoryForm.MatchString(s) && strings.Trim(s, ".") != "" }

// parseScope parses the URL of a place, which must be on the forge.
func parseScope(web, u *url.URL) (scope, error) {
	below, ok := strings.CutPrefix(u.Path, web.Path+"/")
	if u.Scheme != web.Scheme || !strings.EqualFold(u.Host, web.Host) || !ok {
		return scope{}, fmt.Errorf("%q is not below %q", u, web)
	}
	parts := strings.Split(below, "/")
	switch {
	case len(parts) == 1 && isOwner(parts[0]) && parts[0] != "enterprises":
		return scope{kind: orgScope, Owner: parts[0]}, nil
	case len(parts) == 2 && parts[0] == "enterprises" && isOwner(parts[1]):
		return scope{kind: enterpriseScope, Owner: parts[1]}, nil
	case len(parts) == 2 && parts[0] != "enterprises" && isOwner(parts[0]) && isRepository(parts[1]):
		return scope{kind: repositoryScope, Owner: parts[0], Name: parts[1]}, nil
	}
	return scope{}, fmt.Errorf("%q is not the URL of an organisation, enterprise or repository", u)
}

// root returns the API path of the place.
func (p scope) root() string {
	switch p.kind {
	case repositoryScope:
		return "/repos/" + p.Owner + "/" + p.Name
	case enterpriseScope:
		return "/enterprises/" + p.Owner
	}
	return "/orgs/" + p.Owner
}

func (p scope) String() string {
	if p.kind == repositoryScope {
		return p.Owner + "/" + p.Name
	}
	return p.Owner
}

// owns reports whether a repository (owner/name) can belong to the place. Repositories of an
// enterprise may have any owner.
func (p scope) owns(repository string) bool {
	owner, name, ok := strings.Cut(repository, "/")
	return ok && isOwner(owner) && isRepository(name) &&
		(p.kind == enterpriseScope || strings.EqualFold(owner, p.Owner)) &&
		(p.kind != repositoryScope || strings.EqualFold(name, p.Name))
}

// githubAPI returns the API URL of the GitHub server with the web address web.
func githubAPI(web *url.URL) string {
	switch host := strings.ToLower(web.Host); {
	case host == "github.com" || host == "www.github.com":
		return "https://api.github.com"
	case strings.HasSuffix(host, ".ghe.com"):
		return "https://api." + host
	}
	return web.String() + "/api/v3" // GitHub Enterprise Server
}
