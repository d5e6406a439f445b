// Package tailnettest runs a whole tailnet on loopback for tests and the demo: a control server, a relay and a policy
// compiler. Unmodified tsnet nodes join it, so identities come from real WhoIs responses and real grants. The package
// never replaces WhoIs. A process with a production node must not use it, because its switches are process-wide.
//
// A test here proves that the product "speaks the protocol". Never say that it was tested on Tailscale.
package tailnettest

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"tailscale.com/envknob"
	"tailscale.com/logtail"
	"tailscale.com/net/netns"
	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/testkit/tailnettest/tailpolicy"
	"github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// switches are the environment variables that limit Tailscale's client to this machine. They are unsafe in
// production: no chart, image or unit file sets them.
var switches = []string{
	"TS_NO_LOGS_NO_SUPPORT",        // no log upload, which would contact public servers at start
	"TS_DISABLE_PORTMAPPER",        // no UPnP, PCP or NAT-PMP
	"IN_TS_TEST",                   // netcheck contacts no external server
	"TS_PANIC_IF_HIT_MAIN_CONTROL", // a missing ControlURL causes a panic, not a connection to Tailscale
	relayOnly,
}

// relayOnly is the switch that keeps magicsock from opening a UDP socket.
const relayOnly = "TS_DEBUG_ALWAYS_USE_DERP"

// Quiet limits the nodes of this process to this machine and to the relay. Call it from TestMain or main before the
// first node: the switches are process-wide and are read only once.
func Quiet() { quiet(switches) }

// QuietDirect is Quiet with UDP between the nodes, for measurements of throughput. Nodes then bind UDP on every
// interface.
func QuietDirect() { quiet(switches[:len(switches)-1]) }

func quiet(names []string) {
	envknob.SetNoLogsNoSupport()
	logtail.Disable()
	for _, name := range names {
		envknob.Setenv(name, "true")
	}
	netns.SetEnabled(false)
}

// ChildEnv returns the environment variables ("NAME=true") that limit another program's nodes to this machine and, unless
// QuietDirect was called, to the relay. The program needs no test code except its own setting for the control URL.
func ChildEnv() []string {
	direct := envknob.Bool(switches[0]) && !envknob.Bool(relayOnly)
	var env []string
	for _, name := range switches {
		if name != relayOnly || !direct {
			env = append(env, name+"=true")
		}
	}
	return env
}

// Options configures Run. The zero value is a tailnet with a policy that allows nothing.
type Options struct {
	Domain string // the tailnet's name; "example.com" if empty
	Suffix string // the MagicDNS suffix; "tiny.ts.net" if empty

	// Policy is HuJSON text in the syntax of Tailscale's policy file.
	Policy string
	// PolicyFile is the path of a policy file. Net reads it instead of Policy, and again after each write or rename.
	// If the file does not compile, Net reports this to Logf and keeps the last valid policy.
	PolicyFile string

	// Headscale makes the tailnet behave like one of Headscale: its policy files are in Headscale's dialect, there are no certificates,
	// the suffix is "mesh.example" unless Suffix is set, and the Login of an AuthKey is the name of a user. Users have the login of
	// Emails, or without one their name. So two users can have one login.
	Headscale bool
	Emails    map[string]string // e-mail address of a user, by name

	// EphemeralDelay is the time after which an ephemeral node is removed that went offline without logout. Zero
	// means 3 s.
	EphemeralDelay time.Duration
	// StrictLoopback keeps the nodes of Node from opening the peer API's wildcard TCP socket. Funnel does not work then.
	StrictLoopback bool

	Logf func(format string, args ...any) // discards if nil
}

// Net is a running tailnet.
type Net struct {
	control   *control
	derp      *relay
	dir       string
	strict    bool
	headscale bool
	url       string

	mu     sync.Mutex
	nodes  []*tsnet.Server
	hosts  map[string]int // number of node directories per host name
	stops  []func()
	of     map[*tsnet.Server][]func() // cleanup of a node, at its end or the end of the tailnet
	closed bool

	retired sync.WaitGroup
}

// Start runs a tailnet with a policy (HuJSON text) for one test. It fails the test if the tailnet cannot start. The
// end of the test closes the nodes and the servers.
func Start(t testing.TB, policy string) *Net {
	t.Helper()
	return StartWith(t, Options{Policy: policy})
}

// StartWith is Start with all options.
func StartWith(t testing.TB, o Options) *Net {
	t.Helper()
	// Not t.TempDir: the path of a socket in the state of a node must stay short.
	dir, err := os.MkdirTemp("", "tn")
	if err != nil {
		t.Fatal(err)
	}
	n, err := Run(dir, o)
	if err != nil {
		os.RemoveAll(dir)
		t.Fatalf("tailnet: %v", err)
	}
	t.Cleanup(func() {
		if err := n.Close(); err != nil {
			t.Errorf("closing the tailnet: %v", err)
		}
		os.RemoveAll(dir)
	})
	return n
}

// Run starts control, relay and STUN on 127.0.0.1 and returns when they respond. dir will contain the state of the
// nodes of Node.
func Run(dir string, o Options) (_ *Net, err error) {
	if !envknob.NoLogsNoSupport() {
		return nil, errors.New("tailnettest.Quiet was not called: nodes of this process would connect to the internet")
	}
	if o.Logf == nil {
		o.Logf = func(string, ...any) {}
	}
	if o.Domain == "" {
		o.Domain = "example.com"
	}
	if o.Suffix == "" {
		o.Suffix = "tiny.ts.net"
		if o.Headscale {
			o.Suffix = "mesh.example"
		}
	}
	if o.EphemeralDelay == 0 {
		o.EphemeralDelay = 3 * time.Second
	}
	text, reload := o.Policy, func(context.Context) {}
	n := &Net{dir: dir, strict: o.StrictLoopback, headscale: o.Headscale, hosts: map[string]int{}}
	if o.PolicyFile != "" {
		f := &policyFile{path: o.PolicyFile, set: n.SetPolicy, logf: o.Logf}
		if text, err = f.read(); err != nil {
			return nil, fmt.Errorf("policy file: %w", err)
		}
		reload = f.watch
	}
	if strings.TrimSpace(text) == "" {
		text = "{}"
	}
	p, err := n.parse(text)
	if err != nil {
		return nil, err
	}

	defer func() {
		if err != nil {
			n.Close()
		}
	}()
	if n.derp, err = startRelay(o.Logf); err != nil {
		return nil, fmt.Errorf("relay: %w", err)
	}
	n.stops = append(n.stops, n.derp.close)

	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		return nil, fmt.Errorf("control server: %w", err)
	}
	n.url = "http://" + ln.Addr().String()
	n.control = newControl(controlOptions{
		url: n.url, domain: o.Domain, suffix: o.Suffix, derpMap: n.derp.derpMap,
		derpOnly: envknob.Bool("TS_DEBUG_ALWAYS_USE_DERP"), ephemeralDelay: o.EphemeralDelay, emails: o.Emails, logf: o.Logf,
	}, p)
	srv := &http.Server{Handler: n.control, ReadHeaderTimeout: 10 * time.Second}
	go srv.Serve(ln)
	n.stops = append(n.stops, func() { srv.Close(); n.control.close() })

	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() { reload(ctx) })
	n.stops = append(n.stops, func() { cancel(); wg.Wait() })
	return n, nil
}

// ControlURL returns the control server's URL, for tsnet.Server.ControlURL.
func (n *Net) ControlURL() string { return n.url }

// Suffix returns the MagicDNS suffix, such as "tiny.ts.net".
func (n *Net) Suffix() string { return n.control.suffix }

// SetPolicy applies a policy (HuJSON text). Nodes see it within milliseconds. If the policy does not compile, uses an
// unsupported feature, or fails its own tests section, SetPolicy returns an error and the earlier policy stays.
func (n *Net) SetPolicy(hujson string) error {
	p, err := n.parse(hujson)
	if err != nil {
		return err
	}
	n.control.ReplacePolicy(nil, p)
	return nil
}

func (n *Net) parse(hujson string) (*tailpolicy.Policy, error) {
	if n.headscale {
		return tailpolicy.ParseHeadscale(hujson)
	}
	return tailpolicy.Parse(hujson)
}

// Policy returns the text of the current policy.
func (n *Net) Policy() string { return n.control.Policy().Text() }

// Nodes returns the tailnet's nodes by ID, as their peers see them.
func (n *Net) Nodes() []*tailcfg.Node { return n.control.list() }

// Expire expires the node's key now, as an administrator would. It reports whether the node exists.
func (n *Net) Expire(id tailcfg.StableNodeID) bool {
	return n.control.update(id, func(nd *node) { nd.expiry = time.Now().Add(-time.Minute) })
}

// Delete removes the node from the tailnet. It reports whether the node existed.
func (n *Net) Delete(id tailcfg.StableNodeID) bool { return n.control.Delete(id) }

// Share makes the node look like a node of another tailnet's user with whom a machine was shared. Its peers see
// Hostinfo.ShareeNode, and it is not a member.
func (n *Net) Share(id tailcfg.StableNodeID) bool {
	return n.control.update(id, func(nd *node) { nd.sharee = true })
}

// Unknown returns the requests that control rejected with 404, with counts. Each is a part of the protocol that this
// server does not implement.
func (n *Net) Unknown() map[string]int { return n.control.unknownRequests() }

// Fault and TrustedIssuer are aliases for callers of API.
type (
	Fault         = tsapi.Fault
	TrustedIssuer = tsapi.TrustedIssuer
)

// API starts the tailnet's HTTP API. It ends with the tailnet.
func (n *Net) API() (*tsapi.API, error) {
	a, err := tsapi.Start(n.control.domain, n.control)
	if err != nil {
		return nil, err
	}
	n.onClose(a.Close)
	return a, nil
}

// closeDeadline bounds the end of one node: with some settings tsnet's Close can hang forever.
const closeDeadline = 45 * time.Second

// Close stops the nodes of Node concurrently, and the servers. It waits at most 45 seconds for each node and names
// the nodes that had not stopped by then. Deleted nodes are not named, because they cannot log out.
func (n *Net) Close() error {
	n.mu.Lock()
	if n.closed {
		n.mu.Unlock()
		return nil
	}
	n.closed = true
	nodes, stops := n.nodes, n.stops
	for _, all := range n.of {
		stops = append(stops, all...)
	}
	n.mu.Unlock()
	n.retired.Wait()
	known := map[string]bool{}
	for _, nd := range n.Nodes() {
		known[nd.Hostinfo.Hostname()] = true
	}

	errs := make([]error, len(nodes))
	var wg sync.WaitGroup
	for i, s := range nodes {
		if s.Sys() == nil {
			continue // never started: there is nothing to close, and tsnet would panic
		}
		wg.Go(func() {
			if !closed(s) && known[s.Hostname] {
				errs[i] = fmt.Errorf("node %s did not stop in %v", s.Hostname, closeDeadline)
			}
		})
	}
	wg.Wait()
	for _, stop := range slices.Backward(stops) {
		stop()
	}
	return errors.Join(errs...)
}

// closed closes a node, and reports whether it ended in time.
func closed(s *tsnet.Server) bool {
	done := make(chan struct{})
	go func() { s.Close(); close(done) }()
	select {
	case <-done:
		return true
	case <-time.After(closeDeadline):
		return false
	}
}

// Retire ends a node of Node and its resources before the tailnet ends, because a node takes tens of megabytes. It
// does not wait for the end.
func (n *Net) Retire(s *tsnet.Server) {
	n.mu.Lock()
	i := slices.Index(n.nodes, s)
	if n.closed || i < 0 {
		n.mu.Unlock()
		return
	}
	n.nodes = slices.Delete(slices.Clone(n.nodes), i, i+1)
	stops := n.of[s]
	delete(n.of, s)
	n.mu.Unlock()
	for _, stop := range slices.Backward(stops) {
		stop()
	}
	if s.Sys() != nil { // otherwise it never started
		n.retired.Go(func() { closed(s) })
	}
}

// endsWith runs f when a node ends.
func (n *Net) endsWith(s *tsnet.Server, f func()) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.of == nil {
		n.of = map[*tsnet.Server][]func(){}
	}
	n.of[s] = append(n.of[s], f)
}

// onClose runs f when the tailnet closes, or now if it is already closed.
func (n *Net) onClose(f func()) {
	n.mu.Lock()
	if !n.closed {
		n.stops = append(n.stops, f)
		n.mu.Unlock()
		return
	}
	n.mu.Unlock()
	f()
}
