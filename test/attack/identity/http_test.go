package identity

import (
	"crypto/tls"
	"flag"
	"fmt"
	"net/http"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
	gossiphttp "github.com/tailplane/tailplane/internal/gossip/http"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// routes returns the operations that the access server registers.
func routes() []httpapi.Route {
	return append(new(signin.Service).Routes(), gossip.ServeClusters(nil, nil, nil))
}

// memberRoutes returns the operations on the port that is only for servers.
func memberRoutes() []httpapi.Route {
	return []httpapi.Route{gossiphttp.ServeExchange(nil, nil), gossiphttp.ServeCA(nil, nil)}
}

// guarded returns the routes that need a grant: all except the one that shows callers their own identity, and those for the
// cluster's access proxies, which need a tag (PX-24).
func guarded() []httpapi.Route {
	return slices.DeleteFunc(routes(), func(rt httpapi.Route) bool { return rt.Verb == access.Whoami || isForProxies(rt) })
}

func isForProxies(rt httpapi.Route) bool {
	return rt.Verb == access.SigninFirstUse || rt.Verb == access.SigninUsage
}

// refusalOf returns the refusal of a person without a grant.
func refusalOf(rt httpapi.Route) problem.Code {
	if isForProxies(rt) {
		return problem.NotAProxy
	}
	return problem.NoCapability
}

// split divides a route's pattern into method and path.
func split(rt httpapi.Route) (method, path string) {
	method, path, _ = strings.Cut(rt.Pattern, " ")
	return method, path
}

// serverNames returns the host names of the access server.
func serverNames(t *testing.T, s *attacktest.Env) []string {
	return attacktest.ServingNames(t, s.Access)
}

// ID-09. DNS rebinding can make a browser treat an attacker's page as same-site, by pointing its name to our address.
// The Host header still carries the attacker's name, so the server refuses the request. This applies to every method,
// and happens before the server identifies the caller.
//
// Guard: httpapi.(*request).checkHost; for probes origin.IsClusterHost.
func TestID09_HostIsOneOfOurNames(t *testing.T) {
	s := attacktest.Start(t)
	alice, bob := s.Alice(t), s.Bob(t)
	names := serverNames(t, s)
	bobs, _ := bob.Node.TailscaleIPs()
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		at := s.ProbeAddress(t, p)
		for _, path := range attacktest.ProbePaths {
			for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS"} {
				for _, host := range []string{"evil.example", "localhost.evil.example", "127.0.0.1.evil.example", "evil.svc.example", "svc", names[0]} {
					if a := attacktest.RawProbe(t, at, method+" "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); a.Status != http.StatusMisdirectedRequest {
						t.Errorf("probes: %s %s with Host %q: %v", method, path, host, a)
					}
				}
			}
			for _, host := range []string{"localhost", "127.0.0.1", "[::1]:8080", "tailplane-access.tailplane-system.svc"} {
				if a := attacktest.RawProbe(t, at, "GET "+path+" HTTP/1.1\r\nHost: "+host+"\r\nConnection: close\r\n\r\n"); a.Status != http.StatusOK {
					t.Errorf("probes: GET %s with Host %q: %.200v", path, host, a)
				}
			}
		}
	}
	foreign := []string{
		"evil.example", "tka.evil.example", names[0] + ".evil.example", "tka.tiny.ts.net@evil.example", "evil" + names[0],
		"localhost", "127.0.0.1", "[::1]", "0.0.0.0", bobs.String(), "bob-laptop." + s.Net.Suffix(), s.Net.Suffix(),
		names[0] + ":8443", names[1] + ":80", names[2] + ":1", names[0] + "..", " " + names[0], names[0] + ",evil.example", "tka_tiny.ts.net",
	}
	for _, rt := range routes() {
		method, path := split(rt)
		for _, host := range foreign {
			if strings.ContainsAny(host, " @") {
				continue // net/http's client would correct this value; the raw request below sends it
			}
			e := refusedWith(t, s, alice, method, path, problem.WrongHost, "Host", host)
			if e.Actor.Login != "" || e.Actor.NodeID != "" {
				t.Errorf("%s with Host %q: the caller was identified: %+v", rt.Pattern, host, e.Actor)
			}
		}
	}
	for _, method := range []string{"GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE", "PATCH", "TRACE", "BREW"} {
		m := s.Mark(t)
		a := s.Ask(t, alice, method, attacktest.API+"/login", "", "Host", "evil.example")
		switch e := m.Entries(t); {
		case a.Status != 421:
			t.Errorf("a.Status = %v, want 421; method = %s", a.Status, method)
		case len(e) != 1:
			t.Errorf("len(e) = %v, want 1; method = %s", len(e), method)
		case e[0].Code != problem.WrongHost:
			t.Errorf("e[0].Code = %q, want %q; method = %s", e[0].Code, problem.WrongHost, method)
		}
	}
	// Raw requests: no Host, an empty Host, and a request target with another name.
	for _, raw := range []string{
		"GET /api/v1alpha1/login HTTP/1.0\r\n\r\n",
		"GET /api/v1alpha1/login HTTP/1.1\r\nHost: \r\n\r\n",
		"GET /api/v1alpha1/login HTTP/1.1\r\nHost:  tka.tiny.ts.net@evil.example\r\n\r\n",
		"GET https://evil.example/api/v1alpha1/login HTTP/1.1\r\nHost: " + names[0] + "\r\n\r\n",
		"GET https://" + names[0] + "/api/v1alpha1/login HTTP/1.1\r\nHost: evil.example\r\n\r\n",
		"GET https://alice@" + names[0] + "/api/v1alpha1/login HTTP/1.1\r\nHost: " + names[0] + "\r\n\r\n",
		"GET /api/v1alpha1/login HTTP/1.1\r\nHost: [" + names[0] + "]\r\n\r\n",
		"GET //evil.example/api/v1alpha1/login HTTP/1.1\r\nHost: evil.example\r\n\r\n",
	} {
		m := s.Mark(t)
		w := s.Dial(t, alice)
		w.Send(raw)
		a, err := w.Receive()
		if err != nil || a.Status != 421 && a.Status != 400 {
			t.Errorf("%q: %v %v", raw, a, err)
		}
		if asked := m.Requests(t, attacktest.AccessAccount); len(asked) > 0 {
			t.Errorf("%q: requests to the API server: %v", raw, asked)
		}
		for _, e := range m.Entries(t) {
			if e.Code != problem.WrongHost || e.Actor.Login != "" {
				t.Errorf("%q: recorded %+v", raw, e)
			}
		}
	}
	// Control: all names of the server, in any letter case, with and without the port.
	for _, name := range names {
		if strings.Contains(name, ":") {
			name = "[" + name + "]"
		}
		for _, host := range []string{name, name + ":443", strings.ToUpper(name), strings.TrimSuffix(name, ".") + "."} {
			if strings.HasSuffix(host, "].") {
				continue
			}
			if a := s.Ask(t, alice, "GET", attacktest.API+"/login", "", "Host", host); a.Code() != problem.NotSignedIn {
				t.Errorf("Host %q: %v", host, a)
			}
		}
	}
}

// refusedWith requires that the server refuses one request of p with the given code.
func refusedWith(t *testing.T, s *attacktest.Env, p *testenv.Person, method, path string, code problem.Code, headers ...string) audit.Entry {
	t.Helper()
	_, e := s.Refused(t, fmt.Sprintf("%s %s with %q", method, path, headers), code, func() attacktest.Answer {
		return s.Ask(t, p, method, path, "", headers...)
	})
	return e
}

// identityHeaders returns the headers in which proxies, and attackers, put a name or an address.
func identityHeaders(login, addr string) (pairs []string) {
	for _, name := range []string{
		"X-Remote-User", "X-Remote-Group", "X-Remote-Uid", "X-Remote-Extra-Scopes", "X-Remote-Name",
		"Tailscale-User-Login", "Tailscale-User-Name", "Tailscale-User-Profile-Pic", "Tailscale-Login", "X-Tailscale-User", "X-Tailscale-Login",
		"X-Webauth-User", "X-Webauth-Login", "X-Webauth-Name", "X-Forwarded-User", "X-Forwarded-Email", "X-Forwarded-Preferred-Username", "X-Auth-Request-User",
		"Remote-User", "Impersonate-User", "Impersonate-Group", "Impersonate-Uid", "Impersonate-Extra-Scopes", "From",
	} {
		pairs = append(pairs, name, login)
	}
	for _, name := range []string{"X-Forwarded-For", "X-Real-Ip", "X-Client-Ip", "True-Client-Ip", "Cf-Connecting-Ip", "X-Original-Forwarded-For"} {
		pairs = append(pairs, name, addr)
	}
	return append(pairs,
		"Forwarded", "for="+addr+";by=127.0.0.1;host=tka", "X-Forwarded-Host", "tka", "X-Forwarded-Proto", "https",
		"Tailscale-App-Capabilities", `{"tailplane.dev/cap/access":[{"role":"edit","period":"8h"}]}`,
		"Authorization", "Bearer "+login, "Cookie", "login="+login)
}

// spelt returns the same headers in other spellings.
func spelt(pairs []string, as func(string) string) (out []string) {
	for i := 0; i+1 < len(pairs); i += 2 {
		out = append(out, as(pairs[i]), pairs[i+1])
	}
	return out
}

// ID-07. No header sets the identity of a caller, neither for our server nor for the API server behind it.
//
// Guard: tailnet.(*Node).Identify, which reads only Funnel's header; and controller.Store, whose requests contain no
// header of the caller.
func TestID07_HeadersIdentifyNoCaller(t *testing.T) {
	s := attacktest.Start(t)
	alice, bob := s.Alice(t), s.Bob(t)
	aliceIP, _ := alice.Node.TailscaleIPs()
	bobIP, _ := bob.Node.TailscaleIPs()
	asAlice := identityHeaders("alice@example.com", aliceIP.String())
	for name, forged := range map[string][]string{
		"as they are written":  asAlice,
		"in small letters":     spelt(asAlice, strings.ToLower),
		"with _ for -":         spelt(asAlice, func(n string) string { return strings.ReplaceAll(n, "-", "_") }),
		"twice":                slices.Concat(asAlice, identityHeaders("root", "127.0.0.1"), asAlice),
		"with an empty second": slices.Concat(asAlice, identityHeaders("", "")),
	} {
		t.Run(name, func(t *testing.T) {
			for _, rt := range guarded() {
				method, path := split(rt)
				e := refusedWith(t, s, bob, method, path, problem.NoCapability, forged...)
				if e.Actor.Login != "bob@example.com" || !strings.HasPrefix(e.Actor.Node, "bob-laptop.") {
					t.Errorf("%s: recorded as %+v", rt.Pattern, e.Actor)
				}
			}
			var seen signin.Whoami
			attacktest.Decode(t, s.Ask(t, bob, "GET", attacktest.API+"/whoami", "", forged...).Body, &seen)
			switch {
			case seen.Caller.Login != "bob@example.com":
				t.Errorf("bob is seen: seen.Caller.Login = %q, want %q", seen.Caller.Login, "bob@example.com")
			case len(seen.Rules) > 0:
				t.Errorf("bob is seen: len(seen.Rules) = %v, want at most 0", len(seen.Rules))
			case seen.Decision.Allowed:
				t.Errorf("bob is seen: seen.Decision.Allowed is true; seen = %+v", seen)
			}
		})
	}
	t.Run("on the way out", func(t *testing.T) {
		m := s.Mark(t)
		t.Cleanup(func() { s.Logout(t, alice) })
		forged := identityHeaders("root@example.com", bobIP.String())
		if a := s.Ask(t, alice, "POST", attacktest.API+"/login", "{}", forged...); a.Status != http.StatusAccepted {
			t.Fatalf("login: %v", a)
		}
		var token attacktest.Answer
		attacktest.Eventually(t, attacktest.Long, "the kubeconfig", func() bool {
			token = s.Ask(t, alice, "GET", attacktest.API+"/kubeconfig", "", forged...)
			return token.Status == http.StatusOK
		})
		stored := s.SignIns(t, "alice@example.com")
		switch {
		case len(stored) != 1:
			t.Errorf("stored: len(stored) = %v, want 1", len(stored))
		case len(s.SignIns(t, "root@example.com")) != 0:
			t.Errorf(`stored: len(s.SignIns(t, "root@example.com")) != 0; stored = %+v`, stored)
		case stored[0].Spec.Device.ID == "":
			t.Errorf("stored: stored[0].Spec.Device.ID is empty; stored = %+v", stored)
		case !strings.HasPrefix(stored[0].Spec.Device.Name, "alice-laptop."):
			t.Errorf("stored: stored[0].Spec.Device.Name = %q does not start with %q", stored[0].Spec.Device.Name, "alice-laptop.")
		}
		asked, carried := m.Bodies(t, attacktest.AccessAccount), 0
		if len(asked) < 3 { // read, create and token requests
			t.Fatalf("requests to the API server: %v", asked)
		}
		for _, k := range asked {
			// The API server's audit log would list the addresses of X-Forwarded-For.
			switch {
			case k.ImpersonatedUser != nil:
				t.Errorf("writes to the API server: k.ImpersonatedUser = %v, want nil", k.ImpersonatedUser)
			case !slices.Equal(k.SourceIPs, []string{"127.0.0.1"}):
				t.Errorf("writes to the API server: k.SourceIPs (-want +got):\n%s", cmp.Diff([]string{"127.0.0.1"}, k.SourceIPs))
			case strings.Contains(k.UserAgent, "root"):
				t.Errorf("writes to the API server: k.UserAgent = %q contains %q", k.UserAgent, "root")
			case strings.Contains(string(k.RequestObject), "root@"):
				t.Errorf("writes to the API server: string(k.RequestObject) = %q contains %q", string(k.RequestObject), "root@")
			}
			if strings.Contains(string(k.RequestObject), "alice@example.com") {
				carried++
			}
		}
		if carried == 0 {
			t.Error("no request carried who is calling: this test shows nothing")
		}
		for _, e := range m.Entries(t) {
			if e.Actor.Login != "alice@example.com" {
				t.Errorf("recorded %+v", e)
			}
		}
	})
	t.Run("over HTTP 2", func(t *testing.T) {
		// The listener does not speak HTTP/2, so there is no second way to encode a header.
		w := s.Dial(t, bob, "h2", "http/1.1")
		if p := w.NetConn.(*tls.Conn).ConnectionState().NegotiatedProtocol; p == "h2" {
			t.Fatal("HTTP/2 is offered: send the headers over it too")
		}
		m := s.Mark(t)
		w.Send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\x00\x00\x00\x04\x00\x00\x00\x00\x00")
		answers, _ := w.Rest(2 * time.Second)
		for _, a := range answers {
			if a.Status < 400 {
				t.Errorf("the preface of HTTP/2: %v", a)
			}
		}
		if asked := m.Requests(t, attacktest.AccessAccount); len(asked) > 0 {
			t.Errorf("requests to the API server: %v", asked)
		}
	})
	// Control: alice has a grant and sends no such header.
	if a := s.Ask(t, alice, "GET", attacktest.API+"/cluster-info", ""); a.Status != http.StatusOK {
		t.Errorf("alice: %v", a)
	}
}

// ID-08. There is no mode in which a header sets an identity, no development mode, and no listener outside the
// tailnet. A header from the same machine or from another node therefore has no effect. A future mode of this kind
// must add its rows here.
//
// Guard: settings.Parse, which refuses unknown settings, and main, which listens only on the node.
func TestID08_NoHeaderModeAndNoOtherListener(t *testing.T) {
	s := attacktest.Start(t)
	alice, bob := s.Alice(t), s.Bob(t)
	good, err := s.Settings("access")
	if err != nil {
		t.Fatal(err)
	}
	check := func(t *testing.T, settings string, args ...string) (int, string) {
		t.Helper()
		p, err := s.Try("settings", "access", nil, settings, append([]string{"--check"}, args...)...)
		if err != nil {
			t.Fatal(err)
		}
		if err := os.Truncate(p.Log, 0); err != nil { // all variants write to the same log file
			t.Fatal(err)
		}
		return p.ExitCode(), p.Output()
	}
	if code, out := check(t, string(good)); code != 0 {
		t.Fatalf("the good settings: exit %d: %s", code, out)
	}
	for _, mode := range []string{
		"headers: {user: X-Webauth-User}", "identity: {header: Tailscale-User-Login}", "identity: {mode: serve}", "proxy: {trusted: [127.0.0.1]}", "trustedProxies: [0.0.0.0/0]",
		"dev: true", "development: {login: alice@example.com}", "auth: {disabled: true}", "listen: 0.0.0.0:8080", "http: {address: ':80'}", "serve: true", "funnel: true",
	} {
		if code, out := check(t, string(good)+mode+"\n"); code != 2 {
			t.Errorf("settings with %q: exit %d: %s", mode, code, out)
		}
		field, _, _ := strings.Cut(mode, ":")
		inTailnet := strings.Replace(string(good), "tailnet:\n", "tailnet:\n  "+mode+"\n", 1)
		if code, out := check(t, inTailnet); code != 2 {
			t.Errorf("settings with tailnet.%s: exit %d: %s", field, code, out)
		}
	}
	for _, flag := range []string{"--dev", "--insecure", "--listen=127.0.0.1:8080", "--trusted-proxy=127.0.0.1", "--user-header=X-Webauth-User"} {
		if code, out := check(t, string(good), flag); code != 2 {
			t.Errorf("flag %s: exit %d: %s", flag, code, out)
		}
	}

	// Another process on the same machine. The only listeners there are Tailscale's peer API, which answers only
	// peers, and the probes, which identify no caller.
	aliceIP, _ := alice.Node.TailscaleIPs()
	forged := identityHeaders("alice@example.com", aliceIP.String())
	m := s.Mark(t)
	seen := 0
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		probes := s.ProbeAddress(t, p)
		for _, port := range attacktest.ListeningPorts(t, p.PID()) {
			at := fmt.Sprintf("127.0.0.1:%d", port)
			if at == probes {
				seen++
			}
			for _, scheme := range []string{"http", "https"} {
				for i, rt := range routes() {
					if scheme == "https" && i > 0 {
						break // a listener of another protocol may take some time to refuse
					}
					method, path := split(rt)
					req := s.NewRequest(t, method, path, "", forged...)
					req.URL.Scheme, req.URL.Host, req.Host = scheme, at, at
					hc := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{InsecureSkipVerify: true}, DisableKeepAlives: true}}
					res, err := hc.Do(req)
					if err != nil {
						continue
					}
					if a := attacktest.ReadAnswer(t, res); at != probes || a.Status != http.StatusNotFound {
						t.Errorf("process %d answers to %s on port %d of this machine: %v", p.PID(), rt.Pattern, port, a)
					}
				}
			}
		}
	}
	if seen != 2 {
		t.Errorf("found %d listeners of probes, of 2 processes", seen)
	}
	if e, asked := m.Entries(t), m.Requests(t, attacktest.AccessAccount); len(e)+len(asked) > 0 {
		t.Errorf("a visit came by another way than the tailnet: %+v, %v", e, asked)
	}
	// Another node of the tailnet keeps its own identity, whatever headers it sends.
	for _, rt := range guarded() {
		method, path := split(rt)
		if e := refusedWith(t, s, bob, method, path, problem.NoCapability, forged...); e.Actor.Login != "bob@example.com" {
			t.Errorf("%s: recorded as %+v", rt.Pattern, e.Actor)
		}
	}
	if a := s.Ask(t, alice, "GET", attacktest.API+"/cluster-info", ""); a.Status != http.StatusOK {
		t.Errorf("alice without a header: %v", a)
	}
}

// ID-10. The server refuses requests that a browser sends for another site's page. This applies to every route and
// also to reads, because a GET can issue a token. No answer ever allows another site to read it.
//
// Guard: httpapi.checkSameSite; for probes health.(*Listener).Handler.
func TestID10_CrossSite(t *testing.T) {
	s := attacktest.Start(t)
	alice := s.Alice(t)
	before := s.Login(t, alice, signin.LoginRequest{})
	version := s.SignIns(t, before.Username)[0].ResourceVersion
	noCORS := func(what string, a attacktest.Answer) {
		t.Helper()
		for name := range a.Header {
			if strings.HasPrefix(name, "Access-Control-") {
				t.Errorf("%s: the answer has %s", what, name)
			}
		}
	}
	page := []string{"Sec-Fetch-Site", "cross-site"}
	for what, headers := range map[string][]string{
		"a foreign page's fetch":             {"Origin", "https://evil.example", "Sec-Fetch-Site", "cross-site", "Sec-Fetch-Mode", "cors"},
		"a sandboxed page":                   {"Origin", "null"},
		"a sandboxed page with more headers": {"Origin", "null", "Sec-Fetch-Site", "cross-site"},
		"an old browser":                     {"Origin", "https://evil.example"},
		"another node's page":                {"Origin", "https://bob-laptop." + s.Net.Suffix(), "Sec-Fetch-Site", "same-site"},
		"another port's page":                {"Origin", s.Server() + ":8443", "Sec-Fetch-Site", "same-site"},
		"a page that lies about its site":    {"Origin", "https://evil.example", "Sec-Fetch-Site", "same-origin"},
		"a site value that no browser sends": {"Sec-Fetch-Site", "trust-me"},
		"an image":                           append([]string{"Sec-Fetch-Dest", "image", "Sec-Fetch-Mode", "no-cors"}, page...),
		"a fetch without CORS":               append([]string{"Sec-Fetch-Dest", "empty", "Sec-Fetch-Mode", "no-cors"}, page...),
		"a link that is followed":            append([]string{"Sec-Fetch-Mode", "navigate", "Sec-Fetch-Dest", "document", "Sec-Fetch-User", "?1"}, page...),
		"a form":                             append([]string{"Origin", "https://evil.example", "Content-Type", "text/plain", "Sec-Fetch-Mode", "navigate"}, page...),
		"an origin that is no address":       {"Origin", "evil"},
		"our name in a foreign origin":       {"Origin", "https://evil.example/" + strings.TrimPrefix(s.Server(), "https://")},
		"our name before a foreign origin":   {"Origin", s.Server() + ".evil.example"},
	} {
		for _, rt := range routes() {
			method, path := split(rt)
			e := refusedWith(t, s, alice, method, path, problem.CrossOrigin, headers...)
			if e.Actor.Login != "" {
				t.Errorf("%s, %s: the caller was identified", what, rt.Pattern)
			}
			noCORS(what, s.Ask(t, alice, method, path, "", headers...))
			noCORS(what, s.Ask(t, alice, "OPTIONS", path, "", append([]string{"Access-Control-Request-Method", method, "Access-Control-Request-Headers", "content-type"}, headers...)...))
		}
	}
	// A form post from a very old browser, which sends no Origin or Sec-Fetch header.
	for _, path := range []string{attacktest.API + "/login", attacktest.API + "/logout"} {
		for _, form := range []string{"text/plain", "application/x-www-form-urlencoded", "multipart/form-data; boundary=x"} {
			m := s.Mark(t)
			req := s.NewRequest(t, "POST", path, `{"role":"view"}`)
			req.Header.Set("Content-Type", form)
			a := attacktest.Do(t, s.HTTPClient(alice), req)
			if w := m.Writes(t, attacktest.AccessAccount); a.Code() != problem.MediaType || len(w) > 0 {
				t.Errorf("%s as %s: %v, wrote %v", path, form, a, w)
			}
		}
	}
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		for _, path := range attacktest.ProbePaths {
			for _, site := range []string{"cross-site", "same-site", "trust-me"} {
				a := attacktest.RawProbe(t, s.ProbeAddress(t, p), "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: "+site+"\r\nOrigin: https://evil.example\r\nConnection: close\r\n\r\n")
				if a.Status != http.StatusForbidden {
					t.Errorf("probes: GET %s from %s: %.200v", path, site, a)
				}
				noCORS("probes", a)
			}
		}
	}
	// Reads and OPTIONS requests change nothing, even from a caller with a grant.
	m := s.Mark(t)
	for _, rt := range routes() {
		_, path := split(rt)
		for _, method := range []string{"GET", "HEAD", "OPTIONS"} {
			noCORS("alice herself", s.Ask(t, alice, method, path, ""))
		}
	}
	for _, k := range m.Writes(t, attacktest.AccessAccount) {
		if k.ObjectRef.Subresource != "token" {
			t.Errorf("reading wrote: %v", k)
		}
	}
	if now := s.SignIns(t, before.Username); len(now) != 1 || now[0].ResourceVersion != version {
		t.Errorf("the sign-in was touched: %+v", now)
	}
	// Control: the same requests from a command line, from the server's own page, and from the address bar.
	for _, headers := range [][]string{{}, {"Origin", s.Server(), "Sec-Fetch-Site", "same-origin"}, {"Sec-Fetch-Site", "none", "Sec-Fetch-Mode", "navigate"}} {
		if a := s.Ask(t, alice, "GET", attacktest.API+"/kubeconfig", "", headers...); a.Status != http.StatusOK {
			t.Errorf("the owner with %q: %v", headers, a)
		}
	}
}

// ID-11. A path matches its route exactly or not at all. No spelling of a path reaches an operation with another
// verb, or without the access decision. No route is public.
//
// Guard: httpapi.(*request).findRoute, which accepts no path that needs cleaning.
func TestID11_PathsAreExact(t *testing.T) {
	s := attacktest.Start(t)
	alice, bob := s.Alice(t), s.Bob(t)
	host := "tka." + s.Net.Suffix()
	spell := func(path string) []string {
		first, last := path[:strings.IndexByte(path[1:]+"/", '/')+1], path[strings.LastIndexByte(path, '/')+1:]
		return []string{
			"/" + path, "//" + host + path, path + "/", path + "//", path + "/.", path + ".", path + "..", path + "/..", path + "X", path + "/x", path + ".json", path + "%00", path + "%20", path + "%0a",
			path + ";x", path + ";x=1", path + "%3Bx", path + "%3f", path + "%3Fwait=1s", path + "%23", path + "%2f", path + "%2F", path + "%2e", path + "%2e%2e",
			first + "/.." + path, "/healthz/.." + path, "/." + path, "/x/../" + path, "/%2e" + path, first + "/%2e%2e" + path, "/%252e%252e" + path,
			strings.Replace(path, "/api/", "/api//", 1) + "/", "/" + strings.Replace(path[1:], "/", "%2f", 1) + "%2f", strings.Replace(path, "/", "\\", 1), "/\\" + path[1:],
			strings.ToUpper(path), "/" + strings.ToUpper(path[1:2]) + path[2:], path + "%E2%80%8B", "/ａ" + path[2:],
			strings.Replace(path, last, "%"+fmt.Sprintf("%02x", last[0])+last[1:], 1), // the same letter, percent-encoded: the same path
			attacktest.API + "/../healthz", "/healthz/.." + path, "/..;" + path, "/public/%2e%2e" + path, "", "*", "/", "/api", attacktest.API, attacktest.API + "/", "/healthz", "/livez", "/readyz", "/metrics", "/swagger", "/debug/pprof/",
		}
	}
	for _, rt := range routes() {
		method, path := split(rt)
		for _, p := range []*testenv.Person{bob, alice} {
			for _, spelt := range spell(path) {
				m := s.Mark(t)
				w := s.Dial(t, p)
				w.Send(method + " " + spelt + " HTTP/1.1\r\nHost: " + host + "\r\nConnection: close\r\nContent-Length: 0\r\n\r\n")
				a, err := w.Receive()
				w.NetConn.Close()
				if err != nil {
					t.Errorf("%s %q: %v", method, spelt, err)
					continue
				}
				entries, asked := m.Entries(t), m.Requests(t, attacktest.AccessAccount)
				exact := len(entries) == 1 && entries[0].Verb == rt.Verb
				switch {
				case a.Status == http.StatusBadRequest, a.Status == http.StatusNotFound && a.Code() == problem.NotFound, a.Status == http.StatusMisdirectedRequest:
					if len(asked) > 0 {
						t.Errorf("%s %q: %v, and requests to the API server: %v", method, spelt, a, asked)
					}
				case !exact:
					t.Errorf("%s %q: %v, recorded %+v", method, spelt, a, entries)
				case p == bob && rt.Verb == access.Whoami && a.Status == http.StatusOK:
				case p == bob && (a.Code() != refusalOf(rt) || len(asked) > 0):
					t.Errorf("%s %q by bob: %v, requests to the API server: %v", method, spelt, a, asked)
				}
				if exact && !strings.Contains(spelt, "%"+fmt.Sprintf("%02x", path[strings.LastIndexByte(path, '/')+1])) && !strings.HasPrefix(spelt, "//"+host) {
					t.Errorf("%s %q is taken for %s: %v", method, spelt, rt.Pattern, a)
				}
				if a.Status/100 == 3 {
					t.Errorf("%s %q: a redirect to %q", method, spelt, a.Header.Get("Location"))
				}
			}
		}
		s.Logout(t, alice)
		// Control.
		if a := s.Ask(t, bob, method, path, ""); a.Code() != refusalOf(rt) && rt.Verb != access.Whoami {
			t.Errorf("%s by bob: %v", rt.Pattern, a)
		}
	}
	t.Run("probes", func(t *testing.T) {
		for _, p := range []*testenv.Process{s.Access, s.Operator} {
			for _, path := range attacktest.ProbePaths {
				for _, spelt := range spell(path) {
					a := attacktest.RawProbe(t, s.ProbeAddress(t, p), "GET "+spelt+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
					exact := spelt == path || slices.Contains(attacktest.ProbePaths, spelt) || strings.Contains(spelt, "%"+fmt.Sprintf("%02x", path[1]))
					if a.Status != http.StatusBadRequest && a.Status != http.StatusNotFound && !(exact && a.Status == http.StatusOK) {
						t.Errorf("GET %q: %.200v", spelt, a)
					}
				}
				if a := attacktest.RawProbe(t, s.ProbeAddress(t, p), "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"); a.Status != http.StatusOK {
					t.Errorf("GET %s: %.200v", path, a)
				}
			}
		}
	})
}

var update = flag.Bool("update", false, "write the golden files")

// ID-12. Every route of the listener has a verb and a row in the golden matrix, which lists the answer for each kind
// of caller. Only authenticated callers learn that a path or a method does not exist.
//
// Guard: httpapi.(*request).process, which decides before it runs a route, and access.Decide, which refuses by default.
func TestID12_EveryRouteIsDecided(t *testing.T) {
	s := attacktest.Start(t)
	onlyTheseListeners(t, s)
	s.SetPolicy(t, attacktest.Grant("mallory@example.com", `{"role": "view", "period": "8h", "namespace": ["shop"]}`),
		attacktest.Grant("erin@example.com", `{"role": "view", "period": "8h"}, {"role": "edit", "period": "1h"}`),
		attacktest.Grant("guest@example.com", `{"role": "view", "period": "8h"}`),
		attacktest.Grant("tag:ci", `{"role": "view", "period": "1h"}`), attacktest.Grant("tag:robot", `{"role": "view", "period": "1h", "allowTagged": true}`))
	guest := s.Person(t, "guest", "guest@example.com")
	if id, err := s.Net.ID(guest.Node); err != nil || !s.Net.Share(id) {
		t.Fatal(err)
	}
	attacktest.Eventually(t, attacktest.Soon, "the guest is shared in", func() bool { return s.Ask(t, guest, "GET", attacktest.API+"/login", "").Code() == problem.ForeignNode })
	robot := s.Person(t, "robot", "", "tag:robot")
	attacktest.Eventually(t, attacktest.Soon, "the robot is granted", func() bool { return s.Ask(t, robot, "GET", attacktest.API+"/login", "").Code() == problem.NotSignedIn })
	personas := []struct {
		name    string
		p       *testenv.Person
		headers []string
	}{
		{"granted", s.Alice(t), nil},
		{"signed in", s.Person(t, "alice-phone", "alice@example.com"), nil},
		{"no grant", s.Bob(t), nil},
		{"two rules", s.Person(t, "erin", "erin@example.com"), nil},
		{"invalid rule", s.Person(t, "mallory", "mallory@example.com"), nil},
		{"shared in", guest, nil},
		{"tagged", s.Person(t, "ci", "", "tag:ci"), nil},
		{"tagged, opted in", robot, nil},
		{"Funnel", s.Alice(t), []string{"Tailscale-Funnel-Request", "?1"}},
		{"another site", s.Alice(t), []string{"Sec-Fetch-Site", "cross-site"}},
		{"another name", s.Alice(t), []string{"Host", "evil.example"}},
	}
	patterns := []string{"GET /", "GET /api/v1alpha1/nothing", "DELETE /api/v1alpha1/login", "PUT /api/v1alpha1/kubeconfig", "HEAD /api/v1alpha1/kubeconfig", "OPTIONS /api/v1alpha1/logout"}
	verbs := map[access.Verb]string{}
	for _, rt := range routes() {
		switch {
		case rt.Verb == "":
			t.Errorf("rt.Verb is empty; %s, %q, %q, %q", rt.Pattern, rt.Verb, verbs[rt.Verb], rt.Doc)
		case rt.Doc == "":
			t.Errorf("rt.Doc is empty; %s, %q, %q, %q", rt.Pattern, rt.Verb, verbs[rt.Verb], rt.Doc)
		case verbs[rt.Verb] != "":
			t.Errorf("verbs[rt.Verb] = %q, want none; %s", verbs[rt.Verb], rt.Pattern)
		}
		verbs[rt.Verb] = rt.Pattern
		patterns = append(patterns, rt.Pattern)
	}
	slices.Sort(patterns)
	var got strings.Builder
	for _, persona := range personas {
		for _, pattern := range patterns {
			s.Logout(t, persona.p)
			if persona.name == "signed in" {
				s.Login(t, persona.p, signin.LoginRequest{})
			}
			method, path, _ := strings.Cut(pattern, " ")
			m := s.Mark(t)
			a := s.Ask(t, persona.p, method, path, "", persona.headers...)
			code := string(a.Code())
			e := m.Entries(t)
			if len(e) != 1 {
				t.Errorf("%s, %s: %d entries in the record", persona.name, pattern, len(e))
			} else if code == "" {
				code = string(e[0].Code) // an answer to HEAD has no body
			}
			if w := m.Writes(t, attacktest.AccessAccount); len(w) > 0 && a.Status/100 != 2 {
				t.Errorf("%s, %s: %v, and wrote %v", persona.name, pattern, a, w)
			}
			fmt.Fprintf(&got, "%-17s %-32s %d %s\n", persona.name, pattern, a.Status, code)
		}
		s.Logout(t, persona.p)
	}
	// The port for servers: grants of people open nothing there, and a server's tag opens nothing elsewhere.
	patterns = []string{"GET /", "GET " + attacktest.API + "/memberlist", "GET " + attacktest.API + "/whoami", "POST " + attacktest.API + "/login", "GET /livez"}
	for _, rt := range memberRoutes() {
		patterns = append(patterns, rt.Pattern)
	}
	slices.Sort(patterns)
	personas = append(personas, personas[0])
	personas[len(personas)-1].name, personas[len(personas)-1].p = "a server's tag", s.Person(t, "member", "", "tag:tailplane")
	for _, persona := range personas {
		for _, pattern := range patterns {
			method, path, _ := strings.Cut(pattern, " ")
			m := s.Mark(t)
			req := s.NewRequest(t, method, path, "", persona.headers...)
			if req.URL.Scheme, req.URL.Host = "http", "tka."+s.Net.Suffix()+":7946"; req.Host == "tka."+s.Net.Suffix() {
				req.Host = req.URL.Host
			}
			a := attacktest.Do(t, s.HTTPClient(persona.p), req)
			e := m.Entries(t)
			if want := 1; len(e) != want && !(a.Status == http.StatusOK && len(e) == 0) {
				t.Errorf("%s, %s: %v, and %d entries in the record", persona.name, pattern, a.Status, len(e))
			}
			if w := m.Writes(t, attacktest.AccessAccount); len(w) > 0 {
				t.Errorf("%s, %s: wrote %v", persona.name, pattern, w)
			}
			fmt.Fprintf(&got, "%-17s %-32s %d %s\n", persona.name, method+" :7946"+path, a.Status, a.Code())
		}
	}
	var probes []string
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		var text strings.Builder
		for _, path := range slices.Concat(attacktest.ProbePaths, []string{"/", "/healthz", "/debug/pprof/", "/debug/vars", "/config", "/swagger", attacktest.API + "/login", attacktest.API + "/whoami"}) {
			for _, method := range []string{"GET", "POST", "DELETE"} {
				a := attacktest.RawProbe(t, s.ProbeAddress(t, p), method+" "+path+" HTTP/1.1\r\nHost: localhost\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
				fmt.Fprintf(&text, "%-17s %-32s %d\n", "anybody, probes", method+" "+path, a.Status)
			}
		}
		probes = append(probes, text.String())
	}
	if got.WriteString(probes[0]); probes[0] != probes[1] {
		t.Errorf("the probes of access and operator differ:\n%s\n%s", probes[0], probes[1])
	}
	const golden = "testdata/roles.golden"
	text := strings.ReplaceAll(got.String(), " \n", "\n")
	if *update {
		if err := os.WriteFile(golden, []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(golden)
	if err != nil {
		t.Fatal(err)
	}
	gotLines, wantLines := strings.Split(text, "\n"), strings.Split(string(want), "\n")
	for _, l := range gotLines {
		if !slices.Contains(wantLines, l) {
			t.Errorf("not in %s: %s", golden, l)
		}
	}
	for _, l := range wantLines {
		if !slices.Contains(gotLines, l) {
			t.Errorf("only in %s: %s", golden, l)
		}
	}
}
