// Package tailscaledtest is the Tailscale daemon of a machine in tests: it answers the LocalAPI's status and whois on a Unix socket, with
// Tailscale's own types.
package tailscaledtest

import (
	"encoding/json"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"sync"
	"testing"

	"tailscale.com/client/tailscale/apitype"
	"tailscale.com/ipn/ipnstate"
	"tailscale.com/tailcfg"
	"tailscale.com/types/key"
)

// A Daemon is a running daemon.
type Daemon struct {
	Socket string // path of its socket

	mu     sync.Mutex
	status ipnstate.Status
	peers  map[netip.Addr]*tailcfg.Node
	asked  int
}

// Start starts a daemon that is connected to a tailnet with the given MagicDNS suffix, until the test ends. self is the stable ID of the
// machine's node.
func Start(t testing.TB, self, suffix string) *Daemon {
	t.Helper()
	dir, err := os.MkdirTemp("", "ts") // the path of a socket must be short
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	d := &Daemon{Socket: filepath.Join(dir, "s")}
	d.Switch(self, suffix)
	ln, err := net.Listen("unix", d.Socket)
	if err != nil {
		t.Fatal(err)
	}
	mux := http.NewServeMux()
	mux.HandleFunc("GET /localapi/v0/status", d.serveStatus)
	mux.HandleFunc("GET /localapi/v0/whois", d.serveWhoIs)
	srv := &http.Server{Handler: mux}
	ended := make(chan struct{})
	go func() { defer close(ended); srv.Serve(ln) }()
	t.Cleanup(func() { srv.Close(); <-ended })
	return d
}

// Switch makes the machine another node, as "tailscale switch" does. It knows no peers then.
func (d *Daemon) Switch(self, suffix string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status = ipnstate.Status{BackendState: "Running", TUN: true, CertDomains: []string{"laptop." + suffix}, Self: &ipnstate.PeerStatus{ID: tailcfg.StableNodeID(self), DNSName: "laptop." + suffix + "."},
		CurrentTailnet: &ipnstate.TailnetStatus{Name: "example.com", MagicDNSSuffix: suffix, MagicDNSEnabled: true}}
	d.peers = map[netip.Addr]*tailcfg.Node{}
}

// SetState sets the state of the daemon, such as "Stopped".
func (d *Daemon) SetState(state string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.BackendState = state
}

// NoCertificates makes the tailnet one without certificates, such as that of a Headscale.
func (d *Daemon) NoCertificates() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.CertDomains = nil
}

// Userspace makes the daemon run without a network device.
func (d *Daemon) Userspace() {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.TUN = false
}

// SetPath sets how packets reach the peer of that name: directly at an address, or through the relay of a region.
func (d *Daemon) SetPath(name, address, relay string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.status.Peer = map[key.NodePublic]*ipnstate.PeerStatus{key.NewNode().Public(): {DNSName: name + ".", CurAddr: address, Relay: relay, Active: true}}
}

// AddPeer adds a peer with its full name and its address.
func (d *Daemon) AddPeer(name, addr string) {
	d.mu.Lock()
	defer d.mu.Unlock()
	a := netip.MustParseAddr(addr)
	d.peers[a] = &tailcfg.Node{ID: 7, StableID: "nPeer", Name: name + ".", Addresses: []netip.Prefix{netip.PrefixFrom(a, a.BitLen())}}
}

// Asked returns how many questions the daemon has answered.
func (d *Daemon) Asked() int {
	d.mu.Lock()
	defer d.mu.Unlock()
	return d.asked
}

func (d *Daemon) serveStatus(w http.ResponseWriter, _ *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	writeJSON(w, d.status)
}

func (d *Daemon) serveWhoIs(w http.ResponseWriter, r *http.Request) {
	d.mu.Lock()
	defer d.mu.Unlock()
	d.asked++
	addr, err := netip.ParseAddr(r.FormValue("addr"))
	if err != nil {
		http.Error(w, "invalid 'addr' parameter", http.StatusBadRequest)
		return
	}
	node, ok := d.peers[addr]
	if !ok {
		http.Error(w, "no match for IP:port", http.StatusNotFound)
		return
	}
	writeJSON(w, apitype.WhoIsResponse{Node: node, UserProfile: &tailcfg.UserProfile{LoginName: "tagged-devices"}})
}

func writeJSON(w http.ResponseWriter, v any) {
	w.Header().Set("Content-Type", "application/json")
	json.NewEncoder(w).Encode(v)
}
