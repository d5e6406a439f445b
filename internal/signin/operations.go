package signin

import (
	"encoding/json"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// Base is the base path of the sign-in API.
const Base = "/api/v1alpha1"

// The operations of the sign-in API. The server, the client and the API reference use these
// declarations.
var (
	Login = httpapi.Op[LoginRequest, Accepted]{
		Pattern: "POST " + Base + "/login", Verb: access.SigninLogin,
		Doc:       "Sign in, or extend the sign-in of a session of this device.",
		Example:   LoginRequest{Role: "view", Period: httpapi.Duration(30 * time.Minute)},
		Responses: []Accepted{{exampleStatus(Pending)}},
		Refusals: slices.Concat(withToken, []problem.Code{problem.TokenRequired, problem.AmbiguousRole, problem.RoleNotGranted, problem.RoleNotAllowed, problem.RoleNeedsNamespaces, problem.PeriodOutOfBounds,
			problem.ReasonRequired, problem.MediaType, problem.TooLarge, problem.TooManySignins, problem.Conflict, problem.Ending, problem.AuditUnavailable,
			problem.ApprovalRequired, problem.NotEnabled, problem.NotFound, problem.Forbidden, problem.NotApproved, problem.RequestOver, problem.GrantRemoved, problem.OperatorUnavailable, problem.ClockSkew}),
	}
	Read = httpapi.Op[ReadRequest, Status]{
		Pattern: "GET " + Base + "/login", Verb: access.SigninRead,
		Doc:       "Show the sign-in of a session of this device: 200 when it is ready, 202 while it is pending. The request can wait until the sign-in is ready.",
		Example:   ReadRequest{Wait: httpapi.Duration(25 * time.Second)},
		Responses: []Status{exampleStatus(Ready), exampleStatus(Pending)},
		Refusals:  slices.Concat(withToken, []problem.Code{problem.NotSignedIn, problem.CannotProvision}),
	}
	GetKubeconfig = httpapi.Op[KubeconfigRequest, Kubeconfig]{
		Pattern: "GET " + Base + "/kubeconfig", Verb: access.SigninKubeconfig,
		Doc:     "Return a kubeconfig with a fresh token. The server does not store the token. The request can wait until the sign-in is ready.",
		Example: KubeconfigRequest{Wait: httpapi.Duration(25 * time.Second)},
		Responses: []Kubeconfig{{Cluster: "prod-eu", Server: "https://k8s.prod-eu.example:6443", CA: []byte("-----BEGIN CERTIFICATE-----\n"), Prefix: "tka-",
			Token: secret.New("the token"), ExpiresAt: exampleTime.Add(8 * time.Hour)}},
		Refusals: slices.Concat(withToken, []problem.Code{problem.NotReady, problem.NotSignedIn, problem.GrantRemoved, problem.ProxyOnly, problem.CannotProvision, problem.AuditUnavailable}),
	}
	Logout = httpapi.Op[LogoutRequest, Status]{
		Pattern: "POST " + Base + "/logout", Verb: access.SigninLogout,
		Doc:       "End the sign-in of a session of this device. A caller may always end its sign-in, also without a grant.",
		Example:   LogoutRequest{Wait: httpapi.Duration(2 * time.Second)},
		Responses: []Status{exampleStatus(Ended)},
		Refusals:  slices.Concat(withToken, []problem.Code{problem.MediaType, problem.TooLarge, problem.NotSignedIn}),
	}
	FirstUse = httpapi.Op[FirstUseRequest, FirstUseResult]{
		Pattern: "POST " + Base + "/first-use", Verb: access.SigninFirstUse,
		Doc:       "Begin the default session of a device that uses the access proxy, if a rule with onUse allows it. Only the cluster's access proxies may send it.",
		Example:   FirstUseRequest{Device: "nVQ1kLDx7R11CNTRL"},
		Responses: []FirstUseResult{{Status: exampleStatus(Pending)}, {Status: exampleStatus(Ready)}},
		Refusals: slices.Concat(ungranted, []problem.Code{problem.NotAProxy, problem.NotSignedIn, problem.AmbiguousRole, problem.RoleNotGranted, problem.RoleNotAllowed, problem.RoleNeedsNamespaces,
			problem.PeriodOutOfBounds, problem.MediaType, problem.TooLarge, problem.TooManySignins, problem.Conflict, problem.Ending, problem.AuditUnavailable}),
	}
	ReportUsage = httpapi.Op[UsageReport, UsageResult]{
		Pattern: "POST " + Base + "/usage", Verb: access.SigninUsage, Routine: true,
		Doc:       "Report which sign-ins that began on first use had a request or an open stream in the last minute. Only the cluster's access proxies may send it.",
		Example:   UsageReport{Signins: []string{"alice-example-com-0f3c9a1b2d4e5f607182"}},
		Responses: []UsageResult{{}},
		Refusals:  []problem.Code{problem.ForeignNode, problem.NotAProxy, problem.MediaType, problem.TooLarge},
	}
	ListSessions = httpapi.Op[SessionsRequest, Sessions]{
		Pattern: "GET " + Base + "/sessions", Verb: access.SigninList,
		Doc:       "List the sign-ins of this device, of all its sessions.",
		Responses: []Sessions{{Sessions: []Status{exampleStatus(Ready)}}},
		Refusals:  withToken,
	}
	ListRoles = httpapi.Op[RolesRequest, GrantedRoles]{
		Pattern: "GET " + Base + "/roles", Verb: access.SigninRoles,
		Doc:     "List the granted roles, the least first, and whether each allows a request to the Kubernetes API.",
		Example: RolesRequest{Verb: "create", Group: "apps", Resource: "deployments", Namespace: "shop"},
		Responses: []GrantedRoles{{Roles: []GrantedRole{
			{Role: "view", Namespaces: []string{}}, {Role: "edit", Namespaces: []string{"shop"}, Allows: true},
		}}},
		Refusals: withToken,
	}
	CheckPolicy = httpapi.Op[PolicyRequest, PolicyCheck]{
		Pattern: "POST " + Base + "/check-policy", Verb: access.PolicyCheck,
		Doc: "Check rules of a tailnet policy before they are in force: which ones would this server refuse? Available to every caller with a grant.",
		Example: PolicyRequest{Grants: []PolicyGrant{{Dst: []string{"tag:tailplane"}, App: map[string][]json.RawMessage{
			"tailplane.dev/cap/access": {json.RawMessage(`{"role":"view","period":"8h"}`), json.RawMessage(`{"role":"view","for":"8h"}`)},
		}}}},
		Responses: []PolicyCheck{{Capability: "tailplane.dev/cap/access", Checked: 2, Problems: []PolicyProblem{
			{Rule: 1, Message: `The rule is invalid: unknown field "for".`},
		}}},
		Refusals: slices.Concat(ungranted, []problem.Code{problem.MediaType, problem.TooLarge}),
	}
	GetClusterInfo = httpapi.Op[ClusterInfoRequest, ClusterInfo]{
		Pattern: "GET " + Base + "/cluster-info", Verb: access.ClusterInfo,
		Doc: "Return how people reach the cluster, and its identity.",
		Responses: []ClusterInfo{{ServerURL: "https://k8s.prod-eu.example:6443", CAData: []byte("-----BEGIN CERTIFICATE-----\n"), Labels: map[string]string{"env": "prod"},
			Name: "prod-eu", ID: "5e0c3f5a-6f0e-4f0c-9a63-1f4f6f6f2b11", CAHash: "sha256:9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08",
			Key: httpapi.PublicKey{1}, Version: "v0.1.0", Servers: []string{"https://tka.tail1234.ts.net", "https://tka-2.tail1234.ts.net"},
			Modes: []Mode{ModeProxy, ModeToken}, Proxies: []ProxyServer{{URL: "https://prod-eu-api.tail1234.ts.net"}}}},
		Refusals: ungranted,
	}
	GetWhoami = httpapi.Op[WhoamiRequest, Whoami]{
		Pattern: "GET " + Base + "/whoami", Verb: access.Whoami,
		Doc: "Show the caller's identity as the server sees it, and the server's decision. Available to every caller that the tailnet identifies, also without a grant.",
		Responses: []Whoami{{
			Caller: CallerIdentity{Login: "alice@example.com", Node: "alice-laptop.tail1234.ts.net", NodeID: "nVQ1kLDx7R11CNTRL", Tags: []string{}, Tailnet: "example.com", Via: access.ViaTailnet},
			Rules: []Rule{
				{Role: "view", Period: httpapi.Duration(8 * time.Hour), Priority: 1, Namespaces: []string{}, Chosen: true},
				{Role: "edit", Period: httpapi.Duration(time.Hour), Namespaces: []string{"shop"}},
			},
			Decision: Decision{Allowed: true, Message: `A login gives the role "view" for 8h in the whole cluster.`, Advice: []string{}},
			Signin:   new(exampleStatus(Ready)), AuditID: "01KAJ3D1VXB6E2N4Q8R0S5T7WY",
		}},
		Refusals: []problem.Code{problem.TokenRefused},
	}
)

// ungranted are the refusals of every operation that needs a grant.
var ungranted = []problem.Code{problem.ForeignNode, problem.TaggedNode, problem.NoCapability, problem.BadCapability}

// withToken are the refusals of operations that take an OIDC token, besides ungranted.
var withToken = slices.Concat(ungranted, []problem.Code{problem.TokenRefused})

// Operations returns the declarations of the sign-in API.
func Operations() []httpapi.Declaration {
	var all []httpapi.Declaration
	for _, rt := range new(Service).Routes() {
		all = append(all, rt.Declaration)
	}
	return all
}

var exampleTime = time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC)

func exampleStatus(s State) Status {
	return Status{Username: "alice@example.com", Role: "view", Until: exampleTime.Add(8 * time.Hour).Format(time.RFC3339), State: s, Provisioned: s == Ready,
		Name: "alice-example-com-0f3c9a1b2d4e5f607182", Device: "alice-laptop.tail1234.ts.net", Namespaces: []string{}, MissingNamespaces: []string{},
		Cluster: "prod-eu", StartedAt: exampleTime, retryAfter: time.Second}
}

// A LoginRequest is the caller's choice among the granted roles. All fields are optional.
type LoginRequest struct {
	Role       string           `json:"role,omitempty" doc:"one of the granted roles, all roles of a rule separated by commas, or the name of a rule; without it, the rule of highest priority is used"`
	Period     httpapi.Duration `json:"period,omitzero" doc:"at most the granted period; without it, the granted one"`
	Namespaces []string         `json:"namespaces,omitempty" doc:"restricts the granted access to these namespaces"`
	Session    Session          `json:"session,omitempty" doc:"a DNS label; without it, the default session"`
	RequestToken
	Reason Reason `json:"reason,omitempty" doc:"why the access is needed, at most 500 characters in one line; people who may see sign-ins see it"`

	Request string `json:"request,omitempty" doc:"name of an own approved access request to use, alone; its sign-in has a session of that name"`
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
	if r.Session != "" {
		args["session"] = string(r.Session)
	}
	if r.Reason != "" {
		args["reason"] = string(r.Reason)
	}
	if r.Request != "" {
		args["request"] = r.Request
	}
	return args
}

// A ReadRequest can wait until the sign-in is ready.
type ReadRequest struct {
	RequestToken
	Session Session `json:"-" query:"session" doc:"without it, the default session"`

	Wait httpapi.Duration `json:"-" query:"wait" doc:"how long to wait for the sign-in to become ready; the server limits it to api.maxWait"`
}

// Waits implements [httpapi.Waiter].
func (r ReadRequest) Waits() bool { return r.Wait > 0 }

// A SessionsRequest has no parameters besides the token.
type SessionsRequest struct{ RequestToken }

// Sessions are the sign-ins of one device.
type Sessions struct {
	Sessions []Status `json:"sessions" null:"never" doc:"the default session first, then by name"`
}

// A KubeconfigRequest can wait until the sign-in is ready.
type KubeconfigRequest struct {
	RequestToken
	Session Session `json:"-" query:"session" doc:"without it, the default session"`

	Wait httpapi.Duration `json:"-" query:"wait" doc:"how long to wait for the sign-in to become ready; the server limits it to api.maxWait"`
}

// A LogoutRequest can wait until the access is gone.
type LogoutRequest struct {
	RequestToken
	Session Session `json:"-" query:"session" doc:"without it, the default session"`

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
	Role              string    `json:"role" doc:"the bound role; while pending, the requested role; several roles are separated by commas"`
	Rule              string    `json:"rule,omitempty" doc:"name of the rule that gives the role; absent: it has none"`
	Until             string    `json:"until" doc:"end of the sign-in, RFC 3339, UTC"`
	State             State     `json:"state" enum:"pending,ready,refused,ending,ended"`
	Provisioned       bool      `json:"provisioned" doc:"whether the sign-in gives access"`
	Name              string    `json:"name" doc:"name of the TkaSignin object"`
	Session           Session   `json:"session,omitempty" doc:"absent: the default session"`
	Device            string    `json:"device"`
	Namespaces        []string  `json:"namespaces" null:"never" doc:"where the role applies; none: the whole cluster, or as in bind"`
	Bind              []Role    `json:"bind,omitempty" doc:"each role and where it applies; absent: role and namespaces say it"`
	MissingNamespaces []string  `json:"missingNamespaces" null:"never" doc:"granted namespaces that the cluster does not have; the role is bound when they appear"`
	Clamped           bool      `json:"clamped" doc:"the granted period was reduced to the server's longest period"`
	Cluster           string    `json:"cluster"`
	StartedAt         time.Time `json:"startedAt"`
	Record            []string  `json:"record,omitempty" doc:"streams through the access proxy that are recorded: exec, attach or portForward; absent: the rule for the sign-in records none"`
	RequestReason     string    `json:"requestReason,omitempty" doc:"the reason that the person gave"`
	Reason            string    `json:"reason,omitempty" doc:"why the sign-in is refused: a reason of the TkaSignin's Ready condition, such as ClockSkew; only in the state refused"`
	Message           string    `json:"message,omitempty" doc:"the reason as a sentence"`

	OnUse bool             `json:"onUse,omitempty" doc:"a request through the access proxy began the sign-in, and no login has extended it since"`
	Idle  httpapi.Duration `json:"idle,omitzero" doc:"how long a sign-in with onUse lasts without use"`

	Token *TokenIdentity `json:"oidc,omitempty" doc:"the OIDC token with which the sign-in began; absent: it began without one"`

	retryAfter time.Duration
}

// AuditObject returns the name of the sign-in for the audit log.
func (s Status) AuditObject() string { return s.Name }

// AuditDetails returns the token of the sign-in for the audit log.
func (s Status) AuditDetails() map[string]string { return s.Token.auditDetails() }

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

// A Role is one role of a rule or of a sign-in, and where it applies.
type Role struct {
	Role       string   `json:"role"`
	Namespaces []string `json:"namespaces,omitempty" doc:"with neither namespaces nor namespaceSelector, the role applies in the whole cluster"`
	Selector   string   `json:"namespaceSelector,omitempty" doc:"labels of the namespaces, as in kubectl get -l"`
	Bound      []string `json:"bound,omitempty" doc:"of a ready sign-in: the namespaces with these labels, in which the role is bound now"`
}

// DescribeRoles returns where each role applies, for people, such as "view in the whole cluster, edit in shop".
func DescribeRoles(roles []Role) string {
	binds := make(access.Binds, len(roles))
	for i, r := range roles {
		binds[i] = access.Bind{Role: access.Role(r.Role), Namespaces: r.Namespaces, Selector: access.Selector(r.Selector)}
	}
	return binds.String()
}

// rolesOf returns the roles of s, with the bound namespaces of selectors if bound.
func rolesOf(s Signin, bound bool) []Role {
	roles := rolesOfBinds(s.Binds)
	for i, b := range s.Binds {
		j := slices.IndexFunc(s.Bound, func(x access.Bind) bool { return x.Role == b.Role })
		if bound && b.Selector != "" && j >= 0 {
			roles[i].Bound = s.Bound[j].Namespaces
		}
	}
	return roles
}

func rolesOfBinds(binds access.Binds) (out []Role) {
	for _, b := range binds {
		out = append(out, Role{Role: string(b.Role), Namespaces: b.Namespaces, Selector: string(b.Selector)})
	}
	return out
}
