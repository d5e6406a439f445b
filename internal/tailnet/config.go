package tailnet

import (
	"crypto/tls"
	"errors"
	"fmt"
	"log/slog"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"
	"unicode"

	"tailscale.com/ipn"
	"tailscale.com/tailcfg"
	"tailscale.com/util/dnsname"

	"github.com/tailplane/tailplane/internal/util/secret"
)

// A Config is the configuration of a Node. Fields are required unless their comment says otherwise.
type Config struct {
	Hostname string   // requested name; the tailnet may assign a different one
	Tags     []string // optional, such as "tag:tailplane"; the auth key must own them

	// ControlURL is the address of the control server. Empty means Tailscale's control server.
	ControlURL string

	// AuthKey, optional, is an auth key or an OAuth client secret that lets the node join without a
	// person. A node that has joined before does not need it. If it is empty, Tailscale's library
	// reads TS_AUTHKEY itself.
	AuthKey secret.Text

	// StateDir stores the node's keys, and therefore its identity, across restarts. Only one
	// process may use it at a time.
	StateDir string
	// StateSecret, optional, names a Secret in the pod's namespace that stores the node's keys.
	// StateDir then contains only data that may be lost. The Secret must exist, and only one
	// process may use it at a time. No lock enforces this.
	StateSecret string

	// Relay configures a node that forwards traffic for others. It can reach the services of the
	// tailnet, and needs no Port and no Capability.
	Relay bool
	// Services lets the node host services of the tailnet. A node with Relay can do so too.
	Services bool
	// State, optional, stores the node's keys instead of StateDir and StateSecret.
	State State

	Port uint16 // TCP port for Listen
	// InsecureHTTP lets Listen work without TLS if the tailnet has no HTTPS. WireGuard still
	// encrypts, but browsers and clients cannot verify that.
	InsecureHTTP bool
	// Certificate, optional, returns the certificate for Listen if the tailnet has no HTTPS. Listen then never works
	// without TLS.
	Certificate func(*tls.ClientHelloInfo) (*tls.Certificate, error)
	// HTTP2 offers HTTP/2 to TLS clients. The server on the listener must accept it below TLS, as package framing does.
	HTTP2 bool

	// Capability is the name of the capability whose values become Caller.Rules.
	Capability string
	// RequestCapability is the name of the capability whose values become Caller.RequestRules; "": none.
	RequestCapability string

	// JoinTimeout is how long the node tries to join at the start; 0 means one minute. The time in
	// which the node waits for a person does not count.
	JoinTimeout time.Duration

	Log *slog.Logger
}

// A State stores data that a node must not lose. Keys are file names. Writing nil removes a key.
// Only one goroutine calls it at a time.
type State interface {
	ReadState(key string) []byte // returns nil for a missing key
	WriteState(key string, value []byte) error
}

// secretName is an RFC 1123 subdomain, because the name becomes part of a URL.
var secretName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// check sets defaults and returns an error with all invalid settings.
func (c *Config) check() error {
	var errs []error
	bad := func(field, format string, args ...any) {
		errs = append(errs, fmt.Errorf("tailnet.%s: "+format, append([]any{field}, args...)...))
	}
	if err := dnsname.ValidLabel(c.Hostname); err != nil {
		bad("hostname", "%q is not a host name of letters, digits and dashes, at most 63", c.Hostname)
	}
	for _, tag := range c.Tags {
		if err := tailcfg.CheckTag(tag); err != nil {
			bad("tags", "%q is not a tag such as \"tag:tailplane\": %w", tag, err)
		}
	}
	if c.ControlURL == "" {
		c.ControlURL = ipn.DefaultControlURL
	}
	if u, err := url.Parse(c.ControlURL); err != nil || u.Scheme != "https" && u.Scheme != "http" || u.Host == "" ||
		u.User != nil || u.RawQuery != "" || u.Fragment != "" || strings.Trim(u.Path, "/") != "" {
		bad("controlURL", "not an address such as \"https://control.example.com\"") // do not print the URL, it may contain a password
	} else {
		c.ControlURL = u.Scheme + "://" + u.Host
	}
	if c.StateDir == "" {
		bad("stateDir", "it is missing; without state the node would be a new node after each restart")
	} else if abs, err := filepath.Abs(c.StateDir); err != nil {
		bad("stateDir", "%w", err)
	} else {
		c.StateDir = abs
	}
	if c.StateSecret != "" && (len(c.StateSecret) > 253 || !secretName.MatchString(c.StateSecret)) {
		bad("stateSecret", "%.60q is not the name of a Secret", c.StateSecret)
	}
	if c.Port == 0 && !c.Relay {
		bad("port", "it is missing; the usual port is 443")
	}
	if domain, path, ok := strings.Cut(c.Capability, "/"); c.Relay && c.Capability == "" {
		// a relay reads no capability
	} else if !ok || !strings.Contains(domain, ".") || path == "" ||
		strings.ContainsFunc(c.Capability, func(r rune) bool { return unicode.IsSpace(r) || !unicode.IsPrint(r) }) {
		bad("capability", "%q is not a capability such as \"tailplane.dev/cap/access\"", c.Capability)
	}
	if c.JoinTimeout < 0 {
		bad("joinTimeout", "%v is negative", c.JoinTimeout)
	} else if c.JoinTimeout == 0 {
		c.JoinTimeout = time.Minute
	}
	if c.Log == nil {
		bad("log", "the logger is missing")
	}
	return errors.Join(errs...)
}
