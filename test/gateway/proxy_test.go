//go:build linux

package gateway

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math/rand/v2"
	"net"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// A serviceProxy replaces kube-proxy for TCP: a connection to the address of a Service goes to one of its ready
// endpoints. Addresses of Services are local in the suite's network namespace.
type serviceProxy struct {
	c *kubetest.Cluster

	mu   sync.Mutex
	to   map[string][]string // endpoints by address and port of a Service
	open map[string]net.Listener
	met  map[string]int // number of connections by address and port of a Service
}

// reached returns the number of connections to a port of a Service.
func (p *serviceProxy) reached(at string) int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.met[at]
}

// startServiceProxy starts a proxy that stops with the test.
func startServiceProxy(t testing.TB, c *kubetest.Cluster) *serviceProxy {
	t.Helper()
	p := &serviceProxy{c: c, to: map[string][]string{}, open: map[string]net.Listener{}, met: map[string]int{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		tick := time.NewTicker(500 * time.Millisecond)
		defer tick.Stop()
		for ctx.Err() == nil {
			if err := p.look(ctx, &wg); err != nil && ctx.Err() == nil {
				t.Log("service proxy:", err)
			}
			select {
			case <-tick.C:
			case <-ctx.Done():
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		p.mu.Lock()
		for _, ln := range p.open {
			ln.Close()
		}
		p.mu.Unlock()
		wg.Wait()
	})
	return p
}

func (p *serviceProxy) look(ctx context.Context, wg *sync.WaitGroup) error {
	var services corev1.ServiceList
	var endpoints discoveryv1.EndpointSliceList
	for kind, into := range map[string]any{"services": &services, "endpointslices": &endpoints} {
		out, errs, code := kubetest.Kubectl(ctx, p.c.Kubeconfig, "get", kind, "-A", "-o", "json")
		if code != 0 {
			return fmt.Errorf("%s", errs)
		}
		if err := json.Unmarshal([]byte(out), into); err != nil {
			return err
		}
	}
	to := map[string][]string{}
	for _, s := range services.Items {
		if net.ParseIP(s.Spec.ClusterIP) == nil || s.Name == "kubernetes" || s.Namespace == egNamespace {
			continue // Envoy listens on every address, including that of its Service
		}
		for _, port := range s.Spec.Ports {
			if port.Protocol != corev1.ProtocolTCP {
				continue
			}
			at := net.JoinHostPort(s.Spec.ClusterIP, fmt.Sprint(port.Port))
			to[at] = nil
			for _, slice := range endpoints.Items {
				if slice.Namespace == s.Namespace && slice.Labels[discoveryv1.LabelServiceName] == s.Name {
					to[at] = append(to[at], readyAt(slice, port.Name)...)
				}
			}
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.to = to
	for at := range to {
		if p.open[at] == nil {
			ln, err := new(net.ListenConfig).Listen(ctx, "tcp", at)
			if err != nil {
				return err
			}
			p.open[at] = ln
			wg.Go(func() { p.serve(ln, at) })
		}
	}
	for at, ln := range maps.Clone(p.open) {
		if _, is := to[at]; !is {
			ln.Close()
			delete(p.open, at)
		}
	}
	return nil
}

// readyAt returns the addresses of a slice's endpoints that accept connections.
func readyAt(slice discoveryv1.EndpointSlice, port string) (list []string) {
	for _, q := range slice.Ports {
		if q.Name == nil || *q.Name != port || q.Port == nil {
			continue
		}
		for _, e := range slice.Endpoints {
			if e.Conditions.Ready == nil || *e.Conditions.Ready {
				list = append(list, net.JoinHostPort(e.Addresses[0], fmt.Sprint(*q.Port)))
			}
		}
	}
	return list
}

func (p *serviceProxy) serve(ln net.Listener, at string) {
	for {
		a, err := ln.Accept()
		if err != nil {
			return
		}
		p.mu.Lock()
		to := p.to[at]
		p.met[at]++
		p.mu.Unlock()
		if len(to) == 0 {
			_ = a.(*net.TCPConn).SetLinger(0) // resets the connection, like a refusal
			a.Close()
			continue
		}
		go func() {
			defer a.Close()
			b, err := net.DialTimeout("tcp", to[rand.IntN(len(to))], 10*time.Second)
			if err != nil {
				return
			}
			defer b.Close()
			go func() {
				_, _ = io.Copy(b, a)
				_ = b.(*net.TCPConn).CloseWrite()
			}()
			_, _ = io.Copy(a, b)
		}()
	}
}
