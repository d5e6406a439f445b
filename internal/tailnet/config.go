package tailnet

import (
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
)

// A Config says which node to be. Fields without a remark are required.
type Config struct {
	Hostname string   // the name to ask for; the tailnet may assign another
	Tags     []string // optional: "tag:tailplane"; the auth key must own them

	// ControlURL is the control server's address; Tailscale's own when empty.
	ControlURL string

	// AuthKey, optional, lets the node join without a person: an auth key or an
	// OAuth client's secret. A node that has joined before does not need it.
	// (When it is empty, Tailscale's library looks for TS_AUTHKEY by itself.)
	AuthKey Secret

	// StateDir keeps the node's keys, and so its identity, over restarts. It
	// belongs to one process at a time.
	StateDir string
	// StateSecret, optional, is the Secret of the pod's own namespace that keeps
	// the node's keys; StateDir then holds only what may be lost. The Secret must
	// exist, and belong to one process at a time: nothing else enforces that.
	StateSecret string

	// Relay makes a node that carries bytes for others: it reaches the services of
	// the tailnet, and needs no Port and no Capability.
	Relay bool
	// State, optional, keeps the node's keys instead of StateDir and StateSecret.
	State State

	Port uint16 // TCP port of Listen
	// InsecureHTTP lets Listen do without TLS where the tailnet has no HTTPS.
	// WireGuard still encrypts, but browsers and clients cannot tell.
	InsecureHTTP bool

	// Capability names the grants that Caller.Rules come from.
	Capability string

	// JoinTimeout is how long the control server may stay out of reach at start;
	// a minute when 0. Waiting for a person to sign the node in is not counted.
	JoinTimeout time.Duration

	Log *slog.Logger
}

// A State keeps what a node must not lose. Keys are file names; a value of nil
// removes one. It is called by one goroutine at a time.
type State interface {
	ReadState(key string) ([]byte, error) // [ErrNoState] when there is none
	WriteState(key string, value []byte) error
}

// ErrNoState is what a State says of a key that it does not hold.
var ErrNoState = ipn.ErrStateNotExist

// secretName is RFC 1123's subdomain; the name becomes part of a URL.
var secretName = regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*$`)

// check fills in defaults and names every mistake.
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
		bad("controlURL", "not an address such as \"https://control.example.com\"") // not shown: it may hold a password
	} else {
		c.ControlURL = u.Scheme + "://" + u.Host
	}
	if c.StateDir == "" {
		bad("stateDir", "it is missing; without state the node would be another one after each restart")
	} else if abs, err := filepath.Abs(c.StateDir); err != nil {
		bad("stateDir", "%w", err)
	} else {
		c.StateDir = abs
	}
	if c.StateSecret != "" && (len(c.StateSecret) > 253 || !secretName.MatchString(c.StateSecret)) {
		bad("stateSecret", "%.60q is not the name of a Secret", c.StateSecret)
	}
	if c.Port == 0 && !c.Relay {
		bad("port", "it is missing; 443 is usual")
	}
	if domain, path, ok := strings.Cut(c.Capability, "/"); c.Relay && c.Capability == "" {
		// it asks nobody's rules
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
		bad("log", "no logger was given")
	}
	return errors.Join(errs...)
}
