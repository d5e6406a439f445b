package tailnettest

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"net/http"
	"strings"

	"github.com/tailscale/hujson"

	"github.com/tailplane/tailplane/internal/tailnet/tailnettest/tailpolicy"
)

func (a *API) policyRoutes() []route {
	return []route{
		{"GET /tailnet/{tailnet}/acl", "policy_file", a.getPolicy},
		{"POST /tailnet/{tailnet}/acl", "policy_file", a.setPolicy},
		{"POST /tailnet/{tailnet}/acl/validate", "policy_file", a.validatePolicy},
	}
}

func etag(text string) string {
	return fmt.Sprintf("%q", fmt.Sprintf("%x", sha256.Sum256([]byte(text))))
}

func (a *API) getPolicy(c *call) (any, error) { return writePolicy(c, a.net.Policy()) }

// writePolicy answers with the text as it was set, or as JSON where that is asked for.
func writePolicy(c *call, text string) (any, error) {
	c.w.Header().Set("Etag", etag(text))
	if !strings.Contains(c.Header.Get("Accept"), "application/json") {
		c.w.Header().Set("Content-Type", "application/hujson")
		return []byte(text), nil
	}
	c.w.Header().Set("Content-Type", "application/json")
	return hujson.Standardize([]byte(text))
}

func (a *API) setPolicy(c *call) (any, error) {
	p, err := tailpolicy.Parse(string(c.body))
	if err != nil {
		return nil, policyRefused(err)
	}
	ctl := a.net.control
	ctl.mu.Lock()
	defer ctl.mu.Unlock()
	if want := c.Header.Get("If-Match"); want != "" && want != etag(ctl.policy.Text()) {
		return nil, &apiError{Status: http.StatusPreconditionFailed, Message: "precondition failed, invalid old hash"}
	}
	ctl.policy = p
	ctl.bumpLocked()
	return writePolicy(c, p.Text())
}

func policyRefused(err error) error {
	out := &apiError{Status: http.StatusBadRequest, Message: err.Error()}
	if pe, ok := errors.AsType[*tailpolicy.Error](err); ok && pe.Test {
		out.Message = "test(s) failed"
		out.Data = []apiErrorData{{Errors: []string{pe.Error()}}}
	}
	return out
}

// validatePolicy answers with 200 in any case; what is wrong stands in the body.
func (a *API) validatePolicy(c *call) (any, error) {
	if _, err := tailpolicy.Parse(string(c.body)); err != nil {
		return policyRefused(err), nil
	}
	return map[string]any{}, nil
}
