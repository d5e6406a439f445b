package system

import (
	"bufio"
	"bytes"
	"context"
	"crypto/tls"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/tailplane/tailplane/internal/problem"
	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// waitPending signs p in while the operator is stopped, so the sign-in stays pending. The operator restarts when the
// test ends.
func waitPending(t *testing.T, s *attacktest.Env, p *testenv.Person) {
	t.Helper()
	t.Cleanup(func() { s.Logout(t, p) }) // after the operator has restarted
	const served = `"health is served"`
	before := strings.Count(s.Operator.Output(), served) // one log contains all its runs
	if err := s.Operator.Stop(attacktest.Long); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := s.StartOperator(context.WithoutCancel(t.Context())); err != nil {
			t.Error(err)
		}
		if !attacktest.Within(attacktest.Long, func() bool { return strings.Count(s.Operator.Output(), served) > before }) {
			t.Error("the operator does not answer probes again")
		}
	})
	if _, err := signin.Login.Call(t.Context(), s.APIClient(p), signin.LoginRequest{}); err != nil {
		t.Fatal(err)
	}
}

// An attackedListener is one of the product's listeners, with the way to connect to it.
type attackedListener struct {
	name string
	p    *testenv.Process
	dial func() (net.Conn, error)
	head string // request line and Host of a request that is served
	want int
}

// strainedListeners returns all listeners of the product: the tailnet listener, as alice reaches it, and the probe
// listener of each process.
func strainedListeners(t *testing.T, s *attacktest.Env) []attackedListener {
	t.Helper()
	alice, host := s.Alice(t), "tka."+s.Net.Suffix()
	all := []attackedListener{{"tailnet", s.Access, func() (net.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
		defer cancel()
		raw, err := alice.Node.Dial(ctx, "tcp", host+":443")
		if err != nil {
			return nil, err
		}
		c := tls.Client(raw, &tls.Config{RootCAs: s.Roots, ServerName: host})
		if err := c.HandshakeContext(ctx); err != nil {
			raw.Close()
			return nil, err
		}
		return c, nil
	}, "GET " + attacktest.API + "/cluster-info HTTP/1.1\r\nHost: " + host + "\r\n", http.StatusOK}}
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		at := s.ProbeAddress(t, p)
		all = append(all, attackedListener{"probes of " + p.Args[1], p, func() (net.Conn, error) { return net.DialTimeout("tcp", at, attacktest.Long) },
			"GET /livez HTTP/1.1\r\nHost: localhost\r\n", http.StatusOK})
	}
	return all
}

// say opens a connection, sends raw, and returns the status of the answer. The status is 0 when the server closes the
// connection without an answer.
func (l attackedListener) say(raw string) (int, error) {
	c, err := l.dial()
	if err != nil {
		return 0, err
	}
	defer c.Close()
	if err := c.SetDeadline(time.Now().Add(attacktest.Long)); err != nil {
		return 0, err
	}
	go io.WriteString(c, raw) // the server may answer before it has read everything
	return statusOf(bufio.NewReader(c))
}

// statusOf reads an answer. It returns 0 when the server closes the connection instead.
func statusOf(r *bufio.Reader) (int, error) {
	res, err := http.ReadResponse(r, nil)
	if late, ok := errors.AsType[net.Error](err); ok && late.Timeout() {
		return 0, fmt.Errorf("neither an answer nor the end: %w", err)
	}
	if err != nil {
		return 0, nil
	}
	io.Copy(io.Discard, res.Body) // it may end early
	return res.StatusCode, res.Body.Close()
}

// drip sends raw one byte at a time, and returns the result and the elapsed time.
func (l attackedListener) drip(raw string) (status int, took time.Duration, err error) {
	c, err := l.dial()
	if err != nil {
		return 0, 0, err
	}
	defer c.Close()
	began := time.Now()
	if err := c.SetDeadline(began.Add(attacktest.Long)); err != nil {
		return 0, 0, err
	}
	ended := make(chan struct{})
	go func() {
		tick := time.NewTicker(250 * time.Millisecond)
		defer tick.Stop()
		for i := range len(raw) {
			if _, err := c.Write([]byte{raw[i]}); err != nil {
				return
			}
			select {
			case <-tick.C:
			case <-ended:
				return
			}
		}
	}()
	defer close(ended)
	status, err = statusOf(bufio.NewReader(c))
	return status, time.Since(began), err
}

// DS-02. Limits on every listener cut off slow clients, oversized requests and idle connections, with bounded memory.
// A client that only waits for an answer stays connected.
//
// Guard: the limits of httpapi.(*Server).Run and of health.(*Listener).Run, httpapi.decode's maximum size of a body, and
// httpapi.(*connLimiter).acquire.
func TestDS02_SlowAndHuge(t *testing.T) {
	s := attacktest.Start(t)
	alice, bob := s.Alice(t), s.Bob(t)
	listeners := strainedListeners(t, s)
	host := "tka." + s.Net.Suffix()
	before := map[string]int{}
	for _, l := range listeners {
		before[l.name] = attacktest.ResidentMemory(t, l.p.PID())
	}
	control := func(when string) {
		t.Helper()
		for _, l := range listeners {
			if got, err := l.say(l.head + "Connection: close\r\n\r\n"); err != nil || got != l.want {
				t.Errorf("%s, %s: %d %v", l.name, when, got, err)
			}
		}
		if a := s.Ask(t, bob, "GET", attacktest.API+"/whoami", ""); a.Status != http.StatusOK {
			t.Errorf("%s, bob: %v", when, a)
		}
	}
	control("before")

	var many strings.Builder
	for i := range 10_000 {
		fmt.Fprintf(&many, "X-%d: y\r\n", i)
	}
	for _, l := range listeners {
		for what, raw := range map[string]string{
			"a header of 1 MB":             l.head + "X-A: " + strings.Repeat("a", 1<<20) + "\r\n\r\n",
			"10,000 headers":               l.head + many.String() + "\r\n",
			"a target of 1 MB":             "GET /" + strings.Repeat("a", 1<<20) + " HTTP/1.1\r\nHost: localhost\r\n\r\n",
			"a header without an end":      l.head + strings.Repeat("X-A: b\r\n", 100_000),
			"a header name of 1 MB, alone": l.head + strings.Repeat("X", 1<<20),
		} {
			if got, err := l.say(raw); err != nil || got != 0 && got != http.StatusRequestHeaderFieldsTooLarge && got != http.StatusBadRequest {
				t.Errorf("%s, %s: %d %v, want 431 and the end", l.name, what, got, err)
			} else {
				t.Logf("%s, %s: %d", l.name, what, got)
			}
		}
	}
	m := s.Mark(t)
	post := "POST " + attacktest.API + "/login HTTP/1.1\r\nHost: " + host + "\r\nContent-Type: application/json\r\n"
	big := strings.Repeat(" ", 1<<20)
	for what, raw := range map[string]string{
		"a body of 1 MB":                      post + "Content-Length: 1048578\r\n\r\n{}" + big,
		"a body that pretends to be the peer": post + "Content-Length: 99999999999\r\n\r\n{}" + big,
		"a body of 1 MB, in chunks":           post + "Transfer-Encoding: chunked\r\n\r\n" + strings.Repeat("400\r\n"+big[:1024]+"\r\n", 1024) + "0\r\n\r\n",
	} {
		if got, err := listeners[0].say(raw); err != nil || got != http.StatusRequestEntityTooLarge {
			t.Errorf("%s: %d %v, want 413", what, got, err)
		}
	}
	if asked := m.Writes(t, attacktest.AccessAccount); len(asked) > 0 {
		t.Errorf("huge bodies: requests to the API server: %v", asked)
	}
	control("after the huge ones")

	// Slow clients are cut off, waiting clients are not. The cases run in parallel because they take long. Sign-ins
	// stay pending meanwhile.
	waitPending(t, s, alice)
	slow := listeners[:2] // the operator is stopped, so its listener is left out
	type outcome struct {
		what, want string
		status     int
		took       time.Duration
		err        error
	}
	results := make(chan outcome)
	n := 0
	run := func(what, want string, f func() (int, time.Duration, error)) {
		n++
		go func() {
			status, took, err := f()
			results <- outcome{what, want, status, took, err}
		}()
	}
	for _, l := range slow {
		run(l.name+": slow headers", "0 400 408", func() (int, time.Duration, error) {
			return l.drip(l.head + "X-A: " + strings.Repeat("a", 1000) + "\r\n\r\n")
		})
		run(l.name+": silence", "0 408", func() (int, time.Duration, error) { return l.drip("") })
	}
	run("tailnet: a slow body", "400 408", func() (int, time.Duration, error) {
		c, err := slow[0].dial()
		if err != nil {
			return 0, 0, err
		}
		defer c.Close()
		began := time.Now()
		c.SetDeadline(began.Add(attacktest.Long))
		if _, err := io.WriteString(c, post+"Content-Length: 10000\r\n\r\n{"); err != nil {
			return 0, 0, err
		}
		ended := make(chan struct{})
		defer close(ended)
		go func() {
			tick := time.NewTicker(time.Second)
			defer tick.Stop()
			for {
				select {
				case <-tick.C:
					if _, err := c.Write([]byte{' '}); err != nil {
						return
					}
				case <-ended:
					return
				}
			}
		}()
		status, err := statusOf(bufio.NewReader(c))
		return status, time.Since(began), err
	})
	carol := stranger{s.HTTPClient(alice), s.Server()}
	run("tailnet: one that only waits", "202", func() (int, time.Duration, error) {
		// Longer than the limit for a body, which is 20 seconds.
		a, took, err := carol.ask(t.Context(), "GET", attacktest.API+"/kubeconfig?wait=24s")
		if took < 23*time.Second && err == nil {
			err = fmt.Errorf("answered after %v already", took)
		}
		return a.Status, took, err
	})
	// At the same time, very many idle connections, from another device and to the probes.
	idle := func(dial func() (net.Conn, error), n int) (held, closed int) {
		var conns []net.Conn
		for range n {
			c, err := dial()
			if err != nil {
				break
			}
			conns = append(conns, c)
		}
		for _, c := range conns {
			c.SetReadDeadline(time.Now().Add(time.Millisecond))
			_, err := c.Read(make([]byte, 1))
			if late, ok := errors.AsType[net.Error](err); !ok || !late.Timeout() {
				closed++
			}
		}
		t.Cleanup(func() {
			for _, c := range conns {
				c.Close()
			}
		})
		return len(conns) - closed, closed
	}
	held, closed := idle(func() (net.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
		defer cancel()
		return bob.Node.Dial(ctx, "tcp", host+":443")
	}, 300)
	t.Logf("of bob's 300 idle connections %d are held and %d closed", held, closed)
	if held > 256 {
		t.Errorf("%d connections of one device are held", held)
	}
	held, closed = idle(slow[1].dial, 500)
	t.Logf("of 500 idle connections to the probes %d are held and %d closed", held, closed)
	for _, l := range slow {
		if got, err := l.say(l.head + "Connection: close\r\n\r\n"); err != nil || got != l.want {
			t.Errorf("%s, among idle connections: %d %v", l.name, got, err)
		}
	}
	for range n {
		o := <-results
		if o.err != nil || !slices.Contains(strings.Fields(o.want), strconv.Itoa(o.status)) {
			t.Errorf("%s: %d after %v, %v; want %s", o.what, o.status, o.took, o.err, o.want)
		}
		t.Logf("%s: %d after %v", o.what, o.status, o.took.Round(time.Millisecond))
	}
	for _, l := range slow {
		after := attacktest.ResidentMemory(t, l.p.PID())
		t.Logf("%s had %d MB and has %d", l.name, before[l.name]>>20, after>>20)
		if after > before[l.name]+150<<20 {
			t.Errorf("%s grew from %d to %d MB", l.name, before[l.name]>>20, after>>20)
		}
	}
	attacktest.Eventually(t, attacktest.Long, "the idle connections are closed", func() bool { return s.Ask(t, bob, "GET", attacktest.API+"/whoami", "").Status == http.StatusOK })
}

// DS-03. Probes and metrics are served only on their own listener: not on the tailnet, and not on any other address
// of the machine. No profiler is served anywhere.
//
// Guard: main, which serves health.(*Listener).Handler on no tailnet listener; and that handler, which has three
// paths.
func TestDS03_ProbesOnTheirOwnListener(t *testing.T) {
	s := attacktest.Start(t)
	hidden := []string{"/debug/pprof/", "/debug/pprof/heap", "/debug/pprof/profile?seconds=1", "/debug/pprof/cmdline", "/debug/vars", "/debug/", "/debug/requests",
		"/config", "/configz", "/healthz", "/statusz", "/flagz", "/version", "/api/v1/query", "/"}
	tells := func(body string) bool {
		return strings.Contains(body, "tailplane_build_info") || strings.Contains(body, "goroutine") || strings.Contains(body, "[+]") || body == "ok\n"
	}
	// On the tailnet, by path, for every caller.
	for _, p := range []*testenv.Person{s.Alice(t), s.Bob(t)} {
		for _, path := range slices.Concat(attacktest.ProbePaths, hidden) {
			for _, method := range []string{"GET", "POST"} {
				path, _, _ = strings.Cut(path, "?")
				_, e := s.Refused(t, method+" "+path, problem.NotFound, func() attacktest.Answer { return s.Ask(t, p, method, path, "") })
				if e.Verb != "http.unknown" {
					t.Errorf("%s %s: recorded %+v", method, path, e)
				}
			}
		}
	}
	// On the tailnet, by port. The policy allows every caller to try each port.
	own := map[int]bool{}
	ports := []int{80, 5005, 6060, 7946, 8080, 8443, 9001, 9002, 9090, 10250, 41641}
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		_, port, err := net.SplitHostPort(s.ProbeAddress(t, p))
		if err != nil {
			t.Fatal(err)
		}
		n, err := strconv.Atoi(port)
		if err != nil {
			t.Fatal(err)
		}
		own[n] = true
		ports = append(ports, attacktest.ListeningPorts(t, p.PID())...)
	}
	slices.Sort(ports)
	var mu sync.Mutex
	var wg sync.WaitGroup
	for _, port := range slices.Compact(ports) {
		wg.Go(func() {
			ctx, cancel := context.WithTimeout(t.Context(), 3*time.Second)
			defer cancel()
			c, err := s.Alice(t).Node.Dial(ctx, "tcp", net.JoinHostPort("tka."+s.Net.Suffix(), strconv.Itoa(port)))
			if err != nil {
				return
			}
			defer c.Close()
			// The connection may be accepted and then closed. Only received data matters.
			c.SetDeadline(time.Now().Add(3 * time.Second))
			io.WriteString(c, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
			b, _ := io.ReadAll(io.LimitReader(c, 1<<16))
			mu.Lock()
			defer mu.Unlock()
			if len(b) > 0 && (own[port] || tells(string(b)) || bytes.HasPrefix(b, []byte("HTTP/1.1 200"))) {
				t.Errorf("port %d on the tailnet: %.200q", port, b)
			}
		})
	}
	wg.Wait()
	// On this machine: each port of each process, on each address of the machine.
	addrs, err := net.InterfaceAddrs()
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range []*testenv.Process{s.Access, s.Operator} {
		at := s.ProbeAddress(t, p)
		for _, port := range attacktest.ListeningPorts(t, p.PID()) {
			for _, a := range addrs {
				ip, _, _ := net.ParseCIDR(a.String())
				if ip == nil || ip.IsLinkLocalUnicast() {
					continue
				}
				addr := net.JoinHostPort(ip.String(), strconv.Itoa(port))
				for _, path := range slices.Concat(attacktest.ProbePaths, hidden) {
					conn, err := net.DialTimeout("tcp", addr, 3*time.Second)
					if err != nil {
						break // not open on this address
					}
					patience := 3 * time.Second // some accept a connection that they never answer
					if addr == at {
						patience = attacktest.Long
					}
					conn.SetDeadline(time.Now().Add(patience))
					io.WriteString(conn, "GET "+path+" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n")
					b, _ := io.ReadAll(io.LimitReader(conn, 1<<20))
					conn.Close()
					_, body, _ := strings.Cut(string(b), "\r\n\r\n")
					if addr == at && slices.Contains(attacktest.ProbePaths, path) {
						if !strings.HasPrefix(string(b), "HTTP/1.1 200") || !tells(body) {
							t.Errorf("%s of %s: %.200q", path, p.Args[1], b) // control
						}
						continue
					}
					if strings.HasPrefix(string(b), "HTTP/1.1 200") || tells(body) {
						t.Errorf("%s%s of %s: %.200q", addr, path, p.Args[1], b)
					}
				}
			}
		}
	}
}

// A resourceUsage is the resource usage of a process.
type resourceUsage struct{ goroutines, files, memory int }

func loadOf(t *testing.T, s *attacktest.Env, p *testenv.Process) resourceUsage {
	t.Helper()
	fds, err := filepath.Glob("/proc/" + strconv.Itoa(p.PID()) + "/fd/*")
	if err != nil || len(fds) == 0 {
		t.Skip("SKIP descriptors of a process: /proc does not tell them here")
	}
	return resourceUsage{int(s.Metrics(t, p)["go_goroutines"]), len(fds), attacktest.ResidentMemory(t, p.PID())}
}

func (l resourceUsage) String() string {
	return fmt.Sprintf("%d goroutines, %d descriptors, %d MB", l.goroutines, l.files, l.memory>>20)
}

// DS-04. A thousand clients of each kind disconnect at the worst moment and leave nothing behind. Goroutines, file
// descriptors and memory of the processes return to their earlier values. The slots for waiting requests are free
// again.
//
// Guard: httpapi.(*request).waitFor, which ends when its client disconnects and frees the slot; httpapi.(*connLimiter).release; and
// net/http's background read.
func TestDS04_NothingIsLeftOfThoseWhoLeave(t *testing.T) {
	s := attacktest.Start(t)
	alice, host := s.Alice(t), "tka."+s.Net.Suffix()
	listeners := strainedListeners(t, s)
	raw := func(l attackedListener, open func() (net.Conn, error), say string) {
		t.Helper()
		c, err := open()
		if err != nil {
			t.Fatalf("%s: %v", l.name, err)
		}
		if _, err := io.WriteString(c, say); err != nil {
			t.Logf("%s: %v", l.name, err)
		}
		c.Close()
	}
	tcp := func() (net.Conn, error) {
		ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
		defer cancel()
		return alice.Node.Dial(ctx, "tcp", host+":443")
	}
	inFlight := func() float64 { return s.Metrics(t, s.Access)[`tailplane_requests_in_flight{listener="tailnet"}`] }
	wait := "GET " + attacktest.API + "/kubeconfig?wait=30s HTTP/1.1\r\nHost: " + host + "\r\n\r\n"
	// waiters starts four waiting requests of alice and disconnects them.
	waiters := func(sure bool) {
		t.Helper()
		if sure {
			attacktest.Eventually(t, attacktest.Long, "no request waits", func() bool { return inFlight() == 0 })
		}
		var conns []net.Conn
		for range 4 {
			c, err := listeners[0].dial()
			if err != nil {
				t.Fatal(err)
			}
			defer c.Close()
			if _, err := io.WriteString(c, wait); err != nil {
				t.Fatal(err)
			}
			conns = append(conns, c)
		}
		if sure {
			attacktest.Eventually(t, attacktest.Long, "four wait", func() bool { return inFlight() == 4 })
		}
		for _, c := range conns {
			c.Close()
		}
	}
	upgrades := []string{
		"Connection: Upgrade\r\nUpgrade: websocket\r\nSec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n",
		"Connection: Upgrade\r\nUpgrade: SPDY/3.1\r\n", "Connection: Upgrade, HTTP2-Settings\r\nUpgrade: h2c\r\nHTTP2-Settings: AAMAAABkAAQAAP__\r\n",
	}
	abort := func(l attackedListener, i int) {
		t.Helper()
		plain := l.dial
		if l.name == "tailnet" {
			plain = tcp
		}
		switch i % 8 {
		case 0:
			raw(l, plain, "")
		case 1: // the beginning of a ClientHello
			raw(l, plain, "\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03")
		case 2:
			raw(l, plain, l.head+"\r\n")
		case 3:
			raw(l, l.dial, l.head[:9])
		case 4:
			raw(l, l.dial, l.head+"X-A: b")
		case 5: // answered, but never read
			raw(l, l.dial, strings.Repeat(l.head+"\r\n", 10))
		case 6: // a body that never arrives
			raw(l, l.dial, "POST "+attacktest.API+"/login HTTP/1.1\r\nHost: "+host+"\r\nContent-Type: application/json\r\nContent-Length: 5000\r\n\r\n{")
		default:
			switch got, err := l.say(l.head + upgrades[i/8%3] + "\r\n"); {
			case err != nil:
				t.Errorf("%s: an upgrade is answered: %v", l.name, err)
			case got == http.StatusSwitchingProtocols:
				t.Errorf("%s: an upgrade is answered: got = %v", l.name, got)
			case got == 0:
				t.Errorf("%s: an upgrade is answered: got = %v", l.name, got)
			}
		}
	}
	check := func(l attackedListener, before resourceUsage) {
		t.Helper()
		var after resourceUsage
		if !attacktest.Within(attacktest.Long, func() bool {
			after = loadOf(t, s, l.p)
			return after.goroutines <= before.goroutines+20 && after.files <= before.files+10 && after.memory <= before.memory+64<<20
		}) {
			t.Errorf("%s: had %v, and has %v", l.name, before, after)
		}
		t.Logf("%s: had %v, and has %v", l.name, before, after)
	}
	for _, l := range listeners {
		for i := range 64 { // so that one-time allocations already exist
			abort(l, i)
		}
		before := loadOf(t, s, l.p)
		for i := range 1000 {
			abort(l, i)
		}
		check(l, before)
	}
	waitPending(t, s, alice)
	for range 8 {
		waiters(true)
	}
	before := loadOf(t, s, s.Access)
	for i := range 250 {
		waiters(i%5 == 0)
	}
	check(listeners[0], before)
	waiters(true) // there are as many free slots as before
	if got, err := listeners[0].say(listeners[0].head + "Connection: close\r\n\r\n"); err != nil || got != http.StatusOK {
		t.Errorf("alice: %d %v", got, err)
	}
}
