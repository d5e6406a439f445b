// Package tailscaled asks the Tailscale of this machine about this machine and its peers. tka must not link Tailscale's libraries, so the
// package reads the JSON of two LocalAPI operations, and where no socket of the LocalAPI exists, the same JSON from the tailscale program.
// It is a package of its own because both the commands and package dialpolicy need it. It keeps law 8: what Tailscale does not confirm is
// not confirmed, whatever the address looks like.
package tailscaled

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"net/url"
	"os"
	"os/exec"
	"runtime"
	"slices"
	"strings"
	"sync"
	"time"
)

// SocketEnv names the Unix socket of a daemon that runs with --socket, as for Tailscale's containers.
const SocketEnv = "TS_SOCKET"

// timeout bounds one question to the daemon, and maxAnswer its size in bytes.
const (
	timeout   = 3 * time.Second
	maxAnswer = 4 << 20
)

// A Client asks the daemon of this machine. It may be used concurrently. It asks for the status once. A nil Client has no daemon to ask.
type Client struct {
	socket   string // of the LocalAPI; "": there is none, so it runs the program
	explicit bool   // a person named the socket, so nothing else is asked
	local    *http.Client

	once   sync.Once
	status Status
	err    error
}

// New returns a client for the socket in [SocketEnv], or else for the system's usual one. It opens no connection.
func New(getenv func(string) string) *Client {
	c := &Client{socket: getenv(SocketEnv)}
	if c.explicit = c.socket != ""; !c.explicit {
		c.socket = defaultSocket()
	}
	c.local = &http.Client{Timeout: timeout, Transport: &http.Transport{
		DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
			return (&net.Dialer{}).DialContext(ctx, "unix", c.socket)
		},
		DisableKeepAlives: true,
	}}
	return c
}

// defaultSocket returns the path of the socket of Tailscale's daemon, or "" if the system has none: DefaultTailscaledSocket in
// tailscale.com/paths.
func defaultSocket() string {
	path := "/var/run/tailscale/tailscaled.sock"
	switch runtime.GOOS {
	case "windows":
		return ""
	case "darwin":
		path = "/var/run/tailscaled.socket"
	}
	if _, err := os.Stat(path); err != nil {
		return ""
	}
	return path
}

// A Status is what the daemon reports about this machine.
type Status struct {
	State     string    // of the daemon; "Running" if all is well
	NodeID    string    // stable ID of this machine's node; "": unknown
	Name      string    // full MagicDNS name of this machine, without a trailing dot
	KeyExpiry time.Time // zero: never
	Suffix    string    // MagicDNS suffix of the tailnet, such as tail1234.ts.net; "": unknown
	HTTPS     bool      // the tailnet's nodes can get certificates
	Userspace bool      // the system has no route into the tailnet; programs use the daemon's proxy on this machine
}

// Running reports whether this machine is connected to its tailnet.
func (s Status) Running() bool { return s.State == "Running" }

// Status returns the state of this machine. The error says why the daemon gives no answer.
func (c *Client) Status(ctx context.Context) (Status, error) {
	if c == nil {
		return Status{}, errNoDaemon
	}
	c.once.Do(func() { c.status, c.err = c.fetchStatus(ctx) })
	return c.status, c.err
}

func (c *Client) fetchStatus(ctx context.Context) (Status, error) {
	out, err := c.get(ctx, "status?peers=false", "status", "--json", "--peers=false")
	if errors.Is(err, errNoDaemon) {
		return Status{}, err
	}
	var st struct {
		BackendState string
		TUN          *bool
		Self         *struct {
			ID        string
			DNSName   string
			KeyExpiry *time.Time
		}
		CurrentTailnet *struct{ MagicDNSSuffix string }
		MagicDNSSuffix string // of versions without CurrentTailnet
		CertDomains    []string
	}
	if jerr := json.Unmarshal(out, &st); jerr != nil || st.BackendState == "" {
		return Status{}, fmt.Errorf("tailscale gives no answer (%w)", cmp.Or(err, jerr, errors.New("it reports no state")))
	}
	s := Status{State: st.BackendState, Suffix: st.MagicDNSSuffix, Userspace: st.TUN != nil && !*st.TUN, HTTPS: len(st.CertDomains) > 0}
	if t := st.CurrentTailnet; t != nil {
		s.Suffix = cmp.Or(t.MagicDNSSuffix, s.Suffix)
	}
	if self := st.Self; self != nil {
		s.NodeID, s.Name = self.ID, plainName(self.DNSName)
		if self.KeyExpiry != nil {
			s.KeyExpiry = *self.KeyExpiry
		}
	}
	s.Suffix = plainName(s.Suffix)
	return s, nil
}

// plainName returns a DNS name in lower case and without a trailing dot.
func plainName(name string) string { return strings.ToLower(strings.TrimSuffix(name, ".")) }

// Ranges returns the address ranges of tailnets.
func Ranges() []netip.Prefix {
	return []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd7a:115c:a1e0::/48")}
}

// Node identifies this machine's node, so that what is stored for one node is not used by another after "tailscale switch". It is the node's
// stable ID, or where the daemon has no socket or does not answer, the addresses of this machine in the ranges of tailnets; "" if there are
// none. Node starts no program, because kubectl's plugin needs it in milliseconds.
func (c *Client) Node(ctx context.Context) string {
	if c == nil {
		return ""
	}
	if c.socket != "" {
		if s, err := c.Status(ctx); err == nil {
			return s.NodeID
		}
	}
	if c.explicit {
		return "" // the daemon that a person named is not that of the system's interfaces
	}
	return tailnetAddrs()
}

// tailnetAddrs returns the addresses of this machine's interfaces in the ranges of tailnets, sorted.
func tailnetAddrs() string {
	all, err := net.InterfaceAddrs()
	if err != nil {
		return ""
	}
	var found []string
	for _, a := range all {
		p, err := netip.ParsePrefix(a.String())
		if err == nil && slices.ContainsFunc(Ranges(), func(r netip.Prefix) bool { return r.Contains(p.Addr()) }) {
			found = append(found, p.Addr().String())
		}
	}
	slices.Sort(found)
	return strings.Join(found, ",")
}

// PeerName returns the full MagicDNS name of the node that has an address, or "" if Tailscale confirms no such node. The form of the address
// proves nothing: hotels and carriers use 100.64.0.0/10 too.
func (c *Client) PeerName(ctx context.Context, addr netip.Addr) string {
	if s, err := c.Status(ctx); err != nil || !s.Running() {
		return ""
	}
	addr = addr.Unmap()
	out, err := c.get(ctx, "whois?addr="+url.QueryEscape(addr.String()), "whois", "--json", addr.String())
	if err != nil {
		return ""
	}
	var who struct {
		Node *struct {
			Name      string
			Addresses []netip.Prefix
		}
	}
	if json.Unmarshal(out, &who) != nil || who.Node == nil {
		return ""
	}
	if !slices.ContainsFunc(who.Node.Addresses, func(p netip.Prefix) bool { return p.IsSingleIP() && p.Addr() == addr }) {
		return "" // it answers for another address, such as one behind a proxy
	}
	return plainName(who.Node.Name)
}

// A Path is how packets reach a peer. Its zero value is unknown.
type Path struct {
	Direct bool
	Relay  string // region of the DERP relay, such as "fra", or "peer" for a relay that is a node of the tailnet; "": none
}

// PathTo returns how packets reach the node with a full MagicDNS name. It is known only a moment after traffic with the node.
func (c *Client) PathTo(ctx context.Context, name string) Path {
	if s, err := c.Status(ctx); err != nil || !s.Running() {
		return Path{}
	}
	out, err := c.get(ctx, "status", "status", "--json")
	if err != nil {
		return Path{}
	}
	var st struct {
		Peer map[string]struct{ DNSName, CurAddr, Relay, PeerRelay string }
	}
	if json.Unmarshal(out, &st) != nil {
		return Path{}
	}
	for _, p := range st.Peer {
		switch {
		case plainName(p.DNSName) != plainName(name):
		case p.CurAddr != "":
			return Path{Direct: true}
		case p.PeerRelay != "":
			return Path{Relay: "peer"}
		default:
			return Path{Relay: p.Relay}
		}
	}
	return Path{}
}

// FullName returns the MagicDNS name in this machine's tailnet that a bare host name stands for. It returns a name in the tailnet unchanged,
// and "" for any other host, or if the tailnet is unknown.
func (c *Client) FullName(ctx context.Context, host string) string {
	s, err := c.Status(ctx)
	host = plainName(host)
	switch {
	case err != nil || !s.Running() || s.Suffix == "" || host == "":
		return ""
	case strings.HasSuffix(host, "."+s.Suffix):
		return host
	case !strings.Contains(host, ".") && !strings.Contains(host, ":"):
		return host + "." + s.Suffix
	}
	return ""
}

// InTailnet reports whether a host is in this machine's tailnet: its name has the tailnet's suffix, or Tailscale confirms one of its
// addresses as a node.
func (c *Client) InTailnet(ctx context.Context, host string) bool {
	s, err := c.Status(ctx)
	if err != nil || !s.Running() {
		return false
	}
	if addr, err := netip.ParseAddr(host); err == nil {
		return c.PeerName(ctx, addr) != ""
	}
	if s.Suffix != "" && strings.HasSuffix(plainName(host), "."+s.Suffix) {
		return true
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	addrs, err := net.DefaultResolver.LookupNetIP(ctx, "ip", host)
	return err == nil && slices.ContainsFunc(addrs[:min(len(addrs), maxAddrs)], func(a netip.Addr) bool { return c.PeerName(ctx, a) != "" })
}

// maxAddrs bounds how many addresses of one name the daemon is asked about.
const maxAddrs = 8

// errNoDaemon reports that this machine has no Tailscale that can be asked.
var errNoDaemon = errors.New("this machine has no tailscale command")

// get returns the answer of the LocalAPI, or that of the program if there is no socket or it does not accept the connection.
func (c *Client) get(ctx context.Context, operation string, args ...string) ([]byte, error) {
	if c.socket != "" {
		out, err := c.getLocal(ctx, operation)
		if _, unreachable := errors.AsType[*net.OpError](err); c.explicit || !unreachable {
			return out, err
		}
	}
	path, err := exec.LookPath("tailscale")
	if err != nil {
		return nil, errNoDaemon
	}
	ctx, cancel := context.WithTimeout(ctx, timeout)
	defer cancel()
	cmd := exec.CommandContext(ctx, path, args...)
	cmd.WaitDelay = time.Second
	var out bytes.Buffer
	cmd.Stdout = &limitedBuffer{&out}
	err = cmd.Run()
	return out.Bytes(), err
}

func (c *Client) getLocal(ctx context.Context, operation string) ([]byte, error) {
	r, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://local-tailscaled.sock/localapi/v0/"+operation, nil)
	if err != nil {
		return nil, err
	}
	res, err := c.local.Do(r)
	if ue, ok := errors.AsType[*url.Error](err); ok {
		err = ue.Err // the URL means nothing to a person
	}
	if err != nil {
		return nil, err
	}
	defer res.Body.Close()
	out, err := io.ReadAll(io.LimitReader(res.Body, maxAnswer))
	if err == nil && res.StatusCode != http.StatusOK {
		err = fmt.Errorf("the LocalAPI answered %d", res.StatusCode)
	}
	return out, err
}

// A limitedBuffer refuses more than maxAnswer bytes.
type limitedBuffer struct{ *bytes.Buffer }

func (b *limitedBuffer) Write(p []byte) (int, error) {
	if b.Len()+len(p) > maxAnswer {
		return 0, errors.New("the answer is too large")
	}
	return b.Buffer.Write(p)
}
