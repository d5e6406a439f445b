//go:build unix

package controller

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
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

func TestMain(m *testing.M) {
	tailnettest.Quiet()
	ctrllog.SetLogger(logr.Discard()) // for libraries without a logger of their own
	os.Exit(m.Run())
}

// tailnetDeadline is the limit of every wait on a loaded machine.
const tailnetDeadline = 2 * time.Minute

const tailnetTestPolicy = `{"tagOwners": {"tag:k8s-operator": ["autogroup:admin"], "tag:web": ["tag:k8s-operator"], "tag:foreign": ["autogroup:admin"]}}`

var fiveMinutes = metav1.Duration{Duration: 5 * time.Minute}

var allScopes = []string{"devices:core", "auth_keys", "services"}

// A tailnetEnv is a namespace on the shared test cluster with a running operator. Tailnets are
// cluster-wide, so only one tailnetEnv runs at a time.
type tailnetEnv struct {
	t       *testing.T
	cluster *kubetest.Cluster
	admin   client.Client
	ns      string
	wire    *tailnetConn // the operator's connection to the API server
	ahead   atomic.Int64 // offset of the operator's clock, in nanoseconds
	clients *tsapi.Clients
	change  func(*Runner)
	log     *kubetest.Log
	stop    func()
}

func newTailnetEnv(t *testing.T, change func(*Runner)) *tailnetEnv {
	t.Helper()
	p := &tailnetEnv{t: t, cluster: kubetest.Start(t), change: change, log: new(kubetest.Log)}
	p.must(p.cluster.ApplyFiles(t.Context(), "../../../deploy/crds/gateway.tailscale.com_*.yaml"))
	scheme := runtime.NewScheme()
	p.must(errors.Join(v1alpha1.AddToScheme(scheme), corev1.AddToScheme(scheme), eventsv1.AddToScheme(scheme)))
	var err error
	p.admin, err = client.New(p.cluster.AdminConfig(), client.Options{Scheme: scheme})
	p.must(err)
	p.ns = p.cluster.Namespace(t)
	p.start()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), tailnetDeadline)
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
func (p *tailnetEnv) clear(ctx context.Context) {
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
func (p *tailnetEnv) start() {
	p.t.Helper()
	p.wire = new(tailnetConn)
	config := p.cluster.AdminConfig()
	p.clients = new(tsapi.Clients)
	c := &Runner{Config: config, Namespace: p.ns, BaseURLs: []string{"https://api.tailscale.com"}, Clients: p.clients, UserAgent: "tailplane-gateway/test",
		PerSecond: 1000, Burst: 1000, ClusterDomain: "cluster.local", Controller: "gateway.envoyproxy.io/gatewayclass-controller", EnvoyNamespace: p.ns, Publisher: new(Publisher), Log: slog.New(slog.NewTextHandler(p.log, nil)), Now: func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }}
	p.change(c)
	c.Config = rest.CopyConfig(c.Config)
	c.Config.Wrap(p.wire.wrap)
	p.stop = kubetest.Background(p.t, "the operator", tailnetDeadline, func() bool { return p.wire.dead.Load() }, c.Run)
	p.until("the operator is at work", c.Synced)
}

// crash stops the operator so that it writes nothing more.
func (p *tailnetEnv) crash() {
	p.wire.dead.Store(true)
	p.stop()
}

func (p *tailnetEnv) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *tailnetEnv) until(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(tailnetDeadline); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("not within %v: %s", tailnetDeadline, what)
		}
	}
}

// allowAPIs is an option of newTailnetEnv that allows the operator to use these APIs.
func allowAPIs(apis ...*fakeapi.API) func(*Runner) {
	return func(c *Runner) {
		for _, a := range apis {
			c.BaseURLs = append(c.BaseURLs, a.URL())
		}
	}
}

func newAPI(t *testing.T) *fakeapi.API {
	t.Helper()
	a, err := tailnettest.Start(t, tailnetTestPolicy).API()
	if err != nil {
		t.Fatal(err)
	}
	return a
}

func (p *tailnetEnv) secret(name string, c fakeapi.OAuthClient) *corev1.Secret {
	p.t.Helper()
	s := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}, StringData: map[string]string{"client_id": c.ID, "client_secret": c.Secret + "\n"}}
	p.must(p.admin.Create(p.t.Context(), s))
	return s
}

// tailnet creates a tailnet whose credential is the Secret with this name.
func (p *tailnetEnv) tailnet(name string, api *fakeapi.API, secret string) *v1alpha1.TailscaleTailnet {
	p.t.Helper()
	o := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TailscaleTailnetSpec{APIBaseURL: api.URL(), OAuthSecretName: secret,
		SyncInterval: fiveMinutes}}
	p.must(p.admin.Create(p.t.Context(), o))
	return o
}

func (p *tailnetEnv) get(name string) *v1alpha1.TailscaleTailnet {
	p.t.Helper()
	o := &v1alpha1.TailscaleTailnet{}
	p.must(p.admin.Get(p.t.Context(), client.ObjectKey{Name: name}, o))
	return o
}

// condition waits until a condition has a status and a reason.
func (p *tailnetEnv) condition(name, kind, status, reason string) *v1alpha1.TailscaleTailnet {
	p.t.Helper()
	var o *v1alpha1.TailscaleTailnet
	for end := time.Now().Add(tailnetDeadline); ; time.Sleep(10 * time.Millisecond) {
		o = p.get(name)
		c := meta.FindStatusCondition(o.Status.Conditions, kind)
		if c != nil && string(c.Status) == status && c.Reason == reason {
			if c.ObservedGeneration == o.Generation {
				return o
			}
		}
		if time.Now().After(end) {
			p.t.Fatalf("%s is not %s/%s within %v: %s", kind, status, reason, tailnetDeadline, conditionText(o))
		}
	}
}

func conditionText(o *v1alpha1.TailscaleTailnet) string {
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

// trigger triggers a reconcile and waits until the operator has read the Secret again.
func (p *tailnetEnv) trigger(name string) {
	p.t.Helper()
	readsBefore := p.wire.secrets.Load()
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"test/poke":"%d"}}}`, time.Now().UnixNano())
	p.must(p.admin.Patch(p.t.Context(), p.get(name), client.RawPatch("application/merge-patch+json", []byte(patch))))
	p.until("it reconciles again", func() bool { return p.wire.secrets.Load() > readsBefore })
}

// events returns the reasons of the events about a tailnet.
func (p *tailnetEnv) events(name string) (reasons []string) {
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

func (p *tailnetEnv) event(name, reason string) {
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
		return tsapi.Config{BaseURL: api.URL(), Tailnet: "-", Credential: tsapi.Credential{ClientID: own.ID, Secret: secret.New(own.Secret)},
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

// A tailnetConn is the operator's connection to the API server. It counts requests and can be cut.
type tailnetConn struct {
	dead    atomic.Bool
	mu      sync.Mutex
	writes  []string     // method and path, without events
	secrets atomic.Int64 // reads of a Secret
	cut     atomic.Pointer[tailnetCut]
}

// A tailnetCut ends the connection at the first write that contains a text, before or after the write.
type tailnetCut struct {
	text  string
	after bool
}

// awaitIdle waits until the operator writes nothing for one second.
func (p *tailnetEnv) awaitIdle() {
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
func (w *tailnetConn) written() []string {
	w.mu.Lock()
	defer w.mu.Unlock()
	return slices.Clone(w.writes)
}

func (w *tailnetConn) wrap(next http.RoundTripper) http.RoundTripper {
	return &tailnetTransport{w, next}
}

type tailnetTransport struct {
	*tailnetConn
	next http.RoundTripper
}

func (w *tailnetTransport) RoundTrip(r *http.Request) (*http.Response, error) {
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
