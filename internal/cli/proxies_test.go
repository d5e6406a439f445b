package cli_test

import (
	"net/http"
	"net/http/httptest"
	"strings"
	"sync"
	"testing"

	"github.com/tailplane/tailplane/testkit/tailscaledtest"
)

// A recordingProxy refuses every request and records it.
type recordingProxy struct {
	*httptest.Server
	mu  sync.Mutex
	got []string
}

func newRecordingProxy(t *testing.T) *recordingProxy {
	p := &recordingProxy{}
	p.Server = httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		p.mu.Lock()
		p.got = append(p.got, r.Method+" "+r.Host)
		p.mu.Unlock()
		http.Error(w, "no", http.StatusBadGateway)
	}))
	t.Cleanup(p.Close)
	return p
}

// take returns the requests since the last call.
func (p *recordingProxy) take() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	got := strings.Join(p.got, ", ")
	p.got = nil
	return got
}

// CL-01: tka sends no name and no address of the tailnet to the proxy of the environment. What is in the tailnet, Tailscale says, and not
// the form of an address.
func TestCL01_the_tailnet_is_not_proxied(t *testing.T) {
	proxy := newRecordingProxy(t)
	d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
	d.AddPeer("tka.tail1234.ts.net", "100.64.0.7")
	for _, tt := range []struct{ why, state, server, want string }{
		{"a peer's address", "Running", "https://100.64.0.7", ""},
		{"a name of the tailnet", "Running", "https://tka.tail1234.ts.net", ""},
		{"an address of a hotel", "Running", "https://100.64.0.9", "CONNECT 100.64.0.9:443"},
		{"a name of another tailnet", "Running", "https://tka.tail9999.ts.net", "CONNECT tka.tail9999.ts.net:443"},
		{"Tailscale is stopped", "Stopped", "https://100.64.0.7", "CONNECT 100.64.0.7:443"},
	} {
		d.SetState(tt.state)
		m := newMachine(t, "http://127.0.0.1:1")
		m.env["TS_SOCKET"] = d.Socket
		r := m.spawn(t, []string{"HTTPS_PROXY=" + proxy.URL}, "status", "--server", tt.server, "--timeout", "1s")
		if got := proxy.take(); got != tt.want {
			t.Errorf("%s: the proxy received %q, want %q; code %d: %s", tt.why, got, tt.want, r.code, r.err)
		}
	}
	// Without a network device, the proxy of Tailscale on this machine is the way into the tailnet. Another machine's proxy is not.
	d.SetState("Running")
	d.Userspace()
	m := newMachine(t, "http://127.0.0.1:1")
	m.env["TS_SOCKET"] = d.Socket
	m.spawn(t, []string{"HTTPS_PROXY=" + proxy.URL}, "status", "--server", "https://tka.tail1234.ts.net", "--timeout", "1s")
	if got, want := proxy.take(), "CONNECT tka.tail1234.ts.net:443"; got != want {
		t.Errorf("the proxy of this machine received %q, want %q", got, want)
	}
	r := m.spawn(t, []string{"HTTPS_PROXY=http://192.0.2.1:3128"}, "status", "--server", "https://tka.tail1234.ts.net", "--timeout", "1s")
	if strings.Contains(r.err, "192.0.2.1") {
		t.Errorf("a name of the tailnet went to the proxy of another machine: %s", r.err)
	}
}

// doctor prints the value of NO_PROXY that kubectl needs for an API server in the tailnet.
func TestDoctorPrintsNoProxy(t *testing.T) {
	proxy := newRecordingProxy(t)
	access, srv := newAccessServer(t, "prod-eu")
	access.mu.Lock()
	access.server, access.ca = "https://k8s.tail1234.ts.net:6443", testCA()
	access.start()
	access.mu.Unlock()
	d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
	m := newMachine(t, srv.URL)
	m.env["TS_SOCKET"] = d.Socket
	want := "export NO_PROXY=localhost,100.64.0.0/10,fd7a:115c:a1e0::/48,.tail1234.ts.net"
	r := m.spawn(t, []string{"HTTPS_PROXY=" + proxy.URL, "NO_PROXY=localhost"}, "doctor", "--timeout", "5s")
	if !strings.Contains(r.out, want+"\n") {
		t.Errorf("doctor prints no %q:\n%s%s", want, r.out, r.err)
	}
	if got := proxy.take(); got != "" {
		t.Errorf("the proxy received %q, want none", got)
	}
	r = m.spawn(t, []string{"HTTPS_PROXY=" + proxy.URL, strings.TrimPrefix(want, "export ")}, "doctor", "--timeout", "5s")
	if !strings.Contains(r.out, "kubectl uses no proxy for the API server.") {
		t.Errorf("with that value:\n%s%s", r.out, r.err)
	}
	d.SetState("Stopped")
	r = m.spawn(t, []string{"HTTPS_PROXY=" + proxy.URL}, "doctor", "--timeout", "5s")
	if strings.Contains(r.out, "NO_PROXY") {
		t.Errorf("Tailscale does not confirm the API server:\n%s%s", r.out, r.err)
	}
}
