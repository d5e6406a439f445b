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

// TB-04: an expired node has no connections, but WhoIs still returns it, with Expired. A removed node is unknown.
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
		t.Error("Expire does not report whether the node exists")
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
		t.Error("Delete does not report whether the node existed")
	}
	var why error
	took = eventually(t, "WhoIs finds no node", func() bool {
		_, why = whois(t.Context(), b, cIP.String())
		return why != nil
	})
	if !strings.Contains(why.Error(), "peer not found") {
		t.Errorf("WhoIs of a removed peer: %v", why)
	}
	t.Logf("removal: WhoIs finds no node after %v", took.Round(time.Millisecond))
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

// TB-04: valid keys let nodes in, and the server reports why it rejects the others.
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
		says     string // empty: the key is valid
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

// A node that keeps its state keeps its identity. An ephemeral node that disappears without logout is removed after
// the delay.
func TestRestartAndEphemeral(t *testing.T) {
	t.Parallel()
	const delay = 2 * time.Second
	n := StartWith(t, Options{Policy: testPolicy, EphemeralDelay: delay})
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
	// It is offline, but stays a node for longer than the ephemeral delay.
	eventually(t, "the node is offline", func() bool {
		for _, nd := range n.Nodes() {
			if nd.StableID == was && !*nd.Online {
				return time.Since(*nd.LastSeen) > delay+500*time.Millisecond
			}
		}
		return false
	})
	second := node("", false) // no key: the state is sufficient
	ready(t, n, watcher, second)
	if now := id(t, n, second); now != was {
		t.Errorf("identity changed over a restart: %s, then %s", was, now)
	}
	if err := n.WaitPeer(within(t, time.Minute), watcher, "keeper"); err != nil {
		t.Error(err)
	}

	// Ephemeral by its key: tsnet then does not log out, as if it had been killed.
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
	began := time.Now()
	gone.Close()
	if !present() && time.Since(began) < delay {
		t.Error("the ephemeral node vanished at once")
	}
	took := eventually(t, "the ephemeral node vanishes", func() bool { return !present() })
	t.Logf("the ephemeral node vanished after %v", took.Round(time.Millisecond))
}

// loginURL starts an interactive login and returns the login page that the node shows to its user.
func loginURL(t testing.TB, s *tsnet.Server, again bool) string {
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
	if again {
		if err := lc.StartLoginInteractive(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
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

// choose submits the login page as a form, and returns the status.
func choose(t testing.TB, page, login, origin string) int {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodPost, page, strings.NewReader(url.Values{"login": {login}}.Encode()))
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

// A node without a key waits until a person submits control's login page.
func TestLoginPage(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	tka := n.Node("tka", "", "tag:tka")
	laptop := n.Node("laptop", "")
	laptop.AuthKey = ""
	ready(t, n, tka)
	serveWhoIs(t, tka, ":80")

	login := loginURL(t, laptop, false)
	res, err := http.Get(login)
	if err != nil {
		t.Fatal(err)
	}
	body, _ := io.ReadAll(res.Body)
	res.Body.Close()
	switch {
	case !strings.HasPrefix(login, n.ControlURL()+"/login/"):
		t.Fatalf("the login page: login = %q does not start with %q; %s", login, n.ControlURL()+"/login/", res.Status)
	case !strings.Contains(string(body), `value="alice@example.com"`):
		t.Fatalf("the login page: string(body) = %q does not contain %q; %s", string(body), `value="alice@example.com"`, res.Status)
	case !strings.Contains(string(body), "laptop"):
		t.Fatalf("the login page: string(body) = %q does not contain %q; %s", string(body), "laptop", res.Status)
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
		if got := choose(t, c.addr, c.as, c.origin); got != c.want {
			t.Errorf("%s: %d, want %d", c.why, got, c.want)
		}
	}
	ready(t, n, tka, laptop)
	if got := ask(t, laptop, "http://tka/"); got.Login != "alice@example.com" {
		t.Errorf("seen as %+v", got)
	}

	// A person who may not assign the tag that the node requests.
	greedy := n.Node("greedy", "", "tag:ci")
	greedy.AuthKey = ""
	page := loginURL(t, greedy, false)
	if got := choose(t, page, "bob@example.com", ""); got != http.StatusForbidden {
		t.Errorf("bob gave away tag:ci: %d", got)
	}
}

// A person with an expired key signs in again and her machine stays the same node. If another person signs in at it,
// it becomes another node.
func TestSignInAgain(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	tka, laptop := n.Node("tka", "", "tag:tka"), n.Node("laptop", "")
	laptop.AuthKey = "" // otherwise the client sends its used key at every login
	choose(t, loginURL(t, laptop, false), "alice@example.com", "")
	ready(t, n, tka, laptop)
	serveWhoIs(t, tka, ":80")
	was := id(t, n, laptop)
	for _, c := range []struct {
		as   string
		same bool
	}{{"alice@example.com", true}, {"bob@example.com", false}} {
		before := id(t, n, laptop)
		n.Expire(before)
		eventually(t, "the node knows", func() bool { return state(t, laptop) == "NeedsLogin" })
		if got := choose(t, loginURL(t, laptop, true), c.as, ""); got != http.StatusOK {
			t.Fatalf("%s: %d", c.as, got)
		}
		ready(t, n, tka, laptop)
		if got := ask(t, laptop, "http://tka/"); got.Login != c.as || got.Expired {
			t.Errorf("seen as %+v, want %s", got, c.as)
		}
		if now := id(t, n, laptop); (now == was) != c.same {
			t.Errorf("%s: node %s, which was %s", c.as, now, was)
		}
	}
	if got := len(n.Nodes()); got != 2 {
		t.Errorf("%d nodes, want 2: the machine's old node must be removed", got)
	}
}

// Several tailnets can run in one process, and share only process-wide state.
func TestTwoTailnets(t *testing.T) {
	t.Parallel()
	one, two := Start(t, testPolicy), StartWith(t, Options{Policy: testPolicy, Domain: "other.org", Suffix: "other.ts.net"})
	two.EnableHTTPS()
	roots := two.EnableHTTPS() // a second call changes nothing
	if string(one.EnableHTTPS()) != string(roots) {
		t.Error("two CAs in one process: the client's setting supports only one")
	}
	a1, s1 := one.Node("a", "alice@example.com"), one.Node("tka", "", "tag:tka")
	a2, s2 := two.Node("a", "alice@example.com"), two.Node("tka", "", "tag:tka")
	ready(t, one, a1, s1)
	ready(t, two, a2, s2)
	if id(t, one, a1) == id(t, two, a2) {
		t.Error("nodes of two tailnets have the same ID")
	}
	if one.Expire(id(t, two, a2)) || one.Delete(id(t, two, a2)) {
		t.Error("a tailnet acts on another's node")
	}
	for _, c := range []struct {
		n    *Net
		a, s *tsnet.Server
		name string
	}{{one, a1, s1, "tka.tiny.ts.net"}, {two, a2, s2, "tka.other.ts.net"}} {
		ln, err := c.s.ListenTLS("tcp", ":443")
		if err != nil {
			t.Fatal(err)
		}
		serve(t, ln, c.s)
		if got, err := body(t, clientOf(t, roots, c.a.Dial), "https://"+c.name+"/"); err != nil || !strings.Contains(got, `"Node":"a"`) {
			t.Errorf("%s: %q %v", c.name, got, err)
		}
	}
	// The other tailnet's key is not valid here.
	stranger := one.Node("stranger", "nobody@example.com")
	stranger.AuthKey = two.AuthKey(AuthKey{Login: "alice@example.com"})
	if _, err := stranger.Up(within(t, time.Minute)); err == nil || !strings.Contains(err.Error(), "invalid key") {
		t.Errorf("another tailnet's key: %v", err)
	}
}

// Close can be called more than once and with nodes that never started, and releases all resources.
func TestClose(t *testing.T) {
	t.Parallel()
	n := Start(t, testPolicy)
	a := n.Node("a", "alice@example.com")
	n.Node("unstarted", "bob@example.com")
	ready(t, n, a)
	api, err := n.API()
	if err != nil {
		t.Fatal(err)
	}
	persona, err := n.Persona(a)
	if err != nil {
		t.Fatal(err)
	}
	for range 2 {
		if err := n.Close(); err != nil {
			t.Error(err)
		}
	}
	for _, addr := range []string{n.ControlURL() + "/key", api.URL(), persona} {
		if res, err := http.Get(addr); err == nil {
			res.Body.Close()
			t.Errorf("%s still answers", addr)
		}
	}
}
