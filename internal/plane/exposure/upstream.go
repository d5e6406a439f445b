// Package exposure exposes services of the cluster, such as Prometheus and Grafana, on the tailnet. Each has its own server with a reverse
// proxy. It keeps law 1 for outgoing requests: the service receives the caller's identity from the server, and none of the client's claims.
//
// It is a separate package because tka, which links package plane, must not link a reverse proxy and package identity.
package exposure

import (
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"net/url"
	"regexp"
	"slices"
	"strings"
	"time"

	"github.com/tailplane/tailplane/internal/identity"
)

// Access says who may use an upstream.
type Access string

// The values of Access.
const (
	// AccessObserve admits callers with the verb observe.read. Paths that change the upstream need observe.admin.
	AccessObserve Access = "observe.read"
	// AccessIdentified admits every person of the tailnet. The upstream does its own authorisation.
	AccessIdentified Access = "identified"
)

// Upstream is one service to expose on the tailnet. Fields are required unless noted otherwise.
type Upstream struct {
	Name   string // host name on the tailnet
	URL    string // of a cluster Service: http://prometheus.monitoring.svc:9090
	Access Access
	// UserHeader and RoleHeader are the headers that carry the caller's login and role to the upstream, such as X-WEBAUTH-USER. They are
	// optional. The upstream must trust them only from this proxy, by its own settings and its network policy.
	UserHeader, RoleHeader string
	// Never lists namespaces that must not be exposed: those of runners and of Tailplane. It is optional.
	Never []string

	Transport http.RoundTripper // to the upstream
	Log       *slog.Logger
	Now       func() time.Time
}

var (
	labelPattern  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) // RFC 1123
	headerPattern = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*$`)
)

// Check returns an error for a missing, invalid or forbidden setting.
func (u Upstream) Check() error {
	if err := u.check(); err != nil {
		return fmt.Errorf("exposure %.60q: %w", u.Name, err)
	}
	return nil
}

func (u Upstream) check() error {
	if !labelPattern.MatchString(u.Name) {
		return errors.New("the name is not a valid host name")
	}
	if u.Access != AccessObserve && u.Access != AccessIdentified {
		return fmt.Errorf("access is %.40q; it must be %s or %s", u.Access, AccessObserve, AccessIdentified)
	}
	for _, name := range []string{u.UserHeader, u.RoleHeader} {
		switch {
		case name == "":
		case u.Access != AccessObserve:
			return errors.New("userHeader and roleHeader must be empty, because identified callers have no role here and the upstream identifies them itself")
		case !headerPattern.MatchString(name) || reserved(name):
			return fmt.Errorf("%.60q is not allowed as a header for the caller", name)
		}
	}
	if u.UserHeader != "" && identity.SameHeader(u.UserHeader, u.RoleHeader) {
		return errors.New("the user and the role must use different headers")
	}
	if u.RoleHeader != "" && u.UserHeader == "" {
		return errors.New("roleHeader requires userHeader")
	}
	if u.Transport == nil || u.Log == nil || u.Now == nil {
		return errors.New("a required field is missing")
	}
	_, err := u.target()
	return err
}

// reserved reports whether a header has another use in HTTP or in Tailplane.
func reserved(name string) bool {
	return slices.ContainsFunc([]string{"Host", "Origin", "Cookie", "Content-Length", "Content-Type", "Connection", "Upgrade", "Transfer-Encoding", "TE", "Trailer",
		"Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Authorization", "Accept", "Expect", identity.SecretHeader},
		func(r string) bool { return identity.SameHeader(r, name) }) || strings.HasPrefix(strings.ToLower(name), "sec-")
}

// target returns the upstream's URL. The URL must name a Service that may be exposed. It must not name a pod, a node or a machine outside
// the cluster.
func (u Upstream) target() (*url.URL, error) {
	t, err := url.Parse(u.URL)
	if err != nil {
		return nil, errors.New("the upstream is not a URL") // the parser's error would contain a password
	}
	switch {
	case t.Scheme != "http" && t.Scheme != "https":
		return nil, errors.New("the upstream is neither http nor https")
	case t.User != nil || t.RawQuery != "" || t.Fragment != "" || t.RawPath != "" || t.Opaque != "":
		return nil, errors.New("the upstream must have only a scheme, a host and a path")
	}
	host := strings.TrimSuffix(t.Hostname(), ".cluster.local")
	part := strings.Split(host, ".")
	if len(part) != 3 || part[2] != "svc" || !labelPattern.MatchString(part[0]) || !labelPattern.MatchString(part[1]) {
		return nil, fmt.Errorf("the upstream %.100s is not a Service: name.namespace.svc", t.Host)
	}
	if why := forbiddenTarget(part[0], part[1], t.Port()); why != "" {
		return nil, fmt.Errorf("the upstream %s must not be exposed: %s", t.Host, why)
	}
	if slices.Contains(u.Never, part[1]) {
		return nil, fmt.Errorf("the upstream %s is in the namespace %s, whose Services must not be exposed", t.Host, part[1])
	}
	return t, nil
}

// forbiddenTarget returns why a Service must stay inside the cluster, or "" if it may be exposed. It can judge only by names; each of these
// services has a typical name when its usual chart installs it.
func forbiddenTarget(service, namespace, port string) string {
	for _, name := range []string{service, namespace} {
		words := strings.Split(name, "-")
		switch {
		case slices.Contains(words, "arc"), slices.Contains(words, "gha"), strings.Contains(name, "actions-runner"):
			return "the controller of runners needs no access from outside"
		case strings.Contains(name, "runner"):
			return "runners accept no connections"
		case strings.Contains(name, "postgres"), strings.Contains(name, "cnpg"), strings.Contains(name, "pgbouncer"):
			return "only the operator of PostgreSQL needs access"
		case strings.Contains(name, "rustfs"):
			return "only the cache needs access to RustFS"
		}
	}
	switch {
	case port == "5432":
		return "only the operator of PostgreSQL needs access"
	case service == "kubernetes" && namespace == "default":
		return "the sign-in server gives access to the API server"
	}
	return ""
}
