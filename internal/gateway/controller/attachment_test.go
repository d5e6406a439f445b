//go:build unix

package controller

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/go-logr/logr"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
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

const (
	attachmentDeadline = 2 * time.Minute
	envoyGateway       = "gateway.envoyproxy.io/gatewayclass-controller"
)

var customResourceDefinitions = sync.OnceValues(func() (docs [][]byte, err error) {
	out, err := exec.Command("go", "list", "-m", "-f", "{{.Dir}}", "sigs.k8s.io/gateway-api").Output()
	if err != nil {
		return nil, err
	}
	for _, pattern := range []string{"../../../deploy/crds/gateway.tailscale.com_*.yaml", filepath.Join(strings.TrimSpace(string(out)), "config", "crd", "standard", "gateway.networking.k8s.io_*s.yaml")} {
		files, err := filepath.Glob(pattern)
		if err != nil || len(files) == 0 {
			return nil, errors.Join(err, errors.New("no definitions: "+pattern))
		}
		for _, f := range files {
			if strings.HasSuffix(f, "safeupgrades.yaml") {
				continue // a policy, which would reject nothing in these tests
			}
			b, err := os.ReadFile(f)
			if err != nil {
				return nil, err
			}
			docs = append(docs, b)
		}
	}
	return docs, nil
})

// An attachmentEnv is a namespace with a Gateway and a running controller.
type attachmentEnv struct {
	*testing.T
	cluster   *kubetest.Cluster
	admin     client.Client
	ns        string
	publisher *Publisher
	reports   *TranslationReports
	restored  atomic.Int64
	writes    atomic.Int64 // writing requests of the controller
}

type attachmentTransport struct {
	*attachmentEnv
	next http.RoundTripper
}

func (c attachmentTransport) RoundTrip(r *http.Request) (*http.Response, error) {
	if r.Method != http.MethodGet {
		c.writes.Add(1)
	}
	return c.next.RoundTrip(r)
}

func newAttachmentEnv(t *testing.T) *attachmentEnv {
	t.Helper()
	p := &attachmentEnv{T: t, cluster: kubetest.Start(t), publisher: new(Publisher), reports: &TranslationReports{Log: slog.New(slog.DiscardHandler)}}
	docs, err := customResourceDefinitions()
	p.must(err)
	p.must(p.cluster.Apply(t.Context(), docs...))
	p.ns = p.cluster.Namespace(t)
	scheme := runtime.NewScheme()
	p.must(addTypes(scheme))
	p.admin, err = client.New(p.cluster.AdminConfig(), client.Options{Scheme: scheme})
	p.must(err)
	config := kube.Unthrottled(p.cluster.AdminConfig())
	config.Wrap(func(next http.RoundTripper) http.RoundTripper { return attachmentTransport{p, next} })
	mgr, err := manager.New(config, manager.Options{
		Scheme: scheme, Logger: logr.Discard(), Metrics: metricsserver.Options{BindAddress: "0"},
		MapperProvider: func(*rest.Config, *http.Client) (meta.RESTMapper, error) { return newMapper(), nil },
		Cache:          cache.Options{ByObject: cacheOptions([]string{p.ns}, p.ns), DefaultTransform: cache.TransformStripManagedFields()},
		Client:         client.Options{FieldOwner: v1alpha1.FieldManager, Cache: &client.CacheOptions{EnableReadYourWritesConsistency: new(true)}},
	})
	p.must(err)
	c := &Runner{Namespace: p.ns, ClusterDomain: "cluster.local", Controller: envoyGateway, EnvoyNamespace: p.ns, Publisher: p.publisher,
		Log: slog.New(slog.DiscardHandler), Now: time.Now, OnRestore: func() { p.restored.Add(1) }}
	p.must((&gatherer{Runner: c, QuietTime: 50 * time.Millisecond, MaxDelay: time.Second}).Add(mgr))
	p.must((&attachmentReconciler{Runner: c, TranslationTimeout: 2 * time.Second}).Add(mgr))
	p.must(p.reports.Add(mgr, p.publisher))
	ctx, cancel := context.WithCancel(context.Background())
	ended := make(chan error, 1)
	go func() { ended <- mgr.Start(ctx) }()
	t.Cleanup(func() {
		cancel()
		if err := <-ended; err != nil {
			t.Error(err)
		}
	})
	p.tailnet()
	for _, o := range []client.Object{
		&gatewayapi.GatewayClass{ObjectMeta: metav1.ObjectMeta{Name: p.ns}, Spec: gatewayapi.GatewayClassSpec{ControllerName: envoyGateway}},
		&gatewayapi.Gateway{ObjectMeta: p.meta("eg"), Spec: gatewayapi.GatewaySpec{GatewayClassName: gatewayapi.ObjectName(p.ns),
			Listeners: []gatewayapi.Listener{{Name: "http", Port: 80, Protocol: gatewayapi.HTTPProtocolType}}}},
	} {
		p.must(p.admin.Create(t.Context(), o))
	}
	return p
}

func (p *attachmentEnv) meta(name string) metav1.ObjectMeta {
	return metav1.ObjectMeta{Namespace: p.ns, Name: name}
}

// tailnet creates a tailnet with the name of the namespace, which is deleted with the test.
func (p *attachmentEnv) tailnet() {
	p.Helper()
	o := &v1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: p.ns}}
	p.must(p.admin.Create(p.Context(), o))
	meta.SetStatusCondition(&o.Status.Conditions, metav1.Condition{Type: v1alpha1.ConditionReady, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonReady})
	p.must(p.admin.Status().Update(p.Context(), o))
	p.Cleanup(func() {
		if err := p.admin.Delete(context.WithoutCancel(p.Context()), o); err != nil {
			p.Error(err)
		}
	})
}

// service creates a service of the tailnet with a port on its relays.
func (p *attachmentEnv) service(name string) {
	p.Helper()
	p.must(p.admin.Create(p.Context(), &v1alpha1.TailscaleService{ObjectMeta: p.meta(name), Spec: v1alpha1.TailscaleServiceSpec{
		TailnetRef: &v1alpha1.TailnetReference{Name: p.ns}, Target: &v1alpha1.ServiceTarget{ServiceName: "svc:" + name}, Ports: []v1alpha1.ServicePort{{Port: 80}},
	}}))
	group := &v1alpha1.TailscaleProxyGroup{ObjectMeta: p.meta(name + "-proxy-group"), Spec: v1alpha1.TailscaleProxyGroupSpec{Type: v1alpha1.Egress, TailnetRef: &v1alpha1.TailnetReference{Name: p.ns}}}
	group.Labels = map[string]string{v1alpha1.ManagedLabel: "true"}
	p.must(p.admin.Create(p.Context(), group))
	group.Status.Ports = []v1alpha1.MappedPort{{Service: p.ns + "." + name, Protocol: v1alpha1.TCP, MatchPort: 10000, TargetPort: 80}}
	p.must(p.admin.Status().Update(p.Context(), group))
}

// route creates an HTTPRoute that the Gateway has accepted.
func (p *attachmentEnv) route(name string, backends ...gatewayapi.HTTPBackendRef) *gatewayapi.HTTPRoute {
	p.Helper()
	r := &gatewayapi.HTTPRoute{ObjectMeta: p.meta(name), Spec: gatewayapi.HTTPRouteSpec{
		CommonRouteSpec: gatewayapi.CommonRouteSpec{ParentRefs: []gatewayapi.ParentReference{{Name: "eg"}}},
		Rules:           []gatewayapi.HTTPRouteRule{{BackendRefs: backends}},
	}}
	p.must(p.admin.Create(p.Context(), r))
	r.Status.Parents = []gatewayapi.RouteParentStatus{{ParentRef: gatewayapi.ParentReference{Name: "eg"}, ControllerName: envoyGateway,
		Conditions: []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted", LastTransitionTime: metav1.Now()}}}}
	p.must(p.admin.Status().Update(p.Context(), r))
	return r
}

func backendOf(service string) gatewayapi.HTTPBackendRef {
	return gatewayapi.HTTPBackendRef{BackendRef: gatewayapi.BackendRef{BackendObjectReference: gatewayapi.BackendObjectReference{
		Group: new(gatewayapi.Group(v1alpha1.Group)), Kind: new(gatewayapi.Kind("TailscaleService")), Name: gatewayapi.ObjectName(service), Port: new(gatewayapi.PortNumber(80)),
	}}}
}

// attach attaches the tailnet to the Gateway.
func (p *attachmentEnv) attach(routes v1alpha1.RouteGeneration) *v1alpha1.TailscaleGateway {
	p.Helper()
	one := v1alpha1.AttachedTailnet{TailnetRef: v1alpha1.TailnetReference{Name: p.ns}, RouteGeneration: routes}
	one.ServiceDiscovery.Patterns = []string{"svc:*"}
	one.ServiceDiscovery.SyncInterval = metav1.Duration{Duration: time.Minute}
	one.ProxyGroup.MaxGroups = 50
	g := &v1alpha1.TailscaleGateway{ObjectMeta: p.meta("eg-tailnets"), Spec: v1alpha1.TailscaleGatewaySpec{
		TargetRef: v1alpha1.GatewayReference{Group: gatewayapi.GroupName, Kind: "Gateway", Name: "eg"}, Tailnets: []v1alpha1.AttachedTailnet{one}}}
	p.must(p.admin.Create(p.Context(), g))
	return g
}

func (p *attachmentEnv) must(err error) {
	p.Helper()
	if err != nil {
		p.Fatal(err)
	}
}

func (p *attachmentEnv) until(what string, ok func() bool) {
	p.Helper()
	for end := time.Now().Add(attachmentDeadline); !ok(); time.Sleep(10 * time.Millisecond) {
		if time.Now().After(end) {
			p.Fatalf("not within %v: %s", attachmentDeadline, what)
		}
	}
}

// get reads an object. It returns false if the object does not exist.
func (p *attachmentEnv) get(name string, o client.Object) bool {
	p.Helper()
	err := p.admin.Get(p.Context(), client.ObjectKey{Namespace: p.ns, Name: name}, o)
	if !apierrors.IsNotFound(err) {
		p.must(err)
	}
	return err == nil
}

// revision returns the revision that Envoy Gateway must request.
func (p *attachmentEnv) revision() string {
	if r := p.publisher.Result(); r != nil && r.Snapshot.Gateways[p.gatewayName()] != nil {
		return r.Snapshot.Gateways[p.gatewayName()].Revision
	}
	return ""
}

func (p *attachmentEnv) gatewayName() gateway.Name { return gateway.Name{Namespace: p.ns, Name: "eg"} }

// requested waits until the revision object contains the newest revision.
func (p *attachmentEnv) requested(object string) *v1alpha1.TailscaleRoutePolicy {
	p.Helper()
	o := &v1alpha1.TailscaleRoutePolicy{}
	p.until("the newest revision in "+object, func() bool { return p.get(object, o) && revisionOf(o) == p.revision() })
	return o
}

// awaitReason waits until a condition of the TailscaleGateway has this reason.
func (p *attachmentEnv) awaitReason(kind, reason string) *v1alpha1.TailscaleGateway {
	p.Helper()
	g := &v1alpha1.TailscaleGateway{}
	p.until(kind+" says "+reason, func() bool {
		c := (*metav1.Condition)(nil)
		if p.get("eg-tailnets", g) {
			c = meta.FindStatusCondition(g.Status.Conditions, kind)
		}
		return c != nil && c.Reason == reason && c.ObservedGeneration == g.Generation
	})
	return g
}

// GTW-03: the conditions of a TailscaleGateway have the observed generation, and show whether
// Envoy Gateway has the current decision.
func TestGTW03_Gateway(t *testing.T) {
	p := newAttachmentEnv(t)
	p.service("billing")
	p.route("shop")
	g := p.attach(v1alpha1.RouteGeneration{Egress: &v1alpha1.EgressRoutes{}})
	p.awaitReason("Programmed", v1alpha1.ReasonExtensionNotCalled)
	o := p.requested("eg-tailnets-revision")
	switch {
	case !metav1.IsControlledBy(o, g):
		t.Errorf("the revision object: metav1.IsControlledBy(o, g) is false; %+v", o)
	case o.Spec.TargetRef.Name != "eg":
		t.Errorf("the revision object: o.Spec.TargetRef.Name = %q, want %q", o.Spec.TargetRef.Name, "eg")
	case o.Spec.TargetRef.Kind != "Gateway":
		t.Errorf("the revision object: o.Spec.TargetRef.Kind = %q, want %q", o.Spec.TargetRef.Kind, "Gateway")
	}
	is := p.awaitReason("Degraded", v1alpha1.ReasonAsExpected)
	switch s := is.Status; {
	case s.ServiceCount != 1:
		t.Errorf("status: s.ServiceCount = %v, want 1", s.ServiceCount)
	case s.TailnetCount != 1:
		t.Errorf("status: s.TailnetCount = %v, want 1", s.TailnetCount)
	case len(s.Services) != 1:
		t.Errorf("status: len(s.Services) = %v, want 1", len(s.Services))
	case s.Services[0].Route != "tailscale-svc-billing":
		t.Errorf("status: s.Services[0].Route = %q, want %q", s.Services[0].Route, "tailscale-svc-billing")
	case s.Revision == nil:
		t.Error("status: s.Revision is nil")
	case s.Revision.Desired != p.revision():
		t.Errorf("status: s.Revision.Desired = %q, want %q", s.Revision.Desired, p.revision())
	case s.ObservedGeneration != is.Generation:
		t.Errorf("status: s.ObservedGeneration = %v, want %v", s.ObservedGeneration, is.Generation)
	}

	p.reports.Report(gateway.TranslationReport{Gateway: p.gatewayName(), Requested: p.revision(), Rendered: p.revision()})
	is = p.awaitReason("Ready", v1alpha1.ReasonReady)
	if is.Status.Revision.Translated != p.revision() || is.Status.Revision.Time == nil {
		t.Errorf("revision %+v", is.Status.Revision)
	}
	if out, errs, code := kubetest.Kubectl(t.Context(), p.cluster.Kubeconfig, "-n", p.ns, "wait", "--for=condition=Ready", "--timeout=60s", "tsgw/eg-tailnets"); code != 0 {
		t.Errorf("%s%s", out, errs)
	}
	p.reports.Report(gateway.TranslationReport{Gateway: p.gatewayName(), Requested: p.revision(), Rendered: p.revision(), Ambiguous: []string{"a.example.com"}})
	p.awaitReason("Ready", v1alpha1.ReasonSecurityAmbiguous)
	p.reports.Report(gateway.TranslationReport{Gateway: p.gatewayName(), Requested: p.revision(), Rendered: p.revision(), Incomplete: true})
	p.awaitReason("Ready", v1alpha1.ReasonEnvoyGatewayConfigIncomplete)
	p.reports.Report(gateway.TranslationReport{Gateway: p.gatewayName(), Requested: p.revision(), Rendered: p.revision(), Conflicted: []string{"tailscale-cluster-billing"}})
	p.awaitReason("Programmed", v1alpha1.ReasonConflicted)

	// After an answer that was too early, the operator makes Envoy Gateway request the revision
	// when it exists.
	p.reports.Report(gateway.TranslationReport{Gateway: p.gatewayName(), Requested: p.revision(), Rendered: "0000000000000000"})
	p.until("requested again", func() bool {
		return p.get("eg-tailnets-revision", o) && o.Spec.Revision == p.revision()+"-1" && o.Annotations[v1alpha1.TranslatedAnnotation] == "0000000000000000"
	})
	p.awaitReason("Programmed", v1alpha1.ReasonExtensionNotCalled)
	p.reports.Report(gateway.TranslationReport{Gateway: p.gatewayName(), Requested: p.revision(), Rendered: p.revision()})
	p.awaitReason("Ready", v1alpha1.ReasonReady)
	if p.get("eg-tailnets-revision", o); o.Spec.Revision != p.revision()+"-1" {
		t.Errorf("revision %s", o.Spec.Revision)
	}

	// A change creates a new revision, and the observed generation of the TailscaleGateway
	// follows.
	before := p.revision()
	p.until("another path", func() bool {
		p.get("eg-tailnets", g)
		g.Spec.Tailnets[0].RouteGeneration.Egress.PathPrefix = "/tailnet/{service}"
		err := p.admin.Update(t.Context(), g)
		return err == nil || !apierrors.IsConflict(err)
	})
	p.until("another revision", func() bool { return p.revision() != before })
	o = p.requested("eg-tailnets-revision")
	is = p.awaitReason("Accepted", v1alpha1.ReasonAccepted)
	switch {
	case o.Spec.Revision != p.revision():
		t.Errorf("revision: o.Spec.Revision = %q, want %q", o.Spec.Revision, p.revision())
	case is.Status.Services[0].Path != "/tailnet/billing":
		t.Errorf("revision: is.Status.Services[0].Path = %q, want %q", is.Status.Services[0].Path, "/tailnet/billing")
	case is.Status.ObservedGeneration != 2:
		t.Errorf("revision: is.Status.ObservedGeneration = %v, want 2", is.Status.ObservedGeneration)
	}
	p.until("no Gateway", func() bool {
		err := p.admin.Delete(t.Context(), &gatewayapi.Gateway{ObjectMeta: p.meta("eg")})
		return client.IgnoreNotFound(err) == nil
	})
	p.awaitReason("Ready", v1alpha1.ReasonGatewayNotFound)
}

// GTW-32: Envoy Gateway is notified immediately. Of many successive changes it is notified about
// some, always including the last one.
func TestGTW32_Requests(t *testing.T) {
	p := newAttachmentEnv(t)
	p.service("billing")
	p.route("shop")
	g := p.attach(v1alpha1.RouteGeneration{Egress: &v1alpha1.EgressRoutes{}})
	first := p.requested("eg-tailnets-revision")
	const changes = 10
	began := time.Now()
	for i := range changes {
		before := p.revision()
		p.until("another path", func() bool {
			p.get("eg-tailnets", g)
			g.Spec.Tailnets[0].RouteGeneration.Egress.PathPrefix = fmt.Sprintf("/%d/{service}", i)
			err := p.admin.Update(t.Context(), g)
			return err == nil || !apierrors.IsConflict(err)
		})
		p.until("another revision", func() bool { return p.revision() != before })
	}
	last := p.requested("eg-tailnets-revision")
	// The times are written to the millisecond.
	if n, most := last.Generation-first.Generation, int64(time.Since(began)/(minRequestInterval-time.Millisecond))+1; n < 1 || n > most {
		t.Errorf("%d changes caused %d requests, %d fit into the time", changes, n, most)
	}
}

// GTW-32: Envoy Gateway replaces the whole status of a policy. The controller restores its part
// with the times, and writes nothing if nothing is missing.
func TestGTW32_PolicyStatus(t *testing.T) {
	p := newAttachmentEnv(t)
	p.service("billing")
	p.route("shop")
	policy := &v1alpha1.TailscaleRoutePolicy{ObjectMeta: p.meta("to-billing"), Spec: v1alpha1.TailscaleRoutePolicySpec{
		TargetRef:  v1alpha1.PolicyTargetReference{Group: gatewayapi.GroupName, Kind: "HTTPRoute", Name: "shop"},
		TailnetRef: &v1alpha1.TailnetReference{Name: p.ns},
		RouteRules: []v1alpha1.RouteRule{{Match: v1alpha1.RouteMatch{Path: "/api/*"}, Backend: v1alpha1.RuleBackend{ServiceName: "svc:billing", Port: 80}}},
	}}
	p.must(p.admin.Create(t.Context(), policy))
	ready := func() bool {
		return p.get("to-billing", policy) && meta.IsStatusConditionTrue(policy.Status.Conditions, "Ready") && policy.Status.ObservedGeneration == policy.Generation
	}
	p.until("the policy is ready", ready)
	if len(policy.Status.Rules) != 1 || policy.Status.Rules[0].State != v1alpha1.RuleActive {
		t.Errorf("rules %+v", policy.Status.Rules)
	}
	if out, errs, code := kubetest.Kubectl(t.Context(), p.cluster.Kubeconfig, "-n", p.ns, "wait", "--for=condition=Ready", "--timeout=60s", "tsrp/to-billing"); code != 0 {
		t.Errorf("%s%s", out, errs)
	}
	since := meta.FindStatusCondition(policy.Status.Conditions, "Ready").LastTransitionTime
	p.requested("eg.gateway-revision")
	p.until("its status", func() bool {
		o := &v1alpha1.TailscaleRoutePolicy{}
		return p.get("eg.gateway-revision", o) && meta.IsStatusConditionTrue(o.Status.Conditions, "Accepted")
	})

	took := time.Duration(0)
	for i := range 20 {
		want := v1alpha1.TailscaleRoutePolicyStatus{Ancestors: []v1alpha1.PolicyAncestorStatus{{AncestorRef: v1alpha1.AncestorReference{Name: "eg"}, ControllerName: envoyGateway,
			Conditions: []metav1.Condition{{Type: "Accepted", Status: metav1.ConditionTrue, Reason: "Accepted", ObservedGeneration: int64(i), LastTransitionTime: metav1.Now()}}}}}
		p.until("Envoy Gateway's write", func() bool {
			p.get("to-billing", policy)
			policy.Status = want
			err := p.admin.Status().Update(t.Context(), policy)
			return err == nil || !apierrors.IsConflict(err)
		})
		began := time.Now()
		p.until("both parts", func() bool { return ready() && len(policy.Status.Ancestors) == 1 && len(policy.Status.Rules) == 1 })
		took = max(took, time.Since(began))
		if policy.Status.Ancestors[0].Conditions[0].ObservedGeneration != int64(i) {
			t.Error("Envoy Gateway's part was overwritten")
		}
	}
	t.Logf("the part that was erased was back after %v at most", took)
	if at := meta.FindStatusCondition(policy.Status.Conditions, "Ready").LastTransitionTime; !at.Equal(&since) {
		t.Errorf("ready since %v, was since %v", at, since)
	}
	if n := p.restored.Load(); n < 1 || n > 20 {
		t.Errorf("%d restores of 20 that were erased", n)
	}

	// Ten reconciles of all objects write nothing. The last object shows that all of them are
	// complete.
	writes := p.writes.Load()
	for i := range 10 {
		for _, name := range []string{"to-billing", "eg.gateway-revision"} {
			p.must(p.admin.Patch(t.Context(), &v1alpha1.TailscaleRoutePolicy{ObjectMeta: p.meta(name)}, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"touched":"`+string(rune('a'+i))+`"}}}`))))
		}
	}
	p.must(p.admin.Create(t.Context(), &v1alpha1.TailscaleRoutePolicy{ObjectMeta: p.meta("last"), Spec: v1alpha1.TailscaleRoutePolicySpec{
		TargetRef: v1alpha1.PolicyTargetReference{Group: gatewayapi.GroupName, Kind: "HTTPRoute", Name: "shop"}, TailscaleTarget: &v1alpha1.PolicyTarget{ServicePattern: "svc:*"},
	}}))
	last := &v1alpha1.TailscaleRoutePolicy{}
	p.until("the last policy is refused", func() bool {
		p.get("last", last)
		c := meta.FindStatusCondition(last.Status.Conditions, "Ready")
		return c != nil && c.Reason == v1alpha1.ReasonConflicted
	})
	if n := p.writes.Load() - writes; n > 1 {
		t.Errorf("%d writes, and one was needed", n)
	}
}

// A Gateway without an attachment whose routes have TailscaleService backends also has a revision
// object, until an attachment exists.
func TestBareGateway(t *testing.T) {
	p := newAttachmentEnv(t)
	p.service("billing")
	p.route("shop", backendOf("billing"))
	bare := "eg" + bareRevisionSuffix
	o := p.requested(bare)
	var owner gatewayapi.Gateway
	if p.get("eg", &owner); !metav1.IsControlledBy(o, &owner) {
		t.Errorf("owners %+v", o.OwnerReferences)
	}
	g := p.attach(v1alpha1.RouteGeneration{})
	p.requested("eg-tailnets-revision")
	p.until("only one revision object", func() bool { return !p.get(bare, o) })
	p.must(p.admin.Delete(t.Context(), g))
	p.requested(bare)
	p.must(p.admin.Delete(t.Context(), &gatewayapi.HTTPRoute{ObjectMeta: p.meta("shop")}))
	p.until("no revision object", func() bool { return !p.get(bare, o) })
}

// The ingress of a Gateway is a separate TailscaleService.
func TestGatewayIngress(t *testing.T) {
	p := newAttachmentEnv(t)
	p.route("shop")
	name := gatewayIngressName("eg-tailnets", p.ns)
	foreign := &v1alpha1.TailscaleService{ObjectMeta: p.meta(name), Spec: v1alpha1.TailscaleServiceSpec{
		TailnetRef: &v1alpha1.TailnetReference{Name: p.ns}, Target: &v1alpha1.ServiceTarget{ServiceName: "svc:foreign"}, Ports: []v1alpha1.ServicePort{{Port: 80}},
	}}
	p.must(p.admin.Create(t.Context(), foreign))
	g := p.attach(v1alpha1.RouteGeneration{Ingress: &v1alpha1.IngressRoutes{VIPService: v1alpha1.VIPService{Name: "svc:eg"}, Ports: []v1alpha1.ServicePort{{Name: "http", Port: 80}}, ProxyProtocol: v1alpha1.ProxyProtocolV2}})
	p.requested("eg-tailnets-revision")
	p.reports.Report(gateway.TranslationReport{Gateway: p.gatewayName(), Requested: p.revision(), Rendered: p.revision()})
	p.awaitReason("Programmed", v1alpha1.ReasonServiceNameConflict)
	if p.get(name, foreign); foreign.Spec.Target == nil {
		t.Error("another owner's object was changed")
	}
	p.must(p.admin.Delete(t.Context(), foreign))
	owned := &v1alpha1.TailscaleService{}
	p.until("the service of the gateway", func() bool { return p.get(name, owned) && metav1.IsControlledBy(owned, g) })
	switch s := owned.Spec; {
	case s.Type != v1alpha1.Ingress:
		t.Errorf("s.Type = %q, want %q", s.Type, v1alpha1.Ingress)
	case s.VIPService.Name != "svc:eg":
		t.Errorf("s.VIPService.Name = %q, want %q", s.VIPService.Name, "svc:eg")
	case s.BackendRef.Kind != "Gateway":
		t.Errorf("s.BackendRef.Kind = %q, want %q", s.BackendRef.Kind, "Gateway")
	case s.BackendRef.Name != "eg":
		t.Errorf("s.BackendRef.Name = %q, want %q", s.BackendRef.Name, "eg")
	case s.ProxyProtocol != v1alpha1.ProxyProtocolV2:
		t.Errorf("s.ProxyProtocol = %q, want %q", s.ProxyProtocol, v1alpha1.ProxyProtocolV2)
	case len(s.Ports) != 1:
		t.Errorf("len(s.Ports) = %v, want 1", len(s.Ports))
	}
	p.until("decided", func() bool {
		return p.publisher.Result().Services[gateway.Name{Namespace: p.ns, Name: name}].ResolvedRefs.IsTrue()
	})
	p.awaitReason("Ready", v1alpha1.ReasonReady)
	p.until("without ingress", func() bool {
		p.get("eg-tailnets", g)
		g.Spec.Tailnets[0].RouteGeneration.Ingress = nil
		err := p.admin.Update(t.Context(), g)
		return err == nil || !apierrors.IsConflict(err)
	})
	p.until("no service of the gateway", func() bool { return !p.get(name, owned) })
}
