package cli_test

import (
	"encoding/json"
	"os"
	"os/exec"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/tailplane/tailplane/testkit/tailscaledtest"
)

// underShell runs a line in a shell. The shell is the parent of the plugin, like kubectl.
func (m *machine) underShell(line string) *exec.Cmd {
	cmd := exec.Command("sh", "-c", line+"; exit $?") // otherwise the shell would exec the last command
	cmd.Env = m.environ(nil)
	return cmd
}

// issuedTokens runs a line as one kubectl process and returns the tokens that it got.
func (m *machine) issuedTokens(t *testing.T, line string) (tokens []string) {
	t.Helper()
	out, err := m.underShell(line).Output()
	if err != nil {
		t.Errorf("%s: %v: %s", line, err, out)
	}
	for line := range strings.Lines(string(out)) {
		var c struct{ Status struct{ Token string } }
		if err := json.Unmarshal([]byte(line), &c); err != nil || c.Status.Token == "" {
			t.Errorf("not a credential: %v: %s", err, line)
		}
		tokens = append(tokens, c.Status.Token)
	}
	return tokens
}

const plugin = "tka credential --cluster prod-eu"

// SGN-20, CL-06: fifty concurrent kubectl processes cause one request to the server.
func TestSGN20_fifty_at_once(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	before := len(d.received())
	var wg sync.WaitGroup
	var mu sync.Mutex
	got := map[string]int{}
	for range 50 {
		wg.Go(func() {
			tokens := m.issuedTokens(t, plugin)
			mu.Lock()
			defer mu.Unlock()
			for _, token := range tokens {
				got[token]++
			}
		})
	}
	wg.Wait()
	// the cluster info and the token
	if seen := d.received()[before:]; len(seen) != 2 || len(got) != 1 {
		t.Errorf("%d requests, %d tokens: %v", len(seen), len(got), seen)
	}
}

// SGN-20: a token that the API server refuses is replaced when the same kubectl requests it again, so that the next command works. It is
// not replaced otherwise.
func TestSGN20_a_refused_token_heals(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	first := m.issuedTokens(t, plugin)[0]
	again := m.issuedTokens(t, plugin+"; "+plugin)
	if again[0] != first || again[1] == first {
		t.Errorf("first %s, then %s", first, again)
	}
	if next := m.issuedTokens(t, plugin)[0]; next != again[1] {
		t.Errorf("the next run got %s, want %s", next, again[1])
	}
}

// The cache is for one sign-in: it does not return a token of another role, and returns none after logout.
func TestSGN20_the_cache_ends_with_the_sign_in(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	d.rules = []string{grantRule("view/8h/1"), grantRule("edit/1h")}
	d.start()
	m := newMachine(t, srv.URL)
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	view := m.issuedTokens(t, plugin)[0]
	if r := m.run("login", "--role", "edit"); r.code != 0 {
		t.Fatal(r.err)
	}
	if again := m.issuedTokens(t, plugin)[0]; again != view {
		t.Error("the login of another session ended the token of this one")
	}
	if edit := m.issuedTokens(t, plugin+" --session edit")[0]; edit == view {
		t.Error("the command returned the token of the other session")
	}
	d.rules = []string{grantRule("view/8h/1/shop"), grantRule("edit/1h")}
	d.mu.Lock()
	d.start()
	d.mu.Unlock()
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	if narrow := m.issuedTokens(t, plugin)[0]; narrow == view {
		t.Error("the command returned the token of the sign-in before, which had other namespaces")
	}
	if r := m.run("logout"); r.code != 0 {
		t.Fatal(r.err)
	}
	if out, err := m.underShell(plugin).Output(); err == nil || len(out) > 0 {
		t.Errorf("after logout: %v, %s", err, out)
	}
}

// With credentialCache: none, tka stores no token.
func TestSGN20_no_cache(t *testing.T) {
	d, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	if r := m.run("config", "credentialCache", "none"); r.code != 0 {
		t.Fatal(r.err)
	}
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	before := len(d.received())
	if a, b := m.issuedTokens(t, plugin)[0], m.issuedTokens(t, plugin)[0]; a == b || len(d.received()) != before+4 {
		t.Errorf("tokens %s and %s, %d requests", a, b, len(d.received())-before)
	}
	for _, f := range m.files(t) {
		if strings.Contains(m.read(t, f), canary) {
			t.Errorf("%s holds a token", f)
		}
	}
	if r := m.run("config", "credentialCache", "some"); r.code != 2 {
		t.Errorf("code %d: %s", r.code, r.err)
	}
}

// $XDG_RUNTIME_DIR, which is in memory, takes precedence over the disk.
func TestSGN20_in_memory(t *testing.T) {
	_, srv := newAccessServer(t, "prod-eu")
	m := newMachine(t, srv.URL)
	m.env["XDG_RUNTIME_DIR"] = m.path("run")
	if err := os.Mkdir(m.path("run"), 0o700); err != nil {
		t.Fatal(err)
	}
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	m.issuedTokens(t, plugin)
	for _, f := range m.files(t) {
		if strings.Contains(m.read(t, f), canary) && !strings.HasPrefix(f, "run/tka/tokens/") {
			t.Errorf("%s holds a token", f)
		}
	}
	if _, err := os.Stat(m.path("run/tka/tokens")); err != nil {
		t.Error(err)
	}
}

// Two people use one device and change places with "tailscale switch". The token that tka cached for one of them is not served to the other.
func TestTailscaleSwitch(t *testing.T) {
	access, srv := newAccessServer(t, "prod-eu")
	d := tailscaledtest.Start(t, "nAlice", "tail1234.ts.net")
	m := newMachine(t, srv.URL)
	m.env["TS_SOCKET"] = d.Socket
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	first := m.issuedTokens(t, plugin)
	if again := m.issuedTokens(t, plugin); !slices.Equal(again, first) {
		t.Errorf("alice again: %v, want the cached %v", again, first)
	}
	d.Switch("nBob", "tail1234.ts.net")
	access.other.Store(true)
	if r := m.spawn(t, nil, strings.Fields(plugin)[1:]...); r.code != 3 || r.out != "" {
		t.Errorf("bob, who is not signed in: code %d, want 3: %s%s", r.code, r.out, r.err)
	}
	if r := m.run("login"); r.code != 0 {
		t.Fatal(r.err)
	}
	bobs := m.issuedTokens(t, plugin)
	if slices.Equal(bobs, first) {
		t.Errorf("bob gets alice's token %v", bobs)
	}
	d.Switch("nAlice", "tail1234.ts.net")
	access.other.Store(false)
	if back := m.issuedTokens(t, plugin); slices.Equal(back, bobs) {
		t.Errorf("alice gets bob's token %v", back)
	}
	// Where Tailscale cannot be asked, the cache works as before.
	m.env["TS_SOCKET"] = m.path("none")
	one := m.issuedTokens(t, plugin)
	if two := m.issuedTokens(t, plugin); !slices.Equal(one, two) {
		t.Errorf("without Tailscale: %v, then %v", one, two)
	}
}
