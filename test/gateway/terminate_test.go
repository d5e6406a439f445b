//go:build linux

package gateway

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/base64"
	"encoding/json"
	"fmt"
	"io"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/testkit/tailnettest"
)

// vault is a Service of the cluster that is exposed on the tailnet with TLS. Its relays terminate TLS.
const vault = `apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleProxyGroup
metadata: {name: doors, namespace: tailscale-gateway-system}
spec: {type: ingress, replicas: 2, tailnetRef: {name: corp}, consumers: {from: All}, drainTimeout: 5s}
---
apiVersion: v1
kind: Service
metadata: {name: vault, namespace: infra}
spec: {ports: [{name: plain, port: 80, targetPort: 8090}]}
---
apiVersion: discovery.k8s.io/v1
kind: EndpointSlice
metadata: {name: vault, namespace: infra, labels: {kubernetes.io/service-name: vault}}
addressType: IPv4
ports: [{name: plain, port: 8090, protocol: TCP}]
endpoints: [{addresses: [10.244.3.80], conditions: {ready: true}}]
---
apiVersion: gateway.tailscale.com/v1alpha1
kind: TailscaleService
metadata: {name: vault, namespace: infra}
spec:
  type: ingress
  tailnetRef: {name: corp}
  proxyGroupRef: {name: doors, namespace: tailscale-gateway-system}
  vipService: {name: "svc:vault", tags: ["tag:relay"]}
  ports: [{name: https, port: 443, targetPort: 80, tls: Terminate}]
  proxyProtocol: V2
  backendRef: {kind: Service, name: vault}
`

// GTW-23: two relays terminate TLS of a service with one certificate for its name, which the tailnet's authority
// issued once. The first relay requests it, and both read it from a Secret of that name. The backend receives the
// plain text, with the caller's own address. A replaced relay needs no new certificate. A deleted Secret is recreated
// without a new certificate.
func TestGTW23_Terminate(t *testing.T) {
	needsNamespaces(t)
	i := install(t, "terminate", netip.MustParseAddr("10.244.3.1"), func(n *tailnettest.Net) []string {
		return append(n.HTTPSEnv(), "KUBERNETES_SERVICE_HOST=10.96.0.1", "KUBERNETES_SERVICE_PORT=443") // as in every pod
	})
	c, ctx := i.Cluster, within(t)
	roots := x509.NewCertPool()
	roots.AppendCertsFromPEM(i.net.EnableHTTPS())
	alice := i.net.Node("alice-laptop", "alice@example.com")
	if err := i.net.Ready(ctx, alice); err != nil {
		t.Fatal(err)
	}
	acceptRoutes(t, alice)
	serveRaw(t, "10.244.3.80:8090")
	i.apply(t, vault)
	kubectl(t, c, "-n", "infra", "wait", "--for=condition=Ready", "tssvc/vault", "--timeout=200s")
	name := "vault." + i.net.Suffix()
	at := netip.AddrPortFrom(netip.MustParseAddr(kubectl(t, c, "-n", "infra", "get", "tssvc", "vault", "-o", "jsonpath={.status.vip.addresses[0]}")), 443)

	var serial, said string
	var err error
	answers := func() bool { serial, said, err = throughTLS(ctx, alice, at, name, roots); return err == nil }
	await(t, "an answer over TLS", answers)
	ip4, _ := alice.TailscaleIPs()
	switch {
	case len(said) != 28+len("hello"):
		t.Errorf("the backend: len(said) = %v, want %v", len(said), 28+len("hello"))
	case !strings.HasSuffix(said, "hello"):
		t.Errorf("the backend: said = %q does not end with %q", said, "hello")
	case netip.AddrFrom4([4]byte([]byte(said[16:20]))) != ip4:
		t.Errorf("the backend: netip.AddrFrom4([4]byte([]byte(said[16:20]))) != ip4; said = %q, %s", said, ip4)
	}
	first := serial
	if _, _, err := throughTLS(ctx, alice, at, "other."+i.net.Suffix(), roots); err == nil {
		t.Error("a client that requests another name gets an answer")
	}

	certified := func(pod string) bool {
		var st struct {
			Exposed map[string]struct {
				Ports       []any
				Uncertified string
			}
		}
		text := kubectl(t, c, "-n", ourNamespace, "get", "secret", pod, "-o", `jsonpath={.data.egress-services}`)
		b, err := base64.StdEncoding.DecodeString(text)
		if err != nil || json.Unmarshal(b, &st) != nil {
			return false
		}
		e, is := st.Exposed["infra.vault"]
		return is && len(e.Ports) == 1 && e.Uncertified == ""
	}
	await(t, "both relays have the certificate", func() bool { return certified("doors-0") && certified("doors-1") })
	if kind := kubectl(t, c, "-n", ourNamespace, "get", "secret", name, "-o", "jsonpath={.type}"); kind != "kubernetes.io/tls" {
		t.Errorf("the Secret is of type %q", kind)
	}

	// Both relays are replaced, so the tailnet moves from one to the other. The certificate stays the same.
	for _, pod := range []string{"doors-0", "doors-1"} {
		uid := kubectl(t, c, "-n", ourNamespace, "get", "pod", pod, "-o", "jsonpath={.metadata.uid}")
		kubectl(t, c, "-n", ourNamespace, "delete", "pod", pod, "--wait=false")
		await(t, pod+" is another, with the certificate", func() bool {
			is := strings.Fields(kubectl(t, c, "-n", ourNamespace, "get", "pods", "-o", `jsonpath={range .items[?(@.metadata.name=="`+pod+`")]}{.metadata.uid} {.status.conditions[?(@.type=="Ready")].status}{end}`))
			return len(is) == 2 && is[0] != uid && is[1] == "True" && certified(pod)
		})
		await(t, "an answer over TLS from the remaining relay", answers)
		if serial != first {
			t.Errorf("when %s was replaced the certificate changed", pod)
		}
	}

	// Another client deletes the Secret.
	kubectl(t, c, "-n", ourNamespace, "delete", "secret", name)
	await(t, "the Secret exists again", func() bool {
		return kubectl(t, c, "-n", ourNamespace, "get", "secret", name, "--ignore-not-found", "-o", "name") != ""
	})
	await(t, "an answer over TLS", answers)
	if n := i.net.Issued(name); n != 1 || serial != first {
		t.Errorf("%d certificates were issued", n)
	}

	// The Secret is deleted with the service, and not earlier.
	kubectl(t, c, "-n", "infra", "delete", "tssvc", "vault", "--timeout=200s")
	await(t, "the certificate is deleted", func() bool {
		return kubectl(t, c, "-n", ourNamespace, "get", "secret", name, "--ignore-not-found", "-o", "name") == ""
	})
	if strings.Contains(i.pods.Running()["doors-0"].Output(), "PRIVATE KEY") {
		t.Error("a key was logged")
	}
}

// throughTLS connects to a service from a node of the tailnet. It returns the presented certificate and the answer.
func throughTLS(ctx context.Context, from *tsnet.Server, to netip.AddrPort, name string, roots *x509.CertPool) (serial, answer string, err error) {
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	// Not with Dial: before the route is known, Dial would leave this machine.
	plain, err := from.Sys().Dialer.Get().NetstackDialTCP(ctx, to)
	if err != nil {
		return "", "", err
	}
	defer plain.Close()
	c := tls.Client(plain, &tls.Config{ServerName: name, RootCAs: roots})
	end, _ := ctx.Deadline()
	if err := c.SetDeadline(end); err != nil {
		return "", "", err
	}
	if err := c.HandshakeContext(ctx); err != nil {
		return "", "", err
	}
	if _, err := io.WriteString(c, "hello"); err != nil {
		return "", "", err
	}
	if err := c.CloseWrite(); err != nil {
		return "", "", err
	}
	b, err := io.ReadAll(c)
	if err == nil && len(b) == 0 {
		err = fmt.Errorf("%s does not answer", to)
	}
	return c.ConnectionState().PeerCertificates[0].SerialNumber.String(), string(b), err
}

// serveRaw answers each connection with all received bytes, including a PROXY header.
func serveRaw(t testing.TB, at string) {
	t.Helper()
	ln, err := net.Listen("tcp", at)
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
				b, err := io.ReadAll(c)
				if err == nil {
					_, _ = c.Write(b)
				}
			}()
		}
	}()
}
