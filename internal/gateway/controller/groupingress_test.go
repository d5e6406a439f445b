package controller

import (
	"fmt"
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/relay/config"
)

// GTW-25: TCP ports become a tailnet service; a service with only UDP uses the relays' own
// addresses.
func TestCarriedPorts(t *testing.T) {
	tcp, udp := v1alpha1.ServicePort{Port: 80, TargetPort: 8080}, v1alpha1.ServicePort{Port: 53, Protocol: v1alpha1.UDP}
	tls := v1alpha1.ServicePort{Port: 443, TargetPort: 8080, AppProtocol: v1alpha1.AppGRPC, TLS: v1alpha1.TLSTerminate}
	ended := config.IngressPort{Protocol: config.TCP, Port: 443, Backend: "10.0.0.7:8080", Terminate: true, H2: true}
	web, dns := config.IngressPort{Protocol: config.TCP, Port: 80, Backend: "10.0.0.7:8080"}, config.IngressPort{Protocol: config.UDP, Port: 53, Backend: "10.0.0.7:53"}
	for _, tt := range []struct {
		name   string
		vip    bool
		header v1alpha1.ProxyProtocol
		ports  []v1alpha1.ServicePort
		want   config.IngressService
		served int
		left   bool
	}{
		{"TCP", true, "", []v1alpha1.ServicePort{tcp}, config.IngressService{VIP: "svc:web", Ports: []config.IngressPort{web}}, 1, false},
		{"TLS at one of two ports", true, "", []v1alpha1.ServicePort{tcp, tls}, config.IngressService{VIP: "svc:web", Domain: "web.tail1.ts.net", Ports: []config.IngressPort{web, ended}}, 2, false},
		{"UDP", true, "", []v1alpha1.ServicePort{udp}, config.IngressService{Ports: []config.IngressPort{dns}}, 0, false},
		{"both", true, "", []v1alpha1.ServicePort{udp, tcp}, config.IngressService{VIP: "svc:web", Ports: []config.IngressPort{web}}, 1, true},
		{"both, on the relays' own addresses", false, "", []v1alpha1.ServicePort{tcp, udp}, config.IngressService{Ports: []config.IngressPort{web, dns}}, 1, false},
		{"UDP with a header", false, v1alpha1.ProxyProtocolV2, []v1alpha1.ServicePort{udp}, config.IngressService{ProxyProtocol: true}, 0, true},
	} {
		s := &v1alpha1.TailscaleService{}
		s.Spec.Ports, s.Spec.ProxyProtocol = tt.ports, tt.header
		if tt.vip {
			s.Spec.VIPService = &v1alpha1.VIPService{Name: "svc:web"}
		}
		file, serve, omitted := carriedPorts(s, "10.0.0.7", tt.want.Domain)
		switch {
		case fmt.Sprint(file) != fmt.Sprint(tt.want):
			t.Errorf("%s: fmt.Sprint(file) = %q, want %q", tt.name, fmt.Sprint(file), fmt.Sprint(tt.want))
		case len(serve.TCP) != tt.served:
			t.Errorf("%s: len(serve.TCP) = %v, want %v", tt.name, len(serve.TCP), tt.served)
		case omitted != tt.left:
			t.Errorf("%s: omitted = %v, want %v", tt.name, omitted, tt.left)
		}
		if serve.TCP["443"].TerminateTLS != tt.want.Domain || serve.TCP["80"].TerminateTLS != "" {
			t.Errorf("%s, for Tailscale's own image: %+v", tt.name, serve)
		}
	}
}

// GW-10: relays offer to be hosts of a service only after the operator owns it, and stop when
// another owner turns out to have it. A failed API call in between changes nothing.
func TestMayHost(t *testing.T) {
	service := func(vip *v1alpha1.VIPStatus, status metav1.ConditionStatus, reason string) *v1alpha1.TailscaleService {
		s := &v1alpha1.TailscaleService{}
		s.Spec.VIPService = &v1alpha1.VIPService{Name: "svc:web"}
		s.Status.VIP = vip
		if reason != "" {
			s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: status, Reason: reason}}
		}
		return s
	}
	managed := &v1alpha1.VIPStatus{Name: "svc:web", Addresses: []string{"100.100.1.2"}}
	for _, tt := range []struct {
		name string
		s    *v1alpha1.TailscaleService
		may  bool
	}{
		{"nothing known", service(nil, "", ""), false},
		{"not decided", service(managed, "", ""), false},
		{"ours", service(managed, metav1.ConditionTrue, v1alpha1.ReasonProgrammed), true},
		{"changed and not reconciled since", service(managed, metav1.ConditionFalse, v1alpha1.ReasonPending), true},
		{"not owned", service(managed, metav1.ConditionFalse, v1alpha1.ReasonVIPNotOwned), false},
		{"in conflict", service(managed, metav1.ConditionFalse, v1alpha1.ReasonVIPConflict), false},
		{"no address", service(&v1alpha1.VIPStatus{Name: "svc:web"}, metav1.ConditionTrue, v1alpha1.ReasonProgrammed), false},
		{"another name", service(&v1alpha1.VIPStatus{Name: "svc:old", Addresses: []string{"100.100.1.2"}}, metav1.ConditionTrue, v1alpha1.ReasonProgrammed), false},
	} {
		if got := mayHost(tt.s); got != tt.may {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
