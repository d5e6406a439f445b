package observe

import (
	"slices"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// The label values with closed sets. A word that is not in its set is counted as "other".

// Refusal is why the adapter itself refuses a request.
type Refusal string

// The refusals.
const (
	RefusedForm          Refusal = "form"          // the request is ambiguous
	RefusedHost          Refusal = "host"          // the request names another host
	RefusedSite          Refusal = "site"          // the request comes from another site's page
	RefusedUpgrade       Refusal = "upgrade"       // an upgrade to an unsupported protocol
	RefusedImpersonation Refusal = "impersonation" // impersonation of another user
	RefusedToken         Refusal = "token"         // a request for a ServiceAccount token
	RefusedDeny          Refusal = "deny"          // a rule denies the request
	RefusedAudit         Refusal = "audit"         // the request must be recorded, and the audit log is down
)

// Refusals returns all of them.
func Refusals() []Refusal {
	return []Refusal{RefusedForm, RefusedHost, RefusedSite, RefusedUpgrade, RefusedImpersonation, RefusedToken, RefusedDeny, RefusedAudit}
}

// AuthFailure is why the local token was not accepted.
type AuthFailure string

// The failures.
const (
	TokenMissing AuthFailure = "missing"
	TokenWrong   AuthFailure = "wrong"
)

// AuthFailures returns both.
func AuthFailures() []AuthFailure { return []AuthFailure{TokenMissing, TokenWrong} }

// Failure is why a cluster gave no response, or a bad one.
type Failure string

// The failures. FailedLimit and FailedUnhealthy come from the adapter itself, before it sends a request.
const (
	FailedConnect    Failure = "connect"
	FailedTLS        Failure = "tls"
	FailedTimeout    Failure = "timeout"
	FailedReset      Failure = "reset"
	FailedStatus     Failure = "status" // 500 or above
	FailedCredential Failure = "credential"
	FailedLimit      Failure = "limit"
	FailedUnhealthy  Failure = "unhealthy"
)

// Failures returns all of them.
func Failures() []Failure {
	return []Failure{FailedConnect, FailedTLS, FailedTimeout, FailedReset, FailedStatus, FailedCredential, FailedLimit, FailedUnhealthy}
}

// Expiry is why a merged watch ended with 410.
type Expiry string

// The expiries.
const (
	ExpiredMember Expiry = "member"  // a member no longer has the requested resourceVersion
	ExpiredEpoch  Expiry = "epoch"   // the configuration's epoch was raised
	ExpiredMoved  Expiry = "moved"   // another cluster serves the collection now
	ExpiredPlain  Expiry = "unknown" // a resourceVersion that was never issued, or too long ago
)

// Expiries returns all of them.
func Expiries() []Expiry {
	return []Expiry{ExpiredMember, ExpiredEpoch, ExpiredMoved, ExpiredPlain}
}

// Bookmark is the reason for a bookmark in a merged watch.
type Bookmark string

// The reasons.
const (
	BookmarkInitial Bookmark = "initial" // the client has all initial objects
	BookmarkJoin    Bookmark = "join"    // before the first objects of a joining member
	BookmarkBurst   Bookmark = "burst"   // after a burst of events
	BookmarkBusy    Bookmark = "busy"    // during continuous events
	BookmarkIdle    Bookmark = "idle"
	BookmarkEnd     Bookmark = "end" // before the stream ends
)

// Bookmarks returns all of them.
func Bookmarks() []Bookmark {
	return []Bookmark{BookmarkInitial, BookmarkJoin, BookmarkBurst, BookmarkBusy, BookmarkIdle, BookmarkEnd}
}

// Lookup is how the owner of an object was found.
type Lookup string

// The results.
const (
	OwnerLearned  Lookup = "learned"
	OwnerProbed   Lookup = "probed"
	OwnerAbsent   Lookup = "absent"
	OwnerConflict Lookup = "conflict"
)

// Lookups returns all of them.
func Lookups() []Lookup { return []Lookup{OwnerLearned, OwnerProbed, OwnerAbsent, OwnerConflict} }

// Conflict is the treatment of an object that several clusters have.
type Conflict string

// The results.
const (
	ConflictRejected  Conflict = "reject"
	ConflictPreferred Conflict = "prefer"
)

// Conflicts returns both.
func Conflicts() []Conflict { return []Conflict{ConflictRejected, ConflictPreferred} }

// Partial is how a merged response treats a missing member.
type Partial string

// PartialSkip leaves the member out.
const PartialSkip Partial = "skip"

// Partials returns all of them.
func Partials() []Partial { return []Partial{PartialSkip} }

// Cache is the name of a cache.
type Cache string

// The caches. None of them holds objects.
const (
	CacheDiscovery Cache = "discovery"
	CacheOpenAPI   Cache = "openapi"
	CacheOwner     Cache = "owner"
)

// Caches returns all of them.
func Caches() []Cache { return []Cache{CacheDiscovery, CacheOpenAPI, CacheOwner} }

// Stream is the kind of a response that continues until the client disconnects.
type Stream string

// The streams.
const (
	StreamWatch       Stream = "watch"
	StreamLog         Stream = "log"
	StreamExec        Stream = "exec"
	StreamAttach      Stream = "attach"
	StreamPortForward Stream = "portforward"
	StreamProxy       Stream = "proxy"
)

// Streams returns all of them.
func Streams() []Stream {
	return []Stream{StreamWatch, StreamLog, StreamExec, StreamAttach, StreamPortForward, StreamProxy}
}

// StreamOf returns the kind of stream that a request opens, or "".
func StreamOf(req *apiproxy.Request) Stream {
	switch {
	case req == nil || req.NonResource:
		return ""
	case req.Verb == "watch":
		return StreamWatch
	case slices.Contains(Streams()[1:], Stream(req.Subresource)):
		return Stream(req.Subresource)
	}
	return ""
}

// Guarded reports whether a request must be recorded, because it gives access to a container or a node, or
// requests a credential.
func Guarded(req *apiproxy.Request) bool {
	switch StreamOf(req) {
	case StreamExec, StreamAttach, StreamPortForward, StreamProxy:
		return true
	}
	return req != nil && req.Verb == "create" && req.Group == "" && req.Resource == "serviceaccounts" && req.Subresource == "token"
}

// other replaces every word that is not in its set.
const other = "other"

// word returns w as a label value.
func word[T ~string](w T, known []T) string {
	if slices.Contains(known, w) {
		return string(w)
	}
	return other
}
