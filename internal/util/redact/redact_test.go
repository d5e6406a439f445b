package redact

import (
	"strings"
	"testing"
)

// MC-01: The search for hints misses no credential.
func TestHintsHideNothing(t *testing.T) {
	long := strings.Repeat("a1", 20)
	for _, s := range []string{"-----BEGIN EC PRIVATE KEY-----\nx", "eyJ" + long + "." + long + ".x", "tskey-auth-" + long, "ghp_" + long, "ghr_" + long, "github_pat_" + long, "glpat-" + long, "glagent-" + long, "glcbt-" + long,
		"AKIA" + strings.Repeat("A", 16), "ASIA" + strings.Repeat("0", 16), "xoxb-" + long, "sk-" + long, "Bearer " + long, "BASIC\n" + long, "postgres://me:" + long + "@db", "Token: " + long, "PASSWD=" + long, "api_Key = '" + long + "'",
		"\u017fecret=" + long, "api-\u212aey: " + long, "creden\u0054ial=" + long, "client-key-data: " + long} {
		want := s
		for _, f := range credentialPatterns() {
			want = f.pattern.ReplaceAllString(want, "${1}"+Mark)
		}
		if got := Text("x " + s); got != "x "+want || want == s {
			t.Errorf("%q is %q, want %q", s, got, want)
		}
	}
}

// FLEET-12: Known removes only text that must be a credential, and leaves text that may be one.
func TestKnown(t *testing.T) {
	long := strings.Repeat("a1", 20)
	for s, want := range map[string]bool{"ghp_" + long: true, "export T=glrt-" + long: true, "-----BEGIN PRIVATE KEY-----": true, "tskey-auth-" + long: true,
		"the basic configuration": false, "TOKEN=$RUNNER_TOKEN": false, "https://github.com/acme": false, "secretName: acme-app": false} {
		if got := Certain(s); (got != s) != want {
			t.Errorf("%q is %q", s, got)
		}
	}
}
