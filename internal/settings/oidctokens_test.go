package settings

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// The server does not start with an issuer whose keys have no address, or one that is not protected.
func TestOIDCTokens(t *testing.T) {
	for _, tt := range []struct{ issuers, says string }{
		{`[{url: https://a.example, keysURL: https://a.example/keys}]`, ""},
		{`[{url: https://a.example, keysFile: /etc/keys.json, audience: x}]`, ""},
		{`[{url: http://127.0.0.1:1, keysURL: "http://127.0.0.1:1/keys"}]`, ""},
		{`[{url: https://a.example}]`, "entry 1: one of keysURL and keysFile"},
		{`[{url: https://a.example, keysURL: http://a.example/keys}]`, "not protected in transit"},
		{`[{url: a.example, keysURL: https://a.example/keys}]`, "not a plain URL"},
		{`[{url: https://a.example, keysFile: /a}, {url: https://a.example, keysFile: /b}]`, "listed twice"},
		{`[{url: https://a.example, keysFile: /a, audience: "a b"}]`, "white space"},
		{`[{url: https://a.example, jwks: /a}]`, "is not a setting of an entry of signin.oidc.issuers"},
	} {
		f, err := Parse([]byte("signin: {oidc: {issuers: " + tt.issuers + "}}"))
		if err == nil {
			var v validation
			if f.Signin.OIDC.validate(&v); len(v) > 0 {
				err = v[0]
			}
		}
		switch {
		case tt.says == "" && err != nil:
			t.Errorf("%s: %v", tt.issuers, err)
		case tt.says != "" && (err == nil || !strings.Contains(err.Error(), tt.says)):
			t.Errorf("%s: %v, want %q", tt.issuers, err, tt.says)
		}
	}
	f, err := Parse([]byte("cluster: {name: east}\nsignin: {oidc: {issuers: [{url: https://a, keysFile: /a}, {url: https://b, keysFile: /b, audience: own}]}}"))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(map[string]string{"https://a": "east", "https://b": "own"}, f.AccessPolicy().Issuers); diff != "" {
		t.Errorf("audiences (-want +got):\n%s", diff)
	}
	if text, err := Default().YAML(); err != nil || strings.Contains(string(text), "oidc: {}\n  ") {
		t.Errorf("the default has %v: %s", err, text)
	}
}
