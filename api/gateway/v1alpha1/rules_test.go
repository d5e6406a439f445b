//go:build unix

package v1alpha1_test

import (
	"encoding/json"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/util/yaml"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// good has valid objects. Each refused object is one of them with one change.
var good = map[string]string{
	"tailnet":       `{"kind": "TailscaleTailnet", "spec": {}}`,
	"group":         `{"kind": "TailscaleProxyGroup", "spec": {"type": "egress", "tailnetTarget": {"serviceName": "web"}}}`,
	"ingress group": `{"kind": "TailscaleProxyGroup", "spec": {"type": "ingress"}}`,
	"egress":        `{"kind": "TailscaleService", "spec": {"target": {"serviceName": "svc:web"}, "ports": [{"port": 80}]}}`,
	"ingress":       `{"kind": "TailscaleService", "spec": {"type": "ingress", "vipService": {"name": "svc:web"}, "backendRef": {"name": "web"}, "ports": [{"port": 80}]}}`,
	"gateway":       `{"kind": "TailscaleGateway", "spec": {"targetRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "eg"}, "tailnets": [{"tailnetRef": {"name": "corp"}, "routeGeneration": {"egress": {}}}]}}`,
	"policy":        `{"kind": "TailscaleRoutePolicy", "spec": {"targetRef": {"group": "gateway.networking.k8s.io", "kind": "HTTPRoute", "name": "web"}, "tailscaleTarget": {"servicePattern": "svc:*"}}}`,
	"access":        `{"kind": "TailscaleRoutePolicy", "spec": {"targetRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "name": "eg"}, "access": {"from": "Tailnet"}}}`,
}

// refused lists changes of valid objects that the API server refuses, and a part of its message.
var refused = []struct{ of, change, why string }{
	{"tailnet", `{"metadata": {"name": "a.b"}}`, "the name must be a DNS label"},
	{"tailnet", `{"spec": {"tailnet": "a/b"}}`, "spec.tailnet"},
	{"tailnet", `{"spec": {"tailnet": ".."}}`, "one path segment"},
	{"tailnet", `{"spec": {"oauthSecretNamespace": "x"}}`, "oauthSecretNamespace needs oauthSecretName"},
	{"tailnet", `{"spec": {"oauthSecretName": "x", "workloadIdentity": {"clientID": "a", "audience": "b"}}}`, "exclude each other"},
	{"tailnet", `{"spec": {"workloadIdentity": {"clientID": "a"}}}`, "audience"},
	{"tailnet", `{"spec": {"tags": []}}`, "spec.tags"},
	{"tailnet", `{"spec": {"tags": ["k8s"]}}`, "spec.tags[0]"},
	{"tailnet", `{"spec": {"apiBaseURL": "http://api.example.com"}}`, "must be an https URL"},
	{"tailnet", `{"spec": {"apiBaseURL": "http://127.0.0.1.example.com"}}`, "must be an https URL"},
	{"tailnet", `{"spec": {"apiBaseURL": "https://user@api.example.com"}}`, "must be an https URL"},
	{"tailnet", `{"spec": {"apiBaseURL": "https://api.example.com/?a=b"}}`, "must be an https URL"},
	{"tailnet", `{"spec": {"apiBaseURL": "nonsense"}}`, "must be an https URL"},
	{"tailnet", `{"spec": {"controlURL": "ftp://example.com"}}`, "must be an http or https URL"},
	{"tailnet", `{"spec": {"controlURL": "https://a:b@example.com"}}`, "must be an http or https URL"},
	{"tailnet", `{"spec": {"allowedNamespaces": {"from": "Selector"}}}`, "if and only if from is Selector"},
	{"tailnet", `{"spec": {"allowedNamespaces": {"from": "All", "selector": {}}}}`, "if and only if from is Selector"},
	{"tailnet", `{"spec": {"allowedNamespaces": {"from": "Some"}}}`, "Unsupported value"},
	{"tailnet", `{"spec": {"syncInterval": "59s"}}`, "1m to 1h"},
	{"tailnet", `{"spec": {"syncInterval": "61m"}}`, "1m to 1h"},

	{"group", `{"metadata": {"name": "a23456789012345678901234567890123456789012345678901-3"}}`, "at most 52 characters"},
	{"group", `{"spec": {"type": "both"}}`, "Unsupported value"},
	{"group", `{"spec": {"type": "ingress"}}`, "tailnetTarget is for type egress"},
	{"group", `{"spec": {"replicas": 51}}`, "spec.replicas"},
	{"group", `{"spec": {"replicas": -1}}`, "spec.replicas"},
	{"group", `{"spec": {"tailnetTarget": {"serviceName": null}}}`, "set serviceName and tags"},
	{"group", `{"spec": {"tailnetTarget": {"fqdn": "a.b.ts.net"}}}`, "set serviceName and tags"},
	{"group", `{"spec": {"tailnetTarget": {"serviceName": null, "fqdn": "a.b.ts.net", "ip": "100.64.0.1"}}}`, "set serviceName and tags"},
	{"group", `{"spec": {"tailnetTarget": {"serviceName": null, "fqdn": "localhost"}}}`, "fqdn"},
	{"group", `{"spec": {"tailnetTarget": {"serviceName": null, "fqdn": "web.default.svc.cluster.local"}}}`, "name of the tailnet"},
	{"group", `{"spec": {"tailnetTarget": {"serviceName": null, "ip": "10.0.0.1"}}}`, "must be a tailnet address"},
	{"group", `{"spec": {"tailnetTarget": {"ports": []}}}`, "ports"},
	{"group", `{"spec": {"hostnamePrefix": "-a"}}`, "hostnamePrefix"},
	{"group", `{"spec": {"runtime": "Docker"}}`, "Unsupported value"},
	{"group", `{"spec": {"drainTimeout": "11m"}}`, "0s to 10m"},
	{"group", `{"spec": {"drainTimeout": "-1s"}}`, "drainTimeout"},
	{"ingress group", `{"spec": {"tailnetTarget": {"serviceName": "web"}}}`, "tailnetTarget is for type egress"},

	{"egress", `{"metadata": {"name": "a.b"}}`, "the name must be a DNS label"},
	{"egress", `{"spec": {"target": null}}`, "target must be set if and only if type is egress"},
	{"egress", `{"spec": {"target": {"tags": ["tag:a"]}}}`, "exactly one of"},
	{"egress", `{"spec": {"target": {"serviceName": null}}}`, "exactly one of"},
	{"egress", `{"spec": {"target": {"serviceName": "svc:Web"}}}`, "serviceName"},
	{"egress", `{"spec": {"target": {"serviceName": null, "tags": []}}}`, "tags"},
	{"egress", `{"spec": {"target": {"serviceName": null, "fqdn": "metadata.google.internal"}}}`, "name of the tailnet"},
	{"egress", `{"spec": {"target": {"serviceName": null, "fqdn": "169.254.169.254"}}}`, "fqdn"},
	{"egress", `{"spec": {"target": {"serviceName": null, "ip": "127.0.0.1"}}}`, "must be a tailnet address"},
	{"egress", `{"spec": {"target": {"serviceName": null, "ip": "169.254.169.254"}}}`, "must be a tailnet address"},
	{"egress", `{"spec": {"target": {"serviceName": null, "ip": "::1"}}}`, "must be a tailnet address"},
	{"egress", `{"spec": {"target": {"serviceName": null, "ip": "100.128.0.1"}}}`, "must be a tailnet address"},
	{"egress", `{"spec": {"target": {"serviceName": null, "ip": "100.100.100.100"}}}`, "must be a tailnet address"},
	{"egress", `{"spec": {"target": {"serviceName": null, "ip": "::ffff:100.64.0.1"}}}`, "must be a tailnet address"},
	{"egress", `{"spec": {"target": {"serviceName": null, "ip": "fd7a:115c:a1e0:0::53"}}}`, "must be a tailnet address"},
	{"egress", `{"spec": {"target": {"serviceName": null, "ip": "100.64.0.1%eth0"}}}`, "must be a tailnet address"},
	{"egress", `{"spec": {"ports": []}}`, "spec.ports"},
	{"egress", `{"spec": {"ports": [{"port": 0}]}}`, "port"},
	{"egress", `{"spec": {"ports": [{"port": 80, "name": "a"}, {"port": 81, "name": "a"}]}}`, "port names must be unique"},
	{"egress", `{"spec": {"ports": [{"port": 80}, {"port": 80}]}}`, "duplicate entries"},
	{"egress", `{"spec": {"ports": [{"port": 80, "tls": "Terminate"}]}}`, "tls of a port is for type ingress"},
	{"egress", `{"spec": {"ports": [{"port": 80, "protocol": "UDP", "appProtocol": "http"}]}}`, "are for TCP"},
	{"egress", `{"spec": {"ports": [{"port": 80, "appProtocol": "gopher"}]}}`, "Unsupported value"},
	{"egress", `{"spec": {"vipService": {"name": "svc:web"}}}`, "vipService must be set if and only if type is ingress"},
	{"egress", `{"spec": {"backendRef": {"name": "web"}}}`, "backendRef must be set if and only if type is ingress"},
	{"egress", `{"spec": {"proxyProtocol": "V2"}}`, "proxyProtocol is for type ingress"},
	{"egress", `{"spec": {"upstreamTLS": {"mode": "None", "serverName": "a"}}}`, "are for mode Simple"},
	{"egress", `{"spec": {"clusterService": {"name": "Web"}}}`, "clusterService.name"},
	{"ingress", `{"spec": {"target": {"serviceName": "web"}}}`, "target must be set if and only if type is egress"},
	{"ingress", `{"spec": {"vipService": null}}`, "vipService must be set if and only if type is ingress"},
	{"ingress", `{"spec": {"backendRef": null}}`, "backendRef must be set if and only if type is ingress"},
	{"ingress", `{"spec": {"upstreamTLS": {}}}`, "are for type egress"},
	{"ingress", `{"spec": {"clusterService": {}}}`, "are for type egress"},
	{"ingress", `{"spec": {"vipService": {"name": "web"}}}`, "vipService.name"},
	{"ingress", `{"spec": {"vipService": {"comment": "` + strings.Repeat("x", 201) + `"}}}`, "comment"},
	{"ingress", `{"spec": {"backendRef": {"kind": "Pod"}}}`, "Unsupported value"},
	{"ingress", `{"spec": {"backendRef": {"group": "gateway.networking.k8s.io"}}}`, "must be that of the kind"},

	{"gateway", `{"metadata": {"name": "a.b"}}`, "the name must be a DNS label"},
	{"gateway", `{"spec": {"targetRef": null}}`, "targetRef"},
	{"gateway", `{"spec": {"targetRef": {"kind": "Service"}}}`, "Unsupported value"},
	{"gateway", `{"spec": {"targetRef": {"group": "apps"}}}`, "Unsupported value"},
	{"gateway", `{"spec": {"tailnets": []}}`, "spec.tailnets"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}}, {"tailnetRef": {"name": "a"}}]}}`, "attached only once"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}, "serviceDiscovery": {"syncInterval": "29s"}}]}}`, "30s to 1h"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}, "serviceDiscovery": {"removalGrace": "25h"}}]}}`, "0s to 24h"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}, "serviceDiscovery": {"patterns": ["web"]}}]}}`, "patterns"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}, "routeGeneration": {"egress": {"pathPrefix": "/svc"}}}]}}`, "pathPrefix"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}, "routeGeneration": {"egress": {"pathPrefix": "/{service}/{service}"}}}]}}`, "pathPrefix"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}, "routeGeneration": {"egress": {"pathPrefix": "/../{service}"}}}]}}`, "pathPrefix"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}, "routeGeneration": {"egress": {"appProtocol": "tcp"}}}]}}`, "routes of a Gateway need"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}, "routeGeneration": {"egress": {"hostnames": ["a.*.com"]}}}]}}`, "hostnames"},
	{"gateway", `{"spec": {"tailnets": [{"tailnetRef": {"name": "a"}, "proxyGroup": {"maxGroups": 0}}]}}`, "maxGroups"},

	{"policy", `{"spec": {"targetRef": null}}`, "targetRef"},
	{"policy", `{"spec": {"targetRef": {"kind": "TCPRoute"}}}`, "Unsupported value"},
	{"policy", `{"spec": {"tailscaleTarget": null}}`, "set at least one of"},
	{"policy", `{"spec": {"tailscaleTarget": {"servicePattern": null}}}`, "set servicePattern, tags or both"},
	{"policy", `{"spec": {"targetRef": {"kind": "Gateway"}}}`, "are for HTTPRoute and GRPCRoute"},
	{"policy", `{"spec": {"access": {"from": "Any"}}}`, "access is for Gateway"},
	{"policy", `{"spec": {"routeRules": []}}`, "routeRules"},
	{"policy", `{"spec": {"routeRules": [{"match": {"path": "api"}, "backend": {"serviceName": "svc:a", "port": 80}}]}}`, "path must begin with /"},
	{"policy", `{"spec": {"routeRules": [{"match": {"path": "/*/a"}, "backend": {"serviceName": "svc:a", "port": 80}}]}}`, "path must begin with /"},
	{"policy", `{"spec": {"routeRules": [{"match": {"path": "/a**"}, "backend": {"serviceName": "svc:a", "port": 80}}]}}`, "path must begin with /"},
	{"policy", `{"spec": {"routeRules": [{"match": {"path": "/a/../b"}, "backend": {"serviceName": "svc:a", "port": 80}}]}}`, "path must begin with /"},
	{"policy", `{"spec": {"routeRules": [{"match": {"path": "/a%2e"}, "backend": {"serviceName": "svc:a", "port": 80}}]}}`, "path must begin with /"},
	{"policy", `{"spec": {"routeRules": [{"match": {"path": "/a b"}, "backend": {"serviceName": "svc:a", "port": 80}}]}}`, "path must begin with /"},
	{"policy", `{"spec": {"routeRules": [{"match": {"path": "/a"}, "backend": {"serviceName": "a", "port": 80}}]}}`, "serviceName"},
	{"policy", `{"spec": {"routeRules": [{"match": {"path": "/a"}, "backend": {"serviceName": "svc:a"}}]}}`, "port"},
	{"access", `{"spec": {"access": {"cidrs": ["100.64.0.0"]}}}`, "cidrs must be of the form"},
	{"access", `{"spec": {"access": {"from": "Any", "cidrs": ["100.64.0.0/10"]}}}`, "cidrs needs from Tailnet"},
	{"access", `{"spec": {"routeRules": [{"match": {"path": "/a"}, "backend": {"serviceName": "svc:a", "port": 80}}]}}`, "are for HTTPRoute and GRPCRoute"},
}

// immutable lists changes of stored objects that the API server refuses.
var immutable = []struct{ of, change, why string }{
	{"tailnet", `{"spec": {"tailnet": "example.com"}}`, "tailnet is immutable"},
	{"ingress group", `{"spec": {"type": "egress"}}`, "type is immutable"},
	{"group", `{"spec": {"tailnetRef": {"name": "corp"}}}`, "tailnetRef is immutable"},
	{"egress", `{"spec": {"type": "ingress", "target": null, "vipService": {"name": "svc:web"}, "backendRef": {"name": "web"}}}`, "type is immutable"},
	{"gateway", `{"spec": {"targetRef": {"name": "other"}}}`, "targetRef is immutable"},
}

// object returns a valid object with merge patches (RFC 7386) applied.
func object(t *testing.T, of, name string, changes ...string) []byte {
	t.Helper()
	read := func(text string) (m map[string]any) {
		if err := json.Unmarshal([]byte(text), &m); err != nil {
			t.Fatalf("%s: %v", text, err)
		}
		return m
	}
	o := read(good[of])
	meta := map[string]any{"name": name}
	if of != "tailnet" {
		meta["namespace"] = "shop"
	}
	o["apiVersion"], o["metadata"] = "gateway.tailscale.com/v1alpha1", meta
	for _, c := range changes {
		merge(o, read(c))
	}
	b, err := json.Marshal(o)
	if err != nil {
		t.Fatal(err)
	}
	return b
}

func merge(to, from map[string]any) {
	for k, v := range from {
		sub, deep := v.(map[string]any)
		old, was := to[k].(map[string]any)
		switch {
		case v == nil:
			delete(to, k)
		case deep && was:
			merge(old, sub)
		default:
			to[k] = v
		}
	}
}

// GTW-01: the API server refuses every violation of a rule, with the rule's message.
func TestRefused(t *testing.T) {
	c := server(t)
	for of := range good {
		if err := c.Apply(t.Context(), object(t, of, "good-"+strings.ReplaceAll(of, " ", "-"))); err != nil {
			t.Errorf("%s, which is good: %v", of, err)
		}
	}
	for _, r := range refused {
		err := c.Apply(t.Context(), object(t, r.of, "refused", r.change))
		if err == nil {
			t.Errorf("%s with %s is accepted", r.of, r.change)
		} else if !strings.Contains(err.Error(), r.why) {
			t.Errorf("%s with %s: %v; want it to say %q", r.of, r.change, err, r.why)
		}
	}
	for _, r := range immutable {
		err := c.Apply(t.Context(), object(t, r.of, "good-"+strings.ReplaceAll(r.of, " ", "-"), r.change))
		if err == nil || !strings.Contains(err.Error(), r.why) {
			t.Errorf("changing %s by %s: %v; want it to say %q", r.of, r.change, err, r.why)
		}
	}
	// Once there is a tailnetRef, it can neither be changed nor removed.
	named := `{"spec": {"tailnetRef": {"name": "corp"}}}`
	if err := c.Apply(t.Context(), object(t, "group", "named", named)); err != nil {
		t.Fatal(err)
	}
	for _, change := range []string{`{"spec": {"tailnetRef": {"name": "dev"}}}`, `{"spec": {"tailnetRef": null}}`} {
		if err := c.Apply(t.Context(), object(t, "group", "named", named, change)); err == nil || !strings.Contains(err.Error(), "tailnetRef is immutable") {
			t.Errorf("changing a group by %s: %v", change, err)
		}
	}
}

// Every CEL rule of the CRDs has a row above. A rule without a test might never refuse.
func TestEveryRuleIsTried(t *testing.T) {
	var reasons []string
	for _, r := range slices.Concat(refused, immutable) {
		reasons = append(reasons, r.why)
	}
	files, err := filepath.Glob("../../../deploy/crds/gateway.tailscale.com_*.yaml")
	if err != nil {
		t.Fatal(err)
	}
	rules := 0
	for _, file := range files {
		for message := range messages(t, file) {
			rules++
			if !slices.ContainsFunc(reasons, func(why string) bool { return strings.Contains(message, why) }) {
				t.Errorf("%s: no row tests the rule %q", filepath.Base(file), message)
			}
		}
	}
	if rules < 25 {
		t.Errorf("%d rules are found in %v", rules, files)
	}
}

// messages yields the messages of the validation rules of a CRD.
func messages(t *testing.T, file string) map[string]bool {
	t.Helper()
	b, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	var tree any
	if err := yaml.Unmarshal(b, &tree); err != nil {
		t.Fatal(err)
	}
	found := map[string]bool{}
	var walk func(any)
	walk = func(v any) {
		switch v := v.(type) {
		case map[string]any:
			if rules, ok := v["x-kubernetes-validations"].([]any); ok {
				for _, r := range rules {
					found[r.(map[string]any)["message"].(string)] = true
				}
			}
			for _, k := range slices.Sorted(maps.Keys(v)) {
				walk(v[k])
			}
		case []any:
			for _, e := range v {
				walk(e)
			}
		}
	}
	walk(tree)
	return found
}

// GTW-01: kubectl explain has a description of the kind and of every field.
func TestExplain(t *testing.T) {
	c := server(t)
	for _, kind := range []string{"tailscaletailnets", "tailscaleproxygroups", "tailscaleservices", "tailscalegateways", "tailscaleroutepolicies"} {
		out := kubectl(t, c, "explain", kind, "--api-version=gateway.tailscale.com/v1alpha1")
		if !strings.Contains(out, "DESCRIPTION:") || strings.Contains(out, "<empty>") {
			t.Errorf("%s has no description:\n%s", kind, out)
		}
		out = kubectl(t, c, "get", "crd", kind+".gateway.tailscale.com", "-o", "json")
		var crd struct {
			Spec struct {
				Versions []struct {
					Schema struct{ OpenAPIV3Schema map[string]any }
				}
			}
		}
		if err := json.Unmarshal([]byte(out), &crd); err != nil || len(crd.Spec.Versions) != 1 {
			t.Fatalf("%v, %d versions", err, len(crd.Spec.Versions))
		}
		fields := 0
		var walk func(path string, schema map[string]any)
		walk = func(path string, schema map[string]any) {
			if items, ok := schema["items"].(map[string]any); ok {
				walk(path+"[]", items)
			}
			properties, _ := schema["properties"].(map[string]any)
			for name, p := range properties {
				field := p.(map[string]any)
				fields++
				if text, _ := field["description"].(string); path+"."+name != ".metadata" && !strings.Contains(text, " ") {
					t.Errorf("%s%s.%s is described by %q", kind, path, name, text)
				}
				walk(path+"."+name, field)
			}
		}
		walk("", crd.Spec.Versions[0].Schema.OpenAPIV3Schema)
		if fields < 30 {
			t.Errorf("%s has %d fields", kind, fields)
		}
	}
}

// GTW-02: kubectl shows the agreed columns.
func TestColumns(t *testing.T) {
	c := server(t)
	ready := `, "conditions": [{"type": "Ready", "status": "True", "reason": "Ready", "message": "all is well", "lastTransitionTime": "2026-01-01T00:00:00Z", "observedGeneration": 1}]}}`
	for _, o := range []struct{ of, name, change, status, args, head, row string }{
		{"tailnet", "test-tailnet", `{}`, `{"status": {"deviceCount": 3, "lastSyncTime": "2026-01-01T00:00:00Z", "tailnetInfo": {"name": "tail8eff9.ts.net", "organization": "Personal"}`,
			"tstn", "NAME STATUS TAILNET ORGANIZATION AGE", "test-tailnet Ready tail8eff9.ts.net Personal"},
		{"tailnet", "wide-tailnet", `{}`, `{"status": {"deviceCount": 3, "tailnetInfo": {"name": "a.ts.net", "organization": "Organization"}`,
			"tstn -o wide", "NAME STATUS TAILNET ORGANIZATION AGE DEVICES LAST SYNC MESSAGE", "wide-tailnet Ready a.ts.net Organization * 3 all is well"},
		{"group", "columns", `{"spec": {"tailnetRef": {"name": "corp"}}}`, `{"status": {"replicas": 2, "readyReplicas": 1`,
			"tspg -n shop", "NAME TYPE TAILNET REPLICAS READY STATUS AGE", "columns egress corp 2 1 Ready"},
		{"egress", "columns", `{"spec": {"tailnetRef": {"name": "corp"}}}`, `{"status": {"egress": {"endpoints": {"ready": 2, "total": 2}}`,
			"tssvc -n shop", "NAME TYPE TAILNET TARGET ENDPOINTS VIP READY AGE", "columns egress corp svc:web 2 True"},
		{"ingress", "columns-in", `{"spec": {"tailnetRef": {"name": "corp"}}}`, `{"status": {"observedGeneration": 1`,
			"tssvc -n shop", "NAME TYPE TAILNET TARGET ENDPOINTS VIP READY AGE", "columns-in ingress corp svc:web True"},
		{"gateway", "columns", `{}`, `{"status": {"tailnetCount": 1, "serviceCount": 7`,
			"tsgw -n shop", "NAME GATEWAY TAILNETS SERVICES STATUS AGE", "columns eg 1 7 Ready"},
		{"policy", "columns", `{}`, `{"status": {"observedGeneration": 1`,
			"tsrp -n shop", "NAME TARGET KIND STATUS AGE", "columns web HTTPRoute Ready"},
	} {
		if err := c.Apply(t.Context(), object(t, o.of, o.name, o.change)); err != nil {
			t.Fatal(err)
		}
		args := strings.Fields(o.args)
		where := []string{"patch", args[0], o.name, "--subresource=status", "--type=merge", "-p", o.status + ready}
		if i := slices.Index(args, "-n"); i >= 0 {
			where = append(where, args[i], args[i+1])
		}
		kubectl(t, c, where...)
		lines := strings.Split(kubectl(t, c, append(append([]string{"get"}, args...), o.name)...), "\n")
		if got := strings.Join(strings.Fields(lines[0]), " "); got != o.head {
			t.Errorf("%s: columns %q, want %q", o.args, got, o.head)
		}
		words := strings.Fields(lines[1])
		for i, w := range strings.Fields(o.row) { // the age, which changes, is a star or the end
			if i >= len(words) || w != "*" && words[i] != w {
				t.Errorf("%s: row %q, want %q", o.args, lines[1], o.row)
				break
			}
		}
		kubectl(t, c, append([]string{"wait", args[0] + "/" + o.name, "--for=condition=Ready", "--timeout=60s"}, where[7:]...)...)
	}
}

// GTW-01: the API server does not prune Envoy Gateway's part of a policy's status, groups scale like a Deployment, and
// one category lists all kinds.
func TestWhatOthersCountUpon(t *testing.T) {
	c := server(t)
	for _, of := range []string{"policy", "group"} {
		if err := c.Apply(t.Context(), object(t, of, "counted")); err != nil {
			t.Fatal(err)
		}
	}
	// Envoy Gateway writes the whole status, without the operator's fields.
	kubectl(t, c, "patch", "tsrp", "counted", "-n", "shop", "--subresource=status", "--type=merge", "-p", `{"status": {"observedGeneration": null, "rules": null, "conditions": null, "ancestors": [{
		"ancestorRef": {"group": "gateway.networking.k8s.io", "kind": "Gateway", "namespace": "infra", "name": "eg", "sectionName": "http"}, "controllerName": "gateway.envoyproxy.io/gatewayclass-controller",
		"conditions": [{"type": "Accepted", "status": "True", "reason": "Accepted", "message": "Policy has been accepted.", "observedGeneration": 1, "lastTransitionTime": "2026-01-01T00:00:00Z"}]}]}}`)
	want := "infra eg http gateway.envoyproxy.io/gatewayclass-controller Accepted 1"
	if got := kubectl(t, c, "get", "tsrp", "counted", "-n", "shop", "-o", "jsonpath={range .status.ancestors[0]}{.ancestorRef.namespace} {.ancestorRef.name} {.ancestorRef.sectionName} {.controllerName} {.conditions[0].type} {.conditions[0].observedGeneration}{end}"); got != want {
		t.Errorf("of Envoy Gateway's status %q stays, want %q", got, want)
	}
	kubectl(t, c, "scale", "tspg/counted", "-n", "shop", "--replicas=3")
	if got := kubectl(t, c, "get", "tspg", "counted", "-n", "shop", "-o", "jsonpath={.spec.replicas}"); got != "3" {
		t.Errorf("after kubectl scale there are %s replicas", got)
	}
	if out, errs, code := kubetest.Kubectl(t.Context(), c.Kubeconfig, "scale", "tspg/counted", "-n", "shop", "--replicas=51"); code == 0 {
		t.Errorf("51 replicas are accepted: %s%s", out, errs)
	}
	for _, category := range []string{"tailplane", "tailscale-gateway"} {
		got := kubectl(t, c, "get", category, "-n", "shop", "-o", "name")
		if !strings.Contains(got, "tailscaleproxygroup.gateway.tailscale.com/counted") || !strings.Contains(got, "tailscaleroutepolicy.gateway.tailscale.com/counted") {
			t.Errorf("kubectl get %s lists %s", category, got)
		}
	}
}
