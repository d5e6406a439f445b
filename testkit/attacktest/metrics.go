package attacktest

import (
	"fmt"
	"net"
	"net/http"
	"os"
	"strconv"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// WaitGranted waits until p's grants in the current policy allow p to send requests.
func (s *Env) WaitGranted(t *testing.T, p *testenv.Person) {
	t.Helper()
	s.waitPolicy(t)
	var a Answer
	Eventually(t, Long, "the grant is in effect", func() bool {
		a = s.Ask(t, p, "GET", API+"/login", "")
		return a.Code() == problem.NotSignedIn || a.Code() == "" && a.Status < 300
	})
}

// ResidentMemory returns the resident memory of a process in bytes.
func ResidentMemory(t *testing.T, pid int) int {
	t.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/statm", pid))
	if err != nil {
		t.Skip("SKIP memory of a process: /proc does not show it here")
	}
	pages, err := strconv.Atoi(strings.Fields(string(b))[1])
	if err != nil {
		t.Fatal(err)
	}
	return pages * os.Getpagesize()
}

// ListeningPorts returns the TCP ports on which a process of this machine listens.
func ListeningPorts(t *testing.T, pid int) []int {
	t.Helper()
	ports, told, err := testenv.Listening(pid)
	switch {
	case !told:
		t.Skip("SKIP sockets of a process: /proc does not show them here")
	case err != nil:
		t.Fatal(err)
	}
	return ports
}

// ProbePaths are the paths of the probe listener.
var ProbePaths = []string{"/livez", "/readyz", "/metrics"}

// ProbeAddress returns the address of a process's probe listener. It reads the last address in the log, because one
// log contains all runs.
func (s *Env) ProbeAddress(t *testing.T, p *testenv.Process) (address string) {
	t.Helper()
	for _, line := range strings.Split(p.Output(), "\n") {
		if strings.Contains(line, `"health is served"`) {
			var said struct{ Address string }
			Decode(t, line, &said)
			address = said.Address
		}
	}
	if address == "" {
		t.Fatalf("the log of %v has no address of probes", p.Args[1])
	}
	return address
}

// RawProbe sends bytes to a listener on this machine and reads one response.
func RawProbe(t *testing.T, addr, raw string) Answer {
	t.Helper()
	conn, err := net.Dial("tcp", addr)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	w := NewConn(t, conn)
	w.Send(raw)
	method, _, _ := strings.Cut(raw, " ")
	res, err := http.ReadResponse(w.r, &http.Request{Method: method})
	if err != nil {
		t.Fatalf("%q: %v", raw, err)
	}
	return ReadAnswer(t, res)
}

// Metrics returns the metrics of a process, by name and labels.
func (s *Env) Metrics(t *testing.T, p *testenv.Process) map[string]float64 {
	t.Helper()
	a := RawProbe(t, s.ProbeAddress(t, p), "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
	if a.Status != http.StatusOK {
		t.Fatalf("metrics: %.300v", a)
	}
	out := map[string]float64{}
	for line := range strings.Lines(a.Body) {
		i := strings.LastIndexByte(line, ' ')
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' || i < 0 {
			continue
		}
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("metrics: %q: %v", line, err)
		}
		out[line[:i]] = v
	}
	return out
}
