//go:build unix

package controller

import (
	"context"
	"log/slog"
	"net/http"
	"os/exec"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/rest"
	"sigs.k8s.io/controller-runtime/pkg/cache"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"sigs.k8s.io/controller-runtime/pkg/manager"
	metricsserver "sigs.k8s.io/controller-runtime/pkg/metrics/server"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/kube"
	"github.com/tailplane/tailplane/testkit/kubetest"
)

const gathererDeadline = 2 * time.Minute

func gathererUntil(t *testing.T, what string, ok func() bool) {
	t.Helper()
	for end := time.Now().Add(gathererDeadline); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("not within %v: %s", gathererDeadline, what)
		}
	}
}

// A Gatherer on a real API server, first without and then with the Gateway API. Irrelevant changes
// trigger no decision. A failed decision keeps the last one and is reported.
func TestGatherer(t *testing.T) {
	c := kubetest.New(t, kubetest.Options{Name: "gatherer"}) // without the Gateway API, which other tests install
	if err := c.ApplyFiles(t.Context(), "../../../deploy/crds/gateway.tailscale.com_*.yaml"); err != nil {
		t.Fatal(err)
	}
	ns := c.Namespace(t)
	scheme := runtime.NewScheme()
	if err := addTypes(scheme); err != nil {
		t.Fatal(err)
	}
	admin, err := client.New(c.AdminConfig(), client.Options{Scheme: scheme})
	if err != nil {
		t.Fatal(err)
	}
	mgr, err := manager.New(kube.Unthrottled(c.AdminConfig()), manager.Options{
		Scheme: scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return newMapper(), nil },
		Cache:          cache.Options{ByObject: cacheOptions([]string{ns}, ns)},
	})
	if err != nil {
		t.Fatal(err)
	}
	var decisions, published atomic.Int64
	publisher := new(Publisher)
	g := &gatherer{Runner: &Runner{Namespace: ns, ClusterDomain: "cluster.local", Controller: "gateway.envoyproxy.io/gatewayclass-controller", EnvoyNamespace: ns, Addresses: true,
		Publisher: publisher, Log: slog.New(slog.DiscardHandler),
		Publish: func(*gateway.Snapshot) { published.Add(1) },
		OnBuild: func(time.Duration, error) { decisions.Add(1) }}, QuietTime: 50 * time.Millisecond, MaxDelay: time.Second,
		Build: func(o gateway.Objects) gateway.Result {
			for _, s := range o.Services {
				if s.Name == "hostile" {
					panic("an unexpected fault")
				}
			}
			return gateway.Build(o)
		}}
	if err := g.Add(mgr); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	defer func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}()
	create := func(o client.Object) {
		t.Helper()
		if err := admin.Create(t.Context(), o); err != nil {
			t.Fatal(err)
		}
	}

	// Without the Gateway API.
	gathererUntil(t, "a first decision", func() bool { return publisher.Result() != nil })
	tailnet := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: "corp"}}
	create(tailnet)
	service := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "billing"}, Spec: v1alpha1.TailscaleServiceSpec{
		TailnetRef: &v1alpha1.TailnetReference{Name: "corp"}, Target: &v1alpha1.ServiceTarget{ServiceName: "svc:billing"}, Ports: []v1alpha1.ServicePort{{Port: 80}},
	}}
	create(service)
	name := gateway.Name{Namespace: ns, Name: "billing"}
	gathererUntil(t, "a group for the service", func() bool {
		r := publisher.Result()
		return r.Services[name].Accepted.IsTrue() && r.DesiredGroups["billing-proxy-group"].Tailnet == "corp" && len(r.RequiredPorts) == 1
	})

	// A change of an irrelevant status triggers no decision.
	before := decisions.Load()
	for range 5 {
		service.Status.Conditions = nil
		meta.SetStatusCondition(&service.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionFalse, Reason: "Pending", Message: time.Now().String()})
		if err := admin.Status().Update(t.Context(), service); err != nil {
			t.Fatal(err)
		}
	}

	// The Gateway API is installed, with a Gateway whose route has the service as a backend.
	out, err := exec.CommandContext(t.Context(), "go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		t.Fatal(err)
	}
	for _, kind := range []string{"gatewayclasses", "gateways", "httproutes", "grpcroutes", "referencegrants"} {
		if err := c.ApplyFiles(t.Context(), filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard", "gateway.networking.k8s.io_"+kind+".yaml")); err != nil {
			t.Fatal(err)
		}
	}
	group := &v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "billing-proxy-group", Labels: map[string]string{v1alpha1.ManagedLabel: "true"}},
		Spec: v1alpha1.TailscaleProxyGroupSpec{Type: v1alpha1.Egress, TailnetRef: &v1alpha1.TailnetReference{Name: "corp"}}}
	create(group)
	group.Status.Ports = []v1alpha1.MappedPort{{Service: ns + ".billing", Protocol: v1alpha1.TCP, MatchPort: 10000, TargetPort: 80}}
	if err := admin.Status().Update(t.Context(), group); err != nil {
		t.Fatal(err)
	}
	create(&gatewayapi.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: "eg"}, Spec: gatewayapi.GatewayClassSpec{ControllerName: gatewayapi.GatewayController(g.Controller)}})
	create(&gatewayapi.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "eg"}, Spec: gatewayapi.GatewaySpec{
		GatewayClassName: "eg", Listeners: []gatewayapi.Listener{{Name: "http", Port: 80, Protocol: gatewayapi.HTTPProtocolType}},
	}})
	route := &gatewayapi.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "shop"}, Spec: gatewayapi.HTTPRouteSpec{
		CommonRouteSpec: gatewayapi.CommonRouteSpec{ParentRefs: []gatewayapi.ParentReference{{Name: "eg"}}},
		Rules: []gatewayapi.HTTPRouteRule{{BackendRefs: []gatewayapi.HTTPBackendRef{{BackendRef: gatewayapi.BackendRef{BackendObjectReference: gatewayapi.BackendObjectReference{
			Group: new(gatewayapi.Group(v1alpha1.Group)), Kind: new(gatewayapi.Kind("TailscaleService")), Name: "billing", Port: new(gatewayapi.PortNumber(80)),
		}}}}}},
	}}
	create(route)
	route.Status.Parents = []gatewayapi.RouteParentStatus{{ParentRef: gatewayapi.ParentReference{Name: "eg"}, ControllerName: gatewayapi.GatewayController(g.Controller),
		Conditions: []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted", LastTransitionTime: metav1.Now()}}}}
	if err := admin.Status().Update(t.Context(), route); err != nil {
		t.Fatal(err)
	}
	at := gateway.Name{Namespace: ns, Name: "eg"}
	gathererUntil(t, "the rule in the snapshot", func() bool {
		r := publisher.Result().Snapshot.Gateways[at]
		return r != nil && len(r.Rules) == 1 && r.Rules[0].Sole != nil && r.Rules[0].Sole.Port == 10000
	})
	if publisher.Err() != nil || published.Load() == 0 {
		t.Errorf("fault %v, %d published", publisher.Err(), published.Load())
	}
	t.Logf("%d decisions, %d of them after irrelevant changes of a status", decisions.Load(), decisions.Load()-before)

	// A decision that fails.
	was := publisher.Result()
	hostile := service.DeepCopy()
	hostile.ObjectMeta = metav1.ObjectMeta{Namespace: ns, Name: "hostile"}
	create(hostile)
	gathererUntil(t, "a fault", func() bool { return publisher.Err() != nil })
	if publisher.Result() != was || !strings.Contains(publisher.Err().Error(), "an unexpected fault") {
		t.Errorf("fault %v; the same result: %v", publisher.Err(), publisher.Result() == was)
	}
	if err := admin.Delete(t.Context(), hostile); err != nil {
		t.Fatal(err)
	}
	gathererUntil(t, "no fault", func() bool { return publisher.Err() == nil })
	if err := admin.Delete(t.Context(), tailnet); err != nil {
		t.Fatal(err)
	}
	gathererUntil(t, "no tailnet", func() bool { return !publisher.Result().Services[name].Accepted.IsTrue() })
}

func TestRunnerSettings(t *testing.T) {
	if err := (&Runner{Namespace: "x"}).Run(t.Context()); err == nil {
		t.Error("a runner without settings runs")
	}
}

// GTW-32: a change soon leads to a decision, successive changes are combined into one decision,
// and a pause follows a long decision.
func TestGathererWaits(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		g := &gatherer{changed: make(chan struct{}, 1)}
		waited := func() time.Duration {
			began := time.Now()
			g.wait(t.Context())
			return time.Since(began)
		}
		g.trigger()
		if d := waited(); d != quietTime {
			t.Errorf("one change is decided after %v", d)
		}
		storm, stop := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			for storm.Err() == nil {
				g.trigger()
				time.Sleep(quietTime / 2)
			}
		}()
		if d := waited(); d != maxDecisionDelay {
			t.Errorf("continuous changes are decided after %v", d)
		}
		stop()
		<-ended
		const rest = 3 * maxDecisionDelay
		g.rested = time.Now().Add(rest)
		g.trigger()
		if d := waited(); d != rest {
			t.Errorf("a change during the pause is decided after %v", d)
		}
		g.wake = time.Hour
		if d := waited(); d != time.Hour {
			t.Errorf("without a change the next check is after %v", d)
		}
	})
}
