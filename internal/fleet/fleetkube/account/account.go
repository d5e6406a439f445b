// Package account keeps the ways to forges, one for each credential in use, and what
// the forges said lately. It keeps law 7: no answer says nothing against a credential
// that was good a moment ago.
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

// How long it is believed that a credential is good, and when a forge is asked again that
// refused it or did not answer: after a moment, and each time after twice as long. A
// success begins anew; so does another credential, which is another account.
const (
	validFor   = 10 * time.Minute
	retryFirst = 5 * time.Second
	retryLast  = time.Minute
	freshFor   = 30 * time.Second // where something is taken away by it
	// UnknownFor is how long a forge that gave no answer is not asked again.
	UnknownFor = 10 * time.Second
)

// AtOnce is how many looks at enrollments of one forge ask it at once, and atOnceMore how
// many besides, of those that somebody changed and nobody has looked at since.
const (
	AtOnce     = 8
	atOnceMore = 4
)

// askEvery is how often a forge is asked for its version.
const askEvery = 15 * time.Minute

// Reasons of the condition CredentialsValid, beside the fleet's own.
const (
	reasonPermissions = "PermissionsMissing"
	reasonByHand      = "RunnerTokenOnly" // a token of a runner, and nothing to ask with
)

// Accounts are the ways to forges that are known, one for each credential in use.
// What they remember only saves requests. Make them with [New].
type Accounts struct {
	now   func() time.Time
	asked func(forge, org, op string, status int) // nil: nobody wants to hear

	mu     sync.Mutex
	of     map[string]*Account // by enrollment, or enrollment/copy
	limits map[string]limit
	asks   map[string]time.Time // for its version, by forge
}

// A limit is of looks that ask a forge at once.
type limit struct{ all, changed chan struct{} }

// Due says whether it is time to ask a forge for its version, and notes that it is.
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

// New makes accounts. asked, optional, hears of each request to a forge.
func New(now func() time.Time, asked func(forge, org, op string, status int)) *Accounts {
	return &Accounts{now: now, asked: asked, of: map[string]*Account{}, limits: map[string]limit{}, asks: map[string]time.Time{}}
}

// patience is how long a look waits for its turn at a forge. Then it makes room for
// another one: those at a forge that hangs would hold up all others.
const patience = 250 * time.Millisecond

// ErrBusy says that a forge has no room for another look now.
var ErrBusy = errors.New("the forge is being asked for as many as may at once")

// Enter waits until a forge may be asked for one enrollment more, so that each forge
// is asked for so many at once; leave is to be called then. What somebody changed does
// not wait behind looks at which nothing has.
func (a *Accounts) Enter(ctx context.Context, name string, changed bool) (leave func(), err error) {
	a.mu.Lock()
	l, known := a.limits[name]
	if !known {
		l = limit{make(chan struct{}, AtOnce), make(chan struct{}, atOnceMore)}
		a.limits[name] = l
	}
	a.mu.Unlock()
	if !changed {
		l.changed = nil // which nobody gets into
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

// Drop forgets what is known for an enrollment that has gone.
func (a *Accounts) Drop(org string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.of {
		if name == org || strings.HasPrefix(name, org+"/") {
			delete(a.of, name)
		}
	}
}

// An Account is one credential at one forge. Only the looks at its enrollment use it,
// one at a time, but for [Account.Reach] and [Account.Rate].
type Account struct {
	version string
	forge   string
	GitHub  *forge.GitHub // nil: it is not one of GitHub's
	GitLab  *forge.GitLab
	bad     error // what of the credential cannot be

	checked  time.Time
	wait     time.Duration // that the forge asked for
	failures int           // since it was last found good
	State    fleet.CredentialState
	Identity forge.Identity

	Group     int64
	Scanned   time.Time // when all runners of the group were last looked through
	Strangers map[int64]bool
	Runners   map[int64]RunnerRead
	Jobs      map[int64]JobsRead

	mu     sync.Mutex
	ends   map[int64]ended // of runs and jobs
	answer time.Time       // when the forge last answered at all
	silent time.Time       // when it last did not
	why    string
}

// A RunnerRead is how a runner of GitLab's stood, or why that could not be read.
type RunnerRead struct {
	forge.GitLabRunner
	At  time.Time
	Err error
}

// A JobsRead is what a runner of GitLab's ran, or why that could not be read.
type JobsRead struct {
	Jobs []forge.Job
	At   time.Time
	Err  error
}

// An ended is a run or a job that was asked to end, and what the forge said to that.
type ended struct {
	at  time.Time
	err error
}

const (
	endEvery = 30 * time.Second // between two requests for the end of one run or job
	endKept  = time.Hour        // that it is remembered, by far longer than a forge takes
)

// End asks for the end of a run or a job, unless that was asked for a moment ago, and
// returns what the forge said to it last. It may be called at the same time.
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

// heard notes whether the forge answers.
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

// Reach says when the forge last answered, and last did not, and why.
func (a *Account) Reach() (answer, silent time.Time, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answer, a.silent, a.why
}

// Rate is what the forge said of how often it may be asked.
func (a *Account) Rate() forge.Rate {
	switch {
	case a.GitHub != nil:
		return a.GitHub.Rate()
	case a.GitLab != nil:
		return a.GitLab.Rate()
	}
	return forge.Rate{}
}

// AskVersion asks a forge for its version.
func (a *Account) AskVersion(ctx context.Context) (string, error) {
	switch {
	case a.GitHub != nil:
		return a.GitHub.Version(ctx)
	case a.GitLab != nil:
		return a.GitLab.Version(ctx)
	}
	return "", errors.New("no credential")
}

// Of is the way to the forge of an enrollment with those data.
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

// At are the accounts at a forge.
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

// Next is when the credential is to be checked again; zero: now, or never.
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

// Check finds out whether the credential is good, unless that is known well enough.
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
	case a.State.Valid == fleet.Yes: // it was a moment ago, and that it is not now nobody said
	default:
		a.State = fleet.CredentialState{Valid: fleet.Unknown, Reason: fleet.ReasonNotChecked, Message: err.Error()}
	}
}

// Status says which credential is in use, and never what is in it; was is what was said
// before.
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

// Denied says whether a forge refuses the credential, rather than being away.
func Denied(err error) bool {
	class := forge.ClassOf(err)
	return class == forge.Refused || class == forge.Forbidden
}

// WithInstallation is a credential with the installation that was found for it: ARC
// needs its number.
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
