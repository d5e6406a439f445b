//go:build unix

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"maps"
	"net/http"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
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
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/kubetest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

const serviceDeadline = 2 * time.Minute // for every wait, on a loaded machine

const serviceTestPolicy = `{
	"tagOwners": {"tag:k8s": ["autogroup:admin"], "tag:web": ["autogroup:admin"], "tag:relay": ["autogroup:admin"], "tag:svc-web": ["autogroup:admin"]},
	"grants": [{"src": ["tag:relay"], "dst": ["tag:svc-web"], "ip": ["*"]}, {"src": ["autogroup:member"], "dst": ["*"], "ip": ["*"]}],
}`

// A serviceEnv is a running operator on the shared test cluster. It sees only its own namespaces, so
// several can run in parallel.
type serviceEnv struct {
	t         *testing.T
	cluster   *kubetest.Cluster
	admin     client.Client
	ns        string // namespace of the operator and of the groups
	shop      string // namespace of a team
	clients   *tsapi.Clients
	ahead     atomic.Int64 // offset of the operator's clock, in nanoseconds
	writes    atomic.Int64 // to the API server, without events
	log       *kubetest.Log
	publisher *Publisher
	id        string
	stop      func()
}

var installOnce sync.Mutex // one test installs definitions at a time

// newServiceEnv starts an operator with this ID. consumer says whether it may write Services in the
// team's namespace.
func newServiceEnv(t *testing.T, id string, consumer bool) *serviceEnv {
	t.Helper()
	p := &serviceEnv{t: t, cluster: kubetest.Start(t), log: new(kubetest.Log), clients: new(tsapi.Clients), id: id}
	p.install("../../../deploy/crds/gateway.tailscale.com_*.yaml")
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	p.must(err)
	p.install(filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard", "gateway.networking.k8s.io_*.yaml"))
	p.admin, err = client.New(p.cluster.AdminConfig(), client.Options{Scheme: newServiceScheme(t)})
	p.must(err)
	p.ns, p.shop = p.cluster.Namespace(t), p.cluster.Namespace(t)
	p.start(consumer)
	t.Cleanup(func() {
		p.stop()
		if t.Failed() {
			t.Logf("the operator's log:\n%s", p.log.Tail())
		}
	})
	return p
}

func newServiceScheme(t *testing.T) *runtime.Scheme {
	t.Helper()
	s := runtime.NewScheme()
	if err := errors.Join(addTypes(s), eventsv1.AddToScheme(s)); err != nil {
		t.Fatal(err)
	}
	return s
}

func (p *serviceEnv) install(pattern string) {
	p.t.Helper()
	installOnce.Lock()
	defer installOnce.Unlock()
	files, err := filepath.Glob(pattern)
	if err != nil || len(files) == 0 {
		p.t.Fatalf("%s: no files (%v)", pattern, err)
	}
	for _, f := range files {
		if strings.Contains(f, "vap") { // a policy, not a definition
			continue
		}
		b, err := os.ReadFile(f)
		p.must(err)
		p.must(p.cluster.Apply(p.t.Context(), b))
	}
}

// start starts a new operator process.
func (p *serviceEnv) start(consumer bool) {
	p.t.Helper()
	config := kube.Unthrottled(p.cluster.AdminConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return &serviceTransport{p, next} })
	within := map[string]cache.Config{p.ns: {}, p.shop: {}}
	by := cacheOptions([]string{p.ns}, p.ns)
	maps.Copy(by, map[client.Object]cache.ByObject{&v1alpha1.TailscaleService{}: {Namespaces: within}, &v1alpha1.TailscaleProxyGroup{}: {Namespaces: within}})
	mgr, err := manager.New(config, manager.Options{
		Scheme: newServiceScheme(p.t), Logger: logr.FromSlogHandler(slog.NewTextHandler(p.log, nil)), Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return newMapper(), nil },
		Cache:          cache.Options{ByObject: by, DefaultTransform: cache.TransformStripManagedFields()},
		Client:         client.Options{FieldOwner: v1alpha1.FieldManager, Cache: &client.CacheOptions{EnableReadYourWritesConsistency: new(true)}},
	})
	p.must(err)
	p.publisher = new(Publisher)
	log := slog.New(slog.NewTextHandler(p.log, nil))
	c := &Runner{Namespace: p.ns, ClusterDomain: "cluster.local", Controller: "gateway.envoyproxy.io/gatewayclass-controller", EnvoyNamespace: p.ns,
		Publisher: p.publisher, Clients: p.clients, Log: log, Now: p.now}
	p.must((&gatherer{Runner: c, QuietTime: 20 * time.Millisecond, MaxDelay: 200 * time.Millisecond}).Add(mgr))
	if consumer {
		c.ConsumerNamespaces = []string{p.shop}
	}
	id, instance, err := identifyOperator(p.t.Context(), p.admin, p.ns, "release", p.id)
	p.must(err)
	p.must((&serviceReconciler{Runner: c, operatorID: id, instance: instance}).Add(mgr))
	p.stop = kubetest.Background(p.t, "the operator", serviceDeadline, func() bool { return false }, mgr.Start)
}

// now returns the operator's time.
func (p *serviceEnv) now() time.Time { return time.Now().Add(time.Duration(p.ahead.Load())) }

func (p *serviceEnv) must(err error) {
	p.t.Helper()
	if err != nil {
		p.t.Fatal(err)
	}
}

func (p *serviceEnv) until(what string, ok func() error) {
	p.t.Helper()
	for end := time.Now().Add(serviceDeadline); ; time.Sleep(10 * time.Millisecond) {
		err := ok()
		if err == nil {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("not within %v: %s: %v", serviceDeadline, what, err)
		}
	}
}

// tailnet creates a tailnet as its controller leaves it, and a client for it.
func (p *serviceEnv) tailnet(name, suffix string, api *fakeapi.API, scopes ...string) {
	p.t.Helper()
	o := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: v1alpha1.TailscaleTailnetSpec{Tags: []string{"tag:k8s"}, SyncInterval: metav1.Duration{Duration: 5 * time.Minute},
		AllowedNamespaces: v1alpha1.NamespaceSelector{From: v1alpha1.NamespacesAll}}}
	p.must(p.admin.Create(p.t.Context(), o))
	p.t.Cleanup(func() {
		if err := p.admin.Delete(context.WithoutCancel(p.t.Context()), o); client.IgnoreNotFound(err) != nil {
			p.t.Error(err)
		}
	})
	o.Status.TailnetInfo = &v1alpha1.TailnetInfo{Name: suffix, Organization: "Personal"}
	p.must(p.admin.Status().Update(p.t.Context(), o))
	if api != nil {
		p.join(name, api)
	}
}

func (p *serviceEnv) join(name string, api *fakeapi.API) {
	p.t.Helper()
	own := api.Client([]string{"devices:core", "auth_keys", "services"}, "tag:k8s", "tag:web")
	_, err := p.clients.Put(name, tsapi.Version{UID: "u"}, func() (tsapi.Config, error) {
		return tsapi.Config{BaseURL: api.URL(), Tailnet: "-", Credential: tsapi.Credential{ClientID: own.ID, Secret: secret.New(own.Secret)},
			UserAgent: "tailplane-gateway/test", PerSecond: 1000, Burst: 1000, Now: p.now}, nil
	})
	p.must(err)
	p.t.Cleanup(func() { p.clients.Drop(name) })
}

// group creates a group of two relays as its controller leaves it.
func (p *serviceEnv) group(serviceName, tailnet string, direction v1alpha1.Direction) *v1alpha1.TailscaleProxyGroup {
	p.t.Helper()
	g := &v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: serviceName}, Spec: v1alpha1.TailscaleProxyGroupSpec{Type: direction,
		TailnetRef: &v1alpha1.TailnetReference{Name: tailnet}, Consumers: v1alpha1.NamespaceSelector{From: v1alpha1.NamespacesAll}}}
	p.must(p.admin.Create(p.t.Context(), g))
	return g
}

// ports sets the allocated ports in the status of a group.
func (p *serviceEnv) ports(g *v1alpha1.TailscaleProxyGroup, ports ...v1alpha1.MappedPort) {
	p.t.Helper()
	p.until("ports are given", func() error {
		if err := p.admin.Get(p.t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
			return err
		}
		g.Status.Ports = ports
		return p.admin.Status().Update(p.t.Context(), g)
	})
}

// pod creates the ready pod of an ordinal with an address, and its state Secret.
func (p *serviceEnv) pod(g *v1alpha1.TailscaleProxyGroup, ordinal int, ips ...string) *corev1.Pod {
	p.t.Helper()
	marks := map[string]string{v1alpha1.ManagedLabel: "true", v1alpha1.ProxyGroupLabel: g.Name, v1alpha1.OrdinalLabel: fmt.Sprint(ordinal)}
	o := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: fmt.Sprintf("%s-%d", g.Name, ordinal), Labels: marks},
		Spec: corev1.PodSpec{NodeName: "node-1", TerminationGracePeriodSeconds: new(int64(0)), Containers: []corev1.Container{{Name: "relay", Image: "relay"}}}}
	p.must(p.admin.Create(p.t.Context(), o))
	p.ready(o, true, ips...)
	secret := &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: o.Name, Labels: maps.Clone(marks)}}
	secret.Labels[v1alpha1.SecretTypeLabel] = v1alpha1.SecretTypeState
	if err := p.admin.Create(p.t.Context(), secret); client.IgnoreAlreadyExists(err) != nil {
		p.t.Fatal(err)
	}
	return o
}

func (p *serviceEnv) ready(o *corev1.Pod, ready bool, ips ...string) {
	p.t.Helper()
	p.until("the pod's status", func() error {
		if err := p.admin.Get(p.t.Context(), client.ObjectKeyFromObject(o), o); err != nil {
			return err
		}
		o.Status.Phase = corev1.PodRunning
		o.Status.Conditions = []corev1.PodCondition{{Type: corev1.PodReady, Status: corev1.ConditionFalse}}
		if ready {
			o.Status.Conditions[0].Status = corev1.ConditionTrue
		}
		if len(ips) > 0 {
			o.Status.PodIP, o.Status.PodIPs = ips[0], nil
			for _, ip := range ips {
				o.Status.PodIPs = append(o.Status.PodIPs, corev1.PodIP{IP: ip})
			}
		}
		return p.admin.Status().Update(p.t.Context(), o)
	})
}

// setRelayStatus writes a relay's status to its state Secret.
func (p *serviceEnv) setRelayStatus(pod, uid string, st config.Status) {
	p.t.Helper()
	p.until("the relay reports its services", func() error {
		secret := &corev1.Secret{}
		if err := p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: p.ns, Name: pod}, secret); err != nil {
			return err
		}
		secret.Data = map[string][]byte{"pod_uid": []byte(uid), config.EgressKey: st.JSON(), "_machinekey": []byte("privkey:secret")}
		return p.admin.Update(p.t.Context(), secret)
	})
}

func carryingStatus(service string, ports ...config.Port) config.Status {
	return config.Status{PodIPv4: "10.77.0.1", Services: map[string]config.ServiceStatus{service: {Ports: ports, IPs: []netip.Addr{netip.MustParseAddr("100.64.0.9")}}}}
}

// get returns a copy of a stored service.
func (p *serviceEnv) get(s *v1alpha1.TailscaleService) *v1alpha1.TailscaleService {
	p.t.Helper()
	o := &v1alpha1.TailscaleService{}
	p.must(p.admin.Get(p.t.Context(), client.ObjectKeyFromObject(s), o))
	return o
}

// condition waits until a condition of the newest spec has a status and a reason.
func (p *serviceEnv) condition(s *v1alpha1.TailscaleService, kind, want string) *v1alpha1.TailscaleService {
	p.t.Helper()
	var o *v1alpha1.TailscaleService
	p.until(kind+" "+want, func() error {
		o = p.get(s)
		c := meta.FindStatusCondition(o.Status.Conditions, kind)
		if c == nil || string(c.Status)+"/"+c.Reason != want || c.ObservedGeneration != o.Generation || o.Status.ObservedGeneration != o.Generation {
			return fmt.Errorf("%+v, %+v, %+v", o.Status.Conditions, o.Status.Egress, o.Status.VIP)
		}
		return nil
	})
	return o
}

// awaitGone waits until an object is deleted.
func (p *serviceEnv) awaitGone(o client.Object) {
	p.t.Helper()
	p.until("it is deleted", func() error {
		err := p.admin.Get(p.t.Context(), client.ObjectKeyFromObject(o), o)
		if client.IgnoreNotFound(err) == nil && err != nil {
			return nil
		}
		return fmt.Errorf("it exists: %v, finalizers %v", err, o.GetFinalizers())
	})
}

// endpoints returns the pods in the EndpointSlices of a Service by relay port, and the
// EndpointSlices.
func (p *serviceEnv) endpoints(service string) (map[int32][]string, []discoveryv1.EndpointSlice) {
	p.t.Helper()
	var list discoveryv1.EndpointSliceList
	p.must(p.admin.List(p.t.Context(), &list, client.InNamespace(p.ns), client.MatchingLabels{discoveryv1.LabelServiceName: service}))
	out := map[int32][]string{}
	for _, s := range list.Items {
		for _, port := range s.Ports {
			for _, e := range s.Endpoints {
				out[*port.Port] = append(out[*port.Port], e.TargetRef.Name+"@"+e.Addresses[0])
				slices.Sort(out[*port.Port])
			}
		}
	}
	return out, list.Items
}

func (p *serviceEnv) service(ns, serviceName string) *corev1.Service {
	p.t.Helper()
	o := &corev1.Service{}
	p.must(p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: ns, Name: serviceName}, o))
	return o
}

// awaitIdle waits until the operator has nothing to do.
func (p *serviceEnv) awaitIdle() {
	p.t.Helper()
	last, since := int64(-1), time.Now()
	p.until("the operator rests", func() error {
		if n := p.writes.Load(); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) < 500*time.Millisecond {
			return errors.New("it writes")
		}
		return nil
	})
}

// trigger triggers the given number of reconciles of a service.
func (p *serviceEnv) trigger(s *v1alpha1.TailscaleService, times int) {
	p.t.Helper()
	for i := range times {
		patch := fmt.Sprintf(`{"metadata":{"annotations":{"test/poke":"%d-%d"}}}`, i, time.Now().UnixNano())
		p.must(p.admin.Patch(p.t.Context(), p.get(s), client.RawPatch("application/merge-patch+json", []byte(patch))))
		time.Sleep(20 * time.Millisecond) // separates the reconciles; no result depends on it
	}
}

type serviceTransport struct {
	*serviceEnv
	next http.RoundTripper
}

func (c *serviceTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet && !strings.Contains(r.URL.Path, "/events") {
		c.writes.Add(1)
	}
	return c.next.RoundTrip(r)
}

// operatorsOf returns the IDs of the operators that own a tailnet service.
func operatorsOf(t *testing.T, s fakeapi.Service) (ids []string) {
	t.Helper()
	text := s.Annotations[gateway.OwnersAnnotation]
	if _, err := gateway.ParseVIPOwners(text); err != nil {
		t.Fatal(err)
	}
	for part := range strings.SplitSeq(text, `"operatorID":"`) {
		if id, _, ok := strings.Cut(part, `"`); ok && strings.HasPrefix(id, "tp-") {
			ids = append(ids, id)
		}
	}
	slices.Sort(ids)
	return ids
}
