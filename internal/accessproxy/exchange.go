package accessproxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/policy"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/origin"
)

// An exchange is one request and its response.
type exchange struct {
	proxy *Proxy
	w     http.ResponseWriter
	r     *http.Request
	id    string // audit id; the API server's audit log has the same one
	began time.Time

	caller  access.Caller
	permit  access.Permit
	session signin.Session
	named   bool              // the session is known
	path    string            // escaped, without the session
	request *apiproxy.Request // nil until it is parsed
	upgrade string            // requested protocol, or ""
	signin  signin.Signin     // the zero value until it is found
	rules   *policy.Policy    // of the settings, by which the request was judged
	verdict policy.Verdict    // of those rules; its record is the stricter one of the sign-in and of them

	recording *recording.Session // nil: none
	level     policy.Level       // of the recording

	status  int   // of the response; 0: none yet
	bytes   int64 // of the response, without its header
	refused *refusal
	stream  *stream
	release func() // nil: the device is not known yet
}

func newExchange(p *Proxy, w http.ResponseWriter, r *http.Request) *exchange {
	return &exchange{proxy: p, w: w, r: r, id: apiproxy.NewAuditID(), began: p.Now()}
}

// serve runs the steps of a request. An error is the response.
func (x *exchange) serve() error {
	for _, step := range []func() error{x.checkForm, x.identify, x.readSession, x.parse, x.admit, x.checkImpersonation, x.findSignin, x.judge} {
		if err := step(); err != nil {
			return err
		}
	}
	return x.forward()
}

// checkForm refuses what is not a request of a Kubernetes client to this host (law 4).
func (x *exchange) checkForm() error {
	if err := apiproxy.CheckTarget(x.r); err != nil {
		return err
	}
	if err := checkSpelling(x.r); err != nil {
		return err
	}
	if names := x.proxy.Tailnet.Names(); !slices.Contains(names, origin.Host(x.r)) || !origin.IsOwnPort(x.r, "443") {
		if len(names) == 0 {
			return problem.New(problem.IdentityUnavailable, "This proxy is not connected to its tailnet.", "Try again in a moment.").WithRetryAfter(time.Second)
		}
		return problem.New(problem.WrongHost, fmt.Sprintf("The request is for another host; the name of this proxy is %s.", names[0]))
	}
	if apiproxy.CheckSite(x.r) != nil {
		return problem.New(problem.CrossOrigin, "Requests from the pages of other sites are refused.")
	}
	return nil
}

// identify decides for the caller of the connection.
func (x *exchange) identify() (err error) {
	x.caller, x.permit, err = x.proxy.identify(x.r)
	return err
}

// readSession reads the session from the path and from the token.
func (x *exchange) readSession() error {
	token, ok := apiproxy.BearerToken(x.r)
	session, err := signin.ParseSessionToken(token)
	if !ok || errors.Is(err, signin.ErrNoSession) {
		return problem.New(problem.NotSignedIn, "The request has no token that names a session, or it has another credential.",
			"Use a kubeconfig of this proxy: tka kubeconfig --mode proxy")
	}
	if err != nil {
		return problem.New(problem.BadRequest, fmt.Sprintf("The token names no session: %v.", err))
	}
	x.path = x.r.URL.EscapedPath()
	if rest, ok := strings.CutPrefix(x.path, signin.SessionPrefix); ok {
		inPath, path, _ := strings.Cut(rest, "/")
		if inPath != string(session) || inPath == "" {
			return problem.New(problem.BadRequest, fmt.Sprintf("The path names the session %.70q, and the token names %q.", inPath, session))
		}
		x.path = "/" + path
	}
	x.session, x.named = session, true
	return nil
}

// parse reads the request as an API server does.
func (x *exchange) parse() error {
	u := *x.r.URL
	var err error
	if u.Path, err = unescape(x.path); err != nil {
		return err
	}
	u.RawPath = x.path
	req, err := apiproxy.ParseRequest(x.r.Method, &u)
	if err != nil {
		return err
	}
	x.request = &req
	if x.upgrade, err = apiproxy.UpgradeOf(x.r, x.request); err != nil {
		return err
	}
	if x.r.URL.RawQuery != "" && hasToken(x.r.URL.RawQuery) {
		return problem.New(problem.BadRequest, "The query has a parameter access_token. The proxy accepts no credential in a URL.")
	}
	return nil
}

// findSignin finds the caller's live sign-in of the session.
func (x *exchange) findSignin() error {
	p, now := x.proxy, x.proxy.Now()
	if err := x.permit.Require(access.APIRequest, now); err != nil {
		return err
	}
	if err := p.proof.check(now); err != nil {
		return err
	}
	owner := signin.OwnerOf(x.caller, x.session)
	s, ok, err := p.signin(x.r.Context(), owner.Name(), x.began)
	if err == nil && p.Access != nil && x.session == "" && (!ok || p.isOver(s)) {
		if begun, known, useErr := x.signinOnUse(owner); known || useErr != nil {
			s, ok, err = begun, known, useErr
		}
	}
	switch {
	case err != nil:
		return err
	case !ok:
		return x.notSignedIn(owner)
	}
	x.signin = s
	p.firstUses.countUse(s)
	return p.refusalOf(s, p.Now())
}

// refusalOf returns why no request may be sent with s at now, or nil.
func (p *Proxy) refusalOf(s signin.Signin, now time.Time) error {
	login := "Run: " + loginCommand(p.Cluster, s.Owner.Session)
	switch state := s.State(now); {
	case p.proof.isGone(s.Name, s.UID, s.Version):
		return problem.New(problem.NotSignedIn, "The sign-in has ended.", login)
	case state == signin.Pending && s.Phase == signin.PhaseReady && now.Before(s.ValidUntil) && mismatch(s, now) == nil:
		return nil // it is being extended, and gives what it gave before
	case state == signin.Pending:
		return problem.New(problem.Unavailable, "The sign-in is being prepared.", "Try again in a moment.").WithRetryAfter(time.Second)
	case state == signin.Refused:
		return problem.New(problem.GrantRemoved, fmt.Sprintf("The sign-in was refused: %s", s.Message), "Ask an administrator of the cluster.")
	case state != signin.Ready || !now.Before(s.ValidUntil):
		return problem.New(problem.NotSignedIn, "The sign-in has ended.", login)
	}
	if err := mismatch(s, now); err != nil {
		return p.distrust(s, err)
	}
	return nil
}

// notSignedIn returns the refusal for a caller without a sign-in of the session.
func (x *exchange) notSignedIn(owner signin.Owner) error {
	var others []string
	for _, s := range x.proxy.Signins.ListCached(owner.Login) {
		if s.Owner.DeviceID == owner.DeviceID && s.Owner.Issuer == "" && isLive(s, x.proxy.Now()) {
			others = append(others, s.Owner.Session.String())
		}
		if s.Owner.Issuer != "" && s.Owner.DeviceID == owner.DeviceID && s.Owner.Session == owner.Session {
			return problem.New(problem.NotSignedIn, "The sign-in of this session began with an OIDC token. The proxy knows only the device of a connection, so it does not serve such sign-ins.",
				"Use a kubeconfig with a token: tka kubeconfig --mode token")
		}
	}
	who := fmt.Sprintf("%s is not signed in to %s on %s", owner.Login, x.proxy.Cluster, owner.DeviceName)
	if owner.Session != "" {
		who += fmt.Sprintf(" in the session %s", owner.Session)
	}
	advice := []string{"Run: " + loginCommand(x.proxy.Cluster, owner.Session)}
	if slices.Sort(others); len(others) > 0 {
		advice = append(advice, "This device is signed in in another session: "+strings.Join(others, ", ")+".")
	}
	return problem.New(problem.NotSignedIn, who+".", advice...)
}

// loginCommand returns the command that begins a sign-in of a session.
func loginCommand(cluster string, session signin.Session) string {
	command := "tka login --cluster " + cluster
	if session != "" {
		command += " --session " + string(session)
	}
	return command
}

// isStream reports whether the response continues until one side ends it.
func (x *exchange) isStream() bool {
	return x.request.Verb == "watch" || x.upgrade != "" || x.request.HasStreamSubresource()
}

// limit returns the context of the request to the API server.
func (x *exchange) limit() (context.Context, context.CancelFunc) {
	if x.isStream() {
		return context.WithCancel(x.r.Context())
	}
	return context.WithTimeout(x.r.Context(), apiproxy.RequestLimit(x.r))
}
