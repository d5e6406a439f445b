// Package problem defines errors that may be shown to callers: a code for machines, a message for
// people, and advice. Every other error appears to callers as "internal error", and in full in the
// log.
package problem

import (
	"errors"
	"fmt"
	"net/http"
	"slices"
	"time"
)

// An Error is a refusal or failure that is safe to show to the caller. It contains no secret, file
// name, stack trace or data of other people.
//
// Clients of the sign-in API show the message and the advice of its JSON form to people.
type Error struct {
	Code    Code     `json:"code"`
	Message string   `json:"message"`
	Advice  []string `json:"advice"`
	// AuditID is the ID of the request's audit entry. The HTTP server sets it.
	AuditID string `json:"auditId,omitempty"`
	// Choices are the values that the caller could have chosen, if there were several.
	Choices []Choice `json:"choices,omitempty"`
	// Field is the invalid field or parameter.
	Field string `json:"field,omitempty"`
	// Needed is the right that is missing. Have lists the caller's roles, such as "operator@acme".
	Needed *Need    `json:"needed,omitempty"`
	Have   []string `json:"have,omitempty"`
	// Seen is the identity of a caller without a role.
	Seen *Seen `json:"seen,omitempty"`
	// Confirm says how to confirm a request with wide effect.
	Confirm *Confirm `json:"confirm,omitempty"`
	// State is the state of the sign-in, if the request must be repeated later.
	State string `json:"state,omitempty"`
	// RetryAfter is the minimum time before the next attempt. It is sent as the Retry-After header
	// in whole seconds.
	RetryAfter time.Duration `json:"-"`

	cause error
}

// A Choice is one of several grants that the caller may choose.
type Choice struct {
	Rule       string   `json:"rule,omitempty"`       // name of the rule, if it has one
	Role       string   `json:"role"`                 // several roles are separated by commas
	Namespaces []string `json:"namespaces,omitempty"` // empty: the whole cluster
	Where      string   `json:"where,omitempty"`      // of several roles or a selector: each role and where it applies
	Period     string   `json:"period"`               // Go duration
}

// A Need is a verb and the organisation that it is needed for.
type Need struct {
	Verb string `json:"verb"`
	Org  string `json:"org,omitempty"` // "": all organisations
}

// A Seen is a caller as the tailnet names it.
type Seen struct {
	Login string `json:"login"` // "" for a tagged node
	Node  string `json:"node"`
	Via   string `json:"via"`
}

// A Confirm describes how to confirm a request: repeat it with the phrase, or with the code that a
// person gets on a page.
type Confirm struct {
	Phrase  string    `json:"phrase,omitempty"`  // send this as "confirm"
	ID      string    `json:"id,omitempty"`      // ID of the change that a person must confirm
	Path    string    `json:"path,omitempty"`    // path of the confirmation page on the dashboard
	Targets *int      `json:"targets,omitempty"` // number of affected objects; nil: unknown
	Until   time.Time `json:"until"`
}

// New returns an Error. The message and the advice are shown to the caller.
func New(code Code, message string, advice ...string) *Error {
	return &Error{Code: code, Message: message, Advice: advice}
}

// WithCause returns a copy of e with an internal cause. Only the log shows the cause.
func (e *Error) WithCause(cause error) *Error {
	c := *e
	c.cause = cause
	return &c
}

// WithRetryAfter returns a copy of e with RetryAfter set to d.
func (e *Error) WithRetryAfter(d time.Duration) *Error {
	c := *e
	c.RetryAfter = d
	return &c
}

// Error returns the message for the caller.
func (e *Error) Error() string { return e.Message }

// Unwrap returns the internal cause, which callers never see.
func (e *Error) Unwrap() error { return e.cause }

// Cause returns the internal cause, for the log.
func (e *Error) Cause() error { return e.cause }

// From returns the *Error in err. If there is none, it returns an Error with the code Internal and
// err as its cause. It returns nil for a nil err.
func From(err error) *Error {
	if err == nil {
		return nil
	}
	if e, ok := errors.AsType[*Error](err); ok {
		return e
	}
	return New(Internal, "internal error",
		"Try again. If the problem persists, send the audit id to the administrator of this server.").WithCause(err)
}

// CodeOf returns the code of err, or "" for nil.
func CodeOf(err error) Code {
	if err == nil {
		return ""
	}
	return From(err).Code
}

// Plural returns a count with its noun, such as "1 rule" or "3 rules".
func Plural(n int, noun string) string {
	if n == 1 {
		return "1 " + noun
	}
	return fmt.Sprintf("%d %ss", n, noun)
}

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
	IdentityAmbiguous   Code = "identity_ambiguous"
	SubnetRouter        Code = "subnet_router"
	RateLimited         Code = "rate_limited"
	ForeignNode         Code = "foreign_node"
	TaggedNode          Code = "tagged_node"
	NoCapability        Code = "no_capability"
	BadCapability       Code = "bad_capability"
	AmbiguousRole       Code = "ambiguous_role"
	RoleNotGranted      Code = "role_not_granted"
	RoleNotAllowed      Code = "role_not_allowed"
	RoleNeedsNamespaces Code = "role_needs_namespaces"
	PeriodOutOfBounds   Code = "period_out_of_bounds"
	ReasonRequired      Code = "reason_required"
	TokenRequired       Code = "token_required"
	TokenRefused        Code = "token_refused"

	BadRequest       Code = "bad_request"
	NotFound         Code = "not_found"
	MethodNotAllowed Code = "method_not_allowed"
	TooLarge         Code = "too_large"
	MediaType        Code = "unsupported_media_type"

	NotAMember       Code = "not_a_member"
	NotAProxy        Code = "not_a_proxy"
	NotSignedIn      Code = "not_signed_in"
	NotReady         Code = "not_ready"
	GrantRemoved     Code = "grant_removed"
	ProxyOnly        Code = "proxy_only"
	CannotProvision  Code = "cannot_provision"
	TooManySignins   Code = "too_many_signins"
	Ending           Code = "ending"
	Conflict         Code = "conflict"
	Unavailable      Code = "unavailable"
	AuditUnavailable Code = "audit_unavailable"
	Internal         Code = "internal"
)

// The codes of access requests.
const (
	NotEnabled          Code = "not_enabled"
	ApprovalRequired    Code = "approval_required" // the role is given by an access request only
	NotApproved         Code = "not_approved"
	RequestOver         Code = "request_over"    // it was decided, used or has expired
	RequestChanged      Code = "request_changed" // the caller saw another request than the stored one
	TooManyRequests     Code = "too_many_requests"
	OperatorUnavailable Code = "operator_unavailable"
	ClockSkew           Code = "clock_skew"
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
		WrongHost, CrossOrigin, FunnelRefused, NoIdentity, IdentityUnavailable, NodeExpired, IdentityAmbiguous, SubnetRouter, RateLimited,
		ForeignNode, TaggedNode, NoCapability, BadCapability, AmbiguousRole, RoleNotGranted, RoleNotAllowed, RoleNeedsNamespaces, PeriodOutOfBounds, ReasonRequired,
		TokenRequired, TokenRefused,
		BadRequest, NotFound, MethodNotAllowed, TooLarge, MediaType,
		NotAMember, NotAProxy, NotSignedIn, NotReady, GrantRemoved, ProxyOnly, CannotProvision, TooManySignins, Ending, Conflict, Unavailable, AuditUnavailable, Internal,
		NotEnabled, ApprovalRequired, NotApproved, RequestOver, RequestChanged, TooManyRequests, OperatorUnavailable, ClockSkew,
		InvalidToken, IdentityMismatch, NotAuthorized, Forbidden, Validation, Held, Confirmation, SelfApproval,
	}
}

// codesByStatus lists the codes of each HTTP status but 500.
var codesByStatus = map[int][]Code{
	http.StatusAccepted:              {NotReady},
	http.StatusBadRequest:            {BadRequest, BadCapability, AmbiguousRole},
	http.StatusUnauthorized:          {NoIdentity, NodeExpired, InvalidToken, IdentityMismatch},
	http.StatusForbidden:             {CrossOrigin, FunnelRefused, IdentityAmbiguous, SubnetRouter, ForeignNode, TaggedNode, NoCapability, RoleNotGranted, RoleNotAllowed, RoleNeedsNamespaces, TokenRequired, TokenRefused, GrantRemoved, ProxyOnly, ApprovalRequired, NotApproved, NotAMember, NotAProxy, NotAuthorized, Forbidden, SelfApproval},
	http.StatusNotFound:              {NotFound, NotSignedIn, NotEnabled},
	http.StatusMethodNotAllowed:      {MethodNotAllowed},
	http.StatusConflict:              {Conflict, CannotProvision, RequestOver, RequestChanged},
	http.StatusLocked:                {Held},
	http.StatusPreconditionRequired:  {Confirmation},
	http.StatusRequestEntityTooLarge: {TooLarge},
	http.StatusUnsupportedMediaType:  {MediaType},
	http.StatusMisdirectedRequest:    {WrongHost},
	http.StatusUnprocessableEntity:   {PeriodOutOfBounds, ReasonRequired, Validation},
	http.StatusTooManyRequests:       {RateLimited, TooManySignins, TooManyRequests},
	http.StatusServiceUnavailable:    {IdentityUnavailable, Ending, Unavailable, AuditUnavailable, OperatorUnavailable, ClockSkew},
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
