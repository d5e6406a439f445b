package tsapi

import (
	"encoding/json"
	"testing"
	"time"

	"tailscale.com/ipn"

	"github.com/tailplane/tailplane/testkit/tailnettest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// A real node offers a service, appears in the list, and is approved.
func TestHosts(t *testing.T) {
	tn := tailnettest.Start(t, testPolicy)
	api, err := tn.API()
	if err != nil {
		t.Fatal(err)
	}
	c := newClient(t, configOf(api, api.Client(allScopes, "tag:k8s-operator")))
	ctx := within(t)
	switch _, err := c.Hosts(ctx, "svc:web"); {
	case failure(err) == nil:
		t.Fatal("of a service that is not there: failure(err) is nil")
	case failure(err).Class != NotFound:
		t.Fatalf("of a service that is not there: failure(err).Class != NotFound; %v", err)
	case failure(err).Message == "":
		t.Fatalf(`of a service that is not there: failure(err).Message == ""; %v`, err)
	}
	if err := c.PutService(ctx, Service{Name: "svc:web", Ports: []string{"tcp:80"}, Tags: []string{"tag:web"}}); err != nil {
		t.Fatal(err)
	}
	node := tn.Node("relay", "", "tag:web")
	if err := tn.Ready(ctx, node); err != nil {
		t.Fatal(err)
	}
	switch hosts, err := c.Hosts(ctx, "svc:web"); {
	case err != nil:
		t.Fatalf("before a host offers: %v", err)
	case hosts == nil:
		t.Fatal("before a host offers: hosts is nil")
	case len(hosts) != 0:
		t.Fatalf("before a host offers: len(hosts) = %v, want 0", len(hosts))
	}
	lc, err := node.LocalClient()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := lc.EditPrefs(ctx, &ipn.MaskedPrefs{AdvertiseServicesSet: true, Prefs: ipn.Prefs{AdvertiseServices: []string{"svc:web"}}}); err != nil {
		t.Fatal(err)
	}
	id, err := tn.ID(node)
	if err != nil {
		t.Fatal(err)
	}
	var hosts []Host
	for end := time.Now().Add(2 * time.Minute); len(hosts) == 0; time.Sleep(20 * time.Millisecond) {
		if hosts, err = c.Hosts(ctx, "svc:web"); err != nil || time.Now().After(end) {
			t.Fatalf("the node is not seen: %v", err)
		}
	}
	if want := (Host{Device: string(id), Configured: true}); hosts[0] != want {
		t.Errorf("%+v, not %+v", hosts[0], want)
	}
	if err := c.ApproveHost(ctx, "svc:web", string(id)); err != nil {
		t.Fatal(err)
	}
	switch hosts, err = c.Hosts(ctx, "svc:web"); {
	case err != nil:
		t.Errorf("approved: %v", err)
	case len(hosts) != 1:
		t.Errorf("approved: len(hosts) = %v, want 1", len(hosts))
	case !hosts[0].Approved:
		t.Errorf("approved: hosts[0].Approved is false; hosts = %+v, %v", hosts, err)
	}
	if err := c.ApproveHost(ctx, "svc:web", "nobody"); failure(err) == nil || failure(err).Class != NotFound {
		t.Errorf("a device that is not there: %v", err)
	}
	// A response in another format is not an empty list.
	for _, body := range []string{`{}`, `{"hosts":[{}]}`, `{"hosts":7}`} {
		remove := api.Fault(fakeapi.Fault{Route: "GET /tailnet/{tailnet}/services/{name}/devices", Status: 200, Body: body})
		if hosts, err := c.Hosts(ctx, "svc:web"); failure(err) == nil || failure(err).Class != Unavailable {
			t.Errorf("%s: %+v, %v", body, hosts, err)
		}
		remove()
		if _, err := c.Hosts(ctx, "svc:web"); err != nil {
			t.Fatal(err)
		}
	}
}

func TestConfigured(t *testing.T) {
	for text, want := range map[string]bool{`true`: true, `false`: false, `"configured"`: true, `"not-configured"`: false, `""`: false, `null`: false} {
		var c configured
		if err := json.Unmarshal([]byte(text), &c); err != nil || bool(c) != want {
			t.Errorf("%s: %v, %v", text, c, err)
		}
	}
	if err := json.Unmarshal([]byte(`7`), new(configured)); err == nil {
		t.Error("a number passes")
	}
}
