//go:build unix

package controller

import (
	"encoding/json"
	"fmt"
	"net/http"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"
	"tailscale.com/tailcfg"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
	"github.com/tailplane/tailplane/internal/gateway"
	"github.com/tailplane/tailplane/internal/relay/config"
	"github.com/tailplane/tailplane/internal/tailnet/tsapi"
	fakeapi "github.com/tailplane/tailplane/testkit/tailnettest/tsapi"
)

// GTW-04, GW-06, GW-10: the API is unavailable or refuses while a group is deleted. The deletion
// waits and reports the reason, and an administrator can release the group. A device of another
// owner stays, whatever a Secret contains.
func TestGroupDeletionBlocked(t *testing.T) {
	p := newGroupEnv(t)
	victim := p.net.Node("victim", "", "tag:svc-web")
	if err := p.net.Ready(t.Context(), victim); err != nil {
		t.Fatal(err)
	}
	foreign, err := p.net.ID(victim)
	p.must(err)

	g := p.group("web", 1)
	id := p.join("web", 0)
	p.until("the device is recorded", func() bool { d := p.get("web").Status.Devices; return len(d) == 1 && d[0].NodeID == id })
	restore := p.api.Fault(fakeapi.Fault{Route: "GET /device/{id}", Status: http.StatusForbidden})
	p.must(p.admin.Delete(t.Context(), g))
	is := p.condition("web", "Degraded", "True/"+reasonCleanupBlocked)
	if c := meta.FindStatusCondition(is.Status.Conditions, "Degraded"); !strings.Contains(c.Message, id) || !strings.Contains(c.Message, v1alpha1.SkipRemoteCleanupAnnotation) {
		t.Errorf("the message is %q", c.Message)
	}
	if c := meta.FindStatusCondition(is.Status.Conditions, "Ready"); c.Reason != v1alpha1.ReasonDeleting {
		t.Errorf("Ready is %s", c.Reason)
	}
	p.event(g, reasonCleanupBlocked)
	p.until("its Secrets are already deleted", func() bool { return !p.exists("web-0", &corev1.Secret{}) })
	restore()
	p.ahead.Add(int64(refusedPause + time.Second))
	p.trigger("web")
	p.until("it is deleted", func() bool { return !p.exists("web", &v1alpha1.TailscaleProxyGroup{}) })
	if ids := p.devices(); !slices.Equal(ids, []string{string(foreign)}) {
		t.Errorf("devices %v", ids)
	}

	// With the administrator's annotation the group is deleted immediately, and the device stays.
	g = p.group("gone", 1)
	id = p.join("gone", 0)
	p.until("the device is recorded", func() bool { d := p.get("gone").Status.Devices; return len(d) == 1 && d[0].NodeID == id })
	restore = p.api.Fault(fakeapi.Fault{Status: http.StatusInternalServerError})
	p.must(p.admin.Delete(t.Context(), g))
	p.condition("gone", "Degraded", "True/"+reasonCleanupBlocked)
	p.patch(p.get("gone"), `{"metadata":{"annotations":{"`+v1alpha1.SkipRemoteCleanupAnnotation+`":"true"}}}`)
	p.until("it is deleted", func() bool { return !p.exists("gone", &v1alpha1.TailscaleProxyGroup{}) })
	restore()
	p.net.Delete(tailcfg.StableNodeID(id))

	// A state Secret contains a device of another owner.
	g = p.group("liar", 1)
	p.until("it has its Secrets", func() bool { return len(p.secret("liar-0-config").Data["authkey"]) > 0 && p.secret("liar-0") != nil })
	p.patch(p.secret("liar-0"), p.stateOf(string(foreign), "victim", ""))
	p.until("it is recorded", func() bool { d := p.get("liar").Status.Devices; return len(d) == 1 && d[0].NodeID == string(foreign) })
	p.must(p.admin.Delete(t.Context(), g))
	p.until("it is deleted", func() bool { return !p.exists("liar", &v1alpha1.TailscaleProxyGroup{}) })
	if ids := p.devices(); !slices.Equal(ids, []string{string(foreign)}) {
		t.Errorf("the device of another owner is deleted: %v", ids)
	}
}

// GW-06, GW-11: keys that cannot be created, and a key that cannot be recorded. No readable object
// contains a key. A tenant's group for a tailnet without permission gets nothing.
func TestGroupKeys(t *testing.T) {
	p := newGroupEnv(t)
	restore := p.api.Fault(fakeapi.Fault{Route: "POST /tailnet/{tailnet}/keys", Status: http.StatusForbidden})
	p.group("web", 1)
	p.condition("web", "Ready", "False/"+v1alpha1.ReasonAuthKeyFailed)
	requestsBefore := p.requests("POST")
	for range 3 {
		p.trigger("web")
	}
	if n := p.requests("POST"); n != requestsBefore {
		t.Errorf("%d more requests after the refusal", n-requestsBefore)
	}
	restore()
	p.ahead.Add(int64(refusedPause + time.Second))
	p.trigger("web")
	p.until("a key", func() bool { return len(p.secret("web-0-config").Data["authkey"]) > 0 })
	secret := string(p.secret("web-0-config").Data["authkey"])

	// The first answer is lost: the created key is found and deleted.
	restore = p.api.Fault(fakeapi.Fault{Route: "POST /tailnet/{tailnet}/keys", Status: http.StatusBadGateway, Acts: true, Times: 1})
	p.group("lost", 1)
	p.until("the unreported key is deleted", func() bool { return p.counted.get("deleted") == 1 })
	restore()
	p.ahead.Add(int64(gateway.AuthKeyPause + time.Second))
	p.trigger("lost")
	p.until("another key", func() bool { return len(p.secret("lost-0-config").Data["authkey"]) > 0 })
	if keys := p.keys(); len(keys) != 2 {
		t.Errorf("keys %v", keys)
	}

	stranger := p.cluster.Namespace(t)
	o := &v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: stranger, Name: "mine"},
		Spec: v1alpha1.TailscaleProxyGroupSpec{Type: v1alpha1.Egress, TailnetRef: &v1alpha1.TailnetReference{Name: p.ns}}}
	p.must(p.admin.Create(t.Context(), o))
	p.until("it is refused", func() bool {
		p.must(p.admin.Get(t.Context(), client.ObjectKeyFromObject(o), o))
		c := meta.FindStatusCondition(o.Status.Conditions, "Accepted")
		return c != nil && c.Reason == v1alpha1.ReasonNamespaceNotManaged && len(o.Finalizers) == 0
	})

	var all v1alpha1.TailscaleProxyGroupList
	p.must(p.admin.List(t.Context(), &all, client.InNamespace(p.ns)))
	var cms corev1.ConfigMapList
	p.must(p.admin.List(t.Context(), &cms, client.InNamespace(p.ns)))
	var pods corev1.PodList
	p.must(p.admin.List(t.Context(), &pods, client.InNamespace(p.ns)))
	text, err := json.Marshal([]any{all, cms, pods, p.log.String()})
	p.must(err)
	if strings.Contains(string(text), secret) || strings.Contains(string(text), "tskey-auth-") {
		t.Error("a key is in an object that many accounts may read")
	}
}

// GTW-18: 1,000 mappings have ports. The 1,001st has none and moves no other. A released port is
// not reused for some time. The table survives a restart and the manual deletion of the ConfigMap.
// GTW-20: the number of pings is three times the replicas.
func TestGroupPorts(t *testing.T) {
	p := newGroupEnv(t)
	p.group("many", 1, func(g *v1alpha1.TailscaleProxyGroup) { g.Spec.TailnetTarget = nil })
	service := func(i, ports int) *v1alpha1.TailscaleService {
		s := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: fmt.Sprintf("s%02d", i)}, Spec: v1alpha1.TailscaleServiceSpec{
			ProxyGroupRef: &v1alpha1.ObjectReference{Name: "many"}, Target: &v1alpha1.ServiceTarget{IP: "100.64.1.1"}}}
		for port := range ports {
			s.Spec.Ports = append(s.Spec.Ports, v1alpha1.ServicePort{Port: int32(1 + port), Protocol: v1alpha1.TCP})
		}
		return s
	}
	for i := range 31 {
		p.must(p.admin.Create(t.Context(), service(i, 32)))
	}
	last := service(31, 8)
	p.must(p.admin.Create(t.Context(), last))
	p.until("1,000 ports are given", func() bool { return len(p.get("many").Status.Ports) == 1000 })
	table := func() map[string]int32 {
		out := map[string]int32{}
		for _, m := range p.get("many").Status.Ports {
			out[fmt.Sprint(m.Service, m.Protocol, m.TargetPort)] = m.MatchPort
		}
		return out
	}
	before := table()
	cm := &corev1.ConfigMap{}
	p.exists("many-egress-config", cm)
	doc, err := config.Parse(cm.Data)
	p.must(err)
	switch {
	case len(doc.Services) != 32:
		t.Errorf("len(doc.Services) = %v, want 32", len(doc.Services))
	case len(doc.Refused) != 0:
		t.Errorf("len(doc.Refused) = %v, want 0", len(doc.Refused))
	case doc.Pings != 3:
		t.Errorf("doc.Pings = %v, want 3", doc.Pings)
	case doc.Tailnet.HostnamePrefix != "many":
		t.Errorf("doc.Tailnet.HostnamePrefix = %q, want %q", doc.Tailnet.HostnamePrefix, "many")
	case doc.Tailnet.ControlURL != p.net.ControlURL():
		t.Errorf("doc.Tailnet.ControlURL = %q, want %q", doc.Tailnet.ControlURL, p.net.ControlURL())
	}
	for _, s := range doc.Services {
		switch {
		case len(s.Targets) != 1:
			t.Errorf("len(s.Targets) = %v, want 1", len(s.Targets))
		case s.Targets[0].IP != "100.64.1.1":
			t.Errorf("s.Targets[0].IP = %q, want %q", s.Targets[0].IP, "100.64.1.1")
		case s.Health == nil:
			t.Error("s.Health is nil")
		}
	}
	if c := meta.FindStatusCondition(p.get("many").Status.Conditions, "Accepted"); c.Status != "True" {
		t.Errorf("Accepted is %s", c.Reason)
	}

	more := service(99, 1)
	p.must(p.admin.Create(t.Context(), more))
	p.condition("many", "Accepted", "False/"+v1alpha1.ReasonPortsExhausted)
	if after := table(); len(after) != 1000 || !sameShared(before, after) {
		t.Error("others moved")
	}

	// After a restart and the loss of the ConfigMap, the table is the same.
	p.stop()
	p.must(p.admin.Delete(t.Context(), cm))
	p.start()
	p.until("the ConfigMap is created again", func() bool { return p.exists("many-egress-config", &corev1.ConfigMap{}) })
	p.trigger("many")
	if after := table(); len(after) != 1000 || !sameShared(before, after) {
		t.Error("other ports moved when the ConfigMap was deleted")
	}

	// Eight ports are released and not reused yet.
	p.must(p.admin.Delete(t.Context(), last))
	p.until("they are given back", func() bool { return len(p.get("many").Status.Ports) == 992 })
	p.condition("many", "Accepted", "False/"+v1alpha1.ReasonPortsExhausted)
	p.ahead.Add(int64(gateway.PortReuseDelay + 5*time.Second))
	p.trigger("many")
	p.condition("many", "Accepted", "True/Accepted")
	p.until("the last one has a port", func() bool { return len(p.get("many").Status.Ports) == 993 })
	if after := table(); !sameShared(after, before) {
		t.Error("others moved")
	}
}

// sameShared reports whether the keys that both maps contain have the same port.
func sameShared(a, b map[string]int32) bool {
	for key, port := range a {
		if other, ok := b[key]; ok && other != port {
			return false
		}
	}
	return true
}

// 6.5: a service without a group gets one that no other service may use. The group stays ten
// minutes after its last user, also over a restart. A group of another owner with that name is not
// touched. 2.2: the target is the named service if it exists, otherwise all devices with all tags.
func TestDesiredGroups(t *testing.T) {
	p := newGroupEnv(t)
	p.must(p.admin.Create(t.Context(), &v1alpha1.TailscaleProxyGroup{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "theirs-proxy-group"},
		Spec: v1alpha1.TailscaleProxyGroupSpec{Type: v1alpha1.Egress, Replicas: new(int32(0)), TailnetRef: &v1alpha1.TailnetReference{Name: p.ns}}}))
	service := func(name string) *v1alpha1.TailscaleService {
		s := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name}, Spec: v1alpha1.TailscaleServiceSpec{TailnetRef: &v1alpha1.TailnetReference{Name: p.ns},
			Target: &v1alpha1.ServiceTarget{ServiceName: "svc:" + name}, Ports: []v1alpha1.ServicePort{{Port: 80, Protocol: v1alpha1.TCP}}}}
		p.must(p.admin.Create(t.Context(), s))
		return s
	}
	s := service("billing")
	foreignGroup := service("theirs")
	g := &v1alpha1.TailscaleProxyGroup{}
	p.until("a group is created", func() bool { return p.exists("billing-proxy-group", g) && len(g.Status.Ports) == 1 })
	switch {
	case g.Labels[v1alpha1.ManagedLabel] != "true":
		t.Errorf("g.Labels[v1alpha1.ManagedLabel] = %q, want %q", g.Labels[v1alpha1.ManagedLabel], "true")
	case *g.Spec.Replicas != 2:
		t.Errorf("*g.Spec.Replicas = %v, want 2", *g.Spec.Replicas)
	case g.Spec.TailnetTarget.ServiceName != "billing":
		t.Errorf("g.Spec.TailnetTarget.ServiceName = %q, want %q", g.Spec.TailnetTarget.ServiceName, "billing")
	case !slices.Equal(g.Spec.TailnetTarget.Tags, []string{"tag:svc-billing"}):
		t.Errorf("g.Spec.TailnetTarget.Tags (-want +got):\n%s", cmp.Diff([]string{"tag:svc-billing"}, g.Spec.TailnetTarget.Tags))
	case g.Spec.Consumers.From != v1alpha1.NamespacesSelector:
		t.Errorf("g.Spec.Consumers.From = %q, want %q", g.Spec.Consumers.From, v1alpha1.NamespacesSelector)
	case !slices.Equal(g.Spec.Consumers.Selector.MatchExpressions[0].Values, []string{p.ns}):
		t.Errorf("difference (-want +got):\n%s", cmp.Diff([]string{p.ns}, g.Spec.Consumers.Selector.MatchExpressions[0].Values))
	}
	targets := func() []config.Target {
		cm := &corev1.ConfigMap{}
		if !p.exists("billing-proxy-group-egress-config", cm) {
			return nil
		}
		doc, err := config.Parse(cm.Data)
		p.must(err)
		if len(doc.Services) != 1 {
			return nil
		}
		return doc.Services[0].Targets
	}
	p.until("its relays look for devices with the tag", func() bool {
		is := targets()
		return len(is) == 1 && slices.Equal(is[0].Tags, []string{"tag:svc-billing"})
	})
	c, _, _ := p.clients.Get(p.ns)
	p.must(c.PutService(t.Context(), tsapi.Service{Name: "svc:billing", Ports: []string{"tcp:80"}, Tags: []string{relayTag}}))
	_, err := c.Lists(t.Context(), 0) // as the tailnet's check does
	p.must(err)
	p.trigger("billing-proxy-group")
	p.until("now there is a service", func() bool {
		is := targets()
		return len(is) == 1 && is[0].FQDN == "billing."+p.net.Suffix()
	})

	other := &v1alpha1.TailscaleProxyGroup{}
	p.exists("theirs-proxy-group", other)
	if other.Labels[v1alpha1.ManagedLabel] != "" || *other.Spec.Replicas != 0 {
		t.Errorf("another owner's group is used: %+v", other)
	}

	created := func() (names []string) {
		var all v1alpha1.TailscaleProxyGroupList
		p.must(p.admin.List(t.Context(), &all, client.InNamespace(p.ns), client.MatchingLabels{v1alpha1.ManagedLabel: "true"}))
		for _, g := range all.Items {
			names = append(names, g.Name)
		}
		return names
	}
	p.until("the other service has one of another name", func() bool { return len(created()) == 2 })
	p.must(p.admin.Delete(t.Context(), s))
	p.must(p.admin.Delete(t.Context(), foreignGroup))
	p.until("both are marked as unused", func() bool {
		return !slices.ContainsFunc(created(), func(name string) bool { return p.get(name).Annotations[unusedAnnotation] == "" })
	})
	p.stop()
	p.start()
	p.ahead.Add(int64(gateway.UnusedGroupGrace - time.Minute))
	p.trigger("billing-proxy-group")
	p.trigger("billing-proxy-group")
	if g := p.get("billing-proxy-group"); g.DeletionTimestamp != nil {
		t.Error("it is deleted too early")
	}
	p.ahead.Add(int64(2 * time.Minute))
	for _, name := range created() {
		p.trigger(name)
	}
	p.until("they go", func() bool { return len(created()) == 0 })
	p.checkOnlyGarbage(g)
}

// GTW-23: relays terminate TLS with the certificate in the Secret of a service's name. Either the
// operator creates the Secret for the relays to fill, or another party fills it. A service that
// the operator does not own in the tailnet gives no right to any Secret. A Secret of another type
// is not touched.
func TestCertificateSecrets(t *testing.T) {
	p := newGroupEnv(t)
	g := p.group("doors", 1, func(g *v1alpha1.TailscaleProxyGroup) {
		g.Spec.Type, g.Spec.TailnetTarget = v1alpha1.Ingress, nil
	})
	p.must(p.admin.Create(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "backend"}, Spec: corev1.ServiceSpec{Ports: []corev1.ServicePort{{Port: 80}}}}))
	name := func(label string) string { return label + "." + p.net.Suffix() }
	for label, kind := range map[string]corev1.SecretType{"given": corev1.SecretTypeTLS, "wrong": corev1.SecretTypeOpaque, "stranger": corev1.SecretTypeTLS} {
		p.must(p.admin.Create(t.Context(), &corev1.Secret{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: name(label)}, Type: kind, Data: map[string][]byte{"tls.crt": []byte("c"), "tls.key": []byte("k")}}))
	}
	for _, label := range []string{"vault", "given", "wrong", "stranger"} {
		s := &v1alpha1.TailscaleService{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: label}, Spec: v1alpha1.TailscaleServiceSpec{
			Type: v1alpha1.Ingress, TailnetRef: &v1alpha1.TailnetReference{Name: p.ns}, ProxyGroupRef: &v1alpha1.ObjectReference{Name: g.Name},
			Ports: []v1alpha1.ServicePort{{Port: 443, TargetPort: 80, TLS: v1alpha1.TLSTerminate}}, BackendRef: &v1alpha1.BackendReference{Kind: "Service", Name: "backend"},
			VIPService: &v1alpha1.VIPService{Name: "svc:" + label}}}
		p.must(p.admin.Create(t.Context(), s))
		if label == "stranger" {
			continue // another owner has it in the tailnet
		}
		s.Status.VIP = &v1alpha1.VIPStatus{Name: "svc:" + label, Tailnet: p.ns, Addresses: []string{"100.100.1.2"}}
		s.Status.Conditions = []metav1.Condition{{Type: v1alpha1.ConditionProgrammed, Status: metav1.ConditionTrue, Reason: v1alpha1.ReasonProgrammed, LastTransitionTime: metav1.Now()}}
		p.must(p.admin.Status().Update(t.Context(), s))
	}
	exposed := func() map[string]config.IngressService {
		cm, file := &corev1.ConfigMap{}, config.RelayFile{}
		if p.exists("doors-ingress-config", cm) {
			p.must(json.Unmarshal([]byte(cm.Data[config.RelayKey]), &file))
		}
		return file.Ingress
	}
	p.until("the relay configuration has two services", func() bool { return len(exposed()) == 2 })
	for label, issue := range map[string]bool{"vault": true, "given": false} {
		switch is := exposed()[p.ns+"."+label]; {
		case is.Domain != name(label):
			t.Errorf("is.Domain = %q, want name(label)", is.Domain)
		case is.Issue != issue:
			t.Errorf("is.Issue = %v, want %v", is.Issue, issue)
		case !is.Terminates():
			t.Errorf("is.Terminates() is false; label = %s, %+v", label, is)
		}
	}
	created := p.secret(name("vault"))
	if created.Type != corev1.SecretTypeTLS || !metav1.IsControlledBy(created, g) {
		t.Errorf("the Secret that the operator created: %s, of %+v", created.Type, created.OwnerReferences)
	}
	is := p.condition("doors", "Degraded", "True/"+reasonServicesOmitted)
	if c := meta.FindStatusCondition(is.Status.Conditions, "Degraded"); !strings.Contains(c.Message, name("wrong")) || strings.Contains(c.Message, "stranger") {
		t.Errorf("the message is %q", c.Message)
	}
	p.until("rights on two certificates", func() bool {
		_, may := p.rightsOf(t, "doors")
		return may["secrets get,patch,update doors-0,doors-0-config,"+name("given")+","+name("vault")]
	})

	// A certificate that a relay wrote stays while the service is not carried. It is deleted when
	// the service no longer needs it.
	p.patch(created, `{"stringData":{"tls.crt":"mine"}}`)
	p.must(p.admin.Delete(t.Context(), &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: p.ns, Name: "backend"}}))
	p.until("no service is carried", func() bool { return len(exposed()) == 0 })
	if now := p.secret(name("vault")); now.UID != created.UID || string(now.Data["tls.crt"]) != "mine" {
		t.Errorf("the certificate that a relay wrote: %v", now.Data)
	}
	for _, label := range []string{"vault", "given"} {
		s := &v1alpha1.TailscaleService{}
		p.exists(label, s)
		p.patch(s, `{"spec":{"ports":[{"port":443,"targetPort":80,"protocol":"TCP","tls":"Passthrough"}]}}`)
	}
	p.until("the operator's Secret is deleted", func() bool { return !p.exists(name("vault"), &corev1.Secret{}) })
	for _, label := range []string{"given", "wrong", "stranger"} {
		if s := p.secret(name(label)); string(s.Data["tls.crt"]) != "c" || len(s.OwnerReferences) > 0 {
			t.Errorf("another owner's Secret %s: %v", name(label), s)
		}
	}
}
