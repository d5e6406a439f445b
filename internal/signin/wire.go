package signin

import (
	"net/http"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/door"
)

// Base is where the sign-in API lies.
const Base = "/api/v1alpha1"

// The operations on sign-ins: both ends are made from these.
var (
	Login = door.Op[LoginRequest, Accepted]{
		Pattern: "POST " + Base + "/login", Verb: access.SigninLogin,
		Doc: "Sign in, or extend the sign-in of this device.",
	}
	Read = door.Op[ReadRequest, Status]{
		Pattern: "GET " + Base + "/login", Verb: access.SigninRead,
		Doc: "Show the sign-in of this device.",
	}
	GetKubeconfig = door.Op[KubeconfigRequest, Kubeconfig]{
		Pattern: "GET " + Base + "/kubeconfig", Verb: access.SigninKubeconfig,
		Doc: "Return a kubeconfig with a fresh token that is stored nowhere.",
	}
	Logout = door.Op[LogoutRequest, Status]{
		Pattern: "POST " + Base + "/logout", Verb: access.SigninLogout,
		Doc: "End the sign-in of this device.",
	}
)

// A LoginRequest says what the caller wants among what is granted. All of it
// may be left out.
type LoginRequest struct {
	Role       string        `json:"role,omitempty"`
	Period     door.Duration `json:"period,omitzero"`      // Go duration
	Namespaces []string      `json:"namespaces,omitempty"` // narrows
}

// AuditArgs tells the record what was asked for.
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

// A ReadRequest asks for nothing more than the operation says.
type ReadRequest struct{}

// A KubeconfigRequest may wait for the sign-in to become ready.
type KubeconfigRequest struct {
	Wait door.Duration `json:"-" query:"wait"`
}

// A LogoutRequest may wait for the access to be gone.
type LogoutRequest struct {
	Wait door.Duration `json:"-" query:"wait"`
}

// A State is where a sign-in stands, as callers see it.
type State string

// The states. Refused is a sign-in that the operator will not provision.
const (
	Pending State = "pending"
	Ready   State = "ready"
	Refused State = "refused"
	Ending  State = "ending"
	Ended   State = "ended"
)

// A Status is a sign-in as callers see it. Username, Role and Until are strings
// that are always there: existing clients read them.
type Status struct {
	Username          string    `json:"username"` // the full login; "node:<name>" for a tagged node
	Role              string    `json:"role"`     // what is bound; while pending, what was asked for
	Until             string    `json:"until"`    // RFC 3339, UTC
	State             State     `json:"state"`
	Provisioned       bool      `json:"provisioned"`
	Name              string    `json:"name"`
	Device            string    `json:"device"`
	Namespaces        []string  `json:"namespaces"`
	MissingNamespaces []string  `json:"missingNamespaces"`
	Clamped           bool      `json:"clamped"` // the grant's period was cut to the server's maximum
	Cluster           string    `json:"cluster"`
	StartedAt         time.Time `json:"startedAt"`

	retryAfter time.Duration
}

// AuditObject names the sign-in for the record.
func (s Status) AuditObject() string { return s.Name }

// Shape answers 202 with Retry-After while the sign-in is pending.
func (s Status) Shape(string) (door.Shape, error) {
	if s.State == Pending {
		return door.Shape{Status: http.StatusAccepted, RetryAfter: s.retryAfter, Body: s}, nil
	}
	return door.Shape{Status: http.StatusOK, Body: s}, nil
}

// Accepted is the answer to a login: always 202, as somebody else provisions it.
type Accepted struct{ Status }

// Shape answers 202.
func (a Accepted) Shape(string) (door.Shape, error) {
	return door.Shape{Status: http.StatusAccepted, RetryAfter: a.retryAfter, Body: a.Status}, nil
}
