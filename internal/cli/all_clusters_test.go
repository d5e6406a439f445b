package cli_test

import (
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"regexp"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/gossip"
)

// SGN-23: with many clusters, tka signs in to eight at a time.
func TestSGN23_eight_at_a_time(t *testing.T) {
	const n, most = 12, 8
	eu, euURL := newAccessServer(t, "prod-eu")
	var mu sync.Mutex
	var now, highest int
	full := make(chan struct{}) // closed when the maximum number is signing in
	var members []gossip.Member
	m := newMachine(t, euURL.URL)
	for i := range n {
		d, plain := newAccessServer(t, fmt.Sprintf("prod-%02d", i))
		plain.Close()
		srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
			if r.Method == http.MethodPost {
				mu.Lock()
				now++
				highest = max(highest, now)
				if now == most {
					select {
					case <-full:
					default:
						close(full)
					}
				}
				mu.Unlock()
				select {
				case <-full:
				case <-time.After(patience):
				}
				defer func() { mu.Lock(); now--; mu.Unlock() }()
			}
			d.ServeHTTP(w, r)
		}))
		t.Cleanup(srv.Close)
		members = append(members, member(d, srv.URL))
		allowHTTP(t, m, srv.URL)
	}
	eu.addCluster(euURL.URL, members...)
	r := m.run("login", "--all", "--timeout", "2m")
	if r.code != 0 || strings.Count(r.out, "ready") != n+1 {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	if highest != most {
		t.Errorf("%d concurrent sign-ins, want %d", highest, most)
	}
	if r := m.run("status"); r.code != 0 || strings.Count(r.out, "ready") != n+1 {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	if r := m.run("logout", "--all", "--timeout", "2m"); r.code != 0 || strings.Count(r.out, "Signed out of") != n+1 {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
}

// SGN-23: if all clusters fail with one exit code, tka exits with it.
func TestSGN23_common_codes(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	us, usURL := newAccessServer(t, "prod-us")
	eu.addCluster(euURL.URL, member(us, usURL.URL))
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, usURL.URL)
	check := func(code int, cmds ...[]string) {
		t.Helper()
		for _, cmd := range cmds {
			if r := m.run(cmd...); r.code != code {
				t.Errorf("%v: code %d, want %d\n%s%s", cmd, r.code, code, r.out, r.err)
			}
		}
	}
	login, status, logout := []string{"login", "--all"}, []string{"status"}, []string{"logout", "--all"}
	check(0, login, status)
	us.mu.Lock()
	us.rules = nil
	us.start()
	us.mu.Unlock()
	check(0, login) // a cluster that grants nothing is a state
	eu.mu.Lock()
	eu.rules = nil
	eu.start()
	eu.mu.Unlock()
	check(3, login) // now the list is refused too
	check(0, logout)
	usURL.Close()
	check(1, login, logout)
	euURL.Close()
	check(5, login, logout, status)
}

// conventions.md 1: completion offers what the server knows, if this machine knows the server and it responds at once. Otherwise it is
// silent. It stores nothing.
func TestCompletionOfClusters(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	us, usURL := newAccessServer(t, "prod-us")
	evil := member(us, usURL.URL)
	evil.ClusterName, evil.ClusterID = "$(touch x)", "id-evil"
	dead := member(us, usURL.URL)
	dead.ClusterName, dead.ClusterID, dead.State = "prod-dead", "id-dead", gossip.Dead
	eu.addCluster(euURL.URL, member(us, usURL.URL), evil, dead)
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, usURL.URL)
	complete := func(want string) {
		t.Helper()
		for _, cmd := range []string{"login", "shell", "kubeconfig"} {
			r := m.run("__complete", cmd, "--cluster", "")
			for began := time.Now(); r.out == "prod-eu\n:4\n" && want != "prod-eu\n" && time.Since(began) < patience; {
				r = m.run("__complete", cmd, "--cluster", "") // the server has a second, and the machine may be busy
			}
			switch {
			case r.code != 0:
				t.Errorf("r.code = %v, want 0; %s", r.code, cmd)
			case !strings.HasPrefix(r.out, want+":4\n"):
				t.Errorf("r.out = %q does not start with %q; %s", r.out, want+":4\n", cmd)
			case strings.Contains(r.err, "error"):
				t.Errorf("r.err = %q contains %q; %s", r.err, "error", cmd)
			}
		}
	}
	complete("") // it does not query a server that was never met
	eu.checkRequests(t)
	if r := m.run("status"); r.code != 3 {
		t.Fatal(r.err)
	}
	before := m.read(t, "state/tka/servers.yaml")
	complete("prod-eu\nprod-us\n")
	us.checkRequests(t)
	if m.read(t, "state/tka/servers.yaml") != before {
		t.Error("completion changed the known servers")
	}
	stop := make(chan struct{})
	hang := newMovingServer(t, http.HandlerFunc(func(_ http.ResponseWriter, r *http.Request) {
		select {
		case <-stop:
		case <-r.Context().Done():
		}
	}))
	defer close(stop)
	m.write(t, "state/tka/servers.yaml", strings.ReplaceAll(before, euURL.URL, hang.URL))
	m.write(t, "config/tka/config.yaml", strings.ReplaceAll(m.read(t, "config/tka/config.yaml"), euURL.URL, hang.URL))
	complete("prod-eu\n") // hangs until the end
	hang.move(newHandler(func(w http.ResponseWriter, _ *http.Request) { w.WriteHeader(http.StatusTeapot) }))
	complete("prod-eu\n")
	if err := os.Remove(m.path("state/tka/servers.yaml")); err != nil {
		t.Fatal(err)
	}
	complete("")
}

func newHandler(f http.HandlerFunc) http.Handler { return f }

// A server that hears no other server reports that, and the state of the others is unknown.
func TestIsolated(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	us, usURL := newAccessServer(t, "prod-us")
	record := member(us, usURL.URL)
	record.State, record.LastSeen = gossip.Unknown, time.Now().Add(-2*time.Hour)
	eu.addCluster(euURL.URL, record)
	eu.mu.Lock()
	eu.members.Isolated = true
	eu.mu.Unlock()
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, usURL.URL)
	r := m.run("clusters")
	switch {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0", r.code)
	case !regexp.MustCompile(`(?m)^prod-us +unknown +2h +none *$`).MatchString(r.out):
		t.Errorf("code: regexp.MustCompile(`(?m)^prod-us +unknown +2h +none *$`).MatchString(r.out) is false; %d, %s, %s",
			r.code, r.out, r.err)
	case !strings.Contains(r.err, "receives nothing from the other servers"):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "receives nothing from the other servers")
	}
	if r := m.run("login", "--cluster", "prod-us"); r.code != 5 || !strings.Contains(r.err, "the state of its server is unknown") {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	if all := checkResults(t, m.run("doctor", "-o", "json")); !strings.HasPrefix(all["discovery"], "warn: The server receives nothing from the clusters") {
		t.Errorf("doctor: %q", all["discovery"])
	}
	us.checkRequests(t)
	eu.addCluster(euURL.URL)
	if all := checkResults(t, m.run("doctor", "-o", "json")); !strings.HasPrefix(all["discovery"], "ok: The server knows only its own cluster") || all["clusters"] != "ok: All clusters are usable." {
		t.Errorf("doctor: %q, %q", all["discovery"], all["clusters"])
	}
}

// If the server of the settings grants nothing, the list comes from a server that does, among those that this machine signed in to. With
// --server, only that server is asked.
func TestClustersFromAnotherServer(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	us, usURL := newAccessServer(t, "prod-us")
	eu.addCluster(euURL.URL, member(us, usURL.URL))
	us.addCluster(usURL.URL, member(eu, euURL.URL))
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, usURL.URL)
	if r := m.run("login", "--all"); r.code != 0 {
		t.Fatal(r.out, r.err)
	}
	eu.mu.Lock()
	eu.rules = nil
	eu.start()
	eu.mu.Unlock()
	r := m.run("clusters")
	for _, want := range []string{`(?m)^prod-eu +alive +\S+ +ready`, `(?m)^prod-us +alive +ready +view`} {
		if !regexp.MustCompile(want).MatchString(r.out) {
			t.Errorf("%q is not in:\n%s%s", want, r.out, r.err)
		}
	}
	if r.code != 0 || !strings.Contains(r.err, "The list is from "+usURL.URL) {
		t.Errorf("code %d: %s", r.code, r.err)
	}
	if r := m.run("clusters", "--server", euURL.URL); r.code != 3 {
		t.Errorf("--server: code %d\n%s%s", r.code, r.out, r.err)
	}
	us.mu.Lock()
	us.rules = nil
	us.start()
	us.mu.Unlock()
	if r := m.run("clusters"); r.code != 3 || !strings.Contains(r.err, "grant") {
		t.Errorf("without any grant: code %d\n%s%s", r.code, r.out, r.err)
	}
}
