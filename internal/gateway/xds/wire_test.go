package xds

import (
	"context"
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/tls"
	"crypto/x509"
	"crypto/x509/pkix"
	"encoding/pem"
	"math/big"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/envoyproxy/gateway/proto/extension"
	clusterv3 "github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	endpointv3 "github.com/envoyproxy/go-control-plane/envoy/config/endpoint/v3"
	listenerv3 "github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	tlsv3 "github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/credentials"
	"google.golang.org/grpc/credentials/insecure"
	"google.golang.org/grpc/health/grpc_health_v1"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"
)

const testTimeout = 60 * time.Second

// serve runs the server until the test ends.
func serve(t *testing.T, s *Server, at Address, config *tls.Config) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx, at, config) }()
	t.Cleanup(func() {
		cancel()
		if err := <-done; err != nil {
			t.Error(err)
		}
	})
}

func dial(t *testing.T, at Address, transport credentials.TransportCredentials) *grpc.ClientConn {
	t.Helper()
	target := at.Addr
	if at.Network == "unix" {
		target = "unix://" + at.Addr
	}
	cc, err := grpc.NewClient(target, grpc.WithTransportCredentials(transport), grpc.WithDefaultCallOptions(grpc.MaxCallRecvMsgSize(64<<20), grpc.MaxCallSendMsgSize(64<<20)))
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { cc.Close() })
	return cc
}

// GTW-29, and rows 1 and 8 of the list of forbidden outcomes: Envoy Gateway's own client can make
// all six calls and call the health service. Each answer contains the resources of the request and
// the additions of Tailplane.
func TestGTW29_WireOfAllSixCalls(t *testing.T) {
	s, calls := newServer(t, nil)
	at := Address{"unix", filepath.Join(t.TempDir(), "x.sock")}
	serve(t, s, at, nil)
	if _, err := os.Stat(at.Addr); err == nil {
		t.Error("the socket is open before the first snapshot")
	}
	s.Publish(fullSnapshot())
	cc := dial(t, at, insecure.NewCredentials())
	client := extension.NewEnvoyGatewayExtensionClient(cc)
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	wait := grpc.WaitForReady(true) // as Envoy Gateway does

	h, err := grpc_health_v1.NewHealthClient(cc).Check(ctx, &grpc_health_v1.HealthCheckRequest{}, wait)
	if err != nil || h.Status != grpc_health_v1.HealthCheckResponse_SERVING {
		t.Errorf("health: %v, %v", h, err)
	}
	route, err := client.PostRouteModify(ctx, &extension.PostRouteModifyRequest{Route: foreignRoute("mixed", "/shop")}, wait)
	if err != nil || len(route.GetRoute().GetRoute().GetWeightedClusters().GetClusters()) != 3 {
		t.Errorf("route: %v, %v", route, err)
	}
	vh, err := client.PostVirtualHostModify(ctx, &extension.PostVirtualHostModifyRequest{VirtualHost: example()}, wait)
	if err != nil || len(vh.GetVirtualHost().GetRoutes()) <= 4 {
		t.Errorf("virtual host: %v, %v", vh, err)
	}
	plain := &listenerv3.Listener{Name: "infra/eg/http"}
	l, err := client.PostHTTPListenerModify(ctx, &extension.PostHTTPListenerModifyRequest{Listener: plain}, wait)
	if err != nil || !proto.Equal(l.GetListener(), plain) {
		t.Errorf("listener: %v, %v", l, err)
	}
	eds := translationOf("").Clusters[2]
	c, err := client.PostClusterModify(ctx, &extension.PostClusterModifyRequest{Cluster: eds}, wait)
	switch {
	case err != nil:
		t.Errorf("cluster: %v", err)
	case c.GetCluster().GetClusterType().GetName() != "envoy.cluster.dns":
		t.Errorf(`cluster: c.GetCluster().GetClusterType().GetName() != "envoy.cluster.dns"; %v, %v`, c, err)
	case c.GetCluster().GetName() != eds.GetName():
		t.Errorf("cluster: c.GetCluster().GetName() != eds.GetName(); %v, %v", c, err)
	}
	assignment := &endpointv3.ClusterLoadAssignment{ClusterName: "x"}
	e, err := client.PostEndpointsModify(ctx, &extension.PostEndpointsModifyRequest{LoadAssignment: assignment}, wait)
	if err != nil || !proto.Equal(e.GetLoadAssignment(), assignment) {
		t.Errorf("endpoints: %v, %v", e, err)
	}
	in := translationOf("00000000000000aa", example())
	in.Secrets = []*tlsv3.Secret{{Name: "a"}, {Name: "b"}}
	in.Listeners = []*listenerv3.Listener{plain}
	all, err := client.PostTranslateModify(ctx, in, wait)
	if err != nil {
		t.Fatal(err)
	}
	if err := checkResponse(in, all); err != nil {
		t.Error(err)
	}
	if len(all.Clusters) != len(in.Clusters)+5 {
		t.Errorf("clusters: %v", all.Clusters)
	}
	seen := map[Hook]bool{}
	for _, c := range calls() {
		seen[c.Hook] = true
		switch {
		case c.In <= 0:
			t.Errorf("measured: c.In = %v, want more than 0", c.In)
		case c.Out <= 0:
			t.Errorf("measured: c.Out = %v, want more than 0", c.Out)
		case c.Took <= 0:
			t.Errorf("measured: c.Took = %v, want more than 0", c.Took)
		}
	}
	if len(seen) != len(Hooks()) {
		t.Errorf("measured %v", seen)
	}
}

// GTW-36: the server accepts and answers messages above gRPC's default limit of 4 MB; five
// thousand routes pass.
func TestGTW36_LargeMessages(t *testing.T) {
	s, _ := newServer(t, fullSnapshot())
	at := Address{"unix", filepath.Join(t.TempDir(), "x.sock")}
	serve(t, s, at, nil)
	var hosts []*routev3.VirtualHost
	for i := range 5000 {
		name := strings.Repeat("x", 700) + string(rune('a'+i%26))
		r := foreignRoute("plain", "/"+name)
		hosts = append(hosts, virtualHost(strings.Repeat("h", 1+i%60)+"."+name[690:]+"."+big.NewInt(int64(i)).String(), r))
	}
	in := translationOf("", hosts...)
	if proto.Size(in) < 4<<20 {
		t.Fatalf("only %d bytes", proto.Size(in))
	}
	ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
	defer cancel()
	out, err := extension.NewEnvoyGatewayExtensionClient(dial(t, at, insecure.NewCredentials())).PostTranslateModify(ctx, in, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if err := checkResponse(in, out); err != nil {
		t.Error(err)
	}
	if n := len(out.Clusters) - len(in.Clusters); n != 3 {
		t.Errorf("%d clusters were added", n)
	}
}

// A testCA is a CA for one test.
type testCA struct {
	cert *x509.Certificate
	key  *ecdsa.PrivateKey
	pem  []byte
}

func newTestCA(t *testing.T) *testCA {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(1), Subject: pkix.Name{CommonName: "ca"}, NotAfter: time.Now().Add(time.Hour), IsCA: true, BasicConstraintsValid: true, KeyUsage: x509.KeyUsageCertSign}
	der, err := x509.CreateCertificate(rand.Reader, c, c, &key.PublicKey, key)
	if err != nil {
		t.Fatal(err)
	}
	if c, err = x509.ParseCertificate(der); err != nil {
		t.Fatal(err)
	}
	return &testCA{c, key, pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der})}
}

// issue writes tls.crt, tls.key and ca.crt for a name to a directory.
func (a *testCA) issue(t *testing.T, dir, name string) {
	t.Helper()
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		t.Fatal(err)
	}
	c := &x509.Certificate{SerialNumber: big.NewInt(2), DNSNames: []string{name}, NotAfter: time.Now().Add(time.Hour), KeyUsage: x509.KeyUsageDigitalSignature,
		ExtKeyUsage: []x509.ExtKeyUsage{x509.ExtKeyUsageClientAuth, x509.ExtKeyUsageServerAuth}}
	der, err := x509.CreateCertificate(rand.Reader, c, a.cert, &key.PublicKey, a.key)
	if err != nil {
		t.Fatal(err)
	}
	secret, err := x509.MarshalPKCS8PrivateKey(key)
	if err != nil {
		t.Fatal(err)
	}
	for file, content := range map[string][]byte{
		"tls.crt": pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: der}), "tls.key": pem.EncodeToMemory(&pem.Block{Type: "PRIVATE KEY", Bytes: secret}), "ca.crt": a.pem,
	} {
		if err := os.WriteFile(filepath.Join(dir, file), content, 0o600); err != nil {
			t.Fatal(err)
		}
	}
}

// GTW-33, GTW-36: over TCP the server accepts only Envoy Gateway's certificate, and it loads
// renewed certificates.
func TestGTW36_OnlyEnvoyGatewayIsAccepted(t *testing.T) {
	cluster, other := newTestCA(t), newTestCA(t)
	dir := t.TempDir()
	cluster.issue(t, dir, "extension")
	config, err := (&Certificates{Dir: dir}).Config()
	if err != nil {
		t.Fatal(err)
	}
	ln, err := net.Listen("tcp", "127.0.0.1:0") // to find a free port
	if err != nil {
		t.Fatal(err)
	}
	at := Address{"tcp", ln.Addr().String()}
	ln.Close()
	s, calls := newServer(t, fullSnapshot())
	serve(t, s, at, config)

	request := func(roots, client *testCA, name string, options ...grpc.CallOption) error {
		c := &tls.Config{RootCAs: x509.NewCertPool(), ServerName: "extension"}
		c.RootCAs.AddCert(roots.cert)
		if client != nil {
			d := t.TempDir()
			client.issue(t, d, name)
			pair, err := tls.LoadX509KeyPair(filepath.Join(d, "tls.crt"), filepath.Join(d, "tls.key"))
			if err != nil {
				t.Fatal(err)
			}
			c.Certificates = []tls.Certificate{pair}
		}
		ctx, cancel := context.WithTimeout(t.Context(), testTimeout)
		defer cancel()
		_, err := extension.NewEnvoyGatewayExtensionClient(dial(t, at, credentials.NewTLS(c))).PostClusterModify(ctx, &extension.PostClusterModifyRequest{Cluster: &clusterv3.Cluster{Name: "x"}}, options...)
		return err
	}
	if err := request(cluster, cluster, ClientName, grpc.WaitForReady(true)); err != nil {
		t.Fatal("the right certificate:", err)
	}
	before := len(calls())
	for why, err := range map[string]error{
		"no certificate":            request(cluster, nil, ""),
		"another authority's":       request(cluster, other, ClientName),
		"one for another name":      request(cluster, cluster, "mallory"),
		"one that only contains it": request(cluster, cluster, ClientName+".example.com"),
	} {
		if status.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, want a refusal", why, err)
		}
	}
	if n := len(calls()); n != before {
		t.Errorf("%d calls of unknown clients were answered", n-before)
	}
	other.issue(t, dir, "extension")
	if err := request(other, other, ClientName); err != nil {
		t.Error("after a renewal:", err)
	}
	if err := os.WriteFile(filepath.Join(dir, "tls.crt"), []byte("rubbish"), 0o600); err != nil {
		t.Fatal(err)
	}
	if err := request(other, other, ClientName); err != nil {
		t.Error("unreadable files must leave the last good certificates:", err)
	}
}

// GTW-36: without TLS the server listens only on addresses of this machine.
func TestPlainOnlyInPrivate(t *testing.T) {
	for _, tc := range []struct {
		address string
		private bool
		bad     bool
	}{
		{":5005", false, false}, {"0.0.0.0:5005", false, false}, {"[::]:5005", false, false}, {"10.0.0.1:5005", false, false}, {"localhost:5005", false, false},
		{"127.0.0.1:5005", true, false}, {"[::1]:5005", true, false}, {"unix:///run/x.sock", true, false}, {"unix:/run/x.sock", true, false},
		{"unix:x.sock", false, true}, {"5005", false, true}, {"", false, true}, {"127.0.0.1:", false, true},
	} {
		a, err := ParseAddress(tc.address)
		if (err != nil) != tc.bad || err == nil && a.Private() != tc.private {
			t.Errorf("%q: %+v, %v", tc.address, a, err)
		}
		if tc.bad || tc.private {
			continue
		}
		s, _ := newServer(t, fullSnapshot())
		if err := s.Run(t.Context(), a, nil); err == nil || !strings.Contains(err.Error(), "needs TLS") {
			t.Errorf("%q: the server runs without TLS: %v", tc.address, err)
		}
	}
}

// A stale socket is replaced. Any other file at its path is not.
func TestSocket(t *testing.T) {
	a := Address{"unix", filepath.Join(t.TempDir(), "x.sock")}
	dead, err := a.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	dead.(*net.UnixListener).SetUnlinkOnClose(false)
	dead.Close()
	ln, err := a.Listen(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if i, err := os.Stat(a.Addr); err != nil || i.Mode().Perm() != 0o660 {
		t.Errorf("mode %v, %v", i.Mode(), err)
	}
	ln.Close()
	if err := os.WriteFile(a.Addr, []byte("somebody's"), 0o600); err != nil {
		t.Fatal(err)
	}
	if ln, err := a.Listen(t.Context()); err == nil {
		ln.Close()
		t.Error("a file was replaced by a socket")
	}
}
