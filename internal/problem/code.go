package problem

import "net/http"

// A Code is the stable name of a refusal. Machines branch on it, the documentation has an anchor
// for it, and metrics use it as a label. The set is closed.
type Code string

// The first group is in the order of the HTTP server's checks.
const (
	WrongHost           Code = "wrong_host"
	CrossOrigin         Code = "cross_origin"
	FunnelRefused       Code = "funnel_refused"
	NoIdentity          Code = "no_identity"
	IdentityUnavailable Code = "identity_unavailable"
	NodeExpired         Code = "node_expired"
	RateLimited         Code = "rate_limited"
	ForeignNode         Code = "foreign_node"
	TaggedNode          Code = "tagged_node"
	NoCapability        Code = "no_capability"
	BadCapability       Code = "bad_capability"
	AmbiguousRole       Code = "ambiguous_role"
	RoleNotGranted      Code = "role_not_granted"
	RoleNotAllowed      Code = "role_not_allowed"
	PeriodOutOfBounds   Code = "period_out_of_bounds"

	BadRequest       Code = "bad_request"
	NotFound         Code = "not_found"
	MethodNotAllowed Code = "method_not_allowed"
	TooLarge         Code = "too_large"
	MediaType        Code = "unsupported_media_type"

	NotAMember       Code = "not_a_member"
	NotSignedIn      Code = "not_signed_in"
	NotReady         Code = "not_ready"
	GrantRemoved     Code = "grant_removed"
	CannotProvision  Code = "cannot_provision"
	TooManySignins   Code = "too_many_signins"
	Ending           Code = "ending"
	Conflict         Code = "conflict"
	Unavailable      Code = "unavailable"
	AuditUnavailable Code = "audit_unavailable"
	Internal         Code = "internal"
)

// The codes of the operator plane, whose callers have roles per organisation instead of grants to
// choose from.
const (
	InvalidToken     Code = "invalid_token"
	IdentityMismatch Code = "identity_mismatch"
	NotAuthorized    Code = "not_authorized_user" // no role at all
	Forbidden        Code = "forbidden"           // a role, but not for this action
	Validation       Code = "validation"
	Held             Code = "held"                  // another hold is in force
	Confirmation     Code = "confirmation_required" // the request has wide effect and must be confirmed
	SelfApproval     Code = "self_approval"         // authors must not approve their own changes
)

// Codes returns all codes, in the order of the documentation.
func Codes() []Code {
	return []Code{
		WrongHost, CrossOrigin, FunnelRefused, NoIdentity, IdentityUnavailable, NodeExpired, RateLimited,
		ForeignNode, TaggedNode, NoCapability, BadCapability, AmbiguousRole, RoleNotGranted, RoleNotAllowed, PeriodOutOfBounds,
		BadRequest, NotFound, MethodNotAllowed, TooLarge, MediaType,
		NotAMember, NotSignedIn, NotReady, GrantRemoved, CannotProvision, TooManySignins, Ending, Conflict, Unavailable, AuditUnavailable, Internal,
		InvalidToken, IdentityMismatch, NotAuthorized, Forbidden, Validation, Held, Confirmation, SelfApproval,
	}
}

// Status returns the HTTP status of c, or 500 for an unknown code.
func (c Code) Status() int {
	switch c {
	case NotReady:
		return http.StatusAccepted
	case BadRequest, BadCapability, AmbiguousRole:
		return http.StatusBadRequest
	case NoIdentity, NodeExpired, InvalidToken, IdentityMismatch:
		return http.StatusUnauthorized
	case CrossOrigin, FunnelRefused, ForeignNode, TaggedNode, NoCapability, RoleNotGranted, RoleNotAllowed, GrantRemoved, NotAMember, NotAuthorized, Forbidden, SelfApproval:
		return http.StatusForbidden
	case NotFound, NotSignedIn:
		return http.StatusNotFound
	case MethodNotAllowed:
		return http.StatusMethodNotAllowed
	case Conflict, CannotProvision:
		return http.StatusConflict
	case Held:
		return http.StatusLocked
	case Confirmation:
		return http.StatusPreconditionRequired
	case TooLarge:
		return http.StatusRequestEntityTooLarge
	case MediaType:
		return http.StatusUnsupportedMediaType
	case WrongHost:
		return http.StatusMisdirectedRequest
	case PeriodOutOfBounds, Validation:
		return http.StatusUnprocessableEntity
	case RateLimited, TooManySignins:
		return http.StatusTooManyRequests
	case IdentityUnavailable, Ending, Unavailable, AuditUnavailable:
		return http.StatusServiceUnavailable
	}
	return http.StatusInternalServerError
}
