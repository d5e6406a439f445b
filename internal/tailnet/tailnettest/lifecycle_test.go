package tailnettest

import (
	"context"
	"io"
	"net/http"
	"net/url"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"tailscale.com/ipn"
	"tailscale.com/tsnet"
)

func state(t testing.TB, s *tsnet.Server) string {
	t.Helper()
	lc, err := s.LocalClient()
	if err != nil {
		t.Fatal(err)
	}
	st, err := lc.StatusWithoutPeers(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return st.BackendState
}

// TB-04: an expired node is out, yet WhoIs of it still answers, with Expired; a
// removed one is unknown.
func TestExpiryAndRemoval(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	a, b, c := n.Node("a", "alice@example.com"), n.Node("b", "bob@example.com"), n.Node("c", "carol@example.com")
	ready(t, n, a, b, c)
	serveWhoIs(t, b, ":80")
	ask(t, a, "http://b/")
	ask(t, c, "http://b/")

	aIP, _ := a.TailscaleIPs()
	idA := id(t, n, a)
	if !n.Expire(idA) || n.Expire("n404CNTRL") {
		t.Error("Expire does not say whether the node exists")
	}
	took := eventually(t, "the expired node knows", func() bool { return state(t, a) == "NeedsLogin" })
	peer := eventually(t, "its peer knows", func() bool {
		got, err := whois(t.Context(), b, aIP.String())
		if err != nil || got.Login != "alice@example.com" {
			t.Fatalf("WhoIs of an expired peer: %+v %v", got, err)
		}
		return got.Expired
	})
	t.Logf("expiry: the node knows after %v, its peer %v later; WhoIs of it still answers", took.Round(time.Millisecond), peer.Round(time.Millisecond))
	refused(t, a, "b:80")

	cIP, _ := c.TailscaleIPs()
	idC := id(t, n, c)
	if !n.Delete(idC) || n.Delete(idC) {
		t.Error("Delete does not say whether the node existed")
	}
	var why error
	took = eventually(t, "WhoIs knows nobody", func() bool {
		_, why = whois(t.Context(), b, cIP.String())
		return why != nil
	})
	if !strings.Contains(why.Error(), "peer not found") {
		t.Errorf("WhoIs of a removed peer: %v", why)
	}
	t.Logf("removal: WhoIs knows nobody after %v", took.Round(time.Millisecond))
	eventually(t, "the removed node knows", func() bool { return state(t, c) != "Running" })
	refused(t, c, "b:80")
}

func TestShare(t *testing.T) {
	t.Parallel()
	n := Start(t, `{
		"tagOwners": {"tag:tka": []},
		"grants": [
			{"src": ["*"], "dst": ["*"], "ip": ["*"]},
			{"src": ["autogroup:member"], "dst": ["tag:tka"], "app": {"tailplane.dev/cap/access": [{"role": "member"}]}},
			{"src": ["autogroup:shared"], "dst": ["tag:tka"], "app": {"tailplane.dev/cap/access": [{"role": "guest"}]}},
		]}`)
	tka, eve := n.Node("tka", "", "tag:tka"), n.Node("eve", "eve@elsewhere.org")
	ready(t, n, tka, eve)
	serveWhoIs(t, tka, ":80")
	if got := ask(t, eve, "http://tka/"); got.Sharee || strings.Join(got.Roles, ",") != "member" {
		t.Errorf("before: %+v", got)
	}
	n.Share(id(t, n, eve))
	eventually(t, "eve is a guest", func() bool {
		got := ask(t, eve, "http://tka/")
		return got.Sharee && strings.Join(got.Roles, ",") == "guest" && got.Login == "eve@elsewhere.org"
	})
}

// TB-04: which keys open, and what the server says of those that do not.
func TestKeys(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	up := func(host, key string, tags ...string) error {
		s := n.Node(host, "nobody@example.com")
		s.AuthKey, s.AdvertiseTags = key, tags
		ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
		defer cancel()
		_, err := s.Up(ctx)
		return err
	}
	once := n.AuthKey(AuthKey{Login: "alice@example.com"})
	again := n.AuthKey(AuthKey{Login: "alice@example.com", Reusable: true})
	short := n.AuthKey(AuthKey{Login: "alice@example.com", Expires: time.Now().Add(-time.Second)})
	for _, c := range []struct {
		why, key string
		tags     []string
		says     string // empty: it opens
	}{
		{"a key that was never minted", "tskey-auth-wrong", nil, "invalid key"},
		{"a key with another secret", once[:strings.LastIndexByte(once, '-')] + "-0000", nil, "invalid key"},
		{"an expired key", short, nil, "invalid key"},
		{"a one-use key", once, nil, ""},
		{"a one-use key, a second time", once, nil, "invalid key"},
		{"a reusable key", again, nil, ""},
		{"a reusable key, a second time", again, nil, ""},
		{"a person's key and a tag that is not hers", again, []string{"tag:tka"}, "requested tags [tag:tka] are invalid or not permitted"},
		{"a person's key and a tag that she owns", again, []string{"tag:ci"}, ""},
		{"a tagged key and another tag", n.AuthKey(AuthKey{Tags: []string{"tag:ci"}}), []string{"tag:tka"}, "requested tags [tag:tka] are invalid or not permitted"},
		{"a key with a tag that the policy does not know", n.AuthKey(AuthKey{Tags: []string{"tag:new"}}), nil, "requested tags [tag:new] are invalid or not permitted"},
		{"a person's tagged key whose tag is not hers", n.AuthKey(AuthKey{Login: "bob@example.com", Tags: []string{"tag:ci"}}), nil, "requested tags [tag:ci] are invalid or not permitted"},
	} {
		err := up("k", c.key, c.tags...)
		switch {
		case c.says == "" && err != nil:
			t.Errorf("%s: %v", c.why, err)
		case c.says != "" && (err == nil || !strings.Contains(err.Error(), c.says)):
			t.Errorf("%s: got %v, want %q", c.why, err, c.says)
		}
	}
	var tagged, people int
	for _, nd := range n.Nodes() {
		if len(nd.Tags) > 0 {
			tagged++
		} else {
			people++
		}
	}
	if tagged != 1 || people != 3 {
		t.Errorf("%d tagged nodes and %d of people joined, want 1 and 3", tagged, people)
	}
}

// A node that keeps its state keeps its identity; an ephemeral one that vanishes
// without a word is gone after the delay.
func TestRestartAndEphemeral(t *testing.T) {
	t.Parallel()
	n := StartWith(t, Options{Policy: testPolicy, EphemeralDelay: 300 * time.Millisecond})
	watcher := n.Node("watcher", "bob@example.com")
	dir := t.TempDir()
	node := func(key string, ephemeral bool) *tsnet.Server {
		s := &tsnet.Server{Hostname: "keeper", Dir: filepath.Join(dir, "s"), ControlURL: n.ControlURL(), AuthKey: key,
			Ephemeral: ephemeral, UserLogf: func(string, ...any) {}}
		t.Cleanup(func() { s.Close() })
		return s
	}
	first := node(n.AuthKey(AuthKey{Login: "alice@example.com"}), false)
	ready(t, n, watcher, first)
	was := id(t, n, first)
	first.Close()
	// It is away, and stays a node for longer than the ephemeral delay.
	eventually(t, "it went offline", func() bool {
		for _, nd := range n.Nodes() {
			if nd.StableID == was && !*nd.Online {
				return time.Since(*nd.LastSeen) > 600*time.Millisecond
			}
		}
		return false
	})
	second := node("", false) // no key: the state is enough
	ready(t, n, watcher, second)
	if now := id(t, n, second); now != was {
		t.Errorf("identity changed over a restart: %s, then %s", was, now)
	}
	if err := n.WaitPeer(within(t, time.Minute), watcher, "keeper"); err != nil {
		t.Error(err)
	}

	// Ephemeral by its key: tsnet does not log out then, as if it had been killed.
	gone := n.Node("fleeting", "")
	gone.Ephemeral, gone.Store, gone.AuthKey = false, nil, n.AuthKey(AuthKey{Login: "carol@example.com", Ephemeral: true})
	ready(t, n, gone)
	key := id(t, n, gone)
	present := func() bool {
		for _, nd := range n.Nodes() {
			if nd.StableID == key {
				return true
			}
		}
		return false
	}
	gone.Close()
	if !present() {
		t.Error("the ephemeral node vanished at once")
	}
	took := eventually(t, "the ephemeral node vanishes", func() bool { return !present() })
	t.Logf("the ephemeral node vanished after %v", took.Round(time.Millisecond))
}

// A node without a key waits for a person on control's login page.
func TestLoginPage(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	tka := n.Node("tka", "", "tag:tka")
	laptop := n.Node("laptop", "")
	laptop.AuthKey = ""
	ready(t, n, tka)
	serveWhoIs(t, tka, ":80")

	page := func(s *tsnet.Server) string {
		t.Helper()
		lc, err := s.LocalClient()
		if err != nil {
			t.Fatal(err)
		}
		w, err := lc.WatchIPNBus(within(t, time.Minute), ipn.NotifyInitialState)
		if err != nil {
			t.Fatal(err)
		}
		defer w.Close()
		for {
			msg, err := w.Next()
			if err != nil {
				t.Fatal(err)
			}
			if msg.BrowseToURL != nil {
				return *msg.BrowseToURL
			}
		}
	}
	login := page(laptop)
	res, err := http.Get(login)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	if !strings.HasPrefix(login, n.ControlURL()+"/login/") || !strings.Contains(string(body), `value="alice@example.com"`) || !strings.Contains(string(body), "laptop") {
		t.Fatalf("the login page %s: %s\n%s", login, res.Status, body)
	}
	post := func(addr, as, origin string) int {
		t.Helper()
		req, err := http.NewRequest(http.MethodPost, addr, strings.NewReader(url.Values{"login": {as}}.Encode()))
		if err != nil {
			t.Fatal(err)
		}
		req.Header.Set("Content-Type", "application/x-www-form-urlencoded")
		if origin != "" {
			req.Header.Set("Origin", origin)
		}
		res, err := http.DefaultClient.Do(req)
		if err != nil {
			t.Fatal(err)
		}
		res.Body.Close()
		return res.StatusCode
	}
	for _, c := range []struct {
		why, addr, as, origin string
		want                  int
	}{
		{"another site's form", login, "alice@example.com", "https://evil.example", http.StatusForbidden},
		{"no login name", login, "<script>", "", http.StatusBadRequest},
		{"a page that does not exist", n.ControlURL() + "/login/0", "alice@example.com", "", http.StatusNotFound},
		{"alice", login, "alice@example.com", "", http.StatusOK},
		{"a second answer", login, "bob@example.com", "", http.StatusForbidden},
	} {
		if got := post(c.addr, c.as, c.origin); got != c.want {
			t.Errorf("%s: %d, want %d", c.why, got, c.want)
		}
	}
	ready(t, n, tka, laptop)
	if got := ask(t, laptop, "http://tka/"); got.Login != "alice@example.com" {
		t.Errorf("seen as %+v", got)
	}

	// A person who may not give the tag that the node asks for.
	greedy := n.Node("greedy", "", "tag:ci")
	greedy.AuthKey = ""
	refused := page(greedy)
	if got := post(refused, "bob@example.com", ""); got != http.StatusForbidden {
		t.Errorf("bob gave away tag:ci: %d", got)
	}
}
