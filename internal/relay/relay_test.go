package relay

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http/httptest"
	"net/netip"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/tailplane/tailplane/internal/relay/config"
)

// counts is a Meter that stores its calls.
type counts struct {
	mu   sync.Mutex
	seen map[string]int64
}

func (c *counts) add(key string, n int64) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.seen == nil {
		c.seen = map[string]int64{}
	}
	c.seen[key] += n
}

func (c *counts) get(key string) int64 {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.seen[key]
}

func (c *counts) Connection(direction, protocol, result string) {
	c.add(direction+" "+protocol+" "+result, 1)
}
func (c *counts) Open(n int)                      { c.add("open", int64(n)) }
func (c *counts) Bytes(direction string, n int64) { c.add(direction, n) }
func (c *counts) Dialed(time.Duration)            { c.add("dialed", 1) }
func (c *counts) Drained(time.Duration)           { c.add("drained", 1) }

// env is a relay with loopback sockets. Servers in the test process stand for addresses of the
// tailnet.
type env struct {
	*Relay
	counts counts
	podIP  netip.Addr
	log    bytes.Buffer

	mu      sync.Mutex
	servers map[netip.AddrPort]string // real addresses of the servers in the tailnet
	dialed  []netip.AddrPort
	ports   map[uint16]string // real addresses of the listeners in the cluster
	netmap  *Netmap
}

func (b *env) at(a netip.AddrPort) (string, bool) {
	b.mu.Lock()
	defer b.mu.Unlock()
	b.dialed = append(b.dialed, a)
	s, ok := b.servers[a]
	return s, ok
}

// newEnv returns a bench that does not run yet.
func newEnv(t testing.TB) *env {
	b := &env{podIP: netip.MustParseAddr("127.0.0.1"), servers: map[netip.AddrPort]string{}, ports: map[uint16]string{}, netmap: aNetmap()}
	b.Relay = &Relay{
		PodIPs: []netip.Addr{b.podIP}, Meter: &b.counts, Now: time.Now, Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		ListenPod: func(ctx context.Context, at netip.AddrPort) (net.Listener, error) {
			b.mu.Lock()
			defer b.mu.Unlock()
			if b.ports[at.Port()] == "taken" {
				return nil, errors.New("address already in use")
			}
			ln, err := net.Listen("tcp", "127.0.0.1:0") // tests run in parallel
			if err == nil {
				b.ports[at.Port()] = ln.Addr().String()
			}
			return ln, err
		},
		ListenPodPacket: func(ctx context.Context, at netip.AddrPort) (net.PacketConn, error) {
			pc, err := net.ListenPacket("udp", "127.0.0.1:0")
			if err == nil {
				b.mu.Lock()
				b.ports[at.Port()] = pc.LocalAddr().String()
				b.mu.Unlock()
			}
			return pc, err
		},
		DialTailnet: func(ctx context.Context, network string, to netip.AddrPort) (net.Conn, error) {
			s, ok := b.at(to)
			if !ok {
				return nil, errors.New("connection refused")
			}
			return new(net.Dialer).DialContext(ctx, network, s)
		},
		Netmap: func() (*Netmap, error) { b.mu.Lock(); defer b.mu.Unlock(); return b.netmap, nil },
		Lookup: noLookup,
		ListenTailnet: func(ctx context.Context, vip string, port uint16) (net.Listener, error) {
			ln, err := net.Listen("tcp", "127.0.0.1:0")
			if err == nil {
				b.mu.Lock()
				b.ports[port] = ln.Addr().String()
				b.mu.Unlock()
			}
			return ln, err
		},
		ListenTailnetPacket: func(ctx context.Context, port uint16) (net.PacketConn, error) {
			return nil, errors.New("no UDP here")
		},
		DialCluster: new(net.Dialer).DialContext,
		Ping:        func(context.Context, *url.URL) ([]netip.Addr, error) { return nil, nil },
	}
	return b
}

func (b *env) run(t testing.TB) (stop func()) {
	ctx, cancel := context.WithCancel(context.WithoutCancel(t.Context()))
	done := make(chan struct{})
	go func() { defer close(done); _ = b.Run(ctx) }()
	stop = sync.OnceFunc(func() { cancel(); <-done })
	t.Cleanup(stop)
	return stop
}

// apply sets a configuration and waits until it is applied.
func (b *env) apply(t testing.TB, egress, relay string) config.Status {
	t.Helper()
	data := map[string]string{}
	for key, text := range map[string]string{config.EgressKey: egress, config.RelayKey: relay} {
		if text != "" {
			data[key] = text
		}
	}
	c, err := config.Parse(data)
	if err != nil {
		t.Fatal(err)
	}
	changed := b.Changed()
	b.Configure(c)
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("the configuration was not applied")
	}
	st, _ := b.Status()
	return st
}

func (b *env) port(match uint16) string {
	b.mu.Lock()
	defer b.mu.Unlock()
	return b.ports[match]
}

// server answers every connection with its name and the received data.
func (b *env) server(t testing.TB, at netip.AddrPort, name string) {
	t.Helper()
	ln, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	b.mu.Lock()
	b.servers[at] = ln.Addr().String()
	b.mu.Unlock()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, name+":")
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

func exchange(addr, text string) (string, error) {
	c, err := net.Dial("tcp", addr)
	if err != nil {
		return "", err
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(time.Minute))
	if _, err := io.WriteString(c, text); err != nil {
		return "", err
	}
	if err := c.(*net.TCPConn).CloseWrite(); err != nil {
		return "", err
	}
	b, err := io.ReadAll(c)
	return string(b), err
}

func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(time.Minute); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatal(what)
		}
	}
}

const byName = `{"a.web":{"tailnetTarget":{"fqdn":"web.tail1.ts.net"},"ports":[{"protocol":"tcp","matchPort":10000,"targetPort":80}]}}`

func TestEgress(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	b.server(t, netip.AddrPortFrom(webAddr, 80), "web")
	b.run(t)
	if b.Ready() == nil || b.ServiceReady(t.Context(), "a.web") == nil {
		t.Error("ready before a configuration was applied")
	}
	st := b.apply(t, byName, "")
	switch s := st.Services["a.web"]; {
	case len(s.Ports) != 1:
		t.Errorf("status: len(s.Ports) = %v, want 1", len(s.Ports))
	case len(s.IPs) != 1:
		t.Errorf("status: len(s.IPs) = %v, want 1", len(s.IPs))
	case s.IPs[0] != webAddr:
		t.Errorf("status: s.IPs[0] = %v, want %v", s.IPs[0], webAddr)
	case len(st.Refused) != 0:
		t.Errorf("status: len(st.Refused) = %v, want 0", len(st.Refused))
	}
	if err := errors.Join(b.Ready(), b.ServiceReady(t.Context(), "a.web")); err != nil {
		t.Error(err)
	}
	if got, err := exchange(b.port(10000), "hi"); got != "web:hi" || err != nil {
		t.Errorf("%q %v", got, err)
	}
	eventually(t, "the connection is counted", func() bool {
		return b.counts.get("egress tcp ok") == 1 && b.counts.get("open") == 0 && b.counts.get(Out) == 2 && b.counts.get(In) == 6
	})

	// A removed service ends its connections.
	c, err := net.Dial("tcp", b.port(10000))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
		t.Fatal(err)
	}
	gone := b.port(10000)
	if st := b.apply(t, `{}`, ""); len(st.Services) != 0 {
		t.Errorf("status %+v", st)
	}
	_ = c.SetReadDeadline(time.Now().Add(time.Minute))
	if _, err := c.Read(make([]byte, 1)); err == nil {
		t.Error("the connection stays open")
	}
	if _, err := net.Dial("tcp", gone); err == nil {
		t.Error("the port is still open")
	}
	if err := b.ServiceReady(t.Context(), "a.web"); err == nil {
		t.Error("a removed service is ready")
	}
}

// GTW-21, GW-07: whatever the spelling of a target is, the relay dials only addresses in the
// current netmap.
func TestForbiddenTargets(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	b.Log = slog.New(slog.NewTextHandler(&b.log, nil))
	b.Lookup = func(context.Context, string) ([]netip.Addr, error) {
		return []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("169.254.169.254"), netip.MustParseAddr("100.64.7.7")}, nil
	}
	stop := b.run(t)
	targets := []string{`"ip":"100.64.7.7"`, `"ip":"100.64.0.99"`, `"fqdn":"evil.tail1.ts.net"`, `"fqdn":"trick.tail1.ts.net"`, `"ip":"fd7a:115c:a1e0::77"`}
	refused := []string{`"ip":"127.0.0.1"`, `"ip":"::1"`, `"ip":"::ffff:127.0.0.1"`, `"ip":"::ffff:100.64.0.1"`, `"ip":"169.254.169.254"`, `"ip":"10.96.0.1"`, `"ip":"100.100.100.100"`,
		`"ip":"0.0.0.0"`, `"ip":"fe80::1%eth0"`, `"ip":"fd7a:115c:a1e0:b1a:0:1:7f00:1"`, `"ip":"0177.0.0.1"`, `"ip":"2130706433"`, `"fqdn":"localhost"`, `"fqdn":"127.1"`, `"fqdn":"127.0.0.1."`,
		`"fqdn":"0x7f.1"`, `"fqdn":"[::1].x"`}
	var doc []string
	for i, target := range append(targets, refused...) {
		doc = append(doc, fmt.Sprintf(`"s%02d":{"tailnetTarget":{%s},"ports":[{"protocol":"tcp","matchPort":%d,"targetPort":80}]}`, i, target, 10000+i))
	}
	st := b.apply(t, "{"+strings.Join(doc, ",")+"}", "")
	if len(st.Refused) != len(refused) || len(st.Services) != len(targets) {
		t.Errorf("refused %v", st.Refused)
	}
	for i := range targets {
		if got, _ := exchange(b.port(uint16(10000+i)), "x"); got != "" {
			t.Errorf("%s answered %q", targets[i], got)
		}
	}
	eventually(t, "all are counted", func() bool { return b.counts.get("egress tcp forbidden") == int64(len(targets)) })
	// A target that was in the netmap a moment ago.
	b.apply(t, byName, "")
	b.mu.Lock()
	b.netmap = NewNetmap("tail1.ts.net", nil, nil)
	b.mu.Unlock()
	if got, _ := exchange(b.port(10000), "x"); got != "" {
		t.Errorf("a node that left answered %q", got)
	}
	b.mu.Lock()
	if len(b.dialed) != 0 {
		t.Errorf("dialled: %v", b.dialed)
	}
	b.mu.Unlock()
	stop()
	if !strings.Contains(b.log.String(), "refusing a target") {
		t.Error("nothing was logged")
	}
}

// If one of several targets does not answer, no connection fails.
func TestSeveralTargets(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	now := time.Now()
	b.Now = func() time.Time { return now } // so that the avoidance time of a target does not end on a slow machine
	b.server(t, netip.AddrPortFrom(webAddr, 80), "web")
	b.run(t)
	b.apply(t, `{"s":{"tailnetTarget":{"fqdn":"nobody.tail1.ts.net"},"ports":[{"protocol":"tcp","matchPort":10000,"targetPort":80}]}}`,
		`{"targets":{"s":[{"tags":["tag:web"]}]}}`) // web, and web-2 where nothing listens
	for range 20 {
		if got, err := exchange(b.port(10000), ""); got != "web:" || err != nil {
			t.Fatalf("%q %v", got, err)
		}
	}
	b.mu.Lock()
	tries := 0
	for _, a := range b.dialed {
		if a.Addr() == blueAddr {
			tries++
		}
	}
	delete(b.servers, netip.AddrPortFrom(webAddr, 80))
	b.mu.Unlock()
	if tries > 1 {
		t.Errorf("a target that does not answer got %d attempts in a moment", tries)
	}
	if got, _ := exchange(b.port(10000), ""); got != "" {
		t.Errorf("%q", got)
	}
	if err := b.ServiceReady(t.Context(), "s"); err == nil || !strings.Contains(err.Error(), "do not answer") {
		t.Errorf("no target answers, but: %v", err)
	}
	// A netmap in which every node is offline.
	b.mu.Lock()
	b.netmap = NewNetmap("tail1.ts.net", nil, []Host{{Name: "web.tail1.ts.net", Addrs: []netip.Addr{webAddr}, Tags: []string{"tag:web"}}})
	b.mu.Unlock()
	if err := b.ServiceReady(t.Context(), "s"); err == nil || !strings.Contains(err.Error(), "online") {
		t.Errorf("no target is online, but: %v", err)
	}
}

// The status reports the name of a mapping that cannot be bound. The others run, and the relay
// tries to bind it again.
func TestBindLater(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	b.server(t, netip.AddrPortFrom(webAddr, 80), "web")
	b.ports[10001] = "taken"
	b.run(t)
	both := strings.Replace(byName, "}]}}", `}]},"b.web":{"tailnetTarget":{"ip":"100.64.0.1"},"ports":[{"protocol":"tcp","matchPort":10001,"targetPort":80}]}}`, 1)
	st := b.apply(t, both, "")
	switch {
	case !strings.Contains(st.Refused["b.web"], "in use"):
		t.Errorf(`status: st.Refused["b.web"] = %q does not contain %q`, st.Refused["b.web"], "in use")
	case len(st.Services["b.web"].Ports) != 0:
		t.Errorf(`status: len(st.Services["b.web"].Ports) = %v, want 0`, len(st.Services["b.web"].Ports))
	case len(st.Services["a.web"].Ports) != 1:
		t.Errorf(`status: len(st.Services["a.web"].Ports) = %v, want 1`, len(st.Services["a.web"].Ports))
	}
	switch {
	case b.Ready() == nil:
		t.Error("readiness is not that of each service: b.Ready() is nil, want an error")
	case b.ServiceReady(t.Context(), "b.web") == nil:
		t.Error(`readiness is not that of each service: b.ServiceReady(t.Context(), "b.web") is nil, want an error`)
	case b.ServiceReady(t.Context(), "a.web") != nil:
		t.Error(`readiness is not that of each service: b.ServiceReady(t.Context(), "a.web") is not nil`)
	}
	changed := b.Changed()
	b.mu.Lock()
	delete(b.ports, 10001)
	b.mu.Unlock()
	select {
	case <-changed:
	case <-time.After(time.Minute):
		t.Fatal("it was not tried again")
	}
	if err := b.Ready(); err != nil {
		t.Error(err)
	}
}

// Connections above the limit are refused, and a closed connection makes room for another.
func TestLimit(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	b.server(t, netip.AddrPortFrom(webAddr, 80), "web")
	b.run(t)
	b.apply(t, byName, `{"limits":{"connections":2}}`)
	var open []net.Conn
	for range 2 {
		c, err := net.Dial("tcp", b.port(10000))
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		if _, err := io.ReadFull(c, make([]byte, 4)); err != nil {
			t.Fatal(err)
		}
		open = append(open, c)
	}
	if got, _ := exchange(b.port(10000), ""); got != "" {
		t.Errorf("one too many: %q", got)
	}
	if b.counts.get("egress tcp limit") != 1 {
		t.Errorf("counted %v", b.counts.seen)
	}
	open[0].Close()
	eventually(t, "there is room again", func() bool { got, _ := exchange(b.port(10000), ""); return got == "web:" })
}

func TestFlows(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	server, err := net.ListenPacket("udp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer server.Close()
	b.servers[netip.AddrPortFrom(webAddr, 53)] = server.LocalAddr().String()
	go func() {
		buf := make([]byte, packetBytes)
		for {
			n, from, err := server.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = server.WriteTo(append([]byte("to "+from.String()+" "), buf[:n]...), from)
		}
	}()
	stop := b.run(t)
	b.apply(t, `{"dns":{"tailnetTarget":{"ip":"100.64.0.1"},"ports":[{"protocol":"udp","matchPort":10000,"targetPort":53}]}}`, `{"limits":{"flows":2}}`)
	request := func(c net.Conn, text string) (string, bool) {
		if _, err := io.WriteString(c, text); err != nil {
			t.Fatal(err)
		}
		_ = c.SetReadDeadline(time.Now().Add(300 * time.Millisecond))
		buf := make([]byte, packetBytes)
		n, err := c.Read(buf)
		return string(buf[:n]), err == nil
	}
	dial := func() net.Conn {
		c, err := net.Dial("udp", b.port(10000))
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { c.Close() })
		return c
	}
	var answers []string
	for range 2 {
		c, got := dial(), ""
		eventually(t, "UDP is answered", func() bool { var ok bool; got, ok = request(c, "hello"); return ok })
		if !strings.HasSuffix(got, " hello") {
			t.Errorf("%q", got)
		}
		if again, ok := request(c, "hello"); ok && again != got {
			t.Errorf("another flow for the same address: %q, was %q", again, got)
		}
		answers = append(answers, got)
	}
	if answers[0] == answers[1] {
		t.Error("two addresses share one flow")
	}
	if got, ok := request(dial(), "one too many"); ok {
		t.Errorf("%q", got)
	}
	if b.counts.get("egress udp ok") != 2 || b.counts.get("egress udp limit") != 1 {
		t.Errorf("counted %v", b.counts.seen)
	}
	stop()
	if n := b.flows.Load(); n != 0 {
		t.Errorf("%d flows are left", n)
	}
}

// GTW-23, the relay's part: the backend receives the caller's address.
func TestIngress(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	backend, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer backend.Close()
	heads := make(chan string, 1)
	go func() {
		for {
			c, err := backend.Accept()
			if err != nil {
				return
			}
			buf := make([]byte, 28)
			if _, err := io.ReadFull(c, buf); err == nil {
				from, _, _, _ := readHeader(buf)
				heads <- from.String()
			}
			c.Close()
		}
	}()
	b.run(t)
	doc := fmt.Sprintf(`{"ingress":{"g":{"vip":"svc:g","ports":[{"protocol":"tcp","port":80,"backend":%q}],"proxyProtocol":true,"ready":%%v}}}`, backend.Addr())
	switch st := b.apply(t, "", fmt.Sprintf(doc, false)); {
	case len(st.Exposed["g"].Ports) != 0:
		t.Errorf("without a ready backend nothing is announced, and that is not an error: got %v, want 0", len(st.Exposed["g"].Ports))
	case b.port(80) != "":
		t.Errorf(`without a ready backend nothing is announced, and that is not an error: b.port(80) != ""; %+v, %v`, st, b.Ready())
	case b.Ready() != nil:
		t.Errorf("without a ready backend nothing is announced, and that is not an error: b.Ready() is not nil; %+v, %v", st, b.Ready())
	}
	if st := b.apply(t, "", fmt.Sprintf(doc, true)); len(st.Exposed["g"].Ports) != 1 {
		t.Errorf("status %+v", st)
	}
	c, err := net.Dial("tcp", b.port(80))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	select {
	case from := <-heads:
		if from != c.LocalAddr().String() {
			t.Errorf("the header has %s, the caller is %s", from, c.LocalAddr())
		}
	case <-time.After(time.Minute):
		t.Fatal("no header came")
	}
	b.apply(t, "", fmt.Sprintf(doc, false))
	if c, err := net.Dial("tcp", b.port(80)); err == nil {
		c.Close()
		t.Error("still announced without a backend")
	}
}

// GTW-20: a drain pings each health endpoint until this pod answers none of them, and then waits a
// little. Then it accepts no new connections and waits for the open ones.
func TestDrain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := newEnv(t)
		began := time.Now()
		var pings []time.Duration
		var mu sync.Mutex
		b.Ping = func(_ context.Context, u *url.URL) ([]netip.Addr, error) {
			mu.Lock()
			defer mu.Unlock()
			pings = append(pings, time.Since(began))
			if len(pings) <= 12 && len(pings)%6 == 3 { // kube-proxy still sends one in six here, for two rounds
				return []netip.Addr{b.podIP}, nil
			}
			return []netip.Addr{netip.MustParseAddr("10.0.0.8")}, nil
		}
		c, err := config.Parse(map[string]string{config.PingsKey: "6", config.RelayKey: `{"drainTimeout":"30s"}`, config.EgressKey: strings.Replace(byName, `{"tail`, `{"healthCheckEndpoint":"http://ts-a:9002/healthz","tail`, 1)})
		if err != nil {
			t.Fatal(err)
		}
		b.desired = &c
		rt := &route{name: "a.web"}
		rt.service.Store(&c.Services[0])
		rt.bound.Store(true)
		b.routes.Store(&map[string]*route{"a.web": rt})
		b.status.Store(&config.Status{})
		b.open.Store(1)
		if err := b.Ready(); err != nil {
			t.Fatal(err)
		}
		drained := make(chan error, 1)
		go func() { drained <- b.Drain(t.Context()) }()
		synctest.Wait()
		switch {
		case b.Ready() == nil:
			t.Error("at first it is not ready, but accepts new connections: b.Ready() is nil, want an error")
		case b.ServiceReady(t.Context(), "a.web") == nil:
			t.Error(`at first it is not ready, but accepts new connections: b.ServiceReady(t.Context(), "a.web") is nil, want an error`)
		case b.shut.Load():
			t.Error("at first it is not ready, but accepts new connections: b.shut.Load() is true")
		}
		time.Sleep(2*pingPause + settleTime - time.Millisecond)
		synctest.Wait()
		if len(pings) != 18 || b.shut.Load() {
			t.Errorf("pings at %v; shut %v", pings, b.shut.Load())
		}
		time.Sleep(10 * time.Second)
		synctest.Wait()
		if !b.shut.Load() {
			t.Error("new connections are refused now")
		}
		b.open.Store(0)
		if err := <-drained; err != nil {
			t.Error(err)
		}
		if took := time.Since(began); took > 18*time.Second {
			t.Errorf("it waited %v although nothing is open", took)
		}
		// The following signal waits for no endpoint, and for open connections only until the
		// timeout.
		began = time.Now()
		if err := b.Drain(t.Context()); err != nil || time.Since(began) != 0 {
			t.Errorf("again: %v after %v", err, time.Since(began))
		}
		b.open.Store(1)
		if err := b.Drain(t.Context()); err == nil || time.Since(began) != 30*time.Second {
			t.Errorf("a connection that does not end: %v after %v", err, time.Since(began))
		}
		// The end of the request also ends the drain.
		ctx, cancel := context.WithTimeout(t.Context(), time.Second)
		defer cancel()
		if err := b.Drain(ctx); err == nil {
			t.Error("it continued without a health check request")
		}
	})
}

// The tailnet listeners close when the drain begins, and open connections continue.
func TestDrainWithdraws(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	b.server(t, netip.AddrPortFrom(webAddr, 80), "backend")
	b.run(t)
	b.apply(t, "", fmt.Sprintf(`{"drainTimeout":"1m","ingress":{"g":{"ports":[{"protocol":"tcp","port":80,"backend":%q}],"ready":true}}}`, b.servers[netip.AddrPortFrom(webAddr, 80)]))
	c, err := net.Dial("tcp", b.port(80))
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	if _, err := io.ReadFull(c, make([]byte, len("backend:"))); err != nil {
		t.Fatal(err)
	}
	drained := make(chan error, 1)
	go func() { drained <- b.Drain(context.WithoutCancel(t.Context())) }()
	eventually(t, "it is withdrawn", func() bool {
		c, err := net.Dial("tcp", b.port(80))
		if err == nil {
			c.Close()
		}
		return err != nil
	})
	if _, err := io.WriteString(c, "x"); err != nil {
		t.Error(err)
	}
	if _, err := io.ReadFull(c, make([]byte, 1)); err != nil {
		t.Errorf("an open connection ended: %v", err)
	}
	select {
	case err := <-drained:
		t.Errorf("drained while a connection is open: %v", err)
	default:
	}
	c.Close()
	if err := <-drained; err != nil {
		t.Error(err)
	}
}

func TestHandlers(t *testing.T) {
	t.Parallel()
	b := newEnv(t)
	b.run(t)
	b.apply(t, byName, "")
	alive := error(nil)
	h := b.Handlers(func() error { return alive })
	request := func(pattern, path string) *httptest.ResponseRecorder {
		w, r := httptest.NewRecorder(), httptest.NewRequest("GET", path, nil)
		r.SetPathValue("service", strings.TrimPrefix(path, "/readyz/"))
		h[pattern].ServeHTTP(w, r)
		return w
	}
	switch w := request("GET /healthz", "/healthz"); {
	case w.Code != 200:
		t.Errorf("w.Code = %v, want 200", w.Code)
	case w.Header().Get("Pod-IPv4") != "127.0.0.1":
		t.Errorf(`w.Header().Get("Pod-IPv4") != "127.0.0.1"; %d, %v`, w.Code, w.Header())
	case w.Header().Get("Connection") != "close":
		t.Errorf(`w.Header().Get("Connection") != "close"; %d, %v`, w.Code, w.Header())
	}
	alive = errors.New("no node")
	if w := request("GET /healthz", "/healthz"); w.Code != 503 || w.Header().Get("Pod-IPv4") == "" {
		t.Errorf("%d %v", w.Code, w.Header())
	}
	if w := request("GET /readyz/{service}", "/readyz/a.web"); w.Code != 200 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
	if w := request("GET /readyz/{service}", "/readyz/b.web"); w.Code != 503 {
		t.Errorf("%d %s", w.Code, w.Body)
	}
}
