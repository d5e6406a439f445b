package tsapi

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/tailplane/tailplane/testkit/tailnettest/tailpolicy"
)

func (a *API) policyRoutes() []route {
	return []route{
		{"GET /tailnet/{tailnet}/acl", "policy_file", a.getPolicy},
		{"POST /tailnet/{tailnet}/acl", "policy_file", a.setPolicy},
		{"POST /tailnet/{tailnet}/acl/validate", "policy_file", a.validatePolicy},
	}
}

func etag(p *tailpolicy.Policy) string {
	return fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256([]byte(p.Text()))))
}

func (a *API) getPolicy(c *call) (any, error) { return writePolicy(c, a.net.Policy()) }

// writePolicy returns the text as it was set, or as JSON if the client requests that.
func writePolicy(c *call, p *tailpolicy.Policy) (any, error) {
	c.w.Header().Set("Etag", etag(p))
	if !strings.Contains(c.Header.Get("Accept"), "application/json") {
		c.w.Header().Set("Content-Type", "application/hujson")
		return []byte(p.Text()), nil
	}
	c.w.Header().Set("Content-Type", "application/json")
	return hujson.Standardize([]byte(p.Text()))
}

func (a *API) setPolicy(c *call) (any, error) {
	next, err := tailpolicy.Parse(string(c.body))
	if err != nil {
		return nil, policyRefused(err)
	}
	var old *tailpolicy.Policy // nil: replace any policy
	want := c.Header.Get("If-Match")
	if want != "" {
		old = a.net.Policy()
	}
	if want != "" && want != etag(old) || !a.net.ReplacePolicy(old, next) {
		return nil, &apiError{Status: http.StatusPreconditionFailed, Message: "precondition failed, invalid old hash"}
	}
	return writePolicy(c, next)
}

func policyRefused(err error) error {
	out := &apiError{Status: http.StatusBadRequest, Message: err.Error()}
	if pe, ok := errors.AsType[*tailpolicy.Error](err); ok && pe.Test {
		out.Message = "test(s) failed"
		out.Data = []apiErrorData{{Errors: []string{pe.Error()}}}
	}
	return out
}

// validatePolicy always returns 200. The body contains the errors.
func (a *API) validatePolicy(c *call) (any, error) {
	if _, err := tailpolicy.Parse(string(c.body)); err != nil {
		return policyRefused(err), nil
	}
	return map[string]any{}, nil
}
