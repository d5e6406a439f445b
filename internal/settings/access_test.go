package settings_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/settings"
)

// A server does not start with a mode that it does not know, or with a proxy that kubectl cannot reach.
func TestModes(t *testing.T) {
	for _, tt := range []struct {
		access  string // settings
		proxies string // that the server announces, as its node in example.ts.net sees them
		says    string // part of the error; "": the settings are valid
	}{
		{"", "", ""},
		{"access: {modes: [token]}", "", ""},
		{"access: {modes: [proxy, token]}", "https://east-api.example.ts.net", ""},
		{"access: {modes: [proxy]}\nproxy: {hostname: gate}", "https://gate.example.ts.net", ""},
		{"access: {modes: [proxy]}\nproxy: {service: \"svc:gate\"}", "https://gate.example.ts.net", ""},
		{"access: {modes: [proxy], proxies: [{hostname: gate}, {hostname: gate-1}]}", "https://gate.example.ts.net https://gate-1.example.ts.net", ""},
		{"access: {modes: [proxy], proxies: [{url: \"https://k8s.example:8443\"}]}\ntailnet: {insecureHTTP: true}", "https://k8s.example:8443", ""},
		{"access: {modes: [proxy]}\ntailnet: {port: 8443}", "https://east-api.example.ts.net:8443", ""},
		{"access: {modes: [token], proxies: [{hostname: gate}]}", "", ""},
		{"access: {modes: [proxy]}\npolicy: {rules: [{name: a, when: 'true', deny: No.}]}", "https://east-api.example.ts.net", ""},
		{"access: {modes: [proxy, token]}\npolicy: {allowTokenMode: true, rules: [{name: a, when: 'true', deny: No.}]}", "https://east-api.example.ts.net", ""},
		{"access: {modes: [proxy, token]}\npolicy: {rules: [{name: a, when: 'true', warn: Careful.}]}", "https://east-api.example.ts.net", ""},
		{"access: {modes: [proxy, token]}\npolicy: {rules: [{name: a, when: 'true', requireReason: true}]}", "", "go past the rules of policy"},
		{"policy: {rules: [{name: a, when: 'true', record: [exec]}]}", "", "go past the rules of policy"},
		{"access: {modes: []}", "", "access.modes is empty"},
		{"access: {modes: [direct]}", "", `"direct" is neither token nor proxy`},
		{"access: {modes: [token, token]}", "", `"token" occurs twice`},
		{"access: {mode: token}", "", "field mode is not a setting of access"},
		{"access: {modes: [proxy]}\ntailnet: {insecureHTTP: true}", "https://east-api.example.ts.net", ""}, // with a certificate of the access server
		{"access: {proxies: [{}]}", "", "entry 1: set either hostname or url"},
		{"access: {proxies: [{hostname: gate, url: \"https://gate.example\"}]}", "", "entry 1: set either hostname or url"},
		{"access: {proxies: [{hostname: gate.example}]}", "", "not a DNS label"},
		{"access: {proxies: [{url: \"http://gate.example\"}]}", "", "is not https://HOST"},
		{"access: {proxies: [{url: \"https://gate.example/k8s\"}]}", "", "is not https://HOST"},
		{"access: {proxies: [{url: \"https://gate.example\", caData: junk}]}", "", "entry 1: caData is not a list of PEM certificates"},
	} {
		f, err := settings.Parse([]byte("cluster: {name: east}\n" + tt.access))
		if err == nil {
			err = f.Validate(settings.AccessRole)
		}
		switch said := err != nil && strings.Contains(err.Error(), "access."); {
		case tt.says == "" && said:
			t.Errorf("%s: %v", tt.access, err)
		case tt.says != "" && !strings.Contains(err.Error(), tt.says):
			t.Errorf("%s: %v, want %q", tt.access, err, tt.says)
		}
		if tt.says != "" {
			continue
		}
		var proxies []string
		for _, p := range f.AnnouncedProxies() {
			proxies = append(proxies, p.At("tka.example.ts.net", f.Tailnet.Port))
		}
		if diff := cmp.Diff(tt.proxies, strings.Join(proxies, " ")); diff != "" {
			t.Errorf("%s: announced proxies (-want +got):\n%s", tt.access, diff)
		}
	}
}
