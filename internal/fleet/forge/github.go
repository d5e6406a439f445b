package forge

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/fleet/forge/exchange"
	"github.com/tailplane/tailplane/internal/fleet/forge/place"
	"github.com/tailplane/tailplane/internal/fleet/forge/rate"
)

// GitHubConfig is what a client of GitHub needs.
type GitHubConfig struct {
	URL      string // where people find it, such as https://github.com
	APIURL   string // empty: found from URL
	CABundle []byte // PEM, besides the system's; may be empty
	// Place is what the credential is for: the URL of an organisation, of an
	// enterprise (/enterprises/name) or of a repository.
	Place string
	// Credential is the Secret's data: github_app_id and github_app_private_key,
	// perhaps github_app_installation_id; or github_token.
	Credential map[string][]byte           `json:"-"`
	Now        func() time.Time            `json:"-"` // nil: the machine's clock
	Observe    func(op string, status int) `json:"-"` // optional; of each request, 0 where no answer came
}

// Format implements [fmt.Formatter], without the credential.
func (c GitHubConfig) Format(f fmt.State, _ rune) { fmt.Fprintf(f, "GitHub %s for %s", c.URL, c.Place) }

// LogValue implements [slog.LogValuer], without the credential.
func (c GitHubConfig) LogValue() slog.Value { return slog.StringValue(fmt.Sprint(c)) }

// An Identity is what a forge says a credential is.
type Identity struct {
	Kind                  string // githubApp, githubToken or gitlabToken
	AppID, InstallationID int64
	Scopes                []string  // of a token, as far as the forge says
	ExpiresAt             time.Time // zero: it does not, or the forge does not say
	Missing               []string  // permissions it lacks
}

// The kinds of credential.
const (
	GitHubAppKind   = "githubApp"
	GitHubTokenKind = "githubToken"
)

// GitHub is a client for one place at one GitHub. Its methods may be called at the
// same time.
type GitHub struct {
	wire  *wire
	place place.Place
	app   *app   // nil: by a token
	token Secret // without an app
}

// NewGitHub returns a client, or says what of the URLs or of the credential cannot
// be. It asks nothing.
func NewGitHub(c GitHubConfig) (*GitHub, error) {
	web, err := exchange.ParseURL(c.URL)
	if err != nil {
		return nil, fmt.Errorf("the URL of GitHub: %w", err)
	}
	api, err := exchange.ParseURL(cmp.Or(c.APIURL, place.API(web)))
	if err != nil {
		return nil, fmt.Errorf("the API of GitHub: %w", err)
	}
	g := &GitHub{}
	at, err := exchange.ParseURL(c.Place)
	if err != nil {
		return nil, err
	}
	if g.place, err = place.Parse(web, at); err != nil {
		return nil, err
	}
	token, id, key := trimmed(c.Credential, "github_token"), trimmed(c.Credential, "github_app_id"), trimmed(c.Credential, "github_app_private_key")
	switch {
	case token != "" && (id != "" || key != ""):
		return nil, errors.New("a credential of GitHub is an App's key or a token, not both")
	case token != "":
		if strings.ContainsFunc(token, func(r rune) bool { return r <= ' ' || r > '~' }) {
			return nil, errors.New("github_token has characters that no token has")
		}
		g.token = NewSecret(token)
	case id == "" || key == "":
		return nil, errors.New("a credential of GitHub needs github_app_id and github_app_private_key, or github_token")
	default:
		if g.app, err = newApp(id, key, trimmed(c.Credential, "github_app_installation_id")); err != nil {
			return nil, err
		}
	}
	if g.wire, err = newWire(api, c.CABundle, c.Now, c.Observe); err != nil {
		return nil, err
	}
	g.wire.prefix, g.wire.refusal = "X-RateLimit-", githubRefusal
	return g, nil
}

func trimmed(data map[string][]byte, key string) string { return strings.TrimSpace(string(data[key])) }

// Rate is GitHub's primary limit, as it said last.
func (g *GitHub) Rate() Rate { return g.wire.lastRate() }

// githubRefusal knows what a status does not say: limits look like refusals, for
// GitHub says 403 for both; and "not found" is believed of GitHub itself only, for
// what stands before it says so as well, while it is away.
func githubRefusal(a *answer, now time.Time) (Class, time.Duration, bool) {
	switch a.status {
	case http.StatusNotFound, http.StatusGone:
		return Unavailable, 0, said(a.body) == ""
	case http.StatusForbidden, http.StatusTooManyRequests:
	default:
		return "", 0, false
	}
	if a.header.Get("X-RateLimit-Remaining") == "0" {
		r, _ := rate.From(a.header, "X-RateLimit-")
		return RateLimited, min(max(r.Reset.Sub(now), 0), longestWait), true
	}
	if a.header.Get("Retry-After") != "" {
		return RateLimited, 0, true
	}
	// The secondary limit may come without any header. What tells it then is not the
	// message but the page that it refers to.
	about, err := read[struct {
		URL string `json:"documentation_url"`
	}](question{}, a)
	return RateLimited, 0, err == nil && (strings.HasSuffix(about.URL, "secondary-rate-limits") || strings.HasSuffix(about.URL, "#abuse-rate-limits"))
}

// githubHeaders say which form of answers we read.
var githubHeaders = http.Header{"Accept": {"application/vnd.github+json"}, "X-Github-Api-Version": {"2022-11-28"}}

// ask asks with the credential of the place. A token may be revoked within its
// hour: a refusal counts when a fresh one is refused as well.
func (g *GitHub) ask(ctx context.Context, q question) (*answer, error) {
	q.header = githubHeaders
	if g.app == nil {
		q.show = g.token
		return g.wire.ask(ctx, q)
	}
	t, err := g.installationToken(ctx)
	if err != nil {
		return nil, err
	}
	q.show = t
	a, err := g.wire.ask(ctx, q)
	if ClassOf(err) != Refused {
		return a, err
	}
	g.app.drop(t)
	if q.show, err = g.installationToken(ctx); err != nil {
		return nil, err
	}
	return g.wire.ask(ctx, q)
}

// get asks for one thing and reads it.
func get[T any](ctx context.Context, g *GitHub, q question) (T, error) {
	a, err := g.ask(ctx, q)
	if err != nil {
		var none T
		return none, err
	}
	return read[T](q, a)
}

// Check finds out whether the credential is one for the place, and may do what is
// asked of it. If it may not, the error is of class Forbidden and the identity says
// what is missing.
func (g *GitHub) Check(ctx context.Context) (Identity, error) {
	if g.app != nil {
		return g.checkApp(ctx)
	}
	return g.checkToken(ctx)
}

// checkToken asks for what only somebody who may manage runners is told.
func (g *GitHub) checkToken(ctx context.Context) (Identity, error) {
	id := Identity{Kind: GitHubTokenKind}
	q := question{op: "check a token", path: g.place.Root() + "/actions/runners?per_page=1"}
	a, err := g.ask(ctx, q)
	enough := map[place.Kind][]string{place.Org: {"admin:org"}, place.Repository: {"repo"}, place.Enterprise: {"manage_runners:enterprise", "admin:enterprise"}}[g.place.Kind]
	if c := ClassOf(err); c == Forbidden || c == NotFound {
		// GitHub hides what one may not see. Whether it is there is not known, but that
		// this token is not enough is.
		id.Missing = enough[:1]
		e, _ := errors.AsType[*Error](err)
		return id, &Error{Op: q.op, Class: Forbidden, Status: e.Status, Message: "it may not manage the runners of " + g.place.String()}
	}
	if err != nil {
		return id, err
	}
	if _, err := read[runnerPage](q, a); err != nil {
		return id, err
	}
	if until := a.header.Get("GitHub-Authentication-Token-Expiration"); until != "" {
		for _, form := range []string{"2006-01-02 15:04:05 MST", "2006-01-02 15:04:05 -0700"} {
			if at, err := time.Parse(form, until); err == nil {
				id.ExpiresAt = at.UTC()
				break
			}
		}
	}
	scopes, classic := a.header["X-Oauth-Scopes"] // of a fine-grained token GitHub says none
	for _, s := range strings.Split(strings.Join(scopes, ","), ",") {
		if s = clean(s); s != "" {
			id.Scopes = append(id.Scopes, s)
		}
	}
	if classic && !slices.ContainsFunc(enough, func(s string) bool { return slices.Contains(id.Scopes, s) }) {
		id.Missing = enough[:1]
		return id, &Error{Op: q.op, Class: Forbidden, Status: a.status, Message: "it lacks the scope " + enough[0]}
	}
	return id, nil
}

// Version is that of a GitHub Enterprise Server, and empty for github.com. It is
// asked without the credential where that will do, so that it says whether GitHub
// can be reached.
func (g *GitHub) Version(ctx context.Context) (string, error) {
	q := question{op: "ask for the version", path: "/meta", header: githubHeaders}
	a, err := g.wire.ask(ctx, q)
	switch ClassOf(err) {
	case Refused, Forbidden, RateLimited:
		a, err = g.ask(ctx, q) // a server in private mode; or too many from our address
	}
	if err != nil {
		return "", err
	}
	meta, err := read[struct {
		Version string `json:"installed_version"`
	}](q, a)
	return clean(meta.Version), err
}
