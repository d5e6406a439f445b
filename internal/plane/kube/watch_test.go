//go:build unix

package kube

import (
	"encoding/json"
	"reflect"
	"slices"
	"strings"
	"testing"
	"time"

	coordinationv1 "k8s.io/api/coordination/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	gatewayapi "sigs.k8s.io/gateway-api/apis/v1"

	gatewayv1alpha1 "github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/api/v1alpha1"
	"github.com/tailplane/tailplane/internal/access"
	"github.com/tailplane/tailplane/internal/gossip/controller"
	"github.com/tailplane/tailplane/internal/plane"
	"github.com/tailplane/tailplane/testkit/arctest"
	"github.com/tailplane/tailplane/testkit/kubetest"
	"github.com/tailplane/tailplane/testkit/planekubetest"
)

func (p *env) members(at time.Time, clusters ...controller.Cluster) *corev1.ConfigMap {
	b, err := json.Marshal(controller.Members{ObservedAt: at, Clusters: clusters})
	p.Must(err)
	return &corev1.ConfigMap{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: controller.MembersConfigMap}, Data: map[string]string{controller.MembersData: string(b)}}
}

// Each kind appears joined with its related kinds. The source of a kind that the cluster lacks says so until the kind exists.
func TestWatch(t *testing.T) {
	c := kubetest.New(t, kubetest.Options{Name: "plane"})
	p := newEnv(t, c)
	store, w := p.startWatcher(p.Config)

	// Only Kubernetes is installed.
	missing := []string{"tkasignins", "tailscaletailnets", "tailscalegateways", "gateways", "tailscaleroutepolicies", "tailscaleservices", "httproutes", "tailscaleproxygroups", "runnerpools", "runnerforges", "runnerholds"} // and runnerenrollments
	for _, r := range missing {
		p.Until(r+" are reported as missing", func() bool {
			s := sourceOf(store, r)
			return s.Status == plane.StatusDegraded && strings.Contains(s.Message, "not installed")
		})
	}
	p.Until("pods are read", func() bool { return sourceOf(store, "pods").Status == plane.StatusOK })
	p.Until("the list of members is reported as missing", func() bool {
		s := sourceOf(store, "members")
		return s.Status == plane.StatusDegraded && strings.Contains(s.Message, "does not exist")
	})
	p.Until("the fleet is reported as missing", func() bool {
		s := sourceOf(store, "fleet")
		return s.Status == plane.StatusDegraded && strings.Contains(s.Message, "not installed")
	})
	for _, k := range []plane.Kind{plane.KindSignin, plane.KindTailnet, plane.KindGateway, plane.KindRoute, plane.KindProxyGroup, plane.KindCluster, plane.KindPool, plane.KindEnrollment, plane.KindHold, plane.KindForge} {
		if store.List(k).Known {
			t.Errorf("%s: an empty list without an error", k)
		}
	}
	if l := store.List(plane.KindAdapter); !l.Known || len(l.Objects) != 0 {
		t.Errorf("adapters: %+v, want none, and known", l)
	}

	docs, err := planekubetest.Definitions()
	p.Must(err)
	p.Must(c.Apply(t.Context(), docs...))
	for _, r := range missing {
		p.Until(r+" are read", func() bool { return sourceOf(store, r).Status == plane.StatusOK })
	}
	for _, k := range []plane.Kind{plane.KindSignin, plane.KindTailnet, plane.KindGateway, plane.KindRoute, plane.KindProxyGroup, plane.KindHold, plane.KindForge} {
		if l := store.List(k); !l.Known || len(l.Objects) != 0 {
			t.Errorf("%s: %+v, want none, and known", k, l)
		}
	}

	p.Step("signin", func() {
		o := p.Signin("tka-1", "alice@example.com")
		end := metav1.NewTime(time.Now().Add(time.Hour).Truncate(time.Second))
		o.Status = v1alpha1.TkaSigninStatus{Phase: "Ready", Role: "view", ValidUntil: &end}
		p.Create(o)
		p.Until("it is shown", func() bool {
			s, _ := objectOf[plane.Signin](store, plane.KindSignin, p.Namespace+"/tka-1")
			return s.Phase == "Ready"
		})
		s, _ := objectOf[plane.Signin](store, plane.KindSignin, p.Namespace+"/tka-1")
		switch {
		case s.Login != "alice@example.com":
			t.Errorf("s.Login = %q, want %q", s.Login, "alice@example.com")
		case s.Device != "laptop":
			t.Errorf("s.Device = %q, want %q", s.Device, "laptop")
		case s.ValidUntil == nil:
			t.Error("s.ValidUntil is nil")
		case !s.ValidUntil.Equal(end.Time):
			t.Errorf("s.ValidUntil = %v, want %v", s.ValidUntil, end.Time)
		case s.Namespaces == nil:
			t.Error("s.Namespaces is nil")
		case s.ObservedAt.IsZero():
			t.Errorf("s.ObservedAt.IsZero() is true; %+v", s)
		}
		p.Must(p.Admin.Delete(t.Context(), o))
		p.Until("it is gone", func() bool { _, ok := store.Get(plane.KindSignin, p.Namespace+"/tka-1"); return !ok })
	})
	p.Step("tailnet", func() {
		o := &gatewayv1alpha1.TailscaleTailnet{ObjectMeta: metav1.ObjectMeta{Name: p.Namespace}, Spec: gatewayv1alpha1.TailscaleTailnetSpec{OAuthSecretName: "oauth", Tags: []string{"tag:k8s"}}}
		p.Create(o)
		show := func() plane.Tailnet { s, _ := objectOf[plane.Tailnet](store, plane.KindTailnet, p.Namespace); return s }
		p.Until("it is shown", func() bool { return show().Name != "" })
		switch s := show(); {
		case s.Devices != nil:
			t.Errorf("it has a status without a controller: s.Devices = %v, want nil", s.Devices)
		case s.Credential.Valid != nil:
			t.Errorf("it has a status without a controller: s.Credential.Valid = %v, want nil", s.Credential.Valid)
		case s.Domain != nil:
			t.Errorf("it has a status without a controller: s.Domain = %v, want nil", s.Domain)
		case s.Credential.CheckedAt != nil:
			t.Errorf("it has a status without a controller: s.Credential.CheckedAt = %v, want nil", s.Credential.CheckedAt)
		}
		o.Status = gatewayv1alpha1.TailscaleTailnetStatus{TailnetInfo: &gatewayv1alpha1.TailnetInfo{Name: "tail1.ts.net"}, LastSyncTime: new(metav1.Now()),
			Conditions: []metav1.Condition{{Type: gatewayv1alpha1.ConditionAuthenticated, Status: metav1.ConditionFalse, Reason: gatewayv1alpha1.ReasonInvalidCredentials, LastTransitionTime: metav1.Now()}}}
		p.Must(p.Admin.Status().Update(t.Context(), o))
		p.Until("its status is shown", func() bool { return show().Domain != nil })
		switch s := show(); {
		case s.Devices == nil:
			t.Error("s.Devices is nil")
		case *s.Devices != 0:
			t.Errorf("*s.Devices = %v, want 0", *s.Devices)
		case s.Credential.Valid == nil:
			t.Error("s.Credential.Valid is nil")
		case *s.Credential.Valid:
			t.Errorf("*s.Credential.Valid is true; %+v", s)
		case s.Credential.Reason != gatewayv1alpha1.ReasonInvalidCredentials:
			t.Errorf("s.Credential.Reason = %q, want %q", s.Credential.Reason, gatewayv1alpha1.ReasonInvalidCredentials)
		}
	})
	p.Step("gateway", func() {
		p.Create(&gatewayv1alpha1.TailscaleGateway{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "tg"},
			Spec: gatewayv1alpha1.TailscaleGatewaySpec{TargetRef: gatewayv1alpha1.GatewayReference{Group: gatewayapi.GroupName, Kind: "Gateway", Name: "eg"},
				Tailnets: []gatewayv1alpha1.AttachedTailnet{{TailnetRef: gatewayv1alpha1.TailnetReference{Name: "one"}}}},
			Status: gatewayv1alpha1.TailscaleGatewayStatus{Revision: &gatewayv1alpha1.GatewayRevision{Desired: "b", Translated: "a"},
				Services: []gatewayv1alpha1.RoutedService{{Name: "db", Tailnet: "one", Route: "tailscale-svc-db", Path: "/svc/db", Cluster: "tailscale-cluster-db", State: "Active"}}}})
		show := func() plane.Gateway {
			g, _ := objectOf[plane.Gateway](store, plane.KindGateway, p.Namespace+"/tg")
			return g
		}
		p.Until("it is shown", func() bool { return len(show().Services) > 0 })
		switch g := show(); {
		case g.Class != nil:
			t.Errorf("g.Class = %v, want nil", g.Class)
		case g.Listeners != nil:
			t.Errorf("g.Listeners = %v, want nil", g.Listeners)
		case g.Extension.Fresh == nil:
			t.Error("g.Extension.Fresh is nil")
		case *g.Extension.Fresh:
			t.Errorf("*g.Extension.Fresh is true; %+v", g)
		case g.Services[0].Route != "tailscale-svc-db":
			t.Errorf("g.Services[0].Route = %q, want %q", g.Services[0].Route, "tailscale-svc-db")
		}
		eg := &gatewayapi.Gateway{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "eg"}, Spec: gatewayapi.GatewaySpec{GatewayClassName: "envoy",
			Listeners: []gatewayapi.Listener{{Name: "web", Protocol: "HTTP", Port: 80}}}}
		p.Must(p.Admin.Create(t.Context(), eg))
		p.Until("its class is shown", func() bool { return show().Class != nil })
		if g := show(); *g.Class != "envoy" || !reflect.DeepEqual(g.Listeners, []plane.Listener{{Name: "web", Protocol: "HTTP", Port: 80}}) {
			t.Errorf("%+v", g)
		}
		p.Must(p.Admin.Delete(t.Context(), eg))
		p.Until("its class is unknown", func() bool { return show().Class == nil && show().Listeners == nil })
	})
	p.Step("routes", func() {
		backend := func(group, kind, name string) gatewayapi.HTTPRouteRule {
			g, k, port := gatewayapi.Group(group), gatewayapi.Kind(kind), gatewayapi.PortNumber(80)
			return gatewayapi.HTTPRouteRule{BackendRefs: []gatewayapi.HTTPBackendRef{{BackendRef: gatewayapi.BackendRef{BackendObjectReference: gatewayapi.BackendObjectReference{Group: &g, Kind: &k, Name: gatewayapi.ObjectName(name), Port: &port}}}}}
		}
		route := func(name string, rules ...gatewayapi.HTTPRouteRule) *gatewayapi.HTTPRoute {
			return &gatewayapi.HTTPRoute{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name},
				Spec: gatewayapi.HTTPRouteSpec{CommonRouteSpec: gatewayapi.CommonRouteSpec{ParentRefs: []gatewayapi.ParentReference{{Name: "eg"}}}, Hostnames: []gatewayapi.Hostname{"x.example"}, Rules: rules}}
		}
		p.Must(p.Admin.Create(t.Context(), route("other", backend("", "Service", "web"))))
		own := route("ours", backend("", "Service", "web"), backend(gatewayv1alpha1.Group, "TailscaleService", "db"))
		p.Must(p.Admin.Create(t.Context(), own))
		own.Status.Parents = []gatewayapi.RouteParentStatus{{ParentRef: gatewayapi.ParentReference{Name: "eg"}, ControllerName: "example.com/x",
			Conditions: []metav1.Condition{{Type: "ResolvedRefs", Status: metav1.ConditionFalse, Reason: "BackendNotFound", Message: "no db", LastTransitionTime: metav1.Now()}}}}
		p.Must(p.Admin.Status().Update(t.Context(), own))
		show := func() plane.Route {
			r, _ := objectOf[plane.Route](store, plane.KindRoute, "HTTPRoute/"+p.Namespace+"/ours")
			return r
		}
		p.Until("the refusal is shown", func() bool { return len(show().Refused) > 0 })
		switch r := show(); {
		case r.Target != "Gateway "+p.Namespace+"/eg":
			t.Errorf("r.Target = %q, want %q", r.Target, "Gateway "+p.Namespace+"/eg")
		case len(r.Rules) != 2:
			t.Errorf("len(r.Rules) = %v, want 2", len(r.Rules))
		case r.Rules[1].Backend != "TailscaleService "+p.Namespace+"/db:80":
			t.Errorf("r.Rules[1].Backend = %q, want %q", r.Rules[1].Backend, "TailscaleService "+p.Namespace+"/db:80")
		case r.Refused[0].Message != "no db":
			t.Errorf("r.Refused[0].Message = %q, want %q", r.Refused[0].Message, "no db")
		case r.Hostnames[0] != "x.example":
			t.Errorf("r.Hostnames[0] = %q, want %q", r.Hostnames[0], "x.example")
		}
		if _, ok := store.Get(plane.KindRoute, "HTTPRoute/"+p.Namespace+"/other"); ok {
			t.Error("a route that has to do with no tailnet is shown")
		}
		// A route that no longer refers to a tailnet service disappears.
		p.Must(p.Admin.Get(t.Context(), client.ObjectKeyFromObject(own), own))
		own.Spec.Rules = own.Spec.Rules[:1]
		p.Must(p.Admin.Update(t.Context(), own))
		p.Until("it is gone", func() bool { _, ok := store.Get(plane.KindRoute, "HTTPRoute/"+p.Namespace+"/ours"); return !ok })
	})
	p.Step("proxy group", func() {
		o := &gatewayv1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: "pg"}, Spec: gatewayv1alpha1.TailscaleProxyGroupSpec{Type: gatewayv1alpha1.Egress, Replicas: new(int32(3))}}
		p.Must(p.Admin.Create(t.Context(), o))
		show := func() plane.ProxyGroup {
			g, _ := objectOf[plane.ProxyGroup](store, plane.KindProxyGroup, p.Namespace+"/pg")
			return g
		}
		p.Until("it is shown", func() bool { return show().Wanted == 3 })
		if g := show(); g.Ready != nil {
			t.Errorf("%d are ready without a count", *g.Ready)
		}
		o.Status = gatewayv1alpha1.TailscaleProxyGroupStatus{ObservedGeneration: 1, ReadyReplicas: 0, Devices: []gatewayv1alpha1.RelayDevice{{Ordinal: 0, Hostname: "pg-0", Reason: "Joining"}}}
		p.Must(p.Admin.Status().Update(t.Context(), o))
		p.Until("its status is shown", func() bool { return show().Ready != nil && *show().Ready == 0 && len(show().Devices) == 1 })
	})
	p.Step("adapter", func() {
		pod := func(name, label string, annotations map[string]string) *corev1.Pod {
			return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: name, Labels: map[string]string{"mca.tailplane.dev/inject": label}, Annotations: annotations},
				Spec: corev1.PodSpec{InitContainers: []corev1.Container{{Name: "mca", Image: "x"}}, Containers: []corev1.Container{{Name: "app", Image: "x"}}}}
		}
		o := pod("in", "true", map[string]string{"mca.tailplane.dev/status": `{"version":"v9","hash":"sha256:00"}`})
		o.Status.InitContainerStatuses = []corev1.ContainerStatus{{Name: "mca", Image: "x", RestartCount: 2, State: corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{Reason: "CrashLoopBackOff"}}}}
		p.Create(o)
		p.Must(p.Admin.Create(t.Context(), pod("out", "false", nil)))
		show := func() plane.Adapter {
			a, _ := objectOf[plane.Adapter](store, plane.KindAdapter, p.Namespace+"/in")
			return a
		}
		p.Until("it is shown", func() bool { return show().Ready != nil })
		switch a := show(); {
		case *a.Ready:
			t.Errorf("*a.Ready is true; %+v", a)
		case *a.Restarts != 2:
			t.Errorf("*a.Restarts = %v, want 2", *a.Restarts)
		case a.Version == nil:
			t.Error("a.Version is nil")
		case *a.Version != "v9":
			t.Errorf("*a.Version = %q, want %q", *a.Version, "v9")
		case a.Message != "CrashLoopBackOff":
			t.Errorf("a.Message = %q, want %q", a.Message, "CrashLoopBackOff")
		case a.Outdated != nil:
			t.Errorf("a.Outdated = %v, want nil", a.Outdated)
		case a.Clusters != nil:
			t.Errorf("a.Clusters = %v, want nil", a.Clusters)
		}
		if _, ok := store.Get(plane.KindAdapter, p.Namespace+"/out"); ok {
			t.Error("a pod that keeps the adapter out is shown")
		}
	})
	p.Step("clusters", func() {
		cm := p.members(time.Now(), controller.Cluster{ID: "c1", Name: "east", State: "alive", Self: true, Software: "v1", LastSeen: time.Now()},
			controller.Cluster{ID: "c2", Name: "west", State: "suspect", Software: "v2"}, controller.Cluster{ID: "c1", Name: "evil", State: "dead", Conflict: true})
		p.Must(p.Admin.Create(t.Context(), cm))
		p.Until("three are shown", func() bool { return len(store.List(plane.KindCluster).Objects) == 3 })
		east, _ := objectOf[plane.Cluster](store, plane.KindCluster, "c1")
		west, _ := objectOf[plane.Cluster](store, plane.KindCluster, "c2")
		switch {
		case east.Health != "Alive":
			t.Errorf("east.Health = %q, want %q", east.Health, "Alive")
		case !east.Self:
			t.Errorf("east.Self is false; east = %+v, west = %+v", east, west)
		case east.Skew == nil:
			t.Error("east.Skew is nil")
		case *east.Skew:
			t.Errorf("*east.Skew is true; east = %+v, west = %+v", east, west)
		case east.LastSeen == nil:
			t.Error("east.LastSeen is nil")
		case west.Health != "Suspect":
			t.Errorf("west.Health = %q, want %q", west.Health, "Suspect")
		case west.Skew == nil:
			t.Error("west.Skew is nil")
		case !*west.Skew:
			t.Errorf("*west.Skew is false; east = %+v, west = %+v", east, west)
		case west.LastSeen != nil:
			t.Errorf("west.LastSeen = %v, want nil", west.LastSeen)
		}
		p.Until("it is well", func() bool { return sourceOf(store, "members").Status == plane.StatusOK })
		// The last published list stays when the next one is unreadable, old or deleted.
		change := func(m *corev1.ConfigMap) {
			m.ResourceVersion = ""
			p.Must(p.Admin.Update(t.Context(), m))
		}
		says := func(text string) {
			p.Until("it says "+text, func() bool {
				s := sourceOf(store, "members")
				return s.Status == plane.StatusDegraded && strings.Contains(s.Message, text)
			})
			if n := len(store.List(plane.KindCluster).Objects); n != 3 {
				t.Errorf("%s: %d clusters are shown", text, n)
			}
		}
		broken := cm.DeepCopy()
		broken.Data[controller.MembersData] = "{"
		change(broken)
		says("cannot be read")
		change(p.members(time.Now().Add(-time.Hour), controller.Cluster{ID: "c1"}, controller.Cluster{ID: "c2"}, controller.Cluster{ID: "c3"}))
		says("since")
		p.Must(p.Admin.Delete(t.Context(), cm))
		says("does not exist")
		again := p.members(time.Now(), controller.Cluster{ID: "c2", Name: "west", State: "alive"})
		p.Must(p.Admin.Create(t.Context(), again))
		p.Until("one is shown, and it is well", func() bool {
			return len(store.List(plane.KindCluster).Objects) == 1 && sourceOf(store, "members").Status == plane.StatusOK
		})
	})
	p.Step("organisations", func() {
		if s := w.Orgs(); len(s) != 0 {
			p.Errorf("%+v", s)
		}
		o := &v1alpha1.RunnerEnrollment{ObjectMeta: metav1.ObjectMeta{Name: "acme"}, Spec: v1alpha1.RunnerEnrollmentSpec{Forge: "github", ConfigURL: "https://github.com/acme", GroupID: 1,
			Pools: []v1alpha1.EnrolledPool{{Name: "linux"}}, Credentials: v1alpha1.EnrollmentCredentials{SecretName: "x"}, Owners: []string{"amy@acme.dev"}, Members: []string{"*@acme.dev"}}}
		p.Must(p.Admin.Create(p.Context(), o))
		p.Until("its owners are known", func() bool {
			return reflect.DeepEqual(w.Orgs(), []access.Org{{Name: "acme", Owners: []string{"amy@acme.dev"}, Members: []string{"*@acme.dev"}}})
		})
		p.Must(p.Admin.Delete(p.Context(), o))
		p.Until("it is gone", func() bool { return len(w.Orgs()) == 0 })
	})
	p.Step("a kind that is removed", func() { // must not end the watch
		out, errs, exit := kubetest.Kubectl(t.Context(), c.Kubeconfig, "delete", "crd", "tailscaleservices.gateway.tailscale.com")
		if exit != 0 {
			t.Fatal(out, errs)
		}
		p.Until("it says so", func() bool { return sourceOf(store, "tailscaleservices").Status == plane.StatusDegraded })
		p.Must(c.Apply(t.Context(), docs...))
		p.Until("it is read again", func() bool { return sourceOf(store, "tailscaleservices").Status == plane.StatusOK })
	})
}

// PLANE-06, PL-07: the source says if the fleet is gone or silent, since when, and what that means. A fleet that comes back, or has no
// election, is not an error.
func TestPL07_TheFleetGoesAway(t *testing.T) {
	p := newEnv(t, nil)
	lease := &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: fleetLease}}
	p.Must(p.Admin.Create(t.Context(), lease)) // as the chart makes it
	store, _ := p.startWatcher(p.Config)
	is := func(status plane.SourceStatus, words ...string) func() bool {
		return func() bool {
			s := sourceOf(store, "fleet")
			return s.Status == status && !slices.ContainsFunc(words, func(w string) bool { return !strings.Contains(s.Message, w) })
		}
	}
	says := func(holder string, at time.Time) {
		lease.Spec = coordinationv1.LeaseSpec{HolderIdentity: &holder, RenewTime: &metav1.MicroTime{Time: at}}
		p.Must(p.Admin.Update(t.Context(), lease))
	}
	p.Until("nothing is wrong with one that is not elected", is(plane.StatusOK))
	says("pod-1", time.Now())
	p.Until("it is at work", is(plane.StatusOK))
	last := time.Now().Add(-2 * maxFleetSilence)
	says("pod-1", last)
	p.Until("it has been silent for too long", is(plane.StatusDegraded, "has not run since "+last.UTC().Format(time.RFC3339)))
	if !slices.ContainsFunc(store.List(plane.KindPool).Sources, func(s plane.Source) bool { return s.Name == "kubernetes:fleet" && s.Status == plane.StatusDegraded }) {
		t.Error("the list of pools does not report it")
	}
	says("pod-2", time.Now())
	p.Until("another one is at work", is(plane.StatusOK))
	says("", time.Now())
	p.Until("it has stopped", is(plane.StatusDegraded, "has not run since "))
}

// PLANE-06, PL-07: while the API server is unreachable or hangs, all data stays as last read and every source is down. When it is back, all
// changes appear without a restart.
func TestPL07_TheAPIServerGoesAway(t *testing.T) {
	p := newEnv(t, nil)
	arc, err := arctest.New(arctest.Options{Cluster: p.Cluster, Namespace: p.Cluster.Namespace(t), Version: "0.14.2", GitHub: &arctest.ScaleSetFake{}})
	p.Must(err)
	p.Must(arc.Install(t.Context())) // for its kinds
	gate, through := kubetest.NewGate(t, p.Config)
	stays, goes := p.Signin("stays", "alice@example.com"), p.Signin("goes", "bob@example.com")
	p.Create(stays)
	p.Create(goes)
	p.Must(p.Admin.Create(t.Context(), p.members(time.Now(), controller.Cluster{ID: "c1", Name: "east", State: "alive"})))
	p.Must(p.Admin.Create(t.Context(), &coordinationv1.Lease{ObjectMeta: metav1.ObjectMeta{Namespace: p.Namespace, Name: fleetLease}}))
	store := p.startWatch(through)
	well := func() bool {
		for _, s := range store.Sources() {
			if s.Status != plane.StatusOK {
				return false
			}
		}
		return len(store.Sources()) > 0
	}
	truth := func() (all []any) {
		for _, k := range []plane.Kind{plane.KindSignin, plane.KindCluster, plane.KindTailnet, plane.KindAdapter} {
			for _, o := range store.List(k).Objects {
				all = append(all, o)
			}
		}
		return all
	}
	p.Until("all sources are well", well)
	for i, way := range []struct {
		name       string
		shut, mute bool
	}{{"cut", true, false}, {"silent", false, true}} {
		before := truth()
		began := time.Now()
		gate.Set(way.shut, way.mute)
		p.Until(way.name+": every source is down and reports it", func() bool {
			for _, s := range store.Sources() {
				if s.Status != plane.StatusDown || s.Since.Before(began) || s.Message == "" || s.ObservedAt.IsZero() || s.ObservedAt.After(s.Since) {
					return false
				}
			}
			return true
		})
		name := []string{"new", "newer"}[i]
		if i == 0 {
			p.Must(p.Admin.Delete(t.Context(), goes))
		}
		p.Create(p.Signin(name, "carol@example.com"))
		if after := truth(); !reflect.DeepEqual(before, after) {
			t.Errorf("%s: what is shown has changed:\n%+v\nwas\n%+v", way.name, after, before)
		}
		gate.Set(false, false)
		p.Until(way.name+": it is back, with what has changed", func() bool {
			_, has := store.Get(plane.KindSignin, p.Namespace+"/"+name)
			_, had := store.Get(plane.KindSignin, p.Namespace+"/goes")
			return has && !had && well()
		})
	}
}

// A source that the account may not read is down, and the others are not.
func TestWatchForbidden(t *testing.T) {
	p := newEnv(t, nil)
	p.Until("the right is taken away", func() bool {
		out, errs, exit := kubetest.Kubectl(t.Context(), p.Cluster.Kubeconfig, "delete", "clusterrolebinding", p.Namespace, "--ignore-not-found")
		return exit == 0 && out+errs != ""
	})
	store := p.startWatch(p.Config)
	p.Until("the missing right is reported", func() bool {
		s := sourceOf(store, "pods")
		return s.Status == plane.StatusDown && strings.Contains(s.Message, "account may not read pods")
	})
	p.Until("the others are read", func() bool { return sourceOf(store, "tkasignins").Status == plane.StatusOK })
}
