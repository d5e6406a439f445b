package tsapi

import (
	"context"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	os.Exit(m.Run())
}

const testPolicy = `{
	"tagOwners": {"tag:k8s-operator": ["autogroup:admin"], "tag:web": ["tag:k8s-operator"], "tag:foreign": ["autogroup:admin"]},
}`

var allScopes = []string{"devices:core", "auth_keys", "services"}

// startAPI starts the API of a tailnet without nodes.
func startAPI(t testing.TB) *fakeapi.API {
	t.Helper()
	api, err := tailnettest.Start(t, testPolicy).API()
	if err != nil {
		t.Fatal(err)
	}
	return api
}

func configOf(api *fakeapi.API, c fakeapi.OAuthClient) Config {
	return Config{BaseURL: api.URL(), Tailnet: "-", Credential: Credential{ClientID: c.ID, Secret: secret.New(c.Secret)},
		UserAgent: "tailplane-gateway/test", PerSecond: 1000, Burst: 1000, Now: time.Now}
}

func newClient(t testing.TB, c Config) *Client {
	t.Helper()
	client, err := New(c)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(client.drop)
	return client
}

func within(t testing.TB) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// failure returns err as an *Error, or nil.
func failure(err error) *Error {
	f, _ := errors.AsType[*Error](err)
	return f
}

func count(api *fakeapi.API, route string) (n int) {
	for _, r := range api.Requests() {
		if strings.HasPrefix(r.Route, route) {
			n++
		}
	}
	return n
}

const devicesRoute, servicesRoute, keysRoute = "GET /tailnet/{tailnet}/devices", "GET /tailnet/{tailnet}/vip-services", "POST /tailnet/{tailnet}/keys"

func TestKeys(t *testing.T) {
	api := startAPI(t)
	c := newClient(t, configOf(api, api.Client(allScopes, "tag:k8s-operator")))
	ctx := within(t)
	k, err := c.CreateKey(ctx, KeyRequest{Tags: []string{"tag:web"}, Ephemeral: true, Life: 5 * time.Minute, Description: "a test"})
	if err != nil {
		t.Fatal(err)
	}
	switch {
	case !k.Valid:
		t.Errorf("key: k.Valid is false; %+v, %v", k, k.Expires)
	case !strings.HasPrefix(k.Secret.Reveal(), "tskey-auth-"+k.ID):
		t.Errorf("key: k.Secret.Reveal() = %q does not start with %q", k.Secret.Reveal(), "tskey-auth-"+k.ID)
	case time.Until(k.Expires) > 5*time.Minute:
		t.Errorf("key: time.Until(k.Expires) > 5*time.Minute; %+v, %v", k, k.Expires)
	case time.Until(k.Expires) < 4*time.Minute:
		t.Errorf("key: time.Until(k.Expires) < 4*time.Minute; %+v, %v", k, k.Expires)
	}
	ids, err := c.Keys(ctx)
	if err != nil || !slices.Equal(ids, []string{k.ID}) {
		t.Errorf("keys %v, %v", ids, err)
	}
	switch got, err := c.Key(ctx, k.ID); {
	case err != nil:
		t.Errorf("key: %v", err)
	case got.Description != "a test":
		t.Errorf("key: got.Description = %q, want %q", got.Description, "a test")
	case !got.Secret.IsZero():
		t.Errorf("key: got.Secret.IsZero() is false; got = %+v, %v", got, err)
	}
	for range 2 { // the second round finds it deleted; the other key never existed
		if err := errors.Join(c.DeleteKey(ctx, k.ID), c.DeleteKey(ctx, "knever")); err != nil {
			t.Error(err)
		}
	}
	if got, err := c.Key(ctx, k.ID); err != nil || got.Valid {
		t.Errorf("the deleted key: %+v, %v", got, err)
	}
	switch _, err := c.CreateKey(ctx, KeyRequest{Tags: []string{"tag:foreign"}, Life: time.Minute}); {
	case failure(err) == nil:
		t.Error("a key with a foreign tag: failure(err) is nil")
	case failure(err).Class != Invalid:
		t.Errorf("a key with a foreign tag: failure(err).Class != Invalid; %v", err)
	case failure(err).Status != 400:
		t.Errorf("a key with a foreign tag: failure(err).Status != 400; %v", err)
	}
	if n := count(api, "POST /oauth/token"); n != 1 {
		t.Errorf("%d token requests", n)
	}
	if got := c.Scopes(); !slices.Equal(got, allScopes) {
		t.Errorf("scopes %v", got)
	}
	for _, r := range api.Requests() {
		if r.Route == keysRoute && !slices.Contains(r.Scopes, "auth_keys") {
			t.Errorf("requests with %v", r.Scopes)
		}
	}
}

func TestServices(t *testing.T) {
	api := startAPI(t)
	c := newClient(t, configOf(api, api.Client(allScopes, "tag:k8s-operator")))
	ctx := within(t)
	if _, err := c.Service(ctx, "svc:web"); failure(err) == nil || failure(err).Class != NotFound {
		t.Fatalf("a service that is not there: %v", err)
	}
	if c.State().Last != nil {
		t.Errorf("a missing object counts as a failure: %v", c.State().Last)
	}
	want := Service{Name: "svc:web", Ports: []string{"tcp:443"}, Tags: []string{"tag:web"}, Comment: "hello", Annotations: map[string]string{"a": "b"}}
	if err := c.PutService(ctx, want); err != nil {
		t.Fatal(err)
	}
	got, err := c.Service(ctx, "svc:web")
	switch {
	case err != nil:
		t.Fatal(err)
	case len(got.Addrs) != 2:
		t.Fatalf("len(got.Addrs) = %v, want 2", len(got.Addrs))
	case !got.Addrs[0].Is4():
		t.Fatalf("got.Addrs[0].Is4() is false; got = %+v, %v", got, err)
	case got.Comment != "hello":
		t.Fatalf("got.Comment = %q, want %q", got.Comment, "hello")
	case got.Annotations["a"] != "b":
		t.Fatalf(`got.Annotations["a"] = %q, want %q`, got.Annotations["a"], "b")
	case !slices.Equal(got.Ports, want.Ports):
		t.Fatalf("got.Ports (-want +got):\n%s", cmp.Diff(want.Ports, got.Ports))
	}
	if err := c.PutService(ctx, want); failure(err) == nil || failure(err).Class != Invalid {
		t.Errorf("written without its addresses: %v", err)
	}
	got.Comment = "changed"
	if err := c.PutService(ctx, got); err != nil {
		t.Error(err)
	}
	l, err := c.Lists(ctx, time.Minute)
	switch {
	case err != nil:
		t.Error(err)
	case len(l.Services) != 1:
		t.Errorf("len(l.Services) = %v, want 1", len(l.Services))
	case l.Services[0].Comment != "changed":
		t.Errorf("l.Services[0].Comment = %q, want %q", l.Services[0].Comment, "changed")
	case l.Devices == nil:
		t.Error("l.Devices is nil")
	case len(l.Devices) != 0:
		t.Errorf("len(l.Devices) = %v, want 0", len(l.Devices))
	}
	for range 2 {
		if err := c.DeleteService(ctx, "svc:web"); err != nil {
			t.Error(err)
		}
	}
}

// GTW-06, GW-06: The class of each failure, derived from the response.
func TestClasses(t *testing.T) {
	for _, x := range []struct {
		name    string
		fault   fakeapi.Fault
		want    Class
		status  int
		atToken bool
		wait    bool // the error has a RetryAfter
		keys    Class
	}{
		{name: "401", fault: fakeapi.Fault{Route: devicesRoute, Status: 401}, want: Refused, status: 401},
		{name: "401 at the token", fault: fakeapi.Fault{Route: "POST /oauth/token", Status: 401}, want: Refused, status: 401, atToken: true},
		{name: "400 at the token", fault: fakeapi.Fault{Route: "POST /oauth/token", Status: 400}, want: NoToken, status: 400, atToken: true},
		{name: "403 at the token", fault: fakeapi.Fault{Route: "POST /oauth/token", Status: 403}, want: NoToken, status: 403, atToken: true},
		{name: "500 at the token", fault: fakeapi.Fault{Route: "POST /oauth/token", Status: 500}, want: Unavailable, status: 500, atToken: true, wait: true},
		{name: "429 at the token", fault: fakeapi.Fault{Route: "POST /oauth/token", Status: 429}, want: RateLimited, status: 429, atToken: true, wait: true},
		{name: "an HTML page instead of a token", fault: fakeapi.Fault{Route: "POST /oauth/token", HTML: true, Status: 200}, want: Unavailable, status: 200, atToken: true, wait: true},
		{name: "half a token", fault: fakeapi.Fault{Route: "POST /oauth/token", Truncate: true}, want: Unavailable, status: 200, atToken: true, wait: true},
		{name: "403", fault: fakeapi.Fault{Route: devicesRoute, Status: 403}, want: Forbidden, status: 403},
		{name: "403 as an HTML page", fault: fakeapi.Fault{Route: devicesRoute, Status: 403, HTML: true}, want: Forbidden, status: 403},
		{name: "400", fault: fakeapi.Fault{Route: devicesRoute, Status: 400}, want: Invalid, status: 400},
		{name: "404", fault: fakeapi.Fault{Route: devicesRoute, Status: 404}, want: NotFound, status: 404},
		{name: "429", fault: fakeapi.Fault{Route: devicesRoute, Status: 429}, want: RateLimited, status: 429, wait: true},
		{name: "500", fault: fakeapi.Fault{Route: devicesRoute, Status: 500}, want: Unavailable, status: 500, wait: true},
		{name: "500 of the services", fault: fakeapi.Fault{Route: servicesRoute, Status: 500}, want: Unavailable, status: 500, wait: true},
		{name: "an HTML page", fault: fakeapi.Fault{Route: devicesRoute, HTML: true}, want: Unavailable, status: 502, wait: true},
		{name: "a portal", fault: fakeapi.Fault{Route: devicesRoute, HTML: true, Status: 200}, want: Unavailable, status: 200, wait: true},
		{name: "half an answer", fault: fakeapi.Fault{Route: devicesRoute, Truncate: true}, want: Unavailable, status: 200, wait: true},
		{name: "an empty object", fault: fakeapi.Fault{Route: devicesRoute, Status: 200, Body: "{}"}, want: Unavailable, status: 200, wait: true},
		{name: "null", fault: fakeapi.Fault{Route: servicesRoute, Status: 200, Body: "null"}, want: Unavailable, status: 200, wait: true},
		{name: "another form", fault: fakeapi.Fault{Route: devicesRoute, Status: 200, Body: `{"devices":7}`}, want: Unavailable, status: 200, wait: true},
		{name: "a device without an id", fault: fakeapi.Fault{Route: devicesRoute, Status: 200, Body: `{"devices":[{"name":"x"}]}`}, want: Unavailable, status: 200, wait: true},
		{name: "a bad address", fault: fakeapi.Fault{Route: servicesRoute, Status: 200, Body: `{"vipServices":[{"name":"svc:x","addrs":["x"]}]}`}, want: Unavailable, status: 200, wait: true},
		{name: "a redirect", fault: fakeapi.Fault{Route: devicesRoute, Status: 302, Body: "{}", Header: http.Header{"Location": {"/elsewhere"}}}, want: Unavailable, status: 302, wait: true},
		{name: "plain text", fault: fakeapi.Fault{Route: devicesRoute, Status: 200, Body: `{"devices":[]}`, Header: http.Header{"Content-Type": {"text/plain"}}}, want: Unavailable, status: 200, wait: true},
		{name: "nothing", fault: fakeapi.Fault{Route: devicesRoute, Status: 200, Body: " "}, want: Unavailable, status: 200, wait: true},
		{name: "a part", fault: fakeapi.Fault{Route: devicesRoute, Status: 206, Body: `{"devices":[]}`}, want: Unavailable, status: 206, wait: true},
		{name: "too long a token", fault: fakeapi.Fault{Route: "POST /oauth/token", Status: 200, Body: `{"access_token":"` + strings.Repeat("a", maxToken) + `"}`}, want: Unavailable, status: 200, atToken: true, wait: true},
		{name: "a redirect of the token", fault: fakeapi.Fault{Route: "POST /oauth/token", Status: 307, Body: "{}", Header: http.Header{"Location": {"/elsewhere"}}}, want: Unavailable, status: 307, atToken: true, wait: true},
		{name: "not modified", fault: fakeapi.Fault{Route: devicesRoute, Status: 304}, want: Unavailable, status: 304, wait: true},
	} {
		t.Run(x.name, func(t *testing.T) {
			t.Parallel()
			api := startAPI(t)
			c := newClient(t, configOf(api, api.Client(allScopes, "tag:k8s-operator")))
			remove := api.Fault(x.fault)
			l, err := c.Lists(within(t), time.Minute)
			f := failure(err)
			if f == nil {
				t.Fatalf("%+v, %v", l, err)
			}
			switch {
			case f.Class != x.want:
				t.Errorf("f.Class = %q, want %q", f.Class, x.want)
			case f.Status != x.status:
				t.Errorf("f.Status = %v, want %v", f.Status, x.status)
			case f.AtToken != x.atToken:
				t.Errorf("f.AtToken = %v, want %v", f.AtToken, x.atToken)
			case (f.RetryAfter > 0) != x.wait:
				t.Errorf("(f.RetryAfter > 0) != x.wait; %+v, %v, %s, %d", f, err, x.want, x.status)
			}
			if d, v := c.LastRead(); !d.IsZero() && !v.IsZero() {
				t.Error("a state is known nevertheless")
			}
			if x.want == RateLimited {
				if _, err := c.Lists(within(t), time.Minute); failure(err).Class != RateLimited || failure(err).Status != 0 {
					t.Errorf("a new request at once: %v", err)
				}
				return
			}
			remove()
			if _, err := c.Lists(within(t), time.Minute); err != nil {
				t.Errorf("afterwards: %v", err)
			}
		})
	}
}

// GTW-06: Cached data stays available after every failure, and is marked as such.
func TestLastKnownGood(t *testing.T) {
	api := startAPI(t)
	c := newClient(t, configOf(api, api.Client(allScopes, "tag:k8s-operator")))
	ctx := within(t)
	if err := c.PutService(ctx, Service{Name: "svc:web", Ports: []string{"tcp:80"}, Tags: []string{"tag:web"}}); err != nil {
		t.Fatal(err)
	}
	first, err := c.Lists(ctx, 0)
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range []fakeapi.Fault{{Status: 401}, {Status: 403, Route: devicesRoute}, {Status: 404, Route: devicesRoute}, {Status: 500, Route: servicesRoute}} {
		remove := api.Fault(f)
		if _, err := c.Lists(ctx, 0); err == nil {
			t.Errorf("%+v is no failure", f)
		}
		remove()
		switch v, err := c.Services(ctx, time.Hour); {
		case err != nil:
			t.Fatalf("%v; %+v", err, f)
		case len(v.Services) != 1:
			t.Fatalf("len(v.Services) = %v, want 1; %+v", len(v.Services), f)
		case !v.At.Equal(first.At) && v.At.Before(first.At):
			t.Fatalf("!v.At.Equal(first.At) && v.At.Before(first.At); %+v, %+v, %v", f, v, err)
		}
	}
	// The service feature may be off, or its scope missing. The devices are still valid.
	remove := api.Fault(fakeapi.Fault{Route: servicesRoute, Status: 404})
	switch l, err := c.Lists(ctx, 0); {
	case err != nil:
		t.Errorf("feature off: %v", err)
	case len(l.Services) != 0:
		t.Errorf("feature off: len(l.Services) = %v, want 0", len(l.Services))
	case l.ServicesRefused != nil:
		t.Errorf("feature off: l.ServicesRefused = %v, want nil", l.ServicesRefused)
	}
	remove()
	few := newClient(t, configOf(api, api.Client([]string{"devices:core:read"})))
	switch l, err := few.Lists(ctx, 0); {
	case err != nil:
		t.Errorf("without the scope: %v", err)
	case l.ServicesRefused == nil:
		t.Error("without the scope: l.ServicesRefused is nil")
	case l.ServicesRefused.Op.Scope() != "services:read":
		t.Errorf("without the scope: l.ServicesRefused.Op.Scope() = %q, want %q", l.ServicesRefused.Op.Scope(), "services:read")
	}
}

// GW-06: All operations respect a pause that the API requests.
func TestRetryAfter(t *testing.T) {
	api := startAPI(t)
	c := newClient(t, configOf(api, api.Client(allScopes, "tag:k8s-operator")))
	api.Fault(fakeapi.Fault{Route: devicesRoute, Status: 429, Times: 1, Header: http.Header{"Retry-After": {"120"}}})
	_, err := c.Lists(within(t), 0)
	switch f := failure(err); {
	case f == nil:
		t.Fatal("f is nil")
	case f.Class != RateLimited:
		t.Fatalf("f.Class = %q, want %q", f.Class, RateLimited)
	case f.RetryAfter.Round(time.Second) != 2*time.Minute:
		t.Fatalf("f.RetryAfter.Round(time.Second) = %v, want %v", f.RetryAfter.Round(time.Second), 2*time.Minute)
	}
	before := len(api.Requests())
	_, err = c.Keys(within(t))
	switch f := failure(err); {
	case f == nil:
		t.Error("f is nil")
	case f.Class != RateLimited:
		t.Errorf("f.Class = %q, want %q", f.Class, RateLimited)
	case f.RetryAfter < time.Minute:
		t.Errorf("f.RetryAfter = %v, want at least %v", f.RetryAfter, time.Minute)
	case f.Status != 0:
		t.Errorf("f.Status = %v, want 0", f.Status)
	}
	if n := len(api.Requests()); n != before {
		t.Errorf("%d requests in the pause", n-before)
	}
}

// A token that was revoked before it expires gives no information about the credential.
func TestTokenRevoked(t *testing.T) {
	api := startAPI(t)
	own := api.Client(allScopes, "tag:k8s-operator")
	c := newClient(t, configOf(api, own))
	for range 3 {
		if _, err := c.CreateKey(within(t), KeyRequest{Tags: []string{"tag:web"}, Life: time.Minute}); err != nil {
			t.Fatal(err)
		}
		api.RevokeTokens()
	}
	if n := count(api, "POST /oauth/token"); n != 3 {
		t.Errorf("%d tokens", n)
	}
	api.RevokeClient(own.ID)
	if _, err := c.Keys(within(t)); failure(err) == nil || failure(err).Class != Refused {
		t.Errorf("a revoked client: %v", err)
	}
	if n := count(api, keysRoute); n != 5 {
		t.Errorf("%d requests for a key, of which two were refused", n)
	}
}

// GW-02: A credential is sent only to its host, whatever a redirect says.
func TestRedirects(t *testing.T) {
	var mu sync.Mutex
	var elsewhere []string
	other := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		mu.Lock()
		defer mu.Unlock()
		elsewhere = append(elsewhere, r.Method+" "+r.URL.Path+" "+r.Header.Get("Authorization"))
	}))
	defer other.Close()
	for _, status := range []int{301, 302, 303, 307, 308} {
		for _, route := range []string{"", devicesRoute, "DELETE /tailnet/{tailnet}/keys/{id}", keysRoute} {
			api := startAPI(t)
			c := newClient(t, configOf(api, api.Client(allScopes, "tag:k8s-operator")))
			api.Fault(fakeapi.Fault{Route: route, Status: status, Body: "{}", Header: http.Header{"Location": {other.URL}}})
			_, err := c.Lists(within(t), 0)
			errs := []error{c.DeleteKey(within(t), "k1"), err}
			_, err = c.CreateKey(within(t), KeyRequest{Tags: []string{"tag:web"}, Life: time.Minute})
			errs = append(errs, err)
			for i, of := range []string{"DELETE /tailnet/{tailnet}/keys/{id}", devicesRoute, keysRoute} {
				if (route == "" || route == of) && failure(errs[i]) == nil {
					t.Errorf("%d of %s passes for success", status, of)
				}
			}
		}
	}
	mu.Lock()
	defer mu.Unlock()
	if len(elsewhere) > 0 {
		t.Errorf("another server got the request: %q", elsewhere)
	}
}

// GTW-10: Two tailnets with different secrets never mix, even while clients are replaced. Each API
// sees only its client.
func TestIsolation(t *testing.T) {
	type side struct {
		name    string
		api     *fakeapi.API
		clients []fakeapi.OAuthClient
	}
	sides := []*side{{name: "corp"}, {name: "dev"}}
	var set Clients
	for _, s := range sides {
		s.api = startAPI(t)
		for range 2 {
			s.clients = append(s.clients, s.api.Client(allScopes, "tag:k8s-operator"))
		}
	}
	put := func(s *side, n int) error {
		_, err := set.Put(s.name, Version{UID: s.name, Credential: fmt.Sprint(n % 2)}, func() (Config, error) { return configOf(s.api, s.clients[n%2]), nil })
		return err
	}
	var wg sync.WaitGroup
	errs := make(chan error, 1000)
	for _, s := range sides {
		if err := put(s, 0); err != nil {
			t.Fatal(err)
		}
		for worker := range 4 {
			wg.Go(func() {
				for n := range 20 {
					if err := put(s, n/3+worker); err != nil { // replaces the client now and then
						errs <- err
					}
					c, _, ok := set.Get(s.name)
					if !ok {
						errs <- errors.New("no client")
						return
					}
					if c.base.String() != s.api.URL() {
						errs <- fmt.Errorf("%s: a client for %s", s.name, c.base)
					}
					_, err := c.Lists(within(t), 0)
					if f := failure(err); err != nil && (f == nil || f.Class != Dropped) {
						errs <- err
					}
					k, err := c.CreateKey(within(t), KeyRequest{Tags: []string{"tag:web"}, Life: time.Minute, Description: s.name})
					if f := failure(err); err != nil && (f == nil || f.Class != Dropped) {
						errs <- err
					} else if err == nil {
						if f := failure(c.DeleteKey(within(t), k.ID)); f != nil && f.Class != Dropped {
							errs <- f
						}
					}
				}
			})
		}
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	for _, s := range sides {
		used := map[string]int{}
		for _, r := range s.api.Requests() {
			if r.Status != 200 {
				t.Errorf("%s: %s answered with %d", s.name, r.Route, r.Status)
			}
			if strings.HasPrefix(r.Route, "POST /oauth/") {
				continue // has no token yet; a token of another tailnet would be refused
			}
			used[r.Client]++
		}
		for id := range used {
			if id != s.clients[0].ID && id != s.clients[1].ID {
				t.Errorf("%s got a request from %q", s.name, id)
			}
		}
		if len(used) != 2 {
			t.Errorf("%s: used %v", s.name, used)
		}
	}
	set.Drop("corp")
	if _, _, ok := set.Get("corp"); ok || !slices.Equal(set.Names(), []string{"dev"}) {
		t.Errorf("left: %v", set.Names())
	}
}

// A replaced client finishes its calls in progress.
func TestSwap(t *testing.T) {
	api := startAPI(t)
	own := api.Client(allScopes, "tag:k8s-operator")
	var set Clients
	config := func() (Config, error) { return configOf(api, own), nil }
	old, err := set.Put("corp", Version{Credential: "1"}, config)
	if err != nil {
		t.Fatal(err)
	}
	if same, err := set.Put("corp", Version{Credential: "1"}, func() (Config, error) { return Config{}, errors.New("gets no request") }); err != nil || same != old {
		t.Fatal("the same version created another client")
	}
	api.Fault(fakeapi.Fault{Route: devicesRoute, Delay: 300 * time.Millisecond, Times: 1})
	got := make(chan error, 1)
	go func() {
		_, err := old.Lists(within(t), 0)
		got <- err
	}()
	for start := time.Now(); count(api, devicesRoute) == 0; time.Sleep(time.Millisecond) {
		if time.Since(start) > time.Minute {
			t.Fatal("the list was never requested")
		}
	}
	fresh, err := set.Put("corp", Version{Credential: "2"}, config)
	if err != nil || fresh == old {
		t.Fatal("no other client", err)
	}
	if err := <-got; err != nil {
		t.Errorf("what was in hand: %v", err)
	}
	defer fresh.drop()
	for start := time.Now(); ; time.Sleep(time.Millisecond) {
		_, err := old.Lists(within(t), 0)
		if f := failure(err); f != nil && f.Class == Dropped {
			break
		}
		if time.Since(start) > time.Minute {
			t.Fatal("the old client never stops")
		}
	}
	if _, err := old.Keys(within(t)); failure(err) == nil || failure(err).Class != Dropped {
		t.Errorf("new work on the old client: %v", err)
	}
	if _, err := fresh.Keys(within(t)); err != nil {
		t.Error(err)
	}
}

// Concurrent callers of Lists share one pair of requests.
func TestShared(t *testing.T) {
	api := startAPI(t)
	c := newClient(t, configOf(api, api.Client(allScopes, "tag:k8s-operator")))
	api.Fault(fakeapi.Fault{Route: "POST /oauth/token", Delay: 50 * time.Millisecond})
	var wg sync.WaitGroup
	errs := make(chan error, 200)
	for i := range 50 {
		wg.Go(func() {
			ctx := within(t)
			if i == 0 {
				gone, cancel := context.WithTimeout(ctx, time.Millisecond) // a caller that leaves does not affect the others
				defer cancel()
				c.Lists(gone, time.Minute)
				return
			}
			if _, err := c.Lists(ctx, time.Minute); err != nil {
				errs <- err
			}
			if _, _, err := c.Tagged(ctx, time.Minute, "tag:b", "tag:a", "tag:b"); err != nil {
				errs <- err
			}
		})
	}
	wg.Wait()
	close(errs)
	for err := range errs {
		t.Error(err)
	}
	switch d, s, k := count(api, devicesRoute), count(api, servicesRoute), count(api, "POST /oauth/token"); {
	case d != 2:
		t.Errorf("d = %v, want 2", d)
	case s != 1:
		t.Errorf("s = %v, want 1", s)
	case k != 1:
		t.Errorf("k = %v, want 1", k)
	}
	for _, r := range api.Requests() {
		if r.Query != "" && r.Query != "tags=tag%3Aa&tags=tag%3Ab" {
			t.Errorf("query %q", r.Query)
		}
	}
}

// GTW-11: Workload identity: the client exchanges its token for a Tailscale token.
func TestWorkloadIdentity(t *testing.T) {
	api := startAPI(t)
	claims := func(aud string) secret.Text {
		part := func(v any) string {
			b, err := json.Marshal(v)
			if err != nil {
				panic(err)
			}
			return base64.RawURLEncoding.EncodeToString(b)
		}
		return secret.New(part(map[string]string{"alg": "none"}) + "." + part(map[string]any{"iss": "https://cluster", "sub": "system:serviceaccount:a:b", "aud": aud,
			"exp": time.Now().Add(10 * time.Minute).Unix()}) + ".c2ln")
	}
	api.Trust(fakeapi.TrustedIssuer{ClientID: "kwif", Issuer: "https://cluster", Subject: "system:serviceaccount:a:b", Audience: "right", Scopes: allScopes,
		Tags: []string{"tag:k8s-operator"}, Verify: func(context.Context, string) error { return nil }})
	for _, x := range []struct {
		why    string
		assert func(context.Context) (secret.Text, error)
		want   Class
	}{
		{"right", func(context.Context) (secret.Text, error) { return claims("right"), nil }, ""},
		{"another audience", func(context.Context) (secret.Text, error) { return claims("wrong"), nil }, Refused},
		{"not one of the issued tokens", func(context.Context) (secret.Text, error) { return secret.Text{}, errors.New("the API server says no") }, NoToken},
	} {
		config := configOf(api, fakeapi.OAuthClient{ID: "kwif"})
		config.Credential.Assert = x.assert
		c := newClient(t, config)
		_, err := c.Lists(within(t), 0)
		if f := failure(err); f == nil && (x.want != "" || err != nil) || f != nil && f.Class != x.want {
			t.Errorf("%s: %v", x.why, err)
		}
		if x.want == NoToken && !strings.Contains(err.Error(), "the API server says no") {
			t.Errorf("%s: %v has no reason", x.why, err)
		}
	}
	if n := count(api, "POST /oauth/token-exchange"); n != 2 {
		t.Errorf("%d exchanges", n)
	}
}

func TestConfig(t *testing.T) {
	good := Config{BaseURL: "https://api.tailscale.com", Tailnet: "-", Credential: Credential{ClientID: "k", Secret: secret.New("s")}, UserAgent: "x", PerSecond: 1, Burst: 1, Now: time.Now}
	if _, err := New(good); err != nil {
		t.Fatal(err)
	}
	for _, u := range []string{"", "api.tailscale.com", "http://api.tailscale.com", "http://192.0.2.1", "ftp://127.0.0.1", "https://a:b@api.tailscale.com", "https://api.tailscale.com/x", "https://api.tailscale.com?x", "http://127.0.0.1.example.com"} {
		c := good
		c.BaseURL = u
		if _, err := New(c); err == nil {
			t.Errorf("%q is taken", u)
		}
	}
	for _, u := range []string{"http://127.0.0.1:8080", "http://[::1]:1", "http://localhost:1/", "https://api.tailscale.com/"} {
		if b, err := ParseBaseURL(u); err != nil || b.Path != "" {
			t.Errorf("%q: %v %v", u, b, err)
		}
	}
	both := good
	both.Credential.Assert = func(context.Context) (secret.Text, error) { return secret.Text{}, nil }
	none := good
	none.Credential.Secret = secret.Text{}
	for _, c := range []Config{both, none} {
		if _, err := New(c); err == nil {
			t.Error("a credential of both kinds, or of none, is taken")
		}
	}
}

// GW-11: Credentials are never printed, even if the API repeats them.
func TestSecretsDoNotPrint(t *testing.T) {
	canary := secret.New("tskey-client-canary")
	inside := newClient(t, Config{BaseURL: "https://api.example.com", Tailnet: "-", Credential: Credential{ClientID: "k", Secret: canary}, UserAgent: "x", PerSecond: 1, Burst: 1, Now: time.Now})
	inside.token.Store(&token{text: canary})
	var text strings.Builder
	for _, v := range []any{canary, &canary, Credential{ClientID: "k", Secret: canary}, KeyRequest{}, Key{Secret: canary}, &inside.config, token{text: canary}, exchange{token: canary}} {
		for _, verb := range []string{"%v", "%+v", "%#v", "%s", "%q", "%x", "%d"} {
			fmt.Fprintf(&text, verb, v)
		}
		if b, err := json.Marshal(v); err == nil { // some values contain functions
			text.Write(b)
		}
	}
	api := startAPI(t)
	own := api.Client(allScopes, "tag:k8s-operator")
	c := newClient(t, configOf(api, own))
	for _, route := range []string{"POST /oauth/token", devicesRoute} {
		for _, status := range []int{200, 400, 403, 500} {
			remove := api.Fault(fakeapi.Fault{Route: route, Status: status, Body: `{"message":"you sent ` + own.Secret + `\u001b[31m"}`})
			_, err := c.Lists(within(t), 0)
			remove()
			if err == nil {
				t.Fatal("no failure")
			}
			fmt.Fprintf(&text, "%v %+v", err, c.State().Last)
		}
	}
	switch s := text.String(); {
	case strings.Contains(s, "canary"):
		t.Errorf("it prints: s = %q contains %q", s, "canary")
	case strings.Contains(s, own.Secret):
		t.Errorf("it prints: s = %q contains %q", s, own.Secret)
	case strings.Contains(s, "\x1b"):
		t.Errorf("it prints: s = %q contains %q", s, "\x1b")
	case strings.Contains(s, fmt.Sprintf("%x", "canary")):
		t.Errorf("it prints: s = %q contains %q", s, fmt.Sprintf("%x", "canary"))
	}
}
