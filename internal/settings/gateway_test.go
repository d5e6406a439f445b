package settings_test

import (
	"strings"
	"testing"

	"github.com/tailplane/tailplane/internal/settings"
)

func TestGateway(t *testing.T) {
	if g, err := settings.ParseGateway(nil); err != nil || len(g.Tailnet.APIBaseURLs) != 1 || g.Tailnet.RequestsPerSecond != 5 || g.Tailnet.Burst != 10 {
		t.Errorf("%+v, %v", g, err)
	}
	for _, x := range []struct{ file, says string }{
		{"credentialNamespaces: [tailscale, default]\ntailnet: {apiBaseURLs: [\"https://api.example\", \"http://127.0.0.1:1\"], requestsPerSecond: 0.5, burst: 1}", ""},
		{"credentialNamespace: [x]", "field credentialNamespace is not a setting"},
		{"tailnet: {urls: []}", "field urls is not a setting of tailnet"},
		{"credentialNamespaces: [\"*\"]", "not the name of a namespace"},
		{"tailnet: {apiBaseURLs: []}", "is empty"},
		{"tailnet: {apiBaseURLs: [\"http://api.example\"]}", "in the clear"},
		{"tailnet: {apiBaseURLs: [\"http://127.0.0.1.example\"]}", "in the clear"},
		{"tailnet: {apiBaseURLs: [\"https://u:p@api.example\"]}", "not a scheme and a host"},
		{"tailnet: {apiBaseURLs: [\"https://api.example/api/v2\"]}", "not a scheme and a host"},
		{"tailnet: {requestsPerSecond: 0}", "requestsPerSecond"},
		{"tailnet: {burst: 0}", "burst"},
		{"tailnet: {burst: many}", "as a number"},
		{"{}\n---\n{}", "more than one YAML document"},
	} {
		_, err := settings.ParseGateway([]byte(x.file))
		if x.says == "" && err != nil || x.says != "" && (err == nil || !strings.Contains(err.Error(), x.says)) {
			t.Errorf("%s: %v, want %q", x.file, err, x.says)
		}
	}
}
