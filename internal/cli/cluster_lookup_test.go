package cli_test

import (
	"encoding/json"
	"net"
	"net/http/httptest"
	"regexp"
	"strings"
	"testing"
)

// GO-03, SGN-23: tka shows a cluster that the server has not verified with the reason, and no command queries it.
func TestGO03_unverified_gets_no_request(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	stranger, strangerURL := newAccessServer(t, "prod-us")
	impostor, impostorURL := newAccessServer(t, "prod-asia")
	requested := member(stranger, strangerURL.URL)
	requested.Verified = false
	claim := member(impostor, impostorURL.URL)
	claim.Conflict = true
	eu.addCluster(euURL.URL, requested, claim)
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, strangerURL.URL, impostorURL.URL)
	r := m.run("clusters")
	switch {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0", r.code)
	case !regexp.MustCompile(`(?m)^prod-us +alive +\d+s +none +unverified$`).MatchString(r.out):
		t.Errorf("code: regexp.MustCompile(`(?m)^prod-us +alive +\\d+s +none +unverified$`).MatchString(r.out) is false; %d, %s, %s",
			r.code, r.out, r.err)
	case !regexp.MustCompile(`(?m)^prod-asia +alive +\d+s +none +conflict$`).MatchString(r.out):
		t.Errorf("code: regexp.MustCompile(`(?m)^prod-asia +alive +\\d+s +none +conflict$`).MatchString(r.out) is false; %d, %s, %s",
			r.code, r.out, r.err)
	case !strings.Contains(r.err, "tka does not sign in to prod-us: the server has not contacted it yet"):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "tka does not sign in to prod-us: the server has not contacted it yet")
	case !strings.Contains(r.err, "  try: "):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "  try: ")
	}
	for _, name := range []string{"prod-us", "id-prod-us", "prod-asia", "id-prod-asia"} {
		for _, cmd := range [][]string{{"login"}, {"login", "--dry-run"}, {"shell"}, {"kubeconfig"}, {"kubeconfig", "--token"}, {"refresh"}, {"status"}, {"logout"}, {"cluster-info"}, {"why"}, {"credential"}, {"credential", "--sign-in"}} {
			if r := m.run(append(cmd, "--cluster", name)...); r.code != 3 || r.out != "" && cmd[0] != "why" {
				t.Errorf("%v --cluster %s: code %d\n%s%s", cmd, name, r.code, r.out, r.err)
			}
		}
	}
	switch r := m.run("login", "--all"); {
	case r.code != 1:
		t.Errorf("code: r.code = %v, want 1; %s", r.code, r.err)
	case !strings.Contains(r.out, "prod-eu     alice@example.com"):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "prod-eu     alice@example.com", r.err)
	case strings.Count(r.out, "failed") != 2:
		t.Errorf(`code: strings.Count(r.out, "failed") = %v, want 2; %s`, strings.Count(r.out, "failed"), r.err)
	}
	if r := m.run("__complete", "login", "--cluster", ""); r.code != 0 || !strings.HasPrefix(r.out, "prod-eu\n:") {
		t.Errorf("code %d\n%s", r.code, r.out)
	}
	if all := checkResults(t, m.run("doctor", "-o", "json")); !strings.HasPrefix(all["clusters"], "warn: Another server claims a known cluster") || all["discovery"] != "ok: The server knows 2 other clusters." {
		t.Errorf("doctor: %q, %q", all["clusters"], all["discovery"])
	}
	stranger.checkRequests(t)
	impostor.checkRequests(t)
	if strings.Contains(m.read(t, "state/tka/servers.yaml"), strangerURL.URL) {
		t.Error("the server is in the state")
	}
}

// GO-07: a record whose server is outside the tailnet or has no plain address. tka dials only the server of the settings.
func TestGO07_a_server_elsewhere(t *testing.T) {
	eu, srv := newAccessServer(t, "prod-eu")
	us, _ := newAccessServer(t, "prod-us")
	m := newMachine(t, srv.URL)
	allowHTTP(t, m, "http://100.64.0.99")
	before := len(m.files(t))
	for _, u := range []string{"https://evil.example", "https://tka.tail1234.ts.net", "https://10.0.0.1", "https://169.254.169.254", "https://100.100.100.200", "https://localhost", "https://user:secret@127.0.0.1",
		"https://127.0.0.1/x", "https://127.0.0.1?x", "http://10.0.0.1", "http://evil.example", "ftp://127.0.0.1", "", "tka", "https://[::1%25eth0]", "https://2130706433", "https://\x1b[2J"} {
		eu.addCluster(srv.URL, member(us, u))
		r := m.run("login", "--cluster", "prod-us", "--timeout", "5s")
		switch {
		case r.code != 3:
			t.Errorf("r.code = %v, want 3; %q", r.code, u)
		case r.out != "":
			t.Errorf("r.out = %q, want none; %q", r.out, u)
		case !strings.Contains(r.err, "tka does not sign in to prod-us: its server"):
			t.Errorf("r.err = %q does not contain %q; %q", r.err, "tka does not sign in to prod-us: its server", u)
		case strings.ContainsAny(r.err, unprintable):
			t.Errorf("strings.ContainsAny(r.err, unprintable) is true; %q, %d, %s, %s", u, r.code, r.out, r.err)
		case strings.Contains(r.err, "secret"):
			t.Errorf("r.err = %q contains %q; %q", r.err, "secret", u)
		}
		switch r := m.run("clusters"); {
		case r.code != 0:
			t.Errorf("r.code = %v, want 0; %q", r.code, u)
		case !strings.Contains(r.out, "elsewhere"):
			t.Errorf("r.out = %q does not contain %q; %q", r.out, "elsewhere", u)
		case strings.Contains(r.err, "secret"):
			t.Errorf("r.err = %q contains %q; %q", r.err, "secret", u)
		}
	}
	if n := len(m.files(t)); n != before+1 { // the key of the server of the settings
		t.Errorf("files: %v", m.files(t))
	}
}

// SGN-24, signin.md 7.4: the key comes from the record. A server with another key gets only the request for its proof. A record does not
// override a key that this machine knows.
func TestSGN24_the_key_of_a_record(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	us, usURL := newAccessServer(t, "prod-us")
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, usURL.URL)
	record := member(us, usURL.URL)
	record.Key = keyFor("another").Public()
	eu.addCluster(euURL.URL, record)
	r := m.run("login", "--cluster", "prod-us")
	switch {
	case r.code != 3:
		t.Errorf("code: r.code = %v, want 3", r.code)
	case r.out != "":
		t.Errorf("code: r.out = %q, want none", r.out)
	case !strings.Contains(r.err, "is not the one that the server "+euURL.URL+" knows, which has the key "+record.Key.String()):
		t.Errorf("code: r.err = %q does not contain %q",
			r.err, "is not the one that the server "+euURL.URL+" knows, which has the key "+record.Key.String())
	case !strings.Contains(r.err, us.key.Public().String()):
		t.Errorf("code: r.err = %q does not contain %q", r.err, us.key.Public().String())
	}
	us.checkRequests(t, requestInfo)
	if strings.Contains(m.read(t, "state/tka/servers.yaml"), usURL.URL) {
		t.Error("the server is in the state")
	}

	// met before under another name: what this machine knows stays
	if r := m.run("status", "--server", usURL.URL); r.code != 3 {
		t.Fatal(r.err)
	}
	us.checkRequests(t, requestInfo, requestSessions, requestStatus)
	switch r := m.run("clusters"); {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0", r.code)
	case !regexp.MustCompile(`(?m)^prod-us +alive +\d+s +none +other key$`).MatchString(r.out):
		t.Errorf("code: regexp.MustCompile(`(?m)^prod-us +alive +\\d+s +none +other key$`).MatchString(r.out) is false; %d, %s, %s",
			r.code, r.out, r.err)
	case !strings.Contains(r.err, "another key for the cluster, "+us.key.Public().String()):
		t.Errorf("code: r.err = %q does not contain %q", r.err, "another key for the cluster, "+us.key.Public().String())
	}
	us.checkRequests(t)
	record.ClusterName = "prod-moved"
	eu.addCluster(euURL.URL, record)
	r = m.run("login", "--cluster", "prod-moved")
	if r.code != 3 || !strings.Contains(r.err, "has the key "+record.Key.String()+" according to "+euURL.URL+", and the key "+us.key.Public().String()+" according to this machine") {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	us.checkRequests(t)

	// a record with the right key and another cluster's name
	record.Key = us.key.Public()
	eu.addCluster(euURL.URL, record)
	if r := m.run("login", "--cluster", "prod-moved"); r.code != 3 || !strings.Contains(r.err, "serves the cluster prod-us, not prod-moved") {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	us.checkRequests(t, requestInfo)

	// the real server: proof, login, kubeconfig, and no trust at first contact
	other, otherURL := newAccessServer(t, "prod-other")
	allowHTTP(t, m, otherURL.URL)
	eu.addCluster(euURL.URL, member(other, otherURL.URL))
	switch r := m.run("login", "--cluster", "prod-other"); {
	case r.code != 0:
		t.Errorf("code: r.code = %v, want 0; %s", r.code, r.out)
	case strings.Contains(r.err, "First contact"):
		t.Errorf("code: r.err = %q contains %q; %s", r.err, "First contact", r.out)
	case !strings.Contains(r.err, "Found prod-other"):
		t.Errorf("code: r.err = %q does not contain %q; %s", r.err, "Found prod-other", r.out)
	}
	other.checkRequests(t, requestInfo, requestLogin, requestConfig)
	if known := m.read(t, "state/tka/servers.yaml"); !strings.Contains(known, other.key.Public().String()) {
		t.Errorf("not remembered:\n%s", known)
	}
}

// signin.md 7.4: two clusters with one name.
func TestAmbiguousNames(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	one, oneURL := newAccessServer(t, "prod")
	two, twoURL := newAccessServer(t, "prod")
	two.key = keyFor("the other prod")
	two.start()
	second := member(two, twoURL.URL)
	second.ClusterID, second.Node = "id-other", "n-other"
	eu.addCluster(euURL.URL, member(one, oneURL.URL), second)
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, oneURL.URL, twoURL.URL)
	r := m.run("login", "--cluster", "prod")
	switch {
	case r.code != 2:
		t.Errorf("code: r.code = %v, want 2; %s", r.code, r.out)
	case !strings.Contains(r.err, "--cluster id-prod   (prod, by "+oneURL.URL):
		t.Errorf("code: r.err = %q does not contain %q; %s", r.err, "--cluster id-prod   (prod, by "+oneURL.URL, r.out)
	case !strings.Contains(r.err, "--cluster id-other   (prod, by "+twoURL.URL):
		t.Errorf("code: r.err = %q does not contain %q; %s", r.err, "--cluster id-other   (prod, by "+twoURL.URL, r.out)
	}
	switch r := m.run("login", "--all"); {
	case r.code != 1:
		t.Errorf("code: r.code = %v, want 1; %s", r.code, r.err)
	case !strings.Contains(r.out, "several clusters with the name prod"):
		t.Errorf("code: r.out = %q does not contain %q; %s", r.out, "several clusters with the name prod", r.err)
	case strings.Count(r.out, "\n") != 3:
		t.Errorf(`code: strings.Count(r.out, "\n") = %v, want 3; %s`, strings.Count(r.out, "\n"), r.err)
	}
	one.checkRequests(t)
	two.checkRequests(t)
	if r := m.run("login", "--cluster", "id-other"); r.code != 0 {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	one.checkRequests(t)
	two.checkRequests(t, requestInfo, requestLogin, requestConfig)
	// the sign-in appears at the right cluster
	r = m.run("clusters", "-o", "json")
	var list struct {
		Items []struct {
			ID     string
			SignIn struct{ State string }
		}
	}
	if err := json.Unmarshal([]byte(r.out), &list); err != nil || len(list.Items) != 3 {
		t.Fatalf("%v: %s", err, r.out)
	}
	for _, it := range list.Items {
		if want := map[bool]string{true: "none", false: "ready"}[it.ID == "id-prod"]; it.SignIn.State != want {
			t.Errorf("%s: %s, want %s", it.ID, it.SignIn.State, want)
		}
	}
}

// signin.md 7.1, several servers: after an unreachable server, tka tries the next server of its cluster. After a refusal it does not.
func TestTheNextServerOfACluster(t *testing.T) {
	eu, euURL := newAccessServer(t, "prod-eu")
	us, first := newAccessServer(t, "prod-us")
	_, port, err := net.SplitHostPort(first.Listener.Addr().String())
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.2:"+port)
	if err != nil {
		t.Skipf("SKIP a second address on this machine: %v", err)
	}
	two := &accessServer{store: us.store, cluster: "prod-us", rules: us.rules}
	two.start()
	second := httptest.NewUnstartedServer(two)
	second.Listener.Close()
	second.Listener = ln
	second.Start()
	defer second.Close()
	other := member(us, first.URL)
	other.Node, other.Host = "n-second", "127.0.0.2"
	eu.addCluster(euURL.URL, member(us, first.URL), other)
	m := newMachine(t, euURL.URL)
	allowHTTP(t, m, first.URL, second.URL)
	us.mu.Lock()
	us.rules = nil
	us.start()
	us.mu.Unlock()
	if r := m.run("login", "--cluster", "prod-us"); r.code != 3 || len(two.received()) > 0 {
		t.Errorf("after a refusal, another server received the request: code %d\n%s%s", r.code, r.out, r.err)
	}
	first.Close()
	if r := m.run("login", "--cluster", "prod-us"); r.code != 0 || !strings.Contains(r.err, first.URL+" cannot be reached; trying the next server of prod-us.") {
		t.Errorf("code %d\n%s%s", r.code, r.out, r.err)
	}
	two.checkRequests(t, requestInfo, requestLogin, requestConfig)
}
