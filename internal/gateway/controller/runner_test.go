//go:build unix

package controller

import (
	"reflect"
	"testing"

	networkingv1 "k8s.io/api/networking/v1"
)

// Each kind is cached once, and policies also in Envoy's namespace. A cache with only the groups'
// namespaces would leave the gateway without a decision at every other start.
func TestCaches(t *testing.T) {
	in := []string{"own", "relays"}
	seen := map[reflect.Type]bool{}
	for o, where := range cacheOptions(in, "envoy") {
		if seen[reflect.TypeOf(o)] {
			t.Errorf("%T is cached twice", o)
		}
		seen[reflect.TypeOf(o)] = true
		if _, policy := o.(*networkingv1.NetworkPolicy); policy {
			switch _, envoy := where.Namespaces["envoy"]; {
			case !envoy:
				t.Errorf("policies are cached: envoy is false; %v, %v", where.Namespaces, where.Label)
			case len(where.Namespaces) != 3:
				t.Errorf("policies are cached: len(where.Namespaces) = %v, want 3", len(where.Namespaces))
			case where.Label != nil:
				t.Errorf("policies are cached: where.Label = %v, want nil", where.Label)
			}
		}
	}
	if len(seen) < 8 {
		t.Errorf("%d kinds", len(seen))
	}
}
