package forge

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-github/v84/github"

	"github.com/tailplane/tailplane/internal/fleet/forge/appkey"
	"github.com/tailplane/tailplane/internal/fleet/forge/place"
)

const (
	clockOdds   = 30 * time.Second // from which on a refusal may be a matter of clocks
	tokenMargin = 5 * time.Minute  // before its end an installation's token is no longer used
)

// An app is a GitHub App as which the client asks, and its token for the one
// installation that is meant.
type app struct {
	key   *appkey.Key
	fixed int64 // the installation that the Secret names; 0: none

	fetching chan struct{} // held by who fetches a token

	mu           sync.Mutex
	installation int64 // verified to be the place's; 0: not yet
	permits      github.InstallationPermissions
	token        Secret
	until        time.Time // by GitHub's clock
}

func newApp(id, key, installation string) (_ *app, err error) {
	a := &app{fetching: make(chan struct{}, 1)}
	if installation != "" {
		if a.fixed, err = strconv.ParseInt(installation, 10, 64); err != nil || a.fixed <= 0 {
			return nil, errors.New("github_app_installation_id is not a number")
		}
	}
	a.key, err = appkey.Parse(id, key)
	return a, err
}

// drop forgets a token that was refused, unless another has come meanwhile.
func (a *app) drop(t Secret) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token == t {
		a.token, a.until = Secret{}, time.Time{}
	}
}

// askAsApp asks with the App's JWT. If it is refused and the answer's date shows
// that our clock is wrong, it is asked again by GitHub's.
func (g *GitHub) askAsApp(ctx context.Context, q question) (*answer, error) {
	q.header = githubHeaders
	for again := false; ; again = true {
		now := g.wire.now()
		jwt, err := g.app.key.Sign(now)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", q.op, err)
		}
		q.show = NewSecret(jwt)
		a, err := g.wire.ask(ctx, q)
		if again || ClassOf(err) != Refused || g.wire.now().Sub(now).Abs() < clockOdds {
			return a, err
		}
	}
}

// installation is the App's installation as GitHub says, with the account of an
// enterprise, which has a slug instead of a login.
type installation struct {
	github.Installation
	Account *struct {
		Login string `json:"login"`
		Slug  string `json:"slug"`
		Type  string `json:"type"`
	} `json:"account"`
}

// findInstallation finds the App's installation at the place, and proves that it is
// the place's: a number in a Secret may be that of another organisation.
func (g *GitHub) findInstallation(ctx context.Context) (installation, error) {
	q := question{op: "find the App's installation", path: g.place.Root() + "/installation"}
	if g.app.fixed != 0 {
		q.path = "/app/installations/" + strconv.FormatInt(g.app.fixed, 10)
	}
	a, err := g.askAsApp(ctx, q)
	if err != nil {
		return installation{}, g.uninstalled(err)
	}
	in, err := read[installation](q, a)
	if err != nil {
		return in, err
	}
	switch {
	case in.GetID() <= 0 || in.Account == nil:
		return in, &Error{Op: q.op, Class: Unavailable, Status: a.status, Message: "the answer is no installation"}
	case g.place.Kind == place.Enterprise && !strings.EqualFold(in.Account.Slug, g.place.Owner),
		g.place.Kind != place.Enterprise && !strings.EqualFold(in.Account.Login, g.place.Owner),
		g.place.Kind == place.Org && in.Account.Type != "Organization":
		return in, &Error{Op: q.op, Class: Forbidden, Status: a.status, Message: "the installation is not that of " + g.place.Owner}
	case in.SuspendedAt != nil:
		return in, &Error{Op: q.op, Class: Forbidden, Status: a.status, Message: "the installation is suspended"}
	}
	g.app.mu.Lock()
	defer g.app.mu.Unlock()
	permits := g.narrow(in.Permissions)
	if g.app.installation != in.GetID() || !reflect.DeepEqual(g.app.permits, permits) { // what was had is of no use, or of less
		g.app.installation, g.app.permits, g.app.token, g.app.until = in.GetID(), permits, Secret{}, time.Time{}
	}
	return in, nil
}

// uninstalled makes of "not found" that the credential is of no use: no caller may
// take the App's absence for the absence of what was asked for.
func (g *GitHub) uninstalled(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Class != NotFound {
		return err
	}
	why := "the App is not installed at " + g.place.String()
	if g.place.Kind == place.Enterprise && g.app.fixed == 0 { // GitHub finds it since 2026 only
		why += ", or this GitHub cannot tell; then github_app_installation_id does"
	}
	return &Error{Op: e.Op, Class: Refused, Status: e.Status, Message: why}
}

// narrow is what a token is asked for: of what the App may, what is needed here. An
// App may have more, for somebody else's purposes.
func (g *GitHub) narrow(has *github.InstallationPermissions) (out github.InstallationPermissions) {
	if has == nil {
		return out
	}
	out.Metadata, out.Actions = has.Metadata, has.Actions
	switch g.place.Kind {
	case place.Org:
		out.OrganizationSelfHostedRunners = has.OrganizationSelfHostedRunners
	case place.Repository:
		out.Administration, out.Contents, out.PullRequests, out.Checks, out.Statuses = has.Administration, has.Contents, has.PullRequests, has.Checks, has.Statuses
	case place.Enterprise:
		return *has // what runners need there has no documented name
	}
	return out
}

// installationToken returns the token in use, or a new one. All who want a new one
// wait for the same.
func (g *GitHub) installationToken(ctx context.Context) (Secret, error) {
	const op = "get an installation's token"
	a := g.app
	select {
	case a.fetching <- struct{}{}:
		defer func() { <-a.fetching }()
	case <-ctx.Done():
		return Secret{}, fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
	a.mu.Lock()
	token, until, id := a.token, a.until, a.installation
	a.mu.Unlock()
	if !token.IsZero() && g.wire.now().Before(until) {
		return token, nil
	}
	known := id != 0
	if !known {
		if _, err := g.findInstallation(ctx); err != nil {
			return Secret{}, err
		}
	}
	answer, err := g.mint(ctx, op)
	if c := ClassOf(err); known && (c == NotFound || c == Invalid) {
		// The App was installed anew, which makes another number; or it may less now.
		if _, err := g.findInstallation(ctx); err != nil {
			return Secret{}, err
		}
		answer, err = g.mint(ctx, op)
	}
	if err != nil {
		return Secret{}, g.uninstalled(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token, a.until = NewSecret(answer.GetToken()), answer.GetExpiresAt().Add(-tokenMargin)
	return a.token, nil
}

func (g *GitHub) mint(ctx context.Context, op string) (github.InstallationToken, error) {
	g.app.mu.Lock()
	id, permits := g.app.installation, g.app.permits
	g.app.mu.Unlock()
	body := map[string]any{"permissions": permits}
	if g.place.Kind == place.Repository {
		body["repositories"] = []string{g.place.Name}
	}
	q := question{op: op, method: http.MethodPost, path: "/app/installations/" + strconv.FormatInt(id, 10) + "/access_tokens", body: body, secret: true}
	a, err := g.askAsApp(ctx, q)
	if err != nil {
		return github.InstallationToken{}, err
	}
	t, err := read[github.InstallationToken](q, a)
	if err == nil && (t.GetToken() == "" || t.GetExpiresAt().IsZero()) {
		err = &Error{Op: op, Class: Unavailable, Status: a.status, Message: "the answer is no token"}
	}
	return t, err
}

// identify is what an installation says of the credential.
func (g *GitHub) identify(in installation) Identity {
	id := Identity{Kind: GitHubAppKind, InstallationID: in.GetID()}
	id.AppID, _ = strconv.ParseInt(g.app.key.App(), 10, 64) // 0: it is known by its client id
	id.AppID = max(in.GetAppID(), id.AppID)
	return id
}

// need notes a permission that is less than what is needed.
func (id *Identity) need(name, has, least string) {
	if has != least && has != "write" && has != "admin" {
		id.Missing = append(id.Missing, name+": "+least)
	}
}

// checkApp asks anew each time: an installation and its permissions change.
func (g *GitHub) checkApp(ctx context.Context) (Identity, error) {
	in, err := g.findInstallation(ctx)
	if err != nil {
		return g.identify(installation{}), err
	}
	id, has := g.identify(in), in.Permissions
	if has == nil {
		has = &github.InstallationPermissions{}
	}
	switch g.place.Kind {
	case place.Org:
		id.need("organization_self_hosted_runners", has.GetOrganizationSelfHostedRunners(), "write")
	case place.Repository:
		id.need("administration", has.GetAdministration(), "write")
	}
	if g.place.Kind != place.Enterprise {
		id.need("metadata", has.GetMetadata(), "read")
		id.need("actions", has.GetActions(), "read")
	}
	if len(id.Missing) > 0 {
		return id, &Error{Op: "check the App's permissions", Class: Forbidden, Message: "the App lacks " + strings.Join(id.Missing, ", ")}
	}
	// That a token can be had is part of it. And what an enterprise permits is not
	// told under a name that is documented, so it is tried.
	if g.place.Kind == place.Enterprise {
		_, err = get[runnerPage](ctx, g, question{op: "check the App's permissions", path: g.place.Root() + "/actions/runners?per_page=1"})
	} else {
		_, err = g.installationToken(ctx)
	}
	return id, err
}
