//go:build linux

package gateway

import (
	"context"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tailscale.com/tsnet"
)

// rolled is a group of two relays, and a service that a pod reaches through it.
const rolled = `apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleProxyGroup
metadata: {name: web, namespace: tailscale-gateway-system}
spec: {type: egress, replicas: 2, tailnetRef: {name: corp}, consumers: {from: All}, drainTimeout: 60s}
---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleService
metadata: {name: web, namespace: infra}
spec: {tailnetRef: {name: corp}, proxyGroupRef: {name: web, namespace: tailscale-gateway-system}, target: {fqdn: web-1.SUFFIX}, ports: [{name: tcp, port: 80}]}
`

// longTransfer is longer than the rest of a relay's drain, and shorter than drainTimeout.
const longTransfer = 15 * time.Second

// A rolling is that group during its rolling restart.
type rolling struct {
	*installed
	address string // of the Service in front of the relays
}

// GTW-20: the group's controller, the StatefulSet controller and the pod runner restart a group under constant load
// through its Service. No connection is refused or cut while it is open for less than drainTimeout. Each relay that
// stops checks its Service with replicas*3 requests at once. The nodes stay the same and need no new key.
func TestGTW20_RollingRestart(t *testing.T) {
	needsNamespaces(t)
	r := startRolling(t)
	nodes, pods := r.devices(t), r.pods(t)
	health := net.JoinHostPort(r.address, "9002")
	l := r.load(t)
	await(t, "constant load", func() bool { return l.carried.Load() > 50 && l.open.Load() == 3 })

	before, pinged := l.carried.Load(), r.services.reached(health)
	began := time.Now()
	kubectl(t, r.Cluster, "-n", ourNamespace, "patch", "tspg", "web", "--type=merge", "-p", `{"spec":{"podAnnotations":{"test/rolled":"once"}}}`)
	await(t, "both pods are replaced", func() bool {
		now := r.pods(t)
		return len(now) == 2 && !slices.ContainsFunc(now, func(uid string) bool { return slices.Contains(pods, uid) })
	})
	kubectl(t, r.Cluster, "-n", ourNamespace, "wait", "--for=condition=Ready", "tspg/web", "--timeout=200s")
	kubectl(t, r.Cluster, "-n", "infra", "wait", "--for=condition=Ready", "tssvc/web", "--timeout=200s")
	t.Logf("two relays were rolled in %v: %d connections were served in the meantime", time.Since(began).Round(time.Second), l.carried.Load()-before)
	if long := l.long.Load(); long == 0 {
		t.Error("no long transfer has ended: the test is not conclusive")
	}
	for _, err := range l.stop() {
		t.Error(err)
	}
	if n := r.services.reached(health) - pinged; n < 12 || n%6 != 0 {
		t.Errorf("%d pings of two relays of two", n)
	}
	if n := kubectl(t, r.Cluster, "-n", ourNamespace, "get", "configmap", "web-egress-config", "-o", "jsonpath={.data.hep-pings}"); n != "6" {
		t.Errorf("the relays are configured to send %s pings", n)
	}
	if now := r.devices(t); !slices.Equal(now, nodes) {
		t.Errorf("the devices were %v, now they are %v", nodes, now)
	}
}

// startRolling starts the environment and returns when the Service has both relays as endpoints.
func startRolling(t *testing.T) *rolling {
	t.Helper()
	i := install(t, "rolling", netip.MustParseAddr("10.244.2.1"))
	r := &rolling{installed: i}
	web := i.net.Node("web-1", "", "tag:web")
	if err := i.net.Ready(within(t), web); err != nil {
		t.Fatal(err)
	}
	echoOn(t, web)
	i.apply(t, rolled)
	var service, name string
	await(t, "a Service that leads to relays", func() bool {
		service = kubectl(t, r.Cluster, "-n", "infra", "get", "tssvc", "web", "-o", "jsonpath={.status.egress.service}")
		_, name, _ = strings.Cut(service, "/")
		return name != "" && kubectl(t, r.Cluster, "-n", "infra", "get", "tssvc", "web", "-o", "jsonpath={.status.egress.endpoints.ready}") == "2"
	})
	r.address = kubectl(t, r.Cluster, "-n", ourNamespace, "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	resolve(t, map[string][]string{name + "." + ourNamespace + ".svc.cluster.local.": {r.address}})
	await(t, "a connection by way of the Service", func() bool { return transfer(net.JoinHostPort(r.address, "80"), 0) == nil })
	return r
}

// pods returns the UIDs of the existing pods.
func (r *rolling) pods(t testing.TB) []string {
	t.Helper()
	return strings.Fields(kubectl(t, r.Cluster, "-n", ourNamespace, "get", "pods", "-o", `jsonpath={range .items[*]}{.metadata.uid}{" "}{end}`))
}

// devices returns the group's devices by ordinal.
func (r *rolling) devices(t testing.TB) []string {
	t.Helper()
	return strings.Fields(kubectl(t, r.Cluster, "-n", ourNamespace, "get", "tspg", "web", "-o", `jsonpath={range .status.devices[*]}{.ordinal}={.nodeID}{" "}{end}`))
}

// echoOn greets each connection to a node's port 80 and echoes its data.
func echoOn(t testing.TB, node *tsnet.Server) {
	t.Helper()
	ln, err := node.Listen("tcp", ":80")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ln.Close() })
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() {
				defer c.Close()
				_, _ = io.WriteString(c, "hello ")
				_, _ = io.Copy(c, c)
			}()
		}
	}()
}

// A load opens connections continuously.
type load struct {
	carried, long, open atomic.Int64
	failed              chan error
	end                 context.CancelFunc
	wg                  sync.WaitGroup
}

// load opens short and long connections one after another until it is stopped.
func (r *rolling) load(t testing.TB) *load {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	l := &load{failed: make(chan error, 1000), end: cancel}
	t.Cleanup(func() { l.stop() })
	at := net.JoinHostPort(r.address, "80")
	worker := func(each time.Duration, done *atomic.Int64) {
		l.wg.Go(func() {
			for n := 0; ctx.Err() == nil; n++ {
				if each == longTransfer {
					l.open.Add(1)
				}
				if err := transfer(at, each); err != nil {
					select {
					case l.failed <- fmt.Errorf("connection %d of %v: %w", n, each, err):
					default:
					}
				}
				if each == longTransfer {
					l.open.Add(-1)
				}
				done.Add(1)
			}
		})
	}
	for range 4 {
		worker(100*time.Millisecond, &l.carried)
	}
	for range 3 {
		worker(longTransfer, &l.long)
	}
	return l
}

// stop ends the load and returns the errors of lost connections. It may be called again.
func (l *load) stop() (lost []error) {
	l.end()
	l.wg.Wait()
	for {
		select {
		case err := <-l.failed:
			lost = append(lost, err)
		default:
			return lost
		}
	}
}

// transfer opens one connection, sends data on it during the given time, and closes it.
func transfer(at string, during time.Duration) error {
	began := time.Now()
	c, err := net.DialTimeout("tcp", at, time.Minute)
	if err != nil {
		return err
	}
	defer c.Close()
	read := func(want string) error {
		b := make([]byte, len(want))
		_ = c.SetDeadline(time.Now().Add(time.Minute))
		if _, err := io.ReadFull(c, b); err != nil || string(b) != want {
			return fmt.Errorf("after %v: %q, not %q: %w", time.Since(began).Round(time.Millisecond), b, want, err)
		}
		return nil
	}
	if err := read("hello "); err != nil {
		return err
	}
	for n := 0; ; n++ {
		text := fmt.Sprintf("%d ", n)
		if _, err := io.WriteString(c, text); err != nil {
			return err
		}
		if err := read(text); err != nil {
			return err
		}
		if time.Since(began) >= during {
			return nil
		}
		time.Sleep(50 * time.Millisecond) // keeps the connection open for a while
	}
}
