package relay

import (
	"bufio"
	"context"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// BenchmarkRelay measures the limits of GTW-38 for a relay. It measures a stream and a round trip through the relay
// and directly from a node, in turns within one run. It also measures the memory of an idle connection, and how soon
// a relay and a change take effect.
func BenchmarkRelay(b *testing.B) {
	for b.Loop() { // the reported numbers come from many runs, not from this loop
	}
	c := kubetest.Start(b)
	tn := tailnettest.Start(b, policy)
	g := newGroup(b, c, tn, "bench", "egress", 1)
	g.Profiles = true
	web, near := tn.Node("web-1", "", "tag:svc-web"), tn.Node("near", "", "tag:relay")
	if err := tn.Ready(within(b), web, near); err != nil {
		b.Fatal(err)
	}
	sink(b, web.Listen)
	at, _ := web.TailscaleIPs()
	services := func(ports ...any) map[string]any {
		return map[string]any{"shop.web": target("web-1.tiny.ts.net", ports...)}
	}
	g.configure(b, services("TCP", 10000, 80), nil)
	began := time.Now()
	r := g.start(b, 0, "127.77.0.60", "uid-1")
	if err := r.AwaitReady(within(b), "/readyz/shop.web"); err != nil {
		b.Fatal(err)
	}
	testenv.Budget("relay: start to ready", time.Since(began).Seconds(), 2, true, "s")

	straight := func() (net.Conn, error) {
		return near.Dial(within(b), "tcp", netip.AddrPortFrom(at, 80).String())
	}
	through := func() (net.Conn, error) {
		return new(net.Dialer).DialContext(within(b), "tcp", "127.77.0.60:10000")
	}
	bare := bareProxy(b, "127.77.0.61:0", straight)
	plainly := func() (net.Conn, error) {
		return new(net.Dialer).DialContext(within(b), "tcp", bare)
	}
	const idle = 1000
	was, conns := heap(b), []net.Conn{}
	for range idle {
		conn, err := through()
		if err != nil {
			b.Fatal(err)
		}
		conns = append(conns, conn)
		if _, err := io.WriteString(conn, "x"); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(conn, make([]byte, 1)); err != nil {
			b.Fatal(err)
		}
	}
	testenv.Budget("relay: heap of an idle connection", float64(heap(b)-was)/idle/1024, 64, true, "KiB")
	for _, conn := range conns {
		conn.Close()
	}
	eventually(b, "all connections have ended", func() error {
		if _, says, _, err := r.Ask(within(b), "/metrics"); err != nil || !strings.Contains(says, "\ntailplane_relay_open_connections 0\n") {
			return fmt.Errorf("some are open: %v", err)
		}
		return nil
	})

	var shares, bares []float64
	var direct, relayed, copied []time.Duration
	for range 5 {
		d, v, p := stream(b, straight), stream(b, through), stream(b, plainly)
		shares, bares = append(shares, d.Seconds()/v.Seconds()), append(bares, d.Seconds()/p.Seconds())
		direct, relayed, copied = append(direct, trips(b, straight)...), append(relayed, trips(b, through)...), append(copied, trips(b, plainly)...)
	}
	slices.Sort(shares)
	slices.Sort(bares)
	testenv.Budget("relay: one stream, of a node's", shares[len(shares)/2], 0.85, false, "")
	added := median(relayed) - median(direct)
	testenv.Budget("relay: added to a round trip, p50", float64(added.Microseconds())/1000, 0.2, true, "ms")
	fmt.Printf("    a round trip: %v straight, %v through, %v by a bare copy; shares %.2f, a bare copy's %.2f\n", median(direct), median(relayed), median(copied), shares, bares)

	began = time.Now()
	g.configure(b, services("TCP", 10000, 80, "TCP", 10001, 80), nil)
	eventually(b, "the new mapping is bound", func() error {
		conn, err := net.Dial("tcp", "127.77.0.60:10001")
		if err == nil {
			conn.Close()
		}
		return err
	})
	testenv.Budget("relay: a change to bound", time.Since(began).Seconds(), 1, true, "s")
}

// bareProxy is the minimal cost of any relay: it dials like the measuring side, in the same process, and copies.
func bareProxy(b *testing.B, at string, dial func() (net.Conn, error)) string {
	b.Helper()
	ln, err := net.Listen("tcp", at)
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				far, err := dial()
				if err != nil {
					return
				}
				defer far.Close()
				go func() { _, _ = io.Copy(c, far) }()
				_, _ = io.Copy(far, c)
			}()
		}
	}()
	return ln.Addr().String()
}

const streamSize = 64 << 20

// sink answers each byte with one byte until it reads a line "stream". It then counts the received bytes and answers
// "done".
func sink(b *testing.B, listen func(network, addr string) (net.Listener, error)) {
	b.Helper()
	ln, err := listen("tcp", ":80")
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				one := make([]byte, 1)
				for {
					if _, err := io.ReadFull(c, one); err != nil {
						return
					}
					if one[0] == 's' {
						_, _ = io.CopyN(io.Discard, c, streamSize)
					}
					if _, err := c.Write(one); err != nil {
						return
					}
				}
			}()
		}
	}()
}

// stream returns how long the complete transfer of one stream takes.
func stream(b *testing.B, dial func() (net.Conn, error)) time.Duration {
	b.Helper()
	c, err := dial()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	began := time.Now()
	if _, err := io.WriteString(c, "s"); err != nil {
		b.Fatal(err)
	}
	chunk := make([]byte, 256<<10)
	for range streamSize / len(chunk) {
		if _, err := c.Write(chunk); err != nil {
			b.Fatal(err)
		}
	}
	if _, err := io.ReadFull(c, chunk[:1]); err != nil {
		b.Fatal(err)
	}
	return time.Since(began)
}

// trips returns the round-trip times of single bytes on one connection.
func trips(b *testing.B, dial func() (net.Conn, error)) (took []time.Duration) {
	b.Helper()
	c, err := dial()
	if err != nil {
		b.Fatal(err)
	}
	defer c.Close()
	one := []byte("x")
	for range 400 {
		began := time.Now()
		if _, err := c.Write(one); err != nil {
			b.Fatal(err)
		}
		if _, err := io.ReadFull(c, one); err != nil {
			b.Fatal(err)
		}
		took = append(took, time.Since(began))
	}
	return took
}

func median(took []time.Duration) time.Duration {
	slices.Sort(took)
	return took[len(took)/2]
}

// heap returns the relay's Go heap in use, in bytes.
func heap(b *testing.B) int64 {
	b.Helper()
	ctx, cancel := context.WithTimeout(b.Context(), time.Minute)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.77.0.60:9001/debug/pprof/heap?debug=1", nil)
	if err != nil {
		b.Fatal(err)
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		b.Fatal(err)
	}
	defer res.Body.Close()
	// The runtime prints the line "# HeapInuse = N" at the end of a text profile.
	for s := bufio.NewScanner(res.Body); s.Scan(); {
		if text, ok := strings.CutPrefix(s.Text(), "# HeapInuse = "); ok {
			n, err := strconv.ParseInt(text, 10, 64)
			if err != nil {
				b.Fatal(err)
			}
			return n
		}
	}
	b.Fatal("the profile has no heap in use")
	return 0
}
