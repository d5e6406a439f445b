package controller

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/fleet"
	"github.com/tailplane/tailplane/internal/fleet/forge"
	"github.com/tailplane/tailplane/internal/fleet/isolation"
	"github.com/tailplane/tailplane/internal/util/retry"
)

// Validity and retry times of a credential check. After a refusal or a missing answer, the pause
// between two checks starts at credentialRetryFirst and doubles up to credentialRetryLast. A success resets it, and so
// does a new credential, which gets a new session.
const (
	credentialValidFor   = 10 * time.Minute
	credentialRetryFirst = 5 * time.Second
	credentialRetryLast  = time.Minute
	credentialFreshFor   = 30 * time.Second // maximum age of a check before an irreversible action
	// noAnswerRetry is the pause before the next query to a forge that gave no answer.
	noAnswerRetry = 10 * time.Second
)

// maxPerForge is the number of concurrent reconciles that may query one forge. extraPerForge is an
// additional number, reserved for enrollments that changed since their last reconcile.
const (
	maxPerForge   = 8
	extraPerForge = 4
)

// versionCheckInterval is the interval between version queries to a forge.
const versionCheckInterval = 15 * time.Minute

// Reasons of the condition CredentialsValid, in addition to those of package fleet.
const (
	reasonPermissions     = "PermissionsMissing"
	reasonRunnerTokenOnly = "RunnerTokenOnly" // a runner's token, which allows no queries
)

// sessionCache holds the forge sessions, one per credential in use. It is a cache: its state only saves
// requests. Create it with [newSessionCache].
type sessionCache struct {
	now       func() time.Time
	onRequest func(forge, org, op string, status int) // nil: not wanted

	mu            sync.Mutex
	sessions      map[string]*forgeSession // by enrollment, or enrollment/copy
	limits        map[string]forgeLimit
	versionChecks map[string]time.Time // time of the last version query, by forge
}

// A forgeLimit bounds the concurrent reconciles that query one forge.
type forgeLimit struct{ all, changed chan struct{} }

// versionDue reports whether a version query to a forge is due, and records that the caller makes it.
func (a *sessionCache) versionDue(name string, now time.Time, first bool) bool {
	a.mu.Lock()
	defer a.mu.Unlock()
	at, ok := a.versionChecks[name]
	if ok && now.Sub(at) < versionCheckInterval && !(first && now.Sub(at) > noAnswerRetry) {
		return false
	}
	a.versionChecks[name] = now
	return true
}

// newSessionCache returns an empty cache of sessions. requested, optional, is called after each request to a forge.
func newSessionCache(now func() time.Time, requested func(forge, org, op string, status int)) *sessionCache {
	return &sessionCache{
		now:           now,
		onRequest:     requested,
		sessions:      map[string]*forgeSession{},
		limits:        map[string]forgeLimit{},
		versionChecks: map[string]time.Time{},
	}
}

// acquireTimeout is how long a reconcile waits for its turn at a forge. Then it makes room for others, so
// that a forge that hangs does not block all workers.
const acquireTimeout = 250 * time.Millisecond

// errForgeBusy says that a forge has no room for another reconcile now.
var errForgeBusy = errors.New("the maximum number of concurrent reconciles already use the forge")

// acquire waits until a reconcile may query a forge, which limits the concurrent reconciles per
// forge. The caller must call leave when it is done. A changed enrollment does not wait behind
// reconciles of unchanged ones.
func (a *sessionCache) acquire(ctx context.Context, name string, changed bool) (leave func(), err error) {
	a.mu.Lock()
	l, known := a.limits[name]
	if !known {
		l = forgeLimit{make(chan struct{}, maxPerForge), make(chan struct{}, extraPerForge)}
		a.limits[name] = l
	}
	a.mu.Unlock()
	if !changed {
		l.changed = nil // a nil channel blocks, so this case is never selected
	}
	wait := time.NewTimer(acquireTimeout)
	defer wait.Stop()
	select {
	case l.all <- struct{}{}:
		return func() { <-l.all }, nil
	case l.changed <- struct{}{}:
		return func() { <-l.changed }, nil
	case <-wait.C:
		return nil, errForgeBusy
	case <-ctx.Done():
		return nil, ctx.Err()
	}
}

// delete removes the sessions of an enrollment that is gone.
func (a *sessionCache) delete(org string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.sessions, func(name string, _ *forgeSession) bool { return name == org || strings.HasPrefix(name, org+"/") })
}

// A forgeClient is the part of a client that does not depend on the forge.
type forgeClient interface {
	Check(context.Context) (forge.Identity, error)
	Rate() forge.Rate
	Version(context.Context) (string, error)
}

// A forgeSession is a session with one forge, for one credential. Only the reconciles of its enrollment
// use it, one at a time. [forgeSession.requestEnd], [forgeSession.lastContact] and [forgeSession.rate] are safe for
// concurrent use.
type forgeSession struct {
	version string
	forge   string
	client  forgeClient   // GitHub or GitLab; nil if the credential is not valid
	GitHub  *forge.GitHub // nil: not a GitHub credential
	GitLab  *forge.GitLab
	invalid error // why the credential is not valid

	checked  time.Time
	wait     time.Duration // requested by the forge
	failures int           // since the last success
	State    fleet.CredentialState
	Identity forge.Identity

	Group     int64
	ScannedAt time.Time // time of the last full scan of the group's runners
	Unmarked  map[int64]bool
	Runners   map[int64]runnerResult
	Jobs      map[int64]jobsResult

	mu               sync.Mutex
	endRequests      map[int64]endRequest // by ID of the run or job
	answeredAt       time.Time            // time of the last response of the forge
	unansweredAt     time.Time            // time of the last request without a response
	unansweredReason string
}

// A runnerResult is the state of a GitLab runner, or the error from reading it.
type runnerResult struct {
	forge.GitLabRunner
	At  time.Time
	Err error
}

// A jobsResult is the list of a GitLab runner's jobs, or the error from reading it.
type jobsResult struct {
	Jobs []forge.Job
	At   time.Time
	Err  error
}

// An endRequest is a run or a job whose end was requested, with the forge's response.
type endRequest struct {
	at  time.Time
	err error
}

const (
	endRequestInterval  = 30 * time.Second // between two end requests for the same run or job
	endRequestRetention = time.Hour        // how long a request is remembered; much longer than a forge needs
)

// requestEnd requests the end of a run or a job with request, unless it did so a moment ago. It reports
// whether it sent a request, and returns the last response. It is safe for concurrent use.
func (a *forgeSession) requestEnd(id int64, now time.Time, request func() error) (requested bool, err error) {
	a.mu.Lock()
	old, before := a.endRequests[id]
	a.mu.Unlock()
	if before && now.Sub(old.at) < endRequestInterval {
		return false, old.err
	}
	err = request()
	a.mu.Lock()
	defer a.mu.Unlock()
	maps.DeleteFunc(a.endRequests, func(_ int64, e endRequest) bool { return now.Sub(e.at) > endRequestRetention })
	a.endRequests[id] = endRequest{now, err}
	return true, err
}

// recordStatus records whether the forge responds.
func (a *forgeSession) recordStatus(status int, now time.Time) {
	a.mu.Lock()
	defer a.mu.Unlock()
	if status == 0 || status >= 500 {
		a.unansweredAt, a.unansweredReason = now, fmt.Sprintf("status %d", status)
		if status == 0 {
			a.unansweredReason = "no answer"
		}
		return
	}
	a.answeredAt = now
}

// lastContact returns the times of the last response and of the last missing response, and the reason for
// the latter.
func (a *forgeSession) lastContact() (answer, silent time.Time, why string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.answeredAt, a.unansweredAt, a.unansweredReason
}

// rate returns the forge's rate limit, as last reported.
func (a *forgeSession) rate() forge.Rate {
	if a.client == nil {
		return forge.Rate{}
	}
	return a.client.Rate()
}

// get returns the session for an enrollment with these credential data. It creates the session if it
// does not exist or if its input changed.
func (a *sessionCache) get(name string, e *v1alpha1.RunnerEnrollment, f *v1alpha1.RunnerForge, data map[string][]byte) *forgeSession {
	version := fmt.Sprint(f.UID, " ", f.Generation, " ", e.UID, " ", fleet.Fingerprint(data))
	a.mu.Lock()
	defer a.mu.Unlock()
	if x := a.sessions[name]; x != nil && x.version == version {
		return x
	}
	x := &forgeSession{
		version:     version,
		forge:       f.Name,
		Unmarked:    map[int64]bool{},
		Runners:     map[int64]runnerResult{},
		Jobs:        map[int64]jobsResult{},
		endRequests: map[int64]endRequest{},
	}
	observe := func(op string, status int) {
		x.recordStatus(status, a.now())
		if a.onRequest != nil {
			a.onRequest(f.Name, e.Name, op, status)
		}
	}
	config := forge.Config{
		URL:        f.Spec.URL,
		APIURL:     f.Spec.APIURL,
		CABundle:   []byte(f.Spec.CABundle),
		Credential: data,
		Now:        a.now,
		Observe:    observe,
	}
	switch f.Spec.Type {
	case v1alpha1.GitHub:
		config.ScopeURL = e.Spec.ConfigURL
		if x.GitHub, x.invalid = forge.NewGitHub(config); x.invalid == nil {
			x.client = x.GitHub
		}
	case v1alpha1.GitLab:
		if x.GitLab, x.invalid = forge.NewGitLab(config); x.invalid == nil {
			x.client = x.GitLab
		}
	default:
		x.invalid = fmt.Errorf("unknown forge type %q", f.Spec.Type)
	}
	a.sessions[name] = x
	return x
}

// usable returns the usable sessions with a forge.
func (a *sessionCache) usable(name string) (all []*forgeSession) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for _, x := range a.sessions {
		if x.forge == name && x.invalid == nil {
			all = append(all, x)
		}
	}
	return all
}

// nextCheck returns the time of the next credential check. Zero means now or, for an invalid
// configuration, never.
func (a *forgeSession) nextCheck() time.Time {
	if a.invalid != nil || a.checked.IsZero() {
		return time.Time{}
	}
	pause := credentialValidFor
	if a.failures > 0 {
		pause = max(min(credentialRetryFirst<<min(a.failures-1, 8), credentialRetryLast), a.wait)
	}
	return a.checked.Add(pause)
}

// check checks the credential at the forge, unless the last result is recent enough.
func (a *forgeSession) check(ctx context.Context, now time.Time, fresh bool) {
	if a.invalid != nil {
		a.State = fleet.CredentialState{Valid: fleet.No, Reason: fleet.ReasonInvalid, Message: a.invalid.Error()}
		return
	}
	known := now.Before(a.nextCheck()) && !(fresh && now.Sub(a.checked) >= credentialFreshFor)
	if known && !now.Before(a.checked) {
		return
	}
	id, err := a.client.Check(ctx)
	a.checked, a.wait = now, 0
	a.failures++
	if e, ok := errors.AsType[*forge.Error](err); ok {
		a.wait = e.RetryAfter
	}
	switch class := forge.ClassOf(err); {
	case err == nil && a.GitLab != nil && !a.GitLab.RunnerToken().IsZero():
		a.failures = 0
		a.Identity, a.State = id, fleet.CredentialState{Valid: fleet.Yes, Reason: reasonRunnerTokenOnly,
			Message: "It is a runner_token, which gives no access to the GitLab API. To pause, the fleet stops the managers (PauseByDrain). A person must rotate the token, change tags and delete the runner at GitLab."}
	case err == nil && len(id.Missing) > 0:
		a.Identity, a.State = id, fleet.CredentialState{
			Valid:   fleet.No,
			Reason:  reasonPermissions,
			Message: "It lacks " + strings.Join(id.Missing, ", ") + ".",
		}
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

// status describes the credential in use, without any secret. old is the earlier status.
func (a *forgeSession) status(old *v1alpha1.CredentialStatus, fingerprint string, now time.Time) *v1alpha1.CredentialStatus {
	id := a.Identity
	if id.Kind == "" {
		return old
	}
	c := &v1alpha1.CredentialStatus{
		Kind:        v1alpha1.CredentialKind(id.Kind),
		Fingerprint: fingerprint,
		CreatedAt:   new(metav1.NewTime(now.Truncate(time.Second))),
	}
	if old != nil && old.Fingerprint == c.Fingerprint && old.CreatedAt != nil {
		c.CreatedAt = old.CreatedAt
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

// isDenied reports whether a forge refuses the credential. It is false if the forge only does not
// respond.
func isDenied(err error) bool {
	class := forge.ClassOf(err)
	return class == forge.Refused || class == forge.Forbidden
}

// withInstallation adds the ID of the discovered installation to a credential, because ARC needs
// it.
func withInstallation(data map[string][]byte, installation int64) map[string][]byte {
	if len(data["github_app_id"]) == 0 || len(data["github_app_installation_id"]) > 0 || installation == 0 {
		return data
	}
	out := maps.Clone(data)
	out["github_app_installation_id"] = fmt.Append(nil, installation)
	return out
}

// reasonNoSecret is a reason of the condition CredentialsValid, in addition to those of package
// fleet.
const reasonNoSecret = "SecretNotFound"

// sourceSecret reads the Secret that an enrollment names; nil if there is none.
func sourceSecret(ctx context.Context, d deps, e *v1alpha1.RunnerEnrollment) (*corev1.Secret, error) {
	s := &corev1.Secret{}
	err := d.direct.Get(ctx, client.ObjectKey{Namespace: d.settings.isolation.Namespace, Name: e.Spec.Credentials.SecretName}, s)
	switch {
	case apierrors.IsNotFound(err):
		return nil, nil
	case err != nil:
		return nil, fmt.Errorf("read the credential: %w", err)
	}
	return s, nil
}

// checkCredential determines the state of an enrollment's credential, from the content of its Secret and
// from the forge's answer.
func checkCredential(ctx context.Context, d deps, o *observed, s *corev1.Secret) {
	name := o.e.Spec.Credentials.SecretName
	o.facts.Credential = fleet.CredentialState{
		Valid:   fleet.No,
		Reason:  reasonNoSecret,
		Message: fmt.Sprintf("There is no Secret %q in the fleet's namespace.", name),
	}
	switch {
	case s == nil:
		checkOldCredential(ctx, d, o)
		return
	case s.Labels[v1alpha1.OrgLabel] != o.e.Name: // do not use any of its data
		o.facts.Credential.Reason, o.facts.Credential.Message = fleet.ReasonSecretOfAnother, fmt.Sprintf(
			"The Secret %q does not carry the label %s: %s.",
			name,
			v1alpha1.OrgLabel,
			o.e.Name,
		)
		return
	}
	o.session = d.sessions.get(o.e.Name, o.e, o.forge, s.Data)
	o.session.check(ctx, o.now, o.live)
	o.wake = retry.Earliest(o.wake, o.session.nextCheck())
	c := o.session.State
	o.credentialData = s.Data
	if c.Valid == fleet.Yes && o.session.GitHub != nil {
		o.credentialData = withInstallation(s.Data, o.session.Identity.InstallationID)
		copied, err := isolation.Credential(o.e.Name, o.settings.Namespace, o.credentialData)
		if err != nil {
			c = fleet.CredentialState{Valid: fleet.No, Reason: fleet.ReasonInvalid, Message: err.Error()}
		} else {
			c.Fingerprint = fleet.Fingerprint(copied.Data)
		}
	} else if o.session.GitHub == nil {
		c.Fingerprint = fleet.Fingerprint(s.Data)
	}
	o.facts.Credential = c
	o.useManualRunner()
	checkOldCredential(ctx, d, o)
}

// checkOldCredential checks the older credential that the runners still use, if the new credential is not valid.
func checkOldCredential(ctx context.Context, d deps, o *observed) {
	if o.facts.Credential.Valid != fleet.No || o.forge.Spec.Type != v1alpha1.GitHub {
		return
	}
	for _, s := range o.secrets {
		if !isCopy(&s) ||
			!slices.ContainsFunc(
				o.workloads,
				func(w *workload) bool { return w.Namespace == s.Namespace && slices.Contains(w.Copies, s.Name) },
			) {
			continue
		}
		a := d.sessions.get(o.e.Name+"/"+s.Name, o.e, o.forge, s.Data)
		a.check(ctx, o.now, o.live)
		o.wake = retry.Earliest(o.wake, a.nextCheck())
		o.facts.Credential.InUse = a.State.Valid
		if a.State.Valid == fleet.Yes {
			if o.session == nil || o.session.State.Valid == fleet.No {
				o.session = a
			}
			return
		}
	}
}

// isCopy reports whether a Secret is the copy of a GitHub credential.
func isCopy(s *corev1.Secret) bool {
	return s.Labels[v1alpha1.ManagedByLabel] == v1alpha1.ManagedBy && s.Labels[v1alpha1.PoolLabel] == "" &&
		(len(s.Data["github_app_id"]) > 0 || len(s.Data["github_token"]) > 0)
}
