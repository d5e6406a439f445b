//go:build unix

package v1alpha1_test

import (
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// server returns the API server that the tests of this binary share, with the gateway's kinds and the namespaces of
// the examples.
func server(t *testing.T) *kubetest.Cluster {
	t.Helper()
	c := kubetest.Start(t)
	files, err := filepath.Glob("../../../deploy/crds/gateway.tailscale.com_*.yaml")
	if err != nil || len(files) != 5 {
		t.Fatalf("%v, %v; want five definitions", files, err)
	}
	var docs [][]byte
	for _, file := range files {
		b, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		docs = append(docs, b)
	}
	for _, ns := range []string{"tailscale-gateway-system", "shop", "monitoring", "infra"} {
		docs = append(docs, fmt.Appendf(nil, "apiVersion: v1\nkind: Namespace\nmetadata: {name: %s}\n", ns))
	}
	if err := c.Apply(t.Context(), docs...); err != nil {
		t.Fatal(err)
	}
	return c
}

// kubectl returns the output of kubectl. The test fails if kubectl fails.
func kubectl(t *testing.T, c *kubetest.Cluster, args ...string) string {
	t.Helper()
	out, errs, code := kubetest.Kubectl(t.Context(), c.Kubeconfig, args...)
	if code != 0 {
		t.Fatalf("kubectl %s: exit %d: %s", strings.Join(args, " "), code, errs)
	}
	return out
}

// GTW-01: the CRDs can be installed, and the API server accepts every example.
func TestExamples(t *testing.T) {
	c := server(t)
	examples, err := os.ReadFile("testdata/examples.yaml")
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Apply(t.Context(), examples); err != nil {
		t.Fatal(err)
	}
	got := strings.Fields(kubectl(t, c, "get", "tailscale-gateway", "-A", "-o", "name"))
	slices.Sort(got)
	if len(got) < 6 {
		t.Errorf("the category lists %v, want every example", got)
	}
	// The schema has defaults, also within objects that are not set.
	for path, want := range map[string]string{
		"tstn/test-tailnet {.spec.apiBaseURL} {.spec.syncInterval} {.spec.allowedNamespaces.from}":                                                                                         "https://api.tailscale.com 5m Same",
		"tspg/web-server-proxy-group -n=tailscale-gateway-system {.spec.tailnetTarget.ports[0].port} {.spec.consumers.from} {.spec.runtime} {.spec.drainTimeout}":                          "80 Same Relay 60s",
		"tssvc/billing -n=shop {.spec.type} {.spec.ports[0].protocol} {.spec.proxyProtocol}":                                                                                               "egress TCP None",
		"tsgw/eg-tailnets -n=infra {.spec.tailnets[0].routeGeneration.egress.pathPrefix} {.spec.tailnets[0].proxyGroup.maxGroups} {.spec.tailnets[1].serviceDiscovery.patterns[0]}":        "/svc/{service} 50 svc:*",
		"tsgw/eg-tailnets -n=infra {.spec.tailnets[0].routeGeneration.egress.port} {.spec.tailnets[1].serviceDiscovery.enabled} {.spec.tailnets[0].routeGeneration.ingress.proxyProtocol}": "80 true None",
		"tsrp/web-service-policy -n=shop {.spec.defaultBackend}":                                                                                                                           "Tailnet",
	} {
		words := strings.Fields(path)
		i := slices.IndexFunc(words, func(w string) bool { return strings.HasPrefix(w, "{") })
		args := append([]string{"get"}, words[:i]...)
		if got := kubectl(t, c, append(args, "-o", "jsonpath="+strings.Join(words[i:], " "))...); got != want {
			t.Errorf("%s: %q, want %q", path, got, want)
		}
	}
}
