package apiproxy

import (
	"slices"
)

// The label values with closed sets. A word that is not in its set is counted as "other".

// RefusalReason is why the adapter itself refuses a request.
type RefusalReason string

// The refusals.
const (
	RefusedForm          RefusalReason = "form"          // the request is ambiguous
	RefusedHost          RefusalReason = "host"          // the request names another host
	RefusedSite          RefusalReason = "site"          // the request comes from another site's page
	RefusedUpgrade       RefusalReason = "upgrade"       // an upgrade to an unsupported protocol
	RefusedImpersonation RefusalReason = "impersonation" // impersonation of another user
	RefusedToken         RefusalReason = "token"         // a request for a ServiceAccount token
	RefusedDeny          RefusalReason = "deny"          // a rule denies the request
	RefusedAudit         RefusalReason = "audit"         // the request must be recorded, and the audit log is down
)

// RefusalReasons returns all of them.
func RefusalReasons() []RefusalReason {
	return []RefusalReason{
		RefusedForm,
		RefusedHost,
		RefusedSite,
		RefusedUpgrade,
		RefusedImpersonation,
		RefusedToken,
		RefusedDeny,
		RefusedAudit,
	}
}

// AuthFailureReason is why the local token was not accepted.
type AuthFailureReason string

// The failures.
const (
	TokenMissing AuthFailureReason = "missing"
	TokenWrong   AuthFailureReason = "wrong"
)

// AuthFailureReasons returns both.
func AuthFailureReasons() []AuthFailureReason { return []AuthFailureReason{TokenMissing, TokenWrong} }

// CallFailure is why a cluster gave no response, or a bad one.
type CallFailure string

// The failures. FailedLimit and FailedUnhealthy come from the adapter itself, before it sends a request.
const (
	FailedConnect    CallFailure = "connect"
	FailedTLS        CallFailure = "tls"
	FailedTimeout    CallFailure = "timeout"
	FailedReset      CallFailure = "reset"
	FailedStatus     CallFailure = "status" // 500 or above
	FailedCredential CallFailure = "credential"
	FailedLimit      CallFailure = "limit"
	FailedUnhealthy  CallFailure = "unhealthy"
)

// CallFailures returns all of them.
func CallFailures() []CallFailure {
	return []CallFailure{FailedConnect, FailedTLS, FailedTimeout, FailedReset, FailedStatus, FailedCredential, FailedLimit, FailedUnhealthy}
}

// WatchExpiry is why a merged watch ended with 410.
type WatchExpiry string

// The expiries.
const (
	ExpiredMember WatchExpiry = "member"  // a member no longer has the requested resourceVersion
	ExpiredEpoch  WatchExpiry = "epoch"   // the configuration's epoch was raised
	ExpiredMoved  WatchExpiry = "moved"   // another cluster serves the collection now
	ExpiredPlain  WatchExpiry = "unknown" // a resourceVersion that was never issued, or too long ago
)

// WatchExpiries returns all of them.
func WatchExpiries() []WatchExpiry {
	return []WatchExpiry{ExpiredMember, ExpiredEpoch, ExpiredMoved, ExpiredPlain}
}

// BookmarkReason is the reason for a bookmark in a merged watch.
type BookmarkReason string

// The reasons.
const (
	BookmarkInitial BookmarkReason = "initial" // the client has all initial objects
	BookmarkJoin    BookmarkReason = "join"    // before the first objects of a joining member
	BookmarkBurst   BookmarkReason = "burst"   // after a burst of events
	BookmarkBusy    BookmarkReason = "busy"    // during continuous events
	BookmarkIdle    BookmarkReason = "idle"
	BookmarkEnd     BookmarkReason = "end" // before the stream ends
)

// BookmarkReasons returns all of them.
func BookmarkReasons() []BookmarkReason {
	return []BookmarkReason{BookmarkInitial, BookmarkJoin, BookmarkBurst, BookmarkBusy, BookmarkIdle, BookmarkEnd}
}

// LookupResult is how the owner of an object was found.
type LookupResult string

// The results.
const (
	OwnerLearned  LookupResult = "learned"
	OwnerProbed   LookupResult = "probed"
	OwnerAbsent   LookupResult = "absent"
	OwnerConflict LookupResult = "conflict"
)

// LookupResults returns all of them.
func LookupResults() []LookupResult {
	return []LookupResult{OwnerLearned, OwnerProbed, OwnerAbsent, OwnerConflict}
}

// ConflictResult is the treatment of an object that several clusters have.
type ConflictResult string

// The results.
const (
	ConflictRejected  ConflictResult = "reject"
	ConflictPreferred ConflictResult = "prefer"
)

// ConflictResults returns both.
func ConflictResults() []ConflictResult { return []ConflictResult{ConflictRejected, ConflictPreferred} }

// PartialReason is how a merged response treats a missing member.
type PartialReason string

// PartialSkip leaves the member out.
const PartialSkip PartialReason = "skip"

// PartialReasons returns all of them.
func PartialReasons() []PartialReason { return []PartialReason{PartialSkip} }

// CacheName is the name of a cache.
type CacheName string

// The caches. None of them holds objects.
const (
	CacheDiscovery CacheName = "discovery"
	CacheOpenAPI   CacheName = "openapi"
	CacheOwner     CacheName = "owner"
)

// CacheNames returns all of them.
func CacheNames() []CacheName { return []CacheName{CacheDiscovery, CacheOpenAPI, CacheOwner} }

// StreamKind is the kind of a response that continues until the client disconnects.
type StreamKind string

// The streams.
const (
	StreamWatch       StreamKind = "watch"
	StreamLog         StreamKind = "log"
	StreamExec        StreamKind = "exec"
	StreamAttach      StreamKind = "attach"
	StreamPortForward StreamKind = "portforward"
	StreamProxy       StreamKind = "proxy"
)

// StreamKindOf returns the kind of stream that a request opens, or "".
func StreamKindOf(req *Request) StreamKind {
	switch {
	case req == nil || req.NonResource:
		return ""
	case req.Verb == "watch":
		return StreamWatch
	case req.HasStreamSubresource():
		return StreamKind(req.Subresource)
	}
	return ""
}

// NeedsAudit reports whether a request must be recorded, because it gives access to a container or a node, or
// requests a credential.
func NeedsAudit(req *Request) bool {
	switch StreamKindOf(req) {
	case StreamExec, StreamAttach, StreamPortForward, StreamProxy:
		return true
	}
	return req != nil && req.Verb == "create" && req.Group == "" && req.Resource == "serviceaccounts" && req.Subresource == "token"
}

// otherLabel replaces every word that is not in its set.
const otherLabel = "other"

// label returns w as a label value.
func label[T ~string](w T, known []T) string {
	if slices.Contains(known, w) {
		return string(w)
	}
	return otherLabel
}
