package signin

import (
	"net/http"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/httpapi"
)

// A LoginRequest is the caller's choice among the granted roles. All fields are optional.
type LoginRequest struct {
	Role       string           `json:"role,omitempty" doc:"one of the granted roles; without it, the rule of highest priority is used"`
	Period     httpapi.Duration `json:"period,omitzero" doc:"at most the granted period; without it, the granted one"`
	Namespaces []string         `json:"namespaces,omitempty" doc:"restricts the granted access to these namespaces"`
}

// AuditArgs returns the request's parameters for the audit log.
func (r LoginRequest) AuditArgs() map[string]string {
	args := map[string]string{}
	if r.Role != "" {
		args["role"] = r.Role
	}
	if r.Period != 0 {
		args["period"] = time.Duration(r.Period).String()
	}
	if len(r.Namespaces) > 0 {
		args["namespaces"] = strings.Join(r.Namespaces, ",")
	}
	return args
}

// A ReadRequest has no parameters.
type ReadRequest struct{}

// A KubeconfigRequest can wait until the sign-in is ready.
type KubeconfigRequest struct {
	Wait httpapi.Duration `json:"-" query:"wait" doc:"how long to wait for the sign-in to become ready; the server limits it to api.maxWait"`
}

// A LogoutRequest can wait until the access is gone.
type LogoutRequest struct {
	Wait httpapi.Duration `json:"-" query:"wait" doc:"how long to wait until the access has ended; default 2s"`
}

// A State is the state of a sign-in as callers see it.
type State string

// The states. Refused means that the operator does not provision the sign-in.
const (
	Pending State = "pending"
	Ready   State = "ready"
	Refused State = "refused"
	Ending  State = "ending"
	Ended   State = "ended"
)

// A Status is a sign-in as callers see it. Username, Role and Until are strings that are always
// present, because existing clients read them.
type Status struct {
	Username          string    `json:"username" doc:"the full login; node:<name> for a tagged node"`
	Role              string    `json:"role" doc:"the bound role; while pending, the requested role"`
	Until             string    `json:"until" doc:"end of the sign-in, RFC 3339, UTC"`
	State             State     `json:"state" enum:"pending,ready,refused,ending,ended"`
	Provisioned       bool      `json:"provisioned" doc:"whether the sign-in gives access"`
	Name              string    `json:"name" doc:"name of the TkaSignin object"`
	Device            string    `json:"device"`
	Namespaces        []string  `json:"namespaces" null:"never" doc:"where the role applies; none: the whole cluster"`
	MissingNamespaces []string  `json:"missingNamespaces" null:"never" doc:"granted namespaces that the cluster does not have; the role is bound when they appear"`
	Clamped           bool      `json:"clamped" doc:"the granted period was reduced to the server's longest period"`
	Cluster           string    `json:"cluster"`
	StartedAt         time.Time `json:"startedAt"`
	Reason            string    `json:"reason,omitempty" doc:"why the sign-in is refused: a reason of the TkaSignin's Ready condition, such as ClockSkew; only in the state refused"`
	Message           string    `json:"message,omitempty" doc:"the reason as a sentence"`

	retryAfter time.Duration
}

// AuditObject returns the name of the sign-in for the audit log.
func (s Status) AuditObject() string { return s.Name }

// EncodeResponse returns 202 with Retry-After while the sign-in is pending, and 200 otherwise.
func (s Status) EncodeResponse(string) (httpapi.Response, error) {
	if s.State == Pending {
		return httpapi.Response{Status: http.StatusAccepted, RetryAfter: s.retryAfter, Body: s}, nil
	}
	return httpapi.Response{Status: http.StatusOK, Body: s}, nil
}

// Accepted is the response to a login. It is always 202, because the operator provisions the
// sign-in later.
type Accepted struct{ Status }

// EncodeResponse returns 202.
func (a Accepted) EncodeResponse(string) (httpapi.Response, error) {
	return httpapi.Response{Status: http.StatusAccepted, RetryAfter: a.retryAfter, Body: a.Status}, nil
}
