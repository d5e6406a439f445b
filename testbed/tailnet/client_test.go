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

	"github.com/google/go-cmp/cmp"

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
	switch got, err := c.Keys().Get(ctx, key.ID); {
	case err != nil:
		t.Errorf("key: %v", err)
	case got.Key != "":
		t.Errorf("key: got.Key = %q, want none", got.Key)
	case got.Invalid:
		t.Errorf("key: got.Invalid is true; got = %+v, %v", got, err)
	case got.Description != req.Description:
		t.Errorf("key: got.Description = %q, want %q", got.Description, req.Description)
	case !slices.Equal(got.Tags, create.Tags):
		t.Errorf("key: got.Tags (-want +got):\n%s", cmp.Diff(create.Tags, got.Tags))
	}
	switch keys, err := c.Keys().List(ctx, true); {
	case err != nil:
		t.Errorf("keys: %v", err)
	case len(keys) != 1:
		t.Errorf("keys: len(keys) = %v, want 1", len(keys))
	case keys[0].ID != key.ID:
		t.Errorf("keys: keys[0].ID = %q, want %q", keys[0].ID, key.ID)
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
	switch {
	case d.Name != "proxy.tiny.ts.net":
		t.Errorf("device: d.Name = %q, want %q", d.Name, "proxy.tiny.ts.net")
	case !d.ConnectedToControl:
		t.Errorf("device: d.ConnectedToControl is false; %+v", d)
	case d.LastSeen != nil:
		t.Errorf("device: d.LastSeen = %v, want nil", d.LastSeen)
	case !d.IsEphemeral:
		t.Errorf("device: d.IsEphemeral is false; %+v", d)
	case d.IsExternal:
		t.Errorf("device: d.IsExternal is true; %+v", d)
	case len(d.Addresses) != 2:
		t.Errorf("device: len(d.Addresses) = %v, want 2", len(d.Addresses))
	case d.Created.IsZero():
		t.Errorf("device: d.Created.IsZero() is true; %+v", d)
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
	switch got, err := c.Devices().Get(ctx, d.ID); {
	case err != nil:
		t.Errorf("device: %v", err)
	case got.Name != "renamed.tiny.ts.net":
		t.Errorf("device: got.Name = %q, want %q", got.Name, "renamed.tiny.ts.net")
	case !slices.Equal(got.Tags, []string{"tag:operator"}):
		t.Errorf("device: got.Tags (-want +got):\n%s", cmp.Diff([]string{"tag:operator"}, got.Tags))
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
	switch {
	case err != nil:
		t.Fatalf("service: %v", err)
	case len(got.Addrs) != 2:
		t.Fatalf("service: len(got.Addrs) = %v, want 2", len(got.Addrs))
	case got.Annotations["owner"] != "ours":
		t.Fatalf(`service: got.Annotations["owner"] = %q, want %q`, got.Annotations["owner"], "ours")
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
	switch {
	case err != nil:
		t.Fatalf("policy: %v", err)
	case raw.HuJSON != policy:
		t.Fatalf("policy: raw.HuJSON = %q, want %q", raw.HuJSON, policy)
	case raw.ETag == "":
		t.Fatalf("policy: raw.ETag is empty; %+v, %v", raw, err)
	}
	acl, err := c.PolicyFile().Get(ctx)
	switch {
	case err != nil:
		t.Errorf("policy: %v", err)
	case len(acl.Grants) != 2:
		t.Errorf("policy: len(acl.Grants) = %v, want 2", len(acl.Grants))
	case !slices.Equal(acl.TagOwners["tag:k8s"], []string{"tag:operator"}):
		t.Errorf("policy: acl.TagOwners[\"tag:k8s\"] (-want +got):\n%s", cmp.Diff([]string{"tag:operator"}, acl.TagOwners["tag:k8s"]))
	}
	if err := c.PolicyFile().Set(ctx, policy, "stale"); status(err) != http.StatusPreconditionFailed {
		t.Errorf("a stale write: %v", err)
	}
	if err := c.PolicyFile().Validate(ctx, `{"ssh": []}`); err == nil || !strings.Contains(err.Error(), `"ssh" is not supported`) {
		t.Errorf("validate: %v", err)
	}
	acl.Grants = acl.Grants[:1]
	switch next, err := c.PolicyFile().SetAndGet(ctx, *acl, raw.ETag); {
	case err != nil:
		t.Errorf("set: %v", err)
	case len(next.Grants) != 1:
		t.Errorf("set: len(next.Grants) = %v, want 1", len(next.Grants))
	case next.ETag == raw.ETag:
		t.Errorf("set: next.ETag = %q, the same as raw.ETag", next.ETag)
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
	switch got, err := c.Keys().Get(ctx, key.ID); {
	case err != nil:
		t.Errorf("a deleted key: %v", err)
	case !got.Invalid:
		t.Errorf("a deleted key: got.Invalid is false; got = %+v, %v", got, err)
	case got.Revoked.IsZero():
		t.Errorf("a deleted key: got.Revoked.IsZero() is true; got = %+v, %v", got, err)
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
