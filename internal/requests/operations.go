package requests

import (
	"errors"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// The operations of access requests. The server, the client and the API reference use these declarations.
var (
	Create = httpapi.Op[AskRequest, Asked]{
		Pattern: "POST " + signin.Base + "/requests", Verb: access.RequestCreate,
		Doc:       "Ask for access. An own pending or approved request for the same is answered with 200.",
		Example:   AskRequest{Role: "edit", Namespaces: []string{"shop"}, Period: httpapi.Duration(time.Hour), Reason: "INC-42: payments stuck"},
		Responses: []Asked{{View: exampleView(Pending)}, {View: exampleView(Pending), existing: true}},
		Refusals: slices.Concat(common, body, []problem.Code{problem.AmbiguousRole, problem.RoleNotGranted, problem.RoleNotAllowed, problem.RoleNeedsNamespaces, problem.PeriodOutOfBounds,
			problem.ReasonRequired, problem.RequestChanged, problem.TooManyRequests, problem.TooManySignins}),
	}
	ListAll = httpapi.Op[ListRequest, List]{
		Pattern: "GET " + signin.Base + "/requests", Verb: access.RequestList,
		Doc:       "List the caller's access requests, and those that a rule of the caller could decide, the newest first.",
		Example:   ListRequest{State: Pending},
		Responses: []List{{Requests: []View{exampleView(Pending)}}},
		Refusals:  common,
	}
	Read = httpapi.Op[ReadRequest, View]{
		Pattern: "GET " + signin.Base + "/requests/{id}", Verb: access.RequestRead,
		Doc:       "Show an access request. The call can wait while the request is pending.",
		Example:   ReadRequest{ID: exampleID, Wait: httpapi.Duration(25 * time.Second)},
		Responses: []View{exampleView(Approved)},
		Refusals:  []problem.Code{problem.NotEnabled, problem.BadCapability, problem.NotFound},
	}
	Approve = httpapi.Op[ApproveRequest, View]{
		Pattern: "POST " + signin.Base + "/requests/{id}/approve", Verb: access.RequestApprove,
		Doc:       "Approve the access request of another person, as it was seen.",
		Example:   ApproveRequest{ID: exampleID, Seen: exampleDigest, Period: httpapi.Duration(30 * time.Minute)},
		Responses: []View{exampleView(Approved)},
		Refusals:  slices.Concat(common, body, deciding, []problem.Code{problem.SelfApproval, problem.PeriodOutOfBounds}),
	}
	Deny = httpapi.Op[DenyRequest, View]{
		Pattern: "POST " + signin.Base + "/requests/{id}/deny", Verb: access.RequestDeny,
		Doc:       "Deny the access request of another person, as it was seen. One denial is final.",
		Example:   DenyRequest{ID: exampleID, Seen: exampleDigest, Reason: "Use the staging cluster."},
		Responses: []View{exampleView(Denied)},
		Refusals:  slices.Concat(common, body, deciding, []problem.Code{problem.SelfApproval, problem.ReasonRequired}),
	}
	Cancel = httpapi.Op[EndRequest, View]{
		Pattern: "POST " + signin.Base + "/requests/{id}/cancel", Verb: access.RequestCancel,
		Doc:       "Cancel an own access request that is not used.",
		Example:   EndRequest{ID: exampleID},
		Responses: []View{exampleView(Cancelled)},
		Refusals:  slices.Concat(body, []problem.Code{problem.NotEnabled, problem.NotFound, problem.Forbidden, problem.RequestOver, problem.Conflict}),
	}
	Revoke = httpapi.Op[EndRequest, View]{
		Pattern: "POST " + signin.Base + "/requests/{id}/revoke", Verb: access.RequestRevoke,
		Doc:       "End the access of a used request: 200 when it has ended, 202 while it is ending. The requester may do so, and everyone who may decide about the request.",
		Example:   EndRequest{ID: exampleID, Reason: "The incident is over."},
		Responses: []View{exampleView(Revoked), exampleEnding()},
		Refusals:  slices.Concat(body, []problem.Code{problem.NotEnabled, problem.NotFound, problem.NoCapability, problem.ForeignNode, problem.TaggedNode, problem.RequestOver, problem.Conflict}),
	}
)

// Refusals that several operations have.
var (
	common   = []problem.Code{problem.NotEnabled, problem.ForeignNode, problem.TaggedNode, problem.NoCapability, problem.BadCapability}
	body     = []problem.Code{problem.MediaType, problem.TooLarge, problem.AuditUnavailable}
	deciding = []problem.Code{problem.NotFound, problem.RequestChanged, problem.RequestOver, problem.Conflict}
)

// Routes returns the routes of the operations.
func (s *Service) Routes() []httpapi.Route {
	return []httpapi.Route{
		Create.Serve(s.ask),
		ListAll.Serve(s.list),
		Read.ServeAfter(s.await, s.read),
		Approve.Serve(s.approve),
		Deny.Serve(s.deny),
		Cancel.Serve(s.cancel),
		Revoke.Serve(s.revoke),
	}
}

// Operations returns the declarations of the operations.
func Operations() []httpapi.Declaration {
	var all []httpapi.Declaration
	for _, rt := range new(Service).Routes() {
		all = append(all, rt.Declaration)
	}
	return all
}

const (
	exampleID     = "req-7f3a9c0b1d2e4f566778"
	exampleDigest = "acbb9283e93c43cd323ed64f868a57ee3bfe4fc63fca8589ef62d9e16b06172e"
)

func exampleView(state State) View {
	at := time.Date(2026, 11, 21, 11, 41, 8, 0, time.UTC)
	v := View{ID: exampleID, State: state, Digest: exampleDigest, Cluster: "prod-eu", Login: "alice@example.com", UserID: "17", DisplayName: "Alice", Device: "alice-laptop.tail1234.ts.net",
		Bind: []signin.Role{{Role: "edit", Namespaces: []string{"shop"}}}, Period: httpapi.Duration(time.Hour), Reason: "INC-42: payments stuck", AskedAt: at, Needed: 1, Approvals: []ApprovalView{}}
	if !state.IsFinal() {
		v.Until = at.Add(8 * time.Hour)
	}
	return v
}

func exampleEnding() View {
	v := exampleView(Revoked)
	v.Ending, v.retryAfter = true, time.Second
	return v
}

// An AskRequest is what a caller asks for.
type AskRequest struct {
	Role       string           `json:"role,omitempty" doc:"a role that a rule lets the caller ask for, all roles of a rule separated by commas, or the name of a rule; may be absent if there is one rule"`
	Namespaces []string         `json:"namespaces,omitempty" doc:"restricts the access to these namespaces"`
	Period     httpapi.Duration `json:"period,omitzero" doc:"at most that of the rule; without it, that of the rule. It begins with the use"`
	Reason     signin.Reason    `json:"reason,omitempty" doc:"why the access is needed, at most 500 characters in one line; required"`
	BreakGlass bool             `json:"breakGlass,omitempty" doc:"use an emergency access of the settings; this version has none"`
}

// AuditArgs returns the request's parameters for the audit log.
func (r AskRequest) AuditArgs() map[string]string {
	args := map[string]string{}
	set := func(name, value string, is bool) {
		if is {
			args[name] = value
		}
	}
	set("role", r.Role, r.Role != "")
	set("namespaces", strings.Join(r.Namespaces, ","), len(r.Namespaces) > 0)
	set("period", time.Duration(r.Period).String(), r.Period != 0)
	set("reason", string(r.Reason), r.Reason != "")
	return args
}

// A ListRequest selects requests.
type ListRequest struct {
	State State `json:"-" query:"state" doc:"only those in this state"`
	Mine  Flag  `json:"-" query:"mine" doc:"true: only those of the caller"`
}

// A ReadRequest names a request.
type ReadRequest struct {
	ID   string           `json:"-" path:"id"`
	Wait httpapi.Duration `json:"-" query:"wait" doc:"how long to wait while the request is pending; the server limits it to api.maxWait"`
}

// Waits implements [httpapi.Waiter].
func (r ReadRequest) Waits() bool { return r.Wait > 0 }

// AuditArgs returns the request's parameters for the audit log.
func (r ReadRequest) AuditArgs() map[string]string { return map[string]string{"request": r.ID} }

// An ApproveRequest is the approval of what the caller saw.
type ApproveRequest struct {
	ID      string           `json:"-" path:"id"`
	Seen    string           `json:"seen" doc:"the digest of the request that the caller saw"`
	Comment signin.Reason    `json:"comment,omitempty" doc:"for the requester, at most 500 characters in one line"`
	Period  httpapi.Duration `json:"period,omitzero" doc:"shortens the period; without it, that of the request"`
}

// AuditArgs returns the request's parameters for the audit log.
func (r ApproveRequest) AuditArgs() map[string]string {
	args := map[string]string{"request": r.ID, "seen": r.Seen}
	if r.Period != 0 {
		args["period"] = time.Duration(r.Period).String()
	}
	if r.Comment != "" {
		args["reason"] = string(r.Comment)
	}
	return args
}

// A DenyRequest is the denial of what the caller saw.
type DenyRequest struct {
	ID     string        `json:"-" path:"id"`
	Seen   string        `json:"seen" doc:"the digest of the request that the caller saw"`
	Reason signin.Reason `json:"reason" doc:"required: what the requester should know or do, at most 500 characters in one line"`
}

// AuditArgs returns the request's parameters for the audit log.
func (r DenyRequest) AuditArgs() map[string]string {
	return map[string]string{"request": r.ID, "seen": r.Seen, "reason": string(r.Reason)}
}

// An EndRequest cancels or revokes a request.
type EndRequest struct {
	ID     string        `json:"-" path:"id"`
	Reason signin.Reason `json:"reason,omitempty" doc:"at most 500 characters in one line"`
}

// AuditArgs returns the request's parameters for the audit log.
func (r EndRequest) AuditArgs() map[string]string {
	return map[string]string{"request": r.ID, "reason": string(r.Reason)}
}

// A Flag is true or false in a query.
type Flag bool

var (
	errFlag  = errors.New("neither true nor false")
	errState = errors.New("not a state of an access request")
)

// MarshalText implements [encoding.TextMarshaler].
func (f Flag) MarshalText() ([]byte, error) {
	if f {
		return []byte("true"), nil
	}
	return nil, nil
}

// UnmarshalText implements [encoding.TextUnmarshaler].
func (f *Flag) UnmarshalText(text []byte) error {
	*f = string(text) == "true"
	if s := string(text); s != "true" && s != "false" {
		return errFlag
	}
	return nil
}

// MarshalText implements [encoding.TextMarshaler].
func (s State) MarshalText() ([]byte, error) { return []byte(s), nil }

// UnmarshalText implements [encoding.TextUnmarshaler].
func (s *State) UnmarshalText(text []byte) error {
	if *s = State(text); *s != "" && !slices.Contains(States(), *s) {
		return errState
	}
	return nil
}

// A View is an access request as callers see it.
type View struct {
	ID          string           `json:"id"`
	State       State            `json:"state" enum:"pending,approved,used,denied,cancelled,expired,revoked,over"`
	Digest      string           `json:"digest" doc:"identifies what this response shows; an approval names it as seen"`
	Cluster     string           `json:"cluster"`
	Login       string           `json:"login" doc:"the full login of the requester; node:<name> for a tagged node"`
	UserID      string           `json:"userID,omitempty"`
	DisplayName string           `json:"displayName,omitempty" doc:"chosen by the requester"`
	Device      string           `json:"device" doc:"the name of the device that can use the request; chosen by the requester"`
	Tags        []string         `json:"tags,omitempty"`
	Rule        string           `json:"rule,omitempty" doc:"name of the rule that let the requester ask; absent: it has none"`
	Bind        []signin.Role    `json:"bind" doc:"each role and where it applies"`
	Period      httpapi.Duration `json:"period" doc:"how long the access lasts from its use; the shortest of the request's and of the counted approvals'"`
	Record      []string         `json:"record,omitempty" doc:"the streams through the access proxy that are recorded"`
	Reason      string           `json:"reason" doc:"in the requester's words"`
	AskedAt     time.Time        `json:"askedAt"`
	Needed      int              `json:"needed" doc:"how many other people must approve"`
	Counted     int              `json:"counted" doc:"how many approvals count now"`
	Approvals   []ApprovalView   `json:"approvals" null:"never"`
	Until       time.Time        `json:"until,omitzero" doc:"when the state ends by itself; absent: it is final"`
	Decision    *ActView         `json:"decision,omitempty" doc:"who denied or cancelled it"`
	Revoked     *ActView         `json:"revoked,omitempty" doc:"who ended the access"`
	UsedAt      time.Time        `json:"usedAt,omitzero" doc:"when the access began"`
	Signin      string           `json:"signin,omitempty" doc:"name of the TkaSignin of the use"`
	Mine        bool             `json:"mine" doc:"the caller is the requester"`
	MayDecide   bool             `json:"mayDecide" doc:"the caller may approve or deny it"`
	Ending      bool             `json:"ending,omitempty" doc:"the access is ending"`

	retryAfter time.Duration
}

// An ApprovalView is one approval.
type ApprovalView struct {
	Login   string           `json:"login"`
	At      time.Time        `json:"at"`
	Comment string           `json:"comment,omitempty"`
	Period  httpapi.Duration `json:"period,omitzero" doc:"by which the approval shortens the period"`
	Counts  bool             `json:"counts" doc:"the person may still approve"`
	Why     string           `json:"why,omitempty" doc:"why it does not count"`
}

// An ActView is what one person did.
type ActView struct {
	Login  string    `json:"login"`
	At     time.Time `json:"at"`
	Reason string    `json:"reason,omitempty"`
}

// AuditObject returns the name of the request for the audit log.
func (v View) AuditObject() string { return v.ID }

// AuditDetails returns who asked for what, for the audit log.
func (v View) AuditDetails() map[string]string {
	return map[string]string{"requester": v.Login, "roles": signin.DescribeRoles(v.Bind), "state": string(v.State)}
}

// EncodeResponse returns 202 while the access is ending.
func (v View) EncodeResponse(string) (httpapi.Response, error) {
	if v.Ending {
		return httpapi.Response{Status: http.StatusAccepted, RetryAfter: v.retryAfter, Body: v}, nil
	}
	return httpapi.Response{Status: http.StatusOK, Body: v}, nil
}

// Asked is the response to a request to ask.
type Asked struct {
	View
	existing bool
}

// EncodeResponse returns 201 for a new request.
func (a Asked) EncodeResponse(string) (httpapi.Response, error) {
	if a.existing {
		return httpapi.Response{Status: http.StatusOK, Body: a.View}, nil
	}
	return httpapi.Response{Status: http.StatusCreated, Body: a.View}, nil
}

// A List is a list of access requests.
type List struct {
	Requests []View `json:"requests" null:"never"`
}

// view returns r as the caller of p sees it.
func (s *Service) view(p access.Permit, r Request, v Verdict) View {
	out := s.viewOf(r, v)
	out.Mine = r.isOf(p.Caller())
	out.MayDecide = isOpen(v) && p.MayDecide(r.Requester.Person, r.Binds) == nil
	return out
}

func (s *Service) viewOf(r Request, v Verdict) View {
	q := r.Requester
	out := View{ID: r.Name, State: v.State, Digest: r.Digest, Cluster: r.ClusterName, Login: q.Login, UserID: q.UserID, DisplayName: q.DisplayName, Device: q.DeviceName, Tags: q.Tags,
		Rule: r.Rule, Period: httpapi.Duration(v.Period), Record: r.Record, Reason: r.Reason, AskedAt: r.AskedAt.UTC(), Needed: v.Needed, Counted: v.Counted, Approvals: []ApprovalView{}}
	for _, b := range r.Binds {
		out.Bind = append(out.Bind, signin.Role{Role: string(b.Role), Namespaces: b.Namespaces, Selector: string(b.Selector)})
	}
	for _, a := range r.Approved {
		shown := ApprovalView{Login: a.Login, At: a.At.UTC(), Comment: a.Comment, Period: httpapi.Duration(a.Period), Counts: isOpen(v)}
		if i := slices.IndexFunc(v.Void, func(x Void) bool { return x.Login == a.Login }); i >= 0 && isOpen(v) {
			shown.Counts, shown.Why = false, v.Void[i].Why
		}
		out.Approvals = append(out.Approvals, shown)
	}
	if !v.Until.IsZero() {
		out.Until = v.Until.UTC()
	}
	if r.Decision != nil {
		out.Decision = actView(r.Decision.Act)
	}
	if r.Revoked != nil {
		out.Revoked = actView(*r.Revoked)
	}
	if r.Use != nil {
		out.UsedAt, out.Signin = r.Use.At.UTC(), r.Use.Signin
	}
	return out
}

func actView(a Act) *ActView { return &ActView{Login: a.By.Login, At: a.At.UTC(), Reason: a.Reason} }
