package gateway

import (
	"fmt"
	"slices"
	"strings"
	"time"
)

// NextTailnetAction and TailnetConditions compute the health of a tailnet connection: whether the
// credential is valid, when to prove and check it, and which leftovers of a proof to delete. They
// follow law 7: a transient failure only causes a warning, and a key is recorded before it is
// created.

// ValidationKeyLifetime is the lifetime of a validation key that is not deleted.
const ValidationKeyLifetime = 300 * time.Second

// refusedRetry is the time before a refused credential is tried again if nothing changes.
const refusedRetry = 5 * time.Minute

// Condition types and reasons of a tailnet, as in the API type.
const (
	conditionAuthenticated = "Authenticated"
	conditionValidated     = "Validated"
	conditionReady         = "Ready"
	conditionDegraded      = "Degraded"

	statusTrue, statusFalse, statusUnknown = "True", "False", "Unknown"

	metadataFound = "Tailnet metadata discovered successfully"
)

// ProofPhase is the progress of the proof of a credential.
//
//	Pending -> InProgress -> CleanupPending -> Done
//	   ^           |               |
//	   `-----------+---------------' a leftover key was deleted or has expired
type ProofPhase string

// The phases. The zero value means Pending.
const (
	ProofPending        ProofPhase = "Pending"
	ProofInProgress     ProofPhase = "InProgress"     // a key with the nonce may exist
	ProofCleanupPending ProofPhase = "CleanupPending" // the key with KeyID was created
	ProofDone           ProofPhase = "Done"
)

// A CredentialProof is the state of a proof for one credential and one generation of the spec.
type CredentialProof struct {
	Phase      ProofPhase
	Credential string // version of the credential
	Generation int64
	Nonce      string
	KeyID      string
	At         time.Time
}

// mayHaveKey reports whether a key of this proof may still be valid.
func (p CredentialProof) mayHaveKey(now time.Time) bool {
	return (p.Phase == ProofInProgress || p.Phase == ProofCleanupPending) && now.Before(p.At.Add(ValidationKeyLifetime))
}

// A TailnetCondition is a condition without its times.
type TailnetCondition struct{ Status, Reason, Message string }

// FailureClass classifies a failed request. The values equal those of the tsapi client.
type FailureClass string

// The classes of failures.
const (
	FailureRefused     FailureClass = "Refused"
	FailureNoToken     FailureClass = "NoToken"
	FailureForbidden   FailureClass = "Forbidden"
	FailureInvalid     FailureClass = "Invalid"
	FailureNotFound    FailureClass = "NotFound"
	FailureRateLimited FailureClass = "RateLimited"
	FailureUnavailable FailureClass = "Unavailable"
	FailureCircuitOpen FailureClass = "CircuitOpen"
)

// An APIFailure describes why a request to Tailscale's API failed.
type APIFailure struct {
	Class     FailureClass
	AtToken   bool
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
	CredentialProblem TailnetCondition

	// From the status.
	Proof     CredentialProof
	NextCheck time.Time // time of the next check
	Previous  map[string]TailnetCondition

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

// The actions. After each action except TailnetWait, Next must be called again.
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
			return TailnetWait, f.Proof.At.Add(ValidationKeyLifetime) // without a credential the key cannot be deleted; wait until it expires
		case f.Failure != nil:
			return TailnetWait, earlier(f.Proof.At.Add(ValidationKeyLifetime), now.Add(f.retryDelay()))
		}
		return TailnetDeleteKey, time.Time{}
	}
	proved := f.Proof.Phase == ProofDone && f.Proof.Credential == f.Credential && f.Proof.Generation == f.Generation
	tried := f.Proof.Phase == ProofPending && f.Proof.Credential == f.Credential && f.Proof.Generation == f.Generation
	switch {
	case !f.HasFinalizer && (len(f.Users) > 0 || f.Credential != "" && !proved):
		return TailnetAddFinalizer, time.Time{}
	case f.Credential == "":
		return TailnetWait, time.Time{} // the watch of the credential triggers the next reconcile
	case f.Failure != nil:
		return TailnetWait, now.Add(f.retryDelay())
	case keyRemains:
		return TailnetDeleteKey, time.Time{}
	case f.Proof.Phase == ProofInProgress || f.Proof.Phase == ProofCleanupPending:
		return TailnetForgetKey, time.Time{}
	case tried && now.Before(f.NextCheck):
		return TailnetWait, f.NextCheck
	case !proved:
		return TailnetProveCredential, time.Time{}
	case f.Checked != nil:
		return TailnetWait, now.Add(f.Interval)
	case f.NextCheck.IsZero(), !now.Before(f.NextCheck), f.Previous[conditionReady].Status != statusTrue && f.Previous[conditionValidated].Status != statusFalse:
		return TailnetCheck, time.Time{}
	}
	// A shorter interval applies immediately.
	return TailnetWait, earlier(f.NextCheck, now.Add(max(f.Interval, refusedRetry)))
}

func earlier(a, b time.Time) time.Time {
	if a.Before(b) {
		return a
	}
	return b
}

// retryDelay returns the time to wait after a failure.
func (f TailnetFacts) retryDelay() time.Duration {
	switch f.Failure.Class {
	case FailureRateLimited, FailureUnavailable, FailureCircuitOpen:
		return f.Failure.Wait
	}
	return refusedRetry
}

// Transient reports whether a failure may be transient. A transient failure does not mean that the
// credential is invalid.
func (f *APIFailure) Transient() bool {
	switch f.Class {
	case FailureRefused, FailureNoToken, FailureForbidden, FailureNotFound:
		return false
	case FailureInvalid:
		return !f.CreateKey
	}
	return true
}

// TailnetConditions returns the conditions of a tailnet after a reconcile.
func TailnetConditions(f TailnetFacts) map[string]TailnetCondition {
	keep := func(kind string, otherwise TailnetCondition) TailnetCondition {
		if v, ok := f.Previous[kind]; ok {
			return v
		}
		return otherwise
	}
	pending := TailnetCondition{statusUnknown, "Pending", "The credential is not tested yet."}
	asExpected := TailnetCondition{statusFalse, "AsExpected", ""}
	out := map[string]TailnetCondition{
		conditionAuthenticated: keep(conditionAuthenticated, TailnetCondition{statusUnknown, "Pending", ""}), conditionValidated: keep(conditionValidated, pending),
		conditionReady: keep(conditionReady, TailnetCondition{statusFalse, "Pending", pending.Message}), conditionDegraded: keep(conditionDegraded, asExpected),
	}
	if out[conditionAuthenticated].Reason == "Pending" {
		out[conditionAuthenticated] = TailnetCondition{statusUnknown, "APIUnavailable", pending.Message} // the only reason defined for Unknown
	}
	issued := TailnetCondition{statusTrue, "TokenIssued", "The API issued an access token."}
	failed := func(message string) TailnetCondition { return TailnetCondition{statusFalse, "Failed", message} }
	switch fail := f.Failure; {
	case f.Credential == "":
		out[conditionAuthenticated] = TailnetCondition{statusFalse, f.CredentialProblem.Reason, f.CredentialProblem.Message}
		out[conditionValidated], out[conditionReady], out[conditionDegraded] = pending, failed(f.CredentialProblem.Message), asExpected
	case fail != nil && fail.Transient():
		reason := "APIUnavailable"
		switch fail.Class {
		case FailureRateLimited, FailureCircuitOpen:
			reason = string(fail.Class)
		}
		out[conditionDegraded] = TailnetCondition{statusTrue, reason, fail.Message}
		if f.Previous[conditionReady].Status == statusTrue {
			break // keep the last known good state
		}
		out[conditionReady] = TailnetCondition{statusFalse, "Pending", fail.Message}
		out[conditionValidated] = TailnetCondition{statusUnknown, "APIUnavailable", fail.Message}
		if fail.Class == FailureRateLimited {
			out[conditionValidated] = TailnetCondition{statusUnknown, "RateLimited", fail.Message}
		}
		if out[conditionAuthenticated].Status != statusTrue {
			out[conditionAuthenticated] = TailnetCondition{statusUnknown, "APIUnavailable", fail.Message}
		}
	case fail != nil:
		out[conditionReady], out[conditionDegraded] = failed(fail.Message), asExpected
		out[conditionAuthenticated] = issued
		switch fail.Class {
		case FailureRefused:
			out[conditionAuthenticated], out[conditionValidated] = TailnetCondition{statusFalse, "InvalidCredentials", fail.Message}, pending
		case FailureNoToken:
			out[conditionAuthenticated], out[conditionValidated] = TailnetCondition{statusFalse, "TokenExchangeFailed", fail.Message}, pending
		case FailureForbidden:
			m := fmt.Sprintf("The credential lacks the scope %s: %s", fail.Scope, fail.Message)
			out[conditionValidated], out[conditionReady] = TailnetCondition{statusFalse, "InsufficientPermissions", m}, failed(m)
		case FailureInvalid:
			m := "The credential may not assign the tags of this tailnet: " + fail.Message
			out[conditionValidated], out[conditionReady] = TailnetCondition{statusFalse, "TagsNotPermitted", m}, failed(m)
		case FailureNotFound:
			m := "The API does not know this tailnet: " + fail.Message
			out[conditionValidated], out[conditionReady] = TailnetCondition{statusFalse, "TailnetNotFound", m}, failed(m)
		}
	case f.Checked != nil:
		out[conditionAuthenticated], out[conditionDegraded] = issued, asExpected
		out[conditionValidated] = TailnetCondition{statusTrue, "Ready", metadataFound}
		out[conditionReady] = TailnetCondition{statusTrue, "Ready", metadataFound}
		if TailnetDomain(f.Checked.Names) == "" {
			out[conditionValidated] = TailnetCondition{statusTrue, "NoDevices", "The credential is valid, but the tailnet has no device yet that shows its domain."}
			out[conditionReady] = TailnetCondition{statusTrue, "Ready", out[conditionValidated].Message}
		}
		if f.Checked.ServicesRefused != "" {
			out[conditionDegraded] = TailnetCondition{statusTrue, "PartialScopes", f.Checked.ServicesRefused}
		}
	}
	if f.Deleting {
		m := "It is being deleted."
		if len(f.Users) > 0 {
			m = "It is being deleted, but it is still used by " + joinSome(f.Users) + "."
		} else if f.Failure != nil {
			m = "It is being deleted, but a validation key is not deleted yet: " + f.Failure.Message
		}
		out[conditionReady] = TailnetCondition{statusFalse, "Pending", m}
	}
	return out
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

func isDomain(s string) bool {
	if len(s) > 253 {
		return false
	}
	for label := range strings.SplitSeq(s, ".") {
		if label == "" || len(label) > 63 || strings.Trim(label, "abcdefghijklmnopqrstuvwxyz0123456789-") != "" || label[0] == '-' || label[len(label)-1] == '-' {
			return false
		}
	}
	return true
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
