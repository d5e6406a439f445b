//go:build unix

package install

import (
	"testing"

	"github.com/google/go-cmp/cmp"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"

	"github.com/tailplane/tailplane/internal/settings"
)

// The access server announces the modes that the chart runs: the proxy first, where there is one, and each of its replicas.
func TestAnnouncedModes(t *testing.T) {
	proxies := func(hostnames ...string) (all []settings.AnnouncedProxy) {
		for _, h := range hostnames {
			all = append(all, settings.AnnouncedProxy{Hostname: h})
		}
		return all
	}
	for _, tt := range []struct {
		why, profile, values string
		want                 settings.Access
	}{
		{"no proxy", "split", "", settings.Access{Modes: []settings.AccessMode{"token"}}},
		{"a proxy", "split", "proxy: {enabled: true}", settings.Access{Modes: []settings.AccessMode{"proxy", "token"}, Proxies: proxies("prod-eu-api")}},
		{"replicas", "split", "proxy: {enabled: true, replicas: 2, hostname: gate}", settings.Access{Modes: []settings.AccessMode{"proxy", "token"}, Proxies: proxies("gate", "gate-1")}},
		{"a service", "split", "proxy: {enabled: true, replicas: 2, service: \"svc:prod-eu-api\"}", settings.Access{Modes: []settings.AccessMode{"proxy", "token"}, Proxies: proxies("prod-eu-api")}},
		{"in one process", "all", "proxy: {enabled: true, replicas: 2}", settings.Access{Modes: []settings.AccessMode{"proxy", "token"}, Proxies: proxies("home-api")}},
		{"no certificates of the tailnet", "split", "proxy: {enabled: true}\ntailnet: {insecureHTTP: true}", settings.Access{Modes: []settings.AccessMode{"proxy", "token"}, Proxies: []settings.AnnouncedProxy{{Hostname: "prod-eu-api"}}}},
		{"set", "split", "proxy: {enabled: true}\naccess: {modes: [proxy]}", settings.Access{Modes: []settings.AccessMode{"proxy"}, Proxies: proxies("prod-eu-api")}},
		{"a proxy elsewhere", "split", "access: {modes: [proxy], proxies: [{url: \"https://k8s.example\"}]}",
			settings.Access{Modes: []settings.AccessMode{"proxy"}, Proxies: []settings.AnnouncedProxy{{URL: "https://k8s.example"}}}},
	} {
		var got *settings.File
		for _, u := range objects(t, render(t, profileValues(t, tt.profile)+"\n"+tt.values+"\n")) {
			for key, text := range stringData(u) {
				if u.GetKind() != "ConfigMap" || key != "tailplane-access-0.yaml" && key != "tailplane-0.yaml" {
					continue
				}
				f, err := settings.Parse([]byte(text))
				if err != nil {
					t.Fatal(err)
				}
				got = &f
			}
		}
		if got == nil {
			t.Fatalf("%s: no settings of the access server", tt.why)
		}
		if diff := cmp.Diff(tt.want, got.Access); diff != "" {
			t.Errorf("%s (-want +got):\n%s", tt.why, diff)
		}
	}
}

func stringData(u *unstructured.Unstructured) map[string]string {
	data, _, _ := unstructured.NestedStringMap(u.Object, "data")
	return data
}
