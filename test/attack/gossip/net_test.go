package gossip

import (
	"bufio"
	"bytes"
	"compress/gzip"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"strconv"
	"strings"
	"sync/atomic"
	"syscall"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/audit"
	"github.com/tailplane/tailplane/internal/gossip"
	gossiphttp "github.com/tailplane/tailplane/internal/gossip/http"
	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// GO-05. Oversized and malformed messages are dropped and counted, and the server backs off from their sender. The
// process keeps running without growing. Fields of a newer version are accepted. The servers are another build than
// this test, which also reads and creates records.
//
// Guard: gossip.decode, gossip.Open, (*engine).garbage, Carrier.ask, and httpapi.Op.Serve, which reads at most MaxBody.
func TestGO05_Bombs(t *testing.T) {
	east, west := twoClusters(t)
	r := newRogue(t, east, "go05")
	r.introduce(t)
	m := east.Mark(t)
	began, size := time.Now(), attacktest.ResidentMemory(t, east.Access.PID())
	entry := `["nA",1,1,1],`
	zeros := strings.Repeat("\x00", 1<<20)
	var bomb bytes.Buffer
	z := gzip.NewWriter(&bomb)
	for range 64 {
		io.WriteString(z, zeros)
	}
	z.Close()

	t.Run("messages", func(t *testing.T) {
		// In turn, because each backs off; several servers, because each backoff is longer than the last.
		servers := []*attacktest.Env{east, west}
		rogues := []*rogueMember{newRogue(t, east, "go05m"), newRogue(t, east, "go05n"), newRogue(t, east, "go05o")}
		for i, tt := range []struct{ name, body string }{
			{"no fields", `{}`},
			{"null", `null`},
			{"no envelope", `{"v":1,"net":"default"}`},
			{"129 entries", `{"v":1,"net":"default","d":[` + strings.Repeat(entry, 128) + `["nA",1,1,1]]}`},
			{"a negative number", `{"v":1,"net":"default","d":[["nA",-1,1,1]]}`},
			{"a huge number", `{"v":1,"net":"default","d":[["nA",1` + strings.Repeat("0", 1000) + `,1,1]]}`},
			{"depth", `{"v":1,"net":"default","d":[],"x":` + strings.Repeat("[", 30000) + strings.Repeat("]", 30000) + `}`},
			{"no record in a record", `{"v":1,"net":"default","r":[{}]}`},
			{"half of it", `{"v":1,"net":"default","d":[["nA",`},
			{"no text", "\xff\xfe\x00"},
		} {
			s, r := servers[i%2], rogues[i%3]
			// For a second, then longer; it may be over when the test checks.
			attacktest.Eventually(t, attacktest.Long, "after "+tt.name+" it is not listened to", func() bool {
				r.forgiven(t, s)
				counted := rejectedBy(t, s, gossip.Malformed)
				if a := r.tell(t, s, tt.body); a.Code() != problem.BadRequest || rejectedBy(t, s, gossip.Malformed) != counted+1 {
					t.Fatalf("%s: %v, counted %d", tt.name, a, rejectedBy(t, s, gossip.Malformed)-counted)
				}
				a := r.tell(t, s, message(r.claim()))
				after, err := strconv.Atoi(a.Header.Get("Retry-After"))
				return a.Code() == problem.RateLimited && err == nil && after >= 1
			})
		}
	})
	t.Run("too much to read", func(t *testing.T) {
		for _, tt := range []struct {
			name, body string
			code       problem.Code
			headers    []string
		}{
			{"a million entries", `{"v":1,"net":"default","d":[` + strings.Repeat(entry, 1_000_000) + `["nA",1,1,1]]}`, problem.TooLarge, nil},
			{"a compressed body", bomb.String(), "", []string{"Content-Encoding", "gzip"}},
			{"not JSON by its own word", `<a/>`, problem.MediaType, []string{"Content-Type", "text/xml"}},
		} {
			res, err := r.send(t.Context(), east, tt.body, tt.headers...)
			if err != nil {
				t.Logf("%s: cut off: %v", tt.name, err)
				continue
			}
			if a := attacktest.ReadAnswer(t, res); a.Status/100 != 4 || tt.code != "" && a.Code() != tt.code {
				t.Errorf("%s: %v", tt.name, a)
			}
		}
		r.forgiven(t, east)
	})
	t.Run("longer each time", func(t *testing.T) {
		r := newRogue(t, east, "go05p")
		var waits []int // the longest required waits, in seconds
		longest := 0
		bomb := func() problem.Code {
			time.Sleep(100 * time.Millisecond)
			a := r.tell(t, east, `{}`)
			after, _ := strconv.Atoi(a.Header.Get("Retry-After"))
			longest = max(longest, after)
			return a.Code()
		}
		r.says(func(w http.ResponseWriter, _ *http.Request) { io.WriteString(w, `{}`) })
		// After some time without a bad message the backoff starts from the beginning.
		for len(waits) < 2 || len(waits) < 5 && waits[len(waits)-1] <= waits[0] {
			longest = 0
			bomb()
			attacktest.Eventually(t, attacktest.Long, "a second bomb is looked at", func() bool { return bomb() == problem.BadRequest })
			bomb()
			r.forgiven(t, east) // one valid message in between does not reset the backoff
			waits = append(waits, longest)
		}
		r.says(nil)
		t.Logf("Retry-After is %d s", waits)
		if waits[len(waits)-1] <= waits[0] {
			t.Errorf("Retry-After is %d s", waits)
		}
		r.forgiven(t, east)
	})
	t.Run("records", func(t *testing.T) {
		for name, payload := range map[string]string{
			"64 KB of labels":  r.payload(t, `"env":"demo"`, `"env":"`+strings.Repeat("a", 30<<10)+`"`),
			"33 labels":        r.payload(t, `"env":"demo"`, labels(33)),
			"a negative order": r.payload(t, `"version":`, `"version":-`),
			"a name twice":     r.payload(t, `"port":`, `"port":1,"port":`),
			"nothing":          `{}`,
		} {
			counted := rejectedBy(t, east, gossip.Malformed)
			r.taken(t, east, message(r.claim(), r.signed(payload), r.own())) // control: the valid record is accepted
			if rejectedBy(t, east, gossip.Malformed) != counted+1 {
				t.Errorf("%s: not counted", name)
			}
		}
	})
	t.Run("answers", func(t *testing.T) {
		var elsewhere atomic.Int32
		for name, h := range map[string]http.HandlerFunc{
			"without end": func(w http.ResponseWriter, req *http.Request) {
				for req.Context().Err() == nil {
					if _, err := io.WriteString(w, zeros); err != nil {
						return
					}
				}
			},
			"never": func(_ http.ResponseWriter, req *http.Request) { <-req.Context().Done() },
			"elsewhere": func(w http.ResponseWriter, req *http.Request) {
				if req.URL.Path != gossiphttp.ExchangePath {
					elsewhere.Add(1)
				}
				http.Redirect(w, req, "http://"+r.facts.Host+":7946/elsewhere", http.StatusTemporaryRedirect)
			},
		} {
			r.forgiven(t, east)
			asked := r.count(&r.asked)
			r.says(h)
			attacktest.Eventually(t, attacktest.Long, name+": the server has sent a request", func() bool { return r.count(&r.asked) >= asked+2 })
			r.says(nil)
		}
		if n := elsewhere.Load(); n > 0 {
			t.Errorf("a redirect was followed %d times", n)
		}
	})
	t.Run("a newer version", func(t *testing.T) {
		payload := r.payload(t, `"software":`, `"colour":{"of":["sky",1,null,true,"\u001b[31m"]},"software":`)
		record := r.signed(payload)
		r.announces(record)
		r.forgiven(t, east)
		text := message(strings.TrimSuffix(r.claim(), "]")+`,"more"]`, record)
		r.taken(t, east, strings.TrimSuffix(text, "}")+`,"future":{"a":[1,null,"x"]}}`)
		probe := newRogue(t, east, "go05b") // a node that others report
		attacktest.Eventually(t, attacktest.Long, "it is relayed as it is", func() bool {
			<-time.After(200 * time.Millisecond) // a peer may send 20 requests a second
			got := probe.learn(t, west)[string(r.id)]
			return got != nil && string(got.Signed.Payload) == payload
		})
		attacktest.Eventually(t, attacktest.Long, "a record with fields of a newer version is accepted", func() bool { return aliveTo(t, east, "go05") && aliveTo(t, west, "go05") })
	})
	// The others keep working, no object was written, and no process has grown.
	attacktest.Eventually(t, attacktest.Long, "the others see each other", func() bool { return aliveTo(t, east, "west") && aliveTo(t, west, "east") })
	if told := toldSince(t, m, gossip.EventConflict, ""); len(told) > 0 {
		t.Errorf("meanwhile: %+v", told)
	}
	idleSince(t, m)
	select {
	case <-east.Access.Done():
		t.Error("the process has ended")
	default:
	}
	if grown := attacktest.ResidentMemory(t, east.Access.PID()) - size; grown > 64<<20 {
		t.Errorf("the process has grown by %d MB", grown>>20)
	}
	refused := func() []audit.Entry { return toldSince(t, m, gossip.EventRefused, string(r.id)) }
	attacktest.Eventually(t, attacktest.Long, "what did not count is in the record, summed", func() bool { return len(refused()) > 0 })
	if e := refused()[0]; e.Args["count"] == "" || len(refused()) > 2+int(time.Since(began)/(20*time.Second)) {
		t.Errorf("recorded: %+v", refused())
	}
}

// labels returns n labels.
func labels(n int) string {
	var all []string
	for i := range n {
		all = append(all, fmt.Sprintf(`"l%d":"x"`, i))
	}
	return strings.Join(all, ",")
}

// GO-06. The server refuses strangers before it reads a byte of their message. A server without gossip opens no port
// for it and runs no goroutine for it.
//
// Guard: access.Decide for GossipExchange, by the tags of gossip.tags; the order of httpapi.(*Server).ServeHTTP;
// runAccess, which checks gossip.enabled.
func TestGO06_UnknownPeers(t *testing.T) {
	east, west := twoClusters(t)
	r := newRogue(t, east, "go06")
	r.introduce(t)
	late := newRogue(t, east, "go06b")
	guest := east.Person(t, "go06-guest", "guest@example.com")
	if id, err := east.Net.ID(guest.Node); err != nil || !east.Net.Share(id) {
		t.Fatal(err)
	}
	attacktest.Eventually(t, attacktest.Long, "the guest is shared in", func() bool {
		return east.Ask(t, guest, "GET", attacktest.API+"/login", "").Code() == problem.ForeignNode
	})
	late.taken(t, east, message(late.claim()))
	read := func() int { return rejectedBy(t, east, gossip.Malformed) } // messages of strangers would increase this counter
	name := strings.TrimPrefix(east.Server(), "https://")
	for _, tt := range []struct {
		name    string
		code    problem.Code
		dial    func(context.Context, string, string) (net.Conn, error)
		headers string
	}{
		{"a person with a grant", problem.NotAMember, east.Alice(t).Node.Dial, ""},
		{"a person without", problem.NotAMember, east.Bob(t).Node.Dial, ""},
		{"another tag", problem.NotAMember, east.Person(t, "ci", "", "tag:ci").Node.Dial, ""},
		{"shared in", problem.ForeignNode, guest.Node.Dial, ""},
		{"Funnel", problem.FunnelRefused, r.node.Dial, "Tailscale-Funnel-Request: ?1\r\n"},
		{"another site", problem.CrossOrigin, r.node.Dial, "Origin: https://evil.example\r\n"},
	} {
		for _, body := range []string{"{}", ""} { // a body that was read would be counted; the server does not even request it
			m, before, strangers := east.Mark(t), read(), rejectedBy(t, east, gossip.Tag)
			a, err := offer(t, tt.dial, name, tt.headers, body)
			if err != nil {
				t.Errorf("%s: %v", tt.name, err)
				continue
			}
			m.Refusal(t, tt.name, tt.code, a)
			if n := read(); n != before {
				t.Errorf("%s: %d messages were read", tt.name, n-before)
			}
			// A browser on a member's machine.
			if n := rejectedBy(t, east, gossip.Tag) - strangers; n != 1 && tt.code != problem.CrossOrigin {
				t.Errorf("%s: counted %d times as no member", tt.name, n)
			}
			idleSince(t, m)
		}
	}
	// A node with an expired key either keeps its connection for a while or is cut off.
	before := read()
	if a := r.tell(t, east, "{}"); a.Code() != problem.BadRequest || read() != before+1 {
		t.Errorf("of a member it is not read, so this shows nothing: %v", a) // control
	}
	if !east.Net.Expire(late.id) {
		t.Fatal("the node is not there")
	}
	late.cut = true
	attacktest.Eventually(t, attacktest.Long, "the expired node is refused", func() bool {
		ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
		defer cancel()
		res, err := late.send(ctx, east, message(late.claim()))
		if err != nil {
			return true
		}
		defer res.Body.Close()
		body, err := io.ReadAll(res.Body) // the connection may be cut in the middle of it
		return err != nil || strings.Contains(string(body), string(problem.NodeExpired))
	})
	if a, err := offer(t, r.node.Dial, name, "", ""); err != nil || a.Status != http.StatusContinue {
		t.Errorf("a member gets no request for its message, so this proves nothing: %v %v", a, err) // control
	}
	t.Run("from a pod", func(t *testing.T) { // a pod reaches the ports that the process opens on the machine's own network
		for _, port := range attacktest.ListeningPorts(t, east.Access.PID()) {
			addr := net.JoinHostPort("127.0.0.1", strconv.Itoa(port))
			conn, err := net.DialTimeout("tcp", addr, 3*time.Second)
			if err != nil {
				continue
			}
			conn.Close()
			before := read()
			if addr == east.ProbeAddress(t, east.Access) {
				if a := attacktest.RawProbe(t, addr, "POST "+gossiphttp.ExchangePath+" HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 2\r\nConnection: close\r\n\r\n{}"); a.Status/100 != 4 {
					t.Errorf("at %s: %v", addr, a)
				}
			}
			if port == 7946 || read() != before {
				t.Errorf("gossip is served at %s", addr)
			}
		}
	})
	t.Run("switched off", func(t *testing.T) {
		quiet := east.StartServer(t, "go06-quiet", attacktest.ServerOptions{Replace: []string{"gossip:\n", "gossip:\n  enabled: false\n"}})
		if err := east.Net.WaitPeer(t.Context(), r.node, quiet.Name); err != nil {
			t.Fatal(err)
		}
		dial := func(to string, patience time.Duration) error {
			ctx, cancel := context.WithTimeout(t.Context(), patience)
			defer cancel()
			c, err := r.node.Dial(ctx, "tcp", net.JoinHostPort(to, "7946"))
			if err == nil {
				c.Close()
			}
			return err
		}
		if err := dial(quiet.Name, 3*time.Second); err == nil {
			t.Error("it has the port")
		}
		if err := dial(name, attacktest.Long); err != nil {
			t.Errorf("the other one: %v", err) // control
		}
		for series := range east.Metrics(t, quiet.Process) {
			if strings.HasPrefix(series, "tailplane_gossip_") {
				t.Errorf("it counts %s", series)
			}
		}
		a := quiet.Ask(t, east.Alice(t), "GET", attacktest.API+"/memberlist?state=all", "")
		switch {
		case a.Status != http.StatusOK:
			t.Errorf("it lists: a.Status = %v, want %v", a.Status, http.StatusOK)
		case strings.Count(a.Body, `"self":`) != 1:
			t.Errorf("it lists: strings.Count(a.Body, `\"self\":`) = %v, want 1", strings.Count(a.Body, `"self":`))
		case !strings.Contains(a.Body, `"self":true`):
			t.Errorf("it lists: a.Body = %q does not contain %q", a.Body, `"self":true`)
		}
		// On SIGQUIT a process prints all its goroutines.
		runs := func(p *testenv.Process) string {
			if err := p.Signal(syscall.SIGQUIT); err != nil {
				t.Fatal(err)
			}
			<-p.Done()
			if !strings.Contains(p.Output(), "goroutine 1 ") {
				t.Fatalf("no output: %.300s", p.Output())
			}
			return p.Output()
		}
		if strings.Contains(runs(quiet.Process), "tailplane/internal/gossip") {
			t.Error("a goroutine of gossip runs")
		}
		second.there = false
		if !strings.Contains(runs(west.Access), "tailplane/internal/gossip") {
			t.Error("west has no goroutine of gossip, so this shows nothing") // control
		}
	})
}

// offer sends a message. Without a body it sends the header of a long message with "Expect: 100-continue". Any other
// answer then shows that the server refused before it read a byte.
func offer(t *testing.T, dial func(context.Context, string, string) (net.Conn, error), host, headers, body string) (attacktest.Answer, error) {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	conn, err := dial(ctx, "tcp", host+":7946")
	if err != nil {
		return attacktest.Answer{}, err
	}
	defer conn.Close()
	conn.SetDeadline(time.Now().Add(time.Minute))
	length := len(body)
	if body == "" {
		length, headers = 60000, headers+"Expect: 100-continue\r\n"
	}
	if _, err := fmt.Fprintf(conn, "POST %s HTTP/1.1\r\nHost: %s:7946\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%s\r\n%s", gossiphttp.ExchangePath, host, length, headers, body); err != nil {
		return attacktest.Answer{}, err
	}
	res, err := http.ReadResponse(bufio.NewReader(conn), nil)
	if err != nil {
		return attacktest.Answer{}, err
	}
	return attacktest.ReadAnswer(t, res), nil
}

// GO-07. A server's own record cannot direct people to a private network, to another node of the tailnet, or beyond
// the server itself. Such a record is refused, counted and not listed.
//
// Guard: gossip.(AllowedEndpoints).Check.
func TestGO07_PointsInside(t *testing.T) {
	east, west := twoClusters(t)
	m, counts := east.Mark(t), map[*attacktest.Env]int{}
	r := newRogue(t, east, "go07", mute)
	other := nodeOf(t, east, "west")
	theirs := r.learn(t, east)[other]
	if theirs == nil {
		t.Fatalf("east has no record of %s", other)
	}
	for _, s := range []*attacktest.Env{east, west} {
		counts[s] = rejectedBy(t, s, gossip.Endpoint)
	}
	refused := func(what string, s *attacktest.Env, f gossip.Facts) {
		t.Helper()
		record, err := r.sealed(f, r.next(), gossip.Up)
		if err != nil {
			t.Fatalf("%s: %v", what, err)
		}
		r.taken(t, s, message(fmt.Sprintf("[%q,1,1,1]", r.id), record))
		counts[s]++
		if n := rejectedBy(t, s, gossip.Endpoint); n < counts[s] {
			t.Errorf("%s is not counted", what)
		} else {
			counts[s] = n
		}
		if c, ok := clusterOf(t, s, "go07"); ok {
			t.Fatalf("%s is listed: %+v", what, c)
		}
	}
	for _, host := range []string{"[::1]", "169.254.169.254", "[fe80::1]", "[fd00:ec2::254]", "10.0.0.1", "172.16.5.5", "192.168.1.1", "100.100.100.100", "0.0.0.0", "[::ffff:10.0.0.1]",
		"[64:ff9b::a00:1]", "[::10.0.0.1]", "[::ffff:0:169.254.169.254]", "[2001:0:102:304::f5ff:fffe]", "[2a00:1450:4001::5efe:7f00:1]", "localhost", "kubernetes", "metadata.google.internal", "0x7f.1", "2130706433", theirs.Host, theirs.IPs[0].String(), strings.TrimPrefix(east.Server(), "https://")} {
		f := r.facts
		f.APIEndpoint, f.APIPort = "https://"+host+":6443", 6443
		refused("apiEndpoint "+host, east, f)
	}
	for what, edit := range map[string]func(*gossip.Facts){
		"http":                            func(f *gossip.Facts) { f.APIEndpoint = "http://k8s.example.com:6443" },
		"userinfo":                        func(f *gossip.Facts) { f.APIEndpoint = "https://k8s.example.com@10.0.0.1:6443" },
		"another port than in the record": func(f *gossip.Facts) { f.APIPort = 443 },
		"the sign-in of another":          func(f *gossip.Facts) { f.URL = theirs.URL },
		"a sign-in outside the tailnet":   func(f *gossip.Facts) { f.URL = "https://tka.evil.example" },
		"another's name":                  func(f *gossip.Facts) { f.Host = theirs.Host },
		"another's address":               func(f *gossip.Facts) { f.IPs = theirs.IPs },
	} {
		f := r.facts
		edit(&f)
		refused(what, east, f)
	}
	f := r.facts
	f.APIEndpoint, f.APIPort = "https://127.0.0.2:6443", 6443
	refused("loopback", west, f)
	// Control: endpoints that the policy lists, and endpoints of the node itself.
	own := r.facts
	own.APIEndpoint = "https://" + r.facts.IPs[0].String() + ":6443"
	for _, tt := range []struct {
		s *attacktest.Env
		f gossip.Facts
	}{{east, f}, {east, own}, {west, own}} {
		r.facts = tt.f
		r.renew(t)
		r.taken(t, tt.s, message(r.claim(), r.own()))
		if c, _ := clusterOf(t, tt.s, "go07"); c.APIEndpoint != tt.f.APIEndpoint || !c.Verified {
			t.Errorf("%s is listed as %+v", tt.f.APIEndpoint, c)
		}
	}
	idleSince(t, m)
	t.Run("an access proxy", proxyOfAnotherCluster)
}

// GO-08. Text that could harm a terminal, a page or a shell is not a valid name or label. No person ever sees it, in
// any form.
//
// Guard: gossip.(*Record).check and read; the page of internal/gossip.
func TestGO08_HostileText(t *testing.T) {
	east, _ := twoClusters(t)
	r := newRogue(t, east, "go08")
	r.introduce(t)
	for _, text := range []string{`\u001b[31mprod`, `<script>alert(1)</script>`, `prod\nadmin: true`, `a: b`, `$(touch x)`, "`touch x`", `\u202eprod`, "pr\u200bod", `'; rm -rf /`, `Prod`, `..`, ``,
		strings.Repeat("a", 3<<10), `{{.}}`, `%s%n`, `\u0000`} {
		records := []gossip.Signed{
			r.signed(r.payload(t, `"name":"go08"`, `"name":"`+text+`"`)),
			r.signed(r.payload(t, `"id":"go08-id"`, `"id":"`+text+`!"`)),
			r.signed(r.payload(t, `"env":"demo"`, `"env":"`+text+`!"`)),
			r.signed(r.payload(t, `"env":"demo"`, `"`+text+`!":"demo"`)),
			r.signed(r.payload(t, `"software":"9.9.9"`, `"software":"`+text+`!"`)),
			r.signed(r.payload(t, `"status":"up"`, `"status":"`+text+`!"`)),
		}
		counted := rejectedBy(t, east, gossip.Malformed)
		r.taken(t, east, message(r.claim(), records...))
		if n := rejectedBy(t, east, gossip.Malformed) - counted; n != len(records) {
			t.Errorf("%q: %d of %d are counted", text, n, len(records))
		}
		switch c, ok := clusterOf(t, east, "go08"); {
		case !ok:
			t.Errorf("ok is false; text = %q, %+v", text, c)
		case c.Software != "9.9.9":
			t.Errorf("c.Software = %q, want %q; text = %q", c.Software, "9.9.9", text)
		case len(c.Labels) != 1:
			t.Errorf("len(c.Labels) = %v, want 1; text = %q", len(c.Labels), text)
		case c.Labels["env"] != "demo":
			t.Errorf(`c.Labels["env"] = %q, want %q; text = %q`, c.Labels["env"], "demo", text)
		}
	}
	// Control: allowed text is shown unchanged in every form.
	r.facts.Labels = map[string]string{"team.example.com/owner": "A_b-c.d"}
	r.renew(t)
	r.taken(t, east, message(r.claim(), r.own()))
	var page attacktest.Answer
	attacktest.Eventually(t, attacktest.Long, "the page shows it", func() bool {
		page = east.Ask(t, east.Alice(t), "GET", attacktest.API+"/memberlist", "", "Accept", "text/html")
		return strings.Contains(page.Body, "A_b-c.d")
	})
	if strings.Contains(strings.ToLower(page.Body), "<script") || !strings.Contains(page.Header.Get("Content-Security-Policy"), "default-src 'none'") {
		t.Errorf("the page: %v %v", page, page.Header)
	}
	for _, form := range []string{"wide", "json", "yaml"} {
		if res := shows(t, east, "A_b-c.d", "clusters", "-o", form); strings.ContainsAny(res.Both, "\x1b\u202e\u200b\x00") {
			t.Errorf("tka clusters -o %s: %q", form, res.Both)
		}
	}
	if strings.ContainsAny(east.Access.Output(), "\x1b\u202e\u200b\x00") {
		t.Error("the log contains the sent data")
	}
}
