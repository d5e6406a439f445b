package dialpolicy

import (
	"context"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"
)

// CL-01: a name cannot lead to a forbidden address, and http:// never leaves the tailnet.
func TestCL01_addresses_are_checked_when_dialled(t *testing.T) {
	for _, tt := range []struct{ base, dial string }{
		{"https://tka", "169.254.169.254:443"},
		{"https://tka", "[fe80::1]:443"},
		{"https://tka", "100.100.100.200:443"},
		{"https://tka", "0.0.0.0:443"},
		{"http://tka", "192.0.2.1:80"},
		{"http://tka", "10.0.0.1:80"},
		{"http://tka", "[2001:db8::1]:80"},
	} {
		c, err := Transport(tt.base, nil).DialContext(t.Context(), "tcp", tt.dial)
		if err == nil {
			c.Close()
			t.Errorf("for %s, %s is allowed", tt.base, tt.dial)
			continue
		}
		if s := err.Error(); !strings.Contains(s, "link-local") && !strings.Contains(s, "metadata") && !strings.Contains(s, "not a host address") && !strings.Contains(s, "outside the tailnet") {
			t.Errorf("for %s, %s is refused with another error: %v", tt.base, tt.dial, err)
		}
	}
	for addr, want := range map[string]bool{"100.64.0.1": true, "100.127.255.254": true, "fd7a:115c:a1e0::53": true, "127.0.0.1": true, "::1": true,
		"::ffff:100.64.0.1": true, "100.128.0.1": false, "100.63.0.1": false, "192.168.0.1": false, "fd00::1": false} {
		if got := isTailnetOrLoopback(netip.MustParseAddr(addr)); got != want {
			t.Errorf("tailnetAddr(%s) = %v", addr, got)
		}
	}
}

// CL-01: tka rejects a password in an address and does not show it in the error.
func TestCL01_redacted(t *testing.T) {
	for given, want := range map[string]string{
		"https://alice:secret@tka": "https://[redacted]@tka", "alice:secret@tka": "[redacted]@tka", "https://a@b:secret@tka": "https://[redacted]@tka",
		"https://tka": "https://tka", "tka": "tka", "https://alice:sec/ret@tka": "https://[redacted]@tka", "": "",
	} {
		if got := RedactURL(given); got != want {
			t.Errorf("%q: %q, want %q", given, got, want)
		}
	}
}

// GO-07: tka dials a server that another server named only in the tailnet or on this machine, whatever its name resolves to. It fails
// before it sends a packet.
func TestTailnetTransport(t *testing.T) {
	dial := func(addr string) error {
		ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
		defer cancel()
		c, err := TailnetTransport(nil).DialContext(ctx, "tcp", addr)
		if err == nil {
			c.Close()
		}
		return err
	}
	for _, addr := range []string{"192.0.2.1:443", "10.0.0.1:443", "169.254.169.254:80", "100.100.100.200:80", "[2001:db8::1]:443", "[fd00:ec2::254]:80", "100.128.0.1:443"} {
		err := dial(addr)
		if err == nil || !strings.Contains(err.Error(), "outside the tailnet") && !strings.Contains(err.Error(), "metadata") && !strings.Contains(err.Error(), "link-local") {
			t.Errorf("%s: %v", addr, err)
		}
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer ln.Close()
	if err := dial(ln.Addr().String()); err != nil {
		t.Error(err)
	}
	for addr, want := range map[string]bool{"100.64.0.1": true, "100.127.255.255": true, "::ffff:100.64.0.1": true, "fd7a:115c:a1e0::1": true, "100.63.255.255": false, "100.128.0.0": false, "127.0.0.1": false, "10.0.0.1": false, "fd7a:115c:a1e1::1": false} {
		if got := IsTailnetAddr(netip.MustParseAddr(addr)); got != want {
			t.Errorf("%s: %v", addr, got)
		}
	}
}
