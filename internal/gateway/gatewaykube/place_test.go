//go:build unix

package gatewaykube

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"os"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/client"
	ctrllog "sigs.k8s.io/controller-runtime/pkg/log"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/gatewaykube/gather"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	ctrllog.SetLogger(logr.Discard()) // for libraries without a logger of their own
	os.Exit(m.Run())
}

// deadline is the limit of every wait on a loaded machine.
const deadline = 2 * time.Minute

const testPolicy = `{"tagOwners": {"tag:k8s-operator": ["autogroup:admin"], "tag:web": ["tag:k8s-operator"], "tag:foreign": ["autogroup:admin"]}}`

var fiveMinutes = metav1.Duration{Duration: 5 * time.Minute}

var allScopes = []string{"devices:core", "auth_keys", "services"}

// A place is a namespace on the shared test cluster with a running operator. Tailnets are
// cluster-wide, so only one place runs at a time.
type place struct {
	t       *testing.T
	cluster *kubetest.Cluster
	admin   client.Client
	ns      string
	wire    *wire        // the operator's connection to the API server
	ahead   atomic.Int64 // offset of the operator's clock, in nanoseconds
	clients *tsapi.Clients
	change  func(*Controllers)
	log     *kubetest.Log
	stop    func()
}

func newPlace(t *testing.T, change func(*Controllers)) *place {
	t.Helper()
	p := &place{t: t, cluster: kubetest.Start(t), change: change, log: new(kubetest.Log)}
	p.must(p.cluster.ApplyFiles(t.Context(), "../../../deploy/crds/gateway.tailscale.com_*.yaml"))
	scheme := runtime.NewScheme()
	p.must(errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme), eventsv1.AddToScheme(scheme)))
	var err error
	p.admin, err = client.New(p.cluster.AdminConfig(), client.Options{Scheme: scheme})
	p.must(err)
	p.ns = p.cluster.Namespace(t)
	p.start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), deadline)
		defer cancel()
		p.clear(ctx)
		p.stop()
		if t.Failed() {
			t.Logf("the operator's log:\n%s", p.log.Tail())
		}
	})
	return p
}

// clear deletes all tailnets by force, so that the next test starts without any.
func (p *place) clear(ctx context.Context) {
	var all v1alpha1.TailscaleTailnetList
	if err := p.admin.List(ctx, &all); err != nil {
		p.t.Error(err)
	}
	for i := range all.Items {
		o := &all.Items[i]
		if err := p.admin.Delete(ctx, o); client.IgnoreNotFound(err) != nil {
			p.t.Error(err)
		}
		if err := p.admin.Patch(ctx, o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); client.IgnoreNotFound(err) != nil {
			p.t.Error(err)
		}
	}
}

// start starts a new operator process.
func (p *place) start() {
	p.t.Helper()
	p.wire = new(wire)
	config := p.cluster.AdminConfig()
	p.clients = new(tsapi.Clients)
	c := &Controllers{Config: config, Namespace: p.ns, BaseURLs: []string{"https://api.tailscale.com"}, Clients: p.clients, UserAgent: "tailplane-gateway/test",
		PerSecond: 1000, Burst: 1000, ClusterDomain: "cluster.local", Controller: "gateway.envoyproxy.io/gatewayclass-controller", EnvoyNamespace: p.ns, Board: new(gather.Board), Log: slog.New(slog.NewTextHandler(p.log, nil)), Now: func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }}
	p.change(c)
	c.Config = rest.CopyConfig(c.Config)
	c.Config.Wrap(p.wire.wrap)
	p.stop = kubetest.Background(p.t, "the operator", deadline, func() bool { return p.wire.dead.Load() }, c.Run)
	p.until("the operator is at work", c.Synced)
}

// crash stops the operator so that it writes nothing more.
func (p *place) crash() {
	p.wire.dead.Store(true)
	p.stop()
}

func (p *place) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *place) until(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(deadline); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("not within %v: %s", deadline, what)
		}
	}
}

// allow is an option of newPlace that allows the operator to use these APIs.
func allow(apis ...*fakeapi.API) func(*Controllers) {
	return func(c *Controllers) {
		for _, a := range apis {
			c.BaseURLs = append(c.BaseURLs, a.URL())
		}
	}
}

func newAPI(t *testing.T) *fakeapi.API {
	t.Helper()
	a, err := tailnettest.Start(t, testPolicy).API()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (p *place) secret(name string, c fakeapi.OAuthClient) *corev1.Secret {
	p.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}, StringData: map[string]string{"client_id": c.ID, "client_secret": c.Secret + "\n"}}
	p.must(p.admin.Create(p.t.Context(), s))
	return s
}

// tailnet creates a tailnet whose credential is the Secret with this name.
func (p *place) tailnet(name string, api *fakeapi.API, secret string) *v1alpha1.TailscaleTailnet {
	p.t.Helper()
	o := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TailscaleTailnetSpec{APIBaseURL: api.URL(), OAuthSecretName: secret,
		SyncInterval: fiveMinutes}}
	p.must(p.admin.Create(p.t.Context(), o))
	return o
}

func (p *place) get(name string) *v1alpha1.TailscaleTailnet {
	p.t.Helper()
	o := &v1alpha1.TailscaleTailnet{}
	p.must(p.admin.Get(p.t.Context(), client.ObjectKey{Name: name}, o))
	return o
}

// condition waits until a condition has a status and a reason.
func (p *place) condition(name, kind, status, reason string) *v1alpha1.TailscaleTailnet {
	p.t.Helper()
	var o *v1alpha1.TailscaleTailnet
	for end := time.Now().Add(deadline); ; time.Sleep(10 * time.Millisecond) {
		o = p.get(name)
		c := meta.FindStatusCondition(o.Status.Conditions, kind)
		if c != nil && string(c.Status) == status && c.Reason == reason {
			if c.ObservedGeneration == o.Generation {
				return o
			}
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s is not %s/%s within %v: %s", kind, status, reason, deadline, told(o))
		}
	}
}

func told(o *v1alpha1.TailscaleTailnet) string {
	var b strings.Builder
	for _, c := range o.Status.Conditions {
		fmt.Fprintf(&b, "\n\t%s=%s/%s: %s", c.Type, c.Status, c.Reason, c.Message)
	}
	fmt.Fprintf(&b, "\n\t%+v", o.Status.Validation)
	return b.String()
}

func conditionOf(o *v1alpha1.TailscaleTailnet, kind string) string {
	c := meta.FindStatusCondition(o.Status.Conditions, kind)
	if c == nil {
		return ""
	}
	return string(c.Status) + "/" + c.Reason
}

// poke triggers a reconcile and waits until the operator has read the Secret again.
func (p *place) poke(name string) {
	p.t.Helper()
	looks := p.wire.secrets.Load()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"test/poke":"%d"}}}`, time.Now().UnixNano())
	p.must(p.admin.Patch(p.t.Context(), p.get(name), client.RawPatch("application/merge-patch+json", []byte(patch))))
	p.until("it looks again", func() bool { return p.wire.secrets.Load() > looks })
}

// events returns the reasons of the events about a tailnet.
func (p *place) events(name string) (reasons []string) {
	p.t.Helper()
	var all eventsv1.EventList
	p.must(p.admin.List(p.t.Context(), &all))
	uid := p.get(name).UID
	for _, e := range all.Items {
		if e.Regarding.UID == uid {
			reasons = append(reasons, e.Reason)
		}
	}
	slices.Sort(reasons)
	return reasons
}

func (p *place) event(name, reason string) {
	p.t.Helper()
	p.until("event "+reason, func() bool { return slices.Contains(p.events(name), reason) })
}

func count(api *fakeapi.API, route string) (n int) {
	for _, r := range api.Requests() {
		if r.Route == route {
			n++
		}
	}
	return n
}

const (
	makeKey      = "POST /tailnet/{tailnet}/keys"
	deleteKey    = "DELETE /tailnet/{tailnet}/keys/{id}"
	listDevices  = "GET /tailnet/{tailnet}/devices"
	listServices = "GET /tailnet/{tailnet}/vip-services"
	getToken     = "POST /oauth/token"
)

// validKeys returns the keys that are still valid according to the API.
func validKeys(t *testing.T, api *fakeapi.API) []string {
	t.Helper()
	own := api.Client([]string{"auth_keys"})
	var set tsapi.Clients
	defer set.Drop("t")
	c, err := set.Put("t", tsapi.Version{}, func() (tsapi.Config, error) {
		return tsapi.Config{BaseURL: api.URL(), Tailnet: "-", Credential: tsapi.Credential{ClientID: own.ID, Secret: tsapi.NewSecret(own.Secret)},
			UserAgent: "test", PerSecond: 1000, Burst: 1000, Now: time.Now}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	ids, err := c.Keys(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return ids
}

// A wire is the operator's connection to the API server. It counts requests and can be cut.
type wire struct {
	dead    atomic.Bool
	mu      sync.Mutex
	writes  []string     // method and path, without events
	secrets atomic.Int64 // reads of a Secret
	cut     atomic.Pointer[cut]
}

// A cut ends the connection at the first write that contains a text, before or after the write.
type cut struct {
	text  string
	after bool
}

// rest waits until the operator writes nothing for one second.
func (p *place) rest() {
	p.t.Helper()
	last, since := -1, time.Now()
	p.until("the operator rests", func() bool {
		if n := len(p.wire.written()); n != last {
			last, since = n, time.Now()
		}
		return time.Since(since) > time.Second
	})
}

// written returns the writes so far.
func (w *wire) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

func (w *wire) wrap(next http.RoundTripper) http.RoundTripper { return &wireTrip{w, next} }

type wireTrip struct {
	*wire
	next http.RoundTripper
}

func (w *wireTrip) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.dead.Load() {
		return nil, errors.New("the operator is dead")
	}
	event := strings.Contains(r.URL.Path, "/events")
	switch {
	case r.Method == http.MethodGet && strings.Contains(r.URL.Path, "/secrets/"):
		defer w.secrets.Add(1)
	case r.Method != http.MethodGet && !event && !strings.Contains(r.URL.Path, "/selfsubjectreviews") && !strings.HasSuffix(r.URL.Path, "/token"):
		w.mu.Lock()
		w.writes = append(w.writes, r.Method+" "+r.URL.Path)
		w.mu.Unlock()
		if cut := w.cut.Load(); cut != nil && r.Body != nil {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			r.Body = io.NopCloser(bytes.NewReader(b))
			if bytes.Contains(b, []byte(cut.text)) {
				if !cut.after {
					w.dead.Store(true)
					return nil, errors.New("the operator is dead")
				}
				defer w.dead.Store(true)
			}
		}
	}
	return w.next.RoundTrip(r)
}
