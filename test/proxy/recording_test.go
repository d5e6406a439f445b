package proxy

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/testkit/audittest"
)

const recordExec = `  - name: exec-is-recorded
    when: request.resourceAttributes.subresource in ["exec", "attach"]
    record: [exec, attach]
`

// PRX-12: a session that a rule records is in the directory with who did what, with both protocols, and its digest is in the audit
// log. A person whom no rule records is not. Where a recording is required, a request to a node's own API is refused.
func TestPRX12_ExecIsRecorded(t *testing.T) {
	r := start(t)
	runApp(t, r)
	alice := person(t, r, "alice-recorded", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	as := func(want int, env []string, args ...string) string {
		t.Helper()
		c := begin(t, alice, "edit", env, args...)
		<-c.ended
		if got := c.ProcessState.ExitCode(); got != want {
			t.Errorf("%s: exit %d, want %d: %s", strings.Join(args, " "), got, want, c)
		}
		return c.String()
	}
	as(0, nil, "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	as(0, nil, "exec", "app", "--", "echo", "before the rule")
	setPolicy(t, r, recordExec, policyChanged)
	t.Cleanup(func() { setPolicy(t, r, "", policyChanged) })
	for protocol, env := range protocols {
		as(0, env, "exec", "app", "--", "echo", "said over "+protocol)
		as(42, env, "exec", "app", "--", "exit", "42")
	}
	if got := as(1, nil, "get", "--raw", "/api/v1/nodes/fakenode/proxy/pods"); !strings.Contains(got, "cannot be recorded") {
		t.Errorf("a node's own API: %s", got)
	}
	files, err := filepath.Glob(filepath.Join(system.dir, "recordings", "*.cast"))
	if err != nil {
		t.Fatal(err)
	}
	commands := map[string]int{}
	for _, f := range files {
		b, err := os.ReadFile(f)
		if err != nil {
			t.Fatal(err)
		}
		head, _, _ := strings.Cut(string(b), "\n")
		h, err := recording.ParseHeader([]byte(head))
		if err != nil {
			t.Fatalf("%s: %v", f, err)
		}
		if h.SrcNode != alice.Node.Hostname+"."+r.Net.Suffix() { // of another test
			continue
		}
		commands[h.Command]++
		if h.SrcNodeUser != "alice@example.com" {
			t.Errorf("recorded for %q: %s", h.SrcNodeUser, head)
		}
		if k := h.Kubernetes; k == nil || k.PodName != "app" {
			t.Errorf("the recording is about %+v", k)
		}
	}
	for command, want := range map[string]int{"echo before the rule": 0, "echo said over WebSocket": 1, "echo said over SPDY": 1, "exit 42": 2} {
		if commands[command] != want {
			t.Errorf("%q is recorded %d times, want %d: %v", command, commands[command], want, commands)
		}
	}
	final := 0
	until(t, func() string { return "the digests of the recordings" }, func() bool {
		final = 0
		for _, e := range audittest.Entries(t, r.ProxyAuditFile(), "eyJhbGciOi") {
			if e.Verb == access.APIRecording && e.Args["complete"] == "true" && e.Actor.Node == alice.Node.Hostname+"."+r.Net.Suffix() && len(e.Args["sha256"]) == 64 {
				final++
			}
		}
		return final == 4
	})
}
