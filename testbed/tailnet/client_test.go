// Package tailnet_test tests that third-party software accepts the testbed's tailnet as a real one: Tailscale's own
// API client and its identity provider, both unmodified. It also uses strace to check that no packet leaves the
// machine.
package tailnet_test

import (
	"context"
	"errors"
	"net/http"
	"net/url"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/tailplane/tailplane/testkit/tailnettest"
	tsclient "tailscale.com/client/tailscale/v2"
)

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	os.Exit(m.Run())
}

const policy = `{
	// for tests
	"tagOwners": {"tag:k8s": ["tag:operator"], "tag:operator": [], "tag:idp": []},
	"grants": [
		{"src": ["*"], "dst": ["*"], "ip": ["*"]},
		{"src": ["*"], "dst": ["tag:idp"], "app": {"tailscale.com/cap/tsidp": [{"allow_dcr": true, "allow_admin_ui": true}]}},
	],
}
`

func deadline(t testing.TB) context.Context {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// TB-07: the official client, unmodified, against the API of the testbed.
func TestOfficialClient(t *testing.T) {
	t.Parallel()
	n := tailnettest.Start(t, policy)
	api, err := n.API()
	if err != nil {
		t.Fatal(err)
	}
	base, err := url.Parse(api.URL())
	if err != nil {
		t.Fatal(err)
	}
	operator := api.Client([]string{"devices:core", "auth_keys", "services", "policy_file"}, "tag:operator")
	client := func(secret string) *tsclient.Client {
		return &tsclient.Client{BaseURL: base, Tailnet: "-", Auth: &tsclient.OAuth{ClientID: operator.ID, ClientSecret: secret}}
	}
	c := client(operator.Secret)
	ctx := deadline(t)

	if _, err := client("tskey-client-wrong").Devices().List(ctx); err == nil || !strings.Contains(err.Error(), "API token invalid") {
		t.Errorf("a wrong secret: %v", err)
	}

	// Keys, and a node that joins with one.
	var req tsclient.CreateKeyRequest
	req.Description, req.ExpirySeconds = "official client", 300
	create := &req.Capabilities.Devices.Create
	create.Ephemeral, create.Preauthorized, create.Tags = true, true, []string{"tag:k8s"}
	key, err := c.Keys().CreateAuthKey(ctx, req)
	if err != nil {
		t.Fatal(err)
	}
	if got, err := c.Keys().Get(ctx, key.ID); err != nil || got.Key != "" || got.Invalid || got.Description != req.Description || !slices.Equal(got.Tags, create.Tags) {
		t.Errorf("key: %+v %v", got, err)
	}
	if keys, err := c.Keys().List(ctx, true); err != nil || len(keys) != 1 || keys[0].ID != key.ID {
		t.Errorf("keys: %+v %v", keys, err)
	}
	create.Tags = []string{"tag:idp"}
	if _, err := c.Keys().CreateAuthKey(ctx, req); status(err) != http.StatusBadRequest {
		t.Errorf("a tag that the client does not own: %v", err)
	}
	proxy := n.Node("proxy", "")
	proxy.AuthKey = key.Key
	if err := n.Ready(ctx, proxy); err != nil {
		t.Fatal(err)
	}

	// Devices.
	devices, err := c.Devices().List(ctx, tsclient.WithFields(tsclient.IncludeFieldsAll), tsclient.WithFilter("tags", []string{"tag:k8s"}))
	if err != nil || len(devices) != 1 {
		t.Fatalf("devices: %+v %v", devices, err)
	}
	d := devices[0]
	if d.Name != "proxy.tiny.ts.net" || !d.ConnectedToControl || d.LastSeen != nil || !d.IsEphemeral || d.IsExternal || len(d.Addresses) != 2 || d.Created.IsZero() {
		t.Errorf("device: %+v", d)
	}
	if got, err := c.Devices().Get(ctx, d.NodeID); err != nil || got.ID != d.ID {
		t.Errorf("device: %+v %v", got, err)
	}
	if err := c.Devices().SetName(ctx, d.NodeID, "renamed"); err != nil {
		t.Error(err)
	}
	if err := c.Devices().SetTags(ctx, d.NodeID, []string{"tag:operator"}); err != nil {
		t.Error(err)
	}
	if got, err := c.Devices().Get(ctx, d.ID); err != nil || got.Name != "renamed.tiny.ts.net" || !slices.Equal(got.Tags, []string{"tag:operator"}) {
		t.Errorf("device: %+v %v", got, err)
	}

	// Services.
	svc := tsclient.VIPService{Name: "svc:web", Ports: []string{"tcp:443"}, Tags: []string{"tag:k8s"}, Annotations: map[string]string{"owner": "ours"}}
	if err := c.VIPServices().CreateOrUpdate(ctx, svc); err != nil {
		t.Fatal(err)
	}
	if err := c.VIPServices().CreateOrUpdate(ctx, svc); status(err) != http.StatusBadRequest {
		t.Errorf("an update without the addresses: %v", err)
	}
	got, err := c.VIPServices().Get(ctx, "svc:web")
	if err != nil || len(got.Addrs) != 2 || got.Annotations["owner"] != "ours" {
		t.Fatalf("service: %+v %v", got, err)
	}
	if err := c.VIPServices().CreateOrUpdate(ctx, *got); err != nil {
		t.Error(err)
	}
	if list, err := c.VIPServices().List(ctx); err != nil || len(list) != 1 {
		t.Errorf("services: %+v %v", list, err)
	}
	if err := c.VIPServices().Delete(ctx, "svc:web"); err != nil {
		t.Error(err)
	}
	if _, err := c.VIPServices().Get(ctx, "svc:web"); !tsclient.IsNotFound(err) {
		t.Errorf("a deleted service: %v", err)
	}

	// The policy, with its ETag.
	raw, err := c.PolicyFile().Raw(ctx)
	if err != nil || raw.HuJSON != policy || raw.ETag == "" {
		t.Fatalf("policy: %+v %v", raw, err)
	}
	acl, err := c.PolicyFile().Get(ctx)
	if err != nil || len(acl.Grants) != 2 || !slices.Equal(acl.TagOwners["tag:k8s"], []string{"tag:operator"}) {
		t.Errorf("policy: %+v %v", acl, err)
	}
	if err := c.PolicyFile().Set(ctx, policy, "stale"); status(err) != http.StatusPreconditionFailed {
		t.Errorf("a stale write: %v", err)
	}
	if err := c.PolicyFile().Validate(ctx, `{"ssh": []}`); err == nil || !strings.Contains(err.Error(), `"ssh" is not supported`) {
		t.Errorf("validate: %v", err)
	}
	acl.Grants = acl.Grants[:1]
	if next, err := c.PolicyFile().SetAndGet(ctx, *acl, raw.ETag); err != nil || len(next.Grants) != 1 || next.ETag == raw.ETag {
		t.Errorf("set: %+v %v", next, err)
	}
	if strings.Contains(n.Policy(), "tsidp") {
		t.Error("the tailnet still has the old policy")
	}

	// Deletion, and the client's errors.
	if err := c.Devices().Delete(ctx, d.NodeID); err != nil {
		t.Error(err)
	}
	if err := c.Devices().Delete(ctx, d.NodeID); !tsclient.IsNotFound(err) {
		t.Errorf("a second removal: %v", err)
	}
	if err := c.Keys().Delete(ctx, key.ID); err != nil {
		t.Error(err)
	}
	if got, err := c.Keys().Get(ctx, key.ID); err != nil || !got.Invalid || got.Revoked.IsZero() {
		t.Errorf("a deleted key: %+v %v", got, err)
	}
	api.Fault(tailnettest.Fault{Status: http.StatusTooManyRequests, Header: http.Header{"Retry-After": {"1"}}, Times: 1})
	if _, err := c.Devices().List(ctx); status(err) != http.StatusTooManyRequests {
		t.Errorf("429: %v", err)
	}
	// A known problem of this client: with a middlebox's HTML page it loses the status.
	api.Fault(tailnettest.Fault{HTML: true, Times: 1})
	if _, err := c.Devices().List(ctx); err == nil || status(err) != 0 {
		t.Errorf("HTML: %v", err)
	}
}

// status returns the status that the client read from an error response, or 0.
func status(err error) int {
	e, _ := errors.AsType[tsclient.APIError](err)
	return e.Status
}
