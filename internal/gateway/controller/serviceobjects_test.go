package controller

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/relay/config"
)

// GTW-19: for any reports of relays, a relay is an endpoint of a port exactly if it has reported
// this port, once for each of its address families. No EndpointSlice is one that the API server
// rejects.
func TestEndpointSlices(t *testing.T) {
	s := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	group := gateway.Name{Namespace: "system", Name: "relays"}
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 1))
		var ports []portMapping
		for i := range 1 + r.IntN(32) {
			ports = append(ports, portMapping{name: fmt.Sprint("p", i), port: int32(1 + i), protocol: []corev1.Protocol{"TCP", "UDP"}[r.IntN(2)], target: uint16(1 + r.IntN(3)), match: uint16(10000 + i)})
		}
		var relays []readyRelay
		want := map[string]bool{} // family, match port and pod
		for i := range r.IntN(6) {
			one := readyRelay{pod: fmt.Sprint("relays-", i), uid: fmt.Sprint(i), status: config.Status{Services: map[string]config.ServiceStatus{}}}
			if r.IntN(4) > 0 {
				one.ips = append(one.ips, netip.MustParseAddr(fmt.Sprint("10.0.0.", i+1)))
			}
			if r.IntN(2) > 0 {
				one.ips = append(one.ips, netip.MustParseAddr(fmt.Sprint("fd00::", i+1)))
			}
			var reported []config.Port
			any := false
			for _, m := range ports {
				p := config.Port{Protocol: config.Protocol(strings.ToLower(string(m.protocol))), Match: m.match, Target: m.target}
				switch r.IntN(8) {
				case 0:
					p.Target++
				case 1:
					p.Match++
				case 2:
					continue
				default:
					any = true
					for _, a := range one.ips {
						want[fmt.Sprint(a.Is4(), m.match, one.pod)] = true
					}
				}
				reported = append(reported, p)
			}
			// Reports about other services have no effect.
			key := []string{"shop.web", "shop.web", "shop.web", "shop.webs"}[r.IntN(4)]
			if key != "shop.web" {
				for k := range want {
					if strings.HasSuffix(k, one.pod) {
						delete(want, k)
					}
				}
				any = false
			}
			if any {
				for _, a := range one.ips {
					want[fmt.Sprint(a.Is4(), v1alpha1.HealthPort, one.pod)] = true
				}
			}
			one.status.Services[key] = config.ServiceStatus{Ports: reported}
			relays = append(relays, one)
		}
		// A relay with a wrong port number may carry another mapping by that.
		for _, one := range relays {
			for _, m := range ports {
				for _, a := range one.ips {
					if one.carries("shop.web", m) {
						want[fmt.Sprint(a.Is4(), m.match, one.pod)] = true
						want[fmt.Sprint(a.Is4(), v1alpha1.HealthPort, one.pod)] = true
					}
				}
			}
		}
		got, names := map[string]bool{}, map[string]bool{}
		for _, o := range endpointSlices(s, group, "uid", ports, relays) {
			switch {
			case names[o.Name]:
				t.Fatalf("seed: names[o.Name] is true; seed = %d, %+v", seed, o)
			case o.Namespace != "system":
				t.Fatalf("seed: o.Namespace = %q, want %q; seed = %d", o.Namespace, "system", seed)
			case o.Labels[discoveryv1.LabelServiceName] != gateway.GroupServiceName(gateway.Name{Namespace: "shop", Name: "web"}):
				t.Fatalf(`seed: got %q, want gateway.GroupServiceName(gateway.Name{Namespace: "shop", Name: "web"}); seed = %d`,
					o.Labels[discoveryv1.LabelServiceName], seed)
			case o.Labels[discoveryv1.LabelManagedBy] != "gateway.tailscale.com":
				t.Fatalf("seed: got %q, want %q; seed = %d", o.Labels[discoveryv1.LabelManagedBy], "gateway.tailscale.com", seed)
			case len(o.Ports) == 0:
				t.Fatalf("seed: len(o.Ports) = %v; seed = %d", len(o.Ports), seed)
			case len(o.Ports) > 100:
				t.Fatalf("seed: len(o.Ports) = %v, want at most 100; seed = %d", len(o.Ports), seed)
			case len(o.Endpoints) == 0:
				t.Fatalf("seed: len(o.Endpoints) = %v; seed = %d", len(o.Endpoints), seed)
			}
			names[o.Name] = true
			for _, p := range o.Ports {
				for _, e := range o.Endpoints {
					key := fmt.Sprint(o.AddressType == discoveryv1.AddressTypeIPv4, *p.Port, e.TargetRef.Name)
					switch {
					case got[key]:
						t.Fatalf("seed: got[key] is true; seed = %d, %s, %+v", seed, key, o)
					case len(e.Addresses) != 1:
						t.Fatalf("seed: len(e.Addresses) = %v, want 1; seed = %d", len(e.Addresses), seed)
					case netip.MustParseAddr(e.Addresses[0]).Is4() != (o.AddressType == discoveryv1.AddressTypeIPv4):
						t.Fatalf("seed: netip.MustParseAddr(e.Addresses[0]).Is4() != (o.AddressType == discoveryv1.AddressTypeIPv4); seed = %d, %s, %+v",
							seed, key, o)
					}
					got[key] = true
				}
			}
		}
		for key := range want {
			if !got[key] {
				t.Fatalf("seed %d: %s is missing", seed, key)
			}
		}
		for key := range got {
			if !want[key] {
				t.Fatalf("seed %d: %s should not be", seed, key)
			}
		}
	}
}

// An address that the API server rejects must not affect the other relays.
func TestValidEndpoint(t *testing.T) {
	for text, want := range map[string]bool{"10.0.0.1": true, "fd00::1": true, "127.0.0.1": false, "::1": false, "169.254.1.1": false, "fe80::1": false, "0.0.0.0": false, "224.0.0.1": false,
		"::ffff:10.0.0.1": false, "fd00::1%eth0": false} {
		if got := validEndpoint(netip.MustParseAddr(text)); got != want {
			t.Errorf("%s: %v", text, got)
		}
	}
}

// A port of the service has priority over the health port.
func TestHealthPort(t *testing.T) {
	s := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: "shop", Name: "web"}}
	for _, tt := range []struct {
		ports []portMapping
		want  int
	}{
		{[]portMapping{{name: "a", port: 80, protocol: "TCP", match: 10000}}, 2},
		{[]portMapping{{name: "a", port: 9002, protocol: "TCP", match: 10000}}, 1},
		{[]portMapping{{name: "a", port: 9002, protocol: "UDP", match: 10000}}, 2},
		{[]portMapping{{name: "health", port: 80, protocol: "TCP", match: 10000}}, 1},
	} {
		got := frontService(s, gateway.Name{Namespace: "system", Name: "g"}, tt.ports).Spec.Ports
		if len(got) != tt.want || !slices.ContainsFunc(got, func(p corev1.ServicePort) bool { return p.TargetPort.IntVal == 10000 }) {
			t.Errorf("%+v: %+v", tt.ports, got)
		}
	}
}
