package serving

import (
	"fmt"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/apiproxy/observe"
)

func refusal(status int, reason, format string, args ...any) *apiproxy.Refusal {
	return &apiproxy.Refusal{Status: status, Reason: reason, Message: fmt.Sprintf(format, args...)}
}

func badRequest(format string, args ...any) *apiproxy.Refusal {
	return refusal(http.StatusBadRequest, "BadRequest", format, args...)
}

// checkForm refuses a target that is not the path of a request to this server.
func checkForm(r *http.Request) error {
	if r.Method == http.MethodConnect || !strings.HasPrefix(r.RequestURI, "/") {
		return badRequest("the request's target is not a path")
	}
	return nil
}

// checkHost refuses names that are not the listener's own: a web page whose name
// was bound to the loopback address is same-site to the browser.
func (v *visit) checkHost() error {
	host := v.r.Host
	if h, port, err := net.SplitHostPort(host); err == nil {
		host = h
		if local, ok := v.r.Context().Value(http.LocalAddrContextKey).(net.Addr); ok {
			// The names of the API server stand for its port 443 too.
			if _, own, err := net.SplitHostPort(local.String()); err == nil && own != port && port != "443" {
				host = ""
			}
		}
	}
	host = strings.TrimSuffix(strings.ToLower(strings.Trim(host, "[]")), ".")
	if addr, err := netip.ParseAddr(host); err == nil {
		host = addr.String()
	}
	if !slices.Contains(v.Names, host) {
		return refusal(http.StatusMisdirectedRequest, "MisdirectedRequest", "this is not the host that the request names; it goes by %s", v.Names[0])
	}
	return nil
}

// checkSite refuses what a browser sends for another site's page. GET too: here
// it reads Secrets.
func checkSite(r *http.Request) error {
	refused := refusal(http.StatusForbidden, "Forbidden", "requests from another site's page are refused")
	switch r.Header.Get("Sec-Fetch-Site") {
	case "", "none", "same-origin":
	default:
		return refused
	}
	for _, origin := range r.Header["Origin"] {
		if u, err := url.Parse(origin); err != nil || u.Host == "" || !strings.EqualFold(u.Host, r.Host) {
			return refused
		}
	}
	return nil
}

// checkToken lets in who holds the local token, as one bearer token and in no other way.
func (v *visit) checkToken() error {
	if holds(v.r, v.Opens) {
		return nil
	}
	why := observe.TokenWrong
	if len(v.r.Header["Authorization"]) == 0 {
		why = observe.TokenMissing
	}
	v.Observe.Metrics.LocalAuthFailed(why)
	v.w.Header().Set("WWW-Authenticate", "Bearer")
	return refusal(http.StatusUnauthorized, "Unauthorized", "the request does not carry the token of this pod, which lies beside ca.crt in /var/run/secrets/kubernetes.io/serviceaccount")
}

func holds(r *http.Request, opens func(string) bool) bool {
	values := r.Header["Authorization"]
	if len(values) != 1 {
		return false
	}
	scheme, token, ok := strings.Cut(values[0], " ")
	return ok && strings.EqualFold(scheme, "Bearer") && opens(strings.TrimSpace(token))
}

// checkImpersonation refuses a call that is meant as somebody else's. To drop the
// headers would run it with all the rights of the pod.
func (v *visit) checkImpersonation() error {
	for name := range v.r.Header {
		plain := plainName(name)
		// Half a name is none that anybody allowed: a reader behind us may take it for whole.
		if strings.HasPrefix(plain, "impersonate-") && (plain != strings.ToLower(name) || !v.Allows().Impersonation) {
			return refusal(http.StatusForbidden, "Forbidden", "impersonation is refused: the request carries a header %.60q. impersonation: allow in the adapter's configuration changes that", name)
		}
	}
	return nil
}

// upgradeOf returns the protocol that the client wants to switch to, or "".
// There are two that Kubernetes speaks; any other could open a second way in.
func upgradeOf(r *http.Request, req *apiproxy.Request) (string, error) {
	values := r.Header["Upgrade"]
	if len(values) == 0 && len(r.Header["Http2-Settings"]) == 0 {
		return "", nil
	}
	if len(values) != 1 || len(r.Header["Http2-Settings"]) > 0 || !slices.Contains(tokens(r.Header["Connection"]), "upgrade") {
		return "", badRequest("the request asks for an upgrade in more than one way, or in half of one")
	}
	protocol := strings.ToLower(values[0])
	switch {
	case protocol == "websocket" && r.Method == http.MethodGet:
	case protocol == "spdy/3.1" && (r.Method == http.MethodPost || r.Method == http.MethodGet):
	default:
		return "", badRequest("%s cannot be upgraded to %.40q: websocket (GET) and SPDY/3.1 can", r.Method, values[0])
	}
	// Which of them take part is the API server's to say; what is no stream at all cannot.
	if req.NonResource || req.Subresource == "" && req.Verb != "watch" {
		return "", badRequest("what is asked for is not a stream and cannot be upgraded")
	}
	if r.ContentLength != 0 {
		return "", badRequest("a request for an upgrade has no body")
	}
	return values[0], nil
}
