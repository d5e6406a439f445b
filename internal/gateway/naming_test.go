package gateway

import (
	"regexp"
	"strings"
	"testing"
	"unicode/utf8"
)

func TestNames(t *testing.T) {
	long := strings.Repeat("a", 63)
	for got, want := range map[string]string{
		routeName("web"):                                      "tailscale-svc-web",
		clusterName("web.dev"):                                "tailscale-cluster-web.dev",
		portClusterName("web", 8080):                          "tailscale-cluster-web_8080",
		backendClusterName(Name{"shop", "billing"}, 80):       "tailscale-cluster-shop_billing_80",
		ruleRouteName(Name{"shop", "p"}, 2):                   "tailscale-rule-shop_p_2",
		ServiceKey(Name{"shop", "billing"}):                   "shop.billing",
		DiscoveredName("eg", "web", "corp", false):            "eg-web",
		groupName("web", Name{"infra", "eg-web"}, false):      "web-proxy-group",
		sharedGroupName("eg", "corp"):                         "eg-corp-egress",
		ingressGroupName("corp"):                              "corp-ingress",
		groupName(long, Name{"infra", "x"}, false)[:41]:       long[:40] + "-",
		DiscoveredName("eg", long, "corp", false)[:41]:        "eg-" + long[:37] + "-",
		RuleKey{"HTTPRoute", Name{"a", "b"}, 3}.ClusterName(): "httproute/a/b/rule/3",
	} {
		if got != want {
			t.Errorf("%q, want %q", got, want)
		}
	}
	for name, limit := range map[string]int{
		DiscoveredName("eg", long, "corp", false): 63, DiscoveredName(long, long, "corp", true): 63, GroupServiceName(Name{long, long}): 63,
		groupName(long, Name{long, long}, false): 52, groupName(long, Name{long, long}, true): 52, sharedGroupName(long, long): 52, ingressGroupName(long): 52,
	} {
		if len(name) > limit || !IsLabel(name) {
			t.Errorf("%q has %d characters of %d, or is not a label", name, len(name), limit)
		}
	}
	// Long names with the same beginning stay different.
	if a, b := DiscoveredName("eg", long, "corp", false), DiscoveredName("eg", long[:62]+"b", "corp", false); a == b {
		t.Errorf("both are %q", a)
	}
}

func FuzzMatch(f *testing.F) {
	f.Add("svc:web-*", "svc:web-1")
	f.Add("*a*b*", "xaayb")
	f.Add("", "")
	f.Fuzz(func(t *testing.T, pattern, name string) {
		if len(pattern) > 100 || strings.Count(pattern, "*") > 8 || !utf8.ValidString(pattern) || !utf8.ValidString(name) {
			return // regexp, which is the reference, does not accept it
		}
		want := regexp.MustCompile(`\A(?s:` + strings.ReplaceAll(regexp.QuoteMeta(pattern), `\*`, `.*`) + `)\z`)
		if matchPattern(pattern, name) != want.MatchString(name) {
			t.Fatalf("%q, %q: %v", pattern, name, matchPattern(pattern, name))
		}
	})
}

// A name from a tailnet becomes part of a generated name only if it is a DNS label.
func FuzzServiceLabel(f *testing.F) {
	for _, s := range []string{"svc:web", "web", "svc:svc:web", "svc:-a", "svc:a.b", "svc:A", ""} {
		f.Add(s)
	}
	form := regexp.MustCompile(`\A[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?\z`)
	f.Fuzz(func(t *testing.T, s string) {
		label, ok := ServiceLabel(s)
		if ok != form.MatchString(strings.TrimPrefix(s, "svc:")) || ok && !form.MatchString(label) {
			t.Fatalf("%q: %q, %v", s, label, ok)
		}
		if p := Printable(s); len(p) > 800 || strings.ContainsFunc(p, func(r rune) bool { return r < ' ' || r > '~' }) {
			t.Fatalf("%q is printed as %q", s, p)
		}
	})
}
