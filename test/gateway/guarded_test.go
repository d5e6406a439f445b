//go:build linux

package gateway

import (
	"context"
	"crypto/hmac"
	"crypto/sha256"
	"encoding/base64"
	"fmt"
	"io"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/kubetest"
)

// guardKey signs the tokens that the Gateway requires.
const guardKey = "secretsecretsecretsecretsecretsecret"

// guarded is row GW-13. Policies of the whole Gateway protect injected routes, with any spelling of the path. A
// service's path prefix ends at a separator. Headers that only the gateway may set never reach a backend from
// outside.
func guarded(t *testing.T, c *kubetest.Cluster) {
	encode := base64.RawURLEncoding.EncodeToString
	policy := func(guard string) string {
		return fmt.Sprintf("apiVersion: gateway.envoyproxy.io/v1alpha1\nkind: SecurityPolicy\nmetadata: {name: guard, namespace: infra}\nspec:\n  targetRefs: [{group: gateway.networking.k8s.io, kind: Gateway, name: eg}]\n  %s\n", guard)
	}
	jwt := policy(fmt.Sprintf(`jwt: {providers: [{name: guard, localJWKS: {type: Inline, inline: '{"keys":[{"kty":"oct","kid":"k","k":"%s","alg":"HS256"}]}'}}]}`, encode([]byte(guardKey))))
	signed := encode([]byte(`{"alg":"HS256","kid":"k","typ":"JWT"}`)) + "." + encode([]byte(`{"sub":"somebody","exp":4102444800}`))
	mac := hmac.New(sha256.New, []byte(guardKey))
	mac.Write([]byte(signed))
	token := signed + "." + encode(mac.Sum(nil))

	// Paths of the service, and a path that only starts with the same characters.
	const service, beside = "/svc/wiki/page", "/svc/wikimail"
	spelled := []string{service, "/svc/wiki", "//svc/wiki/page", "/svc//wiki/page", "/svc/%77iki/page", "/x/../svc/wiki/page", "/x/%2e%2e/svc/wiki/page"}
	const escaped, elsewhere = "/svc/wiki%2Fpage", "307 to " + service // Envoy redirects to the normalised path
	served := func(path, token, want string) func() bool {
		return func() bool { return strings.HasPrefix(knock(t, path, token), want) }
	}
	check := func(token, want string) {
		t.Helper()
		for _, path := range append(slices.Clone(spelled), beside) {
			if is := knock(t, path, token); !strings.HasPrefix(is, want) {
				t.Errorf("%s: %q, want %s", path, is, want)
			}
		}
		if is := knock(t, escaped, token); is != elsewhere {
			t.Errorf("%s: %q, want %s", escaped, is, elsewhere)
		}
	}
	control := func(token string) {
		t.Helper()
		await(t, "the service", served(service, token, "200 wiki-1 "))
		for _, path := range append(slices.Clone(spelled), beside) {
			is := knock(t, path, token)
			if strings.Contains(is, "[") {
				t.Errorf("%s: a reserved header reached the backend: %q", path, is)
			}
			if path == beside && !strings.HasPrefix(is, "200 plain ") {
				t.Errorf("the path of wiki does not end at a separator: %q", is)
			}
		}
	}
	control("")
	apply(t, c, jwt)
	await(t, "the Gateway requires a token", func() bool {
		return strings.HasPrefix(knock(t, service, ""), "401 ") && strings.HasPrefix(knock(t, beside, ""), "401 ")
	})
	check("", "401 ")
	check(signed+".AAAA", "401 ")
	control(token)

	kubectl(t, c, "-n", "infra", "delete", "securitypolicy", "guard")
	await(t, "no policy requires a token", served(service, "", "200 wiki-1 "))
	apply(t, c, policy("authorization: {defaultAction: Deny}"))
	await(t, "the Gateway admits no client", func() bool {
		return strings.HasPrefix(knock(t, service, ""), "403 ") && strings.HasPrefix(knock(t, beside, ""), "403 ")
	})
	check("", "403 ")
	check(token, "403 ")
	kubectl(t, c, "-n", "infra", "delete", "securitypolicy", "guard")
	control("")
}

// knock sends a request to Envoy for a path of the host api.example.com. The request has every header in which a
// tailnet proxy names the caller.
func knock(t testing.TB, path, token string) string {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 10*time.Second)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://127.0.0.1:8888"+path, nil)
	if err != nil {
		t.Fatal(err)
	}
	req.Host = "api.example.com"
	for _, name := range []string{"Tailscale-User-Login", "Tailscale-User-Name", "Tailscale-App-Capabilities", "tailscale-funnel-request", "TAILSCALE-USER-LOGIN", "X-Tailscale-User"} {
		req.Header[name] = []string{"mallory@example.com", "twice@example.com"}
	}
	if token != "" {
		req.Header.Set("Authorization", "Bearer "+token)
	}
	stay := func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse }
	resp, err := (&http.Client{CheckRedirect: stay, Transport: &http.Transport{DisableKeepAlives: true}}).Do(req)
	if err != nil {
		return err.Error()
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	if err != nil {
		return err.Error()
	}
	if to := resp.Header.Get("Location"); to != "" {
		return fmt.Sprintf("%d to %s", resp.StatusCode, to)
	}
	return fmt.Sprintf("%d %s", resp.StatusCode, b)
}

// claimed returns the headers of a request that name a tailnet caller, or "" if there are none.
func claimed(h http.Header) string {
	var names []string
	for name := range h {
		if low := strings.ToLower(name); strings.HasPrefix(low, "tailscale") || strings.HasPrefix(low, "x-tailscale") {
			names = append(names, name)
		}
	}
	if len(names) == 0 {
		return ""
	}
	slices.Sort(names)
	return fmt.Sprintf(" %q", names)
}
