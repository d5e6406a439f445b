package problem

import (
	"net/http"
	"slices"
)

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

// codesByStatus lists the codes of each HTTP status but 500.
var codesByStatus = map[int][]Code{
	http.StatusAccepted:              {NotReady},
	http.StatusBadRequest:            {BadRequest, BadCapability, AmbiguousRole},
	http.StatusUnauthorized:          {NoIdentity, NodeExpired, InvalidToken, IdentityMismatch},
	http.StatusForbidden:             {CrossOrigin, FunnelRefused, ForeignNode, TaggedNode, NoCapability, RoleNotGranted, RoleNotAllowed, GrantRemoved, NotAMember, NotAuthorized, Forbidden, SelfApproval},
	http.StatusNotFound:              {NotFound, NotSignedIn},
	http.StatusMethodNotAllowed:      {MethodNotAllowed},
	http.StatusConflict:              {Conflict, CannotProvision},
	http.StatusLocked:                {Held},
	http.StatusPreconditionRequired:  {Confirmation},
	http.StatusRequestEntityTooLarge: {TooLarge},
	http.StatusUnsupportedMediaType:  {MediaType},
	http.StatusMisdirectedRequest:    {WrongHost},
	http.StatusUnprocessableEntity:   {PeriodOutOfBounds, Validation},
	http.StatusTooManyRequests:       {RateLimited, TooManySignins},
	http.StatusServiceUnavailable:    {IdentityUnavailable, Ending, Unavailable, AuditUnavailable},
}

// Status returns the HTTP status of c, or 500 for an unknown code.
func (c Code) Status() int {
	for status, codes := range codesByStatus {
		if slices.Contains(codes, c) {
			return status
		}
	}
	return http.StatusInternalServerError
}
