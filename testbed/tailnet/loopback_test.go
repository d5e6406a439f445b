package tailnet_test

import (
	"bufio"
	"bytes"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// TB-06: the program connects only to loopback. It is a real binary, since tsnet starts no logger under go test.
func TestNothingLeavesTheMachine(t *testing.T) {
	t.Parallel()
	bin := build(t, "github.com/tailplane/tailplane/testbed/cmd/tailnet")

	for _, c := range []struct {
		name     string
		args     []string
		wildcard bool // tsnet's peer API listens on every interface
	}{
		{"strace, strict", []string{"-exit", "-strict"}, false},
		{"strace", []string{"-exit"}, true},
	} {
		t.Run(c.name, func(t *testing.T) {
			t.Parallel()
			strace, err := exec.LookPath("strace")
			if err != nil {
				t.Skip("SKIP strace: not found")
			}
			trace := filepath.Join(t.TempDir(), "trace")
			cmd := exec.CommandContext(deadline(t), strace, append([]string{"-f", "-o", trace,
				"-e", "trace=connect,bind,sendto,sendmsg,sendmmsg", bin}, c.args...)...)
			cmd.Env = clean()
			out, err := cmd.CombinedOutput()
			if bytes.Contains(bytes.ToLower(out), []byte("ptrace")) {
				t.Skipf("SKIP strace: this machine does not let it trace: %s", out)
			}
			if err != nil {
				t.Fatalf("%v\n%s", err, out)
			}
			served(t, out)
			b, err := os.ReadFile(trace)
			if err != nil {
				t.Fatal(err)
			}
			seen := watch(b)
			if seen.loopback < 10 {
				t.Errorf("strace saw %d calls to loopback: that cannot be all", seen.loopback)
			}
			for _, line := range seen.outside {
				t.Errorf("leaves the machine: %s", line)
			}
			if len(seen.wildcard) > 0 != c.wildcard {
				t.Errorf("listens on every interface, want %v: %q", c.wildcard, seen.wildcard)
			}
		})
	}

	t.Run("no routes", func(t *testing.T) {
		t.Parallel()
		unshare, err := exec.LookPath("unshare")
		if err != nil {
			t.Skip("SKIP network namespace: unshare not found")
		}
		// With 127.0.0.1 as its only address, tsnet waits forever. So the script adds another one.
		const script = `ip link set lo up && ip addr add 10.255.255.1/32 dev lo && exec "$0" -exit`
		if out, err := exec.CommandContext(deadline(t), unshare, "-Urn", "sh", "-c", "ip link set lo up").CombinedOutput(); err != nil {
			t.Skipf("SKIP network namespace: %v: %s", err, out)
		}
		cmd := exec.CommandContext(deadline(t), unshare, "-Urn", "sh", "-c", script, bin)
		cmd.Env = clean()
		out, err := cmd.CombinedOutput()
		if err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		served(t, out)
	})
}

// clean returns the environment without proxies, which would hide the destinations of a program.
func clean() []string {
	return []string{"PATH=" + os.Getenv("PATH"), "HOME=" + os.TempDir(), "TMPDIR=" + os.TempDir()}
}

// served checks that the program did the work that the test observes.
func served(t *testing.T, out []byte) {
	t.Helper()
	for _, want := range []string{`request from alice to server: "alice@example.com" on "alice"`, `request from bob to server: "bob@example.com" on "bob"`} {
		if !bytes.Contains(out, []byte(want)) {
			t.Errorf("the output of the program lacks %q:\n%s", want, out)
		}
	}
}

var inet = regexp.MustCompile(`sin_addr=inet_addr\("([^"]+)"\)|inet_pton\(AF_INET6, "([^"]+)"`)

// sighting is the result of watch: system calls with an internet address, by kind.
type sighting struct {
	loopback int
	outside  []string // connections to, or listeners on, any other address
	wildcard []string // listened on every interface
}

// watch parses strace's output. A bind to an address of the tailnet is harmless: the address belongs to netstack and
// not to the machine, and the call fails.
func watch(trace []byte) (s sighting) {
	own := []netip.Prefix{netip.MustParsePrefix("100.64.0.0/10"), netip.MustParsePrefix("fd7a:115c:a1e0::/48")}
	lines := bufio.NewScanner(bytes.NewReader(trace))
	lines.Buffer(nil, 1<<20)
	for lines.Scan() {
		line := lines.Text()
		for _, m := range inet.FindAllStringSubmatch(line, -1) {
			a, err := netip.ParseAddr(m[1] + m[2])
			bind := strings.Contains(line, " bind(")
			switch {
			case err == nil && a.IsLoopback():
				s.loopback++
			case bind && err == nil && a.IsUnspecified():
				s.wildcard = append(s.wildcard, line)
			case bind && err == nil && slices.ContainsFunc(own, func(p netip.Prefix) bool { return p.Contains(a) }):
			default:
				s.outside = append(s.outside, line)
			}
		}
	}
	return s
}

func TestWatch(t *testing.T) {
	t.Parallel()
	s := watch([]byte(`7 connect(3, {sa_family=AF_INET, sin_port=htons(53), sin_addr=inet_addr("127.0.0.1")}, 16) = 0
7 connect(3, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("192.0.2.1")}, 16) = -1 EINPROGRESS
7 connect(3, {sa_family=AF_INET, sin_port=htons(443), sin_addr=inet_addr("100.64.0.1")}, 16) = -1 EINPROGRESS
7 sendto(3, "x", 1, 0, {sa_family=AF_INET6, sin6_port=htons(1), sin6_flowinfo=htonl(0), inet_pton(AF_INET6, "2001:db8::1", &sin6_addr), sin6_scope_id=0}, 28) = 1
7 bind(3, {sa_family=AF_INET, sin_port=htons(0), sin_addr=inet_addr("100.64.0.1")}, 16) = -1 EADDRNOTAVAIL
7 bind(3, {sa_family=AF_INET, sin_port=htons(0), sin_addr=inet_addr("192.168.0.1")}, 16) = 0
7 bind(3, {sa_family=AF_INET6, sin6_port=htons(0), sin6_flowinfo=htonl(0), inet_pton(AF_INET6, "::", &sin6_addr), sin6_scope_id=0}, 28) = 0
7 connect(3, {sa_family=AF_UNIX, sun_path="/run/x"}, 10) = -1
`))
	switch {
	case s.loopback != 1:
		t.Errorf("s.loopback = %v, want 1", s.loopback)
	case len(s.outside) != 4:
		t.Errorf("len(s.outside) = %v, want 4", len(s.outside))
	case len(s.wildcard) != 1:
		t.Errorf("len(s.wildcard) = %v, want 1", len(s.wildcard))
	}
}
