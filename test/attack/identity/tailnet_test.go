package identity

import (
	"context"
	"crypto/tls"
	"encoding/json"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/http"
	"net/http/httptest"
	"net/http/httptrace"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/httpapi"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/tailnet"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// joined starts a node of the product in this process, so that the test can call its Identify.
func joined(t *testing.T, n *tailnettest.Net, hostname string) *tailnet.Node {
	t.Helper()
	node, err := tailnet.New(tailnet.Config{
		Hostname: hostname, Tags: []string{"tag:other"}, ControlURL: n.ControlURL(), StateDir: t.TempDir(), Port: 8443,
		AuthKey:    secret.New(n.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:other"}})),
		Capability: "tailplane.dev/cap/access", JoinTimeout: attacktest.Long, Log: slog.New(slog.DiscardHandler),
	})
	if err != nil {
		t.Fatal(err)
	}
	ctx, stop := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan error, 1)
	go func() { done <- node.Run(ctx) }()
	t.Cleanup(func() {
		stop()
		if err := <-done; err != nil {
			t.Errorf("the node: %v", err)
		}
	})
	attacktest.Eventually(t, attacktest.Long, "the node is in its tailnet", func() bool { return node.Status().Running() })
	return node
}

// ID-01. The server refuses a request from the public internet before it identifies the caller. WhoIs would return
// the ingress node, and that node may have a grant.
//
// Guard: tailnet.(*Node).Identify and isFunnel, access.Admit.
func TestID01_FunnelIsRefused(t *testing.T) {
	s := attacktest.Start(t)
	alice := s.Alice(t)
	s.SetPolicy(t, attacktest.Grant("tag:ingress", `{"role": "edit", "period": "8h", "allowTagged": true}`),
		`{"src": ["tag:ingress", "alice@example.com"], "dst": ["tag:other"], "app": {"tailplane.dev/cap/access": [{"role": "edit", "period": "8h", "allowTagged": true}]}}`)

	t.Run("behind a serve hop", func(t *testing.T) {
		for _, headers := range [][]string{
			{"Tailscale-Funnel-Request", "?1"}, {"Tailscale-Funnel-Request", ""}, {"Tailscale-Funnel-Request", "0"}, {"Tailscale-Funnel-Request", "false"},
			{"tailscale-funnel-request", "?0"}, {"TAILSCALE-FUNNEL-REQUEST", "no"}, {"Tailscale-Funnel-Request", "", "Tailscale-Funnel-Request", ""},
		} {
			for _, rt := range routes() {
				method, path := split(rt)
				switch e := refusedWith(t, s, alice, method, path, problem.FunnelRefused, headers...); {
				case e.Actor.Login != "":
					t.Errorf("e.Actor.Login = %q, want none; %s; headers = %q", e.Actor.Login, rt.Pattern, headers)
				case e.Actor.NodeID != "":
					t.Errorf("e.Actor.NodeID = %q, want none; %s; headers = %q", e.Actor.NodeID, rt.Pattern, headers)
				case e.Actor.Via != access.ViaFunnel:
					t.Errorf("e.Actor.Via = %q, want %q; %s; headers = %q", e.Actor.Via, access.ViaFunnel, rt.Pattern, headers)
				}
			}
		}
		if a := s.Ask(t, alice, "GET", attacktest.API+"/cluster-info", ""); a.Status != http.StatusOK {
			t.Errorf("the same without the header: %v", a)
		}
	})

	// The ingress node of a Funnel, which has a grant.
	edge := s.Person(t, "edge", "", "tag:ingress")
	attacktest.Eventually(t, attacktest.Soon, "the ingress node is granted", func() bool { return s.Ask(t, edge, "GET", attacktest.API+"/login", "").Code() == problem.NotSignedIn })
	// A server on the tailnet with Funnel enabled; the product itself never enables it.
	public := s.Net.Node("public", "", "tag:other")
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	if err := s.Net.Ready(ctx, public, edge.Node, alice.Node); err != nil {
		t.Fatal(err)
	}
	node := joined(t, s.Net, "second")
	lc, err := public.LocalClient()
	if err != nil {
		t.Fatal(err)
	}
	edgeIP, _ := edge.Node.TailscaleIPs()
	who, err := lc.WhoIs(ctx, edgeIP.String())
	if err != nil || len(who.CapMap["tailplane.dev/cap/access"]) != 1 {
		t.Fatalf("the ingress node has no grant, so this test proves nothing: %+v %v", who, err)
	}
	id, err := s.Net.ID(edge.Node)
	if err != nil || !s.Net.SetIngress(id) {
		t.Fatal(err)
	}
	name := "public." + s.Net.Suffix()

	t.Run("on a Funnel connection", func(t *testing.T) {
		ln, err := public.ListenFunnel("tcp", ":443")
		if err != nil {
			t.Fatal(err)
		}
		behind := attacktest.NewIdentityServer([]string{name}, node.Identify)
		behind.Serve(t, ln, node.ConnContext)
		internet := func(ctx context.Context, _, addr string) (net.Conn, error) {
			return s.Net.FunnelDial(ctx, edge.Node, addr, "203.0.113.9:4444")
		}
		attacktest.Eventually(t, attacktest.Long, "Funnel accepts connections", func() bool {
			c, err := internet(ctx, "tcp", name+":443")
			if err != nil {
				return false
			}
			c.Close()
			return true
		})
		stranger := &http.Client{Transport: &http.Transport{DialContext: internet, TLSClientConfig: &tls.Config{RootCAs: s.Roots}}}
		_, err = behind.Op.Call(ctx, httpapi.Client{HTTP: stranger, Base: "https://" + name}, struct{}{})
		entries, through := behind.Entries()
		switch {
		case problem.CodeOf(err) != problem.FunnelRefused:
			t.Errorf("from the internet: problem.CodeOf(err) != problem.FunnelRefused; %v, entries = %+v, through = %+v",
				err, entries, through)
		case len(through) > 0:
			t.Errorf("from the internet: len(through) = %v, want at most 0", len(through))
		case len(entries) != 1:
			t.Errorf("from the internet: len(entries) = %v, want 1", len(entries))
		case entries[0].Code != problem.FunnelRefused:
			t.Errorf("from the internet: entries[0].Code = %q, want %q", entries[0].Code, problem.FunnelRefused)
		case entries[0].Actor.NodeID != "":
			t.Errorf("from the internet: entries[0].Actor.NodeID = %q, want none", entries[0].Actor.NodeID)
		}
		// Control: the same listener from the tailnet, and the answer that WhoIs would have given.
		hc := &http.Client{Transport: &http.Transport{DialContext: alice.Node.Dial, TLSClientConfig: &tls.Config{RootCAs: s.Roots}}}
		var got attacktest.Whoami
		attacktest.Eventually(t, attacktest.Long, "alice is let in from the tailnet", func() bool {
			got, err = behind.Op.Call(ctx, httpapi.Client{HTTP: hc, Base: "https://" + name}, struct{}{})
			return err == nil
		})
		if got.Identity != "alice@example.com" {
			t.Errorf("from the tailnet: %+v", got)
		}
		who, err := lc.WhoIs(ctx, edgeIP.String())
		if err != nil || who.Node.StableID != id {
			t.Errorf("WhoIs of the ingress node: %+v %v; it should succeed", who, err)
		}
	})
	t.Run("to the product's own listener", func(t *testing.T) {
		m := s.Mark(t)
		short, cancel := context.WithTimeout(t.Context(), 5*time.Second)
		defer cancel()
		c, err := s.Net.FunnelDial(short, edge.Node, "tka."+s.Net.Suffix()+":443", "203.0.113.9:4444")
		if err == nil {
			conn := tls.Client(c, &tls.Config{RootCAs: s.Roots, ServerName: "tka." + s.Net.Suffix()})
			if err := conn.HandshakeContext(short); err == nil {
				t.Error("a Funnel connection reaches the access server's TLS")
			}
			c.Close()
		}
		// The ingress node itself is an unsigned peer and cannot reach any node.
		if c, err := edge.Node.Dial(short, "tcp", "tka."+s.Net.Suffix()+":443"); err == nil {
			conn := tls.Client(c, &tls.Config{RootCAs: s.Roots, ServerName: "tka." + s.Net.Suffix()})
			if err := conn.HandshakeContext(short); err == nil {
				t.Error("the ingress node reaches the access server")
			}
			c.Close()
		}
		if e := m.Entries(t); len(e) > 0 {
			t.Errorf("recorded %+v", e)
		}
	})
}

// unique makes host names for nodes that only one test uses.
var unique struct {
	sync.Mutex
	n int
}

// spareDevice returns a person on a device that only this test uses.
func spareDevice(t *testing.T, s *attacktest.Env, login string, tags ...string) *testenv.Person {
	t.Helper()
	unique.Lock()
	unique.n++
	host := fmt.Sprintf("spare-%d", unique.n)
	unique.Unlock()
	return s.Person(t, host, login, tags...)
}

// An openClient keeps one connection to the access server open.
type openClient struct {
	*http.Client
	reused bool // set by the last request
}

func keepAlive(p *testenv.Person) *openClient {
	hc := p.HTTP()
	hc.Transport.(*http.Transport).MaxConnsPerHost = 1
	return &openClient{Client: hc}
}

// try sends a request on the connection. It returns an error when no answer arrives.
func (w *openClient) try(t *testing.T, req *http.Request, limit time.Duration) (attacktest.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(req.Context(), limit)
	defer cancel()
	w.reused = false
	trace := &httptrace.ClientTrace{GotConn: func(i httptrace.GotConnInfo) { w.reused = i.Reused }}
	res, err := w.Do(req.WithContext(httptrace.WithClientTrace(ctx, trace)))
	if err != nil {
		return attacktest.Answer{}, err
	}
	return attacktest.ReadAnswer(t, res), nil
}

// ID-02. The server refuses a caller that the tailnet does not authenticate, or no longer authenticates. This also
// applies on a connection that is already open, and to a WhoIs answer with missing or empty fields.
//
// Guard: access.Admit (expired, empty names), access.ParseLogin and tailnet.callerOf (answers with empty fields),
// tailnet.(*Node).whoIs (queries again for every request, with a limit of 2 s: a test in internal/tailnet has a WhoIs
// that hangs).
func TestID02_UnidentifiedCallersAreRefused(t *testing.T) {
	s := attacktest.Start(t)
	alice := s.Alice(t)
	const granted = `{"role": "view", "period": "8h"}`
	s.SetPolicy(t, attacktest.Grant("*", granted)) // grants every caller, so that only authentication can refuse one

	gone := func(t *testing.T, end func(p *testenv.Person), code problem.Code) {
		p := spareDevice(t, s, "carol@example.com")
		w := keepAlive(p)
		read := func() *http.Request { return s.NewRequest(t, "GET", attacktest.API+"/login", "") }
		attacktest.Eventually(t, attacktest.Soon, "carol is granted", func() bool {
			a, err := w.try(t, read(), attacktest.Long)
			return err == nil && a.Code() == problem.NotSignedIn
		})
		switch a, err := w.try(t, read(), attacktest.Long); {
		case err != nil:
			t.Fatalf("before: %v", err)
		case !w.reused:
			t.Fatalf("before: w.reused is false; %v, %v, %v", a, err, w.reused)
		case a.Code() != problem.NotSignedIn:
			t.Fatalf("before: a.Code() = %q, want %q", a.Code(), problem.NotSignedIn)
		}
		end(p)
		began, silent := time.Now(), false
		for {
			m := s.Mark(t)
			a, err := w.try(t, read(), 10*time.Second)
			if took := time.Since(began); err != nil {
				// No answer arrives: the node has left the tailnet. The server neither answers nor executes a request
				// that was in transit.
				silent = true
			} else if a.Code() == code {
				e := m.Refusal(t, "after the end", code, a)
				if took > attacktest.Soon {
					t.Errorf("refused after %v", took)
				}
				t.Logf("%s after %v, actor %+v", code, took.Round(time.Millisecond), e.Actor)
			} else if took > attacktest.Soon {
				t.Fatalf("%v after the end: %v", took, a)
			} else {
				continue
			}
			break
		}
		if silent {
			t.Logf("cut off %v after the end", time.Since(began).Round(time.Millisecond))
		}
		m := s.Mark(t)
		for range 3 {
			if a, err := w.try(t, s.NewRequest(t, "POST", attacktest.API+"/login", "{}"), time.Second); err == nil && a.Status/100 == 2 {
				t.Errorf("login after the end: %v", a)
			}
		}
		for _, e := range m.Entries(t) {
			if e.Result == audit.Done {
				t.Errorf("after the end: %+v", e)
			}
		}
		if asked := m.Requests(t, attacktest.AccessAccount); len(asked) > 0 || len(s.SignIns(t, "carol@example.com")) > 0 {
			t.Errorf("requests to the API server after the end: %v", asked)
		}
	}
	t.Run("expired, on a warm connection", func(t *testing.T) {
		gone(t, func(p *testenv.Person) {
			id, err := s.Net.ID(p.Node)
			if err != nil || !s.Net.Expire(id) {
				t.Fatal(err)
			}
		}, problem.NodeExpired)
	})
	t.Run("removed, on a warm connection", func(t *testing.T) {
		gone(t, func(p *testenv.Person) {
			id, err := s.Net.ID(p.Node)
			if err != nil || !s.Net.Delete(id) {
				t.Fatal(err)
			}
		}, problem.NoIdentity)
	})
	// Real nodes whose profile has no usable login name, as a faulty identity provider or control server could
	// deliver.
	for what, login := range map[string]string{
		"the profile of tagged nodes, without a tag": "tagged-devices",
		"two @":               "x@a.com@b.com",
		"300 characters":      strings.Repeat("a", 300) + "@example.com",
		"a line break":        "carol\n@example.com",
		"an invisible letter": "carol\u200b@example.com",
		"from right to left":  "\u202ecarol@example.com",
		"a space":             "carol @example.com",
		"no name":             "@example.com",
	} {
		t.Run(what, func(t *testing.T) {
			p := spareDevice(t, s, login)
			for _, rt := range routes() {
				method, path := split(rt)
				if e := refusedWith(t, s, p, method, path, problem.NoIdentity); e.Actor.Login != "" || e.Actor.NodeID != "" {
					t.Errorf("%s: recorded as %+v", rt.Pattern, e.Actor)
				}
			}
		})
	}
	// These cases cannot be produced with a control server, so the test calls the product's HTTP server directly.
	t.Run("at the door", func(t *testing.T) {
		down, err := tailnet.New(tailnet.Config{Hostname: "down", StateDir: t.TempDir(), Port: 443, Capability: "tailplane.dev/cap/access", Log: slog.New(slog.DiscardHandler)})
		if err != nil {
			t.Fatal(err)
		}
		good := access.Caller{Login: "alice@example.com", Device: access.Device{ID: "n1", Name: "laptop"}, Via: access.ViaTailnet, Rules: []json.RawMessage{json.RawMessage(granted)}}
		with := func(f func(*access.Caller)) access.Caller { c := good; f(&c); return c }
		caller, fails, asked := good, error(nil), 0
		identify := func(*http.Request) (access.Caller, error) { asked++; return caller, fails }
		at := attacktest.NewIdentityServer([]string{"127.0.0.1"}, func(r *http.Request) (access.Caller, error) { return identify(r) })
		srv := httptest.NewUnstartedServer(at.Handler(at.Route))
		srv.Config.ConnContext = down.ConnContext
		srv.Start()
		defer srv.Close()
		call := func() error {
			_, err := at.Op.Call(t.Context(), httpapi.Client{HTTP: srv.Client(), Base: srv.URL}, struct{}{})
			return err
		}
		want := func(what string, code problem.Code) {
			t.Helper()
			err := call()
			entries, through := at.Entries()
			switch {
			case problem.CodeOf(err) != code:
				t.Errorf("%s: problem.CodeOf(err) != code, %v, entries = %+v, through = %+v, code = %s", what, err, entries, through, code)
			case len(through) > 0:
				t.Errorf("%s: len(through) = %v, want at most 0", what, len(through))
			case len(entries) != 1:
				t.Errorf("%s: len(entries) = %v, want 1", what, len(entries))
			case entries[0].Code != code:
				t.Errorf("%s: entries[0].Code = %q, want %q", what, entries[0].Code, code)
			}
			// The server caches no result: the next request queries again.
			caller, fails = good, nil
			before := asked
			if err := call(); err != nil || asked != before+1 {
				t.Errorf("after %s: %v, %d requests", what, err, asked-before)
			}
			if _, through := at.Entries(); len(through) != 1 || through[0].Login != "alice@example.com" {
				t.Errorf("after %s: through %+v", what, through)
			}
		}
		fails = errors.New("backend on fire: /var/run/tailscale.sock")
		want("an unexpected failure", problem.Internal)
		fails = problem.New(problem.IdentityUnavailable, "This server cannot get your identity from its tailnet.", "Try again in a moment.")
		want("a WhoIs that was given up", problem.IdentityUnavailable)
		for what, hollow := range map[string]access.Caller{
			"nothing":                  {},
			"no login":                 with(func(c *access.Caller) { c.Login = "" }),
			"no device":                with(func(c *access.Caller) { c.Device = access.Device{} }),
			"no way":                   with(func(c *access.Caller) { c.Via = "" }),
			"an unknown way":           with(func(c *access.Caller) { c.Via = "serve" }),
			"a person with a tag":      with(func(c *access.Caller) { c.Tags = []access.Tag{"tag:ci"} }),
			"an empty name of a robot": with(func(c *access.Caller) { c.Login, c.Device = "", access.Device{} }),
		} {
			caller = hollow
			want(what, problem.NoIdentity)
		}
		caller = with(func(c *access.Caller) { c.Expired = true })
		want("an expired node", problem.NodeExpired)
		identify = down.Identify
		err = call()
		switch entries, through := at.Entries(); {
		case problem.CodeOf(err) != problem.IdentityUnavailable:
			t.Errorf("a node that is not in its tailnet: problem.CodeOf(err) != problem.IdentityUnavailable; %v, entries = %+v, through = %+v",
				err, entries, through)
		case len(entries) != 1:
			t.Errorf("a node that is not in its tailnet: len(entries) = %v, want 1", len(entries))
		case len(through) > 0:
			t.Errorf("a node that is not in its tailnet: len(through) = %v, want at most 0", len(through))
		}
	})
	if a := s.Ask(t, alice, "GET", attacktest.API+"/cluster-info", ""); a.Status != http.StatusOK {
		t.Errorf("alice: %v", a)
	}
}

// ID-03. A tagged node belongs to no person. Without a grant that opts in to tagged nodes it is refused. With one,
// its identity is its own node name and id, never the profile that all tagged nodes share.
//
// Guard: access.(Policy).entitle, access.(Caller).Identity, tailnet.callerOf.
func TestID03_TaggedNodes(t *testing.T) {
	s := attacktest.Start(t)
	ci, robot := s.Person(t, "ci", "", "tag:ci"), s.Person(t, "robot", "", "tag:robot")
	twin := s.Person(t, "robot-2", "", "tag:robot")
	s.SetPolicy(t, attacktest.Grant("tag:ci", `{"role": "edit", "period": "1h"}`),
		attacktest.Grant("tag:robot", `{"role": "view", "period": "1h", "allowTagged": true}, {"role": "edit", "period": "1h", "priority": 9}`))
	attacktest.Eventually(t, attacktest.Soon, "the robot is granted", func() bool { return s.Ask(t, robot, "GET", attacktest.API+"/login", "").Code() == problem.NotSignedIn })
	for _, rt := range guarded() {
		method, path := split(rt)
		switch e := refusedWith(t, s, ci, method, path, problem.TaggedNode); {
		case e.Actor.Login != "":
			t.Errorf("e.Actor.Login = %q, want none; %s", e.Actor.Login, rt.Pattern)
		case !strings.HasPrefix(e.Actor.Node, "ci."):
			t.Errorf("e.Actor.Node = %q does not start with %q; %s", e.Actor.Node, "ci.", rt.Pattern)
		case len(e.Actor.Tags) != 1:
			t.Errorf("len(e.Actor.Tags) = %v, want 1; %s", len(e.Actor.Tags), rt.Pattern)
		}
	}
	m := s.Mark(t)
	one, two := s.Login(t, robot, signin.LoginRequest{}), s.Login(t, twin, signin.LoginRequest{})
	for _, got := range []struct {
		p  *testenv.Person
		st signin.Status
	}{{robot, one}, {twin, two}} {
		id, err := s.Net.ID(got.p.Node)
		if err != nil {
			t.Fatal(err)
		}
		name := got.p.Node.Hostname + "." + s.Net.Suffix()
		stored := s.SignIns(t, "node:"+name)
		// A rule that does not admit tagged nodes does not apply to them, whatever its priority.
		switch {
		case len(stored) != 1:
			t.Errorf("len(stored) = %v, want 1", len(stored))
		case stored[0].Spec.Device.ID != string(id):
			t.Errorf("stored[0].Spec.Device.ID = %q, want %q", stored[0].Spec.Device.ID, string(id))
		case stored[0].Spec.Role != "view":
			t.Errorf("stored[0].Spec.Role = %q, want %q", stored[0].Spec.Role, "view")
		case got.st.Username != "node:"+name:
			t.Errorf("got.st.Username = %q, want %q", got.st.Username, "node:"+name)
		}
	}
	if one.Name == two.Name || len(s.SignIns(t, "tagged-devices")) > 0 {
		t.Errorf("two nodes are one: %s", one.Name)
	}
	for _, e := range m.Entries(t) {
		if e.Actor.Login != "" || e.Actor.Node == "" {
			t.Errorf("recorded as %+v", e.Actor)
		}
	}
	// The opt-in gives exactly the granted role and nothing else.
	if _, e := s.Refused(t, "another role", problem.RoleNotGranted, func() attacktest.Answer { return s.Ask(t, robot, "POST", attacktest.API+"/login", `{"role":"edit"}`) }); e.Actor.Login != "" {
		t.Errorf("recorded as %+v", e.Actor)
	}
	t.Run("verbs for people only", func(t *testing.T) { attacktest.Missing(t, "verbs for people only") })
}

// ID-14. Every request is decided on the current state of the tailnet. This also applies on an open connection, for a
// caller that was admitted a moment ago.
//
// Guard: tailnet.(*Node).Identify and httpapi.(*request).decide, which cache nothing.
func TestID14_NothingIsRemembered(t *testing.T) {
	s := attacktest.Start(t)
	const role = `{"role": "edit", "period": "1h"}`
	frank := attacktest.Grant("frank@example.com", role)
	s.SetPolicy(t, frank)
	p := s.Person(t, "frank-laptop", "frank@example.com")
	w := keepAlive(p)
	read := func(path string) attacktest.Answer {
		t.Helper()
		a, err := w.try(t, s.NewRequest(t, "GET", attacktest.API+path, ""), attacktest.Long)
		if err != nil {
			t.Fatal(err)
		}
		return a
	}
	attacktest.Eventually(t, attacktest.Soon, "frank is granted", func() bool { return read("/login").Code() == problem.NotSignedIn })
	signIn := func() {
		t.Helper()
		attacktest.Eventually(t, attacktest.Long, "frank is signed in", func() bool {
			if a := s.Ask(t, p, "POST", attacktest.API+"/login", "{}"); a.Status != http.StatusAccepted {
				return false // the grant, or the end of the previous sign-in, has not arrived yet
			}
			s.Kubeconfig(t, p)
			return true
		})
	}
	t.Cleanup(func() { s.Logout(t, p) })
	change := func(what string, grants []string, ok func() bool) {
		t.Helper()
		s.SetPolicy(t, frank)
		signIn()
		for range 20 { // fills every possible cache
			if a := read("/login"); a.Status != http.StatusOK || !w.reused {
				t.Fatalf("%s: before: %v, reused %v", what, a, w.reused)
			}
		}
		s.SetPolicy(t, grants...)
		took := attacktest.Eventually(t, attacktest.Soon, what, ok)
		if !w.reused {
			t.Errorf("%s: not on the same connection", what)
		}
		t.Logf("%s: after %v", what, took.Round(time.Millisecond))
		m := s.Mark(t)
		for range 5 {
			if !ok() {
				t.Errorf("%s: not for good", what)
			}
		}
		marks := 0
		for _, k := range m.Writes(t, attacktest.AccessAccount) {
			// The grant behind the sign-in is gone, so the operator may end it: it marks it once and deletes it.
			if k.Verb == "patch" {
				marks++
			}
			if k.Verb != "delete" && (k.Verb != "patch" || marks > 1) {
				t.Errorf("%s: requests to the API server: %v", what, k)
			}
		}
	}
	change("the grant is removed", nil, func() bool { return read("/login").Code() == problem.NoCapability })
	change("the grant is for others", []string{attacktest.Grant("grace@example.com", role)}, func() bool { return read("/login").Code() == problem.NoCapability })
	change("the grant is for another server", []string{strings.Replace(frank, "tag:tailplane", "tag:other", 1)}, func() bool { return read("/login").Code() == problem.NoCapability })
	change("the grant is broken", []string{attacktest.Grant("frank@example.com", `{"role": "edit"}`)}, func() bool { return read("/login").Code() == problem.BadCapability })
	t.Run("the grant is narrowed", func(t *testing.T) {
		s.SetPolicy(t, frank)
		signIn()
		if a := read("/kubeconfig"); a.Status != http.StatusOK {
			t.Fatalf("before: %v", a)
		}
		s.SetPolicy(t, attacktest.Grant("frank@example.com", `{"role": "edit", "period": "1h", "namespaces": ["shop"]}`))
		m := s.Mark(t)
		began := time.Now()
		var a attacktest.Answer
		attacktest.Eventually(t, attacktest.Soon, "the kubeconfig is refused", func() bool { a = read("/kubeconfig"); return a.Code() != "" })
		t.Logf("after %v: %s", time.Since(began).Round(time.Millisecond), a.Code())
		if a.Code() != problem.GrantRemoved && a.Code() != problem.NotSignedIn || !w.reused {
			t.Errorf("%v, reused %v", a, w.reused)
		}
		tokens := 0
		for _, k := range m.Writes(t, attacktest.AccessAccount) {
			if k.ObjectRef.Subresource == "token" {
				tokens++
			}
		}
		for _, e := range m.Entries(t) {
			if e.Result == audit.Done {
				tokens-- // issued before the server received the change
			}
		}
		if tokens != 0 {
			t.Errorf("%d tokens were created for a refusal", tokens)
		}
	})
	t.Run("the connection is another's", func(t *testing.T) {
		// This tailnet never reuses an address, so the test calls the HTTP server directly: the next request on the
		// same connection, from the same port, belongs to another caller.
		alice := access.Caller{Login: "alice@example.com", Device: access.Device{ID: "n1", Name: "desk"}, Via: access.ViaTailnet, Rules: []json.RawMessage{json.RawMessage(role)}}
		bob := alice
		bob.Login, bob.Rules = "bob@example.com", nil
		caller, from := alice, map[string]bool{}
		at := attacktest.NewIdentityServer([]string{"127.0.0.1"}, func(r *http.Request) (access.Caller, error) { from[r.RemoteAddr] = true; return caller, nil })
		srv := httptest.NewServer(at.Handler(at.Route))
		defer srv.Close()
		for _, want := range []struct {
			who  access.Caller
			code problem.Code
		}{{alice, ""}, {bob, problem.NoCapability}, {alice, ""}, {bob, problem.NoCapability}} {
			caller = want.who
			_, err := at.Op.Call(t.Context(), httpapi.Client{HTTP: srv.Client(), Base: srv.URL}, struct{}{})
			entries, through := at.Entries()
			switch {
			case problem.CodeOf(err) != want.code:
				t.Errorf("problem.CodeOf(err) != want.code; %s, %v, entries = %+v, through = %+v", want.who.Login, err, entries, through)
			case (len(through) == 1) != (want.code == ""):
				t.Errorf(`(len(through) == 1) != (want.code == ""); %s, %v, entries = %+v, through = %+v`,
					want.who.Login, err, entries, through)
			case len(entries) != 1:
				t.Errorf("len(entries) = %v, want 1", len(entries))
			case entries[0].Actor.Login != string(want.who.Login):
				t.Errorf("entries[0].Actor.Login = %q, want %q", entries[0].Actor.Login, string(want.who.Login))
			}
		}
		if len(from) != 1 {
			t.Errorf("the requests came from %v, not from one address", from)
		}
	})
}
