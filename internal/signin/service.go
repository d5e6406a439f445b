package signin

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// Errors of a Store.
var (
	ErrNotFound = errors.New("no such sign-in")
	ErrConflict = errors.New("another client changed the sign-in")
	ErrExists   = errors.New("a sign-in of that name already exists")
)

// A Store stores sign-ins. Any error other than those above means that the API server did not
// perform the request.
type Store interface {
	// Get reads the sign-in from the API server. Error: ErrNotFound.
	Get(ctx context.Context, name string) (Signin, error)
	// GetCached reads the sign-in from a cache, without a call to the API server. The cache may lag.
	GetCached(name string) (Signin, bool)
	// ListCached returns the cached sign-ins of a login, of all its devices and sessions, in no order.
	ListCached(login string) []Signin
	// Create stores a new sign-in. Error: ErrExists.
	Create(context.Context, Signin) (Signin, error)
	// Extend writes Period, AskedAt, Why, OnUse, Idle and UsedAt if the stored version is s.Version. Errors: ErrConflict,
	// ErrNotFound.
	Extend(context.Context, Signin) (Signin, error)
	// Delete requests the deletion of the sign-in with this UID, and stores its EndAsked. Error: ErrNotFound if it is
	// already gone.
	Delete(context.Context, Signin) error
	// Await returns when done returns true for the sign-in called name, or when ctx ends. done
	// receives false if there is no sign-in. A watch triggers each check.
	Await(ctx context.Context, name string, done func(Signin, bool) bool) error
	// IssueToken requests a token of the ServiceAccount of s and returns the token's expiry. It
	// applies TokenRules. Errors: ErrConflict if the ServiceAccount is not the one that was created
	// for s, ErrMismatch and ErrPolicyMissing.
	IssueToken(ctx context.Context, s Signin, life time.Duration) (secret.Text, time.Time, error)
}

// A Service is the service that handles the requests of callers. It writes and reads sign-ins and
// returns kubeconfigs. Fields are required unless their comment says otherwise.
type Service struct {
	Store   Store
	Cluster ClusterInfo
	Prefix  string   // prefix of kubeconfig context names
	Tags    []string // optional; of this server's node, such as tag:tailplane

	// Key, optional, returns the cluster's key for ClusterInfo, or false while it is not available.
	// If Key is nil, ClusterInfo returns Cluster.Key.
	Key func() (httpapi.Key, bool)

	// Servers, optional, returns the base URLs of the cluster's access servers for ClusterInfo.
	Servers func() []string

	// Proxies, optional, returns the access proxies of the cluster for ClusterInfo. If Proxies is nil,
	// ClusterInfo returns Cluster.Proxies.
	Proxies func() []ProxyServer

	// Ended, optional, is called for each sign-in that a request ended.
	Ended func(Signin, Cause)

	// RoleRules, optional, returns the stored rules of a ClusterRole, or none if the role does not
	// exist. If it is nil, ClusterWide restricts no role, and no role is known to allow anything.
	RoleRules   func(context.Context, access.Role) ([]PolicyRule, error)
	ClusterWide ClusterWide // roles that may be bound in the whole cluster

	// Tokens and UsedTokens, both optional, verify OIDC tokens. Without them the server refuses every token.
	Tokens     TokenVerifier
	UsedTokens UsedTokens

	// Devices, optional, returns the callers for stable device IDs, as in Guard. Without it, no sign-in begins on first use.
	Devices func(ctx context.Context, ids ...string) (map[string]access.Caller, error)
	// UseRequest, optional, signs a caller in with the access request of that name. Without it, access requests are off.
	UseRequest func(ctx context.Context, c access.Caller, name string) (Signin, error)
	// Admit, optional, applies the limits of requests to the device whose first use a proxy reports.
	Admit func(access.Caller) error
	// FirstUseOff, optional, is the record of the devices for which first use is off.
	FirstUseOff FirstUseMarks
	// All, optional, returns every sign-in from a cache, as in Guard. Without it, no sign-in ends for want of use.
	All func() ([]Signin, bool)
	// Idled, optional, is called for each sign-in that ended because it was not used.
	Idled func(Signin)

	MaxPerLogin int           // devices of one login with live sign-ins
	MaxLife     time.Duration // maximum lifetime of a sign-in since its creation, as in Rules; 0: no limit
	RetryAfter  time.Duration // pause between two polls of a client
	MaxWait     time.Duration // maximum duration of a long poll
	Now         func() time.Time

	usage usage // by which the access proxies prove that they report
}

// Limits inside one login.
const (
	replaceWait = 2 * time.Second  // how long to wait until the previous sign-in is gone
	writeTries  = 5                // attempts after conflicting writes
	callTimeout = 15 * time.Second // limit for all API server calls of one request; tka waits for 30 seconds
)

// Routes returns the routes of the sign-in operations.
func (d *Service) Routes() []httpapi.Route {
	return []httpapi.Route{
		Login.Serve(d.login),
		Read.ServeAfter(func(ctx context.Context, p access.Permit, r ReadRequest) error {
			return d.awaitReady(ctx, p, r.RequestToken, r.Session, r.Wait)
		}, d.read),
		GetKubeconfig.ServeAfter(func(ctx context.Context, p access.Permit, r KubeconfigRequest) error {
			if d.proxyOnly() != nil {
				return nil // kubeconfig returns the error
			}
			return d.awaitReady(ctx, p, r.RequestToken, r.Session, r.Wait)
		}, d.kubeconfig),
		Logout.Serve(d.logout),
		FirstUse.Serve(d.firstUse),
		ReportUsage.Serve(d.reportUsage),
		ListSessions.Serve(d.sessions),
		ListRoles.Serve(d.grantedRoles),
		CheckPolicy.Serve(d.checkPolicy),
		GetClusterInfo.Serve(d.clusterInfo),
		GetWhoami.Serve(d.whoami),
	}
}

// login writes the sign-in that the permit allows. A repeated login extends it. A different role or
// different namespaces replace it: the old sign-in is gone before the new one is created.
func (d *Service) login(ctx context.Context, p access.Permit, req LoginRequest) (Accepted, error) {
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.Require(access.SigninLogin, d.Now()); err != nil {
		return Accepted{}, err
	}
	if req.Request != "" {
		return d.useRequest(ctx, p, req)
	}
	if req.Session.isForRequest() {
		return Accepted{}, problem.New(problem.BadRequest, fmt.Sprintf("The session %s belongs to an access request.", req.Session), "Choose another session, or use the request: tka shell --request ID")
	}
	request := access.Request{Period: time.Duration(req.Period), Namespaces: req.Namespaces, Reason: string(req.Reason)}
	if req.Role != "" {
		for name := range strings.SplitSeq(req.Role, ",") { // the name of a rule has the form of a role
			if _, err := access.ParseRole(name); err != nil {
				return Accepted{}, problem.New(problem.RoleNotGranted, fmt.Sprintf("%v, so it is not granted.", err), "Request one of the granted roles, or omit the role.")
			}
		}
		request.Role = access.Role(req.Role)
	}
	p, err := d.withToken(ctx, p, req.Token)
	if err != nil {
		return Accepted{}, err
	}
	if p, err = p.Choose(request); err != nil {
		return Accepted{}, err
	}
	if err := d.requireClusterWide(ctx, p.Binds(), false); err != nil {
		return Accepted{}, err
	}
	if err := d.useToken(ctx, p); err != nil {
		return Accepted{}, err
	}
	owner := ownerOf(p, req.Session)
	want := Signin{Name: owner.Name(), Owner: owner, Binds: p.Binds(), Rule: p.Rule(), Record: p.Record(), Period: p.Period(), Why: string(req.Reason)}
	if t := p.Token(); t != nil {
		want.Audience, want.Claims = t.Audience, p.Claims()
	}
	for range writeTries {
		s, err := d.write(ctx, want)
		if isRace(err) {
			continue // another writer changed it between the read and the write: read again
		}
		if err == nil {
			err = d.turnOnFirstUse(ctx, owner)
		}
		if err != nil {
			return Accepted{}, err
		}
		st := d.status(s)
		st.Clamped = p.Clamped() || s.End(d.MaxLife).Before(s.End(0))
		return Accepted{st}, nil
	}
	return Accepted{}, problem.New(problem.Conflict, "Another login of this session is changing the sign-in.", "Try again.").WithRetryAfter(d.RetryAfter)
}

// write tries once to change the stored sign-in to want.
func (d *Service) write(ctx context.Context, want Signin) (Signin, error) {
	have, err := d.Store.Get(ctx, want.Name)
	switch {
	case errors.Is(err, ErrNotFound):
		if err := d.limitSessions(want.Owner); err != nil {
			return Signin{}, err
		}
		return d.create(ctx, want)
	case err != nil:
		return Signin{}, unavailable(err)
	}
	if !have.Deleting && have.Binds.Equal(want.Binds) && have.State(d.Now()) != Ended && have.State(d.Now()) != Refused && !d.outlived(have, want.Period) && have.hasToken(want) && !d.evades(have, want.Record) {
		have.Period, have.AskedAt, have.Why, have.Rule = want.Period, d.Now(), cmp.Or(want.Why, have.Why), want.Rule
		have.Record = access.MergeRecord(have.Record, want.Record)
		have.OnUse, have.Idle, have.UsedAt = false, 0, time.Time{}
		s, err := d.Store.Extend(ctx, have)
		return s, wrapStoreError(err)
	}
	if !have.Deleting {
		have.EndAsked = EndAskedFor(CauseReplaced, d.Now())
		if err := d.remove(ctx, have, CauseReplaced); err != nil && !errors.Is(err, ErrNotFound) {
			return Signin{}, wrapStoreError(err)
		}
	}
	if gone, err := d.awaitGone(ctx, have, replaceWait); err != nil {
		return Signin{}, err
	} else if !gone {
		return Signin{}, problem.New(problem.Ending, "The previous sign-in is still ending.", "Try again in a moment.").WithRetryAfter(d.RetryAfter)
	}
	return d.create(ctx, want)
}

func (d *Service) create(ctx context.Context, want Signin) (Signin, error) {
	want.AskedAt = d.Now()
	s, err := d.Store.Create(ctx, want)
	return s, wrapStoreError(err)
}

// remove requests the deletion of exactly this sign-in.
func (d *Service) remove(ctx context.Context, s Signin, why Cause) error {
	err := d.Store.Delete(ctx, s)
	if err == nil && d.Ended != nil && s.State(d.Now()) != Ended {
		d.Ended(s, why)
	}
	return err
}

// awaitGone waits until exactly this sign-in is gone.
func (d *Service) awaitGone(ctx context.Context, s Signin, limit time.Duration) (bool, error) {
	wait, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	err := d.Store.Await(wait, s.Name, func(now Signin, there bool) bool { return !there || now.UID != s.UID })
	switch {
	case err == nil:
		return true, nil
	case ctx.Err() == nil && wait.Err() != nil: // the limit passed, or the watch was down: read from the API server
		lookup, cancel := context.WithTimeout(ctx, replaceWait)
		defer cancel()
		now, err := d.Store.Get(lookup, s.Name)
		return errors.Is(err, ErrNotFound) || err == nil && now.UID != s.UID, nil
	}
	return false, unavailable(err)
}

// requireOwner rejects a caller that may only act as the owner of a sign-in and has none. It makes no
// call to the API server.
func (d *Service) requireOwner(p access.Permit, session Session) error {
	refused := p.OwnerOnly()
	if refused == nil {
		return nil
	}
	if _, there := d.Store.GetCached(ownerOf(p, session).Name()); there {
		return nil
	}
	return refused
}

// readOwn reads the caller's sign-in from the API server. A caller that may only end a sign-in does not learn that there was one,
// even if it ended after requireOwner found it.
func (d *Service) readOwn(ctx context.Context, p access.Permit, session Session) (Signin, error) {
	owner := ownerOf(p, session)
	s, err := d.Store.Get(ctx, owner.Name())
	switch {
	case errors.Is(err, ErrNotFound):
		return Signin{}, cmp.Or(p.OwnerOnly(), notSignedIn(Signin{Owner: owner}))
	case err != nil:
		return Signin{}, unavailable(err)
	}
	return s, requireAudience(p, s)
}

// sessions lists the sign-ins of the caller's device from the cache: those with its token, or those without one.
func (d *Service) sessions(ctx context.Context, p access.Permit, req SessionsRequest) (Sessions, error) {
	if err := p.Require(access.SigninList, d.Now()); err != nil {
		return Sessions{}, err
	}
	p, err := d.withToken(ctx, p, req.Token)
	if err != nil {
		return Sessions{}, err
	}
	owner, out := ownerOf(p, ""), Sessions{Sessions: []Status{}}
	for _, s := range d.Store.ListCached(owner.Login) {
		if owner.Session = s.Owner.Session; s.Name == owner.Name() && s.State(d.Now()) != Ended {
			out.Sessions = append(out.Sessions, d.status(s))
		}
	}
	slices.SortFunc(out.Sessions, func(a, b Status) int { return cmp.Compare(a.Session, b.Session) })
	return out, nil
}

// kubeconfig returns a new token for a ready sign-in. The grants of the current connection must
// still cover the sign-in; otherwise kubeconfig ends it.
func (d *Service) kubeconfig(ctx context.Context, p access.Permit, req KubeconfigRequest) (Kubeconfig, error) {
	now := d.Now()
	ctx, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	if err := p.Require(access.SigninKubeconfig, now); err != nil {
		return Kubeconfig{}, err
	}
	p, err := d.withToken(ctx, p, req.Token)
	if err != nil {
		return Kubeconfig{}, err
	}
	if err := d.requireOwner(p, req.Session); err != nil {
		return Kubeconfig{}, err
	}
	if err := d.proxyOnly(); err != nil {
		return Kubeconfig{}, err
	}
	s, err := d.readOwn(ctx, p, req.Session)
	if err != nil {
		return Kubeconfig{}, err
	}
	_, record, covered, err := s.coverage(p)
	if err != nil {
		return Kubeconfig{}, err
	}
	if record = access.MergeRecord(s.Record, record); covered && len(record) > 0 {
		return Kubeconfig{}, d.recordedOnly(record)
	}
	switch state := s.State(now); {
	case state == Ending && !covered: // the guard ended it first
		return Kubeconfig{}, cmp.Or(p.OwnerOnly(), grantRemoved(s))
	case state == Ended, state == Ending:
		return Kubeconfig{}, cmp.Or(p.OwnerOnly(), notSignedIn(s))
	case state == Refused:
		return Kubeconfig{}, cannotProvision(s)
	}
	if !covered {
		if err := d.remove(ctx, s, CauseGrant); err != nil && !errors.Is(err, ErrNotFound) {
			return Kubeconfig{}, unavailable(err)
		}
		return Kubeconfig{}, grantRemoved(s)
	}
	if err := requireFit(p, s); err != nil {
		return Kubeconfig{}, err
	}
	if s.State(now) == Pending {
		notReady := problem.New(problem.NotReady, "The credentials are not ready yet.", "Send the request again.").WithRetryAfter(d.RetryAfter)
		notReady.State = string(Pending)
		return Kubeconfig{}, notReady
	}
	if err := d.keepWithoutUse(ctx, s); err != nil {
		return Kubeconfig{}, err
	}
	token, expires, err := d.Store.IssueToken(ctx, s, s.ValidUntil.Sub(now))
	switch {
	case errors.Is(err, ErrConflict), errors.Is(err, ErrNotFound):
		return Kubeconfig{}, notSignedIn(s)
	case errors.Is(err, ErrMismatch), errors.Is(err, ErrPolicyMissing):
		return Kubeconfig{}, noToken(err)
	case err != nil:
		return Kubeconfig{}, unavailable(err)
	case token.IsZero():
		return Kubeconfig{}, unavailable(errors.New("the API server returned an empty token"))
	}
	k := Kubeconfig{Cluster: d.Cluster.Name, Server: d.Cluster.ServerURL, CA: d.Cluster.CAData, InsecureSkipTLSVerify: d.Cluster.InsecureSkipTLSVerify,
		Prefix: d.Prefix, Session: s.Owner.Session, Token: token, ExpiresAt: s.ValidUntil, Signin: s.Name, Subject: s.tokenIdentity()}
	if expires.Before(k.ExpiresAt) {
		k.ExpiresAt = expires
	}
	if places := s.Bound.Namespaces(); len(places) > 0 {
		k.Namespace = places[0]
	}
	return k, nil
}

// logout ends the caller's sign-in. An owner may end a live sign-in whatever the grants say now. A
// caller without a sign-in learns only as much as any other caller.
func (d *Service) logout(ctx context.Context, p access.Permit, req LogoutRequest) (Status, error) {
	if err := p.Require(access.SigninLogout, d.Now()); err != nil {
		return Status{}, err
	}
	p, err := d.withToken(ctx, p, req.Token)
	if err != nil {
		return Status{}, err
	}
	if err := d.requireOwner(p, req.Session); err != nil {
		return Status{}, err
	}
	limit, cancel := context.WithTimeout(ctx, callTimeout)
	defer cancel()
	s, err := d.readOwn(limit, p, req.Session)
	live := err == nil && (s.Deleting || s.State(d.Now()) != Ended)
	if err == nil || problem.CodeOf(err) == problem.NotSignedIn {
		if markErr := d.turnOffFirstUse(limit, ownerOf(p, req.Session)); markErr != nil && !live { // of a live one the operator writes the mark
			return Status{}, markErr
		}
	}
	if err != nil {
		return Status{}, err
	}
	if !live {
		return Status{}, notSignedIn(s)
	}
	if !s.Deleting {
		if err := d.remove(limit, s, CauseLogout); errors.Is(err, ErrNotFound) {
			return Status{}, notSignedIn(s)
		} else if err != nil {
			return Status{}, unavailable(err)
		}
	}
	gone, err := d.awaitGone(ctx, s, min(cmp.Or(time.Duration(req.Wait), replaceWait), d.MaxWait))
	if err != nil {
		return Status{}, err
	}
	st := d.status(s)
	if st.State, st.Provisioned = Ending, !gone; gone {
		st.State = Ended
	}
	return st, nil
}

// status returns the view of s for its owner.
func (d *Service) status(s Signin) Status {
	st := Status{Username: s.Owner.Login, State: s.State(d.Now()), Name: s.Name, Session: s.Owner.Session, Device: s.Owner.DeviceName, RequestReason: s.Why, Record: s.Record, Token: s.tokenIdentity(),
		Cluster: d.Cluster.Name, StartedAt: s.Created.UTC(), MissingNamespaces: append([]string{}, s.MissingNamespaces...), retryAfter: d.RetryAfter}
	st.OnUse, st.Idle = s.OnUse, httpapi.Duration(s.Idle)
	where, until := s.Binds, s.End(d.MaxLife)
	switch st.State {
	case Ready:
		st.Provisioned = true
		until = s.ValidUntil
		if s.Binds.IsSimple() {
			where = s.Bound
		}
	case Refused:
		st.Reason, st.Message = s.Reason, s.Message
	}
	st.Role, st.Rule, st.Namespaces, st.Until = string(s.Binds.Role()), s.Rule, append([]string{}, where.Namespaces()...), until.UTC().Format(time.RFC3339)
	if !s.Binds.IsSimple() {
		st.Bind = rolesOf(s, st.Provisioned)
	}
	return st
}

func notSignedIn(s Signin) error {
	msg := "This device is not signed in."
	if s.Owner.Session != "" {
		msg = fmt.Sprintf("This device has no session %q.", s.Owner.Session)
	}
	if s.Owner.Issuer != "" {
		msg = "This device is not signed in with the subject of the OIDC token."
	}
	if !s.ValidUntil.IsZero() && !s.Deleting {
		msg = fmt.Sprintf("The sign-in of this device ended at %s.", s.ValidUntil.UTC().Format(time.RFC3339))
	}
	return problem.New(problem.NotSignedIn, msg, "Run: tka login")
}

func grantRemoved(s Signin) error {
	return problem.New(problem.GrantRemoved, fmt.Sprintf("The role %q is no longer granted to %s, so the server ended the sign-in.", s.Binds.Role(), s.Owner.Login),
		"Sign in again to use the current grants: tka login")
}

func cannotProvision(s Signin) error {
	return problem.New(problem.CannotProvision, fmt.Sprintf("The cluster cannot provide this sign-in: %s: %s", s.Reason, s.Message),
		"Ask an administrator of the cluster, or sign in with another role: tka login --role ROLE")
}

// unavailable hides the API server's error from the caller. The cause goes to the server log.
func unavailable(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return problem.New(problem.Unavailable, "The cluster's API server cannot process the request now.", "Try again.").WithCause(err).WithRetryAfter(time.Second)
}

// wrapStoreError returns the errors that login handles unchanged, and wraps all others as unavailable.
func wrapStoreError(err error) error {
	if err == nil || isRace(err) {
		return err
	}
	return unavailable(err)
}

// isRace reports whether another writer created, changed or deleted a sign-in at the same time.
func isRace(err error) bool {
	return errors.Is(err, ErrConflict) || errors.Is(err, ErrExists) || errors.Is(err, ErrNotFound)
}
