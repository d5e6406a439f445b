// Package account keeps the sessions with forges, one per credential in use, and their recent
// answers. It implements law 7: a missing answer does not invalidate a credential that was valid a
// moment ago.
package account

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/forge"
)

// Validity and retry times of a credential check. After a refusal or a missing answer, the pause
// between two checks starts at retryFirst and doubles up to retryLast. A success resets it, and so
// does a new credential, which gets a new session.
const (
	validFor   = 10 * time.Minute
	retryFirst = 5 * time.Second
	retryLast  = time.Minute
	freshFor   = 30 * time.Second // maximum age of a check before an irreversible action
	// UnknownFor is the pause before the next query to a forge that gave no answer.
	UnknownFor = 10 * time.Second
)

// AtOnce is the number of concurrent reconciles that may query one forge. atOnceMore is an
// additional number, reserved for enrollments that changed since their last reconcile.
const (
	AtOnce     = 8
	atOnceMore = 4
)

// askEvery is the interval between version queries to a forge.
const askEvery = 15 * time.Minute

// Reasons of the condition CredentialsValid, in addition to those of package fleet.
const (
	reasonPermissions = "PermissionsMissing"
	reasonByHand      = "RunnerTokenOnly" // a runner's token, which allows no queries
)

// Accounts holds the forge sessions, one per credential in use. It is a cache: its state only saves
// requests. Create it with [New].
type Accounts struct {
	now   func() time.Time
	asked func(forge, org, op string, status int) // nil: not wanted

	mu     sync.Mutex
	of     map[string]*Account // by enrollment, or enrollment/copy
	limits map[string]limit
	asks   map[string]time.Time // time of the last version query, by forge
}

// A limit bounds the concurrent reconciles that query one forge.
type limit struct{ all, changed chan struct{} }

// Due reports whether a version query to a forge is due, and records that the caller makes it.
func (a *Accounts) Due(name string, now time.Time, first bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.asks[name]
	if ok && now.Sub(at) < askEvery && !(first && now.Sub(at) > UnknownFor) {
		return false
	}
	a.asks[name] = now
	return true
}

// New returns an empty cache of sessions. asked, optional, is called after each request to a forge.
func New(now func() time.Time, asked func(forge, org, op string, status int)) *Accounts {
	return &Accounts{now: now, asked: asked, of: map[string]*Account{}, limits: map[string]limit{}, asks: map[string]time.Time{}}
}

// patience is how long a reconcile waits for its turn at a forge. Then it makes room for others, so
// that a forge that hangs does not block all workers.
const patience = 250 * time.Millisecond

// ErrBusy says that a forge has no room for another reconcile now.
var ErrBusy = errors.New("the forge is being asked for as many as may at once")

// Enter waits until a reconcile may query a forge, which limits the concurrent reconciles per
// forge. The caller must call leave when it is done. A changed enrollment does not wait behind
// reconciles of unchanged ones.
func (a *Accounts) Enter(ctx context.Context, name string, changed bool) (leave func(), err error) {
	a.mu.Lock()
	l, known := a.limits[name]
	if !known {
		l = limit{make(chan struct{}, AtOnce), make(chan struct{}, atOnceMore)}
		a.limits[name] = l
	}
	a.mu.Unlock()
	if !changed {
		l.changed = nil // a nil channel blocks, so this case is never selected
	}
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case l.all <- struct{}{}:
		return func() { <-l.all }, nil
	case l.changed <- struct{}{}:
		return func() { <-l.changed }, nil
	case <-wait.C:
		return nil, ErrBusy
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// Drop removes the sessions of an enrollment that is gone.
func (a *Accounts) Drop(org string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.of {
		if name == org || strings.HasPrefix(name, org+"/") {
			delete(a.of, name)
		}
	}
}

// An Account is a session with one forge, for one credential. Only the reconciles of its enrollment
// use it, one at a time. [Account.End], [Account.Reach] and [Account.Rate] are safe for concurrent
// use.
type Account struct {
	version string
	forge   string
	GitHub  *forge.GitHub // nil: not a GitHub credential
	GitLab  *forge.GitLab
	bad     error // why the credential is not valid

	checked  time.Time
	wait     time.Duration // requested by the forge
	failures int           // since the last success
	State    fleet.CredentialState
	Identity forge.Identity

	Group     int64
	Scanned   time.Time // time of the last full scan of the group's runners
	Strangers map[int64]bool
	Runners   map[int64]RunnerRead
	Jobs      map[int64]JobsRead

	mu     sync.Mutex
	ends   map[int64]ended // by ID of the run or job
	answer time.Time       // time of the last response of the forge
	silent time.Time       // time of the last request without a response
	why    string
}

// A RunnerRead is the state of a GitLab runner, or the error from reading it.
type RunnerRead struct {
	forge.GitLabRunner
	At  time.Time
	Err error
}

// A JobsRead is the list of a GitLab runner's jobs, or the error from reading it.
type JobsRead struct {
	Jobs []forge.Job
	At   time.Time
	Err  error
}

// An ended is a run or a job whose end was requested, with the forge's response.
type ended struct {
	at  time.Time
	err error
}

const (
	endEvery = 30 * time.Second // between two end requests for the same run or job
	endKept  = time.Hour        // how long a request is remembered; much longer than a forge needs
)

// End requests the end of a run or a job with ask, unless it did so a moment ago. It reports
// whether it sent a request, and returns the last response. It is safe for concurrent use.
func (a *Account) End(id int64, now time.Time, ask func() error) (asked bool, err error) {
	a.mu.Lock()
	was, before := a.ends[id]
	a.mu.Unlock()
	if before && now.Sub(was.at) < endEvery {
		return false, was.err
	}
	err = ask()
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.ends, func(_ int64, e ended) bool { return now.Sub(e.at) > endKept })
	a.ends[id] = ended{now, err}
	return true, err
}

// heard records whether the forge responds.
func (a *Account) heard(status int, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if status == 0 || status >= 500 {
		a.silent, a.why = now, fmt.Sprintf("status %d", status)
		if status == 0 {
			a.why = "no answer"
		}
		return
	}
	a.answer = now
}

// Reach returns the times of the last response and of the last missing response, and the reason for
// the latter.
func (a *Account) Reach() (answer, silent time.Time, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answer, a.silent, a.why
}

// Rate returns the forge's rate limit, as last reported.
func (a *Account) Rate() forge.Rate {
	switch {
	case a.GitHub != nil:
		return a.GitHub.Rate()
	case a.GitLab != nil:
		return a.GitLab.Rate()
	}
	return forge.Rate{}
}

// AskVersion queries the forge for its version.
func (a *Account) AskVersion(ctx context.Context) (string, error) {
	switch {
	case a.GitHub != nil:
		return a.GitHub.Version(ctx)
	case a.GitLab != nil:
		return a.GitLab.Version(ctx)
	}
	return "", errors.New("no credential")
}

// Of returns the session for an enrollment with these credential data. It creates the session if it
// does not exist or if its input changed.
func (a *Accounts) Of(name string, e *v1alpha1.RunnerEnrollment, f *v1alpha1.RunnerForge, data map[string][]byte) *Account {
	version := fmt.Sprint(f.UID, " ", f.Generation, " ", e.UID, " ", fleet.Fingerprint(data))
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.of[name]; x != nil && x.version == version {
		return x
	}
	x := &Account{version: version, forge: f.Name, Strangers: map[int64]bool{}, Runners: map[int64]RunnerRead{}, Jobs: map[int64]JobsRead{}, ends: map[int64]ended{}}
	observe := func(op string, status int) {
		x.heard(status, a.now())
		if a.asked != nil {
			a.asked(f.Name, e.Name, op, status)
		}
	}
	switch f.Spec.Type {
	case v1alpha1.GitHub:
		x.GitHub, x.bad = forge.NewGitHub(forge.GitHubConfig{URL: f.Spec.URL, APIURL: f.Spec.APIURL, CABundle: []byte(f.Spec.CABundle), Place: e.Spec.ConfigURL, Credential: data, Now: a.now, Observe: observe})
	case v1alpha1.GitLab:
		x.GitLab, x.bad = forge.NewGitLab(forge.GitLabConfig{URL: f.Spec.URL, APIURL: f.Spec.APIURL, CABundle: []byte(f.Spec.CABundle), Credential: data, Now: a.now, Observe: observe})
	default:
		x.bad = fmt.Errorf("a forge of type %q is not known", f.Spec.Type)
	}
	a.of[name] = x
	return x
}

// At returns the usable sessions with a forge.
func (a *Accounts) At(name string) (all []*Account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.of {
		if x.forge == name && x.bad == nil {
			all = append(all, x)
		}
	}
	return all
}

// Next returns the time of the next credential check. Zero means now or, for an invalid
// configuration, never.
func (a *Account) Next() time.Time {
	if a.bad != nil || a.checked.IsZero() {
		return time.Time{}
	}
	pause := validFor
	if a.failures > 0 {
		pause = max(min(retryFirst<<min(a.failures-1, 8), retryLast), a.wait)
	}
	return a.checked.Add(pause)
}

// Check checks the credential at the forge, unless the last result is recent enough.
func (a *Account) Check(ctx context.Context, now time.Time, fresh bool) {
	if a.bad != nil {
		a.State = fleet.CredentialState{Valid: fleet.No, Reason: fleet.ReasonInvalid, Message: a.bad.Error()}
		return
	}
	known := now.Before(a.Next()) && !(fresh && now.Sub(a.checked) >= freshFor)
	if known && !now.Before(a.checked) {
		return
	}
	var id forge.Identity
	var err error
	if a.GitHub != nil {
		id, err = a.GitHub.Check(ctx)
	} else {
		id, err = a.GitLab.Check(ctx)
	}
	a.checked, a.wait = now, 0
	a.failures++
	if e, ok := errors.AsType[*forge.Error](err); ok {
		a.wait = e.RetryAfter
	}
	switch class := forge.ClassOf(err); {
	case err == nil && a.GitLab != nil && !a.GitLab.Own().IsZero():
		a.failures = 0
		a.Identity, a.State = id, fleet.CredentialState{Valid: fleet.Yes, Reason: reasonByHand,
			Message: "It is a runner_token: nothing can be asked of GitLab with it. To pause, managers are ended (PauseByDrain); rotation, tags, and the end of the runner at GitLab are for a person."}
	case err == nil && len(id.Missing) > 0:
		a.Identity, a.State = id, fleet.CredentialState{Valid: fleet.No, Reason: reasonPermissions, Message: "It lacks " + strings.Join(id.Missing, ", ") + "."}
	case err == nil:
		a.failures = 0
		a.Identity, a.State = id, fleet.CredentialState{Valid: fleet.Yes, Reason: fleet.ReasonValid, Message: "The forge accepts it."}
	case slices.Contains([]forge.Class{forge.Refused, forge.Forbidden, forge.NotFound, forge.Invalid}, class):
		a.State = fleet.CredentialState{Valid: fleet.No, Reason: fleet.ReasonInvalid, Message: err.Error()}
	case a.State.Valid == fleet.Yes: // no evidence against it
	default:
		a.State = fleet.CredentialState{Valid: fleet.Unknown, Reason: fleet.ReasonNotChecked, Message: err.Error()}
	}
}

// Status describes the credential in use, without any secret. was is the earlier status.
func (a *Account) Status(was *v1alpha1.CredentialStatus, fingerprint string, now time.Time) *v1alpha1.CredentialStatus {
	id := a.Identity
	if id.Kind == "" {
		return was
	}
	c := &v1alpha1.CredentialStatus{Kind: v1alpha1.CredentialKind(id.Kind), Fingerprint: fingerprint, CreatedAt: new(metav1.NewTime(now.Truncate(time.Second)))}
	if was != nil && was.Fingerprint == c.Fingerprint && was.CreatedAt != nil {
		c.CreatedAt = was.CreatedAt
	}
	if id.AppID != 0 {
		c.AppID = &id.AppID
	}
	if id.InstallationID != 0 {
		c.InstallationID = &id.InstallationID
	}
	if !id.ExpiresAt.IsZero() {
		c.ExpiresAt = new(metav1.NewTime(id.ExpiresAt.Truncate(time.Second)))
	}
	return c
}

// Denied reports whether a forge refuses the credential. It is false if the forge only does not
// respond.
func Denied(err error) bool {
	class := forge.ClassOf(err)
	return class == forge.Refused || class == forge.Forbidden
}

// WithInstallation adds the ID of the discovered installation to a credential, because ARC needs
// it.
func WithInstallation(data map[string][]byte, installation int64) map[string][]byte {
	if len(data["github_app_id"]) == 0 || len(data["github_app_installation_id"]) > 0 || installation == 0 {
		return data
	}
	out := map[string][]byte{"github_app_installation_id": fmt.Append(nil, installation)}
	for k, v := range data {
		if k != "github_app_installation_id" {
			out[k] = v
		}
	}
	return out
}
