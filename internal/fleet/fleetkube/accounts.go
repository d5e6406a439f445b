package fleetkube

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
)

// How long an answer about a credential is believed.
const (
	validFor   = 10 * time.Minute
	invalidFor = time.Minute
	unknownFor = 10 * time.Second
)

// Reasons of the condition CredentialsValid, beside the fleet's own.
const (
	reasonNoSecret    = "SecretNotFound"
	reasonPermissions = "PermissionsMissing"
)

// accounts are the ways to forges that are known, one for each credential in use.
// What they remember only saves requests.
type accounts struct {
	mu     sync.Mutex
	of     map[string]*account // by enrollment, or enrollment/copy
	limits map[string]chan struct{}
	asked  map[string]time.Time // for its version, by forge
}

// due says whether it is time to ask a forge for its version, and notes that it is.
func (a *accounts) due(name string, now time.Time, first bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.asked[name]
	if ok && now.Sub(at) < askEvery && !(first && now.Sub(at) > unknownFor) {
		return false
	}
	a.asked[name] = now
	return true
}

func newAccounts() *accounts {
	return &accounts{of: map[string]*account{}, limits: map[string]chan struct{}{}, asked: map[string]time.Time{}}
}

// patience is how long a look waits for its turn at a forge. Then it makes room for
// another one: those at a forge that hangs would hold up all others.
const patience = 250 * time.Millisecond

var errBusy = errors.New("the forge is being asked for as many as may at once")

// enter waits until a forge may be asked for one enrollment more, so that each forge
// is asked for so many at once; leave is to be called then.
func (a *accounts) enter(ctx context.Context, name string) (leave func(), err error) {
	a.mu.Lock()
	limit := a.limits[name]
	if limit == nil {
		limit = make(chan struct{}, atOnce)
		a.limits[name] = limit
	}
	a.mu.Unlock()
	wait := time.NewTimer(patience)
	defer wait.Stop()
	select {
	case limit <- struct{}{}:
		return func() { <-limit }, nil
	case <-wait.C:
		return nil, errBusy
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

func (a *accounts) drop(org string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for name := range a.of {
		if name == org || strings.HasPrefix(name, org+"/") {
			delete(a.of, name)
		}
	}
}

// An account is one credential at one forge. Only the looks at its enrollment use it,
// one at a time, but for reach and rate.
type account struct {
	version string
	forge   string
	github  *forge.GitHub
	gitlab  *forge.GitLab
	bad     error // what of the credential cannot be

	checked time.Time
	wait    time.Duration // that the forge asked for
	state   fleet.CredentialState
	id      forge.Identity

	group     int64
	scanned   time.Time // when all runners of the group were last looked through
	strangers map[int64]bool
	runners   map[int64]runnerRead
	jobs      map[int64]jobsRead
	cancelled map[int64]time.Time // runs and jobs that were asked to end

	mu     sync.Mutex
	answer time.Time // when the forge last answered at all
	silent time.Time // when it last did not
	why    string
}

type runnerRead struct {
	forge.GitLabRunner
	at  time.Time
	err error
}

type jobsRead struct {
	jobs []forge.Job
	at   time.Time
	err  error
}

// heard notes whether the forge answers.
func (a *account) heard(status int, now time.Time) {
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

// reach says when the forge last answered, and last did not, and why.
func (a *account) reach() (answer, silent time.Time, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answer, a.silent, a.why
}

func (a *account) rate() forge.Rate {
	switch {
	case a.github != nil:
		return a.github.Rate()
	case a.gitlab != nil:
		return a.gitlab.Rate()
	}
	return forge.Rate{}
}

// version asks a forge for its version.
func (a *account) askVersion(ctx context.Context) (string, error) {
	switch {
	case a.github != nil:
		return a.github.Version(ctx)
	case a.gitlab != nil:
		return a.gitlab.Version(ctx)
	}
	return "", errors.New("no credential")
}

// account is the way to the forge of an enrollment with those data.
func (w *crew) account(name string, e *v1alpha1.RunnerEnrollment, f *v1alpha1.RunnerForge, data map[string][]byte) *account {
	version := fmt.Sprint(f.UID, " ", f.Generation, " ", e.UID, " ", fleet.Fingerprint(data))
	w.accounts.mu.Lock()
	defer w.accounts.mu.Unlock()
	if a := w.accounts.of[name]; a != nil && a.version == version {
		return a
	}
	a := &account{version: version, forge: f.Name, strangers: map[int64]bool{}, runners: map[int64]runnerRead{}, jobs: map[int64]jobsRead{}, cancelled: map[int64]time.Time{}}
	observe := func(op string, status int) {
		a.heard(status, w.Now())
		if w.Asked != nil {
			w.Asked(f.Name, e.Name, op, status)
		}
	}
	switch f.Spec.Type {
	case v1alpha1.GitHub:
		a.github, a.bad = forge.NewGitHub(forge.GitHubConfig{URL: f.Spec.URL, APIURL: f.Spec.APIURL, CABundle: []byte(f.Spec.CABundle), Place: e.Spec.ConfigURL, Credential: data, Now: w.Now, Observe: observe})
	case v1alpha1.GitLab:
		a.gitlab, a.bad = forge.NewGitLab(forge.GitLabConfig{URL: f.Spec.URL, APIURL: f.Spec.APIURL, CABundle: []byte(f.Spec.CABundle), Credential: data, Now: w.Now, Observe: observe})
	default:
		a.bad = fmt.Errorf("a forge of type %q is not known", f.Spec.Type)
	}
	w.accounts.of[name] = a
	return a
}

// of are the accounts at a forge.
func (a *accounts) at(name string) (all []*account) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.of {
		if x.forge == name && x.bad == nil {
			all = append(all, x)
		}
	}
	return all
}

// check finds out whether the credential is good, unless that is known well enough.
func (a *account) check(ctx context.Context, now time.Time, fresh bool) {
	if a.bad != nil {
		a.state = fleet.CredentialState{Valid: fleet.No, Reason: fleet.ReasonInvalid, Message: a.bad.Error()}
		return
	}
	age := map[fleet.Answer]time.Duration{fleet.Yes: validFor, fleet.No: invalidFor, fleet.Unknown: max(unknownFor, a.wait)}[a.state.Valid]
	if fresh {
		age = invalidFor / 2
	}
	if !a.checked.IsZero() && now.Sub(a.checked) < age && now.Sub(a.checked) >= 0 {
		return
	}
	var id forge.Identity
	var err error
	if a.github != nil {
		id, err = a.github.Check(ctx)
	} else {
		id, err = a.gitlab.Check(ctx)
	}
	a.checked, a.wait = now, 0
	if e, ok := errors.AsType[*forge.Error](err); ok {
		a.wait = e.RetryAfter
	}
	switch class := forge.ClassOf(err); {
	case err == nil && len(id.Missing) > 0:
		a.id, a.state = id, fleet.CredentialState{Valid: fleet.No, Reason: reasonPermissions, Message: "It lacks " + strings.Join(id.Missing, ", ") + "."}
	case err == nil:
		a.id, a.state = id, fleet.CredentialState{Valid: fleet.Yes, Reason: fleet.ReasonValid, Message: "The forge accepts it."}
	case slices.Contains([]forge.Class{forge.Refused, forge.Forbidden, forge.NotFound, forge.Invalid}, class):
		a.state = fleet.CredentialState{Valid: fleet.No, Reason: fleet.ReasonInvalid, Message: err.Error()}
	case a.state.Valid == fleet.Yes: // it was a moment ago, and that it is not now nobody said
	default:
		a.state = fleet.CredentialState{Valid: fleet.Unknown, Reason: fleet.ReasonNotChecked, Message: err.Error()}
	}
}

// credential finds out how the credential of an enrollment stands: what the Secret
// that it names has, and what the forge says of it.
func (l *look) credential(ctx context.Context) error {
	s := &corev1.Secret{}
	name := l.e.Spec.Credentials.SecretName
	err := l.direct.Get(ctx, client.ObjectKey{Namespace: l.Isolation.Namespace, Name: name}, s)
	l.facts.Credential = fleet.CredentialState{Valid: fleet.No, Reason: reasonNoSecret, Message: fmt.Sprintf("There is no Secret %q in the fleet's namespace.", name)}
	switch {
	case apierrors.IsNotFound(err):
		return l.inUse(ctx)
	case err != nil:
		return fmt.Errorf("look at the credential: %w", err)
	case s.Labels[v1alpha1.OrgLabel] != l.e.Name: // nothing of it is read
		l.facts.Credential.Reason, l.facts.Credential.Message = fleet.ReasonSecretOfAnother, fmt.Sprintf("The Secret %q does not carry the label %s: %s.", name, v1alpha1.OrgLabel, l.e.Name)
		return nil
	}
	l.account = l.crew.account(l.e.Name, l.e, l.forge, s.Data)
	l.account.check(ctx, l.now, l.live)
	c := l.account.state
	l.source = s.Data
	if c.Valid == fleet.Yes && l.account.github != nil {
		l.source = withInstallation(s.Data, l.account.id.InstallationID)
		copied, err := isolation.Credential(l.e.Name, l.Isolation.Namespace, l.source)
		if err != nil {
			c = fleet.CredentialState{Valid: fleet.No, Reason: fleet.ReasonInvalid, Message: err.Error()}
		} else {
			c.Fingerprint = fleet.Fingerprint(copied.Data)
		}
	} else if l.account.github == nil {
		c.Fingerprint = fleet.Fingerprint(s.Data)
	}
	l.facts.Credential = c
	return l.inUse(ctx)
}

// withInstallation is a credential with the installation that was found for it: ARC
// needs its number.
func withInstallation(data map[string][]byte, installation int64) map[string][]byte {
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

// inUse finds out whether the older credential that runners use is still good, where
// the one that was to take its place is not.
func (l *look) inUse(ctx context.Context) error {
	if l.facts.Credential.Valid != fleet.No || l.forge.Spec.Type != v1alpha1.GitHub {
		return nil
	}
	for _, s := range l.secrets {
		if !isCopy(&s) || !slices.ContainsFunc(l.works, func(w *work) bool { return w.Namespace == s.Namespace && slices.Contains(w.Copies, s.Name) }) {
			continue
		}
		a := l.crew.account(l.e.Name+"/"+s.Name, l.e, l.forge, s.Data)
		a.check(ctx, l.now, l.live)
		l.facts.Credential.InUse = a.state.Valid
		if a.state.Valid == fleet.Yes {
			if l.account == nil || l.account.state.Valid == fleet.No {
				l.account = a
			}
			return nil
		}
	}
	return nil
}

// isCopy says whether a Secret is the copy of a credential, for GitHub.
func isCopy(s *corev1.Secret) bool {
	return s.Labels[v1alpha1.ManagedByLabel] == v1alpha1.ManagedBy && s.Labels[v1alpha1.PoolLabel] == "" &&
		(len(s.Data["github_app_id"]) > 0 || len(s.Data["github_token"]) > 0)
}
