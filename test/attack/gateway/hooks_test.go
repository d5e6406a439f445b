package gateway

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/envoyproxy/gateway/proto/extension"
	"github.com/envoyproxy/go-control-plane/envoy/config/cluster/v3"
	"github.com/envoyproxy/go-control-plane/envoy/config/listener/v3"
	"github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"github.com/envoyproxy/go-control-plane/envoy/extensions/transport_sockets/tls/v3"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	grpcstatus "google.golang.org/grpc/status"
	"google.golang.org/protobuf/encoding/protowire"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/attacktest"
	"github.com/tailplane/tailplane/testkit/buildcache"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// lawful returns an error if an answer violates the echo rule. All received resources must be present in their order.
// Every added cluster must be valid, and every added route must lead to an existing cluster.
func lawful(in *extension.PostTranslateModifyRequest, out *extension.PostTranslateModifyResponse) error {
	same := func(what string, n, m int, equal func(i int) bool) error {
		if m < n {
			return fmt.Errorf("of %d %s only %d were returned", n, what, m)
		}
		for i := range n {
			if !equal(i) {
				return fmt.Errorf("%s %d was returned changed", what, i)
			}
		}
		return nil
	}
	err := errors.Join(
		same("clusters", len(in.Clusters), len(out.Clusters), func(i int) bool { return proto.Equal(in.Clusters[i], out.Clusters[i]) }),
		same("secrets", len(in.Secrets), len(out.Secrets), func(i int) bool { return proto.Equal(in.Secrets[i], out.Secrets[i]) }),
		same("listeners", len(in.Listeners), len(out.Listeners), func(i int) bool { return proto.Equal(in.Listeners[i], out.Listeners[i]) }),
		same("route configurations", len(in.Routes), len(out.Routes), func(i int) bool {
			// All of the user's routes are present in their order; the gateway's routes may stand between them.
			was, is := in.Routes[i].GetVirtualHosts(), out.Routes[i].GetVirtualHosts()
			if len(was) != len(is) {
				return false
			}
			for j := range was {
				theirs := slices.DeleteFunc(slices.Clone(is[j].GetRoutes()), func(r *routev3.Route) bool { return strings.HasPrefix(r.GetName(), "tailscale-") })
				if !slices.EqualFunc(was[j].GetRoutes(), theirs, func(a, b *routev3.Route) bool { return proto.Equal(a, b) }) {
					return false
				}
			}
			return true
		}))
	if len(out.Secrets) != len(in.Secrets) || len(out.Listeners) != len(in.Listeners) || len(out.Routes) != len(in.Routes) {
		err = errors.Join(err, errors.New("something other than clusters and routes was added"))
	}
	names := map[string]bool{}
	for i, c := range out.Clusters {
		if i >= len(in.Clusters) {
			err = errors.Join(err, c.ValidateAll())
			if names[c.GetName()] {
				err = errors.Join(err, fmt.Errorf("two clusters have the name %s", c.GetName()))
			}
		}
		names[c.GetName()] = true
	}
	for _, rc := range out.Routes {
		for _, h := range rc.GetVirtualHosts() {
			for _, r := range h.GetRoutes() {
				if to := r.GetRoute().GetCluster(); strings.HasPrefix(r.GetName(), "tailscale-") && to != "" && !names[to] {
					err = errors.Join(err, fmt.Errorf("%s leads to %s, which does not exist", r.GetName(), to))
				}
			}
		}
	}
	return err
}

// GW-03. A replica with incomplete caches does not answer. A request about a Gateway without rendered resources, or a
// malformed request, is returned unchanged.
//
// Guard: xds.Server.Run, which listens after the first snapshot; controller.gatherer, which decides only when every cache
// is complete; xds.translation.
func TestGW03_Echo(t *testing.T) {
	w := start(t)
	attacktest.Eventually(t, attacktest.Long, "web is served", func() bool { return w.webServed(t) })
	certificate := &tlsv3.Secret{Name: "shop/tls", Type: &tlsv3.Secret_GenericSecret{}}
	host := func() *routev3.VirtualHost { return xdsHost(t, "example.com", xdsRoute(t, "shop", "plain", "/")) }
	other := question(host())
	other.Routes[0].Name = "bank/other/http"
	other.Routes[0].VirtualHosts[0].Metadata = noted(t, "", "bank", "other", "http")
	bare := question(host())
	bare.Routes[0].VirtualHosts[0].Metadata = nil
	named := question(host())
	named.Routes[0].VirtualHosts[0].Metadata = noted(t, "Gateway", "shop/eg", "../eg", "\x00")
	unknown := question(host())
	unknown.Routes[0].VirtualHosts[0].Metadata = nil
	unknown.Routes[0].ProtoReflect().SetUnknown(protowire.AppendVarint(protowire.AppendTag(nil, 9999, protowire.VarintType), 7))
	for why, in := range map[string]*extension.PostTranslateModifyRequest{
		"another Gateway": other, "a host without metadata": bare, "a host without an owner": named, "fields of tomorrow": unknown,
		"nothing at all":              {},
		"a revision without an owner": {PostTranslateContext: &extension.PostTranslateExtensionContext{ExtensionResources: []*extension.ExtensionResource{{UnstructuredBytes: []byte(`{"kind":"TailscaleRoutePolicy","spec":{"revision":"x"}}`)}, {}, nil}}},
		"a malformed policy":          {PostTranslateContext: &extension.PostTranslateExtensionContext{ExtensionResources: []*extension.ExtensionResource{{UnstructuredBytes: []byte(`{{{`)}}}},
		"members that are empty":      {Clusters: []*clusterv3.Cluster{{}}, Routes: []*routev3.RouteConfiguration{{}, {VirtualHosts: []*routev3.VirtualHost{{}}}}, Listeners: []*listenerv3.Listener{{}}},
	} {
		in.Secrets, in.Listeners = append(in.Secrets, certificate), append(in.Listeners, &listenerv3.Listener{Name: "shop/eg/http"})
		out := w.ask(t, in)
		want := &extension.PostTranslateModifyResponse{Clusters: in.Clusters, Secrets: in.Secrets, Listeners: in.Listeners, Routes: in.Routes}
		if !proto.Equal(out, want) {
			t.Errorf("%s: it was returned changed: %v", why, out)
		}
	}
	// Control: the same request for a Gateway with rendered resources.
	in := question(host())
	in.Secrets = append(in.Secrets, certificate)
	first := w.ask(t, in)
	if err := lawful(in, first); err != nil || !slices.Contains(added(first), "tailscale-cluster-web") {
		t.Errorf("of the Gateway itself: %v, %v", added(first), err)
	}

	// A replica that only answers, with an account that cannot read the inputs of the decision, is not available to
	// Envoy Gateway. With the rights it is available and gives the same answers.
	w.apply(t, "apiVersion: v1\nkind: ServiceAccount\nmetadata: {name: late, namespace: "+gatewayNamespace+"}\n")
	o := w.options
	o.Account, o.IP, o.Args = "late", nextAddress(o.IP), []string{"--controllers=false"}
	late, err := testenv.StartGateway(t.Context(), t.TempDir(), w.cluster, o)
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := late.Stop(time.Minute); err != nil {
			t.Error(err)
		}
	}()
	attacktest.Eventually(t, attacktest.Long, "it has logged the missing permissions", func() bool { return strings.Contains(late.Output(), "forbidden") })
	if c, err := net.Dial("tcp", late.Extension); err == nil {
		c.Close()
		t.Error("a replica without a snapshot listens")
	}
	if code := probe(late.Probes, "/readyz"); code != http.StatusServiceUnavailable {
		t.Errorf("its readiness is %d", code)
	}
	w.apply(t, fmt.Sprintf(`apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: late}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: cluster-admin}
subjects: [{kind: ServiceAccount, name: late, namespace: %s}]
`, gatewayNamespace))
	defer func() {
		if _, errs, code := w.kubectl(t, "delete", "clusterrolebinding", "late"); code != 0 {
			t.Error(errs)
		}
	}()
	authority, own := w.certificates(t)
	cc, err := w.dial(late.Extension, authority, own)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
	defer cancel()
	again, err := extension.NewEnvoyGatewayExtensionClient(cc).PostTranslateModify(ctx, in, grpc.WaitForReady(true))
	if err != nil {
		t.Fatal(err)
	}
	if !proto.Equal(w.ask(t, in), again) {
		t.Errorf("two replicas answer differently: %v, %v", added(first), added(again))
	}
}

// nextAddress returns the corresponding address in the next network.
func nextAddress(ip string) string { return strings.Replace(ip, "127.81.", "127.82.", 1) }

// certificates returns the certificates that Envoy Gateway has.
func (w *env) certificates(t *testing.T) (authority []byte, own tls.Certificate) {
	t.Helper()
	var s, ca corev1.Secret
	if err := errors.Join(w.admin.Get(t.Context(), client.ObjectKey{Namespace: gatewayNamespace, Name: "tailplane-extension-client"}, &s),
		w.admin.Get(t.Context(), client.ObjectKey{Namespace: gatewayNamespace, Name: "tailplane-extension-ca"}, &ca)); err != nil {
		t.Fatal(err)
	}
	own, err := tls.X509KeyPair(s.Data["tls.crt"], s.Data["tls.key"])
	if err != nil {
		t.Fatal(err)
	}
	return ca.Data["tls.crt"], own
}

// GW-04. A message larger than gRPC's default limit, messages with unreadable content, and callers that wait only a
// second or disconnect. The answer is valid and arrives, and the server stays healthy.
//
// Guard: xds: the maximum message sizes, the deadlines of respond, translation.validate.
func TestGW04_LargeAndMalformed(t *testing.T) {
	w := start(t)
	attacktest.Eventually(t, attacktest.Long, "web is served", func() bool { return w.webServed(t) })
	rubbish := &anypb.Any{TypeUrl: "type.googleapis.com/nobody.knows.This", Value: []byte{0xff, 0xff, 0xff}}
	broken := &anypb.Any{TypeUrl: "type.googleapis.com/envoy.extensions.filters.http.jwt_authn.v3.PerRouteConfig", Value: []byte("\x0a\xff")}
	var hosts []*routev3.VirtualHost
	for i := range 2000 {
		r := xdsRoute(t, "shop", fmt.Sprintf("r%d", i), "/"+strings.Repeat("x", 2000))
		r.TypedPerFilterConfig = map[string]*anypb.Any{"a": rubbish, "b": broken}
		hosts = append(hosts, xdsHost(t, fmt.Sprintf("h%d.example.com", i), r))
	}
	in := question(hosts...)
	in.Listeners = []*listenerv3.Listener{{Name: "shop/eg/http", FilterChains: []*listenerv3.FilterChain{{Filters: []*listenerv3.Filter{{Name: "x", ConfigType: &listenerv3.Filter_TypedConfig{TypedConfig: rubbish}}}}}}}
	if n := proto.Size(in); n < 4<<20 || len(in.Clusters) != 2000 {
		t.Fatalf("%d bytes, %d clusters: no edge", n, len(in.Clusters))
	}
	out := w.ask(t, in)
	if err := lawful(in, out); err != nil {
		t.Error(err)
	}
	if !slices.Contains(added(out), "tailscale-cluster-web") || proto.Size(out) < proto.Size(in) {
		t.Errorf("Tailplane's cluster is missing: %v", added(out))
	}
	for _, wait := range []time.Duration{time.Second, 100 * time.Millisecond, time.Millisecond} {
		ctx, cancel := context.WithTimeout(t.Context(), wait)
		began := time.Now()
		out, err := w.eg.PostTranslateModify(ctx, in)
		cancel()
		// A caller with a deadline too short for this machine gets no answer; the server never sends a partial one.
		if err == nil {
			err = lawful(in, out)
		} else if c := grpcstatus.Code(err); c == codes.DeadlineExceeded || c == codes.Canceled {
			err = nil
		}
		t.Logf("a client that waits %v gets an answer after %v: %d clusters", wait, time.Since(began).Round(time.Millisecond), len(out.GetClusters()))
		if err != nil {
			t.Errorf("a client that waits %v: %v", wait, err)
		}
	}
	listener, err := w.eg.PostHTTPListenerModify(t.Context(), &extension.PostHTTPListenerModifyRequest{Listener: in.Listeners[0]})
	if err != nil || !proto.Equal(listener.GetListener(), in.Listeners[0]) {
		t.Errorf("a listener that cannot be read: %v, %v", listener, err)
	}
	if !w.webServed(t) {
		t.Error("afterwards web is not served")
	}
	if strings.Contains(w.Output(), `"panic"`) {
		t.Error("the server panicked")
	}
}

// GW-05. Clusters, routes and hosts of users have the names of the gateway's resources. The gateway omits its own and
// keeps the users'. The same request always gets the same bytes.
//
// Guard: xds.clusters.usable, translation.validate, deterministic marshalling within Any.
func TestGW05_Collisions(t *testing.T) {
	w := start(t)
	attacktest.Eventually(t, attacktest.Long, "web is served", func() bool { return w.webServed(t) })
	host := func(domain string) *routev3.VirtualHost {
		return xdsHost(t, domain, xdsRoute(t, "shop", "plain", "/"))
	}
	stolen := question(host("example.com"))
	stolen.Clusters = append(stolen.Clusters, &clusterv3.Cluster{Name: "tailscale-cluster-web", ClusterDiscoveryType: &clusterv3.Cluster_Type{Type: clusterv3.Cluster_STATIC}})
	routes := question(host("example.com"))
	routes.Routes[0].VirtualHosts[0].Routes = append([]*routev3.Route{{Name: "httproute/shop/user/rule/0/match/0/x", Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_PathSeparatedPrefix{PathSeparatedPrefix: "/svc/web"}},
		Action: &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 418}}}}, routes.Routes[0].VirtualHosts[0].Routes...)
	several := question(host("b.example.com"), host("a.example.com"), host("*"))
	for why, in := range map[string]*extension.PostTranslateModifyRequest{"a cluster of a user": stolen, "a path of a user": routes, "several hosts": several} {
		out := w.ask(t, in)
		if err := lawful(in, out); err != nil {
			t.Errorf("%s: %v", why, err)
		}
		text, err := proto.MarshalOptions{Deterministic: true}.Marshal(out)
		if err != nil {
			t.Fatal(err)
		}
		for range 5 {
			again, err := proto.MarshalOptions{Deterministic: true}.Marshal(w.ask(t, in))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(text, again) {
				t.Errorf("%s: another answer to the same question", why)
				break
			}
		}
		for _, h := range out.Routes[0].VirtualHosts {
			at := slices.IndexFunc(h.Routes, func(r *routev3.Route) bool { return r.Name == "tailscale-svc-web" })
			if (at >= 0) != (why != "a cluster of a user") {
				t.Errorf("%s: the route to web in %s is number %d", why, h.Name, at)
			}
			if user := slices.IndexFunc(h.Routes, func(r *routev3.Route) bool { return r.GetDirectResponse() != nil }); why == "a path of a user" && (user < 0 || user > at) {
				t.Errorf("the user's route to the same path is number %d, Tailplane's is number %d", user, at)
			}
		}
	}
}

// GW-08. A client without Envoy Gateway's certificate gets no answer. The configuration that the gateway prints
// prevents Envoy Gateway from sending private keys. A key that is sent nevertheless is returned and stored nowhere.
//
// Guard: xds.Certificates.Config, envoy-gateway.yaml.tmpl, xds.translation.
func TestGW08_UnknownClients(t *testing.T) {
	w := start(t)
	root, own := w.certificates(t)
	// The calls of the hook that strangers use. Other hooks may still have calls whose caller has gone.
	calls := func() string {
		return metricLines(t, w.Probes, `tailplane_gateway_hook_calls_total{hook="Cluster"`)
	}
	ca, err := kube.NewCertificateAuthority("tailplane-extension-ca", time.Now(), time.Hour)
	if err != nil {
		t.Fatal(err)
	}
	forged := func(name string) []tls.Certificate {
		certificate, key, err := ca.Sign(x509.ExtKeyUsageClientAuth, name)
		if err != nil {
			t.Fatal(err)
		}
		pair, err := tls.X509KeyPair(certificate, key)
		if err != nil {
			t.Fatal(err)
		}
		return []tls.Certificate{pair}
	}
	before := calls()
	for why, certificates := range map[string][]tls.Certificate{"no certificate": nil, "a forged one": forged("envoy-gateway"), "the server's own": {w.serverCertificate(t)}} {
		cc, err := w.dial(w.Extension, root, certificates...)
		if err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithTimeout(t.Context(), attacktest.Long)
		_, err = extension.NewEnvoyGatewayExtensionClient(cc).PostClusterModify(ctx, &extension.PostClusterModifyRequest{Cluster: &clusterv3.Cluster{Name: "x"}})
		cancel()
		if grpcstatus.Code(err) != codes.Unavailable {
			t.Errorf("%s: %v, want a refusal", why, err)
		}
		if err := cc.Close(); err != nil {
			t.Error(err)
		}
	}
	if after := calls(); after != before {
		t.Errorf("unknown clients got answers: %s, before %s", after, before)
	}
	cc, err := w.dial(w.Extension, root, own)
	if err != nil {
		t.Fatal(err)
	}
	defer cc.Close()
	if _, err := extension.NewEnvoyGatewayExtensionClient(cc).PostClusterModify(t.Context(), &extension.PostClusterModifyRequest{Cluster: &clusterv3.Cluster{Name: "x"}}, grpc.WaitForReady(true)); err != nil {
		t.Errorf("Envoy Gateway's own: %v", err)
	}

	program, err := buildcache.Lookup("tailplaned")
	if err != nil {
		t.Fatal(err)
	}
	printed, err := exec.CommandContext(t.Context(), program, "gateway", "envoy-config").Output()
	switch {
	case err != nil:
		t.Errorf("the printed configuration for Envoy Gateway: %v", err)
	case !strings.Contains(string(printed), "secret: {includeAll: false}"):
		t.Errorf("the printed configuration for Envoy Gateway: string(printed) = %q does not contain %q",
			string(printed), "secret: {includeAll: false}")
	case !strings.Contains(string(printed), "clientCertificateRef: {name: tailplane-extension-client"):
		t.Errorf("the printed configuration for Envoy Gateway: string(printed) = %q does not contain %q",
			string(printed), "clientCertificateRef: {name: tailplane-extension-client")
	}

	const canary = "canary-7f1d-private-key"
	in := question(xdsHost(t, "example.com", xdsRoute(t, "shop", "plain", "/")))
	in.Secrets = []*tlsv3.Secret{secretOf("shop/tls", canary)}
	if out := w.ask(t, in); len(out.Secrets) != 1 || !proto.Equal(out.Secrets[0], in.Secrets[0]) {
		t.Errorf("the secret was returned as %v", out.Secrets)
	}
	in.Clusters[0].Name = "\xff" // and for a request that cannot be answered
	if _, err := w.eg.PostTranslateModify(t.Context(), in); err == nil {
		t.Error("a name that is not text was accepted")
	}
	for what, text := range map[string]string{"the log": w.Output(), "the metrics": metricLines(t, w.Probes, ""), "the API server's log": read(t, w.asked)} {
		if strings.Contains(text, canary) {
			t.Errorf("the private key is in %s", what)
		}
	}
}

// serverCertificate returns the extension server's own certificate, which is not a client certificate.
func (w *env) serverCertificate(t *testing.T) tls.Certificate {
	t.Helper()
	pair, err := tls.LoadX509KeyPair(filepath.Join(w.options.TLSDir, "tls.crt"), filepath.Join(w.options.TLSDir, "tls.key"))
	if err != nil {
		t.Fatal(err)
	}
	return pair
}

func read(t *testing.T, path string) string {
	t.Helper()
	b, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

// GW-09. The extension server hangs, is killed and restarts. Callers wait, and the first answer contains the
// gateway's routes. No request makes the server answer with an error.
//
// Guard: xds.Server.Run, which listens only when every cache is complete.
func TestGW09_Restarts(t *testing.T) {
	w := start(t)
	attacktest.Eventually(t, attacktest.Long, "web is served", func() bool { return w.webServed(t) })
	in := question(xdsHost(t, "example.com", xdsRoute(t, "shop", "plain", "/")))

	if err := w.Pause(t.Context()); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithTimeout(t.Context(), 300*time.Millisecond)
	_, err := w.eg.PostTranslateModify(ctx, in, grpc.WaitForReady(true))
	cancel()
	if grpcstatus.Code(err) != codes.DeadlineExceeded {
		t.Errorf("of a server that hangs: %v", err)
	}
	if err := w.Signal(syscall.SIGCONT); err != nil {
		t.Fatal(err)
	}
	if !slices.Contains(added(w.ask(t, in)), "tailscale-cluster-web") {
		t.Error("after it hung, web is not served")
	}

	// Envoy Gateway sends a request and waits while no server runs.
	w.Kill()
	type answer struct {
		out *extension.PostTranslateModifyResponse
		err error
	}
	answers := make(chan answer, 1)
	waiting, stop := context.WithTimeout(t.Context(), attacktest.Long)
	defer stop()
	go func() {
		for {
			out, err := w.eg.PostTranslateModify(waiting, in, grpc.WaitForReady(true))
			if grpcstatus.Code(err) == codes.Unavailable && waiting.Err() == nil {
				continue // the request went to the process that was killed
			}
			answers <- answer{out, err}
			return
		}
	}()
	began := time.Now()
	again, err := testenv.StartGateway(t.Context(), filepath.Join(w.dir, "gateway"), w.cluster, w.options)
	if err != nil {
		t.Fatal(err)
	}
	w.Gateway = again
	a := <-answers
	if a.err != nil {
		t.Fatalf("the first answer after a restart: %v", a.err)
	}
	if !slices.Contains(added(a.out), "tailscale-cluster-web") {
		t.Errorf("the first answer after a restart: %v", added(a.out))
	}
	t.Logf("answered %v after the start", time.Since(began).Round(time.Millisecond))
	w.says(t, "TailscaleTailnet corp", "Ready", "True/Ready")
}
