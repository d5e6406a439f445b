//go:build unix

package controller

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	eventsv1 "k8s.io/api/events/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"
	"tailscale.com/ipn"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	"github.com/tailplane/tailplane/internal/util/secret"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/tailnettest"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

func newServiceTailnet(t *testing.T) (*tailnettest.Net, *fakeapi.API) {
	t.Helper()
	tn := tailnettest.Start(t, serviceTestPolicy)
	api, err := tn.API()
	if err != nil {
		t.Fatal(err)
	}
	return tn, api
}

func ingressService(ns, serviceName, tailnet, groupNS string) *v1alpha1.TailscaleService {
	return &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: serviceName}, Spec: v1alpha1.TailscaleServiceSpec{
		Type: v1alpha1.Ingress, TailnetRef: &v1alpha1.TailnetReference{Name: tailnet}, ProxyGroupRef: &v1alpha1.ObjectReference{Name: "in", Namespace: groupNS},
		Ports: []v1alpha1.ServicePort{{Port: 443, TargetPort: 8443}, {Port: 80, TargetPort: 3000}}, BackendRef: &v1alpha1.BackendReference{Kind: "Service", Name: "backend"},
		VIPService: &v1alpha1.VIPService{Name: "svc:" + serviceName, Tags: []string{"tag:web"}, Comment: "of a test"},
	}}
}

func (p *serviceEnv) backend(ns string) {
	p.t.Helper()
	p.must(p.admin.Create(p.t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: ns, Name: "backend"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 3000}}}}))
}

// independentClient returns a client of the API that is independent of every operator.
func independentClient(t *testing.T, api *fakeapi.API) *tsapi.Client {
	t.Helper()
	own := api.Client([]string{"services", "devices:core"}, "tag:k8s", "tag:web")
	var set tsapi.Clients
	t.Cleanup(func() { set.Drop("t") })
	c, err := set.Put("t", tsapi.Version{}, func() (tsapi.Config, error) {
		return tsapi.Config{BaseURL: api.URL(), Tailnet: "-", Credential: tsapi.Credential{ClientID: own.ID, Secret: secret.New(own.Secret)},
			UserAgent: "test", PerSecond: 1000, Burst: 1000, Now: time.Now}, nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// vipServiceNamed returns a tailnet service, or nil if it does not exist.
func vipServiceNamed(t *testing.T, c *tsapi.Client, name string) *tsapi.Service {
	t.Helper()
	s, err := c.Service(t.Context(), name)
	if failure, ok := errors.AsType[*tsapi.Error](err); ok && failure.Class == tsapi.NotFound {
		return nil
	}
	if err != nil {
		t.Fatal(err)
	}
	return &s
}

// awaitOwners waits until a tailnet service belongs to exactly these operators.
func (p *serviceEnv) awaitOwners(c *tsapi.Client, name string, operators ...string) *tsapi.Service {
	p.t.Helper()
	var s *tsapi.Service
	p.until(fmt.Sprint(name, " belongs to ", operators), func() error {
		if s = vipServiceNamed(p.t, c, name); s == nil {
			return errors.New("there is none")
		}
		if got := operatorsOf(p.t, fakeapi.Service{Annotations: s.Annotations}); !slices.Equal(got, operators) {
			return fmt.Errorf("it belongs to %v", got)
		}
		return nil
	})
	return s
}

// awaitDeleted waits until a tailnet service is deleted.
func (p *serviceEnv) awaitDeleted(c *tsapi.Client, name string) {
	p.t.Helper()
	p.until(name+" is deleted", func() error {
		if s := vipServiceNamed(p.t, c, name); s != nil {
			return fmt.Errorf("%+v", s)
		}
		return nil
	})
}

// changingRequests returns the number of API requests that can change something, without those for tokens.
func changingRequests(api *fakeapi.API) (n int) {
	for _, r := range api.Requests() {
		if r.Method != "GET" && !strings.HasPrefix(r.Route, "POST /oauth") {
			n++
		}
	}
	return n
}

// GTW-25, GTW-23 (the controller's part), GTW-04: the lifecycle of a tailnet service with a real
// node as host.
func TestServiceIngress(t *testing.T) {
	t.Parallel()
	p := newServiceEnv(t, "tp-ingress", false)
	tn, api := newServiceTailnet(t)
	p.tailnet("ingress", tn.Suffix(), api)
	admin := independentClient(t, api)
	g := p.group("in", "ingress", v1alpha1.Ingress)
	p.backend(p.shop)
	s := ingressService(p.shop, "grafana", "ingress", p.ns)
	p.must(p.admin.Create(t.Context(), s))
	o := p.condition(s, v1alpha1.ConditionProgrammed, "True/Programmed")
	p.condition(s, v1alpha1.ConditionReady, "False/NoReadyEndpoints")
	created := p.awaitOwners(admin, "svc:grafana", "tp-ingress")
	v := o.Status.VIP
	switch {
	case v == nil:
		t.Error("status: v is nil")
	case v.Name != "svc:grafana":
		t.Errorf("status: v.Name = %q, want %q", v.Name, "svc:grafana")
	case v.Tailnet != "ingress":
		t.Errorf("status: v.Tailnet = %q, want %q", v.Tailnet, "ingress")
	case len(v.Addresses) != 2:
		t.Errorf("status: len(v.Addresses) = %v, want 2", len(v.Addresses))
	case v.Addresses[0] != created.Addrs[0].String():
		t.Errorf("status: v.Addresses[0] = %q, want %q", v.Addresses[0], created.Addrs[0].String())
	case v.DNSName != "grafana."+tn.Suffix():
		t.Errorf("status: v.DNSName = %q, want %q", v.DNSName, "grafana."+tn.Suffix())
	case v.Owners != 1:
		t.Errorf("status: v.Owners = %v, want 1", v.Owners)
	}
	switch {
	case !slices.Equal(created.Ports, []string{"tcp:443", "tcp:80"}):
		t.Errorf("created.Ports (-want +got):\n%s", cmp.Diff([]string{"tcp:443", "tcp:80"}, created.Ports))
	case !slices.Equal(created.Tags, []string{"tag:web"}):
		t.Errorf("created.Tags (-want +got):\n%s", cmp.Diff([]string{"tag:web"}, created.Tags))
	case created.Comment != "of a test":
		t.Errorf("created.Comment = %q, want %q", created.Comment, "of a test")
	}
	if !slices.Contains(o.Finalizers, v1alpha1.Finalizer) {
		t.Errorf("finalizers %v", o.Finalizers)
	}

	// A relay that carries the service becomes its host when the tailnet knows its offer.
	node := tn.Node("in-0", "", "tag:web")
	p.must(tn.Ready(t.Context(), node))
	id, err := tn.ID(node)
	p.must(err)
	p.until("the status has the device", func() error {
		if err := p.admin.Get(t.Context(), client.ObjectKeyFromObject(g), g); err != nil {
			return err
		}
		g.Status.Devices = []v1alpha1.RelayDevice{{Ordinal: 0, NodeID: string(id), Ready: true}}
		return p.admin.Status().Update(t.Context(), g)
	})
	pod := p.pod(g, 0, "10.77.2.1")
	reported := func(uncertified string) {
		p.setRelayStatus("in-0", string(pod.UID), config.Status{PodIPv4: "10.77.2.1", Services: map[string]config.ServiceStatus{}, Exposed: map[string]config.ExposedStatus{
			p.shop + ".grafana": {VIP: "svc:grafana", Uncertified: uncertified, Ports: []config.IngressPort{{Protocol: config.TCP, Port: 443, Backend: "b:1"}, {Protocol: config.TCP, Port: 80, Backend: "b:2"}}}}})
	}
	reported("none was\x1b[31m issued yet")
	p.condition(s, v1alpha1.ConditionReady, "False/AwaitingApproval")
	// Reconciles for other reasons do not delay the next query.
	countRequests := func() (n int) {
		for _, r := range api.Requests() {
			if r.Method == "GET" && strings.HasSuffix(r.Path, "/svc:grafana/devices") {
				n++
			}
		}
		return n
	}
	p.trigger(s, 10)
	p.awaitIdle()
	before := countRequests()
	p.until("it is requested again without a reason", func() error {
		if n := countRequests(); n <= before {
			return fmt.Errorf("requested %d times", n)
		}
		return nil
	})
	lc, err := node.LocalClient()
	p.must(err)
	if _, err := lc.EditPrefs(t.Context(), &ipn.MaskedPrefs{AdvertiseServicesSet: true, Prefs: ipn.Prefs{AdvertiseServices: []string{"svc:grafana"}}}); err != nil {
		t.Fatal(err)
	}
	p.until("the tailnet lists it as a host", func() error {
		if hosts, err := admin.Hosts(t.Context(), "svc:grafana"); err != nil || len(hosts) != 1 {
			return fmt.Errorf("%+v, %v", hosts, err)
		}
		return nil
	})
	// A relay that refuses TLS because it lacks a certificate is not ready (GTW-23).
	o = p.condition(s, v1alpha1.ConditionReady, "False/NoCertificate")
	if c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady); !strings.Contains(c.Message, "issued yet") || strings.Contains(c.Message, "\x1b") {
		t.Errorf("the message is %q", c.Message)
	}
	reported("")
	o = p.condition(s, v1alpha1.ConditionReady, "True/Ready")
	if h := o.Status.VIP.Hosts; h == nil || *h != (v1alpha1.VIPHosts{Configured: 1, Approved: 1}) {
		t.Errorf("hosts %+v", h)
	}
	hosts, err := admin.Hosts(t.Context(), "svc:grafana")
	switch {
	case err != nil:
		t.Errorf("hosts: %v", err)
	case len(hosts) != 1:
		t.Errorf("hosts: len(hosts) = %v, want 1", len(hosts))
	case !hosts[0].Approved:
		t.Errorf("hosts: hosts[0].Approved is false; hosts = %+v, %v", hosts, err)
	}
	out, stderr, code := kubetest.Kubectl(t.Context(), p.cluster.Kubeconfig, "-n", p.shop, "get", "tssvc", "grafana", "--no-headers")
	if code != 0 || !strings.HasPrefix(strings.Join(strings.Fields(out), " "), "grafana ingress ingress svc:grafana True") {
		t.Errorf("kubectl get: %q %s", out, stderr)
	}

	// Without changes nothing is written, neither in the cluster nor in the tailnet.
	p.until("it was read again after it was written", func() error {
		n := 0
		for _, r := range api.Requests() {
			if r.Method == "GET" && strings.HasSuffix(r.Path, "/svc:grafana") && r.Client != "" {
				n++
			}
		}
		if n < 3 {
			return fmt.Errorf("%d times", n)
		}
		return nil
	})
	p.awaitIdle()
	writes, changed, all := p.writes.Load(), changingRequests(api), len(api.Requests())
	p.trigger(s, 10)
	p.awaitIdle()
	switch n, m, r := p.writes.Load()-writes, changingRequests(api)-changed, len(api.Requests())-all; {
	case n != 0:
		t.Errorf("ten reconciles: n = %v, want 0; %s", n, p.log.Tail())
	case m != 0:
		t.Errorf("ten reconciles: m = %v, want 0; %s", m, p.log.Tail())
	case r > 2:
		t.Errorf("ten reconciles: r = %v, want at most 2; %s", r, p.log.Tail())
	}

	// After a manual deletion, the next read recreates the service with its address.
	p.must(admin.DeleteService(t.Context(), "svc:grafana"))
	p.advance(11*time.Minute, s)
	back := p.awaitOwners(admin, "svc:grafana", "tp-ingress")
	if back.Addrs[0] != created.Addrs[0] {
		t.Errorf("it came back as %v, not %v", back.Addrs, created.Addrs)
	}
	p.until("its host is one again", func() error {
		hosts, err := admin.Hosts(t.Context(), "svc:grafana")
		if err != nil || len(hosts) != 1 || !hosts[0].Approved {
			return fmt.Errorf("%+v, %v", hosts, err)
		}
		return nil
	})

	// After a change of the name, the former service is deleted.
	o = p.get(s)
	o.Spec.VIPService.Name, o.Spec.VIPService.Tags, o.Spec.VIPService.AutoApprove = "svc:dashboards", nil, new(false)
	p.must(p.admin.Update(t.Context(), o))
	created = p.awaitOwners(admin, "svc:dashboards", "tp-ingress")
	p.awaitDeleted(admin, "svc:grafana")
	if !slices.Equal(created.Tags, []string{"tag:k8s"}) { // the default tags of the tailnet
		t.Errorf("tags %v", created.Tags)
	}
	p.condition(s, v1alpha1.ConditionReady, "False/AwaitingApproval")
	p.advance(time.Minute, s)
	switch hosts, err := admin.Hosts(t.Context(), "svc:dashboards"); {
	case err != nil:
		t.Errorf("approved without a request: %v", err)
	case len(hosts) != 1:
		t.Errorf("approved without a request: len(hosts) = %v, want 1", len(hosts))
	case hosts[0].Approved:
		t.Errorf("approved without a request: hosts[0].Approved is true; hosts = %+v, %v", hosts, err)
	}

	// Deletion, at first with a failing API.
	// The object is degraded for the same reason before; the deletion reports it nevertheless.
	remove := api.Fault(fakeapi.Fault{Status: 500})
	p.advance(11*time.Minute, s)
	p.until("it is degraded", func() error {
		if o := p.get(s); !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionDegraded) {
			return fmt.Errorf("conditions %+v", o.Status.Conditions)
		}
		return nil
	})
	p.must(p.admin.Delete(t.Context(), s))
	p.condition(s, v1alpha1.ConditionReady, "False/Deleting")
	p.event(s, "CleanupBlocked")
	remove()
	p.advance(10*time.Minute, s)
	p.awaitGone(s)
	p.awaitDeleted(admin, "svc:dashboards")
}

// advance moves the operator's clock forward and triggers a reconcile.
func (p *serviceEnv) advance(d time.Duration, s *v1alpha1.TailscaleService) {
	p.t.Helper()
	p.ahead.Add(int64(d))
	patch := fmt.Sprintf(`{"metadata":{"annotations":{"test/later":"%d"}}}`, p.ahead.Load())
	if err := p.admin.Patch(p.t.Context(), s.DeepCopy(), client.RawPatch("application/merge-patch+json", []byte(patch))); client.IgnoreNotFound(err) != nil {
		p.t.Fatal(err)
	}
}

func (p *serviceEnv) event(s *v1alpha1.TailscaleService, reason string) {
	p.t.Helper()
	p.until("event "+reason, func() error {
		var all eventsv1.EventList
		if err := p.admin.List(p.t.Context(), &all); err != nil {
			return err
		}
		if !slices.ContainsFunc(all.Items, func(e eventsv1.Event) bool {
			return e.Regarding.Name == s.Name && e.Regarding.Namespace == s.Namespace && e.Reason == reason
		}) {
			return errors.New("none")
		}
		return nil
	})
}

// GTW-25, GW-10: two operators share a service. A lost update heals. They leave one after the
// other, and the service is deleted with the last one.
func TestTwoOperators(t *testing.T) {
	t.Parallel()
	tn, api := newServiceTailnet(t)
	admin := independentClient(t, api)
	var places []*serviceEnv
	var objects []*v1alpha1.TailscaleService
	for _, id := range []string{"tp-a", "tp-b"} {
		p := newServiceEnv(t, id, false)
		tailnet := "shared-" + id[3:]
		p.tailnet(tailnet, tn.Suffix(), api)
		p.group("in", tailnet, v1alpha1.Ingress)
		p.backend(p.shop)
		s := ingressService(p.shop, "web", tailnet, p.ns)
		places, objects = append(places, p), append(objects, s)
	}
	a, b := places[0], places[1]
	a.must(a.admin.Create(t.Context(), objects[0]))
	a.must(b.admin.Create(t.Context(), objects[1])) // at the same time: the API has no conditional writes
	created := a.awaitOwners(admin, "svc:web", "tp-a", "tp-b")
	for i, p := range places {
		p.condition(objects[i], v1alpha1.ConditionProgrammed, "True/Programmed")
		p.until("it has both", func() error {
			if n := p.get(objects[i]).Status.VIP.Owners; n != 2 {
				p.advance(11*time.Minute, objects[i])
				time.Sleep(20 * time.Millisecond)
				return fmt.Errorf("of %d", n)
			}
			return nil
		})
	}

	// Another party overwrites the annotation. Both entries are lost and come back.
	lost := *created
	lost.Annotations = map[string]string{gateway.OwnersAnnotation: gateway.VIPOwners{}.With(gateway.VIPOwner{OperatorID: "tp-x", Instance: "x"}).String(), "by": "hand"}
	a.must(admin.PutService(t.Context(), lost))
	for i, p := range places {
		p.advance(22*time.Minute, objects[i])
	}
	healed := a.awaitOwners(admin, "svc:web", "tp-a", "tp-b", "tp-x")
	if healed.Annotations["by"] != "hand" || !slices.Equal(healed.Addrs, created.Addrs) {
		t.Errorf("healed: %+v", healed)
	}
	x := *healed
	var all gateway.VIPOwners
	for _, text := range []string{x.Annotations[gateway.OwnersAnnotation]} {
		o, err := gateway.ParseVIPOwners(text)
		a.must(err)
		all = o.Without(gateway.VIPOwner{OperatorID: "tp-x", Instance: "x"})
	}
	x.Annotations = map[string]string{gateway.OwnersAnnotation: all.String(), "by": "hand"}
	a.must(admin.PutService(t.Context(), x))

	// One operator leaves and the other keeps the service unchanged. Then the last one deletes it.
	a.must(a.admin.Delete(t.Context(), objects[0]))
	a.awaitGone(objects[0])
	if left := a.awaitOwners(admin, "svc:web", "tp-b"); !slices.Equal(left.Addrs, created.Addrs) || left.Annotations["by"] != "hand" {
		t.Errorf("left: %+v", left)
	}
	a.must(b.admin.Delete(t.Context(), objects[1]))
	b.awaitGone(objects[1])
	b.awaitDeleted(admin, "svc:web")
}

// GTW-25, GW-10: an operator never changes a service of another owner, neither when it creates nor
// when it deletes.
func TestForeignServices(t *testing.T) {
	t.Parallel()
	p := newServiceEnv(t, "tp-foreign", false)
	tn, api := newServiceTailnet(t)
	p.tailnet("foreign", tn.Suffix(), api)
	admin := independentClient(t, api)
	p.group("in", "foreign", v1alpha1.Ingress)
	p.backend(p.shop)
	us := gateway.VIPOwner{OperatorID: "tp-foreign", Instance: "in another cluster", Resource: gateway.OwnerResource{Kind: "TailscaleService", Name: "x"}}
	others := gateway.VIPOwners{}.With(gateway.VIPOwner{OperatorID: "tp-other", Instance: "o"}).String()
	for _, tt := range []struct {
		called      string
		annotations map[string]string
		ports       []string
		want        string
	}{
		{"by-hand", map[string]string{"note": "mine"}, []string{"tcp:443", "tcp:80"}, "False/VIPNotOwned"},
		{"of-tailscale", map[string]string{gateway.TailscaleOwnersAnnotation: `{"ownerRefs":[{"operatorID":"ts"}]}`}, []string{"tcp:443", "tcp:80"}, "False/VIPNotOwned"},
		{"unreadable", map[string]string{gateway.OwnersAnnotation: `{"ownerRefs":7}`}, []string{"tcp:443", "tcp:80"}, "False/VIPNotOwned"},
		{"other-ports", map[string]string{gateway.OwnersAnnotation: others}, []string{"tcp:22"}, "False/VIPConflict"},
		{"twin", map[string]string{gateway.OwnersAnnotation: gateway.VIPOwners{}.With(us).String()}, []string{"tcp:443", "tcp:80"}, "False/DuplicateOperatorID"},
	} {
		created := tsapi.Service{Name: "svc:" + tt.called, Ports: tt.ports, Tags: []string{"tag:web"}, Annotations: tt.annotations, Comment: "before"}
		p.must(admin.PutService(t.Context(), created))
		before := vipServiceNamed(t, admin, created.Name)
		s := ingressService(p.shop, tt.called, "foreign", p.ns)
		s.Spec.VIPService.Adopt = tt.called == "unreadable" || tt.called == "other-ports" || tt.called == "twin"
		p.must(p.admin.Create(t.Context(), s))
		p.condition(s, v1alpha1.ConditionProgrammed, tt.want)
		o := p.condition(s, v1alpha1.ConditionReady, tt.want)
		if len(o.Finalizers) != 0 || o.Status.VIP != nil {
			t.Errorf("%s: the operator owns nothing, but %v, %+v", tt.called, o.Finalizers, o.Status.VIP)
		}
		if tt.called == "twin" {
			p.condition(s, v1alpha1.ConditionDegraded, "True/DuplicateOperatorID")
		}
		p.must(p.admin.Delete(t.Context(), s))
		p.awaitGone(s)
		if after := vipServiceNamed(t, admin, created.Name); !sameService(before, after) {
			t.Errorf("%s: %+v became %+v", tt.called, before, after)
		}
	}
	if n := changingRequests(api); n != 5 { // all by the test itself
		t.Errorf("%d requests that change something", n)
	}

	// With adopt the operator takes the service over, and the entries of other owners stay.
	s := ingressService(p.shop, "of-tailscale", "foreign", p.ns)
	s.Spec.VIPService.Adopt = true
	p.must(p.admin.Create(t.Context(), s))
	p.condition(s, v1alpha1.ConditionProgrammed, "True/Programmed")
	if got := p.awaitOwners(admin, "svc:of-tailscale", "tp-foreign"); got.Annotations[gateway.TailscaleOwnersAnnotation] == "" {
		t.Errorf("adopted: %+v", got)
	}
	p.must(p.admin.Delete(t.Context(), s))
	p.awaitGone(s)
	switch got := vipServiceNamed(t, admin, "svc:of-tailscale"); {
	case got == nil:
		t.Error("left: got is nil")
	case got.Annotations[gateway.TailscaleOwnersAnnotation] == "":
		t.Errorf("left: got.Annotations[gateway.TailscaleOwnersAnnotation] is empty; got = %+v", got)
	case got.Annotations[gateway.OwnersAnnotation] != "":
		t.Errorf("left: got.Annotations[gateway.OwnersAnnotation] = %q, want none", got.Annotations[gateway.OwnersAnnotation])
	}
}

func sameService(a, b *tsapi.Service) bool {
	return a != nil && b != nil && fmt.Sprintf("%+v", *a) == fmt.Sprintf("%+v", *b)
}

// GTW-04, GW-10: if the tailnet service cannot be deleted, an administrator can release the
// object. The service then stays behind.
func TestSkipCleanup(t *testing.T) {
	t.Parallel()
	p := newServiceEnv(t, "tp-skip", false)
	tn, api := newServiceTailnet(t)
	p.tailnet("skip", tn.Suffix(), api)
	admin := independentClient(t, api)
	p.group("in", "skip", v1alpha1.Ingress)
	p.backend(p.shop)
	s := ingressService(p.shop, "web", "skip", p.ns)
	p.must(p.admin.Create(t.Context(), s))
	p.condition(s, v1alpha1.ConditionProgrammed, "True/Programmed")

	// The API fails: the last known state stays and is reported as such.
	remove := api.Fault(fakeapi.Fault{Status: 403})
	p.advance(22*time.Minute, s)
	o := p.condition(s, v1alpha1.ConditionDegraded, "True/InsufficientPermissions")
	if !meta.IsStatusConditionTrue(o.Status.Conditions, v1alpha1.ConditionProgrammed) || len(o.Status.VIP.Addresses) != 2 {
		t.Errorf("%+v, %+v", o.Status.Conditions, o.Status.VIP)
	}
	p.must(p.admin.Delete(t.Context(), s))
	o = p.condition(s, v1alpha1.ConditionReady, "False/Deleting")
	c := meta.FindStatusCondition(o.Status.Conditions, v1alpha1.ConditionReady)
	if !strings.Contains(c.Message, v1alpha1.SkipRemoteCleanupAnnotation) || !strings.Contains(c.Message, "svc:web") {
		t.Errorf("the message does not contain the next step: %q", c.Message)
	}
	p.must(p.admin.Patch(t.Context(), o, client.RawPatch("application/merge-patch+json", []byte(`{"metadata":{"annotations":{"gateway.tailscale.com/skip-remote-cleanup":"true"}}}`))))
	p.awaitGone(s)
	remove()
	if vipServiceNamed(t, admin, "svc:web") == nil {
		t.Error("it was deleted anyway")
	}
}

// GW-01: a backend without permission is not exposed. If the permission is revoked later, no relay
// carries the service.
func TestIngressGrant(t *testing.T) {
	t.Parallel()
	p := newServiceEnv(t, "tp-grant", false)
	tn, api := newServiceTailnet(t)
	p.tailnet("grant", tn.Suffix(), api)
	admin := independentClient(t, api)
	p.group("in", "grant", v1alpha1.Ingress)
	p.backend(p.ns)
	s := ingressService(p.shop, "web", "grant", p.ns)
	s.Spec.BackendRef.Namespace = p.ns
	p.must(p.admin.Create(t.Context(), s))
	p.condition(s, v1alpha1.ConditionReady, "False/RefNotPermitted")
	if vipServiceNamed(t, admin, "svc:web") != nil || changingRequests(api) != 0 {
		t.Error("it was published anyway")
	}
	grant := &gatewayapi.ReferenceGrant{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "grant"}, Spec: gatewayapi.ReferenceGrantSpec{
		From: []gatewayapi.ReferenceGrantFrom{{Group: v1alpha1.Group, Kind: "TailscaleService", Namespace: gatewayapi.Namespace(p.shop)}},
		To:   []gatewayapi.ReferenceGrantTo{{Kind: "Service"}}}}
	p.must(p.admin.Create(t.Context(), grant))
	p.condition(s, v1alpha1.ConditionProgrammed, "True/Programmed")
	created := p.awaitOwners(admin, "svc:web", "tp-grant")
	p.must(p.admin.Delete(t.Context(), grant))
	o := p.condition(s, v1alpha1.ConditionReady, "False/RefNotPermitted")
	if o.Status.VIP == nil || !slices.Equal(o.Status.VIP.Addresses, []string{created.Addrs[0].String(), created.Addrs[1].String()}) {
		t.Errorf("its addresses are lost: %+v", o.Status.VIP)
	}
	p.must(p.admin.Delete(t.Context(), s))
	p.awaitGone(s)
	p.awaitDeleted(admin, "svc:web")
}

// The operator waits for the client of a tailnet, and UDP gets no tailnet service.
func TestIngressWaits(t *testing.T) {
	t.Parallel()
	p := newServiceEnv(t, "tp-waits", false)
	tn, api := newServiceTailnet(t)
	p.tailnet("waits", tn.Suffix(), nil)
	p.group("in", "waits", v1alpha1.Ingress)
	p.backend(p.shop)
	s, udp := ingressService(p.shop, "web", "waits", p.ns), ingressService(p.shop, "dns", "waits", p.ns)
	udp.Spec.Ports = []v1alpha1.ServicePort{{Port: 53, Protocol: v1alpha1.UDP}}
	p.must(p.admin.Create(t.Context(), s))
	p.must(p.admin.Create(t.Context(), udp))
	o := p.condition(s, v1alpha1.ConditionProgrammed, "False/TailnetNotReady")
	if len(o.Finalizers) != 0 {
		t.Errorf("finalizers %v", o.Finalizers)
	}
	o = p.condition(udp, v1alpha1.ConditionProgrammed, "True/Programmed")
	if len(o.Finalizers) != 0 || o.Status.VIP != nil {
		t.Errorf("finalizers %v, %+v", o.Finalizers, o.Status.VIP)
	}
	p.join("waits", api)
	p.trigger(s, 1)
	p.condition(s, v1alpha1.ConditionProgrammed, "True/Programmed")
	ctx, cancel := context.WithTimeout(t.Context(), serviceDeadline)
	defer cancel()
	if _, err := netip.ParseAddr(p.get(s).Status.VIP.Addresses[0]); err != nil || ctx.Err() != nil {
		t.Error(err)
	}
}
