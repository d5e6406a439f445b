package tsapi_test

import (
	"bytes"
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"tailscale.com/tailcfg"
	"tailscale.com/tsnet"

	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	os.Exit(m.Run())
}

const testPolicy = `{
	// who works here
	"groups": {"group:dev": ["alice@example.com"]},
	"tagOwners": {"tag:tka": ["autogroup:admin"], "tag:ci": ["alice@example.com"]},
	"grants": [{"src": ["*"], "dst": ["*"], "ip": ["*"]}],
}`

func within(t testing.TB, d time.Duration) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), d)
	t.Cleanup(cancel)
	return ctx
}

func ready(t testing.TB, n *tailnettest.Net, nodes ...*tsnet.Server) {
	t.Helper()
	if err := n.Ready(within(t, 2*time.Minute), nodes...); err != nil {
		t.Fatal(err)
	}
}

func id(t testing.TB, n *tailnettest.Net, s *tsnet.Server) string {
	t.Helper()
	out, err := n.ID(s)
	if err != nil {
		t.Fatal(err)
	}
	return string(out)
}

// eventually waits for a condition of the real system, not for a fixed time.
func eventually(t testing.TB, what string, ok func() bool) {
	t.Helper()
	for start := time.Now(); !ok(); time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatalf("not within a minute: %s", what)
		}
	}
}

// apiClient is a plain HTTP client of the API, so that tests see wrong responses unchanged.
type apiClient struct {
	t     testing.TB
	api   *tsapi.API
	token string
}

type reply struct {
	status int
	header http.Header
	body   []byte
}

// at returns the value at a path such as "devices/0/name" of a JSON body.
func (r reply) at(path string) any {
	var v any
	if json.Unmarshal(r.body, &v) != nil {
		return nil
	}
	for p := range strings.SplitSeq(path, "/") {
		switch x := v.(type) {
		case map[string]any:
			v = x[p]
		case []any:
			var i int
			if _, err := fmt.Sscan(p, &i); err != nil || i >= len(x) {
				return nil
			}
			v = x[i]
		default:
			return nil
		}
	}
	return v
}

func (c *apiClient) do(method, path, body string, header ...string) (reply, error) {
	req, err := http.NewRequestWithContext(within(c.t, time.Minute), method, c.api.URL()+"/api/v2"+path, strings.NewReader(body))
	if err != nil {
		return reply{}, err
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	for i := 0; i+1 < len(header); i += 2 {
		req.Header.Set(header[i], header[i+1])
	}
	res, err := http.DefaultClient.Do(req)
	if err != nil {
		return reply{}, err
	}
	defer res.Body.Close()
	b, err := io.ReadAll(res.Body)
	return reply{res.StatusCode, res.Header, b}, err
}

func (c *apiClient) want(status int, method, path, body string, header ...string) reply {
	c.t.Helper()
	r, err := c.do(method, path, body, header...)
	if err != nil {
		c.t.Fatalf("%s %s: %v", method, path, err)
	}
	if r.status != status {
		c.t.Errorf("%s %s: %d, want %d: %s", method, path, r.status, status, r.body)
	}
	return r
}

// signIn gets a token for the client, with the credentials in the form or as HTTP Basic.
func signIn(t testing.TB, a *tsapi.API, o tsapi.OAuthClient, basic bool, scopes ...string) *apiClient {
	t.Helper()
	c := &apiClient{t: t, api: a}
	form := url.Values{"grant_type": {"client_credentials"}}
	if len(scopes) > 0 {
		form.Set("scope", strings.Join(scopes, " "))
	}
	header := []string{"Content-Type", "application/x-www-form-urlencoded"}
	if basic {
		header = append(header, "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(url.QueryEscape(o.ID)+":"+url.QueryEscape(o.Secret))))
	} else {
		form.Set("client_id", o.ID)
		form.Set("client_secret", o.Secret)
	}
	r := c.want(http.StatusOK, "POST", "/oauth/token", form.Encode(), header...)
	c.token, _ = r.at("access_token").(string)
	switch {
	case !strings.HasPrefix(c.token, "tskey-api-"):
		t.Fatalf("token: c.token = %q does not start with %q", c.token, "tskey-api-")
	case r.at("token_type") != "Bearer":
		t.Fatalf(`token: r.at("token_type") != "Bearer"; %s`, r.body)
	case r.at("expires_in") != 3600.0:
		t.Fatalf(`token: r.at("expires_in") != 3600.0; %s`, r.body)
	}
	return c
}

func startAPI(t testing.TB, n *tailnettest.Net) *tsapi.API {
	t.Helper()
	a, err := n.API()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func TestAPIAuth(t *testing.T) {
	t.Parallel()
	n := tailnettest.Start(t, testPolicy)
	a := startAPI(t, n)
	o := a.Client([]string{"devices:core:read", "auth_keys"}, "tag:ci")
	for _, basic := range []bool{true, false} {
		c := signIn(t, a, o, basic)
		c.want(200, "GET", "/tailnet/-/devices", "")
		c.want(200, "GET", "/tailnet/example.com/devices", "")
		c.want(404, "GET", "/tailnet/elsewhere.org/devices", "")
		c.want(403, "DELETE", "/device/1", "")
		c.want(403, "GET", "/tailnet/-/acl", "")
		if r := c.want(501, "GET", "/tailnet/-/webhooks", ""); !strings.Contains(fmt.Sprint(r.at("message")), "GET /api/v2/tailnet/-/webhooks is not on the testbed") {
			t.Errorf("a route that the fake does not have: %s", r.body)
		}
		c.want(501, "PATCH", "/device/1", "")
		c.want(200, "GET", "/tailnet/-/devices", "", "Authorization", "Basic "+base64.StdEncoding.EncodeToString([]byte(c.token+":")))
	}
	narrow := signIn(t, a, o, true, "devices:core:read")
	narrow.want(200, "GET", "/tailnet/-/devices", "")
	narrow.want(403, "GET", "/tailnet/-/keys", "")

	c := &apiClient{t: t, api: a}
	c.want(401, "GET", "/tailnet/-/devices", "")
	form := url.Values{"grant_type": {"client_credentials"}, "client_id": {o.ID}, "client_secret": {"wrong"}}
	if r := c.want(401, "POST", "/oauth/token", form.Encode()); r.at("message") != "API token invalid" {
		t.Errorf("wrong secret: %s", r.body)
	}
	form = url.Values{"grant_type": {"client_credentials"}, "client_id": {o.ID}, "client_secret": {o.Secret}, "scope": {"all"}}
	c.want(403, "POST", "/oauth/token", form.Encode())

	a.RevokeTokens()
	narrow.want(401, "GET", "/tailnet/-/devices", "")
	again := signIn(t, a, o, true)
	a.RevokeClient(o.ID)
	again.want(401, "GET", "/tailnet/-/devices", "")

	// The recorded requests contain no secret.
	b, err := json.Marshal(a.Requests())
	if err != nil {
		t.Fatal(err)
	}
	switch s := string(b); {
	case strings.Contains(s, o.Secret):
		t.Errorf("the record contains a secret, or lacks the caller: s = %q contains %q", s, o.Secret)
	case strings.Contains(s, again.token):
		t.Errorf("the record contains a secret, or lacks the caller: s = %q contains %q", s, again.token)
	case !strings.Contains(s, o.ID):
		t.Errorf("the record contains a secret, or lacks the caller: s = %q does not contain %q", s, o.ID)
	}
}

func TestAPITokenExchange(t *testing.T) {
	t.Parallel()
	n := tailnettest.Start(t, testPolicy)
	a := startAPI(t, n)
	a.Trust(tsapi.TrustedIssuer{ClientID: "wi", Issuer: "https://issuer", Subject: "system:serviceaccount:ns:sa", Audience: "tailscale",
		Scopes: []string{"devices:core"}, Verify: func(_ context.Context, token string) error {
			if strings.HasSuffix(token, ".good") {
				return nil
			}
			return errors.New("bad signature")
		}})
	a.Trust(tsapi.TrustedIssuer{ClientID: "careless", Issuer: "https://issuer", Audience: "tailscale"})
	jwt := func(iss, sub string, aud any, exp time.Time, sig string) string {
		b, err := json.Marshal(map[string]any{"iss": iss, "sub": sub, "aud": aud, "exp": exp.Unix()})
		if err != nil {
			t.Fatal(err)
		}
		return "e30." + base64.RawURLEncoding.EncodeToString(b) + "." + sig
	}
	const sub = "system:serviceaccount:ns:sa"
	soon := time.Now().Add(time.Minute)
	c := &apiClient{t: t, api: a}
	for _, x := range []struct {
		why, client, jwt string
		want             int
	}{
		{"good", "wi", jwt("https://issuer", sub, "tailscale", soon, "good"), 200},
		{"good, a list of audiences", "wi", jwt("https://issuer", sub, []string{"x", "tailscale"}, soon, "good"), 200},
		{"another issuer", "wi", jwt("https://other", sub, "tailscale", soon, "good"), 401},
		{"another subject", "wi", jwt("https://issuer", sub+"x", "tailscale", soon, "good"), 401},
		{"another audience", "wi", jwt("https://issuer", sub, "kubernetes", soon, "good"), 401},
		{"expired", "wi", jwt("https://issuer", sub, "tailscale", time.Now().Add(-time.Second), "good"), 401},
		{"a wrong signature", "wi", jwt("https://issuer", sub, "tailscale", soon, "bad"), 401},
		{"an untrusted client", "x", jwt("https://issuer", sub, "tailscale", soon, "good"), 401},
		{"a trust that verifies nothing", "careless", jwt("https://issuer", "", "tailscale", soon, "good"), 401},
	} {
		r := c.want(x.want, "POST", "/oauth/token-exchange", url.Values{"client_id": {x.client}, "jwt": {x.jwt}}.Encode())
		if x.want == 200 {
			tok, _ := r.at("access_token").(string)
			(&apiClient{t: t, api: a, token: tok}).want(200, "GET", "/tailnet/-/devices", "")
		}
	}
}

// Keys from the API let real nodes in, and the devices are the nodes.
func TestAPIKeysAndDevices(t *testing.T) {
	t.Parallel()
	n := tailnettest.Start(t, testPolicy)
	a := startAPI(t, n)
	c := signIn(t, a, a.Client([]string{"devices:core", "auth_keys"}, "tag:ci"), true)
	const capsCI = `{"capabilities":{"devices":{"create":{"reusable":false,"ephemeral":true,"preauthorized":true,"tags":["tag:ci"]}}}`

	key := c.want(200, "POST", "/tailnet/-/keys", capsCI+`,"expirySeconds":300,"description":"for a test"}`)
	text, _ := key.at("key").(string)
	keyID, _ := key.at("id").(string)
	switch {
	case !strings.HasPrefix(text, "tskey-auth-"+keyID+"-"):
		t.Fatalf("key: text = %q does not start with %q", text, "tskey-auth-"+keyID+"-")
	case key.at("description") != "for a test":
		t.Fatalf(`key: key.at("description") != "for a test"; %s`, key.body)
	case key.at("invalid") != false:
		t.Fatalf(`key: key.at("invalid") != false; %s`, key.body)
	}
	exp, err := time.Parse(time.RFC3339, fmt.Sprint(key.at("expires")))
	switch left := time.Until(exp); {
	case err != nil:
		t.Errorf("expires: %v; %v", err, key.at("expires"))
	case left < 4*time.Minute:
		t.Errorf("expires: left = %v, want at least %v; %v", left, 4*time.Minute, key.at("expires"))
	case left > 5*time.Minute:
		t.Errorf("expires: left = %v, want at most %v; %v", left, 5*time.Minute, key.at("expires"))
	}
	for why, body := range map[string]string{
		"a tag that is not the client's": strings.ReplaceAll(capsCI, "tag:ci", "tag:tka") + "}",
		"an undeclared tag":              strings.ReplaceAll(capsCI, "tag:ci", "tag:new") + "}",
		"no tags":                        `{"capabilities":{"devices":{"create":{"ephemeral":true}}}}`,
		"a description with punctuation": capsCI + `,"description":"a_b"}`,
		"a life too long":                capsCI + `,"expirySeconds":99999999}`,
		"a misspelt field":               capsCI + `,"expiry":3}`,
		"no JSON":                        `{`,
	} {
		if r := c.want(400, "POST", "/tailnet/-/keys", body); r.at("message") == nil {
			t.Errorf("%s: %s", why, r.body)
		}
	}
	shown := c.want(200, "GET", "/tailnet/-/keys/"+keyID, "")
	if shown.at("key") != nil || bytes.Contains(shown.body, []byte(text)) {
		t.Error("the key is shown again")
	}
	if l := c.want(200, "GET", "/tailnet/-/keys?all=true", ""); l.at("keys/0/id") != keyID || l.at("keys/0/created") != nil {
		t.Errorf("list: %s", l.body)
	}

	runner := n.Node("runner", "nobody@example.com")
	runner.AuthKey = text
	alice := n.Node("alice", "alice@example.com")
	ready(t, n, runner, alice)
	// A used one-use key is invalid. A deleted key is invalid too, and stays readable.
	if r := c.want(200, "GET", "/tailnet/-/keys/"+keyID, ""); r.at("invalid") != true {
		t.Errorf("a used key: %s", r.body)
	}
	second, _ := c.want(200, "POST", "/tailnet/-/keys", capsCI+"}").at("id").(string)
	c.want(200, "DELETE", "/tailnet/-/keys/"+second, "")
	if r := c.want(200, "GET", "/tailnet/-/keys/"+second, ""); r.at("invalid") != true || r.at("revoked") == nil {
		t.Errorf("a deleted key: %s", r.body)
	}
	c.want(404, "DELETE", "/tailnet/-/keys/k404", "")

	list := c.want(200, "GET", "/tailnet/-/devices", "")
	if list.at("devices/0/name") != "alice.tiny.ts.net" && list.at("devices/1/name") != "alice.tiny.ts.net" {
		t.Errorf("devices: %s", list.body)
	}
	byTag := c.want(200, "GET", "/tailnet/-/devices?tags=tag:ci&tags=tag:x&fields=all", "")
	switch {
	case byTag.at("devices/0/hostname") != "runner":
		t.Errorf(`devices by tag: byTag.at("devices/0/hostname") != "runner"; %s`, byTag.body)
	case byTag.at("devices/1") != nil:
		t.Errorf(`devices by tag: byTag.at("devices/1") is not nil; %s`, byTag.body)
	case byTag.at("devices/0/enabledRoutes") == nil:
		t.Error(`devices by tag: byTag.at("devices/0/enabledRoutes") is nil`)
	case byTag.at("devices/0/isEphemeral") != true:
		t.Errorf(`devices by tag: byTag.at("devices/0/isEphemeral") != true; %s`, byTag.body)
	case byTag.at("devices/0/connectedToControl") != true:
		t.Errorf(`devices by tag: byTag.at("devices/0/connectedToControl") != true; %s`, byTag.body)
	case byTag.at("devices/0/lastSeen") != nil:
		t.Errorf(`devices by tag: byTag.at("devices/0/lastSeen") is not nil; %s`, byTag.body)
	}
	if r := c.want(200, "GET", "/tailnet/-/devices?hostname=nobody", ""); string(bytes.TrimSpace(r.body)) != `{"devices":[]}` {
		t.Errorf("no device: %s", r.body)
	}
	c.want(400, "GET", "/tailnet/-/devices?colour=red", "")

	dev := "/device/" + id(t, n, runner)
	number, _ := byTag.at("devices/0/id").(string)
	if r := c.want(200, "GET", "/device/"+number, ""); r.at("nodeId") != id(t, n, runner) {
		t.Errorf("by number: %s", r.body)
	}
	c.want(200, "POST", dev+"/name", `{"name":"worker"}`)
	if r := c.want(200, "GET", dev, ""); r.at("name") != "worker.tiny.ts.net" {
		t.Errorf("renamed: %s", r.body)
	}
	c.want(400, "POST", dev+"/name", `{"name":"alice"}`)
	c.want(400, "POST", dev+"/tags", `{"tags":["tag:tka"]}`)
	c.want(200, "POST", "/device/"+id(t, n, alice)+"/tags", `{"tags":["tag:ci"]}`)
	lc, err := runner.LocalClient()
	if err != nil {
		t.Fatal(err)
	}
	aliceIP, _ := alice.TailscaleIPs()
	eventually(t, "WhoIs sees the tag", func() bool {
		who, err := lc.WhoIs(t.Context(), aliceIP.String())
		return err == nil && who.UserProfile.LoginName == "tagged-devices" && len(who.Node.Tags) == 1
	})
	c.want(200, "POST", dev+"/authorized", `{"authorized":true}`)
	c.want(501, "POST", dev+"/authorized", `{"authorized":false}`)
	c.want(200, "DELETE", dev, "")
	c.want(404, "DELETE", dev, "")
	eventually(t, "the deleted device knows", func() bool {
		st, err := lc.StatusWithoutPeers(t.Context())
		return err == nil && st.BackendState != "Running"
	})
	n.Share(tailcfg.StableNodeID(id(t, n, alice)))
	c.want(501, "DELETE", "/device/"+id(t, n, alice), "")
}

func TestAPIPolicy(t *testing.T) {
	t.Parallel()
	n := tailnettest.Start(t, testPolicy)
	a := startAPI(t, n)
	c := signIn(t, a, a.Client([]string{"policy_file"}), true)
	got := c.want(200, "GET", "/tailnet/-/acl", "", "Accept", "application/hujson")
	tag := got.header.Get("Etag")
	if string(got.body) != testPolicy || tag == "" {
		t.Errorf("the policy: %q %s", tag, got.body)
	}
	if r := c.want(200, "GET", "/tailnet/-/acl", "", "Accept", "application/json"); r.at("groups/group:dev/0") != "alice@example.com" {
		t.Errorf("as JSON: %s", r.body)
	}
	const next = "{\"grants\": [{\"src\": [\"*\"], \"dst\": [\"*\"], \"ip\": [\"443\"]}]} // shorter\n"
	c.want(412, "POST", "/tailnet/-/acl", next, "If-Match", `"stale"`)
	if n.Policy() != testPolicy {
		t.Error("a stale write counted")
	}
	if r := c.want(400, "POST", "/tailnet/-/acl", `{"ssh": []}`, "If-Match", tag); !strings.Contains(fmt.Sprint(r.at("message")), `"ssh" is not supported`) {
		t.Errorf("refused: %s", r.body)
	}
	const failing = `{"tests": [{"src": "bob@example.com", "accept": ["10.0.0.1:443"]}]}`
	if r := c.want(400, "POST", "/tailnet/-/acl", failing); r.at("message") != "test(s) failed" || r.at("data/0/errors/0") == nil {
		t.Errorf("a failing test: %s", r.body)
	}
	if r := c.want(200, "POST", "/tailnet/-/acl/validate", failing); r.at("message") != "test(s) failed" {
		t.Errorf("validate: %s", r.body)
	}
	if r := c.want(200, "POST", "/tailnet/-/acl/validate", next); r.at("message") != nil {
		t.Errorf("validate: %s", r.body)
	}
	r := c.want(200, "POST", "/tailnet/-/acl", next, "If-Match", tag)
	if n.Policy() != next || r.header.Get("Etag") == tag {
		t.Errorf("the new policy: %s", r.body)
	}

	// Of concurrent writes that replace the same policy, one succeeds.
	tag = r.header.Get("Etag")
	var wg sync.WaitGroup
	var wrote, refused atomic.Int32
	for i := range 20 {
		wg.Go(func() {
			switch r, err := c.do("POST", "/tailnet/-/acl", strings.Repeat("\n", i+1)+next, "If-Match", tag); {
			case err == nil && r.status == 200:
				wrote.Add(1)
			case err == nil && r.status == 412:
				refused.Add(1)
			}
		})
	}
	wg.Wait()
	if wrote.Load() != 1 || refused.Load() != 19 {
		t.Errorf("%d writers in place of one policy succeeded, %d were refused", wrote.Load(), refused.Load())
	}
	c.want(200, "POST", "/tailnet/-/acl", next) // without If-Match the last write wins
}

func TestAPIServices(t *testing.T) {
	t.Parallel()
	n := tailnettest.Start(t, testPolicy)
	a := startAPI(t, n)
	c := signIn(t, a, a.Client([]string{"services"}, "tag:tka"), true)
	const at = "/tailnet/-/vip-services/svc:web"
	c.want(404, "GET", at, "")
	made := c.want(200, "PUT", at, `{"name":"svc:web","ports":["tcp:443"],"tags":["tag:tka"],"comment":"ours"}`)
	v4, _ := made.at("addrs/0").(string)
	v6, _ := made.at("addrs/1").(string)
	if v4 == "" || v6 == "" {
		t.Fatalf("created: %s", made.body)
	}
	addrs := fmt.Sprintf(`"addrs":[%q,%q]`, v4, v6)
	for why, body := range map[string]string{
		"an update without the addresses":      `{"ports":["tcp:443"],"tags":["tag:tka"]}`,
		"foreign tags":                         `{` + addrs + `,"tags":["tag:ci"]}`,
		"a port without a protocol":            `{` + addrs + `,"tags":["tag:tka"],"ports":["443"]}`,
		"do-not-validate together with a port": `{` + addrs + `,"tags":["tag:tka"],"ports":["do-not-validate","tcp:1"]}`,
		"another name":                         `{"name":"svc:x",` + addrs + `,"tags":["tag:tka"]}`,
	} {
		if r := c.want(400, "PUT", at, body); r.at("message") == nil {
			t.Errorf("%s: %s", why, r.body)
		}
	}
	// PUT replaces the whole service: missing fields are cleared.
	if r := c.want(200, "PUT", at, `{`+addrs+`,"tags":["tag:tka"],"ports":["do-not-validate"]}`); r.at("comment") != nil {
		t.Errorf("replaced: %s", r.body)
	}
	other := "/tailnet/-/services/svc:db"
	c.want(400, "PUT", other, `{"addrs":["`+v4+`"],"tags":["tag:tka"]}`)
	c.want(400, "PUT", other, `{"addrs":["`+v6+`"],"tags":["tag:tka"]}`)
	if r := c.want(200, "PUT", other, `{"addrs":["100.100.7.7"],"tags":["tag:tka"]}`); r.at("addrs/0") != "100.100.7.7" {
		t.Errorf("a wished address: %s", r.body)
	}
	if r := c.want(200, "GET", "/tailnet/-/services", ""); r.at("vipServices/1/name") != "svc:web" || r.at("vipServices/2") != nil {
		t.Errorf("list: %s", r.body)
	}

	host, alice := n.Node("host", "", "tag:tka"), n.Node("alice", "alice@example.com")
	ready(t, n, host, alice)
	c.want(400, "POST", at+"/device/"+id(t, n, alice)+"/approved", `{"approved":true}`)
	c.want(200, "POST", at+"/device/"+id(t, n, host)+"/approved", `{"approved":true}`)
	routed := func() bool {
		for _, nd := range n.Nodes() {
			for _, p := range nd.AllowedIPs {
				if p.Addr().String() == v4 {
					return true
				}
			}
		}
		return false
	}
	if !routed() {
		t.Error("no node answers for the approved service")
	}
	c.want(200, "DELETE", at, "")
	c.want(404, "DELETE", at, "")
	if routed() {
		t.Error("a node answers for a deleted service")
	}
}

// Tests can inject faults, and the recorded requests show what happened.
func TestAPIFaults(t *testing.T) {
	t.Parallel()
	n := tailnettest.Start(t, testPolicy)
	a := startAPI(t, n)
	c := signIn(t, a, a.Client([]string{"all"}, "tag:ci"), true)
	const keys, caps = "/tailnet/-/keys", `{"capabilities":{"devices":{"create":{"tags":["tag:ci"]}}}}`
	minted := func() int {
		var list struct{ Keys []any }
		if r := c.want(200, "GET", keys, ""); json.Unmarshal(r.body, &list) != nil || list.Keys == nil {
			t.Fatalf("keys: %s", r.body)
		}
		return len(list.Keys)
	}

	// Two requests pass, one is limited, the next passes.
	a.Fault(tsapi.Fault{Route: "GET /tailnet/{tailnet}/devices", Skip: 2, Times: 1, Status: 429, Header: http.Header{"Retry-After": {"7"}}})
	c.want(200, "GET", "/tailnet/-/devices", "")
	c.want(200, "GET", "/tailnet/-/devices", "")
	if r := c.want(429, "GET", "/tailnet/-/devices", ""); r.header.Get("Retry-After") != "7" || r.at("message") == nil {
		t.Errorf("429: %v %s", r.header, r.body)
	}
	c.want(200, "GET", "/tailnet/-/devices", "")

	remove := a.Fault(tsapi.Fault{Route: "POST /tailnet/{tailnet}/keys", HTML: true})
	if r := c.want(502, "POST", keys, caps); !bytes.HasPrefix(r.body, []byte("<html>")) || minted() != 0 {
		t.Errorf("HTML: %s, %d keys", r.body, minted())
	}
	remove()
	a.Fault(tsapi.Fault{Route: "POST /tailnet/{tailnet}/keys", Status: 500, Acts: true, Times: 1})
	c.want(500, "POST", keys, caps)
	if minted() != 1 {
		t.Errorf("the request with a lost response: %d keys", minted())
	}
	a.Fault(tsapi.Fault{Truncate: true, Times: 1})
	if r, err := c.do("GET", "/tailnet/-/devices", ""); !errors.Is(err, io.ErrUnexpectedEOF) {
		t.Errorf("truncated: %v %s", err, r.body)
	}
	a.Fault(tsapi.Fault{Status: 200, Body: `{"devices":[]}`, Times: 1})
	if r := c.want(200, "GET", "/tailnet/-/devices", ""); string(r.body) != `{"devices":[]}` {
		t.Errorf("empty list: %s", r.body)
	}
	a.Fault(tsapi.Fault{Header: http.Header{"etag": {`"wrong"`}}, Times: 1})
	if r := c.want(200, "GET", "/tailnet/-/acl", ""); r.header.Get("Etag") != `"wrong"` || len(r.body) == 0 {
		t.Errorf("wrong ETag: %v", r.header)
	}
	a.Fault(tsapi.Fault{Delay: 50 * time.Millisecond, Times: 1})
	start := time.Now()
	c.want(200, "GET", "/tailnet/-/devices", "")
	if took := time.Since(start); took < 50*time.Millisecond {
		t.Errorf("delayed by %v only", took)
	}
	a.Fault(tsapi.Fault{Hang: true, Times: 1})
	ctx, cancel := context.WithTimeout(t.Context(), 100*time.Millisecond)
	defer cancel()
	req, err := http.NewRequestWithContext(ctx, "GET", a.URL()+"/api/v2/tailnet/-/devices", nil)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := http.DefaultClient.Do(req); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("hang: %v", err)
	}

	posts := 0
	for _, r := range a.Requests() {
		if r.Route == "POST /tailnet/{tailnet}/keys" {
			posts++
			switch {
			case r.Method != "POST":
				t.Errorf("recorded: r.Method = %q, want %q", r.Method, "POST")
			case r.Path != keys:
				t.Errorf("recorded: r.Path = %q, want %q", r.Path, keys)
			case r.Tailnet != "-":
				t.Errorf("recorded: r.Tailnet = %q, want %q", r.Tailnet, "-")
			case r.Client == "":
				t.Errorf("recorded: r.Client is empty; %+v", r)
			case len(r.Scopes) != 1:
				t.Errorf("recorded: len(r.Scopes) = %v, want 1", len(r.Scopes))
			case r.Status < 500:
				t.Errorf("recorded: r.Status = %v, want at least 500", r.Status)
			}
		}
	}
	if posts != 2 {
		t.Errorf("%d requests for keys are recorded, want 2", posts)
	}
}
