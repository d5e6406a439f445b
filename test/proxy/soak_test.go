package proxy

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/testkit/audittest"
)

// soakTime is the default duration. SOAK=1h in the environment changes it.
const soakTime = 10 * time.Second

// soakLine is how often the terminal of the soak gets a line.
const soakLine = 50 * time.Millisecond

// PRX-12: a terminal that writes steadily and changes its size is recorded for as long as it is open, with a sign-in that is extended
// meanwhile. The replay equals what the person saw, all sizes are in it, and the audit log has a digest of each minute and of the end.
func TestPRX12_Soak(t *testing.T) {
	lasts := soakTime
	if text := os.Getenv("SOAK"); text != "" {
		var err error
		if lasts, err = time.ParseDuration(text); err != nil {
			t.Fatal(err)
		}
	}
	r := start(t)
	runApp(t, r)
	alice := person(t, r, "alice-soak", "alice@example.com", "edit")
	run(t, alice, 0, "tka", "login", "--role", "edit", "--session", "edit")
	e := withRecorder(t, r, "soak", "", recordExec)
	if err := r.Net.WaitPeer(t.Context(), alice.Node, "soak"); err != nil {
		t.Fatal(err)
	}
	kubectlAs(t, alice, 0, nil, "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	x := beginTerminal(t, alice, "edit", nil, 80, 24, "exec", "-it", "app", "--", "cat")
	x.waitRaw(t)
	var sizes []string
	tick := time.NewTicker(soakLine)
	defer tick.Stop()
	n, extended := 0, time.Now()
	for end := time.Now().Add(lasts); time.Now().Before(end); n++ {
		select {
		case <-tick.C:
		case <-x.ended:
			t.Fatalf("the terminal ended after %d lines: %s", n, tail(x.String()))
		}
		x.enter(t, fmt.Sprintf("%d: \x1b[%dmcolour\x1b[0m héllo 日本\r", n, 31+n%7))
		if n%100 == 50 { // the line is shown, so the size before it has been sent
			until(t, func() string { return fmt.Sprintf("line %d is not shown: %s", n, tail(x.String())) }, func() bool { return strings.Contains(x.String(), fmt.Sprintf("%d: ", n)) })
			columns, rows := uint16(81+n/100%40), uint16(25+n/100%20)
			sizes = append(sizes, fmt.Sprintf("%dx%d", columns, rows))
			x.resize(t, columns, rows)
		}
		if time.Since(extended) > 10*time.Minute { // a rule gives an hour
			extended = time.Now()
			run(t, alice, 0, "tka", "login", "--role", "edit", "--session", "edit")
		}
	}
	until(t, func() string { return "the last line is not shown: " + tail(x.String()) }, func() bool { return strings.Contains(x.String(), fmt.Sprintf("%d: ", n-1)) })
	x.enter(t, "\x04")
	x.Process.Signal(os.Interrupt)
	select {
	case <-x.ended:
	case <-time.After(limit):
		x.Process.Kill()
		<-x.ended
	}
	var s recording.Summary
	until(t, func() string { return "the recording does not end" }, func() bool {
		for _, found := range e.list(t, alice) {
			if found.Command == "cat" && found.State != recording.Live {
				s = found
			}
		}
		return s.ID != ""
	})
	t.Logf("%d lines in %v, a recording of %d bytes, %d sizes", n, lasts, s.Bytes, len(sizes))
	whole := run(t, alice, 0, "tka", "play", s.ID, "--recorder", e.ServerAt("soak"), "--speed", "0").Stdout
	played, _, ended := strings.Cut(whole, "[end:")
	if !ended {
		t.Errorf("the replay has no end: %s", tail(whole))
	}
	if seen := x.String(); !strings.HasPrefix(seen, played) || len(played) < n*10 {
		t.Errorf("played %d bytes, the terminal showed %d: they differ at byte %d", len(played), len(seen), differAt(played, seen))
	}
	file, err := os.ReadFile(filepath.Join(e.RecordingsDir("soak"), s.ID+".cast"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(sizes, sizesIn(file)); diff != "" {
		t.Errorf("the sizes in the recording (-want +got):\n%s", diff)
	}
	digests, final := 0, ""
	for _, entry := range audittest.Entries(t, r.ProxyAuditFile(), "eyJhbGciOi") {
		if entry.Verb == access.APIRecording && entry.Args["recording"] == s.ID {
			digests, final = digests+1, entry.Args["sha256"]
		}
	}
	if want := int(lasts / time.Minute); digests < want || final != s.SHA256 {
		t.Errorf("%d digests in the audit log, want at least %d; the last one is %s, the recorder's is %s", digests, want, final, s.SHA256)
	}
}

// sizesIn returns the sizes in a recording after the first one.
func sizesIn(file []byte) (sizes []string) {
	for line := range bytes.Lines(file) {
		var event []any
		if json.Unmarshal(line, &event) == nil && len(event) == 3 && event[1] == "r" {
			sizes = append(sizes, fmt.Sprint(event[2]))
		}
	}
	if len(sizes) > 0 && sizes[0] == "80x24" {
		sizes = sizes[1:]
	}
	return sizes
}

// tail returns the end of a text.
func tail(s string) string { return s[max(0, len(s)-500):] }

// differAt returns the first position at which two texts differ.
func differAt(a, b string) int {
	for i := range min(len(a), len(b)) {
		if a[i] != b[i] {
			return i
		}
	}
	return min(len(a), len(b))
}
