package forge

import (
	"context"
	"crypto"
	"crypto/rand"
	"crypto/rsa"
	"crypto/sha256"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"encoding/pem"
	"errors"
	"fmt"
	"net/http"
	"reflect"
	"regexp"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/google/go-github/v89/github"

	"github.com/tailplane/tailplane/internal/util/secret"
)

const (
	clockOdds   = 30 * time.Second // clock difference above which a refusal may be caused by clocks
	tokenMargin = 5 * time.Minute  // an installation token is not used in the last minutes before its expiry
)

// An app is a GitHub App and its token for one installation.
type app struct {
	key   *appKey
	fixed int64 // the installation that the Secret names; 0: none

	fetching chan struct{} // semaphore: held while a token is fetched

	mu           sync.Mutex
	installation int64 // verified to belong to the place; 0: not yet
	permits      github.InstallationPermissions
	token        secret.Text
	until        time.Time // by GitHub's clock
}

func newApp(id, key, installation string) (_ *app, err error) {
	a := &app{fetching: make(chan struct{}, 1)}
	if installation != "" {
		if a.fixed, err = strconv.ParseInt(installation, 10, 64); err != nil || a.fixed <= 0 {
			return nil, errors.New("github_app_installation_id is not a number")
		}
	}
	a.key, err = parseKey(id, key)
	return a, err
}

// forgetToken removes a refused token, unless it was replaced in the meantime.
func (a *app) forgetToken(t secret.Text) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if a.token.Equal(t) {
		a.token, a.until = secret.Text{}, time.Time{}
	}
}

// appCall returns a call with the App's JWT. If GitHub refuses it and the Date header shows that
// the local clock is wrong, the call sends the request once more, signed with GitHub's time.
func (g *GitHub) appCall(ctx context.Context, op, below string, want func([]byte) string) *call {
	k := &call{ctx: ctx, transport: g.transport, op: op, below: below, header: githubHeaders, want: want}
	var signed time.Time
	k.credential = func(context.Context) (secret.Text, error) {
		signed = g.now()
		jwt, err := g.app.key.Sign(signed)
		if err != nil {
			return secret.Text{}, fmt.Errorf("%s: %w", op, err)
		}
		return secret.New(jwt), nil
	}
	k.renew = func(_ secret.Text, err error) bool {
		return ClassOf(err) == Refused && g.now().Sub(signed).Abs() >= clockOdds
	}
	return k
}

// findInstallation finds the App's installation at the place. It verifies that the installation
// belongs to the place, because the ID in a Secret may be that of another organisation's
// installation.
func (g *GitHub) findInstallation(ctx context.Context) (*github.Installation, error) {
	const op = "find the App's installation"
	k := g.appCall(ctx, op, g.scope.root()+"/installation", wantObject("id", "account"))
	path := ""
	if g.app.fixed != 0 {
		k.below, path = "/app/installations", "/"+strconv.FormatInt(g.app.fixed, 10)
	}
	var answer struct {
		github.Installation
		Account *struct {
			github.User
			Slug string `json:"slug"` // enterprises have a slug instead of a login; missing in the library
		} `json:"account"`
	}
	if err := k.request(http.MethodGet, path, &answer); err != nil {
		return nil, g.uninstalled(err)
	}
	in := &answer.Installation
	switch {
	case in.GetID() <= 0 || answer.Account == nil:
		return nil, k.unusable("the response is not an installation")
	case g.scope.kind == enterpriseScope && !strings.EqualFold(answer.Account.Slug, g.scope.Owner),
		g.scope.kind != enterpriseScope && !strings.EqualFold(answer.Account.GetLogin(), g.scope.Owner),
		g.scope.kind == orgScope && answer.Account.GetType() != "Organization":
		return in, &Error{Op: op, Class: Forbidden, Status: k.status, Message: "the installation does not belong to " + g.scope.Owner}
	case in.SuspendedAt != nil:
		return in, &Error{Op: op, Class: Forbidden, Status: k.status, Message: "the installation is suspended"}
	}
	g.app.mu.Lock()
	defer g.app.mu.Unlock()
	permits := g.neededPermissions(in.Permissions)
	if g.app.installation != in.GetID() || !reflect.DeepEqual(g.app.permits, permits) { // changed: drop the old token
		g.app.installation, g.app.permits, g.app.token, g.app.until = in.GetID(), permits, secret.Text{}, time.Time{}
	}
	return in, nil
}

// uninstalled turns NotFound into Refused: a caller must not take the App's absence for the absence
// of the requested object.
func (g *GitHub) uninstalled(err error) error {
	e, ok := errors.AsType[*Error](err)
	if !ok || e.Class != NotFound {
		return err
	}
	why := "the App is not installed at " + g.scope.String()
	if g.scope.kind == enterpriseScope && g.app.fixed == 0 { // GitHub finds an enterprise's installation only since 2026
		why += ", or this GitHub cannot find the installation; then set github_app_installation_id"
	}
	return &Error{Op: e.Op, Class: Refused, Status: e.Status, Message: why}
}

// neededPermissions returns the permissions to request for a token: those that this client needs and the App
// has. The App may have more permissions for other purposes.
func (g *GitHub) neededPermissions(has *github.InstallationPermissions) (out github.InstallationPermissions) {
	if has == nil {
		return out
	}
	out.Metadata, out.Actions = has.Metadata, has.Actions
	switch g.scope.kind {
	case orgScope:
		out.OrganizationSelfHostedRunners = has.OrganizationSelfHostedRunners
	case repositoryScope:
		out.Administration, out.Contents, out.PullRequests, out.Checks, out.Statuses = has.Administration, has.Contents, has.PullRequests, has.Checks, has.Statuses
	case enterpriseScope:
		return *has // the permission for an enterprise's runners has no documented name
	}
	return out
}

// installationToken returns the current token, or fetches a new one. Concurrent callers wait for
// the same fetch.
func (g *GitHub) installationToken(ctx context.Context) (secret.Text, error) {
	const op = "get an installation's token"
	a := g.app
	select {
	case a.fetching <- struct{}{}:
		defer func() { <-a.fetching }()
	case <-ctx.Done():
		return secret.Text{}, fmt.Errorf("%s: %w", op, context.Cause(ctx))
	}
	a.mu.Lock()
	token, until, id := a.token, a.until, a.installation
	a.mu.Unlock()
	if !token.IsZero() && g.now().Before(until) {
		return token, nil
	}
	known := id != 0
	if !known {
		if _, err := g.findInstallation(ctx); err != nil {
			return secret.Text{}, err
		}
	}
	answer, err := g.issueToken(ctx, op)
	if c := ClassOf(err); known && (c == NotFound || c == Invalid) {
		// The App was reinstalled and has a new installation ID, or it lost permissions.
		if _, err := g.findInstallation(ctx); err != nil {
			return secret.Text{}, err
		}
		answer, err = g.issueToken(ctx, op)
	}
	if err != nil {
		return secret.Text{}, g.uninstalled(err)
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	a.token, a.until = secret.New(answer.GetToken()), answer.GetExpiresAt().Add(-tokenMargin)
	return a.token, nil
}

func (g *GitHub) issueToken(ctx context.Context, op string) (*github.InstallationToken, error) {
	g.app.mu.Lock()
	id, permits := g.app.installation, g.app.permits
	g.app.mu.Unlock()
	body := &github.InstallationTokenOptions{Permissions: &permits}
	if g.scope.kind == repositoryScope {
		body.Repositories = []string{g.scope.Name}
	}
	k := g.appCall(ctx, op, "/app/installations", wantObject("token", "expires_at"))
	k.secret = true
	t, _, err := k.github().Apps.CreateInstallationToken(ctx, id, body)
	if err = k.outcome(err); err == nil && (t.GetToken() == "" || t.GetExpiresAt().IsZero()) {
		err = k.unusable("the response is not a token")
	}
	return t, err
}

// identify returns the identity of the credential, as described by an installation.
func (g *GitHub) identify(in *github.Installation) Identity {
	id := Identity{Kind: GitHubAppKind, InstallationID: in.GetID()}
	id.AppID, _ = strconv.ParseInt(g.app.key.app, 10, 64) // 0: the key is known by its client ID
	id.AppID = max(in.GetAppID(), id.AppID)
	return id
}

// requirePermission records a permission that is missing or too weak.
func (id *Identity) requirePermission(name, has, least string) {
	if has != least && has != "write" && has != "admin" {
		id.Missing = append(id.Missing, name+": "+least)
	}
}

// checkApp reads the installation on each call, because an installation and its permissions can
// change.
func (g *GitHub) checkApp(ctx context.Context) (Identity, error) {
	in, err := g.findInstallation(ctx)
	if err != nil {
		return g.identify(nil), err
	}
	id, has := g.identify(in), in.GetPermissions()
	switch g.scope.kind {
	case orgScope:
		id.requirePermission("organization_self_hosted_runners", has.GetOrganizationSelfHostedRunners(), "write")
	case repositoryScope:
		id.requirePermission("administration", has.GetAdministration(), "write")
	}
	if g.scope.kind != enterpriseScope {
		id.requirePermission("metadata", has.GetMetadata(), "read")
		id.requirePermission("actions", has.GetActions(), "read")
	}
	if len(id.Missing) > 0 {
		return id, &Error{Op: "check the App's permissions", Class: Forbidden, Message: "the App lacks " + strings.Join(id.Missing, ", ")}
	}
	// The check includes a token request. GitHub has no documented name for the permission of an
	// enterprise, so checkApp tries to list its runners.
	if g.scope.kind == enterpriseScope {
		err = g.runnersCall(ctx, "check the App's permissions").readPage("", github.ListOptions{PerPage: 1}, new(github.Runners))
	} else {
		_, err = g.installationToken(ctx)
	}
	return id, err
}

// GitHub accepts an App's JWT with a lifetime of at most ten minutes, and none that starts in the
// future. Clocks differ, so the JWT starts a minute in the past and ends a minute early.
const (
	back = time.Minute
	life = 9 * time.Minute
)

// An appKey is an App's private key.
type appKey struct {
	app string
	key *rsa.PrivateKey
}

var appForm = regexp.MustCompile(`^[A-Za-z0-9._-]{1,64}$`)

// parseKey parses the key of an App. app is the App's ID or client ID. Errors never repeat any part
// of the input.
func parseKey(app, text string) (*appKey, error) {
	if !appForm.MatchString(app) {
		return nil, errors.New("github_app_id is not an App's ID")
	}
	block, _ := pem.Decode([]byte(text))
	if block == nil {
		return nil, errors.New("github_app_private_key is not in PEM form")
	}
	key, err := x509.ParsePKCS1PrivateKey(block.Bytes)
	if err != nil {
		parsed, err := x509.ParsePKCS8PrivateKey(block.Bytes)
		if err != nil {
			return nil, errors.New("github_app_private_key cannot be read")
		}
		own, ok := parsed.(*rsa.PrivateKey)
		if !ok {
			return nil, errors.New("github_app_private_key is not an RSA key")
		}
		key = own
	}
	if key.N.BitLen() < 2048 {
		return nil, errors.New("github_app_private_key is shorter than 2048 bits")
	}
	return &appKey{app, key}, nil
}

// Format implements [fmt.Formatter]. It prints no part of the key.
func (k *appKey) Format(f fmt.State, _ rune) { fmt.Fprint(f, "App ", k.app) }

// Sign returns the JWT that authenticates the App at GitHub. The JWT is a secret.
func (k *appKey) Sign(now time.Time) (string, error) {
	claims, err := json.Marshal(map[string]any{"iat": now.Add(-back).Unix(), "exp": now.Add(life).Unix(), "iss": k.app})
	if err != nil {
		return "", err
	}
	text := base64.RawURLEncoding.EncodeToString([]byte(`{"alg":"RS256","typ":"JWT"}`)) + "." + base64.RawURLEncoding.EncodeToString(claims)
	sum := sha256.Sum256([]byte(text))
	sig, err := rsa.SignPKCS1v15(rand.Reader, k.key, crypto.SHA256, sum[:])
	if err != nil {
		return "", errors.New("signing with the App's key failed")
	}
	return text + "." + base64.RawURLEncoding.EncodeToString(sig), nil
}
