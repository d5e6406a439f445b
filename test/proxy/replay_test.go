package proxy

import (
	"bytes"
	"context"
	"encoding/json"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/accessproxy/recording"
	"github.com/tailplane/tailplane/testkit/audittest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// chromium returns the programs for a real browser.
func chromium(t *testing.T) (node, browser string) {
	t.Helper()
	node, err := exec.LookPath("node")
	if err != nil {
		t.Skip("SKIP browser: there is no Node. Run: make browser")
	}
	if _, err := os.Stat(filepath.Join("../../web/node_modules", "playwright-core")); err != nil {
		t.Skip("SKIP browser: web/node_modules has no playwright-core. Run: make browser")
	}
	for _, name := range []string{"chromium", "chromium-browser", "google-chrome"} {
		if path, err := exec.LookPath(name); err == nil {
			return node, path
		}
	}
	t.Skip("SKIP browser: there is no Chromium. Run: make browser")
	return "", ""
}

// PRX-18: an exec through the proxy is recorded on a recorder of ours, and a real browser plays it on the dashboard: the text that the
// terminal showed appears. The recorder knows the plane by its tag, and refuses it without the setting. A person whose role does not show
// all recordings sees none of others. The plane's audit log names the person, and the recorder's names the plane and that person.
func TestPRX18_ReplayInBrowser(t *testing.T) {
	node, browser := chromium(t)
	r := start(t)
	runApp(t, r)
	alice, bob, pat := person(t, r, "alice-replay", "alice@example.com", "edit"), person(t, r, "bob-replay", "bob@example.com"), person(t, r, "pat-replay", "pat@example.com")
	run(t, alice, 0, "tka", "login", "--role", "edit")
	e := withRecorder(t, r, "reels", "", recordExec)
	if err := r.Net.WaitPeer(t.Context(), alice.Node, "reels"); err != nil {
		t.Fatal(err)
	}
	kubectlAs(t, alice, 0, nil, "wait", "pod/app", "--for=condition=Ready", "--timeout=1m")
	x := beginTerminal(t, alice, "edit", nil, 100, 30, "exec", "-it", "app", "--", "cat")
	x.waitRaw(t)
	x.enter(t, "shown in the browser\x1b]8;;javascript:window.hurt=1\x07\r")
	until(t, x.String, func() bool { return strings.Count(x.String(), "shown in the browser") > 0 })
	x.enter(t, "\x04")
	x.Process.Signal(os.Interrupt)
	select {
	case <-x.ended:
	case <-time.After(limit):
		x.Process.Kill()
	}
	var id string
	until(t, func() string { return "the recording does not end" }, func() bool {
		for _, s := range e.list(t, alice) {
			if s.Command == "cat" && s.TTY && s.State != recording.Live {
				id = s.ID
			}
		}
		return id != ""
	})

	r.Set("plane.recorder", r.ServerAt("reels"))
	t.Cleanup(func() { r.Set("plane.recorder", "") })
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	defer cancel()
	if r.Plane != nil {
		if err := r.Plane.Stop(time.Minute); err != nil {
			t.Fatal(err)
		}
	}
	if err := r.StartPlane(ctx); err != nil {
		t.Fatal(err)
	}
	for _, p := range []*testenv.Person{bob, pat} {
		if err := r.Net.WaitPeer(ctx, p.Node, "dashboard"); err != nil {
			t.Fatal(err)
		}
	}
	see := func(p *testenv.Person, play string) (saw struct {
		Text, Terminal string
		Hurt           bool
		Wrong          []string
	}) {
		t.Helper()
		cmd := exec.CommandContext(ctx, node, "browser.mjs")
		cmd.Env = append(os.Environ(), "DASHBOARD="+r.Dashboard(), "CHROMIUM="+browser, "PROXY="+p.Proxy, "PLAY="+play)
		cmd.WaitDelay = 10 * time.Second
		var out, errs bytes.Buffer
		cmd.Stdout, cmd.Stderr = &out, &errs
		if err := cmd.Run(); err != nil {
			t.Fatalf("the browser: %v\n%s%s%s", err, &out, &errs, r.Plane.Output())
		}
		if err := json.Unmarshal(out.Bytes(), &saw); err != nil {
			t.Fatal(err)
		}
		return saw
	}
	if saw := see(pat, ""); !strings.Contains(saw.Text, "recorder.planes") {
		t.Errorf("with a recorder that does not know the plane, the page shows %q", saw.Text)
	}
	e.stop(t)
	e.more = "  planes: [tag:tailplane]\n"
	e.start(t)
	until(t, func() string { return "the recorder is back for the plane: " + e.p.Output() }, func() bool { return strings.Contains(see(pat, "").Text, "alice@example.com") })

	saw := see(pat, id)
	if !strings.Contains(saw.Terminal, "shown in the browser") {
		t.Errorf("the terminal in the browser shows %q", saw.Terminal)
	}
	if saw.Hurt || len(saw.Wrong) > 0 {
		t.Errorf("the page: a script ran: %v, errors: %q", saw.Hurt, saw.Wrong)
	}
	if saw := see(bob, ""); strings.Contains(saw.Text, "alice@example.com") || !strings.Contains(saw.Text, "No recordings") {
		t.Errorf("bob sees %q", saw.Text)
	}
	for file, want := range map[string][2]string{r.PlaneAuditFile(): {"pat@example.com", ""}, filepath.Join(r.Dir, "reels", "audit.jsonl"): {"", "pat@example.com"}} {
		n := 0
		for _, entry := range audittest.Entries(t, file, "eyJhbGciOi") {
			if entry.Verb == access.RecordingsRead && entry.Args["recording"] == id && string(entry.Actor.Login) == want[0] && entry.Args["for"] == want[1] {
				n++
			}
		}
		if n == 0 {
			t.Errorf("%s has no entry of the replay", file)
		}
	}
}
