package xds

import (
	"testing"

	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"

	"github.com/tailplane/tailplane/internal/gateway"
)

// Envoy retries a request that no relay has received on another relay, unless the owner of the
// route configured retries or other backends have a share.
func TestRetry(t *testing.T) {
	route := func(p *routev3.RetryPolicy) *routev3.Route {
		return &routev3.Route{Name: "r", Match: &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Prefix{Prefix: "/"}}, Action: &routev3.Route_Route{Route: &routev3.RouteAction{
			ClusterSpecifier: &routev3.RouteAction_Cluster{Cluster: "httproute/a/b/rule/0"}, RetryPolicy: p}}}
	}
	tailplane := []gateway.WeightedCluster{{Cluster: "tailscale-cluster-web", Weight: 1}}
	wish := &routev3.RetryPolicy{RetryOn: "5xx"}
	for _, tt := range []struct {
		name string
		r    *routev3.Route
		rule gateway.Rule
		on   string
	}{
		{"a service alone", route(nil), gateway.Rule{Sole: &gateway.Cluster{}}, "connect-failure,refused-stream,reset-before-request"},
		{"a policy's services", route(nil), gateway.Rule{Default: tailplane}, "connect-failure,refused-stream,reset-before-request"},
		{"the owner's setting", route(wish), gateway.Rule{Sole: &gateway.Cluster{}}, "5xx"},
		{"together with others", route(nil), gateway.Rule{Mixed: tailplane, OwnWeight: 4}, ""},
		{"no own routes", route(nil), gateway.Rule{}, ""},
	} {
		before := proto.CloneOf(tt.r)
		out := applyRule(tt.r, tt.rule)
		if got := out.GetRoute().GetRetryPolicy().GetRetryOn(); got != tt.on {
			t.Errorf("%s: tried again on %q, want %q", tt.name, got, tt.on)
		}
		if err := out.ValidateAll(); err != nil {
			t.Errorf("%s: %v", tt.name, err)
		}
		if !proto.Equal(tt.r, before) {
			t.Errorf("%s: the input was changed", tt.name)
		}
		if !proto.Equal(applyRule(out, tt.rule), out) {
			t.Errorf("%s: applied again it changes more", tt.name)
		}
	}
	if got := renderService(gateway.Route{Name: "s", Prefix: "/svc/s", Cluster: "c"}, nil).GetRoute().GetRetryPolicy(); got.GetNumRetries().GetValue() != 2 || len(got.GetRetryHostPredicate()) != 1 {
		t.Errorf("an injected route: %v", got)
	}
}
