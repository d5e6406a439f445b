package signin_test

import (
	"encoding/json"
	"fmt"
	"log/slog"
	"regexp"
	"strings"
	"testing"
	"testing/quick"
	"time"

	"github.com/tailplane/tailplane/internal/signin"
	"github.com/tailplane/tailplane/internal/util/secret"
)

// ID-13: Different people and devices have different names. Each name is a DNS-1123 label.
func TestNames(t *testing.T) {
	form := regexp.MustCompile(`^[a-z0-9]([a-z0-9-]*[a-z0-9])?$`)
	seen := map[string]signin.Owner{}
	for _, tailnet := range []string{"a.com", "b.com", ""} {
		for _, device := range []string{"n1", "n2", "1"} {
			for _, login := range []string{"alice@a.com", "alice@b.com", "alice@github", "alice", "a.lice@a.com", "a-lice@a.com", "a_lice@a.com",
				"Alice@a.com", "älice@a.com", "日本@a.com", "---", "node:alice", strings.Repeat("x", 250), strings.Repeat("x", 251), "a-@a.com"} {
				o := signin.Owner{Login: login, DeviceID: device, Tailnet: tailnet}
				name := o.Name()
				if len(name) > 61 || !form.MatchString(name) {
					t.Errorf("%+v: name %q", o, name)
				}
				if other, twice := seen[name]; twice {
					t.Errorf("%+v and %+v are both %q", o, other, name)
				}
				seen[name] = o
			}
		}
	}
	// Moving a character from one part to the next must give a different name.
	law := func(a, b, c string) bool {
		o := signin.Owner{Tailnet: a, Login: b, DeviceID: c}
		p := signin.Owner{Tailnet: a + b, Login: "", DeviceID: c}
		return o.Name() != p.Name() || b == ""
	}
	if err := quick.Check(law, nil); err != nil {
		t.Error(err)
	}
}

func sample() signin.Kubeconfig {
	return signin.Kubeconfig{Cluster: "prod-eu", Server: "https://k8s.example:6443", CA: []byte("PEM"), Prefix: "tka-", Namespace: "shop",
		Token: secret.New("s3cret"), ExpiresAt: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)}
}

// The two forms of section 3.3 of the contract.
func TestKubeconfigForms(t *testing.T) {
	const asMap = `{"kind":"Config","apiVersion":"v1","clusters":{"prod-eu":{"server":"https://k8s.example:6443","certificate-authority-data":"UEVN"}},` +
		`"users":{"tka-prod-eu":{"token":"s3cret"}},"contexts":{"tka-prod-eu":{"cluster":"prod-eu","user":"tka-prod-eu","namespace":"shop"}},"current-context":"tka-prod-eu"}`
	for accept, wantYAML := range map[string]bool{
		"": false, "*/*": false, "application/json": false, "text/html": false, "junk;;": false,
		"application/yaml": true, "text/yaml": true, "application/x-yaml": true, "application/yaml, */*": true,
		"application/yaml;q=0": false, "application/json, application/yaml;q=0.5": false, "application/json;q=0.5, text/yaml": true,
		"application/json, application/yaml": true,
	} {
		s, err := sample().EncodeResponse(accept)
		if err != nil {
			t.Fatal(err)
		}
		if got := s.ContentType == "application/yaml"; got != wantYAML {
			t.Errorf("Accept %q: %+v", accept, s)
		}
		if s.Header.Get(signin.ExpiresHeader) != "2026-01-02T03:04:05Z" {
			t.Errorf("Accept %q: header %v", accept, s.Header)
		}
		if !wantYAML {
			if b, err := json.Marshal(s.Body); err != nil || string(b) != asMap {
				t.Errorf("map form %s, %v", b, err)
			}
		}
	}
	y, err := sample().YAML()
	if err != nil || !strings.Contains(string(y), "- context:\n    cluster: prod-eu\n    namespace: shop\n    user: tka-prod-eu\n  name: tka-prod-eu\n") {
		t.Errorf("list form:\n%s%v", y, err)
	}
	var back signin.Kubeconfig
	switch err := json.Unmarshal([]byte(asMap), &back); {
	case err != nil:
		t.Errorf("read back: %v", err)
	case back.Token.Reveal() != "s3cret":
		t.Errorf("read back: back.Token.Reveal() = %q, want %q", back.Token.Reveal(), "s3cret")
	case back.Context() != "tka-prod-eu":
		t.Errorf("read back: back.Context() = %q, want %q", back.Context(), "tka-prod-eu")
	case back.Namespace != "shop":
		t.Errorf("read back: back.Namespace = %q, want %q", back.Namespace, "shop")
	case back.Server != sample().Server:
		t.Errorf("read back: back.Server = %q, want sample().Server", back.Server)
	}
}

// CL-08: A kubeconfig from a hostile server cannot make kubectl run, read or trust anything.
func TestKubeconfigIsReadStrictly(t *testing.T) {
	good, err := json.Marshal(sample())
	if err != nil {
		t.Fatal(err)
	}
	for _, edit := range [][2]string{
		{`"token":"s3cret"`, `"exec":{"command":"sh"}`},
		{`"token":"s3cret"`, `"token":"x","tokenFile":"/etc/passwd"`},
		{`"token":"s3cret"`, `"auth-provider":{"name":"x"}`},
		{`"certificate-authority-data":"UEVN"`, `"certificate-authority":"/etc/ssl/x"`},
		{`"certificate-authority-data":"UEVN"`, `"proxy-url":"http://evil"`},
		{`"clusters":{`, `"clusters":{"second":{"server":"https://evil"},`},
		{`"current-context":"tka-prod-eu"`, `"current-context":"other"`},
		{`"kind":"Config"`, `"kind":"Secret"`},
		{`"kind":"Config"`, `"kind":"Config","extensions":[]`},
	} {
		text := strings.Replace(string(good), edit[0], edit[1], 1)
		if text == string(good) {
			t.Fatalf("%q is not in %s", edit[0], good)
		}
		var k signin.Kubeconfig
		if err := json.Unmarshal([]byte(text), &k); err == nil {
			t.Errorf("took %s", text)
		}
	}
}

// Law 8: A token cannot be printed.
func TestATokenCannotBePrinted(t *testing.T) {
	token := secret.New("s3cret")
	var log strings.Builder
	slog.New(slog.NewJSONHandler(&log, nil)).Info("x", "token", token, "in", struct{ T secret.Text }{token})
	j, _ := json.Marshal(map[string]any{"t": token})
	hidden := struct{ t secret.Text }{token}
	out := fmt.Sprintf("%v %s %+v %#v %q %x %v", token, token, token, token, token, token, &token) + fmt.Sprintf("%v %+v %#v", hidden, hidden, hidden) + log.String() + string(j)
	if strings.Contains(out, "s3cret") || strings.Contains(out, fmt.Sprintf("%x", "s3cret")) {
		t.Errorf("printed: %s", out)
	}
}

func TestState(t *testing.T) {
	t0 := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	ready := signin.Signin{Generation: 2, Report: signin.Report{Phase: signin.PhaseReady, ValidUntil: t0.Add(time.Hour), ObservedGeneration: 2}}
	with := func(f func(*signin.Signin)) signin.Signin { s := ready; f(&s); return s }
	for _, tt := range []struct {
		why  string
		s    signin.Signin
		now  time.Time
		want signin.State
	}{
		{"provisioned", ready, t0, signin.Ready},
		{"no operator has processed it", signin.Signin{Generation: 1}, t0, signin.Pending},
		{"extended, not yet seen by the operator", with(func(s *signin.Signin) { s.Generation = 3 }), t0, signin.Pending},
		{"extended after the old end, not yet seen", with(func(s *signin.Signin) { s.Generation = 3 }), t0.Add(2 * time.Hour), signin.Pending},
		{"over, though the operator is down (SI-07)", ready, t0.Add(time.Hour), signin.Ended},
		{"expired", with(func(s *signin.Signin) { s.Phase = signin.PhaseExpired }), t0, signin.Ended},
		{"refused", with(func(s *signin.Signin) { s.Phase = signin.PhaseRefused }), t0, signin.Refused},
		{"being taken down", with(func(s *signin.Signin) { s.Deleting = true }), t0, signin.Ending},
	} {
		if got := tt.s.State(tt.now); got != tt.want {
			t.Errorf("%s: %s, want %s", tt.why, got, tt.want)
		}
	}
}
