package accessproxy

import (
	"context"
	"net"
	"net/http"
	"net/http/httptest"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// The functions below give the tests of this folder, which use fakes of package proxytest, access to single steps.

// Times of connections and proofs.
const (
	MaxIdentityAge = maxIdentityAge
	TokenRenewal   = tokenRenewal
	TokenAnewLimit = tokenAnewLimit
	MaxProofAge    = maxProofAge
	MaxStreamAge   = maxStreamAge
	ProofInterval  = proofInterval
)

// Connect returns a request of a new connection.
func (p *Proxy) Connect(c net.Conn, r *http.Request) *http.Request {
	p.prepare()
	return r.WithContext(p.connContext(r.Context(), c))
}

func (p *Proxy) IdentifyCaller(r *http.Request) (access.Caller, access.Permit, error) {
	return p.identify(r)
}

// ReadSession returns the session of a request and the path behind it.
func ReadSession(r *http.Request) (session signin.Session, path string, err error) {
	x := &exchange{r: r}
	err = x.readSession()
	return x.session, x.path, err
}

func (p *Proxy) CheckImpersonation(h http.Header) error {
	return (&exchange{proxy: p, r: &http.Request{Header: h}}).checkImpersonation()
}

// IsDiscovery reports whether an early refusal of a request for path is plain text.
func IsDiscovery(path string) bool {
	return (&exchange{r: httptest.NewRequest("GET", path, nil)}).isDiscovery()
}

func CheckSpelling(r *http.Request) error { return checkSpelling(r) }

func (p *Proxy) Token(ctx context.Context, s signin.Signin) (secret.Text, error) {
	p.prepare()
	return p.tokens.get(ctx, s)
}

func (p *Proxy) ReplaceToken(ctx context.Context, s signin.Signin, used secret.Text) (secret.Text, bool) {
	return p.tokens.replace(ctx, s, used)
}

// Tokens returns for how many sign-ins the proxy holds a token.
func (p *Proxy) Tokens() int {
	p.tokens.mu.Lock()
	defer p.tokens.mu.Unlock()
	return len(p.tokens.all)
}

func (p *Proxy) RenewProof(ctx context.Context) { p.prepare(); p.proof.renew(ctx, p) }

func (p *Proxy) RefusalOf(s signin.Signin) error { return p.refusalOf(s, p.Now()) }

func IsLater(a, b string) bool { return isLater(a, b) }
