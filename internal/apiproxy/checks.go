package apiproxy

import (
	"net/http"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/util/origin"
)

// CheckTarget refuses a request target that is not a path.
func CheckTarget(r *http.Request) error {
	if r.Method == http.MethodConnect || !strings.HasPrefix(r.RequestURI, "/") {
		return NewBadRequest("the request's target is not a path")
	}
	return nil
}

// checkHost refuses host names that are not the listener's. A malicious web page can bind its own name to the
// loopback address, and the browser then treats requests as same-site.
func (x *Exchange) checkHost() error {
	// The API server's names are also valid with port 443.
	if !slices.Contains(x.server.Hosts, origin.Host(x.In)) || !origin.IsOwnPort(x.In, "443") {
		return NewRefusal(http.StatusMisdirectedRequest,
			"the request is for another host; the names of this server are %s", x.server.Hosts[0])
	}
	return nil
}

// CheckSite refuses requests that a browser sends for another site's page. This includes GET, which can read
// Secrets here.
func CheckSite(r *http.Request) error {
	if origin.IsCrossSite(r) {
		return NewRefusal(http.StatusForbidden, "cross-site requests are refused")
	}
	return nil
}

// checkToken accepts only requests with the local token, sent as a single bearer token.
func (x *Exchange) checkToken() error {
	if HasBearerToken(x.In, x.server.ValidToken) {
		return nil
	}
	reason := TokenWrong
	if len(x.In.Header["Authorization"]) == 0 {
		reason = TokenMissing
	}
	x.server.Telemetry.Metrics.LocalAuthFailed(reason)
	x.W.Header().Set("WWW-Authenticate", "Bearer")
	return NewRefusal(http.StatusUnauthorized,
		"the request does not have the token of this pod, which is next to ca.crt in /var/run/secrets/kubernetes.io/serviceaccount")
}

// HasBearerToken reports whether the request has exactly one Authorization header, with a bearer token that opens accepts.
func HasBearerToken(r *http.Request, opens func(string) bool) bool {
	token, ok := BearerToken(r)
	return ok && opens(token)
}

// BearerToken returns the bearer token of a request with exactly one Authorization header.
func BearerToken(r *http.Request) (string, bool) {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return "", false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	return strings.TrimSpace(token), ok && strings.EqualFold(scheme, "Bearer")
}

// checkImpersonation refuses a request with impersonation headers, unless they are allowed. Without the
// headers the request would run with all the rights of the pod.
func (x *Exchange) checkImpersonation() error {
	for name := range x.In.Header {
		plain := NormalizeHeader(name)
		// A name with underscores is not an allowed one, but a server behind the adapter may accept it as
		// such.
		if strings.HasPrefix(plain, "impersonate-") && (plain != strings.ToLower(name) || !x.server.Permissions().Impersonation) {
			return NewRefusal(
				http.StatusForbidden,
				"impersonation is refused: the request has a header %.60q. To allow it, set impersonation: allow in the adapter's configuration",
				name,
			)
		}
	}
	return nil
}

// UpgradeOf returns the protocol of a requested upgrade, or "". Kubernetes supports two; any other could
// bypass the checks of a proxy.
func UpgradeOf(r *http.Request, req *Request) (string, error) {
	values := r.Header["Upgrade"]
	if len(values) == 0 && len(r.Header["Http2-Settings"]) == 0 {
		return "", nil
	}
	if len(values) != 1 || len(r.Header["Http2-Settings"]) > 0 || !slices.Contains(ListElements(r.Header["Connection"]), "upgrade") {
		return "", NewBadRequest("the request has an incomplete or ambiguous protocol upgrade")
	}
	protocol := strings.ToLower(values[0])
	switch {
	case protocol == "websocket" && r.Method == http.MethodGet:
	case protocol == "spdy/3.1" && (r.Method == http.MethodPost || r.Method == http.MethodGet):
	default:
		return "", NewBadRequest("%s cannot be upgraded to %.40q: only websocket (GET) and SPDY/3.1 are supported", r.Method, values[0])
	}
	// The API server decides which subresources support it. Requests that cannot be streams do not.
	if req.NonResource || req.Subresource == "" && req.Verb != "watch" {
		return "", NewBadRequest("the request is not for a stream and cannot be upgraded")
	}
	if r.ContentLength != 0 {
		return "", NewBadRequest("an upgrade request must not have a body")
	}
	return values[0], nil
}
