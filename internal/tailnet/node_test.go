package tailnet

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"log/slog"
	"net"
	"net/http"
	"os"
	"strings"
	"sync"
	"testing"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/tailnettest"
)

func TestMain(m *testing.M) {
	if dir := os.Getenv(claimEnv); dir != "" {
		claimAndWait(dir)
		return
	}
	tailnettest.Quiet()
	os.Exit(m.Run())
}

const policy = `{
	"groups": {"group:sre": ["alice@example.com"]},
	"tagOwners": {"tag:tailplane": [], "tag:ci": [], "tag:ingress": []},
	"grants": [
		{"src": ["*"], "dst": ["tag:tailplane"], "ip": ["tcp:80", "tcp:443"]},
		{"src": ["group:sre"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [
			{"role": "view", "period": "8h"},
			{"Role": "edit", "role": "odd", "period": "1h"},
		]}},
		{"src": ["tag:ci"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "view", "period": "1h", "allowTagged": true}]}},
		{"src": ["tag:ingress"], "dst": ["tag:tailplane"], "app": {"tailplane.dev/cap/access": [{"role": "admin", "period": "8h", "allowTagged": true}]}},
	],
	"nodeAttrs": [{"target": ["tag:tailplane"], "attr": ["funnel"]}],
}`

// long is the time limit for waits that take milliseconds on an idle machine.
const long = 2 * time.Minute

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), long)
	t.Cleanup(cancel)
	return ctx
}

// eventually polls until ok returns true, and returns the duration.
func eventually(t testing.TB, what string, ok func() bool) time.Duration {
	t.Helper()
	begin := time.Now()
	tick := time.NewTicker(2 * time.Millisecond)
	defer tick.Stop()
	for !ok() {
		if time.Since(begin) > long {
			t.Fatalf("not within %v: %s", long, what)
		}
		<-tick.C
	}
	return time.Since(begin)
}

// A recordingLog stores the log of a node.
type recordingLog struct {
	mu  sync.Mutex
	buf bytes.Buffer
}

func (l *recordingLog) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.Write(p)
}

func (l *recordingLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.buf.String()
}

func (l *recordingLog) logger(level slog.Level) *slog.Logger {
	return slog.New(slog.NewJSONHandler(l, &slog.HandlerOptions{Level: level}))
}

// serverConfig returns the configuration of a node with the name tka and the tag tag:tailplane.
func serverConfig(t testing.TB, tn *tailnettest.Net) (Config, *recordingLog) {
	book := new(recordingLog)
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("the node's log:\n%s", book)
		}
	})
	return Config{
		Hostname: "tka", Tags: []string{"tag:tailplane"}, ControlURL: tn.ControlURL(), StateDir: t.TempDir(), Port: 80, InsecureHTTP: true,
		AuthKey:    secret.New(tn.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:tailplane"}})),
		Capability: string(testCap), JoinTimeout: long, Log: book.logger(slog.LevelInfo),
	}, book
}

// runningNode is a node whose Run has started.
type runningNode struct {
	*Node
	stop context.CancelFunc
	done chan struct{}
	err  error // set before done is closed
}

// run starts a node. The end of the test stops it and requires a nil error.
func run(t testing.TB, cfg Config) *runningNode {
	t.Helper()
	n, err := New(cfg)
	if err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context())) // the context of t ends before Cleanup
	r := &runningNode{Node: n, stop: cancel, done: make(chan struct{})}
	go func() { r.err = n.Run(ctx); close(r.done) }()
	t.Cleanup(func() {
		if err := r.end(t); err != nil {
			t.Errorf("Run: %v", err)
		}
	})
	return r
}

// end stops the node if it is running, and returns the error of Run once.
func (r *runningNode) end(t testing.TB) error {
	t.Helper()
	r.stop()
	select {
	case <-r.done:
	case <-time.After(long):
		t.Fatal("Run did not return")
	}
	err := r.err
	r.err = nil
	return err
}

// refused waits until Run returns an error.
func (r *runningNode) refused(t testing.TB) error {
	t.Helper()
	select {
	case <-r.done:
	case <-time.After(long):
		t.Fatalf("Run continues: %+v", r.Status())
	}
	err := r.err
	r.err = nil
	if err == nil {
		t.Fatal("Run ended without an error")
	}
	return err
}

func (r *runningNode) up(t testing.TB) {
	t.Helper()
	select {
	case <-r.joined:
	case <-r.done:
		t.Fatalf("Run ended: %v", r.err)
	case <-time.After(long):
		t.Fatalf("not joined: %+v", r.Status())
	}
}

// identity is the response of a server that uses Identify.
type identity struct {
	Caller access.Caller
	Code   problem.Code // of Identify, or of Admit if Identify succeeded
}

func identified(n *Node) http.Handler {
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		c, err := n.Identify(r)
		if err == nil {
			err = access.Admit(c)
		}
		json.NewEncoder(w).Encode(identity{c, problem.CodeOf(err)})
	})
}

// serve serves on ln until the test ends.
func serve(t testing.TB, n *Node, ln net.Listener, h http.Handler) {
	srv := &http.Server{Handler: h, ConnContext: n.ConnContext, ReadHeaderTimeout: long, ErrorLog: log.New(io.Discard, "", 0)}
	go srv.Serve(ln)
	t.Cleanup(func() { srv.Close() })
}

func listen(t testing.TB, n *Node) net.Listener {
	t.Helper()
	ln, err := n.Listen(within(t))
	if err != nil {
		t.Fatal(err)
	}
	return ln
}

// get sends a request with the given client.
func get(t testing.TB, hc *http.Client, url string) identity {
	t.Helper()
	req, err := http.NewRequestWithContext(within(t), http.MethodGet, url, nil)
	if err != nil {
		t.Fatal(err)
	}
	res, err := hc.Do(req)
	if err != nil {
		t.Fatal(err)
	}
	defer res.Body.Close()
	body, err := io.ReadAll(res.Body)
	var got identity
	if err == nil {
		err = json.Unmarshal(body, &got)
	}
	if err != nil || res.StatusCode != http.StatusOK {
		t.Fatalf("%s: %s %v", res.Status, body, err)
	}
	return got
}

func ready(t testing.TB, tn *tailnettest.Net, server string, nodes ...*tsnet.Server) {
	t.Helper()
	if err := tn.Ready(within(t), nodes...); err != nil {
		t.Fatal(err)
	}
	for _, s := range nodes {
		if err := tn.WaitPeer(within(t), s, server); err != nil {
			t.Fatal(err)
		}
	}
}

func stableID(t testing.TB, tn *tailnettest.Net, s *tsnet.Server) tailcfg.StableNodeID {
	t.Helper()
	id, err := tn.ID(s)
	if err != nil {
		t.Fatal(err)
	}
	return id
}

func ip4(s *tsnet.Server) string {
	ip, _ := s.TailscaleIPs()
	return ip.String()
}

// The complete node: it joins, listens, and identifies callers (ID-03, ID-13). This also works when
// the policy changes during an open connection (ID-14), when a key expires, or when a device is
// removed (ID-02).
func TestIdentities(t *testing.T) {
	t.Parallel()
	tn := tailnettest.Start(t, policy)
	cfg, book := serverConfig(t, tn)
	n := run(t, cfg)
	alice, bob := tn.Node("alice-laptop", "alice@example.com"), tn.Node("bob-laptop", "bob@example.com")
	ci, guest := tn.Node("runner", "", "tag:ci"), tn.Node("guest", "alice@example.com")
	n.up(t)
	serve(t, n.Node, listen(t, n.Node), identified(n.Node))
	ready(t, tn, "tka", alice, bob, ci, guest)
	guestID, bobID := stableID(t, tn, guest), stableID(t, tn, bob)
	tn.Share(guestID)

	a := get(t, alice.HTTPClient(), "http://tka/")
	want := access.Caller{
		Login: "alice@example.com", DisplayName: a.Caller.DisplayName, UserID: a.Caller.UserID, Tailnet: "example.com", Via: access.ViaTailnet,
		Device: access.Device{ID: string(stableID(t, tn, alice)), Name: "alice-laptop.tiny.ts.net"},
		Rules:  rules(`{"role":"view","period":"8h"}`, `{"Role":"edit","role":"odd","period":"1h"}`),
	}
	switch got, want := fmt.Sprintf("%+v", a.Caller), fmt.Sprintf("%+v", want); {
	case got != want:
		t.Errorf("alice: got = %q, want %q", got, want)
	case a.Code != "":
		t.Errorf("alice: a.Code = %q, want none", a.Code)
	case a.Caller.UserID == "":
		t.Errorf("alice: a.Caller.UserID is empty; got = %s, %s, want = %s", got, a.Code, want)
	}
	switch b := get(t, bob.HTTPClient(), "http://tka/"); {
	case b.Caller.Login != "bob@example.com":
		t.Errorf("bob: b.Caller.Login = %q, want %q", b.Caller.Login, "bob@example.com")
	case len(b.Caller.Rules) != 0:
		t.Errorf("bob: len(b.Caller.Rules) = %v, want 0", len(b.Caller.Rules))
	case b.Code != "":
		t.Errorf("bob: b.Code = %q, want none", b.Code)
	}
	c := get(t, ci.HTTPClient(), "http://tka.tiny.ts.net/")
	switch {
	case c.Caller.Identity() != "node:runner.tiny.ts.net":
		t.Errorf("tagged: c.Caller.Identity() = %q, want %q", c.Caller.Identity(), "node:runner.tiny.ts.net")
	case c.Caller.Login != "":
		t.Errorf("tagged: c.Caller.Login = %q, want none", c.Caller.Login)
	case c.Caller.UserID != "":
		t.Errorf("tagged: c.Caller.UserID = %q, want none", c.Caller.UserID)
	case len(c.Caller.Tags) != 1:
		t.Errorf("tagged: len(c.Caller.Tags) = %v, want 1", len(c.Caller.Tags))
	case c.Caller.Device.ID != string(stableID(t, tn, ci)):
		t.Errorf("tagged: c.Caller.Device.ID = %q, want string(stableID(t, tn, ci))", c.Caller.Device.ID)
	case len(c.Caller.Rules) != 1:
		t.Errorf("tagged: len(c.Caller.Rules) = %v, want 1", len(c.Caller.Rules))
	case c.Code != "":
		t.Errorf("tagged: c.Code = %q, want none", c.Code)
	}
	eventually(t, "the guest is shared in", func() bool { return get(t, guest.HTTPClient(), "http://tka/").Caller.Shared })

	// ID-14, on one open connection per client.
	warm := &http.Client{Transport: &http.Transport{DialContext: alice.Dial, MaxConnsPerHost: 1}}
	get(t, warm, "http://tka/")
	changed := n.Changed()
	if err := tn.SetPolicy(strings.Replace(policy, "alice@example.com", "carol@example.com", 1)); err != nil {
		t.Fatal(err)
	}
	requested := 0
	took := eventually(t, "alice's grant is gone", func() bool { requested++; return len(get(t, warm, "http://tka/").Caller.Rules) == 0 })
	t.Logf("ID-14: the grant was gone on a warm connection after %v, %d questions", took.Round(time.Millisecond), requested)
	if took > 2*time.Second && requested > 500 { // a busy machine also sends fewer requests
		t.Errorf("the change took %v, and %d questions were answered meanwhile", took, requested)
	}
	select {
	case <-changed:
	case <-time.After(long):
		t.Error("Changed did not tell of the new policy")
	}

	// Expiry and removal, as the guard of live sign-ins sees them.
	device := func(id tailcfg.StableNodeID) (access.Caller, bool) {
		t.Helper()
		found, err := n.Devices(within(t), string(id), "n404CNTRL")
		if err != nil {
			t.Fatal(err)
		}
		c, ok := found[string(id)]
		delete(found, string(id))
		if len(found) > 0 {
			t.Errorf("devices that were not requested or do not exist: %+v", found)
		}
		return c, ok
	}
	switch c, ok := device(bobID); {
	case !ok:
		t.Errorf("bob's device: ok is false; %+v, %v", c, ok)
	case c.Login != "bob@example.com":
		t.Errorf("bob's device: c.Login = %q, want %q", c.Login, "bob@example.com")
	case c.Expired:
		t.Errorf("bob's device: c.Expired is true; %+v, %v", c, ok)
	}
	tn.Expire(bobID)
	eventually(t, "bob's key has expired", func() bool {
		c, ok := device(bobID)
		return ok && c.Expired && problem.CodeOf(access.Admit(c)) == problem.NodeExpired
	})
	guestIP := ip4(guest)
	tn.Delete(guestID)
	eventually(t, "the guest is gone", func() bool { _, ok := device(guestID); return !ok })
	if _, err := n.whoIs(within(t), guestIP, ""); problem.CodeOf(err) != problem.NoIdentity {
		t.Errorf("WhoIs of a removed device: %v", err)
	}
	if !strings.Contains(book.String(), "the node is in its tailnet") {
		t.Error("joining was not logged")
	}
}
