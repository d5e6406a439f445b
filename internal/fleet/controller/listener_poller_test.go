package controller

import (
	"context"
	"fmt"
	"net/http"
	"net/http/httptest"
	"net/netip"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/fleet"
)

const labelled = `{name="acme-nix",namespace="runners",organization="acme",repository="",enterprise=""}`

func TestParseAssignedJobs(t *testing.T) {
	for _, c := range []struct {
		why, text string
		want      int // -1: not readable
	}{
		{"in ARC's format", "# HELP gha_assigned_jobs Number of jobs assigned to this scale set.\n# TYPE gha_assigned_jobs gauge\ngha_assigned_jobs" + labelled + " 3\ngha_running_jobs" + labelled + " 1\n", 3},
		{"none", "gha_assigned_jobs" + labelled + " 0\n", 0},
		{"without labels", "gha_assigned_jobs 2\n", 2},
		{"cut", "gha_assigned_jobs 2", -1},
		{"with a time", "gha_assigned_jobs" + labelled + " 2 1767323045000\n", 2},
		{"as a float", "gha_assigned_jobs 2e+00\n", 2},
		{"a label that looks like the end", `gha_assigned_jobs{name="a\"} 7",namespace="}"} 4` + "\n", 4},
		{"a longer name", "gha_assigned_jobs_total 3\n", -1},
		{"nothing", "", -1},
		{"of another", "gha_running_jobs 1\n", -1},
		{"two sets", "gha_assigned_jobs{name=\"a\"} 1\ngha_assigned_jobs{name=\"b\"} 2\n", -1},
		{"negative", "gha_assigned_jobs -1\n", -1},
		{"a part", "gha_assigned_jobs 0.5\n", -1},
		{"no number", "gha_assigned_jobs NaN\n", -1},
		{"without end", "gha_assigned_jobs +Inf\n", -1},
		{"too many", "gha_assigned_jobs 1e9\n", -1},
		{"no value", "gha_assigned_jobs" + labelled + "\n", -1},
		{"labels without end", "gha_assigned_jobs{name=\"a 3\n", -1},
		{"two values and more", "gha_assigned_jobs 1 2 3\n", -1},
	} {
		if n, err := parseAssignedJobs([]byte(c.text)); (err != nil) != (c.want < 0) || err == nil && n != c.want {
			t.Errorf("%s: %d, %v", c.why, n, err)
		}
	}
}

// FuzzParseAssignedJobs checks that for any input, the number comes from a single line and is not larger than a
// set can have.
func FuzzParseAssignedJobs(f *testing.F) {
	f.Add("gha_assigned_jobs" + labelled + " 3\n")
	f.Add(`gha_assigned_jobs{name="a\"} 7"} 4` + "\n")
	f.Add("gha_assigned_jobs 1 2\r\ngha_assigned_jobs")
	f.Fuzz(func(t *testing.T, text string) {
		n, err := parseAssignedJobs([]byte(text))
		if err != nil {
			return
		}
		switch {
		case n < 0:
			t.Errorf("n = %v, want at least 0", n)
		case n > maxAssignedJobs:
			t.Errorf("n = %v, want at most %v", n, maxAssignedJobs)
		case !strings.Contains(text, assignedJobsMetric):
			t.Errorf("text = %q does not contain %q", text, assignedJobsMetric)
		}
		if again, err := parseAssignedJobs([]byte(assignedJobsMetric + fmt.Sprintln(" ", n))); err != nil || again != n {
			t.Errorf("%d is read as %d, %v", n, again, err)
		}
	})
}

// A listener is queried on demand when a query is due, and its answer is valid for a while.
// Redirects and answers that are too large are refused.
func TestAssigned(t *testing.T) {
	var mu sync.Mutex
	now, requested, answer := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), 0, ""
	elsewhere := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) { t.Errorf("%s was requested", r.URL) }))
	defer elsewhere.Close()
	server := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		requested++
		switch {
		case r.URL.Path != "/metrics":
			http.NotFound(w, r)
		case answer == "elsewhere":
			http.Redirect(w, r, elsewhere.URL, http.StatusFound)
		case answer == "large":
			fmt.Fprintf(w, "gha_assigned_jobs 9\n%s", strings.Repeat("# much\n", maxMetricsBody))
		default:
			fmt.Fprintf(w, "gha_assigned_jobs%s %s\n", labelled, answer)
		}
	}))
	defer server.Close()
	at := netip.MustParseAddrPort(server.Listener.Addr().String())
	set := fleet.Key{Namespace: "runners", Name: "acme-nix"}
	changed := make(chan fleet.Key, 16)
	a := newListenerPoller(func() time.Time { mu.Lock(); defer mu.Unlock(); return now }, func(k fleet.Key) { changed <- k })
	a.tick = time.Hour // the test calls due itself
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- a.run(ctx) }()
	defer func() { cancel(); <-ended }()
	later := func(by time.Duration, reports string) {
		mu.Lock()
		defer mu.Unlock()
		now, answer = now.Add(by), reports
	}
	wait := func() {
		t.Helper()
		select {
		case k := <-changed:
			if k != set {
				t.Fatalf("%v changed", k)
			}
		case <-time.After(20 * time.Second):
			t.Fatal("nothing changed")
		}
	}
	reports := func(why string, at netip.AddrPort, path string, want int) {
		t.Helper()
		if n := a.assigned(set, at, path); (n == nil) != (want < 0) || n != nil && *n != want {
			t.Errorf("%s: %v, want %d", why, n, want)
		}
	}

	reports("no listener", netip.AddrPort{}, "/metrics", -1)
	later(0, "3")
	reports("not polled yet", at, "/metrics", -1)
	wait()
	later(0, "4")
	reports("it reported", at, "/metrics", 3)
	later(listenerQueryInterval, "4")
	reports("the last result", at, "/metrics", 3)
	wait()
	reports("the current result", at, "/metrics", 4)
	for _, bad := range []string{"elsewhere", "large", "-1"} {
		later(listenerQueryInterval, bad)
		reports("before "+bad, at, "/metrics", 4)
		wait()
		reports(bad, at, "/metrics", -1)
		later(listenerQueryInterval, "4")
		reports("before it reports it again", at, "/metrics", -1)
		wait()
	}
	reports("again", at, "/metrics", 4)
	later(listenerQueryInterval-1, "5")
	a.enqueueDue()
	reports("before it is due", at, "/metrics", 4)
	later(1, "5")
	a.enqueueDue() // without a demand at this moment
	wait()
	reports("a result that a caller requested", at, "/metrics", 5)
	later(listenerQueryInterval, "4")
	a.enqueueDue()
	wait()
	reports("it is not polled more often", at, "/metrics", 4)
	reports("another path", at, "/other", -1)
	reports("another listener", at, "/metrics", -1)
	wait()
	later(readingValidFor+time.Second, "4")
	cancel()
	reports("long ago", at, "/metrics", -1)
	if mu.Lock(); requested > 12 {
		t.Errorf("it was polled %d times", requested)
	}
	mu.Unlock()
}
