package gateway

import (
	"fmt"
	"slices"
	"strings"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/kube/conditions"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
)

// NextTailnetAction and TailnetConditions compute the health of a tailnet connection: whether the
// credential is valid, when to prove and check it, and which leftovers of a proof to delete. They
// follow law 7: a transient failure only causes a warning, and a key is recorded before it is
// created.

// ValidationKeyLifetime is the lifetime of a validation key that is not deleted.
const ValidationKeyLifetime = 300 * time.Second

// refusedRetry is the time before a refused credential is tried again if nothing changes.
const refusedRetry = 5 * time.Minute

const metadataFound = "Tailnet metadata discovered successfully"

// A CredentialProof is the state of a proof for one credential and one generation of the spec. The zero Phase means
// ValidationPending.
//
//	Pending -> InProgress -> CleanupPending -> Done
//	   ^           |               |
//	   `-----------+---------------' a leftover key was deleted or has expired
type CredentialProof struct {
	Phase      gatewayv1alpha1.ValidationPhase
	Credential string // version of the credential
	Generation int64
	Nonce      string
	KeyID      string
	At         time.Time
}

// mayHaveKey reports whether a key of this proof may still be valid.
func (p CredentialProof) mayHaveKey(now time.Time) bool {
	return (p.Phase == gatewayv1alpha1.ValidationInProgress || p.Phase == gatewayv1alpha1.ValidationCleanupPending) &&
		now.Before(p.At.Add(ValidationKeyLifetime))
}

// An APIFailure describes why a request to Tailscale's API failed.
type APIFailure struct {
	Class     tsapi.Class
	CreateKey bool   // the failed request was the creation of a key
	Scope     string // scope that the request requires
	Message   string
	Wait      time.Duration // before the next try
}

// TailnetFacts are everything known about a tailnet.
type TailnetFacts struct {
	Deleting     bool
	HasFinalizer bool // the finalizer is set
	SkipRemote   bool // an administrator allows removal without cleanup at Tailscale
	Users        []string
	Generation   int64
	Interval     time.Duration // between checks

	// Credential is the version of the credential. If it is empty, CredentialProblem contains the reason.
	Credential        string
	CredentialProblem conditions.Condition

	// From the status.
	Proof     CredentialProof
	NextCheck time.Time // time of the next check
	Previous  map[string]conditions.Condition

	// Results of this reconcile.
	Failure    *APIFailure
	Checked    *CheckResult
	KeyExpired bool // a key expired before it could be deleted
}

// CheckResult is the result of a check.
type CheckResult struct {
	Devices         int // including devices that are shared into the tailnet
	Services        int
	Names           []string // names of the tailnet's own devices with their domain
	ServicesRefused string   // reason if the credential may not list services, otherwise empty
}

// A TailnetAction is the next action.
type TailnetAction string

// The actions. After each action except TailnetWait, NextTailnetAction must be called again.
const (
	TailnetWait            TailnetAction = "rest"    // report, and reconcile again at the returned time
	TailnetAddFinalizer    TailnetAction = "hold"    // add the finalizer
	TailnetProveCredential TailnetAction = "prove"   // create a key and delete it, step by step
	TailnetDeleteKey       TailnetAction = "tidy"    // delete the key that a proof left behind
	TailnetForgetKey       TailnetAction = "forget"  // the key that a proof left behind has expired
	TailnetCheck           TailnetAction = "check"   // read the lists of devices and services
	TailnetRemoveFinalizer TailnetAction = "release" // remove the finalizer
)

// NextTailnetAction returns the next action for a tailnet. For TailnetWait it also returns the time of the next
// reconcile; zero means on change.
func NextTailnetAction(f TailnetFacts, now time.Time) (TailnetAction, time.Time) {
	keyRemains := f.Proof.mayHaveKey(now)
	if f.Deleting {
		switch {
		case !f.HasFinalizer, len(f.Users) > 0:
			return TailnetWait, time.Time{}
		case !keyRemains || f.SkipRemote:
			return TailnetRemoveFinalizer, time.Time{}
		case f.Credential == "":
			return TailnetWait, f.Proof.At.Add(
				ValidationKeyLifetime,
			) // without a credential the key cannot be deleted; wait until it expires
		case f.Failure != nil:
			return TailnetWait, earliest(f.Proof.At.Add(ValidationKeyLifetime), now.Add(f.retryDelay()))
		}
		return TailnetDeleteKey, time.Time{}
	}
	proved := f.Proof.Phase == gatewayv1alpha1.ValidationDone && f.Proof.Credential == f.Credential && f.Proof.Generation == f.Generation
	tried := f.Proof.Phase == gatewayv1alpha1.ValidationPending && f.Proof.Credential == f.Credential && f.Proof.Generation == f.Generation
	switch {
	case !f.HasFinalizer && (len(f.Users) > 0 || f.Credential != "" && !proved):
		return TailnetAddFinalizer, time.Time{}
	case f.Credential == "":
		return TailnetWait, time.Time{} // the watch of the credential triggers the next reconcile
	case f.Failure != nil:
		return TailnetWait, now.Add(f.retryDelay())
	case keyRemains:
		return TailnetDeleteKey, time.Time{}
	case f.Proof.Phase == gatewayv1alpha1.ValidationInProgress || f.Proof.Phase == gatewayv1alpha1.ValidationCleanupPending:
		return TailnetForgetKey, time.Time{}
	case tried && now.Before(f.NextCheck):
		return TailnetWait, f.NextCheck
	case !proved:
		return TailnetProveCredential, time.Time{}
	case f.Checked != nil:
		return TailnetWait, now.Add(f.Interval)
	case f.NextCheck.IsZero(),
		!now.Before(f.NextCheck),
		!f.Previous[gatewayv1alpha1.ConditionReady].IsTrue() && f.Previous[gatewayv1alpha1.ConditionValidated].Status != metav1.ConditionFalse:
		return TailnetCheck, time.Time{}
	}
	// A shorter interval applies immediately.
	return TailnetWait, earliest(f.NextCheck, now.Add(max(f.Interval, refusedRetry)))
}

func earliest(times ...time.Time) time.Time { return slices.MinFunc(times, time.Time.Compare) }

// retryDelay returns the time to wait after a failure.
func (f TailnetFacts) retryDelay() time.Duration {
	switch f.Failure.Class {
	case tsapi.RateLimited, tsapi.Unavailable, tsapi.CircuitOpen:
		return f.Failure.Wait
	}
	return refusedRetry
}

// Transient reports whether a failure may be transient. A transient failure does not mean that the
// credential is invalid.
func (f *APIFailure) Transient() bool {
	switch f.Class {
	case tsapi.Refused, tsapi.NoToken, tsapi.Forbidden, tsapi.NotFound:
		return false
	case tsapi.Invalid:
		return !f.CreateKey
	}
	return true
}

// TailnetConditions returns the conditions of a tailnet after a reconcile, by their type.
func TailnetConditions(f TailnetFacts) map[string]conditions.Condition {
	const authenticated, validated = gatewayv1alpha1.ConditionAuthenticated, gatewayv1alpha1.ConditionValidated
	const ready, degraded = gatewayv1alpha1.ConditionReady, gatewayv1alpha1.ConditionDegraded
	pending := conditions.Unknown(gatewayv1alpha1.ReasonPending, "The credential is not tested yet.")
	asExpected := conditions.False(gatewayv1alpha1.ReasonAsExpected, "")
	failed := func(message string) conditions.Condition {
		return conditions.False(gatewayv1alpha1.ReasonFailed, message)
	}
	out := map[string]conditions.Condition{
		// APIUnavailable is the only reason that Authenticated has for Unknown.
		authenticated: conditions.Unknown(gatewayv1alpha1.ReasonAPIUnavailable, pending.Message), validated: pending,
		ready: conditions.False(gatewayv1alpha1.ReasonPending, pending.Message), degraded: asExpected,
	}
	for kind := range out {
		if was, ok := f.Previous[kind]; ok && (kind != authenticated || was.Reason != gatewayv1alpha1.ReasonPending) {
			out[kind] = was
		}
	}
	issued := conditions.True(gatewayv1alpha1.ReasonTokenIssued, "The API issued an access token.")
	switch fail := f.Failure; {
	case f.Credential == "":
		out[authenticated] = conditions.False(f.CredentialProblem.Reason, f.CredentialProblem.Message)
		out[validated], out[ready], out[degraded] = pending, failed(f.CredentialProblem.Message), asExpected
	case fail != nil && fail.Transient():
		reason := gatewayv1alpha1.ReasonAPIUnavailable
		switch fail.Class {
		case tsapi.RateLimited, tsapi.CircuitOpen:
			reason = string(fail.Class)
		}
		out[degraded] = conditions.True(reason, fail.Message)
		if f.Previous[ready].IsTrue() {
			break // keep the last known good state
		}
		out[ready] = conditions.False(gatewayv1alpha1.ReasonPending, fail.Message)
		out[validated] = conditions.Unknown(gatewayv1alpha1.ReasonAPIUnavailable, fail.Message)
		if fail.Class == tsapi.RateLimited {
			out[validated] = conditions.Unknown(gatewayv1alpha1.ReasonRateLimited, fail.Message)
		}
		if !out[authenticated].IsTrue() {
			out[authenticated] = conditions.Unknown(gatewayv1alpha1.ReasonAPIUnavailable, fail.Message)
		}
	case fail != nil:
		out[authenticated], out[degraded] = issued, asExpected
		reason, message := fail.refusal()
		out[validated], out[ready] = conditions.False(reason, message), failed(message)
		if fail.Class == tsapi.Refused || fail.Class == tsapi.NoToken { // without a token nothing else was tested
			out[authenticated], out[validated] = conditions.False(reason, message), pending
		}
	case f.Checked != nil:
		out[authenticated], out[degraded] = issued, asExpected
		out[validated] = conditions.True(gatewayv1alpha1.ReasonReady, metadataFound)
		if TailnetDomain(f.Checked.Names) == "" {
			out[validated] = conditions.True(
				gatewayv1alpha1.ReasonNoDevices,
				"The credential is valid, but the tailnet has no device yet that shows its domain.",
			)
		}
		out[ready] = conditions.True(gatewayv1alpha1.ReasonReady, out[validated].Message)
		if f.Checked.ServicesRefused != "" {
			out[degraded] = conditions.True(gatewayv1alpha1.ReasonPartialScopes, f.Checked.ServicesRefused)
		}
	}
	if f.Deleting {
		m := "It is being deleted."
		if len(f.Users) > 0 {
			m = "It is being deleted, but it is still used by " + joinSome(f.Users) + "."
		} else if f.Failure != nil {
			m = "It is being deleted, but a validation key is not deleted yet: " + f.Failure.Message
		}
		out[ready] = conditions.False(gatewayv1alpha1.ReasonPending, m)
	}
	return out
}

// refusal returns the reason and the message of a failure that is not transient.
func (f *APIFailure) refusal() (reason, message string) {
	switch f.Class {
	case tsapi.Refused:
		return gatewayv1alpha1.ReasonInvalidCredentials, f.Message
	case tsapi.NoToken:
		return gatewayv1alpha1.ReasonTokenExchangeFailed, f.Message
	case tsapi.Forbidden:
		return gatewayv1alpha1.ReasonInsufficientPermissions, fmt.Sprintf("The credential lacks the scope %s: %s", f.Scope, f.Message)
	case tsapi.Invalid:
		return gatewayv1alpha1.ReasonTagsNotPermitted, "The credential may not assign the tags of this tailnet: " + f.Message
	}
	return gatewayv1alpha1.ReasonTailnetNotFound, "The API does not know this tailnet: " + f.Message
}

// joinSome joins the first names of a list.
func joinSome(names []string) string {
	const most = 5
	names = slices.Sorted(slices.Values(names))
	if len(names) > most {
		return fmt.Sprintf("%s and %d more", strings.Join(names[:most], ", "), len(names)-most)
	}
	return strings.Join(names, ", ")
}

// TailnetDomain returns the MagicDNS domain of a tailnet: the most frequent domain in the names of its
// devices, after the first dot. It returns "" if there is none.
func TailnetDomain(names []string) string {
	votes := map[string]int{}
	for _, name := range names {
		if _, domain, ok := strings.Cut(strings.TrimSuffix(name, "."), "."); ok && isDomain(domain) {
			votes[domain]++
		}
	}
	best := ""
	for domain, n := range votes {
		if best == "" || n > votes[best] || n == votes[best] && domain < best {
			best = domain
		}
	}
	return best
}

// TailnetOrganization guesses from the domain whether a tailnet belongs to a person or to an
// organization. Every tailnet starts with a domain of the first kind. The result is only a hint
// for people, and no decision depends on it.
func TailnetOrganization(domain string) string {
	if hex, ok := strings.CutSuffix(domain, ".ts.net"); ok {
		if hex, ok = strings.CutPrefix(hex, "tail"); ok && hex != "" && strings.Trim(hex, "0123456789abcdef") == "" {
			return "Personal"
		}
	}
	return "Organization"
}
