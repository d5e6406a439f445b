package xds

import (
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"testing"

	corev3 "github.com/envoyproxy/go-control-plane/envoy/config/core/v3"
	routev3 "github.com/envoyproxy/go-control-plane/envoy/config/route/v3"
	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/types/known/anypb"

	"github.com/tailplane/tailplane/internal/gateway"
)

func names(routes []*routev3.Route) (all []string) {
	for _, r := range routes {
		all = append(all, strings.TrimSuffix(strings.TrimPrefix(r.Name, "httproute/shop/"), "/rule/0/match/0/example_com"))
	}
	return all
}

func all(string) bool { return true }

// Row 4 of the list of forbidden outcomes, and 7.2: an added route comes before routes with
// shorter prefixes and after all others.
func TestInsertIndex(t *testing.T) {
	exact := foreignRoute("exact", "/")
	exact.Match = &routev3.RouteMatch{PathSpecifier: &routev3.RouteMatch_Path{Path: "/svc/web"}}
	expression := foreignRoute("regex", "/")
	expression.Match.PathSpecifier = &routev3.RouteMatch_SafeRegex{}
	vh := virtualHost("example.com", exact, expression, foreignRoute("longer", "/svc/web/deep"), foreignRoute("same", "/svc/web"), foreignRoute("svc", "/svc"), foreignRoute("catchall", "/"))
	g := snapshotOf(gateway.Gateway{Routes: []gateway.Route{service("web-long"), service("abc"), service("web")}}).Gateways[testGateway]
	h := renderHost(vh, g, "http", all)
	want := []string{"exact", "regex", "longer", "tailscale-svc-web-long", "same", "tailscale-svc-abc", "tailscale-svc-web", "svc", "catchall"}
	if got := names(h.Routes); !slices.Equal(got, want) {
		t.Errorf("got  %v\nwant %v", got, want)
	}
	if again := renderHost(h.VirtualHost, g, "http", all); again.changed || again.VirtualHost != h.VirtualHost {
		t.Errorf("a second time: %v", names(again.Routes))
	}
	if len(vh.Routes) != 6 {
		t.Error("the request was changed")
	}
}

// Row 22: /svc/web does not match /svc/webmail, and Strip leaves one slash.
func TestServiceRoute(t *testing.T) {
	s := service("we.b")
	s.Strip = true
	r := renderService(s, nil)
	if r.Match.GetPathSeparatedPrefix() != "/svc/we.b" {
		t.Errorf("match: %v", r.Match)
	}
	pattern := regexp.MustCompile(r.GetRoute().RegexRewrite.Pattern.Regex)
	for path, want := range map[string]string{"/svc/we.b": "/", "/svc/we.b/": "/", "/svc/we.b//": "/", "/svc/we.b/x": "/x", "/svc/we.b//x/y": "/x/y", "/svc/web/x": "/svc/web/x"} {
		if got := pattern.ReplaceAllString(path, r.GetRoute().RegexRewrite.Substitution); got != want {
			t.Errorf("%s becomes %s, want %s", path, got, want)
		}
	}
}

// GTW-34: an added route activates the same filters as the routes of the host. If these differ, it
// uses the filters of the named HTTPRoute. Without one, no route is added.
func TestGTW34_RouteFilters(t *testing.T) {
	for _, tc := range []struct {
		why    string
		routes []*routev3.Route
		from   string
		want   string // requirement, "none" for a route without filters, "" for no route
	}{
		{"no policy protects a route", []*routev3.Route{foreignRoute("a", "/a"), foreignRoute("b", "/")}, "", "none"},
		{"all agree", []*routev3.Route{withFilter(foreignRoute("a", "/a"), "x"), withFilter(foreignRoute("b", "/"), "x")}, "", "x"},
		{"all agree, whichever policy is named", []*routev3.Route{withFilter(foreignRoute("a", "/a"), "x")}, "b", "x"},
		{"one is open", []*routev3.Route{withFilter(foreignRoute("a", "/a"), "x"), foreignRoute("b", "/")}, "", ""},
		{"they differ", []*routev3.Route{withFilter(foreignRoute("a", "/a"), "x"), withFilter(foreignRoute("b", "/"), "y")}, "", ""},
		{"they differ, one is named", []*routev3.Route{withFilter(foreignRoute("a", "/a"), "x"), withFilter(foreignRoute("b", "/"), "y")}, "b", "y"},
		{"the named one is not here", []*routev3.Route{withFilter(foreignRoute("a", "/a"), "x"), withFilter(foreignRoute("b", "/"), "y")}, "c", ""},
		{"the named one differs in itself", []*routev3.Route{withFilter(foreignRoute("b", "/a"), "x"), withFilter(foreignRoute("b", "/"), "y")}, "b", ""},
		{"there is no policy to inherit", nil, "", ""},
	} {
		s := service("web")
		if tc.from != "" {
			s.InheritFrom = gateway.Name{Namespace: "shop", Name: tc.from}
		}
		g := snapshotOf(gateway.Gateway{Routes: []gateway.Route{s}}).Gateways[testGateway]
		h := renderHost(virtualHost("example.com", tc.routes...), g, "http", all)
		got := ""
		for _, r := range h.Routes {
			if !isOwnRoute(r) {
				continue
			}
			got = "none"
			if len(r.TypedPerFilterConfig) == 0 {
				continue
			}
			got = "another"
			if maps.EqualFunc(r.TypedPerFilterConfig, withFilter(foreignRoute("x", "/"), tc.want).TypedPerFilterConfig, func(a, b *anypb.Any) bool { return proto.Equal(a, b) }) {
				got = tc.want
			}
		}
		if got != tc.want || h.ambiguous != (tc.want == "") {
			t.Errorf("%s: %q (ambiguous %v), want %q", tc.why, got, h.ambiguous, tc.want)
		}
	}
}

// destinationsText returns the destinations of a route, such as "a=80 b=20".
func destinationsText(r *routev3.Route) string {
	if c := r.GetRoute().GetCluster(); c != "" {
		return c
	}
	var parts []string
	for _, w := range r.GetRoute().GetWeightedClusters().GetClusters() {
		parts = append(parts, fmt.Sprintf("%s=%d", w.Name, w.Weight.GetValue()))
	}
	return strings.Join(parts, " ")
}

// GTW-28, and row 5: weights are those of the route, refused shares go to no other backend, and a
// second application changes nothing.
func TestGTW28_Rules(t *testing.T) {
	const own, web, api = "httproute/shop/r/rule/0", "tailscale-cluster-web", "tailscale-cluster-api"
	path := func(kind gateway.PathKind, text, cluster string) gateway.PathRule {
		return gateway.PathRule{Name: "tailscale-rule-shop_p_0", Path: gateway.Path{Kind: kind, Text: text}, Cluster: cluster}
	}
	none := foreignRoute("r", "/")
	none.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 500}}
	restricted := foreignRoute("r", "/")
	restricted.Action = &routev3.Route_DirectResponse{DirectResponse: &routev3.DirectResponseAction{Status: 500, Body: &corev3.DataSource{Specifier: &corev3.DataSource_InlineString{InlineString: "closed"}}}}
	moved := foreignRoute("r", "/")
	moved.Action = &routev3.Route_Redirect{Redirect: &routev3.RedirectAction{}}
	several := foreignRoute("r", "/")
	several.GetRoute().ClusterSpecifier = &routev3.RouteAction_WeightedClusters{WeightedClusters: &routev3.WeightedCluster{Clusters: weights{weight(missingCluster, 9), weight(own+"/backend/0", 30), weight(own+"/backend/2", 50)}}}
	for _, tc := range []struct {
		why   string
		route *routev3.Route
		rule  gateway.Rule
		want  []string // of the routes of the rule, in order
	}{
		{"a mix", foreignRoute("r", "/"), gateway.Rule{Mixed: []gateway.WeightedCluster{{Cluster: web, Weight: 20}}, OwnWeight: 80}, []string{own + "=80 " + web + "=20"}},
		{"two own rules", foreignRoute("r", "/"), gateway.Rule{Mixed: []gateway.WeightedCluster{{Cluster: api, Weight: 1}, {Cluster: web, Weight: 2}}}, []string{api + "=1 " + web + "=2"}},
		{"a cluster of each of the others", several, gateway.Rule{Mixed: []gateway.WeightedCluster{{Cluster: web, Weight: 20}}, OwnWeight: 80}, []string{own + "/backend/0=30 " + own + "/backend/2=50 " + web + "=20"}},
		{"a share is refused", foreignRoute("r", "/"), gateway.Rule{Mixed: []gateway.WeightedCluster{{Cluster: web, Weight: 20}}, OwnWeight: 80, RefusedWeight: 7}, []string{missingCluster + "=7 " + own + "=80 " + web + "=20"}},
		{"all is refused", foreignRoute("r", "/"), gateway.Rule{RefusedWeight: 7}, []string{missingCluster}},
		{"a default", foreignRoute("r", "/"), gateway.Rule{Default: []gateway.WeightedCluster{{Cluster: web, Weight: 1}}}, []string{web}},
		{"a default instead of no backend", none, gateway.Rule{Default: []gateway.WeightedCluster{{Cluster: web, Weight: 1}}}, []string{web}},
		{"an answer of the owner's", restricted, gateway.Rule{Default: []gateway.WeightedCluster{{Cluster: web, Weight: 1}}, Paths: []gateway.PathRule{path(gateway.PathPrefix, "/api", api)}}, []string{""}},
		{"a redirect of the owner's", moved, gateway.Rule{Default: []gateway.WeightedCluster{{Cluster: web, Weight: 1}}, Paths: []gateway.PathRule{path(gateway.PathPrefix, "/api", api)}}, []string{""}},
		{"a path within", foreignRoute("r", "/"), gateway.Rule{Paths: []gateway.PathRule{path(gateway.PathPrefix, "/api", api)}}, []string{api, own}},
		{"a path that covers", foreignRoute("r", "/api/v1"), gateway.Rule{Paths: []gateway.PathRule{path(gateway.PathPrefix, "/api", api)}, Default: []gateway.WeightedCluster{{Cluster: web, Weight: 1}}}, []string{api}},
		{"a path elsewhere", foreignRoute("r", "/shop"), gateway.Rule{Paths: []gateway.PathRule{path(gateway.PathPrefix, "/api", api)}}, []string{own}},
		{"a path before the default", foreignRoute("r", "/"), gateway.Rule{Paths: []gateway.PathRule{path(gateway.PathExact, "/api", api)}, Default: []gateway.WeightedCluster{{Cluster: web, Weight: 1}}}, []string{api, web}},
		{"a path to nowhere", foreignRoute("r", "/"), gateway.Rule{Paths: []gateway.PathRule{path(gateway.PathPrefix, "/api", "tailscale-cluster-gone")}}, []string{missingCluster, own}},
		{"a default to nowhere", foreignRoute("r", "/"), gateway.Rule{Default: []gateway.WeightedCluster{{Cluster: web, Weight: 1}, {Cluster: "tailscale-cluster-gone", Weight: 3}}}, []string{web + "=1 " + missingCluster + "=3"}},
	} {
		tc.rule.Key = ruleKey("r")
		g := snapshotOf(gateway.Gateway{Rules: []gateway.Rule{tc.rule}}).Gateways[testGateway]
		exists := func(c string) bool { return c == web || c == api }
		h := renderHost(virtualHost("example.com", tc.route), g, "http", exists)
		var got []string
		for _, r := range h.Routes {
			got = append(got, destinationsText(r))
			if err := r.ValidateAll(); err != nil {
				t.Errorf("%s: %v", tc.why, err)
			}
			if strings.Contains(destinationsText(r), missingCluster) && r.GetRoute().GetClusterNotFoundResponseCode() != routev3.RouteAction_INTERNAL_SERVER_ERROR {
				t.Errorf("%s: a refused share does not return 500", tc.why)
			}
		}
		if !slices.Equal(got, tc.want) {
			t.Errorf("%s:\ngot  %q\nwant %q", tc.why, got, tc.want)
		}
		if again := renderHost(h.VirtualHost, g, "http", exists); again.changed {
			t.Errorf("%s: a second time it changes again", tc.why)
		}
	}
}

// A route that is cut out keeps everything except its path and destination. A prefix rewrite still
// replaces the same prefix.
func TestSplitRoute(t *testing.T) {
	r := withFilter(foreignRoute("r", "/shop"), "x")
	r.GetRoute().PrefixRewrite = "/v2"
	r.GetRoute().HostRewriteSpecifier = &routev3.RouteAction_HostRewriteLiteral{HostRewriteLiteral: "h"}
	c, err := splitRoute(r, gateway.PathRule{Path: gateway.Path{Kind: gateway.PathPrefix, Text: "/shop/api"}, Cluster: "tailscale-cluster-api"}, "n", nil)
	if err != nil {
		t.Fatal(err)
	}
	rewritten := regexp.MustCompile(c.GetRoute().RegexRewrite.Pattern.Regex).ReplaceAllString("/shop/api/x", c.GetRoute().RegexRewrite.Substitution)
	switch {
	case rewritten != "/v2/api/x":
		t.Errorf("rewritten = %q, want %q", rewritten, "/v2/api/x")
	case c.GetRoute().PrefixRewrite != "":
		t.Errorf(`c.GetRoute().PrefixRewrite != ""; %v, rewritten = %s`, c, rewritten)
	case c.GetRoute().GetHostRewriteLiteral() != "h":
		t.Errorf(`c.GetRoute().GetHostRewriteLiteral() != "h"; %v, rewritten = %s`, c, rewritten)
	case len(c.TypedPerFilterConfig) != 3:
		t.Errorf("len(c.TypedPerFilterConfig) = %v, want 3", len(c.TypedPerFilterConfig))
	case c.Match.GetPathSeparatedPrefix() != "/shop/api":
		t.Errorf(`c.Match.GetPathSeparatedPrefix() != "/shop/api"; %v, rewritten = %s`, c, rewritten)
	}
}
