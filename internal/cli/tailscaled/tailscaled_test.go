package tailscaled

import (
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/tailplane/tailplane/testkit/tailscaledtest"
)

func newClient(socket string) *Client {
	return New(func(name string) string {
		if name == SocketEnv {
			return socket
		}
		return ""
	})
}

// The form of an address or a name proves nothing: only what the daemon confirms counts.
func TestOnlyTheDaemonConfirms(t *testing.T) {
	d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
	d.AddPeer("tka.tail1234.ts.net", "100.64.0.7")
	d.AddPeer("tka.tail9999.ts.net", "100.64.0.8") // shared in from another tailnet
	for _, tt := range []struct {
		why, state, addr, want string
	}{
		{"a peer", "Running", "100.64.0.7", "tka.tail1234.ts.net"},
		{"the same in IPv6 form", "Running", "::ffff:100.64.0.7", "tka.tail1234.ts.net"},
		{"a shared node has the name of its own tailnet", "Running", "100.64.0.8", "tka.tail9999.ts.net"},
		{"a hotel's address", "Running", "100.64.0.9", ""},
		{"stopped", "Stopped", "100.64.0.7", ""},
		{"signed out", "NeedsLogin", "100.64.0.7", ""},
	} {
		d.SetState(tt.state)
		if got := newClient(d.Socket).PeerName(t.Context(), netip.MustParseAddr(tt.addr)); got != tt.want {
			t.Errorf("%s: PeerName(%s) = %q, want %q", tt.why, tt.addr, got, tt.want)
		}
	}
	for _, missing := range []*Client{nil, newClient(filepath.Join(t.TempDir(), "none"))} {
		if got := missing.PeerName(t.Context(), netip.MustParseAddr("100.64.0.7")); got != "" {
			t.Errorf("without a daemon: PeerName = %q, want none", got)
		}
		if missing.InTailnet(t.Context(), "100.64.0.7") {
			t.Error("without a daemon: 100.64.0.7 is in the tailnet")
		}
	}
}

// The path to a peer is direct, through a relay, or unknown.
func TestPathTo(t *testing.T) {
	d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
	for _, tt := range []struct {
		address, relay, name string
		want                 Path
	}{
		{"192.0.2.7:41641", "fra", "east-api.tail1234.ts.net", Path{Direct: true}},
		{"", "fra", "East-API.tail1234.ts.net.", Path{Relay: "fra"}},
		{"", "", "east-api.tail1234.ts.net", Path{}},
		{"192.0.2.7:41641", "fra", "west-api.tail1234.ts.net", Path{}},
	} {
		d.SetPath("east-api.tail1234.ts.net", tt.address, tt.relay)
		if got := newClient(d.Socket).PathTo(t.Context(), tt.name); got != tt.want {
			t.Errorf("%s at %q, relay %q: %+v, want %+v", tt.name, tt.address, tt.relay, got, tt.want)
		}
	}
	d.SetState("Stopped")
	for _, c := range []*Client{nil, newClient(d.Socket)} {
		if got := c.PathTo(t.Context(), "west-api.tail1234.ts.net"); got != (Path{}) {
			t.Errorf("without a tailnet: %+v", got)
		}
	}
}

func TestNames(t *testing.T) {
	d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
	d.AddPeer("tka.tail1234.ts.net", "100.64.0.7")
	c := newClient(d.Socket)
	for host, want := range map[string]string{"tka": "tka.tail1234.ts.net", "TKA": "tka.tail1234.ts.net", "tka.tail1234.ts.net.": "tka.tail1234.ts.net",
		"tka.tail9999.ts.net": "", "tail1234.ts.net": "", "100.64.0.7": "", "fd7a::1": "", "": ""} {
		if got := c.FullName(t.Context(), host); got != want {
			t.Errorf("FullName(%q) = %q, want %q", host, got, want)
		}
	}
	for host, want := range map[string]bool{"other.tail1234.ts.net": true, "100.64.0.7": true, "100.64.0.9": false, "127.0.0.1": false, "localhost": false, "tail1234.ts.net.evil.invalid": false} {
		if got := c.InTailnet(t.Context(), host); got != want {
			t.Errorf("InTailnet(%q) = %v, want %v", host, got, want)
		}
	}
}

// Without a socket, the tailscale program is asked. The plugin of kubectl does not wait for a program.
func TestProgram(t *testing.T) {
	dir := t.TempDir()
	script := `#!/bin/sh
case "$*" in
"status --json --peers=false") echo '{"BackendState":"Running","TUN":true,"Self":{"ID":"nAlice","DNSName":"laptop.tail1234.ts.net."},"CurrentTailnet":{"MagicDNSSuffix":"tail1234.ts.net"}}';;
"whois --json 100.64.0.7") echo '{"Node":{"Name":"tka.tail1234.ts.net.","Addresses":["100.64.0.7/32"]}}';;
*) echo "$*" >&2; exit 1;;
esac
`
	if err := os.WriteFile(filepath.Join(dir, "tailscale"), []byte(script), 0o700); err != nil {
		t.Fatal(err)
	}
	t.Setenv("PATH", dir+":"+os.Getenv("PATH"))
	c := newClient("")
	c.socket = ""
	if got, want := c.PeerName(t.Context(), netip.MustParseAddr("100.64.0.7")), "tka.tail1234.ts.net"; got != want {
		t.Errorf("PeerName = %q, want %q", got, want)
	}
	if got := c.PeerName(t.Context(), netip.MustParseAddr("100.64.0.8")); got != "" {
		t.Errorf("PeerName = %q, want none", got)
	}
	if got := c.Node(t.Context()); got == "nAlice" {
		t.Error("Node runs a program")
	}
	// A person who names a socket does not mean another daemon.
	named := newClient(filepath.Join(dir, "none"))
	if s, err := named.Status(t.Context()); err == nil {
		t.Errorf("Status = %+v, want an error", s)
	}
}
