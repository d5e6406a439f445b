// Package expose puts services of the cluster, such as Prometheus and Grafana, on
// the tailnet: each is a door of its own with a reverse proxy behind it. It keeps
// law 1 on the way out: the service is told who is calling as the door knows it,
// and nothing that the client says of itself.
package expose

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

// An Access says who may use an upstream.
type Access string

// The two that there are.
const (
	// Observe is whoever may look at everything: the verb observe.read. What changes
	// the upstream itself asks for observe.admin.
	Observe Access = "observe.read"
	// Identified is every person of the tailnet; the upstream asks for more itself.
	Identified Access = "identified"
)

// An Upstream is one service that is put on the tailnet. Fields without a remark
// are required.
type Upstream struct {
	Name   string // host name on the tailnet
	URL    string // of a Service of the cluster: http://prometheus.monitoring.svc:9090
	Access Access
	// UserHeader and RoleHeader, optional, are how the upstream hears who is calling,
	// such as X-WEBAUTH-USER. It must believe them from nobody else: that is its own
	// setting, and its network policy's.
	UserHeader, RoleHeader string
	// Never, optional, are namespaces of which nothing is exposed: those of runners,
	// and ours.
	Never []string

	Transport http.RoundTripper // how the upstream is reached
	Log       *slog.Logger
	Now       func() time.Time
}

var (
	labelForm  = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$`) // RFC 1123
	headerForm = regexp.MustCompile(`^[A-Za-z][A-Za-z0-9-]*$`)
)

// Check returns what is missing, makes no sense, or must not be.
func (u Upstream) Check() error {
	if err := u.check(); err != nil {
		return fmt.Errorf("exposure %.60q: %w", u.Name, err)
	}
	return nil
}

func (u Upstream) check() error {
	if !labelForm.MatchString(u.Name) {
		return errors.New("the name is not one of a host")
	}
	if u.Access != Observe && u.Access != Identified {
		return fmt.Errorf("access is %.40q, and neither %s nor %s", u.Access, Observe, Identified)
	}
	for _, name := range []string{u.UserHeader, u.RoleHeader} {
		switch {
		case name == "":
		case u.Access != Observe:
			return errors.New("who is only identified has no role here, and the upstream asks who it is itself: leave the headers out")
		case !headerForm.MatchString(name) || reserved(name):
			return fmt.Errorf("%.60q cannot be the header that names the caller", name)
		}
	}
	if u.UserHeader != "" && identity.SameHeader(u.UserHeader, u.RoleHeader) {
		return errors.New("one header cannot say both the user and the role")
	}
	if u.RoleHeader != "" && u.UserHeader == "" {
		return errors.New("a role without a user is nobody's")
	}
	if u.Transport == nil || u.Log == nil || u.Now == nil {
		return errors.New("a required field is missing")
	}
	_, err := u.target()
	return err
}

// reserved reports whether HTTP itself, or we, have another use for a header.
func reserved(name string) bool {
	return slices.ContainsFunc([]string{"Host", "Origin", "Cookie", "Content-Length", "Content-Type", "Connection", "Upgrade", "Transfer-Encoding", "TE", "Trailer",
		"Keep-Alive", "Proxy-Authorization", "Proxy-Connection", "Authorization", "Accept", "Expect", identity.SecretHeader},
		func(r string) bool { return identity.SameHeader(r, name) }) || strings.HasPrefix(strings.ToLower(name), "sec-")
}

// target returns the upstream's URL. It must name a Service, so that nothing but
// what somebody has given a name in the cluster is reached: no pod, no node, no
// machine outside, and none of what is never exposed.
func (u Upstream) target() (*url.URL, error) {
	t, err := url.Parse(u.URL)
	if err != nil {
		return nil, errors.New("the upstream is not a URL") // the parser's own error would repeat a password
	}
	switch {
	case t.Scheme != "http" && t.Scheme != "https":
		return nil, errors.New("the upstream is neither http nor https")
	case t.User != nil || t.RawQuery != "" || t.Fragment != "" || t.RawPath != "" || t.Opaque != "":
		return nil, errors.New("the upstream is more than a scheme, a host and a path")
	}
	host := strings.TrimSuffix(t.Hostname(), ".cluster.local")
	part := strings.Split(host, ".")
	if len(part) != 3 || part[2] != "svc" || !labelForm.MatchString(part[0]) || !labelForm.MatchString(part[1]) {
		return nil, fmt.Errorf("the upstream %.100s is not a Service: name.namespace.svc", t.Host)
	}
	if why := secluded(part[0], part[1], t.Port()); why != "" {
		return nil, fmt.Errorf("the upstream %s is never on the tailnet: %s", t.Host, why)
	}
	if slices.Contains(u.Never, part[1]) {
		return nil, fmt.Errorf("the upstream %s is in the namespace %s, of which nothing is exposed", t.Host, part[1])
	}
	return t, nil
}

// secluded says why a Service stays inside the cluster, "" when it may be exposed.
// Names are all that can be told from a URL; each of these runs under a name of
// its own wherever it is installed by its usual chart.
func secluded(service, namespace, port string) string {
	for _, name := range []string{service, namespace} {
		words := strings.Split(name, "-")
		switch {
		case slices.Contains(words, "arc"), slices.Contains(words, "gha"), strings.Contains(name, "actions-runner"):
			return "the controller of runners needs no API outside"
		case strings.Contains(name, "runner"):
			return "runners are reached by nobody"
		case strings.Contains(name, "postgres"), strings.Contains(name, "cnpg"), strings.Contains(name, "pgbouncer"):
			return "PostgreSQL is the business of its operator"
		case strings.Contains(name, "rustfs"):
			return "RustFS serves the cache only"
		}
	}
	switch {
	case port == "5432":
		return "PostgreSQL is the business of its operator"
	case service == "kubernetes" && namespace == "default":
		return "the API server is reached by signing in"
	}
	return ""
}
