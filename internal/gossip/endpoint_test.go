package gossip

import (
	"net/netip"
	"testing"
)

// TestEndpoints: the addresses that a record may announce (GO-07).
func TestEndpoints(t *testing.T) {
	ips := []netip.Addr{netip.MustParseAddr("100.64.0.0"), netip.MustParseAddr("fd7a:115c:a1e0::1")}
	f := Facts{Host: "tka-0.tail1234.ts.net", IPs: ips, URL: "https://tka-0.tail1234.ts.net", APIEndpoint: "https://k8s.prod-0.example:6443", APIPort: 6443}
	p := Peer{Name: f.Host, Addrs: ips}
	allow, err := ParseAllowedEndpoints([]string{"10.20.0.0/16", "*.corp.example", "k8s.internal", "192.168.7.7"})
	if err != nil {
		t.Fatal(err)
	}
	tests := []struct {
		url  string // of the Kubernetes API
		port uint16
		ok   bool
		why  string
	}{
		{"https://k8s.prod.example:6443", 6443, true, "a public name"},
		{"https://203.0.113.7:6443", 6443, true, "a public address"},
		{"https://K8s.Prod.Example", 443, true, "names have no case; the port is that of https"},
		{"https://[2a00:1450:4001::1]:6443", 6443, true, "a public address of version 6"},
		{"https://" + f.Host + ":6443", 6443, true, "its own name"},
		{"https://100.64.0.0:6443", 6443, true, "its own address"},
		{"https://10.20.1.2:6443", 6443, true, "listed"},
		{"https://192.168.7.7:6443", 6443, true, "listed alone"},
		{"https://api.eu.corp.example:6443", 6443, true, "of a listed suffix"},
		{"https://k8s.internal:6443", 6443, true, "a listed name"},

		{"http://k8s.prod.example:6443", 6443, false, "not https"},
		{"https://k8s.prod.example:6443", 443, false, "another port than announced"},
		{"https://user:pw@k8s.prod.example:6443", 6443, false, "with a password"},
		{"https://k8s.prod.example:6443/x", 6443, false, "with a path"},
		{"https://k8s.prod.example:6443?x", 6443, false, "with a query"},
		{"https://k8s.prod.example:6443#", 6443, false, "with a fragment"},
		{"https://:6443", 6443, false, "no host"},
		{"https://k8s.prod.example:", 443, false, "half a port"},
		{"https://127.0.0.1:6443", 6443, false, "loopback"},
		{"https://[::1]:6443", 6443, false, "loopback"},
		{"https://[::ffff:127.0.0.1]:6443", 6443, false, "loopback in disguise"},
		{"https://[64:ff9b::7f00:1]:6443", 6443, false, "loopback behind NAT64"},
		{"https://[::127.0.0.1]:6443", 6443, false, "loopback, IPv4-compatible"},
		{"https://[::ffff:0:127.0.0.1]:6443", 6443, false, "loopback, IPv4-translated"},
		{"https://[2002:7f00:1::]:6443", 6443, false, "loopback behind 6to4"},
		{"https://[2001:0:102:304::80ff:fffe]:6443", 6443, false, "loopback behind Teredo"},
		{"https://[2001:0:7f00:1::fefd:fcfb]:6443", 6443, false, "Teredo"},
		{"https://[2a00:1450:4001::5efe:7f00:1]:6443", 6443, false, "loopback by ISATAP"},
		{"https://[2a00:1450:4001::200:5efe:7f00:1]:6443", 6443, false, "loopback by ISATAP, universal"},
		{"https://[2a00:1450:4001::5efe:808:808]:6443", 6443, true, "a public address by ISATAP"},
		{"https://[::ffff:169.254.169.254]:6443", 6443, false, "metadata, IPv4-mapped"},
		{"https://[::169.254.169.254]:6443", 6443, false, "metadata, IPv4-compatible"},
		{"https://[::a9fe:a9fe]:6443", 6443, false, "metadata, IPv4-compatible in hex"},
		{"https://[::ffff:0:169.254.169.254]:6443", 6443, false, "metadata, IPv4-translated"},
		{"https://[64:ff9b::169.254.169.254]:6443", 6443, false, "metadata behind NAT64"},
		{"https://[64:ff9b:1::169.254.169.254]:6443", 6443, false, "metadata behind a local NAT64"},
		{"https://[::168.63.129.16]:6443", 6443, false, "metadata of another cloud, IPv4-compatible"},
		{"https://[::100.64.0.9]:6443", 6443, false, "another tailnet node, IPv4-compatible"},
		{"https://[::ffff:0:10.0.0.1]:6443", 6443, false, "RFC 1918, IPv4-translated"},
		{"https://[::ffff:10.20.1.2]:6443", 6443, true, "listed, IPv4-mapped"},
		{"https://[64:ff9b::808:808]:6443", 6443, true, "a public address behind NAT64"},
		{"https://[::]:6443", 6443, false, "unspecified"},
		{"https://0.0.0.0:6443", 6443, false, "unspecified"},
		{"https://169.254.169.254:6443", 6443, false, "metadata"},
		{"https://[fd00:ec2::254]:6443", 6443, false, "metadata"},
		{"https://[fe80::1]:6443", 6443, false, "link-local"},
		{"https://[fe80::1%25eth0]:6443", 6443, false, "with a zone"},
		{"https://10.0.0.1:6443", 6443, false, "RFC 1918"},
		{"https://172.16.0.1:6443", 6443, false, "RFC 1918"},
		{"https://192.168.1.1:6443", 6443, false, "RFC 1918"},
		{"https://100.64.0.9:6443", 6443, false, "another tailnet node"},
		{"https://[fd7a:115c:a1e0::9]:6443", 6443, false, "another tailnet node"},
		{"https://255.255.255.255:6443", 6443, false, "broadcast"},
		{"https://224.0.0.1:6443", 6443, false, "multicast"},
		{"https://localhost:6443", 6443, false, "localhost"},
		{"https://api.localhost:6443", 6443, false, "localhost"},
		{"https://kubernetes:6443", 6443, false, "one label"},
		{"https://metadata.google.internal:6443", 6443, false, "metadata by name"},
		{"https://tka-1.tail1234.ts.net:6443", 6443, false, "another node by name"},
		{"https://tail1234.ts.net:6443", 6443, false, "the tailnet itself"},
		{"https://2130706433:6443", 6443, false, "127.0.0.1 as a number"},
		{"https://127.1:6443", 6443, false, "127.0.0.1 in short"},
		{"https://0x7f.0.0.0x1:6443", 6443, false, "127.0.0.1 in hex"},
		{"https://corp.example.evil.example:6443", 6443, true, "not of the suffix, but public"},
		{"https://k8s.prod.example%00:6443", 6443, false, "an escape"},
	}
	for _, tt := range tests {
		r := f
		r.APIEndpoint, r.APIPort = tt.url, tt.port
		if err := allow.Check(r, p); (err == nil) != tt.ok {
			t.Errorf("%s (%s): %v", tt.url, tt.why, err)
		}
	}
	for name, change := range map[string]func(*Facts){
		"another's host":            func(r *Facts) { r.Host = "tka-1.tail1234.ts.net" },
		"another's address":         func(r *Facts) { r.IPs = []netip.Addr{netip.MustParseAddr("100.64.0.9")} },
		"a sign-in URL elsewhere":   func(r *Facts) { r.URL = "https://evil.example" },
		"a sign-in URL at another":  func(r *Facts) { r.URL = "https://100.64.0.9" },
		"a sign-in URL with a path": func(r *Facts) { r.URL = "https://" + f.Host + "/evil" },
		"a sign-in URL of a script": func(r *Facts) { r.URL = "javascript:alert(1)" },
	} {
		r := f
		change(&r)
		if allow.Check(r, p) == nil {
			t.Errorf("%s: taken", name)
		}
	}
	for _, bad := range []string{"", "*", "*.", "10.0.0.0/99", "a b", "https://x"} {
		if _, err := ParseAllowedEndpoints([]string{bad}); err == nil {
			t.Errorf("allowEndpoints accepts %q", bad)
		}
	}
}

// TestPrivate: a server warns about its own address if others would refuse it.
func TestPrivate(t *testing.T) {
	for url, private := range map[string]bool{"https://k8s.prod.example:6443": false, "https://203.0.113.7:6443": false, "https://10.0.0.1:6443": true,
		"https://kubernetes:6443": true, "http://k8s.prod.example": true, "nonsense": true} {
		if got := IsPrivateEndpoint(url); got != private {
			t.Errorf("%s: %t", url, got)
		}
	}
}
