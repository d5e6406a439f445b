//go:build unix

package controller

import (
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"sigs.k8s.io/controller-runtime/pkg/client"

	"github.com/tailplane/tailplane/api/gateway/v1alpha1"
)

// GTW-16, GTW-22, GW-11: a group is created, has the necessary rights, writes nothing without
// changes, is deleted, and leaves nothing behind.
func TestGroupLifecycle(t *testing.T) {
	p := newGroupEnv(t)
	g := p.group("web", 2)
	ids := []string{p.join("web", 0), p.join("web", 1)}
	p.until("keys are removed", func() bool {
		return len(p.secret("web-0-config").Data["authkey"])+len(p.secret("web-1-config").Data["authkey"]) == 0
	})
	p.until("the status has the devices", func() bool {
		d := p.get("web").Status.Devices
		return len(d) == 2 && d[0].NodeID == ids[0] && d[1].NodeID == ids[1]
	})
	p.until("its pods are created", func() bool { return p.replicas("web") == 2 && p.get("web").Status.Replicas == 2 })
	for _, reason := range []string{"AuthKeyIssued", "DeviceRegistered", "PortAllocated"} {
		p.event(g, reason)
	}

	p.checkRights(t, "web")

	// Ten reconciles without changes, and those of a new operator.
	p.trigger("web")
	p.trigger("web")
	requestsBefore := map[string]int{"POST": p.requests("POST"), "DELETE": p.requests("DELETE"), "PUT": p.requests("PUT")}
	writes := p.wire.writes.Load()
	for range 10 {
		p.trigger("web")
	}
	p.stop()
	if n := p.wire.writes.Load() - writes; n != 0 {
		t.Errorf("%d writes to Kubernetes in ten quiet reconciles, the last one %s", n, *p.wire.last.Load())
	}
	p.start()
	p.trigger("web")
	p.trigger("web")
	if n := p.wire.writes.Load(); n != 0 {
		t.Errorf("%d writes of a new operator, the last one %s", n, *p.wire.last.Load())
	}
	for method, n := range requestsBefore {
		if is := p.requests(method); is != n {
			t.Errorf("%d more %s to Tailscale in quiet reconciles", is-n, method)
		}
	}
	if p.counted.get("minted") != 2 || p.counted.get("deleted") != 0 {
		t.Errorf("keys: %v", p.counted.of)
	}

	p.must(p.admin.Delete(t.Context(), g))
	p.until("it is deleted", func() bool { return !p.exists("web", &v1alpha1.TailscaleProxyGroup{}) })
	p.checkDeleted(g)
	if log := p.log.String(); strings.Contains(log, "tskey-") {
		t.Error("a key is in the log")
	}
}

// checkDeleted checks that nothing of a group is left at Tailscale and in the cluster.
func (p *groupEnv) checkDeleted(g *v1alpha1.TailscaleProxyGroup) {
	p.t.Helper()
	p.checkOnlyGarbage(g)
	p.until("its Services, accounts and permissions are deleted", func() bool {
		for _, kind := range groupObjectKinds() {
			if p.exists(g.Name, kind) {
				return false
			}
		}
		return true
	})
}

// checkOnlyGarbage checks that only objects are left that are garbage-collected because their owner is
// deleted.
func (p *groupEnv) checkOnlyGarbage(g *v1alpha1.TailscaleProxyGroup) {
	p.t.Helper()
	if d, k := p.devices(), p.keys(); len(d)+len(k) > 0 {
		p.t.Errorf("at Tailscale: devices %v, keys %v", d, k)
	}
	owned := func(o metav1.ObjectMeta) bool {
		return slices.ContainsFunc(o.OwnerReferences, func(r metav1.OwnerReference) bool { return r.UID == g.UID })
	}
	var secrets corev1.SecretList
	p.must(p.admin.List(p.t.Context(), &secrets, client.InNamespace(p.ns)))
	for _, s := range secrets.Items {
		if owned(s.ObjectMeta) {
			p.t.Errorf("the Secret %s is left", s.Name)
		}
	}
	if p.replicas(g.Name) >= 0 {
		p.t.Error("the StatefulSet is left")
	}
}
