package signin

import (
	"errors"
	"slices"
	"strings"

	"github.com/tailplane/tailplane/internal/problem"
)

// A Mode is a way from kubectl to the API server.
type Mode string

// The modes.
const (
	// ModeToken means that kubectl sends a token of the sign-in to the API server.
	ModeToken Mode = "token"
	// ModeProxy means that kubectl sends requests to the access proxy, which adds the token. The client holds no credential.
	ModeProxy Mode = "proxy"
)

// Modes returns all modes.
func Modes() []Mode { return []Mode{ModeProxy, ModeToken} }

// A ProxyServer is an access proxy of a cluster, as clients reach it.
type ProxyServer struct {
	URL    string `json:"url" doc:"base URL: scheme, host and port"`
	CAData []byte `json:"caData,omitempty" doc:"CA certificates of the proxy, PEM; absent: its certificate is public"`
}

// AccessModes returns the modes that the cluster offers and that this version knows, the preferred one first. A server that announces
// none is older than the modes and offers tokens only. The mode proxy needs an announced proxy.
func (i ClusterInfo) AccessModes() []Mode {
	if len(i.Modes) == 0 {
		return []Mode{ModeToken}
	}
	return slices.DeleteFunc(slices.Clone(i.Modes), func(m Mode) bool {
		return !slices.Contains(Modes(), m) || m == ModeProxy && len(i.Proxies) == 0
	})
}

// SessionToken returns the bearer token that names a session to the access proxy. It is no secret: the connection is the credential. It
// exists because kubectl asks for a user name without a token, and because a web page cannot set it.
func SessionToken(s Session) string {
	if s == "" {
		return sessionToken + defaultSession
	}
	return sessionToken + string(s)
}

// ErrNoSession reports a bearer token that does not have the form of SessionToken.
var ErrNoSession = errors.New("the token names no session")

// ParseSessionToken returns the session that a bearer token names. Errors: ErrNoSession, and that of [ParseSession].
func ParseSessionToken(token string) (Session, error) {
	name, ok := strings.CutPrefix(token, sessionToken)
	switch {
	case !ok || name == "":
		return "", ErrNoSession
	case name == defaultSession:
		return "", nil
	}
	return FindSession(name)
}

const (
	sessionToken   = "session."
	defaultSession = "default" // [ParseSession] accepts no session of this name
)

// SessionPrefix begins the paths that name a session of the access proxy.
const SessionPrefix = "/s/"

// SessionPath returns the path of a session below the URL of the access proxy.
func SessionPath(s Session) string {
	if s == "" {
		return "/"
	}
	return SessionPrefix + string(s)
}

// recordedOnly returns the refusal of a kubeconfig with a token for a sign-in whose streams must be recorded: only the access proxy records.
func (d *Service) recordedOnly(record []string) error {
	return problem.New(problem.ProxyOnly, "The rule for this sign-in requires that "+strings.Join(record, ", ")+" is recorded, so there is no token for it: kubectl reaches the cluster "+
		d.Cluster.Name+" through the access proxy.", "Use the access proxy: tka login --mode proxy --cluster "+d.Cluster.Name)
}

// evades reports whether a sign-in may have been given a token although record now requires that its streams are recorded. Its account must
// go, because its tokens reach the API server past the recording.
func (d *Service) evades(s Signin, record []string) bool {
	return len(s.Record) == 0 && len(record) > 0 && slices.Contains(d.Cluster.AccessModes(), ModeToken)
}

// proxyOnly returns the refusal of a kubeconfig with a token for a cluster that offers none.
func (d *Service) proxyOnly() error {
	if slices.Contains(d.Cluster.AccessModes(), ModeToken) {
		return nil
	}
	return problem.New(problem.ProxyOnly, "The cluster "+d.Cluster.Name+" gives out no tokens: kubectl reaches it through the access proxy.",
		"Write a kubeconfig for the proxy: tka login --cluster "+d.Cluster.Name)
}
