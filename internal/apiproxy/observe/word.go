package observe

import (
	"slices"

	"github.com/tailplane/tailplane/internal/apiproxy"
)

// The label values that are words of ours. Each set is closed: a word that is
// not in it is counted as "other".

// A Refusal is why the adapter itself says no.
type Refusal string

// The refusals.
const (
	RefusedForm          Refusal = "form"          // cannot be read in one way only
	RefusedHost          Refusal = "host"          // names another host
	RefusedSite          Refusal = "site"          // of another site's page
	RefusedUpgrade       Refusal = "upgrade"       // to a protocol that is not spoken
	RefusedImpersonation Refusal = "impersonation" // as somebody else
	RefusedToken         Refusal = "token"         // for the token of a ServiceAccount
	RefusedDeny          Refusal = "deny"          // by a rule
	RefusedAudit         Refusal = "audit"         // may not go unrecorded, and the record is down
)

// Refusals returns all of them.
func Refusals() []Refusal {
	return []Refusal{RefusedForm, RefusedHost, RefusedSite, RefusedUpgrade, RefusedImpersonation, RefusedToken, RefusedDeny, RefusedAudit}
}

// An AuthFailure is why the local token did not open the adapter.
type AuthFailure string

// The failures.
const (
	TokenMissing AuthFailure = "missing"
	TokenWrong   AuthFailure = "wrong"
)

// AuthFailures returns both.
func AuthFailures() []AuthFailure { return []AuthFailure{TokenMissing, TokenWrong} }

// A Failure is why a cluster gave no answer, or a bad one.
type Failure string

// The failures. Those that the adapter itself causes before it asks are Limited
// and Unhealthy.
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

// An Expiry is why a merged watch ended with 410.
type Expiry string

// The expiries.
const (
	ExpiredMember Expiry = "member"  // a member no longer has what is asked for
	ExpiredEpoch  Expiry = "epoch"   // the document's epoch was raised
	ExpiredMoved  Expiry = "moved"   // the collection is served elsewhere now
	ExpiredPlain  Expiry = "unknown" // a version that was never handed out, or too long ago
)

// Expiries returns all of them.
func Expiries() []Expiry {
	return []Expiry{ExpiredMember, ExpiredEpoch, ExpiredMoved, ExpiredPlain}
}

// A Bookmark is why one was sent on a merged watch.
type Bookmark string

// The reasons.
const (
	BookmarkInitial Bookmark = "initial" // all that was there at the start has been sent
	BookmarkJoin    Bookmark = "join"    // before the first objects of a member that joins
	BookmarkBurst   Bookmark = "burst"   // after events
	BookmarkBusy    Bookmark = "busy"    // among events that do not stop
	BookmarkIdle    Bookmark = "idle"
	BookmarkEnd     Bookmark = "end" // before the stream ends
)

// Bookmarks returns all of them.
func Bookmarks() []Bookmark {
	return []Bookmark{BookmarkInitial, BookmarkJoin, BookmarkBurst, BookmarkBusy, BookmarkIdle, BookmarkEnd}
}

// A Lookup is how the owner of an object was found.
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

// A Conflict is what became of an object that several clusters have.
type Conflict string

// The results.
const (
	ConflictRejected  Conflict = "reject"
	ConflictPreferred Conflict = "prefer"
)

// Conflicts returns both.
func Conflicts() []Conflict { return []Conflict{ConflictRejected, ConflictPreferred} }

// A Partial is how a merged answer did without a member.
type Partial string

// PartialSkip leaves the member out.
const PartialSkip Partial = "skip"

// Partials returns all of them.
func Partials() []Partial { return []Partial{PartialSkip} }

// A Cache is one of the things that are kept.
type Cache string

// The caches. Objects are never in one.
const (
	CacheDiscovery Cache = "discovery"
	CacheOpenAPI   Cache = "openapi"
	CacheOwner     Cache = "owner"
)

// Caches returns all of them.
func Caches() []Cache { return []Cache{CacheDiscovery, CacheOpenAPI, CacheOwner} }

// A Stream is a kind of answer that goes on for as long as somebody listens.
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

// StreamOf returns what kind of stream a request asks for, or "".
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

// Guarded says whether a request may not go unrecorded: it opens a way into a
// container or a node, or asks for a credential.
func Guarded(req *apiproxy.Request) bool {
	switch StreamOf(req) {
	case StreamExec, StreamAttach, StreamPortForward, StreamProxy:
		return true
	}
	return req != nil && req.Verb == "create" && req.Group == "" && req.Resource == "serviceaccounts" && req.Subresource == "token"
}

// other stands for every word that is not in its set.
const other = "other"

// word returns w as a label's value.
func word[T ~string](w T, known []T) string {
	if slices.Contains(known, w) {
		return string(w)
	}
	return other
}
