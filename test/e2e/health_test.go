package e2e

import (
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// healthOf returns the probe address of a process, from its log.
func healthOf(t *testing.T, p *testenv.Process) string {
	t.Helper()
	address := ""
	for line := range strings.Lines(p.Output()) {
		if strings.Contains(line, `"health is served"`) {
			var said struct{ Address string }
			if err := json.Unmarshal([]byte(line), &said); err != nil {
				t.Fatal(err)
			}
			address = said.Address // of the last start, because the log continues over restarts
		}
	}
	if address == "" {
		t.Fatalf("the log has no address of probes: %s", p.Output())
	}
	return "http://" + address
}

func probe(t *testing.T, url string) (int, string) {
	t.Helper()
	res, err := (&http.Client{Timeout: 20 * time.Second}).Get(url)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	if err != nil {
		t.Fatal(err)
	}
	return res.StatusCode, string(b)
}

// series returns the samples of a scrape by name and labels.
func series(t *testing.T, p *testenv.Process) map[string]float64 {
	t.Helper()
	status, text := probe(t, healthOf(t, p)+"/metrics")
	if status != http.StatusOK {
		t.Fatalf("%d %s", status, text)
	}
	out := map[string]float64{}
	for line := range strings.Lines(text) {
		if line = strings.TrimSpace(line); line == "" || line[0] == '#' {
			continue
		}
		i := strings.LastIndexByte(line, ' ')
		v, err := strconv.ParseFloat(line[i+1:], 64)
		if err != nil {
			t.Fatalf("%q: %v", line, err)
		}
		out[line[:i]] = v
	}
	return out
}

// inFlight returns the number of requests that the access server is processing.
func inFlight(t *testing.T, r *testenv.Env) float64 {
	t.Helper()
	return series(t, r.Access)[`tailplane_requests_in_flight{listener="tailnet"}`]
}

// Section 6: probes and metrics have a separate listener.
func TestHealth(t *testing.T) {
	r := start(t)
	alice, bob := person(t, r, "health-alice", "alice@example.com"), person(t, r, "health-bob", "bob@example.com")
	for _, p := range []*testenv.Process{r.Access, r.Operator} {
		if status, text := probe(t, healthOf(t, p)+"/livez"); status != 200 {
			t.Errorf("/livez: %d %s", status, text)
		}
		if status, text := probe(t, healthOf(t, p)+"/readyz?verbose"); status != 200 {
			t.Errorf("/readyz: %d %s", status, text)
		} else {
			t.Logf("%s: %s", p.Args[1], strings.ReplaceAll(strings.TrimSpace(text), "\n", ", "))
		}
	}
	// DS-03: they are not served on the tailnet.
	for _, path := range []string{"/livez", "/readyz", "/metrics", "/debug/pprof/"} {
		if a := ask(t, alice, "GET", r.Server()+path, ""); a.status != 404 {
			t.Errorf("%s on the tailnet: %d", path, a.status)
		}
	}
	before := series(t, r.Access)
	login(t, alice)
	if got, _ := kubeconfig(t, alice, r, "?wait=20s"); got.status != 200 {
		t.Fatalf("%d %s", got.status, got.body)
	}
	if _, err := signin.Login.Call(t.Context(), bob.Client(), signin.LoginRequest{}); problem.CodeOf(err) != problem.NoCapability {
		t.Errorf("bob: %v", err)
	}
	ready := series(t, r.Access)
	logout(t, alice)
	after := series(t, r.Access)
	for name, more := range map[string]float64{
		`tailplane_requests_total{code="2xx",listener="tailnet",op="signin.login"}`:      1,
		`tailplane_requests_total{code="4xx",listener="tailnet",op="signin.login"}`:      1,
		`tailplane_requests_total{code="2xx",listener="tailnet",op="signin.kubeconfig"}`: 1,
		`tailplane_requests_total{code="2xx",listener="tailnet",op="signin.logout"}`:     1,
		`tailplane_refusals_total{reason="no_capability"}`:                               1,
		`tailplane_token_requests_total{result="made"}`:                                  1,
		`tailplane_signin_ends_total{cause="logout"}`:                                    1,
		`tailplane_audit_entries_total{result="done"}`:                                   3,
		`tailplane_audit_entries_total{result="refused"}`:                                1,
		`tailplane_whois_seconds_count`:                                                  5, // one more after the wait
		`tailplane_kubeconfig_wait_seconds_count`:                                        1,
	} {
		if got := after[name] - before[name]; got != more {
			t.Errorf("%s grew by %v, want %v", name, got, more)
		}
	}
	for name, want := range map[string]float64{"tailplane_tailnet_up": 1, "tailplane_ready": 1, "tailplane_audit_up": 1, "tailplane_audit_dropped_total": 0} {
		if got, there := after[name]; !there || got != want {
			t.Errorf("%s is %v (%v), want %v", name, got, there, want)
		}
	}
	if ready[`tailplane_signins{phase="Ready"}`] < 1 {
		t.Errorf("while signed in, the metric reports %v ready sign-ins", ready[`tailplane_signins{phase="Ready"}`])
	}
	if !slices.ContainsFunc(slices.Collect(maps.Keys(after)), func(name string) bool { return strings.HasPrefix(name, "tailplane_build_info{") }) {
		t.Error("no tailplane_build_info")
	}
	if _, there := series(t, r.Operator)["go_goroutines"]; !there {
		t.Error("the operator has no figures of the Go runtime")
	}
}

// AU-06: requests of strangers create no series.
func TestAU06_SeriesDoNotGrow(t *testing.T) {
	r := start(t)
	bob := person(t, r, "series-bob", "bob@example.com")
	c := bob.HTTP()
	defer c.CloseIdleConnections()
	send := func(i int) {
		method := []string{"GET", "POST", "PUT", "BREW"}[i%4]
		req, err := http.NewRequestWithContext(t.Context(), method, fmt.Sprintf("%s/%d/x?y=%d", r.Server(), i, i), nil)
		if err != nil {
			t.Fatal(err)
		}
		if i%3 == 0 {
			req.Host = fmt.Sprintf("h%d.example", i)
		}
		req.Header.Set("User-Agent", fmt.Sprint("agent", i))
		res, err := c.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		io.Copy(io.Discard, res.Body)
		res.Body.Close()
	}
	for i := range 24 { // one of every kind
		send(i)
	}
	before := series(t, r.Access)
	for i := range 1000 {
		send(1000 + i)
	}
	after := series(t, r.Access)
	for name := range after {
		if _, there := before[name]; !there && strings.HasPrefix(name, "tailplane_") {
			t.Errorf("a new series: %s", name)
		}
	}
	const refused = `tailplane_refusals_total{reason="not_found"}`
	if after[refused]-before[refused] < 100 {
		t.Errorf("%s grew by %v", refused, after[refused]-before[refused])
	}
}

// Conventions 14.6: the server is not ready within five seconds after it loses the API server, and ready again
// afterwards. It stays alive all the time.
func TestReadinessFollowsTheAPIServer(t *testing.T) {
	r := start(t)
	access := healthOf(t, r.Access)
	if err := r.Cluster.Pause(); err != nil {
		t.Fatal(err)
	}
	resumed := false
	resume := func() {
		if !resumed {
			resumed = true
			if err := r.Cluster.Resume(); err != nil {
				t.Fatal(err)
			}
		}
	}
	defer resume()
	took := eventually(t, 10*time.Second, "not ready", func() bool { status, _ := probe(t, access+"/readyz"); return status == 503 })
	if took > 5*time.Second {
		t.Errorf("not ready after %v", took)
	}
	if status, text := probe(t, access+"/readyz?verbose"); !strings.Contains(text, "[-]kubernetes") || !strings.Contains(text, "[+]tailnet ok") {
		t.Errorf("%d %s", status, text)
	}
	if status, _ := probe(t, access+"/livez"); status != 200 {
		t.Errorf("/livez: %d", status)
	}
	resume()
	again := eventually(t, 20*time.Second, "ready again", func() bool { status, _ := probe(t, access+"/readyz"); return status == 200 })
	t.Logf("not ready after %v, ready again after %v", took.Round(time.Millisecond), again.Round(time.Millisecond))
}
