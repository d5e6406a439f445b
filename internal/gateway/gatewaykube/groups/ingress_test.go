package groups

import (
	"testing"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

// GW-10: relays offer to be hosts of a service only once it is ours, and no longer
// when it turns out to be somebody else's; a call that fails meanwhile changes nothing.
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
	ours := &v1alpha1.VIPStatus{Name: "svc:web", Addresses: []string{"100.100.1.2"}}
	for _, tt := range []struct {
		name string
		s    *v1alpha1.TailscaleService
		may  bool
	}{
		{"nothing known", service(nil, "", ""), false},
		{"not decided", service(ours, "", ""), false},
		{"ours", service(ours, metav1.ConditionTrue, v1alpha1.ReasonProgrammed), true},
		{"changed, and not looked at since", service(ours, metav1.ConditionFalse, v1alpha1.ReasonPending), true},
		{"not owned", service(ours, metav1.ConditionFalse, v1alpha1.ReasonVIPNotOwned), false},
		{"in conflict", service(ours, metav1.ConditionFalse, v1alpha1.ReasonVIPConflict), false},
		{"no address", service(&v1alpha1.VIPStatus{Name: "svc:web"}, metav1.ConditionTrue, v1alpha1.ReasonProgrammed), false},
		{"another name", service(&v1alpha1.VIPStatus{Name: "svc:old", Addresses: []string{"100.100.1.2"}}, metav1.ConditionTrue, v1alpha1.ReasonProgrammed), false},
	} {
		if got := mayHost(tt.s); got != tt.may {
			t.Errorf("%s: %v", tt.name, got)
		}
	}
}
