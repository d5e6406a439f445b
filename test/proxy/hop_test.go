package proxy

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// A hop closes its connections in the middle of a stream, as load balancers and konnectivity do with those that were idle for too long.
// kubectl ends with a sentence and a code that is not 0: it never takes the part that it has seen for the whole.
func TestHopClosesStreams(t *testing.T) {
	r := start(t)
	runApp(t, r)
	alice := person(t, r, "alice-hop", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	run(t, alice, 0, "kubectl", "--kubeconfig", filepath.Join(alice.Home, "edit.kubeconfig"), "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	// The API server translates WebSocket streams, and follows logs, for its node. Where the connection to the node breaks, it reports
	// a success itself, which no program behind it can tell from a real one.
	for _, tt := range []struct {
		hop  string
		cut  func() int
		lies func(stream string) bool
	}{
		{"to the API server", system.hop.Cut, func(string) bool { return false }},
		{"to the node", system.egress.Cut, func(stream string) bool { return strings.HasSuffix(stream, "WebSocket") || stream == "logs" }},
	} {
		t.Run(tt.hop, func(t *testing.T) {
			streams, open := map[string]*command{"logs": begin(t, alice, "edit", nil, "logs", "-f", "app")}, map[string]string{"logs": "app line"}
			for protocol, env := range protocols {
				streams["exec "+protocol] = begin(t, alice, "edit", env, "exec", "-i", "app", "-c", "app", "--", "cat")
				streams["attach "+protocol] = begin(t, alice, "edit", env, "attach", "-i", "app", "-c", "app")
				open["exec "+protocol], open["attach "+protocol] = "begun", "attached"
				fmt.Fprintln(streams["exec "+protocol].in, "begun")
			}
			for name, c := range streams {
				until(t, func() string { return name + ": " + c.String() }, func() bool { return strings.Contains(c.String(), open[name]) })
			}
			until(t, func() string { return "the streams are not open" }, func() bool { return r.ProxyStreams() >= len(streams) })
			if n := tt.cut(); n < len(streams) {
				t.Errorf("%d connections were cut, want at least %d", n, len(streams))
			}
			for name, c := range streams {
				select {
				case <-c.ended:
				case <-time.After(limit):
					t.Errorf("%s continues: %s", name, c)
					continue
				}
				t.Logf("%-17s exit %d: %q", name, c.ProcessState.ExitCode(), c.String())
				if tt.lies(name) {
					continue
				}
				if c.ProcessState.ExitCode() == 0 {
					t.Errorf("%s ends with 0: %q", name, c.String())
				}
				if !strings.Contains(c.String(), "broke off") {
					t.Errorf("%s does not say why it ended: %q", name, c.String())
				}
			}
		})
	}
}
