package settings_test

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/settings"
)

func TestGateway(t *testing.T) {
	switch g, err := settings.ParseGateway(nil); {
	case err != nil:
		t.Error(err)
	case len(g.Tailnet.APIBaseURLs) != 1:
		t.Errorf("len(g.Tailnet.APIBaseURLs) = %v, want 1", len(g.Tailnet.APIBaseURLs))
	case g.Tailnet.RequestsPerSecond != 5:
		t.Errorf("g.Tailnet.RequestsPerSecond = %v, want 5", g.Tailnet.RequestsPerSecond)
	case g.Tailnet.Burst != 10:
		t.Errorf("g.Tailnet.Burst = %v, want 10", g.Tailnet.Burst)
	}
	for _, x := range []struct{ file, says string }{
		{"credentialNamespaces: [tailscale, default]\ntailnet: {apiBaseURLs: [\"https://api.example\", \"http://127.0.0.1:1\"], requestsPerSecond: 0.5, burst: 1}", ""},
		{"credentialNamespace: [x]", "field credentialNamespace is not a setting"},
		{"tailnet: {urls: []}", "field urls is not a setting of tailnet"},
		{"credentialNamespaces: [\"*\"]", "not the name of a namespace"},
		{"tailnet: {apiBaseURLs: []}", "is empty"},
		{"tailnet: {apiBaseURLs: [\"http://api.example\"]}", "without TLS"},
		{"tailnet: {apiBaseURLs: [\"http://127.0.0.1.example\"]}", "without TLS"},
		{"tailnet: {apiBaseURLs: [\"https://u:p@api.example\"]}", "not a scheme and a host"},
		{"tailnet: {apiBaseURLs: [\"https://api.example/api/v2\"]}", "not a scheme and a host"},
		{"tailnet: {requestsPerSecond: 0}", "requestsPerSecond"},
		{"tailnet: {burst: 0}", "burst"},
		{"tailnet: {burst: many}", "as a number"},
		{"operatorID: tp-1\nclusterDomain: c.example\nproxyNamespaces: [relays]\nconsumerNamespaces: [shop]\nproxy: {image: \"tailplane@sha256:0\", pullPolicy: Never, monitoringNamespaces: [monitoring], resources: {requests: {cpu: 100m, memory: 64Mi}}}\nextension: {maxMessageSize: 8Mi, deadline: 1s}\nenvoy: {namespace: eg, discovery: Endpoints}", ""},
		{"operatorID: \"A B\"", "operatorID"},
		{"clusterDomain: \"cluster..local\"", "clusterDomain"},
		{"proxyNamespaces: [\"a/b\"]", "proxyNamespaces"},
		{"consumerNamespaces: [\"\"]", "consumerNamespaces"},
		{"proxy: {pullPolicy: Sometimes}", "pullPolicy"},
		{"proxy: {images: x}", "field images is not a setting of proxy"},
		{"proxy: {image: \"a b\"}", "proxy.image"},
		{"proxy: {resources: {request: {cpu: 1}}}", "neither requests nor limits"},
		{"proxy: {resources: {limits: {cpu: much}}}", "proxy.resources.limits.cpu"},
		{"extension: {maxMessageSize: 1Mi}", "maxMessageSize"},
		{"extension: {maxMessageSize: much}", "is not a size"},
		{"extension: {maxMessageSize: 9Gi}", "is not a size"},
		{"extension: {deadline: 1h}", "extension.deadline"},
		{"extension: {deadlines: 1h}", "is not a setting of extension"},
		{"envoy: {discovery: Guess}", "neither DNS nor Endpoints"},
		{"envoy: {controller: \"\"}", "envoy.controller"},
		{"{}\n---\n{}", "more than one YAML document"},
	} {
		_, err := settings.ParseGateway([]byte(x.file))
		if x.says == "" && err != nil || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v, want %q", x.file, err, x.says)
		}
	}
}

// A file of the release before starts, and names what has no effect any more.
func TestGatewayWarnings(t *testing.T) {
	for _, x := range []struct{ file, names string }{
		{"", ""},
		{"proxy: {image: \"x:1\"}", ""},
		{"proxy: {allowContainerboot: true}", "proxy.allowContainerboot"},
		{"proxy: {allowContainerboot: false, containerbootImage: \"tailscale/tailscale:v1.102.5\"}", "proxy.allowContainerboot proxy.containerbootImage"},
	} {
		g, err := settings.ParseGateway([]byte(x.file))
		if err != nil {
			t.Errorf("%s: %v", x.file, err)
		}
		var names []string
		for _, w := range g.Warnings() {
			name, rest, _ := strings.Cut(w, " ")
			names = append(names, name)
			if !strings.Contains(rest, "no longer supported") || !strings.Contains(rest, "remove it") {
				t.Errorf("%s: %q has no advice", x.file, w)
			}
		}
		if got := strings.Join(names, " "); got != x.names {
			t.Errorf("%s: warnings name %q, want %q", x.file, got, x.names)
		}
	}
}

func TestSearchedDomain(t *testing.T) {
	for text, want := range map[string]string{
		"": "cluster.local", "nameserver 10.0.0.10\nsearch a.svc.k8s.example svc.k8s.example k8s.example\n": "k8s.example",
		"search example.com": "cluster.local", "search svc. a": "cluster.local", "# search svc.x\nsearch svc.k8s.example.": "k8s.example",
	} {
		if got := settings.SearchedDomain(text); got != want {
			t.Errorf("%q: %s, want %s", text, got, want)
		}
	}
}
