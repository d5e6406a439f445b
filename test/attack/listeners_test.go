package attack

import (
	"bufio"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/yaml"

	"github.com/tailplane/tailplane/testkit/testenv"
)

// listening returns the TCP ports on which a process listens on this machine.
func listening(t *testing.T, pid int) []int {
	t.Helper()
	ports, told, err := testenv.Listening(pid)
	switch {
	case !told:
		t.Skip("SKIP sockets of a process: /proc does not tell them here")
	case err != nil:
		t.Fatal(err)
	}
	return ports
}

// probePaths are what the listener of probes has.
var probePaths = []string{"/livez", "/readyz", "/metrics"}

// probes is where a process answers probes: what it said last, as one log holds all
// its runs.
func (s *system) probes(t *testing.T, p *testenv.Process) (address string) {
	t.Helper()
	for _, line := range strings.Split(p.Output(), "\n") {
		if strings.Contains(line, `"health is served"`) {
			var said struct{ Address string }
			decode(t, line, &said)
			address = said.Address
		}
	}
	if address == "" {
		t.Fatalf("%v does not say where it answers probes", p.Args[1])
	}
	return address
}

// rawProbe sends bytes to a listener on this machine and reads the one answer.
func rawProbe(t *testing.T, addr, raw string) answer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w := &wire{t, conn, bufio.NewReader(conn)}
	w.send(raw)
	method, _, _ := strings.Cut(raw, " ")
	res, err := http.ReadResponse(w.r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return readAnswer(t, res)
}

// onlyTheseListeners fails when the program's settings, as it prints them itself,
// have grown a listener that these tests do not drive yet.
func (s *system) onlyTheseListeners(t *testing.T) {
	t.Helper()
	res, err := s.alice(t).Run(t.Context(), "tailplaned", "config", "--config", filepath.Join(s.Dir, "access", "config.yaml"))
	if err != nil || res.Exit != 0 {
		t.Fatalf("tailplaned config: %v %d %s", err, res.Exit, res.Stderr)
	}
	var settings map[string]any
	if err := yaml.Unmarshal([]byte(res.Stdout), &settings); err != nil {
		t.Fatal(err)
	}
	var found []string
	var walk func(at string, v any)
	walk = func(at string, v any) {
		sub, ok := v.(map[string]any)
		for name, v := range sub {
			walk(strings.TrimPrefix(at+"."+name, "."), v)
		}
		last := strings.ToLower(at[strings.LastIndexByte(at, '.')+1:])
		if !ok && slices.ContainsFunc([]string{"port", "listen", "addr", "bind", "health", "probe", "metrics", "socket"}, func(s string) bool { return strings.Contains(last, s) }) {
			found = append(found, at)
		}
	}
	walk("", settings)
	slices.Sort(found)
	if !slices.Equal(found, []string{"gossip.port", "health", "tailnet.port"}) {
		t.Errorf("the program listens by the settings %v; these tests drive the tailnet's two ports and probes", found)
	}
}
