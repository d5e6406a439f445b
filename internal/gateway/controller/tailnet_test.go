//go:build unix

package controller

import (
	"context"
	"errors"
	"net/http"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	"github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// GTW-05, GW-11: a valid credential causes one proof and then only two reads per interval. Ten
// reconciles in between write nothing and call no API.
func TestTailnetValid(t *testing.T) {
	n := tailnettest.StartWith(t, tailnettest.Options{Policy: tailnetTestPolicy, Suffix: "tail8eff9.ts.net"})
	if err := n.Ready(t.Context(), n.Node("web-1", "", "tag:web")); err != nil {
		t.Fatal(err)
	}
	api, err := n.API()
	if err != nil {
		t.Fatal(err)
	}
	p := newTailnetEnv(t, allowAPIs(api))
	own := api.Client(allScopes, "tag:k8s-operator")
	p.secret("tailscale-oauth", own)
	p.tailnet("test-tailnet", api, "tailscale-oauth")
	o := p.condition("test-tailnet", "Ready", "True", "Ready")
	for kind, want := range map[string]string{"Authenticated": "True/TokenIssued", "Validated": "True/Ready", "Degraded": "False/AsExpected"} {
		if got := conditionOf(o, kind); got != want {
			t.Errorf("%s is %s, want %s", kind, got, want)
		}
	}
	s := o.Status
	switch {
	case s.TailnetInfo == nil:
		t.Error("status: s.TailnetInfo is nil")
	case s.TailnetInfo.Name != "tail8eff9.ts.net":
		t.Errorf("status: s.TailnetInfo.Name = %q, want %q", s.TailnetInfo.Name, "tail8eff9.ts.net")
	case s.TailnetInfo.Organization != "Personal":
		t.Errorf("status: s.TailnetInfo.Organization = %q, want %q", s.TailnetInfo.Organization, "Personal")
	case s.DeviceCount != 1:
		t.Errorf("status: s.DeviceCount = %v, want 1", s.DeviceCount)
	case s.LastSyncTime == nil:
		t.Error("status: s.LastSyncTime is nil")
	case s.NextSyncTime == nil:
		t.Error("status: s.NextSyncTime is nil")
	case s.Validation.Phase != v1alpha1.ValidationDone:
		t.Errorf("status: s.Validation.Phase = %q, want %q", s.Validation.Phase, v1alpha1.ValidationDone)
	case s.API == nil:
		t.Error("status: s.API is nil")
	case s.API.State != v1alpha1.CircuitClosed:
		t.Errorf("status: s.API.State = %q, want %q", s.API.State, v1alpha1.CircuitClosed)
	case !slices.Contains(s.Scopes, "auth_keys"):
		t.Errorf("status: s.Scopes = %v does not contain %q", s.Scopes, "auth_keys")
	}
	p.event("test-tailnet", "AuthenticationSucceeded")
	p.event("test-tailnet", "MetadataDiscovered")
	out, errs, code := kubetest.Kubectl(t.Context(), p.cluster.Kubeconfig, "get", "tstn", "test-tailnet", "--no-headers")
	switch f := strings.Fields(out); {
	case code != 0:
		t.Errorf("kubectl: code = %v, want 0; out = %q; errs = %s", code, out, errs)
	case len(f) != 5:
		t.Errorf("kubectl: len(f) = %v, want 5; out = %q; errs = %s", len(f), out, errs)
	case !slices.Equal(f[:4], []string{"test-tailnet", "Ready", "tail8eff9.ts.net", "Personal"}):
		t.Errorf("kubectl: f[:4] (-want +got):\n%s", cmp.Diff([]string{"test-tailnet", "Ready", "tail8eff9.ts.net", "Personal"}, f[:4]))
	}

	requestsBefore, writes := len(api.Requests()), len(p.wire.written())
	for range 10 {
		p.trigger("test-tailnet")
	}
	if n := len(api.Requests()) - requestsBefore; n != 0 {
		t.Errorf("%d requests to Tailscale in ten quiet reconciles", n)
	}
	if w := p.wire.written()[writes:]; len(w) != 0 {
		t.Errorf("writes to Kubernetes in ten quiet reconciles: %q", w)
	}
	for i := range 3 {
		last := p.get("test-tailnet").Status.LastSyncTime
		p.ahead.Add(int64(5*time.Minute + 2*time.Second))
		p.trigger("test-tailnet")
		p.until("the lists are read", func() bool { return p.get("test-tailnet").Status.LastSyncTime.After(last.Time) })
		if d, v := count(api, listDevices), count(api, listServices); d != i+2 || v != i+2 {
			t.Errorf("after %d intervals: %d and %d lists", i+1, d, v)
		}
	}
	switch m, d := count(api, makeKey), count(api, deleteKey); {
	case m != 1:
		t.Errorf("m = %v, want 1", m)
	case d != 1:
		t.Errorf("d = %v, want 1", d)
	case len(validKeys(t, api)) != 0:
		t.Errorf("len(validKeys(t, api)) != 0; %d, %d, %v", m, d, validKeys(t, api))
	}
	// A new operator continues where the old one stopped.
	p.stop()
	requestsBefore = len(api.Requests())
	p.start()
	p.trigger("test-tailnet")
	p.until("others find a client after a restart", func() bool { _, _, ok := p.clients.Get("test-tailnet"); return ok })
	if n := len(api.Requests()) - requestsBefore; n != 0 {
		t.Errorf("%d requests to Tailscale after a restart", n)
	}
	if log := p.log.String(); strings.Contains(log, own.Secret) || strings.Contains(log, "tskey-") {
		t.Error("a secret is in the log")
	}
}

// GTW-06, GW-06: the effect of each failure on a new tailnet, and its recovery.
func TestTailnetFailures(t *testing.T) {
	api := newAPI(t)
	p := newTailnetEnv(t, allowAPIs(api))
	few := api.Client([]string{"devices:core:read"}, "tag:k8s-operator")
	p.secret("few", few)
	foreign := api.Client(allScopes, "tag:web")
	p.secret("foreign", foreign)
	p.secret("good", api.Client(allScopes, "tag:k8s-operator"))
	wrong := api.Client(allScopes, "tag:k8s-operator")
	wrong.Secret = "tskey-client-wrong"
	p.secret("wrong", wrong)
	p.must(p.admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "half"}, StringData: map[string]string{"client_id": "k", "client_secret": "\n"}}))
	for i, x := range []struct {
		secret, namespace              string
		fault                          tsapi.Fault
		authenticated, validated, why2 string
		degraded                       string
		recovers                       bool
	}{
		{secret: "wrong", authenticated: "False/InvalidCredentials", validated: "Unknown/Pending", why2: "Failed"},
		{secret: "none", authenticated: "False/SecretNotFound", validated: "Unknown/Pending", why2: "Failed"},
		{secret: "half", authenticated: "False/SecretKeyMissing", validated: "Unknown/Pending", why2: "Failed"},
		{secret: "good", namespace: "kube-system", authenticated: "False/SecretNamespaceNotAllowed", validated: "Unknown/Pending", why2: "Failed"},
		{secret: "few", authenticated: "True/TokenIssued", validated: "False/InsufficientPermissions", why2: "Failed"},
		{secret: "foreign", authenticated: "True/TokenIssued", validated: "False/TagsNotPermitted", why2: "Failed"},
		{secret: "good", fault: tsapi.Fault{Route: getToken, Status: 403}, authenticated: "False/TokenExchangeFailed", validated: "Unknown/Pending", why2: "Failed"},
		{secret: "good", fault: tsapi.Fault{Route: makeKey, Status: 401}, authenticated: "False/InvalidCredentials", validated: "Unknown/Pending", why2: "Failed"},
		{secret: "good", fault: tsapi.Fault{Route: makeKey, Status: 404}, authenticated: "True/TokenIssued", validated: "False/TailnetNotFound", why2: "Failed"},
		{secret: "good", fault: tsapi.Fault{Route: makeKey, Status: 403}, authenticated: "True/TokenIssued", validated: "False/InsufficientPermissions", why2: "Failed"},
		{secret: "good", fault: tsapi.Fault{Route: getToken, Status: 500}, authenticated: "Unknown/APIUnavailable", validated: "Unknown/APIUnavailable", why2: "Pending", degraded: "True/APIUnavailable", recovers: true},
		{secret: "good", fault: tsapi.Fault{Status: 429, Header: http.Header{"Retry-After": {"2"}}}, authenticated: "Unknown/APIUnavailable", validated: "Unknown/RateLimited", why2: "Pending", degraded: "True/RateLimited", recovers: true},
		{secret: "good", fault: tsapi.Fault{HTML: true}, authenticated: "Unknown/APIUnavailable", validated: "Unknown/APIUnavailable", why2: "Pending", degraded: "True/APIUnavailable", recovers: true},
		{secret: "good", fault: tsapi.Fault{Route: listDevices, Truncate: true}, authenticated: "Unknown/APIUnavailable", validated: "Unknown/APIUnavailable", why2: "Pending", degraded: "True/APIUnavailable", recovers: true},
	} {
		name := "t" + string(rune('a'+i))
		remove := api.Fault(x.fault)
		if x.fault.Route == "" && x.fault.Status == 0 && !x.fault.HTML {
			remove()
		}
		o := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TailscaleTailnetSpec{SyncInterval: fiveMinutes, APIBaseURL: api.URL(), OAuthSecretName: x.secret, OAuthSecretNamespace: x.namespace}}
		p.must(p.admin.Create(t.Context(), o))
		p.condition(name, "Ready", "False", x.why2)
		// A failure of the lists comes after the proof; it is reported when the circuit or the
		// lists have failed.
		p.until(name+" reports why", func() bool { return p.get(name).Status.ObservedGeneration > 0 })
		o = p.get(name)
		if got := conditionOf(o, "Authenticated"); got != x.authenticated {
			t.Errorf("%d %+v: Authenticated is %s, want %s%s", i, x.fault, got, x.authenticated, conditionText(o))
		}
		if got := conditionOf(o, "Validated"); got != x.validated {
			t.Errorf("%d %+v: Validated is %s, want %s%s", i, x.fault, got, x.validated, conditionText(o))
		}
		if x.degraded != "" && conditionOf(o, "Degraded") != x.degraded {
			t.Errorf("%d %+v: Degraded is %s, want %s", i, x.fault, conditionOf(o, "Degraded"), x.degraded)
		}
		if strings.HasPrefix(x.authenticated, "False") {
			p.event(name, "AuthenticationFailed")
		}
		if x.recovers {
			p.event(name, "APIUnavailable")
		}
		remove()
		if x.recovers {
			p.condition(name, "Ready", "True", "Ready")
			p.event(name, "APIRecovered")
		}
		p.must(p.admin.Delete(t.Context(), o))
		p.until(name+" is deleted", func() bool {
			return apierrors.IsNotFound(p.admin.Get(t.Context(), client.ObjectKey{Name: name}, new(v1alpha1.TailscaleTailnet)))
		})
	}
	if omitted := validKeys(t, api); len(omitted) > 0 {
		t.Errorf("keys left: %v", omitted)
	}
}

// GTW-06: a healthy tailnet stays ready while the API is unavailable, and reports it.
func TestTailnetStaysReady(t *testing.T) {
	api := newAPI(t)
	p := newTailnetEnv(t, allowAPIs(api))
	p.secret("s", api.Client(allScopes, "tag:k8s-operator"))
	p.tailnet("corp", api, "s")
	p.condition("corp", "Validated", "True", "NoDevices") // GTW-12
	remove := api.Fault(tsapi.Fault{Status: 503})
	p.ahead.Add(int64(6 * time.Minute))
	p.trigger("corp")
	o := p.condition("corp", "Degraded", "True", "APIUnavailable")
	switch {
	case conditionOf(o, "Ready") != "True/Ready":
		t.Errorf(`conditionOf(o, "Ready") != "True/Ready"; %s, %+v`, conditionText(o), o.Status.API)
	case conditionOf(o, "Authenticated") != "True/TokenIssued":
		t.Errorf(`conditionOf(o, "Authenticated") != "True/TokenIssued"; %s, %+v`, conditionText(o), o.Status.API)
	case o.Status.API.ConsecutiveFailures == 0:
		t.Errorf("o.Status.API.ConsecutiveFailures = %v; %s", o.Status.API.ConsecutiveFailures, conditionText(o))
	case o.Status.API.LastError.HTTPStatus != 503:
		t.Errorf("o.Status.API.LastError.HTTPStatus = %v, want 503; %s", o.Status.API.LastError.HTTPStatus, conditionText(o))
	}
	remove()
	p.ahead.Add(int64(10 * time.Minute))
	p.trigger("corp")
	p.condition("corp", "Degraded", "False", "AsExpected")
	if n := count(api, makeKey); n != 1 {
		t.Errorf("%d keys created", n)
	}
	// A refused credential has another effect.
	api.Fault(tsapi.Fault{Status: 401})
	p.ahead.Add(int64(6 * time.Minute))
	p.trigger("corp")
	p.condition("corp", "Ready", "False", "Failed")
	p.condition("corp", "Authenticated", "False", "InvalidCredentials")
}

// GTW-12: a device of another tailnet says nothing about the domain of this one.
func TestSharedDevice(t *testing.T) {
	n := tailnettest.StartWith(t, tailnettest.Options{Policy: tailnetTestPolicy, Suffix: "elsewhere.ts.net"})
	node := n.Node("guest", "", "tag:web")
	if err := n.Ready(t.Context(), node); err != nil {
		t.Fatal(err)
	}
	id, err := n.ID(node)
	if err != nil || !n.Share(id) {
		t.Fatal("the node cannot be shared", err)
	}
	api, err := n.API()
	if err != nil {
		t.Fatal(err)
	}
	p := newTailnetEnv(t, allowAPIs(api))
	p.secret("s", api.Client(allScopes, "tag:k8s-operator"))
	p.tailnet("corp", api, "s")
	o := p.condition("corp", "Validated", "True", "NoDevices")
	switch {
	case o.Status.TailnetInfo != nil:
		t.Errorf("o.Status.TailnetInfo = %v, want nil; %s", o.Status.TailnetInfo, conditionText(o))
	case o.Status.DeviceCount != 1:
		t.Errorf("o.Status.DeviceCount = %v, want 1; %s", o.Status.DeviceCount, conditionText(o))
	case conditionOf(o, "Ready") != "True/Ready":
		t.Errorf(`conditionOf(o, "Ready") != "True/Ready"; %+v, %s`, o.Status.TailnetInfo, conditionText(o))
	}
}

// GTW-07: after a crash at each step of a proof, the next operator leaves no key behind.
func TestTailnetCrash(t *testing.T) {
	for _, x := range []struct {
		why   string
		cut   tailnetCut
		fault tsapi.Fault
		made  int // maximum number of requests for a key, of which one succeeds
	}{
		{"after the start was recorded, before a key is requested", tailnetCut{`"InProgress"`, true}, tsapi.Fault{Route: makeKey, Status: 503}, 2},
		{"after the key was created, before its id is written", tailnetCut{`"keyID"`, false}, tsapi.Fault{Route: deleteKey, Status: 503}, 1},
		{"after its id was written, before it is deleted", tailnetCut{`"keyID"`, true}, tsapi.Fault{Route: deleteKey, Status: 503}, 1},
		{"after it was deleted, before that is written", tailnetCut{`"Done"`, false}, tsapi.Fault{Route: "none", Status: 503}, 1},
	} {
		t.Run(x.why, func(t *testing.T) {
			api := newAPI(t)
			p := newTailnetEnv(t, allowAPIs(api))
			remove := api.Fault(x.fault)
			p.wire.cut.Store(&x.cut)
			p.secret("s", api.Client(allScopes, "tag:k8s-operator"))
			p.tailnet("corp", api, "s")
			p.until("it is killed", p.wire.dead.Load)
			p.crash()
			if phase := p.get("corp").Status.Validation.Phase; phase != v1alpha1.ValidationInProgress && phase != v1alpha1.ValidationCleanupPending {
				t.Fatalf("the crash left %q", phase)
			}
			remove()
			p.start()
			o := p.condition("corp", "Ready", "True", "Ready")
			if o.Status.Validation.Phase != v1alpha1.ValidationDone {
				t.Errorf("%+v", o.Status.Validation)
			}
			if omitted := validKeys(t, api); len(omitted) > 0 {
				t.Errorf("keys left: %v", omitted)
			}
			if n := count(api, makeKey); n < 1 || n > x.made {
				t.Errorf("%d keys were requested, at most %d are allowed", n, x.made)
			}
		})
	}
}

// GTW-08: a rotated Secret and a changed spec are proved once each, with a new client.
func TestTailnetRotation(t *testing.T) {
	api := newAPI(t)
	p := newTailnetEnv(t, allowAPIs(api))
	clients := []tsapi.OAuthClient{api.Client(allScopes, "tag:k8s-operator"), api.Client(allScopes, "tag:k8s-operator", "tag:web")}
	s := p.secret("s", clients[0])
	p.tailnet("corp", api, "s")
	p.condition("corp", "Ready", "True", "Ready")
	old, _, _ := p.clients.Get("corp")

	s.StringData = map[string]string{"client_id": clients[1].ID, "client_secret": clients[1].Secret}
	p.must(p.admin.Update(t.Context(), s))
	api.RevokeClient(clients[0].ID)
	p.until("the new credential is proved", func() bool {
		v := p.get("corp").Status.Validation
		return count(api, makeKey) == 2 && v.Phase == v1alpha1.ValidationDone && strings.HasSuffix(v.SecretVersion, "/"+s.ResourceVersion)
	})
	if now, _, ok := p.clients.Get("corp"); !ok || now == old {
		t.Error("the client is the old one")
	}
	p.condition("corp", "Ready", "True", "Ready")
	p.until("the spec is changed", func() bool { // retried because the operator writes the status at the same time
		o := p.get("corp")
		o.Spec.Tags = []string{"tag:web"}
		err := p.admin.Update(t.Context(), o)
		if !apierrors.IsConflict(err) {
			p.must(err)
		}
		return err == nil
	})
	p.until("the new spec is proved", func() bool {
		v := p.get("corp").Status.Validation
		return count(api, makeKey) == 3 && v.Phase == v1alpha1.ValidationDone && v.Generation == 2
	})
	p.condition("corp", "Ready", "True", "Ready")
	for range 3 {
		p.trigger("corp")
	}
	if n := count(api, makeKey); n != 3 {
		t.Errorf("%d keys", n)
	}
	for _, r := range api.Requests() {
		if r.Route == makeKey && r.Client != clients[0].ID && r.Client != clients[1].ID {
			t.Errorf("%q created a key", r.Client)
		}
	}
	// The Secret is deleted and created again.
	p.must(p.admin.Delete(t.Context(), s))
	p.condition("corp", "Authenticated", "False", "SecretNotFound")
	if _, _, ok := p.clients.Get("corp"); ok {
		t.Error("a client without a credential")
	}
	p.secret("s", clients[1])
	p.condition("corp", "Ready", "True", "Ready")
	if n := strings.Join(p.events("corp"), " "); strings.Count(n, "AuthenticationSucceeded") == 0 || !strings.Contains(n, "AuthenticationFailed") {
		t.Errorf("events: %s", n)
	}
}

// GTW-10, GW-11: the credentials and base URLs of two tailnets are never mixed up.
func TestTwoTailnets(t *testing.T) {
	apis := []*tsapi.API{newAPI(t), newAPI(t)}
	p := newTailnetEnv(t, allowAPIs(apis...))
	var own []tsapi.OAuthClient
	for i, name := range []string{"corp", "dev"} {
		own = append(own, apis[i].Client(allScopes, "tag:k8s-operator"))
		p.secret(name, own[i])
		p.tailnet(name, apis[i], name)
	}
	for i, name := range []string{"corp", "dev"} {
		p.condition(name, "Ready", "True", "Ready")
		for _, r := range apis[i].Requests() {
			if r.Route != getToken && r.Client != own[i].ID || r.Status != 200 {
				t.Errorf("%s: %s by %q: %d", name, r.Route, r.Client, r.Status)
			}
		}
		if n := count(apis[i], getToken); n != 1 {
			t.Errorf("%s: %d tokens", name, n)
		}
	}
}

// GTW-11: the mounted files, and their change.
func TestTailnetCredentialFiles(t *testing.T) {
	api, dir := newAPI(t), t.TempDir()
	id, secret := filepath.Join(dir, "client_id"), filepath.Join(dir, "client_secret")
	write := func(c tsapi.OAuthClient) error {
		return errors.Join(os.WriteFile(id, []byte(c.ID+"\n"), 0o600), os.WriteFile(secret, []byte(c.Secret+"\n"), 0o600))
	}
	p := newTailnetEnv(t, func(c *Runner) { allowAPIs(api)(c); c.ClientIDFile, c.ClientSecretFile = id, secret })
	p.tailnet("corp", api, "")
	p.condition("corp", "Authenticated", "False", "CredentialsMissing")
	p.must(write(api.Client(allScopes, "tag:k8s-operator")))
	p.condition("corp", "Ready", "True", "Ready")
	p.must(write(api.Client(allScopes, "tag:k8s-operator")))
	p.until("the new files are proved", func() bool {
		return count(api, makeKey) == 2 && p.get("corp").Status.Validation.Phase == v1alpha1.ValidationDone
	})
	p.condition("corp", "Ready", "True", "Ready")
}

// GTW-11: the operator authenticates with its own ServiceAccount token, which the API verifies
// with the cluster.
func TestWorkloadIdentity(t *testing.T) {
	api := newAPI(t)
	kubeconfig := ""
	cluster := kubetest.Start(t)
	ns := cluster.Namespace(t)
	kubeconfig, err := cluster.ServiceAccountKubeconfig(t.Context(), ns, "default", t.TempDir())
	if err != nil {
		t.Fatal(err)
	}
	own, err := clientcmd.BuildConfigFromFlags("", kubeconfig)
	if err != nil {
		t.Fatal(err)
	}
	rights := `{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{"name":"test-` + ns + `"},` +
		`"roleRef":{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"cluster-admin"},"subjects":[{"kind":"ServiceAccount","name":"default","namespace":"` + ns + `"}]}`
	if err := cluster.Apply(t.Context(), []byte(rights)); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		kubetest.Kubectl(context.WithoutCancel(t.Context()), cluster.Kubeconfig, "delete", "clusterrolebinding", "test-"+ns)
	})
	k, err := kubernetes.NewForConfig(cluster.AdminConfig())
	if err != nil {
		t.Fatal(err)
	}
	subject := "system:serviceaccount:" + ns + ":default"
	issuer := ""
	verify := func(ctx context.Context, token string) error {
		r, err := k.AuthenticationV1().TokenReviews().Create(ctx, &authenticationv1.TokenReview{Spec: authenticationv1.TokenReviewSpec{Token: token, Audiences: []string{"tailscale"}}}, metav1.CreateOptions{})
		if err != nil {
			return err
		}
		if !r.Status.Authenticated || r.Status.User.Username != subject {
			return errors.New("not the operator's token")
		}
		return nil
	}
	if issuer, err = issuerOf(t.Context(), k); err != nil {
		t.Fatal(err)
	}
	api.Trust(tsapi.TrustedIssuer{ClientID: "kwif", Issuer: issuer, Subject: subject, Audience: "tailscale", Scopes: allScopes, Tags: []string{"tag:k8s-operator"}, Verify: verify})
	p := newTailnetEnv(t, func(c *Runner) { allowAPIs(api)(c); c.Config = own })
	for name, w := range map[string]v1alpha1.WorkloadIdentity{"corp": {ClientID: "kwif", Audience: "tailscale"}, "bad": {ClientID: "kwif", Audience: "somebody"}} {
		p.must(p.admin.Create(t.Context(), &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TailscaleTailnetSpec{APIBaseURL: api.URL(), WorkloadIdentity: &w}}))
	}
	p.condition("corp", "Ready", "True", "Ready")
	p.condition("bad", "Authenticated", "False", "InvalidCredentials")
	both := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: "both"}, Spec: v1alpha1.TailscaleTailnetSpec{SyncInterval: fiveMinutes, OAuthSecretName: "x", WorkloadIdentity: &v1alpha1.WorkloadIdentity{ClientID: "a", Audience: "b"}}}
	if err := p.admin.Create(t.Context(), both); !apierrors.IsInvalid(err) {
		t.Errorf("both kinds of credential: %v", err)
	}
}

// issuerOf returns the issuer of the cluster's tokens from its public configuration.
func issuerOf(ctx context.Context, k *kubernetes.Clientset) (string, error) {
	b, err := k.RESTClient().Get().AbsPath("/.well-known/openid-configuration").DoRaw(ctx)
	if err != nil {
		return "", err
	}
	_, rest, _ := strings.Cut(string(b), `"issuer":"`)
	issuer, _, ok := strings.Cut(rest, `"`)
	if !ok {
		return "", errors.New("the cluster reports no issuer: " + string(b))
	}
	return issuer, nil
}

// GW-02: the operator sends a credential only to listed APIs. It never reads a Secret of another
// namespace, so a user cannot find out whether it exists.
func TestTailnetCredentialLimits(t *testing.T) {
	listed, other := newAPI(t), newAPI(t)
	p := newTailnetEnv(t, allowAPIs(listed))
	p.secret("s", listed.Client(allScopes, "tag:k8s-operator"))
	p.tailnet("corp", other, "s")
	p.condition("corp", "Authenticated", "False", reasonBaseURLNotAllowed)
	if n := len(other.Requests()); n != 0 {
		t.Errorf("%d requests elsewhere", n)
	}
	foreign := p.cluster.Namespace(t)
	p.must(p.admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: foreign, Name: "there"}}))
	reads := p.wire.secrets.Load()
	var statuses []string
	for i, name := range []string{"there", "missing"} {
		o := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: []string{"a", "b"}[i]}, Spec: v1alpha1.TailscaleTailnetSpec{SyncInterval: fiveMinutes, APIBaseURL: listed.URL(), OAuthSecretName: name, OAuthSecretNamespace: foreign}}
		p.must(p.admin.Create(t.Context(), o))
		o = p.condition(o.Name, "Authenticated", "False", "SecretNamespaceNotAllowed")
		statuses = append(statuses, conditionText(o))
	}
	if statuses[0] != statuses[1] {
		t.Errorf("it reveals whether a Secret exists: %s %s", statuses[0], statuses[1])
	}
	if n := p.wire.secrets.Load() - reads; n != 0 {
		t.Errorf("%d reads of Secrets", n)
	}
}

// GTW-04: the deletion waits for the users and names them, and then completes.
func TestTailnetDeletion(t *testing.T) {
	api := newAPI(t)
	p := newTailnetEnv(t, allowAPIs(api))
	p.secret("s", api.Client(allScopes, "tag:k8s-operator"))
	p.tailnet("corp", api, "s")
	p.condition("corp", "Ready", "True", "Ready")
	g := &v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "web"}, Spec: v1alpha1.TailscaleProxyGroupSpec{Type: "ingress", TailnetRef: &v1alpha1.TailnetReference{Name: "corp"}}}
	p.must(p.admin.Create(t.Context(), g))
	p.until("the operator sees the group", func() bool { return slices.Contains(p.get("corp").Finalizers, v1alpha1.Finalizer) })
	p.trigger("corp")
	p.must(p.admin.Delete(t.Context(), p.get("corp")))
	o := p.condition("corp", "Ready", "False", "Pending")
	if m := conditionText(o); !strings.Contains(m, "TailscaleProxyGroup "+p.ns+"/web") {
		t.Errorf("the user is not named: %s", m)
	}
	p.must(p.admin.Delete(t.Context(), g))
	p.until("it is deleted", func() bool {
		return apierrors.IsNotFound(p.admin.Get(t.Context(), client.ObjectKey{Name: "corp"}, new(v1alpha1.TailscaleTailnet)))
	})
	p.until("its client is dropped", func() bool { _, _, ok := p.clients.Get("corp"); return !ok })

	// A tailnet with an invalid credential has no external objects, so it is deleted immediately
	// even if the API is down.
	api.Fault(tsapi.Fault{Status: 503})
	p.tailnet("dev", api, "missing")
	p.condition("dev", "Authenticated", "False", "SecretNotFound")
	if f := p.get("dev").Finalizers; len(f) != 0 {
		t.Errorf("finalizers %v, with nothing to clean up", f)
	}
	p.must(p.admin.Delete(t.Context(), p.get("dev")))
	p.until("it is deleted", func() bool {
		return apierrors.IsNotFound(p.admin.Get(t.Context(), client.ObjectKey{Name: "dev"}, new(v1alpha1.TailscaleTailnet)))
	})
}
