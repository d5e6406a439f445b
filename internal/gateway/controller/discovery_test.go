//go:build unix

package controller

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

const servicePolicy = `{"tagOwners": {"tag:k8s-operator": ["autogroup:admin"], "tag:svc-api": ["autogroup:admin"], "tag:svc-db": ["autogroup:admin"], "tag:web": ["tag:k8s-operator"]}}`

// createServices creates VIP services in a tailnet, as another party does.
func createServices(p *tailnetEnv, api *fakeapi.API, names ...string) *tsapi.Client {
	p.t.Helper()
	own := api.Client([]string{"services"}, "tag:k8s-operator")
	set := new(tsapi.Clients)
	p.t.Cleanup(func() { set.Drop("t") })
	c, err := set.Put("t", tsapi.Version{}, func() (tsapi.Config, error) {
		return tsapi.Config{BaseURL: api.URL(), Tailnet: "-", Credential: tsapi.Credential{ClientID: own.ID, Secret: secret.New(own.Secret)},
			UserAgent: "test", PerSecond: 1000, Burst: 1000, Now: time.Now}, nil
	})
	p.must(err)
	for _, name := range names {
		p.must(c.PutService(p.t.Context(), tsapi.Service{Name: name, Ports: []string{"tcp:443", "tcp:8080"}, Tags: []string{"tag:web"}}))
	}
	return c
}

func (p *tailnetEnv) gateway(name string, attached ...v1alpha1.AttachedTailnet) *v1alpha1.TailscaleGateway {
	p.t.Helper()
	for i := range attached {
		d := &attached[i].ServiceDiscovery
		d.SyncInterval = metav1.Duration{Duration: time.Minute}
		if attached[i].ProxyGroup.MaxGroups == 0 {
			attached[i].ProxyGroup.MaxGroups = 50
		}
	}
	g := &v1alpha1.TailscaleGateway{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}, Spec: v1alpha1.TailscaleGatewaySpec{
		TargetRef: v1alpha1.GatewayReference{Group: "gateway.networking.k8s.io", Kind: "Gateway", Name: "eg"}, Tailnets: attached}}
	p.must(p.admin.Create(p.t.Context(), g))
	return g
}

func attach(tailnet string, d v1alpha1.ServiceDiscovery) v1alpha1.AttachedTailnet {
	return v1alpha1.AttachedTailnet{TailnetRef: v1alpha1.TailnetReference{Name: tailnet}, ServiceDiscovery: d}
}

// discovered returns the services that discovery created, as name=target:ports.
func (p *tailnetEnv) discovered() string {
	p.t.Helper()
	var list v1alpha1.TailscaleServiceList
	p.must(p.admin.List(p.t.Context(), &list, client.InNamespace(p.ns), client.MatchingLabels{v1alpha1.DiscoveredLabel: "true"}))
	var out []string
	for _, s := range list.Items {
		var ports []string
		for _, port := range s.Spec.Ports {
			ports = append(ports, fmt.Sprint(port.Port))
		}
		out = append(out, fmt.Sprintf("%s=%s%s:%s", s.Name, s.Spec.Target.ServiceName, strings.Join(s.Spec.Target.Tags, ","), strings.Join(ports, ",")))
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func (p *tailnetEnv) untilDiscovered(want string) {
	p.t.Helper()
	got := ""
	for end := time.Now().Add(tailnetDeadline); ; time.Sleep(10 * time.Millisecond) {
		if got = p.discovered(); got == want {
			return
		}
		if time.Now().After(end) {
			p.t.Fatalf("found %q within %v, want %q", got, tailnetDeadline, want)
		}
	}
}

// attachedStatus returns the status of a tailnet in a TailscaleGateway.
func (p *tailnetEnv) attachedStatus(name, tailnet string) (s v1alpha1.AttachedTailnetStatus) {
	p.t.Helper()
	g := &v1alpha1.TailscaleGateway{}
	p.must(p.admin.Get(p.t.Context(), client.ObjectKey{Namespace: p.ns, Name: name}, g))
	for _, one := range g.Status.Tailnets {
		if one.Name == tailnet {
			s = one
		}
	}
	return s
}

// advance moves the operator's clock forward and triggers discovery by creating an object in the
// namespace of the TailscaleGateway.
func (p *tailnetEnv) advance(d time.Duration) {
	p.t.Helper()
	p.ahead.Add(int64(d))
	s := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, GenerateName: "other-"}, Spec: v1alpha1.TailscaleServiceSpec{
		Type: v1alpha1.Egress, TailnetRef: &v1alpha1.TailnetReference{Name: "none"}, Target: &v1alpha1.ServiceTarget{ServiceName: "svc:other"}, Ports: []v1alpha1.ServicePort{{Port: 80}}}}
	p.must(p.admin.Create(p.t.Context(), s))
}

// awaitRead waits for a new read of a tailnet, one minute later.
func (p *tailnetEnv) awaitRead(name, tailnet string) {
	p.t.Helper()
	was := p.attachedStatus(name, tailnet).LastSyncTime
	p.advance(61 * time.Second)
	p.until("the tailnet is read", func() bool {
		is := p.attachedStatus(name, tailnet).LastSyncTime
		return is != nil && (was == nil || is.After(was.Time))
	})
}

// GTW-26, GW-06: discovery finds services by svc: name and by tag. A short failure and an empty
// list remove nothing, and missing services are removed only according to the rule.
func TestDiscovery(t *testing.T) {
	n := tailnettest.StartWith(t, tailnettest.Options{Policy: servicePolicy})
	if err := n.Ready(t.Context(), n.Node("api-1", "", "tag:svc-api", "tag:web")); err != nil {
		t.Fatal(err)
	}
	api, err := n.API()
	if err != nil {
		t.Fatal(err)
	}
	p := newTailnetEnv(t, allowAPIs(api))
	other := createServices(p, api, "svc:web", "svc:db", "svc:secret")
	p.secret("s", api.Client(allScopes, "tag:k8s-operator"))
	p.tailnet("corp", api, "s")
	g := p.gateway("eg", attach("corp", v1alpha1.ServiceDiscovery{Patterns: []string{"svc:*"}, ExcludePatterns: []string{"svc:sec*"}}))
	all := "eg-api=tag:svc-api:80 eg-db=svc:db:443,8080,80 eg-web=svc:web:443,8080,80"
	all = strings.ReplaceAll(all, "443,8080,80", "443,8080") // 80 is not one of their ports
	p.untilDiscovered(all)
	p.until("it reports it", func() bool { s := p.attachedStatus("eg", "corp"); return s.DiscoveredServices == 3 && !s.Stale })
	s := &v1alpha1.TailscaleService{}
	p.must(p.admin.Get(t.Context(), client.ObjectKey{Namespace: p.ns, Name: "eg-web"}, s))
	switch o := s.OwnerReferences; {
	case len(o) != 1:
		t.Errorf("len(o) = %v, want 1", len(o))
	case o[0].UID != g.UID:
		t.Errorf("o[0].UID = %q, want %q", o[0].UID, g.UID)
	case o[0].Kind != "TailscaleGateway":
		t.Errorf("o[0].Kind = %q, want %q", o[0].Kind, "TailscaleGateway")
	case s.Spec.ClusterService == nil:
		t.Error("s.Spec.ClusterService is nil")
	case *s.Spec.ClusterService.Create:
		t.Errorf("*s.Spec.ClusterService.Create is true; %+v", s)
	case s.Annotations[v1alpha1.ServiceTagsAnnotation] != "tag:web":
		t.Errorf("s.Annotations[v1alpha1.ServiceTagsAnnotation] = %q, want %q", s.Annotations[v1alpha1.ServiceTagsAnnotation], "tag:web")
	case s.Labels[v1alpha1.TailnetLabel] != "corp":
		t.Errorf("s.Labels[v1alpha1.TailnetLabel] = %q, want %q", s.Labels[v1alpha1.TailnetLabel], "corp")
	case s.Labels[v1alpha1.ServiceLabel] != "web":
		t.Errorf("s.Labels[v1alpha1.ServiceLabel] = %q, want %q", s.Labels[v1alpha1.ServiceLabel], "web")
	}

	// Reconciles without changes write nothing and call no API.
	p.awaitIdle()
	requestsBefore, writes := len(api.Requests()), len(p.wire.written())
	for range 3 {
		p.advance(0)
	}
	p.must(p.admin.Delete(t.Context(), s)) // deleted manually: its recreation proves that the reconcile is complete
	p.untilDiscovered(all)
	if n := len(api.Requests()) - requestsBefore; n != 0 {
		t.Errorf("%d requests to Tailscale", n)
	}
	if w := p.wire.written()[writes:]; len(w) != 1 {
		t.Errorf("writes, one of which creates the object again: %q", w)
	}

	// The API is unavailable.
	remove := api.Fault(fakeapi.Fault{Status: 503})
	p.advance(61 * time.Second)
	p.until("it is stale", func() bool { s := p.attachedStatus("eg", "corp"); return s.Stale && strings.Contains(s.Message, "503") })
	if got := p.discovered(); got != all {
		t.Errorf("the API is unavailable: %s", got)
	}
	remove()
	p.ahead.Add(int64(2 * time.Minute)) // until the circuit closes
	p.awaitRead("eg", "corp")
	p.until("it is no longer stale", func() bool { return !p.attachedStatus("eg", "corp").Stale })

	// Empty lists, for less than five minutes.
	removes := []func(){api.Fault(fakeapi.Fault{Route: listDevices, Status: 200, Body: `{"devices":[]}`}), api.Fault(fakeapi.Fault{Route: listServices, Status: 200, Body: `{"vipServices":[]}`})}
	for range 3 {
		p.awaitRead("eg", "corp")
	}
	if got := p.discovered(); got != all || !p.attachedStatus("eg", "corp").Stale {
		t.Errorf("empty lists: %s", got)
	}
	for _, remove := range removes {
		remove()
	}
	p.awaitRead("eg", "corp")

	// One service is missing: the second list removes it. A new operator continues with the same
	// state, which it reads from the objects.
	p.must(other.DeleteService(t.Context(), "svc:db"))
	p.awaitRead("eg", "corp")
	if got := p.discovered(); got != all {
		t.Errorf("after one list: %s", got)
	}
	p.stop()
	p.start()
	p.awaitRead("eg", "corp")
	if got := p.discovered(); got != all {
		t.Errorf("after one list of a new operator: %s", got)
	}
	p.awaitRead("eg", "corp")
	p.untilDiscovered("eg-api=tag:svc-api:80 eg-web=svc:web:443,8080")

	// A changed spec applies immediately where it adds services.
	p.must(other.PutService(t.Context(), tsapi.Service{Name: "svc:new", Ports: []string{"do-not-validate"}, Tags: []string{"tag:web"}}))
	p.awaitRead("eg", "corp")
	p.untilDiscovered("eg-api=tag:svc-api:80 eg-new=svc:new:80 eg-web=svc:web:443,8080")

	// The TailscaleGateway is deleted, and its discovered services with it.
	p.must(p.admin.Delete(t.Context(), g))
	p.untilDiscovered("")
}

// GTW-26: the API filters by explicit tags, and a user's own object has priority. If two tailnets
// have a service of the same name, the first tailnet keeps the short name.
func TestDiscoveryNames(t *testing.T) {
	nets := []*tailnettest.Net{tailnettest.StartWith(t, tailnettest.Options{Policy: servicePolicy}), tailnettest.StartWith(t, tailnettest.Options{Policy: servicePolicy})}
	if err := nets[0].Ready(t.Context(), nets[0].Node("db-1", "", "tag:svc-db")); err != nil {
		t.Fatal(err)
	}
	var apis []*fakeapi.API
	for _, n := range nets {
		api, err := n.API()
		if err != nil {
			t.Fatal(err)
		}
		apis = append(apis, api)
	}
	p := newTailnetEnv(t, allowAPIs(apis...))
	for i, name := range []string{"corp", "dev"} {
		createServices(p, apis[i], "svc:web")
		p.secret(name, apis[i].Client(allScopes, "tag:k8s-operator"))
		p.tailnet(name, apis[i], name)
		p.condition(name, "Ready", "True", "Ready")
	}
	g := p.gateway("eg", attach("dev", v1alpha1.ServiceDiscovery{Patterns: []string{"svc:*"}}))
	p.untilDiscovered("eg-web=svc:web:443,8080")
	first := attach("corp", v1alpha1.ServiceDiscovery{Patterns: []string{"svc:*"}, Tags: []string{"tag:svc-db"}, SyncInterval: metav1.Duration{Duration: time.Minute}})
	first.ProxyGroup.MaxGroups = 50
	p.until("another tailnet stands first", func() bool { // retried because the operator writes the status at the same time
		p.must(p.admin.Get(t.Context(), client.ObjectKeyFromObject(g), g))
		g.Spec.Tailnets = append([]v1alpha1.AttachedTailnet{first}, g.Spec.Tailnets...)
		err := p.admin.Update(t.Context(), g)
		if !apierrors.IsConflict(err) {
			p.must(err)
		}
		return err == nil
	})
	p.until("three services", func() bool { return len(strings.Fields(p.discovered())) == 3 })
	var s v1alpha1.TailscaleService
	p.must(p.admin.Get(t.Context(), client.ObjectKey{Namespace: p.ns, Name: "eg-web"}, &s))
	if s.Labels[v1alpha1.TailnetLabel] != "dev" || !strings.Contains(p.discovered(), "eg-db=tag:svc-db:80 eg-web-") {
		t.Errorf("%s: %s", s.Labels[v1alpha1.TailnetLabel], p.discovered())
	}
	if !slices.ContainsFunc(apis[0].Requests(), func(r fakeapi.Request) bool { return r.Route == listDevices && r.Query == "tags=tag%3Asvc-db" }) {
		t.Error("the devices of a tag were not requested from the API")
	}

	userService := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "mine"}, Spec: v1alpha1.TailscaleServiceSpec{
		Type: v1alpha1.Egress, TailnetRef: &v1alpha1.TailnetReference{Name: "dev"}, Target: &v1alpha1.ServiceTarget{ServiceName: "web"}, Ports: []v1alpha1.ServicePort{{Port: 80, TargetPort: 8080}}}}
	p.must(p.admin.Create(t.Context(), userService))
	p.until("the discovered service gives way", func() bool {
		return apierrors.IsNotFound(p.admin.Get(t.Context(), client.ObjectKey{Namespace: p.ns, Name: "eg-web"}, new(v1alpha1.TailscaleService)))
	})

	// GW-02: a tailnet that this namespace may not use and a missing tailnet have the same
	// message.
	foreign := p.cluster.Namespace(t)
	var statuses []string
	for _, name := range []string{"dev", "nowhere"} {
		attached := attach(name, v1alpha1.ServiceDiscovery{Patterns: []string{"svc:*"}, SyncInterval: metav1.Duration{Duration: time.Minute}})
		attached.ProxyGroup.MaxGroups = 50
		o := &v1alpha1.TailscaleGateway{ObjectMeta: metav1.ObjectMeta{Namespace: foreign, Name: name}, Spec: v1alpha1.TailscaleGatewaySpec{TargetRef: g.Spec.TargetRef, Tailnets: []v1alpha1.AttachedTailnet{attached}}}
		p.must(p.admin.Create(t.Context(), o))
		p.until("it has a message", func() bool {
			p.must(p.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o))
			return len(o.Status.Tailnets) > 0
		})
		one := o.Status.Tailnets[0]
		one.Name = ""
		statuses = append(statuses, fmt.Sprintf("%+v", one))
	}
	if statuses[0] != statuses[1] || !strings.Contains(statuses[0], "no such tailnet") {
		t.Errorf("it reveals the existing tailnets: %q", statuses)
	}
	var list v1alpha1.TailscaleServiceList
	p.must(p.admin.List(t.Context(), &list, client.InNamespace(foreign)))
	if len(list.Items) > 0 {
		t.Errorf("a tailnet that is not for the namespace: %d services", len(list.Items))
	}
}
