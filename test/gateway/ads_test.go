//go:build linux

package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	hcmv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/filters/network/http_connection_manager/v3"
	discoveryv3 "github.com/envoyproxy/go-control-plane/envoy/service/discovery/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials"
	"google.golang.org/protobuf/proto"
)

// ads reads the configuration that Envoy Gateway serves to a proxy, in the same way as a proxy: delta ADS over mTLS.
// It validates every resource.
type ads struct {
	mu        sync.Mutex
	clusters  map[string]*clusterv3.Cluster
	listeners map[string]*listenerv3.Listener
	routes    map[string]*routev3.RouteConfiguration
	invalid   []error
	versions  int // number of answers so far
	err       error
}

const prefix = "type.googleapis.com/envoy.config."

const (
	clusterType  = prefix + "cluster.v3.Cluster"
	listenerType = prefix + "listener.v3.Listener"
	routeType    = prefix + "route.v3.RouteConfiguration"
)

// readADS reads the configuration of a gateway ("namespace/name") until the test ends. certs is the folder of a
// proxy's certificates.
func readADS(t testing.TB, certs, gateway string) *ads {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(certs, "tls.crt"), filepath.Join(certs, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	pem, err := os.ReadFile(filepath.Join(certs, "ca.crt"))
	if err != nil {
		t.Fatal(err)
	}
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(pem)
	cc, err := grpc.NewClient("127.0.0.1:18000", grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(256<<20)), grpc.WithTransportCredentials(credentials.NewTLS(&tls.Config{
		RootCAs: roots, Certificates: []tls.Certificate{pair}, ServerName: "envoy-gateway", MinVersion: tls.VersionTLS13,
	})))
	if err != nil {
		t.Fatal(err)
	}
	x := &ads{clusters: map[string]*clusterv3.Cluster{}, listeners: map[string]*listenerv3.Listener{}, routes: map[string]*routev3.RouteConfiguration{}}
	ctx, cancel := context.WithCancel(context.Background())
	var wg sync.WaitGroup
	wg.Go(func() {
		for ctx.Err() == nil { // Envoy Gateway may not listen yet, and may restart
			err := x.follow(ctx, cc, gateway)
			x.mu.Lock()
			x.err = err
			x.mu.Unlock()
			select {
			case <-ctx.Done():
			case <-time.After(100 * time.Millisecond):
			}
		}
	})
	t.Cleanup(func() {
		cancel()
		wg.Wait()
		cc.Close()
		if t.Failed() {
			t.Logf("served: %v, %v", slices.Sorted(maps.Keys(x.clusters)), x.routes)
		}
		for _, err := range x.invalid {
			t.Errorf("Envoy Gateway served something invalid: %v", err)
		}
	})
	return x
}

func (x *ads) follow(ctx context.Context, cc *grpc.ClientConn, gateway string) error {
	stream, err := discoveryv3.NewAggregatedDiscoveryServiceClient(cc).DeltaAggregatedResources(ctx, grpc.WaitForReady(true))
	if err != nil {
		return err
	}
	node := &corev3.Node{Id: fmt.Sprintf("reader-%d", time.Now().UnixNano()), Cluster: gateway}
	send := func(kind, nonce string, names ...string) error {
		return stream.Send(&discoveryv3.DeltaDiscoveryRequest{Node: node, TypeUrl: kind, ResponseNonce: nonce, ResourceNamesSubscribe: names})
	}
	if err := errors.Join(send(clusterType, ""), send(listenerType, "")); err != nil {
		return err
	}
	var subscribed []string
	for {
		r, err := stream.Recv()
		if err != nil {
			return err
		}
		more := x.take(r)
		if err := send(r.TypeUrl, r.Nonce); err != nil {
			return err
		}
		more = slices.DeleteFunc(more, func(n string) bool { return slices.Contains(subscribed, n) })
		if len(more) > 0 {
			subscribed = append(subscribed, more...)
			if err := send(routeType, "", more...); err != nil {
				return err
			}
		}
	}
}

// take stores the content of one answer. It returns the names of the route configurations that the listeners use.
func (x *ads) take(r *discoveryv3.DeltaDiscoveryResponse) (routes []string) {
	x.mu.Lock()
	defer x.mu.Unlock()
	x.versions++
	for _, name := range r.RemovedResources {
		switch r.TypeUrl {
		case clusterType:
			delete(x.clusters, name)
		case listenerType:
			delete(x.listeners, name)
		case routeType:
			delete(x.routes, name)
		}
	}
	for _, resource := range r.Resources {
		m, err := resource.Resource.UnmarshalNew()
		if err != nil {
			x.invalid = append(x.invalid, err)
			continue
		}
		if v, ok := m.(interface{ ValidateAll() error }); ok {
			if err := v.ValidateAll(); err != nil {
				x.invalid = append(x.invalid, err)
			}
		}
		switch m := m.(type) {
		case *clusterv3.Cluster:
			x.clusters[m.Name] = m
		case *routev3.RouteConfiguration:
			x.routes[m.Name] = m
		case *listenerv3.Listener:
			x.listeners[m.Name] = m
			for _, h := range managers(m) {
				if name := h.GetRds().GetRouteConfigName(); name != "" {
					routes = append(routes, name)
				}
			}
		}
	}
	return routes
}

// managers returns the HTTP connection managers of a listener.
func managers(l *listenerv3.Listener) (all []*hcmv3.HttpConnectionManager) {
	chains := l.FilterChains
	if l.DefaultFilterChain != nil {
		chains = append(slices.Clone(chains), l.DefaultFilterChain)
	}
	for _, c := range chains {
		for _, f := range c.Filters {
			m := new(hcmv3.HttpConnectionManager)
			if f.GetTypedConfig().MessageIs(m) && f.GetTypedConfig().UnmarshalTo(m) == nil {
				all = append(all, m)
			}
		}
	}
	return all
}

// cluster returns a copy of a cluster, or nil.
func (x *ads) cluster(name string) *clusterv3.Cluster {
	x.mu.Lock()
	defer x.mu.Unlock()
	if c := x.clusters[name]; c != nil {
		return proto.CloneOf(c)
	}
	return nil
}

// hosts returns copies of all virtual hosts.
func (x *ads) hosts() (all []*routev3.VirtualHost) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, rc := range x.routes {
		for _, vh := range rc.VirtualHosts {
			all = append(all, proto.CloneOf(vh))
		}
	}
	return all
}

// route returns a copy of the first route with that name, or nil.
func (x *ads) route(name string) *routev3.Route {
	for _, vh := range x.hosts() {
		for _, r := range vh.Routes {
			if r.Name == name {
				return r
			}
		}
	}
	return nil
}

// managers returns the HTTP connection managers of all listeners except Envoy Gateway's own.
func (x *ads) managers() (all []*hcmv3.HttpConnectionManager) {
	x.mu.Lock()
	defer x.mu.Unlock()
	for name, l := range x.listeners {
		if !strings.HasPrefix(name, "envoy-gateway-proxy-ready-") {
			all = append(all, managers(l)...)
		}
	}
	return all
}

// hasListenerFilter reports whether a listener has a filter of that name.
func (x *ads) hasListenerFilter(name string) bool {
	x.mu.Lock()
	defer x.mu.Unlock()
	for _, l := range x.listeners {
		if slices.ContainsFunc(l.ListenerFilters, func(f *listenerv3.ListenerFilter) bool { return f.Name == name }) {
			return true
		}
	}
	return false
}
