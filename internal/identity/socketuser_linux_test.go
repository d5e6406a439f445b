package identity

import (
	"bufio"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"os"
	"runtime"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
)

// strangerID is a user ID that no test runs as.
const strangerID = 65_533

// dialAs connects to at with a socket of another user. Linux can change the user of a single
// thread, which ends with the goroutine that is locked to it.
func dialAs(t *testing.T, uid int, at net.Addr) net.Conn {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("SKIP a process of another user: only root can change its user")
	}
	type dialed struct {
		c   net.Conn
		err error
	}
	done := make(chan dialed)
	go func() {
		runtime.LockOSThread() // never unlocked
		if _, _, errno := syscall.RawSyscall(syscall.SYS_SETRESUID, ^uintptr(0), uintptr(uid), ^uintptr(0)); errno != 0 {
			done <- dialed{nil, errno}
			return
		}
		c, err := net.Dial(at.Network(), at.String())
		done <- dialed{c, err}
	}()
	d := <-done
	if d.err != nil {
		t.Fatal(d.err)
	}
	t.Cleanup(func() { d.c.Close() })
	return d.c
}

// ID-08: On a loopback port, tailscaled is trusted. Another local process with the same headers is
// not.
func TestID08_AnotherProcessOnLoopback(t *testing.T) {
	t.Parallel()
	for _, network := range []string{"tcp4", "tcp6"} {
		ln, err := net.Listen(network, map[string]string{"tcp4": "127.0.0.1:0", "tcp6": "[::1]:0"}[network])
		if err != nil {
			t.Logf("SKIP %s: %v", network, err)
			continue
		}
		t.Cleanup(func() { ln.Close() })
		start(t, ln, Serve{Capability: capability, Users: []uint32{uint32(os.Geteuid())}})
		if got := ask(t, ln.Addr(), serveLogin+": alice@example.com"); got.Login != "alice@example.com" {
			t.Errorf("%s: tailscaled's user: %+v", network, got)
		}
		t.Run(network, func(t *testing.T) {
			if got := askOn(t, dialAs(t, strangerID, ln.Addr()), serveLogin+": alice@example.com"); got.Code != problem.NoIdentity || got.Login != "" {
				t.Errorf("another user: %+v", got)
			}
		})
	}
}

// A server without ConnContext queries the kernel for each request.
func TestServeWithoutConnContext(t *testing.T) {
	t.Parallel()
	for user, want := range map[uint32]string{uint32(os.Geteuid()): "alice@example.com", 4_000_000_000: "no_identity"} {
		var identify Identifier
		srv := httptest.NewUnstartedServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			c, err := identify(r)
			fmt.Fprint(w, c.Login, problem.CodeOf(err))
		}))
		var err error
		if identify, err = (Serve{Capability: capability, Users: []uint32{user}}).Identifier(srv.Listener.Addr()); err != nil {
			t.Fatal(err)
		}
		srv.Start()
		t.Cleanup(srv.Close)
		req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, srv.URL, nil)
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set(serveLogin, "alice@example.com")
		res, err := srv.Client().Do(req)
		if err != nil {
			t.Fatal(err)
		}
		b, err := io.ReadAll(res.Body)
		res.Body.Close()
		if err != nil || string(b) != want {
			t.Errorf("tailscaled as user %d: %q, %v", user, b, err)
		}
	}
}

// The kernel lists root as the owner of a closed connection. A client that sends a request and
// disconnects must not pass as tailscaled.
func TestID08_ConnectionThatWasLeft(t *testing.T) {
	t.Parallel()
	ln := tcp(t)
	identify, err := Serve{Capability: capability, Users: []uint32{0}}.Identifier(ln.Addr())
	if err != nil {
		t.Fatal(err)
	}
	arrived, left := make(chan netip.AddrPort, 1), make(chan struct{})
	verdict := make(chan seen, 1)
	serve(t, ln, func(r *http.Request) (access.Caller, error) {
		_, there, _ := connEndpoints(r)
		arrived <- there
		<-left
		c, err := identify(r)
		verdict <- seen{Login: c.Login, Code: problem.CodeOf(err)}
		return c, err
	})
	c := dialAs(t, strangerID, ln.Addr())
	if _, err := fmt.Fprintf(c, "GET / HTTP/1.1\r\nHost: plane\r\n%s: alice@example.com\r\n\r\n", serveLogin); err != nil {
		t.Fatal(err)
	}
	at := <-arrived
	c.Close()
	end := time.Now().Add(long)
	for orphaned := false; !orphaned; time.Sleep(5 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal("the kernel never listed the connection as root's")
		}
		list, err := os.ReadFile("/proc/self/net/tcp")
		if err != nil {
			t.Fatal(err)
		}
		for line := range strings.Lines(string(list)) {
			if f := strings.Fields(line); len(f) > 9 && matchesEndpoint(f[1], at) && f[3] != established && f[7] == "0" {
				orphaned = true
			}
		}
	}
	close(left)
	if got := <-verdict; got.Code != problem.NoIdentity || got.Login != "" {
		t.Errorf("the process that ended is %+v", got)
	}
}

// The kernel's list, in the byte order of the machine.
func TestFindUser(t *testing.T) {
	t.Parallel()
	const heading = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
	at, to := netip.MustParseAddrPort("127.0.0.1:4660"), netip.MustParseAddrPort("127.0.0.1:443")
	word := "0100007F"
	if bigEndian() {
		word = "7F000001"
	}
	line := func(local, remote, state, user, inode string) string {
		return fmt.Sprintf("   0: %s %s %s 00000000:00000000 00:00000000 00000000 %s        0 %s 1 0000000000000000 20 4 30 10 -1\n", local, remote, state, user, inode)
	}
	good := line(word+":1234", word+":01BB", "01", "1000", "7")
	for _, tt := range []struct {
		why, list string
		user      uint32
		ok        bool
	}{
		{"there", heading + good, 1000, true},
		{"among others", heading + line(word+":1235", word+":01BB", "01", "5", "7") + line(word+":01BB", word+":1234", "01", "6", "7") + good, 1000, true},
		{"in IPv6's form", heading + line("0000000000000000"+mapped()+word+":1234", "0000000000000000"+mapped()+word+":01BB", "01", "1000", "7"), 1000, true},
		{"the other end", heading + line(word+":01BB", word+":1234", "01", "0", "7"), 0, false},
		{"closing", heading + line(word+":1234", word+":01BB", "05", "0", "0"), 0, false},
		{"of no process", heading + line(word+":1234", word+":01BB", "01", "0", "0"), 0, false},
		{"as the heading", good, 0, false},
		{"cut off", heading + "   0: " + word, 0, false},
		{"a user in words", heading + line(word+":1234", word+":01BB", "01", "root", "7"), 0, false},
		{"empty", "", 0, false},
	} {
		user, err := findUser(bufio.NewScanner(strings.NewReader(tt.list)), at, to)
		if user != tt.user || (err == nil) != tt.ok {
			t.Errorf("%s: %d, %v", tt.why, user, err)
		}
	}
}

func bigEndian() bool { return binary.NativeEndian.Uint16([]byte{0, 1}) == 1 }

func mapped() string {
	if bigEndian() {
		return "0000FFFF"
	}
	return "FFFF0000"
}

func BenchmarkUserOf(b *testing.B) {
	ln := tcp(b)
	c, err := net.Dial("tcp", ln.Addr().String())
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	there, err := ln.Accept()
	if err != nil {
		b.Fatal(err)
	}
	defer there.Close()
	at, to := netip.MustParseAddrPort(c.LocalAddr().String()), netip.MustParseAddrPort(c.RemoteAddr().String())
	for b.Loop() {
		if _, err := userOf(at, to); err != nil {
			b.Fatal(err)
		}
	}
}
