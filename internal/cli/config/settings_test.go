package config

import (
	"strings"
	"testing"
)

// CL-01: which server addresses are valid.
func TestCL01_addresses_of_servers(t *testing.T) {
	set := defaults()
	set.Servers = []ServerSettings{
		{Name: "lab", URL: "http://tka-lab", InsecureHTTP: true},
		{Name: "eu", URL: "https://tka.example.ts.net:8443"},
	}
	for _, tt := range []struct{ name, want, why string }{
		{"tka", "https://tka", "a bare name is https"},
		{"TKA.Example.ts.net.", "https://tka.example.ts.net", "one form for each name"},
		{"tka:8443", "https://tka:8443", "a name with a port"},
		{"tka:443", "https://tka", "the scheme's own port is left out"},
		{"100.64.1.2", "https://100.64.1.2", "an address"},
		{"fd7a:115c:a1e0::1", "https://[fd7a:115c:a1e0::1]", "an IPv6 address"},
		{"[fd7a:115c:a1e0::1]:8443", "https://[fd7a:115c:a1e0::1]:8443", "an IPv6 address with a port"},
		{"https://tka/", "https://tka", "a URL"},
		{"https://10.0.0.1:6443", "https://10.0.0.1:6443", "https may be anywhere"},
		{"lab", "http://tka-lab", "http where the settings allow it"},
		{"http://tka-lab", "http://tka-lab", "and by its URL"},
		{"eu", "https://tka.example.ts.net:8443", "a name of the settings"},
		{"http://tka", "", "http that no setting allowed"},
		{"http://tka-lab:81", "", "another port is another server"},
		{"", "", "nothing"},
		{"https://user@tka", "", "a user name"},
		{"https://user:secret@tka", "", "a password"},
		{"user@tka", "", "a user name before a bare name"},
		{"https://tka/api", "", "a path"},
		{"tka/api", "", "a path behind a bare name"},
		{"https://tka?x=1", "", "a query"},
		{"https://tka?", "", "an empty query"},
		{"https://tka#x", "", "a fragment"},
		{"https://", "", "no host"},
		{"https:tka", "", "no authority"},
		{"ftp://tka", "", "another scheme"},
		{"file:///etc/passwd", "", "a file"},
		{"unix:///run/x", "", "a socket"},
		{"169.254.169.254", "", "the metadata service"},
		{"https://169.254.169.254", "", "the metadata service by URL"},
		{"https://[::ffff:169.254.169.254]", "", "the metadata service in IPv6 dress"},
		{"[fe80::1]", "", "link-local"},
		{"fe80::1%eth0", "", "link-local with a zone"},
		{"https://[fe80::1%25eth0]", "", "link-local with a zone by URL"},
		{"https://[fd00:ec2::254]", "", "the metadata service over IPv6"},
		{"100.100.100.200", "", "a metadata service inside the tailnet's range"},
		{"metadata.google.internal", "", "a metadata service by name"},
		{"Metadata.Google.Internal.", "", "the same in another form"},
		{"0.0.0.0", "", "no address"},
		{"https://[::]", "", "no address"},
		{"224.0.0.1", "", "multicast"},
		{"2852039166", "", "an address as one number"},
		{"0xa9fea9fe", "", "an address in hexadecimal"},
		{"169.254.43518", "", "a short address"},
		{"https://0xa9.0xfe.0xa9.0xfe", "", "a hexadecimal address"},
		{"tka:0", "", "no port"},
		{"tka:99999", "", "no port"},
		{"tka:http", "", "a port by name"},
		{"-tka", "", "like a flag"},
		{"tka evil", "", "a space"},
		{"tka\nevil", "", "a line break"},
		{"tka\x1b[2J", "", "an escape"},
		{"tkа", "", "a letter of another script"},
		{"$(touch x)", "", "a command"},
		{strings.Repeat("a", 300), "", "too long"},
	} {
		got, err := set.Address(tt.name)
		if got != tt.want || (err == nil) != (tt.want != "") {
			t.Errorf("address(%q) = %q, %v; want %q: %s", tt.name, got, err, tt.want, tt.why)
		}
	}
}
