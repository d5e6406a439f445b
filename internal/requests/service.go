package requests

import (
	"context"
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
)

// Errors of a Store.
var (
	ErrNotFound = errors.New("no such access request")
	ErrConflict = errors.New("another client changed the access request")
)

// A Store stores access requests. Any other error means that the API server did not perform the request.
type Store interface {
	// Create stores a new request. Its Name is a new random one.
	Create(context.Context, Request) (Request, error)
	// Get reads the request from the API server, and never from a cache. Error: ErrNotFound.
	Get(ctx context.Context, name string) (Request, error)
	// All returns every request from a cache, or false until the cache is filled.
	All() ([]Request, bool)
	// Write stores the status of r if the stored version is r.Version. Errors: ErrConflict, ErrNotFound.
	Write(ctx context.Context, r Request) (Request, error)
	// Await returns when done returns true for the cached request, or when ctx ends. A watch triggers each check.
	Await(ctx context.Context, name string, done func(Request, bool) bool) error
}

// Signins are the stored sign-ins. [signin.Store] describes the methods.
type Signins interface {
	Get(ctx context.Context, name string) (signin.Signin, error)
	GetCached(name string) (signin.Signin, bool)
	Create(context.Context, signin.Signin) (signin.Signin, error)
	Delete(context.Context, signin.Signin) error
	Await(ctx context.Context, name string, done func(signin.Signin, bool) bool) error
}

// Limits bound the number and the age of requests.
type Limits struct {
	PendingFor         time.Duration // how long a request waits for approvals
	UseWithin          time.Duration // how long an approved request waits for its use
	MaxPendingPerLogin int
	MaxPending         int
	MaxAskedPerDay     int // by a login or a set of tags
	MaxKept            int
}

// A Service handles the requests of callers. Fields are required unless their comment says otherwise.
type Service struct {
	Store   Store
	Signins Signins
	Policy  access.Policy
	Limits  Limits

	ClusterName, ClusterID string

	// Devices returns the callers for stable device IDs, as in [signin.Guard].
	Devices func(ctx context.Context, ids ...string) (map[string]access.Caller, error)
	// Fresh, optional, returns why what the tailnet says now is no evidence for granting, or nil.
	Fresh func(context.Context) error
	// Operator, optional, returns why a sign-in would not be bound now, or nil.
	Operator func(context.Context) error
	// Check, optional, returns why a login refuses the sign-in, whatever the tailnet grants.
	Check func(context.Context, signin.Signin) error

	MaxWait    time.Duration // maximum duration of a long poll
	RetryAfter time.Duration // pause between two polls of a client
	Now        func() time.Time
}

const (
	writeTries   = 5                // attempts after conflicting writes
	callTimeout  = 15 * time.Second // limit of all calls of one request
	goneWait     = 2 * time.Second  // how long a revocation waits for the end of the sign-in
	maxSkew      = time.Minute      // between the clocks of the access server and the API server
	raceWindow   = 30 * time.Second // how old a sign-in may be that another attempt to use the request has created
	cacheLag     = 10 * time.Second // a sign-in that is not cached after this time is gone
	maxApprovers = 20
)

// newName returns a random name of a request.
func newName() string {
	b := make([]byte, 10)
	_, _ = rand.Read(b) // never fails
	return "req-" + hex.EncodeToString(b)
}

// facts looks up everybody whom the states of the requests depend on. An error means that nothing is known about any of
// them; the facts are then such that no approval counts.
func (s *Service) facts(ctx context.Context, all ...Request) ([]Facts, error) {
	devices := map[string]bool{}
	for _, r := range all {
		if r.Decision != nil || r.Use != nil {
			continue
		}
		devices[r.Requester.Device] = true
		for _, a := range r.Approved {
			devices[a.Device] = true
		}
	}
	var found map[string]access.Caller
	var err error
	if len(devices) > 0 {
		found, err = s.Devices(ctx, slices.Sorted(maps.Keys(devices))...)
	}
	now, out := s.Now(), make([]Facts, len(all))
	for i, r := range all {
		out[i] = s.factsOf(r, found, err == nil, now)
	}
	return out, err
}

func (s *Service) factsOf(r Request, found map[string]access.Caller, known bool, now time.Time) Facts {
	f := Facts{Floor: s.Policy.Requests.FloorOf(r.Binds), Limits: s.Policy.Requests, Approvers: map[string]Approver{}}
	if r.Use != nil {
		stored, there := s.Signins.GetCached(r.Use.Signin)
		switch same := there && stored.UID == r.Use.SigninUID; {
		case same && stored.Deleting:
			f.SigninGone = true
		case same:
			f.SigninPeriod = stored.Period
		default:
			f.SigninGone = now.Sub(r.Use.At) > cacheLag
		}
		return f
	}
	if !known {
		return f
	}
	for _, a := range r.Approved {
		c, there := found[a.Device]
		f.Approvers[a.Login] = s.approver(a, r, c, there, now)
	}
	if c, there := found[r.Requester.Device]; there && r.isOf(c) {
		if p, err := access.Decide(c, access.RequestUse, s.Policy, now); err == nil {
			if terms, ok, err := p.TermsNow(r.Binds); ok && err == nil {
				f.RuleNow = terms.Approvals
			}
		}
	}
	return f
}

// approver decides as if the approver approved now, from the device with which they did.
func (s *Service) approver(a Approval, r Request, c access.Caller, there bool, now time.Time) Approver {
	absent := func(format string, args ...any) Approver { return Approver{Absent, fmt.Sprintf(format, args...)} }
	switch {
	case !there:
		return absent("The device of %s is no longer in the tailnet.", a.Login)
	case !strings.EqualFold(c.Identity(), a.Login), c.UserID != a.UserID:
		return absent("The device of %s has another owner now.", a.Login)
	}
	p, err := access.Decide(c, access.RequestApprove, s.Policy, now)
	if err == nil {
		err = p.MayDecide(r.Requester.Person, r.Binds)
	}
	switch code := problem.CodeOf(err); code {
	case "":
		return Approver{Is: Present}
	case problem.BadCapability, problem.IdentityUnavailable:
		return Approver{Unknown, problem.From(err).Message}
	}
	return absent("%s may not decide about it any more.", a.Login) // the requester learns no more about the policy
}

// judge judges one request with the facts of now. The verdict of a failed lookup counts no approval.
func (s *Service) judge(ctx context.Context, r Request) (Verdict, error) {
	facts, err := s.facts(ctx, r)
	return Judge(r, facts[0], s.Now()), err
}

// get reads a request that p may see. To everybody else an existing request is like an unknown one. A caller without any
// rule causes no call of the API server.
func (s *Service) get(ctx context.Context, p access.Permit, name string) (r Request, err error) {
	switch {
	case !isName(name):
		return Request{}, notFound()
	case p.OwnerOnly() != nil:
		err = ErrNotFound
		all, _ := s.Store.All()
		if i := slices.IndexFunc(all, func(r Request) bool { return r.Name == name && r.isOf(p.Caller()) }); i >= 0 {
			r, err = s.Store.Get(ctx, name)
		}
	default:
		r, err = s.Store.Get(ctx, name)
	}
	switch {
	case errors.Is(err, ErrNotFound), err == nil && !s.maySee(p, r):
		return Request{}, notFound()
	case err != nil:
		return Request{}, unavailable(err)
	}
	return r, nil
}

// maySee reports whether p is the requester or has a rule to decide about r.
func (s *Service) maySee(p access.Permit, r Request) bool {
	if r.isOf(p.Caller()) {
		return true
	}
	code := problem.CodeOf(p.MayDecide(r.Requester.Person, r.Binds))
	return code == "" || code == problem.SelfApproval || code == problem.SubnetRouter // who sees it may still not decide
}

// isName reports whether name has the form of a request's name.
func isName(name string) bool {
	digits, ok := strings.CutPrefix(name, "req-")
	return ok && len(digits) >= 16 && len(digits) <= 40 && strings.Trim(digits, "0123456789abcdef") == ""
}

func (s *Service) fresh(ctx context.Context) error {
	if s.Fresh == nil {
		return nil
	}
	return s.Fresh(ctx)
}

func notFound() error {
	return problem.New(problem.NotFound, "There is no such access request, or you may not see it.", "List those that you may see: tka requests")
}

func unavailable(err error) error {
	if errors.Is(err, context.Canceled) {
		return err
	}
	return problem.New(problem.Unavailable, "The cluster's API server cannot process the request now.", "Try again.").WithCause(err).WithRetryAfter(time.Second)
}

func over(r Request, v Verdict) error {
	advice := "Ask again: tka request"
	if v.State == Used {
		advice = "To end the access: tka request revoke " + r.Name
	}
	return problem.New(problem.RequestOver, fmt.Sprintf("The request %s is %s.", r.Name, describe(v.State)), advice)
}

// describe returns a state for a sentence.
func describe(s State) string {
	switch s {
	case Used:
		return "already used"
	case Over:
		return "over: its access has ended"
	}
	return string(s)
}
