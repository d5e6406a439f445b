//go:build unix

package controller

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"slices"
	"strconv"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	appsv1 "k8s.io/api/apps/v1"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway/workload"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// groupDeadline is the limit of every wait on a loaded machine.
const groupDeadline = 2 * time.Minute

const (
	relayTag        = "tag:k8s-operator"
	groupTestPolicy = `{"tagOwners": {"tag:k8s-operator": ["autogroup:admin"], "tag:svc-web": ["tag:k8s-operator"], "tag:foreign": ["autogroup:admin"]},
		"grants": [{"src": ["tag:k8s-operator"], "dst": ["*"], "ip": ["*"]}]}`
)

// A groupEnv is a namespace on the shared test cluster with a running operator and its own tailnet.
type groupEnv struct {
	t       *testing.T
	cluster *kubetest.Cluster
	admin   client.Client
	ns      string // also the name of the tailnet
	net     *tailnettest.Net
	api     *fakeapi.API
	clients *tsapi.Clients
	ahead   atomic.Int64 // offset of the operator's clock, in nanoseconds
	log     kubetest.Log
	counted lockedCounts

	wire      *groupConn // of the current operator
	publisher *Publisher
	stop      func()
}

func newGroupScheme() (*runtime.Scheme, error) {
	s := runtime.NewScheme()
	return s, errors.Join(addTypes(s), eventsv1.AddToScheme(s))
}

func newGroupEnv(t *testing.T) *groupEnv {
	t.Helper()
	p := &groupEnv{t: t, cluster: kubetest.Start(t), clients: new(tsapi.Clients)}
	p.must(p.cluster.ApplyFiles(t.Context(), "../../../deploy/crds/gateway.tailscale.com_*.yaml"))
	scheme, err := newGroupScheme()
	p.must(err)
	p.admin, err = client.New(kube.Unthrottled(p.cluster.AdminConfig()), client.Options{Scheme: scheme})
	p.must(err)
	p.ns = p.cluster.Namespace(t)
	p.net = tailnettest.StartWith(t, tailnettest.Options{Policy: groupTestPolicy})
	p.api, err = p.net.API()
	p.must(err)
	p.tailnet()
	t.Cleanup(func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(t.Context()), groupDeadline)
		defer cancel()
		p.stop()
		p.clear(ctx)
		p.clients.Drop(p.ns)
		if t.Failed() {
			t.Logf("the operator's log:\n%s", p.log.Tail())
		}
	})
	p.start()
	return p
}

// tailnet creates the tailnet as its controller leaves it.
func (p *groupEnv) tailnet() {
	p.t.Helper()
	o := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: p.ns}, Spec: v1alpha1.TailscaleTailnetSpec{APIBaseURL: p.api.URL(), ControlURL: p.net.ControlURL(),
		Tags: []string{relayTag}, SyncInterval: metav1.Duration{Duration: 5 * time.Minute}}}
	p.must(p.admin.Create(p.t.Context(), o))
	o.Status.TailnetInfo = &v1alpha1.TailnetInfo{Name: p.net.Suffix()}
	o.Status.Conditions = []metav1.Condition{{Type: "Ready", Status: "True", Reason: "Ready", LastTransitionTime: metav1.Now()}}
	p.must(p.admin.Status().Update(p.t.Context(), o))
	own := p.api.Client([]string{"devices:core", "auth_keys", "services"}, relayTag)
	_, err := p.clients.Put(p.ns, tsapi.Version{UID: string(o.UID)}, func() (tsapi.Config, error) {
		return tsapi.Config{BaseURL: p.api.URL(), Tailnet: "-", Credential: tsapi.Credential{ClientID: own.ID, Secret: secret.New(own.Secret)},
			UserAgent: "test", PerSecond: 1000, Burst: 1000, Now: time.Now}, nil
	})
	p.must(err)
}

// clear deletes everything by force, so that the namespace can be deleted.
func (p *groupEnv) clear(ctx context.Context) {
	var groups v1alpha1.TailscaleProxyGroupList
	if err := p.admin.List(ctx, &groups, client.InNamespace(p.ns)); err != nil {
		p.t.Error(err)
	}
	for i := range groups.Items {
		if err := p.admin.Patch(ctx, &groups.Items[i], client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"finalizers":null}}`))); client.IgnoreNotFound(err) != nil {
			p.t.Error(err)
		}
	}
	if err := p.admin.Delete(ctx, &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: p.ns}}); client.IgnoreNotFound(err) != nil {
		p.t.Error(err)
	}
}

// start starts a new operator process.
func (p *groupEnv) start() {
	p.t.Helper()
	p.wire = &groupConn{group: "/tailscaleproxygroups/"}
	config := kube.Unthrottled(p.cluster.AdminConfig())
	config.Wrap(p.wire.wrap)
	scheme, err := newGroupScheme()
	p.must(err)
	mgr, err := manager.New(config, manager.Options{
		Scheme: scheme, Logger: logr.FromSlogHandler(slog.NewTextHandler(&p.log, &slog.HandlerOptions{Level: slog.LevelError})), Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return newMapper(), nil },
		Cache:          cache.Options{ByObject: cacheOptions([]string{p.ns}, p.ns)},
		Client:         client.Options{FieldOwner: v1alpha1.FieldManager},
	})
	p.must(err)
	log := slog.New(slog.NewTextHandler(&p.log, &slog.HandlerOptions{Level: slog.LevelDebug}))
	p.publisher = new(Publisher)
	c := &Runner{Namespace: p.ns, ClusterDomain: "cluster.local", Controller: "gateway.envoyproxy.io/gatewayclass-controller", EnvoyNamespace: p.ns, Publisher: p.publisher, Relays: workload.Settings{Image: "image.invalid/tailplaned:test", EnvoyNamespaces: []string{p.ns}},
		Clients: p.clients, Log: log, OnKey: p.counted.add, Now: func() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }}
	p.must((&gatherer{Runner: c, QuietTime: 20 * time.Millisecond, MaxDelay: 200 * time.Millisecond}).Add(mgr))
	p.must((&groupReconciler{Runner: c}).Add(mgr))
	p.stop = kubetest.Background(p.t, "the operator", groupDeadline, p.wire.dead.Load, mgr.Start)
	p.until("a first decision", func() bool { return p.publisher.Result() != nil })
}

func (p *groupEnv) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *groupEnv) until(what string, ok func() bool) {
	p.t.Helper()
	for end := time.Now().Add(groupDeadline); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			p.t.Fatalf("not within %v: %s", groupDeadline, what)
		}
	}
}

// group creates a group whose own target is svc:web.
func (p *groupEnv) group(name string, replicas int32, change ...func(*v1alpha1.TailscaleProxyGroup)) *v1alpha1.TailscaleProxyGroup {
	p.t.Helper()
	g := &v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}, Spec: v1alpha1.TailscaleProxyGroupSpec{Type: v1alpha1.Egress, Replicas: &replicas,
		TailnetRef: &v1alpha1.TailnetReference{Name: p.ns}, TailnetTarget: &v1alpha1.TailnetTarget{ServiceName: "web", Tags: []string{"tag:svc-web"}}}}
	for _, f := range change {
		f(g)
	}
	p.must(p.admin.Create(p.t.Context(), g))
	return g
}

func (p *groupEnv) get(name string) *v1alpha1.TailscaleProxyGroup {
	p.t.Helper()
	g := &v1alpha1.TailscaleProxyGroup{}
	p.must(p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: p.ns, Name: name}, g))
	return g
}

// exists reads an object into o and reports whether it exists.
func (p *groupEnv) exists(name string, o client.Object) bool {
	p.t.Helper()
	err := p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: p.ns, Name: name}, o)
	p.must(client.IgnoreNotFound(err))
	return err == nil
}

func (p *groupEnv) secret(name string) *corev1.Secret {
	p.t.Helper()
	s := &corev1.Secret{}
	p.until("the Secret "+name, func() bool { return p.exists(name, s) })
	return s
}

func (p *groupEnv) patch(o client.Object, patch string) {
	p.t.Helper()
	p.must(p.admin.Patch(p.t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(patch))))
}

// condition waits until a condition has a status and a reason.
func (p *groupEnv) condition(name, kind, want string) *v1alpha1.TailscaleProxyGroup {
	p.t.Helper()
	for end := time.Now().Add(groupDeadline); ; time.Sleep(10 * time.Millisecond) {
		g := p.get(name)
		c := meta.FindStatusCondition(g.Status.Conditions, kind)
		if c != nil && string(c.Status)+"/"+c.Reason == want && c.ObservedGeneration == g.Generation {
			return g
		}
		if time.Now().After(end) {
			b, _ := json.MarshalIndent(g.Status, "", " ")
			p.t.Fatalf("%s is not %s within %v: %s", kind, want, groupDeadline, b)
		}
	}
}

// trigger triggers a reconcile and waits until it has begun.
func (p *groupEnv) trigger(name string) {
	p.t.Helper()
	reconcilesBefore := p.wire.reconciles.Load()
	p.patch(p.get(name), fmt.Sprintf(`{"metadata":{"annotations":{"test/poke":"%d"}}}`, time.Now().UnixNano()))
	p.until("it reconciles again", func() bool { return p.wire.reconciles.Load() > reconcilesBefore })
}

// events returns the reasons of the events about a group.
func (p *groupEnv) events(g *v1alpha1.TailscaleProxyGroup) (reasons []string) {
	p.t.Helper()
	var all eventsv1.EventList
	p.must(p.admin.List(p.t.Context(), &all, client.InNamespace(p.ns)))
	for _, e := range all.Items {
		if e.Regarding.UID == g.UID {
			reasons = append(reasons, e.Reason)
		}
	}
	slices.Sort(reasons)
	return reasons
}

func (p *groupEnv) event(g *v1alpha1.TailscaleProxyGroup, reason string) {
	p.t.Helper()
	p.until("event "+reason, func() bool { return slices.Contains(p.events(g), reason) })
}

// requests returns the number of API requests with this method.
func (p *groupEnv) requests(method string) (n int) {
	for _, r := range p.api.Requests() {
		if m, path, _ := strings.Cut(r.Route, " "); m == method && !strings.HasPrefix(path, "/oauth") {
			n++
		}
	}
	return n
}

// keys returns the IDs of the valid auth keys of relays.
func (p *groupEnv) keys() (ids []string) {
	p.t.Helper()
	c, _, _ := p.clients.Get(p.ns)
	all, err := c.Keys(p.t.Context())
	p.must(err)
	for _, id := range all {
		k, err := c.Key(p.t.Context(), id)
		p.must(err)
		if strings.HasPrefix(k.Description, "tailplane-relay-") {
			ids = append(ids, id)
		}
	}
	return ids
}

// devices returns the IDs of the tailnet's devices.
func (p *groupEnv) devices() (ids []string) {
	for _, n := range p.net.Nodes() {
		ids = append(ids, string(n.StableID))
	}
	slices.Sort(ids)
	return ids
}

// join simulates the relay of an ordinal: it logs a node in with the key in the config Secret, and
// writes the state Secret. There is no pod.
func (p *groupEnv) join(group string, ordinal int) (id string) {
	p.t.Helper()
	name := group + "-" + strconv.Itoa(ordinal)
	key := ""
	p.until("a key for "+name, func() bool {
		key = string(p.secret(name + "-config").Data["authkey"])
		return key != ""
	})
	s := p.net.Node(name, "", relayTag)
	s.AuthKey, s.Ephemeral, s.Store = key, false, nil
	ctx, cancel := context.WithTimeout(p.t.Context(), groupDeadline)
	defer cancel()
	st, err := s.Up(ctx)
	p.must(err)
	id = string(st.Self.ID)
	p.patch(p.secret(name), p.stateOf(id, name, ""))
	p.must(s.Close())
	return id
}

// stateOf returns the device fields that a relay writes.
func (p *groupEnv) stateOf(id, name, pod string) string {
	b, err := json.Marshal(map[string]any{"data": map[string][]byte{
		"device_id": []byte(id), "device_fqdn": []byte(name + "." + p.net.Suffix() + "."), "device_ips": []byte(`["100.64.0.9"]`), "pod_uid": []byte(pod),
		"_machinekey": []byte("m"), "_profiles": []byte("p"), "_current-profile": []byte("profile-1"), "profile-1": []byte("x")}})
	p.must(err)
	return string(b)
}

func (p *groupEnv) replicas(name string) int {
	s := &appsv1.StatefulSet{}
	if !p.exists(name, s) {
		return -1
	}
	return int(*s.Spec.Replicas)
}

// A groupConn is the operator's connection to the API server. It counts requests and can be cut.
type groupConn struct {
	group      string
	dead       atomic.Bool
	writes     atomic.Int64 // without events
	reconciles atomic.Int64 // reads of one group
	last       atomic.Pointer[string]
	cut        atomic.Pointer[func(method, path string, body []byte) groupCut]
}

// A groupCut ends the connection before or after a write.
type groupCut int

const (
	cutNone groupCut = iota
	cutBefore
	cutAfter
)

func (w *groupConn) wrap(next http.RoundTripper) http.RoundTripper { return &groupTransport{w, next} }

type groupTransport struct {
	*groupConn
	next http.RoundTripper
}

var errCrashed = errors.New("the operator is dead")

func (w *groupTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if w.dead.Load() {
		return nil, errCrashed
	}
	switch {
	case strings.Contains(r.URL.Path, "/events"):
	case r.Method == http.MethodGet:
		if strings.Contains(r.URL.Path, w.group) {
			w.reconciles.Add(1)
		}
	default:
		var body []byte
		if r.Body != nil {
			b, err := io.ReadAll(r.Body)
			if err != nil {
				return nil, err
			}
			r.Body, body = io.NopCloser(bytes.NewReader(b)), b
		}
		w.writes.Add(1)
		w.last.Store(new(fmt.Sprintf("%s %s %.300q", r.Method, r.URL.Path, body)))
		if f := w.cut.Load(); f != nil {
			switch (*f)(r.Method, r.URL.Path, body) {
			case cutBefore:
				w.dead.Store(true)
				return nil, errCrashed
			case cutAfter:
				defer w.dead.Store(true)
			}
		}
	}
	return w.next.RoundTrip(r)
}

// lockedCounts counts the operations on keys.
type lockedCounts struct {
	mu sync.Mutex
	of map[string]int
}

func (l *lockedCounts) add(op string) {
	l.mu.Lock()
	defer l.mu.Unlock()
	if l.of == nil {
		l.of = map[string]int{}
	}
	l.of[op]++
}

func (l *lockedCounts) get(op string) int {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.of[op]
}
