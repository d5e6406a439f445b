package accessproxy

import (
	"fmt"
	"net/http"
	"net/url"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/apiproxy"
	"github.com/tailplane/tailplane/internal/problem"
)

// foreignHeaders are the fields, and their prefixes, in which a client could claim something to a server behind the
// proxy, besides those that package apiproxy removes. An API server keeps any client's Audit-ID, and its audit log has
// the address in X-Real-Ip as one of the client.
var (
	foreignHeaders  = []string{"audit-id", "tailplane-pod-token", "x-real-ip", "sec-websocket-extensions"} // compressed messages could not be ended
	foreignPrefixes = []string{"tailscale-"}
)

// header returns the header fields of the request to the API server, without its credential.
func (x *exchange) header() http.Header {
	h := apiproxy.RequestHeaders(x.r.Header)
	for name := range h {
		plain := apiproxy.NormalizeHeader(name)
		if slices.Contains(foreignHeaders, plain) || slices.ContainsFunc(foreignPrefixes, func(p string) bool { return strings.HasPrefix(plain, p) }) {
			delete(h, name)
		}
	}
	h["Audit-Id"] = []string{x.id}
	if x.request.Verb == "watch" {
		h["Accept-Encoding"] = []string{"identity"} // the end of a watch is written into its stream
	}
	if x.upgrade != "" {
		h["Connection"], h["Upgrade"] = []string{"Upgrade"}, []string{x.upgrade}
	}
	return h
}

// impersonatePrefix is the prefix of the fields with which a client asks to act as another user.
const impersonatePrefix = "impersonate-"

// checkImpersonation refuses impersonation that two servers could read differently, and that of accounts that could
// give access to everything. All other fields pass unchanged, and Kubernetes decides by the rights of the caller's own
// account. Without the fields the request would mean something else, so they are never dropped.
func (x *exchange) checkImpersonation() error {
	impersonates, user := false, false
	for name, values := range x.r.Header {
		plain := apiproxy.NormalizeHeader(name)
		if !strings.HasPrefix(plain, impersonatePrefix) {
			continue
		}
		impersonates = true
		kind := strings.TrimPrefix(plain, impersonatePrefix)
		extra := strings.HasPrefix(kind, "extra-") && len(kind) > len("extra-")
		switch {
		case plain != strings.ToLower(name), !extra && !slices.Contains([]string{"user", "group", "uid"}, kind):
			return problem.New(problem.BadRequest, fmt.Sprintf("The proxy does not know the header field %.60q.", name))
		case extra && !isExtraKey(kind[len("extra-"):]):
			return problem.New(problem.BadRequest, fmt.Sprintf("The header field %.60q names no valid extra key.", name))
		case (kind == "user" || kind == "uid") && len(values) != 1:
			return problem.New(problem.BadRequest, fmt.Sprintf("The header field %s occurs %d times.", name, len(values)))
		case slices.ContainsFunc(values, func(v string) bool { return v == "" || !apiproxy.IsPrintable(v) }):
			return problem.New(problem.BadRequest, fmt.Sprintf("The header field %s is empty or has characters that cannot be printed.", name))
		}
		if kind == "user" {
			user = true
			if ns, ok := accountNamespace(values[0]); ok && slices.Contains(x.proxy.Protected, ns) {
				return problem.New(problem.Forbidden, fmt.Sprintf("No caller may act as a ServiceAccount of the namespace %s.", ns))
			}
		}
		if slices.ContainsFunc(apiproxy.ListElements(x.r.Header["Connection"]), func(n string) bool { return apiproxy.NormalizeHeader(n) == plain }) {
			return problem.New(problem.BadRequest, fmt.Sprintf("The field Connection names %s, which would remove it on the way.", name))
		}
	}
	if impersonates && !user {
		return problem.New(problem.BadRequest, "The request names a group, a UID or an extra value to impersonate, and no user.")
	}
	return nil
}

// isExtraKey reports whether an escaped extra key is one that all servers read in the same way.
func isExtraKey(escaped string) bool {
	key, err := url.PathUnescape(escaped)
	return err == nil && key != "" && apiproxy.IsPrintable(key) && !strings.Contains(key, " ")
}

// accountNamespace returns the namespace of a ServiceAccount's user name.
func accountNamespace(user string) (string, bool) {
	rest, ok := strings.CutPrefix(user, "system:serviceaccount:")
	if !ok {
		return "", false
	}
	ns, _, ok := strings.Cut(rest, ":")
	return ns, ok
}

// hasToken reports whether a query has a parameter that some servers accept as a bearer token (RFC 6750, section 2.3).
// Some of them also separate parameters by semicolons.
func hasToken(query string) bool {
	for pair := range strings.FieldsFuncSeq(query, func(c rune) bool { return c == '&' || c == ';' }) {
		name, _, _ := strings.Cut(pair, "=")
		if decoded, err := url.QueryUnescape(name); err == nil && strings.EqualFold(decoded, "access_token") {
			return true
		}
	}
	return false
}

// checkSpelling refuses a request line that two servers could read differently, and trailers: they arrive after the
// decision. Over HTTP/1, package framing refuses both, except for a path that net/url decodes and escapes again.
func checkSpelling(r *http.Request) error {
	path, query, _ := strings.Cut(r.RequestURI, "?")
	switch {
	case strings.Contains(path, "%") && path != r.URL.EscapedPath():
		return problem.New(problem.BadRequest, "The path has both escaped characters and characters that must be escaped.")
	case strings.ContainsFunc(query, func(c rune) bool { return c <= ' ' || c == '#' || c == 0x7f }):
		return problem.New(problem.BadRequest, "The query has a character that must be escaped.")
	case len(r.Trailer) > 0:
		return problem.New(problem.BadRequest, "The proxy accepts no trailers.")
	}
	return nil
}

func unescape(path string) (string, error) {
	decoded, err := url.PathUnescape(path)
	if err != nil {
		return "", problem.New(problem.BadRequest, "The path is not escaped like a URL.")
	}
	return decoded, nil
}
