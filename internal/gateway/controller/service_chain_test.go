//go:build unix

package controller

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/testenv"
)

// GTW-19: a pod reaches a node of the tailnet. The test resolves ExternalName, ClusterIP and
// EndpointSlice as cluster DNS and kube-proxy do, and dials the result. This is a real relay,
// which is an endpoint because it has reported the service itself. It is not an endpoint any longer
// when its pod is replaced.
//
// The API server rejects loopback endpoints, but the relay's process must listen on loopback. Its
// pod therefore has the address 10.77.9.1, and the test dials 127.77.9.1 instead.
func TestServiceChain(t *testing.T) {
	t.Parallel()
	p := newServiceEnv(t, "tp-chain", true)
	ctx, cancel := context.WithTimeout(t.Context(), serviceDeadline)
	defer cancel()
	tn := tailnettest.Start(t, serviceTestPolicy)
	web := tn.Node("web-1", "", "tag:svc-web")
	p.must(tn.Ready(ctx, web))
	ln, err := web.Listen("tcp", ":8080")
	p.must(err)
	defer ln.Close()
	go func() {
		for {
			c, err := ln.Accept()
			if err != nil {
				return
			}
			go func() { defer c.Close(); _, _ = io.Copy(c, c) }()
		}
	}()
	ip, _ := web.TailscaleIPs()
	pc, err := web.ListenPacket("udp", netip.AddrPortFrom(ip, 53).String())
	p.must(err)
	defer pc.Close()
	go func() {
		buf := make([]byte, 2048)
		for {
			n, from, err := pc.ReadFrom(buf)
			if err != nil {
				return
			}
			_, _ = pc.WriteTo(buf[:n], from)
		}
	}()

	p.tailnet("chain", tn.Suffix(), nil)
	g := p.group("web", "chain", v1alpha1.Egress)
	s := egressService(p.shop, "billing", "chain", p.ns, "web")
	s.Spec.Target = &v1alpha1.ServiceTarget{FQDN: "web-1." + tn.Suffix()}
	p.must(p.admin.Create(ctx, s))
	key := p.shop + ".billing"
	p.ports(g, v1alpha1.MappedPort{Service: key, Protocol: v1alpha1.TCP, TargetPort: 8080, MatchPort: 10000}, v1alpha1.MappedPort{Service: key, Protocol: v1alpha1.UDP, TargetPort: 53, MatchPort: 10001})

	// The group as its controller leaves it.
	egress, err := json.Marshal(map[string]any{key: map[string]any{"tailnetTarget": map[string]any{"fqdn": "web-1." + tn.Suffix()}, "ports": []any{
		map[string]any{"protocol": "TCP", "matchPort": 10000, "targetPort": 8080}, map[string]any{"protocol": "UDP", "matchPort": 10001, "targetPort": 53}}}})
	p.must(err)
	file, err := json.Marshal(map[string]any{"tailnet": map[string]any{"controlURL": tn.ControlURL(), "hostnamePrefix": "web", "tags": []string{"tag:relay"}}})
	p.must(err)
	metadata := func(serviceName string) metav1.ObjectMeta {
		return metav1.ObjectMeta{Namespace: p.ns, Name: serviceName}
	}
	rbac, err := client.New(p.cluster.AdminConfig(), client.Options{Scheme: withAccess(t)})
	p.must(err)
	for _, o := range []client.Object{
		&corev1.Secret{ObjectMeta: metadata("web-0-config"), StringData: map[string]string{"authkey": tn.AuthKey(tailnettest.AuthKey{Tags: []string{"tag:relay"}})}},
		&corev1.ServiceAccount{ObjectMeta: metadata("web")},
		&corev1.ConfigMap{ObjectMeta: metadata("web-egress-config"), Data: map[string]string{"egress-services": string(egress), "relay.json": string(file)}},
		&rbacv1.Role{ObjectMeta: metadata("web"), Rules: []rbacv1.PolicyRule{
			{APIGroups: []string{""}, Resources: []string{"secrets"}, ResourceNames: []string{"web-0", "web-0-config"}, Verbs: []string{"get", "update", "patch"}},
			{APIGroups: []string{""}, Resources: []string{"configmaps"}, ResourceNames: []string{"web-egress-config"}, Verbs: []string{"get", "watch"}}}},
		&rbacv1.RoleBinding{ObjectMeta: metadata("web"), RoleRef: rbacv1.RoleRef{APIGroup: rbacv1.GroupName, Kind: "Role", Name: "web"},
			Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Namespace: p.ns, Name: "web"}}},
	} {
		p.must(rbac.Create(ctx, o))
	}
	pod := p.pod(g, 0, "10.77.9.1")
	r, err := testenv.StartRelay(ctx, t.TempDir(), p.cluster, testenv.RelayOptions{Namespace: p.ns, Account: "web", Pod: pod.Name, UID: string(pod.UID), IP: "127.77.9.1"})
	p.must(err)
	t.Cleanup(func() {
		r.Kill()
		if t.Failed() {
			t.Log(r.Output())
		}
	})
	p.must(r.AwaitReady(ctx, "/readyz"))
	o := p.condition(s, v1alpha1.ConditionReady, "True/Ready")
	if o.Status.Egress.Endpoints.Ready != 1 {
		t.Errorf("%+v", o.Status.Egress)
	}

	// A client in the team's namespace dials billing:80 and billing:53.
	dial := func(protocol corev1.Protocol, port int32) (net.Conn, error) {
		addr, err := p.resolve(ctx, p.shop, "billing", protocol, port)
		if err != nil {
			return nil, err
		}
		return new(net.Dialer).DialContext(ctx, strings.ToLower(string(protocol)), strings.Replace(addr, "10.77.", "127.77.", 1))
	}
	for _, tt := range []struct {
		protocol corev1.Protocol
		port     int32
	}{{corev1.ProtocolTCP, 80}, {corev1.ProtocolUDP, 53}} {
		p.until(fmt.Sprintf("%s %d is carried", tt.protocol, tt.port), func() error {
			c, err := dial(tt.protocol, tt.port)
			if err != nil {
				return err
			}
			defer c.Close()
			_ = c.SetDeadline(time.Now().Add(5 * time.Second))
			if _, err := io.WriteString(c, "you there"); err != nil {
				return err
			}
			buf := make([]byte, 100)
			n, err := io.ReadAtLeast(c, buf, len("you there"))
			if err == nil && string(buf[:n]) != "you there" {
				err = fmt.Errorf("got %q", buf[:n])
			}
			return err
		})
	}

	// The pod is replaced. The status in its Secret belongs to the former pod until the new relay
	// writes its own.
	p.must(p.admin.Delete(ctx, pod))
	p.awaitGone(pod.DeepCopy())
	again := p.pod(g, 0, "10.77.9.2")
	p.condition(s, v1alpha1.ConditionReady, "False/NoReadyEndpoints")
	if _, err := p.resolve(ctx, p.shop, "billing", corev1.ProtocolTCP, 80); err == nil {
		t.Error("a pod is an endpoint but has not reported that it carries the service")
	}
	p.must(r.Stop(time.Minute))
	r2, err := testenv.StartRelay(ctx, t.TempDir(), p.cluster, testenv.RelayOptions{Namespace: p.ns, Account: "web", Pod: again.Name, UID: string(again.UID), IP: "127.77.9.2"})
	p.must(err)
	t.Cleanup(r2.Kill)
	p.condition(s, v1alpha1.ConditionReady, "True/Ready")
	addr, err := p.resolve(ctx, p.shop, "billing", corev1.ProtocolTCP, 80)
	if err != nil || addr != "10.77.9.2:10000" {
		t.Errorf("%s, %v", addr, err)
	}
}

func withAccess(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := newServiceScheme(t)
	if err := rbacv1.AddToScheme(s); err != nil {
		t.Fatal(err)
	}
	return s
}

// resolve returns the destination of a connection to a Service, as cluster DNS and kube-proxy
// compute it.
func (p *serviceEnv) resolve(ctx context.Context, ns, serviceName string, protocol corev1.Protocol, port int32) (string, error) {
	o := &corev1.Service{}
	if err := p.admin.Get(ctx, client.ObjectKey{Namespace: ns, Name: serviceName}, o); err != nil {
		return "", err
	}
	if o.Spec.Type == corev1.ServiceTypeExternalName {
		parts := strings.SplitN(o.Spec.ExternalName, ".", 4)
		if len(parts) != 4 || parts[2] != "svc" || parts[3] != "cluster.local" {
			return "", fmt.Errorf("%q is not a Service of the cluster", o.Spec.ExternalName)
		}
		return p.resolve(ctx, parts[1], parts[0], protocol, port)
	}
	if net.ParseIP(o.Spec.ClusterIP) == nil {
		return "", fmt.Errorf("%s has no address: %q", serviceName, o.Spec.ClusterIP)
	}
	i := slices.IndexFunc(o.Spec.Ports, func(s corev1.ServicePort) bool { return s.Port == port && s.Protocol == protocol })
	if i < 0 {
		return "", fmt.Errorf("%s has no port %s %d", serviceName, protocol, port)
	}
	var list discoveryv1.EndpointSliceList
	if err := p.admin.List(ctx, &list, client.InNamespace(ns), client.MatchingLabels{discoveryv1.LabelServiceName: serviceName}); err != nil {
		return "", err
	}
	for _, slice := range list.Items {
		for _, sp := range slice.Ports {
			if *sp.Name == o.Spec.Ports[i].Name && *sp.Protocol == protocol {
				for _, e := range slice.Endpoints {
					if *e.Conditions.Ready {
						return net.JoinHostPort(e.Addresses[0], fmt.Sprint(*sp.Port)), nil
					}
				}
			}
		}
	}
	return "", errors.New(serviceName + " has no endpoint")
}
